//! One contract for every store: whatever keeps the states and the log, the same requests get the same answers.
//!
//! The store in memory is the model: one lock, nothing in its way. Any history of requests, with a clock that does what it
//! likes, is lived through by the model and by every other store, and everything that can be seen of them is compared byte for
//! byte ([`history`]). What many ask at the same time cannot be compared so; there the caps are counted ([`racing`]).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "../../../runguard-store/tests/common/postgres_server.rs"]
mod postgres_server;
#[path = "../../../runguard-store/tests/common/redis_server.rs"]
mod redis_server;

mod erasures;
mod history;
mod racing;
mod steps;
mod systems;
