//! Keys, tokens and passwords: by the prefixes their makers publish, by the name in front of them, and by their form.
//!
//! The text is walked word by word, a word being what a program's names are made of. A word may be a key itself, or the name of
//! the value behind it. How much the value must look like a secret depends on how surely the name and the sign between them say
//! that it is one: behind `password=` anything does; behind "password is" only what no sentence would say.

use super::glance::is_telling;
use super::{Found, SECRET};
use std::ops::Range;

/// How far a value or an address is read before it is known to be one, and how far a key: a text full of beginnings is not read over
/// and over. What is one is then taken whole.
const MOST_BYTES: usize = 1024;
const MOST_KEY_BYTES: usize = 256;
/// No key is shorter.
const SHORTEST_KEY: usize = 15;

/// As much of a text as is looked at.
fn near(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

pub(super) fn find(text: &str) -> Vec<Found> {
    let bytes = text.as_bytes();
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut position = 0;
    let mut word_before = "";
    while position < bytes.len() {
        let part = if bytes[position..].starts_with(b"-----BEGIN ") {
            private_block(text, position)
        } else if is_word_byte(bytes[position]) {
            let length = bytes[position..].iter().take_while(|byte| is_word_byte(**byte)).count();
            let word = &text[position..position + length];
            let may_tell = is_telling(&bytes[position..bytes.len().min(position + length + 2)]);
            let told = || key(text, position).or_else(|| named_value(text, position, word, word_before));
            let part = may_tell.then(told).flatten().or_else(|| in_url(text, position, word));
            word_before = word;
            part.or(Some(position + length..position + length))
        } else {
            None
        };
        match part {
            // Nothing was found in the word: on behind it.
            Some(part) if part.is_empty() => position = part.end,
            Some(part) => {
                position = part.end;
                found.push(part);
            }
            None => position += 1,
        }
    }
    found.into_iter().map(|part| (part, SECRET)).collect()
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

// ---------------------------------------------------------------------------------------------------------------------
// Keys that say themselves what they are

/// A published prefix, and how many characters follow it at least.
const PREFIXES: &[(&str, usize)] = &[
    ("sk-", 16),
    ("sk_live_", 10),
    ("sk_test_", 10),
    ("rk_live_", 10),
    ("rk_test_", 10),
    ("pk_live_", 10),
    ("pk_test_", 10),
    ("whsec_", 16),
    ("AKIA", 16),
    ("ASIA", 16),
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("xoxa-", 10),
    ("xoxb-", 10),
    ("xoxe-", 10),
    ("xoxe.", 10),
    ("xoxp-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("xapp-", 10),
    ("AIza", 30),
    ("ya29.", 10),
    ("npm_", 30),
    ("pypi-", 30),
    ("hf_", 20),
    ("gsk_", 20),
    ("r8_", 30),
    ("nvapi-", 20),
    ("pplx-", 20),
    ("xai-", 20),
    ("SG.", 30),
    ("key-", 32),
    ("rg_", 20),
    ("dop_v1_", 20),
    ("doo_v1_", 20),
    ("dor_v1_", 20),
    ("shpat_", 16),
    ("shpca_", 16),
    ("shppa_", 16),
    ("shpss_", 16),
    ("lin_api_", 16),
    ("tskey-", 16),
    ("ATATT3", 20),
    ("dckr_pat_", 16),
    ("figd_", 20),
    ("ntn_", 30),
    ("secret_", 40),
    ("PMAK-", 20),
    ("hvs.", 20),
    ("glsa_", 20),
    ("sq0atp-", 16),
    ("sq0csp-", 16),
    ("AGE-SECRET-KEY-1", 20),
];

/// A key that begins here.
fn key(text: &str, position: usize) -> Option<Range<usize>> {
    let rest = &text[position..];
    let length = token_length(near(rest, MOST_KEY_BYTES));
    if length < SHORTEST_KEY {
        return None;
    }
    let is_prefixed = |(prefix, least): &(&str, usize)| {
        let body = rest.get(..length).and_then(|token| token.strip_prefix(prefix));
        // A word with a dash in it has no digit.
        body.is_some_and(|body| body.len() >= *least && (body.bytes().any(|byte| byte.is_ascii_digit()) || has_mixed_case(body)))
    };
    let is_json_token = || rest.starts_with("eyJ") && length >= 20 && (rest[..length].contains('.') || length >= 40);
    // Twilio names accounts and keys by two letters and 32 hex digits.
    let is_account = || {
        length == 34
            && (rest.starts_with("AC") || rest.starts_with("SK"))
            && rest.as_bytes()[2..length].iter().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
    };
    (PREFIXES.iter().any(is_prefixed) || is_json_token() || is_account()).then(|| position..position + token_length(rest))
}

/// A token, with the dots inside it and without those of the sentence.
fn token_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut length = 0;
    while length < bytes.len() {
        let is_inner_dot = bytes[length] == b'.' && bytes.get(length + 1).is_some_and(|next| is_word_byte(*next));
        if !is_word_byte(bytes[length]) && !is_inner_dot {
            break;
        }
        length += 1;
    }
    length
}

fn has_mixed_case(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_lowercase()) && text.bytes().skip(1).any(|byte| byte.is_ascii_uppercase())
}

/// A private key in PEM, whole or cut off.
fn private_block(text: &str, position: usize) -> Option<Range<usize>> {
    let rest = &text[position..];
    let header_end = rest["-----BEGIN ".len()..].find("-----")? + "-----BEGIN ".len();
    if !rest[..header_end].contains("PRIVATE") {
        return None;
    }
    let end = rest[header_end..].find("-----END ").map_or(rest.len(), |footer| {
        let name = header_end + footer + "-----END ".len();
        rest[name..].find("-----").map_or(rest.len(), |dashes| name + dashes + "-----".len())
    });
    Some(position..position + end)
}

/// The password of `scheme://user:password@host`, or an address that is itself the permission to write to it.
fn in_url(text: &str, position: usize, scheme: &str) -> Option<Range<usize>> {
    let rest = text[position + scheme.len()..].strip_prefix("://")?;
    let start = text.len() - rest.len();
    let rest = near(rest, MOST_BYTES);
    let whole = rest.find(|c: char| c.is_whitespace() || "\"'<>`".contains(c)).unwrap_or(rest.len());
    let url = &rest[..whole];
    if url.contains("hooks.slack.com/services/") || url.contains("/api/webhooks/") || url.contains("webhook.office.com/") {
        return Some(position..start + whole);
    }
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    let user = &authority[..authority.rfind('@')?];
    let password = user.find(':')? + 1;
    (password < user.len()).then_some(start + password..start + user.len())
}

// ---------------------------------------------------------------------------------------------------------------------
// Values behind a name

/// How names of secrets end.
const NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passwort",
    "kennwort",
    "pwd",
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "access_key",
    "access-key",
    "accesskey",
    "secret_key",
    "secret-key",
    "secretkey",
    "private_key",
    "private-key",
    "privatekey",
    "auth_key",
    "credential",
    "credentials",
    "authorization",
];
/// Names of secrets where they stand alone or behind a dash.
const SHORT_NAMES: &[&str] = &["pass", "passe"];
/// What "key" must stand behind: "API key".
const KINDS_OF_KEY: &[&str] = &["api", "access", "secret", "private", "auth"];

fn ends_with(word: &str, ending: &str) -> bool {
    word.len() >= ending.len() && word.as_bytes()[word.len() - ending.len()..].eq_ignore_ascii_case(ending.as_bytes())
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|other| word.eq_ignore_ascii_case(other))
}

fn is_name(word: &str, word_before: &str, behind: &str) -> bool {
    NAMES.iter().any(|name| ends_with(word, name))
        || is_one_of(word.rsplit(['_', '-']).next().unwrap_or(word), SHORT_NAMES)
        || (word.eq_ignore_ascii_case("key") && is_one_of(word_before, KINDS_OF_KEY))
        // Contraseña: the letter is no part of a word here.
        || (ends_with(word, "contrase") && behind.starts_with("\u{f1}a"))
}

/// What stands between a name and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Equals,
    Colon,
    Is,
    /// `--password value`.
    Flag,
    Nothing,
}

fn named_value(text: &str, position: usize, word: &str, word_before: &str) -> Option<Range<usize>> {
    let behind = &text[position + word.len()..];
    if is_one_of(word, &["bearer", "basic"]) {
        return scheme_value(text, text.len() - behind.len());
    }
    if !is_name(word, word_before, behind) {
        return None;
    }
    let behind = behind.strip_prefix("\u{f1}a").unwrap_or(behind);
    let rest = behind.trim_start_matches(['"', '\'', '`', '\\', ']']).trim_start_matches([' ', '\t']);
    let (sign, rest) = sign(word, rest, behind)?;
    let rest = near(rest.trim_start_matches([' ', '\t']), MOST_BYTES);
    let unescaped = rest.trim_start_matches('\\');
    let quote = unescaped.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'));
    let value = whole_value(if quote.is_some() { &unescaped[1..] } else { rest }, quote);
    let is_last = rest[value.len().min(rest.len())..].trim_start_matches(['.', '!', '?']).chars().next().is_none_or(|c| c == '\n');
    let is_secret = !is_placeholder(value)
        && match (sign, quote) {
            (Sign::Equals, None) => !value.contains(['(', '[', '{']),
            (Sign::Equals | Sign::Colon, Some(_)) | (Sign::Flag, _) => true,
            (Sign::Colon, None) => looks_chosen(value) || (is_last && value.chars().all(char::is_alphanumeric)),
            (Sign::Is, _) => value.chars().count() >= 5 && looks_chosen(value),
            (Sign::Nothing, _) => value.len() >= 12 && has_letters_and_digits(value),
        };
    let start = value.as_ptr() as usize - text.as_ptr() as usize;
    (is_secret && !value.is_empty()).then(|| {
        let value = whole_value(&text[start..], quote);
        start..start + value.trim_end_matches([')', ']', '}', '.']).len().max(1)
    })
}

/// Up to the quote it began with, or to what ends a value without quotes.
fn whole_value(text: &str, quote: Option<char>) -> &str {
    let end = match quote {
        Some(quote) => text.find([quote, '\\', '\n']),
        None => text.find(|c: char| c.is_whitespace() || "&;,\"'`<>".contains(c)),
    };
    &text[..end.unwrap_or(text.len())]
}

fn sign<'a>(word: &str, rest: &'a str, behind: &str) -> Option<(Sign, &'a str)> {
    if rest.starts_with("==") || rest.starts_with("!=") {
        return None;
    }
    for mark in ["=>", ":=", "="] {
        if let Some(rest) = rest.strip_prefix(mark) {
            return Some((Sign::Equals, rest));
        }
    }
    if let Some(rest) = rest.strip_prefix(':') {
        return Some((Sign::Colon, rest));
    }
    if !behind.starts_with([' ', '\t']) {
        return None;
    }
    for verb in ["is ", "was ", "ist ", "es ", "est "] {
        if rest.len() > verb.len() && rest.as_bytes()[..verb.len()].eq_ignore_ascii_case(verb.as_bytes()) {
            return Some((Sign::Is, rest[verb.len()..].trim_start_matches([' ', ':'])));
        }
    }
    if word.starts_with("--") {
        return (!rest.starts_with('-')).then_some((Sign::Flag, rest));
    }
    Some((Sign::Nothing, rest))
}

/// What stands where no value is, and what is said about one.
fn is_placeholder(value: &str) -> bool {
    let value = value.trim_end_matches(['.', '!', '?', ')', ']', '}']);
    let is_number = value.len() < 6 && value.bytes().all(|byte| byte.is_ascii_digit());
    let is_masked =
        value.starts_with(['<', '$', '{', '%', '*', '\u{2022}', '[', '(']) || value.starts_with("...") || value.starts_with("xxx");
    let said = [
        "null",
        "nil",
        "none",
        "undefined",
        "true",
        "false",
        "yes",
        "no",
        "required",
        "optional",
        "missing",
        "invalid",
        "wrong",
        "incorrect",
        "expired",
        "empty",
        "unknown",
        "hidden",
        "string",
        "str",
        "text",
        "needed",
        "forgotten",
        "bearer",
        "basic",
        "digest",
        "token",
        "help",
    ];
    is_number || is_masked || is_one_of(value, &said)
}

/// No word of a sentence: with a digit, a sign or a capital inside.
fn looks_chosen(value: &str) -> bool {
    let value = value.trim_end_matches(['.', '!', '?', ')']);
    value.chars().any(|c| c.is_ascii_digit() || (!c.is_alphabetic() && !"-'/.\u{2019}".contains(c))) || has_mixed_case(value)
}

fn has_letters_and_digits(value: &str) -> bool {
    value.bytes().any(|byte| byte.is_ascii_digit()) && value.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// `Bearer …`, `Basic …`.
fn scheme_value(text: &str, position: usize) -> Option<Range<usize>> {
    let rest = text[position..].strip_prefix(' ')?.trim_start_matches(' ');
    let start = text.len() - rest.len();
    let length = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte)).count();
    let value = rest[..length].trim_end_matches('.');
    let is_token = value.len() >= 8 && (value.bytes().any(|byte| byte.is_ascii_digit() || byte == b'=') || has_mixed_case(value));
    is_token.then(|| start..start + value.len())
}
