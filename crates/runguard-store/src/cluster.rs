//! Many nodes that act as one: states in a shared database, rows through its streams into one log.
//!
//! The rules stay in Rust, on the node. A step runs on what the node remembers and becomes a *proposal* ([`cells`]); proposals that
//! share a cell are sent as one swap, all that gathered in one call ([`writer`]). The swap compares tokens, sets states and appends
//! the rows to a stream in one atomic step, so a decision and its count are there or neither. From the streams the rows go into
//! the log, exactly once ([`importer`]). A node holds nothing that cannot be lost.
//!
//! While the shared database is away a node goes on from what it remembers, in a store of its own on disk, and says so; what it
//! decided there is brought to the others when the database is back ([`recovery`], [`homecoming`]).

mod alone;
mod calls;
mod cells;
mod claims;
mod clock;
mod dynamic;
pub mod entry;
mod erasing;
mod erasures;
mod health;
mod homecoming;
mod importer;
pub mod link;
mod listed;
mod log;
pub(crate) mod mailbox;
pub mod model;
mod options;
mod reading;
mod recovery;
mod roster;
mod sharing;
mod taking;
mod unconfirmed;
mod writer;

pub use clock::SharedClock;
pub use erasing::Finished;
pub use link::{EntryId, agree_on_names, keep_names_used, names_used};
pub(crate) use log::{ERASED_AT, GENERATION_AT};
pub use log::{Imported, Positions};
pub(crate) use options::fitting;
pub use options::{ClusterOptions, LogKept, Portions, RETIRE_EVERY};
pub use roster::{Fingerprints, MOST_NOTE_RACES, Note, Noted as NoteResult, Seen};
pub use unconfirmed::{Place, Shelf};

use crate::error::{OpenError, StoreError};
use crate::key::{Key, Names};
use crate::store::{Cell, Decided, Keep, MONTH_MILLIS, Rules, View};
use alone::Alone;
use cells::{Cells, Wanted, WantedRows, name_of};
use dynamic::DynamicLink;
use erasing::Erasing;
use futures_util::future::{BoxFuture, FutureExt as _};
use hashbrown::HashMap;
use health::Health;
use link::{CellName, Condition, Link, LinkError, Token};
use listed::Noted;
use log::ClusterLog;
use roster::Roster;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use unconfirmed::Unconfirmed;
use writer::Queue;

/// Rows of a session looked at to find its states.
const ROWS_OF_SESSION: usize = 10_000;
/// How long a reader waits for what was decided before it asked.
const CATCH_UP: Duration = Duration::from_millis(500);
/// How long a cell that was taken away is marked: longer than any command is under way.
const TOMBSTONE_MILLIS: u64 = 60_000;
/// How long a node tries to join before it begins alone.
const JOIN: Duration = Duration::from_secs(3);
const FLUSH: Duration = Duration::from_secs(30);
/// The same while a session waits for it.
const CATCH_UP_HELD: Duration = Duration::from_secs(5);
const LOG_BEHIND: &str = "the log is behind: what it does not have yet cannot be erased; try again";
const DAY_MILLIS: u64 = runguard_core::time::DAY_MILLIS.cast_unsigned();

pub(crate) struct Inner {
    link: Arc<dyn DynamicLink>,
    log: ClusterLog,
    rules: Rules,
    names: Names,
    options: ClusterOptions,
    partitions: u16,
    cells: Cells,
    queue: Queue,
    unconfirmed: Unconfirmed,
    health: Health,
    erasing: Erasing,
    roster: Arc<Roster>,
    /// Held for writing while it is not certain that the database has its states.
    gate: tokio::sync::RwLock<()>,
    alone: Alone,
    /// Rows are being brought home; and how many wait until the log has what is in the streams.
    rows_come_home: AtomicBool,
    log_awaited: AtomicUsize,
    clock: SharedClock,
    tokens: AtomicU64,
    window_millis: AtomicI64,
    noted: Mutex<Noted>,
    /// Who this node is, for leases.
    node: u64,
    leading: Mutex<HashMap<&'static str, tokio::time::Instant>>,
    stopping: watch::Sender<bool>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("options", &self.options).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct Cluster {
    inner: Arc<Inner>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// How a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterHealth {
    /// Why the shared database cannot be used, if so.
    pub away: Option<String>,
    /// Rows decided alone, or lost by the database, that wait to be sent.
    pub waiting_rows: u64,
    /// Of those decided alone, as last seen.
    pub waiting_bytes: u64,
    /// Entries that were sent and are not known to be in the log: those that are kept, their bytes on disk, and those that are not kept.
    pub unconfirmed: u64,
    pub unconfirmed_bytes: u64,
    pub unconfirmed_dropped: u64,
    /// The log takes rows, as far as this node knows; how far it is behind the streams; whether this node is the one that imports.
    pub log_up: bool,
    pub log_lag_millis: u64,
    pub imports: bool,
    pub condition: Condition,
    pub fingerprints: Fingerprints,
    pub seen: Seen,
}

impl Inner {
    /// A token nobody has used: random start, a step that visits every number.
    fn token(&self) -> Token {
        loop {
            let mut token = self.tokens.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            token = (token ^ (token >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            token = (token ^ (token >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            token ^= token >> 31;
            if token != 0 {
                return token;
            }
        }
    }

    fn keep_millis(&self, slot: u8, state: &[u8]) -> u64 {
        let log = u64::from(self.options.retention_days) * DAY_MILLIS;
        let window = u64::try_from(self.window_millis.load(Ordering::Relaxed)).unwrap_or(0);
        // A little longer than it matters: the node's clock and the database's may differ by a moment.
        let margin = 60_000;
        margin
            + match (self.rules.keep)(slot, state) {
                Keep::Window => window,
                Keep::Log => log.max(window),
                Keep::Month => log.max(window).max(MONTH_MILLIS.cast_unsigned()),
                Keep::Day => DAY_MILLIS,
                Keep::Always => recovery::FOREVER_MILLIS,
            }
    }

    fn name(&self, cell: &Cell<'_>) -> CellName {
        name_of(cell, self.partitions)
    }

    /// Whether this node decided something that the shared states do not have yet.
    fn has_rows_to_bring(&self) -> bool {
        self.alone.waiting() > 0 || self.unconfirmed.late_count() > 0
    }

    /// A cell that the log tells of.
    fn cell_of<'a>(&self, tenant: &str, key: Key, slot: u8, label: &'a str, first: Option<u64>) -> Cell<'a> {
        self.rules.cell_of(self.names, tenant, key, slot, label, first)
    }
}

impl Cluster {
    /// Joins, on the runtime that is current. A node that does not reach the shared database begins alone, and joins when it can.
    pub async fn join(link: impl Link, log: LogKept, options: ClusterOptions, rules: Rules) -> Result<Self, OpenError> {
        let link: Arc<dyn DynamicLink> = Arc::new(link);
        let (asked, clock) = (tokio::time::Instant::now(), SharedClock::guessed(options.here_millis));
        if let Ok(millis) = link.time().await {
            clock.learn(millis, asked);
        }
        let (log, disk) = match log {
            #[cfg(feature = "postgres")]
            LogKept::Postgres(log) => (ClusterLog::Postgres(log), None),
            LogKept::Local(log) => (ClusterLog::Local(Arc::new(log)), None),
            LogKept::Memory(log, disk) => (ClusterLog::Memory(log), Some(disk)),
        };
        let alone = Alone::new(&options, disk, rules);
        let partitions = link.partitions();
        let inner = Arc::new(Inner {
            log,
            rules,
            names: options.names,
            partitions,
            cells: Cells::new(partitions, options.memory_bytes),
            queue: Queue::default(),
            unconfirmed: Unconfirmed::new(options.unconfirmed.clone()),
            health: Health::default(),
            erasing: Erasing::default(),
            roster: Arc::default(),
            gate: tokio::sync::RwLock::default(),
            alone,
            rows_come_home: AtomicBool::new(false),
            log_awaited: AtomicUsize::new(0),
            clock,
            tokens: AtomicU64::new(options.seed),
            window_millis: AtomicI64::new(i64::try_from(options.window.as_millis()).unwrap_or(i64::MAX)),
            noted: Mutex::default(),
            node: options.seed | 1,
            leading: Mutex::default(),
            stopping: watch::Sender::new(false),
            link,
            options,
        });
        if let Err(error) = inner.alone.find_left_behind().await {
            tracing::error!(%error, "what this node decided alone in an earlier life cannot be read; it stays where it is");
        }
        // A replica that is late, a primary that just changed: worth a few tries.
        let started = tokio::time::Instant::now();
        loop {
            let joined = tokio::time::timeout_at(started + JOIN, recovery::join(&inner)).await;
            match joined.unwrap_or_else(|_| Err(LinkError::Away("it was not joined in time".into()))) {
                Ok(()) => break,
                Err(error) if error.is_wrong_setup() => return Err(OpenError::Shared { detail: error.to_string() }),
                Err(error) if started.elapsed() >= JOIN => {
                    tracing::error!(%error, "this node begins alone, and joins when it can: flow guards decide from memory, marked degraded; budgets refuse, as set");
                    inner.health.away(&error, started);
                    break;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        // Boxed, here and wherever a task lives long: each kind of future that is spawned has a copy of the runtime's code.
        let start = |run: fn(Arc<Inner>) -> BoxFuture<'static, ()>| tokio::spawn(run(inner.clone()));
        let writer = start(|inner| async move { writer::run(&inner).await }.boxed());
        let tasks = vec![
            start(|inner| async move { recovery::run(&inner).await }.boxed()),
            start(|inner| async move { homecoming::run(&inner).await }.boxed()),
            start(|inner| async move { importer::run(&inner).await }.boxed()),
            start(|inner| async move { roster::run(&inner).await }.boxed()),
            start(|inner| async move { erasing::run(&inner).await }.boxed()),
        ];
        Ok(Self { inner, tasks: Mutex::new(tasks), writer: Mutex::new(Some(writer)) })
    }

    pub fn names(&self) -> Names {
        self.inner.names
    }

    pub fn clock(&self) -> SharedClock {
        self.inner.clock.clone()
    }

    pub fn health(&self) -> ClusterHealth {
        let (unconfirmed, unconfirmed_bytes, unconfirmed_dropped) = self.inner.unconfirmed.counts();
        let (away, waiting_rows) = (self.inner.health.why(), self.rows_behind());
        let imports = self.inner.leading.lock().unwrap_or_else(PoisonError::into_inner).contains_key("import");
        let health = &self.inner.health;
        let (log_up, log_lag_millis) = (!health.is_log_away(), health.log_lag_millis());
        let roster = &self.inner.roster;
        ClusterHealth {
            away,
            waiting_rows,
            waiting_bytes: self.inner.alone.bytes(),
            unconfirmed,
            unconfirmed_bytes,
            unconfirmed_dropped,
            log_up,
            log_lag_millis,
            imports,
            condition: roster.condition(),
            fingerprints: roster.mine(),
            seen: roster.seen(),
        }
    }

    /// Whether this node is the one of all that does this.
    pub async fn leads(&self, name: &'static str) -> bool {
        self.inner.leads(name).await
    }

    /// Gives back what this node does for all, so that another need not wait to take it over.
    pub async fn leave(&self) {
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
        let leading: Vec<&'static str> =
            self.inner.leading.lock().unwrap_or_else(PoisonError::into_inner).drain().map(|(name, _)| name).collect();
        for name in leading {
            // Should it fail, the lease runs out by itself.
            let _ = self.inner.link.lease(name, self.inner.node, 0).await;
        }
        if self.inner.roster.seen() != Seen::default() {
            // Should it fail, it is known to be gone after a while.
            let _ = roster::say(&self.inner, None).await;
        }
    }

    pub async fn apply<R>(&self, cells: &[Cell<'_>], mut step: impl FnMut(&View<'_>) -> Decided<R>) -> Result<R, StoreError> {
        self.inner.note(cells).await;
        let shared = self
            .inner
            .share(cells, |view| match step(view) {
                Decided::Reply(reply) => (reply, None),
                Decided::Keep(reply, written) => (reply, Some(Wanted { rows: WantedRows::Fresh(written.row), changes: written.changes })),
            })
            .await?;
        match shared {
            Some(reply) => Ok(reply),
            None if *self.inner.stopping.borrow() => Err(StoreError::Stopping),
            None => self.inner.alone.apply(cells, self.inner.cells.remembered(cells), step).await,
        }
    }

    pub fn wal_bytes(&self) -> Option<u64> {
        self.inner.log.wal_bytes()
    }

    /// Everything decided so far is in the log.
    pub async fn flush(&self) -> Result<(), StoreError> {
        if self.inner.caught_up(FLUSH).await { Ok(()) } else { Err(StoreError::Read("the log is behind the streams".into())) }
    }

    /// Away or not, the node can decide: that is what it is asked.
    #[allow(clippy::unused_async, reason = "the other stores wait where this one need not")]
    pub async fn probe(&self) -> Result<(), StoreError> {
        if *self.inner.stopping.borrow() { Err(StoreError::Stopping) } else { Ok(()) }
    }

    /// Old rows leave by the shared time, whatever a caller's clock says.
    pub fn tell_time(&self, _now_millis: i64) {}

    pub fn keep_states_for(&self, millis: i64) {
        self.inner.window_millis.store(millis, Ordering::Relaxed);
    }

    pub fn entries_in_memory(&self) -> usize {
        self.inner.cells.count()
    }

    pub fn bytes_in_memory(&self) -> usize {
        self.inner.cells.bytes()
    }

    pub fn rows_behind(&self) -> u64 {
        self.inner.alone.waiting() + self.inner.unconfirmed.late_count() as u64
    }

    pub fn stop(&self) {
        self.inner.stopping.send_replace(true);
        self.inner.queue.end();
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
        // The writer ends when what waits is sent.
        drop(self.writer.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.inner.alone.stop();
        self.inner.log.stop();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Every partition from its beginning.
pub(crate) fn from_the_start(partitions: u16) -> Positions {
    (0..partitions).map(|partition| (partition, EntryId::default())).collect()
}
