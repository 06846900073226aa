//! What is enclosed in a question and is no words to the model: images and documents, told by where they stand and by their type. The same
//! members anywhere else (in the schema of a tool, in what a tool was called with) are read as text.

use crate::api::Api;
use crate::members::{BorrowedText, Members};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A shorter text is counted as it is.
const SHORTEST: usize = 1_024;
/// A file that is no PDF is read as text; a longer one has more tokens than a document is taken to have.
const LONGEST_TEXT: usize = 200_000;
/// Messages have parts, one may be what a tool gave, which has parts, and one of those may be a document made of parts.
const DEEPEST: u8 = 4;

/// An item of a conversation, or a part of one. Of a member that stands there twice nobody knows which one counts: it is not read.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Part<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<BorrowedText<'a>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    #[serde(borrow)]
    source: Option<&'a RawValue>,
    #[serde(borrow)]
    image_url: Option<&'a RawValue>,
    #[serde(borrow)]
    file: Option<&'a RawValue>,
    #[serde(borrow)]
    file_data: Option<&'a RawValue>,
}

/// Where the data of a part stands.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Source<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<BorrowedText<'a>>,
    #[serde(borrow)]
    media_type: Option<BorrowedText<'a>>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<&'a RawValue>,
    #[serde(borrow)]
    file_data: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// How many bytes of a question are those of images and documents.
pub(crate) fn bytes(api: Api, body: &Members<'_>) -> u64 {
    const MARKS: [&[u8]; 3] = [b"\"image", b"\"file_data\"", b"\"document\""];
    let conversation = match api {
        Api::Chat | Api::Messages | Api::Invoke(_) => body.get("messages"),
        Api::Responses => body.get("input"),
        Api::Completions | Api::Embeddings | Api::Converse => None,
    };
    // Most have none, and are not read for it.
    let conversation = conversation.filter(|text| MARKS.iter().any(|mark| memchr::memmem::find(text.as_bytes(), mark).is_some()));
    conversation.map_or(0, |list| in_list(list, DEEPEST))
}

fn in_list(list: &str, depth: u8) -> u64 {
    let Some(depth) = depth.checked_sub(1) else { return 0 };
    let items: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
    items.into_iter().map(|item| in_item(item, depth)).fold(0, u64::saturating_add)
}

fn in_item(item: &RawValue, depth: u8) -> u64 {
    let Ok(part) = serde_json::from_str::<Part<'_>>(item.get()) else { return 0 };
    let parts = |member: Option<&RawValue>| member.map_or(0, |list| in_list(list.get(), depth));
    match part.kind.as_ref().map_or("message", |kind| kind.0.as_ref()) {
        "message" | "tool_result" => parts(part.content),
        "function_call_output" | "custom_tool_call_output" => parts(part.output),
        "computer_call_output" => part.output.filter(|_| depth > 0).map_or(0, |output| in_item(output, depth - 1)),
        "image_url" => source(part.image_url).map_or(0, |source| length(source.url, is_image)),
        "input_image" | "computer_screenshot" => length(part.image_url, is_image),
        "input_file" => length(part.file_data, is_file),
        "file" => source(part.file).map_or(0, |source| length(source.file_data, is_file)),
        "image" | "document" => source(part.source).map_or(0, |source| match source.kind.as_ref().map_or("", |kind| kind.0.as_ref()) {
            "base64" if source.media_type.is_some_and(|kind| kind.0.starts_with("image/") || kind.0 == "application/pdf") => {
                length(source.data, |_| true)
            }
            "content" => parts(source.content),
            _ => 0,
        }),
        _ => 0,
    }
}

fn source(member: Option<&RawValue>) -> Option<Source<'_>> {
    serde_json::from_str(member?.get()).ok()
}

/// The length of a text, where it is one of this kind and is long.
fn length(member: Option<&RawValue>, is_kind: impl Fn(&str) -> bool) -> u64 {
    let text = member.and_then(|text| text.get().strip_prefix('"')?.strip_suffix('"'));
    text.filter(|text| text.len() > SHORTEST && is_kind(text)).map_or(0, |text| text.len() as u64)
}

fn is_image(text: &str) -> bool {
    text.starts_with("data:image/")
}

/// As a PDF begins, with the word for it or by itself.
fn is_file(text: &str) -> bool {
    text.len() <= LONGEST_TEXT || text.starts_with("data:application/pdf") || text.starts_with("JVBERi0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bedrock::Family;
    use serde_json::{Value, json};

    fn enclosed(api: Api, body: &Value) -> u64 {
        let text = body.to_string();
        bytes(api, &Members::read(text.as_bytes()).unwrap())
    }

    #[test]
    fn parts_that_are_images_or_documents_are_no_words() {
        let data = "iVBORw0KGgo".repeat(200);
        let (long, url) = (data.len() as u64, format!("data:image/png;base64,{data}"));
        let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
        let page = json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}});
        let made = json!({"type": "document", "source": {"type": "content", "content": [image]}});
        let given = json!({"type": "tool_result", "tool_use_id": "t", "content": [image, made]});
        let messages = json!({"messages": [{"role": "user", "content": [image, page, given]}]});
        for api in [Api::Messages, Api::Invoke(Family::Anthropic)] {
            assert_eq!(enclosed(api, &messages), 4 * long);
        }
        let file = json!({"type": "file", "file": {"file_data": data, "filename": "a"}});
        let chat = json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, file]}]});
        assert_eq!(enclosed(Api::Chat, &chat), url.len() as u64 + long);
        let seen = json!({"type": "input_image", "image_url": url});
        let input = json!({"input": [{"role": "user", "content": [seen, {"type": "input_file", "file_data": data}]},
            {"type": "message", "role": "user", "content": [seen]}, {"type": "function_call_output", "call_id": "c", "output": [seen]},
            {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": url}}]});
        assert_eq!(enclosed(Api::Responses, &input), 4 * url.len() as u64 + long);
    }

    #[test]
    fn what_a_model_reads_as_text_is_words_whatever_it_is_called() {
        let words = "lorem ipsum ".repeat(200);
        let (url, own) = (format!("data:image/{words}"), json!({"mime": "image/png", "data": words}));
        let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": words}});
        let schema = json!({"type": "object", "examples": [{"url": url}, own, image]});
        let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {"url": url, "image": own, "content": [image]}});
        for (api, body) in [
            (Api::Messages, json!({"messages": [], "tools": [{"name": "f", "input_schema": schema}]})),
            (Api::Invoke(Family::Anthropic), json!({"messages": [], "tools": [{"name": "f", "input_schema": schema}]})),
            (Api::Messages, json!({"messages": [{"role": "assistant", "content": [call]}]})),
            (Api::Messages, json!({"messages": [{"role": "user", "content": [{"type": "text", "text": url, "source": image["source"]}]}]})),
            (Api::Messages, json!({"messages": [], "system": [image], "metadata": image})),
            (
                Api::Messages,
                json!({"messages": [{"role": "user", "content": [{"type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": words}}]}]}),
            ),
            (Api::Chat, json!({"messages": [], "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]})),
            (Api::Chat, json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": words}}]}]})),
            (Api::Responses, json!({"input": "a", "text": {"format": {"type": "json_schema", "schema": schema}}})),
            (Api::Responses, json!({"input": [{"type": "function_call", "arguments": url, "image_url": url}]})),
            (
                Api::Responses,
                json!({"input": [{"role": "user", "content": [{"type": "input_file",
                "file_data": format!("data:text/plain;base64,{}", words.repeat(100))}]}]}),
            ),
        ] {
            assert_eq!(enclosed(api, &body), 0, "{api:?} {body:.80}");
        }
        let twice =
            format!(r#"{{"messages":[{{"role":"user","content":[{{"type":"image","type":"text","source":{}}}]}}]}}"#, image["source"]);
        assert_eq!(bytes(Api::Messages, &Members::read(twice.as_bytes()).unwrap()), 0);
    }
}
