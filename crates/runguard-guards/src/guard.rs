//! The guards, and the one way all of them run.
//!
//! A guard is a pure function: settings, state, request and time in; findings and events out. What the findings do
//! (refuse, or only be noted) is a question of mode and decided here, once. What happened is kept as *events*: the
//! log carries them, and a state is nothing but its events applied in order. So recovery after a crash is the same
//! code as living through it.
//!
//! To add a guard: its file below, a line in [`ROUTES`] and in [`replay`] and [`outlook`], a section in
//! [`crate::policy`], and its reasons in [`runguard_core::reason`].

pub mod action_group;
pub mod agent_action;
pub mod ai_task_retry;
pub mod api_circuit;
pub mod budget;
pub mod capture_slot_fill;
pub mod handoff;
pub mod kb_requery;
pub mod no_match_reprompt;
pub mod run_loop;
pub mod stall;
pub mod tool_call;

#[cfg(test)]
mod properties;

use crate::answer::{Answer, Facts, Signal};
use crate::input::{Field, Input};
use crate::policy::{GuardSettings, Mode, Policy, Rulebook, Section};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::text::StoreText;
pub(crate) use runguard_core::text::times;
use runguard_core::time::{Span, Timestamp};
pub(crate) use runguard_core::window::forget_earliest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt::Debug;

/// One `POST` route. Everything about it that is not code: from here come validation, OpenAPI and documentation.
#[derive(Debug)]
pub struct Route {
    pub path: &'static str,
    pub guard: GuardName,
    pub kind: RouteKind,
    pub summary: &'static str,
    pub fields: &'static [Field],
    /// What the answer may carry besides the common members.
    pub answers: &'static [AnswerField],
    pub reasons: &'static [Reason],
    pub read: fn(&Input<'_>) -> Box<dyn Operation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// Asks: may be refused.
    Check,
    /// Tells: answered `{"recorded": true}`.
    Record,
    /// Tells: answered without a body.
    RecordSilently,
}

#[derive(Debug, Clone, Copy)]
pub struct AnswerField {
    pub name: &'static str,
    pub kind: AnswerKind,
    pub about: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    Text,
    Whole,
    Number,
    Flag,
    List,
    Counts,
}

pub(crate) const fn says(name: &'static str, kind: AnswerKind, about: &'static str) -> AnswerField {
    AnswerField { name, kind, about }
}

/// Every guard route of the service.
pub static ROUTES: &[&Route] = &[
    &ai_task_retry::ROUTE,
    &handoff::ROUTE,
    &kb_requery::BOTPRESS_ROUTE,
    &kb_requery::CHECK_ROUTE,
    &kb_requery::RECORD_ROUTE,
    &agent_action::ROUTE,
    &agent_action::RESULT_ROUTE,
    &no_match_reprompt::ROUTE,
    &capture_slot_fill::ROUTE,
    &api_circuit::CHECK_ROUTE,
    &api_circuit::RECORD_ROUTE,
    &run_loop::ROUTE,
    &run_loop::CHECK_ROUTE,
    &stall::ROUTE,
    &budget::CHECK_ROUTE,
    &budget::RECORD_ROUTE,
    &budget::RESERVE_ROUTE,
    &budget::COMMIT_ROUTE,
    &budget::RELEASE_ROUTE,
    &tool_call::ROUTE,
    &tool_call::RECORD_ROUTE,
    &action_group::ROUTE,
    &action_group::RESULT_ROUTE,
];

/// Where a piece of state lives: with a session, or shared by all sessions of an endpoint, or by all that draw on an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    Session,
    Endpoint,
    Account,
}

/// The address of one piece of state. Within a scope it is told apart by slot (whose state) and subject (of what).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    pub scope: Scope,
    pub name: &'a str,
    pub slot: Slot,
    pub subject: &'a str,
}

impl<'a> Place<'a> {
    pub fn in_session(session_id: &'a str, slot: Slot, subject: &'a str) -> Self {
        Self { scope: Scope::Session, name: session_id, slot, subject }
    }

    /// The subject as it may be kept: a topic is named by the caller, maybe in the user's words.
    pub fn kept_subject(&self, store_text: StoreText) -> Cow<'a, str> {
        if self.slot == Slot::KbBotpress { store_text.keep_name(self.subject) } else { Cow::Borrowed(self.subject) }
    }
}

/// Whose state it is. The numbers are on disk: they are added, never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Slot {
    AiTaskRetry = 1,
    Handoff = 2,
    KbBotpress = 3,
    KbVoiceflow = 4,
    AgentAction = 5,
    NoMatchReprompt = 6,
    CaptureSlotFill = 7,
    CircuitEndpoint = 8,
    CircuitSession = 9,
    Loop = 10,
    Stall = 11,
    Budget = 12,
    ToolCall = 13,
    ActionGroup = 14,
    BudgetScope = 15,
}

/// What a state is asked together with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LivesWith {
    Session,
    /// A session's retries with the endpoint's phase; the subject names the endpoint.
    Endpoint,
    /// All budgets of a tenant, and the scopes they draw on: one question may be asked of any of them.
    Budget,
}

impl Slot {
    const ALL: [Self; 15] = [
        Self::AiTaskRetry,
        Self::Handoff,
        Self::KbBotpress,
        Self::KbVoiceflow,
        Self::AgentAction,
        Self::NoMatchReprompt,
        Self::CaptureSlotFill,
        Self::CircuitEndpoint,
        Self::CircuitSession,
        Self::Loop,
        Self::Stall,
        Self::Budget,
        Self::ToolCall,
        Self::ActionGroup,
        Self::BudgetScope,
    ];

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|slot| *slot as u8 == number)
    }

    /// States that one step touches must live together, wherever they are kept.
    pub const fn lives_with(self) -> LivesWith {
        match self {
            Self::CircuitEndpoint | Self::CircuitSession => LivesWith::Endpoint,
            Self::Budget | Self::BudgetScope => LivesWith::Budget,
            Self::AiTaskRetry
            | Self::Handoff
            | Self::KbBotpress
            | Self::KbVoiceflow
            | Self::AgentAction
            | Self::NoMatchReprompt
            | Self::CaptureSlotFill
            | Self::Loop
            | Self::Stall
            | Self::ToolCall
            | Self::ActionGroup => LivesWith::Session,
        }
    }

    /// Whether nothing in it matters once the longest window has passed.
    pub const fn is_windowed(self) -> bool {
        match self {
            Self::AiTaskRetry
            | Self::Handoff
            | Self::KbBotpress
            | Self::KbVoiceflow
            | Self::AgentAction
            | Self::NoMatchReprompt
            | Self::CaptureSlotFill
            | Self::CircuitSession => true,
            // An operator's word, a run's history, money.
            Self::CircuitEndpoint | Self::Loop | Self::Stall | Self::Budget | Self::BudgetScope | Self::ToolCall | Self::ActionGroup => {
                false
            }
        }
    }
}

/// The one moment of a request.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    pub now: Timestamp,
    pub decision_id: &'a str,
    pub store_text: StoreText,
}

/// A request that has been read and can be run.
pub trait Operation: Send + Sync + Debug {
    fn route(&self) -> &'static Route;
    fn session_id(&self) -> &str;
    /// The task, bot, topic, action, step or endpoint it is about.
    fn subject(&self) -> &str;
    /// The subject as it may be kept.
    fn kept_subject(&self, _store_text: StoreText) -> Cow<'_, str> {
        Cow::Borrowed(self.subject())
    }
    fn places(&self) -> Vec<Place<'_>>;
    /// The same with those that the settings add.
    fn places_by<'a>(&'a self, _policy: &'a Policy) -> Vec<Place<'a>> {
        self.places()
    }
    /// What of the request is kept in the log.
    fn input(&self, store_text: StoreText) -> Facts;
    /// `states` are those at [`Self::places_by`] the same policy, in that order.
    fn run(&self, policy: &Policy, states: &[Option<&[u8]>], moment: Moment<'_>) -> Outcome;
}

/// What running an operation gives.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub answer: Answer,
    pub changes: Vec<Change>,
    /// Something worth telling an operator at once.
    pub notice: Option<Notice>,
    /// What the caller asked for and does not get, although it is not refused.
    pub warnings: Vec<String>,
}

/// One piece of state with what happened to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Index into [`Operation::places_by`].
    pub place: usize,
    pub events: Vec<u8>,
    pub state: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    CircuitTripped,
    CircuitClosed,
    /// A result that belongs to no call.
    UnmatchedResult,
}

/// What is used up of a limit, and whether the next request would pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    pub guard: GuardName,
    pub subject: String,
    pub used: u32,
    pub ceiling: u32,
    pub window: Span,
    pub reason: Option<Reason>,
    pub retry_at: Option<Timestamp>,
}

/// The state and the events of a guard. Applying an event needs no settings: whatever it depends on, it carries.
pub(crate) trait Guard {
    type Settings: GuardSettings;
    type State: Stored;
    type Event: Serialize + DeserializeOwned;

    fn section(policy: &Policy) -> &Section<Self::Settings>;
    fn apply(state: &mut Self::State, event: &Self::Event, at: Timestamp);
    /// Which of the state's parts an event changes.
    fn part(_event: &Self::Event) -> usize {
        0
    }
    fn outlook(section: &Section<Self::Settings>, subject: &str, state: &Self::State, now: Timestamp) -> Vec<Outlook>;
}

/// A state as bytes, in one part or several.
pub(crate) trait Stored: Default {
    fn load(parts: &[Option<&[u8]>]) -> Self;
    fn save(&self, part: usize) -> Vec<u8>;
}

/// A part that cannot be read (from a later version) counts as empty: a guard must answer.
pub(crate) fn decode<T: DeserializeOwned + Default>(part: Option<&[u8]>) -> T {
    part.and_then(|bytes| postcard::from_bytes(bytes).ok()).unwrap_or_default()
}

pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    /// Most states and events fit: growing byte by byte would cost more than the encoding.
    const ROOM: usize = 256;
    postcard::to_extend(value, Vec::with_capacity(ROOM)).unwrap_or_default()
}

macro_rules! stored_in_one_part {
    ($state:ty) => {
        impl crate::guard::Stored for $state {
            fn load(parts: &[Option<&[u8]>]) -> Self {
                crate::guard::decode(parts.first().copied().flatten())
            }

            fn save(&self, _part: usize) -> Vec<u8> {
                crate::guard::encode(self)
            }
        }
    };
}
pub(crate) use stored_in_one_part;

/// A route that asks.
pub(crate) trait Check: Send + Sync + Debug {
    type Guard: Guard;
    /// Why it refuses, with the numbers.
    type Block;
    /// What it says when it allows.
    type Pass;

    fn route(&self) -> &'static Route;
    fn session_id(&self) -> &str;
    fn subject(&self) -> &str;
    fn kept_subject(&self, _store_text: StoreText) -> Cow<'_, str> {
        Cow::Borrowed(self.subject())
    }
    fn places(&self) -> Vec<Place<'_>>;
    /// See [`Operation::places_by`].
    fn places_by<'a>(&'a self, _policy: &'a Policy) -> Vec<Place<'a>> {
        self.places()
    }
    fn input(&self, store_text: StoreText) -> Facts;
    fn decide(&self, settings: &SettingsOf<Self>, state: &StateOf<Self>, moment: Moment<'_>) -> RulingOf<Self>;
    /// The facts and the sentence for the person who reads the log.
    fn explain(&self, settings: &SettingsOf<Self>, state: &StateOf<Self>, block: &Self::Block, moment: Moment<'_>) -> (Facts, String);
    fn pass(&self, pass: Self::Pass, moment: Moment<'_>) -> Facts;
    /// What the request asks for and does not get.
    fn warnings(&self, _settings: &SettingsOf<Self>) -> Vec<String> {
        Vec::new()
    }
    /// Facts that are in every answer of the route, allowed or not.
    fn always(&self, _allow: bool) -> Facts {
        Facts::default()
    }
}

pub(crate) type SettingsOf<C> = <<C as Check>::Guard as Guard>::Settings;
pub(crate) type StateOf<C> = <<C as Check>::Guard as Guard>::State;
pub(crate) type EventOf<C> = <<C as Check>::Guard as Guard>::Event;
pub(crate) type RulingOf<C> = Ruling<<C as Check>::Block, <C as Check>::Pass, EventOf<C>>;

/// What the rules found, in their order, and what happens if none of it stops the request.
#[derive(Debug)]
pub(crate) struct Ruling<B, P, E> {
    pub(crate) findings: Vec<Finding<B, E>>,
    pub(crate) pass: P,
    pub(crate) events: Vec<E>,
}

#[derive(Debug)]
pub(crate) struct Finding<B, E> {
    pub(crate) reason: Reason,
    pub(crate) block: B,
    /// When this rule stops firing, if nothing else happens. `None`: time does not help.
    pub(crate) clears_at: Option<Timestamp>,
    /// What a refusal by this rule leaves behind.
    pub(crate) events: Vec<E>,
}

impl<B, E> Finding<B, E> {
    pub(crate) fn new(reason: Reason, block: B, clears_at: Option<Timestamp>) -> Self {
        Self { reason, block, clears_at, events: Vec::new() }
    }
}

/// Runs a check: decides, applies the modes, finds the true retry time, applies the events.
pub(crate) fn run_check<C: Check>(check: &C, policy: &Policy, states: &[Option<&[u8]>], moment: Moment<'_>) -> Outcome {
    run_check_by(check, C::Guard::section(policy), states, moment)
}

/// The same with the one section of a policy that it needs.
pub(crate) fn run_check_by<C: Check>(check: &C, section: &Section<SettingsOf<C>>, states: &[Option<&[u8]>], moment: Moment<'_>) -> Outcome {
    let rulebook = section.for_subject(check.subject());
    if rulebook.mode == Mode::Off {
        return Outcome {
            answer: answer(check, true, check.always(true).with("mode", "off"), Vec::new()),
            changes: Vec::new(),
            notice: None,
            warnings: Vec::new(),
        };
    }
    let state = StateOf::<C>::load(states);
    let settings = &rulebook.settings;
    let ruling = check.decide(settings, &state, moment);
    let warnings = check.warnings(settings);
    let mut signals = Vec::new();
    for finding in ruling.findings {
        match rulebook.mode_of(finding.reason) {
            Mode::Off => {}
            Mode::Observe => {
                let (facts, message) = check.explain(settings, &state, &finding.block, moment);
                signals.push(Signal { reason: finding.reason, message, facts });
            }
            Mode::Enforce => {
                let (facts, message) = check.explain(settings, &state, &finding.block, moment);
                let mut answer = answer(check, false, check.always(false).and(facts), signals);
                answer.reason = Some(finding.reason);
                answer.message = Some(message);
                answer.retry_at = finding.clears_at.and_then(|at| first_allowed(check, rulebook, &state, moment, at));
                return Outcome { answer, changes: changes::<C::Guard>(state, finding.events, moment.now), notice: None, warnings };
            }
        }
    }
    let facts = check.always(true).and(check.pass(ruling.pass, moment));
    let mut answer = answer(check, true, facts, signals);
    if let Some(first) = answer.signals.first() {
        answer.reason = Some(first.reason);
        answer.message = Some(first.message.clone());
    }
    Outcome { answer, changes: changes::<C::Guard>(state, ruling.events, moment.now), notice: None, warnings }
}

fn answer<C: Check>(check: &C, allow: bool, facts: Facts, signals: Vec<Signal>) -> Answer {
    Answer { guard: check.route().guard, allow: Some(allow), reason: None, message: None, retry_at: None, facts, signals }
}

/// Retry times must be true for the whole decision, not for one rule: when the first rule clears, another may
/// still refuse. So the decision is made again at each moment a rule clears, until one lets the request pass.
fn first_allowed<C: Check>(
    check: &C,
    rulebook: &Rulebook<SettingsOf<C>>,
    state: &StateOf<C>,
    moment: Moment<'_>,
    clears_at: Timestamp,
) -> Option<Timestamp> {
    /// A rule can clear at most once an event; this many events are kept by none of the guards' defaults.
    const MOST_STEPS: usize = 2048;
    let mut at = clears_at;
    for _ in 0..MOST_STEPS {
        let ruling = check.decide(&rulebook.settings, state, Moment { now: at, ..moment });
        let Some(blocking) = ruling.findings.iter().find(|finding| rulebook.mode_of(finding.reason) == Mode::Enforce) else {
            return Some(at);
        };
        at = blocking.clears_at.filter(|later| *later > at)?;
    }
    None
}

/// Applies events and gives the changed parts as bytes.
pub(crate) fn changes<G: Guard>(mut state: G::State, events: Vec<G::Event>, at: Timestamp) -> Vec<Change> {
    if events.is_empty() {
        return Vec::new();
    }
    for event in &events {
        G::apply(&mut state, event, at);
    }
    let parts = events.iter().map(G::part).max().unwrap_or(0);
    let of_part = |place: usize| {
        let events: Vec<&G::Event> = events.iter().filter(|event| G::part(event) == place).collect();
        (!events.is_empty()).then(|| Change { place, events: encode(&events), state: state.save(place) })
    };
    (0..=parts).filter_map(of_part).collect()
}

/// What a session or an endpoint is after events happened to it: how a state is rebuilt from the log.
/// `None` when the slot or the events are not known to this version.
pub fn replay(slot: u8, state: Option<&[u8]>, events: &[u8], at: Timestamp) -> Option<Vec<u8>> {
    fn part<G: Guard>(part: usize, state: Option<&[u8]>, events: &[u8], at: Timestamp) -> Option<Vec<u8>> {
        let events: Vec<G::Event> = postcard::from_bytes(events).ok()?;
        let mut parts = [None; 2];
        parts[part] = state;
        let mut state = G::State::load(&parts);
        for event in &events {
            G::apply(&mut state, event, at);
        }
        Some(state.save(part))
    }
    match Slot::from_number(slot)? {
        Slot::AiTaskRetry => part::<ai_task_retry::AiTaskRetry>(0, state, events, at),
        Slot::Handoff => part::<handoff::Handoff>(0, state, events, at),
        Slot::KbBotpress => part::<kb_requery::Botpress>(0, state, events, at),
        Slot::KbVoiceflow => part::<kb_requery::Voiceflow>(0, state, events, at),
        Slot::AgentAction => part::<agent_action::AgentAction>(0, state, events, at),
        Slot::NoMatchReprompt => part::<no_match_reprompt::NoMatchReprompt>(0, state, events, at),
        Slot::CaptureSlotFill => part::<capture_slot_fill::CaptureSlotFill>(0, state, events, at),
        Slot::CircuitEndpoint => part::<api_circuit::ApiCircuit>(0, state, events, at),
        Slot::CircuitSession => part::<api_circuit::ApiCircuit>(1, state, events, at),
        Slot::Loop => part::<run_loop::RunLoop>(0, state, events, at),
        Slot::Stall => part::<stall::Stall>(0, state, events, at),
        Slot::Budget | Slot::BudgetScope => budget::replay(state, events, at),
        Slot::ToolCall => part::<tool_call::ToolCallGuard>(0, state, events, at),
        Slot::ActionGroup => part::<action_group::ActionGroup>(0, state, events, at),
    }
}

/// What is used up in one slot of a session, and what would be allowed next.
pub fn outlook(slot: u8, policy: &Policy, subject: &str, state: &[u8], now: Timestamp) -> Vec<Outlook> {
    fn of<G: Guard>(part: usize, policy: &Policy, subject: &str, state: &[u8], now: Timestamp) -> Vec<Outlook> {
        let mut parts = [None; 2];
        parts[part] = Some(state);
        G::outlook(G::section(policy), subject, &G::State::load(&parts), now)
    }
    match Slot::from_number(slot) {
        Some(Slot::AiTaskRetry) => of::<ai_task_retry::AiTaskRetry>(0, policy, subject, state, now),
        Some(Slot::Handoff) => of::<handoff::Handoff>(0, policy, subject, state, now),
        Some(Slot::KbBotpress) => of::<kb_requery::Botpress>(0, policy, subject, state, now),
        Some(Slot::KbVoiceflow) => of::<kb_requery::Voiceflow>(0, policy, subject, state, now),
        Some(Slot::AgentAction) => of::<agent_action::AgentAction>(0, policy, subject, state, now),
        Some(Slot::NoMatchReprompt) => of::<no_match_reprompt::NoMatchReprompt>(0, policy, subject, state, now),
        Some(Slot::CaptureSlotFill) => of::<capture_slot_fill::CaptureSlotFill>(0, policy, subject, state, now),
        Some(Slot::CircuitSession) => of::<api_circuit::ApiCircuit>(1, policy, subject, state, now),
        // What comes next decides, or it is not a count: nothing can be said beforehand.
        Some(Slot::CircuitEndpoint | Slot::Loop | Slot::Stall | Slot::Budget | Slot::BudgetScope | Slot::ToolCall | Slot::ActionGroup)
        | None => Vec::new(),
    }
}

/// Makes an [`Operation`] of a [`Check`].
macro_rules! operation_of_check {
    ($request:ty) => {
        impl crate::guard::Operation for $request {
            fn route(&self) -> &'static crate::guard::Route {
                crate::guard::Check::route(self)
            }

            fn session_id(&self) -> &str {
                crate::guard::Check::session_id(self)
            }

            fn subject(&self) -> &str {
                crate::guard::Check::subject(self)
            }

            fn kept_subject(&self, store_text: runguard_core::text::StoreText) -> std::borrow::Cow<'_, str> {
                crate::guard::Check::kept_subject(self, store_text)
            }

            fn places(&self) -> Vec<crate::guard::Place<'_>> {
                crate::guard::Check::places(self)
            }

            fn places_by<'a>(&'a self, policy: &'a crate::policy::Policy) -> Vec<crate::guard::Place<'a>> {
                crate::guard::Check::places_by(self, policy)
            }

            fn input(&self, store_text: runguard_core::text::StoreText) -> crate::answer::Facts {
                crate::guard::Check::input(self, store_text)
            }

            fn run(
                &self,
                policy: &crate::policy::Policy,
                states: &[Option<&[u8]>],
                moment: crate::guard::Moment<'_>,
            ) -> crate::guard::Outcome {
                crate::guard::run_check(self, policy, states, moment)
            }
        }
    };
}
pub(crate) use operation_of_check;

/// The answer of a route that only tells.
pub(crate) fn recorded(guard: GuardName, facts: Facts) -> Answer {
    Answer { guard, allow: None, reason: None, message: None, retry_at: None, facts, signals: Vec::new() }
}

/// A plain count against a ceiling, as three guards and many outlooks have it.
pub(crate) fn count_outlook(
    guard: GuardName,
    reason: Reason,
    subject: &str,
    slots: &runguard_core::window::Slots,
    ceiling: u32,
    window: Span,
    now: Timestamp,
) -> Outlook {
    let used = slots.count(now, window);
    let full = used >= ceiling;
    Outlook {
        guard,
        subject: subject.to_owned(),
        used,
        ceiling,
        window,
        reason: full.then_some(reason),
        retry_at: if full { slots.frees_at(window, ceiling) } else { None },
    }
}

/// When fewer than `cap` of these events will count. `None` for a cap of zero.
pub(crate) fn falls_below(mut times: Vec<Timestamp>, cap: u32, window: Span) -> Option<Timestamp> {
    times.sort_unstable();
    let position = times.len().checked_sub(cap as usize)?;
    times.get(position).map(|at| at.plus(window))
}
