//! What is read: states as they are, and the log with all that was decided before it was asked.

use crate::cluster::link::LinkError;
use crate::cluster::roster::OneOfMany;
use crate::cluster::{CATCH_UP, Cluster, ROWS_OF_SESSION};
use crate::error::StoreError;
use crate::key::Family;
use crate::log::{Follower, Order, RowFilter, RowWithEffects};
use crate::store::{Cell, Labelled, SlotState};
use runguard_core::row::{Row, RowCount};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::watch;

/// States of endpoints asked for at a time when all of them are looked at.
const ENDPOINTS_AT_ONCE: usize = 1000;

impl Cluster {
    pub async fn states(&self, tenant: &str, session: &str) -> Result<Vec<SlotState>, StoreError> {
        let inner = &self.inner;
        inner.caught_up(CATCH_UP).await;
        let entry = inner.names.key(Family::Session, tenant, session);
        let filter = RowFilter { tenant: Some(tenant.into()), session: Some(session.into()), ..RowFilter::default() };
        let found = inner.log.rows_with_effects(filter, Order::NewestFirst, None, ROWS_OF_SESSION).await?;
        let effects = found.into_iter().flat_map(|kept| kept.happened()).filter(|effect| effect.key == entry);
        let mut touched: BTreeSet<(u8, String)> = effects.map(|effect| (effect.slot, effect.label)).collect();
        touched.extend(inner.foreign_cells(entry).await?);
        let cells: Vec<Cell<'_>> = touched.iter().map(|(slot, label)| inner.cell_of(tenant, entry, *slot, label, None)).collect();
        let values = inner.load(&cells).await?;
        let states = cells
            .iter()
            .zip(values)
            .filter_map(|(cell, value)| Some(SlotState { slot: cell.slot, subject: cell.subject.into(), state: value?.1.into() }));
        Ok(states.collect())
    }

    pub async fn visit_family<T>(&self, family: Family, mut into: T, mut visit: impl FnMut(&mut T, Labelled<'_>)) -> Result<T, StoreError> {
        let failed = |error: LinkError| StoreError::Read(error.to_string());
        if family != Family::Endpoint {
            return Ok(into);
        }
        let notes = self.inner.link.endpoints().await.map_err(failed)?;
        for notes in notes.chunks(ENDPOINTS_AT_ONCE) {
            let mut cells = Vec::with_capacity(notes.len());
            for note in notes {
                let Some((slot, label)) = note.split_once('\0') else { continue };
                let (Ok(slot), Some((tenant, endpoint))) = (slot.parse::<u8>(), label.split_once('\0')) else { continue };
                cells.push((note, self.inner.cell_of(tenant, self.inner.names.key(family, tenant, endpoint), slot, label, None)));
            }
            let values = self.inner.load(&cells.iter().map(|(_, cell)| *cell).collect::<Vec<_>>()).await?;
            for ((note, cell), value) in cells.iter().zip(values) {
                if let Some((_, state)) = value {
                    visit(&mut into, Labelled { label: cell.subject, slot: cell.slot, state: &state });
                } else {
                    // Long unused: its state has expired.
                    self.inner.noted().names.remove(&cell.key.hash);
                    self.inner.link.forget_endpoint((*note).clone()).await.map_err(failed)?;
                }
            }
        }
        Ok(into)
    }

    /// Whether it is known where the log ends.
    pub fn log_is_known(&self) -> bool {
        self.inner.log.is_known()
    }

    /// Whether the log can be read.
    pub async fn probe_log(&self) -> Result<(), StoreError> {
        self.inner.log.probe().await
    }

    pub fn committed(&self) -> watch::Receiver<u64> {
        self.inner.log.committed()
    }

    pub async fn rows(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<Row>, StoreError> {
        self.inner.caught_up(CATCH_UP).await;
        self.inner.log.rows(filter, order, after, limit).await
    }

    pub async fn rows_with_effects(
        &self,
        filter: RowFilter,
        order: Order,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RowWithEffects>, StoreError> {
        self.inner.log.rows_with_effects(filter, order, after, limit).await
    }

    pub async fn row_numbers(&self, filter: RowFilter, order: Order, after: Option<u64>, limit: usize) -> Result<Vec<u64>, StoreError> {
        self.inner.caught_up(CATCH_UP).await;
        self.inner.log.row_numbers(filter, order, after, limit).await
    }

    pub async fn stats_by(
        &self,
        tenant: Option<String>,
        guard: Option<String>,
        since: i64,
        until: i64,
        minutes: i64,
    ) -> Result<Vec<RowCount>, StoreError> {
        self.inner.caught_up(CATCH_UP).await;
        self.inner.log.stats_by(tenant, guard, since, until, minutes).await
    }

    pub fn follower(&self) -> Follower {
        Follower::new(Arc::new(OneOfMany { log: self.inner.log.follower(), roster: self.inner.roster.clone() }))
    }
}
