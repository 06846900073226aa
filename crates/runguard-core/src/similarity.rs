//! When two queries ask the same thing.
//!
//! A usual rule is the ratio of Python's `difflib.SequenceMatcher`: twice the characters in matching blocks, divided by
//! all characters. It calls "refund order 1234" and "refund order 1235" the same, and "price of the plan" and "how much does
//! the plan cost" two things. So what *must not* differ is compared first: numbers, dates, quoted strings, identifiers,
//! negations and dangerous words. Then words are compared (`content.rs`), those of other languages too (`language.rs`), and only where
//! they do not tell, the ratio.
//! `./bench similarity` measures it.

mod content;
mod language;
mod vocabulary;
mod wording;

pub use wording::Wording;

use crate::fold::letter_into;
use crate::hashed::HashedMap;
use crate::text::{cut, redact};
use content::{Sought, Verdict, Words};
use language::is_unspaced;
use serde::{Deserialize, Serialize};

use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_64;

/// From here on two normalised queries are alike, as far as their letters tell.
pub const THRESHOLD: f64 = 0.75;

/// Python's `autojunk`: in texts of 200 characters and more, characters that make up over 1 % are not used as
/// starting points. It hides most near-duplicates among long texts, so RunGuard leaves it off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Junk {
    /// Nothing is left out.
    #[default]
    Keep,
    /// In long texts elements that are in more than one of a hundred places are not compared.
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
/// Names that people write with a capital inside, or without: no identifiers.
const NAMES: &[&str] = &[
    "airpods",
    "ebay",
    "ebook",
    "facetime",
    "github",
    "icloud",
    "imac",
    "ios",
    "ipad",
    "iphone",
    "itunes",
    "javascript",
    "linkedin",
    "macbook",
    "macos",
    "onedrive",
    "openai",
    "paypal",
    "postgresql",
    "powerpoint",
    "tiktok",
    "typescript",
    "whatsapp",
    "wifi",
    "wordpress",
    "youtube",
];
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
/// Longest text of which a [`Gist::whole`] keeps the letters: what two of them cost to compare grows with its square.
pub const LONGEST_WHOLE: usize = 2_000;

impl Gist {
    /// Of what people type: cut to 300 characters, the rest of a longer one is not looked at.
    pub fn of(query: &str) -> Self {
        Self::read(cut(query, LONGEST), Wording::PLAIN)
    }

    /// Of what programs and models write, where the difference may be one sign or far back: nothing is cut, and signs that
    /// carry meaning must not differ either (`c` and `c++`, `a < b` and `a > b`, `5` and `-5`). Beyond
    /// [`LONGEST_WHOLE`] characters only the same words are the same query.
    pub fn whole(query: &str) -> Self {
        Self::worded(query, Wording::PLAIN)
    }

    /// [`Gist::whole`], with word forms and synonyms. Gists that are compared must have been made with the same wording.
    pub fn worded(query: &str, wording: &Wording) -> Self {
        let mut gist = Self::read(query, wording);
        for_each_token(query, |token| gist.fixed = gist.fixed.wrapping_add(telling_sign(token).unwrap_or_default()));
        if length(query) > LONGEST_WHOLE {
            gist.forget_text();
        }
        gist
    }

    /// One pass over the words: the normalised text, a sum over all of them, a sum over those that must not differ.
    fn read(query: &str, wording: &Wording) -> Self {
        let plain = wording.is_plain();
        let mut text = String::with_capacity(query.len());
        let mut words = 0_u64;
        let mut fixed = sum_of_hashes(quoted(query).iter().map(String::as_str));
        for_each_token(query, |token| {
            let start = text.len();
            normalise_into(token, &mut text);
            let word = &text[start..];
            if word.is_empty() {
                return;
            }
            let hash = xxh3_64(word.as_bytes());
            words = words.wrapping_add(if plain { hash } else { wording.form(word).map_or(0, |form| xxh3_64(form.as_bytes())) });
            let is_contraction = || word.ends_with("nt") && token.contains(['\'', '\u{2019}']);
            fixed = fixed.wrapping_add(match CLASSES.get(&hash) {
                Some(stem) => *stem,
                None if is_contraction() => NEGATION,
                None if is_identifier(token) => hash,
                None => 0,
            });
            text.push(' ');
        });
        text.truncate(text.trim_end().len());
        if words == 0 && !text.is_empty() {
            // Nothing but words that do not count: then they do.
            words = xxh3_64(text.as_bytes());
        }
        let redacted = redact(query);
        if redacted != query {
            text = normalise(&redacted);
        }
        Self { text, words, fixed }
    }

    /// Without the text only the same words are the same query.
    pub fn forget_text(&mut self) {
        self.text.clear();
    }

    /// Whether it has the same words, in whatever order, with or without their letters.
    pub fn has_words_of(&self, other: &Self) -> bool {
        (self.words, self.fixed) == (other.words, other.fixed)
    }

    /// Whether there is no word in it, so nothing to compare by.
    pub fn is_blank(&self) -> bool {
        self.words == 0 && self.text.is_empty()
    }

    /// Whether the two ask for the same.
    pub fn is_similar(&self, other: &Self) -> bool {
        self.is_similar_by(other, THRESHOLD, Junk::Keep)
    }

    /// Whether the two ask for the same, and one of them with a slip of the keyboard or a wrong letter that the other does not have:
    /// "thremostat", "thexmostat" and "thermostat". Which of them is the right one is not known, and some are two words ("medication",
    /// "meditation"), so it is for those who let the first such pass.
    pub fn is_misspelling_of(&self, other: &Self) -> bool {
        self.fixed == other.fixed && self.words != other.words && content::is_misspelled(&self.text, &other.text)
    }

    /// By the ratio of their letters alone. Without letters, by their words.
    pub fn is_spelt_like(&self, other: &Self, threshold: f64, junk: Junk) -> bool {
        if self.text.is_empty() || other.text.is_empty() {
            return self.has_words_of(other);
        }
        could_reach(&self.text, &other.text, threshold) && reaches(&self.text, &other.text, threshold, junk)
    }

    /// Whether the two are about the same thing, though they may not ask the same of it: most of the words of the shorter one, and all
    /// that must not differ. One word put for another in the same question ("red shoes", "blue shoes") is another thing.
    pub fn is_akin(&self, other: &Self) -> bool {
        self.fixed == other.fixed && content::is_akin(&self.text, &other.text)
    }

    /// With a threshold of the caller's for the letters where the words do not tell, and always if it is above
    /// [`THRESHOLD`]; with Python's junk heuristic if wanted.
    pub fn is_similar_by(&self, other: &Self, threshold: f64, junk: Junk) -> bool {
        self.is_similar_where(other, threshold, junk, || self.compared_with(other))
    }

    fn compared_with(&self, other: &Self) -> Verdict {
        content::compare(&Words::of(&self.text), &Words::of(&other.text), Sought::SameQuestion)
    }

    /// It with its words read, to be compared with many others.
    pub fn reading(&self) -> Reading<'_> {
        Reading { gist: self, words: Words::of(&self.text) }
    }

    fn is_similar_where(&self, other: &Self, threshold: f64, junk: Junk, compare_words: impl FnOnce() -> Verdict) -> bool {
        if self.fixed != other.fixed {
            return false;
        }
        if self.words == other.words {
            return !content::is_swapped(&self.text, &other.text);
        }
        if self.text.is_empty() || other.text.is_empty() {
            return false;
        }
        match compare_words() {
            // Whoever asks for more than the usual asks it of the letters.
            Verdict::Same if threshold <= THRESHOLD => return true,
            Verdict::Different => return false,
            Verdict::Same | Verdict::Open => {}
        }
        could_reach(&self.text, &other.text, threshold) && reaches(&self.text, &other.text, threshold, junk)
    }
}

/// A query whose words are read.
#[derive(Debug)]
pub struct Reading<'a> {
    gist: &'a Gist,
    words: Words<'a>,
}

impl Reading<'_> {
    /// Whether the two belong to one topic of a knowledge base: they ask for the same, as [`Gist::is_similar`] says, or would if it were
    /// known that neither is an order. A guard does not know it, and lets "refund policy" pass after "tell me the refund policy"; in a
    /// knowledge base both look up one thing. What is written otherwise ("canceled orders", "cancel orders") stays apart.
    pub fn is_same_topic(&self, other: &Reading<'_>) -> bool {
        self.gist.is_similar_where(other.gist, THRESHOLD, Junk::Keep, || content::compare(&self.words, &other.words, Sought::Topic))
    }
}

/// What any negation counts as: "not" and "never" say the same here.
const NEGATION: u64 = 1;

/// Every word that must not differ, by the hash of its normalised form, with what it counts as: all forms of a dangerous
/// word (`delete`, `deletes`, `deleted`, `deleting`) count as one.
static CLASSES: LazyLock<HashedMap<u64, u64>> = LazyLock::new(|| {
    let mut classes = HashedMap::default();
    let hash = |word: &str| xxh3_64(word.as_bytes());
    for word in DANGEROUS {
        let stem = word.strip_suffix('e').unwrap_or(word);
        let doubled = format!("{word}{}", &word[word.len() - 1..]);
        let forms = [format!("{word}s"), format!("{stem}ed"), format!("{stem}ing"), format!("{doubled}ed"), format!("{doubled}ing")];
        classes.extend(forms.iter().map(String::as_str).chain([*word]).map(|form| (hash(form), hash(word))));
    }
    classes.extend(DATE_WORDS.iter().map(|word| (hash(word), hash(word))));
    classes.extend(language::negations().map(|word| (word, NEGATION)));
    classes.extend(NEGATIONS.iter().map(|word| (hash(word), NEGATION)));
    classes.extend(NAMES.iter().map(|word| (hash(word), 0)));
    classes
});

/// The same for the same parts in any order.
fn sum_of_hashes<'a>(parts: impl Iterator<Item = &'a str>) -> u64 {
    parts.fold(0, |sum, part| sum.wrapping_add(xxh3_64(part.as_bytes())))
}

/// Lowercase, no punctuation, white space folded; letters without accents and digits as ASCII has them. Between words of a script
/// without spaces and others there is one.
pub fn normalise(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for_each_token(text, |token| {
        let start = out.len();
        normalise_into(token, &mut out);
        if out.len() > start {
            out.push(' ');
        }
    });
    out.truncate(out.trim_end().len());
    out
}

fn normalise_into(token: &str, out: &mut String) {
    for c in token.chars() {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !c.is_ascii() {
            letter_into(c, out);
        }
    }
}

/// What stands between spaces. Scripts without spaces are cut where another script begins ("订单1234的状态"), and what French and its
/// neighbours write before a word with an apostrophe is cut off.
fn for_each_token<'a>(text: &'a str, mut take: impl FnMut(&'a str)) {
    let is_plain = text.is_ascii() && !text.as_bytes().contains(&b'\'');
    for part in text.split_whitespace() {
        if is_plain {
            take(part);
            continue;
        }
        let mut rest = part;
        while !rest.is_empty() {
            let (token, behind) = rest.split_at(elided(rest).unwrap_or_else(|| one_script(rest)));
            take(token);
            rest = behind;
        }
    }
}

fn one_script(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    let mut chars = text.char_indices();
    let is_first_unspaced = chars.next().is_some_and(|(_, c)| is_unspaced(c));
    chars.find(|(_, c)| is_unspaced(*c) != is_first_unspaced).map_or(text.len(), |(position, _)| position)
}

/// The bytes of "l'", "d'" or "qu'" before a word.
fn elided(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let letters = match bytes {
        [b'l' | b'd' | b'j' | b'm' | b'n' | b's' | b't' | b'L' | b'D' | b'J' | b'M' | b'N' | b'S' | b'T', b'\'' | 0xe2, ..] => 1,
        [b'q' | b'Q', b'u' | b'U', b'\'' | 0xe2, ..] => 2,
        _ => return None,
    };
    let behind = text[letters..].strip_prefix(['\'', '\u{2019}'])?;
    behind.starts_with(char::is_alphabetic).then(|| text.len() - behind.len()).filter(|_| behind.len() > 1)
}

/// Anything with a digit, an underscore, a dot or slash inside, or capitals in the middle, but those behind a hyphen ("E-Mail").
fn is_identifier(token: &str) -> bool {
    let token = token.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
    let (mut lower, mut inner_capital, mut begins) = (false, false, true);
    for c in token.chars() {
        if c.is_numeric() || matches!(c, '_' | '/' | '.' | '\\' | ':') {
            return true;
        }
        lower |= c.is_lowercase();
        inner_capital |= !begins && c.is_uppercase();
        begins = c == '-';
    }
    lower && inner_capital
}

/// What a word counts as that is told apart from others by a sign only.
fn telling_sign(token: &str) -> Option<u64> {
    let is_negative = || token.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    (token.contains(['<', '>', '=', '+', '#', '%']) || is_negative()).then(|| xxh3_64(token.to_lowercase().as_bytes()))
}

fn quoted(query: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !query.contains(['"', '\u{201c}', '\u{201e}', '\u{ab}', '\u{300c}', '`']) {
        return found;
    }
    let marks =
        [('"', '"'), ('\u{201c}', '\u{201d}'), ('\u{201e}', '\u{201c}'), ('\u{ab}', '\u{bb}'), ('\u{300c}', '\u{300d}'), ('`', '`')];
    for (open, close) in marks {
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
    let (matching, total) = matching(left, right, junk, usize::MAX);
    if total == 0 { 1.0 } else { 2.0 * matching as f64 / total as f64 }
}

/// In characters.
fn length(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().count() }
}

/// Whether the ratio is at least `threshold`; stops as soon as that is known.
fn reaches(left: &str, right: &str, threshold: f64, junk: Junk) -> bool {
    let total = length(left) + length(right);
    let enough = (threshold * total as f64 / 2.0).ceil() as usize;
    matching(left, right, junk, enough).0 >= enough
}

/// Characters in matching blocks (or `enough` of them) and all characters.
fn matching(left: &str, right: &str, junk: Junk, enough: usize) -> (usize, usize) {
    if left.is_ascii() && right.is_ascii() {
        let (left, right) = (left.as_bytes(), right.as_bytes());
        return (Matcher::new(left, right, junk).matching(enough), left.len() + right.len());
    }
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    (Matcher::new(&left, &right, junk).matching(enough), left.len() + right.len())
}

/// An upper bound first: lengths, then the characters both have. Most pairs end here.
fn could_reach(left: &str, right: &str, threshold: f64) -> bool {
    let (left_length, right_length) = (length(left), length(right));
    let total = (left_length + right_length) as f64;
    if 2.0 * left_length.min(right_length) as f64 / total < threshold {
        return false;
    }
    let mut balance = [0_i32; 128];
    for c in left.chars() {
        balance[c as usize % 128] += 1;
    }
    let mut shared = 0;
    for c in right.chars() {
        let left_over = &mut balance[c as usize % 128];
        shared += i32::from(*left_over > 0);
        *left_over -= 1;
    }
    2.0 * f64::from(shared) / total >= threshold
}

/// Finds matching blocks as difflib does: the longest first (the earliest among equals), then left and right of it.
struct Matcher<'a, T> {
    left: &'a [T],
    right: &'a [T],
    /// The last position in `right` of a character (of its bucket of 128), and from each position the one before:
    /// positions plus one, 0 is none.
    last: [u32; 128],
    before: Vec<u32>,
    /// Characters that are no starting points, being popular.
    junk: Vec<T>,
    lengths: Vec<u32>,
}

impl<'a, T: Copy + Eq + Into<u32>> Matcher<'a, T> {
    fn new(left: &'a [T], right: &'a [T], junk: Junk) -> Self {
        let mut last = [0; 128];
        let before = right
            .iter()
            .enumerate()
            .map(|(position, &c)| std::mem::replace(&mut last[c.into() as usize % 128], position as u32 + 1))
            .collect();
        let mut popular = Vec::new();
        if junk == Junk::Popular && right.len() >= 200 {
            for &c in right {
                if !popular.contains(&c) && right.iter().filter(|&&other| other == c).count() > right.len() / 100 + 1 {
                    popular.push(c);
                }
            }
        }
        Self { left, right, last, before, junk: popular, lengths: vec![0; right.len() + 1] }
    }

    fn matching(&mut self, enough: usize) -> usize {
        let mut total = 0;
        let mut pending = Vec::with_capacity(16);
        pending.push((0, self.left.len(), 0, self.right.len()));
        while let Some((left_from, left_to, right_from, right_to)) = pending.pop() {
            let (i, j, size) = self.longest(left_from, left_to, right_from, right_to);
            if size == 0 {
                continue;
            }
            total += size;
            if total >= enough {
                break;
            }
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
            let c = self.left[i];
            let mut next = if self.junk.contains(&c) { 0 } else { self.last[c.into() as usize % 128] };
            // From the right, so that lengths[j] is still the previous row's.
            let mut cleared_to = right_to;
            while next > right_from as u32 {
                let j = next as usize - 1;
                next = self.before[j];
                if j >= right_to || self.right[j] != c {
                    continue;
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
    use proptest::prelude::*;
    use std::collections::BTreeMap;

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

    /// difflib, word by word.
    fn plain_ratio(left: &[char], right: &[char], junk: Junk) -> f64 {
        let mut positions: BTreeMap<char, Vec<usize>> = BTreeMap::new();
        for (position, &c) in right.iter().enumerate() {
            positions.entry(c).or_default().push(position);
        }
        if junk == Junk::Popular && right.len() >= 200 {
            positions.retain(|_, found| found.len() <= right.len() / 100 + 1);
        }
        let longest = |(alo, ahi, blo, bhi): (usize, usize, usize, usize)| {
            let (mut besti, mut bestj, mut best) = (alo, blo, 0);
            let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
            for (i, c) in left.iter().enumerate().take(ahi).skip(alo) {
                let mut new = BTreeMap::new();
                for &j in positions.get(c).into_iter().flatten().filter(|&&j| j >= blo && j < bhi) {
                    let k = j.checked_sub(1).and_then(|before| lengths.get(&before)).unwrap_or(&0) + 1;
                    new.insert(j, k);
                    if k > best {
                        (besti, bestj, best) = (i + 1 - k, j + 1 - k, k);
                    }
                }
                lengths = new;
            }
            while besti > alo && bestj > blo && left[besti - 1] == right[bestj - 1] {
                (besti, bestj, best) = (besti - 1, bestj - 1, best + 1);
            }
            while besti + best < ahi && bestj + best < bhi && left[besti + best] == right[bestj + best] {
                best += 1;
            }
            (besti, bestj, best)
        };
        let (mut total, mut pending) = (0, vec![(0, left.len(), 0, right.len())]);
        while let Some((alo, ahi, blo, bhi)) = pending.pop() {
            let (i, j, size) = longest((alo, ahi, blo, bhi));
            if size > 0 {
                total += size;
                pending.extend([(alo, i, blo, j), (i + size, ahi, j + size, bhi)]);
            }
        }
        if left.len() + right.len() == 0 { 1.0 } else { 2.0 * total as f64 / (left.len() + right.len()) as f64 }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        #[test]
        fn any_text_has_a_gist_and_is_like_itself(text in "[a-cA0-9 \\t.,?!<>=_@'\"ÄéİΣ-]{0,40}", any_text in ".{0,40}") {
            for text in [text, any_text] {
                prop_assert!(Gist::of(&text).is_similar(&Gist::of(&text)));
                let padded = [" ", &text, "\n "].concat();
                prop_assert!(Gist::whole(&text).is_similar(&Gist::whole(&padded)));
            }
        }

        #[test]
        fn the_fast_ratio_is_the_plain_one(left in "[a-dä ]{0,40}", right in "[a-dä ]{0,40}", ascii in "[abc]{150,260}", popular in any::<bool>()) {
            let junk = if popular { Junk::Popular } else { Junk::Keep };
            for (left, right) in [(left.clone(), right.clone()), (format!("{ascii}{left}"), format!("{left}{ascii}{right}")), (ascii.clone(), right)] {
                let plain = plain_ratio(&left.chars().collect::<Vec<_>>(), &right.chars().collect::<Vec<_>>(), junk);
                prop_assert!((ratio(&left, &right, junk) - plain).abs() < f64::EPSILON);
                if junk == Junk::Keep && !(left.is_empty() && right.is_empty()) {
                    prop_assert_eq!(reaches(&left, &right, THRESHOLD, junk), plain >= THRESHOLD);
                    prop_assert!(plain < THRESHOLD || could_reach(&left, &right, THRESHOLD), "the bound is a bound");
                }
            }
        }
    }

    #[test]
    fn the_same_question_reworded_is_similar() {
        for (left, right) in [
            ("How do I return an item?", "how can I return the item"),
            ("fix bug", "fix the bug"),
            ("shipping cost to Germany", "Germany shipping cost to"),
            ("What are your opening hours?", "what are your opening hours"),
            ("how do refunds work", "how does a refund work"),
            ("track my parcel", "could you please track my parcel"),
            ("what is the default port of redis", "redis default port"),
            ("cost of express shipping", "price of express delivery"),
            ("seperate billing acount", "separate billing account"),
            ("database backup set up", "db backup setup"),
            ("flights from Rome to Paris", "flights to Paris from Rome"),
            ("I can't log in", "I cannot login"),
            ("naïve bayes", "naive bayes"),
            ("ошибка входа", "ошибки входа"),
            ("emails with an E-Mail footer", "emails with an e-mail footer"),
            ("WiFi password", "wifi password"),
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
            ("weather in Austria", "weather in Australia"),
            ("price of the basic plan", "price of the premium plan"),
            ("customers before the change", "customers after the change"),
            ("paid invoices of acme", "unpaid invoices of acme"),
            ("flights from Rome to Paris", "flights from Paris to Rome"),
            ("letters to the landlord", "letters from the landlord"),
            ("contract of the supplier", "contact of the supplier"),
            ("where is the meeting", "when is the meeting"),
            ("customer churn", "customer churn last quarter"),
            ("java tutorial", "javascript tutorial"),
            ("delete the backup", "delete all backups"),
            ("emails from Anna to Tom", "emails from Tom to Anna"),
            ("ошибка входа", "ошибка выхода"),
            ("docs for userName", "docs for userNames"),
        ] {
            assert!(!similar(left, right), "{left} / {right}");
        }
    }

    #[test]
    fn word_forms_and_synonyms_if_wanted() {
        let wording = Wording { stem: true, synonyms: vec![vec!["fix".into(), "resolve".into()], vec!["bug".into(), "issue".into()]] };
        let similar = |left, right| Gist::worded(left, &wording).is_similar(&Gist::worded(right, &wording));
        assert!(similar("fix the bugs in login", "resolve login issue"));
        assert!(similar("vacation policy for employees", "employee vacation policy"));
        assert!(!similar("delete the bugs in login", "resolve login issue"), "what must not differ comes first");
        assert!(!similar("what is it", "how do you do"), "small words count when there are no others");
        assert!(similar("what is it", "What is it?"));
    }

    #[test]
    fn signs_between_words_say_nothing() {
        assert_eq!(Gist::of("shipping - germany ?"), Gist::of("shipping germany"));
        assert_eq!(normalise(" shipping  -  germany ? "), "shipping germany");
        assert_eq!(Gist::of("- ?"), Gist::of(""));
    }

    #[test]
    fn nothing_personal_is_kept() {
        let gist = format!("{:?}", Gist::of("mail jane@example.com about 555-867-5309"));
        assert!(!gist.contains("jane") && !gist.contains("867"), "{gist}");
    }
}
