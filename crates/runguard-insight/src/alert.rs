//! Which rows of the log are worth telling somebody about.
//!
//! A rule looks at one row at a time and keeps a small state; what it says depends on the rows alone, and its clock is theirs.
//! So a rule that is stopped after any row and goes on from its saved state says what it would have said anyway, and
//! whoever saves the state together with the alerts neither loses one nor tells it twice.
//!
//! Every alert is a *latch*: it fires once, is silent while it lasts, and is resolved when it is over. After it has fired it
//! does not fire again within the cool-down, however often the trouble comes and goes; trouble that outlasts the cool-down
//! is told at the next row that shows it.

use crate::insight::digest::Savings;
use runguard_core::calendar::{Period, Zone};
use runguard_core::limits::InvalidSetting;
use runguard_core::notice::{AlertState, Severity};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::{Kind, Outcome, RowRef};
use runguard_core::shown::one_line;
use runguard_core::text::cut;
use runguard_core::time::{Span, Timestamp};
use runguard_guards::guard::GuardEntry;
use runguard_guards::logged::{self, Account, Failing, Nearest, Shows, Turned};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use xxhash_rust::xxh3::xxh3_128;

/// Things one rule keeps an eye on. Beyond it the one that was quiet the longest is forgotten; while all of them are in
/// their cool-down, others are not looked at.
const MOST_ENTRIES: usize = 1000;
/// The most blocks a rule can count up to: their times are kept.
const MOST_COUNTED: u32 = 1000;
/// A window of a rate is counted in this many parts.
const PARTS: i64 = 20;
const MOST_THRESHOLDS: usize = 10;
const MAX_NAME_CHARS: usize = 64;
/// Days before today that a spike is compared with, and how many of them must be known.
const SPIKE_DAYS: usize = 7;
const SPIKE_KNOWN_DAYS: i64 = 3;
const DAY_MILLIS: i64 = 86_400_000;
/// Of a name that callers give, in an alert.
const MAX_SHOWN_CHARS: usize = 80;

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

    const fn code(self) -> &'static str {
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
    /// Names of targets; empty for all.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    pub rule: String,
    /// The same for everything that is told of one trouble, and of nothing else. Contains no text of users.
    pub dedup_key: String,
    pub state: AlertState,
    pub severity: Severity,
    pub at: Timestamp,
    pub tenant: String,
    pub guard: String,
    pub reason: String,
    pub subject: String,
    pub session: String,
    /// The row that showed it.
    pub decision_id: String,
    pub title: String,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
enum Position {
    #[default]
    Off,
    /// On, but a higher threshold was told in its place.
    Passed,
    Firing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Latch {
    position: Position,
    told_at: Option<Timestamp>,
}

impl Latch {
    fn is_cooling(&self, now: Timestamp, cooldown: Span) -> bool {
        self.told_at.is_some_and(|told| now.still_counts(told, cooldown))
    }

    fn turn_on(&mut self, now: Timestamp, cooldown: Span) -> Option<AlertState> {
        if self.position != Position::Off || self.is_cooling(now, cooldown) {
            return None;
        }
        *self = Self { position: Position::Firing, told_at: Some(now) };
        Some(AlertState::Firing)
    }

    fn turn_off(&mut self) -> Option<AlertState> {
        let was_firing = self.position == Position::Firing;
        self.position = Position::Off;
        was_firing.then_some(AlertState::Resolved)
    }
}

/// Decisions in one part of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    number: i64,
    decisions: u32,
    blocked: u32,
}

/// What was used in a day, or in another period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Used {
    /// When it is over.
    ends: Timestamp,
    operations: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    touched: Timestamp,
    /// One; for a budget one a threshold.
    latches: Vec<Latch>,
    is_open: bool,
    /// The newest blocks.
    times: VecDeque<Timestamp>,
    parts: VecDeque<Part>,
    /// The newest periods, oldest first.
    used: VecDeque<Used>,
    tenant: String,
    guard: String,
    reason: String,
    subject: String,
    session: String,
    title: String,
}

impl Entry {
    fn latch(&mut self) -> &mut Latch {
        if self.latches.is_empty() {
            self.latches.push(Latch::default());
        }
        &mut self.latches[0]
    }

    fn is_firing(&self) -> bool {
        self.latches.iter().any(|latch| latch.position == Position::Firing)
    }

    /// The reason, the guard, the subject and the tenant, as far as the rule counts by them.
    fn whose(&self) -> String {
        let named = [("", &self.reason), ("by ", &self.guard), ("of '", &self.subject), ("for ", &self.tenant)];
        let parts: Vec<String> = named
            .iter()
            .filter(|(_, name)| !name.is_empty())
            .map(|(before, name)| format!("{before}{}{}", shown(name), if before.ends_with('\'') { "'" } else { "" }))
            .collect();
        if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
    }

    fn is_cooling(&self, now: Timestamp, cooldown: Span) -> bool {
        self.latches.iter().any(|latch| latch.is_cooling(now, cooldown))
    }
}

/// What a rule remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    entries: BTreeMap<String, Entry>,
    sweep_at: Option<Timestamp>,
}

/// Trouble that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    pub dedup_key: String,
    pub tenant: String,
    pub title: String,
    pub since: Timestamp,
}

impl State {
    pub fn firing(&self) -> impl Iterator<Item = Firing> {
        self.entries.iter().filter(|(_, entry)| entry.is_firing()).map(|(key, entry)| Firing {
            dedup_key: key.clone(),
            tenant: entry.tenant.clone(),
            title: entry.title.clone(),
            since: entry
                .latches
                .iter()
                .filter(|latch| latch.position == Position::Firing)
                .filter_map(|latch| latch.told_at)
                .max()
                .unwrap_or_default(),
        })
    }

    /// Forgets sessions of a tenant; whether anything was known of them.
    pub fn forget(&mut self, tenant: &str, is_gone: impl Fn(&str) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.session.is_empty() || entry.tenant != tenant || !is_gone(&entry.session));
        self.entries.len() < before
    }

    /// The entry of a key, made if there is room for it.
    fn entry(&mut self, key: &str, now: Timestamp, cooldown: Span) -> Option<&mut Entry> {
        if !self.entries.contains_key(key) && self.entries.len() >= MOST_ENTRIES {
            let idle = self.entries.iter().filter(|(_, entry)| !entry.is_cooling(now, cooldown));
            let forgotten = idle.min_by_key(|(_, entry)| (entry.is_firing(), entry.touched)).map(|(key, _)| key.clone())?;
            self.entries.remove(&forgotten);
        }
        let entry = self.entries.entry(key.to_owned()).or_default();
        entry.touched = now;
        Some(entry)
    }
}

/// A name as people read it: short, and without what could steer what shows it.
fn shown(name: &str) -> String {
    one_line(cut(name, MAX_SHOWN_CHARS))
}

/// One trouble of one rule.
fn dedup_key(rule: &str, parts: &[&str]) -> String {
    format!("{rule}-{:032x}", xxh3_128(parts.join("\0").as_bytes()))
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

    /// Looks at one row and at what its guard says it shows.
    pub fn judge(&self, state: &mut State, row: &RowRef<'_>, shows: &Shows<'_>) -> Vec<Alert> {
        let mut alerts = Vec::new();
        match self.when {
            When::CircuitTrip => alerts.extend(self.judge_circuit(state, row, shows)),
            When::Degrading => alerts.extend(self.judge_degrading(state, row, shows)),
            When::Budget => alerts = self.judge_budget(state, row, shows),
            When::Consumption => alerts = self.judge_consumption(state, row),
            When::Spike => alerts.extend(self.judge_spike(state, row)),
            When::Blocks | When::BlockRate | When::Fallback => {
                self.sweep(state, row, &mut alerts);
                alerts.extend(match self.when {
                    When::Blocks => self.judge_blocks(state, row),
                    When::BlockRate => self.judge_rate(state, row),
                    When::Fallback | When::CircuitTrip | When::Degrading | When::Budget | When::Consumption | When::Spike => {
                        self.judge_fallback(state, row)
                    }
                });
            }
        }
        alerts
    }

    fn concerns(&self, row: &RowRef<'_>) -> bool {
        let same = |wanted: &Option<String>, given: &str| wanted.as_deref().is_none_or(|wanted| wanted == given);
        same(&self.guard, row.guard.code())
            && same(&self.tenant, row.tenant)
            && same(&self.subject, row.subject)
            && (self.reason.is_none() || self.when == When::BlockRate || self.reason.as_deref() == row.reason_code())
    }

    fn dimensions(&self) -> &[Dimension] {
        match (self.per.as_slice(), self.when) {
            ([], When::Blocks) => &[Dimension::Tenant, Dimension::Guard, Dimension::Reason],
            ([], When::Consumption | When::Spike) => &[Dimension::Tenant],
            ([], _) => &[Dimension::Tenant, Dimension::Guard],
            (given, _) => given,
        }
    }

    fn counts_by(&self, dimension: Dimension) -> bool {
        self.dimensions().contains(&dimension)
    }

    fn group_key(&self, row: &RowRef<'_>) -> String {
        let parts: Vec<&str> = self
            .dimensions()
            .iter()
            .map(|dimension| match dimension {
                Dimension::Tenant => row.tenant,
                Dimension::Guard => row.guard.code(),
                Dimension::Reason => row.reason_code().unwrap_or_default(),
                Dimension::Subject => row.subject,
            })
            .collect();
        dedup_key(&self.name, &parts)
    }

    /// What the entry of a group is about: only what the group has in common.
    fn describe(&self, entry: &mut Entry, row: &RowRef<'_>) {
        let kept = |dimension: Dimension, text: &str| if self.counts_by(dimension) { text.to_owned() } else { String::new() };
        entry.tenant = kept(Dimension::Tenant, row.tenant);
        entry.guard = kept(Dimension::Guard, row.guard.code());
        entry.reason = kept(Dimension::Reason, row.reason_code().unwrap_or_default());
        entry.subject = kept(Dimension::Subject, row.subject);
    }

    fn severity(&self, usual: Severity) -> Severity {
        self.severity.unwrap_or(usual)
    }

    fn tell(&self, key: String, entry: &mut Entry, row: &RowRef<'_>, state: AlertState, usual: Severity, words: (String, String)) -> Alert {
        let (title, text) = words;
        if state == AlertState::Firing {
            entry.title.clone_from(&title);
        }
        Alert {
            rule: self.name.clone(),
            dedup_key: key,
            state,
            severity: self.severity(usual),
            at: row.time(),
            tenant: entry.tenant.clone(),
            guard: entry.guard.clone(),
            reason: entry.reason.clone(),
            subject: entry.subject.clone(),
            session: entry.session.clone(),
            decision_id: row.id.to_owned(),
            title,
            text,
        }
    }

    fn judge_circuit(&self, state: &mut State, row: &RowRef<'_>, shows: &Shows<'_>) -> Option<Alert> {
        if !self.concerns(row) {
            return None;
        }
        let key = dedup_key(&self.name, &[row.tenant, row.subject]);
        // Most endpoints are well: nothing is known of them. Rows of the guard that told of one say nothing new, and that it lasts.
        let is_known = || state.entries.get(&key).is_some_and(|entry| entry.guard == row.guard.to_string());
        if shows.circuit != Some(Turned::Open) && !is_known() {
            return None;
        }
        let entry = state.entry(&key, row.time(), self.cooldown)?;
        (entry.tenant, entry.guard, entry.subject) = (row.tenant.to_owned(), row.guard.to_string(), row.subject.to_owned());
        match shows.circuit {
            Some(Turned::Open) => entry.is_open = true,
            Some(Turned::Closed) => entry.is_open = false,
            None => {}
        }
        let is_open = entry.is_open;
        let turned = if is_open { entry.latch().turn_on(row.time(), self.cooldown) } else { entry.latch().turn_off() }?;
        let name = shown(row.subject);
        let (title, text) = match turned {
            AlertState::Firing => (
                format!("The circuit of '{name}' is open"),
                "Its failures reached the threshold: calls are blocked until a probe succeeds. `runguard circuits` shows where it stands."
                    .to_owned(),
            ),
            AlertState::Resolved => (format!("The circuit of '{name}' is closed again"), "Calls pass again.".to_owned()),
        };
        Some(self.tell(key, entry, row, turned, Severity::Error, (title, text)))
    }

    fn judge_degrading(&self, state: &mut State, row: &RowRef<'_>, shows: &Shows<'_>) -> Option<Alert> {
        let failing = shows.failing.filter(|_| self.concerns(row))?;
        let Failing { failures, threshold } = failing;
        let is_near = failures as f64 * 100.0 > self.share * threshold as f64;
        let key = dedup_key(&self.name, &[row.tenant, row.subject]);
        // Most endpoints are well: nothing is known of them.
        if !is_near && !state.entries.contains_key(&key) {
            return None;
        }
        let entry = state.entry(&key, row.time(), self.cooldown)?;
        (entry.tenant, entry.guard, entry.subject) = (row.tenant.to_owned(), row.guard.to_string(), row.subject.to_owned());
        let turned = if is_near { entry.latch().turn_on(row.time(), self.cooldown) } else { entry.latch().turn_off() }?;
        let name = shown(row.subject);
        let (title, text) = match turned {
            AlertState::Firing => (
                format!("'{name}' fails: {failures} of the {threshold} failures that open its circuit"),
                "Calls still pass. Look at the upstream now; `runguard circuits` shows where it stands.".to_owned(),
            ),
            AlertState::Resolved => {
                (format!("'{name}' fails less: {failures} of {threshold} failures"), "Its circuit is not about to open.".to_owned())
            }
        };
        Some(self.tell(key, entry, row, turned, Severity::Warning, (title, text)))
    }

    /// The group a row counts in, by its key, with what the row says of it.
    fn group_of<'a>(&self, state: &'a mut State, row: &RowRef<'_>) -> Option<(String, &'a mut Entry)> {
        let key = self.group_key(row);
        let entry = state.entry(&key, row.time(), self.cooldown)?;
        self.describe(entry, row);
        Some((key, entry))
    }

    fn judge_blocks(&self, state: &mut State, row: &RowRef<'_>) -> Option<Alert> {
        if row.outcome != Outcome::Blocked || !self.concerns(row) {
            return None;
        }
        let (key, entry) = self.group_of(state, row)?;
        entry.times.push_back(row.time());
        while entry.times.len() > self.count as usize {
            entry.times.pop_front();
        }
        let counted = entry.times.iter().filter(|at| row.time().still_counts(**at, self.window)).count();
        if counted < self.count as usize {
            return None;
        }
        let turned = entry.latch().turn_on(row.time(), self.cooldown)?;
        let title = format!("{counted} blocks within {}{}", self.window, entry.whose());
        let text = format!("The latest: {} blocked '{}' ({}).", row.guard, shown(row.subject), row.reason_code().unwrap_or("no reason"));
        Some(self.tell(key, entry, row, turned, Severity::Warning, (title, text)))
    }

    fn judge_rate(&self, state: &mut State, row: &RowRef<'_>) -> Option<Alert> {
        if row.kind != Kind::Check || !self.concerns(row) {
            return None;
        }
        let (key, entry) = self.group_of(state, row)?;
        entry.times.clear();
        entry.times.push_back(row.time());
        let length = (self.window.as_millis() as i64 / PARTS).max(1);
        // A clock that goes back counts into the newest part.
        let number = entry.parts.back().map_or(i64::MIN, |part| part.number).max(row.at.div_euclid(length));
        if entry.parts.back().is_none_or(|part| part.number != number) {
            entry.parts.push_back(Part { number, decisions: 0, blocked: 0 });
        }
        entry.parts.retain(|part| number - part.number < PARTS);
        if let Some(part) = entry.parts.back_mut() {
            part.decisions += 1;
            let is_counted = row.outcome == Outcome::Blocked && (self.reason.is_none() || self.reason.as_deref() == row.reason_code());
            part.blocked += u32::from(is_counted);
        }
        let decisions: u32 = entry.parts.iter().map(|part| part.decisions).sum();
        let blocked: u32 = entry.parts.iter().map(|part| part.blocked).sum();
        if decisions < self.count {
            return None;
        }
        let share = f64::from(blocked) * 100.0 / f64::from(decisions);
        let turned = if share > self.share { entry.latch().turn_on(row.time(), self.cooldown) } else { entry.latch().turn_off() }?;
        let whose = entry.whose();
        let title = match turned {
            AlertState::Firing => format!("{share:.0} % of decisions are blocks{whose}"),
            AlertState::Resolved => format!("Blocks are back at {share:.0} % of decisions{whose}"),
        };
        let text = format!("{blocked} of {decisions} decisions within {} (limit {} %).", self.window, self.share);
        Some(self.tell(key, entry, row, turned, Severity::Warning, (title, text)))
    }

    fn judge_fallback(&self, state: &mut State, row: &RowRef<'_>) -> Option<Alert> {
        if !self.concerns(row) || !logged::is_degraded(row) {
            return None;
        }
        let (key, entry) = self.group_of(state, row)?;
        entry.times.clear();
        entry.times.push_back(row.time());
        let turned = entry.latch().turn_on(row.time(), self.cooldown)?;
        let title = format!("Answers are degraded{}", entry.whose());
        let text = "Decisions are made without what they usually rest on, or come from a fallback.".to_owned();
        Some(self.tell(key, entry, row, turned, Severity::Error, (title, text)))
    }

    /// Resolves what has been quiet for a window.
    fn sweep(&self, state: &mut State, row: &RowRef<'_>, alerts: &mut Vec<Alert>) {
        if state.sweep_at.is_some_and(|at| row.time() < at) {
            return;
        }
        let pause = Span::from_millis((self.window.as_millis() / 10).max(1));
        state.sweep_at = Some(row.time().plus(pause));
        for (key, entry) in &mut state.entries {
            let is_quiet = entry.times.back().is_none_or(|newest| !row.time().still_counts(*newest, self.window));
            if is_quiet && let Some(turned) = entry.latch().turn_off() {
                let what = if self.when == When::Fallback { "Answers are whole again" } else { "Quiet again" };
                let title = format!("{what}{}", entry.whose());
                let text = format!("Nothing of it within {}.", self.window);
                let usual = if self.when == When::Fallback { Severity::Error } else { Severity::Warning };
                alerts.push(self.tell(key.clone(), entry, row, turned, usual, (title, text)));
            }
        }
    }

    /// Operations that a row lets pass; nothing if none is billed.
    fn operations(&self, row: &RowRef<'_>) -> Option<u64> {
        let guard = row.guard.known().filter(|guard| GuardEntry::of(*guard).billed.is_some())?;
        let is_done = row.kind == Kind::Check && matches!(row.outcome.answered(), Some(Outcome::Allowed | Outcome::WouldBlock));
        (is_done && self.concerns(row)).then(|| u64::from(self.savings.operations_of(guard)))
    }

    fn amount(&self, operations: u64) -> f64 {
        match self.unit {
            Counted::Credits => self.savings.credits(operations),
            Counted::Operations => operations as f64,
        }
    }

    /// Counts a row into the period it is in. A clock that goes back counts into the newest.
    fn count_used(&self, entry: &mut Entry, period: Period, operations: u64, now: Timestamp, keep: usize) {
        match entry.used.back_mut().filter(|newest| now < newest.ends) {
            Some(newest) => newest.operations = newest.operations.saturating_add(operations),
            None => entry.used.push_back(Used { ends: self.time_zone.end_of(period, now), operations }),
        }
        while entry.used.len() > keep {
            entry.used.pop_front();
        }
    }

    fn judge_consumption(&self, state: &mut State, row: &RowRef<'_>) -> Vec<Alert> {
        let Some(operations) = self.operations(row) else { return Vec::new() };
        let Some((group, entry)) = self.group_of(state, row) else { return Vec::new() };
        let before = entry.used.back().map(|used| used.ends);
        self.count_used(entry, self.period, operations, row.time(), 1);
        let Some(used) = entry.used.back().copied() else { return Vec::new() };
        entry.latches.resize(self.thresholds().len(), Latch::default());
        let (unit, period) = (self.unit.code(), self.period);
        // Each period is another trouble, and each percentage.
        let key_of =
            |ends: Timestamp, threshold: u8| dedup_key(&self.name, &[&group, &ends.as_millis().to_string(), &threshold.to_string()]);
        let usual = |threshold: u8| if threshold >= 100 { Severity::Error } else { Severity::Warning };
        let mut alerts = Vec::new();
        if let Some(ended) = before.filter(|before| *before != used.ends) {
            for (number, threshold) in self.thresholds().iter().enumerate() {
                let latch = std::mem::take(&mut entry.latches[number]);
                if latch.position == Position::Firing {
                    let title = format!("A new {period} has begun for the {unit}{}", entry.whose());
                    let text = format!("{threshold} % of them were used in the one before.");
                    alerts.push(self.tell(key_of(ended, *threshold), entry, row, AlertState::Resolved, usual(*threshold), (title, text)));
                }
            }
        }
        let amount = self.amount(used.operations);
        let percent = amount * 100.0 / self.limit;
        let Some(number) = self.thresholds().iter().rposition(|threshold| percent >= f64::from(*threshold)) else { return alerts };
        for passed in &mut entry.latches[..number] {
            if passed.position == Position::Off {
                passed.position = Position::Passed;
            }
        }
        if entry.latches[number].position == Position::Off {
            entry.latches[number] = Latch { position: Position::Firing, told_at: Some(row.time()) };
            let threshold = self.thresholds()[number];
            let title = format!("{threshold} % of the {unit} for the {period} are used{}", entry.whose());
            let text = format!("{amount:.0} of {:.0} {unit}. `runguard consumption` shows which bots and steps used them.", self.limit);
            alerts.push(self.tell(key_of(used.ends, threshold), entry, row, AlertState::Firing, usual(threshold), (title, text)));
        }
        alerts
    }

    fn judge_spike(&self, state: &mut State, row: &RowRef<'_>) -> Option<Alert> {
        let operations = self.operations(row)?;
        let (key, entry) = self.group_of(state, row)?;
        self.count_used(entry, Period::Day, operations, row.time(), SPIKE_DAYS + 1);
        let today = entry.used.back().copied()?;
        let days_ago = |used: &Used| (today.ends.millis_since(used.ends) + DAY_MILLIS / 2) / DAY_MILLIS;
        let earlier = || entry.used.iter().filter(|used| (1..=SPIKE_DAYS as i64).contains(&days_ago(used)));
        // A day without a step counts as one, from the first that was seen on.
        let known_days = earlier().map(days_ago).max().unwrap_or(0);
        let mean = earlier().map(|used| self.amount(used.operations)).sum::<f64>() / known_days.max(1) as f64;
        let same_day = earlier().find(|used| days_ago(used) == SPIKE_DAYS as i64).map_or(0.0, |used| self.amount(used.operations));
        let usual_amount = mean.max(same_day);
        let amount = self.amount(today.operations);
        let is_spike = known_days >= SPIKE_KNOWN_DAYS && amount >= self.at_least && amount > usual_amount * self.factor;
        let turned = if is_spike { entry.latch().turn_on(row.time(), self.cooldown) } else { entry.latch().turn_off() }?;
        let (unit, whose) = (self.unit.code(), entry.whose());
        let (title, text) = match turned {
            AlertState::Firing => (
                format!("{amount:.0} {unit} are used today, usually {usual_amount:.0}{whose}"),
                format!(
                    "An average day of the last {known_days} had {mean:.0}, the same day of last week {same_day:.0}. The latest step: {} of '{}'. `runguard consumption` shows the steps, `runguard insights` which guards fired.",
                    row.guard,
                    shown(row.subject)
                ),
            ),
            AlertState::Resolved => {
                (format!("{unit} are as usual again{whose}"), format!("{amount:.0} {unit} today, usually {usual_amount:.0}."))
            }
        };
        Some(self.tell(key, entry, row, turned, Severity::Warning, (title, text)))
    }

    fn judge_budget(&self, state: &mut State, row: &RowRef<'_>, shows: &Shows<'_>) -> Vec<Alert> {
        let Some(spending) = shows.spending.as_ref().filter(|_| row.kind == Kind::Check && self.concerns(row)) else { return Vec::new() };
        let of = |spent: f64, limit: f64| if limit > 0.0 { spent * 100.0 / limit } else { 0.0 };
        let dollars =
            spending.spent_usd.zip(spending.limit_usd).map(|(spent, limit)| (of(spent, limit), format!("${spent:.2} of ${limit:.2}")));
        let tokens = spending
            .spent_tokens
            .zip(spending.limit_tokens)
            .map(|(spent, limit)| (of(spent as f64, limit as f64), format!("{spent} of {limit} tokens")));
        // A budget that refuses is used up, whatever small rest is left in it.
        let is_refused = row.outcome == Outcome::Blocked && row.gives(Reason::BudgetExceeded);
        let told = dollars.into_iter().chain(tokens).max_by(|left, right| left.0.total_cmp(&right.0));
        // A refusal may speak of the parent's budget or a scope's: then it is that one that is used up.
        let owner = match &spending.account {
            Account::Parent(Some(parent)) => parent,
            Account::Scope(scope) => scope.as_str(),
            Account::Own | Account::Parent(None) => row.session,
        };
        let mut alerts = Vec::new();
        if let Some((percent, amounts)) = told {
            let percent = if is_refused { percent.max(100.0) } else { percent };
            let text = if is_refused { format!("{amounts} is spent, and requests are blocked.") } else { format!("{amounts} is spent.") };
            alerts.extend(self.judge_spent(state, row, owner, spending.renews_in_seconds, percent, &text));
        }
        for Nearest { scope, percent, renews_in_seconds } in &spending.nearest {
            let text = format!("{percent:.0} % of what many sessions share is spent.");
            alerts.extend(self.judge_spent(state, row, scope, *renews_in_seconds, *percent, &text));
        }
        alerts
    }

    /// How much of one budget is spent: its own latches for each owner and each period.
    fn judge_spent(&self, state: &mut State, row: &RowRef<'_>, owner: &str, renews: Option<i64>, percent: f64, text: &str) -> Vec<Alert> {
        // Each period is used up anew.
        let ends = renews.map(|seconds| (row.at.div_euclid(1000) + seconds).to_string());
        let key = match &ends {
            None => dedup_key(&self.name, &[row.tenant, owner, row.subject]),
            Some(ends) => dedup_key(&self.name, &[row.tenant, owner, row.subject, ends]),
        };
        if !state.entries.contains_key(&key) && percent < f64::from(self.thresholds()[0]) {
            return Vec::new();
        }
        let Some(entry) = state.entry(&key, row.time(), self.cooldown) else { return Vec::new() };
        (entry.tenant, entry.guard) = (row.tenant.to_owned(), row.guard.to_string());
        (entry.subject, entry.session) = (row.subject.to_owned(), owner.to_owned());
        entry.latches.resize(self.thresholds().len(), Latch::default());
        let mut alerts = Vec::new();
        let name = format!("'{}' of '{}'", shown(row.subject), shown(owner));
        let mut is_highest = true;
        for (number, threshold) in self.thresholds().iter().enumerate().rev() {
            let latch = &mut entry.latches[number];
            let turned = if percent < f64::from(*threshold) {
                latch.turn_off()
            } else if is_highest {
                is_highest = false;
                latch.turn_on(row.time(), self.cooldown)
            } else {
                if latch.position == Position::Off {
                    latch.position = Position::Passed;
                }
                None
            };
            let usual = match threshold {
                0..80 => Severity::Info,
                80..95 => Severity::Warning,
                95..100 => Severity::Error,
                100.. => Severity::Critical,
            };
            let title = match turned {
                Some(AlertState::Firing) => format!("Budget {name} has reached {threshold} %"),
                Some(AlertState::Resolved) => format!("Budget {name} is below {threshold} % again"),
                None => continue,
            };
            if let Some(turned) = turned {
                alerts.push(self.tell(format!("{key}-{threshold}"), entry, row, turned, usual, (title, text.to_owned())));
            }
        }
        alerts
    }
}

#[cfg(test)]
mod tests;
