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
    xxh3_64(Lasting::of(&without_asides(text)).as_bytes())
}

/// What a harness writes for the model between these, into whatever it sends, is nobody's word and no part of what a call gave: Claude Code
/// tells so in every result how many tokens are left.
const ASIDE: (&str, &str) = ("<system-reminder>", "</system-reminder>");

fn without_asides(text: &str) -> Cow<'_, str> {
    let Some((before, mut rest)) = text.split_once(ASIDE.0) else { return Cow::Borrowed(text) };
    let mut kept = before.to_owned();
    // One that does not end is all that follows.
    while let Some((_, after)) = rest.split_once(ASIDE.1) {
        let (between, next) = after.split_once(ASIDE.0).unwrap_or((after, ""));
        kept.push_str(between);
        rest = next;
    }
    Cow::Owned(kept)
}

/// One name for errors that say the same about other things: numbers, ids, quoted texts and paths do not matter either.
pub fn error_fingerprint(text: &str) -> u64 {
    let start: String = without_asides(text).chars().take(ERROR_CHARS).collect();
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

/// What a call gave, as it is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Of what it said, whether it failed or not; `None` when nothing is known of it.
    pub result: Option<u64>,
    /// Of which kind its failure is, when it failed.
    pub error: Option<u64>,
}

impl Outcome {
    /// Of the texts as they were told. What failed has said something too: "5 failed" and "2 failed" are one kind of failure and two
    /// results, and whoever came from the one to the other got somewhere.
    pub fn of(result: Option<&str>, error: Option<&str>) -> Self {
        Self { result: result.or(error).map(result_fingerprint), error: error.map(error_fingerprint) }
    }

    /// Of one text that tells both.
    pub fn of_text(text: &str, failed: bool) -> Self {
        Self::of(Some(text), failed.then_some(text))
    }
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
    error.is_some_and(|error| is_an_error(&error)) || is_error == Some(true)
}

/// Whether what stands in a member called `error` is one: many servers have the member in every answer, with nothing in it.
///
/// ```
/// use runguard_core::detect::stall::is_an_error;
/// use serde_json::json;
///
/// assert!([json!(null), json!(false), json!(0), json!(""), json!([]), json!({})].iter().all(|nothing| !is_an_error(nothing)));
/// assert!([json!(true), json!(1), json!("no"), json!({"code": 500})].iter().all(is_an_error));
/// ```
pub fn is_an_error(member: &Value) -> bool {
    match member {
        Value::Null => false,
        Value::Bool(is_error) => *is_error,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

/// Words that frameworks begin with where they write what tools gave as plain text.
const FRAMEWORKS: [&str; 7] = ["observation", "tool", "result", "output", "calling", "function", "execution"];
/// How messages begin that harnesses write by themselves.
const BY_THEMSELVES: [&str; 2] = ["<task-notification>", "Stop hook feedback"];
/// What harnesses tell a model that stands still because it waits for somebody.
const NOBODY_IS_THERE: &str = "NEVER ASK FOR HUMAN";

/// Whether a message in the user's name is a framework's answer to what the model said: what people say begins everything anew, and may be
/// said again.
pub fn is_framework(text: &str) -> bool {
    let text = without_asides(text);
    let text = text.trim();
    if text.is_empty() || BY_THEMSELVES.iter().any(|known| text.starts_with(known)) {
        return true;
    }
    let word: String = text
        .trim_start_matches(|character: char| !character.is_alphanumeric())
        .chars()
        .take_while(|character| character.is_alphabetic())
        .take(16)
        .collect();
    let word = word.to_lowercase();
    FRAMEWORKS.iter().any(|known| word.starts_with(known)) || text.contains(NOBODY_IS_THERE) || says_error(text)
}

/// Tells whose words stand beside what tools gave: those of a person who speaks while calls are made, or a framework's reminder, which says the
/// same with every result, whatever numbers are in it.
#[derive(Debug, Clone, Default)]
pub struct Beside(Vec<u64>);

impl Beside {
    /// Whether a person says it; by what it is known again.
    ///
    /// ```
    /// use runguard_core::detect::stall::Beside;
    ///
    /// let mut beside = Beside::default();
    /// assert!(beside.person("No, use the other file.").is_some());
    /// assert!(beside.person("You have 17 steps left.").is_some(), "nobody can know yet");
    /// assert!(beside.person("You have 16 steps left.").is_none());
    /// assert!(beside.person("<system-reminder>be careful</system-reminder>").is_none());
    /// ```
    pub fn person(&mut self, text: &str) -> Option<u64> {
        let words = error_fingerprint(text);
        if is_framework(text) || self.0.contains(&words) {
            return None;
        }
        self.0.push(words);
        Some(words)
    }
}

/// Of an error this much is compared: what follows is often a trace of where it happened.
const ERROR_CHARS: usize = 400;

/// A text without what is volatile in it.
///
/// It is gone over once, and what stays is copied in as long pieces as there are: results are most of what is read of a run.
struct Lasting<'a> {
    text: &'a str,
    at: usize,
    /// Up to here it is in `out`, or left out.
    copied: usize,
    out: String,
    /// The word that may be a name, and whether a `:` or `=` came after it.
    name: &'a str,
    named: bool,
}

impl<'a> Lasting<'a> {
    fn of(text: &'a str) -> String {
        let text = text.trim();
        let mut lasting = Self { text, at: 0, copied: 0, out: String::with_capacity(text.len()), name: "", named: false };
        while let Some(byte) = text.as_bytes().get(lasting.at) {
            lasting.take(*byte);
        }
        lasting.copy();
        lasting.out
    }

    fn take(&mut self, byte: u8) {
        let sign = SIGNS[usize::from(byte)];
        if matches!(sign, Sign::Letter) {
            return self.word();
        }
        match sign {
            Sign::Space => self.space(),
            Sign::Quote => self.quoted(byte),
            Sign::Equals | Sign::Colon => {
                self.named = !self.name.is_empty();
                self.at += 1;
            }
            Sign::Mark => {
                (self.name, self.named) = ("", false);
                self.at += 1;
            }
            Sign::Lead if self.is_space(self.at) => self.space(),
            Sign::Lead | Sign::Letter => self.word(),
        }
    }

    /// What stands before here stays.
    fn copy(&mut self) {
        self.out.push_str(&self.text[self.copied..self.at]);
        self.copied = self.at;
    }

    /// In the place of what stands between here and there.
    fn replace(&mut self, end: usize, with: char) {
        self.copy();
        self.out.push(with);
        (self.at, self.copied) = (end, end);
    }

    fn is_space(&self, at: usize) -> bool {
        self.text[at..].starts_with(char::is_whitespace)
    }

    fn space(&mut self) {
        let bytes = self.text.as_bytes();
        let next = bytes.get(self.at + 1).map(|next| SIGNS[usize::from(*next)]);
        if bytes[self.at] == b' ' && !matches!(next, Some(Sign::Space | Sign::Lead)) {
            self.at += 1;
            return;
        }
        let mut end = self.at;
        while bytes.get(end).is_some_and(|byte| matches!(SIGNS[usize::from(*byte)], Sign::Space)) {
            end += 1;
        }
        let rest = self.text[end..].trim_start();
        self.replace(self.text.len() - rest.len(), ' ');
    }

    /// Behind a name of something volatile a quoted text is volatile, whatever it says. Otherwise quotes are marks.
    fn quoted(&mut self, quote: u8) {
        let is_value = self.named && is_volatile_name(self.name);
        let end = || self.text[self.at + 1..].find(char::from(quote));
        match is_value.then(end).flatten() {
            Some(end) => {
                self.replace(self.at + end + 2, '#');
                (self.name, self.named) = ("", false);
            }
            // The name in `"name": …` stays the name.
            None => self.at += 1,
        }
    }

    /// Where the word ends that begins here. `took:3` is a name and a value, `12:30:05` and `a.rs:12:5` are one.
    fn word_end(&self) -> usize {
        let bytes = self.text.as_bytes();
        let goes_on = |at: usize| match bytes.get(at).map(|byte| SIGNS[usize::from(*byte)]) {
            Some(Sign::Letter | Sign::Colon) => true,
            Some(Sign::Lead) => !self.is_space(at),
            Some(Sign::Space | Sign::Quote | Sign::Equals | Sign::Mark) | None => false,
        };
        let (mut end, mut may_be_name) = (self.at, !bytes[self.at].is_ascii_digit());
        loop {
            // Most are letters: a loop of their own.
            end += bytes[end..].iter().take_while(|byte| matches!(SIGNS[usize::from(**byte)], Sign::Letter)).count();
            let Some(byte) = bytes.get(end) else { break };
            match SIGNS[usize::from(*byte)] {
                Sign::Letter => {}
                // Told here: from the end of the word one would come back to it, once for every name in it.
                Sign::Colon if may_be_name && goes_on(end + 1) && is_volatile_name(&self.text[self.at..end]) => break,
                Sign::Colon => may_be_name = false,
                Sign::Lead if !self.is_space(end) => {}
                Sign::Space | Sign::Quote | Sign::Equals | Sign::Mark | Sign::Lead => break,
            }
            end += 1;
        }
        end
    }

    fn word(&mut self) {
        let bytes = self.text.as_bytes();
        let starts_with_digit = bytes[self.at].is_ascii_digit();
        let end = self.word_end();
        let mut end_of_text = end;
        while end_of_text > self.at && matches!(bytes[end_of_text - 1], b'.' | b':' | b'!' | b'?') {
            end_of_text -= 1;
        }
        let word_of_text = &self.text[self.at..end_of_text];
        let is_named = || self.named && is_volatile_name(self.name);
        let is_measured = || end == end_of_text && is_measured(word_of_text, &self.text[end..]);
        if starts_with_digit && (is_named() || is_volatile(word_of_text) || is_measured() || self.is_count(&self.text[self.at..end])) {
            self.replace(end_of_text, '#');
            (self.name, self.named) = ("", false);
        } else {
            (self.name, self.named) = (word_of_text, bytes[end - 1] == b':');
            self.at = end;
        }
    }

    /// "2x" in "read 2x this session".
    fn is_count(&self, word: &str) -> bool {
        let is_times = word.strip_suffix('x').is_some_and(|count| !count.is_empty() && count.bytes().all(|digit| digit.is_ascii_digit()));
        let after = || self.text[self.at + word.len()..].trim_start();
        is_times && ["this session", "in this session", "so far"].iter().any(|ending| after().starts_with(ending))
    }
}

/// What a byte is to [`Lasting`].
#[derive(Clone, Copy)]
enum Sign {
    Space,
    Quote,
    Equals,
    Colon,
    Mark,
    /// The first byte of several, which may be white space.
    Lead,
    Letter,
}

static SIGNS: [Sign; 256] = {
    let mut signs = [Sign::Letter; 256];
    let mut byte = 0;
    while byte < 256 {
        signs[byte] = match byte as u8 {
            b'\t'..=b'\r' | b' ' => Sign::Space,
            b'"' | b'\'' => Sign::Quote,
            b'=' => Sign::Equals,
            b':' => Sign::Colon,
            // What separates words beside white space. Not the signs that numbers, times and paths are written with.
            b',' | b';' | b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b'|' => Sign::Mark,
            // Of U+0085 and U+00A0, U+1680, U+2000 to U+205F, U+3000.
            0xc2 | 0xe1 | 0xe2 | 0xe3 => Sign::Lead,
            _ => Sign::Letter,
        };
        byte += 1;
    }
    signs
};

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
    let is = |word: &str, of: &str| word.eq_ignore_ascii_case(of);
    let (mut before, mut last, mut count, mut is_any) = ("", "", 0, false);
    for word in parts_of(name) {
        (before, last) = (last, word);
        count += 1;
        is_any = is_any || VOLATILE_WORDS.iter().any(|volatile| is(word, volatile));
    }
    match count {
        0 => false,
        1 => is_any || is(last, "time"),
        _ if is(last, "id") => NEW_EACH_TIME.iter().any(|thing| is(before, thing)),
        _ => is_any || is(last, "at"),
    }
}

/// `durationMs` is `duration` and `ms`.
pub(super) fn words_of(name: &str) -> Vec<Cow<'_, str>> {
    parts_of(name).map(lower).collect()
}

/// [`words_of`], as they are written there.
fn parts_of(name: &str) -> impl Iterator<Item = &str> {
    let name = if name.len() > 40 || !name.is_ascii() { "" } else { name };
    let bytes = name.as_bytes();
    let is_between = |at: usize| matches!(bytes[at], b'_' | b'-' | b'.' | b' ');
    let begins = move |at: usize| is_between(at) || (bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase());
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = (at..bytes.len()).find(|at| !is_between(*at))?;
        at = (start + 1..bytes.len()).find(|at| begins(*at)).unwrap_or(bytes.len());
        Some(&name[start..at])
    })
}

fn lower(word: &str) -> Cow<'_, str> {
    if word.bytes().any(|letter| letter.is_ascii_uppercase()) { Cow::Owned(word.to_ascii_lowercase()) } else { Cow::Borrowed(word) }
}

fn bare(word: &str) -> &str {
    word.trim_matches(|letter: char| !letter.is_alphanumeric())
}

/// "0.53s", "1m3.2s", "12:30:05", "2026-01-02T03:04:05Z", "0x7f3a".
fn is_volatile(word: &str) -> bool {
    if !word.starts_with(|first: char| first.is_ascii_digit()) {
        return false;
    }
    word.starts_with("0x") || is_duration(word) || is_clock(word)
}

/// What follows a number, behind its digits.
fn behind_number(word: &str) -> &str {
    word.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.')
}

/// One number with a unit of seconds or less, or several with units of time. "5m" alone may be of anything.
fn is_duration(word: &str) -> bool {
    let unit = behind_number(word);
    if unit.len() < word.len() && matches!(unit, "s" | "ms" | "us" | "µs" | "ns" | "sec" | "secs" | "seconds") {
        return true;
    }
    let (mut rest, mut parts) = (word, 0);
    while !rest.is_empty() {
        let unit = behind_number(rest);
        let letters = unit.find(|letter: char| letter.is_ascii_digit()).unwrap_or(unit.len());
        if unit.len() == rest.len() || !matches!(&unit[..letters], "d" | "h" | "m" | "min" | "s" | "ms") {
            return false;
        }
        (rest, parts) = (&unit[letters..], parts + 1);
    }
    parts > 1
}

/// "0.00 sec", "3 seconds", "12 ms": the unit is a word of its own. An "s" stands for seconds behind parts of them.
fn is_measured(word: &str, after: &str) -> bool {
    let Some(after) = after.strip_prefix(' ').filter(|_| behind_number(word).is_empty()) else { return false };
    let unit = after.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    match unit {
        "ms" | "us" | "µs" | "ns" | "sec" | "secs" | "second" | "seconds" | "msec" | "millisecond" | "milliseconds" | "microseconds" => {
            true
        }
        "s" => word.contains('.'),
        _ => false,
    }
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
    use proptest::prelude::*;

    #[test]
    fn what_a_harness_says_aside_is_no_part_of_a_result() {
        let told = |left: u32| format!("same\n<system-reminder>\n<total_tokens>{left} tokens left</total_tokens>\n</system-reminder>");
        assert_eq!(result_fingerprint(&told(14_997_609)), result_fingerprint(&told(14_980_001)));
        assert_eq!(result_fingerprint(&told(1)), result_fingerprint("same"));
        assert_eq!(error_fingerprint(&told(1)), error_fingerprint("same"));
        let twice = "<system-reminder>a</system-reminder>one <system-reminder>b</system-reminder>two <system-reminder>never ends";
        assert_eq!(without_asides(twice), "one two ");
        assert_ne!(result_fingerprint(&told(1)), result_fingerprint("other"));
        assert!(is_framework("<system-reminder>be careful</system-reminder>") && is_framework("Stop hook feedback:\n- go on"));
        assert!(!is_framework("<system-reminder>be careful</system-reminder> Please use printf."));
    }

    /// [`Lasting`], as it was first written: a letter at a time.
    struct ByLetters<'a> {
        rest: &'a str,
        out: String,
        /// The word that may be a name, and whether a `:` or `=` came after it.
        name: &'a str,
        named: bool,
    }

    impl<'a> ByLetters<'a> {
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
            let is_measured = || starts_with_digit && word.len() == word_of_text.len() && is_measured(word, &self.rest[word.len()..]);
            let volatile = (self.named && starts_with_digit && is_volatile_name(self.name))
                || is_volatile(word_of_text)
                || is_measured()
                || self.is_count(word);
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
            let is_times =
                word.strip_suffix('x').is_some_and(|count| !count.is_empty() && count.bytes().all(|digit| digit.is_ascii_digit()));
            let after = self.rest[word.len()..].trim_start();
            is_times && ["this session", "in this session", "so far"].iter().any(|ending| after.starts_with(ending))
        }
    }

    fn is_mark(letter: char) -> bool {
        matches!(letter, ',' | ';' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | '|')
    }

    proptest! {
        #[test]
        fn what_lasts_is_the_same_as_letter_by_letter(words in proptest::collection::vec(prop_oneof![
            proptest::sample::select(vec![
                " ", " ", "  ", "\n", "\t ", "\u{a0}", "\u{2003}", "\u{3000}x", "\u{85}", "\"", "'", ":", "=", ",", "(", "]", ".", "!", "?", "…", "é", "ab",
                "durationMs", "took", "request-id", "updated_at", "id", "time", "traceId", "SpanID", "at", "12", "0.53s", "0x7f", "12:30:05", "2x",
                "this session", " so far", "2026-01-02T03:04:05Z", "a.rs:12:5", "ts:5", "elapsed:", "ms", "中", "µs", "3µs", "a_b-c.d e", "x", "0.00", " sec", " seconds", " ms", " s", "1m3.2s", "7", "5m",
            ]).prop_map(str::to_owned),
            any::<String>(),
        ], 0..24)) {
            let text = words.concat();
            prop_assert_eq!(Lasting::of(&text), ByLetters::of(&text));
        }

        #[test]
        fn names_are_volatile_by_their_words(words in proptest::collection::vec(proptest::sample::select(vec![
            "duration", "Ms", "ID", "id", "Id", "request", "Trace", "at", "At", "time", "Time", "_", "-", ".", " ", "é", "X", "x", "seq", "order",
        ]), 0..7)) {
            let name = words.concat();
            let words = words_of(&name);
            let expected = match words.as_slice() {
                [.., of, id] if id == "id" => NEW_EACH_TIME.contains(&&**of),
                [_, .., at] if at == "at" => true,
                [time] if time == "time" => true,
                words => words.iter().any(|word| VOLATILE_WORDS.contains(&&**word)),
            };
            prop_assert_eq!(is_volatile_name(&name), expected, "{}", name);
        }
    }

    fn same(one: &str, other: &str) -> bool {
        result_fingerprint(one) == result_fingerprint(other)
    }

    /// It would take an hour if the rest were looked at once for every name.
    #[test]
    fn a_word_of_many_names_is_gone_over_once() {
        for name in ["ts:", "ms:", "took:a", "seq::"] {
            let text = name.repeat(400_000);
            assert_eq!(Lasting::of(&text), text);
        }
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
            ("2 rows in set (0.00 sec)", "2 rows in set (0.13 sec)"),
            ("done, took 3 seconds", "done, took 14 seconds"),
            ("built in 12 ms.", "built in 340 ms."),
            ("real 1m3.2s", "real 2m0.7s"),
            ("finished in 0.31 s", "finished in 1.02 s"),
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
            ("3 secrets", "4 secrets"),
            ("page 3 s", "page 4 s"),
            ("12 rows", "13 rows"),
            ("5m away", "6m away"),
            ("rows: 3. Seconds later", "rows: 4. Seconds later"),
        ] {
            assert!(!same(one, other), "{one} / {other}: {}", Lasting::of(one));
        }
    }
}
