//! `fingerprint` and `similarity`.

use crate::{stalls, values};
use pyo3::prelude::*;
use runguard_core::detect::stall;
use runguard_core::fingerprint::{Volatile, hex};
use runguard_core::model_question::Asked;
use runguard_core::similarity::{Junk, ratio};

/// Sixteen hex digits that are equal for equal arguments, however they are written. `ignore` names fields that do not matter.
#[pyfunction]
#[pyo3(signature = (args, *, ignore = Vec::new()))]
pub(crate) fn fingerprint(args: &Bound<'_, PyAny>, ignore: Vec<String>) -> PyResult<String> {
    let volatile = if ignore.is_empty() { Volatile::NONE } else { &Volatile::of(ignore) };
    values::fingerprint(args, volatile).map(hex)
}

/// Sixteen hex digits of a result, equal for results that differ only in times, durations and ids.
#[pyfunction]
pub(crate) fn result_fingerprint(result: &Bound<'_, PyAny>) -> PyResult<String> {
    let text = stalls::shown(result)?;
    Ok(result.py().detach(|| hex(stall::result_fingerprint(&text))))
}

/// The JSON text that fingerprints are made from.
#[pyfunction]
pub(crate) fn plain_json(value: &Bound<'_, PyAny>) -> PyResult<String> {
    values::json(value)
}

/// `difflib.SequenceMatcher(None, a, b, autojunk=autojunk).ratio()`.
#[pyfunction]
#[pyo3(signature = (a, b, *, autojunk = false))]
pub(crate) fn similarity(py: Python<'_>, a: &str, b: &str, autojunk: bool) -> f64 {
    py.detach(|| ratio(a, b, if autojunk { Junk::Popular } else { Junk::Keep }))
}

/// The bytes of what a model has written: of all texts in a value, without the names of fields.
#[pyfunction]
pub(crate) fn answer_size(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    values::answer_size(value)
}

/// Why a request to this address is refused where a budget stands, if it is one that nobody can meter.
#[pyfunction]
pub(crate) fn unmetered(path: &str) -> Option<String> {
    runguard_core::prices::unmetered(path)
}

/// The longest answer, how many of them, the members that bound it, and why no limit in dollars can hold it.
type AsksFor = (Option<u64>, u64, Vec<&'static str>, Option<String>);

/// What a request to a provider asks for; None for a path of which nothing is known.
#[pyfunction]
pub(crate) fn asked_of_model(path: &str, model: &str, body: &Bound<'_, PyAny>) -> PyResult<Option<AsksFor>> {
    let asked = Asked::read(path, model, &values::json(body)?);
    Ok(asked.map(|Asked { max_output, choices, bounds, unmetered }| (max_output, choices, bounds, unmetered)))
}

/// Whether a request that ended with an error of these names (its own, and those of what caused it) may have been answered, and billed.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
pub(crate) fn may_be_billed(names: Vec<String>) -> bool {
    runguard_core::prices::may_be_billed(names.iter().map(String::as_str))
}

/// The tokens that a text of so many bytes probably has.
#[pyfunction]
pub(crate) fn usual_tokens(bytes: u64) -> u64 {
    runguard_core::prices::usual_tokens(bytes)
}
