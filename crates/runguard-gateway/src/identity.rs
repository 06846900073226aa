//! Which run a question belongs to, without a line of code in the agent: by what its client says, or by how its conversation begins.
//!
//! What a client says groups its questions and gives it no right: names are kept under the key that asks.

use crate::api::Api;
use crate::earlier::is_name;
use crate::members::{BadBody, Members, first_items};
use crate::refusal::Refusal;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use runguard_core::fingerprint;
use runguard_core::model_question::{CONVERSATION, PREVIOUS};
use runguard_core::run::service::short_id;
use serde_json::Value;
use std::borrow::Cow;
use std::ops::ControlFlow;
use xxhash_rust::xxh3::xxh3_64;

/// How a run was found, for the log and for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FoundBy {
    Header,
    ClaudeCode,
    CacheKey,
    Metadata,
    EarlierResponse,
    Beginning,
}

impl FoundBy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::ClaudeCode => "claude_code",
            Self::CacheKey => "prompt_cache_key",
            Self::Metadata => "metadata",
            Self::EarlierResponse => "previous_response",
            Self::Beginning => "beginning",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunName {
    pub(crate) name: String,
    pub(crate) found_by: FoundBy,
}

/// Names of members of `metadata` that say which conversation it is.
const OF_CONVERSATION: [&str; 6] = ["run_id", "session_id", "thread_id", "conversation_id", "trace_id", "task_id"];

/// A name that cannot be read must not lead to a run that nobody meant.
pub(crate) fn unreadable(headers: &HeaderMap) -> Option<Refusal> {
    headers.get("x-runguard-run").filter(|name| name.to_str().is_err()).map(|_| {
        Refusal::bad_request(
            "The header `x-runguard-run` has characters that are no plain ASCII: give the run a name of letters, digits and signs.",
        )
    })
}

/// What a question says of its run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Name(RunName),
    /// Nothing, but how its conversation begins.
    Begins(Begins),
}

/// How a conversation begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Begins {
    hash: u64,
    /// The run of all that begin so, on this day.
    alike: RunName,
}

impl Begins {
    pub(crate) fn hash(&self) -> String {
        fingerprint::hex(self.hash)
    }

    pub(crate) fn alike(&self) -> RunName {
        self.alike.clone()
    }

    /// A run of its own.
    pub(crate) fn alone(&self, mark: &str) -> RunName {
        RunName { name: short_id(&format!("{}-{mark}", self.alike.name)).into_owned(), ..self.alike.clone() }
    }
}

/// The answer that a question follows, where the provider keeps the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follows<'a> {
    Nothing,
    /// One of this run.
    Run(&'a str),
    /// One that nobody here knows, by its name.
    Unknown(&'a str),
}

/// Begins the name of the answer that ends a run; which run it was is told by the rest, also to another node and after a restart.
const LAST_ANSWER: &str = "resp_runguard_";

pub(crate) fn name_of_last_answer(run: &str) -> String {
    format!("{LAST_ANSWER}{}", URL_SAFE_NO_PAD.encode(run))
}

/// The run of this key's that ended with the answer of this name.
fn run_that_ended(answer: &str, key: &str) -> Option<String> {
    let run = String::from_utf8(URL_SAFE_NO_PAD.decode(answer.strip_prefix(LAST_ANSWER)?).ok()?).ok()?;
    // Names that clients send group, and only their own: another key's runs begin with that key.
    let is_its_own = key.is_empty() || run.strip_prefix(key).is_some_and(|rest| rest.starts_with('/'));
    (is_its_own && short_id(&run) == run).then_some(run)
}

/// The run of a question, by what it says.
pub(crate) fn run_of(headers: &HeaderMap, api: Api, body: &Members<'_>, key: &str, today: &str, follows: Follows<'_>) -> Says {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim).filter(|text| !text.is_empty());
    let said = |name: &'static str| body.text(name).ok().flatten().filter(|text| !text.trim().is_empty());
    let under_key = |name: &str| if key.is_empty() { short_id(name).into_owned() } else { short_id(&format!("{key}/{name}")).into_owned() };
    if let Some(name) = header("x-runguard-run") {
        return Says::Name(RunName { name: under_key(name), found_by: FoundBy::Header });
    }
    if let Some(session) = header("x-claude-code-session-id") {
        let name = header("x-claude-code-agent-id").map_or_else(|| session.to_owned(), |agent| format!("{session}/{agent}"));
        return Says::Name(RunName { name: under_key(&name), found_by: FoundBy::ClaudeCode });
    }
    // A name that is ours already.
    if let Follows::Run(name) = follows {
        return Says::Name(RunName { name: name.to_owned(), found_by: FoundBy::EarlierResponse });
    }
    if let Follows::Unknown(answer) = follows
        && let Some(name) = run_that_ended(answer, key)
    {
        return Says::Name(RunName { name, found_by: FoundBy::EarlierResponse });
    }
    let metadata: Value = body
        .get("metadata")
        .or_else(|| body.get("requestMetadata"))
        .and_then(|metadata| serde_json::from_str(metadata).ok())
        .unwrap_or_default();
    if let Some(name) = OF_CONVERSATION.iter().find_map(|name| metadata.get(name)?.as_str()) {
        return Says::Name(RunName { name: under_key(name), found_by: FoundBy::Metadata });
    }
    if let Some(name) = body.get("conversation").and_then(conversation) {
        return Says::Name(RunName { name: under_key(&name), found_by: FoundBy::EarlierResponse });
    }
    // Whatever it begins with now, it is the conversation of that answer.
    if let Follows::Unknown(answer) = follows {
        let name = format!("auto-{today}-{}", fingerprint::hex(xxh3_64(answer.as_bytes())));
        return Says::Name(RunName { name: under_key(&name), found_by: FoundBy::EarlierResponse });
    }
    let mut beginning = String::new();
    // Whom it is for: people often begin with the same words.
    for name in ["user", "safety_identifier"] {
        beginning.push_str(said(name).as_deref().unwrap_or_default());
        beginning.push('\0');
    }
    beginning.push_str(metadata.get("user_id").and_then(Value::as_str).unwrap_or_default());
    beginning.push('\0');
    begin(api, body, &mut beginning);
    // One key may be that of all who ask for the same thing.
    let cache_key = said("prompt_cache_key");
    beginning.push_str(cache_key.as_deref().unwrap_or_default());
    // What begins with the same words tomorrow is another run.
    let hash = xxh3_64(beginning.as_bytes());
    let name = under_key(&format!("auto-{today}-{}", fingerprint::hex(hash)));
    let found_by = if cache_key.is_some() { FoundBy::CacheKey } else { FoundBy::Beginning };
    Says::Begins(Begins { hash, alike: RunName { name, found_by } })
}

/// What a question to the interface of responses follows: an answer, and a conversation. What can be no name of one is refused: its server might
/// find one by it all the same, and nobody here could say whose that is.
pub(crate) fn followed(body: &Members<'_>) -> Result<[Option<String>; 2], BadBody> {
    let known = |name: &'static str, said: Option<Cow<'_, str>>| match said {
        // Nothing is as good as none.
        Some(said) if said.is_empty() => Ok(None),
        Some(said) if is_name(&said) => Ok(Some(said.into_owned())),
        Some(_) => Err(BadBody::Member { name, problem: "is not the id of anything: send it as the provider wrote it" }),
        None => Ok(None),
    };
    let previous = known(PREVIOUS, body.text(PREVIOUS)?)?;
    let conversation = match body.get(CONVERSATION) {
        Some(object) if object.starts_with('{') => {
            let id = Members::read(object.as_bytes())?.text("id").ok().flatten();
            Some(id.ok_or(BadBody::Member { name: CONVERSATION, problem: "must have the `id` of a conversation, as text" })?)
        }
        Some(_) | None => body.text(CONVERSATION)?,
    };
    Ok([previous, known(CONVERSATION, conversation)?])
}

/// Whether it refers to something that the provider keeps.
pub(crate) fn refers(body: &Members<'_>) -> bool {
    let says = |name: &str| body.get(name).is_some_and(|said| said != "\"\"");
    says(PREVIOUS) || says(CONVERSATION) || body.get("input").is_some_and(|items| items.contains("\"item_reference\""))
}

/// The conversation that the provider keeps: its id, or an object with it.
pub(crate) fn conversation(member: &str) -> Option<String> {
    name_of_conversation(&serde_json::from_str(member).ok()?)
}

/// The same, as an answer says it.
pub(crate) fn name_of_conversation(member: &Value) -> Option<String> {
    member.as_str().or_else(|| member.get("id")?.as_str()).map(str::to_owned)
}

/// The words a conversation begins with: what the model is told to be, and the first that a person says.
fn begin(api: Api, body: &Members<'_>, out: &mut String) {
    let (told, said) = match api {
        Api::Chat => (None, body.get("messages")),
        Api::Completions => (None, body.get("prompt")),
        Api::Responses => (body.get("instructions"), body.get("input")),
        Api::Embeddings => (None, body.get("input")),
        Api::Messages | Api::Converse => (body.get("system"), body.get("messages")),
        Api::Invoke(_) => {
            (body.get("system"), ["messages", "message", "prompt", "inputText", "texts"].into_iter().find_map(|name| body.get(name)))
        }
    };
    let value = |json: &str| serde_json::from_str::<Value>(json).unwrap_or_default();
    if let Some(told) = told {
        words(&value(told), out);
    }
    out.push('\0');
    let Some(said) = said else { return };
    // Only the beginning is read: the rest of a conversation may be long.
    let is_list = first_items(said, |message| {
        words(&message, out);
        out.push('\0');
        let is_told = matches!(message.get("role").and_then(Value::as_str), Some("system" | "developer"));
        if is_told { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if !is_list {
        match value(said) {
            // A text alone is what a person says: the same as a list of that one message.
            Value::String(text) if api == Api::Responses => out.extend(["user", &text, "\0"]),
            said => words(&said, out),
        }
    }
}

/// Texts of a message, without marks that move from one message to the next while a conversation goes on.
fn words(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => out.push_str(text),
        Value::Array(items) => items.iter().for_each(|item| words(item, out)),
        Value::Object(fields) => {
            let lasting = fields.iter().filter(|(name, _)| !matches!(name.as_str(), "cache_control" | "cachePoint"));
            lasting.for_each(|(_, value)| words(value, out));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_question_follows_is_named_as_a_provider_names_it() {
        let of = |body: &str| followed(&Members::read(body.as_bytes()).unwrap());
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of(r#"{"previous_response_id":"resp_X","conversation":{"id":"conv_1"}}"#), Ok([some("resp_X"), some("conv_1")]));
        assert_eq!(of(r#"{"previous_response_id":null,"conversation":"conv_1"}"#), Ok([None, some("conv_1")]));
        assert_eq!(of(r#"{"previous_response_id":""}"#), Ok([None, None]));
        for id in [r#"" resp_X""#, r#""resp_X\u0000""#, r#"["resp_X"]"#, "7", "{}", r#""resp_X ""#] {
            assert!(of(&format!(r#"{{"previous_response_id":{id}}}"#)).is_err(), "{id}");
            assert!(of(&format!(r#"{{"conversation":{id}}}"#)).is_err(), "{id}");
            assert!(of(&format!(r#"{{"conversation":{{"id":{id}}}}}"#)).is_err(), "{id}");
        }
        assert!(of(r#"{"conversation":{"id":"conv_1","id":"conv_2"}}"#).is_err(), "one reader takes the first, another the last");
    }

    fn run(headers: &[(&'static str, &str)], api: Api, body: &Value, key: &str) -> RunName {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        let text = body.to_string();
        let follows = body.get("previous_response_id").map_or(Follows::Nothing, |_| Follows::Run("known"));
        named(run_of(&map, api, &Members::read(text.as_bytes()).unwrap(), key, "2026-11-16", follows))
    }

    fn named(says: Says) -> RunName {
        match says {
            Says::Name(run) => run,
            Says::Begins(begins) => begins.alike(),
        }
    }

    #[test]
    fn a_question_behind_an_answer_that_nobody_knows_is_of_its_conversation_whatever_it_says() {
        let unknown = |answer: &str| {
            let text = json!({"model": "m", "input": "go on"}).to_string();
            let members = Members::read(text.as_bytes()).unwrap();
            named(run_of(&HeaderMap::new(), Api::Responses, &members, "k1", "2026-11-16", Follows::Unknown(answer)))
        };
        assert_eq!(unknown("resp_1"), unknown("resp_1"));
        assert_ne!(unknown("resp_1"), unknown("resp_2"));
        assert_eq!(unknown(&name_of_last_answer("k1/run é")).name, "k1/run é", "the run that ended with it");
        for run in ["k2/run", "k1", "k10/run", "run", &format!("k1/{}", "x".repeat(2_000))] {
            assert_ne!(unknown(&name_of_last_answer(run)).name, run, "not this key's, or no run's name");
        }
    }

    #[test]
    fn a_text_alone_begins_as_the_same_in_a_list_does() {
        let (text, list) =
            (json!({"input": "hi"}), json!({"input": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]}));
        assert_eq!(run(&[], Api::Responses, &text, ""), run(&[], Api::Responses, &list, ""));
    }

    #[test]
    fn what_a_client_says_comes_first_and_stays_under_its_key() {
        let body = json!({"model": "m", "messages": [], "prompt_cache_key": "p", "metadata": {"session_id": "s"}});
        assert_eq!(run(&[("x-runguard-run", "job-7")], Api::Chat, &body, "").name, "job-7");
        assert_eq!(run(&[("x-runguard-run", "job-7")], Api::Chat, &body, "k1").name, "k1/job-7");
        assert_eq!(run(&[("x-claude-code-session-id", "c")], Api::Messages, &body, "").name, "c");
        assert_eq!(run(&[], Api::Chat, &body, "").found_by, FoundBy::Metadata);
        let cached = json!({"model": "m", "prompt_cache_key": "p"});
        assert_eq!(run(&[], Api::Responses, &cached, "").found_by, FoundBy::CacheKey);
        assert_eq!(run(&[], Api::Responses, &json!({"model": "m", "conversation": {"id": "conv_1"}}), "").name, "conv_1");
        let follows = json!({"model": "m", "input": "go on", "previous_response_id": "resp_1"});
        assert_eq!(run(&[], Api::Responses, &follows, "k1").name, "known");
    }

    #[test]
    fn a_conversation_is_the_same_while_it_grows() {
        let first = json!({"model": "claude", "system": "You are.", "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Fix it", "cache_control": {"type": "ephemeral"}}]}]});
        let later = json!({"model": "claude", "system": "You are.", "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Fix it"}]},
            {"role": "assistant", "content": "ok"}, {"role": "user", "content": "and?"}]});
        let (first, later) = (run(&[], Api::Messages, &first, ""), run(&[], Api::Messages, &later, ""));
        assert_eq!(first, later);
        let other = json!({"model": "claude", "system": "You are.", "messages": [{"role": "user", "content": "Something else"}]});
        assert_ne!(run(&[], Api::Messages, &other, ""), first);
        let chat = |user: &str| json!({"model": "m", "user": user, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]});
        assert_ne!(run(&[], Api::Chat, &chat("a"), ""), run(&[], Api::Chat, &chat("b"), ""), "two people who say the same");
    }

    #[test]
    fn what_is_kept_at_the_provider_is_referred_to() {
        let refers = |body: &str| refers(&Members::read(body.as_bytes()).unwrap());
        for body in [
            r#"{"model": "m", "input": "hi", "previous_response_id": "resp_1"}"#,
            r#"{"conversation": {"id": "conv_1"}}"#,
            r#"{"input": [{"type": "item_reference", "id": "msg_1"}]}"#,
        ] {
            assert!(refers(body), "{body}");
        }
        for body in [r#"{"input": "hi", "previous_response_id": null}"#, r#"{"input": "hi", "previous_response_id": ""}"#] {
            assert!(!refers(body), "{body}");
        }
    }
}
