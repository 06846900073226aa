//! `GET /v1/alerts`: what the rules see, what is on its way, what did not arrive. And a test, and another try.
//!
//! A tenant sees the alerts about itself. Who is told and how belongs to the service: targets, and what keeps them from being
//! reached, are for an admin of all tenants.

use super::circuits::admin;
use super::query::{query, reader};
use super::{State, answer};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use runguard_engine::alerts::{Alerts, view_of_none};
use runguard_http::reply::{JSON, Reply, reply};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(view(&app, raw.as_deref(), &headers).await)
}

async fn view(app: &Arc<App>, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, _) = reader(app, headers)?;
    query(raw, &[])?;
    let shared = app.clone();
    let read = move || match shared.engine.alerts.get() {
        Some(alerts) => alerts.view(&shared.engine, &caller),
        None => Ok(view_of_none(&shared.engine.settings.load().alerts, &caller)),
    };
    let shown = tokio::task::spawn_blocking(read).await.map_err(|error| Problem::not_ready(error.to_string()))?;
    let shown = shown.map_err(|error| Problem::not_ready(error.to_string()))?;
    Ok(reply(StatusCode::OK, JSON, shown.to_string()))
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

/// `{"target": "ops"}`, or nothing for all.
fn named_in(body: &[u8]) -> Result<Option<String>, Problem> {
    if body.is_empty() {
        return Ok(None);
    }
    let body: Value = serde_json::from_slice(body).map_err(|_| Problem::query("body", "is not JSON"))?;
    match (body.as_object(), &body["target"]) {
        (Some(fields), Value::Null) if fields.keys().all(|key| key == "target") => Ok(None),
        (Some(fields), Value::String(name)) if fields.len() == 1 => Ok(Some(name.clone())),
        _ => Err(Problem::query("body", "must be an object with `target`, the name of one, and nothing else")),
    }
}

async fn send(app: &App, raw: Option<&str>, headers: &HeaderMap, body: &[u8]) -> Result<Reply, Problem> {
    let (caller, _) = admin(app, headers)?;
    auth::require_admin_of_all(&caller)?;
    let values = query(raw, &["target"])?;
    let name = named_in(body)?.or_else(|| values.get("target").cloned());
    let tested = alerts(app)?.test(name.as_deref()).await.ok_or_else(|| Problem::unknown("target"))?;
    let shown: Vec<Value> = tested
        .iter()
        .map(|tested| json!({"target": tested.target, "kind": tested.kind, "delivered": tested.problem.is_none(), "problem": tested.problem}))
        .collect();
    Ok(reply(StatusCode::OK, JSON, json!({"tested": shown}).to_string()))
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
    Ok(reply(StatusCode::OK, JSON, json!({"queued": true}).to_string()))
}
