//! Langfuse exports: observations from the API, the interface or blob storage, alone or inside their trace.
//!
//! The API writes `traceId`, blob storage `trace_id`; inputs and outputs are values in one and texts of them in the other. A run
//! is a trace. `TOOL` and `RETRIEVER` observations are calls, `GENERATION`s are turns. Plain spans are not told apart from
//! anything else a program does, so a tool that was recorded as one is known by the model's word alone.

use super::conversation::{Spent, ToolCall, millis_of};
use super::grouped::Grouped;
use super::json::{Map, Value};
use super::message::{self, answered, args, asked, owned, result_text, text};
use super::spans::{Span, Spans, What};
use super::{Out, Reader};
use runguard_core::prices::Usage;

#[derive(Debug, Default)]
pub(super) struct Langfuse {
    runs: Grouped<Spans>,
}

fn either<'a, 'b>(object: &'a Map<'b>, names: &[&str]) -> Option<&'a Value<'b>> {
    names.iter().find_map(|name| object.get(name).filter(|value| !value.is_null()))
}

fn number(value: &Value<'_>) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

/// Details are counts by name; what belongs to the input or the output begins so.
fn usage(observation: &Map<'_>) -> Usage {
    let report = either(observation, &["usageDetails", "usage_details", "usage"]);
    let Some(details) = report.and_then(Value::as_object) else { return Usage::default() };
    let count = |names: &[&str]| names.iter().find_map(|name| details.get(name)?.as_u64());
    let sum = |beginning: &str| -> u64 {
        let part = |(name, count): (&str, &Value<'_>)| if name.starts_with(beginning) { count.as_u64() } else { None };
        details.iter().filter_map(part).fold(0, u64::saturating_add)
    };
    let (input, output) = (sum("input"), sum("output"));
    // The SDK sends what the provider reported, in the provider's words.
    if details.contains_key("prompt_tokens_details")
        && let Some(usage) = report.and_then(message::usage)
    {
        return usage;
    }
    let input = if input > 0 { input } else { count(&["promptTokens", "prompt_tokens"]).unwrap_or(0) };
    let output = if output > 0 { output } else { count(&["completionTokens", "completion_tokens"]).unwrap_or(0) };
    let total = count(&["total", "totalTokens", "total_tokens"]).unwrap_or(0);
    let cached_tokens = count(&["cache_read_input_tokens"]).unwrap_or(0);
    // A report of nothing but a total is one of input.
    let input = if input.max(output) == 0 { total } else { input };
    Usage { cached_tokens, ..Usage::new(input, output) }
}

fn what(kind: &str, observation: &Map<'_>) -> Option<What> {
    let (input, output) = (observation.get("input"), observation.get("output"));
    let failed = text(observation, &["level"]) == "ERROR";
    match kind {
        "TOOL" | "RETRIEVER" => {
            let message = || text(observation, &["statusMessage", "status_message"]).to_owned();
            let given = output.filter(|output| !output.is_null());
            Some(What::Tool {
                call: ToolCall { id: String::new(), tool: text(observation, &["name"]).to_owned(), args: given_by_name(args(input)) },
                result: given.map(|output| result_text(Some(output)).into_owned()).or_else(|| failed.then(message)),
                failed: Some(failed),
            })
        }
        "GENERATION" => {
            let model = text(observation, &["model", "providedModelName", "provided_model_name"]).to_owned();
            let total = either(observation, &["costDetails", "cost_details"]).and_then(|details| details.get("total"));
            let cost = total.or_else(|| either(observation, &["calculatedTotalCost", "totalCost", "total_cost"])).and_then(number);
            Some(What::Model {
                asked: input.map(|input| owned(asked(input))).unwrap_or_default(),
                answered: if failed { Vec::new() } else { output.map(|output| owned(answered(output))).unwrap_or_default() },
                spent: Spent::of(&model, &usage(observation), cost.filter(|cost| *cost > 0.0)),
                model,
            })
        }
        _ => None,
    }
}

/// The decorator of the Python SDK writes what a function was given in order, and by name.
fn given_by_name(mut given: serde_json::Value) -> serde_json::Value {
    let is_so = given.as_object().is_some_and(|given| given.len() == 2) && given["args"].as_array().is_some_and(Vec::is_empty);
    if is_so && given["kwargs"].is_object() { given["kwargs"].take() } else { given }
}

/// What an export calls the type of an observation that makes a step, which the SDK sends in small letters.
pub(super) fn type_of_span(kind: &str) -> Option<&'static str> {
    ["TOOL", "RETRIEVER", "GENERATION"].into_iter().find(|known| known.eq_ignore_ascii_case(kind))
}

/// An observation as the SDK sends it over OTLP: in the attributes of a span, values as texts of them.
pub(super) fn what_of_span(kind: &str, name: &str, attributes: &Map<'_>, failed: Option<String>) -> Option<What> {
    let told = |name: &str| attributes.get(&format!("langfuse.observation.{name}")).cloned();
    let value = |name: &str| told(name).map(|value| args(Some(&value)).into());
    let level = if failed.is_some() { Some("ERROR".to_owned().into()) } else { told("level") };
    let members = [
        ("name", Some(name.to_owned().into())),
        ("input", told("input")),
        ("output", told("output")),
        ("model", told("model.name")),
        ("usageDetails", value("usage_details")),
        ("costDetails", value("cost_details")),
        ("level", level),
        ("statusMessage", told("status_message").or_else(|| failed.map(Value::from))),
    ];
    what(kind, &members.into_iter().filter_map(|(name, value)| Some((name.into(), value?))).collect())
}

impl Langfuse {
    fn observation(&mut self, line: u64, trace: &str, observation: &Map<'_>, out: &mut Out) {
        let own = text(observation, &["traceId", "trace_id"]);
        let trace = if own.is_empty() { trace } else { own };
        let kind = text(observation, &["type"]);
        if trace.is_empty() || kind.is_empty() {
            out.broken(line, "not an observation of Langfuse: type and traceId (or trace_id) are needed");
            return;
        }
        let at_millis = millis_of(text(observation, &["startTime", "start_time"]));
        let span = what(kind, observation).map(|what| Span {
            id: text(observation, &["id"]).to_owned(),
            parent: text(observation, &["parentObservationId", "parent_observation_id"]).to_owned(),
            began: at_millis.map_or(0, i128::from),
            at_millis,
            telling: None,
            what,
        });
        let agent = text(observation, &["traceName", "trace_name"]);
        self.tell(line, trace, agent, span, out);
    }

    fn tell(&mut self, line: u64, trace: &str, agent: &str, span: Option<Span>, out: &mut Out) {
        let begin = |out: &Out| Spans::new(out.conversation(trace.to_owned(), line));
        self.runs.tell(trace, line, out, begin, |spans| {
            if !agent.is_empty() {
                agent.clone_into(&mut spans.conversation.run.agent);
            }
            spans.spans.extend(span);
        });
    }

    fn take(&mut self, line: u64, record: &Map<'_>, out: &mut Out) {
        if let Some(page) = record.get("data").and_then(Value::as_array) {
            page.iter().filter_map(Value::as_object).for_each(|record| self.take(line, record, out));
            return;
        }
        // The interface puts a trace beside its observations, the API inside.
        let trace = record.get("trace").and_then(Value::as_object).unwrap_or(record);
        if let Some(observations) = record.get("observations").and_then(Value::as_array) {
            let id = text(trace, &["id"]);
            if !id.is_empty() {
                self.tell(line, id, text(trace, &["name"]), None, out);
            }
            // A trace without details lists ids only.
            for observation in observations {
                match observation.as_object() {
                    Some(observation) => self.observation(line, id, observation, out),
                    None => return out.broken(line, "the trace names its observations but does not hold them; export them too"),
                }
            }
            return;
        }
        if record.contains_key("type") {
            self.observation(line, "", record, out);
        } else if record.contains_key("timestamp") && !text(record, &["id"]).is_empty() {
            // A trace by itself names the run; its observations come as records of their own.
            self.tell(line, text(record, &["id"]), text(record, &["name"]), None, out);
        } else {
            out.broken(line, "neither an observation nor a trace of Langfuse");
        }
    }
}

impl Reader for Langfuse {
    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out) {
        match record.as_object() {
            Some(record) => self.take(line, record, out),
            None => out.broken(line, "neither an observation nor a trace of Langfuse"),
        }
    }

    fn end(&mut self, out: &mut Out) {
        self.runs.close_all(out);
    }
}
