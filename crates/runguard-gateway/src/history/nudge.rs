//! A note to the model behind the latest result of a tool; every other byte of the conversation stays as it came.

use super::{Block, ChatMessage, ConverseBlock, Item, Message};
use crate::api::Api;
use crate::bedrock::Family;
use crate::members::{Members, place_in};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The body with the note; nothing where no tool has given anything, or what it gave is in no form that a note can stand in.
pub(crate) fn append(api: Api, body: &Members<'_>, note: &str) -> Option<String> {
    let note = format!("[RunGuard: {note}]");
    let (content, part) = match api {
        Api::Chat | Api::Invoke(Family::Chat | Family::GptOss | Family::Mistral) => {
            (latest(body.get("messages")?, chat)?, json!({"type": "text", "text": note}))
        }
        Api::Messages | Api::Invoke(Family::Anthropic) => (latest(body.get("messages")?, message)?, json!({"type": "text", "text": note})),
        Api::Responses => (latest(body.get("input")?, item)?, json!({"type": "input_text", "text": note})),
        Api::Converse | Api::Invoke(Family::Nova) => (latest(body.get("messages")?, converse)?, json!({"text": note})),
        Api::Completions
        | Api::Embeddings
        | Api::Invoke(
            Family::Titan | Family::Llama | Family::Cohere | Family::TitanEmbeddings | Family::CohereEmbeddings | Family::Unknown,
        ) => return None,
    };
    let (text, place) = (body.whole_text(), place_in(body.whole_text(), content));
    let added = match content.as_bytes().first()? {
        b'"' => Value::from(format!("\n\n{note}")).to_string().trim_matches('"').to_owned(),
        b'[' if content[1..].trim_start().starts_with(']') => part.to_string(),
        b'[' => format!(",{part}"),
        _ => return None,
    };
    // Before the quote, or the bracket, that ends it.
    Some([&text[..place.end - 1], &added, &text[place.end - 1..]].concat())
}

/// What the latest of these parts that has some gave.
fn latest<'a>(list: &'a str, given: impl Fn(&'a str) -> Option<&'a str>) -> Option<&'a str> {
    parts(list).into_iter().rev().find_map(given)
}

fn parts(list: &str) -> Vec<&str> {
    serde_json::from_str::<Vec<&RawValue>>(list).unwrap_or_default().into_iter().map(RawValue::get).collect()
}

fn read<'a, T: Deserialize<'a>>(part: &'a str) -> Option<T> {
    serde_json::from_str(part).ok()
}

fn chat(part: &str) -> Option<&str> {
    let message: ChatMessage<'_> = read(part)?;
    message.content.filter(|_| matches!(message.role.0.as_ref(), "tool" | "function")).map(RawValue::get)
}

fn message(part: &str) -> Option<&str> {
    let message: Message<'_> = read(part)?;
    latest(message.content.get(), |block| {
        let block: Block<'_> = read(block)?;
        block.content.filter(|_| block.kind.0 == "tool_result").map(RawValue::get)
    })
}

fn item(part: &str) -> Option<&str> {
    let item: Item<'_> = read(part)?;
    item.output.filter(|_| item.kind.0.ends_with("_call_output")).map(RawValue::get)
}

fn converse(part: &str) -> Option<&str> {
    let message: Message<'_> = read(part)?;
    latest(message.content.get(), |block| Some(read::<ConverseBlock<'_>>(block)?.tool_result?.content?.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(api: Api, body: &str) -> Option<String> {
        append(api, &Members::read(body.as_bytes()).unwrap(), "Stop \"it\".")
    }

    #[test]
    fn the_note_stands_behind_the_latest_result_in_the_words_of_every_interface() {
        let note = r#"[RunGuard: Stop \"it\".]"#;
        let chat = r#"{"messages": [{"role":"tool","tool_call_id":"a","content":"one"}, {"role":"tool", "tool_call_id":"b", "content": "t\"wo"}], "x": 1.0}"#;
        assert_eq!(told(Api::Chat, chat).unwrap(), chat.replace(r#"t\"wo""#, &format!(r#"t\"wo\n\n{note}""#)));
        let parts = r#"{"messages":[{"role":"tool","content":[{"type":"text","text":"a"} ]}]}"#;
        let part = json!({"type": "text", "text": "[RunGuard: Stop \"it\".]"});
        assert_eq!(told(Api::Chat, parts).unwrap(), parts.replace(" ]}]", &format!(" ,{part}]}}]")));
        let messages = r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"one"},{"type":"text","text":"go on"}]}]}"#;
        assert_eq!(told(Api::Messages, messages).unwrap(), messages.replace(r#"one""#, &format!(r#"one\n\n{note}""#)));
        let responses = r#"{"input":[{"type":"function_call_output","call_id":"a","output":"one"},{"role":"user","content":"x"}]}"#;
        assert_eq!(told(Api::Responses, responses).unwrap(), responses.replace(r#"one""#, &format!(r#"one\n\n{note}""#)));
        let converse = r#"{"messages":[{"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[]}}]}]}"#;
        assert_eq!(told(Api::Converse, converse).unwrap(), converse.replace(":[]", &format!(r#":[{{"text":"{note}"}}]"#)));
    }

    #[test]
    fn where_no_tool_has_given_anything_nothing_is_changed() {
        for body in [
            r#"{"messages":[{"role":"user","content":"a"}]}"#,
            r#"{"messages":[{"role":"tool","content":null}]}"#,
            r#"{"messages":[{"role":"tool","content":7}]}"#,
            r#"{"messages":7}"#,
            "{}",
        ] {
            assert_eq!((told(Api::Chat, body), told(Api::Messages, body)), (None, None), "{body}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_told_is_a_conversation_with_one_note_more(results in proptest::collection::vec("\\PC{0,12}", 1..4)) {
            let messages: Vec<Value> = results.iter().map(|result| json!({"role": "tool", "tool_call_id": "a", "content": result})).collect();
            let body = json!({"messages": messages}).to_string();
            let after: Value = serde_json::from_str(&told(Api::Chat, &body).unwrap()).unwrap();
            let mut expected: Value = serde_json::from_str(&body).unwrap();
            let last = results.len() - 1;
            expected["messages"][last]["content"] = format!("{}\n\n[RunGuard: Stop \"it\".]", results[last]).into();
            proptest::prop_assert_eq!(after, expected);
        }
    }
}
