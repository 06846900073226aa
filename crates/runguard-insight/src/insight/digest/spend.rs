//! What model calls cost, in sums; and of each run how it stands.
//!
//! What is paid is told by budgets, what is refused by budgets and by the guard of runs. A call that is asked for again, for less or after a
//! wait, says so: each time it asks again takes one refusal back, so that a call counts once however often it asked.

use super::{Cell, Digest, Dimension, NANOS, OTHER};
use runguard_core::ledger::Act;
use runguard_core::reason::GuardName;
use runguard_core::reason::Reason;
use runguard_core::row::{Action, Kind, Outcome, RowRef};
use runguard_guards::input::PassedCall;
use runguard_guards::logged::{RunSeen, Spending};
use serde::{Deserialize, Serialize};

/// First names of [`Dimension::Spend`].
pub const TOTAL: &str = "total";
pub const MODEL: &str = "model";
pub const KEY: &str = "key";
pub const UPSTREAM: &str = "upstream";
/// Scopes that requests name themselves: label, a blank, name.
pub const SCOPE: &str = "scope";

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spend {
    /// Paid.
    pub calls: u64,
    /// Refusals, and how many of them asked again.
    refusals: u64,
    again: u64,
    pub nanodollars: u64,
    /// Booked because nobody settled it in its time; and what of that was settled later, in its place.
    overdue: u64,
    overdue_settled: u64,
    pub input: u64,
    pub output: u64,
    pub cached: u64,
    pub cache_writes: u64,
    /// What runs did between their calls.
    pub steps: u64,
    /// Where it is a run's.
    pub run: Option<RunCell>,
}

/// How a run stands: the newest word on each thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCell {
    pub first_seen: i64,
    pub last_seen: i64,
    pub model: Option<Newest<Box<str>>>,
    pub key: Option<Newest<Box<str>>>,
    pub upstream: Option<Newest<Box<str>>>,
    pub found_by: Option<Newest<Box<str>>>,
    /// The latest word of a guard.
    pub heard: Option<Newest<Heard>>,
    /// That of an operator.
    pub control: Option<Newest<Control>>,
    /// How often something was set aside, and how often somebody said what became of it.
    pub set_aside: u64,
    pub settled: u64,
}

/// What a run was told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Heard {
    MayGoOn,
    Refused {
        reason: Box<str>,
        /// When it is over by itself.
        until: Option<i64>,
    },
}

/// What an operator said of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Control {
    Stopped { note: Box<str> },
    Resumed,
}

/// By time, and among those of one moment by their place in the log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Newest<T> {
    pub at: i64,
    seq: u64,
    pub value: T,
}

impl<T> Newest<T> {
    fn of(row: &RowRef<'_>, value: T) -> Self {
        Self { at: row.at, seq: row.seq, value }
    }
}

impl Spend {
    /// Calls that were not made.
    pub fn refused(&self) -> u64 {
        self.refusals.saturating_sub(self.again)
    }

    /// In nano-dollars: what nobody settled in its time, at the most it can have cost.
    pub fn overdue(&self) -> u64 {
        self.overdue.saturating_sub(self.overdue_settled)
    }

    /// What nobody settled in its time, and no row tells of yet.
    pub(crate) fn unbooked(nanodollars: u64) -> Self {
        Self { overdue: nanodollars, ..Self::default() }
    }

    /// In nano-dollars: all of it.
    pub fn paid(&self) -> u64 {
        self.nanodollars.saturating_add(self.overdue).saturating_sub(self.overdue_settled)
    }

    /// Without what was booked for others of the same run, which may have been another model's.
    fn of_this_call(&self) -> Self {
        Self { overdue: 0, overdue_settled: 0, ..self.clone() }
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, more) in [
            (&mut self.calls, other.calls),
            (&mut self.refusals, other.refusals),
            (&mut self.again, other.again),
            (&mut self.nanodollars, other.nanodollars),
            (&mut self.overdue, other.overdue),
            (&mut self.overdue_settled, other.overdue_settled),
            (&mut self.input, other.input),
            (&mut self.output, other.output),
            (&mut self.cached, other.cached),
            (&mut self.cache_writes, other.cache_writes),
            (&mut self.steps, other.steps),
        ] {
            *mine = mine.saturating_add(more);
        }
        match (&mut self.run, &other.run) {
            (Some(run), Some(more)) => run.add(more),
            (run @ None, Some(more)) => *run = Some(more.clone()),
            (_, None) => {}
        }
    }
}

impl RunCell {
    fn add(&mut self, other: &Self) {
        fn newest<T: Ord + Clone>(mine: &mut Option<T>, other: Option<&T>) {
            if other > mine.as_ref() {
                *mine = other.cloned();
            }
        }
        self.first_seen = self.first_seen.min(other.first_seen);
        self.last_seen = self.last_seen.max(other.last_seen);
        newest(&mut self.model, other.model.as_ref());
        newest(&mut self.key, other.key.as_ref());
        newest(&mut self.upstream, other.upstream.as_ref());
        newest(&mut self.found_by, other.found_by.as_ref());
        newest(&mut self.heard, other.heard.as_ref());
        newest(&mut self.control, other.control.as_ref());
        self.set_aside = self.set_aside.saturating_add(other.set_aside);
        self.settled = self.settled.saturating_add(other.settled);
    }

    /// Whether something may be set aside that nobody has settled.
    pub fn is_unsettled(&self) -> bool {
        self.set_aside > self.settled
    }
}

/// What a row tells of a run's model calls.
#[derive(Debug, Default)]
struct ModelCallFacts<'a> {
    spend: Spend,
    model: Option<&'a str>,
    key: Option<&'a str>,
    call: Option<&'a PassedCall>,
    heard: Option<Heard>,
    control: Option<Control>,
    scopes: &'a [(String, String)],
    sets_aside: bool,
    settles: bool,
}

impl Digest {
    pub(super) fn paid(&mut self, row: &RowRef<'_>, outcome: Outcome, spending: &Spending<'_>) {
        let call = spending.call.as_ref();
        let asks = spending.act.is_some_and(Act::asks);
        let is_given_back = call.is_some_and(|call| !call.refused.is_empty());
        let is_refused = is_given_back || (asks && outcome == Outcome::Blocked);
        let mut spend = Spend {
            refusals: u64::from(is_refused),
            again: u64::from(asks && call.is_some_and(|call| call.again)),
            overdue: if outcome == Outcome::Blocked { 0 } else { nanodollars(spending.overdue_usd) },
            overdue_settled: nanodollars(spending.overdue_settled_usd),
            ..Spend::default()
        };
        if spending.is_spent() {
            let used = spending.used;
            let paid = paid_nanodollars(spending);
            let is_call = paid > 0 || spending.model.is_some() || used != runguard_guards::logged::Tokens::default();
            spend = Spend {
                calls: u64::from(is_call),
                nanodollars: paid,
                input: used.input,
                output: used.output,
                cached: used.cached,
                cache_writes: used.cache_writes,
                ..spend
            };
        }
        let reason = call.map(|call| &*call.refused).filter(|code| !code.is_empty()).or(row.reason_code());
        // What is only set aside may be given back, a circuit closes again, and another question may have a price: the run may go on.
        let may_pass = match reason.and_then(Reason::from_code) {
            Some(Reason::BudgetExceeded) => spending.reserved_usd.is_some_and(|reserved| reserved > 0.0),
            Some(reason) => reason == Reason::NotMetered || reason.guard() == GuardName::ApiCircuit,
            None => false,
        };
        let is_stopped = !may_pass && (is_given_back || outcome == Outcome::Blocked);
        let until = spending.renews_in_seconds.map(|seconds| row.at.saturating_add(seconds.saturating_mul(1000)));
        self.told(
            row,
            &ModelCallFacts {
                spend,
                model: spending.model.as_deref(),
                key: spending.key.as_deref(),
                call,
                heard: Some(heard(reason.filter(|_| is_stopped), until)),
                scopes: if spending.is_spent() { &spending.scopes } else { &[] },
                sets_aside: spending.act == Some(Act::Reserve) && outcome != Outcome::Blocked,
                settles: spending.act.is_some_and(Act::settles),
                ..ModelCallFacts::default()
            },
        );
    }

    pub(super) fn run(&mut self, row: &RowRef<'_>, outcome: Outcome, seen: &RunSeen<'_>) {
        if row.kind != Kind::Check {
            return;
        }
        let is_refused = outcome == Outcome::Blocked;
        let until = seen.retry_after_seconds.map(|seconds| row.at.saturating_add_unsigned(seconds.saturating_mul(1000)));
        let heard = Some(heard(row.reason_code().filter(|_| is_refused), until));
        let spend = Spend { refusals: u64::from(is_refused), steps: seen.new_steps, ..Spend::default() };
        let (model, key) = (Some(row.subject).filter(|model| !model.is_empty()), seen.key.as_deref());
        self.told(row, &ModelCallFacts { spend, model, key, call: seen.call.as_ref(), heard, ..ModelCallFacts::default() });
    }

    /// An operator's word on a run.
    pub(super) fn control(&mut self, row: &RowRef<'_>) {
        let is_stopped = match row.outcome.done() {
            Some(Action::RunStopped) => true,
            Some(Action::RunResumed) => false,
            Some(Action::CircuitForcedOpen | Action::CircuitForcedClosed | Action::CircuitReset | Action::SessionErased) | None => return,
        };
        let note = runguard_guards::logged::shows(row).run.map(|run| run.note).unwrap_or_default();
        // What it was refused for is lifted too.
        let (control, heard) =
            if is_stopped { (Control::Stopped { note: note.into() }, None) } else { (Control::Resumed, Some(Heard::MayGoOn)) };
        self.told(row, &ModelCallFacts { control: Some(control), heard, ..ModelCallFacts::default() });
    }

    fn told(&mut self, row: &RowRef<'_>, told: &ModelCallFacts<'_>) {
        let named = |name: Option<&str>| name.filter(|name| !name.is_empty()).map(Box::<str>::from);
        if !told.spend.is_nothing() {
            let upstream = told.call.map(|call| &*call.upstream);
            let names = [(TOTAL, Some("")), (MODEL, told.model), (KEY, told.key), (UPSTREAM, upstream)];
            let known = |(what, name): &(&str, Option<&str>)| *what == TOTAL || name.is_some_and(|name| !name.is_empty());
            for (what, name) in names.iter().filter(|named| known(named)) {
                let spend = if *what == TOTAL { told.spend.clone() } else { told.spend.of_this_call() };
                self.of(row, Dimension::Spend, what, name.unwrap_or_default()).spend().add(&spend);
            }
            for (label, name) in told.scopes {
                self.of(row, Dimension::Spend, SCOPE, &format!("{label} {name}")).spend().add(&told.spend.of_this_call());
            }
        }
        if row.session.is_empty() {
            return;
        }
        let run = RunCell {
            first_seen: row.at,
            last_seen: row.at,
            model: named(told.model).map(|model| Newest::of(row, model)),
            key: named(told.key).map(|key| Newest::of(row, key)),
            upstream: named(told.call.map(|call| &*call.upstream)).map(|upstream| Newest::of(row, upstream)),
            found_by: named(told.call.map(|call| &*call.found_by)).map(|found_by| Newest::of(row, found_by)),
            heard: told.heard.clone().map(|heard| Newest::of(row, heard)),
            control: told.control.clone().map(|control| Newest::of(row, control)),
            set_aside: u64::from(told.sets_aside),
            settled: u64::from(told.settles),
        };
        let spend = Spend { run: Some(run), ..told.spend.clone() };
        self.of(row, Dimension::Run, row.session, "").spend().add(&spend);
    }
}

/// What a row says was paid.
pub(super) fn paid_nanodollars(spending: &Spending<'_>) -> u64 {
    if spending.is_spent() { nanodollars(spending.cost_usd.unwrap_or(0.0)) } else { 0 }
}

fn nanodollars(usd: f64) -> u64 {
    (usd.max(0.0) * NANOS).round() as u64
}

fn heard(reason: Option<&str>, until: Option<i64>) -> Heard {
    reason.map_or(Heard::MayGoOn, |reason| Heard::Refused { reason: reason.into(), until })
}

impl Cell {
    fn spend(&mut self) -> &mut Spend {
        self.spend.get_or_insert_default()
    }
}

/// Whether a row is an operator's word on a run: of what operators do, only this guard's is about one.
pub(super) fn is_control(row: &RowRef<'_>) -> bool {
    row.kind == Kind::Admin && row.guard == GuardName::AgentRun
}

/// Whether a run is one that is told by its name.
pub fn is_named(run: &str) -> bool {
    run != OTHER
}
