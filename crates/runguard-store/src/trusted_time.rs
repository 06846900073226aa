//! Time that has really passed, as far as it can be known.
//!
//! What is old is removed for good, so a clock is not simply believed: one that was set 60 days ahead for a minute must not cost the
//! log. What is believed is the time that went by while the process ran. Where the clock differs from it (it was set, or the
//! machine was off or asleep) the difference counts once it has lasted a day: old things leave late then, but they leave.

use rusqlite::{Connection, OptionalExtension, params};

/// A clock may run this much ahead between two looks.
const SLACK_MILLIS: i64 = 60_000;
/// A difference that has lasted this long is believed.
const BELIEVED_AFTER_MILLIS: i64 = 24 * 3600 * 1000;

/// What it is kept under.
const KEPT: [&str; 3] = ["trusted_at", "trusted_off_by", "trusted_off_for"];

/// Kept over restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedTime {
    /// Milliseconds since 1970.
    pub at: i64,
    /// By how much the clock has differed all along, at least.
    pub off_by: i64,
    /// For how long, in time that passed.
    pub off_for: i64,
}

impl TrustedTime {
    /// To begin with: what is known to have happened is past.
    pub fn starting(told: i64, latest_known: Option<i64>) -> Self {
        Self { at: latest_known.map_or(told, |known| known.min(told)), off_by: 0, off_for: 0 }
    }

    /// What a file knows of it, in its table of progress.
    pub fn read(file: &Connection) -> Result<Option<Self>, rusqlite::Error> {
        let mut select = file.prepare_cached("SELECT value FROM progress WHERE name = ?1")?;
        let mut number = |name: &str| select.query_row([name], |row| row.get::<_, i64>(0)).optional();
        let [at, off_by, off_for] = [number(KEPT[0])?, number(KEPT[1])?, number(KEPT[2])?];
        Ok(at.map(|at| Self { at, off_by: off_by.unwrap_or(0), off_for: off_for.unwrap_or(0) }))
    }

    pub fn write(self, file: &Connection) -> Result<(), rusqlite::Error> {
        let mut put = file.prepare_cached("INSERT OR REPLACE INTO progress (name, value) VALUES (?1, ?2), (?3, ?4), (?5, ?6)")?;
        put.execute(params![KEPT[0], self.at, KEPT[1], self.off_by, KEPT[2], self.off_for])?;
        Ok(())
    }

    /// So much time has passed, and nobody has looked at the clock.
    pub fn wait(&mut self, elapsed: i64) -> i64 {
        self.at = self.at.saturating_add(elapsed.max(0));
        self.at
    }

    /// The clock says `told`, and `elapsed` milliseconds have passed since the last look. Gives the time that old things may go by.
    pub fn pass(&mut self, told: i64, elapsed: i64) -> i64 {
        let off = told.saturating_sub(self.wait(elapsed));
        if off.saturating_abs() <= SLACK_MILLIS {
            *self = Self { at: told, off_by: 0, off_for: 0 };
            return told;
        }
        if self.off_by.signum() == off.signum() {
            self.off_by = if off > 0 { self.off_by.min(off) } else { self.off_by.max(off) };
            self.off_for = self.off_for.saturating_add(elapsed.max(0));
        } else {
            (self.off_by, self.off_for) = (off, 0);
        }
        if self.off_for >= BELIEVED_AFTER_MILLIS {
            *self = Self { at: self.at.saturating_add(self.off_by), off_by: 0, off_for: 0 };
        }
        self.at.min(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const START: i64 = 1_700_000_000_000;

    #[test]
    fn a_clock_that_jumps_ahead_and_comes_back_is_not_believed() {
        let mut time = TrustedTime::starting(START, None);
        for minute in 1..=120 {
            let is_wrong = (30..90).contains(&minute);
            let told = START + minute * MINUTE + if is_wrong { 60 * DAY } else { 0 };
            assert!(time.pass(told, MINUTE) <= START + minute * MINUTE, "minute {minute}");
        }
    }

    #[test]
    fn a_machine_that_was_off_for_a_month_catches_up_in_a_day() {
        let mut time = TrustedTime::starting(START, Some(START - 40 * DAY));
        let caught_up = (0..1_000_000).find(|minute| time.pass(START + minute * MINUTE, MINUTE) >= START).unwrap();
        assert!((24 * 60..25 * 60).contains(&caught_up), "after {caught_up} minutes");
    }

    #[test]
    fn a_service_that_is_off_for_hours_every_day_stays_a_few_behind() {
        let mut time = TrustedTime::starting(START, None);
        let mut clock = START;
        for minute in 0..60 * DAY / MINUTE {
            clock += if minute % (22 * 60) == 0 { 2 * HOUR } else { MINUTE };
            let trusted = time.pass(clock, MINUTE);
            assert!(clock - trusted <= 6 * HOUR, "minute {minute}: {} ms behind", clock - trusted);
        }
    }

    #[test]
    fn a_clock_that_is_put_right_after_it_was_far_behind_is_believed_after_a_day() {
        let mut time = TrustedTime::starting(0, None);
        for minute in 1..=30 {
            assert_eq!(time.pass(minute * MINUTE, MINUTE), minute * MINUTE);
        }
        let caught_up = (0..1_000_000).find(|minute| time.pass(START + minute * MINUTE, MINUTE) >= START).unwrap();
        assert!(caught_up < 25 * 60, "after {caught_up} minutes");
    }

    #[test]
    fn a_start_with_the_clock_at_1970_frees_nothing_and_forgets_nothing() {
        let mut time = TrustedTime::starting(START, None);
        for minute in 0..5 {
            assert_eq!(time.pass(minute * MINUTE, MINUTE), minute * MINUTE, "while the clock is behind, nothing is old");
        }
        assert_eq!(time.pass(START + 6 * MINUTE, MINUTE), START + 6 * MINUTE);
    }

    proptest! {
        /// However the clock is set, nothing goes by a time that the clock does not say, and without a day of waiting by none
        /// that has not passed.
        #[test]
        fn it_is_never_ahead(sets in prop::collection::vec((-100 * DAY..100 * DAY, 1_i64..20), 1..40)) {
            let mut time = TrustedTime::starting(START, None);
            let (mut passed, mut longest) = (0, 0);
            for (off, minutes) in sets {
                longest += minutes * MINUTE;
                for _ in 0..minutes {
                    passed += MINUTE;
                    let trusted = time.pass(START + passed + off, MINUTE);
                    prop_assert!(trusted <= START + passed + off);
                    if longest < DAY {
                        // Each look may add the slack.
                        prop_assert!(trusted <= START + 2 * passed, "{} ms ahead", trusted - START - passed);
                    }
                }
            }
        }
    }
}
