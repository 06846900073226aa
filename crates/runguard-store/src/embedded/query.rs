//! Reading the log.
//!
//! Rows stand in the order they were decided. A session is found through its index; everything else by zones of about
//! a thousand rows, each of which knows its times and which guards, reasons, outcomes and tenants it may contain. Rows
//! behind the index are looked at one by one. Every query reads both in one snapshot, index first.

use crate::embedded::readers::Lane;
use crate::embedded::{Embedded, Inner};
use crate::error::StoreError;
use crate::key::{Names, mask};
use crate::log::{EFFECT_COLUMNS, EFFECTS, Follow, Follower, Order, ROW_COLUMNS, RowFilter, RowWithEffects};
use runguard_core::row::{Named, Row, RowCount, RowRef};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// How far something has got, by the index file's own word.
pub(crate) fn progress(index: &Connection, name: &str) -> Result<u64, rusqlite::Error> {
    Ok(index.query_row("SELECT value FROM progress WHERE name = ?1", [name], |row| row.get(0)).optional()?.unwrap_or(0))
}

pub(crate) fn indexed_upto(reader: &Connection) -> Result<u64, rusqlite::Error> {
    Ok(reader.query_row("SELECT value FROM idx.progress WHERE name = 'indexed'", [], |row| row.get(0)).optional()?.unwrap_or(0))
}

/// Rows of a part that are read before their bytes are counted.
const ROWS_OF_PIECE: usize = 250;

fn borrow_row<'a>(row: &'a rusqlite::Row<'_>) -> Result<RowRef<'a>, rusqlite::Error> {
    let text = |column: usize| row.get_ref(column).and_then(|value| Ok(value.as_str()?));
    Ok(RowRef {
        seq: row.get(0)?,
        at: row.get(1)?,
        id: text(2)?,
        tenant: text(3)?,
        guard: text(4)?.into(),
        kind: text(5)?.into(),
        session: text(6)?,
        subject: text(7)?,
        outcome: text(8)?.into(),
        reason: row.get_ref(9)?.as_str_or_null()?.map(Into::into),
        answer: text(10)?,
        input: text(11)?,
    })
}

fn read_row(row: &rusqlite::Row<'_>) -> Result<Row, rusqlite::Error> {
    borrow_row(row).map(|row| row.to_row())
}

fn read_with_effects(row: &rusqlite::Row<'_>) -> Result<RowWithEffects, rusqlite::Error> {
    let effects: Option<Vec<u8>> = row.get(EFFECTS)?;
    Ok(RowWithEffects { row: read_row(row)?, effects: effects.unwrap_or_default() })
}

impl RowFilter {
    /// The filter as SQL on `l`, with its values.
    fn conditions(&self) -> (String, Vec<Value>) {
        let mut sql = String::new();
        let mut values: Vec<Value> = Vec::new();
        for text in self.texts() {
            sql.push_str(&format!(" AND l.{} = ?", text.column));
            values.push(text.wanted.to_owned().into());
        }
        for time in self.times() {
            sql.push_str(&format!(" AND l.at {} ?", time.comparison));
            values.push(time.than.into());
        }
        (sql, values)
    }

    /// The zones that may contain such rows, as SQL on `zones`.
    fn zone_conditions(&self) -> (String, Vec<Value>) {
        let mut sql = String::new();
        let mut values: Vec<Value> = Vec::new();
        for (column, name) in [("guards", &self.guard), ("reasons", &self.reason), ("outcomes", &self.outcome), ("tenants", &self.tenant)] {
            if let Some(name) = name {
                sql.push_str(&format!(" AND ({column} & ?) <> 0"));
                values.push(mask(name).into());
            }
        }
        for (comparison, value) in [("at_max >= ?", self.since), ("at_min < ?", self.until)] {
            if let Some(value) = value {
                sql.push_str(&format!(" AND {comparison}"));
                values.push(value.into());
            }
        }
        (sql, values)
    }
}

/// The rows of a range of numbers that pass the filter, each read in one of several ways.
struct Search<'a, T> {
    connection: &'a Connection,
    names: Names,
    filter: &'a RowFilter,
    order: Order,
    limit: usize,
    columns: &'static str,
    read: fn(&rusqlite::Row<'_>) -> Result<T, rusqlite::Error>,
    found: Vec<T>,
}

impl<T> Search<'_, T> {
    fn direction(&self) -> &'static str {
        match self.order {
            Order::NewestFirst => "DESC",
            Order::OldestFirst => "ASC",
        }
    }

    fn missing(&self) -> usize {
        self.limit.saturating_sub(self.found.len())
    }

    fn scan(&mut self, from: u64, upto: u64) -> Result<(), rusqlite::Error> {
        if from > upto || self.missing() == 0 {
            return Ok(());
        }
        let (conditions, values) = self.filter.conditions();
        let sql = format!(
            "SELECT {} FROM main.log l WHERE l.seq BETWEEN ? AND ?{conditions} ORDER BY l.seq {} LIMIT ?",
            self.columns,
            self.direction()
        );
        let values = [vec![Value::from(from as i64), Value::from(upto as i64)], values, vec![Value::from(self.missing() as i64)]].concat();
        let mut select = self.connection.prepare_cached(&sql)?;
        for row in select.query_map(params_from_iter(values), self.read)? {
            self.found.push(row?);
        }
        Ok(())
    }

    fn by_session(&mut self, tenant: &str, session: &str, from: u64, upto: u64) -> Result<(), rusqlite::Error> {
        if from > upto || self.missing() == 0 {
            return Ok(());
        }
        let (conditions, values) = self.filter.conditions();
        let sql = format!(
            "SELECT {} FROM idx.sessions s JOIN main.log l ON l.seq = s.seq WHERE s.session = ? AND s.seq BETWEEN ? AND ?{conditions} ORDER BY s.seq {} LIMIT ?",
            self.columns,
            self.direction()
        );
        let head = vec![Value::from(self.names.session_number(tenant, session)), Value::from(from as i64), Value::from(upto as i64)];
        let values = [head, values, vec![Value::from(self.missing() as i64)]].concat();
        let mut select = self.connection.prepare_cached(&sql)?;
        for row in select.query_map(params_from_iter(values), self.read)? {
            self.found.push(row?);
        }
        Ok(())
    }

    fn by_zones(&mut self, from: u64, upto: u64) -> Result<(), rusqlite::Error> {
        if from > upto || self.missing() == 0 {
            return Ok(());
        }
        let (conditions, values) = self.filter.zone_conditions();
        let sql = format!(
            "SELECT first_seq, last_seq FROM idx.zones WHERE last_seq >= ? AND first_seq <= ?{conditions} ORDER BY first_seq {}",
            self.direction()
        );
        let values = [vec![Value::from(from as i64), Value::from(upto as i64)], values].concat();
        let mut select = self.connection.prepare_cached(&sql)?;
        let mut zones = select.query(params_from_iter(values))?;
        while let Some(zone) = zones.next()? {
            if self.missing() == 0 {
                break;
            }
            let (first, last): (u64, u64) = (zone.get(0)?, zone.get(1)?);
            self.scan(first.max(from), last.min(upto))?;
        }
        Ok(())
    }

    fn run(mut self, from: u64, upto: u64) -> Result<Vec<T>, rusqlite::Error> {
        let indexed = indexed_upto(self.connection)?;
        let last = i64::MAX as u64;
        let upto = upto.min(last);
        let behind = (indexed + 1).max(from);
        if self.order == Order::NewestFirst {
            self.scan(behind, upto)?;
        }
        let filter = self.filter;
        match (&filter.tenant, &filter.session) {
            (Some(tenant), Some(session)) => self.by_session(tenant, session, from, upto.min(indexed))?,
            _ => self.by_zones(from, upto.min(indexed))?,
        }
        if self.order == Order::OldestFirst {
            self.scan(behind, upto)?;
        }
        Ok(self.found)
    }
}

fn search<T>(
    names: Names,
    filter: RowFilter,
    order: Order,
    after: Option<u64>,
    limit: usize,
    columns: &'static str,
    read: fn(&rusqlite::Row<'_>) -> Result<T, rusqlite::Error>,
) -> impl FnOnce(&Connection) -> Result<Vec<T>, rusqlite::Error> {
    let (from, upto) = match (order, after) {
        (_, None) => (0, u64::MAX),
        (Order::NewestFirst, Some(seq)) => (0, seq.saturating_sub(1)),
        (Order::OldestFirst, Some(seq)) => (seq.saturating_add(1), u64::MAX),
    };
    move |connection| Search { connection, names, filter: &filter, order, limit, columns, read, found: Vec::new() }.run(from, upto)
}

impl Embedded {
    pub async fn rows(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<Row>, StoreError> {
        self.look(search(self.inner.names, filter, order, after, limit, ROW_COLUMNS, read_row)).await
    }

    pub async fn rows_with_effects(
        &self,
        filter: RowFilter,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RowWithEffects>, StoreError> {
        self.blocking(search(self.inner.names, filter, order, after, limit, EFFECT_COLUMNS, read_with_effects)).await
    }

    /// The oldest rows after a number, as many as were asked for or have these bytes, each as `make` makes it on the thread that reads.
    pub(crate) async fn part<T: Send + 'static>(
        &self,
        after: Option<u64>,
        most: usize,
        most_bytes: usize,
        make: impl Fn(RowWithEffects) -> T + Send + 'static,
    ) -> Result<Vec<T>, StoreError> {
        let names = self.inner.names;
        let read = move |connection: &Connection| {
            let (mut part, mut bytes, mut after) = (Vec::new(), 0, after);
            while part.len() < most && bytes < most_bytes {
                let asked = ROWS_OF_PIECE.min(most - part.len());
                let filter = RowFilter::default();
                let piece = search(names, filter, Order::OldestFirst, after, asked, EFFECT_COLUMNS, read_with_effects)(connection)?;
                let is_last = piece.len() < asked;
                bytes += piece.iter().map(|kept| kept.row.answer.len() + kept.row.input.len() + kept.effects.len()).sum::<usize>();
                after = piece.last().map_or(after, |kept| Some(kept.row.seq));
                part.extend(piece.into_iter().map(&make));
                if is_last {
                    break;
                }
            }
            Ok(part)
        };
        self.blocking(read).await
    }

    pub async fn row_numbers(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<u64>, StoreError> {
        self.blocking(search(self.inner.names, filter, order, after, limit, "l.seq", |row| row.get(0))).await
    }

    pub async fn stats_by(
        &self,
        tenant: Option<String>,
        guard: Option<String>,
        since: i64,
        until: i64,
        minutes: i64,
    ) -> Result<Vec<RowCount>, StoreError> {
        let minutes = minutes.max(1);
        self.look(move |connection| {
            // One bucket at a time: minutes come in order, and a bucket has few combinations.
            let mut counts: BTreeMap<i64, Vec<RowCount>> = BTreeMap::new();
            let mut add = |row: &rusqlite::Row<'_>| -> Result<(), rusqlite::Error> {
                let text = |column: usize| row.get_ref(column).and_then(|value| Ok(value.as_str_or_null()?.unwrap_or_default()));
                let bucket = row.get::<_, i64>(0)?.div_euclid(minutes) * minutes;
                let (guard, outcome, reason) = (text(1)?, text(2)?, text(3)?);
                let count: u64 = row.get(4)?;
                let counted = counts.entry(bucket).or_default();
                let same = |known: &&mut RowCount| {
                    let known_reason = known.reason.as_ref().map_or("", Named::code);
                    known.guard.code() == guard && known.outcome.code() == outcome && known_reason == reason
                };
                match counted.iter_mut().find(same) {
                    Some(known) => known.count += count,
                    None => counted.push(RowCount {
                        minute: bucket,
                        guard: guard.into(),
                        outcome: outcome.into(),
                        reason: (!reason.is_empty()).then(|| reason.into()),
                        count,
                    }),
                }
                Ok(())
            };
            let indexed = indexed_upto(connection)?;
            let mut select = connection.prepare_cached(
                "SELECT minute, guard, outcome, reason, count FROM idx.rollup
                 WHERE minute >= ?1 AND minute < ?2 AND (?3 IS NULL OR tenant = ?3) AND (?4 IS NULL OR guard = ?4)",
            )?;
            let (first, last) = (since.div_euclid(60_000), until.saturating_add(59_999).div_euclid(60_000));
            let mut rows = select.query(rusqlite::params![first, last, tenant, guard])?;
            while let Some(row) = rows.next()? {
                add(row)?;
            }
            let mut select = connection.prepare_cached(
                "SELECT (at - ((at % 60000) + 60000) % 60000) / 60000, guard, outcome, reason, count(*) FROM main.log
                 WHERE seq > ?1 AND kind = 'check' AND at >= ?2 AND at < ?3 AND (?4 IS NULL OR tenant = ?4) AND (?5 IS NULL OR guard = ?5) GROUP BY 1, 2, 3, 4",
            )?;
            let mut rows = select.query(rusqlite::params![indexed, first.saturating_mul(60_000), last.saturating_mul(60_000), tenant, guard])?;
            while let Some(row) = rows.next()? {
                add(row)?;
            }
            let mut counts: Vec<RowCount> = counts.into_values().flatten().collect();
            counts.sort_unstable();
            Ok(counts)
        })
        .await
    }

    pub fn follower(&self) -> Follower {
        Follower::new(self.inner.clone())
    }

    /// Reads all that was answered for somebody who asks, when it is their turn.
    pub(crate) async fn blocking<R: Send + 'static>(
        &self,
        run: impl FnOnce(&Connection) -> Result<R, rusqlite::Error> + Send + 'static,
    ) -> Result<R, StoreError> {
        let read = move |inner: &Inner| {
            inner.journal.settle()?;
            inner.readers.read(Lane::Questions, &inner.folder, run)
        };
        self.inner.in_lane(Lane::Questions, read).await
    }

    /// The same for people: while nothing can be written, as on a full disk, they see what is there.
    async fn look<R: Send + 'static>(
        &self,
        run: impl FnOnce(&Connection) -> Result<R, rusqlite::Error> + Send + 'static,
    ) -> Result<R, StoreError> {
        let read = move |inner: &Inner| {
            let _ = inner.journal.settle();
            inner.readers.read(Lane::Questions, &inner.folder, run)
        };
        self.inner.in_lane(Lane::Questions, read).await
    }
}

impl Follow for Inner {
    fn committed(&self) -> u64 {
        self.journal.safe()
    }

    fn follow(&self, after: u64, upto: u64, visit: &mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>) -> Result<ControlFlow<()>, StoreError> {
        self.journal.settle_upto(upto)?;
        self.readers.read(Lane::Questions, &self.folder, |connection| {
            let sql = format!("SELECT {ROW_COLUMNS} FROM main.log l WHERE l.seq > ?1 AND l.seq <= ?2 ORDER BY l.seq");
            let mut select = connection.prepare_cached(&sql)?;
            let mut rows = select.query([after, upto])?;
            while let Some(row) = rows.next()? {
                if visit(borrow_row(row)?).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Durability;
    use crate::embedded::{Options, Role};
    use crate::key::Family;
    use crate::store::{Cell, Change, Decided, Keep, Rules, Written};

    #[tokio::test]
    async fn a_part_ends_at_its_rows_or_its_bytes_and_the_next_goes_on_from_there() {
        const ROWS: usize = 2 * ROWS_OF_PIECE + 100;
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            folder: folder.path().join("store"),
            durability: Durability::Process,
            memory_bytes: 1 << 20,
            retention_days: 3650,
            role: Role::Alone,
            names: Names::PLAIN,
        };
        let rules = Rules { replay: |_, _, _, _| None, group: |_, _, _, _, _| None, keep: |_, _| Keep::Log, take_back: |_, _| None };
        let store = Embedded::open(options, rules).unwrap();
        for number in 0..ROWS {
            let key = Names::PLAIN.key(Family::Session, "tenant", "session");
            let cell = Cell { key, slot: 1, subject: "", group: 0 };
            let row = || Row { id: format!("id-{number:04}"), at: 1, tenant: "tenant".into(), answer: "x".repeat(100), ..Row::default() };
            let change = || Change { cell: 0, events: vec![1], state: vec![1] };
            store.apply(&[cell], |_| Decided::Keep((), Written { row: row(), changes: vec![change()] })).await.unwrap();
        }
        let ids = |from: usize, count: usize| (from..from + count).map(|number| format!("id-{number:04}")).collect::<Vec<_>>();
        let part = async |after: Option<u64>, most: usize, most_bytes: usize| {
            let found = store.part(after, most, most_bytes, |logged| (logged.row.seq, logged.row.id)).await.unwrap();
            found.into_iter().unzip::<_, _, Vec<u64>, Vec<String>>()
        };
        let (numbers, all) = part(None, usize::MAX, usize::MAX).await;
        assert_eq!(all, ids(0, ROWS));
        assert_eq!(part(None, ROWS_OF_PIECE + 7, usize::MAX).await.1, ids(0, ROWS_OF_PIECE + 7));
        assert_eq!(part(Some(numbers[9]), 5, usize::MAX).await.1, ids(10, 5));
        assert_eq!(part(None, usize::MAX, 1).await.1, ids(0, ROWS_OF_PIECE), "what is counted is a piece");
        assert_eq!(part(Some(numbers[ROWS - 1]), usize::MAX, usize::MAX).await.1, Vec::<String>::new());
    }
}
