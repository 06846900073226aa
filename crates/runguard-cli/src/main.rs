//! The binary `runguard`.

mod client;
mod commands;
mod failure;
mod output;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

// Many small values live and die with every request.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A circuit breaker for AI agents and chatbots.
///
/// Before a step that costs money, ask RunGuard: go on, or stop, why, and what to do instead.
#[derive(Debug, Parser)]
#[command(name = "runguard", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
First steps:
  runguard serve
  curl -s localhost:8100/guard/ai-task-retry -d '{\"session_id\":\"a\",\"task_name\":\"b\"}'
  runguard decisions
  runguard agent --demo loop

Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 not found, 4 service not reached, 5 key refused, 130 cancelled";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the guard service
    Serve(commands::serve::Serve),
    /// Run an agent that cannot run away: in the terminal, or behind HTTP
    Agent(commands::agent::Agent),
    /// Show the latest decisions, or follow them as they happen
    Decisions(commands::decisions::Decisions),
    /// Show one session: what happened, what is used up, what would be allowed next
    Session(commands::session::Session),
    /// Show the circuits of all endpoints; force or reset one
    Circuits(commands::circuits::Circuits),
    /// Make, list and revoke API keys
    Key(commands::key::Key),
    /// Print an example settings file, check one, or show what is in force
    Settings(commands::settings::Settings),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Agent(agent) => agent.run(),
        Command::Decisions(decisions) => decisions.run(),
        Command::Session(session) => session.run(),
        Command::Circuits(circuits) => circuits.run(),
        Command::Key(key) => key.run(),
        Command::Settings(settings) => settings.run(),
    };
    match result {
        // A closed output: whoever reads it has seen enough (`| head`).
        Ok(()) | Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        // It was said where it happened, with what to do about it.
        Err(failure @ (Failure::Cancelled | Failure::AlreadyTold)) => failure.exit_code(),
        Err(failure) => {
            anstream::eprintln!("{} {failure}", owo_colors::OwoColorize::red(&"error:"));
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
