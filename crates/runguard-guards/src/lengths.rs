//! How long runs become, and what of that is long for their kind.
//!
//! Every answer of a guard that follows runs says how long the run is by now. Whoever reads the log learns from it what is long, and tells the
//! guard with the next question: a decision stays a function of what it is given, and its row says what that was.

use crate::answer::Facts;
use crate::guard::{AnswerField, AnswerKind, says};
use crate::logged;
use runguard_core::detect::stall::{Long, StallSettings, StallState};
use runguard_core::reason::GuardName;
use runguard_core::row::RowRef;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What is long for each kind of run of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LongRuns(BTreeMap<Box<str>, Long>);

impl LongRuns {
    fn of(&self, guard: GuardName, key: Option<&str>, model: &str) -> Long {
        if self.0.is_empty() { Long::default() } else { self.0.get(&*kind(guard, key, model)).copied().unwrap_or_default() }
    }
}

impl FromIterator<(Box<str>, Long)> for LongRuns {
    fn from_iter<I: IntoIterator<Item = (Box<str>, Long)>>(known: I) -> Self {
        Self(known.into_iter().collect())
    }
}

/// Runs of which it is told in the same way, with the same key and of the same model, are one kind.
fn kind(guard: GuardName, key: Option<&str>, model: &str) -> Box<str> {
    format!("{}\n{}\n{model}", guard.code(), key.unwrap_or_default()).into()
}

/// How long a run is, as its row says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Length {
    pub kind: Box<str>,
    /// Since a person last spoke, or the run began.
    pub calls: u64,
    pub tokens: u64,
}

/// How long a run is by now, and what is long for its kind as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SoFar {
    calls: u32,
    tokens: u64,
    long_calls: u32,
    long_tokens: u64,
}

impl SoFar {
    pub(crate) const ANSWERS: [AnswerField; 4] = [
        says("calls", AnswerKind::Whole, "Calls the run has made, since a person last spoke."),
        says("tokens", AnswerKind::Whole, "Tokens it has used for them, as far as it was told."),
        says(
            "long_calls",
            AnswerKind::Whole,
            "More calls are a long run, by the log of other runs of its kind; left out where that is not known.",
        ),
        says("long_tokens", AnswerKind::Whole, "More tokens are a long run, likewise."),
    ];

    pub(crate) fn of(state: &StallState, long: Long) -> Self {
        Self { calls: state.calls(), tokens: state.tokens(), long_calls: long.calls, long_tokens: long.tokens }
    }

    pub(crate) fn facts(self, facts: Facts) -> Facts {
        let said = [
            ("calls", u64::from(self.calls)),
            ("tokens", self.tokens),
            ("long_calls", u64::from(self.long_calls)),
            ("long_tokens", self.long_tokens),
        ];
        said.into_iter().filter(|(_, count)| *count > 0).fold(facts, |facts, (name, count)| facts.with(name, count))
    }

    /// As a row says it.
    pub(crate) fn told(row: &RowRef<'_>) -> Self {
        logged::read(row.answer)
    }

    /// What was known to be long when the row was written: it is decided by that again.
    pub(crate) const fn long(self) -> Long {
        Long { calls: self.long_calls, tokens: self.long_tokens }
    }

    pub(crate) fn shown(self, guard: GuardName, key: Option<&str>, model: &str) -> Option<Length> {
        (self.calls > 0).then(|| Length { kind: kind(guard, key, model), calls: self.calls.into(), tokens: self.tokens })
    }
}

/// What is long for a run: what its row says was known when it is decided again, otherwise what is known now.
pub(crate) fn what_is_long(
    again: Option<Long>,
    known: Option<&LongRuns>,
    (guard, key, model): (GuardName, Option<&str>, &str),
    settings: &StallSettings,
) -> Long {
    if !settings.takes_what_is_long() {
        return Long::default();
    }
    again.or_else(|| known.map(|known| known.of(guard, key, model))).unwrap_or_default()
}
