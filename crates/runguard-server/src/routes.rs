//! The table of routes, and nothing else.

pub(crate) mod alerts;
pub(crate) mod circuits;
pub(crate) mod dashboard;
pub(crate) mod decisions;
pub(crate) mod docs;
pub(crate) mod events;
pub(crate) mod guards;
pub(crate) mod health;
pub(crate) mod insights;
pub(crate) mod overview;
pub(crate) mod preview;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod stats;

use crate::problem::Problem;
use crate::respond::Reply;
use crate::service::App;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, post};
use std::sync::Arc;

type State = axum::extract::State<Arc<App>>;

/// Path, what answers it, the methods it has. The guard routes are in [`guards`].
fn table() -> Vec<(&'static str, MethodRouter<Arc<App>>, &'static str)> {
    vec![
        ("/v1/decisions", get(decisions::list), "GET"),
        ("/v1/decisions/{decision_id}", get(decisions::one), "GET"),
        ("/v1/sessions/{session_id}", delete(sessions::erase).get(sessions::show), "GET, DELETE"),
        ("/v1/stats", get(stats::show), "GET"),
        ("/v1/insights", get(insights::show), "GET"),
        ("/v1/overview", get(overview::show), "GET"),
        ("/v1/circuits", get(circuits::list), "GET"),
        ("/v1/circuits/{endpoint_key}/open", post(circuits::open), "POST"),
        ("/v1/circuits/{endpoint_key}/close", post(circuits::close), "POST"),
        ("/v1/circuits/{endpoint_key}/reset", post(circuits::reset), "POST"),
        ("/v1/alerts", get(alerts::show), "GET"),
        ("/v1/alerts/test", post(alerts::test), "POST"),
        ("/v1/alerts/dead/{id}/retry", post(alerts::retry), "POST"),
        ("/v1/settings", get(settings::show), "GET"),
        ("/v1/preview", post(preview::run), "POST"),
        ("/v1/events", get(events::stream), "GET"),
        ("/healthz", get(health::alive), "GET"),
        ("/readyz", get(health::ready), "GET"),
        ("/metrics", get(health::metrics), "GET"),
        ("/openapi.json", get(docs::openapi), "GET"),
        ("/docs", get(docs::page), "GET"),
        ("/", get(dashboard::page), "GET"),
        ("/dashboard/{file}", get(dashboard::file), "GET"),
    ]
}

pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (path, methods, allow) in table() {
        let refused = move || async move { into_axum(Problem::method(allow).into_reply()) };
        router = router.route(path, methods.fallback(refused));
    }
    router.fallback(any(not_found)).with_state(app)
}

async fn not_found(request: Request) -> Response {
    into_axum(Problem::not_found(request.uri().path()).into_reply())
}

/// A bounded name of the route, for metrics.
pub(crate) fn name_of(path: &str) -> &'static str {
    let same = |pattern: &str| {
        let (mut pattern, mut path) = (pattern.split('/'), path.split('/'));
        loop {
            match (pattern.next(), path.next()) {
                (None, None) => return true,
                (Some(part), Some(given)) if part == given || (part.starts_with('{') && !given.is_empty()) => {}
                _ => return false,
            }
        }
    };
    PATHS.iter().copied().find(|pattern| same(pattern)).unwrap_or("other")
}

const PATHS: &[&str] = &[
    "/v1/decisions",
    "/v1/decisions/{decision_id}",
    "/v1/sessions/{session_id}",
    "/v1/stats",
    "/v1/insights",
    "/v1/overview",
    "/v1/circuits",
    "/v1/circuits/{endpoint_key}/open",
    "/v1/circuits/{endpoint_key}/close",
    "/v1/circuits/{endpoint_key}/reset",
    "/v1/alerts",
    "/v1/alerts/test",
    "/v1/alerts/dead/{id}/retry",
    "/v1/settings",
    "/v1/preview",
    "/v1/events",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/",
    "/dashboard/{file}",
];

pub(crate) fn into_axum(reply: Reply) -> Response {
    let (parts, body) = reply.into_parts();
    Response::from_parts(
        parts,
        match body {
            http_body_util::Either::Left(full) => axum::body::Body::new(full),
            http_body_util::Either::Right(body) => body,
        },
    )
}

/// What a handler gives: an answer or a problem.
pub(crate) fn answer(result: Result<Reply, Problem>) -> Response {
    into_axum(result.unwrap_or_else(Problem::into_reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_know_every_route() {
        let listed: Vec<&str> = table().into_iter().map(|(path, ..)| path).collect();
        assert_eq!(listed, PATHS);
        assert_eq!(name_of("/v1/sessions/abc"), "/v1/sessions/{session_id}");
        assert_eq!(name_of("/v1/sessions/"), "other");
        assert_eq!(name_of("/"), "/");
    }
}
