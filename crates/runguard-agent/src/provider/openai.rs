//! Chat completions: `OpenAI`, and the many servers that speak like it, each a little otherwise.
//!
//! What a server adds is ignored, what it leaves out is not missed, and a thing said in any of the known ways is understood.
//! Only the end is asked for strictly: an answer counts as whole when a reason for its end or the end mark was seen, or when the stream
//! was closed properly behind something that can be one.

use super::http::{Http, below, told_error};
use super::json::{bytes_of, object_or_empty};
use super::sse::{self, Growing};
use super::{BoxFuture, ErrorKind, Finish, MOST_CALLS, Provider, ProviderError, Reply, Request};
use crate::message::{Block, Message, Role, ToolCall};
use crate::settings::ProviderSettings;
use crate::tool::ToolSpec;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use runguard_core::prices::{ServiceTier, Usage};
use runguard_http::events::Event;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

const DEFAULT_BASE: &str = "https://api.openai.com/v1";
/// Fields that the loop answers for: with these in `extra` its budgets would not hold, or the answer could not be read.
const OWN_FIELDS: [&str; 7] = ["model", "messages", "tools", "stream", "max_tokens", "max_completion_tokens", "n"];

#[derive(Debug)]
pub struct OpenAi {
    http: Http,
    url: Url,
    headers: HeaderMap,
    /// The name it has at the provider.
    model_id: String,
    /// The name it has in the price table.
    model: String,
    max_tokens_field: String,
    temperature: Option<f64>,
    streaming: bool,
    extra: Map<String, Value>,
    /// `DeepSeek` refuses a conversation in which a message with calls has lost its thoughts; others do not want them.
    sends_thoughts: bool,
}

impl OpenAi {
    pub fn new(settings: &ProviderSettings, key: Option<String>) -> Result<Self, String> {
        let own = OWN_FIELDS.iter().copied().chain([settings.max_tokens_field.as_str()]);
        check_extra(&settings.extra, own)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = key {
            headers.insert(AUTHORIZATION, secret(&format!("Bearer {}", key.trim()))?);
        }
        Ok(Self {
            http: Http::new(settings)?,
            url: below(settings.base_url.as_deref().unwrap_or(DEFAULT_BASE), "/chat/completions")?,
            headers,
            model_id: settings.model.clone(),
            model: settings.priced_as().to_owned(),
            max_tokens_field: settings.max_tokens_field.clone(),
            temperature: settings.temperature,
            streaming: settings.streaming,
            extra: settings.extra.clone(),
            sends_thoughts: settings.model.to_ascii_lowercase().contains("deepseek"),
        })
    }

    fn body(&self, request: &Request<'_>) -> Vec<u8> {
        let mut messages = Vec::with_capacity(request.messages.len() + 1);
        let system = request.system.filter(|system| !system.is_empty());
        messages.extend(system.map(|system| SentMessage::of("system", Some(system.into()))));
        for message in request.messages {
            match message.role {
                Role::User => messages.extend(of_user(message)),
                Role::Assistant => messages.extend(self.of_assistant(message)),
            }
        }
        let body = Body {
            model: &self.model_id,
            messages,
            tools: request.tools.iter().map(SentTool::of).collect(),
            max_tokens: BTreeMap::from([(self.max_tokens_field.as_str(), request.max_tokens)]),
            stream: self.streaming,
            stream_options: (self.streaming && !self.extra.contains_key(STREAM_OPTIONS)).then_some(StreamOptions { include_usage: true }),
            temperature: self.temperature.filter(|_| !self.extra.contains_key("temperature")),
            extra: Extra(&self.extra),
        };
        bytes_of(&body, body_bytes(request))
    }

    fn of_assistant<'a>(&self, message: &'a Message) -> Option<SentMessage<'a>> {
        let content = texts(message).next().map(|_| joined(texts(message)));
        let tool_calls: Vec<SentCall<'_>> = message.tool_calls().map(SentCall::of).collect();
        if content.is_none() && tool_calls.is_empty() {
            return None;
        }
        let thoughts = || joined(message.content.iter().filter_map(thought));
        let reasoning_content = (self.sends_thoughts && !tool_calls.is_empty()).then(thoughts);
        Some(SentMessage { reasoning_content, tool_calls, ..SentMessage::of("assistant", content) })
    }
}

const FUNCTION: &str = "function";
const STREAM_OPTIONS: &str = "stream_options";

/// What is sent, in the order in which it is. Nothing of the conversation is copied for it.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<SentMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<SentTool<'a>>,
    /// Servers have names of their own for it.
    #[serde(flatten)]
    max_tokens: BTreeMap<&'a str, u32>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(flatten)]
    extra: Extra<'a>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// A server that refuses a field of ours is spared it with `field = false`.
struct Extra<'a>(&'a Map<String, Value>);

impl Serialize for Extra<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().filter(|(name, value)| *name != STREAM_OPTIONS || value.is_object()))
    }
}

#[derive(Serialize)]
struct SentTool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: SentSpec<'a>,
}

impl<'a> SentTool<'a> {
    fn of(tool: &'a ToolSpec) -> Self {
        let function = SentSpec { name: &tool.name, description: &tool.description, parameters: &tool.input_schema };
        Self { kind: FUNCTION, function }
    }
}

#[derive(Serialize)]
struct SentSpec<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

#[derive(Serialize)]
struct SentMessage<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    /// Null where there are only calls.
    content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<SentCall<'a>>,
}

impl<'a> SentMessage<'a> {
    fn of(role: &'static str, content: Option<Cow<'a, str>>) -> Self {
        Self { role, tool_call_id: None, content, reasoning_content: None, tool_calls: Vec::new() }
    }
}

#[derive(Serialize)]
struct SentCall<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: CalledFunction<'a>,
}

#[derive(Serialize)]
struct CalledFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl<'a> SentCall<'a> {
    fn of(call: &'a ToolCall) -> Self {
        let function = CalledFunction { name: &call.name, arguments: object_or_empty(&call.arguments).get() };
        Self { id: &call.id, kind: FUNCTION, function }
    }
}

/// Results first, each as a message of its own, as every call must be answered before anything else is said.
fn of_user(message: &Message) -> impl Iterator<Item = SentMessage<'_>> {
    let results = message.content.iter().filter_map(|block| match block {
        Block::ToolResult(result) => {
            Some(SentMessage { tool_call_id: Some(&result.id), ..SentMessage::of("tool", Some(result.text.as_str().into())) })
        }
        Block::Text { .. } | Block::Thinking { .. } | Block::ToolCall(_) | Block::Opaque { .. } => None,
    });
    let said = texts(message).next().map(|_| SentMessage::of("user", Some(joined(texts(message)))));
    results.chain(said)
}

/// Several texts as one, an empty line between them.
fn joined<'a>(mut texts: impl Iterator<Item = &'a str>) -> Cow<'a, str> {
    let first = texts.next().unwrap_or_default();
    match texts.next() {
        None => first.into(),
        Some(second) => [first, second].into_iter().chain(texts).collect::<Vec<_>>().join("\n\n").into(),
    }
}

fn texts(message: &Message) -> impl Iterator<Item = &str> {
    message.content.iter().filter_map(|block| match block {
        Block::Text { text } if !text.is_empty() => Some(text.as_str()),
        Block::Text { .. } | Block::Thinking { .. } | Block::ToolCall(_) | Block::ToolResult(_) | Block::Opaque { .. } => None,
    })
}

fn thought(block: &Block) -> Option<&str> {
    match block {
        Block::Thinking { text, .. } => Some(text),
        Block::Text { .. } | Block::ToolCall(_) | Block::ToolResult(_) | Block::Opaque { .. } => None,
    }
}

/// About as long as the body will be, with room for escapes: growing it would copy all of it.
pub(super) fn body_bytes(request: &Request<'_>) -> usize {
    const EACH: usize = 128;
    const EACH_TOOL: usize = 1024;
    let messages: usize = request.messages.iter().map(|message| message.bytes() + EACH).sum();
    (messages + request.system.map_or(0, str::len)) * 9 / 8 + request.tools.len() * EACH_TOOL + EACH_TOOL
}

/// Fields of the settings' `extra` that cannot be there.
pub(super) fn check_extra<'a>(extra: &Map<String, Value>, mut own: impl Iterator<Item = &'a str>) -> Result<(), String> {
    own.find(|name| extra.contains_key(*name)).map_or(Ok(()), |name| {
        Err(format!(
            "`provider.extra` must not hold `{name}`: the loop sets it itself, from `provider.model`, `provider.max_tokens` and `provider.streaming`"
        ))
    })
}

/// A header that is never shown.
pub(super) fn secret(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| "the provider's key has characters that no key has, such as a line break: check the variable it comes from")?;
    value.set_sensitive(true);
    Ok(value)
}

impl Provider for OpenAi {
    fn model(&self) -> &str {
        &self.model
    }

    fn ask<'a>(&'a self, request: Request<'a>, reply: &'a mut Reply<'_>) -> BoxFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            let body = self.http.post(&self.url, &self.headers, self.body(&request)).await?;
            sse::read::<Partial>(body, self.streaming, reply).await
        })
    }
}

/// What must be remembered from one piece of an answer to the next.
#[derive(Debug, Default)]
pub(super) struct Partial {
    calls: Vec<PartialCall>,
    reason: Option<Finish>,
    refused: bool,
    has_choice: bool,
}

#[derive(Debug)]
struct PartialCall {
    /// The server's number for it, which some leave out, and some give to all.
    number: Option<u64>,
    id: String,
    name: String,
    /// The reply knows of it. A call may be announced before its name is.
    begun: bool,
}

impl Growing for Partial {
    const END_MARK: Option<&'static str> = Some("[DONE]");

    fn take_event(&mut self, _event: &Event<'_>, value: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        self.take(value, reply)
    }

    fn take_whole(&mut self, value: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        self.take(value, reply)?;
        if self.has_choice {
            return Ok(());
        }
        Err(ProviderError::new(ErrorKind::Malformed, "the provider's answer has no `choices`: check `provider.base_url`"))
    }

    fn is_said(&self) -> bool {
        self.reason.is_some()
    }

    fn is_open(&self) -> bool {
        self.calls.iter().any(|call| !call.begun)
    }

    fn finish(&self) -> Finish {
        let has_calls = self.calls.iter().any(|call| call.begun);
        match self.reason.unwrap_or(Finish::EndTurn) {
            Finish::MaxTokens => Finish::MaxTokens,
            Finish::Refused => Finish::Refused,
            Finish::EndTurn | Finish::ToolUse if self.refused => Finish::Refused,
            Finish::EndTurn | Finish::ToolUse if has_calls => Finish::ToolUse,
            Finish::EndTurn | Finish::ToolUse => Finish::EndTurn,
        }
    }
}

impl Partial {
    /// A piece of the answer, or all of it: they differ in the name of one field.
    fn take(&mut self, value: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        if value.get("error").is_some_and(|error| !error.is_null()) || value.get("object").and_then(Value::as_str) == Some("error") {
            return Err(told_error(value));
        }
        let choices = value.get("choices").and_then(Value::as_array);
        let choice = choices.and_then(|choices| choices.iter().find(|choice| choice.get("index").is_none_or(|index| index == 0)));
        // A report that cannot be read is like none: the loop counts for itself then.
        let usage = value.get("usage").filter(|usage| usage.is_object()).or_else(|| choice?.get("usage"));
        if let Some(usage) = usage.and_then(|usage| Usage::from_openai(usage).ok()) {
            let tier = value.get("service_tier").and_then(Value::as_str).map_or_else(ServiceTier::default, ServiceTier::named);
            reply.usage(usage.in_tier(tier));
        }
        let Some(choice) = choice else { return Ok(()) };
        self.has_choice = true;
        if let Some(delta) = choice.get("delta").or_else(|| choice.get("message")) {
            self.take_delta(delta, reply)?;
        }
        match choice.get("finish_reason").and_then(Value::as_str).unwrap_or_default() {
            "" => {}
            "length" => self.reason = Some(Finish::MaxTokens),
            "content_filter" => self.reason = Some(Finish::Refused),
            // The server gave up and says so as if the model had.
            reason @ ("insufficient_system_resource" | "error" | "abort") => {
                let text = format!("the provider broke the answer off ({reason}): try again later");
                return Err(ProviderError::new(ErrorKind::Overloaded, text));
            }
            // `stop` with calls is what some say for `tool_calls`: the calls themselves decide.
            _ => self.reason = Some(Finish::EndTurn),
        }
        Ok(())
    }

    fn take_delta(&mut self, delta: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        let text_of = |name: &str| delta.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        if let Some(thought) = text_of("reasoning_content").or_else(|| text_of("reasoning")) {
            reply.thinking(thought)?;
        }
        match delta.get("content") {
            Some(Value::String(text)) => reply.text(text)?,
            Some(Value::Array(parts)) => {
                for text in parts.iter().filter_map(|part| part.get("text")?.as_str()) {
                    reply.text(text)?;
                }
            }
            _ => {}
        }
        if let Some(refusal) = text_of("refusal") {
            self.refused = true;
            reply.text(refusal)?;
        }
        for piece in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let number = piece.get("index").and_then(Value::as_u64);
            let id = piece.get("id").and_then(Value::as_str).unwrap_or_default();
            self.take_call(number, id, piece.get("function").unwrap_or(&Value::Null), reply)?;
        }
        match delta.get("function_call") {
            Some(function) if function.is_object() => self.take_call(Some(0), "", function, reply),
            _ => Ok(()),
        }
    }

    fn take_call(&mut self, number: Option<u64>, id: &str, function: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(object @ Value::Object(_)) => object.to_string(),
            _ => String::new(),
        };
        let position = self.calls.iter().rposition(|call| call.continues(number, id, name)).unwrap_or(self.calls.len());
        if position == self.calls.len() {
            if position >= MOST_CALLS {
                return Err(ProviderError::new(
                    ErrorKind::Endless,
                    format!("the model asks for more than {MOST_CALLS} calls in one answer"),
                ));
            }
            self.calls.push(PartialCall { number, id: String::new(), name: String::new(), begun: false });
        }
        let call = &mut self.calls[position];
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            name.clone_into(&mut call.name);
        }
        let can_begin = !call.name.is_empty() || !arguments.is_empty();
        if can_begin && !call.begun {
            call.begun = true;
            if call.id.is_empty() {
                let made = format!("call_{:016x}", getrandom::u64().unwrap_or(position as u64));
                reply.call(position, &made, &call.name)?;
            } else {
                reply.call(position, &call.id, &call.name)?;
            }
        }
        if arguments.is_empty() { Ok(()) } else { reply.arguments(position, &arguments) }
    }
}

impl PartialCall {
    /// Whether a piece goes on with this call. Another id is another call, whatever its number; without a number and an id a
    /// name begins a call.
    fn continues(&self, number: Option<u64>, id: &str, name: &str) -> bool {
        let is_same_id = id.is_empty() || self.id.is_empty() || self.id == id;
        let is_same_name = name.is_empty() || self.name.is_empty() || self.name == name;
        match number {
            Some(_) => self.number == number && is_same_id && (is_same_name || self.id == id && !id.is_empty()),
            None if id.is_empty() => name.is_empty(),
            None => self.id == id,
        }
    }
}
