//! The one writer of the log: group commit.
//!
//! Requests push what they decided while they hold the lock of their states, so the order in the queue is the order
//! of the decisions. One thread takes all that has gathered, writes it in one transaction, and wakes the requests.
//! While it writes, the next batch gathers: the more load, the larger the batch, and nobody waits for a timer.

use crate::cluster::link::EntryId;
use crate::embedded::mailbox::{Known, MailboxId, Mailboxes};
use crate::embedded::shard::Shards;
use crate::error::StoreError;
use crate::key::{Key, Names};
use crate::scrub::{Checkpoint, checkpoint, clean};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::{Ended, Kind, Named, Row};
use rusqlite::{Connection, params};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Rows in one transaction. Beyond it the rest waits for the next, so that no answer waits for thousands of others.
const MAX_BATCH: usize = 2048;

/// After a batch of at least `BUSY_BATCH` rows the writer waits for the next to be as large (`GATHER_ROWS` are enough),
/// for `GATHER` at most.
const BUSY_BATCH: usize = 8;
const GATHER_ROWS: usize = 32;
const GATHER: Duration = Duration::from_micros(250);

/// Rows remembered for the indexer: about 20 MB.
const MOST_FRESH: usize = 200_000;

/// Gives the job back: its memory returns to the thread that took it, which is cheaper than freeing it here.
pub(crate) type Finished = Result<Box<Job>, StoreError>;
pub(crate) type Done = oneshot::Sender<Finished>;

static MAILBOXES: Mailboxes<Finished> = Mailboxes::new();
thread_local! {
    static MAILBOX: Known<Finished> = const { RefCell::new(None) };
}

/// How to take a change back.
#[derive(Debug)]
pub(crate) enum Undo {
    Slot { key: Key, slot: u8, subject: Box<str>, state: Option<Box<[u8]>> },
    Entry { key: Key, slots: Vec<crate::store::SlotState> },
}

impl Undo {
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::Slot { key, .. } | Self::Entry { key, .. } => *key,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Work {
    Append {
        row: Row,
        effects: Vec<u8>,
        /// Rows to take out of the log, in the same transaction as the row that says so.
        removed: Vec<u64>,
    },
    /// Removes the oldest rows up to here, and says how many there were.
    Prune { upto: u64, removed: usize },
    /// Moves what is left of the write-ahead log into the database, and says whether all of it went.
    Checkpoint { how: Checkpoint, is_done: bool },
    /// Overwrites what is unused in these pages.
    Clean { pages: Vec<u32> },
    /// Writes one page, to see whether the disk takes it.
    Probe,
    /// A session of a cluster was erased, by its number.
    Erased { session: i64, at: i64 },
    /// Streams were read up to here.
    Follow { upto: Vec<(u16, EntryId)> },
}

/// What the writer is to do, and how to take it back.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) seq: u64,
    pub(crate) work: Work,
    undo: Vec<Undo>,
}

#[derive(Debug)]
struct Pending {
    job: Box<Job>,
    done: Done,
    mailbox: Option<MailboxId>,
}

/// Wakes the writer when it is dropped: after the locks, so that the writer does not run into them.
#[must_use]
#[derive(Debug)]
pub(crate) struct WakeUp<'a>(Option<&'a Condvar>);

impl Drop for WakeUp<'_> {
    fn drop(&mut self) {
        if let Some(gathered) = self.0 {
            gathered.notify_one();
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    pending: Vec<Pending>,
    next_seq: u64,
    /// The writer sleeps until this many wait; 0 while it is awake.
    wake_at: usize,
    stopping: bool,
}

/// What the index wants to know of a row.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) seq: u64,
    pub(crate) at: i64,
    pub(crate) session: i64,
    pub(crate) tenant: Arc<str>,
    pub(crate) guard: Named<GuardName>,
    pub(crate) kind: Named<Kind>,
    pub(crate) outcome: Named<Ended>,
    pub(crate) reason: Option<Named<Reason>>,
}

/// Batch by batch, as they were written: one list of all would be moved each time it has grown.
#[derive(Debug, Default)]
struct FreshRows {
    batches: Vec<Vec<Fresh>>,
    count: usize,
}

#[derive(Debug)]
pub(crate) struct Journal {
    queue: Mutex<Queue>,
    gathered: Condvar,
    names: Names,
    committed: AtomicU64,
    /// Counts failed batches: whoever copied uncommitted states looks whether one came in between.
    failures: AtomicU64,
    committed_tx: watch::Sender<u64>,
    /// The rows written since the indexer last asked, one after the other, so that it need not read them again. When it
    /// does not ask for long, the older ones are dropped: they are in the log.
    fresh: Mutex<FreshRows>,
}

impl Journal {
    pub(crate) fn new(last_seq: u64, names: Names) -> Self {
        Self {
            queue: Mutex::new(Queue { next_seq: last_seq + 1, ..Queue::default() }),
            gathered: Condvar::new(),
            names,
            committed: AtomicU64::new(last_seq),
            failures: AtomicU64::new(0),
            committed_tx: watch::Sender::new(last_seq),
            fresh: Mutex::default(),
        }
    }

    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.committed_tx.subscribe()
    }

    pub(crate) fn take_fresh(&self) -> Vec<Vec<Fresh>> {
        std::mem::take(&mut *self.fresh.lock().unwrap_or_else(PoisonError::into_inner)).batches
    }

    fn remember_fresh(&self, batch: &[Pending]) {
        let mut rows = Vec::with_capacity(batch.len());
        rows.extend(batch.iter().filter_map(|Pending { job, .. }| match &job.work {
            Work::Append { row, .. } => Some(Fresh {
                seq: job.seq,
                at: row.at,
                session: self.names.session_number(&row.tenant, &row.session),
                tenant: row.tenant.clone(),
                guard: row.guard.clone(),
                kind: row.kind.clone(),
                outcome: row.outcome.clone(),
                reason: row.reason.clone(),
            }),
            Work::Prune { .. } | Work::Checkpoint { .. } | Work::Clean { .. } | Work::Probe | Work::Follow { .. } | Work::Erased { .. } => {
                None
            }
        }));
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        if fresh.count >= MOST_FRESH {
            *fresh = FreshRows::default();
        }
        fresh.count += rows.len();
        fresh.batches.push(rows);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called with the locks of the touched states held. Gives the row's number; or, when the store is stopping, the
    /// changes that must be taken back before those locks are let go.
    pub(crate) fn push(&self, work: Work, undo: Vec<Undo>, done: Done) -> Result<(u64, WakeUp<'_>), Vec<Undo>> {
        let mut job = Box::new(Job { seq: 0, work, undo });
        let mailbox = MAILBOX.with(|known| MAILBOXES.of_this_thread(known));
        let mut queue = self.lock();
        if queue.stopping {
            return Err(job.undo);
        }
        if matches!(job.work, Work::Append { .. }) {
            job.seq = queue.next_seq;
            queue.next_seq += 1;
        }
        let seq = job.seq;
        queue.pending.push(Pending { job, done, mailbox });
        let enough = queue.wake_at > 0 && queue.pending.len() >= queue.wake_at;
        if enough {
            queue.wake_at = 0;
        }
        drop(queue);
        Ok((seq, WakeUp(enough.then_some(&self.gathered))))
    }

    /// Nothing is taken any more; what is queued is still written.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.gathered.notify_all();
    }

    /// Everything that waits goes into `batch`, which is empty, and whose room is used for what gathers next. `false`: nothing will come.
    /// After a large batch it waits a moment for the next one to grow: under load that saves
    /// commits and wake-ups, and the moment is shorter than the commit it saves. A single request never waits.
    fn next_batch(&self, last: usize, batch: &mut Vec<Pending>) -> bool {
        let target = if last >= BUSY_BATCH { last.min(GATHER_ROWS) } else { 1 };
        let mut queue = self.lock();
        let deadline = Instant::now() + GATHER;
        let mut patient = target > 1;
        loop {
            let enough = queue.pending.len() >= if patient { target } else { 1 };
            if enough || (queue.stopping && !queue.pending.is_empty()) {
                queue.wake_at = 0;
                std::mem::swap(&mut queue.pending, batch);
                if batch.len() > MAX_BATCH {
                    queue.pending.extend(batch.drain(MAX_BATCH..));
                }
                return true;
            }
            if queue.stopping {
                return false;
            }
            if patient {
                queue.wake_at = target;
                let left = deadline.saturating_duration_since(Instant::now());
                queue = self.gathered.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
                patient = Instant::now() < deadline;
            } else {
                queue.wake_at = 1;
                queue = self.gathered.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// The writer's life.
    pub(crate) fn run(&self, connection: &Connection, shards: &Arc<Shards>) {
        let (mut last, mut batch) = (0, Vec::new());
        while self.next_batch(last, &mut batch) {
            last = batch.len();
            match write(connection, &mut batch) {
                Ok(last_seq) => {
                    if last_seq > 0 {
                        self.remember_fresh(&batch);
                        self.committed.store(last_seq, Ordering::Release);
                        self.committed_tx.send_replace(last_seq);
                    }
                    MAILBOXES.send(batch.drain(..).map(|pending| (pending.mailbox, (pending.done, Ok(pending.job)))));
                }
                Err(error) => self.take_back(std::mem::take(&mut batch), &error, shards),
            }
        }
    }

    /// The batch is not in the log, so nothing of it, and nothing that was decided upon it, may stay in memory.
    fn take_back(&self, mut failed: Vec<Pending>, error: &rusqlite::Error, shards: &Shards) {
        tracing::error!(%error, requests = failed.len(), "a batch could not be written; its requests are answered 503 and nothing of them counts");
        {
            let mut held = shards.lock_all();
            let mut queue = self.lock();
            failed.append(&mut queue.pending);
            let first = failed.iter().map(|pending| pending.job.seq).filter(|seq| *seq > 0).min();
            queue.next_seq = first.unwrap_or(queue.next_seq);
            self.failures.fetch_add(1, Ordering::AcqRel);
            for undo in failed.iter_mut().rev().flat_map(|pending| pending.job.undo.drain(..).rev()) {
                let key = undo.key();
                let shard = &mut held[Shards::index_of(key)];
                if let Some(resident) = shard.map.get_mut(&key) {
                    resident.seq = resident.seq.min(self.committed());
                }
                shard.take_back(undo);
            }
        }
        let error = StoreError::Write(error.to_string());
        MAILBOXES.send(failed.into_iter().map(|pending| (pending.mailbox, (pending.done, Err(error.clone())))));
    }
}

/// Writes a batch in one transaction and gives the last row's number (0 when no row was written).
fn write(connection: &Connection, batch: &mut [Pending]) -> Result<u64, rusqlite::Error> {
    // Statements kept prepared: a batch is often a few rows, and parsing these two anew costs as much as one.
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let written = write_rows(connection, batch).and_then(|last_seq| {
        connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(last_seq)
    });
    if written.is_err() && !connection.is_autocommit() {
        // Some errors have rolled back already; should this one fail, the next BEGIN fails too and is answered 503.
        let _ = connection.execute_batch("ROLLBACK");
    }
    let last_seq = written?;
    for Pending { job, .. } in batch {
        if let Work::Checkpoint { how, is_done } = &mut job.work {
            // Readers may keep it from its end; it is tried again. The log is safe either way.
            *is_done = checkpoint(connection, *how).unwrap_or(false);
        }
    }
    Ok(last_seq)
}

fn write_rows(connection: &Connection, batch: &mut [Pending]) -> Result<u64, rusqlite::Error> {
    let mut last_seq = 0;
    let mut insert = connection.prepare_cached(
        "INSERT INTO log (seq, at, id, tenant, guard, kind, session, subject, outcome, reason, answer, input, effects)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    )?;
    for Pending { job, .. } in batch {
        let seq = job.seq;
        match &mut job.work {
            Work::Append { row, effects, removed } => {
                for seq in removed {
                    connection.prepare_cached("DELETE FROM log WHERE seq = ?1")?.execute([*seq])?;
                }
                insert.execute(params![
                    seq,
                    row.at,
                    row.id,
                    row.tenant,
                    row.guard.code(),
                    row.kind.code(),
                    row.session,
                    row.subject,
                    row.outcome.code(),
                    row.reason_code(),
                    row.answer,
                    row.input,
                    *effects
                ])?;
                last_seq = seq;
            }
            Work::Prune { upto, removed } => {
                *removed = connection.prepare_cached("DELETE FROM log WHERE seq <= ?1")?.execute([*upto])?;
            }
            Work::Probe => {
                connection
                    .execute("INSERT OR REPLACE INTO probe (id, count) VALUES (1, 1 + coalesce((SELECT count FROM probe), 0))", [])?;
            }
            Work::Follow { upto } => {
                let mut follow =
                    connection.prepare_cached("INSERT OR REPLACE INTO followed (partition, millis, number) VALUES (?1, ?2, ?3)")?;
                for (partition, at) in upto {
                    follow.execute(params![*partition, at.millis, at.number])?;
                }
            }
            Work::Erased { session, at } => {
                connection
                    .prepare_cached("INSERT INTO erased (session, at) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET at = max(at, excluded.at)")?
                    .execute(params![*session, *at])?;
            }
            Work::Clean { pages } => clean(connection, pages)?,
            Work::Checkpoint { .. } => {}
        }
    }
    Ok(last_seq)
}
