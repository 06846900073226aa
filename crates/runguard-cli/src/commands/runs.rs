//! `runguard runs`: runs that ask models, and an operator's word on one.

use super::spend::dollars;
use super::{DAY, PageArgs, RangeArgs};
use crate::client::{Client, Query, segment};
use crate::failure::Failure;
use crate::output;
use crate::table::Cell;
use clap::{Args, Subcommand};
use runguard_insight::insight::spend::{Run, RunState, Runs as Page, Sort};
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Runs {
    #[command(flatten)]
    client: Client,
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    range: RangeArgs,
    /// Only those whose name begins so
    #[arg(long)]
    prefix: Option<String>,
    /// Only those that are so
    #[arg(long, value_parser = output::values(RunState::ALL.map(|state| (state.code(), state.about()))))]
    state: Option<String>,
    /// By what, the most first
    #[arg(long, default_value = "last_seen", value_parser = output::values(Sort::ALL.map(|sort| (sort.code(), sort.about()))))]
    sort: String,
    #[command(flatten)]
    page: PageArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Refuse every further model call of a run, until it is resumed
    Stop {
        /// Its name, as `runguard runs` and the header `x-runguard-run` say it
        run: String,
        /// Why: told to whoever is blocked
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        on: On,
    },
    /// Let a run go on that was stopped, by hand or because it got nowhere
    Resume {
        /// Its name
        run: String,
        #[command(flatten)]
        on: On,
    },
}

/// Where a run is.
#[derive(Debug, Args)]
struct On {
    #[command(flatten)]
    client: Client,
    /// Of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl On {
    fn change(&self, run: &str, verb: &str, body: &Value) -> Result<(), Failure> {
        let query: Query = self.tenant.iter().map(|tenant| ("tenant", tenant.clone())).collect();
        let changed = self.client.post_json_to(&format!("/v1/runs/{}/{verb}", segment(run)), &query, body)?;
        if self.json {
            return output::json(&changed);
        }
        output::line(&if changed["state"] == RunState::Stopped.code() {
            format!("'{}' is stopped.\nIts next model call is blocked; `runguard runs resume` lets it go on.", output::clean(run))
        } else {
            format!("'{}' may go on.", output::clean(run))
        })
    }
}

impl Runs {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match &self.verb {
            Some(Verb::Stop { run, note, on }) => return on.change(run, "stop", &json!({"note": note})),
            Some(Verb::Resume { run, on }) => return on.change(run, "resume", &Value::Null),
            None => {}
        }
        let mut query = self.range.query(DAY);
        query.push(("sort", self.sort.clone()));
        query.extend(self.page.query());
        let more = [("prefix", &self.prefix), ("state", &self.state)];
        query.extend(more.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        let answer = self.client.get("/v1/runs", &query)?;
        if self.json {
            return output::json(&answer);
        }
        let page: Page = output::read(answer)?;
        if page.runs.is_empty() {
            return output::line("No run asked a model in this time.");
        }
        let mut table = output::table(&["state", "calls", "dollars", "last seen", "run", "about"]);
        for run in &page.runs {
            let right = |text: String| Cell::new(text).right();
            let numbers = [output::short_count(run.sum.calls), dollars(run.sum.usd)].map(right);
            let named = [output::time_cell(&run.last_seen.as_str().into()), Cell::new(output::clean(&run.run)), Cell::new(about(run))];
            table.add_row([Cell::new(run.state.code())].into_iter().chain(numbers).chain(named));
        }
        table.keep_whole(&[0, 1, 2, 3]);
        // It is what `stop` asks for.
        table.favour(4);
        output::show(&table)?;
        output::more(page.next_cursor.as_deref(), page.found);
        output::behind(page.behind_rows);
        Ok(())
    }
}

/// Why it is as it is, and what is known of it besides.
fn about(run: &Run) -> String {
    let why = run.reason.as_deref().or(run.note.as_deref().filter(|note| !note.is_empty())).map(output::clean);
    let steps = (run.steps > 0).then(|| match run.steps {
        1 => "1 step".to_owned(),
        steps => format!("{} steps", output::short_count(steps)),
    });
    let overdue = run.sum.overdue_usd + run.budget.overdue_usd;
    let overdue = (overdue > 0.0).then(|| format!("{} overdue", dollars(overdue)));
    let known = [why, overdue, run.model.as_deref().map(output::clean), steps];
    known.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
