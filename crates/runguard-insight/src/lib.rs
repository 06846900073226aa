//! What the log teaches: how often guards refused and why ([`insight`]), when somebody must be told ([`alert`]), and what loops cost
//! ([`estimate`]). Pure, as the guards are: rows and time in, words and numbers out.

pub mod alert;
pub mod estimate;
pub mod insight;
