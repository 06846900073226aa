//! The one way to a detector's state.

use crate::errors;
use pyo3::PyResult;
use std::sync::Mutex;

/// Works on the state alone. No Python may be called in `work`: the interpreter could turn to another thread, which would
/// then wait for this lock and keep the interpreter.
pub(crate) fn locked<S, T>(state: &Mutex<S>, work: impl FnOnce(&mut S) -> T) -> PyResult<T> {
    state.lock().map(|mut state| work(&mut state)).map_err(|_| errors::broken())
}
