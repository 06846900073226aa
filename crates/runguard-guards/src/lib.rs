//! The guards behind the doors of the service: what each of them asks for, counts, refuses and says, and the settings it takes.
//!
//! Nothing here reads a clock, a file, a socket or a random number. Time is a parameter, state comes in as bytes and leaves as bytes. So
//! the same code decides live traffic, rebuilds state after a crash, and replays an old log, and every one of these can be tested
//! without waiting for anything.
//!
//! Start with [`guard`]: one file a guard, all of it there. What guards and libraries have in common is in `runguard-core`.

pub mod answer;
pub mod guard;
pub mod input;
pub mod lengths;
pub mod logged;
mod names;
pub mod pattern;
pub mod policy;

pub use answer::{Answer, Facts, Value};
pub use guard::{Operation, Outcome, Place, Route, Scope};
pub use policy::{Mode, Policies, Policy};
