//! The two database files and how they are opened.

use crate::embedded::Durability;
use crate::error::OpenError;
use crate::files::{make_database_private, open_private_folder, private_file, remove_database};
use crate::key::{Names, SECRET_BYTES};
use crate::scrub::BUSY;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};
use std::fs;
use std::path::{Path, PathBuf};

pub const LOG_FILE: &str = "runguard.db";
pub const INDEX_FILE: &str = "index.db";
const LOCK_FILE: &str = "lock";

/// Rows of the log are written in batches: larger pages mean fewer writes for the same bytes.
pub(crate) const LOG_PAGE_BYTES: u64 = 8 * 1024;
/// States are written here and there: smaller pages mean fewer bytes for the same rows.
const INDEX_PAGE_BYTES: u64 = 4 * 1024;

/// Pages a reader keeps, of each of the two files.
const READER_CACHE_KB: u32 = 2000;

/// The second has a place for a secret; a file of the first has none.
const LOG_FORMAT: i64 = 2;
/// As long as rows may be in a journal beside it: versions that know of none would not see them.
const LOG_FORMAT_WITH_JOURNAL: i64 = 3;
const INDEX_FORMAT: i64 = 1;

const LOG_SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS log (
    seq     INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    id      TEXT NOT NULL,
    tenant  TEXT NOT NULL,
    guard   TEXT NOT NULL,
    kind    TEXT NOT NULL,
    session TEXT NOT NULL,
    subject TEXT NOT NULL,
    outcome TEXT NOT NULL,
    reason  TEXT,
    answer  TEXT NOT NULL,
    input   TEXT NOT NULL,
    effects BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS followed (
    partition INTEGER PRIMARY KEY,
    millis    INTEGER NOT NULL,
    number    INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS erased (session INTEGER PRIMARY KEY, at INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS secret (secret BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS probe (id INTEGER PRIMARY KEY, count INTEGER NOT NULL) STRICT;
";

const INDEX_SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS states (
    family INTEGER NOT NULL,
    hash   BLOB NOT NULL,
    seq    INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    slots  BLOB NOT NULL,
    PRIMARY KEY (family, hash)
) WITHOUT ROWID, STRICT;
CREATE TABLE IF NOT EXISTS sessions (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID, STRICT;
CREATE TABLE IF NOT EXISTS zones (
    first_seq INTEGER PRIMARY KEY,
    last_seq  INTEGER NOT NULL,
    at_min    INTEGER NOT NULL,
    at_max    INTEGER NOT NULL,
    guards    INTEGER NOT NULL,
    reasons   INTEGER NOT NULL,
    outcomes  INTEGER NOT NULL,
    tenants   INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS rollup (
    minute  INTEGER NOT NULL,
    tenant  TEXT NOT NULL,
    guard   TEXT NOT NULL,
    outcome TEXT NOT NULL,
    reason  TEXT NOT NULL,
    count   INTEGER NOT NULL,
    PRIMARY KEY (minute, tenant, guard, outcome, reason)
) WITHOUT ROWID, STRICT;
CREATE TABLE IF NOT EXISTS progress (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID, STRICT;
";

/// Whether a running service (or a command that writes) has the folder.
pub fn is_in_use(folder: &Path) -> bool {
    // Asked without making the file: a folder that nobody has used stays as it is.
    let lock = fs::File::open(folder.join(LOCK_FILE));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)))
}

/// The folder, locked for this process as long as this lives.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: fs::File,
}

/// Said, and not left to the closing of the file: a process that is just being started holds copies of our files for a moment, and
/// the lock with them.
impl Drop for Folder {
    fn drop(&mut self) {
        _ = self.lock.unlock();
    }
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Folder { path: path.to_owned(), source };
        open_private_folder(path).map_err(failed)?;
        let lock_path = path.join(LOCK_FILE);
        let lock = private_file().create(true).truncate(false).write(true).open(&lock_path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(OpenError::InUse { path: path.to_owned() }),
            Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        Ok(Self { path: path.to_owned(), lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.path.join(LOG_FILE)
    }

    pub(crate) fn log_is_empty(&self) -> bool {
        fs::metadata(self.log_path()).map_or(true, |meta| meta.len() == 0)
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        self.path.join(INDEX_FILE)
    }

    /// The connection that writes the log.
    pub(crate) fn open_log(&self, durability: Durability, names_of_new: Names) -> Result<(Connection, Names), OpenError> {
        let path = self.log_path();
        // With the table, in one transaction: a file is either new, or has the secret its keys were made with.
        let secret = match names_of_new.secret() {
            Some(_) if self.log_is_empty() => format!("INSERT INTO secret (secret) VALUES (x'{}');", names_of_new.secret_text()),
            Some(_) | None => String::new(),
        };
        let formats = Formats { written: LOG_FORMAT, known: LOG_FORMAT_WITH_JOURNAL };
        let connection = open_writer(&path, &format!("{LOG_SCHEMA} {secret}"), formats, LOG_PAGE_BYTES)?;
        // Checkpoints run elsewhere, so that no answer waits for one.
        let synchronous = match durability {
            Durability::Process => "NORMAL",
            Durability::Power => "FULL",
        };
        connection
            .execute_batch(&format!("PRAGMA wal_autocheckpoint = 0; PRAGMA synchronous = {synchronous};"))
            .map_err(|error| describe(&path, &error))?;
        check_readable(&connection).map_err(|error| describe(&path, &error))?;
        let names = read_names(&connection).map_err(|error| describe(&path, &error))?;
        Ok((connection, names))
    }

    /// The connection that writes the index. A damaged index is thrown away and built anew from the log.
    pub(crate) fn open_index(&self) -> Result<Connection, OpenError> {
        let path = self.index_path();
        let open = || {
            let formats = Formats { written: INDEX_FORMAT, known: INDEX_FORMAT };
            let connection = open_writer(&path, INDEX_SCHEMA, formats, INDEX_PAGE_BYTES)?;
            check_index(&connection).map_err(|error| describe(&path, &error))?;
            Ok(connection)
        };
        let marked = self.damage_mark().exists();
        match open() {
            Err(OpenError::Damaged { detail, .. }) => self.throw_index_away(&detail)?,
            Ok(connection) if !marked => return Ok(connection),
            Ok(_) => self.throw_index_away("it could not be read in the last run")?,
            Err(error) => return Err(error),
        }
        open()
    }

    fn throw_index_away(&self, detail: &str) -> Result<(), OpenError> {
        let path = self.index_path();
        tracing::warn!(file = %path.display(), detail, "the index is damaged; it is thrown away and built anew from the log");
        // Not kept: it holds what users said, and no erasure would find it.
        remove_database(&path).map_err(|source| OpenError::Folder { path: path.clone(), source })?;
        let _ = fs::remove_file(self.damage_mark());
        Ok(())
    }

    fn damage_mark(&self) -> PathBuf {
        self.path.join("index-is-damaged")
    }

    /// Damage found while running: the next start builds the index anew.
    pub(crate) fn mark_index_damaged(&self, error: &rusqlite::Error) {
        if matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)) && !self.damage_mark().exists() {
            tracing::error!(%error, "a database file is damaged; restart the service: it checks the log and builds the index anew");
            let _ = private_file().write(true).create(true).truncate(true).open(self.damage_mark());
        }
    }

    /// A connection that reads both: `log` and `idx.*`.
    pub(crate) fn open_reader(&self) -> Result<Connection, rusqlite::Error> {
        let connection = Connection::open_with_flags(self.log_path(), OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(BUSY)?;
        connection.execute("ATTACH ?1 AS idx", [self.index_path().to_string_lossy()])?;
        // Not mapped: what is mapped counts as the process's memory, once for every connection.
        connection.execute_batch(&format!(
            "PRAGMA query_only = ON; PRAGMA mmap_size = 0; PRAGMA main.cache_size = -{READER_CACHE_KB}; PRAGMA idx.cache_size = -{READER_CACHE_KB};"
        ))?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    }
}

/// What a new file becomes, and up to where one that is there is known.
#[derive(Clone, Copy)]
struct Formats {
    written: i64,
    known: i64,
}

/// Says whether versions that know of no journal may open the log. Where it cannot be said, as on a full disk, they would miss the last
/// moment of a process that was killed.
pub(crate) fn say_that_a_journal_is_beside(log: &Connection, is_there: bool) {
    let format = if is_there { LOG_FORMAT_WITH_JOURNAL } else { LOG_FORMAT };
    let _ = log.execute_batch(&format!("PRAGMA user_version = {format}"));
}

fn open_writer(path: &Path, schema: &str, formats: Formats, page_bytes: u64) -> Result<Connection, OpenError> {
    let failed = |error: rusqlite::Error| describe(path, &error);
    make_database_private(path).map_err(|source| OpenError::Folder { path: path.to_owned(), source })?;
    let connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    // Only a new file takes this.
    connection.execute_batch(&format!("PRAGMA page_size = {page_bytes};")).map_err(failed)?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(failed)?;
    connection
        .execute_batch("PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16000;")
        .map_err(failed)?;
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    let Formats { written, known } = formats;
    if found > known {
        return Err(OpenError::TooNew { path: path.to_owned(), found, known });
    }
    // Only a new file is written to: of a damaged one we say that nothing was changed.
    if found < written {
        connection.execute_batch(&format!("BEGIN IMMEDIATE; {schema} PRAGMA user_version = {written}; COMMIT;")).map_err(failed)?;
    }
    Ok(connection)
}

/// Of a folder that nobody has opened yet.
pub(crate) fn names_in(folder: &Path) -> Result<Option<Names>, OpenError> {
    let path = folder.join(LOG_FILE);
    if fs::metadata(&path).map_or(true, |meta| meta.len() == 0) {
        return Ok(None);
    }
    let read = || {
        let log = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        let format: i64 = log.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if format < LOG_FORMAT { Ok((format > 0).then_some(Names::PLAIN)) } else { read_names(&log).map(Some) }
    };
    read().map_err(|error| describe(&path, &error))
}

fn read_names(log: &Connection) -> Result<Names, rusqlite::Error> {
    let secret: Option<[u8; SECRET_BYTES]> = log.query_row("SELECT secret FROM secret", [], |row| row.get(0)).optional()?;
    Ok(secret.map_or(Names::PLAIN, Names::keyed))
}

/// Reads both ends of the log: a torn file shows here and not in the middle of a request.
fn check_readable(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.query_row("SELECT (SELECT count(*) FROM (SELECT * FROM log ORDER BY seq LIMIT 10)) + (SELECT count(*) FROM (SELECT * FROM log ORDER BY seq DESC LIMIT 10))", [], |_| Ok(()))
}

/// Touches every table of the index: its roots, its ends, how far it reaches.
fn check_index(connection: &Connection) -> Result<(), rusqlite::Error> {
    for table in ["progress", "states", "sessions", "zones", "rollup"] {
        connection.query_row(&format!("SELECT count(*) FROM (SELECT * FROM {table} LIMIT 10)"), [], |_| Ok(()))?;
    }
    connection.query_row("SELECT count(*) FROM (SELECT * FROM zones ORDER BY first_seq DESC LIMIT 10)", [], |_| Ok(()))
}

pub(crate) fn describe(path: &Path, error: &rusqlite::Error) -> OpenError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            OpenError::Damaged { path: path.to_owned(), detail: error.to_string() }
        }
        _ => OpenError::Database { path: path.to_owned(), detail: error.to_string() },
    }
}
