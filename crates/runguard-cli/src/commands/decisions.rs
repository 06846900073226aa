//! `runguard decisions`: the log, filtered, in pages or followed as it grows.

use crate::client::{Client, Query};
use crate::failure::Failure;
use crate::output;
use crate::table::Cell;
use clap::Args;
use owo_colors::OwoColorize;
use runguard_core::row::{Kind, Outcome};
use runguard_core::{GuardName, Reason};
use serde_json::Value;
use std::io::BufRead;

/// How many are shown, when nothing is said.
const USUAL: u32 = 20;
/// How many of the past, before those that happen.
const USUAL_BEFORE: u32 = 10;

#[derive(Debug, Args)]
pub(crate) struct Decisions {
    #[command(flatten)]
    client: Client,
    /// Of this guard
    #[arg(long, value_parser = output::known_to_service(GuardName::ALL.iter().map(|guard| (guard.code(), guard.label()))))]
    guard: Option<String>,
    /// With this reason, such as `cycle_detected`
    #[arg(long, hide_possible_values = true, value_parser = output::known_to_service(Reason::ALL.iter().map(|reason| (reason.code(), reason.label()))))]
    reason: Option<String>,
    /// Of this kind [default: check]
    #[arg(long, value_parser = output::known_to_service(Kind::ALL.iter().map(|kind| (kind.code(), kind.meaning())).chain([("all", "All of them.")])))]
    kind: Option<String>,
    /// Of this session
    #[arg(long)]
    session: Option<String>,
    /// Of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Ended so
    #[arg(long, value_parser = output::known_to_service(Outcome::ALL.iter().map(|outcome| (outcome.code(), outcome.meaning()))))]
    outcome: Option<String>,
    /// From then on: a time, or how long ago (15m, 24h, 7d)
    #[arg(long)]
    since: Option<String>,
    /// Before then
    #[arg(long)]
    until: Option<String>,
    /// How many, at most 1000; with --follow how many of the past come first [default: 20, with --follow 10]
    #[arg(long)]
    limit: Option<u32>,
    /// The last ones, and then each as it happens
    #[arg(long, short)]
    follow: bool,
    /// As JSON; with --follow one object a line
    #[arg(long)]
    json: bool,
}

impl Decisions {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let filters = [
            ("guard", &self.guard),
            ("reason", &self.reason),
            ("kind", &self.kind),
            ("session", &self.session),
            ("tenant", &self.tenant),
            ("outcome", &self.outcome),
            ("since", &self.since),
            ("until", &self.until),
        ];
        let query: Query = filters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        if self.follow {
            return self.follow(&query);
        }
        let page = self.page(&query, self.limit.unwrap_or(USUAL))?;
        if self.json {
            return output::json(&page);
        }
        let rows = page["decisions"].as_array().map(Vec::as_slice).unwrap_or_default();
        if rows.is_empty() {
            return output::line("No decisions that fit.");
        }
        // The words of a decision say what its reason and its subject do; where there is no room, they go first.
        let has_room = output::terminal_columns().is_none_or(|columns| columns >= output::ROOM_FOR_WORDS);
        let headers = ["time", "guard", "session", "subject", "outcome", "reason", "message"];
        let mut table = output::table(if has_room { &headers } else { &headers[..6] });
        for row in rows {
            let cells = [
                output::time_cell(&row["time"]),
                output::cell(&row["guard"]),
                output::cell(&row["session_id"]),
                output::cell(&row["subject"]),
                output::outcome_cell(row["outcome"].as_str().unwrap_or_default()),
                output::cell(&row["reason"]),
            ];
            let words = has_room.then(|| Cell::new(first_sentence(&output::text(&row["message"]))));
            table.add_row(cells.into_iter().chain(words));
        }
        table.keep_whole(&[0, 1, 4]);
        table.favour(2);
        output::show(&table)?;
        if page["next_cursor"].is_string() {
            output::note("There are more; --limit shows up to 1000, and filters narrow it down.");
        }
        Ok(())
    }

    fn page(&self, query: &Query, limit: u32) -> Result<Value, Failure> {
        self.client.get("/v1/decisions", &[query.clone(), vec![("limit", limit.to_string())]].concat())
    }

    /// The stream is open before the past is asked for, so that nothing falls between them; what is in both is shown once.
    fn follow(&self, query: &Query) -> Result<(), Failure> {
        let stream = self.client.stream("/v1/events", query)?;
        let before = match self.limit.unwrap_or(USUAL_BEFORE) {
            0 => Value::Null,
            limit => self.page(query, limit)?,
        };
        let before = before["decisions"].as_array().map(Vec::as_slice).unwrap_or_default();
        for row in before.iter().rev() {
            self.show_one(row)?;
        }
        for line in stream.lines() {
            let line = line.map_err(|error| Failure::Unreachable(format!("the stream broke off: {error}")))?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let row: Value = serde_json::from_str(data).unwrap_or_default();
            if !before.iter().any(|shown| shown["decision_id"] == row["decision_id"]) {
                self.show_one(&row)?;
            }
        }
        Err(Failure::Unreachable("the service ended the stream".into()))
    }

    fn show_one(&self, row: &Value) -> Result<(), Failure> {
        if self.json {
            return output::line(&row.to_string());
        }
        let code = output::text(&row["outcome"]);
        let outcome = format!("{:<11}", code.replace('_', " "));
        let outcome = match code.as_str() {
            "blocked" => outcome.red().to_string(),
            "allowed" => outcome.green().to_string(),
            _ => outcome.yellow().to_string(),
        };
        let parts = ["guard", "session_id", "subject", "reason"].map(|name| output::text(&row[name]));
        let words = first_sentence(&output::text(&row["message"]));
        let time = output::time(&row["time"]);
        // The time, how it ended, and two blanks after each.
        let room = output::terminal_columns().map(|columns| usize::from(columns).saturating_sub(time.chars().count() + 2 + 11 + 2));
        let (parts, words) = fitted(parts, &words, room);
        let words = if words.is_empty() { words } else { format!("  {}", words.dimmed()) };
        output::line(&format!("{time}  {outcome}  {}{words}", parts.join("  ").trim_end()))
    }
}

/// One line a decision: guard, session, subject and reason with two blanks between them, then words where there is room. What is too
/// long is cut, the names of callers first; what it is about and why stay readable longest.
fn fitted(mut parts: [String; 4], words: &str, room: Option<usize>) -> ([String; 4], String) {
    /// The least that is left of each.
    const LEAST: [usize; 4] = [4, 6, 6, 8];
    /// Which are cut first: session and subject, then the reason, then the guard.
    const FIRST: [&[usize]; 3] = [&[1, 2], &[3], &[0]];
    const BLANKS: usize = 2;
    let Some(room) = room else { return (parts, words.to_owned()) };
    let length = |part: &String| part.chars().count();
    let taken = |parts: &[String; 4]| parts.iter().map(length).sum::<usize>() + 3 * BLANKS;
    for group in FIRST {
        while taken(&parts) > room {
            let longest =
                group.iter().copied().filter(|index| length(&parts[*index]) > LEAST[*index]).max_by_key(|index| length(&parts[*index]));
            let Some(longest) = longest else { break };
            parts[longest] = output::cut(&parts[longest], length(&parts[longest]) - 1);
        }
    }
    let left = room.saturating_sub(taken(&parts) + BLANKS);
    (parts, output::cut(words, left))
}

fn first_sentence(message: &str) -> String {
    message.split_inclusive(". ").next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_followed_decision_is_one_line_of_the_terminal() {
        let long = ["agent_action", "conversation-of-a-customer-with-a-long-name", "get_the_profile", "consecutive_same_action_spiral"];
        let width = |room: usize| {
            let (parts, words) = fitted(long.map(str::to_owned), "Three in a row.", Some(room));
            let line = format!("{}  {words}", parts.join("  "));
            (line.trim_end().chars().count(), parts)
        };
        for room in [40, 57, 65, 80, 120, 200] {
            assert!(width(room).0 <= room, "{room}: {:?}", width(room));
        }
        let (_, at_80) = width(80 - 23);
        assert_eq!((at_80[0].as_str(), at_80[3].as_str()), ("agent_action", "consecutive_same_action_sp…"), "{at_80:?}");
        let (whole, words) = fitted(long.map(str::to_owned), "Three in a row.", None);
        assert_eq!((whole[1].as_str(), words.as_str()), (long[1], "Three in a row."), "in full on a pipe");
    }
}
