//! Writes the canonical form: all of its rules are here.
//!
//! Members are written as they come. An object that ends with its keys in order, none twice, is finished already;
//! only else are its members put in order. So text that comes from a program, which mostly sorts or repeats its order,
//! is written once.

use super::{DEEPEST, FingerprintError, Volatile};
use serde_json::{Number, Value};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::Write as _;
use std::ops::Range;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

#[derive(Debug)]
pub(super) struct Writer<'v> {
    out: String,
    /// The members so far of all objects that are not finished, the innermost last.
    members: Vec<Member>,
    /// Their names, as they are compared: composed and without escapes.
    names: String,
    /// Where members are put in order, kept for the next object.
    ordered: String,
    /// The name of the member that is being written, from the top. Kept only where paths are left out.
    path: String,
    volatile: &'v Volatile,
    depth: usize,
}

#[derive(Debug, Clone)]
struct Member {
    name: Range<usize>,
    /// `"name":value` in the output; nothing when the value is empty.
    text: Range<usize>,
}

/// An object that is being written.
#[derive(Debug)]
pub(super) struct Object {
    first_member: usize,
    first_name: usize,
    start: usize,
    in_order: bool,
}

/// A member that is being written.
#[derive(Debug)]
pub(super) struct OpenMember {
    /// Where the output goes back to if the member is dropped.
    start: usize,
    text: usize,
    value: usize,
    name: usize,
    path: usize,
    left_out: bool,
}

impl<'v> Writer<'v> {
    pub(super) fn new(volatile: &'v Volatile, room: usize) -> Self {
        Self {
            out: String::with_capacity(room),
            members: Vec::with_capacity(32),
            names: String::with_capacity(256),
            ordered: String::new(),
            path: String::new(),
            volatile,
            depth: 0,
        }
    }

    pub(super) fn finish(self) -> String {
        self.out
    }

    pub(super) fn value(&mut self, value: &Value) -> Result<(), FingerprintError> {
        match value {
            Value::Null => self.word("null"),
            Value::Bool(value) => self.word(if *value { "true" } else { "false" }),
            Value::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() => self.float(float),
                _ => self.integer(number),
            },
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                self.begin_array()?;
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        self.comma();
                    }
                    self.value(item)?;
                }
                self.end_array();
            }
            Value::Object(members) => {
                let mut object = self.begin_object()?;
                for (name, value) in members {
                    let member = self.begin_member(&object, name);
                    self.value(value)?;
                    self.end_member(&mut object, &member);
                }
                self.end_object(&object);
            }
        }
        Ok(())
    }

    /// `null`, `true` or `false`.
    pub(super) fn word(&mut self, word: &str) {
        self.out.push_str(word);
    }

    /// A whole number written as digits is kept as it is, however long.
    pub(super) fn digits(&mut self, digits: &str) {
        self.out.push_str(if digits == "-0" { "0" } else { digits });
    }

    fn integer(&mut self, number: &Number) {
        // Writing to a string does not fail.
        let _ = match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => write!(self.out, "{number}"),
            (None, Some(number)) => write!(self.out, "{number}"),
            (None, None) => write!(self.out, "{number}"),
        };
    }

    /// A number with a fraction or an exponent: its shortest digits, without an exponent if it is whole.
    pub(super) fn float(&mut self, float: f64) {
        // Writing to a string does not fail.
        let _ = if float == 0.0 {
            self.out.write_char('0')
        } else if float.fract() == 0.0 {
            write!(self.out, "{float}")
        } else {
            Number::from_f64(float).map_or(Ok(()), |number| write!(self.out, "{number}"))
        };
    }

    pub(super) fn string(&mut self, text: &str) {
        escape(&compose(text), &mut self.out);
    }

    /// A string in its quotes that is canonical as it stands: ASCII, and nothing in it must be escaped.
    pub(super) fn ready_string(&mut self, quoted: &str) {
        self.out.push_str(quoted);
    }

    pub(super) fn begin_array(&mut self) -> Result<(), FingerprintError> {
        self.go_deeper()?;
        self.out.push('[');
        Ok(())
    }

    /// Between the items of an array.
    pub(super) fn comma(&mut self) {
        self.out.push(',');
    }

    pub(super) fn end_array(&mut self) {
        self.depth -= 1;
        self.out.push(']');
    }

    pub(super) fn begin_object(&mut self) -> Result<Object, FingerprintError> {
        self.go_deeper()?;
        self.out.push('{');
        Ok(Object { first_member: self.members.len(), first_name: self.names.len(), start: self.out.len(), in_order: true })
    }

    pub(super) fn begin_member(&mut self, object: &Object, name: &str) -> OpenMember {
        let name = compose(name);
        let start = self.out.len();
        let text = self.comma_before(object);
        escape(&name, &mut self.out);
        self.member_of(start, text, &name)
    }

    /// A member whose name is a [`Self::ready_string`].
    pub(super) fn begin_ready_member(&mut self, object: &Object, quoted: &str) -> OpenMember {
        let start = self.out.len();
        let text = self.comma_before(object);
        self.out.push_str(quoted);
        self.member_of(start, text, &quoted[1..quoted.len() - 1])
    }

    fn comma_before(&mut self, object: &Object) -> usize {
        if self.out.len() > object.start {
            self.out.push(',');
        }
        self.out.len()
    }

    fn member_of(&mut self, start: usize, text: usize, name: &str) -> OpenMember {
        let (name_start, path) = (self.names.len(), self.path.len());
        self.names.push_str(name);
        self.out.push(':');
        let mut left_out = name.is_empty() || self.volatile.has_name(name);
        if self.volatile.has_paths() {
            if !self.path.is_empty() {
                self.path.push('.');
            }
            self.path.push_str(name);
            left_out |= self.volatile.has_path(&self.path);
        }
        OpenMember { start, text, value: self.out.len(), name: name_start, path, left_out }
    }

    pub(super) fn end_member(&mut self, object: &mut Object, member: &OpenMember) {
        self.path.truncate(member.path);
        if member.left_out {
            self.out.truncate(member.start);
            self.names.truncate(member.name);
            return;
        }
        let name = member.name..self.names.len();
        if object.in_order && self.members.len() > object.first_member {
            let previous = &self.members[self.members.len() - 1].name;
            object.in_order = by_utf16(&self.names[previous.clone()], &self.names[name.clone()]) == Ordering::Less;
        }
        let mut text = member.text..self.out.len();
        if is_empty(&self.out[member.value..]) {
            // Its name is remembered: of a key given twice the last one counts, also when that one is empty.
            self.out.truncate(member.start);
            text = member.start..member.start;
        }
        self.members.push(Member { name, text });
    }

    pub(super) fn end_object(&mut self, object: &Object) {
        self.depth -= 1;
        if !object.in_order {
            self.put_in_order(object);
        }
        self.members.truncate(object.first_member);
        self.names.truncate(object.first_name);
        self.out.push('}');
    }

    fn put_in_order(&mut self, object: &Object) {
        let names = &self.names;
        let members = &mut self.members[object.first_member..];
        // Equal names stay in the order they came: a later one has its name further back.
        members.sort_unstable_by(|left, right| {
            by_utf16(&names[left.name.clone()], &names[right.name.clone()]).then(left.name.start.cmp(&right.name.start))
        });
        self.ordered.clear();
        for (position, member) in members.iter().enumerate() {
            let is_overwritten = members.get(position + 1).is_some_and(|next| names[next.name.clone()] == names[member.name.clone()]);
            if is_overwritten || member.text.is_empty() {
                continue;
            }
            if !self.ordered.is_empty() {
                self.ordered.push(',');
            }
            self.ordered.push_str(&self.out[member.text.clone()]);
        }
        self.out.truncate(object.start);
        self.out.push_str(&self.ordered);
    }

    fn go_deeper(&mut self) -> Result<(), FingerprintError> {
        self.depth += 1;
        if self.depth > DEEPEST { Err(FingerprintError::TooDeep) } else { Ok(()) }
    }
}

/// Whether a value in canonical form says nothing.
pub(super) fn is_empty(canonical: &str) -> bool {
    matches!(canonical, "null" | "\"\"" | "[]" | "{}")
}

/// Unicode NFC; text that is composed already, as nearly all is, is not copied.
pub(super) fn compose(text: &str) -> Cow<'_, str> {
    // Characters before the first combining one (U+0300, which begins with this byte) are all composed.
    const FIRST_COMBINING: u8 = 0xcc;
    let is_composed = || text.bytes().all(|byte| byte < FIRST_COMBINING) || is_nfc_quick(text.chars()) == IsNormalized::Yes;
    if is_composed() { Cow::Borrowed(text) } else { Cow::Owned(text.nfc().collect()) }
}

/// The order of RFC 8785: by UTF-16 units.
fn by_utf16(left: &str, right: &str) -> Ordering {
    match left.bytes().zip(right.bytes()).find(|(left, right)| left != right) {
        None => left.len().cmp(&right.len()),
        Some((left, right)) => rank(left).cmp(&rank(right)),
    }
}

/// Bytes in the order of UTF-16 units. It differs from their own only between characters beyond U+FFFF (whose first
/// unit is a surrogate) and those from U+E000 to U+FFFF.
const fn rank(byte: u8) -> u8 {
    const FROM_E000: u8 = 0xee;
    const BEYOND_FFFF: u8 = 0xf0;
    match byte {
        BEYOND_FFFF..=0xf4 => byte - (BEYOND_FFFF - FROM_E000),
        FROM_E000..BEYOND_FFFF => byte + 5,
        _ => byte,
    }
}

fn escape(text: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push('"');
    let mut from = 0;
    loop {
        let position = from + plain_length(&text.as_bytes()[from..]);
        out.push_str(&text[from..position]);
        let Some(&byte) = text.as_bytes().get(position) else { break };
        from = position + 1;
        out.push('\\');
        match byte {
            b'"' | b'\\' => out.push(char::from(byte)),
            0x08 => out.push('b'),
            0x09 => out.push('t'),
            0x0a => out.push('n'),
            0x0c => out.push('f'),
            0x0d => out.push('r'),
            _ => {
                out.push_str("u00");
                out.push(char::from(HEX[usize::from(byte >> 4)]));
                out.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
    out.push('"');
}

/// How many bytes from the start stand for themselves in a JSON string: up to a quote, a backslash or a control
/// character. Looks at eight bytes at a time, because arguments are mostly plain text.
#[inline]
pub(super) fn plain_length(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // The lowest high bit set marks the first byte that is zero; those above it may be marked wrongly, which is
    // why only the lowest is used.
    let zero = |word: u64| word.wrapping_sub(ONES) & !word;
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (position, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk);
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let found = (zero(word ^ (ONES * u64::from(b'"'))) | zero(word ^ (ONES * u64::from(b'\\'))) | control) & HIGHS;
        if found != 0 {
            return position * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    chunks.len() * 8 + rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\').unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_ordered_by_utf16_units(left in "[a\u{e9}\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,4}", right in "[a\u{e9}\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,4}") {
            prop_assert_eq!(by_utf16(&left, &right), left.encode_utf16().cmp(right.encode_utf16()));
        }

        #[test]
        fn strings_are_escaped_as_json(text in "[\\x00-\\x22\\\\a-c\u{7f}é]{0,12}") {
            let mut out = String::new();
            escape(&text, &mut out);
            prop_assert_eq!(out, Value::String(text).to_string());
        }
    }
}
