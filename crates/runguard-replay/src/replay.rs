//! What would have happened: recorded runs taken through RunGuard's guards and budgets.
//!
//! Every run goes through everything to its recorded end, so that each guard is known alone; the run is *ended* by whichever
//! enforced rule came first, and what follows that step is saved on a run that failed and lost on one that succeeded. A rule
//! is credited with the runs it ended and with nothing else: the figures of the rules add up to those of all together.
//!
//! Sums are whole numbers (dollars lie on a grid that floats add exactly), examples are the first in the order of the files,
//! and groups beyond the bound are told apart by their names: so one thread and many say the same.

mod circles;
mod examples;
mod groups;
mod packing;
mod positions;

pub use circles::{Circled, Circles, Circling, RuleCircles};
pub use examples::Example;
pub use positions::Where;

use crate::evaluate::{Lengths, Order, Reading, Share, Tally, Worker, dollars_of, each_run, tokens_of};
use crate::format;
use crate::packed::write_frame;
use crate::rules::{Cause, Contender, Ender, Guards, Nudge, Other, RunFindings, Watch, Watched};
use crate::trace::{Broken, Detail, Run};
use examples::{Examples, Most};
use groups::Groups;
use packing::Ordered;
use positions::Positions;
use runguard_core::detect::stall::Preset;
use runguard_core::text::grouped;
use runguard_guards::policy::SettingsProblem;
use serde::{Serialize, Serializer};
use std::io;
use std::path::{Path, PathBuf};

/// The version of [`Summary`] as JSON. Fields are added without changing it.
const VERSION: u32 = 1;
/// Broken lines that are shown; all are counted.
const SHOWN_BROKEN: usize = 20;

/// What is asked of the runs.
#[derive(Debug)]
pub struct Ask<'a> {
    pub guards: &'a Guards,
    pub against: &'a [Other],
    pub by: &'a [By],
    /// Where the runs are written, hashed, to be read again quickly.
    pub pack: Option<&'a Path>,
}

/// What runs are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    Source,
    Model,
    Task,
    /// That the run's file lies in: of Claude Code it is the project.
    Folder,
}

/// The folder of a run's file. What Claude Code's sub-agents did belongs to the project of their session: `PROJECT/SESSION/subagents`.
fn project_of(file: &Path) -> Option<&Path> {
    let folder = file.parent()?;
    if folder.ends_with("subagents") { folder.parent()?.parent() } else { Some(folder) }
}

impl By {
    pub const ALL: [Self; 4] = [Self::Source, Self::Model, Self::Task, Self::Folder];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Model => "model",
            Self::Task => "task",
            Self::Folder => "folder",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.code() == code)
    }

    fn of(self, run: &Run) -> &str {
        match self {
            Self::Source => &run.source,
            Self::Model => &run.model,
            Self::Task => &run.task,
            Self::Folder => project_of(&run.place.file).and_then(|folder| folder.file_name()?.to_str()).unwrap_or_default(),
        }
    }
}

/// What would have happened. As JSON it is what `runguard replay --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub version: u32,
    /// Whether everything was read; otherwise these are the figures of what was read until then.
    pub finished: bool,
    pub files: Vec<FileRead>,
    pub runs: u64,
    pub steps: u64,
    pub tokens: u64,
    pub dollars: f64,
    pub broken_lines: u64,
    /// The first of them.
    #[serde(serialize_with = "as_places")]
    pub broken: Vec<Broken>,
    /// Runs watched by each preset.
    pub presets: Vec<Counted>,
    /// All guards and budgets together.
    pub total: Figures,
    /// What was spent on steps that brought nothing new, whatever became of the runs.
    pub circles: Circles,
    /// Each guard and budget, were it alone; also one that only observes.
    pub alone: Vec<Named>,
    /// The rules that ended runs, in a fixed order; those that ended none are left out.
    pub rules: Vec<RuleFigures>,
    /// What was done without ending a run.
    pub nudges: Vec<NudgeFigures>,
    pub groups: Vec<Grouping>,
    /// The rules of other agents on the same runs.
    pub against: Vec<Named>,
    /// The ended runs with most behind their end.
    pub most_after: Vec<Example>,
    /// Files that were found in folders and hold no runs in a form that is known.
    pub files_left_alone: u64,
    pub notes: Vec<String>,
}

impl Summary {
    /// What it comes to, in words: what was ended, and what would not have been spent.
    pub fn headline(&self) -> String {
        let sums = &self.total.sums;
        let ended = sums.false_stops + sums.stopped + sums.unknown_stopped;
        if ended == 0 {
            return format!("None of {} would have been ended.", counted(self.runs, "run"));
        }
        let mut out = format!("{} of {} would have been ended.", grouped(ended), counted(self.runs, "run"));
        if sums.failed > 0 {
            let amounts = in_words(sums.saved_steps, sums.saved_tokens, sums.saved_dollars);
            let share = share_in_words(self.total.saved_steps);
            out.push_str(&format!(" Of {} that failed {}: that saves {amounts}{share}.", grouped(sums.failed), grouped(sums.stopped)));
        }
        if sums.successful > 0 {
            let amounts = in_words(sums.lost_steps, sums.lost_tokens, sums.lost_dollars);
            let share = share_in_words(self.total.lost_steps);
            let loses = if sums.false_stops == 0 { "nothing is lost".to_owned() } else { format!("that loses {amounts}{share}") };
            out.push_str(&format!(" Of {} that succeeded {}: {loses}.", grouped(sums.successful), grouped(sums.false_stops)));
        }
        if sums.unknown > 0 {
            let amounts = in_words(sums.unknown_after_steps, sums.unknown_after_tokens, sums.unknown_after_dollars);
            let share = share_in_words(self.total.unknown_after);
            let whose = if sums.unknown == self.runs {
                String::new()
            } else {
                format!(" Of {} whose end is not known {}:", grouped(sums.unknown), grouped(sums.unknown_stopped))
            };
            out.push_str(&format!("{whose} {amounts}{share} came after that point."));
        }
        out
    }
}

impl Summary {
    /// What went in circles, in words, if anything did.
    pub fn in_circles(&self) -> Option<String> {
        let Circled { runs, steps, tokens, dollars } = self.circles.total;
        let (part, whole, of) = match (self.dollars > 0.0, self.tokens > 0) {
            (true, _) => (dollars, self.dollars, "dollars"),
            (false, true) => (tokens as f64, self.tokens as f64, "tokens"),
            (false, false) => (steps as f64, self.steps as f64, "steps"),
        };
        let amounts = in_words(steps, tokens, dollars);
        (steps > 0).then(|| {
            format!(
                "{} went in circles for a while: {amounts} brought nothing new ({:.1} % of all {of}).",
                counted(runs, "run"),
                100.0 * part / whole
            )
        })
    }
}

fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(count), if count == 1 { "" } else { "s" })
}

fn in_words(steps: u64, tokens: u64, dollars: f64) -> String {
    let mut out = counted(steps, "step");
    if tokens > 0 {
        out.push_str(&format!(", {}", counted(tokens, "token")));
    }
    if dollars > 0.0 {
        out.push_str(&format!(", ${dollars:.2}"));
    }
    out
}

fn share_in_words(share: Share) -> String {
    share.value.map(|value| format!(" ({:.1} % of their steps)", 100.0 * value)).unwrap_or_default()
}

fn as_places<S: Serializer>(broken: &[Broken], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct BrokenLine<'a> {
        file: String,
        line: u64,
        problem: &'a str,
    }
    serializer.collect_seq(broken.iter().map(|broken| BrokenLine {
        file: broken.file.display().to_string(),
        line: broken.line,
        problem: &broken.problem,
    }))
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FileRead {
    pub file: String,
    pub runs: u64,
    pub steps: u64,
    pub broken_lines: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Counted {
    pub name: &'static str,
    pub runs: u64,
}

/// Sums, and the shares that follow from them with their 95 % confidence intervals.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Figures {
    pub sums: Tally,
    /// Of the successful runs, those that were ended.
    pub false_stops: Share,
    /// Of the failed runs, those that were ended.
    pub failed_stopped: Share,
    /// Of the ended runs, those that failed.
    pub precision: Share,
    /// Of the runs that the agent's own detector called stuck, those that were ended.
    pub recall: Share,
    /// Of the steps of failed runs, those after the end.
    pub saved_steps: Share,
    /// Of the steps of successful runs, those after the end.
    pub lost_steps: Share,
    /// Of the steps of runs that are not known to have succeeded or failed, those after the end.
    pub unknown_after: Share,
}

impl From<Tally> for Figures {
    fn from(sums: Tally) -> Self {
        Self {
            false_stops: sums.false_stop_rate(),
            failed_stopped: sums.stop_rate(),
            precision: sums.precision(),
            recall: sums.recall(),
            saved_steps: sums.saved(),
            lost_steps: sums.lost(),
            unknown_after: sums.unknown_after(),
            sums,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Named {
    pub name: String,
    pub figures: Figures,
}

/// The runs that one rule ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleFigures {
    pub rule: &'static str,
    pub successful: u64,
    pub failed: u64,
    pub unknown: u64,
    /// Of all successful runs.
    pub false_stops: Share,
    /// Of all failed runs.
    pub failed_stopped: Share,
    pub saved_steps: u64,
    pub saved_tokens: u64,
    pub saved_dollars: f64,
    pub lost_steps: u64,
    pub lost_tokens: u64,
    pub lost_dollars: f64,
    /// What follows in runs that are not known to have succeeded or failed.
    pub unknown_after_steps: u64,
    pub unknown_after_tokens: u64,
    pub unknown_after_dollars: f64,
    /// Of the ended runs, those of which the model had never been told that something is wrong.
    pub without_nudge: u64,
    /// The step after which it ended them, from 1.
    pub at: Where,
    pub examples: Vec<Example>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NudgeFigures {
    pub rule: &'static str,
    pub successful: Nudged,
    pub failed: Nudged,
    pub unknown: Nudged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Nudged {
    pub runs: u64,
    pub steps: u64,
    /// Of the runs, those that got out: nothing ended them afterwards, whichever rule it is, though no recorded run has heard the nudge.
    pub recovered: u64,
}

impl Nudged {
    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.recovered += other.recovered;
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Grouping {
    pub by: By,
    /// By name.
    pub groups: Vec<Named>,
    /// Of the groups beyond the bound, together.
    pub others: Option<Figures>,
}

/// Whether a run was a success, where that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Successful,
    Failed,
    Unknown,
}

impl End {
    const COUNT: usize = 3;

    fn of(run: &Run) -> Self {
        match run.success {
            Some(true) => Self::Successful,
            Some(false) => Self::Failed,
            None => Self::Unknown,
        }
    }
}

#[derive(Debug, Clone, Default)]
struct RuleSums {
    tally: Tally,
    without_nudge: u64,
    at: Positions,
    examples: Examples,
}

/// All that is added up; as large for a million runs as for a thousand.
#[derive(Debug, Clone)]
struct Sums {
    runs: u64,
    steps: u64,
    tokens: u64,
    dollars: f64,
    files: Vec<(u64, u64)>,
    presets: [u64; Preset::ALL.len()],
    total: Tally,
    alone: [Tally; Ender::ALL.len()],
    rules: Vec<RuleSums>,
    nudges: [[Nudged; End::COUNT]; Nudge::ALL.len()],
    groups: Vec<Groups>,
    against: Vec<Tally>,
    most_after: Most<Example>,
    circles: circles::Sums,
    without_times: u64,
    without_tokens: u64,
    without_dollars: u64,
}

impl Sums {
    fn new(ask: &Ask<'_>, files: usize) -> Self {
        Self {
            runs: 0,
            steps: 0,
            tokens: 0,
            dollars: 0.0,
            files: vec![(0, 0); files],
            presets: [0; Preset::ALL.len()],
            total: Tally::default(),
            alone: [Tally::default(); Ender::ALL.len()],
            rules: vec![RuleSums::default(); Cause::ALL.len()],
            nudges: [[Nudged::default(); End::COUNT]; Nudge::ALL.len()],
            groups: ask.by.iter().map(|by| Groups::new(*by)).collect(),
            against: vec![Tally::default(); ask.against.len()],
            most_after: Most::default(),
            circles: circles::Sums::default(),
            without_times: 0,
            without_tokens: 0,
            without_dollars: 0,
        }
    }

    fn add(&mut self, run: &Run, found: &RunFindings, circled: &circles::Watching, stops: &[Option<usize>], order: Order) {
        let (steps, tokens, dollars) = (run.steps.len() as u64, tokens_of(&run.steps), dollars_of(&run.steps));
        self.runs += 1;
        self.steps += steps;
        self.tokens = self.tokens.saturating_add(tokens);
        self.dollars += dollars;
        self.without_times += u64::from(!found.has_times);
        self.without_tokens += u64::from(tokens == 0);
        self.without_dollars += u64::from(dollars == 0.0);
        if let Some(file) = self.files.get_mut(order.file as usize) {
            *file = (file.0 + 1, file.1 + steps);
        }
        self.presets[found.preset as usize] += 1;
        let outcome = Tally::of(run, found.ended.map(|(at, cause)| cause.spared(run, at)));
        self.total += &outcome;
        for groups in &mut self.groups {
            groups.add(run, &outcome);
        }
        for ((sum, at), ender) in self.alone.iter_mut().zip(found.alone).zip(Ender::ALL) {
            *sum += &Tally::of(run, at.map(|at| ender.spared(run, at)));
        }
        for (sum, at) in self.against.iter_mut().zip(stops) {
            *sum += &Tally::of(run, at.map(|at| run.spared(at)));
        }
        self.circles.add(run, circled, order);
        if let Some(ended @ (at, cause)) = found.ended {
            let rule = &mut self.rules[cause.index()];
            rule.tally += &outcome;
            rule.without_nudge += u64::from(found.nudges.iter().all(|steps| *steps == 0));
            rule.at.add(at as u64 + 1);
            rule.examples.add(run, ended, order);
            let (steps, tokens, dollars) = outcome.after();
            self.most_after.add(order, (dollars, tokens, steps), || Example::of(run, ended));
        }
        for (sums, steps) in self.nudges.iter_mut().zip(found.nudges).filter(|(_, steps)| *steps > 0) {
            let got_out = found.ended.is_none();
            sums[End::of(run) as usize].add(Nudged { runs: 1, steps: u64::from(steps), recovered: u64::from(got_out) });
        }
    }

    fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.dollars += other.dollars;
        self.without_times += other.without_times;
        self.without_tokens += other.without_tokens;
        self.without_dollars += other.without_dollars;
        for (mine, theirs) in self.files.iter_mut().zip(other.files) {
            *mine = (mine.0 + theirs.0, mine.1 + theirs.1);
        }
        for (mine, theirs) in self.presets.iter_mut().zip(other.presets) {
            *mine += theirs;
        }
        self.total += &other.total;
        for (mine, theirs) in self.alone.iter_mut().zip(&other.alone).chain(self.against.iter_mut().zip(&other.against)) {
            *mine += theirs;
        }
        for (mine, theirs) in self.rules.iter_mut().zip(other.rules) {
            mine.tally += &theirs.tally;
            mine.without_nudge += theirs.without_nudge;
            mine.at.merge(&theirs.at);
            mine.examples.merge(theirs.examples);
        }
        for (mine, theirs) in self.nudges.iter_mut().flatten().zip(other.nudges.iter().flatten()) {
            mine.add(*theirs);
        }
        for (mine, theirs) in self.groups.iter_mut().zip(other.groups) {
            mine.merge(theirs);
        }
        self.most_after.merge(other.most_after);
        self.circles.merge(other.circles);
    }
}

struct Replays<'a> {
    watch: Watch<'a>,
    circled: circles::Watching,
    against: &'a [Contender],
    stops: Vec<Option<usize>>,
    sums: Sums,
    pack: Option<&'a Ordered>,
    frames: Vec<u8>,
    framed: u64,
}

impl Worker for Replays<'_> {
    fn run(&mut self, run: Run, order: Order) {
        if let Some(pack) = self.pack {
            match write_frame(&run, &mut self.frames) {
                Ok(()) => self.framed += 1,
                Err(problem) => pack.fail(io::Error::other(problem)),
            }
        }
        self.circled.clear();
        let found = self.watch.run_before(&run, &mut self.circled);
        self.stops.clear();
        self.stops.extend(self.against.iter().map(|other| other.stop(&run)));
        self.sums.add(&run, &found, &self.circled, &self.stops, order);
    }

    fn end_of_batch(&mut self, batch: u64) {
        if let Some(pack) = self.pack {
            pack.put(batch, std::mem::take(&mut self.frames), std::mem::take(&mut self.framed));
        }
    }
}

/// Guards that know how long the runs of each kind are that are looked at, if that matters to them. The runs are read for it, so what can be
/// read only once teaches nothing.
pub fn learned(reading: &Reading<'_>, guards: Guards) -> Result<Guards, SettingsProblem> {
    let stays = |path: &PathBuf| path.metadata().is_ok_and(|there| there.is_file() || there.is_dir());
    if !guards.learn_what_is_long() || !reading.recorded.files.iter().all(stays) {
        return Ok(guards);
    }
    let lengths = Lengths::of_runs(&Reading { detail: Detail::FINGERPRINTS, ..*reading });
    reading.progress.begins_anew();
    guards.knowing(&lengths)
}

/// Takes every run of the files through the guards. Fails only when the packed file cannot be written.
pub fn replay(reading: &Reading<'_>, ask: &Ask<'_>) -> io::Result<Summary> {
    let pack = ask.pack.map(Ordered::create).transpose()?;
    let against: Vec<Contender> = ask.against.iter().map(|other| other.contender()).collect();
    let (workers, unread) = each_run(reading, || Replays {
        watch: ask.guards.watch(),
        circled: circles::Watching::default(),
        against: &against,
        stops: Vec::new(),
        sums: Sums::new(ask, reading.recorded.files.len()),
        pack: pack.as_ref(),
        frames: Vec::new(),
        framed: 0,
    });
    let mut sums = Sums::new(ask, reading.recorded.files.len());
    for worker in workers {
        sums.merge(worker.sums);
    }
    let finished = !reading.progress.is_cancelled();
    let mut notes = notes(&sums, ask.guards);
    let (given, unused) = reading.recorded.labels.unused();
    if unused > 0 && finished {
        notes.push(format!("{unused} of {given} labels name no run that was read; a label needs a run's id or the path of its file"));
    }
    notes.extend(unread.left_alone.notes());
    if let Some(pack) = pack {
        if finished {
            pack.finish()?;
        } else {
            notes.push("the packed file was not written, because not everything was read".to_owned());
        }
    }
    let broken_of = |file: usize| unread.by_file.get(file).copied().unwrap_or(0);
    let files = reading.recorded.files.iter().zip(&sums.files).enumerate().map(|(index, (path, (runs, steps)))| FileRead {
        file: path.display().to_string(),
        runs: *runs,
        steps: *steps,
        broken_lines: broken_of(index),
    });
    let mut broken = unread.first;
    broken.truncate(SHOWN_BROKEN);
    let total = sums.total;
    let names = |names: &'static str| names.to_owned();
    Ok(Summary {
        version: VERSION,
        finished,
        files: files.collect(),
        runs: sums.runs,
        steps: sums.steps,
        tokens: sums.tokens,
        dollars: sums.dollars,
        broken_lines: unread.count,
        broken,
        presets: Preset::ALL
            .into_iter()
            .zip(sums.presets)
            .filter(|(_, runs)| *runs > 0)
            .map(|(preset, runs)| Counted { name: preset.name(), runs })
            .collect(),
        total: total.into(),
        circles: sums.circles.finish(),
        alone: Ender::ALL
            .into_iter()
            .zip(sums.alone)
            .filter(|(ender, _)| is_watched(ask.guards, *ender))
            .map(|(ender, tally)| Named { name: names(ender.code()), figures: tally.into() })
            .collect(),
        rules: Cause::ALL.into_iter().zip(sums.rules).filter_map(|(cause, rule)| rule_figures(cause, rule, &total)).collect(),
        nudges: Nudge::ALL.into_iter().zip(sums.nudges).filter_map(|(nudge, by_end)| nudge_figures(nudge, by_end)).collect(),
        groups: sums.groups.into_iter().map(Groups::finish).collect(),
        against: against.iter().zip(sums.against).map(|(other, tally)| Named { name: other.name.clone(), figures: tally.into() }).collect(),
        most_after: sums.most_after.finish(),
        files_left_alone: unread.left_alone.count(),
        notes,
    })
}

fn is_watched(guards: &Guards, ender: Ender) -> bool {
    match ender {
        Ender::Stall => guards.watches(Watched::Stall),
        Ender::Loop => guards.watches(Watched::Loop),
        Ender::Steps => guards.caps.steps.is_some(),
        Ender::Tokens => guards.caps.tokens.is_some(),
        Ender::Dollars => guards.caps.usd.is_some(),
        Ender::Minutes => guards.caps.time.is_some(),
    }
}

fn rule_figures(cause: Cause, RuleSums { tally, without_nudge, at, examples }: RuleSums, total: &Tally) -> Option<RuleFigures> {
    if tally.false_stops + tally.stopped + tally.unknown_stopped == 0 {
        return None;
    }
    Some(RuleFigures {
        rule: cause.code(),
        successful: tally.false_stops,
        failed: tally.stopped,
        unknown: tally.unknown_stopped,
        false_stops: Share::of(tally.false_stops, total.successful),
        failed_stopped: Share::of(tally.stopped, total.failed),
        saved_steps: tally.saved_steps,
        saved_tokens: tally.saved_tokens,
        saved_dollars: tally.saved_dollars,
        lost_steps: tally.lost_steps,
        lost_tokens: tally.lost_tokens,
        lost_dollars: tally.lost_dollars,
        unknown_after_steps: tally.unknown_after_steps,
        unknown_after_tokens: tally.unknown_after_tokens,
        unknown_after_dollars: tally.unknown_after_dollars,
        without_nudge,
        at: at.summary(),
        examples: examples.finish(),
    })
}

fn nudge_figures(nudge: Nudge, [successful, failed, unknown]: [Nudged; End::COUNT]) -> Option<NudgeFigures> {
    let seen = successful.runs + failed.runs + unknown.runs > 0;
    seen.then_some(NudgeFigures { rule: nudge.code(), successful, failed, unknown })
}

/// What a reader must know to read the figures rightly.
fn notes(sums: &Sums, guards: &Guards) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |count: u64, missing: &str, so: &str| {
        if count > 0 {
            notes.push(format!("no {missing} in {count} of {}: {so}", counted(sums.runs, "run")));
        }
    };
    if guards.caps.time.is_some() {
        note(sums.without_times, "times of steps", "there no limit of time ends a run");
    }
    if guards.caps.tokens.is_some() {
        note(sums.without_tokens, "tokens", "there no limit of tokens ends a run");
    }
    if guards.caps.usd.is_some() {
        note(sums.without_dollars, "costs", "there no limit of dollars ends a run");
    }
    note(
        sums.total.unknown,
        "word on success",
        "what comes after an end there would not have been spent, but whether it was worth it is not known; --labels FILE tells, --assume failed takes such runs for failed",
    );
    let of_stall = || sums.rules.iter().zip(Cause::ALL).filter(|(_, cause)| matches!(cause, Cause::Stall(_))).map(|(rule, _)| rule);
    let ended: u64 = of_stall().map(|rule| rule.tally.false_stops + rule.tally.stopped + rule.tally.unknown_stopped).sum();
    if ended > 0 {
        let without: u64 = of_stall().map(|rule| rule.without_nudge).sum();
        notes.push(format!("{without} of the {ended} stops of the stall detector came without a nudge before"));
    }
    if guards.watches(Watched::ToolCall) {
        notes.push(
            "tool_call: a message that a person answers begins a turn; similar queries are seen only where arguments are kept whole, and packed runs have none"
                .to_owned(),
        );
    }
    notes
}

/// What is to be read of all paths.
pub fn files_of(paths: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        let found = format::files(path).map_err(|error| named(path, error))?;
        if found.is_empty() {
            return Err(named(path, "nothing in this folder looks like recorded runs; name the files one by one"));
        }
        files.extend(found);
    }
    Ok(files)
}

fn named(path: &Path, problem: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {problem}", path.display()))
}

#[cfg(test)]
mod tests;
