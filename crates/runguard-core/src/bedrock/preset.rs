//! Settings for a kind of agent, by name.

use super::{AttemptChanges, AttemptSettings};
use crate::limits::InvalidSetting;
use serde::Serialize;

/// A kind of agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Asks a knowledge base many different questions before it answers.
    Research,
    /// Works through actions, with nobody waiting.
    Automation,
    /// A person waits for the answer.
    Interactive,
}

/// What holds for a kind of agent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PresetSettings {
    /// Of the loop detector.
    pub repeats: u32,
    /// Of the loop detector.
    pub max_cycle_len: u32,
    /// Dollars a session may spend.
    pub max_usd: f64,
    /// Lookups and actions that are in vain.
    pub attempts: AttemptSettings,
}

/// What of it holds beside what is given.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PresetOptions {
    /// Of the loop detector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u32>,
    /// Of the loop detector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cycle_len: Option<u32>,
    /// Dollars a session may spend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_usd: Option<f64>,
    /// Lookups and actions that are in vain, with those that are given in their place.
    pub attempts: AttemptSettings,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Research, Self::Automation, Self::Interactive];

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Research => "research",
            Self::Automation => "automation",
            Self::Interactive => "interactive",
        }
    }

    /// The one with this name; otherwise which ones there are.
    pub fn from_name(name: &str) -> Result<Self, InvalidSetting> {
        let known = || format!("is '{name}', which is none; take one of {}", Self::ALL.map(Self::name).join(", "));
        Self::ALL.into_iter().find(|preset| preset.name() == name).ok_or_else(|| InvalidSetting::new("preset", known()))
    }

    /// Its settings.
    pub fn settings(self) -> PresetSettings {
        let attempts = AttemptSettings::default();
        match self {
            // Different questions are its work, and one page may answer several of them.
            Self::Research => {
                let attempts = attempts.barren_lookups(8).same_errors(5);
                PresetSettings { repeats: 3, max_cycle_len: 6, max_usd: 5.0, attempts }
            }
            // A step that is made twice was made once too often; what fails for one record may pass for the next.
            Self::Automation => {
                let attempts = attempts.barren_lookups(4).same_errors(5);
                PresetSettings { repeats: 2, max_cycle_len: 3, max_usd: 20.0, attempts }
            }
            Self::Interactive => {
                let attempts = attempts.barren_lookups(4).same_errors(3);
                PresetSettings { repeats: 3, max_cycle_len: 4, max_usd: 2.0, attempts }
            }
        }
    }

    /// Its settings where the options of a run, by name, say nothing. A detector or a budget of the caller's own (`loop`, `budget`) brings
    /// its settings with it.
    pub fn beside(self, given: &[String], attempts: AttemptChanges) -> PresetOptions {
        let usual = self.settings();
        let says = |names: [&str; 2]| given.iter().any(|given| names.contains(&given.as_str()));
        PresetOptions {
            repeats: (!says(["repeats", "loop"])).then_some(usual.repeats),
            max_cycle_len: (!says(["max_cycle_len", "loop"])).then_some(usual.max_cycle_len),
            max_usd: (!says(["max_usd", "budget"])).then_some(usual.max_usd),
            attempts: usual.attempts.changed(attempts),
        }
    }
}
