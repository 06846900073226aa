//! `GET /v1/alerts`: what the rules see, what is on its way, what did not arrive. And a test, and another try.
//!
//! A tenant sees the alerts about itself. Who is told and how belongs to the service: targets, and what keeps them from being
//! reached, are for an admin of all tenants.

use super::circuits::admin;
use super::query::{query, reader};
use super::{State, answer, read_body, shown};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use bytes::Bytes;
use hyper::HeaderMap;
use runguard_engine::alerts::{Alerts, ShownAlerts, TargetKind, Tested};
use runguard_http::reply::Reply;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Of a test.
pub(crate) const ASKED: &[&str] = &["target"];

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(view(&app, raw.as_deref(), &headers).await)
}

async fn view(app: &Arc<App>, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, _) = reader(app, headers)?;
    query(raw, &[])?;
    let shared = app.clone();
    let read = move || match shared.engine.alerts.get() {
        Some(alerts) => alerts.view(&shared.engine, &caller),
        None => Ok(ShownAlerts::of_none(&shared.engine.settings.load().alerts, &caller)),
    };
    let view = tokio::task::spawn_blocking(read).await.map_err(|error| Problem::not_ready(error.to_string()))?;
    shown(&view.map_err(|error| Problem::not_ready(error.to_string()))?)
}

fn alerts(app: &App) -> Result<&Alerts, Problem> {
    app.engine
        .alerts
        .get()
        .ok_or_else(|| Problem::unknown("target: the settings name none ([[alerts.target]]), or the service was not started with it"))
}

pub(crate) async fn test(app: State, RawQuery(raw): RawQuery, headers: HeaderMap, body: Bytes) -> Response {
    answer(send(&app, raw.as_deref(), &headers, &body).await)
}

/// Who is to get a test alert.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TestAsked {
    /// The name of a target; without it all are tested.
    target: Option<String>,
}

/// How it went.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ShownTests {
    tested: Vec<ShownTest>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownTest {
    target: String,
    kind: TargetKind,
    delivered: bool,
    problem: Option<String>,
}

/// A message waits again.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Queued {
    #[cfg_attr(feature = "schema", schemars(extend("const" = true)))]
    queued: bool,
}

async fn send(app: &App, raw: Option<&str>, headers: &HeaderMap, body: &[u8]) -> Result<Reply, Problem> {
    let (caller, _) = admin(app, headers)?;
    auth::require_admin_of_all(&caller)?;
    let values = query(raw, ASKED)?;
    let asked: TestAsked = read_body(body, "`target`, the name of one")?;
    let name = asked.target.or_else(|| values.get("target").cloned());
    let tested = alerts(app)?.test(name.as_deref()).await.ok_or_else(|| Problem::unknown("target"))?;
    let show = |tested: Tested| {
        let Tested { target, kind, problem } = tested;
        ShownTest { target, kind, delivered: problem.is_none(), problem }
    };
    shown(&ShownTests { tested: tested.into_iter().map(show).collect() })
}

pub(crate) async fn retry(app: State, Path(id): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(again(&app, &id, raw.as_deref(), &headers).await)
}

async fn again(app: &Arc<App>, id: &str, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, _) = admin(app, headers)?;
    query(raw, &[])?;
    let tenant = auth::tenant_to_read(&caller, None)?;
    let unknown = || Problem::unknown("dead letter");
    let id: i64 = id.parse().map_err(|_| unknown())?;
    alerts(app).map_err(|_| unknown())?;
    let shared = app.clone();
    let write = move || shared.engine.alerts.get().map_or(Ok(false), |alerts| alerts.retry(id, tenant.as_deref()));
    let found = tokio::task::spawn_blocking(write).await.map_err(|error| Problem::not_ready(error.to_string()))?;
    if !found.map_err(|error| Problem::not_ready(error.to_string()))? {
        return Err(unknown());
    }
    shown(&Queued { queued: true })
}
