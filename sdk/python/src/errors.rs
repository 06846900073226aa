//! Raises the exception classes of `runguard.errors`, which are written in Python so that they pickle and subclass well.

use crate::values::sentence;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use runguard_core::breaker::CircuitOpen;
use runguard_core::budget::{BudgetExceeded, Unit};
use runguard_core::detect::loops::{LoopDetected, LoopKind};
use runguard_core::prices::UnknownModelError;

macro_rules! class {
    ($function:ident, $name:literal) => {
        fn $function(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
            static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            CLASS.import(py, "runguard.errors", $name)
        }
    };
}

class!(invalid_input_class, "InvalidInputError");
class!(budget_exceeded_class, "BudgetExceededError");
class!(circuit_open_class, "CircuitOpenError");
class!(unknown_model_class, "UnknownModelError");
class!(loop_detected_class, "LoopDetectedError");

/// The error to raise; when it cannot be built, the error that says why.
fn raise<'py>(class: PyResult<&Bound<'py, PyType>>, message: &str, fields: PyResult<Bound<'py, PyDict>>) -> PyErr {
    match class.and_then(|class| class.call((message,), Some(&fields?))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

pub(crate) fn invalid_input(py: Python<'_>, message: impl AsRef<str>) -> PyErr {
    raise(invalid_input_class(py), message.as_ref(), Ok(PyDict::new(py)))
}

fn with_fields<'py>(py: Python<'py>, fill: impl FnOnce(&Bound<'py, PyDict>) -> PyResult<()>) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fill(&fields).map(|()| fields)
}

pub(crate) fn loop_detected(py: Python<'_>, found: &LoopDetected) -> PyErr {
    let reason = match found.kind {
        LoopKind::Cycle => "loop_detected",
        LoopKind::Ceiling { .. } => "call_ceiling",
    };
    let fields = with_fields(py, |fields| {
        fields.set_item("cycle", &found.pattern)?;
        fields.set_item("repeats", found.repeats)?;
        fields.set_item("reason", reason)
    });
    raise(loop_detected_class(py), &found.to_string(), fields)
}

pub(crate) fn budget_exceeded(py: Python<'_>, exceeded: &BudgetExceeded) -> PyErr {
    let fields = with_fields(py, |fields| {
        match exceeded.unit {
            Unit::Usd => {
                fields.set_item("spent", exceeded.spent_value())?;
                fields.set_item("limit", exceeded.limit_value())?;
            }
            Unit::Tokens | Unit::Calls => {
                fields.set_item("spent", exceeded.spent)?;
                fields.set_item("limit", exceeded.limit)?;
            }
        }
        fields.set_item("unit", exceeded.unit.as_str())?;
        fields.set_item("reason", if exceeded.unit == Unit::Calls { "call_cap_reached" } else { "budget_exceeded" })
    });
    let message = sentence(exceeded);
    // Spent to the last cent is not yet too much.
    let message = if exceeded.spent == exceeded.limit { message.replace(" is exceeded:", " is used up:") } else { message };
    raise(budget_exceeded_class(py), &message, fields)
}

pub(crate) fn circuit_open(py: Python<'_>, endpoint: &str, refused: &CircuitOpen) -> PyErr {
    let fields = with_fields(py, |fields| {
        fields.set_item("endpoint", endpoint)?;
        fields.set_item("retry_after_seconds", refused.retry_after.map(|span| span.as_millis() as f64 / 1000.0))?;
        fields.set_item("reason", if refused.just_tripped { "circuit_just_tripped" } else { "circuit_open" })
    });
    raise(circuit_open_class(py), &refused.message, fields)
}

pub(crate) fn unknown_model(py: Python<'_>, error: &UnknownModelError) -> PyErr {
    let fields = with_fields(py, |fields| fields.set_item("model", &error.model));
    raise(unknown_model_class(py), &sentence(error), fields)
}

/// A lock is only poisoned by a panic in the core, which is a bug there.
pub(crate) fn broken() -> PyErr {
    PyRuntimeError::new_err("A detector failed inside and cannot be used any more. Make a new one, and please report this.")
}
