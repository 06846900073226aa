//! How many tokens a request used, read from what each provider reports.
//!
//! The providers count in different ways: for `OpenAI` and Gemini the cached tokens are part of the prompt, for Anthropic and
//! Bedrock they come on top. Here every token is counted once, in one field.

use super::UnknownModelError;
use crate::ledger::Cost;
use crate::money::NanoDollars;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The tokens of one request, each counted in exactly one field. Sums over requests would reach size tiers that no request did.
///
/// ```
/// use runguard_core::prices::Usage;
/// use serde_json::json;
///
/// let openai = Usage::from_openai(&json!({
///     "prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": { "cached_tokens": 800 }
/// }))?;
/// let anthropic = Usage::from_anthropic(&json!({
///     "input_tokens": 200, "output_tokens": 50, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 0
/// }))?;
/// assert_eq!(openai, anthropic);
/// assert_eq!((openai.input_tokens, openai.cached_tokens, openai.total_tokens()), (200, 800, 1050));
/// # Ok::<(), runguard_core::prices::UsageError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    /// Read by the model afresh: **without** the cached and cache-writing ones.
    pub input_tokens: u64,
    /// Written by the model, its reasoning included.
    pub output_tokens: u64,
    /// Of the prompt, read from a cache.
    pub cached_tokens: u64,
    /// Of the prompt, written to a cache for the usual time.
    pub cache_write_tokens: u64,
    /// Of the prompt, written to a cache for an hour, which some providers charge more for.
    pub cache_write_1h_tokens: u64,
    /// Of the prompt, sound that is heard afresh: not among [`Self::input_tokens`].
    #[serde(skip_serializing_if = "is_zero")]
    pub audio_input_tokens: u64,
    /// Of the answer, sound that is spoken: not among [`Self::output_tokens`].
    #[serde(skip_serializing_if = "is_zero")]
    pub audio_output_tokens: u64,
    /// How the request was served, which some providers have prices for.
    #[serde(skip_serializing_if = "ServiceTier::is_standard")]
    pub service_tier: ServiceTier,
}

// What serde asks with.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so; on small machines it is not trivial")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How a provider serves a request: at once, later, or before others.
///
/// ```
/// use runguard_core::prices::{Prices, ServiceTier, UnknownModel, Usage};
///
/// let cost = |tier| Prices::bundled().cost("gpt-5.4", &Usage::new(1_000_000, 0).in_tier(tier), &UnknownModel::Error);
/// assert!(cost(ServiceTier::Flex)?.0 < cost(ServiceTier::Standard)?.0);
/// assert_eq!(ServiceTier::named("priority"), ServiceTier::Priority);
/// assert_eq!(ServiceTier::named("scale"), ServiceTier::Standard, "it has no price of its own");
/// # Ok::<(), runguard_core::prices::UnknownModelError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceTier {
    /// As requests usually are.
    #[default]
    Standard,
    /// Before others, for more.
    Priority,
    /// When there is a machine free, for less.
    Flex,
    /// With many others within a day, for less.
    Batch,
}

impl ServiceTier {
    /// As providers write it in their answers. What has no prices of its own is the standard.
    pub fn named(name: &str) -> Self {
        match name {
            "priority" => Self::Priority,
            "flex" => Self::Flex,
            "batch" => Self::Batch,
            _ => Self::Standard,
        }
    }

    /// Whether a question may ask for it by this name, and what it costs then is known: by a price of its own, or as usual.
    ///
    /// ```
    /// use runguard_core::prices::ServiceTier;
    ///
    /// assert!(["default", "flex", "standard_only"].into_iter().all(ServiceTier::is_known));
    /// assert!(!["Priority", "ultra", ""].into_iter().any(ServiceTier::is_known));
    /// ```
    pub fn is_known(name: &str) -> bool {
        /// As `OpenAI`, Anthropic and Groq call what has no price of its own.
        const AS_USUAL: [&str; 5] = ["default", "standard", "standard_only", "scale", "on_demand"];
        AS_USUAL.contains(&name) || Self::named(name) != Self::Standard
    }

    /// Its name, which [`Self::named`] reads.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Priority => "priority",
            Self::Flex => "flex",
            Self::Batch => "batch",
        }
    }

    /// Whether it is as usual.
    #[expect(clippy::trivially_copy_pass_by_ref)]
    const fn is_standard(&self) -> bool {
        matches!(self, Self::Standard)
    }
}

impl Usage {
    /// Tokens read afresh, and tokens written.
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Self {
            input_tokens,
            output_tokens,
            cached_tokens: 0,
            cache_write_tokens: 0,
            cache_write_1h_tokens: 0,
            audio_input_tokens: 0,
            audio_output_tokens: 0,
            service_tier: ServiceTier::Standard,
        }
    }

    /// The same, served so.
    #[must_use]
    pub const fn in_tier(self, tier: ServiceTier) -> Self {
        Self { service_tier: tier, ..self }
    }

    /// The whole prompt: what the size tiers of a price are about.
    pub const fn prompt_tokens(&self) -> u64 {
        self.input_tokens
            .saturating_add(self.cached_tokens)
            .saturating_add(self.cache_write_tokens)
            .saturating_add(self.cache_write_1h_tokens)
            .saturating_add(self.audio_input_tokens)
    }

    /// All of them, cached ones included.
    pub const fn total_tokens(&self) -> u64 {
        self.prompt_tokens().saturating_add(self.output_tokens).saturating_add(self.audio_output_tokens)
    }

    /// What it costs by a price, and what was wrong with that: tokens are used, whatever they cost. Nothing costs nothing, whatever the
    /// model, so it is not priced.
    ///
    /// ```
    /// use runguard_core::budget::Cost;
    /// use runguard_core::prices::{UnknownModelError, Usage};
    ///
    /// let unknown = || Err(UnknownModelError { model: "x".into(), suggestions: Vec::new() });
    /// assert_eq!(Usage::new(0, 0).cost(unknown), (Cost::ZERO, None));
    /// assert_eq!(Usage::new(7, 1).cost(unknown), (Cost::tokens(8), unknown().err()));
    /// ```
    pub fn cost(&self, price: impl FnOnce() -> Result<NanoDollars, UnknownModelError>) -> (Cost, Option<UnknownModelError>) {
        match self.total_tokens() {
            0 => (Cost::ZERO, None),
            tokens => match price() {
                Ok(usd) => (Cost { usd, tokens }, None),
                Err(unknown) => (Cost::tokens(tokens), Some(unknown)),
            },
        }
    }

    /// From the `usage` of `OpenAI`'s chat completions or responses, and of the many services that answer like them.
    ///
    /// Cached, cache-writing and audio tokens are part of the reported prompt, and reasoning and audio are part of the completion. All cache
    /// writes count as [`Self::cache_write_tokens`], however long they are kept. Some services count reasoning beside the completion, and in the
    /// total alone: what the total has beyond both is output. The `service_tier` stands beside the usage in an answer: it
    /// is told with [`Self::in_tier`].
    pub fn from_openai(usage: &Value) -> Result<Self, UsageError> {
        let report = Report::read(usage, &["prompt_tokens", "input_tokens", "completion_tokens", "output_tokens"])?;
        let prompt = report.first_of(&["prompt_tokens", "input_tokens"])?;
        let details = report.part("prompt_tokens_details").or(report.part("input_tokens_details")).unwrap_or_default();
        let (cached_tokens, cache_write_tokens) = (details.count("cached_tokens")?, details.count("cache_write_tokens")?);
        let cached_audio = details.part("cached_tokens_details").unwrap_or_default().count("audio_tokens")?;
        let fresh = prompt.saturating_sub(cached_tokens).saturating_sub(cache_write_tokens);
        let audio_input_tokens = details.count("audio_tokens")?.saturating_sub(cached_audio).min(fresh);
        let beyond_prompt = report.count("total_tokens").map_or(0, |total| total.saturating_sub(prompt));
        let completion = report.first_of(&["completion_tokens", "output_tokens"])?.max(beyond_prompt);
        let written = report.part("completion_tokens_details").or(report.part("output_tokens_details")).unwrap_or_default();
        let audio_output_tokens = written.count("audio_tokens")?.min(completion);
        Ok(Self {
            input_tokens: fresh - audio_input_tokens,
            output_tokens: completion - audio_output_tokens,
            cached_tokens,
            cache_write_tokens,
            audio_input_tokens,
            audio_output_tokens,
            ..Self::default()
        })
    }

    /// From the `usage` of Anthropic's messages. The reported input is without the cached and cache-writing tokens.
    ///
    /// In a stream `message_start` carries the input and `message_delta` the output **so far**, not a delta. Where the model was asked several
    /// times for one answer (a conversation was compacted), `iterations` has all of it, and the counts beside it only the last: the larger counts.
    pub fn from_anthropic(usage: &Value) -> Result<Self, UsageError> {
        let mut all = Self::default();
        for one in usage.get("iterations").and_then(Value::as_array).into_iter().flatten() {
            let one = Self::of_one_message(one)?;
            all = Self {
                input_tokens: all.input_tokens.saturating_add(one.input_tokens),
                output_tokens: all.output_tokens.saturating_add(one.output_tokens),
                cached_tokens: all.cached_tokens.saturating_add(one.cached_tokens),
                cache_write_tokens: all.cache_write_tokens.saturating_add(one.cache_write_tokens),
                cache_write_1h_tokens: all.cache_write_1h_tokens.saturating_add(one.cache_write_1h_tokens),
                ..all
            };
        }
        let last = Self::of_one_message(usage)?;
        Ok(Self {
            input_tokens: last.input_tokens.max(all.input_tokens),
            output_tokens: last.output_tokens.max(all.output_tokens),
            cached_tokens: last.cached_tokens.max(all.cached_tokens),
            cache_write_tokens: last.cache_write_tokens.max(all.cache_write_tokens),
            cache_write_1h_tokens: last.cache_write_1h_tokens.max(all.cache_write_1h_tokens),
            ..last
        })
    }

    fn of_one_message(usage: &Value) -> Result<Self, UsageError> {
        let report = Report::read(usage, &["input_tokens", "output_tokens"])?;
        let written = report.part("cache_creation").unwrap_or_default();
        let cache_write_1h_tokens = written.count("ephemeral_1h_input_tokens")?;
        let cache_write_tokens = match report.count("cache_creation_input_tokens")? {
            0 => written.count("ephemeral_5m_input_tokens")?,
            all => all.saturating_sub(cache_write_1h_tokens),
        };
        Ok(Self {
            input_tokens: report.count("input_tokens")?,
            output_tokens: report.count("output_tokens")?,
            cached_tokens: report.count("cache_read_input_tokens")?,
            cache_write_tokens,
            cache_write_1h_tokens,
            service_tier: report.0.get("service_tier").and_then(Value::as_str).map_or_else(ServiceTier::default, ServiceTier::named),
            ..Self::default()
        })
    }

    /// From the `usage` of Bedrock Converse (in a stream: of its `metadata` event) or of an agent trace's `metadata`.
    ///
    /// The reported input is without the cached and cache-writing tokens. Agent traces know of no cache.
    pub fn from_bedrock(usage: &Value) -> Result<Self, UsageError> {
        let report = Report::read(usage, &["inputTokens", "outputTokens"])?;
        let mut cache_write_1h_tokens = 0_u64;
        for detail in report.0.get("cacheDetails").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object) {
            if detail.get("ttl").and_then(Value::as_str) == Some("1h") {
                cache_write_1h_tokens = cache_write_1h_tokens.saturating_add(Report(detail.clone()).count("inputTokens")?);
            }
        }
        Ok(Self {
            input_tokens: report.count("inputTokens")?,
            output_tokens: report.count("outputTokens")?,
            cached_tokens: report.count("cacheReadInputTokens")?,
            cache_write_tokens: report.count("cacheWriteInputTokens")?.saturating_sub(cache_write_1h_tokens),
            cache_write_1h_tokens,
            ..Self::default()
        })
    }

    /// From Gemini's `usageMetadata`. Cached tokens are part of the prompt; thoughts are billed as output, and are part of
    /// the candidates for some models and beside them for others, so the total decides.
    pub fn from_gemini(usage: &Value) -> Result<Self, UsageError> {
        let report = Report::read(usage, &["promptTokenCount", "candidatesTokenCount", "totalTokenCount"])?;
        let cached_tokens = report.count("cachedContentTokenCount")?;
        let prompt = report.count("promptTokenCount")?.saturating_add(report.count("toolUsePromptTokenCount")?);
        let output_tokens = match report.count("totalTokenCount")? {
            0 => report.count("candidatesTokenCount")?.saturating_add(report.count("thoughtsTokenCount")?),
            total => total.saturating_sub(prompt),
        };
        let fresh = prompt.saturating_sub(cached_tokens);
        let heard = report.audio("promptTokensDetails")?.saturating_sub(report.audio("cacheTokensDetails")?);
        let audio_input_tokens = heard.min(fresh);
        let audio_output_tokens = report.audio("candidatesTokensDetails")?.min(output_tokens);
        Ok(Self {
            input_tokens: fresh - audio_input_tokens,
            output_tokens: output_tokens - audio_output_tokens,
            cached_tokens,
            audio_input_tokens,
            audio_output_tokens,
            ..Self::default()
        })
    }

    /// From the `usage_metadata` of a message of `LangChain`'s. Cached, cache-writing and heard tokens are part of the input, whatever the provider
    /// does. A tier with prices of its own is a detail, and stands before the names of what is cached (`priority_cache_read`).
    pub fn from_langchain(usage: &Value) -> Result<Self, UsageError> {
        let report = Report::read(usage, &["input_tokens", "output_tokens"])?;
        let (read, written) = (report.part("input_token_details"), report.part("output_token_details"));
        let (read, written) = (read.unwrap_or_default(), written.unwrap_or_default());
        let service_tier = [ServiceTier::Priority, ServiceTier::Flex].into_iter().find(|tier| read.0.contains_key(tier.name()));
        let cached = |name: &str| match (read.count(name)?, service_tier) {
            (0, Some(tier)) => read.count(&format!("{}_{name}", tier.name())),
            (count, _) => Ok(count),
        };
        let (cached_tokens, cache_write_1h_tokens) = (cached("cache_read")?, read.count("ephemeral_1h_input_tokens")?);
        // Where what is written is told by how long it is kept, the sum of it is 0.
        let cache_write_tokens =
            cached("cache_creation")?.saturating_sub(cache_write_1h_tokens).max(read.count("ephemeral_5m_input_tokens")?);
        let apart = cached_tokens.saturating_add(cache_write_tokens).saturating_add(cache_write_1h_tokens);
        let (fresh, output) = (report.count("input_tokens")?.saturating_sub(apart), report.count("output_tokens")?);
        let (heard, spoken) = (read.count("audio")?.min(fresh), written.count("audio")?.min(output));
        Ok(Self {
            input_tokens: fresh - heard,
            output_tokens: output - spoken,
            cached_tokens,
            cache_write_tokens,
            cache_write_1h_tokens,
            audio_input_tokens: heard,
            audio_output_tokens: spoken,
            service_tier: service_tier.unwrap_or_default(),
        })
    }
}

/// Takes what a stream reports of its usage into what it has reported before: totals so far. A number stays at its largest, since some say at
/// the end that they have read nothing, and what is no count replaces none. What only the first report tells apart stays.
///
/// ```
/// use runguard_core::prices::raise_counts;
/// use serde_json::json;
///
/// let mut known = serde_json::Map::new();
/// raise_counts(&mut known, &json!({ "input_tokens": 10, "output_tokens": 1, "cache_creation": { "ephemeral_1h_input_tokens": 200 } }));
/// raise_counts(&mut known, &json!({ "input_tokens": 0, "output_tokens": 7, "cache_creation": null }));
/// assert_eq!(json!(known), json!({ "input_tokens": 10, "output_tokens": 7, "cache_creation": { "ephemeral_1h_input_tokens": 200 } }));
/// ```
pub fn raise_counts(known: &mut Map<String, Value>, later: &Value) {
    for (name, later) in later.as_object().into_iter().flatten().filter(|(_, later)| !later.is_null()) {
        match (known.entry(name.clone()).or_insert(Value::Null), later) {
            (Value::Object(parts), later @ Value::Object(_)) => raise_counts(parts, later),
            (Value::Number(known), Value::Number(later)) if known.as_f64() >= later.as_f64() => {}
            (Value::Array(known), Value::Array(later)) if known.len() > later.len() => {}
            // What is no count does not take the place of one; what cannot be a count was never known.
            (Value::Number(_) | Value::Object(_), Value::String(_) | Value::Bool(_) | Value::Array(_))
            | (Value::Object(_), Value::Number(_)) => {}
            (known, later) => *known = later.clone(),
        }
    }
}

/// Why a usage report could not be read.
///
/// ```
/// use runguard_core::prices::Usage;
///
/// let error = Usage::from_bedrock(&serde_json::json!({ "inputTokens": -1 })).unwrap_err();
/// assert_eq!(error.to_string(), "`inputTokens` in the usage report is not a count of tokens; it must be a whole number from 0 up");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// Not an object, or none of the fields that are looked for is in it.
    #[error("this is no usage report of this provider: it has none of {looked_for}; give the object with the token counts")]
    NoCounts {
        /// The names that would have been understood.
        looked_for: String,
    },
    /// A field that should be a count is none.
    #[error("`{field}` in the usage report is not a count of tokens; it must be a whole number from 0 up")]
    NotACount {
        /// Its name.
        field: String,
    },
}

/// One object of a report. A count that is missing or null is zero.
#[derive(Default)]
struct Report(Map<String, Value>);

impl Report {
    fn read(usage: &Value, fields: &[&str]) -> Result<Self, UsageError> {
        match usage.as_object() {
            Some(report) if fields.iter().any(|field| report.contains_key(*field)) => Ok(Self(report.clone())),
            Some(_) | None => Err(UsageError::NoCounts { looked_for: fields.join(", ") }),
        }
    }

    fn part(&self, field: &str) -> Option<Self> {
        self.0.get(field).and_then(Value::as_object).cloned().map(Self)
    }

    fn count(&self, field: &str) -> Result<u64, UsageError> {
        let count = match self.0.get(field) {
            None | Some(Value::Null) => Some(0),
            // JavaScript and some proxies write whole numbers as 12.0.
            Some(value) => value.as_u64().or_else(|| {
                value
                    .as_f64()
                    .filter(|number| number.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(number))
                    .map(|number| number as u64)
            }),
        };
        count.ok_or_else(|| UsageError::NotACount { field: field.to_owned() })
    }

    /// The tokens of sound in Gemini's list of what a count is made of.
    fn audio(&self, field: &str) -> Result<u64, UsageError> {
        let kinds = self.0.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
        kinds
            .filter(|kind| kind.get("modality").and_then(Value::as_str) == Some("AUDIO"))
            .try_fold(0_u64, |sum, kind| Ok(sum.saturating_add(Self(kind.clone()).count("tokenCount")?)))
    }

    fn first_of(&self, fields: &[&str]) -> Result<u64, UsageError> {
        fields.iter().find(|field| self.0.contains_key(**field)).map_or(Ok(0), |field| self.count(field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn openai_counts_the_cache_inside_the_prompt_in_both_of_its_forms() {
        let expected = Usage { input_tokens: 100, output_tokens: 70, cached_tokens: 600, cache_write_tokens: 300, ..Usage::default() };
        let chat = json!({
            "prompt_tokens": 1000, "completion_tokens": 70, "total_tokens": 1070,
            "prompt_tokens_details": { "cached_tokens": 600, "cache_write_tokens": 300, "audio_tokens": null },
            "completion_tokens_details": { "reasoning_tokens": 64 }
        });
        let responses = json!({
            "input_tokens": 1000, "output_tokens": 70.0,
            "input_tokens_details": { "cached_tokens": 600, "cache_write_tokens": 300, "cache_write_tokens_details": { "ttl_12h_tokens": 300 } },
            "output_tokens_details": { "reasoning_tokens": 64 }
        });
        assert_eq!(Usage::from_openai(&chat), Ok(expected));
        assert_eq!(Usage::from_openai(&responses), Ok(expected));
        assert_eq!(expected.prompt_tokens(), 1000);
        assert_eq!(Usage::from_openai(&json!({ "prompt_tokens": 5, "prompt_tokens_details": null })), Ok(Usage::new(5, 0)));
    }

    #[test]
    fn anthropic_counts_the_cache_beside_the_input_and_tells_long_writes_apart() {
        let expected = Usage {
            input_tokens: 10,
            output_tokens: 7,
            cached_tokens: 600,
            cache_write_tokens: 100,
            cache_write_1h_tokens: 200,
            ..Usage::default()
        };
        let whole = json!({
            "input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 300,
            "cache_creation": { "ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200 }
        });
        assert_eq!(Usage::from_anthropic(&whole), Ok(expected));
        let only_parts = json!({
            "input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 600,
            "cache_creation": { "ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200 }
        });
        assert_eq!(Usage::from_anthropic(&only_parts), Ok(expected));
        let only_the_sum = json!({ "input_tokens": 10, "output_tokens": 7, "cache_creation_input_tokens": 300, "cache_creation": null });
        assert_eq!(Usage::from_anthropic(&only_the_sum).unwrap().cache_write_tokens, 300);
    }

    #[test]
    fn what_only_a_total_or_a_list_tells_is_counted() {
        let beside = json!({ "prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 3041, "completion_tokens_details": { "reasoning_tokens": 3000 } });
        assert_eq!(Usage::from_openai(&beside), Ok(Usage::new(32, 3_009)));
        assert_eq!(Usage::from_openai(&json!({ "prompt_tokens": 32, "completion_tokens": 9, "total_tokens": "?" })), Ok(Usage::new(32, 9)));
        let compacted = json!({ "input_tokens": 10, "output_tokens": 5, "iterations": [
            { "type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500 },
            { "type": "message", "input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 7 }
        ]});
        assert_eq!(Usage::from_anthropic(&compacted), Ok(Usage { cached_tokens: 7, ..Usage::new(180_010, 3_505) }));
        assert!(Usage::from_anthropic(&json!({ "input_tokens": 1, "output_tokens": 1, "iterations": [{ "input_tokens": -1 }] })).is_err());
    }

    #[test]
    fn bedrock_counts_the_cache_beside_the_input_and_lists_writes_by_time() {
        let converse = json!({
            "inputTokens": 10, "outputTokens": 7, "totalTokens": 917, "cacheReadInputTokens": 600, "cacheWriteInputTokens": 300,
            "cacheDetails": [{ "ttl": "1h", "inputTokens": 200 }, { "ttl": "5m", "inputTokens": 100 }]
        });
        let expected = Usage {
            input_tokens: 10,
            output_tokens: 7,
            cached_tokens: 600,
            cache_write_tokens: 100,
            cache_write_1h_tokens: 200,
            ..Usage::default()
        };
        assert_eq!(Usage::from_bedrock(&converse), Ok(expected));
        assert_eq!(expected.total_tokens(), 917);
        assert_eq!(Usage::from_bedrock(&json!({ "inputTokens": 3, "outputTokens": 4 })), Ok(Usage::new(3, 4)));
    }

    #[test]
    fn gemini_thoughts_are_output_and_counted_once() {
        let expected = Usage { input_tokens: 60, output_tokens: 50, cached_tokens: 50, ..Usage::default() };
        for candidates in [20, 50] {
            let report = json!({
                "promptTokenCount": 100, "toolUsePromptTokenCount": 10, "cachedContentTokenCount": 50,
                "candidatesTokenCount": candidates, "thoughtsTokenCount": 30, "totalTokenCount": 160
            });
            assert_eq!(Usage::from_gemini(&report), Ok(expected));
        }
        let without_total = json!({ "promptTokenCount": 1, "candidatesTokenCount": 2, "thoughtsTokenCount": 3 });
        assert_eq!(Usage::from_gemini(&without_total), Ok(Usage::new(1, 5)));
    }

    #[test]
    fn sound_is_counted_apart_and_once() {
        let expected = Usage {
            input_tokens: 60,
            output_tokens: 20,
            cached_tokens: 30,
            audio_input_tokens: 10,
            audio_output_tokens: 50,
            ..Usage::default()
        };
        let openai = json!({
            "prompt_tokens": 100, "completion_tokens": 70,
            "prompt_tokens_details": { "cached_tokens": 30, "audio_tokens": 25, "cached_tokens_details": { "audio_tokens": 15 } },
            "completion_tokens_details": { "audio_tokens": 50, "reasoning_tokens": 0 }
        });
        assert_eq!(Usage::from_openai(&openai), Ok(expected));
        assert_eq!((expected.prompt_tokens(), expected.total_tokens()), (100, 170));
        let gemini = json!({
            "promptTokenCount": 100, "candidatesTokenCount": 70, "totalTokenCount": 170, "cachedContentTokenCount": 30,
            "promptTokensDetails": [{ "modality": "TEXT", "tokenCount": 75 }, { "modality": "AUDIO", "tokenCount": 25 }],
            "cacheTokensDetails": [{ "modality": "AUDIO", "tokenCount": 15 }],
            "candidatesTokensDetails": [{ "modality": "AUDIO", "tokenCount": 50 }]
        });
        assert_eq!(Usage::from_gemini(&gemini), Ok(expected));
        let more_sound_than_tokens = json!({ "prompt_tokens": 5, "prompt_tokens_details": { "audio_tokens": 9, "cached_tokens": 2 } });
        assert_eq!(Usage::from_openai(&more_sound_than_tokens).unwrap().prompt_tokens(), 5);
    }

    #[test]
    fn how_a_request_was_served_is_read_and_older_records_say_nothing_of_it() {
        let batch = Usage::from_anthropic(&json!({ "input_tokens": 1, "output_tokens": 2, "service_tier": "batch" })).unwrap();
        assert_eq!(batch, Usage::new(1, 2).in_tier(ServiceTier::Batch));
        for tier in [ServiceTier::Standard, ServiceTier::Priority, ServiceTier::Flex, ServiceTier::Batch] {
            assert_eq!(ServiceTier::named(tier.name()), tier);
            let stored = serde_json::to_string(&Usage::new(1, 2).in_tier(tier)).unwrap();
            assert_eq!(serde_json::from_str::<Usage>(&stored).unwrap().service_tier, tier);
        }
        let older = json!({
            "input_tokens": 1, "output_tokens": 2, "cached_tokens": 0, "cache_write_tokens": 0, "cache_write_1h_tokens": 0
        });
        assert_eq!(serde_json::from_value::<Usage>(older.clone()).unwrap(), Usage::new(1, 2));
        assert_eq!(serde_json::to_value(Usage::new(1, 2)).unwrap(), older);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        for report in [json!(null), json!([]), json!({}), json!({ "tokens": 3 })] {
            assert!(matches!(Usage::from_openai(&report), Err(UsageError::NoCounts { .. })), "{report}");
            assert!(matches!(Usage::from_gemini(&report), Err(UsageError::NoCounts { .. })), "{report}");
        }
        for count in [json!(-1), json!(1.5), json!("12"), json!(1e300), json!(true)] {
            let report = json!({ "input_tokens": 1, "output_tokens": count });
            assert_eq!(Usage::from_anthropic(&report), Err(UsageError::NotACount { field: "output_tokens".into() }), "{report}");
        }
    }
}
