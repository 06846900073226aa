//! Results and errors as fingerprints: what differs each time, such as a time or the id of a request, is left out.
//!
//! What it is, is known by its form (a duration, a clock with seconds, an address) or by its name, in JSON as in text: what
//! stands behind `durationMs`, `updated_at` or `request-id` is never news. A place in a file (`12:5`), a price or the time of
//! an appointment (`9:00`) is.

use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_64;

/// One name for texts that differ only in what changes from run to run: times, durations, addresses, what is named as such, and
/// white space. Not ids of things: another commit or order is another result.
pub fn result_fingerprint(text: &str) -> u64 {
    xxh3_64(Lasting::of(text).as_bytes())
}

/// One name for errors that say the same about other things: numbers, ids, quoted texts and paths do not matter either.
pub fn error_fingerprint(text: &str) -> u64 {
    let start: String = text.chars().take(ERROR_CHARS).collect();
    let mut out = String::with_capacity(start.len());
    for word in start.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        if is_volatile(bare(word)) || names_a_thing(word) || is_long_hex(bare(word)) {
            out.push('#');
        } else {
            out.extend(word.chars().filter(|letter| !letter.is_ascii_digit()).flat_map(char::to_lowercase));
        }
    }
    xxh3_64(out.as_bytes())
}

/// Words that tools begin with when they failed, where nothing beside the text says so.
const FAILURES: [&str; 5] = ["error", "traceback", "exception", "failed", "fatal"];

/// Whether a result tells of a failure, for who has nothing but its text: it begins as errors begin, or it is an object whose `error` says
/// something. "errors: 0" and "failed: 0" tell of none.
pub fn says_error(text: &str) -> bool {
    let text = text.trim_start();
    if text.starts_with('{') {
        return object_says_error(text);
    }
    let (sign, text) = text.split_at(text.find(char::is_alphanumeric).unwrap_or(text.len()));
    // A heading or a comment about errors is none.
    if sign.contains(['#', '/']) {
        return false;
    }
    let begins_so = |word: &&str| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    let Some(word) = FAILURES.into_iter().find(|word| begins_so(word)) else { return false };
    let rest = &text[word.len()..];
    // Nor is `error.rs`, `error/` or `error_code`.
    let is_word = match rest.strip_prefix('.') {
        Some(after) => !after.starts_with(char::is_alphanumeric),
        None => !rest.starts_with(|letter: char| letter.is_alphanumeric() || "_/\\-".contains(letter)),
    };
    let value = rest.trim_start_matches(|letter: char| !letter.is_alphanumeric());
    let first: &str = value.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    // "Error: null pointer" goes on where "error: null" ends.
    let goes_on = value[first.len()..].trim_start_matches(' ').starts_with(char::is_alphabetic);
    let is_nothing = first == "0" || (!goes_on && ["none", "null", "false"].iter().any(|nothing| first.eq_ignore_ascii_case(nothing)));
    is_word && !is_nothing
}

fn object_says_error(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Object {
        error: Option<Value>,
        #[serde(alias = "isError")]
        is_error: Option<bool>,
    }
    // Most objects have no such member: those need not be read.
    if !text.contains("rror\"") {
        return false;
    }
    let Ok(Object { error, is_error }) = serde_json::from_str(text) else { return false };
    let says = error.is_some_and(|error| match error {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(true) => true,
    });
    says || is_error == Some(true)
}

/// Of an error this much is compared: what follows is often a trace of where it happened.
const ERROR_CHARS: usize = 400;

/// A text without what is volatile in it.
struct Lasting<'a> {
    rest: &'a str,
    out: String,
    /// The word that may be a name, and whether a `:` or `=` came after it.
    name: &'a str,
    named: bool,
}

impl<'a> Lasting<'a> {
    fn of(text: &'a str) -> String {
        let mut lasting = Self { rest: text.trim(), out: String::with_capacity(text.len()), name: "", named: false };
        while let Some(letter) = lasting.rest.chars().next() {
            lasting.take(letter);
        }
        lasting.out
    }

    fn take(&mut self, letter: char) {
        match letter {
            letter if letter.is_whitespace() => {
                self.rest = self.rest.trim_start();
                self.out.push(' ');
            }
            '"' | '\'' => self.quoted(letter),
            ':' | '=' => {
                self.named = !self.name.is_empty();
                self.push(1);
            }
            letter if is_mark(letter) => {
                (self.name, self.named) = ("", false);
                self.push(letter.len_utf8());
            }
            _ => self.word(),
        }
    }

    fn push(&mut self, bytes: usize) {
        let (taken, rest) = self.rest.split_at(bytes);
        self.out.push_str(taken);
        self.rest = rest;
    }

    /// Behind a name of something volatile a quoted text is volatile, whatever it says. Otherwise quotes are marks.
    fn quoted(&mut self, quote: char) {
        let is_value = self.named && is_volatile_name(self.name);
        match self.rest[1..].find(quote).filter(|_| is_value) {
            Some(end) => {
                self.out.push('#');
                self.rest = &self.rest[end + 2..];
                (self.name, self.named) = ("", false);
            }
            // The name in `"name": …` stays the name.
            None => self.push(1),
        }
    }

    fn word(&mut self) {
        let ends = |letter: char| letter.is_whitespace() || letter == '"' || letter == '\'' || letter == '=' || is_mark(letter);
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let mut word = &self.rest[..end];
        let starts_with_digit = word.starts_with(|first: char| first.is_ascii_digit());
        // `took:3` is a name and a value, `12:30:05` and `a.rs:12:5` are one.
        if !starts_with_digit
            && let Some((name, value)) = word.split_once(':')
            && is_volatile_name(name)
            && !value.is_empty()
        {
            word = name;
        }
        let word_of_text = word.trim_end_matches(['.', ':', '!', '?']);
        let volatile = (self.named && starts_with_digit && is_volatile_name(self.name)) || is_volatile(word_of_text) || self.is_count(word);
        if volatile {
            self.out.push('#');
            self.rest = &self.rest[word_of_text.len()..];
            (self.name, self.named) = ("", false);
        } else {
            (self.name, self.named) = (word_of_text, word.ends_with(':'));
            self.push(word.len());
        }
    }

    /// "2x" in "read 2x this session".
    fn is_count(&self, word: &str) -> bool {
        let is_times = word.strip_suffix('x').is_some_and(|count| !count.is_empty() && count.bytes().all(|digit| digit.is_ascii_digit()));
        let after = self.rest[word.len()..].trim_start();
        is_times && ["this session", "in this session", "so far"].iter().any(|ending| after.starts_with(ending))
    }
}

/// What separates words beside white space. Not the signs that numbers, times and paths are written with.
fn is_mark(letter: char) -> bool {
    matches!(letter, ',' | ';' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | '|')
}

/// Words of a name that say what stands behind it is a time, a duration or a count of tries.
const VOLATILE_WORDS: [&str; 14] = [
    "duration",
    "elapsed",
    "took",
    "latency",
    "timestamp",
    "ts",
    "uptime",
    "attempt",
    "attempts",
    "nonce",
    "seq",
    "millis",
    "runtime",
    "ms",
];
/// Of what the ids are new each time.
const NEW_EACH_TIME: [&str; 10] =
    ["message", "request", "trace", "span", "correlation", "invocation", "event", "response", "call", "session"];

/// `durationMs`, `updated_at`, `request-id`, `time`.
fn is_volatile_name(name: &str) -> bool {
    let words = words_of(name);
    match words.as_slice() {
        [.., of, id] if id == "id" => NEW_EACH_TIME.contains(&&**of),
        [_, .., at] if at == "at" => true,
        [time] if time == "time" => true,
        words => words.iter().any(|word| VOLATILE_WORDS.contains(&&**word)),
    }
}

/// `durationMs` is `duration` and `ms`.
pub(super) fn words_of(name: &str) -> Vec<Cow<'_, str>> {
    if name.len() > 40 || !name.is_ascii() {
        return Vec::new();
    }
    let mut words = Vec::new();
    for part in name.split(['_', '-', '.', ' ']).filter(|part| !part.is_empty()) {
        let bytes = part.as_bytes();
        let mut from = 0;
        for at in 1..bytes.len() {
            if bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase() {
                words.push(lower(&part[from..at]));
                from = at;
            }
        }
        words.push(lower(&part[from..]));
    }
    words
}

fn lower(word: &str) -> Cow<'_, str> {
    if word.bytes().any(|letter| letter.is_ascii_uppercase()) { Cow::Owned(word.to_ascii_lowercase()) } else { Cow::Borrowed(word) }
}

fn bare(word: &str) -> &str {
    word.trim_matches(|letter: char| !letter.is_alphanumeric())
}

/// "0.53s", "12:30:05", "2026-01-02T03:04:05Z", "0x7f3a".
fn is_volatile(word: &str) -> bool {
    if !word.starts_with(|first: char| first.is_ascii_digit()) {
        return false;
    }
    let is_duration = || {
        let unit = word.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        unit.len() < word.len() && matches!(unit, "s" | "ms" | "us" | "µs" | "ns" | "sec" | "secs" | "seconds")
    };
    word.starts_with("0x") || is_duration() || is_clock(word)
}

/// A time of day with its seconds, alone or behind a date. "12:5" is a line and a column, "9:00" an appointment.
fn is_clock(word: &str) -> bool {
    let time = match word.split_once(['T', '_']) {
        Some((date, time)) if date.len() == 10 && date.bytes().all(|letter| letter.is_ascii_digit() || letter == b'-') => time,
        Some(_) => return false,
        None => word,
    };
    let time = time.trim_end_matches('Z');
    let time = time.split(['+', '-']).next().unwrap_or(time);
    let mut parts = time.splitn(3, ':');
    let two = |part: Option<&str>| part.is_some_and(|part| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_digit()));
    let seconds = |part: Option<&str>| {
        part.is_some_and(|part| {
            part.len() >= 2
                && part.starts_with(|first: char| first.is_ascii_digit())
                && part.bytes().all(|letter| letter.is_ascii_digit() || letter == b'.' || letter == b',')
        })
    };
    two(parts.next()) && two(parts.next()) && seconds(parts.next())
}

/// "9f2c51d0-…".
fn is_long_hex(word: &str) -> bool {
    word.len() >= 8
        && word.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-')
        && word.contains(|letter: char| letter.is_ascii_digit())
        && word.contains(|letter: char| letter.is_ascii_alphabetic())
}

/// A quoted text or a path.
fn names_a_thing(word: &str) -> bool {
    word.contains('/') || word.contains('\\') || word.contains(['"', '\'', '`'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(one: &str, other: &str) -> bool {
        result_fingerprint(one) == result_fingerprint(other)
    }

    #[test]
    fn times_counts_and_ids_of_requests_are_no_news() {
        for (one, other) in [
            ("3 passed in 0.53s at 0x7f3a", "3  passed in 1.20s\nat 0x11ff"),
            (r#"{"ok": true, "durationMs": 12, "messageId": "a-1"}"#, r#"{"ok": true, "durationMs": 340, "messageId": "b-2"}"#),
            (r#"{"rows":[1,2],"updated_at":"Mon, 2 Jan 12:00"}"#, r#"{"rows":[1,2],"updated_at":"Tue, 3 Jan 9:30"}"#),
            ("done (took=3, attempt: 1)", "done (took=12, attempt: 4)"),
            ("'x-request-id': '9f2c51'\nbody", "'x-request-id': '77ab00'\nbody"),
            ("file is empty. [read 2x this session]", "file is empty. [read 3x this session]"),
            ("[12:30:05] started", "[12:31:17.250] started"),
            ("at 2026-01-02T03:04:05Z: ok", "at 2026-02-03T04:05:06.123+02:00: ok"),
        ] {
            assert!(same(one, other), "{one} / {other}: {:?} {:?}", Lasting::of(one), Lasting::of(other));
        }
    }

    #[test]
    fn a_text_says_whether_it_is_an_error() {
        for text in [
            "Error: no such file",
            "ERROR\nNo replacement was performed",
            "[error] x",
            "error executing tool",
            "\"Exception: x\"",
            "Traceback (most recent call last):",
            "fatal: not a git repository",
            "Failed to open a.txt",
            "Error: null pointer",
            r#"{"error": "no such order"}"#,
            r#"{"isError": true, "content": []}"#,
            "Error.",
            " {\"error\": {\"code\": 4}}",
        ] {
            assert!(says_error(text), "{text}");
        }
        for text in [
            "",
            "errors: 0",
            "Failed: 0, passed: 12",
            "error: none",
            "error_log.txt",
            "exceptional work",
            "12 passed",
            r#"{"error": null, "rows": 3}"#,
            r#"{"error": "", "rows": 3}"#,
            r#"{"error": [], "result": {"XXBTZUSD": 1}}"#,
            r#"{"error": 0, "rows": 3}"#,
            "error.rs\nlib.rs",
            "error/mod.rs",
            "# Error codes",
            "// Error types",
            "error-handling.md",
            r#"{"rows": ["error"]}"#,
            "{ error",
        ] {
            assert!(!says_error(text), "{text}");
        }
    }

    #[test]
    fn content_is_news() {
        for (one, other) in [
            ("error at 12:5", "error at 18:7"),
            ("a.rs:12:5: unused", "a.rs:18:7: unused"),
            ("free from 9:00", "free from 10:00"),
            ("3 passed in 1s", "4 passed in 1s"),
            ("9f2c51d0aa", "9f2c51d0ab"),
            (r#"{"order_id": "a1"}"#, r#"{"order_id": "b2"}"#),
            (r#"{"count": 3}"#, r#"{"count": 4}"#),
            ("order 1234567 delivered", "order 7654321 delivered"),
            ("zoom 2x", "zoom 3x"),
            (r#"{"time": "x", "left": 3}"#, r#"{"time": "x", "left": 4}"#),
            ("ratio 12:30:5", "ratio 12:31:5"),
            ("ümlaut 1", "ümlaut 2"),
        ] {
            assert!(!same(one, other), "{one} / {other}: {}", Lasting::of(one));
        }
    }
}
