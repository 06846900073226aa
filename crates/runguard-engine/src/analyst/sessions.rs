//! The table of the sessions in the analyst's file: written behind the log, read for lists, bounded.

use super::{Ended, Rests};
use crate::erasure::Gone;
use runguard_insight::insight::long_runs::{KnownLengths, Learner};
use runguard_insight::insight::session_list::{Longest, Picker, Refusal, SessionList, SessionQuery, SessionSeen};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use std::collections::BTreeMap;

/// Sessions kept, about 150 bytes each; beyond it those that were seen longest ago go.
const MOST_SESSIONS: usize = 200_000;
/// Written sessions after which it is looked how many there are.
const LOOK_AFTER: usize = MOST_SESSIONS / 10;
/// Removed in one transaction.
const CHUNK: usize = 1_000;

/// In the order of the table.
const COLUMNS: &str =
    "tenant, session, first_seen, last_seen, allowed, would_block, blocked, nanodollars, refused_at, reason, calls, tokens, kind";

/// From its first column on; no calls are no run.
fn longest_of(row: &rusqlite::Row<'_>, from: usize) -> Result<Option<Longest>, rusqlite::Error> {
    let longest = Longest { calls: row.get(from)?, tokens: row.get(from + 1)?, kind: row.get(from + 2)? };
    Ok((longest.calls > 0).then_some(longest))
}

fn of_row(row: &rusqlite::Row<'_>) -> Result<SessionSeen, rusqlite::Error> {
    let text = |column: usize| row.get_ref(column).and_then(|value| Ok(value.as_str()?.to_owned()));
    let refused = match (row.get::<_, Option<i64>>(8)?, row.get::<_, Option<Box<str>>>(9)?) {
        (Some(at), Some(reason)) => Some(Refusal { at, reason }),
        (None, _) | (_, None) => None,
    };
    Ok(SessionSeen {
        last_seen: row.get(3)?,
        allowed: row.get(4)?,
        would_block: row.get(5)?,
        blocked: row.get(6)?,
        nanodollars: row.get(7)?,
        refused,
        longest: longest_of(row, 10)?,
        ..SessionSeen::first(&text(0)?, &text(1)?, row.get(2)?)
    })
}

/// Adds what was seen of a session to what is known of it. Money stays at the most that can be kept: a sum beyond it would be no whole
/// number any more, and the table takes no other.
pub(super) fn put(transaction: &Transaction<'_>, seen: &SessionSeen) -> Result<(), rusqlite::Error> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO sessions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT (tenant, session) DO UPDATE SET
             first_seen = min(first_seen, excluded.first_seen), last_seen = max(last_seen, excluded.last_seen),
             allowed = allowed + excluded.allowed, would_block = would_block + excluded.would_block, blocked = blocked + excluded.blocked,
             nanodollars = min(nanodollars, 9223372036854775807 - excluded.nanodollars) + excluded.nanodollars,
             reason = CASE WHEN refused_at IS NULL OR excluded.refused_at >= refused_at THEN excluded.reason ELSE reason END,
             refused_at = CASE WHEN refused_at IS NULL OR excluded.refused_at >= refused_at THEN excluded.refused_at ELSE refused_at END,
             calls = max(calls, excluded.calls),
             tokens = CASE WHEN (excluded.calls, excluded.tokens, excluded.kind) > (calls, tokens, kind) THEN excluded.tokens ELSE tokens END,
             kind = CASE WHEN (excluded.calls, excluded.tokens, excluded.kind) > (calls, tokens, kind) THEN excluded.kind ELSE kind END",
    )?;
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (refused_at, reason) = seen.refused.as_ref().map(|refused| (refused.at, &*refused.reason)).unzip();
    insert.execute(params![
        seen.tenant,
        seen.session,
        seen.first_seen,
        seen.last_seen,
        whole(seen.allowed),
        whole(seen.would_block),
        whole(seen.blocked),
        whole(seen.nanodollars),
        refused_at,
        reason,
        whole(seen.longest.as_ref().map_or(0, |longest| longest.calls)),
        whole(seen.longest.as_ref().map_or(0, |longest| longest.tokens)),
        seen.longest.as_ref().map_or("", |longest| &longest.kind),
    ])?;
    Ok(())
}

/// A page of those in the table and those that were seen since.
pub(super) fn page(
    snapshot: Option<&Connection>,
    query: &SessionQuery,
    since: impl Iterator<Item = SessionSeen>,
) -> Result<SessionList, rusqlite::Error> {
    let mut since: BTreeMap<(Box<str>, Box<str>), SessionSeen> =
        since.map(|seen| ((seen.tenant.clone(), seen.session.clone()), seen)).collect();
    let mut picker = Picker::new(query);
    if let Some(snapshot) = snapshot {
        // What begins so is not before the beginning itself. What was seen since may belong to one that is older than the time asked for.
        let mut select = snapshot
            .prepare(&format!("SELECT {COLUMNS} FROM sessions WHERE (?1 IS NULL OR tenant = ?1) AND session >= ?2 AND first_seen < ?3"))?;
        let mut rows = select.query(params![query.tenant, query.prefix, query.until_ms])?;
        while let Some(row) = rows.next()? {
            let mut seen = of_row(row)?;
            if !since.is_empty()
                && let Some(more) = since.remove(&(seen.tenant.clone(), seen.session.clone()))
            {
                seen.add(&more);
            }
            picker.offer(seen);
        }
    }
    for seen in since.into_values() {
        picker.offer(seen);
    }
    Ok(picker.page())
}

/// What is long for each kind of run, by those that were last heard of before a time.
pub(super) fn long_runs(connection: &Connection, before_ms: i64) -> Result<KnownLengths, rusqlite::Error> {
    let mut select = connection
        .prepare_cached("SELECT calls, tokens, kind, tenant FROM sessions WHERE calls > 0 AND last_seen < ?1 ORDER BY last_seen DESC")?;
    let mut rows = select.query([before_ms])?;
    let mut learner = Learner::default();
    while let Some(row) = rows.next()? {
        if let Some(longest) = longest_of(row, 0)? {
            learner.take(row.get_ref(3)?.as_str()?, longest);
        }
    }
    Ok(learner.learnt())
}

/// Takes a session out; whether it was there.
pub(super) fn forget(transaction: &Transaction<'_>, gone: &Gone) -> Result<bool, rusqlite::Error> {
    let mut remove = transaction.prepare_cached("DELETE FROM sessions WHERE tenant = ?1 AND session = ?2")?;
    if let Some(session) = gone.session() {
        return Ok(remove.execute(params![gone.tenant(), session])? > 0);
    }
    // Only its key is known: every name is tried.
    let mut select = transaction.prepare_cached("SELECT session FROM sessions WHERE tenant = ?1")?;
    let names: Vec<String> = select.query_map([gone.tenant()], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut removed = 0;
    for name in names.iter().filter(|name| gone.is(gone.tenant(), name)) {
        removed += remove.execute(params![gone.tenant(), name])?;
    }
    Ok(removed > 0)
}

/// Keeps the table within its bound.
#[derive(Debug, Default)]
pub(super) struct Trim {
    written: usize,
}

impl Trim {
    pub(super) fn is_due_after(&mut self, written: usize) -> bool {
        self.written += written;
        self.written >= LOOK_AFTER
    }

    /// Removes sessions that were last seen before a time, and more when there are too many. Says how many went.
    pub(super) fn run(&mut self, connection: &mut Connection, before_ms: Option<i64>, rests: &mut Rests) -> Result<usize, Ended> {
        self.written = 0;
        let too_many = too_many(connection, MOST_SESSIONS)?;
        let Some(before_ms) = before_ms.max(too_many) else { return Ok(0) };
        let mut select = connection.prepare("SELECT tenant, session FROM sessions WHERE last_seen < ?1")?;
        let old: Vec<(Box<str>, Box<str>)> =
            select.query_map([before_ms], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        drop(select);
        for chunk in old.chunks(CHUNK) {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for (tenant, session) in chunk {
                transaction.prepare_cached("DELETE FROM sessions WHERE tenant = ?1 AND session = ?2")?.execute(params![tenant, session])?;
            }
            transaction.commit()?;
            if rests.rest().is_break() {
                return Err(Ended::Stopping);
            }
        }
        Ok(old.len())
    }
}

/// Where there are more than the bound: the time from which on nine tenths of it were last seen.
fn too_many(connection: &Connection, most: usize) -> Result<Option<i64>, rusqlite::Error> {
    let kept: usize = connection.query_row("SELECT count(*) FROM sessions", [], |row| row.get(0))?;
    if kept <= most {
        return Ok(None);
    }
    let newest = most * 9 / 10;
    // Just after one that goes: of many that were seen in one moment none is left over.
    let select = "SELECT last_seen + 1 FROM sessions ORDER BY last_seen DESC LIMIT 1 OFFSET ?1";
    connection.query_row(select, [newest], |row| row.get(0)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(super::super::cells::SCHEMA).unwrap();
        connection
    }

    fn seen(session: &str, at: i64) -> SessionSeen {
        SessionSeen {
            blocked: 1,
            refused: Some(Refusal { at, reason: "cycle_detected".into() }),
            ..SessionSeen::first("acme", session, at)
        }
    }

    fn write(connection: &mut Connection, sessions: &[SessionSeen]) {
        let transaction = connection.transaction().unwrap();
        for session in sessions {
            put(&transaction, session).unwrap();
        }
        transaction.commit().unwrap();
    }

    fn all() -> SessionQuery {
        SessionQuery { until_ms: i64::MAX, limit: 100, ..SessionQuery::default() }
    }

    #[test]
    fn money_beyond_all_bounds_stays_at_the_bound() {
        let mut connection = table();
        let rich = SessionSeen { nanodollars: u64::MAX, ..seen("s", 5) };
        write(&mut connection, &[rich.clone(), rich.clone(), SessionSeen { nanodollars: 7, ..seen("s", 9) }]);
        let kept: i64 = connection.query_row("SELECT nanodollars FROM sessions", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, i64::MAX);
    }

    #[test]
    fn what_is_written_adds_up_as_in_memory() {
        let mut connection = table();
        let (mut first, later) = (seen("s", 5), SessionSeen { nanodollars: 7, ..seen("s", 9) });
        write(&mut connection, &[later.clone(), first.clone(), seen("t", 1)]);
        let longest = |calls, tokens, kind: &str| Some(Longest { calls, tokens, kind: kind.into() });
        let quiet = SessionSeen { allowed: 3, blocked: 0, refused: None, longest: longest(4, 10, "a"), ..seen("s", 10) };
        let (shorter, as_long) =
            (SessionSeen { longest: longest(3, 90, "b"), ..seen("s", 11) }, SessionSeen { longest: longest(4, 11, "a"), ..seen("s", 11) });
        write(&mut connection, &[quiet.clone(), shorter.clone(), as_long.clone()]);
        for more in [later, quiet, as_long, shorter] {
            first.add(&more);
        }
        assert_eq!(first.longest, longest(4, 11, "a"));
        let kept = connection.query_row(&format!("SELECT {COLUMNS} FROM sessions WHERE session = 's'"), [], of_row).unwrap();
        assert_eq!(kept, first);
        // What was seen since is added to what is kept, and what is new stands beside it.
        let list = page(Some(&connection), &all(), [seen("s", 20), seen("new", 30)].into_iter()).unwrap();
        let shown: Vec<(&str, u64, i64)> =
            list.sessions.iter().map(|one| (one.session_id.as_str(), one.blocked, one.last_seen_ms)).collect();
        assert_eq!(shown, [("new", 1, 30), ("s", 5, 20), ("t", 1, 1)]);
    }

    #[test]
    fn a_session_that_goes_leaves_the_list() {
        let mut connection = table();
        write(&mut connection, &[seen("s", 1), seen("t", 2)]);
        let transaction = connection.transaction().unwrap();
        assert!(forget(&transaction, &Gone::of("acme", "s")).unwrap());
        assert!(!forget(&transaction, &Gone::of("other", "t")).unwrap());
        transaction.commit().unwrap();
        let list = page(Some(&connection), &all(), std::iter::empty()).unwrap();
        assert_eq!(list.sessions.iter().map(|one| one.session_id.as_str()).collect::<Vec<_>>(), ["t"]);
    }

    #[test]
    fn beyond_the_bound_those_seen_longest_ago_go() {
        let mut connection = table();
        let sessions: Vec<SessionSeen> = (0..20).map(|at| seen(&format!("s{at}"), at)).collect();
        write(&mut connection, &sessions);
        assert_eq!(too_many(&connection, 20).unwrap(), None);
        // Nine of ten are kept: those of the times 11 to 19.
        assert_eq!(too_many(&connection, 10).unwrap(), Some(11));
    }
}
