//! Reading the overview, and words for what is read.

use crate::insight::{Outcomes, Overview, ReasonCount, SubjectCount};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::shown::toml;
use serde_json::{Value, json};

pub(super) fn reason_of(overview: &Overview, reason: Reason) -> Option<&ReasonCount> {
    overview.reasons.iter().find(|count| count.reason == reason.code())
}

pub(super) fn fired(count: &ReasonCount) -> u64 {
    count.blocked.saturating_add(count.would_block)
}

pub(super) fn fired_of(overview: &Overview, reason: Reason) -> u64 {
    reason_of(overview, reason).map_or(0, fired)
}

pub(super) fn subject_of<'a>(overview: &'a Overview, guard: GuardName, subject: &str) -> Option<&'a SubjectCount> {
    overview.subjects.iter().find(|count| count.guard == guard.code() && count.subject == subject)
}

pub(super) fn decisions_of(count: &SubjectCount) -> u64 {
    count.allowed.saturating_add(count.would_block).saturating_add(count.blocked)
}

/// The subject's own examples if there are any, else those of the reason.
pub(super) fn sessions_of<'a>(overview: &'a Overview, guard: GuardName, subject: &str, otherwise: &'a [String]) -> &'a [String] {
    subject_of(overview, guard, subject).map(|count| count.sessions.as_slice()).filter(|sessions| !sessions.is_empty()).unwrap_or(otherwise)
}

/// Allowed, would have been blocked, blocked, of one bucket.
pub(super) fn bucket(outcomes: &Outcomes, index: usize) -> [u64; 3] {
    [&outcomes.allowed, &outcomes.would_block, &outcomes.blocked].map(|counts| counts.get(index).copied().unwrap_or(0))
}

/// All decisions of a guard in the range.
pub(super) fn traffic(overview: &Overview, guard: GuardName) -> u64 {
    let Some(outcomes) = overview.series.by_guard.get(guard.code()) else { return 0 };
    (0..buckets(outcomes)).map(|index| sum(&bucket(outcomes, index))).fold(0, u64::saturating_add)
}

pub(super) fn buckets(outcomes: &Outcomes) -> usize {
    outcomes.allowed.len().max(outcomes.would_block.len()).max(outcomes.blocked.len())
}

pub(super) fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |total, count| total.saturating_add(*count))
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

pub(super) fn rounded(value: f64) -> Value {
    json!((value * 1000.0).round() / 1000.0)
}

pub(super) fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

/// Long names are cut.
pub(super) fn cut(name: &str) -> String {
    const SHOWN: usize = 60;
    let mut shown: String = name.chars().take(SHOWN).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    shown
}

/// A name in a sentence.
pub(super) fn named(name: &str) -> String {
    format!("\"{}\"", cut(name))
}

/// A path in the settings file. A name that is no bare key is quoted as TOML wants it.
pub(super) fn path(parts: &[&str]) -> String {
    let key = |part: &&str| {
        let bare = !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if bare { (*part).to_owned() } else { toml(part) }
    };
    parts.iter().map(key).collect::<Vec<_>>().join(".")
}

/// Names the store made up for the rest of a long list are no flow one could change.
pub(super) fn is_rest(subject: &str) -> bool {
    subject.is_empty() || subject == "(other)"
}

/// The words of a topic or a goal, or what stands for them.
pub(super) fn words_of<'a>(label: &'a str, name: &'a str) -> &'a str {
    if label.trim().is_empty() { name } else { label }
}
