//! `StallDetector` and its `Verdict`.

use crate::lock::locked;
use crate::{clock, errors, values};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};
use runguard_core::detect::stall::{self, CallEffect, Preset, StallSessions, StallSettings, Step, VolatileResults, result_fingerprint};
use runguard_core::fingerprint::Volatile;
use runguard_core::limits::InvalidSetting;
use runguard_core::run::{Failure, Gave, Stalls};
use serde_json::Value;
use std::sync::{Arc, Mutex};

const LADDERS: [&str; 9] = ["identical", "cycle", "same_error", "messages", "unmoved", "put_back", "same_result", "failing", "long_run"];

/// What the detector makes of a step.
#[pyclass(frozen, get_all, module = "runguard._core")]
pub(crate) struct Verdict {
    /// `go_on`, `observe`, `steer`, `block` or `stop`.
    rung: String,
    /// Which sign was seen, or None.
    rule: Option<String>,
    /// What was counted: calls in a row, rounds, errors; for novelty the new pairs in the window.
    count: u32,
    /// A sentence for the model; empty when there is nothing to say.
    nudge: String,
    /// A sentence for the log; empty while the run makes progress.
    message: String,
}

#[pymethods]
impl Verdict {
    #[new]
    #[pyo3(signature = (rung = "go_on".to_owned(), rule = None, count = 0, nudge = String::new(), message = String::new()))]
    fn new(rung: String, rule: Option<String>, count: u32, nudge: String, message: String) -> Self {
        Self { rung, rule, count, nudge, message }
    }

    fn __repr__(&self) -> String {
        let rule = self.rule.as_ref().map_or_else(|| "None".to_owned(), |rule| format!("'{rule}'"));
        format!("Verdict(rung='{}', rule={rule}, count={})", self.rung, self.count)
    }
}

impl Verdict {
    pub(crate) fn of(verdict: stall::Verdict, tool: &str) -> Self {
        Self {
            rung: verdict.rung.code().to_owned(),
            rule: verdict.rule.map(|rule| rule.code().to_owned()),
            count: verdict.count,
            nudge: verdict.nudge(tool),
            message: verdict.message(),
        }
    }
}

/// Notices that calls go on but bring nothing new. Any number of runs, told apart by `session_id`.
#[pyclass(subclass, frozen, module = "runguard._core")]
pub(crate) struct StallDetector {
    runs: Arc<Mutex<StallSessions>>,
}

#[pymethods]
impl StallDetector {
    #[new]
    #[pyo3(signature = (preset = "coding", **thresholds))]
    fn new(py: Python<'_>, preset: &str, thresholds: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let refused = |bad: InvalidSetting| errors::invalid_input(py, values::sentence(&bad));
        let preset = Preset::from_name(preset).map_err(refused)?;
        let settings = match thresholds {
            Some(thresholds) => changed(preset.settings(), thresholds)?,
            None => preset.settings(),
        };
        let runs = StallSessions::new(settings).map_err(refused)?;
        Ok(Self { runs: Arc::new(Mutex::new(runs)) })
    }

    /// Takes a call with what it gave. Never raises a trip; the verdict says what to do.
    #[pyo3(signature = (tool, args = None, result = None, *, error = None, round = None, tokens = 0, session_id = ""))]
    fn observe(
        &self,
        py: Python<'_>,
        tool: &str,
        args: Option<&Bound<'_, PyAny>>,
        result: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        round: Option<u64>,
        tokens: u64,
        session_id: &str,
    ) -> PyResult<Verdict> {
        if tool.is_empty() {
            return Err(errors::invalid_input(py, "tool is empty: all calls without a name would count as one."));
        }
        let (args, effect) = args.map_or(Ok((0, CallEffect::Unknown)), |args| values::arguments(tool, args, Volatile::NONE))?;
        let volatile = locked(&self.runs, |runs| runs.settings().volatile.clone())?;
        let outcome = Outcome::read(py, result, error, &volatile)?;
        let Gave { result, error, effect, .. } = outcome.gave(effect);
        let step = Step { tool, args, result, error: error.map(|error| error.fingerprint), round, effect };
        let now = clock::now();
        let observe = |runs: &mut StallSessions| {
            runs.spent(session_id, tokens, now);
            runs.observe(session_id, step, now)
        };
        Ok(Verdict::of(locked(&self.runs, observe)?, tool))
    }

    /// Takes what the model said without calling anything.
    #[pyo3(signature = (text, *, session_id = ""))]
    fn message(&self, py: Python<'_>, text: &str, session_id: &str) -> PyResult<Verdict> {
        let fingerprint = py.detach(|| result_fingerprint(text));
        let now = clock::now();
        Ok(Verdict::of(locked(&self.runs, |runs| runs.message(session_id, fingerprint, now))?, ""))
    }

    /// A person has spoken: the run starts anew.
    #[pyo3(signature = (session_id = ""))]
    fn user_message(&self, session_id: &str) -> PyResult<()> {
        locked(&self.runs, |runs| runs.user_message(session_id))
    }

    /// Runs that are remembered.
    #[getter]
    fn sessions(&self) -> PyResult<usize> {
        locked(&self.runs, |runs| runs.len())
    }
}

impl StallDetector {
    /// The same detector, for a run.
    pub(crate) fn shared(&self) -> Stalls {
        Stalls::InProcess(Arc::clone(&self.runs))
    }
}

/// What a call gave, as it is compared.
#[derive(Default)]
pub(crate) struct Outcome {
    result: Option<u64>,
    error: Option<(String, u64)>,
}

impl Outcome {
    /// An error may be a text, an exception, or only a flag: then the result is what it failed with.
    pub(crate) fn read(
        py: Python<'_>,
        result: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        volatile: &VolatileResults,
    ) -> PyResult<Self> {
        let mut result = result.map(shown).transpose()?;
        let error = match error {
            Some(flag) if flag.is_exact_instance_of::<PyBool>() => flag.is_truthy()?.then(|| result.take().unwrap_or_default()),
            Some(error) => Some(shown(error)?),
            None => None,
        };
        let length = result.as_deref().map_or(0, str::len) + error.as_deref().map_or(0, str::len);
        Ok(values::aside(py, length, || {
            let outcome = volatile.outcome(result.as_deref(), error.as_deref());
            Self { result: outcome.result, error: error.zip(outcome.error) }
        }))
    }

    pub(crate) fn gave(&self, effect: CallEffect) -> Gave<'_> {
        let error = self.error.as_ref().map(|(text, fingerprint)| Failure { text, fingerprint: *fingerprint });
        Gave { result: self.result, error, effect, tokens: 0 }
    }
}

/// A result or an error as text: strings as they are, exceptions with their class, everything else as JSON.
pub(crate) fn shown(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return values::text(text).map(std::borrow::Cow::into_owned);
    }
    if value.is_instance_of::<pyo3::exceptions::PyBaseException>() {
        return Ok(format!("{}: {}", value.get_type().name()?, value.str()?.to_string_lossy()));
    }
    values::json(value)
}

/// Settings with some of them given anew: `identical={"stop": 5}`, `identical_stop=5`, `novelty_window=8`, `polling=[…]`.
fn changed(settings: StallSettings, thresholds: &Bound<'_, PyDict>) -> PyResult<StallSettings> {
    let py = thresholds.py();
    let refused = |problem: &dyn std::fmt::Display| errors::invalid_input(py, values::sentence(problem));
    let mut all = serde_json::to_value(settings).map_err(|error| refused(&error))?;
    let given: Value = serde_json::from_str(&values::json(thresholds)?).map_err(|error| refused(&error))?;
    for (name, value) in given.as_object().into_iter().flatten() {
        let of = |ladder: &'static str| Some((ladder, name.strip_prefix(ladder)?.strip_prefix('_')?));
        // Not everything that begins like a ladder is one of its rungs: `long_run_tokens`.
        let ladder = LADDERS.into_iter().find_map(of).filter(|_| all.get(name).is_none());
        match (ladder, value) {
            (Some((ladder, rung)), value) => all[ladder][rung] = value.clone(),
            (None, Value::Object(rungs)) if LADDERS.contains(&name.as_str()) => {
                rungs.iter().for_each(|(rung, count)| all[name.as_str()][rung] = count.clone());
            }
            (None, value) => all[name.as_str()] = value.clone(),
        }
    }
    serde_json::from_value(all).map_err(|error| refused(&error))
}
