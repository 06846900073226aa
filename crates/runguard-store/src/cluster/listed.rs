//! What the database must be able to list: endpoints, and states of a session that came about in other sessions' steps.

use crate::cluster::link::{LinkError, Put, Swap, SwapCell, Swapped};
use crate::cluster::{DAY_MILLIS, Inner};
use crate::error::StoreError;
use crate::key::{Family, Key};
use crate::store::Cell;
use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// Endpoints and foreign cells this node has told of. At the bound, and after a day, it tells again.
const MOST_NOTED: usize = 100_000;
/// Where it is noted which states of a session came about in other sessions' steps. No guard has this slot.
const FOREIGN: u8 = 254;
/// States noted of one session. Beyond it they are kept, but not listed.
const MOST_FOREIGN: usize = 256;

/// What this node has told the database of.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) names: BTreeSet<u128>,
    since: tokio::time::Instant,
}

impl Default for Noted {
    fn default() -> Self {
        Self { names: BTreeSet::new(), since: tokio::time::Instant::now() }
    }
}

impl Inner {
    /// Tells the database of what it must be able to list, before a step touches it.
    pub(super) async fn note(&self, cells: &[Cell<'_>]) {
        self.note_endpoints(cells).await;
        self.note_foreign_cells(cells).await;
    }

    /// Endpoints are listed, so the database keeps their names. Before the state is written: a name too many does no harm.
    async fn note_endpoints(&self, cells: &[Cell<'_>]) {
        for cell in cells.iter().filter(|cell| cell.key.family == Family::Endpoint) {
            if !self.is_noted(cell.key.hash) && self.link.note_endpoint(endpoint_note(cell.slot, cell.subject)).await.is_ok() {
                self.noted().names.insert(cell.key.hash);
            }
        }
    }

    /// A session's states are found by its rows. One that comes about in another session's step, as a parent's budget does, has
    /// no row of its own, so the database keeps its name.
    pub(super) async fn note_foreign_cells(&self, cells: &[Cell<'_>]) {
        let mut of_sessions = cells.iter().filter(|cell| cell.key.family == Family::Session);
        let Some(first) = of_sessions.next() else { return };
        for foreign in of_sessions.filter(|cell| cell.key != first.key) {
            let name = self.name(foreign).hash();
            // One that comes about is told of again: with an erasure the note went too.
            let is_told = self.is_noted(name) && self.cells.knows(foreign);
            if !is_told && !self.health.is_away() && self.note_foreign_cell(foreign).await.is_ok() {
                self.noted().names.insert(name);
            }
        }
    }

    async fn note_foreign_cell(&self, foreign: &Cell<'_>) -> Result<(), LinkError> {
        let name = self.name(&foreign_cells_of(foreign.key));
        let mut found = self.link.load(vec![name.clone()]).await?.pop().flatten();
        loop {
            let (expect, mut known) = found.map_or((0, Vec::new()), |(token, state)| (token, read_foreign_cells(&state)));
            if known.len() < MOST_FOREIGN && !known.iter().any(|(slot, label)| (*slot, label.as_str()) == (foreign.slot, foreign.subject)) {
                known.push((foreign.slot, foreign.subject.to_owned()));
            }
            // Told again every day, so it stays as long as any of the states.
            let keep_millis = self.keep_millis(foreign.slot, &[]) + 2 * DAY_MILLIS;
            let put = Put::Set { token: self.token(), state: postcard::to_stdvec(&known).unwrap_or_default(), keep_millis };
            let cell = SwapCell { name: name.clone(), expect, put };
            found = match self.swap(vec![Swap { partition: name.partition(), cells: vec![cell], entry: Vec::new() }]).await?.pop() {
                Some(Swapped::Raced(mut found)) => found.pop().flatten(),
                Some(Swapped::Done | Swapped::Full | Swapped::Fenced) | None => return Ok(()),
            };
        }
    }

    /// The states of a session that its rows do not tell of.
    pub(super) async fn foreign_cells(&self, session: Key) -> Result<Vec<(u8, String)>, StoreError> {
        let found = self.load(&[foreign_cells_of(session)]).await?.pop().flatten();
        Ok(found.map(|(_, state)| read_foreign_cells(&state)).unwrap_or_default())
    }

    /// Whether there is nothing to tell: it is known, or nobody can be told.
    fn is_noted(&self, name: u128) -> bool {
        let mut noted = self.noted();
        if noted.names.len() >= MOST_NOTED || noted.since.elapsed() >= Duration::from_millis(DAY_MILLIS) {
            *noted = Noted::default();
        }
        noted.names.contains(&name) || self.health.is_away()
    }

    pub(super) fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The list of a session's states that came about in other sessions' steps.
pub(super) fn foreign_cells_of(session: Key) -> Cell<'static> {
    Cell { key: session, slot: FOREIGN, subject: "", group: session.group() }
}

pub(super) fn read_foreign_cells(state: &[u8]) -> Vec<(u8, String)> {
    postcard::from_bytes(state).unwrap_or_default()
}

pub(super) fn endpoint_note(slot: u8, label: &str) -> String {
    format!("{slot}\0{label}")
}
