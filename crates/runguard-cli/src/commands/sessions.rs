//! `runguard sessions`: the sessions, found by how their names begin, and sorted.

use super::spend::dollars;
use super::{PageArgs, RangeArgs, WEEK};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::table::Cell;
use clap::Args;
use runguard_insight::insight::session_list::{SessionList, SessionSort};

#[derive(Debug, Args)]
pub(crate) struct Sessions {
    #[command(flatten)]
    client: Client,
    /// Only those whose name begins so
    prefix: Option<String>,
    #[command(flatten)]
    range: RangeArgs,
    /// By what, the most first
    #[arg(long, default_value = "last_seen", value_parser = output::values(SessionSort::ALL.map(|sort| (sort.code(), sort.about()))))]
    sort: String,
    #[command(flatten)]
    page: PageArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Sessions {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut query = self.range.query(WEEK);
        query.push(("sort", self.sort.clone()));
        query.extend(self.page.query());
        query.extend(self.prefix.iter().map(|prefix| ("prefix", prefix.clone())));
        let answer = self.client.get("/v1/sessions", &query)?;
        if self.json {
            return output::json(&answer);
        }
        let page: SessionList = output::read(answer)?;
        if page.sessions.is_empty() {
            return output::line(match &self.prefix {
                Some(_) => "No session whose name begins so in this time. `--since 30d` looks further back.",
                None => "No session in this time. `--since 30d` looks further back.",
            });
        }
        let mut table = output::table(&["last seen", "decisions", "blocked", "would block", "dollars", "session", "tenant", "last reason"]);
        table.keep_whole(&[0, 1, 2, 3, 4]);
        for session in &page.sessions {
            let right = |text: String| Cell::new(text).right();
            let counts = [session.decisions, session.blocked, session.would_block].map(output::short_count);
            let cost = if session.usd > 0.0 { dollars(session.usd) } else { String::new() };
            let [id, tenant, reason] = [Some(&session.session_id), Some(&session.tenant), session.reason.as_ref()]
                .map(|text| text.map(|text| output::clean(text)));
            let numbers = counts.into_iter().chain([cost]).map(right);
            let names = [id, tenant, reason].map(|text| Cell::new(text.unwrap_or_default()));
            table.add_row([output::time_cell(&session.last_seen.as_str().into())].into_iter().chain(numbers).chain(names));
        }
        output::show(&table)?;
        output::more(page.next_cursor.as_deref(), page.found);
        output::behind(page.behind_rows);
        Ok(())
    }
}
