#![no_main]

libfuzzer_sys::fuzz_target!(|data: (u8, u8, &[u8])| runguard_fuzz::relayed(data));
