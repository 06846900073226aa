//! `CircuitBreaker`, as far as it is native: deciding. Calling functions is done in Python.

use crate::lock::locked;
use crate::{clock, errors, values};
use pyo3::prelude::*;
use runguard_core::breaker::{self, CircuitSettings, Phase};
use runguard_core::{Span, Timestamp};
use std::sync::Mutex;

/// A call may run. Give it back with the result: by it a late result is told from a current one.
#[pyclass(frozen, module = "runguard._core")]
pub(crate) struct Permit {
    permit: breaker::Permit,
}

#[pymethods]
impl Permit {
    /// Whether this call tests a circuit that was open.
    #[getter]
    fn probe(&self) -> bool {
        self.permit.is_probe()
    }
}

/// Refuses calls to something that fails, until it has had time to recover.
#[pyclass(subclass, frozen, module = "runguard._core")]
pub(crate) struct CircuitBreaker {
    name: String,
    breaker: Mutex<breaker::CircuitBreaker>,
}

#[pymethods]
impl CircuitBreaker {
    #[new]
    #[pyo3(signature = (
        name = "default", failure_threshold = 10, failure_window_seconds = 60.0, recovery_seconds = 45.0, *, failure_rate = 0.0,
        min_calls = None, slow_call_ms = 0, slow_rate = 0.0, recovery_backoff = 1.0, probes = 1, probe_timeout_seconds = 30.0
    ))]
    fn new(
        py: Python<'_>,
        name: &str,
        failure_threshold: i64,
        failure_window_seconds: f64,
        recovery_seconds: f64,
        failure_rate: f64,
        min_calls: Option<i64>,
        slow_call_ms: i64,
        slow_rate: f64,
        recovery_backoff: f64,
        probes: i64,
        probe_timeout_seconds: f64,
    ) -> PyResult<Self> {
        let refused =
            |name: &str, value: &dyn std::fmt::Display| errors::invalid_input(py, format!("{name} is {value}, which it cannot be."));
        let count = |name: &str, value: i64| u32::try_from(value).map_err(|_| refused(name, &value));
        let span = |name: &str, seconds: f64| clock::span(seconds).ok_or_else(|| refused(name, &seconds));
        let defaults = CircuitSettings::default();
        let min_calls = min_calls.map_or(Ok(defaults.min_calls), |calls| count("min_calls", calls))?;
        let settings = defaults
            .failure_threshold(count("failure_threshold", failure_threshold)?)
            .failure_window(span("failure_window_seconds", failure_window_seconds)?)
            .failure_rate(failure_rate)
            .slow_call_ms(count("slow_call_ms", slow_call_ms)?)
            .slow_rate(slow_rate)
            .min_calls(min_calls)
            .recovery(span("recovery_seconds", recovery_seconds)?)
            .recovery_backoff(recovery_backoff)
            .probes(count("probes", probes)?)
            .probe_timeout(span("probe_timeout_seconds", probe_timeout_seconds)?);
        let breaker = breaker::CircuitBreaker::new(name, settings).map_err(|bad| errors::invalid_input(py, values::sentence(&bad)))?;
        Ok(Self { name: name.to_owned(), breaker: Mutex::new(breaker) })
    }

    /// What it protects.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// May a call run now? Raises `CircuitOpenError` if not.
    fn check(&self, py: Python<'_>) -> PyResult<Permit> {
        let now = clock::now();
        let answer = locked(&self.breaker, |breaker| breaker.check(now))?;
        answer.map(|permit| Permit { permit }).map_err(|refused| errors::circuit_open(py, &self.name, &refused))
    }

    /// Says how a call ended.
    #[pyo3(signature = (ok, latency_ms = None, *, permit = None))]
    fn record(&self, py: Python<'_>, ok: bool, latency_ms: Option<f64>, permit: Option<&Bound<'_, Permit>>) -> PyResult<()> {
        let latency = match latency_ms {
            Some(millis) if millis.is_finite() && millis >= 0.0 => Some(Span::from_millis(millis.round() as u64)),
            Some(millis) => return Err(errors::invalid_input(py, format!("latency_ms is {millis}, but must be a number from 0 up."))),
            None => None,
        };
        let permit = permit.map(|permit| &permit.get().permit);
        let now = clock::now();
        locked(&self.breaker, |breaker| breaker.record(permit, ok, latency, now)).map(drop)
    }

    /// `closed` (calls pass), `open` (calls are refused) or `half_open` (a few calls test it).
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        let now = clock::now();
        locked(&self.breaker, |breaker| breaker.phase(now)).map(Phase::code)
    }

    /// Refuses everything until `reset`.
    fn force_open(&self) -> PyResult<()> {
        self.operate(breaker::CircuitBreaker::force_open)
    }

    /// Lets everything pass until `reset`.
    fn force_close(&self) -> PyResult<()> {
        self.operate(breaker::CircuitBreaker::force_close)
    }

    /// Closed and automatic, with nothing remembered.
    fn reset(&self) -> PyResult<()> {
        self.operate(breaker::CircuitBreaker::reset)
    }
}

impl CircuitBreaker {
    fn operate(&self, control: fn(&mut breaker::CircuitBreaker, Timestamp)) -> PyResult<()> {
        let now = clock::now();
        locked(&self.breaker, |breaker| control(breaker, now))
    }
}
