//! Time for detectors in this process: a clock that never goes back.

use runguard_core::{Span, Timestamp};
use std::sync::OnceLock;
use std::time::Instant;

static START: OnceLock<Instant> = OnceLock::new();

pub(crate) fn now() -> Timestamp {
    Timestamp::from_millis(START.get_or_init(Instant::now).elapsed().as_millis() as i64)
}

/// Seconds as a user writes them; `None` when they are no length of time.
pub(crate) fn span(seconds: f64) -> Option<Span> {
    (seconds.is_finite() && seconds >= 0.0).then(|| Span::from_millis((seconds * 1000.0).ceil() as u64))
}
