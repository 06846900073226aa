//! OpenTelemetry spans in OTLP's JSON, by the conventions for generative AI.
//!
//! A run is a conversation (`gen_ai.conversation.id`) or, where none is named, a trace. Spans of `execute_tool` are calls, those
//! of a model's operations are turns; spans of agents only name the agent, because what they count, their children count as
//! well. The conventions of `OpenInference` are read too, also where spans hang in each other (`child_spans`) and attributes are
//! plain (`span_attributes`); so are the spans of Vercel's AI SDK (`ai.operationId`) and the observations of Langfuse's SDK
//! (`langfuse.observation.type`). Everything else in a trace (HTTP, databases) is no step, but where nothing else was found that is
//! told. The spans that `RunGuard` itself sends tell of decisions: they are read as its log is, see [`super::decision_log`].

use super::conversation::{Spent, ToolCall, nanos_of};
use super::decision_log::{Decided, Session};
use super::grouped::Grouped;
use super::json::{Map, Value};
use super::langfuse;
use super::message::{answered, args, asked, owned, result_text};
use super::spans::{Span, Spans, Telling, What};
use super::{Out, Reader};
use runguard_core::GuardName;
use runguard_core::ledger::Act;
use runguard_core::prices::Usage;
use runguard_core::row::Row;
use runguard_guards::logged::Spending;
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Otlp {
    runs: Grouped<Spans>,
    sessions: Grouped<Session>,
    /// Spans that were read, and of them those that tell of a model, a tool, an agent or a decision.
    read: u64,
    understood: u64,
}

/// What is said of a file whose spans all tell of something else.
const UNDERSTOOD: &str = "OpenTelemetry's conventions for generative AI (gen_ai.operation.name), OpenInference (openinference.span.kind), \
                          Traceloop (traceloop.span.kind), the AI SDK (ai.operationId), Langfuse's SDK (langfuse.observation.type) and \
                          RunGuard's own spans (runguard.guard)";

type Attributes<'a> = Map<'a>;

/// OTLP's typed values, as plain ones.
fn plain<'a>(value: &Value<'a>) -> Value<'a> {
    let Some((kind, value)) = value.as_object().and_then(|object| object.iter().next()) else { return value.clone() };
    match kind {
        // Whole numbers of 64 bits are written as texts.
        "intValue" | "int_value" => {
            value.as_str().and_then(|text| text.parse::<i64>().ok()).map_or_else(|| value.clone(), |number| Value::Number(number.into()))
        }
        "arrayValue" | "array_value" => Value::Array(list(value, "values").map(plain).collect()),
        "kvlistValue" | "kvlist_value" => Value::Object(attributes(list(value, "values"))),
        _ => value.clone(),
    }
}

fn attributes<'a, 'b: 'a>(pairs: impl Iterator<Item = &'a Value<'b>>) -> Attributes<'b> {
    pairs.filter_map(|pair| Some((pair.get("key")?.as_text()?.to_cow(), plain(pair.get("value")?)))).collect()
}

fn list<'a, 'b>(value: &'a Value<'b>, name: &str) -> impl Iterator<Item = &'a Value<'b>> + use<'a, 'b> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// A member under its JSON name or its protobuf one.
fn member<'a, 'b>(value: &'a Value<'b>, name: &str, other: &str) -> Option<&'a Value<'b>> {
    value.get(name).or_else(|| value.get(other))
}

fn text<'a>(attributes: &'a Attributes<'_>, names: &[&str]) -> &'a str {
    names.iter().find_map(|name| attributes.get(name)?.as_str()).unwrap_or_default()
}

fn nanos(span: &Value<'_>) -> Option<i128> {
    if let Some(at) = span.get("timestamp").and_then(Value::as_str) {
        return nanos_of(at);
    }
    unix_nanos(member(span, "startTimeUnixNano", "start_time_unix_nano")?)
}

fn unix_nanos(nanos: &Value<'_>) -> Option<i128> {
    nanos.as_i64().map(i128::from).or_else(|| nanos.as_str()?.parse().ok()).filter(|nanos| *nanos > 0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tool,
    Model,
    Agent,
    /// Of Langfuse's SDK, by the name that its export has for it.
    Observation(&'static str),
}

fn kind_of(attributes: &Attributes<'_>) -> Option<Kind> {
    match text(attributes, &["gen_ai.operation.name"]) {
        "execute_tool" => return Some(Kind::Tool),
        "chat" | "text_completion" | "generate_content" => return Some(Kind::Model),
        "invoke_agent" | "create_agent" | "invoke_workflow" => return Some(Kind::Agent),
        _ => {}
    }
    // OpenInference and Traceloop name the kind of a span in their own words.
    match text(attributes, &["openinference.span.kind", "traceloop.span.kind"]).to_lowercase().as_str() {
        "tool" => Some(Kind::Tool),
        "llm" => Some(Kind::Model),
        "agent" | "workflow" => Some(Kind::Agent),
        _ if attributes.contains_key("gen_ai.tool.call.arguments") => Some(Kind::Tool),
        _ => kind_of_ai_sdk(text(attributes, &["ai.operationId"])).or_else(|| {
            let observed = text(attributes, &["langfuse.observation.type"]).to_lowercase();
            if observed == "agent" { Some(Kind::Agent) } else { langfuse::type_of_span(&observed).map(Kind::Observation) }
        }),
    }
}

/// `ai.generateText` goes around its questions to a model, `ai.generateText.doGenerate`, and counts what they count.
fn kind_of_ai_sdk(operation: &str) -> Option<Kind> {
    if operation == "ai.toolCall" {
        Some(Kind::Tool)
    } else if [".doGenerate", ".doStream"].iter().any(|end| operation.ends_with(end)) {
        Some(Kind::Model)
    } else {
        ["ai.generate", "ai.stream"].iter().any(|start| operation.starts_with(start)).then_some(Kind::Agent)
    }
}

fn failure(span: &Value<'_>, attributes: &Attributes<'_>) -> Option<String> {
    let status = span.get("status");
    let code = status.and_then(|status| status.get("code")).or_else(|| span.get("status_code"));
    let is_error =
        code.is_some_and(|code| code.as_i64() == Some(2) || matches!(code.as_str(), Some("STATUS_CODE_ERROR" | "Error" | "ERROR")));
    let kind = text(attributes, &["error.type"]);
    if !is_error && kind.is_empty() {
        return None;
    }
    let told = status.and_then(|status| status.get("message")).or_else(|| span.get("status_message"));
    let message = told.and_then(Value::as_str).filter(|message| !message.is_empty());
    let exception = || {
        list(span, "events").find_map(|event| {
            let plain = event.get("Attributes").and_then(Value::as_object).cloned();
            plain.unwrap_or_else(|| attributes_of(event)).get("exception.message")?.as_str().map(str::to_owned)
        })
    };
    Some(message.map(str::to_owned).or_else(exception).unwrap_or_else(|| kind.to_owned()))
}

fn attributes_of<'a>(value: &Value<'a>) -> Attributes<'a> {
    attributes(list(value, "attributes"))
}

fn what(kind: Kind, span: &Value<'_>, attributes: &Attributes<'_>) -> Option<What> {
    let failed = failure(span, attributes);
    let name = member(span, "name", "span_name").and_then(Value::as_str).unwrap_or_default();
    match kind {
        Kind::Agent => None,
        Kind::Observation(kind) => langfuse::what_of_span(kind, name, attributes, failed),
        Kind::Tool => {
            let named = text(attributes, &["gen_ai.tool.name", "tool.name", "traceloop.entity.name", "ai.toolCall.name"]);
            let tool = if named.is_empty() { name.trim_start_matches("execute_tool ") } else { named };
            let first = |names: &[&str]| names.iter().find_map(|name| attributes.get(name)).cloned();
            let given =
                first(&["gen_ai.tool.call.arguments", "input.value", "tool.parameters", "traceloop.entity.input", "ai.toolCall.args"]);
            // Without its arguments a call is like no other: nothing shall look repeated that may not be.
            let unknown = || json!({"unknown": member(span, "spanId", "span_id").map(Value::to_value)});
            let result = first(&["gen_ai.tool.call.result", "output.value", "traceloop.entity.output"]);
            // The AI SDK writes every result as JSON, a text too.
            let result =
                result.or_else(|| Some(args(attributes.get("ai.toolCall.result").filter(|result| !result.is_null()).map(Some)?).into()));
            let result = result.map(|result| result_text(Some(&result)).into_owned());
            Some(What::Tool {
                call: ToolCall {
                    id: text(attributes, &["gen_ai.tool.call.id", "ai.toolCall.id"]).to_owned(),
                    tool: tool.to_owned(),
                    args: given.map_or_else(unknown, |given| args(Some(&given))),
                },
                result: result.filter(|result| !result.is_empty() || failed.is_none()).or_else(|| failed.clone()),
                failed: Some(failed.is_some()),
            })
        }
        Kind::Model => {
            let model = text(attributes, &["gen_ai.response.model", "gen_ai.request.model", "llm.model_name"]).to_owned();
            let messages = |flat: &str, names: &[&str]| {
                flattened(attributes, flat).or_else(|| names.iter().find_map(|name| attributes.get(name)).cloned()).unwrap_or_default()
            };
            let input = ["gen_ai.input.messages", "gen_ai.prompt", "input.value", "ai.prompt.messages"];
            let output = ["gen_ai.output.messages", "gen_ai.completion", "output.value"];
            let said = || answer_of_ai_sdk(attributes).unwrap_or_else(|| messages("llm.output_messages.", &output));
            Some(What::Model {
                asked: owned(asked(&messages("llm.input_messages.", &input))),
                answered: if failed.is_some() { Vec::new() } else { owned(answered(&said())) },
                spent: spent(&model, attributes),
                model,
            })
        }
    }
}

/// The AI SDK puts what was said and what was called into attributes of their own.
fn answer_of_ai_sdk<'a>(attributes: &Attributes<'a>) -> Option<Value<'a>> {
    let said = ["ai.response.text", "ai.response.object"].iter().find_map(|name| attributes.get(name)).cloned();
    let calls = attributes.get("ai.response.toolCalls").map(|calls| args(Some(calls)).into());
    let members = [("content", said), ("tool_calls", calls)].into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
    let message: Map<'a> = members.collect();
    (message.len() > 0).then_some(Value::Object(message))
}

/// Messages as `OpenInference` writes them, a member an attribute: `llm.output_messages.0.message.tool_calls.0.tool_call.function.name`.
fn flattened<'a>(attributes: &Attributes<'a>, prefix: &str) -> Option<Value<'a>> {
    let mut messages: BTreeMap<usize, Flat<'a>> = BTreeMap::new();
    for (name, value) in attributes.iter() {
        let Some((index, rest)) = name.strip_prefix(prefix).and_then(|rest| rest.split_once(".message.")) else { continue };
        let Ok(index) = index.parse() else { continue };
        let Some(value) = value.as_text() else { continue };
        let message: &mut Flat<'a> = messages.entry(index).or_default();
        match rest.split_once('.') {
            None => message.plain.push((rest.to_owned().into(), Value::String(value.clone()))),
            Some(("tool_calls", rest)) => {
                let Some((call, member)) = rest.split_once(".tool_call.") else { continue };
                let Ok(call) = call.parse() else { continue };
                let call: &mut Members<'_> = message.calls.entry(call).or_default();
                call.push((member.trim_start_matches("function.").to_owned().into(), Value::String(value.clone())));
            }
            Some(("contents", rest)) if rest.ends_with(".message_content.text") => message.texts.push(value.to_cow()),
            Some(_) => {}
        }
    }
    let whole = |message: Flat<'a>| {
        let mut whole: Map<'_> = message.plain.into_iter().collect();
        if !message.texts.is_empty() {
            whole.insert("content", message.texts.join("\n").into());
        }
        whole.insert(
            "tool_calls",
            Value::Array(message.calls.into_values().map(|call| Value::Object(call.into_iter().collect())).collect()),
        );
        Value::Object(whole)
    };
    let mut told: Vec<Flat<'a>> = Vec::with_capacity(messages.len());
    for message in messages.into_values() {
        match told.last_mut() {
            Some(last) if last.goes_on_with(&message) => last.calls = message.calls,
            _ => told.push(message),
        }
    }
    (!told.is_empty()).then(|| Value::Array(told.into_iter().map(whole).collect()))
}

type Members<'a> = Vec<(Cow<'a, str>, Value<'a>)>;

#[derive(Default)]
struct Flat<'a> {
    plain: Members<'a>,
    texts: Vec<Cow<'a, str>>,
    calls: BTreeMap<usize, Members<'a>>,
}

impl Flat<'_> {
    fn plain(&self, name: &str) -> &str {
        self.plain.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// The words of a turn and its calls are items of a response, and each may be told as a message. Words and again words are
    /// two choices.
    fn goes_on_with(&self, next: &Self) -> bool {
        let is_wordless = next.texts.is_empty() && next.plain("content").is_empty();
        self.calls.is_empty() && !next.calls.is_empty() && is_wordless && self.plain("role") == next.plain("role")
    }
}

/// The conventions count cached tokens as part of the input.
fn spent(model: &str, attributes: &Attributes<'_>) -> Spent {
    let whole = |value: &Value<'_>| value.as_u64().or_else(|| value.as_str()?.parse().ok());
    let count = |names: &[&str]| names.iter().find_map(|name| whole(attributes.get(name)?)).unwrap_or(0);
    let input = count(&["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"]);
    let output = count(&["gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"]);
    let cached = [
        "gen_ai.usage.cache_read.input_tokens",
        "llm.token_count.prompt_details.cache_read",
        "ai.usage.inputTokenDetails.cacheReadTokens",
        "ai.usage.cachedInputTokens",
    ];
    let written = [
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_write.input_tokens",
        "llm.token_count.prompt_details.cache_write",
        "ai.usage.inputTokenDetails.cacheWriteTokens",
    ];
    let cached_tokens = count(&cached).min(input);
    let cache_write_tokens = count(&written).min(input - cached_tokens);
    let usage = Usage { cached_tokens, cache_write_tokens, ..Usage::new(input - cached_tokens - cache_write_tokens, output) };
    let cost = ["gen_ai.usage.cost", "operation.cost"].iter().find_map(|name| attributes.get(name)?.as_f64());
    Spent::of(model, &usage, cost)
}

/// What one of our own spans says of a budget.
fn spending(attributes: &Attributes<'_>) -> Spending<'static> {
    let usd = |name: &str| attributes.get(name).and_then(Value::as_f64);
    // Before it was said, what was set aside looked like what was paid for it: only calls that the gateway passed on tell what they used.
    let before = || attributes.contains_key("gen_ai.usage.output_tokens").then_some(Act::Commit);
    Spending {
        act: Act::from_code(text(attributes, &["runguard.act"])).or_else(before),
        model: Some(text(attributes, &["gen_ai.request.model"]).to_owned().into()),
        cost_usd: usd("runguard.cost_usd"),
        spent_tokens: attributes.get("runguard.spent_tokens").and_then(Value::as_u64),
        ..Spending::default()
    }
}

fn telling(span: &Value<'_>, attributes: &Attributes<'_>, scope: &str) -> Option<Telling> {
    let ended = unix_nanos(member(span, "endTimeUnixNano", "end_time_unix_nano")?)?;
    let response = text(attributes, &["gen_ai.response.id"]).to_owned();
    (!scope.is_empty()).then(|| Telling { instrumentation: scope.to_owned(), ended, response })
}

/// The program a span tells of, and the instrumentation that made it.
#[derive(Clone, Copy, Default)]
struct Origin<'a> {
    service: &'a str,
    scope: &'a str,
}

fn service_of<'a>(resource: &'a Attributes<'_>) -> &'a str {
    text(resource, &["service.name"])
}

impl Otlp {
    /// A span whose attributes are plain, and those that hang in it, in the order they stand.
    fn nested(&mut self, line: u64, span: &Value<'_>, out: &mut Out) {
        let plain = |name: &str| span.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
        self.span(line, span, plain("span_attributes"), Origin { service: service_of(&plain("resource_attributes")), scope: "" }, out);
        for child in list(span, "child_spans") {
            self.nested(line, child, out);
        }
    }

    fn span(&mut self, line: u64, span: &Value<'_>, attributes: Attributes<'_>, origin: Origin<'_>, out: &mut Out) {
        let id = member(span, "spanId", "span_id").and_then(Value::as_str).unwrap_or_default();
        let trace = member(span, "traceId", "trace_id").and_then(Value::as_str).unwrap_or_default();
        if id.is_empty() || trace.is_empty() {
            out.broken(line, "a span without traceId or spanId");
            return;
        }
        self.read += 1;
        let nanos = nanos(span);
        if attributes.contains_key("runguard.guard") {
            self.understood += 1;
            self.decision(line, &attributes, nanos, out);
            return;
        }
        let Some(kind) = kind_of(&attributes) else { return };
        self.understood += 1;
        let conversation = text(&attributes, &["gen_ai.conversation.id", "session.id"]);
        let run = if conversation.is_empty() { trace } else { conversation };
        let agent = text(&attributes, &["gen_ai.agent.name", "gen_ai.agent.id", "ai.telemetry.functionId", "langfuse.trace.name"]);
        let span = what(kind, span, &attributes).map(|what| Span {
            id: id.to_owned(),
            parent: member(span, "parentSpanId", "parent_span_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            began: nanos.unwrap_or(0),
            at_millis: nanos.and_then(|nanos| i64::try_from(nanos / 1_000_000).ok()),
            telling: telling(span, &attributes, origin.scope),
            what,
        });
        let begin = |out: &Out| Spans::new(out.conversation(run.to_owned(), line));
        self.runs.tell(run, line, out, begin, |run| {
            let known = &mut run.conversation.run.agent;
            if !agent.is_empty() {
                agent.clone_into(known);
            } else if known.is_empty() {
                origin.service.clone_into(known);
            }
            run.spans.extend(span);
        });
    }

    fn decision(&mut self, line: u64, attributes: &Attributes<'_>, nanos: Option<i128>, out: &mut Out) {
        let owned = |name: &str| text(attributes, &[name]).to_owned();
        let row = Row {
            id: owned("runguard.decision_id"),
            guard: text(attributes, &["runguard.guard"]).into(),
            kind: text(attributes, &["runguard.kind"]).into(),
            subject: owned("runguard.subject"),
            ..Row::default()
        };
        let spending = (row.guard == GuardName::Budget).then(|| Box::new(spending(attributes)));
        let at_millis = nanos.and_then(|nanos| i64::try_from(nanos / 1_000_000).ok());
        let decided = Decided { at_millis, row, spending, ..Decided::default() };
        Session::tell(&mut self.sessions, &owned("runguard.tenant"), &owned("gen_ai.conversation.id"), line, decided, out);
    }
}

impl Reader for Otlp {
    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out) {
        let Some(resources) = member(&record, "resourceSpans", "resource_spans") else {
            let spans = record.get("spans").and_then(Value::as_array);
            if let Some(spans) = spans.filter(|_| record.get("trace_id").is_some()) {
                for span in spans {
                    self.nested(line, span, out);
                }
            } else if record.get("span_attributes").is_some() {
                self.nested(line, &record, out);
            } else if member(&record, "traceId", "trace_id").is_some() {
                self.span(line, &record, attributes_of(&record), Origin::default(), out);
            } else if !["resourceMetrics", "resourceLogs"].iter().any(|name| record.get(name).is_some()) {
                out.broken(line, "neither a message of spans (resourceSpans) nor a span");
            }
            return;
        };
        for resource in resources.as_array().into_iter().flatten() {
            let about = resource.get("resource").map(attributes_of).unwrap_or_default();
            let service = service_of(&about);
            let scopes = ["scopeSpans", "scope_spans", "instrumentationLibrarySpans"];
            for of_scope in scopes.iter().flat_map(|name| list(resource, name)) {
                let about = member(of_scope, "scope", "instrumentationLibrary");
                let scope = about.and_then(|about| about.get("name")?.as_str()).unwrap_or_default();
                for span in list(of_scope, "spans") {
                    self.span(line, span, attributes_of(span), Origin { service, scope }, out);
                }
            }
        }
    }

    fn end(&mut self, out: &mut Out) {
        if self.read > 0 && self.understood == 0 {
            out.broken(0, format!("{} spans were read and none of them was understood; understood are {UNDERSTOOD}", self.read));
        }
        self.runs.close_all(out);
        self.sessions.close_all(out);
    }
}
