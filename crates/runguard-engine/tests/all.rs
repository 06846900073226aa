//! The engine on real stores. One program: it is linked once, and all tests share the threads.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod analyst;
mod engine;
#[path = "old_rows/main.rs"]
mod old_rows;
mod preview;
mod recorded_runs;
#[path = "stores/main.rs"]
mod stores;
