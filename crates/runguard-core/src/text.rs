//! What of a user's words may be kept: cut to a length, and without addresses, phone, card and account numbers and secrets.
//!
//! Scanners of our own and not a set of expressions, because this runs on every request that carries text, and most texts
//! hold nothing of the kind: those are passed through untouched after one look (`glance`). What the look cannot rule out
//! goes through scanners, each linear in the text: `secrets` first (a password may look like a number), then `addresses`,
//! `random` and `numbers`.

mod addresses;
mod commands;
mod foreign;
mod forms;
mod glance;
mod judgement;
mod numbers;
mod random;
mod secrets;
mod values;

use crate::fingerprint::hex16;
use glance::Glance;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ops::Range;

/// Longest name that is taken for one at a glance.
const MAX_PLAIN_BYTES: usize = 256;

/// What stands where something was removed.
pub const MARKS: [&str; 5] = [EMAIL, PHONE, CARD, NUMBER, SECRET];
const EMAIL: &str = "[email]";
const PHONE: &str = "[phone]";
const CARD: &str = "[card]";
const NUMBER: &str = "[number]";
const SECRET: &str = "[secret]";

/// How much of a text is kept.
/// Longest text that is taken, in bytes: what is done to a text takes time that grows with it.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;

/// What of users' texts is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreText {
    /// Nothing.
    None,
    #[default]
    /// What is left when everything personal is taken out.
    Redacted,
    /// All of it.
    Full,
}

impl StoreText {
    /// The form of `text` that may be kept, cut to `chars` characters.
    pub fn keep(self, text: &str, chars: usize) -> String {
        match self {
            Self::None => String::new(),
            // Redacted before it is cut: a cut through a number must not leave its first half.
            Self::Redacted => cut(&redact(text), chars).to_owned(),
            Self::Full => cut(text, chars).to_owned(),
        }
    }

    /// The form of a name or hash of the caller's own making that may be kept. Words of a user may be in it, and things are told
    /// apart by it, so what must not be kept is kept as its digest and never emptied or cut.
    pub fn keep_name(self, name: &str) -> Cow<'_, str> {
        let is_plain = || name.len() <= MAX_PLAIN_BYTES && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@');
        let is_kept = match self {
            Self::None => name.is_empty(),
            Self::Redacted => is_plain() || redact(name) == name,
            Self::Full => true,
        };
        if is_kept { Cow::Borrowed(name) } else { Cow::Owned(hex16(name.as_bytes())) }
    }
}

/// The first `chars` characters.
pub fn cut(text: &str, chars: usize) -> &str {
    if text.len() <= chars {
        return text;
    }
    text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end])
}

/// A number with its thousands apart: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Replaces e-mail addresses, phone and card numbers, long runs of digits and secrets by a word in brackets.
pub fn redact(text: &str) -> Cow<'_, str> {
    let Glance { digits, words } = Glance::of(text);
    let mut redacted = Cow::Borrowed(text);
    if words {
        redacted = replaced(redacted, secrets::find);
        redacted = replaced(redacted, addresses::find);
    }
    if digits >= random::FEWEST_DIGITS && text.len() >= random::SHORTEST {
        redacted = replaced(redacted, random::find);
    }
    if digits >= numbers::LONG_RUN {
        redacted = replaced(redacted, numbers::find);
    }
    redacted
}

/// A part of a text, and what stands there instead.
type Replacement = (Range<usize>, &'static str);

/// `find` gives parts in their order, none of which touches another.
fn replaced(text: Cow<'_, str>, find: impl Fn(&str) -> Vec<Replacement>) -> Cow<'_, str> {
    let found = find(&text);
    if found.is_empty() {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut end = 0;
    for (part, mark) in found {
        out.push_str(&text[end..part.start]);
        out.push_str(mark);
        end = part.end;
    }
    out.push_str(&text[end..]);
    Cow::Owned(out)
}

/// As much of a text as is looked at.
fn near(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Where a part of a text begins in it.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// Whether one of the words a list names with spaces between them.
fn is_word_of(word: &str, list: &str) -> bool {
    list.split_ascii_whitespace().any(|other| word.eq_ignore_ascii_case(other))
}

fn ends_with(word: &str, ending: &str) -> bool {
    word.len() >= ending.len() && word.as_bytes()[word.len() - ending.len()..].eq_ignore_ascii_case(ending.as_bytes())
}

fn starts_with(text: &str, beginning: &str) -> bool {
    text.len() >= beginning.len() && text.as_bytes()[..beginning.len()].eq_ignore_ascii_case(beginning.as_bytes())
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|other| word.eq_ignore_ascii_case(other))
}

/// Characters nobody sees, put between others by word processors, keyboards and people who wish to hide something.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{20e3}')
}

/// "once", "2 times".
pub fn times(count: impl Into<u64>) -> String {
    match count.into() {
        1 => "once".into(),
        count => format!("{count} times"),
    }
}

/// With a capital letter in front.
pub fn capitalised(text: &str) -> String {
    let first = text.chars().next().map_or(0, char::len_utf8);
    text[..first].to_uppercase() + &text[first..]
}

/// What is wrong, of a message of ours that ends with what to do about it: that is a sentence of its own. A name that it has may hold anything.
pub fn without_advice(message: &str) -> &str {
    message.rsplit_once(". ").map_or(message, |(what, _)| what).trim_end_matches('.')
}

/// A clause, as errors are written, as a sentence that a person reads.
pub fn sentence(clause: &dyn std::fmt::Display) -> String {
    let clause = clause.to_string();
    let end = if clause.ends_with(['.', '!', '?']) { "" } else { "." };
    capitalised(&clause) + end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_and_numbers_are_replaced() {
        for (text, expected) in [
            ("mail jane.doe+x@example.co.uk.", "mail [email]."),
            ("call 555-867-5309 now", "call [phone] now"),
            ("call (555) 867-5309", "call [phone]"),
            ("+49 170 1234567!", "[phone]!"),
            ("card 4111 1111 1111 1111 ok", "card [card] ok"),
            ("card 4111-1111-1111-1111", "card [card]"),
            ("order ORD-12345678", "order ORD-[number]"),
            ("#123456", "#[number]"),
            ("acct 12345678901234567890", "acct [number]"),
            ("12345 and 678", "12345 and 678"),
            ("on 2026-11-15 or 11/15/2026", "on 2026-11-15 or 11/15/2026"),
            ("3 items @ 5 dollars", "3 items @ 5 dollars"),
            ("where is my package", "where is my package"),
        ] {
            assert_eq!(redact(text), expected);
        }
    }

    #[test]
    fn thousands_stand_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_text_is_redacted_before_it_is_cut() {
        assert_eq!(StoreText::Redacted.keep("call 5558675309 now", 9), "call [num");
        assert_eq!(StoreText::None.keep("secret", 9), "");
        assert_eq!(StoreText::Full.keep("äöü123456", 4), "äöü1");
    }

    #[test]
    fn a_name_that_may_not_be_kept_still_tells_things_apart() {
        let digest = hex16(b"mail jane@example.com");
        for (store_text, name, kept) in [
            (StoreText::Full, "mail jane@example.com", "mail jane@example.com"),
            (StoreText::Redacted, "mail jane@example.com", digest.as_str()),
            (StoreText::None, "mail jane@example.com", digest.as_str()),
            (StoreText::Redacted, "refund-policy", "refund-policy"),
            (StoreText::Redacted, "9f21234567890c", "9f21234567890c"),
            (StoreText::Redacted, "how do refunds work", "how do refunds work"),
            (StoreText::None, "refund-policy", hex16(b"refund-policy").as_str()),
            (StoreText::None, "", ""),
        ] {
            assert_eq!(store_text.keep_name(name), kept);
        }
    }

    proptest! {
        /// But in dates, fractions and round numbers, for which these digits and signs are too few.
        #[test]
        fn no_long_run_of_digits_is_left(text in "[3-9a-z@ +-]{0,60}") {
            let redacted = redact(&text);
            let longest = redacted.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
            prop_assert!(longest < numbers::LONG_RUN, "{text} -> {redacted}");
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,80}") {
            let _ = redact(&text);
        }
    }
}
