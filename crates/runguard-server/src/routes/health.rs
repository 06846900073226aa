//! For load balancers and Prometheus.

use super::{State, answer, shown};
use crate::auth;
use crate::metrics::{as_plain_text, last_hour};
use crate::problem::Problem;
use crate::service::App;
use axum::response::Response;
use hyper::header::{ACCEPT, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use runguard_core::time::HOUR_MILLIS;
use runguard_engine::clock::NOW_HEADER;
use runguard_engine::watch::Watched;
use runguard_engine::{Caller, Role};
use runguard_http::reply::{Reply, reply};
use runguard_store::{ClusterHealth, StoreError};
use serde::Serialize;
use std::sync::atomic::Ordering;

const HOUR_MINUTES: i64 = 60;
/// How the service is.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Health {
    status: &'static str,
}

/// Whether it can decide, and what somebody should look at.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Readiness {
    status: &'static str,
    /// Changed files that were refused: it decides by those before. /v1/settings says why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<Watched>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ShownNode>,
}

/// Of a node of a cluster: how it stands. Numbers only: whoever balances load has no key.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownNode {
    nodes: u64,
    /// Whether it is the one that writes the log.
    imports: bool,
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    log_lag_seconds: f64,
    stream_entries: u64,
    rows_waiting: u64,
    unconfirmed_entries: u64,
    /// What somebody should look at. It decides nevertheless.
    warnings: Vec<NodeWarning>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum NodeWarning {
    /// The shared state cannot be reached.
    StateAway,
    /// The log takes no rows.
    LogAway,
    /// The shared state may drop entries to make room.
    StateEvicts,
    /// What the shared state holds does not outlive a restart of it.
    StateWithoutAof,
    /// Other nodes have other settings.
    SettingsDiffer,
    /// Other nodes have other keys.
    KeysDiffer,
    /// Rows were decided alone and there was no room to keep them.
    RowsNotKept,
}

/// The process answers.
pub(crate) async fn alive() -> Response {
    answer(shown(&Health { status: "ok" }))
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
    shown(&Readiness {
        status: "ready",
        // It decides, by what was in force before: a load balancer goes on, a person should look. Why is for those with a key.
        refused: app.engine.refusals.in_force().iter().map(|refused| refused.what).collect(),
        cluster: app.engine.store.cluster_health().map(|health| show_node(&health)),
    })
}

fn show_node(health: &ClusterHealth) -> ShownNode {
    let warnings = [
        (NodeWarning::StateAway, health.away.is_some()),
        (NodeWarning::LogAway, !health.log_up),
        (NodeWarning::StateEvicts, health.condition.evicts.is_some()),
        (NodeWarning::StateWithoutAof, health.condition.without_aof),
        (NodeWarning::SettingsDiffer, health.seen.other_settings > 0),
        (NodeWarning::KeysDiffer, health.seen.other_keys > 0),
        (NodeWarning::RowsNotKept, health.unconfirmed_dropped > 0),
    ];
    ShownNode {
        nodes: health.seen.nodes,
        imports: health.imports,
        log_lag_seconds: health.log_lag_millis as f64 / 1000.0,
        stream_entries: health.condition.stream_entries,
        rows_waiting: health.waiting_rows,
        unconfirmed_entries: health.unconfirmed,
        warnings: warnings.into_iter().filter(|(_, is_so)| *is_so).map(|(warning, _)| warning).collect(),
    }
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
