//! E-mail addresses, as they are written, as they are hidden from machines, and as they are spoken.
//!
//! An address is found from its sign outwards: `@` and its likes, `%40`, `(at)`, or the word. The plainer the sign, the less the
//! rest has to look like an address; for the bare word "at" the domain's dots must be spelled too, or the text must be about mail.

use super::{EMAIL, Found, is_invisible};

/// How sure a sign is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// `@` and what stands for it in other scripts and encodings.
    At,
    /// `(at)`, `[at]`, `-at-`.
    Bracketed,
    /// "at", "arroba".
    Word,
}

/// Longest part of an address that is looked at, in characters; a domain is at most 253.
const MOST_CHARS: usize = 320;

pub(super) fn find(text: &str) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let mut about_mail = None;
    let mut position = 0;
    while position < text.len() {
        let Some((length, sign)) = sign_at(text, position) else {
            position += text[position..].chars().next().map_or(1, char::len_utf8);
            continue;
        };
        let floor = found.last().map_or(0, |(part, _)| part.end);
        let mut talks_of_mail = || *about_mail.get_or_insert_with(|| contains_word(text, "mail"));
        match around(&text[floor..], position - floor, length, sign, &mut talks_of_mail) {
            Some((start, end)) => {
                found.push((floor + start..floor + end, EMAIL));
                position = floor + end;
            }
            None => position += length,
        }
    }
    found
}

fn contains_word(text: &str, word: &str) -> bool {
    text.as_bytes().windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
}

const ENCODED: [&str; 4] = ["%40", "&#64;", "&#x40;", "&commat;"];
const SPOKEN: [&str; 4] = ["at", "arroba", "arobase", "chiocciola"];
const DOTS: [&str; 5] = ["dot", "punto", "point", "punkt", "ponto"];
const BRACKETS: [(char, char); 5] = [('(', ')'), ('[', ']'), ('{', '}'), ('<', '>'), ('-', '-')];

/// The sign that begins here, and its length.
fn sign_at(text: &str, position: usize) -> Option<(usize, Sign)> {
    let rest = &text[position..];
    let first = rest.chars().next()?;
    match first {
        '@' | '\u{ff20}' | '\u{fe6b}' => Some((first.len_utf8(), Sign::At)),
        '%' | '&' => ENCODED.iter().find(|encoded| starts_with(rest, encoded)).map(|encoded| (encoded.len(), Sign::At)),
        '(' | '[' | '{' | '<' | '-' => {
            let (_, closing) = BRACKETS.into_iter().find(|(opening, _)| *opening == first)?;
            let inside = &rest[1..=rest[1..].bytes().take("chiocciola".len()).take_while(u8::is_ascii_alphabetic).count()];
            let is_sign = rest[1 + inside.len()..].starts_with(closing)
                && (inside.eq_ignore_ascii_case("a") && first != '-' || is_one_of(inside, &SPOKEN));
            is_sign.then_some((inside.len() + 2, Sign::Bracketed))
        }
        _ if first.is_ascii_alphabetic() && !text[..position].ends_with(|c: char| c.is_alphanumeric()) => {
            let length = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
            is_one_of(&rest[..length], &SPOKEN).then_some((length, Sign::Word))
        }
        _ => None,
    }
}

fn starts_with(text: &str, prefix: &str) -> bool {
    text.len() >= prefix.len() && text.as_bytes()[..prefix.len()].eq_ignore_ascii_case(prefix.as_bytes())
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|other| word.eq_ignore_ascii_case(other))
}

/// Where the address around a sign begins and ends, if it is one.
fn around(text: &str, at: usize, length: usize, sign: Sign, about_mail: &mut dyn FnMut() -> bool) -> Option<(usize, usize)> {
    let before = &text[..at];
    let after = &text[at + length..];
    let (near, far) = (trim_end(before), trim_start(after));
    let is_tight = near.len() == before.len() && far.len() == after.len();
    if sign == Sign::Word && (near.len() == before.len() || far.len() == after.len()) {
        return None;
    }
    let start = local_start(near, sign)?;
    let domain = Domain::read(far)?;
    let is_address = match sign {
        Sign::At if is_tight => domain.is_host(),
        Sign::At | Sign::Bracketed => domain.has_known_end(),
        Sign::Word => domain.has_known_end() && (domain.is_spelled || about_mail()),
    };
    is_address.then(|| (start, text.len() - far.len() + domain.bytes))
}

/// Without up to two spaces, and whatever is not seen.
fn trim_end(text: &str) -> &str {
    let mut spaces = 0;
    text.trim_end_matches(|c: char| {
        is_invisible(c)
            || (is_space(c) && {
                spaces += 1;
                spaces <= 2
            })
    })
}

fn trim_start(text: &str) -> &str {
    let mut spaces = 0;
    text.trim_start_matches(|c: char| {
        is_invisible(c)
            || (is_space(c) && {
                spaces += 1;
                spaces <= 2
            })
    })
}

fn is_space(c: char) -> bool {
    c.is_whitespace() && c != '\n'
}

fn local_start(text: &str, sign: Sign) -> Option<usize> {
    if let Some(quoted) = text.strip_suffix('"') {
        return quoted.char_indices().rev().take(64).find(|&(_, c)| c == '"').map(|(start, _)| start);
    }
    let is_local = |c: char| c.is_alphanumeric() || is_invisible(c) || "._%+-'!#$&*/=?^`{|}~".contains(c);
    let mut start = text.len();
    loop {
        let begun = text[..start].char_indices().rev().take(MOST_CHARS).take_while(|&(_, c)| is_local(c)).last();
        start = begun.map(|(start, _)| start)?;
        // "j dot doe at example dot net".
        let before = trim_end(&text[..start]);
        let Some(word) = (sign != Sign::At).then(|| ending_dot(before)).flatten() else { break };
        start = trim_end(&before[..word]).len();
    }
    text[start..].chars().any(char::is_alphanumeric).then_some(start)
}

/// Where a spelled dot at the end of a text begins, with a space before it.
fn ending_dot(text: &str) -> Option<usize> {
    let start = text.len() - text.bytes().rev().take("[punto]".len() + 1).position(|byte| byte == b' ')?;
    let is_dot = text.is_char_boundary(start) && is_one_of(text[start..].trim_matches(['(', ')', '[', ']', '{', '}', '-']), &DOTS);
    is_dot.then_some(start)
}

struct Domain<'a> {
    bytes: usize,
    last: &'a str,
    labels: usize,
    is_spelled: bool,
}

impl<'a> Domain<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let is_dot = |c: char| matches!(c, '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}');
        let mut domain = Self { bytes: 0, last: "", labels: 0, is_spelled: false };
        let mut end = 0;
        loop {
            let rest = &text[end..];
            let length: usize =
                rest.chars().take(MOST_CHARS).take_while(|&c| c.is_alphanumeric() || c == '-' || c == '_').map(char::len_utf8).sum();
            let label = rest[..length].trim_end_matches(['-', '_']);
            if label.is_empty() || domain.labels > 16 {
                break;
            }
            domain.labels += 1;
            domain.last = label;
            domain.bytes = end + label.len();
            let rest = &text[domain.bytes..];
            if let Some(dot) = rest.chars().next().filter(|&c| is_dot(c)) {
                end = domain.bytes + dot.len_utf8();
            } else if let Some(length) = beginning_dot(rest) {
                domain.is_spelled = true;
                end = domain.bytes + length;
            } else {
                break;
            }
        }
        (domain.labels > 0).then_some(domain)
    }

    /// Whether it may stand behind an `@` that touches both sides: `react@18.2.0` and `checkout@v4` are versions.
    fn is_host(&self) -> bool {
        let digits_from = usize::from(self.last.starts_with(['v', 'V']));
        let is_version = self.last.as_bytes().get(digits_from).is_some_and(u8::is_ascii_digit);
        let is_word_for_version = is_one_of(self.last, &["latest", "next", "beta", "alpha", "canary", "rc", "main", "master", "stable"]);
        if self.labels == 1 { !is_version && !is_word_for_version } else { self.last.chars().any(char::is_alphabetic) }
    }

    /// Whether it ends as the internet's names do.
    fn has_known_end(&self) -> bool {
        const LONG: [&str; 25] = [
            "com", "org", "net", "edu", "gov", "mil", "int", "info", "biz", "name", "dev", "app", "xyz", "online", "site", "shop", "store",
            "tech", "cloud", "blog", "email", "museum", "travel", "example", "test",
        ];
        let is_country = self.last.len() == 2 && self.last.bytes().all(|byte| byte.is_ascii_alphabetic());
        let is_foreign = self.last.chars().all(|c| c.is_alphabetic() && !c.is_ascii());
        self.labels > 1 && (is_country || is_foreign || is_one_of(self.last, &LONG))
    }
}

/// The length of a spelled dot at the beginning of a text, with the spaces around it.
fn beginning_dot(text: &str) -> Option<usize> {
    let near = trim_start(text);
    let opening = near.chars().next()?;
    let (word_at, closing) = match BRACKETS.into_iter().find(|(bracket, _)| *bracket == opening) {
        Some((_, closing)) => (1, Some(closing)),
        None if near.len() < text.len() => (0, None),
        None => return None,
    };
    let length = near[word_at..].bytes().take_while(u8::is_ascii_alphabetic).count();
    if !is_one_of(&near[word_at..word_at + length], &DOTS) {
        return None;
    }
    let behind = &near[word_at + length..];
    let far = match closing {
        Some(closing) => trim_start(behind.strip_prefix(closing)?),
        None => Some(trim_start(behind)).filter(|far| far.len() < behind.len())?,
    };
    Some(text.len() - far.len())
}
