//! The loop detector.

use crate::boundary::{DONE, GONE, TRIPPED, Table, answer, millis, refuse, seconds, whole, with_texts};
use runguard_core::detect::loops::{LoopDetected, LoopDetector, LoopKind, LoopSettings};
use serde::Serialize;
use std::cell::RefCell;

thread_local! {
    static DETECTORS: RefCell<Table<LoopDetector>> = const { RefCell::new(Table::new()) };
}

#[derive(Serialize)]
struct Trip {
    message: String,
    reason: &'static str,
    cycle: Vec<String>,
    repeats: u32,
}

fn tripped(found: LoopDetected) -> i32 {
    let reason = match found.kind {
        LoopKind::Cycle => "loop_detected",
        LoopKind::Ceiling { .. } => "call_ceiling_reached",
    };
    answer(TRIPPED, &Trip { message: found.to_string(), reason, repeats: found.repeats, cycle: found.pattern })
}

/// 0 and a reason in the output when the settings are refused. A number below 0 stands for a setting left out.
#[unsafe(no_mangle)]
pub extern "C" fn loop_new(repeats: f64, max_cycle_len: f64, window_seconds: f64, max_calls: f64) -> u32 {
    let made = (|| {
        let settings = LoopSettings {
            repeats: whole("repeats", repeats)?.unwrap_or(0),
            max_cycle_len: whole("maxCycleLen", max_cycle_len)?.unwrap_or(0),
            window: seconds("windowSeconds", window_seconds)?,
            max_calls: whole("maxCalls", max_calls)?,
        };
        LoopDetector::new(settings).map_err(|bad| bad.to_string())
    })();
    match made {
        Ok(detector) => DETECTORS.with_borrow_mut(|detectors| detectors.add(detector)),
        Err(problem) => {
            refuse(problem);
            0
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_free(handle: u32) {
    DETECTORS.with_borrow_mut(|detectors| detectors.remove(handle));
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_record(handle: u32, session: usize, name: usize, now: f64) -> i32 {
    DETECTORS.with_borrow_mut(|detectors| {
        let Some(detector) = detectors.get(handle) else { return GONE };
        with_texts([session, name], |[session, name]| detector.record(session, name, millis(now)).map_or_else(tripped, |()| DONE))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_check(handle: u32, session: usize, name: usize, now: f64) -> i32 {
    DETECTORS.with_borrow_mut(|detectors| {
        let Some(detector) = detectors.get(handle) else { return GONE };
        with_texts([session, name], |[session, name]| detector.check(session, name, millis(now)).map_or(DONE, tripped))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_reset(handle: u32, session: usize) -> i32 {
    DETECTORS.with_borrow_mut(|detectors| {
        let Some(detector) = detectors.get(handle) else { return GONE };
        with_texts([session], |[session]| detector.reset(session));
        DONE
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_reset_all(handle: u32) -> i32 {
    DETECTORS.with_borrow_mut(|detectors| {
        let Some(detector) = detectors.get(handle) else { return GONE };
        detector.reset_all();
        DONE
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_sessions(handle: u32) -> f64 {
    DETECTORS.with_borrow_mut(|detectors| detectors.get(handle).map_or(-1.0, |detector| detector.sessions() as f64))
}
