//! What a setting may be. Each gives the name of the setting and what is wrong with it.

use crate::time::Span;
use std::ops::RangeInclusive;

/// The name of a setting, and what is wrong with its value.
pub type Invalid = (&'static str, String);

/// A number from here to there.
pub fn within(key: &'static str, value: u32, range: RangeInclusive<u32>) -> Result<(), Invalid> {
    if range.contains(&value) { Ok(()) } else { Err((key, format!("must be from {} to {}, is {value}", range.start(), range.end()))) }
}

/// A length of time that must not be nothing.
pub fn lasting(key: &'static str, span: Span) -> Result<(), Invalid> {
    if span > Span::ZERO { Ok(()) } else { Err((key, "must be longer than 0".into())) }
}

/// A share of something.
pub fn fraction(key: &'static str, value: f64) -> Result<(), Invalid> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err((key, format!("must be from 0 to 1, is {value}"))) }
}
