//! The file of the cells: their table, that of the sessions, and how far into the log both reach.

use super::sessions::{self, Trim};
use super::{Ended, Rests, session_number};
use crate::erasure::Gone;
use runguard_insight::insight::digest::{Cell, CellKey, Digest, Dimension, HOUR_MILLIS, MOST_NAMES, Range, Sessions};
use runguard_insight::insight::long_runs::{KnownLengths, OVER_AFTER_MILLIS};
use runguard_insight::insight::session_list::SessionSeen;
use runguard_store::files::{make_database_private, remove_database};
use runguard_store::scrub::{BUSY, Checkpoint, checkpoint, rid_of_removed};
use runguard_store::{Names, TrustedTime};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params};
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Another format is thrown away and built anew.
const FORMAT: i64 = 7;
/// Cells kept, about 200 bytes each; beyond it the oldest hours go before their time.
const MOST_CELLS: u64 = 1_000_000;
/// Groups whose names are remembered as counted.
const MOST_GROUPS: usize = 10_000;
/// How long an erased session is no example. The erasure itself takes seconds at most.
const MARK_FOR: Duration = Duration::from_secs(600);
const MOST_MARKS: usize = 10_000;

pub(super) const SCHEMA: &str = "
CREATE TABLE cells (
    hour        INTEGER NOT NULL,
    tenant      TEXT NOT NULL,
    dimension   INTEGER NOT NULL,
    first_name  TEXT NOT NULL,
    second_name TEXT NOT NULL,
    body        BLOB NOT NULL,
    PRIMARY KEY (hour, tenant, dimension, first_name, second_name)
) WITHOUT ROWID, STRICT;
CREATE TABLE sessions (
    tenant      TEXT NOT NULL,
    session     TEXT NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    allowed     INTEGER NOT NULL,
    would_block INTEGER NOT NULL,
    blocked     INTEGER NOT NULL,
    nanodollars INTEGER NOT NULL,
    refused_at  INTEGER,
    reason      TEXT,
    calls       INTEGER NOT NULL,
    tokens      INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    PRIMARY KEY (tenant, session)
) WITHOUT ROWID, STRICT;
CREATE TABLE progress (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
";

/// Sessions that are being erased.
#[derive(Debug, Default)]
pub(super) struct Marks(VecDeque<(Instant, Gone)>);

impl Marks {
    pub(super) fn add(&mut self, gone: &Gone) {
        if self.0.len() >= MOST_MARKS {
            self.0.pop_front();
        }
        self.0.push_back((Instant::now(), gone.clone()));
    }

    pub(super) fn expire(&mut self) {
        while self.0.front().is_some_and(|(since, ..)| since.elapsed() >= MARK_FOR) {
            self.0.pop_front();
        }
    }

    pub(super) fn have(&self, tenant: &str, session: &str) -> bool {
        self.0.iter().any(|(_, gone)| gone.is(tenant, session))
    }
}

pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        || matches!(error, rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..))
}

/// Not kept under another name: it holds what users said, and no erasure would find it.
pub(super) fn remove(path: &Path) -> std::io::Result<()> {
    remove_database(path)
}

fn decode(body: &[u8]) -> Result<Cell, rusqlite::Error> {
    postcard::from_bytes(body).map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, error.into()))
}

fn encode(cell: &Cell) -> Result<Vec<u8>, rusqlite::Error> {
    postcard::to_stdvec(cell).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn progress(connection: &Connection, name: &str) -> Result<u64, rusqlite::Error> {
    Ok(connection.query_row("SELECT value FROM progress WHERE name = ?1", [name], |row| row.get(0)).optional()?.unwrap_or(0))
}

fn set_progress(connection: &Connection, name: &str, value: u64) -> Result<(), rusqlite::Error> {
    connection.prepare_cached("INSERT OR REPLACE INTO progress (name, value) VALUES (?1, ?2)")?.execute(params![name, value])?;
    Ok(())
}

/// Shows what is in the file, with the last row it rests on, in one snapshot. `None`: it is not there yet, or of another format.
pub(super) fn look<R>(
    path: &Path,
    show: impl FnOnce(&Connection, u64) -> Result<R, rusqlite::Error>,
) -> Result<Option<R>, rusqlite::Error> {
    if !path.exists() {
        return Ok(None);
    }
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY)?;
    connection.execute_batch("PRAGMA query_only = ON; PRAGMA cache_size = -2000;")?;
    let snapshot = connection.unchecked_transaction()?;
    let is_made: i64 = snapshot.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if is_made != FORMAT {
        return Ok(None);
    }
    let digested = progress(&snapshot, "digested")?;
    show(&snapshot, digested).map(Some)
}

/// The cells of a range that are wanted, and the last row they rest on.
pub(super) fn read(path: &Path, range: &Range, wanted: &[Dimension]) -> Result<(u64, Vec<(CellKey, Cell)>), rusqlite::Error> {
    let found = look(path, |snapshot, digested| Ok((digested, select(snapshot, range, wanted)?)))?;
    Ok(found.unwrap_or_default())
}

fn select(snapshot: &Connection, range: &Range, wanted: &[Dimension]) -> Result<Vec<(CellKey, Cell)>, rusqlite::Error> {
    let (first, last) = range.hours();
    let mut select = snapshot.prepare(
        "SELECT hour, tenant, dimension, first_name, second_name, body FROM cells
         WHERE hour >= ?1 AND hour <= ?2 AND (?3 IS NULL OR tenant = ?3)",
    )?;
    let mut rows = select.query(params![first, last, range.filters.tenant])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(dimension) = Dimension::from_number(row.get(2)?).filter(|dimension| wanted.contains(dimension)) else { continue };
        let text = |column: usize| row.get_ref(column).and_then(|value| Ok(Box::from(value.as_str()?)));
        let place = CellKey { hour: row.get(0)?, tenant: text(1)?, dimension, first: text(3)?, second: text(4)? };
        found.push((place, decode(row.get_ref(5)?.as_blob()?)?));
    }
    Ok(found)
}

/// Hour, tenant, dimension, and the first name where it has its own bound.
type Group = (i64, Box<str>, u8, Box<str>);

/// The connection that writes.
#[derive(Debug)]
pub(super) struct Cells {
    connection: Connection,
    digested: u64,
    kept: u64,
    newest_hour: i64,
    names: HashMap<Group, usize>,
    trim: Trim,
}

impl Cells {
    pub(super) fn open(path: &Path, names: Names) -> Result<Self, rusqlite::Error> {
        let mut connection = Self::connect(path)?;
        let mut found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        // Of another store's numbers no session could be told, nor be taken out.
        let numbering = session_number(names, "", "") >> 1;
        if found != 0 && (found != FORMAT || progress(&connection, "numbering")? != numbering) {
            drop(connection);
            remove(path).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
            (connection, found) = (Self::connect(path)?, 0);
        }
        if found == 0 {
            let numbered = format!("INSERT INTO progress (name, value) VALUES ('numbering', {numbering});");
            connection.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA} {numbered} PRAGMA user_version = {FORMAT}; COMMIT;"))?;
        }
        Ok(Self {
            digested: progress(&connection, "digested")?,
            kept: progress(&connection, "cells")?,
            newest_hour: connection.query_row("SELECT coalesce(max(hour), 0) FROM cells", [], |row| row.get(0))?,
            names: HashMap::new(),
            trim: Trim::default(),
            connection,
        })
    }

    fn connect(path: &Path) -> Result<Connection, rusqlite::Error> {
        make_database_private(path).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.execute_batch(
            "PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -8000;",
        )?;
        Ok(connection)
    }

    /// The last row that is in the cells.
    pub(super) fn digested(&self) -> u64 {
        self.digested
    }

    pub(super) fn newest_hour(&self) -> i64 {
        self.newest_hour
    }

    /// Adds a digest to the cells, and says how far they reach, together.
    pub(super) fn write(&mut self, mut digest: Digest, upto: u64, rests: &mut Rests) -> Result<(), Ended> {
        let mut seen: Vec<SessionSeen> = digest.take_sessions().collect();
        seen.sort_unstable_by(|left, right| (&left.tenant, &left.session).cmp(&(&right.tenant, &right.session)));
        let mut changes: Vec<(CellKey, Cell)> = digest.into_cells().collect();
        // Sorted, each page of the table is touched once.
        changes.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        if self.names.len() > MOST_GROUPS {
            self.names.clear();
        }
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut writing = Writing { transaction: &transaction, names: &mut self.names, added: 0 };
        for (place, cell) in changes {
            let written = writing.put(place, cell);
            if written.is_err() || rests.step().is_break() {
                // Nothing of it is kept, and so neither are its counts of names.
                self.names.clear();
                return written.and(Err(Ended::Stopping));
            }
        }
        let cells = self.kept + writing.added;
        for session in &seen {
            if rests.step().is_break() {
                self.names.clear();
                return Err(Ended::Stopping);
            }
            sessions::put(&transaction, session)?;
        }
        set_progress(&transaction, "digested", upto)?;
        set_progress(&transaction, "cells", cells)?;
        transaction.commit()?;
        (self.digested, self.kept) = (upto, cells);
        self.newest_hour = self.connection.query_row("SELECT coalesce(max(hour), 0) FROM cells", [], |row| row.get(0))?;
        if self.trim.is_due_after(seen.len()) {
            self.trim.run(&mut self.connection, None, rests)?;
        }
        Ok(())
    }

    /// Removes hours before this one, and more when there are too many cells.
    pub(super) fn retire(&mut self, first_hour: i64, rests: &mut Rests) -> Result<(), Ended> {
        let before = self.kept;
        loop {
            let hours: (Option<i64>, Option<i64>) =
                self.connection.query_row("SELECT min(hour), max(hour) FROM cells", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let (Some(oldest), Some(newest)) = hours else { break };
            if oldest >= first_hour && (self.kept <= MOST_CELLS || oldest == newest) {
                break;
            }
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let removed = transaction.execute("DELETE FROM cells WHERE hour = ?1", [oldest])? as u64;
            let cells = self.kept.saturating_sub(removed);
            set_progress(&transaction, "cells", cells)?;
            transaction.commit()?;
            self.kept = cells;
            self.names.clear();
            if rests.rest() == ControlFlow::Break(()) {
                return Err(Ended::Stopping);
            }
        }
        let removed = self.trim.run(&mut self.connection, Some(first_hour.saturating_mul(HOUR_MILLIS)), rests)?;
        if self.kept < before || removed > 0 {
            // What was said in them is in the write-ahead log too.
            checkpoint(&self.connection, Checkpoint::Truncate)?;
        }
        Ok(())
    }

    /// The time that hours go by. What is known of it is kept in the file.
    pub(super) fn time_passed(&mut self, told: i64, elapsed: Duration) -> Result<i64, rusqlite::Error> {
        let newest = (self.newest_hour > 0).then(|| (self.newest_hour + 1).saturating_mul(HOUR_MILLIS));
        let mut trusted = TrustedTime::read(&self.connection)?.unwrap_or_else(|| TrustedTime::starting(told, newest));
        let now = trusted.pass(told, i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX));
        trusted.write(&self.connection)?;
        Ok(now)
    }

    /// What is long for each kind of run, by those that are over.
    pub(super) fn long_runs(&self, now: i64) -> Result<KnownLengths, rusqlite::Error> {
        sessions::long_runs(&self.connection, now.saturating_sub(OVER_AFTER_MILLIS))
    }

    /// Overwrites what is unused, and empties the write-ahead log; whether it could be emptied.
    pub(super) fn purge(&mut self) -> Result<bool, rusqlite::Error> {
        rid_of_removed(&self.connection)
    }

    /// Takes a session out of every cell; whether it was in any.
    pub(super) fn forget(&mut self, gone: &Gone) -> Result<bool, rusqlite::Error> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut is_known = false;
        {
            let mut select = transaction.prepare_cached(
                "SELECT hour, dimension, first_name, second_name, body FROM cells
                 WHERE tenant = ?1 AND (?2 IS NULL OR instr(body, ?2) > 0 OR instr(body, ?3) > 0)",
            )?;
            let mut update = transaction.prepare_cached(
                "UPDATE cells SET body = ?6 WHERE hour = ?1 AND tenant = ?2 AND dimension = ?3 AND first_name = ?4 AND second_name = ?5",
            )?;
            let read = |row: &rusqlite::Row<'_>| {
                let place: (i64, i64, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
                Ok((place, row.get::<_, Vec<u8>>(4)?))
            };
            let number = gone.number().unwrap_or_default();
            let (name, trace) = (gone.session().map(str::as_bytes), Sessions::trace(number));
            let found = select.query_map(params![gone.tenant(), name, trace], read)?.collect::<Result<Vec<_>, _>>()?;
            for ((hour, dimension, first, second), body) in found {
                let mut cell = decode(&body)?;
                if cell.forget(|session| gone.is(gone.tenant(), session), number) {
                    is_known = true;
                    update.execute(params![hour, gone.tenant(), dimension, first, second, encode(&cell)?])?;
                }
            }
        }
        // A run's cells are named after it.
        let mut runs = transaction.prepare_cached(
            "SELECT hour, first_name FROM cells WHERE tenant = ?1 AND dimension = ?2 AND (?3 IS NULL OR first_name = ?3)",
        )?;
        let of_run = (Dimension::Run.number(), gone.session());
        let named = runs.query_map(params![gone.tenant(), of_run.0, of_run.1], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let named: Vec<(i64, String)> = named.collect::<Result<_, _>>()?;
        drop(runs);
        let mut removed = 0;
        for (hour, run) in named.iter().filter(|(_, run)| gone.is(gone.tenant(), run)) {
            let mut remove =
                transaction.prepare_cached("DELETE FROM cells WHERE hour = ?1 AND tenant = ?2 AND dimension = ?3 AND first_name = ?4")?;
            removed += remove.execute(params![hour, gone.tenant(), of_run.0, run])? as u64;
        }
        let cells = self.kept.saturating_sub(removed);
        set_progress(&transaction, "cells", cells)?;
        let was_listed = sessions::forget(&transaction, gone)?;
        transaction.commit()?;
        self.kept = cells;
        self.names.clear();
        Ok(is_known || removed > 0 || was_listed)
    }
}

/// One transaction.
struct Writing<'a> {
    transaction: &'a Transaction<'a>,
    names: &'a mut HashMap<Group, usize>,
    added: u64,
}

impl Writing<'_> {
    fn put(&mut self, place: CellKey, cell: Cell) -> Result<(), Ended> {
        if self.add(&place, &cell)? {
            return Ok(());
        }
        let group = if place.dimension.is_bounded_by_first_name() { place.first.clone() } else { "".into() };
        let group = (place.hour, place.tenant.clone(), place.dimension.number(), group);
        let names = match self.names.get(&group) {
            Some(names) => *names,
            None => self.count(&group)?,
        };
        if names < MOST_NAMES {
            self.names.insert(group, names + 1);
            return self.insert(&place, &cell);
        }
        self.names.insert(group, names);
        let (first, second) = place.dimension.other_names(&place.first);
        let other = CellKey { first: first.into(), second: second.into(), ..place };
        if self.add(&other, &cell)? { Ok(()) } else { self.insert(&other, &cell) }
    }

    fn count(&self, (hour, tenant, dimension, first): &Group) -> Result<usize, Ended> {
        let mut select = self.transaction.prepare_cached(
            "SELECT count(*) FROM cells WHERE hour = ?1 AND tenant = ?2 AND dimension = ?3 AND (?4 = '' OR first_name = ?4)",
        )?;
        Ok(select.query_row(params![hour, tenant, dimension, first], |row| row.get(0))?)
    }

    /// Adds to a cell; says whether it was there.
    fn add(&self, place: &CellKey, cell: &Cell) -> Result<bool, Ended> {
        let CellKey { hour, tenant, dimension, first, second } = place;
        let key = params![hour, tenant, dimension.number(), first, second];
        let mut select = self.transaction.prepare_cached(
            "SELECT body FROM cells WHERE hour = ?1 AND tenant = ?2 AND dimension = ?3 AND first_name = ?4 AND second_name = ?5",
        )?;
        let Some(mut sum) = select.query_row(key, |row| decode(row.get_ref(0)?.as_blob()?)).optional()? else { return Ok(false) };
        sum.add(cell);
        let mut update = self.transaction.prepare_cached(
            "UPDATE cells SET body = ?6 WHERE hour = ?1 AND tenant = ?2 AND dimension = ?3 AND first_name = ?4 AND second_name = ?5",
        )?;
        update.execute(params![hour, tenant, dimension.number(), first, second, encode(&sum)?])?;
        Ok(true)
    }

    fn insert(&mut self, CellKey { hour, tenant, dimension, first, second }: &CellKey, cell: &Cell) -> Result<(), Ended> {
        let mut insert = self.transaction.prepare_cached("INSERT INTO cells VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
        insert.execute(params![hour, tenant, dimension.number(), first, second, encode(cell)?])?;
        self.added += 1;
        Ok(())
    }
}
