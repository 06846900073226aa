//! The embedded store as a copy of a cluster's log: rows come from streams, and how far they were read is kept beside them.
//!
//! Rows and the place reached are not always in one transaction, so a row may be offered again after a crash, as it may when a
//! node sends again what it does not know to have arrived. The latest rows are known by their ids: what is there is left out.

use crate::cluster::entry;
use crate::cluster::link::EntryId;
use crate::cluster::{Imported, Positions, from_the_start};
use crate::embedded::journal::mover::Work;
use crate::embedded::journal::{Appended, Awaited};
use crate::embedded::{Embedded, Inner, PendingWrite, Role};
use crate::error::StoreError;
use crate::log::RowWithEffects;
use crate::store::{Cell, FEW, StoreHealth};
use hashbrown::HashSet;
use runguard_core::row::Row;
use rusqlite::{Connection, OptionalExtension as _};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::PoisonError;
use xxhash_rust::xxh3::xxh3_64;

/// Ids remembered: rows are offered again within seconds, or not at all.
const REMEMBERED: usize = 200_000;

/// Rows that are written together.
const ROWS_AT_ONCE: usize = 1_000;

/// The ids of the latest rows.
#[derive(Debug, Default)]
pub(crate) struct LatestIds {
    known: HashSet<u64>,
    order: VecDeque<u64>,
    loaded: bool,
}

impl LatestIds {
    /// Whether it was not there.
    fn insert(&mut self, id: &str) -> bool {
        let number = xxh3_64(id.as_bytes());
        if !self.known.insert(number) {
            return false;
        }
        self.order.push_back(number);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

/// Some rows may not be there, though their ids were taken down: what is there is looked up anew.
struct Unsure<'a> {
    inner: &'a Inner,
    is_over: bool,
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            *self.inner.latest_ids.lock().unwrap_or_else(PoisonError::into_inner) = LatestIds::default();
        }
    }
}

impl Role {
    pub(crate) fn health(self) -> StoreHealth {
        match self {
            Self::Whole | Self::Log => StoreHealth::Sound,
            Self::Alone => StoreHealth::Away,
        }
    }
}

impl Embedded {
    /// Puts states in place that are known from elsewhere, where there are none. They are not written down: the events that
    /// follow are.
    pub(crate) async fn remember(&self, cells: &[Cell<'_>], states: Vec<Option<Vec<u8>>>) -> Result<(), StoreError> {
        let keys: SmallVec<[_; FEW]> = cells.iter().map(|cell| cell.key).collect();
        self.make_resident(&keys).await?;
        for (cell, state) in cells.iter().zip(states) {
            let Some(state) = state else { continue };
            self.inner.shards.of(cell.key).change(cell.key, |resident| {
                if resident.get(cell.slot, cell.subject).is_none() {
                    resident.put(cell.slot, cell.subject, state.into());
                }
            });
        }
        Ok(())
    }

    pub(crate) async fn import(
        &self,
        _from: &[(u16, EntryId)],
        rows: Vec<RowWithEffects>,
        upto: &[(u16, EntryId)],
    ) -> Result<Imported, StoreError> {
        self.load_latest_ids().await?;
        let fresh: Vec<RowWithEffects> = {
            let mut latest = self.inner.latest_ids.lock().unwrap_or_else(PoisonError::into_inner);
            rows.into_iter().filter(|logged| latest.insert(&logged.row.id)).collect()
        };
        let mut unsure = Unsure { inner: &self.inner, is_over: false };
        self.import_fresh(fresh).await?;
        // Those that another import is about to write, and took down before this one.
        self.inner.journal.try_to_write_out().map_err(|error| StoreError::Write(error.to_string()))?;
        unsure.is_over = true;
        self.work(Work::Follow { upto: upto.to_vec() }).await?;
        Ok(Imported::Done)
    }

    async fn import_fresh(&self, rows: Vec<RowWithEffects>) -> Result<(), StoreError> {
        let mut written = Vec::with_capacity(rows.len());
        for logged in rows {
            if let Some(number) = entry::erases(&logged) {
                all_safe(&mut written).await?;
                self.erase_number(number, logged.row).await?;
            } else {
                written.push(self.append(&logged.row, &logged.effects)?);
                if written.len() >= ROWS_AT_ONCE {
                    all_safe(&mut written).await?;
                }
            }
        }
        all_safe(&mut written).await
    }

    fn append(&self, row: &Row, effects: &[u8]) -> Result<PendingWrite, StoreError> {
        let record = Appended { row, effects, removed: &[] }.encode()?;
        let (_, committed) = self.inner.journal.append(record, Vec::new()).map_err(|(error, _)| error)?;
        Ok(self.kept(Awaited::Row(committed)))
    }

    /// Erases a session that is known by its number only, and keeps the row that tells of it.
    async fn erase_number(&self, number: i64, row: Row) -> Result<(), StoreError> {
        self.work(Work::Erased { session: number, at: row.at }).await?;
        if !self.erase_known(number, i64::MAX, &row).await? {
            self.append(&row, &[])?.wait().await?;
        }
        Ok(())
    }

    /// Erases what the log has of a session, known by its number only, from before this time; whether it had any.
    pub(crate) async fn erase_known(&self, number: i64, before: i64, row: &Row) -> Result<bool, StoreError> {
        let keyed = self.inner.names;
        let names: Vec<(String, String)> = self
            .blocking(move |connection| {
                let mut indexed = connection.prepare_cached(
                    "SELECT DISTINCT l.tenant, l.session FROM idx.sessions s JOIN main.log l ON l.seq = s.seq
                     WHERE s.session = ?1 AND l.at <= ?2",
                )?;
                let mut names: Vec<(String, String)> =
                    indexed.query_map([number, before], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
                let behind = crate::embedded::query::indexed_upto(connection)?;
                let mut rest = connection.prepare_cached("SELECT DISTINCT tenant, session FROM main.log WHERE seq > ?1 AND at <= ?2")?;
                for name in rest.query_map(rusqlite::params![behind, before], |row| Ok((row.get(0)?, row.get(1)?)))? {
                    names.push(name?);
                }
                names.retain(|(tenant, session)| keyed.session_number(tenant, session) == number);
                names.sort();
                names.dedup();
                Ok(names)
            })
            .await?;
        let mut erased = false;
        for (tenant, session) in names {
            erased |= self.erase_before(&tenant, &session, before, row.clone()).await?.is_some();
        }
        Ok(erased)
    }

    pub(crate) async fn erasures(&self) -> Result<Vec<(i64, i64)>, StoreError> {
        self.blocking(|connection| {
            let mut select = connection.prepare_cached("SELECT session, at FROM main.erased")?;
            select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .await
    }

    pub(crate) async fn erasure_of(&self, session: i64) -> Result<Option<i64>, StoreError> {
        self.blocking(move |connection| {
            let mut select = connection.prepare_cached("SELECT at FROM main.erased WHERE session = ?1")?;
            select.query_row([session], |row| row.get(0)).optional()
        })
        .await
    }

    async fn load_latest_ids(&self) -> Result<(), StoreError> {
        if self.inner.latest_ids.lock().unwrap_or_else(PoisonError::into_inner).loaded {
            return Ok(());
        }
        let ids: Vec<String> = self
            .blocking(|connection| {
                let mut select = connection.prepare("SELECT id FROM main.log ORDER BY seq DESC LIMIT ?1")?;
                select.query_map([REMEMBERED as i64], |row| row.get(0))?.collect()
            })
            .await?;
        let mut latest = self.inner.latest_ids.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids.iter().rev() {
            latest.insert(id);
        }
        latest.loaded = true;
        Ok(())
    }

    pub(crate) async fn positions(&self, partitions: u16) -> Result<Positions, StoreError> {
        let known: Positions = self.blocking(read_positions).await?;
        let mut positions = from_the_start(partitions);
        for (partition, at) in known {
            if let Some(place) = positions.get_mut(usize::from(partition)) {
                place.1 = at;
            }
        }
        Ok(positions)
    }

    pub(crate) async fn position_of(&self, partition: u16) -> Result<EntryId, StoreError> {
        let known: Positions = self.blocking(read_positions).await?;
        Ok(known.into_iter().find(|(other, _)| *other == partition).map_or_else(EntryId::default, |(_, at)| at))
    }

    pub(crate) async fn knows(&self, ids: &[String]) -> Result<Vec<bool>, StoreError> {
        self.load_latest_ids().await?;
        let latest = self.inner.latest_ids.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(ids.iter().map(|id| latest.known.contains(&xxh3_64(id.as_bytes()))).collect())
    }

    pub(crate) async fn effects_since(
        &self,
        since_millis: i64,
        visit: &mut (dyn FnMut(i64, &str, &[u8]) + Send),
    ) -> Result<(), StoreError> {
        const ROWS: i64 = 5_000;
        let mut after = 0_i64;
        loop {
            let rows: Vec<(i64, i64, String, Vec<u8>)> = self
                .blocking(move |connection| {
                    let mut select = connection.prepare_cached(
                        "SELECT seq, at, tenant, effects FROM main.log WHERE seq > ?1 AND at >= ?2 AND effects IS NOT NULL ORDER BY seq LIMIT ?3",
                    )?;
                    let rows = select.query_map([after, since_millis, ROWS], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
                    rows.collect()
                })
                .await?;
            let Some((last, ..)) = rows.last() else { return Ok(()) };
            after = *last;
            for (_, at, tenant, effects) in &rows {
                visit(*at, tenant, effects);
            }
        }
    }
}

async fn all_safe(written: &mut Vec<PendingWrite>) -> Result<(), StoreError> {
    for row in written.drain(..) {
        row.wait().await?;
    }
    Ok(())
}

fn read_positions(connection: &Connection) -> Result<Positions, rusqlite::Error> {
    let mut select = connection.prepare_cached("SELECT partition, millis, number FROM main.followed")?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, EntryId { millis: row.get(1)?, number: row.get(2)? })))?;
    rows.collect()
}
