//! What is kept of recorded runs: where each value of the grid stops them, and what they used.

use super::{MAX_RUNS, MAX_SOURCES, Options, Save, TOLD, Together};
use crate::evaluate::{LeftAlone, Recorded, fold_of};
use crate::front::{Part, RULES, TUNED};
use crate::rules::{AgentKind, observe};
use crate::trace::{Broken, Detail, Run, Step};
use runguard_core::detect::stall::{Long, Preset, StallRule, StallSettings, StallState};
use runguard_core::limits::InvalidSetting;
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// What comes after a stop.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Amounts {
    pub steps: u64,
    pub tokens: u64,
    pub dollars: f64,
}

impl Amounts {
    pub(super) fn of(self, save: Save) -> f64 {
        match save {
            Save::Steps => self.steps as f64,
            Save::Tokens => self.tokens as f64,
            Save::Dollars => self.dollars,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.tokens += other.tokens;
        self.dollars += other.dollars;
    }
}

/// Where a run is stopped, and what the steps after it used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    /// Of the last step that is made, from 1.
    pub(super) number: NonZeroU32,
    steps_after: u32,
    tokens_after: u64,
    dollars_after: f64,
}

impl Stop {
    fn of(run: &Run, at: usize) -> Self {
        let Amounts { steps, tokens, dollars } = amounts(run.spared(at));
        let number = NonZeroU32::MIN.saturating_add(at as u32);
        Self { number, steps_after: steps as u32, tokens_after: tokens, dollars_after: dollars }
    }

    /// What a stop there would have spared.
    pub(super) fn after(self) -> Amounts {
        Amounts { steps: self.steps_after.into(), tokens: self.tokens_after, dollars: self.dollars_after }
    }
}

/// What is kept of a run.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) file: u32,
    /// Which run of its file.
    pub(super) ordinal: u32,
    pub(super) source: u16,
    pub(super) preset: Preset,
    pub(super) task: u64,
    pub(super) fold: u8,
    pub(super) success: Option<bool>,
    pub(super) all: Amounts,
    pub(super) calls: u64,
    pub(super) minutes: Option<f64>,
    /// Where each probe stops it; empty when none does.
    pub(super) stops: Box<[Option<Stop>]>,
}

impl Record {
    /// Where a candidate stops it, and by which rule.
    pub(super) fn stop(&self, probes: [Option<usize>; TUNED]) -> Option<(Stop, StallRule)> {
        if self.stops.is_empty() {
            return None;
        }
        let stops = RULES.into_iter().zip(probes).filter_map(|(rule, probe)| self.stops[probe?].map(|stop| (stop, rule)));
        stops.min_by_key(|(stop, _)| stop.number)
    }
}

/// All runs, as records.
#[derive(Debug, Default)]
pub struct Gathered {
    pub(super) records: Vec<Record>,
    pub(super) sources: Vec<String>,
    pub(super) files: Vec<PathBuf>,
    /// Runs of each kind, as in [`Preset::ALL`].
    pub(super) kinds: [u64; Preset::ALL.len()],
    pub runs: u64,
    pub steps: u64,
    pub runs_left_out: u64,
    pub broken: Vec<Broken>,
    pub broken_lines: u64,
    pub left_alone: LeftAlone,
}

/// Reads the runs of the files. `progress` hears how many were read.
pub fn gather(recorded: &Recorded<'_>, options: &Options, progress: &mut dyn FnMut(u64)) -> Result<Gathered, InvalidSetting> {
    let probes = options.probes()?;
    let mut gathered = Gathered { files: recorded.files.to_vec(), ..Gathered::default() };
    for (file, path) in recorded.files.iter().enumerate() {
        let runs = match recorded.open(path, options.guards.detail()) {
            Ok(runs) => runs,
            Err(error) if recorded.is_left_alone(path, &error) => {
                gathered.left_alone.add(error);
                continue;
            }
            Err(error) => {
                gathered.tell_broken(Broken { file: path.clone(), line: 0, problem: error.to_string() });
                continue;
            }
        };
        for (ordinal, run) in runs.enumerate() {
            match run {
                Ok(mut run) => {
                    recorded.labels.label(&mut run);
                    gathered.add(&run, (file as u32, ordinal as u32), &probes, options);
                }
                Err(broken) => gathered.tell_broken(broken),
            }
            progress(gathered.runs);
        }
    }
    Ok(gathered)
}

/// What is long here, as a value of the rule for long runs: by all runs of the files, which are read for it. `None` where too few are
/// known. Their calls differ little from one fifth of the tasks to the next, so that the choice may know all of them.
pub fn long_run(recorded: &Recorded<'_>) -> Option<Part> {
    let files = recorded.files.iter().filter_map(|path| recorded.open(path, Detail::FINGERPRINTS).ok());
    let used: Vec<(u64, u64)> = files.flatten().flatten().take(MAX_RUNS).map(|run| (run.calls(), amounts(&run.steps).tokens)).collect();
    let Long { calls, tokens } = Long::of(&used);
    match (calls.checked_add(1).filter(|calls| *calls > 2)?, tokens) {
        (calls, 0) => Some(Part::Stop(calls)),
        (calls, tokens) => Some(Part::Long { calls, tokens }),
    }
}

impl Gathered {
    fn tell_broken(&mut self, broken: Broken) {
        self.broken_lines += 1;
        if self.broken.len() < TOLD {
            self.broken.push(broken);
        }
    }

    pub(super) fn add(&mut self, run: &Run, (file, ordinal): (u32, u32), probes: &[Vec<StallSettings>], options: &Options) {
        self.runs += 1;
        self.steps += run.steps.len() as u64;
        if self.records.len() >= MAX_RUNS {
            self.runs_left_out += 1;
            return;
        }
        let alone = || format!("{file} {ordinal}");
        let task = if options.together == Together::Task && !run.task.is_empty() { run.task.clone() } else { alone() };
        let times = || run.steps.iter().filter_map(|step| step.at_millis);
        let minutes = times().min().zip(times().max()).map(|(first, last)| (last - first) as f64 / 60_000.0);
        let source = self.source(&run.source);
        let kind = options.guards.presets.of(&run.source);
        let preset = kind.of_run(run);
        self.kinds[preset as usize] += 1;
        self.records.push(Record {
            file,
            ordinal,
            source,
            preset,
            task: xxh3_64(task.as_bytes()),
            fold: fold_of(&task) as u8,
            success: run.success,
            all: amounts(&run.steps),
            calls: run.calls(),
            minutes,
            stops: stops(run, probes, kind),
        });
    }

    /// What most of the runs are.
    pub(super) fn kind(&self) -> Preset {
        let most = self.kinds.iter().max().copied().unwrap_or(0);
        Preset::ALL.into_iter().find(|preset| self.kinds[*preset as usize] == most).unwrap_or(Preset::Coding)
    }

    fn source(&mut self, name: &str) -> u16 {
        if let Some(known) = self.sources.iter().position(|source| source == name) {
            return known as u16;
        }
        if self.sources.len() >= MAX_SOURCES {
            return MAX_SOURCES as u16;
        }
        self.sources.push(name.to_owned());
        self.sources.len() as u16 - 1
    }
}

pub(crate) fn amounts(steps: &[Step]) -> Amounts {
    let mut sum = Amounts::default();
    for step in steps {
        sum.add(Amounts { steps: 1, tokens: step.tokens, dollars: step.dollars });
    }
    sum
}

/// Where each probe stops a run. The probes stand in the order of [`Preset::ALL`], for each kind of run the same.
pub(super) fn stops(run: &Run, probes: &[Vec<StallSettings>], kind: AgentKind) -> Box<[Option<Stop>]> {
    let mut state = StallState::default();
    let mut stop = |probe: usize| {
        state.clear();
        let mut kind = kind;
        let is_stopped = |step: &Step| {
            let preset = kind.at(step);
            observe(&mut state, &probes[preset as usize][probe], step, preset).refuses().is_some()
        };
        let at = run.steps.iter().position(is_stopped)?;
        Some(Stop::of(run, at))
    };
    let stops: Box<[Option<Stop>]> = (0..probes.first().map_or(0, Vec::len)).map(&mut stop).collect();
    if stops.iter().all(Option::is_none) { Box::default() } else { stops }
}
