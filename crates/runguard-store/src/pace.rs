//! Makes long work a row of short pieces: a thread that computes for long makes the others wait for their turn, and on a busy
//! machine each turn is milliseconds. Answers come first.

use std::time::{Duration, Instant};

/// So much work between two rests.
const WORK: Duration = Duration::from_micros(500);
/// The clock is read once in so many steps.
const STEPS: u32 = 16;

/// Lets other threads go first where they want the same core: called by a thread on itself, if no answer ever waits for what it holds.
/// The indexer holds locks of states, so it does not: a thread that is set back may keep them while a busy neighbour computes. On Linux
/// alone: elsewhere it would be said of the whole process.
pub fn step_back() {
    #[cfg(target_os = "linux")]
    const NICE: i32 = 10;
    // Where it may not be said, the thread goes on as one of all.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICE);
}

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
