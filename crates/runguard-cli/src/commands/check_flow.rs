//! `runguard check-flow`: circles and gaps in a planned routing, before it goes live.

use crate::failure::Failure;
use crate::output;
use clap::Args;
use owo_colors::OwoColorize;
use runguard_insight::flow::{Plan, check};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Larger than any plan that people write.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug, Args)]
#[command(after_help = "\
A plan, in YAML or JSON:
  start: orchestrator
  bots:
    orchestrator: [billing, subscriptions]
    billing: [orchestrator, person]          # its fallback too
    subscriptions: [orchestrator, person]
  ends: [person]
  accepted_cycles: [[orchestrator, billing]]
  goals:
    order status: [lookup_order]             # what it needs
  actions: [lookup_order, get_customer_profile]

Exit codes: 0 nothing was found, 1 something was, 2 the file cannot be read")]
pub(crate) struct CheckFlow {
    /// The plan
    file: PathBuf,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

impl CheckFlow {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let shown = self.file.display();
        let plan = read(&self.file)?;
        let report = check(&plan).map_err(|unclear| Failure::Usage(format!("{shown}: {}", unclear.advice())))?;
        if self.json {
            output::json(&json!(report))?;
        } else {
            for finding in &report.findings {
                let kind = format!("{:<20}", finding.kind.code());
                output::line(&format!("{} {}", kind.yellow(), output::clean(&finding.message)))?;
            }
            let size = report.checked;
            let accepted = match report.accepted_cycles.len() {
                0 => String::new(),
                known => format!("; accepted: {}", counted(known, "circle")),
            };
            output::line(&format!(
                "{} in {}, {}, {} and {}{accepted}",
                if report.findings.is_empty() { "Nothing found".to_owned() } else { counted(report.findings.len(), "finding") },
                counted(size.bots, "bot"),
                counted(size.handovers, "handover"),
                counted(size.goals, "goal"),
                counted(size.actions, "action")
            ))?;
        }
        if report.findings.is_empty() { Ok(()) } else { Err(Failure::AlreadyTold) }
    }
}

fn counted(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

/// What cannot be read is wrong usage, whatever the reason: 1 is for findings.
fn read(file: &Path) -> Result<Plan, Failure> {
    let shown = file.display();
    let cannot = |why: String| Failure::Usage(format!("{shown} cannot be read: {why}"));
    let about = fs::metadata(file).map_err(|error| cannot(error.to_string()))?;
    if !about.is_file() {
        return Err(cannot("it is no file".to_owned()));
    }
    let size = about.len();
    if size > MOST_BYTES {
        return Err(cannot(format!("it has {size} bytes; at most {MOST_BYTES} are taken")));
    }
    let text = fs::read_to_string(file).map_err(|error| cannot(error.to_string()))?;
    let is_json = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if is_json {
        return serde_json::from_str(&text).map_err(|error| cannot(format!("it is no plan in JSON: {error}")));
    }
    serde_saphyr::from_str(&text).map_err(|error| cannot(format!("it is no plan in YAML: {error}")))
}
