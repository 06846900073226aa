//! What happens to every request: a name, a way in, a count.

use crate::auth::Openness;
use crate::metrics::Metrics;
use crate::respond::Reply;
use crate::routes;
use axum::Router;
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request};
use runguard_engine::Engine;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt;

const REQUEST_ID: &str = "x-request-id";

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: SharedEngine,
    pub(crate) metrics: Metrics,
    pub(crate) openness: Openness,
    /// Turns true when the service stops: streams end then.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Who may make a preview: one at a time.
    pub(crate) previews: Semaphore,
    request_prefix: u32,
    requests: AtomicU64,
}

pub(crate) type SharedEngine = Arc<Engine>;

impl App {
    pub(crate) fn new(engine: SharedEngine, openness: Openness, stopping: watch::Receiver<bool>) -> Self {
        // Tells the request ids of one start from those of another.
        let request_prefix = runguard_engine::clock::system_now().as_millis() as u32;
        Self {
            engine,
            metrics: Metrics::new(),
            openness,
            stopping,
            previews: Semaphore::new(1),
            request_prefix,
            requests: AtomicU64::new(0),
        }
    }

    fn request_id(&self, given: Option<&HeaderValue>) -> HeaderValue {
        let usable = |value: &&HeaderValue| value.len() <= 128 && value.as_bytes().iter().all(u8::is_ascii_graphic);
        if let Some(given) = given.filter(usable) {
            return given.clone();
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        HeaderValue::try_from(format!("{:08x}-{number:x}", self.request_prefix)).unwrap_or(HeaderValue::from_static("unknown"))
    }
}

#[derive(Debug)]
pub(crate) struct Service {
    app: Arc<App>,
    router: Router,
}

impl Service {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { router: routes::router(app.clone()), app }
    }

    pub(crate) async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Result<Reply, Infallible> {
        let request_id = self.app.request_id(request.headers().get(REQUEST_ID));
        let (route, mut response) = if let Some(route) = routes::guards::find(request.uri().path()) {
            let response = routes::guards::handle(&self.app, route, request, &request_id).await;
            self.app.metrics.guard_request(route, response.status().as_u16());
            (route.path, response)
        } else {
            let (route, response) = self.route(request).await;
            self.app.metrics.request(route, response.status().as_u16());
            (route, response)
        };
        if response.status().is_server_error() {
            tracing::error!(route, status = response.status().as_u16(), request_id = request_id.to_str().unwrap_or(""), "request failed");
        }
        response.headers_mut().insert(REQUEST_ID, request_id);
        Ok(response)
    }

    async fn route(&self, request: Request<Incoming>) -> (&'static str, Reply) {
        let route = routes::name_of(request.uri().path());
        let head = request.method() == Method::HEAD;
        tracing::debug!(method = %request.method(), route, "request");
        let Ok(response) = self.router.clone().oneshot(request.map(axum::body::Body::new)).await;
        let (parts, body) = response.into_parts();
        let body = if head { axum::body::Body::empty() } else { body };
        (route, Reply::from_parts(parts, Either::Right(body)))
    }
}
