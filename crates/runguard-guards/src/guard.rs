//! The guards, and the one way all of them run.
//!
//! A guard is a pure function: settings, state, request and time in; findings and events out. What the findings do
//! (refuse, or only be noted) is a question of mode and decided here, once. What happened is kept as *events*: the
//! log carries them, and a state is nothing but its events applied in order. So recovery after a crash is the same
//! code as living through it.
//!
//! To add a guard: its file below, and its entry in the list of [`runguard_core::reason`]. CONTRIBUTING.md says it in full.

mod asking_again;
pub mod judging;
#[cfg(test)]
mod properties;

use crate::answer::{Answer, Facts, Signal};
use crate::input::{Field, Input};
use crate::lengths::LongRuns;
use crate::logged::{Retell, Shows, Traces};
use crate::policy::{GuardSettings, Mode, Policy, Rulebook, Section};
use runguard_core::breaker::circuit::Remains;
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::RowRef;
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

impl Route {
    /// Fills in what is required and not there with the field's own example, so that the body is taken.
    pub fn complete(&self, body: &mut serde_json::Map<String, serde_json::Value>) {
        for field in self.fields.iter().filter(|field| field.required) {
            let example = || serde_json::from_str(field.example).unwrap_or_default();
            body.entry(field.name).or_insert_with(example);
        }
    }
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

macro_rules! registry {
    ($(
        $(#[$about:meta])+
        $name:ident = $code:literal in $module:ident, $label:literal, subject $subject:literal { $($reasons:tt)+ }
    )+) => {
        $($(#[$about])+ pub mod $module;)+

        const ENTRIES: &[(GuardName, GuardEntry)] = &[$((GuardName::$name, $module::ENTRY)),+];
    };
}
runguard_core::for_every_guard!(registry);

/// What the service must know of a guard besides its name, its settings and how it decides.
#[derive(Debug, Clone, Copy)]
pub struct GuardEntry {
    pub routes: &'static [&'static Route],
    pub slots: &'static [&'static Slot],
    pub step: GuardedStep,
    /// What a step that was let pass is billed as. `None`: it is billed by nobody, or counted elsewhere: detectors that an agent asks beside
    /// one another about one call bill nothing, nor do budgets, which have figures of their own.
    pub billed: Option<Billed>,
    pub holds: Holds,
    /// What its rows show beyond their columns.
    pub shows: for<'a> fn(&RowRef<'a>) -> Shows<'a>,
    /// Makes its requests again from their rows.
    pub retelling: fn() -> Box<dyn Retell>,
    /// Where an agent asks it at every call: what its rows tell of what the agent did.
    pub traces: Option<Traces>,
}

impl GuardEntry {
    pub const fn of(guard: GuardName) -> &'static Self {
        &ENTRIES[guard.index()].1
    }
}

/// What is done when a guard allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardedStep {
    /// The user, or the model, is asked once more.
    Question,
    /// A model is paid.
    ModelCall,
    ToolCall,
    Handover,
    Retrieval,
}

/// What a step is billed as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Billed {
    /// A model is asked.
    AiStep,
    /// Something else is called.
    Call,
}

/// What would be lost if a guard decided from memory while the state that nodes share is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// A round of a loop.
    Flow,
    /// A limit that is never to be passed.
    Money,
}

const fn count_routes() -> usize {
    let (mut count, mut guard) = (0, 0);
    while guard < ENTRIES.len() {
        count += ENTRIES[guard].1.routes.len();
        guard += 1;
    }
    count
}

/// Every guard route of the service.
pub static ROUTES: &[&Route] = &{
    let mut routes = [ENTRIES[0].1.routes[0]; count_routes()];
    let (mut count, mut guard) = (0, 0);
    while guard < ENTRIES.len() {
        let (name, entry) = &ENTRIES[guard];
        let mut position = 0;
        while position < entry.routes.len() {
            assert!(entry.routes[position].guard as u8 == *name as u8, "a route names another guard than the one it is listed under");
            routes[count] = entry.routes[position];
            count += 1;
            position += 1;
        }
        guard += 1;
    }
    routes
};

/// States by the number they are filed under.
static SLOTS: [Option<&Slot>; 256] = {
    let mut slots = [None; 256];
    let mut guard = 0;
    while guard < ENTRIES.len() {
        let own = ENTRIES[guard].1.slots;
        let mut position = 0;
        while position < own.len() {
            let number = own[position].number as usize;
            assert!(slots[number].is_none(), "two states are filed under one number");
            slots[number] = Some(own[position]);
            position += 1;
        }
        guard += 1;
    }
    slots
};

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
    pub slot: &'static Slot,
    pub subject: &'a str,
}

impl<'a> Place<'a> {
    pub fn in_session(session_id: &'a str, slot: &'static Slot, subject: &'a str) -> Self {
        Self { scope: Scope::Session, name: session_id, slot, subject }
    }

    /// The subject as it may be kept.
    pub fn kept_subject(&self, store_text: StoreText) -> Cow<'a, str> {
        match self.slot.subject {
            NamedBy::Program => Cow::Borrowed(self.subject),
            NamedBy::Anyone => store_text.keep_name(self.subject),
        }
    }
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

/// How long a state matters.
#[derive(Debug, Clone, Copy)]
pub enum Lasts {
    /// Nothing in it does once the longest window has passed.
    Window,
    /// A run's history, money: as long as what it came from.
    Log,
    /// Books of a period: the longest is a month.
    Month,
    /// By what is in it.
    ByState(fn(&[u8]) -> Remains),
}

/// Who names what a state is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// A program: the name says nothing about people.
    Program,
    /// Whoever asks, maybe in the user's words.
    Anyone,
}

/// One kind of state: whose it is, where it lives, how it is made again from its events.
#[derive(Debug)]
pub struct Slot {
    /// What it is filed under on disk: added, never changed.
    pub number: u8,
    /// States that one step touches must live together, wherever they are kept.
    pub lives_with: LivesWith,
    pub lasts: Lasts,
    pub subject: NamedBy,
    replay: Replay,
    take_back: fn(&[u8]) -> Option<Vec<u8>>,
    outlook: fn(&Policy, &str, &[u8], Timestamp) -> Vec<Outlook>,
}

type Replay = fn(Option<&[u8]>, &[u8], Timestamp) -> Option<Vec<u8>>;

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Slot {}

impl Slot {
    /// A part of a guard's state, which lives with the session.
    pub(crate) const fn of<G: Guard, const PART: usize>(number: u8, lasts: Lasts) -> Self {
        Self {
            number,
            lives_with: LivesWith::Session,
            lasts,
            subject: NamedBy::Program,
            replay: |state, events, at| G::replay(PART, state, events, at),
            take_back: G::take_back,
            outlook: |policy, subject, state, now| {
                let mut parts = [None; MOST_PARTS];
                parts[PART] = Some(state);
                let probes = G::probes(G::section(policy), subject, &G::State::load(&parts), now);
                probes.iter().map(|probe| probe.outlook(policy, &parts, now)).collect()
            },
        }
    }

    pub fn from_number(number: u8) -> Option<&'static Self> {
        SLOTS[number as usize]
    }
}

/// The one moment of a request.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    pub now: Timestamp,
    pub decision_id: &'a str,
    pub store_text: StoreText,
    /// What is long for the tenant's runs, where the log says it.
    pub long_runs: Option<&'a LongRuns>,
}

/// A request that has been read: what it is about, where its states are, and what of it is kept.
pub trait GuardRequest: Send + Sync + Debug {
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
    /// What of the request is kept in the log, as JSON: the guard's own to read.
    fn input(&self, store_text: StoreText) -> String;
    /// What it does once, however often it is asked for: a name within the tenant.
    fn once(&self) -> Option<String> {
        None
    }
    /// Whether this answer leaves no row in the log, where it changes nothing.
    fn is_forgotten(&self, _answer: &Answer) -> bool {
        false
    }
}

/// A request that can be run.
pub trait Operation: GuardRequest {
    /// `states` are those at [`GuardRequest::places_by`] the same policy, in that order.
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
    /// Index into [`GuardRequest::places_by`].
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

/// A request that asks for nothing but the next unit of a limit, and how that limit stands.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) request: Box<dyn Operation>,
    pub(crate) used: u32,
    pub(crate) ceiling: u32,
    pub(crate) window: Span,
}

impl Probe {
    /// What the request would hear. It is run like any other, so that modes and retry times are those of a real one.
    fn outlook(&self, policy: &Policy, states: &[Option<&[u8]>], now: Timestamp) -> Outlook {
        let moment = Moment { now, decision_id: "", store_text: StoreText::None, long_runs: None };
        let answer = self.request.run(policy, states, moment).answer;
        Outlook {
            guard: answer.guard,
            subject: self.request.subject().to_owned(),
            used: self.used,
            ceiling: self.ceiling,
            window: self.window,
            reason: answer.reason.filter(|_| answer.is_block()),
            retry_at: answer.retry_at,
        }
    }
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
    /// What may be asked next of a state that was filed under this subject, as far as it can be known beforehand: nothing where it is
    /// what comes that decides, or not a count.
    fn probes(_section: &Section<Self::Settings>, _subject: &str, _state: &Self::State, _now: Timestamp) -> Vec<Probe> {
        Vec::new()
    }
    /// A part of the state after events happened to it. `None`: they are not known to this version.
    fn replay(part: usize, state: Option<&[u8]>, events: &[u8], at: Timestamp) -> Option<Vec<u8>> {
        let events: Vec<Self::Event> = postcard::from_bytes(events).ok()?;
        let mut parts = [None; MOST_PARTS];
        parts[part] = state;
        let mut state = Self::State::load(&parts);
        for event in &events {
            Self::apply(&mut state, event, at);
        }
        Some(state.save(part))
    }
    /// Events that undo these, of which nobody was told. `None`: they stay, they do no harm.
    fn take_back(_events: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Parts of the state of one guard.
const MOST_PARTS: usize = 2;

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
    /// Most states and events fit: they are copied once their length is known, so that nothing grows, and nothing is kept that is
    /// larger than it must be.
    const ROOM: usize = 1024;
    let mut room = [0; ROOM];
    match postcard::to_slice(value, &mut room) {
        Ok(bytes) => bytes.to_vec(),
        Err(_) => postcard::to_stdvec(value).unwrap_or_default(),
    }
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

/// A request as its guard understands it. With [`GuardRequest`] this is all a guard writes of a route: modes, retry times, answers, the log
/// and replay follow from it.
pub(crate) trait Decide: GuardRequest {
    type Guard: Guard;
    /// Why it refuses, with the numbers. What only tells is never refused: [`std::convert::Infallible`].
    type Block;
    /// What it says when it allows.
    type Pass;

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
    /// What an operator should hear of at once.
    fn notice(&self, _pass: &Self::Pass) -> Option<Notice> {
        None
    }
}

impl<D: Decide> Operation for D {
    fn run(&self, policy: &Policy, states: &[Option<&[u8]>], moment: Moment<'_>) -> Outcome {
        let section = D::Guard::section(policy);
        match self.route().kind {
            RouteKind::Check => run_check(self, section, states, moment),
            RouteKind::Record | RouteKind::RecordSilently => run_record(self, section, states, moment),
        }
    }
}

pub(crate) type SettingsOf<D> = <<D as Decide>::Guard as Guard>::Settings;
pub(crate) type StateOf<D> = <<D as Decide>::Guard as Guard>::State;
pub(crate) type EventOf<D> = <<D as Decide>::Guard as Guard>::Event;
pub(crate) type RulingOf<D> = Ruling<<D as Decide>::Block, <D as Decide>::Pass, EventOf<D>>;

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
    /// The rule that was broken, where the reason is that of several: it may have a mode of its own.
    pub(crate) rule: Option<Reason>,
}

impl<B, E> Finding<B, E> {
    pub(crate) fn new(reason: Reason, block: B, clears_at: Option<Timestamp>) -> Self {
        Self { reason, block, clears_at, events: Vec::new(), rule: None }
    }

    fn mode<S>(&self, rulebook: &Rulebook<S>) -> Mode {
        let own = rulebook.mode_of(self.reason);
        self.rule.map_or(own, |rule| own.min(rulebook.mode_of(rule)))
    }
}

/// What is told has happened, whatever the mode: it is counted, and nothing is refused.
fn run_record<D: Decide>(told: &D, section: &Section<SettingsOf<D>>, states: &[Option<&[u8]>], moment: Moment<'_>) -> Outcome {
    let settings = &section.for_subject(told.subject()).settings;
    let state = StateOf::<D>::load(states);
    let ruling = told.decide(settings, &state, moment);
    let notice = told.notice(&ruling.pass);
    Outcome {
        answer: answer(told, None, told.pass(ruling.pass, moment), Vec::new()),
        changes: changes::<D::Guard>(state, ruling.events, moment.now),
        notice,
        warnings: told.warnings(settings),
    }
}

/// Runs a check with the one section of a policy that it needs: decides, applies the modes, finds the true retry time, applies the events.
pub(crate) fn run_check<C: Decide>(check: &C, section: &Section<SettingsOf<C>>, states: &[Option<&[u8]>], moment: Moment<'_>) -> Outcome {
    let rulebook = section.for_subject(check.subject());
    if rulebook.mode == Mode::Off {
        return Outcome {
            answer: answer(check, Some(true), check.always(true).with("mode", "off"), Vec::new()),
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
        match finding.mode(rulebook) {
            Mode::Off => {}
            Mode::Observe => {
                let (facts, message) = check.explain(settings, &state, &finding.block, moment);
                signals.push(Signal { reason: finding.reason, message, facts });
            }
            Mode::Enforce => {
                let (facts, message) = check.explain(settings, &state, &finding.block, moment);
                let mut answer = answer(check, Some(false), check.always(false).and(facts), signals);
                answer.reason = Some(finding.reason);
                answer.message = Some(message);
                answer.retry_at = finding.clears_at.and_then(|at| {
                    if finding.events.is_empty() {
                        return first_allowed(check, rulebook, &state, moment, at);
                    }
                    // Whoever asks again finds what this refusal leaves behind.
                    let mut after = StateOf::<C>::load(states);
                    for event in &finding.events {
                        C::Guard::apply(&mut after, event, moment.now);
                    }
                    first_allowed(check, rulebook, &after, moment, at)
                });
                return Outcome { answer, changes: changes::<C::Guard>(state, finding.events, moment.now), notice: None, warnings };
            }
        }
    }
    let facts = check.always(true).and(check.pass(ruling.pass, moment));
    let mut answer = answer(check, Some(true), facts, signals);
    if let Some(first) = answer.signals.first() {
        answer.reason = Some(first.reason);
        answer.message = Some(first.message.clone());
    }
    Outcome { answer, changes: changes::<C::Guard>(state, ruling.events, moment.now), notice: None, warnings }
}

fn answer<D: Decide>(request: &D, allow: Option<bool>, facts: Facts, signals: Vec<Signal>) -> Answer {
    Answer { guard: request.route().guard, allow, reason: None, message: None, retry_at: None, facts, signals }
}

/// Retry times must be true for the whole decision, not for one rule: when the first rule clears, another may
/// still refuse. So the decision is made again at each moment a rule clears, until one lets the request pass.
fn first_allowed<C: Decide>(
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
        let Some(blocking) = ruling.findings.iter().find(|finding| finding.mode(rulebook) == Mode::Enforce) else {
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
    if parts == 0 {
        return vec![Change { place: 0, events: encode(&events), state: state.save(0) }];
    }
    let of_part = |place: usize| {
        let events: Vec<&G::Event> = events.iter().filter(|event| G::part(event) == place).collect();
        (!events.is_empty()).then(|| Change { place, events: encode(&events), state: state.save(place) })
    };
    (0..=parts).filter_map(of_part).collect()
}

/// What a session or an endpoint is after events happened to it: how a state is rebuilt from the log.
/// `None` when the slot or the events are not known to this version.
pub fn replay(slot: u8, state: Option<&[u8]>, events: &[u8], at: Timestamp) -> Option<Vec<u8>> {
    (Slot::from_number(slot)?.replay)(state, events, at)
}

/// Events that undo those that happened to a slot and nobody was told of. `None`: they stay, they do no harm.
pub fn take_back(slot: u8, events: &[u8]) -> Option<Vec<u8>> {
    (Slot::from_number(slot)?.take_back)(events)
}

/// What is used up in one slot of a session, and what would be allowed next.
pub fn outlook(slot: u8, policy: &Policy, subject: &str, state: &[u8], now: Timestamp) -> Vec<Outlook> {
    Slot::from_number(slot).map_or_else(Vec::new, |slot| (slot.outlook)(policy, subject, state, now))
}

/// When fewer than `cap` of these events will count. `None` for a cap of zero.
pub(crate) fn falls_below(mut times: Vec<Timestamp>, cap: u32, window: Span) -> Option<Timestamp> {
    times.sort_unstable();
    let position = times.len().checked_sub(cap as usize)?;
    times.get(position).map(|at| at.plus(window))
}
