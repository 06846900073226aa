//! Keys of makers whose prefixes nobody published, by their form alone: letters and digits that follow no rule.
//!
//! In a name, capitals begin words and digits end them; in random text they are anywhere. So it is counted how often a digit
//! stands beside a letter or a capital behind a small one: random text does it at nearly every second place, names at every
//! fifth or sixth. And names are made of words: three small letters and more in a row.

use super::{Replacement, SECRET};

/// Fewer digits than this in a whole text hold no key of this form.
pub(super) const FEWEST_DIGITS: usize = 2;
/// Shorter ones could be chance.
pub(super) const SHORTEST: usize = 24;
/// A key has one stretch without signs of at least this length.
const SHORTEST_STRETCH: usize = 12;
/// How far a token is judged: a text of one token is not read over and over, and what is random is random at once.
const MOST_JUDGED: usize = 512;

pub(super) fn find(text: &str) -> Vec<Replacement> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut position = 0;
    // A text full of beginnings without an end is searched for the end once.
    let mut has_ends = true;
    while position < bytes.len() {
        if has_ends && bytes[position..].starts_with(b"-----BEGIN ") {
            // Certificates, public keys and signatures are random too, and for everybody's eyes.
            let end = text[position..].find("-----END ");
            has_ends = end.is_some();
            position += end.unwrap_or(1);
            continue;
        }
        if !bytes[position].is_ascii_alphanumeric() {
            position += 1;
            continue;
        }
        let length = bytes[position..].iter().take_while(|byte| is_token_byte(**byte)).count();
        let end = position + text[position..position + length].trim_end_matches(['.', '/', '-', '_', '+']).len();
        let token = &text[position..end];
        if has_published_form(token) {
            found.push((position..end, SECRET));
        } else if token.len() >= SHORTEST && !says_what_it_is(&text[..position], token) {
            random_parts(token, |part| found.push((position + part.start..position + part.end, SECRET)));
        }
        position += length;
    }
    found
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b'+' | b'=')
}

/// Published forms that are digests but for their beginning: Twilio's accounts and keys, Airtable's tokens.
fn has_published_form(token: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase());
    let account = token.strip_prefix("AC").or_else(|| token.strip_prefix("SK"));
    let personal = token.strip_prefix("pat").and_then(|token| token.split_once('.'));
    account.is_some_and(|digits| digits.len() == 32 && is_hex(digits))
        || personal.is_some_and(|(name, digits)| name.len() == 14 && digits.len() == 64 && is_hex(digits))
}

/// Digests, public keys, images: what stands before says so, or the beginning, or the ending.
fn says_what_it_is(before: &str, token: &str) -> bool {
    const PUBLIC: [&str; 8] = ["public", "pubkey", "base64,", "fingerprint", "integrity", "checksum", "etag", "digest"];
    const DIGESTS: [&str; 8] = ["sha1", "sha224", "sha256", "sha384", "sha512", "md5", "h1", "blake2b"];
    const FILES: [&str; 20] = [
        ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".ico", ".woff", ".woff2", ".ttf", ".js", ".mjs", ".css", ".map", ".html",
        ".pdf", ".zip", ".mp4", ".wasm", ".json",
    ];
    let mut near = before.len().saturating_sub(32);
    while !before.is_char_boundary(near) {
        near += 1;
    }
    let near = before[near..].to_ascii_lowercase();
    let word = near.strip_suffix(':').map(|near| near.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or(""));
    let lower = || token[..token.len().min(8)].to_ascii_lowercase();
    PUBLIC.iter().any(|public| near.contains(public))
        || word.is_some_and(|word| DIGESTS.contains(&word))
        || DIGESTS.iter().any(|digest| lower().strip_prefix(digest).is_some_and(|rest| rest.starts_with(['-', '='])))
        || FILES.iter().any(|file| token.ends_with(file))
        // Keys of SSH that are given away, and names as compilers write them.
        || token.starts_with("AAAA")
        || token.starts_with("_Z")
}

/// All of a token where its slashes are letters of base64, and otherwise the parts between them that are random.
fn random_parts(token: &str, mut give: impl FnMut(std::ops::Range<usize>)) {
    // `name=value`.
    let value_from = |part: &str| part.trim_end_matches('=').find('=').map_or(0, |equals| equals + 1);
    let value = &token[value_from(token)..];
    let is_word = |part: &str| part.len() > 3 && part.bytes().all(|byte| byte.is_ascii_lowercase());
    if value.contains('/') && !value.contains(['.', '-', '_']) && !value.split('/').any(is_word) && is_random(value) {
        return give(token.len() - value.len()..token.len());
    }
    let mut start = 0;
    for part in token.split('/') {
        let from = value_from(part);
        if is_random(&part[from..]) {
            give(start + from..start + part.len());
        }
        start += part.len() + 1;
    }
}

fn is_random(part: &str) -> bool {
    if part.len() < SHORTEST {
        return false;
    }
    let judged = &part.as_bytes()[..part.len().min(MOST_JUDGED)];
    let (mut letters, mut changes, mut longest, mut in_words) = (0, 0, 0, 0);
    let (mut has_lower, mut has_upper, mut digits) = (false, false, 0);
    for stretch in judged.split(|byte| !byte.is_ascii_alphanumeric()) {
        // Digests, and parts of them.
        if stretch.iter().all(u8::is_ascii_hexdigit) {
            continue;
        }
        letters += stretch.len();
        in_words += stretch.split(|byte| !byte.is_ascii_lowercase()).map(<[u8]>::len).filter(|length| *length > 2).sum::<usize>();
        longest = longest.max(stretch.len());
        for byte in stretch {
            has_lower |= byte.is_ascii_lowercase();
            has_upper |= byte.is_ascii_uppercase();
            digits += usize::from(byte.is_ascii_digit());
        }
        changes += stretch
            .windows(2)
            .filter(|pair| {
                pair[0].is_ascii_digit() != pair[1].is_ascii_digit() || pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase()
            })
            .count();
    }
    // Where most of it is a digest, the rest must be the surer.
    let places = if letters < SHORTEST - 4 { 3 } else { 4 };
    let is_name = in_words * 5 >= letters * 2;
    has_lower && has_upper && digits >= FEWEST_DIGITS && longest >= SHORTEST_STRETCH && changes * places >= letters && !is_name
}
