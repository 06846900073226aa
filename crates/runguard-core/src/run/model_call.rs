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

use super::service::{AnswerMeaning, Question, ServiceBudget, Spent};
use super::{Ask, HeldMoney, Money, Progress, Purpose, Refusal, Run, Trip, Unpriced, ask};
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
pub struct ModelQuestion<'a> {
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

/// No more answers to one question are priced: the provider says itself what is wrong with asking for so many.
const MOST_PRICED_CHOICES: u64 = 10_000;

impl ModelQuestion<'_> {
    fn longest(&self) -> u64 {
        self.max_output.unwrap_or(LONGEST_ANSWER)
    }

    /// What is written when each answer is so long.
    fn written(&self, output: u64) -> u64 {
        output.saturating_mul(self.choices.clamp(1, MOST_PRICED_CHOICES))
    }

    fn at_most(&self) -> Usage {
        Usage::new(self.prompt.most_tokens(self.model), self.written(self.longest()))
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
    fn of(asked: ModelQuestion<'_>, bound: Usage, price: Pricing<'_>) -> Self {
        let cost_of = |usage: Usage| match usage.cost(|| price(asked.model, &usage)) {
            (cost, None) => Some(cost),
            (_, Some(_)) => None,
        };
        let longest = asked.longest();
        // An answer to a long prompt has the price of that prompt's size.
        let parts = cost_of(asked.usual(0)).zip(cost_of(asked.usual(longest))).map(|(prompt, all)| (prompt, all.minus(prompt)));
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

    fn call(self, held: HeldMoney) -> ModelCall {
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
    held: HeldMoney,
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
    pub fn begin_model(&mut self, asked: ModelQuestion<'_>, price: Pricing<'_>, now: Timestamp) -> Progress {
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
        let asked = ModelQuestion { model: fallback.as_deref().unwrap_or(asked.model), ..asked };
        match &self.budget {
            None => self.start(asked, Cost::ZERO, None, HeldMoney::Nothing),
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

    /// Whether a call has cost more than its bound, so that later bounds are raised.
    pub fn knows_its_bounds_wrong(&self) -> bool {
        self.model_calls_made.most_raised_by > AS_IT_IS
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
    fn settle(&mut self, held: HeldMoney, paid: Cost, unknown: Option<&UnknownModelError>, spent: Spent<'_>) -> Progress {
        self.used(paid.tokens);
        match held {
            HeldMoney::Nothing => Progress::Done,
            HeldMoney::InProcess(reservation) => {
                let budget = reservation.budget().clone();
                let is_priced = unknown.is_none() || !budget.needs_prices();
                // Dearer than its bound is no end while something is left: others may give back what they have set aside.
                let settled = reservation.commit(paid).or_else(|_| budget.used_up().map_or(Ok(()), Err));
                let settled = self.spent(settled);
                match unknown {
                    Some(unknown) if !is_priced => self.unpriced(Unpriced::from(unknown)),
                    Some(_) | None => settled,
                }
            }
            HeldMoney::Service { id } => match &self.budget {
                Some(Money::Service(budget)) => ask(budget.commit_for_good(id.as_deref(), spent), Purpose::Settled),
                Some(Money::InProcess(_)) | None => Progress::Done,
            },
        }
    }

    /// What a service said of setting a call's bound aside.
    pub(super) fn begun(&mut self, told: AnswerMeaning, pending: Box<Pending>) -> Progress {
        // It was under way from the question on, so that none beside it is the first too, nor the last.
        self.model_calls_made.is_answered();
        match told {
            AnswerMeaning::Reserved(id) => {
                self.model_calls += 1;
                self.model_calls_made.under_way += 1;
                Progress::Started(pending.call(HeldMoney::Service { id }))
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
    fn does_not_begin(&mut self, budget: &Arc<ServiceBudget>, told: AnswerMeaning, mut pending: Box<Pending>) -> Progress {
        let is_try = pending.is_try;
        if let AnswerMeaning::DoesNotFit { trip, is_set_aside, left, .. } = &told
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
        let is_refused = matches!(
            told,
            AnswerMeaning::DoesNotFit { .. } | AnswerMeaning::Unpriced(_) | AnswerMeaning::Stopped(_) | AnswerMeaning::NotNow(_)
        );
        if is_try && is_refused {
            (pending.is_try, pending.rest, pending.max_output) = (false, None, None);
            return self.ask_about(budget, pending);
        }
        match told {
            AnswerMeaning::DoesNotFit { trip, renews, .. } if trip.is_used_up() => {
                self.proceed(AnswerMeaning::refused(trip, renews), Purpose::Money)
            }
            // Nothing was paid yet.
            AnswerMeaning::Unpriced(unpriced) => Progress::Refused(Refusal::Unpriced(unpriced)),
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

    fn give_back(&mut self, held: HeldMoney, model: &str) -> Progress {
        match (held, &self.budget) {
            (HeldMoney::Service { id: Some(id) }, Some(Money::Service(budget))) => ask(budget.release(&id, Some(model)), Purpose::Money),
            // In this process it is given back when it goes.
            (HeldMoney::Nothing | HeldMoney::InProcess(_) | HeldMoney::Service { .. }, _) => Progress::Done,
        }
    }

    /// The first call goes alone: it shows whether bounds hold.
    fn must_wait(&self, asked: ModelQuestion<'_>) -> bool {
        self.model_calls_made.under_way > 0 && !self.model_calls_made.is_measured && !asked.has_waited
    }

    fn begin_within(&mut self, budget: &Budget, asked: ModelQuestion<'_>, price: Pricing<'_>) -> Progress {
        let remaining = budget.remaining();
        if remaining.usd.is_none() && remaining.tokens.is_none() {
            return match budget.reserve(Cost::ZERO) {
                Ok(held) => self.start(asked, Cost::ZERO, None, HeldMoney::InProcess(held)),
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
            Ok(held) => return self.start(asked, at_most, None, HeldMoney::InProcess(held)),
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
        asked: ModelQuestion<'_>,
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
            Ok(held) => self.start(asked, rest, Some(max_output), HeldMoney::InProcess(held)),
            // Somebody was faster.
            Err(_) if !asked.has_waited => Progress::Busy,
            Err(exceeded) => Progress::Refused(Refusal::NotNow(Trip::from(&exceeded))),
        }
    }

    pub(super) fn start(&mut self, asked: ModelQuestion<'_>, at_most: Cost, max_output: Option<u64>, held: HeldMoney) -> Progress {
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
mod tests;
