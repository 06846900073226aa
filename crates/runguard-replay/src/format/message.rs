//! One message of a conversation with a model, in any of the shapes that are in use.
//!
//! They differ in names, not in what they say: who speaks, what was said, which tools are called, what came of calls. Read are
//! `OpenAI`'s chat messages and response items, Anthropic's blocks, Bedrock's Converse, the parts of OpenTelemetry's
//! conventions, and messages as `LangChain` writes them. So a list that mixes them, as proxies and tracers make it, is read too.

use super::conversation::{Conversation, Spent, ToolCall, ToolResult, Turn, args_of_text};
use super::json::{Map, Text, Value};
use runguard_core::prices::Usage;
use std::borrow::Cow;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Assistant,
    User,
    Tool,
    /// Says nothing that makes a step: instructions, reasoning.
    Other,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Message<'a> {
    pub(super) role: Role,
    pub(super) text: Cow<'a, str>,
    pub(super) calls: Vec<ToolCall>,
    pub(super) answers: Vec<ToolResult<'a>>,
    pub(super) usage: Option<Usage>,
    pub(super) cost: Option<f64>,
    pub(super) model: String,
    pub(super) at_millis: Option<i64>,
    /// One item of a turn, the rest of which follows.
    pub(super) is_item: bool,
}

pub(super) fn text<'a>(object: &'a Map<'_>, names: &[&str]) -> &'a str {
    names.iter().find_map(|name| object.get(name)?.as_str()).unwrap_or_default()
}

fn text_of(object: &Map<'_>, names: &[&str]) -> String {
    text(object, names).to_owned()
}

fn first<'a, 'b>(object: &'a Map<'b>, names: &[&str]) -> Option<&'a Value<'b>> {
    names.iter().find_map(|name| object.get(name).filter(|value| !value.is_null()))
}

/// Arguments, which some write as a value and some as the text of one.
pub(super) fn args(value: Option<&Value<'_>>) -> serde_json::Value {
    match value {
        Some(Value::String(text)) => args_of_text(text),
        Some(value) => value.to_value(),
        None => serde_json::Value::Null,
    }
}

/// A result as text: of blocks their texts, of anything else its JSON.
pub(super) fn result_text<'a>(value: Option<&Value<'a>>) -> Cow<'a, str> {
    let said = |part: &Value<'a>| part_text(part).map_or_else(|| part.to_string().into(), Text::to_cow);
    match value {
        None | Some(Value::Null) => Cow::default(),
        Some(Value::Array(parts)) if parts.iter().any(|part| part_text(part).is_some()) => match parts.as_slice() {
            [part] => said(part),
            parts => parts.iter().map(said).collect::<Vec<_>>().join("\n").into(),
        },
        Some(other) => said(other),
    }
}

/// The text of a block of text.
fn part_text<'a, 'b>(part: &'a Value<'b>) -> Option<&'a Text<'b>> {
    if let Value::String(text) = part {
        return Some(text);
    }
    let part = part.as_object()?;
    match part.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text" | "refusal") => first(part, &["text", "content", "refusal"])?.as_text(),
        // Converse names a block by its only member.
        None if part.len() == 1 => part.get("text")?.as_text(),
        Some(_) | None => None,
    }
}

/// Who speaks, of a message that says so.
pub(super) fn role_of(message: &Value<'_>) -> Option<Role> {
    Some(match message.get("role")?.as_str()? {
        "assistant" | "model" | "ai" => Role::Assistant,
        "user" | "human" => Role::User,
        "tool" | "function" => Role::Tool,
        _ => Role::Other,
    })
}

impl<'a> Message<'a> {
    fn new(role: Role) -> Self {
        Self {
            role,
            text: Cow::default(),
            calls: Vec::new(),
            answers: Vec::new(),
            usage: None,
            cost: None,
            model: String::new(),
            at_millis: None,
            is_item: false,
        }
    }

    /// With texts of its own.
    pub(super) fn into_owned(self) -> Message<'static> {
        let owned = |ToolResult { id, text, failed }: ToolResult<'_>| ToolResult { id, text: text.into_owned().into(), failed };
        Message { text: self.text.into_owned().into(), answers: self.answers.into_iter().map(owned).collect(), ..self }
    }

    /// `None` for what is no message.
    pub(super) fn read(value: &Value<'a>) -> Option<Self> {
        let object = value.as_object()?;
        if let Some(message) = Self::langchain(object) {
            return Some(message);
        }
        if object.get("role").is_none_or(Value::is_null) {
            return Self::item(object);
        }
        let role = role_of(value)?;
        let mut message = Self::new(role);
        message.is_item =
            role == Role::Assistant && text(object, &["type"]) == "message" && object.get("usage").is_none() && is_items(object);
        message.read_body(object);
        Some(message)
    }

    fn read_body(&mut self, object: &Map<'a>) {
        if self.role == Role::Tool && object.get("parts").is_none() && !has_blocks(object) {
            let failed = match text(object, &["status"]) {
                "error" => Some(true),
                "success" => Some(false),
                _ => object.get("is_error").and_then(Value::as_bool),
            };
            // A legacy function's result has its name where a tool's has the call's id; there is one at a time.
            self.answers.push(ToolResult { id: text_of(object, &["tool_call_id"]), text: result_text(object.get("content")), failed });
            return;
        }
        match first(object, &["content", "parts"]) {
            Some(Value::String(text)) => self.text = text.to_cow(),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| self.read_part(part)),
            Some(part @ Value::Object(_)) => self.read_part(part),
            Some(Value::Null | Value::Bool(_) | Value::Number(_)) | None => {}
        }
        for call in object.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            self.calls.extend(tool_call(call));
        }
        if let Some(function) = object.get("function_call").and_then(Value::as_object) {
            self.calls.push(ToolCall { id: String::new(), tool: text_of(function, &["name"]), args: args(function.get("arguments")) });
        }
        self.usage = object
            .get("usage_metadata")
            .and_then(|usage| Usage::from_langchain(&usage.to_value()).ok())
            .or_else(|| usage(object.get("usage")?));
        self.cost = object.get("cost").and_then(Value::as_f64);
        self.model = text_of(object, &["model"]);
    }

    fn read_part(&mut self, part: &Value<'a>) {
        if let Some(text) = part_text(part) {
            if self.text.is_empty() {
                self.text = text.to_cow();
            } else {
                let said = self.text.to_mut();
                said.push('\n');
                said.push_str(text);
            }
            return;
        }
        let Some(object) = part.as_object() else { return };
        let kind = text(object, &["type"]);
        match kind {
            "tool_use" | "server_tool_use" | "mcp_tool_use" | "tool_call" | "tool-call" => self.calls.push(ToolCall {
                id: text_of(object, &["id", "toolCallId"]),
                tool: text_of(object, &["name", "toolName"]),
                args: args(first(object, &["input", "arguments", "args"])),
            }),
            "tool_call_response" | "tool-result" => {
                let output = first(object, &["response", "result", "output"]);
                // The AI SDK says beside the value of which kind it is: `text`, `json`, `error-text`.
                let typed = output.and_then(Value::as_object).filter(|output| output.contains_key("type") && output.contains_key("value"));
                let failed = object.get("is_error").or(object.get("isError")).and_then(Value::as_bool);
                self.answers.push(ToolResult {
                    id: text_of(object, &["id", "toolCallId"]),
                    text: result_text(typed.and_then(|typed| typed.get("value")).or(output)),
                    failed: failed.or_else(|| typed.map(|typed| text(typed, &["type"]).starts_with("error"))),
                });
            }
            _ if kind == "tool_result" || kind.ends_with("_tool_result") => self.answers.push(ToolResult {
                id: text_of(object, &["tool_use_id"]),
                text: result_text(object.get("content")),
                // Left out, it is false: so the API says.
                failed: Some(object.get("is_error").and_then(Value::as_bool).unwrap_or(false)),
            }),
            _ => self.read_converse(object),
        }
    }

    fn read_converse(&mut self, object: &Map<'a>) {
        if let Some(call) = object.get("toolUse").and_then(Value::as_object) {
            self.calls.push(ToolCall { id: text_of(call, &["toolUseId"]), tool: text_of(call, &["name"]), args: args(call.get("input")) });
        }
        if let Some(result) = object.get("toolResult").and_then(Value::as_object) {
            let parts: Vec<Value<'a>> = result.get("content").and_then(Value::as_array).into_iter().flatten().map(json_or_text).collect();
            self.answers.push(ToolResult {
                id: text_of(result, &["toolUseId"]),
                text: result_text(Some(&Value::Array(parts))),
                failed: Some(text(result, &["status"]) == "error"),
            });
        }
    }

    /// An item of `OpenAI`'s responses.
    fn item(object: &Map<'a>) -> Option<Self> {
        let kind = object.get("type")?.as_str()?;
        let id = text_of(object, &["call_id", "id"]);
        let mut message = match kind {
            "reasoning" | "item_reference" => return Some(Self::new(Role::Other)),
            _ if kind.ends_with("_call_output") => {
                let mut message = Self::new(Role::Tool);
                message.answers.push(ToolResult { id, text: result_text(object.get("output")), failed: None });
                return Some(message);
            }
            _ if kind.ends_with("_call") => {
                let mut message = Self::new(Role::Assistant);
                let args = args(first(object, &["arguments", "input", "action", "actions", "operation", "code", "queries"]));
                // A kind of call that has no name is called as its tool is.
                let tool = text_of(object, &["name"]);
                let tool = if tool.is_empty() { kind.trim_end_matches("_call").to_owned() } else { tool };
                message.calls.push(ToolCall { id: id.clone(), tool, args });
                message
            }
            _ => return None,
        };
        message.is_item = true;
        if kind == "mcp_call" {
            // Made by the provider: the result is told with it.
            let error = first(object, &["error"]);
            message.answers.push(ToolResult { id, text: result_text(error.or(object.get("output"))), failed: Some(error.is_some()) });
        }
        Some(message)
    }

    /// As `LangChain` writes them: with a constructor, with data, or flat with a type.
    fn langchain(object: &Map<'a>) -> Option<Self> {
        let class = object.get("id").and_then(Value::as_array).and_then(|id| id.last()?.as_str());
        let (class, body) = match (class, object.get("kwargs").and_then(Value::as_object)) {
            (Some(class), Some(body)) => (class, body),
            _ => (object.get("type")?.as_str()?, object.get("data").and_then(Value::as_object).unwrap_or(object)),
        };
        let role = match class {
            "ai" | "AIMessage" | "AIMessageChunk" => Role::Assistant,
            "human" | "HumanMessage" | "HumanMessageChunk" => Role::User,
            "tool" | "ToolMessage" | "ToolMessageChunk" | "FunctionMessage" => Role::Tool,
            "system" | "SystemMessage" if body.contains_key("content") => Role::Other,
            _ => return None,
        };
        let mut message = Self::new(role);
        message.read_body(body);
        if message.calls.is_empty() {
            let more = body.get("additional_kwargs").and_then(|more| more.get("tool_calls")).and_then(Value::as_array);
            message.calls = more.into_iter().flatten().filter_map(tool_call).collect();
        }
        // Blocks and list say the same calls twice.
        dedup_calls(&mut message.calls);
        let metadata = body.get("response_metadata").and_then(Value::as_object);
        if message.model.is_empty() {
            message.model = metadata.map(|metadata| text_of(metadata, &["model_name", "model"])).unwrap_or_default();
        }
        if message.usage.is_none() {
            message.usage = metadata.and_then(|metadata| usage(first(metadata, &["token_usage", "usage"])?));
        }
        Some(message)
    }

    pub(super) fn spent(&self) -> Spent {
        match (&self.usage, self.cost) {
            (None, None) => Spent::default(),
            (usage, cost) => Spent::of(&self.model, &usage.unwrap_or_default(), cost),
        }
    }
}

fn dedup_calls(calls: &mut Vec<ToolCall>) {
    let mut seen: Vec<String> = Vec::new();
    calls.retain(|call| {
        let known = !call.id.is_empty() && seen.contains(&call.id);
        seen.push(call.id.clone());
        !known
    });
}

fn json_or_text<'a>(part: &Value<'a>) -> Value<'a> {
    part.get("json").map_or_else(|| part.clone(), |json| json.to_string().into())
}

/// Whether a message's content is of the kind that response items have.
fn is_items(object: &Map<'_>) -> bool {
    let parts = object.get("content").and_then(Value::as_array);
    parts.is_some_and(|parts| parts.iter().any(|part| matches!(part.get("type").and_then(Value::as_str), Some("output_text" | "refusal"))))
}

fn has_blocks(object: &Map<'_>) -> bool {
    let parts = object.get("content").and_then(Value::as_array);
    parts.is_some_and(|parts| {
        parts.iter().any(|part| {
            let kind = part.get("type").and_then(Value::as_str);
            kind.is_some_and(|kind| kind == "tool-result" || kind.ends_with("tool_result")) || part.get("toolResult").is_some()
        })
    })
}

/// `OpenAI`'s, the AI SDK's, and `LangChain`'s, whose arguments are a value.
fn tool_call(call: &Value<'_>) -> Option<ToolCall> {
    let call = call.as_object()?;
    let body = first(call, &["function", "custom"]).and_then(Value::as_object).unwrap_or(call);
    let tool = text_of(body, &["name", "toolName"]);
    if tool.is_empty() {
        return None;
    }
    Some(ToolCall { id: text_of(call, &["id", "toolCallId"]), tool, args: args(first(body, &["arguments", "args", "input"])) })
}

/// A report of tokens, whoever made it: the names tell.
pub(super) fn usage(value: &Value<'_>) -> Option<Usage> {
    let object = value.as_object()?;
    let value = &value.to_value();
    let has = |names: &[&str]| names.iter().any(|name| object.contains_key(name));
    let read = if has(&["inputTokens", "outputTokens"]) {
        Usage::from_bedrock(value)
    } else if has(&["promptTokenCount", "totalTokenCount"]) {
        Usage::from_gemini(value)
    } else if has(&["prompt_tokens", "completion_tokens", "input_tokens_details", "prompt_tokens_details", "output_tokens_details"])
        && !has(&["cache_read_input_tokens", "cache_creation_input_tokens"])
    {
        Usage::from_openai(value)
    } else if has(&["prompt_tokens", "completion_tokens"]) {
        // A proxy that tells of Anthropic's caches in OpenAI's words: the prompt has them in it.
        Usage::from_openai(value)
    } else {
        Usage::from_anthropic(value)
    };
    read.ok()
}

/// What a model answered, from whatever a tracer kept of it: a message, several, a response, or only its text.
pub(super) fn answered<'a>(value: &Value<'a>) -> Vec<Message<'a>> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
        Value::String(text) => {
            written(text, answered).unwrap_or_else(|| vec![Message { text: text.to_cow(), ..Message::new(Role::Assistant) }])
        }
        Value::Array(values) => values.iter().flat_map(answered).collect(),
        Value::Object(object) => {
            if let Some(choices) = object.get("choices").and_then(Value::as_array) {
                let message = choices.first().and_then(|choice| Message::read(choice.get("message")?));
                return message.into_iter().collect();
            }
            if let Some(generations) = object.get("generations").and_then(Value::as_array) {
                let first = generations.first().map(|first| first.as_array().and_then(<[_]>::first).unwrap_or(first));
                return first.map(|first| first.get("message").map_or_else(|| answered(first), answered)).unwrap_or_default();
            }
            if let Some(message) = Message::read(value) {
                return vec![message];
            }
            if let Some(inner) = first(object, &["output", "message", "messages", "completion", "response"]) {
                return answered(inner);
            }
            if object.contains_key("content") || object.contains_key("tool_calls") {
                let mut message = Message::new(Role::Assistant);
                message.read_body(object);
                return vec![message];
            }
            object.get("text").map(answered).unwrap_or_default()
        }
    }
}

/// Of a text that is JSON and holds messages, these.
fn written(text: &str, read: impl for<'v> Fn(&Value<'v>) -> Vec<Message<'v>>) -> Option<Vec<Message<'static>>> {
    let inner = Value::parse(text.as_bytes()).ok().filter(|inner| matches!(inner, Value::Object(_) | Value::Array(_)))?;
    let messages = owned(read(&inner));
    (!messages.is_empty()).then_some(messages)
}

/// What a model was asked. Every question repeats the conversation so far; what came after the model's last word is news, and
/// only that is kept.
pub(super) fn asked<'a>(value: &Value<'a>) -> Vec<Message<'a>> {
    fn all<'a>(value: &Value<'a>) -> Vec<Message<'a>> {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
            Value::String(text) => written(text, all).unwrap_or_else(|| vec![Message { text: text.to_cow(), ..Message::new(Role::User) }]),
            // What the model said before is not read at all: it is most of a long conversation.
            Value::Array(values) => {
                let news = values.iter().rposition(|value| role_of(value) == Some(Role::Assistant)).unwrap_or(0);
                values.iter().skip(news).flat_map(all).collect()
            }
            Value::Object(object) => Message::read(value)
                .map(|message| vec![message])
                .or_else(|| first(object, &["messages", "input", "inputs"]).map(all))
                .unwrap_or_default(),
        }
    }
    let mut messages = all(value);
    let news = messages.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |last| last + 1);
    messages.split_off(news)
}

/// The report of tokens and the model's name beside an answer.
pub(super) fn usage_of_response(response: &Value<'_>) -> (Option<Usage>, String) {
    let model = response.get("model").and_then(Value::as_str).unwrap_or_default();
    (response.get("usage").and_then(usage), model.to_owned())
}

/// Messages that outlive their record.
pub(super) fn owned(messages: Vec<Message<'_>>) -> Vec<Message<'static>> {
    messages.into_iter().map(Message::into_owned).collect()
}

/// Hears messages one by one and tells the conversation of whole turns.
#[derive(Debug, Default)]
pub(super) struct Ear {
    /// Of items, the turn so far.
    turn: Option<Turn<'static>>,
}

impl Ear {
    /// Gives how many results belong to no open call.
    pub(super) fn hear(&mut self, conversation: &mut Conversation, message: Message<'_>) -> usize {
        if !message.model.is_empty() {
            conversation.run.model.clone_from(&message.model);
        }
        let spent = message.spent();
        let Message { role, text, calls, answers, at_millis, is_item, .. } = message;
        let told = |conversation: &mut Conversation| answers.iter().filter(|answer| !conversation.answer(answer)).count();
        match role {
            Role::Assistant => {
                let turn = Turn { text, calls, spent, at_millis, answer: Cow::default() };
                if is_item {
                    self.add(turn);
                    if !answers.is_empty() {
                        self.flush(conversation);
                    }
                } else {
                    self.flush(conversation);
                    conversation.turn(&turn);
                }
                told(conversation)
            }
            Role::User | Role::Tool => {
                self.flush(conversation);
                let strays = told(conversation);
                if role == Role::User && !text.trim().is_empty() {
                    if answers.is_empty() { conversation.reply(&text) } else { conversation.said_beside_results(&text) }
                }
                strays
            }
            Role::Other => 0,
        }
    }

    fn add(&mut self, item: Turn<'_>) {
        let turn = self.turn.get_or_insert_default();
        turn.say(&item.text);
        turn.calls.extend(item.calls);
        turn.at_millis = turn.at_millis.or(item.at_millis);
    }

    /// The calls of a turn may be what was lost: its words alone would be a message that never was.
    pub(super) fn gap(&mut self) {
        self.turn = self.turn.take().filter(|turn| !turn.calls.is_empty());
    }

    pub(super) fn flush(&mut self, conversation: &mut Conversation) {
        if let Some(turn) = self.turn.take() {
            conversation.turn(&turn);
        }
    }
}
