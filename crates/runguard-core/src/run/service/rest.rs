//! A service that did not answer is left alone for a moment: who waits for it at every question waits longest when nothing works.

use crate::time::{Span, Timestamp};

/// After the first failure; after each that follows in a row twice as long.
const FIRST: Span = Span::from_millis(500);
const LONGEST: Span = Span::from_seconds(15);

/// Whether a service is asked.
///
/// ```
/// use runguard_core::Timestamp;
/// use runguard_core::run::service::Rest;
///
/// let (mut rest, at) = (Rest::default(), Timestamp::from_millis);
/// rest.failed(at(0));
/// assert!(rest.lasts(at(499)) && !rest.lasts(at(500)));
/// rest.failed(at(500));
/// assert!(rest.lasts(at(1_499)), "twice as long");
/// rest.answered();
/// assert!(!rest.lasts(at(1_499)));
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Rest {
    until: Option<Timestamp>,
    last: Span,
}

impl Rest {
    /// Nobody is asked yet.
    pub fn lasts(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Nobody answered.
    pub fn failed(&mut self, now: Timestamp) {
        let twice = Span::from_millis(self.last.as_millis().saturating_mul(2));
        self.last = twice.clamp(FIRST, LONGEST);
        self.until = Some(now.plus(self.last));
    }

    /// Somebody did.
    pub fn answered(&mut self) {
        *self = Self::default();
    }
}
