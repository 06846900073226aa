//! `LoopDetector`.

use crate::lock::locked;
use crate::{clock, errors};
use pyo3::prelude::*;
use pyo3::types::PyString;
use runguard_core::Timestamp;
use runguard_core::detect::loops::{self, LoopSettings};
use runguard_core::run::{Loops, Trip};
use std::sync::{Arc, Mutex};

/// Longest name of a session or a call, in bytes. Longer ones are not names.
const LONGEST_NAME: usize = 65_536;

/// Notices that the newest calls are copies of one short pattern.
#[pyclass(subclass, frozen, module = "runguard._core")]
pub(crate) struct LoopDetector {
    detector: Arc<Mutex<loops::LoopDetector>>,
    /// Without a window or a ceiling only sessions that are named need the time: they expire. Reading the clock is a third of a call.
    is_timeless: bool,
}

#[pymethods]
impl LoopDetector {
    #[new]
    #[pyo3(signature = (repeats = None, max_cycle_len = None, window_seconds = None, max_calls = None))]
    fn new(
        py: Python<'_>,
        repeats: Option<i64>,
        max_cycle_len: Option<i64>,
        window_seconds: Option<f64>,
        max_calls: Option<i64>,
    ) -> PyResult<Self> {
        let window = window_seconds.map(|seconds| clock::span(py, "window_seconds", seconds)).transpose()?;
        let settings = LoopSettings::given(within(repeats), within(max_cycle_len), window, within(max_calls));
        let detector = loops::LoopDetector::new(settings).map_err(|bad| errors::invalid_input(py, format!("{bad}.")))?;
        let is_timeless = settings.window.is_none() && settings.max_calls.is_none();
        Ok(Self { detector: Arc::new(Mutex::new(detector)), is_timeless })
    }

    /// Takes a call: `record(sig)`, `record(session_id, key)` or `record(session_id=…, tool=…)`. Raises `LoopDetectedError`.
    #[pyo3(signature = (first = None, second = None, *, session_id = None, tool = None))]
    fn record(
        &self,
        py: Python<'_>,
        first: Option<&Bound<'_, PyAny>>,
        second: Option<&Bound<'_, PyAny>>,
        session_id: Option<&Bound<'_, PyAny>>,
        tool: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (session, name) = named(py, first, second, session_id, tool)?;
        let (session, name) = (session.as_deref().unwrap_or_default(), &*name);
        let now = if self.is_timeless && session.is_empty() { Timestamp::from_millis(0) } else { clock::now() };
        locked(&self.detector, |detector| detector.record(session, name, now))?.map_err(|found| errors::trip(py, &Trip::from(&found)))
    }

    /// The error that recording this call would raise, or None. Counts nothing.
    #[pyo3(signature = (first = None, second = None, *, session_id = None, tool = None))]
    fn check<'py>(
        &self,
        py: Python<'py>,
        first: Option<&Bound<'py, PyAny>>,
        second: Option<&Bound<'py, PyAny>>,
        session_id: Option<&Bound<'py, PyAny>>,
        tool: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (session, name) = named(py, first, second, session_id, tool)?;
        let now = clock::now();
        let found = locked(&self.detector, |detector| detector.check(session.as_deref().unwrap_or_default(), &name, now))?;
        Ok(found.map(|found| errors::trip(py, &Trip::from(&found)).into_value(py).into_bound(py).into_any()))
    }

    /// Copies of a pattern that make a loop.
    #[getter]
    fn repeats(&self) -> PyResult<u32> {
        locked(&self.detector, |detector| detector.settings().repeats)
    }

    /// Forgets the order of one session's calls, or without an id everything of all sessions.
    #[pyo3(signature = (session_id = None))]
    fn reset(&self, session_id: Option<&str>) -> PyResult<()> {
        locked(&self.detector, |detector| match session_id {
            Some(session) => detector.reset(session),
            None => detector.reset_all(),
        })
    }

    /// Sessions with an id that are remembered.
    #[getter]
    fn sessions(&self) -> PyResult<usize> {
        locked(&self.detector, |detector| detector.sessions())
    }

    fn __repr__(&self) -> PyResult<String> {
        let settings = locked(&self.detector, |detector| *detector.settings())?;
        Ok(format!("LoopDetector(repeats={}, max_cycle_len={})", settings.repeats, settings.max_cycle_len))
    }
}

impl LoopDetector {
    /// The same detector, for a run.
    pub(crate) fn shared(&self) -> Loops {
        Loops::InProcess(Arc::clone(&self.detector))
    }
}

/// A number as a user gives it; what does not fit is far outside of what may be set, and refused there.
pub(crate) fn within(value: Option<i64>) -> Option<u32> {
    value.map(|value| u32::try_from(value).unwrap_or(if value < 0 { 0 } else { u32::MAX }))
}

pub(crate) type Name<'a> = std::borrow::Cow<'a, str>;

/// The session, if there is one, and the name of the call, as texts.
#[inline]
pub(crate) fn named<'a, 'py>(
    py: Python<'py>,
    first: Optional<'a, 'py>,
    second: Optional<'a, 'py>,
    session_id: Optional<'a, 'py>,
    tool: Optional<'a, 'py>,
) -> PyResult<(Option<Name<'a>>, Name<'a>)> {
    let (session, name) = event(py, first, second, session_id, tool)?;
    let session = match session {
        Some(session) => Some(text(py, session, "session_id")?),
        None => None,
    };
    Ok((session, text(py, name, "the name of the call")?))
}

pub(crate) type Optional<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// The session, if there is one, and the name of the call, from any of the call shapes.
fn event<'a, 'py>(
    py: Python<'py>,
    first: Optional<'a, 'py>,
    second: Optional<'a, 'py>,
    session_id: Optional<'a, 'py>,
    tool: Optional<'a, 'py>,
) -> PyResult<(Optional<'a, 'py>, &'a Bound<'py, PyAny>)> {
    match (first, second, session_id, tool) {
        (Some(name), None, session, None) | (None, None, session, Some(name)) => Ok((session, name)),
        (Some(session), Some(name), None, None) | (Some(session), None, None, Some(name)) => Ok((Some(session), name)),
        _ => Err(errors::invalid_input(py, "Name one call: record(sig), record(session_id, key) or record(session_id=…, tool=…).")),
    }
}

#[inline]
pub(crate) fn text<'a>(py: Python<'_>, value: &'a Bound<'_, PyAny>, what: &str) -> PyResult<std::borrow::Cow<'a, str>> {
    let Ok(text) = value.cast::<PyString>() else {
        let kind = value.get_type().name()?;
        return Err(errors::invalid_input(
            py,
            format!("{what} must be a string, not {kind}. For arguments use runguard.fingerprint(args)."),
        ));
    };
    let text = text.to_cow().map_err(|_| errors::invalid_input(py, format!("{what} has half a character in it (a lone surrogate).")))?;
    match text.len() {
        0 => Err(errors::invalid_input(py, format!("{what} is empty: all calls without a name would count as one."))),
        1..=LONGEST_NAME => Ok(text),
        length => {
            Err(errors::invalid_input(py, format!("{what} is {length} bytes long, more than {LONGEST_NAME}. Use runguard.fingerprint(…).")))
        }
    }
}
