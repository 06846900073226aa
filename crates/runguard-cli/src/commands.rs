//! One file a verb.

#[cfg(feature = "agent")]
pub(crate) mod agent;
#[cfg(not(feature = "agent"))]
#[path = "commands/agent_left_out.rs"]
pub(crate) mod agent;
pub(crate) mod alerts;
pub(crate) mod check_flow;
pub(crate) mod circuits;
pub(crate) mod consumption;
mod data_folder;
pub(crate) mod decisions;
pub(crate) mod demo;
pub(crate) mod estimate;
pub(crate) mod explain;
pub(crate) mod gateway;
pub(crate) mod insights;
pub(crate) mod key;
pub(crate) mod local;
pub(crate) mod manual;
pub(crate) mod preflight;
pub(crate) mod preview;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod spend;
pub(crate) mod tune;
mod watched;

use crate::client::Query;
use clap::Args;
use runguard_engine::settings::Origin;
use std::path::PathBuf;

/// Where settings come from, for every command that needs them.
#[derive(Debug, Args)]
pub(crate) struct SettingsArgs {
    /// Settings file [default: runguard.toml, if there is one]
    #[arg(long, env = "RUNGUARD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of the embedded database [default: ./runguard-data]
    #[arg(long, env = "RUNGUARD_DATA", value_name = "DIR")]
    data: Option<String>,
}

impl SettingsArgs {
    pub(crate) fn origin(&self) -> Origin {
        let mut origin = Origin { file: self.config.clone(), environment: environment(), flags: Vec::new() };
        if let Some(data) = &self.data {
            origin.flags.push((vec!["store", "data"], data.clone().into(), "--data"));
        }
        origin
    }
}

/// Which part of the log, for every command that looks back.
#[derive(Debug, Args)]
pub(crate) struct RangeArgs {
    /// From then on: a time, or how long ago (15m, 24h, 7d) [default: a week; of what was used, four; of runs, a day]
    #[arg(long)]
    since: Option<String>,
    /// Before then
    #[arg(long)]
    until: Option<String>,
    /// Of this tenant
    #[arg(long)]
    tenant: Option<String>,
}

/// How far back, when nothing is said.
pub(crate) const DAY: &str = "1d";
pub(crate) const WEEK: &str = "7d";
pub(crate) const FOUR_WEEKS: &str = "28d";

impl RangeArgs {
    pub(crate) fn since(&self, usual: &str) -> String {
        self.since.clone().unwrap_or_else(|| usual.to_owned())
    }

    /// As a query string has it.
    pub(crate) fn query(&self, usual: &str) -> Query {
        let since = self.since(usual);
        let filters = [("since", Some(&since)), ("until", self.until.as_ref()), ("tenant", self.tenant.as_ref())];
        filters.into_iter().filter_map(|(name, value)| Some((name, value?.clone()))).collect()
    }
}

/// Which part of a sorted list, for every command that shows one.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// How many to show
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Go on where a page ended (its `next_cursor`)
    #[arg(long)]
    cursor: Option<String>,
}

impl PageArgs {
    /// As a query string has it.
    pub(crate) fn query(&self) -> Query {
        let cursor = self.cursor.iter().map(|cursor| ("cursor", cursor.clone()));
        std::iter::once(("limit", self.limit.to_string())).chain(cursor).collect()
    }
}

/// Values that are not text cannot be settings.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}
