//! Keeps a run within what it may spend: dollars, tokens, calls.
//!
//! Money that is spent cannot be refused any more, so a caller that wants a hard limit *reserves* before the step and
//! *commits* what it really cost: committed and reserved together never pass the limit, however many ask at once. A
//! budget may draw on a parent's (a team's, a user's): both must have enough. A reservation that is never settled, because
//! its caller died, expires.
//!
//! The limit of the settings is a ceiling. A caller may set a limit of its own, and another one later: it is the caller's, and
//! holds for that budget. What is in force is the lower of the two, so that no caller gets past what the operator allows, and
//! a ceiling that the operator moves holds at once. What the caller asked for is kept as it was asked.

use super::{
    AnswerField, AnswerKind, Decide, Finding, Guard, GuardEntry, GuardedStep, Holds, Lasts, LivesWith, Moment, Outlook, Place, Route,
    RouteKind, Ruling, RulingOf, Slot, Stored, decode, encode, says,
};
use crate::answer::Facts;
use crate::input::{Field, Input, Kind};
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::ledger::{Account, BudgetExceeded, Cost, Entry, Level, Limits, Unit, number_of};
use runguard_core::limits::{lasting, within};
use runguard_core::money::NanoDollars;
use runguard_core::prices::{Prices, UnknownModel, Usage};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&CHECK_ROUTE, &RECORD_ROUTE, &RESERVE_ROUTE, &COMMIT_ROUTE, &RELEASE_ROUTE],
    slots: &[&SLOT],
    step: GuardedStep::ModelCall,
    holds: Holds::Money,
};

static SLOT: Slot = Slot { lives_with: LivesWith::Budget, ..Slot::of::<Budget, 0>(12, Lasts::Log) };

/// Fields of every route, and then those of one.
macro_rules! fields {
    ($($more:expr),* $(,)?) => {
        &[
            Field::required("session_id", Kind::Id, "Whose budget: a run, a session, a user.", "\"run-1\""),
            Field::optional("budget", Kind::Id, "Which of its budgets; one is enough for most.", "\"default\""),
            Field::optional("parent", Kind::Id, "The session whose budget of the same name this one draws on.", "\"team-7\""),
            Field::optional("max_usd", Kind::Dollars, "The caller's own limit in dollars; it stays until another is given, and cannot be above the limit of the settings.", "5.00"),
            Field::optional("max_tokens", Kind::Whole(0), "The same in tokens.", "200000"),
            Field::optional("cap", Kind::Whole(0), "The same in calls of one key.", "2"),
            $($more),*
        ]
    };
}

/// The same with what a step costs.
macro_rules! cost_fields {
    ($($more:expr),* $(,)?) => {
        fields![
            Field::optional("usd", Kind::Dollars, "Dollars.", "0.012"),
            Field::optional("tokens", Kind::Whole(0), "Tokens, if no model is named.", "1200"),
            Field::optional("key", Kind::Id, "What is counted against the cap, such as a step or a task.", "\"capture_email\""),
            Field::optional("model", Kind::Id, "The model, to price its tokens from the table.", "\"gpt-4o\""),
            Field::optional("input_tokens", Kind::Whole(0), "Input tokens, without cached ones.", "900"),
            Field::optional("output_tokens", Kind::Whole(0), "Output tokens.", "300"),
            Field::optional("cached_tokens", Kind::Whole(0), "Input tokens read from a cache.", "0"),
            Field::optional("cache_write_tokens", Kind::Whole(0), "Input tokens written to a cache.", "0"),
            $($more),*
        ]
    };
}

const RESERVATION: Field = Field::required("reservation_id", Kind::Id, "As the reserve route gave it.", "\"01JF8Z6Q0V3N1W2X4Y5Z6A7B8C\"");

/// What every route says, and then what one does.
macro_rules! answers {
    ($($more:expr),*) => {
        &[
            says("budget", AnswerKind::Text, "The budget."),
            says("cost_usd", AnswerKind::Number, "Dollars asked for, recorded or committed."),
            says("spent_usd", AnswerKind::Number, "Dollars spent."),
            says("reserved_usd", AnswerKind::Number, "Dollars set aside."),
            says("limit_usd", AnswerKind::Number, "Dollars allowed, if there is a limit."),
            says("remaining_usd", AnswerKind::Number, "Dollars left, here and at the parent, if there is a limit."),
            says("spent_tokens", AnswerKind::Whole, "Tokens spent."),
            says("limit_tokens", AnswerKind::Whole, "Tokens allowed, if there is a limit."),
            says("remaining_tokens", AnswerKind::Whole, "Tokens left, if there is a limit."),
            $($more),*
        ]
    };
}

macro_rules! route {
    ($name:ident, $path:literal, $act:ident, $summary:literal, $fields:expr, $answers:expr, $reasons:expr) => {
        pub static $name: Route = Route {
            path: concat!("/guard/budget/", $path),
            guard: GuardName::Budget,
            kind: RouteKind::Check,
            summary: $summary,
            fields: $fields,
            answers: $answers,
            reasons: $reasons,
            read: |input| Box::new(Request::read(input, Act::$act)),
        };
    };
}

route!(
    CHECK_ROUTE,
    "check",
    Check,
    "Is there enough left for this? Nothing is counted.",
    cost_fields![],
    answers![LEVEL, MODEL, CALLS, REMAINING_CALLS, CAP],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded]
);
route!(
    RECORD_ROUTE,
    "record",
    Record,
    "This was spent. It counts, also when it passes the limit.",
    cost_fields![],
    answers![LEVEL, MODEL, CALLS, REMAINING_CALLS, CAP],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded]
);
route!(
    RESERVE_ROUTE,
    "reserve",
    Reserve,
    "Set this aside for a step, if there is enough.",
    cost_fields![],
    answers![LEVEL, MODEL, CALLS, REMAINING_CALLS, CAP, RESERVATION_ID],
    &[Reason::UnknownModel, Reason::CallCapReached, Reason::BudgetExceeded, Reason::TooManyReservations]
);
route!(
    COMMIT_ROUTE,
    "commit",
    Commit,
    "The step is done and cost this much; without a cost, what was reserved.",
    cost_fields![RESERVATION],
    answers![LEVEL, MODEL, CALLS, REMAINING_CALLS, KNOWN],
    &[Reason::UnknownModel, Reason::BudgetExceeded]
);
route!(
    RELEASE_ROUTE,
    "release",
    Release,
    "The step was not done: what was reserved is free again.",
    fields![RESERVATION],
    answers![KNOWN],
    &[]
);

const LEVEL: AnswerField = says("level", AnswerKind::Text, "Refused: whether it is this budget or the parent that is used up.");
const MODEL: AnswerField = says("model", AnswerKind::Text, "Unknown model: its name.");
const CALLS: AnswerField = says("calls", AnswerKind::Whole, "Calls of the key.");
const REMAINING_CALLS: AnswerField = says("remaining_calls", AnswerKind::Whole, "Calls of the key left, if there is a cap.");
const CAP: AnswerField = says("cap", AnswerKind::Whole, "Cap reached: calls allowed.");
const RESERVATION_ID: AnswerField = says("reservation_id", AnswerKind::Text, "To commit or release it.");
const KNOWN: AnswerField = says("known", AnswerKind::Flag, "Whether the reservation was still open.");

/// Open reservations of one budget; more are refused. Less than within a process: the state is read and written at every step.
pub const MOST_RESERVATIONS: usize = 1024;
/// Keys counted against the cap. Beyond it the one counted longest ago is forgotten.
const MOST_KEYS: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownModels {
    /// Refused: a price that is not known cannot be kept within a limit.
    Error,
    /// Its tokens cost nothing.
    Free,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_usd: f64,
    pub max_tokens: u64,
    pub cap: u32,
    pub reservation: Span,
    pub unknown_models: UnknownModels,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_usd: 0.0, max_tokens: 0, cap: 0, reservation: Span::from_seconds(900), unknown_models: UnknownModels::Error }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::Budget;
    const SECTION: &'static [&'static str] = &["budget"];
    const SUBJECTS: &'static str = "budgets";
    const SETTINGS: &'static [Setting] = &[
        Setting {
            key: "max_usd",
            about: "Dollars a session may spend. A caller's max_usd can be lower, not higher; 0 for no limit but the caller's.",
        },
        Setting { key: "max_tokens", about: "Tokens a session may use; so too." },
        Setting { key: "cap", about: "Calls of one key; so too." },
        Setting { key: "reservation", about: "A reservation that is not settled in this time is free again." },
        Setting {
            key: "unknown_models",
            about: "A model without a price, where dollars are limited: \"error\" refuses, \"free\" counts its tokens only.",
        },
    ];

    fn longest_window(&self) -> Span {
        self.reservation
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        NanoDollars::from_dollars(self.max_usd).map_err(|error| ("max_usd", error.to_string()))?;
        within("cap", self.cap, 0..=1_000_000)?;
        lasting("reservation", self.reservation)
    }
}

/// The limits of the settings, which no caller gets past.
fn ceiling(settings: &Settings) -> Limits {
    let usd = NanoDollars::from_dollars(settings.max_usd).unwrap_or(NanoDollars::ZERO);
    Limits {
        usd: (!usd.is_zero()).then_some(usd),
        tokens: (settings.max_tokens > 0).then_some(settings.max_tokens),
        cap: (settings.cap > 0).then_some(settings.cap),
    }
}

/// The budget, and those it draws on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// From the budget itself upwards.
    path: Vec<Account>,
}

impl Stored for State {
    fn load(parts: &[Option<&[u8]>]) -> Self {
        Self { path: parts.iter().map(|part| decode(*part)).collect() }
    }

    fn save(&self, part: usize) -> Vec<u8> {
        encode(&self.path[part])
    }
}

/// What happens to one account of the path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// How many steps up.
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
        state.path[part].apply(&event.entry, at, MOST_KEYS);
    }

    fn part(event: &Event) -> usize {
        event.steps as usize
    }

    fn outlook(_section: &Section<Settings>, _subject: &str, _state: &State, _now: Timestamp) -> Vec<Outlook> {
        // An outlook counts requests; money is told by the check route.
        Vec::new()
    }

    /// Whether a budget was asked itself or as a parent makes no difference to it.
    fn replay(_part: usize, state: Option<&[u8]>, events: &[u8], at: Timestamp) -> Option<Vec<u8>> {
        let events: Vec<Event> = postcard::from_bytes(events).ok()?;
        let mut account: Account = decode(state);
        for Event { entry, .. } in events {
            account.apply(&entry, at, MOST_KEYS);
        }
        Some(encode(&account))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Check,
    Record,
    Reserve,
    Commit,
    Release,
}

impl Act {
    fn route(self) -> &'static Route {
        match self {
            Self::Check => &CHECK_ROUTE,
            Self::Record => &RECORD_ROUTE,
            Self::Reserve => &RESERVE_ROUTE,
            Self::Commit => &COMMIT_ROUTE,
            Self::Release => &RELEASE_ROUTE,
        }
    }
}

#[derive(Debug)]
struct Priced {
    model: String,
    usage: Usage,
}

#[derive(Debug)]
pub struct Request {
    act: Act,
    session_id: String,
    budget: String,
    parent: Option<String>,
    limits: Limits,
    usd: Option<NanoDollars>,
    tokens: Option<u64>,
    key: Option<String>,
    priced: Option<Priced>,
    reservation: Option<String>,
}

/// What a row of the log tells of a request.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    pub session_id: &'a str,
    pub budget: &'a str,
    /// The last part of the route.
    pub act: &'a str,
    pub parent: Option<&'a str>,
    /// Of the session's own budget.
    pub events: Option<&'a [u8]>,
    /// What was asked for, where nothing happened.
    pub asked_usd: Option<f64>,
    pub asked_tokens: Option<u64>,
    /// The limits it brought along.
    pub limit_usd: Option<f64>,
    pub limit_tokens: Option<u64>,
    pub cap: Option<u64>,
    /// The names of reservations by their numbers.
    pub reservations: &'a std::collections::BTreeMap<u64, String>,
}

/// The request that a row of the log tells of. `None` when it does not tell enough.
pub fn again(told: Told<'_>) -> Option<Box<dyn super::Operation>> {
    let act =
        [Act::Check, Act::Record, Act::Reserve, Act::Commit, Act::Release].into_iter().find(|act| act.route().path.ends_with(told.act))?;
    let events: Vec<Event> = told.events.and_then(|events| postcard::from_bytes(events).ok()).unwrap_or_default();
    let mut request = Request {
        act,
        session_id: told.session_id.to_owned(),
        budget: told.budget.to_owned(),
        parent: told.parent.map(str::to_owned),
        limits: Limits {
            usd: told.limit_usd.and_then(|usd| NanoDollars::from_dollars(usd).ok()),
            tokens: told.limit_tokens,
            cap: told.cap.map(calls),
        },
        usd: told.asked_usd.and_then(|usd| NanoDollars::from_dollars(usd).ok()),
        tokens: told.asked_tokens,
        key: None,
        priced: None,
        reservation: None,
    };
    for event in events.into_iter().filter(|event| event.steps == 0) {
        match event.entry {
            Entry::Limited(limits) => request.limits = limits,
            Entry::Spent(cost) | Entry::Reserved { cost, .. } => {
                (request.usd, request.tokens) = (Some(cost.usd), Some(cost.tokens));
            }
            Entry::Settled { id } => request.reservation = Some(told.reservations.get(&id).cloned().unwrap_or_else(|| id.to_string())),
            // Its name is not kept; a name made of its number tells it from others all the same.
            Entry::Counted { key } => request.key = Some(key.to_string()),
        }
    }
    Some(Box::new(request))
}

/// As many calls as can be counted.
fn calls(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The number a reservation is known by in events.
pub fn reservation_number(id: &str) -> u64 {
    number_of(id)
}

#[derive(Debug)]
pub enum Block {
    Model { model: String },
    Exceeded(BudgetExceeded),
    Reservations { open: u32 },
}

#[derive(Debug)]
pub struct Pass {
    reservation_id: Option<String>,
    known: Option<bool>,
    cost: Cost,
    /// The path once this is done, with the limits in force.
    after: Vec<(Account, Limits)>,
    calls: Option<u32>,
    now: Timestamp,
}

impl Request {
    fn read(input: &Input<'_>, act: Act) -> Self {
        let session_id = input.text("session_id");
        let id = |name: &str| input.optional_text(name).filter(|text| !text.is_empty());
        let limits = Limits { usd: input.dollars("max_usd"), tokens: input.whole("max_tokens"), cap: input.whole("cap").map(calls) };
        let count = |name: &str| input.whole(name).unwrap_or(0);
        let priced = id("model").map(|model| Priced {
            model,
            usage: Usage {
                input_tokens: count("input_tokens"),
                output_tokens: count("output_tokens"),
                cached_tokens: count("cached_tokens"),
                cache_write_tokens: count("cache_write_tokens"),
                ..Usage::default()
            },
        });
        Self {
            act,
            budget: id("budget").unwrap_or_else(|| "default".into()),
            // A budget cannot draw on itself.
            parent: id("parent").filter(|parent| *parent != session_id),
            session_id,
            limits,
            usd: input.dollars("usd"),
            tokens: input.whole("tokens"),
            key: id("key"),
            priced,
            reservation: id("reservation_id"),
        }
    }

    /// How many accounts the path has.
    fn accounts(&self) -> usize {
        1 + usize::from(self.parent.is_some())
    }

    /// What the request says it costs; `Err` names a model that has no price.
    fn cost(&self, settings: &Settings) -> Result<Option<Cost>, String> {
        let Some(Priced { model, usage }) = &self.priced else {
            let told = self.usd.is_some() || self.tokens.is_some();
            return Ok(told.then(|| Cost { usd: self.usd.unwrap_or_default(), tokens: self.tokens.unwrap_or(0) }));
        };
        let usd = match (self.usd, Prices::bundled().cost(model, usage, &UnknownModel::Error)) {
            // What the caller knows better than the table.
            (Some(usd), _) | (None, Ok((usd, _))) => usd,
            (None, Err(_)) if settings.unknown_models == UnknownModels::Free => NanoDollars::ZERO,
            (None, Err(_)) => return Err(model.clone()),
        };
        Ok(Some(Cost { usd, tokens: usage.total_tokens() }))
    }

    /// What is in force so many steps up.
    fn limits_at(&self, settings: &Settings, account: &Account, steps: usize) -> Limits {
        let own = if steps == 0 { self.limits.or(account.limits) } else { account.limits };
        own.within(ceiling(settings))
    }

    fn reservation_number(&self) -> Option<u64> {
        self.reservation.as_deref().map(reservation_number)
    }

    fn key_number(&self) -> Option<u64> {
        self.key.as_deref().map(number_of)
    }

    /// What happens when the request is let pass, or when it tells of what happened already.
    fn events(&self, settings: &Settings, path: &[(Account, Limits)], cost: Cost, moment: Moment<'_>) -> Vec<Event> {
        let mut events = Vec::new();
        let own = path[0].0.limits;
        if self.act != Act::Check && self.limits != Limits::default() && self.limits.or(own) != own {
            events.push(Event { steps: 0, entry: Entry::Limited(self.limits.or(own)) });
        }
        for (steps, (_, limits)) in path.iter().enumerate() {
            let mut push = |entry| events.push(Event { steps: steps as u32, entry });
            match self.act {
                Act::Check => {}
                Act::Record => {
                    if cost != Cost::ZERO {
                        push(Entry::Spent(cost));
                    }
                }
                Act::Reserve => push(Entry::Reserved {
                    id: reservation_number(moment.decision_id),
                    cost,
                    expires: moment.now.plus(settings.reservation),
                }),
                Act::Commit | Act::Release => {
                    if let Some(id) = self.reservation_number() {
                        push(Entry::Settled { id });
                    }
                    if self.act == Act::Commit {
                        push(Entry::Spent(cost));
                    }
                }
            }
            // Above, only where there is a cap: a team need not remember every key of every run.
            if let (Act::Record | Act::Commit, Some(key)) = (self.act, self.key_number())
                && (steps == 0 || limits.cap.is_some())
            {
                push(Entry::Counted { key });
            }
        }
        events
    }

    /// What stands against the request so many steps up: of the path before it, or of the path once it is done where it tells of
    /// what happened already.
    fn block_at(&self, steps: usize, before: &(Account, Limits), after: &Account, cost: Cost, now: Timestamp) -> Option<Block> {
        let (level, (account, limits)) = (Level::above(steps), before);
        let call = || self.key_number().map_or(Ok(()), |key| account.may_call(key, *limits, level));
        let estimate = || self.reservation_number().and_then(|id| account.lease(id, now)).map_or(Cost::ZERO, |lease| lease.cost);
        let judged = match self.act {
            Act::Release => Ok(()),
            Act::Check | Act::Reserve => call().and_then(|()| account.has_room_for(cost, *limits, level, now)),
            Act::Record => call().and_then(|()| after.is_within(*limits, level, now)),
            Act::Commit => after.was_agreed(cost, estimate(), *limits, level, now),
        };
        if let Err(exceeded) = judged {
            return Some(Block::Exceeded(exceeded));
        }
        let is_full = self.act == Act::Reserve && account.open() >= MOST_RESERVATIONS;
        let open = if is_full { account.leases(now).count() } else { 0 };
        (open >= MOST_RESERVATIONS).then_some(Block::Reservations { open: open as u32 })
    }
}

impl Decide for Request {
    type Guard = Budget;
    type Block = Block;
    type Pass = Pass;

    fn route(&self) -> &'static Route {
        self.act.route()
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

    fn input(&self, _store_text: StoreText) -> Facts {
        let facts = Facts::new().with("act", self.route().path.rsplit('/').next().unwrap_or_default());
        let mut facts = match &self.parent {
            Some(parent) => facts.with("parent", parent.clone()),
            None => facts,
        };
        if let Some(usd) = self.limits.usd {
            facts = facts.with("max_usd", usd.as_dollars());
        }
        if let Some(tokens) = self.limits.tokens {
            facts = facts.with("max_tokens", tokens);
        }
        if let Some(cap) = self.limits.cap {
            facts = facts.with("cap", cap);
        }
        match &self.priced {
            Some(priced) => facts.with("model", priced.model.clone()),
            None => facts,
        }
    }

    fn warnings(&self, settings: &Settings) -> Vec<String> {
        fn over<T: PartialOrd + fmt::Display>(name: &str, own: Option<T>, ceiling: Option<T>) -> Option<String> {
            let (_, ceiling) = own.zip(ceiling).filter(|(own, ceiling)| own > ceiling)?;
            Some(format!("{name} is above the limit of the settings, which holds: {ceiling}"))
        }
        let (own, ceiling) = (self.limits, ceiling(settings));
        let all =
            [over("max_usd", own.usd, ceiling.usd), over("max_tokens", own.tokens, ceiling.tokens), over("cap", own.cap, ceiling.cap)];
        all.into_iter().flatten().collect()
    }

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let now = moment.now;
        let before: Vec<(Account, Limits)> = (0..self.accounts())
            .map(|steps| {
                let account = state.path.get(steps).cloned().unwrap_or_default();
                let limits = self.limits_at(settings, &account, steps);
                (account, limits)
            })
            .collect();
        let mut findings = Vec::new();
        let told = self.cost(settings);
        // What happened is counted, also what has no known price: its tokens and its call.
        let happened = matches!(self.act, Act::Record | Act::Commit);
        let lease = self.reservation_number().and_then(|id| before[0].0.lease(id, now));
        let cost = match &told {
            Ok(Some(cost)) => *cost,
            Ok(None) => lease.filter(|_| self.act == Act::Commit).map(|lease| lease.cost).unwrap_or_default(),
            Err(_) => Cost::tokens(self.priced.as_ref().map_or(0, |priced| priced.usage.total_tokens())),
        };
        let events = self.events(settings, &before, cost, moment);
        let counted = || if happened { events.clone() } else { Vec::new() };
        // Tokens need no price: it matters only where dollars are limited.
        if let Err(model) = told
            && before.iter().any(|(_, limits)| limits.usd.is_some())
        {
            findings.push(Finding { events: counted(), ..Finding::new(Reason::UnknownModel, Block::Model { model }, None) });
        }
        let mut after = before.clone();
        for event in &events {
            after[Budget::part(event)].0.apply(&event.entry, now, MOST_KEYS);
        }
        for (steps, before) in before.iter().enumerate() {
            let Some(block) = self.block_at(steps, before, &after[steps].0, cost, now) else { continue };
            let (reason, may_clear) = match &block {
                Block::Model { .. } => (Reason::UnknownModel, false),
                Block::Exceeded(exceeded) => (exceeded.reason(), exceeded.may_clear()),
                Block::Reservations { .. } => (Reason::TooManyReservations, true),
            };
            // What is told is not asked again.
            let clears_at = before.0.next_expiry(now).filter(|_| may_clear && !happened);
            findings.push(Finding { events: counted(), ..Finding::new(reason, block, clears_at) });
            break;
        }
        let pass = Pass {
            reservation_id: (self.act == Act::Reserve).then(|| moment.decision_id.to_owned()),
            known: matches!(self.act, Act::Commit | Act::Release).then_some(lease.is_some()),
            cost,
            calls: self.key_number().map(|key| after[0].0.calls_of(key)),
            after,
            now,
        };
        Ruling { findings, pass, events }
    }

    fn explain(&self, _settings: &Settings, _state: &State, block: &Block, _moment: Moment<'_>) -> (Facts, String) {
        let facts = Facts::new().with("budget", self.budget.clone());
        match block {
            Block::Model { model } => (
                facts.with("model", model.clone()),
                format!(
                    "Model '{model}' has no known price, so its cost cannot be kept within a limit. Send usd with the request, or set unknown_models = \"free\"."
                ),
            ),
            Block::Exceeded(exceeded) => self.explain_exceeded(facts, exceeded),
            Block::Reservations { open } => (
                facts,
                format!(
                    "{open} reservations are open, the most that are kept. Commit or release those that are done; the others expire by themselves."
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        let Pass { reservation_id, known, cost, after, calls, now } = pass;
        let mut facts = Facts::new().with("budget", self.budget.clone());
        if let Some(id) = reservation_id {
            facts = facts.with("reservation_id", id);
        }
        if let Some(known) = known {
            facts = facts.with("known", known);
        }
        let (own, limits) = &after[0];
        facts = facts
            .with("cost_usd", cost.usd.as_dollars())
            .with("spent_usd", own.spent().usd.as_dollars())
            .with("reserved_usd", own.reserved(now).usd.as_dollars())
            .with("spent_tokens", own.spent().tokens);
        let room: Vec<(Option<NanoDollars>, Option<u64>)> = after.iter().map(|(account, limits)| account.room(*limits, now)).collect();
        if let Some(limit) = limits.usd {
            facts = facts.with("limit_usd", limit.as_dollars());
        }
        if let Some(left) = room.iter().filter_map(|(usd, _)| *usd).min() {
            facts = facts.with("remaining_usd", left.as_dollars());
        }
        if let Some(limit) = limits.tokens {
            facts = facts.with("limit_tokens", limit);
        }
        if let Some(left) = room.iter().filter_map(|(_, tokens)| *tokens).min() {
            facts = facts.with("remaining_tokens", left);
        }
        if let Some(calls) = calls {
            facts = facts.with("calls", calls);
            if let Some(cap) = limits.cap {
                facts = facts.with("remaining_calls", cap.saturating_sub(calls));
            }
        }
        facts
    }
}

impl Request {
    fn explain_exceeded(&self, facts: Facts, exceeded: &BudgetExceeded) -> (Facts, String) {
        let level = match exceeded.level {
            Level::Own => "budget",
            Level::Ancestor(_) => "parent",
        };
        let BudgetExceeded { unit, spent, reserved, limit, .. } = *exceeded;
        match unit {
            Unit::Calls => (
                facts.with("calls", spent).with("cap", limit),
                format!(
                    "'{}' was done {spent} times (cap {limit}). Go on without it, or hand over to a person.",
                    self.key.as_deref().unwrap_or("this step")
                ),
            ),
            Unit::Usd => (
                facts
                    .with("level", level)
                    .with("cost_usd", exceeded.asked_value())
                    .with("spent_usd", exceeded.spent_value())
                    .with("reserved_usd", exceeded.reserved_value())
                    .with("limit_usd", exceeded.limit_value())
                    .with("remaining_usd", exceeded.remaining_value()),
                exceeded.sentences(),
            ),
            Unit::Tokens => (
                facts
                    .with("level", level)
                    .with("spent_tokens", spent)
                    .with("limit_tokens", limit)
                    .with("remaining_tokens", limit.saturating_sub(spent).saturating_sub(reserved)),
                exceeded.sentences(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::Operation;
    use crate::guard::properties::{Story, operation};
    use serde_json::{Value as Json, json};

    fn ask(path: &str, fields: Json) -> Box<dyn Operation> {
        let mut body = json!({"session_id": "run", "max_usd": "1.00"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        operation(&format!("/guard/budget/{path}"), body)
    }

    fn reserve(story: &mut Story, fields: Json) -> String {
        assert!(story.allows(&*ask("reserve", fields)));
        match story.fact("reservation_id") {
            Some(Value::Text(id)) => id.into_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reserved_and_committed_never_pass_the_limit() {
        let mut story = Story::default();
        let first = reserve(story.at(0), json!({"usd": 0.6}));
        assert_eq!(story.at(1).refuses(&*ask("reserve", json!({"usd": 0.5}))), Reason::BudgetExceeded);
        assert_eq!(story.fact("remaining_usd"), Some(Value::Number(0.4)));
        assert!(story.at(2).allows(&*ask("commit", json!({"reservation_id": first, "usd": 0.1}))));
        let second = reserve(story.at(3), json!({"usd": 0.9}));
        assert!(story.at(4).allows(&*ask("release", json!({"reservation_id": second}))));
        assert!(story.at(5).allows(&*ask("check", json!({"usd": 0.9}))));
        assert_eq!(story.at(6).refuses(&*ask("check", json!({"usd": "0.900000001"}))), Reason::BudgetExceeded);
    }

    #[test]
    fn a_reservation_nobody_settles_expires_and_the_retry_time_is_true() {
        let mut story = Story::default();
        reserve(story.at(0), json!({"usd": 1}));
        assert_eq!(story.at(1000).refuses(&*ask("reserve", json!({"usd": 1}))), Reason::BudgetExceeded);
        assert_eq!(story.retry_after_seconds(), Some(899));
        assert_eq!(story.at(899_999).refuses(&*ask("reserve", json!({"usd": 1}))), Reason::BudgetExceeded);
        reserve(story.at(900_000), json!({"usd": 1}));
    }

    #[test]
    fn what_is_spent_counts_also_when_it_is_too_much() {
        let mut story = Story::default();
        assert!(story.at(0).allows(&*ask("record", json!({"usd": 1}))));
        assert_eq!(story.at(1).refuses(&*ask("record", json!({"usd": 0.25}))), Reason::BudgetExceeded);
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(1.25)));
        assert_eq!(story.retry_after_seconds(), None);
        assert!(story.at(2).allows(&*ask("check", json!({"max_usd": 2}))));
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(1.25)));
    }

    /// The service's own limits, whatever callers say.
    fn with_ceiling(ceiling: Json) -> Story {
        Story::with_settings_of(&["budget"], ceiling)
    }

    #[test]
    fn the_limit_of_the_settings_is_a_ceiling() {
        let mut story = with_ceiling(json!({"max_usd": 5, "max_tokens": 100, "cap": 2}));
        let reserve = |usd: f64, more: Json| {
            let mut body = json!({"session_id": "run", "usd": usd});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            operation("/guard/budget/reserve", body)
        };
        assert_eq!(story.at(0).refuses(&*reserve(6.0, json!({"max_usd": 10}))), Reason::BudgetExceeded);
        assert_eq!(story.fact("limit_usd"), Some(Value::Number(5.0)));
        assert_eq!(story.warnings(), ["max_usd is above the limit of the settings, which holds: $5.00"]);
        assert_eq!(story.at(1).refuses(&*reserve(1.0, json!({"max_usd": 0.5}))), Reason::BudgetExceeded);
        assert!(story.at(2).allows(&*reserve(0.5, json!({"max_usd": 0.5}))), "a caller's own can be lower");
        assert!(story.warnings().is_empty());
        assert_eq!(story.at(3).refuses(&*reserve(0.5, json!({}))), Reason::BudgetExceeded, "and stays");
        assert!(story.at(4).allows(&*reserve(4.0, json!({"max_usd": 50}))), "it is the caller's to change, below the ceiling");
        assert_eq!(story.at(5).refuses(&*reserve(0.51, json!({}))), Reason::BudgetExceeded, "also later, when it says nothing");
        let tokens = operation("/guard/budget/check", json!({"session_id": "t", "tokens": 101, "max_tokens": 1000, "cap": 9}));
        assert_eq!(story.at(6).refuses(&*tokens), Reason::BudgetExceeded);
        assert_eq!(story.warnings().len(), 2);
        let call = operation("/guard/budget/record", json!({"session_id": "c", "key": "k", "cap": 9}));
        assert!(story.at(7).allows(&*call) && story.at(7).allows(&*call));
        assert_eq!(story.at(7).refuses(&*call), Reason::CallCapReached);
    }

    #[test]
    fn a_parent_has_the_same_ceiling() {
        let mut story = with_ceiling(json!({"max_usd": 1}));
        assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "max_usd": 9}))));
        let child =
            |name: &str| operation("/guard/budget/reserve", json!({"session_id": name, "parent": "team", "usd": 0.6, "max_usd": 9}));
        assert!(story.at(1).allows(&*child("a")));
        assert_eq!(story.at(2).refuses(&*child("b")), Reason::BudgetExceeded);
        assert_eq!((story.fact("level"), story.fact("limit_usd")), (Some(Value::from("parent")), Some(Value::Number(1.0))));
    }

    proptest::proptest! {
        /// Whoever asks, for whatever limit, in whatever order: what is reserved and committed stays within the ceiling and within
        /// the limit that the caller said last.
        #[test]
        fn no_caller_gets_past_a_ceiling(
            ceiling in proptest::option::of(1_u32..50),
            asks in proptest::collection::vec((0_u32..3, 0_u32..30, proptest::option::of(0_u32..100)), 1..40),
        ) {
            let mut story = with_ceiling(json!({"max_usd": ceiling.unwrap_or(0)}));
            let mut open: Vec<String> = Vec::new();
            let mut said = None;
            let mut held = 0.0;
            for (at, (act, usd, max_usd)) in asks.into_iter().enumerate() {
                let settles = act == 0 && !open.is_empty();
                let mut body = json!({"session_id": "run", "usd": usd});
                if let Some(max_usd) = max_usd {
                    body["max_usd"] = max_usd.into();
                }
                if settles {
                    body = json!({"session_id": "run", "reservation_id": open.pop()});
                    proptest::prop_assert!(story.at(at as i64).allows(&*operation("/guard/budget/commit", body)));
                    continue;
                }
                if story.at(at as i64).allows(&*operation("/guard/budget/reserve", body)) {
                    said = max_usd.or(said);
                    held += f64::from(usd);
                    let lowest = [said, ceiling].into_iter().flatten().min();
                    proptest::prop_assert!(lowest.is_none_or(|lowest| held <= f64::from(lowest)), "{held} of {lowest:?}");
                    if let Some(Value::Text(id)) = story.fact("reservation_id") {
                        open.push(id.into_owned());
                    }
                }
            }
        }
    }

    #[test]
    fn a_call_beyond_its_cap_is_counted_with_what_it_cost() {
        let mut story = Story::default();
        let call = |usd: f64| ask("record", json!({"key": "email", "cap": 1, "usd": usd}));
        assert!(story.at(0).allows(&*call(0.1)));
        assert_eq!(story.at(1).refuses(&*call(0.2)), Reason::CallCapReached);
        assert!(story.at(2).allows(&*ask("check", json!({}))));
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(0.3)), "the money is gone");
        let unpriced = ask("record", json!({"model": "no-such-model", "input_tokens": 70}));
        assert_eq!(story.at(3).refuses(&*unpriced), Reason::UnknownModel);
        assert!(story.at(4).allows(&*ask("check", json!({}))));
        assert_eq!(story.fact("spent_tokens"), Some(Value::Int(70)), "its tokens have been used, whatever they cost");
    }

    #[test]
    fn a_parents_cap_holds_for_its_children() {
        let mut story = Story::default();
        let call = |whose: &str| operation("/guard/budget/record", json!({"session_id": whose, "parent": "team", "key": "search"}));
        assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "cap": 2}))));
        assert!(story.at(1).allows(&*call("a")) && story.at(1).allows(&*call("b")));
        assert_eq!(story.at(2).refuses(&*call("c")), Reason::CallCapReached);
    }

    #[test]
    fn a_committed_step_counts_its_key() {
        let mut story = Story::default();
        let id = reserve(story.at(0), json!({"usd": 0.1, "key": "email", "cap": 1}));
        assert!(story.at(1).allows(&*ask("commit", json!({"reservation_id": id, "key": "email"}))));
        assert_eq!(story.at(2).refuses(&*ask("reserve", json!({"usd": 0.1, "key": "email"}))), Reason::CallCapReached);
    }

    #[test]
    fn what_was_agreed_is_no_fault_of_who_pays_it() {
        let mut story = Story::default();
        let id = reserve(story.at(0), json!({"usd": 0.6}));
        assert!(story.at(1).allows(&*ask("record", json!({"usd": 0.9}))), "what is set aside may be given back");
        assert!(story.at(2).allows(&*ask("commit", json!({"reservation_id": id, "usd": 0.6}))));
        assert_eq!(story.fact("spent_usd"), Some(Value::Number(1.5)));
        assert_eq!(story.at(3).refuses(&*ask("check", json!({}))), Reason::BudgetExceeded);
        assert_eq!(story.message(), "The budget of $1.00 is exceeded: $1.50 spent. Stop the run, or raise the limit.");
    }

    /// One thing that is done to a budget.
    #[derive(Debug, Clone)]
    enum Act {
        Check(u32),
        Record(u32),
        Call(u32, u8),
        Reserve(u32),
        Commit(usize, Option<u32>),
        Release(usize),
    }

    fn act() -> impl proptest::strategy::Strategy<Value = Act> {
        use proptest::prelude::*;
        prop_oneof![
            (0_u32..60).prop_map(Act::Check),
            (0_u32..40).prop_map(Act::Record),
            (0_u32..40, 0_u8..3).prop_map(|(cents, key)| Act::Call(cents, key)),
            (0_u32..60).prop_map(Act::Reserve),
            (any::<usize>(), proptest::option::of(0_u32..60)).prop_map(|(which, cents)| Act::Commit(which, cents)),
            any::<usize>().prop_map(Act::Release),
        ]
    }

    proptest::proptest! {
        /// The budget of a process and that of a store answer alike and hold the same, whatever is done to a parent and its children.
        #[test]
        fn a_process_and_a_store_keep_the_same_books(
            limits in proptest::collection::vec((proptest::option::of(0_u32..200), proptest::option::of(0_u32..4)), 3),
            acts in proptest::collection::vec((0_usize..3, act()), 1..60),
        ) {
            use runguard_core::budget::{Budget as Process, Cost as Amount, Limits as Bounds};
            const NAMES: [&str; 3] = ["team", "a", "b"];
            // A cent is ten tokens, so that both units are counted.
            let amount = |cents: u32| Amount { usd: NanoDollars::from_nanos(i64::from(cents) * 10_000_000).unwrap(), tokens: u64::from(cents) * 10 };
            let bounds = |(cents, cap): &(Option<u32>, Option<u32>)| Bounds { usd: cents.map(|cents| amount(cents).usd), tokens: cents.map(|cents| amount(cents).tokens), cap: *cap };
            let team = Process::new(bounds(&limits[0]));
            let budgets = [team.clone(), team.child(bounds(&limits[1])), team.child(bounds(&limits[2]))];
            let mut story = Story::default();
            let body = |whose: usize, cents: Option<u32>, more: Json| {
                let mut body = json!({"session_id": NAMES[whose]});
                if whose > 0 {
                    body["parent"] = "team".into();
                }
                if let Some(cents) = cents {
                    body["usd"] = format!("{}.{:02}", cents / 100, cents % 100).into();
                    body["tokens"] = (cents * 10).into();
                }
                body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                body
            };
            for (whose, (cents, cap)) in limits.iter().enumerate() {
                let mut more = json!({});
                if let Some(cents) = cents {
                    more["max_usd"] = format!("{}.{:02}", cents / 100, cents % 100).into();
                    more["max_tokens"] = (cents * 10).into();
                }
                if let Some(cap) = cap {
                    more["cap"] = (*cap).into();
                }
                story.at(0).run(&*operation("/guard/budget/record", body(whose, Some(0), more)));
            }
            let mut open: Vec<(usize, runguard_core::budget::ReservationId, String, Amount)> = Vec::new();
            for (time, (whose, act)) in acts.into_iter().enumerate() {
                let story = story.at(time as i64 + 1);
                let (in_process, in_store) = match act {
                    Act::Check(cents) => {
                        (budgets[whose].check(amount(cents)).is_ok(), story.allows(&*operation("/guard/budget/check", body(whose, Some(cents), json!({})))))
                    }
                    Act::Record(cents) => {
                        (budgets[whose].record(amount(cents)).is_ok(), story.allows(&*operation("/guard/budget/record", body(whose, Some(cents), json!({})))))
                    }
                    Act::Call(cents, key) => {
                        let key = key.to_string();
                        let is_free = budgets[whose].calls_left(&key) != Some(0) && budgets[whose].check(Amount::ZERO).is_ok();
                        let may = story.allows(&*operation("/guard/budget/check", body(whose, None, json!({"key": key}))));
                        proptest::prop_assert_eq!(is_free, may);
                        if !may {
                            continue;
                        }
                        budgets[whose].count(&key).unwrap();
                        let record = operation("/guard/budget/record", body(whose, Some(cents), json!({"key": key})));
                        (budgets[whose].record(amount(cents)).is_ok(), story.allows(&*record))
                    }
                    Act::Reserve(cents) => {
                        let id = budgets[whose].reserve_with_id(amount(cents));
                        let granted = story.allows(&*operation("/guard/budget/reserve", body(whose, Some(cents), json!({}))));
                        if let (Ok(id), true, Some(Value::Text(name))) = (id, granted, story.fact("reservation_id")) {
                            open.push((whose, id, name.into_owned(), amount(cents)));
                        }
                        (id.is_ok(), granted)
                    }
                    Act::Commit(which, cents) if !open.is_empty() => {
                        let (whose, id, name, estimate) = open.swap_remove(which % open.len());
                        let committed = budgets[whose].commit_by_id(id, cents.map_or(estimate, amount)).is_ok();
                        (committed, story.allows(&*operation("/guard/budget/commit", body(whose, cents, json!({"reservation_id": name})))))
                    }
                    Act::Release(which) if !open.is_empty() => {
                        let (whose, id, name, _) = open.swap_remove(which % open.len());
                        budgets[whose].release_by_id(id).unwrap();
                        (true, story.allows(&*operation("/guard/budget/release", body(whose, None, json!({"reservation_id": name})))))
                    }
                    Act::Commit(..) | Act::Release(_) => continue,
                };
                proptest::prop_assert_eq!(in_process, in_store);
                for (whose, budget) in budgets.iter().enumerate() {
                    let books = budget.snapshot();
                    let kept = story.account(NAMES[whose]);
                    proptest::prop_assert_eq!(kept.spent(), books.spent());
                    // Apart from what was spent without asking, what is spent and set aside stays within the limit.
                    let now = Timestamp::from_millis(time as i64 + 1);
                    proptest::prop_assert_eq!(kept.reserved(now), books.reserved);
                    if let Some(limit) = books.limits.usd {
                        proptest::prop_assert!(books.committed.usd.saturating_add(books.reserved.usd) <= limit);
                    }
                }
            }
        }
    }

    #[test]
    fn a_child_draws_on_its_parent() {
        let mut story = Story::default();
        let child = |name: &str, usd: f64| operation("/guard/budget/reserve", json!({"session_id": name, "parent": "team", "usd": usd}));
        assert!(story.at(0).allows(&*operation("/guard/budget/record", json!({"session_id": "team", "usd": 0, "max_usd": 1}))));
        assert!(story.at(1).allows(&*child("a", 0.7)));
        assert_eq!(story.at(2).refuses(&*child("b", 0.4)), Reason::BudgetExceeded);
        assert_eq!(story.fact("level"), Some(Value::from("parent")));
        assert!(story.at(3).allows(&*child("b", 0.3)));
    }

    #[test]
    fn calls_are_capped_by_key() {
        let mut story = Story::default();
        let call = |path: &str, key: &str| ask(path, json!({"key": key, "cap": 2}));
        assert!(story.at(0).allows(&*call("record", "email")) && story.at(0).allows(&*call("record", "email")));
        assert_eq!(story.at(0).refuses(&*call("check", "email")), Reason::CallCapReached);
        assert_eq!(story.at(0).refuses(&*call("record", "email")), Reason::CallCapReached);
        assert!(story.at(0).allows(&*call("record", "phone")));
        assert_eq!(story.fact("remaining_calls"), Some(Value::Int(1)));
    }

    #[test]
    fn tokens_are_priced_and_an_unknown_model_is_refused() {
        let mut story = Story::default();
        let usage = |model: &str| ask("record", json!({"model": model, "input_tokens": 100_000, "output_tokens": 10_000}));
        assert!(story.at(0).allows(&*usage("anthropic.claude-3-7-sonnet-20250219-v1:0")));
        assert_eq!(story.fact("cost_usd"), Some(Value::Number(0.45)));
        assert_eq!(story.at(1).refuses(&*usage("no-such-model")), Reason::UnknownModel);
    }
}
