//! `runguard explain`: one recorded run, step by step.

use super::data_folder::{Copies, remove_copies_when_stopped};
use super::watched::{GuardArgs, ReadArgs, ThresholdArgs, misset};
use crate::failure::Failure;
use crate::output;
use clap::Args;
use owo_colors::OwoColorize;
use runguard_core::detect::stall::Rung;
use runguard_replay::evaluate::{Progress, Reading, Recorded};
use runguard_replay::explain::{Explained, ExplainedStep, News, NotFound, Stretch, WhichRun, explain, find};
use runguard_replay::format;
use runguard_replay::html;
use runguard_replay::replay::learned;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::thread;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runguard explain runs.jsonl:12
  runguard explain runs.jsonl#run-7 --settings runguard.toml
  runguard explain run-7 runs/*.jsonl.gz --html run-7.html")]
pub(crate) struct Explain {
    /// The run: FILE (its first), `FILE:LINE`, `FILE#ID`, or an id that is looked for in the files
    run: String,
    /// Files or folders to look in
    files: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
    #[command(flatten)]
    thresholds: ThresholdArgs,
    #[command(flatten)]
    watch: GuardArgs,
    /// Show every step; otherwise stretches in which nothing happens are folded
    #[arg(long)]
    all: bool,
    /// Write a page, self-contained; - writes it to the output
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
    /// Print the steps as JSON
    #[arg(long)]
    json: bool,
}

/// All files of what was named, folders opened up.
pub(crate) fn files_of(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        let found = format::files(path).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", path.display())))?;
        if found.is_empty() {
            return Err(Failure::Usage(format!("{}: there is no file with runs in it", path.display())));
        }
        files.extend(found);
    }
    Ok(files)
}

/// A page to a file, or as it is to the output.
pub(crate) fn write(target: &str, content: &str) -> Result<(), Failure> {
    if target == "-" {
        use std::io::Write;
        std::io::stdout().lock().write_all(content.as_bytes())?;
        return Ok(());
    }
    std::fs::write(target, content).map_err(|error| Failure::Failed(format!("cannot write {target}: {error}")))
}

impl Explain {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let guards = self.watch.guards(&self.thresholds, &self.thresholds.changes()?)?;
        let labels = self.read.labels()?;
        let wanted = WhichRun::read(&self.run, Path::exists);
        if matches!(wanted, WhichRun::AnyFile(_)) && self.files.is_empty() {
            return Err(Failure::NotFound(format!(
                "there is no file {}; for an id, name the files to look in: `runguard explain ID FILE…`",
                output::clean(&self.run)
            )));
        }
        let files = files_of(&self.files)?;
        remove_copies_when_stopped();
        let copies = Copies::where_rows_wait(wanted.file().into_iter().chain(&files));
        let named: Vec<PathBuf> = wanted.file().into_iter().chain(&self.files).cloned().collect();
        let recorded = Recorded { files: &files, given: &named, format: self.read.format, labels: &labels, instead: copies.instead() };
        let (run, others) = find(&wanted, &recorded, guards.detail_with_texts()).map_err(|error| match error {
            NotFound::Unreadable(_) => Failure::Usage(error.to_string()),
            NotFound::Missing { .. } => Failure::NotFound(error.to_string()),
        })?;
        if others && matches!(wanted, WhichRun::First(_)) {
            output::remark("note", "the file holds other runs as well; FILE:LINE or FILE#ID takes one of them");
        }
        // What is long is said by the runs it stands among.
        let among: Vec<PathBuf> = wanted.file().into_iter().chain(&files).cloned().collect();
        let recorded = Recorded { files: &among, ..recorded };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let reading = Reading { recorded, detail: guards.detail(), threads, progress: &Progress::default() };
        let explained = explain(&run, &learned(&reading, guards).map_err(|problem| misset(&problem))?);
        if let Some(target) = &self.html {
            write(target, &html::explain_page(&explained))?;
        }
        if self.json {
            let value = serde_json::to_value(&explained).map_err(|error| Failure::Failed(error.to_string()))?;
            return output::json(&value);
        }
        if self.html.as_deref() == Some("-") {
            return Ok(());
        }
        for line in lines(&explained, if self.all { Fold::Nothing } else { Fold::Boring }, output::terminal_columns()) {
            output::prose(&line)?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fold {
    Nothing,
    Boring,
}

/// What the columns of a step are called, and how wide they are where there is room for all.
const COLUMNS: [(&str, usize); 15] = [
    ("step", 5),
    ("tool", 22),
    ("call", 8),
    ("result", 8),
    ("new?", 5),
    ("row", 5),
    ("round", 7),
    ("news", 7),
    ("error", 6),
    ("said", 5),
    ("check", 5),
    ("back", 5),
    ("same", 5),
    ("fails", 5),
    ("long", 5),
];
const TOOL: usize = 1;
/// What a step was known by, which nobody reads: it goes first where there is no room.
const HASHES: [usize; 2] = [2, 3];
/// The first of those in which something is counted.
const FIRST_COUNT: usize = 5;
const NOTHING: &str = "–";
/// Behind the name of a tool.
const FAILED: &str = " ✗";
/// Less of a tool's name tells no two of them apart.
const SHORTEST_TOOL: usize = 8;

fn blanks_before(place: usize) -> usize {
    match place {
        0 => 0,
        TOOL..FIRST_COUNT => 2,
        _ => 1,
    }
}

/// How wide each column is; those that are left out have no width.
struct Layout([usize; COLUMNS.len()]);

impl Layout {
    /// All of it, or what fits between the edges of a terminal: without what counted nothing, then without hashes, then with shorter names.
    fn of(explained: &Explained, room: Option<u16>) -> Self {
        let mut widths = COLUMNS.map(|(_, width)| width);
        let Some(room) = room.map(usize::from) else { return Self(widths) };
        let rows: Vec<_> = explained.steps.iter().map(|step| cells(step, explained)).collect();
        for (place, width) in widths.iter_mut().enumerate() {
            let longest = rows.iter().map(|row| row[place].chars().count()).max().unwrap_or(0);
            *width = if place >= FIRST_COUNT && rows.iter().all(|row| row[place] == NOTHING) {
                0
            } else {
                longest.max(COLUMNS[place].0.len()).min(COLUMNS[place].1.max(longest))
            };
        }
        widths[TOOL] = widths[TOOL].min(COLUMNS[TOOL].1);
        let taken = |widths: &[usize]| {
            widths.iter().enumerate().filter(|(_, width)| **width > 0).map(|(place, width)| blanks_before(place) + width).sum::<usize>()
        };
        if taken(&widths) > room {
            for place in HASHES {
                widths[place] = 0;
            }
        }
        let too_many = taken(&widths).saturating_sub(room);
        widths[TOOL] = widths[TOOL].saturating_sub(too_many).max(SHORTEST_TOOL.min(widths[TOOL]));
        Self(widths)
    }

    fn line(&self, cells: &[String; COLUMNS.len()]) -> String {
        let mut line = String::new();
        for (place, (cell, &width)) in cells.iter().zip(&self.0).enumerate().filter(|(_, (_, width))| **width > 0) {
            line.extend(std::iter::repeat_n(' ', blanks_before(place)));
            let text = match cell.strip_suffix(FAILED) {
                Some(name) => output::cut(name, width.saturating_sub(FAILED.chars().count())) + FAILED,
                None => output::cut(cell, width),
            };
            // Names begin below each other, numbers end so.
            let _ = if (TOOL..FIRST_COUNT).contains(&place) { write!(line, "{text:width$}") } else { write!(line, "{text:>width$}") };
        }
        line
    }
}

fn lines(explained: &Explained, fold: Fold, room: Option<u16>) -> Vec<String> {
    let layout = Layout::of(explained, room);
    let mut lines = vec![about(explained)];
    lines.push(layout.line(&COLUMNS.map(|(name, _)| name.to_owned())).dimmed().to_string());
    for stretch in explained.stretches() {
        match (stretch, fold) {
            (Stretch::Shown(steps), _) | (Stretch::Folded(steps), Fold::Nothing) => {
                lines.extend(steps.iter().flat_map(|step| step_lines(step, explained, &layout)));
            }
            (Stretch::Folded(steps), Fold::Boring) => {
                lines.push(format!("{:>5} {}", "⋮", format!("{} steps, all with something new (--all shows them)", steps.len()).dimmed()));
            }
            (Stretch::AfterStop(steps) | Stretch::Later(steps), _) => {
                let (mark, what) = match stretch {
                    Stretch::Later(_) => ("⋮", "that a person asked for after that"),
                    _ => ("✂", "that would not have been made"),
                };
                lines.push(format!("{mark:>5} {}", format!("{} steps {what}:", steps.len()).dimmed()));
                if fold == Fold::Nothing {
                    lines.extend(steps.iter().map(|step| layout.line(&cells(step, explained)).dimmed().to_string()));
                }
            }
        }
    }
    let verdict = explained.verdict();
    let verdict = match (explained.stopped_after, explained.success) {
        (None, _) => verdict.green().to_string(),
        (Some(_), Some(true)) => verdict.red().to_string(),
        (Some(_), Some(false) | None) => verdict.yellow().to_string(),
    };
    lines.extend([String::new(), verdict]);
    lines
}

fn about(explained: &Explained) -> String {
    let ended = match explained.success {
        Some(true) => "succeeded".green().to_string(),
        Some(false) => "failed".red().to_string(),
        None => "outcome not known".dimmed().to_string(),
    };
    let mut parts = vec![format!("run {}", output::clean(&explained.id).bold())];
    for (name, value) in
        [("source", &explained.source), ("task", &explained.task), ("model", &explained.model), ("agent", &explained.agent)]
    {
        if !value.is_empty() {
            parts.push(format!("{name} {}", output::clean(value)));
        }
    }
    parts.push(format!("watched as {}", explained.preset));
    parts.push(ended);
    parts.push(format!("{}:{}", output::clean(&explained.file.display().to_string()), explained.line).dimmed().to_string());
    parts.join(" · ")
}

/// A step, and below it what fired.
fn step_lines(step: &ExplainedStep, explained: &Explained, layout: &Layout) -> Vec<String> {
    let row = layout.line(&cells(step, explained));
    let (row, mark) = match step.rung {
        Rung::Stop => (row.red().to_string(), "■ stop".red().bold().to_string()),
        Rung::Block => (row.yellow().to_string(), "▲ block".yellow().bold().to_string()),
        Rung::Steer => (row.yellow().to_string(), "▲ steer".yellow().bold().to_string()),
        Rung::Observe => (row, "· observed".dimmed().to_string()),
        Rung::GoOn => (row, String::new()),
    };
    let mut lines = vec![row];
    if step.rung > Rung::GoOn {
        lines.push(format!("{:>8}{mark}: {}", "", output::clean(&step.why)));
        if step.rung < Rung::Stop && !step.nudge.is_empty() {
            lines.push(format!("{:>8}{}", "", format!("told: {}", output::clean(&step.nudge)).dimmed()));
        }
    }
    for other in &step.others {
        let mark = if other.enforced { "■ stop".red().bold().to_string() } else { "· observed".dimmed().to_string() };
        lines.push(format!("{:>8}{mark}: {} ({})", "", other.why, other.rule));
    }
    if step.starts_anew {
        lines.push(format!("{:>8}{}", "", "a person has spoken: counting starts anew".cyan()));
    }
    lines
}

fn cells(step: &ExplainedStep, explained: &Explained) -> [String; COLUMNS.len()] {
    let (counters, settings) = (&step.counters, &explained.settings);
    let reached = |count: u32, threshold: u32| match (count, threshold) {
        (0, _) => NOTHING.to_owned(),
        (count, 0) => count.to_string(),
        (count, threshold) => format!("{count}/{threshold}"),
    };
    let mut tool = output::clean(if step.message { "(says)" } else { &step.tool });
    if step.failed {
        tool.push_str(FAILED);
    }
    let cycle =
        counters.cycle.map_or_else(|| NOTHING.to_owned(), |(period, rounds)| format!("{period}×{}", reached(rounds, settings.cycle.stop)));
    let news = if counters.window == 0 { NOTHING.to_owned() } else { format!("{} of {}", counters.window_new, counters.window) };
    let seen = match step.news {
        News::New => "new",
        News::Known => "known",
        News::NotCounted => "–",
    };
    [
        step.number.to_string(),
        tool,
        step.args.to_string(),
        step.result.map_or_else(|| "?".to_owned(), |result| result.to_string()),
        seen.to_owned(),
        reached(counters.identical, settings.identical.stop),
        cycle,
        news,
        reached(counters.same_error, settings.same_error.stop),
        reached(counters.messages.max(counters.message_rounds), settings.messages.stop),
        reached(counters.unmoved, settings.unmoved.stop),
        reached(counters.put_back, settings.put_back.stop),
        reached(counters.same_result, settings.same_result.stop),
        reached(counters.failing, settings.failing.stop),
        counters.with_share_of_tokens(reached(counters.long_run, settings.long_run.stop), settings),
    ]
}
