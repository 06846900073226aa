//! Rows of the log folded into small cells, and cells turned into an [`Overview`].
//!
//! A cell counts what one name did in one hour of one tenant. Everything in it can be added in any order (whole numbers,
//! maxima, the newest of something), so a log may be folded in pieces, on the fly or after a crash, and the sum is the
//! same. Texts are parsed only for the guards whose panels need them; most rows cost two look-ups by hash.
//!
//! Names are bounded by hour, tenant, dimension and guard. Which names are kept beyond the bound depends on who comes
//! first; that nothing is lost from the sums does not: the rest is counted under [`OTHER`].

mod joined;
mod overview;
mod sessions;
pub mod spend;

pub use self::joined::is_digest;
pub use self::overview::{Range, Savings, overview};
use super::session_list::SessionSeen;
use runguard_core::hashed::HashedMap;
use runguard_core::reason::Reason;
use runguard_core::row::{Kind, Outcome, RowRef};
pub use runguard_core::time::HOUR_MILLIS;
use runguard_core::time::MINUTE_MILLIS;
use runguard_guards::lengths::Length;
use runguard_guards::logged;
use serde::{Deserialize, Serialize};
pub use sessions::Sessions;
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
    /// What of (all, a model, a key, …), its name: what was spent on model calls.
    Spend,
    /// Run: what was spent on its model calls, and how it stands.
    Run,
}

impl Dimension {
    pub const ALL: [Self; 13] = [
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
        Self::Spend,
        Self::Run,
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
            Self::Spend => 23,
            Self::Run => 24,
        }
    }

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dimension| dimension.number() == number)
    }

    /// Whether names are bounded for each first name: those are guards and reasons, of which there are few, and the many
    /// topics of one guard must not push out the tasks of another.
    pub const fn is_bounded_by_first_name(self) -> bool {
        match self {
            Self::Subject | Self::Reason | Self::Spend => true,
            Self::Edge
            | Self::Chain
            | Self::Topic
            | Self::Call
            | Self::Entity
            | Self::Budget
            | Self::Goal
            | Self::Offer
            | Self::Sessions
            | Self::Run => false,
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

/// What an overview is made of.
pub const OF_OVERVIEW: [Dimension; 11] = [
    Dimension::Subject,
    Dimension::Reason,
    Dimension::Edge,
    Dimension::Chain,
    Dimension::Topic,
    Dimension::Call,
    Dimension::Entity,
    Dimension::Budget,
    Dimension::Goal,
    Dimension::Offer,
    Dimension::Sessions,
];

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
    pub spend: Option<Box<spend::Spend>>,
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
        if let Some(more) = &other.spend {
            self.spend.get_or_insert_default().add(more);
        }
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
    seen: HashedMap<u128, SessionSeen>,
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

    /// The sessions of the rows folded so far, each once.
    pub fn take_sessions(&mut self) -> impl Iterator<Item = SessionSeen> + use<> {
        std::mem::take(&mut self.seen).into_values()
    }

    /// Adds a cell, as another digest has it.
    pub fn add(&mut self, place: &CellKey, cell: &Cell) {
        self.cell(place.hour, &place.tenant, place.dimension, &place.first, &place.second).add(cell);
    }

    /// Of a row without a session numbers are kept, and neither examples nor texts. `number` is the session's, as its store
    /// makes it of the name.
    pub fn fold(&mut self, row: &RowRef<'_>, number: u64) {
        if spend::is_control(row) {
            self.control(row);
        }
        // An operator's change is no decision, and what a later version's guard means is not known.
        let (Some(_), Some(outcome)) = (row.guard.known(), row.outcome.answered()) else { return };
        let shows = logged::shows(row);
        if !row.session.is_empty() {
            self.of(row, Dimension::Sessions, row.guard.code(), "").sessions.see(number, 0, GUARD_SESSIONS);
            self.see(row, outcome, shows.spending.as_ref().map_or(0, spend::paid_nanodollars), shows.length.clone());
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
            self.paid(row, outcome, spending);
        }
        if let Some(run) = &shows.run {
            self.run(row, outcome, run);
        }
    }

    /// What the list of sessions tells of one.
    fn see(&mut self, row: &RowRef<'_>, outcome: Outcome, nanodollars: u64, length: Option<Length>) {
        self.scratch.clear();
        for text in [row.tenant, row.session] {
            add_text(&mut self.scratch, text);
        }
        let seen = self.seen.entry(xxh3_128(&self.scratch)).or_insert_with(|| SessionSeen::first(row.tenant, row.session, row.at));
        seen.add_row(row, outcome, nanodollars, length);
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
            add_text(&mut self.scratch, text);
        }
        xxh3_128(&self.scratch)
    }
}

/// With its length, so that no two lists of names look the same.
fn add_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn reason_name(guard: &str, reason: &str) -> String {
    [guard, " ", reason].concat()
}

#[cfg(test)]
mod tests;
