//! The seam to storage: a step on small states, kept together with its row, answered once both are safe.
//!
//! Whoever asks does not see where states live. [`Embedded`] is one process with its own files, [`Cluster`] many nodes that
//! share their states, [`Memory`] the same promise with nothing in its way: the model the others are tested against.

use crate::cluster::{Cluster, ClusterHealth, Fingerprints};
use crate::embedded::{Embedded, PendingWrite};
use crate::error::StoreError;
use crate::key::{Family, Key, Names};
use crate::log::{Follower, Order, RowFilter, RowWithEffects};
use crate::memory::Memory;
use runguard_core::row::{Row, RowCount};
use runguard_core::time::DAY_MILLIS;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::time::Duration;
use tokio::sync::watch;

/// Between two looks whether the log is there.
const LOOK_FOR_LOG: Duration = Duration::from_millis(200);

/// How long a repeated request gets its first answer, on every store.
pub const IDEMPOTENCY_MILLIS: i64 = DAY_MILLIS;
/// How long states of a month are kept, on every store: the longest there is, and what clocks are put forward and back.
pub(crate) const MONTH_MILLIS: i64 = 32 * DAY_MILLIS;

/// The address of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell<'a> {
    /// The entry it belongs to: a session, an endpoint, a repeated request.
    pub key: Key,
    pub slot: u8,
    pub subject: &'a str,
    /// What it lives with: the cells of one step are of one group, so that a cluster keeps them on one machine.
    pub group: u64,
}

/// A state within an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotState {
    pub slot: u8,
    pub subject: Box<str>,
    pub state: Box<[u8]>,
}

/// A new state of one of the cells, with the events that made it.
#[derive(Debug, Clone)]
pub struct Change {
    /// Index into the cells of the step.
    pub cell: usize,
    pub events: Vec<u8>,
    pub state: Vec<u8>,
}

#[derive(Debug)]
pub struct Written {
    pub row: Row,
    pub changes: Vec<Change>,
}

/// What a step wants.
#[derive(Debug)]
pub enum Decided<R> {
    /// Answer, and keep nothing.
    Reply(R),
    /// Keep this, and answer once it is safe.
    Keep(R, Written),
}

/// Whether what a step kept is safe already.
#[must_use = "nobody outside may hear of a decision that is not safe"]
#[derive(Debug, Default)]
pub struct Safe(pub(crate) Option<PendingWrite>);

impl Safe {
    /// Waits for it.
    pub async fn wait(self) -> Result<(), StoreError> {
        match self.0 {
            Some(kept) => kept.wait().await,
            None => Ok(()),
        }
    }
}

/// A state with the subject it is about, of a family that is listed.
#[derive(Debug, Clone, Copy)]
pub struct Labelled<'a> {
    pub label: &'a str,
    pub slot: u8,
    pub state: &'a [u8],
}

/// What an erasure took away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erased {
    pub log_rows: usize,
    /// What tells of it in the log: another row than was asked for where it went on with an erasure that somebody had left.
    pub row: Row,
    /// Something went, or may have gone, and not all of it yet. Nobody decides for the session on shared states until it is finished.
    pub unfinished: Option<Unfinished>,
}

/// What an erasure waits for that has begun, as far as anybody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    pub why: String,
    /// When the session was last erased before, as the log told while nobody else could erase it; `i64::MIN`: never. Has it been erased since,
    /// what is there of it is a new life. `None`: the log could not be asked.
    pub earlier: Option<i64>,
}

/// How long a state can matter after it was last written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// As long as the longest window.
    Window,
    /// As long as the log.
    Log,
    /// As long as the log, and no less than a month: what counts until the end of one.
    Month,
    /// A day: answers for repeated requests.
    Day,
    /// Until it is taken back: an operator's word.
    Always,
}

/// All that a store must know of states. It knows no guard.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Applies events to a state: slot, state, events, time. `None`: unknown to this version.
    pub replay: fn(u8, Option<&[u8]>, &[u8], i64) -> Option<Vec<u8>>,
    /// What a state lives with: how names become keys, tenant, entry, slot, subject. `None`: with the first one of its step.
    pub group: fn(Names, &str, Key, u8, &str) -> Option<u64>,
    /// Slot and state.
    pub keep: fn(u8, &[u8]) -> Keep,
    /// What undoes events that nobody was told of: slot, events. `None`: they stay, they do no harm.
    pub take_back: fn(u8, &[u8]) -> Option<Vec<u8>>,
}

impl Rules {
    /// A cell that the log tells of. `first`: what the first one of its step lives with.
    pub(crate) fn cell_of<'a>(self, names: Names, tenant: &str, key: Key, slot: u8, label: &'a str, first: Option<u64>) -> Cell<'a> {
        let group = (self.group)(names, tenant, key, slot, label).or(first).unwrap_or(key.group());
        Cell { key, slot, subject: label, group }
    }
}

/// Whether a step runs on what everyone shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreHealth {
    Sound,
    /// It does, but what nodes decided alone may not be counted there yet.
    Behind,
    /// The shared store is away: this node goes on from what it remembers.
    Away,
}

/// The states a step may look at, one for each of its cells. Nobody changes them until the step's decision is queued.
#[derive(Debug)]
pub struct View<'a> {
    pub(crate) states: SmallVec<[Option<&'a [u8]>; FEW]>,
    pub(crate) safe: SmallVec<[bool; FEW]>,
    pub(crate) health: StoreHealth,
    pub(crate) not_before: i64,
}

/// Cells of nearly every step: no memory is asked for.
pub(crate) const FEW: usize = 3;

impl<'a> View<'a> {
    pub fn get(&self, cell: usize) -> Option<&'a [u8]> {
        self.states[cell]
    }

    /// Whether what stands in the cell is in the log already, or still on its way there.
    pub fn is_safe(&self, cell: usize) -> bool {
        self.safe[cell]
    }

    /// The same of all cells of a family.
    pub(crate) fn is_safe_in(&self, cells: &[Cell<'_>], family: Family) -> bool {
        cells.iter().zip(&self.safe).all(|(cell, is_safe)| *is_safe || cell.key.family != family)
    }

    pub fn store_health(&self) -> StoreHealth {
        self.health
    }

    /// What is decided takes place at this time at the earliest, in milliseconds: its session was erased a moment before.
    pub fn not_before(&self) -> i64 {
        self.not_before
    }
}

#[derive(Debug)]
pub enum Store {
    Embedded(Embedded),
    Memory(Memory),
    Cluster(Cluster),
}

/// Calls the same method of whichever store it is.
macro_rules! each {
    ($store:expr, $inner:ident => $call:expr) => {
        match $store {
            Store::Embedded($inner) => $call,
            Store::Memory($inner) => $call,
            Store::Cluster($inner) => $call,
        }
    };
}

impl Store {
    /// Runs `step` on the states of `cells`, keeps what it returns, and answers once that is safe. Steps on the same cell run
    /// one after the other; two can never both take the last unit of a limit. A step runs again when another node was faster, so it is pure.
    pub async fn apply<R>(&self, cells: &[Cell<'_>], step: impl FnMut(&View<'_>) -> Decided<R>) -> Result<R, StoreError> {
        match self {
            Self::Embedded(store) => store.apply(cells, step).await,
            Self::Memory(store) => store.apply(cells, step).await,
            Self::Cluster(cluster) => Box::pin(cluster.apply(cells, step)).await,
        }
    }

    /// The same, but answers at once where it can: for whoever has more to ask before anybody is told. It must be waited for.
    pub async fn decide<R>(&self, cells: &[Cell<'_>], step: impl FnMut(&View<'_>) -> Decided<R>) -> Result<(R, Safe), StoreError> {
        match self {
            Self::Embedded(store) => store.decide(cells, step).await,
            // What others must agree to is safe once they have.
            Self::Memory(store) => Ok((store.apply(cells, step).await?, Safe::default())),
            // Boxed, as all that asks other nodes: whoever asks one process does not carry the room for it around.
            Self::Cluster(store) => Ok((Box::pin(store.apply(cells, step)).await?, Safe::default())),
        }
    }

    /// Puts `mine` under a key, unless something is there that still counts: that is given back. Only where states lie apart, so
    /// that a step does not see what else its key was used for; elsewhere the step itself does.
    pub async fn claim(&self, key: Key, mine: &[u8], counts: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Embedded(_) | Self::Memory(_) => Ok(None),
            Self::Cluster(cluster) => Box::pin(cluster.claim(key, mine, counts)).await,
        }
    }

    /// Puts something under a key for all nodes, for a day, whatever is there; nothing where there is one process.
    pub async fn note(&self, key: Key, mine: &[u8]) -> Result<(), StoreError> {
        self.claim(key, mine, |_| false).await.map(drop)
    }

    /// What a node put there.
    pub async fn noted(&self, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Embedded(_) | Self::Memory(_) => Ok(None),
            Self::Cluster(cluster) => Box::pin(cluster.noted(key)).await,
        }
    }

    /// How names become keys here.
    pub fn names(&self) -> Names {
        match self {
            Self::Embedded(store) => store.names(),
            Self::Memory(_) => Names::PLAIN,
            Self::Cluster(cluster) => cluster.names(),
        }
    }

    /// The states of a session, for looking at.
    pub async fn states(&self, tenant: &str, session: &str) -> Result<Vec<SlotState>, StoreError> {
        each!(self, store => store.states(tenant, session).await)
    }

    /// Shows all states of a family to `visit`, one after the other in no order, and gives back what it made of them. A family may be
    /// large; what is held of it at a time is not.
    pub async fn visit_family<T: Send + 'static>(
        &self,
        family: Family,
        into: T,
        visit: impl FnMut(&mut T, Labelled<'_>) + Send + 'static,
    ) -> Result<T, StoreError> {
        each!(self, store => store.visit_family(family, into, visit).await)
    }

    /// Removes a session: its states, its rows in the log, and the answers kept for repeated requests.
    /// What the log keeps is a row that says an erasure took place, without saying whose. `None`: nothing was known of it.
    /// The files are rid of its bytes with [`Store::purge`].
    pub async fn erase_session(&self, tenant: &str, session: &str, row: Row) -> Result<Option<Erased>, StoreError> {
        each!(self, store => store.erase_session(tenant, session, row).await)
    }

    /// Overwrites what was removed, in every file of this process, and empties the write-ahead logs. Gives the files that keep some of it,
    /// because somebody reads an older state of them: to be tried again.
    pub async fn purge(&self) -> Result<Vec<String>, StoreError> {
        match self {
            Self::Embedded(store) => store.purge().await,
            Self::Memory(_) => Ok(Vec::new()),
            Self::Cluster(cluster) => cluster.purge().await,
        }
    }

    /// Brings everything behind the answers up to date.
    pub async fn flush(&self) -> Result<(), StoreError> {
        each!(self, store => store.flush().await)
    }

    /// Whether a decision could be written right now.
    pub async fn probe(&self) -> Result<(), StoreError> {
        each!(self, store => store.probe().await)
    }

    /// Whether this process is the one that does something for all that share the log.
    pub async fn leads(&self, name: &'static str) -> bool {
        match self {
            Self::Embedded(_) | Self::Memory(_) => true,
            Self::Cluster(cluster) => cluster.leads(name).await,
        }
    }

    /// What settings and keys this process has, for other nodes to compare with theirs.
    pub fn tell_fingerprints(&self, mine: Fingerprints) {
        match self {
            Self::Embedded(_) | Self::Memory(_) => {}
            Self::Cluster(cluster) => cluster.tell_fingerprints(mine),
        }
    }

    /// Before the end: what this process did for all is another's to do.
    pub async fn leave(&self) {
        match self {
            Self::Embedded(_) | Self::Memory(_) => {}
            Self::Cluster(cluster) => cluster.leave().await,
        }
    }

    /// Whether the states are elsewhere: what was decided may then have happened though nobody heard of it.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Embedded(_) | Self::Memory(_) => false,
            Self::Cluster(_) => true,
        }
    }

    /// How the node of a cluster stands; `None` for a process of its own.
    pub fn cluster_health(&self) -> Option<ClusterHealth> {
        match self {
            Self::Embedded(_) | Self::Memory(_) => None,
            Self::Cluster(cluster) => Some(cluster.health()),
        }
    }

    /// Whether it is known where the log ends: of one that was never reached nothing follows from [`Self::committed`].
    pub fn log_is_known(&self) -> bool {
        match self {
            Self::Embedded(_) | Self::Memory(_) => true,
            Self::Cluster(cluster) => cluster.log_is_known(),
        }
    }

    /// Waits until it is known where the log ends.
    pub async fn wait_for_log(&self) {
        while !self.log_is_known() {
            tokio::time::sleep(LOOK_FOR_LOG).await;
        }
    }

    /// The number of the last row that is safe and can be read, and every later one.
    pub fn committed(&self) -> watch::Receiver<u64> {
        each!(self, store => store.committed())
    }

    /// The service's time, by which old things leave.
    pub fn tell_time(&self, now_millis: i64) {
        each!(self, store => store.tell_time(now_millis));
    }

    /// Old things leave by the time that is told, as it is told: for a clock that callers drive. Otherwise by the time that has
    /// really passed.
    pub fn believe_told_time(&self) {
        match self {
            Self::Embedded(store) => store.believe_told_time(),
            // These go by a clock of their own, or keep everything.
            Self::Memory(_) | Self::Cluster(_) => {}
        }
    }

    /// States with a window are kept at least this long.
    pub fn keep_states_for(&self, millis: i64) {
        each!(self, store => store.keep_states_for(millis));
    }

    pub fn entries_in_memory(&self) -> usize {
        each!(self, store => store.entries_in_memory())
    }

    pub fn bytes_in_memory(&self) -> usize {
        each!(self, store => store.bytes_in_memory())
    }

    /// Rows that are in the log but not yet where queries find them fast.
    pub fn rows_behind(&self) -> u64 {
        each!(self, store => store.rows_behind())
    }

    /// What is in use of the log's write-ahead log; `None` where there is none.
    pub fn wal_bytes(&self) -> Option<u64> {
        match self {
            Self::Embedded(store) => Some(store.wal_bytes()),
            Self::Memory(_) => None,
            Self::Cluster(cluster) => cluster.wal_bytes(),
        }
    }

    /// Writes everything down and ends. Requests that come later are refused.
    pub fn stop(&self) {
        each!(self, store => store.stop());
    }

    /// Rows that pass the filter, at most `limit`, after the row `after` in the given order.
    pub async fn rows(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<Row>, StoreError> {
        each!(self, store => store.rows(filter, order, after, limit).await)
    }

    /// The same rows with what each did to states.
    pub async fn rows_with_effects(
        &self,
        filter: RowFilter,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RowWithEffects>, StoreError> {
        each!(self, store => store.rows_with_effects(filter, order, after, limit).await)
    }

    /// The numbers of the same rows.
    pub async fn row_numbers(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<u64>, StoreError> {
        each!(self, store => store.row_numbers(filter, order, after, limit).await)
    }

    /// Decisions counted by minute, guard, outcome and reason, within `[since, until)` milliseconds (whole minutes).
    pub async fn stats(&self, tenant: Option<String>, guard: Option<String>, since: i64, until: i64) -> Result<Vec<RowCount>, StoreError> {
        self.stats_by(tenant, guard, since, until, 1).await
    }

    /// The same by several minutes; `minute` is the first of them.
    pub async fn stats_by(
        &self,
        tenant: Option<String>,
        guard: Option<String>,
        since: i64,
        until: i64,
        minutes: i64,
    ) -> Result<Vec<RowCount>, StoreError> {
        each!(self, store => store.stats_by(tenant, guard, since, until, minutes).await)
    }

    /// For a thread of its own that reads the log as it grows.
    pub fn follower(&self) -> Follower {
        each!(self, store => store.follower())
    }
}
