//! `GET /v1/insights`: what the log advises, the weightiest first, each with its evidence.

use super::decisions::{query, reader};
use super::overview::of_range;
use super::{State, answer};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::RawQuery;
use axum::response::Response;
use hyper::{HeaderMap, StatusCode};
use runguard_http::reply::{JSON, Reply, reply};
use runguard_insight::insight::Filters;
use runguard_insight::insight::advice::{self, Facts};
use runguard_insight::insight::digest::Range;
use serde_json::json;

const HOUR_SECONDS: u64 = 3600;
const WEEK_MILLIS: i64 = 7 * 86_400_000;
/// Longer than the log is kept as a rule, and as far back as advice is of use.
const MAX_RANGE_MILLIS: i64 = 366 * 86_400_000;

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(advise(&app, raw.as_deref(), &headers).await)
}

async fn advise(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, &["tenant", "since", "until"])?;
    let tenant = auth::tenant_to_read(&caller, values.get("tenant").map(String::as_str))?;
    let at = |name: &str, default: i64| match values.get(name) {
        Some(text) => time::parse(text, now).map_err(|problem| Problem::query(name, problem)),
        None => Ok(default),
    };
    let until = at("until", now.as_millis().saturating_add(1))?;
    let since = at("since", until.saturating_sub(WEEK_MILLIS))?;
    if until.saturating_sub(since) > MAX_RANGE_MILLIS {
        return Err(Problem::query("since", "must be at most 366 days before until"));
    }
    let settings = app.engine.settings.load();
    // Whoever reads all tenants is told by the settings all of them start from.
    let policy = settings.policies.for_tenant(tenant.as_deref().unwrap_or_default());
    let facts = Facts { policy, savings: settings.savings.clone() };
    // By the hour, however long the range: some advice is about an hour of the day.
    let filters = Filters { tenant: tenant.clone(), ..Filters::default() };
    let overview = of_range(app, Range { since_ms: since, until_ms: until, bucket_seconds: HOUR_SECONDS, filters }).await?;
    let body = json!({
        "since": time::format(since),
        "until": time::format(until),
        "behind_rows": overview.behind_rows,
        "insights": advice::advise(&overview, &facts),
    });
    Ok(reply(StatusCode::OK, JSON, body.to_string()))
}
