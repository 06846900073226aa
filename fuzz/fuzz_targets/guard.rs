#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| runguard_fuzz::guard(data));
