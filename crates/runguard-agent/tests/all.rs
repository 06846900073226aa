//! The agent from outside. One program: it is linked once, and all tests share the threads.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod agent_loop;
mod any_run;
mod bedrock;
mod mcp;
mod providers;
mod samples;
mod serve;
mod sessions;
mod tools;
#[path = "world/world.rs"]
mod world;
