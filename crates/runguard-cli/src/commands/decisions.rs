//! `runguard decisions`: the log, filtered, in pages or followed as it grows.

use crate::client::{Client, Query};
use crate::failure::Failure;
use crate::output;
use clap::Args;
use comfy_table::Cell;
use owo_colors::OwoColorize;
use serde_json::Value;
use std::io::BufRead;

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
    /// How many, at most 1000
    #[arg(long, default_value_t = 20)]
    limit: u32,
    /// Go on showing decisions as they happen
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
        let page = self.client.get("/v1/decisions", &[query, vec![("limit", self.limit.to_string())]].concat())?;
        if self.json {
            return output::json(&page);
        }
        let rows = page["decisions"].as_array().map(Vec::as_slice).unwrap_or_default();
        if rows.is_empty() {
            return output::line("No decisions that fit.");
        }
        let mut table = output::table(&["time", "guard", "session", "subject", "outcome", "reason", "message"]);
        for row in rows {
            table.add_row([
                output::cell(&row["time"]),
                output::cell(&row["guard"]),
                output::cell(&row["session_id"]),
                output::cell(&row["subject"]),
                output::outcome_cell(row["outcome"].as_str().unwrap_or_default()),
                output::cell(&row["reason"]),
                Cell::new(first_sentence(&output::text(&row["message"]))),
            ]);
        }
        output::line(&table.to_string())?;
        if page["next_cursor"].is_string() {
            anstream::eprintln!("There are more; --limit shows up to 1000, and filters narrow it down.");
        }
        Ok(())
    }

    fn follow(&self, query: &Query) -> Result<(), Failure> {
        let stream = self.client.stream("/v1/events", query)?;
        for line in stream.lines() {
            let line = line.map_err(|error| Failure::Unreachable(format!("the stream broke off: {error}")))?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if self.json {
                output::line(data)?;
                continue;
            }
            let row: Value = serde_json::from_str(data).unwrap_or_default();
            let outcome = output::text(&row["outcome"]);
            let outcome = match outcome.as_str() {
                "blocked" => outcome.red().to_string(),
                "allowed" => outcome.green().to_string(),
                _ => outcome.yellow().to_string(),
            };
            let parts = ["time", "guard", "session_id", "subject"].map(|name| output::text(&row[name]));
            output::line(&format!(
                "{}  {outcome}  {}  {}",
                parts.join("  "),
                output::text(&row["reason"]),
                first_sentence(&output::text(&row["message"])).dimmed()
            ))?;
        }
        Err(Failure::Unreachable("the service ended the stream".into()))
    }
}

fn first_sentence(message: &str) -> String {
    message.split_inclusive(". ").next().unwrap_or_default().trim().to_owned()
}
