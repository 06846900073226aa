//! How many times its usual price a question may cost: served before others, written to a cache, heard or spoken, or read once more to be
//! made shorter. What is set aside is so by the usual price, of so many times the tokens.

use crate::api::{Api, Dialect};
use crate::members::Members;
use memchr::memmem::Finder;
use runguard_core::model_question::LEFT_TO_THEM;
use runguard_core::prices::{Price, Prices, ServiceTier, Usage};
use std::sync::LazyLock;

/// Thousandths of the usual price, of what is read and of what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    read: u64,
    written: u64,
}

/// Once.
const ONCE: u64 = 1_000;
/// What is kept for an hour costs twice as much as what is only read.
const CACHED: u64 = 2 * ONCE;
const MADE_SHORTER: u64 = 2 * ONCE;
/// Tokens of an answer that are compared by what they cost.
const MANY: u64 = 1_000_000;
/// How many times what is read what is written costs, of a model whose price nobody here knows.
const DEAREST_OUTPUT: u64 = 10;

impl Times {
    pub(crate) const USUAL: Self = Self { read: ONCE, written: ONCE };

    /// So many tokens that are read cost as much as these at the usual price.
    pub(crate) const fn of_read(self, tokens: u64) -> u64 {
        thousandths(tokens, self.read)
    }

    pub(crate) const fn of_written(self, tokens: u64) -> u64 {
        thousandths(tokens, self.written)
    }

    /// As many tokens as are written for what these cost at the usual price.
    pub(crate) const fn written_for(self, tokens: u64) -> u64 {
        ((tokens as u128 * ONCE as u128) / self.written as u128) as u64
    }

    /// The dearer of both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { read: self.read.max(other.read), written: self.written.max(other.written) }
    }
}

/// Rounded up.
#[expect(clippy::cast_possible_truncation, reason = "it is no more than fits")]
const fn thousandths(tokens: u64, times: u64) -> u64 {
    let product = (tokens as u128 * times as u128).div_ceil(ONCE as u128);
    if product > u64::MAX as u128 { u64::MAX } else { product as u64 }
}

/// How many thousandths of another one amount is, rounded up.
fn ratio(special: u64, usual: u64) -> u64 {
    if usual == 0 {
        return ONCE;
    }
    u64::try_from((u128::from(special) * u128::from(ONCE)).div_ceil(u128::from(usual))).unwrap_or(u64::MAX)
}

/// Prompts of every size that has prices of its own.
fn sizes(price: &Price) -> Vec<u64> {
    let tiers = [&price.above, &price.priority, &price.flex, &price.batch];
    let mut sizes: Vec<u64> = tiers.into_iter().flatten().map(|tier| tier.tokens.saturating_add(1)).chain([ONCE]).collect();
    sizes.retain(|size| *size >= ONCE);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn nanos(price: &Price, usage: &Usage) -> u64 {
    price.cost(usage).as_nanos().unsigned_abs()
}

/// How a question is served and what it has, as far as that has a price.
#[derive(Debug, Clone, Copy, Default)]
struct Special {
    tier: ServiceTier,
    /// What is read may be put into a cache, as the provider likes.
    is_written: bool,
    /// The caller says that it is to be kept.
    is_kept: bool,
    has_sound: bool,
}

/// The most that any of it costs, whatever the size of the prompt.
fn most(price: &Price, special: Special) -> Times {
    let Special { tier, is_written, is_kept, has_sound } = special;
    let writes = || price.cache_write.is_some() || price.above.iter().any(|tier| tier.cache_write.is_some());
    let is_special = tier != ServiceTier::Standard || is_kept || has_sound || (is_written && writes());
    if !is_special {
        return Times::USUAL;
    }
    let none = Usage::default().in_tier(tier);
    let mut times = Times::USUAL;
    for size in sizes(price) {
        let usual = nanos(price, &Usage::new(size, 0));
        let kinds = [
            (true, Usage { input_tokens: size, ..none }),
            (is_written || is_kept, Usage { cache_write_tokens: size, ..none }),
            (is_kept, Usage { cache_write_1h_tokens: size, ..none }),
            (has_sound, Usage { audio_input_tokens: size, ..none }),
        ];
        for (_, read) in kinds.into_iter().filter(|(is_there, _)| *is_there) {
            times.read = times.read.max(ratio(nanos(price, &read), usual));
        }
        let of_answer = |usage: Usage| {
            let prompt = Usage { input_tokens: size, ..Usage::default() }.in_tier(usage.service_tier);
            nanos(price, &Usage { input_tokens: size, ..usage }).saturating_sub(nanos(price, &prompt))
        };
        let usual = of_answer(Usage::new(0, MANY));
        let kinds = [(true, Usage { output_tokens: MANY, ..none }), (has_sound, Usage { audio_output_tokens: MANY, ..none })];
        for (_, written) in kinds.into_iter().filter(|(is_there, _)| *is_there) {
            times.written = times.written.max(ratio(of_answer(written), usual));
        }
    }
    times
}

/// Marks of what is heard, and of what the caller wants to be kept. Made once: that takes longer than to look through a short question.
static HEARD: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| ["\"input_audio\"", "\"audio_url\""].map(Finder::new));
static KEPT: LazyLock<[Finder<'static>; 2]> = LazyLock::new(|| ["\"cache_control\"", "\"cachePoint\""].map(Finder::new));

/// What a question may cost, as it says how it is to be served; and where it leaves that to the provider, which may serve it before others.
pub(crate) fn times(model: &str, api: Api, tier: Option<&str>, has_recordings: bool, body: &Members<'_>) -> (Times, Times) {
    let says = |marks: &[Finder<'_>]| marks.iter().any(|mark| mark.find(body.whole_text().as_bytes()).is_some());
    let is_heard = has_recordings || says(&*HEARD);
    let is_kept = says(&*KEPT);
    let is_openai = api.dialect() == Dialect::OpenAi;
    let special = Special {
        // Who leaves it to the provider in so many words may be served first.
        tier: tier.map_or_else(ServiceTier::default, |tier| match tier {
            LEFT_TO_THEM if is_openai => ServiceTier::Priority,
            tier => ServiceTier::named(tier),
        }),
        // Others put nothing into a cache that is not said to belong there.
        is_written: is_openai,
        is_kept,
        has_sound: is_heard || body.get("modalities").is_some_and(|kinds| kinds.contains("audio")),
    };
    let is_made_shorter = body.get("context_management").is_some_and(|managed| managed.contains("compact"));
    let prices = Prices::bundled();
    let price = prices.price(model).map(|(price, _)| price);
    let all_of = |special: Special| {
        let Times { mut read, mut written } = price.map_or(Times::USUAL, |price| most(price, special));
        if is_kept {
            read = read.max(CACHED);
        }
        if is_made_shorter {
            (read, written) = (thousandths(read, MADE_SHORTER), thousandths(written, MADE_SHORTER));
        }
        Times { read, written }
    };
    let usual = all_of(special);
    let is_left_to_them = tier.is_none() && is_openai && price.is_some_and(|price| !price.priority.is_empty());
    let first = if is_left_to_them { all_of(Special { tier: ServiceTier::Priority, ..special }).max(usual) } else { usual };
    (usual, first)
}

/// How many tokens that are read what is predicted costs as much as, where it is paid as what is written.
pub(crate) fn predicted(model: &str, tokens: u64) -> u64 {
    let prices = Prices::bundled();
    let dearest = prices.price(model).map(|(price, _)| {
        let of_size = |size: u64| {
            let prompt = nanos(price, &Usage::new(size, 0));
            ratio(nanos(price, &Usage::new(size, size)).saturating_sub(prompt), prompt)
        };
        sizes(price).into_iter().map(of_size).max().unwrap_or(ONCE)
    });
    thousandths(tokens, dearest.unwrap_or(DEAREST_OUTPUT * ONCE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(model: &str, api: Api, body: &Value) -> (Times, Times) {
        let text = body.to_string();
        let tier = body.get("service_tier").and_then(Value::as_str);
        times(model, api, tier, false, &Members::read(text.as_bytes()).unwrap())
    }

    /// The models of the table, by their names.
    fn models() -> Vec<String> {
        let table: Value = serde_json::from_str(include_str!("../../runguard-core/data/prices.json")).unwrap();
        table["models"].as_object().unwrap().keys().cloned().collect()
    }

    /// However a question is served, and whatever is put into a cache: what is set aside is never less than what is booked.
    #[test]
    fn what_is_set_aside_is_no_less_than_what_any_service_is_booked_at() {
        let prices = Prices::bundled();
        let mut compared = 0;
        for model in models() {
            let Some((price, _)) = prices.price(&model) else { continue };
            let body = json!({"model": model, "messages": [], "service_tier": "priority"});
            let (said, _) = of(&model, Api::Chat, &body);
            let (plain, if_first) = of(&model, Api::Chat, &json!({"model": model, "messages": []}));
            let kept = json!({"model": model, "system": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}]});
            let (kept, _) = of(&model, Api::Messages, &kept);
            if price.input.nano_dollars().is_zero() {
                continue;
            }
            for size in [10, 1_000, 100_001, 128_001, 200_001, 272_001, 1_000_000] {
                for (read, written) in [(size, 0), (size, 500), (size, 100_000)] {
                    let first = Usage::new(read, written).in_tier(ServiceTier::Priority);
                    let put_away = Usage { cache_write_tokens: read, input_tokens: 0, ..first };
                    for (times, booked) in [
                        (said, first),
                        (said, put_away),
                        (if_first, first),
                        (if_first, put_away),
                        (plain, Usage { cache_write_tokens: read, ..Usage::new(0, written) }),
                        (kept, Usage { cache_write_1h_tokens: read, ..Usage::new(0, written) }),
                    ] {
                        let aside = Usage::new(times.of_read(read), times.of_written(written));
                        assert!(price.cost(&aside) >= price.cost(&booked), "{model}: {aside:?} for {booked:?}");
                        compared += 1;
                    }
                }
            }
        }
        assert!(compared > 100_000);
    }

    #[test]
    fn what_nobody_asks_for_is_not_set_aside() {
        let plain = json!({"messages": []});
        assert_eq!(of("gpt-4o", Api::Chat, &plain).0, Times::USUAL);
        assert_eq!(of("claude-sonnet-4-6", Api::Messages, &plain), (Times::USUAL, Times::USUAL));
        assert_eq!(of("gpt-5.6", Api::Chat, &plain).0, Times { read: 1_250, written: ONCE }, "a provider that writes caches by itself");
        assert_eq!(of("gpt-5.5", Api::Chat, &plain).1, Times { read: 2_500, written: 2_500 });
        let said = json!({"messages": [], "service_tier": "default"});
        assert_eq!(of("gpt-5.5", Api::Chat, &said), (Times::USUAL, Times::USUAL));
        let kept = json!({"messages": [{"cache_control": {}}]});
        assert_eq!(of("claude-sonnet-4-6", Api::Messages, &kept).0, Times { read: CACHED, written: ONCE }, "nothing of an answer is kept");
    }

    #[test]
    fn tokens_that_are_made_dearer_are_made_cheaper_again() {
        let times = Times { read: 1_250, written: 2_500 };
        assert_eq!((times.of_read(1_001), times.of_written(400), times.written_for(1_000)), (1_252, 1_000, 400));
        assert_eq!((times.of_read(u64::MAX), times.written_for(999)), (u64::MAX, 399));
    }
}
