//! What the detectors cost: nanoseconds and allocations of a call at steady state, and bytes of a session.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros, reason = "it measures and prints")]

use runguard_core::detect::loops::{LoopDetector, LoopSettings};
use runguard_core::detect::stall::{CallEffect, StallDetector, StallSettings, Step};
use runguard_core::time::Timestamp;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::hint::black_box;
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: u32 = 200_000;
const MILLION: usize = 1_000_000;

/// Best nanoseconds of seven runs, and allocations of a call.
#[allow(clippy::disallowed_methods)] // a benchmark reads the clock
fn measure(mut call: impl FnMut(u32)) -> (f64, f64) {
    (0..ROUNDS).for_each(&mut call);
    let region = Region::new(ALLOCATOR);
    (0..ROUNDS).for_each(&mut call);
    let allocations = region.change().allocations as f64 / f64::from(ROUNDS);
    let mut best = f64::MAX;
    for _ in 0..7 {
        let started = Instant::now();
        (0..ROUNDS).for_each(&mut call);
        best = best.min(started.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    (best, allocations)
}

fn report(name: &str, figure: f64, unit: &str, bar: f64) {
    let verdict = if figure <= bar { "PASS" } else { "MISS" };
    println!("{name:<64} {figure:>9.1} {unit:<12} bar {bar:>6.0}  {verdict}");
}

fn main() {
    let now = Timestamp::from_millis(1_700_000_000_000);
    let tools = ["search_knowledge", "read_file", "write_file", "run_tests", "list_directory", "http_get", "query_database"];

    let mut detector = LoopDetector::new(LoopSettings::default()).expect("valid settings");
    let (time, allocations) = measure(|index| {
        let _ = black_box(detector.record("", black_box(tools[index as usize % tools.len()]), now));
    });
    report("LoopDetector::record, one run", time, "ns", 50.0);
    report("LoopDetector::record, one run", allocations, "allocations", 0.0);

    let sessions: Vec<String> = (0..1000).map(|number| format!("session-{number:06}")).collect();
    let mut detector = LoopDetector::new(LoopSettings::default()).expect("valid settings");
    let (time, allocations) = measure(|index| {
        let session = &sessions[index as usize % sessions.len()];
        let _ = black_box(detector.record(session, black_box(tools[(index / 7) as usize % tools.len()]), now));
    });
    report("LoopDetector::record, a thousand sessions", time, "ns", 50.0);
    report("LoopDetector::record, a thousand sessions", allocations, "allocations", 0.0);

    let region = Region::new(ALLOCATOR);
    let mut detector = LoopDetector::new(LoopSettings::default()).expect("valid settings");
    for number in 0..MILLION {
        for tool in &tools[..4] {
            let _ = detector.record(&format!("session-{number:08}"), tool, now);
        }
    }
    let change = region.change();
    let held = change.bytes_allocated - change.bytes_deallocated;
    assert_eq!(detector.sessions(), MILLION);
    report("LoopDetector, a million sessions", held as f64 / MILLION as f64, "bytes each", 300.0);
    drop(detector);

    let mut stall = StallDetector::new(StallSettings::default()).expect("valid settings");
    let (time, _) = measure(|index| {
        let step = Step {
            tool: tools[index as usize % tools.len()],
            args: u64::from(index) * 31,
            result: Some(u64::from(index % 5000)),
            error: None,
            round: Some(u64::from(index)),
            effect: CallEffect::Unknown,
        };
        black_box(stall.observe(black_box(step)));
    });
    report("StallDetector::observe, fingerprints given", time, "ns", 500.0);

    for (name, arguments, bar) in
        [("arguments with a text", with_a_text(), Some(3000.0)), ("nothing but rows of small values", rows(8).to_string(), None)]
    {
        let (time, _) = measure(|_| {
            let _ = black_box(runguard_core::fingerprint::of_text(black_box(&arguments)));
        });
        let name = format!("fingerprint of {} bytes, {name}", arguments.len());
        match bar {
            Some(bar) => report(&name, time, "ns", bar),
            None => println!("{name:<64} {time:>9.1} ns"),
        }
    }
}

fn rows(count: u32) -> serde_json::Value {
    let row = |row: u32| {
        serde_json::json!({
            "id": row, "name": format!("customer {row}"), "city": "Zürich", "balance": f64::from(row) * 12.5, "tags": ["new", "vip"], "note": null
        })
    };
    (0..count).map(row).collect()
}

/// A kilobyte, as tools take it: a text, a query with its options, a few rows.
fn with_a_text() -> String {
    let text = "The customer writes that the parcel was to arrive on Monday and did not. \"Where is it?\" ".repeat(5);
    serde_json::json!({
        "to": "support@example.com", "subject": "Late parcel", "text": text, "rows": rows(3), "query": "orders of last week that were late",
        "limit": 20, "options": {"exact": true, "order": "desc"}
    })
    .to_string()
}
