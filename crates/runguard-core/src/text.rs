//! What of a user's words may be kept: cut to a length, and without addresses, phone, card and account numbers.
//!
//! A scanner of our own and not a set of expressions, because it runs on every request that carries text, and
//! most texts contain neither an `@` nor a long number: those are passed through untouched after one look.

use serde::{Deserialize, Serialize};

/// How much of a text is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreText {
    None,
    #[default]
    Redacted,
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
}

/// The first `chars` characters.
pub fn cut(text: &str, chars: usize) -> &str {
    if text.len() <= chars {
        return text;
    }
    text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end])
}

/// Digits in a row that are taken for an account, order or other number of a person.
const LONG_RUN: usize = 6;

/// Replaces e-mail addresses, phone and card numbers and long runs of digits by a word in brackets.
pub fn redact(text: &str) -> String {
    let digits =
        if text.is_ascii() { text.bytes().filter(u8::is_ascii_digit).count() } else { text.chars().filter(|&c| is_digit(c)).count() };
    if digits < LONG_RUN && !text.contains('@') {
        return text.to_owned();
    }
    redact_numbers(&redact_addresses(text))
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || c.is_numeric()
}

fn redact_addresses(text: &str) -> String {
    let is_local = |c: char| c.is_alphanumeric() || "._%+-'!#$&*/=?^`{|}~".contains(c);
    let is_domain = |c: char| c.is_alphanumeric() || c == '.' || c == '-';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find('@') {
        let before = &rest[..position];
        let after = &rest[position + 1..];
        let local_start = before.char_indices().rev().take_while(|&(_, c)| is_local(c)).last().map(|(start, _)| start);
        let domain_end: usize = after.chars().take_while(|&c| is_domain(c)).map(char::len_utf8).sum();
        let domain = after[..domain_end].trim_end_matches(['.', '-']);
        if let Some(start) = local_start.filter(|_| !domain.is_empty()) {
            out.push_str(&before[..start]);
            out.push_str("[email]");
            rest = &after[domain.len()..];
        } else {
            out.push_str(&rest[..=position]);
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// Groups of digits with the separators people put between them.
fn redact_numbers(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut position = 0;
    while position < chars.len() {
        let starts = is_digit(chars[position])
            || (chars[position] == '+' && chars.get(position + 1).copied().is_some_and(is_digit))
            || (chars[position] == '(' && chars.get(position + 1).copied().is_some_and(is_digit));
        if !starts {
            out.push(chars[position]);
            position += 1;
            continue;
        }
        let end = number_end(&chars, position);
        let number = &chars[position..end];
        match label(number) {
            Some(label) => out.push_str(label),
            None => out.extend(number),
        }
        position = end;
    }
    out
}

/// Where a number with its separators ends: digits, and up to two separators between digits.
fn number_end(chars: &[char], start: usize) -> usize {
    let mut end = start;
    let mut position = start;
    let mut separators = 0;
    while position < chars.len() {
        let c = chars[position];
        if is_digit(c) {
            separators = 0;
            end = position + 1;
        } else if position == start || (separators < 2 && " -.()/\u{a0}\u{2011}\u{2013}".contains(c)) {
            separators += 1;
        } else {
            break;
        }
        position += 1;
    }
    end
}

fn label(number: &[char]) -> Option<&'static str> {
    let digits: Vec<char> = number.iter().copied().filter(|&c| is_digit(c)).collect();
    let groups: Vec<usize> = number.split(|&c| !is_digit(c)).map(<[char]>::len).filter(|&len| len > 0).collect();
    let longest = groups.iter().copied().max().unwrap_or(0);
    if (13..=19).contains(&digits.len()) && luhn(&digits) {
        return Some("[card]");
    }
    if longest >= LONG_RUN && number[0] != '+' {
        return Some("[number]");
    }
    if looks_like_a_date(number, &groups) {
        return None;
    }
    if digits.len() >= 7 {
        return Some(if digits.len() <= 15 { "[phone]" } else { "[number]" });
    }
    (longest >= LONG_RUN).then_some("[number]")
}

/// `2026-11-15`, `15.11.2026`, `11/15/2026`: worth keeping, and nobody's number.
fn looks_like_a_date(number: &[char], groups: &[usize]) -> bool {
    matches!(groups, [4, 1 | 2, 1 | 2] | [1 | 2, 1 | 2, 4])
        && number[0] != '+'
        && number.iter().all(|&c| c.is_ascii_digit() || "-./".contains(c))
}

fn luhn(digits: &[char]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(place, digit)| {
            let digit = digit.to_digit(10).unwrap_or(0);
            if place % 2 == 0 { digit } else { digit * 2 / 10 + digit * 2 % 10 }
        })
        .sum();
    sum.is_multiple_of(10)
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
    fn a_text_is_redacted_before_it_is_cut() {
        assert_eq!(StoreText::Redacted.keep("call 5558675309 now", 9), "call [num");
        assert_eq!(StoreText::None.keep("secret", 9), "");
        assert_eq!(StoreText::Full.keep("äöü123456", 4), "äöü1");
    }

    proptest! {
        #[test]
        fn no_long_run_of_digits_is_left(text in "[0-9a-z@. +-]{0,60}") {
            let redacted = redact(&text);
            let longest = redacted.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
            prop_assert!(longest < LONG_RUN, "{text} -> {redacted}");
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,80}") {
            let _ = redact(&text);
        }
    }
}
