//! Chat completions: `OpenAI`, and the many servers that speak like it, each a little otherwise.
//!
//! What a server adds is ignored, what it leaves out is not missed, and a thing said in any of the known ways is understood.
//! Only the end is asked for strictly: an answer counts as whole when a reason for its end or the end mark was seen, or when the stream
//! was closed properly behind something that can be one.

use super::http::{Http, below, told_error};
use super::json::{JsonWriter, object_or_empty};
use super::sse::{self, Growing};
use super::{BoxFuture, ErrorKind, Finish, MOST_CALLS, Provider, ProviderError, Reply, Request};
use crate::message::{Block, Message, Role, ToolCall};
use crate::settings::ProviderSettings;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use runguard_core::prices::{ServiceTier, Usage};
use runguard_http::events::Event;
use serde_json::{Map, Value};

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
        let mut json = JsonWriter::with_capacity(body_bytes(request));
        json.raw("{");
        json.string_field("model", &self.model_id);
        json.field("messages");
        json.raw("[");
        if let Some(system) = request.system.filter(|system| !system.is_empty()) {
            json.raw(r#"{"role":"system""#);
            json.string_field("content", system);
            json.raw("}");
        }
        for message in request.messages {
            match message.role {
                Role::User => write_user(&mut json, message),
                Role::Assistant => self.write_assistant(&mut json, message),
            }
        }
        json.raw("]");
        if !request.tools.is_empty() {
            json.field("tools");
            json.raw("[");
            for tool in request.tools {
                json.next();
                json.raw(r#"{"type":"function","function":{"#);
                json.string_field("name", &tool.name);
                json.string_field("description", &tool.description);
                json.field("parameters");
                json.value(&tool.input_schema);
                json.raw("}}");
            }
            json.raw("]");
        }
        json.field(&self.max_tokens_field);
        json.value(&request.max_tokens);
        json.field("stream");
        json.value(&self.streaming);
        if self.streaming && !self.extra.contains_key("stream_options") {
            json.field("stream_options");
            json.raw(r#"{"include_usage":true}"#);
        }
        if let Some(temperature) = self.temperature
            && !self.extra.contains_key("temperature")
        {
            json.field("temperature");
            json.value(&temperature);
        }
        // A server that refuses a field of ours is spared it with `field = false`.
        for (name, value) in self.extra.iter().filter(|(name, value)| *name != "stream_options" || value.is_object()) {
            json.field(name);
            json.value(value);
        }
        json.raw("}");
        json.into_bytes()
    }

    fn write_assistant(&self, json: &mut JsonWriter, message: &Message) {
        let has_text = texts(message).next().is_some();
        let has_calls = message.tool_calls().next().is_some();
        if !has_text && !has_calls {
            return;
        }
        json.next();
        json.raw(r#"{"role":"assistant","content":"#);
        if has_text {
            json.joined(texts(message));
        } else {
            json.raw("null");
        }
        if has_calls {
            if self.sends_thoughts {
                json.field("reasoning_content");
                json.joined(message.content.iter().filter_map(thought));
            }
            json.field("tool_calls");
            json.raw("[");
            for call in message.tool_calls() {
                write_call(json, call);
            }
            json.raw("]");
        }
        json.raw("}");
    }
}

/// Results first, each as a message of its own, as every call must be answered before anything else is said.
fn write_user(json: &mut JsonWriter, message: &Message) {
    for block in &message.content {
        match block {
            Block::ToolResult(result) => {
                json.next();
                json.raw(r#"{"role":"tool""#);
                json.string_field("tool_call_id", &result.id);
                json.string_field("content", &result.text);
                json.raw("}");
            }
            Block::Text { .. } | Block::Thinking { .. } | Block::ToolCall(_) | Block::Opaque { .. } => {}
        }
    }
    if texts(message).next().is_some() {
        json.next();
        json.raw(r#"{"role":"user","content":"#);
        json.joined(texts(message));
        json.raw("}");
    }
}

fn write_call(json: &mut JsonWriter, call: &ToolCall) {
    json.next();
    json.raw("{");
    json.string_field("id", &call.id);
    json.raw(r#","type":"function","function":{"#);
    json.string_field("name", &call.name);
    json.string_field("arguments", object_or_empty(&call.arguments));
    json.raw("}}");
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
