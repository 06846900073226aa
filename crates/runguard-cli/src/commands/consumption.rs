//! `runguard consumption`: what was used, by bot, step and day, and by conversation and week.

use super::{FOUR_WEEKS, RangeArgs};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::table::Cell;
use clap::Args;
use runguard_core::GuardName;
use runguard_insight::insight::consumption::{Consumption, Step, Week};
use runguard_insight::insight::digest::is_digest;
use serde_json::Value;

/// Steps that are shown to people.
const MOST_STEPS: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct Used {
    #[command(flatten)]
    client: Client,
    #[command(flatten)]
    range: RangeArgs,
    /// Whose days and weeks, such as Europe/Berlin [default: that of the budgets]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Used {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut query = self.range.query(FOUR_WEEKS);
        query.extend(self.time_zone.map(|zone| ("time_zone", zone)));
        let answer: Value = self.client.get("/v1/consumption", &query)?;
        if self.json {
            return output::json(&answer);
        }
        let used: Consumption = output::read(answer)?;
        if used.days.is_empty() {
            return output::line("No step was asked about in this time.");
        }
        let right = |text: String| Cell::new(text).right();
        let mut table = output::table(&["week from", "bot", "sessions", "AI steps", "steps a session", "change"]);
        // The sum of one bot is what it is itself.
        let bots: std::collections::BTreeSet<_> = used.weeks.iter().filter_map(|week| week.bot.as_deref()).collect();
        for week in used.weeks.iter().filter(|week| bots.len() > 1 || week.bot.is_some()) {
            let bot = week.bot.as_deref().map_or_else(|| "all".to_owned(), named);
            let numbers = [week.sessions.to_string(), week.ai_steps.to_string(), format!("{:.2}", week.steps_per_session), changed(week)];
            let partly = if week.is_whole { "" } else { " (in part)" };
            table.add_row([Cell::new(format!("{}{partly}", week.week)), Cell::new(bot)].into_iter().chain(numbers.map(right)));
        }
        output::show(&table)?;
        let mut table = output::table(&["day", "bot", "sessions", "operations", "AI steps", "credits", "dollars", "blocked"]);
        for day in &used.days {
            let numbers = [
                day.sessions.to_string(),
                day.operations.to_string(),
                day.ai_steps.to_string(),
                output::amount(day.credits),
                output::amount(day.usd),
                day.refused.to_string(),
            ];
            table.add_row([Cell::new(&day.day), Cell::new(named(&day.bot))].into_iter().chain(numbers.map(right)));
        }
        output::line("")?;
        output::show(&table)?;
        let steps: Vec<&Step> = used.steps.iter().take(MOST_STEPS).collect();
        // On a terminal there is room for the name of a step where all are of one bot.
        let has_bots = output::terminal_columns().is_none() || steps.iter().any(|step| step.bot != steps[0].bot);
        let headers = ["heaviest step", "guard", "bot", "day", "operations", "credits", "dollars", "blocked"];
        let shown = |place: usize| has_bots || headers[place] != "bot";
        let mut table = output::table(&(0..headers.len()).filter(|place| shown(*place)).map(|place| headers[place]).collect::<Vec<_>>());
        for step in steps {
            let numbers = [step.operations.to_string(), output::amount(step.credits), output::amount(step.usd), step.refused.to_string()];
            let names = [in_words(step), output::clean(&step.guard), named(&step.bot), step.day.clone()];
            let cells = names.map(Cell::new).into_iter().chain(numbers.map(right));
            table.add_row(cells.enumerate().filter(|(place, _)| shown(*place)).map(|(_, cell)| cell));
        }
        // What a step is known by may be cut.
        table.keep_whole(&(if has_bots { 3..headers.len() } else { 2..headers.len() - 1 }).collect::<Vec<_>>());
        table.favour(0);
        output::line("")?;
        output::show(&table)?;
        output::behind(used.behind_rows);
        Ok(())
    }
}

/// What was asked, where that is kept. The name of a topic may be a hash, which does not even say of what.
fn in_words(step: &Step) -> String {
    let guard = GuardName::from_code(&step.guard);
    match (step.label.trim(), guard) {
        ("", Some(guard)) if is_digest(&step.step) => format!("{} {}", guard.subject(), step.step),
        ("", _) => output::clean(&step.step),
        (label, _) => output::clean(label),
    }
}

/// The tenant of a service without keys has no name.
fn named(bot: &str) -> String {
    if bot.is_empty() { "–".to_owned() } else { output::clean(bot) }
}

fn changed(week: &Week) -> String {
    week.change.map_or_else(|| "–".to_owned(), |change| format!("{:+.0} %", change * 100.0))
}
