//! The endpoints' circuits, and an operator's word on them.

use super::decisions::limit;
use super::query::{TENANT, code, query, reader};
use super::{State, answer, shown};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use runguard_core::Timestamp;
use runguard_core::breaker::Phase;
use runguard_core::fingerprint::hex_of;
use runguard_core::nearest::closest;
use runguard_core::shown::dotted;
use runguard_engine::clock::NOW_HEADER;
use runguard_engine::engine::forced_name;
use runguard_engine::{Caller, Circuit, CircuitPage, CircuitQuery, PhaseCounts, Role};
use runguard_guards::guard::api_circuit::Control;
use runguard_guards::input::MAX_ID_CHARS;
use runguard_http::reply::Reply;
use serde::Serialize;
use std::sync::Arc;

/// Endpoints among which the one that was meant is looked for.
const LOOKED_THROUGH: usize = 1000;

pub(crate) const ASKED: &[&str] = &["tenant", "endpoint", "phase", "limit", "cursor"];

pub(crate) async fn list(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(all(&app, raw.as_deref(), &headers).await)
}

async fn all(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, ASKED)?;
    let tenant = auth::tenant_to_read(&caller, values.get("tenant").map(String::as_str))?;
    let phase = code(&values, "phase", &Phase::ALL.map(Phase::code))?;
    let after = values.get("cursor").map(String::as_str).map(place_of).transpose()?;
    let limit = limit(&values)?;
    let page = match values.get("endpoint") {
        Some(endpoint_key) => {
            let tenant = auth::tenant_to_look_in(&caller, tenant.as_deref(), "an endpoint")?;
            let found = app.engine.circuit(&tenant, endpoint_key, now).await?;
            CircuitPage::of(found.filter(|circuit| phase.as_deref().is_none_or(|phase| phase == circuit.view.phase.code())))
        }
        None => app.engine.circuits(CircuitQuery { tenant, phase, after, limit }, now).await?,
    };
    shown(&ShownCircuits {
        circuits: page.circuits.iter().map(|circuit| show(circuit, now)).collect(),
        next_cursor: page.circuits.last().filter(|_| page.more).map(cursor_after),
        counts: page.counts,
    })
}

/// Where a page ends, in letters that pass through any address.
fn cursor_after(circuit: &Circuit) -> String {
    hex_of(format!("{}\0{}", circuit.tenant, circuit.endpoint_key).as_bytes())
}

fn place_of(cursor: &str) -> Result<(String, String), Problem> {
    let byte = |at: usize| cursor.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<Vec<u8>> = (0..cursor.len()).step_by(2).map(byte).collect();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let place = text.as_deref().and_then(|text| text.split_once('\0')).map(|(tenant, endpoint)| (tenant.to_owned(), endpoint.to_owned()));
    place.ok_or_else(|| Problem::query("cursor", "must be the next_cursor of an earlier page"))
}

/// Circuits, by tenant and endpoint.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ShownCircuits {
    circuits: Vec<ShownCircuit>,
    next_cursor: Option<String>,
    /// Of all endpoints of the tenant, whatever the page and the phase asked for.
    counts: PhaseCounts,
}

/// A circuit as it stands.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Circuit"))]
pub(crate) struct ShownCircuit {
    endpoint_key: String,
    tenant: String,
    phase: Phase,
    /// What an operator holds it at.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["open", "closed", null])))]
    forced: Option<&'static str>,
    recent_failures: u32,
    failure_threshold: u32,
    failure_window_seconds: u64,
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    opened_at: Option<String>,
    recovery_seconds_remaining: Option<u64>,
    probes_out: u32,
    retrips: u32,
    /// Only of an operator's change: what may have been meant otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<Vec<String>>,
}

fn show(circuit: &Circuit, now: Timestamp) -> ShownCircuit {
    let view = &circuit.view;
    ShownCircuit {
        endpoint_key: circuit.endpoint_key.clone(),
        tenant: circuit.tenant.clone(),
        phase: view.phase,
        forced: view.forced.map(forced_name),
        recent_failures: view.recent_failures,
        failure_threshold: view.failure_threshold,
        failure_window_seconds: view.failure_window.as_seconds(),
        opened_at: view.opened_at.map(|at| time::format(at.as_millis())),
        recovery_seconds_remaining: view.probe_at.filter(|_| view.forced.is_none()).map(|at| now.seconds_until(at)),
        probes_out: view.probes_out,
        retrips: view.retrips,
        warnings: None,
    }
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
    let values = query(raw, TENANT)?;
    if endpoint_key.trim().is_empty() || endpoint_key.chars().count() > MAX_ID_CHARS {
        return Err(Problem::query("endpoint_key", format!("must be 1 to {MAX_ID_CHARS} characters")));
    }
    let asked = values.get("tenant").map(String::as_str);
    let tenant = auth::tenant_to_change(&caller, asked)?;
    // An endpoint that was never seen can be opened or closed beforehand; but a key of all tenants that names none may mean another's.
    let may_mean_another = asked.is_none() && caller.sees_all() && !caller.is_anyone();
    let is_known = app.engine.circuit(&tenant, endpoint_key, now).await?.is_some();
    if may_mean_another && !is_known {
        return Err(Problem::unknown_in(&tenant, "endpoint", &caller));
    }
    let warnings = if is_known { Vec::new() } else { vec![never_seen(app, &tenant, endpoint_key, now).await?] };
    let circuit = app.engine.control_circuit(&tenant, endpoint_key, control, now).await?;
    tracing::warn!(?control, tenant, endpoint = dotted(endpoint_key), "an operator changed a circuit");
    shown(&ShownCircuit { warnings: Some(warnings), ..show(&circuit, now) })
}

/// An operator's word on an endpoint that nobody called yet is kept for when somebody does; more often it is a slip of the finger.
async fn never_seen(app: &App, tenant: &str, endpoint_key: &str, now: Timestamp) -> Result<String, Problem> {
    let known = app.engine.circuits(CircuitQuery::first(Some(tenant), LOOKED_THROUGH), now).await?;
    let near = closest(endpoint_key, known.circuits.iter().map(|circuit| circuit.endpoint_key.as_str()));
    let hint = near.map_or_else(|| "`GET /v1/circuits` lists those that were".to_owned(), |near| format!("did you mean '{near}'?"));
    Ok(format!("no call to the endpoint '{endpoint_key}' has been seen; {hint}"))
}
