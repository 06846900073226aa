//! The guard routes: read, decide, answer. This is the path that must be short.

use crate::auth::{self};
use crate::problem::Problem;
use crate::service::App;
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use runguard_core::nearest::closest;
use runguard_core::shown::dotted;
use runguard_engine::clock::NOW_HEADER;
use runguard_engine::telemetry::TraceContext;
use runguard_engine::{Answered, AuthorisedRequest, Caller, Idempotency, Outcome, Role};
use runguard_guards::answer::Shape;
use runguard_guards::guard::{Notice, Operation, ROUTES, Route, RouteKind};
use runguard_guards::input::{Input, InputError, MAX_ID_CHARS};
use runguard_http::RequestId;
use runguard_http::body::{LARGE, Limit};
use runguard_http::load::Share;
use runguard_http::reply::{Body, JSON, Reply, reply};
use std::sync::Arc;
use std::time::Instant;

/// What every guard takes, unknown fields included: a caller may send more than the guard asks for.
pub(crate) const BODY: Limit = Limit { bytes: LARGE, advice: "Send a hash or a summary instead of the whole text." };
/// A body that takes so long to be understood that others would notice is understood on another thread.
const LONG: usize = 32 * 1024;

/// Parameters that are named because they mean nothing here.
const MAX_WARNINGS: usize = 5;

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
static NOW: HeaderName = HeaderName::from_static(NOW_HEADER);
static STATUS: HeaderName = HeaderName::from_static("x-runguard-status");
static SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
static REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

pub(crate) fn find(path: &str) -> Option<&'static Route> {
    ROUTES.iter().copied().find(|route| route.path == path)
}

pub(crate) async fn handle(app: &App, route: &'static Route, request: Request<Incoming>, request_id: &RequestId) -> Reply {
    let started = Instant::now();
    match decide(app, route, request).await {
        Ok(Decided { answered, refusal, told }) => {
            let (tenant, endpoint) = told.unwrap_or_default();
            let spares = || app.engine.settings.load().savings.operations_of(route.guard);
            app.metrics.answered(route.guard, &answered, started.elapsed().as_secs_f64(), &spares);
            match answered.notice {
                Some(Notice::CircuitTripped) => {
                    tracing::warn!(guard = %route.guard, tenant, endpoint, request_id = request_id.as_str(), "a circuit opened");
                }
                Some(Notice::CircuitClosed) => {
                    tracing::info!(guard = %route.guard, tenant, endpoint, request_id = request_id.as_str(), "a circuit closed");
                }
                Some(Notice::UnmatchedResult) | None => {}
            }
            tracing::debug!(guard = %route.guard, outcome = answered.outcome.code(), request_id = request_id.as_str(), "decided");
            to_reply(route, answered, refusal)
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

/// What was decided, and how it is answered.
struct Decided {
    answered: Answered,
    refusal: Refusal,
    /// Whose and of what, where an operator is told at once.
    told: Option<(String, String)>,
}

async fn decide(app: &App, route: &'static Route, request: Request<Incoming>) -> Result<Decided, Problem> {
    if request.method() != Method::POST {
        return Err(Problem::method("POST"));
    }
    let caller = auth::caller(&app.engine, app.openness, request.headers())?;
    auth::require(&caller, Role::Guard)?;
    let now = app.engine.clock.read(request.headers().get(&NOW).map(HeaderValue::as_bytes))?;
    let (parts, body) = request.into_parts();
    let Options { mut refusal, shape, warnings: misread } = Options::read(parts.uri.query());
    if caller.always_200 || parts.headers.get(&STATUS).is_some_and(|value| value == "200") {
        refusal = Refusal::Status200;
    }
    let mut share = app.enter(&caller)?;
    let body = app.read_body(body, BODY, &mut share).await?;
    let given = parts.headers.get(&IDEMPOTENCY_KEY).map(header_key).transpose()?;
    let (mut question, _share) = if body.len() <= LONG {
        (Question::read(route, &body, &caller)?, share)
    } else {
        long_question(app, route, body.clone(), share, caller.clone()).await?
    };
    question.warnings.extend(misread);
    let key = given.or(question.request_id);
    let idempotency = key.as_deref().map(|key| Idempotency { key, fingerprint: fingerprint(route, &body) });
    let trace = app.engine.telemetry.as_deref().and_then(|telemetry| Some((telemetry, trace_of(&parts.headers)?)));
    // All of it lies in the memory that hyper read it into, which is used for what comes next once nobody refers to it.
    drop((parts, body));
    let asked = AuthorisedRequest {
        tenant: &caller.tenant,
        operation: &*question.operation,
        warnings: &question.warnings,
        now,
        shape,
        idempotency,
    };
    let answered = app.engine.ask(asked).await?;
    if let Some((telemetry, context)) = trace {
        telemetry.note(&answered, context);
    }
    let told = answered.notice.map(|_| (caller.tenant.to_string(), dotted(question.operation.subject())));
    Ok(Decided { answered, refusal, told })
}

/// A body that was understood.
struct Question {
    operation: Box<dyn Operation>,
    warnings: Vec<String>,
    request_id: Option<String>,
}

impl Question {
    fn read(route: &Route, body: &[u8], caller: &Caller) -> Result<Self, InputError> {
        let mut input = Input::read(body, route.fields)?;
        input.asked_with = Some(caller.key_id.as_str()).filter(|key| !key.is_empty());
        let (operation, request_id) = ((route.read)(&input), input.optional_text("request_id"));
        Ok(Self { operation, request_id, warnings: input.warnings })
    }
}

/// One at a time, and not on a thread that serves: a megabyte of arguments takes many milliseconds.
async fn long_question(
    app: &App,
    route: &'static Route,
    body: Bytes,
    share: Share,
    caller: Arc<Caller>,
) -> Result<(Question, Share), Problem> {
    let turn = app.long_bodies.clone().acquire_owned().await;
    // Turn and share are held by the thread: a caller who hangs up does not end what was begun, nor may it begin more meanwhile.
    let read = move || {
        let _turn = turn;
        Question::read(route, &body, &caller).map(|question| (question, share))
    };
    let read = tokio::task::spawn_blocking(read).await;
    Ok(read.map_err(|_| Problem::not_ready("The request could not be read. Try again shortly."))??)
}

fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    TraceContext::parse(headers.get("traceparent")?.as_bytes())
}

fn header_key(value: &HeaderValue) -> Result<String, Problem> {
    let text = value.to_str().ok().map(str::trim).filter(|text| !text.is_empty() && text.len() <= MAX_ID_CHARS);
    text.map(str::to_owned).ok_or_else(|| Problem::query("Idempotency-Key", format!("must be 1 to {MAX_ID_CHARS} visible characters")))
}

/// A repeat must be the same request: the same route and the same bytes.
fn fingerprint(route: &Route, body: &[u8]) -> u64 {
    runguard_engine::engine::fingerprint(route.path, body)
}

/// What the address says about the form of the answer.
struct Options {
    refusal: Refusal,
    shape: Shape,
    /// What it says besides: a typing error would otherwise go unseen until a tool breaks on a refusal.
    warnings: Vec<String>,
}

impl Options {
    fn read(query: Option<&str>) -> Self {
        let mut options = Self { refusal: Refusal::Status429, shape: Shape::Full, warnings: Vec::new() };
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair {
                "status=200" => options.refusal = Refusal::Status200,
                "flat=1" | "flat=true" => options.shape = Shape::Flat,
                "status=429" | "flat=0" | "flat=false" => {}
                _ if options.warnings.len() < MAX_WARNINGS => options.warnings.push(ignored(pair)),
                _ => {}
            }
        }
        options
    }
}

fn ignored(pair: &str) -> String {
    let decoded = percent_encoding::percent_decode_str(pair).decode_utf8_lossy();
    let shown: String = decoded.chars().take(64).collect();
    let name = shown.split('=').next().unwrap_or_default();
    match closest(name, ["status", "flat"].into_iter()) {
        Some("status") => format!("the parameter '{shown}' was ignored; did you mean 'status=200'?"),
        Some(_) => format!("the parameter '{shown}' was ignored; did you mean 'flat=1'?"),
        None if name == "tenant" => format!("the parameter '{shown}' was ignored: the tenant of a guard's question is that of the key"),
        None => format!("the parameter '{shown}' was ignored; known are status=200 and flat=1"),
    }
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
