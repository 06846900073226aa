//! The binary `runguard`.

mod client;
mod commands;
mod failure;
mod logging;
mod output;
mod table;
mod version;

use clap::{CommandFactory, Parser, Subcommand};
use failure::Failure;
use output::Colors;
use std::process::ExitCode;

// Many small values live and die with every request.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A circuit breaker for AI agents and chatbots.
///
/// Before a step that costs money, ask RunGuard: go on, or stop, why, and what to do instead.
#[derive(Debug, Parser)]
#[command(name = "runguard", version = version::SHORT, long_version = version::LONG.as_str(), after_help = AFTER_HELP)]
struct Cli {
    /// When colours are shown
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Colors::Auto, global = true)]
    color: Colors,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
First steps:
  runguard demo
  runguard run --max-usd 1 -- python agent.py
  runguard serve
  curl -s localhost:8100/guard/ai-task-retry \\
    -d '{\"session_id\":\"a\",\"task_name\":\"b\"}'
  runguard decisions
  runguard agent --demo loop

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 not found, 4 service not reached, 5 key refused, 130 cancelled";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the guard service
    Serve(commands::serve::Serve),
    /// Stand in front of the providers of models: a hard cap in dollars by changing one variable
    Gateway(commands::gateway::Gateway),
    /// Watch the guards at work on simulated traffic: no keys, no accounts
    Demo(commands::demo::Demo),
    /// Work out what loops cost you, and what the guards would leave of it
    Estimate(commands::estimate::Estimate),
    /// Find circles and gaps in a planned routing before it goes live
    CheckFlow(commands::check_flow::CheckFlow),
    /// Run a program of yours, Python or Node, with a cap on what its model calls cost
    Run(commands::run::Run),
    /// Run an agent that cannot run away: in the terminal, or behind HTTP
    Agent(commands::agent::Agent),
    /// Show the latest decisions, or follow them as they happen
    Decisions(commands::decisions::Decisions),
    /// List the sessions: the latest, those blocked most, the dearest, or those whose name begins so
    Sessions(commands::sessions::Sessions),
    /// Show one session: what happened, what is used up, what would be allowed next
    Session(commands::session::Session),
    /// Show the circuits of all endpoints; open, close or reset one
    Circuits(commands::circuits::Circuits),
    /// Show what the log advises: what to change, why, and what it would save
    Insights(commands::insights::Insights),
    /// Show what was used: operations and credits by bot, step and day, AI steps by conversation
    Consumption(commands::consumption::Used),
    /// Show what model calls cost, by day, model, key or run, and what is left of the budgets
    Spend(commands::spend::Spend),
    /// Show the runs that ask models; stop or resume one
    Runs(commands::runs::Runs),
    /// Write a report: a page with plots, or totals as a table
    Report(commands::report::Report),
    /// Play the loops your flow could fall into with your own bot, and see which guards stop them
    Preflight(commands::preflight::Preflight),
    /// Show what was alerted, test the targets, retry a dead letter
    Alerts(commands::alerts::Alerts),
    /// What changed settings would have done, from the log
    Preview(commands::preview::Preview),
    /// What the guards and budgets would have done to recorded runs
    Replay(commands::replay::Replay),
    /// Find thresholds and caps for a price, from recorded runs
    Tune(commands::tune::Tune),
    /// Tell one recorded run step by step: what was new, what was counted, what fired and why
    Explain(commands::explain::Explain),
    /// Make, list and revoke API keys
    Key(commands::key::Key),
    /// Print an example settings file, check one, set a value, or show all and where they come from
    Settings(commands::settings::Settings),
    /// Print the completions of a shell: commands, flags and their values
    Completions(commands::manual::Completions),
    /// Print the manual page, or write those of all commands into a folder
    Man(commands::manual::Man),
}

fn main() -> ExitCode {
    Colors::asked(std::env::args_os().filter_map(|argument| argument.into_string().ok())).apply();
    let cli = Cli::parse();
    cli.color.apply();
    let result = match cli.command {
        Command::Serve(serve) => serve.run(),
        Command::Gateway(gateway) => gateway.run(),
        Command::Demo(demo) => demo.run(),
        Command::Estimate(estimate) => estimate.run(),
        Command::CheckFlow(check) => check.run(),
        Command::Run(run) => run.run(),
        Command::Agent(agent) => agent.run(),
        Command::Decisions(decisions) => decisions.run(),
        Command::Sessions(sessions) => sessions.run(),
        Command::Session(session) => session.run(),
        Command::Circuits(circuits) => circuits.run(),
        Command::Insights(insights) => insights.run(),
        Command::Consumption(used) => used.run(),
        Command::Spend(used) => used.run(),
        Command::Runs(used) => used.run(),
        Command::Report(report) => report.run(),
        Command::Preflight(preflight) => preflight.run(),
        Command::Alerts(alerts) => alerts.run(),
        Command::Preview(preview) => preview.run(),
        Command::Replay(replay) => replay.run(),
        Command::Tune(tune) => tune.run(),
        Command::Explain(explain) => explain.run(),
        Command::Key(key) => key.run(),
        Command::Settings(settings) => settings.run(),
        Command::Completions(completions) => completions.run(Cli::command()),
        Command::Man(man) => man.run(Cli::command()),
    };
    match result {
        // A closed output: whoever reads it has seen enough (`| head`).
        Ok(()) | Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        // It was said where it happened, with what to do about it.
        Err(failure @ (Failure::Cancelled | Failure::AlreadyTold | Failure::Exited(_))) => failure.exit_code(),
        Err(failure) => {
            output::note(&format!("{} {failure}", owo_colors::OwoColorize::red(&"error:")));
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Every command, flag and place, and every word that one of them takes.
    fn without_words(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        if command.get_about().is_none() {
            found.push(path.to_owned());
        }
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let name = format!("{path} {}", argument.get_id());
            if argument.get_help().is_none() {
                found.push(name.clone());
            }
            for value in argument.get_possible_values().iter().filter(|value| value.get_help().is_none()) {
                // `true` and `false` of a flag need no words.
                if argument.get_action().takes_values() {
                    found.push(format!("{name}={}", value.get_name()));
                }
            }
        }
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            without_words(inner, &format!("{path} {}", inner.get_name()), found);
        }
    }

    #[test]
    fn every_flag_and_every_value_says_what_it_is_for() {
        let mut found = Vec::new();
        let mut command = Cli::command();
        command.build();
        without_words(&command, "runguard", &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }
}
