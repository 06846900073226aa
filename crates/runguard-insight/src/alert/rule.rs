//! A rule, as the settings have it: what it looks for, what it counts by, and whether it can be kept.

use crate::insight::digest::Savings;
use runguard_core::calendar::{Period, Zone};
use runguard_core::limits::InvalidSetting;
use runguard_core::notice::Severity;
use runguard_core::reason::{GuardName, Reason};
use runguard_core::time::Span;
use serde::{Deserialize, Serialize};

/// The most blocks a rule can count up to: their times are kept.
const MOST_COUNTED: u32 = 1000;
const MOST_THRESHOLDS: usize = 10;
const MAX_NAME_CHARS: usize = 64;

/// What a rule looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// A circuit opens; resolved when it closes.
    CircuitTrip,
    /// An endpoint's failures reach more than `share` percent of those that open its circuit; resolved when they are fewer.
    Degrading,
    /// `count` blocks within `window`; resolved when a window passes without one.
    Blocks,
    /// More than `share` percent of at least `count` decisions within `window` are blocks.
    BlockRate,
    /// A budget's spending reaches a percentage of `at`.
    Budget,
    /// Answers are degraded, or come from a fallback; resolved when a window passes without one.
    Fallback,
    /// What was used in the `period` reaches a percentage of `at` of `limit`, in `unit`; each period anew.
    Consumption,
    /// More than `factor` times as much is used today as on the same day of last week and on an average day of the last seven, and
    /// `at_least` so much; resolved with the day.
    Spike,
}

impl When {
    pub const ALL: [Self; 8] =
        [Self::CircuitTrip, Self::Degrading, Self::Blocks, Self::BlockRate, Self::Budget, Self::Fallback, Self::Consumption, Self::Spike];

    pub const fn code(self) -> &'static str {
        match self {
            Self::CircuitTrip => "circuit_trip",
            Self::Degrading => "degrading",
            Self::Blocks => "blocks",
            Self::BlockRate => "block_rate",
            Self::Budget => "budget",
            Self::Fallback => "fallback",
            Self::Consumption => "consumption",
            Self::Spike => "spike",
        }
    }
}

/// What blocks are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    Tenant,
    Guard,
    Reason,
    Subject,
}

/// What consumption is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ConsumptionUnit"))]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    Credits,
    Operations,
}

impl Counted {
    pub const ALL: [Self; 2] = [Self::Credits, Self::Operations];

    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::Credits => "credits",
            Self::Operations => "operations",
        }
    }
}

/// Where nothing is set: a budget refuses at its end, so half of it is told; of what may be used in a period, from where it can still be
/// turned.
const AT_BUDGET: [u8; 3] = [50, 80, 100];
const AT_CONSUMPTION: [u8; 3] = [60, 80, 100];

/// A rule, as the settings have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub name: String,
    pub when: When,
    /// Rows of this guard only; so for the other three.
    pub guard: Option<String>,
    pub reason: Option<String>,
    pub tenant: Option<String>,
    pub subject: Option<String>,
    /// What is counted apart; empty for what suits the kind of rule.
    pub per: Vec<Dimension>,
    pub count: u32,
    pub window: Span,
    /// Percent.
    pub share: f64,
    /// Percent of a budget, or of what may be used; none for what suits the kind of rule.
    pub at: Option<Vec<u8>>,
    /// What may be used in a period; 0 for a rule that is about something else.
    pub limit: f64,
    pub unit: Counted,
    pub period: Period,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub time_zone: Zone,
    pub factor: f64,
    pub at_least: f64,
    pub cooldown: Span,
    pub severity: Option<Severity>,
    /// Names of targets; empty for all, and for whoever is not an admin of all tenants.
    pub to: Vec<String>,
    /// What an operation costs; it stands elsewhere in the settings.
    #[serde(skip)]
    pub savings: Savings,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            name: String::new(),
            when: When::Blocks,
            guard: None,
            reason: None,
            tenant: None,
            subject: None,
            per: Vec::new(),
            count: 20,
            window: Span::from_seconds(300),
            share: 30.0,
            at: None,
            limit: 0.0,
            unit: Counted::Credits,
            period: Period::Month,
            time_zone: Zone::UTC,
            factor: 2.0,
            at_least: 100.0,
            cooldown: Span::from_seconds(900),
            severity: None,
            to: Vec::new(),
            savings: Savings::default(),
        }
    }
}

/// What is watched for when the settings name a target and no rule.
pub fn default_rules() -> Vec<Rule> {
    [When::CircuitTrip, When::Blocks, When::Budget, When::Fallback]
        .into_iter()
        .map(|when| Rule { name: when.code().to_owned(), when, ..Rule::default() })
        .collect()
}

impl Rule {
    /// Whether the values make sense; else the key and what is wrong with it.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let is_name_char = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.len() > MAX_NAME_CHARS || !self.name.chars().all(is_name_char) {
            return Err(InvalidSetting::new("name", format!("must be 1 to {MAX_NAME_CHARS} letters, digits, - _ or .")));
        }
        if let Some(guard) = &self.guard
            && GuardName::from_code(guard).is_none()
        {
            return Err(InvalidSetting::new("guard", format!("`{guard}` is no guard; docs/reasons.md lists them")));
        }
        if let Some(reason) = &self.reason
            && Reason::from_code(reason).is_none()
        {
            return Err(InvalidSetting::new("reason", format!("`{reason}` is no reason; docs/reasons.md lists them")));
        }
        if !(1..=MOST_COUNTED).contains(&self.count) {
            return Err(InvalidSetting::new("count", format!("must be from 1 to {MOST_COUNTED}, is {}", self.count)));
        }
        if self.window == Span::ZERO {
            return Err(InvalidSetting::new("window", "must be longer than nothing"));
        }
        if !(self.share > 0.0 && self.share < 100.0) {
            return Err(InvalidSetting::new("share", format!("must be a percentage between 0 and 100, is {}", self.share)));
        }
        let is_amount = |amount: f64| amount.is_finite() && (0.0..=1e15).contains(&amount);
        if !is_amount(self.limit) || self.when == When::Consumption && self.limit <= 0.0 {
            return Err(InvalidSetting::new("limit", "must be more than 0: what may be used in the period"));
        }
        if !(self.factor > 1.0 && self.factor <= 1000.0) {
            return Err(InvalidSetting::new("factor", format!("must be more than 1 and at most 1000, is {}", self.factor)));
        }
        if !is_amount(self.at_least) {
            return Err(InvalidSetting::new("at_least", format!("must be 0 or more, is {}", self.at_least)));
        }
        let at = self.thresholds();
        if at.is_empty() || at.len() > MOST_THRESHOLDS || !at.is_sorted_by(|low, high| low < high) || at[0] == 0 {
            return Err(InvalidSetting::new("at", format!("must be 1 to {MOST_THRESHOLDS} percentages that go up, like {AT_BUDGET:?}")));
        }
        Ok(())
    }

    /// The percentages that are told.
    pub fn thresholds(&self) -> &[u8] {
        let usual = if self.when == When::Consumption { &AT_CONSUMPTION } else { &AT_BUDGET };
        self.at.as_deref().unwrap_or(usual)
    }

    /// What a saved state depends on: with other values it means something else.
    pub fn fingerprint(&self) -> String {
        // What was set, not what suits: a count outlives another default.
        let at = Some(self.at.clone().unwrap_or_else(|| AT_BUDGET.to_vec()));
        let meaning = Self { at, to: Vec::new(), severity: None, cooldown: Span::ZERO, ..self.clone() };
        serde_json::to_string(&meaning).unwrap_or_default()
    }
}
