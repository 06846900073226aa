//! Days, weeks and months, as people count them: in a time zone.
//!
//! A day may have 23 or 25 hours, and midnight may be missing. The rules of time zones are the bundled database's (feature
//! `time-zones`): nothing is read from the machine, so every node counts alike. Who has no use for them, as WebAssembly with a calendar
//! of its own, leaves the feature out and says itself when a period ends.

use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a limit is counted anew with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// From midnight on.
    Day,
    /// From Monday on.
    Week,
    /// From the first on.
    Month,
}

impl Period {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// By its word.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }

    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// No such period is longer, also where an hour comes twice.
    pub const fn longest(self) -> Span {
        match self {
            Self::Day => Span::from_seconds(25 * 3600),
            Self::Week => Span::from_seconds((7 * 24 + 1) * 3600),
            Self::Month => Span::from_seconds((31 * 24 + 1) * 3600),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(feature = "time-zones")]
pub use zone::{UnknownZone, Zone};

#[cfg(feature = "time-zones")]
mod zone {
    use super::Period;
    use crate::time::Timestamp;
    use jiff::civil::Date;
    use jiff::tz::{TimeZone, TimeZoneDatabase};
    use jiff::{Timestamp as Instant, ToSpan};
    use serde::{Deserialize, Serialize};

    /// A time zone by its name, such as `Europe/Berlin`.
    ///
    /// ```
    /// use runguard_core::calendar::{Period, Zone};
    /// use runguard_core::time::Timestamp;
    ///
    /// let noon = Timestamp::from_millis(1_774_782_000_000); // 2026-03-29, the clocks were put forward in the night
    /// let midnight = Zone::named("Europe/Berlin")?.end_of(Period::Day, noon);
    /// assert_eq!(midnight.as_millis(), 1_774_821_600_000);
    /// # Ok::<(), runguard_core::calendar::UnknownZone>(())
    /// ```
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    pub struct Zone {
        name: String,
        rules: TimeZone,
    }

    /// A name that no time zone has.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    #[error("`{0}` is no time zone that is known here; write a name such as \"UTC\" or \"Europe/Berlin\"")]
    pub struct UnknownZone(String);

    impl Zone {
        /// Coordinated universal time.
        pub const UTC: Self = Self { name: String::new(), rules: TimeZone::UTC };

        /// A zone of the IANA database, such as `Europe/Zurich`.
        pub fn named(name: &str) -> Result<Self, UnknownZone> {
            if name.eq_ignore_ascii_case("utc") {
                return Ok(Self::UTC);
            }
            let rules = TimeZoneDatabase::bundled().get(name).map_err(|_| UnknownZone(name.chars().take(64).collect()))?;
            Ok(Self { name: rules.iana_name().unwrap_or(name).to_owned(), rules })
        }

        /// Its name in the IANA database.
        pub fn name(&self) -> &str {
            if self.name.is_empty() { "UTC" } else { &self.name }
        }

        /// The first moment after the period that `now` is in. Later than `now`, and never where no calendar reaches.
        pub fn end_of(&self, period: Period, now: Timestamp) -> Timestamp {
            self.next_begin(period, now).filter(|end| *end > now).unwrap_or(Timestamp::MAX)
        }

        /// The day it is there at a moment, such as `2026-11-16`; empty where no calendar reaches.
        pub fn date(&self, now: Timestamp) -> String {
            self.today(now).map(|today| today.to_string()).unwrap_or_default()
        }

        /// The Monday of the week it is there at a moment, likewise.
        pub fn monday(&self, now: Timestamp) -> String {
            let monday = |today: Date| today.checked_sub(i64::from(today.weekday().to_monday_zero_offset()).days()).ok();
            self.today(now).and_then(monday).map(|monday| monday.to_string()).unwrap_or_default()
        }

        fn today(&self, now: Timestamp) -> Option<Date> {
            Some(Instant::from_millisecond(now.as_millis()).ok()?.to_zoned(self.rules.clone()).date())
        }

        fn next_begin(&self, period: Period, now: Timestamp) -> Option<Timestamp> {
            let today = self.today(now)?;
            let first: Date = match period {
                Period::Day => today.tomorrow().ok()?,
                Period::Week => today.checked_add((8 - i64::from(today.weekday().to_monday_one_offset())).days()).ok()?,
                Period::Month => today.first_of_month().checked_add(1.month()).ok()?,
            };
            // Where midnight is missing the day begins later, and where it comes twice with the first.
            let begins = first.to_zoned(self.rules.clone()).ok()?;
            Some(Timestamp::from_millis(begins.timestamp().as_millisecond()))
        }
    }

    impl Default for Zone {
        fn default() -> Self {
            Self::UTC
        }
    }

    impl TryFrom<String> for Zone {
        type Error = UnknownZone;

        fn try_from(name: String) -> Result<Self, UnknownZone> {
            Self::named(&name)
        }
    }

    impl From<Zone> for String {
        fn from(zone: Zone) -> Self {
            zone.name().to_owned()
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use proptest::prelude::*;

        fn at(text: &str) -> Timestamp {
            Timestamp::from_millis(text.parse::<Instant>().unwrap().as_millisecond())
        }

        #[test]
        fn days_have_as_many_hours_as_the_clock_on_the_wall() {
            for (zone, now, day, week, month) in [
                ("UTC", "2026-11-16T00:00:00Z", "2026-11-17T00:00:00Z", "2026-11-23T00:00:00Z", "2026-12-01T00:00:00Z"),
                ("UTC", "2026-11-15T23:59:59.999Z", "2026-11-16T00:00:00Z", "2026-11-16T00:00:00Z", "2026-12-01T00:00:00Z"),
                // 23 hours.
                ("Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-29T22:00:00Z", "2026-03-31T22:00:00Z"),
                // 25 hours; the week ends with them, the month with the other offset than it began with.
                ("Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-25T23:00:00Z", "2026-10-31T23:00:00Z"),
                ("America/New_York", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", "2026-03-09T04:00:00Z", "2026-04-01T04:00:00Z"),
                // No midnight: the clocks go from 23:59 to 01:00.
                ("America/Santiago", "2026-09-06T03:59:59Z", "2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z", "2026-10-01T03:00:00Z"),
                // Midnight twice.
                ("America/Havana", "2026-10-31T20:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", "2026-11-01T04:00:00Z"),
                // A day that never was.
                ("Pacific/Apia", "2011-12-30T09:00:00Z", "2011-12-30T10:00:00Z", "2012-01-01T10:00:00Z", "2011-12-31T10:00:00Z"),
            ] {
                let zone = Zone::named(zone).unwrap();
                for (period, end) in [(Period::Day, day), (Period::Week, week), (Period::Month, month)] {
                    assert_eq!(zone.end_of(period, at(now)), at(end), "{} {period} {now}", zone.name());
                }
            }
        }

        #[test]
        fn a_day_and_its_week_have_the_names_of_the_place() {
            let (berlin, late) = (Zone::named("Europe/Berlin").unwrap(), at("2026-11-15T23:30:00Z"));
            assert_eq!((Zone::UTC.date(late), Zone::UTC.monday(late)), ("2026-11-15".into(), "2026-11-09".into()));
            assert_eq!((berlin.date(late), berlin.monday(late)), ("2026-11-16".into(), "2026-11-16".into()));
            assert_eq!(Zone::UTC.date(Timestamp::MAX), "", "no calendar goes so far");
        }

        #[test]
        fn a_zone_is_its_name() {
            assert_eq!(serde_json::to_string(&Zone::named("europe/berlin").unwrap()).unwrap(), "\"Europe/Berlin\"");
            assert_eq!(serde_json::from_str::<Zone>("\"utc\"").unwrap(), Zone::UTC);
            let unknown = serde_json::from_str::<Zone>("\"Mars/Olympus\"").unwrap_err().to_string();
            assert!(unknown.starts_with("`Mars/Olympus` is no time zone"), "{unknown}");
            assert_eq!(Zone::UTC.end_of(Period::Month, Timestamp::MAX), Timestamp::MAX, "no calendar goes so far");
        }

        proptest! {
            /// Every moment has an end that is later, at most a period away, and the same for all moments up to it.
            #[test]
            fn periods_follow_each_other(
                millis in 0_i64..4_000_000_000_000,
                zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/Havana", "Asia/Kathmandu", "Australia/Lord_Howe"]),
                period in prop::sample::select(Period::ALL.to_vec()),
            ) {
                let (zone, now) = (Zone::named(zone).unwrap(), Timestamp::from_millis(millis));
                let end = zone.end_of(period, now);
                let days = match period { Period::Day => 1, Period::Week => 7, Period::Month => 31 };
                prop_assert!(end > now && end.millis_since(now) <= (days * 24 + 2) * 3_600_000);
                prop_assert_eq!(zone.end_of(period, Timestamp::from_millis(end.as_millis() - 1)), end);
                prop_assert!(zone.end_of(period, end) > end);
            }
        }
    }
}
