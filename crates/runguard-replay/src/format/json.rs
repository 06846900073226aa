//! JSON as it stands in a record: texts are borrowed, and unescaped when somebody wants to see them.
//!
//! Most of a record is text, and much of it is never looked at: every question repeats the conversation so far. What is JSON, and
//! what a number says, is `serde_json`'s word: whatever is not plain here is left to it.

use memchr::{memchr, memchr2};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Number;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;

/// Lists and objects inside each other that are read here.
const DEEPEST: usize = 100;
/// Of so many members each is compared with each.
const FEW_MEMBERS: usize = 16;

#[derive(Debug, Clone, Default)]
pub(super) enum Value<'a> {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    String(Text<'a>),
    Array(Vec<Self>),
    Object(Map<'a>),
}

#[derive(Debug, Clone)]
pub(super) enum Text<'a> {
    Plain(Cow<'a, str>),
    /// As it is written, and as it reads once somebody asked.
    Escaped(&'a str, OnceCell<String>),
}

impl<'a> Text<'a> {
    /// What it says; borrowed where it is written so.
    pub(super) fn to_cow(&self) -> Cow<'a, str> {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Escaped(raw, text) => Cow::Owned(text.get().cloned().unwrap_or_else(|| unescaped(raw, usize::MAX))),
        }
    }

    /// As many bytes of what it says, or a few less where a letter ends.
    pub(super) fn beginning(&self, bytes: usize) -> String {
        let mut text = match self {
            Self::Plain(text) => text[..text.floor_char_boundary(bytes)].to_owned(),
            Self::Escaped(raw, _) => unescaped(raw, bytes),
        };
        text.truncate(text.floor_char_boundary(bytes));
        text
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Escaped(raw, text) => text.get_or_init(|| unescaped(raw, usize::MAX)),
        }
    }
}

/// Members in the order they stand; each name once.
#[derive(Debug, Clone, Default)]
pub(super) struct Map<'a>(Vec<(Cow<'a, str>, Value<'a>)>);

impl<'a> Map<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.0.iter().find(|(member, _)| member == name).map(|(_, value)| value)
    }

    pub(super) fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Value<'a>)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Value<'a>> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(super) fn insert(&mut self, name: impl Into<Cow<'a, str>>, value: Value<'a>) {
        let name = name.into();
        match self.0.iter_mut().find(|(member, _)| *member == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Value<'a>> {
        self.0.iter_mut().find(|(member, _)| member == name).map(|(_, value)| value)
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|(name, _)| is_kept(name));
    }

    pub(super) fn to_value(&self) -> serde_json::Map<String, serde_json::Value> {
        self.iter().map(|(name, value)| (name.to_owned(), value.to_value())).collect()
    }
}

impl<'a> FromIterator<(Cow<'a, str>, Value<'a>)> for Map<'a> {
    /// Of members with one name the last counts, where the first stands.
    fn from_iter<I: IntoIterator<Item = (Cow<'a, str>, Value<'a>)>>(members: I) -> Self {
        let mut members: Vec<(Cow<'a, str>, Value<'a>)> = members.into_iter().collect();
        if members.len() <= FEW_MEMBERS {
            let is_twice = |at: usize| members[..at].iter().any(|(name, _)| *name == members[at].0);
            if !(1..members.len()).any(is_twice) {
                return Self(members);
            }
        }
        let mut places: HashMap<Cow<'a, str>, usize> = HashMap::with_capacity(members.len());
        let mut kept = 0;
        for at in 0..members.len() {
            if let Some(place) = places.get(&members[at].0) {
                members[*place].1 = std::mem::take(&mut members[at].1);
            } else {
                places.insert(members[at].0.clone(), kept);
                members.swap(kept, at);
                kept += 1;
            }
        }
        members.truncate(kept);
        Self(members)
    }
}

impl<'a> Value<'a> {
    /// Of a record's bytes.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, serde_json::Error> {
        match std::str::from_utf8(bytes).ok().and_then(Parser::whole) {
            Some(value) => Ok(value),
            None => serde_json::from_slice::<serde_json::Value>(bytes).map(Self::from),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }

    pub(super) fn pointer(&self, pointer: &str) -> Option<&Self> {
        pointer.split('/').skip(1).try_fold(self, |value, name| match value {
            Self::Array(values) => values.get(name.parse::<usize>().ok()?),
            other => other.get(name),
        })
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_text(&self) -> Option<&Text<'a>> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_array(&self) -> Option<&[Self]> {
        if let Self::Array(values) = self { Some(values) } else { None }
    }

    pub(super) fn as_object(&self) -> Option<&Map<'a>> {
        if let Self::Object(members) = self { Some(members) } else { None }
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(flag) = self { Some(*flag) } else { None }
    }

    fn as_number(&self) -> Option<&Number> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }

    pub(super) fn as_f64(&self) -> Option<f64> {
        self.as_number()?.as_f64()
    }

    pub(super) fn as_i64(&self) -> Option<i64> {
        self.as_number()?.as_i64()
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        self.as_number()?.as_u64()
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// With texts of its own.
    pub(super) fn to_value(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(flag) => serde_json::Value::Bool(*flag),
            Self::Number(number) => serde_json::Value::Number(number.clone()),
            Self::String(text) => serde_json::Value::String(text.to_cow().into_owned()),
            Self::Array(values) => serde_json::Value::Array(values.iter().map(Self::to_value).collect()),
            Self::Object(members) => serde_json::Value::Object(members.to_value()),
        }
    }
}

impl From<serde_json::Value> for Value<'_> {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(flag) => Self::Bool(flag),
            serde_json::Value::Number(number) => Self::Number(number),
            serde_json::Value::String(text) => text.into(),
            serde_json::Value::Array(values) => Self::Array(values.into_iter().map(Self::from).collect()),
            serde_json::Value::Object(members) => {
                Self::Object(Map(members.into_iter().map(|(name, value)| (name.into(), value.into())).collect()))
            }
        }
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::String(Text::Plain(text.into()))
    }
}

impl<'a> From<Cow<'a, str>> for Value<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self::String(Text::Plain(text))
    }
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(flag) => serializer.serialize_bool(*flag),
            Self::Number(number) => number.serialize(serializer),
            Self::String(text) => serializer.serialize_str(text),
            Self::Array(values) => values.serialize(serializer),
            Self::Object(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members.iter() {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// Gives `None` at everything that is not plain JSON.
struct Parser<'a> {
    text: &'a str,
    at: usize,
    deep: usize,
}

impl<'a> Parser<'a> {
    fn whole(text: &'a str) -> Option<Value<'a>> {
        let mut parser = Self { text, at: 0, deep: 0 };
        let value = parser.value()?;
        parser.skip_space().is_none().then_some(value)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) -> Option<u8> {
        loop {
            let byte = self.peek()?;
            if !matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    fn value(&mut self) -> Option<Value<'a>> {
        match self.skip_space()? {
            b'"' => Some(Value::String(self.string()?)),
            b'{' => self.inside(Self::object),
            b'[' => self.inside(Self::array),
            b't' => self.word("true", Value::Bool(true)),
            b'f' => self.word("false", Value::Bool(false)),
            b'n' => self.word("null", Value::Null),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str, value: Value<'a>) -> Option<Value<'a>> {
        self.text[self.at..].starts_with(word).then(|| {
            self.at += word.len();
            value
        })
    }

    fn inside(&mut self, read: impl FnOnce(&mut Self) -> Option<Value<'a>>) -> Option<Value<'a>> {
        self.at += 1;
        self.deep += 1;
        let value = if self.deep < DEEPEST { read(self) } else { None };
        self.deep -= 1;
        value
    }

    /// Whether another one follows; past the comma, or past the end.
    fn goes_on(&mut self, end: u8) -> Option<bool> {
        let byte = self.skip_space()?;
        self.at += 1;
        (byte == b',' || byte == end).then_some(byte == b',')
    }

    fn array(&mut self) -> Option<Value<'a>> {
        let mut values = Vec::new();
        if self.skip_space()? == b']' {
            self.at += 1;
            return Some(Value::Array(values));
        }
        loop {
            values.push(self.value()?);
            if !self.goes_on(b']')? {
                return Some(Value::Array(values));
            }
        }
    }

    fn object(&mut self) -> Option<Value<'a>> {
        let mut members = Vec::new();
        if self.skip_space()? == b'}' {
            self.at += 1;
            return Some(Value::Object(Map(members)));
        }
        loop {
            if self.skip_space()? != b'"' {
                return None;
            }
            let name = self.string()?.to_cow();
            if self.skip_space()? != b':' {
                return None;
            }
            self.at += 1;
            members.push((name, self.value()?));
            if !self.goes_on(b'}')? {
                return Some(Value::Object(members.into_iter().collect()));
            }
        }
    }

    fn number(&mut self) -> Option<Value<'a>> {
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte)).count();
        let number = &self.text[self.at..self.at + length];
        self.at += length;
        serde_json::from_str(number).ok().map(Value::Number)
    }

    fn string(&mut self) -> Option<Text<'a>> {
        let bytes = self.text.as_bytes();
        let start = self.at + 1;
        let (mut at, mut is_escaped) = (start, false);
        loop {
            at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
            if bytes[at] == b'"' {
                break;
            }
            is_escaped = true;
            at += match bytes.get(at + 1)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
                b'u' => match unit(bytes, at)? {
                    // The first half of a pair.
                    0xd800..=0xdbff if matches!(unit(bytes, at + 6), Some(0xdc00..=0xdfff)) => 12,
                    0xd800..=0xdfff => return None,
                    _ => 6,
                },
                _ => return None,
            };
        }
        let raw = &self.text[start..at];
        self.at = at + 1;
        // Those may not stand in a text as they are.
        if raw.bytes().fold(u8::MAX, u8::min) < b' ' {
            return None;
        }
        Some(if is_escaped { Text::Escaped(raw, OnceCell::new()) } else { Text::Plain(raw.into()) })
    }
}

/// The number in `\u00e9`.
fn unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |number, digit| Some(number * 16 + char::from(*digit).to_digit(16)?))
}

/// Of a text that was looked through; so many bytes of it at least.
fn unescaped(raw: &str, least: usize) -> String {
    let bytes = raw.as_bytes();
    let mut out = String::with_capacity(raw.len().min(least));
    let mut at = 0;
    while out.len() < least
        && let Some(plain) = memchr(b'\\', &bytes[at..])
    {
        out.push_str(&raw[at..at + plain]);
        at += plain;
        let (letter, length) = match bytes.get(at + 1) {
            Some(b'n') => ('\n', 2),
            Some(b't') => ('\t', 2),
            Some(b'r') => ('\r', 2),
            Some(b'b') => ('\u{8}', 2),
            Some(b'f') => ('\u{c}', 2),
            Some(b'u') => {
                let first = unit(bytes, at).unwrap_or_default();
                let second = unit(bytes, at + 6).unwrap_or_default();
                match char::from_u32(first) {
                    Some(letter) => (letter, 6),
                    None => (char::from_u32(0x1_0000 + ((first & 0x3ff) << 10 | (second & 0x3ff))).unwrap_or_default(), 12),
                }
            }
            Some(other) => (char::from(*other), 2),
            None => break,
        };
        out.push(letter);
        at += length;
    }
    if out.len() < least {
        out.push_str(&raw[at..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same as `serde_json` makes of it, also where it makes nothing of it.
    fn check(text: &[u8]) {
        let (ours, theirs) = (Value::parse(text), serde_json::from_slice::<serde_json::Value>(text));
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                assert_eq!(ours.to_value(), theirs);
                assert_eq!(ours.to_string(), theirs.to_string(), "in this order, written so");
            }
            (Err(ours), Err(theirs)) => assert_eq!(ours.to_string(), theirs.to_string()),
            (ours, theirs) => panic!("{ours:?} is not {theirs:?} of {:?}", String::from_utf8_lossy(text)),
        }
    }

    #[test]
    fn it_is_what_serde_json_says() {
        for text in [
            "",
            " ",
            "null",
            "nul",
            "truex",
            " [ ] ",
            "[,]",
            "[1,]",
            "{,}",
            "{\"a\":1,}",
            "{\"a\" :1 , \"b\":[{ }]}",
            "{\"a\":1,\"b\":2,\"a\":3}",
            "{\"\\u0061\":1,\"a\":2}",
            "[0,-0,-0.0,1.0,1e5,1E+2,12345678901234567890123,18446744073709551615,-9223372036854775808,0.1,1e-400]",
            "01",
            "1.",
            ".5",
            "-",
            "+1",
            "1e999",
            "1-2",
            "[1 2]",
            "\"\\n\\t\\r\\b\\f\\/\\\\\\\"\"",
            "\"\\ud83d\\ude00 \\u00e9 é 😀\"",
            "\"\\ud83d\"",
            "\"\\ude00\"",
            "\"\\ud83d\\u0041\"",
            "\"\\ud83dx\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\\u+123\"",
            "\"\\x\"",
            "\"\\",
            "\"a\nb\"",
            "\"a",
            "{\"a\":\"b\"} x",
            "{1:2}",
            "\u{feff}{}",
        ] {
            check(text.as_bytes());
        }
        check(b"\"\xff\"");
        for deep in [50, 99, 100, 126, 127, 128, 129, 500] {
            check(format!("{}{}", "[".repeat(deep), "]".repeat(deep)).as_bytes());
        }
        let many: Vec<String> = (0..60).map(|index| format!("\"{}\":{index}", index % 40)).collect();
        check(format!("{{{}}}", many.join(",")).as_bytes());
    }

    proptest! {
        #[test]
        fn whatever_it_is_made_of(pieces in proptest::collection::vec(proptest::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\"b\":", "\"a\":", "\\", "\\n", "\\u", "\\ud83d", "\\ude00", "0", "12", "-", ".5", "e3", "true",
            "null", " ", "\n", "é", "x", "{\"a\":[1,{\"b\":\"c\\td\"}],\"e\":\"\\u00e9\"}", "[\"\\\\\",\"\\\"\",[]]",
        ]), 0..12)) {
            check(pieces.concat().as_bytes());
        }

        #[test]
        fn whatever_it_says(texts in proptest::collection::vec(any::<String>(), 0..6)) {
            let whole = serde_json::json!({"texts": texts, "by name": texts.iter().map(|text| (text.clone(), text.len())).collect::<HashMap<_, _>>()});
            check(whole.to_string().as_bytes());
            check(serde_json::to_string_pretty(&whole).unwrap().as_bytes());
            let value = whole.to_string();
            let value = Value::parse(value.as_bytes()).unwrap();
            for (text, said) in texts.iter().zip(value.get("texts").and_then(Value::as_array).unwrap()) {
                prop_assert_eq!(said.as_text().unwrap().beginning(7), &text[..text.floor_char_boundary(7)]);
                prop_assert_eq!(said.as_str(), Some(text.as_str()));
            }
        }
    }
}
