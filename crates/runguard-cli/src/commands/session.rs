//! `runguard session`: what happened in one session, what is used up, and its erasure.

use crate::client::{Client, Query, segment};
use crate::failure::Failure;
use crate::output;
use clap::Args;
use owo_colors::OwoColorize;
use runguard_insight::insight::spend::BudgetStands;
use std::io::IsTerminal;

#[derive(Debug, Args)]
pub(crate) struct Session {
    #[command(flatten)]
    client: Client,
    /// The session's id
    id: String,
    /// Of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Remove everything that is known of it, for good
    #[arg(long)]
    erase: bool,
    /// Erase without asking
    #[arg(long, requires = "erase")]
    yes: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Session {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let query: Query = self.tenant.iter().map(|tenant| ("tenant", tenant.clone())).collect();
        let path = format!("/v1/sessions/{}", segment(&self.id));
        if self.erase {
            return self.erase(&path, &query);
        }
        let session = self.client.get(&path, &query).map_err(|failure| self.not_found(failure))?;
        if self.json {
            return output::json(&session);
        }
        let counts = &session["counts"];
        output::line(&format!(
            "{}  tenant {}  {} – {}\n{} allowed, {} blocked, {} would have been blocked",
            output::text(&session["session_id"]).bold(),
            output::text(&session["tenant"]),
            output::time(&session["first_seen"]),
            output::time(&session["last_seen"]),
            counts["allowed"],
            counts["blocked"],
            counts["would_block"]
        ))?;
        let mut table = output::table(&["guard", "of", "used", "ceiling", "window", "next", "reason", "free in"]);
        let counters = session["counters"].as_array().map_or(&[][..], Vec::as_slice);
        for counter in counters {
            table.add_row([
                output::cell(&counter["guard"]),
                output::cell(&counter["subject"]),
                output::cell(&counter["used"]),
                output::cell(&counter["ceiling"]),
                output::span_cell(&counter["window_seconds"]),
                output::outcome_cell(if counter["allowed_next"] == true { "yes" } else { "no" }),
                output::cell(&counter["reason"]),
                output::wait_cell(&counter["retry_after_seconds"]),
            ]);
        }
        if !counters.is_empty() {
            output::show(&table)?;
        }
        let stand: Vec<BudgetStands> = serde_json::from_value(session["budgets"].clone()).unwrap_or_default();
        if !stand.is_empty() {
            output::show(&super::spend::budgets(&stand))?;
        }
        let mut table = output::table(&["time", "guard", "subject", "outcome", "reason", "message"]);
        for row in session["timeline"].as_array().into_iter().flatten() {
            table.add_row([
                output::time_cell(&row["time"]),
                output::cell(&row["guard"]),
                output::cell(&row["subject"]),
                output::outcome_cell(row["outcome"].as_str().unwrap_or_default()),
                output::cell(&row["reason"]),
                output::cell(&row["message"]),
            ]);
        }
        output::show(&table)
    }

    /// The service says where it looked, if there is elsewhere to look.
    fn not_found(&self, failure: Failure) -> Failure {
        match failure {
            Failure::NotFound(detail) => Failure::NotFound(format!(
                "session '{}': {} `runguard decisions` shows the latest ones",
                output::clean(&self.id),
                output::clean(&detail)
            )),
            other => other,
        }
    }

    fn erase(&self, path: &str, query: &Query) -> Result<(), Failure> {
        if !self.yes && !self.is_meant()? {
            return Err(Failure::Cancelled);
        }
        let erased = self.client.delete(path, query).map_err(|failure| self.not_found(failure))?;
        if self.json {
            return output::json(&erased);
        }
        if erased["erased"] == true {
            return output::line(&format!(
                "Session '{}' is erased, with {} of the log.",
                output::clean(&self.id),
                output::count(erased["log_entries"].as_u64().unwrap_or(0), "row")
            ));
        }
        output::line(&output::text(&erased["message"]))
    }

    fn is_meant(&self) -> Result<bool, Failure> {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::Usage("erasing cannot be undone: say --yes where nobody can be asked".into()));
        }
        let tenant = self.tenant.as_deref().map_or_else(String::new, |tenant| format!(" of tenant '{}'", output::clean(tenant)));
        anstream::eprint!("Erase everything known of session '{}'{tenant}? It cannot be undone. [y/N] ", output::clean(&self.id));
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}
