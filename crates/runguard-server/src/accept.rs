//! The guard service on the shell's listener.

use crate::auth::Openness;
use crate::service::{App, Service};
use crate::streams;
use runguard_core::time::Span;
use runguard_engine::Engine;
use runguard_engine::watch::Watched;
use runguard_http::{ListenError, Listener, Options, Threads, listen, tls};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(
        "refusing to listen on {address} without a key: anyone who reaches it could use it. Make one with `runguard key create --tenant NAME --role guard`, or listen on 127.0.0.1"
    )]
    NoKeys { address: SocketAddr },
}

#[derive(Debug)]
pub struct Server {
    listener: Listener,
    service: Arc<Service>,
}

impl Server {
    pub async fn bind(engine: Arc<Engine>) -> Result<Self, ServeError> {
        let settings = engine.settings.load().server.clone();
        let address = listen::resolve(&settings.listen).await?;
        let openness = if address.ip().is_loopback() { Openness::Loopback } else { Openness::KeysOnly };
        if openness == Openness::KeysOnly && engine.keys.load().is_open() {
            return Err(ServeError::NoKeys { address });
        }
        let tls = tls::Files::unless_empty(settings.tls_cert.into(), settings.tls_key.into());
        let service = engine.clone();
        let told = tls::CertificateNews::new(move |refused| match refused {
            Some((file, error)) => service.refusals.refuse(Watched::Certificate, file, error),
            None => service.refusals.clear(Watched::Certificate),
        });
        let options = Options { address, max_connections: settings.max_connections, tls, told, threads: Threads::OnePerCore };
        let listener = Listener::bind(options).await?;
        let app = Arc::new(App::new(engine, openness, listener.stopping()));
        tokio::spawn(streams::follow(app.clone()));
        Ok(Self { listener, service: Arc::new(Service::new(app)) })
    }

    /// Where it can be reached, with the scheme.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves until `stop` is ready, then finishes what is under way. Before the port closes it says for a while (`server.grace`) that it
    /// will, unless `hurry` is ready.
    pub async fn run(self, stop: impl Future<Output = ()>, hurry: impl Future<Output = ()>) {
        let app = self.service.app();
        let leave = async {
            stop.await;
            app.leaving.store(true, Ordering::Release);
            let grace = app.engine.settings.load().server.grace;
            if grace > Span::ZERO {
                tracing::info!(%grace, "not ready any more; the port closes after the grace period");
                let _ = tokio::time::timeout(Duration::from_millis(grace.as_millis()), hurry).await;
            }
        };
        self.listener.run(self.service.clone(), leave, std::future::ready(())).await;
    }
}
