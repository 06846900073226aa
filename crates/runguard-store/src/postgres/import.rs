//! Bringing rows in, each once.
//!
//! A batch is one transaction: hold the counter, compare the positions with those the batch starts from, copy the rows in,
//! move positions and counts on, commit. Two importers with the same rows meet at the counter, and the second finds that the
//! positions have moved. What a node sent twice into the streams meets the unique index: that is rare, so nobody looks for it
//! until Postgres complains; then the batch is tried again, carefully.
//!
//! Rows are put into COPY's binary form before the counter is held; only their numbers are filled in under it.

use super::pool::{Failure, Lease, bounded};
use super::schema::{self, Day, to_kept};
use super::{PgLog, tell};
use crate::cluster::{ERASED_AT, EntryId};
use crate::error::StoreError;
use crate::key::Names;
use crate::log::RowWithEffects;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::SinkExt as _;
use hashbrown::{HashMap, HashSet};
use runguard_core::row::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::PoisonError;
use tokio_postgres::types::Type;

/// Days remembered; more than any retention that Postgres bears.
const MOST_DAYS: usize = 10_000;
/// What goes to the server at a time.
const CHUNK_BYTES: usize = 256 * 1024;

const COPY: &str =
    "COPY runguard_log (seq, at, session_number, id, tenant, guard, kind, session, subject, outcome, reason, answer, input, effects)
    FROM STDIN (FORMAT binary)";
const COPY_HEAD: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const COLUMNS: i16 = 14;

const FINISH: &str = "WITH
    numbered AS (UPDATE runguard_counter SET last_seq = $1),
    placed AS (
        INSERT INTO runguard_positions (partition, millis, number) SELECT * FROM unnest($2::int[], $3::bigint[], $4::bigint[])
        ON CONFLICT (partition) DO UPDATE SET millis = excluded.millis, number = excluded.number),
    counted AS (
        INSERT INTO runguard_rollup AS r (minute, tenant, guard, outcome, reason, count)
        SELECT * FROM unnest($5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[])
        ON CONFLICT (minute, tenant, guard, outcome, reason) DO UPDATE SET count = r.count + excluded.count)
    SELECT pg_notify($11, $12)";

/// Whether there is a row, whenever it was.
const TOLD: &str = "SELECT 1 FROM runguard_log WHERE id = $1 LIMIT 1";
/// A session's rows of later than a time.
const AHEAD: &str = "SELECT id, at FROM runguard_log WHERE session_number = $1 AND tenant = $2 AND session = $3 AND seq <= $4 AND at > $5";

/// How an import went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// The rows are in the log, but for `known` that were there already; `last_seq` is the log's last number.
    Done { rows: usize, known: usize, last_seq: u64 },
    /// The positions were others: somebody else did it. Nothing was changed.
    Overtaken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caution {
    /// Nothing is there already, and the days are as this node remembers them.
    Hopeful,
    Careful,
}

/// Rows as COPY takes them, and what they add up to.
struct Batch<'a> {
    names: Names,
    bytes: BytesMut,
    /// Where each row's number goes.
    numbers: Vec<usize>,
    days: BTreeSet<Day>,
    /// Minute, tenant, guard, outcome, reason.
    counts: HashMap<(i64, [&'a str; 4]), i64>,
}

impl<'a> Batch<'a> {
    fn new(names: Names, rows: &'a [RowWithEffects], known: &HashSet<(String, i64)>) -> Self {
        let bytes: usize = rows.iter().map(size).sum();
        let mut batch = Self {
            names,
            bytes: BytesMut::with_capacity(bytes + COPY_HEAD.len() + 2),
            numbers: Vec::with_capacity(rows.len()),
            days: BTreeSet::new(),
            counts: HashMap::new(),
        };
        batch.bytes.put_slice(COPY_HEAD);
        let mut seen: HashSet<(&str, i64)> = HashSet::with_capacity(rows.len());
        for logged in rows {
            let (id, at) = (&logged.row.id, logged.row.at);
            let is_known = !known.is_empty() && known.contains(&(id.clone(), at));
            if !is_known && seen.insert((id, at)) {
                batch.add(logged);
            }
        }
        batch.bytes.put_i16(-1);
        batch
    }

    fn add(&mut self, logged: &'a RowWithEffects) {
        let row = &logged.row;
        let bytes = &mut self.bytes;
        bytes.put_i16(COLUMNS);
        bytes.put_i32(8);
        self.numbers.push(bytes.len());
        bytes.put_i64(0);
        for number in [row.at, self.names.session_number(&row.tenant, &row.session)] {
            bytes.put_i32(8);
            bytes.put_i64(number);
        }
        for text in [&*row.id, &*row.tenant, row.guard.code(), row.kind.code(), &*row.session, &*row.subject, row.outcome.code()] {
            put(bytes, Some(to_kept(text).as_bytes()));
        }
        put(bytes, row.reason_code().map(to_kept).as_deref().map(str::as_bytes));
        put(bytes, Some(to_kept(&row.answer).as_bytes()));
        put(bytes, Some(to_kept(&row.input).as_bytes()));
        put(bytes, Some(&*logged.effects).filter(|effects| !effects.is_empty()));
        self.days.insert(Day::of(row.at));
        if row.kind == Kind::Check {
            let names = [&*row.tenant, row.guard.code(), row.outcome.code(), row.reason_code().unwrap_or_default()];
            *self.counts.entry((row.at.div_euclid(60_000), names)).or_default() += 1;
        }
    }

    /// Gives the rows their numbers and the last of them.
    fn number(&mut self, mut last: u64) -> u64 {
        for place in &self.numbers {
            last += 1;
            self.bytes[*place..place + 8].copy_from_slice(&last.to_be_bytes());
        }
        last
    }
}

fn put(bytes: &mut BytesMut, value: Option<&[u8]>) {
    match value {
        Some(value) => {
            bytes.put_i32(value.len() as i32);
            bytes.put_slice(value);
        }
        None => bytes.put_i32(-1),
    }
}

fn size(RowWithEffects { row, effects }: &RowWithEffects) -> usize {
    const FIXED: usize = 2 + 3 * 12 + 11 * 4;
    let names = [row.guard.code(), row.kind.code(), row.outcome.code(), row.reason_code().unwrap_or_default()];
    let texts = [&*row.id, &*row.tenant, &*row.session, &*row.subject, &*row.answer, &*row.input];
    FIXED + names.iter().chain(&texts).map(|text| text.len()).sum::<usize>() + effects.len()
}

impl PgLog {
    /// Takes the rows between two positions of the streams into the log, all of them or none. Of positions that nobody has
    /// set yet the start is 0-0.
    ///
    /// After an error it is not always known whether the rows were kept: [`PgLog::positions`] tells.
    pub async fn import(
        &self,
        from: &[(u16, EntryId)],
        rows: Vec<RowWithEffects>,
        upto: &[(u16, EntryId)],
    ) -> Result<Imported, StoreError> {
        let work = async {
            match self.try_import(from, &rows, upto, Caution::Hopeful).await {
                Err(failure) if failure.is_conflict() => self.try_import(from, &rows, upto, Caution::Careful).await,
                done => done,
            }
        };
        let imported = bounded(work).await.map_err(|failure| self.unwritten(&failure))?;
        if let Imported::Done { last_seq, .. } = imported {
            tell(&self.inner.committed, last_seq);
        }
        Ok(imported)
    }

    async fn try_import(
        &self,
        from: &[(u16, EntryId)],
        rows: &[RowWithEffects],
        upto: &[(u16, EntryId)],
        caution: Caution,
    ) -> Result<Imported, Failure> {
        let prepared = (caution == Caution::Hopeful).then(|| Batch::new(self.names(), rows, &HashSet::new()));
        let mut wire = self.inner.writers.begin().await?;
        let last = hold_counter(&mut wire).await?;
        if !stands_at(&mut wire, from).await? {
            wire.batch_execute("ROLLBACK").await?;
            wire.keep();
            return Ok(Imported::Overtaken);
        }
        let batch = match prepared {
            Some(batch) => batch,
            None => self.careful_batch(&mut wire, rows).await?,
        };
        let (appended, last_seq) = self.append(wire, last, batch, upto).await?;
        Ok(Imported::Done { rows: appended, known: rows.len() - appended, last_seq })
    }

    /// Without the rows that are there already.
    async fn careful_batch<'a>(&self, wire: &mut Lease<'_>, rows: &'a [RowWithEffects]) -> Result<Batch<'a>, Failure> {
        self.forget_days();
        let (ids, times): (Vec<_>, Vec<i64>) = rows.iter().map(|logged| (to_kept(&logged.row.id), logged.row.at)).unzip();
        // One by one through the index; the planner must not think of reading the log instead.
        let sql = "SELECT o.place FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS o(id, at, place)
            CROSS JOIN LATERAL (SELECT 1 FROM runguard_log l WHERE l.id = o.id AND l.at = o.at LIMIT 1) AS known";
        let found = wire.query_typed(sql, &[(&ids, Type::TEXT_ARRAY), (&times, Type::INT8_ARRAY)]).await?;
        let mut known = HashSet::with_capacity(found.len());
        for row in &found {
            let place = row.try_get::<_, i64>(0)? as usize - 1;
            known.insert((rows[place].row.id.clone(), rows[place].row.at));
        }
        Ok(Batch::new(self.names(), rows, &known))
    }

    /// Writes the rows and commits. Gives how many there were, and the last number.
    async fn append(&self, mut wire: Lease<'_>, last: u64, mut batch: Batch<'_>, upto: &[(u16, EntryId)]) -> Result<(usize, u64), Failure> {
        let missing: Vec<Day> = {
            let days = self.inner.days.lock().unwrap_or_else(PoisonError::into_inner);
            batch.days.iter().filter(|day| !days.contains(day)).copied().collect()
        };
        if !missing.is_empty() {
            make_days(&wire, &missing).await?;
        }
        let last_seq = batch.number(last);
        let appended = batch.numbers.len();
        if appended > 0 {
            let copy = wire.prepared(COPY).await?;
            let mut sink = pin!(wire.copy_in::<_, Bytes>(&copy).await?);
            let mut bytes = batch.bytes.split().freeze();
            while !bytes.is_empty() {
                sink.send(bytes.split_to(CHUNK_BYTES.min(bytes.len()))).await?;
            }
            sink.finish().await?;
        }
        finish(&mut wire, self.inner.server.channel(), last_seq, &batch.counts, upto).await?;
        if let Err(error) = wire.batch_execute("COMMIT").await {
            let failure = Failure::from(error);
            return Err(Failure::Other(format!("{failure}. Whether the rows were kept is not known; the positions tell")));
        }
        wire.keep();
        let mut days = self.inner.days.lock().unwrap_or_else(PoisonError::into_inner);
        if days.len() > MOST_DAYS {
            days.clear();
        }
        days.extend(missing);
        Ok((appended, last_seq))
    }

    /// How far each partition's stream has been brought in.
    pub async fn positions(&self, partitions: u16) -> Result<Vec<(u16, EntryId)>, StoreError> {
        let read = async {
            let rows = self.inner.readers.query("SELECT partition, millis, number FROM runguard_positions", &[]).await?;
            let mut positions = vec![EntryId::default(); usize::from(partitions)];
            for row in &rows {
                let (partition, id) = read_position(row)?;
                if let Some(position) = positions.get_mut(usize::from(partition)) {
                    *position = id;
                }
            }
            Ok((0..partitions).zip(positions).collect())
        };
        read.await.map_err(|failure: Failure| self.unread(&failure))
    }

    /// How far one of them has.
    pub async fn position_of(&self, partition: u16) -> Result<EntryId, StoreError> {
        let read = async {
            let sql = format!("SELECT partition, millis, number FROM runguard_positions WHERE partition = {partition}");
            let rows = self.inner.readers.query(&sql, &[]).await?;
            Ok(rows.first().map(read_position).transpose()?.map_or_else(EntryId::default, |(_, at)| at))
        };
        read.await.map_err(|failure: Failure| self.unread(&failure))
    }

    /// Removes a session's rows up to this number and appends `row`, which says that this took place, unless it is there. Gives how many
    /// went. Counts by minute stay: they name nobody. `None`: the positions are others than `from`, and nothing was changed.
    pub async fn erase_session(
        &self,
        from: &[(u16, EntryId)],
        tenant: &str,
        session: &str,
        row: RowWithEffects,
        upto: u64,
    ) -> Result<Option<usize>, StoreError> {
        let rows = [row];
        let upto = i64::try_from(upto).unwrap_or(i64::MAX);
        let work = self.try_erase(from, tenant, session, upto, &rows);
        let erased = bounded(work).await.map_err(|failure| self.unwritten(&failure))?;
        if let Some((_, last_seq)) = erased {
            tell(&self.inner.committed, last_seq);
        }
        Ok(erased.map(|(rows, _)| rows))
    }

    /// Sessions that were erased, by number, and when. What is sent again must not bring them back.
    pub async fn erasures(&self) -> Result<Vec<(i64, i64)>, StoreError> {
        let read = async {
            let rows = self.inner.readers.query("SELECT session_number, at FROM runguard_erased", &[]).await?;
            Ok(rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, tokio_postgres::Error>>()?)
        };
        read.await.map_err(|failure: Failure| self.unread(&failure))
    }

    /// When one of them was.
    pub async fn erasure_of(&self, session: i64) -> Result<Option<i64>, StoreError> {
        let read = async {
            let sql = format!("SELECT at FROM runguard_erased WHERE session_number = {session}");
            let rows = self.inner.readers.query(&sql, &[]).await?;
            Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
        };
        read.await.map_err(|failure: Failure| self.unread(&failure))
    }

    async fn try_erase(
        &self,
        from: &[(u16, EntryId)],
        tenant: &str,
        session: &str,
        upto: i64,
        rows: &[RowWithEffects; 1],
    ) -> Result<Option<(usize, u64)>, Failure> {
        let mut wire = self.inner.writers.begin().await?;
        let last = hold_counter(&mut wire).await?;
        if !stands_at(&mut wire, from).await? {
            wire.batch_execute("ROLLBACK").await?;
            wire.keep();
            return Ok(None);
        }
        let sql = "DELETE FROM runguard_log WHERE session_number = $1 AND tenant = $2 AND session = $3 AND seq <= $4";
        let number = self.names().session_number(tenant, session);
        let (tenant, session) = (to_kept(tenant), to_kept(session));
        let at = rows[0].row.at;
        let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 5] =
            [(&number, Type::INT8), (&tenant, Type::TEXT), (&session, Type::TEXT), (&upto, Type::INT8), (&at, Type::INT8)];
        // A node whose clock is ahead may have decided after the erasure, by its own time.
        let ahead = wire.query_typed(AHEAD, &values).await?;
        let (mut numbers, mut times) = (vec![number], vec![at]);
        for row in &ahead {
            numbers.push(Names::row_number(row.try_get(0)?));
            times.push(row.try_get(1)?);
        }
        let erased = wire.execute_typed(sql, &values[..4]).await?;
        let remember = "INSERT INTO runguard_erased (session_number, at) SELECT number, max(at) FROM unnest($1::bigint[], $2::bigint[]) AS taken (number, at) GROUP BY number
            ON CONFLICT (session_number) DO UPDATE SET at = greatest(runguard_erased.at, excluded.at)";
        wire.execute_typed(remember, &[(&numbers, Type::INT8_ARRAY), (&times, Type::INT8_ARRAY)]).await?;
        // Whoever else goes on with the same erasure may have told of it, with a time of its own.
        let is_told = !wire.query_typed(TOLD, &[(&to_kept(&rows[0].row.id), Type::TEXT)]).await?.is_empty();
        self.forget_days();
        let batch = Batch::new(self.names(), if is_told { &[] } else { rows }, &HashSet::new());
        let moved = (ERASED_AT, EntryId { millis: last + 1, number: 0 });
        let (_, last_seq) = self.append(wire, last, batch, &[moved]).await?;
        Ok(Some((erased as usize, last_seq)))
    }
}

/// Holds the counter until the transaction ends, and gives the last number. Whoever comes next waits here.
async fn hold_counter(wire: &mut Lease<'_>) -> Result<u64, Failure> {
    let hold = wire.prepared("SELECT last_seq FROM runguard_counter FOR UPDATE").await?;
    Ok(wire.query_one(&hold, &[]).await?.try_get::<_, i64>(0)? as u64)
}

async fn stands_at(wire: &mut Lease<'_>, from: &[(u16, EntryId)]) -> Result<bool, Failure> {
    // A statement of its own, after the counter is held: it sees what the one before us committed.
    let read = wire.prepared("SELECT partition, millis, number FROM runguard_positions").await?;
    let mut positions: BTreeMap<u16, EntryId> = BTreeMap::new();
    for row in &wire.query(&read, &[]).await? {
        positions.extend([read_position(row)?]);
    }
    Ok(from.iter().all(|(partition, id)| positions.get(partition).copied().unwrap_or_default() == *id))
}

fn read_position(row: &tokio_postgres::Row) -> Result<(u16, EntryId), tokio_postgres::Error> {
    let id = EntryId { millis: row.try_get::<_, i64>(1)? as u64, number: row.try_get::<_, i64>(2)? as u64 };
    Ok((row.try_get::<_, i32>(0)? as u16, id))
}

async fn make_days(wire: &Lease<'_>, wanted: &[Day]) -> Result<(), Failure> {
    let rows = wire.query_typed(schema::DAYS, &[]).await?;
    let tables: Vec<&str> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    for day in wanted.iter().filter(|day| !tables.contains(&&*day.table())) {
        wire.batch_execute(&day.creation()).await?;
    }
    Ok(())
}

async fn finish(
    wire: &mut Lease<'_>,
    channel: &str,
    last_seq: u64,
    counts: &HashMap<(i64, [&str; 4]), i64>,
    upto: &[(u16, EntryId)],
) -> Result<(), Failure> {
    let upto: BTreeMap<u16, EntryId> = upto.iter().copied().collect();
    let partitions: Vec<i32> = upto.keys().map(|partition| i32::from(*partition)).collect();
    let millis: Vec<i64> = upto.values().map(|id| id.millis as i64).collect();
    let numbers: Vec<i64> = upto.values().map(|id| id.number as i64).collect();
    // Sorted, each page of the table is touched once.
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_unstable();
    let minutes: Vec<i64> = counts.iter().map(|((minute, _), _)| *minute).collect();
    let [tenants, guards, outcomes, reasons] =
        [0, 1, 2, 3].map(|name| counts.iter().map(|((_, names), _)| to_kept(names[name])).collect::<Vec<_>>());
    let counts: Vec<i64> = counts.iter().map(|(_, count)| **count).collect();
    let statement = wire.prepared(FINISH).await?;
    let (last, told) = (last_seq as i64, last_seq.to_string());
    wire.query(
        &statement,
        &[&last, &partitions, &millis, &numbers, &minutes, &tenants, &guards, &outcomes, &reasons, &counts, &channel, &told],
    )
    .await?;
    Ok(())
}
