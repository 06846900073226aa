//! Where the rows of the streams end up.

use crate::cluster::link::EntryId;
use crate::embedded::Embedded;
use crate::error::StoreError;
use crate::log::{Follower, Order, RowFilter, RowWithEffects};
use crate::memory::Memory;
#[cfg(feature = "postgres")]
use crate::postgres::{self, PgLog};
use runguard_core::row::{Row, RowCount};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Each partition's stream has been read up to here.
pub type Positions = Vec<(u16, EntryId)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    Done,
    /// Somebody else did it: ask for the positions again.
    Overtaken,
}

/// No partition has this number: the generation is kept in its place.
pub(crate) const GENERATION_AT: u16 = u16::MAX;

fn generation_at(generation: u64) -> (u16, EntryId) {
    (GENERATION_AT, EntryId { millis: as_kept(generation), number: 0 })
}

/// Nor this one: it moves with every erasure. Whoever imports says from where, so nothing comes in that an erasure took meanwhile.
pub(crate) const ERASED_AT: u16 = u16::MAX - 1;

/// A generation as the log keeps it: databases have no numbers above.
pub(crate) const fn as_kept(generation: u64) -> u64 {
    generation & (u64::MAX >> 1)
}

#[derive(Debug, Clone)]
pub(crate) enum ClusterLog {
    /// One log for all nodes.
    #[cfg(feature = "postgres")]
    Postgres(PgLog),
    /// Every node keeps a copy of its own.
    Local(Arc<Embedded>),
    /// One for all, for the simulation.
    Memory(Memory),
}

macro_rules! each {
    ($log:expr, $inner:ident => $call:expr) => {
        match $log {
            #[cfg(feature = "postgres")]
            ClusterLog::Postgres($inner) => $call,
            ClusterLog::Local($inner) => $call,
            ClusterLog::Memory($inner) => $call,
        }
    };
}

impl ClusterLog {
    /// The node's own copy, where there is one.
    fn copy(&self) -> Option<&Embedded> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => None,
            Self::Local(log) => Some(log),
            Self::Memory(_) => None,
        }
    }

    /// Whether all nodes write to one place, so that one of them is enough to do it.
    pub(crate) fn is_shared(&self) -> bool {
        self.copy().is_none()
    }

    /// Appends rows and moves the positions, both or neither.
    pub(crate) async fn import(
        &self,
        from: &[(u16, EntryId)],
        rows: Vec<RowWithEffects>,
        upto: &[(u16, EntryId)],
    ) -> Result<Imported, StoreError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(log) => match log.import(from, rows, upto).await? {
                postgres::Imported::Done { .. } => Ok(Imported::Done),
                postgres::Imported::Overtaken => Ok(Imported::Overtaken),
            },
            Self::Local(log) => log.import(from, rows, upto).await,
            Self::Memory(log) => log.import(from, rows, upto).await,
        }
    }

    pub(crate) async fn positions(&self, partitions: u16) -> Result<Positions, StoreError> {
        each!(self, log => log.positions(partitions).await)
    }

    /// The generation of the database whose states were last built from this log; 0: none was.
    pub(crate) async fn generation(&self) -> Result<u64, StoreError> {
        Ok(each!(self, log => log.position_of(GENERATION_AT).await)?.millis)
    }

    /// The states were built from the log as it is since its erasures were there.
    pub(crate) async fn set_generation(&self, generation: u64, erased_at: Option<(u16, EntryId)>) -> Result<Imported, StoreError> {
        self.import(erased_at.as_slice(), Vec::new(), &[generation_at(generation)]).await
    }

    /// Which of these decisions are in the log.
    pub(crate) async fn knows(&self, ids: &[String]) -> Result<Vec<bool>, StoreError> {
        each!(self, log => log.knows(ids).await)
    }

    /// Removes the rows of a session up to this one, and appends the one that says so, once. Of a node's own copy the streams tell.
    /// `None`: states were built from the log since that was last `built`, and nothing was removed.
    pub(crate) async fn erase_rows(
        &self,
        tenant: &str,
        session: &str,
        row: RowWithEffects,
        upto: u64,
        built: u64,
    ) -> Result<Option<usize>, StoreError> {
        let built = generation_at(built);
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(log) => log.erase_session(&[built], tenant, session, row, upto).await,
            Self::Local(_) => Ok(Some(0)),
            Self::Memory(log) => log.erase_rows(built, tenant, session, row.row, upto).await,
        }
    }

    /// Removes a session, known by its number, if a node's own copy has something of it from before the row.
    pub(crate) async fn erase_from_copy(&self, session: Option<i64>, row: &Row) -> Result<(), StoreError> {
        match (self.copy(), session) {
            (Some(copy), Some(session)) => copy.erase_known(session, row.at, row).await.map(drop),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Where the erasures are; in a node's own copy they come with the streams, in their order.
    pub(crate) async fn erased_at(&self) -> Result<Option<(u16, EntryId)>, StoreError> {
        if !self.is_shared() {
            return Ok(None);
        }
        let at = each!(self, log => log.position_of(ERASED_AT).await)?;
        Ok(Some((ERASED_AT, at)))
    }

    /// Sessions that were erased, by number, and when.
    pub(crate) async fn erasures(&self) -> Result<Vec<(i64, i64)>, StoreError> {
        each!(self, log => log.erasures().await)
    }

    /// When one of them was.
    pub(crate) async fn erasure_of(&self, session: i64) -> Result<Option<i64>, StoreError> {
        each!(self, log => log.erasure_of(session).await)
    }

    /// What rows did to states, oldest first: time, tenant, effects.
    pub(crate) async fn effects_since(
        &self,
        since_millis: i64,
        visit: &mut (dyn FnMut(i64, &str, &[u8]) + Send),
    ) -> Result<(), StoreError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(log) => {
                let shown = log.effects_since(since_millis, |_, at, tenant, effects| {
                    visit(at, tenant, effects);
                    std::ops::ControlFlow::Continue(())
                });
                shown.await.map(drop)
            }
            Self::Local(log) => log.effects_since(since_millis, visit).await,
            Self::Memory(log) => log.effects_since(since_millis, visit).await,
        }
    }

    /// Old rows leave: the clock says `told_millis`, and so much time has passed since this was last asked.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, clippy::unused_async, reason = "only Postgres goes by the time that passed, and waits")
    )]
    pub(crate) async fn retire(&self, told_millis: i64, elapsed: Duration) -> Result<(), StoreError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(log) => log.retire_passed(told_millis, elapsed).await.map(drop),
            Self::Local(log) => {
                log.tell_time(told_millis);
                Ok(())
            }
            Self::Memory(_) => Ok(()),
        }
    }

    /// Rids the files of this node of what was removed. What Postgres keeps of it, its own vacuum takes.
    pub(crate) async fn purge(&self) -> Result<Vec<String>, StoreError> {
        match self.copy() {
            Some(copy) => copy.purge().await,
            None => Ok(Vec::new()),
        }
    }

    pub(crate) fn wal_bytes(&self) -> Option<u64> {
        self.copy().map(Embedded::wal_bytes)
    }

    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        each!(self, log => log.probe().await)
    }

    pub(crate) fn committed(&self) -> watch::Receiver<u64> {
        each!(self, log => log.committed())
    }

    pub(crate) fn is_known(&self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(log) => log.is_known(),
            Self::Local(_) | Self::Memory(_) => true,
        }
    }

    pub(crate) fn follower(&self) -> Follower {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(log) => Follower::new(Arc::new(log.follower())),
            Self::Local(log) => log.follower(),
            Self::Memory(log) => log.follower(),
        }
    }

    pub(crate) async fn rows(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<Row>, StoreError> {
        each!(self, log => log.rows(filter, order, after, limit).await)
    }

    pub(crate) async fn rows_with_effects(
        &self,
        filter: RowFilter,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RowWithEffects>, StoreError> {
        each!(self, log => log.rows_with_effects(filter, order, after, limit).await)
    }

    pub(crate) async fn row_numbers(
        &self,
        filter: RowFilter,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<u64>, StoreError> {
        each!(self, log => log.row_numbers(filter, order, after, limit).await)
    }

    pub(crate) async fn stats_by(
        &self,
        tenant: Option<String>,
        guard: Option<String>,
        since: i64,
        until: i64,
        minutes: i64,
    ) -> Result<Vec<RowCount>, StoreError> {
        each!(self, log => log.stats_by(tenant, guard, since, until, minutes).await)
    }

    pub(crate) fn stop(&self) {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {}
            Self::Local(log) => log.stop(),
            Self::Memory(log) => log.stop(),
        }
    }
}
