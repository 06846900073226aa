//! What a setting may be.

use crate::time::Span;
use std::ops::RangeInclusive;

/// Names that a service takes, of sessions, tools, models and whatever else, have at most this many characters.
pub const MAX_ID_CHARS: usize = 256;

/// A setting that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` {problem}")]
pub struct InvalidSetting {
    /// The setting.
    pub name: &'static str,
    /// What is wrong with its value.
    pub problem: String,
}

impl InvalidSetting {
    /// The name of a setting, and what is wrong with its value.
    pub fn new(name: &'static str, problem: impl Into<String>) -> Self {
        Self { name, problem: problem.into() }
    }
}

fn unless(fine: bool, name: &'static str, problem: impl FnOnce() -> String) -> Result<(), InvalidSetting> {
    if fine { Ok(()) } else { Err(InvalidSetting::new(name, problem())) }
}

/// A number from here to there.
pub fn within(name: &'static str, value: u32, range: RangeInclusive<u32>) -> Result<(), InvalidSetting> {
    unless(range.contains(&value), name, || format!("must be from {} to {}, is {value}", range.start(), range.end()))
}

/// A length of time that must not be nothing.
pub fn lasting(name: &'static str, span: Span) -> Result<(), InvalidSetting> {
    unless(span > Span::ZERO, name, || "must be longer than 0".into())
}

/// A share of something.
pub fn fraction(name: &'static str, value: f64) -> Result<(), InvalidSetting> {
    unless((0.0..=1.0).contains(&value), name, || format!("must be from 0 to 1, is {value}"))
}

/// Settings may gain fields: others make them from the defaults, field by field.
macro_rules! setters {
    ($settings:ident { $($field:ident: $kind:ty),+ $(,)? }) => {
        impl $settings {
            $(
                #[doc = concat!("These settings with another `", stringify!($field), "`.")]
                #[must_use]
                pub fn $field(mut self, $field: $kind) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}
pub(crate) use setters;
