//! No text makes the redaction panic or grow without a mark, and a long number that nothing explains does not stay.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runguard_core::text::{MARKS, StoreText, redact};

fuzz_target!(|text: &str| {
    let redacted = redact(text);
    // Whatever stands before it: a number that is no date, no fraction, no round number and no part of a hash.
    let numbered = format!("{text}\nmy number is 7453917 there");
    assert!(!redact(&numbered).contains("7453917"), "{numbered:?} -> {:?}", redact(&numbered));
    assert!(redacted == text || MARKS.iter().any(|mark| redacted.contains(mark)));
    for store_text in [StoreText::None, StoreText::Redacted, StoreText::Full] {
        assert!(store_text.keep(text, 100).chars().count() <= 100);
        let _ = store_text.keep_name(text);
    }
});
