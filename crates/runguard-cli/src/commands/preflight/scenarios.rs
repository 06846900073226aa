//! What is said to the bot, and which guard must stop what it leads to.

use super::bot::Platform;
use crate::failure::Failure;
use runguard_core::{GuardName, Reason};
use serde::Deserialize;
use std::path::Path;

const BOTPRESS: &str = include_str!("botpress.toml");
const VOICEFLOW: &str = include_str!("voiceflow.toml");

/// Conversations of one scenario at once, and messages of one.
const MOST_CONVERSATIONS: u32 = 200;
const MOST_MESSAGES: usize = 100;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) name: String,
    #[serde(default)]
    pub(super) about: String,
    pub(super) guard: String,
    /// It has fired when it gives one of these; none: any reason of the guard.
    #[serde(default)]
    pub(super) reasons: Vec<String>,
    pub(super) say: Vec<String>,
    /// As many at once, each with a session of its own.
    #[serde(default = "one")]
    pub(super) conversations: u32,
}

const fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenarios {
    scenario: Vec<Scenario>,
}

/// The scenarios of a platform, to be changed.
pub(super) fn text(platform: Platform) -> String {
    match platform {
        Platform::Botpress => BOTPRESS.to_owned(),
        Platform::Voiceflow => VOICEFLOW.to_owned(),
        Platform::Generic => format!("{BOTPRESS}\n{VOICEFLOW}"),
    }
}

/// What to play: those named, from a file where a path is given, else all of the platform.
pub(super) fn chosen(platform: Platform, given: &[String]) -> Result<Vec<Scenario>, Failure> {
    let known = read(&text(platform)).map_err(Failure::Failed)?;
    if given.is_empty() {
        return Ok(known);
    }
    let mut chosen: Vec<Scenario> = Vec::new();
    for name in given.iter().map(|name| name.trim()) {
        if Path::new(name).extension().is_some_and(|ending| ending == "toml") {
            let text = std::fs::read_to_string(name).map_err(|error| Failure::Usage(format!("--scenario {name}: {error}")))?;
            chosen.extend(read(&text).map_err(|problem| Failure::Usage(format!("--scenario {name}: {problem}")))?);
        } else if let Some(scenario) = known.iter().find(|scenario| scenario.name == name) {
            chosen.push(scenario.clone());
        } else {
            let names: Vec<&str> = known.iter().map(|scenario| scenario.name.as_str()).collect();
            return Err(Failure::Usage(format!(
                "--scenario: there is no scenario `{name}`; known are {}, or give a file (.toml; --print shows one to begin with)",
                names.join(", ")
            )));
        }
    }
    Ok(chosen)
}

fn read(text: &str) -> Result<Vec<Scenario>, String> {
    let scenarios: Scenarios = toml::from_str(text).map_err(|error| error.to_string())?;
    if scenarios.scenario.is_empty() {
        return Err("it has no [[scenario]]".to_owned());
    }
    for scenario in &scenarios.scenario {
        scenario.check().map_err(|problem| format!("scenario `{}`: {problem}", scenario.name))?;
    }
    Ok(scenarios.scenario)
}

impl Scenario {
    fn check(&self) -> Result<(), String> {
        let Some(guard) = GuardName::from_code(&self.guard) else {
            return Err(format!("guard: `{}` is no guard; docs/reasons.md lists them", self.guard));
        };
        for reason in &self.reasons {
            if Reason::from_code(reason).is_none_or(|reason| reason.guard() != guard) {
                return Err(format!("reasons: `{reason}` is no reason of {}; docs/reasons.md lists them", self.guard));
            }
        }
        if self.say.is_empty() || self.say.len() > MOST_MESSAGES {
            return Err(format!("say: must be 1 to {MOST_MESSAGES} messages"));
        }
        if !(1..=MOST_CONVERSATIONS).contains(&self.conversations) {
            return Err(format!("conversations: must be from 1 to {MOST_CONVERSATIONS}"));
        }
        Ok(())
    }

    /// Whether this is what the guard was to say.
    pub(super) fn expects(&self, reason: &str) -> bool {
        if self.reasons.is_empty() { reason != Reason::StateUnavailable.code() } else { self.reasons.iter().any(|wanted| wanted == reason) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_of_each_platform_are_built_in() {
        let names = |platform| chosen(platform, &[]).unwrap().into_iter().map(|scenario| scenario.guard).collect::<Vec<_>>();
        assert_eq!(names(Platform::Botpress), ["ai_task_retry", "handoff", "kb_requery", "agent_action"]);
        assert_eq!(names(Platform::Voiceflow), ["no_match_reprompt", "capture_slot_fill", "kb_requery", "api_circuit"]);
        assert_eq!(names(Platform::Generic).len(), 8);
    }

    #[test]
    fn a_scenario_that_cannot_be_judged_is_refused() {
        let with = |line: &str| read(&format!("[[scenario]]\nname = \"mine\"\nsay = [\"hello\"]\n{line}\n"));
        assert!(with("guard = \"handoff\"").is_ok());
        for bad in [
            "guard = \"nobody\"",
            "guard = \"handoff\"\nreasons = [\"retry_cap_reached\"]",
            "guard = \"handoff\"\nsays = 1",
            "guard = \"handoff\"\nconversations = 0",
        ] {
            assert!(with(bad).is_err(), "{bad}");
        }
        assert!(chosen(Platform::Botpress, &["api-storm".into()]).is_err());
        assert!(read("scenario = []").is_err());
    }
}
