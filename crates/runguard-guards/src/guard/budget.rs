//! Keeps a run within what it may spend: dollars, tokens, calls.
//!
//! Money that is spent cannot be refused any more, so a caller that wants a hard limit *reserves* before the step and
//! *commits* what it really cost: committed and reserved together never pass the limit, however many ask at once. A
//! budget may draw on a parent's (a team's, a user's): both must have enough. A reservation that is never settled, because
//! its caller died, expires.
//!
//! What is asked may draw on *scopes* too: on a key's, a tenant's, a model's, a team's budget, for good or for a day, a week, a month.
//! Settings give limits to every key, tenant, model or team; a request names what the service does not know by itself. All must
//! have enough, and what is granted counts in all of them, in one step. For that all budgets of a tenant live together.
//!
//! The limit of the settings is a ceiling. A caller may set a limit of its own, and another one later: it is the caller's, and
//! holds for that budget. What is in force is the lower of the two, so that no caller gets past what the operator allows, and
//! a ceiling that the operator moves holds at once. What the caller asked for is kept as it was asked. A scope belongs to many: a limit
//! that a caller gives for it holds for that one question.

mod answer;
mod figures;
mod path;
mod request;
mod routes;
pub(crate) mod row;
mod scopes;
mod settings;
#[cfg(test)]
mod tests;

pub use self::answer::{Block, Pass};
pub use self::figures::{BudgetFigures, Watched};
use self::path::OnPath;
pub use self::request::Request;
use self::routes::route_of;
pub use self::routes::{CHECK_ROUTE, COMMIT_ROUTE, RECORD_ROUTE, RELEASE_ROUTE, RESERVE_ROUTE};
use self::row::LoggedInput;
use self::scopes::Drawn;
pub use self::scopes::Scopes;
use self::settings::ceiling;
pub use self::settings::{Settings, UnknownModels};
use super::{
    Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, LivesWith, Moment, Place, Route, Ruling, RulingOf,
    Scope as PlaceScope, Slot, Stored, encode,
};
use crate::answer::{Answer, Facts};
use crate::logged;
use crate::policy::{Policy, Section};
use runguard_core::ledger::{Account, Act, Cost, Entry, MAX_STORED_KEYS, first_of};
use runguard_core::reason::Reason;
use runguard_core::text::StoreText;
use runguard_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&CHECK_ROUTE, &RECORD_ROUTE, &RESERVE_ROUTE, &COMMIT_ROUTE, &RELEASE_ROUTE],
    slots: &[&SLOT, &SCOPE_SLOT],
    step: GuardedStep::ModelCall,
    billed: None,
    holds: Holds::Money,
    shows: row::shows,
    retelling: || Box::new(row::Retelling::default()),
    traces: None,
};

pub static SLOT: Slot = Slot { lives_with: LivesWith::Budget, ..Slot::of::<Budget, 0>(12, Lasts::Log) };
pub static SCOPE_SLOT: Slot = Slot { lives_with: LivesWith::Budget, ..Slot::of::<Budget, 0>(15, Lasts::Month) };

/// The budget, and those it draws on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// The budget itself, its parent, the scopes.
    path: Vec<Account>,
}

impl Stored for State {
    fn load(parts: &[Option<&[u8]>]) -> Self {
        Self { path: parts.iter().map(|part| part.map(Account::from_bytes).unwrap_or_default()).collect() }
    }

    fn save(&self, part: usize) -> Vec<u8> {
        self.path[part].to_bytes()
    }
}

/// What happens to one account of the path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// Which one of the path.
    steps: u32,
    entry: Entry,
}

#[derive(Debug)]
pub struct Budget;

impl Guard for Budget {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.budget
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        let part = Self::part(event);
        if state.path.len() <= part {
            state.path.resize_with(part + 1, Account::default);
        }
        state.path[part].apply(&event.entry, at, MAX_STORED_KEYS);
    }

    fn part(event: &Event) -> usize {
        event.steps as usize
    }

    /// Whether a budget was asked itself, as a parent or as a scope makes no difference to it.
    fn replay(_part: usize, state: Option<&[u8]>, events: &[u8], at: Timestamp) -> Option<Vec<u8>> {
        let events: Vec<Event> = postcard::from_bytes(events).ok()?;
        let mut account = state.map(Account::from_bytes).unwrap_or_default();
        for Event { entry, .. } in events {
            account.apply(&entry, at, MAX_STORED_KEYS);
        }
        Some(account.to_bytes())
    }

    /// Nobody commits or releases a reservation that nobody knows of.
    fn take_back(events: &[u8]) -> Option<Vec<u8>> {
        let events: Vec<Event> = postcard::from_bytes(events).ok()?;
        let settled = events.into_iter().filter_map(|Event { steps, entry }| match entry {
            Entry::Reserved { id, .. } | Entry::ReservedOrSpent { id, .. } => Some(Event { steps, entry: Entry::Settled { id } }),
            Entry::Limited(_)
            | Entry::Spent(_)
            | Entry::Settled { .. }
            | Entry::Counted { .. }
            | Entry::Began { .. }
            | Entry::TakenBack { .. } => None,
        });
        let settled: Vec<Event> = settled.collect();
        (!settled.is_empty()).then(|| encode(&settled))
    }
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        route_of(self.act)
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.budget
    }

    fn places(&self) -> Vec<Place<'_>> {
        let own = Place::in_session(&self.session_id, &SLOT, &self.budget);
        let parent = self.parent.iter().map(|parent| Place::in_session(parent, &SLOT, &self.budget));
        std::iter::once(own).chain(parent).collect()
    }

    fn places_by<'a>(&'a self, policy: &'a Policy) -> Vec<Place<'a>> {
        let mut places = self.places();
        let settings = &policy.budget.for_subject(&self.budget).settings;
        places.extend(self.drawn_on(settings).into_iter().map(|Drawn { label, name, .. }| Place {
            // A run's goes with its session.
            scope: if label.split('/').next() == Some("run") { PlaceScope::Session } else { PlaceScope::Account },
            name,
            slot: &SCOPE_SLOT,
            subject: label,
        }));
        places
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&LoggedInput::from(self))
    }

    /// A reservation is settled once: whoever tells of it again, because an answer was lost, has not paid again.
    fn once(&self) -> Option<String> {
        let reservation = self.reservation.as_deref().filter(|_| self.act == Act::Commit)?;
        // What a caller says of a door's reservation is not the door's word.
        let who = if self.call.is_some() { "passed" } else { "commit" };
        Some([who, &self.session_id, &self.budget, reservation].join("\0"))
    }

    fn is_forgotten(&self, answer: &Answer) -> bool {
        self.is_try && answer.is_block()
    }
}

impl Decide for Request {
    type Guard = Budget;
    type Block = Block;
    type Pass = Pass;

    fn warnings(&self, settings: &Settings) -> Vec<String> {
        fn over<T: PartialOrd + fmt::Display>(name: &str, own: Option<T>, ceiling: Option<T>) -> Option<String> {
            let (_, ceiling) = own.zip(ceiling).filter(|(own, ceiling)| own > ceiling)?;
            Some(format!("{name} is above the limit of the settings, which holds: {ceiling}"))
        }
        let (own, ceiling) = (self.own_limits(settings), ceiling(settings));
        let dollars = if self.limits.usd.is_some() { "max_usd" } else { "max_credits" };
        let all = [over(dollars, own.usd, ceiling.usd), over("max_tokens", own.tokens, ceiling.tokens), over("cap", own.cap, ceiling.cap)];
        all.into_iter().flatten().chain(self.unlimited_scopes(settings)).collect()
    }

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let now = moment.now;
        let (before, began) = self.path(settings, state, now);
        let mut findings = Vec::new();
        let (told, unpriced) = self.cost(settings);
        // What happened is counted, also what has no known price: its tokens and its call.
        let happened = self.has_happened();
        let lease = self.reservation_number().and_then(|id| before[0].account.lease(id, now));
        let agreed = lease.filter(|_| self.act == Act::Commit).map(|lease| lease.cost);
        let cost = told.or(agreed).unwrap_or_default();
        let events = self.events(settings, &before, began, cost, moment);
        let counted = || if happened { events.clone() } else { Vec::new() };
        // Tokens need no price: it matters only where dollars are limited.
        let needs_prices = before.iter().any(|on_path| on_path.limits.usd.is_some());
        if let Some(unknown) = unpriced.filter(|_| needs_prices) {
            findings.push(Finding { events: counted(), ..Finding::new(Reason::UnknownModel, Block::Model(unknown), None) });
        }
        let unmetered = self.call.as_ref().map(|call| &call.unmetered).filter(|what| self.act == Act::Reserve && !what.is_empty());
        if let Some(what) = unmetered.filter(|_| needs_prices) {
            findings.push(Finding::new(Reason::NotMetered, Block::NotMetered(what.clone()), None));
        }
        let mut after = before.clone();
        for event in &events {
            after[Budget::part(event)].account.to_mut().apply(&event.entry, now, MAX_STORED_KEYS);
        }
        let on_path = || before.iter().enumerate();
        let limited = first_of(on_path().flat_map(|(steps, before)| self.limits_at(steps, before, &after[steps].account, cost, now)));
        let refused = match limited {
            Err(exceeded) => {
                let clears_at = before[self.steps(exceeded.level)].account.may_clear_at(&exceeded, now);
                Some((exceeded.reason(), Block::Exceeded(exceeded), clears_at))
            }
            Ok(()) => on_path().find_map(|(steps, OnPath { account, .. })| {
                let block = self.is_full_at(steps, account, cost, now)?;
                Some((Reason::TooManyReservations, block, account.next_expiry(now)))
            }),
        };
        if let Some((reason, block, clears_at)) = refused {
            // What is told is not asked again.
            let clears_at = clears_at.filter(|_| !happened);
            findings.push(Finding { events: counted(), ..Finding::new(reason, block, clears_at) });
        }
        let OnPath { account: own, limits } = &after[0];
        let room = || after.iter().map(|on_path| on_path.account.room(on_path.limits, now));
        let remaining_usd = room().filter_map(|(usd, _)| usd).min();
        let pass = Pass {
            reservation_id: (self.act == Act::Reserve).then(|| moment.decision_id.to_owned()),
            known: self.act.settles().then_some(lease.is_some()),
            cost,
            spent: own.spent(now),
            reserved: own.reserved(now),
            overdue: before[0].account.overdue(now),
            overdue_settled: self.overdue_settled(&before[0].account),
            limits: *limits,
            remaining_usd,
            remaining_credits: self.credits.and(remaining_usd).map(|left| settings.credits_of(left.as_dollars())),
            remaining_tokens: room().filter_map(|(_, tokens)| tokens).min(),
            calls: self.key_number().map(|key| own.calls_of(key)),
            remaining_calls: self.key_number().and_then(|key| after.iter().filter_map(|at| at.account.calls_left(key, at.limits)).min()),
            nearest: if happened { self.nearest(settings, &before, &after, now) } else { Vec::new() },
        };
        Ruling { findings, pass, events }
    }

    fn explain(&self, settings: &Settings, state: &State, block: &Block, moment: Moment<'_>) -> (Facts, String) {
        // What was paid is told, also where it was too much.
        let paid = self.has_happened().then(|| {
            let lease = self.reservation_number().and_then(|id| state.path.first()?.lease(id, moment.now));
            self.cost(settings).0.or(lease.map(|lease| lease.cost)).unwrap_or_default()
        });
        let (facts, message) = self.explain_block(settings, block, paid, moment.now);
        // Refused or not, it stands in the place of what was booked for it.
        let overdue_settled = state.path.first().map_or(Cost::ZERO, |own| self.overdue_settled(own));
        (answer::with_overdue_settled(facts, overdue_settled), message)
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        pass.facts(&self.budget)
    }
}
