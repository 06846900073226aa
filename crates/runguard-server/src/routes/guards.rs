//! The guard routes: read, decide, answer. This is the path that must be short.

use crate::auth::{self};
use crate::problem::Problem;
use crate::respond::{Body, JSON, Reply, reply};
use crate::service::App;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use runguard_core::answer::Shape;
use runguard_core::guard::{Notice, ROUTES, Route, RouteKind};
use runguard_core::input::{Input, MAX_ID_CHARS};
use runguard_engine::clock::NOW_HEADER;
use runguard_engine::telemetry::{Telemetry, TraceContext};
use runguard_engine::{Answered, Asked, Idempotency, Outcome, Role};
use std::time::{Duration, Instant};

pub(crate) const MAX_BODY: usize = 1024 * 1024;
/// A body that is too large is still read up to here, so that the client sees our answer and not a broken connection.
const MAX_DRAIN: usize = 16 * 1024 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

const IDEMPOTENCY_KEY: &str = "idempotency-key";
static SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
static REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

pub(crate) fn find(path: &str) -> Option<&'static Route> {
    ROUTES.iter().copied().find(|route| route.path == path)
}

pub(crate) async fn handle(app: &App, route: &'static Route, request: Request<Incoming>, request_id: &HeaderValue) -> Reply {
    let started = Instant::now();
    match decide(app, route, request).await {
        Ok((answered, softly)) => {
            let spares = || app.engine.settings.load().savings.operations_of(route.guard);
            app.metrics.answered(route.guard, &answered, started.elapsed().as_secs_f64(), spares);
            match answered.notice {
                Some(Notice::CircuitTripped) => {
                    tracing::warn!(guard = %route.guard, request_id = request_id.to_str().unwrap_or(""), "a circuit opened");
                }
                Some(Notice::CircuitClosed) => {
                    tracing::info!(guard = %route.guard, request_id = request_id.to_str().unwrap_or(""), "a circuit closed");
                }
                Some(Notice::UnmatchedResult) | None => {}
            }
            tracing::debug!(guard = %route.guard, outcome = answered.outcome.code(), request_id = request_id.to_str().unwrap_or(""), "decided");
            to_reply(route, answered, softly)
        }
        Err(problem) => problem.into_reply(),
    }
}

/// Whether a block is answered 200, for tools that break on a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Status429,
    Status200,
}

async fn decide(app: &App, route: &'static Route, request: Request<Incoming>) -> Result<(Answered, Refusal), Problem> {
    if request.method() != Method::POST {
        return Err(Problem::method("POST"));
    }
    let caller = auth::caller(&app.engine, app.openness, request.headers())?;
    auth::require(&caller, Role::Guard)?;
    let now = app.engine.clock.read(request.headers().get(NOW_HEADER).map(HeaderValue::as_bytes))?;
    let (parts, body) = request.into_parts();
    let (mut refusal, shape) = options(parts.uri.query());
    if caller.always_200 || parts.headers.get("x-runguard-status").is_some_and(|value| value == "200") {
        refusal = Refusal::Status200;
    }
    let body = read_body(body).await?;
    let input = Input::read(&body, route.fields)?;
    let key = match parts.headers.get(IDEMPOTENCY_KEY) {
        Some(value) => Some(header_key(value)?),
        None => input.optional_text("request_id"),
    };
    let operation = (route.read)(&input);
    let idempotency = key.as_deref().map(|key| Idempotency { key, fingerprint: fingerprint(route, &body) });
    let asked = Asked { tenant: &caller.tenant, operation: &*operation, warnings: &input.warnings, now, shape, idempotency };
    let answered = app.engine.ask(asked).await?;
    if let Some(telemetry) = &app.engine.telemetry {
        note_trace(telemetry, &parts.headers, &answered);
    }
    Ok((answered, refusal))
}

/// The log does not keep whose trace a decision belongs to; whoever exports it is told.
fn note_trace(telemetry: &Telemetry, headers: &HeaderMap, answered: &Answered) {
    let Some(context) = headers.get("traceparent").and_then(|value| TraceContext::parse(value.as_bytes())) else { return };
    let decision_id = answered.body.split_once("\"decision_id\":\"").and_then(|(_, rest)| rest.split_once('"'));
    if let Some((decision_id, _)) = decision_id.filter(|_| !answered.replayed) {
        telemetry.note(decision_id, context);
    }
}

fn header_key(value: &HeaderValue) -> Result<String, Problem> {
    let text = value.to_str().ok().map(str::trim).filter(|text| !text.is_empty() && text.len() <= MAX_ID_CHARS);
    text.map(str::to_owned).ok_or_else(|| Problem::query("Idempotency-Key", format!("must be 1 to {MAX_ID_CHARS} visible characters")))
}

/// A repeat must be the same request: the same route and the same bytes.
fn fingerprint(route: &Route, body: &[u8]) -> u64 {
    runguard_engine::engine::fingerprint(route.path, body)
}

fn options(query: Option<&str>) -> (Refusal, Shape) {
    let (mut refusal, mut shape) = (Refusal::Status429, Shape::Full);
    for pair in query.unwrap_or_default().split('&') {
        match pair {
            "status=200" => refusal = Refusal::Status200,
            "flat=1" | "flat=true" => shape = Shape::Flat,
            _ => {}
        }
    }
    (refusal, shape)
}

async fn read_body(mut body: Incoming) -> Result<Bytes, Problem> {
    use hyper::body::Body as _;
    if body.size_hint().lower() > MAX_DRAIN as u64 {
        return Err(Problem::too_large(MAX_BODY));
    }
    let read = async {
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| Problem::broken_body())?.into_data() else { continue };
            length += data.len();
            if length > MAX_DRAIN {
                return Err(Problem::too_large(MAX_BODY));
            }
            if length > MAX_BODY {
                continue;
            }
            // A small body comes in one piece: no copy.
            if first.is_empty() && rest.is_empty() {
                first = data;
            } else {
                if rest.is_empty() {
                    rest.extend_from_slice(&first);
                }
                rest.extend_from_slice(&data);
            }
        }
        if length > MAX_BODY {
            return Err(Problem::too_large(MAX_BODY));
        }
        Ok(if rest.is_empty() { first } else { rest.freeze() })
    };
    tokio::time::timeout(BODY_TIMEOUT, read).await.unwrap_or_else(|_| Err(Problem::too_slow()))
}

fn to_reply(route: &Route, answered: Answered, refusal: Refusal) -> Reply {
    if route.kind == RouteKind::RecordSilently {
        let mut response: Response<Body> = Response::new(Either::Left(Full::default()));
        *response.status_mut() = StatusCode::NO_CONTENT;
        return response;
    }
    let blocked = answered.outcome == Outcome::Blocked;
    let status = if blocked && refusal == Refusal::Status429 { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let mut response = reply(status, JSON, answered.body);
    let headers = response.headers_mut();
    if blocked {
        headers.insert(SHOULD_RETRY.clone(), HeaderValue::from_static("false"));
        if let Some(seconds) = answered.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
    }
    if answered.replayed {
        headers.insert(REPLAYED.clone(), HeaderValue::from_static("true"));
    }
    response
}
