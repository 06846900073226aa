//! Keeps small states and an append-only log, durably, and knows no guard.
//!
//! [`Store`] is the seam. Behind it: [`Embedded`] (one process, its own files), [`Cluster`] (many nodes: states in Redis, the log
//! in Postgres) and [`Memory`] (the model). The servers of a cluster are spoken to by the features `redis` and `postgres`.

pub mod cluster;
mod embedded;
mod error;
pub mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod key;
mod log;
mod memory;
pub mod pace;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
pub mod scrub;
mod store;
mod trusted_time;

pub use cluster::{Cluster, ClusterHealth, ClusterOptions, Fingerprints, LogKept, RETIRE_EVERY, SharedClock};
pub use embedded::journal::JOURNAL_PREFIX;
pub use embedded::schema::{INDEX_FILE, LOG_FILE, is_in_use};
pub use embedded::{Durability, Embedded, Options, Role, bring_home};
pub use error::{OpenError, StoreError};
pub use key::{Family, Key, Names};
pub use log::{Follower, Happened, Order, RowFilter, RowWithEffects};
pub use memory::{LogFault, Memory};
#[cfg(feature = "postgres")]
pub use postgres::{PgLog, PgOptions};
pub use runguard_core::row::{Row, RowCount, RowRef};
pub use store::{
    Cell, Change, Decided, Erased, IDEMPOTENCY_MILLIS, Keep, Labelled, Rules, Safe, SlotState, Store, StoreHealth, Unfinished, View,
    Written,
};
pub use trusted_time::TrustedTime;
