//! Bedrock's Converse API, spoken without the AWS SDK: one signed POST, and an event stream of binary frames.
//!
//! A frame is read only when all of it has come, so that its length is judged once, before anything is kept for it.
//!
//! The answer is whole at `messageStop`. The usage follows in `metadata`; if it gets lost the answer still counts, because
//! asking again would be paid twice.

use super::http::{Body, Http};
use super::{BoxFuture, ErrorKind, Finish, Provider, ProviderError, Reply, Request};
use crate::message::{Block, Message, Role, ToolCall};
use crate::settings::ProviderSettings;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use runguard_core::prices::Usage;
pub use runguard_http::aws::Access;
use runguard_http::aws::frames::{self, Frame};
use runguard_http::aws::{self, ToSign};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt;

#[derive(Debug)]
pub struct Bedrock {
    http: Http,
    url: Url,
    region: String,
    access: Access,
    model: String,
    mode: Mode,
    temperature: Option<f64>,
    extra: Map<String, Value>,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Streaming,
    Whole,
}

impl Bedrock {
    pub fn new(settings: &ProviderSettings, access: Access) -> Result<Self, String> {
        let region = settings.region.clone().unwrap_or_default();
        let is_valid = aws::is_region(&region);
        // A key and an address of its own need no region; a signature always names one.
        let is_needed = settings.base_url.is_none() || access.signs();
        if is_needed && region.is_empty() {
            return Err("Bedrock needs a region: set `provider.region`, AWS_REGION or AWS_DEFAULT_REGION, such as us-east-1".to_owned());
        }
        if is_needed && !is_valid {
            return Err(format!("'{region}' is not an AWS region: `provider.region` is such as us-east-1"));
        }
        let base = settings.base_url.clone().unwrap_or_else(|| aws::bedrock_url(&region));
        let mode = if settings.streaming { Mode::Streaming } else { Mode::Whole };
        let operation = match mode {
            Mode::Streaming => "converse-stream",
            Mode::Whole => "converse",
        };
        let url = format!("{}{}", base.trim_end_matches('/'), aws::model_path(&settings.model, operation));
        let url = Url::parse(&url).map_err(|problem| format!("`provider.base_url` '{base}' is not an address: {problem}"))?;
        if url.host().is_none() || url.cannot_be_a_base() {
            return Err(format!("`provider.base_url` '{base}' names no host"));
        }
        let temperature = settings.temperature;
        let (model, extra) = (settings.model.clone(), settings.extra.clone());
        Ok(Self { http: Http::new(settings)?, url, region, access, model, mode, temperature, extra })
    }

    async fn talk(&self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        let signed = self.signed(self.body(&request).to_string())?;
        let mut body = self.http.send(signed).await.map_err(sharper)?;
        match self.mode {
            Mode::Whole => take_whole(&body.json().await?, reply),
            Mode::Streaming => {
                let mut turn = Turn::default();
                let read = read_stream(&mut body, request.max_tokens, &mut turn, reply).await;
                match (turn.end, read) {
                    (Some(end), _) => end.map(|finish| reply.finish(finish)),
                    (None, Err(problem)) => Err(problem),
                    (None, Ok(())) => reply.end_unmarked(cut()),
                }
            }
        }
    }

    fn body(&self, request: &Request<'_>) -> Value {
        let messages = messages_of(request.messages);
        let mut body = json!({ "messages": messages, "inferenceConfig": {} });
        if let Some(system) = request.system.filter(|text| !text.trim().is_empty()) {
            body["system"] = json!([{ "text": system }]);
        }
        let tools = tools_of(request);
        if !tools.is_empty() {
            body["toolConfig"] = json!({ "tools": tools });
        }
        if let Some(temperature) = self.temperature {
            body["inferenceConfig"]["temperature"] = json!(temperature);
        }
        for (key, value) in &self.extra {
            merge(&mut body[key.as_str()], value);
        }
        // Last, so that nothing can raise what the budget allows.
        merge(&mut body["inferenceConfig"], &json!({ "maxTokens": request.max_tokens }));
        body
    }

    fn signed(&self, body: String) -> Result<reqwest::Request, ProviderError> {
        let unusable = |problem: &dyn fmt::Display| {
            ProviderError::new(
                ErrorKind::Unauthorised,
                format!("the request to Bedrock cannot be signed: {problem}; check the AWS credentials"),
            )
        };
        let mut request = reqwest::Request::new(reqwest::Method::POST, self.url.clone());
        let accepted = match self.mode {
            Mode::Streaming => "application/vnd.amazon.eventstream",
            Mode::Whole => "application/json",
        };
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accepted));
        // `accept` is left out: proxies may change it.
        let headers = [(CONTENT_TYPE.as_str(), "application/json")];
        let to_sign = ToSign { region: &self.region, url: self.url.as_str(), headers: &headers, body: body.as_bytes() };
        for (name, value) in self.access.headers(&to_sign).map_err(|problem| unusable(&problem))? {
            request.headers_mut().insert(name, value);
        }
        *request.body_mut() = Some(body.into());
        Ok(request)
    }
}

impl Provider for Bedrock {
    fn model(&self) -> &str {
        &self.model
    }

    fn ask<'a>(&'a self, request: Request<'a>, reply: &'a mut Reply<'_>) -> BoxFuture<'a, Result<(), ProviderError>> {
        Box::pin(self.talk(request, reply))
    }
}

/// Objects are joined, lists are added to (a `cachePoint` after the system text), all else is replaced.
fn merge(ours: &mut Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (key, value) in theirs {
                merge(ours.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => ours.extend(theirs.iter().cloned()),
        (ours, theirs) => *ours = theirs.clone(),
    }
}

/// Converse takes roles in turn only, and no empty text.
fn messages_of(messages: &[Message]) -> Vec<Value> {
    let mut joined: Vec<(Role, Vec<Value>)> = Vec::new();
    for message in messages {
        let blocks: Vec<Value> = message.content.iter().filter_map(block_of).collect();
        if blocks.is_empty() {
            continue;
        }
        match joined.last_mut() {
            Some((role, content)) if *role == message.role => content.extend(blocks),
            _ => joined.push((message.role, blocks)),
        }
    }
    let role_of = |role| match role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    joined.into_iter().map(|(role, content)| json!({ "role": role_of(role), "content": content })).collect()
}

fn block_of(block: &Block) -> Option<Value> {
    match block {
        Block::Text { text } => (!text.trim().is_empty()).then(|| json!({ "text": text })),
        // Models that sign their thoughts refuse unsigned ones, the others do not ask for them back.
        Block::Thinking { text, signature } => {
            signature.as_ref().map(|signature| json!({ "reasoningContent": { "reasoningText": { "text": text, "signature": signature } } }))
        }
        Block::ToolCall(call) => Some(json!({ "toolUse": { "toolUseId": call.id, "name": call.name, "input": input_of(call) } })),
        Block::ToolResult(result) => {
            let text = if result.text.trim().is_empty() { "(nothing)" } else { result.text.as_str() };
            let status = if result.is_error { "error" } else { "success" };
            Some(json!({ "toolResult": { "toolUseId": result.id, "content": [{ "text": text }], "status": status } }))
        }
        // A block of another provider would be refused.
        Block::Opaque { value } => value.get("reasoningContent").is_some().then(|| value.clone()),
    }
}

/// Converse takes an object and nothing else; what the model wrote instead stays readable for it.
fn input_of(call: &ToolCall) -> Value {
    match call.parsed() {
        Ok(Value::Object(input)) => Value::Object(input),
        Ok(_) | Err(_) => json!({ "arguments": call.arguments }),
    }
}

/// A conversation with calls in it is refused without tools. When no tool is offered, those that were called stand in.
fn tools_of(request: &Request<'_>) -> Vec<Value> {
    let tool = |name: &str, description: &str, schema: &Value| {
        let mut spec = json!({ "name": name, "inputSchema": { "json": schema } });
        if !description.is_empty() {
            spec["description"] = json!(description);
        }
        json!({ "toolSpec": spec })
    };
    if request.tools.is_empty() {
        let called: BTreeSet<&str> = request.messages.iter().flat_map(Message::tool_calls).map(|call| call.name.as_str()).collect();
        let schema = json!({ "type": "object" });
        return called.into_iter().map(|name| tool(name, "Not available.", &schema)).collect();
    }
    request.tools.iter().map(|spec| tool(&spec.name, &spec.description, &spec.input_schema)).collect()
}

/// Frames of an answer are a few hundred bytes; the traces of guardrails make the largest.
const LONGEST_FRAME: usize = 4 * 1024 * 1024;
/// What a token takes on the wire at most: its frame with headers and padding. Bounds streams of frames that say nothing.
const WIRE_BYTES_A_TOKEN: usize = 1024;

#[derive(Debug)]
struct Frames {
    buffer: BytesMut,
    bytes_left: usize,
}

impl Frames {
    fn new(max_tokens: u32) -> Self {
        let bytes_left = (max_tokens as usize).saturating_mul(WIRE_BYTES_A_TOKEN).saturating_add(LONGEST_FRAME);
        Self { buffer: BytesMut::new(), bytes_left }
    }

    fn push(&mut self, bytes: &Bytes) -> Result<(), ProviderError> {
        let left = self.bytes_left.checked_sub(bytes.len());
        let endless = || ProviderError::new(ErrorKind::Endless, "Bedrock's stream goes on far beyond max_tokens: it was closed");
        self.bytes_left = left.ok_or_else(endless)?;
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The next frame, if all of it is there.
    fn next(&mut self) -> Result<Option<Frame>, ProviderError> {
        let Some(frame) = frames::take(&mut self.buffer, LONGEST_FRAME).map_err(|problem| malformed(&problem.to_string()))? else {
            return Ok(None);
        };
        frames::read(frame).map(Some).map_err(|problem| malformed(&problem.to_string()))
    }
}

fn cut() -> ProviderError {
    ProviderError::new(ErrorKind::Cut, "Bedrock's stream ended before the answer did (no messageStop)")
}

/// Puts what comes into the turn and the reply until the stream is over or nothing more is to come.
async fn read_stream(body: &mut Body, max_tokens: u32, turn: &mut Turn, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
    if let Some(kind) = body.header("content-type").filter(|kind| !kind.contains("eventstream")) {
        return Err(malformed(&format!("'{kind}' instead of an event stream; is `provider.base_url` a Bedrock endpoint?")));
    }
    let mut frames = Frames::new(max_tokens);
    while let Some(bytes) = body.chunk().await? {
        frames.push(&bytes)?;
        while let Some(frame) = frames.next()? {
            turn.take_frame(&frame, reply)?;
            if turn.is_over {
                return Ok(());
            }
        }
    }
    // Half a frame was broken off; between two of them the stream was closed.
    if frames.buffer.is_empty() { Ok(()) } else { Err(cut()) }
}

/// Redacted thoughts of one block; more is no thought.
const MOST_REDACTED_BYTES: usize = 1024 * 1024;

/// What must be kept between the events of one answer.
#[derive(Debug, Default)]
struct Turn {
    has_calls: bool,
    /// Comes in pieces that are encoded one by one.
    redacted: Vec<u8>,
    /// What `messageStop` said.
    end: Option<Result<Finish, ProviderError>>,
    /// `metadata` came after it.
    is_over: bool,
}

impl Turn {
    fn take_frame(&mut self, frame: &Frame, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        let header = |name: &str| frames::header(frame, name);
        match header(":message-type") {
            "event" => self.take_event(header(":event-type"), frame.payload(), reply),
            "exception" => {
                let payload: Value = serde_json::from_slice(frame.payload()).unwrap_or_default();
                Err(exception(header(":exception-type"), payload["message"].as_str().unwrap_or_default()))
            }
            "error" => Err(exception(header(":error-code"), header(":error-message"))),
            other => Err(malformed(&format!("a frame of the type '{other}'"))),
        }
    }

    /// Events of other names are of no concern: AWS adds some from time to time.
    fn take_event(&mut self, name: &str, payload: &[u8], reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        let read =
            || serde_json::from_slice::<Value>(payload).map_err(|problem| malformed(&format!("a {name} that is not JSON: {problem}")));
        match name {
            "contentBlockStart" => {
                let event = read()?;
                if let Some(call) = event["start"].get("toolUse") {
                    self.has_calls = true;
                    reply.call(index_of(&event), text_of(call, "toolUseId")?, text_of(call, "name")?)?;
                }
                Ok(())
            }
            "contentBlockDelta" => {
                let event = read()?;
                let delta = &event["delta"];
                if let Some(text) = delta["text"].as_str() {
                    reply.text(text)?;
                }
                if let Some(piece) = delta["toolUse"]["input"].as_str() {
                    reply.arguments(index_of(&event), piece)?;
                }
                self.take_thoughts(&delta["reasoningContent"], reply)
            }
            "contentBlockStop" => self.put_redacted(reply),
            "messageStop" => {
                let event = read()?;
                self.put_redacted(reply)?;
                self.end = Some(finish_of(text_of(&event, "stopReason")?, self.has_calls));
                Ok(())
            }
            "metadata" => {
                take_usage(&read()?["usage"], reply);
                self.is_over = self.end.is_some();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn take_thoughts(&mut self, thoughts: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        let said = |key: &str| thoughts[key].as_str().filter(|text| !text.is_empty());
        if let Some(text) = said("text") {
            reply.thinking(text)?;
        }
        if let Some(signature) = said("signature") {
            reply.signature(signature)?;
        }
        if let Some(piece) = said("redactedContent") {
            let bytes = BASE64_STANDARD.decode(piece).map_err(|problem| malformed(&format!("redacted thoughts: {problem}")))?;
            self.redacted.extend(bytes);
            if self.redacted.len() > MOST_REDACTED_BYTES {
                return Err(ProviderError::new(ErrorKind::Endless, "the model's redacted thoughts have no end: the stream was closed"));
            }
        }
        Ok(())
    }

    fn put_redacted(&mut self, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
        if self.redacted.is_empty() {
            return Ok(());
        }
        let encoded = BASE64_STANDARD.encode(std::mem::take(&mut self.redacted));
        reply.opaque(json!({ "reasoningContent": { "redactedContent": encoded } }))
    }
}

/// The answer of `/converse`: the same content, all at once.
fn take_whole(answer: &Value, reply: &mut Reply<'_>) -> Result<(), ProviderError> {
    let mut turn = Turn::default();
    let content = answer["output"]["message"]["content"].as_array().ok_or_else(|| malformed("an answer without output.message.content"))?;
    for (index, block) in content.iter().enumerate() {
        if let Some(text) = block["text"].as_str() {
            reply.text(text)?;
        }
        if let Some(call) = block.get("toolUse") {
            turn.has_calls = true;
            reply.call(index, text_of(call, "toolUseId")?, text_of(call, "name")?)?;
            reply.arguments(index, &call["input"].to_string())?;
        }
        turn.take_thoughts(&block["reasoningContent"]["reasoningText"], reply)?;
        turn.take_thoughts(&block["reasoningContent"], reply)?;
        turn.put_redacted(reply)?;
    }
    take_usage(&answer["usage"], reply);
    let finish = finish_of(text_of(answer, "stopReason")?, turn.has_calls)?;
    reply.finish(finish);
    Ok(())
}

fn take_usage(usage: &Value, reply: &mut Reply<'_>) {
    match Usage::from_bedrock(usage) {
        Ok(usage) => reply.usage(usage),
        Err(problem) => tracing::warn!(%problem, "Bedrock's usage cannot be read; it is estimated"),
    }
}

fn finish_of(reason: &str, has_calls: bool) -> Result<Finish, ProviderError> {
    match reason {
        "max_tokens" => Ok(Finish::MaxTokens),
        "guardrail_intervened" | "content_filtered" => Ok(Finish::Refused),
        "malformed_model_output" | "malformed_tool_use" => Err(malformed(&format!("what the model wrote cannot be read ({reason})"))),
        "model_context_window_exceeded" => Err(ProviderError::new(
            ErrorKind::ContextTooLong,
            "the model's window was full before its answer ended: lower `context.window`",
        )),
        // Some models say `end_turn` although they call.
        _ if has_calls => Ok(Finish::ToolUse),
        _ => Ok(Finish::EndTurn),
    }
}

/// What the service says in mid-stream, or instead of a stream.
fn exception(name: &str, message: &str) -> ProviderError {
    let kind = match name.to_ascii_lowercase().as_str() {
        "throttlingexception" => ErrorKind::RateLimited,
        "modeltimeoutexception" => ErrorKind::Timeout,
        "accessdeniedexception" => ErrorKind::Unauthorised,
        "validationexception" if is_too_long(message) => ErrorKind::ContextTooLong,
        "validationexception" => ErrorKind::Rejected,
        // internalServerException, serviceUnavailableException, modelStreamErrorException: its trouble, not the request's.
        _ => ErrorKind::Overloaded,
    };
    ProviderError::new(kind, format!("Bedrock broke the answer off with {name}: {message}"))
}

/// The status alone does not tell a prompt that is too long from any other bad request.
fn sharper(mut problem: ProviderError) -> ProviderError {
    if problem.kind == ErrorKind::Rejected && is_too_long(&problem.message) {
        problem.kind = ErrorKind::ContextTooLong;
    }
    problem
}

fn is_too_long(message: &str) -> bool {
    const SIGNS: [&str; 7] = [
        "input is too long",
        "prompt is too long",
        "context limit",
        "context length",
        "context window",
        "too many input tokens",
        "too many total text bytes",
    ];
    let message = message.to_ascii_lowercase();
    SIGNS.iter().any(|sign| message.contains(sign))
}

fn malformed(what: &str) -> ProviderError {
    ProviderError::new(ErrorKind::Malformed, format!("Bedrock sent {what}"))
}

fn index_of(event: &Value) -> usize {
    event["contentBlockIndex"].as_u64().unwrap_or_default() as usize
}

fn text_of<'a>(value: &'a Value, key: &str) -> Result<&'a str, ProviderError> {
    value[key].as_str().ok_or_else(|| malformed(&format!("an event without {key}")))
}
/// What [`read_stream`] does, without a connection.
#[cfg(feature = "fuzzing")]
pub(super) fn read_pieces(pieces: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), ProviderError> {
    let (mut frames, mut turn) = (Frames::new(1000), Turn::default());
    for piece in pieces {
        frames.push(&bytes::Bytes::copy_from_slice(piece))?;
        while let Some(frame) = frames.next()? {
            turn.take_frame(&frame, reply)?;
        }
    }
    // A frame carries checksums that no chance finds: the events inside are read as they are, too.
    for payload in pieces {
        for name in ["contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"] {
            turn.take_event(name, payload, reply)?;
        }
    }
    Ok(())
}

#[cfg(feature = "fuzzing")]
pub(super) fn read_whole(bytes: &[u8], reply: &mut Reply<'_>) -> Result<(), ProviderError> {
    match serde_json::from_slice(bytes) {
        Ok(value) => take_whole(&value, reply),
        Err(_) => Ok(()),
    }
}
