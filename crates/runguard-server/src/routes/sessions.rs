//! The sessions, found and sorted; and one of them: what happened, what is used up, what would be allowed next, its erasure.

use super::decisions::{MAX_LIMIT, Shown, cursor, limit};
use super::query::{DAY_MILLIS, TENANT, hourly, one_of, query, reader, skip};
use super::spend::tell_times;
use super::{State, answer, shown, shown_as};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use hyper::{HeaderMap, StatusCode};
use runguard_core::Reason;
use runguard_core::row::{Kind, Outcome};
use runguard_engine::erasure::{Erasure, THE_LOG};
use runguard_engine::preview::Counts;
use runguard_guards::guard::Outlook;
use runguard_http::reply::Reply;
use runguard_insight::insight::session_list::{SessionQuery, SessionSort};
use runguard_insight::insight::spend::BudgetStands;
use runguard_store::StoreError;
use serde::Serialize;

pub(crate) const ASKED: &[&str] = &["tenant", "since", "until", "prefix", "sort", "limit", "cursor"];
/// Of one session.
pub(crate) const ASKED_OF_ONE: &[&str] = &["tenant", "limit", "cursor"];

pub(crate) async fn list(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(found(&app, raw.as_deref(), &headers).await)
}

async fn found(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, ASKED)?;
    let range = hourly(&values, &caller, now, 7 * DAY_MILLIS)?;
    let asked = SessionQuery {
        tenant: range.filters.tenant,
        since_ms: range.since_ms,
        until_ms: range.until_ms,
        prefix: values.get("prefix").cloned().unwrap_or_default(),
        sort: one_of(&values, "sort", SessionSort::from_code, &SessionSort::ALL.map(SessionSort::code))?.unwrap_or_default(),
        skip: skip(&values)?,
        limit: limit(&values)?,
    };
    let mut page = app.engine.sessions(asked).await?;
    (page.since, page.until) = (time::format(page.since_ms), time::format(page.until_ms));
    for session in &mut page.sessions {
        (session.first_seen, session.last_seen) = (time::format(session.first_seen_ms), time::format(session.last_seen_ms));
    }
    shown(&page)
}

pub(crate) async fn show(app: State, Path(session_id): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(view(&app, &session_id, raw.as_deref(), &headers).await)
}

async fn view(app: &App, session_id: &str, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, ASKED_OF_ONE)?;
    let tenant = auth::tenant_to_read(&caller, values.get("tenant").map(String::as_str))?.unwrap_or_else(|| caller.tenant.to_string());
    let limit = if values.contains_key("limit") { limit(&values)? } else { MAX_LIMIT };
    let found = app.engine.session(&tenant, session_id, now, cursor(&values)?, limit + 1).await?;
    let mut session = found.ok_or_else(|| Problem::unknown_in(&tenant, "session", &caller))?;
    let more = session.timeline.len() > limit;
    session.timeline.truncate(limit);
    tell_times(&mut session.budgets);
    let timeline = &session.timeline;
    let counted = |outcome: Outcome| timeline.iter().filter(|row| row.kind == Kind::Check && row.outcome == outcome).count() as u64;
    let counter = |outlook: &Outlook| ShownCounter {
        guard: outlook.guard.code(),
        subject: outlook.subject.clone(),
        used: outlook.used,
        ceiling: outlook.ceiling,
        window_seconds: outlook.window.as_seconds(),
        allowed_next: outlook.reason.is_none(),
        reason: outlook.reason.map(Reason::code),
        retry_after_seconds: outlook.retry_at.map(|at| now.seconds_until(at)),
    };
    shown(&ShownSession {
        session_id,
        tenant: &tenant,
        first_seen: timeline.first().map(|row| time::format(row.at)),
        last_seen: timeline.last().map(|row| time::format(row.at)),
        counts: Counts {
            allowed: counted(Outcome::Allowed),
            would_block: counted(Outcome::WouldBlock),
            blocked: counted(Outcome::Blocked),
        },
        counters: session.outlooks.iter().map(counter).collect(),
        budgets: &session.budgets,
        timeline: timeline.iter().map(Shown::of).collect(),
        next_cursor: if more { timeline.last().map(|row| row.seq.to_string()) } else { None },
    })
}

/// A session: what happened, what is used up, what would be allowed next.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ShownSession<'a> {
    session_id: &'a str,
    tenant: &'a str,
    /// Of the decisions in this answer.
    first_seen: Option<String>,
    /// Of the decisions in this answer.
    last_seen: Option<String>,
    /// Of the decisions in this answer; where `next_cursor` is no null there are more.
    counts: Counts,
    counters: Vec<ShownCounter>,
    /// What the session may spend, as it stands at this moment: its own budgets by their names, mostly default, and scopes that are the
    /// run's such as run/day.
    budgets: &'a [BudgetStands],
    timeline: Vec<Shown<'a>>,
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownCounter {
    guard: &'static str,
    subject: String,
    used: u32,
    ceiling: u32,
    window_seconds: u64,
    allowed_next: bool,
    reason: Option<&'static str>,
    retry_after_seconds: Option<u64>,
}

/// Gone, from every file.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Erased {
    #[cfg_attr(feature = "schema", schemars(extend("const" = true)))]
    erased: bool,
    log_entries: usize,
}

/// It has begun, and is finished by itself.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct BeingErased {
    #[cfg_attr(feature = "schema", schemars(extend("const" = false)))]
    erased: bool,
    log_entries: usize,
    /// `the log`, the files, or the nodes.
    pending: Vec<String>,
    message: String,
}

pub(crate) async fn erase(app: State, Path(session_id): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(remove(&app, &session_id, raw.as_deref(), &headers).await)
}

async fn remove(app: &App, session_id: &str, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = super::circuits::admin(app, headers)?;
    let values = query(raw, TENANT)?;
    let tenant = auth::tenant_to_change(&caller, values.get("tenant").map(String::as_str))?;
    let unknown = || Problem::unknown_in(&tenant, "session", &caller);
    // Whoever asked may go away in the middle: it goes on to its end.
    let (engine, of, session) = (app.engine.clone(), tenant.clone(), session_id.to_owned());
    let erased = tokio::spawn(async move { engine.erase_session(&of, &session, now).await }).await;
    let erased = erased.unwrap_or_else(|error| Err(StoreError::NotErased(error.to_string()))).map_err(|error| match error {
        StoreError::Write(why) | StoreError::Read(why) | StoreError::NotErased(why) => {
            tracing::warn!(why, "a session was not erased");
            StoreError::NotErased(why)
        }
        StoreError::Stopping => StoreError::Stopping,
    });
    let Erasure { log_rows, waiting } = erased?.ok_or_else(unknown)?;
    if waiting.is_empty() {
        tracing::info!(rows = log_rows, "a session was erased");
        return shown(&Erased { erased: true, log_entries: log_rows });
    }
    let message = if waiting.iter().any(|what| what == THE_LOG) {
        "It has begun and is not finished: the shared state or the log is away or behind. Until it is, nodes decide alone for the session, and mark their answers. RunGuard goes on by itself and finishes, also after a restart. Ask again to hear how it stands.".to_owned()
    } else {
        format!(
            "No answer shows the session any more, but its bytes may still be in {}: a file waits for another process that reads an old state of it, or is large; a node has yet to confirm, or is away. RunGuard goes on by itself and finishes, also after a restart. Ask again to hear how it stands.",
            waiting.join(" and ")
        )
    };
    shown_as(StatusCode::ACCEPTED, &BeingErased { erased: false, log_entries: log_rows, pending: waiting, message })
}
