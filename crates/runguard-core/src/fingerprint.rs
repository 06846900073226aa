//! One name for the same arguments, however they were written.
//!
//! The form is RFC 8785 (sorted keys, one form of each number) with the differences that do not change what a call
//! does taken out as well: Unicode composition, and members that are empty (null, "", [], {}).

use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use unicode_normalization::UnicodeNormalization;

/// Sixteen hex digits for a JSON value; empty for null, which is no parameters at all.
pub fn of_json(raw: &RawValue) -> String {
    match serde_json::from_str::<Value>(raw.get()) {
        Ok(Value::Null) => String::new(),
        Ok(value) => {
            let mut canonical = String::with_capacity(raw.get().len());
            write(&value, &mut canonical);
            hex16(canonical.as_bytes())
        }
        // Numbers out of range and lone surrogates: not comparable by value, so compared by their text.
        Err(_) => hex16(raw.get().as_bytes()),
    }
}

/// The first sixteen hex digits of SHA-256.
pub fn hex16(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..8].iter().fold(String::with_capacity(16), |mut hex, byte| {
        hex.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
        hex.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        hex
    })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<(String, &Value)> = members
                .iter()
                .filter(|(key, value)| !key.is_empty() && !is_empty(value))
                .map(|(key, value)| (key.nfc().collect(), value))
                .collect();
            sorted.sort_by(|(left, _), (right, _)| left.encode_utf16().cmp(right.encode_utf16()));
            out.push('{');
            for (position, (key, value)) in sorted.into_iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_string(&key, out);
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    let composed: String = text.nfc().collect();
    out.push_str(&Value::String(composed).to_string());
}

/// `1`, `1.0` and `1e0` are one number. Whole numbers beyond 2^53 keep their digits: they are identifiers.
fn write_number(number: &serde_json::Number, out: &mut String) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT => out.push_str(&(float as i64).to_string()),
        _ => out.push_str(&number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(json: &str) -> String {
        of_json(&RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn form_does_not_matter() {
        let same = [
            r#"{"b":[1,2.50,{"y":1,"x":"é"}],"a":1}"#,
            r#" {"a":1.0, "b":[1e0,2.5,{"x":"e\u0301","y":1}]}"#,
            r#"{"a":1,"b":[1,2.5,{"x":"é","y":1,"z":null}],"c":"","d":{"e":[]}}"#,
        ];
        assert!(same.iter().all(|json| fingerprint(json) == fingerprint(same[0])));
        assert_eq!(fingerprint(same[0]).len(), 16);
    }

    #[test]
    fn values_do_matter() {
        let different = [
            r#"{"a":1}"#,
            r#"{"a":2}"#,
            r#"{"a":"1"}"#,
            r#"{"a":[1]}"#,
            r#"{"b":1}"#,
            "{}",
            "[1,2]",
            "[2,1]",
            r#"{"a":true}"#,
            "12345678901234567890",
            "12345678901234567891",
        ];
        for (position, left) in different.iter().enumerate() {
            for right in &different[position + 1..] {
                assert_ne!(fingerprint(left), fingerprint(right), "{left} {right}");
            }
        }
        assert_eq!(fingerprint("null"), "");
    }
}
