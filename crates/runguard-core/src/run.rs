//! Everything that watches one agent run, behind the few questions an agent loop asks.
//!
//! A [`Run`] holds the ceilings of its calls and asks a loop detector, a stall detector and a budget. Each of them is in this process
//! or kept by a service ([`service`]), and which it is changes nothing of the order of the questions, of what ends the run, and of
//! the codes and sentences that say so ([`Trip`]). Where a service has to be asked, a question ends with a [`Question`] to send; the
//! answer is told with [`Run::told`]. So nothing here waits for anything.
//!
//! What ends a run ends it for good: every later question gets the first trip at once, until an operator resets the run. What may
//! pass later, such as an estimate that does not fit beside what others have set aside, is refused and forgotten.
//!
//! ```
//! use runguard_core::Timestamp;
//! use runguard_core::run::{Ceilings, Loops, Progress, Refusal, Run};
//!
//! let mut run = Run::new("job-7", Ceilings::default(), Loops::default(), None, None);
//! let (now, arguments) = (Timestamp::from_millis(0), 7);
//! assert!(matches!(run.before_tool("search", arguments, now), Progress::Done));
//! assert!(matches!(run.before_tool("search", arguments, now), Progress::Done));
//! let Progress::Refused(Refusal::Trip(trip)) = run.before_tool("search", arguments, now) else { panic!("three in a row") };
//! assert_eq!(trip.reason, "loop_detected");
//! assert_eq!(run.trip(), Some(&trip));
//! ```

mod model_call;
pub mod reply;
pub mod service;
mod tool_rules;
mod trip;
mod warning;

use crate::budget::{Budget, Reservation, UsageRefused, call_key as joined};
use crate::detect::loops::{Called, LoopDetected, LoopDetector};
use crate::detect::stall::{CallEffect, StallSessions, Step, Verdict, VolatileResults};
use crate::fingerprint::Volatile;
use crate::ledger::{BudgetExceeded, Cost};
use crate::limits::setters;
use crate::money::NanoDollars;
use crate::object::Object;
use crate::prices::{UnknownModelError, Usage};
use crate::time::{Span, Timestamp};
pub use model_call::{ModelCall, ModelQuestion, Pricing, Used};
use model_call::{ModelCalls, Pending};
use service::{AnswerMeaning, Spent};
pub use service::{Failure, Gave, Question, ServiceBudget, ServiceCircuit, ServiceLoops, ServiceStalls, ServiceTools, Unanswered};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub use tool_rules::ToolRule;
use tool_rules::Tools;
pub use trip::{Trip, Unpriced, What, sentence};
pub use warning::{Warn, Warning};

/// How many calls a run may make, whatever they are, and how long it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Ceilings {
    /// Of all tools together; `None` without a ceiling.
    pub tool_calls: Option<u64>,
    /// Of all models together; `None` without a ceiling.
    pub model_calls: Option<u64>,
    /// From its first question on; `None` without a limit.
    pub time: Option<Span>,
}

setters!(Ceilings { tool_calls: Option<u64>, model_calls: Option<u64>, time: Option<Span> });

/// What is said to who settles a reservation that has ended.
pub const RESERVATION_ENDED: &str = "This reservation was committed or released before. Reserve anew.";

/// Where loops are looked for. Runs may share a detector: each is a session of its own.
#[derive(Debug, Clone)]
pub enum Loops {
    /// In this process.
    InProcess(Arc<Mutex<LoopDetector>>),
    /// By a service.
    Service(ServiceLoops),
}

impl Default for Loops {
    fn default() -> Self {
        Self::InProcess(Arc::new(Mutex::new(LoopDetector::default())))
    }
}

/// Where stalls are looked for.
#[derive(Debug, Clone)]
pub enum Stalls {
    /// In this process.
    InProcess(Arc<Mutex<StallSessions>>),
    /// By a service.
    Service(ServiceStalls),
}

/// Who keeps the books.
#[derive(Debug, Clone)]
pub enum Money {
    /// In this process.
    InProcess(Budget),
    /// By a service.
    Service(Arc<ServiceBudget>),
}

/// Where a question stands.
#[derive(Debug)]
#[must_use = "a refusal must be heeded, and a question sent"]
pub enum Progress {
    /// Nothing stands against it.
    Done,
    /// It may go on; this is for the model.
    Nudge(String),
    /// The model call may be made; the most it may cost is set aside.
    Started(ModelCall),
    /// Not yet: other model calls are under way, and what they have set aside may be given back. Ask again in a moment.
    Busy,
    /// It must not be done.
    Refused(Refusal),
    /// A service has to be asked; its answer belongs to [`Run::told`].
    Ask(Box<Ask>),
}

/// Why something must not be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// The run is over.
    Trip(Trip),
    /// This once.
    NotNow(Trip),
    /// The model has no price, and dollars are limited.
    Unpriced(Unpriced),
    /// The service did not answer, and then nothing passes.
    Unanswered,
}

/// A question on its way, and what it was asked for.
#[derive(Debug)]
pub struct Ask {
    /// What to send, and where.
    pub question: Question,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    Tool(Box<ToolCall>),
    Result(Box<ToolCall>, Outcome),
    Model,
    Begin(Box<Pending>),
    Money,
    /// A model call that had something set aside.
    Settled,
}

/// What a tool gave, as it was told to a service.
#[derive(Debug)]
struct Outcome {
    result: Option<u64>,
    error: Option<u64>,
    round: Option<u64>,
    effect: CallEffect,
}

#[derive(Debug)]
enum HeldMoney {
    /// Nothing limits the run.
    Nothing,
    InProcess(Reservation),
    Service {
        id: Option<String>,
    },
}

/// A call that a service was asked about. Once it is answered, or nobody did, this process follows it too, for when nobody answers.
#[derive(Debug)]
struct ToolCall {
    history: String,
    tool: String,
    arguments: u64,
    at: Timestamp,
}

/// Watches one agent run.
#[derive(Debug)]
pub struct Run {
    id: String,
    ceilings: Ceilings,
    loops: Loops,
    stall: Option<Stalls>,
    budget: Option<Money>,
    tool_calls: u64,
    model_calls: u64,
    model_calls_made: ModelCalls,
    began: Option<Timestamp>,
    trip: Option<Trip>,
    /// A model without a price has answered, and dollars are limited.
    unpriced: Option<Unpriced>,
    /// Histories of agents in the run that may have something in them.
    agents: BTreeSet<String>,
    tools: Tools,
    warn: Warn,
    has_warned: bool,
    /// Calls in a row that were answered with what the model has already.
    told_repeats: u32,
    /// Tokens of model calls since what a tool gave was last looked at.
    unjudged_tokens: u64,
}

/// A model that was told so often in a row that it has a result already, and asks for it again, does not listen. As many calls of one
/// answer may be told before the model reads any of it.
const MOST_TOLD_REPEATS: u32 = 6;

/// Agents of one run whose histories are kept. Of more, the first by name begins anew.
const MOST_AGENTS: usize = 1000;

impl Run {
    /// A run that has done nothing yet. Without `stall` and `budget` nothing is looked for, and nothing limited.
    pub fn new(id: impl Into<String>, ceilings: Ceilings, loops: Loops, stall: Option<Stalls>, budget: Option<Money>) -> Self {
        Self {
            id: id.into(),
            ceilings,
            loops,
            stall,
            budget,
            tool_calls: 0,
            model_calls: 0,
            model_calls_made: ModelCalls::default(),
            began: None,
            trip: None,
            unpriced: None,
            agents: BTreeSet::new(),
            tools: Tools::default(),
            warn: Warn::default(),
            has_warned: false,
            told_repeats: 0,
            unjudged_tokens: 0,
        }
    }

    /// With rules for single tools, by name.
    #[must_use]
    pub fn with_tool_rules(mut self, rules: BTreeMap<String, ToolRule>) -> Self {
        self.tools = Tools::of(rules);
        self
    }

    /// The fields of a tool's arguments that are left out of their fingerprint.
    pub fn ignored_fields(&self, tool: &str) -> &Volatile {
        self.tools.ignored(tool).unwrap_or(Volatile::NONE)
    }

    /// The session its history is kept under.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How many equal rounds of calls are a loop.
    pub fn repeats(&self) -> u32 {
        match &self.loops {
            Loops::InProcess(detector) => locked(detector).settings().repeats,
            Loops::Service(loops) => loops.usual_repeats(),
        }
    }

    /// What is never news in what its tools give.
    pub fn volatile_results(&self) -> VolatileResults {
        match &self.stall {
            Some(Stalls::InProcess(stalls)) => locked(stalls).settings().volatile.clone(),
            // Its settings are known there, where only fingerprints go.
            Some(Stalls::Service(_)) | None => VolatileResults::default(),
        }
    }

    /// Whether somebody looks at what its tools give.
    pub fn looks_for_stalls(&self) -> bool {
        self.stall.is_some()
    }

    /// Why the run was stopped, if it was.
    pub fn trip(&self) -> Option<&Trip> {
        self.trip.as_ref()
    }

    /// A tool is about to be called with arguments of this fingerprint. Counts the call.
    pub fn before_tool(&mut self, tool: &str, arguments: u64, now: Timestamp) -> Progress {
        self.before_tool_of(None, tool, arguments, now)
    }

    /// The same for one of several agents in a run: each has a history of its own, so that the steps of one do not hide another's loop.
    /// Ceilings, money and trip are the run's.
    pub fn before_tool_of(&mut self, agent: Option<&str>, tool: &str, arguments: u64, now: Timestamp) -> Progress {
        if let Some(refused) = self.over(now) {
            return refused;
        }
        if let Some(limit) = self.ceilings.tool_calls.filter(|limit| self.tool_calls >= *limit) {
            return self.stop(Trip::tool_calls(tool, limit));
        }
        if let Some(limit) = self.tools.count(tool) {
            return self.stop(Trip::calls_of(tool, limit));
        }
        self.tool_calls += 1;
        if !self.tools.is_watched(tool) {
            return Progress::Done;
        }
        let agents = agent.map(|agent| self.history_of(agent));
        let history = agents.as_deref().unwrap_or(&self.id);
        let arguments = self.tools.compared(history, tool, arguments);
        let recorded = match &self.loops {
            Loops::InProcess(detector) => locked(detector).record_call(history, Called::with_arguments(tool, arguments), now),
            Loops::Service(loops) => {
                let call = ToolCall { history: history.to_owned(), tool: tool.to_owned(), arguments, at: now };
                return ask(loops.record_call(history, tool, arguments), Purpose::Tool(Box::new(call)));
            }
        };
        recorded.map_or_else(|found| self.stop(Trip::from(&found)), |()| Progress::Done)
    }

    /// What the tool gave. May give a text for the model; a trip is told by the next question.
    pub fn after_tool(&mut self, tool: &str, arguments: u64, gave: Gave<'_>, now: Timestamp) -> Progress {
        self.after_tool_of(None, tool, arguments, gave, now)
    }

    /// The same for one of several agents in a run.
    pub fn after_tool_of(&mut self, agent: Option<&str>, tool: &str, arguments: u64, gave: Gave<'_>, now: Timestamp) -> Progress {
        self.told_repeats = 0;
        let agents = agent.map(|agent| self.history_of(agent));
        let history = agents.as_deref().unwrap_or(&self.id);
        let given = gave.error.map(|error| error.fingerprint).or(gave.result);
        if let Some(times) = given.and_then(|given| self.tools.gave(history, tool, arguments, given)) {
            self.trip.get_or_insert(Trip::polled(tool, times));
        }
        if !self.tools.is_watched(tool) {
            return Progress::Done;
        }
        // Who never tells of model calls has no rounds: every call counts.
        let round = (self.model_calls > 0).then_some(self.model_calls);
        let error = gave.error.map(|error| error.fingerprint);
        let step = Step { tool, args: arguments, result: gave.result, error, round, effect: gave.effect };
        let tokens = gave.tokens.saturating_add(std::mem::take(&mut self.unjudged_tokens));
        let verdict = match &self.stall {
            None => return Progress::Done,
            Some(Stalls::InProcess(detector)) => {
                let mut detector = locked(detector);
                detector.spent(history, tokens, now);
                detector.observe(history, step, now)
            }
            Some(Stalls::Service(stalls)) => {
                let call = ToolCall { history: history.to_owned(), tool: tool.to_owned(), arguments, at: now };
                let purpose = Purpose::Result(Box::new(call), Outcome { result: step.result, error, round, effect: step.effect });
                return ask(stalls.observe(history, tool, Some(arguments), Gave { tokens, ..gave }, round), purpose);
            }
        };
        self.looked(verdict, tool)
    }

    /// A tool is about to be called for a result that the model has already, or one like it. Whether it is to be told that in place of the
    /// result: not where the tool may be called again and again. Calls that are only alike are no loop to the detectors, so what was told
    /// is counted here, until a call runs. A trip is told by the next question.
    pub fn tell_repeat(&mut self, tool: &str) -> bool {
        if !self.tools.is_watched(tool) {
            return false;
        }
        self.told_repeats = self.told_repeats.saturating_add(1);
        // Whoever lets calls repeat more often lets them be told more often.
        if self.told_repeats >= MOST_TOLD_REPEATS.max(self.repeats()) {
            self.trip.get_or_insert(Trip::told(tool, self.told_repeats));
        }
        true
    }

    /// The model is about to be asked. Counts the call. Who knows what is sent asks with [`Self::begin_model`].
    pub fn before_model(&mut self, now: Timestamp) -> Progress {
        if let Some(refused) = self.over(now) {
            return refused;
        }
        let used_up = match &self.budget {
            None => None,
            Some(Money::InProcess(budget)) => budget.used_up(),
            Some(Money::Service(budget)) => return ask(budget.used_up(), Purpose::Model),
        };
        if let Some(exceeded) = used_up {
            return self.refuse(&exceeded);
        }
        self.model_called()
    }

    /// What was spent. It counts, also when it ends the run.
    pub fn record(&mut self, paid: Cost) -> Progress {
        self.used(paid.tokens);
        let recorded = match &self.budget {
            None => Ok(()),
            Some(Money::InProcess(budget)) => budget.record(paid),
            Some(Money::Service(budget)) => return ask(budget.record(Spent::Cost(paid)), Purpose::Money),
        };
        self.spent(recorded)
    }

    /// Whether dollars are limited, as far as that is known here. What costs something that nobody can price is not asked for then:
    /// [`crate::model_question::Asked`].
    pub fn limits_dollars(&self) -> bool {
        match &self.budget {
            None => false,
            Some(Money::InProcess(budget)) => budget.remaining().usd.is_some(),
            Some(Money::Service(budget)) => budget.limits_dollars(),
        }
    }

    /// What a model call used. In this process `price` says what it costs; a service has prices of its own. The tokens of a model without a
    /// price count; it is refused only where dollars are limited.
    pub fn record_usage(&mut self, model: &str, usage: &Usage, price: impl FnOnce() -> Result<NanoDollars, UnknownModelError>) -> Progress {
        self.used(usage.total_tokens());
        let recorded = match &self.budget {
            None => Ok(()),
            Some(Money::InProcess(budget)) => budget.record_usage(usage, price),
            Some(Money::Service(budget)) => return ask(budget.record(Spent::Usage { model, usage }), Purpose::Money),
        };
        match recorded {
            Ok(()) => Progress::Done,
            Err(UsageRefused::Exceeded(exceeded)) => self.refuse(&exceeded),
            Err(UsageRefused::Unpriced(unknown)) => self.unpriced(Unpriced::from(&unknown)),
        }
    }

    /// What a service answered: the body, as [`reply::read`] gives it, or `None` when nothing came.
    pub fn told(&mut self, ask: Box<Ask>, answer: Option<&str>) -> Progress {
        self.heard(ask, answer.and_then(reply::decision))
    }

    /// The same, where whoever asks has read it: [`reply::decision`].
    #[allow(clippy::boxed_local, reason = "it was given boxed, and comes back so")]
    pub fn heard(&mut self, ask: Box<Ask>, answer: Option<Object<'_>>) -> Progress {
        let Ask { question, purpose } = *ask;
        self.proceed(question.heard(answer), purpose)
    }

    /// Somebody who sees more than the run does has found a loop: one round of calls, how often it was made, and the sentences that say so.
    pub fn stop_loop(&mut self, cycle: Vec<String>, repeats: u32, message: String) -> Progress {
        self.stop(Trip::looped(cycle, repeats, message))
    }

    /// A person has spoken: what follows may repeat what was before. Money and trip stay.
    pub fn new_turn(&mut self) {
        self.told_repeats = 0;
        self.forget(&self.id.clone());
        for history in std::mem::take(&mut self.agents) {
            self.forget(&history);
        }
    }

    fn forget(&mut self, history: &str) {
        match &mut self.loops {
            Loops::InProcess(detector) => locked(detector).reset(history),
            Loops::Service(loops) => loops.reset(history),
        }
        match &mut self.stall {
            None => {}
            Some(Stalls::InProcess(detector)) => locked(detector).user_message(history),
            Some(Stalls::Service(stalls)) => stalls.reset(history),
        }
    }

    /// The session that an agent's history is kept under, remembered so that it is forgotten with the run's.
    fn history_of(&mut self, agent: &str) -> String {
        let history = joined(&self.id, agent);
        if self.agents.insert(history.clone()) && self.agents.len() > MOST_AGENTS {
            let first = self.agents.iter().find(|known| **known != history).cloned();
            if let Some(first) = first {
                self.agents.remove(&first);
                self.forget(&first);
            }
        }
        history
    }

    /// Forgets the trip and all counts but the money. For an operator, not for the agent.
    pub fn reset(&mut self) {
        self.new_turn();
        self.tools.forget();
        (self.tool_calls, self.model_calls, self.began, self.trip, self.unpriced, self.unjudged_tokens) = (0, 0, None, None, None, 0);
    }

    /// What stands against every question: a trip, or the time.
    fn over(&mut self, now: Timestamp) -> Option<Progress> {
        if let Some(trip) = &self.trip {
            return Some(Progress::Refused(Refusal::Trip(trip.clone())));
        }
        let limit = self.ceilings.time?;
        let began = *self.began.get_or_insert(now);
        (!now.still_counts(began, limit)).then(|| self.stop(Trip::time(limit)))
    }

    /// There is money for a model call.
    fn model_called(&mut self) -> Progress {
        if let Some(refused) = self.refused_model() {
            return refused;
        }
        if let Some(trip) = self.spoken_for() {
            return Progress::Refused(Refusal::NotNow(trip));
        }
        self.model_calls += 1;
        Progress::Done
    }

    /// What stands against a model call though there is money.
    fn refused_model(&mut self) -> Option<Progress> {
        if let Some(unpriced) = &self.unpriced {
            return Some(Progress::Refused(Refusal::Unpriced(unpriced.clone())));
        }
        let limit = self.ceilings.model_calls.filter(|limit| self.model_calls >= *limit)?;
        Some(self.stop(Trip::model_calls(limit)))
    }

    /// Keeps the first trip, and gives the one that holds.
    fn stop(&mut self, trip: Trip) -> Progress {
        let trip = self.trip.get_or_insert(trip).clone();
        Progress::Refused(Refusal::Trip(trip))
    }

    fn proceed(&mut self, told: AnswerMeaning, purpose: Purpose) -> Progress {
        match (told, purpose) {
            (AnswerMeaning::Next(question), purpose) => ask(question, purpose),
            (told, Purpose::Begin(pending)) => self.begun(told, pending),
            // What is dearer than it was thought ends nothing while something is left.
            (AnswerMeaning::Stopped(trip) | AnswerMeaning::NotNow(trip), Purpose::Settled) if trip.is_overrun() => Progress::Done,
            (AnswerMeaning::Stopped(trip), _) => self.stop(trip),
            (AnswerMeaning::NotNow(trip) | AnswerMeaning::DoesNotFit { trip, .. }, _) => Progress::Refused(Refusal::NotNow(trip)),
            (AnswerMeaning::Unpriced(unpriced), Purpose::Money | Purpose::Settled) => self.unpriced(unpriced),
            (AnswerMeaning::Unpriced(unpriced), _) => Progress::Refused(Refusal::Unpriced(unpriced)),
            (AnswerMeaning::Unanswered, _) => Progress::Refused(Refusal::Unanswered),
            (told, Purpose::Result(call, outcome)) => {
                let own = self.shown_here(&call, outcome);
                // Anything else is no answer.
                let verdict = if let AnswerMeaning::Looked(verdict, _) = told { verdict } else { own };
                self.looked(verdict, &call.tool)
            }
            (told @ (AnswerMeaning::Passed | AnswerMeaning::Unheard(_)), Purpose::Tool(call)) => match (told, self.called_here(&call)) {
                (AnswerMeaning::Unheard(_), Some(found)) => self.stop(Trip::from(&found)),
                (_, _) => Progress::Done,
            },
            (AnswerMeaning::Looked(verdict, tool), _) => self.looked(verdict, &tool),
            (AnswerMeaning::Passed, Purpose::Model) => self.model_called(),
            (
                AnswerMeaning::Passed | AnswerMeaning::Unheard(_)
                // A run asks nothing of this kind.
                | AnswerMeaning::Reserved(_) | AnswerMeaning::Books(_) | AnswerMeaning::Permitted(_) | AnswerMeaning::EndpointRefused(_) | AnswerMeaning::Skip(_),
                _,
            ) => Progress::Done,
        }
    }

    /// What this process alone says of a call.
    fn called_here(&self, call: &ToolCall) -> Option<LoopDetected> {
        match &self.loops {
            Loops::InProcess(_) => None,
            Loops::Service(loops) => loops.record_here(&call.history, &call.tool, call.arguments, call.at),
        }
    }

    /// The same of what a tool gave.
    fn shown_here(&self, call: &ToolCall, Outcome { result, error, round, effect }: Outcome) -> Verdict {
        match &self.stall {
            None | Some(Stalls::InProcess(_)) => Verdict::default(),
            Some(Stalls::Service(stalls)) => {
                stalls.observe_here(&call.history, Step { tool: &call.tool, args: call.arguments, result, error, round, effect }, call.at)
            }
        }
    }

    const fn used(&mut self, tokens: u64) {
        self.unjudged_tokens = self.unjudged_tokens.saturating_add(tokens);
    }

    fn spent(&mut self, recorded: Result<(), BudgetExceeded>) -> Progress {
        recorded.map_or_else(|exceeded| self.refuse(&exceeded), |()| Progress::Done)
    }

    fn refuse(&mut self, exceeded: &BudgetExceeded) -> Progress {
        self.proceed(AnswerMeaning::refused(Trip::from(exceeded), exceeded.renews_at.is_some()), Purpose::Money)
    }

    fn looked(&mut self, verdict: Verdict, tool: &str) -> Progress {
        if let Some(trip) = Trip::stalled(verdict, tool) {
            self.trip.get_or_insert(trip);
        }
        let nudge = verdict.nudge(tool);
        if nudge.is_empty() { Progress::Done } else { Progress::Nudge(nudge) }
    }
}

fn ask(question: Question, purpose: Purpose) -> Progress {
    Progress::Ask(Box::new(Ask { question, purpose }))
}

/// A panic elsewhere cannot leave a detector half changed: its changes do not panic.
fn locked<T>(detector: &Mutex<T>) -> MutexGuard<'_, T> {
    detector.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
