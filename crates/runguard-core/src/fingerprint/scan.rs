//! Reads JSON text straight into the canonical form, without building a value.
//!
//! As strict as RFC 8259, except that a lone surrogate (`"\ud800"`, half an emoji cut by a model) is accepted: it has
//! no character, so it is kept as a mark that no text contains.

use super::writer::{Writer, plain_length};
use super::{FingerprintError, Volatile};

pub(super) fn canonical(json: &str, volatile: &Volatile) -> Result<String, FingerprintError> {
    // Canonical numbers and escapes may be longer than the text; growing once is cheap.
    let mut scanner =
        Scanner { text: json, bytes: json.as_bytes(), at: 0, decoded: String::new(), writer: Writer::new(volatile, json.len()) };
    scanner.white_space();
    scanner.value()?;
    scanner.white_space();
    if scanner.at < json.len() {
        return Err(scanner.not_json());
    }
    Ok(scanner.writer.finish())
}

struct Scanner<'t, 'v> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    /// The last string that had escapes, without them.
    decoded: String,
    writer: Writer<'v>,
}

/// A string in the text.
enum Scanned<'t> {
    /// In its quotes, canonical as it stands.
    Ready(&'t str),
    /// It stands there as it is, but may have to be composed.
    Plain(&'t str),
    /// It had escapes: see [`Scanner::decoded`].
    Decoded,
}

/// Stands before the hex digits of a lone surrogate. No character, and in no text.
const LONE_SURROGATE: char = '\u{10fffe}';

impl<'t> Scanner<'t, '_> {
    fn not_json(&self) -> FingerprintError {
        FingerprintError::NotJson { at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn white_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), FingerprintError> {
        if self.peek() != Some(byte) {
            return Err(self.not_json());
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self) -> Result<(), FingerprintError> {
        match self.peek() {
            Some(b'"') => {
                match self.string()? {
                    Scanned::Ready(quoted) => self.writer.ready_string(quoted),
                    Scanned::Plain(text) => self.writer.string(text),
                    Scanned::Decoded => self.writer.string(&self.decoded),
                }
                Ok(())
            }
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            _ => Err(self.not_json()),
        }
    }

    fn word(&mut self, word: &str) -> Result<(), FingerprintError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.not_json());
        }
        self.at += word.len();
        self.writer.word(word);
        Ok(())
    }

    fn array(&mut self) -> Result<(), FingerprintError> {
        self.writer.begin_array()?;
        self.at += 1;
        self.white_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            self.writer.end_array();
            return Ok(());
        }
        loop {
            self.value()?;
            self.white_space();
            if self.peek() == Some(b']') {
                self.at += 1;
                self.writer.end_array();
                return Ok(());
            }
            self.expect(b',')?;
            self.writer.comma();
            self.white_space();
        }
    }

    fn object(&mut self) -> Result<(), FingerprintError> {
        let mut object = self.writer.begin_object()?;
        self.at += 1;
        self.white_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            self.writer.end_object(&object);
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.not_json());
            }
            let member = match self.string()? {
                Scanned::Ready(quoted) => self.writer.begin_ready_member(&object, quoted),
                Scanned::Plain(name) => self.writer.begin_member(&object, name),
                Scanned::Decoded => self.writer.begin_member(&object, &self.decoded),
            };
            self.white_space();
            self.expect(b':')?;
            self.white_space();
            self.value()?;
            self.writer.end_member(&mut object, &member);
            self.white_space();
            if self.peek() == Some(b'}') {
                self.at += 1;
                self.writer.end_object(&object);
                return Ok(());
            }
            self.expect(b',')?;
            self.white_space();
        }
    }

    fn digits(&mut self) -> Result<(), FingerprintError> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { Err(self.not_json()) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), FingerprintError> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        let whole = self.at;
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        let number = &self.text[start..self.at];
        if self.at == whole {
            self.writer.digits(number);
            return Ok(());
        }
        if let Some(decimal) = short_decimal(number) {
            self.writer.digits(decimal);
            return Ok(());
        }
        match number.parse::<f64>() {
            Ok(float) if float.is_finite() => self.writer.float(float),
            // Beyond what a double holds it is known by its text only.
            _ => self.writer.word(&number.to_ascii_lowercase()),
        }
        Ok(())
    }

    /// From the opening quote to behind the closing one.
    fn string(&mut self) -> Result<Scanned<'t>, FingerprintError> {
        self.at += 1;
        let start = self.at;
        self.plain_run();
        if self.peek() == Some(b'"') {
            self.at += 1;
            let quoted = &self.text[start - 1..self.at];
            return Ok(if quoted.is_ascii() { Scanned::Ready(quoted) } else { Scanned::Plain(&quoted[1..quoted.len() - 1]) });
        }
        self.decoded.clear();
        let mut from = start;
        loop {
            self.decoded.push_str(&self.text[from..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Scanned::Decoded);
                }
                Some(b'\\') => self.escape()?,
                _ => return Err(self.not_json()),
            }
            from = self.at;
            self.plain_run();
        }
    }

    /// Goes on to the next byte that is not simply itself: a quote, a backslash, a control character, the end.
    fn plain_run(&mut self) {
        self.at += plain_length(&self.bytes[self.at..]);
    }

    fn escape(&mut self) -> Result<(), FingerprintError> {
        self.at += 1;
        let decoded = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(self.not_json()),
        };
        self.at += 1;
        self.decoded.push(decoded);
        Ok(())
    }

    fn unicode_escape(&mut self) -> Result<(), FingerprintError> {
        let unit = self.four_hex_digits()?;
        if let Some(character) = char::from_u32(unit) {
            self.decoded.push(character);
            return Ok(());
        }
        if (0xd800..0xdc00).contains(&unit) && self.bytes[self.at..].starts_with(b"\\u") {
            let back = self.at;
            self.at += 2;
            let low = self.four_hex_digits()?;
            if (0xdc00..0xe000).contains(&low) {
                self.decoded.extend(char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)));
                return Ok(());
            }
            self.at = back;
        }
        self.decoded.push(LONE_SURROGATE);
        self.decoded.push_str(&format!("{unit:04x}"));
        Ok(())
    }

    fn four_hex_digits(&mut self) -> Result<u32, FingerprintError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16)).ok_or_else(|| self.not_json())?;
            unit = unit * 16 + digit;
            self.at += 1;
        }
        Ok(unit)
    }
}

/// A decimal of at most fifteen digits is the shortest form of its own double, so it is canonical without its trailing
/// zeros. Small ones, which have an exponent in the canonical form, are left to the double.
fn short_decimal(number: &str) -> Option<&str> {
    const EXACT_DIGITS: usize = 15;
    let (whole, fraction) = number.split_once('.')?;
    if number.len() > EXACT_DIGITS || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let kept = fraction.trim_end_matches('0').len();
    if kept == 0 {
        return Some(whole);
    }
    let is_small = matches!(whole, "0" | "-0") && fraction.starts_with('0');
    if is_small { None } else { Some(&number[..=whole.len() + kept]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_short_decimal_is_what_its_double_gives(number in "-?(0|[1-9][0-9]{0,7})\\.[0-9]{1,7}") {
            if let Some(decimal) = short_decimal(&number) {
                let mut through_double = Writer::new(Volatile::NONE, 16);
                through_double.float(number.parse().unwrap());
                let mut direct = Writer::new(Volatile::NONE, 16);
                direct.digits(decimal);
                prop_assert_eq!(direct.finish(), through_double.finish());
            }
        }
    }
}
