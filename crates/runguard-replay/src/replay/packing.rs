//! The packed file behind the threads: batches are written in the order in which they were read.

use crate::packed::Packing;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Batches that may be done before an earlier one is; whoever is further ahead waits.
const AHEAD: u64 = 64;

#[derive(Debug)]
pub(super) struct Ordered {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug)]
struct State {
    packing: Packing,
    next: u64,
    done: BTreeMap<u64, (Vec<u8>, u64)>,
    failed: Option<io::Error>,
}

impl Ordered {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let packing =
            Packing::create(path).map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))?;
        let state = State { packing, next: 0, done: BTreeMap::new(), failed: None };
        Ok(Self { state: Mutex::new(state), moved: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Batches are taken in their order, so the one that is next is in work and never waits here.
    pub(super) fn put(&self, batch: u64, frames: Vec<u8>, runs: u64) {
        let waits = |state: &mut State| batch >= state.next + AHEAD && state.failed.is_none();
        let mut state = self.moved.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.done.insert(batch, (frames, runs));
        while let Some((frames, runs)) = state.done.remove(&state.next) {
            state.next += 1;
            if state.failed.is_none() {
                state.failed = state.packing.add(&frames, runs).err();
            }
        }
        self.moved.notify_all();
    }

    pub(super) fn fail(&self, error: io::Error) {
        self.state().failed.get_or_insert(error);
        self.moved.notify_all();
    }

    pub(super) fn finish(self) -> io::Result<u64> {
        let State { packing, failed, .. } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match failed {
            Some(error) => Err(error),
            None => packing.finish(),
        }
    }
}
