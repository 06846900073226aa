//! What other settings would have done: the logged requests of a guard, decided again.
//!
//! The guards are pure, so the past can be lived through twice. Rows are read in their order, each is made a request
//! again, and that request runs through two lanes: one by the settings in force, one by the changed ones, each with states
//! of its own that begin empty. A request that was refused and would pass changes what follows, and the other way round:
//! that is the point. What was *told* (results, costs) is told again in both lanes, because it happened.
//!
//! A row does not hold all of a request: texts are cut, redacted or left out, arguments are hashes. Where the log shows
//! what a rule made of a text (a signal was missing, a form was recognised), the log's word is taken instead of the text.
//! Where nothing shows it, the row is taken as it was or by what is kept, and the answer says so, with numbers. The first
//! lane is the check on all of this: what it decides otherwise than the log does is counted and told.
//!
//! A preview may compile hundreds of patterns and read 200,000 rows, and whoever may read the log may ask for it. So it computes
//! on threads that serve nobody, one at a time for a tenant and few in all, within a time, and ends soon after the caller has
//! gone; its turn is over when the work is, and not when the caller leaves.

use crate::engine::{Engine, Outcome, family_of, label};
use crate::settings::Settings;
use runguard_core::text::{self, StoreText};
use runguard_core::{GuardName, Reason, Span, Timestamp};
use runguard_guards::Mode;
use runguard_guards::answer::Value as Fact;
use runguard_guards::guard::{
    self, Moment, Operation, action_group, agent_action, ai_task_retry, api_circuit, budget, capture_slot_fill, handoff, kb_requery,
    no_match_reprompt, run_loop, stall, tool_call,
};
use runguard_guards::input::Input;
use runguard_guards::pattern::{Pattern, Patterns};
use runguard_guards::policy::{self, Policy, Rulebook, SettingsProblem, Tree, merge, unfold};
use runguard_store::pace::Pace;
use runguard_store::{Deed, Family, Key, LogRow, Names, Order, RowFilter, StoreError};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Rows looked at in one preview; of more, the newest.
pub const MOST_ROWS: usize = 200_000;
/// Changed decisions that are shown.
const MOST_CHANGED: usize = 50;
/// Rows read at a time.
const PAGE: usize = 500;
/// Row numbers read at a time: they are small.
const NUMBERS: usize = 20_000;
/// Previews under way at a time, whosever they are.
const MOST_AT_ONCE: usize = 4;
/// Between two pieces of work.
const REST: Duration = Duration::from_micros(250);
/// The longest a preview may take.
pub const LONGEST: Duration = Duration::from_secs(30);

/// What is asked.
#[derive(Debug, Clone)]
pub struct Ask {
    pub guard: GuardName,
    /// As they would stand below `[guards.GUARD]`.
    pub settings: Tree,
    /// `None`: all tenants.
    pub tenant: Option<String>,
    pub subject: Option<String>,
    pub since: i64,
    pub until: i64,
}

#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    #[error("`{}`: {}", .0.path.join("."), .0.problem)]
    Settings(SettingsProblem),
    #[error("a preview of this tenant is under way; one at a time is made for each")]
    UnderWay,
    #[error("{MOST_AT_ONCE} previews are under way, the most at a time")]
    Busy,
    #[error("the preview took longer than {} s", LONGEST.as_secs())]
    TooLong,
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    pub allowed: u64,
    pub would_block: u64,
    pub blocked: u64,
}

impl Counts {
    fn add(&mut self, outcome: &str) {
        match outcome {
            "allowed" => self.allowed += 1,
            "would_block" => self.would_block += 1,
            "blocked" => self.blocked += 1,
            _ => {}
        }
    }
}

/// A decision that would have been another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Changed {
    pub decision_id: String,
    pub at: i64,
    pub tenant: String,
    pub session_id: String,
    pub subject: String,
    pub before: String,
    pub after: &'static str,
    /// Why it would be refused, or was.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// Decisions in the time asked for.
    pub rows: u64,
    /// Rows before it, looked at to know how things stood.
    pub warm_up_rows: u64,
    pub truncated: bool,
    pub before: Counts,
    pub after: Counts,
    pub changed_total: u64,
    /// The newest of them.
    pub changed: Vec<Changed>,
    pub inexact: Vec<String>,
}

/// Who has a preview under way. `None` asks for all tenants.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<HashSet<Option<String>>>>);

impl Turns {
    fn take(&self, tenant: Option<&str>) -> Result<Arc<Turn>, PreviewError> {
        let tenant = tenant.map(str::to_owned);
        let mut taken = self.lock();
        if taken.contains(&tenant) {
            return Err(PreviewError::UnderWay);
        }
        if taken.len() >= MOST_AT_ONCE {
            return Err(PreviewError::Busy);
        }
        taken.insert(tenant.clone());
        Ok(Arc::new(Turn { tenant, turns: self.clone() }))
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Option<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends when the last of those who work in it has let it go.
#[derive(Debug)]
struct Turn {
    tenant: Option<String>,
    turns: Turns,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.tenant);
    }
}

/// Tells the threads that work for a caller that it has gone.
#[derive(Debug, Default)]
struct Waiting {
    given_up: Arc<AtomicBool>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}

/// Decides the logged requests again.
pub async fn preview(engine: &Engine, ask: Ask) -> Result<Report, PreviewError> {
    preview_within(engine, ask, LONGEST).await
}

/// The same within another time.
pub async fn preview_within(engine: &Engine, mut ask: Ask, longest: Duration) -> Result<Report, PreviewError> {
    ask.settings = unfold(&ask.settings).map_err(PreviewError::Settings)?;
    let turn = engine.previews.take(ask.tenant.as_deref())?;
    tokio::time::timeout(longest, replay(engine, ask, turn)).await.unwrap_or(Err(PreviewError::TooLong))
}

async fn replay(engine: &Engine, ask: Ask, turn: Arc<Turn>) -> Result<Report, PreviewError> {
    let waiting = Waiting::default();
    let (settings, given_up) = (engine.settings.load_full(), waiting.given_up.clone());
    let mut replay = aside(&turn, move || Replay::new(settings, ask, given_up)).await??;
    let store = &engine.store;
    replay.lanes.iter_mut().for_each(|lane| lane.names = store.names());
    let filter = replay.filter();
    let mut newest: Option<u64> = None;
    let mut oldest: Option<u64> = None;
    let mut found = 0;
    while found < MOST_ROWS + 1 {
        let numbers = store.row_numbers(filter.clone(), Order::NewestFirst, oldest, NUMBERS.min(MOST_ROWS + 1 - found)).await?;
        found += numbers.len();
        newest = newest.or(numbers.first().copied());
        match numbers.last() {
            Some(last) => oldest = Some(*last),
            None => break,
        }
    }
    replay.report.truncated = found > MOST_ROWS;
    // The row that tells that there are more is not looked at; without one, the search begins before the oldest.
    let mut after = if replay.report.truncated { oldest } else { oldest.map(|seq| seq.saturating_sub(1)) };
    while let (Some(from), Some(last)) = (after, newest) {
        let mut deeds = store.deeds(filter.clone(), Order::OldestFirst, Some(from), PAGE).await?;
        for deed in &mut deeds {
            deed.effects.retain(|effect| effect.key.family != Family::Idempotency && !effect.events.is_empty());
        }
        after = deeds.last().map(|deed| deed.row.seq).filter(|seq| *seq < last);
        let given_up = waiting.given_up.clone();
        replay = aside(&turn, move || {
            let mut pace = Pace::new(REST);
            for deed in deeds.iter().filter(|deed| deed.row.seq <= last) {
                if given_up.load(Ordering::Relaxed) {
                    break;
                }
                replay.look_at(deed);
                pace.step();
            }
            replay
        })
        .await?;
    }
    Ok(replay.finish())
}

/// Works on a thread that serves nobody. The turn lasts as long as the work, also when nobody waits for it any more.
async fn aside<T: Send + 'static>(turn: &Arc<Turn>, work: impl FnOnce() -> T + Send + 'static) -> Result<T, PreviewError> {
    let turn = turn.clone();
    let work = move || {
        let done = work();
        drop(turn);
        done
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| StoreError::Read(error.to_string()).into())
}

/// What the policy makes of a text is read from the log: instead of patterns there are words that say it.
const SIGNAL: &str = "signal";
const SPOKEN: &str = "spoken";
const NOTHING: &str = "";
/// Where a guard's settings have patterns.
const PATTERN_KEYS: [&str; 2] = ["patterns", "entities"];

/// The policies of one tenant, in force and changed.
struct Rules {
    /// By texts as they are kept.
    plain: [Arc<Policy>; 2],
    /// By what the log says of texts.
    by_word: [Arc<Policy>; 2],
}

impl Rules {
    fn build(settings: &Settings, tenant: &str, guard: GuardName, change: &Tree, patterns: &mut Patterns) -> Result<Self, SettingsProblem> {
        let policy = settings.policies.for_tenant(tenant);
        let in_force = settings.guard_tree(tenant);
        let change = Tree::from_iter([(guard.code().to_owned(), Value::Object(change.clone()))]);
        let plain = [policy.clone(), Arc::new(policy.overridden(&in_force, &change, &[], patterns)?)];
        let mut sections = policy::sections().into_iter().filter(|section| section.guard == guard);
        if !sections.any(|section| PATTERN_KEYS.iter().any(|key| section.defaults.contains_key(*key))) {
            return Ok(Self { by_word: plain.clone(), plain });
        }
        let mut by_word = |guards: Tree| policy.overridden(&Tree::new(), &worded(guards, guard), &[], patterns).map(Arc::new);
        let mut changed = in_force.clone();
        merge(&mut changed, &change);
        Ok(Self { by_word: [by_word(in_force)?, by_word(changed)?], plain })
    }
}

/// What the tree says of a guard, with every pattern replaced by a word, the built-in ones too.
fn worded(mut guards: Tree, guard: GuardName) -> Tree {
    guards.retain(|name, _| name == guard.code());
    for section in policy::sections().iter().filter(|section| section.guard == guard) {
        for key in PATTERN_KEYS {
            if let Some(built_in) = section.defaults.get(key) {
                let mut with_defaults = Tree::from_iter([(guard.code().to_owned(), json!({ key: built_in }))]);
                merge(&mut with_defaults, &guards);
                guards = with_defaults;
            }
        }
    }
    if let Some(Value::Object(table)) = guards.get_mut(guard.code()) {
        put_words(table);
    }
    guards
}

fn put_words(table: &mut Tree) {
    if let Some(Value::Object(patterns)) = table.get_mut("patterns") {
        for pattern in patterns.values_mut().filter(|pattern| pattern.as_str() != Some("")) {
            *pattern = format!("^{SIGNAL}$").into();
        }
    }
    if let Some(Value::Object(entities)) = table.get_mut("entities") {
        for entity in entities.values_mut() {
            entity["machine"] = format!("^{SIGNAL}$").into();
            entity["colloquial"] = format!("^{SPOKEN}$").into();
        }
    }
    for subjects in ["tasks", "steps"] {
        if let Some(Value::Object(subjects)) = table.get_mut(subjects) {
            subjects.values_mut().filter_map(Value::as_object_mut).for_each(put_words);
        }
    }
}

/// Whether the change touches what texts are compared with.
fn changes_patterns(change: &Tree) -> bool {
    change.iter().any(|(key, value)| key == "patterns" || key == "entities" || value.as_object().is_some_and(changes_patterns))
}

/// Which policy a request is decided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Text,
    Word,
}

/// What the log knows of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// What the rule made of it.
    Finding,
    /// A pattern is there, and what it found is not told.
    Nothing,
    /// No pattern is there.
    NotAsked,
}

impl Known {
    fn of<S>(rulebook: &Rulebook<S>, pattern: Option<&Pattern>, reason: Reason) -> Self {
        match pattern.filter(|pattern| pattern.is_set()) {
            Some(_) if rulebook.mode_of(reason) == Mode::Off => Self::Nothing,
            Some(_) => Self::Finding,
            None => Self::NotAsked,
        }
    }
}

/// A request made again from its row.
struct Again {
    operation: Box<dyn Operation>,
    reading: Reading,
}

impl Again {
    fn of(operation: Box<dyn Operation>) -> Self {
        Self { operation, reading: Reading::Text }
    }
}

/// What keeps a replay from being exact. The order is the order of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    Unexplained,
    WarmUpCut,
    TextCut,
    TopicByLog,
    CallUnknown,
    LimitUnlike,
    OwnThresholds,
    MayNotCount,
    BudgetAsked,
    BudgetKey,
    BudgetTokens,
    NoEvents,
    NeverRan,
    RanAnyway,
}

impl Doubt {
    fn says(self, count: u64) -> String {
        let what = match self {
            Self::Unexplained => {
                "logged answers do not follow from the settings in force: these were changed in between, or rows are missing"
            }
            Self::WarmUpCut => "rows were all that could be looked at: how things stood before the oldest of them is not known",
            Self::TextCut => "requests were compared with a changed pattern by the text that is kept, which is cut, redacted or missing",
            Self::TopicByLog => "knowledge-base queries are kept without their whole text: the topic the log names for them is taken",
            Self::CallUnknown => "refused requests are kept without their arguments: they stay refused",
            Self::LimitUnlike => {
                "tool calls refused by their limit are kept without their arguments: they count as calls unlike any before"
            }
            Self::OwnThresholds => {
                "calls came with thresholds of their own: these are kept, also where only earlier calls of the run tell them"
            }
            Self::MayNotCount => "refused calls would pass and are counted: whether they only asked is not kept",
            Self::BudgetAsked => "refused budget requests are kept without what they asked for: they stay refused",
            Self::BudgetKey => "budget checks and reservations are kept without their key: the cap is not looked at for them",
            Self::BudgetTokens => "budget requests are kept without the tokens they asked for: only dollars are looked at for them",
            Self::NoEvents => "requests left nothing behind to decide them by (the guard was off): they are taken as they were",
            Self::NeverRan => "requests would have passed that were refused: what they would have led to is not known",
            Self::RanAnyway => "requests would have been refused that passed: what was told of them afterwards is applied all the same",
        };
        format!("{what} ({count})")
    }
}

#[derive(Debug, PartialEq, Eq, Hash, Clone)]
struct StateName {
    key: Key,
    slot: u8,
    label: String,
}

/// One way the past could have gone.
#[derive(Default)]
struct Lane {
    names: Names,
    states: HashMap<StateName, Vec<u8>>,
    /// The permits this lane's checks gave, by decision.
    permits: HashMap<String, String>,
}

struct Ended {
    outcome: &'static str,
    reason: Option<Reason>,
}

impl Lane {
    fn run(&mut self, tenant: &str, operation: &dyn Operation, policy: &Policy, row: &LogRow) -> Ended {
        let now = Timestamp::from_millis(row.at);
        let places = operation.places_by(policy);
        let names: Vec<StateName> = places
            .iter()
            .map(|place| StateName {
                key: self.names.key(family_of(place.scope), tenant, place.name),
                slot: place.slot.number,
                label: label(tenant, place, StoreText::Full).into_owned(),
            })
            .collect();
        let states: Vec<Option<&[u8]>> = names.iter().map(|name| self.states.get(name).map(Vec::as_slice)).collect();
        let moment = Moment { now, decision_id: &row.id, store_text: StoreText::Full };
        let outcome = operation.run(policy, &states, moment);
        for change in outcome.changes {
            self.states.insert(names[change.place].clone(), change.state);
        }
        if let Some(Fact::Text(permit)) = outcome.answer.facts.get("permit_id") {
            self.permits.insert(row.id.clone(), permit.to_string());
        }
        Ended { outcome: Outcome::of(&outcome.answer).code(), reason: outcome.answer.reason }
    }

    /// What happened, happens again.
    fn repeat(&mut self, deed: &Deed) {
        for effect in &deed.effects {
            let name = StateName { key: effect.key, slot: effect.slot, label: effect.label.clone() };
            let before = self.states.get(&name).map(Vec::as_slice);
            if let Some(state) = guard::replay(effect.slot, before, &effect.events, Timestamp::from_millis(deed.row.at)) {
                self.states.insert(name, state);
            }
        }
    }

    fn control(&mut self, row: &LogRow) {
        let control = match row.outcome.as_str() {
            "circuit_forced_open" => api_circuit::Control::Open,
            "circuit_forced_closed" => api_circuit::Control::Close,
            "circuit_reset" => api_circuit::Control::Reset,
            _ => return,
        };
        let place = api_circuit::endpoint_place(&row.subject);
        let name = StateName {
            key: self.names.key(Family::Endpoint, &row.tenant, place.name),
            slot: place.slot.number,
            label: label(&row.tenant, &place, StoreText::Full).into_owned(),
        };
        let change = api_circuit::control(self.states.get(&name).map(Vec::as_slice), control, Timestamp::from_millis(row.at));
        self.states.insert(name, change.state);
    }
}

/// Thresholds that a caller of the loop guard brings along.
type OwnThresholds = [Option<u64>; 4];

struct Replay {
    settings: Arc<Settings>,
    ask: Ask,
    patterns: Patterns,
    rules: HashMap<String, Rules>,
    changes_patterns: bool,
    warm_up: Option<Span>,
    lanes: [Lane; 2],
    /// Of the loop guard, by tenant and session.
    own_thresholds: HashMap<(String, String), OwnThresholds>,
    reservations: BTreeMap<u64, String>,
    doubts: BTreeMap<Doubt, u64>,
    report: Report,
    changed: std::collections::VecDeque<Changed>,
}

type MakeAgain = fn(&mut Replay, &Deed, &Value, &Value) -> Option<Again>;

/// Guards of whose rows the request can be made again.
const MADE_AGAIN: [(GuardName, MakeAgain); 12] = [
    (GuardName::AiTaskRetry, Replay::task_again),
    (GuardName::NoMatchReprompt, Replay::reprompt_again),
    (GuardName::CaptureSlotFill, |replay, deed, input, answer| Some(replay.capture_again(deed, input, answer))),
    (GuardName::Handoff, |_, deed, input, _| Some(Replay::handoff_again(deed, input))),
    (GuardName::KbRequery, |replay, deed, input, answer| Some(Again::of(replay.kb_again(&deed.row, input, answer)))),
    (GuardName::AgentAction, |_, deed, input, _| Some(Again::of(Replay::action_again(deed, input)))),
    (GuardName::ApiCircuit, |_, deed, input, _| Some(Replay::circuit_again(deed, input))),
    (GuardName::Loop, |replay, deed, input, _| replay.loop_again(deed, input)),
    (GuardName::Stall, Replay::stall_again),
    (GuardName::Budget, |replay, deed, input, answer| replay.budget_again(deed, input, answer).map(Again::of)),
    (GuardName::ToolCall, |replay, deed, input, _| replay.tool_again(deed, input).map(Again::of)),
    (GuardName::ActionGroup, |_, deed, input, _| Replay::group_again(deed, input).map(Again::of)),
];

impl Replay {
    fn new(settings: Arc<Settings>, ask: Ask, given_up: Arc<AtomicBool>) -> Result<Self, PreviewError> {
        let changes_patterns = changes_patterns(&ask.settings);
        let tenant = ask.tenant.clone().unwrap_or_default();
        let mut patterns = settings.policies.patterns().clone().until(given_up);
        let rules = Rules::build(&settings, &tenant, ask.guard, &ask.settings, &mut patterns).map_err(PreviewError::Settings)?;
        // A circuit's phase, a run and a budget do not end with a window: what counts may be as old as the log.
        let ages = guard::GuardEntry::of(ask.guard).slots.iter().all(|slot| matches!(slot.lasts, guard::Lasts::Window));
        let longest = rules.plain.iter().map(|policy| policy.longest_window()).max().unwrap_or(Span::ZERO);
        let longest = longest.max(settings.policies.longest_window());
        Ok(Self {
            rules: HashMap::from([(tenant, rules)]),
            patterns,
            settings,
            changes_patterns,
            warm_up: ages.then_some(longest),
            ask,
            lanes: [Lane::default(), Lane::default()],
            own_thresholds: HashMap::new(),
            reservations: BTreeMap::new(),
            doubts: BTreeMap::new(),
            report: Report::default(),
            changed: std::collections::VecDeque::new(),
        })
    }

    fn filter(&self) -> RowFilter {
        RowFilter {
            guard: Some(self.ask.guard.code().to_owned()),
            tenant: self.ask.tenant.clone(),
            since: self.warm_up.map(|span| self.ask.since.saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))),
            until: Some(self.ask.until),
            ..RowFilter::default()
        }
    }

    fn doubt(&mut self, doubt: Doubt) {
        *self.doubts.entry(doubt).or_default() += 1;
    }

    fn look_at(&mut self, deed: &Deed) {
        let row = &deed.row;
        let counts = row.at >= self.ask.since;
        if !self.rules.contains_key(&row.tenant) {
            // The change was checked at the start; a tenant's own settings can still make it impossible.
            match Rules::build(&self.settings, &row.tenant, self.ask.guard, &self.ask.settings, &mut self.patterns) {
                Ok(rules) => drop(self.rules.insert(row.tenant.clone(), rules)),
                Err(_) => return self.doubt(Doubt::Unexplained),
            }
        }
        if row.kind == "admin" {
            self.lanes.iter_mut().for_each(|lane| lane.control(row));
            return;
        }
        let input: Value = serde_json::from_str(&row.input).unwrap_or_default();
        let answer: Value = serde_json::from_str(&row.answer).unwrap_or_default();
        // A result for an endpoint that was one too many did nothing to it, and does not here.
        let again = if answer["watched"] == false { None } else { self.again(deed, &input, &answer) };
        let mut ended: Vec<Option<Ended>> = Vec::with_capacity(2);
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let Some(again) = &again else {
                lane.repeat(deed);
                ended.push(None);
                continue;
            };
            let Some(rules) = self.rules.get(&row.tenant) else { return };
            let policies = if again.reading == Reading::Word { &rules.by_word } else { &rules.plain };
            let own = own_record(&self.ask, row, &input, lane);
            let operation = own.as_deref().unwrap_or(&*again.operation);
            ended.push(Some(lane.run(&row.tenant, operation, &policies[number], row)));
        }
        if row.kind != "check" {
            return;
        }
        if !counts {
            self.report.warm_up_rows += 1;
            return;
        }
        if self.ask.subject.as_ref().is_some_and(|subject| *subject != row.subject) {
            return;
        }
        self.count(row, &ended);
    }

    fn count(&mut self, row: &LogRow, ended: &[Option<Ended>]) {
        self.report.rows += 1;
        self.report.before.add(&row.outcome);
        let [baseline, changed] = ended else { return };
        if baseline
            .as_ref()
            .is_some_and(|baseline| baseline.outcome != row.outcome || baseline.reason.map(Reason::code) != row.reason.as_deref())
        {
            self.doubt(Doubt::Unexplained);
        }
        let Some(changed) = changed else {
            self.report.after.add(&row.outcome);
            return;
        };
        self.report.after.add(changed.outcome);
        if changed.outcome == row.outcome {
            return;
        }
        let newly_passed = row.outcome == "blocked";
        if newly_passed {
            self.doubt(Doubt::NeverRan);
            if self.ask.guard == GuardName::Loop {
                self.doubt(Doubt::MayNotCount);
            }
        } else if changed.outcome == "blocked" {
            self.doubt(Doubt::RanAnyway);
        }
        self.report.changed_total += 1;
        self.changed.push_back(Changed {
            decision_id: row.id.clone(),
            at: row.at,
            tenant: row.tenant.clone(),
            session_id: row.session.clone(),
            subject: row.subject.clone(),
            before: row.outcome.clone(),
            after: changed.outcome,
            reason: changed.reason.map(|reason| reason.code().to_owned()).or_else(|| row.reason.clone()),
        });
        if self.changed.len() > MOST_CHANGED {
            self.changed.pop_front();
        }
    }

    fn finish(mut self) -> Report {
        if self.report.truncated {
            self.doubts.insert(Doubt::WarmUpCut, MOST_ROWS as u64);
        }
        // Only where results are told, or what was spent, do they matter for what follows.
        let entry = guard::GuardEntry::of(self.ask.guard);
        let is_told = entry.holds == guard::Holds::Money || entry.routes.iter().any(|route| route.kind != guard::RouteKind::Check);
        if !is_told {
            self.doubts.remove(&Doubt::RanAnyway);
        }
        self.report.changed = self.changed.into_iter().rev().collect();
        self.report.inexact = self.doubts.iter().map(|(doubt, count)| doubt.says(*count)).collect();
        self.report
    }

    /// The request of a row. `None`: it is taken as it was.
    fn again(&mut self, deed: &Deed, input: &Value, answer: &Value) -> Option<Again> {
        let Some((_, make)) = MADE_AGAIN.iter().find(|(guard, _)| *guard == self.ask.guard) else {
            self.doubt(Doubt::NoEvents);
            return None;
        };
        make(self, deed, input, answer)
    }

    fn task_again(&mut self, deed: &Deed, input: &Value, answer: &Value) -> Option<Again> {
        let row = &deed.row;
        let text = |name: &str| input[name].as_str().unwrap_or_default().to_owned();
        let request = |user_message: String| ai_task_retry::Request {
            session_id: row.session.clone(),
            task_name: row.subject.clone(),
            user_message,
            validation_error: String::new(),
        };
        let reason = Reason::InputMissingPrerequisiteSignal;
        let rulebook = self.in_force(row)?.ai_task_retry.for_subject(&row.subject);
        let known = Known::of(rulebook, rulebook.settings.patterns.get(&row.subject), reason);
        let reading = self.reading(known, &text("user_message"), 500);
        let said = if reading == Reading::Word { word(row, answer, reason) } else { text("user_message") };
        Some(Again { operation: Box::new(request(said)), reading })
    }

    fn reprompt_again(&mut self, deed: &Deed, input: &Value, answer: &Value) -> Option<Again> {
        let row = &deed.row;
        let text = |name: &str| input[name].as_str().unwrap_or_default().to_owned();
        let request = |user_utterance: String| no_match_reprompt::Request {
            session_id: row.session.clone(),
            step_id: row.subject.clone(),
            user_utterance,
        };
        let reason = Reason::EntitySignalAbsent;
        let rulebook = self.in_force(row)?.no_match_reprompt.for_subject(&row.subject);
        let known = Known::of(rulebook, rulebook.settings.patterns.get(&row.subject), reason);
        let reading = self.reading(known, &text("user_utterance"), 500);
        let said = if reading == Reading::Word { word(row, answer, reason) } else { text("user_utterance") };
        Some(Again { operation: Box::new(request(said)), reading })
    }

    fn capture_again(&mut self, deed: &Deed, input: &Value, answer: &Value) -> Again {
        let row = &deed.row;
        let text = |name: &str| input[name].as_str().unwrap_or_default().to_owned();
        let request = |user_utterance: String| capture_slot_fill::Request {
            session_id: row.session.clone(),
            capture_step: row.subject.clone(),
            entity_type: text("entity_type"),
            user_utterance,
        };
        let classified = answer["classification"].as_str();
        let known = if classified.is_some() { Known::Finding } else { Known::Nothing };
        let reading = self.reading(known, &text("user_utterance"), 200);
        let said = match (reading, classified) {
            (Reading::Word, Some("machine_format_extraction_failure")) => SIGNAL.to_owned(),
            (Reading::Word, Some("colloquial_format")) => SPOKEN.to_owned(),
            (Reading::Word, _) => NOTHING.to_owned(),
            (Reading::Text, _) => text("user_utterance"),
        };
        Again { operation: Box::new(request(said)), reading }
    }

    fn handoff_again(deed: &Deed, input: &Value) -> Again {
        let row = &deed.row;
        let text = |name: &str| input[name].as_str().unwrap_or_default().to_owned();
        Again::of(Box::new(handoff::Request {
            session_id: row.session.clone(),
            source_bot: text("source_bot"),
            target_bot: row.subject.clone(),
        }))
    }

    fn circuit_again(deed: &Deed, input: &Value) -> Again {
        let row = &deed.row;
        let operation: Box<dyn Operation> = if row.kind == "check" {
            Box::new(api_circuit::CheckRequest { endpoint_key: row.subject.clone(), session_id: row.session.clone() })
        } else {
            Box::new(circuit_record(row, input, None))
        };
        Again::of(operation)
    }

    fn stall_again(&mut self, deed: &Deed, _input: &Value, _answer: &Value) -> Option<Again> {
        let row = &deed.row;
        let events = deed.effects.first().map(|effect| effect.events.as_slice());
        let made = events.and_then(|events| stall::again(&row.session, &row.subject, events)).map(Again::of);
        if made.is_none() {
            self.doubt(Doubt::NoEvents);
        }
        made
    }

    fn in_force(&self, row: &LogRow) -> Option<&Policy> {
        self.rules.get(&row.tenant).map(|rules| &*rules.plain[0])
    }

    /// Whether the log's word on a text is taken, or the text.
    fn reading(&mut self, known: Known, kept: &str, most_chars: usize) -> Reading {
        if known == Known::Finding && !self.changes_patterns {
            return Reading::Word;
        }
        if (known != Known::NotAsked || self.changes_patterns) && !is_whole(kept, most_chars, self.settings.log.store_text) {
            self.doubt(Doubt::TextCut);
        }
        Reading::Text
    }

    fn kb_again(&mut self, row: &LogRow, input: &Value, answer: &Value) -> Box<dyn Operation> {
        let session_id = row.session.clone();
        if let Some(last_confidence) = input["last_confidence"].as_f64() {
            return Box::new(kb_requery::BotpressRequest {
                session_id,
                topic_hash: row.subject.clone(),
                query_text: String::new(),
                last_confidence,
            });
        }
        let kept = input["query"].as_str().unwrap_or_default();
        // The subject is made of the whole text: if the kept one gives the same, it is the whole one, as far as it is compared.
        let is_whole = kb_requery::topic_hash(kept) == row.subject && kept.chars().count() < 300;
        let (query, topic_hash) = if is_whole {
            (kept.to_owned(), row.subject.clone())
        } else {
            self.doubt(Doubt::TopicByLog);
            // Its name stands for its words: like itself, and like nothing else.
            let topic = answer["topic_hash"].as_str().unwrap_or(&row.subject).to_owned();
            (topic.clone(), topic)
        };
        if row.kind == "check" {
            Box::new(kb_requery::CheckRequest { session_id, query, topic_hash, prior_confidence: input["prior_confidence"].as_f64() })
        } else {
            Box::new(kb_requery::RecordRequest {
                session_id,
                query,
                topic_hash,
                confidence: input["confidence_score"].as_f64().unwrap_or(0.0),
                chunks: input["retrieved_chunks"].as_u64(),
            })
        }
    }

    fn action_again(deed: &Deed, input: &Value) -> Box<dyn Operation> {
        let row = &deed.row;
        let events: Vec<agent_action::Event> = decoded(deed).unwrap_or_default();
        if row.kind == "check" {
            let kept = input["action_params_hash"].as_str().unwrap_or_default().to_owned();
            return Box::new(agent_action::Request {
                session_id: row.session.clone(),
                action_name: row.subject.clone(),
                params_hash: kept,
            });
        }
        // The number of the result tells it from others; the text may be cut.
        let told = events.into_iter().find_map(|event| match event {
            agent_action::Event::Resulted { result, .. } => Some(result.to_string()),
            agent_action::Event::Called { .. } => None,
        });
        let kept = input["result_hash"].as_str().or(input["result_summary"].as_str()).unwrap_or_default();
        Box::new(agent_action::ResultRequest {
            session_id: row.session.clone(),
            action_name: row.subject.clone(),
            result_summary: String::new(),
            result_hash: told.unwrap_or_else(|| kept.to_owned()),
            error: false,
        })
    }

    fn loop_again(&mut self, deed: &Deed, input: &Value) -> Option<Again> {
        let row = &deed.row;
        let whose = (row.tenant.clone(), row.session.clone());
        let events: Vec<run_loop::Event> = decoded(deed).unwrap_or_default();
        let set = &self.in_force(row)?.run_loop.for_subject(&row.subject).settings;
        let thresholds = events.first().map(run_loop::Event::thresholds);
        if let Some(run_loop::Thresholds { repeats, max_cycle_len, window_millis, max_calls }) = thresholds {
            let unlike = |own: u64, set: u64| (own != set).then_some(own);
            let own = [
                unlike(u64::from(repeats), u64::from(set.repeats)),
                unlike(u64::from(max_cycle_len), u64::from(set.max_cycle_len)),
                unlike(window_millis.unwrap_or(0), set.window.as_millis()).map(|millis| millis / 1000),
                unlike(u64::from(max_calls.unwrap_or(0)), u64::from(set.max_calls)),
            ];
            if own.iter().any(Option::is_some) {
                self.own_thresholds.insert(whose.clone(), own);
            } else {
                self.own_thresholds.remove(&whose);
            }
        }
        let own = self.own_thresholds.get(&whose).copied();
        if own.is_some() {
            self.doubt(Doubt::OwnThresholds);
        }
        let [repeats, max_cycle_len, window_seconds, max_calls] = own.unwrap_or_default();
        let body = json!({
            "session_id": row.session, "tool": row.subject, "args": input["call"],
            "repeats": repeats, "max_cycle_len": max_cycle_len, "window_seconds": window_seconds, "max_calls": max_calls,
        });
        // A call that passed and left nothing behind only asked.
        let only_asked = events.is_empty() && row.outcome != "blocked";
        read_again(if only_asked { &run_loop::CHECK_ROUTE } else { &run_loop::ROUTE }, &body).map(Again::of)
    }

    fn budget_again(&mut self, deed: &Deed, input: &Value, answer: &Value) -> Option<Box<dyn Operation>> {
        let row = &deed.row;
        let act = input["act"].as_str().unwrap_or_default();
        let spends = matches!(act, "record" | "commit");
        if act == "reserve" {
            self.reservations.insert(budget::reservation_number(&row.id), row.id.clone());
        }
        let own_key = self.lanes[0].names.key(Family::Session, &row.tenant, &row.session);
        let own = deed
            .effects
            .iter()
            .find(|effect| effect.key == own_key && effect.slot == budget::SLOT.number)
            .map(|effect| effect.events.as_slice());
        let refused = row.outcome == "blocked" || row.outcome == "would_block";
        let asked_usd = answer["cost_usd"].as_f64();
        if refused && own.is_none() && (asked_usd.is_none() || row.reason.as_deref() != Some(Reason::BudgetExceeded.code())) {
            self.doubt(Doubt::BudgetAsked);
            return None;
        }
        let set = self.in_force(row)?.budget.for_subject(&row.subject).settings.clone();
        let is_own = !matches!(answer["level"].as_str(), Some("parent" | "scope"));
        // What the caller asked for; a row that does not tell it shows it by a limit that nobody else has set.
        let shown_usd = || answer["limit_usd"].as_f64().filter(|limit| is_own && (limit - set.max_usd).abs() > f64::EPSILON);
        let shown_tokens = || answer["limit_tokens"].as_u64().filter(|limit| is_own && *limit != set.max_tokens);
        if !spends && act != "release" && own.is_none() {
            if answer.get("calls").is_some() {
                self.doubt(Doubt::BudgetKey);
            }
            if answer.get("limit_tokens").is_some() {
                self.doubt(Doubt::BudgetTokens);
            }
        }
        budget::again(budget::Told {
            session_id: &row.session,
            budget: &row.subject,
            act,
            parent: input["parent"].as_str(),
            events: own,
            asked_usd: asked_usd.filter(|_| matches!(act, "check" | "reserve")),
            asked_tokens: None,
            limit_usd: input["max_usd"].as_f64().or_else(shown_usd),
            limit_tokens: input["max_tokens"].as_u64().or_else(shown_tokens),
            cap: input["cap"].as_u64(),
            scopes: input["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
            model: input["model"].as_str(),
            asked_with: input["asked_with"].as_str(),
            reservations: &self.reservations,
        })
    }

    fn tool_again(&mut self, deed: &Deed, input: &Value) -> Option<Box<dyn Operation>> {
        let row = &deed.row;
        if let Some(effect) = deed.effects.first() {
            return tool_call::again(&row.session, &effect.label, &row.subject, &effect.events);
        }
        // A result that is no failure changes nothing.
        if row.kind != "check" {
            return None;
        }
        if row.reason.as_deref() != Some(Reason::ToolLimit.code()) {
            self.doubt(if row.outcome == "blocked" { Doubt::CallUnknown } else { Doubt::NoEvents });
            return None;
        }
        self.doubt(Doubt::LimitUnlike);
        let body = json!({"session_id": row.session, "turn_id": input["turn_id"], "tool": row.subject, "args": {"decision": row.id}});
        read_again(&tool_call::ROUTE, &body)
    }

    fn group_again(deed: &Deed, input: &Value) -> Option<Box<dyn Operation>> {
        let row = &deed.row;
        let (group, function) = row.subject.split_once("::").unwrap_or((&row.subject, ""));
        let body = |call: &str| json!({"session_id": row.session, "action_group": group, "function": function, "parameters": call, "failed": input["failed"]});
        if row.kind == "check" {
            return read_again(&action_group::ROUTE, &body(input["call"].as_str().unwrap_or_default()));
        }
        let events: Vec<action_group::Event> = decoded(deed)?;
        let call = events.into_iter().find_map(|event| match event {
            action_group::Event::Resulted { call, .. } => Some(call),
            action_group::Event::Called { .. } => None,
        })?;
        read_again(&action_group::RESULT_ROUTE, &body(&runguard_core::fingerprint::hex16(&call.to_be_bytes())))
    }
}

/// The word for a signal that a rule missed, or did not.
fn word(row: &LogRow, answer: &Value, missing: Reason) -> String {
    if fired(row, answer, missing) { NOTHING } else { SIGNAL }.to_owned()
}

/// Whether a rule saw something, refusing or not.
fn fired(row: &LogRow, answer: &Value, reason: Reason) -> bool {
    let signalled = || answer["signals"].as_array().into_iter().flatten().any(|signal| signal["reason"].as_str() == Some(reason.code()));
    row.reason.as_deref() == Some(reason.code()) || signalled()
}

/// Whether a kept text can be what was said. One that is missing may have been empty.
fn is_whole(kept: &str, most_chars: usize, store_text: StoreText) -> bool {
    let redacted = text::MARKS.iter().any(|mark| kept.contains(mark));
    store_text != StoreText::None && !redacted && kept.chars().count() < most_chars
}

fn decoded<E: serde::de::DeserializeOwned>(deed: &Deed) -> Option<Vec<E>> {
    postcard::from_bytes(&deed.effects.first()?.events).ok()
}

/// A request as the route reads it.
fn read_again(route: &'static guard::Route, body: &Value) -> Option<Box<dyn Operation>> {
    let body = serde_json::to_vec(body).ok()?;
    let input = Input::read(&body, route.fields).ok()?;
    Some((route.read)(&input))
}

fn circuit_record(row: &LogRow, input: &Value, permit_id: Option<String>) -> api_circuit::RecordRequest {
    api_circuit::RecordRequest {
        endpoint_key: row.subject.clone(),
        session_id: row.session.clone(),
        failed: input["outcome"].as_str() == Some("failure"),
        attempt: input["attempt"].as_u64().unwrap_or(1),
        status_code: input["status_code"].as_u64(),
        latency_ms: input["latency_ms"].as_u64(),
        permit_id,
    }
}

/// A permit carries the generation of the lane that gave it, so a result is told with the permit of its own lane. One whose
/// check is not in sight, or was refused, comes without.
fn own_record(ask: &Ask, row: &LogRow, input: &Value, lane: &Lane) -> Option<Box<dyn Operation>> {
    if ask.guard != GuardName::ApiCircuit || row.kind == "check" {
        return None;
    }
    let (_, decision_id) = input["permit_id"].as_str()?.split_once('-')?;
    Some(Box::new(circuit_record(row, input, lane.permits.get(decision_id).cloned())))
}
