//! What is enclosed in a question and is no words to the model: images and documents, told by where they stand and by their type. The same
//! members anywhere else (in the schema of a tool, in what a tool was called with) are read as text.

use crate::api::Api;
use crate::members::{BorrowedText, Members};
use memchr::memmem::Finder;
use runguard_core::object::Object;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::LazyLock;

/// A shorter text is counted as it is.
const SHORTEST: usize = 1_024;
/// A file that is no PDF is read as text; of a longer one the bytes are words.
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
    input_audio: Option<&'a RawValue>,
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

/// What is enclosed in a question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Enclosed {
    /// Of images and documents, which are no words.
    pub(crate) bytes: u64,
    pub(crate) images: u64,
    /// Documents, and whatever else, of which nobody here knows how much it is: a small PDF may have any number of pages.
    pub(crate) documents: u64,
}

impl Enclosed {
    fn image(bytes: u64) -> Self {
        Self { bytes, images: 1, ..Self::default() }
    }

    fn document(bytes: u64) -> Self {
        Self { bytes, documents: 1, ..Self::default() }
    }

    fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            images: self.images.saturating_add(other.images),
            documents: self.documents.saturating_add(other.documents),
        }
    }
}

/// What is enclosed in a question, told by where it stands.
pub(crate) fn find(api: Api, body: &Members<'_>) -> Enclosed {
    let list = match api {
        Api::Chat | Api::Messages | Api::Invoke(_) => body.get("messages"),
        Api::Responses => body.get("input"),
        Api::Embeddings => return not_texts(body.get("input")),
        Api::Completions => return not_texts(body.get("prompt")),
        // By the names of its parts, elsewhere.
        Api::Converse => None,
    };
    // Most have words alone, and are not read for more.
    list.filter(|list| may_enclose(list)).map_or_else(Enclosed::default, |list| in_list(list, DEEPEST))
}

/// Whether a conversation has anything that is not known to be words, by the types and the names in it.
fn may_enclose(text: &str) -> bool {
    // Made once: that takes longer than to look through a short conversation.
    static NAMES: LazyLock<[Finder<'static>; 9]> = LazyLock::new(|| {
        ["\"image", "\"file", "\"document", "_url\"", "\"video", "\"audio", "\"input_audio", "\"media", "\"attachment"].map(Finder::new)
    });
    static TYPES: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(TYPE));
    const TYPE: &str = "\"type\"";
    let is_known = |at: usize| {
        let value = text[at + TYPE.len()..].trim_start().strip_prefix(':').map(str::trim_start).and_then(|value| value.strip_prefix('"'));
        let kind = value.and_then(|value| Some(&value[..value.find('"')?]));
        kind.is_some_and(|kind| WORDS.contains(&kind) || MADE_OF_PARTS.contains(&kind))
    };
    NAMES.iter().any(|name| name.find(text.as_bytes()).is_some()) || TYPES.find_iter(text.as_bytes()).any(|at| !is_known(at))
}

/// Of a list that has texts, or numbers: each of the others may be anything.
fn not_texts(list: Option<&str>) -> Enclosed {
    let list = list.unwrap_or_default();
    let items: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
    let documents = items.iter().filter(|item| item.get().starts_with('{')).count() as u64 + u64::from(list.starts_with('{'));
    Enclosed { documents, ..Enclosed::default() }
}

/// A list of parts, or a part that stands alone.
fn in_list(list: &str, depth: u8) -> Enclosed {
    let Some(depth) = depth.checked_sub(1) else { return Enclosed::document(0) };
    match serde_json::from_str::<Vec<&RawValue>>(list) {
        Ok(items) => items.into_iter().map(|item| in_item(item, depth)).fold(Enclosed::default(), Enclosed::and),
        Err(_) => serde_json::from_str(list).map_or_else(|_| Enclosed::default(), |item| in_item(item, depth)),
    }
}

/// Parts that are words alone, whatever stands in them.
const WORDS: [&str; 30] = [
    "text",
    "input_text",
    "output_text",
    "summary_text",
    "reasoning_text",
    "refusal",
    "tool_use",
    "server_tool_use",
    "mcp_tool_use",
    "tool_call",
    "function",
    "function_call",
    "custom_tool_call",
    "custom",
    "computer_call",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "reasoning",
    "thinking",
    "redacted_thinking",
    "item_reference",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    // How long a part is kept.
    "ephemeral",
];

/// Parts that are made of others.
const MADE_OF_PARTS: [&str; 5] = ["message", "tool_result", "function_call_output", "custom_tool_call_output", "search_result"];

/// What the names of members have that may be more than words, in a message or in a part that does not say what it is.
const NOT_WORDS: [&str; 8] = ["image", "video", "audio", "file", "document", "attachment", "media", "url"];

fn in_item(item: &RawValue, depth: u8) -> Enclosed {
    // A text is one.
    if item.get().starts_with('"') {
        return Enclosed::default();
    }
    let Ok(part) = serde_json::from_str::<Part<'_>>(item.get()) else { return Enclosed::document(0) };
    let parts = |member: Option<&RawValue>| member.map_or_else(Enclosed::default, |list| in_list(list.get(), depth));
    let Some(kind) = part.kind.as_ref().map(|kind| kind.0.as_ref()) else { return parts(part.content).and(untyped(item, &part)) };
    match kind {
        "message" => parts(part.content).and(untyped(item, &part)),
        "tool_result" | "search_result" => parts(part.content),
        "function_call_output" | "custom_tool_call_output" | "computer_call_output" => parts(part.output),
        "image_url" | "input_image" | "computer_screenshot" => shown(part.image_url),
        "image" => Enclosed::image(source(part.source).map_or(0, |source| source.encoded())),
        "input_file" => of_file(part.file_data),
        "file" => of_file(source(part.file).and_then(|source| source.file_data)),
        "document" => match source(part.source) {
            // What is written is read as it is.
            Some(source) if source.is("text") => Enclosed::default(),
            Some(source) if source.is("content") => parts(source.content),
            Some(source) => Enclosed::document(source.encoded()),
            None => Enclosed::document(0),
        },
        // The sound itself has more bytes than tokens.
        "input_audio" if length(source(part.input_audio).and_then(|source| source.data), |data| !is_link(data)) > 0 => Enclosed::default(),
        // What is an image to the provider that made it, and comes back.
        "image_generation_call" => Enclosed::image(0),
        kind if WORDS.contains(&kind) => Enclosed::default(),
        // What the provider's own tools gave: words, or a document that it has read.
        kind if kind.ends_with("_tool_result") => parts(part.content),
        _ => Enclosed::document(0),
    }
}

/// What a message has beside its parts, or a part that does not say what it is.
fn untyped(item: &RawValue, part: &Part<'_>) -> Enclosed {
    let Ok(Object(members)) = serde_json::from_str::<Object<'_>>(item.get()) else { return Enclosed::document(0) };
    let is_more = |(name, value): &(std::borrow::Cow<'_, str>, &RawValue)| {
        // A recording by its name is counted elsewhere.
        let is_recording = name == "audio" && !value.get().contains("_url\"") && !value.get().contains("\"data\"");
        let name = name.to_ascii_lowercase();
        NOT_WORDS.iter().any(|part| name.contains(part)) && !is_recording && !matches!(value.get(), "null" | "[]" | "\"\"" | "{}")
    };
    match (part.image_url, members.iter().filter(|member| is_more(member)).count() as u64) {
        (_, 0) => Enclosed::default(),
        (Some(url), 1) => shown(Some(url)),
        (_, documents) => Enclosed { documents, ..Enclosed::default() },
    }
}

/// An image by its address, which may stand in an object. What says that it is none is a document.
fn shown(address: Option<&RawValue>) -> Enclosed {
    let inner = source(address).and_then(|source| source.url).or(address);
    let is_other = inner.is_some_and(|url| url.get().starts_with("\"data:") && !is_image(url.get().trim_start_matches('"')));
    if is_other { Enclosed::document(0) } else { Enclosed::image(length(inner, is_image)) }
}

/// A file that is there, or is somewhere else.
fn of_file(data: Option<&RawValue>) -> Enclosed {
    Enclosed::document(length(data, is_file))
}

fn is_link(text: &str) -> bool {
    text.starts_with("http") || text.starts_with("gs:") || text.starts_with("s3:") || text.starts_with("file")
}

fn source(member: Option<&RawValue>) -> Option<Source<'_>> {
    serde_json::from_str(member?.get()).ok()
}

impl Source<'_> {
    fn is(&self, kind: &str) -> bool {
        self.kind.as_ref().is_some_and(|known| known.0 == kind)
    }

    /// How long its data is, where that is an image or a PDF.
    fn encoded(&self) -> u64 {
        let is_known = |kind: &BorrowedText<'_>| kind.0.starts_with("image/") || kind.0 == "application/pdf";
        if self.is("base64") && self.media_type.as_ref().is_some_and(is_known) { length(self.data, |_| true) } else { 0 }
    }
}

/// The length of a text, where it is one of this kind and is long.
fn length(member: Option<&RawValue>, is_kind: impl Fn(&str) -> bool) -> u64 {
    let text = member.and_then(|text| text.get().strip_prefix('"')?.strip_suffix('"'));
    text.filter(|text| text.len() > SHORTEST && is_kind(text)).map_or(0, |text| text.len() as u64)
}

fn is_image(text: &str) -> bool {
    text.starts_with("data:image/")
}

fn is_file(text: &str) -> bool {
    text.len() <= LONGEST_TEXT || is_pdf(text)
}

/// As one begins, with the word for it or by itself.
fn is_pdf(text: &str) -> bool {
    text.starts_with("data:application/pdf") || text.starts_with("JVBERi0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bedrock::Family;
    use serde_json::{Value, json};

    fn enclosed(api: Api, body: &Value) -> u64 {
        let text = body.to_string();
        find(api, &Members::read(text.as_bytes()).unwrap()).bytes
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
        let twice = find(Api::Messages, &Members::read(twice.as_bytes()).unwrap());
        assert_eq!((twice.bytes, twice.documents), (0, 1), "nobody can say which one it is");
    }

    #[test]
    fn images_and_documents_are_counted_where_they_stand() {
        let found = |api, body: &Value| {
            let text = body.to_string();
            let Enclosed { images, documents, .. } = find(api, &Members::read(text.as_bytes()).unwrap());
            (images, documents)
        };
        let called = json!({"type": "tool_use", "id": "t", "name": "fetch", "input": {"url": "https://example.com/a", "image_url": "x", "file_id": "f"}});
        let shown = json!({"type": "image", "source": {"type": "file", "file_id": "f"}});
        let given = json!({"type": "tool_result", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "url", "url": "u"}}]});
        let messages = json!({"messages": [{"role": "assistant", "content": [called]}, {"role": "user", "content": [given, shown]}],
            "tools": [{"name": "fetch", "input_schema": {"properties": {"url": {"type": "string"}, "image_url": {}}}}]});
        assert_eq!(found(Api::Messages, &messages), (2, 0), "what a tool is called with is words; an image by its name is an image");
        let pdf = |length: usize| format!("JVBERi0{}", "A".repeat(length));
        let page = |data: String| json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}});
        let pages = json!({"messages": [{"role": "user", "content": [page(pdf(2_000)), page(pdf(100_000)),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
            {"type": "document", "source": {"type": "url", "url": "u"}}]}]});
        assert_eq!(found(Api::Messages, &pages), (0, 3), "a short one may have as many pages as a long one");
        let input = json!({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}, {"type": "input_file", "file_id": "g"},
            {"type": "hologram", "hologram": {"url": "u"}}]}, {"type": "function_call", "name": "f", "arguments": "{\"url\": \"u\"}"}]});
        assert_eq!(found(Api::Responses, &input), (1, 2), "what nobody knows may be anything");
    }

    #[test]
    fn a_part_that_nobody_knows_is_never_nothing() {
        let found = |api, body: &Value| {
            let text = body.to_string();
            let Enclosed { images, documents, .. } = find(api, &Members::read(text.as_bytes()).unwrap());
            (images, documents)
        };
        let sound = "UklGRiQA".repeat(200);
        for (part, expected) in [
            (json!({"type": "document_url", "document_url": "https://example.com/a.pdf"}), (0, 1)),
            (json!({"type": "input_audio", "input_audio": {"url": "https://example.com/a.wav"}}), (0, 1)),
            (json!({"type": "input_audio", "input_audio": {"data": "https://example.com/a.wav", "format": "wav"}}), (0, 1)),
            (json!({"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}), (0, 0)),
            (json!({"type": "video", "video": ["https://example.com/1.jpg", "https://example.com/2.jpg"]}), (0, 1)),
            (json!({"type": "video_url", "video_url": {"url": "u"}}), (0, 1)),
            (json!({"type": "hologram", "of": "x"}), (0, 1)),
            (json!({"type": 7}), (0, 1)),
            (json!({"image_url": {"url": "https://example.com/1.jpg"}}), (1, 0)),
            (json!({"document_url": "https://example.com/a.pdf"}), (0, 1)),
            (json!({"image_url": {"url": "data:application/pdf;base64,JVBERi0x"}, "type": "image_url"}), (0, 1)),
            (json!({"text": "words"}), (0, 0)),
            (json!("words"), (0, 0)),
            (json!({"type": "text", "text": "a file, an image_url and a document"}), (0, 0)),
            (json!({"type": "web_search_tool_result", "content": [{"type": "web_search_result", "url": "u"}]}), (0, 1)),
            (json!({"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "a"}]}), (0, 0)),
        ] {
            let chat = json!({"messages": [{"role": "user", "content": [part]}]});
            assert_eq!(found(Api::Chat, &chat), expected, "{part}");
            assert_eq!(found(Api::Messages, &chat), expected, "{part}");
            assert_eq!(found(Api::Chat, &json!({"messages": [{"role": "user", "content": part}]})), expected, "alone: {part}");
            assert_eq!(found(Api::Responses, &json!({"input": [{"role": "user", "content": [part]}]})), expected, "{part}");
        }
        for message in [
            json!({"role": "user", "content": "a", "images": ["iVBORw0KGgo"]}),
            json!({"role": "user", "content": "a", "attachments": [{"id": "f"}]}),
        ] {
            assert_eq!(found(Api::Chat, &json!({"messages": [message]})), (0, 1), "{message}");
        }
        let called = json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "fetch", "arguments": "{\"url\": \"u\", \"file_id\": \"f\"}"}}]}]});
        assert_eq!(found(Api::Chat, &called), (0, 0));
        assert_eq!(found(Api::Embeddings, &json!({"input": ["a", "b"]})), (0, 0));
        assert_eq!(found(Api::Embeddings, &json!({"input": ["a", {"image": "u"}]})), (0, 1));
    }
}
