//! `runguard settings`: what is in force, whether a file is right, and one to start from.

use super::SettingsArgs;
use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use owo_colors::OwoColorize;
use runguard_engine::settings;
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
    Check { file: PathBuf },
    /// Show the values of the file, the environment and the defaults, and where each came from
    ///
    /// These are what a service started here and now would have. What one that runs has in force is at its GET /v1/settings.
    Show {
        #[command(flatten)]
        settings: SettingsArgs,
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
            Verb::Show { settings, json } => show(&settings, json),
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
    // TOML again, so that it can be copied.
    for (key, value, source) in loaded.values() {
        let from = format!("# {source}");
        let from = if source == settings::SettingsSource::Default { from.dimmed().to_string() } else { from.cyan().to_string() };
        output::line(&format!("{key} = {}  {from}", settings::toml_text(&value)))?;
    }
    Ok(())
}
