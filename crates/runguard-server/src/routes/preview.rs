//! `POST /v1/preview`: what changed thresholds would have done to the logged requests.
//!
//! It is begun and left within the handler, so that it ends when the caller goes.

use super::query::{none_of, reader};
use super::{State, answer};
use crate::auth;
use crate::metrics::Limited;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::body::Bytes;
use axum::response::Response;
use hyper::{HeaderMap, StatusCode};
use runguard_core::{GuardName, Timestamp};
use runguard_engine::preview::{Ask, Counts, PreviewError, Report, preview};
use runguard_guards::input::{InputError, MAX_ID_CHARS};
use runguard_http::reply::{JSON, Reply, reply};
use serde_json::{Map, Value, json};

const WEEK_MILLIS: i64 = 7 * 86_400_000;
const KNOWN: [&str; 6] = ["guard", "settings", "since", "until", "tenant", "subject"];

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
    Ok(reply(StatusCode::OK, JSON, show(&report, guard, tenant.as_deref(), since, until).to_string()))
}

/// Named as it was given: `settings.max_handoffs`.
fn field_of(guard: GuardName, path: &[String]) -> String {
    let below = path.iter().skip(usize::from(path.first().is_some_and(|first| first == guard.code())));
    std::iter::once("settings").chain(below.map(String::as_str)).collect::<Vec<_>>().join(".")
}

fn read(body: &Map<String, Value>, now: Timestamp) -> Result<Ask, Problem> {
    if let Some(name) = body.keys().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(none_of(name, "is not known here", name, &KNOWN));
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
    let guards: Vec<&str> = GuardName::ALL.iter().map(|guard| guard.code()).collect();
    let word = text("guard")?.unwrap_or_default();
    let guard = GuardName::from_code(&word).ok_or_else(|| none_of("guard", "names no guard", &word, &guards))?;
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

fn show(report: &Report, guard: GuardName, tenant: Option<&str>, since: i64, until: i64) -> Value {
    let counts = |counts: &Counts| json!({"allowed": counts.allowed, "would_block": counts.would_block, "blocked": counts.blocked});
    let changed: Vec<Value> = report
        .changed
        .iter()
        .map(|changed| {
            json!({
                "decision_id": changed.decision_id, "time": time::format(changed.at), "tenant": changed.tenant,
                "session_id": changed.session_id, "subject": changed.subject,
                "before": changed.before, "after": changed.after, "reason": changed.reason,
            })
        })
        .collect();
    json!({
        "guard": guard.code(), "tenant": tenant, "since": time::format(since), "until": time::format(until),
        "rows": report.rows, "warm_up_rows": report.warm_up_rows, "truncated": report.truncated,
        "before": counts(&report.before), "after": counts(&report.after),
        "changed_total": report.changed_total, "changed": changed, "inexact": report.inexact,
    })
}
