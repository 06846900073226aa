//! How many tokens a request used, read from what each provider reports.
//!
//! The providers count in different ways: for `OpenAI` and Gemini the cached tokens are part of the prompt, for Anthropic and
//! Bedrock they come on top. Here every token is counted once, in one field.

use super::UnknownModelError;
use crate::ledger::Cost;
use crate::money::NanoDollars;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

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
}

impl Usage {
    /// Tokens read afresh, and tokens written.
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Self { input_tokens, output_tokens, cached_tokens: 0, cache_write_tokens: 0, cache_write_1h_tokens: 0 }
    }

    /// The whole prompt: what the size tiers of a price are about.
    pub const fn prompt_tokens(&self) -> u64 {
        self.input_tokens
            .saturating_add(self.cached_tokens)
            .saturating_add(self.cache_write_tokens)
            .saturating_add(self.cache_write_1h_tokens)
    }

    /// All of them, cached ones included.
    pub const fn total_tokens(&self) -> u64 {
        self.prompt_tokens().saturating_add(self.output_tokens)
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
    /// Cached and cache-writing tokens are part of the reported prompt, and reasoning is part of the completion. All cache
    /// writes count as [`Self::cache_write_tokens`], however long they are kept.
    pub fn from_openai(usage: &Value) -> Result<Self, UsageError> {
        let report = Report::read(usage, &["prompt_tokens", "input_tokens", "completion_tokens", "output_tokens"])?;
        let prompt = report.first_of(&["prompt_tokens", "input_tokens"])?;
        let details = report.part("prompt_tokens_details").or(report.part("input_tokens_details")).unwrap_or_default();
        let (cached_tokens, cache_write_tokens) = (details.count("cached_tokens")?, details.count("cache_write_tokens")?);
        Ok(Self {
            input_tokens: prompt.saturating_sub(cached_tokens).saturating_sub(cache_write_tokens),
            output_tokens: report.first_of(&["completion_tokens", "output_tokens"])?,
            cached_tokens,
            cache_write_tokens,
            cache_write_1h_tokens: 0,
        })
    }

    /// From the `usage` of Anthropic's messages. The reported input is without the cached and cache-writing tokens.
    ///
    /// In a stream `message_start` carries the input and `message_delta` the output **so far**, not a delta.
    pub fn from_anthropic(usage: &Value) -> Result<Self, UsageError> {
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
        Ok(Self { input_tokens: prompt.saturating_sub(cached_tokens), output_tokens, cached_tokens, ..Self::default() })
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageError {
    /// Not an object, or none of the fields that are looked for is in it.
    NoCounts {
        /// The names that would have been understood.
        looked_for: String,
    },
    /// A field that should be a count is none.
    NotACount {
        /// Its name.
        field: String,
    },
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCounts { looked_for } => {
                write!(f, "this is no usage report of this provider: it has none of {looked_for}; give the object with the token counts")
            }
            Self::NotACount { field } => {
                write!(f, "`{field}` in the usage report is not a count of tokens; it must be a whole number from 0 up")
            }
        }
    }
}

impl std::error::Error for UsageError {}

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
        let expected =
            Usage { input_tokens: 100, output_tokens: 70, cached_tokens: 600, cache_write_tokens: 300, cache_write_1h_tokens: 0 };
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
        let expected =
            Usage { input_tokens: 10, output_tokens: 7, cached_tokens: 600, cache_write_tokens: 100, cache_write_1h_tokens: 200 };
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
    fn bedrock_counts_the_cache_beside_the_input_and_lists_writes_by_time() {
        let converse = json!({
            "inputTokens": 10, "outputTokens": 7, "totalTokens": 917, "cacheReadInputTokens": 600, "cacheWriteInputTokens": 300,
            "cacheDetails": [{ "ttl": "1h", "inputTokens": 200 }, { "ttl": "5m", "inputTokens": 100 }]
        });
        let expected =
            Usage { input_tokens: 10, output_tokens: 7, cached_tokens: 600, cache_write_tokens: 100, cache_write_1h_tokens: 200 };
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
