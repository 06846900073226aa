//! The loop detector.

use crate::boundary::{DONE, GONE, Table, handle_of, millis, seconds, tripped, whole, with_texts};
use runguard_core::detect::loops::{LoopDetected, LoopDetector, LoopSettings};
use runguard_core::run::{Loops, Trip};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

thread_local! {
    /// Runs hold on to those they share.
    static DETECTORS: RefCell<Table<Arc<Mutex<LoopDetector>>>> = const { RefCell::new(Table::new()) };
}

fn found(found: &LoopDetected) -> i32 {
    tripped(&Trip::from(found))
}

/// There is one thread, so it is never waited for.
fn locked(detector: &Mutex<LoopDetector>) -> MutexGuard<'_, LoopDetector> {
    detector.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same detector, for a run.
pub(crate) fn shared(handle: u32) -> Option<Loops> {
    DETECTORS.with_borrow_mut(|detectors| detectors.get(handle).map(|detector| Loops::InProcess(Arc::clone(detector))))
}

/// 0 and a reason in the output when the settings are refused. A number below 0 stands for a setting left out.
#[unsafe(no_mangle)]
pub extern "C" fn loop_new(repeats: f64, max_cycle_len: f64, window_seconds: f64, max_calls: f64) -> u32 {
    let made = (|| {
        let (repeats, max_cycle_len) = (whole("repeats", repeats)?, whole("maxCycleLen", max_cycle_len)?);
        let (window, max_calls) = (seconds("windowSeconds", window_seconds)?, whole("maxCalls", max_calls)?);
        LoopDetector::new(LoopSettings::given(repeats, max_cycle_len, window, max_calls)).map_err(|bad| bad.to_string())
    })();
    handle_of(&DETECTORS, made.map(|detector| Arc::new(Mutex::new(detector))))
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_free(handle: u32) {
    DETECTORS.with_borrow_mut(|detectors| detectors.remove(handle));
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_record(handle: u32, session: usize, name: usize, now: f64) -> i32 {
    DETECTORS.with_borrow_mut(|detectors| {
        let Some(detector) = detectors.get(handle) else { return GONE };
        with_texts([session, name], |[session, name]| {
            locked(detector).record(session, name, millis(now)).map_or_else(|loops| found(&loops), |()| DONE)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_check(handle: u32, session: usize, name: usize, now: f64) -> i32 {
    DETECTORS.with_borrow_mut(|detectors| {
        let Some(detector) = detectors.get(handle) else { return GONE };
        with_texts([session, name], |[session, name]| {
            locked(detector).check(session, name, millis(now)).map_or(DONE, |loops| found(&loops))
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_reset(handle: u32, session: usize) -> i32 {
    DETECTORS.with_borrow_mut(|detectors| {
        let Some(detector) = detectors.get(handle) else { return GONE };
        with_texts([session], |[session]| locked(detector).reset(session));
        DONE
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_reset_all(handle: u32) -> i32 {
    DETECTORS.with_borrow_mut(|detectors| {
        let Some(detector) = detectors.get(handle) else { return GONE };
        locked(detector).reset_all();
        DONE
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn loop_sessions(handle: u32) -> f64 {
    DETECTORS.with_borrow_mut(|detectors| detectors.get(handle).map_or(-1.0, |detector| locked(detector).sessions() as f64))
}
