//! `GET /v1/consumption`: what was used, by bot, step and day, and by conversation and week.

use super::decisions::{query, reader};
use super::{State, answer};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::RawQuery;
use axum::response::Response;
use hyper::{HeaderMap, StatusCode};
use runguard_core::calendar::Zone;
use runguard_http::reply::{JSON, Reply, reply};
use runguard_insight::insight::Filters;
use runguard_insight::insight::digest::Range;

const HOUR_SECONDS: u64 = 3600;
const FOUR_WEEKS_MILLIS: i64 = 28 * 86_400_000;
const MAX_RANGE_MILLIS: i64 = 366 * 86_400_000;

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(used(&app, raw.as_deref(), &headers).await)
}

async fn used(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, &["tenant", "since", "until", "time_zone"])?;
    let tenant = auth::tenant_to_read(&caller, values.get("tenant").map(String::as_str))?;
    let at = |name: &str, default: i64| match values.get(name) {
        Some(text) => time::parse(text, now).map_err(|problem| Problem::query(name, problem)),
        None => Ok(default),
    };
    let until_ms = at("until", now.as_millis().saturating_add(1))?;
    let since_ms = at("since", until_ms.saturating_sub(FOUR_WEEKS_MILLIS))?;
    if until_ms.saturating_sub(since_ms) > MAX_RANGE_MILLIS {
        return Err(Problem::query("since", "must be at most 366 days before until"));
    }
    let zone = if let Some(name) = values.get("time_zone") {
        Zone::named(name).map_err(|unknown| Problem::query("time_zone", unknown.to_string()))?
    } else {
        // Days are those that budgets are counted by.
        let settings = app.engine.settings.load();
        settings.policies.for_tenant(tenant.as_deref().unwrap_or_default()).budget.for_subject("").settings.time_zone.clone()
    };
    let range = Range { since_ms, until_ms, bucket_seconds: HOUR_SECONDS, filters: Filters { tenant, ..Filters::default() } };
    let mut shown = app.engine.consumption(range, zone).await?;
    shown.since = time::format(since_ms);
    shown.until = time::format(until_ms);
    Ok(reply(StatusCode::OK, JSON, serde_json::to_string(&shown).unwrap_or_default()))
}
