//! `runguard decisions`: the log, filtered, in pages or followed as it grows.

use crate::client::{Client, Query};
use crate::failure::Failure;
use crate::output;
use crate::table::Cell;
use clap::Args;
use owo_colors::OwoColorize;
use serde_json::Value;
use std::io::BufRead;

/// How many are shown, when nothing is said.
const USUAL: u32 = 20;
/// How many of the past, before those that happen.
const USUAL_BEFORE: u32 = 10;
/// Columns of a terminal that has room for words.
const ROOM_FOR_WORDS: u16 = 120;

#[derive(Debug, Args)]
pub(crate) struct Decisions {
    #[command(flatten)]
    client: Client,
    /// Of this guard (handoff, `agent_action`, …)
    #[arg(long)]
    guard: Option<String>,
    /// With this reason (`cycle_detected`, …)
    #[arg(long)]
    reason: Option<String>,
    /// Of this kind: check, record, admin, or all of them [default: check]
    #[arg(long)]
    kind: Option<String>,
    /// Of this session
    #[arg(long)]
    session: Option<String>,
    /// Of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Ended so: allowed, `would_block`, blocked, recorded
    #[arg(long)]
    outcome: Option<String>,
    /// From then on: a time, or how long ago (15m, 24h, 7d)
    #[arg(long)]
    since: Option<String>,
    /// Before then
    #[arg(long)]
    until: Option<String>,
    /// How many, at most 1000; with --follow how many of the past come first [default: 20, with --follow 10]
    #[arg(long)]
    limit: Option<u32>,
    /// The last ones, and then each as it happens
    #[arg(long, short)]
    follow: bool,
    /// As JSON; with --follow one object a line
    #[arg(long)]
    json: bool,
}

impl Decisions {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let filters = [
            ("guard", &self.guard),
            ("reason", &self.reason),
            ("kind", &self.kind),
            ("session", &self.session),
            ("tenant", &self.tenant),
            ("outcome", &self.outcome),
            ("since", &self.since),
            ("until", &self.until),
        ];
        let query: Query = filters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        if self.follow {
            return self.follow(&query);
        }
        let page = self.page(&query, self.limit.unwrap_or(USUAL))?;
        if self.json {
            return output::json(&page);
        }
        let rows = page["decisions"].as_array().map(Vec::as_slice).unwrap_or_default();
        if rows.is_empty() {
            return output::line("No decisions that fit.");
        }
        // The words of a decision say what its reason and its subject do; where there is no room, they go first.
        let has_room = output::terminal_columns().is_none_or(|columns| columns >= ROOM_FOR_WORDS);
        let headers = ["time", "guard", "session", "subject", "outcome", "reason", "message"];
        let mut table = output::table(if has_room { &headers } else { &headers[..6] });
        for row in rows {
            let cells = [
                output::time_cell(&row["time"]),
                output::cell(&row["guard"]),
                output::cell(&row["session_id"]),
                output::cell(&row["subject"]),
                output::outcome_cell(row["outcome"].as_str().unwrap_or_default()),
                output::cell(&row["reason"]),
            ];
            let words = has_room.then(|| Cell::new(first_sentence(&output::text(&row["message"]))));
            table.add_row(cells.into_iter().chain(words));
        }
        table.keep_whole(&[0, 1, 4]);
        output::show(&table)?;
        if page["next_cursor"].is_string() {
            output::note("There are more; --limit shows up to 1000, and filters narrow it down.");
        }
        Ok(())
    }

    fn page(&self, query: &Query, limit: u32) -> Result<Value, Failure> {
        self.client.get("/v1/decisions", &[query.clone(), vec![("limit", limit.to_string())]].concat())
    }

    /// The stream is open before the past is asked for, so that nothing falls between them; what is in both is shown once.
    fn follow(&self, query: &Query) -> Result<(), Failure> {
        let stream = self.client.stream("/v1/events", query)?;
        let before = match self.limit.unwrap_or(USUAL_BEFORE) {
            0 => Value::Null,
            limit => self.page(query, limit)?,
        };
        let before = before["decisions"].as_array().map(Vec::as_slice).unwrap_or_default();
        for row in before.iter().rev() {
            self.show_one(row)?;
        }
        for line in stream.lines() {
            let line = line.map_err(|error| Failure::Unreachable(format!("the stream broke off: {error}")))?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let row: Value = serde_json::from_str(data).unwrap_or_default();
            if !before.iter().any(|shown| shown["decision_id"] == row["decision_id"]) {
                self.show_one(&row)?;
            }
        }
        Err(Failure::Unreachable("the service ended the stream".into()))
    }

    fn show_one(&self, row: &Value) -> Result<(), Failure> {
        if self.json {
            return output::line(&row.to_string());
        }
        let outcome = format!("{:<11}", output::text(&row["outcome"]));
        let outcome = match outcome.trim_end() {
            "blocked" => outcome.red().to_string(),
            "allowed" => outcome.green().to_string(),
            _ => outcome.yellow().to_string(),
        };
        let parts = ["guard", "session_id", "subject", "reason"].map(|name| output::text(&row[name]));
        let time = output::time(&row["time"]);
        let words = first_sentence(&output::text(&row["message"]));
        let taken = time.chars().count() + 11 + parts.iter().map(|part| part.chars().count() + 2).sum::<usize>() + 4;
        let words = match output::terminal_columns() {
            Some(columns) => output::cut(&words, usize::from(columns).saturating_sub(taken)),
            None => words,
        };
        output::line(&format!("{time}  {outcome}  {}  {}", parts.join("  "), words.dimmed()))
    }
}

fn first_sentence(message: &str) -> String {
    message.split_inclusive(". ").next().unwrap_or_default().trim().to_owned()
}
