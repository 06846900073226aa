//! Phone, card and account numbers: digits of any script, with whatever people put between them.
//!
//! A number is taken with its separators as far as it goes, and removed when it has seven digits or six in a row, unless its
//! form says that it is something else: a date, a sum of money, a version, a machine's address, a list of small numbers. Where a
//! form could be both, it goes: a lost figure is a pity, a kept phone number is somebody's.

use super::{CARD, Found, NUMBER, PHONE, is_invisible};

/// Digits in a row that are taken for an account, order or other number of a person.
pub(super) const LONG_RUN: usize = 6;
/// Fewer digits than this are nobody's phone.
const SHORTEST_PHONE: usize = 7;
/// Characters between two digits of one number: " - ", ") - ".
const MOST_SEPARATORS: usize = 3;

pub(super) fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || (!c.is_ascii() && c.is_numeric())
}

pub(super) fn find(text: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some((start, c)) = chars.next() {
        let opens = is_digit(c) || (is_opening(c) && chars.peek().is_some_and(|&(_, next)| is_digit(next) || next == '+'));
        if !opens {
            continue;
        }
        let rest = &text[start..];
        let end = if let Some(bytes) = digest_bytes(&text[..start], rest) {
            start + bytes
        } else {
            let number = Number::read(rest);
            if let Some(mark) = number.mark() {
                let is_bracketed = c == '(' && !rest[..number.bytes].contains(')');
                found.push((start + usize::from(is_bracketed)..start + number.bytes, mark));
            }
            start + number.bytes.max(c.len_utf8())
        };
        while chars.next_if(|&(position, _)| position < end).is_some() {}
    }
    found
}

fn is_opening(c: char) -> bool {
    matches!(c, '+' | '(' | '\u{ff08}' | '\u{ff0b}')
}

/// How much of a UUID or a hash is left: nobody's number, though it may have long runs of digits.
fn digest_bytes(before: &str, rest: &str) -> Option<usize> {
    let is_part = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'-';
    // One more than the longest, so that a longer one is not taken for it and a text full of them is not read over and over.
    let begun = before.bytes().rev().take(65).take_while(is_part).count();
    let length = begun + rest.bytes().take(65).take_while(is_part).count();
    let is_ours = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let start = before.len() - begun;
    let token = || before.as_bytes()[start..].iter().chain(rest.as_bytes()).take(length);
    let is_whole =
        !before[..start].bytes().next_back().is_some_and(is_ours) && !rest.as_bytes().get(length - begun).copied().is_some_and(is_ours);
    let is_digest = match length {
        36 => token().enumerate().all(|(position, byte)| (*byte == b'-') == matches!(position, 8 | 13 | 18 | 23)),
        32 | 40 | 64 => token().all(u8::is_ascii_hexdigit),
        _ => false,
    };
    (is_whole && is_digest && token().any(u8::is_ascii_alphabetic)).then_some(length - begun)
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

fn is_dash(c: char) -> bool {
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

/// Groups of digits with what is between them.
struct Number<'a> {
    text: &'a str,
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
    fn read(text: &'a str) -> Self {
        let mut number = Self { text, bytes: 0, has_plus: false, groups: Vec::new(), gaps: Vec::new() };
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
            } else if separators.len() < MOST_SEPARATORS && is_separator(c) {
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
        let may_be_harmless = !self.has_plus && longest < LONG_RUN;
        if digits < SHORTEST_PHONE && longest < LONG_RUN || may_be_harmless && self.is_harmless() {
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

    fn is_harmless(&self) -> bool {
        let all = Part { groups: &self.groups, gaps: &self.gaps };
        if all.is_year_list() || all.is_spaced_thousands() {
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

    /// What is left of "Mar 04 2025 09:15": a day, a year, an hour.
    fn is_moment(&self) -> bool {
        let years = self.groups.iter().filter(|group| group.value.is_some() && group.is_year()).count();
        self.all_gaps_are(Gap::Space)
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
        self.is_amount() || self.is_version() || self.is_machine() || is_range()
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
        self.gaps[..2] == [Gap::Dot, Gap::Dot] && first.width <= 3 && (second.width == 1 || third.width == 1)
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
