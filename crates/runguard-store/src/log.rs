//! The log as everyone reads it, whatever keeps it.

use crate::error::StoreError;
use crate::key::{Family, Key};
use crate::store::{Cell, Change, FEW};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    NewestFirst,
    OldestFirst,
}

/// Which rows. `None` means any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowFilter {
    pub id: Option<String>,
    pub kind: Option<String>,
    pub guard: Option<String>,
    pub reason: Option<String>,
    pub outcome: Option<String>,
    pub tenant: Option<String>,
    pub session: Option<String>,
    /// From this time on, in milliseconds.
    pub since: Option<i64>,
    /// Before this time.
    pub until: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    pub seq: u64,
    pub at: i64,
    pub id: String,
    pub tenant: String,
    pub guard: String,
    pub kind: String,
    pub session: String,
    pub subject: String,
    pub outcome: String,
    pub reason: Option<String>,
    pub answer: String,
    pub input: String,
}

impl RowFilter {
    /// Whether a row passes, by the words of the filter.
    pub fn matches(&self, row: &FollowedRow<'_>) -> bool {
        let same = |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|wanted| wanted == value);
        same(&self.id, row.id)
            && same(&self.kind, row.kind)
            && same(&self.guard, row.guard)
            && self.reason.as_deref().is_none_or(|wanted| row.reason == Some(wanted))
            && same(&self.outcome, row.outcome)
            && same(&self.tenant, row.tenant)
            && same(&self.session, row.session)
            && self.since.is_none_or(|since| row.at >= since)
            && self.until.is_none_or(|until| row.at < until)
    }
}

impl LogRow {
    pub(crate) fn followed(&self) -> FollowedRow<'_> {
        FollowedRow {
            seq: self.seq,
            at: self.at,
            tenant: &self.tenant,
            guard: &self.guard,
            kind: &self.kind,
            session: &self.session,
            subject: &self.subject,
            outcome: &self.outcome,
            reason: self.reason.as_deref(),
            answer: &self.answer,
            input: &self.input,
            id: &self.id,
        }
    }
}

/// A row with what it did to states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deed {
    pub row: LogRow,
    pub effects: Vec<Happened>,
}

/// What happened to one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened {
    pub key: Key,
    pub slot: u8,
    /// What the state is filed under within its entry.
    pub label: String,
    pub events: Vec<u8>,
}

/// Decisions counted: minute (since the epoch), guard, outcome, reason, count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatRow {
    pub minute: i64,
    pub guard: String,
    pub outcome: String,
    pub reason: Option<String>,
    pub count: u64,
}

/// Adds counts of single minutes up to counts of several; sorted.
pub(crate) fn count_by_minutes(minutes: i64, counts: impl Iterator<Item = StatRow>) -> Vec<StatRow> {
    let minutes = minutes.max(1);
    let mut sums: BTreeMap<(i64, String, String, Option<String>), u64> = BTreeMap::new();
    for StatRow { minute, guard, outcome, reason, count } in counts {
        let bucket = minute.div_euclid(minutes) * minutes;
        *sums.entry((bucket, guard, outcome, reason)).or_default() += count;
    }
    sums.into_iter().map(|((minute, guard, outcome, reason), count)| StatRow { minute, guard, outcome, reason, count }).collect()
}

/// A row as it stands in the log: `answer` is the rest that the columns do not say.
#[derive(Debug, Clone, Copy)]
pub struct FollowedRow<'a> {
    pub seq: u64,
    pub at: i64,
    pub tenant: &'a str,
    pub guard: &'a str,
    pub kind: &'a str,
    pub session: &'a str,
    pub subject: &'a str,
    pub outcome: &'a str,
    pub reason: Option<&'a str>,
    pub answer: &'a str,
    pub input: &'a str,
    pub id: &'a str,
}

impl FollowedRow<'_> {
    pub fn to_row(&self) -> LogRow {
        LogRow {
            seq: self.seq,
            at: self.at,
            id: self.id.to_owned(),
            tenant: self.tenant.to_owned(),
            guard: self.guard.to_owned(),
            kind: self.kind.to_owned(),
            session: self.session.to_owned(),
            subject: self.subject.to_owned(),
            outcome: self.outcome.to_owned(),
            reason: self.reason.map(str::to_owned),
            answer: self.answer.to_owned(),
            input: self.input.to_owned(),
        }
    }
}

/// What can be read in the order of its rows. As long as it lives, what it reads stays open.
pub(crate) trait Follow: Send + Sync + Debug {
    fn committed(&self) -> u64;
    fn follow(
        &self,
        after: u64,
        upto: u64,
        visit: &mut dyn FnMut(FollowedRow<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, StoreError>;
}

/// Reads the log in the order of its rows, from a thread of its own.
#[derive(Debug, Clone)]
pub struct Follower(Arc<dyn Follow>);

impl Follower {
    pub(crate) fn new(log: Arc<dyn Follow>) -> Self {
        Self(log)
    }

    /// The number of the last row that is safe.
    pub fn committed(&self) -> u64 {
        self.0.committed()
    }

    /// Shows the rows after `after` up to `upto`, until there are no more or `visit` has seen enough. A snapshot may be held as
    /// long as it takes, so a visit is short.
    pub fn follow(
        &self,
        after: u64,
        upto: u64,
        mut visit: impl FnMut(FollowedRow<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, StoreError> {
        self.0.follow(after, upto, &mut visit)
    }
}

/// The slot number that means "all of this entry is gone".
pub(crate) const ERASED: u8 = 0;

/// What one row does to a state, as it stands in the log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Effect<'a> {
    pub(crate) family: u8,
    pub(crate) hash: u128,
    pub(crate) slot: u8,
    pub(crate) subject: &'a str,
    pub(crate) events: &'a [u8],
}

pub(crate) fn encode_effects(cells: &[Cell<'_>], changes: &[Change]) -> Result<Vec<u8>, StoreError> {
    const ROOM: usize = 64;
    fn effect<'a>(Cell { key, slot, subject, .. }: Cell<'a>, events: &'a [u8]) -> Effect<'a> {
        Effect { family: key.family as u8, hash: key.hash, slot, subject, events }
    }
    // A kept answer lives with the first cell of its step. Where nothing happened to any other, that one is named, so that whoever
    // reads the row finds the way.
    let only_kept = !changes.is_empty() && changes.iter().all(|change| cells[change.cell].key.family == Family::Idempotency);
    let lives_with = cells.first().filter(|first| only_kept && first.key.family != Family::Idempotency);
    let changed = changes.iter().map(|change| effect(cells[change.cell], &change.events));
    let effects: SmallVec<[Effect<'_>; FEW]> = lives_with.map(|first| effect(*first, &[])).into_iter().chain(changed).collect();
    postcard::to_extend(&*effects, Vec::with_capacity(ROOM)).map_err(|error| StoreError::Write(error.to_string()))
}

/// What a row says that tells of the erasure of these entries.
pub(crate) fn encode_erasure<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<u8> {
    let effects: Vec<Effect<'_>> =
        keys.map(|key| Effect { family: key.family as u8, hash: key.hash, slot: ERASED, subject: "", events: &[] }).collect();
    postcard::to_stdvec(&effects).unwrap_or_default()
}

pub(crate) fn encode_happened(happened: &[Happened]) -> Vec<u8> {
    fn effect(Happened { key, slot, label, events }: &Happened) -> Effect<'_> {
        Effect { family: key.family as u8, hash: key.hash, slot: *slot, subject: label, events }
    }
    postcard::to_stdvec(&happened.iter().map(effect).collect::<Vec<_>>()).unwrap_or_default()
}

/// The effects of a row, read back; those of a later version are left out.
pub(crate) fn happened(effects: &[u8]) -> Vec<Happened> {
    let effects: Vec<Effect<'_>> = postcard::from_bytes(effects).unwrap_or_default();
    let known = effects.into_iter().filter_map(|effect| {
        let key = Key { family: Family::from_number(effect.family)?, hash: effect.hash };
        Some(Happened { key, slot: effect.slot, label: effect.subject.to_owned(), events: effect.events.to_vec() })
    });
    known.collect()
}
