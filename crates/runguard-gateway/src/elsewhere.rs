//! What a provider adds to a question that does not stand in it: items and recordings that it keeps, caches, sources of data, its own words
//! around tools. Each is taken for the most that it can be.

use crate::api::Api;
use crate::bedrock::Family;
use crate::earlier::filed;
use crate::members::{BorrowedText, Members};
use runguard_core::object::Object;
use runguard_core::prices::Prices;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// What a model reads of which nobody here knows how much it is, or which has prices for long prompts.
const LONG_UNSEEN: u64 = 1_000_000;
/// What Anthropic's models are told around tools: 313 to 700 tokens by model and choice.
const AROUND_TOOLS: u64 = 1_000;
/// What they are told of each tool that Anthropic knows by its type: 245 to 1,200 tokens.
const OF_A_KNOWN_TOOL: u64 = 1_500;
/// A spoken answer of a model of which nothing is known.
const LONGEST_SPOKEN: u64 = 16_384;

/// The most tokens that anything may have of which nobody here knows how much it is: as many as the model reads.
pub(crate) fn longest_unseen(model: &str) -> u64 {
    let most = Prices::bundled().longest_prompt(model).unwrap_or(LONG_UNSEEN);
    if Prices::bundled().reads_long_prompts(model) { most.max(LONG_UNSEEN) } else { most }
}

/// What is somewhere else, in documents.
pub(crate) fn documents(api: Api, body: &Members<'_>) -> u64 {
    let has_cache = body.get("cached_content").is_some()
        || ["extra_body", "google"].iter().filter_map(|name| body.get(name)).any(|more| more.contains("\"cached_content\""));
    // A prompt that is stored at the provider is one more, and so is what is found in data of the caller's there.
    let stored = u64::from(api == Api::Responses && body.get("prompt").is_some());
    let sources = u64::from(body.get("data_sources").is_some());
    stored.saturating_add(sources).saturating_add(u64::from(has_cache))
}

/// The items of a list that say which one they are.
fn items_with_ids(list: &str) -> impl Iterator<Item = Object<'_>> {
    // Letters may be written otherwise, too.
    let may_have = list.contains("\"id\"") || list.contains("\\u00");
    let items: Vec<&RawValue> = if may_have { serde_json::from_str(list).unwrap_or_default() } else { Vec::new() };
    items.into_iter().filter_map(|item| serde_json::from_str::<Object<'_>>(item.get()).ok()).filter(|item| has(item, "id"))
}

/// Whether an item says anything there.
fn has(Object(item): &Object<'_>, name: &str) -> bool {
    item.iter().any(|(known, value)| known == name && !matches!(value.get(), "null" | "\"\"" | "[]"))
}

fn kind_of<'a>(Object(item): &Object<'a>) -> &'a str {
    item.iter().find(|(name, _)| name == "type").map_or("", |(_, kind)| kind.get())
}

const THOUGHT: &str = "\"reasoning\"";
const REFERENCE: &str = "\"item_reference\"";

/// Items that a question names and does not carry: the provider has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Referred {
    /// Of any conversation.
    pub(crate) items: Vec<String>,
    /// What was thought: all of one conversation.
    pub(crate) thoughts: Vec<String>,
}

impl Referred {
    /// All of them that can be told apart.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.items.iter().chain(&self.thoughts).map(String::as_str).filter(|name| !name.is_empty())
    }
}

fn name_of(Object(item): &Object<'_>) -> Option<String> {
    let (_, id) = item.iter().find(|(name, _)| name == "id")?;
    Some(serde_json::from_str(id.get()).unwrap_or_else(|_| id.get().to_owned()))
}

/// Of a response's input those that say only which one is meant.
pub(crate) fn referred(input: &str) -> Referred {
    const OWN: [&str; 13] = [
        "content",
        "arguments",
        "input",
        "output",
        "action",
        "actions",
        "operation",
        "queries",
        "code",
        "tools",
        "result",
        "approve",
        "encrypted_content",
    ];
    let is_there = |Object(item): &Object<'_>, name: &str| item.iter().any(|(known, value)| known == name && value.get() != "null");
    let is_twice = |Object(item): &Object<'_>, name: &str| item.iter().filter(|(known, _)| known == name).count() > 1;
    let mut referred = Referred::default();
    for item in items_with_ids(input) {
        // One reader takes the first, another the last: nobody can say which one is meant.
        if is_twice(&item, "id") || is_twice(&item, "type") {
            referred.items.push(String::new());
            continue;
        }
        match kind_of(&item) {
            THOUGHT if has(&item, "encrypted_content") || has(&item, "content") => {}
            THOUGHT => referred.thoughts.extend(name_of(&item)),
            REFERENCE => referred.items.extend(name_of(&item)),
            _ if OWN.iter().any(|name| is_there(&item, name)) => {}
            _ => referred.items.extend(name_of(&item)),
        }
    }
    referred
}

/// What the items of an answer can be referred to by. Of a tool that the provider runs itself an item may hold more than the model wrote.
pub(crate) fn names(output: &str) -> Vec<String> {
    const WRITTEN: [&str; 4] = ["\"message\"", THOUGHT, "\"function_call\"", "\"custom_tool_call\""];
    items_with_ids(output).filter(|item| WRITTEN.contains(&kind_of(item))).filter_map(|item| name_of(&item)).collect()
}

/// An item that came by here.
#[derive(Debug)]
struct KeptItem {
    /// Of the answer that it came with: it is no longer than that.
    tokens: u64,
    /// Whose it is; nobody's where a provider gives several the same name.
    tenant: Option<Arc<str>>,
}

/// Items that came by here, by what their names are filed under.
#[derive(Debug, Default)]
pub(crate) struct KeptItems {
    by_name: HashMap<String, KeptItem>,
    order: VecDeque<String>,
}

impl KeptItems {
    pub(crate) fn remember(&mut self, name: String, tokens: u64, tenant: &Arc<str>) {
        /// More are forgotten, the oldest first.
        const MOST: usize = 100_000;
        if let Some(known) = self.by_name.get_mut(&name) {
            known.tokens = tokens;
            known.tenant.take_if(|owner| owner != tenant);
            return;
        }
        self.by_name.insert(name.clone(), KeptItem { tokens, tenant: Some(Arc::clone(tenant)) });
        self.order.push_back(name);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_name.remove(&oldest);
        }
    }

    /// The first that belongs to another tenant.
    pub(crate) fn of_another<'a>(&self, upstream: &str, tenant: &str, referred: &'a Referred) -> Option<&'a str> {
        let owner = |name: &str| self.by_name.get(&filed(upstream, name))?.tenant.as_deref();
        referred.names().find(|name| owner(name).is_some_and(|owner| owner != tenant))
    }

    /// The most tokens that those have which came by here, and how many documents the others may be.
    pub(crate) fn most(&self, upstream: &str, referred: &Referred) -> (u64, u64) {
        let known = |name: &String| self.by_name.get(&filed(upstream, name)).map(|item| item.tokens);
        let tokens = referred.items.iter().chain(&referred.thoughts).filter_map(known).fold(0, u64::saturating_add);
        let unknown_items = referred.items.iter().filter(|name| known(name).is_none()).count() as u64;
        (tokens, unknown_items + u64::from(referred.thoughts.iter().any(|name| known(name).is_none())))
    }
}

/// Recordings of earlier answers in a chat, which stand there by their names.
pub(crate) fn recordings(api: Api, body: &Members<'_>) -> u64 {
    #[derive(Deserialize)]
    struct Message {
        #[serde(default)]
        audio: Value,
    }
    let messages = body.get("messages").filter(|messages| api == Api::Chat && messages.contains("\"audio\""));
    let messages: Vec<&RawValue> = messages.and_then(|messages| serde_json::from_str(messages).ok()).unwrap_or_default();
    let is_recording = |message: &&RawValue| {
        // One that says it twice is taken for one.
        serde_json::from_str::<Message>(message.get()).map_or(true, |message| message.audio.get("id").is_some())
    };
    messages.iter().filter(|message| is_recording(message)).count() as u64
}

/// What recordings have, each as long as the longest answer.
pub(crate) fn tokens_of_recordings(recordings: u64, longest_of_model: Option<u64>) -> u64 {
    recordings.saturating_mul(longest_of_model.unwrap_or(LONGEST_SPOKEN))
}

/// What a model is told around its tools, where it is Anthropic's.
pub(crate) fn around_tools(api: Api, body: &Members<'_>) -> u64 {
    #[derive(Deserialize)]
    struct Tool<'a> {
        #[serde(borrow, default, rename = "type")]
        kind: Option<BorrowedText<'a>>,
    }
    let more = body.get("additionalModelRequestFields").and_then(|more| Members::read(more.as_bytes()).ok());
    let (tools, has_others) = match api {
        Api::Messages | Api::Invoke(Family::Anthropic) => (body.get("tools"), false),
        Api::Converse => (more.as_ref().and_then(|more| more.get("tools")), body.get("toolConfig").is_some()),
        Api::Chat | Api::Completions | Api::Responses | Api::Embeddings | Api::Invoke(_) => (None, false),
    };
    let tools: Vec<Tool<'_>> = tools.and_then(|tools| serde_json::from_str(tools).ok()).unwrap_or_default();
    let known = tools.iter().filter(|tool| tool.kind.as_ref().is_some_and(|kind| kind.0 != "custom")).count() as u64;
    let around = if has_others || !tools.is_empty() { AROUND_TOOLS } else { 0 };
    known.saturating_mul(OF_A_KNOWN_TOOL).saturating_add(around)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of<T>(body: &Value, read: impl Fn(&Members<'_>) -> T) -> T {
        let text = body.to_string();
        read(&Members::read(text.as_bytes()).unwrap())
    }

    #[test]
    fn an_item_with_a_name_and_nothing_else_is_kept_at_the_provider() {
        let count = |items: Value| {
            let Referred { items, thoughts } = referred(&items.to_string());
            (items.len(), thoughts.len())
        };
        assert_eq!(
            count(json!([{"id": "msg_1"}, {"id": "msg_2", "type": null}, {"id": "msg_3", "type": "message", "role": "user"}])),
            (3, 0)
        );
        assert_eq!(count(json!([{"id": "ig_1", "type": "image_generation_call"}, {"type": "item_reference", "id": "msg_1"}])), (2, 0));
        assert_eq!(count(json!([{"type": "reasoning", "id": "rs_1", "summary": []}])), (0, 1));
        assert_eq!(count(json!([{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}])), (0, 0));
        let whole = json!([{"role": "user", "content": "id"}, {"type": "message", "id": "msg_1", "role": "assistant", "content": []},
            {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": ""},
            {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": ""}]);
        assert_eq!(count(whole), (0, 0));
        assert_eq!(count(json!("id")), (0, 0));
        let hidden = r#"[{"type":"item_reference","\u0069d":"msg_\u0031"}]"#;
        assert_eq!(referred(hidden).items, ["msg_1"], "however it is written");
        let twice = r#"[{"type":"item_reference","id":"a","id":"b"},{"type":"reasoning","type":"item_reference","id":"a"}]"#;
        assert_eq!(referred(twice), Referred { items: vec![String::new(); 2], thoughts: Vec::new() }, "nobody can say which one is meant");
    }

    #[test]
    fn an_item_that_came_by_here_is_no_longer_than_its_answer() {
        let answer = json!([{"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "message", "id": "msg_1", "content": []}]);
        let mut kept = KeptItems::default();
        for name in names(&answer.to_string()) {
            kept.remember(filed("openai", &name), 70, &"ada".into());
        }
        let referred = |items: &[(&str, &str)]| {
            let items: Vec<Value> = items.iter().map(|(kind, id)| json!({"type": kind, "id": id})).collect();
            referred(&json!(items).to_string())
        };
        let both = referred(&[("reasoning", "rs_1"), ("item_reference", "msg_1")]);
        assert_eq!(kept.most("openai", &both), (140, 0));
        assert_eq!(kept.most("azure", &both), (0, 2), "of another provider");
        let of_another = |kept: &KeptItems, upstream: &str, tenant: &str| kept.of_another(upstream, tenant, &both).map(str::to_owned);
        assert_eq!(of_another(&kept, "openai", "ada"), None);
        assert_eq!(of_another(&kept, "openai", "bob").as_deref(), Some("msg_1"));
        assert_eq!(of_another(&kept, "azure", "bob"), None, "of another provider");
        kept.remember(filed("openai", "msg_1"), 70, &"bob".into());
        assert_eq!(of_another(&kept, "openai", "bob").as_deref(), Some("rs_1"), "a name that is given to several is nobody's");
        let more = referred(&[("item_reference", "msg_1"), ("item_reference", "msg_2"), ("item_reference", "msg_3")]);
        assert_eq!(kept.most("openai", &more), (70, 2), "each of the others may be as long as one can");
        let thoughts = referred(&[("reasoning", "rs_7"), ("reasoning", "rs_8")]);
        assert_eq!(kept.most("openai", &thoughts), (0, 1), "all of one conversation");
        assert!(names(&json!([{"type": "file_search_call", "id": "fs_1"}]).to_string()).is_empty(), "more than the model wrote");
    }

    #[test]
    fn what_a_provider_keeps_or_finds_is_taken_for_the_most_it_can_be() {
        for (api, body, expected) in [
            (Api::Chat, json!({"messages": []}), 0),
            (Api::Chat, json!({"messages": [], "data_sources": [{"type": "azure_search"}]}), 1),
            (Api::Chat, json!({"messages": [], "extra_body": {"google": {"cached_content": "cachedContents/1"}}}), 1),
            (Api::Chat, json!({"messages": [], "google": {"cached_content": "c"}}), 1),
            (Api::Chat, json!({"messages": [], "cached_content": "c"}), 1),
            (Api::Responses, json!({"prompt": {"id": "p"}}), 1),
            (Api::Completions, json!({"prompt": "words"}), 0),
        ] {
            assert_eq!(of(&body, |body| documents(api, body)), expected, "{body}");
        }
        let spoken = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "audio": {"id": "audio_1"}}]});
        assert_eq!(of(&spoken, |body| recordings(Api::Chat, body)), 1);
        assert_eq!(
            of(&json!({"messages": [{"role": "user", "content": "a"}], "audio": {"voice": "x"}}), |body| recordings(Api::Chat, body)),
            0
        );
    }

    #[test]
    fn what_nobody_has_counted_is_as_long_as_all_that_the_model_reads() {
        for (model, tokens) in [
            ("gpt-4o", 128_000),
            ("gpt-4.1", 1_047_576),
            ("claude-opus-4-6", 1_000_000),
            ("claude-sonnet-4-5", 200_000),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 1_000_000),
            ("claude-haiku-4-5", 200_000),
            ("gemini-2.5-pro", 1_048_576),
            ("nobody-knows", 1_000_000),
        ] {
            assert_eq!(longest_unseen(model), tokens, "{model}");
        }
    }

    #[test]
    fn models_are_told_more_of_tools_than_is_sent() {
        let told = |api, body: Value| of(&body, |body| around_tools(api, body));
        assert_eq!(told(Api::Messages, json!({"messages": []})) + told(Api::Messages, json!({"tools": []})), 0);
        let own = json!({"name": "f", "input_schema": {}});
        assert_eq!(told(Api::Messages, json!({"tools": [own, own]})), AROUND_TOOLS);
        assert_eq!(told(Api::Messages, json!({"tools": [own, {"type": "text_editor_20250124"}]})), AROUND_TOOLS + OF_A_KNOWN_TOOL);
        assert_eq!(told(Api::Chat, json!({"tools": [{"type": "function"}]})), 0);
        assert_eq!(
            told(Api::Converse, json!({"toolConfig": {}, "additionalModelRequestFields": {"tools": [{"type": "bash_20250124"}]}})),
            2_500
        );
    }
}
