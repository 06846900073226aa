//! Upstreams that fail, or are slow.

use super::reading::{bucket, is_rest, named, path, percent, reason_of, rounded, sessions_of, share, sum};
use super::{Draft, Facts};
use crate::insight::{Endpoint, Insight, Overview, Saves, Severity};
use runguard_core::reason::{GuardName, Reason};
use serde_json::json;

pub(super) const DEGRADE_BUCKETS_MIN: usize = 8;
pub(super) const DEGRADE_LATE_MIN: u64 = 6;
pub(super) const DEGRADE_FACTOR: f64 = 3.0;

/// Failures rise, and no call was blocked yet.
pub(super) fn upstream_degrades(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::ApiCircuit;
    let calls = overview.series.by_guard.get(guard.code());
    // A circuit may open with a result that is recorded: then nothing says so but the calls that it blocks from there on.
    let tripped = |endpoint: &Endpoint| {
        [Reason::CircuitJustTripped, Reason::CircuitOpen]
            .into_iter()
            .filter_map(|reason| reason_of(overview, reason))
            .any(|count| count.subjects.iter().any(|seen| seen.subject == endpoint.endpoint))
    };
    let mut found = Vec::new();
    for endpoint in overview.endpoints.iter().filter(|endpoint| !is_rest(&endpoint.endpoint) && !tripped(endpoint)) {
        let failures = &endpoint.failures_over_time;
        if failures.len() < DEGRADE_BUCKETS_MIN {
            continue;
        }
        let split = failures.len() - failures.len() / 4;
        // Failures by call, so that a busy hour is no alarm; by bucket where calls are not known.
        let rate = |range: std::ops::Range<usize>| {
            let failed = sum(&failures[range.clone()]);
            let made = calls.map_or(0, |outcomes| range.clone().map(|index| sum(&bucket(outcomes, index))).fold(0, u64::saturating_add));
            (failed, failed as f64 / if made == 0 { range.len() as f64 } else { made as f64 })
        };
        let ((early, early_rate), (late, late_rate)) = (rate(0..split), rate(split..failures.len()));
        if late < DEGRADE_LATE_MIN || late_rate < early_rate * DEGRADE_FACTOR || late <= early / DEGRADE_FACTOR as u64 {
            continue;
        }
        let threshold = facts.policy.api_circuit.for_subject(&endpoint.endpoint).settings.circuit.failure_threshold;
        let draft = Draft {
            id: "upstream_degrades",
            guard,
            subject: Some(&endpoint.endpoint),
            about: late,
            sureness: 1.0,
            saves: facts.saves(guard, late),
            setting: Some(path(&["guards", guard.code(), "failure_threshold"])),
            evidence: vec![
                ("failures_late", json!(late)),
                ("failures_before", json!(early)),
                ("calls", json!(endpoint.calls)),
                ("failure_threshold", json!(threshold)),
            ],
            sessions: sessions_of(overview, guard, &endpoint.endpoint, &[]),
        };
        let mut insight = draft.say(
            overview,
            format!("{} is getting worse", named(&endpoint.endpoint)),
            format!(
                "{late} of its {} failures are of the last quarter of this time, and its circuit has blocked no call ({threshold} failures within its window open it). Look at the upstream before it does.",
                late.saturating_add(early)
            ),
        );
        // Early is the point of it.
        insight.severity = Severity::High;
        found.push(insight);
    }
    found
}

pub(super) const ENDPOINT_CALLS_MIN: u64 = 50;
pub(super) const ENDPOINT_FAILURES_MIN: u64 = 10;
pub(super) const ENDPOINT_FAILURE_RATE: f64 = 0.2;

/// An upstream that fails much of the time.
pub(super) fn endpoint_fails(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::ApiCircuit;
    let failing = overview.endpoints.iter().filter(|endpoint| {
        endpoint.calls >= ENDPOINT_CALLS_MIN
            && endpoint.failures >= ENDPOINT_FAILURES_MIN
            && share(endpoint.failures, endpoint.calls) >= ENDPOINT_FAILURE_RATE
            && !is_rest(&endpoint.endpoint)
    });
    let say = |endpoint: &Endpoint| {
        let rate = share(endpoint.failures, endpoint.calls);
        // Without a rate only a burst of failures opens the circuit; an upstream that fails steadily never does.
        let by_rate = facts.policy.api_circuit.for_subject(&endpoint.endpoint).settings.circuit.failure_rate > 0.0;
        let change = if by_rate { "its circuit looks at the rate already" } else { "let failure_rate open its circuit too" };
        let draft = Draft {
            id: "endpoint_fails",
            guard,
            subject: Some(&endpoint.endpoint),
            about: endpoint.failures,
            sureness: 0.9,
            saves: facts.saves(guard, endpoint.failures),
            setting: (!by_rate).then(|| path(&["guards", guard.code(), "endpoints", &endpoint.endpoint, "failure_rate"])),
            evidence: vec![
                ("calls", json!(endpoint.calls)),
                ("failures", json!(endpoint.failures)),
                ("failure_rate", rounded(rate)),
                ("refused", json!(endpoint.blocked)),
            ],
            sessions: sessions_of(overview, guard, &endpoint.endpoint, &[]),
        };
        draft.say(
            overview,
            format!("{} of the calls to {} fail", percent(rate), named(&endpoint.endpoint)),
            format!("{} of {} calls failed. Have the upstream looked at; {change}.", endpoint.failures, endpoint.calls),
        )
    };
    failing.map(say).collect()
}

pub(super) const SLOW_MILLIS: f64 = 2000.0;

/// An upstream that lets people wait.
pub(super) fn endpoint_slow(overview: &Overview, facts: &Facts<'_>) -> Vec<Insight> {
    let guard = GuardName::ApiCircuit;
    let mut found = Vec::new();
    for endpoint in overview.endpoints.iter().filter(|endpoint| endpoint.calls >= ENDPOINT_CALLS_MIN && !is_rest(&endpoint.endpoint)) {
        let Some(mean) = endpoint.mean_ms.filter(|mean| *mean >= SLOW_MILLIS) else { continue };
        let watched = facts.policy.api_circuit.for_subject(&endpoint.endpoint).settings.circuit.slow_call_ms > 0;
        let change = if watched {
            "Its circuit looks at slow calls already"
        } else {
            "Set slow_call_ms and slow_rate, and its circuit opens on slow calls too"
        };
        let draft = Draft {
            id: "endpoint_slow",
            guard,
            subject: Some(&endpoint.endpoint),
            about: endpoint.calls,
            sureness: 0.3,
            saves: Saves::default(),
            setting: (!watched).then(|| path(&["guards", guard.code(), "endpoints", &endpoint.endpoint, "slow_call_ms"])),
            evidence: vec![("calls", json!(endpoint.calls)), ("mean_ms", rounded(mean)), ("max_ms", json!(endpoint.max_ms))],
            sessions: sessions_of(overview, guard, &endpoint.endpoint, &[]),
        };
        found.push(draft.say(
            overview,
            format!("{} is slow", named(&endpoint.endpoint)),
            format!("A call takes {:.1} seconds on average. People wait, and time-outs become retries. {change}.", mean / 1000.0),
        ));
    }
    found
}
