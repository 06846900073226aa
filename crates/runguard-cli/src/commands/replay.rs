//! `runguard replay`: what the guards and budgets would have done to recorded runs.

mod preview;

use super::serve::stop_signal;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use comfy_table::{Cell, CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};
use owo_colors::OwoColorize;
use runguard_core::Span;
use runguard_core::detect::stall::Preset;
use runguard_core::money::NanoDollars;
use runguard_core::text::grouped;
use runguard_engine::settings;
use runguard_guards::input::closest;
use runguard_guards::policy::{Tree, merge, nest};
use runguard_replay::evaluate::{Progress, Reading, Share, bytes_on_disk};
use runguard_replay::format::Format;
use runguard_replay::html::replay_page;
use runguard_replay::replay::{Ask, By, Figures, Grouping, Named, NudgeFigures, RuleFigures, Summary, detail, files_of, replay};
use runguard_replay::rules::{Caps, Guards, Other, Presets, Watched};
use serde_json::Value;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
  runguard replay traces/ --set stall.identical.stop=5 --guards stall --by source,model
  runguard replay traces/ --max-usd 2 --max-steps 60 --html report.html
  runguard replay traces/ --pack runs.packed && runguard replay runs.packed --against openhands,roo
  runguard replay runguard-data --settings changed.toml

Exit codes: 0 done, 1 lines could not be read and --strict was given, 2 wrong usage or nothing could be read, 130 cancelled")]
pub(crate) struct Replay {
    /// Recorded runs: files, folders of .jsonl and .jsonl.gz files, or a data folder of RunGuard
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How the runs are written down; otherwise guessed from each file's content
    #[arg(long, value_parser = format_of)]
    format: Option<Format>,
    /// Thresholds for a kind of agent: auto (by source), chatbot, coding, browser or research; SOURCE=PRESET for one source
    #[arg(long, value_name = "PRESET", value_delimiter = ',', value_parser = preset_of)]
    preset: Vec<PresetChoice>,
    /// A changed threshold; can be given several times (`stall.identical.stop=5`, `loop.repeats=4`)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, Value)>,
    /// A settings file, as the service reads it; its `[guards]` count
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Guards the runs go through: stall, loop, `tool_call`
    #[arg(long, value_name = "GUARD", value_delimiter = ',', default_value = "stall,loop", value_parser = guard_of)]
    guards: Vec<Watched>,
    /// Steps a run may make
    #[arg(long, value_name = "NUMBER")]
    max_steps: Option<u64>,
    /// Tokens a run may use
    #[arg(long, value_name = "NUMBER")]
    max_tokens: Option<u64>,
    /// Dollars a run may spend
    #[arg(long, value_name = "DOLLARS", value_parser = dollars)]
    max_usd: Option<NanoDollars>,
    /// Minutes a run may take
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    max_minutes: Option<Span>,
    /// Rules of other agents on the same runs: openhands, gemini-cli, roo, langgraph
    #[arg(long, value_name = "AGENT", value_delimiter = ',', value_parser = other_of)]
    against: Vec<Other>,
    /// Figures by source, model or task
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

#[derive(Debug, Clone)]
enum PresetChoice {
    Auto,
    Always(Preset),
    OfSource(String, Preset),
}

/// One of the names, or what was meant.
fn one_of<T>(text: &str, known: impl Iterator<Item = &'static str> + Clone, find: impl Fn(&str) -> Option<T>) -> Result<T, String> {
    find(text).ok_or_else(|| match closest(text, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", known.collect::<Vec<_>>().join(", ")),
    })
}

fn format_of(text: &str) -> Result<Format, String> {
    one_of(text, Format::ALL.into_iter().map(Format::code), Format::from_code)
}

fn preset_of(text: &str) -> Result<PresetChoice, String> {
    let named = |name: &str| one_of(name, Preset::ALL.into_iter().map(Preset::name).chain(["auto"]), |name| Preset::from_name(name).ok());
    match text.split_once('=') {
        Some((source, name)) => Ok(PresetChoice::OfSource(source.to_owned(), named(name)?)),
        None if text == "auto" => Ok(PresetChoice::Auto),
        None => Ok(PresetChoice::Always(named(text)?)),
    }
}

fn guard_of(text: &str) -> Result<Watched, String> {
    one_of(text, Watched::ALL.into_iter().map(Watched::code), Watched::from_code)
}

fn other_of(text: &str) -> Result<Other, String> {
    one_of(text, Other::ALL.into_iter().map(Other::code), Other::from_code)
}

fn by_of(text: &str) -> Result<By, String> {
    one_of(text, By::ALL.into_iter().map(By::code), By::from_code)
}

fn dollars(text: &str) -> Result<NanoDollars, String> {
    NanoDollars::parse(text).map_err(|error| error.to_string())
}

fn minutes(text: &str) -> Result<Span, String> {
    let minutes: f64 = text.parse().map_err(|_| "must be a number of minutes, like 15 or 0.5".to_owned())?;
    Span::parse(&format!("{minutes}m"))
}

/// The value is read as JSON, else as text; the key is a path below `[guards]`.
fn setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE, like stall.identical.stop=5")?;
    let key = key.trim();
    let key = key.strip_prefix("guards.").unwrap_or(key);
    if !key.contains('.') || key.split('.').any(str::is_empty) {
        return Err(format!("`{key}` names no setting of a guard; write it as in the settings file, like stall.identical.stop=5"));
    }
    Ok((key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

impl Replay {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let changes = self.changes()?;
        let guards = self.guards(&changes)?;
        let files = files_of(&self.files).map_err(|error| Failure::Usage(error.to_string()))?;
        if let Some(out) = self.writes_over(&files) {
            return Err(Failure::Usage(format!("{} is one of the files to read; write to another", out.display())));
        }
        let threads = self.threads.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
        let progress = Arc::new(Progress::default());
        listen(progress.clone());
        let bar = Bar::show(&files, progress.clone());
        let started = Instant::now();
        let reading = Reading { files: &files, format: self.format, detail: detail(&guards), threads, progress: &progress };
        let ask = Ask { guards: &guards, against: &self.against, by: &self.by, pack: self.pack.as_deref() };
        let summary = replay(&reading, &ask).map_err(|error| Failure::Failed(error.to_string()))?;
        bar.end();
        tell_broken(&summary);
        let previews = if summary.finished { preview::of_logs(&files, &changes)? } else { Vec::new() };
        if summary.runs == 0 && summary.finished && previews.is_empty() {
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

    /// What the settings file and `--set` say below `[guards]`.
    fn changes(&self) -> Result<Tree, Failure> {
        let mut tree = match &self.settings {
            Some(path) => {
                let loaded = settings::read_file(path).and_then(|text| settings::check_text(path, &text));
                loaded.map_err(|error| Failure::Usage(error.to_string()))?.settings.guard_tree("")
            }
            None => Tree::new(),
        };
        for (key, value) in &self.set {
            // Alone first, so that a mistake is known to stand here.
            let one = nest(&key.split('.').collect::<Vec<_>>(), value.clone())
                .and_then(|one| Guards::new(Presets::default(), &one, &[], Caps::default()).map(|_| one))
                .map_err(|problem| Failure::Usage(format!("--set {}: {}", problem.path.join("."), problem.problem)))?;
            merge(&mut tree, &one);
        }
        Ok(tree)
    }

    fn guards(&self, changes: &Tree) -> Result<Guards, Failure> {
        let mut presets = Presets::default();
        for choice in &self.preset {
            match choice {
                PresetChoice::Auto => presets.always = None,
                PresetChoice::Always(preset) => presets.always = Some(*preset),
                PresetChoice::OfSource(source, preset) => presets.by_source.push((source.clone(), *preset)),
            }
        }
        let caps = Caps { steps: self.max_steps, tokens: self.max_tokens, usd: self.max_usd, time: self.max_minutes };
        Guards::new(presets, changes, &self.guards, caps)
            .map_err(|problem| Failure::Usage(format!("`{}`: {}", problem.path.join("."), problem.problem)))
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
        runtime.block_on(stop_signal());
        progress.cancel();
        runtime.block_on(stop_signal());
        std::process::exit(130);
    });
}

/// How far it is: bytes read of all bytes. Only for people.
struct Bar {
    bar: ProgressBar,
    moving: Option<thread::JoinHandle<()>>,
}

impl Bar {
    fn show(files: &[PathBuf], progress: Arc<Progress>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden(), moving: None };
        }
        let total = files.iter().map(|file| bytes_on_disk(file)).sum();
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template("{bar:32} {bytes} of {total_bytes}  {msg}") {
            bar.set_style(style);
        }
        let moved = bar.clone();
        let moving = thread::spawn(move || {
            while !moved.is_finished() {
                moved.set_position(progress.bytes());
                moved.set_message(format!("{} runs, {} steps", grouped(progress.runs()), grouped(progress.steps())));
                thread::sleep(TICK);
            }
        });
        Self { bar, moving: Some(moving) }
    }

    fn end(self) {
        self.bar.finish_and_clear();
        if let Some(moving) = self.moving {
            let _ = moving.join();
        }
    }
}

fn tell_broken(summary: &Summary) {
    for broken in &summary.broken {
        anstream::eprintln!("{} {}", "not read:".yellow(), output::clean(&broken.to_string()));
    }
    let more = summary.broken_lines - summary.broken.len() as u64;
    if more > 0 {
        anstream::eprintln!("and {} more", grouped(more));
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
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn print(summary: &Summary, took: Duration) -> Result<(), Failure> {
    let seconds = took.as_secs_f64().max(1e-9);
    output::line(&format!(
        "{} runs, {} steps{} in {seconds:.1} s ({} steps/s){}",
        grouped(summary.runs),
        grouped(summary.steps),
        if summary.dollars > 0.0 { format!(", ${:.2}", summary.dollars) } else { String::new() },
        grouped((summary.steps as f64 / seconds) as u64),
        if summary.finished { String::new() } else { format!("; {}", "cut short: what follows is of these alone".yellow()) },
    ))?;
    if summary.broken_lines > 0 {
        output::line(&format!("{} lines could not be read and are not in the figures", grouped(summary.broken_lines)))?;
    }
    let presets: Vec<String> = summary.presets.iter().map(|preset| format!("{} ({} runs)", preset.name, grouped(preset.runs))).collect();
    output::line(&format!("Presets: {}\n", presets.join(", ")))?;

    output::line(&format!("{} (in brackets: 95 % confidence)", "What would have been ended, saved and lost".bold()))?;
    let mut table = output::table(&HEADERS);
    row(&mut table, "all together", &summary.total);
    for alone in &summary.alone {
        row(&mut table, &format!("{} alone", alone.name), &alone.figures);
    }
    for Named { name, figures } in &summary.against {
        row(&mut table, name, figures);
    }
    output::line(&format!("{table}\n"))?;
    print_rules(&summary.rules)?;
    print_nudges(&summary.nudges)?;
    summary.groups.iter().try_for_each(print_groups)?;
    for note in &summary.notes {
        output::line(&format!("{} {note}", "Note:".cyan()))?;
    }
    Ok(())
}

const HEADERS: [&str; 8] = [
    "",
    "good runs ended",
    "failed runs ended",
    "unknown",
    "failed steps saved",
    "tokens, dollars saved",
    "good steps lost",
    "tokens, dollars lost",
];

fn row(table: &mut Table, name: &str, Figures { sums, false_stops, failed_stopped, saved_steps, lost_steps, .. }: &Figures) {
    let amounts = |tokens: u64, dollars: f64| format!("{} {}", grouped(tokens), money(dollars)).trim().to_owned();
    table.add_row([
        Cell::new(output::clean(name)),
        right(of(sums.false_stops, sums.successful, *false_stops)),
        right(of(sums.stopped, sums.failed, *failed_stopped)),
        right(if sums.unknown == 0 { "–".into() } else { format!("{} of {}", grouped(sums.unknown_stopped), grouped(sums.unknown)) }),
        right(of(sums.saved_steps, sums.failed_steps, *saved_steps)),
        right(amounts(sums.saved_tokens, sums.saved_dollars)),
        right(of(sums.lost_steps, sums.successful_steps, *lost_steps)),
        right(amounts(sums.lost_tokens, sums.lost_dollars)),
    ]);
}

fn print_rules(rules: &[RuleFigures]) -> Result<(), Failure> {
    if rules.is_empty() {
        return output::line("No rule would have ended a run.\n");
    }
    output::line(&format!("{}", "By the rule that came first".bold()))?;
    let mut table = output::table(&["rule", "good runs", "failed", "unknown", "at step: median", "p90", "saved steps", "lost steps"]);
    for rule in rules {
        let numbers =
            [rule.successful, rule.failed, rule.unknown, rule.at.median, rule.at.p90, rule.saved_steps, rule.lost_steps].map(grouped);
        table.add_row([Cell::new(rule.rule)].into_iter().chain(numbers.map(right)));
    }
    output::line(&format!("{table}\n"))?;
    output::line(&format!("{} (runguard explain FILE:LINE)", "Examples".bold()))?;
    let mut table = output::table(&["rule", "run", "ended at step", "in the end"]);
    for rule in rules {
        // Of each end the first; --json has more.
        for example in [Some(true), Some(false), None].iter().filter_map(|end| rule.examples.iter().find(|example| example.success == *end))
        {
            let end = match example.success {
                Some(true) => Cell::new("successful").fg(comfy_table::Color::Red),
                Some(false) => Cell::new("failed").fg(comfy_table::Color::Green),
                None => Cell::new("unknown"),
            };
            let place = format!("{}:{} {}", example.file, example.line, example.id);
            let step = format!("{} of {}", grouped(example.step), grouped(example.steps));
            table.add_row([Cell::new(rule.rule), Cell::new(output::clean(&place)), right(step), end]);
        }
    }
    output::line(&format!("{table}\n"))
}

fn print_nudges(nudges: &[NudgeFigures]) -> Result<(), Failure> {
    if nudges.is_empty() {
        return Ok(());
    }
    output::line(&format!("{} (runs, and steps in them)", "Told or skipped without ending a run".bold()))?;
    let mut table = output::table(&["rule", "good runs", "failed", "unknown"]);
    for nudge in nudges {
        let by_end =
            [nudge.successful, nudge.failed, nudge.unknown].map(|end| right(format!("{} ({})", grouped(end.runs), grouped(end.steps))));
        table.add_row([Cell::new(nudge.rule)].into_iter().chain(by_end));
    }
    output::line(&format!("{table}\n"))
}

fn print_groups(grouping: &Grouping) -> Result<(), Failure> {
    let mut groups: Vec<&Named> = grouping.groups.iter().collect();
    if groups.len() < 2 {
        return Ok(());
    }
    // Where most is lost or saved comes first.
    groups.sort_by_key(|group| std::cmp::Reverse(group.figures.sums.saved_steps + group.figures.sums.lost_steps));
    output::line(&format!("{}", format_args!("By {}, all together", grouping.by.code()).bold()))?;
    let mut table = output::table(&HEADERS);
    for group in groups.iter().take(SHOWN_GROUPS) {
        row(&mut table, &group.name, &group.figures);
    }
    if let Some(others) = &grouping.others {
        row(&mut table, "(others)", others);
    }
    output::line(&table.to_string())?;
    if groups.len() > SHOWN_GROUPS {
        output::line(&format!("and {} more; --json has them", grouped((groups.len() - SHOWN_GROUPS) as u64)))?;
    }
    output::line("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn settings_are_paths_below_the_guards() {
        assert_eq!(setting("stall.identical.stop=5").unwrap(), ("stall.identical.stop".to_owned(), json!(5)));
        assert_eq!(setting("guards.loop.window=30m").unwrap(), ("loop.window".to_owned(), json!("30m")));
        assert!(setting("stall=5").unwrap_err().contains("names no setting"));
        assert!(setting("stall..stop=5").is_err() && setting("stall.identical.stop").is_err());
    }

    #[test]
    fn what_is_mistyped_is_guessed() {
        assert_eq!(guard_of("stal").unwrap_err(), "did you mean `stall`?");
        assert_eq!(other_of("open-hands").unwrap_err(), "did you mean `openhands`?");
        assert!(by_of("colour").unwrap_err().contains("known are source, model, task"));
        assert!(matches!(preset_of("mine=browser"), Ok(PresetChoice::OfSource(source, Preset::Browser)) if source == "mine"));
        assert!(preset_of("mine=broser").unwrap_err().contains("browser"));
        assert_eq!(minutes("1.5").unwrap(), Span::from_seconds(90));
        assert!(minutes("-1").is_err() && minutes("soon").is_err() && dollars("-1").is_err());
    }
}
