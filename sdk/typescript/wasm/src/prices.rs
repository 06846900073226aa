//! What a model call costs.

use crate::boundary::{DONE, TOLD, UNKNOWN_MODEL, answer, answer_text, refuse, with_texts};
use runguard_core::model_question::Asked;
use runguard_core::money::NanoDollars;
use runguard_core::prices::{Price, Prices, ServiceTier, UnknownModel, UnknownModelError, Usage, raise_counts};
use runguard_core::run::sentence;
use serde_json::Value;
use std::cell::RefCell;

struct InForce {
    prices: Prices,
    unknown: UnknownModel,
}

thread_local! {
    /// The table is large and read when a price is first asked for.
    static IN_FORCE: RefCell<Option<InForce>> = const { RefCell::new(None) };
}

fn with_prices<R>(operation: impl FnOnce(&mut InForce) -> R) -> R {
    IN_FORCE.with_borrow_mut(|in_force| {
        operation(in_force.get_or_insert_with(|| InForce { prices: Prices::bundled(), unknown: UnknownModel::Error }))
    })
}

/// Whole numbers of tokens, at least 0; JavaScript has checked them. The tier is a place in the list that it knows too.
pub(crate) fn usage(counts: [f64; 7], service_tier: u32) -> Usage {
    let [input, output, cached, cache_write, cache_write_1h, audio_input, audio_output] = counts.map(|count| count as u64);
    Usage {
        input_tokens: input,
        output_tokens: output,
        cached_tokens: cached,
        cache_write_tokens: cache_write,
        cache_write_1h_tokens: cache_write_1h,
        audio_input_tokens: audio_input,
        audio_output_tokens: audio_output,
        service_tier: match service_tier {
            1 => ServiceTier::Priority,
            2 => ServiceTier::Flex,
            3 => ServiceTier::Batch,
            _ => ServiceTier::Standard,
        },
    }
}

/// An operation that is told what a model call used: its last arguments are the counts and the tier, in the order of JavaScript's `counts`.
/// They cross as numbers, and this is the one place that lists them.
macro_rules! with_usage {
    ($(#[$about:meta])* fn $name:ident($($argument:ident: $kind:ty),*; $usage:ident) -> $status:ty $operation:block) => {
        $(#[$about])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(
            $($argument: $kind,)*
            input: f64,
            output: f64,
            cached: f64,
            cache_write: f64,
            cache_write_1h: f64,
            audio_input: f64,
            audio_output: f64,
            service_tier: u32,
        ) -> $status {
            let counts = [input, output, cached, cache_write, cache_write_1h, audio_input, audio_output];
            let $usage = $crate::prices::usage(counts, service_tier);
            $operation
        }
    };
}
pub(crate) use with_usage;

/// The cost, or the status that says why there is none.
pub(crate) fn cost_of(model: &str, usage: &Usage) -> Result<NanoDollars, i32> {
    known_cost(model, usage).map_err(|problem| unknown_model(&problem))
}

pub(crate) fn unknown_model(problem: &UnknownModelError) -> i32 {
    answer_text(&sentence(problem));
    UNKNOWN_MODEL
}

pub(crate) fn known_cost(model: &str, usage: &Usage) -> Result<NanoDollars, UnknownModelError> {
    with_prices(|InForce { prices, unknown }| prices.cost(model, usage, unknown).map(|(cost, _)| cost))
}

/// The longest answer of a model in tokens, where it is known.
pub(crate) fn longest_answer(model: &str) -> Option<u64> {
    with_prices(|InForce { prices, unknown }| prices.longest_answer(model).or_else(|| unknown.longest_answer()))
}

with_usage! {
    /// Dollars; or a status, as a number below 0.
    fn cost_usd(model: usize; usage) -> f64 {
        with_texts([model], |[model]| match cost_of(model, &usage) {
            Ok(cost) => cost.as_dollars(),
            Err(status) => -f64::from(status),
        })
    }
}

/// Prices of the user's own, before the table: JSON by model, dollars for a million tokens.
#[unsafe(no_mangle)]
pub extern "C" fn prices_set(models: usize) -> i32 {
    with_texts([models], |[models]| with_prices(|in_force| in_force.prices.set_from_json(models).map_or_else(refuse, |()| DONE)))
}

/// What a model without a price costs: `"error"`, `"free"`, or a price.
#[unsafe(no_mangle)]
pub extern "C" fn prices_unknown(choice: usize) -> i32 {
    with_texts([choice], |[choice]| {
        let unknown = match choice {
            "\"error\"" => UnknownModel::Error,
            "\"free\"" => UnknownModel::Free,
            price => match serde_json::from_str::<Price>(price) {
                Ok(price) => UnknownModel::DefaultPrice(price),
                Err(problem) => return refuse(problem),
            },
        };
        with_prices(|in_force| in_force.unknown = unknown);
        DONE
    })
}

/// The bytes of what a model has written, from its JSON.
#[unsafe(no_mangle)]
pub extern "C" fn answer_size(answer: usize) -> f64 {
    with_texts([answer], |[answer]| match serde_json::from_str(answer) {
        Ok(value) => runguard_core::prices::answer_size(&value),
        Err(_) => answer.len() as u64,
    }) as f64
}

/// Why a request to this address is refused where a budget stands, if it is one that nobody can meter.
#[unsafe(no_mangle)]
pub extern "C" fn unmetered(path: usize) -> i32 {
    with_texts([path], |[path]| runguard_core::prices::unmetered(path).map_or(DONE, refuse))
}

/// What a request to a provider asks for, given as JSON: [`Asked`], left in the output. Nothing of a path of which nothing is known.
#[unsafe(no_mangle)]
pub extern "C" fn asked_of_model(path: usize, model: usize, body: usize) -> i32 {
    with_texts([path, model, body], |[path, model, body]| Asked::read(path, model, body).map_or(DONE, |asked| answer(TOLD, &asked)))
}

/// Whether a request that ended with an error of these names, one a line, may have been answered, and billed.
#[unsafe(no_mangle)]
pub extern "C" fn may_be_billed(names: usize) -> i32 {
    with_texts([names], |[names]| i32::from(runguard_core::prices::may_be_billed(names.lines())))
}

/// Leaves in the output what a stream has reported of its usage so far with what it reports now, both as JSON.
#[unsafe(no_mangle)]
pub extern "C" fn usage_merge(earlier: usize, later: usize) -> i32 {
    with_texts([earlier, later], |reports| {
        let mut known = serde_json::Map::new();
        for report in reports {
            raise_counts(&mut known, &serde_json::from_str(report).unwrap_or_default());
        }
        answer(DONE, &known)
    })
}

/// Reads a usage report, given as JSON, of a provider, and leaves the counts in the output.
#[unsafe(no_mangle)]
pub extern "C" fn usage_read(provider: usize, report: usize) -> i32 {
    with_texts([provider, report], |[provider, report]| {
        let report: Value = match serde_json::from_str(report) {
            Ok(report) => report,
            Err(problem) => return refuse(problem),
        };
        let read = match provider {
            "openai" => Usage::from_openai(&report),
            "anthropic" => Usage::from_anthropic(&report),
            "bedrock" => Usage::from_bedrock(&report),
            "gemini" => Usage::from_gemini(&report),
            "langchain" => Usage::from_langchain(&report),
            _ => {
                return refuse(format!(
                    "usage reports of '{provider}' are not known; there are those of openai, anthropic, bedrock, gemini and langchain"
                ));
            }
        };
        read.map_or_else(refuse, |usage| answer(DONE, &usage))
    })
}
