//! What models cost.
//!
//! The table comes with the crate (`data/prices.json`, cut from litellm's; `data/README.md` says how), because a budget must
//! know prices without a network. It ages: overrides go before it, and a model it does not know is an error unless the user
//! chose otherwise, since a call that costs nothing by mistake is a budget that does not hold.
//!
//! Prices are whole nano-dollars for a million tokens, and a cost is one division at the end. No float is involved.

mod meter;
mod names;
mod usage;

use crate::money::{MoneyError, NanoDollars};
use crate::similarity::{Junk, ratio};
pub use meter::{
    BYTES_OF_A_NUMBER, FEWEST_BYTES_A_TOKEN, FRAME_TOKENS, LONGEST_ANSWER, Prompt, SHORTEST_ANSWER, USUAL_BYTES_A_TOKEN, longest_answer,
    usual_tokens,
};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;
pub use usage::{Usage, UsageError};

const TOKENS_PER_PRICE: u128 = 1_000_000;

/// What a million tokens of a model cost. In JSON: dollars, as decimal text or a number.
///
/// ```
/// use runguard_core::prices::{Price, Usage};
///
/// let price: Price = serde_json::from_str(r#"{ "input": "3", "output": 15, "cache_read": "0.3" }"#)?;
/// let usage = Usage { input_tokens: 1_000, output_tokens: 100, cached_tokens: 10_000, ..Usage::default() };
/// assert_eq!(price.cost(&usage).to_string(), "$0.0075");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Tokens that are read.
    pub input: PerMillion,
    /// Tokens that are written.
    pub output: PerMillion,
    /// Left out: as input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<PerMillion>,
    /// Left out: as input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<PerMillion>,
    /// For entries that are kept an hour. Left out: as `cache_write`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<PerMillion>,
    /// Prices of requests with a large prompt, smallest size first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<Tier>,
    /// The longest answer of the model in tokens, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u64>,
}

impl Price {
    /// Cached tokens cost as much as fresh ones until a field says otherwise.
    pub fn new(input: PerMillion, output: PerMillion) -> Self {
        Self { input, output, ..Self::default() }
    }

    /// The cost of one request, rounded to the nearest nano-dollar. One tier is chosen by the whole prompt, and all tokens
    /// are billed by it. What costs more than can be counted costs [`NanoDollars::MAX`].
    pub fn cost(&self, usage: &Usage) -> NanoDollars {
        let prompt = usage.prompt_tokens();
        let reached = || self.above.iter().filter(|tier| prompt > tier.tokens);
        // The largest tier that is reached and says something about this kind of token.
        let rate = |of_tier: fn(&Tier) -> Option<PerMillion>, base| {
            reached().filter(|tier| of_tier(tier).is_some()).max_by_key(|tier| tier.tokens).and_then(of_tier).or(base)
        };
        let input = rate(|tier| tier.input, Some(self.input)).unwrap_or_default();
        let output = rate(|tier| tier.output, Some(self.output)).unwrap_or_default();
        let cache_read = rate(|tier| tier.cache_read, self.cache_read).unwrap_or(input);
        let cache_write = rate(|tier| tier.cache_write, self.cache_write).unwrap_or(input);
        let cache_write_1h = rate(|tier| tier.cache_write_1h, self.cache_write_1h).unwrap_or(cache_write);
        let sum = [
            (usage.input_tokens, input),
            (usage.output_tokens, output),
            (usage.cached_tokens, cache_read),
            (usage.cache_write_tokens, cache_write),
            (usage.cache_write_1h_tokens, cache_write_1h),
        ]
        .into_iter()
        .fold(0_u128, |sum, (tokens, price)| sum.saturating_add(u128::from(tokens) * price.0.as_nanos() as u128));
        let nanos = sum.saturating_add(TOKENS_PER_PRICE / 2) / TOKENS_PER_PRICE;
        i64::try_from(nanos).ok().and_then(|nanos| NanoDollars::from_nanos(nanos).ok()).unwrap_or(NanoDollars::MAX)
    }
}

/// What replaces a [`Price`] when the whole prompt is larger than `tokens`. What is left out stays.
///
/// ```
/// use runguard_core::prices::{Price, Usage};
///
/// let price: Price = serde_json::from_str(r#"{ "input": "3", "output": "15", "above": [{ "tokens": 200000, "input": "6" }] }"#)?;
/// assert_eq!(price.cost(&Usage::new(200_000, 0)).to_string(), "$0.60");
/// assert_eq!(price.cost(&Usage::new(200_001, 0)).to_string(), "$1.200006");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Above this many tokens of input.
    pub tokens: u64,
    /// Tokens that are read; as before where none is given, as are the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<PerMillion>,
    /// Tokens that are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<PerMillion>,
    /// Tokens read from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<PerMillion>,
    /// Tokens put into a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<PerMillion>,
    /// Tokens put into a cache for an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<PerMillion>,
}

/// Dollars for a million tokens. A type of its own, so that the price of a token cannot be put in its place.
///
/// ```
/// use runguard_core::prices::PerMillion;
///
/// assert_eq!(PerMillion::parse("0.25"), PerMillion::from_dollars(0.25));
/// assert_eq!(PerMillion::parse("3")?.nano_dollars().to_string(), "$3.00");
/// # Ok::<(), runguard_core::money::MoneyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PerMillion(NanoDollars);

impl PerMillion {
    /// From an exact amount.
    pub const fn new(for_a_million_tokens: NanoDollars) -> Self {
        Self(for_a_million_tokens)
    }

    /// From dollars for a million tokens.
    pub fn from_dollars(for_a_million_tokens: f64) -> Result<Self, MoneyError> {
        NanoDollars::from_dollars(for_a_million_tokens).map(Self)
    }

    /// From dollars for a million tokens, as text.
    pub fn parse(for_a_million_tokens: &str) -> Result<Self, MoneyError> {
        NanoDollars::parse(for_a_million_tokens).map(Self)
    }

    /// Of a million tokens.
    pub const fn nano_dollars(self) -> NanoDollars {
        self.0
    }
}

impl Serialize for PerMillion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_string().trim_start_matches('$'))
    }
}

impl<'de> Deserialize<'de> for PerMillion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DollarsVisitor;
        impl Visitor<'_> for DollarsVisitor {
            type Value = PerMillion;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("dollars for a million tokens, as decimal text (\"0.25\") or a number")
            }

            fn visit_str<E: de::Error>(self, dollars: &str) -> Result<PerMillion, E> {
                PerMillion::parse(dollars).map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, dollars: f64) -> Result<PerMillion, E> {
                PerMillion::from_dollars(dollars).map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, dollars: u64) -> Result<PerMillion, E> {
                self.visit_str(&dollars.to_string())
            }

            fn visit_i64<E: de::Error>(self, dollars: i64) -> Result<PerMillion, E> {
                self.visit_str(&dollars.to_string())
            }
        }
        deserializer.deserialize_any(DollarsVisitor)
    }
}

/// What a model costs that has no price.
///
/// ```
/// use runguard_core::prices::{PriceSource, Prices, UnknownModel, Usage};
///
/// let prices = Prices::bundled();
/// assert!(prices.cost("my-own-model", &Usage::new(10, 10), &UnknownModel::Error).is_err());
/// let (cost, source) = prices.cost("my-own-model", &Usage::new(10, 10), &UnknownModel::Free)?;
/// assert!(cost.is_zero() && source == PriceSource::Free);
/// # Ok::<(), runguard_core::prices::UnknownModelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownModel {
    /// It is refused.
    #[default]
    Error,
    /// It costs this.
    DefaultPrice(Price),
    /// It costs nothing.
    Free,
}

impl UnknownModel {
    /// The longest answer of a model without a price, where the default price says one.
    ///
    /// ```
    /// use runguard_core::prices::{Price, UnknownModel};
    ///
    /// let default = Price { max_output: Some(4_096), ..Price::default() };
    /// assert_eq!(UnknownModel::DefaultPrice(default).longest_answer(), Some(4_096));
    /// assert_eq!(UnknownModel::Free.longest_answer(), None);
    /// ```
    pub const fn longest_answer(&self) -> Option<u64> {
        match self {
            Self::DefaultPrice(price) => price.max_output,
            Self::Error | Self::Free => None,
        }
    }
}

/// Where a price comes from; for the log.
///
/// ```
/// use runguard_core::prices::Prices;
///
/// let (_, source) = Prices::bundled().price("openai:gpt-4o").unwrap();
/// assert_eq!(source.to_string(), "the bundled price of gpt-4o");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceSource {
    /// The table's entry of this id.
    Bundled(String),
    /// The user's price of this name.
    Override(String),
    /// It was unknown, and the default was taken.
    DefaultPrice,
    /// It was unknown, and counted as free.
    Free,
}

impl fmt::Display for PriceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bundled(id) => write!(f, "the bundled price of {id}"),
            Self::Override(name) => write!(f, "the price set for {name}"),
            Self::DefaultPrice => f.write_str("the default price for unknown models"),
            Self::Free => f.write_str("no price is known, and unknown models are free"),
        }
    }
}

/// No price is known, and [`UnknownModel::Error`] was asked for.
///
/// ```
/// use runguard_core::prices::{Prices, UnknownModel, Usage};
///
/// let error = Prices::bundled().cost("gpt-4o-mni", &Usage::new(1, 1), &UnknownModel::Error).unwrap_err();
/// assert_eq!(error.suggestions[0], "gpt-4o-mini");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownModelError {
    /// As it was asked for.
    pub model: String,
    /// Near names that have a price, the nearest first; at most three.
    pub suggestions: Vec<String>,
}

impl fmt::Display for UnknownModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.model.chars().take(LONGEST_SHOWN).collect();
        write!(f, "no price is known for the model `{shown}`")?;
        if self.model.starts_with("arn:") {
            f.write_str(", because its ARN does not name the model behind it")?;
        }
        if !self.suggestions.is_empty() {
            write!(f, " (near names: {})", self.suggestions.join(", "))?;
        }
        f.write_str("; tell its cost in dollars, set a price for it, or choose \"free\" for unknown models")
    }
}

impl std::error::Error for UnknownModelError {}

/// Longest part of a model's name in a message, and longest name that near names are looked for.
const LONGEST_SHOWN: usize = 128;

/// From here on a name is near: a slip of the finger, not another model.
const NEAR: f64 = 0.75;

/// Where the bundled table comes from.
///
/// ```
/// use runguard_core::prices::Prices;
///
/// let origin = Prices::origin();
/// assert_eq!((origin.source.as_str(), origin.licence.as_str()), ("litellm", "MIT"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Where the prices come from.
    pub source: String,
    /// Which version of it.
    pub version: String,
    /// Of which day.
    pub date: String,
    /// Under which licence.
    pub licence: String,
}

/// The prices in force: the user's own, then the bundled table.
///
/// ```
/// use runguard_core::prices::{PerMillion, Price, PriceSource, Prices, UnknownModel, Usage};
///
/// let mut prices = Prices::bundled();
/// let usage = Usage::new(1_000_000, 0);
/// let (cost, _) = prices.cost("us.anthropic.claude-3-7-sonnet-20250219-v1:0", &usage, &UnknownModel::Error)?;
/// assert_eq!(cost.to_string(), "$3.00");
///
/// let ours = Price::new(PerMillion::parse("1.5").unwrap(), PerMillion::parse("7.5").unwrap());
/// prices.set("gpt-4o", ours);
/// let (cost, source) = prices.cost("openai/gpt-4o", &usage, &UnknownModel::Error)?;
/// assert_eq!((cost.to_string().as_str(), source), ("$1.50", PriceSource::Override("gpt-4o".into())));
/// # Ok::<(), runguard_core::prices::UnknownModelError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Prices {
    bundled: &'static Table,
    overrides: BTreeMap<String, (String, Price)>,
}

#[derive(Debug)]
struct Table {
    #[cfg(feature = "prices")]
    origin: Origin,
    /// By id in lower case: the id as the source writes it, and the price.
    models: BTreeMap<String, (String, Price)>,
    /// Ids without their version or date, and the newest id they stand for.
    short_names: BTreeMap<String, String>,
}

#[cfg(feature = "prices")]
static TABLE: LazyLock<Table> =
    LazyLock::new(|| Table::read(include_str!("../data/prices.json")).expect("the table is part of the crate, and a test reads it"));

static NO_TABLE: LazyLock<Table> = LazyLock::new(|| Table {
    #[cfg(feature = "prices")]
    origin: Origin { source: String::new(), version: String::new(), date: String::new(), licence: String::new() },
    models: BTreeMap::new(),
    short_names: BTreeMap::new(),
});

#[cfg(feature = "prices")]
impl Table {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct File {
            #[serde(flatten)]
            origin: Origin,
            models: BTreeMap<String, Price>,
        }
        let File { origin, models } = serde_json::from_str(text)?;
        let models: BTreeMap<_, _> = models.into_iter().map(|(id, price)| (id.to_lowercase(), (id, price))).collect();
        let mut short_names = BTreeMap::new();
        // In order, so that of two dates or versions the later one stays.
        for id in models.keys() {
            let unversioned = names::without_version(id).unwrap_or(id);
            for short in [Some(unversioned), names::without_date(unversioned)].into_iter().flatten().filter(|short| *short != id) {
                short_names.insert(short.to_owned(), id.clone());
            }
        }
        Ok(Self { origin, models, short_names })
    }
}

#[cfg(feature = "prices")]
impl Prices {
    /// The table that comes with the crate. It is read once, when it is first needed.
    pub fn bundled() -> Self {
        Self { bundled: &TABLE, overrides: BTreeMap::new() }
    }

    /// Where the bundled table comes from.
    pub fn origin() -> &'static Origin {
        &TABLE.origin
    }

    /// How many models the bundled table knows.
    pub fn bundled_len() -> usize {
        TABLE.models.len()
    }
}

impl Prices {
    /// No prices but those that are [set](Self::set).
    pub fn empty() -> Self {
        Self { bundled: &NO_TABLE, overrides: BTreeMap::new() }
    }

    /// Sets the price of a model, before anything the table says. It holds for every spelling that leads to this name.
    pub fn set(&mut self, model: &str, price: Price) {
        let model = model.trim();
        self.overrides.insert(model.to_lowercase(), (model.to_owned(), price));
    }

    /// Sets many at once from JSON, all or none: `{"my-model": {"input": "0.5", "output": "1.5"}}`, in dollars for a million
    /// tokens.
    pub fn set_from_json(&mut self, text: &str) -> Result<(), serde_json::Error> {
        let models: BTreeMap<String, Price> = serde_json::from_str(text)?;
        for (model, price) in models {
            self.set(&model, price);
        }
        Ok(())
    }

    /// The price of a model under any of its names, and where it comes from.
    pub fn price(&self, model: &str) -> Option<(&Price, PriceSource)> {
        self.find(model, |id| self.exactly(id))
    }

    /// The longest answer of a model in tokens, where it is known: what the user said, or else the table.
    ///
    /// ```
    /// use runguard_core::prices::Prices;
    ///
    /// let mut prices = Prices::bundled();
    /// assert_eq!(prices.longest_answer("openai/gpt-4o"), Some(16_384));
    /// prices.set_from_json(r#"{"gpt-4o": {"input": 2, "output": 8}, "mine": {"input": 1, "output": 1, "max_output": 4096}}"#)?;
    /// assert_eq!(prices.longest_answer("gpt-4o"), Some(16_384), "a price says nothing of the length");
    /// assert_eq!((prices.longest_answer("mine"), prices.longest_answer("another")), (Some(4_096), None));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn longest_answer(&self, model: &str) -> Option<u64> {
        let own = |id: &str| self.overrides.get(id).and_then(|(_, price)| price.max_output);
        let bundled = |id: &str| self.bundled.models.get(id).and_then(|(_, price)| price.max_output);
        self.find(model, |id| own(id).or_else(|| bundled(id)))
    }

    /// What is known of the closest spelling of a model's name of which anything is known.
    fn find<T>(&self, model: &str, known: impl Fn(&str) -> Option<T>) -> Option<T> {
        let spellings = names::spellings(model);
        spellings
            .iter()
            .find_map(|spelling| known(spelling))
            .or_else(|| spellings.iter().find_map(|spelling| self.bundled.short_names.get(spelling).and_then(|id| known(id))))
    }

    /// What the usage of one request costs, and by which price.
    pub fn cost(&self, model: &str, usage: &Usage, unknown: &UnknownModel) -> Result<(NanoDollars, PriceSource), UnknownModelError> {
        match (self.price(model), unknown) {
            (Some((price, source)), _) => Ok((price.cost(usage), source)),
            (None, UnknownModel::DefaultPrice(price)) => Ok((price.cost(usage), PriceSource::DefaultPrice)),
            (None, UnknownModel::Free) => Ok((NanoDollars::ZERO, PriceSource::Free)),
            (None, UnknownModel::Error) => Err(UnknownModelError { model: model.to_owned(), suggestions: self.near_names(model) }),
        }
    }

    fn exactly(&self, id: &str) -> Option<(&Price, PriceSource)> {
        if let Some((name, price)) = self.overrides.get(id) {
            return Some((price, PriceSource::Override(name.clone())));
        }
        self.bundled.models.get(id).map(|(id, price)| (price, PriceSource::Bundled(id.clone())))
    }

    fn near_names(&self, model: &str) -> Vec<String> {
        let model = model.trim().to_lowercase();
        if model.len() > LONGEST_SHOWN {
            return Vec::new();
        }
        let known = self.overrides.iter().chain(&self.bundled.models);
        let mut near: Vec<(f64, &String)> = known
            .filter(|(id, _)| could_be_near(&model, id))
            .map(|(id, (name, _))| (ratio(&model, id, Junk::Keep), name))
            .filter(|(nearness, _)| *nearness >= NEAR)
            .collect();
        near.sort_by(|(one, name), (other, other_name)| other.total_cmp(one).then_with(|| name.cmp(other_name)));
        near.dedup_by_key(|(_, name)| *name);
        near.into_iter().take(3).map(|(_, name)| name.clone()).collect()
    }
}

/// Whether the two share letters enough to be near, in whatever order: cheap, and rules out nearly all of the table.
fn could_be_near(left: &str, right: &str) -> bool {
    let mut letters = [0_i32; 256];
    left.bytes().for_each(|byte| letters[usize::from(byte)] += 1);
    let shared = right.bytes().filter(|byte| {
        letters[usize::from(*byte)] -= 1;
        letters[usize::from(*byte)] >= 0
    });
    2.0 * shared.count() as f64 >= NEAR * (left.len() + right.len()) as f64
}

#[cfg(test)]
#[cfg(feature = "prices")]
mod tests {
    use super::*;

    fn source_of(model: &str) -> Option<String> {
        Prices::bundled().price(model).map(|(_, source)| match source {
            PriceSource::Bundled(id) => id,
            PriceSource::Override(_) | PriceSource::DefaultPrice | PriceSource::Free => panic!("{model} is not priced by the table"),
        })
    }

    fn per_million(dollars: &str) -> PerMillion {
        PerMillion::parse(dollars).unwrap()
    }

    /// Worked out with `litellm.cost_per_token` 1.106.2, in nano-dollars.
    #[test]
    fn costs_agree_with_the_source_of_the_table() {
        let with_cache_writes = Usage {
            input_tokens: 12_345,
            output_tokens: 678,
            cached_tokens: 90_000,
            cache_write_tokens: 1_234,
            cache_write_1h_tokens: 567,
        };
        let large = Usage { input_tokens: 150_001, output_tokens: 777, cached_tokens: 120_000, ..Usage::default() };
        for (model, small_nanos, large_nanos) in [
            ("anthropic.claude-3-7-sonnet-20250219-v1:0", 80_958_750, 497_658_000),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 90_457_950, 1_088_437_350),
            ("anthropic.claude-3-5-haiku-20241022-v1:0", 21_589_000, 132_708_800),
            ("meta.llama3-1-70b-instruct-v1:0", 75_473_280, 194_960_160),
            ("amazon.nova-pro-v1:0", 31_486_400, 146_487_200),
            ("eu.amazon.nova-lite-v1:0", 3_069_924, 14_282_502),
            ("gpt-4o", 154_645_000, 532_772_500),
            ("gpt-5.4", 68_035_000, 416_657_500),
            ("claude-sonnet-4-5", 82_234_500, 497_658_000),
            ("claude-opus-4-5", 137_057_500, 829_430_000),
            ("gemini/gemini-2.5-pro", 35_712_500, 416_657_500),
            ("xai/grok-4.3", 37_377_500, 426_887_500),
            ("dashscope/qwen-flash", 5_478_500, 69_054_250),
            ("command-r-plus-08-2024", 267_145_000, 682_772_500),
        ] {
            let cost = |usage| Prices::bundled().cost(model, usage, &UnknownModel::Error).unwrap().0.as_nanos();
            assert_eq!((cost(&with_cache_writes), cost(&large)), (small_nanos, large_nanos), "{model}");
        }
    }

    #[test]
    fn a_model_is_found_under_all_of_its_names() {
        for (name, id) in [
            ("gpt-4o", "gpt-4o"),
            (" GPT-4o ", "gpt-4o"),
            ("openai/gpt-4o", "gpt-4o"),
            ("openai:gpt-4o", "gpt-4o"),
            ("openrouter/openai/gpt-4o", "gpt-4o"),
            ("azure/gpt-4o", "azure/gpt-4o"),
            ("gpt-4o-2024-08-06", "gpt-4o-2024-08-06"),
            ("gpt-4o-2031-01-31", "gpt-4o"),
            ("ft:gpt-4o-mini-2024-07-18:acme::b1c2", "ft:gpt-4o-mini-2024-07-18"),
            ("gpt-4o-audio-preview", "gpt-4o-audio-preview-2025-06-03"),
            ("anthropic:claude-sonnet-4-5", "claude-sonnet-4-5"),
            ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
            ("claude-sonnet-4-5-20311231", "claude-sonnet-4-5"),
            ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5-20250929"),
            ("claude-3-7-sonnet-20250219", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("claude-3-7-sonnet-latest", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("anthropic.claude-3-7-sonnet-20250219-v1:0", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("anthropic.claude-3-7-sonnet-20250219-v1:0:200k", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("us.anthropic.claude-3-7-sonnet-20250219-v1:0", "us.anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("apac.anthropic.claude-3-7-sonnet-20250219-v1:0", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("bedrock/us.anthropic.claude-3-7-sonnet-20250219-v1:0", "us.anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("bedrock:us.anthropic.claude-3-7-sonnet-20250219-v1:0", "us.anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("bedrock/converse/anthropic.claude-3-7-sonnet-20250219-v1:0", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("bedrock/eu-west-3/anthropic.claude-3-7-sonnet-20250219-v1:0", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
            ("meta.llama3-1-70b-instruct", "meta.llama3-1-70b-instruct-v1:0"),
            (
                "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-3-7-sonnet-20250219-v1:0",
                "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
            ),
            ("arn:aws:bedrock:eu-west-1::foundation-model/amazon.nova-pro-v1:0", "amazon.nova-pro-v1:0"),
            (
                "arn:aws:bedrock:sa-east-1::foundation-model/meta.llama3-70b-instruct-v1:0",
                "bedrock/sa-east-1/meta.llama3-70b-instruct-v1:0",
            ),
            ("google-gla:gemini-2.5-pro", "gemini/gemini-2.5-pro"),
            ("models/gemini-2.5-pro", "gemini/gemini-2.5-pro"),
            ("mistral-large-latest", "mistral/mistral-large-latest"),
            ("grok-4.3", "xai/grok-4.3"),
        ] {
            assert_eq!(source_of(name).as_deref(), Some(id), "{name}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        for name in [
            "",
            "   ",
            "gpt",
            "my-model",
            "openai/",
            "ollama/llama3.1",
            "groq/gpt-4o",
            "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2c3",
            "arn:",
        ] {
            assert_eq!(source_of(name), None, "{name}");
        }
    }

    #[test]
    fn what_an_unknown_model_costs_is_the_users_choice() {
        let prices = Prices::bundled();
        let usage = Usage::new(1_000, 1_000);
        let error = prices.cost("gpt-4o-mnii", &usage, &UnknownModel::Error).unwrap_err();
        assert_eq!(error.suggestions[0], "gpt-4o-mini");
        assert!(error.to_string().starts_with("no price is known for the model `gpt-4o-mnii` (near names: gpt-4o-mini"), "{error}");
        let arn = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2c3";
        assert!(prices.cost(arn, &usage, &UnknownModel::Error).unwrap_err().to_string().contains("does not name the model"));
        assert!(prices.cost(&"x".repeat(10_000_000), &usage, &UnknownModel::Error).unwrap_err().to_string().len() < 400);
        let default = UnknownModel::DefaultPrice(Price::new(per_million("10"), per_million("30")));
        let (cost, source) = prices.cost("my-model", &usage, &default).unwrap();
        assert_eq!((cost.to_string().as_str(), source), ("$0.04", PriceSource::DefaultPrice));
        assert_eq!(prices.cost("my-model", &usage, &UnknownModel::Free).unwrap(), (NanoDollars::ZERO, PriceSource::Free));
        assert_ne!(prices.cost("gpt-4o", &usage, &UnknownModel::Free).unwrap().0, NanoDollars::ZERO, "known models are never free");
    }

    #[test]
    fn the_users_prices_go_first_and_are_taken_over_all_or_none() {
        let mut prices = Prices::bundled();
        prices.set_from_json(r#"{"Gpt-4o": {"input": 1, "output": "2.5"}, "house-model": {"input": 0, "output": 0}}"#).unwrap();
        let (price, source) = prices.price("azure_openai:GPT-4O-2031-01-01").unwrap();
        assert_eq!(source, PriceSource::Bundled("azure/gpt-4o".into()), "the closer spelling wins");
        assert_ne!(price.input, per_million("1"));
        let (price, source) = prices.price("openai/gpt-4o").unwrap();
        assert_eq!((price.input, source), (per_million("1"), PriceSource::Override("Gpt-4o".into())));
        let nothing = prices.cost("house-model", &Usage::new(5, 5), &UnknownModel::Error).unwrap();
        assert_eq!(nothing, (NanoDollars::ZERO, PriceSource::Override("house-model".into())), "a price of zero that was set is a price");
        let mut fresh = Prices::empty();
        for bad in [
            r#"{"a": {"input": 1, "output": 1}, "b": {"input": -1, "output": 1}}"#,
            r#"{"a": {"input": 1}}"#,
            r#"{"a": {"input": 1, "output": 1, "ouput": 2}}"#,
            "[]",
        ] {
            assert!(fresh.set_from_json(bad).is_err(), "{bad}");
            assert!(fresh.price("a").is_none(), "{bad}");
        }
    }

    #[test]
    fn a_cost_is_rounded_once_and_never_wraps_around() {
        let price = Price::new(per_million("0.0375"), per_million("0.0005"));
        assert_eq!(price.cost(&Usage::new(1, 0)).as_nanos(), 38, "37.5 nano-dollars");
        assert_eq!(price.cost(&Usage::new(1, 1)).as_nanos(), 38, "38 exactly, not 38 and 1");
        assert_eq!(price.cost(&Usage::new(u64::MAX, u64::MAX)), NanoDollars::MAX);
        let dearest = Price::new(PerMillion::new(NanoDollars::MAX), PerMillion::new(NanoDollars::MAX));
        let most = Usage { input_tokens: u64::MAX, output_tokens: u64::MAX, cached_tokens: u64::MAX, ..Usage::default() };
        assert_eq!(dearest.cost(&most), NanoDollars::MAX);
    }

    #[test]
    fn of_many_tiers_the_largest_that_is_reached_counts() {
        let mut prices = Prices::empty();
        let text = r#"{"m": {"input": "1", "output": "1", "cache_read": "0.5", "above": [
            {"tokens": 100, "input": "2"}, {"tokens": 200, "input": "3", "output": "4", "cache_read": "0.25"}]}}"#;
        prices.set_from_json(text).unwrap();
        let cost = |input_tokens, cached_tokens| {
            let usage = Usage { input_tokens, output_tokens: 1, cached_tokens, ..Usage::default() };
            prices.cost("m", &usage, &UnknownModel::Error).unwrap().0.as_nanos()
        };
        assert_eq!(cost(100, 0), 100 * 1_000 + 1_000);
        assert_eq!(cost(51, 50), 51 * 2_000 + 50 * 500 + 1_000, "cached tokens are part of the prompt");
        assert_eq!(cost(1, 200), 3_000 + 200 * 250 + 4_000);
    }

    #[test]
    fn the_table_is_whole_and_small() {
        assert!(include_str!("../data/prices.json").len() <= 250_000);
        assert!(Prices::bundled_len() > 1_000);
        assert_eq!(Prices::origin().date.len(), "2026-10-21".len());
        for (id, (_, price)) in &TABLE.models {
            assert!(price.input > PerMillion::default() && price.output > PerMillion::default(), "{id} is free");
            assert!(price.output < per_million("1000") && price.input < per_million("1000"), "{id} costs more than any model");
            assert!(price.above.is_sorted_by_key(|tier| tier.tokens), "{id}");
            assert_eq!(source_of(id).map(|found| found.to_lowercase()).as_ref(), Some(id));
        }
    }

    #[test]
    fn a_stored_price_comes_back() {
        for (_, price) in TABLE.models.values() {
            assert_eq!(&serde_json::from_str::<Price>(&serde_json::to_string(price).unwrap()).unwrap(), price);
        }
    }
}
