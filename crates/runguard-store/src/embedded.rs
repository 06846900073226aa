//! One process with its own files.
//!
//! What decides the shape (measured, see ARCHITECTURE.md): appending a row in arrival order costs a tenth of
//! inserting it under a random key, and one commit costs as much as fifteen appends. So
//!
//! - an answer waits for exactly one thing: its row at the end of a plain file, from where one thread brings the rows into the log, many
//!   in one commit ([`journal`]);
//! - the row carries the decision *and* the events that make its state, so both are there or neither;
//! - states live in memory ([`shard`]); everything that needs a random-order index (states on disk, sessions, zones,
//!   rollups) is a second file, derived from the log, built behind it in large sorted batches ([`indexer`]).
//!
//! The second file can be lost: it is built anew from the first.

mod import;
mod indexer;
pub(crate) mod journal;
mod query;
mod readers;
pub(crate) mod schema;
mod shard;

use crate::embedded::import::LatestIds;
use crate::embedded::indexer::Indexer;
use crate::embedded::journal::mover::{self, Work};
use crate::embedded::journal::{Appended, Awaited, Committed, Journal, Undo};
use crate::embedded::readers::{Lane, Readers};
use crate::embedded::schema::{Folder, describe};
use crate::embedded::shard::{Resident, Shard, Shards, TailEvent};
use crate::error::{OpenError, StoreError};
use crate::key::{Family, Key, Names};
use crate::log::{encode_effects, encode_erasure};
use crate::scrub::Checkpoint;
use crate::store::{Cell, Decided, Erased, FEW, Labelled, Rules, Safe, SlotState, Unfinished, View};
use runguard_core::row::{Effect, Row};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::watch;

/// Entries read from disk at a time when all of a family are looked at.
const ENTRIES_AT_ONCE: usize = 2000;

/// What an answered decision survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The end of the process at any moment (`kill -9`).
    #[default]
    Process,
    /// The end of the machine's power as well: every batch waits for the disk.
    Power,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub folder: PathBuf,
    pub durability: Durability,
    /// About how much memory states may take before old ones leave it.
    pub memory_bytes: usize,
    pub retention_days: u32,
    pub role: Role,
    /// For a folder that is new. Another keeps the ones it was made with.
    pub names: Names,
}

/// What an embedded store is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// States and log of one process.
    #[default]
    Whole,
    /// A copy of a cluster's log; its states are elsewhere.
    Log,
    /// A node of a cluster while the others' states are away.
    Alone,
}

#[derive(Debug)]
pub struct Embedded {
    pub(crate) inner: Arc<Inner>,
    threads: Mutex<Threads>,
}

/// In the order in which they end: each sees all that the one before has done.
#[derive(Debug, Default)]
struct Threads {
    syncer: Option<JoinHandle<()>>,
    writer: Option<JoinHandle<()>>,
    indexer: Option<JoinHandle<()>>,
}

pub(crate) struct Inner {
    pub(crate) folder: Folder,
    pub(crate) options: Options,
    pub(crate) shards: Arc<Shards>,
    pub(crate) journal: Journal,
    pub(crate) readers: Readers,
    pub(crate) rules: Rules,
    pub(crate) names: Names,
    /// Whether an entry that is not in memory may be on disk.
    pub(crate) cold: AtomicBool,
    /// Counts rounds of eviction.
    pub(crate) evictions: AtomicU64,
    /// The service's time, as last heard; the indexer goes by it.
    pub(crate) now: AtomicI64,
    /// As first heard: what later times are compared with, should the clock be set before the indexer looks.
    pub(crate) first_told: AtomicI64,
    /// Whether old things go by the time that was told, whatever really passed.
    pub(crate) believes_time: AtomicBool,
    /// How long a state can matter.
    pub(crate) state_lifetime_millis: AtomicI64,
    pub(crate) indexer: Indexer,
    latest_ids: Mutex<LatestIds>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Embedded {
    pub fn open(options: Options, rules: Rules) -> Result<Self, OpenError> {
        let folder = Folder::open(&options.folder)?;
        if folder.log_is_empty() && folder.index_path().exists() {
            // Asked before the log is opened, which would make a good empty file of a bad one.
            let known =
                folder.open_index().and_then(|index| known_to_index(&index).map_err(|error| describe(&folder.index_path(), &error)))?;
            if known.last_row > 0 {
                return Err(OpenError::Lost { path: folder.log_path(), last: 0, known: known.last_row });
            }
        }
        let (log, names) = folder.open_log(options.durability, options.names)?;
        let index = folder.open_index()?;
        let known = known_to_index(&index).map_err(|error| describe(&folder.index_path(), &error))?;
        let last: u64 = log
            .query_row("SELECT coalesce(max(seq), 0) FROM log", [], |row| row.get(0))
            .map_err(|error| describe(&folder.log_path(), &error))?;
        // A power cut may take the last rows, unless each was waited for. Asked before the journal goes into the log: of another one it is
        // no part.
        if last < known.last_row && (last == 0 || options.durability == Durability::Power) {
            return Err(OpenError::Lost { path: folder.log_path(), last, known: known.last_row });
        }
        let left = mover::recover(&options.folder, options.durability, &log)?;
        if left > 0 {
            tracing::info!(rows = left, "decisions that the process before had not brought into the log yet are in it now");
        }
        let shards = Arc::new(Shards::new());
        let checkpointed = match options.role {
            Role::Whole | Role::Alone => known.checkpointed,
            // What the rows did to states is done elsewhere.
            Role::Log => i64::MAX as u64,
        };
        let last_seq = recover(&log, checkpointed, &shards).map_err(|error| describe(&folder.log_path(), &error))?;
        if last_seq < known.last_row {
            // The states have counted them: that stays.
            tracing::warn!(
                last = last_seq,
                known = known.last_row,
                "the last rows of the log are missing, as after a power cut; set store.durability = \"power\" to keep them through one"
            );
        }
        let last_seq = last_seq.max(known.indexed).max(known.newest);
        let has_tail = shards.lock_all().iter().any(|shard| !shard.tail.is_empty());
        let journal = Journal::open(&options.folder, options.durability, last_seq, names)
            .map_err(|source| OpenError::Folder { path: options.folder.clone(), source })?;
        let inner = Arc::new(Inner {
            journal,
            readers: Readers::default(),
            shards,
            rules,
            names,
            cold: AtomicBool::new(known.holds_states || has_tail),
            evictions: AtomicU64::new(0),
            now: AtomicI64::new(i64::MIN),
            first_told: AtomicI64::new(i64::MIN),
            believes_time: AtomicBool::new(false),
            state_lifetime_millis: AtomicI64::new(0),
            indexer: Indexer::default(),
            latest_ids: Mutex::default(),
            folder,
            options,
        });
        let syncer = (inner.options.durability == Durability::Power).then(|| {
            let inner = inner.clone();
            spawn("log-syncer", move || inner.journal.sync(&inner.shards))
        });
        let writer = {
            let inner = inner.clone();
            spawn("log-writer", move || inner.write_log(&log))
        };
        let indexer = {
            let inner = inner.clone();
            spawn("indexer", move || Indexer::run(&inner, index))
        };
        let failed = |source| OpenError::Folder { path: inner.options.folder.clone(), source };
        let threads = Threads {
            syncer: syncer.transpose().map_err(failed)?,
            writer: Some(writer.map_err(failed)?),
            indexer: Some(indexer.map_err(failed)?),
        };
        Ok(Self { inner, threads: Mutex::new(threads) })
    }

    /// How the names in a folder became keys; `None` while there is no log in it.
    pub fn names_in(folder: &Path) -> Result<Option<Names>, OpenError> {
        schema::names_in(folder)
    }

    /// Others decide upon what the step kept before it is safe: rows are written in the order of the steps, and what cannot be written is
    /// taken back with all that followed.
    pub async fn decide<R>(&self, cells: &[Cell<'_>], mut step: impl FnMut(&View<'_>) -> Decided<R>) -> Result<(R, Safe), StoreError> {
        loop {
            match self.inner.step(cells, &mut step)? {
                Some((reply, Awaited::Nothing)) => return Ok((reply, Safe::default())),
                Some((reply, awaited)) => return Ok((reply, Safe(Some(self.kept(awaited))))),
                None => Box::pin(self.make_resident(&cells.iter().map(|cell| cell.key).collect::<SmallVec<[Key; FEW]>>())).await?,
            }
        }
    }

    pub async fn apply<R>(&self, cells: &[Cell<'_>], step: impl FnMut(&View<'_>) -> Decided<R>) -> Result<R, StoreError> {
        let (reply, safe) = self.decide(cells, step).await?;
        safe.wait().await?;
        Ok(reply)
    }

    fn kept(&self, awaited: Awaited) -> PendingWrite {
        PendingWrite { inner: self.inner.clone(), awaited }
    }

    /// Brings entries from disk that have left memory, or have not come back since the start.
    async fn make_resident(&self, keys: &[Key]) -> Result<(), StoreError> {
        let absent: Vec<Key> = keys.iter().copied().filter(|key| !self.inner.shards.of(*key).map.contains_key(key)).collect();
        if absent.is_empty() {
            return Ok(());
        }
        self.inner.in_lane(Lane::Answers, move |inner| inner.load(&absent)).await
    }

    pub async fn states(&self, tenant: &str, session: &str) -> Result<Vec<SlotState>, StoreError> {
        self.states_of(self.inner.names.key(Family::Session, tenant, session)).await
    }

    /// The states of any entry.
    pub async fn states_of(&self, key: Key) -> Result<Vec<SlotState>, StoreError> {
        loop {
            {
                let shard = self.inner.shards.of(key);
                if !self.inner.may_be_on_disk(&shard, key) {
                    return Ok(shard.map.get(&key).map(|resident| resident.slots.clone()).unwrap_or_default());
                }
            }
            self.make_resident(&[key]).await?;
        }
    }

    pub async fn visit_family<T: Send + 'static>(
        &self,
        family: Family,
        mut into: T,
        mut visit: impl FnMut(&mut T, Labelled<'_>) + Send + 'static,
    ) -> Result<T, StoreError> {
        let read = move |inner: &Inner| {
            // What the log's tail says of entries that nobody has asked for yet.
            inner.load(&inner.shards.waiting(family))?;
            let mut show = |slots: &[SlotState]| {
                for SlotState { slot, subject, state } in slots {
                    visit(&mut into, Labelled { label: subject, slot: *slot, state });
                }
            };
            let is_cold = inner.cold.load(Ordering::Acquire);
            let mut shown = HashSet::new();
            inner.shards.visit(family, |key, slots| {
                if is_cold {
                    shown.insert(key);
                }
                show(slots);
            });
            if is_cold {
                inner.visit_on_disk(family, |key, slots| {
                    if !shown.contains(&key) {
                        show(slots);
                    }
                })?;
            }
            Ok(into)
        };
        self.inner.in_lane(Lane::Questions, read).await
    }

    /// Takes a session out of the log and the states. What its bytes leave in the files goes with [`Embedded::purge`].
    pub async fn erase_session(&self, tenant: &str, session: &str, row: Row) -> Result<Option<Erased>, StoreError> {
        self.erase_before(tenant, session, i64::MAX, row).await
    }

    /// The same; of its rows only those of until this time.
    async fn erase_before(&self, tenant: &str, session: &str, before: i64, row: Row) -> Result<Option<Erased>, StoreError> {
        // The rows that go also carry what the session did to endpoints: that must be on disk before they go.
        self.flush().await?;
        let mut erased = Erased { log_rows: 0, row: row.clone(), unfinished: None };
        let mut upto = u64::MAX;
        // Rows may come while it goes on. Those before the row that tells of the erasure are the session's old life, and go in
        // another round; after that row a new one begins.
        loop {
            let is_first = upto == u64::MAX;
            match self.erase_round(tenant, session, &row, (upto, before)).await {
                Ok(Some((rows, seq))) => {
                    erased.log_rows += rows;
                    upto = if is_first { seq } else { upto };
                }
                Ok(None) => return Ok((!is_first).then_some(erased)),
                Err(error) if is_first => return Err(error),
                Err(error) => {
                    erased.unfinished = Some(Unfinished { why: error.to_string(), earlier: None });
                    return Ok(Some(erased));
                }
            }
        }
    }

    /// Takes the rows before `upto`; the first time the states as well. Gives how many rows there were, and the number of the one that tells
    /// of it. `None`: there was nothing.
    async fn erase_round(
        &self,
        tenant: &str,
        session: &str,
        row: &Row,
        (upto, before): (u64, i64),
    ) -> Result<Option<(usize, u64)>, StoreError> {
        let entry = self.inner.names.key(Family::Session, tenant, session);
        self.make_resident(&[entry]).await?;
        let rows = self.rows_of_session(tenant, session, upto, before).await?;
        let is_first = upto == u64::MAX;
        let holds_nothing = || self.inner.shards.of(entry).map.get(&entry).is_none_or(|resident| resident.slots.is_empty());
        if rows.is_empty() && (!is_first || holds_nothing()) {
            return Ok(None);
        }
        let mut keys = Vec::from_iter(is_first.then_some(entry));
        for (_, effects) in &rows {
            let effects = Effect::read_all(effects);
            let kept_answers = effects.iter().filter(|effect| effect.family == Family::Idempotency as u8);
            keys.extend(kept_answers.map(|effect| Key { family: Family::Idempotency, hash: effect.hash }));
        }
        let seqs: Vec<u64> = rows.iter().map(|(seq, _)| *seq).collect();
        let (seq, committed) = loop {
            match self.inner.erase(&keys, row, &seqs)? {
                Some(pushed) => break pushed,
                None => self.make_resident(&keys).await?,
            }
        };
        self.kept(Awaited::Row(committed)).wait().await?;
        Ok(Some((seqs.len(), seq)))
    }

    /// The rows of a session before `upto`, and of until a time, with their effects.
    async fn rows_of_session(&self, tenant: &str, session: &str, upto: u64, before: i64) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let (tenant, session, names) = (tenant.to_owned(), session.to_owned(), self.inner.names);
        let upto = upto.min(i64::MAX as u64);
        self.blocking(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT l.seq, l.effects FROM idx.sessions s JOIN main.log l ON l.seq = s.seq
                 WHERE s.session = ?1 AND s.seq < ?5 AND l.at <= ?6 AND l.tenant = ?2 AND l.session = ?3
                 UNION ALL
                 SELECT seq, effects FROM main.log WHERE seq > ?4 AND seq < ?5 AND at <= ?6 AND tenant = ?2 AND session = ?3",
            )?;
            let indexed_upto = crate::embedded::query::indexed_upto(connection)?;
            let values = rusqlite::params![names.session_number(&tenant, &session), tenant, session, indexed_upto, upto, before];
            let rows = select.query_map(values, |row| Ok((row.get(0)?, row.get::<_, Option<Vec<u8>>>(1)?.unwrap_or_default())))?;
            rows.collect()
        })
        .await
    }

    /// Overwrites what was removed, in all files, and empties their write-ahead logs. Gives the files that keep some of it, because
    /// somebody reads an older state of them.
    pub async fn purge(&self) -> Result<Vec<String>, StoreError> {
        self.inner.indexer.ask_to_purge().await.map_err(|_| StoreError::Stopping)?
    }

    /// Brings the second file up to date, and empties the write-ahead logs unless somebody reads.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let flushed = self.inner.indexer.ask_to_flush();
        let _ = flushed.await;
        self.work(Work::Checkpoint { how: Checkpoint::Truncate, is_done: false }).await
    }

    /// Whether the disk takes a write right now.
    pub async fn probe(&self) -> Result<(), StoreError> {
        self.work(Work::Probe).await
    }

    async fn work(&self, work: Work) -> Result<(), StoreError> {
        let worked = self.inner.journal.order(work).ok_or(StoreError::Stopping)?;
        worked.await.map_err(|_| StoreError::Stopping)?.map(drop)
    }

    pub fn names(&self) -> Names {
        self.inner.names
    }

    pub fn committed(&self) -> watch::Receiver<u64> {
        self.inner.journal.watch()
    }

    pub fn tell_time(&self, now_millis: i64) {
        if self.inner.first_told.load(Ordering::Relaxed) == i64::MIN {
            let _ = self.inner.first_told.compare_exchange(i64::MIN, now_millis, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.inner.now.store(now_millis, Ordering::Relaxed);
    }

    /// Old things go by the time that is told, as it is told: for a clock that callers drive.
    pub fn believe_told_time(&self) {
        self.inner.believes_time.store(true, Ordering::Relaxed);
    }

    /// States are kept as long as the log, and at least this long.
    pub fn keep_states_for(&self, millis: i64) {
        self.inner.state_lifetime_millis.store(millis, Ordering::Relaxed);
    }

    pub fn entries_in_memory(&self) -> usize {
        self.inner.shards.entries()
    }

    pub fn bytes_in_memory(&self) -> usize {
        self.inner.shards.bytes()
    }

    /// Rows that are decided but not yet in the index.
    pub fn rows_behind(&self) -> u64 {
        self.inner.journal.safe().saturating_sub(self.inner.indexer.indexed_upto())
    }

    /// What is in use of the log's write-ahead log.
    pub fn wal_bytes(&self) -> u64 {
        self.inner.indexer.wal_bytes()
    }

    pub fn stop(&self) {
        let mut threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        self.inner.journal.stop(&self.inner.shards);
        join(threads.syncer.take());
        self.inner.journal.stop_mover();
        join(threads.writer.take());
        self.inner.indexer.stop();
        join(threads.indexer.take());
    }
}

/// Moves what a process that was killed has left in the journal into the log, as the next start would, and does nothing else.
pub fn bring_home(folder: &Path) -> Result<(), OpenError> {
    let folder = Folder::open(folder)?;
    let (log, _) = folder.open_log(Durability::default(), Names::PLAIN)?;
    mover::recover(folder.path(), Durability::default(), &log)?;
    Ok(())
}

fn join(thread: Option<JoinHandle<()>>) {
    if thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("a thread of the store ended in a panic");
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}

/// What a step kept, or rests on, until it is safe.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    inner: Arc<Inner>,
    awaited: Awaited,
}

impl PendingWrite {
    pub(crate) async fn wait(mut self) -> Result<(), StoreError> {
        if let Some(written) = self.is_written() {
            return written;
        }
        // What others decide on this thread meanwhile is written with it.
        tokio::task::yield_now().await;
        if let Some(written) = self.is_written() {
            return written;
        }
        self.inner.journal.write_out(&self.inner.shards);
        match std::mem::take(&mut self.awaited) {
            Awaited::Row(committed) => committed.await.map_err(|_| StoreError::Stopping)?,
            others => self.inner.journal.is_written(&others).unwrap_or(Err(StoreError::Stopping)),
        }
    }

    fn is_written(&mut self) -> Option<Result<(), StoreError>> {
        let written = match &mut self.awaited {
            Awaited::Row(committed) => match committed.try_recv() {
                Ok(written) => written,
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Closed) => Err(StoreError::Stopping),
            },
            others => self.inner.journal.is_written(others)?,
        };
        self.awaited = Awaited::Nothing;
        Some(written)
    }
}

impl Drop for PendingWrite {
    /// Who does not wait any more leaves nothing behind that others have to wait for.
    fn drop(&mut self) {
        if let Awaited::Row(_) = self.awaited {
            self.inner.journal.write_out(&self.inner.shards);
        }
    }
}

type Locked<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); FEW]>;

impl Inner {
    /// The life of the thread that has the log's connection.
    fn write_log(&self, log: &Connection) {
        schema::say_that_a_journal_is_beside(log, true);
        if self.journal.run_mover(log) {
            schema::say_that_a_journal_is_beside(log, false);
        }
    }

    /// In the order of their numbers, so that two steps never wait for each other.
    fn lock_shards<'a>(&'a self, keys: &[Key]) -> Locked<'a> {
        let mut indexes: SmallVec<[usize; FEW]> = keys.iter().map(|key| Shards::index_of(*key)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        indexes.into_iter().map(|index| (index, self.shards.lock(index))).collect()
    }

    /// Asked with the shard's lock held. The indexer says that it will evict before it takes the lock to do so; hence
    /// whoever finds an entry missing under the lock also finds out whether it may have been evicted.
    fn may_be_on_disk(&self, shard: &Shard, key: Key) -> bool {
        self.cold.load(Ordering::Acquire) && !shard.map.contains_key(&key)
    }

    fn any_may_be_on_disk(&self, shards: &[(usize, MutexGuard<'_, Shard>)], keys: &[Key]) -> bool {
        self.cold.load(Ordering::Acquire)
            && keys.iter().any(|key| {
                let index = Shards::index_of(*key);
                shards.iter().find(|(other, _)| *other == index).is_some_and(|(_, shard)| self.may_be_on_disk(shard, *key))
            })
    }

    /// The states that a step sees, from shards that are locked.
    fn view<'a>(&self, cells: &[Cell<'_>], shards: &'a [(usize, MutexGuard<'_, Shard>)]) -> View<'a> {
        let safe = self.journal.safe();
        let resident = |cell: &Cell<'_>| {
            let index = Shards::index_of(cell.key);
            shards.iter().find(|(other, _)| *other == index).and_then(|(_, shard)| shard.map.get(&cell.key))
        };
        let residents: SmallVec<[Option<&'a Resident>; FEW]> = cells.iter().map(resident).collect();
        View {
            states: residents.iter().zip(cells).map(|(resident, cell)| (*resident)?.get(cell.slot, cell.subject)).collect(),
            safe: residents.iter().map(|resident| resident.is_none_or(|resident| resident.seq <= safe)).collect(),
            health: self.options.role.health(),
            not_before: i64::MIN,
        }
    }

    /// `None`: an entry must be brought from disk first.
    fn step<R>(&self, cells: &[Cell<'_>], step: &mut impl FnMut(&View<'_>) -> Decided<R>) -> Result<Option<(R, Awaited)>, StoreError> {
        let keys: SmallVec<[Key; FEW]> = cells.iter().map(|cell| cell.key).collect();
        let mut shards = self.lock_shards(&keys);
        let (reply, written) = loop {
            if self.any_may_be_on_disk(&shards, &keys) {
                return Ok(None);
            }
            let view = self.view(cells, &shards);
            let (decided, answers_are_safe) = (step(&view), view.is_safe_in(cells, Family::Idempotency));
            drop(view);
            match decided {
                Decided::Keep(reply, written) => break (reply, written),
                Decided::Reply(reply) if self.options.durability == Durability::Power => return Ok(Some((reply, Awaited::Nothing))),
                // An answer that is about to be written is written, and given again.
                Decided::Reply(_) if !answers_are_safe => {
                    if self.journal.try_to_write_out().is_err() {
                        drop(shards);
                        self.journal.write_out(&self.shards);
                        shards = self.lock_shards(&keys);
                    }
                }
                Decided::Reply(reply) => {
                    let index = |key: &Key| Shards::index_of(*key);
                    let seq_of = |key: &Key| Some(shards.iter().find(|(other, _)| *other == index(key))?.1.map.get(key)?.seq);
                    let seq = keys.iter().filter_map(seq_of).max().unwrap_or_default();
                    return Ok(Some((reply, self.journal.rest_on(seq))));
                }
            }
        };
        let effects = encode_effects(cells, &written.changes)?;
        let record = Appended { row: &written.row, effects: &effects, removed: &[] }.encode()?;
        let at = written.row.at;
        let mut undo = Vec::with_capacity(written.changes.len());
        for change in written.changes {
            let Cell { key, slot, subject, .. } = cells[change.cell];
            let index = Shards::index_of(key);
            let Some((_, shard)) = shards.iter_mut().find(|(other, _)| *other == index) else { continue };
            let (old, was_dirty) = shard.change(key, |resident| {
                resident.at = at;
                (resident.put(slot, subject, change.state.into()), std::mem::replace(&mut resident.dirty, true))
            });
            undo.push(Undo::Slot { key, slot, subject: subject.into(), state: old });
            if !was_dirty {
                shard.dirty.push(key);
            }
        }
        let touched: SmallVec<[Key; FEW]> = undo.iter().map(Undo::key).collect();
        let (seq, committed) = self.journal.append(record, undo).map_err(|refused| refuse(&mut shards, refused))?;
        for key in touched {
            let index = Shards::index_of(key);
            if let Some(resident) = shards.iter_mut().find(|(other, _)| *other == index).and_then(|(_, shard)| shard.map.get_mut(&key)) {
                resident.seq = seq;
            }
        }
        drop(shards);
        Ok(Some((reply, Awaited::Row(committed))))
    }

    /// `None`: some of it must be loaded first.
    fn erase(&self, keys: &[Key], row: &Row, seqs: &[u64]) -> Result<Option<(u64, Committed)>, StoreError> {
        let mut shards = self.lock_shards(keys);
        if self.any_may_be_on_disk(&shards, keys) {
            return Ok(None);
        }
        let record = Appended { row, effects: &encode_erasure(keys.iter()), removed: seqs }.encode()?;
        let at = row.at;
        let mut undo = Vec::with_capacity(keys.len());
        for key in keys {
            let index = Shards::index_of(*key);
            let Some((_, shard)) = shards.iter_mut().find(|(other, _)| *other == index) else { continue };
            let (slots, was_dirty) = shard.change(*key, |resident| {
                resident.at = at;
                (std::mem::take(&mut resident.slots), std::mem::replace(&mut resident.dirty, true))
            });
            undo.push(Undo::Entry { key: *key, slots });
            if !was_dirty {
                shard.dirty.push(*key);
            }
        }
        let (seq, committed) = self.journal.append(record, undo).map_err(|refused| refuse(&mut shards, refused))?;
        for key in keys {
            let index = Shards::index_of(*key);
            if let Some(resident) = shards.iter_mut().find(|(other, _)| *other == index).and_then(|(_, shard)| shard.map.get_mut(key)) {
                resident.seq = seq;
            }
        }
        drop(shards);
        Ok(Some((seq, committed)))
    }

    /// Reads entries from disk and makes them resident.
    pub(crate) fn load(&self, keys: &[Key]) -> Result<(), StoreError> {
        let mut wanted: Vec<Key> = keys.to_vec();
        while !wanted.is_empty() {
            let evictions = self.evictions.load(Ordering::Acquire);
            let found = self.read_entries(&wanted)?;
            wanted.clear();
            for (key, on_disk) in found {
                let mut shard = self.shards.of(key);
                // Evicted between our reading and now: what we read may be older than what was written then.
                if self.evictions.load(Ordering::Acquire) == evictions {
                    shard.admit(key, on_disk, &self.rules);
                } else {
                    wanted.push(key);
                }
            }
        }
        Ok(())
    }

    fn read_entries(&self, keys: &[Key]) -> Result<Vec<(Key, Option<(u64, i64, Vec<SlotState>)>)>, StoreError> {
        self.readers.read(Lane::Answers, &self.folder, |connection| {
            let mut select = connection.prepare_cached("SELECT seq, at, slots FROM idx.states WHERE family = ?1 AND hash = ?2")?;
            let mut found = Vec::with_capacity(keys.len());
            for key in keys {
                let mut rows = select.query(rusqlite::params![key.family as u8, key.hash.to_be_bytes()])?;
                let on_disk = match rows.next()? {
                    Some(row) => Some((row.get(0)?, row.get(1)?, decode_slots(row.get_ref(2)?.as_blob()?))),
                    None => None,
                };
                found.push((*key, on_disk));
            }
            Ok(found)
        })
    }

    /// Shows the entries of a family that are on disk, some at a time, so that no snapshot is held for long.
    fn visit_on_disk(&self, family: Family, mut visit: impl FnMut(Key, &[SlotState])) -> Result<(), StoreError> {
        let mut after: Vec<u8> = Vec::new();
        loop {
            let page: Vec<(Vec<u8>, Vec<SlotState>)> = self.readers.read(Lane::Questions, &self.folder, |connection| {
                let mut select = connection
                    .prepare_cached("SELECT hash, slots FROM idx.states WHERE family = ?1 AND hash > ?2 ORDER BY hash LIMIT ?3")?;
                let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, decode_slots(row.get_ref(1)?.as_blob()?)));
                let rows = select.query_map(rusqlite::params![family as u8, after, ENTRIES_AT_ONCE], read)?;
                rows.collect()
            })?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after.clone_from(last);
            for (hash, slots) in &page {
                visit(Key { family, hash: decode_hash(hash) }, slots);
            }
        }
    }
}

/// Nothing of what could not be written may be there when somebody else looks.
fn refuse(shards: &mut [(usize, MutexGuard<'_, Shard>)], (error, undo): (StoreError, Vec<Undo>)) -> StoreError {
    for undo in undo.into_iter().rev() {
        let index = Shards::index_of(undo.key());
        if let Some((_, shard)) = shards.iter_mut().find(|(other, _)| *other == index) {
            shard.take_back(undo);
        }
    }
    error
}

pub(crate) fn decode_slots(bytes: &[u8]) -> Vec<SlotState> {
    postcard::from_bytes(bytes).unwrap_or_default()
}

pub(crate) fn decode_hash(bytes: &[u8]) -> u128 {
    bytes.try_into().map(u128::from_be_bytes).unwrap_or_default()
}

/// What the index says of itself and of the log.
struct IndexFacts {
    checkpointed: u64,
    indexed: u64,
    /// The last row that a state rests on.
    newest: u64,
    /// The last row that was in the log and was not removed by retention.
    last_row: u64,
    holds_states: bool,
}

fn known_to_index(index: &Connection) -> Result<IndexFacts, rusqlite::Error> {
    Ok(IndexFacts {
        checkpointed: crate::embedded::query::progress(index, "checkpointed")?,
        indexed: crate::embedded::query::progress(index, "indexed")?,
        newest: crate::embedded::query::progress(index, "newest")?.max(crate::embedded::query::progress(index, "checkpointed")?),
        last_row: index.query_row(
            "SELECT coalesce(max(last_seq), 0) FROM zones WHERE last_seq > ?1",
            [crate::embedded::query::progress(index, "pruned")?],
            |row| row.get(0),
        )?,
        holds_states: index.query_row("SELECT EXISTS (SELECT 1 FROM states)", [], |row| row.get(0))?,
    })
}

/// Reads the rows that came after the last checkpoint of the states and hangs their events up in the shards. The
/// states themselves stay on disk until they are asked for, so a start takes as long as this tail, not as the log.
/// Gives the last row's number.
fn recover(log: &Connection, checkpointed: u64, shards: &Shards) -> Result<u64, rusqlite::Error> {
    let mut select = log.prepare("SELECT seq, at, effects FROM log WHERE seq > ?1 AND effects IS NOT NULL ORDER BY seq")?;
    let mut rows = select.query([checkpointed])?;
    while let Some(row) = rows.next()? {
        let (seq, at): (u64, i64) = (row.get(0)?, row.get(1)?);
        for effect in Effect::read_all(row.get_ref(2)?.as_blob()?) {
            let Some(key) = Key::of(&effect) else { continue };
            let event = TailEvent { seq, at, slot: effect.slot, subject: effect.subject.into(), events: effect.events.into() };
            shards.of(key).tail.entry(key).or_default().push(event);
        }
    }
    log.query_row("SELECT coalesce(max(seq), 0) FROM log", [], |row| row.get(0))
}
