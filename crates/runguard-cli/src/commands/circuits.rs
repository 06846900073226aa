//! `runguard circuits`: the endpoints' circuits, and an operator's word on them.

use crate::client::{Client, Query, segment};
use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use owo_colors::OwoColorize;

#[derive(Debug, Args)]
pub(crate) struct Circuits {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Of this tenant
    #[arg(long, global = true)]
    tenant: Option<String>,
    /// Only those in this phase
    #[arg(long, value_enum)]
    phase: Option<Phase>,
    /// How many to show
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Go on where a page ended (its `next_cursor`)
    #[arg(long)]
    cursor: Option<String>,
    /// As JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Refuse every call to an endpoint until it is reset
    Open(Endpoint),
    /// Let every call to an endpoint pass until it is reset
    Close(Endpoint),
    /// Back to closed and automatic, failures forgotten
    Reset(Endpoint),
}

#[derive(Debug, Args)]
struct Endpoint {
    /// The endpoint, as its callers name it
    endpoint_key: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Phase {
    /// Calls pass
    Closed,
    /// A few calls test whether it may close
    #[value(name = "half_open")]
    HalfOpen,
    /// Calls are blocked
    Open,
}

impl Phase {
    const fn code(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

impl Circuits {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let query: Query = self.tenant.iter().map(|tenant| ("tenant", tenant.clone())).collect();
        let change = match &self.verb {
            Some(Verb::Open(endpoint)) => Some((&endpoint.endpoint_key, "open")),
            Some(Verb::Close(endpoint)) => Some((&endpoint.endpoint_key, "close")),
            Some(Verb::Reset(endpoint)) => Some((&endpoint.endpoint_key, "reset")),
            None => None,
        };
        let circuits = if let Some((endpoint_key, verb)) = change {
            let changed = self.client.post(&format!("/v1/circuits/{}/{verb}", segment(endpoint_key)), &query)?;
            for warning in changed["warnings"].as_array().into_iter().flatten() {
                output::note(&format!("{} {}", "note:".yellow(), output::text(warning)));
            }
            serde_json::json!({"circuits": [changed]})
        } else {
            let mut query = query;
            query.push(("limit", self.limit.to_string()));
            query.extend(self.phase.iter().map(|phase| ("phase", phase.code().to_owned())));
            query.extend(self.cursor.iter().map(|cursor| ("cursor", cursor.clone())));
            self.client.get("/v1/circuits", &query)?
        };
        if self.json {
            return output::json(&circuits);
        }
        let rows = circuits["circuits"].as_array().map(Vec::as_slice).unwrap_or_default();
        if rows.is_empty() {
            let known: u64 = circuits["counts"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
            return output::line(&match (&self.phase, known) {
                (Some(phase), 1..) => format!("No circuit is {} ({known} in all).", phase.code().replace('_', "-")),
                (None, 1..) => "No more circuits.".to_owned(),
                (_, 0) => "No endpoint has been recorded yet (POST /guard/api-circuit/check and /record).".to_owned(),
            });
        }
        let mut table = output::table(&["endpoint", "tenant", "phase", "forced", "failures", "threshold", "next probe", "opened"]);
        for row in rows {
            table.add_row([
                output::cell(&row["endpoint_key"]),
                output::cell(&row["tenant"]),
                output::outcome_cell(row["phase"].as_str().unwrap_or_default()),
                output::cell(&row["forced"]),
                output::cell(&row["recent_failures"]),
                output::cell(&row["failure_threshold"]),
                output::wait_cell(&row["recovery_seconds_remaining"]),
                output::time_cell(&row["opened_at"]),
            ]);
        }
        table.keep_whole(&[2]);
        output::show(&table)?;
        if let Some(cursor) = circuits["next_cursor"].as_str() {
            let counts = &circuits["counts"];
            let shown = |phase: &str| format!("{} {}", counts[phase], phase.replace('_', "-"));
            output::note(&format!(
                "There are more: {}, {}, {} in all. Go on with --cursor {cursor}",
                shown("open"),
                shown("half_open"),
                shown("closed")
            ));
        }
        Ok(())
    }
}
