//! Rows of the log folded into small cells, and cells turned into an [`Overview`].
//!
//! A cell counts what one name did in one hour of one tenant. Everything in it can be added in any order (whole numbers,
//! maxima, the newest of something), so a log may be folded in pieces, on the fly or after a crash, and the sum is the
//! same. Texts are parsed only for the guards whose panels need them; most rows cost two look-ups by hash.
//!
//! Names are bounded by hour, tenant, dimension and guard. Which names are kept beyond the bound depends on who comes
//! first; that nothing is lost from the sums does not: the rest is counted under [`OTHER`].

mod joined;
mod sessions;

pub use sessions::Sessions;

use super::{
    Action, BudgetSeen, Chain, Counted, Edge, Endpoint, Entity, Filters, Goal, GoalAction, Hours, Outcomes, Overview, ReasonCount,
    SubjectCount, Topic,
};
use runguard_core::hashed::HashedMap;
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::{Kind, Named, Outcome, RowCount, RowRef};
use runguard_guards::guard::{GuardEntry, GuardedStep};
use runguard_guards::logged;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_128;

/// Names kept by hour, tenant, dimension and (where it has one) guard; the rest is counted together.
pub const MOST_NAMES: usize = 1_000;
/// The name of the rest.
pub const OTHER: &str = "(other)";
/// Sessions named as examples.
pub const MOST_EXAMPLES: usize = 3;
/// Entries of each list of an overview.
pub const MOST_ENTRIES: usize = 50;
/// Names of one topic that are told.
const MOST_MEMBERS: usize = 20;
/// Subjects shown for a reason.
const MOST_SUBJECTS: usize = 5;
/// Bots of a chain: its end, where the circle is.
const MOST_BOTS: usize = 16;
/// Characters of a label.
const LABEL_CHARACTERS: usize = 200;
/// Between the names of a label that is a list.
const BETWEEN_NAMES: &str = ", ";
/// Actions shown for a goal.
const MOST_ACTIONS: usize = 10;
pub const HOUR_MILLIS: i64 = 3_600_000;
const MINUTE_MILLIS: i64 = 60_000;
const PARTS: i64 = 10;
/// Confidences are added as whole numbers, so that their order does not matter.
const WHOLE_CONFIDENCE: f64 = 10_000.0;
/// Sessions of a topic, and of a guard, that are told apart: of more their number is told within some percent.
const TOPIC_SESSIONS: u16 = 256;
const GUARD_SESSIONS: u16 = 2048;
/// A topic asked about so often, and never answered better than this, is not documented.
const GAP_ASKED: u64 = 3;
pub(super) const GAP_CONFIDENCE: f64 = 0.5;
const NANOS: f64 = 1e9;

/// What a cell is about, and what its names and numbers mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// Guard, subject: decisions.
    Subject,
    /// `guard reason`, subject: decisions for that reason.
    Reason,
    /// Source bot, target bot: transfers.
    Edge,
    /// The chain as a JSON list, reason: `count`.
    Chain,
    /// Topic: `allowed` are queries; `count`, `sum`, `max` and histogram are confidences; the sessions are those that asked.
    Topic,
    /// Endpoint: `allowed` succeeded, `blocked` failed; `count`, `sum` and `max` are latencies; the histogram is failures
    /// by tenths of the hour.
    Call,
    /// Entity: `count` are hints.
    Entity,
    /// Budget: `blocked` are refusals; the newest figures.
    Budget,
    /// Goal, action: decisions; `count` are those of actions that are not on offer, `sum` those at the ceiling of all actions; the label
    /// is the goal's.
    Goal,
    /// Goal: the label is what is on offer.
    Offer,
    /// Guard: the sessions that asked it.
    Sessions,
}

impl Dimension {
    pub const ALL: [Self; 11] = [
        Self::Subject,
        Self::Reason,
        Self::Edge,
        Self::Chain,
        Self::Topic,
        Self::Call,
        Self::Entity,
        Self::Budget,
        Self::Goal,
        Self::Offer,
        Self::Sessions,
    ];

    /// Kept on disk: numbers are added, never changed.
    pub const fn number(self) -> u8 {
        match self {
            Self::Subject => 1,
            Self::Reason => 2,
            Self::Edge => 3,
            Self::Chain => 4,
            Self::Topic => 5,
            Self::Call => 6,
            Self::Entity => 7,
            Self::Budget => 8,
            Self::Sessions => 9,
            Self::Goal => 21,
            Self::Offer => 22,
        }
    }

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dimension| dimension.number() == number)
    }

    /// Whether names are bounded for each first name: those are guards and reasons, of which there are few, and the many
    /// topics of one guard must not push out the tasks of another.
    pub const fn is_bounded_by_first_name(self) -> bool {
        match self {
            Self::Subject | Self::Reason => true,
            Self::Edge
            | Self::Chain
            | Self::Topic
            | Self::Call
            | Self::Entity
            | Self::Budget
            | Self::Goal
            | Self::Offer
            | Self::Sessions => false,
        }
    }

    /// Where a name goes that has no room.
    pub fn other_names(self, first: &str) -> (&str, &str) {
        if self.is_bounded_by_first_name() {
            (first, OTHER)
        } else if self == Self::Edge {
            (OTHER, OTHER)
        } else {
            (OTHER, "")
        }
    }
}

/// Where a cell stands. `hour` is hours since the epoch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKey {
    pub hour: i64,
    pub tenant: Box<str>,
    pub dimension: Dimension,
    pub first: Box<str>,
    pub second: Box<str>,
}

/// A session to look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Example {
    pub at: i64,
    pub session: Box<str>,
}

/// A text from a session, which goes when the session goes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Label {
    pub at: i64,
    pub session: Box<str>,
    pub text: Box<str>,
}

/// An amount and its limit, as last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Figure {
    pub at: i64,
    pub spent: u64,
    pub limit: Option<u64>,
}

/// Numbers that can be added in any order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cell {
    pub allowed: u64,
    pub would_block: u64,
    pub blocked: u64,
    pub count: u64,
    pub sum: u64,
    pub max: u64,
    pub histogram: Option<[u32; 10]>,
    pub label: Option<Label>,
    /// The newest, each session once.
    pub examples: Vec<Example>,
    pub nanodollars: Option<Figure>,
    pub tokens: Option<Figure>,
    pub sessions: Sessions,
}

impl Cell {
    pub fn add(&mut self, other: &Self) {
        self.allowed += other.allowed;
        self.would_block += other.would_block;
        self.blocked += other.blocked;
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
        if let Some(more) = &other.histogram {
            for (mine, more) in self.histogram.get_or_insert_default().iter_mut().zip(more) {
                *mine = mine.saturating_add(*more);
            }
        }
        if other.label > self.label {
            self.label.clone_from(&other.label);
        }
        for example in &other.examples {
            self.example(example.at, &example.session);
        }
        self.nanodollars = self.nanodollars.max(other.nanodollars);
        self.tokens = self.tokens.max(other.tokens);
        self.sessions.add(&other.sessions);
    }

    /// Takes out what names a session that is gone, or is its number. Says whether there was something.
    pub fn forget(&mut self, is_gone: impl Fn(&str) -> bool, number: u64) -> bool {
        let before = self.examples.len();
        self.examples.retain(|example| !is_gone(&example.session));
        let label = self.label.take_if(|label| is_gone(&label.session));
        let was_counted = self.sessions.forget(number);
        label.is_some() || self.examples.len() < before || was_counted
    }

    fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Allowed => self.allowed += 1,
            Outcome::WouldBlock => self.would_block += 1,
            Outcome::Blocked => self.blocked += 1,
            // What is only told is no decision.
            Outcome::Recorded => {}
        }
    }

    fn example(&mut self, at: i64, session: &str) {
        if session.is_empty() {
            return;
        }
        if let Some(known) = self.examples.iter_mut().find(|known| *known.session == *session) {
            known.at = known.at.max(at);
        } else if self.examples.len() < MOST_EXAMPLES {
            self.examples.push(Example { at, session: session.into() });
        } else if let Some(oldest) = self.examples.last_mut().filter(|oldest| (oldest.at, &*oldest.session) < (at, session)) {
            *oldest = Example { at, session: session.into() };
        }
        self.examples.sort_unstable_by(|left, right| right.cmp(left));
    }

    fn tenth(&mut self, position: i64) {
        let slot = &mut self.histogram.get_or_insert_default()[position.clamp(0, PARTS - 1) as usize];
        *slot = slot.saturating_add(1);
    }

    fn confidence(&mut self, confidence: f64) {
        let whole = (confidence.clamp(0.0, 1.0) * WHOLE_CONFIDENCE).round() as u64;
        self.count += 1;
        self.sum += whole;
        self.max = self.max.max(whole);
        self.tenth((confidence * PARTS as f64) as i64);
    }

    fn describe(&mut self, at: i64, session: &str, text: &str) {
        let text = runguard_core::text::cut(text, LABEL_CHARACTERS);
        let is_newer = |known: &Label| (known.at, &*known.session, &*known.text) < (at, session, text);
        if !text.is_empty() && !session.is_empty() && self.label.as_ref().is_none_or(is_newer) {
            self.label = Some(Label { at, session: session.into(), text: text.into() });
        }
    }
}

/// Cells of the rows folded so far.
#[derive(Debug, Clone, Default)]
pub struct Digest {
    cells: HashedMap<u128, (CellKey, Cell)>,
    /// Names by hour, tenant, dimension and guard.
    names: HashedMap<u128, usize>,
    scratch: Vec<u8>,
}

impl Digest {
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    pub fn into_cells(self) -> impl Iterator<Item = (CellKey, Cell)> {
        self.cells.into_values()
    }

    /// Adds a cell, as another digest has it.
    pub fn add(&mut self, place: &CellKey, cell: &Cell) {
        self.cell(place.hour, &place.tenant, place.dimension, &place.first, &place.second).add(cell);
    }

    /// Of a row without a session numbers are kept, and neither examples nor texts. `number` is the session's, as its store
    /// makes it of the name.
    pub fn fold(&mut self, row: &RowRef<'_>, number: u64) {
        // An operator's change is no decision, and what a later version's guard means is not known.
        let (Some(_), Some(outcome)) = (row.guard.known(), row.outcome.answered()) else { return };
        let shows = logged::shows(row);
        if !row.session.is_empty() {
            self.of(row, Dimension::Sessions, row.guard.code(), "").sessions.see(number, 0, GUARD_SESSIONS);
        }
        if row.kind == Kind::Check {
            self.decision(row, outcome, shows.topic.as_ref().map_or(row.subject, |topic| &topic.name));
        }
        if let Some(topic) = &shows.topic {
            self.topic(row, number, outcome, topic);
        }
        if let Some(handover) = &shows.handover {
            self.handover(row, outcome, handover);
        }
        if let Some(entity) = &shows.entity {
            self.entity(row, outcome, entity);
        }
        if let Some(goal) = &shows.goal {
            self.goal(row, outcome, goal);
        }
        if let Some(call) = shows.call {
            self.call(row, call);
        }
        if let Some(spending) = &shows.spending {
            self.spending(row, outcome, spending);
        }
    }

    fn decision(&mut self, row: &RowRef<'_>, outcome: Outcome, subject: &str) {
        self.of(row, Dimension::Subject, row.guard.code(), subject).outcome(outcome);
        if let Some(reason) = row.reason_code() {
            let named = reason_name(row.guard.code(), reason);
            let cell = self.of(row, Dimension::Reason, &named, subject);
            cell.outcome(outcome);
            cell.example(row.at, row.session);
        }
    }

    fn handover(&mut self, row: &RowRef<'_>, outcome: Outcome, handover: &logged::Handover<'_>) {
        if !handover.source.is_empty() {
            self.of(row, Dimension::Edge, &handover.source, row.subject).outcome(outcome);
        }
        let end = &handover.chain[handover.chain.len().saturating_sub(MOST_BOTS)..];
        if let (Some(reason), false, Ok(written)) = (row.reason_code(), end.is_empty(), serde_json::to_string(end)) {
            let cell = self.of(row, Dimension::Chain, &written, reason);
            cell.count += 1;
            cell.example(row.at, row.session);
        }
    }

    fn topic(&mut self, row: &RowRef<'_>, number: u64, outcome: Outcome, topic: &logged::Topic<'_>) {
        let cell = self.of(row, Dimension::Topic, &topic.name, "");
        if !row.session.is_empty() {
            let marks = topic.confidence.map_or(0, |confidence| if confidence < GAP_CONFIDENCE { sessions::LOW } else { sessions::GOOD });
            cell.sessions.see(number, marks, TOPIC_SESSIONS);
        }
        if outcome == Outcome::Blocked {
            cell.blocked += 1;
        } else if topic.counts {
            cell.allowed += 1;
        }
        if let Some(confidence) = topic.confidence {
            cell.confidence(confidence);
        }
        cell.describe(row.at, row.session, &topic.text);
        let is_worth_a_look = match outcome {
            Outcome::Allowed => false,
            Outcome::WouldBlock | Outcome::Blocked => true,
            Outcome::Recorded => topic.confidence.is_some_and(|confidence| confidence < GAP_CONFIDENCE),
        };
        if is_worth_a_look {
            cell.example(row.at, row.session);
        }
    }

    fn call(&mut self, row: &RowRef<'_>, call: logged::CallEnd) {
        let cell = self.of(row, Dimension::Call, row.subject, "");
        if call.is_failure {
            cell.blocked += 1;
            cell.tenth(row.at.rem_euclid(HOUR_MILLIS) * PARTS / HOUR_MILLIS);
        } else {
            cell.allowed += 1;
        }
        if let Some(latency) = call.latency_ms {
            cell.count += 1;
            cell.sum = cell.sum.saturating_add(latency);
            cell.max = cell.max.max(latency);
        }
    }

    fn entity(&mut self, row: &RowRef<'_>, outcome: Outcome, entity: &logged::Entity<'_>) {
        let cell = self.of(row, Dimension::Entity, &entity.name, "");
        cell.outcome(outcome);
        if entity.is_hint {
            cell.count += 1;
            cell.example(row.at, row.session);
        }
    }

    fn goal(&mut self, row: &RowRef<'_>, outcome: Outcome, goal: &logged::Goal<'_>) {
        let cell = self.of(row, Dimension::Goal, &goal.name, row.subject);
        cell.outcome(outcome);
        cell.count += u64::from(!goal.is_offered);
        cell.sum += u64::from(row.reason_code() == Some(Reason::TotalActionCeiling.code()));
        cell.describe(row.at, row.session, &goal.text);
        if outcome != Outcome::Allowed || !goal.is_offered {
            cell.example(row.at, row.session);
        }
        if !goal.offered.is_empty() {
            self.of(row, Dimension::Offer, &goal.name, "").describe(row.at, row.session, &goal.offered.join(BETWEEN_NAMES));
        }
    }

    fn spending(&mut self, row: &RowRef<'_>, outcome: Outcome, spending: &logged::Spending<'_>) {
        let cell = self.of(row, Dimension::Budget, row.subject, "");
        cell.outcome(outcome);
        // What a refusal says of the parent or of a scope is not this budget's.
        if spending.account != logged::Account::Own {
            return;
        }
        let nanos = |dollars: f64| (dollars * NANOS).round() as u64;
        let money = spending.spent_usd.map(|spent| Figure { at: row.at, spent: nanos(spent), limit: spending.limit_usd.map(nanos) });
        let tokens = spending.spent_tokens.map(|spent| Figure { at: row.at, spent, limit: spending.limit_tokens });
        cell.nanodollars = cell.nanodollars.max(money);
        cell.tokens = cell.tokens.max(tokens);
    }

    fn of(&mut self, row: &RowRef<'_>, dimension: Dimension, first: &str, second: &str) -> &mut Cell {
        self.cell(row.at.div_euclid(HOUR_MILLIS), row.tenant, dimension, first, second)
    }

    fn cell(&mut self, hour: i64, tenant: &str, dimension: Dimension, first: &str, second: &str) -> &mut Cell {
        let mut hash = self.hash(hour, tenant, dimension, &[first, second]);
        let (mut first, mut second) = (first, second);
        if !self.cells.contains_key(&hash) {
            let group = if dimension.is_bounded_by_first_name() { first } else { "" };
            let group = self.hash(hour, tenant, dimension, &[group]);
            let names = self.names.entry(group).or_default();
            if *names >= MOST_NAMES {
                (first, second) = dimension.other_names(first);
                hash = self.hash(hour, tenant, dimension, &[first, second]);
            } else {
                *names += 1;
            }
        }
        let place = || CellKey { hour, tenant: tenant.into(), dimension, first: first.into(), second: second.into() };
        &mut self.cells.entry(hash).or_insert_with(|| (place(), Cell::default())).1
    }

    fn hash(&mut self, hour: i64, tenant: &str, dimension: Dimension, names: &[&str]) -> u128 {
        self.scratch.clear();
        self.scratch.extend_from_slice(&hour.to_le_bytes());
        self.scratch.push(dimension.number());
        for text in std::iter::once(&tenant).chain(names) {
            // With its length, so that no two lists of names look the same.
            self.scratch.extend_from_slice(&(text.len() as u32).to_le_bytes());
            self.scratch.extend_from_slice(text.as_bytes());
        }
        xxh3_128(&self.scratch)
    }
}

fn reason_name(guard: &str, reason: &str) -> String {
    [guard, " ", reason].concat()
}

/// What a block spares, and what that is worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Savings {
    /// Billed operations that one block spares; a guard that is not named spares one.
    pub operations: BTreeMap<GuardName, u32>,
    pub credits_per_operation: f64,
    pub usd_per_operation: f64,
}

impl Default for Savings {
    fn default() -> Self {
        // A query of a knowledge base is a retrieval and a generation. No price is made up: dollars are told once one is set.
        Self { operations: BTreeMap::from([(GuardName::KbRequery, 2)]), credits_per_operation: 1.0, usd_per_operation: 0.0 }
    }
}

impl Savings {
    pub fn operations_of(&self, guard: GuardName) -> u32 {
        self.operations.get(&guard).copied().unwrap_or(1)
    }
}

/// Which time, in which steps, and of what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Range {
    pub since_ms: i64,
    pub until_ms: i64,
    pub bucket_seconds: u64,
    pub filters: Filters,
}

impl Range {
    fn bucket_millis(&self) -> i64 {
        (self.bucket_seconds.clamp(1, 86_400 * 366) * 1000) as i64
    }

    /// How many buckets the range touches.
    pub fn buckets(&self) -> i64 {
        if self.until_ms <= self.since_ms {
            return 0;
        }
        let bucket = self.bucket_millis();
        (self.until_ms - 1).div_euclid(bucket).saturating_sub(self.since_ms.div_euclid(bucket)).saturating_add(1)
    }

    /// The hours whose cells belong to it, first and last.
    pub fn hours(&self) -> (i64, i64) {
        (self.since_ms.div_euclid(HOUR_MILLIS), self.until_ms.saturating_sub(1).div_euclid(HOUR_MILLIS))
    }

    fn position(&self, at: i64) -> Option<usize> {
        let bucket = self.bucket_millis();
        let position = at.div_euclid(bucket) - self.since_ms.div_euclid(bucket);
        // An hour may have begun before the range did.
        Some(position.max(0)).filter(|position| *position < self.buckets()).map(|position| position as usize)
    }

    /// Whether panels of this guard are asked for.
    fn wants(&self, guard: GuardName) -> bool {
        let of_reason = self.filters.reason.as_deref().and_then(Reason::from_code).is_none_or(|reason| reason.guard() == guard);
        of_reason && self.filters.guard.as_deref().is_none_or(|wanted| wanted == guard.code())
    }

    fn wants_reason(&self, reason: &str) -> bool {
        self.filters.reason.as_deref().is_none_or(|wanted| wanted == reason)
    }
}

/// Turns counts and cells into an overview. Counts are of the range exactly, cells of the hours it touches. With a filter
/// by reason the panels of its guard are shown, and of them subjects and chains are only those of that reason.
///
/// `since` and `until` as texts are left to who knows how to write them.
pub fn overview(range: &Range, counts: &[RowCount], cells: impl IntoIterator<Item = (CellKey, Cell)>, savings: &Savings) -> Overview {
    let mut shown = Overview {
        since_ms: range.since_ms,
        until_ms: range.until_ms,
        bucket_seconds: range.bucket_seconds,
        filters: range.filters.clone(),
        ..Overview::default()
    };
    let mut reasons = series(&mut shown, range, counts, savings);
    let gathered = Gathered::of(range, cells);
    gathered.subjects(&mut shown, range, &mut reasons);
    shown.reasons = heaviest(reasons.into_values(), |reason| {
        (reason.blocked + reason.would_block, Reverse((reason.guard.clone(), reason.reason.clone())))
    });
    gathered.panels(&mut shown, range);
    shown
}

type Reasons = BTreeMap<(String, String), ReasonCount>;

fn series(shown: &mut Overview, range: &Range, counts: &[RowCount], savings: &Savings) -> Reasons {
    let buckets = range.buckets().max(0) as usize;
    let first = range.since_ms.div_euclid(range.bucket_millis()).saturating_mul(range.bucket_millis());
    shown.series.starts_ms = (0..buckets as i64).map(|position| first.saturating_add(position * range.bucket_millis())).collect();
    let mut reasons = Reasons::new();
    let totals = &mut shown.totals;
    for count in counts
        .iter()
        .filter(|count| range.filters.reason.is_none() || range.filters.reason.as_deref() == count.reason.as_ref().map(Named::code))
    {
        let Some(outcome) = count.outcome.answered().filter(|outcome| *outcome != Outcome::Recorded) else { continue };
        let Some(position) = range.position(count.minute.saturating_mul(MINUTE_MILLIS)) else { continue };
        let empty = || Outcomes { allowed: vec![0; buckets], would_block: vec![0; buckets], blocked: vec![0; buckets] };
        let by_guard = shown.series.by_guard.entry(count.guard.code().to_owned()).or_insert_with(empty);
        totals.decisions += count.count;
        match outcome {
            Outcome::Allowed => {
                by_guard.allowed[position] += count.count;
                totals.allowed += count.count;
            }
            Outcome::WouldBlock => {
                by_guard.would_block[position] += count.count;
                totals.would_block += count.count;
            }
            Outcome::Blocked => {
                by_guard.blocked[position] += count.count;
                totals.blocked += count.count;
                let each = count.guard.known().map_or(1, |guard| savings.operations_of(guard));
                totals.operations_saved += count.count * u64::from(each);
            }
            Outcome::Recorded => {}
        }
        if let Some(reason) = &count.reason {
            let (guard, reason) = (count.guard.code().to_owned(), reason.code().to_owned());
            let entry =
                reasons.entry((guard.clone(), reason.clone())).or_insert_with(|| ReasonCount { guard, reason, ..ReasonCount::default() });
            match outcome {
                Outcome::Allowed | Outcome::Recorded => {}
                Outcome::WouldBlock => entry.would_block += count.count,
                Outcome::Blocked => entry.blocked += count.count,
            }
        }
    }
    totals.credits_saved = totals.operations_saved as f64 * savings.credits_per_operation;
    totals.usd_saved = totals.operations_saved as f64 * savings.usd_per_operation;
    reasons
}

/// The heaviest entries, heaviest first.
fn heaviest<T, W: Ord>(entries: impl IntoIterator<Item = T>, weight: impl Fn(&T) -> W) -> Vec<T> {
    let mut entries: Vec<T> = entries.into_iter().collect();
    entries.sort_by_cached_key(|entry| Reverse(weight(entry)));
    entries.truncate(MOST_ENTRIES);
    entries
}

fn sessions(cell: &Cell) -> Vec<String> {
    cell.examples.iter().map(|example| example.session.to_string()).collect()
}

type Names = (Box<str>, Box<str>);

/// The cells of the range, added up over hours and tenants.
#[derive(Default)]
struct Gathered {
    cells: BTreeMap<Dimension, BTreeMap<Names, Cell>>,
    by_hour_of_day: BTreeMap<Names, [u64; 24]>,
    failures: BTreeMap<Box<str>, Vec<u64>>,
}

impl Gathered {
    fn of(range: &Range, cells: impl IntoIterator<Item = (CellKey, Cell)>) -> Self {
        let mut gathered = Self::default();
        let (first, last) = range.hours();
        let mut by_hash: HashedMap<u128, (Dimension, Names, Cell)> = HashedMap::default();
        let mut scratch = Digest::default();
        for (place, cell) in cells {
            let is_of_tenant = range.filters.tenant.as_deref().is_none_or(|tenant| tenant == &*place.tenant);
            if !(first..=last).contains(&place.hour) || !is_of_tenant {
                continue;
            }
            match place.dimension {
                Dimension::Subject => gathered.hour_of_day(&place, &cell),
                Dimension::Call => gathered.failures(range, &place, &cell),
                Dimension::Reason
                | Dimension::Edge
                | Dimension::Chain
                | Dimension::Topic
                | Dimension::Entity
                | Dimension::Budget
                | Dimension::Goal
                | Dimension::Offer
                | Dimension::Sessions => {}
            }
            let hash = scratch.hash(0, "", place.dimension, &[&place.first, &place.second]);
            by_hash
                .entry(hash)
                .and_modify(|(_, _, sum)| sum.add(&cell))
                .or_insert_with(|| (place.dimension, (place.first, place.second), cell));
        }
        for (dimension, names, cell) in by_hash.into_values() {
            gathered.cells.entry(dimension).or_default().insert(names, cell);
        }
        gathered
    }

    /// Of guards that ask the user, or the model, once more.
    fn hour_of_day(&mut self, place: &CellKey, cell: &Cell) {
        let guard = GuardName::from_code(&place.first);
        if guard.is_some_and(|guard| GuardEntry::of(guard).step == GuardedStep::Question) {
            let by_hour = self.by_hour_of_day.entry((place.first.clone(), place.second.clone())).or_default();
            by_hour[place.hour.rem_euclid(24) as usize] += cell.allowed + cell.would_block + cell.blocked;
        }
    }

    /// By tenths of an hour, put into the bucket in which the tenth begins.
    fn failures(&mut self, range: &Range, place: &CellKey, cell: &Cell) {
        let buckets = range.buckets().max(0) as usize;
        let over_time = self.failures.entry(place.first.clone()).or_insert_with(|| vec![0; buckets]);
        for (tenth, failures) in cell.histogram.iter().flatten().enumerate() {
            let begins = place.hour * HOUR_MILLIS + tenth as i64 * HOUR_MILLIS / PARTS;
            if let Some(position) = range.position(begins) {
                over_time[position] += u64::from(*failures);
            }
        }
    }

    fn each(&self, dimension: Dimension) -> impl Iterator<Item = (&str, &str, &Cell)> {
        self.cells.get(&dimension).into_iter().flatten().map(|((first, second), cell)| (&**first, &**second, cell))
    }

    /// Sessions that asked a guard.
    fn sessions_of(&self, guard: GuardName) -> u64 {
        let mut all = Sessions::default();
        for (_, _, cell) in self.each(Dimension::Sessions).filter(|(named, ..)| *named == guard.code()) {
            all.add(&cell.sessions);
        }
        all.count()
    }

    /// Who is behind the reasons, and the subjects themselves.
    fn subjects(&self, shown: &mut Overview, range: &Range, reasons: &mut Reasons) {
        let mut of_subject: BTreeMap<(&str, &str), Cell> = BTreeMap::new();
        let mut of_reason: BTreeMap<(&str, &str), (Cell, Vec<Counted>)> = BTreeMap::new();
        for (named, subject, cell) in self.each(Dimension::Reason) {
            let Some((guard, reason)) = named.split_once(' ') else { continue };
            if !range.wants_reason(reason) || !GuardName::from_code(guard).is_some_and(|guard| range.wants(guard)) {
                continue;
            }
            of_subject.entry((guard, subject)).or_default().add(cell);
            let (sum, counted) = of_reason.entry((guard, reason)).or_default();
            sum.add(cell);
            counted.push(Counted { subject: subject.to_owned(), count: cell.blocked + cell.would_block });
        }
        for ((guard, reason), (sum, mut counted)) in of_reason {
            if let Some(entry) = reasons.get_mut(&(guard.to_owned(), reason.to_owned())) {
                counted.sort_by(|left, right| (right.count, &left.subject).cmp(&(left.count, &right.subject)));
                counted.truncate(MOST_SUBJECTS);
                entry.subjects = counted;
                entry.sessions = sessions(&sum);
            }
        }
        let empty = Cell::default();
        let subject = |guard: &str, subject: &str, counts: &Cell, examples: &Cell| SubjectCount {
            guard: guard.to_owned(),
            subject: subject.to_owned(),
            allowed: counts.allowed,
            would_block: counts.would_block,
            blocked: counts.blocked,
            sessions: sessions(examples),
        };
        let all: Vec<SubjectCount> = if range.filters.reason.is_some() {
            of_subject.iter().map(|((guard, name), cell)| subject(guard, name, cell, cell)).collect()
        } else {
            self.each(Dimension::Subject)
                .filter(|(guard, ..)| GuardName::from_code(guard).is_some_and(|guard| range.wants(guard)))
                .map(|(guard, name, cell)| subject(guard, name, cell, of_subject.get(&(guard, name)).unwrap_or(&empty)))
                .collect()
        };
        shown.subjects = heaviest(all, |entry| {
            (entry.blocked + entry.would_block, entry.allowed, Reverse((entry.guard.clone(), entry.subject.clone())))
        });
    }

    fn panels(&self, shown: &mut Overview, range: &Range) {
        if range.wants(GuardName::Handoff) {
            self.handoffs(shown, range);
        }
        if range.wants(GuardName::KbRequery) {
            shown.topic_sessions = self.sessions_of(GuardName::KbRequery);
            let topics = joined::join(self.each(Dimension::Topic).map(|(topic, _, cell)| (topic, cell)));
            shown.topics = heaviest(topics.iter().map(|topic| topic_shown(topic, shown.topic_sessions)), |topic| {
                (topic.queries + topic.blocked, Reverse(topic.topic.clone()))
            });
        }
        if range.wants(GuardName::AgentAction) {
            self.actions(shown);
            self.goals(shown);
        }
        if range.wants(GuardName::ApiCircuit) {
            self.endpoints(shown, range);
        }
        if range.wants(GuardName::CaptureSlotFill) {
            let entities = self.each(Dimension::Entity).map(|(entity, _, cell)| Entity {
                entity: entity.to_owned(),
                hints: cell.count,
                blocked: cell.blocked,
                sessions: sessions(cell),
            });
            shown.entities = heaviest(entities, |entity| (entity.hints, entity.blocked, Reverse(entity.entity.clone())));
        }
        if range.wants(GuardName::Budget) {
            let budgets = self.each(Dimension::Budget).map(|(budget, _, cell)| budget_shown(budget, cell));
            shown.budgets = heaviest(budgets, |budget| {
                let used = budget.limit_usd.map_or(0, |limit| (budget.spent_usd / limit.max(f64::EPSILON) * WHOLE_CONFIDENCE) as u64);
                (budget.refused, used, Reverse(budget.budget.clone()))
            });
        }
        let hours =
            self.by_hour_of_day.iter().filter(|((guard, _), _)| GuardName::from_code(guard).is_some_and(|guard| range.wants(guard))).map(
                |((guard, subject), by_hour)| Hours {
                    guard: guard.to_string(),
                    subject: subject.to_string(),
                    by_hour_of_day: *by_hour,
                    total: by_hour.iter().sum(),
                },
            );
        shown.hours = heaviest(hours, |hours| (hours.total, Reverse((hours.guard.clone(), hours.subject.clone()))));
    }

    fn handoffs(&self, shown: &mut Overview, range: &Range) {
        let edges = self.each(Dimension::Edge).map(|(source, target, cell)| Edge {
            source: source.to_owned(),
            target: target.to_owned(),
            // What observe mode let pass has happened.
            allowed: cell.allowed + cell.would_block,
            blocked: cell.blocked,
        });
        shown.handoffs.edges =
            heaviest(edges, |edge| (edge.blocked + edge.allowed, edge.blocked, Reverse((edge.source.clone(), edge.target.clone()))));
        let mut chains: BTreeMap<&str, Cell> = BTreeMap::new();
        for (chain, _, cell) in self.each(Dimension::Chain).filter(|(_, reason, _)| range.wants_reason(reason)) {
            chains.entry(chain).or_default().add(cell);
        }
        let chains = chains.into_iter().map(|(chain, cell)| Chain {
            chain: serde_json::from_str(chain).unwrap_or_else(|_| vec![chain.to_owned()]),
            count: cell.count,
            sessions: sessions(&cell),
        });
        shown.handoffs.chains = heaviest(chains, |chain| (chain.count, Reverse(chain.chain.clone())));
    }

    fn actions(&self, shown: &mut Overview) {
        let actions: Vec<Action> = self
            .each(Dimension::Subject)
            .filter(|(guard, ..)| *guard == GuardName::AgentAction.code())
            .map(|(_, action, cell)| Action {
                action: action.to_owned(),
                runs: cell.allowed + cell.would_block,
                blocked: cell.blocked,
                share: 0.0,
            })
            .collect();
        let runs: Vec<u64> = actions.iter().map(|action| action.runs).collect();
        let total: u64 = runs.iter().sum();
        shown.action_skew = skew(runs);
        shown.actions = heaviest(actions, |action| (action.runs, action.blocked, Reverse(action.action.clone())));
        for action in &mut shown.actions {
            action.share = if total == 0 { 0.0 } else { action.runs as f64 / total as f64 };
        }
    }

    fn goals(&self, shown: &mut Overview) {
        let mut goals: BTreeMap<&str, (Cell, Vec<GoalAction>)> = BTreeMap::new();
        for (goal, action, cell) in self.each(Dimension::Goal).filter(|(goal, ..)| *goal != OTHER) {
            let (sum, actions) = goals.entry(goal).or_default();
            sum.add(cell);
            actions.push(GoalAction {
                action: action.to_owned(),
                runs: cell.allowed + cell.would_block,
                spirals: cell.blocked + cell.would_block,
                not_offered: cell.count,
            });
        }
        let offers: BTreeMap<&str, &Cell> = self.each(Dimension::Offer).map(|(goal, _, cell)| (goal, cell)).collect();
        let goals = goals.into_iter().map(|(goal, (sum, mut actions))| {
            actions.sort_by(|left, right| {
                (right.spirals, right.not_offered, right.runs, &left.action).cmp(&(
                    left.spirals,
                    left.not_offered,
                    left.runs,
                    &right.action,
                ))
            });
            actions.truncate(MOST_ACTIONS);
            Goal {
                goal: goal.to_owned(),
                label: sum.label.as_ref().map(|label| label.text.to_string()).unwrap_or_default(),
                runs: sum.allowed + sum.would_block,
                spirals: sum.blocked + sum.would_block,
                ceilings: sum.sum,
                actions,
                offered: offers.get(goal).and_then(|offer| offer.label.as_ref()).map(|label| names_of(&label.text)).unwrap_or_default(),
                sessions: sessions(&sum),
            }
        });
        shown.goals = heaviest(goals, |goal| (goal.spirals, goal.runs, Reverse(goal.goal.clone())));
    }

    fn endpoints(&self, shown: &mut Overview, range: &Range) {
        let mut endpoints: BTreeMap<&str, Endpoint> = BTreeMap::new();
        for (endpoint, _, cell) in self.each(Dimension::Call) {
            let calls = cell.allowed + cell.blocked;
            endpoints.insert(
                endpoint,
                Endpoint {
                    endpoint: endpoint.to_owned(),
                    calls,
                    failures: cell.blocked,
                    failure_rate: cell.blocked as f64 / calls.max(1) as f64,
                    mean_ms: (cell.count > 0).then(|| cell.sum as f64 / cell.count as f64),
                    max_ms: (cell.count > 0).then_some(cell.max as f64),
                    blocked: 0,
                    failures_over_time: self.failures.get(endpoint).cloned().unwrap_or_default(),
                },
            );
        }
        for (_, endpoint, cell) in self.each(Dimension::Subject).filter(|(guard, ..)| *guard == GuardName::ApiCircuit.code()) {
            let entry = endpoints.entry(endpoint).or_insert_with(|| Endpoint {
                endpoint: endpoint.to_owned(),
                failures_over_time: vec![0; range.buckets().max(0) as usize],
                ..Endpoint::default()
            });
            entry.blocked = cell.blocked;
        }
        shown.endpoints = heaviest(endpoints.into_values(), |endpoint| {
            (endpoint.failures, endpoint.blocked, endpoint.calls, Reverse(endpoint.endpoint.clone()))
        });
    }
}

fn topic_shown(topic: &joined::Joined<'_>, all_sessions: u64) -> Topic {
    let cell = &topic.cell;
    let best = cell.max as f64 / WHOLE_CONFIDENCE;
    let low = cell.sessions.count_of(|marks| marks & sessions::LOW > 0);
    Topic {
        topic: topic.name.to_owned(),
        label: topic.label.clone(),
        phrasings: topic.members.len() as u64,
        also: topic.also.clone(),
        members: topic.members.iter().take(MOST_MEMBERS).map(|name| (*name).to_owned()).collect(),
        queries: cell.allowed,
        blocked: cell.blocked,
        best_confidence: best,
        mean_confidence: cell.sum as f64 / WHOLE_CONFIDENCE / cell.count.max(1) as f64,
        histogram: cell.histogram.unwrap_or_default().map(u64::from),
        is_gap: topic.name != OTHER && cell.count > 0 && cell.allowed + cell.blocked >= GAP_ASKED && best < GAP_CONFIDENCE,
        asked_sessions: cell.sessions.count(),
        low_sessions: low,
        unanswered_sessions: cell.sessions.count_of(|marks| marks == sessions::LOW),
        // Beyond the bounds both are told about, and a part is never more than the whole.
        low_share: (low as f64 / all_sessions.max(1) as f64).min(1.0),
        sessions: sessions(cell),
    }
}

/// The names of a label that is a list. The last one of a label that was cut is not whole.
fn names_of(label: &str) -> Vec<String> {
    let is_cut = label.chars().count() == LABEL_CHARACTERS;
    let whole = if is_cut { label.rsplit_once(BETWEEN_NAMES).map_or("", |(whole, _)| whole) } else { label };
    whole.split(BETWEEN_NAMES).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn budget_shown(budget: &str, cell: &Cell) -> BudgetSeen {
    let dollars = |nanos: u64| nanos as f64 / NANOS;
    BudgetSeen {
        budget: budget.to_owned(),
        spent_usd: cell.nanodollars.map_or(0.0, |money| dollars(money.spent)),
        limit_usd: cell.nanodollars.and_then(|money| money.limit).map(dollars),
        tokens: cell.tokens.map_or(0, |tokens| tokens.spent),
        token_limit: cell.tokens.and_then(|tokens| tokens.limit),
        refused: cell.blocked,
    }
}

/// Gini's coefficient: 0 when all are equal, towards 1 when one has all.
fn skew(mut runs: Vec<u64>) -> f64 {
    runs.sort_unstable();
    let (count, total) = (runs.len() as f64, runs.iter().sum::<u64>() as f64);
    if total == 0.0 {
        return 0.0;
    }
    let weighted: f64 = runs.iter().enumerate().map(|(rank, runs)| (rank as f64 + 1.0) * *runs as f64).sum();
    (2.0 * weighted / (count * total) - (count + 1.0) / count).max(0.0)
}

#[cfg(test)]
mod tests;
