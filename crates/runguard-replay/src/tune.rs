//! Finds thresholds for a price: the most that can be saved on failed runs while at most so many good runs are stopped.
//!
//! Every combination of a grid ([`crate::front`]) is held against every run, and the best that keeps the price is chosen. The
//! best of thousands looks better than it is, so the choice is made five more times, each without one fifth of the tasks,
//! and what counts is what those choices do to the fifth they were made without. A recommendation needs the whole 95 %
//! interval of that to lie under the price. Runs of one task resemble each other, so they count for less than their number.
//!
//! What just keeps the price where it was chosen breaks it elsewhere half of the time. So the choice is first made for a
//! quarter of the price, then for bolder [`MARGINS`], until one is not proven: tests in a fixed order, of which the first
//! failure is the last, need no correction for their number.
//!
//! Of a run a record is kept: about 100 bytes, and 24 for each value of the grid if any of them stops it, 650 in all with the
//! usual grid; of at most [`MAX_RUNS`] runs, 325 MB. Everything else is streamed.

mod gathered;
mod measured;
mod told;

pub(crate) use self::gathered::amounts;
pub use self::gathered::{Amounts, Gathered, gather, long_run};
use self::gathered::{Record, Stop};
use self::measured::measure;
pub use self::measured::{Measured, runs_needed};
pub use self::told::{Reader, base_keeps_the_price, number, settings_file, verdict};
use crate::caps::{self, Amount, Cap, Room, Used};
use crate::evaluate::{FOLDS, Recorded, Share};
use crate::explain::{Explained, explain};
use crate::front::{Candidate, Grid, Part, Point, RULES, TUNED, pareto};
use crate::rules::Guards;
use crate::trace::{Detail, Run};
use runguard_core::detect::stall::{Preset, StallRule, StallSettings};
use runguard_core::limits::InvalidSetting;
use serde::Serialize;
use std::path::Path;

/// Runs that are looked at. Those after them are counted, and it is said that they are not in the figures.
pub const MAX_RUNS: usize = 500_000;
/// Broken lines that are told one by one; all are counted.
const TOLD: usize = 20;
/// Sources that are shown apart; the others are taken together.
const MAX_SOURCES: usize = 32;
/// Rows of the front that are shown; between them some are left out.
pub const FRONT_ROWS: usize = 16;
/// Fewer tasks say too little about the next one, however often each was run.
pub const LEAST_TASKS: u64 = 20;
/// Parts of the price for which a choice is made, the most cautious first.
pub const MARGINS: [f64; 4] = [0.25, 0.5, 0.75, 1.0];
/// Runs shown for each rule, and of false stops.
const EXAMPLES: usize = 2;

/// What is to be saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Save {
    Steps,
    Tokens,
    Dollars,
}

impl Save {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Tokens => "tokens",
            Self::Dollars => "dollars",
        }
    }
}

/// Which runs hang together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Together {
    /// Those of one task. A run without one stands alone.
    Task,
    /// None.
    Nothing,
}

#[derive(Debug, Clone)]
pub struct Options {
    /// As runs are watched today: the kind of each, and the stall detector's settings for it.
    pub guards: Guards,
    pub grid: Grid,
    pub save: Save,
    /// Of the successful runs at most this share may be stopped.
    pub max_false_stops: f64,
    pub together: Together,
    pub room: Room,
}

impl Options {
    /// The usual grid around what is in force.
    pub fn grid_around(guards: &Guards) -> Grid {
        Grid::around_all(&guards.presets.in_use().map(|preset| guards.stall_settings(preset).clone()).collect::<Vec<_>>())
    }

    /// Of each kind of run, as in [`Preset::ALL`], the grid around its settings.
    fn grids(&self) -> Vec<Grid> {
        Preset::ALL.into_iter().map(|preset| self.grid.with_base(self.guards.stall_settings(preset).clone())).collect()
    }

    fn probes(&self) -> Result<Vec<Vec<StallSettings>>, InvalidSetting> {
        self.grids().iter().map(Grid::probes).collect()
    }
}

/// What the runs advise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Advice {
    /// On tasks it was not chosen on, the whole interval lies under the price.
    Use,
    /// Of no run it is known how it ended: there are caps and stops, and no price.
    SuccessUnknown,
    /// No run failed: there is nothing to save.
    NothingFailed,
    /// A choice is made without a fifth of the tasks; on what is left then, the interval would reach over the price even if no
    /// good run were stopped.
    TooFewRuns {
        successful: u64,
        /// Successful runs of the smallest four fifths.
        chosen_on: u64,
        more: u64,
    },
    TooFewTasks {
        tasks: u64,
        more: u64,
    },
    /// Everything that saves something costs more.
    NoneKeepsThePrice,
    /// The settings as they are save more than what is proven, and the whole interval of their false stops lies under the price as well.
    BetterAsItIs,
    /// It keeps the price where it was chosen, but is not proven elsewhere: so many more good runs at this rate would do it,
    /// none if the rate itself is over the price.
    NotProven {
        more: Option<u64>,
    },
}

/// A combination, and what it does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// By rule, in the order of the rules.
    pub parts: [Part; TUNED],
    pub measured: Measured,
}

/// One that was chosen without a fold.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fold {
    pub parts: Option<[Part; TUNED]>,
    pub measured: Measured,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chosen {
    /// The part of the price for which it was chosen.
    pub margin: f64,
    pub settings: StallSettings,
    pub parts: [Part; TUNED],
    /// On all runs: where it was chosen.
    pub measured: Measured,
    /// Choices made without a fifth of the tasks, on that fifth.
    pub held_out: Measured,
    pub folds: Vec<Fold>,
    pub by_source: Vec<(String, Measured)>,
    /// Runs each rule stops: of the successful, of the failed.
    pub by_rule: Vec<(StallRule, u64, u64)>,
}

/// Everything that tuning found out.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub runs: u64,
    pub steps: u64,
    pub successful: u64,
    pub failed: u64,
    pub unknown: u64,
    pub tasks: u64,
    pub runs_left_out: u64,
    pub broken_lines: u64,
    pub save: Save,
    pub max_false_stops: f64,
    pub grid: Vec<(StallRule, Vec<Part>)>,
    pub candidates: u64,
    pub advice: Advice,
    /// What most of the runs are: the preset that is not tuned comes from it.
    pub preset: &'static str,
    /// Runs by what they are.
    pub kinds: Vec<(&'static str, u64)>,
    /// What keeps the price on all runs, even when it is not proven.
    pub chosen: Option<Chosen>,
    /// The settings the grid was made around, as they are.
    pub base: Row,
    /// The cheapest first. The first and the last are always among those shown.
    pub front: Vec<Row>,
    pub front_len: usize,
    /// Every outcome there is: share of good runs stopped, share saved.
    pub points: Vec<(f64, f64)>,
    /// Where success is not known of any run: what each rule alone would stop.
    pub trips: Vec<(StallRule, Part, Measured)>,
    pub caps: Vec<Cap>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    false_stops: u64,
    saved: f64,
}

struct Tuner<'a> {
    records: &'a [Record],
    options: &'a Options,
    /// Around the settings of what most of the runs are.
    grid: Grid,
    /// By candidate, then by fold.
    sums: Vec<[Sums; FOLDS]>,
    /// Good runs of each fold.
    successful: [u64; FOLDS],
    /// Of candidates that do the same, the one that comes first.
    order: Vec<(usize, std::cmp::Reverse<u64>)>,
}

impl<'a> Tuner<'a> {
    fn new(gathered: &'a Gathered, options: &'a Options) -> Self {
        let records = &gathered.records;
        let grid = options.grid.with_base(options.guards.stall_settings(gathered.kind()).clone());
        let probes: Vec<[Option<usize>; TUNED]> = (0..grid.len()).map(|index| grid.probes_of(grid.candidate(index))).collect();
        let order = (0..grid.len()).map(|index| grid.distance(grid.candidate(index))).collect();
        let sums = vec![[Sums::default(); FOLDS]; grid.len()];
        let mut tuner = Self { records, options, grid, sums, successful: [0; FOLDS], order };
        for record in records {
            let fold = usize::from(record.fold);
            let Some(success) = record.success else { continue };
            tuner.successful[fold] += u64::from(success);
            if record.stops.is_empty() {
                continue;
            }
            // Step and worth of each probe, so that the many candidates touch two numbers.
            let stops: Vec<(u32, f64)> = record
                .stops
                .iter()
                .map(|stop| stop.map_or((u32::MAX, 0.0), |stop| (stop.number.get(), stop.after().of(options.save))))
                .collect();
            for (sums, probes) in tuner.sums.iter_mut().zip(&probes) {
                let (mut step, mut saved) = (u32::MAX, 0.0);
                for probe in probes.iter().flatten() {
                    if stops[*probe].0 < step {
                        (step, saved) = stops[*probe];
                    }
                }
                if step == u32::MAX {
                    continue;
                }
                if success {
                    sums[fold].false_stops += 1;
                } else {
                    sums[fold].saved += saved;
                }
            }
        }
        tuner
    }

    fn point(&self, candidate: usize, wanted: impl Fn(usize) -> bool) -> Point {
        let mut point = Point { candidate, false_stops: 0, saved: 0.0 };
        for (_, sums) in self.sums[candidate].iter().enumerate().filter(|(fold, _)| wanted(*fold)) {
            point.false_stops += sums.false_stops;
            point.saved += sums.saved;
        }
        point
    }

    fn front(&self, wanted: impl Fn(usize) -> bool + Copy) -> Vec<Point> {
        let points: Vec<Point> = (0..self.sums.len()).map(|candidate| self.point(candidate, wanted)).collect();
        pareto(&points, |candidate| self.order[candidate])
    }

    fn good(&self, wanted: impl Fn(usize) -> bool) -> u64 {
        self.successful.iter().enumerate().filter(|(fold, _)| wanted(*fold)).map(|(_, count)| count).sum()
    }

    /// What saves most among those whose interval lies under this part of the price; `None` when that saves nothing.
    fn best(&self, margin: f64, wanted: impl Fn(usize) -> bool + Copy) -> Option<Candidate> {
        let successful = self.good(wanted);
        let keeps = |point: &&Point| Share::of(point.false_stops, successful).high <= margin * self.options.max_false_stops;
        let best = self.front(wanted).iter().rfind(keeps).copied().filter(|point| point.saved > 0.0)?;
        Some(self.grid.candidate(best.candidate))
    }

    fn stop_of(&self, candidate: Option<Candidate>) -> impl Fn(&Record) -> Option<Stop> + use<> {
        let probes = candidate.map_or([None; TUNED], |candidate| self.grid.probes_of(candidate));
        move |record| record.stop(probes).map(|(stop, _)| stop)
    }

    fn row(&self, candidate: Candidate) -> Row {
        let measured = measure(self.records.iter(), self.options.save, self.stop_of(Some(candidate)));
        Row { parts: self.grid.parts(candidate), measured }
    }

    /// The settings as they are, each run by those of its own kind.
    fn base(&self) -> Row {
        let probes: Vec<[Option<usize>; TUNED]> = self.options.grids().iter().map(|grid| grid.probes_of(grid.nearest())).collect();
        let stop = |record: &Record| record.stop(probes[record.preset as usize]).map(|(stop, _)| stop);
        Row { parts: self.grid.parts(self.grid.nearest()), measured: measure(self.records.iter(), self.options.save, stop) }
    }

    /// The boldest choice that is proven; if none is, the one that failed.
    fn choose(&self, sources: &[String]) -> Option<Chosen> {
        let mut proven = None;
        for margin in MARGINS {
            // With few runs nothing can be so far under the price: that says nothing about what is nearer to it.
            let Some(candidate) = self.best(margin, |_| true) else { continue };
            let chosen = self.chosen(margin, candidate, sources);
            if !self.is_proven(&chosen) {
                return proven.or(Some(chosen));
            }
            proven = Some(chosen);
        }
        proven
    }

    fn is_proven(&self, chosen: &Chosen) -> bool {
        chosen.held_out.false_stop_rate.high <= self.options.max_false_stops
    }

    fn chosen(&self, margin: f64, candidate: Candidate, sources: &[String]) -> Chosen {
        let (grid, save) = (&self.grid, self.options.save);
        let choices: Vec<Option<Candidate>> = (0..FOLDS).map(|fold| self.best(margin, |other| other != fold)).collect();
        let stops: Vec<_> = choices.iter().map(|choice| self.stop_of(*choice)).collect();
        let held_out = measure(self.records.iter(), save, |record| stops[usize::from(record.fold)](record));
        let fold = |(fold, choice): (usize, &Option<Candidate>)| Fold {
            parts: choice.map(|choice| grid.parts(choice)),
            measured: measure(self.records.iter().filter(|record| usize::from(record.fold) == fold), save, &stops[fold]),
        };
        let source = |(index, name): (usize, String)| {
            let of_source = self.records.iter().filter(|record| usize::from(record.source) == index);
            (name, measure(of_source, save, self.stop_of(Some(candidate))))
        };
        let names = sources.iter().cloned().chain(std::iter::once("others".to_owned())).enumerate();
        let by_source = names.map(source).filter(|(_, measured)| measured.successful + measured.failed + measured.unknown > 0).collect();
        let probes = grid.probes_of(candidate);
        let by_rule = RULES.map(|rule| {
            let stopped = |success: bool| {
                let stops = |record: &&Record| record.success == Some(success) && record.stop(probes).is_some_and(|(_, by)| by == rule);
                self.records.iter().filter(stops).count() as u64
            };
            (rule, stopped(true), stopped(false))
        });
        Chosen {
            margin,
            settings: grid.settings(candidate),
            parts: grid.parts(candidate),
            measured: measure(self.records.iter(), save, self.stop_of(Some(candidate))),
            held_out,
            folds: choices.iter().enumerate().map(fold).collect(),
            by_source,
            by_rule: by_rule.to_vec(),
        }
    }

    fn advice(&self, summary: &Summary) -> Advice {
        let price = self.options.max_false_stops;
        if summary.successful + summary.failed == 0 {
            return Advice::SuccessUnknown;
        }
        if summary.failed == 0 {
            return Advice::NothingFailed;
        }
        // A choice is made on the other folds, so these must be able to keep the price as well.
        let fewest = (0..FOLDS).map(|fold| self.good(|other| other != fold)).min().unwrap_or(0);
        let needed = runs_needed(0.0, price).unwrap_or(u64::MAX);
        if fewest < needed {
            // Folds are uneven, so the smallest share of the runs that a choice was made on decides.
            let share = if fewest > 0 { fewest as f64 / summary.successful as f64 } else { (FOLDS - 1) as f64 / FOLDS as f64 };
            let more = ((needed as f64 / share).ceil() as u64).saturating_sub(summary.successful).max(1);
            return Advice::TooFewRuns { successful: summary.successful, chosen_on: fewest, more };
        }
        if summary.tasks < LEAST_TASKS {
            return Advice::TooFewTasks { tasks: summary.tasks, more: LEAST_TASKS - summary.tasks };
        }
        let Some(chosen) = &summary.chosen else { return Advice::NoneKeepsThePrice };
        let rate = chosen.held_out.false_stop_rate;
        if chosen.held_out.saved.of(self.options.save) <= 0.0 {
            return Advice::NoneKeepsThePrice;
        }
        if self.is_proven(chosen) {
            let save = self.options.save;
            let is_better = summary.base.measured.saved.of(save) > chosen.measured.saved.of(save);
            let keeps = base_keeps_the_price(summary);
            return if is_better && keeps { Advice::BetterAsItIs } else { Advice::Use };
        }
        let value = rate.value.unwrap_or(1.0);
        // Runs of a task count for less than their number, also those that are yet to come.
        let alone = Share::of(chosen.held_out.false_stops, chosen.held_out.successful);
        let wider = ((rate.high - value) / (alone.high - value).max(f64::MIN_POSITIVE)).powi(2).max(1.0);
        let needed = runs_needed(value, price).map(|needed| (needed as f64 * wider).ceil() as u64);
        Advice::NotProven { more: needed.map(|needed| needed.saturating_sub(summary.successful).max(1)) }
    }
}

/// Decides what the runs advise.
pub fn tune(gathered: &Gathered, options: &Options) -> Summary {
    let records = &gathered.records;
    let tuner = Tuner::new(gathered, options);
    let grid = &tuner.grid;
    let count = |success: Option<bool>| records.iter().filter(|record| record.success == success).count() as u64;
    let mut tasks: Vec<u64> = records.iter().map(|record| record.task).collect();
    tasks.sort_unstable();
    tasks.dedup();
    let front = tuner.front(|_| true);
    let used = |of: &dyn Fn(&Record) -> f64| -> Vec<Used> {
        records.iter().map(|record| Used { success: record.success, amount: of(record) }).collect()
    };
    let cap = |amount: Amount| {
        let all = used(&|record| match amount {
            Amount::Dollars => record.all.dollars,
            Amount::Tokens => record.all.tokens as f64,
            Amount::Steps => record.all.steps as f64,
            Amount::Minutes => record.minutes.unwrap_or(0.0),
        });
        let mut cap = caps::cap(amount, &all, options.room)?;
        // The rule for long runs counts calls; what the model only says is a step as well.
        if amount == Amount::Steps {
            cap.long = caps::cap(amount, &used(&|record| record.calls as f64), options.room).and_then(|calls| calls.long);
        }
        Some(cap)
    };
    let known = count(Some(true)) + count(Some(false)) > 0;
    let chosen = tuner.choose(&gathered.sources);
    let is_chosen = |point: &Point| chosen.as_ref().is_some_and(|chosen| grid.parts(grid.candidate(point.candidate)) == chosen.parts);
    let shown = if known { thinned(&front, is_chosen) } else { Vec::new() };
    let mut summary = Summary {
        runs: gathered.runs,
        steps: gathered.steps,
        successful: count(Some(true)),
        failed: count(Some(false)),
        unknown: count(None),
        tasks: tasks.len() as u64,
        runs_left_out: gathered.runs_left_out,
        broken_lines: gathered.broken_lines,
        save: options.save,
        max_false_stops: options.max_false_stops,
        grid: grid.axes().map(|(rule, parts)| (rule, parts.to_vec())).collect(),
        candidates: grid.len() as u64,
        advice: Advice::SuccessUnknown,
        preset: gathered.kind().name(),
        kinds: Preset::ALL.into_iter().zip(gathered.kinds).filter(|(_, runs)| *runs > 0).map(|(kind, runs)| (kind.name(), runs)).collect(),
        chosen,
        base: tuner.base(),
        front: shown.into_iter().map(|point| tuner.row(grid.candidate(point.candidate))).collect(),
        front_len: front.len(),
        points: points(&tuner),
        trips: if known { Vec::new() } else { trips(&tuner) },
        caps: Amount::ALL.into_iter().filter_map(cap).collect(),
    };
    summary.advice = tuner.advice(&summary);
    summary
}

/// At most so many, the ends among them, and one more that must not be left out.
fn thinned(front: &[Point], kept: impl Fn(&Point) -> bool) -> Vec<Point> {
    let every = |at: usize| (0..FRONT_ROWS).any(|row| row * front.len().saturating_sub(1) / (FRONT_ROWS - 1) == at);
    front.iter().enumerate().filter(|(at, point)| front.len() <= FRONT_ROWS || every(*at) || kept(point)).map(|(_, point)| *point).collect()
}

/// The outcomes of all candidates; many come to the same.
fn points(tuner: &Tuner<'_>) -> Vec<(f64, f64)> {
    let successful = tuner.good(|_| true) as f64;
    let in_all: f64 =
        tuner.records.iter().filter(|record| record.success == Some(false)).map(|record| record.all.of(tuner.options.save)).sum();
    if successful == 0.0 || in_all <= 0.0 {
        return Vec::new();
    }
    let mut points: Vec<(f64, f64)> = (0..tuner.sums.len())
        .map(|candidate| tuner.point(candidate, |_| true))
        .map(|point| (point.false_stops as f64 / successful, point.saved / in_all))
        .collect();
    points.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.total_cmp(&right.1)));
    points.dedup();
    points
}

/// What each value of each rule stops on its own.
fn trips(tuner: &Tuner<'_>) -> Vec<(StallRule, Part, Measured)> {
    let grid = &tuner.grid;
    let mut probe = 0;
    let mut trips = Vec::new();
    for (rule, parts) in grid.axes() {
        for part in parts.iter().filter(|part| **part != Part::Off) {
            let measured = measure(tuner.records.iter(), tuner.options.save, |record| record.stops.get(probe).copied().flatten());
            trips.push((rule, *part, measured));
            probe += 1;
        }
    }
    trips
}

/// A run that a chosen threshold stops.
#[derive(Debug, Clone)]
pub struct Example {
    pub rule: StallRule,
    pub explained: Explained,
}

/// For each rule of the settings runs that it stops: of the failed those it saves most of, and of the successful. Read again
/// from their files, with their texts.
pub fn examples(gathered: &Gathered, options: &Options, settings: &StallSettings, recorded: &Recorded<'_>) -> Vec<Example> {
    let grid = &options.grid.with_base(options.guards.stall_settings(gathered.kind()).clone());
    let Ok(guards) = Guards::of_stall(settings, options.guards.presets.clone()) else { return Vec::new() };
    let Some(candidate) = (0..grid.len()).map(|index| grid.candidate(index)).find(|candidate| grid.settings(*candidate) == *settings)
    else {
        return Vec::new();
    };
    let probes = grid.probes_of(candidate);
    let mut wanted: Vec<(&Record, StallRule)> = Vec::new();
    for rule in RULES {
        for success in [Some(false), Some(true), None] {
            let mut stopped: Vec<(&Record, Stop)> = gathered
                .records
                .iter()
                .filter(|record| record.success == success)
                .filter_map(|record| record.stop(probes).filter(|(_, by)| *by == rule).map(|(stop, _)| (record, stop)))
                .collect();
            let worth = |(_, stop): &(&Record, Stop)| stop.after().of(options.save);
            stopped.sort_by(|left, right| worth(right).total_cmp(&worth(left)));
            wanted.extend(stopped.into_iter().take(EXAMPLES).map(|(record, _)| (record, rule)));
        }
    }
    let mut examples = Vec::new();
    for (file, path) in gathered.files.iter().enumerate() {
        let of_file: Vec<_> = wanted.iter().filter(|(record, _)| record.file as usize == file).collect();
        let again = read_again(path, recorded, options.guards.detail_with_texts(), &of_file);
        examples.extend(again.into_iter().map(|(rule, run)| Example { rule, explained: explain(&run, &guards) }));
    }
    examples.sort_by_key(|example| RULES.iter().position(|rule| *rule == example.rule));
    examples
}

fn read_again(path: &Path, recorded: &Recorded<'_>, detail: Detail, wanted: &[&(&Record, StallRule)]) -> Vec<(StallRule, Run)> {
    let Some(last) = wanted.iter().map(|(record, _)| record.ordinal as usize).max() else { return Vec::new() };
    // A file that was readable a moment ago and is not any more leaves the report without its examples, nothing else.
    let Ok(runs) = recorded.open(path, detail) else { return Vec::new() };
    let rule = |ordinal: usize| wanted.iter().find(|(record, _)| record.ordinal as usize == ordinal).map(|(_, rule)| *rule);
    let labelled = |mut run: Run| {
        recorded.labels.label(&mut run);
        run
    };
    runs.take(last + 1).enumerate().filter_map(|(ordinal, run)| Some((rule(ordinal)?, labelled(run.ok()?)))).collect()
}

#[cfg(test)]
mod tests;
