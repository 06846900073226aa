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
mod cells;
mod clock;
mod dynamic;
pub mod entry;
mod erasing;
mod health;
mod homecoming;
mod importer;
pub mod link;
mod log;
pub(crate) mod mailbox;
pub mod model;
mod recovery;
mod roster;
mod taking;
mod unconfirmed;
mod writer;

pub use clock::SharedClock;
pub use erasing::Finished;
pub use link::{EntryId, agree_on_names, keep_names_used, names_used};
pub(crate) use log::{ERASED_AT, GENERATION_AT};
pub use log::{Imported, Positions};
pub use roster::{Fingerprints, MOST_NOTE_RACES, Note, Noted as NoteResult, Seen};
pub use unconfirmed::{Place, Shelf};

use crate::embedded::Embedded;
use crate::error::{OpenError, StoreError};
use crate::key::{Family, Key, Names};
use crate::log::{Follower, Order, RowFilter, RowWithEffects};
use crate::memory::Memory;
#[cfg(feature = "postgres")]
use crate::postgres::PgLog;
use crate::store::{Cell, Decided, Erased, Keep, Labelled, MONTH_MILLIS, Rules, SlotState, View};
use alone::Alone;
use cells::{Cells, Knowing, ProposalResult, Wanted, WantedRows, is_tombstone, name_of};
use dynamic::DynamicLink;
use erasing::Erasing;
use futures_util::future::{BoxFuture, FutureExt as _};
use hashbrown::HashMap;
use health::Health;
use link::{CellName, Condition, Link, LinkError, NodesSeen, Put, Said, Swap, SwapCell, Swapped, Token, Value};
use log::ClusterLog;
use roster::{OneOfMany, Roster};
use runguard_core::row::{Row, RowCount};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use unconfirmed::Unconfirmed;
use writer::Queue;

/// How long a step is tried again while others are faster. The database is up, so going on alone would be wrong.
const RACE: Duration = Duration::from_secs(20);
const OUTRUN: &str = "other requests for the same state were faster for too long; it is asked for more often than it can be answered";
/// How often a key is claimed anew when others are faster.
const MOST_RACES: u32 = 200;
/// Endpoints and foreign cells this node has told of. At the bound, and after a day, it tells again.
const MOST_NOTED: usize = 100_000;
/// Where it is noted which states of a session came about in other sessions' steps. No guard has this slot.
const FOREIGN: u8 = 254;
/// States noted of one session. Beyond it they are kept, but not listed.
const MOST_FOREIGN: usize = 256;
/// What a key was first used for. No guard has this slot.
const CLAIM: u8 = 253;
/// The gate is shut for longer only when states are built.
const GATE: Duration = Duration::from_millis(50);
/// Rows of a session looked at to find its states.
const ROWS_OF_SESSION: usize = 10_000;
/// States of endpoints asked for at a time when all of them are looked at.
const ENDPOINTS_AT_ONCE: usize = 1000;
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
/// How often old rows are looked for, unless a test is in a hurry.
pub const RETIRE_EVERY: Duration = Duration::from_secs(600);
const DAY_MILLIS: u64 = runguard_core::time::DAY_MILLIS.cast_unsigned();

#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Where rows wait that were decided while the shared database was away.
    pub folder: PathBuf,
    pub memory_bytes: usize,
    pub retention_days: u32,
    /// The longest window in which anything is counted, until [`Cluster::keep_states_for`] tells another one: states are built while a node
    /// joins already.
    pub window: Duration,
    /// Where rows are kept that the log is not known to have.
    pub unconfirmed: Shelf,
    /// How long a request waits for a shared database that does not answer.
    pub patience: Duration,
    /// How often old rows are looked for.
    pub retire_every: Duration,
    /// What the node's own clock says: it is asked where the shared database cannot be.
    pub here_millis: i64,
    /// What is decided alone may take so much of the disk.
    pub alone_bytes: u64,
    /// How much of it is brought home at a time.
    pub portions: Portions,
    /// How names become keys: [`agree_on_names`].
    pub names: Names,
    /// Makes tokens; another for every node.
    pub seed: u64,
}

/// How many rows of what was decided alone are brought home at a time.
#[derive(Debug, Clone)]
pub struct Portions {
    /// Read together: the more, the more of them are of one state.
    pub read: usize,
    /// Of several states in one swap. The more, the less a row costs the database; and the likelier it is that another node is at one of the
    /// states, and all of them are tried again.
    pub together: usize,
    /// Of one state in one swap.
    pub of_one_state: usize,
    /// Swaps that are made ready while others are on their way.
    pub swaps: usize,
}

impl Default for Portions {
    fn default() -> Self {
        Self { read: 16_000, together: 32, of_one_state: 500, swaps: 64 }
    }
}

/// As many from the front as are handled together, by their number and their bytes: one at least.
pub(crate) fn fitting(sizes: impl Iterator<Item = usize>, most: usize, most_bytes: usize) -> usize {
    let mut bytes = 0;
    let fits = sizes.take(most).take_while(|size| {
        bytes += size;
        bytes <= most_bytes
    });
    fits.count().max(1)
}

/// Where the log is kept.
#[derive(Debug)]
pub enum LogKept {
    #[cfg(feature = "postgres")]
    Postgres(PgLog),
    /// In a store of the node's own, a copy of every node's rows.
    Local(Embedded),
    /// For the simulation: one memory for all nodes; the second is the node's disk.
    Memory(Memory, Memory),
}

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

/// What became of a step on the shared states.
enum Shared<R> {
    Done(R),
    Away,
    /// Others were faster each time.
    Outrun,
}

/// What this node has told the database of.
#[derive(Debug)]
struct Noted {
    names: BTreeSet<u128>,
    since: tokio::time::Instant,
}

impl Default for Noted {
    fn default() -> Self {
        Self { names: BTreeSet::new(), since: tokio::time::Instant::now() }
    }
}

/// Counted as long as it lives.
struct Awaited<'a>(&'a AtomicUsize);

impl<'a> Awaited<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
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

    /// Runs a step on the shared states until it is done or the database is away.
    async fn share<R>(&self, cells: &[Cell<'_>], decide: impl FnMut(&View<'_>) -> (R, Option<Wanted>)) -> Result<Option<R>, StoreError> {
        match self.share_within(u32::MAX, cells, decide).await? {
            Shared::Done(reply) => Ok(Some(reply)),
            Shared::Away => Ok(None),
            Shared::Outrun => Err(StoreError::Write(OUTRUN.into())),
        }
    }

    /// The same, tried so often.
    async fn share_within<R>(
        &self,
        tries: u32,
        cells: &[Cell<'_>],
        mut decide: impl FnMut(&View<'_>) -> (R, Option<Wanted>),
    ) -> Result<Shared<R>, StoreError> {
        let started = tokio::time::Instant::now();
        let has_looked = self.cells.are_elsewhere(cells) && self.look(cells).await?;
        let mut aways = 0;
        for race in 0..tries {
            if !self.health.wait_until_back(self.options.patience).await {
                return Ok(Shared::Away);
            }
            if started.elapsed() >= RACE {
                break;
            }
            match erasing::wait(self, cells).await {
                // With what was erased went what was told of it.
                Some(true) => self.note_foreign_cells(cells).await,
                Some(false) => {}
                None => return Ok(Shared::Away),
            }
            // First: whatever is learned after it, this step may not know.
            let fences = self.erasing.fences();
            if self.erasing.holds(cells) {
                continue;
            }
            let (reply, result) = self.propose(cells, fences, has_looked || race > 0, &mut decide)?;
            match result.await.map_err(|_| StoreError::Stopping)? {
                ProposalResult::Done => return Ok(Shared::Done(reply)),
                ProposalResult::Raced if race > 3 => {
                    self.note_foreign_cells(cells).await;
                    // Whoever loses often waits a moment, each another one, so that somebody gets through.
                    let wait = self.token() % (u64::from(race.min(50)) * 100);
                    tokio::time::sleep(Duration::from_micros(wait)).await;
                }
                // It may have been taken away, and what was told of it as well.
                ProposalResult::Raced => self.note_foreign_cells(cells).await,
                // Were it tried again it could count twice. Alone it has the same id, and it is seen when it goes home what became of this.
                ProposalResult::Doubtful => return Ok(Shared::Away),
                // It may be back by the time we hear that it was away.
                ProposalResult::Away => {
                    aways += 1;
                    if aways > 3 {
                        return Ok(Shared::Away);
                    }
                }
            }
        }
        Ok(Shared::Outrun)
    }

    /// Runs a step on what is remembered, and asks for what it wants.
    fn propose<R>(
        &self,
        cells: &[Cell<'_>],
        fences: u64,
        has_looked: bool,
        decide: impl FnOnce(&View<'_>) -> (R, Option<Wanted>),
    ) -> Result<(R, oneshot::Receiver<ProposalResult>), StoreError> {
        let (health, not_before) = (self.health.of_shared_states(), self.erasing.not_before(cells));
        let knowing = Knowing { fences, health, not_before, has_looked };
        let keep_millis = |slot, state: &[u8]| self.keep_millis(slot, state);
        self.cells.step(cells, knowing, || self.token(), keep_millis, decide, |proposal| self.queue.push(proposal))
    }

    /// Learns what is there, by a step that wants nothing. Says whether it has; a step that needs to know finds out by itself.
    async fn look(&self, cells: &[Cell<'_>]) -> Result<bool, StoreError> {
        if self.health.is_away() {
            return Ok(false);
        }
        let ((), result) = self.propose(cells, self.erasing.fences(), false, |_| ((), None))?;
        let result = result.await.map_err(|_| StoreError::Stopping)?;
        Ok(matches!(result, ProposalResult::Done | ProposalResult::Raced))
    }

    /// Tells the database of what it must be able to list, before a step touches it.
    async fn note(&self, cells: &[Cell<'_>]) {
        self.note_endpoints(cells).await;
        self.note_foreign_cells(cells).await;
    }

    /// Endpoints are listed, so the database keeps their names. Before the state is written: a name too many does no harm.
    async fn note_endpoints(&self, cells: &[Cell<'_>]) {
        for cell in cells.iter().filter(|cell| cell.key.family == Family::Endpoint) {
            if !self.is_noted(cell.key.hash) && self.link.note_endpoint(endpoint_note(cell.slot, cell.subject)).await.is_ok() {
                self.noted().names.insert(cell.key.hash);
            }
        }
    }

    /// A session's states are found by its rows. One that comes about in another session's step, as a parent's budget does, has
    /// no row of its own, so the database keeps its name.
    async fn note_foreign_cells(&self, cells: &[Cell<'_>]) {
        let mut of_sessions = cells.iter().filter(|cell| cell.key.family == Family::Session);
        let Some(first) = of_sessions.next() else { return };
        for foreign in of_sessions.filter(|cell| cell.key != first.key) {
            let name = self.name(foreign).hash();
            // One that comes about is told of again: with an erasure the note went too.
            let is_told = self.is_noted(name) && self.cells.knows(foreign);
            if !is_told && !self.health.is_away() && self.note_foreign_cell(foreign).await.is_ok() {
                self.noted().names.insert(name);
            }
        }
    }

    async fn note_foreign_cell(&self, foreign: &Cell<'_>) -> Result<(), LinkError> {
        let name = self.name(&foreign_cells_of(foreign.key));
        let mut found = self.link.load(vec![name.clone()]).await?.pop().flatten();
        loop {
            let (expect, mut known) = found.map_or((0, Vec::new()), |(token, state)| (token, read_foreign_cells(&state)));
            if known.len() < MOST_FOREIGN && !known.iter().any(|(slot, label)| (*slot, label.as_str()) == (foreign.slot, foreign.subject)) {
                known.push((foreign.slot, foreign.subject.to_owned()));
            }
            // Told again every day, so it stays as long as any of the states.
            let keep_millis = self.keep_millis(foreign.slot, &[]) + 2 * DAY_MILLIS;
            let put = Put::Set { token: self.token(), state: postcard::to_stdvec(&known).unwrap_or_default(), keep_millis };
            let cell = SwapCell { name: name.clone(), expect, put };
            found = match self.swap(vec![Swap { partition: name.partition(), cells: vec![cell], entry: Vec::new() }]).await?.pop() {
                Some(Swapped::Raced(mut found)) => found.pop().flatten(),
                Some(Swapped::Done | Swapped::Full | Swapped::Fenced) | None => return Ok(()),
            };
        }
    }

    /// The states of a session that its rows do not tell of.
    async fn foreign_cells(&self, session: Key) -> Result<Vec<(u8, String)>, StoreError> {
        let found = self.load(&[foreign_cells_of(session)]).await?.pop().flatten();
        Ok(found.map(|(_, state)| read_foreign_cells(&state)).unwrap_or_default())
    }

    /// Whether there is nothing to tell: it is known, or nobody can be told.
    fn is_noted(&self, name: u128) -> bool {
        let mut noted = self.noted();
        if noted.names.len() >= MOST_NOTED || noted.since.elapsed() >= Duration::from_millis(DAY_MILLIS) {
            *noted = Noted::default();
        }
        noted.names.contains(&name) || self.health.is_away()
    }

    fn noted(&self) -> std::sync::MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A swap that rests on nothing a fence could have moved: none of its answers is [`Swapped::Fenced`].
    async fn swap(&self, swaps: Vec<Swap>) -> Result<Vec<Swapped>, LinkError> {
        let mut answers = self.link.swap(&swaps).await?;
        loop {
            let fenced: Vec<usize> = (0..answers.len()).filter(|place| answers[*place] == Swapped::Fenced).collect();
            if fenced.is_empty() {
                return Ok(answers);
            }
            let sent: Vec<Swap> = fenced.iter().map(|place| swaps[*place].clone()).collect();
            let again = self.link.swap(&sent).await?;
            fenced.into_iter().zip(again).for_each(|(place, answer)| answers[place] = answer);
        }
    }

    /// As long as this is kept the states are there: nobody here begins to build them meanwhile.
    async fn built(&self) -> Result<tokio::sync::RwLockReadGuard<'_, ()>, LinkError> {
        match tokio::time::timeout(GATE, self.gate.read()).await {
            Ok(gate) if !self.health.is_unbuilt() => Ok(gate),
            Ok(_) | Err(_) => Err(LinkError::Away("its states are being built".into())),
        }
    }

    /// A swap of nothing says whether the database is the one we know, on a connection that was looked through.
    async fn is_the_one_we_know(&self) -> bool {
        self.swap_nothing().await.is_ok()
    }

    /// The same, and why not.
    async fn swap_nothing(&self) -> Result<(), LinkError> {
        let nothing = |partition| Swap { partition, cells: Vec::new(), entry: Vec::new() };
        self.swap((0..self.partitions).map(nothing).collect()).await.map(drop)
    }

    /// Waits until the log has everything that was decided before. `false`: not in time.
    async fn caught_up(&self, patience: Duration) -> bool {
        let Ok(latest) = self.link.latest().await else { return false };
        // The streams of a database that was emptied say nothing.
        if !self.is_the_one_we_know().await {
            return false;
        }
        let reached = async {
            loop {
                if let Ok(positions) = self.log.positions(self.partitions).await
                    && positions.iter().all(|(partition, at)| latest.get(usize::from(*partition)).is_none_or(|latest| latest <= at))
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _awaited = Awaited::new(&self.log_awaited);
        tokio::time::timeout(patience, reached).await.is_ok()
    }

    /// Whether this node is the one that does something for all; asked again before the time is up.
    async fn leads(&self, name: &'static str) -> bool {
        const LEASE: Duration = Duration::from_secs(6);
        let asked = tokio::time::Instant::now();
        let sure_until = self.leading.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied();
        if sure_until.is_some_and(|until| asked < until) {
            return true;
        }
        let ours = matches!(self.link.lease(name, self.node, LEASE.as_millis() as u64).await, Ok(true));
        let mut leading = self.leading.lock().unwrap_or_else(PoisonError::into_inner);
        if ours {
            leading.insert(name, asked + LEASE / 3);
        } else {
            leading.remove(name);
        }
        ours
    }

    fn name(&self, cell: &Cell<'_>) -> CellName {
        name_of(cell, self.partitions)
    }

    /// Whether this node decided something that the shared states do not have yet.
    fn has_rows_to_bring(&self) -> bool {
        self.alone.waiting() > 0 || self.unconfirmed.late_count() > 0
    }

    /// The cells that rows of the log touched, with the state each of them has.
    async fn load(&self, cells: &[Cell<'_>]) -> Result<Vec<Value>, StoreError> {
        let names = cells.iter().map(|cell| self.name(cell)).collect();
        let values = self.link.load(names).await.map_err(|error| StoreError::Read(error.to_string()))?;
        Ok(values.into_iter().map(|value| value.filter(|(_, state)| !is_tombstone(state))).collect())
    }

    /// A cell that the log tells of.
    fn cell_of<'a>(&self, tenant: &str, key: Key, slot: u8, label: &'a str, first: Option<u64>) -> Cell<'a> {
        self.rules.cell_of(self.names, tenant, key, slot, label, first)
    }
}

/// The list of a session's states that came about in other sessions' steps.
fn foreign_cells_of(session: Key) -> Cell<'static> {
    Cell { key: session, slot: FOREIGN, subject: "", group: session.group() }
}

fn read_foreign_cells(state: &[u8]) -> Vec<(u8, String)> {
    postcard::from_bytes(state).unwrap_or_default()
}

/// What a key was first used for lies where the key alone leads.
fn claim_of(key: Key) -> Cell<'static> {
    Cell { key, slot: CLAIM, subject: "", group: key.group() }
}

fn endpoint_note(slot: u8, label: &str) -> String {
    format!("{slot}\0{label}")
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

    /// Puts `mine` under a key, unless something is there that still counts: that is given back.
    pub async fn claim(&self, key: Key, mine: &[u8], counts: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>, StoreError> {
        let (inner, cell) = (&self.inner, claim_of(key));
        let name = inner.name(&cell);
        let mut expect = 0;
        for _ in 0..MOST_RACES {
            if inner.health.is_away() {
                break;
            }
            let put = Put::Set { token: inner.token(), state: mine.to_vec(), keep_millis: DAY_MILLIS + 60_000 };
            let cells = vec![SwapCell { name: name.clone(), expect, put }];
            let swapped = inner.swap(vec![Swap { partition: name.partition(), cells, entry: Vec::new() }]).await;
            expect = match swapped.map(|mut swapped| swapped.pop()) {
                Ok(Some(Swapped::Raced(mut found))) => match found.pop().flatten() {
                    Some((_, there)) if !is_tombstone(&there) && counts(&there) => return Ok(Some(there)),
                    Some((token, _)) => token,
                    None => 0,
                },
                // Away? The step that follows finds out, and goes on without it.
                Ok(Some(Swapped::Done | Swapped::Full | Swapped::Fenced) | None) | Err(_) => break,
            };
        }
        Ok(None)
    }

    /// What is under a key that was claimed.
    pub async fn noted(&self, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        if self.inner.health.is_away() {
            return Ok(None);
        }
        let found = self.inner.load(&[claim_of(key)]).await?;
        Ok(found.into_iter().flatten().next().map(|(_, state)| state))
    }

    pub async fn states(&self, tenant: &str, session: &str) -> Result<Vec<SlotState>, StoreError> {
        let inner = &self.inner;
        inner.caught_up(CATCH_UP).await;
        let entry = inner.names.key(Family::Session, tenant, session);
        let filter = RowFilter { tenant: Some(tenant.into()), session: Some(session.into()), ..RowFilter::default() };
        let found = inner.log.rows_with_effects(filter, Order::NewestFirst, None, ROWS_OF_SESSION).await?;
        let effects = found.into_iter().flat_map(|kept| kept.happened()).filter(|effect| effect.key == entry);
        let mut touched: BTreeSet<(u8, String)> = effects.map(|effect| (effect.slot, effect.label)).collect();
        touched.extend(inner.foreign_cells(entry).await?);
        let cells: Vec<Cell<'_>> = touched.iter().map(|(slot, label)| inner.cell_of(tenant, entry, *slot, label, None)).collect();
        let values = inner.load(&cells).await?;
        let states = cells
            .iter()
            .zip(values)
            .filter_map(|(cell, value)| Some(SlotState { slot: cell.slot, subject: cell.subject.into(), state: value?.1.into() }));
        Ok(states.collect())
    }

    pub async fn visit_family<T>(&self, family: Family, mut into: T, mut visit: impl FnMut(&mut T, Labelled<'_>)) -> Result<T, StoreError> {
        let failed = |error: LinkError| StoreError::Read(error.to_string());
        if family != Family::Endpoint {
            return Ok(into);
        }
        let notes = self.inner.link.endpoints().await.map_err(failed)?;
        for notes in notes.chunks(ENDPOINTS_AT_ONCE) {
            let mut cells = Vec::with_capacity(notes.len());
            for note in notes {
                let Some((slot, label)) = note.split_once('\0') else { continue };
                let (Ok(slot), Some((tenant, endpoint))) = (slot.parse::<u8>(), label.split_once('\0')) else { continue };
                cells.push((note, self.inner.cell_of(tenant, self.inner.names.key(family, tenant, endpoint), slot, label, None)));
            }
            let values = self.inner.load(&cells.iter().map(|(_, cell)| *cell).collect::<Vec<_>>()).await?;
            for ((note, cell), value) in cells.iter().zip(values) {
                if let Some((_, state)) = value {
                    visit(&mut into, Labelled { label: cell.subject, slot: cell.slot, state: &state });
                } else {
                    // Long unused: its state has expired.
                    self.inner.noted().names.remove(&cell.key.hash);
                    self.inner.link.forget_endpoint((*note).clone()).await.map_err(failed)?;
                }
            }
        }
        Ok(into)
    }

    pub async fn erase_session(&self, tenant: &str, session: &str, row: Row) -> Result<Option<Erased>, StoreError> {
        taking::erase(&self.inner, tenant, session, row).await
    }

    /// When this session was last erased, as the log tells, whoever asked for it.
    pub async fn erased_at(&self, tenant: &str, session: &str) -> Result<Option<i64>, StoreError> {
        let number = self.inner.names.session_number(tenant, session);
        Ok(self.inner.log.erasures().await?.into_iter().filter(|(other, _)| *other == number).map(|(_, at)| at).max())
    }

    /// Erasures that this node finished for others since this was last asked.
    pub fn finished_for_others(&self) -> Vec<Finished> {
        self.inner.erasing.take_finished()
    }

    /// Waits until there are any.
    pub async fn some_are_finished_for_others(&self) {
        self.inner.erasing.some_are_finished().await;
    }

    /// This node is there, and knew these others. Gives all that are known.
    pub async fn is_here(&self, node: u64, known: &NodesSeen) -> Result<NodesSeen, StoreError> {
        self.inner.link.is_here(node, known).await.map_err(|error| StoreError::Write(error.to_string()))
    }

    /// What other nodes must know of an erasure.
    pub async fn say_of_erasures(&self, node: u64, said: Said) -> Result<(), StoreError> {
        self.inner.link.say_of_erasures(node, said).await.map_err(|error| StoreError::Write(error.to_string()))
    }

    /// Erasures that were announced, and the nodes that have yet to confirm them.
    pub async fn announced_erasures(&self) -> Result<Vec<(String, Vec<u64>)>, StoreError> {
        self.inner.link.erasures().await.map_err(|error| StoreError::Read(error.to_string()))
    }

    /// Another node erased a session. Its rows are gone from this node's own copy of the log when this returns, also when the node
    /// was away for longer than the streams tell of it.
    pub async fn erase_from_copy(&self, session: Key, row: &Row) -> Result<(), StoreError> {
        let inner = &self.inner;
        if !inner.caught_up(FLUSH).await {
            return Err(StoreError::Read("the log is behind the streams".into()));
        }
        inner.log.erase_from_copy(inner.names.number_of(session), row).await
    }

    /// Rids this node's files of what was removed.
    pub async fn purge(&self) -> Result<Vec<String>, StoreError> {
        self.inner.log.purge().await
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

    /// Whether it is known where the log ends.
    pub fn log_is_known(&self) -> bool {
        self.inner.log.is_known()
    }

    /// Whether the log can be read.
    pub async fn probe_log(&self) -> Result<(), StoreError> {
        self.inner.log.probe().await
    }

    pub fn committed(&self) -> watch::Receiver<u64> {
        self.inner.log.committed()
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

    pub async fn rows(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<Row>, StoreError> {
        self.inner.caught_up(CATCH_UP).await;
        self.inner.log.rows(filter, order, after, limit).await
    }

    pub async fn rows_with_effects(
        &self,
        filter: RowFilter,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RowWithEffects>, StoreError> {
        self.inner.log.rows_with_effects(filter, order, after, limit).await
    }

    pub async fn row_numbers(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<u64>, StoreError> {
        self.inner.caught_up(CATCH_UP).await;
        self.inner.log.row_numbers(filter, order, after, limit).await
    }

    pub async fn stats_by(
        &self,
        tenant: Option<String>,
        guard: Option<String>,
        since: i64,
        until: i64,
        minutes: i64,
    ) -> Result<Vec<RowCount>, StoreError> {
        self.inner.caught_up(CATCH_UP).await;
        self.inner.log.stats_by(tenant, guard, since, until, minutes).await
    }

    pub fn follower(&self) -> Follower {
        Follower::new(Arc::new(OneOfMany { log: self.inner.log.follower(), roster: self.inner.roster.clone() }))
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
