//! The canonical form is JSON, is its own canonical form, and says the same of a text and of what it means.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runguard_core::fingerprint::{Volatile, canonical_text, canonical_value, of_text, of_value};

fuzz_target!(|text: &str| {
    let volatile = Volatile::default();
    let Ok(canonical) = canonical_text(text, &volatile) else { return };
    assert_eq!(canonical_text(&canonical, &volatile).as_deref(), Ok(canonical.as_str()), "canonical once is canonical for good");
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(text) {
        // Read back from the value: a whole number of more than 64 bits is exact as a text, and rounded as a value.
        let text = value.to_string();
        assert_eq!(canonical_value(&value, &volatile), canonical_text(&text, &volatile), "a value and its text");
        assert_eq!(of_text(&text), of_value(&value));
    }
});
