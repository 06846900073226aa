//! What is to be told, in a file of its own: `alerts.db`.
//!
//! An alert, the state of the rule that gave it and how far the log was read are one transaction: after a crash the log is
//! read again from there, and the rules say the same. A message leaves the queue when its receiver has taken it. Between
//! the two a crash sends it again, under the same id, so it is told at least once.
//!
//! The file can be lost: then alerts begin at the end of the log, because old news is no alert.

use super::shown::ShownMessage;
use super::targets::{AlertMessage, TargetKind};
use crate::clock::time_text;
use crate::erasure::Gone;
use runguard_core::notice::AlertState;
use runguard_insight::alert::{Alert, Rule, State};
use runguard_store::files::{make_database_private, remove_database};
use runguard_store::scrub::{self, BUSY};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

pub(crate) const FILE: &str = "alerts.db";
const FORMAT: i64 = 1;
/// Messages that wait. Beyond it the oldest of the least severe go.
pub(super) const MOST_QUEUED: u64 = 10_000;
/// Messages that were given up, for people to look at.
const MOST_DEAD: u64 = 1000;
/// Delivered messages that are still shown.
const MOST_DELIVERED: u64 = 500;
/// More than this many at once become one message, where people read them.
const DIGEST_ABOVE: usize = 3;
const MOST_IN_DIGEST: usize = 100;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS progress (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID, STRICT;
CREATE TABLE IF NOT EXISTS rules (
    name        TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    state       BLOB NOT NULL
) WITHOUT ROWID, STRICT;
CREATE TABLE IF NOT EXISTS outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id  TEXT NOT NULL,
    batch       TEXT,
    target      TEXT NOT NULL,
    dedup_key   TEXT NOT NULL,
    state       TEXT NOT NULL,
    severity    INTEGER NOT NULL,
    tenant      TEXT NOT NULL,
    alert       TEXT NOT NULL,
    status      TEXT NOT NULL,
    attempts    INTEGER NOT NULL,
    created_ms  INTEGER NOT NULL,
    next_ms     INTEGER NOT NULL,
    finished_ms INTEGER,
    problem     TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS due ON outbox (target, status, next_ms);
CREATE INDEX IF NOT EXISTS same ON outbox (target, status, dedup_key, id);
CREATE INDEX IF NOT EXISTS finished ON outbox (status, finished_ms);
";

#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    #[error(
        "the alerts file {path} was written by a later version (format {found}, known is {FORMAT}); update RunGuard, or remove the file"
    )]
    TooNew { path: String, found: i64 },
    #[error("the alerts file cannot be used: {0}")]
    Database(#[from] rusqlite::Error),
}

type Result<R> = std::result::Result<R, OutboxError>;

/// An alert and where it goes.
#[derive(Debug)]
pub(super) struct Posting<'a> {
    pub(super) alert: &'a Alert,
    pub(super) target: &'a str,
}

/// What a target has to do.
#[derive(Debug)]
pub(super) enum Next {
    Send {
        message: AlertMessage,
        entries: Vec<Waiting>,
    },
    /// Nothing before this time.
    WaitUntil(i64),
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) id: i64,
    pub(super) attempts: u32,
    pub(super) created_ms: i64,
}

/// Which part of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Queued,
    Delivered,
    Dead,
}

impl Status {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

#[derive(Debug)]
pub(super) struct Outbox {
    connection: Connection,
}

impl Outbox {
    /// Opens the file; a damaged one is put away, because everything in it but the queue is made again.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let is_damaged = |error: &OutboxError| {
            matches!(error, OutboxError::Database(error)
                if matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)))
        };
        match Self::open_file(&path) {
            Err(error) if is_damaged(&error) => {
                tracing::error!(file = %path.display(), %error, "the alerts file is damaged; it is removed, and alerts begin at the end of the log");
                let _ = remove_database(&path);
                Self::open_file(&path)
            }
            opened => opened,
        }
    }

    fn open_file(path: &Path) -> Result<Self> {
        make_database_private(path).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        // Another connection overwrites what was removed: whoever will write waits for it before reading.
        connection.set_transaction_behavior(TransactionBehavior::Immediate);
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.execute_batch(
            "PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -2000;",
        )?;
        let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if found > FORMAT {
            return Err(OutboxError::TooNew { path: path.display().to_string(), found });
        }
        connection.execute_batch(&format!("{SCHEMA} PRAGMA user_version = {FORMAT};"))?;
        Ok(Self { connection })
    }

    /// How far the log was read. `None`: this file has seen nothing of it.
    pub(super) fn watermark(&self) -> Result<Option<u64>> {
        Ok(self.connection.query_row("SELECT value FROM progress WHERE name = 'log'", [], |row| row.get(0)).optional()?)
    }

    /// What a rule remembers; nothing, if its meaning has changed.
    pub(super) fn state(&self, rule: &Rule) -> Result<State> {
        let found: Option<Vec<u8>> = self
            .connection
            .query_row("SELECT state FROM rules WHERE name = ?1 AND fingerprint = ?2", params![rule.name, rule.fingerprint()], |row| {
                row.get(0)
            })
            .optional()?;
        Ok(found.and_then(|bytes| postcard::from_bytes(&bytes).ok()).unwrap_or_default())
    }

    /// Keeps alerts, states and how far the log was read: all or nothing. Gives the messages put into the queue.
    pub(super) fn commit(&mut self, upto: u64, rules: &[(Rule, State)], postings: &[Posting<'_>], now_ms: i64) -> Result<usize> {
        let transaction = self.connection.transaction()?;
        transaction.execute("INSERT INTO progress VALUES ('log', ?1) ON CONFLICT (name) DO UPDATE SET value = excluded.value", [upto])?;
        for (rule, state) in rules {
            let bytes = postcard::to_stdvec(state).unwrap_or_default();
            transaction
                .prepare_cached("INSERT INTO rules VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE SET fingerprint = excluded.fingerprint, state = excluded.state")?
                .execute(params![rule.name, rule.fingerprint(), bytes])?;
        }
        let mut added = 0;
        for posting in postings {
            added += post(&transaction, posting, now_ms)?;
        }
        if added > 0 {
            bound(&transaction)?;
        }
        transaction.commit()?;
        Ok(added)
    }

    /// The next message of a target that is due. Several at once become one, and stay one over a crash.
    pub(super) fn next(&mut self, target: &str, kind: TargetKind, now_ms: i64) -> Result<Next> {
        let transaction = self.connection.transaction()?;
        let due: Vec<(i64, Option<String>, String)> = {
            // What is told of one trouble goes in its order: a later word waits for the earlier.
            let mut select = transaction.prepare_cached(
                "SELECT id, batch, message_id FROM outbox o WHERE target = ?1 AND status = 'queued' AND next_ms <= ?2 AND NOT EXISTS
                 (SELECT 1 FROM outbox p WHERE p.target = o.target AND p.status = 'queued' AND p.dedup_key = o.dedup_key AND p.id < o.id)
                 ORDER BY next_ms, id LIMIT ?3",
            )?;
            let most = if kind.digests() { MOST_IN_DIGEST } else { 1 };
            select
                .query_map(params![target, now_ms, most as i64], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect::<std::result::Result<_, _>>()?
        };
        let Some((first, batch, message_id)) = due.first().cloned() else {
            let next: Option<i64> = transaction.query_row(
                "SELECT min(next_ms) FROM outbox WHERE target = ?1 AND status = 'queued' AND next_ms > ?2",
                params![target, now_ms],
                |row| row.get(0),
            )?;
            return Ok(next.map_or(Next::Nothing, Next::WaitUntil));
        };
        let loose: Vec<&(i64, Option<String>, String)> = due.iter().filter(|(_, batch, _)| batch.is_none()).collect();
        let batch = match batch {
            Some(batch) => Some(batch),
            None if loose.len() > DIGEST_ABOVE => {
                let ids: Vec<&str> = loose.iter().map(|(_, _, message_id)| message_id.as_str()).collect();
                let batch = format!("msg_{:032x}", xxh3_128(ids.join(" ").as_bytes()));
                for (id, ..) in &loose {
                    transaction.prepare_cached("UPDATE outbox SET batch = ?1 WHERE id = ?2")?.execute(params![batch, id])?;
                }
                Some(batch)
            }
            None => None,
        };
        let (mut alerts, mut entries) = (Vec::new(), Vec::new());
        {
            let mut select = transaction.prepare_cached(
                "SELECT id, attempts, created_ms, alert FROM outbox
                 WHERE target = ?1 AND status = 'queued' AND (id = ?2 OR batch = ?3) ORDER BY severity DESC, id",
            )?;
            let mut rows = select.query(params![target, first, batch])?;
            while let Some(row) = rows.next()? {
                entries.push(Waiting { id: row.get(0)?, attempts: row.get(1)?, created_ms: row.get(2)? });
                alerts.extend(serde_json::from_str::<Alert>(row.get_ref(3)?.as_str().unwrap_or_default()));
            }
        }
        transaction.commit()?;
        Ok(Next::Send { message: AlertMessage { id: batch.unwrap_or(message_id), alerts }, entries })
    }

    pub(super) fn delivered(&mut self, entries: &[Waiting], now_ms: i64) -> Result<()> {
        let transaction = self.connection.transaction()?;
        for entry in entries {
            transaction
                .prepare_cached(
                    "UPDATE outbox SET status = 'delivered', finished_ms = ?1, attempts = attempts + 1, problem = NULL WHERE id = ?2",
                )?
                .execute(params![now_ms, entry.id])?;
        }
        trim(&transaction, Status::Delivered, MOST_DELIVERED)?;
        Ok(transaction.commit()?)
    }

    /// Another attempt at `next_ms`, for each of the entries.
    pub(super) fn delayed(&mut self, entries: &[(Waiting, i64)], problem: &str) -> Result<()> {
        let transaction = self.connection.transaction()?;
        for (entry, next_ms) in entries {
            transaction
                .prepare_cached("UPDATE outbox SET attempts = attempts + 1, next_ms = ?1, problem = ?2 WHERE id = ?3")?
                .execute(params![next_ms, problem, entry.id])?;
        }
        Ok(transaction.commit()?)
    }

    pub(super) fn given_up(&mut self, entries: &[Waiting], problem: &str, now_ms: i64) -> Result<()> {
        let transaction = self.connection.transaction()?;
        for entry in entries {
            transaction
                .prepare_cached("UPDATE outbox SET status = 'dead', finished_ms = ?1, attempts = attempts + 1, problem = ?2, batch = NULL WHERE id = ?3")?
                .execute(params![now_ms, problem, entry.id])?;
        }
        let forgotten = trim(&transaction, Status::Dead, MOST_DEAD)?;
        count_dropped(&transaction, forgotten)?;
        Ok(transaction.commit()?)
    }

    /// Puts a dead letter back into the queue; its target, or `None` if there is no such letter.
    pub(super) fn retry(&mut self, id: i64, tenant: Option<&str>) -> Result<Option<String>> {
        Ok(self
            .connection
            .query_row(
                "UPDATE outbox SET status = 'queued', attempts = 0, next_ms = 0, finished_ms = NULL, created_ms = max(created_ms, finished_ms)
                 WHERE id = ?1 AND status = 'dead' AND (?2 IS NULL OR tenant = ?2) RETURNING target",
                params![id, tenant],
                |row| row.get(0),
            )
            .optional()?)
    }

    /// Removes what was told, or waits to be told, of a session, and what rules remember of it; whether there was anything.
    pub(super) fn forget(&mut self, gone: &Gone) -> Result<bool> {
        let transaction = self.connection.transaction()?;
        let mut is_known = false;
        {
            let mut select = transaction.prepare_cached("SELECT id, alert ->> '$.session' FROM outbox WHERE tenant = ?1")?;
            let told: Vec<(i64, Option<String>)> =
                select.query_map([gone.tenant()], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<std::result::Result<_, _>>()?;
            let mut delete = transaction.prepare_cached("DELETE FROM outbox WHERE id = ?1")?;
            for (id, _) in told.iter().filter(|(_, session)| session.as_ref().is_some_and(|session| gone.is(gone.tenant(), session))) {
                is_known |= delete.execute([id])? > 0;
            }
            let mut select = transaction.prepare_cached("SELECT name, state FROM rules")?;
            let states: Vec<(String, Vec<u8>)> =
                select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<std::result::Result<_, _>>()?;
            for (name, bytes) in states {
                // What cannot be read is of another version, and would be read by none.
                let mut state: State = postcard::from_bytes(&bytes).unwrap_or_default();
                state.forget(gone.tenant(), |session| gone.is(gone.tenant(), session));
                let kept = postcard::to_stdvec(&state).unwrap_or_default();
                if kept != bytes {
                    is_known = true;
                    transaction.execute("UPDATE rules SET state = ?2 WHERE name = ?1", params![name, kept])?;
                }
            }
        }
        transaction.commit()?;
        Ok(is_known)
    }

    /// Overwrites what was removed, and empties the write-ahead log; whether it could be emptied.
    pub(super) fn purge(&mut self) -> Result<bool> {
        Ok(scrub::rid_of_removed(&self.connection)?)
    }

    /// Messages for targets that the settings do not have are given up, visibly.
    pub(super) fn give_up_strangers(&mut self, targets: &[&str], now_ms: i64) -> Result<usize> {
        let known = serde_json::to_string(targets).unwrap_or_default();
        Ok(self.connection.execute(
            "UPDATE outbox SET status = 'dead', finished_ms = ?1, problem = 'the settings have no target of this name'
             WHERE status = 'queued' AND target NOT IN (SELECT value FROM json_each(?2))",
            params![now_ms, known],
        )?)
    }

    pub(super) fn count(&self, target: Option<&str>, status: Status) -> Result<u64> {
        Ok(self.connection.query_row(
            "SELECT count(*) FROM outbox WHERE status = ?1 AND (?2 IS NULL OR target = ?2)",
            params![status.code(), target],
            |row| row.get(0),
        )?)
    }

    pub(super) fn dropped(&self) -> Result<u64> {
        Ok(self.connection.query_row("SELECT value FROM progress WHERE name = 'dropped'", [], |row| row.get(0)).optional()?.unwrap_or(0))
    }

    /// The newest messages of a kind, as the API shows them.
    pub(super) fn list(&self, status: Status, tenant: Option<&str>, limit: usize) -> Result<Vec<ShownMessage>> {
        let mut select = self.connection.prepare_cached(
            "SELECT id, message_id, target, attempts, created_ms, next_ms, finished_ms, problem, alert FROM outbox
             WHERE status = ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY coalesce(finished_ms, 0) DESC, id DESC LIMIT ?3",
        )?;
        let rows = select.query_map(params![status.code(), tenant, limit as i64], |row| {
            let alert: Option<Alert> = serde_json::from_str(row.get_ref(8)?.as_str().unwrap_or_default()).ok();
            let (next, finished): (i64, Option<i64>) = (row.get(5)?, row.get(6)?);
            Ok(ShownMessage {
                alert: alert.map(Into::into),
                id: row.get::<_, i64>(0)?.to_string(),
                message_id: row.get(1)?,
                target: row.get(2)?,
                attempts: row.get(3)?,
                created: time_text(row.get(4)?),
                next_attempt: (status == Status::Queued && next > 0).then(|| time_text(next)),
                finished: finished.map(time_text),
                problem: row.get(7)?,
            })
        })?;
        Ok(rows.collect::<std::result::Result<_, _>>()?)
    }
}

/// One message for one target, unless the same word of the same trouble is the last that waits for it.
fn post(transaction: &Transaction<'_>, posting: &Posting<'_>, now_ms: i64) -> Result<usize> {
    let Posting { alert, target } = posting;
    let waiting: Option<String> = transaction
        .prepare_cached("SELECT state FROM outbox WHERE target = ?1 AND status = 'queued' AND dedup_key = ?2 ORDER BY id DESC LIMIT 1")?
        .query_row(params![target, alert.dedup_key], |row| row.get(0))
        .optional()?;
    if waiting.as_deref() == Some(alert.state.code()) {
        return Ok(0);
    }
    let named = [target, alert.dedup_key.as_str(), alert.state.code(), alert.decision_id.as_str()].join("\0");
    let message_id = format!("msg_{:032x}", xxh3_128(named.as_bytes()));
    // The end of a trouble is worth as much as its beginning, or an incident stays open.
    let severity = alert.severity as i64 * 2 + i64::from(alert.state == AlertState::Resolved);
    Ok(transaction
        .prepare_cached(
            "INSERT INTO outbox (message_id, target, dedup_key, state, severity, tenant, alert, status, attempts, created_ms, next_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'queued', 0, ?8, 0)",
        )?
        .execute(params![
            message_id,
            target,
            alert.dedup_key,
            alert.state.code(),
            severity,
            alert.tenant,
            serde_json::to_string(alert).unwrap_or_default(),
            now_ms
        ])?)
}

fn bound(transaction: &Transaction<'_>) -> Result<()> {
    let queued: u64 = transaction.query_row("SELECT count(*) FROM outbox WHERE status = 'queued'", [], |row| row.get(0))?;
    let Some(excess) = queued.checked_sub(MOST_QUEUED).filter(|excess| *excess > 0) else { return Ok(()) };
    transaction.execute(
        "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE status = 'queued' ORDER BY severity, id LIMIT ?1)",
        [excess],
    )?;
    count_dropped(transaction, excess)?;
    tracing::warn!(
        dropped = excess,
        limit = MOST_QUEUED,
        "too many alerts wait for their receivers; the oldest of the least severe were dropped"
    );
    Ok(())
}

fn trim(transaction: &Transaction<'_>, status: Status, most: u64) -> Result<u64> {
    let gone = transaction
        .prepare_cached("DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE status = ?1 ORDER BY finished_ms DESC, id DESC LIMIT -1 OFFSET ?2)")?
        .execute(params![status.code(), most])?;
    Ok(gone as u64)
}

fn count_dropped(transaction: &Transaction<'_>, count: u64) -> Result<()> {
    if count > 0 {
        transaction.execute(
            "INSERT INTO progress VALUES ('dropped', ?1) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            [count],
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
