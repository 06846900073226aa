//! Every combination of thresholds that is tried, and those among them that nothing beats.
//!
//! The detector's rules do not hear of each other: what one has counted does not depend on the thresholds of another. So a
//! combination ends a run where the first of its parts would, and it is enough to watch each run with one detector for each
//! value of each rule, some twenty of them for thousands of combinations. A property test holds this against the whole
//! detector.

use runguard_core::detect::stall::{Ladder, Rung, StallRule, StallSettings};
use runguard_core::limits::InvalidSetting;
use serde::Serialize;
use std::fmt;

/// Rules that are tuned, in the order in which their parts stand in a candidate.
pub const RULES: [StallRule; StallRule::ALL.len()] = StallRule::ALL;
/// How many there are.
pub const TUNED: usize = RULES.len();
/// Values of one rule; more would be a finer grid than runs can tell apart.
pub const MAX_PARTS: usize = 16;

/// One value of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Off,
    /// The count that ends a run.
    Stop(u32),
    /// The calls, 0 for any number, or the tokens that end a long run.
    Long {
        calls: u32,
        tokens: u64,
    },
    /// At most so many new ones among so many.
    Novelty {
        window: u32,
        max_new: u32,
    },
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Stop(count) => write!(f, "{count}"),
            Self::Long { calls: 0, tokens } => write!(f, "{tokens}t"),
            Self::Long { calls, tokens } => write!(f, "{calls}+{tokens}t"),
            Self::Novelty { window, max_new } => write!(f, "{max_new} of {window}"),
        }
    }
}

impl Part {
    /// How much it takes to end a run: of two that do the same, the one that takes more is the safer.
    fn patience(self) -> u32 {
        match self {
            Self::Off => u32::MAX,
            Self::Stop(count) => count,
            Self::Long { calls: 0, tokens } => u32::try_from(tokens).unwrap_or(u32::MAX).min(u32::MAX - 1),
            Self::Long { calls, .. } => calls,
            Self::Novelty { window, max_new } => window - max_new,
        }
    }

    fn of(settings: &StallSettings, rule: StallRule) -> Self {
        let Some(Ladder { stop, .. }) = settings.clone().ladder_mut(rule).copied() else {
            let stops = settings.novelty_window > 0 && settings.novelty_rung == Rung::Stop;
            let (window, max_new) = (settings.novelty_window, settings.novelty_max_new);
            return if stops { Self::Novelty { window, max_new } } else { Self::Off };
        };
        match (rule, settings.long_run_tokens) {
            (StallRule::LongRun, tokens @ 1..) => Self::Long { calls: stop, tokens },
            _ if stop == 0 => Self::Off,
            _ => Self::Stop(stop),
        }
    }

    fn apply(self, rule: StallRule, settings: &mut StallSettings) {
        if rule == StallRule::LongRun {
            settings.long_run_tokens = if let Self::Long { tokens, .. } = self { tokens } else { 0 };
        }
        let Some(ladder) = settings.ladder_mut(rule) else {
            let (window, max_new) = if let Self::Novelty { window, max_new } = self { (window, max_new) } else { (0, 0) };
            (settings.novelty_window, settings.novelty_max_new, settings.novelty_rung) = (window, max_new, Rung::Stop);
            return;
        };
        *ladder = match self {
            // The model is told before it is stopped, as far as there is a before.
            Self::Stop(stop) | Self::Long { calls: stop @ 1.., .. } => {
                let before = |rung: u32| if rung < stop { rung } else { stop - 1 };
                let steer = before(ladder.steer);
                Ladder { steer: if steer > 1 { steer } else { 0 }, block: if ladder.block < stop { ladder.block } else { 0 }, stop }
            }
            Self::Off | Self::Long { .. } | Self::Novelty { .. } => Ladder { stop: 0, ..*ladder },
        };
    }
}

/// The values that are tried for each rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    base: StallSettings,
    /// One list a rule, as in [`RULES`].
    axes: [Vec<Part>; TUNED],
}

/// Settings of which the runs can tell the price: they stop, and nothing is added to them by what a log would teach.
fn priced(settings: StallSettings) -> StallSettings {
    settings.highest(Rung::Stop).long_run_learned(false)
}

/// A combination: for each rule which of its values.
pub type Candidate = [u8; TUNED];

impl Grid {
    /// What is tried when nothing is said: for each rule never, what the settings say, and values around what is usual.
    pub fn around(base: StallSettings) -> Self {
        let stops = |counts: &[u32]| counts.iter().map(|count| Part::Stop(*count)).collect::<Vec<_>>();
        let axes = RULES.map(|rule| {
            let mut parts = match rule {
                StallRule::Identical | StallRule::SameError => stops(&[3, 4, 5, 6, 8]),
                StallRule::Cycle | StallRule::Messages => stops(&[3, 4, 5]),
                // As they are, unless other values are asked for: what they look for is rare, and every axis multiplies the others.
                StallRule::Unmoved | StallRule::PutBack | StallRule::SameResult | StallRule::Failing | StallRule::LongRun => {
                    return vec![Part::of(&base, rule)];
                }
                StallRule::Novelty => [(5, 1), (6, 1), (8, 1), (10, 2)].map(|(window, max_new)| Part::Novelty { window, max_new }).to_vec(),
            };
            parts.extend([Part::Off, Part::of(&base, rule)]);
            tidy(parts)
        });
        Self { base: priced(base), axes }
    }

    /// [`Self::around`] for runs of several kinds: also what each of their settings says.
    pub fn around_all(bases: &[StallSettings]) -> Self {
        let mut grid = Self::around(bases.first().cloned().unwrap_or_default());
        for (axis, rule) in grid.axes.iter_mut().zip(RULES) {
            axis.extend(bases.iter().map(|base| Part::of(base, rule)));
            *axis = tidy(std::mem::take(axis));
        }
        grid
    }

    /// The same values, with everything else as these settings have it.
    #[must_use]
    pub fn with_base(&self, base: StallSettings) -> Self {
        Self { base: priced(base), axes: self.axes.clone() }
    }

    /// What is nearest to the settings as they are.
    pub fn nearest(&self) -> Candidate {
        (0..self.len()).map(|index| self.candidate(index)).min_by_key(|candidate| self.distance(*candidate)).unwrap_or_default()
    }

    /// Tries these values of a rule, and no others.
    pub fn only(&mut self, rule: StallRule, parts: Vec<Part>) -> Result<(), InvalidSetting> {
        let parts = tidy(parts);
        if parts.is_empty() || parts.len() > MAX_PARTS {
            return Err(InvalidSetting::new("grid", format!("needs from 1 to {MAX_PARTS} values for {}", rule.code())));
        }
        for part in &parts {
            let mut settings = self.base.clone();
            part.apply(rule, &mut settings);
            settings.check()?;
        }
        self.axes[place(rule)] = parts;
        Ok(())
    }

    /// Tries this value of a rule too, if there is room for it.
    pub fn also(&mut self, rule: StallRule, part: Part) {
        let mut settings = self.base.clone();
        part.apply(rule, &mut settings);
        let axis = &mut self.axes[place(rule)];
        if axis.len() < MAX_PARTS && settings.check().is_ok() {
            axis.push(part);
            *axis = tidy(std::mem::take(axis));
        }
    }

    pub fn base(&self) -> &StallSettings {
        &self.base
    }

    pub fn axes(&self) -> impl Iterator<Item = (StallRule, &[Part])> {
        RULES.into_iter().zip(self.axes.iter().map(Vec::as_slice))
    }

    pub fn len(&self) -> usize {
        self.axes.iter().map(Vec::len).product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn candidate(&self, index: usize) -> Candidate {
        let mut rest = index;
        let mut candidate = [0; TUNED];
        for (part, axis) in candidate.iter_mut().zip(&self.axes).rev() {
            *part = (rest % axis.len()) as u8;
            rest /= axis.len();
        }
        candidate
    }

    pub fn parts(&self, candidate: Candidate) -> [Part; TUNED] {
        let mut parts = [Part::Off; TUNED];
        for ((part, axis), chosen) in parts.iter_mut().zip(&self.axes).zip(candidate) {
            *part = axis[usize::from(chosen)];
        }
        parts
    }

    pub fn settings(&self, candidate: Candidate) -> StallSettings {
        let mut settings = self.base.clone();
        for (rule, part) in RULES.into_iter().zip(self.parts(candidate)) {
            part.apply(rule, &mut settings);
        }
        settings
    }

    /// Rules in which it differs from the settings the grid was made around, and then how patient it is.
    pub fn distance(&self, candidate: Candidate) -> (usize, std::cmp::Reverse<u64>) {
        let parts = self.parts(candidate);
        let changed = RULES.into_iter().zip(parts).filter(|(rule, part)| *part != Part::of(&self.base, *rule)).count();
        (changed, std::cmp::Reverse(parts.iter().map(|part| u64::from(part.patience())).sum()))
    }

    /// In which of [`Self::probes`] each part of a candidate is found; one that is off is in none.
    pub fn probes_of(&self, candidate: Candidate) -> [Option<usize>; TUNED] {
        let mut found = [None; TUNED];
        let mut first = 0;
        for ((found, axis), chosen) in found.iter_mut().zip(&self.axes).zip(candidate) {
            let is_on = |part: &Part| *part != Part::Off;
            let before = axis[..usize::from(chosen)].iter().filter(|part| is_on(part)).count();
            *found = is_on(&axis[usize::from(chosen)]).then_some(first + before);
            first += axis.iter().filter(|part| is_on(part)).count();
        }
        found
    }

    /// Settings for each value of each rule, with every other rule off.
    pub fn probes(&self) -> Result<Vec<StallSettings>, InvalidSetting> {
        let mut probes = Vec::new();
        for (rule, axis) in RULES.into_iter().zip(&self.axes) {
            for part in axis.iter().filter(|part| **part != Part::Off) {
                // The rule's own nudges stay: which round of calls is looked at depends on the lowest of its thresholds.
                let mut settings = self.base.clone();
                part.apply(rule, &mut settings);
                let settings = only(rule, settings);
                settings.check()?;
                probes.push(settings);
            }
        }
        Ok(probes)
    }
}

fn place(rule: StallRule) -> usize {
    RULES.iter().position(|known| *known == rule).unwrap_or(0)
}

fn tidy(mut parts: Vec<Part>) -> Vec<Part> {
    // Of two windows with the same patience the smaller one first, so that equals stand side by side.
    let window = |part: &Part| if let Part::Novelty { window, .. } = part { *window } else { 0 };
    parts.sort_by_key(|part| (part.patience(), window(part)));
    parts.dedup();
    parts
}

/// One rule, with all others off.
pub(crate) fn only(rule: StallRule, settings: StallSettings) -> StallSettings {
    RULES.into_iter().filter(|other| *other != rule).fold(settings, StallSettings::without)
}

/// What a candidate came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub candidate: usize,
    pub false_stops: u64,
    pub saved: f64,
}

/// Those that no other beats: each saves more than every one that stops fewer or as many good runs. The cheapest first. Of
/// equals the one that comes first in `order`.
pub fn pareto<K: Ord>(points: &[Point], order: impl Fn(usize) -> K) -> Vec<Point> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|left, right| {
        (left.false_stops.cmp(&right.false_stops))
            .then(right.saved.total_cmp(&left.saved))
            .then_with(|| order(left.candidate).cmp(&order(right.candidate)))
    });
    let mut front: Vec<Point> = Vec::new();
    for point in sorted {
        if front.last().is_none_or(|last| point.saved > last.saved) {
            front.push(point);
        }
    }
    front
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::rules::observe;
    use crate::trace::{Kind, Step};
    use proptest::prelude::*;
    use runguard_core::detect::stall::{CallEffect, Preset, StallState};

    fn point(candidate: usize, false_stops: u64, saved: f64) -> Point {
        Point { candidate, false_stops, saved }
    }

    #[test]
    fn what_another_beats_is_not_on_the_front() {
        let points = [point(0, 0, 1.0), point(1, 2, 5.0), point(2, 2, 4.0), point(3, 1, 1.0), point(4, 7, 9.0), point(5, 8, 9.0)];
        let front: Vec<usize> = pareto(&points, |candidate| candidate).iter().map(|point| point.candidate).collect();
        assert_eq!(front, [0, 1, 4]);
        let equals = [point(0, 1, 3.0), point(1, 1, 3.0)];
        assert_eq!(pareto(&equals, std::cmp::Reverse)[0].candidate, 1, "of equals the one that is preferred");
        assert!(pareto(&[], |candidate| candidate).is_empty());
    }

    #[test]
    fn every_combination_comes_once_and_the_preset_is_among_them() {
        for preset in Preset::ALL {
            let grid = Grid::around(preset.settings());
            let mut all: Vec<[Part; TUNED]> = (0..grid.len()).map(|index| grid.parts(grid.candidate(index))).collect();
            assert!(all.len() > 1000);
            let nearest = (0..grid.len()).min_by_key(|index| grid.distance(grid.candidate(*index))).unwrap();
            assert_eq!(grid.settings(grid.candidate(nearest)), priced(preset.settings()));
            assert!((0..grid.len()).all(|index| grid.settings(grid.candidate(index)).check().is_ok()));
            all.sort_by_key(|parts| format!("{parts:?}"));
            all.dedup();
            assert_eq!(all.len(), grid.len());
        }
    }

    #[test]
    fn the_model_is_told_before_it_is_stopped() {
        let mut settings = Preset::Coding.settings();
        Part::Stop(3).apply(StallRule::Identical, &mut settings);
        assert_eq!(settings.identical, Ladder { steer: 2, block: 0, stop: 3 });
        Part::Stop(2).apply(StallRule::Identical, &mut settings);
        assert_eq!(settings.identical, Ladder { steer: 0, block: 0, stop: 2 });
        Part::Off.apply(StallRule::SameError, &mut settings);
        assert_eq!(settings.same_error, Ladder { steer: 3, block: 0, stop: 0 });
        Part::Off.apply(StallRule::Novelty, &mut settings);
        assert_eq!(settings.novelty_window, 0);
        let steer = settings.long_run.steer;
        let long = |calls, tokens| Part::Long { calls, tokens };
        long(0, 9_000).apply(StallRule::LongRun, &mut settings);
        assert_eq!((settings.long_run, settings.long_run_tokens), (Ladder { steer, block: 0, stop: 0 }, 9_000));
        long(50, 9_000).apply(StallRule::LongRun, &mut settings);
        assert_eq!(
            (settings.long_run, Part::of(&settings, StallRule::LongRun)),
            (Ladder { steer: 49, block: 0, stop: 50 }, long(50, 9_000))
        );
        Part::Stop(50).apply(StallRule::LongRun, &mut settings);
        assert_eq!((settings.long_run_tokens, Part::of(&settings, StallRule::LongRun)), (0, Part::Stop(50)));
    }

    #[test]
    fn a_grid_of_ones_own_is_checked() {
        let mut grid = Grid::around(Preset::Coding.settings());
        assert!(grid.only(StallRule::Identical, vec![Part::Stop(1)]).is_err(), "one step is never a stall");
        assert!(grid.only(StallRule::Identical, Vec::new()).is_err());
        grid.only(StallRule::Identical, vec![Part::Stop(9), Part::Stop(4), Part::Stop(9)]).unwrap();
        assert_eq!(grid.axes().next().unwrap().1, [Part::Stop(4), Part::Stop(9)]);
    }

    pub(crate) fn step(kind: u64, args: u64, result: u64) -> Step {
        Step {
            kind: if kind == 0 { Kind::Message } else { Kind::Call },
            tool: ["", "read", "edit_file", "wait", "sql"][kind as usize].into(),
            args,
            result: (result < 3).then_some(result),
            error: (kind == 4 && result > 0).then_some(result),
            effect: match kind {
                1 => CallEffect::Looks,
                2 => CallEffect::Edits { file: 1, by: if args == 0 { 7 } else { 7_u64.wrapping_neg() } },
                4 => CallEffect::Runs,
                _ => CallEffect::Unknown,
            },
            round: None,
            spoke: None,
            tokens: 100 * (kind + args),
            dollars: 0.0,
            at_millis: None,
            texts: None,
        }
    }

    fn first_stop(settings: &StallSettings, steps: &[Step]) -> Option<usize> {
        let mut state = StallState::default();
        steps.iter().position(|step| observe(&mut state, settings, step, Preset::Coding).rung == Rung::Stop)
    }

    proptest! {
        /// A combination ends a run where the first of its parts does.
        #[test]
        fn parts_make_the_whole(
            steps in prop::collection::vec((0_u64..5, 0_u64..3, 0_u64..4), 0..60), candidates in prop::collection::vec(0_usize..1_000_000, 12)
        ) {
            let steps: Vec<Step> = steps.into_iter().map(|(kind, args, result)| step(kind, args, result)).collect();
            let mut grid = Grid::around(Preset::Coding.settings());
            let long = |calls, tokens| Part::Long { calls, tokens };
            grid.only(StallRule::LongRun, vec![Part::Off, Part::Stop(30), long(0, 4_000), long(20, 8_000)]).unwrap();
            let stops: Vec<Option<usize>> = grid.probes().unwrap().iter().map(|probe| first_stop(probe, &steps)).collect();
            for index in candidates {
                let candidate = grid.candidate(index % grid.len());
                let whole = first_stop(&grid.settings(candidate), &steps);
                let first = grid.probes_of(candidate).into_iter().flatten().filter_map(|probe| stops[probe]).min();
                prop_assert_eq!(whole, first, "{:?}", grid.parts(candidate));
            }
        }
    }
}
