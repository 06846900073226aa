//! What is long for a kind of run, by how long others of its kind were.
//!
//! A length alone is no sign of anything. Beside another sign it is: a run that does not get on, and is longer than nine of ten others of
//! its kind, seldom comes to a good end. All runs count, good and failed alike, because a log knows how long they were and not what became
//! of them. What is ended for its length was longer than most, so that the runs that were ended do not make shorter ones look long.

use super::settings::{Ladder, StallSettings};

/// Runs of a kind from which on it is said what is long among them.
pub const LEAST_RUNS: usize = 30;
/// What this share of the runs of its kind stays within is no long run.
const SHARE: f64 = 0.90;
/// Nor is what goes a little beyond: one run in ten does, and most of those come to a good end as well. So much more it may be, in calls and in
/// tokens, which differ more from run to run, by what is read.
const ROOM_FOR_CALLS: (u64, u64) = (11, 10);
const ROOM_FOR_TOKENS: (u64, u64) = (7, 5);
/// Fewer calls are no long run of any kind.
const LEAST_CALLS: u32 = 8;

/// After how much a run is a long one of its kind; 0: that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Long {
    /// Calls that were made.
    pub calls: u32,
    /// Tokens that were used.
    pub tokens: u64,
}

impl Long {
    /// By the calls and the tokens of runs of one kind; 0 of either says nothing.
    ///
    /// ```
    /// use runguard_core::detect::stall::Long;
    ///
    /// let runs: Vec<(u64, u64)> = (1..=100).map(|calls| (calls, 1000 * calls)).collect();
    /// assert_eq!(Long::of(&runs), Long { calls: 99, tokens: 130_000 });
    /// assert_eq!(Long::of(&runs[..29]), Long::default());
    /// ```
    pub fn of(runs: &[(u64, u64)]) -> Self {
        let calls = Self::calls_of(runs.iter().map(|(calls, _)| *calls)).and_then(|calls| u32::try_from(calls).ok());
        Self { calls: calls.unwrap_or(0), tokens: Self::tokens_of(runs.iter().map(|(_, tokens)| *tokens)).unwrap_or(0) }
    }

    /// After how many calls a run is a long one, by those of others; `None` where too few are known.
    pub fn calls_of(calls: impl Iterator<Item = u64>) -> Option<u64> {
        most_and(calls, ROOM_FOR_CALLS)
    }

    /// The same of tokens: a number people would write, up to two digits.
    pub fn tokens_of(tokens: impl Iterator<Item = u64>) -> Option<u64> {
        let most = most_and(tokens, ROOM_FOR_TOKENS)?;
        let unit = 10_u64.pow(most.max(1).ilog10().saturating_sub(1));
        Some(most.div_ceil(unit).saturating_mul(unit))
    }

    /// Settings whose rule for long runs knows what is long. Whoever says it goes before what was learned, and where that rule says nothing it
    /// stays silent.
    #[must_use]
    pub fn over(self, settings: StallSettings) -> StallSettings {
        if !settings.takes_what_is_long() {
            return settings;
        }
        let settings = settings.long_run_tokens(self.tokens);
        if self.calls < LEAST_CALLS {
            return settings;
        }
        let calls = self.calls.min(LONGEST);
        settings.long_run(Ladder { steer: calls - calls / 8, block: 0, stop: calls + 1 })
    }
}

/// More calls than that no ladder counts.
const LONGEST: u32 = 999;

/// What most of these stay within, and the room above; those that are not known count for nothing.
fn most_and(amounts: impl Iterator<Item = u64>, (times, of): (u64, u64)) -> Option<u64> {
    let mut amounts: Vec<u64> = amounts.filter(|amount| *amount > 0).collect();
    if amounts.len() < LEAST_RUNS {
        return None;
    }
    let place = (amounts.len() as f64 * SHARE - 1e-9).ceil() as usize - 1;
    Some(amounts.select_nth_unstable(place).1.saturating_mul(times).div_ceil(of))
}

#[cfg(test)]
mod tests {
    use super::super::{Preset, StallRule};
    use super::*;

    #[test]
    fn what_is_long_is_said_from_thirty_runs_on_by_those_that_are_known() {
        let runs = |count: u64| (1..=count).map(|calls| (calls, 0)).collect::<Vec<_>>();
        assert_eq!((Long::of(&runs(29)), Long::of(&runs(30))), (Long::default(), Long { calls: 30, tokens: 0 }));
        let mixed: Vec<(u64, u64)> = runs(40).into_iter().map(|(calls, _)| (calls, if calls > 10 { 1_000 } else { 0 })).collect();
        assert_eq!(Long::of(&mixed), Long { calls: 40, tokens: 1_400 }, "thirty say how many tokens they used");
        assert_eq!(Long::tokens_of((1..=100).map(|number| 1234 * number)), Some(160_000), "155,484, up");
    }

    #[test]
    fn whoever_says_what_is_long_goes_before_what_was_learned() {
        let base = Preset::Coding.settings();
        let long = Long { calls: 80, tokens: 900_000 };
        let learned = long.over(base.clone());
        assert_eq!((learned.long_run, learned.long_run_tokens), (Ladder { steer: 70, block: 0, stop: 81 }, 900_000));
        assert!(learned.check().is_ok());
        let few = Long { calls: 7, tokens: 0 }.over(base.clone());
        assert_eq!((few.long_run, few.long_run_tokens), (base.long_run, 0), "seven calls are long for nobody");
        assert!(Long { calls: u32::MAX, tokens: 0 }.over(base.clone()).check().is_ok());
        for said in [
            base.clone().long_run_tokens(5),
            base.clone().long_run(Ladder { steer: 3, block: 0, stop: 9 }),
            base.clone().without(StallRule::LongRun),
            base.clone().long_run_learned(false),
        ] {
            assert_eq!(long.over(said.clone()), said);
        }
    }
}
