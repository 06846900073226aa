//! Keeps small states and an append-only log, durably, and knows no guard.
//!
//! [`Store`] is the seam. Behind it: [`Embedded`] (one process, its own files), [`Cluster`] (many nodes: states in Redis, the log
//! in Postgres) and [`Memory`] (the model).

pub mod cluster;
mod embedded;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod key;
mod log;
mod memory;
pub mod postgres;
pub mod redis;
mod store;

pub use cluster::{Cluster, ClusterHealth, ClusterOptions, LogKept, SharedClock};
pub use embedded::schema::{create_private_folder, is_in_use};
pub use embedded::{Durability, Embedded, Options, Role};
pub use error::{OpenError, StoreError};
pub use key::{Family, Key};
pub use log::{Deed, FollowedRow, Follower, Happened, LogRow, Order, RowFilter, StatRow};
pub use memory::{LogFault, Memory};
pub use postgres::{PgLog, PgOptions};
pub use store::{Cell, Change, Decided, Erased, Keep, Labelled, Row, Rules, SlotState, Standing, Store, View, Written};
