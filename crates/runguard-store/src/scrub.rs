//! Overwrites what is left of removed rows in a database file.
//!
//! SQLite overwrites a row that is removed (`secure_delete`), but not the copies of it that lie in the unused part of a page after
//! rows were moved between pages. So the unused part of every page is overwritten, through SQLite's own table of its pages: in a
//! transaction like any other, which readers and crashes see as one.

use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use std::ops::Range;
use std::time::Duration;

// The table of pages is a choice made when SQLite is compiled.
const _: () = assert!(
    option_env!("LIBSQLITE3_FLAGS").is_some(),
    "SQLite must be compiled with SQLITE_ENABLE_DBPAGE_VTAB: build within the repository, whose .cargo/config.toml says so, or set LIBSQLITE3_FLAGS=-DSQLITE_ENABLE_DBPAGE_VTAB"
);

/// Pages looked at in one snapshot, and overwritten in one transaction at most.
const PAGES_AT_ONCE: u32 = 64;

/// Up to here the first byte of a page tells what it is: those that are no part of a tree begin with the number of a page.
const MOST_PAGES: u32 = 1 << 24;

/// How long another process that writes to a file is waited for. Nobody waits for one that reads.
pub const BUSY: Duration = Duration::from_secs(5);

/// How far a write-ahead log is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checkpoint {
    /// Into the database, so that the next row starts it over.
    Restart,
    /// The same, and its file is emptied: nothing that was removed is left in it.
    Truncate,
}

/// Moves the write-ahead log into the database, as far as it goes without waiting for anybody. Says whether it went as far as was
/// asked: whoever reads an older state keeps it from there.
pub fn checkpoint(connection: &Connection, how: Checkpoint) -> Result<bool, rusqlite::Error> {
    let sql = match how {
        Checkpoint::Restart => "PRAGMA wal_checkpoint(RESTART)",
        Checkpoint::Truncate => "PRAGMA wal_checkpoint(TRUNCATE)",
    };
    connection.busy_timeout(Duration::ZERO)?;
    let is_done = connection.query_row(sql, [], |row| Ok(row.get::<_, i64>(0)? == 0));
    connection.busy_timeout(BUSY)?;
    match is_done {
        // Another connection of ours is at it.
        Err(error) if matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => Ok(false),
        done => done,
    }
}

/// Overwrites what is unused in all pages, on the connection that writes the file. `rest` is called now and then.
pub fn overwrite_unused(connection: &Connection, mut rest: impl FnMut()) -> Result<(), rusqlite::Error> {
    let mut pages = Pages::of(connection)?;
    while let Some(soiled) = pages.next_soiled(connection, &mut rest)? {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let cleaned = clean(connection, &soiled).and_then(|()| connection.execute_batch("COMMIT"));
        if cleaned.is_err() && !connection.is_autocommit() {
            let _ = connection.execute_batch("ROLLBACK");
        }
        cleaned?;
        rest();
    }
    Ok(())
}

/// Overwrites what was removed from a file, and empties its write-ahead log. Whether it is rid of it: not while somebody reads what was.
pub fn rid_of_removed(connection: &Connection) -> Result<bool, rusqlite::Error> {
    overwrite_unused(connection, || {})?;
    checkpoint(connection, Checkpoint::Truncate)
}

/// A walk over the pages of a file.
#[derive(Debug)]
pub(crate) struct Pages {
    next: u32,
    last: u32,
}

impl Pages {
    pub(crate) fn of(connection: &Connection) -> Result<Self, rusqlite::Error> {
        let last: u32 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
        if last >= MOST_PAGES {
            return Err(rusqlite::Error::InvalidParameterName(format!(
                "a file of {last} pages cannot be overwritten, only one of {MOST_PAGES}"
            )));
        }
        Ok(Self { next: 1, last })
    }

    /// The next pages whose unused part is not empty; `None` at the end.
    pub(crate) fn next_soiled(&mut self, connection: &Connection, rest: &mut impl FnMut()) -> Result<Option<Vec<u32>>, rusqlite::Error> {
        let mut soiled = Vec::new();
        while soiled.is_empty() && self.next <= self.last {
            let upto = self.last.min(self.next.saturating_add(PAGES_AT_ONCE - 1));
            let mut select = connection.prepare_cached("SELECT data FROM sqlite_dbpage WHERE pgno = ?1")?;
            for number in self.next..=upto {
                let is_soiled = select.query_row([number], |row| Ok(is_soiled(number, row.get_ref(0)?.as_blob()?))).optional()?;
                soiled.extend(is_soiled.unwrap_or(false).then_some(number));
            }
            self.next = upto + 1;
            rest();
        }
        Ok((!soiled.is_empty()).then_some(soiled))
    }
}

/// Overwrites what is unused in some pages, within a transaction.
pub(crate) fn clean(connection: &Connection, pages: &[u32]) -> Result<(), rusqlite::Error> {
    let mut select = connection.prepare_cached("SELECT data FROM sqlite_dbpage WHERE pgno = ?1")?;
    let mut update = connection.prepare_cached("UPDATE sqlite_dbpage SET data = ?2 WHERE pgno = ?1")?;
    for number in pages {
        let page: Option<Vec<u8>> = select.query_row([number], |row| row.get(0)).optional()?;
        let Some(mut page) = page.filter(|page| is_soiled(*number, page)) else { continue };
        for unused in unused(*number, &page) {
            page[unused].fill(0);
        }
        update.execute(params![number, page])?;
    }
    Ok(())
}

fn is_soiled(number: u32, page: &[u8]) -> bool {
    unused(number, page).into_iter().any(|unused| page[unused].iter().any(|byte| *byte != 0))
}

/// The parts of a page of a tree that belong to no row; none of any other page, and none of one that is not as it should be.
fn unused(number: u32, page: &[u8]) -> Vec<Range<usize>> {
    try_unused(number, page).unwrap_or_default()
}

fn try_unused(number: u32, page: &[u8]) -> Option<Vec<Range<usize>>> {
    // The file's own header is before the first page's.
    let header = if number == 1 { 100 } else { 0 };
    let two_bytes = |at: usize| Some(usize::from(u16::from_be_bytes([*page.get(at)?, *page.get(at + 1)?])));
    let header_bytes = match page.get(header)? {
        2 | 5 => 12,
        10 | 13 => 8,
        _ => return None,
    };
    let gap_start = header + header_bytes + 2 * two_bytes(header + 3)?;
    let rows_start = match two_bytes(header + 5)? {
        0 => 65_536,
        start => start,
    };
    if gap_start > rows_start || rows_start > page.len() {
        return None;
    }
    let mut unused = Vec::new();
    unused.push(gap_start..rows_start);
    let mut block = two_bytes(header + 1)?;
    while block != 0 {
        let (next, end) = (two_bytes(block)?, block + two_bytes(block + 2)?);
        // Blocks are in order, which also ends the walk.
        if block < rows_start || end > page.len() || end < block + 4 || (next != 0 && next < end) {
            return None;
        }
        unused.push(block + 4..end);
        block = next;
    }
    Some(unused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn database(folder: &std::path::Path) -> Connection {
        let connection = Connection::open(folder.join("some.db")).unwrap();
        let made = "PRAGMA page_size = 4096; PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA secure_delete = ON;
            CREATE TABLE named (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
            CREATE TABLE numbered (number INTEGER PRIMARY KEY, text TEXT NOT NULL);
            CREATE INDEX texts ON numbered (text);";
        connection.execute_batch(made).unwrap();
        connection
    }

    fn texts(connection: &Connection) -> Vec<String> {
        let sql = "SELECT name || ' ' || text FROM named UNION ALL SELECT number || ' ' || text FROM numbered ORDER BY 1";
        connection.prepare(sql).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Whatever was put in, moved between pages and removed: nothing removed is in the file, everything else is.
        #[test]
        fn nothing_removed_is_left_and_nothing_else_is_lost(
            rows in prop::collection::vec((0_u32..10_000, 1_usize..1500, prop::bool::ANY), 50..400),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let connection = database(folder.path());
            let text = |number: u32, length: usize| format!("<{number}>").repeat(length / 4 + 1);
            connection.execute_batch("BEGIN").unwrap();
            for (number, length, _) in &rows {
                connection.execute("INSERT OR REPLACE INTO named VALUES (?1, ?2)", params![number.to_string(), text(*number, *length)]).unwrap();
                connection.execute("INSERT OR REPLACE INTO numbered VALUES (?1, ?2)", params![number, text(*number, *length)]).unwrap();
            }
            let gone: std::collections::BTreeSet<u32> = rows.iter().filter(|(.., goes)| *goes).map(|(number, ..)| *number).collect();
            for number in &gone {
                connection.execute("DELETE FROM named WHERE name = ?1", [number.to_string()]).unwrap();
                connection.execute("DELETE FROM numbered WHERE number = ?1", [number]).unwrap();
            }
            connection.execute_batch("COMMIT").unwrap();
            let before = texts(&connection);
            overwrite_unused(&connection, || {}).unwrap();
            prop_assert!(checkpoint(&connection, Checkpoint::Truncate).unwrap());
            prop_assert_eq!(texts(&connection), before);
            let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
            prop_assert_eq!(sound, "ok");
            let bytes = std::fs::read(folder.path().join("some.db")).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            let left = text.split('<').filter_map(|rest| rest.split_once('>')?.0.parse::<u32>().ok()).find(|number| gone.contains(number));
            prop_assert_eq!(left, None);
        }

        #[test]
        fn a_page_that_is_none_is_left_alone(page in prop::collection::vec(any::<u8>(), 0..600), number in 1_u32..3) {
            for unused in unused(number, &page) {
                prop_assert!(unused.end <= page.len());
            }
        }
    }

    #[test]
    fn a_reader_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, reader) = (database(folder.path()), Connection::open(folder.path().join("some.db")).unwrap());
        writer.execute("INSERT INTO named VALUES ('a', 'b')", []).unwrap();
        let snapshot = reader.unchecked_transaction().unwrap();
        assert_eq!(texts(&snapshot).len(), 1);
        writer.execute("DELETE FROM named", []).unwrap();
        let started = std::time::Instant::now();
        for how in [Checkpoint::Restart, Checkpoint::Truncate] {
            assert!(!checkpoint(&writer, how).unwrap(), "{how:?} cannot be complete while somebody reads what was");
        }
        assert!(started.elapsed() < Duration::from_secs(10));
        drop(snapshot);
        assert!(checkpoint(&writer, Checkpoint::Truncate).unwrap());
    }
}
