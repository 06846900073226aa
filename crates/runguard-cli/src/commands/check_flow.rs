//! `runguard check-flow`: circles and gaps in a planned routing, before it goes live.

mod yaml;

use crate::failure::Failure;
use crate::output;
use clap::Args;
use owo_colors::OwoColorize;
use runguard_insight::flow::{Plan, check, misshapen};
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
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
    /// The plan; `-` reads it from stdin
    file: PathBuf,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

impl CheckFlow {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let shown = if is_stdin(&self.file) { STDIN.into() } else { self.file.to_string_lossy() };
        let plan = read(&self.file, &shown)?;
        let report = check(&plan).map_err(|unclear| Failure::Usage(format!("{shown}: {}", unclear.advice())))?;
        if self.json {
            output::json(&json!(report))?;
        } else {
            for finding in &report.findings {
                let kind = format!("{:<19}", finding.kind.code());
                output::prose(&format!("{}  {}", kind.yellow(), output::clean(&finding.message)))?;
            }
            let size = report.checked;
            let accepted = match report.accepted_cycles.len() {
                0 => String::new(),
                known => format!("; accepted: {}", output::count(known as u64, "circle")),
            };
            output::line(&format!(
                "{} in {}, {}, {} and {}{accepted}",
                if report.findings.is_empty() {
                    "Nothing found".to_owned()
                } else {
                    output::count(report.findings.len() as u64, "finding")
                },
                output::count(size.bots as u64, "bot"),
                output::count(size.handovers as u64, "handover"),
                output::count(size.goals as u64, "goal"),
                output::count(size.actions as u64, "action")
            ))?;
        }
        if report.findings.is_empty() { Ok(()) } else { Err(Failure::AlreadyTold) }
    }
}

const STDIN: &str = "stdin";

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// What cannot be read is wrong usage, whatever the reason: 1 is for findings.
fn read(file: &Path, shown: &str) -> Result<Plan, Failure> {
    let cannot = |why: String| Failure::Usage(format!("{shown} cannot be read: {why}"));
    let text = text_of(file).map_err(cannot)?;
    let spot = |(line, column): yaml::LineAndColumn| format!("line {line}, column {column}: ");
    let is_json = if is_stdin(file) {
        // What comes through a pipe has no name that tells. YAML may begin so too; what is neither is broken JSON.
        text.trim_start().starts_with('{') && (serde_json::from_str::<Value>(&text).is_ok() || yaml::as_json(&text).is_err())
    } else {
        file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
    };
    if is_json {
        return serde_json::from_str(&text).map_err(|error| {
            let broken = "this is no JSON. Look at the commas, quotes and brackets here and just before";
            let place = (error.line() as u64, error.column() as u64);
            cannot(spot(place) + &what_is_wrong(serde_json::from_str(&text).ok().as_ref(), broken))
        });
    }
    let broken = "this is no YAML. Look at the indentation (spaces, no tabs), quotes and brackets here and in the line before, and whether a name stands twice";
    let plan = yaml::as_json(&text).map_err(|place| cannot(spot(place) + broken))?;
    serde_json::from_str(&plan.text).map_err(|error| {
        let at = plan.place(error.column()).map(spot).unwrap_or_default();
        cannot(at + &what_is_wrong(serde_json::from_str(&plan.text).ok().as_ref(), broken))
    })
}

fn text_of(file: &Path) -> Result<String, String> {
    if is_stdin(file) {
        let mut text = String::new();
        let mut given = std::io::stdin().lock().take(MOST_BYTES + 1);
        given.read_to_string(&mut text).map_err(|error| error.to_string())?;
        return if text.len() as u64 > MOST_BYTES { Err(format!("it is longer than {MOST_BYTES} bytes")) } else { Ok(text) };
    }
    let about = fs::metadata(file).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("it is no file".to_owned());
    }
    if about.len() > MOST_BYTES {
        return Err(format!("it has {} bytes; at most {MOST_BYTES} are taken", about.len()));
    }
    fs::read_to_string(file).map_err(|error| error.to_string())
}

/// In words for whoever wrote the plan: those of the readers are about programs.
fn what_is_wrong(written: Option<&Value>, broken: &str) -> String {
    let problem = written.map_or_else(|| Some(broken.to_owned()), misshapen);
    output::clean(&problem.unwrap_or_else(|| broken.to_owned()))
}
