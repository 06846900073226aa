//! Detectors an agent carries in its own process: loops, stalls, repeated tool calls, calls that failed for good.

pub mod actions;
pub mod failures;
pub mod loops;
pub mod sessions;
pub mod stall;
pub mod tool_calls;
