//! What a run has used, and what the next question may cost.
//!
//! Before each question its highest price is set aside, and `max_tokens` is lowered until it can be paid. How many tokens a
//! conversation has is known only afterwards, so the estimate is on the safe side: what the provider counted last time, and
//! for what has come since as many tokens as such text has at most.

use crate::settings::{GuardrailSettings, Limits};
use runguard_core::budget::{Budget, BudgetExceeded, Cost, Limits as BudgetLimits, Reservation, Reserve};
use runguard_core::money::NanoDollars;
use runguard_core::prices::{FRAME_TOKENS, Price, SHORTEST_ANSWER, USUAL_BYTES_A_TOKEN, Usage, longest_answer, usual_tokens};
use serde::{Deserialize, Serialize};

/// Everything that is counted over the life of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Counters {
    /// Questions to the model that were answered.
    pub steps: u32,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// In nano-dollars.
    pub cost: NanoDollars,
    /// Something was counted from bytes.
    pub estimated: bool,
    pub tool_runs: u32,
    /// Time at work.
    pub elapsed_ms: u64,
    pub max_tokens_recoveries: u32,
    /// How often the latest step was made again, in a row.
    pub repeated_tool_steps: u32,
    /// The latest step: its calls and their arguments.
    pub last_signature: Option<u64>,
    pub near_budget_said: bool,
    /// Messages that left the window.
    pub left_out: u64,
    /// What the provider counted for the latest question, and how many bytes it had.
    pub prompt_tokens: u64,
    pub prompt_bytes: u64,
}

impl Counters {
    pub const fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    fn spent(&self) -> Cost {
        Cost { usd: self.cost, tokens: self.total_tokens() }
    }
}

/// The most tokens a question of so many bytes may have; `most_words` gives those of its newest parts, of at least so many bytes.
pub(crate) fn highest_input(counters: &Counters, bytes: u64, most_words: impl FnOnce(u64) -> u64) -> u64 {
    let (tokens, known) = (counters.prompt_tokens, counters.prompt_bytes);
    if tokens == 0 || known == 0 {
        return most_words(bytes).saturating_add(FRAME_TOKENS);
    }
    match bytes.checked_sub(known) {
        Some(grown) => tokens.saturating_add(most_words(grown)).saturating_add(FRAME_TOKENS),
        // Part of it was left out; what stays may be the denser part, up to a point.
        None => tokens.min(tokens.saturating_mul(bytes) / known * 13 / 10 + FRAME_TOKENS),
    }
}

/// The bytes that make so many tokens, by what the provider has counted so far.
pub(crate) fn bytes_of(counters: &Counters, tokens: u64) -> usize {
    let bytes = if counters.prompt_tokens == 0 {
        tokens.saturating_mul(USUAL_BYTES_A_TOKEN)
    } else {
        (u128::from(tokens) * u128::from(counters.prompt_bytes) / u128::from(counters.prompt_tokens)).try_into().unwrap_or(u64::MAX)
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The money and the tokens of one run.
#[derive(Debug)]
pub(crate) struct Allowance {
    budget: Budget,
    price: Price,
}

/// A question that may be asked.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) reservation: Reservation,
    /// What the answer may have at most.
    pub(crate) max_tokens: u32,
    pub(crate) input_tokens: u64,
}

/// What an answer cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charge {
    pub(crate) usage: Usage,
    pub(crate) cost: NanoDollars,
    pub(crate) estimated: bool,
}

impl Allowance {
    /// Goes on from what the session has spent. Within `parent`, when many runs share a budget: an earlier turn of the session has told it
    /// what it spent there.
    pub(crate) fn new(limits: &Limits, price: Price, spent: &Counters, parent: Option<&Budget>) -> Self {
        let own = BudgetLimits { usd: limits.cost(), tokens: limits.tokens(), cap: None };
        let alone = Budget::new(BudgetLimits::default());
        let budget = parent.unwrap_or(&alone).child_having_spent(own, spent.spent());
        Self { budget, price }
    }

    /// Counts what was paid without being asked for.
    pub(crate) fn record(&self, paid: Cost) {
        // What is over the limit stays counted; the next question is refused.
        let _ = self.budget.record(paid);
    }

    /// Sets the highest cost of a question aside, with as long an answer as can be paid.
    pub(crate) fn grant(&self, input_tokens: u64, max_tokens: u32) -> Result<Granted, BudgetExceeded> {
        let remaining = self.budget.remaining();
        let fits = |output| {
            let cost = self.cost_of(&Usage::new(input_tokens, output));
            remaining.usd.is_none_or(|left| cost.usd <= left) && remaining.tokens.is_none_or(|left| cost.tokens <= left)
        };
        // What is too short to be worth asking for is refused with the numbers of the shortest answer.
        let output = longest_answer(u64::from(max_tokens), fits).unwrap_or(SHORTEST_ANSWER.min(u64::from(max_tokens)));
        let asked = u32::try_from(output).unwrap_or(max_tokens);
        let reservation = self.budget.reserve(self.cost_of(&Usage::new(input_tokens, u64::from(asked))))?;
        Ok(Granted { reservation, max_tokens: asked, input_tokens })
    }

    /// What an answer cost, by the provider's word or counted from bytes (`output_bytes`), and never less than nothing.
    pub(crate) fn charge(&self, granted: &Granted, usage: Option<Usage>, prompt_bytes: u64, output_bytes: u64) -> Charge {
        if let Some(usage) = usage {
            return Charge { usage, cost: self.price.cost(&usage), estimated: false };
        }
        let input = usual_tokens(prompt_bytes).min(granted.input_tokens);
        let output = usual_tokens(output_bytes).min(u64::from(granted.max_tokens));
        let usage = Usage::new(input, output);
        Charge { usage, cost: self.price.cost(&usage), estimated: true }
    }

    fn cost_of(&self, usage: &Usage) -> Cost {
        Cost { usd: self.price.cost(usage), tokens: usage.total_tokens() }
    }

    /// Which limit the run has passed, if any: its own, or that of the budget it draws on.
    pub(crate) fn exceeded(&self) -> Option<BudgetExceeded> {
        self.budget.overspent()
    }

    /// What may still be set aside, where it is limited, and what a question under way has set aside.
    pub(crate) fn left(&self, under_way: Cost) -> (Option<u64>, Option<NanoDollars>) {
        let free = self.budget.remaining();
        (free.tokens.map(|free| free.saturating_add(under_way.tokens)), free.usd.map(|free| free.saturating_add(under_way.usd)))
    }

    /// Whether the tokens or the dollars are used up but for the reserve: its own, or those of the budget it draws on.
    pub(crate) fn is_near(&self, settings: &GuardrailSettings) -> bool {
        // Up: whoever keeps a little back does not mean nothing.
        let usd_thousandths = (settings.reserve_cost_fraction * 1_000.0).ceil() as u64;
        self.budget.nearly_spent(Reserve { usd_thousandths, tokens: settings.reserve_tokens, ..Reserve::default() }).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use runguard_core::prices::PerMillion;

    fn price(input: f64, output: f64) -> Price {
        Price::new(PerMillion::from_dollars(input).unwrap(), PerMillion::from_dollars(output).unwrap())
    }

    fn allowance(cost_limit: f64, token_budget: u64) -> Allowance {
        let limits = Limits { token_budget, cost_limit, ..Limits::default() };
        Allowance::new(&limits, price(3.0, 15.0), &Counters::default(), None)
    }

    #[test]
    fn the_answer_is_as_long_as_can_be_paid() {
        // 1,000 tokens in are $0.003; $0.012 more pays for 800 out.
        let granted = allowance(0.015, 0).grant(1_000, 4_096).unwrap();
        assert_eq!(granted.max_tokens, 800);
        assert_eq!(allowance(0.015, 1_500).grant(1_000, 4_096).unwrap().max_tokens, 500);
        assert_eq!(allowance(0.0, 0).grant(1_000, 4_096).unwrap().max_tokens, 4_096, "without limits nothing is lowered");
        assert!(allowance(0.0031, 0).grant(1_000, 4_096).is_err(), "what is left does not pay for sixteen tokens");
        assert_eq!(allowance(0.0032, 0).grant(1_000, 4).unwrap().max_tokens, 4, "a short answer is asked for as it is");
    }

    #[test]
    fn near_is_said_for_tokens_and_for_money() {
        let near = |limits: &Limits, tokens, dollars, parent: Option<&Budget>| {
            let spent = Counters { input_tokens: tokens, cost: NanoDollars::from_dollars(dollars).unwrap(), ..Counters::default() };
            Allowance::new(limits, price(3.0, 15.0), &spent, parent).is_near(&GuardrailSettings::default())
        };
        let limits = Limits { cost_limit: 1.0, token_budget: 1_000, ..Limits::default() };
        assert!(!near(&limits, 487, 0.0, None));
        assert!(near(&limits, 488, 0.0, None), "512 tokens are left");
        assert!(!near(&limits, 0, 0.89, None));
        assert!(near(&limits, 0, 0.9, None), "a tenth is left");
        let unlimited = Limits { cost_limit: 0.0, token_budget: 0, ..Limits::default() };
        assert!(!near(&unlimited, 1_000_000, 1_000.0, None));
        let shared = Budget::new(BudgetLimits { tokens: Some(2_000), ..BudgetLimits::default() });
        shared.record(Cost::tokens(1_487)).unwrap();
        assert!(!near(&limits, 0, 0.0, Some(&shared)));
        shared.record(Cost::tokens(1)).unwrap();
        assert!(near(&limits, 0, 0.0, Some(&shared)), "others have spent it");
    }

    #[test]
    fn a_small_reserve_is_one() {
        let near = |reserve_cost_fraction, dollars| {
            let limits = Limits { cost_limit: 1.0, token_budget: 0, ..Limits::default() };
            let spent = Counters { cost: NanoDollars::from_dollars(dollars).unwrap(), ..Counters::default() };
            let settings = GuardrailSettings { reserve_cost_fraction, ..GuardrailSettings::default() };
            Allowance::new(&limits, price(3.0, 15.0), &spent, None).is_near(&settings)
        };
        assert!(near(0.0004, 0.9995) && !near(0.0004, 0.998) && !near(0.0, 0.9995));
        for thousandths in 1..1000 {
            let fraction = f64::from(thousandths) / 1_000.0;
            assert!(!near(fraction, f64::from(999 - thousandths) / 1_000.0), "{fraction} is no more than itself");
        }
    }

    #[test]
    fn what_is_left_is_what_can_be_granted_and_a_session_is_counted_once() {
        let shared = Budget::new(BudgetLimits { tokens: Some(2_000), ..BudgetLimits::default() });
        let limits = Limits { token_budget: 5_000, cost_limit: 0.0, ..Limits::default() };
        for spent in [0, 300] {
            let counters = Counters { input_tokens: spent, ..Counters::default() };
            let allowance = Allowance::new(&limits, price(3.0, 15.0), &counters, Some(&shared));
            assert_eq!(allowance.left(Cost::ZERO), (Some(2_000 - spent), None), "the shared budget has less than its own");
            let granted = allowance.grant(200, 100).unwrap();
            assert_eq!(allowance.left(granted.reservation.estimate()), (Some(2_000 - spent), None));
            granted.reservation.commit(Cost::tokens(300)).unwrap();
        }
    }

    #[test]
    fn the_estimate_follows_what_the_provider_counted() {
        let unknown = Counters::default();
        let highest_input = |counters: &Counters, bytes| highest_input(counters, bytes, |newest| newest / 2);
        assert_eq!(highest_input(&unknown, 1_000), 564);
        let known = Counters { prompt_tokens: 250, prompt_bytes: 1_000, ..Counters::default() };
        assert_eq!(highest_input(&known, 1_200), 250 + 100 + 64);
        assert_eq!(highest_input(&known, 400), 100 * 13 / 10 + 64);
        assert_eq!(highest_input(&known, 990), 250, "a part is never more than the whole");
        assert_eq!(bytes_of(&known, 100), 400);
    }

    proptest! {
        #[test]
        fn what_is_granted_can_be_paid(input in 0u64..200_000, max in 1u32..100_000, dollars in 0.0f64..2.0, tokens in 0u64..300_000) {
            let allowance = allowance(dollars, tokens);
            if let Ok(granted) = allowance.grant(input, max) {
                prop_assert!(granted.max_tokens >= 1 && granted.max_tokens <= max);
                let cost = allowance.cost_of(&Usage::new(input, u64::from(granted.max_tokens)));
                let limits = allowance.budget.snapshot().limits;
                prop_assert!(limits.usd.is_none_or(|limit| cost.usd <= limit));
                prop_assert!(limits.tokens.is_none_or(|limit| cost.tokens <= limit));
            }
        }
    }
}
