//! Whether thresholds chosen on some tasks of the benchmark hold on others.

use crate::evaluate::{FOLDS, FRONTIER_RUNS, NATIVE, Report, Tally};
use crate::rules::Contender;
use runguard_core::detect::stall::Ladder;
use runguard_core::limits::InvalidSetting;

/// Runs of native tools and of frontier models of which at most this share may be cut short.
const MAX_COSTLY: f64 = 0.01;
const MAX_COSTLY_INTERCODE: f64 = 0.005;

/// What of the detector is tuned: when a run is ended, and how far back novelty looks. The same for every preset here, so that
/// few numbers meet many runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    pub identical: u32,
    pub same_error: u32,
    pub messages: u32,
    pub novelty_window: u32,
}

impl Thresholds {
    pub fn grid() -> Vec<Self> {
        let mut grid = Vec::new();
        for identical in [3, 4, 5] {
            for same_error in [4, 5, 6, 8] {
                for messages in [3, 4] {
                    for novelty_window in [5, 6, 8] {
                        grid.push(Self { identical, same_error, messages, novelty_window });
                    }
                }
            }
        }
        grid
    }

    pub fn contender(self) -> Result<Contender, InvalidSetting> {
        Contender::runguard(&format!("{self:?}"), |mut settings| {
            settings.identical = Ladder { stop: self.identical, ..settings.identical };
            settings.same_error = Ladder { stop: self.same_error, ..settings.same_error };
            settings.messages = Ladder { stop: self.messages, ..settings.messages };
            settings.novelty_window = self.novelty_window;
            settings
        })
    }
}

/// The candidate that was chosen without looking at a fold.
#[derive(Debug, Clone, Copy)]
pub struct HeldOut {
    pub chosen: usize,
    pub fold: usize,
}

/// The candidate that saves most steps of failed runs among those that keep the price on these folds.
pub fn best(report: &Report, candidates: usize, wanted: impl Fn(usize) -> bool + Copy) -> Option<usize> {
    let rate = |tally: Tally| tally.costly_stop_rate().value.unwrap_or(0.0);
    let keeps = |candidate: usize| {
        rate(report.tally(NATIVE, candidate, wanted)) <= MAX_COSTLY
            && rate(report.tally(FRONTIER_RUNS, candidate, wanted)) <= MAX_COSTLY
            && rate(report.tally("intercode", candidate, wanted)) <= MAX_COSTLY_INTERCODE
    };
    // Long runs of one source must not outvote the others, so each source's share counts alike.
    let worth = |candidate: usize| -> f64 {
        ["openhands_swebench", "intercode"].iter().filter_map(|group| report.tally(group, candidate, wanted).saved().value).sum()
    };
    (0..candidates).filter(|candidate| keeps(*candidate)).max_by(|left, right| worth(*left).total_cmp(&worth(*right)))
}

/// For every fold the candidate that is best on the others.
pub fn cross_validate(report: &Report, candidates: usize) -> Vec<HeldOut> {
    (0..FOLDS).filter_map(|fold| best(report, candidates, |other| other != fold).map(|chosen| HeldOut { chosen, fold })).collect()
}

/// What the chosen ones do on the folds they were chosen without, together.
pub fn held_out(report: &Report, chosen: &[HeldOut], group: &str) -> Tally {
    let mut sum = Tally::default();
    for HeldOut { chosen, fold } in chosen {
        sum += &report.tally(group, *chosen, |at| at == *fold);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{ALL, evaluate};
    use std::io::Write;

    /// Runs of failing tasks that repeat one call eight times, and of successful ones that repeat it three times.
    fn traces() -> tempfile::NamedTempFile {
        let step = r#"{"kind":"call","tool":"sh","args_hash":"1","result":"x","result_hash":"2","result_len":1,"error":false}"#;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for index in 0..100 {
            let success = index % 2 == 0;
            let mut steps = vec![step; if success { 3 } else { 8 }];
            let other = step.replace("\"1\"", "\"3\"");
            steps.push(&other);
            let steps = steps.join(",");
            writeln!(
                file,
                r#"{{"run_id":"{index}","source":"intercode","task":"t{index}","success":{success},"labels":{{"native_tool_calls":true}},"steps":[{steps}]}}"#
            )
            .unwrap();
        }
        file
    }

    #[test]
    fn the_best_keeps_the_price_and_holds_where_it_was_not_chosen() {
        let file = traces();
        let grid = Thresholds::grid();
        let candidates: Vec<Contender> = grid.iter().map(|thresholds| thresholds.contender().unwrap()).collect();
        let report = evaluate(&[file.path().to_owned()], &candidates, 2);
        let chosen = cross_validate(&report, candidates.len());
        assert_eq!(chosen.len(), FOLDS);
        assert!(chosen.iter().all(|held| grid[held.chosen].identical == 4), "three would stop every good run, five would save less");
        let tally = held_out(&report, &chosen, ALL);
        assert_eq!((tally.failed, tally.stopped, tally.false_stops, tally.saved_steps), (50, 50, 0, 250));
    }
}
