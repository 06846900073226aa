//! Model calls that a door passed on, in the words of the conventions for generative AI: what their spans say, and their metrics.

use super::{text, whole};
use runguard_guards::input::PassedCall;
use runguard_guards::logged::Spending;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Models and providers that are told apart; callers name models.
const MOST_SERIES: usize = 500;
const OTHER: &str = "other";
/// As the conventions advise.
const TOKEN_BOUNDS: [f64; 14] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];
const SECOND_BOUNDS: [f64; 14] = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// The call that a row settles, if it settles one that was passed on.
pub(super) fn settled<'a>(spending: &'a Spending<'_>) -> Option<&'a PassedCall> {
    spending.call.as_ref().filter(|call| spending.is_spent() && !call.operation.is_empty())
}

fn named(call: &PassedCall, model: &str) -> Vec<Value> {
    vec![
        text("gen_ai.operation.name", &call.operation),
        text("gen_ai.provider.name", &call.upstream),
        // As it was called before, for those who read that.
        text("gen_ai.system", &call.upstream),
        text("gen_ai.request.model", model),
    ]
}

/// All that was sent to the model, from a cache or not.
fn input_tokens(spending: &Spending<'_>) -> u64 {
    let used = spending.used;
    used.input.saturating_add(used.cached).saturating_add(used.cache_writes)
}

/// What the span of a call says beyond a decision's.
pub(super) fn attributes(call: &PassedCall, spending: &Spending<'_>) -> Vec<Value> {
    let mut attributes = vec![
        text("gen_ai.provider.name", &call.upstream),
        text("gen_ai.system", &call.upstream),
        whole("gen_ai.usage.input_tokens", input_tokens(spending)),
        whole("gen_ai.usage.output_tokens", spending.used.output),
    ];
    if spending.used.cached > 0 {
        attributes.push(whole("gen_ai.usage.cache_read.input_tokens", spending.used.cached));
    }
    if !call.answered_by.is_empty() {
        attributes.push(text("gen_ai.response.model", &call.answered_by));
    }
    if !call.finish.is_empty() {
        let reasons: Vec<Value> = call.finish.split(',').map(|reason| json!({"stringValue": reason})).collect();
        let reasons = json!({"values": reasons});
        attributes.push(json!({"key": "gen_ai.response.finish_reasons", "value": {"arrayValue": reasons}}));
    }
    attributes
}

/// How often something was of which size.
#[derive(Debug, Default, Clone)]
struct Histogram {
    counts: [u64; 15],
    sum: f64,
}

impl Histogram {
    fn see(&mut self, value: f64, bounds: &[f64; 14]) {
        self.counts[bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    fn point(&self, attributes: &[Value], bounds: &[f64; 14], (began, now): (&str, &str)) -> Value {
        // As numbers: texts, which this format has for them, are not read back by every collector.
        json!({"attributes": attributes, "startTimeUnixNano": began, "timeUnixNano": now, "count": self.counts.iter().sum::<u64>(),
            "sum": self.sum, "bucketCounts": self.counts, "explicitBounds": bounds})
    }
}

#[derive(Debug, Default, Clone)]
struct Series {
    input: Histogram,
    output: Histogram,
    seconds: Histogram,
    usd: f64,
}

/// Calls since the start, by what was asked of whom.
#[derive(Debug, Default)]
pub(super) struct ModelCalls(BTreeMap<(Box<str>, Box<str>, Box<str>), Series>);

impl ModelCalls {
    pub(super) fn see(&mut self, call: &PassedCall, spending: &Spending<'_>) {
        let model = spending.model.as_deref().unwrap_or_default();
        let mut key = (call.operation.clone(), call.upstream.clone(), Box::from(model));
        if self.0.len() >= MOST_SERIES && !self.0.contains_key(&key) {
            key.2 = OTHER.into();
        }
        let series = self.0.entry(key).or_default();
        series.input.see(input_tokens(spending) as f64, &TOKEN_BOUNDS);
        series.output.see(spending.used.output as f64, &TOKEN_BOUNDS);
        if let Some(millis) = call.millis {
            series.seconds.see(millis as f64 / 1000.0, &SECOND_BOUNDS);
        }
        series.usd += spending.cost_usd.unwrap_or(0.0);
    }

    pub(super) fn metrics(&self, began: &str, now: &str) -> Vec<Value> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let (mut tokens, mut seconds, mut dollars) = (Vec::new(), Vec::new(), Vec::new());
        for ((operation, upstream, model), series) in &self.0 {
            let call = PassedCall { operation: operation.clone(), upstream: upstream.clone(), ..PassedCall::default() };
            let attributes = named(&call, model);
            for (kind, histogram) in [("input", &series.input), ("output", &series.output)] {
                let attributes = [attributes.clone(), vec![text("gen_ai.token.type", kind)]].concat();
                tokens.push(histogram.point(&attributes, &TOKEN_BOUNDS, (began, now)));
            }
            seconds.push(series.seconds.point(&attributes, &SECOND_BOUNDS, (began, now)));
            dollars.push(json!({"attributes": attributes, "startTimeUnixNano": began, "timeUnixNano": now, "asDouble": series.usd}));
        }
        let histogram = |name: &str, about: &str, unit: &str, points: Vec<Value>| json!({"name": name, "description": about, "unit": unit, "histogram": {"dataPoints": points, "aggregationTemporality": 2}});
        vec![
            histogram("gen_ai.client.token.usage", "Tokens that model calls used.", "{token}", tokens),
            histogram("gen_ai.client.operation.duration", "From a question to the end of its answer.", "s", seconds),
            json!({"name": "runguard.cost", "description": "What model calls cost.", "unit": "{USD}", "sum": {"dataPoints": dollars, "aggregationTemporality": 2, "isMonotonic": true}}),
        ]
    }
}
