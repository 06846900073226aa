//! What runs behind the answers: indexes, states on disk, old things leaving.
//!
//! All of it is in one thread and in large sorted batches. It may fall behind under load; queries look at the index
//! *and* at the rows behind it, so falling behind costs queries time and nobody an answer.

use crate::embedded::journal::mover::Work;
use crate::embedded::schema::{INDEX_FILE, LOG_FILE, LOG_PAGE_BYTES};
use crate::embedded::shard::SHARDS;
use crate::embedded::{Inner, decode_hash, decode_slots};
use crate::error::StoreError;
use crate::key::{Family, Key, Names, mask};
use crate::pace::Pace;
use crate::scrub::{BUSY, Checkpoint, Pages, checkpoint, overwrite_unused};
use crate::store::{IDEMPOTENCY_MILLIS, Keep, MONTH_MILLIS, SlotState};
use crate::trusted_time::TrustedTime;
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use runguard_core::row::{Kind, Named};
use runguard_core::time::{DAY_MILLIS, MINUTE_MILLIS};
use rusqlite::{Connection, OptionalExtension, params};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How often it looks whether there is something to do.
const PULSE: Duration = Duration::from_millis(500);
/// Rows are indexed when this many wait, or when they have waited this long.
const INDEX_ROWS: u64 = 50_000;
const INDEX_EVERY: Duration = Duration::from_secs(2);
/// States go to disk when this many rows came since; so many rows a start has to read at most, about.
const CHECKPOINT_ROWS: u64 = 400_000;
const CHECKPOINT_EVERY: Duration = Duration::from_secs(20);
/// Rows of one transaction, and of one zone.
const CHUNK: u64 = 50_000;
const ZONE_ROWS: u64 = 1024;
/// The write-ahead log starts over at this size. Each time costs the writer a wait for the disk; a start after a crash
/// reads all of it.
const WAL_LIMIT: u64 = 128 * 1024 * 1024;
/// From here on it is moved into the database while others write.
const WAL_BACKGROUND: u64 = 16 * 1024 * 1024;
/// From here on our own readers are held until it has started over.
const WAL_PAUSE: u64 = 4 * WAL_LIMIT;
/// When somebody else reads for so long that it grows to this, it is told.
const WAL_TOLD: u64 = 8 * WAL_LIMIT;
const FEW_PAGES: u64 = 128;
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// Rows removed at a time, so that no answer waits long behind a removal.
const PRUNE_ROWS: u64 = 500;

/// The files that could not be rid of what was removed, because somebody reads an older state of them.
pub(crate) type Purged = Result<Vec<String>, StoreError>;

#[derive(Debug, Default)]
struct IndexerWork {
    stop: bool,
    flush: Vec<oneshot::Sender<()>>,
    purge: Vec<oneshot::Sender<Purged>>,
}

impl IndexerWork {
    fn is_empty(&self) -> bool {
        !self.stop && self.flush.is_empty() && self.purge.is_empty()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Indexer {
    asked: Mutex<IndexerWork>,
    woken: Condvar,
    indexed: AtomicU64,
    wal_bytes: AtomicU64,
}

impl Indexer {
    pub(crate) fn indexed_upto(&self) -> u64 {
        self.indexed.load(Ordering::Acquire)
    }

    /// What is in use of the log's write-ahead log.
    pub(crate) fn wal_bytes(&self) -> u64 {
        self.wal_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.woken.notify_all();
    }

    pub(crate) fn ask_to_flush(&self) -> oneshot::Receiver<()> {
        let (done, flushed) = oneshot::channel();
        let mut asked = self.lock();
        // A indexer that is stopping takes no more requests: the sender is dropped, and whoever waits is told.
        if !asked.stop {
            asked.flush.push(done);
            self.woken.notify_all();
        }
        flushed
    }

    pub(crate) fn ask_to_purge(&self) -> oneshot::Receiver<Purged> {
        let (done, purged) = oneshot::channel();
        let mut asked = self.lock();
        if !asked.stop {
            asked.purge.push(done);
            self.woken.notify_all();
        }
        purged
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, IndexerWork> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) -> IndexerWork {
        let mut asked = self.lock();
        if asked.is_empty() {
            asked = self.woken.wait_timeout(asked, PULSE).unwrap_or_else(PoisonError::into_inner).0;
        }
        IndexerWork { stop: asked.stop, flush: std::mem::take(&mut asked.flush), purge: std::mem::take(&mut asked.purge) }
    }

    pub(crate) fn run(inner: &Arc<Inner>, index: Connection) {
        let mut round = Round::new(inner.clone(), index);
        round.warm_up();
        loop {
            let asked = inner.indexer.wait();
            round.work(!asked.is_empty());
            for done in asked.flush {
                let _ = done.send(());
            }
            if !asked.purge.is_empty() {
                let purged = round.purge().map_err(|error| StoreError::Write(error.to_string()));
                for done in asked.purge {
                    let _ = done.send(purged.clone());
                }
            }
            if asked.stop {
                return;
            }
        }
    }
}

/// Between two pieces of work.
const REST: Duration = Duration::from_millis(1);

struct Round {
    inner: Arc<Inner>,
    index: Connection,
    log: Option<Connection>,
    indexed: u64,
    checkpointed: u64,
    last_index: Instant,
    last_checkpoint: Instant,
    last_retention: Option<Instant>,
    /// None before the first look.
    trusted: Option<TrustedTime>,
    last_told: i64,
    /// The last row of the life before this one.
    last_at_start: u64,
    /// Each said once, not twice a second.
    troubled: bool,
    held_up: bool,
}

impl Round {
    fn new(inner: Arc<Inner>, index: Connection) -> Self {
        let indexed = crate::embedded::query::progress(&index, "indexed").unwrap_or(0);
        let checkpointed = crate::embedded::query::progress(&index, "checkpointed").unwrap_or(0);
        inner.indexer.indexed.store(indexed, Ordering::Release);
        let last_at_start = inner.journal.moved();
        Self {
            inner,
            index,
            log: None,
            indexed,
            checkpointed,
            last_index: Instant::now(),
            last_checkpoint: Instant::now(),
            last_retention: None,
            trusted: None,
            last_told: i64::MIN,
            last_at_start,
            troubled: false,
            held_up: false,
        }
    }

    /// Brings the states into memory, newest knowledge first: what the log's tail says, then what the disk has.
    /// Until it is done nothing leaves memory, so "not resident" means "not touched since the start".
    fn warm_up(&mut self) {
        if !self.inner.cold.load(Ordering::Acquire) {
            return;
        }
        let everything_fits = self.load_all().unwrap_or_else(|error| {
            tracing::warn!(%error, "states are read one by one, as they are asked for");
            false
        });
        if let Err(error) = self.merge_tails() {
            tracing::error!(%error, "the tail of the log could not be merged into the states yet");
            return;
        }
        if everything_fits {
            self.inner.cold.store(false, Ordering::Release);
        }
    }

    fn load_all(&mut self) -> Result<bool, StoreError> {
        let mut after = (-1_i64, Vec::new());
        loop {
            if self.inner.shards.bytes() >= self.inner.options.memory_bytes || self.inner.indexer.lock().stop {
                return Ok(false);
            }
            let read = || -> rusqlite::Result<Vec<(Key, (u64, i64, Vec<SlotState>))>> {
                let mut select = self.index.prepare_cached(
                    "SELECT family, hash, seq, at, slots FROM states WHERE (family, hash) > (?1, ?2) ORDER BY family, hash LIMIT 20000",
                )?;
                let mut rows = select.query(params![after.0, after.1])?;
                let mut found = Vec::new();
                while let Some(row) = rows.next()? {
                    let Some(family) = Family::from_number(row.get(0)?) else { continue };
                    let key = Key { family, hash: decode_hash(row.get_ref(1)?.as_blob()?) };
                    found.push((key, (row.get(2)?, row.get(3)?, decode_slots(row.get_ref(4)?.as_blob()?))));
                }
                Ok(found)
            };
            let found = read()
                .inspect_err(|error| self.inner.folder.mark_index_damaged(error))
                .map_err(|error| StoreError::Read(error.to_string()))?;
            let Some((last, _)) = found.last() else { return Ok(true) };
            after = (last.family as i64, last.hash.to_be_bytes().to_vec());
            for (key, on_disk) in found {
                self.inner.shards.of(key).admit(key, Some(on_disk), &self.inner.rules);
            }
        }
    }

    fn merge_tails(&self) -> Result<(), StoreError> {
        for shard in 0..SHARDS {
            let mut waiting: Vec<Key> = self.inner.shards.lock(shard).tail.keys().copied().collect();
            waiting.sort_unstable();
            for keys in waiting.chunks(1000) {
                self.inner.load(keys)?;
            }
        }
        Ok(())
    }

    fn has_unmerged_tails(&self) -> bool {
        (0..SHARDS).any(|shard| !self.inner.shards.lock(shard).tail.is_empty())
    }

    fn work(&mut self, all: bool) {
        if all {
            // What cannot be moved is told by the writer.
            let _ = self.inner.journal.settle();
        }
        match self.try_work(all) {
            Ok(()) => self.troubled = false,
            Err(error) if !self.troubled => {
                self.troubled = true;
                self.inner.folder.mark_index_damaged(&error);
                tracing::error!(%error, "the index cannot be written; answers go on, and it is caught up when the disk allows");
            }
            Err(_) => {}
        }
    }

    fn try_work(&mut self, all: bool) -> Result<(), rusqlite::Error> {
        let pace = || if all { Pace::hurried() } else { Pace::new(REST) };
        let behind = self.inner.journal.moved().saturating_sub(self.indexed);
        if behind > 0 && (all || behind >= INDEX_ROWS || self.last_index.elapsed() >= INDEX_EVERY) {
            self.index_rows(&mut pace())?;
            self.last_index = Instant::now();
        }
        let since_checkpoint = self.inner.journal.moved().saturating_sub(self.checkpointed);
        if since_checkpoint > 0 && (all || since_checkpoint >= CHECKPOINT_ROWS || self.last_checkpoint.elapsed() >= CHECKPOINT_EVERY) {
            self.checkpoint_states(&mut pace());
            self.last_checkpoint = Instant::now();
        }
        self.checkpoint_log(all)?;
        if all || self.last_retention.is_none_or(|last| last.elapsed() >= RETENTION_EVERY) {
            self.retire()?;
        }
        self.make_room();
        Ok(())
    }

    fn log(&mut self) -> Result<&Connection, rusqlite::Error> {
        if self.log.is_none() {
            let connection = Connection::open(self.inner.folder.log_path())?;
            connection.busy_timeout(BUSY)?;
            connection.execute_batch("PRAGMA wal_autocheckpoint = 0; PRAGMA synchronous = NORMAL;")?;
            self.log = Some(connection);
        }
        self.log.as_ref().ok_or(rusqlite::Error::InvalidQuery)
    }

    /// Indexes the committed rows that are not indexed yet.
    fn index_rows(&mut self, pace: &mut Pace) -> Result<(), rusqlite::Error> {
        let fresh = self.inner.journal.take_fresh();
        // What is no longer remembered, or never was (rows from before the start), up to the first that is: what comes
        // before a fresh row is committed. A count read elsewhere might be older and leave a gap between the two.
        let upto = fresh.iter().flatten().next().map_or_else(|| self.inner.journal.moved(), |row| row.seq - 1);
        while self.indexed < upto {
            let (after, last) = (self.indexed, upto.min(self.indexed + CHUNK));
            let mut batch = IndexBatch::after(last_zone(&self.index)?);
            let names = self.inner.names;
            batch.read(self.log()?, names, after, last)?;
            self.write_index(batch, last, pace)?;
        }
        let indexed = self.indexed;
        let mut rows = fresh.into_iter().flatten().filter(|row| row.seq > indexed).peekable();
        while rows.peek().is_some() {
            let mut batch = IndexBatch::after(last_zone(&self.index)?);
            let mut last = self.indexed;
            for row in rows.by_ref().take(CHUNK as usize) {
                pace.step();
                let reason = row.reason.as_ref().map_or("", Named::code);
                batch.add(row.seq, row.at, row.session, [&row.tenant, row.guard.code(), row.kind.code(), row.outcome.code(), reason]);
                last = row.seq;
            }
            self.write_index(batch, last, pace)?;
        }
        Ok(())
    }

    fn write_index(&mut self, mut batch: IndexBatch, upto: u64, pace: &mut Pace) -> Result<(), rusqlite::Error> {
        batch.write(&mut self.index, upto, pace)?;
        self.indexed = upto;
        self.inner.indexer.indexed.store(upto, Ordering::Release);
        Ok(())
    }

    /// Writes the changed states, each as of one committed row.
    fn checkpoint_states(&mut self, pace: &mut Pace) {
        if self.has_unmerged_tails() && self.merge_tails().is_err() {
            return;
        }
        let upto = self.inner.journal.moved();
        let failures = self.inner.journal.failures();
        let mut copies: Vec<(Key, u64, i64, Option<Vec<u8>>)> = Vec::new();
        for shard in 0..SHARDS {
            pace.step();
            let mut shard = self.inner.shards.lock(shard);
            for key in std::mem::take(&mut shard.dirty) {
                let Some(resident) = shard.map.get_mut(&key) else { continue };
                resident.dirty = false;
                let slots = if resident.slots.is_empty() { None } else { postcard::to_stdvec(&resident.slots).ok() };
                copies.push((key, resident.seq, resident.at, slots));
            }
        }
        copies.sort_unstable_by_key(|(key, ..)| (key.family as u8, key.hash));
        let written = self.wait_until_logged(&copies, failures)
            && self.write_states(&copies, upto, pace).inspect_err(|error| tracing::debug!(%error, "states not written")).is_ok();
        if !written {
            for (key, ..) in &copies {
                let mut shard = self.inner.shards.of(*key);
                if let Some(resident) = shard.map.get_mut(key).filter(|resident| !resident.dirty) {
                    resident.dirty = true;
                    shard.dirty.push(*key);
                }
            }
            return;
        }
        self.checkpointed = upto;
    }

    /// A copied state may rest on rows that are not in the log yet; it must not reach the disk before them.
    fn wait_until_logged(&self, copies: &[(Key, u64, i64, Option<Vec<u8>>)], failures: u64) -> bool {
        let newest = copies.iter().map(|(_, seq, ..)| *seq).max().unwrap_or(0);
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.inner.journal.safe() < newest {
            if self.inner.journal.failures() != failures || Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner.journal.settle_upto(newest).is_ok() && self.inner.journal.failures() == failures
    }

    fn write_states(&mut self, copies: &[(Key, u64, i64, Option<Vec<u8>>)], upto: u64, pace: &mut Pace) -> Result<(), rusqlite::Error> {
        let transaction = self.index.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut put =
                transaction.prepare_cached("INSERT OR REPLACE INTO states (family, hash, seq, at, slots) VALUES (?1, ?2, ?3, ?4, ?5)")?;
            let mut remove = transaction.prepare_cached("DELETE FROM states WHERE family = ?1 AND hash = ?2")?;
            for (key, seq, at, slots) in copies {
                pace.step();
                match slots {
                    Some(slots) => put.execute(params![key.family as u8, key.hash.to_be_bytes(), seq, at, slots])?,
                    None => remove.execute(params![key.family as u8, key.hash.to_be_bytes()])?,
                };
            }
        }
        set_progress(&transaction, "checkpointed", upto)?;
        // A state may rest on later rows than those that all states rest on.
        set_progress(&transaction, "newest", copies.iter().map(|(_, seq, ..)| *seq).fold(upto, u64::max))?;
        transaction.commit()
    }

    /// Moves the write-ahead log into the database file while others write. When it has grown all the same, the
    /// writer is asked to finish the little that is left, so that the file starts over. Nobody waits for a reader: as long as one
    /// stands in the way the file grows, and it is tried again.
    fn checkpoint_log(&mut self, all: bool) -> Result<(), rusqlite::Error> {
        let size = std::fs::metadata(format!("{}-wal", self.inner.folder.log_path().display())).map_or(0, |meta| meta.len());
        self.inner.indexer.wal_bytes.store(size, Ordering::Relaxed);
        if size < WAL_BACKGROUND && !all {
            return Ok(());
        }
        // The file keeps its size when it starts over, so the frames in use are asked for, not the size.
        let mut pages = self.checkpoint_passively()?;
        self.inner.indexer.wal_bytes.store(pages * LOG_PAGE_BYTES, Ordering::Relaxed);
        self.tell_of_readers(pages * LOG_PAGE_BYTES);
        if pages * LOG_PAGE_BYTES >= WAL_LIMIT {
            // Again and again, each time with less to do, until what is left for the writer is little.
            for _ in 0..4 {
                let before = pages;
                pages = self.checkpoint_passively()?;
                if pages.saturating_sub(before) < FEW_PAGES {
                    break;
                }
            }
            // Our own readers come and go; should one always be there, all of them are held for a moment.
            let inner = self.inner.clone();
            let _pause = (pages * LOG_PAGE_BYTES >= WAL_PAUSE).then(|| inner.readers.pause());
            self.checkpoint_by_writer(Checkpoint::Restart);
        }
        if all {
            checkpoint(&self.index, Checkpoint::Truncate)?;
        }
        Ok(())
    }

    /// What became of it; `None` when the log could not be written, or the service is stopping.
    fn ask_the_writer(&self, work: Work) -> Option<Work> {
        self.inner.journal.order(work)?.blocking_recv().ok()?.ok()
    }

    /// Whether it went to its end; not when somebody reads, nor when the service is stopping.
    fn checkpoint_by_writer(&self, how: Checkpoint) -> bool {
        matches!(self.ask_the_writer(Work::Checkpoint { how, is_done: false }), Some(Work::Checkpoint { is_done: true, .. }))
    }

    fn tell_of_readers(&mut self, wal_bytes: u64) {
        let is_held_up = wal_bytes >= WAL_TOLD;
        if is_held_up && !self.held_up {
            tracing::warn!(
                megabytes = wal_bytes >> 20,
                "the write-ahead log grows and cannot start over while somebody reads the database; end the process that has runguard.db open (`fuser` names it), or give the disk room"
            );
        } else if self.held_up && !is_held_up {
            tracing::info!("the write-ahead log has started over");
        }
        self.held_up = is_held_up;
    }

    /// Overwrites what was removed, in both files, and empties their write-ahead logs.
    fn purge(&mut self) -> Result<Vec<String>, rusqlite::Error> {
        if self.ask_the_writer(Work::Empty).is_none() {
            return Err(rusqlite::Error::InvalidParameterName("the journal cannot be emptied".into()));
        }
        let goal = self.inner.journal.moved();
        if self.indexed < goal || self.checkpointed < goal {
            self.try_work(true)?;
        }
        if self.indexed < goal || self.checkpointed < goal {
            return Err(rusqlite::Error::InvalidParameterName("the index is behind the log".into()));
        }
        let mut pace = Pace::new(REST);
        overwrite_unused(&self.index, || pace.rest_if_due())?;
        let mut pages = Pages::of(self.log()?)?;
        while let Some(soiled) = pages.next_soiled(self.log()?, &mut || pace.rest_if_due())? {
            if self.ask_the_writer(Work::Clean { pages: soiled }).is_none() {
                return Err(rusqlite::Error::InvalidParameterName("the log cannot be written".into()));
            }
        }
        self.checkpoint_passively()?;
        let inner = self.inner.clone();
        let _pause = inner.readers.pause();
        let mut waiting = Vec::new();
        if !self.checkpoint_by_writer(Checkpoint::Truncate) {
            waiting.push(LOG_FILE.to_owned());
        }
        if !checkpoint(&self.index, Checkpoint::Truncate)? {
            waiting.push(INDEX_FILE.to_owned());
        }
        Ok(waiting)
    }

    /// Gives the number of pages in the write-ahead log.
    fn checkpoint_passively(&mut self) -> Result<u64, rusqlite::Error> {
        self.log()?.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(1)).map(|pages| pages.max(0) as u64)
    }

    /// The time that old things go by; `None` before anybody has told the time.
    fn time_passed(&mut self) -> Result<Option<i64>, rusqlite::Error> {
        let told = self.inner.now.load(Ordering::Relaxed);
        if told == i64::MIN || self.inner.believes_time.load(Ordering::Relaxed) {
            return Ok((told != i64::MIN).then_some(told));
        }
        let elapsed = self.last_retention.map_or(0, |last| i64::try_from(last.elapsed().as_millis()).unwrap_or(i64::MAX));
        let mut trusted = match self.trusted {
            Some(trusted) => trusted,
            None => {
                if let Some(trusted) = TrustedTime::read(&self.index)? {
                    trusted
                } else {
                    let last = self.last_at_start;
                    let newest =
                        self.log()?.query_row("SELECT at FROM log WHERE seq <= ?1 ORDER BY seq DESC LIMIT 1", [last], |row| row.get(0));
                    TrustedTime::starting(self.inner.first_told.load(Ordering::Relaxed), newest.optional()?)
                }
            }
        };
        // Told by requests: where none came there is no news, but time has passed.
        let now = if std::mem::replace(&mut self.last_told, told) == told {
            trusted.wait(elapsed).min(told)
        } else {
            trusted.pass(told, elapsed)
        };
        trusted.write(&self.index)?;
        self.trusted = Some(trusted);
        Ok(Some(now))
    }

    /// Lets go of what is older than the retention.
    fn retire(&mut self) -> Result<(), rusqlite::Error> {
        // The first look is as soon as there is a time: what it says is what later ones are compared with.
        let Some(now) = self.time_passed()? else { return Ok(()) };
        self.last_retention = Some(Instant::now());
        let log_millis = i64::from(self.inner.options.retention_days) * DAY_MILLIS;
        let state_millis = log_millis.max(self.inner.state_lifetime_millis.load(Ordering::Relaxed)).saturating_add(DAY_MILLIS);
        let oldest_row = now.saturating_sub(log_millis);
        let upto: Option<u64> = self.index.query_row(
            "SELECT max(last_seq) FROM zones WHERE last_seq < coalesce((SELECT min(first_seq) FROM zones WHERE at_max >= ?1), 9223372036854775807)",
            [oldest_row],
            |row| row.get(0),
        )?;
        if let Some(upto) = upto {
            // Said before it is done: a log that is empty because of this must not look like one that was lost.
            self.index.execute("INSERT OR REPLACE INTO progress (name, value) VALUES ('pruned', ?1)", [upto])?;
        }
        // As long as rows are in the log the index must know them, or nobody would remove them. First they leave the journal: what a killed
        // process had there would come back into an empty log.
        if let Some(upto) = upto
            && self.ask_the_writer(Work::Empty).is_some()
            && let Some(rows) = self.prune_log(upto)?
        {
            if rows > 0 {
                tracing::info!(rows, days = self.inner.options.retention_days, "rows older than the retention have left the log");
            }
            let transaction = self.index.transaction()?;
            transaction.execute("DELETE FROM sessions WHERE seq <= ?1", [upto])?;
            transaction.execute("DELETE FROM zones WHERE last_seq <= ?1", [upto])?;
            transaction.execute("DELETE FROM rollup WHERE minute < ?1", [oldest_row.div_euclid(60_000)])?;
            transaction.commit()?;
        }
        let window_millis = self.inner.state_lifetime_millis.load(Ordering::Relaxed).saturating_add(MINUTE_MILLIS);
        self.forget_endpoints(now.saturating_sub(window_millis), now.saturating_sub(state_millis))?;
        for (family, millis) in
            [(Family::Session, state_millis), (Family::Account, state_millis.max(MONTH_MILLIS)), (Family::Idempotency, IDEMPOTENCY_MILLIS)]
        {
            let oldest = now.saturating_sub(millis);
            self.index.execute("DELETE FROM states WHERE family = ?1 AND at < ?2", params![family as u8, oldest])?;
            self.inner.evictions.fetch_add(1, Ordering::AcqRel);
            for shard in 0..SHARDS {
                let mut shard = self.inner.shards.lock(shard);
                let crate::embedded::shard::Shard { map, bytes, .. } = &mut *shard;
                map.retain(|key, resident| {
                    let stays = key.family != family || resident.dirty || (resident.at >= oldest && !resident.slots.is_empty());
                    if !stays {
                        *bytes = bytes.saturating_sub(resident.weight());
                    }
                    stays
                });
            }
        }
        Ok(())
    }

    /// Endpoints leave when what they say no longer matters: most with their windows, some with the log, and one that an operator has
    /// forced stays until that is taken back.
    fn forget_endpoints(&mut self, oldest_window: i64, oldest_log: i64) -> Result<(), rusqlite::Error> {
        let keep = self.inner.rules.keep;
        let is_over = move |at: i64, slots: &[SlotState]| {
            slots.iter().all(|slot| match keep(slot.slot, &slot.state) {
                Keep::Window => at < oldest_window,
                Keep::Log | Keep::Month | Keep::Day => at < oldest_log,
                Keep::Always => false,
            })
        };
        let mut over: Vec<(Vec<u8>, i64)> = Vec::new();
        {
            let mut select = self.index.prepare_cached("SELECT hash, at, slots FROM states WHERE family = ?1 AND at < ?2")?;
            let mut rows = select.query(params![Family::Endpoint as u8, oldest_window])?;
            while let Some(row) = rows.next()? {
                let at: i64 = row.get(1)?;
                if is_over(at, &decode_slots(row.get_ref(2)?.as_blob()?)) {
                    over.push((row.get(0)?, at));
                }
            }
        }
        let transaction = self.index.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        for (hash, at) in &over {
            let mut remove = transaction.prepare_cached("DELETE FROM states WHERE family = ?1 AND hash = ?2 AND at = ?3")?;
            remove.execute(params![Family::Endpoint as u8, hash, at])?;
        }
        transaction.commit()?;
        self.inner.evictions.fetch_add(1, Ordering::AcqRel);
        for shard in 0..SHARDS {
            let mut shard = self.inner.shards.lock(shard);
            let crate::embedded::shard::Shard { map, bytes, .. } = &mut *shard;
            map.retain(|key, resident| {
                let stays = key.family != Family::Endpoint || resident.dirty || !is_over(resident.at, &resident.slots);
                if !stays {
                    *bytes = bytes.saturating_sub(resident.weight());
                }
                stays
            });
        }
        Ok(())
    }

    /// Asks the writer to remove old rows, a few at a time. Gives how many there were; `None`: some are still there.
    fn prune_log(&mut self, upto: u64) -> Result<Option<usize>, rusqlite::Error> {
        let first: Option<u64> = self.log()?.query_row("SELECT min(seq) FROM log", [], |row| row.get(0))?;
        let Some(mut at) = first else { return Ok(Some(0)) };
        let mut rows = 0;
        while at <= upto {
            let last = upto.min(at + PRUNE_ROWS);
            let Some(Work::Prune { removed, .. }) = self.ask_the_writer(Work::Prune { upto: last, removed: 0 }) else { return Ok(None) };
            rows += removed;
            at = last + 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Some(rows))
    }

    /// When states take more memory than they may, those not used for longest leave. Only what is on disk can go.
    fn make_room(&mut self) {
        let limit = self.inner.options.memory_bytes;
        if self.inner.shards.bytes() <= limit {
            return;
        }
        self.checkpoint_states(&mut Pace::hurried());
        self.inner.cold.store(true, Ordering::Release);
        self.inner.evictions.fetch_add(1, Ordering::AcqRel);
        let per_shard = limit / SHARDS * 9 / 10;
        for shard in 0..SHARDS {
            let mut shard = self.inner.shards.lock(shard);
            let mut clean: Vec<(i64, Key, usize)> = shard
                .map
                .iter()
                .filter(|(_, resident)| !resident.dirty)
                .map(|(key, resident)| (resident.at, *key, resident.weight()))
                .collect();
            clean.sort_unstable_by_key(|(at, key, _)| (*at, *key));
            for (_, key, weight) in clean {
                if shard.bytes <= per_shard {
                    break;
                }
                shard.map.remove(&key);
                shard.bytes = shard.bytes.saturating_sub(weight);
            }
        }
    }
}

fn set_progress(transaction: &rusqlite::Transaction<'_>, name: &str, value: u64) -> Result<(), rusqlite::Error> {
    transaction.prepare_cached("INSERT OR REPLACE INTO progress (name, value) VALUES (?1, ?2)")?.execute(params![name, value])?;
    Ok(())
}

#[derive(Debug, Default)]
struct Zone {
    first_seq: u64,
    last_seq: u64,
    at_min: i64,
    at_max: i64,
    guards: i64,
    reasons: i64,
    outcomes: i64,
    tenants: i64,
}

impl Zone {
    /// A zone is short, and of one day: retention removes whole zones.
    fn has_room_for(&self, seq: u64, at: i64) -> bool {
        seq.saturating_sub(self.first_seq) < ZONE_ROWS && at.div_euclid(DAY_MILLIS) == self.at_max.div_euclid(DAY_MILLIS)
    }
}

fn last_zone(index: &Connection) -> Result<Option<Zone>, rusqlite::Error> {
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Zone {
            first_seq: row.get(0)?,
            last_seq: row.get(1)?,
            at_min: row.get(2)?,
            at_max: row.get(3)?,
            guards: row.get(4)?,
            reasons: row.get(5)?,
            outcomes: row.get(6)?,
            tenants: row.get(7)?,
        })
    };
    index.query_row("SELECT * FROM zones ORDER BY first_seq DESC LIMIT 1", [], read).optional()
}

/// What a run of rows adds to the indexes.
#[derive(Debug, Default)]
struct IndexBatch {
    sessions: Vec<(i64, u64)>,
    zones: Vec<Zone>,
    counts: Vec<(Counted, u64)>,
    /// Where in `counts` a combination is.
    counted: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

/// Minute, tenant, guard, outcome, reason.
type Counted = (i64, Box<str>, Box<str>, Box<str>, Box<str>);

impl IndexBatch {
    /// `open_zone` is the last zone of the index; it is gone on with while it has room.
    fn after(open_zone: Option<Zone>) -> Self {
        Self { zones: open_zone.into_iter().collect(), ..Self::default() }
    }

    fn read(&mut self, log: &Connection, names: Names, after: u64, upto: u64) -> Result<(), rusqlite::Error> {
        let mut select = log.prepare_cached(
            "SELECT seq, at, session, tenant, guard, kind, outcome, reason FROM log WHERE seq > ?1 AND seq <= ?2 ORDER BY seq",
        )?;
        let mut rows = select.query([after, upto])?;
        while let Some(row) = rows.next()? {
            let text = |column: usize| row.get_ref(column).and_then(|value| Ok(value.as_str_or_null()?.unwrap_or_default()));
            let tenant = text(3)?;
            let session = names.session_number(tenant, text(2)?);
            self.add(row.get(0)?, row.get(1)?, session, [tenant, text(4)?, text(5)?, text(6)?, text(7)?]);
        }
        Ok(())
    }

    fn add(&mut self, seq: u64, at: i64, session: i64, [tenant, guard, kind, outcome, reason]: [&str; 5]) {
        self.sessions.push((session, seq));
        if !self.zones.last().is_some_and(|zone| zone.has_room_for(seq, at)) {
            self.zones.push(Zone { first_seq: seq, at_min: at, at_max: at, ..Zone::default() });
        }
        if let Some(zone) = self.zones.last_mut() {
            zone.last_seq = seq;
            zone.at_min = zone.at_min.min(at);
            zone.at_max = zone.at_max.max(at);
            zone.guards |= mask(guard);
            zone.reasons |= mask(reason);
            zone.outcomes |= mask(outcome);
            zone.tenants |= mask(tenant);
        }
        if kind == Kind::Check.code() {
            self.count(at.div_euclid(60_000), [tenant, guard, outcome, reason]);
        }
    }

    fn count(&mut self, minute: i64, names: [&str; 4]) {
        let Self { counts, counted, hasher, .. } = self;
        let hash = |minute: i64, names: [&str; 4]| hasher.hash_one((minute, names));
        let same = |(known, tenant, guard, outcome, reason): &Counted| *known == minute && [&**tenant, guard, outcome, reason] == names;
        let entry = counted.entry(
            hash(minute, names),
            |position| same(&counts[*position].0),
            |position| {
                let (minute, tenant, guard, outcome, reason) = &counts[*position].0;
                hash(*minute, [tenant, guard, outcome, reason])
            },
        );
        let position = match entry {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                entry.insert(counts.len());
                let [tenant, guard, outcome, reason] = names.map(Box::from);
                counts.push(((minute, tenant, guard, outcome, reason), 0));
                counts.len() - 1
            }
        };
        counts[position].1 += 1;
    }

    fn write(&mut self, index: &mut Connection, upto: u64, pace: &mut Pace) -> Result<(), rusqlite::Error> {
        // Sorted, each page of a table is touched once.
        self.sessions.sort_unstable();
        self.counts.sort_unstable();
        let transaction = index.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut put = transaction.prepare_cached("INSERT OR IGNORE INTO sessions (session, seq) VALUES (?1, ?2)")?;
            for (session, seq) in &self.sessions {
                pace.step();
                put.execute(params![session, seq])?;
            }
            let mut put = transaction.prepare_cached("INSERT OR REPLACE INTO zones VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
            for zone in &self.zones {
                put.execute(params![
                    zone.first_seq,
                    zone.last_seq,
                    zone.at_min,
                    zone.at_max,
                    zone.guards,
                    zone.reasons,
                    zone.outcomes,
                    zone.tenants
                ])?;
            }
            let mut put = transaction.prepare_cached(
                "INSERT INTO rollup (minute, tenant, guard, outcome, reason, count) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT DO UPDATE SET count = count + excluded.count",
            )?;
            for ((minute, tenant, guard, outcome, reason), count) in &self.counts {
                put.execute(params![minute, tenant, guard, outcome, reason, count])?;
            }
        }
        set_progress(&transaction, "indexed", upto)?;
        transaction.commit()
    }
}
