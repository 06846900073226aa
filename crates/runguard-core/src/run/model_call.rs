//! A model call of a run: the most it may cost is set aside before it is sent, and settled with what it did cost.
//!
//! So calls side by side cannot count on the same dollar. How long a prompt and an answer are is known only afterwards; what is set
//! aside is an upper bound. Where it does not fit:
//! - beside what others have set aside, it waits until they have settled ([`Progress::Busy`]);
//! - alone, the answer is made as short as what is left pays for ([`ModelCall::max_output`]), and refused when that is too short.
//!
//! A bound may be wrong: a provider bills what nobody saw, or a proxy counts in its own way. So the first call of a run goes alone, and
//! once a call has cost more than its bound, later bounds of its model are raised by as much. What it cost is settled as it is, and ends the
//! run only when a limit is spent: what others have set aside may be given back.

use super::service::{Question, ServiceBudget, Spent, Told};
use super::{Ask, Held, Money, Progress, Purpose, Refusal, Run, Trip, Unpriced, ask};
use crate::budget::{Budget, Remaining};
use crate::ledger::{BudgetExceeded, Cost, nano_dollars};
use crate::money::NanoDollars;
use crate::prices::{LONGEST_ANSWER, Prompt, SHORTEST_ANSWER, UnknownModelError, Usage, longest_answer, usual_tokens};
use crate::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the usage of a model costs.
pub type Pricing<'a> = &'a dyn Fn(&str, &Usage) -> Result<NanoDollars, UnknownModelError>;

/// What is about to be asked of a model.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Its name.
    pub model: &'a str,
    /// The size of what is sent.
    pub prompt: Prompt,
    /// The longest answer that is asked for, or that the model gives; `None` when nobody knows. Of several, each.
    pub max_output: Option<u64>,
    /// How many answers are asked for. No more are counted than any provider gives, nor fewer than one.
    pub choices: u64,
    /// Whoever asks has waited for others as long as it would: it goes now or not at all.
    pub has_waited: bool,
    /// Whoever is refused asks again by itself, until it gives up: no row tells of what others have set aside.
    pub asks_again: bool,
    /// Whoever asks can ask another model instead.
    pub may_fall_back: bool,
}

/// More answers than any provider gives to one question: it says itself what is wrong with asking for so many.
const MOST_CHOICES: u64 = 10_000;

impl Asked<'_> {
    fn longest(&self) -> u64 {
        self.max_output.unwrap_or(LONGEST_ANSWER)
    }

    /// What is written when each answer is so long.
    fn written(&self, output: u64) -> u64 {
        output.saturating_mul(self.choices.clamp(1, MOST_CHOICES))
    }

    fn at_most(&self) -> Usage {
        Usage::new(self.prompt.most_tokens(), self.written(self.longest()))
    }

    /// What is probably used when each answer is so long.
    fn usual(&self, output: u64) -> Usage {
        Usage::new(self.prompt.usual_tokens(), self.written(output))
    }
}

/// A call that a service has to be asked about.
#[derive(Debug)]
pub(super) struct Pending {
    model: String,
    prompt: Prompt,
    at_most: Cost,
    /// What the prompt probably costs, and the longest answers together; by the prices known here.
    parts: Option<(Cost, Cost)>,
    /// Of one answer.
    longest: u64,
    /// A shorter answer is not worth asking for.
    shortest: u64,
    has_waited: bool,
    asks_again: bool,
    /// What is to be set aside, by the tokens.
    bound: Usage,
    /// All that was left, where that was asked for in its place.
    rest: Option<Cost>,
    /// Where it is refused it is asked for otherwise: no row tells of it.
    is_try: bool,
    max_output: Option<u64>,
}

impl Pending {
    fn of(asked: Asked<'_>, bound: Usage, price: Pricing<'_>) -> Self {
        let cost_of = |usage: Usage| match usage.cost(|| price(asked.model, &usage)) {
            (cost, None) => Some(cost),
            (_, Some(_)) => None,
        };
        let longest = asked.longest();
        // An answer to a long prompt has the price of that prompt's size.
        let parts = cost_of(asked.usual(0)).zip(cost_of(asked.usual(longest))).map(|(prompt, all)| (prompt, beyond(all, prompt)));
        Self {
            model: asked.model.to_owned(),
            prompt: asked.prompt,
            at_most: cost_of(asked.at_most()).unwrap_or_default(),
            parts,
            longest,
            shortest: 0,
            has_waited: asked.has_waited,
            asks_again: asked.asks_again,
            bound,
            rest: None,
            is_try: true,
            max_output: None,
        }
    }

    /// Whether a refusal for what others have set aside is not the end.
    fn may_wait(&self) -> bool {
        self.asks_again || !self.has_waited
    }

    fn question(&self, budget: &Arc<ServiceBudget>) -> Question {
        let model = &self.model;
        let spent = match self.rest {
            Some(cost) => Spent::Priced { model, cost },
            None => Spent::Usage { model, usage: &self.bound },
        };
        if self.is_try { budget.try_to_reserve(spent) } else { budget.reserve(spent) }
    }

    fn call(self, held: Held) -> ModelCall {
        ModelCall { model: self.model, prompt: self.prompt, at_most: self.at_most, max_output: self.max_output, held }
    }

    /// Makes the answer as long as so much pays for, where prices are known. Whether it is worth asking for.
    fn take_the_rest(&mut self, left: Remaining) -> bool {
        self.rest = Some(Cost { usd: left.usd.unwrap_or_default(), tokens: left.tokens.unwrap_or_default() });
        // It is refused only where somebody was faster.
        self.is_try = self.may_wait();
        let Some((prompt, answer)) = self.parts else { return true };
        let part = |whole: u64, tokens: u64| (u128::from(whole) * u128::from(tokens)).div_ceil(u128::from(self.longest.max(1)));
        let fits = |tokens| {
            let enough = |left: Option<u64>, prompt: u64, answer: u64| {
                left.is_none_or(|left| u128::from(prompt) + part(answer, tokens) <= u128::from(left))
            };
            enough(left.usd.map(nanos), nanos(prompt.usd), nanos(answer.usd)) && enough(left.tokens, prompt.tokens, answer.tokens)
        };
        self.max_output = longest_answer(self.longest, fits).filter(|longest| *longest >= self.shortest);
        self.max_output.is_some()
    }
}

impl Ask {
    /// Of a model call: an answer that would be made shorter than this is refused instead.
    pub fn at_shortest(&mut self, tokens: u64) {
        if let Purpose::Begin(pending) = &mut self.purpose {
            pending.shortest = tokens;
        }
    }
}

/// What one cost has beyond a part of it.
fn beyond(all: Cost, part: Cost) -> Cost {
    Cost { usd: nano_dollars(nanos(all.usd).saturating_sub(nanos(part.usd))), tokens: all.tokens.saturating_sub(part.tokens) }
}

fn nanos(usd: NanoDollars) -> u64 {
    usd.as_nanos().unsigned_abs()
}

/// A model call that is under way, until [`Run::finish_model`].
#[derive(Debug)]
#[must_use = "what is set aside must be settled"]
pub struct ModelCall {
    model: String,
    prompt: Prompt,
    /// What it was thought to cost at most.
    at_most: Cost,
    max_output: Option<u64>,
    held: Held,
}

impl ModelCall {
    /// The longest answer that can be paid, where that is shorter than what was asked for. Of several, each.
    pub fn max_output(&self) -> Option<u64> {
        self.max_output
    }

    /// The model to ask; another than was meant where the run falls back.
    pub fn model(&self) -> &str {
        &self.model
    }
}

/// What a model call used.
#[derive(Debug, Clone, Copy)]
pub enum Used<'a> {
    /// By the provider's word. `model` is the one that answered, if it says so.
    Counted {
        /// Its name.
        model: Option<&'a str>,
        /// What the provider counted.
        usage: &'a Usage,
    },
    /// The answer broke off: the provider had counted this much by then, and so many bytes of the answer had come.
    BrokenOff {
        /// The model that answered, if it says so.
        model: Option<&'a str>,
        /// What the provider had counted.
        usage: &'a Usage,
        /// Of the text that came, which may be in no count yet.
        bytes: u64,
    },
    /// By the word of a provider that has prices of its own.
    Paid {
        /// What it asks for, and the tokens it counted.
        cost: Cost,
    },
    /// Nobody counted: an answer of so many bytes came.
    Came {
        /// Of its text.
        bytes: u64,
    },
    /// It was not made, or failed in a way that costs nothing.
    Nothing,
}

/// What an upper bound is raised by, in thousandths.
const AS_IT_IS: u64 = 1_000;

/// What a run knows of its model calls.
#[derive(Debug)]
pub(super) struct ModelCalls {
    /// From the question on that is asked of a service about it.
    under_way: u64,
    /// Those among them that a service is being asked about.
    asked_about: u64,
    /// A call was paid, so bounds are known to be right, or by how much they are wrong.
    is_measured: bool,
    /// By model, what its bounds are raised by.
    raised_by: BTreeMap<String, u64>,
    /// Of a model that has not answered yet: the most of any that has.
    most_raised_by: u64,
    /// Paid by counting bytes.
    estimated: u64,
}

/// Models whose bounds are followed one by one.
const MOST_MODELS: usize = 100;

impl Default for ModelCalls {
    fn default() -> Self {
        Self { under_way: 0, asked_about: 0, is_measured: false, raised_by: BTreeMap::new(), most_raised_by: AS_IT_IS, estimated: 0 }
    }
}

impl ModelCalls {
    fn raise(&self, model: &str, amount: u64) -> u64 {
        let by = self.raised_by.get(model).copied().unwrap_or(self.most_raised_by);
        u64::try_from(u128::from(amount) * u128::from(by) / u128::from(AS_IT_IS)).unwrap_or(u64::MAX)
    }

    fn raised(&self, model: &str, bound: Cost) -> Cost {
        Cost { usd: nano_dollars(self.raise(model, nanos(bound.usd))), tokens: self.raise(model, bound.tokens) }
    }

    fn measure(&mut self, model: &str, bound: Cost, paid: Cost) {
        self.is_measured = true;
        let amounts = |cost: Cost| [nanos(cost.usd), cost.tokens];
        // Of what had no bound nothing can be said: it has no limit, or no price.
        let bounded = amounts(bound).into_iter().zip(amounts(paid)).filter(|(bound, _)| *bound > 0);
        let times = bounded.map(|(bound, paid)| (u128::from(paid) * u128::from(AS_IT_IS)).div_ceil(u128::from(bound))).max();
        let times = u64::try_from(times.unwrap_or_default()).unwrap_or(u64::MAX).max(AS_IT_IS);
        self.most_raised_by = self.most_raised_by.max(times);
        if let Some(by) = self.raised_by.get_mut(model) {
            *by = times.max(*by);
        } else if self.raised_by.len() < MOST_MODELS {
            self.raised_by.insert(model.to_owned(), times);
        }
    }

    /// A service is asked about a call: it is under way from the question on, so that none beside it is the first too.
    fn ask_about_one(&mut self) {
        self.under_way += 1;
        self.asked_about += 1;
    }

    /// It was answered, or never will be.
    fn is_answered(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.asked_about = self.asked_about.saturating_sub(1);
    }
}

impl Run {
    /// A model is about to be asked: counts the call, and sets the most it may cost aside. Where the money is kept in this process
    /// `price` says what that is; a service has prices of its own.
    pub fn begin_model(&mut self, asked: Asked<'_>, price: Pricing<'_>, now: Timestamp) -> Progress {
        if let Some(refused) = self.over(now) {
            return refused;
        }
        // Money is asked about before the ceiling, where that asks nobody else.
        let used_up = match &self.budget {
            Some(Money::InProcess(budget)) => budget.used_up(),
            Some(Money::Service(_)) | None => None,
        };
        if let Some(exceeded) = used_up {
            return self.refuse(&exceeded);
        }
        if let Some(refused) = self.refused_model() {
            return refused;
        }
        let fallback = self.fallback().filter(|_| asked.may_fall_back);
        let asked = Asked { model: fallback.as_deref().unwrap_or(asked.model), ..asked };
        match &self.budget {
            None => self.start(asked, Cost::ZERO, None, Held::Nothing),
            Some(Money::InProcess(budget)) => {
                let budget = budget.clone();
                self.begin_within(&budget, asked, price)
            }
            Some(Money::Service(_)) if self.must_wait(asked) => Progress::Busy,
            Some(Money::Service(budget)) => {
                // Those a service is asked about may become the last ones.
                if let Some(trip) = self.spoken_for() {
                    return if asked.has_waited { Progress::Refused(Refusal::NotNow(trip)) } else { Progress::Busy };
                }
                let (calls, at_most) = (&self.model_calls_made, asked.at_most());
                let raised = Usage::new(calls.raise(asked.model, at_most.input_tokens), calls.raise(asked.model, at_most.output_tokens));
                let budget = Arc::clone(budget);
                self.ask_about(&budget, Box::new(Pending::of(asked, raised, price)))
            }
        }
    }

    /// How many calls were billed by counting bytes, because the provider did not say.
    pub fn estimated_calls(&self) -> u64 {
        self.model_calls_made.estimated
    }

    /// What the call used. It counts, also when it ends the run.
    pub fn finish_model(&mut self, call: ModelCall, used: Used<'_>, price: Pricing<'_>) -> Progress {
        let ModelCall { model: asked_model, prompt, at_most, max_output: _, held } = call;
        self.model_calls_made.under_way = self.model_calls_made.under_way.saturating_sub(1);
        let estimated;
        let (answered, usage) = match used {
            Used::Nothing => return self.give_back(held, &asked_model),
            Used::Paid { cost } => {
                self.model_calls_made.measure(&asked_model, at_most, cost);
                return self.settle(held, cost, None, Spent::Priced { model: &asked_model, cost });
            }
            Used::Counted { model, usage } => (model, usage),
            Used::BrokenOff { model, usage, bytes } => {
                estimated = Usage { output_tokens: usage.output_tokens.max(usual_tokens(bytes)), ..*usage };
                (model, &estimated)
            }
            Used::Came { bytes } => {
                self.model_calls_made.estimated += 1;
                estimated = Usage::new(prompt.usual_tokens(), usual_tokens(bytes));
                (None, &estimated)
            }
        };
        // Where the name that answered has no price, the one that was asked for had.
        let priced = answered.filter(|model| *model != asked_model && price(model, usage).is_ok());
        let model = priced.unwrap_or(&asked_model);
        let (paid, unknown) = usage.cost(|| price(model, usage));
        self.model_calls_made.measure(&asked_model, at_most, paid);
        // What was set aside was so by the name that was asked for: scopes go by it.
        let spent = match priced {
            Some(_) => Spent::Priced { model: &asked_model, cost: paid },
            None => Spent::Usage { model, usage },
        };
        self.settle(held, paid, unknown.as_ref(), spent)
    }

    /// `spent` is what a service is told, which has prices of its own.
    fn settle(&mut self, held: Held, paid: Cost, unknown: Option<&UnknownModelError>, spent: Spent<'_>) -> Progress {
        self.used(paid.tokens);
        match held {
            Held::Nothing => Progress::Done,
            Held::InProcess(reservation) => {
                let budget = reservation.budget().clone();
                let is_priced = unknown.is_none() || budget.remaining().usd.is_none();
                // Dearer than its bound is no end while something is left: others may give back what they have set aside.
                let settled = reservation.commit(paid).or_else(|_| budget.used_up().map_or(Ok(()), Err));
                let settled = self.spent(settled);
                match unknown {
                    Some(unknown) if !is_priced => self.unpriced(Unpriced::from(unknown)),
                    Some(_) | None => settled,
                }
            }
            Held::Service { id } => match &self.budget {
                Some(Money::Service(budget)) => ask(budget.commit_for_good(id.as_deref(), spent), Purpose::Settled),
                Some(Money::InProcess(_)) | None => Progress::Done,
            },
        }
    }

    /// What a service said of setting a call's bound aside.
    pub(super) fn begun(&mut self, told: Told, pending: Box<Pending>) -> Progress {
        // It was under way from the question on, so that none beside it is the first too, nor the last.
        self.model_calls_made.is_answered();
        match told {
            Told::Reserved(id) => {
                self.model_calls += 1;
                self.model_calls_made.under_way += 1;
                Progress::Started(pending.call(Held::Service { id }))
            }
            told => match &self.budget {
                Some(Money::Service(budget)) => {
                    let budget = Arc::clone(budget);
                    self.does_not_begin(&budget, told, pending)
                }
                Some(Money::InProcess(_)) | None => self.proceed(told, Purpose::Money),
            },
        }
    }

    fn ask_about(&mut self, budget: &Arc<ServiceBudget>, pending: Box<Pending>) -> Progress {
        self.model_calls_made.ask_about_one();
        ask(pending.question(budget), Purpose::Begin(pending))
    }

    /// It was refused: it waits, asks for less, or asks a last time, so that the log tells what is refused.
    fn does_not_begin(&mut self, budget: &Arc<ServiceBudget>, told: Told, mut pending: Box<Pending>) -> Progress {
        let is_try = pending.is_try;
        if let Told::DoesNotFit { trip, is_set_aside, left, .. } = &told
            && !trip.is_used_up()
        {
            let is_others = *is_set_aside || pending.rest.is_some();
            if is_others && !pending.has_waited {
                return Progress::Busy;
            }
            if is_others && pending.asks_again {
                return Progress::Refused(Refusal::NotNow(trip.clone()));
            }
            if !is_others && is_try && pending.take_the_rest(*left) {
                return self.ask_about(budget, pending);
            }
        }
        let is_refused = matches!(told, Told::DoesNotFit { .. } | Told::Unpriced(_) | Told::Stopped(_) | Told::NotNow(_));
        if is_try && is_refused {
            (pending.is_try, pending.rest, pending.max_output) = (false, None, None);
            return self.ask_about(budget, pending);
        }
        match told {
            Told::DoesNotFit { trip, renews, .. } if trip.is_used_up() => self.proceed(Told::refused(trip, renews), Purpose::Money),
            // Nothing was paid yet.
            Told::Unpriced(unpriced) => Progress::Refused(Refusal::Unpriced(unpriced)),
            told => self.proceed(told, Purpose::Money),
        }
    }

    /// A question that came to nothing: it was never sent, it was wrong, or something else than the service answered.
    pub fn withdrawn(&mut self, ask: &Ask) {
        if matches!(ask.purpose, Purpose::Begin(_)) {
            self.model_calls_made.is_answered();
        }
    }

    /// The ceiling of model calls, when those that a service is being asked about may reach it.
    pub(super) fn spoken_for(&self) -> Option<Trip> {
        let made = self.model_calls.saturating_add(self.model_calls_made.asked_about);
        self.ceilings.model_calls.filter(|limit| made >= *limit).map(Trip::model_calls)
    }

    fn give_back(&mut self, held: Held, model: &str) -> Progress {
        match (held, &self.budget) {
            (Held::Service { id: Some(id) }, Some(Money::Service(budget))) => ask(budget.release(&id, Some(model)), Purpose::Money),
            // In this process it is given back when it goes.
            (Held::Nothing | Held::InProcess(_) | Held::Service { .. }, _) => Progress::Done,
        }
    }

    /// The first call goes alone: it shows whether bounds hold.
    fn must_wait(&self, asked: Asked<'_>) -> bool {
        self.model_calls_made.under_way > 0 && !self.model_calls_made.is_measured && !asked.has_waited
    }

    fn begin_within(&mut self, budget: &Budget, asked: Asked<'_>, price: Pricing<'_>) -> Progress {
        let remaining = budget.remaining();
        if remaining.usd.is_none() && remaining.tokens.is_none() {
            return match budget.reserve(Cost::ZERO) {
                Ok(held) => self.start(asked, Cost::ZERO, None, Held::InProcess(held)),
                Err(exceeded) => self.refuse(&exceeded),
            };
        }
        if self.must_wait(asked) {
            return Progress::Busy;
        }
        let cost_of = |usage: &Usage| usage.cost(|| price(asked.model, usage));
        let (at_most, unknown) = cost_of(&asked.at_most());
        if let Some(unknown) = unknown.filter(|_| remaining.usd.is_some()) {
            return Progress::Refused(Refusal::Unpriced(Unpriced::from(&unknown)));
        }
        let exceeded = match budget.reserve(self.model_calls_made.raised(asked.model, at_most)) {
            Ok(held) => return self.start(asked, at_most, None, Held::InProcess(held)),
            Err(exceeded) => exceeded,
        };
        if exceeded.reserved > 0 {
            return if asked.has_waited { Progress::Refused(Refusal::NotNow(Trip::from(&exceeded))) } else { Progress::Busy };
        }
        self.begin_with_the_rest(budget, asked, &exceeded, &|usage| cost_of(usage).0)
    }

    /// Nobody else is under way, and the bound is more than there is: what there is is set aside, and pays for a shorter answer.
    fn begin_with_the_rest(
        &mut self,
        budget: &Budget,
        asked: Asked<'_>,
        exceeded: &BudgetExceeded,
        cost_of: &dyn Fn(&Usage) -> Cost,
    ) -> Progress {
        let left = budget.remaining();
        let fits = |output| {
            let cost = cost_of(&asked.usual(output));
            left.usd.is_none_or(|left| cost.usd <= left) && left.tokens.is_none_or(|left| cost.tokens <= left)
        };
        let longest = asked.longest();
        let Some(max_output) = longest_answer(longest, fits) else {
            // What is said to be too much is the shortest answer, not the longest.
            let shortest = cost_of(&asked.usual(SHORTEST_ANSWER.min(longest)));
            let refused = budget.check(shortest).err().unwrap_or(*exceeded);
            return Progress::Refused(Refusal::NotNow(Trip::from(&refused)));
        };
        let rest = Cost { usd: left.usd.unwrap_or_default(), tokens: left.tokens.unwrap_or_default() };
        match budget.reserve(rest) {
            Ok(held) => self.start(asked, rest, Some(max_output), Held::InProcess(held)),
            // Somebody was faster.
            Err(_) if !asked.has_waited => Progress::Busy,
            Err(exceeded) => Progress::Refused(Refusal::NotNow(Trip::from(&exceeded))),
        }
    }

    pub(super) fn start(&mut self, asked: Asked<'_>, at_most: Cost, max_output: Option<u64>, held: Held) -> Progress {
        self.model_calls += 1;
        self.model_calls_made.under_way += 1;
        Progress::Started(ModelCall { model: asked.model.to_owned(), prompt: asked.prompt, at_most, max_output, held })
    }

    /// Dollars were spent that nobody can count, so no more are.
    pub(super) fn unpriced(&mut self, unpriced: Unpriced) -> Progress {
        Progress::Refused(Refusal::Unpriced(self.unpriced.get_or_insert(unpriced).clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Limits;
    use crate::run::{Ask, Ceilings, Loops, ServiceBudget, Unanswered};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const NOW: Timestamp = Timestamp::from_millis(0);

    /// Ten dollars for a million tokens, read or written.
    fn price(model: &str, usage: &Usage) -> Result<NanoDollars, UnknownModelError> {
        match model {
            "small" => Ok(nano_dollars(usage.total_tokens() * 10_000)),
            _ => Err(UnknownModelError { model: model.to_owned(), suggestions: Vec::new() }),
        }
    }

    fn usd(dollars: f64) -> NanoDollars {
        NanoDollars::from_dollars(dollars).unwrap()
    }

    fn limited(dollars: f64) -> (Budget, Run) {
        let budget = Budget::new(Limits { usd: Some(usd(dollars)), ..Limits::default() });
        let run = Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::InProcess(budget.clone())));
        (budget, run)
    }

    /// A prompt of 872 bytes: 500 tokens at most, 291 probably.
    fn asked(max_output: u64) -> Asked<'static> {
        Asked {
            model: "small",
            prompt: Prompt { bytes: 872, attachments: 0 },
            max_output: Some(max_output),
            choices: 1,
            has_waited: false,
            asks_again: false,
            may_fall_back: true,
        }
    }

    fn started(progress: Progress) -> ModelCall {
        match progress {
            Progress::Started(call) => call,
            other => panic!("{other:?}"),
        }
    }

    fn counted(usage: &Usage) -> Used<'_> {
        Used::Counted { model: None, usage }
    }

    #[test]
    fn calls_side_by_side_share_what_there_is() {
        let (budget, mut run) = limited(0.1);
        let first = started(run.begin_model(asked(2_500), &price, NOW));
        assert_eq!(budget.snapshot().reserved.usd, usd(0.03));
        assert!(matches!(run.begin_model(asked(2_500), &price, NOW), Progress::Busy), "the first goes alone");
        assert!(matches!(run.finish_model(first, counted(&Usage::new(300, 1_000)), &price), Progress::Done));
        assert_eq!(budget.snapshot().spent().usd, usd(0.013));
        let calls: Vec<_> = (0..2).map(|_| started(run.begin_model(asked(2_500), &price, NOW))).collect();
        assert!(matches!(run.begin_model(asked(2_500), &price, NOW), Progress::Busy), "0.087 do not hold 3 × 0.03");
        let impatient = run.begin_model(Asked { has_waited: true, ..asked(2_500) }, &price, NOW);
        assert!(matches!(&impatient, Progress::Refused(Refusal::NotNow(trip)) if trip.reason == "budget_exceeded"), "{impatient:?}");
        for call in calls {
            assert!(matches!(run.finish_model(call, Used::Nothing, &price), Progress::Done));
        }
        assert_eq!((budget.snapshot().reserved, run.trip()), (Cost::ZERO, None));
    }

    #[test]
    fn alone_an_answer_is_as_long_as_can_be_paid() {
        let (budget, mut run) = limited(0.01);
        let call = started(run.begin_model(asked(4_096), &price, NOW));
        assert_eq!((call.max_output(), budget.remaining().usd), (Some(709), Some(NanoDollars::ZERO)), "a cent is 1,000 tokens");
        assert_eq!(run.model_calls_made.most_raised_by, AS_IT_IS);
        let over = run.finish_model(call, counted(&Usage::new(300, 800)), &price);
        assert_eq!(run.model_calls_made.raise("small", 1_000), 1_100, "by its dollars: its tokens had no bound");
        assert!(matches!(&over, Progress::Refused(Refusal::Trip(trip)) if trip.reason == "budget_exceeded"), "{over:?}");

        let (_, mut run) = limited(0.003);
        let refused = run.begin_model(asked(4_096), &price, NOW);
        let Progress::Refused(Refusal::NotNow(trip)) = refused else { panic!("9 tokens are no answer: {refused:?}") };
        assert!(trip.message.contains("$0.00307"), "291 tokens read and 16 written: {}", trip.message);
        assert_eq!(run.trip(), None, "a shorter prompt may fit");
    }

    #[test]
    fn bounds_that_were_too_low_are_raised() {
        let (budget, mut run) = limited(1.0);
        let first = started(run.begin_model(asked(500), &price, NOW));
        // 0.25 instead of at most 0.01.
        assert!(matches!(run.finish_model(first, counted(&Usage::new(24_000, 1_000)), &price), Progress::Done));
        let calls: Vec<_> = (0..3).map(|_| started(run.begin_model(asked(500), &price, NOW))).collect();
        assert!(matches!(run.begin_model(asked(500), &price, NOW), Progress::Busy));
        for call in calls {
            assert!(matches!(run.finish_model(call, counted(&Usage::new(24_000, 1_000)), &price), Progress::Done));
        }
        assert_eq!(budget.snapshot().spent().usd, usd(1.0), "to the cent");
        assert!(matches!(run.begin_model(asked(500), &price, NOW), Progress::Refused(Refusal::Trip(_))));
    }

    #[test]
    fn bounds_are_raised_for_their_model() {
        let (budget, mut run) = limited(1.0);
        let price: Pricing<'_> = &|_, usage| price("small", usage);
        let finished = |run: &mut Run, model, used| {
            let call = started(run.begin_model(Asked { model, ..asked(500) }, price, NOW));
            assert!(matches!(run.finish_model(call, counted(&Usage::new(used, 0)), price), Progress::Done));
        };
        let set_aside = |run: &mut Run, model| {
            let call = started(run.begin_model(Asked { model, ..asked(500) }, price, NOW));
            let reserved = budget.snapshot().reserved.usd;
            assert!(matches!(run.finish_model(call, Used::Nothing, price), Progress::Done));
            reserved
        };
        finished(&mut run, "small", 10_000);
        assert_eq!(set_aside(&mut run, "small"), usd(0.1), "ten times the bound of a cent");
        assert_eq!(set_aside(&mut run, "large"), usd(0.1), "nobody knows it yet");
        finished(&mut run, "large", 900);
        assert_eq!((set_aside(&mut run, "large"), set_aside(&mut run, "small")), (usd(0.01), usd(0.1)));
    }

    #[test]
    fn each_answer_that_is_asked_for_is_set_aside() {
        let (budget, mut run) = limited(1.0);
        let several = |max_output, choices| Asked { max_output, choices, ..asked(0) };
        let call = started(run.begin_model(several(Some(500), 8), &price, NOW));
        assert_eq!(budget.snapshot().reserved.usd, usd(0.045), "500 read and 4,000 written");
        assert!(matches!(run.finish_model(call, counted(&Usage::new(300, 4_000)), &price), Progress::Done));
        let call = started(run.begin_model(several(None, 64), &price, NOW));
        assert_eq!(call.max_output(), Some(1_490), "of 0.957, 0.00291 are read and the rest is for 64");
        assert!(matches!(run.finish_model(call, Used::Nothing, &price), Progress::Done));
        let (_, mut run) = limited(0.01);
        let refused = run.begin_model(several(None, 64), &price, NOW);
        assert!(matches!(refused, Progress::Refused(Refusal::NotNow(_))), "11 tokens each are no answers: {refused:?}");

        let (budget, mut run) = limited(1_000.0);
        for (choices, written) in [(0, 1), (u64::MAX, MOST_CHOICES)] {
            let call = started(run.begin_model(several(Some(100), choices), &price, NOW));
            assert_eq!(budget.snapshot().reserved.tokens, 500 + 100 * written, "{choices}");
            assert!(matches!(run.finish_model(call, Used::Nothing, &price), Progress::Done));
        }

        let mut run = over_service();
        let reserve = json!({"input_tokens": 500, "output_tokens": 64 * 8_192});
        let _ = sent(run.begin_model(several(None, 64), &price, NOW), "/guard/budget/reserve", reserve);
    }

    #[test]
    fn what_a_provider_asks_for_is_paid() {
        let (budget, mut run) = limited(1.0);
        let cost = Cost { usd: usd(0.25), tokens: 700 };
        let call = started(run.begin_model(asked(500), &price, NOW));
        assert!(matches!(run.finish_model(call, Used::Paid { cost }, &price), Progress::Done));
        let books = budget.snapshot();
        assert_eq!((books.spent(), books.reserved), (cost, Cost::ZERO));
        let call = started(run.begin_model(asked(500), &price, NOW));
        assert_eq!(budget.snapshot().reserved.usd, usd(0.25), "its price is what the next one is set aside by");
        assert!(matches!(run.finish_model(call, Used::Paid { cost: Cost { usd: usd(0.80), tokens: 1 } }, &price), Progress::Refused(_)));

        let mut run = over_service();
        let ask = sent(run.begin_model(asked(500), &price, NOW), "/guard/budget/reserve", json!({"model": "small"}));
        let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r1"}"#)));
        let commit = json!({"reservation_id": "r1", "model": "small", "usd": 0.25, "input_tokens": 700});
        let _ = sent(run.finish_model(call, Used::Paid { cost }, &price), "/guard/budget/commit", commit);
    }

    #[test]
    fn what_is_dearer_than_its_bound_ends_nothing_while_there_is_money() {
        let (budget, mut run) = limited(1.0);
        let first = started(run.begin_model(asked(500), &price, NOW));
        assert!(matches!(run.finish_model(first, counted(&Usage::new(100, 100)), &price), Progress::Done));
        let dear = started(run.begin_model(asked(500), &price, NOW));
        let beside = started(run.begin_model(asked(90_000), &price, NOW));
        // 0.402 are spent, and 0.905 are set aside: together too much, but the limit is far.
        assert!(matches!(run.finish_model(dear, counted(&Usage::new(40_000, 0)), &price), Progress::Done));
        assert_eq!((budget.snapshot().spent().usd, run.trip()), (usd(0.402), None));
        assert!(matches!(run.finish_model(beside, counted(&Usage::new(500, 500)), &price), Progress::Done));
        assert_eq!(run.model_calls_made.raise("small", 10), 400);
        let last = started(run.begin_model(asked(500), &price, NOW));
        let over = run.finish_model(last, counted(&Usage::new(60_000, 0)), &price);
        assert!(matches!(&over, Progress::Refused(Refusal::Trip(trip)) if trip.is_used_up()), "{over:?}");

        let mut run = over_service();
        let ask = sent(run.begin_model(asked(500), &price, NOW), "/guard/budget/reserve", json!({}));
        let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r1"}"#)));
        let ask = sent(run.finish_model(call, counted(&Usage::new(40_000, 0)), &price), "/guard/budget/commit", json!({}));
        let beside = r#"{"allow":false,"reason":"budget_exceeded","spent_usd":0.4,"reserved_usd":0.9,"remaining_usd":0,"limit_usd":1,"message":"Over."}"#;
        assert!(matches!(run.told(ask, Some(beside)), Progress::Done));
        assert_eq!(run.trip(), None);
    }

    #[test]
    fn over_a_service_no_more_calls_begin_than_may() {
        let budget = ServiceBudget::new("run", Limits::default(), Unanswered::Passes);
        let mut run = Run::new("run", Ceilings::default().model_calls(Some(3)), Loops::default(), None, Some(Money::Service(budget)));
        let begin = |run: &mut Run| run.begin_model(asked(9), &price, NOW);
        let granted = |run: &mut Run, ask| started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r"}"#)));
        let ask = sent(begin(&mut run), "/guard/budget/reserve", json!({}));
        let call = granted(&mut run, ask);
        let ask = sent(run.finish_model(call, counted(&Usage::new(9, 9)), &price), "/guard/budget/commit", json!({}));
        assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));
        let (second, third) = (begin(&mut run), begin(&mut run));
        assert!(matches!(begin(&mut run), Progress::Busy), "two are asked about, and one is made");
        let impatient = run.begin_model(Asked { has_waited: true, ..asked(9) }, &price, NOW);
        assert!(matches!(&impatient, Progress::Refused(Refusal::NotNow(trip)) if trip.reason == "model_call_ceiling"), "{impatient:?}");
        let Progress::Ask(second) = second else { panic!("{second:?}") };
        run.withdrawn(&second);
        let fourth = begin(&mut run);
        for ask in [third, fourth] {
            let Progress::Ask(ask) = ask else { panic!("{ask:?}") };
            let _ = granted(&mut run, ask);
        }
        assert!(matches!(begin(&mut run), Progress::Refused(Refusal::Trip(_))));
    }

    #[test]
    fn what_nobody_counted_is_counted_from_bytes() {
        let (budget, mut run) = limited(1.0);
        let call = started(run.begin_model(asked(500), &price, NOW));
        assert!(matches!(run.finish_model(call, Used::Came { bytes: 300 }, &price), Progress::Done));
        assert_eq!((budget.snapshot().spent().tokens, run.estimated_calls()), (291 + 100, 1));
    }

    #[test]
    fn what_broke_off_is_billed_for_what_came() {
        let (budget, mut run) = limited(1.0);
        let counted_so_far = Usage { input_tokens: 40, output_tokens: 1, cached_tokens: 9, ..Usage::default() };
        for (bytes, written) in [(300, 100), (2, 1)] {
            let before = budget.snapshot().spent().tokens;
            let call = started(run.begin_model(asked(500), &price, NOW));
            let used = Used::BrokenOff { model: None, usage: &counted_so_far, bytes };
            assert!(matches!(run.finish_model(call, used, &price), Progress::Done));
            assert_eq!(budget.snapshot().spent().tokens - before, 49 + written);
        }
        assert_eq!(run.estimated_calls(), 0, "the provider has counted the prompt");
    }

    #[test]
    fn a_model_without_a_price_is_refused_before_it_is_paid() {
        let (_, mut run) = limited(1.0);
        let unknown = Asked { model: "own", ..asked(500) };
        assert!(matches!(run.begin_model(unknown, &price, NOW), Progress::Refused(Refusal::Unpriced(_))));
        let call = started(run.begin_model(asked(500), &price, NOW));
        let usage = Usage::new(100, 0);
        let answered = Used::Counted { model: Some("own"), usage: &usage };
        assert!(matches!(run.finish_model(call, answered, &price), Progress::Done), "the name it was asked by has a price");

        let recorded = run.record_usage("own", &usage, || price("own", &usage));
        assert!(matches!(recorded, Progress::Refused(Refusal::Unpriced(_))));
        assert!(
            matches!(run.begin_model(asked(500), &price, NOW), Progress::Refused(Refusal::Unpriced(_))),
            "dollars are not known any more"
        );
        run.reset();
        let _ = started(run.begin_model(asked(500), &price, NOW));

        let tokens = Budget::new(Limits { tokens: Some(2_000), ..Limits::default() });
        let mut run = Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::InProcess(tokens)));
        let call = started(run.begin_model(unknown, &price, NOW));
        assert!(matches!(run.finish_model(call, counted(&usage), &price), Progress::Done), "tokens need no price");
    }

    #[test]
    fn without_limits_nothing_waits() {
        let mut run = Run::new("run", Ceilings::default().model_calls(Some(2)), Loops::default(), None, None);
        let calls: Vec<_> = (0..2).map(|_| started(run.begin_model(asked(500), &price, NOW))).collect();
        let refused = run.begin_model(asked(500), &price, NOW);
        assert!(matches!(&refused, Progress::Refused(Refusal::Trip(trip)) if trip.reason == "model_call_ceiling"), "{refused:?}");
        for call in calls {
            assert!(matches!(run.finish_model(call, counted(&Usage::new(1, 1)), &price), Progress::Done));
        }
    }

    #[test]
    fn most_of_it_is_told_once_and_a_cheaper_model_goes_on() {
        let (budget, run) = limited(0.1);
        let warn = crate::run::Warn::default().at_thousandths(Some(800)).fallback_model(Some("small".to_owned()));
        let mut run = run.with_warning(warn);
        let dear: Pricing<'_> =
            &|model, usage| price("small", usage).map(|cost| if model == "large" { cost.saturating_add(cost) } else { cost });
        let call = started(run.begin_model(Asked { model: "large", ..asked(500) }, dear, NOW));
        assert_eq!((call.model(), run.take_warning()), ("large", None));
        assert!(matches!(run.finish_model(call, counted(&Usage::new(3_000, 1_000)), dear), Progress::Done));
        let warning = run.take_warning().unwrap();
        assert_eq!((warning.message.as_str(), warning.spent, warning.limit), ("$0.08 of $0.10 are spent.", 0.08, 0.1));
        assert_eq!(run.take_warning(), None);
        let call = started(run.begin_model(Asked { model: "large", ..asked(500) }, dear, NOW));
        assert_eq!(call.model(), "small");
        assert!(matches!(run.finish_model(call, counted(&Usage::new(500, 500)), dear), Progress::Done));
        assert_eq!(budget.snapshot().spent().usd, usd(0.09), "at the price of the model that answered");
    }

    #[test]
    fn time_is_limited_from_the_first_question_on() {
        let mut run = Run::new("run", Ceilings::default().time(Some(crate::time::Span::from_seconds(60))), Loops::default(), None, None);
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1_000);
        assert!(matches!(run.before_tool("search", 1, at(1_000)), Progress::Done));
        let _ = started(run.begin_model(asked(500), &price, at(1_059)));
        let refused = run.before_model(at(1_060));
        assert!(matches!(&refused, Progress::Refused(Refusal::Trip(trip)) if trip.reason == "time_limit"), "{refused:?}");
    }

    fn sent(progress: Progress, path: &str, fields: Value) -> Box<Ask> {
        let Progress::Ask(ask) = progress else { panic!("{progress:?}") };
        assert_eq!(ask.question.path(), path);
        let body: Value = serde_json::from_str(&ask.question.body()).unwrap();
        for (name, value) in fields.as_object().unwrap() {
            assert_eq!(&body[name], value, "{body}");
        }
        ask
    }

    fn over_service() -> Run {
        let budget = ServiceBudget::new("run", Limits { usd: Some(usd(1.0)), ..Limits::default() }, Unanswered::Refused);
        Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::Service(budget)))
    }

    #[test]
    fn a_service_sets_the_bound_aside_and_prices_it() {
        let mut run = over_service();
        let reserve = json!({"max_usd": 1.0, "model": "small", "input_tokens": 500, "output_tokens": 2_500});
        let ask = sent(run.begin_model(asked(2_500), &price, NOW), "/guard/budget/reserve", reserve);
        assert!(matches!(run.begin_model(asked(2_500), &price, NOW), Progress::Busy), "from the question on");
        let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r1"}"#)));
        assert!(matches!(run.begin_model(asked(2_500), &price, NOW), Progress::Busy), "the first goes alone");
        let commit = json!({"reservation_id": "r1", "model": "small", "input_tokens": 300, "output_tokens": 40});
        let ask = sent(run.finish_model(call, counted(&Usage::new(300, 40)), &price), "/guard/budget/commit", commit);
        assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));

        let [forgotten, logged] =
            [json!("forgotten"), Value::Null].map(|refused| json!({"if_refused": refused, "input_tokens": 500, "usd": null}));
        let ask = sent(run.begin_model(asked(2_500), &price, NOW), "/guard/budget/reserve", forgotten.clone());
        let others = r#"{"allow":false,"reason":"budget_exceeded","spent_usd":0.4,"reserved_usd":0.59,"remaining_usd":0.01,"limit_usd":1,"message":"Full."}"#;
        assert!(matches!(run.told(ask, Some(others)), Progress::Busy));
        let waited = Asked { has_waited: true, ..asked(2_500) };
        let ask = sent(run.begin_model(waited, &price, NOW), "/guard/budget/reserve", forgotten.clone());
        let ask = sent(run.told(ask, Some(others)), "/guard/budget/reserve", logged.clone());
        assert!(matches!(run.told(ask, Some(others)), Progress::Refused(Refusal::NotNow(_))), "the last time the log hears it");
        let ask = sent(run.begin_model(Asked { asks_again: true, ..waited }, &price, NOW), "/guard/budget/reserve", forgotten.clone());
        assert!(
            matches!(run.told(ask, Some(others)), Progress::Refused(Refusal::NotNow(_))),
            "who asks again has not asked for the last time"
        );

        let ask = sent(run.begin_model(asked(4_096), &price, NOW), "/guard/budget/reserve", json!({}));
        let alone = r#"{"allow":false,"reason":"budget_exceeded","spent_usd":0.99,"reserved_usd":0,"remaining_usd":0.01,"limit_usd":1,"message":"Full."}"#;
        let ask = sent(run.told(ask, Some(alone)), "/guard/budget/reserve", json!({"usd": 0.01, "if_refused": "forgotten"}));
        let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r2"}"#)));
        assert_eq!(call.max_output(), Some(709));
        let ask = sent(run.finish_model(call, Used::Nothing, &price), "/guard/budget/release", json!({"reservation_id": "r2"}));
        assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));

        let ask = sent(run.begin_model(Asked { model: "own", ..asked(9) }, &price, NOW), "/guard/budget/reserve", json!({"model": "own"}));
        let unknown = r#"{"allow":false,"reason":"unknown_model","model":"own","message":"No price."}"#;
        let ask = sent(run.told(ask, Some(unknown)), "/guard/budget/reserve", json!({"if_refused": null}));
        assert!(matches!(run.told(ask, Some(unknown)), Progress::Refused(Refusal::Unpriced(_))));

        let ask = sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
        let spent =
            r#"{"allow":false,"reason":"budget_exceeded","spent_usd":1,"reserved_usd":0,"remaining_usd":0,"limit_usd":1,"message":"All."}"#;
        let ask = sent(run.told(ask, Some(spent)), "/guard/budget/reserve", logged.clone());
        assert!(matches!(run.told(ask, Some(spent)), Progress::Refused(Refusal::Trip(_))));
    }

    #[test]
    fn over_a_service_a_shorter_answer_has_the_price_of_its_prompts_size() {
        let mut run = over_service();
        let dearer_if_long: Pricing<'_> = &|_, usage| {
            let written = if usage.prompt_tokens() > 200 { 20_000 } else { 10_000 };
            Ok(nano_dollars(usage.prompt_tokens() * 10_000 + usage.output_tokens * written))
        };
        let ask = sent(run.begin_model(asked(4_096), dearer_if_long, NOW), "/guard/budget/reserve", json!({}));
        let left = r#"{"allow":false,"reason":"budget_exceeded","spent_usd":0.99,"reserved_usd":0,"remaining_usd":0.01,"limit_usd":1,"message":"Full."}"#;
        let ask = sent(run.told(ask, Some(left)), "/guard/budget/reserve", json!({"usd": 0.01}));
        let call = started(run.told(ask, Some(r#"{"allow":true,"reservation_id":"r1"}"#)));
        assert_eq!(call.max_output(), Some(354));
    }

    #[test]
    fn calls_that_a_service_is_asked_about_side_by_side_keep_the_ceiling() {
        let budget = ServiceBudget::new("run", Limits { usd: Some(usd(1.0)), ..Limits::default() }, Unanswered::Refused);
        let ceilings = Ceilings::default().model_calls(Some(3));
        let mut run = Run::new("run", ceilings, Loops::default(), None, Some(Money::Service(budget)));
        let granted = Some(r#"{"allow":true,"reservation_id":"r1"}"#);
        let reserve = |run: &mut Run| sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
        let first = reserve(&mut run);
        let first = started(run.told(first, granted));
        let ask = sent(run.finish_model(first, counted(&Usage::new(1, 1)), &price), "/guard/budget/commit", json!({}));
        assert!(matches!(run.told(ask, Some(r#"{"allow":true}"#)), Progress::Done));

        let (second, third) = (reserve(&mut run), reserve(&mut run));
        assert!(matches!(run.begin_model(asked(9), &price, NOW), Progress::Busy), "both may be granted");
        run.withdrawn(&third);
        let third = reserve(&mut run);
        let calls = [started(run.told(second, granted)), started(run.told(third, granted))];
        let refused = run.begin_model(asked(9), &price, NOW);
        assert!(matches!(&refused, Progress::Refused(Refusal::Trip(trip)) if trip.reason == "model_call_ceiling"), "{refused:?}");
        for call in calls {
            assert!(matches!(run.finish_model(call, Used::Nothing, &price), Progress::Ask(_)));
        }
    }

    #[test]
    fn a_question_that_came_to_nothing_holds_up_nobody() {
        let mut run = over_service();
        let ask = sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
        run.withdrawn(&ask);
        let _ = sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
    }

    #[test]
    fn a_service_that_is_away_when_it_is_let_pass_is_told_afterwards() {
        let budget = ServiceBudget::new("run", Limits::default(), Unanswered::Passes);
        let mut run = Run::new("run", Ceilings::default(), Loops::default(), None, Some(Money::Service(budget)));
        let ask = sent(run.begin_model(asked(9), &price, NOW), "/guard/budget/reserve", json!({}));
        let call = started(run.told(ask, None));
        let usage = Usage::new(300, 40);
        let _ =
            sent(run.finish_model(call, counted(&usage), &price), "/guard/budget/record", json!({"model": "small", "input_tokens": 300}));
    }

    proptest! {
        /// Whoever pays no more than its bound keeps the limit, however many ask at once.
        #[test]
        fn bounds_that_hold_keep_the_limit(
            steps in prop::collection::vec((0u64..4_000, 0u64..4_000, 1u64..4, any::<bool>(), 0.0f64..1.0), 1..60)
        ) {
            let (budget, mut run) = limited(0.1);
            let mut under_way = Vec::new();
            for (bytes, max_output, choices, ends_one, share) in steps {
                let prompt = Prompt { bytes, attachments: 0 };
                let asked = Asked { model: "small", prompt, max_output: Some(max_output), choices, has_waited: false, asks_again: false, may_fall_back: false };
                match run.begin_model(asked, &price, NOW) {
                    Progress::Started(call) => under_way.push((call, bytes, max_output, choices)),
                    Progress::Busy | Progress::Refused(_) => {}
                    other => panic!("{other:?}"),
                }
                if ends_one && !under_way.is_empty() {
                    let (call, bytes, max_output, choices) = under_way.swap_remove(0);
                    let longest = call.max_output().unwrap_or(max_output);
                    let usage = Usage::new(bytes / 3, choices * (longest as f64 * share) as u64);
                    prop_assert!(!matches!(run.finish_model(call, counted(&usage), &price), Progress::Refused(_)));
                }
                let books = budget.snapshot();
                prop_assert!(nanos(books.spent().usd) + nanos(books.reserved.usd) <= 100_000_000);
            }
        }
    }
}
