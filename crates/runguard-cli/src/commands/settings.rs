//! `runguard settings`: what is in force, whether a file is right, one to start from, and a value set.

mod set;

use super::SettingsArgs;
use crate::client::{Client, Query};
use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use owo_colors::OwoColorize;
use runguard_engine::settings;
use serde_json::Value;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Settings {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print a settings file with every key, its default and what it is for
    Example,
    /// Check a settings file; says key and line of what is wrong
    Check {
        /// The file to check
        file: PathBuf,
    },
    /// Set values in the settings file; its comments and its order stay
    ///
    /// The file is checked before it is written: one that would be refused stays as it was. A service that runs with it takes most values over within a second.
    Set {
        /// Keys with their values, such as `guards.handoff.max_visits_per_bot=3`
        #[arg(required = true, value_name = "KEY=VALUE")]
        values: Vec<String>,
        /// The file; made if it is not there
        #[arg(long, env = "RUNGUARD_CONFIG", value_name = "FILE", default_value = settings::DEFAULT_FILE)]
        config: PathBuf,
    },
    /// Show the values of the file, the environment and the defaults, and where each came from
    ///
    /// These are what a service started here and now would have. What one that runs has in force is shown with --url (GET /v1/settings).
    Show {
        #[command(flatten)]
        settings: SettingsArgs,
        /// Ask the service at this address what it has in force
        #[arg(long, value_name = "URL", conflicts_with = "config")]
        url: Option<String>,
        /// API key for --url, once keys were made
        #[arg(long, env = "RUNGUARD_KEY", hide_env_values = true)]
        key: Option<String>,
        /// Certificates to trust for https, in PEM, instead of those of the system
        #[arg(long, env = "RUNGUARD_CA", value_name = "FILE")]
        ca: Option<PathBuf>,
        /// Of this tenant; with --url
        #[arg(long, requires = "url")]
        tenant: Option<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

impl Settings {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Verb::Example => output::line(settings::example().trim_end()),
            Verb::Check { file } => {
                settings::read_file(&file)
                    .and_then(|text| settings::check_text(&file, &text))
                    .map_err(|error| Failure::Usage(error.to_string()))?;
                output::line(&format!("{} is valid", file.display()))
            }
            Verb::Set { values, config } => set::run(&config, &values),
            Verb::Show { url: Some(url), key, ca, tenant, json, .. } => {
                let query: Query = tenant.into_iter().map(|tenant| ("tenant", tenant)).collect();
                let answer = Client::of(&url, key.as_deref(), "--url").trusting(ca).get("/v1/settings", &query)?;
                if json { output::json(&answer) } else { show_in_force(&answer) }
            }
            Verb::Show { url: None, settings, json, .. } => show(&settings, json),
        }
    }
}

fn show(settings: &SettingsArgs, json: bool) -> Result<(), Failure> {
    let loaded = settings.origin().load().map_err(|error| Failure::Usage(error.to_string()))?;
    if json {
        let values: Vec<serde_json::Value> = loaded
            .values()
            .into_iter()
            .map(|(key, value, source)| serde_json::json!({"key": key, "value": value, "source": source.to_string()}))
            .collect();
        return output::json(&serde_json::Value::Array(values));
    }
    for (key, value, source) in loaded.values() {
        show_value(&key, &value, &source.to_string())?;
    }
    Ok(())
}

/// TOML again, so that it can be copied.
fn show_value(key: &str, value: &Value, source: &str) -> Result<(), Failure> {
    let from = format!("# {source}");
    let from = if source == settings::SettingsSource::Default.to_string() { from.dimmed().to_string() } else { from.cyan().to_string() };
    output::line(&format!("{key} = {}  {from}", settings::toml_text(value)))
}

/// What a service said of itself, and what it did not take over.
fn show_in_force(answer: &Value) -> Result<(), Failure> {
    show_tree(&answer["settings"], "")?;
    for refused in answer["refused"].as_array().into_iter().flatten() {
        let (what, error) = (output::text(&refused["what"]), output::text(&refused["error"]));
        let why = if error.is_empty() { String::new() } else { format!(": {error}") };
        output::note(&format!("{} a changed file of {what} was refused, and what was in force before is{why}", "note:".yellow()));
    }
    Ok(())
}

fn show_tree(tree: &Value, path: &str) -> Result<(), Failure> {
    for (name, inner) in tree.as_object().into_iter().flatten() {
        let key = if path.is_empty() { output::clean(name) } else { format!("{path}.{}", output::clean(name)) };
        match inner["source"].as_str() {
            Some(source) => {
                let waiting = inner.get("after_restart").map(|value| format!("; {} after a restart", settings::toml_text(value)));
                show_value(&key, &inner["value"], &format!("{}{}", output::clean(source), waiting.unwrap_or_default()))?;
            }
            None => show_tree(inner, &key)?,
        }
    }
    Ok(())
}
