//! Writes a request body straight into bytes.
//!
//! The whole conversation is sent with every step, so this is the loop's dearest work of its own. Building a tree of values
//! would copy every message, and a serialiser that looks at one byte at a time takes most of its time in plain text: here
//! eight bytes are looked at together, and what needs no escape is copied in one piece.

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
        self.0.push(b'"');
        self.escaped(text);
        self.0.push(b'"');
    }

    /// Several texts as one, an empty line between them.
    pub(super) fn joined<'a>(&mut self, texts: impl Iterator<Item = &'a str>) {
        self.0.push(b'"');
        for (number, text) in texts.enumerate() {
            if number > 0 {
                self.raw("\\n\\n");
            }
            self.escaped(text);
        }
        self.0.push(b'"');
    }

    fn escaped(&mut self, text: &str) {
        let mut rest = text.as_bytes();
        loop {
            let plain = plain_prefix(rest);
            let (copied, after) = rest.split_at(plain);
            self.0.extend_from_slice(copied);
            let Some((special, after)) = after.split_first() else { break };
            self.escape(*special);
            rest = after;
        }
    }

    fn escape(&mut self, byte: u8) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let short = match byte {
            b'"' | b'\\' => byte,
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            other => {
                self.raw("\\u00");
                self.0.extend_from_slice(&[HEX[usize::from(other >> 4)], HEX[usize::from(other & 15)]]);
                return;
            }
        };
        self.0.extend_from_slice(&[b'\\', short]);
    }

    /// Anything small. What cannot be written is null; nothing here has such a shape.
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

/// How many bytes from the start need no escape.
fn plain_prefix(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // The lowest mark of each is true; a borrow can only make false ones above it, and the lowest is all that is used.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
    let (words, tail) = bytes.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let marks = below(word, 0x20) | below(word ^ (ONES * u64::from(b'"')), 1) | below(word ^ (ONES * u64::from(b'\\')), 1);
        if marks != 0 {
            return number * 8 + marks.trailing_zeros() as usize / 8;
        }
    }
    let special = tail.iter().position(|byte| *byte < 0x20 || *byte == b'"' || *byte == b'\\');
    bytes.len() - tail.len() + special.unwrap_or(tail.len())
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
    use proptest::prelude::*;

    fn written(text: &str) -> String {
        let mut json = JsonWriter::with_capacity(0);
        json.string(text);
        String::from_utf8(json.into_bytes()).unwrap()
    }

    #[test]
    fn every_byte_below_128_at_every_place_in_a_word_reads_back() {
        for byte in 0..128_u8 {
            for place in 0..17 {
                let text = format!("{}{}{}", "é".repeat(place), char::from(byte), "\u{7f}~ !#[]".repeat(2));
                assert_eq!(serde_json::from_str::<String>(&written(&text)).unwrap(), text);
            }
        }
    }

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
        json.raw("]}");
        assert_eq!(String::from_utf8(json.into_bytes()).unwrap(), r#"{"a":"1","b":[2,3]}"#);
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

    proptest! {
        #[test]
        fn any_text_reads_back(text in any::<String>(), noise in "[\\x00-\\x22\\\\a-cäß€😀]{0,64}") {
            prop_assert_eq!(serde_json::from_str::<String>(&written(&text)).unwrap(), text);
            prop_assert_eq!(serde_json::from_str::<String>(&written(&noise)).unwrap(), noise);
        }
    }
}
