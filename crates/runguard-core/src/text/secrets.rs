//! Keys, tokens and passwords: by the prefixes their makers publish, by the name in front of them, and by their form.
//!
//! The text is walked word by word, a word being what a program's names are made of. A word may be a key itself, or the name of
//! the value behind it, or a program or a header whose values are known by their place. How much a value must look like a secret
//! depends on how surely the name and the sign between them say that it is one: behind `password=` anything does; behind
//! "password is" only what no sentence would say.

use super::commands::{self, PasswordAt};
use super::glance::is_telling;
use super::judgement::{has_mixed_case, is_placeholder, is_variable};
use super::values::{announced_value, named_value};
use super::{Replacement, SECRET, is_one_of, near, offset};
use std::ops::Range;

/// How far a value or an address is read before it is known to be one, and how far a key: a text full of beginnings is not read over
/// and over. What is one is then taken whole.
const MOST_BYTES: usize = 1024;
const MOST_KEY_BYTES: usize = 256;
/// How far behind `echo` the program that reads it is looked for.
const MOST_COMMAND_BYTES: usize = 320;
/// No key is shorter.
const SHORTEST_KEY: usize = 15;

pub(super) fn find(text: &str) -> Vec<Replacement> {
    let bytes = text.as_bytes();
    let mut walk = Walk { text, words_before: [""; 3], program: None, program_known_to: 0, is_in_cookies: false };
    let mut found: Vec<Replacement> = Vec::new();
    let mut position = 0;
    while position < bytes.len() {
        let byte = bytes[position];
        let part = if bytes[position..].starts_with(b"-----BEGIN ") {
            private_block(text, position)
        } else if is_word_byte(byte) {
            let length = bytes[position..].iter().take_while(|byte| is_word_byte(**byte)).count();
            let part = walk.word(position, &text[position..position + length]);
            // Nothing was found in the word: on behind it.
            part.or(Some(position + length..position + length))
        } else if byte >= 0x80 {
            if text.is_char_boundary(position) { announced_value(text, position) } else { None }
        } else {
            walk.sign(position, byte);
            None
        };
        match part {
            Some(part) => {
                position = part.end;
                if !part.is_empty() {
                    found.push((part, SECRET));
                }
            }
            None => position += 1,
        }
    }
    found
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// What is known at a place of the text from what stands before it.
struct Walk<'a> {
    text: &'a str,
    /// The last one first.
    words_before: [&'a str; 3],
    program: Option<&'a str>,
    /// The program is looked for only where a flag stands, from here on.
    program_known_to: usize,
    is_in_cookies: bool,
}

impl<'a> Walk<'a> {
    fn word(&mut self, position: usize, word: &'a str) -> Option<Range<usize>> {
        let (text, end) = (self.text, position + word.len());
        let bytes = text.as_bytes();
        let may_tell = is_telling(&bytes[position.saturating_sub(1)..bytes.len().min(end + 2)]);
        let part = self.argument(position, word).or_else(|| self.cookie(position, word)).or_else(|| {
            let told = || key(text, position).or_else(|| named_value(text, position, word, &self.words_before));
            may_tell.then(told).flatten().or_else(|| in_url(text, position, word))
        });
        let part = part.or_else(|| matches!(word, "echo" | "printf").then(|| piped_value(text, end)).flatten());
        self.is_in_cookies |= may_tell
            && is_one_of(word, &["cookie", "set-cookie", "cookies"])
            && text[end..].trim_start_matches(['"', '\'', ' ']).starts_with([':', '=']);
        self.words_before = [word, self.words_before[0], self.words_before[1]];
        part
    }

    /// What is neither a letter nor a digit may end a command or a header.
    fn sign(&mut self, position: usize, byte: u8) {
        let bytes = self.text.as_bytes();
        let next_is = |wanted: &[u8]| bytes.get(position + 1).is_none_or(|next| wanted.contains(next));
        let ends_command = match byte {
            b'\n' => !bytes[..position].ends_with(b"\\"),
            b'|' | b';' => next_is(b" \n|"),
            b'&' => next_is(b"& \n"),
            _ => false,
        };
        if ends_command {
            self.program = None;
            self.program_known_to = position;
        }
        if byte == b'\n' {
            self.is_in_cookies = false;
        }
    }

    /// The password among the arguments of a known program.
    fn argument(&mut self, position: usize, word: &str) -> Option<Range<usize>> {
        let text = self.text;
        if !(word.starts_with('-') && word.len() > 1 && text[..position].ends_with([' ', '\t', '\n'])) {
            return None;
        }
        for argument in text[self.program_known_to..position].split_whitespace() {
            // `/usr/bin/mysql`, `$(curl`.
            let name = argument.rsplit(['/', '(', '`', '"', '\'']).next().unwrap_or(argument);
            self.program = commands::program(name, self.program);
        }
        self.program_known_to = position;
        let program = self.program?;
        let (length, place) = commands::flag(program, &text[position..])?;
        let behind = &text[position + length..];
        let rest = behind.trim_start_matches(['=', ' ', '\t']);
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
        let is_end = |c: char| quote.map_or(c.is_whitespace(), |quote| c == quote || c == '\n');
        let value = near(&rest[quote.map_or(0, char::len_utf8)..], MOST_BYTES);
        let value = &value[..value.find(is_end).unwrap_or(value.len())];
        let value = match place {
            PasswordAt::Cookies => {
                self.is_in_cookies = true;
                return None;
            }
            PasswordAt::BehindSign(sign) => &value[value.find(sign)? + sign.len_utf8()..],
            PasswordAt::Glued | PasswordAt::Behind | PasswordAt::Apart => value,
        };
        let is_value = !value.is_empty() && !value.starts_with('-') && !is_variable(value);
        let start = offset(text, value);
        is_value.then(|| start..start + text[start..].find(is_end).unwrap_or(text.len() - start))
    }

    /// The value of one cookie among those of a header.
    fn cookie(&self, position: usize, word: &str) -> Option<Range<usize>> {
        let start = position + word.len() + 1;
        if !self.is_in_cookies || !self.text[position + word.len()..].starts_with('=') {
            return None;
        }
        let is_end = |c: char| c.is_whitespace() || "\";,'".contains(c);
        let value = near(&self.text[start..], MOST_BYTES);
        let value = &value[..value.find(is_end).unwrap_or(value.len())];
        let says_so = ["sess", "token", "sid", "auth", "jwt", "csrf", "xsrf", "remember", "login", "secret"];
        let name = word.to_ascii_lowercase();
        let is_attribute = is_one_of(word, &["path", "domain", "expires", "max-age", "samesite", "priority"]);
        let is_secret = !is_attribute
            && !is_placeholder(value)
            && (value.len() >= 16 || value.len() >= 4 && says_so.iter().any(|part| name.contains(part)));
        is_secret.then(|| start..start + self.text[start..].find(is_end).unwrap_or(self.text.len() - start))
    }
}

/// `echo VALUE | sudo -S …`.
fn piped_value(text: &str, position: usize) -> Option<Range<usize>> {
    let mut rest = near(text[position..].strip_prefix(' ')?, MOST_COMMAND_BYTES);
    while let Some(behind) = ["-n ", "-e ", "-ne ", "'%s' ", "\"%s\" ", "%s ", " "].iter().find_map(|skipped| rest.strip_prefix(skipped)) {
        rest = behind;
    }
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
    let value = &rest[quote.map_or(0, char::len_utf8)..];
    let value = &value[..value.find(|c: char| quote.map_or(c.is_whitespace() || c == '|', |quote| c == quote) || c == '\n')?];
    let start = offset(text, value);
    let behind = &rest[start + value.len() - offset(text, rest)..];
    let command = behind.trim_start_matches(['"', '\'', ' ']).strip_prefix('|')?;
    let command = &command[..command.find(['\n', '|', ';']).unwrap_or(command.len())];
    (!value.is_empty() && !is_variable(value) && commands::reads_password(command)).then_some(start..start + value.len())
}

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
    ("sk_", 32),
    ("dapi", 32),
    ("sbp_", 32),
    ("pul-", 32),
    ("xkeysib-", 40),
    ("xsmtpsib-", 40),
    ("sntrys_", 30),
    ("sntryu_", 30),
    ("lsv2_", 30),
    ("rubygems_", 30),
    ("NRAK-", 20),
    ("dt0c01.", 30),
    ("pat-na1-", 30),
    ("pat-eu1-", 30),
    ("ATBB", 28),
    ("ATCTT3", 20),
    ("GR1348941", 16),
    ("AKCp", 40),
    ("bkua_", 30),
    ("aio_", 24),
    ("fc-", 32),
    ("e2b_", 30),
    ("sgp_", 30),
    ("rpa_", 30),
    ("CCIPAT_", 20),
    ("apify_api_", 20),
    ("FLWSECK", 20),
    ("lin_oauth_", 16),
    ("dckr_oat_", 16),
    ("hvb.", 20),
    ("hvr.", 20),
    ("glptt-", 30),
    ("xoxd-", 10),
    ("xoxc-", 10),
    ("GOCSPX-", 20),
    ("shippo_", 30),
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
        // A word with a dash in it has no digit; a name with an underscore has more of them.
        let is_one_body =
            |body: &str| (prefix.ends_with('_') || *prefix == "glpat-") && body.bytes().all(|byte| byte.is_ascii_alphanumeric());
        body.is_some_and(|body| {
            body.len() >= *least && (body.bytes().any(|byte| byte.is_ascii_digit()) || has_mixed_case(body) || is_one_body(body))
        })
    };
    let is_json_token = || rest.starts_with("eyJ") && length >= 20 && (rest[..length].contains('.') || length >= 40);
    (PREFIXES.iter().any(is_prefixed) || is_json_token()).then(|| position..position + token_length(rest))
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

/// Addresses that are themselves the permission to write to them.
const OPEN_TO_WHOEVER_KNOWS_THEM: [&str; 6] = [
    "hooks.slack.com/",
    "/api/webhooks/",
    "webhook.office.com/",
    "office.com/webhook/",
    "hooks.zapier.com/hooks/",
    "maker.ifttt.com/trigger/",
];

/// The password of `scheme://user:password@host`, or an address that is itself the permission to write to it.
fn in_url(text: &str, position: usize, scheme: &str) -> Option<Range<usize>> {
    let rest = text[position + scheme.len()..].strip_prefix("://")?;
    let start = text.len() - rest.len();
    let rest = near(rest, MOST_BYTES);
    let whole = rest.find(|c: char| c.is_whitespace() || "\"'<>`".contains(c)).unwrap_or(rest.len());
    let url = &rest[..whole];
    let is_written_out = || url.bytes().any(|byte| byte.is_ascii_digit());
    if OPEN_TO_WHOEVER_KNOWS_THEM.iter().any(|part| url.contains(part)) && is_written_out() {
        return Some(position..start + whole);
    }
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    let user = &authority[..authority.rfind('@')?];
    let password = user.find(':')? + 1;
    (password < user.len() && !is_placeholder(&user[password..])).then_some(start + password..start + user.len())
}
