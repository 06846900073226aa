//! `GET /v1/stats`: decisions counted by guard, reason and time.

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
use runguard_core::row::{Ended, Named};
use runguard_core::{GuardName, Reason};
use runguard_http::reply::Reply;
use serde::Serialize;
use std::collections::BTreeMap;

type Counts = BTreeMap<(Named<GuardName>, Named<Ended>, Option<Named<Reason>>), u64>;

/// Buckets in one answer; more would not be looked at.
const MAX_BUCKETS: i64 = 10_000;

pub(crate) const ASKED: &[&str] = &["guard", "tenant", "since", "until", "bucket"];

pub(crate) async fn show(app: State, RawQuery(raw): RawQuery, headers: HeaderMap) -> Response {
    answer(counts(&app, raw.as_deref(), &headers).await)
}

async fn counts(app: &App, raw: Option<&str>, headers: &HeaderMap) -> Result<Reply, Problem> {
    let (caller, now) = reader(app, headers)?;
    let values = query(raw, ASKED)?;
    let tenant = auth::tenant_to_read(&caller, values.get("tenant").map(String::as_str))?;
    let guard = code(&values, "guard", &codes(GuardName::ALL))?;
    let minutes = (Bucket::asked(&values)?.unwrap_or(Bucket::Hour).seconds() / 60) as i64;
    let (since, until) = time_asked(&values, now, DAY_MILLIS)?;
    if until.saturating_sub(since) / 60_000 / minutes > MAX_BUCKETS {
        return Err(Problem::query("since", format!("would give more than {MAX_BUCKETS} buckets; take a larger bucket or a shorter time")));
    }
    let rows = app.engine.store.stats(tenant, guard, since, until).await?;
    let mut totals = Counts::new();
    let mut buckets: BTreeMap<i64, Counts> = BTreeMap::new();
    for row in rows {
        let start = row.minute.div_euclid(minutes) * minutes;
        let key = (row.guard, row.outcome, row.reason);
        *buckets.entry(start).or_default().entry(key.clone()).or_default() += row.count;
        *totals.entry(key).or_default() += row.count;
    }
    let list = |counts: Counts| -> Vec<ShownCount> {
        counts.into_iter().map(|((guard, outcome, reason), count)| ShownCount { guard, outcome, reason, count }).collect()
    };
    let bucket = |(minute, counts): (i64, Counts)| ShownBucket { start: time::format(minute.saturating_mul(60_000)), counts: list(counts) };
    shown(&ShownStats {
        since: time::format(since),
        until: time::format(until),
        bucket_seconds: minutes * 60,
        totals: list(totals),
        buckets: buckets.into_iter().map(bucket).collect(),
    })
}

/// Decisions counted.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ShownStats {
    since: String,
    until: String,
    bucket_seconds: i64,
    totals: Vec<ShownCount>,
    buckets: Vec<ShownBucket>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownBucket {
    start: String,
    counts: Vec<ShownCount>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ShownCount {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    guard: Named<GuardName>,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    outcome: Named<Ended>,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    reason: Option<Named<Reason>>,
    count: u64,
}
