//! E-mail addresses, as they are written, as they are hidden from machines, and as they are spoken.
//!
//! An address is found from its sign outwards: `@` and its likes, `%40`, `(at)`, or the word. The plainer the sign, the less the
//! rest has to look like an address; for the bare word "at" the domain's dots must be spelled too, or the text must be about mail.

use super::foreign::{self, Announces, folded_length, is_written_without_spaces};
use super::{EMAIL, Replacement, is_invisible, is_one_of, starts_with};
use std::ops::Range;

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
/// One more than a part between two dots may have.
const MOST_LABEL_CHARS: usize = 64;

pub(super) fn find(text: &str) -> Vec<Replacement> {
    let mut found: Vec<Replacement> = Vec::new();
    let mut about_mail = None;
    let mut position = 0;
    while position < text.len() {
        let floor = found.last().map_or(0, |(part, _)| part.end);
        let Some((written, sign)) = sign_at(text, position).filter(|(written, _)| written.start >= floor) else {
            position += text[position..].chars().next().map_or(1, char::len_utf8);
            continue;
        };
        let mut talks_of_mail = || *about_mail.get_or_insert_with(|| contains_word(text, "mail"));
        match around(&text[floor..], written.start - floor..written.end - floor, sign, &mut talks_of_mail) {
            Some((start, end)) => {
                found.push((floor + start..floor + end, EMAIL));
                position = floor + end;
            }
            None => position = written.end,
        }
    }
    found
}

fn contains_word(text: &str, word: &str) -> bool {
    text.as_bytes().windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
}

const ENCODED: [&str; 8] = ["%40", "%2540", "&#64;", "&#x40;", "&commat;", "\\u0040", "\\x40", "=40"];
const SPOKEN: [&str; 10] =
    ["at", "arroba", "arobase", "arobas", "chiocciola", "klammeraffe", "kukac", "snabela", "apenstaartje", "apestaartje"];
const DOTS: [&str; 15] =
    ["dot", "punto", "point", "punkt", "ponto", "punt", "punktum", "prikk", "nokta", "kropka", "bodka", "pont", "piste", "titik", "tacka"];
/// Small letters, and none that begins another.
const FOREIGN_DOTS: [&str; 11] = ["точка", "крапка", "tečka", "τελεία", "נקודה", "نقطة", "chấm", "ドット", "点", "點", "닷"];
const ENCODED_DOTS: [&str; 4] = ["&#46;", "&#x2e;", "&period;", "%2E"];
const BRACKETS: [(char, char); 5] = [('(', ')'), ('[', ']'), ('{', '}'), ('<', '>'), ('-', '-')];

/// The sign that stands here.
fn sign_at(text: &str, position: usize) -> Option<(Range<usize>, Sign)> {
    let rest = &text[position..];
    let first = rest.chars().next()?;
    let here = |length: usize| position..position + length;
    match first {
        '@' | '\u{ff20}' | '\u{fe6b}' => Some((here(first.len_utf8()), Sign::At)),
        '%' | '&' | '\\' | '=' => ENCODED.iter().find(|encoded| starts_with(rest, encoded)).map(|encoded| {
            // In the encoding of mail itself it is no more than a number.
            (here(encoded.len()), if first == '=' { Sign::Bracketed } else { Sign::At })
        }),
        '(' | '[' | '{' | '<' | '-' => {
            let (_, closing) = BRACKETS.into_iter().find(|(opening, _)| *opening == first)?;
            if rest[1..].starts_with('@') && rest[2..].starts_with(closing) {
                return Some((here(3), Sign::Bracketed));
            }
            let inside = &rest[1..=rest[1..].bytes().take("apenstaartje".len()).take_while(u8::is_ascii_alphabetic).count()];
            let is_sign = rest[1 + inside.len()..].starts_with(closing)
                && (inside.eq_ignore_ascii_case("a") && first != '-' || is_one_of(inside, &SPOKEN));
            is_sign.then(|| (here(inside.len() + 2), Sign::Bracketed))
        }
        _ if first.is_ascii_alphabetic() && !text[..position].ends_with(|c: char| c.is_alphanumeric()) => {
            let may_begin = matches!(first, 'a' | 'A' | 'c' | 'C' | 'k' | 'K' | 's' | 'S');
            let length = rest.bytes().take_while(|byte| may_begin && byte.is_ascii_alphabetic()).count();
            is_one_of(&rest[..length], &SPOKEN).then(|| (here(length), Sign::Word))
        }
        _ if !first.is_ascii() => foreign::word_at(text, position)
            .filter(|(_, _, announces)| *announces == Announces::At)
            .map(|(start, end, _)| (start..end, Sign::Word)),
        _ => None,
    }
}

/// Where the address around a sign begins and ends, if it is one.
fn around(text: &str, written: Range<usize>, sign: Sign, about_mail: &mut dyn FnMut() -> bool) -> Option<(usize, usize)> {
    let before = &text[..written.start];
    let after = &text[written.end..];
    let (near, far) = (trim_end(before), trim_start(after));
    let is_tight = near.len() == before.len() && far.len() == after.len();
    let may_touch = text[written.clone()].starts_with(is_written_without_spaces);
    if sign == Sign::Word && !may_touch && (near.len() == before.len() || far.len() == after.len()) {
        return None;
    }
    let start = local_start(near, sign)?;
    let domain = Domain::read(far, sign != Sign::Word && !is_tight)?;
    let is_address = match sign {
        Sign::At if is_tight => domain.is_host() && !is_something_else(&near[start..], &domain, &far[domain.bytes..]),
        Sign::At | Sign::Bracketed => domain.has_known_end(),
        Sign::Word => !begins_with_pronoun(far) && domain.has_known_end() && (domain.is_spelled || about_mail()),
    };
    is_address.then(|| (start, text.len() - far.len() + domain.bytes))
}

/// "at this point in time".
fn begins_with_pronoun(text: &str) -> bool {
    let length = text.bytes().take(8).take_while(u8::is_ascii_alphabetic).count();
    is_one_of(&text[..length], &["this", "that", "the", "which", "some", "any", "every", "what", "one", "no", "a"])
}

/// What programs write with an `@`: where a shell waits, digests, repositories, units of a system, files, labels of code.
fn is_something_else(local: &str, domain: &Domain, behind: &str) -> bool {
    const HOSTS_OF_NOBODY: [&str; 8] = ["host", "hostname", "server", "domain", "remote", "machine", "ip", "address"];
    const DIGESTS: [&str; 4] = ["sha256", "sha384", "sha512", "sha1"];
    const UNITS_AND_FILES: [&str; 21] = [
        "service", "socket", "timer", "target", "mount", "slice", "png", "jpg", "jpeg", "gif", "webp", "svg", "js", "ts", "css", "json",
        "yaml", "yml", "toml", "txt", "html",
    ];
    let is_prompt = || [":~", ":/", " ~]", " ~$", " ~ "].iter().any(|waiting| behind.starts_with(waiting));
    let is_alone = domain.labels == 1
        && (is_prompt()
            || is_one_of(domain.last, &HOSTS_OF_NOBODY)
            || is_one_of(domain.last, &DIGESTS) && behind.starts_with(':')
            || is_one_of(local, &["return", "this", "break", "continue", "super"]));
    let is_repository = is_one_of(local, &["git", "hg", "svn"]) && behind.starts_with([':', '/']);
    is_alone || is_repository || domain.labels > 1 && is_one_of(domain.last, &UNITS_AND_FILES)
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
    let start = text.len() - text.bytes().rev().take("[punktum]".len() * 2).position(|byte| byte == b' ')?;
    let is_dot = text.is_char_boundary(start) && is_dot_word(text[start..].trim_matches(['(', ')', '[', ']', '{', '}', '-']));
    is_dot.then_some(start)
}

fn is_dot_word(word: &str) -> bool {
    is_one_of(word, &DOTS) || FOREIGN_DOTS.iter().any(|dot| folded_length(word, dot) == Some(word.len()))
}

struct Domain<'a> {
    bytes: usize,
    last: &'a str,
    labels: usize,
    is_spelled: bool,
}

impl<'a> Domain<'a> {
    /// Where the sign stands between spaces, its dots may too.
    fn read(text: &'a str, is_spaced: bool) -> Option<Self> {
        let is_dot = |c: char| matches!(c, '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}');
        let mut domain = Self { bytes: 0, last: "", labels: 0, is_spelled: false };
        let mut end = 0;
        loop {
            let rest = &text[end..];
            let length: usize =
                rest.chars().take(MOST_LABEL_CHARS).take_while(|&c| c.is_alphanumeric() || c == '-' || c == '_').map(char::len_utf8).sum();
            // Where words touch, the spelled dot is not a part of the name before it.
            let label = &rest[..length];
            let label = label.find("ドット").or_else(|| label.find('닷')).map_or(label, |dot| &label[..dot]);
            let label = label.trim_end_matches(['-', '_']);
            if label.is_empty() || domain.labels > 16 {
                break;
            }
            domain.labels += 1;
            domain.last = label;
            domain.bytes = end + label.len();
            let rest = &text[domain.bytes..];
            if let Some(dot) = rest.chars().next().filter(|&c| is_dot(c)) {
                end = domain.bytes + dot.len_utf8();
            } else if let Some(dot) = ENCODED_DOTS.iter().find(|dot| starts_with(rest, dot)) {
                end = domain.bytes + dot.len();
            } else if is_spaced && rest.starts_with(" . ") {
                end = domain.bytes + " . ".len();
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
        let is_word_for_version = is_one_of(
            self.last,
            &[
                "latest",
                "next",
                "beta",
                "alpha",
                "canary",
                "rc",
                "main",
                "master",
                "stable",
                "lts",
                "edge",
                "nightly",
                "head",
                "dev",
                "workspace",
                "npm",
            ],
        );
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
        None if near.len() < text.len() || is_written_without_spaces(opening) => (0, None),
        None => return None,
    };
    let rest = &near[word_at..];
    let may_touch = rest.starts_with(is_written_without_spaces);
    let length = if closing.is_some() && rest.starts_with('.') {
        1
    } else if may_touch {
        FOREIGN_DOTS.iter().find(|dot| rest.starts_with(**dot)).map(|dot| dot.len())?
    } else {
        let length = rest.chars().take("punktum".len() + 1).take_while(|c| c.is_alphabetic()).map(char::len_utf8).sum();
        is_dot_word(&rest[..length]).then_some(length)?
    };
    let behind = &rest[length..];
    let far = match closing {
        Some(closing) => trim_start(behind.strip_prefix(closing)?),
        None => Some(trim_start(behind)).filter(|far| may_touch || far.len() < behind.len())?,
    };
    Some(text.len() - far.len())
}
