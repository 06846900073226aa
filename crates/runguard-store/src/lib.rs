//! Keeps small states and an append-only log, durably, and knows no guard.
//!
//! What decides the shape (measured, see ARCHITECTURE.md): appending a row in arrival order costs a tenth of
//! inserting it under a random key, and one commit costs as much as fifteen appends. So
//!
//! - an answer waits for exactly one thing: its row in the log file, written by one thread that commits whatever
//!   has gathered while it wrote the last batch ([`journal`]);
//! - the row carries the decision *and* the events that make its state, so both are there or neither;
//! - states live in memory ([`shard`]); everything that needs a random-order index (states on disk, sessions, zones,
//!   rollups) is a second file, derived from the log, built behind it in large sorted batches ([`keeper`]).
//!
//! The second file can be lost: it is built anew from the first.

mod error;
mod journal;
mod keeper;
mod key;
mod query;
mod relay;
mod schema;
mod shard;
mod store;

pub use error::{OpenError, StoreError};
pub use key::{Family, Key};
pub use query::{Deed, FollowedRow, Follower, Happened, LogRow, Order, RowFilter, StatRow};
pub use schema::create_private_folder;
pub use store::{Change, Decided, Durability, Erased, Labelled, Options, Replay, Row, SlotState, Store, View, Written};
