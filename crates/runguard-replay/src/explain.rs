//! One run, step by step: what the detector saw, what it had counted, what it said and why.
//!
//! The run is watched as `replay` watches it, by the same guards, and everything shown is read from them as they see the recorded
//! steps one by one; nothing is counted here.

use crate::evaluate::Recorded;
use crate::format::OpenError;
use crate::rules::{Cause, Guards, Onlooker, StepFindings};
use crate::trace::{Broken, Detail, Kind, Run};
use crate::tune::{Amounts, amounts};
use runguard_core::detect::stall::{Counters, Rung, StallRule, StallSettings, StallState, Verdict};
use runguard_guards::policy::Mode;
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};

/// A longer stretch in which nothing happens is folded.
const LONGEST_BORING: usize = 4;
/// Of a folded stretch so many stay at each end.
const KEPT_AT_ENDS: usize = 1;

/// Whether the call with its result had been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    New,
    Known,
    /// A message, or a tool that waits: that is neither progress nor a stall.
    NotCounted,
}

/// Shown short, since a run has few of them; in JSON whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub u64);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", (self.0 >> 32) ^ (self.0 & 0xffff_ffff))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:016x}", self.0))
    }
}

/// A finding of another guard or of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Other {
    pub rule: &'static str,
    /// In words.
    pub why: &'static str,
    /// It ends a run; otherwise it only observes.
    pub enforced: bool,
}

/// A step, and where the detector stood after it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExplainedStep {
    /// From 1.
    pub number: usize,
    pub message: bool,
    pub tool: String,
    /// Of the arguments, or of what was said.
    pub args: Fingerprint,
    /// `None`: the source has no result here; then the detector takes the call to give what it gave last time.
    pub result: Option<Fingerprint>,
    pub failed: bool,
    pub tokens: u64,
    pub dollars: f64,
    pub at_millis: Option<i64>,
    pub news: News,
    pub counters: Counters,
    pub rung: Rung,
    pub rule: Option<StallRule>,
    /// In words; empty while there is nothing to say.
    pub why: String,
    /// What the model is told.
    pub nudge: String,
    /// What other guards and budgets found here.
    pub others: Vec<Other>,
    /// The rule that ends the run after this step, as `replay` names it.
    pub ended_by: Option<&'static str>,
    /// A person has spoken after it: counting starts anew.
    pub starts_anew: bool,
    pub args_text: String,
    pub result_text: String,
}

impl ExplainedStep {
    /// Nothing that anybody would look for.
    fn is_boring(&self) -> bool {
        self.rung == Rung::GoOn && self.news != News::Known && !self.failed && !self.starts_anew && self.others.is_empty()
    }
}

/// A run with all its steps explained.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explained {
    pub id: String,
    pub source: String,
    pub task: String,
    pub model: String,
    pub agent: String,
    pub success: Option<bool>,
    pub file: PathBuf,
    pub line: u64,
    /// The kind of agent it was taken for.
    pub preset: &'static str,
    pub settings: StallSettings,
    pub steps: Vec<ExplainedStep>,
    /// The number of the step after which the run is ended.
    pub stopped_after: Option<usize>,
    /// The rule that ends it, as `replay` names it.
    pub stopped_by: Option<&'static str>,
    pub in_all: Amounts,
    /// What follows the stop: saved when the run failed, lost when it succeeded.
    pub after: Amounts,
}

/// Explains a run by these guards.
pub fn explain(run: &Run, guards: &Guards) -> Explained {
    let mut timeline = Timeline { steps: Vec::with_capacity(run.steps.len()), before: Counters::default() };
    let found = guards.watch().run_before(run, &mut timeline);
    Explained {
        id: run.id.clone(),
        source: run.source.clone(),
        task: run.task.clone(),
        model: run.model.clone(),
        agent: run.agent.clone(),
        success: run.success,
        file: run.place.file.to_path_buf(),
        line: run.place.line,
        preset: found.preset.name(),
        settings: guards.stall_settings_for(run, found.preset).clone(),
        steps: timeline.steps,
        stopped_after: found.ended.map(|(at, _)| at + 1),
        stopped_by: found.ended.map(|(_, cause)| cause.code()),
        in_all: amounts(&run.steps),
        after: found.ended.map(|(at, cause)| amounts(cause.spared(run, at))).unwrap_or_default(),
    }
}

/// Writes down what guards see.
struct Timeline {
    steps: Vec<ExplainedStep>,
    /// Of the stall detector, before the step at hand.
    before: Counters,
}

impl Onlooker for Timeline {
    fn before(&mut self, state: &StallState, settings: &StallSettings) {
        self.before = state.counters(settings);
    }

    fn after(&mut self, seen: &StepFindings<'_>) {
        let StepFindings { at, step, stall, verdict, others, ended } = *seen;
        if step.spoke == Some(true) {
            let before = std::mem::take(&mut self.before);
            if let Some(last) = self.steps.last_mut() {
                last.starts_anew = before != Counters::default();
            }
        }
        let counters = stall.map_or_else(Counters::default, |(state, settings)| state.counters(settings));
        let message = step.kind == Kind::Message;
        let news = match step.kind {
            Kind::Call if counters.pairs > self.before.pairs && counters.latest_new => News::New,
            Kind::Call if counters.pairs > self.before.pairs => News::Known,
            Kind::Call | Kind::Message => News::NotCounted,
        };
        // What only observes neither ends a run nor keeps a call back.
        let rung_of = |(verdict, mode): &(Verdict, Mode)| match (verdict.rung, mode) {
            (_, Mode::Off) => Rung::GoOn,
            (Rung::Stop | Rung::Block, Mode::Observe) => Rung::Observe,
            (rung, Mode::Observe | Mode::Enforce) => rung,
        };
        let rung = verdict.as_ref().map_or(Rung::GoOn, rung_of);
        let said = verdict.as_ref().map(|(verdict, _)| verdict).filter(|_| rung > Rung::GoOn);
        let texts = step.texts.as_deref();
        self.steps.push(ExplainedStep {
            number: at + 1,
            message,
            tool: String::from(&*step.tool),
            args: Fingerprint(step.args),
            result: step.result.map(Fingerprint),
            failed: step.error.is_some(),
            tokens: step.tokens,
            dollars: step.dollars,
            at_millis: step.at_millis,
            news,
            counters,
            rung,
            rule: said.and_then(|verdict| verdict.rule),
            why: said.map(ToString::to_string).unwrap_or_default(),
            nudge: said.filter(|_| rung >= Rung::Steer).map(|verdict| verdict.nudge(&step.tool)).unwrap_or_default(),
            others: others
                .iter()
                .filter(|(_, mode)| *mode != Mode::Off)
                .map(|(cause, mode)| Other { rule: cause.code(), why: cause.words(), enforced: *mode == Mode::Enforce })
                .collect(),
            ended_by: ended.map(Cause::code),
            starts_anew: message && self.before != Counters::default() && counters == Counters::default(),
            args_text: texts.map(|texts| texts.args.clone()).unwrap_or_default(),
            result_text: texts.map(|texts| texts.result.clone()).unwrap_or_default(),
        });
    }
}

/// A stretch of a timeline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stretch<'a> {
    Shown(&'a [ExplainedStep]),
    /// Steps with news and nothing else.
    Folded(&'a [ExplainedStep]),
    /// What would not have been made.
    AfterStop(&'a [ExplainedStep]),
    /// What a person asked for after that.
    Later(&'a [ExplainedStep]),
}

impl Explained {
    /// The run in stretches, those where nothing happens folded.
    pub fn stretches(&self) -> Vec<Stretch<'_>> {
        let end = self.stopped_after.unwrap_or(self.steps.len());
        let (made, after) = self.steps.split_at(end);
        let mut stretches = Vec::new();
        let mut rest = made;
        while let Some(first) = rest.first() {
            let boring = first.is_boring();
            let length = rest.iter().position(|step| step.is_boring() != boring).unwrap_or(rest.len());
            let (stretch, others) = rest.split_at(length);
            if boring && length > LONGEST_BORING {
                let (head, middle) = stretch.split_at(KEPT_AT_ENDS);
                let (middle, tail) = middle.split_at(middle.len() - KEPT_AT_ENDS);
                stretches.extend([Stretch::Shown(head), Stretch::Folded(middle), Stretch::Shown(tail)]);
            } else {
                stretches.push(Stretch::Shown(stretch));
            }
            rest = others;
        }
        let (spared, later) = after.split_at(after.len().min(self.after.steps as usize));
        let named = [(spared, Stretch::AfterStop as fn(_) -> _), (later, Stretch::Later)];
        stretches.extend(named.into_iter().filter(|(steps, _)| !steps.is_empty()).map(|(steps, name)| name(steps)));
        stretches
    }

    /// What came of it, in words.
    pub fn verdict(&self) -> String {
        let Some(stopped) = self.stopped_after else {
            let told = self.steps.iter().filter(|step| step.rung >= Rung::Steer).count();
            let all = self.steps.len();
            let failed = self.steps.iter().filter(|step| step.failed).count();
            let known = self.steps.iter().filter(|step| step.news == News::Known).count();
            return match told {
                0 if failed > 0 => format!("Nothing fires: {failed} of {all} steps failed, and no threshold is reached."),
                0 if known > 0 => format!("Nothing fires: {known} of {all} steps brought nothing new, and no threshold is reached."),
                0 => "Nothing fires: the run makes progress all the way.".to_owned(),
                1 => "The run is not stopped; the model is told once.".to_owned(),
                told => format!("The run is not stopped; the model is told {told} times."),
            };
        };
        let Amounts { steps, tokens, dollars } = self.after;
        if steps == 0 {
            let next = if stopped == self.steps.len() { ", its last" } else { "; a person spoke next" };
            return format!("Stopped after step {stopped}{next}: nothing is saved and nothing lost.");
        }
        let mut amounts = format!("{steps} of {} steps", self.in_all.steps);
        if tokens > 0 {
            amounts.push_str(&format!(", {tokens} tokens"));
        }
        if dollars > 0.0 {
            amounts.push_str(&format!(", ${dollars:.4}"));
        }
        let by = self.stopped_by.map(|rule| format!(" by {rule}")).unwrap_or_default();
        match self.success {
            Some(false) => format!("Stopped after step {stopped}{by}: saves {amounts}."),
            Some(true) => {
                format!("Stopped after step {stopped}{by}, although the run went on to succeed: a false stop that loses {amounts}.")
            }
            None => format!("Stopped after step {stopped}{by}: {amounts} are not made. Whether the run succeeded is not known."),
        }
    }
}

/// Which run is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhichRun {
    /// The first of the file.
    First(PathBuf),
    Line(PathBuf, u64),
    Id(PathBuf, String),
    /// In one of the files that are named beside it.
    AnyFile(String),
}

impl WhichRun {
    /// `FILE`, `FILE:LINE`, `FILE#ID`, or else an id. A file that is there under the whole name is that file.
    pub fn read(text: &str, is_file: impl Fn(&Path) -> bool) -> Self {
        let file = |name: &str| Some(PathBuf::from(name)).filter(|path| is_file(path));
        let line = || {
            let (name, line) = text.rsplit_once(':')?;
            Some(Self::Line(file(name)?, line.parse().ok()?))
        };
        // Ids may hold a # themselves, names of files too: the first that leaves a file is meant.
        let id = || text.match_indices('#').find_map(|(at, _)| Some(Self::Id(file(&text[..at])?, text[at + 1..].to_owned())));
        file(text).map(Self::First).or_else(line).or_else(id).unwrap_or_else(|| Self::AnyFile(text.to_owned()))
    }
}

impl WhichRun {
    /// The one file it can be in.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::First(file) | Self::Line(file, _) | Self::Id(file, _) => Some(file),
            Self::AnyFile(_) => None,
        }
    }
}

/// Why no run was found.
#[derive(Debug)]
pub enum NotFound {
    Unreadable(OpenError),
    /// With what could not be read on the way, which may have been it.
    Missing {
        wanted: String,
        runs: u64,
        broken: Vec<Broken>,
    },
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::Missing { wanted, runs, broken } => {
                write!(f, "{wanted} is not among the {runs} runs that were read")?;
                if let Some(first) = broken.first() {
                    write!(f, "; {} could not be read, the first: {first}", broken.len())?;
                }
                f.write_str(". Say FILE, FILE:LINE, FILE#ID, or an id and the files to look in")
            }
        }
    }
}

impl std::error::Error for NotFound {}

/// Broken lines that are kept while looking for a run.
const KEPT_BROKEN: usize = 20;

/// The run that is meant, with its texts, and whether its file holds others.
pub fn find(wanted: &WhichRun, recorded: &Recorded<'_>, detail: Detail) -> Result<(Run, bool), NotFound> {
    let (files, name) = match wanted {
        WhichRun::First(file) => (std::slice::from_ref(file), "a run".to_owned()),
        WhichRun::Line(file, line) => (std::slice::from_ref(file), format!("the run of line {line}")),
        WhichRun::Id(file, id) => (std::slice::from_ref(file), format!("`{id}`")),
        WhichRun::AnyFile(id) => (recorded.files, format!("`{id}`")),
    };
    let is_meant = |run: &Run| match wanted {
        WhichRun::First(_) => true,
        WhichRun::Line(_, line) => run.place.line == *line,
        WhichRun::Id(_, id) | WhichRun::AnyFile(id) => run.id == *id,
    };
    let (mut read, mut broken) = (0, Vec::new());
    for file in files {
        let mut runs = match recorded.open(file, detail) {
            Err(error) if recorded.is_left_alone(file, &error) => continue,
            runs => runs.map_err(NotFound::Unreadable)?,
        };
        while let Some(run) = runs.next() {
            match run {
                Ok(mut run) if is_meant(&run) => {
                    recorded.labels.label(&mut run);
                    let others = read > 0 || runs.any(|other| other.is_ok());
                    return Ok((run, others));
                }
                Ok(_) => read += 1,
                Err(problem) if broken.len() < KEPT_BROKEN => broken.push(problem),
                Err(_) => {}
            }
        }
    }
    Err(NotFound::Missing { wanted: name, runs: read, broken })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{Order, Progress, Reading, Worker, each_run, files_of};
    use crate::format;
    use crate::labels::Labels;
    use crate::packed::tests::{any_run, pack};
    use crate::replay::{Ask, learned, replay};
    use crate::rules::tests::{call, failed, run};
    use crate::rules::{Caps, Presets, Watched};
    use crate::trace::{ReadAt, Step};
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use runguard_core::detect::stall::{CallEffect, Preset};
    use runguard_guards::policy::Tree;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::io::Write;
    use std::sync::LazyLock;

    fn guards(preset: Preset, watched: &[Watched]) -> Guards {
        Guards::new(Presets { always: Some(preset), by_source: Vec::new() }, &Tree::new(), watched, Caps::default()).unwrap()
    }

    fn explained(steps: Vec<Step>) -> Explained {
        explain(&run("s", steps), &guards(Preset::Coding, &[Watched::Stall]))
    }

    #[test]
    fn a_run_that_repeats_itself_is_told_and_stopped_and_what_follows_is_saved() {
        let explained = explained(vec![call(1, 1); 6]);
        let rungs: Vec<Rung> = explained.steps.iter().map(|step| step.rung).collect();
        assert_eq!(rungs[..4], [Rung::GoOn, Rung::GoOn, Rung::Steer, Rung::Stop]);
        let news: Vec<News> = explained.steps.iter().map(|step| step.news).collect();
        assert_eq!(news[..3], [News::New, News::Known, News::Known]);
        let counted: Vec<u32> = explained.steps.iter().map(|step| step.counters.identical).collect();
        assert_eq!(counted[..4], [1, 2, 3, 4]);
        assert_eq!(
            (explained.stopped_after, explained.after.steps, explained.after.tokens, explained.after.dollars),
            (Some(4), 2, 20, 1.0)
        );
        assert_eq!(explained.steps[3].why, "the same call gave the same result 4 times in a row");
        assert!(explained.steps[2].nudge.contains("sh 3 times"), "{:?}", explained.steps[2].nudge);
        assert_eq!(explained.verdict(), "Stopped after step 4 by stall.identical: saves 2 of 6 steps, 20 tokens, $1.0000.");
        let good = Run { success: Some(true), ..run("s", vec![call(1, 1); 6]) };
        let good = explain(&good, &guards(Preset::Coding, &[Watched::Stall]));
        assert!(good.verdict().contains("a false stop that loses 2 of 6 steps"), "{}", good.verdict());
    }

    #[test]
    fn what_fires_at_nothing_is_called_progress_only_where_it_is() {
        let verdict = |steps| explained(steps).verdict();
        assert_eq!(verdict(vec![call(1, 1), call(2, 2)]), "Nothing fires: the run makes progress all the way.");
        assert_eq!(verdict(vec![failed(1, 1)]), "Nothing fires: 1 of 1 steps failed, and no threshold is reached.");
        let repeated = "Nothing fires: 1 of 2 steps brought nothing new, and no threshold is reached.";
        assert_eq!(verdict(vec![call(1, 1); 2]), repeated);
    }

    /// What `explain` says of each run, added up as `replay` adds it.
    #[derive(Default)]
    struct Explains {
        guards: Option<Guards>,
        /// By rule: runs it ends, and steps after them.
        ends: BTreeMap<&'static str, (u64, u64)>,
        /// By rule, file and line: after which step.
        each: BTreeMap<(&'static str, PathBuf, u64), usize>,
        runs: u64,
    }

    impl Worker for Explains {
        fn run(&mut self, run: Run, _: Order) {
            let explained = explain(&run, self.guards.as_ref().unwrap());
            self.runs += 1;
            let ends: Vec<_> = explained.steps.iter().filter_map(|step| Some((step.number, step.ended_by?))).collect();
            let said: Vec<_> = explained.stopped_after.zip(explained.stopped_by).into_iter().collect();
            assert_eq!(ends, said, "{}: the timeline and the verdict", run.id);
            if let [(after, rule)] = said[..] {
                let (runs, steps) = self.ends.entry(rule).or_default();
                (*runs, *steps) = (*runs + 1, *steps + explained.after.steps);
                self.each.insert((rule, explained.file, explained.line), after);
            }
        }
    }

    /// Replays the files, explains each of their runs with its texts, and compares.
    fn explain_agrees_with_replay(files: &[PathBuf], guards: &Guards) -> u64 {
        let labels = Labels::default();
        let progress = Progress::default();
        let reading = |detail| Reading { recorded: Recorded::of(files, &labels), detail, threads: 2, progress: &progress };
        let guards = &learned(&reading(Detail::FINGERPRINTS), guards.clone()).unwrap();
        let ask = Ask { guards, against: &[], by: &[], pack: None };
        let replayed = replay(&reading(Detail::FINGERPRINTS), &ask).unwrap();
        let worker = || Explains { guards: Some(guards.clone()), ..Explains::default() };
        let mut all = Explains::default();
        for explains in each_run(&reading(Detail::TEXTS), worker).0 {
            all.runs += explains.runs;
            all.each.extend(explains.each);
            for (rule, (runs, steps)) in explains.ends {
                let sum = all.ends.entry(rule).or_default();
                *sum = (sum.0 + runs, sum.1 + steps);
            }
        }
        let counted = replayed.rules.iter().map(|rule| {
            (rule.rule, (rule.successful + rule.failed + rule.unknown, rule.saved_steps + rule.lost_steps + rule.unknown_after_steps))
        });
        let counted: BTreeMap<_, _> = counted.filter(|(_, (runs, _))| *runs > 0).collect();
        assert_eq!((replayed.runs, &counted), (all.runs, &all.ends));
        for (rule, example) in replayed.rules.iter().flat_map(|rule| rule.examples.iter().map(|example| (rule.rule, example))) {
            let place = (rule, PathBuf::from(&example.file), example.line);
            assert_eq!(all.each.get(&place), Some(&(example.step as usize)), "{place:?}");
        }
        all.runs
    }

    /// Of whatever runs, and of those of the folder `RUNGUARD_TRACES` where there is one: `./test explain`.
    #[test]
    fn explain_names_the_step_and_the_rule_that_replay_counted() {
        let watched = [Watched::Stall, Watched::Loop];
        let caps = Caps { steps: Some(35), ..Caps::default() };
        let some = Guards::new(Presets::default(), &Tree::new(), &watched, caps).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let packed = folder.path().join("runs.packed");
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let runs: Vec<Run> = (0..400)
            .map(|line| Run { place: ReadAt { file: packed.as_path().into(), line }, ..any_run().new_tree(&mut runner).unwrap().current() })
            .collect();
        pack(&packed, &runs);
        assert_eq!(explain_agrees_with_replay(&[packed], &some), 400);
        if let Some(folder) = std::env::var_os("RUNGUARD_TRACES") {
            let files = files_of(Path::new(&folder)).unwrap();
            let all = Guards::new(Presets::default(), &Tree::new(), &watched, Caps::default()).unwrap();
            for guards in [all, some] {
                println!("{} runs of {} files", explain_agrees_with_replay(&files, &guards), files.len());
            }
        }
    }

    #[test]
    fn stretches_without_an_event_are_folded_and_nothing_is_left_out() {
        let mut steps: Vec<Step> = (0..20).map(|index| call(index, index)).collect();
        steps.extend(vec![call(99, 1); 8]);
        let explained = explained(steps);
        let stretches = explained.stretches();
        let lengths: Vec<(char, usize)> = stretches
            .iter()
            .map(|stretch| match stretch {
                Stretch::Shown(steps) => ('s', steps.len()),
                Stretch::Folded(steps) => ('f', steps.len()),
                Stretch::AfterStop(steps) => ('a', steps.len()),
                Stretch::Later(steps) => ('l', steps.len()),
            })
            .collect();
        assert_eq!(lengths, [('s', 1), ('f', 19), ('s', 1), ('s', 3), ('a', 4)], "the 21st is new as well");
        assert_eq!(lengths.iter().map(|(_, length)| length).sum::<usize>(), explained.steps.len());
    }

    #[test]
    fn what_a_person_asks_for_after_the_stop_is_not_spared() {
        let mut steps = vec![call(1, 1); 9];
        steps[6].spoke = Some(true);
        let talk = explained(steps.clone());
        assert_eq!((talk.stopped_after, talk.after.steps), (Some(4), 2));
        let stretches = talk.stretches();
        assert!(
            matches!(stretches[..], [.., Stretch::AfterStop(spared), Stretch::Later(later)] if (spared.len(), later.len()) == (2, 3)),
            "{stretches:?}"
        );
        steps[4].spoke = Some(true);
        assert_eq!(explained(steps).verdict(), "Stopped after step 4; a person spoke next: nothing is saved and nothing lost.");
    }

    #[test]
    fn a_person_who_answers_starts_counting_anew_and_waiting_is_not_counted() {
        let said = Step { kind: Kind::Message, tool: "__message__".into(), ..call(5, 1) };
        let wait = Step { tool: "wait".into(), ..call(1, 1) };
        let steps = vec![call(1, 1), call(1, 1), said, call(1, 1), wait];
        let explained = explain(&run("s", steps), &guards(Preset::Chatbot, &[Watched::Stall]));
        assert!(explained.steps[2].starts_anew && !explained.steps[1].starts_anew);
        assert_eq!((explained.steps[3].counters.identical, explained.steps[3].news), (1, News::New));
        assert_eq!((explained.steps[4].news, explained.stopped_after), (News::NotCounted, None));
    }

    #[test]
    fn a_run_is_named_in_four_ways() {
        let is_file = |path: &Path| ["a.jsonl", "b:3", "c#1"].iter().any(|name| Path::new(name) == path);
        let read = |text: &str| WhichRun::read(text, is_file);
        assert_eq!(read("a.jsonl"), WhichRun::First("a.jsonl".into()));
        assert_eq!(read("a.jsonl:12"), WhichRun::Line("a.jsonl".into(), 12));
        assert_eq!(read("a.jsonl#r#1"), WhichRun::Id("a.jsonl".into(), "r#1".into()));
        assert_eq!(read("b:3"), WhichRun::First("b:3".into()), "a file of that name");
        assert_eq!(read("c#1#x"), WhichRun::Id("c#1".into(), "x".into()));
        assert_eq!(read("run:7"), WhichRun::AnyFile("run:7".into()));
    }

    #[test]
    fn a_run_is_found_by_line_and_id_and_what_could_not_be_read_is_told() {
        let step =
            r#"{"kind":"call","tool":"sh","args":{"c":"ls"},"args_hash":"1","result":"x","result_hash":"2","result_len":1,"error":false}"#;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for id in ["a", "b"] {
            writeln!(file, r#"{{"run_id":"{id}","source":"s","task":"t","success":false,"steps":[{step}]}}"#).unwrap();
        }
        writeln!(file, "{{").unwrap();
        let (path, labels) = (file.path().to_owned(), Labels::default());
        let found = |wanted: WhichRun| {
            find(&wanted, &Recorded::of(std::slice::from_ref(&path), &labels), Detail::TEXTS).map(|(run, others)| (run.id, others))
        };
        assert_eq!(found(WhichRun::First(path.clone())).unwrap(), ("a".to_owned(), true));
        assert_eq!(found(WhichRun::Line(path.clone(), 2)).unwrap().0, "b");
        assert_eq!(found(WhichRun::AnyFile("b".into())).unwrap().0, "b");
        let missing = found(WhichRun::AnyFile("c".into())).unwrap_err().to_string();
        assert!(missing.contains("`c` is not among the 2 runs") && missing.contains(":3: "), "{missing}");
        assert!(matches!(found(WhichRun::First("/nowhere".into())), Err(NotFound::Unreadable(_))));
        let other = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
        std::fs::write(other.path(), r#"{"name":"package"}"#).unwrap();
        let files = [other.path().to_owned(), path];
        let named = Recorded::of(&files, &labels);
        assert!(matches!(find(&WhichRun::AnyFile("b".into()), &named, Detail::TEXTS), Err(NotFound::Unreadable(_))), "by its name");
        let in_a_folder = Recorded { given: &files[1..], ..named };
        let (run, _) = find(&WhichRun::AnyFile("b".into()), &in_a_folder, Detail::TEXTS).unwrap();
        assert_eq!(run.steps[0].texts.as_ref().unwrap().args, r#"{"c":"ls"}"#);
    }

    #[test]
    fn a_run_that_is_read_from_a_copy_is_told_as_of_the_file_that_was_named() {
        let step = r#"{"kind":"call","tool":"sh","args":{},"args_hash":"1","result":"x","result_hash":"2","result_len":1,"error":false}"#;
        let mut copy = tempfile::NamedTempFile::new().unwrap();
        writeln!(copy, r#"{{"run_id":"a","source":"s","task":"t","success":false,"steps":[{step}]}}"#).unwrap();
        writeln!(copy, "{{").unwrap();
        let (files, labels) = ([PathBuf::from("named.jsonl")], Labels::default());
        let instead = [(files[0].clone(), copy.path().to_owned())].into();
        let recorded = Recorded { instead: &instead, ..Recorded::of(&files, &labels) };
        let (run, _) = find(&WhichRun::AnyFile("a".into()), &recorded, Detail::TEXTS).unwrap();
        assert_eq!(*run.place.file, *files[0]);
        let missing = find(&WhichRun::AnyFile("b".into()), &recorded, Detail::TEXTS).unwrap_err().to_string();
        assert!(missing.contains("the first: named.jsonl:2"), "{missing}");
        let guards = Guards::new(Presets::default(), &Tree::new(), &[Watched::Stall], Caps::default()).unwrap();
        let (detail, progress) = (Detail::FINGERPRINTS, Progress::default());
        let reading = Reading { recorded, detail, threads: 1, progress: &progress };
        let summary = replay(&reading, &Ask { guards: &guards, against: &[], by: &[], pack: None }).unwrap();
        assert_eq!((summary.runs, summary.broken[0].file.as_path()), (1, files[0].as_path()));
    }

    /// Every way in which a run can be watched: kinds of agents, guards, modes, limits, exceptions for tools.
    static WAYS: LazyLock<Vec<Guards>> = LazyLock::new(ways);

    fn ways() -> Vec<Guards> {
        let caps = Caps { steps: Some(30), ..Caps::default() };
        let all = [Watched::Stall, Watched::Loop, Watched::ToolCall];
        let tree = |value: serde_json::Value| value.as_object().unwrap().clone();
        let observed = tree(json!({"stall": {"mode": "observe"}}));
        let by_tool = tree(json!({"stall": {"tools": {"sh": {"identical": {"steer": 0, "block": 0, "stop": 7}}}}, "loop": {"repeats": 3}}));
        let mut ways = Vec::new();
        for always in Preset::ALL.into_iter().map(Some).chain([None]) {
            let presets = Presets { always, by_source: Vec::new() };
            for (settings, watched, caps) in [
                (&Tree::new(), &all[..2], Caps::default()),
                (&Tree::new(), &all[..], caps),
                (&observed, &all[..2], Caps::default()),
                (&by_tool, &all[1..], caps),
                (&by_tool, &all[..2], Caps::default()),
            ] {
                ways.push(Guards::new(presets.clone(), settings, watched, caps).unwrap());
            }
        }
        ways
    }

    /// What is explained is what `replay` counts.
    fn assert_one_truth(run: &Run, guards: &Guards) {
        let (found, explained) = (guards.watch().run(run), explain(run, guards));
        assert_eq!(found.ended.map(|(at, _)| at + 1), explained.stopped_after, "{}", run.id);
        assert_eq!(found.ended.map(|(_, cause)| cause.code()), explained.stopped_by, "{}", run.id);
        let ended: Vec<(usize, &str)> = explained.steps.iter().filter_map(|step| Some((step.number, step.ended_by?))).collect();
        assert_eq!(ended, found.ended.map(|(at, cause)| (at + 1, cause.code())).into_iter().collect::<Vec<_>>(), "{}", run.id);
        if let Some((at, cause)) = found.ended {
            let step = &explained.steps[at];
            let is_told = match cause {
                Cause::Stall(rule) => step.rung >= Rung::Block && step.rule == Some(rule),
                Cause::Cycle | Cause::Ceiling | Cause::Budget(_) => {
                    step.others.iter().any(|other| other.rule == cause.code() && other.enforced)
                }
            };
            assert!(is_told, "{}: {step:?}", run.id);
        }
    }

    #[test]
    fn what_is_explained_of_recorded_runs_is_what_replay_counts() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
        let mut ended = 0;
        for file in format::files(&fixtures).unwrap() {
            for run in format::open(&file, None, Detail::TEXTS).unwrap().filter_map(Result::ok) {
                // Fixtures are short: told again and again, something ends them.
                let again = Run { steps: run.steps.iter().cycle().take(40).cloned().collect(), ..run.clone() };
                for guards in &*WAYS {
                    assert_one_truth(&run, guards);
                    assert_one_truth(&again, guards);
                    ended += usize::from(guards.watch().run(&again).ended.is_some());
                }
            }
        }
        assert!(ended > 100, "{ended}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn what_is_explained_is_what_replay_counts(
            steps in prop::collection::vec((0_u64..5, 0_u64..3, 0_u64..4), 0..60), agent in 0_usize..3
        ) {
            // One that works, one that answers a person, one in front of a browser.
            let made_by = |step: Step| match agent {
                1 if step.kind == Kind::Call => Step { tool: "get_order".into(), ..step },
                2 if step.kind == Kind::Call => Step { effect: CallEffect::Acts { on: step.args }, ..step },
                _ => step,
            };
            let steps = steps.into_iter().map(|(kind, args, result)| made_by(crate::front::tests::step(kind, args, result))).collect();
            let run = run("mine", steps);
            for guards in &*WAYS {
                assert_one_truth(&run, guards);
            }
        }
    }
}
