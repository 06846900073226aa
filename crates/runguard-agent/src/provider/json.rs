//! Bodies of requests: what is sent is borrowed from the conversation and written once.

use serde::Serialize;
use serde_json::value::RawValue;

/// A body as it is sent, about so long. What cannot be written is nothing; nothing here has such a shape.
pub(super) fn bytes_of(body: &impl Serialize, capacity: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(capacity);
    if serde_json::to_writer(&mut bytes, body).is_err() {
        bytes.clear();
    }
    bytes
}

/// The arguments of a call if they are a JSON object, else an empty one: every provider reads them, and refuses the whole
/// conversation over one that a model once wrote wrong. The call's result tells the model.
pub(super) fn object_or_empty(arguments: &str) -> &RawValue {
    let text = arguments.trim();
    // Only a full reading finds an escape that is half a character.
    let is_whole = || !text.contains("\\u") || serde_json::from_str::<serde_json::Value>(text).is_ok();
    let object = serde_json::from_str::<&RawValue>(text).ok().filter(|_| text.starts_with('{') && is_whole());
    object.unwrap_or_else(|| serde_json::from_str("{}").unwrap_or(RawValue::NULL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_is_sent_as_arguments() {
        for (written, sent) in [
            (" {\"a\": [1]} ", "{\"a\": [1]}"),
            ("", "{}"),
            ("[1]", "{}"),
            ("\"{}\"", "{}"),
            ("{\"a\": 1", "{}"),
            ("{} {}", "{}"),
            (r#"{"a":"\ud83d\ude00"}"#, r#"{"a":"\ud83d\ude00"}"#),
            (r#"{"a":"\ud83d"}"#, "{}"),
        ] {
            assert_eq!(object_or_empty(written).get(), sent, "{written}");
        }
    }
}
