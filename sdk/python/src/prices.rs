//! `cost_usd` and `read_usage`.

use crate::budgets::whole;
use crate::{errors, values};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use runguard_core::money::NanoDollars;
use runguard_core::prices::{Price, Prices, ServiceTier, UnknownModel, UnknownModelError, Usage, UsageError, raise_counts};
use runguard_core::run::Unpriced;
use serde_json::Value;
use std::borrow::Cow;

/// Prices, and what a model costs that has none.
#[derive(Clone)]
pub(crate) struct PriceList {
    prices: Prices,
    unknown: UnknownModel,
}

impl PriceList {
    /// The bundled table, with the user's own prices before it.
    pub(crate) fn new(own: Option<&Bound<'_, PyAny>>, unknown: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let mut prices = Prices::bundled();
        if let Some(own) = own {
            let refused = |error| {
                errors::invalid_input(
                    own.py(),
                    format!(
                        "prices cannot be read ({error}). Give {{\"model\": {{\"input\": 3, \"output\": 15}}}}, in dollars for a million tokens."
                    ),
                )
            };
            prices.set_from_json(&values::json(own)?).map_err(refused)?;
        }
        Ok(Self { prices, unknown: unknown.map_or(Ok(UnknownModel::Error), read_unknown)? })
    }

    /// What the usage of one request costs.
    pub(crate) fn cost(&self, py: Python<'_>, model: &Bound<'_, PyAny>, usage: &Usage) -> PyResult<NanoDollars> {
        let name = model_name(model)?;
        self.known_cost(&name, usage).map_err(|error| errors::unknown_model(py, &Unpriced::from(&error)))
    }

    pub(crate) fn known_cost(&self, model: &str, usage: &Usage) -> Result<NanoDollars, UnknownModelError> {
        self.prices.cost(model, usage, &self.unknown).map(|(cost, _)| cost)
    }

    /// The longest answer of a model in tokens, where it is known.
    pub(crate) fn longest_answer(&self, model: &str) -> Option<u64> {
        self.prices.longest_answer(model).or_else(|| self.unknown.longest_answer())
    }
}

impl Default for PriceList {
    /// The bundled table alone.
    fn default() -> Self {
        Self { prices: Prices::bundled(), unknown: UnknownModel::Error }
    }
}

/// The name of a model, as a user gives it.
pub(crate) fn model_name<'a>(model: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, str>> {
    let py = model.py();
    let Ok(name) = model.cast::<PyString>() else {
        return Err(errors::invalid_input(py, "model must be the name of a model, a string."));
    };
    let name = values::text(name)?;
    if name.trim().is_empty() {
        return Err(errors::invalid_input(py, "model is empty: the price depends on it."));
    }
    Ok(name)
}

fn read_unknown(unknown: &Bound<'_, PyAny>) -> PyResult<UnknownModel> {
    let py = unknown.py();
    if let Ok(name) = unknown.cast::<PyString>() {
        match &*name.to_cow()? {
            "error" => return Ok(UnknownModel::Error),
            "free" => return Ok(UnknownModel::Free),
            _ => {}
        }
    } else if let Ok(price) = serde_json::from_str::<Price>(&values::json(unknown)?) {
        return Ok(UnknownModel::DefaultPrice(price));
    }
    Err(errors::invalid_input(
        py,
        "unknown_model must be \"error\", \"free\", or a price such as {\"input\": 3, \"output\": 15} for a million tokens.",
    ))
}

/// What a stream has reported of its usage so far, and what it reports now: of both the JSON.
#[pyfunction]
pub(crate) fn usage_merge(earlier: &Bound<'_, PyAny>, later: &Bound<'_, PyAny>) -> PyResult<String> {
    let read = |report| PyResult::Ok(serde_json::from_str(&values::json(report)?).unwrap_or_default());
    let mut known = serde_json::Map::new();
    raise_counts(&mut known, &read(earlier)?);
    raise_counts(&mut known, &read(later)?);
    Ok(Value::Object(known).to_string())
}

/// A number of tokens as a user gives it; a provider's None is no tokens.
type Count<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// What a request used, as a user tells it: what is read, written, read from a cache, written to one for the usual time and for an hour,
/// heard, spoken; and how the provider says that it was served.
pub(crate) fn usage(counts: [Count<'_, '_>; 7], service_tier: Option<&str>) -> PyResult<Usage> {
    let count = |tokens: Count<'_, '_>, name: &str| tokens.map_or(Ok(0), |tokens| whole(tokens, name));
    let [input, output, cached, cache_write, cache_write_1h, audio_input, audio_output] = counts;
    Ok(Usage {
        input_tokens: count(input, "input_tokens")?,
        output_tokens: count(output, "output_tokens")?,
        cached_tokens: count(cached, "cached_tokens")?,
        cache_write_tokens: count(cache_write, "cache_write_tokens")?,
        cache_write_1h_tokens: count(cache_write_1h, "cache_write_1h_tokens")?,
        audio_input_tokens: count(audio_input, "audio_input_tokens")?,
        audio_output_tokens: count(audio_output, "audio_output_tokens")?,
        service_tier: service_tier.map_or_else(ServiceTier::default, ServiceTier::named),
    })
}

/// What a model call costs, in dollars. `input_tokens` are those read afresh, without the cached ones.
#[pyfunction]
#[pyo3(signature = (model, input_tokens, output_tokens, cached_tokens = None, cache_write_tokens = None, cache_write_1h_tokens = None, audio_input_tokens = None, audio_output_tokens = None, service_tier = None, *, prices = None, unknown_model = None))]
pub(crate) fn cost_usd(
    py: Python<'_>,
    model: &Bound<'_, PyAny>,
    input_tokens: &Bound<'_, PyAny>,
    output_tokens: &Bound<'_, PyAny>,
    cached_tokens: Option<&Bound<'_, PyAny>>,
    cache_write_tokens: Option<&Bound<'_, PyAny>>,
    cache_write_1h_tokens: Option<&Bound<'_, PyAny>>,
    audio_input_tokens: Option<&Bound<'_, PyAny>>,
    audio_output_tokens: Option<&Bound<'_, PyAny>>,
    service_tier: Option<&str>,
    prices: Option<&Bound<'_, PyAny>>,
    unknown_model: Option<&Bound<'_, PyAny>>,
) -> PyResult<f64> {
    let (input, output) = (Some(input_tokens), Some(output_tokens));
    let counts = [input, output, cached_tokens, cache_write_tokens, cache_write_1h_tokens, audio_input_tokens, audio_output_tokens];
    let usage = usage(counts, service_tier)?;
    Ok(PriceList::new(prices, unknown_model)?.cost(py, model, &usage)?.as_dollars())
}

/// The token counts in what a provider reports as usage, for `record_usage(model, **…)`. Each token is in exactly one of them.
/// `service_tier` is how the answer says that it was served, where that stands beside the usage.
#[pyfunction]
#[pyo3(signature = (provider, report, service_tier = None))]
pub(crate) fn read_usage<'py>(
    py: Python<'py>,
    provider: &str,
    report: &Bound<'py, PyAny>,
    service_tier: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let read: fn(&Value) -> Result<Usage, UsageError> = match provider {
        "openai" => Usage::from_openai,
        "anthropic" => Usage::from_anthropic,
        "bedrock" => Usage::from_bedrock,
        "gemini" => Usage::from_gemini,
        "langchain" => Usage::from_langchain,
        _ => {
            return Err(errors::invalid_input(py, "provider must be \"openai\", \"anthropic\", \"bedrock\", \"gemini\" or \"langchain\"."));
        }
    };
    let report: Value = serde_json::from_str(&values::json(report)?).unwrap_or_default();
    let usage = read(&report).map_err(|error| errors::invalid_input(py, values::sentence(&error)))?;
    let counts = PyDict::new(py);
    counts.set_item("input_tokens", usage.input_tokens)?;
    counts.set_item("output_tokens", usage.output_tokens)?;
    counts.set_item("cached_tokens", usage.cached_tokens)?;
    counts.set_item("cache_write_tokens", usage.cache_write_tokens)?;
    counts.set_item("cache_write_1h_tokens", usage.cache_write_1h_tokens)?;
    counts.set_item("audio_input_tokens", usage.audio_input_tokens)?;
    counts.set_item("audio_output_tokens", usage.audio_output_tokens)?;
    // What the report says itself goes before what stands beside it.
    let beside = || service_tier.map_or(ServiceTier::Standard, ServiceTier::named);
    let tier = if usage.service_tier == ServiceTier::Standard { beside() } else { usage.service_tier };
    counts.set_item("service_tier", tier.name())?;
    Ok(counts)
}
