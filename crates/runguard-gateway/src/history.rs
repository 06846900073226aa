//! What a run did, read from the conversation it sends: calls with what they gave, words with what was answered.
//!
//! Every question carries the whole of it, in the words of its interface. A step is told by hashes, and by an id that stays the same
//! while the conversation grows: the name of the call, and, because some services use names again, how often it has occurred.

#[cfg(test)]
mod as_replayed;
pub(crate) mod nudge;

use crate::api::Api;
use crate::bedrock::Family;
use crate::members::{BorrowedText, Members};
use runguard_core::detect::stall::{Beside, CallEffect, VolatileResults, is_framework, result_fingerprint, says_error};
use runguard_core::fingerprint;
use runguard_guards::input::{MAX_ID_CHARS, MOST_STEPS};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

/// One part of a conversation, whatever its interface.
#[derive(Debug)]
enum Part<'a> {
    Called {
        id: Cow<'a, str>,
        tool: Cow<'a, str>,
        arguments: &'a str,
        /// By the provider: what it gave follows at once.
        is_made_there: bool,
    },
    Gave {
        id: Cow<'a, str>,
        result: Cow<'a, str>,
        /// As the interface says it; nothing where it has no field for it, or it was left out.
        is_error: Option<bool>,
    },
    /// The model, without a call.
    Said(Cow<'a, str>),
    User(Cow<'a, str>),
    /// In the user's name, in one message with what tools gave.
    Beside(String),
}

/// A call that an answer asked for, and that has given nothing yet: by its name at the provider, as the guard takes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OpenCall {
    pub(crate) id: String,
    step: Map<String, Value>,
}

/// The answer that a question follows, where the provider keeps what was said.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before<'a> {
    /// Its name, or whatever it is known by.
    pub(crate) name: &'a str,
    pub(crate) calls: &'a [OpenCall],
    /// The hash of its words, where it has no call.
    pub(crate) said: Option<&'a str>,
}

/// What of a step says which others stand beside it.
const ROUND: &str = "round";

/// The hash of what an answer says, where it asks for no call.
pub(crate) fn said(output: &str) -> Option<String> {
    let mut said = None;
    for part in responses(output) {
        match part {
            Part::Called { is_made_there: false, .. } => return None,
            Part::Said(text) => said = Some(fingerprint::hex(result_fingerprint(&text))),
            Part::Called { .. } | Part::Gave { .. } | Part::User(_) | Part::Beside(_) => {}
        }
    }
    said
}

/// By what an answer is found again in a conversation that has it: of its first call or its first words, the surest first.
pub(crate) fn marks(items: &str) -> Vec<String> {
    for item in each::<Item<'_>>(items) {
        let kind = item.kind.0.as_ref();
        if kind.ends_with("_call") && !item.call_id.0.is_empty() {
            return vec![format!("call\0{}\0{}", item.call_id.0, fingerprint::hex(arguments_fingerprint(item.arguments())))];
        }
        let by_id = Some(format!("id\0{}", item.id.0)).filter(|_| !item.id.0.is_empty());
        if kind == "item_reference" {
            return by_id.into_iter().collect();
        }
        if item.role.0 == "assistant" {
            let text = item.content.map(|content| text_of(content.get())).unwrap_or_default();
            return by_id.into_iter().chain([format!("said\0{}", fingerprint::hex(result_fingerprint(&text)))]).collect();
        }
    }
    Vec::new()
}

/// Whether what is asked has an answer in it already, or anything that came of one.
pub(crate) fn goes_on(input: &str) -> bool {
    each::<Item<'_>>(input).into_iter().any(|item| {
        let kind = item.kind.0.as_ref();
        item.role.0 == "assistant" || !(kind.is_empty() || kind == "message")
    })
}

/// The calls that an answer of this name asks for, by its output or a part of it; `first` is the first one of the parts before.
pub(crate) fn calls(answer: &str, output: &str, first: Option<&OpenCall>) -> Vec<OpenCall> {
    let mut round = first.and_then(|call| call.step.get(ROUND)?.as_str()).map(str::to_owned);
    let mut calls = Vec::new();
    for part in responses(output) {
        let Part::Called { id, tool, arguments, is_made_there: false } = part else { continue };
        // Names of calls may be used again; those of answers are not.
        let step_id = |args: u64| fingerprint::hex(xxh3_64(&[answer.as_bytes(), id.as_bytes(), &args.to_le_bytes()].join(&b"\0"[..])));
        let round = round.get_or_insert_with(|| fingerprint::hex(xxh3_64(format!("{answer}\0{id}").as_bytes()))).clone();
        calls.push(OpenCall { step: called(&tool, arguments, step_id, |_| round), id: id.into_owned() });
    }
    calls
}

/// A call as the guard takes it, without what it gave.
fn called(tool: &str, arguments: &str, id: impl FnOnce(u64) -> String, round: impl FnOnce(&str) -> String) -> Map<String, Value> {
    let tool: String = tool.chars().take(MAX_ID_CHARS).collect();
    let (args, does) = (arguments_fingerprint(arguments), effect_of(&tool, arguments).text());
    let id = id(args);
    let mut step = Map::new();
    step.insert(ROUND.into(), round(&id).into());
    step.insert("id".into(), id.into());
    step.insert("tool".into(), if tool.trim().is_empty() { "tool".into() } else { tool.into() });
    step.insert("args".into(), fingerprint::hex(args).into());
    if !does.is_empty() {
        step.insert("does".into(), does.into());
    }
    step
}

/// The steps of a conversation, oldest first, as the guard takes them.
pub(crate) fn steps(api: Api, body: &Members<'_>, before: Before<'_>, volatile: &VolatileResults) -> Vec<Value> {
    let parts = match api {
        Api::Chat | Api::Invoke(Family::Chat | Family::GptOss | Family::Mistral) => body.get("messages").map(chat),
        Api::Messages | Api::Invoke(Family::Anthropic) => body.get("messages").map(messages),
        Api::Responses => body.get("input").map(responses),
        Api::Converse | Api::Invoke(Family::Nova) => body.get("messages").map(converse),
        Api::Completions
        | Api::Embeddings
        | Api::Invoke(
            Family::Titan | Family::Llama | Family::Cohere | Family::TitanEmbeddings | Family::CohereEmbeddings | Family::Unknown,
        ) => None,
    };
    tell(before, parts.unwrap_or_default(), volatile)
}

/// The items of a list that can be read so. Mostly all of them can: then the list is gone through once.
fn each<'a, T: Deserialize<'a>>(list: &'a str) -> Vec<T> {
    serde_json::from_str(list).unwrap_or_else(|_| {
        let items: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
        items.into_iter().filter_map(|item| serde_json::from_str(item.get()).ok()).collect()
    })
}

/// What is no flag says nothing.
fn or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_bool())
}

/// What is no text is none: one odd member must not hide the message, nor one odd message the others.
fn or_nothing<'de: 'a, 'a, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BorrowedText<'a>, D::Error> {
    let said: &'de RawValue = Deserialize::deserialize(deserializer)?;
    Ok(serde_json::from_str(said.get()).unwrap_or_default())
}

#[derive(Deserialize)]
struct ChatMessage<'a> {
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    role: BorrowedText<'a>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<ChatCall<'a>>>,
    #[serde(borrow, default)]
    tool_call_id: Option<BorrowedText<'a>>,
    /// The interface has no such field; frameworks send it all the same.
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    status: BorrowedText<'a>,
    #[serde(default, deserialize_with = "or_none")]
    is_error: Option<bool>,
}

impl ChatMessage<'_> {
    fn is_error(&self) -> Option<bool> {
        match self.status.0.as_ref() {
            "error" => Some(true),
            "success" => Some(false),
            _ => self.is_error,
        }
    }
}

#[derive(Deserialize)]
struct ChatCall<'a> {
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    id: BorrowedText<'a>,
    #[serde(borrow, default)]
    function: Option<ChatFunction<'a>>,
    #[serde(borrow, default)]
    custom: Option<ChatFunction<'a>>,
}

#[derive(Deserialize)]
struct ChatFunction<'a> {
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    name: BorrowedText<'a>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
}

fn chat(messages: &str) -> Vec<Part<'_>> {
    let messages: Vec<ChatMessage<'_>> = each(messages);
    let mut parts = Vec::with_capacity(messages.len());
    for message in messages {
        let text = message.content.map(|content| text_of(content.get())).unwrap_or_default();
        match message.role.0.as_ref() {
            "assistant" => {
                let calls = message.tool_calls.unwrap_or_default();
                if calls.is_empty() && !text.is_empty() {
                    parts.push(Part::Said(text));
                }
                for call in calls {
                    let Some(function) = call.function.or(call.custom) else { continue };
                    let arguments = function.arguments.or(function.input).map_or("null", RawValue::get);
                    parts.push(Part::Called { id: call.id.0, tool: function.name.0, arguments, is_made_there: false });
                }
            }
            "tool" | "function" => {
                let is_error = message.is_error();
                let id = message.tool_call_id.unwrap_or_default().0;
                parts.push(Part::Gave { id, result: text, is_error });
            }
            "user" => parts.push(Part::User(text)),
            _ => {}
        }
    }
    parts
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    role: BorrowedText<'a>,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, default, rename = "type", deserialize_with = "or_nothing")]
    kind: BorrowedText<'a>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    id: BorrowedText<'a>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    name: BorrowedText<'a>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    tool_use_id: BorrowedText<'a>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "or_none")]
    is_error: Option<bool>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    text: BorrowedText<'a>,
}

fn messages(messages: &str) -> Vec<Part<'_>> {
    let messages: Vec<Message<'_>> = each(messages);
    let mut parts = Vec::with_capacity(messages.len());
    for message in messages {
        let content = message.content.get();
        if content.starts_with('"') {
            parts.push(words(&message.role.0, text_of(content).into_owned()));
            continue;
        }
        let blocks: Vec<Block<'_>> = each(content);
        let mut text = String::new();
        let mut has_calls = false;
        for block in blocks {
            match block.kind.0.as_ref() {
                "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                    has_calls = true;
                    let arguments = block.input.map_or("null", RawValue::get);
                    parts.push(Part::Called { id: block.id.0, tool: block.name.0, arguments, is_made_there: false });
                }
                "text" => say(&mut text, &block.text.0),
                _ if !block.tool_use_id.0.is_empty() => {
                    has_calls = true;
                    let result = block.content.map(|content| text_of(content.get())).unwrap_or_default();
                    // Left out, it is false: so the API says.
                    parts.push(Part::Gave { id: block.tool_use_id.0, result, is_error: Some(block.is_error == Some(true)) });
                }
                _ => {}
            }
        }
        parts.extend(words_of_blocks(&message.role.0, text, has_calls));
    }
    parts
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConverseBlock<'a> {
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    text: BorrowedText<'a>,
    #[serde(borrow, default)]
    tool_use: Option<ConverseCall<'a>>,
    #[serde(borrow, default)]
    tool_result: Option<ConverseResult<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConverseCall<'a> {
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    tool_use_id: BorrowedText<'a>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    name: BorrowedText<'a>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConverseResult<'a> {
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    tool_use_id: BorrowedText<'a>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    status: BorrowedText<'a>,
}

fn converse(messages: &str) -> Vec<Part<'_>> {
    let messages: Vec<Message<'_>> = each(messages);
    let mut parts = Vec::with_capacity(messages.len());
    for message in messages {
        let blocks: Vec<ConverseBlock<'_>> = each(message.content.get());
        let mut text = String::new();
        let mut has_calls = false;
        for block in blocks {
            say(&mut text, &block.text.0);
            has_calls |= block.tool_use.is_some() || block.tool_result.is_some();
            if let Some(call) = block.tool_use {
                let arguments = call.input.map_or("null", RawValue::get);
                parts.push(Part::Called { id: call.tool_use_id.0, tool: call.name.0, arguments, is_made_there: false });
            }
            if let Some(gave) = block.tool_result {
                let result = gave.content.map(|content| text_of(content.get())).unwrap_or_default();
                parts.push(Part::Gave {
                    id: gave.tool_use_id.0,
                    result,
                    // Left out, it is none: so the API says.
                    is_error: Some(gave.status.0 == "error"),
                });
            }
        }
        parts.extend(words_of_blocks(&message.role.0, text, has_calls));
    }
    parts
}

/// This too, on a line of its own.
fn say(said: &mut String, more: &str) {
    if !said.is_empty() && !more.is_empty() {
        said.push('\n');
    }
    said.push_str(more);
}

fn words(role: &str, text: String) -> Part<'static> {
    if role == "assistant" { Part::Said(text.into()) } else { Part::User(text.into()) }
}

/// What a message says with its blocks. Beside calls, words are their reason.
fn words_of_blocks(role: &str, text: String, has_calls: bool) -> Option<Part<'static>> {
    match (has_calls, role) {
        _ if text.is_empty() => None,
        (false, _) => Some(words(role, text)),
        (true, "assistant") => None,
        (true, _) => Some(Part::Beside(text)),
    }
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default, rename = "type", deserialize_with = "or_nothing")]
    kind: BorrowedText<'a>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    id: BorrowedText<'a>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    role: BorrowedText<'a>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    call_id: BorrowedText<'a>,
    #[serde(borrow, default, deserialize_with = "or_nothing")]
    name: BorrowedText<'a>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    action: Option<&'a RawValue>,
    /// The same of other kinds of calls.
    #[serde(borrow, default)]
    actions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    operation: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

impl<'a> Item<'a> {
    /// Whether it is a call that the provider makes itself: what it gave is told with it.
    fn is_made_there(&self) -> bool {
        self.kind.0 == "mcp_call"
    }

    /// Whether it is a call that is told with what it gave, now or later.
    fn is_call(&self) -> bool {
        self.kind.0.ends_with("_call") && (!self.call_id.0.is_empty() || self.is_made_there())
    }

    fn arguments(&self) -> &'a str {
        let said = [self.arguments, self.input, self.action, self.actions, self.operation];
        said.into_iter().flatten().next().map_or("null", RawValue::get)
    }

    /// A kind of call that has no name is called as its tool is.
    fn tool(&self) -> Cow<'a, str> {
        if !self.name.0.is_empty() {
            return self.name.0.clone();
        }
        match &self.kind.0 {
            Cow::Borrowed(kind) => kind.trim_end_matches("_call").into(),
            Cow::Owned(kind) => kind.trim_end_matches("_call").to_owned().into(),
        }
    }
}

fn responses(input: &str) -> Vec<Part<'_>> {
    if input.starts_with('"') {
        return vec![Part::User(text_of(input))];
    }
    let items: Vec<Item<'_>> = each(input);
    let mut parts = Vec::with_capacity(items.len());
    for item in items {
        let kind = item.kind.0.as_ref();
        if kind.ends_with("_call_output") {
            let result = item.output.map(|output| text_of(output.get())).unwrap_or_default();
            parts.push(Part::Gave { id: item.call_id.0, result, is_error: None });
        } else if item.is_call() {
            let (tool, arguments, is_made_there) = (item.tool(), item.arguments(), item.is_made_there());
            let gave = [item.error, item.output].map(|gave| gave.filter(|gave| gave.get() != "null"));
            let id = if item.call_id.0.is_empty() { item.id.0 } else { item.call_id.0 };
            parts.push(Part::Called { id: id.clone(), tool, arguments, is_made_there });
            if is_made_there {
                let result = gave[0].or(gave[1]).map(|gave| text_of(gave.get())).unwrap_or_default();
                parts.push(Part::Gave { id, result, is_error: Some(gave[0].is_some()) });
            }
        } else if let Some(content) = item.content.map(|content| text_of(content.get())).filter(|text| !text.is_empty()) {
            match item.role.0.as_ref() {
                "assistant" => parts.push(Part::Said(content)),
                "user" => parts.push(Part::User(content)),
                _ => {}
            }
        }
    }
    parts
}

/// The words of a content: a text, or a list of parts.
fn text_of(content: &str) -> Cow<'_, str> {
    if content.starts_with('"') {
        return serde_json::from_str::<BorrowedText<'_>>(content).unwrap_or_default().0;
    }
    let mut out = String::new();
    if let Ok(Value::Array(parts)) = serde_json::from_str::<Value>(content) {
        for part in parts {
            match part.get("text").and_then(Value::as_str) {
                Some(text) => say(&mut out, text),
                // An image is what it is.
                None => say(&mut out, &part.to_string()),
            }
        }
    } else if content != "null" {
        out.push_str(content);
    }
    out.into()
}

/// Arguments by what they say: text that is JSON is compared as JSON.
fn arguments_fingerprint(arguments: &str) -> u64 {
    let inside = unquoted(arguments);
    match serde_json::from_str::<&RawValue>(&inside) {
        Ok(json) => xxh3_64(fingerprint::of_json(json).as_bytes()),
        Err(_) => xxh3_64(inside.as_bytes()),
    }
}

/// What the call does, by the same arguments.
fn effect_of(tool: &str, arguments: &str) -> CallEffect {
    CallEffect::of(tool, &unquoted(arguments))
}

/// Arguments as JSON: some interfaces write them as a text.
fn unquoted(arguments: &str) -> Cow<'_, str> {
    serde_json::from_str::<BorrowedText<'_>>(arguments).map_or(Cow::Borrowed(arguments), |text| text.0)
}

fn tell(before: Before<'_>, parts: Vec<Part<'_>>, volatile: &VolatileResults) -> Vec<Value> {
    let mut occurrences: HashMap<u64, u32> = HashMap::new();
    let mut id_of = |words: &[&[u8]]| {
        let name = xxh3_64(&words.join(&b"\0"[..]));
        let occurrence = occurrences.entry(name).or_default();
        *occurrence += 1;
        fingerprint::hex(name.wrapping_add(u64::from(*occurrence)))
    };
    // Calls wait for what they give; one that is still open was not made by the model that is asked now.
    let mut open: HashMap<String, (usize, Map<String, Value>)> = HashMap::new();
    let mut told: Vec<Option<Value>> = Vec::new();
    for call in before.calls {
        told.push(None);
        open.insert(call.id.clone(), (told.len() - 1, call.step.clone()));
    }
    let mut said: Option<Cow<'_, str>> = None;
    let mut said_before = before.said;
    let mut beside = Beside::default();
    let mut round = String::new();
    let mut was_call = false;
    for part in parts {
        let is_call = matches!(part, Part::Called { .. });
        let begins_round = is_call && !was_call;
        was_call = is_call;
        match part {
            Part::Called { id, tool, arguments, is_made_there: _ } => {
                let step_id = |args: u64| id_of(&[b"call", id.as_bytes(), tool.as_bytes(), &args.to_le_bytes()]);
                let step = called(&tool, arguments, step_id, |step_id| {
                    // Known by its first call, not by its place: a conversation may lose its beginning.
                    if begins_round {
                        step_id.clone_into(&mut round);
                    }
                    round.clone()
                });
                told.push(None);
                open.insert(id.into_owned(), (told.len() - 1, step));
            }
            Part::Gave { id, result, is_error } => {
                let Some((place, mut step)) = open.remove(id.as_ref()) else { continue };
                let outcome = volatile.outcome_of_text(&result, is_error.unwrap_or_else(|| says_error(&result)));
                for (name, print) in [("result", outcome.result), ("error", outcome.error)] {
                    step.extend(print.map(|print| (name.into(), fingerprint::hex(print).into())));
                }
                told[place] = Some(Value::Object(step));
            }
            Part::Said(text) => (said, said_before) = (Some(text), None),
            Part::Beside(text) => {
                // Told once: who says the same again with every result is no person.
                told.extend(beside.person(&text).map(|words| Some(json!({"id": id_of(&[b"beside", &words.to_le_bytes()]), "user": true}))));
            }
            Part::User(text) => {
                let (said, said_before, is_framework) = (said.take(), said_before.take(), is_framework(&text));
                if let Some(said) = said_before.filter(|_| is_framework) {
                    let id = id_of(&[b"said", before.name.as_bytes(), said.as_bytes(), text.as_bytes()]);
                    told.push(Some(json!({"id": id, "said": said, "result": fingerprint::hex(result_fingerprint(&text))})));
                } else if let Some(said) = said.filter(|_| is_framework) {
                    let id = id_of(&[b"said", said.as_bytes(), text.as_bytes()]);
                    let (said, answered) = (fingerprint::hex(result_fingerprint(&said)), fingerprint::hex(result_fingerprint(&text)));
                    told.push(Some(json!({"id": id, "said": said, "result": answered})));
                } else {
                    // Who says the same again, behind another answer, has spoken again.
                    let id = if before.name.is_empty() {
                        id_of(&[b"user", text.as_bytes()])
                    } else {
                        id_of(&[b"user", before.name.as_bytes(), text.as_bytes()])
                    };
                    told.push(Some(json!({"id": id, "user": true})));
                }
            }
        }
    }
    let told: Vec<Value> = told.into_iter().flatten().collect();
    // Earlier ones were told before.
    let beyond = told.len().saturating_sub(MOST_STEPS);
    told.into_iter().skip(beyond).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(api: Api, body: &Value) -> Vec<Value> {
        let text = body.to_string();
        steps(api, &Members::read(text.as_bytes()).unwrap(), Before::default(), VolatileResults::NONE)
    }

    fn calls_of(steps: &[Value]) -> Vec<(&str, bool)> {
        steps.iter().filter_map(|step| Some((step.get("tool")?.as_str()?, step.get("error").is_some()))).collect()
    }

    #[test]
    fn what_is_volatile_by_settings_is_no_part_of_a_result() {
        let volatile = VolatileResults::of(["etag"]).unwrap();
        let result = |etag: &str, volatile: &VolatileResults| {
            let body = json!({"messages": [
                {"role": "user", "content": "Find it"},
                {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": format!("{{\"rows\": 3, \"etag\": \"{etag}\"}}")}]});
            let text = body.to_string();
            steps(Api::Chat, &Members::read(text.as_bytes()).unwrap(), Before::default(), volatile).remove(1)["result"].clone()
        };
        assert_eq!(result("a1", &volatile), result("b2", &volatile));
        assert_ne!(result("a1", VolatileResults::NONE), result("b2", VolatileResults::NONE));
    }

    #[test]
    fn the_same_conversation_is_read_from_every_interface() {
        let chat = of(
            Api::Chat,
            &json!({"messages": [
                {"role": "system", "content": "Be."}, {"role": "user", "content": "Find it"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{\"q\": \"a\", \"n\": 1}"}},
                    {"id": "c2", "type": "function", "function": {"name": "read", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "nothing found"},
                {"role": "tool", "tool_call_id": "c2", "content": "Error: no such file"}]}),
        );
        let messages = of(
            Api::Messages,
            &json!({"messages": [
                {"role": "user", "content": "Find it"},
                {"role": "assistant", "content": [{"type": "text", "text": "Let me."},
                    {"type": "tool_use", "id": "c1", "name": "search", "input": {"n": 1, "q": "a"}},
                    {"type": "tool_use", "id": "c2", "name": "read", "input": {}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "nothing found"}]},
                    {"type": "tool_result", "tool_use_id": "c2", "is_error": true, "content": "Error: no such file"}]}]}),
        );
        let responses = of(
            Api::Responses,
            &json!({"input": [
                {"role": "user", "content": "Find it"},
                {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{\"q\":\"a\",\"n\":1}"},
                {"type": "function_call", "call_id": "c2", "name": "read", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "nothing found"},
                {"type": "function_call_output", "call_id": "c2", "output": "Error: no such file"}]}),
        );
        assert_eq!(calls_of(&chat), [("search", false), ("read", true)]);
        assert_eq!(chat, messages);
        assert_eq!(chat, responses);
        assert_eq!(chat[0]["user"], json!(true));
        assert_eq!(chat[1]["round"], chat[2]["round"], "side by side");
    }

    #[test]
    fn what_the_interface_says_of_a_result_counts_for_more_than_its_words() {
        let of_flag = |flag: Value| {
            let result = json!({"type": "tool_result", "tool_use_id": "c1", "is_error": flag, "content": "ERROR 2026-11-17 disk full"});
            let call = json!({"type": "tool_use", "id": "c1", "name": "read_log", "input": {}});
            calls_of(&of(
                Api::Messages,
                &json!({"messages": [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]}),
            ))[0]
                .1
        };
        assert_eq!([of_flag(json!(true)), of_flag(json!(false)), of_flag(json!(null))], [true, false, false], "left out, it is false");
    }

    #[test]
    fn a_step_keeps_its_id_while_the_conversation_grows_and_the_same_call_again_is_another() {
        let turn = |id: &str| {
            [
                json!({"role": "assistant", "tool_calls": [{"id": id, "function": {"name": "search", "arguments": "{}"}}]}),
                json!({"role": "tool", "tool_call_id": id, "content": "x"}),
            ]
        };
        let conversation = |ids: &[&str]| of(Api::Chat, &json!({"messages": ids.iter().flat_map(|id| turn(id)).collect::<Vec<_>>()}));
        let (two, three) = (conversation(&["a", "b"]), conversation(&["a", "b", "c"]));
        assert_eq!(two[..], three[..2]);
        let reused = conversation(&["call_0", "call_0", "call_0"]);
        let ids: std::collections::BTreeSet<&str> = reused.iter().map(|step| step["id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), 3);
    }

    #[test]
    fn what_the_provider_keeps_is_put_together_from_answers_and_what_their_calls_gave() {
        let output = json!([{"type": "reasoning"}, {"type": "function_call", "call_id": "call_0", "name": "search", "arguments": "{\"q\":\"a\"}"},
            {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"}]);
        let next = json!({"previous_response_id": "resp_1", "input": [
            {"type": "function_call_output", "call_id": "call_1", "output": "Error: gone"},
            {"type": "function_call_output", "call_id": "call_0", "output": "nothing found"}]});
        let of_answer = |id: &str| {
            let text = next.to_string();
            let calls = calls(id, &output.to_string(), None);
            steps(
                Api::Responses,
                &Members::read(text.as_bytes()).unwrap(),
                Before { name: id, calls: &calls, said: None },
                VolatileResults::NONE,
            )
        };
        let (first, second) = (of_answer("resp_1"), of_answer("resp_2"));
        assert_eq!(calls_of(&first), [("search", false), ("read", true)]);
        assert_eq!(first[0]["round"], first[1]["round"], "side by side");
        assert_eq!(first, of_answer("resp_1"), "tried again it is the same step");
        assert_eq!((&first[0]["args"], &first[0]["result"]), (&second[0]["args"], &second[0]["result"]));
        assert_ne!(first[0]["id"], second[0]["id"], "services use the names of calls again");
        assert_eq!(of(Api::Responses, &next), Vec::<Value>::new(), "of an answer that nobody here has seen");
    }

    #[test]
    fn a_person_who_says_the_same_again_has_spoken_again_and_a_framework_has_not() {
        let said = |name: &str, words: &str, input: &str| {
            let text = json!({"previous_response_id": name, "input": input}).to_string();
            let output = json!([{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]}]).to_string();
            let hash = super::said(&output);
            steps(
                Api::Responses,
                &Members::read(text.as_bytes()).unwrap(),
                Before { name, calls: &[], said: hash.as_deref() },
                VolatileResults::NONE,
            )
            .remove(0)
        };
        let (first, second) = (said("resp_1", "It rains.", "and now?"), said("resp_2", "It rains.", "and now?"));
        assert_eq!((&first["user"], &second["user"]), (&json!(true), &json!(true)));
        assert_ne!(first["id"], second["id"]);
        assert_eq!(first, said("resp_1", "It rains.", "and now?"), "tried again it is the same");
        let observed = said("resp_1", "Calling search", "Observation: nothing");
        assert_eq!((observed.get("user"), observed.get("said").is_some()), (None, true));
        assert_ne!(observed["id"], said("resp_2", "Calling search", "Observation: nothing")["id"]);
    }

    #[test]
    fn an_answer_is_found_again_in_the_conversation_that_has_it() {
        let message = json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]});
        let output = json!([{"type": "reasoning", "id": "rs_1"}, message]);
        let found = marks(&output.to_string());
        assert_eq!(found.len(), 2);
        let shared = |input: Value| {
            assert!(goes_on(&input.to_string()));
            marks(&input.to_string()).into_iter().find(|mark| found.contains(mark))
        };
        assert_eq!(
            shared(json!([{"role": "user", "content": "hi"}, message, {"role": "user", "content": "and?"}])).as_ref(),
            Some(&found[0])
        );
        assert_eq!(shared(json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}])).as_ref(), Some(&found[1]));
        assert_eq!(shared(json!([{"type": "item_reference", "id": "msg_1"}])).as_ref(), Some(&found[0]));
        assert_eq!(shared(json!([{"role": "assistant", "content": "Good bye"}])), None);
        let call =
            |id: &str| json!([{"type": "function_call", "id": "fc_1", "call_id": id, "name": "search", "arguments": "{}"}]).to_string();
        assert_eq!(marks(&call("call_1")), marks(&call("call_1")));
        assert_ne!(marks(&call("call_1")), marks(&call("call_2")));
        assert!(
            !goes_on("\"hi\"")
                && !goes_on("[{\"role\":\"user\",\"content\":\"hi\"},{\"type\":\"message\",\"role\":\"developer\",\"content\":\"x\"}]")
        );
    }

    #[test]
    fn what_is_acted_on_in_a_page_is_told_without_what_is_typed() {
        let typed = |text: &str, element: &str| {
            let arguments = json!({"element": "Search", "ref": element, "text": text}).to_string();
            let call = json!({"id": "a", "type": "function", "function": {"name": "browser_type", "arguments": arguments}});
            let told = json!({"messages": [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "page"}]});
            of(Api::Chat, &told)[0]["does"].as_str().map(str::to_owned)
        };
        assert!(typed("shoes", "e3").is_some_and(|does| does.starts_with("acts ")));
        assert_eq!(typed("shoes", "e3"), typed("boots", "e3"));
        assert_ne!(typed("shoes", "e3"), typed("shoes", "e4"));
        let clicked = |x: u64| {
            let told = json!({"input": [
                {"type": "computer_call", "call_id": "c", "action": {"type": "click", "x": x, "y": 2, "button": "left"}},
                {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "data:,"}},
            ]});
            of(Api::Responses, &told)[0]["does"].as_str().map(str::to_owned)
        };
        assert!(clicked(1).is_some() && clicked(1) == clicked(1) && clicked(1) != clicked(2));
    }

    #[test]
    fn a_person_who_speaks_beside_a_result_is_heard_and_a_reminder_is_not() {
        let turn = |number: usize, words: &str| {
            let call = json!({"type": "tool_use", "id": format!("c{number}"), "name": "search", "input": {}});
            let gave = json!({"type": "tool_result", "tool_use_id": format!("c{number}"), "content": "nothing"});
            let said = json!({"type": "text", "text": words});
            let content = if words.is_empty() { json!([gave]) } else { json!([gave, said]) };
            [
                json!({"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]}),
                json!({"role": "user", "content": content}),
            ]
        };
        let people = |words: &[&str]| {
            let messages: Vec<Value> = words.iter().enumerate().flat_map(|(number, words)| turn(number, words)).collect();
            of(Api::Messages, &json!({"messages": messages})).iter().map(|step| step.get("user").is_some()).collect::<Vec<_>>()
        };
        assert_eq!(people(&["", "No, look elsewhere.", ""]), [false, false, true, false]);
        assert_eq!(people(&["", "<system-reminder>7 left</system-reminder>", ""]), [false; 3]);
        assert_eq!(people(&["9 steps left", "8 steps left", "7 steps left"]), [false, true, false, false], "a reminder is heard once");
        let converse = json!({"messages": [
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "f", "input": {}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": [{"text": "x"}]}}, {"text": "Stop that."}]}]});
        assert_eq!(of(Api::Converse, &converse).last().unwrap()["user"], json!(true));
    }

    #[test]
    fn words_are_followed_where_tools_are_only_words() {
        let flat = |rounds: usize| {
            let mut messages = vec![json!({"role": "user", "content": "Task"})];
            for _ in 0..rounds {
                messages.push(json!({"role": "assistant", "content": "Calling tools: search(rust)"}));
                messages.push(json!({"role": "user", "content": "Observation: nothing"}));
            }
            of(Api::Chat, &json!({"messages": messages}))
        };
        let said: Vec<Value> = flat(4).into_iter().filter(|step| step.get("said").is_some()).collect();
        assert_eq!(said.len(), 4);
        assert!(said.windows(2).all(|pair| pair[0]["said"] == pair[1]["said"] && pair[0]["id"] != pair[1]["id"]));
        let person = json!({"messages": [{"role": "assistant", "content": "Shall I go on?"}, {"role": "user", "content": "yes"}]});
        assert!(of(Api::Chat, &person).iter().all(|step| step.get("said").is_none()), "people may say the same again");
    }

    #[test]
    fn a_call_without_a_result_and_odd_things_are_no_steps() {
        assert_eq!(
            of(Api::Chat, &json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]})),
            Vec::<Value>::new()
        );
        for odd in [json!({"messages": 7}), json!({"messages": [[], 1]}), json!({"messages": [{"role": "tool"}]}), json!({})] {
            assert_eq!(calls_of(&of(Api::Chat, &odd)), []);
            assert_eq!(calls_of(&of(Api::Messages, &odd)), []);
        }
        assert_eq!(calls_of(&of(Api::Responses, &json!({"input": [1, {"type": "reasoning"}]}))), []);
        let odd = json!({"messages": [{"role": null}, {"id": null, "role": "user", "content": 3},
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "a", "content": null}]});
        assert_eq!(calls_of(&of(Api::Chat, &odd)), [("f", false)], "one odd message hides no other");
        let odd = json!({"messages": [{"role": "assistant", "status": 1, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "a", "status": 200, "content": "x"}]});
        assert_eq!(calls_of(&of(Api::Chat, &odd)), [("f", false)], "one odd member hides no message");
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_reading(text in "[\\[\\]{}\",:a-z0-9\\\\ ]{0,80}") {
            for read in [chat, messages, responses, converse] {
                tell(Before::default(), read(&text), VolatileResults::NONE);
                marks(&text);
                goes_on(&text);
            }
            text_of(&text);
            arguments_fingerprint(&text);
        }
    }
}
