//! The HTTP door: runs over `POST /v1/agent/runs`, their events as server-sent events, cancel and resume.
//!
//! A run's id is its session's id: what is under way here and what lies on disk are one list. The run is a task of its own
//! that writes into a bounded ring ([`ring`]), and a response reads from it; so no reader can slow a run, and none is needed
//! for it to end well. A run that nobody reads any more is cancelled, unless it was begun with `detach`: it spends money.

mod body;
mod door;
mod problem;
mod ring;
mod runs;

use crate::agent::{Agent, Input, RunOptions};
use crate::session::disk::{Loaded, SessionError, SessionFolder};
use crate::state::AgentState;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use body::RunBody;
use bytes::Bytes;
use door::Door;
use futures_util::{Stream, StreamExt};
use http::header::{self, HeaderValue};
use http::{HeaderMap, StatusCode, Uri};
use hyper::body::Incoming;
use problem::Problem;
use runguard_core::prices::Prices;
use runguard_http::problem::kinds;
use runguard_http::{ListenError, Listener, Options, Reply, RequestId, Threads, listen, reply, tls};
use runs::{Run, Runs, Unread, Work};
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tower::ServiceExt;

/// Connections at once.
const MAX_CONNECTIONS: u32 = 1024;
/// Sessions in a list, when nothing is said and at most.
const LISTED: usize = 100;
const MOST_LISTED: usize = 1000;

const HEALTH: &str = "/healthz";
const READY: &str = "/readyz";
const FRONT_PAGE: &str = "\
RunGuard agent

POST /v1/agent/runs               {prompt, limits?, interactive?, detach?, session?}: begin a run; answers its events
GET  /v1/agent/runs               runs under way and saved sessions
GET  /v1/agent/runs/{id}          state, counters, last text, report
GET  /v1/agent/runs/{id}/events   its events; Last-Event-ID replays what was missed
POST /v1/agent/runs/{id}/cancel   end it; it is saved and can be resumed
POST /v1/agent/runs/{id}/resume   {prompt?, limits?, interactive?, detach?}: go on; answers its events
GET  /healthz                     is it there
GET  /readyz                      does it take another run
";

/// Why the service cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("`serve.tls_cert` and `serve.tls_key` go together: give both, or neither for plain http")]
    HalfOfTls,
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(
        "refusing to listen on {address} without a key: anyone who reaches it could spend your money and use your tools. Put a long random key into the variable {variable}, or listen on 127.0.0.1"
    )]
    NoKey { address: SocketAddr, variable: String },
}

/// An agent that listens.
#[derive(Debug)]
pub struct AgentServer {
    listener: Listener,
    app: Arc<App>,
}

/// The routes on the shell's listener.
struct Routes {
    router: Router,
}

impl runguard_http::Service for Routes {
    fn is_health(&self, path: &str) -> bool {
        path == HEALTH || path == READY
    }

    async fn answer(&self, request: http::Request<Incoming>, _: &RequestId) -> Reply {
        let Ok(response) = self.router.clone().oneshot(request.map(Body::new)).await;
        reply::from_axum(response)
    }
}

#[derive(Debug)]
struct App {
    agent: Arc<Agent>,
    folder: SessionFolder,
    door: Door,
    runs: Arc<Runs>,
    /// Whether a limit in dollars can be kept.
    has_price: bool,
}

impl AgentServer {
    /// Listens where `serve.listen` says, with the key in the variable `serve.key_env`.
    pub async fn bind(agent: Arc<Agent>, folder: SessionFolder) -> Result<Self, ServeError> {
        let settings = agent.settings();
        let address = listen::resolve(&settings.serve.listen).await?;
        let variable = &settings.serve.key_env;
        let key = std::env::var(variable).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        let door = match key {
            Some(key) => Door::Key(key),
            None if address.ip().is_loopback() => Door::ThisMachine,
            None => return Err(ServeError::NoKey { address, variable: variable.clone() }),
        };
        let (certificate, key) = (settings.serve.tls_cert.clone(), settings.serve.tls_key.clone());
        if certificate.as_os_str().is_empty() != key.as_os_str().is_empty() {
            return Err(ServeError::HalfOfTls);
        }
        let tls = tls::Files::unless_empty(certificate, key);
        // A run goes on when the request that began it is answered: not on a thread that ends with its connections.
        let options =
            Options { address, max_connections: MAX_CONNECTIONS, tls, told: tls::CertificateNews::nobody(), threads: Threads::Shared };
        let listener = Listener::bind(options).await?;
        let mut prices = Prices::bundled();
        for (model, price) in &settings.prices {
            prices.set(model, price.clone());
        }
        let has_price = prices.price(settings.provider.priced_as()).is_some();
        let runs = Arc::new(Runs::new(settings.serve.max_runs));
        Ok(Self { listener, app: Arc::new(App { agent, folder, door, runs, has_price }) })
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Where it can be reached, with the scheme.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Whether callers must send a key.
    pub fn needs_key(&self) -> bool {
        matches!(self.app.door, Door::Key(_))
    }

    /// Serves until `stop` is ready. Then every run is cancelled and saved, its readers get its end, and this returns; after
    /// ten seconds at the latest.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { listener, app } = self;
        let routes = Arc::new(Routes { router: router(&app) });
        listener.run(routes, stop, app.runs.stop()).await;
    }
}

fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/", get(|| async { FRONT_PAGE }).fallback(only("GET")))
        .route(HEALTH, get(|| async { Json(json!({ "status": "ok" })) }).fallback(only("GET")))
        .route(READY, get(ready).fallback(only("GET")))
        .route("/docs/problems/{kind}", get(problem_page).fallback(only("GET")))
        .route("/v1/agent/runs", get(list).post(start).fallback(only("GET, POST")))
        .route("/v1/agent/runs/{id}", get(show).fallback(only("GET")))
        .route("/v1/agent/runs/{id}/events", get(events).fallback(only("GET")))
        .route("/v1/agent/runs/{id}/cancel", post(cancel).fallback(only("POST")))
        .route("/v1/agent/runs/{id}/resume", post(resume).fallback(only("POST")))
        .fallback(|uri: Uri| async move { Problem::no_route(uri.path()) })
        .layer(middleware::from_fn_with_state(app.clone(), guard))
        .with_state(app.clone())
}

/// For whoever shares runs out among several: whether one more would be begun here.
async fn ready(State(app): State<Arc<App>>) -> Result<Json<serde_json::Value>, Problem> {
    app.runs.is_ready().map(|()| Json(json!({ "status": "ready" })))
}

/// What a problem's `type` leads to.
async fn problem_page(Path(kind): Path<String>) -> Response {
    kinds::page(&kind, &[kinds::ALL, problem::ALL], "/")
        .map_or_else(|| Problem::no_route(&format!("{}{kind}", kinds::PAGES)).into_response(), reply::into_axum)
}

/// What a route answers to other methods.
fn only(allow: &'static str) -> impl Fn() -> std::future::Ready<Problem> + Clone + Send + Sync + 'static {
    move || std::future::ready(Problem::method(allow))
}

async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.door.check(request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

type Handled = Result<Response, Problem>;
type Id = Result<Path<String>, PathRejection>;

/// What cannot be read as text is no id.
fn known(id: Id) -> Result<String, Problem> {
    id.map(|Path(id)| id).map_err(|_| Problem::unknown_run())
}

async fn start(State(app): State<Arc<App>>, request: Request) -> Handled {
    let asked = body::run(&body::read(request.into_body()).await?)?;
    if let Some(id) = asked.session.clone() {
        return app.go_on(&id, asked).await;
    }
    let file = &app.agent.settings().limits;
    let limits = asked.limits.settle(file, file)?;
    app.check_price(limits.cost_limit)?;
    let place = app.runs.place()?;
    let mut settings = app.agent.settings().clone();
    settings.limits = limits.clone();
    let session = app.on_disk(move |folder| folder.create(&settings)).await?;
    let ticket = app.runs.reserve(session.id(), Some(place), asked.unread())?;
    let work = Work { session, options: asked.options(), input: asked.into_input(), limits, before: Vec::new() };
    Ok(begun(ticket.start(app.agent.clone(), work)))
}

async fn resume(State(app): State<Arc<App>>, id: Id, request: Request) -> Handled {
    let asked = body::resume(&body::read(request.into_body()).await?)?;
    app.go_on(&known(id)?, asked).await
}

/// The events of a run that has just begun, or where to find them.
fn begun((run, reader): (Arc<Run>, Option<impl Stream<Item = Bytes> + Send + 'static>)) -> Response {
    let id = &run.id;
    let mut response = if let Some(reader) = reader {
        event_stream(reader)
    } else {
        let path = format!("/v1/agent/runs/{id}");
        let found = json!({ "id": id, "run": path, "events": format!("{path}/events"), "cancel": format!("{path}/cancel") });
        (StatusCode::ACCEPTED, Json(found)).into_response()
    };
    if let Ok(location) = HeaderValue::try_from(format!("/v1/agent/runs/{id}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn event_stream(reader: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    reply::into_axum(reply::event_stream(Body::from_stream(reader.map(Ok::<Bytes, Infallible>))))
}

async fn events(State(app): State<Arc<App>>, id: Id, headers: HeaderMap) -> Handled {
    let id = known(id)?;
    let seen = match headers.get("last-event-id").map(|seen| seen.to_str().unwrap_or("?").trim()) {
        None | Some("") => None,
        Some(seen) => Some(seen.parse().map_err(|_| Problem::field("Last-Event-ID", "must be the number of an event"))?),
    };
    let Some(run) = app.runs.get(&id) else {
        app.read(&id).await?;
        return Err(Problem::events_gone(&id));
    };
    // 204 tells an event source to stop asking.
    Ok(run.read(seen).map_or_else(|| StatusCode::NO_CONTENT.into_response(), event_stream))
}

async fn cancel(State(app): State<Arc<App>>, id: Id) -> Handled {
    let id = known(id)?;
    if let Some(run) = app.runs.live(&id) {
        run.cancel();
        return Ok((StatusCode::ACCEPTED, Json(json!({ "id": id, "state": run.state(), "live": true }))).into_response());
    }
    let loaded = app.read(&id).await?;
    Ok(Json(json!({ "id": id, "state": loaded.session.state(), "live": false })).into_response())
}

async fn show(State(app): State<Arc<App>>, id: Id) -> Handled {
    let id = known(id)?;
    // Looked up before the file is read: what is not live here has written its last record.
    let live = app.runs.live(&id);
    let loaded = app.read(&id).await?;
    let run = app.runs.get(&id);
    let session = &loaded.session;
    let counters = session.counters();
    let shown = json!({
        "id": id,
        "live": live.is_some(),
        "state": live.map_or(session.state(), |run| run.state()),
        "stop": session.stop(),
        "model": loaded.settings.provider.model,
        "opened_at_ms": loaded.opened_at_ms,
        "steps": counters.steps,
        "input_tokens": counters.input_tokens,
        "output_tokens": counters.output_tokens,
        "cost_usd": counters.cost.as_dollars(),
        "limits": loaded.settings.limits,
        "messages": session.messages().len(),
        "text": session.last_text(),
        "metadata": session.metadata(),
        "report": run.as_ref().and_then(|run| run.report()),
        "latest_event": run.as_ref().map(|run| run.latest_event()),
        "damage": loaded.damage,
    });
    Ok(Json(shown).into_response())
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    limit: Option<usize>,
}

async fn list(State(app): State<Arc<App>>, uri: Uri) -> Handled {
    let query: Query<ListQuery> = Query::try_from_uri(&uri).map_err(|_| Problem::field("limit", "must be a whole number"))?;
    let limit = query.limit.unwrap_or(LISTED).min(MOST_LISTED);
    let all = app.on_disk(SessionFolder::list).await?;
    let all = all.into_iter().map(|summary| (app.runs.live(&summary.id), summary));
    let (live, saved): (Vec<_>, Vec<_>) = all.partition(|(live, _)| live.is_some());
    let shown = live.into_iter().chain(saved).take(limit).map(|(live, summary)| {
        json!({
            "id": summary.id,
            "live": live.is_some(),
            "state": live.map_or(summary.state, |run| run.state()),
            "name": summary.name,
            "model": summary.model,
            "steps": summary.steps,
            "total_tokens": summary.total_tokens,
            "cost_usd": summary.cost.as_dollars(),
            "opened_at_ms": summary.opened_at_ms,
            "first_prompt": summary.first_prompt,
            "problem": summary.problem,
        })
    });
    Ok(Json(json!({ "runs": shown.collect::<Vec<Value>>() })).into_response())
}

impl App {
    /// Files are read and written on threads where waiting holds nobody up.
    async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&SessionFolder) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, Problem> {
        let app = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&app.folder)).await;
        Ok(done.map_err(|_| Problem::blocked())??)
    }

    async fn read(self: &Arc<Self>, id: &str) -> Result<Loaded, Problem> {
        let wanted = id.to_owned();
        exactly(id, self.on_disk(move |folder| folder.read(&wanted)).await?)
    }

    async fn go_on(self: &Arc<Self>, id: &str, asked: RunBody) -> Handled {
        // Held while the file is read, so that two who resume at once do not both find it free.
        let ticket = self.runs.reserve(id, None, asked.unread())?;
        let wanted = id.to_owned();
        let loaded = exactly(id, self.on_disk(move |folder| folder.resume(&wanted)).await?)?;
        let session = loaded.session;
        let has_finished = matches!(session.state(), AgentState::Completed | AgentState::WaitingForInput);
        if asked.prompt.is_none() && has_finished {
            return Err(Problem::nothing_to_continue(session.state()));
        }
        let limits = asked.limits.settle(&loaded.settings.limits, &self.agent.settings().limits)?;
        self.check_price(limits.cost_limit)?;
        let before = loaded.recovered.notices();
        let work = Work { session, options: asked.options(), input: asked.into_input(), limits, before };
        Ok(begun(ticket.start(self.agent.clone(), work)))
    }

    fn check_price(&self, cost_limit: f64) -> Result<(), Problem> {
        if cost_limit == 0.0 || self.has_price {
            return Ok(());
        }
        let model = self.agent.settings().provider.priced_as();
        let problem = format!("cannot be kept: the price of {model} is not known. Add [prices.\"{model}\"] to the settings file");
        Err(Problem::field("limits.cost_limit", problem))
    }
}

/// The folder also finds a session by the beginning of its id; a program says which one it means.
fn exactly(id: &str, loaded: Loaded) -> Result<Loaded, Problem> {
    if loaded.session.id() == id { Ok(loaded) } else { Err(Problem::unknown_run()) }
}

impl RunBody {
    fn unread(&self) -> Unread {
        if self.detach { Unread::GoOn } else { Unread::Cancel }
    }

    fn options(&self) -> RunOptions {
        RunOptions { interactive: self.interactive, ..RunOptions::default() }
    }

    fn into_input(self) -> Input {
        self.prompt.map_or(Input::Continue, Input::Prompt)
    }
}
