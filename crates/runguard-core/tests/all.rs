//! The library from outside. One program: it is linked once, and all tests share the threads.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod budget;
mod difflib;
mod redaction;
mod similar_pairs;
mod stories;
mod tool_calls;
