//! `runguard tune`: thresholds and caps for a price, from recorded runs.

mod plot;

use super::data_folder::{Copies, remove_copies_when_stopped};
use super::explain::{files_of, write};
use super::watched::{ReadArgs, ThresholdArgs};
use crate::failure::Failure;
use crate::output;
use crate::table::{Cell, Table, Weight};
use clap::{Args, ValueEnum};
use owo_colors::OwoColorize;
use plot::Plot;
use runguard_core::detect::stall::StallRule;
use runguard_core::text::grouped;
use runguard_replay::caps::{Amount, Room};
use runguard_replay::evaluate::{Recorded, Share};
use runguard_replay::front::{Part, RULES, TUNED};
use runguard_replay::html;
use runguard_replay::tune::{
    Advice, Chosen, Gathered, Measured, Options, Reader, Save, Summary, Together, base_keeps_the_price, examples, gather, long_run, number,
    settings_file, tune, verdict,
};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Saved {
    /// Calls of models and tools
    Steps,
    /// Tokens read and written
    Tokens,
    /// What they cost
    Dollars,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum For {
    /// `runguard serve`
    Serve,
    /// `runguard agent`
    Agent,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runguard tune runs/ --max-false-stops 1% --out runguard.toml
  runguard tune runs.jsonl.gz --save dollars --html tuned.html
  runguard tune runs.jsonl --grid identical=3,4,5 --grid novelty=1/6,2/10,off

What is looked for saves most on failed runs while at most the stated share of successful runs is stopped. It is recommended only
when on tasks it was not chosen on the whole 95 % confidence interval lies under that price.")]
pub(crate) struct Tune {
    /// Recorded runs: files or folders
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
    #[command(flatten)]
    thresholds: ThresholdArgs,
    /// The price: of the successful runs at most this share may be stopped
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = a_share)]
    max_false_stops: f64,
    /// What of failed runs is to be saved
    #[arg(long, value_enum, default_value = "steps")]
    save: Saved,
    /// Tries these values of a rule only, like identical=3,4,off, novelty=1/6 (at most 1 new of 6) or `long_run=80+2000000t` (80 calls
    /// or 2,000,000 tokens); the rules: identical, cycle, novelty, `same_error`, messages, unmoved, `put_back`, `same_result`, failing,
    /// `long_run`
    #[arg(long, value_name = "RULE=VALUES", value_parser = a_grid)]
    grid: Vec<(StallRule, Vec<Part>)>,
    /// Takes every run for a task of its own; otherwise runs of one task are never on both sides of the check
    #[arg(long)]
    runs_stand_alone: bool,
    /// The percentile of successful runs that caps are made from
    #[arg(long, value_name = "PERCENT", default_value = "99%", value_parser = a_share)]
    cap_percentile: f64,
    /// The room above it
    #[arg(long, value_name = "FACTOR", default_value = "1.5", value_parser = a_factor)]
    cap_factor: f64,
    /// Writes a settings file with what is recommended, and the evidence in its comments
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// For whom it is written
    #[arg(long = "for", value_enum, default_value = "serve")]
    reader: For,
    /// Writes over a settings file that is there
    #[arg(long)]
    force: bool,
    /// Writes a page with the front, the distributions and example runs, self-contained; - writes it to the output
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Fails when anything could not be read
    #[arg(long)]
    strict: bool,
}

/// "1%", "0.5 %" or 0.005.
fn a_share(text: &str) -> Result<f64, String> {
    let (digits, unit) = text.trim().strip_suffix('%').map_or((text.trim(), 1.0), |digits| (digits.trim_end(), 0.01));
    let share = digits.parse::<f64>().map(|value| value * unit);
    share.ok().filter(|share| *share > 0.0 && *share < 1.0).ok_or_else(|| "must be above 0 % and below 100 %, like 1% or 0.01".to_owned())
}

fn a_factor(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|factor| (1.0..=1000.0).contains(factor)).ok_or_else(|| "must be from 1 to 1000".to_owned())
}

fn a_grid(text: &str) -> Result<(StallRule, Vec<Part>), String> {
    let (name, values) = text.split_once('=').ok_or("must be RULE=VALUES, like identical=3,4,off")?;
    let rule = RULES
        .into_iter()
        .find(|rule| rule.code() == name.trim())
        .ok_or_else(|| format!("there is no rule `{name}`; known are {}", RULES.map(StallRule::code).join(", ")))?;
    let part = |value: &str| {
        let value = value.trim();
        if value == "off" {
            return Some(Part::Off);
        }
        match rule {
            StallRule::Novelty => {
                let (max_new, window) = value.split_once('/')?;
                Some(Part::Novelty { window: window.trim().parse().ok()?, max_new: max_new.trim().parse().ok()? })
            }
            StallRule::Identical
            | StallRule::Cycle
            | StallRule::SameError
            | StallRule::Messages
            | StallRule::Unmoved
            | StallRule::PutBack
            | StallRule::SameResult
            | StallRule::Failing => value.parse().ok().map(Part::Stop),
            StallRule::LongRun => match value.strip_suffix('t') {
                Some(value) => {
                    let (calls, tokens) = value.split_once('+').unwrap_or(("0", value));
                    Some(Part::Long { calls: calls.trim().parse().ok()?, tokens: tokens.trim().parse().ok().filter(|tokens| *tokens > 0)? })
                }
                None => value.parse().ok().map(Part::Stop),
            },
        }
    };
    let parts = values
        .split(',')
        .map(|value| part(value).ok_or_else(|| format!("`{value}` is no value of {name}")))
        .collect::<Result<Vec<_>, _>>()?;
    Ok((rule, parts))
}

impl Tune {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if let Some(out) = self.out.as_deref().filter(|out| out.exists() && !self.force) {
            return Err(Failure::Usage(format!("{} is there already; --force writes over it", out.display())));
        }
        if self.json && self.html.as_deref() == Some("-") {
            return Err(Failure::Usage("only one of --json and --html can go to the output; give the page a file".into()));
        }
        let mut options = self.options()?;
        let (files, labels) = (files_of(&self.files)?, self.read.labels()?);
        remove_copies_when_stopped();
        let copies = Copies::where_rows_wait(&files);
        let recorded = Recorded { files: &files, given: &self.files, format: self.read.format, labels: &labels, instead: copies.instead() };
        // What is long depends on the runs; whoever names values wants those.
        if !self.grid.iter().any(|(rule, _)| *rule == StallRule::LongRun)
            && let Some(part) = long_run(&recorded)
        {
            options.grid.also(StallRule::LongRun, part);
        }
        let gathered = Self::gathered(&recorded, &options)?;
        let summary = tune(&gathered, &options);
        let reader = match self.reader {
            For::Serve => Reader::Service,
            For::Agent => Reader::Agent,
        };
        if let Some(target) = &self.html {
            let settings = summary.chosen.as_ref().map_or(options.grid.base(), |chosen| &chosen.settings);
            let examples = examples(&gathered, &options, settings, &recorded);
            write(target, &html::tune_page(&summary, &examples, reader))?;
        }
        if self.json {
            let mut value = serde_json::to_value(&summary).map_err(|error| Failure::Failed(error.to_string()))?;
            value["verdict"] = json!(verdict(&summary));
            value["broken"] = gathered.broken.iter().map(|broken| json!(broken.to_string())).collect();
            output::json(&value)?;
        } else if self.html.as_deref() != Some("-") {
            print(&summary)?;
        }
        if let Some(out) = &self.out {
            write_settings(out, &summary, reader)?;
        }
        if self.strict && gathered.broken_lines > 0 {
            return Err(Failure::Failed(format!("{} records could not be read", gathered.broken_lines)));
        }
        Ok(())
    }

    fn options(&self) -> Result<Options, Failure> {
        let guards = self.thresholds.stall()?;
        let mut grid = Options::grid_around(&guards);
        for (rule, parts) in &self.grid {
            grid.only(*rule, parts.clone()).map_err(|error| Failure::Usage(format!("--grid {}: {error}", rule.code())))?;
        }
        Ok(Options {
            guards,
            grid,
            save: match self.save {
                Saved::Steps => Save::Steps,
                Saved::Tokens => Save::Tokens,
                Saved::Dollars => Save::Dollars,
            },
            max_false_stops: self.max_false_stops,
            together: if self.runs_stand_alone { Together::Nothing } else { Together::Task },
            room: Room { percentile: self.cap_percentile, factor: self.cap_factor },
        })
    }

    fn gathered(recorded: &Recorded<'_>, options: &Options) -> Result<Gathered, Failure> {
        let watched = std::io::stderr().is_terminal();
        let mut progress = |runs: u64| {
            if watched && runs.is_multiple_of(500) {
                let _ = write!(std::io::stderr(), "\r{runs} runs read");
            }
        };
        let gathered = gather(recorded, options, &mut progress).map_err(|error| Failure::Usage(error.to_string()))?;
        if watched {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        for broken in &gathered.broken {
            output::remark("not read", &output::clean(&broken.to_string()));
        }
        if gathered.broken_lines > gathered.broken.len() as u64 {
            output::remark("not read", &format!("and {} more", gathered.broken_lines - gathered.broken.len() as u64));
        }
        let (given, unused) = recorded.labels.unused();
        if unused > 0 {
            output::remark("note", &format!("{unused} of {given} labels name no run that was read"));
        }
        for note in gathered.left_alone.notes() {
            output::remark("note", &output::clean(&note));
        }
        if gathered.runs == 0 {
            return Err(Failure::Usage("no run could be read from these files".into()));
        }
        Ok(gathered)
    }
}

fn write_settings(out: &Path, summary: &Summary, reader: Reader) -> Result<(), Failure> {
    let is_in_force = summary.advice != Advice::Use && !base_keeps_the_price(summary);
    let Some(text) = settings_file(summary, reader) else {
        let beside = if is_in_force {
            "; the thresholds that are in force stay so, and are not shown to keep the price: `mode = \"observe\"` below [guards.stall] lets them end no run"
        } else {
            ""
        };
        return Err(Failure::Failed(format!("{} was not written: there is nothing to recommend{beside}", out.display())));
    };
    std::fs::write(out, text).map_err(|error| Failure::Failed(format!("cannot write {}: {error}", out.display())))?;
    anstream::eprintln!("{} {}", "wrote".green(), out.display());
    if is_in_force {
        output::remark(
            "note",
            "no thresholds are recommended, and those in force are not shown to keep the price: by this file the stall detector ends no run, and only caps are set",
        );
    }
    Ok(())
}

// -- what is printed --------------------------------------------------------------------------------

fn per_cent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn interval(share: Share) -> String {
    share.value.map_or_else(|| "–".to_owned(), |value| format!("{} [{:.2}–{:.2}]", per_cent(value), 100.0 * share.low, 100.0 * share.high))
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text).right()
}

fn print(summary: &Summary) -> Result<(), Failure> {
    output::prose(&format!(
        "{}, {}, {}: {} succeeded, {} failed, of {} it is not known",
        output::count(summary.runs, "run"),
        output::count(summary.steps, "step"),
        output::count(summary.tasks, "task"),
        grouped(summary.successful),
        grouped(summary.failed),
        grouped(summary.unknown)
    ))?;
    if summary.runs_left_out > 0 {
        output::prose(&format!("The last {} runs are not in these figures: there are too many.", summary.runs_left_out))?;
    }
    if summary.kinds.len() > 1 {
        let kinds: Vec<String> = summary.kinds.iter().map(|(kind, runs)| format!("{kind} {runs}")).collect();
        output::prose(&format!(
            "Runs of several kinds ({}): each is watched as its own, and what is not tuned is taken from {}; --preset tunes one kind apart",
            kinds.join(", "),
            summary.preset
        ))?;
    }
    let axis = |(rule, parts): &(StallRule, Vec<Part>)| {
        format!("{} {}", rule.code(), parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    };
    output::prose(&format!(
        "{} combinations: {}",
        grouped(summary.candidates),
        summary.grid.iter().map(axis).collect::<Vec<_>>().join("; ")
    ))?;
    output::line("")?;
    if !summary.front.is_empty() {
        print_front(summary)?;
    }
    if !summary.trips.is_empty() {
        print_trips(summary)?;
    }
    let told = format!("{}.", verdict(summary));
    output::prose(&match summary.advice {
        Advice::Use => told.green().bold().to_string(),
        Advice::NoneKeepsThePrice | Advice::NotProven { .. } => told.red().to_string(),
        Advice::SuccessUnknown | Advice::NothingFailed | Advice::TooFewRuns { .. } | Advice::TooFewTasks { .. } | Advice::BetterAsItIs => {
            told.yellow().to_string()
        }
    })?;
    if let Some(chosen) = &summary.chosen {
        print_chosen(summary, chosen)?;
    }
    print_caps(summary)
}

/// What keeps the price on the runs it was chosen on is no choice until it is recommended.
fn named_chosen(summary: &Summary) -> &'static str {
    if summary.advice == Advice::Use { "chosen" } else { "candidate" }
}

fn print_front(summary: &Summary) -> Result<(), Failure> {
    let mut headings = vec![""];
    headings.extend(RULES.map(StallRule::code));
    headings.extend(["good runs stopped", "failed stopped", "saved"]);
    let mut table: Table = output::table(&headings);
    let mut add = |name: &str, parts: [Part; TUNED], measured: &Measured, weight: Weight| {
        let mut cells = vec![Cell::new(name)];
        cells.extend(parts.iter().map(right));
        cells.extend([
            right(format!("{} {}", measured.false_stops, interval(measured.false_stop_rate))),
            right(measured.stopped),
            right(interval(measured.saved_share)),
        ]);
        table.add_row(cells.into_iter().map(|cell| cell.weight(weight)));
    };
    add("as it is", summary.base.parts, &summary.base.measured, Weight::Dim);
    let chosen = summary.chosen.as_ref();
    for row in &summary.front {
        let is_chosen = chosen.is_some_and(|chosen| chosen.parts == row.parts);
        add(
            if is_chosen { named_chosen(summary) } else { "" },
            row.parts,
            &row.measured,
            if is_chosen { Weight::Bold } else { Weight::Plain },
        );
    }
    output::prose(&format!(
        "The front, {} of {}; saved: of the {} of failed runs. In brackets: 95 % confidence.",
        summary.front.len(),
        summary.front_len,
        summary.save.code()
    ))?;
    output::show(&table)?;
    output::line("")?;
    let at = |measured: &Measured| measured.false_stop_rate.value.zip(measured.saved_share.value);
    let front: Vec<(f64, f64)> = summary.front.iter().filter_map(|row| at(&row.measured)).collect();
    let reach = front.iter().map(|point| point.0).fold(summary.max_false_stops * 1.5, f64::max).min(summary.max_false_stops * 5.0);
    let most = (reach, front.iter().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max));
    let mut marks: Vec<(char, (f64, f64))> = front.iter().map(|point| ('•', *point)).collect();
    marks.extend(at(&summary.base.measured).map(|point| ('◇', point)));
    marks.extend(chosen.and_then(|chosen| at(&chosen.measured)).map(|point| ('◆', point)));
    output::prose(&format!(
        "saved {}, against good runs stopped  (◆ {}  ◇ as it is  • front  ┊ price)",
        summary.save.code(),
        named_chosen(summary)
    ))?;
    for line in (Plot { points: &summary.points, most, limit: summary.max_false_stops, marks: &marks }).lines() {
        output::line(&line)?;
    }
    output::line("")
}

fn print_chosen(summary: &Summary, chosen: &Chosen) -> Result<(), Failure> {
    let saved = format!("saved {}", summary.save.code());
    let mut table =
        output::table(&[named_chosen(summary), "good runs stopped", "failed runs stopped", &saved, "steps", "tokens", "dollars"]);
    let mut add = |name: &str, measured: &Measured| {
        table.add_row(vec![
            Cell::new(name),
            right(format!("{} of {}, {}", measured.false_stops, measured.successful, interval(measured.false_stop_rate))),
            right(format!("{} of {}", measured.stopped, measured.failed)),
            right(interval(measured.saved_share)),
            right(measured.saved.steps),
            right(measured.saved.tokens),
            right(format!("{:.2}", measured.saved.dollars)),
        ]);
    };
    add("on tasks it was not chosen on", &chosen.held_out);
    add("on all runs", &chosen.measured);
    if chosen.by_source.len() > 1 {
        for (source, measured) in &chosen.by_source {
            add(&format!("  {}", output::clean(source)), measured);
        }
    }
    output::show(&table)
}

fn print_trips(summary: &Summary) -> Result<(), Failure> {
    let mut table = output::table(&["rule", "threshold", "runs stopped", "share", "steps after"]);
    for (rule, part, measured) in &summary.trips {
        let share = Share::of(measured.unknown_stopped, measured.unknown);
        table.add_row(vec![
            Cell::new(rule.code()),
            right(part),
            right(measured.unknown_stopped),
            right(interval(share)),
            right(measured.unknown_after.steps),
        ]);
    }
    output::prose("What each rule alone would stop; whether these stops are good ones is not known.")?;
    output::show(&table)?;
    output::line("")
}

fn print_caps(summary: &Summary) -> Result<(), Failure> {
    if summary.caps.is_empty() {
        return Ok(());
    }
    let mut table =
        output::table(&["caps", "runs", "p50", "p95", "p99", "most", "cap", "from", "good runs over", "failed over", "failed beyond"]);
    for cap in &summary.caps {
        let quantile = |percentile: f64| {
            cap.quantiles
                .iter()
                .find(|quantile| (quantile.percentile - percentile).abs() < 1e-9)
                .map_or_else(|| "–".to_owned(), |quantile| number(quantile.value))
        };
        let from = cap.percentile.map_or_else(
            || format!("{} more runs needed", cap.runs_missing),
            |percentile| format!("p{} × {}", number(100.0 * percentile), number(cap.factor)),
        );
        table.add_row(vec![
            Cell::new(cap.amount.code()),
            right(cap.runs),
            right(quantile(0.5)),
            right(quantile(0.95)),
            right(quantile(0.99)),
            right(number(cap.most)),
            right(cap.cap.map_or_else(|| "–".to_owned(), number)).weight(Weight::Bold),
            Cell::new(from),
            right(interval(cap.successful_over)),
            right(interval(cap.failed_over)),
            right(number(cap.failed_beyond)),
        ]);
        for tighter in &cap.tighter {
            let mut row = vec![Cell::new(""); 6];
            row.extend([
                right(number(tighter.cap)),
                Cell::new(format!("p{}", number(100.0 * tighter.percentile))),
                right(interval(tighter.successful_over)),
                right(interval(tighter.failed_over)),
                right(number(tighter.failed_beyond)),
            ]);
            table.add_row(row);
        }
    }
    output::prose(if summary.caps.iter().all(|cap| cap.of_successful) {
        "\nCaps from what successful runs used:"
    } else {
        "\nCaps from what all runs used, since of none it is known whether it succeeded:"
    })?;
    output::show(&table)?;
    let long =
        |amount: Amount| summary.caps.iter().find(|cap| cap.amount == amount).and_then(|cap| cap.long).map(|long| format!("{long:.0}"));
    let words = match (long(Amount::Steps), long(Amount::Tokens)) {
        (Some(calls), Some(tokens)) => format!("{calls} calls, or {tokens} tokens,"),
        (Some(calls), None) => format!("{calls} calls"),
        (None, _) => return Ok(()),
    };
    output::prose(&format!(
        "Runs of more than {words} are long ones here, by all that were read, good and failed alike. Ending those that show another sign beside is among the combinations (long_run), unless --grid names others."
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use runguard_core::detect::stall::Preset;
    use runguard_replay::labels::Labels;
    use runguard_replay::rules::{Guards, Presets};

    #[test]
    fn shares_and_grids_are_read() {
        assert_eq!(a_share("1%"), Ok(0.01));
        assert_eq!(a_share("0.5 %"), Ok(0.005));
        assert_eq!(a_share("0.02"), Ok(0.02));
        for wrong in ["0", "100%", "-1%", "one", "1.5", "NaN"] {
            assert!(a_share(wrong).is_err(), "{wrong}");
        }
        assert_eq!(a_grid("identical=3, 5,off"), Ok((StallRule::Identical, vec![Part::Stop(3), Part::Stop(5), Part::Off])));
        let long = |calls, tokens| Part::Long { calls, tokens };
        assert_eq!(
            a_grid("long_run=80,2000000t,80+900t"),
            Ok((StallRule::LongRun, vec![Part::Stop(80), long(0, 2_000_000), long(80, 900)]))
        );
        assert!(a_grid("long_run=0t").is_err() && a_grid("long_run=x+3t").is_err());
        assert_eq!(a_grid("novelty=1/6"), Ok((StallRule::Novelty, vec![Part::Novelty { window: 6, max_new: 1 }])));
        for wrong in ["identical", "identity=3", "identical=1/6", "novelty=6", "cycle=many"] {
            assert!(a_grid(wrong).is_err(), "{wrong}");
        }
    }

    /// A thousand good runs, and failed ones that repeat a call.
    fn tuned(known: bool) -> (tempfile::NamedTempFile, Summary) {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        for index in 0..1500 {
            let good = index % 3 > 0;
            let step = |args: usize| {
                format!(
                    r#"{{"kind":"call","tool":"sh","args_hash":"{args}","result_hash":"{args}","result_len":900,"tokens_in":1000,"cost_usd":0.001}}"#
                )
            };
            let steps: Vec<String> = (0..12).map(|at| step(if good { at } else { at / 11 })).collect();
            let success = if known { good.to_string() } else { "null".to_owned() };
            writeln!(file, r#"{{"run_id":"{index}","source":"s","task":"{index}","success":{success},"steps":[{}]}}"#, steps.join(","))
                .expect("written");
        }
        let guards = Guards::of_stall(&Preset::Browser.settings(), Presets::default()).expect("guards");
        let options = Options {
            grid: Options::grid_around(&guards),
            guards,
            save: Save::Dollars,
            max_false_stops: 0.01,
            together: Together::Task,
            room: Room { percentile: 0.99, factor: 1.5 },
        };
        let (files, labels) = ([file.path().to_owned()], Labels::default());
        let gathered = gather(&Recorded::of(&files, &labels), &options, &mut |_| ()).expect("gathered");
        let summary = tune(&gathered, &options);
        (file, summary)
    }

    #[test]
    fn what_is_written_is_what_the_service_and_the_agent_take() {
        let (_file, summary) = tuned(true);
        let chosen = summary.chosen.as_ref().expect("chosen");
        assert_eq!(summary.advice, Advice::Use);
        let text = settings_file(&summary, Reader::Service).expect("a file");
        let loaded =
            runguard_engine::settings::check_text(Path::new("runguard.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let stall = loaded.settings.guard_tree("").remove("stall").expect("its table");
        assert_eq!(serde_json::from_value::<runguard_core::detect::stall::StallSettings>(stall).expect("settings"), chosen.settings);
        let value = |key: &str| loaded.values().into_iter().find(|(name, ..)| name == key).map(|(_, value, _)| value);
        assert_eq!((value("guards.budget.max_usd"), value("guards.budget.max_tokens")), (Some(json!(0.018)), Some(json!(18000))));
        assert!(
            text.contains("of 1000 successful runs, × 1.5") && text.contains("stopped 0 of 1000 successful runs: 0.00 % [0.00–0.38]"),
            "{text}"
        );

        let text = settings_file(&summary, Reader::Agent).expect("a file");
        let agent = runguard_agent::settings::Settings::from_toml(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(agent.guardrails.stall_settings(), chosen.settings);
        assert_eq!((agent.limits.max_steps, agent.limits.token_budget, agent.limits.cost_limit), (18, 18000, 0.018));
    }

    #[test]
    fn where_nothing_is_recommended_the_detector_ends_no_run_by_what_is_written() {
        let (_file, summary) = tuned(false);
        let text = settings_file(&summary, Reader::Service).expect("caps");
        let loaded =
            runguard_engine::settings::check_text(Path::new("runguard.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(loaded.settings.guard_tree("")["stall"]["mode"], "observe", "the price of what is in force is not known");
        let agent =
            runguard_agent::settings::Settings::from_toml(&settings_file(&summary, Reader::Agent).expect("caps")).expect("settings");
        assert_eq!((agent.guardrails.stall_settings().highest.code(), agent.limits.max_steps), ("steer", 18));
    }
}
