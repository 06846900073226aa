//! Detection quality on recorded runs: `detection [--json FILE] [--cross-validate] [FOLDER]`; the folder can be told by
//! `RUNGUARD_TRACES`.

use runguard_core::detect::stall::StallRule;
use runguard_replay::evaluate::{FRONTIER_RUNS, Lengths, NATIVE, Report, Share, TEXT, Tally, evaluate, files_of};
use runguard_replay::rules::{Contender, Other, contenders};
use runguard_replay::validate::{PRICES, Problem, Saved, Trial};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, fs, thread};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let (mut folder, mut json_file, mut validate) = (env::var_os("RUNGUARD_TRACES").map(PathBuf::from), None, false);
    let mut arguments = env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--json") => json_file = Some(arguments.next().ok_or("--json needs a file")?),
            Some("--cross-validate") => validate = true,
            _ => folder = Some(argument.into()),
        }
    }
    let folder = folder.ok_or("where are the traces? Give their folder or set RUNGUARD_TRACES")?;
    let files = files_of(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if files.is_empty() {
        return Err(format!("{}: no .jsonl or .jsonl.gz in it", folder.display()).into());
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut rules = contenders()?;
    rules.insert(1, Lengths::of(&files, threads).contender(CALIBRATED));
    let started = Instant::now();
    let report = evaluate(&files, &rules, threads);
    let seconds = started.elapsed().as_secs_f64();
    println!("{} runs, {} steps, {} rules in {seconds:.2} s\n", report.runs, report.steps, rules.len());
    tell_broken(&report);
    print_tables(&report, &rules);
    let prices = prices(&files, threads)?;
    let validation = if validate { Some(cross_validation(&files, threads)?) } else { None };
    if let Some(file) = json_file {
        write_json(Path::new(&file), &report, &rules, prices, validation)?;
    }
    Ok(())
}

fn tell_broken(report: &Report) {
    for broken in &report.broken {
        eprintln!("{broken}");
    }
    if report.broken_lines > 0 {
        eprintln!("{} lines could not be read and are not in the figures\n", report.broken_lines);
    }
}

fn percent(share: Share) -> String {
    share.value.map_or_else(String::new, |value| format!("{:.2} % [{:.2}–{:.2}]", 100.0 * value, 100.0 * share.low, 100.0 * share.high))
}

fn of(part: u64, whole: u64, share: Share) -> String {
    if whole == 0 { String::new() } else { format!("{part}/{whole} {}", percent(share)) }
}

/// RunGuard told how long the runs of each kind are, good and failed alike, by tasks other than the one it is measured on.
const CALIBRATED: &str = "RunGuard, calibrated";

const COLUMNS: [&str; 8] = [
    "",
    "false stops",
    "of them costly",
    "failed stopped",
    "precision",
    "recall (stuck in loop)",
    "failed steps saved",
    "failed tokens saved",
];

fn cells(name: &str, tally: &Tally) -> [String; 8] {
    [
        name.to_owned(),
        of(tally.false_stops, tally.successful, tally.false_stop_rate()),
        of(tally.costly_stops, tally.successful, tally.costly_stop_rate()),
        of(tally.stopped, tally.failed, tally.stop_rate()),
        percent(tally.precision()),
        of(tally.stuck_found, tally.stuck, tally.recall()),
        percent(tally.saved()),
        tally.saved_tokens_share().map_or_else(String::new, |share| format!("{:.2} %", 100.0 * share)),
    ]
}

fn print_table<const WIDTH: usize>(title: &str, header: [&str; WIDTH], rows: &[[String; WIDTH]]) {
    let header = header.map(str::to_owned);
    let used: Vec<usize> = (0..WIDTH).filter(|column| rows.iter().any(|row| !row[*column].is_empty())).collect();
    println!("{title}");
    for row in [&header].into_iter().chain(rows) {
        let mut line = String::from(" ");
        for column in &used {
            let width = rows.iter().chain([&header]).map(|row| row[*column].chars().count()).max().unwrap_or(0);
            line.push_str(&format!(" {:width$} ", row[*column]));
        }
        println!("{}", line.trim_end());
    }
    println!();
}

fn print_tables(report: &Report, rules: &[Contender]) {
    println!("A false stop is a stop of a successful run; a costly one was followed by more steps. In brackets: 95 % confidence.\n");
    for group in report.groups() {
        let rows: Vec<_> = rules.iter().enumerate().map(|(index, rule)| cells(&rule.name, &report.tally(group, index, |_| true))).collect();
        print_table(group, COLUMNS, &rows);
    }
}

/// What each rule of ours does by itself, by class of models: good runs stopped, and what is saved of the failed ones.
fn prices(files: &[PathBuf], threads: usize) -> Result<Value, Failure> {
    let alone = StallRule::ALL.into_iter().map(Contender::alone).collect::<Result<Vec<_>, _>>()?;
    let report = evaluate(files, &alone, threads);
    let groups = [FRONTIER_RUNS, NATIVE, TEXT, "intercode"];
    let rows: Vec<[String; 5]> = (0..alone.len())
        .map(|index| {
            let mut row = [alone[index].name.clone(), String::new(), String::new(), String::new(), String::new()];
            for (cell, group) in row[1..].iter_mut().zip(groups) {
                let tally = report.tally(group, index, |_| true);
                let saved = tally.saved().value.map_or_else(String::new, |saved| format!(", {:.2} % saved", 100.0 * saved));
                *cell = format!("{}/{}{saved}", tally.false_stops, tally.successful);
            }
            row
        })
        .collect();
    print_table(
        "each rule of RunGuard's alone: good runs stopped, steps of failed ones saved",
        ["", FRONTIER_RUNS, NATIVE, TEXT, "intercode"],
        &rows,
    );
    let of_rule = |index: usize| -> serde_json::Map<String, Value> {
        groups.iter().map(|group| ((*group).to_owned(), figures(&report.tally(group, index, |_| true)))).collect()
    };
    Ok(alone
        .iter()
        .enumerate()
        .map(|(index, rule)| (rule.name.clone(), Value::from(of_rule(index))))
        .collect::<serde_json::Map<_, _>>()
        .into())
}

/// Chooses thresholds on four fifths of the tasks and measures on the last, five times; and holds them against every rival for its price.
fn cross_validation(files: &[PathBuf], threads: usize) -> Result<Value, Failure> {
    let as_failure = |problem: Problem| -> Failure { problem };
    let trial = Trial::of_thresholds(files, Lengths::of(files, threads), threads).map_err(as_failure)?;
    let chosen = trial.cross_validate();
    println!("chosen without each fifth of the tasks, of {} combinations:", trial.len());
    let picks: Vec<String> = chosen.iter().map(|held| trial.name(held.chosen)).collect();
    for (held, pick) in chosen.iter().zip(&picks) {
        println!("  without {}: {pick}", held.fold + 1);
    }
    println!();
    let groups: Vec<&str> = trial.groups().collect();
    let tallies: Vec<(&str, Tally)> = groups.iter().map(|group| (*group, trial.held_out(&chosen, group))).collect();
    let rows: Vec<_> = tallies.iter().map(|(group, tally)| cells(group, tally)).collect();
    print_table("what the chosen ones do on the fifths they were chosen without", COLUMNS, &rows);
    let held: serde_json::Map<String, Value> = tallies.iter().map(|(group, tally)| ((*group).to_owned(), figures(tally))).collect();
    let classes = PRICES.map(|(group, price)| {
        let saved = if group == "intercode" { Saved::Steps } else { Saved::Tokens };
        (group, trial.held_out(&trial.at_its_own_price(group, price, saved), group))
    });
    let rows: Vec<_> = classes.iter().map(|(group, tally)| cells(group, tally)).collect();
    print_table("the same, chosen for each class alone at its own price", COLUMNS, &rows);
    let by_class: serde_json::Map<String, Value> = classes.iter().map(|(group, tally)| ((*group).to_owned(), figures(tally))).collect();
    let trial = Trial::against_others(files, Lengths::of(files, threads), threads).map_err(as_failure)?;
    println!("against the rules of others: {} combinations\n", trial.len());
    let (mut rows, mut rivals) = (Vec::new(), Vec::new());
    for group in &groups {
        for (what, saved) in [("steps", Saved::Steps), ("tokens", Saved::Tokens)] {
            let priced = trial.priced(group, saved);
            for rival in Other::ALL.map(Other::contender) {
                let theirs = trial.of_rival(&rival, group);
                let ours = trial.held_out(&priced.at(|fold| trial.price_of(&rival, group, fold)), group);
                let share = |tally: &Tally| if saved == Saved::Steps { tally.saved().value } else { tally.saved_tokens_share() };
                let (Some(our), Some(their)) = (share(&ours), share(&theirs)) else { continue };
                let price = |tally: &Tally| format!("{}/{}", tally.costly_stops, tally.successful);
                rows.push([
                    (*group).to_owned(),
                    rival.name.clone(),
                    what.to_owned(),
                    format!("{:.2} %", 100.0 * their),
                    price(&theirs),
                    format!("{:.2} %", 100.0 * our),
                    price(&ours),
                ]);
                rivals.push(json!({
                    "group": group, "rule": rival.name, "what": what, "saved": their, "ours": our,
                    "good_runs_stopped": theirs.costly_stop_rate(), "ours_stopped": ours.costly_stop_rate(),
                }));
            }
        }
    }
    let header = ["", "", "", "saves", "good runs ended", "ours saves", "good runs ended by ours"];
    print_table("for the price of each rule of others: ours, chosen on other tasks to end no more good runs of the class", header, &rows);
    Ok(json!({"chosen": picks, "held_out": held, "held_out_by_class": by_class, "rivals": rivals}))
}

fn figures(tally: &Tally) -> Value {
    json!({
        "sums": tally,
        "false_stops": tally.false_stop_rate(),
        "costly_stops": tally.costly_stop_rate(),
        "failed_stopped": tally.stop_rate(),
        "precision": tally.precision(),
        "recall": tally.recall(),
        "failed_steps_saved": tally.saved(),
        "failed_tokens_saved": {"value": tally.saved_tokens_share()},
    })
}

fn write_json(file: &Path, report: &Report, rules: &[Contender], prices: Value, validation: Option<Value>) -> Result<(), Failure> {
    let group = |group: &str| -> serde_json::Map<String, Value> {
        rules.iter().enumerate().map(|(index, rule)| (rule.name.clone(), figures(&report.tally(group, index, |_| true)))).collect()
    };
    let groups: serde_json::Map<String, Value> = report.groups().map(|name| (name.to_owned(), group(name).into())).collect();
    let all = json!({
        "runs": report.runs, "steps": report.steps, "broken_lines": report.broken_lines, "groups": groups, "alone": prices,
        "cross_validation": validation,
    });
    fs::write(file, serde_json::to_string_pretty(&all)? + "\n")?;
    Ok(())
}
