//! `runguard preview`: what changed thresholds would have done to the logged requests.

use super::{RangeArgs, WEEK};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use serde_json::{Map, Value, json};

#[derive(Debug, Args)]
pub(crate) struct Preview {
    #[command(flatten)]
    client: Client,
    /// The guard (handoff, `agent_action`, …)
    guard: String,
    /// A changed setting; can be given several times (`max_visits_per_bot=3`, `voiceflow.max_queries=4`, `window=30m`)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, Value)>,
    #[command(flatten)]
    range: RangeArgs,
    /// Count only what is about this task, bot, topic, action, step or endpoint
    #[arg(long)]
    subject: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The value is read as JSON, else as text: `3`, `0.5`, `true`, `[\"poll\"]`, `30m`.
fn setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE, like max_retries=3")?;
    Ok((key.trim().to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

impl Preview {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let settings: Map<String, Value> = self.settings.into_iter().collect();
        let body = json!({
            "guard": self.guard, "settings": settings, "since": self.range.since(WEEK), "until": self.range.until, "tenant": self.range.tenant, "subject": self.subject,
        });
        let report = self.client.post_json("/v1/preview", &body)?;
        if self.json {
            return output::json(&report);
        }
        show(&report)
    }
}

pub(super) fn show(report: &Value) -> Result<(), Failure> {
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    output::prose(&format!(
        "{}: {} from {} to {}{}",
        output::text(&report["guard"]),
        output::count(report["rows"].as_u64().unwrap_or(0), "decision"),
        output::time(&report["since"]),
        output::time(&report["until"]),
        if report["truncated"] == true { " (the newest; there are more)" } else { "" }
    ))?;
    let mut table = output::table(&["", "before", "after", "difference"]);
    for outcome in ["allowed", "would_block", "blocked"] {
        let (before, after) = (number(&report["before"][outcome]), number(&report["after"][outcome]));
        table.add_row([output::outcome_cell(outcome), before.into(), after.into(), format!("{:+}", after - before).into()]);
    }
    output::show(&table)?;
    let changed = report["changed"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changed.is_empty() {
        output::line("No decision would have been another.")?;
    } else {
        let total = number(&report["changed_total"]);
        output::line(&format!(
            "Would have been another answer: {total}{}",
            if total as usize > changed.len() { ", the newest of them:" } else { "" }
        ))?;
        let mut table = output::table(&["time", "session", "subject", "before", "after", "reason"]);
        table.keep_whole(&[0, 3, 4]);
        table.favour(1);
        for row in changed {
            table.add_row([
                output::time_cell(&row["time"]),
                output::cell(&row["session_id"]),
                output::cell(&row["subject"]),
                output::outcome_cell(row["before"].as_str().unwrap_or_default()),
                output::outcome_cell(row["after"].as_str().unwrap_or_default()),
                output::cell(&row["reason"]),
            ]);
        }
        output::show(&table)?;
    }
    for doubt in report["inexact"].as_array().into_iter().flatten() {
        output::note(&format!("not exact: {}", output::text(doubt)));
    }
    Ok(())
}
