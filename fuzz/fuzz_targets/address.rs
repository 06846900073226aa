//! No address of a database makes its reader panic, and no refusal repeats a password.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|url: &str| {
    for refused in [runguard_store::fuzzing::redis_address(url), runguard_store::fuzzing::postgres_address(url)].into_iter().flatten() {
        let secret = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).and_then(|(login, _)| login.split_once(':'));
        if let Some((_, password)) = secret.filter(|(_, password)| password.len() > 12) {
            assert!(!refused.contains(password), "{refused}");
        }
    }
});
