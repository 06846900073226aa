//! The store of a node that is alone: what it decides while the shared database is away, until it is brought home.

use crate::cluster::ClusterOptions;
use crate::embedded::{Embedded, Options, Role};
use crate::error::StoreError;
use crate::key::Names;
use crate::log::{Order, RowFilter, RowWithEffects};
use crate::memory::Memory;
use crate::store::{Cell, Decided, Rules, Safe, View};
use crate::{Durability, OpenError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::RwLock;

/// The node's own store for the time alone.
#[derive(Debug, Clone)]
pub(super) enum Local {
    Embedded(Arc<Embedded>),
    Memory(Memory),
}

#[derive(Debug)]
pub(crate) struct Alone {
    folder: PathBuf,
    /// Stands for the disk in a simulation.
    disk: Option<Memory>,
    rules: Rules,
    names: Names,
    pub(super) open: RwLock<Option<Local>>,
    pub(super) waiting: AtomicU64,
    /// Its disk: how much there may be, how much was last seen, and the steps since the beginning.
    most_bytes: u64,
    bytes: AtomicU64,
    steps: AtomicU64,
}

impl Alone {
    pub(crate) fn new(options: &ClusterOptions, disk: Option<Memory>, rules: Rules) -> Self {
        Self {
            folder: options.folder.clone(),
            disk,
            rules,
            names: options.names,
            open: RwLock::new(None),
            waiting: AtomicU64::new(0),
            most_bytes: options.alone_bytes,
            bytes: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        }
    }

    /// Refuses when the disk that may be used is used. Looked at now and then: a step writes little.
    fn check_room(&self) -> Result<(), StoreError> {
        const LOOK_EVERY: u64 = 64;
        if self.steps.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) {
            self.weigh();
        }
        if self.bytes.load(Ordering::Relaxed) < self.most_bytes {
            return Ok(());
        }
        Err(StoreError::Write(
            "the shared state is away, and what this node decided alone fills the disk it may use; bring the state back, or raise store.alone_mb".into(),
        ))
    }

    /// Looks how much of the disk is used.
    pub(super) fn weigh(&self) {
        if self.disk.is_some() {
            return;
        }
        let bytes = bytes_in(&self.folder);
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        let (most, passes) = (self.most_bytes, |bound: u64| before < bound && bytes >= bound);
        if passes(most) {
            tracing::error!(
                bytes,
                "what this node decided alone fills the disk it may use: requests fail until the shared state is back, or store.alone_mb is raised"
            );
        } else if passes(most / 2) {
            tracing::warn!(bytes, most, "what this node decided alone fills half of the disk it may use (store.alone_mb)");
        }
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Of disk, as last seen.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn open_local(&self) -> Result<Local, OpenError> {
        if let Some(disk) = &self.disk {
            return Ok(Local::Memory(disk.clone()));
        }
        let options = Options {
            folder: self.folder.clone(),
            durability: Durability::Process,
            memory_bytes: 64 << 20,
            retention_days: 3650,
            role: Role::Alone,
            names: self.names,
        };
        Ok(Local::Embedded(Arc::new(Embedded::open(options, self.rules)?)))
    }

    pub(crate) async fn apply<R>(
        &self,
        cells: &[Cell<'_>],
        remembered: Vec<Option<Vec<u8>>>,
        mut step: impl FnMut(&View<'_>) -> Decided<R>,
    ) -> Result<R, StoreError> {
        self.check_room()?;
        let mut kept = false;
        let counted = |view: &View<'_>| {
            let decided = step(view);
            kept = matches!(decided, Decided::Keep(..));
            decided
        };
        let mut open = self.open.read().await;
        if open.is_none() {
            drop(open);
            let mut opening = self.open.write().await;
            if opening.is_none() {
                *opening = Some(self.open_local().map_err(|error| StoreError::Write(error.to_string()))?);
            }
            open = opening.downgrade();
        }
        let (reply, safe) = match open.as_ref() {
            Some(Local::Embedded(store)) => {
                store.remember(cells, remembered).await?;
                store.decide(cells, counted).await
            }
            Some(Local::Memory(store)) => {
                store.remember(cells, remembered);
                store.apply(cells, counted).await.map(|reply| (reply, Safe::default()))
            }
            None => Err(StoreError::Stopping),
        }?;
        // Before it is waited for: who goes away meanwhile leaves a row all the same.
        let rows = u64::from(kept);
        self.waiting.fetch_add(rows, Ordering::Relaxed);
        let written = safe.wait().await;
        if written.is_err() {
            self.waiting.fetch_sub(rows, Ordering::Relaxed);
        }
        written.map(|()| reply)
    }

    /// What an earlier life of this node left behind.
    pub(crate) async fn find_left_behind(&self) -> Result<(), StoreError> {
        let exists = match &self.disk {
            Some(_) => true,
            None => self.folder.join("runguard.db").exists(),
        };
        let mut open = self.open.write().await;
        if exists && open.is_none() {
            let local = self.open_local().map_err(|error| StoreError::Read(error.to_string()))?;
            let rows = local.row_numbers().await?;
            self.waiting.store(rows, Ordering::Relaxed);
            *open = Some(local);
        }
        Ok(())
    }

    /// Gone once nothing is left in it. `false`: something came meanwhile.
    pub(super) async fn close_if_empty(&self, after: Option<u64>) -> Result<bool, StoreError> {
        let mut open = self.open.write().await;
        let Some(local) = open.as_ref() else { return Ok(true) };
        if !local.rows_with_effects(after, 1).await?.is_empty() {
            return Ok(false);
        }
        match open.take() {
            Some(Local::Embedded(store)) => {
                let (folder, store) = (self.folder.clone(), store);
                let removed = tokio::task::spawn_blocking(move || {
                    store.stop();
                    drop(store);
                    std::fs::remove_dir_all(folder)
                });
                if let Ok(Err(error)) = removed.await {
                    tracing::warn!(%error, folder = %self.folder.display(), "what was brought home could not be removed");
                }
            }
            Some(Local::Memory(store)) => store.clear(),
            None => {}
        }
        self.waiting.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        Ok(true)
    }

    pub(crate) fn stop(&self) {
        if let Ok(open) = self.open.try_read()
            && let Some(Local::Embedded(store)) = open.as_ref()
        {
            store.stop();
        }
    }
}

/// Of the files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).filter(std::fs::Metadata::is_file).map(|file| file.len()).sum()
}

impl Local {
    pub(super) async fn rows_with_effects(&self, after: Option<u64>, most: usize) -> Result<Vec<RowWithEffects>, StoreError> {
        match self {
            Self::Embedded(store) => store.rows_with_effects(RowFilter::default(), Order::OldestFirst, after, most).await,
            Self::Memory(store) => store.rows_with_effects(RowFilter::default(), Order::OldestFirst, after, most).await,
        }
    }

    /// The next rows, as many as were asked for or have these bytes, each as `make` makes it.
    pub(super) async fn part<T: Send + 'static>(
        &self,
        after: Option<u64>,
        most: usize,
        most_bytes: usize,
        make: impl Fn(RowWithEffects) -> T + Send + 'static,
    ) -> Result<Vec<T>, StoreError> {
        match self {
            Self::Embedded(store) => store.part(after, most, most_bytes, make).await,
            // Small enough by itself.
            Self::Memory(_) => Ok(self.rows_with_effects(after, most).await?.into_iter().map(make).collect()),
        }
    }

    async fn row_numbers(&self) -> Result<u64, StoreError> {
        let numbers = match self {
            Self::Embedded(store) => store.row_numbers(RowFilter::default(), Order::OldestFirst, None, usize::MAX >> 1).await?,
            Self::Memory(store) => store.row_numbers(RowFilter::default(), Order::OldestFirst, None, usize::MAX >> 1).await?,
        };
        Ok(numbers.len() as u64)
    }
}
