//! What every question to the API has: who asks and when, the parameters, the time that is asked about.

use super::decisions::cursor;
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use runguard_core::Timestamp;
use runguard_core::nearest::hint;
pub(crate) use runguard_core::time::DAY_MILLIS;
use runguard_engine::clock::NOW_HEADER;
use runguard_engine::{Caller, Role};
use runguard_insight::insight::Filters;
use runguard_insight::insight::digest::Range;
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) const HOUR_SECONDS: u64 = 3600;
/// Longer than the log is kept as a rule, and as far back as what is read by the hour is of use.
const MAX_HOURLY_MILLIS: i64 = 366 * DAY_MILLIS;

/// What a route takes that asks nothing else. Each list of parameters goes with the handler that reads them; what they are for is in the
/// OpenAPI document's table.
pub(crate) const TENANT: &[&str] = &["tenant"];

/// The steps of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bucket {
    Minute,
    Hour,
    Day,
}

impl Bucket {
    pub(crate) const ALL: [Self; 3] = [Self::Minute, Self::Hour, Self::Day];

    pub(crate) const fn code(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    pub(crate) const fn seconds(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Hour => HOUR_SECONDS,
            Self::Day => 24 * HOUR_SECONDS,
        }
    }

    /// The one that is asked for, if any.
    pub(crate) fn asked(values: &HashMap<String, String>) -> Result<Option<Self>, Problem> {
        let of = |code: &str| Self::ALL.into_iter().find(|bucket| bucket.code() == code);
        one_of(values, "bucket", of, &Self::ALL.map(Self::code))
    }
}

pub(crate) fn reader(app: &App, headers: &HeaderMap) -> Result<(Arc<Caller>, Timestamp), Problem> {
    let caller = auth::caller(&app.engine, app.openness, headers)?;
    auth::require(&caller, Role::Read)?;
    let now = app.engine.clock.read(headers.get(NOW_HEADER).map(HeaderValue::as_bytes))?;
    Ok((caller, now))
}

/// The query string as a map; a name that is not known is an error, so that a typing error does not show everything.
pub(crate) fn query(raw: Option<&str>, known: &[&str]) -> Result<HashMap<String, String>, Problem> {
    let mut values = HashMap::new();
    for pair in raw.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode =
            |text: &str| percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8().map(std::borrow::Cow::into_owned);
        let (Ok(name), Ok(value)) = (decode(name), decode(value)) else {
            return Err(Problem::query("query", "is not UTF-8"));
        };
        if !known.contains(&name.as_str()) {
            return Err(none_of(&name, "is not known here", &name, known));
        }
        // Which of two was meant nobody can say, and one of them may be the tenant.
        if values.contains_key(&name) {
            return Err(Problem::query(&name, "is given more than once; give it once"));
        }
        values.insert(name, value);
    }
    values.retain(|_, value| !value.is_empty());
    Ok(values)
}

/// A parameter, or a word in one, that is none of those there are: the one that was meant, where one was, and otherwise all of them.
pub(crate) fn none_of(parameter: &str, wrong: &str, word: &str, known: &[&str]) -> Problem {
    let shown: String = parameter.chars().take(64).collect();
    Problem::query(&shown, format!("{wrong}; {}", hint(word, known.iter().copied())))
}

/// The time that is asked about, from and to, in milliseconds: up to this moment unless told, and as long as this unless told.
pub(crate) fn time_asked(values: &HashMap<String, String>, now: Timestamp, length_millis: i64) -> Result<(i64, i64), Problem> {
    let at = |name: &str, default: i64| match values.get(name) {
        Some(text) => time::parse(text, now).map_err(|problem| Problem::query(name, problem)),
        None => Ok(default),
    };
    // The end is not in it, and what happens at this moment is.
    let until_ms = at("until", now.as_millis().saturating_add(1))?;
    Ok((at("since", until_ms.saturating_sub(length_millis))?, until_ms))
}

/// All of a tenant in the time that is asked about, by the hour.
pub(crate) fn hourly(values: &HashMap<String, String>, caller: &Caller, now: Timestamp, length_millis: i64) -> Result<Range, Problem> {
    let tenant = auth::tenant_to_read(caller, values.get("tenant").map(String::as_str))?;
    let (since_ms, until_ms) = time_asked(values, now, length_millis)?;
    if until_ms.saturating_sub(since_ms) > MAX_HOURLY_MILLIS {
        return Err(Problem::query("since", "must be at most 366 days before until"));
    }
    Ok(Range { since_ms, until_ms, bucket_seconds: HOUR_SECONDS, filters: Filters { tenant, ..Filters::default() } })
}

/// The one of these that a word means.
pub(crate) fn one_of<T>(
    values: &HashMap<String, String>,
    name: &str,
    of: fn(&str) -> Option<T>,
    all: &[&str],
) -> Result<Option<T>, Problem> {
    let Some(word) = values.get(name) else { return Ok(None) };
    of(word).map(Some).ok_or_else(|| none_of(name, "has no such value", word, all))
}

/// One of these codes.
pub(crate) fn code(values: &HashMap<String, String>, name: &str, known: &[&str]) -> Result<Option<String>, Problem> {
    match values.get(name) {
        Some(value) if !known.contains(&value.as_str()) => Err(none_of(name, "has no such value", value, known)),
        value => Ok(value.cloned()),
    }
}

/// How many of a sorted list are passed over: its cursor is a number.
pub(crate) fn skip(values: &HashMap<String, String>) -> Result<usize, Problem> {
    Ok(usize::try_from(cursor(values)?.unwrap_or(0)).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_parameters_are_named() {
        assert!(query(Some("gaurd=handoff"), &["guard", "session"]).is_err());
        assert_eq!(
            query(Some("session=a%20b&guard="), &["guard", "session"]).unwrap(),
            HashMap::from([("session".to_owned(), "a b".to_owned())])
        );
    }

    #[test]
    fn what_is_read_by_the_hour_is_of_a_year_at_most() {
        let asked = |since: &str| {
            let values = HashMap::from([("since".to_owned(), since.to_owned())]);
            hourly(&values, &Caller::open(), Timestamp::from_millis(1_700_000_000_000), DAY_MILLIS)
        };
        assert!(asked("365d").is_ok() && asked("367d").is_err() && asked("soon").is_err());
    }
}
