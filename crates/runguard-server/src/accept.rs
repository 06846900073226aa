//! Listens, bounds what a connection may do, and stops without losing an answer.

use crate::auth::Openness;
use crate::service::{App, Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use runguard_engine::Engine;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// A request's head must arrive within this time; an idle connection is closed after it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_secs(1);
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
        let graceful = GracefulShutdown::new();
        let workers = Workers::start(&self.service);
        let mut next = 0_usize;
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
            let stream = match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: wait for some to come back.
                    tracing::error!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            next = next.wrapping_add(1);
            workers.give(next, Connection { stream, watcher: graceful.watcher(), permit: permit.ok() });
        }
        drop(self.listener);
        let _ = self.stopping.send(true);
        if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
    }
}

/// A connection on its way to the thread that serves it.
struct Connection {
    stream: std::net::TcpStream,
    watcher: Watcher,
    permit: Option<OwnedSemaphorePermit>,
}

/// One thread a core, each with a runtime of its own: a connection stays on its thread, and waking it up after its commit
/// needs no queue that all threads share.
struct Workers {
    queues: Vec<mpsc::UnboundedSender<Connection>>,
}

impl Workers {
    fn start(service: &Arc<Service>) -> Self {
        let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut queues = Vec::with_capacity(count);
        for number in 0..count {
            let (queue, connections) = mpsc::unbounded_channel();
            let service = service.clone();
            let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(serve_connections(service, connections)),
                Err(error) => tracing::error!(%error, "a serving thread could not start"),
            };
            match std::thread::Builder::new().name(format!("serve-{number}")).spawn(run) {
                Ok(_) => queues.push(queue),
                Err(error) => tracing::error!(%error, "a serving thread could not start"),
            }
        }
        Self { queues }
    }

    fn give(&self, number: usize, connection: Connection) {
        // Without a thread the connection is dropped, which is all that can be done with it.
        let _ = self.queues[number % self.queues.len().max(1)].send(connection);
    }
}

async fn serve_connections(service: Arc<Service>, mut connections: mpsc::UnboundedReceiver<Connection>) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .pipeline_flush(true);
    // While no timer runs, every new one interrupts the runtime, which costs a system call for each request. One that
    // always runs, and ends before any of theirs, keeps it from doing so.
    tokio::spawn(async {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
        }
    });
    while let Some(Connection { stream, watcher, permit }) = connections.recv().await {
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        // Answers are small and complete: waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        let service = service.clone();
        let answer = hyper::service::service_fn(move |request| service.clone().handle(request));
        let connection = watcher.watch(http.serve_connection(TokioIo::new(stream), answer));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
            drop(permit);
        });
    }
}
