//! Whether the shared database can be used, as far as this node knows.

use crate::cluster::link::LinkError;
use crate::error::StoreError;
use crate::store::StoreHealth;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// So long no stream was at its bound, then they have room again. One is filled by a few nodes and emptied by one, so at its bound it is full and
/// has room in turn, many times a second; and beside it there are others.
const ROOM_AFTER: Duration = Duration::from_secs(2);

/// Whether the shared database can be used.
#[derive(Debug)]
pub(crate) struct Health {
    /// Since when it is away.
    away: Mutex<Option<Instant>>,
    is_away: AtomicBool,
    /// Not a watch: whom that wakes first is left to chance, and a simulation must be able to live through it again.
    back: Notify,
    why: Mutex<Option<String>>,
    /// Of the database we know.
    pub(super) generation: AtomicU64,
    /// The link takes us for at home in the database, but its states are not there yet.
    pub(super) unbuilt: AtomicBool,
    /// What its server's latest start is called, and the one of which everybody can know that all nodes have had the time to speak since.
    pub(super) server_run: AtomicU64,
    pub(super) settled_run: AtomicU64,
    /// The database that has what the one before it lost.
    pub(super) sent_again_to: AtomicU64,
    log_away: AtomicBool,
    /// How far the log is behind the streams.
    pub(super) log_lag_millis: AtomicU64,
    /// By the streams' clock: since when this node looks, and when the log had all of them last.
    log_seen_since: OnceLock<u64>,
    pub(super) log_had_all_at: AtomicU64,
    full: AtomicBool,
    /// When a stream was at its bound last.
    full_at: Mutex<Option<Instant>>,
    /// What nodes decided alone may not be counted yet: other nodes, this one; and so long it takes until that is known.
    pub(super) others_behind: AtomicBool,
    pub(super) ours_behind: AtomicBool,
    settles_at: Mutex<Option<Instant>>,
    pub(super) woken: Notify,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            away: Mutex::new(Some(Instant::now())),
            is_away: AtomicBool::new(true),
            back: Notify::new(),
            why: Mutex::default(),
            generation: AtomicU64::new(0),
            unbuilt: AtomicBool::new(false),
            server_run: AtomicU64::new(0),
            settled_run: AtomicU64::new(0),
            sent_again_to: AtomicU64::new(0),
            log_away: AtomicBool::new(false),
            log_lag_millis: AtomicU64::new(0),
            log_seen_since: OnceLock::new(),
            log_had_all_at: AtomicU64::new(0),
            full: AtomicBool::new(false),
            full_at: Mutex::default(),
            others_behind: AtomicBool::new(false),
            ours_behind: AtomicBool::new(false),
            settles_at: Mutex::default(),
            woken: Notify::new(),
        }
    }
}

impl Health {
    pub(crate) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Acquire)
    }

    pub(super) fn away_since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a database that has just gone. `false`: it is away for longer than `patience`, and nobody waits any more.
    pub(crate) async fn wait_until_back(&self, patience: Duration) -> bool {
        while self.is_away() {
            let mut back = std::pin::pin!(self.back.notified());
            back.as_mut().enable();
            let Some(since) = *self.away_since() else { continue };
            if tokio::time::timeout_at(since + patience, back).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Of a step that runs on the shared states.
    pub(crate) fn of_shared_states(&self) -> StoreHealth {
        if self.is_behind() { StoreHealth::Behind } else { StoreHealth::Sound }
    }

    pub(super) fn is_behind(&self) -> bool {
        self.others_behind.load(Ordering::Acquire) || self.ours_behind.load(Ordering::Acquire) || !self.is_settled()
    }

    /// Whether all nodes have had the time to say what they decided alone.
    pub(super) fn is_settled(&self) -> bool {
        let mut settles_at = self.settles_at.lock().unwrap_or_else(PoisonError::into_inner);
        *settles_at = settles_at.take_if(|at| Instant::now() < *at);
        settles_at.is_none()
    }

    pub(super) fn settle(&self, time: Duration) {
        *self.settles_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
    }

    pub(crate) fn is_unbuilt(&self) -> bool {
        self.unbuilt.load(Ordering::Acquire)
    }

    pub(crate) fn why(&self) -> Option<String> {
        self.is_away().then(|| self.lock().clone().unwrap_or_default())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It did not answer what it was asked at `since`.
    pub(crate) fn away(&self, error: &LinkError, since: Instant) {
        *self.lock() = Some(error.to_string());
        let is_new = {
            let mut away = self.away_since();
            let is_new = away.is_none();
            // Whoever asked first and was not answered knows best: others may notice by a question that they asked later.
            *away = Some(away.map_or(since, |known| known.min(since)));
            self.is_away.store(true, Ordering::Release);
            is_new
        };
        if is_new {
            tracing::error!(%error, "the shared state is away: flow guards go on from memory, marked degraded; budgets refuse, as set");
        }
        self.woken.notify_one();
    }

    /// It is there, started so.
    pub(super) fn joined(&self, server_run: u64) {
        self.server_run.store(server_run, Ordering::Release);
        self.sound();
    }

    fn sound(&self) {
        let since = {
            let mut away = self.away_since();
            self.is_away.store(false, Ordering::Release);
            away.take()
        };
        self.back.notify_waiters();
        if since.is_some() && self.lock().take().is_some() {
            tracing::info!("the shared state is back");
        }
    }

    pub(crate) fn full(&self) {
        *self.full_at() = Some(Instant::now());
        if self.full.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::error!(
            "a stream is at its bound, because the log does not take its rows: decisions go on from memory. Look whether Postgres is up, or raise store.stream_limit"
        );
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// One of them took a row.
    pub(crate) fn has_room(&self) {
        if self.is_full() && self.full_at().is_none_or(|at| at.elapsed() >= ROOM_AFTER) && self.full.swap(false, Ordering::AcqRel) {
            tracing::info!("the streams have room again");
        }
    }

    fn full_at(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.full_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn log_away(&self, error: &StoreError) {
        if !self.log_away.swap(true, Ordering::AcqRel) {
            tracing::error!(%error, "the log takes no rows: they wait in the streams");
        }
    }

    pub(crate) fn is_log_away(&self) -> bool {
        self.log_away.load(Ordering::Acquire)
    }

    pub(super) fn log_has_all(&self, now_millis: u64) {
        self.log_had_all_at.store(now_millis, Ordering::Relaxed);
        self.log_lag_millis.store(0, Ordering::Relaxed);
    }

    pub(super) fn log_seen_since(&self, now_millis: u64) -> u64 {
        *self.log_seen_since.get_or_init(|| now_millis)
    }

    pub(crate) fn log_lag_millis(&self) -> u64 {
        self.log_lag_millis.load(Ordering::Relaxed)
    }

    pub(crate) fn log_sound(&self) {
        if self.log_away.swap(false, Ordering::AcqRel) {
            tracing::info!("the log takes rows again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_full_and_has_room_in_turn_is_full() {
        let health = Health::default();
        for _ in 0..10 {
            health.full();
            tokio::time::sleep(ROOM_AFTER / 2).await;
            health.has_room();
            assert!(health.is_full(), "it is said once, not with every row");
        }
        tokio::time::sleep(ROOM_AFTER / 2).await;
        health.has_room();
        assert!(!health.is_full());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_because_somebody_else_noticed_first() {
        let (health, gone) = (Health::default(), LinkError::Away("gone".into()));
        health.joined(1);
        let asked = Instant::now();
        tokio::time::sleep(Duration::from_millis(500)).await;
        health.away(&gone, Instant::now());
        health.away(&gone, asked);
        assert!(!health.wait_until_back(Duration::from_millis(600)).await);
        assert_eq!(asked.elapsed(), Duration::from_millis(600));
        // A later question does not make it later.
        health.away(&gone, Instant::now());
        assert!(!health.wait_until_back(Duration::from_millis(700)).await);
        assert_eq!(asked.elapsed(), Duration::from_millis(700));
    }
}
