//! Anthropic's messages.
//!
//! The service is strict where chat completions are loose: roles take turns, results come before words, no text is empty,
//! arguments are objects. All of that is done while the body is written. The answer comes as blocks that begin, grow and end,
//! whole or streamed; a whole answer is read as blocks that begin with all they have.

use super::http::{Http, below, told_error};
use super::json::{bytes_of, object_or_empty};
use super::openai::{body_bytes, check_extra, secret};
use super::sse::{self, Growing};
use super::{BoxFuture, ErrorKind, Finish, Provider, ProviderError, Reply, Request};
use crate::message::{Block, Message, Role};
use crate::settings::ProviderSettings;
use crate::tool::ToolSpec;
use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use runguard_core::prices::{Usage, raise_counts};
use runguard_http::events::Event;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

const DEFAULT_BASE: &str = "https://api.anthropic.com";
const VERSION: &str = "2023-06-01";
/// Fields that the loop answers for.
const OWN_FIELDS: [&str; 6] = ["model", "messages", "system", "tools", "stream", "max_tokens"];

#[derive(Debug)]
pub struct Anthropic {
    http: Http,
    url: Url,
    headers: HeaderMap,
    /// The name it has at the provider.
    model_id: String,
    /// The name it has in the price table.
    model: String,
    temperature: Option<f64>,
    streaming: bool,
    extra: Map<String, Value>,
}

impl Anthropic {
    pub fn new(settings: &ProviderSettings, key: Option<String>) -> Result<Self, String> {
        check_extra(&settings.extra, OWN_FIELDS.iter().copied())?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("anthropic-version", HeaderValue::from_static(VERSION));
        if let Some(key) = key {
            headers.insert("x-api-key", secret(key.trim())?);
        }
        let base = settings.base_url.as_deref().unwrap_or(DEFAULT_BASE).trim_end_matches('/');
        Ok(Self {
            http: Http::new(settings)?,
            // With `/v1` is how other providers have it, and what people will write.
            url: below(base.strip_suffix("/v1").unwrap_or(base), "/v1/messages")?,
            headers,
            model_id: settings.model.clone(),
            model: settings.priced_as().to_owned(),
            temperature: settings.temperature,
            streaming: settings.streaming,
            extra: settings.extra.clone(),
        })
    }

    fn body(&self, request: &Request<'_>) -> Vec<u8> {
        let body = Body {
            model: &self.model_id,
            max_tokens: request.max_tokens,
            system: request.system.filter(|system| !system.trim().is_empty()),
            messages: sent(request.messages),
            tools: request.tools.iter().map(SentTool::of).collect(),
            stream: self.streaming,
            temperature: self.temperature.filter(|_| !self.extra.contains_key("temperature")),
            extra: &self.extra,
        };
        bytes_of(&body, body_bytes(request))
    }
}

/// What is sent, in the order in which it is. Nothing of the conversation is copied for it.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<&'a str>,
    messages: Vec<SentMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<SentTool<'a>>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct SentTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
}

impl<'a> SentTool<'a> {
    fn of(tool: &'a ToolSpec) -> Self {
        Self { name: &tool.name, description: &tool.description, input_schema: &tool.input_schema }
    }
}

#[derive(Serialize)]
struct SentMessage<'a> {
    role: Role,
    content: Vec<SentBlock<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum SentBlock<'a> {
    Text {
        text: &'a str,
    },
    Thinking {
        thinking: &'a str,
        signature: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: &'a RawValue,
    },
    ToolResult {
        tool_use_id: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        content: &'a str,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
    #[serde(untagged)]
    Opaque(&'a Value),
}

impl<'a> SentBlock<'a> {
    fn of(block: &'a Block) -> Self {
        match block {
            Block::Text { text } => Self::Text { text },
            Block::Thinking { text, signature } => Self::Thinking { thinking: text, signature: signature.as_deref().unwrap_or_default() },
            Block::ToolCall(call) => Self::ToolUse { id: &call.id, name: &call.name, input: object_or_empty(&call.arguments) },
            Block::ToolResult(result) => {
                // An error must say something.
                let content = if result.text.is_empty() && result.is_error { "failed without a word" } else { &result.text };
                Self::ToolResult { tool_use_id: &result.id, content, is_error: result.is_error }
            }
            Block::Opaque { value } => Self::Opaque(value),
        }
    }
}

/// Neighbours of one role become one message; messages of which nothing can be sent are as if they were not there.
fn sent(messages: &[Message]) -> Vec<SentMessage<'_>> {
    let mut sent = Vec::with_capacity(messages.len());
    let mut rest = messages;
    while let Some(first) = rest.first() {
        let role = first.role;
        let belongs = |message: &&Message| message.role == role || !message.content.iter().any(is_sendable);
        let (group, after) = rest.split_at(rest.iter().take_while(belongs).count());
        rest = after;
        let content = || group.iter().flat_map(|message| &message.content).filter(|block| is_sendable(block));
        let is_result = |block: &&Block| matches!(block, Block::ToolResult(_));
        let blocks = content().filter(is_result).chain(content().filter(|block| !is_result(block)));
        let mut content: Vec<SentBlock<'_>> = blocks.map(SentBlock::of).collect();
        // An answer to go on with must not end in a space.
        if let Some(SentBlock::Text { text }) = content.last_mut().filter(|_| role == Role::Assistant) {
            *text = text.trim_end();
        }
        if !content.is_empty() {
            sent.push(SentMessage { role, content });
        }
    }
    sent
}

fn is_sendable(block: &Block) -> bool {
    match block {
        Block::Text { text } => !text.trim().is_empty(),
        Block::Thinking { signature, .. } => signature.as_ref().is_some_and(|signature| !signature.is_empty()),
        Block::ToolCall(_) | Block::ToolResult(_) | Block::Opaque { .. } => true,
    }
}

impl Provider for Anthropic {
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

/// What must be remembered from one event to the next.
#[derive(Debug, Default)]
pub(super) struct Partial {
    /// What was counted so far: the input comes first, the output at the end.
    usage: Map<String, Value>,
    reason: Option<Finish>,
    has_calls: bool,
    /// The block under way is one that only the provider understands.
    is_opaque: bool,
    is_done: bool,
}

impl Growing for Partial {
    fn take_event(&mut self, event: &Event<'_>, value: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        let index = || value.get("index").and_then(Value::as_u64).unwrap_or_default() as usize;
        match value.get("type").and_then(Value::as_str).unwrap_or(&event.name) {
            "message_start" => self.take_usage(value.pointer("/message/usage"), reply),
            "content_block_start" => self.begin_block(index(), value.get("content_block").unwrap_or(&Value::Null), reply)?,
            "content_block_delta" => self.grow_block(index(), value.get("delta").unwrap_or(&Value::Null), reply)?,
            "message_delta" => {
                self.take_usage(value.get("usage"), reply);
                self.take_reason(value.pointer("/delta/stop_reason"));
            }
            "message_stop" => self.is_done = true,
            "error" => return Err(told_error(value)),
            // `content_block_stop`, `ping`, and what may be added.
            _ => {}
        }
        Ok(())
    }

    fn take_whole(&mut self, value: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        if value.get("error").is_some_and(|error| !error.is_null()) {
            return Err(told_error(value));
        }
        let Some(blocks) = value.get("content").and_then(Value::as_array) else {
            return Err(ProviderError::new(ErrorKind::Malformed, "the provider's answer has no `content`: check `provider.base_url`"));
        };
        self.take_usage(value.get("usage"), reply);
        for (index, block) in blocks.iter().enumerate() {
            self.begin_block(index, block, reply)?;
        }
        self.take_reason(value.get("stop_reason"));
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_done
    }

    fn finish(&self) -> Finish {
        match self.reason.unwrap_or(Finish::EndTurn) {
            Finish::EndTurn | Finish::ToolUse if self.has_calls => Finish::ToolUse,
            Finish::EndTurn | Finish::ToolUse => Finish::EndTurn,
            Finish::MaxTokens => Finish::MaxTokens,
            Finish::Refused => Finish::Refused,
        }
    }
}

impl Partial {
    fn begin_block(&mut self, index: usize, block: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        let text_of = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default();
        self.is_opaque = false;
        match text_of("type") {
            "text" => reply.text(text_of("text")),
            "thinking" => {
                // Also when there is none yet: a signature alone must find its own block.
                reply.thinking(text_of("thinking"))?;
                if text_of("signature").is_empty() { Ok(()) } else { reply.signature(text_of("signature")) }
            }
            "tool_use" => {
                self.has_calls = true;
                reply.call(index, text_of("id"), text_of("name"))?;
                match block.get("input") {
                    Some(Value::Object(input)) if !input.is_empty() => reply.arguments(index, &Value::from(input.clone()).to_string()),
                    _ => Ok(()),
                }
            }
            "" => Err(ProviderError::new(ErrorKind::Malformed, "the provider began a block without saying of which type")),
            // Redacted thinking, and what may be added.
            _ => {
                self.is_opaque = true;
                reply.opaque(block.clone())
            }
        }
    }

    fn grow_block(&self, index: usize, delta: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        let text_of = |name: &str| delta.get(name).and_then(Value::as_str).unwrap_or_default();
        match text_of("type") {
            "text_delta" => reply.text(text_of("text")),
            "thinking_delta" => reply.thinking(text_of("thinking")),
            "signature_delta" => reply.signature(text_of("signature")),
            "input_json_delta" if !self.is_opaque => reply.arguments(index, text_of("partial_json")),
            _ => Ok(()),
        }
    }

    /// A report that cannot be read is like none: the loop counts for itself then.
    fn take_usage(&mut self, usage: Option<&Value>, reply: &mut Reply<'_>) {
        raise_counts(&mut self.usage, usage.unwrap_or(&Value::Null));
        let merged = Value::Object(std::mem::take(&mut self.usage));
        if let Ok(usage) = Usage::from_anthropic(&merged) {
            reply.usage(usage);
        }
        if let Value::Object(usage) = merged {
            self.usage = usage;
        }
    }

    fn take_reason(&mut self, reason: Option<&Value>) {
        self.reason = match reason.and_then(Value::as_str) {
            None => self.reason,
            // Both cut the answer off.
            Some("max_tokens" | "model_context_window_exceeded") => Some(Finish::MaxTokens),
            Some("refusal") => Some(Finish::Refused),
            // `end_turn`, `tool_use`, `stop_sequence`, `pause_turn`: the calls themselves decide.
            Some(_) => Some(Finish::EndTurn),
        };
    }
}
