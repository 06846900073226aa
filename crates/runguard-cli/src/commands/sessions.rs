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
        // On a terminal there is room for the name of a session where what all of them have in common is left out.
        let all = output::terminal_columns().is_none();
        let rows = &page.sessions;
        let has_would_block = all || rows.iter().any(|session| session.would_block > 0);
        let has_cost = all || rows.iter().any(|session| session.usd > 0.0);
        let has_tenants = all || rows.iter().any(|session| session.tenant != rows[0].tenant);
        let columns = [
            (true, "last seen"),
            (true, "decisions"),
            (true, "blocked"),
            (has_would_block, "would block"),
            (has_cost, "dollars"),
            (true, "session"),
            (has_tenants, "tenant"),
            (true, "last reason"),
        ];
        let headers: Vec<&str> = columns.iter().filter(|(is_shown, _)| *is_shown).map(|(_, name)| *name).collect();
        let mut table = output::table(&headers);
        let name = headers.iter().position(|name| *name == "session").unwrap_or_default();
        table.keep_whole(&(0..name).collect::<Vec<_>>());
        table.favour(name);
        for session in rows {
            let right = |text: String| Cell::new(text).right();
            let [decisions, blocked, would_block] =
                [session.decisions, session.blocked, session.would_block].map(|count| right(output::short_count(count)));
            let cost = right(if session.usd > 0.0 { dollars(session.usd) } else { String::new() });
            let [id, tenant, reason] = [&session.session_id, &session.tenant, session.reason.as_deref().unwrap_or_default()]
                .map(|text| Cell::new(output::clean(text)));
            let cells = [output::time_cell(&session.last_seen.as_str().into()), decisions, blocked, would_block, cost, id, tenant, reason];
            table.add_row(columns.iter().zip(cells).filter(|((is_shown, _), _)| *is_shown).map(|(_, cell)| cell));
        }
        output::show(&table)?;
        output::more(page.next_cursor.as_deref(), page.found);
        output::behind(page.behind_rows);
        Ok(())
    }
}
