//! One name for the same arguments, however they were written.
//!
//! The form is RFC 8785 (sorted keys, one form of each number) with the differences that do not change what a call
//! does taken out as well: Unicode composition, and members that are empty (null, "", [], {}) or have no name. Whole
//! numbers keep all their digits, because they are identifiers: 12345678901234567890 is not 12345678901234567891.
//!
//! There is one writer of that form (`writer`) and two ways to feed it: from a parsed value, and straight from JSON
//! text, which costs about a third of parsing it first.
//!
//! ```
//! use runguard_core::fingerprint::{Volatile, of_text, of_text_without};
//!
//! let one = of_text(r#"{"city": "Rome", "days": 3, "filter": null}"#)?;
//! let other = of_text(r#"{"days": 3.0, "city": "Rome"}"#)?;
//! assert_eq!(one, other);
//!
//! let volatile = Volatile::of(["request_id"]);
//! let first = of_text_without(r#"{"city": "Rome", "request_id": "a1"}"#, &volatile)?;
//! assert_eq!(first, of_text_without(r#"{"city": "Rome", "request_id": "b2"}"#, &volatile)?);
//! # Ok::<(), runguard_core::fingerprint::FingerprintError>(())
//! ```

mod scan;
mod volatile;
mod writer;

pub use volatile::Volatile;

use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use writer::Writer;
use xxhash_rust::xxh3::xxh3_64;

/// Arrays and objects inside each other, at most.
pub const DEEPEST: usize = 128;

/// Why there is no fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FingerprintError {
    /// More than [`DEEPEST`] arrays and objects inside each other.
    #[error("the arguments are nested more than {DEEPEST} deep; pass a flatter value")]
    TooDeep,
    /// The text is not JSON; `at` is the byte where that shows.
    #[error("the arguments are not JSON (at byte {at}); pass a JSON value, in which NaN and Infinity do not exist")]
    NotJson {
        /// Byte at which it stops being JSON.
        at: usize,
    },
}

/// Of arguments as JSON text. No arguments at all (`null`, `""`, `[]`) are the same as `{}`.
pub fn of_text(json: &str) -> Result<u64, FingerprintError> {
    of_text_without(json, Volatile::NONE)
}

/// [`of_text`], with some fields left out.
pub fn of_text_without(json: &str, volatile: &Volatile) -> Result<u64, FingerprintError> {
    canonical_text(json, volatile).map(|canonical| hash(&canonical))
}

/// Of parsed arguments. The same as [`of_text`] of their text, except for whole numbers beyond 64 bits, which a parsed
/// value no longer knows exactly.
pub fn of_value(value: &Value) -> Result<u64, FingerprintError> {
    of_value_without(value, Volatile::NONE)
}

/// [`of_value`], with some fields left out.
pub fn of_value_without(value: &Value, volatile: &Volatile) -> Result<u64, FingerprintError> {
    canonical_value(value, volatile).map(|canonical| hash(&canonical))
}

/// Sixteen hex digits.
pub fn hex(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

/// The canonical form of JSON text.
pub fn canonical_text(json: &str, volatile: &Volatile) -> Result<String, FingerprintError> {
    scan::canonical(json, volatile)
}

/// The canonical form of a parsed value.
pub fn canonical_value(value: &Value, volatile: &Volatile) -> Result<String, FingerprintError> {
    let mut writer = Writer::new(volatile, 256);
    writer.value(value)?;
    Ok(writer.finish())
}

fn hash(canonical: &str) -> u64 {
    xxh3_64(as_arguments(canonical).as_bytes())
}

/// However a call without arguments is written, it is one call.
pub fn as_arguments(canonical: &str) -> &str {
    if writer::is_empty(canonical) { "{}" } else { canonical }
}

/// Sixteen hex digits for a JSON value; empty for null, which is no parameters at all.
pub fn of_json(raw: &RawValue) -> String {
    match canonical_text(raw.get(), Volatile::NONE) {
        Ok(canonical) if canonical == "null" => String::new(),
        Ok(canonical) => hex16(canonical.as_bytes()),
        // Too deep to be compared by value, so compared by its text.
        Err(_) => hex16(raw.get().as_bytes()),
    }
}

/// The first sixteen hex digits of SHA-256.
pub fn hex16(bytes: &[u8]) -> String {
    hex_of(&Sha256::digest(bytes)[..8])
}

/// Two hex digits a byte.
pub fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        hex.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
        hex.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        hex
    })
}

#[cfg(test)]
mod tests;
