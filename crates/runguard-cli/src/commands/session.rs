use crate::client::{Client, Query, segment};
use crate::failure::Failure;
use crate::output;
use clap::Args;
use owo_colors::OwoColorize;

#[derive(Debug, Args)]
pub(crate) struct Session {
    #[command(flatten)]
    client: Client,
    /// The session's id
    id: String,
    /// Of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Session {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let query: Query = self.tenant.iter().map(|tenant| ("tenant", tenant.clone())).collect();
        let session = self.client.get(&format!("/v1/sessions/{}", segment(&self.id)), &query).map_err(|failure| match failure {
            Failure::NotFound(_) => Failure::NotFound(format!(
                "nothing is known of session '{}'; `runguard decisions` shows the latest ones",
                output::clean(&self.id)
            )),
            other => other,
        })?;
        if self.json {
            return output::json(&session);
        }
        let counts = &session["counts"];
        output::line(&format!(
            "{}  tenant {}  {} – {}\n{} allowed, {} blocked, {} would have been blocked",
            output::text(&session["session_id"]).bold(),
            output::text(&session["tenant"]),
            output::text(&session["first_seen"]),
            output::text(&session["last_seen"]),
            counts["allowed"],
            counts["blocked"],
            counts["would_block"]
        ))?;
        let mut table = output::table(&["guard", "of", "used", "ceiling", "window (s)", "next allowed", "reason", "free in (s)"]);
        for counter in session["counters"].as_array().into_iter().flatten() {
            table.add_row([
                output::cell(&counter["guard"]),
                output::cell(&counter["subject"]),
                output::cell(&counter["used"]),
                output::cell(&counter["ceiling"]),
                output::cell(&counter["window_seconds"]),
                output::outcome_cell(if counter["allowed_next"] == true { "yes" } else { "no" }),
                output::cell(&counter["reason"]),
                output::cell(&counter["retry_after_seconds"]),
            ]);
        }
        output::line(&table.to_string())?;
        let mut table = output::table(&["time", "guard", "subject", "outcome", "reason", "message"]);
        for row in session["timeline"].as_array().into_iter().flatten() {
            table.add_row([
                output::cell(&row["time"]),
                output::cell(&row["guard"]),
                output::cell(&row["subject"]),
                output::outcome_cell(row["outcome"].as_str().unwrap_or_default()),
                output::cell(&row["reason"]),
                output::cell(&row["message"]),
            ]);
        }
        output::line(&table.to_string())
    }
}
