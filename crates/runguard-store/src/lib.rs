//! Keeps small states and an append-only log, durably, and knows no guard.
//!
//! [`Store`] is the seam. Behind it: [`Embedded`] (one process, its own files) and [`Memory`] (the model).

mod embedded;
mod error;
mod key;
mod log;
mod memory;
mod store;

pub use embedded::schema::create_private_folder;
pub use embedded::{Durability, Embedded, Options};
pub use error::{OpenError, StoreError};
pub use key::{Family, Key};
pub use log::{Deed, FollowedRow, Follower, Happened, LogRow, Order, RowFilter, StatRow};
pub use memory::Memory;
pub use store::{Cell, Change, Decided, Erased, Keep, Labelled, Row, Rules, SlotState, Standing, Store, View, Written};
