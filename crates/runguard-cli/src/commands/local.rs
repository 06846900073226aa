//! A service inside of a command: the real engine, store and server, on this machine alone.

use crate::failure::Failure;
use futures_util::FutureExt as _;
use reqwest::blocking::RequestBuilder;
use runguard_engine::engine::open_store;
use runguard_engine::settings::check_text;
use runguard_engine::{Clock, Engine, EngineOptions, KeyRing};
use runguard_http::ListenError;
use runguard_http::client::{WithoutCertificates, causes, trust_system};
use runguard_server::{ServeError, Server};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) struct Service {
    pub(crate) engine: Arc<Engine>,
    pub(crate) url: String,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Service {
    /// Without keys whoever reaches it may ask it.
    pub(crate) async fn start(settings: &str, keys: KeyRing) -> Result<Self, StartFailure> {
        let failed = |error: &dyn std::fmt::Display| StartFailure::Other(error.to_string());
        let settings = check_text(Path::new("settings of this command"), settings).map_err(|error| failed(&error))?.settings;
        let store = open_store(&settings).map_err(|error| failed(&error))?;
        let options = EngineOptions { clock: Clock::System, settings, keys, seed: None };
        let engine = Arc::new(Engine::new(store, options).await.map_err(|error| failed(&error))?);
        let server = match Server::bind(engine.clone()).await {
            Ok(server) => server,
            Err(error) => {
                close(engine).await;
                return Err(match error {
                    ServeError::Listen(ListenError::Bind { address, source }) => StartFailure::Port(format!(
                        "cannot listen on {address}: {source}. Another program has the port (a `runguard serve`?)"
                    )),
                    ServeError::Listen(_) | ServeError::NoKeys { .. } => StartFailure::Other(error.to_string()),
                });
            }
        };
        let url = server.url();
        let (stop, mut stopped) = watch::channel(false);
        let until_stopped = async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let serving = tokio::spawn(server.run(until_stopped, std::future::pending()).boxed());
        Ok(Self { engine, url, stop, serving })
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.serving.await;
        close(self.engine).await;
    }
}

/// Why it did not start.
#[derive(Debug)]
pub(crate) enum StartFailure {
    Port(String),
    Other(String),
}

impl StartFailure {
    /// For a person, with what to do about a port that is taken.
    pub(crate) fn with_hint(self, hint: &str) -> Failure {
        Failure::Failed(match self {
            Self::Port(problem) => format!("{problem}. {hint}"),
            Self::Other(problem) => problem,
        })
    }
}

async fn close(engine: Arc<Engine>) {
    // Joins threads that write; not on a thread that serves.
    let _ = tokio::task::spawn_blocking(move || engine.stop()).await;
}

/// The service over HTTP, with connections that are kept.
pub(crate) struct Http {
    pub(crate) client: reqwest::blocking::Client,
    pub(crate) url: String,
}

impl Http {
    /// Not on a thread of a runtime: it waits.
    pub(crate) fn new(url: &str) -> Result<Self, String> {
        let client = reqwest::blocking::Client::builder()
            .tls_backend_preconfigured(trust_system(WithoutCertificates::TrustNobody)?)
            .timeout(Duration::from_secs(30))
            .no_proxy()
            .build()
            .map_err(|error| format!("cannot set up the HTTP client: {}", causes(&error)))?;
        Ok(Self { client, url: url.to_owned() })
    }

    pub(crate) fn ask(&self, request: RequestBuilder) -> Result<(u16, Vec<u8>), String> {
        let lost = |error: reqwest::Error| format!("the service at {} did not answer: {}", self.url, causes(&error));
        let response = request.send().map_err(lost)?;
        let status = response.status().as_u16();
        Ok((status, response.bytes().map_err(lost)?.to_vec()))
    }
}
