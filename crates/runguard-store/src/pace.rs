//! Makes long work a row of short pieces: a thread that computes for long makes the others wait for their turn, and on a busy
//! machine each turn is milliseconds. Answers come first.

use std::time::{Duration, Instant};

/// So much work between two rests.
const WORK: Duration = Duration::from_micros(500);
/// The clock is read once in so many steps.
const STEPS: u32 = 16;

#[derive(Debug)]
pub struct Pace {
    rest: Duration,
    since: Instant,
    steps: u32,
}

impl Pace {
    pub fn new(rest: Duration) -> Self {
        Self { rest, since: Instant::now(), steps: 0 }
    }

    /// Never rests: somebody waits for the work to be done.
    pub fn hurried() -> Self {
        Self::new(Duration::ZERO)
    }

    /// One step of work, and a rest if it is due.
    pub fn step(&mut self) {
        if self.is_due() {
            self.rest(self.rest);
        }
    }

    /// After a step: whether it has worked long enough.
    pub fn is_due(&mut self) -> bool {
        self.steps = self.steps.wrapping_add(1);
        self.steps.is_multiple_of(STEPS) && self.since.elapsed() >= WORK
    }

    /// After some work, however many steps it was.
    pub fn rest_if_due(&mut self) {
        if self.since.elapsed() >= WORK {
            self.rest(self.rest);
        }
    }

    pub fn rest(&mut self, rest: Duration) {
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        self.since = Instant::now();
    }
}
