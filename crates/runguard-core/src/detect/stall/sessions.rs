//! The stall detector for any number of runs at once.

use super::{StallDetector, StallSettings, Step, Verdict};
use crate::detect::sessions::{SessionKey, Sessions};
use crate::limits::InvalidSetting;
use crate::time::{Span, Timestamp};

/// A run silent for this long is over.
const EXPIRE: Span = Span::from_seconds(24 * 3600);
/// More runs than this are not watched at once; the longest silent one gives way.
const MOST_RUNS: usize = 100_000;

/// One history a session; the empty name is a session too.
#[derive(Debug, Clone)]
pub struct StallSessions {
    /// What every run begins as.
    fresh: StallDetector,
    runs: Sessions<StallDetector>,
}

impl StallSessions {
    /// Empty, with these thresholds for every session.
    pub fn new(settings: StallSettings) -> Result<Self, InvalidSetting> {
        Ok(Self { fresh: StallDetector::new(settings)?, runs: Sessions::new(EXPIRE, MOST_RUNS) })
    }

    /// As [`StallDetector::observe`].
    pub fn observe(&mut self, session: &str, step: Step<'_>, now: Timestamp) -> Verdict {
        self.run(session, now).observe(step)
    }

    /// As [`StallDetector::message`].
    pub fn message(&mut self, session: &str, text: u64, now: Timestamp) -> Verdict {
        self.run(session, now).message(text)
    }

    /// As [`StallDetector::spent`].
    pub fn spent(&mut self, session: &str, tokens: u64, now: Timestamp) {
        self.run(session, now).spent(tokens);
    }

    /// As [`StallDetector::user_message`].
    pub fn user_message(&mut self, session: &str) {
        self.runs.forget(SessionKey::of(session));
    }

    /// What every run goes by.
    pub fn settings(&self) -> &StallSettings {
        self.fresh.settings()
    }

    /// Runs that are remembered.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether no session is known.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    fn run(&mut self, session: &str, now: Timestamp) -> &mut StallDetector {
        self.runs.enter(SessionKey::of(session), now, || self.fresh.clone(), StallDetector::user_message)
    }
}
