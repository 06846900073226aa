//! Tells a record's format by a sketch of it: the names at its top, the first of its lists, the beginnings of its texts.
//!
//! A record may be large; the sketch is small, and the rest is read past without being kept.

use super::Format;
use super::json;
use super::openhands::kind_of;
use super::records::{Piece, Records};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::io::BufRead;

const DEEPEST: u8 = 5;
const MOST_MEMBERS: usize = 64;
const MOST_ELEMENTS: usize = 12;
const TEXT_BYTES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guess {
    Surely(Format),
    /// Unless a later record says otherwise.
    Perhaps(Format),
}

/// `None` for what is not JSON.
pub(super) fn of(bytes: &[u8]) -> Option<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    Sketch(DEEPEST).deserialize(&mut deserializer).ok().filter(|_| deserializer.end().is_ok())
}

/// [`of`], of a record that was read.
pub(super) fn of_value(record: &json::Value<'_>) -> Value {
    sketched(record, DEEPEST)
}

fn sketched(value: &json::Value<'_>, deeper: u8) -> Value {
    match value {
        json::Value::Null => Value::Null,
        json::Value::Bool(flag) => Value::Bool(*flag),
        json::Value::Number(number) => Value::Number(number.clone()),
        json::Value::String(text) => Value::String(text.beginning(TEXT_BYTES)),
        json::Value::Array(values) => {
            let most = if deeper > 0 { MOST_ELEMENTS } else { 0 };
            Value::Array(values.iter().take(most).map(|value| sketched(value, deeper - 1)).collect())
        }
        json::Value::Object(members) => {
            let most = if deeper > 0 { MOST_MEMBERS } else { 0 };
            Value::Object(members.iter().take(most).map(|(name, value)| (name.to_owned(), sketched(value, deeper - 1))).collect())
        }
    }
}

struct Sketch(u8);

impl<'de> DeserializeSeed<'de> for Sketch {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Sketch {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text[..text.floor_char_boundary(TEXT_BYTES)].to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while self.0 > 0 && elements.len() < MOST_ELEMENTS {
            let Some(element) = list.next_element_seed(Sketch(self.0 - 1))? else { break };
            elements.push(element);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            if self.0 > 0 && members.len() < MOST_MEMBERS {
                members.insert(name, object.next_value_seed(Sketch(self.0 - 1))?);
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Value::Object(members))
    }
}

/// The format of a record that looks so.
pub(super) fn format_of(record: &Value) -> Option<Guess> {
    if let Value::Array(elements) = record {
        return elements.iter().find_map(format_of);
    }
    let object = record.as_object()?;
    let has = |names: &[&str]| names.iter().all(|name| object.contains_key(*name));
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let list = |name: &str| object.get(name).and_then(Value::as_array).map(Vec::as_slice);
    let inner = |name: &str| object.get(name).and_then(Value::as_object);
    let surely = |format| Some(Guess::Surely(format));

    if has(&["run_id", "steps", "source"]) {
        return surely(Format::Traces);
    }
    if has(&["decision_id", "guard", "outcome"]) || list("decisions").is_some() {
        return surely(Format::DecisionLog);
    }
    if has(&["resourceSpans"]) || has(&["resource_spans"]) || has(&["traceId", "spanId"]) {
        return surely(Format::Otlp);
    }
    let is_nested = |span: &Value| span.get("span_attributes").is_some() || span.get("child_spans").is_some();
    if has(&["span_id", "span_attributes"]) || (has(&["trace_id"]) && list("spans").is_some_and(|spans| spans.iter().any(is_nested))) {
        return surely(Format::Otlp);
    }
    if has(&["task_id", "reward"]) && list("traj").is_some() {
        return surely(Format::TauBench);
    }
    let run_of_langsmith = |value: &Value| value.get("run_type").is_some();
    if has(&["run_type"]) || ["runs", "post", "patch"].iter().any(|name| list(name).is_some_and(|runs| runs.iter().any(run_of_langsmith))) {
        return surely(Format::LangSmith);
    }
    if is_observation(record) || ["observations", "data"].iter().any(|name| list(name).is_some_and(|list| list.iter().any(is_langfuse))) {
        return surely(Format::Langfuse);
    }
    if has(&["orchestrationTrace"]) || is_bedrock(record) || list("completion").is_some_and(|events| events.iter().any(is_bedrock)) {
        return surely(Format::Bedrock);
    }
    if has(&["trajectory"]) && (has(&["info"]) || has(&["history"]) || has(&["environment"])) {
        return surely(Format::SweAgent);
    }
    if text("trajectory_format").starts_with("mini-swe-agent") || (has(&["info", "messages"]) && inner("info")?.contains_key("exit_status"))
    {
        return surely(Format::SweAgent);
    }
    if is_event(record) || list("history").is_some_and(|events| events.iter().any(is_history)) || is_openhands_completion(record) {
        return surely(Format::OpenHands);
    }
    let in_session = has(&["sessionId"]) || has(&["session_id"]);
    let has_message = inner("message").is_some_and(|message| message.contains_key("role") || message.contains_key("content"));
    if (in_session && (has_message || has(&["type", "uuid"])))
        || (text("type") == "system" && text("subtype") == "init")
        || (text("type") == "summary" && has(&["leafUuid"]))
    {
        return surely(Format::ClaudeCode);
    }
    message_format(record)
}

fn is_langfuse(value: &Value) -> bool {
    is_observation(value) || value.get("observations").is_some()
}

fn is_observation(value: &Value) -> bool {
    const TYPES: [&str; 10] = ["GENERATION", "SPAN", "EVENT", "TOOL", "AGENT", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"];
    let is_of = value.get("traceId").is_some() || value.get("trace_id").is_some();
    is_of && value.get("type").and_then(Value::as_str).is_some_and(|kind| TYPES.contains(&kind))
}

fn is_bedrock(value: &Value) -> bool {
    let Some(trace) = value.get("trace").and_then(Value::as_object) else { return false };
    let names = ["orchestrationTrace", "preProcessingTrace", "postProcessingTrace", "routingClassifierTrace", "failureTrace"];
    let holds = |object: &Map<String, Value>| names.iter().any(|name| object.contains_key(*name));
    holds(trace) || trace.get("trace").and_then(Value::as_object).is_some_and(holds)
}

fn is_event(value: &Value) -> bool {
    if kind_of(value.get("kind").and_then(Value::as_str)).is_some() {
        return true;
    }
    let has = |name: &str| value.get(name).is_some_and(|member| !member.is_null());
    (has("action") && has("args") && has("source")) || (has("observation") && has("content") && (has("extras") || has("cause")))
}

/// Older evaluations pair an action with its observation.
fn is_history(value: &Value) -> bool {
    is_event(value) || value.as_array().is_some_and(|pair| pair.iter().any(is_event))
}

fn is_openhands_completion(value: &Value) -> bool {
    let has = |name: &str| value.get(name).is_some();
    has("messages") && has("response") && has("kwargs") && has("timestamp")
}

/// Whether the first record is one of many that make a run, each in a file of its own: a completion, or an event.
pub(super) fn is_part(records: Records<impl BufRead>) -> bool {
    let mut bytes = records.filter_map(|piece| match piece {
        Piece::Record { bytes, .. } => Some(bytes),
        Piece::ListStart { .. } | Piece::ListEnd | Piece::Broken { .. } => None,
    });
    bytes.next().and_then(|bytes| of(&bytes)).is_some_and(|record| is_openhands_completion(&record) || is_event(&record))
}

/// Lists of messages look alike as long as nobody calls a tool.
fn message_format(record: &Value) -> Option<Guess> {
    let object = record.as_object()?;
    for name in ["request", "body"] {
        if let Some(guess) = object.get(name).and_then(message_format) {
            return Some(guess);
        }
    }
    if let Some(messages) = ["messages", "input", "output"].iter().find_map(|name| object.get(*name)?.as_array()) {
        if object.get("system").is_some() || object.get("stop_reason").is_some() {
            return Some(Guess::Surely(Format::Anthropic));
        }
        let guesses: Vec<Guess> = messages.iter().filter_map(message_format).collect();
        return guesses.iter().find(|guess| matches!(guess, Guess::Surely(_))).or(guesses.first()).copied();
    }
    if object.get("choices").is_some_and(Value::is_array) {
        return Some(Guess::Surely(Format::OpenAi));
    }
    let kind = object.get("type").and_then(Value::as_str).unwrap_or_default();
    if kind.ends_with("_call") || kind.ends_with("_call_output") {
        return Some(Guess::Surely(Format::OpenAi));
    }
    let role = object.get("role")?.as_str()?;
    if object.get("tool_calls").is_some_and(Value::is_array) || matches!(role, "tool" | "function" | "developer") {
        return Some(Guess::Surely(Format::OpenAi));
    }
    let blocks = object.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let kinds = || blocks.iter().filter_map(|block| block.get("type")?.as_str());
    if kinds().any(|kind| matches!(kind, "tool_use" | "tool_result" | "thinking" | "server_tool_use")) || object.contains_key("stop_reason")
    {
        return Some(Guess::Surely(Format::Anthropic));
    }
    Some(Guess::Perhaps(if kinds().next().is_some_and(|kind| kind == "text") { Format::Anthropic } else { Format::OpenAi }))
}
