//! `runguard insights`: what the log advises, the weightiest first; and what of it is put aside.

use super::{RangeArgs, WEEK};
use crate::client::{Client, Query, segment};
use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use owo_colors::OwoColorize;
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Insights {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    range: RangeArgs,
    /// Also what was put aside
    #[arg(long)]
    all: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Put a piece of advice aside, until it is restored
    Dismiss {
        #[command(flatten)]
        of: Of,
    },
    /// Put a piece of advice aside for a while
    Snooze {
        #[command(flatten)]
        of: Of,
        /// How long
        #[arg(long = "for", value_name = "LENGTH", default_value = "7d")]
        length: String,
    },
    /// Show a piece of advice again that was put aside
    Restore {
        #[command(flatten)]
        of: Of,
    },
}

/// Which advice, and where.
#[derive(Debug, Args)]
struct Of {
    /// Its key, as `runguard insights` shows it
    #[arg(value_name = "KEY")]
    advice: String,
    #[command(flatten)]
    client: Client,
    /// In the list of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Of {
    fn change(&self, verb: &str, body: &Value) -> Result<(), Failure> {
        let query: Query = self.tenant.iter().map(|tenant| ("tenant", tenant.clone())).collect();
        let changed = self.client.post_json_to(&format!("/v1/insights/{}/{verb}", segment(&self.advice)), &query, body)?;
        if self.json {
            return output::json(&changed);
        }
        output::line(&match &changed["put_aside"] {
            Value::Null => "It is shown again.".to_owned(),
            aside if aside["until"].is_null() => "It is put aside; `runguard insights restore` shows it again.".to_owned(),
            aside => format!("It is put aside until {}.", output::time(&aside["until"])),
        })
    }
}

impl Insights {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match &self.verb {
            Some(Verb::Dismiss { of }) => return of.change("dismiss", &Value::Null),
            Some(Verb::Snooze { of, length }) => return of.change("snooze", &json!({"for": length})),
            Some(Verb::Restore { of }) => return of.change("restore", &Value::Null),
            None => {}
        }
        let mut query = self.range.query(WEEK);
        if self.all {
            query.push(("show", "all".to_owned()));
        }
        let answer = self.client.get("/v1/insights", &query)?;
        if self.json {
            return output::json(&answer);
        }
        let insights = answer["insights"].as_array().map(Vec::as_slice).unwrap_or_default();
        if insights.is_empty() {
            output::line("No advice: nothing stands out in this time.")?;
        }
        for (number, insight) in insights.iter().enumerate() {
            output::prose(&shown(number + 1, insight))?;
        }
        if let (1.., false) = (answer["put_aside"].as_u64().unwrap_or(0), self.all) {
            output::note(&format!("{} put aside; --all shows them.", answer["put_aside"]));
        }
        output::behind(answer["behind_rows"].as_u64().unwrap_or(0));
        Ok(())
    }
}

/// One piece of advice, a line for each part that it has.
fn shown(number: usize, insight: &Value) -> String {
    let severity = output::text(&insight["severity"]);
    let severity = match severity.as_str() {
        "high" => severity.red().to_string(),
        "medium" => severity.yellow().to_string(),
        _ => severity.dimmed().to_string(),
    };
    let mut lines = vec![format!("{number}. {} [{severity}]", output::text(&insight["title"]).bold())];
    lines.push(format!("   {}", output::text(&insight["advice"])));
    let mut part = |name: &str, text: String| {
        if !text.is_empty() {
            lines.push(format!("   {} {text}", format!("{name:<9}").dimmed()));
        }
    };
    part("evidence", evidence(&insight["evidence"]));
    part("setting", output::text(&insight["setting"]));
    let sessions: Vec<String> = insight["sessions"].as_array().into_iter().flatten().map(output::text).collect();
    part("sessions", sessions.join(", "));
    part("saves", saves(&insight["saves"]));
    part("aside", aside(&insight["put_aside"]));
    part("key", output::text(&insight["key"]));
    lines.join("\n") + "\n"
}

/// The numbers in one line. Keys stay as they were first called; people read the one word for it.
pub(super) fn evidence(evidence: &Value) -> String {
    let one = |(name, value): (&String, &Value)| {
        let value = match value {
            Value::Array(items) => items.iter().map(output::text).collect::<Vec<_>>().join(" → "),
            other => output::text(other),
        };
        (!value.is_empty()).then(|| format!("{} {value}", output::clean(name).replace("refused", "blocked").replace('_', " ")))
    };
    evidence.as_object().into_iter().flatten().filter_map(one).collect::<Vec<_>>().join(", ")
}

/// Since it is put aside: until when.
fn aside(aside: &Value) -> String {
    match (aside, &aside["until"]) {
        (Value::Null, _) => String::new(),
        (_, Value::Null) => "until it is restored".to_owned(),
        (_, until) => format!("until {}", output::time(until)),
    }
}

/// What it would save, if that is known.
pub(super) fn saves(saves: &Value) -> String {
    let usd = saves["usd"].as_f64().unwrap_or_default();
    match saves["operations"].as_u64() {
        None | Some(0) => String::new(),
        Some(operations) if usd > 0.0 => format!("about {}, ${usd:.2}", output::count(operations, "operation")),
        Some(operations) => format!("about {}", output::count(operations, "operation")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn advice_is_shown_in_full_and_steers_no_terminal() {
        let insight = json!({
            "title": "Conversations circle between \"a\u{1b}[2J\"", "advice": "Widen one.", "severity": "medium", "setting": null,
            "evidence": {"chain": ["a", "b", "a"], "conversations": 3, "refused_after": 4, "limit_usd": null}, "sessions": ["s1", "s\u{202e}2"],
            "saves": {"operations": 6, "usd": 0.06}, "key": "0123456789abcdef", "put_aside": {"until": null},
        });
        let text = anstream::adapter::strip_str(&shown(1, &insight)).to_string();
        assert_eq!(
            text,
            "1. Conversations circle between \"a·[2J\" [medium]\n   Widen one.\n   evidence  chain a → b → a, conversations 3, blocked after 4\n   sessions  s1, s·2\n   saves     about 6 operations, $0.06\n   aside     until it is restored\n   key       0123456789abcdef\n"
        );
    }
}
