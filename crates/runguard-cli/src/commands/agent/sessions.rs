//! `runguard agent sessions`: what there is to go on with.

use super::terminal::{call_line, money, shortened};
use super::{LAST, configured, session_failure, session_settings};
use crate::failure::Failure;
use crate::output;
use crate::table::{Cell, Color};
use clap::{Args, Subcommand};
use owo_colors::OwoColorize;
use runguard_agent::AgentState;
use runguard_agent::message::{Block, Message, Role, Tag};
use runguard_agent::session::disk::{Loaded, SessionFolder, Summary};
use runguard_core::text::grouped;
use serde_json::{Value, json};
use std::path::PathBuf;

/// What is shown of a tool's result, and of the first words of a session.
const RESULT_CHARS: usize = 400;
const FIRST_WORDS_CHARS: usize = 48;

#[derive(Debug, Args)]
pub(crate) struct Sessions {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    place: WhichSessions,
}

#[derive(Debug, Args)]
struct WhichSessions {
    /// The folder of the sessions [default: as in the settings, else runguard-sessions]
    #[arg(long, value_name = "DIR", global = true)]
    sessions: Option<PathBuf>,
    /// Settings that say where the sessions are [default: agent.toml, if there is one]
    #[arg(long, short, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// As JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List them, the newest first
    List,
    /// Show what was said in one
    Show {
        /// Its id or the beginning of it; `last` is the latest
        #[arg(default_value = LAST)]
        id: String,
        /// Also what the loop itself told the model
        #[arg(long)]
        all: bool,
    },
}

impl Sessions {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let configured = configured(self.place.config.as_deref())?;
        let settings = session_settings(self.place.sessions.as_deref(), configured.as_ref());
        // Looking must not make the folder.
        let folder = if settings.folder.is_dir() { Some(SessionFolder::open(&settings).map_err(session_failure)?) } else { None };
        match (self.verb.unwrap_or(Verb::List), folder) {
            (Verb::List, None) if self.place.json => output::json(&json!([])),
            (Verb::List, None) => output::line(&format!("No sessions in {}.", settings.folder.display())),
            (Verb::List, Some(folder)) => self.place.list(&folder.list().map_err(session_failure)?),
            (Verb::Show { .. }, None) => {
                Err(Failure::NotFound(format!("there are no sessions in {}; --sessions names another folder", settings.folder.display())))
            }
            (Verb::Show { id, all }, Some(folder)) => {
                let hidden = if all { Hidden::Shown } else { Hidden::LeftOut };
                self.place.show(&folder.read(&id).map_err(session_failure)?, hidden)
            }
        }
    }
}

/// What becomes of messages that the loop wrote to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hidden {
    Shown,
    LeftOut,
}

impl Hidden {
    fn shows(self, message: &Message) -> bool {
        self == Self::Shown || message.reason.is_none()
    }
}

impl WhichSessions {
    fn list(&self, summaries: &[Summary]) -> Result<(), Failure> {
        if self.json {
            let rows = summaries.iter().map(|summary| {
                json!({
                    "id": summary.id, "name": summary.name, "model": summary.model, "state": summary.state, "steps": summary.steps,
                    "total_tokens": summary.total_tokens, "cost_usd": summary.cost.as_dollars(),
                    "opened_at": output::seconds_text(summary.opened_at_ms), "first_prompt": summary.first_prompt, "problem": summary.problem,
                })
            });
            return output::json(&rows.collect());
        }
        if summaries.is_empty() {
            return output::line("No sessions yet.");
        }
        let mut table = output::table(&["id", "state", "steps", "tokens", "cost", "when", "first words"]);
        for summary in summaries {
            table.add_row([
                Cell::new(output::clean(&summary.id)),
                state_cell(summary.state),
                Cell::new(summary.steps),
                Cell::new(grouped(summary.total_tokens)),
                Cell::new(money(summary.cost)),
                Cell::new(output::seconds_text(summary.opened_at_ms)),
                match &summary.problem {
                    Some(problem) => Cell::new(output::clean(problem)).color(Color::Red),
                    None => Cell::new(shortened(&summary.first_prompt, FIRST_WORDS_CHARS)),
                },
            ]);
        }
        output::show(&table)?;
        output::note("Go on with one: runguard agent --resume ID [PROMPT]; read one: runguard agent sessions show ID");
        Ok(())
    }

    fn show(&self, loaded: &Loaded, hidden: Hidden) -> Result<(), Failure> {
        let session = &loaded.session;
        let messages = session.messages().iter().filter(|message| hidden.shows(message));
        if self.json {
            let mut value = json!({
                "id": session.id(), "state": session.state(), "stop": session.stop(), "opened_at": output::seconds_text(loaded.opened_at_ms),
                "model": loaded.settings.provider.model, "messages": messages.collect::<Vec<_>>(),
            });
            if let (Some(value), Value::Object(metadata)) = (value.as_object_mut(), session.metadata()) {
                value.extend(metadata);
            }
            return output::json(&value);
        }
        let counters = session.counters();
        output::line(&format!(
            "{}  {}  {}  {}\n{} steps · {} tokens · {}",
            output::clean(session.id()).bold(),
            session.state().code(),
            output::clean(&loaded.settings.provider.model),
            output::seconds_text(loaded.opened_at_ms),
            counters.steps,
            grouped(counters.input_tokens + counters.output_tokens),
            money(counters.cost)
        ))?;
        messages.flat_map(transcript).try_for_each(|line| output::line(&line))?;
        if let Some(damage) = &loaded.damage {
            output::note(&format!("{} {}", "damaged:".red(), output::clean(damage)));
        }
        Ok(())
    }
}

/// A message as it is read: who, then what.
fn transcript(message: &Message) -> Vec<String> {
    let who = match (message.reason, message.role) {
        (Some(Tag::MaxTokensRecovery), _) => "[to the model: go on]",
        (Some(Tag::GuardNudge), _) => "[to the model: a guard]",
        (Some(Tag::ContextMarker), _) => "[to the model: left out]",
        (None, Role::User) if message.has_results() => "",
        (None, Role::User) => "you",
        (None, Role::Assistant) => "agent",
    };
    let mut lines = Vec::new();
    if !who.is_empty() {
        lines.push(format!("\n{}", who.bold()));
    }
    lines.extend(message.content.iter().filter_map(|block| match block {
        Block::Text { text } if text.trim().is_empty() => None,
        Block::Text { text } => Some(output::clean_lines(text.trim_end())),
        Block::Thinking { text, .. } if text.trim().is_empty() => None,
        Block::Thinking { text, .. } => Some(output::clean_lines(text.trim_end()).dimmed().to_string()),
        Block::ToolCall(call) => Some(call_line(call)),
        Block::ToolResult(result) => {
            let mark = if result.is_error { "✗" } else { "✓" };
            Some(format!("{mark} {}: {}", output::clean(&result.name), shortened(&result.text, RESULT_CHARS)))
        }
        Block::Opaque { .. } => None,
    }));
    lines
}

fn state_cell(state: AgentState) -> Cell {
    let color = match state {
        AgentState::Completed => Color::Green,
        AgentState::Running | AgentState::WaitingForTool | AgentState::WaitingForInput | AgentState::Cancelled => Color::Yellow,
        AgentState::TimedOut | AgentState::MaxSteps | AgentState::BudgetExceeded | AgentState::Error => Color::Red,
    };
    Cell::new(state.code()).color(color)
}
