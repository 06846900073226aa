//! `runguard insights`: what the log advises, the weightiest first.

use super::RangeArgs;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use owo_colors::OwoColorize;
use serde_json::Value;

#[derive(Debug, Args)]
pub(crate) struct Insights {
    #[command(flatten)]
    client: Client,
    #[command(flatten)]
    range: RangeArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Insights {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let query = self.range.query();
        let answer = self.client.get("/v1/insights", &query)?;
        if self.json {
            return output::json(&answer);
        }
        let insights = answer["insights"].as_array().map(Vec::as_slice).unwrap_or_default();
        if insights.is_empty() {
            output::line("No advice: nothing stands out in this time.")?;
        }
        for (number, insight) in insights.iter().enumerate() {
            output::line(&shown(number + 1, insight))?;
        }
        if answer["behind_rows"].as_u64().is_some_and(|rows| rows > 0) {
            anstream::eprintln!("{} decisions are not looked at yet; ask again in a moment.", answer["behind_rows"]);
        }
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
    lines.join("\n") + "\n"
}

/// The numbers in one line.
pub(super) fn evidence(evidence: &Value) -> String {
    let one = |(name, value): (&String, &Value)| {
        let value = match value {
            Value::Array(items) => items.iter().map(output::text).collect::<Vec<_>>().join(" → "),
            other => output::text(other),
        };
        (!value.is_empty()).then(|| format!("{} {value}", output::clean(name).replace('_', " ")))
    };
    evidence.as_object().into_iter().flatten().filter_map(one).collect::<Vec<_>>().join(", ")
}

/// What it would save, if that is known.
pub(super) fn saves(saves: &Value) -> String {
    let usd = saves["usd"].as_f64().unwrap_or_default();
    match saves["operations"].as_u64() {
        None | Some(0) => String::new(),
        Some(operations) if usd > 0.0 => format!("about {operations} operations, {usd:.2} dollars"),
        Some(operations) => format!("about {operations} operations"),
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
            "evidence": {"chain": ["a", "b", "a"], "conversations": 3, "limit_usd": null}, "sessions": ["s1", "s\u{202e}2"],
            "saves": {"operations": 6, "usd": 0.06},
        });
        let text = anstream::adapter::strip_str(&shown(1, &insight)).to_string();
        assert_eq!(
            text,
            "1. Conversations circle between \"a·[2J\" [medium]\n   Widen one.\n   evidence  chain a → b → a, conversations 3\n   sessions  s1, s·2\n   saves     about 6 operations, 0.06 dollars\n"
        );
    }
}
