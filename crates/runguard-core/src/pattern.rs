//! A regular expression from the settings.
//!
//! Linear time, bounded size, case-insensitive. `\b` is made ASCII: the Unicode form is a hundred times slower on
//! text that is not ASCII, and the values looked for (order numbers, dates, amounts) are ASCII.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An empty pattern is set to nothing: it switches a built-in one off.
#[derive(Debug, Clone)]
pub struct Pattern {
    source: String,
    regex: Option<Regex>,
}

impl Pattern {
    pub fn new(source: &str) -> Result<Self, String> {
        if source.is_empty() {
            return Ok(Self { source: String::new(), regex: None });
        }
        let regex = RegexBuilder::new(&with_ascii_boundaries(source))
            .case_insensitive(true)
            .size_limit(1 << 20)
            .dfa_size_limit(1 << 20)
            .build()
            .map_err(|error| format!("not a regular expression: {}", error.to_string().replace('\n', " ").trim()))?;
        Ok(Self { source: source.to_owned(), regex: Some(regex) })
    }

    /// For patterns written in this crate; a test compiles every one of them.
    pub(crate) fn built_in(source: &'static str) -> Self {
        Self::new(source).unwrap_or(Self { source: String::new(), regex: None })
    }

    pub fn is_set(&self) -> bool {
        self.regex.is_some()
    }

    pub fn is_in(&self, text: &str) -> bool {
        self.regex.as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

/// `\b` becomes `(?-u:\b)`; an escaped backslash before a `b`, and `\b{start}`, stay as they are.
fn with_ascii_boundaries(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 16);
    let mut chars = source.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        if c != '\\' {
            continue;
        }
        match chars.next() {
            Some('b') if chars.peek() != Some(&'{') => {
                out.pop();
                out.push_str(r"(?-u:\b)");
            }
            Some(escaped) => out.push(escaped),
            None => {}
        }
    }
    out
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.source)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_ascii_and_escapes_stay() {
        assert_eq!(with_ascii_boundaries(r"\ba\\b\d"), r"(?-u:\b)a\\b\d");
        assert!(Pattern::new(r"\b\d{5}\b").unwrap().is_in("äöü 12345 ß"));
        assert!(Pattern::new("(").unwrap_err().contains("not a regular expression"));
        assert!(Pattern::new(r"(\w{500}){500}").is_err(), "the size is bounded");
        assert!(!Pattern::new("").unwrap().is_set());
    }
}
