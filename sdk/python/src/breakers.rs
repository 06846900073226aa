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
        name = "default", failure_threshold = None, failure_window_seconds = None, recovery_seconds = None, *, failure_rate = None,
        min_calls = None, slow_call_ms = None, slow_rate = None, recovery_backoff = None, probes = None, probe_timeout_seconds = None
    ))]
    fn new(
        py: Python<'_>,
        name: &str,
        failure_threshold: Option<i64>,
        failure_window_seconds: Option<f64>,
        recovery_seconds: Option<f64>,
        failure_rate: Option<f64>,
        min_calls: Option<i64>,
        slow_call_ms: Option<i64>,
        slow_rate: Option<f64>,
        recovery_backoff: Option<f64>,
        probes: Option<i64>,
        probe_timeout_seconds: Option<f64>,
    ) -> PyResult<Self> {
        let count = |name: &str, given: Option<i64>, otherwise: u32| match given {
            None => Ok(otherwise),
            Some(value) => u32::try_from(value).map_err(|_| errors::invalid_input(py, format!("{name} is {value}, which it cannot be."))),
        };
        let span = |name: &str, given: Option<f64>, otherwise: Span| given.map_or(Ok(otherwise), |seconds| clock::span(py, name, seconds));
        let defaults = CircuitSettings::default();
        let settings = CircuitSettings::default()
            .failure_threshold(count("failure_threshold", failure_threshold, defaults.failure_threshold)?)
            .failure_window(span("failure_window_seconds", failure_window_seconds, defaults.failure_window)?)
            .failure_rate(failure_rate.unwrap_or(defaults.failure_rate))
            .slow_call_ms(count("slow_call_ms", slow_call_ms, defaults.slow_call_ms)?)
            .slow_rate(slow_rate.unwrap_or(defaults.slow_rate))
            .min_calls(count("min_calls", min_calls, defaults.min_calls)?)
            .recovery(span("recovery_seconds", recovery_seconds, defaults.recovery)?)
            .recovery_backoff(recovery_backoff.unwrap_or(defaults.recovery_backoff))
            .probes(count("probes", probes, defaults.probes)?)
            .probe_timeout(span("probe_timeout_seconds", probe_timeout_seconds, defaults.probe_timeout)?);
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
        answer.map(|permit| Permit { permit }).map_err(|refused| errors::circuit_open(py, &refused.into_refusal(&self.name)))
    }

    /// Says how a call ended.
    #[pyo3(signature = (ok, latency_ms = None, *, permit = None))]
    fn record(&self, py: Python<'_>, ok: bool, latency_ms: Option<f64>, permit: Option<&Bound<'_, Permit>>) -> PyResult<()> {
        let latency = latency_ms.map(|millis| clock::latency(py, millis)).transpose()?;
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
