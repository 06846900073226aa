//! Traces of Bedrock agents, read by the core.

use crate::errors;
use crate::lock::locked;
use crate::values::sentence;
use pyo3::prelude::*;
use runguard_core::bedrock::{self, AttemptSettings, Preset};
use serde_json::Value;
use std::sync::Mutex;

/// One turn of the user: what its trace says a run is to be asked and told.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct BedrockTurn {
    inner: Mutex<bedrock::Turn>,
}

#[pymethods]
impl BedrockTurn {
    /// `attempts` are the thresholds, as JSON.
    #[new]
    #[pyo3(signature = (attempts = "{}"))]
    fn new(py: Python<'_>, attempts: &str) -> PyResult<Self> {
        let settings: AttemptSettings =
            serde_json::from_str(attempts).map_err(|problem| errors::invalid_input(py, format!("attempts cannot be read: {problem}.")))?;
        settings.check().map_err(|problem| errors::invalid_input(py, sentence(&problem)))?;
        Ok(Self { inner: Mutex::new(bedrock::Turn::new(settings)) })
    }

    /// The steps that one event of the stream, as JSON, leads to; as JSON.
    fn hear(&self, event: &str) -> PyResult<String> {
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        let steps = locked(&self.inner, |turn| turn.hear(&event))?;
        Ok(serde_json::to_string(&steps).unwrap_or_else(|_| "[]".to_owned()))
    }
}

/// What holds for a kind of agent, as JSON.
#[pyfunction]
pub(crate) fn bedrock_preset(py: Python<'_>, name: &str) -> PyResult<String> {
    let preset = Preset::from_name(name).map_err(|problem| errors::invalid_input(py, sentence(&problem)))?;
    Ok(serde_json::to_string(&preset.settings()).unwrap_or_default())
}
