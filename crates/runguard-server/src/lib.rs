//! The HTTP door: bytes to requests, decisions to answers.
//!
//! Guard routes are answered by a short path of their own ([`routes::guards`]): they are what is called thousands of
//! times a second, and a general router costs more than a decision. Everything else is an axum router.

mod accept;
mod auth;
mod metrics;
pub mod openapi;
mod packed;
mod problem;
mod routes;
mod service;
mod streams;
mod time;

pub use accept::{ServeError, Server};
