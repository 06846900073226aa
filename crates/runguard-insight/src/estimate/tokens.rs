//! What a loop of model calls costs, in tokens and at the prices of a model.
//!
//! An agent sends everything it has gathered with every step, so a loop costs more than its steps times the first prompt: `growth` is what
//! each step adds to the prompts after it.

use super::{Example, Figure};
use runguard_core::limits::InvalidSetting;
use runguard_core::money::NanoDollars;
use runguard_core::prices::{Price, Prices, UnknownModel, Usage};

/// More steps than any session has.
const MOST_STEPS: u64 = 100_000;
const MOST_TOKENS: u64 = 10_000_000;
const MOST_RUNS: u64 = 1_000_000_000;

/// A loop of model calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenLoop {
    /// A model of the price list.
    pub model: String,
    /// Prices of one's own, in place of the list's.
    pub price: Option<Price>,
    /// Runs that get into the loop.
    pub runs: u64,
    /// Model calls of the loop, with nobody to stop it.
    pub steps: u64,
    /// Tokens that the first step reads.
    pub input_tokens: u64,
    /// Tokens that each step writes.
    pub output_tokens: u64,
    /// Tokens that each step reads more than the one before.
    pub growth: u64,
    /// Steps the guard lets pass.
    pub allowed: u64,
}

impl Default for TokenLoop {
    fn default() -> Self {
        Self {
            model: SONNET.to_owned(),
            price: None,
            runs: 1,
            steps: 100,
            input_tokens: 10_000,
            output_tokens: 1_000,
            growth: 0,
            // The third of the same is the last.
            allowed: 3,
        }
    }
}

/// Tokens, and what they cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tokens {
    pub steps: u64,
    pub input: u64,
    pub output: u64,
    pub input_usd: NanoDollars,
    pub usd: NanoDollars,
}

/// Before, after, and the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLine {
    pub without: Tokens,
    pub with: Tokens,
    pub saved: Tokens,
}

/// What a loop costs, and what a guard leaves of it.
pub fn estimate_tokens(given: &TokenLoop) -> Result<TokenLine, InvalidSetting> {
    for (name, value, most) in [
        ("runs", given.runs, MOST_RUNS),
        ("steps", given.steps, MOST_STEPS),
        ("input-tokens", given.input_tokens, MOST_TOKENS),
        ("output-tokens", given.output_tokens, MOST_TOKENS),
        ("growth", given.growth, MOST_TOKENS),
    ] {
        if value > most {
            return Err(InvalidSetting::new(name, format!("must be at most {most}, is {value}")));
        }
    }
    let price = price_of(given)?;
    let (without, with) = (spent(given, given.steps, &price)?, spent(given, given.steps.min(given.allowed), &price)?);
    let saved = Tokens {
        steps: without.steps - with.steps,
        input: without.input - with.input,
        output: without.output - with.output,
        input_usd: less(without.input_usd, with.input_usd),
        usd: less(without.usd, with.usd),
    };
    Ok(TokenLine { without, with, saved })
}

fn less(more: NanoDollars, less: NanoDollars) -> NanoDollars {
    NanoDollars::from_nanos(more.as_nanos() - less.as_nanos()).unwrap_or_default()
}

fn price_of(given: &TokenLoop) -> Result<Price, InvalidSetting> {
    if let Some(price) = &given.price {
        return Ok(price.clone());
    }
    let prices = Prices::bundled();
    if let Some((price, _)) = prices.price(&given.model) {
        return Ok(price.clone());
    }
    let unknown = prices.cost(&given.model, &Usage::default(), &UnknownModel::Error).err();
    let near = unknown.map(|unknown| unknown.suggestions).filter(|near| !near.is_empty());
    let hint = near.map_or_else(|| "give its prices".to_owned(), |near| format!("near names: {}", near.join(", ")));
    Err(InvalidSetting::new("model", format!("`{}` is not in the price list; {hint}", given.model)))
}

fn spent(given: &TokenLoop, steps: u64, price: &Price) -> Result<Tokens, InvalidSetting> {
    let too_much = || InvalidSetting::new("runs", "come to more than can be counted; are they the right number?");
    let mut sum = Tokens { steps: steps.checked_mul(given.runs).ok_or_else(too_much)?, ..Tokens::default() };
    let (mut input_nanos, mut nanos) = (0_i64, 0_i64);
    for step in 0..steps {
        // Each step is billed on its own: some models cost more from a size of the prompt on.
        let input_tokens = given.growth.saturating_mul(step).saturating_add(given.input_tokens);
        let read = Usage { input_tokens, ..Usage::default() };
        let all = Usage { output_tokens: given.output_tokens, ..read };
        input_nanos = input_nanos.checked_add(price.cost(&read).as_nanos()).ok_or_else(too_much)?;
        nanos = nanos.checked_add(price.cost(&all).as_nanos()).ok_or_else(too_much)?;
        sum.input = sum.input.saturating_add(input_tokens);
    }
    let times = |nanos: i64| NanoDollars::from_nanos(nanos).ok().and_then(|one| one.checked_mul(given.runs)).ok_or_else(too_much);
    sum.input = sum.input.checked_mul(given.runs).ok_or_else(too_much)?;
    sum.output = given.output_tokens.checked_mul(sum.steps).ok_or_else(too_much)?;
    (sum.input_usd, sum.usd) = (times(input_nanos)?, times(nanos)?);
    Ok(sum)
}

const SOURCE: &str = "Bedrock agents circuit breaker";
const SONNET: &str = "anthropic.claude-3-7-sonnet-20250219-v1:0";
const LLAMA: &str = "meta.llama3-1-70b-instruct-v1:0";
const HAIKU: &str = "anthropic.claude-3-5-haiku-20241022-v1:0";

fn sonnet(steps: u64) -> TokenLoop {
    TokenLoop { steps, ..TokenLoop::default() }
}

fn llama(usd: Option<&str>) -> TokenLoop {
    let price = usd.and_then(|usd| serde_json::from_str(&format!(r#"{{"input": "{usd}", "output": "{usd}"}}"#)).ok());
    TokenLoop { model: LLAMA.to_owned(), price, steps: 500, input_tokens: 8_000, output_tokens: 0, ..TokenLoop::default() }
}

fn haiku() -> TokenLoop {
    TokenLoop { model: HAIKU.to_owned(), steps: 1_000, input_tokens: 5_000, output_tokens: 0, ..TokenLoop::default() }
}

fn lookups(growth: u64) -> TokenLoop {
    let input_tokens = 3_000;
    TokenLoop { steps: 50, input_tokens, output_tokens: 0, growth, ..TokenLoop::default() }
}

fn growing(steps: u64) -> TokenLoop {
    // From 5,000 at the first step to 50,000 at the twentieth.
    TokenLoop { steps, input_tokens: 5_000, output_tokens: 0, growth: 45_000 / 19, ..TokenLoop::default() }
}

fn without(given: TokenLoop) -> Tokens {
    estimate_tokens(&given).map(|line| line.without).unwrap_or_default()
}

fn cents(usd: NanoDollars) -> u64 {
    (usd.as_nanos() as u64).div_ceil(10_000_000)
}

fn said(what: &'static str, document: u64, right: u64, note: &'static str) -> Figure {
    Figure { what, document: Some(document), right, note }
}

/// Published examples that count in tokens, each with its loop.
pub static TOKEN_EXAMPLES: &[(Example, fn() -> TokenLoop)] = &[
    (
        Example {
            name: "bedrock-sonnet",
            source: SOURCE,
            about: "A loop of 100 steps on Claude Sonnet 3.7, 10,000 tokens in and 1,000 out each.",
            inputs: || None,
            figures: || {
                let (hundred, two_hundred) = (without(sonnet(100)), without(sonnet(200)));
                vec![
                    said("tokens read", 1_000_000, hundred.input, ""),
                    said("cents for what is read", 300, cents(hundred.input_usd), ""),
                    said("cents for what is written", 150, cents(less(hundred.usd, hundred.input_usd)), ""),
                    said(
                        "cents of 200 steps",
                        750,
                        cents(two_hundred.usd),
                        "published is the output of only 100 steps beside the input of 200, and \"7.50 and more\"",
                    ),
                ]
            },
        },
        || sonnet(100),
    ),
    (
        Example {
            name: "bedrock-llama",
            source: SOURCE,
            about: "A loop of 500 steps on Llama 3.1 70B, 8,000 tokens each, at the lowest and the highest price that was published.",
            inputs: || None,
            figures: || {
                let (low, high) = (without(llama(None)), without(llama(Some("2.65"))));
                vec![
                    said("tokens read", 4_000_000, low.input, ""),
                    said("cents at $0.72, the price of the list", 288, cents(low.usd), ""),
                    said("cents at $2.65", 1_060, cents(high.usd), ""),
                ]
            },
        },
        || llama(None),
    ),
    (
        Example {
            name: "bedrock-haiku",
            source: SOURCE,
            about: "A loop of 1,000 steps on Claude Haiku 3.5, 5,000 tokens each.",
            inputs: || None,
            figures: || {
                let all = without(haiku());
                vec![said("tokens read", 5_000_000, all.input, ""), said("cents", 400, cents(all.usd), "")]
            },
        },
        haiku,
    ),
    (
        Example {
            name: "bedrock-lookups",
            source: SOURCE,
            about: "A knowledge base that gives 3,000 tokens, asked 50 times.",
            inputs: || None,
            figures: || {
                vec![
                    said("tokens given", 150_000, without(lookups(0)).input, ""),
                    Figure {
                        what: "tokens read",
                        document: None,
                        right: without(lookups(3_000)).input,
                        note: "what was given once is sent again with every later step",
                    },
                ]
            },
        },
        || lookups(3_000),
    ),
    (
        Example {
            name: "bedrock-growth",
            source: SOURCE,
            about: "Prompts that grow from 5,000 tokens at the first step to 50,000 at the twentieth, for 100 steps on Claude Sonnet 3.7.",
            inputs: || None,
            figures: || {
                let figure = |what, right, note| Figure { what, document: None, right, note };
                vec![
                    figure("tokens of the twentieth step", without(growing(20)).input - without(growing(19)).input, "in whole tokens"),
                    figure("cents of 20 steps", cents(without(growing(20)).usd), ""),
                    figure("cents of 100 steps", cents(without(growing(100)).usd), "22 times the first twenty, not five"),
                ]
            },
        },
        || growing(100),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &str) -> Vec<(Option<u64>, u64)> {
        let (example, _) = TOKEN_EXAMPLES.iter().find(|(example, _)| example.name == name).unwrap();
        (example.figures)().iter().map(|figure| (figure.document, figure.right)).collect()
    }

    #[test]
    fn the_pages_examples_come_out_to_the_cent() {
        let same = |value| (Some(value), value);
        assert_eq!(figures("bedrock-sonnet"), [same(1_000_000), same(300), same(150), (Some(750), 900)]);
        assert_eq!(figures("bedrock-llama"), [same(4_000_000), same(288), same(1_060)]);
        assert_eq!(figures("bedrock-haiku"), [same(5_000_000), same(400)]);
        assert_eq!(figures("bedrock-lookups"), [same(150_000), (None, 3_825_000)]);
        // 2,368 tokens more at each step: 12,221,600 in all.
        assert_eq!(figures("bedrock-growth"), [(None, 49_992), (None, 165), (None, 3_667)]);
        for (example, _) in TOKEN_EXAMPLES {
            assert!((example.figures)().iter().all(|figure| figure.agrees() || !figure.note.is_empty()), "{}", example.name);
        }
    }

    #[test]
    fn a_guard_leaves_the_steps_it_lets_pass() {
        let line = estimate_tokens(&TokenLoop { runs: 10, ..TokenLoop::default() }).unwrap();
        assert_eq!((line.without.steps, line.with.steps, line.saved.steps), (1_000, 30, 970));
        assert_eq!(line.with.usd, NanoDollars::parse("1.35").unwrap(), "three steps of 4.5 cents in each of ten");
        assert_eq!(line.saved.usd, NanoDollars::parse("43.65").unwrap());
        let short = estimate_tokens(&TokenLoop { steps: 2, ..TokenLoop::default() }).unwrap();
        assert_eq!(short.saved, Tokens::default());
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let named = |given: TokenLoop| estimate_tokens(&given).unwrap_err().name;
        assert_eq!(named(TokenLoop { model: "no-such-model".to_owned(), ..TokenLoop::default() }), "model");
        assert_eq!(named(TokenLoop { steps: 100_001, ..TokenLoop::default() }), "steps");
        let dear = TokenLoop { runs: MOST_RUNS, steps: MOST_STEPS, input_tokens: MOST_TOKENS, ..TokenLoop::default() };
        assert_eq!(named(dear), "runs");
    }
}
