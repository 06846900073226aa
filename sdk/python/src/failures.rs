//! Calls that failed for good, for stores that keep the latest calls of a session as texts.

use crate::values;
use pyo3::prelude::*;
use runguard_core::detect::actions::Action;
use runguard_core::detect::failures::{ActionReply, CallHistory, CallResult};
use serde_json::{Map, Value};

/// A signature that is none is that of no call.
fn number(signature: &str) -> u64 {
    u64::from_str_radix(signature, 16).unwrap_or_default()
}

/// The calls of a session after one with this signature has begun, and why it must not be made, or None.
#[pyfunction]
pub(crate) fn call_begun(calls: Vec<String>, action: &str, signature: &str) -> (Vec<String>, Option<String>) {
    let mut history = CallHistory::read(&calls);
    let refused = history.begin(action, number(signature));
    (history.texts(), refused)
}

/// The calls of a session after it is known what came of the one with this signature.
#[pyfunction]
pub(crate) fn call_finished(calls: Vec<String>, signature: &str, failed: bool) -> Vec<String> {
    let mut history = CallHistory::read(&calls);
    history.finish(number(signature), CallResult::of(failed));
    history.texts()
}

/// Whether what an action's Lambda function gives tells of a failure. What cannot be read does not.
#[pyfunction]
pub(crate) fn reply_failed(given: &Bound<'_, PyAny>) -> bool {
    let text = values::json(given).unwrap_or_default();
    let reply = ActionReply::of_function(&serde_json::from_str(&text).unwrap_or_default());
    reply.is_some_and(|reply| reply.failure.is_some())
}

/// Name and arguments of an action as Bedrock wrote it, the latter as JSON.
#[pyfunction]
pub(crate) fn action_call(action: &Bound<'_, PyAny>) -> PyResult<(String, String)> {
    let read: Map<String, Value> = serde_json::from_str(&values::json(action)?).unwrap_or_default();
    let Action { name, arguments, .. } = Action::read(&read);
    Ok((name, arguments.to_string()))
}
