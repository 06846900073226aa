//! Time for detectors in this process: a clock that never goes back.

use crate::errors;
use pyo3::prelude::*;
use runguard_core::{Span, Timestamp};
use std::sync::OnceLock;
use std::time::Instant;

static START: OnceLock<Instant> = OnceLock::new();

pub(crate) fn now() -> Timestamp {
    Timestamp::from_millis(START.get_or_init(Instant::now).elapsed().as_millis() as i64)
}

/// Seconds as a user writes them.
pub(crate) fn span(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Span> {
    Span::from_seconds_f64(seconds).map_err(|problem| errors::invalid_input(py, format!("{name} is {seconds}: {problem}.")))
}

/// How long a call took.
pub(crate) fn latency(py: Python<'_>, latency_ms: f64) -> PyResult<Span> {
    Span::from_millis_f64(latency_ms).map_err(|problem| errors::invalid_input(py, format!("latency_ms is {latency_ms}: {problem}.")))
}
