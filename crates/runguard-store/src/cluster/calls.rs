//! What all parts of a node ask of the shared database: swaps, whether it is the one that is known, whether the log has what it had.

use crate::cluster::Inner;
use crate::cluster::cells::is_tombstone;
use crate::cluster::link::{LinkError, Swap, Swapped, Value};
use crate::error::StoreError;
use crate::store::Cell;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The gate is shut for longer only when states are built.
const GATE: Duration = Duration::from_millis(50);

/// Counted as long as it lives.
struct Awaited<'a>(&'a AtomicUsize);

impl<'a> Awaited<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    /// A swap that rests on nothing a fence could have moved: none of its answers is [`Swapped::Fenced`].
    pub(super) async fn swap(&self, swaps: Vec<Swap>) -> Result<Vec<Swapped>, LinkError> {
        let mut answers = self.link.swap(&swaps).await?;
        loop {
            let fenced: Vec<usize> = (0..answers.len()).filter(|place| answers[*place] == Swapped::Fenced).collect();
            if fenced.is_empty() {
                return Ok(answers);
            }
            let sent: Vec<Swap> = fenced.iter().map(|place| swaps[*place].clone()).collect();
            let again = self.link.swap(&sent).await?;
            fenced.into_iter().zip(again).for_each(|(place, answer)| answers[place] = answer);
        }
    }

    /// As long as this is kept the states are there: nobody here begins to build them meanwhile.
    pub(super) async fn built(&self) -> Result<tokio::sync::RwLockReadGuard<'_, ()>, LinkError> {
        match tokio::time::timeout(GATE, self.gate.read()).await {
            Ok(gate) if !self.health.is_unbuilt() => Ok(gate),
            Ok(_) | Err(_) => Err(LinkError::Away("its states are being built".into())),
        }
    }

    /// A swap of nothing says whether the database is the one we know, on a connection that was looked through.
    pub(super) async fn is_the_one_we_know(&self) -> bool {
        self.swap_nothing().await.is_ok()
    }

    /// The same, and why not.
    pub(super) async fn swap_nothing(&self) -> Result<(), LinkError> {
        let nothing = |partition| Swap { partition, cells: Vec::new(), entry: Vec::new() };
        self.swap((0..self.partitions).map(nothing).collect()).await.map(drop)
    }

    /// Waits until the log has everything that was decided before. `false`: not in time.
    pub(super) async fn caught_up(&self, patience: Duration) -> bool {
        let generation = self.health.generation.load(Ordering::Acquire);
        let Ok(latest) = self.link.latest().await else { return false };
        let reached = async {
            loop {
                if let Ok(positions) = self.log.positions(self.partitions).await
                    && positions.iter().all(|(partition, at)| latest.get(usize::from(*partition)).is_none_or(|latest| latest <= at))
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _awaited = Awaited::new(&self.log_awaited);
        let is_reached = tokio::time::timeout(patience, reached).await.is_ok();
        // Last: the streams of a database that was emptied say nothing, and of one that was emptied meanwhile the log has read what was written to
        // the next one since. That stands later in the streams than what is missing.
        is_reached
            && self.is_the_one_we_know().await
            && !self.health.is_unbuilt()
            && generation == self.health.generation.load(Ordering::Acquire)
    }

    /// Whether this node is the one that does something for all; asked again before the time is up.
    pub(super) async fn leads(&self, name: &'static str) -> bool {
        const LEASE: Duration = Duration::from_secs(6);
        let asked = tokio::time::Instant::now();
        let sure_until = self.leading.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied();
        if sure_until.is_some_and(|until| asked < until) {
            return true;
        }
        let ours = matches!(self.link.lease(name, self.node, LEASE.as_millis() as u64).await, Ok(true));
        let mut leading = self.leading.lock().unwrap_or_else(PoisonError::into_inner);
        if ours {
            leading.insert(name, asked + LEASE / 3);
        } else {
            leading.remove(name);
        }
        ours
    }

    /// The cells that rows of the log touched, with the state each of them has.
    pub(super) async fn load(&self, cells: &[Cell<'_>]) -> Result<Vec<Value>, StoreError> {
        let names = cells.iter().map(|cell| self.name(cell)).collect();
        let values = self.link.load(names).await.map_err(|error| StoreError::Read(error.to_string()))?;
        Ok(values.into_iter().map(|value| value.filter(|(_, state)| !is_tombstone(state))).collect())
    }
}
