//! `POST /v1/preview`: what changed thresholds would have done to the logged requests.
//!
//! It is begun and left within the handler, so that it ends when the caller goes.

use super::decisions::codes;
use super::query::{none_of, reader};
use super::{State, answer, shown};
use crate::auth;
use crate::metrics::Limited;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::body::Bytes;
use axum::response::Response;
use hyper::HeaderMap;
use runguard_core::{GuardName, Timestamp};
use runguard_engine::preview::{Ask, Changed, Counts, PreviewError, Report, preview};
use runguard_guards::input::{InputError, MAX_ID_CHARS};
use runguard_http::reply::Reply;
use serde::Serialize;
use serde_json::{Map, Value};

const WEEK_MILLIS: i64 = 7 * 86_400_000;
/// What the body may have.
pub(crate) const ASKED: &[&str] = &["guard", "settings", "since", "until", "tenant", "subject"];

pub(crate) async fn run(app: State, headers: HeaderMap, body: Bytes) -> Response {
    answer(look(&app, &headers, &body).await)
}

async fn look(app: &App, headers: &HeaderMap, body: &[u8]) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let body: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| Problem::from(InputError::NotAnObject(format!("Not a JSON object: {error}."))))?;
    let mut ask = read(&body, now)?;
    ask.tenant = auth::tenant_to_read(&caller, ask.tenant.as_deref())?;
    let (since, until) = (ask.since, ask.until);
    let (guard, tenant) = (ask.guard, ask.tenant.clone());
    let report = preview(&app.engine, ask).await.map_err(|error| match error {
        PreviewError::Settings(problem) => Problem::query(&field_of(guard, &problem.path), problem.problem),
        PreviewError::UnderWay | PreviewError::Busy => {
            app.metrics.limited(Limited::Previews);
            Problem::busy(format!("Nothing was looked at: {error}. Try again shortly."))
        }
        PreviewError::TooLong => Problem::query("since", format!("{error}; ask for a shorter time, one tenant or simpler patterns")),
        PreviewError::Store(error) => error.into(),
    })?;
    shown(&show(report, guard, tenant, since, until))
}

/// Named as it was given: `settings.max_handoffs`.
fn field_of(guard: GuardName, path: &[String]) -> String {
    let below = path.iter().skip(usize::from(path.first().is_some_and(|first| first == guard.code())));
    std::iter::once("settings").chain(below.map(String::as_str)).collect::<Vec<_>>().join(".")
}

fn read(body: &Map<String, Value>, now: Timestamp) -> Result<Ask, Problem> {
    if let Some(name) = body.keys().find(|name| !ASKED.contains(&name.as_str())) {
        return Err(none_of(name, "is not known here", name, ASKED));
    }
    let text = |name: &str| match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text.chars().count() <= MAX_ID_CHARS => Ok(Some(text.clone())),
        Some(_) => Err(Problem::query(name, format!("must be a text of at most {MAX_ID_CHARS} characters"))),
    };
    let at = |name: &str, default: i64| match body.get(name) {
        Some(Value::Number(millis)) => millis.as_i64().ok_or_else(|| Problem::query(name, "must be whole Unix milliseconds")),
        _ => match text(name)? {
            Some(text) => time::parse(&text, now).map_err(|problem| Problem::query(name, problem)),
            None => Ok(default),
        },
    };
    let word = text("guard")?.unwrap_or_default();
    let guard = GuardName::from_code(&word).ok_or_else(|| none_of("guard", "names no guard", &word, &codes(GuardName::ALL)))?;
    let settings = match body.get("settings") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(settings)) => settings.clone(),
        Some(_) => return Err(Problem::query("settings", "must be an object: thresholds by name, such as {\"window\": \"30m\"}")),
    };
    let until = at("until", now.as_millis().saturating_add(1))?;
    Ok(Ask {
        guard,
        settings,
        tenant: text("tenant")?,
        subject: text("subject")?,
        since: at("since", until.saturating_sub(WEEK_MILLIS))?,
        until,
    })
}

/// What would have changed.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ShownPreview {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    guard: GuardName,
    tenant: Option<String>,
    since: String,
    until: String,
    /// Decisions looked at.
    rows: u64,
    /// Decisions before them, for the states they met.
    warm_up_rows: u64,
    /// There are more rows than are looked at; these are the newest.
    truncated: bool,
    before: Counts,
    after: Counts,
    changed_total: u64,
    /// The newest of them.
    #[cfg_attr(feature = "schema", schemars(length(max = runguard_engine::preview::MOST_CHANGED)))]
    changed: Vec<ShownChange>,
    /// What keeps it from being exact, with numbers.
    inexact: Vec<String>,
}

/// A decision that would have been another.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownChange {
    decision_id: String,
    time: String,
    tenant: String,
    session_id: String,
    subject: String,
    before: String,
    after: &'static str,
    /// Why it would be refused, or was.
    reason: Option<String>,
}

fn show(report: Report, guard: GuardName, tenant: Option<String>, since: i64, until: i64) -> ShownPreview {
    let change = |Changed { decision_id, at, tenant, session_id, subject, before, after, reason }| ShownChange {
        decision_id,
        time: time::format(at),
        tenant,
        session_id,
        subject,
        before,
        after,
        reason,
    };
    let Report { rows, warm_up_rows, truncated, before, after, changed_total, changed, inexact } = report;
    ShownPreview {
        guard,
        tenant,
        since: time::format(since),
        until: time::format(until),
        rows,
        warm_up_rows,
        truncated,
        before,
        after,
        changed_total,
        changed: changed.into_iter().map(change).collect(),
        inexact,
    }
}
