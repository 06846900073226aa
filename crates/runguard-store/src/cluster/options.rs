//! How a node joins its cluster, and how much it does at a time.

use crate::cluster::Shelf;
use crate::embedded::Embedded;
use crate::key::Names;
use crate::memory::Memory;
#[cfg(feature = "postgres")]
use crate::postgres::PgLog;
use std::path::PathBuf;
use std::time::Duration;

/// How often old rows are looked for, unless a test is in a hurry.
pub const RETIRE_EVERY: Duration = Duration::from_secs(600);

#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Where rows wait that were decided while the shared database was away.
    pub folder: PathBuf,
    pub memory_bytes: usize,
    pub retention_days: u32,
    /// The longest window in which anything is counted, until [`Cluster::keep_states_for`] tells another one: states are built while a node
    /// joins already.
    pub window: Duration,
    /// Where rows are kept that the log is not known to have.
    pub unconfirmed: Shelf,
    /// How long a request waits for a shared database that does not answer.
    pub patience: Duration,
    /// How often old rows are looked for.
    pub retire_every: Duration,
    /// What the node's own clock says: it is asked where the shared database cannot be.
    pub here_millis: i64,
    /// What is decided alone may take so much of the disk.
    pub alone_bytes: u64,
    /// How much of it is brought home at a time.
    pub portions: Portions,
    /// How names become keys: [`agree_on_names`].
    pub names: Names,
    /// Makes tokens; another for every node.
    pub seed: u64,
}

/// How many rows of what was decided alone are brought home at a time.
#[derive(Debug, Clone)]
pub struct Portions {
    /// Read together: the more, the more of them are of one state.
    pub read: usize,
    /// Of several states in one swap. The more, the less a row costs the database; and the likelier it is that another node is at one of the
    /// states, and all of them are tried again.
    pub together: usize,
    /// Of one state in one swap.
    pub of_one_state: usize,
    /// Swaps that are made ready while others are on their way.
    pub swaps: usize,
}

impl Default for Portions {
    fn default() -> Self {
        Self { read: 16_000, together: 32, of_one_state: 500, swaps: 64 }
    }
}

/// Where the log is kept.
#[derive(Debug)]
pub enum LogKept {
    #[cfg(feature = "postgres")]
    Postgres(PgLog),
    /// In a store of the node's own, a copy of every node's rows.
    Local(Embedded),
    /// For the simulation: one memory for all nodes; the second is the node's disk.
    Memory(Memory, Memory),
}

/// As many from the front as are handled together, by their number and their bytes: one at least.
pub(crate) fn fitting(sizes: impl Iterator<Item = usize>, most: usize, most_bytes: usize) -> usize {
    let mut bytes = 0;
    let fits = sizes.take(most).take_while(|size| {
        bytes += size;
        bytes <= most_bytes
    });
    fits.count().max(1)
}
