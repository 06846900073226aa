//! What RunGuard knows, for programs that want it in their own process: loops and stalls are found ([`detect`]), money is kept within
//! limits ([`budget`]), a failing service is left alone ([`breaker`]), calls are told apart ([`fingerprint`], [`similarity`]), models
//! are priced ([`prices`]), and texts are rid of what is personal ([`text`]).
//!
//! Nothing here reads a clock, a file, a socket or a random number: time is a parameter. So the same code runs in a service, in Python,
//! in WebAssembly and over an old log, and every test decides what time it is.

pub mod breaker;
pub mod budget;
pub mod detect;
pub mod fingerprint;
pub mod ledger;
pub mod limits;
pub mod money;
pub mod notice;
mod packed;
pub mod prices;
pub mod reason;
pub mod shown;
pub mod similarity;
pub mod text;
pub mod time;
pub mod window;

pub use reason::{GuardName, Reason};
pub use time::{Span, Timestamp};
