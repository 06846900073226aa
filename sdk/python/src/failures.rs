//! Calls that failed for good, for stores that keep the newest call of a session as its signature and its failures.

use crate::values;
use pyo3::prelude::*;
use runguard_core::detect::actions::Action;
use runguard_core::detect::failures::{CallResult, LastCall, MAX_FAILURES, refusal};
use runguard_core::fingerprint::hex;
use serde_json::{Map, Value};

type Kept = (String, u32);

/// A signature that is none is that of no call.
fn number(signature: &str) -> u64 {
    u64::from_str_radix(signature, 16).unwrap_or_default()
}

fn changed((signature, failures): &Kept, change: impl FnOnce(&mut LastCall)) -> Kept {
    let mut last = LastCall { call: number(signature), failures: *failures };
    change(&mut last);
    (hex(last.call), last.failures)
}

/// The newest call after one with this signature has begun.
#[pyfunction]
pub(crate) fn call_begun(last: Kept, signature: &str) -> Kept {
    changed(&last, |last| last.begin(number(signature)))
}

/// The newest call after it is known what came of the one with this signature.
#[pyfunction]
pub(crate) fn call_finished(last: Kept, signature: &str, failed: bool) -> Kept {
    changed(&last, |last| last.finish(number(signature), CallResult::of(failed)))
}

/// Why an action that failed so often in a row must not run again, or None.
#[pyfunction]
pub(crate) fn call_refusal(action: &str, failures: u32) -> Option<String> {
    (failures >= MAX_FAILURES).then(|| refusal(action, failures, MAX_FAILURES))
}

/// Name and arguments of an action as Bedrock wrote it, the latter as JSON.
#[pyfunction]
pub(crate) fn action_call(action: &Bound<'_, PyAny>) -> PyResult<(String, String)> {
    let read: Map<String, Value> = serde_json::from_str(&values::json(action)?).unwrap_or_default();
    let Action { name, arguments, .. } = Action::read(&read);
    Ok((name, arguments.to_string()))
}
