//! When two queries ask the same thing.
//!
//! The base is the ratio of Python's `difflib.SequenceMatcher`: twice the characters in matching blocks, divided by
//! all characters. On its own it calls "refund order 1234" and "refund order 1235" the same. So what *must not*
//! differ is compared first: numbers, dates, quoted strings, identifiers, negations and dangerous words. The same
//! words in another order are the same query, whatever the ratio.

use crate::text::{cut, redact};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// From here on two normalised queries are alike.
pub const THRESHOLD: f64 = 0.75;

/// Python's `autojunk`: in texts of 200 characters and more, characters that make up over 1 % are not used as
/// starting points. It hides most near-duplicates among long texts, so RunGuard leaves it off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Junk {
    #[default]
    Keep,
    Popular,
}

/// Words whose presence changes what a query does.
const DANGEROUS: &[&str] = &[
    "activate",
    "add",
    "allow",
    "approve",
    "archive",
    "block",
    "buy",
    "cancel",
    "charge",
    "clear",
    "close",
    "create",
    "deactivate",
    "decline",
    "decrease",
    "delete",
    "deny",
    "disable",
    "downgrade",
    "drop",
    "enable",
    "erase",
    "grant",
    "increase",
    "install",
    "kill",
    "lock",
    "merge",
    "open",
    "overwrite",
    "pay",
    "purge",
    "refund",
    "reject",
    "remove",
    "reset",
    "restart",
    "restore",
    "revoke",
    "sell",
    "start",
    "stop",
    "subscribe",
    "suspend",
    "terminate",
    "truncate",
    "unblock",
    "uninstall",
    "unlock",
    "unsubscribe",
    "update",
    "upgrade",
    "wipe",
];
const NEGATIONS: &[&str] = &["cannot", "cant", "dont", "isnt", "neither", "never", "no", "none", "nor", "not", "without", "wont"];
const DATE_WORDS: &[&str] = &[
    "april",
    "august",
    "december",
    "february",
    "friday",
    "january",
    "july",
    "june",
    "march",
    "may",
    "monday",
    "november",
    "october",
    "saturday",
    "september",
    "sunday",
    "thursday",
    "today",
    "tomorrow",
    "tuesday",
    "wednesday",
    "yesterday",
];

/// What of a query is needed to compare it with others, free of personal data and safe to keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gist {
    /// Normalised and redacted.
    text: String,
    /// Of the sorted words, unredacted: equal for the same words in any order.
    words: u64,
    /// Of everything that must not differ, unredacted.
    fixed: u64,
}

/// Longest text that is compared, in characters.
const LONGEST: usize = 300;

impl Gist {
    pub fn of(query: &str) -> Self {
        let query = cut(query, LONGEST);
        let plain = normalise(query);
        let words = sum_of_hashes(plain.split(' '));
        let redacted = redact(query);
        let text = if redacted == query { plain } else { normalise(&redacted) };
        Self { text, words, fixed: fixed_parts(query) }
    }

    /// Without the text only the same words are the same query.
    pub fn forget_text(&mut self) {
        self.text.clear();
    }

    pub fn is_similar(&self, other: &Self) -> bool {
        if self.fixed != other.fixed {
            return false;
        }
        if self.words == other.words {
            return true;
        }
        if self.text.is_empty() || other.text.is_empty() {
            return false;
        }
        let (left, right): (Vec<char>, Vec<char>) = (self.text.chars().collect(), other.text.chars().collect());
        could_reach(&left, &right, THRESHOLD) && ratio_of(&left, &right, Junk::Keep) >= THRESHOLD
    }
}

/// The same for the same parts in any order.
fn sum_of_hashes<'a>(parts: impl Iterator<Item = &'a str>) -> u64 {
    parts.fold(0, |sum, part| sum.wrapping_add(xxh3_64(part.as_bytes())))
}

/// Lowercase, no punctuation, white space folded.
pub fn normalise(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    normalise_into(text, &mut out);
    out
}

fn normalise_into(text: &str, out: &mut String) {
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if c.is_whitespace() {
            if !out.is_empty() && !out.ends_with(' ') {
                out.push(' ');
            }
        } else if c.is_alphanumeric() {
            out.extend(c.to_lowercase());
        }
    }
    while out.ends_with(' ') {
        out.pop();
    }
}

/// Of the parts of a query that make it another query when they differ, in any order.
fn fixed_parts(query: &str) -> u64 {
    let mut sum = sum_of_hashes(quoted(query).iter().map(String::as_str));
    let mut add = |part: &str| sum = sum.wrapping_add(xxh3_64(part.as_bytes()));
    let mut word = String::new();
    for token in query.split_whitespace() {
        let token = token.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
        word.clear();
        normalise_into(token, &mut word);
        let is_negation =
            || NEGATIONS.binary_search(&word.as_str()).is_ok() || (word.ends_with("nt") && token.contains(['\'', '\u{2019}']));
        if is_negation() {
            add("not");
        } else if DATE_WORDS.binary_search(&word.as_str()).is_ok() || dangerous(&word) || is_identifier(token) {
            add(&word);
        }
    }
    sum
}

/// In any of its forms: `delete`, `deleted`, `deletes`, `deleting`.
fn dangerous(word: &str) -> bool {
    let is_known = |stem: &str| DANGEROUS.binary_search(&stem).is_ok();
    is_known(word)
        || ["s", "d", "ed", "ing"].iter().any(|ending| {
            word.strip_suffix(ending).is_some_and(|stem| {
                let undoubled = stem.len() > 2 && stem.as_bytes()[stem.len() - 1] == stem.as_bytes()[stem.len() - 2];
                is_known(stem)
                    || is_known(&format!("{stem}e"))
                    || (undoubled && stem.is_char_boundary(stem.len() - 1) && is_known(&stem[..stem.len() - 1]))
            })
        })
}

/// Anything with a digit, an underscore, a dot or slash inside, or capitals in the middle.
fn is_identifier(token: &str) -> bool {
    let inner_capital = token.chars().skip(1).any(char::is_uppercase) && token.chars().any(char::is_lowercase);
    token.chars().any(|c| c.is_numeric() || c == '_') || token.contains(['/', '.', '\\', ':']) || inner_capital
}

fn quoted(query: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !query.contains(['"', '\u{201c}', '\u{ab}', '`']) {
        return found;
    }
    for (open, close) in [('"', '"'), ('\u{201c}', '\u{201d}'), ('\u{ab}', '\u{bb}'), ('`', '`')] {
        let mut rest = query;
        while let Some(start) = rest.find(open) {
            let inside = &rest[start + open.len_utf8()..];
            let Some(end) = inside.find(close) else { break };
            found.push(normalise(&inside[..end]));
            rest = &inside[end + close.len_utf8()..];
        }
    }
    found
}

/// `difflib.SequenceMatcher(None, left, right, autojunk=…).ratio()`.
pub fn ratio(left: &str, right: &str, junk: Junk) -> f64 {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    ratio_of(&left, &right, junk)
}

/// An upper bound first: lengths, then the characters both have. Most pairs end here.
fn could_reach(left: &[char], right: &[char], threshold: f64) -> bool {
    let total = (left.len() + right.len()) as f64;
    if 2.0 * left.len().min(right.len()) as f64 / total < threshold {
        return false;
    }
    let mut balance = [0_i32; 128];
    for &c in left {
        balance[c as usize % 128] += 1;
    }
    let mut shared = 0;
    for &c in right {
        let left_over = &mut balance[c as usize % 128];
        if *left_over > 0 {
            shared += 1;
        }
        *left_over -= 1;
    }
    2.0 * f64::from(shared) / total >= threshold
}

fn ratio_of(left: &[char], right: &[char], junk: Junk) -> f64 {
    let total = left.len() + right.len();
    if total == 0 {
        return 1.0;
    }
    2.0 * Matcher::new(left, right, junk).matching() as f64 / total as f64
}

/// Finds matching blocks as difflib does: the longest first (the earliest among equals), then left and right of it.
struct Matcher<'a> {
    left: &'a [char],
    right: &'a [char],
    /// Positions in `right` of each character of `left`: `starts[i]..starts[i + 1]` in `positions`.
    ranges: Vec<(u32, u32)>,
    positions: Vec<u32>,
    lengths: Vec<u32>,
}

impl<'a> Matcher<'a> {
    fn new(left: &'a [char], right: &'a [char], junk: Junk) -> Self {
        let mut sorted: Vec<(char, u32)> = right.iter().enumerate().map(|(position, &c)| (c, position as u32)).collect();
        sorted.sort_unstable();
        let popular = match junk {
            Junk::Popular if right.len() >= 200 => right.len() / 100 + 1,
            Junk::Popular | Junk::Keep => usize::MAX,
        };
        let ranges = left
            .iter()
            .map(|&c| {
                let start = sorted.partition_point(|&(other, _)| other < c);
                let end = sorted.partition_point(|&(other, _)| other <= c);
                if end - start > popular { (0, 0) } else { (start as u32, end as u32) }
            })
            .collect();
        let positions = sorted.into_iter().map(|(_, position)| position).collect();
        Self { left, right, ranges, positions, lengths: vec![0; right.len() + 1] }
    }

    fn matching(&mut self) -> usize {
        let mut total = 0;
        let mut pending = vec![(0, self.left.len(), 0, self.right.len())];
        while let Some((left_from, left_to, right_from, right_to)) = pending.pop() {
            let (i, j, size) = self.longest(left_from, left_to, right_from, right_to);
            if size == 0 {
                continue;
            }
            total += size;
            if left_from < i && right_from < j {
                pending.push((left_from, i, right_from, j));
            }
            if i + size < left_to && j + size < right_to {
                pending.push((i + size, left_to, j + size, right_to));
            }
        }
        total
    }

    fn longest(&mut self, left_from: usize, left_to: usize, right_from: usize, right_to: usize) -> (usize, usize, usize) {
        let (mut best_i, mut best_j, mut best) = (left_from, right_from, 0);
        // lengths[j + 1]: how long the match is that ends at the previous left character and right[j].
        self.lengths[right_from..=right_to].fill(0);
        for i in left_from..left_to {
            let (start, end) = self.ranges[i];
            // From the right, so that lengths[j] is still the previous row's.
            let mut cleared_to = right_to;
            for &position in self.positions[start as usize..end as usize].iter().rev() {
                let j = position as usize;
                if j >= right_to {
                    continue;
                }
                if j < right_from {
                    break;
                }
                self.lengths[j + 2..=cleared_to].fill(0);
                let size = self.lengths[j] + 1;
                self.lengths[j + 1] = size;
                cleared_to = j;
                let size = size as usize;
                // Going right to left, an equal size further left is the earlier one, as difflib would find.
                if size > best || (size == best && best_i == i + 1 - size) {
                    (best_i, best_j, best) = (i + 1 - size, j + 1 - size, size);
                }
            }
            self.lengths[right_from..=cleared_to].fill(0);
        }
        while best_i > left_from && best_j > right_from && self.left[best_i - 1] == self.right[best_j - 1] {
            (best_i, best_j, best) = (best_i - 1, best_j - 1, best + 1);
        }
        while best_i + best < left_to && best_j + best < right_to && self.left[best_i + best] == self.right[best_j + best] {
            best += 1;
        }
        (best_i, best_j, best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn similar(left: &str, right: &str) -> bool {
        Gist::of(left).is_similar(&Gist::of(right))
    }

    #[test]
    fn ratios_are_those_of_python() {
        // Computed with difflib.SequenceMatcher(None, a, b, autojunk=False).ratio().
        for (left, right, expected) in [
            ("fix bug", "fix the bug", 0.777_777_777_777_777_8),
            ("abcd", "bcde", 0.75),
            ("", "", 1.0),
            ("a", "", 0.0),
            ("qabxcd", "abycdf", 0.666_666_666_666_666_6),
            ("private Thread currentThread;", "private volatile Thread currentThread;", 0.865_671_641_791_044_7),
            ("how do i return an item", "how can i return the item", 0.791_666_666_666_666_6),
        ] {
            assert!((ratio(left, right, Junk::Keep) - expected).abs() < 1e-12, "{left} / {right}: {}", ratio(left, right, Junk::Keep));
        }
    }

    #[test]
    fn the_same_question_reworded_is_similar() {
        for (left, right) in [
            ("How do I return an item?", "how can I return the item"),
            ("fix bug", "fix the bug"),
            ("shipping cost to Germany", "Germany shipping cost to"),
            ("What are your opening hours?", "what are your opening hours"),
        ] {
            assert!(similar(left, right), "{left} / {right}");
        }
    }

    #[test]
    fn a_question_that_only_looks_alike_is_another() {
        for (left, right) in [
            ("status of order 12345678", "status of order 12345679"),
            ("delete user account", "deactivate user account"),
            ("is my plan refundable", "is my plan not refundable"),
            ("can I pay by card", "can't I pay by card"),
            ("flights on monday to rome", "flights on sunday to rome"),
            ("what does \"red\" mean here", "what does \"rad\" mean here"),
            ("docs for user_name field", "docs for user_names field"),
            ("enable the alert for me", "disable the alert for me"),
            ("how do I return an item", "where is the nearest store"),
        ] {
            assert!(!similar(left, right), "{left} / {right}");
        }
    }

    #[test]
    fn lists_are_sorted_for_binary_search() {
        for list in [DANGEROUS, NEGATIONS, DATE_WORDS] {
            assert!(list.is_sorted(), "{list:?}");
        }
    }

    #[test]
    fn nothing_personal_is_kept() {
        let gist = format!("{:?}", Gist::of("mail jane@example.com about 555-867-5309"));
        assert!(!gist.contains("jane") && !gist.contains("867"), "{gist}");
    }
}
