//! The vectors that every SDK must agree with (`sdk/vectors.json`) are what the core says.
//! `UPDATE_VECTORS=1 cargo test` writes the file anew.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use runguard_core::fingerprint::{Volatile, hex, of_text_without};
use runguard_core::similarity::{Junk, ratio};
use serde_json::{Value, json};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors.json");

/// Arguments as JSON text, and fields to leave out.
const ARGUMENTS: &[(&str, &[&str])] = &[
    ("null", &[]),
    ("{}", &[]),
    ("[]", &[]),
    (r#""""#, &[]),
    ("0", &[]),
    ("true", &[]),
    (r#"{"query":"refund policy"}"#, &[]),
    (r#"{ "query" : "refund policy" }"#, &[]),
    (r#"{"a":1,"b":2}"#, &[]),
    (r#"{"b":2,"a":1}"#, &[]),
    (r#"{"a":1.0,"b":2e0}"#, &[]),
    (r#"{"a":"1","b":"2"}"#, &[]),
    (r#"{"a":1,"b":2,"c":null}"#, &[]),
    (r#"{"a":1,"b":2,"c":"","d":[],"e":{}}"#, &[]),
    (r#"{"a":1,"b":2,"c":{"d":{"e":null}}}"#, &[]),
    (r#"{"a":false,"b":0}"#, &[]),
    (r#"{"a":[1,2,3]}"#, &[]),
    (r#"{"a":[3,2,1]}"#, &[]),
    (r#"{"a":[1,null,3]}"#, &[]),
    (r#"{"a":[[],{}]}"#, &[]),
    (r#"{"price":19.9,"tax":0.07,"tiny":1e-7,"huge":1e21}"#, &[]),
    (r#"{"n":-0.0}"#, &[]),
    (r#"{"n":0}"#, &[]),
    (r#"{"n":0.1}"#, &[]),
    (r#"{"n":100}"#, &[]),
    (r#"{"n":1e2}"#, &[]),
    (r#"{"name":"Café"}"#, &[]),
    (r#"{"name":"Cafe\u0301"}"#, &[]),
    (r#"{"città":"Roma","été":"août"}"#, &[]),
    (r#"{"ключ":"значение","鍵":"値","🔑":"🔒"}"#, &[]),
    (r#"{"text":"line\nbreak \"quoted\" \\ slash / tab\t"}"#, &[]),
    (r#"{"ctrl":"\u0001\u001f"}"#, &[]),
    (r#"{"filters":{"z":{"y":{"x":[{"w":1,"v":2}]}}}}"#, &[]),
    (r#"{"filters":{"z":{"y":{"x":[{"v":2,"w":1.0}]}}}}"#, &[]),
    (r#"{"city":"Rome","request_id":"a1"}"#, &["request_id"]),
    (r#"{"city":"Rome","request_id":"b2"}"#, &["request_id"]),
    (r#"{"city":"Rome"}"#, &["request_id"]),
    (r#"{"items":[{"id":1,"trace":"x"},{"id":2,"trace":"y"}]}"#, &["items.trace"]),
    (r#"["a",1,true,null,{"b":[]}]"#, &[]),
    (r#""a plain text""#, &[]),
];

/// Two texts, and whether Python's heuristic for long texts is on.
const PAIRS: &[(&str, &str, bool)] = &[
    ("", "", false),
    ("a", "", false),
    ("abcd", "bcde", false),
    ("fix bug", "fix the bug", false),
    ("qabxcd", "abycdf", false),
    ("how do i return an item", "how can i return the item", false),
    ("private Thread currentThread;", "private volatile Thread currentThread;", false),
    ("refund order 1234", "refund order 1235", false),
    ("größe prüfen", "grosse prüfen", false),
    ("🔎 suche", "🔍 suche", false),
    ("aaaaaaaaaa", "aaaaa", false),
    ("shipping cost to Germany", "Germany shipping cost to", false),
];

fn current() -> Value {
    let fingerprints: Vec<Value> = ARGUMENTS
        .iter()
        .map(|(text, ignore)| {
            let fingerprint = hex(of_text_without(text, &Volatile::of(ignore.iter())).unwrap());
            if ignore.is_empty() {
                json!({"args": text, "fingerprint": fingerprint})
            } else {
                json!({"args": text, "ignore": ignore, "fingerprint": fingerprint})
            }
        })
        .collect();
    let long = "the quick brown fox jumps over the lazy dog and runs away ".repeat(5);
    let longer = format!("{}{}", &long[..140], long.to_uppercase());
    let pairs = PAIRS.iter().map(|(left, right, autojunk)| (*left, *right, *autojunk));
    let similarity: Vec<Value> = pairs
        .chain([(long.as_str(), longer.as_str(), false), (long.as_str(), longer.as_str(), true), (longer.as_str(), long.as_str(), true)])
        .map(|(left, right, autojunk)| {
            let ratio = ratio(left, right, if autojunk { Junk::Popular } else { Junk::Keep });
            json!({"left": left, "right": right, "autojunk": autojunk, "ratio": ratio})
        })
        .collect();
    json!({
        "about": "What every SDK must say: fingerprints of arguments given as JSON text, and difflib ratios. Written by the test in sdk/typescript/wasm.",
        "fingerprints": fingerprints,
        "similarity": similarity,
    })
}

#[test]
fn the_vectors_are_what_the_core_says() {
    let current = current();
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        std::fs::write(FILE, format!("{}\n", serde_json::to_string_pretty(&current).unwrap())).unwrap();
    }
    let written: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    assert_eq!(written, current);
}
