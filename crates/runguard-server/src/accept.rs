//! Listens, bounds what a connection may do, and stops without losing an answer.

use crate::auth::Openness;
use crate::service::{App, Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use runguard_engine::Engine;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

/// A request's head must arrive within this time; an idle connection is closed after it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_HEADERS: usize = 64;
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How long a stop waits for requests that are under way.
const DRAIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}. Is another program using the port? Give another with --listen")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error(
        "refusing to listen on {address} without a key: anyone who reaches it could use it. Make one with `runguard key create --tenant NAME --role guard`, or listen on 127.0.0.1"
    )]
    NoKeys { address: SocketAddr },
}

#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    service: Arc<Service>,
    stopping: watch::Sender<bool>,
    connections: Arc<Semaphore>,
}

impl Server {
    pub async fn bind(engine: Arc<Engine>) -> Result<Self, ServeError> {
        let settings = engine.settings.load().server.clone();
        let address: SocketAddr = settings.listen.parse().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 8100)));
        let openness = if address.ip().is_loopback() { Openness::Loopback } else { Openness::KeysOnly };
        if openness == Openness::KeysOnly && engine.keys.load().is_empty() {
            return Err(ServeError::NoKeys { address });
        }
        let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, source })?;
        let (stopping, stopped) = watch::channel(false);
        let service = Arc::new(Service::new(Arc::new(App::new(engine, openness, stopped))));
        Ok(Self { listener, service, stopping, connections: Arc::new(Semaphore::new(settings.max_connections as usize)) })
    }

    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until `stop` is ready, then finishes what is under way.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES)
            .pipeline_flush(true);
        let graceful = GracefulShutdown::new();
        tokio::pin!(stop);
        loop {
            let permit = tokio::select! {
                permit = self.connections.clone().acquire_owned() => permit,
                () = &mut stop => break,
            };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut stop => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: wait for some to come back.
                    tracing::error!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Answers are small and complete: waiting to fill a packet only delays them.
            let _ = stream.set_nodelay(true);
            let service = self.service.clone();
            let connection =
                http.serve_connection(TokioIo::new(stream), hyper::service::service_fn(move |request| service.clone().handle(request)));
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection ended");
                }
                drop(permit);
            });
        }
        drop(self.listener);
        let _ = self.stopping.send(true);
        if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
    }
}
