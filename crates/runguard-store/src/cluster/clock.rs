//! One time for all nodes: the shared database's.
//!
//! A node's own wall clock is never asked: it may be minutes off. The database says what time it is about once a second, and
//! in between the node counts on with a clock that only goes forward. While the database is away it goes on counting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use tokio::time::Instant;

#[derive(Debug, Clone)]
pub struct SharedClock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    started: Instant,
    /// What to add to the milliseconds since the start.
    offset_millis: AtomicI64,
    /// The latest time that was told: it is never taken back, but once, where it was only guessed.
    latest_millis: AtomicI64,
    is_guessed: AtomicBool,
}

impl SharedClock {
    pub(crate) fn new(now_millis: i64) -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            offset_millis: AtomicI64::new(now_millis),
            latest_millis: AtomicI64::new(now_millis),
            is_guessed: AtomicBool::new(false),
        }))
    }

    /// Of a node that starts while the database is away: what it believes counts until it is told.
    pub(crate) fn guessed(now_millis: i64) -> Self {
        let clock = Self::new(now_millis);
        clock.0.is_guessed.store(true, Ordering::Relaxed);
        clock
    }

    fn elapsed_millis(&self) -> i64 {
        i64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    pub fn now_millis(&self) -> i64 {
        let now = self.elapsed_millis().saturating_add(self.0.offset_millis.load(Ordering::Relaxed));
        self.0.latest_millis.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// The database said `millis` in answer to a question asked at `asked`: it was so at about half the way.
    pub(crate) fn learn(&self, millis: i64, asked: Instant) {
        let half_way = i64::try_from(asked.elapsed().as_millis()).unwrap_or(0) / 2;
        let now = millis.saturating_add(half_way);
        self.0.offset_millis.store(now.saturating_sub(self.elapsed_millis()), Ordering::Relaxed);
        if self.0.is_guessed.swap(false, Ordering::Relaxed) {
            self.0.latest_millis.store(now, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn it_counts_on_and_never_back() {
        let clock = SharedClock::new(1_000);
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(clock.now_millis(), 1_250);
        clock.learn(5_000, Instant::now());
        assert_eq!(clock.now_millis(), 5_000);
        clock.learn(4_000, Instant::now());
        assert_eq!(clock.now_millis(), 5_000, "a database whose clock was set back frees nothing");
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert_eq!(clock.now_millis(), 5_500);
        let guessed = SharedClock::guessed(9_000);
        assert_eq!(guessed.now_millis(), 9_000);
        guessed.learn(4_000, Instant::now());
        assert_eq!(guessed.now_millis(), 4_000, "a node's own clock counts only until it is told");
        guessed.learn(3_000, Instant::now());
        assert_eq!(guessed.now_millis(), 4_000);
    }
}
