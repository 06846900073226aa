//! The parts of a run that a RunGuard service keeps: what to send it, and what its answer means.
//!
//! Nothing is sent here. A part gives a [`Question`], a route and a JSON body; whoever has a connection sends it and tells what came
//! back, or that nothing did ([`Question::told`]). Arguments and results never leave the process: the service is told fingerprints.

mod circuit;
mod rest;
mod tools;

pub use circuit::{CallAnswer, ServiceCircuit, ServicePermit};
pub use rest::Rest;
pub use tools::{ServiceSkip, ServiceTools};

use super::reply;
use super::trip::{Trip, Unpriced, What};
use crate::breaker::EndpointRefused;
pub use crate::budget::Books;
use crate::budget::{Left, NO_STEP, Remaining, call_key};
use crate::detect::loops::{Called, Compared, LoopDetected, LoopDetector, LoopKind, LoopSettings};
use crate::detect::sessions::{SessionKey, Sessions};
use crate::detect::stall::{CallEffect, Rung, StallRule, StallSessions, StallSettings, Step, Verdict, result_fingerprint};
use crate::fingerprint;
use crate::ledger::{Cost, Limits, Reserve, Unit, Unsettled};
use crate::money::NanoDollars;
use crate::object::Object;
use crate::prices::{ServiceTier, Usage};
use crate::reason::Reason;
use crate::time::{Span, Timestamp};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Ids that a service takes have at most this many characters.
const LONGEST_ID: usize = 256;
/// Of a longer one this much is kept, before the fingerprint that tells it from others.
const KEPT_OF_LONG_ID: usize = 200;
/// Of an error and of a message this many characters are sent, for people; compared are fingerprints of all of them.
const LONGEST_TEXT: usize = 4096;
/// Sessions whose turn is remembered. Beyond it one that was not asked about lately begins again with its first.
const MOST_SESSIONS: usize = 100_000;

/// What becomes of a question that nobody answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// It passes.
    Passes,
    /// It is refused.
    Refused,
}

/// A name that a service takes: a long one is cut, and told apart by its fingerprint.
pub fn short_id(name: &str) -> Cow<'_, str> {
    if name.len() <= LONGEST_ID || name.chars().count() <= LONGEST_ID {
        return Cow::Borrowed(name);
    }
    let kept: String = name.chars().take(KEPT_OF_LONG_ID).collect();
    Cow::Owned(format!("{kept}({})", fingerprint::hex(xxh3_64(name.as_bytes()))))
}

/// Which turn each session is in. A service keeps the history of a turn under a name of its own, so that a new turn begins without
/// asking it anything.
#[derive(Debug, Clone)]
struct Turns(Sessions<u32>);

impl Default for Turns {
    fn default() -> Self {
        Self(Sessions::new(Span::from_millis(i64::MAX as u64), MOST_SESSIONS))
    }
}

impl Turns {
    const ANY_TIME: Timestamp = Timestamp::ZERO;

    fn next(&mut self, session: &str) {
        let turn = self.0.enter(SessionKey::of(session), Self::ANY_TIME, || 0, |turn| *turn = 0);
        *turn = turn.saturating_add(1);
    }

    /// The first turn has the session's own name, the others a number behind it.
    fn name<'a>(&self, session: &'a str) -> Cow<'a, str> {
        match self.0.get(SessionKey::of(session), Self::ANY_TIME) {
            None | Some(0) => short_id(session),
            Some(turn) => Cow::Owned(short_id(&format!("{session}#{turn}")).into_owned()),
        }
    }
}

/// The body of a request, field by field, each once.
#[derive(Debug, Default)]
struct Body(Vec<(&'static str, Value)>);

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl Body {
    fn of_session(session: &str) -> Self {
        Self::default().with("session_id", short_id(session))
    }

    fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((name, value.into()));
        self
    }

    fn maybe(self, name: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    fn cost(self, cost: Cost) -> Self {
        self.with("usd", cost.usd.as_dollars()).with("tokens", cost.tokens)
    }

    fn spent(self, spent: Spent<'_>) -> Self {
        let some = |count: u64| (count > 0).then_some(count);
        match spent {
            Spent::Cost(cost) => self.cost(cost),
            Spent::Priced { model, cost } => {
                self.with("model", short_id(model)).with("usd", cost.usd.as_dollars()).with("input_tokens", cost.tokens)
            }
            Spent::Call { .. } | Spent::AnyCall => self.maybe("key", key_of(spent)),
            Spent::Usage { model, usage } => self
                .with("model", short_id(model))
                .with("input_tokens", usage.input_tokens)
                .with("output_tokens", usage.output_tokens)
                .with("cached_tokens", usage.cached_tokens)
                .with("cache_write_tokens", usage.cache_write_tokens)
                // What few requests have is said only by them.
                .maybe("cache_write_1h_tokens", some(usage.cache_write_1h_tokens))
                .maybe("audio_input_tokens", some(usage.audio_input_tokens))
                .maybe("audio_output_tokens", some(usage.audio_output_tokens))
                .maybe("service_tier", (usage.service_tier != ServiceTier::Standard).then(|| usage.service_tier.name())),
        }
    }
}

/// Which part of a run asks; each may have a service of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The loop detector.
    Loop,
    /// The stall detector.
    Stall,
    /// The budget.
    Budget,
    /// The circuit breaker.
    Circuit,
    /// The tracker of tool calls.
    Tools,
}

impl Part {
    /// Its name, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Stall => "stall",
            Self::Budget => "budget",
            Self::Circuit => "circuit",
            Self::Tools => "tools",
        }
    }
}

/// Something that a service has to be asked.
#[derive(Debug)]
#[must_use = "a question that is not sent is never answered"]
pub struct Question {
    path: &'static str,
    body: Body,
    unanswered: Unanswered,
    asks: Asks,
    /// Asked once this one is answered, whatever the answer.
    next: Option<Box<Question>>,
    /// Sent again with the budget's next question when nobody answers: it tells of money that was spent.
    is_kept: bool,
}

/// What the answer is read as.
#[derive(Debug)]
enum Asks {
    Loop {
        name: String,
        compared: Compared,
    },
    Stall {
        tool: String,
    },
    Books {
        budget: Arc<ServiceBudget>,
        names_step: bool,
        /// Known to be left of the calls without a step.
        calls: Option<u64>,
    },
    UsedUp {
        /// What may pass later is not asked about.
        for_good: bool,
    },
    Spend(Arc<ServiceBudget>),
    Reserve(Arc<ServiceBudget>),
    Release,
    /// Tells limits to whoever has not heard of them.
    Limits(Arc<ServiceBudget>),
    Circuit {
        endpoint: String,
        session: String,
    },
    Tool,
    /// Tells how a call ended.
    CallEnded(Part),
}

/// What an answer means.
#[derive(Debug)]
pub enum Told {
    /// Nothing stands against it.
    Passed,
    /// Nobody answered, and then it passes; unless whoever asks knows better. Of a step that was shown: its tool.
    Unheard(Option<String>),
    /// At a step of this tool.
    Looked(Verdict, String),
    /// What a budget has left.
    Books(Books),
    /// Under this id; without one the service could not be asked.
    Reserved(Option<String>),
    /// Refused, and will be again.
    Stopped(Trip),
    /// Refused; later, or for less, it may pass.
    NotNow(Trip),
    /// What was asked for is more than there is, or than others have left of it.
    DoesNotFit {
        /// The refusal.
        trip: Trip,
        /// The limit begins anew by itself.
        renews: bool,
        /// Others have set something aside.
        is_set_aside: bool,
        /// What would fit.
        left: Remaining,
    },
    /// The model has no price, and dollars are limited.
    Unpriced(Unpriced),
    /// A call may run, by this.
    Permitted(ServicePermit),
    /// A call of something that fails must not run.
    EndpointRefused(EndpointRefused),
    /// A call should not run.
    Skip(ServiceSkip),
    /// Nobody answered, and then nothing passes.
    Unanswered,
    /// Another question comes first.
    Next(Question),
}

impl Told {
    /// A limit stands against it. One that renews is no end: later it passes.
    pub(super) fn refused(trip: Trip, renews: bool) -> Self {
        if renews { Self::NotNow(trip) } else { Self::Stopped(trip) }
    }
}

impl Question {
    fn new(path: &'static str, body: Body, unanswered: Unanswered, asks: Asks) -> Self {
        Self { path, body, unanswered, asks, next: None, is_kept: false }
    }

    /// Passes when nobody answers, and is sent again later.
    fn kept(self) -> Self {
        match self.next {
            Some(next) => Self { next: Some(Box::new(next.kept())), ..self },
            None => Self { is_kept: true, unanswered: Unanswered::Passes, ..self },
        }
    }

    /// The one that is meant, behind those that come first.
    fn last(&mut self) -> &mut Self {
        match self.next {
            Some(ref mut next) => next.last(),
            None => self,
        }
    }

    /// The route to ask.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// The body, as JSON.
    pub fn body(&self) -> String {
        serde_json::to_string(&self.body).unwrap_or_default()
    }

    /// Who asks.
    pub fn part(&self) -> Part {
        match self.asks {
            Asks::Loop { .. } => Part::Loop,
            Asks::Stall { .. } => Part::Stall,
            Asks::Books { .. } | Asks::UsedUp { .. } | Asks::Spend(_) | Asks::Reserve(_) | Asks::Release | Asks::Limits(_) => Part::Budget,
            Asks::Circuit { .. } => Part::Circuit,
            Asks::Tool => Part::Tools,
            Asks::CallEnded(part) => part,
        }
    }

    /// What the answer means: its body, as [`reply::read`] gives it, or `None` when there was none.
    pub fn told(self, answer: Option<&str>) -> Told {
        let Self { path, body, unanswered, asks, next, is_kept } = self;
        let answer = answer.and_then(reply::decision).map(ServiceReply);
        let told = match (answer, unanswered) {
            (Some(answer), _) => asks.read(&answer),
            (None, Unanswered::Passes) => {
                if let (true, Asks::Spend(budget)) = (is_kept, &asks) {
                    budget.keep(Unsent { path, body });
                }
                asks.unheard()
            }
            (None, Unanswered::Refused) => return Told::Unanswered,
        };
        next.map_or(told, |next| Told::Next(*next))
    }
}

impl Asks {
    /// What it means that nobody answered, where it passes then.
    fn unheard(self) -> Told {
        match self {
            Self::Loop { .. } => Told::Unheard(None),
            Self::Stall { tool } => Told::Unheard(Some(tool)),
            Self::UsedUp { .. } | Self::Spend(_) | Self::Release | Self::Limits(_) | Self::Tool | Self::CallEnded(_) => Told::Passed,
            Self::Books { .. } => Told::Books(Books::default()),
            Self::Reserve(_) => Told::Reserved(None),
            Self::Circuit { session, .. } => Told::Permitted(ServicePermit { session, ..ServicePermit::default() }),
        }
    }

    /// What a part of a run counts, where nothing was counted; others refuse each call by itself.
    fn part_unseen(&self) -> Option<What> {
        match self {
            Self::Loop { name, .. } => Some(What::Loop { cycle: vec![name.clone()], repeats: 0 }),
            Self::Stall { .. } => Some(What::Stall { rule: None, count: 0, nudge: String::new() }),
            Self::Books { .. } | Self::UsedUp { .. } | Self::Spend(_) | Self::Reserve(_) | Self::Release | Self::Limits(_) => {
                Some(What::Budget { unit: Unit::Usd, spent: 0.0, limit: 0.0 })
            }
            Self::Circuit { .. } | Self::Tool | Self::CallEnded(_) => None,
        }
    }

    fn read(self, answer: &ServiceReply<'_>) -> Told {
        // It says nothing of the run, nor has it heard anything.
        if let Some(what) = self.part_unseen().filter(|_| !answer.allows() && answer.gives(Reason::StateUnavailable)) {
            // What is only not known may pass later, so nothing is used up for good.
            let for_good = matches!(self, Self::UsedUp { for_good: true });
            return if for_good { Told::Passed } else { Told::NotNow(answer.trip(what)) };
        }
        match &self {
            Self::Spend(budget) | Self::Reserve(budget) | Self::Limits(budget) => {
                // Who is refused may have left nothing behind, not even limits; a record of nothing leaves them in any case.
                let is_known = answer.allows() || matches!(self, Self::Limits(_));
                budget.is_known.fetch_or(is_known, Ordering::Relaxed);
                budget.see(answer);
            }
            Self::Loop { .. }
            | Self::Stall { .. }
            | Self::Books { .. }
            | Self::UsedUp { .. }
            | Self::Release
            | Self::Circuit { .. }
            | Self::Tool
            | Self::CallEnded(_) => {}
        }
        match self {
            Self::Circuit { endpoint, session } => answer.permit(endpoint, session),
            Self::Tool => answer.skip(),
            Self::Stall { tool } => Told::Looked(answer.verdict(), tool),
            // The refusal of a call tells nothing of the money.
            Self::Books { budget, names_step: false, .. } if answer.gives(Reason::CallCapReached) => {
                Told::Next(budget.ask_for_books(None, false, Some(0)))
            }
            Self::Books { names_step, calls, .. } => Told::Books(answer.books(names_step, calls)),
            Self::Release | Self::Limits(_) | Self::CallEnded(_) => Told::Passed,
            Self::Reserve(_) if answer.allows() => Told::Reserved(answer.text("reservation_id").map(Cow::into_owned)),
            Self::Loop { .. } | Self::UsedUp { .. } | Self::Spend(_) if answer.allows() => Told::Passed,
            Self::Loop { name, compared } => Told::Stopped(answer.loop_trip(name, compared)),
            Self::Spend(_) => answer.refusal(Told::refused),
            Self::UsedUp { for_good } => {
                // What is only set aside may be given back.
                let told = answer.refusal(|trip, renews| if trip.is_used_up() { Told::refused(trip, renews) } else { Told::Passed });
                if for_good && matches!(told, Told::NotNow(_)) { Told::Passed } else { told }
            }
            // A smaller one may fit; whether anything is left is another question.
            Self::Reserve(_) => answer.refusal(|trip, renews| answer.does_not_fit(trip, renews)),
        }
    }
}

/// What a service answered. What it does not say beside its decision is taken to be nothing, so that an older one is understood too.
struct ServiceReply<'a>(Object<'a>);

impl<'a> ServiceReply<'a> {
    fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.0.text(name)
    }

    /// The same to keep; nothing where it is not said.
    fn owned(&self, name: &str) -> String {
        self.text(name).unwrap_or_default().into_owned()
    }

    fn whole(&self, name: &str) -> Option<u64> {
        self.0.read(name)
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.0.read(name)
    }

    fn small(&self, name: &str) -> u32 {
        self.whole(name).map_or(0, |count| u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn allows(&self) -> bool {
        self.0.get("allow") != Some("false")
    }

    fn flag(&self, name: &str) -> bool {
        self.0.get(name) == Some("true")
    }

    /// What it gives as the reason; an older service may give none.
    fn reason_or(&self, otherwise: Reason) -> Cow<'static, str> {
        self.text("reason").map_or(Cow::Borrowed(otherwise.code()), |reason| Cow::Owned(reason.into_owned()))
    }

    fn gives(&self, reason: Reason) -> bool {
        self.text("reason").as_deref() == Some(reason.code())
    }

    fn loop_trip(&self, name: String, compared: Compared) -> Trip {
        let pattern: Vec<String> = self.0.read("pattern").unwrap_or_else(|| vec![name]);
        let found = if self.gives(Reason::CallCeiling) {
            let max_calls = self.small("max_calls");
            LoopDetected { pattern, repeats: max_calls.saturating_add(1), kind: LoopKind::Ceiling { max_calls }, compared }
        } else {
            LoopDetected { pattern, repeats: self.small("repeats"), kind: LoopKind::Cycle, compared }
        };
        if self.gives(found.reason()) { Trip::from(&found) } else { self.trip(Trip::from(&found).what) }
    }

    fn verdict(&self) -> Verdict {
        Verdict {
            rung: self.text("rung").as_deref().and_then(Rung::from_code).unwrap_or_default(),
            rule: self.text("rule").as_deref().and_then(StallRule::from_code),
            count: self.small("count"),
        }
    }

    fn books(&self, names_step: bool, calls: Option<u64>) -> Books {
        let calls = self.whole("remaining_calls").or(self.gives(Reason::CallCapReached).then_some(0)).or(calls);
        let books = Books {
            spent: self.number("spent_usd").unwrap_or(0.0),
            reserved: self.number("reserved_usd").unwrap_or(0.0),
            remaining: self.number("remaining_usd"),
            limit: self.number("limit_usd"),
            spent_tokens: self.whole("spent_tokens").unwrap_or(0),
            reserved_tokens: self.whole("reserved_tokens").unwrap_or(0),
            remaining_tokens: self.whole("remaining_tokens"),
            limit_tokens: self.whole("limit_tokens"),
            left: Left::Unlimited,
        };
        books.with_left(names_step, calls)
    }

    /// What a refusal means: what `limited` makes of a limit that stands against it, and whether that renews. Else there is a model without
    /// a price, or a service that cannot say.
    fn refusal(&self, limited: impl FnOnce(Trip, bool) -> Told) -> Told {
        if self.gives(Reason::UnknownModel) {
            return Told::Unpriced(Unpriced { model: self.owned("model"), message: self.owned("message") });
        }
        let (number, whole) = (|name| self.number(name).unwrap_or(0.0), |name| self.whole(name).unwrap_or(0) as f64);
        let (unit, spent, limit) = if self.gives(Reason::CallCapReached) {
            (Unit::Calls, whole("calls"), whole("cap"))
        } else if self.number("limit_usd").is_none() && self.number("limit_tokens").is_some() {
            (Unit::Tokens, whole("spent_tokens"), whole("limit_tokens"))
        } else {
            (Unit::Usd, number("spent_usd"), number("limit_usd"))
        };
        let trip = self.trip(What::Budget { unit, spent, limit });
        if self.gives(Reason::CallCapReached) || self.gives(Reason::BudgetExceeded) {
            limited(trip, self.whole("renews_in_seconds").is_some())
        } else {
            Told::NotNow(trip)
        }
    }

    fn does_not_fit(&self, trip: Trip, renews: bool) -> Told {
        let Books { reserved, reserved_tokens, remaining, remaining_tokens, .. } = self.books(false, None);
        let usd = remaining.and_then(|left| NanoDollars::from_dollars(left).ok());
        let left = Remaining { usd, tokens: remaining_tokens };
        Told::DoesNotFit { trip, renews, is_set_aside: reserved > 0.0 || reserved_tokens > 0, left }
    }

    /// In the service's own words: it knows the names of scopes, and codes that this program does not.
    fn trip(&self, what: What) -> Trip {
        Trip { reason: self.owned("reason").into(), message: self.owned("message"), what }
    }
}

/// The thresholds of a loop detector that a service keeps; what is left out is as set there.
#[derive(Debug, Clone)]
pub struct ServiceLoops {
    repeats: Option<u32>,
    max_cycle_len: Option<u32>,
    /// The service counts in whole seconds.
    window_seconds: Option<u64>,
    max_calls: Option<u32>,
    unanswered: Unanswered,
    turns: Turns,
    /// Follows every call of a run, for when nobody answers.
    own: Arc<Mutex<LoopDetector>>,
}

impl ServiceLoops {
    /// What is not given is as the service has it set.
    pub fn new(
        repeats: Option<u32>,
        max_cycle_len: Option<u32>,
        window: Option<Span>,
        max_calls: Option<u32>,
        unanswered: Unanswered,
    ) -> Self {
        let window_seconds = window.map(|window| window.as_millis().div_ceil(1000));
        // What cannot be set here is refused by the service.
        let settings = LoopSettings::given(repeats, max_cycle_len, window, max_calls);
        let own = Arc::new(Mutex::new(LoopDetector::new(settings).unwrap_or_default()));
        Self { repeats, max_cycle_len, window_seconds, max_calls, unanswered, turns: Turns::default(), own }
    }

    /// How many equal rounds are a loop, here; the service may have it set otherwise.
    pub(super) fn usual_repeats(&self) -> u32 {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).settings().repeats
    }

    /// A call by its name, which is counted.
    pub fn record(&self, session: &str, name: &str) -> Question {
        self.ask("/guard/loop", session, name, None)
    }

    /// The same without counting it.
    pub fn check(&self, session: &str, name: &str) -> Question {
        self.ask("/guard/loop/check", session, name, None)
    }

    /// A tool with the fingerprint of its arguments, which is counted.
    pub(super) fn record_call(&self, session: &str, tool: &str, arguments: u64) -> Question {
        self.ask("/guard/loop", session, tool, Some(arguments))
    }

    /// What this process alone would say of a call.
    pub(super) fn record_here(&self, session: &str, tool: &str, arguments: u64, now: Timestamp) -> Option<LoopDetected> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.record_call(session, Called::with_arguments(tool, arguments), now).err()
    }

    /// Begins a new history for the session. What was counted stays in the service's log.
    pub fn reset(&mut self, session: &str) {
        self.turns.next(session);
        self.own.lock().unwrap_or_else(PoisonError::into_inner).reset(session);
    }

    fn ask(&self, path: &'static str, session: &str, name: &str, arguments: Option<u64>) -> Question {
        let body = Body::of_session(&self.turns.name(session))
            .with("tool", short_id(name))
            .maybe("args", arguments.map(fingerprint::hex))
            .maybe("repeats", self.repeats)
            .maybe("max_cycle_len", self.max_cycle_len)
            .maybe("window_seconds", self.window_seconds)
            .maybe("max_calls", self.max_calls);
        let compared = if arguments.is_some() { Compared::Arguments } else { Compared::Names };
        Question::new(path, body, self.unanswered, Asks::Loop { name: name.to_owned(), compared })
    }
}

/// What a call gave: fingerprints, and of an error its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gave<'a> {
    /// Of the result; `None` when there is none.
    pub result: Option<u64>,
    /// What it failed with; `None` when it did not.
    pub error: Option<Failure<'a>>,
    /// What the call does, as far as its arguments tell.
    pub effect: CallEffect,
    /// Tokens the model used since the call before it, beside those that the run was told of.
    pub tokens: u64,
}

/// What a call failed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure<'a> {
    /// Its words.
    pub text: &'a str,
    /// Of all of them, also where the text is cut or there are none.
    pub fingerprint: u64,
}

/// A stall detector that a service keeps, with its thresholds.
#[derive(Debug, Clone)]
pub struct ServiceStalls {
    unanswered: Unanswered,
    turns: Turns,
    /// Follows every call of a run, for when nobody answers.
    own: Option<Arc<Mutex<StallSessions>>>,
}

impl ServiceStalls {
    /// For sessions that have done nothing yet.
    pub fn new(unanswered: Unanswered) -> Self {
        let own = StallSessions::new(StallSettings::default()).ok().map(|sessions| Arc::new(Mutex::new(sessions)));
        Self { unanswered, turns: Turns::default(), own }
    }

    /// What this process alone would say of a call.
    pub(super) fn observe_here(&self, session: &str, step: Step<'_>, now: Timestamp) -> Verdict {
        self.own
            .as_ref()
            .map_or_else(Verdict::default, |own| own.lock().unwrap_or_else(PoisonError::into_inner).observe(session, step, now))
    }

    /// A call and what it gave. Calls of one `round` were made side by side.
    pub fn observe(&self, session: &str, tool: &str, arguments: Option<u64>, gave: Gave<'_>, round: Option<u64>) -> Question {
        let body = Body::of_session(&self.turns.name(session))
            .with("tool", short_id(tool))
            .maybe("args_hash", arguments.map(fingerprint::hex))
            .maybe("result_hash", gave.result.map(fingerprint::hex))
            .maybe("error", gave.error.map(|error| beginning(error.text)))
            .maybe("error_hash", gave.error.map(|error| fingerprint::hex(error.fingerprint)))
            .maybe("round", round.map(|round| round.to_string()))
            .maybe("does", Some(gave.effect.text()).filter(|effect| !effect.is_empty()))
            .maybe("tokens", (gave.tokens > 0).then_some(gave.tokens));
        self.ask(body, tool)
    }

    /// What the model said without calling anything.
    pub fn message(&self, session: &str, text: &str) -> Question {
        let body = Body::of_session(&self.turns.name(session)).with("message", beginning(text));
        self.ask(body.with("message_hash", fingerprint::hex(result_fingerprint(text))), "")
    }

    /// A person has spoken, and all who share the session shall know.
    pub fn user_message(&self, session: &str) -> Question {
        self.ask(Body::of_session(&self.turns.name(session)).with("new_turn", true), "")
    }

    /// A person has spoken: the same, known here alone.
    pub(super) fn reset(&mut self, session: &str) {
        self.turns.next(session);
        if let Some(own) = &self.own {
            own.lock().unwrap_or_else(PoisonError::into_inner).user_message(session);
        }
    }

    fn ask(&self, body: Body, tool: &str) -> Question {
        Question::new("/guard/stall", body, self.unanswered, Asks::Stall { tool: tool.to_owned() })
    }
}

fn beginning(text: &str) -> String {
    text.chars().take(LONGEST_TEXT).collect()
}

/// A budget that a service keeps under a session's name.
#[derive(Debug)]
pub struct ServiceBudget {
    session: String,
    limits: Limits,
    parent: Option<Arc<ServiceBudget>>,
    unanswered: Unanswered,
    /// What becomes of what is set aside when nobody settles it.
    unsettled: Unsettled,
    /// The service has heard of its limits: a child that spends before its parent must tell them first.
    is_known: AtomicBool,
    /// What was spent while nobody answered.
    unsent: Mutex<VecDeque<Unsent>>,
    /// What was spent of each limit, by the latest answer.
    seen: Mutex<Vec<(Unit, f64, f64)>>,
}

/// A request that nobody answered.
#[derive(Debug)]
struct Unsent {
    path: &'static str,
    body: Body,
}

/// Requests that are kept of one budget while its service is away; of more, the oldest are lost.
const MOST_UNSENT: usize = 10_000;
/// Of these, sent before one question.
const SENT_AT_ONCE: usize = 16;

/// A child of a child: over a service nothing would keep the limit of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildOfChild;

impl fmt::Display for ChildOfChild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a budget that a service keeps draws on one parent, and this parent is a child itself; make it a child of the first budget, \
             or let the service keep limits that many share as scopes",
        )
    }
}

impl std::error::Error for ChildOfChild {}

/// What is spent.
#[derive(Debug, Clone, Copy)]
pub enum Spent<'a> {
    /// So much.
    Cost(Cost),
    /// One call of a step.
    Call {
        /// Whose step.
        session_id: &'a str,
        /// Which step.
        step_id: &'a str,
    },
    /// One call of the budget that has no steps.
    AnyCall,
    /// So much of a model, priced by whoever says it.
    Priced {
        /// The model's name, by which its scopes are known.
        model: &'a str,
        /// What it cost.
        cost: Cost,
    },
    /// Tokens, priced by the service.
    Usage {
        /// Its name.
        model: &'a str,
        /// What the provider counted.
        usage: &'a Usage,
    },
}

impl ServiceBudget {
    /// Limits are a ceiling beside those of the service.
    pub fn new(session: &str, limits: Limits, unanswered: Unanswered) -> Arc<Self> {
        Arc::new(Self {
            session: short_id(session).into_owned(),
            limits,
            parent: None,
            unanswered,
            unsettled: Unsettled::Free,
            is_known: AtomicBool::new(false),
            unsent: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// The same for one whose reservations are paid when nobody settles them: this process may die after it has paid.
    pub fn paid_if_unsettled(session: &str, limits: Limits, unanswered: Unanswered) -> Arc<Self> {
        let mut budget = Self::new(session, limits, unanswered);
        if let Some(budget) = Arc::get_mut(&mut budget) {
            budget.unsettled = Unsettled::Spent;
        }
        budget
    }

    /// A budget that draws on what remains of this one. A service keeps one parent of a budget, so a child has none.
    pub fn child(self: &Arc<Self>, session: &str, limits: Limits) -> Result<Arc<Self>, ChildOfChild> {
        if self.parent.is_some() {
            return Err(ChildOfChild);
        }
        let (session, parent) = (short_id(session).into_owned(), Some(Arc::clone(self)));
        let (unanswered, unsettled, is_known) = (self.unanswered, self.unsettled, AtomicBool::new(false));
        Ok(Arc::new(Self { session, limits, parent, unanswered, unsettled, is_known, unsent: Mutex::default(), seen: Mutex::default() }))
    }

    /// The name its books are kept under.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// The limits it was made with.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What was spent: it counts, also beyond the limit.
    pub fn record(self: &Arc<Self>, spent: Spent<'_>) -> Question {
        self.ask("/guard/budget/record", self.body().spent(spent), Asks::Spend(Arc::clone(self)))
    }

    /// Sets an estimate aside.
    pub fn reserve(self: &Arc<Self>, estimate: Spent<'_>) -> Question {
        let unsettled = (self.unsettled == Unsettled::Spent).then_some("spent");
        self.ask("/guard/budget/reserve", self.body().spent(estimate).maybe("if_unsettled", unsettled), Asks::Reserve(Arc::clone(self)))
    }

    /// Settles a reservation. One without an id was never heard of, so what was paid is recorded.
    pub fn commit(self: &Arc<Self>, reservation: Option<&str>, paid: Spent<'_>) -> Question {
        let Some(id) = reservation else { return self.record(paid) };
        self.ask("/guard/budget/commit", self.body().spent(paid).with("reservation_id", id), Asks::Spend(Arc::clone(self)))
    }

    /// The same for a call that was made and paid: its answer is worth having, so nothing is raised when nobody answers. It is told
    /// with the next question, and by its reservation counts once; one that never had a reservation may count twice, if only its answer was lost.
    pub(super) fn commit_for_good(self: &Arc<Self>, reservation: Option<&str>, paid: Spent<'_>) -> Question {
        let mut question = self.commit(reservation, paid);
        if let Some(id) = reservation {
            question.last().body.0.push(("request_id", format!("commit-{id}").into()));
        }
        question.kept()
    }

    /// The limit that is spent but for its reserve, by the latest answer.
    pub(super) fn nearly_spent(&self, reserve: Reserve) -> Option<(Unit, f64, f64)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().copied().find(|(unit, spent, limit)| {
            let [spent, limit] = [*spent, *limit].map(|value| match unit {
                Unit::Usd => NanoDollars::from_dollars(value).map_or(0, |usd| usd.as_nanos() as u64),
                Unit::Tokens | Unit::Calls => value as u64,
            });
            reserve.is_reached(*unit, spent, limit)
        })
    }

    fn see(&self, answer: &ServiceReply<'_>) {
        let Books { spent, limit, spent_tokens, limit_tokens, .. } = answer.books(false, None);
        let limits = [(Unit::Usd, spent, limit), (Unit::Tokens, spent_tokens as f64, limit_tokens.map(|limit| limit as f64))];
        let limits = limits.into_iter().filter_map(|(unit, spent, limit)| Some((unit, spent, limit?)));
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = limits.collect();
    }

    fn keep(&self, unsent: Unsent) {
        let mut kept = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(unsent);
        if kept.len() > MOST_UNSENT {
            kept.pop_front();
        }
    }

    /// Gives a reservation back unspent.
    pub fn release(self: &Arc<Self>, reservation: &str) -> Question {
        // Whose limits it has does not matter to what is given back.
        let parent = self.parent.as_ref().map(|parent| parent.session.as_str());
        let body = Body::of_session(&self.session).maybe("parent", parent).with("reservation_id", reservation);
        self.ask("/guard/budget/release", body, Asks::Release)
    }

    /// What is left; of the calls of a step, when one is named.
    pub fn books(self: &Arc<Self>, step: Option<(&str, &str)>) -> Question {
        let is_capped = [Some(self), self.parent.as_ref()].into_iter().flatten().any(|budget| budget.limits.cap.is_some());
        let key = match step {
            Some((session_id, step_id)) => key_of(Spent::Call { session_id, step_id }),
            None => key_of(Spent::AnyCall).filter(|_| is_capped),
        };
        self.ask_for_books(key, step.is_some(), None)
    }

    fn ask_for_books(self: &Arc<Self>, key: Option<Cow<'_, str>>, names_step: bool, calls: Option<u64>) -> Question {
        let asks = Asks::Books { budget: Arc::clone(self), names_step, calls };
        self.ask("/guard/budget/check", self.body().maybe("key", key), asks)
    }

    /// Whether nothing is left.
    pub fn used_up(self: &Arc<Self>) -> Question {
        self.ask_what_is_left(false)
    }

    /// Whether nothing is left for good: a limit that renews is none, nor a service that cannot say.
    pub fn exhausted(self: &Arc<Self>) -> Question {
        self.ask_what_is_left(true)
    }

    /// Asks for the smallest amounts that there are.
    fn ask_what_is_left(self: &Arc<Self>, for_good: bool) -> Question {
        let smallest = Cost { usd: NanoDollars::from_nanos(1).unwrap_or_default(), tokens: 1 };
        self.ask("/guard/budget/check", self.body().cost(smallest), Asks::UsedUp { for_good })
    }

    fn body(&self) -> Body {
        Body::of_session(&self.session)
            .maybe("parent", self.parent.as_ref().map(|parent| parent.session.as_str()))
            .maybe("max_usd", self.limits.usd.map(NanoDollars::as_dollars))
            .maybe("max_tokens", self.limits.tokens)
            .maybe("cap", self.limits.cap)
    }

    fn ask(self: &Arc<Self>, path: &'static str, body: Body, asks: Asks) -> Question {
        let question = self.after_limits(Question::new(path, body, self.unanswered, asks));
        let mut kept = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = kept.len().min(SENT_AT_ONCE);
        kept.drain(..first).rev().fold(question, |question, Unsent { path, body }| {
            let unsent = Question::new(path, body, self.unanswered, Asks::Spend(Arc::clone(self))).kept();
            Question { next: Some(Box::new(question)), ..unsent }
        })
    }

    /// A parent that the service has not heard of comes first.
    fn after_limits(&self, question: Question) -> Question {
        match &self.parent {
            Some(parent) if !parent.is_known.load(Ordering::Relaxed) => {
                let limits = parent.body().cost(Cost::ZERO);
                let asks = Asks::Limits(Arc::clone(parent));
                Question { next: Some(Box::new(question)), ..Question::new("/guard/budget/record", limits, parent.unanswered, asks) }
            }
            Some(_) | None => question,
        }
    }
}

/// The key of a counted step, as everywhere; a budget without steps has one for all.
fn key_of(spent: Spent<'_>) -> Option<Cow<'static, str>> {
    match spent {
        Spent::Call { session_id, step_id } => Some(Cow::Owned(short_id(&call_key(session_id, step_id)).into_owned())),
        Spent::AnyCall => Some(Cow::Borrowed(NO_STEP)),
        Spent::Cost(_) | Spent::Priced { .. } | Spent::Usage { .. } => None,
    }
}
