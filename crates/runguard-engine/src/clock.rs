//! Where the time comes from: the machine, the database that nodes share, or (for tests that drive windows) the caller.

use runguard_core::Timestamp;
use runguard_store::SharedClock;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone)]
pub enum Clock {
    System,
    /// Of all nodes of a cluster: the shared database's.
    Shared(SharedClock),
    /// Every request carries its own time.
    Virtual,
}

/// The header of a virtual clock.
pub const NOW_HEADER: &str = "x-runguard-now";
/// The end of the year 9999: what a date can be written for.
const LATEST: i64 = 253_402_300_799_999;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    #[error("the service runs with --virtual-clock: every request must carry its time in the header {NOW_HEADER}, in Unix milliseconds")]
    Missing,
    #[error("the header {NOW_HEADER} must be Unix milliseconds from 0 to {LATEST}")]
    Invalid,
}

/// RFC 3339 with milliseconds.
pub fn time_text(millis: i64) -> String {
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| millis.to_string(), |at| at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string())
}

impl Clock {
    /// The one reading of a request.
    pub fn read(&self, header: Option<&[u8]>) -> Result<Timestamp, ClockError> {
        match self {
            Self::System => Ok(system_now()),
            Self::Shared(clock) => Ok(Timestamp::from_millis(clock.now_millis().clamp(0, LATEST))),
            Self::Virtual => {
                let text = std::str::from_utf8(header.ok_or(ClockError::Missing)?).map_err(|_| ClockError::Invalid)?;
                let millis: i64 = text.trim().parse().map_err(|_| ClockError::Invalid)?;
                if (0..=LATEST).contains(&millis) { Ok(Timestamp::from_millis(millis)) } else { Err(ClockError::Invalid) }
            }
        }
    }
}

pub fn system_now() -> Timestamp {
    // A machine set before 1970 has no sensible time; zero is as good as any.
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(LATEST));
    Timestamp::from_millis(millis.min(LATEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_clock_takes_the_header_or_says_what_is_missing() {
        assert_eq!(Clock::Virtual.read(Some(b"1700000000000")), Ok(Timestamp::from_millis(1_700_000_000_000)));
        assert_eq!(Clock::Virtual.read(None), Err(ClockError::Missing));
        for bad in ["", "now", "-1", "1e3", "99999999999999999"] {
            assert_eq!(Clock::Virtual.read(Some(bad.as_bytes())), Err(ClockError::Invalid), "{bad}");
        }
        assert!(Clock::System.read(None).is_ok());
    }
}
