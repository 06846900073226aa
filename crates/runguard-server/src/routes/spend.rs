//! `GET /v1/spend`: what was spent, by whatever one asks for, and the budgets as they stand. `GET /v1/runs`: the runs, and an operator's word
//! on one.

use super::circuits::admin;
use super::decisions::limit;
use super::query::{DAY_MILLIS, TENANT, hourly, one_of, query, reader, skip};
use super::{State, answer, read_body, shown};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use bytes::Bytes;
use hyper::HeaderMap;
use runguard_core::calendar::Zone;
use runguard_guards::guard::agent_run::Control;
use runguard_guards::input::MAX_ID_CHARS;
use runguard_http::reply::Reply;
use runguard_insight::insight::spend::{BudgetStands, By, RunQuery, RunState, Sort};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The longest note of an operator, in characters.
pub(crate) const MAX_NOTE_CHARS: usize = 500;

pub(crate) const ASKED: &[&str] = &["tenant", "since", "until", "time_zone", "by"];
pub(crate) const ASKED_OF_RUNS: &[&str] = &["tenant", "since", "until", "prefix", "state", "sort", "limit", "cursor"];

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(spent(&app, raw.as_deref(), &headers).await)
}

async fn spent(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, ASKED)?;
    let range = hourly(&values, &caller, now, 7 * DAY_MILLIS)?;
    let zone = zone(app, &values, range.filters.tenant.as_deref())?;
    let unknown = || Problem::query("by", format!("must be names with commas between them, of {}", By::ALL.map(By::code).join(", ")));
    let asked = values.get("by").map_or(By::Day.code(), String::as_str);
    let by: Vec<By> = asked.split(',').map(|word| By::from_code(word.trim()).ok_or_else(unknown)).collect::<Result<_, _>>()?;
    let (since, until) = (time::format(range.since_ms), time::format(range.until_ms));
    let mut spent = app.engine.spent(range, zone, by, now).await?;
    (spent.since, spent.until) = (since, until);
    tell_times(&mut spent.budgets);
    shown(&spent)
}

/// In words too, when each begins anew.
pub(super) fn tell_times(budgets: &mut [BudgetStands]) {
    for budget in budgets {
        budget.renews_at = budget.renews_at_ms.map(time::format);
    }
}

/// The time zone that is asked for; else that which the budgets are counted by.
pub(super) fn zone(app: &App, values: &HashMap<String, String>, tenant: Option<&str>) -> Result<Zone, Problem> {
    if let Some(name) = values.get("time_zone") {
        return Zone::named(name).map_err(|unknown| Problem::query("time_zone", unknown.to_string()));
    }
    let settings = app.engine.settings.load();
    Ok(settings.policies.for_tenant(tenant.unwrap_or_default()).budget.for_subject("").settings.time_zone.clone())
}

pub(crate) async fn runs(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(list(&app, raw.as_deref(), &headers).await)
}

async fn list(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, ASKED_OF_RUNS)?;
    let range = hourly(&values, &caller, now, DAY_MILLIS)?;
    let asked = RunQuery {
        prefix: values.get("prefix").cloned().unwrap_or_default(),
        state: one_of(&values, "state", RunState::from_code, &RunState::ALL.map(RunState::code))?,
        sort: one_of(&values, "sort", Sort::from_code, &Sort::ALL.map(Sort::code))?.unwrap_or_default(),
        skip: skip(&values)?,
        limit: limit(&values)?,
        now_ms: now.as_millis(),
    };
    let (since, until) = (time::format(range.since_ms), time::format(range.until_ms));
    let mut page = app.engine.runs(range, asked, now).await?;
    (page.since, page.until) = (since, until);
    for run in &mut page.runs {
        (run.first_seen, run.last_seen) = (time::format(run.first_seen_ms), time::format(run.last_seen_ms));
    }
    shown(&page)
}

pub(crate) async fn stop(app: State, Path(run): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap, body: Bytes) -> Response {
    let control = note_of(&body).map(|note| Control::Stop { note });
    answer(change(&app, &run, control, raw.as_deref(), &headers).await)
}

pub(crate) async fn resume(app: State, Path(run): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(change(&app, &run, Ok(Control::Resume), raw.as_deref(), &headers).await)
}

/// What is said to whoever asks for a stopped run.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StopAsked {
    /// Told to whoever is blocked.
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_NOTE_CHARS)))]
    note: Option<String>,
}

/// A run after an operator's word.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ChangedRun {
    run: String,
    tenant: String,
    state: RunState,
    note: Option<String>,
}

/// `{"note": "too dear"}`, or nothing.
fn note_of(body: &[u8]) -> Result<String, Problem> {
    let fields = format!("`note`, a text of at most {MAX_NOTE_CHARS} characters");
    let note = read_body::<StopAsked>(body, &fields)?.note.unwrap_or_default();
    if note.chars().count() > MAX_NOTE_CHARS {
        return Err(Problem::query("body", format!("must be an object with {fields}, and nothing else")));
    }
    Ok(runguard_core::shown::one_line(note.trim()))
}

async fn change(app: &App, run: &str, control: Result<Control, Problem>, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = admin(app, headers)?;
    let (values, control) = (query(raw, TENANT)?, control?);
    if run.trim().is_empty() || run.chars().count() > MAX_ID_CHARS {
        return Err(Problem::query("run", format!("must be 1 to {MAX_ID_CHARS} characters")));
    }
    let tenant = auth::tenant_to_change(&caller, values.get("tenant").map(String::as_str))?;
    // One that was never seen would be stopped in vain: its name is mistaken, or it is another tenant's.
    if !app.engine.knows_run(&tenant, run).await? {
        return Err(Problem::unknown_in(&tenant, "run", &caller));
    }
    let changed = app.engine.control_run(&tenant, run, &control, now).await?;
    tracing::warn!(state = changed.state.code(), "an operator changed a run");
    shown(&ChangedRun { run: changed.run, tenant: changed.tenant, state: changed.state, note: changed.note })
}
