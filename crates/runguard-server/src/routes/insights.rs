//! `GET /v1/insights`: what the log advises, the weightiest first, each with its evidence. And what of it is put aside.

use super::circuits::admin;
use super::overview::of_range;
use super::query::{DAY_MILLIS, TENANT, hourly, one_of, query, reader};
use super::{State, answer, read_body, shown};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use bytes::Bytes;
use hyper::HeaderMap;
use runguard_core::Span;
use runguard_engine::advice::PutAside;
use runguard_http::reply::Reply;
use runguard_insight::insight::advice::{self, Facts};
use runguard_insight::insight::{Insight, Overview};
use serde::{Deserialize, Serialize};

/// How long advice is snoozed, when nothing is said; and at most.
const USUAL_SNOOZE: &str = "7d";
const LONGEST_SNOOZE_MILLIS: i64 = 366 * DAY_MILLIS;
/// Digits of what advice is known by.
const KEY_DIGITS: usize = 16;

/// Which advice is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Show {
    /// What is not put aside.
    #[default]
    Current,
    All,
}

impl Show {
    pub(crate) const CODES: [&str; 2] = ["current", "all"];

    fn from_code(code: &str) -> Option<Self> {
        match code {
            "current" => Some(Self::Current),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

/// Advice, the weightiest first.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ShownAdvice {
    since: String,
    until: String,
    /// Decisions that are logged and not yet looked at.
    behind_rows: u64,
    /// Pieces of advice that are put aside; shown with `show=all`.
    put_aside: usize,
    insights: Vec<ShownInsight>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownInsight {
    #[serde(flatten)]
    insight: Insight,
    /// What this piece of advice is known by.
    key: String,
    /// null: it is shown.
    put_aside: Option<ShownAside>,
}

/// A piece of advice that is not shown.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownAside {
    /// When it comes back by itself; null: not before it is restored.
    until: Option<String>,
}

/// A piece of advice after it was put aside or restored.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ChangedAdvice {
    key: String,
    tenant: Option<String>,
    /// null: it is shown.
    put_aside: Option<ShownAside>,
}

/// For how long advice is put aside.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SnoozeAsked {
    /// How long, such as 36h; 7d unless told.
    #[serde(rename = "for")]
    #[cfg_attr(feature = "schema", schemars(example = "7d"))]
    length: Option<String>,
}

pub(crate) const ASKED: &[&str] = &["tenant", "since", "until", "show"];

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(advise(&app, raw.as_deref(), &headers).await)
}

async fn advise(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, ASKED)?;
    let shows = one_of(&values, "show", Show::from_code, &Show::CODES)?.unwrap_or_default();
    // By the hour, however long the range: some advice is about an hour of the day.
    let range = hourly(&values, &caller, now, 7 * DAY_MILLIS)?;
    // Better shown once too often than not at all.
    let aside = app.engine.advice_put_aside(range.filters.tenant.as_deref(), now).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "what advice was put aside cannot be read: all of it is shown");
        Vec::new()
    });
    let settings = app.engine.settings.load();
    // Whoever reads all tenants is told by the settings all of them start from.
    let policy = settings.policies.for_tenant(range.filters.tenant.as_deref().unwrap_or_default());
    let facts = Facts { policy, savings: settings.savings.clone() };
    let overview = of_range(app, range).await?;
    let mut put_aside = 0;
    let mut insights = Vec::new();
    for insight in advice::advise(&overview, &facts) {
        let key = insight.key();
        let aside = aside.iter().find(|aside| aside.key == key);
        put_aside += usize::from(aside.is_some());
        if aside.is_none() || shows == Show::All {
            let put_aside = aside.map(|aside| ShownAside { until: aside.until_ms.map(time::format) });
            insights.push(ShownInsight { insight, key, put_aside });
        }
    }
    let Overview { since, until, behind_rows, .. } = overview;
    shown(&ShownAdvice { since, until, behind_rows, put_aside, insights })
}

pub(crate) async fn dismiss(app: State, Path(key): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(change(&app, &key, raw.as_deref(), &headers, Change::Dismiss).await)
}

pub(crate) async fn snooze(app: State, Path(key): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap, body: Bytes) -> Response {
    answer(change(&app, &key, raw.as_deref(), &headers, Change::Snooze(&body)).await)
}

pub(crate) async fn restore(app: State, Path(key): Path<String>, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(change(&app, &key, raw.as_deref(), &headers, Change::Restore).await)
}

enum Change<'a> {
    Dismiss,
    /// With the body that may say for how long.
    Snooze(&'a [u8]),
    Restore,
}

async fn change(app: &App, key: &str, raw: Option<&str>, headers: &HeaderMap, change: Change<'_>) -> Result<Reply, Problem> {
    let (caller, now) = admin(app, headers)?;
    let values = query(raw, TENANT)?;
    let tenant = auth::tenant_to_read(&caller, values.get("tenant").map(String::as_str))?;
    let key = key.to_ascii_lowercase();
    if key.len() != KEY_DIGITS || !key.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(Problem::query("key", format!("must be the `key` of a piece of advice, {KEY_DIGITS} hexadecimal digits")));
    }
    let until_ms = match change {
        Change::Restore => {
            if !app.engine.take_advice_back(&key, tenant.as_deref(), now).await? {
                return Err(Problem::unknown("advice among what is put aside"));
            }
            return shown(&ChangedAdvice { key, tenant, put_aside: None });
        }
        Change::Dismiss => None,
        Change::Snooze(body) => Some(now.as_millis().saturating_add(length(body)?)),
    };
    app.engine.put_advice_aside(PutAside { key: key.clone(), tenant: tenant.clone(), until_ms }, now).await?;
    shown(&ChangedAdvice { key, tenant, put_aside: Some(ShownAside { until: until_ms.map(time::format) }) })
}

/// `{"for": "7d"}`, or nothing.
fn length(body: &[u8]) -> Result<i64, Problem> {
    let wrong = |problem: String| Problem::query("body", problem);
    let asked: SnoozeAsked = read_body(body, "`for`, how long, such as \"7d\"")?;
    let span = Span::parse(asked.length.as_deref().unwrap_or(USUAL_SNOOZE)).map_err(|problem| wrong(format!("`for` {problem}")))?;
    match i64::try_from(span.as_millis()) {
        Ok(millis) if (1..=LONGEST_SNOOZE_MILLIS).contains(&millis) => Ok(millis),
        Ok(_) | Err(_) => Err(wrong("`for` must be longer than nothing, and at most 366d".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_is_said_in_words() {
        assert_eq!(length(b"").unwrap(), 7 * DAY_MILLIS);
        assert_eq!(length(b"{}").unwrap(), 7 * DAY_MILLIS);
        assert_eq!(length(br#"{"for":"36h"}"#).unwrap(), 36 * 3_600_000);
        for bad in [&b"7d"[..], br#"{"for":"soon"}"#, br#"{"for":"0s"}"#, br#"{"for":"400d"}"#, br#"{"for":"7d","x":1}"#, b"[]"] {
            assert!(length(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
