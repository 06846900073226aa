//! The tracker of tool calls, and the cache of a recipe's results.

use crate::boundary::{DONE, GONE, TRIPPED, Table, answer, overlaid, refuse, with_texts};
use runguard_core::detect::tool_calls::{CallOutcome, RecipeCache, ToolExecutionTracker, TrackerSettings};
use serde::Serialize;
use serde_json::Value;
use std::cell::RefCell;

thread_local! {
    static TRACKERS: RefCell<Table<ToolExecutionTracker>> = const { RefCell::new(Table::new()) };
    /// The results themselves stay in JavaScript; here they are numbers.
    static CACHES: RefCell<Table<RecipeCache<u32>>> = const { RefCell::new(Table::new()) };
}

/// 0 and a reason in the output when the settings are refused.
#[unsafe(no_mangle)]
pub extern "C" fn tools_new(changes: usize) -> u32 {
    let made = with_texts([changes], |[changes]| {
        let settings: TrackerSettings = overlaid(&TrackerSettings::default(), changes)?;
        ToolExecutionTracker::new(settings).map_err(|bad| bad.to_string())
    });
    match made {
        Ok(tracker) => TRACKERS.with_borrow_mut(|trackers| trackers.add(tracker)),
        Err(problem) => {
            refuse(problem);
            0
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn tools_free(handle: u32) {
    TRACKERS.with_borrow_mut(|trackers| trackers.remove(handle));
}

/// Says why a call should not run.
pub(crate) fn skipped(status: i32, reason_code: &str, message: &str, count: u32, limit: u32) -> i32 {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Skipped<'a> {
        reason_code: &'a str,
        message: &'a str,
        count: u32,
        limit: u32,
    }
    answer(status, &Skipped { reason_code, message, count, limit })
}

#[unsafe(no_mangle)]
pub extern "C" fn tools_should_skip(handle: u32, tool: usize, args: usize) -> i32 {
    with_call(handle, tool, args, |tracker, tool, args| match tracker.should_skip(tool, args) {
        Ok(None) => DONE,
        Ok(Some(skip)) => skipped(TRIPPED, skip.reason.code(), &skip.message, skip.count, skip.limit),
        Err(problem) => refuse(problem),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn tools_record(handle: u32, tool: usize, args: usize, failed: u32) -> i32 {
    let outcome = if failed == 0 { CallOutcome::Completed } else { CallOutcome::Failed };
    with_call(handle, tool, args, |tracker, tool, args| tracker.record(tool, args, outcome).map_or_else(refuse, |()| DONE))
}

#[unsafe(no_mangle)]
pub extern "C" fn tools_new_turn(handle: u32) -> i32 {
    TRACKERS.with_borrow_mut(|trackers| {
        trackers.get(handle).map_or(GONE, |tracker| {
            tracker.new_turn();
            DONE
        })
    })
}

fn with_call(handle: u32, tool: usize, args: usize, operation: impl FnOnce(&mut ToolExecutionTracker, &str, &Value) -> i32) -> i32 {
    with_texts([tool, args], |[tool, args]| {
        TRACKERS.with_borrow_mut(|trackers| match (trackers.get(handle), serde_json::from_str(args)) {
            (None, _) => GONE,
            (_, Err(problem)) => refuse(problem),
            (Some(tracker), Ok(args)) => operation(tracker, tool, &args),
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn recipe_new() -> u32 {
    CACHES.with_borrow_mut(|caches| caches.add(RecipeCache::new()))
}

#[unsafe(no_mangle)]
pub extern "C" fn recipe_free(handle: u32) {
    CACHES.with_borrow_mut(|caches| caches.remove(handle));
}

/// The number of the result, 0 when there is none; or a status, as a number below 0.
#[unsafe(no_mangle)]
pub extern "C" fn recipe_get(handle: u32, step: usize, action: usize, args: usize) -> f64 {
    let mut number = 0;
    let status = with_cache(handle, step, action, args, |cache, step, action, args| match cache.get(step, action, args) {
        Ok(found) => {
            number = found.copied().unwrap_or(0);
            DONE
        }
        Err(problem) => refuse(problem),
    });
    if status == DONE { f64::from(number) } else { -f64::from(status) }
}

/// How many results are kept now; or a status, as a number below 0.
#[unsafe(no_mangle)]
pub extern "C" fn recipe_put(handle: u32, step: usize, action: usize, args: usize, number: u32) -> f64 {
    let mut kept = 0;
    let status = with_cache(handle, step, action, args, |cache, step, action, args| match cache.put(step, action, args, number) {
        Ok(()) => {
            kept = cache.len();
            DONE
        }
        Err(problem) => refuse(problem),
    });
    if status == DONE { kept as f64 } else { -f64::from(status) }
}

#[unsafe(no_mangle)]
pub extern "C" fn recipe_clear(handle: u32) -> i32 {
    CACHES.with_borrow_mut(|caches| {
        caches.get(handle).map_or(GONE, |cache| {
            cache.new_recipe();
            DONE
        })
    })
}

fn with_cache(
    handle: u32,
    step: usize,
    action: usize,
    args: usize,
    operation: impl FnOnce(&mut RecipeCache<u32>, &str, &str, &Value) -> i32,
) -> i32 {
    with_texts([step, action, args], |[step, action, args]| {
        CACHES.with_borrow_mut(|caches| match (caches.get(handle), serde_json::from_str(args)) {
            (None, _) => GONE,
            (_, Err(problem)) => refuse(problem),
            (Some(cache), Ok(args)) => operation(cache, step, action, &args),
        })
    })
}
