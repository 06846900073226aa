//! The thinking of RunGuard, and nothing else: guards, the windows they count in, what they answer.
//!
//! Nothing here reads a clock, a file, a socket or a random number. Time is a parameter, state comes in as
//! bytes and leaves as bytes. So the same code decides live traffic, rebuilds state after a crash, and
//! replays an old log, and every one of these can be tested without waiting for anything.
//!
//! Start with [`guard`]: one file a guard, all of it there.

pub mod address;
pub mod alert;
pub mod answer;
pub mod breaker;
pub mod budget;
pub mod detect;
pub mod estimate;
pub mod fingerprint;
pub mod guard;
pub mod input;
pub mod insight;
pub mod ledger;
pub mod limits;
pub mod money;
pub mod names;
mod packed;
pub mod pattern;
pub mod policy;
pub mod prices;
pub mod reason;
pub mod similarity;
pub mod text;
pub mod time;
pub mod window;

pub use answer::{Answer, Facts, Value};
pub use guard::{Operation, Outcome, Place, Route, Scope};
pub use policy::{Mode, Policies, Policy};
pub use reason::{GuardName, Reason};
pub use time::{Span, Timestamp};
