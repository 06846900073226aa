#![no_main]

libfuzzer_sys::fuzz_target!(|data: (&str, &str)| runguard_fuzz::pattern(data));
