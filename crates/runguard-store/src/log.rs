//! The log as everyone reads it, whatever keeps it.

use crate::error::StoreError;
use crate::key::{Family, Key};
use crate::store::{Cell, Change, FEW};
use runguard_core::packed::write_behind;
use runguard_core::row::{Effect, Named, Row, RowCount, RowRef};
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

type TextOf = for<'r> fn(&'r RowRef<'_>) -> Option<&'r str>;

/// A column of the log that must hold a text, and its value in a row.
pub(crate) struct WantedText<'a> {
    pub(crate) column: &'static str,
    pub(crate) wanted: &'a str,
    of: TextOf,
}

/// How a row's time must stand to a given one.
pub(crate) struct WantedTime {
    /// As every SQL has it.
    pub(crate) comparison: &'static str,
    pub(crate) than: i64,
    is_so: fn(&i64, &i64) -> bool,
}

impl RowFilter {
    /// What the filter asks of texts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = WantedText<'_>> {
        let Self { id, kind, guard, reason, outcome, tenant, session, since: _, until: _ } = self;
        let all: [(_, &Option<String>, TextOf); 7] = [
            ("id", id, |row| Some(row.id)),
            ("kind", kind, |row| Some(row.kind.code())),
            ("guard", guard, |row| Some(row.guard.code())),
            ("reason", reason, |row| row.reason.as_ref().map(Named::code)),
            ("outcome", outcome, |row| Some(row.outcome.code())),
            ("tenant", tenant, |row| Some(row.tenant)),
            ("session", session, |row| Some(row.session)),
        ];
        all.into_iter().filter_map(|(column, wanted, of)| wanted.as_deref().map(|wanted| WantedText { column, wanted, of }))
    }

    /// What it asks of the column `at`.
    pub(crate) fn times(&self) -> impl Iterator<Item = WantedTime> {
        let since = self.since.map(|than| WantedTime { comparison: ">=", than, is_so: i64::ge });
        since.into_iter().chain(self.until.map(|than| WantedTime { comparison: "<", than, is_so: i64::lt }))
    }

    /// Whether a row passes, by the words of the filter.
    pub fn matches(&self, row: &RowRef<'_>) -> bool {
        self.texts().all(|text| (text.of)(row) == Some(text.wanted)) && self.times().all(|time| (time.is_so)(&row.at, &time.than))
    }
}

/// The columns of the log that make a row, in the order in which both databases are asked for them.
macro_rules! row_columns {
    () => {
        "l.seq, l.at, l.id, l.tenant, l.guard, l.kind, l.session, l.subject, l.outcome, l.reason, l.answer, l.input"
    };
}

pub(crate) const ROW_COLUMNS: &str = row_columns!();
/// The same, and behind them what it did to states.
pub(crate) const EFFECT_COLUMNS: &str = concat!(row_columns!(), ", l.effects");
/// Where that stands.
pub(crate) const EFFECTS: usize = 12;

/// A row with what it did to states.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowWithEffects {
    pub row: Row,
    /// As they stand in the log.
    pub effects: Vec<u8>,
}

impl RowWithEffects {
    pub fn happened(&self) -> Vec<Happened> {
        happened(&self.effects)
    }
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

/// Adds counts of single minutes up to counts of several; sorted.
pub(crate) fn count_by_minutes(minutes: i64, counts: impl Iterator<Item = RowCount>) -> Vec<RowCount> {
    let minutes = minutes.max(1);
    let mut sums: BTreeMap<RowCount, u64> = BTreeMap::new();
    for counted in counts {
        let bucket = RowCount { minute: counted.minute.div_euclid(minutes) * minutes, count: 0, ..counted };
        *sums.entry(bucket).or_default() += counted.count;
    }
    sums.into_iter().map(|(bucket, count)| RowCount { count, ..bucket }).collect()
}

/// What can be read in the order of its rows. As long as it lives, what it reads stays open.
pub(crate) trait Follow: Send + Sync + Debug {
    /// Whether it was ever learned where the log ends.
    fn is_known(&self) -> bool {
        true
    }

    /// How many nodes follow the same rows, this one among them.
    fn followers(&self) -> u64 {
        1
    }

    fn committed(&self) -> u64;
    fn follow(&self, after: u64, upto: u64, visit: &mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>) -> Result<ControlFlow<()>, StoreError>;
}

/// Reads the log in the order of its rows, from a thread of its own.
#[derive(Debug, Clone)]
pub struct Follower(Arc<dyn Follow>);

impl Follower {
    pub(crate) fn new(log: Arc<dyn Follow>) -> Self {
        Self(log)
    }

    /// Whether it is known where the log ends: of one that was never reached nothing follows from [`Self::committed`].
    pub fn is_known(&self) -> bool {
        self.0.is_known()
    }

    /// How many nodes follow the same rows, this one among them: each does for itself what the others do too.
    pub fn followers(&self) -> u64 {
        self.0.followers()
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
        mut visit: impl FnMut(RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, StoreError> {
        self.0.follow(after, upto, &mut visit)
    }
}

/// The slot number that means "all of this entry is gone".
pub(crate) const ERASED: u8 = 0;

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
    write_behind(Vec::with_capacity(ROOM), &*effects).map_err(|error| StoreError::Write(error.to_string()))
}

/// The same of effects that were read.
pub(crate) fn encode_happened(happened: &[Happened]) -> Result<Vec<u8>, StoreError> {
    let effects = happened.iter().map(|Happened { key, slot, label, events }| Effect {
        family: key.family as u8,
        hash: key.hash,
        slot: *slot,
        subject: label,
        events,
    });
    let effects: Vec<Effect<'_>> = effects.collect();
    postcard::to_stdvec(&effects).map_err(|error| StoreError::Write(error.to_string()))
}

/// What a row says that tells of the erasure of these entries.
pub(crate) fn encode_erasure<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<u8> {
    let effects: Vec<Effect<'_>> =
        keys.map(|key| Effect { family: key.family as u8, hash: key.hash, slot: ERASED, subject: "", events: &[] }).collect();
    postcard::to_stdvec(&effects).unwrap_or_default()
}

/// The effects of a row, read back; those of a later version are left out.
pub(crate) fn happened(effects: &[u8]) -> Vec<Happened> {
    let known = Effect::read_all(effects).into_iter().filter_map(|effect| {
        let key = Key::of(&effect)?;
        Some(Happened { key, slot: effect.slot, label: effect.subject.to_owned(), events: effect.events.to_vec() })
    });
    known.collect()
}
