//! For load balancers and Prometheus.

use super::{State, answer};
use crate::auth;
use crate::metrics::{as_plain_text, last_hour};
use crate::problem::Problem;
use crate::service::App;
use axum::response::Response;
use hyper::header::{ACCEPT, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use runguard_engine::clock::NOW_HEADER;
use runguard_engine::{Caller, Role};
use runguard_http::reply::{JSON, Reply, reply};
use runguard_store::{ClusterHealth, StoreError};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

const HOUR_MILLIS: i64 = 3_600_000;
const HOUR_MINUTES: i64 = 60;
/// What `/readyz` says of a cluster that somebody should look at.
pub(crate) const CLUSTER_WARNINGS: [&str; 7] =
    ["state_away", "log_away", "state_evicts", "state_without_aof", "settings_differ", "keys_differ", "rows_not_kept"];

/// The process answers.
pub(crate) async fn alive() -> Response {
    answer(Ok(reply(StatusCode::OK, JSON, r#"{"status":"ok"}"#)))
}

/// The service can decide: the disk takes a write.
pub(crate) async fn ready(app: State) -> Response {
    answer(probe(&app).await)
}

async fn probe(app: &App) -> Result<Reply, Problem> {
    if app.leaving.load(Ordering::Acquire) {
        return Err(StoreError::Stopping.into());
    }
    app.engine.store.probe().await?;
    let mut body = json!({"status": "ready"});
    // It decides, by what was in force before: a load balancer goes on, a person should look. Why is for those with a key.
    let refused: Vec<&str> = app.engine.refusals.in_force().iter().map(|refused| refused.what.code()).collect();
    if !refused.is_empty() {
        body["refused"] = json!(refused);
    }
    if let Some(health) = app.engine.store.cluster_health() {
        body["cluster"] = show_cluster(&health);
    }
    Ok(reply(StatusCode::OK, JSON, body.to_string()))
}

/// How a node stands. Numbers only: whoever balances load has no key.
fn show_cluster(health: &ClusterHealth) -> Value {
    let is_so = [
        health.away.is_some(),
        !health.log_up,
        health.condition.evicts.is_some(),
        health.condition.without_aof,
        health.seen.other_settings > 0,
        health.seen.other_keys > 0,
        health.unconfirmed_dropped > 0,
    ];
    json!({
        "nodes": health.seen.nodes,
        "imports": health.imports,
        "log_lag_seconds": health.log_lag_millis as f64 / 1000.0,
        "stream_entries": health.condition.stream_entries,
        "rows_waiting": health.waiting_rows,
        "unconfirmed_entries": health.unconfirmed,
        "warnings": CLUSTER_WARNINGS.iter().zip(is_so).filter(|(_, is_so)| *is_so).map(|(code, _)| code).collect::<Vec<_>>(),
    })
}

pub(crate) async fn metrics(app: State, headers: HeaderMap) -> Response {
    answer(exposition(&app, &headers).await)
}

async fn exposition(app: &App, headers: &HeaderMap) -> Result<Reply, Problem> {
    let caller = auth::caller(&app.engine, app.openness, headers)?;
    let text = if caller.may(Role::Metrics) {
        of_service(app, headers).await
    } else if caller.may(Role::Read) {
        of_tenant(app, &caller, headers).await?
    } else {
        return Err(Problem::no_figures(&caller));
    };
    if !wants_openmetrics(headers) {
        let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        return Ok(reply(StatusCode::OK, content_type, as_plain_text(&text)));
    }
    let content_type = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    Ok(reply(StatusCode::OK, content_type, text))
}

/// Everyone reads the older format; the newer one is for those who ask for it, and not less than for the older.
fn wants_openmetrics(headers: &HeaderMap) -> bool {
    let mut wanted: [f32; 2] = [0.0; 2];
    let given = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    for range in given {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let Some(place) = ["application/openmetrics-text", "text/plain"].iter().position(|known| known.eq_ignore_ascii_case(kind)) else {
            continue;
        };
        let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
        wanted[place] = wanted[place].max(weight);
    }
    let [openmetrics, plain] = wanted;
    openmetrics > 0.0 && openmetrics >= plain
}

async fn of_service(app: &App, headers: &HeaderMap) -> String {
    if let Some(alerts) = app.engine.alerts.get() {
        app.metrics.set_alerts(alerts);
    }
    // On the virtual clock a scraper may not know the time, and shared states may be away; then the phases stay as they were last
    // seen: figures are most needed when something is wrong.
    if let Ok(now) = app.engine.clock.read(headers.get(NOW_HEADER).map(HeaderValue::as_bytes))
        && let Ok(counts) = app.engine.circuit_counts(now).await
    {
        app.metrics.set_circuits(counts);
    }
    if let Some(telemetry) = &app.engine.telemetry {
        app.metrics.set_spans(telemetry);
    }
    app.metrics.set_refusals(&app.engine.refusals);
    app.metrics.text(&app.engine.store)
}

/// The process counts for all tenants together; of one tenant the log's own counts tell, by the minute.
async fn of_tenant(app: &App, caller: &Caller, headers: &HeaderMap) -> Result<String, Problem> {
    let now = app.engine.clock.read(headers.get(NOW_HEADER).map(HeaderValue::as_bytes))?.as_millis();
    let tenant = auth::tenant_to_read(caller, None)?;
    let counted = app.engine.store.stats_by(tenant, None, now.saturating_sub(HOUR_MILLIS), now.saturating_add(1), HOUR_MINUTES).await?;
    Ok(last_hour(&counted))
}
