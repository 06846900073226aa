//! What somebody knows to differ each time in what their tools give, beside what is known by its form.

use super::fingerprints::{Outcome, result_fingerprint};
use crate::limits::InvalidSetting;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

const MOST: usize = 64;
const LONGEST: usize = 128;
/// What a star of a pattern stands for is no longer than that, and on one line.
const STAR_BYTES: usize = 200;

/// Names and patterns of what is never news in a result.
///
/// A name stands for the value behind it, in JSON as in text: `etag` in `"etag": "a1"` and in `etag=a1`. A pattern has stars, each of which
/// stands for what differs: up to what follows it on the line, and at the end of the pattern up to the next space, comma, bracket or quote.
///
/// ```
/// use runguard_core::detect::stall::{Outcome, VolatileResults};
///
/// let volatile = VolatileResults::of(["etag", "ETA * left", "worker-*"])?;
/// let outcome = |text: &str| volatile.outcome(Some(text), None);
/// assert_eq!(outcome("etag=a1 ETA 3 min left on worker-x9: 5 of 8"), outcome("etag=b2 ETA 1 h left on worker-q0: 5 of 8"));
/// assert_ne!(outcome("worker-x9: 5 of 8"), outcome("worker-x9: 6 of 8"));
/// assert_ne!(Outcome::of(Some("etag=a1"), None), Outcome::of(Some("etag=b2"), None));
/// # Ok::<(), runguard_core::limits::InvalidSetting>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct VolatileResults(Vec<String>);

impl VolatileResults {
    /// Nothing but what is known by its form.
    pub const NONE: &'static Self = &Self::none();

    pub(super) const fn none() -> Self {
        Self(Vec::new())
    }

    /// These names and patterns.
    pub fn of(entries: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, InvalidSetting> {
        let entries: Vec<String> = entries.into_iter().map(Into::into).collect();
        let bad = |problem: String| Err(InvalidSetting::new("volatile", problem));
        if entries.len() > MOST {
            return bad(format!("must be {MOST} names and patterns at most"));
        }
        match entries.iter().find(|entry| entry.trim() != **entry || entry.is_empty() || entry.starts_with('*') || entry.len() > LONGEST) {
            Some(entry) => {
                bad(format!("has '{entry}', but each must be of 1 to {LONGEST} bytes, without spaces around it, and begin with no star"))
            }
            None => Ok(Self(entries)),
        }
    }

    /// Whether nothing was named.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As [`Outcome::of`], without what is volatile.
    pub fn outcome(&self, result: Option<&str>, error: Option<&str>) -> Outcome {
        let (result, error) = (result.map(|text| self.without(text)), error.map(|text| self.without(text)));
        Outcome::of(result.as_deref(), error.as_deref())
    }

    /// As [`Outcome::of_text`], without what is volatile.
    pub fn outcome_of_text(&self, text: &str, failed: bool) -> Outcome {
        Outcome::of_text(&self.without(text), failed)
    }

    /// As [`result_fingerprint`], without what is volatile.
    pub fn result(&self, text: &str) -> u64 {
        result_fingerprint(&self.without(text))
    }

    /// A text in which a mark stands for everything volatile.
    pub fn without<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.is_empty() {
            return Cow::Borrowed(text);
        }
        let (mut out, mut copied, mut at) = (String::new(), 0, 0);
        while at < text.len() {
            // Inside a word begins neither a name nor a pattern.
            let begins_here = !text[..at].chars().next_back().is_some_and(is_of_word) || !text[at..].starts_with(is_of_word);
            let found = if begins_here { self.0.iter().find_map(|entry| found_at(entry, text, at)) } else { None };
            if let Some(Replacement { from, to, instead }) = found {
                out.push_str(&text[copied..from]);
                out.push_str(&instead);
                (copied, at) = (to, to);
            } else {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
            }
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        out.push_str(&text[copied..]);
        Cow::Owned(out)
    }
}

impl TryFrom<Vec<String>> for VolatileResults {
    type Error = InvalidSetting;

    fn try_from(entries: Vec<String>) -> Result<Self, InvalidSetting> {
        Self::of(entries)
    }
}

impl From<VolatileResults> for Vec<String> {
    fn from(volatile: VolatileResults) -> Self {
        volatile.0
    }
}

/// What is replaced, and by what.
struct Replacement {
    from: usize,
    to: usize,
    instead: String,
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn ends_a_value(sign: char) -> bool {
    sign.is_whitespace() || ",;)]}>|&\"'\\".contains(sign)
}

fn found_at(entry: &str, text: &str, at: usize) -> Option<Replacement> {
    if entry.contains('*') { pattern_at(entry, text, at) } else { value_behind(entry, text, at) }
}

fn pattern_at(pattern: &str, text: &str, from: usize) -> Option<Replacement> {
    let mut literals = pattern.split('*');
    let first = literals.next().filter(|first| text[from..].starts_with(first))?;
    let mut at = from + first.len();
    for literal in literals {
        let rest = &text[at..];
        let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
        let near = &line[..line.floor_char_boundary(STAR_BYTES + literal.len())];
        at += match literal {
            "" => near.find(ends_a_value).unwrap_or(near.len()),
            _ => near.find(literal)? + literal.len(),
        };
    }
    (at > from + first.len()).then(|| Replacement { from, to: at, instead: pattern.replace('*', "#") })
}

/// The value of a name: `name: value`, `name=value`, `"name": "value"`, and the same inside of a text that is quoted itself.
fn value_behind(name: &str, text: &str, at: usize) -> Option<Replacement> {
    let behind = text[at..].get(..name.len()).filter(|there| there.eq_ignore_ascii_case(name)).map(|_| &text[at + name.len()..])?;
    if behind.starts_with(|next| is_of_word(next) || next == '-') {
        return None;
    }
    let sign = behind.trim_start_matches(['\\', '"', '\'']).trim_start_matches(' ');
    let value = sign.strip_prefix([':', '='])?.trim_start_matches(' ');
    let quoted = value.trim_start_matches('\\');
    let length = match quoted.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let opening = value.len() - quoted.len() + 1;
            opening + value[opening..].find(quote)? + 1
        }
        _ => value.find(ends_a_value).unwrap_or(value.len()),
    };
    let from = text.len() - value.len();
    (length > 0).then(|| Replacement { from, to: from + length, instead: "#".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn volatile(entries: &[&str]) -> VolatileResults {
        VolatileResults::of(entries.iter().copied()).unwrap()
    }

    #[test]
    fn the_value_behind_a_name_is_left_out_in_text_and_in_json() {
        let named = volatile(&["etag", "Build"]);
        for (text, without) in [
            (r#"{"etag": "a\u00e91", "n": 3}"#, r#"{"etag": #, "n": 3}"#),
            (r#"{"build":17,"n":3}"#, r#"{"build":#,"n":3}"#),
            (r#""{\"etag\":\"W/x1\",\"n\":3}""#, r#""{\"etag\":#,\"n\":3}""#),
            ("ETag: a1\nn=3", "ETag: #\nn=3"),
            ("etag=a1&n=3", "etag=#&n=3"),
            ("the etag of it, netag=4, etag-age: 7, etags: 9", "the etag of it, netag=4, etag-age: 7, etags: 9"),
            ("etag:", "etag:"),
            ("build \"17", "build \"17"),
            ("größe: 3, etag: ü4 é", "größe: 3, etag: # é"),
        ] {
            assert_eq!(named.without(text), without);
        }
    }

    #[test]
    fn a_pattern_leaves_out_what_its_stars_stand_for() {
        for (pattern, text, without) in [
            ("worker-*", "on worker-x9 and worker-y: ok", "on worker-# and worker-# ok"),
            ("ETA * left", "ETA 3 min left. ETA soon\nleft", "ETA # left. ETA soon\nleft"),
            ("#* of *;", "#4 of 9; #5", "## of #; #5"),
            ("run *", "rerun 4, run 4, run", "rerun 4, run #, run"),
            ("job-*", r#"{"by":"job-9","n":"job-"}"#, r#"{"by":"job-#","n":"job-"}"#),
        ] {
            assert_eq!(volatile(&[pattern]).without(text), without, "{pattern}");
        }
        let far = format!("from {} to", "x".repeat(2 * STAR_BYTES));
        assert_eq!(volatile(&["from * to"]).without(&far), far);
    }

    #[test]
    fn what_names_nothing_is_refused_by_the_name_of_the_setting() {
        for entries in [vec![String::new()], vec![" a".into()], vec!["*".into()], vec!["x".repeat(129)], vec!["a".into(); 65]] {
            let refused = VolatileResults::of(entries).unwrap_err();
            assert_eq!(refused.name, "volatile");
        }
    }

    proptest! {
        /// Any text is gone through, and what has neither name nor pattern in it stays as it is.
        #[test]
        fn any_text_is_gone_through(text in "[a-d=:\"\\\\ \\n*#é{},]{0,40}") {
            let volatile = volatile(&["a", "b*", "c * é"]);
            let without = volatile.without(&text);
            prop_assert!(without.len() <= text.len() + text.matches(['a', 'b', 'c']).count());
            if !text.contains(['a', 'b', 'c']) {
                prop_assert_eq!(&*without, text.as_str());
            }
        }
    }
}
