//! Reading the log: the same questions and the same answers as in the embedded one.
//!
//! A session is found through its index and an id through its own; any other filter is looked for along the order of rows,
//! day by day, and a time leaves only the days it touches.

use super::pool::{Failure, bounded};
use super::schema::{from_kept, to_kept};
use super::{PgLog, texts};
use crate::error::StoreError;
use crate::key::Names;
use crate::log::{EFFECT_COLUMNS, EFFECTS, Follow, Order, ROW_COLUMNS, RowFilter, RowWithEffects};
use futures_util::{FutureExt as _, TryStreamExt as _};
use runguard_core::row::{self, RowCount, RowRef};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Rows that a follower holds at a time.
const FOLLOWED_ROWS: u64 = 1000;
/// How long it holds rows that were not yet looked at.
const LEFT_FOR: Duration = Duration::from_secs(1);

fn text(row: &Row, column: usize) -> Result<String, tokio_postgres::Error> {
    row.try_get(column).map(|kept| from_kept(kept).into_owned())
}

fn number(row: &Row, column: usize) -> Result<u64, tokio_postgres::Error> {
    row.try_get::<_, i64>(column).map(|number| number as u64)
}

/// Shows a row whose columns are [`ROW_COLUMNS`].
fn show<R>(row: &Row, visit: impl FnOnce(RowRef<'_>) -> R) -> Result<R, tokio_postgres::Error> {
    let text = |column: usize| row.try_get(column).map(from_kept);
    let reason = row.try_get::<_, Option<&str>>(9)?.map(from_kept);
    Ok(visit(RowRef {
        seq: number(row, 0)?,
        at: row.try_get(1)?,
        id: &text(2)?,
        tenant: &text(3)?,
        guard: (&*text(4)?).into(),
        kind: (&*text(5)?).into(),
        session: &text(6)?,
        subject: &text(7)?,
        outcome: (&*text(8)?).into(),
        reason: reason.as_deref().map(Into::into),
        answer: &text(10)?,
        input: &text(11)?,
    }))
}

fn read_row(row: &Row) -> Result<row::Row, tokio_postgres::Error> {
    show(row, |row| row.to_row())
}

fn read_with_effects(row: &Row) -> Result<RowWithEffects, tokio_postgres::Error> {
    Ok(RowWithEffects { row: read_row(row)?, effects: row.try_get::<_, Option<Vec<u8>>>(EFFECTS)?.unwrap_or_default() })
}

/// A statement with its values.
#[derive(Debug, Default)]
struct Question {
    sql: String,
    texts: Vec<String>,
}

impl Question {
    fn ask_text(&mut self, column: &str, value: &str) {
        self.texts.push(to_kept(value).into_owned());
        self.sql.push_str(&format!(" AND {column} = ${}", self.texts.len()));
    }

    /// Quoted, so that the smallest number is one too.
    fn ask_number(&mut self, comparison: &str, value: i64) {
        self.sql.push_str(&format!(" AND {comparison} '{value}'::bigint"));
    }
}

impl RowFilter {
    fn question(&self, names: Names, columns: &str, (from, upto): (i64, i64)) -> Question {
        let mut question = Question { sql: format!("SELECT {columns} FROM "), texts: Vec::new() };
        match &self.id {
            // Behind a fence: the planner must not look for an id along the order of rows.
            Some(id) => {
                question.sql.push_str("(SELECT * FROM runguard_log WHERE true");
                question.ask_text("id", id);
                question.sql.push_str(" OFFSET 0) l WHERE true");
            }
            None => question.sql.push_str("runguard_log l WHERE true"),
        }
        question.ask_number("l.seq >=", from);
        question.ask_number("l.seq <=", upto);
        if let (Some(tenant), Some(session)) = (&self.tenant, &self.session) {
            question.ask_number("l.session_number =", names.session_number(tenant, session));
        }
        // An id is asked for already.
        for text in self.texts().filter(|text| text.column != "id") {
            question.ask_text(&format!("l.{}", text.column), text.wanted);
        }
        for time in self.times() {
            question.ask_number(&format!("l.at {}", time.comparison), time.than);
        }
        question
    }
}

impl PgLog {
    /// Rows that pass the filter, at most `limit`, after the row `after` in the given order.
    pub async fn rows(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<row::Row>, StoreError> {
        self.search(filter, order, after, limit, ROW_COLUMNS, read_row).await
    }

    /// The same rows with what each did to states.
    pub async fn rows_with_effects(
        &self,
        filter: RowFilter,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RowWithEffects>, StoreError> {
        self.search(filter, order, after, limit, EFFECT_COLUMNS, read_with_effects).await
    }

    /// The numbers of the same rows.
    pub async fn row_numbers(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<u64>, StoreError> {
        self.search(filter, order, after, limit, "l.seq", |row| number(row, 0)).await
    }

    async fn search<T>(
        &self,
        filter: RowFilter,
        order: Order,
        after: Option<u64>,
        limit: usize,
        columns: &'static str,
        read: fn(&Row) -> Result<T, tokio_postgres::Error>,
    ) -> Result<Vec<T>, StoreError> {
        let last = i64::MAX as u64;
        let (from, upto, direction) = match order {
            Order::NewestFirst => (0, after.map_or(last, |seq| seq.saturating_sub(1)).min(last), "DESC"),
            Order::OldestFirst => (after.map_or(0, |seq| seq.saturating_add(1)), last, "ASC"),
        };
        if from > upto || limit == 0 {
            return Ok(Vec::new());
        }
        let mut question = filter.question(self.names(), columns, (from as i64, upto as i64));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        question.sql.push_str(&format!(" ORDER BY l.seq {direction} LIMIT {limit}"));
        self.ask(&question, read).await
    }

    async fn ask<T>(&self, question: &Question, read: fn(&Row) -> Result<T, tokio_postgres::Error>) -> Result<Vec<T>, StoreError> {
        let answer = async {
            let rows = self.inner.readers.query(&question.sql, &texts(&question.texts)).await?;
            Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
        };
        answer.await.map_err(|failure: Failure| self.unread(&failure))
    }

    /// Decisions counted by several minutes, guard, outcome and reason, within `[since, until)` milliseconds (whole minutes);
    /// `minute` is the first of the several.
    pub async fn stats_by(
        &self,
        tenant: Option<String>,
        guard: Option<String>,
        since: i64,
        until: i64,
        minutes: i64,
    ) -> Result<Vec<RowCount>, StoreError> {
        let minutes = minutes.max(1);
        // A remainder is negative before 1970.
        let bucket = format!("minute - minute % {minutes} - CASE WHEN minute % {minutes} < 0 THEN {minutes} ELSE 0 END");
        let mut question = Question {
            sql: format!("SELECT {bucket}, guard, outcome, reason, sum(count)::bigint FROM runguard_rollup WHERE true"),
            texts: Vec::new(),
        };
        question.ask_number("minute >=", since.div_euclid(60_000));
        question.ask_number("minute <", until.saturating_add(59_999).div_euclid(60_000));
        for (column, value) in [("tenant", &tenant), ("guard", &guard)] {
            if let Some(value) = value {
                question.ask_text(column, value);
            }
        }
        question.sql.push_str(" GROUP BY 1, 2, 3, 4");
        let read = |row: &Row| {
            let reason = Some(text(row, 3)?).filter(|reason| !reason.is_empty());
            let (guard, outcome) = (text(row, 1)?.as_str().into(), text(row, 2)?.as_str().into());
            Ok(RowCount { minute: row.try_get(0)?, guard, outcome, reason: reason.as_deref().map(Into::into), count: number(row, 4)? })
        };
        let mut counts = self.ask(&question, read).await?;
        counts.sort_unstable();
        Ok(counts)
    }

    /// Which of these decisions are in the log.
    pub async fn knows(&self, ids: &[String]) -> Result<Vec<bool>, StoreError> {
        let kept: Vec<_> = ids.iter().map(|id| to_kept(id)).collect();
        // One by one through the index; the planner must not think of reading the log instead.
        let sql = "SELECT known.yes IS NOT NULL FROM unnest($1::text[]) WITH ORDINALITY AS o(id, place)
            LEFT JOIN LATERAL (SELECT true AS yes FROM runguard_log l WHERE l.id = o.id LIMIT 1) AS known ON true ORDER BY o.place";
        let known = async {
            let rows = self.inner.readers.query(sql, &[(&kept, Type::TEXT_ARRAY)]).await?;
            Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
        };
        known.await.map_err(|failure: Failure| self.unread(&failure))
    }

    /// Shows what rows did to states, from a time on, in the order of the rows: number, time, tenant, effects. Rows that did
    /// nothing are left out. After an error start anew.
    pub async fn effects_since(
        &self,
        since_millis: i64,
        mut visit: impl FnMut(u64, i64, &str, &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let shown = async {
            let wire = self.inner.readers.begin().await?;
            // Takes as long as there are rows.
            wire.batch_execute("SET LOCAL statement_timeout = 0").await?;
            let mut question =
                Question { sql: "SELECT seq, at, tenant, effects FROM runguard_log WHERE effects IS NOT NULL".into(), texts: Vec::new() };
            question.ask_number("at >=", since_millis);
            question.sql.push_str(" ORDER BY seq");
            let mut rows = pin!(wire.query_typed_raw(&question.sql, Vec::<(i64, Type)>::new()).await?);
            while let Some(row) = bounded(async { Ok(rows.try_next().await?) }).await? {
                if visit(number(&row, 0)?, row.try_get(1)?, &from_kept(row.try_get(2)?), row.try_get(3)?).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            wire.batch_execute("COMMIT").await?;
            wire.keep();
            Ok(ControlFlow::Continue(()))
        };
        shown.await.map_err(|failure: Failure| self.unread(&failure))
    }

    /// For a thread of its own that reads the log as it grows.
    pub fn follower(&self) -> PgFollower {
        PgFollower { log: self.clone(), left: Arc::default() }
    }
}

/// Reads the log in the order of its rows.
#[derive(Debug, Clone)]
pub struct PgFollower {
    log: PgLog,
    /// Of whoever stopped looking in the middle of a page and goes on in a moment.
    left: Arc<Mutex<Option<Page>>>,
}

/// Rows that are not yet shown.
#[derive(Debug)]
struct Page {
    rows: VecDeque<Row>,
    /// The row before the first.
    after: u64,
    /// Nothing is missing up to here.
    upto: u64,
    read: Instant,
}

impl Follow for PgFollower {
    fn is_known(&self) -> bool {
        self.log.is_known()
    }

    fn committed(&self) -> u64 {
        self.committed()
    }

    fn follow(&self, after: u64, upto: u64, visit: &mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>) -> Result<ControlFlow<()>, StoreError> {
        self.follow(after, upto, visit)
    }
}

impl PgFollower {
    /// The number of the last row that is safe.
    pub fn committed(&self) -> u64 {
        *self.log.inner.committed.borrow()
    }

    /// Shows the rows after `after` up to `upto`, until there are no more or `visit` has seen enough. The thread waits
    /// meanwhile, so it must not be one that the log's runtime needs.
    pub fn follow(
        &self,
        after: u64,
        upto: u64,
        mut visit: impl FnMut(RowRef<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, StoreError> {
        // Up to here all rows are there: beyond it a page could have holes that are filled later.
        let (mut after, upto) = (after, upto.min(self.committed()));
        let mut next = self.left().take().filter(|page| page.after == after && page.upto <= upto && page.read.elapsed() < LEFT_FOR);
        while after < upto {
            let mut page = match next.take() {
                Some(page) => page,
                None => self.page(after, upto)?,
            };
            while let Some(row) = page.rows.pop_front() {
                let (seq, seen) = show(&row, |row| (row.seq, visit(row))).map_err(|error| self.log.unread(&error.into()))?;
                if seen.is_break() {
                    *self.left() = Some(Page { after: seq, ..page });
                    return Ok(ControlFlow::Break(()));
                }
            }
            after = page.upto;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn left(&self) -> MutexGuard<'_, Option<Page>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a range that is as wide as a page: with only a limit the server may sort all that is waiting, for every page.
    fn page(&self, after: u64, upto: u64) -> Result<Page, StoreError> {
        let end = upto.min(after.saturating_add(FOLLOWED_ROWS));
        let rows = self.ask(format!("SELECT {ROW_COLUMNS} FROM runguard_log l WHERE l.seq > {after} AND l.seq <= {end} ORDER BY l.seq"))?;
        let mut page = Page { rows: rows.into(), after, upto: end, read: Instant::now() };
        if page.rows.is_empty() && end < upto {
            // Erased, or long gone: on to the next that is there.
            let found = self.ask(format!("SELECT min(seq) FROM runguard_log WHERE seq > {end} AND seq <= {upto}"))?;
            let first = found.first().map(|row| row.try_get::<_, Option<i64>>(0)).transpose();
            let first = first.map_err(|error| self.log.unread(&error.into()))?.flatten();
            page.upto = first.map_or(upto, |first| first as u64 - 1);
        }
        Ok(page)
    }

    fn ask(&self, sql: String) -> Result<Vec<Row>, StoreError> {
        let log = self.log.clone();
        let (done, rows) = std::sync::mpsc::sync_channel(1);
        // Not `block_on`: the thread may itself run a runtime.
        let asking = async move {
            let _ = done.send(log.inner.readers.query(&sql, &[]).await);
        };
        self.log.inner.server.runtime().spawn(asking.boxed());
        rows.recv().map_err(|_| StoreError::Stopping)?.map_err(|failure| self.log.unread(&failure))
    }
}
