//! What the log teaches: how often guards refused and why ([`insight`]), when somebody must be told ([`alert`]), what loops cost
//! ([`estimate`]), and which of them a plan already shows ([`flow`]). Pure, as the guards are: rows and time in, words and numbers out.

pub mod alert;
pub mod estimate;
pub mod flow;
pub mod insight;
