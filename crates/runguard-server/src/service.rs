//! What happens to every request: a way in, a bounded body, a count.

use crate::auth::{self, Openness};
use crate::metrics::{Limited, Metrics};
use crate::problem::Problem;
use crate::routes::{self, Access};
use crate::streams::{StreamLimits, Streams};
use axum::Router;
use bytes::Bytes;
use http_body_util::Either;
use hyper::body::{Body as _, Incoming};
use hyper::{Method, Request, StatusCode};
use runguard_engine::{Caller, Engine};
use runguard_gateway::{Gateway, Passing};
use runguard_http::body::{self, Limit, SMALL};
use runguard_http::load::{Bounds, Limits, Loads, Share, Who};
use runguard_http::reply::Reply;
use runguard_http::{RequestId, reply};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt;

/// What a route outside the guards takes: settings of one guard, a name.
const SMALL_BODY: Limit = Limit { bytes: SMALL, advice: "No route but those of the guards needs more." };

/// With the gateway a key has room for so many of its longest questions at a time, and a tenant for so many: agents ask side by side, and carry their
/// whole conversation each time.
const QUESTIONS_OF_A_KEY: u64 = 4;
const QUESTIONS_OF_A_TENANT: u64 = 8;

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: SharedEngine,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) openness: Openness,
    /// It was asked to end, and answers for a little longer.
    pub(crate) leaving: AtomicBool,
    /// Turns true when the service stops: streams end then.
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) streams: Arc<Streams>,
    /// Who may have a long body read: one at a time, so that the others' short ones never wait for it.
    pub(crate) long_bodies: Arc<Semaphore>,
    loads: Loads,
    gateway: Arc<Gateway>,
}

pub(crate) type SharedEngine = Arc<Engine>;

impl App {
    pub(crate) fn new(engine: SharedEngine, openness: Openness, stopping: watch::Receiver<bool>) -> Self {
        let server = &engine.started_with.server;
        let metrics = Arc::new(Metrics::new());
        let gateway = Arc::new(Gateway::new(stopping.clone(), metrics.clone()));
        gateway.look_at_keys(&engine.started_with.gateway);
        let limits = StreamLimits { overall: server.max_streams as usize, per_key: server.max_streams_per_key as usize };
        Self {
            streams: Streams::new(limits),
            gateway,
            engine,
            metrics,
            openness,
            leaving: AtomicBool::new(false),
            stopping,
            long_bodies: Arc::new(Semaphore::new(1)),
            loads: Loads::default(),
        }
    }

    /// One more request of a caller, if it has not too many.
    pub(crate) fn enter(&self, caller: &Caller) -> Result<Share, Problem> {
        let settings = self.engine.settings.load();
        let server = &settings.server;
        let longest_question = if settings.gateway.enabled { u64::from(settings.gateway.max_body_mb) * 1024 * 1024 } else { 0 };
        // None is no bound.
        let room = |bytes: u64, questions: u64| if bytes == 0 { 0 } else { bytes.max(questions * longest_question) };
        let limits = Limits {
            key: Bounds {
                in_flight: server.max_in_flight_per_key.into(),
                bytes: room(server.max_bytes_in_flight_per_key, QUESTIONS_OF_A_KEY),
                per_second: server.requests_per_second_per_key.into(),
            },
            tenant: Bounds {
                in_flight: server.max_in_flight_per_tenant.into(),
                bytes: room(server.max_bytes_in_flight_per_tenant, QUESTIONS_OF_A_TENANT),
                per_second: server.requests_per_second_per_tenant.into(),
            },
        };
        self.loads.enter(Who { key: &caller.key_id, tenant: &caller.tenant }, &limits).map_err(|problem| {
            self.metrics.limited(Limited::Requests);
            problem.into()
        })
    }

    /// A caller's body, if it holds not too much already.
    pub(crate) async fn read_body(&self, body: Incoming, limit: Limit, share: &mut Share) -> Result<Bytes, Problem> {
        body::read(body, limit, share).await.map_err(|problem| {
            if problem.status() == StatusCode::TOO_MANY_REQUESTS {
                self.metrics.limited(Limited::Bytes);
            }
            problem.into()
        })
    }
}

#[derive(Debug)]
pub(crate) struct Service {
    app: Arc<App>,
    router: Router,
}

impl runguard_http::Service for Service {
    fn is_health(&self, path: &str) -> bool {
        routes::is_health(path)
    }

    fn judges_body(&self, request: &Request<Incoming>) -> bool {
        self.provider(request).is_some()
    }

    async fn answer(&self, request: Request<Incoming>, id: &RequestId) -> Reply {
        let (route, response) = if let Some(passing) = self.provider(&request) {
            let route = passing.route();
            let response = self.pass_on(passing, request).await;
            self.app.metrics.request(route, response.status().as_u16());
            (route, response)
        } else if let Some(route) = routes::guards::find(request.uri().path()) {
            let response = routes::guards::handle(&self.app, route, request, id).await;
            self.app.metrics.guard_request(route, response.status().as_u16());
            (route.path, response)
        } else {
            let route = routes::name_of(request.uri().path());
            let astray = self.astray(&request);
            let mut response = self.route(route, request).await.unwrap_or_else(Problem::into_reply);
            if let Some(astray) = astray.filter(|_| response.status() == StatusCode::NOT_FOUND) {
                response = astray;
            }
            self.app.metrics.request(route, response.status().as_u16());
            (route, response)
        };
        if response.status().is_server_error() {
            tracing::error!(route, status = response.status().as_u16(), request_id = id.as_str(), "request failed");
        }
        response
    }
}

impl Service {
    pub(crate) fn app(&self) -> Arc<App> {
        self.app.clone()
    }

    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { router: routes::router(app.clone()), app }
    }

    /// What a request asks of a provider, where it does and the gateway is there.
    fn provider(&self, request: &Request<Incoming>) -> Option<Passing> {
        let uri = request.uri();
        runguard_gateway::find(&self.app.engine.settings.load().gateway, request.method(), uri.path(), uri.query())
    }

    fn astray(&self, request: &Request<Incoming>) -> Option<Reply> {
        runguard_gateway::astray(&self.app.engine.settings.load().gateway, request.method(), request.uri().path())
    }

    async fn pass_on(&self, passing: Passing, request: Request<Incoming>) -> Reply {
        let app = &self.app;
        let entered = auth::caller_of(&app.engine, app.openness, request.headers(), runguard_gateway::own_key(request.headers()))
            .and_then(|caller| app.enter(&caller).map(|share| (caller, share)));
        let (caller, mut share) = match entered {
            Ok(entered) => entered,
            Err(problem) => return passing.problem(problem.plain()),
        };
        let most = app.engine.settings.load().gateway.max_body_mb as usize * 1024 * 1024;
        let limit = Limit { bytes: most, advice: "The setting `gateway.max_body_mb` allows more." };
        let (head, body) = request.into_parts();
        let body = match app.read_body(body, limit, &mut share).await {
            Ok(body) => body,
            Err(problem) => return passing.problem(problem.plain()),
        };
        let request = Request::from_parts(head, body);
        app.gateway.clone().answer(app.engine.clone(), caller, share, passing, request).await
    }

    /// The key comes before the body: whoever has none makes us read nothing.
    async fn route(&self, route: &'static str, request: Request<Incoming>) -> Result<Reply, Problem> {
        tracing::debug!(method = %request.method(), route, "request");
        if percent_encoding::percent_decode_str(request.uri().path()).decode_utf8().is_err() {
            return Err(Problem::query("path", "is not UTF-8"));
        }
        let is_head = request.method() == Method::HEAD;
        let (head, body) = request.into_parts();
        let mut share = match routes::access(head.uri.path()) {
            Access::Health | Access::Everyone => None,
            Access::Callers => Some(self.app.enter(&*auth::caller(&self.app.engine, self.app.openness, &head.headers)?)?),
        };
        let body = match &mut share {
            Some(share) if !body.is_end_stream() => self.app.read_body(body, SMALL_BODY, share).await?,
            Some(_) | None => Bytes::new(),
        };
        let Ok(response) = self.router.clone().oneshot(Request::from_parts(head, axum::body::Body::from(body))).await;
        let response = reply::from_axum(response);
        Ok(if is_head { response.map(|_| Either::Right(axum::body::Body::empty())) } else { response })
    }
}
