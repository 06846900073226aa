//! `GET /v1/consumption`: what was used, by bot, step and day, and by conversation and week.

use super::query::{DAY_MILLIS, hourly, query, reader};
use super::{State, answer, shown};
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::RawQuery;
use axum::response::Response;
use hyper::HeaderMap;
use runguard_http::reply::Reply;

pub(crate) const ASKED: &[&str] = &["tenant", "since", "until", "time_zone"];

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(used(&app, raw.as_deref(), &headers).await)
}

async fn used(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, ASKED)?;
    let range = hourly(&values, &caller, now, 28 * DAY_MILLIS)?;
    let zone = super::spend::zone(app, &values, range.filters.tenant.as_deref())?;
    let (since, until) = (time::format(range.since_ms), time::format(range.until_ms));
    let mut used = app.engine.consumption(range, zone).await?;
    (used.since, used.until) = (since, until);
    shown(&used)
}
