//! `runguard preflight`: conversations that walk into each trap, with a bot of one's own; the log tells which guards fired.
//!
//! Nothing of the bot is looked into: it is talked to as its users do, and what counts is whether the guards in its flow were asked
//! and refused. It runs the real steps of the bot, so it belongs before a staging bot, and costs what these steps cost.

mod bot;
mod scenarios;

use crate::client::{Client, Query};
use crate::failure::Failure;
use crate::output;
use bot::{Bot, Platform, Talk};
use clap::Args;
use runguard_core::row::Outcome;
use runguard_core::{GuardName, Reason, Span};
use runguard_engine::clock::system_now;
use scenarios::Scenario;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Rows of the log that are looked at for each session.
const MOST_ROWS: &str = "200";
/// Circuits of one page.
const MOST_CIRCUITS: &str = "1000";
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LONGEST_WAIT: u64 = 3600;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  runguard preflight --platform botpress --url https://chat.botpress.cloud/WEBHOOK_ID --guard https://guard.example.com
  runguard preflight --platform voiceflow --url https://general-runtime.voiceflow.com --bot-key VF.DM.… --scenario kb-chain,no-match
  runguard preflight --platform voiceflow --print > mine.toml      scenarios to change
  runguard preflight --platform generic --url http://127.0.0.1:3000/chat --scenario mine.toml --json

Exit codes: 0 every guard fired, 1 some did not, 2 it could not be played")]
pub(crate) struct Preflight {
    /// The bot, where nothing of value happens: a staging bot
    #[arg(long, value_name = "URL", required_unless_present = "print")]
    url: Option<String>,
    /// How the bot is talked to
    #[arg(long, value_enum)]
    platform: Platform,
    /// Which scenarios, by name, or a file of one's own (.toml) [default: all of the platform]
    #[arg(long, value_name = "NAME|FILE,…", value_delimiter = ',')]
    scenario: Vec<String>,
    /// The RunGuard service that the bot asks
    #[arg(long, env = "RUNGUARD_URL", value_name = "URL", default_value = "http://127.0.0.1:8100")]
    guard: String,
    /// API key of that service, of the tenant the bot belongs to
    #[arg(long, env = "RUNGUARD_KEY", hide_env_values = true)]
    key: Option<String>,
    /// What the bot's platform wants as `authorization`
    #[arg(long, env = "PREFLIGHT_BOT_KEY", hide_env_values = true)]
    bot_key: Option<String>,
    /// A header for the bot; may be given several times
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// What a generic bot is sent
    #[arg(long, value_name = "JSON", default_value = r#"{"session_id": "{session}", "message": "{message}"}"#)]
    body: String,
    /// How long the bot may take to answer a message
    #[arg(long, value_name = "LENGTH", default_value = "30s")]
    patience: String,
    /// How long to look for a decision after the last message
    #[arg(long, value_name = "LENGTH", default_value = "5s")]
    wait: String,
    /// Count decisions of any session since the beginning: where a flow calls its sessions something else
    #[arg(long)]
    any_session: bool,
    /// Print the platform's scenarios as a file to change, and end
    #[arg(long)]
    print: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Preflight {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.print {
            return output::line(scenarios::text(self.platform).trim_end());
        }
        let seen = self.play().map_err(could_not_run)?;
        let all_fired = seen.iter().all(LoggedScenario::has_fired);
        if self.json {
            output::json(&json!({ "fired": all_fired, "scenarios": seen.iter().map(LoggedScenario::to_json).collect::<Vec<_>>() }))?;
        } else {
            tell(&seen)?;
        }
        if all_fired { Ok(()) } else { Err(Failure::AlreadyTold) }
    }

    fn play(&self) -> Result<Vec<LoggedScenario>, Failure> {
        let scenarios = scenarios::chosen(self.platform, &self.scenario)?;
        let bot = self.bot()?;
        let log = Log {
            client: Client::of(&self.guard, self.key.as_deref(), "--guard"),
            wait: length("--wait", &self.wait)?,
            counts_any_session: self.any_session,
        };
        let mut seen = Vec::new();
        for scenario in scenarios {
            // Asked first: a service that does not answer is found out before anything is said.
            let before = Before { newest: log.newest(&scenario)?, open: log.open_circuits(&scenario)? };
            if !self.json {
                output::note(&format!("{}: {}", scenario.name, scenario.about));
            }
            let talks = converse(&bot, &scenario).map_err(|problem| Failure::Failed(format!("scenario `{}`: {problem}", scenario.name)))?;
            seen.push(log.judge(scenario, &talks, &before)?);
        }
        Ok(seen)
    }

    fn bot(&self) -> Result<Bot, Failure> {
        let url = self.url.as_deref().unwrap_or_default();
        let mut bot = Bot::new(self.platform, url, length("--patience", &self.patience)?).map_err(Failure::Usage)?;
        for header in &self.header {
            let (name, value) = header.split_once(':').ok_or_else(|| Failure::Usage(format!("--header {header}: must be NAME: VALUE")))?;
            bot.headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
        bot.key.clone_from(&self.bot_key);
        bot.body.clone_from(&self.body);
        Ok(bot)
    }
}

/// For people.
fn tell(seen: &[LoggedScenario]) -> Result<(), Failure> {
    let mut table = output::table(&["scenario", "guard", "fired", "reasons", "asked", "blocked", "said", "replies"]);
    for one in seen {
        let fired = if one.has_fired() { "yes" } else { "no" };
        let reasons = one.reasons.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let numbers = [one.asked, one.refused, one.said as u64, one.replies as u64].map(|number| number.to_string());
        let mut row =
            vec![one.scenario.name.clone().into(), one.scenario.guard.clone().into(), output::outcome_cell(fired), reasons.into()];
        row.extend(numbers.map(Into::into));
        table.add_row(row);
    }
    output::show(&table)?;
    for one in seen {
        if let Some(hint) = one.hint() {
            output::line(&format!("{}: {hint}", one.scenario.name))?;
        }
    }
    Ok(())
}

/// Whatever kept it from being played has one code.
fn could_not_run(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(text) | Failure::NotFound(text) | Failure::Unreachable(text) | Failure::Refused(text) => Failure::Usage(text),
        other @ (Failure::Usage(_) | Failure::OutputClosed | Failure::Cancelled | Failure::AlreadyTold | Failure::Exited(_)) => other,
    }
}

fn length(flag: &str, text: &str) -> Result<Duration, Failure> {
    let span = Span::parse(text).map_err(|problem| Failure::Usage(format!("{flag}: {problem}")))?;
    let wait = Duration::from_millis(span.as_millis());
    if wait.as_secs() > LONGEST_WAIT {
        return Err(Failure::Usage(format!("{flag} {text}: at most an hour")));
    }
    Ok(wait)
}

/// Plays a scenario, all of its conversations at once.
fn converse(bot: &Bot, scenario: &Scenario) -> Result<Vec<Talk>, String> {
    let begun = system_now().as_millis();
    let one = |number: u32| {
        let mut talk = bot.open(&format!("preflight-{begun:x}-{}-{number}", scenario.name))?;
        for message in &scenario.say {
            if !talk.is_over {
                bot.say(&mut talk, message)?;
            }
        }
        Ok(talk)
    };
    std::thread::scope(|scope| {
        let talking: Vec<_> = (0..scenario.conversations).map(|number| scope.spawn(move || one(number))).collect();
        talking.into_iter().map(|talk| talk.join().unwrap_or_else(|_| Err("a conversation ended in a panic".to_owned()))).collect()
    })
}

/// How it stood before anything was said.
struct Before {
    /// The id of the guard's newest decision.
    newest: String,
    /// Tenant and endpoint of each circuit that was not closed: what these refuse says nothing of the bot.
    open: BTreeSet<(String, String)>,
}

/// The log of the service that the bot asks.
struct Log {
    client: Client,
    wait: Duration,
    counts_any_session: bool,
}

impl Log {
    fn rows(&self, query: Query) -> Result<Vec<Value>, Failure> {
        let answer = self.client.get("/v1/decisions", &query)?;
        Ok(answer["decisions"].as_array().cloned().unwrap_or_default())
    }

    /// The id of the newest decision of the scenario's guard; later ones are greater.
    fn newest(&self, scenario: &Scenario) -> Result<String, Failure> {
        let rows = self.rows(vec![("guard", scenario.guard.clone()), ("limit", "1".to_owned())])?;
        Ok(rows.first().map(|row| output::text(&row["decision_id"])).unwrap_or_default())
    }

    /// The circuits that are not closed, where the scenario is about circuits.
    fn open_circuits(&self, scenario: &Scenario) -> Result<BTreeSet<(String, String)>, Failure> {
        let mut open = BTreeSet::new();
        if scenario.guard != GuardName::ApiCircuit.code() {
            return Ok(open);
        }
        for phase in ["open", "half_open"] {
            let mut cursor = None;
            loop {
                let mut query: Query = vec![("phase", phase.to_owned()), ("limit", MOST_CIRCUITS.to_owned())];
                query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
                let answer = self.client.get("/v1/circuits", &query)?;
                let circuits = answer["circuits"].as_array().map(Vec::as_slice).unwrap_or_default();
                open.extend(circuits.iter().map(|circuit| (output::text(&circuit["tenant"]), output::text(&circuit["endpoint_key"]))));
                match answer["next_cursor"].as_str() {
                    Some(next) => cursor = Some(next.to_owned()),
                    None => break,
                }
            }
        }
        Ok(open)
    }

    /// Looks until the guard has fired, or long enough: a bot may ask after it has answered, and a cluster logs a moment later.
    fn judge(&self, scenario: Scenario, talks: &[Talk], before: &Before) -> Result<LoggedScenario, Failure> {
        let sessions: BTreeSet<&str> = talks.iter().flat_map(|talk| &talk.sessions).map(String::as_str).collect();
        let began = Instant::now();
        loop {
            let mut seen = LoggedScenario::of(&scenario, talks);
            for session in &sessions {
                let query = vec![("guard", scenario.guard.clone()), ("session", (*session).to_owned()), ("limit", MOST_ROWS.to_owned())];
                for row in self.rows(query)? {
                    seen.add(&row, before);
                }
            }
            for row in self.rows(vec![("guard", scenario.guard.clone()), ("limit", MOST_ROWS.to_owned())])? {
                let is_ours = sessions.contains(row["session_id"].as_str().unwrap_or_default());
                if is_ours || row["decision_id"].as_str().unwrap_or_default() <= before.newest.as_str() {
                    continue;
                }
                seen.elsewhere += 1;
                if self.counts_any_session {
                    seen.add(&row, before);
                }
            }
            if seen.has_fired() || began.elapsed() >= self.wait {
                return Ok(seen);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// What the log says of a scenario.
#[derive(Debug)]
struct LoggedScenario {
    scenario: Scenario,
    sessions: Vec<String>,
    said: usize,
    replies: usize,
    asked: u64,
    /// For a reason that was expected.
    refused: u64,
    /// The same by a rule that only watches.
    observed: u64,
    reasons: BTreeSet<String>,
    /// Refused, or seen, for something else.
    other_reasons: BTreeSet<String>,
    /// Endpoints whose circuit refused, and was not closed when it began.
    /// By tenant and endpoint.
    already_open: BTreeSet<(String, String)>,
    /// Decisions of the guard since the beginning in sessions that are not these.
    elsewhere: u64,
}

impl LoggedScenario {
    fn of(scenario: &Scenario, talks: &[Talk]) -> Self {
        Self {
            scenario: scenario.clone(),
            sessions: talks.iter().filter_map(|talk| talk.sessions.first().cloned()).collect(),
            said: talks.iter().map(|talk| talk.said).sum(),
            replies: talks.iter().map(|talk| talk.replies).sum(),
            asked: 0,
            refused: 0,
            observed: 0,
            reasons: BTreeSet::new(),
            other_reasons: BTreeSet::new(),
            already_open: BTreeSet::new(),
            elsewhere: 0,
        }
    }

    fn add(&mut self, row: &Value, before: &Before) {
        if row["kind"] != "check" {
            return;
        }
        self.asked += 1;
        let Some(reason) = row["reason"].as_str() else { return };
        if !self.scenario.expects(reason) {
            self.other_reasons.insert(reason.to_owned());
            return;
        }
        let (tenant, subject) = (output::text(&row["tenant"]), output::text(&row["subject"]));
        // The ceiling of a session is the session's own, whatever the circuit is.
        if reason != Reason::SessionRetryCeiling.code() && before.open.contains(&(tenant.clone(), subject.clone())) {
            self.already_open.insert((tenant, subject));
            return;
        }
        self.reasons.insert(reason.to_owned());
        match row["outcome"].as_str().and_then(Outcome::from_code) {
            Some(Outcome::Blocked) => self.refused += 1,
            Some(Outcome::WouldBlock) => self.observed += 1,
            Some(Outcome::Allowed | Outcome::Recorded) | None => {}
        }
    }

    fn has_fired(&self) -> bool {
        self.refused > 0 || self.observed > 0
    }

    fn endpoints_already_open(&self) -> Vec<&str> {
        self.already_open.iter().map(|(_, endpoint)| endpoint.as_str()).collect()
    }

    /// What to look at, where it is not as it should be.
    fn hint(&self) -> Option<String> {
        let guard = &self.scenario.guard;
        if self.refused > 0 {
            return None;
        }
        if self.observed > 0 {
            return Some(format!("{guard} saw it and let it pass: it is in mode observe. With mode = \"enforce\" it would have blocked."));
        }
        if !self.already_open.is_empty() {
            let resets = self.already_open.iter().map(|(tenant, endpoint)| format!("runguard circuits reset {endpoint} --tenant {tenant}"));
            return Some(format!(
                "the circuit of {} was open before anything was said, so what it blocked says nothing of this bot. Close it ({}) and play it again.",
                self.endpoints_already_open().join(", "),
                resets.collect::<Vec<_>>().join("; ")
            ));
        }
        if self.asked == 0 && self.elsewhere > 0 {
            return Some(format!(
                "{guard} was not asked in these sessions, and {} times in others meanwhile. If the flow calls its sessions something else, let it send the conversation's id as session_id, or add --any-session.",
                self.elsewhere
            ));
        }
        if self.asked == 0 {
            return Some(format!(
                "{guard} was never asked: either the flow does not ask it before the step that repeats, or these words do not lead there (change `say`: --print)."
            ));
        }
        let others = self.other_reasons.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        Some(if others.is_empty() {
            format!(
                "{guard} was asked {} times and always allowed it: the bot did not go round with these words, or the ceiling is high.",
                self.asked
            )
        } else {
            format!("{guard} was asked {} times and blocked for something else: {others}.", self.asked)
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.scenario.name,
            "guard": self.scenario.guard,
            "fired": self.has_fired(),
            "reasons": self.reasons,
            "other_reasons": self.other_reasons,
            "already_open": self.endpoints_already_open(),
            "asked": self.asked,
            "refused": self.refused,
            "observed": self.observed,
            "elsewhere": self.elsewhere,
            "conversations": self.sessions.len(),
            "said": self.said,
            "replies": self.replies,
            "sessions": self.sessions,
            "hint": self.hint(),
        })
    }
}
