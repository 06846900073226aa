//! Traces of Bedrock agents, read by the core.

use crate::errors;
use crate::lock::locked;
use crate::runs::Run;
use crate::values::sentence;
use pyo3::prelude::*;
use runguard_core::bedrock::{self, AttemptChanges, Preset};
use serde_json::Value;
use std::sync::Mutex;

/// One turn of the user: what its trace says a run is to be asked and told.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct BedrockTurn {
    inner: Mutex<bedrock::Turn>,
}

#[pymethods]
impl BedrockTurn {
    /// `attempts` are the thresholds that are given, as JSON; the others go with the run.
    #[new]
    fn new(run: &Bound<'_, Run>, attempts: &str) -> PyResult<Self> {
        let py = run.py();
        let given = changes(py, attempts)?;
        let turn = run.get().looked_at(|run| bedrock::Turn::of_run(run, given))?;
        Ok(Self { inner: Mutex::new(turn.map_err(|problem| errors::invalid_input(py, sentence(&problem)))?) })
    }

    /// After how many attempts in vain the run is ended, as JSON.
    #[getter]
    fn attempts(&self) -> PyResult<String> {
        locked(&self.inner, |turn| serde_json::to_string(&turn.settings()).unwrap_or_default())
    }

    /// The steps that one event of the stream, as JSON, leads to; as JSON.
    fn hear(&self, event: &str) -> PyResult<String> {
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        let steps = locked(&self.inner, |turn| turn.hear(&event))?;
        Ok(serde_json::to_string(&steps).unwrap_or_else(|_| "[]".to_owned()))
    }
}

/// What holds for a kind of agent beside the options of a run that are given, by name, and the thresholds that are, as JSON; as JSON.
#[pyfunction]
pub(crate) fn bedrock_preset(py: Python<'_>, name: &str, given: Vec<String>, attempts: &str) -> PyResult<String> {
    let preset = Preset::from_name(name).map_err(|problem| errors::invalid_input(py, sentence(&problem)))?;
    Ok(serde_json::to_string(&preset.beside(&given, changes(py, attempts)?)).unwrap_or_default())
}

fn changes(py: Python<'_>, attempts: &str) -> PyResult<AttemptChanges> {
    serde_json::from_str(attempts).map_err(|problem| errors::invalid_input(py, format!("attempts cannot be read: {problem}.")))
}
