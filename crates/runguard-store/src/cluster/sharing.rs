//! A step on the shared states: on what is remembered, and again as long as another node was faster.

use crate::cluster::cells::{Knowing, ProposalResult, Wanted};
use crate::cluster::{Inner, erasing};
use crate::error::StoreError;
use crate::store::{Cell, View};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a step is tried again while others are faster. The database is up, so going on alone would be wrong.
const RACE: Duration = Duration::from_secs(20);
pub(super) const OUTRUN: &str =
    "other requests for the same state were faster for too long; it is asked for more often than it can be answered";

/// What became of a step on the shared states.
pub(super) enum Shared<R> {
    Done(R),
    Away,
    /// Others were faster each time.
    Outrun,
}

impl Inner {
    /// Runs a step on the shared states until it is done or the database is away.
    pub(super) async fn share<R>(
        &self,
        cells: &[Cell<'_>],
        decide: impl FnMut(&View<'_>) -> (R, Option<Wanted>),
    ) -> Result<Option<R>, StoreError> {
        match self.share_within(u32::MAX, cells, decide).await? {
            Shared::Done(reply) => Ok(Some(reply)),
            Shared::Away => Ok(None),
            Shared::Outrun => Err(StoreError::Write(OUTRUN.into())),
        }
    }

    /// The same, tried so often.
    pub(super) async fn share_within<R>(
        &self,
        tries: u32,
        cells: &[Cell<'_>],
        mut decide: impl FnMut(&View<'_>) -> (R, Option<Wanted>),
    ) -> Result<Shared<R>, StoreError> {
        let started = tokio::time::Instant::now();
        let has_looked = self.cells.are_elsewhere(cells) && self.look(cells).await?;
        let mut aways = 0;
        for race in 0..tries {
            if !self.health.wait_until_back(self.options.patience).await {
                return Ok(Shared::Away);
            }
            if started.elapsed() >= RACE {
                break;
            }
            match erasing::wait(self, cells).await {
                // With what was erased went what was told of it.
                Some(true) => self.note_foreign_cells(cells).await,
                Some(false) => {}
                None => return Ok(Shared::Away),
            }
            // First: whatever is learned after it, this step may not know.
            let fences = self.erasing.fences();
            if self.erasing.holds(cells) {
                continue;
            }
            let (reply, result) = self.propose(cells, fences, has_looked || race > 0, &mut decide)?;
            match result.await.map_err(|_| StoreError::Stopping)? {
                ProposalResult::Done => return Ok(Shared::Done(reply)),
                ProposalResult::Raced if race > 3 => {
                    self.note_foreign_cells(cells).await;
                    // Whoever loses often waits a moment, each another one, so that somebody gets through.
                    let wait = self.token() % (u64::from(race.min(50)) * 100);
                    tokio::time::sleep(Duration::from_micros(wait)).await;
                }
                // It may have been taken away, and what was told of it as well.
                ProposalResult::Raced => self.note_foreign_cells(cells).await,
                // Were it tried again it could count twice. Alone it has the same id, and it is seen when it goes home what became of this.
                ProposalResult::Doubtful => return Ok(Shared::Away),
                // It may be back by the time we hear that it was away.
                ProposalResult::Away => {
                    aways += 1;
                    if aways > 3 {
                        return Ok(Shared::Away);
                    }
                }
            }
        }
        Ok(Shared::Outrun)
    }

    /// Runs a step on what is remembered, and asks for what it wants.
    fn propose<R>(
        &self,
        cells: &[Cell<'_>],
        fences: u64,
        has_looked: bool,
        decide: impl FnOnce(&View<'_>) -> (R, Option<Wanted>),
    ) -> Result<(R, oneshot::Receiver<ProposalResult>), StoreError> {
        let (health, not_before) = (self.health.of_shared_states(), self.erasing.not_before(cells));
        let knowing = Knowing { fences, health, not_before, has_looked };
        let keep_millis = |slot, state: &[u8]| self.keep_millis(slot, state);
        self.cells.step(cells, knowing, || self.token(), keep_millis, decide, |proposal| self.queue.push(proposal))
    }

    /// Learns what is there, by a step that wants nothing. Says whether it has; a step that needs to know finds out by itself.
    async fn look(&self, cells: &[Cell<'_>]) -> Result<bool, StoreError> {
        if self.health.is_away() {
            return Ok(false);
        }
        let ((), result) = self.propose(cells, self.erasing.fences(), false, |_| ((), None))?;
        let result = result.await.map_err(|_| StoreError::Stopping)?;
        Ok(matches!(result, ProposalResult::Done | ProposalResult::Raced))
    }
}
