//! No bytes in a store make a decoder panic: states, events, rows of the log and of Redis' streams.
#![no_main]

use libfuzzer_sys::fuzz_target;
use runguard_guards::guard::{outlook, replay};
use runguard_guards::Policy;
use runguard_core::Timestamp;
use std::sync::LazyLock;

static POLICY: LazyLock<Policy> = LazyLock::new(Policy::default);

fuzz_target!(|data: (u8, &[u8], &[u8])| {
    let (slot, state, events) = data;
    let now = Timestamp::from_millis(1_700_000_000_000);
    let slot = slot % 17;
    if let Some(after) = replay(slot, Some(state), events, now) {
        let _ = replay(slot, Some(&after), events, now);
        let _ = outlook(slot, &POLICY, "a", &after, now);
    }
    let _ = outlook(slot, &POLICY, "a", state, now);
    runguard_store::fuzzing::read_row(events);
});
