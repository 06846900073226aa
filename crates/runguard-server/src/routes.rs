//! The table of routes that are no guard's, and what is answered where none of them is meant.

pub(crate) mod alerts;
pub(crate) mod circuits;
pub(crate) mod consumption;
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
use crate::service::App;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, post};
use runguard_http::reply::{Reply, into_axum};
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
        ("/v1/consumption", get(consumption::show), "GET"),
        ("/v1/circuits", get(circuits::list), "GET"),
        ("/v1/circuits/{endpoint_key}/open", post(circuits::open), "POST"),
        ("/v1/circuits/{endpoint_key}/close", post(circuits::close), "POST"),
        ("/v1/circuits/{endpoint_key}/reset", post(circuits::reset), "POST"),
        ("/v1/alerts", get(alerts::show), "GET"),
        ("/v1/alerts/test", post(alerts::test), "POST"),
        ("/v1/alerts/dead/{id}/retry", post(alerts::retry), "POST"),
        ("/v1/guards", get(docs::guards), "GET"),
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

/// Who is let in before the route is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Whoever watches over the service.
    Health,
    /// What is the same for everyone and tells nothing.
    Everyone,
    /// Whoever has a key, or is of this machine while there is none.
    Callers,
}

pub(crate) fn access(path: &str) -> Access {
    find(path).map_or(Access::Everyone, |(_, access)| *access)
}

/// Asked of every request: no path of the health checks has a part to be filled in, so they are compared as they stand.
pub(crate) fn is_health(path: &str) -> bool {
    PATHS.iter().any(|(pattern, access)| *access == Access::Health && *pattern == path)
}

/// A bounded name of the route, for metrics.
pub(crate) fn name_of(path: &str) -> &'static str {
    find(path).map_or("other", |(pattern, _)| pattern)
}

fn find(path: &str) -> Option<&'static (&'static str, Access)> {
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
    PATHS.iter().find(|(pattern, _)| same(pattern))
}

const PATHS: &[(&str, Access)] = &[
    ("/v1/decisions", Access::Callers),
    ("/v1/decisions/{decision_id}", Access::Callers),
    ("/v1/sessions/{session_id}", Access::Callers),
    ("/v1/stats", Access::Callers),
    ("/v1/insights", Access::Callers),
    ("/v1/overview", Access::Callers),
    ("/v1/consumption", Access::Callers),
    ("/v1/circuits", Access::Callers),
    ("/v1/circuits/{endpoint_key}/open", Access::Callers),
    ("/v1/circuits/{endpoint_key}/close", Access::Callers),
    ("/v1/circuits/{endpoint_key}/reset", Access::Callers),
    ("/v1/alerts", Access::Callers),
    ("/v1/alerts/test", Access::Callers),
    ("/v1/alerts/dead/{id}/retry", Access::Callers),
    ("/v1/guards", Access::Everyone),
    ("/v1/settings", Access::Callers),
    ("/v1/preview", Access::Callers),
    ("/v1/events", Access::Callers),
    ("/healthz", Access::Health),
    ("/readyz", Access::Health),
    ("/metrics", Access::Callers),
    ("/openapi.json", Access::Everyone),
    ("/docs", Access::Everyone),
    ("/", Access::Everyone),
    ("/dashboard/{file}", Access::Everyone),
];

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
        assert_eq!(listed, PATHS.iter().map(|(path, _)| *path).collect::<Vec<_>>());
        assert_eq!(name_of("/v1/sessions/abc"), "/v1/sessions/{session_id}");
        assert_eq!(name_of("/v1/sessions/"), "other");
        assert_eq!(name_of("/"), "/");
        assert_eq!((access("/v1/sessions/abc"), access("/nowhere")), (Access::Callers, Access::Everyone));
        assert!(PATHS.iter().all(|(path, access)| is_health(path) == (*access == Access::Health)));
        assert!(PATHS.iter().all(|(path, access)| *access != Access::Health || !path.contains('{')));
    }
}
