//! What rules did to runs, added up.
//!
//! One thread reads, and what it reads goes in batches to threads that parse and judge: parsing is most of the work. The
//! batches are bounded in number and in size, so memory is the same for any file.

mod reading;

pub use reading::{Instead, LeftAlone, Order, Progress, Reading, Recorded, Unread, Worker, bytes_on_disk, each_run};

use crate::labels::Labels;
use crate::rules::Contender;
use crate::trace::{Broken, Detail, Run, Step};
use runguard_core::detect::stall::{Long, StallSettings};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Parts the tasks are dealt into; all runs of a task fall into the same one.
pub const FOLDS: usize = 5;
/// Of a normal distribution 95 % lie within this many deviations.
pub(crate) const Z: f64 = 1.959_964;

/// Sums over runs. A successful run that is stopped at all counts as a false stop, even where nothing followed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Tally {
    pub successful: u64,
    pub false_stops: u64,
    /// Of the false stops those after which the run did something: the others took nothing away.
    pub costly_stops: u64,
    pub successful_steps: u64,
    pub lost_steps: u64,
    pub lost_tokens: u64,
    pub lost_dollars: f64,
    pub failed: u64,
    pub stopped: u64,
    pub failed_steps: u64,
    pub failed_tokens: u64,
    pub failed_dollars: f64,
    pub saved_steps: u64,
    pub saved_tokens: u64,
    pub saved_dollars: f64,
    /// Runs that the agent's own detector ended, whatever became of them.
    pub stuck: u64,
    pub stuck_found: u64,
    /// Neither known to have succeeded nor to have failed.
    pub unknown: u64,
    pub unknown_stopped: u64,
    pub unknown_steps: u64,
    /// What comes after the stop of those: it would not have been spent, and nobody knows whether it was worth it.
    pub unknown_after_steps: u64,
    pub unknown_after_tokens: u64,
    pub unknown_after_dollars: f64,
    /// For the deviation of the share of steps saved: sums of saved², saved × steps and steps².
    #[serde(skip)]
    squares: [f64; 3],
    /// The same of steps lost.
    #[serde(skip)]
    lost_squares: [f64; 3],
    #[serde(skip)]
    unknown_squares: [f64; 3],
}

/// What steps cost, on a grid of 2⁻³⁰ dollars: sums of such amounts are exact (up to eight million dollars), so that the order
/// in which threads add them up changes nothing.
pub(crate) fn dollars_of(steps: &[Step]) -> f64 {
    const GRID: f64 = (1_u64 << 30) as f64;
    (steps.iter().map(|step| step.dollars).sum::<f64>() * GRID).round() / GRID
}

pub(crate) fn tokens_of(steps: &[Step]) -> u64 {
    steps.iter().fold(0, |sum, step| sum.saturating_add(step.tokens))
}

fn squares_of(part: u64, whole: u64) -> [f64; 3] {
    let (part, whole) = (part as f64, whole as f64);
    [part * part, part * whole, whole * whole]
}

impl Tally {
    /// What stopping a run comes to, where the steps that a stop would have spared are told.
    pub fn of(run: &Run, spared: Option<&[Step]>) -> Self {
        let mut tally = Self::default();
        let steps = run.steps.len() as u64;
        let stopped = u64::from(spared.is_some());
        let after = spared.unwrap_or_default();
        match run.success {
            Some(true) => {
                tally.successful = 1;
                tally.false_stops = stopped;
                tally.costly_stops = u64::from(!after.is_empty());
                tally.successful_steps = steps;
                tally.lost_steps = after.len() as u64;
                tally.lost_tokens = tokens_of(after);
                tally.lost_dollars = dollars_of(after);
                tally.lost_squares = squares_of(tally.lost_steps, steps);
            }
            Some(false) => {
                tally.failed = 1;
                tally.stopped = stopped;
                tally.failed_steps = steps;
                tally.failed_tokens = tokens_of(&run.steps);
                tally.failed_dollars = dollars_of(&run.steps);
                tally.saved_steps = after.len() as u64;
                tally.saved_tokens = tokens_of(after);
                tally.saved_dollars = dollars_of(after);
                tally.squares = squares_of(tally.saved_steps, steps);
            }
            None => {
                tally.unknown = 1;
                tally.unknown_stopped = stopped;
                tally.unknown_steps = steps;
                tally.unknown_after_steps = after.len() as u64;
                tally.unknown_after_tokens = tokens_of(after);
                tally.unknown_after_dollars = dollars_of(after);
                tally.unknown_squares = squares_of(tally.unknown_after_steps, steps);
            }
        }
        if run.stuck == Some(true) {
            tally.stuck = 1;
            tally.stuck_found = stopped;
        }
        tally
    }

    pub fn false_stop_rate(&self) -> Share {
        Share::of(self.false_stops, self.successful)
    }

    pub fn costly_stop_rate(&self) -> Share {
        Share::of(self.costly_stops, self.successful)
    }

    pub fn stop_rate(&self) -> Share {
        Share::of(self.stopped, self.failed)
    }

    /// Of the runs it stopped, those that failed.
    pub fn precision(&self) -> Share {
        Share::of(self.stopped, self.stopped + self.false_stops)
    }

    pub fn recall(&self) -> Share {
        Share::of(self.stuck_found, self.stuck)
    }

    /// Of the steps of failed runs, those that would not have been made.
    pub fn saved(&self) -> Share {
        share_of_steps(self.saved_steps, self.failed_steps, self.failed, self.squares)
    }

    /// Of the tokens of failed runs, those that would not have been spent. A few long runs make most of them.
    pub fn saved_tokens_share(&self) -> Option<f64> {
        ratio(self.saved_tokens, self.failed_tokens)
    }

    /// Of the steps of successful runs, those that would not have been made.
    pub fn lost(&self) -> Share {
        share_of_steps(self.lost_steps, self.successful_steps, self.successful, self.lost_squares)
    }

    /// Of the steps of runs whose end is not known, those that would not have been made.
    pub fn unknown_after(&self) -> Share {
        share_of_steps(self.unknown_after_steps, self.unknown_steps, self.unknown, self.unknown_squares)
    }

    /// All that would not have been done after stops, whatever became of the runs: steps, tokens, dollars.
    pub fn after(&self) -> (u64, u64, f64) {
        (
            self.saved_steps + self.lost_steps + self.unknown_after_steps,
            self.saved_tokens.saturating_add(self.lost_tokens).saturating_add(self.unknown_after_tokens),
            self.saved_dollars + self.lost_dollars + self.unknown_after_dollars,
        )
    }
}

/// The steps of one run hang together, so the deviation is that of a ratio over runs.
fn share_of_steps(part: u64, whole: u64, runs: u64, [part_part, part_whole, whole_whole]: [f64; 3]) -> Share {
    let Some(value) = ratio(part, whole) else { return Share::default() };
    let count = runs as f64;
    let residual = (part_part - 2.0 * value * part_whole + value * value * whole_whole).max(0.0);
    let deviation = if runs > 1 { (residual * count / (count - 1.0)).sqrt() / whole as f64 } else { 1.0 };
    Share { value: Some(value), low: (value - Z * deviation).max(0.0), high: (value + Z * deviation).min(1.0) }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        self.successful += other.successful;
        self.false_stops += other.false_stops;
        self.costly_stops += other.costly_stops;
        self.successful_steps += other.successful_steps;
        self.lost_steps += other.lost_steps;
        self.lost_tokens += other.lost_tokens;
        self.lost_dollars += other.lost_dollars;
        self.failed += other.failed;
        self.stopped += other.stopped;
        self.failed_steps += other.failed_steps;
        self.failed_tokens += other.failed_tokens;
        self.failed_dollars += other.failed_dollars;
        self.saved_steps += other.saved_steps;
        self.saved_tokens += other.saved_tokens;
        self.saved_dollars += other.saved_dollars;
        self.stuck += other.stuck;
        self.stuck_found += other.stuck_found;
        self.unknown += other.unknown;
        self.unknown_stopped += other.unknown_stopped;
        self.unknown_steps += other.unknown_steps;
        self.unknown_after_steps += other.unknown_after_steps;
        self.unknown_after_tokens += other.unknown_after_tokens;
        self.unknown_after_dollars += other.unknown_after_dollars;
        let squares = self.squares.iter_mut().chain(&mut self.lost_squares).chain(&mut self.unknown_squares);
        for (sum, more) in squares.zip(other.squares.iter().chain(&other.lost_squares).chain(&other.unknown_squares)) {
            *sum += more;
        }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A share with its 95 % confidence interval; no value when it is of nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Share {
    pub value: Option<f64>,
    pub low: f64,
    pub high: f64,
}

impl Share {
    /// With Wilson's interval, which holds for few runs and near 0 and 1.
    pub fn of(part: u64, whole: u64) -> Self {
        Self::of_weighted(part as f64, whole as f64)
    }

    /// The same for runs that hang together and count for less than one each.
    pub fn of_weighted(part: f64, whole: f64) -> Self {
        if whole <= 0.0 {
            return Self::default();
        }
        let value = part / whole;
        let spread = Z * Z / whole;
        let middle = (value + spread / 2.0) / (1.0 + spread);
        let half = Z / (1.0 + spread) * (value * (1.0 - value) / whole + spread / (4.0 * whole)).sqrt();
        Self { value: Some(value), low: (middle - half).max(0.0), high: (middle + half).min(1.0) }
    }
}

/// Runs that are looked at together. A run can be in several groups.
pub fn groups(run: &Run) -> Vec<&str> {
    let mut groups = vec![ALL, run.source.as_str()];
    let native = run.native_tools == Some(true);
    let frontier = FRONTIER.contains(&run.model.as_str());
    match run.native_tools {
        Some(true) => groups.push(NATIVE),
        Some(false) => groups.push(TEXT),
        None => {}
    }
    if frontier {
        groups.push(FRONTIER_RUNS);
    }
    if native || frontier {
        groups.push(NATIVE_OR_FRONTIER);
    }
    groups
}

pub const ALL: &str = "all";
pub const NATIVE: &str = "openhands, native tools";
pub const TEXT: &str = "openhands, calls in text";
pub const FRONTIER_RUNS: &str = "frontier models";
pub const NATIVE_OR_FRONTIER: &str = "native tools or frontier";

/// Models that were among the best when they were recorded, with tools of their own; by name, so that no label is needed.
const FRONTIER: [&str; 6] =
    ["claude-3-5-sonnet-20241022", "claude-sonnet-4-20250514", "gemini-3-pro-preview", "gpt-4.1", "o1_high_fc", "o4-mini"];

pub(crate) fn fold_of(task: &str) -> usize {
    (xxh3_64(task.as_bytes()) % FOLDS as u64) as usize
}

/// What every contender did to every group.
#[derive(Debug, Default)]
pub struct Report {
    /// By group, then by contender in the order they came, then by fold.
    tallies: BTreeMap<String, Vec<[Tally; FOLDS]>>,
    pub runs: u64,
    pub steps: u64,
    /// The first of them.
    pub broken: Vec<Broken>,
    pub broken_lines: u64,
}

impl Report {
    fn add(&mut self, contenders: &[Contender], run: &Run) {
        self.runs += 1;
        self.steps += run.steps.len() as u64;
        let fold = fold_of(&run.task);
        let outcomes: Vec<Tally> =
            contenders.iter().map(|contender| Tally::of(run, contender.stop(run).map(|at| run.spared(at)))).collect();
        for group in groups(run) {
            if !self.tallies.contains_key(group) {
                self.tallies.insert(group.to_owned(), vec![Default::default(); contenders.len()]);
            }
            let Some(tallies) = self.tallies.get_mut(group) else { continue };
            for (folds, outcome) in tallies.iter_mut().zip(&outcomes) {
                folds[fold] += outcome;
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        for (group, tallies) in other.tallies {
            let mine = self.tallies.entry(group).or_insert_with(|| vec![Default::default(); tallies.len()]);
            for (mine, theirs) in mine.iter_mut().flatten().zip(tallies.iter().flatten()) {
                *mine += theirs;
            }
        }
    }

    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.tallies.keys().map(String::as_str)
    }

    /// Of a contender on a group, over the folds that are wanted.
    pub fn tally(&self, group: &str, contender: usize, wanted: impl Fn(usize) -> bool) -> Tally {
        let mut sum = Tally::default();
        let folds = self.tallies.get(group).and_then(|contenders| contenders.get(contender));
        for (_, tally) in folds.into_iter().flatten().enumerate().filter(|(fold, _)| wanted(*fold)) {
            sum += tally;
        }
        sum
    }
}

/// How long the runs of each kind were, whatever became of them: what a run of that kind may be held against.
#[derive(Debug, Default)]
pub struct Lengths(BTreeMap<(String, String), Vec<Length>>);

#[derive(Debug, Clone, Copy)]
struct Length {
    fold: usize,
    calls: u64,
    /// 0 where the source does not say.
    tokens: u64,
}

impl Length {
    const fn used(&self) -> (u64, u64) {
        (self.calls, self.tokens)
    }
}

impl Worker for Lengths {
    fn run(&mut self, run: Run, _: Order) {
        let length = Length { fold: fold_of(&run.task), calls: run.calls(), tokens: tokens_of(&run.steps) };
        self.0.entry((run.source, run.model)).or_default().push(length);
    }
}

impl Lengths {
    pub fn of(files: &[PathBuf], threads: usize) -> Self {
        let labels = Labels::default();
        Self::of_runs(&Reading {
            recorded: Recorded::of(files, &labels),
            detail: Detail::FINGERPRINTS,
            threads,
            progress: &Progress::default(),
        })
    }

    /// The same of runs however they are read.
    pub fn of_runs(reading: &Reading<'_>) -> Self {
        let mut all = Self::default();
        for worker in each_run(reading, Self::default).0 {
            for (kind, lengths) in worker.0 {
                all.0.entry(kind).or_default().extend(lengths);
            }
        }
        all
    }

    /// After how much a run of each kind is a long one, by source and model, as a log knows it that has them all.
    pub(crate) fn known(&self) -> BTreeMap<(String, String), Long> {
        let long = |lengths: &Vec<Length>| Long::of(&lengths.iter().map(Length::used).collect::<Vec<_>>());
        self.0.iter().map(|(kind, lengths)| (kind.clone(), long(lengths))).filter(|(_, long)| *long != Long::default()).collect()
    }

    /// The same for one run, by runs of other tasks.
    fn long(&self, run: &Run) -> Long {
        let fold = fold_of(&run.task);
        let lengths = self.0.get(&(run.source.clone(), run.model.clone())).map(Vec::as_slice).unwrap_or_default();
        Long::of(&lengths.iter().filter(|length| length.fold != fold).map(Length::used).collect::<Vec<_>>())
    }

    /// Settings whose rule for long runs knows how long runs of this kind are, by tasks other than this run's.
    pub(crate) fn settings(&self, run: &Run, settings: StallSettings) -> StallSettings {
        self.long(run).over(settings)
    }

    /// RunGuard with such settings, measured on tasks it was not told of.
    pub fn contender(self, name: &str) -> Contender {
        Contender::runguard_by_kind(name, move |run, settings| self.settings(run, settings))
    }
}

/// Runs every contender over every run of the files, on so many threads.
pub fn evaluate(files: &[PathBuf], contenders: &[Contender], threads: usize) -> Report {
    struct Adds<'a> {
        contenders: &'a [Contender],
        report: Report,
    }
    impl Worker for Adds<'_> {
        fn run(&mut self, run: Run, _: Order) {
            self.report.add(self.contenders, &run);
        }
    }
    let labels = Labels::default();
    let reading = Reading { recorded: Recorded::of(files, &labels), detail: Detail::FINGERPRINTS, threads, progress: &Progress::default() };
    let (workers, unread) = each_run(&reading, || Adds { contenders, report: Report::default() });
    let mut report = Report::default();
    for worker in workers {
        report.merge(worker.report);
    }
    (report.broken, report.broken_lines) = (unread.first, unread.count);
    report
}

/// The files of a folder, or the file itself (a pipe, too).
pub fn files_of(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if std::fs::metadata(path)?.is_dir() { crate::trace::files(path) } else { Ok(vec![path.to_owned()]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::contenders;
    use crate::rules::tests::{call, run};
    use std::io::Write;

    fn story(success: Option<bool>, length: u64) -> Run {
        Run { success, ..run("s", (0..length).map(|_| call(1, 1)).collect()) }
    }

    fn stopped(run: &Run, at: Option<usize>) -> Tally {
        Tally::of(run, at.map(|at| run.spared(at)))
    }

    #[test]
    fn a_stop_spares_what_follows_until_a_person_speaks() {
        let mut talk = story(Some(false), 10);
        talk.steps[6].spoke = Some(true);
        assert_eq!(stopped(&talk, Some(3)).saved_steps, 2);
        assert_eq!(stopped(&talk, Some(5)).saved_steps, 0, "the person spoke at once");
        assert_eq!(stopped(&talk, Some(6)).saved_steps, 3);
        let good = stopped(&Run { success: Some(true), ..talk }, Some(5));
        assert_eq!((good.false_stops, good.costly_stops), (1, 0));
    }

    #[test]
    fn a_failed_run_saves_what_follows_its_stop() {
        let tally = stopped(&story(Some(false), 10), Some(3));
        assert_eq!((tally.failed, tally.stopped, tally.failed_steps, tally.saved_steps), (1, 1, 10, 6));
        assert_eq!((tally.saved_tokens, tally.saved_dollars), (60, 3.0));
        assert_eq!(stopped(&story(Some(false), 10), None).saved_steps, 0);
    }

    #[test]
    fn a_successful_run_loses_what_follows_and_a_stop_at_its_end_is_false_all_the_same() {
        let tally = stopped(&story(Some(true), 10), Some(3));
        assert_eq!((tally.false_stops, tally.costly_stops, tally.lost_steps), (1, 1, 6));
        let tally = stopped(&story(Some(true), 10), Some(9));
        assert_eq!((tally.false_stops, tally.costly_stops, tally.lost_steps), (1, 0, 0));
        let tally = stopped(&Run { stuck: Some(true), ..story(None, 4) }, Some(3));
        assert_eq!((tally.unknown, tally.stuck, tally.stuck_found, tally.failed, tally.successful), (1, 1, 1, 0, 0));
    }

    #[test]
    fn shares_come_with_their_intervals() {
        let share = Share::of(1, 186);
        assert!((share.value.unwrap() - 0.005_376).abs() < 1e-5);
        assert!((share.low - 0.000_950).abs() < 1e-5 && (share.high - 0.029_83).abs() < 1e-4, "{share:?}");
        assert_eq!(Share::of(0, 0).value, None);
        let all = Share::of(40, 40);
        assert!(all.low > 0.9 && (all.high - 1.0).abs() < 1e-12);
        let mut tally = Tally::default();
        for at in [Some(3), None, Some(3), None] {
            tally += &stopped(&story(Some(false), 10), at);
        }
        // Saved 6, 0, 6, 0 of 10 each: the deviation of the mean of 0.6, 0, 0.6, 0.
        let saved = tally.saved();
        assert_eq!(saved.value, Some(0.3));
        assert!((saved.low - (0.3 - Z * 0.173_205).max(0.0)).abs() < 1e-4, "{saved:?}");
        assert!((saved.high - (0.3 + Z * 0.173_205)).abs() < 1e-4, "{saved:?}");
        assert_eq!(tally.precision().value, Some(1.0));
    }

    #[test]
    fn a_run_is_held_against_the_lengths_of_other_tasks() {
        let length = |calls: u64| Length { fold: calls as usize % FOLDS, calls, tokens: 1000 * calls };
        let lengths = Lengths([(("s".to_owned(), "m".to_owned()), (1..=200).map(length).collect())].into());
        let of = |model: &str| Run { model: model.into(), ..story(None, 1) };
        let fold = fold_of(&of("m").task);
        let others: Vec<(u64, u64)> =
            (1..=200).filter(|calls| *calls as usize % FOLDS != fold).map(|calls| (calls, 1000 * calls)).collect();
        assert_eq!(lengths.long(&of("m")), Long::of(&others));
        assert_eq!(u64::from(lengths.long(&of("m")).calls), (11 * others[143].0).div_ceil(10));
        assert_eq!(lengths.long(&of("another")), Long::default());
        assert_eq!(lengths.known().into_values().collect::<Vec<_>>(), [Long { calls: 198, tokens: 260_000 }]);
    }

    #[test]
    fn runs_are_grouped_by_what_is_known_of_their_agent() {
        let native = Run { native_tools: Some(true), ..story(None, 1) };
        assert_eq!(groups(&native), ["all", "s", NATIVE, NATIVE_OR_FRONTIER]);
        let frontier = Run { model: "gpt-4.1".into(), ..story(None, 1) };
        assert_eq!(groups(&frontier), ["all", "s", FRONTIER_RUNS, NATIVE_OR_FRONTIER]);
        assert_eq!(groups(&Run { native_tools: Some(false), ..story(None, 1) }), ["all", "s", TEXT]);
    }

    #[test]
    fn threads_add_up_to_the_same_and_broken_lines_are_counted() {
        let step = r#"{"kind":"call","tool":"sh","args_hash":"1","result":"x","result_hash":"2","result_len":1,"error":false}"#;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for index in 0..300 {
            let steps = vec![step; 1 + index % 7].join(",");
            let success = index % 3 == 0;
            writeln!(file, r#"{{"run_id":"{index}","source":"s","task":"t{}","success":{success},"steps":[{steps}]}}"#, index % 20)
                .unwrap();
        }
        writeln!(file, "{{").unwrap();
        let files = [file.path().to_owned(), PathBuf::from("/nowhere/x.jsonl")];
        let contenders = contenders().unwrap();
        let one = evaluate(&files, &contenders, 1);
        let many = evaluate(&files, &contenders, 4);
        assert_eq!((one.runs, one.broken_lines, one.broken[1].line), (300, 2, 301));
        assert_eq!((many.runs, many.steps, &many.broken), (one.runs, one.steps, &one.broken));
        for contender in 0..contenders.len() {
            assert_eq!(one.tally("s", contender, |_| true), many.tally("s", contender, |_| true));
        }
        let tally = one.tally(ALL, 0, |_| true);
        assert_eq!((tally.successful, tally.failed), (100, 200));
        assert_eq!((tally.false_stops, tally.stopped), (57, 114), "runs of four equal steps and more");
        let folds: u64 = (0..FOLDS).map(|fold| one.tally(ALL, 0, |at| at == fold).failed).sum();
        assert_eq!(folds, 200);
    }
}
