//! `runguard spend`: what model calls cost, and what is left of the budgets.

use super::{RangeArgs, WEEK};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::table::Cell;
use clap::Args;
use runguard_insight::insight::spend::{BudgetStands, By, Spent, Sum};
use serde_json::Value;

#[derive(Debug, Args)]
pub(crate) struct Spend {
    #[command(flatten)]
    client: Client,
    #[command(flatten)]
    range: RangeArgs,
    /// What sums are made by
    #[arg(long, default_value = "day", value_parser = output::values(By::ALL.map(|by| (by.code(), by.about()))))]
    by: String,
    /// Whose days, such as Europe/Berlin [default: that of the budgets]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Rows at most: the dearest, or the latest days
    #[arg(long, value_name = "ROWS", default_value_t = 30)]
    limit: usize,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Spend {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut query = self.range.query(WEEK);
        query.push(("by", self.by.clone()));
        query.extend(self.time_zone.map(|zone| ("time_zone", zone)));
        let answer: Value = self.client.get("/v1/spend", &query)?;
        if self.json {
            return output::json(&answer);
        }
        let spent: Spent = output::read(answer)?;
        let columns = Columns { writes: spent.total.cache_write_tokens > 0 };
        let headers = columns.names(&self.by);
        let mut table = output::table(&headers);
        table.keep_whole(&(1..headers.len()).collect::<Vec<_>>());
        let entries = spent.groups.first().map(|group| group.entries.as_slice()).unwrap_or_default();
        let left_out = entries.len().saturating_sub(self.limit);
        let shown = if self.by == By::Day.code() { &entries[left_out..] } else { &entries[..entries.len() - left_out] };
        for entry in shown {
            let name = if entry.name.is_empty() { "–".to_owned() } else { output::clean(&entry.name) };
            table.add_row(columns.row(&name, &entry.sum));
        }
        if entries.is_empty() && spent.total.calls + spent.total.refused == 0 {
            output::line("No model call was paid for or blocked in this time.")?;
        } else {
            table.add_row(columns.row("all", &spent.total));
            output::show(&table)?;
        }
        if left_out > 0 {
            output::line(&format!("\n{left_out} more are not shown: --limit {} shows them too.", entries.len()))?;
        }
        if entries.is_empty() && self.by == By::Scope.code() {
            output::line("\nThese calls named no scope of their own (`scopes` of a budget's request).")?;
        }
        if spent.total.overdue_usd > 0.0 {
            let overdue = dollars(spent.total.overdue_usd);
            output::prose(&format!(
                "\nAmong it {overdue} that nobody settled in time, at the most it can have cost: a gateway died, or is slow."
            ))?;
        }
        if let Some(saved) = spent.total.saved_usd.filter(|saved| *saved > 0.0) {
            output::prose(&format!("\nSaved by blocks: about {}, at what a call cost on average.", dollars(saved)))?;
        }
        if !spent.budgets.is_empty() {
            output::line("")?;
            output::show(&budgets(&spent.budgets))?;
        }
        output::behind(spent.behind_rows);
        Ok(())
    }
}

fn right(text: String) -> Cell {
    Cell::new(text).right()
}

/// Tokens as the service tells them: those that were sent are input, read from a cache (`cached`) or written to one.
struct Columns {
    /// Some were written to a cache: providers that ask for more for it say so.
    writes: bool,
}

impl Columns {
    fn names<'a>(&self, by: &'a str) -> Vec<&'a str> {
        let writes = self.writes.then_some("written");
        [by, "calls", "blocked", "input", "output", "cached"].into_iter().chain(writes).chain(["dollars"]).collect()
    }

    fn row(&self, name: &str, sum: &Sum) -> Vec<Cell> {
        let counts = [sum.calls, sum.refused, sum.input_tokens, sum.output_tokens, sum.cached_tokens];
        let counts = counts.into_iter().chain(self.writes.then_some(sum.cache_write_tokens)).map(output::short_count);
        [Cell::new(name)].into_iter().chain(counts.chain([dollars(sum.usd)]).map(right)).collect()
    }
}

/// Small amounts are most of them: as many digits as they need.
pub(crate) fn dollars(usd: f64) -> String {
    if usd == 0.0 || usd >= 1.0 { format!("${usd:.2}") } else { format!("${usd:.4}") }
}

pub(crate) fn budgets(stand: &[BudgetStands]) -> crate::table::Table {
    let mut table = output::table(&["budget", "of", "spent", "reserved", "left", "limit", "begins anew"]);
    table.keep_whole(&[2, 3, 4, 5]);
    for budget in stand {
        let figures = &budget.figures;
        let [spent, reserved, left, limit] = if figures.limit_usd.is_some() || figures.limit_tokens.is_none() {
            let maybe = |usd: Option<f64>| usd.map_or_else(|| "–".to_owned(), dollars);
            [dollars(figures.spent_usd), dollars(figures.reserved_usd), maybe(figures.remaining_usd), maybe(figures.limit_usd)]
        } else {
            let tokens = |count: Option<u64>| count.map_or_else(|| "–".to_owned(), |count| format!("{} tok", output::short_count(count)));
            [Some(figures.spent_tokens), Some(figures.reserved_tokens), figures.remaining_tokens, figures.limit_tokens].map(tokens)
        };
        let whose = [budget.name.as_str(), budget.tenant.as_str()].into_iter().find(|name| !name.is_empty()).unwrap_or("all");
        let renews = budget.renews_at.as_deref().map_or_else(|| "never".to_owned(), |at| output::time(&Value::from(at)));
        let names = [output::clean(&budget.scope), output::clean(whose)].map(Cell::new);
        table.add_row(names.into_iter().chain([spent, reserved, left, limit].map(right)).chain([Cell::new(renews)]));
    }
    table
}
