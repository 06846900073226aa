//! Phone, card and account numbers: digits of any script, with whatever people put between them.
//!
//! A number is taken with its separators as far as it goes, and removed when it has seven digits or six in a row, unless its
//! form says that it is something else: a date, a sum of money, a version, a machine's address, a list of small numbers, a book.
//! Where a form could be both, it goes: a lost figure is a pity, a kept phone number is somebody's.

use super::forms::{account_bytes, is_compact_date, known_bytes};
use super::{CARD, NUMBER, PHONE, Replacement, is_invisible};
use std::ops::Range;

/// Digits in a row that are taken for an account, order or other number of a person.
pub(super) const LONG_RUN: usize = 6;
/// Fewer digits than this are nobody's phone.
const SHORTEST_PHONE: usize = 7;
/// Capitals on either side of a number that belong to it.
const MOST_CAPITALS: usize = 16;
/// Characters between two digits of one number: " - ", ") - ".
const MOST_SEPARATORS: usize = 3;

pub(super) fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || (!c.is_ascii() && c.is_numeric())
}

pub(super) fn find(text: &str) -> Vec<Replacement> {
    let mut found: Vec<Replacement> = Vec::new();
    let mut chars = text.char_indices().peekable();
    let mut before = None;
    while let Some((start, c)) = chars.next() {
        let is_first = !before.replace(c).is_some_and(char::is_alphanumeric);
        let rest = &text[start..];
        if let Some(bytes) = (is_first && c.is_ascii_alphabetic()).then(|| account_bytes(rest)).flatten() {
            found.push((start..start + bytes, NUMBER));
            skip_to(&mut chars, start + bytes, &mut before);
            continue;
        }
        let opens = is_digit(c) || (is_opening(c) && chars.peek().is_some_and(|&(_, next)| is_digit(next) || next == '+'));
        if !opens {
            continue;
        }
        let end = if let Some(bytes) = known_bytes(&text[..start], rest) {
            start + bytes
        } else {
            let number = Number::read(rest, &text[..start]);
            if let Some(mark) = number.mark() {
                let is_bracketed = c == '(' && !rest[..number.bytes].contains(')');
                let floor = found.last().map_or(0, |(part, _)| part.end);
                found.push((with_capitals(text, floor, start + usize::from(is_bracketed)..start + number.bytes), mark));
            }
            start + number.bytes.max(c.len_utf8())
        };
        let end = found.last().map_or(end, |(part, _)| part.end.max(end));
        skip_to(&mut chars, end, &mut before);
    }
    found
}

fn skip_to(chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>, end: usize, before: &mut Option<char>) {
    while let Some((_, c)) = chars.next_if(|&(position, _)| position < end) {
        *before = Some(c);
    }
}

/// Capitals and digits that touch a number are the rest of it: `AB123456C`.
fn with_capitals(text: &str, floor: usize, part: Range<usize>) -> Range<usize> {
    let is_part = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let before = bytes[floor..part.start].iter().rev().take(MOST_CAPITALS).take_while(|byte| is_part(byte)).count();
    let behind = bytes[part.end..].iter().take(MOST_CAPITALS).take_while(|byte| is_part(byte)).count();
    part.start - before..part.end + behind
}

fn is_opening(c: char) -> bool {
    matches!(c, '+' | '(' | '\u{ff08}' | '\u{ff0b}')
}

/// What stands between two groups of digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    Dot,
    Comma,
    Dash,
    Slash,
    /// An apostrophe or underscore.
    Tick,
    Space,
    CommaSpace,
    /// A dash with space around it.
    SpacedDash,
    /// Brackets, bars, and several of them together.
    Other,
}

impl Gap {
    fn of(separators: &[char]) -> Self {
        let spaces = separators.iter().filter(|c| c.is_whitespace()).count();
        let mut marks = separators.iter().filter(|c| !c.is_whitespace());
        match (marks.next(), marks.next()) {
            (None, _) => Self::Space,
            (Some(_), Some(_)) => Self::Other,
            (Some(&mark), None) => match mark {
                '.' | '\u{ff0e}' | '\u{b7}' if spaces == 0 => Self::Dot,
                ',' | '\u{60c}' | '\u{ff0c}' | ';' => {
                    if spaces == 0 {
                        Self::Comma
                    } else {
                        Self::CommaSpace
                    }
                }
                '/' | '\u{2044}' | '\u{2215}' if spaces == 0 => Self::Slash,
                '\'' | '\u{2019}' | '_' if spaces == 0 => Self::Tick,
                _ if is_dash(mark) => {
                    if spaces == 0 {
                        Self::Dash
                    } else {
                        Self::SpacedDash
                    }
                }
                _ => Self::Other,
            },
        }
    }
}

pub(super) fn is_dash(c: char) -> bool {
    matches!(c, '-' | '\u{2010}'..='\u{2015}' | '\u{2043}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}')
}

fn is_separator(c: char) -> bool {
    let is_mark = matches!(
        c,
        '.' | ','
            | ';'
            | '/'
            | '_'
            | '\''
            | '|'
            | '('
            | ')'
            | '['
            | ']'
            | '~'
            | '\u{b7}'
            | '\u{2022}'
            | '\u{2019}'
            | '\u{2024}'
            | '\u{2027}'
            | '\u{2044}'
            | '\u{2215}'
            | '\u{60c}'
            | '\u{30fb}'
            | '\u{ff08}'
            | '\u{ff09}'
            | '\u{ff0c}'
            | '\u{ff0e}'
            | '\u{ff0f}'
    );
    // A list with one number a line is a list.
    is_mark || is_dash(c) || (c.is_whitespace() && c != '\n' && c != '\r')
}

/// `912) 345`.
fn has_more_behind_bracket(text: &str) -> bool {
    let digits = text.bytes().take(6).take_while(u8::is_ascii_digit).count();
    let behind = text[digits..].strip_prefix(')').map(|behind| behind.trim_start_matches([' ', '-', '.']));
    !text.starts_with(|c: char| c.is_ascii_digit()) || behind.is_some_and(|behind| behind.starts_with(is_digit))
}

/// Groups of digits with what is between them.
struct Number<'a> {
    text: &'a str,
    before: &'a str,
    bytes: usize,
    /// Nothing but a phone is written with a plus.
    has_plus: bool,
    groups: Vec<Group>,
    /// One less than groups.
    gaps: Vec<Gap>,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    width: usize,
    /// For groups of up to nine digits of our own script.
    value: Option<u32>,
    leads_with_zero: bool,
}

impl<'a> Number<'a> {
    fn read(text: &'a str, before: &'a str) -> Self {
        let mut number = Self { text, before, bytes: 0, has_plus: false, groups: Vec::new(), gaps: Vec::new() };
        let mut separators: Vec<char> = Vec::new();
        let mut is_in_group = false;
        for (position, c) in text.char_indices() {
            if is_digit(c) {
                if !is_in_group {
                    if !number.groups.is_empty() {
                        number.gaps.push(Gap::of(&separators));
                    }
                    number.groups.push(Group { width: 0, value: Some(0), leads_with_zero: c == '0' });
                    separators.clear();
                    is_in_group = true;
                }
                if let Some(group) = number.groups.last_mut() {
                    group.width += 1;
                    group.value = group.value.zip(c.to_digit(10)).and_then(|(value, digit)| value.checked_mul(10)?.checked_add(digit));
                }
                number.bytes = position + c.len_utf8();
            } else if is_invisible(c) {
                // Counts as one space, however many there are: it may stand beside a dash.
                if is_in_group {
                    is_in_group = false;
                    separators.push(' ');
                }
            } else if number.groups.is_empty() && is_opening(c) {
                number.has_plus |= matches!(c, '+' | '\u{ff0b}');
            } else if c == '(' && !number.groups.is_empty() && !has_more_behind_bracket(&text[position + 1..]) {
                // "error 1045 (28000)": said beside the number.
                break;
            } else if separators.len() < MOST_SEPARATORS && is_separator(c) {
                // A digit or two at the end of a word are the word's.
                let is_of_a_word = number.groups.len() == 1 && number.groups[0].width < 3 && !number.has_plus && c == ' ';
                if is_in_group && is_of_a_word && before.ends_with(|c: char| c.is_ascii_alphabetic()) {
                    break;
                }
                is_in_group = false;
                separators.push(c);
            } else {
                break;
            }
        }
        number
    }

    fn digits(&self) -> usize {
        self.groups.iter().map(|group| group.width).sum()
    }

    fn mark(&self) -> Option<&'static str> {
        let digits = self.digits();
        let longest = self.groups.iter().map(|group| group.width).max().unwrap_or(0);
        let is_harmless = || if longest < LONG_RUN { self.is_harmless() } else { self.is_harmless_run() };
        if digits < SHORTEST_PHONE && longest < LONG_RUN || !self.has_plus && (is_harmless() || self.is_binary() || self.is_book()) {
            return None;
        }
        if (13..=19).contains(&digits) && self.passes_luhn() {
            return Some(CARD);
        }
        let is_phone = (SHORTEST_PHONE..=15).contains(&digits) && (self.has_plus || longest < LONG_RUN);
        Some(if is_phone { PHONE } else { NUMBER })
    }

    fn passes_luhn(&self) -> bool {
        let sum: u32 = self.text[..self.bytes]
            .chars()
            .rev()
            .filter_map(|c| c.to_digit(10))
            .enumerate()
            .map(|(place, digit)| if place % 2 == 0 { digit } else { digit * 2 / 10 + digit * 2 % 10 })
            .sum();
        sum.is_multiple_of(10)
    }

    fn digit_values(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.text[..self.bytes].chars().filter_map(|c| c.to_digit(10))
    }

    /// Noughts and ones.
    fn is_binary(&self) -> bool {
        self.text[..self.bytes].chars().filter(|c| is_digit(*c)).all(|c| matches!(c, '0' | '1'))
    }

    /// A book's number ends with a digit that follows from the others.
    fn is_book(&self) -> bool {
        if !self.gaps.iter().all(|gap| matches!(gap, Gap::Dash | Gap::Space)) {
            return false;
        }
        let is_new = || {
            let begins = self.text.starts_with("978") || self.text.starts_with("979");
            let sum: u32 = self.digit_values().enumerate().map(|(place, digit)| if place % 2 == 0 { digit } else { 3 * digit }).sum();
            self.digits() == 13 && begins && sum.is_multiple_of(10)
        };
        let is_old = || {
            let sum: u32 = self.digit_values().zip((1..=10).rev()).map(|(digit, weight)| digit * weight).sum();
            let ends_alone = self.groups.len() == 4 && self.groups[3].width == 1 && self.gaps.iter().all(|gap| *gap == Gap::Dash);
            self.digits() == 10 && ends_alone && sum.is_multiple_of(11)
        };
        is_new() || is_old()
    }

    /// Six digits in a row and more that are nobody's: round numbers, powers of two, fractions, models with the day they were made.
    fn is_harmless_run(&self) -> bool {
        let all = Part { groups: &self.groups, gaps: &self.gaps };
        if let [group] = self.groups.as_slice() {
            let value = self.text[..self.bytes].parse::<u64>().unwrap_or(0);
            let is_power = value > 0 && group.width < 13 && (value.is_power_of_two() || (value + 1).is_power_of_two());
            return !group.leads_with_zero && value > 0 && group.width < 13 && (value.is_multiple_of(10_000) || is_power);
        }
        let is_model = || {
            let last = self.groups.len() - 1;
            let is_named = self.before.strip_suffix(['-', '_']).is_some_and(|name| name.ends_with(|c: char| c.is_ascii_alphabetic()));
            let is_dated = self.groups[last].width == 8 && self.text.get(self.bytes - 8..self.bytes).is_some_and(is_compact_date);
            is_named && is_dated && self.groups[..last].iter().map(|group| group.width).sum::<usize>() < 4
        };
        // "[12345.678901]": since the machine was started.
        let is_uptime = || self.before.ends_with('[') && self.text[self.bytes..].starts_with(']') && all.gaps == [Gap::Dot];
        let is_point = |part: &Part| part.is_decimal() || part.digits() < 4;
        let parts = all.split(|gap| matches!(gap, Gap::Space | Gap::CommaSpace | Gap::SpacedDash | Gap::Other | Gap::Slash));
        all.is_timestamp() || is_model() || is_uptime() || parts.iter().all(is_point)
    }

    /// `CVE-2021-44228`.
    fn is_catalogued(&self) -> bool {
        let [year, number] = self.groups.as_slice() else { return false };
        let is_named = self.before.strip_suffix('-').is_some_and(|name| name.ends_with(|c: char| c.is_ascii_uppercase()));
        is_named && self.gaps[0] == Gap::Dash && year.is_year() && number.width < LONG_RUN
    }

    fn is_harmless(&self) -> bool {
        let all = Part { groups: &self.groups, gaps: &self.gaps };
        let is_counted = all.is_year_list()
            || all.is_spaced_thousands()
            || all.is_answers()
            || all.is_box()
            || all.is_plain_list() && !self.is_card_list();
        if is_counted || all.is_timestamp() || all.is_date_range() || self.is_catalogued() {
            return true;
        }
        if all.groups.len() > 1 && all.all_gaps_are(Gap::CommaSpace) {
            return !(self.is_phone_list() || self.is_card_list());
        }
        let parts = all.split(|gap| matches!(gap, Gap::Space | Gap::CommaSpace | Gap::SpacedDash));
        let is_range = parts.len() == 2 && all.gaps.contains(&Gap::SpacedDash);
        if is_range && parts.iter().all(Part::is_plain) {
            return !matches!((parts[0].digits(), parts[1].digits()), (3, 4));
        }
        if all.is_moment() {
            return true;
        }
        let dates = parts.iter().filter(|part| part.is_date_like()).count();
        if dates > 0 {
            return parts.iter().filter(|part| !part.is_date_like()).map(Part::digits).sum::<usize>() <= 4;
        }
        if parts.iter().any(Part::is_machine) {
            return parts.iter().all(|part| part.is_measure() || part.digits() < SHORTEST_PHONE);
        }
        let is_list = all.gaps.contains(&Gap::CommaSpace) && !all.gaps.iter().any(|gap| matches!(gap, Gap::Space | Gap::Other));
        parts.iter().all(|part| part.is_measure() || (is_list && part.digits() < SHORTEST_PHONE))
    }

    /// "555, 867, 5309": spoken so.
    fn is_phone_list(&self) -> bool {
        matches!(self.groups.as_slice(), [.., first, second, last] if (first.width, second.width, last.width) == (3, 3, 4))
    }

    fn is_card_list(&self) -> bool {
        let most_are_four = self.groups.iter().filter(|group| group.width == 4).count() * 4 >= self.groups.len() * 3;
        (13..=19).contains(&self.digits()) && most_are_four && self.passes_luhn()
    }
}

/// Some groups of a number.
#[derive(Debug, Clone, Copy)]
struct Part<'a> {
    groups: &'a [Group],
    gaps: &'a [Gap],
}

impl Part<'_> {
    fn split(&self, is_between: impl Fn(Gap) -> bool) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut start = 0;
        for (position, gap) in self.gaps.iter().enumerate() {
            if is_between(*gap) {
                parts.push(Self { groups: &self.groups[start..=position], gaps: &self.gaps[start..position] });
                start = position + 1;
            }
        }
        parts.push(Self { groups: &self.groups[start..], gaps: &self.gaps[start..] });
        parts
    }

    fn digits(&self) -> usize {
        self.groups.iter().map(|group| group.width).sum()
    }

    fn is_plain(&self) -> bool {
        self.groups.len() == 1
    }

    fn all_gaps_are(&self, gap: Gap) -> bool {
        self.gaps.iter().all(|other| *other == gap)
    }

    /// `2026-11-15`, `15.11.2026`, `2026-319`, `2019-2024`, `2025-02-28/2025-03-03`.
    fn is_date_like(&self) -> bool {
        let halves = self.split(|gap| gap == Gap::Slash);
        self.is_date() || (halves.len() == 2 && halves.iter().all(Self::is_date))
    }

    /// `15.03.-20.03.2024`, `01/2024-12/2024`, `2024-03-15–2024-03-20`.
    fn is_date_range(&self) -> bool {
        let is_day_or_month = |part: &Self| match part.groups {
            [day, month] if month.width < 3 => part.gaps[0] != Gap::Dash && day.is_up_to(31) && month.is_up_to(12),
            [month, year] if year.width == 4 => part.gaps[0] != Gap::Dash && month.is_up_to(12) && month.width < 3 && year.is_year(),
            _ => false,
        };
        let is_end = |part: &Self| part.is_date() || is_day_or_month(part);
        let has_year = self.groups.iter().any(|group| group.value.is_some() && group.is_year());
        has_year
            && (4..=6).contains(&self.groups.len())
            && (1..self.groups.len()).any(|split| {
                let from = Self { groups: &self.groups[..split], gaps: &self.gaps[..split - 1] };
                let to = Self { groups: &self.groups[split..], gaps: &self.gaps[split..] };
                matches!(self.gaps[split - 1], Gap::Dash | Gap::SpacedDash | Gap::Other) && is_end(&from) && is_end(&to)
            })
    }

    /// `2024_03_15-02_00_00`: a date, and hours, minutes, seconds and their fraction.
    fn is_timestamp(&self) -> bool {
        if !(3..=7).contains(&self.groups.len()) {
            return false;
        }
        let date = Self { groups: &self.groups[..3], gaps: &self.gaps[..2] };
        let is_tick_date =
            date.all_gaps_are(Gap::Tick) && date.groups[0].is_year() && date.groups[1].is_up_to(12) && date.groups[2].is_up_to(31);
        let begins_with_year = date.groups[0].width == 4;
        let is_time = |(place, group): (usize, &Group)| match place {
            0 => group.width <= 2 && group.is_up_to(23),
            1 | 2 => group.width <= 2 && group.is_up_to(59),
            _ => group.width <= 9,
        };
        // A compact time: `2024-03-15_123456`.
        let is_compact = self.groups.len() == 4 && self.groups[3].width == 6 && self.groups[3].value.is_some_and(|value| value < 240_000);
        let is_clock = self.groups.len() != 4 && self.groups[3..].iter().enumerate().all(is_time);
        begins_with_year && (is_tick_date || date.is_date()) && (is_clock || is_compact)
    }

    /// `0.123456`, `-122.419416`: a fraction or a place on the globe. A nought first is a phone's, and so are ten digits behind a one.
    fn is_decimal(&self) -> bool {
        let [whole, fraction] = self.groups else { return false };
        self.gaps[0] == Gap::Dot
            && (whole.width == 1 || !whole.leads_with_zero)
            && whole.value.is_some_and(|value| value <= 180)
            && fraction.width <= 18
            && !(whole.value == Some(1) && fraction.width == 10)
    }

    /// What servers answer: `200 201 204`.
    fn is_answers(&self) -> bool {
        let is_answer = |group: &Group| {
            group
                .value
                .is_some_and(|value| matches!(value, 100..=103 | 200..=208 | 226 | 300..=308 | 400..=418 | 421..=431 | 451 | 500..=511))
        };
        self.groups.len() > 2
            && self.groups.iter().all(is_answer)
            && self.gaps.iter().all(|gap| matches!(gap, Gap::Space | Gap::Comma | Gap::Slash))
    }

    /// `1024,2048,4096`: no phone and no card is grouped so.
    fn is_plain_list(&self) -> bool {
        let widths: Vec<usize> = self.groups.iter().map(|group| group.width).collect();
        let is_phone = widths.ends_with(&[3, 3, 4]);
        let is_spelled = widths.windows(2).all(|pair| pair[0] == pair[1]) && widths[0] < 3;
        let is_counting = || self.groups.windows(2).all(|pair| pair[0].value < pair[1].value);
        let has_nought = self.groups.iter().any(|group| group.leads_with_zero && group.width > 1);
        self.groups.len() > 2 && self.all_gaps_are(Gap::Comma) && !has_nought && !is_phone && (!is_spelled || is_counting())
    }

    /// `0 0 512 512`: corners of a picture.
    fn is_box(&self) -> bool {
        let [left, top, width, height] = self.groups else { return false };
        let is_corner = |group: &Group| group.width == 1 && group.value == Some(0);
        self.all_gaps_are(Gap::Space) && is_corner(left) && is_corner(top) && width.width > 1 && height.width > 1
    }

    fn is_date(&self) -> bool {
        let is_even = self.gaps.windows(2).all(|pair| pair[0] == pair[1]);
        let is_dated = self.gaps.first().is_some_and(|gap| matches!(gap, Gap::Dash | Gap::Dot | Gap::Slash));
        if !is_even || !is_dated {
            return false;
        }
        match self.groups {
            [year, month, day] if year.width == 4 => year.is_year() && month.is_up_to(31) && day.is_up_to(31),
            [day, month, year] if year.width == 4 => year.is_year() && month.is_up_to(31) && day.is_up_to(31),
            [from, to] if from.width == 4 && to.width == 4 => from.is_year() && to.is_year() && from.value <= to.value,
            [year, day] => self.gaps[0] == Gap::Dash && year.is_year() && day.width == 3 && day.is_up_to(366),
            _ => false,
        }
    }

    fn is_year_list(&self) -> bool {
        self.groups.len() > 2
            && self.groups.iter().all(|group| group.value.is_some() && group.is_year())
            && self.gaps.iter().all(|gap| matches!(gap, Gap::Space | Gap::CommaSpace))
    }

    /// What is left of "Mar 04 2025, 09:15": a day, a year, an hour.
    fn is_moment(&self) -> bool {
        let years = self.groups.iter().filter(|group| group.value.is_some() && group.is_year()).count();
        self.gaps.iter().all(|gap| matches!(gap, Gap::Space | Gap::CommaSpace))
            && years == 1
            && self.groups.len() <= 3
            && self.groups.iter().all(|group| group.width <= 2 || group.is_year())
    }

    /// `1 250 000`, `1 250 000,50`. Three groups of three could be a phone.
    fn is_spaced_thousands(&self) -> bool {
        let (whole, has_cents) = self.without_cents();
        whole.gaps.len() > 1 && whole.all_gaps_are(Gap::Space) && whole.has_thousands() && (has_cents || whole.groups[0].width < 3)
    }

    fn has_thousands(&self) -> bool {
        let (first, rest) = (self.groups[0], &self.groups[1..]);
        (1..=3).contains(&first.width) && !first.leads_with_zero && rest.iter().all(|group| group.width == 3)
    }

    fn without_cents(&self) -> (Self, bool) {
        let last = self.groups.len() - 1;
        let has_cents = last > 0
            && (1..=2).contains(&self.groups[last].width)
            && match self.gaps[last - 1] {
                Gap::Comma => !self.gaps[..last - 1].contains(&Gap::Comma),
                Gap::Dot => !self.gaps[..last - 1].contains(&Gap::Dot),
                _ => false,
            };
        if has_cents { (Self { groups: &self.groups[..last], gaps: &self.gaps[..last - 1] }, true) } else { (*self, false) }
    }

    /// Something that is measured, priced, versioned or addressed.
    fn is_measure(&self) -> bool {
        let is_range = || {
            let ends = self.split(|gap| gap == Gap::Dash);
            ends.len() == 2 && ends.iter().any(|end| !end.is_plain()) && ends.iter().all(|end| end.is_plain() || end.is_amount())
        };
        // `11.204/12.871/15.330`.
        let is_row = || {
            let cells = self.split(|gap| gap == Gap::Slash);
            cells.len() > 1 && cells.iter().all(|cell| cell.gaps == [Gap::Dot] && cell.is_amount())
        };
        // `7230-7235`.
        let is_short_range = || match (self.groups, self.gaps) {
            ([from, to], [Gap::Dash]) => {
                from.width == to.width && from.value.zip(to.value).is_some_and(|(from, to)| to > from && to - from < 100)
            }
            _ => false,
        };
        self.is_amount() || self.is_version() || self.is_machine() || is_range() || is_row() || is_short_range()
    }

    /// `1,234,567.89`, `1.250.000,00`, `1'250'000`, `1,50,000`, `12345.67`.
    fn is_amount(&self) -> bool {
        let (whole, has_cents) = self.without_cents();
        match (whole.gaps.first(), self.groups) {
            (None, _) => has_cents,
            (Some(Gap::Dot | Gap::Comma), [whole, fraction]) if self.gaps.len() == 1 => (whole.width, fraction.width) != (3, 4),
            (Some(gap @ (Gap::Comma | Gap::Tick)), _) if whole.all_gaps_are(*gap) => whole.has_thousands() || whole.has_lakhs(),
            (Some(Gap::Dot), _) if whole.all_gaps_are(Gap::Dot) => whole.has_thousands() && (has_cents || whole.groups[0].width < 3),
            _ => false,
        }
    }

    /// As they group in India: `1,50,000`.
    fn has_lakhs(&self) -> bool {
        let (last, before) = (self.groups[self.groups.len() - 1], &self.groups[..self.groups.len() - 1]);
        self.all_gaps_are(Gap::Comma) && last.width == 3 && before.len() > 1 && before[1..].iter().all(|group| group.width == 2)
    }

    /// `126.0.6478.127`, `4.18.0-513`: no phone has a single digit in its middle.
    fn is_version(&self) -> bool {
        let [first, second, third, ..] = self.groups else { return false };
        self.gaps[..2] == [Gap::Dot, Gap::Dot]
            && (first.width <= 3 && (second.width == 1 || third.width == 1) || first.width == 4 && second.width == 1 && third.width == 1)
    }

    /// `192.168.100.200`, `10.20.30.0/24`.
    fn is_machine(&self) -> bool {
        let is_octet = |group: &Group| group.value.is_some_and(|value| value < 256) && (group.width == 1 || !group.leads_with_zero);
        let quad = match self.gaps {
            [Gap::Dot, Gap::Dot, Gap::Dot] => self.groups,
            [Gap::Dot, Gap::Dot, Gap::Dot, Gap::Slash] => &self.groups[..4],
            _ => return false,
        };
        quad.iter().all(is_octet)
    }
}

impl Group {
    /// Digits of other scripts count by their number alone.
    fn is_year(&self) -> bool {
        self.width == 4 && self.value.is_none_or(|value| (1800..2200).contains(&value))
    }

    fn is_up_to(&self, most: u32) -> bool {
        self.width <= 3 && self.value.is_none_or(|value| value <= most)
    }
}
