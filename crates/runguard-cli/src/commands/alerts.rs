//! `runguard alerts`: what is watched for, a test of the targets, and what could not be delivered.

use super::SettingsArgs;
use crate::client::{Client, Query, segment};
use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use runguard_engine::alerts;
use serde_json::{Value, json};

#[derive(Debug, Args)]
pub(crate) struct Alerts {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    verb: Option<Verb>,
    /// As JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show rules, targets, and messages that wait, arrived or were given up
    List,
    /// Send a test alert to a target, or to all; without a running service by the settings file
    Test {
        /// The target, as the settings name it [default: all]
        target: Option<String>,
        #[command(flatten)]
        settings: SettingsArgs,
        /// Send it from here and not from the service
        #[arg(long)]
        local: bool,
    },
    /// Put a dead letter back into the queue
    Retry {
        /// Its id, as `runguard alerts` shows it
        id: String,
    },
}

impl Alerts {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match &self.verb {
            None | Some(Verb::List) => {
                let shown = self.client.get("/v1/alerts", &Query::new())?;
                if self.json { output::json(&shown) } else { show(&shown) }
            }
            Some(Verb::Retry { id }) => {
                let done = self.client.post(&format!("/v1/alerts/dead/{}/retry", segment(id)), &Query::new())?;
                if self.json { output::json(&done) } else { output::line("It is in the queue again.") }
            }
            Some(Verb::Test { target, settings, local }) => {
                let service = self.client.address("");
                let (tested, by) = if *local {
                    (from_here(settings, target.as_deref())?, "Sent from here, by the settings.".to_owned())
                } else {
                    let query: Query = target.iter().map(|target| ("target", target.clone())).collect();
                    match self.client.post("/v1/alerts/test", &query) {
                        Err(Failure::Unreachable(_)) => {
                            let tested = from_here(settings, target.as_deref())?;
                            (tested, format!("No service answers at {service}: sent from here, by the settings."))
                        }
                        answered => (answered?, format!("Sent by the service at {service}.")),
                    }
                };
                if !self.json {
                    output::line(&by)?;
                }
                self.show_test(&tested)
            }
        }
    }

    fn show_test(&self, tested: &Value) -> Result<(), Failure> {
        let rows = tested["tested"].as_array().map(Vec::as_slice).unwrap_or_default();
        if self.json {
            output::json(tested)?;
        } else {
            let mut table = output::table(&["target", "kind", "delivered", "problem"]);
            for row in rows {
                let delivered = if row["delivered"] == true { "yes" } else { "no" };
                table.add_row([
                    output::cell(&row["target"]),
                    output::cell(&row["kind"]),
                    output::outcome_cell(delivered),
                    output::cell(&row["problem"]),
                ]);
            }
            output::show(&table)?;
        }
        if rows.iter().all(|row| row["delivered"] == true) { Ok(()) } else { Err(Failure::AlreadyTold) }
    }
}

/// The same test from this process.
fn from_here(settings: &SettingsArgs, name: Option<&str>) -> Result<Value, Failure> {
    let loaded = settings.origin().load().map_err(|error| Failure::Usage(error.to_string()))?;
    let targets = loaded.settings.alerts.targets(&loaded.settings.server.public_url).map_err(Failure::Usage)?;
    if targets.is_empty() {
        return Err(Failure::Usage("the settings name no target; add [[alerts.target]] (`runguard settings example` shows how)".into()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tested = runtime
        .block_on(alerts::test(&targets, name))
        .ok_or_else(|| Failure::NotFound(format!("the settings name no target `{}`", name.unwrap_or_default())))?;
    let rows: Vec<Value> = tested
        .iter()
        .map(|one| json!({"target": one.target, "kind": one.kind, "delivered": one.problem.is_none(), "problem": one.problem}))
        .collect();
    Ok(json!({"tested": rows}))
}

fn show(shown: &Value) -> Result<(), Failure> {
    let list = |name: &str| shown[name].as_array().cloned().unwrap_or_default();
    if shown["enabled"] != true {
        return output::prose(
            "Nobody is told: the settings name no target. Add [[alerts.target]] (`runguard settings example` shows how).",
        );
    }
    let mut targets = output::table(&["target", "kind", "host", "queued", "dead", "problem"]);
    for row in list("targets") {
        targets.add_row(["name", "kind", "host", "queued", "dead", "problem"].map(|key| output::cell(&row[key])));
    }
    output::show(&targets)?;
    let mut rules = output::table(&["rule", "when", "firing"]);
    for row in list("rules") {
        let firing: Vec<String> = row["firing"].as_array().into_iter().flatten().map(|firing| output::text(&firing["title"])).collect();
        rules.add_row([output::cell(&row["name"]), output::cell(&row["when"]), output::cell(&json!(firing.join("; ")))]);
    }
    output::show(&rules)?;
    for (name, title) in [("dead", "Dead letters (`runguard alerts retry ID`)"), ("queued", "Waiting"), ("delivered", "Delivered lately")] {
        let rows = list(name);
        if rows.is_empty() {
            continue;
        }
        let mut table = output::table(&["id", "time", "target", "state", "severity", "title", "attempts", "problem"]);
        for row in &rows {
            table.add_row(["id", "created", "target", "state", "severity", "title", "attempts", "problem"].map(|key| match key {
                "created" => output::time_cell(&row[key]),
                _ => output::cell(&row[key]),
            }));
        }
        output::line(&format!("\n{title}:"))?;
        output::show(&table)?;
    }
    match shown["dropped"].as_u64() {
        None | Some(0) => Ok(()),
        Some(dropped) => {
            let were = if dropped == 1 { "was" } else { "were" };
            output::line(&format!("\n{} {were} lost to the limit of the queue.", output::count(dropped, "message")))
        }
    }
}
