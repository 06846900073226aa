//! Requests that fit their route: no history of them makes a guard panic, the log rebuilds every state, every answer is JSON.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use runguard_guards::Policy;
use std::sync::LazyLock;

static POLICY: LazyLock<Policy> = LazyLock::new(Policy::default);

fuzz_target!(|data: &[u8]| {
    runguard_fuzz::count(runguard_fuzz::story::run(&POLICY, Unstructured::new(data)));
});
