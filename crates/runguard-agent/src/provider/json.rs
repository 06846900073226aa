//! Writes a request body straight into bytes: the whole conversation is sent with every step, and a tree of values would copy every
//! message.

use serde::Serialize;

/// JSON under construction. Commas come by themselves; braces are the caller's.
#[derive(Debug)]
pub(super) struct JsonWriter(Vec<u8>);

impl JsonWriter {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Text that is JSON already, or a part of it.
    pub(super) fn raw(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }

    /// Begins the next element of a list or the next field of an object.
    pub(super) fn next(&mut self) {
        if !matches!(self.0.last(), None | Some(b'[' | b'{')) {
            self.0.push(b',');
        }
    }

    /// The name of a field, with the comma before it.
    pub(super) fn field(&mut self, name: &str) {
        self.next();
        self.string(name);
        self.0.push(b':');
    }

    pub(super) fn string_field(&mut self, name: &str, text: &str) {
        self.field(name);
        self.string(text);
    }

    pub(super) fn string(&mut self, text: &str) {
        self.value(&text);
    }

    /// Several texts as one, an empty line between them.
    pub(super) fn joined<'a>(&mut self, texts: impl Iterator<Item = &'a str>) {
        self.string(&texts.collect::<Vec<_>>().join("\n\n"));
    }

    /// What cannot be written is null; nothing here has such a shape.
    pub(super) fn value(&mut self, value: &impl Serialize) {
        let before = self.0.len();
        if serde_json::to_writer(&mut self.0, value).is_err() {
            self.0.truncate(before);
            self.raw("null");
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The arguments of a call if they are a JSON object, else an empty one: every provider reads them, and refuses the whole
/// conversation over one that a model once wrote wrong. The call's result tells the model.
pub(super) fn object_or_empty(arguments: &str) -> &str {
    let text = arguments.trim();
    let is_object = text.starts_with('{')
        && if text.contains("\\u") {
            // Only a full reading finds an escape that is half a character.
            serde_json::from_str::<serde_json::Value>(text).is_ok()
        } else {
            serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
        };
    if is_object { text } else { "{}" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_come_between_and_nowhere_else() {
        let mut json = JsonWriter::with_capacity(0);
        json.raw("{");
        json.string_field("a", "1");
        json.field("b");
        json.raw("[");
        json.next();
        json.value(&2);
        json.next();
        json.value(&3);
        json.raw("]");
        json.field("c");
        json.joined(["\"", "é\n"].into_iter());
        json.field("d");
        json.joined(std::iter::empty());
        json.raw("}");
        assert_eq!(String::from_utf8(json.into_bytes()).unwrap(), r#"{"a":"1","b":[2,3],"c":"\"\n\né\n","d":""}"#);
    }

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
            assert_eq!(object_or_empty(written), sent, "{written}");
        }
    }
}
