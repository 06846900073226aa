//! The stores, on real files and servers. One program: it is linked once, and all tests share the threads.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "cluster/main.rs"]
mod cluster;
#[path = "contract/main.rs"]
mod contract;
mod postgres;
#[path = "common/postgres_server.rs"]
mod postgres_server;
mod redis;
#[path = "common/redis_server.rs"]
mod redis_server;
