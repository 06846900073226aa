//! Times as people and machines write them.

use jiff::Timestamp as Instant;
use runguard_core::{Span, Timestamp};

pub(crate) use runguard_engine::clock::time_text as format;

/// RFC 3339, Unix milliseconds, or how long ago (`15m`, `24h`, `7d`).
pub(crate) fn parse(text: &str, now: Timestamp) -> Result<i64, String> {
    if let Ok(millis) = text.parse::<i64>() {
        return Ok(millis);
    }
    if let Ok(at) = text.parse::<Instant>() {
        return Ok(at.as_millisecond());
    }
    if text.ends_with(|c: char| c.is_ascii_alphabetic())
        && let Ok(ago) = Span::parse(text)
    {
        return Ok(now.as_millis().saturating_sub(ago.as_millis() as i64));
    }
    Err("must be a time like 2026-11-15T08:00:00Z, Unix milliseconds, or how long ago: 15m, 24h, 7d".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_three_forms() {
        let now = Timestamp::from_millis(1_700_000_000_000);
        assert_eq!(parse("1700000000123", now), Ok(1_700_000_000_123));
        assert_eq!(parse("2023-11-14T22:13:20Z", now), Ok(1_700_000_000_000));
        assert_eq!(parse("15m", now), Ok(1_699_999_100_000));
        assert!(parse("yesterday", now).is_err() && parse("", now).is_err());
        assert_eq!(format(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
    }
}
