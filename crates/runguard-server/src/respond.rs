//! Answers, as the shell makes them.

pub(crate) use runguard_http::reply::{Body, JSON, Reply, reply};
