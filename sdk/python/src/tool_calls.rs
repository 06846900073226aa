//! `ToolExecutionTracker` and `RecipeCache`.

use crate::lock::locked;
use crate::{errors, values};
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use runguard_core::detect::tool_calls::{self, CallOutcome, InvalidCall, TrackerSettings};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A call that should not run, and what to tell the model instead of its result.
#[pyclass(frozen, get_all, module = "runguard._core")]
pub(crate) struct Skip {
    /// `tool_limit`, `exact_duplicate` or `similar_query`.
    reason_code: String,
    message: String,
    /// How often the tool has run in this turn.
    count: u32,
    /// How often it may run in one turn.
    limit: u32,
}

#[pymethods]
impl Skip {
    #[new]
    #[pyo3(signature = (reason_code, message, count = 0, limit = 0))]
    pub(crate) fn new(reason_code: String, message: String, count: u32, limit: u32) -> Self {
        Self { reason_code, message, count, limit }
    }

    fn __repr__(&self) -> String {
        format!("Skip('{}', {:?})", self.reason_code, self.message)
    }

    fn __str__(&self) -> &str {
        &self.message
    }
}

/// Tool calls of one turn: how often, the same again, nearly the same again.
#[pyclass(subclass, frozen, module = "runguard._core")]
pub(crate) struct ToolExecutionTracker {
    tracker: Mutex<tool_calls::ToolExecutionTracker>,
}

#[pymethods]
impl ToolExecutionTracker {
    #[new]
    #[pyo3(signature = (limits = None, default_limit = None, search_tools = None, threshold = None, plain_ratio = false))]
    fn new(
        py: Python<'_>,
        limits: Option<BTreeMap<String, u32>>,
        default_limit: Option<u32>,
        search_tools: Option<Vec<String>>,
        threshold: Option<f64>,
        plain_ratio: bool,
    ) -> PyResult<Self> {
        let mut settings = TrackerSettings::default();
        settings.default_limit = default_limit.unwrap_or(settings.default_limit);
        settings.threshold = threshold.unwrap_or(settings.threshold);
        settings.plain_ratio = plain_ratio;
        settings.limits.extend(limits.into_iter().flatten());
        if let Some(tools) = search_tools {
            settings.search_tools = tools.into_iter().collect();
        }
        let tracker = tool_calls::ToolExecutionTracker::new(settings).map_err(|bad| errors::invalid_input(py, values::sentence(&bad)))?;
        Ok(Self { tracker: Mutex::new(tracker) })
    }

    /// None: run it, then `record` it. Otherwise why not, with a message for the model.
    #[pyo3(signature = (tool, args = None))]
    fn should_skip(&self, py: Python<'_>, tool: &str, args: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Skip>> {
        let args = arguments(args)?;
        let skip = locked(&self.tracker, |tracker| tracker.should_skip(tool, &args))?
            .map_err(|bad| errors::invalid_input(py, values::sentence(&bad)))?;
        Ok(skip.map(|skip| Skip::new(skip.reason.code().to_owned(), skip.message, skip.count, skip.limit)))
    }

    /// Counts a call that ran. One that gave an error may be tried again, up to the limit.
    #[pyo3(signature = (tool, args = None, result = None, error = None))]
    fn record(
        &self,
        py: Python<'_>,
        tool: &str,
        args: Option<&Bound<'_, PyAny>>,
        result: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let args = arguments(args)?;
        let outcome = if has_failed(result, error)? { CallOutcome::Failed } else { CallOutcome::Completed };
        locked(&self.tracker, |tracker| tracker.record(tool, &args, outcome))?
            .map_err(|bad| errors::invalid_input(py, values::sentence(&bad)))
    }

    /// A message of the user: all counts start anew.
    fn new_turn(&self) -> PyResult<()> {
        locked(&self.tracker, tool_calls::ToolExecutionTracker::new_turn)
    }
}

/// Whether a call failed: an error may be anything but False, and a result may be an exception.
pub(crate) fn has_failed(result: Option<&Bound<'_, PyAny>>, error: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
    match error {
        Some(flag) if flag.is_exact_instance_of::<PyBool>() => flag.is_truthy(),
        Some(_) => Ok(true),
        None => Ok(result.is_some_and(PyAnyMethods::is_instance_of::<PyBaseException>)),
    }
}

/// Results of a recipe's actions, so that a step that is run again does not act again.
///
/// The native cache holds numbers, a dictionary the results under them: when a result goes, Python code may run, which must
/// not happen under the lock.
#[pyclass(subclass, frozen, module = "runguard._core")]
pub(crate) struct RecipeCache {
    numbers: Mutex<(u64, tool_calls::RecipeCache<u64>)>,
    results: Py<PyDict>,
}

#[pymethods]
impl RecipeCache {
    #[new]
    fn new(py: Python<'_>) -> Self {
        Self { numbers: Mutex::default(), results: PyDict::new(py).unbind() }
    }

    /// The result of the same action with the same arguments in the same step, or None.
    #[pyo3(signature = (step, action, args = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        step: &Bound<'py, PyAny>,
        action: &str,
        args: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (step, args) = (step_name(step)?, arguments(args)?);
        let found = locked(&self.numbers, |(_, cache)| cache.get(&step, action, &args).map(Option::<&u64>::copied))?;
        match found.map_err(|bad| errors::invalid_input(py, values::sentence(&bad)))? {
            Some(number) => self.results.bind(py).get_item(number),
            None => Ok(None),
        }
    }

    /// Keeps a result. Put in what succeeded: what is in here is not run again.
    #[pyo3(signature = (step, action, args, result))]
    fn put(
        &self,
        py: Python<'_>,
        step: &Bound<'_, PyAny>,
        action: &str,
        args: Option<&Bound<'_, PyAny>>,
        result: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (step, args) = (step_name(step)?, arguments(args)?);
        let put = locked(&self.numbers, |(last, cache)| {
            let old = cache.get(&step, action, &args)?.copied();
            *last += 1;
            cache.put(&step, action, &args, *last)?;
            Ok((old, *last, cache.len()))
        })?;
        let (old, number, kept) = put.map_err(|bad: InvalidCall| errors::invalid_input(py, values::sentence(&bad)))?;
        let results = self.results.bind(py);
        results.set_item(number, result)?;
        if let Some(old) = old {
            results.del_item(old)?;
        }
        // What the cache forgot was the oldest, and a dictionary is in the order things came.
        while results.len() > kept {
            let Some(oldest) = results.try_iter()?.next() else { break };
            results.del_item(oldest?)?;
        }
        Ok(())
    }

    /// Another recipe, or the same one from its start: nothing has run yet.
    fn new_recipe(&self, py: Python<'_>) -> PyResult<()> {
        locked(&self.numbers, |(_, cache)| cache.new_recipe())?;
        self.results.bind(py).clear();
        Ok(())
    }

    fn __len__(&self) -> PyResult<usize> {
        locked(&self.numbers, |(_, cache)| cache.len())
    }
}

/// Steps are numbered or named.
fn step_name(step: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(step.str()?.to_string_lossy().into_owned())
}

pub(crate) fn arguments(args: Option<&Bound<'_, PyAny>>) -> PyResult<Value> {
    let Some(args) = args else { return Ok(Value::Null) };
    let text = values::json(args)?;
    args.py().detach(|| serde_json::from_str(&text)).map_err(|error| errors::invalid_input(args.py(), values::sentence(&error)))
}
