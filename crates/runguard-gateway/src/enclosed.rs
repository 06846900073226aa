//! What is enclosed in a question and is no words to the model: images and documents, told by where they stand and by their type. The same
//! members anywhere else (in the schema of a tool, in what a tool was called with) are read as text.

use crate::api::Api;
use crate::elsewhere::{LONGEST_CONTEXT, UNSEEN, reads_long_prompts};
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

/// What is enclosed in a question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Enclosed {
    /// Of images and documents, which are no words.
    pub(crate) bytes: u64,
    pub(crate) images: u64,
    /// Documents of which nobody here knows how long they are.
    pub(crate) documents: u64,
    /// The most tokens of the other documents.
    pub(crate) tokens: u64,
}

impl Enclosed {
    fn image(bytes: u64) -> Self {
        Self { bytes, images: 1, ..Self::default() }
    }

    fn documents(documents: u64) -> Self {
        Self { documents, ..Self::default() }
    }

    /// A document whose data is there: a PDF is bounded by its size.
    fn file(bytes: u64, is_pdf: bool) -> Self {
        /// A page that is seen and read as well has so many tokens at most, and no less than so many bytes.
        const A_PAGE: u64 = 5_000;
        const TOKENS_A_BYTE: u64 = 5;
        let tokens = bytes.saturating_mul(TOKENS_A_BYTE).saturating_add(A_PAGE);
        if is_pdf && tokens < UNSEEN { Self { bytes, tokens, ..Self::default() } } else { Self { bytes, documents: 1, ..Self::default() } }
    }

    fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            images: self.images.saturating_add(other.images),
            documents: self.documents.saturating_add(other.documents),
            tokens: self.tokens.saturating_add(other.tokens),
        }
    }
}

/// What is enclosed in a question, told by where it stands.
pub(crate) fn find(api: Api, body: &Members<'_>) -> Enclosed {
    const MARKS: [&[u8]; 5] = [b"\"image", b"\"file", b"\"document\"", b"_url\"", b"\"container_upload\""];
    let text = body.whole_text();
    // Most have none, and are not read for it.
    if !MARKS.iter().any(|mark| memchr::memmem::find(text.as_bytes(), mark).is_some()) {
        return Enclosed::default();
    }
    match api {
        Api::Chat | Api::Messages | Api::Invoke(_) => body.get("messages").map_or_else(Enclosed::default, |list| in_list(list, DEEPEST)),
        Api::Responses => body.get("input").map_or_else(Enclosed::default, |list| in_list(list, DEEPEST)),
        Api::Completions | Api::Embeddings => not_understood(text),
        // By the names of its parts, elsewhere.
        Api::Converse => Enclosed::default(),
    }
}

fn in_list(list: &str, depth: u8) -> Enclosed {
    let Some(depth) = depth.checked_sub(1) else { return not_understood(list) };
    let items: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
    items.into_iter().map(|item| in_item(item, depth)).fold(Enclosed::default(), Enclosed::and)
}

/// What looks like an image or a document, in a part that nobody here knows. Its bytes are words.
fn not_understood(text: &str) -> Enclosed {
    let count = |names: &[&str]| names.iter().map(|name| memchr::memmem::find_iter(text.as_bytes(), name).count() as u64).sum();
    Enclosed {
        images: count(&["\"url\"", "\"image_url\"", "\"media_type\""]),
        documents: count(&["\"file_id\"", "\"file_url\"", "\"file_data\"", "\"document\""]),
        ..Enclosed::default()
    }
}

/// Parts that are words alone, whatever stands in them.
const WORDS: [&str; 20] = [
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
    "computer_call",
    "local_shell_call",
    "reasoning",
    "thinking",
    "redacted_thinking",
    "item_reference",
    "input_audio",
];

fn in_item(item: &RawValue, depth: u8) -> Enclosed {
    let Ok(part) = serde_json::from_str::<Part<'_>>(item.get()) else { return not_understood(item.get()) };
    let parts = |member: Option<&RawValue>| member.map_or_else(Enclosed::default, |list| in_list(list.get(), depth));
    let kind = part.kind.as_ref().map_or("message", |kind| kind.0.as_ref());
    match kind {
        "message" | "tool_result" => parts(part.content),
        "function_call_output" | "custom_tool_call_output" => parts(part.output),
        "computer_call_output" => match part.output {
            Some(output) if depth > 0 => in_item(output, depth - 1),
            Some(output) => not_understood(output.get()),
            None => Enclosed::default(),
        },
        "image_url" => Enclosed::image(source(part.image_url).map_or(0, |source| length(source.url, is_image))),
        "input_image" | "computer_screenshot" => Enclosed::image(length(part.image_url, is_image)),
        "image" => Enclosed::image(source(part.source).map_or(0, |source| source.encoded())),
        "input_file" => of_file(part.file_data),
        "file" => of_file(source(part.file).and_then(|source| source.file_data)),
        "document" => match source(part.source) {
            // What is written is read as it is.
            Some(source) if source.is("text") => Enclosed::default(),
            Some(source) if source.is("content") => parts(source.content),
            Some(source) if source.encoded() > 0 => Enclosed::file(source.encoded(), true),
            Some(_) | None => Enclosed::documents(1),
        },
        "container_upload" | "audio_url" => Enclosed::documents(1),
        "video_url" => Enclosed::documents(LONGEST_CONTEXT),
        kind if WORDS.contains(&kind) => Enclosed::default(),
        _ => not_understood(item.get()),
    }
}

/// A file that is there, or is somewhere else.
fn of_file(data: Option<&RawValue>) -> Enclosed {
    let bytes = length(data, is_file);
    Enclosed::file(bytes, length(data, is_pdf) > 0)
}

/// The most tokens that a model takes an image for.
pub(crate) fn tokens_of_an_image(model: &str, text: &str) -> u64 {
    /// 2,833, and 5,667 for each of eight tiles.
    const OF_GPT_4O_MINI: u64 = 48_200;
    /// 16,384 patches.
    const OF_QWEN: u64 = 16_400;
    /// 10,000 patches, of which each counts 1.2 times.
    const ORIGINAL: u64 = 12_000;
    const OF_OTHERS: u64 = 5_000;
    let name = model.to_ascii_lowercase();
    if name.contains("gpt-4o-mini") {
        return OF_GPT_4O_MINI;
    }
    if name.contains("qwen") {
        return OF_QWEN;
    }
    // Those with long prompts look at large images as they are when they like to.
    let is_newer = name.contains("gpt-") && reads_long_prompts(model);
    if is_newer || memchr::memmem::find(text.as_bytes(), b"\"original\"").is_some() { ORIGINAL } else { OF_OTHERS }
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
        assert_eq!((twice.bytes, twice.images > 0), (0, true), "nobody can say which one it is");
    }

    #[test]
    fn images_and_documents_are_counted_where_they_stand() {
        let found = |api, body: &Value| {
            let text = body.to_string();
            let Enclosed { images, documents, tokens, .. } = find(api, &Members::read(text.as_bytes()).unwrap());
            (images, documents, tokens)
        };
        let called = json!({"type": "tool_use", "id": "t", "name": "fetch", "input": {"url": "https://example.com/a", "image_url": "x", "file_id": "f"}});
        let shown = json!({"type": "image", "source": {"type": "file", "file_id": "f"}});
        let given = json!({"type": "tool_result", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "url", "url": "u"}}]});
        let messages = json!({"messages": [{"role": "assistant", "content": [called]}, {"role": "user", "content": [given, shown]}],
            "tools": [{"name": "fetch", "input_schema": {"properties": {"url": {"type": "string"}, "image_url": {}}}}]});
        assert_eq!(found(Api::Messages, &messages), (2, 0, 0), "what a tool is called with is words; an image by its name is an image");
        let pdf = |length: usize| format!("JVBERi0{}", "A".repeat(length));
        let page = |data: String| json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}});
        let pages = json!({"messages": [{"role": "user", "content": [page(pdf(2_000)), page(pdf(100_000)),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
            {"type": "document", "source": {"type": "url", "url": "u"}}]}]});
        assert_eq!(found(Api::Messages, &pages), (0, 2, 2_007 * 5 + 5_000), "a short one is bounded by its size");
        let input = json!({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}, {"type": "input_file", "file_id": "g"},
            {"type": "hologram", "hologram": {"url": "u"}}]}, {"type": "function_call", "name": "f", "arguments": "{\"url\": \"u\"}"}]});
        assert_eq!(found(Api::Responses, &input), (2, 1, 0), "what nobody knows may be an image");
    }

    #[test]
    fn an_image_has_as_many_tokens_as_its_model_takes_it_for() {
        for (model, text, tokens) in [
            ("gpt-4o-mini-2024-07-18", "", 48_200),
            ("gpt-4o", "", 5_000),
            ("gpt-4o", r#"{"detail":"original"}"#, 12_000),
            ("gpt-5.5", "", 12_000),
            ("claude-sonnet-4-6", "", 5_000),
            ("qwen3-vl-plus", "", 16_400),
        ] {
            assert_eq!(tokens_of_an_image(model, text), tokens, "{model}");
        }
    }
}
