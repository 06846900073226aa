//! Listens, bounds how many are connected, and stops without losing an answer.

use crate::connection::{Accepted, Wire, serve};
use crate::crowd::Crowd;
use crate::files::connections_that_fit;
use crate::reply::Reply;
use crate::request_id::{RequestId, RequestIds};
use crate::tls::{CertificateNews, Certificates, Files, TlsError};
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::server::graceful::GracefulShutdown;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

const TICK: Duration = Duration::from_secs(1);
/// How long a stop waits for requests that are under way.
pub const DRAIN: Duration = Duration::from_secs(10);
/// Connections beyond the bound, for health checks alone.
const RESERVE: usize = 32;
/// How long a connection of the reserve waits for a seat.
const MAKE_PLACE: Duration = Duration::from_secs(2);
/// How long a stop lets connections that are in use hear of it.
const LINGER: Duration = Duration::from_secs(1);
/// With fewer there is nothing to serve.
const FEWEST_CONNECTIONS: u64 = 16;

/// What is served.
pub trait Service: Send + Sync + 'static {
    /// Paths that are answered even when all connections are taken.
    fn is_health(&self, path: &str) -> bool;

    /// Requests whose bodies the service judges by itself, in the words and with the bounds of its own.
    fn judges_body(&self, _request: &Request<Incoming>) -> bool {
        false
    }

    fn answer(&self, request: Request<Incoming>, id: &RequestId) -> impl Future<Output = Reply> + Send;
}

/// Where connections are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// One thread a core, each with a runtime of its own: a connection stays on its thread, and waking it up needs no queue that
    /// all threads share.
    OnePerCore,
    /// On the runtime that listens, for services whose requests begin work that outlives them.
    Shared,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub address: SocketAddr,
    pub max_connections: u32,
    pub tls: Option<Files>,
    /// Who hears of certificates that change.
    pub told: CertificateNews,
    pub threads: Threads,
}

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on {address}: {source}. Is another program using the port? Give another with --listen")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("cannot listen on {listen}: {problem}. Write an address and a port, such as 127.0.0.1:8100 or localhost:8100")]
    NoAddress { listen: String, problem: String },
    #[error("the system lets this process open so few files that {fit} connections fit. Raise the limit (ulimit -n, LimitNOFILE=)")]
    FewFiles { fit: u64 },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Whether it has the form of an address and a port, `127.0.0.1:8100`, `[::1]:8100` or `localhost:8100`; nobody is asked what the name means.
pub fn is_address(listen: &str) -> bool {
    let is_name = |host: &str| {
        !host.is_empty() && host.len() <= 253 && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    let has_name = |(host, port): (&str, &str)| is_name(host) && port.parse::<u16>().is_ok();
    listen.parse::<SocketAddr>().is_ok() || listen.rsplit_once(':').is_some_and(has_name)
}

/// The address that is meant. A name that means several, as `localhost` does, means the one that most clients try: IPv4.
pub async fn resolve(listen: &str) -> Result<SocketAddr, ListenError> {
    if let Ok(address) = listen.parse() {
        return Ok(address);
    }
    let wrong = |problem: String| ListenError::NoAddress { listen: listen.to_owned(), problem };
    let mut found: Vec<SocketAddr> = tokio::net::lookup_host(listen).await.map_err(|error| wrong(error.to_string()))?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().ok_or_else(|| wrong("the name has no address".to_owned()))
}

#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    seats: Arc<Seats>,
    certificates: Option<Arc<Certificates>>,
    told: CertificateNews,
    threads: Threads,
    stopping: watch::Sender<bool>,
}

impl Listener {
    pub async fn bind(options: Options) -> Result<Self, ListenError> {
        let certificates = options.tls.map(Certificates::load).transpose()?.map(Arc::new);
        let seats = Arc::new(Seats::new(connections(options.max_connections, connections_that_fit())?));
        let unbound = |source| ListenError::Bind { address: options.address, source };
        let socket = TcpListener::bind(options.address).await.map_err(unbound)?;
        let address = socket.local_addr().map_err(unbound)?;
        let (stopping, _) = watch::channel(false);
        Ok(Self { socket, address, seats, certificates, told: options.told, threads: options.threads, stopping })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it can be reached, with the scheme.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.certificates.is_some() { "https" } else { "http" }, self.address)
    }

    /// Turns true when the listener stops: streams end then.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Serves until `stop` is ready, then finishes what is under way. `before_drain` runs when nothing is accepted any more and
    /// streams have been told to end.
    pub async fn run<S: Service>(self, service: Arc<S>, stop: impl Future<Output = ()>, before_drain: impl Future<Output = ()>) {
        let Self { socket, seats, certificates, told, threads, stopping, .. } = self;
        let wire = Arc::new(Wire {
            service,
            ids: RequestIds::new(),
            seats: seats.clone(),
            crowd: Crowd::new(),
            certificates: certificates.clone(),
            stopping: stopping.subscribe(),
        });
        let follower = certificates.map(|certificates| tokio::spawn(certificates.follow(told)));
        let graceful = GracefulShutdown::new();
        let places = Places::start(&wire, threads);
        let accept = async {
            let mut next = 0_usize;
            loop {
                let seat = loop {
                    match tokio::time::timeout(Duration::from_millis(100), seats.take()).await {
                        Ok(seat) => break seat,
                        Err(_) => wire.crowd.make_place(RESERVE),
                    }
                };
                if matches!(seat, Seat::Reserve(_)) {
                    wire.crowd.make_place(1);
                }
                let stream = match socket.accept().await.and_then(|(stream, _)| stream.into_std()) {
                    Ok(stream) => stream,
                    Err(error) => {
                        // Out of file descriptors, most likely: wait for some to come back.
                        tracing::error!(%error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                next = next.wrapping_add(1);
                places.give(next, Accepted { stream, watcher: graceful.watcher(), seat, member: wire.crowd.join() });
            }
        };
        tokio::select! {
            () = stop => {}
            () = accept => {}
        }
        drop(socket);
        let _ = stopping.send(true);
        let drain = async {
            before_drain.await;
            // Whoever asks often asks once more, and is told to come back on another connection.
            let heard = async {
                while wire.crowd.has_regulars() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let _ = tokio::time::timeout(LINGER, heard).await;
            graceful.shutdown().await;
        };
        if tokio::time::timeout(DRAIN, drain).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
        if let Some(follower) = follower {
            follower.abort();
        }
    }
}

/// As many as were asked for, or as fit.
fn connections(asked: u32, fit: Option<u64>) -> Result<usize, ListenError> {
    let Some(fit) = fit.map(|fit| fit.saturating_sub(RESERVE as u64)).filter(|fit| *fit < u64::from(asked)) else {
        return Ok(asked as usize);
    };
    if fit < FEWEST_CONNECTIONS.min(u64::from(asked)) {
        return Err(ListenError::FewFiles { fit });
    }
    tracing::warn!(
        asked,
        fit,
        "fewer connections are taken than asked for (`server.max_connections`): the system does not let this process open more files; raise the limit (ulimit -n, LimitNOFILE=)"
    );
    Ok(fit as usize)
}

/// Who may be connected.
#[derive(Debug)]
pub(crate) struct Seats {
    common: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
}

/// A place among the connections; free again when it is dropped.
#[derive(Debug)]
pub(crate) enum Seat {
    Common(#[expect(dead_code, reason = "held, not looked at")] OwnedSemaphorePermit),
    Reserve(#[expect(dead_code, reason = "held, not looked at")] OwnedSemaphorePermit),
}

impl Seats {
    fn new(connections: usize) -> Self {
        Self { common: Arc::new(Semaphore::new(connections)), reserve: Arc::new(Semaphore::new(RESERVE)) }
    }

    async fn take(&self) -> Seat {
        tokio::select! {
            biased;
            Ok(permit) = self.common.clone().acquire_owned() => Seat::Common(permit),
            Ok(permit) = self.reserve.clone().acquire_owned() => Seat::Reserve(permit),
            else => std::future::pending().await,
        }
    }

    /// A seat of the others' for a connection of the reserve, if one becomes free: an idle connection that makes place takes a
    /// moment to go.
    pub(crate) async fn promoted(&self) -> Option<Seat> {
        let permit = tokio::time::timeout(MAKE_PLACE, self.common.clone().acquire_owned()).await;
        permit.ok().and_then(Result::ok).map(Seat::Common)
    }
}

/// Where connections go.
struct Places<S> {
    queues: Vec<mpsc::UnboundedSender<Accepted>>,
    wire: Arc<Wire<S>>,
}

impl<S: Service> Places<S> {
    fn start(wire: &Arc<Wire<S>>, threads: Threads) -> Self {
        let count = match threads {
            Threads::OnePerCore => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            Threads::Shared => 0,
        };
        let mut queues = Vec::with_capacity(count);
        for number in 0..count {
            let (queue, connections) = mpsc::unbounded_channel();
            let wire = wire.clone();
            let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(serve_all(wire, connections)),
                Err(error) => tracing::error!(%error, "a serving thread could not start"),
            };
            match std::thread::Builder::new().name(format!("serve-{number}")).spawn(run) {
                Ok(_) => queues.push(queue),
                Err(error) => tracing::error!(%error, "a serving thread could not start"),
            }
        }
        Self { queues, wire: wire.clone() }
    }

    fn give(&self, number: usize, accepted: Accepted) {
        if self.queues.is_empty() {
            spawn(&self.wire, accepted);
            return;
        }
        // A thread that has ended drops the connection, which is all that can be done with it.
        let _ = self.queues[number % self.queues.len()].send(accepted);
    }
}

async fn serve_all<S: Service>(wire: Arc<Wire<S>>, mut connections: mpsc::UnboundedReceiver<Accepted>) {
    // While no timer runs, every new one interrupts the runtime, which costs a system call for each request. One that
    // always runs, and ends before any of theirs, keeps it from doing so.
    tokio::spawn(async {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
        }
    });
    while let Some(accepted) = connections.recv().await {
        spawn(&wire, accepted);
    }
}

fn spawn<S: Service>(wire: &Arc<Wire<S>>, accepted: Accepted) {
    let member = accepted.member.clone();
    member.served_by(tokio::spawn(serve(wire.clone(), accepted)).abort_handle());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_connections_as_were_asked_for_or_as_fit() {
        assert_eq!(connections(10_000, None).unwrap(), 10_000);
        assert_eq!(connections(10_000, Some(1_048_576)).unwrap(), 10_000);
        assert_eq!(connections(10_000, Some(768)).unwrap(), 768 - RESERVE);
        assert_eq!(connections(4, Some(40)).unwrap(), 4);
        assert!(matches!(connections(10_000, Some(40)), Err(ListenError::FewFiles { fit: 8 })));
    }

    #[tokio::test]
    async fn an_address_may_be_a_name() {
        for listen in ["127.0.0.1:8100", "[::1]:0", "localhost:8100", "a-b.example:1"] {
            assert!(is_address(listen), "{listen}");
        }
        for listen in
            ["here", "localhost", ":8100", "localhost:", "localhost:99999", "redis://:secret@host", "http://localhost:8100", "a b:1"]
        {
            assert!(!is_address(listen), "{listen}");
        }
        assert_eq!(resolve("localhost:8100").await.unwrap(), SocketAddr::from(([127, 0, 0, 1], 8100)));
        assert_eq!(resolve("[::1]:8100").await.unwrap().to_string(), "[::1]:8100");
        assert!(matches!(resolve("no-such-name.invalid:1").await, Err(ListenError::NoAddress { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn the_reserve_is_taken_last_and_given_back_first() {
        let seats = Seats::new(1);
        let common = seats.take().await;
        let mut reserve = seats.take().await;
        assert!(matches!((&common, &reserve), (Seat::Common(_), Seat::Reserve(_))));
        assert!(seats.promoted().await.is_none());
        drop(common);
        reserve = seats.promoted().await.unwrap();
        assert!(matches!(reserve, Seat::Common(_)));
        assert_eq!(seats.reserve.available_permits(), RESERVE);
    }
}
