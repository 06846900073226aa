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
    FEWEST_BYTES_A_TOKEN, FRAME_TOKENS, LONGEST_ANSWER, Prompt, SHORTEST_ANSWER, USUAL_BYTES_A_TOKEN, answer_size, longest_answer,
    may_be_billed, most_words, tokens_of_an_image, unmetered, usual_tokens,
};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, OnceLock};
pub use usage::{ServiceTier, Usage, UsageError, raise_counts};

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
    /// Tokens of sound that is heard. Left out: as input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_input: Option<PerMillion>,
    /// Tokens of sound that is spoken. Left out: as output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_output: Option<PerMillion>,
    /// Prices of requests with a large prompt, smallest size first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<Tier>,
    /// Prices of requests that are answered first, by the size of the prompt (0: any). What is left out costs what it always does, as
    /// in the other services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priority: Vec<Tier>,
    /// Prices of requests that may wait for a free machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flex: Vec<Tier>,
    /// Prices of requests in a batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch: Vec<Tier>,
    /// The longest answer of the model in tokens, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u64>,
    /// The longest prompt of the model in tokens, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_input: Option<u64>,
}

impl Price {
    /// Cached tokens cost as much as fresh ones until a field says otherwise.
    pub fn new(input: PerMillion, output: PerMillion) -> Self {
        Self { input, output, ..Self::default() }
    }

    /// The cost of one request, rounded to the nearest nano-dollar. One tier is chosen by the whole prompt, and all tokens
    /// are billed by it. What costs more than can be counted costs [`NanoDollars::MAX`].
    pub fn cost(&self, usage: &Usage) -> NanoDollars {
        let (prompt, service) = (usage.prompt_tokens(), self.service(usage.service_tier));
        let rate = |of_tier: fn(&Tier) -> Option<PerMillion>, base: Option<PerMillion>| {
            if service.is_empty() && self.above.is_empty() {
                return base;
            }
            // The largest tier that is reached and says something about this kind of token.
            let largest = |tiers: &[Tier]| {
                let reached = tiers.iter().filter(|tier| tier.tokens == 0 || prompt > tier.tokens);
                reached.filter_map(|tier| of_tier(tier).map(|price| (tier.tokens, price))).max_by_key(|(tokens, _)| *tokens)
            };
            match (largest(service), largest(&self.above)) {
                // A service that says nothing of prompts of this size is not cheaper than the usual one.
                (Some((size, special)), Some((larger, usual))) if larger > size => Some(special.max(usual)),
                (Some((_, price)), _) | (None, Some((_, price))) => Some(price),
                (None, None) => base,
            }
        };
        let input = rate(|tier| tier.input, Some(self.input)).unwrap_or_default();
        let output = rate(|tier| tier.output, Some(self.output)).unwrap_or_default();
        let cache_read = rate(|tier| tier.cache_read, self.cache_read).unwrap_or(input);
        let cache_write = rate(|tier| tier.cache_write, self.cache_write).unwrap_or(input);
        let cache_write_1h = rate(|tier| tier.cache_write_1h, self.cache_write_1h).unwrap_or(cache_write);
        let audio_input = rate(|tier| tier.audio_input, self.audio_input).unwrap_or(input);
        let audio_output = rate(|tier| tier.audio_output, self.audio_output).unwrap_or(output);
        let sum = [
            (usage.input_tokens, input),
            (usage.output_tokens, output),
            (usage.cached_tokens, cache_read),
            (usage.cache_write_tokens, cache_write),
            (usage.cache_write_1h_tokens, cache_write_1h),
            (usage.audio_input_tokens, audio_input),
            (usage.audio_output_tokens, audio_output),
        ]
        .into_iter()
        .fold(0_u128, |sum, (tokens, price)| sum.saturating_add(u128::from(tokens) * price.0.as_nanos() as u128));
        let nanos = sum.saturating_add(TOKENS_PER_PRICE / 2) / TOKENS_PER_PRICE;
        i64::try_from(nanos).ok().and_then(|nanos| NanoDollars::from_nanos(nanos).ok()).unwrap_or(NanoDollars::MAX)
    }

    fn service(&self, tier: ServiceTier) -> &[Tier] {
        match tier {
            ServiceTier::Standard => &[],
            ServiceTier::Priority => &self.priority,
            ServiceTier::Flex => &self.flex,
            ServiceTier::Batch => &self.batch,
        }
    }
}

/// What replaces a [`Price`] when the whole prompt is larger than `tokens` (0: whatever its size). What is left out stays.
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
    /// Tokens of sound that is heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_input: Option<PerMillion>,
    /// Tokens of sound that is spoken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_output: Option<PerMillion>,
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
    /// It runs on a machine of the user's own, and costs nothing.
    Local,
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
            Self::Local => f.write_str("it runs on a machine of one's own, which costs nothing for a token"),
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct UnknownModelError {
    /// As it was asked for.
    pub model: String,
    /// Near names that have a price, the nearest first; at most three.
    pub suggestions: Vec<String>,
}

impl UnknownModelError {
    /// Which model it is, without what may be done: that is another thing for each who asks.
    pub fn which(&self) -> String {
        let mut told = format!("no price is known for the model `{}`", self.model.chars().take(LONGEST_SHOWN).collect::<String>());
        if self.model.starts_with("arn:") {
            told.push_str(", because its ARN does not name the model behind it");
        }
        if !self.suggestions.is_empty() {
            told.push_str(&format!(" (near names: {})", self.suggestions.join(", ")));
        }
        told
    }
}

impl fmt::Display for UnknownModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; tell its cost in dollars, set a price for it, or choose \"free\" for unknown models", self.which())
    }
}

/// In the table a longer answer is the whole context of the model, which it would refuse to be asked for.
const LONGEST_KNOWN: u64 = 200_000;

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
    /// In the order of their ids in lower case. No copy of an id is made: whoever asks for one price does not wait for thousands of them.
    models: Vec<Model>,
    /// The place of the model that was found last: a call is priced several times.
    latest: AtomicUsize,
    /// Ids without their version or date, and the newest model they stand for. Only names that are in no table as they stand need them.
    short_names: OnceLock<BTreeMap<String, usize>>,
}

/// A line of the table. Few of them are ever asked for, so each is read when it is.
#[derive(Debug)]
struct Model {
    /// As the source writes it.
    id: &'static str,
    json: &'static str,
    price: OnceLock<Box<Price>>,
}

impl Model {
    /// Where its id in lower case stands beside another one.
    fn order(&self, id: &str) -> Ordering {
        if self.id == id {
            return Ordering::Equal;
        }
        for (own, other) in self.id.bytes().zip(id.bytes()) {
            let own = own.to_ascii_lowercase();
            if own != other {
                return own.cmp(&other);
            }
        }
        self.id.len().cmp(&id.len())
    }

    fn price(&self) -> &Price {
        self.price.get_or_init(|| serde_json::from_str(self.json).expect("the table is part of the crate, and a test reads all of it"))
    }
}

#[cfg(feature = "prices")]
static TABLE: LazyLock<Table> = LazyLock::new(|| {
    Table::unpacked(include_bytes!("../data/prices.json.z")).expect("the table is part of the crate, and a test reads it")
});

static NO_TABLE: LazyLock<Table> = LazyLock::new(|| Table {
    #[cfg(feature = "prices")]
    origin: Origin { source: String::new(), version: String::new(), date: String::new(), licence: String::new() },
    models: Vec::new(),
    latest: AtomicUsize::new(0),
    short_names: OnceLock::new(),
});

impl Table {
    /// The model of an id in lower case.
    fn model(&self, id: &str) -> Option<&Model> {
        let is_it = |model: &&Model| model.order(id).is_eq();
        if let Some(latest) = self.models.get(self.latest.load(Relaxed)).filter(is_it) {
            return Some(latest);
        }
        let place = self.models.binary_search_by(|model| model.order(id)).ok()?;
        self.latest.store(place, Relaxed);
        self.models.get(place)
    }

    /// The newest model that an id without version or date stands for.
    fn newest(&self, short: &str) -> Option<String> {
        let short_names = self.short_names.get_or_init(|| {
            let mut short_names = BTreeMap::new();
            // In order, so that of two dates or versions the later one stays.
            for (place, model) in self.models.iter().enumerate() {
                let id = model.id.to_ascii_lowercase();
                let unversioned = names::without_version(&id).unwrap_or(&id);
                for short in [Some(unversioned), names::without_date(unversioned)].into_iter().flatten().filter(|short| *short != id) {
                    short_names.insert(short.to_owned(), place);
                }
            }
            short_names
        });
        short_names.get(short).and_then(|place| self.models.get(*place)).map(|model| model.id.to_ascii_lowercase())
    }
}

#[cfg(feature = "prices")]
impl Table {
    /// A tenth of the size. It stays for as long as the process does, as what is read from it.
    fn unpacked(packed: &[u8]) -> Option<Self> {
        // Known beforehand, so that it is made in one piece.
        const LENGTH: usize = include_bytes!("../data/prices.json").len();
        let mut text = vec![0; LENGTH];
        miniz_oxide::inflate::decompress_slice_iter_to_slice(&mut text, std::iter::once(packed), true, false).ok()?;
        Self::read(String::from_utf8(text).ok()?.leak())
    }

    /// The first line says where it comes from, and each of the others is a model.
    fn read(text: &'static str) -> Option<Self> {
        let (head, lines) = text.split_once(", \"models\": {\n")?;
        let origin = serde_json::from_str(&format!("{head}}}")).ok()?;
        let model = |line: &'static str| {
            let (id, json) = line.strip_prefix('"')?.split_once("\": ")?;
            Some(Model { id, json: json.strip_suffix(',').unwrap_or(json), price: OnceLock::new() })
        };
        // The file has the order that is searched in: whoever asks for one price does not wait for a sort.
        let models = lines.lines().filter_map(model).collect();
        Some(Self { origin, models, latest: AtomicUsize::new(0), short_names: OnceLock::new() })
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
    ///
    /// A model that its name says to run on a machine of one's own (`ollama/…`, `ollama_chat/…`, `lm_studio/…`, `llamafile/…`, or with `:`)
    /// costs nothing, unless a price is set for it; those of Ollama's cloud (`…-cloud`) do not run there.
    ///
    /// ```
    /// use runguard_core::prices::{PriceSource, Prices};
    ///
    /// let prices = Prices::bundled();
    /// let source = |model| prices.price(model).map(|(_, source)| source);
    /// assert_eq!(source("ollama/llama3.1:8b"), Some(PriceSource::Local));
    /// assert_eq!((source("ollama/gpt-oss:120b-cloud"), source("hosted_vllm/llama3.1")), (None, None));
    /// ```
    pub fn price(&self, model: &str) -> Option<(&Price, PriceSource)> {
        static NOTHING: LazyLock<Price> = LazyLock::new(Price::default);
        self.find(model, |id| self.exactly(id)).or_else(|| names::runs_locally(model).then(|| (&*NOTHING, PriceSource::Local)))
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
        let bundled = |id: &str| self.bundled.model(id).and_then(|model| model.price().max_output).filter(|most| *most <= LONGEST_KNOWN);
        self.find(model, |id| own(id).or_else(|| bundled(id)))
    }

    /// Whether the price of a model says that it reads prompts that are longer than usual.
    pub fn reads_long_prompts(&self, model: &str) -> bool {
        /// Above so many tokens some models have a price of their own, whatever the table says of how much they read.
        const LONG: u64 = 200_000;
        self.price(model).is_some_and(|(price, _)| price.above.iter().any(|tier| tier.tokens >= LONG))
    }

    /// The longest prompt of a model in tokens, where it is known: what the user said, or else the table.
    ///
    /// ```
    /// use runguard_core::prices::Prices;
    ///
    /// let mut prices = Prices::bundled();
    /// assert_eq!((prices.longest_prompt("gpt-4o"), prices.longest_prompt("claude-sonnet-4-6")), (Some(128_000), Some(1_000_000)));
    /// prices.set_from_json(r#"{"mine": {"input": 1, "output": 1, "max_input": 8192}}"#)?;
    /// assert_eq!((prices.longest_prompt("mine"), prices.longest_prompt("another")), (Some(8_192), None));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn longest_prompt(&self, model: &str) -> Option<u64> {
        let own = |id: &str| self.overrides.get(id).and_then(|(_, price)| price.max_input);
        let bundled = |id: &str| self.bundled.model(id).and_then(|model| model.price().max_input);
        self.find(model, |id| own(id).or_else(|| bundled(id)))
    }

    /// What is known of the closest spelling of a model's name of which anything is known.
    fn find<T>(&self, model: &str, known: impl Fn(&str) -> Option<T>) -> Option<T> {
        // Most are spelled as the table spells them, and are asked for several times with every call.
        if let Some(found) = known(&names::plain(model)) {
            return Some(found);
        }
        let spellings = names::spellings(model);
        spellings
            .iter()
            .skip(1)
            .find_map(|spelling| known(spelling))
            .or_else(|| spellings.iter().find_map(|spelling| self.bundled.newest(spelling).and_then(|id| known(&id))))
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
        self.bundled.model(id).map(|model| (model.price(), PriceSource::Bundled(model.id.to_owned())))
    }

    fn near_names(&self, model: &str) -> Vec<String> {
        let model = model.trim().to_lowercase();
        if model.len() > LONGEST_SHOWN {
            return Vec::new();
        }
        let own = self.overrides.values().map(|(name, _)| name.as_str());
        let mut near: Vec<(f64, &str)> = own
            .chain(self.bundled.models.iter().map(|model| model.id))
            .map(|name| (name.to_lowercase(), name))
            .filter(|(id, _)| could_be_near(&model, id))
            .map(|(id, name)| (ratio(&model, &id, Junk::Keep), name))
            .filter(|(nearness, _)| *nearness >= NEAR)
            .collect();
        near.sort_by(|(one, name), (other, other_name)| other.total_cmp(one).then_with(|| name.cmp(other_name)));
        near.dedup_by_key(|(_, name)| *name);
        near.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
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
mod tests;
