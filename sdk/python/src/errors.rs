//! Raises the exception classes of `runguard.errors`, which are written in Python so that they pickle and subclass well.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use runguard_core::breaker::EndpointRefused;
use runguard_core::budget::{BudgetExceeded, Unit};
use runguard_core::detect::stall::StallRule;
use runguard_core::run::{Trip, Unpriced, What};

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
class!(stall_detected_class, "StallDetectedError");
class!(tool_limit_class, "ToolLimitError");
class!(time_limit_class, "TimeLimitError");

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

/// The error that says why a run was stopped.
pub(crate) fn trip(py: Python<'_>, trip: &Trip) -> PyErr {
    let fields = with_fields(py, |fields| {
        match &trip.what {
            What::Loop { cycle, repeats } => {
                fields.set_item("cycle", PyTuple::new(py, cycle)?)?;
                fields.set_item("repeats", repeats)?;
            }
            What::Stall { rule, count, nudge } => {
                fields.set_item("rule", rule.map_or("", StallRule::code))?;
                fields.set_item("count", count)?;
                fields.set_item("nudge", nudge)?;
            }
            What::Budget { unit, spent, limit } => {
                for (name, amount) in [("spent", *spent), ("limit", *limit)] {
                    match unit {
                        Unit::Usd => fields.set_item(name, amount)?,
                        Unit::Tokens | Unit::Calls => fields.set_item(name, amount as u64)?,
                    }
                }
                fields.set_item("unit", unit.as_str())?;
            }
            What::Time { limit } => fields.set_item("limit", limit)?,
            What::Calls { tool, limit } => {
                fields.set_item("tool", tool)?;
                fields.set_item("limit", limit)?;
            }
        }
        fields.set_item("reason", &trip.reason)
    });
    let class = match &trip.what {
        What::Loop { .. } => loop_detected_class(py),
        What::Stall { .. } => stall_detected_class(py),
        What::Budget { .. } => budget_exceeded_class(py),
        What::Calls { .. } => tool_limit_class(py),
        What::Time { .. } => time_limit_class(py),
    };
    raise(class, &trip.message, fields)
}

pub(crate) fn budget_exceeded(py: Python<'_>, exceeded: &BudgetExceeded) -> PyErr {
    trip(py, &Trip::from(exceeded))
}

pub(crate) fn circuit_open(py: Python<'_>, refused: &EndpointRefused) -> PyErr {
    let fields = with_fields(py, |fields| {
        fields.set_item("endpoint", &refused.endpoint)?;
        fields.set_item("retry_after_seconds", refused.retry_after_seconds)?;
        fields.set_item("reason", &refused.reason)
    });
    raise(circuit_open_class(py), &refused.message, fields)
}

pub(crate) fn unknown_model(py: Python<'_>, unpriced: &Unpriced) -> PyErr {
    let fields = with_fields(py, |fields| fields.set_item("model", &unpriced.model));
    raise(unknown_model_class(py), &unpriced.message, fields)
}

/// A lock is only poisoned by a panic in the core, which is a bug there.
pub(crate) fn broken() -> PyErr {
    PyRuntimeError::new_err("A detector failed inside and cannot be used any more. Make a new one, and please report this.")
}

/// Only whoever got no answer knows why, and tells it.
pub(crate) fn unanswered() -> PyErr {
    PyRuntimeError::new_err("The service did not answer.")
}
