//! Tables, words and colours for people; on a pipe, plain text in full.

use crate::failure::Failure;
use crate::table::{Cell, Color, Table, Weight};
use clap::builder::PossibleValue;
use jiff::tz::TimeZone;
use runguard_core::Span;
pub(crate) use runguard_core::shown::dotted as clean;
use runguard_core::text::grouped;
use runguard_engine::clock::system_now;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};

/// A terminal that does not say how wide it is.
const USUAL_COLUMNS: u16 = 80;
/// Narrower than this no sentence is worth breaking.
const FEWEST_COLUMNS: usize = 20;

const MANY_COLUMNS: usize = 8;

/// Columns of a terminal that has room for words beside names.
pub(crate) const ROOM_FOR_WORDS: u16 = 120;

/// When colours are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colors {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Also on a pipe and with `NO_COLOR`
    Always,
    /// Nowhere
    Never,
}

impl Colors {
    /// For everything that is written from now on.
    pub(crate) fn apply(self) {
        match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }

    /// What the command line says of it, where it may be wrong in other ways: its errors are coloured too.
    pub(crate) fn asked(arguments: impl Iterator<Item = String>) -> Self {
        let mut arguments = arguments.take_while(|argument| argument != "--");
        while let Some(argument) = arguments.next() {
            let value = match argument.strip_prefix("--color") {
                Some("") => arguments.next(),
                Some(rest) => rest.strip_prefix('=').map(str::to_owned),
                None => None,
            };
            if let Some(value) = value {
                return clap::ValueEnum::from_str(&value, false).unwrap_or_default();
            }
        }
        Self::default()
    }
}

/// Whether the standard error shows colours.
pub(crate) fn errors_are_coloured() -> bool {
    anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never
}

/// Writes a line as it is; a closed pipe ends the command quietly.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(())
}

/// Writes sentences: on a terminal no word is torn at its edge.
pub(crate) fn prose(text: &str) -> Result<(), Failure> {
    line(&terminal_columns().map_or_else(|| text.to_owned(), |columns| wrapped(text, columns.into())))
}

/// Sentences beside the output. Where they cannot be written there is nobody to tell.
pub(crate) fn note(text: &str) {
    let columns = terminal_size::terminal_size_of(std::io::stderr()).map(|(width, _)| usize::from(width.0));
    let text = columns.map_or_else(|| text.to_owned(), |columns| wrapped(text, columns));
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// The same with a word before it that says what kind of note it is.
pub(crate) fn remark(what: &str, text: &str) {
    note(&format!("{} {text}", owo_colors::OwoColorize::yellow(&format!("{what}:"))));
}

pub(crate) fn json(value: &Value) -> Result<(), Failure> {
    line(&serde_json::to_string_pretty(value).unwrap_or_default())
}

/// How wide the terminal is; `None` on a pipe.
pub(crate) fn terminal_columns() -> Option<u16> {
    let out = std::io::stdout();
    out.is_terminal().then(|| terminal_size::terminal_size_of(out).map_or(USUAL_COLUMNS, |(width, _)| width.0.max(1)))
}

pub(crate) fn table(headers: &[&str]) -> Table {
    let columns = terminal_columns();
    let weight = if columns.is_some() { Weight::Dim } else { Weight::Plain };
    // Many columns are narrow ones: numbers, which end where the next begin.
    let gap = if headers.len() > MANY_COLUMNS { 1 } else { 2 };
    let headers = headers.iter().map(|name| Cell::new(name).weight(weight)).collect();
    Table::new(headers, columns.map(|columns| (columns.into(), gap)))
}

/// Writes a table: on a terminal one line a row, cut where it is too narrow.
pub(crate) fn show(table: &Table) -> Result<(), Failure> {
    line(&table.to_string())
}

/// Breaks lines between words; what a line is indented by, its rest is, too, also behind a number (`1. `) and behind a name that stands
/// before a gap. A word longer than a line stays whole.
pub(crate) fn wrapped(text: &str, columns: usize) -> String {
    let columns = columns.max(FEWEST_COLUMNS);
    text.split('\n').map(|line| wrapped_line(line, columns)).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str, columns: usize) -> String {
    let width = |text: &str| anstream::adapter::strip_str(text).to_string().chars().count();
    if width(line) <= columns {
        return line.to_owned();
    }
    let plain = anstream::adapter::strip_str(line).to_string();
    let indent = width(&plain[..plain.len() - behind_the_name(&plain).len()]);
    // A name that takes most of the line is none to stand behind.
    let indent = if indent * 2 > columns { line.len() - line.trim_start().len() } else { indent };
    let mut out = String::new();
    let mut used = 0;
    // Blanks between words are part of a layout, and stay.
    for word in line.split_inclusive(' ') {
        let needed = width(word.trim_end());
        if used > indent && used + needed > columns {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            used = indent;
        }
        out.push_str(word);
        used += width(word);
    }
    out
}

/// What follows the blanks a line begins with, its number, and its name if there is a gap behind that.
fn behind_the_name(line: &str) -> &str {
    let rest = line.trim_start();
    let Some((word, text)) = rest.split_once(' ') else { return rest };
    if word.strip_suffix('.').is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) {
        return text.trim_start();
    }
    match rest.split_once("  ") {
        Some((name, text)) if !name.contains(". ") => text.trim_start(),
        Some(_) | None => rest,
    }
}

/// At most so many characters, the last of them `…` where some are missing.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    match most {
        0 => String::new(),
        most => text.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// What users, models and tools said must not steer the terminal; line ends and tabs stay.
#[cfg(feature = "agent")]
pub(crate) fn clean_lines(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    text.chars().map(|c| if runguard_core::shown::steers(c) && c != '\n' && c != '\t' { '·' } else { c }).collect()
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => clean(text),
        other => clean(&other.to_string()),
    }
}

/// A time as the reader's clock says it; on a pipe as the service does, for programs.
pub(crate) fn time(value: &Value) -> String {
    let text = text(value);
    match text.parse::<jiff::Timestamp>() {
        Ok(at) if terminal_columns().is_some() => short_time(at, system_now().as_millis(), &TimeZone::system()),
        Ok(_) | Err(_) => text,
    }
}

/// Of today the time, of this year the day, of others the date.
fn short_time(at: jiff::Timestamp, now_millis: i64, zone: &TimeZone) -> String {
    let at = at.to_zoned(zone.clone());
    let today = jiff::Timestamp::from_millisecond(now_millis).map(|now| now.to_zoned(zone.clone()).date()).unwrap_or_default();
    let form = if at.date() == today {
        "%H:%M:%S"
    } else if at.year() == today.year() {
        "%b %d %H:%M"
    } else {
        "%Y-%m-%d"
    };
    at.strftime(form).to_string()
}

/// Coloured by what it means.
pub(crate) fn outcome_cell(outcome: &str) -> Cell {
    let color = match outcome {
        "allowed" | "closed" | "yes" => Color::Green,
        "blocked" | "open" | "no" => Color::Red,
        "would_block" | "half_open" => Color::Yellow,
        _ => return Cell::new(clean(outcome)),
    };
    Cell::new(outcome.replace('_', " ")).color(color)
}

/// An answer of the service, as this version knows it.
pub(crate) fn read<T: serde::de::DeserializeOwned>(answer: Value) -> Result<T, Failure> {
    serde_json::from_value(answer)
        .map_err(|error| Failure::Failed(format!("the service's answer is of another version than this program: {error}")))
}

/// Says so where decisions are not counted yet.
pub(crate) fn behind(rows: u64) {
    if rows > 0 {
        let are = if rows == 1 { "is" } else { "are" };
        note(&format!("{} {are} not looked at yet; ask again in a moment.", count(rows, "decision")));
    }
}

/// Says so where a list goes on after this page.
pub(crate) fn more(cursor: Option<&str>, found: u64) {
    if let Some(cursor) = cursor {
        note(&format!("There are more, {} in all. Go on with --cursor {}", grouped(found), clean(cursor)));
    }
}

/// A count in as many characters as a table has: 950, 12.3k, 4.56M.
pub(crate) fn short_count(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..1_000_000 => format!("{:.1}k", count as f64 / 1e3),
        1_000_000.. => format!("{:.2}M", count as f64 / 1e6),
    }
}

pub(crate) fn cell(value: &Value) -> Cell {
    Cell::new(text(value))
}

/// Seconds, as people say them.
pub(crate) fn span_cell(value: &Value) -> Cell {
    Cell::new(serde_json::from_value::<Span>(value.clone()).map_or_else(|_| text(value), |span| span.to_string()))
}

/// Seconds that are still to pass, in the two largest units: to be looked at, where a setting is to be typed again.
pub(crate) fn wait_cell(value: &Value) -> Cell {
    Cell::new(value.as_f64().map_or_else(|| text(value), |seconds| wait(seconds.ceil() as u64)))
}

fn wait(seconds: u64) -> String {
    let units = [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let told = units[first..].iter().take(2).filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}"));
    let told: Vec<String> = told.collect();
    if told.is_empty() { "0s".to_owned() } else { told.join(" ") }
}

pub(crate) fn time_cell(value: &Value) -> Cell {
    Cell::new(time(value))
}

/// Values an argument may have, each with what it is for.
pub(crate) fn values(of: impl IntoIterator<Item = (&'static str, &'static str)>) -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(of.into_iter().map(|(code, about)| PossibleValue::new(code).help(about)))
}

/// Reads a value as it is read, and tells a shell and the help what there is.
#[derive(Debug, Clone)]
pub(crate) struct Offered<T> {
    values: Vec<(&'static str, &'static str)>,
    read: fn(&str) -> Result<T, String>,
}

impl<T: Clone + Send + Sync + 'static> clap::builder::TypedValueParser for Offered<T> {
    type Value = T;

    fn parse_ref(&self, command: &clap::Command, argument: Option<&clap::Arg>, value: &OsStr) -> Result<T, clap::Error> {
        self.read.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.values.iter().map(|(code, about)| PossibleValue::new(*code).help((!about.is_empty()).then_some(*about)))))
    }
}

/// Values an argument may have, each with what it is for, and perhaps others that are read too.
pub(crate) fn offered<T>(of: impl IntoIterator<Item = (&'static str, &'static str)>, read: fn(&str) -> Result<T, String>) -> Offered<T> {
    Offered { values: of.into_iter().collect(), read }
}

/// Values that the service knows: a later one may know more of them than this program, and says what is wrong.
pub(crate) fn known_to_service(of: impl IntoIterator<Item = (&'static str, &'static str)>) -> Offered<String> {
    offered(of, |text| Ok(text.to_owned()))
}

/// RFC 3339 to the second.
pub(crate) fn seconds_text(millis: i64) -> String {
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| millis.to_string(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// A number with what it counts.
pub(crate) fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// Two decimals, or as many as it takes to be within a twentieth: what is something does not look like nothing, which is a dash.
pub(crate) fn amount(amount: f64) -> String {
    if amount <= 0.0 {
        return "–".to_owned();
    }
    let is_near = |shown: &String| shown.parse::<f64>().is_ok_and(|shown| (shown - amount).abs() <= amount / 20.0);
    (2..=9).map(|decimals| format!("{amount:.decimals$}")).find(is_near).unwrap_or_else(|| format!("{amount:e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_that_is_something_does_not_look_like_nothing() {
        let shown = [0.0, 12.0, 0.5, 1.234, 0.015, 0.004, 0.0051, 0.000_000_2, 1e-12].map(amount);
        assert_eq!(shown, ["–", "12.00", "0.50", "1.23", "0.015", "0.004", "0.005", "0.0000002", "1e-12"]);
    }

    #[test]
    fn a_wait_is_told_in_two_units() {
        let told = [0, 7, 60, 3564, 3600, 86_399, 90_061, 30 * 86_400].map(wait);
        assert_eq!(told, ["0s", "7s", "1m", "59m 24s", "1h", "23h 59m", "1d 1h", "30d"]);
    }

    #[test]
    fn words_stay_whole() {
        let text = "No keys. A service started on this folder is open on loopback.";
        assert_eq!(wrapped(text, 30), "No keys. A service started on\nthis folder is open on\nloopback.");
        assert_eq!(wrapped("  a longwordthatdoesnotfitanywhere b", 20), "  a\n  longwordthatdoesnotfitanywhere\n  b");
        assert_eq!(wrapped("a  b   c", 80), "a  b   c");
        assert_eq!(wrapped("   sessions  one-session, another-session", 26), "   sessions  one-session,\n             another-session");
        assert_eq!(wrapped("12. A title of more words", 20), "12. A title of more\n    words");
        assert_eq!(wrapped("A sentence. And  one of two words", 20), "A sentence. And  one\nof two words");
        assert_eq!(wrapped("\u{1b}[31mred words of five\u{1b}[0m xx", 20), "\u{1b}[31mred words of five\u{1b}[0m xx");
    }

    #[test]
    fn times_are_as_long_as_they_need_to_be() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let now = at("2026-11-16T12:00:00Z").as_millisecond();
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        assert_eq!(short_time(at("2026-11-16T11:59:58.123Z"), now, &zone), "12:59:58");
        assert_eq!(short_time(at("2026-11-15T23:30:00Z"), now, &zone), "00:30:00", "a day begins where the reader is");
        assert_eq!(short_time(at("2026-11-15T21:30:00Z"), now, &zone), "Nov 15 22:30");
        assert_eq!(short_time(at("2025-11-15T21:30:00Z"), now, &zone), "2025-11-15");
    }

    #[test]
    fn colours_are_found_where_the_rest_is_wrong() {
        let asked = |line: &str| Colors::asked(line.split(' ').map(str::to_owned));
        assert_eq!(asked("runguard serv --color=always"), Colors::Always);
        assert_eq!(asked("runguard --color never decisions"), Colors::Never);
        assert_eq!(asked("runguard run -- ls --color=always"), Colors::Auto);
        assert_eq!(asked("runguard --colors=always"), Colors::Auto);
        assert_eq!(asked("runguard --color"), Colors::Auto);
    }
}
