#![no_main]

libfuzzer_sys::fuzz_target!(|data: &str| runguard_fuzz::address(data));
