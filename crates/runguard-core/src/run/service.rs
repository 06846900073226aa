//! The parts of a run that a RunGuard service keeps: what to send it, and what its answer means.
//!
//! Nothing is sent here. A part gives a [`Question`], a route and a JSON body; whoever has a connection sends it and tells what came
//! back, or that nothing did ([`Question::told`]). Arguments and results never leave the process: the service is told fingerprints.

mod budget;
mod circuit;
mod rest;
mod tools;

use budget::Unsent;
pub use budget::{ChildOfChild, ServiceBudget, Spent, TooManyScopes};
pub use circuit::{CallAnswer, ServiceCircuit, ServicePermit};
pub use rest::Rest;
pub use tools::{ServiceSkip, ServiceTools};

use super::reply;
use super::trip::{Trip, Unpriced, What};
use crate::breaker::EndpointRefused;
pub use crate::budget::Books;
use crate::budget::{Left, Remaining};
use crate::detect::loops::{Called, Compared, LoopDetected, LoopDetector, LoopKind, LoopSettings};
use crate::detect::sessions::{SessionKey, Sessions};
use crate::detect::stall::{CallEffect, Rung, StallRule, StallSessions, StallSettings, Step, Verdict, result_fingerprint};
use crate::fingerprint;
use crate::ledger::Unit;
use crate::limits::MAX_ID_CHARS;
use crate::money::NanoDollars;
use crate::object::Object;
use crate::reason::Reason;
use crate::time::{Span, Timestamp};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

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
    if name.len() <= MAX_ID_CHARS || name.chars().count() <= MAX_ID_CHARS {
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
pub enum AnswerMeaning {
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

impl AnswerMeaning {
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

    /// The members of the body, each once: for whoever keeps the service in the same process.
    pub fn members(&self) -> &[(&'static str, Value)] {
        &self.body.0
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
    pub fn told(self, answer: Option<&str>) -> AnswerMeaning {
        self.heard(answer.and_then(reply::decision))
    }

    /// The same, where whoever asks has read it: [`reply::decision`].
    pub fn heard(self, answer: Option<Object<'_>>) -> AnswerMeaning {
        let Self { path, body, unanswered, asks, next, is_kept } = self;
        let answer = answer.map(ServiceReply);
        let told = match (answer, unanswered) {
            (Some(answer), _) => asks.read(&answer),
            (None, Unanswered::Passes) => {
                if let (true, Asks::Spend(budget)) = (is_kept, &asks) {
                    budget.keep(Unsent { path, body });
                }
                asks.unheard()
            }
            (None, Unanswered::Refused) => return AnswerMeaning::Unanswered,
        };
        next.map_or(told, |next| AnswerMeaning::Next(*next))
    }
}

impl Asks {
    /// What it means that nobody answered, where it passes then.
    fn unheard(self) -> AnswerMeaning {
        match self {
            Self::Loop { .. } => AnswerMeaning::Unheard(None),
            Self::Stall { tool } => AnswerMeaning::Unheard(Some(tool)),
            Self::UsedUp { .. } | Self::Spend(_) | Self::Release | Self::Limits(_) | Self::Tool | Self::CallEnded(_) => {
                AnswerMeaning::Passed
            }
            Self::Books { .. } => AnswerMeaning::Books(Books::default()),
            Self::Reserve(_) => AnswerMeaning::Reserved(None),
            Self::Circuit { session, .. } => AnswerMeaning::Permitted(ServicePermit { session, ..ServicePermit::default() }),
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

    fn read(self, answer: &ServiceReply<'_>) -> AnswerMeaning {
        // It says nothing of the run, nor has it heard anything.
        if let Some(what) = self.part_unseen().filter(|_| !answer.allows() && answer.gives(Reason::StateUnavailable)) {
            // What is only not known may pass later, so nothing is used up for good.
            let for_good = matches!(self, Self::UsedUp { for_good: true });
            return if for_good { AnswerMeaning::Passed } else { AnswerMeaning::NotNow(answer.trip(what)) };
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
            Self::Stall { tool } => AnswerMeaning::Looked(answer.verdict(), tool),
            // The refusal of a call tells nothing of the money.
            Self::Books { budget, names_step: false, .. } if answer.gives(Reason::CallCapReached) => {
                AnswerMeaning::Next(budget.ask_for_books(None, false, Some(0)))
            }
            Self::Books { names_step, calls, .. } => AnswerMeaning::Books(answer.books(names_step, calls)),
            Self::Release | Self::Limits(_) | Self::CallEnded(_) => AnswerMeaning::Passed,
            Self::Reserve(_) if answer.allows() => AnswerMeaning::Reserved(answer.text("reservation_id").map(Cow::into_owned)),
            Self::Loop { .. } | Self::UsedUp { .. } | Self::Spend(_) if answer.allows() => AnswerMeaning::Passed,
            Self::Loop { name, compared } => AnswerMeaning::Stopped(answer.loop_trip(name, compared)),
            Self::Spend(_) => answer.refusal(AnswerMeaning::refused),
            Self::UsedUp { for_good } => {
                // What is only set aside may be given back.
                let told = answer
                    .refusal(|trip, renews| if trip.is_used_up() { AnswerMeaning::refused(trip, renews) } else { AnswerMeaning::Passed });
                if for_good && matches!(told, AnswerMeaning::NotNow(_)) { AnswerMeaning::Passed } else { told }
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
    fn refusal(&self, limited: impl FnOnce(Trip, bool) -> AnswerMeaning) -> AnswerMeaning {
        if self.gives(Reason::UnknownModel) {
            return AnswerMeaning::Unpriced(Unpriced { model: self.owned("model"), message: self.owned("message") });
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
            AnswerMeaning::NotNow(trip)
        }
    }

    fn does_not_fit(&self, trip: Trip, renews: bool) -> AnswerMeaning {
        let Books { reserved, reserved_tokens, remaining, remaining_tokens, .. } = self.books(false, None);
        let usd = remaining.and_then(|left| NanoDollars::from_dollars(left).ok());
        let left = Remaining { usd, tokens: remaining_tokens };
        AnswerMeaning::DoesNotFit { trip, renews, is_set_aside: reserved > 0.0 || reserved_tokens > 0, left }
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
