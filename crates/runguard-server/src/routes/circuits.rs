//! The endpoints' circuits, and an operator's word on them.

use super::decisions::{query, reader};
use super::{State, answer};
use crate::auth;
use crate::problem::Problem;
use crate::respond::{JSON, Reply, reply};
use crate::service::App;
use crate::time;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, StatusCode};
use runguard_core::Timestamp;
use runguard_core::guard::api_circuit::Control;
use runguard_core::input::MAX_ID_CHARS;
use runguard_engine::clock::NOW_HEADER;
use runguard_engine::engine::forced_name;
use runguard_engine::{Caller, Circuit, Role};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn list(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(all(&app, raw.as_deref(), &headers).await)
}

async fn all(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, &["tenant"])?;
    let tenant = auth::tenant_to_read(&caller, values.get("tenant").map(String::as_str))?;
    let circuits = app.engine.circuits(tenant.as_deref(), now).await?;
    let shown: Vec<Value> = circuits.iter().map(|circuit| show(circuit, now)).collect();
    Ok(reply(StatusCode::OK, JSON, json!({"circuits": shown}).to_string()))
}

fn show(circuit: &Circuit, now: Timestamp) -> Value {
    let view = &circuit.view;
    json!({
        "endpoint_key": circuit.endpoint_key,
        "tenant": circuit.tenant,
        "phase": view.phase,
        "forced": view.forced.map(forced_name),
        "recent_failures": view.recent_failures,
        "failure_threshold": view.failure_threshold,
        "failure_window_seconds": view.failure_window.as_seconds(),
        "opened_at": view.opened_at.map(|at| time::format(at.as_millis())),
        "recovery_seconds_remaining": view.probe_at.filter(|_| view.forced.is_none()).map(|at| now.seconds_until(at)),
        "probes_out": view.probes_out,
        "retrips": view.retrips,
    })
}

pub(crate) fn admin(app: &App, headers: &HeaderMap) -> Result<(Arc<Caller>, Timestamp), Problem> {
    let caller = auth::caller(&app.engine, app.openness, headers)?;
    auth::require(&caller, Role::Admin)?;
    let now = app.engine.clock.read(headers.get(NOW_HEADER).map(HeaderValue::as_bytes))?;
    Ok((caller, now))
}

pub(crate) async fn open(app: State, Path(endpoint_key): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(control(&app, &endpoint_key, Control::Open, raw.as_deref(), &headers).await)
}

pub(crate) async fn close(app: State, Path(endpoint_key): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(control(&app, &endpoint_key, Control::Close, raw.as_deref(), &headers).await)
}

pub(crate) async fn reset(app: State, Path(endpoint_key): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(control(&app, &endpoint_key, Control::Reset, raw.as_deref(), &headers).await)
}

async fn control(app: &App, endpoint_key: &str, control: Control, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = admin(app, headers)?;
    let values = query(raw, &["tenant"])?;
    if endpoint_key.trim().is_empty() || endpoint_key.chars().count() > MAX_ID_CHARS {
        return Err(Problem::query("endpoint_key", format!("must be 1 to {MAX_ID_CHARS} characters")));
    }
    let tenant = auth::tenant_to_change(&caller, values.get("tenant").map(String::as_str))?;
    let circuit = app.engine.control_circuit(&tenant, endpoint_key, control, now).await?;
    tracing::warn!(?control, "an operator changed a circuit");
    Ok(reply(StatusCode::OK, JSON, show(&circuit, now).to_string()))
}
