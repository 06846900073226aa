//! Instants and spans, in whole milliseconds.
//!
//! Signed and saturating on purpose: clocks jump, and a jump must neither panic nor wrap around.

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Milliseconds in a minute.
pub const MINUTE_MILLIS: i64 = 60_000;
/// Milliseconds in an hour.
pub const HOUR_MILLIS: i64 = 60 * MINUTE_MILLIS;
/// Milliseconds in a day whose clocks are let alone.
pub const DAY_MILLIS: i64 = 24 * HOUR_MILLIS;

/// A moment: milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The first moment of 1970.
    pub const ZERO: Self = Self(0);
    /// Never.
    pub const MAX: Self = Self(i64::MAX);

    /// Milliseconds since the beginning of 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the beginning of 1970.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This much later.
    #[must_use]
    pub const fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.as_millis_i64()))
    }

    /// Milliseconds from `earlier` to here; negative when the clock went back in between.
    pub const fn millis_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The rule of every window: an event at `event` counts at `self` when `self - event < window`.
    /// An event from the future (the clock jumped back) counts, so a jump never frees a unit.
    pub const fn still_counts(self, event: Self, window: Span) -> bool {
        self.millis_since(event) < window.as_millis_i64()
    }

    /// Whole seconds from here until `later`, rounded up, never less than zero.
    pub const fn seconds_until(self, later: Self) -> u64 {
        let millis = later.millis_since(self);
        if millis <= 0 { 0 } else { (millis as u64).div_ceil(1000) }
    }
}

/// A length of time. Written in settings as seconds (`3600`, `0.5`) or with a unit (`"90s"`, `"15m"`, `"1h"`, `"30d"`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

/// A hundred years. Longer windows are typing errors.
const LONGEST_MILLIS: u64 = 100 * 366 * DAY_MILLIS.cast_unsigned();

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// This many seconds.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// This many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Seconds as people write them, to the nearest millisecond; refused when they are no length of time.
    pub fn from_seconds_f64(seconds: f64) -> Result<Self, String> {
        Self::from_millis_f64(seconds * 1000.0)
    }

    /// In seconds, with what is left of the last one.
    pub fn as_seconds_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// In milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    const fn as_millis_i64(self) -> i64 {
        if self.0 > LONGEST_MILLIS { LONGEST_MILLIS as i64 } else { self.0 as i64 }
    }

    /// Whole seconds, rounded up: for people and for headers.
    pub const fn as_seconds(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Reads `"90s"`, `"15m"`, `"1h"`, `"30d"`, `"250ms"` or a bare number of seconds.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let number: f64 = number
            .trim()
            .parse()
            .map_err(|_| format!("`{text}` is not a length of time; write seconds (3600) or a unit (\"90s\", \"15m\", \"1h\", \"30d\")"))?;
        let factor = match unit {
            "ms" => 1.0,
            "" | "s" => 1000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            "d" => 86_400_000.0,
            _ => return Err(format!("`{unit}` is no unit of time; use ms, s, m, h or d")),
        };
        Self::from_millis_f64(number * factor)
    }

    /// Milliseconds as clocks measure them, to the nearest whole one; refused when they are no length of time.
    pub fn from_millis_f64(millis: f64) -> Result<Self, String> {
        if !millis.is_finite() || millis < 0.0 || millis > LONGEST_MILLIS as f64 {
            return Err("a length of time is between 0 and 100 years".into());
        }
        Ok(Self(millis.round() as u64))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0;
        let (value, unit) = match millis {
            _ if !millis.is_multiple_of(1000) => (millis, "ms"),
            _ if millis != 0 && millis.is_multiple_of(86_400_000) => (millis / 86_400_000, "d"),
            _ if millis != 0 && millis.is_multiple_of(3_600_000) => (millis / 3_600_000, "h"),
            _ if millis != 0 && millis.is_multiple_of(60_000) => (millis / 60_000, "m"),
            _ => (millis / 1000, "s"),
        };
        write!(f, "{value}{unit}")
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "number", "minimum": 0, "description": "Seconds."})
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) { serializer.serialize_u64(self.0 / 1000) } else { serializer.serialize_f64(self.0 as f64 / 1000.0) }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpanVisitor;
        impl Visitor<'_> for SpanVisitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time: seconds (3600) or a unit (\"90s\", \"15m\", \"1h\", \"30d\")")
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Span, E> {
                Span::from_millis_f64(seconds as f64 * 1000.0).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Span, E> {
                Span::from_millis_f64(seconds as f64 * 1000.0).map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Span, E> {
                Span::from_millis_f64(seconds * 1000.0).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                Span::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SpanVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_counts_until_its_window_is_over_and_not_a_moment_longer() {
        let event = Timestamp::from_millis(10_000);
        let window = Span::from_seconds(60);
        assert!(Timestamp::from_millis(69_999).still_counts(event, window));
        assert!(!Timestamp::from_millis(70_000).still_counts(event, window));
        assert!(Timestamp::from_millis(-5).still_counts(event, window), "an event from the future counts");
        assert!(Timestamp::from_millis(i64::MIN).still_counts(Timestamp::from_millis(i64::MAX), window));
    }

    #[test]
    fn spans_read_seconds_and_units() {
        for (text, millis) in [
            ("3600", 3_600_000),
            ("90s", 90_000),
            ("15m", 900_000),
            ("1h", 3_600_000),
            ("30d", 2_592_000_000),
            ("250ms", 250),
            ("0.5", 500),
        ] {
            assert_eq!(Span::parse(text), Ok(Span::from_millis(millis)), "{text}");
        }
        for text in ["", "h", "-1", "1y", "nan", "1e300", "999999d"] {
            assert!(Span::parse(text).is_err(), "{text}");
        }
        assert_eq!(Span::from_seconds(900).to_string(), "15m");
        assert_eq!(Span::from_millis(1500).to_string(), "1500ms");
    }

    #[test]
    fn seconds_are_rounded_up_so_that_waiting_them_is_enough() {
        let now = Timestamp::from_millis(0);
        assert_eq!(now.seconds_until(Timestamp::from_millis(1)), 1);
        assert_eq!(now.seconds_until(Timestamp::from_millis(1000)), 1);
        assert_eq!(now.seconds_until(Timestamp::from_millis(1001)), 2);
        assert_eq!(now.seconds_until(Timestamp::from_millis(-1)), 0);
    }
}
