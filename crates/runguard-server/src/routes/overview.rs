//! `GET /v1/overview`: everything a dashboard shows of a time, in one answer.
//!
//! Totals, series and reasons are exact to the minute. The other lists are of whole hours: of every hour the range touches.

use super::decisions::codes;
use super::query::{Bucket, DAY_MILLIS, code, query, reader, time_asked};
use super::{State, answer, shown};
use crate::auth;
use crate::problem::Problem;
use crate::service::App;
use crate::time;
use axum::extract::RawQuery;
use axum::response::Response;
use hyper::HeaderMap;
use runguard_core::time::HOUR_MILLIS;
use runguard_core::{GuardName, Reason, Timestamp};
use runguard_engine::Caller;
use runguard_http::reply::Reply;
use runguard_insight::insight::digest::Range;
use runguard_insight::insight::{Filters, Overview};
use std::collections::HashMap;

/// Buckets in one answer: more than a screen has points.
const MAX_BUCKETS: i64 = 2_000;
/// Longer than this, the series goes by hours; longer than the other, by days.
const BY_MINUTE_MILLIS: i64 = 3 * HOUR_MILLIS;
const BY_HOUR_MILLIS: i64 = 14 * DAY_MILLIS;

pub(crate) const ASKED: &[&str] = &["guard", "reason", "tenant", "since", "until", "bucket"];

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(overview(&app, raw.as_deref(), &headers).await)
}

async fn overview(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, ASKED)?;
    shown(&of_range(app, range(&values, &caller, now)?).await?)
}

/// The overview of a range, with its times written out.
pub(crate) async fn of_range(app: &App, range: Range) -> Result<Overview, Problem> {
    let mut shown = app.engine.overview(range).await?;
    shown.since = time::format(shown.since_ms);
    shown.until = time::format(shown.until_ms);
    Ok(shown)
}

/// The range a query asks for: the last day, if it does not say.
pub(crate) fn range(values: &HashMap<String, String>, caller: &Caller, now: Timestamp) -> Result<Range, Problem> {
    let tenant = auth::tenant_to_read(caller, values.get("tenant").map(String::as_str))?;
    let guard = code(values, "guard", &codes(GuardName::ALL))?;
    let reason = code(values, "reason", &codes(Reason::ALL))?;
    let (since_ms, until_ms) = time_asked(values, now, DAY_MILLIS)?;
    // The end is not in it, and the last hour ends just after this moment.
    let span = until_ms.saturating_sub(since_ms).saturating_sub(1);
    let bucket_seconds = Bucket::asked(values)?.unwrap_or_else(|| fitting_bucket(span)).seconds();
    let range = Range { since_ms, until_ms, bucket_seconds, filters: Filters { tenant, guard, reason } };
    if range.buckets() > MAX_BUCKETS {
        return Err(Problem::query("since", format!("would give more than {MAX_BUCKETS} buckets; take a larger bucket or a shorter time")));
    }
    Ok(range)
}

fn fitting_bucket(span_millis: i64) -> Bucket {
    if span_millis <= BY_MINUTE_MILLIS {
        Bucket::Minute
    } else if span_millis <= BY_HOUR_MILLIS {
        Bucket::Hour
    } else {
        Bucket::Day
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    fn asked(pairs: &[(&str, &str)]) -> Result<Range, Problem> {
        let values = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        range(&values, &Caller::open(), Timestamp::from_millis(NOW))
    }

    #[test]
    fn the_bucket_goes_by_the_length_of_the_range() {
        let seconds = |since: &str| asked(&[("since", since)]).unwrap().bucket_seconds;
        assert_eq!((seconds("15m"), seconds("3h"), seconds("181m")), (60, 60, 3600));
        assert_eq!((seconds("14d"), seconds("15d"), seconds("30d")), (3600, 86_400, 86_400));
        let day = asked(&[]).unwrap();
        assert_eq!((day.until_ms, day.since_ms, day.bucket_seconds), (NOW + 1, NOW + 1 - DAY_MILLIS, 3600));
    }

    #[test]
    fn what_cannot_be_shown_is_refused() {
        for bad in [("bucket", "week"), ("guard", "nobody"), ("reason", "because"), ("since", "soon"), ("until", "x")] {
            assert!(asked(&[bad]).is_err(), "{bad:?}");
        }
        assert!(asked(&[("since", "1d"), ("bucket", "minute")]).is_ok());
        assert!(asked(&[("since", "2d"), ("bucket", "minute")]).is_err());
        assert!(asked(&[("since", "-9223372036854775808"), ("until", "9223372036854775807")]).is_err());
        assert_eq!(asked(&[("since", "5"), ("until", "1")]).unwrap().buckets(), 0);
    }
}
