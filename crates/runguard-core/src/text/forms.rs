//! Numbers that are known by their form alone: accounts and persons' numbers that begin with letters, and what is nobody's number
//! though it has long runs of digits.

use super::numbers::{is_dash, is_digit};

/// Countries whose accounts are numbered alike: two letters, two digits, and up to thirty of both.
const ACCOUNTS: &str = "AD AE AL AT AZ BA BE BG BH BR BY CH CR CY CZ DE DK DO EE EG ES FI FO FR GB GE GI GL GR GT HR HU IE IL IQ IS IT \
                        JO KW KZ LB LC LI LT LU LV LY MC MD ME MK MR MT MU NL NO PK PL PS PT QA RO RS SA SC SE SI SK SM ST SV TL TN TR \
                        UA VA VG XK";

/// How much of a text is an account's number, written in one or in groups of four; or a person's, where it begins with letters.
pub(super) fn account_bytes(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let length_from = |from: usize| bytes[from..].iter().take(35).take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let first = length_from(0);
    if has_form(&bytes[..first], b"AAAAAA00A00A000A") {
        return Some(first);
    }
    if ["AA 00 00 00 A", "AA 00 00 00", "AA-00-00-00-A"].iter().any(|form| has_form(&bytes[..bytes.len().min(form.len())], form.as_bytes()))
    {
        return Some("AA 00 00 00".len() + if bytes.get(12).is_some_and(u8::is_ascii_uppercase) { 2 } else { 0 });
    }
    let is_country = bytes.len() > 4
        && bytes[2..4].iter().all(u8::is_ascii_digit)
        && ACCOUNTS.split_ascii_whitespace().any(|country| country.as_bytes().eq_ignore_ascii_case(&bytes[..2]));
    if !is_country || first < 4 {
        return None;
    }
    let (mut end, mut count) = (first, first);
    let mut digits = bytes[..end].iter().filter(|byte| byte.is_ascii_digit()).count();
    // In groups: each has four, but for the last.
    while first == 4 && count < 34 {
        let Some(gap) = text[end..].chars().next().filter(|&c| is_dash(c) || c.is_whitespace() && c != '\n') else { break };
        let from = end + gap.len_utf8();
        let width = length_from(from);
        let group = &bytes[from..from + width];
        let is_group = (1..=4).contains(&width)
            && group.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
            && (count < 8 || group.iter().any(u8::is_ascii_digit));
        if !is_group {
            break;
        }
        (end, count) = (from + width, count + width);
        digits += group.iter().filter(|byte| byte.is_ascii_digit()).count();
        if width < 4 {
            break;
        }
    }
    ((15..=34).contains(&count) && digits >= 10).then_some(end)
}

/// Whether a text has a capital for every `A` and a digit for every `0` of a form.
fn has_form(bytes: &[u8], form: &[u8]) -> bool {
    bytes.len() == form.len()
        && bytes.iter().zip(form).all(|(byte, form)| match form {
            b'A' => byte.is_ascii_uppercase(),
            b'0' => byte.is_ascii_digit(),
            other => byte == other,
        })
}

/// How much of a text is nobody's number, though it may have long runs of digits.
pub(super) fn known_bytes(before: &str, rest: &str) -> Option<usize> {
    digest_bytes(before, rest)
        .or_else(|| literal_bytes(before, rest))
        .or_else(|| publication_bytes(rest))
        .or_else(|| seconds_bytes(before, rest))
        .or_else(|| stamp_bytes(before, rest))
        .or_else(|| mode_bytes(before, rest))
}

fn digits_at(text: &str) -> usize {
    text.bytes().take(20).take_while(u8::is_ascii_digit).count()
}

/// `0x7fff5fbff8c0`, `0b1010_1010`.
fn literal_bytes(before: &str, rest: &str) -> Option<usize> {
    if before.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let body = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")).or_else(|| rest.strip_prefix("0b"))?;
    let length = body.bytes().take(24).take_while(|byte| byte.is_ascii_hexdigit() || *byte == b'_').count();
    let is_whole = !body[length..].starts_with(|c: char| c.is_alphanumeric());
    ((1..=19).contains(&length) && is_whole).then_some(2 + length)
}

/// `10.1038/s41586-021-03819-2`: an article.
fn publication_bytes(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix("10.")?;
    let registrant = digits_at(body);
    let is_article = (4..=9).contains(&registrant) && body[registrant..].starts_with('/');
    let length = || rest.bytes().take(128).take_while(|byte| byte.is_ascii_alphanumeric() || b"./-_()".contains(byte)).count();
    is_article.then(length)
}

/// What is left of `12:00:03.123456789` behind its last colon.
fn seconds_bytes(before: &str, rest: &str) -> Option<usize> {
    let is_behind_minutes = before.strip_suffix(':').is_some_and(|minutes| minutes.ends_with(|c: char| c.is_ascii_digit()));
    let fraction = rest.get(2..)?.strip_prefix(['.', ','])?;
    let is_seconds = is_behind_minutes && digits_at(rest) == 2 && (1..=9).contains(&digits_at(fraction));
    is_seconds.then(|| 3 + digits_at(fraction))
}

/// `20240315`, `20240315T123456Z`, `20240315_123456`, `20240315123456`: where nothing but a time follows the date.
fn stamp_bytes(before: &str, rest: &str) -> Option<usize> {
    let digits = digits_at(rest);
    let other_end = before.strip_suffix('-').map_or("", |other| other.get(other.len().saturating_sub(8)..).unwrap_or(""));
    let begins = !before.ends_with(is_digit) && (!other_end.ends_with(is_digit) || is_compact_date(other_end));
    if !begins || !matches!(digits, 8 | 12 | 14 | 17) || !is_compact_date(&rest[..8]) {
        return None;
    }
    if digits > 8 {
        return is_compact_time(&rest[8..digits.min(14)]).then_some(digits);
    }
    let behind = &rest[8..];
    let time = behind.strip_prefix(['T', 't', '_', '-']).unwrap_or("");
    let width = digits_at(time);
    if matches!(width, 4 | 6 | 9) && is_compact_time(&time[..width.min(6)]) && !(behind.starts_with('-') && width == 4) {
        return Some(9 + width);
    }
    let mut next = behind.chars();
    let is_joined = next.next().is_some_and(|c| is_dash(c) || matches!(c, ' ' | '/' | '+')) && next.next().is_some_and(is_digit);
    let is_range = || behind.get(1..9).is_some_and(is_compact_date) && digits_at(&behind[1..]) == 8;
    let is_clock = || behind.get(3..).is_some_and(|clock| clock.starts_with(':'));
    (!is_joined || is_range() || is_clock()).then_some(8)
}

pub(super) fn is_compact_date(digits: &str) -> bool {
    let part = |from, to| digits.get(from..to).and_then(|part: &str| part.parse::<u32>().ok());
    part(0, 4).is_some_and(|year| (1900..2100).contains(&year))
        && part(4, 6).is_some_and(|month| (1..=12).contains(&month))
        && part(6, 8).is_some_and(|day| (1..=31).contains(&day))
}

fn is_compact_time(digits: &str) -> bool {
    digits.as_bytes().chunks(2).enumerate().all(|(place, two)| two < if place == 0 { b"24" } else { b"60" })
}

/// How git writes what may be done with a file.
fn mode_bytes(before: &str, rest: &str) -> Option<usize> {
    let is_mode = digits_at(rest) == 6 && ["100644", "100755", "120000", "160000", "040000"].iter().any(|mode| rest.starts_with(mode));
    (is_mode && before.ends_with(' ') && !rest[6..].starts_with(|c: char| c == '-' || c.is_alphanumeric())).then_some(6)
}

/// How much of a UUID or a hash is left.
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
