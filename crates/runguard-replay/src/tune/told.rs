//! What was found, in words: the verdict, and the settings to take over.

use super::{Advice, Chosen, Summary};
use crate::caps::{Amount, Cap};
use crate::evaluate::Share;
use runguard_core::detect::stall::{Preset, StallSettings};
use runguard_core::shown::toml;

/// For whom settings are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// `runguard serve`.
    Service,
    /// `runguard agent`.
    Agent,
}

fn per_cent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn interval(share: Share) -> String {
    share
        .value
        .map_or_else(|| "not known".to_owned(), |value| format!("{} [{:.2}–{:.2}]", per_cent(value), 100.0 * share.low, 100.0 * share.high))
}

/// What the evidence says, in words; the same on a terminal, in a settings file and on a page.
pub fn verdict(summary: &Summary) -> String {
    let price = per_cent(summary.max_false_stops);
    match summary.advice {
        Advice::Use => "recommended: on tasks it was not chosen on, the whole 95 % interval of false stops lies under the price".to_owned(),
        Advice::SuccessUnknown => {
            "no recommendation: of no run it is known whether it succeeded, so there is no telling a good stop from a bad one; what follows are trip rates, and caps from all runs".to_owned()
        }
        Advice::NothingFailed => "no recommendation: none of these runs failed, so there is nothing to save".to_owned(),
        Advice::TooFewRuns { successful, chosen_on, more } => format!(
            "no recommendation: {successful} successful runs are too few. A choice is made without a fifth of the tasks each time, so on as few as {chosen_on} of them, and of {chosen_on} even none stopped leaves an interval up to {}, over the price of {price}. It takes about {more} more successful runs",
            per_cent(Share::of(0, chosen_on).high)
        ),
        Advice::BetterAsItIs => format!(
            "no recommendation: the settings as they are save more than what is proven, and of the good runs they stop {}, of which the whole interval lies under {price}. They stay as they are",
            interval(summary.base.measured.false_stop_rate)
        ),
        Advice::TooFewTasks { tasks, more } => {
            format!("no recommendation: {tasks} tasks are too few to say how it goes on others; it takes {more} more tasks")
        }
        Advice::NoneKeepsThePrice => {
            format!("no recommendation: nothing in the grid that saves anything has its whole interval of false stops under {price}")
        }
        Advice::NotProven { more: Some(more) } => format!(
            "not recommended yet: on tasks it was not chosen on, the interval of false stops reaches over {price}. At the rate seen it takes about {more} more successful runs to prove it"
        ),
        Advice::NotProven { more: None } => {
            format!("not recommended: on tasks it was not chosen on, more than {price} of the good runs are stopped")
        }
    }
}

/// A settings file with what is recommended, and the evidence in its comments. `None` when nothing is.
pub fn settings_file(summary: &Summary, reader: Reader) -> Option<String> {
    let chosen = summary.chosen.as_ref().filter(|_| summary.advice == Advice::Use);
    let limits: String = summary.caps.iter().filter_map(|cap| cap_lines(cap, cap.cap?, reader)).collect();
    // A file that sets nothing, and only lets the detector end no run, would take protection away and give none.
    if chosen.is_none() && limits.lines().all(|line| line.starts_with('#')) {
        return None;
    }
    let mut out = format!(
        "# Written by `runguard tune` for {} agents from {} recorded runs of {} tasks: {} succeeded, {} failed, of {} it is not known.\n# In brackets: 95 % confidence.\n",
        summary.preset,
        summary.runs - summary.runs_left_out,
        summary.tasks,
        summary.successful,
        summary.failed,
        summary.unknown
    );
    if reader == Reader::Agent {
        out.push_str("\n# Say your own provider and model here.\n[provider]\nkind = \"openai\"\nmodel = \"gpt-4o-mini\"\n");
    }
    if !limits.is_empty() {
        let table = match reader {
            Reader::Service => "[guards.budget]",
            Reader::Agent => "[limits]",
        };
        out.push_str(&format!("\n{table}\n{limits}"));
    }
    let table = match reader {
        Reader::Service => "[guards.stall]",
        Reader::Agent => "[guardrails.stall]",
    };
    match chosen {
        Some(chosen) => {
            let lines = stall_lines(&chosen.settings);
            out.push_str(&format!("\n{}{table}\n{lines}", evidence(summary, chosen)));
            let preset = Preset::from_name(summary.preset).unwrap_or(Preset::Coding);
            let differs = lines_that_differ(&lines, &stall_lines(&preset.settings()));
            if reader == Reader::Service && !differs.is_empty() {
                out.push_str(&format!(
                    "\n# For the runs that go through the gateway: what differs from the preset {}, laid over that of each run.\n[guards.agent_run.stall]\n{differs}",
                    preset.name()
                ));
            }
        }
        None => out.push_str(&unproven(summary, reader, table)),
    }
    Some(out)
}

/// Whether the thresholds that are in force are shown to keep the price.
pub fn base_keeps_the_price(summary: &Summary) -> bool {
    let rate = summary.base.measured.false_stop_rate;
    rate.value.is_some_and(|_| rate.high <= summary.max_false_stops)
}

/// Where no thresholds are recommended: those in force stay only if they keep the price, else nothing is stopped by them.
fn unproven(summary: &Summary, reader: Reader, table: &str) -> String {
    let told = verdict(summary);
    if base_keeps_the_price(summary) {
        return format!("\n# The thresholds of the stall detector stay as they are: {told}.\n");
    }
    let off = match reader {
        Reader::Service => "mode = \"observe\"\n\n# Nor any that goes through the gateway.\n[guards.agent_run]\nmode = \"observe\"",
        Reader::Agent => "highest = \"steer\"",
    };
    format!(
        "\n# {told}.\n# The thresholds in force are not shown to keep the price of {} either (good runs stopped: {}), so they end no run.\n{table}\n{off}\n",
        per_cent(summary.max_false_stops),
        interval(summary.base.measured.false_stop_rate)
    )
}

fn evidence(summary: &Summary, chosen: &Chosen) -> String {
    let held = &chosen.held_out;
    let what = summary.save.code();
    format!(
        "# Price: at most {} of successful runs stopped. Chosen among {} combinations, for {} of the price.\n\
         # On tasks they were not chosen on, such choices stopped {} of {} successful runs: {},\n\
         # and saved {} of the {what} of failed runs ({} of {} failed runs stopped).\n\
         # These thresholds on all runs: {} of {} stopped, {}; saved {} of the {what}: {} steps, {} tokens, ${:.2}.\n",
        per_cent(summary.max_false_stops),
        summary.candidates,
        number(chosen.margin),
        held.false_stops,
        held.successful,
        interval(held.false_stop_rate),
        interval(held.saved_share),
        held.stopped,
        held.failed,
        chosen.measured.false_stops,
        chosen.measured.successful,
        interval(chosen.measured.false_stop_rate),
        interval(chosen.measured.saved_share),
        chosen.measured.saved.steps,
        chosen.measured.saved.tokens,
        chosen.measured.saved.dollars,
    )
}

/// A cap with where it comes from; where the reader has no setting for it, as a comment.
fn cap_lines(cap: &Cap, value: f64, reader: Reader) -> Option<String> {
    let percentile = cap.percentile?;
    let of = if cap.of_successful { "successful runs" } else { "all runs (of none it is known whether it succeeded)" };
    let at = cap.quantiles.iter().find(|quantile| (quantile.percentile - percentile).abs() < 1e-9);
    let at = at.map_or_else(String::new, |at| format!(" = {} [{}–{}]", number(at.value), number(at.low), number(at.high)));
    let over = if cap.of_successful {
        format!(" Over it: {} of successful runs, {} of failed.", interval(cap.successful_over), interval(cap.failed_over))
    } else {
        String::new()
    };
    let why =
        format!("# {}: p{}{at} of {} {of}, × {}.{over}\n", cap.amount.code(), number(100.0 * percentile), cap.runs, number(cap.factor));
    let whole = value.round() as u64;
    let line = match (reader, cap.amount) {
        (Reader::Service, Amount::Dollars) => format!("max_usd = {value:?}\n"),
        (Reader::Service, Amount::Tokens) => format!("max_tokens = {whole}\n"),
        (Reader::Service, Amount::Steps) => {
            format!("# {whole} steps: the service has no such limit; `runguard agent` has `limits.max_steps`.\n")
        }
        (Reader::Service, Amount::Minutes) => {
            format!("# {whole} minutes: the service has no such limit; `runguard agent` has `limits.timeout`.\n")
        }
        (Reader::Agent, Amount::Dollars) => format!("cost_limit = {value:?}\n"),
        (Reader::Agent, Amount::Tokens) => format!("token_budget = {whole}\n"),
        (Reader::Agent, Amount::Steps) => format!("max_steps = {whole}\n"),
        (Reader::Agent, Amount::Minutes) => format!("timeout = {}\n", whole * 60),
    };
    Some(format!("{why}{line}"))
}

/// A number without digits nobody reads.
pub fn number(value: f64) -> String {
    if (value - value.round()).abs() < 1e-9 {
        return format!("{value:.0}");
    }
    let decimals = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 1.0 {
        2
    } else {
        4
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// What is laid over presets must not undo what makes them one: only what was tuned is said.
fn lines_that_differ(lines: &str, of_preset: &str) -> String {
    lines.split_inclusive('\n').filter(|line| !of_preset.split_inclusive('\n').any(|own| own == *line)).collect()
}

/// Every key, so that what was measured is what runs, whatever the defaults are by then.
fn stall_lines(settings: &StallSettings) -> String {
    use runguard_core::detect::stall::Ladder;
    let StallSettings {
        identical,
        cycle,
        cycle_max_period,
        novelty_window,
        novelty_max_new,
        novelty_rung,
        novelty_nudges,
        novelty_by_target,
        same_error,
        messages,
        unmoved,
        put_back,
        same_result,
        failing,
        long_run,
        long_run_tokens,
        long_run_learned,
        polling,
        mutating,
        volatile,
        highest,
        ..
    } = settings;
    let ladder = |name: &str, ladder: &Ladder| {
        format!("{name} = {{ steer = {}, block = {}, stop = {} }}\n", ladder.steer, ladder.block, ladder.stop)
    };
    let names =
        |name: &str, tools: &[String]| format!("{name} = [{}]\n", tools.iter().map(|tool| toml(tool)).collect::<Vec<_>>().join(", "));
    [
        ladder("identical", identical),
        ladder("cycle", cycle),
        format!("cycle_max_period = {cycle_max_period}\n"),
        format!("novelty_window = {novelty_window}\nnovelty_max_new = {novelty_max_new}\nnovelty_rung = \"{}\"\n", novelty_rung.code()),
        format!("novelty_nudges = {novelty_nudges}\nnovelty_by_target = {novelty_by_target}\n"),
        ladder("same_error", same_error),
        ladder("messages", messages),
        ladder("unmoved", unmoved),
        ladder("put_back", put_back),
        ladder("same_result", same_result),
        ladder("failing", failing),
        ladder("long_run", long_run),
        format!("long_run_tokens = {long_run_tokens}\nlong_run_learned = {long_run_learned}\n"),
        names("polling", polling),
        names("mutating", mutating),
        names("volatile", &Vec::from(volatile.clone())),
        format!("highest = \"{}\"\n", highest.code()),
    ]
    .concat()
}
