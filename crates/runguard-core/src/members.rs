//! The members of a JSON object where they stand in its text, and changes to single ones that leave every other byte as it came.
//!
//! A provider's prompt cache goes by bytes, and a caller may send fields that nobody here knows. So a body is never written anew:
//! what has to be changed is cut out and put in.

use crate::object::Object;
use serde::Deserialize;
use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::ops::{ControlFlow, Range};

/// Why a body cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    /// Not UTF-8.
    #[error("the body is not UTF-8 text")]
    NotText,
    /// Not JSON, or of another kind; why.
    #[error("the body is not a JSON object: {0}")]
    NotAnObject(String),
    /// Whoever reads the first and whoever reads the last would understand different things.
    #[error("the member `{0}` stands in the body more than once; send it once")]
    Twice(String),
    /// It is there, and cannot be what it is.
    #[error("the member `{name}` {problem}")]
    Member {
        /// Which one.
        name: &'static str,
        /// What it must be.
        problem: &'static str,
    },
}

/// A name as those servers compare it that pay no attention to case: some fold two more letters to plain ones, the long s and the sign of Kelvin.
fn folded(name: &str) -> String {
    name.to_lowercase().replace('\u{17f}', "s")
}

/// The members of an object, values unread.
#[derive(Debug)]
pub struct Members<'a> {
    text: &'a str,
    list: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> Members<'a> {
    /// Names of members occur once, whatever their case.
    pub fn read(body: &'a [u8]) -> Result<Self, BadBody> {
        let text = std::str::from_utf8(body).map_err(|_| BadBody::NotText)?;
        let Object(list) = serde_json::from_str(text).map_err(|error| BadBody::NotAnObject(error.to_string()))?;
        // Some servers read names without regard to case.
        let mut names: Vec<String> = list.iter().map(|(name, _)| folded(name)).collect();
        names.sort_unstable();
        if let Some([twice, ..]) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(BadBody::Twice(crate::text::cut(twice, 64).to_owned()));
        }
        Ok(Self { text, list })
    }

    /// All of it.
    pub fn whole_text(&self) -> &'a str {
        self.text
    }

    /// The members that say anything, by their names.
    pub fn said(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.list.iter().map(|(name, value)| (name.as_ref(), value.get())).filter(|(_, value)| *value != "null")
    }

    /// A member's text; one that is null is not there.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.raw(name).filter(|value| *value != "null")
    }

    /// One of these names written otherwise, which some servers would take for it and others not.
    pub fn misspelt(&self, names: &[&str]) -> Option<&str> {
        let is_variant = |name: &str| names.iter().any(|known| *known != name && *known == folded(name));
        self.list.iter().map(|(name, _)| name.as_ref()).find(|name| is_variant(name))
    }

    fn raw(&self, name: &str) -> Option<&'a str> {
        self.list.iter().find(|(known, _)| known == name).map(|(_, value)| value.get())
    }

    /// A member that must be text.
    pub fn text(&self, name: &'static str) -> Result<Option<Cow<'a, str>>, BadBody> {
        self.read_as(name, "must be text")
    }

    /// A member that must be a whole number.
    pub fn whole(&self, name: &'static str) -> Result<Option<u64>, BadBody> {
        self.read_as(name, "must be a whole number")
    }

    /// The same of a member inside of another, behind a point.
    pub fn whole_at(&self, path: &'static str) -> Result<Option<u64>, BadBody> {
        match path.split_once('.') {
            None => self.whole(path),
            Some((outer, inner)) => self.object(outer)?.map_or(Ok(None), |outer| outer.whole(inner)),
        }
    }

    /// Whether there is such a member, behind a point one inside of another.
    pub fn has_at(&self, path: &str) -> bool {
        match path.split_once('.') {
            None => self.get(path).is_some(),
            Some((outer, inner)) => {
                self.get(outer).and_then(|outer| Members::read(outer.as_bytes()).ok()).is_some_and(|outer| outer.get(inner).is_some())
            }
        }
    }

    /// The members of one that is an object.
    pub fn object(&self, name: &'static str) -> Result<Option<Self>, BadBody> {
        let problem = |error| match error {
            BadBody::NotAnObject(_) => BadBody::Member { name, problem: "must be an object" },
            error => error,
        };
        self.get(name).map(|value| Members::read(value.as_bytes()).map_err(problem)).transpose()
    }

    /// A member that must be true or false; without it, false.
    pub fn flag(&self, name: &'static str) -> Result<bool, BadBody> {
        Ok(self.read_as(name, "must be true or false")?.unwrap_or(false))
    }

    fn read_as<T: Deserialize<'a>>(&self, name: &'static str, problem: &'static str) -> Result<Option<T>, BadBody> {
        self.get(name).map(|value| serde_json::from_str(value).map_err(|_| BadBody::Member { name, problem })).transpose()
    }

    /// Where a member's value stands.
    fn place(&self, name: &str) -> Option<Range<usize>> {
        Some(place_in(self.text, self.raw(name)?))
    }

    /// The text with one member set to this JSON: in its place, or behind the others.
    pub fn set(&self, name: &str, value: &str) -> String {
        if let Some(place) = self.place(name) {
            return [&self.text[..place.start], value, &self.text[place.end..]].concat();
        }
        let end = self.text.rfind('}').unwrap_or(self.text.len());
        let comma = if self.list.is_empty() { "" } else { "," };
        [&self.text[..end], comma, "\"", name, "\":", value, &self.text[end..]].concat()
    }

    /// The same of a member inside of another, behind a point; the other is made where it is not there.
    pub fn set_at(&self, path: &'static str, value: &str) -> Result<String, BadBody> {
        match path.split_once('.') {
            None => Ok(self.set(path, value)),
            Some((outer, inner)) => {
                let changed = match self.object(outer)? {
                    Some(members) => members.set(inner, value),
                    None => format!("{{\"{inner}\":{value}}}"),
                };
                Ok(self.set(outer, &changed))
            }
        }
    }

    /// The text without one member and without a comma that separated it.
    pub fn without(&self, name: &str) -> Option<String> {
        let value = self.place(name)?;
        let before = self.text[..value.start].trim_end().strip_suffix(':')?.trim_end();
        // The name ends with a quote; it has no other but escaped ones, which a name that is looked for here does not have.
        let name_start = before[..before.len() - 1].rfind('"')?;
        let (head, tail) = (self.text[..name_start].trim_end(), self.text[value.end..].trim_start());
        Some(match (head.strip_suffix(','), tail.strip_prefix(',')) {
            (Some(head), _) => [head, &self.text[value.end..]].concat(),
            (None, Some(tail)) => [&self.text[..name_start], tail.trim_start()].concat(),
            (None, None) => [&self.text[..name_start], &self.text[value.end..]].concat(),
        })
    }
}

/// Shows the items of a list until enough was seen; what comes behind is not read. Whether it is a list.
pub fn first_items(text: &str, mut see: impl FnMut(Value) -> ControlFlow<()>) -> bool {
    struct Items<'a, F>(&'a mut F, &'a mut bool);
    impl<'de, F: FnMut(Value) -> ControlFlow<()>> Visitor<'de> for Items<'_, F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
            let Self(see, is_list) = self;
            *is_list = true;
            while let Some(item) = items.next_element()? {
                if see(item).is_break() {
                    break;
                }
            }
            Ok(())
        }
    }
    let mut is_list = false;
    // Where it was left in the middle, that is no mistake.
    let _ = serde_json::Deserializer::from_str(text).deserialize_seq(Items(&mut see, &mut is_list));
    is_list
}

/// Where a part of a text stands in it.
pub fn place_in(text: &str, part: &str) -> Range<usize> {
    // How far its beginning is from the text's.
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}

/// Text, borrowed where it has no escapes.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct BorrowedText<'a>(
    /// It.
    #[serde(borrow)]
    pub Cow<'a, str>,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_list_no_more_is_read_than_somebody_wants_to_see() {
        let seen = |text: &str, most: usize| {
            let mut seen = Vec::new();
            let see = |item: Value| {
                seen.push(item);
                if seen.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            (first_items(text, see), Value::from(seen).to_string())
        };
        let list = r#"[1, {"a": [2]}, "3", what comes behind"#;
        assert_eq!(seen(list, 3), (true, r#"[1,{"a":[2]},"3"]"#.to_owned()));
        assert_eq!(seen("[1, 2]", 5), (true, "[1,2]".to_owned()));
        assert_eq!(seen("[]", 5), (true, "[]".to_owned()));
        for other in ["{}", "\"[1]\"", "7", "null"] {
            assert_eq!(seen(other, 5), (false, "[]".to_owned()), "{other}");
        }
    }

    #[test]
    fn a_change_leaves_every_other_byte() {
        let body = br#" { "model" : "m",  "max_tokens":  9 , "x": {"y": [1, 2.50]} } "#;
        let members = Members::read(body).unwrap();
        assert_eq!(members.set("max_tokens", "16"), r#" { "model" : "m",  "max_tokens":  16 , "x": {"y": [1, 2.50]} } "#);
        assert_eq!(members.set("stream", "true"), r#" { "model" : "m",  "max_tokens":  9 , "x": {"y": [1, 2.50]} ,"stream":true} "#);
        assert_eq!(Members::read(b"{}").unwrap().set("a", "1"), r#"{"a":1}"#);
        assert_eq!(members.without("max_tokens").unwrap(), r#" { "model" : "m" , "x": {"y": [1, 2.50]} } "#);
        assert_eq!(members.without("model").unwrap(), r#" { "max_tokens":  9 , "x": {"y": [1, 2.50]} } "#);
        assert_eq!(Members::read(br#"{"id":"1","usage":null}"#).unwrap().without("usage").unwrap(), r#"{"id":"1"}"#);
        assert_eq!(Members::read(br#"{"usage":null}"#).unwrap().without("usage").unwrap(), "{}");
        assert_eq!(members.without("absent"), None);
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        assert_eq!(Members::read(br#"{"a":1,"b":2,"a":3}"#).unwrap_err(), BadBody::Twice("a".into()));
        assert_eq!(Members::read(br#"{"max_tokens":1,"MAX_TOKENS":2}"#).unwrap_err(), BadBody::Twice("max_tokens".into()));
        assert_eq!(Members::read(br#"{"Model":1}"#).unwrap().misspelt(&["model"]), Some("Model"));
        let folded = ["max_token\u{17f}", r"max_token\u017f", "max_to\u{212a}ens", "MAX_TO\u{212a}ENS"];
        for name in folded {
            let alone = format!(r#"{{"{name}":1}}"#);
            assert!(Members::read(alone.as_bytes()).unwrap().misspelt(&["max_tokens"]).is_some(), "{name}");
            let both = format!(r#"{{"max_tokens":1,"{name}":2}}"#);
            assert!(matches!(Members::read(both.as_bytes()), Err(BadBody::Twice(_))), "{name}");
        }
        assert_eq!(Members::read(b"\xFF").unwrap_err(), BadBody::NotText);
        for body in [&b"[]"[..], b"", b"{", b"{}x", b"\"a\""] {
            assert!(matches!(Members::read(body), Err(BadBody::NotAnObject(_))));
        }
        let members = Members::read(br#"{"n":"3","s":1,"nothing":null}"#).unwrap();
        assert!(members.whole("n").is_err() && members.text("s").is_err());
        assert_eq!(members.text("nothing"), Ok(None));
        let no_object = BadBody::Member { name: "s", problem: "must be an object" };
        assert_eq!(members.object("s").unwrap_err(), no_object);
        assert_eq!((members.whole_at("s.n"), members.set_at("s.n", "1").unwrap_err()), (Err(no_object.clone()), no_object));
        assert!(members.object("nothing").unwrap().is_none());
        assert_eq!(Members::read(b"{}").unwrap().set_at("a.b", "1").unwrap(), r#"{"a":{"b":1}}"#);
    }

    proptest::proptest! {
        #[test]
        fn what_was_set_is_there_and_the_rest_unchanged(names in proptest::collection::btree_set("[a-e]{1,2}", 0..5), which in "[a-e]{1,2}") {
            let object: serde_json::Map<String, Value> = names.iter().enumerate().map(|(at, name)| (name.clone(), at.into())).collect();
            let text = serde_json::to_string(&object).unwrap();
            let members = Members::read(text.as_bytes()).unwrap();
            let mut expected = object.clone();
            expected.insert(which.clone(), Value::from("new"));
            let set: serde_json::Map<String, Value> = serde_json::from_str(&members.set(&which, "\"new\"")).unwrap();
            proptest::prop_assert_eq!(set, expected);
            if let Some(without) = members.without(&which) {
                let mut expected = object;
                expected.remove(&which);
                proptest::prop_assert_eq!(serde_json::from_str::<serde_json::Map<String, Value>>(&without).unwrap(), expected);
            }
        }
    }
}
