//! One run, step by step: what the detector saw, what it had counted, what it said and why.
//!
//! Everything shown is read from the detector itself, which is handed the recorded steps one by one; nothing is counted here.

use crate::format::{self, Format, OpenError};
use crate::rules;
use crate::trace::{Broken, Detail, Kind, Run, Step};
use crate::tune::Amounts;
use runguard_core::detect::stall::{Counters, Preset, Rung, StallRule, StallSettings, StallState, Verdict};
use runguard_core::limits::InvalidSetting;
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};

/// A longer stretch in which nothing happens is folded.
const LONGEST_BORING: usize = 4;
/// Of a folded stretch so many stay at each end.
const KEPT_AT_ENDS: usize = 1;

/// Who answers a message that calls nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replies {
    /// Everything starts anew.
    Person,
    /// The program that drives the agent.
    Program,
}

impl Replies {
    /// In the runs a preset is made for.
    pub const fn of(preset: Preset) -> Self {
        match preset {
            Preset::Chatbot => Self::Person,
            Preset::Coding | Preset::Browser | Preset::Research => Self::Program,
        }
    }

    /// Hands a recorded step to the detector, as it would have been told of it live.
    pub(crate) fn observe(self, state: &mut StallState, settings: &StallSettings, step: &Step) -> Verdict {
        rules::observe(state, settings, step, self == Self::Person)
    }
}

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
    /// A person has answered: counting starts anew.
    pub starts_anew: bool,
    pub args_text: String,
    pub result_text: String,
}

impl ExplainedStep {
    /// Nothing that anybody would look for.
    fn is_boring(&self) -> bool {
        self.rung == Rung::GoOn && self.news != News::Known && !self.failed && !self.starts_anew
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
    pub settings: StallSettings,
    pub steps: Vec<ExplainedStep>,
    /// The number of the step after which the run is ended.
    pub stopped_after: Option<usize>,
    pub in_all: Amounts,
    /// What follows the stop: saved when the run failed, lost when it succeeded.
    pub after: Amounts,
}

/// Explains a run by these thresholds.
pub fn explain(run: &Run, settings: &StallSettings, replies: Replies) -> Result<Explained, InvalidSetting> {
    settings.check()?;
    let mut state = StallState::default();
    let mut explained = Explained {
        id: run.id.clone(),
        source: run.source.clone(),
        task: run.task.clone(),
        model: run.model.clone(),
        agent: run.agent.clone(),
        success: run.success,
        file: run.place.file.to_path_buf(),
        line: run.place.line,
        settings: settings.clone(),
        steps: Vec::with_capacity(run.steps.len()),
        stopped_after: None,
        in_all: Amounts::default(),
        after: Amounts::default(),
    };
    for (index, step) in run.steps.iter().enumerate() {
        let before = state.counters(settings);
        let verdict = replies.observe(&mut state, settings, step);
        let counters = state.counters(settings);
        let amounts = Amounts { steps: 1, tokens: step.tokens, dollars: step.dollars };
        explained.in_all.add(amounts);
        if explained.stopped_after.is_some() {
            explained.after.add(amounts);
        } else if verdict.rung == Rung::Stop {
            explained.stopped_after = Some(index + 1);
        }
        let message = step.kind == Kind::Message;
        let news = match step.kind {
            Kind::Call if counters.pairs > before.pairs && counters.latest_new => News::New,
            Kind::Call if counters.pairs > before.pairs => News::Known,
            Kind::Call | Kind::Message => News::NotCounted,
        };
        let texts = step.texts.as_deref();
        explained.steps.push(ExplainedStep {
            number: index + 1,
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
            rung: verdict.rung,
            rule: verdict.rule,
            why: if verdict.rung == Rung::GoOn { String::new() } else { verdict.to_string() },
            nudge: if verdict.rung >= Rung::Steer { verdict.nudge(&step.tool) } else { String::new() },
            starts_anew: message && before != Counters::default() && counters == Counters::default(),
            args_text: texts.map(|texts| texts.args.clone()).unwrap_or_default(),
            result_text: texts.map(|texts| texts.result.clone()).unwrap_or_default(),
        });
    }
    Ok(explained)
}

/// A stretch of a timeline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stretch<'a> {
    Shown(&'a [ExplainedStep]),
    /// Steps with news and nothing else.
    Folded(&'a [ExplainedStep]),
    /// What would not have been made.
    AfterStop(&'a [ExplainedStep]),
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
        if !after.is_empty() {
            stretches.push(Stretch::AfterStop(after));
        }
        stretches
    }

    /// What came of it, in words.
    pub fn verdict(&self) -> String {
        let Some(stopped) = self.stopped_after else {
            let told = self.steps.iter().filter(|step| step.rung >= Rung::Steer).count();
            return match told {
                0 => "Nothing fires: the run makes progress all the way.".to_owned(),
                1 => "The run is not stopped; the model is told once.".to_owned(),
                told => format!("The run is not stopped; the model is told {told} times."),
            };
        };
        let Amounts { steps, tokens, dollars } = self.after;
        if steps == 0 {
            return format!("Stopped after step {stopped}, its last: nothing is saved and nothing lost.");
        }
        let mut amounts = format!("{steps} of {} steps", self.in_all.steps);
        if tokens > 0 {
            amounts.push_str(&format!(", {tokens} tokens"));
        }
        if dollars > 0.0 {
            amounts.push_str(&format!(", ${dollars:.4}"));
        }
        match self.success {
            Some(false) => format!("Stopped after step {stopped}: saves {amounts}."),
            Some(true) => format!("Stopped after step {stopped}, although the run went on to succeed: a false stop that loses {amounts}."),
            None => format!("Stopped after step {stopped}: {amounts} are not made. Whether the run succeeded is not known."),
        }
    }
}

/// Which run is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The first of the file.
    First(PathBuf),
    Line(PathBuf, u64),
    Id(PathBuf, String),
    /// In one of the files that are named beside it.
    AnyFile(String),
}

impl Wanted {
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
pub fn find(wanted: &Wanted, files: &[PathBuf], format: Option<Format>) -> Result<(Run, bool), NotFound> {
    let (files, name) = match wanted {
        Wanted::First(file) => (std::slice::from_ref(file), "a run".to_owned()),
        Wanted::Line(file, line) => (std::slice::from_ref(file), format!("the run of line {line}")),
        Wanted::Id(file, id) => (std::slice::from_ref(file), format!("`{id}`")),
        Wanted::AnyFile(id) => (files, format!("`{id}`")),
    };
    let is_meant = |run: &Run| match wanted {
        Wanted::First(_) => true,
        Wanted::Line(_, line) => run.place.line == *line,
        Wanted::Id(_, id) | Wanted::AnyFile(id) => run.id == *id,
    };
    let (mut read, mut broken) = (0, Vec::new());
    for file in files {
        let mut runs = format::open(file, format, Detail::Texts).map_err(NotFound::Unreadable)?;
        while let Some(run) = runs.next() {
            match run {
                Ok(run) if is_meant(&run) => {
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
    use crate::rules::tests::{call, run};
    use std::io::Write;

    fn explained(steps: Vec<Step>) -> Explained {
        explain(&run("s", steps), &Preset::Coding.settings(), Replies::Program).unwrap()
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
        assert_eq!(explained.verdict(), "Stopped after step 4: saves 2 of 6 steps, 20 tokens, $1.0000.");
        let good = explain(&Run { success: Some(true), ..run("s", vec![call(1, 1); 6]) }, &explained.settings, Replies::Program).unwrap();
        assert!(good.verdict().contains("a false stop that loses 2 of 6 steps"), "{}", good.verdict());
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
            })
            .collect();
        assert_eq!(lengths, [('s', 1), ('f', 19), ('s', 1), ('s', 3), ('a', 4)], "the 21st is new as well");
        assert_eq!(lengths.iter().map(|(_, length)| length).sum::<usize>(), explained.steps.len());
    }

    #[test]
    fn a_person_who_answers_starts_counting_anew_and_waiting_is_not_counted() {
        let said = Step { kind: Kind::Message, tool: "__message__".into(), ..call(5, 1) };
        let wait = Step { tool: "wait".into(), ..call(1, 1) };
        let steps = vec![call(1, 1), call(1, 1), said, call(1, 1), wait];
        let explained = explain(&run("s", steps), &Preset::Coding.settings(), Replies::Person).unwrap();
        assert!(explained.steps[2].starts_anew && !explained.steps[1].starts_anew);
        assert_eq!((explained.steps[3].counters.identical, explained.steps[3].news), (1, News::New));
        assert_eq!((explained.steps[4].news, explained.stopped_after), (News::NotCounted, None));
    }

    #[test]
    fn a_run_is_named_in_four_ways() {
        let is_file = |path: &Path| ["a.jsonl", "b:3", "c#1"].iter().any(|name| Path::new(name) == path);
        let read = |text: &str| Wanted::read(text, is_file);
        assert_eq!(read("a.jsonl"), Wanted::First("a.jsonl".into()));
        assert_eq!(read("a.jsonl:12"), Wanted::Line("a.jsonl".into(), 12));
        assert_eq!(read("a.jsonl#r#1"), Wanted::Id("a.jsonl".into(), "r#1".into()));
        assert_eq!(read("b:3"), Wanted::First("b:3".into()), "a file of that name");
        assert_eq!(read("c#1#x"), Wanted::Id("c#1".into(), "x".into()));
        assert_eq!(read("run:7"), Wanted::AnyFile("run:7".into()));
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
        let path = file.path().to_owned();
        let found = |wanted: Wanted| find(&wanted, std::slice::from_ref(&path), None).map(|(run, others)| (run.id, others));
        assert_eq!(found(Wanted::First(path.clone())).unwrap(), ("a".to_owned(), true));
        assert_eq!(found(Wanted::Line(path.clone(), 2)).unwrap().0, "b");
        assert_eq!(found(Wanted::AnyFile("b".into())).unwrap().0, "b");
        let missing = found(Wanted::AnyFile("c".into())).unwrap_err().to_string();
        assert!(missing.contains("`c` is not among the 2 runs") && missing.contains(":3: "), "{missing}");
        assert!(matches!(found(Wanted::First("/nowhere".into())), Err(NotFound::Unreadable(_))));
        let (run, _) = find(&Wanted::AnyFile("b".into()), &[path], None).unwrap();
        assert_eq!(run.steps[0].texts.as_ref().unwrap().args, r#"{"c":"ls"}"#);
    }
}
