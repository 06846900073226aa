//! No pattern makes its compiler panic, or take more than its bound; none makes the search panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runguard_core::pattern::Pattern;

fuzz_target!(|data: (&str, &str)| {
    let (source, text) = data;
    if let Ok(pattern) = Pattern::new(source) {
        let _ = pattern.is_in(text);
    }
});
