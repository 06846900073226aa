#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

pub mod bedrock;
pub mod breaker;
pub mod budget;
pub mod calendar;
pub mod detect;
pub mod fingerprint;
pub mod fold;
pub mod hashed;
pub mod ledger;
pub mod limits;
pub mod members;
pub mod model_question;
pub mod money;
pub mod nearest;
pub mod notice;
pub mod object;
pub mod packed;
pub mod prices;
pub mod reason;
pub mod row;
pub mod run;
pub mod shown;
pub mod similarity;
pub mod text;
pub mod time;
pub mod window;

pub use reason::{GuardName, Reason};
pub use time::{Span, Timestamp};
