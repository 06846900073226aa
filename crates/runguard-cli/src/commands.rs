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
pub(crate) mod decisions;
pub(crate) mod demo;
pub(crate) mod estimate;
pub(crate) mod explain;
pub(crate) mod insights;
pub(crate) mod key;
pub(crate) mod local;
pub(crate) mod preflight;
pub(crate) mod preview;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod tune;

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
    /// From then on: a time, or how long ago (15m, 24h, 7d)
    #[arg(long, default_value = "7d")]
    since: String,
    /// Before then
    #[arg(long)]
    until: Option<String>,
    /// Of this tenant
    #[arg(long)]
    tenant: Option<String>,
}

impl RangeArgs {
    /// As a query string has it.
    pub(crate) fn query(&self) -> Query {
        let filters = [("since", Some(&self.since)), ("until", self.until.as_ref()), ("tenant", self.tenant.as_ref())];
        filters.into_iter().filter_map(|(name, value)| Some((name, value?.clone()))).collect()
    }
}

/// Values that are not text cannot be settings.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}
