//! Where a decision is written before it is answered, and the way from there into the log.
//!
//! Whoever decides appends the row while it holds the lock of its states, so the order of the rows is the order of the decisions. Before the
//! answer goes out it is written to a plain file ([`segment`]), with whatever else was appended meanwhile, in one write and by the first who
//! is there: no other thread. The end of the process does not harm what was written so. Where an answer has to survive a power cut as well
//! ([`Durability::Power`]), a thread writes and waits for the disk, once for all who wait. What cannot be written is taken back with all that was
//! decided upon it. One thread ([`mover`]) brings the rows into the database behind, many in one transaction; a start does the same with what
//! the process before has left.

pub(crate) mod mover;
mod segment;

pub use segment::JOURNAL_PREFIX;

use crate::embedded::Durability;
use crate::embedded::journal::mover::{Orders, Work};
use crate::embedded::shard::Shards;
use crate::error::StoreError;
use crate::key::{Key, Names};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::{Ended, Kind, Named, Row};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// A segment is left when it has grown to this; it goes once its rows are in the database.
const SEGMENT_BYTES: u64 = 8 << 20;
/// While the database takes nothing, so much is kept beside it; then answers are refused.
const MOST_WAITING_BYTES: u64 = 256 << 20;
/// Of a thread's room for a record, and of the room for those that are to be written, so much stays.
const LONG_RECORD: usize = 64 << 10;
/// For the disk, when somebody waits until a segment can be left.
const PATIENCE: Duration = Duration::from_secs(5);
/// Rows remembered for the indexer: about 20 MB.
const MOST_FRESH: usize = 200_000;

/// Tells what became of a row.
pub(crate) type Committed = oneshot::Receiver<Result<(), StoreError>>;

/// What an answer has to wait for.
#[derive(Debug, Default)]
pub(crate) enum Awaited {
    #[default]
    Nothing,
    /// Its own row.
    Row(Committed),
    /// Rows of others up to this one, that it was decided upon; so often rows had been taken back by then.
    Others { upto: u64, failures: u64 },
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

/// A row to be appended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appended<'a> {
    pub(crate) row: &'a Row,
    pub(crate) effects: &'a [u8],
    /// Rows that go out of the log with this one.
    pub(crate) removed: &'a [u64],
}

/// The segment that is written, and what comes next.
#[derive(Debug)]
struct Tail {
    file: Arc<File>,
    number: u64,
    /// Records that are not in the file yet.
    unwritten: Vec<u8>,
    /// With those.
    bytes: u64,
    /// Those that will not be taken back.
    safe_bytes: u64,
    next_seq: u64,
    /// Something that failed may stand behind its last record.
    is_soiled: bool,
    is_troubled: bool,
    stopping: bool,
    /// Those whose records are not safe yet, all of them in this segment.
    waiting: Vec<Waiting>,
    /// The segment is to be left by who waits for the disk, and how often that was tried.
    is_to_be_left: bool,
    left_tries: u64,
}

impl Tail {
    fn put_into_file(&mut self) -> io::Result<()> {
        if self.unwritten.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.try_to_write() {
            self.is_soiled = true;
            if !std::mem::replace(&mut self.is_troubled, true) {
                tracing::error!(%error, "decisions cannot be written; requests are answered 503 and nothing of them counts");
            }
            return Err(error);
        }
        if std::mem::replace(&mut self.is_troubled, false) {
            tracing::info!("decisions can be written again");
        }
        self.unwritten.clear();
        self.unwritten.shrink_to(LONG_RECORD);
        Ok(())
    }

    fn try_to_write(&mut self) -> io::Result<()> {
        if self.is_soiled {
            segment::cut(&self.file, self.bytes - self.unwritten.len() as u64)?;
            self.is_soiled = false;
        }
        (&*self.file).write_all(&self.unwritten)
    }
}

#[derive(Debug)]
struct Waiting {
    seq: u64,
    /// Its record is from here to there.
    at: u64,
    end: u64,
    undo: Vec<Undo>,
    done: oneshot::Sender<Result<(), StoreError>>,
}

/// What the index wants to know of a row.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) seq: u64,
    pub(crate) at: i64,
    pub(crate) session: i64,
    pub(crate) tenant: Box<str>,
    pub(crate) guard: Named<GuardName>,
    pub(crate) kind: Named<Kind>,
    pub(crate) outcome: Named<Ended>,
    pub(crate) reason: Option<Named<Reason>>,
}

/// Batch by batch, as they were moved: one list of all would be moved each time it has grown.
#[derive(Debug, Default)]
struct FreshRows {
    batches: Vec<Vec<Fresh>>,
    count: usize,
}

#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    durability: Durability,
    names: Names,
    /// The first segment of this life: where the mover begins.
    first_segment: u64,
    tail: Mutex<Tail>,
    to_sync: Condvar,
    synced: Condvar,
    /// The last row that an answer may rest on.
    safe: AtomicU64,
    /// The last row that is in the database.
    moved: AtomicU64,
    waiting_bytes: AtomicU64,
    /// Counts what was taken back: whoever copied states that were not safe looks whether that happened in between.
    failures: AtomicU64,
    moved_tx: watch::Sender<u64>,
    /// The rows moved since the indexer last asked, one after the other, so that it need not read them again. When it
    /// does not ask for long, the older ones are dropped: they are in the log.
    fresh: Mutex<FreshRows>,
    orders: Mutex<Orders>,
    ordered: Condvar,
    round_over: Condvar,
    mover_sleeps: AtomicBool,
}

/// A row as it will stand in the journal, but for its number.
#[derive(Debug)]
pub(crate) struct Encoded(Vec<u8>);

thread_local! {
    /// Room for the next record of a thread.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Appended<'_> {
    /// Done before anyone waits for it.
    pub(crate) fn encode(&self) -> Result<Encoded, StoreError> {
        let mut record = Encoded(ROOM.take());
        segment::encode(&mut record.0, self.row, self.effects, self.removed).map_err(|error| StoreError::Write(error.to_string()))?;
        Ok(record)
    }
}

impl Drop for Encoded {
    fn drop(&mut self) {
        let mut room = std::mem::take(&mut self.0);
        // What was long once is not kept for every later one.
        room.clear();
        room.shrink_to(LONG_RECORD);
        ROOM.set(room);
    }
}

impl Journal {
    /// With a segment of its own. Those that were there before have been moved.
    pub(crate) fn open(folder: &Path, durability: Durability, last_seq: u64, names: Names) -> io::Result<Self> {
        let number = segment::numbers(folder)?.last().map_or(1, |last| last + 1);
        let file = Arc::new(segment::create(folder, number)?);
        let tail = Tail {
            file,
            number,
            unwritten: Vec::new(),
            bytes: 0,
            safe_bytes: 0,
            next_seq: last_seq + 1,
            is_soiled: false,
            is_troubled: false,
            stopping: false,
            waiting: Vec::new(),
            is_to_be_left: false,
            left_tries: 0,
        };
        let journal = Self {
            folder: folder.to_owned(),
            durability,
            names,
            first_segment: number,
            tail: Mutex::new(tail),
            to_sync: Condvar::new(),
            synced: Condvar::new(),
            safe: AtomicU64::new(last_seq),
            moved: AtomicU64::new(last_seq),
            waiting_bytes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            moved_tx: watch::Sender::new(last_seq),
            fresh: Mutex::default(),
            orders: Mutex::default(),
            ordered: Condvar::new(),
            round_over: Condvar::new(),
            mover_sleeps: AtomicBool::new(false),
        };
        journal.sync_folder()?;
        Ok(journal)
    }

    /// The last row that an answer may rest on.
    pub(crate) fn safe(&self) -> u64 {
        self.safe.load(Ordering::SeqCst)
    }

    /// The last row that is in the database.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Acquire)
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Told of rows that are in the database: a moment after they are safe, with the many that came in it.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.moved_tx.subscribe()
    }

    pub(crate) fn take_fresh(&self) -> Vec<Vec<Fresh>> {
        std::mem::take(&mut *self.fresh.lock().unwrap_or_else(PoisonError::into_inner)).batches
    }

    fn remember_fresh(&self, rows: Vec<Fresh>) {
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        if fresh.count >= MOST_FRESH {
            *fresh = FreshRows::default();
        }
        fresh.count += rows.len();
        fresh.batches.push(rows);
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called with the locks of the touched states held. Gives the row's number, and what its answer has to wait for; or the changes that
    /// must be taken back before those locks are let go.
    pub(crate) fn append(&self, mut record: Encoded, undo: Vec<Undo>) -> Result<(u64, Committed), (StoreError, Vec<Undo>)> {
        let mut tail = self.tail();
        if let Err(error) = self.check_room(&tail) {
            return Err((error, undo));
        }
        let (seq, at) = (tail.next_seq, tail.bytes);
        segment::put_number(&mut record.0, seq);
        tail.unwritten.extend_from_slice(&record.0);
        tail.next_seq += 1;
        tail.bytes += record.0.len() as u64;
        self.waiting_bytes.fetch_add(record.0.len() as u64, Ordering::Relaxed);
        let (done, committed) = oneshot::channel();
        let end = tail.bytes;
        tail.waiting.push(Waiting { seq, at, end, undo, done });
        if self.durability == Durability::Power {
            tail.is_to_be_left |= tail.bytes >= SEGMENT_BYTES;
            self.to_sync.notify_one();
        }
        Ok((seq, committed))
    }

    fn check_room(&self, tail: &Tail) -> Result<(), StoreError> {
        if tail.stopping {
            return Err(StoreError::Stopping);
        }
        if self.waiting_bytes.load(Ordering::Relaxed) >= MOST_WAITING_BYTES {
            let megabytes = MOST_WAITING_BYTES >> 20;
            return Err(StoreError::Write(format!("runguard.db takes no rows, and {megabytes} MB wait for it")));
        }
        Ok(())
    }

    /// What an answer waits for that keeps nothing. Asked with the locks of the states held that it was decided upon.
    pub(crate) fn rest_on(&self, upto: u64) -> Awaited {
        if upto <= self.safe() { Awaited::Nothing } else { Awaited::Others { upto, failures: self.failures() } }
    }

    /// What became of the rows of others. `None`: nothing yet.
    pub(crate) fn is_written(&self, awaited: &Awaited) -> Option<Result<(), StoreError>> {
        match awaited {
            Awaited::Others { failures, .. } if self.failures() != *failures => {
                Some(Err(StoreError::Write("decisions before it could not be written".into())))
            }
            Awaited::Others { upto, .. } => (self.safe() >= *upto).then_some(Ok(())),
            Awaited::Nothing | Awaited::Row(_) => Some(Ok(())),
        }
    }

    /// Writes what was appended, or takes it back, and tells all who wait.
    pub(crate) fn write_out(&self, shards: &Shards) {
        if let Err(error) = self.try_to_write_out() {
            self.take_back(Vec::new(), &error, shards);
        }
    }

    /// The same for whoever holds states, so that nothing can be taken back. Where the disk is waited for it is another's to do.
    pub(crate) fn try_to_write_out(&self) -> io::Result<()> {
        if self.durability == Durability::Power {
            return Ok(());
        }
        let mut tail = self.tail();
        let written = self.write_waiting(&mut tail)?;
        if tail.bytes >= SEGMENT_BYTES && !tail.stopping {
            // Where there is no room for another file it goes on in this one.
            let _ = self.begin_segment(&mut tail);
        }
        drop(tail);
        self.tell(written);
        Ok(())
    }

    /// Gives those who are to be told that they are safe.
    fn write_waiting(&self, tail: &mut Tail) -> io::Result<Vec<Waiting>> {
        tail.put_into_file()?;
        let written = std::mem::take(&mut tail.waiting);
        self.mark_safe(tail, &written);
        Ok(written)
    }

    /// Leaves the segment, so that it goes with its last row. All that belongs into it is in it.
    fn begin_segment(&self, tail: &mut Tail) -> io::Result<()> {
        if tail.is_soiled {
            segment::cut(&tail.file, tail.bytes)?;
            tail.is_soiled = false;
        }
        let number = tail.number + 1;
        let file = segment::create(&self.folder, number)?;
        if let Err(error) = self.sync_folder() {
            let _ = segment::remove(&self.folder, number);
            return Err(error);
        }
        tail.file = Arc::new(file);
        (tail.number, tail.bytes, tail.safe_bytes, tail.is_to_be_left) = (number, 0, 0, false);
        Ok(())
    }

    /// Leaves the segment once all that is in it is safe. Gives the number of the next.
    fn leave_segment(&self) -> io::Result<u64> {
        let mut tail = self.tail();
        let number = tail.number;
        match self.durability {
            Durability::Process => {
                let written = self.write_waiting(&mut tail)?;
                self.tell(written);
                self.begin_segment(&mut tail)?;
            }
            Durability::Power => {
                tail.is_to_be_left = true;
                self.to_sync.notify_all();
                let tries = tail.left_tries;
                let is_waiting = |tail: &mut Tail| tail.left_tries == tries && !tail.stopping;
                tail = self.synced.wait_timeout_while(tail, PATIENCE, is_waiting).unwrap_or_else(PoisonError::into_inner).0;
                if tail.number == number {
                    return Err(io::Error::other("the disk has not taken the last decisions yet"));
                }
            }
        }
        Ok(tail.number)
    }

    /// A file whose name is not on the disk is not there after a power cut.
    fn sync_folder(&self) -> io::Result<()> {
        match self.durability {
            Durability::Process => Ok(()),
            Durability::Power => File::open(&self.folder)?.sync_all(),
        }
    }

    /// Nothing is taken any more; what was taken still goes its way.
    pub(crate) fn stop(&self, shards: &Shards) {
        self.tail().stopping = true;
        self.write_out(shards);
        self.to_sync.notify_all();
        self.synced.notify_all();
    }

    /// The life of the thread that waits for the disk.
    pub(crate) fn sync(&self, shards: &Shards) {
        loop {
            let mut tail = self.tail();
            while tail.waiting.is_empty() && !tail.is_to_be_left {
                if tail.stopping {
                    return;
                }
                tail = self.to_sync.wait(tail).unwrap_or_else(PoisonError::into_inner);
            }
            let (file, written) = (tail.file.clone(), tail.put_into_file());
            let waiting = std::mem::take(&mut tail.waiting);
            // A segment is left with nobody in it who waits: once in so many megabytes all wait for the disk.
            let held = std::mem::take(&mut tail.is_to_be_left).then_some(tail);
            let told = |error: &io::Error| {
                tracing::error!(%error, requests = waiting.len(), "the disk did not take a batch; its requests are answered 503 and nothing of them counts");
            };
            match (written.and_then(|()| file.sync_data().inspect_err(told)), held) {
                (Ok(()), None) => self.are_safe(self.tail(), waiting),
                (Ok(()), Some(mut tail)) => {
                    self.mark_safe(&mut tail, &waiting);
                    // Where there is no room for another file it goes on in this one.
                    let _ = self.begin_segment(&mut tail);
                    self.was_tried(&mut tail);
                    self.are_safe(tail, waiting);
                }
                (Err(error), held) => {
                    if let Some(mut tail) = held {
                        self.was_tried(&mut tail);
                    }
                    self.take_back(waiting, &error, shards);
                }
            }
        }
    }

    fn was_tried(&self, tail: &mut Tail) {
        tail.left_tries += 1;
        self.synced.notify_all();
    }

    fn mark_safe(&self, tail: &mut Tail, waiting: &[Waiting]) {
        if let Some(last) = waiting.last().filter(|last| last.seq > self.safe()) {
            tail.safe_bytes = last.end;
            self.safe.store(last.seq, Ordering::SeqCst);
        }
    }

    fn are_safe(&self, mut tail: MutexGuard<'_, Tail>, waiting: Vec<Waiting>) {
        self.mark_safe(&mut tail, &waiting);
        drop(tail);
        self.tell(waiting);
    }

    fn tell(&self, safe: Vec<Waiting>) {
        self.wake_mover();
        for waiting in safe {
            // A caller that has gone away does not want to know.
            let _ = waiting.done.send(Ok(()));
        }
    }

    /// What the disk did not take, and all that was decided upon it, may not stay in memory.
    fn take_back(&self, mut failed: Vec<Waiting>, error: &io::Error, shards: &Shards) {
        let mut held = shards.lock_all();
        let mut tail = self.tail();
        failed.append(&mut tail.waiting);
        // Somebody may have written it meanwhile.
        let Some(first) = failed.first() else { return };
        tracing::debug!(%error, requests = failed.len(), "decisions are taken back");
        self.waiting_bytes.fetch_sub(tail.bytes - first.at, Ordering::Relaxed);
        (tail.next_seq, tail.bytes) = (first.seq, first.at);
        tail.unwritten.clear();
        // At once: a process that ends here must not leave what was refused to the next.
        tail.is_soiled = segment::cut(&tail.file, tail.bytes).is_err();
        self.failures.fetch_add(1, Ordering::AcqRel);
        for undo in failed.iter_mut().rev().flat_map(|failed| failed.undo.drain(..).rev()) {
            let key = undo.key();
            let shard = &mut held[Shards::index_of(key)];
            if let Some(resident) = shard.map.get_mut(&key) {
                resident.seq = resident.seq.min(self.safe());
            }
            shard.take_back(undo);
        }
        drop(tail);
        drop(held);
        let error = StoreError::Write(error.to_string());
        for failed in failed {
            let _ = failed.done.send(Err(error.clone()));
        }
    }

    /// Gives the mover something to do, after the rows that are safe now. `None`: it has ended.
    pub(crate) fn order(&self, work: Work) -> Option<oneshot::Receiver<Result<Work, StoreError>>> {
        let (done, ended) = oneshot::channel();
        self.lock_orders().add(work, done)?;
        self.ordered.notify_all();
        Some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Family;

    fn change(shards: &Shards, key: Key, to: u8) -> Undo {
        let old = shards.of(key).change(key, |resident| resident.put(1, "", Box::new([to])));
        Undo::Slot { key, slot: 1, subject: "".into(), state: old }
    }

    fn append(journal: &Journal, undo: Vec<Undo>) -> (u64, Committed) {
        let record = Appended { row: &Row::default(), effects: &[], removed: &[] }.encode().unwrap();
        let (seq, committed) = journal.append(record, undo).map_err(|(error, _)| error).unwrap();
        (seq, committed)
    }

    /// A disk that says no takes back what waited for it and what was decided upon that, in memory and in the file.
    #[test]
    fn what_the_disk_does_not_take_was_never_decided() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, shards) = (Journal::open(folder.path(), Durability::Power, 7, Names::PLAIN).unwrap(), Shards::new());
        let key = Key::new(Family::Session, "t", "s");
        let (first, mut safe) = append(&journal, vec![change(&shards, key, 1)]);
        journal.tail().put_into_file().unwrap();
        let waiting = std::mem::take(&mut journal.tail().waiting);
        journal.are_safe(journal.tail(), waiting);
        assert_eq!((first, journal.safe(), safe.try_recv().unwrap().is_ok()), (8, 8, true));
        let bytes = journal.tail().bytes;

        let (_, mut waits) = append(&journal, vec![change(&shards, key, 2)]);
        journal.tail().put_into_file().unwrap();
        let failed = std::mem::take(&mut journal.tail().waiting);
        let (_, mut upon_it) = append(&journal, vec![change(&shards, key, 3)]);
        journal.take_back(failed, &io::Error::other("no"), &shards);
        for refused in [&mut waits, &mut upon_it] {
            assert!(matches!(refused.try_recv(), Ok(Err(StoreError::Write(_)))));
        }
        assert_eq!(shards.of(key).map[&key].get(1, ""), Some(&[1][..]));
        assert_eq!((journal.failures(), journal.tail().bytes, journal.safe()), (1, bytes, 8));

        assert_eq!(append(&journal, Vec::new()).0, 9, "the number is free again");
        journal.tail().put_into_file().unwrap();
        let length = std::fs::metadata(folder.path().join("journal-0000000001")).unwrap().len();
        assert_eq!(length, journal.tail().bytes, "and nothing stands behind the last record");
    }

    /// Whoever comes first writes for all; what cannot be written was decided by nobody, and the next goes on as if it had not been asked.
    #[test]
    fn what_was_appended_is_written_together_or_taken_back_together() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, shards) = (Journal::open(folder.path(), Durability::Process, 0, Names::PLAIN).unwrap(), Shards::new());
        let length = || std::fs::metadata(folder.path().join("journal-0000000001")).unwrap().len();
        let key = Key::new(Family::Session, "t", "s");
        let (mut first, mut second) = (append(&journal, vec![change(&shards, key, 1)]), append(&journal, vec![change(&shards, key, 2)]));
        assert_eq!((journal.safe(), length(), first.1.try_recv().is_err()), (0, 0, true), "nobody was told");
        journal.write_out(&shards);
        for written in [&mut first, &mut second] {
            assert!(matches!(written.1.try_recv(), Ok(Ok(()))));
        }
        assert_eq!((journal.safe(), length()), (2, journal.tail().bytes));

        let full = std::fs::OpenOptions::new().append(true).open("/dev/full").unwrap();
        let sound = std::mem::replace(&mut journal.tail().file, Arc::new(full));
        let (mut third, mut upon_it) = (append(&journal, vec![change(&shards, key, 3)]), append(&journal, vec![change(&shards, key, 4)]));
        journal.write_out(&shards);
        for refused in [&mut third, &mut upon_it] {
            assert!(matches!(refused.1.try_recv(), Ok(Err(StoreError::Write(_)))));
        }
        assert_eq!(shards.of(key).map[&key].get(1, ""), Some(&[2][..]));
        journal.tail().file = sound;
        let mut again = append(&journal, vec![change(&shards, key, 5)]);
        journal.write_out(&shards);
        assert_eq!((again.0, journal.safe(), length()), (3, 3, journal.tail().bytes), "the number is free again");
        assert!(matches!(again.1.try_recv(), Ok(Ok(()))));
    }
}
