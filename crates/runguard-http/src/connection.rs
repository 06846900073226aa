//! One connection: which protocol it speaks, and what bounds it has.

use crate::body;
use crate::crowd::{Asking, Crowd, Member};
use crate::listen::{Seat, Seats, Service};
use crate::pacing::Progress;
use crate::problem::{Problem, Unread};
use crate::reply::Reply;
use crate::request_id::{REQUEST_ID, RequestIds};
use crate::socket::{Socket, WRITE_TIMEOUT};
use crate::tls::Certificates;
use bytes::Bytes;
use http_body_util::Either;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// A request's head must arrive within this time; an idle connection is closed after it. Longer than proxies keep theirs (60 s in
/// nginx and load balancers): who closes first loses no request. When places run short idle ones go earlier.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// How often a silent client of HTTP/2 is asked whether it is there, and how long it has to say so.
const PING: Duration = Duration::from_secs(30);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/2 is kept open while nothing happens for the sake of its cost: a new one takes several round trips.
const HTTP2_IDLE: Duration = Duration::from_secs(60);
const MAX_HEADERS: usize = 64;
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Requests of one HTTP/2 connection at a time.
const MAX_STREAMS: u32 = 128;
/// What a client of HTTP/2 says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What a client of TLS says first: a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// What all connections of a listener share.
pub(crate) struct Wire<S> {
    pub(crate) service: Arc<S>,
    pub(crate) ids: RequestIds,
    pub(crate) seats: Arc<Seats>,
    pub(crate) crowd: Crowd,
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// Turns true when the listener stops.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl<S> Wire<S> {
    /// What is watched changes once. That is asked for and not the value, which is behind a lock that all threads share.
    fn is_stopping(&self) -> bool {
        self.stopping.has_changed().unwrap_or(true)
    }
}

/// A connection on its way to where it is served.
pub(crate) struct Accepted {
    pub(crate) stream: std::net::TcpStream,
    pub(crate) watcher: Watcher,
    pub(crate) seat: Seat,
    pub(crate) member: Arc<Member>,
}

/// Serves a connection to its end.
pub(crate) async fn serve<S: Service>(wire: Arc<Wire<S>>, accepted: Accepted) {
    let Accepted { stream, watcher, seat, member } = accepted;
    let _place = CrowdSeat { wire: wire.clone(), member: member.clone() };
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // Answers are small and complete: waiting to fill a packet only delays them.
    let _ = stream.set_nodelay(true);
    let mut stopping = wire.stopping.clone();
    let connection = Arc::new(Connection { wire, seat: Mutex::new(seat), member });
    let opened = tokio::select! {
        opened = open(&connection.wire, stream) => opened,
        _ = stopping.wait_for(|stopping| *stopping) => None,
    };
    match opened {
        Some(Opened::Plain(Protocol::Http1, stream)) => connection.http1(stream, watcher).await,
        Some(Opened::Plain(Protocol::Http2, stream)) => connection.http2(stream, watcher).await,
        Some(Opened::Tls(Protocol::Http1, stream)) => connection.http1(*stream, watcher).await,
        Some(Opened::Tls(Protocol::Http2, stream)) => connection.http2(*stream, watcher).await,
        None => {}
    }
}

/// A connection is one of the crowd until its task ends, however it ends.
struct CrowdSeat<S> {
    wire: Arc<Wire<S>>,
    member: Arc<Member>,
}

impl<S> Drop for CrowdSeat<S> {
    fn drop(&mut self) {
        self.wire.crowd.leave(&self.member);
    }
}

enum Protocol {
    Http1,
    Http2,
}

enum Opened {
    Plain(Protocol, TcpStream),
    Tls(Protocol, Box<tokio_rustls::server::TlsStream<TcpStream>>),
}

/// Finds out what the client speaks. `None`: nothing that we do.
async fn open<S>(wire: &Wire<S>, mut stream: TcpStream) -> Option<Opened> {
    let Some(certificates) = &wire.certificates else {
        let protocol = tokio::time::timeout(HEADER_TIMEOUT, protocol_of(&stream)).await.ok()??;
        return Some(Opened::Plain(protocol, stream));
    };
    let handshake = async {
        let mut first = [0];
        if stream.peek(&mut first).await.ok()? == 1 && first[0] != TLS_HANDSHAKE {
            stream.write_all(&Problem::not_tls().to_wire()).await.ok()?;
            stream.shutdown().await.ok()?;
            return None;
        }
        match TlsAcceptor::from(certificates.config()).accept(stream).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::debug!(%error, "a handshake failed");
                None
            }
        }
    };
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.ok()??;
    let protocol = if stream.get_ref().1.alpn_protocol() == Some(b"h2") { Protocol::Http2 } else { Protocol::Http1 };
    Some(Opened::Tls(protocol, Box::new(stream)))
}

/// A client of HTTP/2 that knows we speak it begins with its preface.
async fn protocol_of(stream: &TcpStream) -> Option<Protocol> {
    // The rest of a preface that came in pieces: there is no way to wait for more than is there.
    let mut look_again = Duration::from_millis(10);
    let mut first = [0; PREFACE.len()];
    loop {
        let length = stream.peek(&mut first).await.ok()?;
        if length == 0 {
            return None;
        }
        if !PREFACE.starts_with(&first[..length]) {
            return Some(Protocol::Http1);
        }
        if length == PREFACE.len() {
            return Some(Protocol::Http2);
        }
        tokio::time::sleep(look_again).await;
        // Whoever sends a few bytes and no more does not keep us looking.
        look_again = (look_again * 2).min(HEADER_TIMEOUT);
    }
}

struct Connection<S> {
    wire: Arc<Wire<S>>,
    seat: Mutex<Seat>,
    member: Arc<Member>,
}

impl<S: Service> Connection<S> {
    async fn http1(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, watcher: Watcher) {
        let mut http = hyper::server::conn::http1::Builder::new();
        // Not `pipeline_flush`: it keeps back what hyper says of a request it cannot read.
        http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_BYTES);
        let answer = hyper::service::service_fn(move |request| {
            let connection = self.clone();
            async move { Ok::<_, Infallible>(connection.answer(request).await) }
        });
        if let Err(error) = watcher.watch(http.serve_connection(TokioIo::new(Socket::new(stream)), answer)).await {
            tracing::debug!(%error, "connection ended");
        }
    }

    async fn http2(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, watcher: Watcher) {
        let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD_BYTES as u32)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING);
        let progress = Progress::new();
        let watched = progress.clone();
        let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (connection, progress) = (self.clone(), progress.clone());
            async move {
                let _computing = progress.computing();
                let reply = connection.answer(request).await;
                Ok::<_, Infallible>(reply.map(|body| progress.paced(body)))
            }
        });
        let served = watcher.watch(http.serve_connection(TokioIo::new(Socket::new(stream)), answer));
        tokio::select! {
            served = served => if let Err(error) = served {
                tracing::debug!(%error, "connection ended");
            },
            why = watched.ended(WRITE_TIMEOUT, HTTP2_IDLE) => tracing::debug!(why, "connection closed"),
        }
    }

    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Reply {
        let id = self.wire.ids.of(request.headers());
        let asking = self.member.asks(self.wire.service.is_health(request.uri().path()));
        name_host(&mut request);
        let is_http1 = request.version() < Version::HTTP_2;
        let has_body = !request.body().is_end_stream();
        let mut reply = if request.version() == Version::HTTP_11 && request.headers().get_all(HOST).iter().count() != 1 {
            Problem::no_host().into_reply()
        } else if let Some(problem) =
            has_body.then(|| refused_body(request.headers())).flatten().filter(|_| !self.wire.service.judges_body(&request))
        {
            problem.into_reply()
        } else if self.may_ask(request.uri().path()).await {
            self.wire.service.answer(request, &id).await
        } else {
            Problem::no_connection_left().into_reply()
        };
        // A provider's own name for its answer is what its support asks for.
        reply.headers_mut().entry(REQUEST_ID.clone()).or_insert(id.0);
        let is_unread = has_body && reply.extensions().get::<Unread>().is_some();
        // Before the service stops every connection has the chance to hear of it, so that no request is on its way when it closes.
        if is_http1 && (is_unread || self.wire.is_stopping()) {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        reply.map(|body| match body {
            Either::Left(full) => Either::Left(full),
            // Whoever follows a stream is not idle while nothing comes.
            Either::Right(stream) => Either::Right(axum::body::Body::new(Attended { stream, _asking: asking })),
        })
    }

    /// A connection of the reserve answers health checks, until it gets a seat of the others'.
    async fn may_ask(&self, path: &str) -> bool {
        if matches!(*self.seat(), Seat::Common(_)) || self.wire.service.is_health(path) {
            return true;
        }
        let promoted = self.wire.seats.promoted().await;
        promoted.is_some_and(|seat| {
            *self.seat() = seat;
            true
        })
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Attended {
    stream: axum::body::Body,
    _asking: Asking,
}

impl hyper::body::Body for Attended {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.stream).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.stream.size_hint()
    }
}

/// What can be said of a body before any of it comes.
fn refused_body(headers: &HeaderMap) -> Option<Problem> {
    let says = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if says(CONTENT_ENCODING).is_some_and(|encoding| !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity")) {
        return Some(Problem::encoded());
    }
    // Whoever asks first is spared the sending.
    let length = says(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok()).filter(|_| headers.contains_key(EXPECT))?;
    (length > body::LARGE as u64).then(|| Problem::too_large(body::LARGE, "Send hashes instead of long texts."))
}

/// HTTP/2 names the host beside the headers, and a whole address in a request line outranks them; here it is one of them, as
/// everything that looks at it expects.
fn name_host(request: &mut Request<Incoming>) {
    if let Some(authority) = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()) {
        request.headers_mut().insert(HOST, authority);
    }
}
