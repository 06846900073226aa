//! Connections for reading: few, with small caches.
//!
//! Every reader costs memory, and a snapshot that is held keeps the write-ahead log from starting over. So there are as many as the
//! machine can use, and whoever comes beyond that waits without a thread. States that an answer waits for have a lane of their own:
//! no search through the log is in their way.

use crate::embedded::Inner;
use crate::embedded::schema::Folder;
use crate::error::StoreError;
use rusqlite::Connection;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use tokio::sync::Semaphore;

/// What is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// States that an answer waits for: a few lookups each.
    Answers,
    /// Searches through the log, by people and by what follows it.
    Questions,
}

/// Readers at a time in each lane, besides the few threads that follow the log.
const MOST_READERS: usize = 4;
/// Idle connections kept.
const KEEP_READERS: usize = 2 * MOST_READERS;

#[derive(Debug)]
struct Turns {
    places: Arc<Semaphore>,
    /// Held for reading as long as a snapshot is.
    snapshots: RwLock<()>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(MOST_READERS)), snapshots: RwLock::default() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Readers {
    idle: Mutex<Vec<Connection>>,
    answers: Turns,
    questions: Turns,
}

/// As long as this lives nobody in this process holds a snapshot.
#[derive(Debug)]
pub(crate) struct Pause<'a> {
    _questions: RwLockWriteGuard<'a, ()>,
    _answers: RwLockWriteGuard<'a, ()>,
}

impl Readers {
    fn turns(&self, lane: Lane) -> &Turns {
        match lane {
            Lane::Answers => &self.answers,
            Lane::Questions => &self.questions,
        }
    }

    /// Reads in one snapshot, on a thread that may wait.
    pub(crate) fn read<R>(
        &self,
        lane: Lane,
        folder: &Folder,
        run: impl FnOnce(&Connection) -> Result<R, rusqlite::Error>,
    ) -> Result<R, StoreError> {
        let _snapshot = self.turns(lane).snapshots.read().unwrap_or_else(PoisonError::into_inner);
        let connection = self.take(folder)?;
        let result = {
            let transaction = connection.unchecked_transaction().map_err(unread)?;
            run(&transaction).inspect_err(|error| folder.mark_index_damaged(error)).map_err(unread)
        };
        if result.is_ok() {
            self.put_back(connection);
        }
        result
    }

    fn take(&self, folder: &Folder) -> Result<Connection, StoreError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| folder.open_reader().map_err(unread), Ok)
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEEP_READERS {
            idle.push(connection);
        }
    }

    /// Waits until nobody reads, and lets nobody begin. Searches first: they take long, and answers go on meanwhile.
    pub(crate) fn pause(&self) -> Pause<'_> {
        let questions = self.questions.snapshots.write().unwrap_or_else(PoisonError::into_inner);
        Pause { _questions: questions, _answers: self.answers.snapshots.write().unwrap_or_else(PoisonError::into_inner) }
    }
}

fn unread(error: rusqlite::Error) -> StoreError {
    StoreError::Read(error.to_string())
}

impl Inner {
    /// Runs what reads on a thread that may wait, once it is its turn: no more threads are taken than there are readers.
    pub(crate) async fn in_lane<R: Send + 'static>(
        self: &Arc<Self>,
        lane: Lane,
        run: impl FnOnce(&Self) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let place = self.readers.turns(lane).places.clone().acquire_owned().await.map_err(|_| StoreError::Stopping)?;
        let inner = self.clone();
        let read = move || {
            // Held by the thread and not by whoever asked: a caller who goes away does not end what was begun.
            let _place = place;
            run(&inner)
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| StoreError::Read(error.to_string()))?
    }
}
