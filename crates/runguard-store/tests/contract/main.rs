//! What every store must keep to, whoever writes at the same time and whatever happens to its folder.
//!
//! The states are toys (a sum, a list), so that a lost, doubled or reordered event shows at once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod atomic;
mod crash;
mod disk;
mod durable;
mod erase;
mod memory;
mod opening;
mod queries;
mod retention;
mod toy;
