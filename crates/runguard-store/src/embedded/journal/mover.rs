//! From the journal into the database: many rows in one transaction, and whatever else is to be written there.

use crate::cluster::link::EntryId;
use crate::embedded::Durability;
use crate::embedded::journal::segment::{self, Reader, Record};
use crate::embedded::journal::{Fresh, Journal};
use crate::embedded::schema::LOG_FILE;
use crate::error::{OpenError, StoreError};
use crate::pace::Pace;
use crate::scrub::{Checkpoint, checkpoint, clean};
use rusqlite::{Connection, params};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Rows gather for so long before they are moved; sooner when somebody wants to read them.
const GATHER: Duration = Duration::from_millis(40);
/// After a transaction that failed.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two pieces of work.
const REST: Duration = Duration::from_millis(1);

/// What the mover is asked to do besides.
#[derive(Debug)]
pub(crate) enum Work {
    /// Removes the oldest rows up to here, and says how many there were.
    Prune { upto: u64, removed: usize },
    /// Moves what is left of the write-ahead log into the database, and says whether all of it went.
    Checkpoint { how: Checkpoint, is_done: bool },
    /// Overwrites what is unused in these pages.
    Clean { pages: Vec<u32> },
    /// Leaves no row in the journal that is in the database.
    Empty,
    /// Writes one page, to see whether the disk takes it.
    Probe,
    /// A session of a cluster was erased, by its number.
    Erased { session: i64, at: i64 },
    /// Streams were read up to here.
    Follow { upto: Vec<(u16, EntryId)> },
}

type Ordered = (Work, oneshot::Sender<Result<Work, StoreError>>);

/// What the mover has been asked.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    work: Vec<Ordered>,
    /// Somebody wants to read rows up to here.
    wanted: u64,
    stopping: bool,
    ended: bool,
    /// Rounds that are over, and what became of the last.
    rounds: u64,
    trouble: Option<StoreError>,
}

impl Orders {
    pub(crate) fn add(&mut self, work: Work, done: oneshot::Sender<Result<Work, StoreError>>) -> Option<()> {
        (!self.stopping).then(|| self.work.push((work, done)))
    }
}

/// Where the mover reads.
struct ReadPoint {
    number: u64,
    reader: Option<Reader>,
}

/// Ends the waiting for the mover, also where it ended in a panic.
struct Ending<'a>(&'a Journal);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut orders = self.0.lock_orders();
        (orders.stopping, orders.ended) = (true, true);
        orders.work.clear();
        drop(orders);
        self.0.round_over.notify_all();
    }
}

impl Journal {
    pub(super) fn lock_orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There are rows to move. It costs something only where the mover had nothing to do.
    pub(super) fn wake_mover(&self) {
        if self.mover_sleeps.load(Ordering::SeqCst) && self.mover_sleeps.swap(false, Ordering::SeqCst) {
            drop(self.lock_orders());
            self.ordered.notify_all();
        }
    }

    /// Waits, on a thread that may, until every row that is safe now is in the database.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        self.settle_upto(self.safe())
    }

    pub(crate) fn settle_upto(&self, goal: u64) -> Result<(), StoreError> {
        let goal = goal.min(self.safe());
        if self.moved() >= goal {
            return Ok(());
        }
        let mut orders = self.lock_orders();
        // Nobody waits for what has just failed; it is tried again because they asked.
        if let Some(trouble) = orders.trouble.clone() {
            orders.wanted = orders.wanted.max(goal);
            self.ordered.notify_all();
            return Err(trouble);
        }
        // One may be under way that began before.
        let last_round = orders.rounds + 2;
        while self.moved() < goal {
            if orders.rounds >= last_round || orders.ended {
                return Err(orders.trouble.clone().unwrap_or(StoreError::Stopping));
            }
            orders.wanted = orders.wanted.max(goal);
            self.ordered.notify_all();
            orders = self.round_over.wait(orders).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// The last rows are moved, and the mover ends.
    pub(crate) fn stop_mover(&self) {
        self.lock_orders().stopping = true;
        self.ordered.notify_all();
    }

    /// The mover's life. Whether it leaves nothing behind.
    pub(crate) fn run_mover(&self, connection: &Connection) -> bool {
        // However it ends: nobody waits for it any more.
        let _ended = Ending(self);
        let mut place = ReadPoint { number: self.first_segment, reader: None };
        let mut troubled = false;
        loop {
            let (work, hurried, stopping) = self.wait_for_orders(troubled);
            let mut pace = if hurried { Pace::hurried() } else { Pace::new(REST) };
            let moved = self.move_rows(connection, &mut place, &mut pace);
            if let Err(error) = &moved
                && !std::mem::replace(&mut troubled, true)
            {
                tracing::error!(%error, "decisions cannot be moved into runguard.db; they are kept beside it, and answers go on while there is room");
            }
            troubled = moved.is_err();
            for (mut work, done) in work {
                let worked = moved.clone().and_then(|()| self.work(connection, &mut place, &mut work));
                let _ = done.send(worked.map(|()| work));
            }
            let mut orders = self.lock_orders();
            orders.rounds += 1;
            orders.trouble = moved.err();
            orders.wanted = 0;
            let is_over = stopping && orders.work.is_empty();
            drop(orders);
            self.round_over.notify_all();
            if is_over {
                return !troubled && self.leave_nothing(place);
            }
        }
    }

    /// What is to be done now, whether somebody waits for it, and whether it is the last.
    fn wait_for_orders(&self, troubled: bool) -> (Vec<Ordered>, bool, bool) {
        let mut orders = self.lock_orders();
        loop {
            let is_asked = !orders.work.is_empty() || orders.wanted > 0 || orders.stopping;
            if is_asked {
                return (std::mem::take(&mut orders.work), true, orders.stopping);
            }
            if self.safe() > self.moved() {
                let patience = if troubled { PATIENCE } else { GATHER };
                let (woken, waited) = self.ordered.wait_timeout(orders, patience).unwrap_or_else(PoisonError::into_inner);
                orders = woken;
                if waited.timed_out() {
                    return (std::mem::take(&mut orders.work), false, orders.stopping);
                }
                continue;
            }
            self.mover_sleeps.store(true, Ordering::SeqCst);
            // A row that came before that was said does not wake anybody.
            if self.safe() <= self.moved() {
                orders = self.ordered.wait(orders).unwrap_or_else(PoisonError::into_inner);
            }
            self.mover_sleeps.store(false, Ordering::SeqCst);
        }
    }

    fn move_rows(&self, connection: &Connection, place: &mut ReadPoint, pace: &mut Pace) -> Result<(), StoreError> {
        let goal = self.safe();
        let failed = |error: &dyn std::fmt::Display| StoreError::Write(error.to_string());
        while self.moved() < goal {
            let reader = match &mut place.reader {
                Some(reader) => reader,
                none => none.insert(Reader::open(&self.folder, place.number).map_err(|error| failed(&error))?),
            };
            let mut fresh = Vec::new();
            let mut upto = None;
            // One after the other: should one be missing, that is told, and not passed over.
            let mut next = self.moved();
            let is_next = |(record, _): &(Record<'_>, usize)| {
                next += 1;
                record.row.seq == next && next <= goal
            };
            let rows = reader.records().take_while(is_next).inspect(|(record, end)| {
                upto = Some((record.row.seq, *end));
                fresh.push(self.fresh(record));
                pace.step();
            });
            insert(connection, rows.map(|(record, _)| record)).map_err(|error| failed(&error))?;
            if let Some((last, end)) = upto {
                let bytes = reader.were_shown(end);
                self.waiting_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
                self.remember_fresh(fresh);
                self.moved.store(last, Ordering::Release);
                self.moved_tx.send_replace(last);
                continue;
            }
            let (writing, safe_bytes) = {
                let tail = self.tail();
                (tail.number, tail.safe_bytes)
            };
            let upto = if place.number < writing { u64::MAX } else { safe_bytes };
            if reader.fill(upto).map_err(|error| failed(&error))? {
                continue;
            }
            if place.number >= writing || !reader.is_at_its_end() {
                return Err(failed(&"a record of the journal cannot be read back"));
            }
            self.leave(place)?;
        }
        Ok(())
    }

    /// The next segment. All rows of this one are in the database.
    fn leave(&self, place: &mut ReadPoint) -> Result<(), StoreError> {
        match segment::remove(&self.folder, place.number) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::Write(format!("a file of the journal that is not needed any more cannot be removed: {error}")));
            }
            Ok(()) | Err(_) => {}
        }
        *place = ReadPoint { number: place.number + 1, reader: None };
        Ok(())
    }

    fn leave_nothing(&self, mut place: ReadPoint) -> bool {
        let last = self.tail().number;
        while place.number <= last {
            if self.leave(&mut place).is_err() {
                return false;
            }
        }
        true
    }

    fn fresh(&self, Record { row, .. }: &Record<'_>) -> Fresh {
        Fresh {
            seq: row.seq,
            at: row.at,
            session: self.names.session_number(row.tenant, row.session),
            tenant: row.tenant.into(),
            guard: row.guard.clone(),
            kind: row.kind.clone(),
            outcome: row.outcome.clone(),
            reason: row.reason.clone(),
        }
    }

    fn work(&self, connection: &Connection, place: &mut ReadPoint, work: &mut Work) -> Result<(), StoreError> {
        let failed = |error: rusqlite::Error| StoreError::Write(error.to_string());
        match work {
            // Readers may keep it from its end; it is tried again. The log is safe either way.
            Work::Checkpoint { how, is_done } => *is_done = checkpoint(connection, *how).unwrap_or(false),
            Work::Empty => {
                let failed = |error: std::io::Error| StoreError::Write(error.to_string());
                let writing = self.leave_segment().map_err(failed)?;
                // Some came since the rows were moved.
                self.move_rows(connection, place, &mut Pace::hurried())?;
                while place.number < writing {
                    self.leave(place)?;
                }
            }
            Work::Prune { .. } | Work::Clean { .. } | Work::Probe | Work::Erased { .. } | Work::Follow { .. } => {
                in_transaction(connection, || write(connection, work)).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Moves what a process that ended has left. Gives how many rows there were.
pub(crate) fn recover(folder: &Path, durability: Durability, log: &Connection) -> Result<u64, OpenError> {
    let failed = |source: std::io::Error| OpenError::Folder { path: folder.to_owned(), source };
    let refused = |error: rusqlite::Error| OpenError::Database { path: folder.join(LOG_FILE), detail: error.to_string() };
    let numbers = segment::numbers(folder).map_err(failed)?;
    let mut moved = 0;
    for number in &numbers {
        let mut reader = Reader::open(folder, *number).map_err(failed)?;
        while reader.fill(u64::MAX).map_err(failed)? {
            let last: u64 = log.query_row("SELECT coalesce(max(seq), 0) FROM log", [], |row| row.get(0)).map_err(refused)?;
            let mut upto = None;
            let rows = reader.records().inspect(|(_, end)| upto = Some(*end)).map(|(record, _)| record);
            // Those that are in the database may have been erased there since.
            let rows = rows.filter(|record| record.row.seq > last).inspect(|_| moved += 1);
            insert(log, rows).map_err(refused)?;
            if let Some(upto) = upto {
                reader.were_shown(upto);
            }
        }
        // What was being written when the process ended is cut. Of a machine that lost its power any file may be, unless each write was
        // waited for. Anything else that cannot be read is not ours to throw away.
        let left = reader.left().map_err(failed)?;
        let may_be_cut = match durability {
            Durability::Process => !reader.has_a_sound_record(),
            Durability::Power => Some(number) == numbers.last() && reader.is_cut().map_err(failed)?,
        };
        let path = segment::path(folder, *number);
        if left > 0 && !may_be_cut {
            let detail = "a decision in it cannot be read, and others follow, or a later version wrote it".to_owned();
            return Err(OpenError::DamagedJournal { path, detail });
        }
        if left > 0 {
            tracing::warn!(file = %path.display(), bytes = left, "the end of the journal was being written when the process or the machine ended, and is left out");
        }
        segment::remove(folder, *number).map_err(failed)?;
    }
    Ok(moved)
}

fn in_transaction(connection: &Connection, run: impl FnOnce() -> Result<(), rusqlite::Error>) -> Result<(), rusqlite::Error> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let written = run().and_then(|()| connection.prepare_cached("COMMIT")?.execute([]).map(drop));
    if written.is_err() && !connection.is_autocommit() {
        // Some errors have rolled back already; should this one fail, the next BEGIN fails too and is told.
        let _ = connection.execute_batch("ROLLBACK");
    }
    written
}

fn insert<'a>(connection: &Connection, rows: impl Iterator<Item = Record<'a>>) -> Result<(), rusqlite::Error> {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    in_transaction(connection, || {
        let mut insert = connection.prepare_cached(
            "INSERT INTO log (seq, at, id, tenant, guard, kind, session, subject, outcome, reason, answer, input, effects)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?;
        for Record { row, effects, removed } in rows {
            for seq in removed {
                connection.prepare_cached("DELETE FROM log WHERE seq = ?1")?.execute([seq])?;
            }
            insert.execute(params![
                row.seq,
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
                effects
            ])?;
        }
        Ok(())
    })
}

fn write(connection: &Connection, work: &mut Work) -> Result<(), rusqlite::Error> {
    match work {
        Work::Prune { upto, removed } => {
            *removed = connection.prepare_cached("DELETE FROM log WHERE seq <= ?1")?.execute([*upto])?;
        }
        Work::Probe => {
            connection.execute("INSERT OR REPLACE INTO probe (id, count) VALUES (1, 1 + coalesce((SELECT count FROM probe), 0))", [])?;
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
        Work::Checkpoint { .. } | Work::Empty => {}
    }
    Ok(())
}
