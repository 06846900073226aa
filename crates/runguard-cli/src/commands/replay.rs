//! `runguard replay`: what the guards and budgets would have done to recorded runs.

mod preview;

use super::data_folder::{Copies, remove_copies};
use super::serve::stop_signal;
use super::watched::{GuardArgs, ReadArgs, ThresholdArgs, misset, one_of};
use crate::failure::Failure;
use crate::output;
use crate::table::{Cell, Table};
use clap::Args;
use owo_colors::OwoColorize;
use runguard_core::text::grouped;
use runguard_replay::evaluate::{Progress, Reading, Recorded, Share, bytes_on_disk};
use runguard_replay::html::replay_page;
use runguard_replay::replay::{
    Ask, By, Circles, Figures, Grouping, Named, NudgeFigures, RuleCircles, RuleFigures, Summary, files_of, learned, replay,
};
use runguard_replay::rules::Other;
use runguard_replay::trace::MESSAGE;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Groups shown in the terminal; `--json` has all.
const SHOWN_GROUPS: usize = 20;
/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runguard replay runs.jsonl.gz
  runguard replay ~/.claude/projects --by folder,model
  runguard replay traces/ --set stall.identical.stop=5 --guards stall --by source,model
  runguard replay traces/ --max-usd 2 --max-steps 60 --html report.html
  runguard replay traces/ --pack runs.packed && runguard replay runs.packed --against openhands,roo
  runguard replay runguard-data --settings changed.toml

Exit codes: 0 done, 1 lines could not be read and --strict was given, 2 wrong usage or nothing could be read, 130 cancelled")]
pub(crate) struct Replay {
    /// Recorded runs: files, folders of .jsonl and .jsonl.gz files, or a data folder of RunGuard
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
    #[command(flatten)]
    thresholds: ThresholdArgs,
    #[command(flatten)]
    watch: GuardArgs,
    /// Rules of other agents on the same runs: openhands, gemini-cli, roo, langgraph
    #[arg(long, value_name = "AGENT", value_delimiter = ',', value_parser = other_of)]
    against: Vec<Other>,
    /// Figures by source, model, task or folder
    #[arg(long, value_name = "WHAT", value_delimiter = ',', default_value = "source", value_parser = by_of)]
    by: Vec<By>,
    /// Threads [default: as many as there are cores]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Also write a page with plots, self-contained
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write the runs hashed, as one compact file that `replay` reads many times faster
    #[arg(long, value_name = "FILE")]
    pack: Option<PathBuf>,
    /// Fail when a line could not be read
    #[arg(long)]
    strict: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

fn other_of(text: &str) -> Result<Other, String> {
    one_of(text, Other::ALL.into_iter().map(Other::code), Other::from_code)
}

fn by_of(text: &str) -> Result<By, String> {
    one_of(text, By::ALL.into_iter().map(By::code), By::from_code)
}

impl Replay {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let changes = self.thresholds.changes()?;
        let guards = self.watch.guards(&self.thresholds, &changes)?;
        let labels = self.read.labels()?;
        let files = files_of(&self.files).map_err(|error| Failure::Usage(error.to_string()))?;
        if let Some(out) = self.writes_over(&files) {
            return Err(Failure::Usage(format!("{} is one of the files to read; write to another", out.display())));
        }
        let threads = self.threads.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
        let progress = Arc::new(Progress::default());
        listen(progress.clone());
        let copies = Copies::where_rows_wait(&files);
        let bar = Bar::show(&files, progress.clone());
        let started = Instant::now();
        let recorded = Recorded { files: &files, given: &self.files, format: self.read.format, labels: &labels, instead: copies.instead() };
        let reading = Reading { recorded, detail: guards.detail(), threads, progress: &progress };
        let guards = learned(&reading, guards).map_err(|problem| misset(&problem))?;
        let ask = Ask { guards: &guards, against: &self.against, by: &self.by, pack: self.pack.as_deref() };
        let summary = replay(&reading, &ask).map_err(|error| Failure::Failed(error.to_string()))?;
        bar.end();
        tell_broken(&summary);
        let previews = if summary.finished { preview::of_logs(&files, &changes)? } else { Vec::new() };
        if summary.runs == 0 && summary.finished && previews.is_empty() {
            for note in &summary.notes {
                output::remark("note", &output::clean(note));
            }
            return Err(Failure::Usage(match summary.broken_lines {
                0 => "there is no run in what was given".to_owned(),
                _ => "nothing could be read; name the format with --format, if it was guessed wrongly".to_owned(),
            }));
        }
        if let Some(out) = &self.html {
            std::fs::write(out, replay_page(&summary))
                .map_err(|error| Failure::Failed(format!("cannot write {}: {error}", out.display())))?;
        }
        if self.json {
            let mut whole = serde_json::to_value(&summary).map_err(|error| Failure::Failed(error.to_string()))?;
            whole["preview"] = previews.iter().map(preview::OfGuard::json).collect();
            output::json(&whole)?;
        } else {
            print(&summary, started.elapsed())?;
            previews.iter().try_for_each(preview::OfGuard::print)?;
            self.say_what_was_written(&summary)?;
        }
        match (summary.finished, self.strict && summary.broken_lines > 0) {
            (false, _) => Err(Failure::Cancelled),
            (true, true) => Err(Failure::AlreadyTold),
            (true, false) => Ok(()),
        }
    }

    fn writes_over(&self, files: &[PathBuf]) -> Option<&Path> {
        let same = |out: &Path| {
            let Ok(out) = out.canonicalize() else { return false };
            files.iter().any(|file| file.canonicalize().is_ok_and(|file| file == out))
        };
        [&self.pack, &self.html].into_iter().flatten().map(PathBuf::as_path).find(|out| same(out))
    }

    fn say_what_was_written(&self, summary: &Summary) -> Result<(), Failure> {
        if let Some(out) = &self.html {
            output::line(&format!("The page is {}", out.display()))?;
        }
        match &self.pack {
            Some(out) if summary.finished => output::line(&format!("Packed: runguard replay {}", out.display())),
            _ => Ok(()),
        }
    }
}

/// The first Ctrl-C ends the reading, and what was done is shown; the second ends the program.
fn listen(progress: Arc<Progress>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    thread::spawn(move || {
        runtime.block_on(async {
            stop_signal().await;
            progress.cancel();
            stop_signal().await;
        });
        remove_copies();
        std::process::exit(130);
    });
}

/// How far it is: bytes read of all bytes. Only for people.
struct Bar(Option<(Arc<AtomicBool>, thread::JoinHandle<()>)>);

impl Bar {
    fn show(files: &[PathBuf], progress: Arc<Progress>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let total = files.iter().map(|file| bytes_on_disk(file)).sum();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let moving = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let (bytes, runs, steps) = (progress.bytes(), grouped(progress.runs()), grouped(progress.steps()));
                Self::draw(&format!("{}  {runs} runs, {steps} steps", how_far(bytes, total)));
                thread::sleep(TICK);
            }
            Self::draw("");
        });
        Self(Some((is_over, moving)))
    }

    /// In the place of what was there. Where it cannot be written nobody looks.
    fn draw(line: &str) {
        let mut out = std::io::stderr().lock();
        let _ = write!(out, "\r{line}\u{1b}[K").and_then(|()| out.flush());
    }

    fn end(self) {
        if let Some((is_over, moving)) = self.0 {
            is_over.store(true, Ordering::Relaxed);
            let _ = moving.join();
        }
    }
}

/// A bar, and the bytes in the unit of the whole.
fn how_far(bytes: u64, total: u64) -> String {
    const COLUMNS: u64 = 32;
    let done = (bytes.min(total) * COLUMNS).checked_div(total).unwrap_or(COLUMNS) as usize;
    let bar: String = std::iter::repeat_n('█', done).chain(std::iter::repeat_n('░', COLUMNS as usize - done)).collect();
    let (unit, shift) = [("GiB", 30), ("MiB", 20), ("KiB", 10)].into_iter().find(|(_, shift)| total >> shift > 0).unwrap_or(("B", 0));
    let shown = |bytes: u64| match shift {
        0 => bytes.to_string(),
        shift => format!("{:.1}", bytes as f64 / f64::from(1_u32 << shift)),
    };
    format!("{bar} {} of {} {unit}", shown(bytes), shown(total))
}

fn tell_broken(summary: &Summary) {
    for broken in &summary.broken {
        output::remark("not read", &output::clean(&broken.to_string()));
    }
    let more = summary.broken_lines - summary.broken.len() as u64;
    if more > 0 {
        output::note(&format!("and {} more", grouped(more)));
    }
}

fn percent(share: Share) -> String {
    share.value.map_or_else(|| "–".into(), |value| format!("{:.1} % [{:.1}–{:.1}]", 100.0 * value, 100.0 * share.low, 100.0 * share.high))
}

fn of(part: u64, whole: u64, share: Share) -> String {
    if whole == 0 { "–".into() } else { format!("{} of {}, {}", grouped(part), grouped(whole), percent(share)) }
}

fn money(dollars: f64) -> String {
    if dollars == 0.0 { String::new() } else { format!("${dollars:.2}") }
}

fn right(text: String) -> Cell {
    Cell::new(text).right()
}

fn print(summary: &Summary, took: Duration) -> Result<(), Failure> {
    let seconds = took.as_secs_f64().max(1e-9);
    output::line(&format!(
        "{}, {}{} in {seconds:.1} s ({} steps/s){}",
        output::count(summary.runs, "run"),
        output::count(summary.steps, "step"),
        if summary.dollars > 0.0 { format!(", ${:.2}", summary.dollars) } else { String::new() },
        grouped((summary.steps as f64 / seconds) as u64),
        if summary.finished { String::new() } else { format!("; {}", "cut short: what follows is of these alone".yellow()) },
    ))?;
    if summary.broken_lines > 0 {
        let are = if summary.broken_lines == 1 { "is" } else { "are" };
        output::prose(&format!("{} could not be read and {are} not in the figures", output::count(summary.broken_lines, "line")))?;
    }
    let presets: Vec<String> =
        summary.presets.iter().map(|preset| format!("{} ({})", preset.name, output::count(preset.runs, "run"))).collect();
    output::prose(&format!("Presets: {}\n", presets.join(", ")))?;
    output::prose(&format!("{}\n", summary.headline().bold()))?;
    if let Some(circles) = summary.in_circles() {
        output::prose(&format!("{}\n", circles.bold()))?;
    }

    output::line(&format!("{} (in brackets: 95 % confidence)", "What would have been ended, saved and lost".bold()))?;
    let columns = Columns::of(summary);
    let mut table = columns.table();
    columns.row(&mut table, "all together", &summary.total);
    for alone in &summary.alone {
        columns.row(&mut table, &format!("{} alone", alone.name), &alone.figures);
    }
    for Named { name, figures } in &summary.against {
        columns.row(&mut table, name, figures);
    }
    output::show(&table)?;
    output::line("")?;
    print_rules(&summary.rules, columns)?;
    if columns.successful || columns.failed {
        print_examples(&summary.rules)?;
    }
    print_most_after(summary)?;
    print_circles(&summary.circles)?;
    print_nudges(&summary.nudges, columns)?;
    summary.groups.iter().try_for_each(|grouping| print_groups(grouping, columns))?;
    for note in &summary.notes {
        output::prose(&format!("{} {note}", "Note:".cyan()))?;
    }
    Ok(())
}

/// What is known of the runs decides which columns there are.
#[derive(Debug, Clone, Copy)]
struct Columns {
    successful: bool,
    failed: bool,
    unknown: bool,
}

impl Columns {
    fn of(summary: &Summary) -> Self {
        let sums = &summary.total.sums;
        Self { successful: sums.successful > 0, failed: sums.failed > 0, unknown: sums.unknown > 0 }
    }

    fn table(self) -> Table {
        let mut headers = vec![""];
        if self.successful {
            headers.push("good runs ended");
        }
        if self.failed {
            headers.push("failed runs ended");
        }
        if self.unknown {
            headers.push(if self.successful || self.failed { "unknown" } else { "runs ended" });
        }
        if self.failed {
            headers.extend(["failed steps saved", "tokens, dollars saved"]);
        }
        if self.successful {
            headers.extend(["good steps lost", "tokens, dollars lost"]);
        }
        if self.unknown {
            headers.extend(["unknown steps after it", "tokens, dollars after it"]);
        }
        output::table(&headers)
    }

    fn row(self, table: &mut Table, name: &str, figures: &Figures) {
        let Figures { sums, .. } = figures;
        let mut cells = vec![Cell::new(output::clean(name))];
        if self.successful {
            cells.push(right(of(sums.false_stops, sums.successful, figures.false_stops)));
        }
        if self.failed {
            cells.push(right(of(sums.stopped, sums.failed, figures.failed_stopped)));
        }
        if self.unknown {
            let ended = format!("{} of {}", grouped(sums.unknown_stopped), grouped(sums.unknown));
            cells.push(right(if sums.unknown == 0 { "–".into() } else { ended }));
        }
        if self.failed {
            cells.push(right(of(sums.saved_steps, sums.failed_steps, figures.saved_steps)));
            cells.push(amounts(sums.saved_tokens, sums.saved_dollars));
        }
        if self.successful {
            cells.push(right(of(sums.lost_steps, sums.successful_steps, figures.lost_steps)));
            cells.push(amounts(sums.lost_tokens, sums.lost_dollars));
        }
        if self.unknown {
            cells.push(right(of(sums.unknown_after_steps, sums.unknown_steps, figures.unknown_after)));
            cells.push(amounts(sums.unknown_after_tokens, sums.unknown_after_dollars));
        }
        table.add_row(cells);
    }
}

/// Of a task, what fits beside a run.
const TASK_CHARS: usize = 48;

fn short_task(task: &str) -> String {
    let task: String = output::clean(task).chars().take(TASK_CHARS).collect();
    task.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// As `explain` takes it; a shell knows the home folder by its sign.
fn place_of(file: &str, line: u64) -> String {
    let home = std::env::var("HOME").unwrap_or_default();
    let below_home = Path::new(file).strip_prefix(&home).ok().filter(|_| home.len() > 1);
    let file = below_home.map_or_else(|| file.to_owned(), |rest| format!("~/{}", rest.display()));
    output::clean(&format!("{file}:{line}"))
}

fn amounts(tokens: u64, dollars: f64) -> Cell {
    right(format!("{} {}", grouped(tokens), money(dollars)).trim().to_owned())
}

/// The runs that went on longest after they would have been ended.
fn print_most_after(summary: &Summary) -> Result<(), Failure> {
    if summary.most_after.is_empty() {
        return Ok(());
    }
    output::line(&format!("{} (runguard explain FILE:LINE)", "Where most came after the end".bold()))?;
    let mut table = output::table(&["run", "about", "ended by", "at step", "tokens, dollars after it"]);
    for example in &summary.most_after {
        table.add_row([
            Cell::new(place_of(&example.file, example.line)),
            Cell::new(short_task(&example.task)),
            Cell::new(example.rule),
            right(format!("{} of {}", grouped(example.step), grouped(example.steps))),
            amounts(example.after_tokens, example.after_dollars),
        ]);
    }
    output::show(&table)?;
    output::line("")
}

/// What brought nothing new, and where: also where no rule ends a run.
fn print_circles(circles: &Circles) -> Result<(), Failure> {
    if circles.rules.is_empty() {
        return Ok(());
    }
    output::line(&format!("{}", "What went in circles".bold()))?;
    let mut table = output::table(&["", "runs", "steps", "tokens, dollars"]);
    for RuleCircles { words, circled, .. } in &circles.rules {
        let cells = [Cell::new(words), right(grouped(circled.runs)), right(grouped(circled.steps))];
        table.add_row(cells.into_iter().chain([amounts(circled.tokens, circled.dollars)]));
    }
    output::show(&table)?;
    output::line("")?;
    output::line(&format!("{} (runguard explain FILE:LINE)", "Where most did".bold()))?;
    let mut table = output::table(&["run", "about", "with", "rule", "from step", "steps", "tokens, dollars"]);
    for run in &circles.most {
        table.add_row([
            Cell::new(place_of(&run.file, run.line)),
            Cell::new(short_task(&run.task)),
            Cell::new(output::clean(if run.tool == MESSAGE { "words" } else { &run.tool })),
            Cell::new(run.rule),
            right(grouped(run.first)),
            right(format!("{} of {}", grouped(run.steps), grouped(run.of))),
            amounts(run.tokens, run.dollars),
        ]);
    }
    output::show(&table)?;
    output::line("")
}

fn print_rules(rules: &[RuleFigures], columns: Columns) -> Result<(), Failure> {
    if rules.is_empty() {
        return output::line("No rule would have ended a run.\n");
    }
    output::line(&format!("{}", "By the rule that came first".bold()))?;
    let Columns { successful, failed, unknown } = columns;
    let all = |rule: &RuleFigures| {
        [
            (successful, "good runs", rule.successful),
            (failed, "failed", rule.failed),
            (unknown, "unknown", rule.unknown),
            (true, "at step: median", rule.at.median),
            (true, "p90", rule.at.p90),
            (failed, "saved steps", rule.saved_steps),
            (successful, "lost steps", rule.lost_steps),
            (unknown, "steps after it", rule.unknown_after_steps),
        ]
        .into_iter()
        .filter(|(is_shown, ..)| *is_shown)
    };
    let headers = rules.first().into_iter().flat_map(|rule| all(rule).map(|(_, name, _)| name));
    let mut table = output::table(&std::iter::once("rule").chain(headers).collect::<Vec<_>>());
    for rule in rules {
        table.add_row(std::iter::once(Cell::new(rule.rule)).chain(all(rule).map(|(.., number)| right(grouped(number)))));
    }
    output::show(&table)?;
    output::line("")
}

fn print_examples(rules: &[RuleFigures]) -> Result<(), Failure> {
    if rules.is_empty() {
        return Ok(());
    }
    output::line(&format!("{} (runguard explain FILE:LINE)", "Examples".bold()))?;
    let mut table = output::table(&["rule", "run", "ended at step", "in the end"]);
    for rule in rules {
        // Of each end the first; --json has more.
        for example in [Some(true), Some(false), None].iter().filter_map(|end| rule.examples.iter().find(|example| example.success == *end))
        {
            let end = match example.success {
                Some(true) => Cell::new("successful").color(crate::table::Color::Red),
                Some(false) => Cell::new("failed").color(crate::table::Color::Green),
                None => Cell::new("unknown"),
            };
            // Some formats name a run by its file.
            let is_named = Path::new(&example.file).file_stem().is_some_and(|stem| stem.to_string_lossy() == example.id);
            let id = if is_named { String::new() } else { format!(" {}", output::clean(&example.id)) };
            let place = format!("{}{id}", place_of(&example.file, example.line));
            let step = format!("{} of {}", grouped(example.step), grouped(example.steps));
            table.add_row([Cell::new(rule.rule), Cell::new(place), right(step), end]);
        }
    }
    output::show(&table)?;
    output::line("")
}

fn print_nudges(nudges: &[NudgeFigures], columns: Columns) -> Result<(), Failure> {
    if nudges.is_empty() {
        return Ok(());
    }
    output::prose(&format!(
        "{} (runs, steps in them, and how many runs got out without having heard it)",
        "Told or skipped without ending a run".bold()
    ))?;
    let shown = [columns.successful, columns.failed, columns.unknown];
    let names = ["good runs", "failed", if columns.successful || columns.failed { "unknown" } else { "runs" }];
    let names = names.into_iter().zip(shown).filter(|(_, is_shown)| *is_shown).map(|(name, _)| name);
    let mut table = output::table(&std::iter::once("rule").chain(names).collect::<Vec<_>>());
    for nudge in nudges {
        let by_end = [nudge.successful, nudge.failed, nudge.unknown]
            .map(|end| format!("{} ({}), {} got out", grouped(end.runs), grouped(end.steps), grouped(end.recovered)));
        let by_end = by_end.into_iter().zip(shown).filter(|(_, is_shown)| *is_shown);
        table.add_row([Cell::new(nudge.rule)].into_iter().chain(by_end.map(|(told, _)| right(told))));
    }
    output::show(&table)?;
    output::line("")
}

fn print_groups(grouping: &Grouping, columns: Columns) -> Result<(), Failure> {
    let mut groups: Vec<&Named> = grouping.groups.iter().collect();
    if groups.len() < 2 {
        return Ok(());
    }
    // Where most is lost or saved comes first.
    groups.sort_by_key(|group| std::cmp::Reverse(group.figures.sums.after().0));
    output::line(&format!("{}", format_args!("By {}, all together", grouping.by.code()).bold()))?;
    let mut table = columns.table();
    for group in groups.iter().take(SHOWN_GROUPS) {
        columns.row(&mut table, &group.name, &group.figures);
    }
    if let Some(others) = &grouping.others {
        columns.row(&mut table, "(others)", others);
    }
    output::show(&table)?;
    if groups.len() > SHOWN_GROUPS {
        output::line(&format!("and {} more; --json has them", grouped((groups.len() - SHOWN_GROUPS) as u64)))?;
    }
    output::line("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn what_is_mistyped_is_guessed() {
        assert_eq!(other_of("open-hands").unwrap_err(), "did you mean `openhands`?");
        assert!(by_of("colour").unwrap_err().contains("known are source, model, task, folder"));
    }
}
