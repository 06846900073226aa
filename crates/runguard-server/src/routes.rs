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
pub(crate) mod query;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod spend;
pub(crate) mod stats;

use crate::problem::Problem;
use crate::service::App;
use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, post};
use hyper::StatusCode;
use runguard_http::reply::{JSON, Reply, into_axum, reply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

type State = axum::extract::State<Arc<App>>;

/// A route that is no guard's: those are in [`guards`].
struct Route {
    path: &'static str,
    access: Access,
    /// The methods it has.
    allow: &'static str,
    methods: fn() -> MethodRouter<Arc<App>>,
}

const fn route(path: &'static str, access: Access, allow: &'static str, methods: fn() -> MethodRouter<Arc<App>>) -> Route {
    Route { path, access, allow, methods }
}

static TABLE: &[Route] = &[
    route("/v1/decisions", Access::Callers, "GET", || get(decisions::list)),
    route("/v1/decisions/{decision_id}", Access::Callers, "GET", || get(decisions::one)),
    route("/v1/sessions", Access::Callers, "GET", || get(sessions::list)),
    route("/v1/sessions/{session_id}", Access::Callers, "GET, DELETE", || delete(sessions::erase).get(sessions::show)),
    route("/v1/stats", Access::Callers, "GET", || get(stats::show)),
    route("/v1/insights", Access::Callers, "GET", || get(insights::show)),
    route("/v1/insights/{key}/dismiss", Access::Callers, "POST", || post(insights::dismiss)),
    route("/v1/insights/{key}/snooze", Access::Callers, "POST", || post(insights::snooze)),
    route("/v1/insights/{key}/restore", Access::Callers, "POST", || post(insights::restore)),
    route("/v1/overview", Access::Callers, "GET", || get(overview::show)),
    route("/v1/consumption", Access::Callers, "GET", || get(consumption::show)),
    route("/v1/spend", Access::Callers, "GET", || get(spend::show)),
    route("/v1/runs", Access::Callers, "GET", || get(spend::runs)),
    route("/v1/runs/{run}/stop", Access::Callers, "POST", || post(spend::stop)),
    route("/v1/runs/{run}/resume", Access::Callers, "POST", || post(spend::resume)),
    route("/v1/circuits", Access::Callers, "GET", || get(circuits::list)),
    route("/v1/circuits/{endpoint_key}/open", Access::Callers, "POST", || post(circuits::open)),
    route("/v1/circuits/{endpoint_key}/close", Access::Callers, "POST", || post(circuits::close)),
    route("/v1/circuits/{endpoint_key}/reset", Access::Callers, "POST", || post(circuits::reset)),
    route("/v1/alerts", Access::Callers, "GET", || get(alerts::show)),
    route("/v1/alerts/test", Access::Callers, "POST", || post(alerts::test)),
    route("/v1/alerts/dead/{id}/retry", Access::Callers, "POST", || post(alerts::retry)),
    route("/v1/guards", Access::Everyone, "GET", || get(docs::guards)),
    route("/v1/settings", Access::Callers, "GET", || get(settings::show)),
    route("/v1/preview", Access::Callers, "POST", || post(preview::run)),
    route("/v1/events", Access::Callers, "GET", || get(events::stream)),
    route("/healthz", Access::Health, "GET", || get(health::alive)),
    route("/readyz", Access::Health, "GET", || get(health::ready)),
    route("/metrics", Access::Callers, "GET", || get(health::metrics)),
    route("/openapi.json", Access::Everyone, "GET", || get(docs::openapi)),
    route("/docs", Access::Everyone, "GET", || get(docs::page)),
    route("/docs/problems/{kind}", Access::Everyone, "GET", || get(docs::problem)),
    route("/", Access::Everyone, "GET", || get(dashboard::page)),
    route("/dashboard/{file}", Access::Everyone, "GET", || get(dashboard::file)),
];

pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for Route { path, allow, methods, .. } in TABLE {
        let refused = move || async move { into_axum(Problem::method(allow).into_reply()) };
        router = router.route(path, methods().fallback(refused));
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
    find(path).map_or(Access::Everyone, |route| route.access)
}

/// Asked of every request: no path of the health checks has a part to be filled in, so they are compared as they stand.
pub(crate) fn is_health(path: &str) -> bool {
    TABLE.iter().any(|route| route.access == Access::Health && route.path == path)
}

/// A bounded name of the route, for metrics.
pub(crate) fn name_of(path: &str) -> &'static str {
    find(path).map_or("other", |route| route.path)
}

fn find(path: &str) -> Option<&'static Route> {
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
    TABLE.iter().find(|route| same(route.path))
}

/// A good answer: this, as JSON.
pub(crate) fn shown(body: &impl Serialize) -> Result<Reply, Problem> {
    shown_as(StatusCode::OK, body)
}

pub(crate) fn shown_as(status: StatusCode, body: &impl Serialize) -> Result<Reply, Problem> {
    let text = serde_json::to_string(body).map_err(|error| Problem::not_ready(format!("the answer cannot be written: {error}")))?;
    Ok(reply(status, JSON, text))
}

/// The body of a request that may have none. `fields` says what may stand in it.
pub(crate) fn read_body<T: DeserializeOwned + Default>(body: &[u8], fields: &str) -> Result<T, Problem> {
    if body.is_empty() {
        return Ok(T::default());
    }
    let body: Value = serde_json::from_slice(body).map_err(|_| Problem::query("body", "is not JSON"))?;
    // A list would be read as the fields in their order.
    let read = if body.is_object() { serde_json::from_value(body).ok() } else { None };
    read.ok_or_else(|| Problem::query("body", format!("must be an object with {fields}, and nothing else")))
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
        assert_eq!(name_of("/v1/sessions/abc"), "/v1/sessions/{session_id}");
        assert_eq!(name_of("/v1/sessions/"), "other");
        assert_eq!(name_of("/"), "/");
        assert_eq!((access("/v1/sessions/abc"), access("/nowhere")), (Access::Callers, Access::Everyone));
        assert!(TABLE.iter().all(|route| is_health(route.path) == (route.access == Access::Health)));
        assert!(TABLE.iter().all(|route| route.access != Access::Health || !route.path.contains('{')));
    }

    #[test]
    fn no_upstream_can_be_named_like_a_path_of_ours() {
        let paths = TABLE.iter().map(|route| route.path).chain(runguard_guards::guard::ROUTES.iter().map(|route| route.path));
        for first in paths.filter_map(|path| path.split('/').nth(1)).filter(|first| !first.is_empty()) {
            assert!(runguard_engine::settings::OWN_PATHS.contains(&first), "{first}");
        }
    }
}
