//! `GET /v1/decisions`: the log, filtered and in pages, as JSON, NDJSON or CSV.

use super::query::{code, one_of, query, reader};
use super::{State, answer, shown};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use hyper::header::{ACCEPT, CACHE_CONTROL, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use runguard_core::reason::Code;
use runguard_core::row::{Kind, Outcome};
use runguard_core::shown::csv_cell;
use runguard_core::{GuardName, Reason, Timestamp};
use runguard_engine::Caller;
use runguard_http::reply::{Reply, reply};
use runguard_store::{Order, Row, RowFilter};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::HashMap;

pub(crate) const MAX_LIMIT: usize = 1000;
pub(crate) const DEFAULT_LIMIT: usize = 100;

/// A row of the log.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Decision"))]
pub(crate) struct Shown<'a> {
    decision_id: &'a str,
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    time: String,
    time_ms: i64,
    tenant: &'a str,
    guard: &'a str,
    #[cfg_attr(feature = "schema", schemars(extend("enum" = codes(Kind::ALL))))]
    kind: &'a str,
    session_id: &'a str,
    /// The task, bot, topic, action, step or endpoint.
    subject: &'a str,
    /// `allowed`, `would_block`, `blocked` or `recorded`; for operators' changes what was done.
    outcome: &'a str,
    reason: Option<&'a str>,
    message: Option<String>,
    /// The body that was answered.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Map<String, serde_json::Value>"))]
    answer: Box<RawValue>,
    /// What of the request is kept.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Map<String, serde_json::Value>"))]
    input: Box<RawValue>,
}

/// A page of the log.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ShownDecisions<'a> {
    decisions: Vec<Shown<'a>>,
    next_cursor: Option<String>,
}

impl<'a> Shown<'a> {
    pub(crate) fn of(row: &'a Row) -> Self {
        let answer: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&row.answer).unwrap_or_default();
        Self {
            decision_id: &row.id,
            time: time::format(row.at),
            time_ms: row.at,
            tenant: &row.tenant,
            guard: row.guard.code(),
            kind: row.kind.code(),
            session_id: &row.session,
            subject: &row.subject,
            outcome: row.outcome.code(),
            reason: row.reason_code(),
            message: answer.get("message").and_then(serde_json::Value::as_str).map(str::to_owned),
            answer: raw(&row.answer),
            input: raw(&row.input),
        }
    }
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Which rows.
pub(crate) const FILTERS: &[&str] = &["guard", "reason", "session", "tenant", "outcome", "kind", "since", "until"];
/// How many of them, and how they are written.
pub(crate) const PAGED: &[&str] = &["limit", "cursor", "order", "format"];
/// All kinds of rows.
pub(crate) const ALL_KINDS: &str = "all";

pub(crate) fn codes<T: Code>(names: &[T]) -> Vec<&'static str> {
    names.iter().map(|name| name.code()).collect()
}

pub(crate) fn filter(values: &HashMap<String, String>, caller: &Caller, now: Timestamp) -> Result<RowFilter, Problem> {
    let at = |name: &str| values.get(name).map(|text| time::parse(text, now)).transpose().map_err(|problem| Problem::query(name, problem));
    let tenant = auth::tenant_to_read(caller, values.get("tenant").map(String::as_str))?;
    Ok(RowFilter {
        id: None,
        kind: match code(values, "kind", &[codes(Kind::ALL).as_slice(), &[ALL_KINDS]].concat())?.as_deref() {
            Some(ALL_KINDS) => None,
            Some(kind) => Some(kind.to_owned()),
            None => Some(Kind::Check.code().to_owned()),
        },
        guard: code(values, "guard", &codes(GuardName::ALL))?,
        reason: code(values, "reason", &codes(Reason::ALL))?,
        outcome: code(values, "outcome", &codes(Outcome::ALL))?,
        tenant,
        session: values.get("session").cloned(),
        since: at("since")?,
        until: at("until")?,
    })
}

pub(crate) fn limit(values: &HashMap<String, String>) -> Result<usize, Problem> {
    match values.get("limit").map(|text| text.parse::<usize>()) {
        None => Ok(DEFAULT_LIMIT),
        Some(Ok(limit)) if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
        Some(_) => Err(Problem::query("limit", format!("must be a whole number from 1 to {MAX_LIMIT}"))),
    }
}

pub(crate) fn cursor(values: &HashMap<String, String>) -> Result<Option<u64>, Problem> {
    let read = |text: &String| text.parse().map_err(|_| Problem::query("cursor", "must be the next_cursor of an earlier page"));
    values.get("cursor").map(read).transpose()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Ndjson,
    Csv,
}

impl Format {
    pub(crate) const ALL: [Self; 3] = [Self::Json, Self::Ndjson, Self::Csv];

    pub(crate) const fn code(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Ndjson => "ndjson",
            Self::Csv => "csv",
        }
    }
}

/// The words for the order of rows, the one that is meant where none is named first.
pub(crate) const ORDERS: [&str; 2] = ["desc", "asc"];

fn order(code: &str) -> Option<Order> {
    [Order::NewestFirst, Order::OldestFirst].into_iter().zip(ORDERS).find_map(|(order, name)| (name == code).then_some(order))
}

fn format(values: &HashMap<String, String>, headers: &HeaderMap) -> Result<Format, Problem> {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let of = |code: &str| Format::ALL.into_iter().find(|format| format.code() == code);
    match one_of(values, "format", of, &Format::ALL.map(Format::code))? {
        Some(format) => Ok(format),
        None if accept.contains("text/csv") => Ok(Format::Csv),
        None if accept.contains("application/x-ndjson") => Ok(Format::Ndjson),
        None => Ok(Format::Json),
    }
}

pub(crate) async fn list(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(page(&app, raw.as_deref(), &headers).await)
}

async fn page(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, &[FILTERS, PAGED].concat())?;
    let mut filter = filter(&values, &caller, now)?;
    if filter.session.is_some() {
        // In the whole log a session is found by its tenant and its name; to read all of the log for one would take long.
        filter.tenant = Some(auth::tenant_to_look_in(&caller, filter.tenant.as_deref(), "a session")?);
    }
    let order = one_of(&values, "order", order, &ORDERS)?.unwrap_or_default();
    let (limit, format) = (limit(&values)?, format(&values, headers)?);
    let mut rows = app.engine.rows(filter, order, cursor(&values)?, limit + 1).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = if more { rows.last().map(|row| row.seq.to_string()) } else { None };
    let mut response = match format {
        Format::Json => shown(&ShownDecisions { decisions: rows.iter().map(Shown::of).collect(), next_cursor: next.clone() })?,
        Format::Ndjson => {
            let lines: String = rows.iter().map(|row| serde_json::to_string(&Shown::of(row)).unwrap_or_default() + "\n").collect();
            reply(StatusCode::OK, HeaderValue::from_static("application/x-ndjson"), lines)
        }
        Format::Csv => reply(StatusCode::OK, HeaderValue::from_static("text/csv; charset=utf-8"), csv(&rows)),
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(next) = next.and_then(|next| HeaderValue::try_from(next).ok()) {
        response.headers_mut().insert("x-next-cursor", next);
    }
    Ok(response)
}

fn csv(rows: &[Row]) -> String {
    let mut out = String::from("decision_id,time,tenant,guard,kind,session_id,subject,outcome,reason,message,answer,input\r\n");
    for row in rows {
        let shown = Shown::of(row);
        let cells = [
            shown.decision_id,
            &shown.time,
            shown.tenant,
            shown.guard,
            shown.kind,
            shown.session_id,
            shown.subject,
            shown.outcome,
            shown.reason.unwrap_or_default(),
            shown.message.as_deref().unwrap_or_default(),
            &row.answer,
            &row.input,
        ];
        out.push_str(&cells.map(csv_cell).join(","));
        out.push_str("\r\n");
    }
    out
}

pub(crate) async fn one(app: State, Path(decision_id): Path<String>, headers: HeaderMap) -> Response {
    answer(find(&app, decision_id, &headers).await)
}

async fn find(app: &App, decision_id: String, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, _) = reader(app, headers)?;
    let tenant = auth::tenant_to_read(&caller, None)?;
    // The id begins with the time it was made at or, if the clock had gone back, a later one.
    let filter = RowFilter { id: Some(decision_id), tenant, ..RowFilter::default() };
    let rows = app.engine.rows(filter, Order::NewestFirst, None, 1).await?;
    let row = rows.first().ok_or_else(|| Problem::unknown("decision"))?;
    shown(&Shown::of(row))
}
