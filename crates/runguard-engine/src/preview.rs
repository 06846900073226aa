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

use crate::engine::{Engine, family_of, label, outcome_of};
use crate::settings::Settings;
use runguard_core::row::{Effect, Kind, Named, Outcome, Row};
use runguard_core::text::StoreText;
use runguard_core::{GuardName, Span};
use runguard_guards::answer::Answer;
use runguard_guards::guard::{self, GuardEntry, Holds, Lasts, Moment, Operation, RouteKind};
use runguard_guards::logged::{Doubt, Doubts, Logged, Reading, Retell, SIGNAL, SPOKEN, Terms};
use runguard_guards::pattern::Patterns;
use runguard_guards::policy::{self, Policy, SettingsProblem, Tree, merge, unfold};
use runguard_store::pace::Pace;
use runguard_store::{Family, Key, Names, Order, RowFilter, RowWithEffects, StoreError};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Rows looked at in one preview; of more, the newest.
pub const MOST_ROWS: usize = 200_000;
/// Changed decisions that are shown.
pub const MOST_CHANGED: usize = 50;
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

/// How requests ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counts {
    pub allowed: u64,
    pub would_block: u64,
    pub blocked: u64,
}

impl Counts {
    fn add(&mut self, outcome: Option<Outcome>) {
        match outcome {
            Some(Outcome::Allowed) => self.allowed += 1,
            Some(Outcome::WouldBlock) => self.would_block += 1,
            Some(Outcome::Blocked) => self.blocked += 1,
            Some(Outcome::Recorded) | None => {}
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
        let found = store.rows_with_effects(filter.clone(), Order::OldestFirst, Some(from), PAGE).await?;
        after = found.last().map(|kept| kept.row.seq).filter(|seq| *seq < last);
        let given_up = waiting.given_up.clone();
        replay = aside(&turn, move || {
            let mut pace = Pace::new(REST);
            for kept in found.iter().filter(|kept| kept.row.seq <= last) {
                if given_up.load(Ordering::Relaxed) {
                    break;
                }
                replay.look_at(&logged(kept));
                pace.step();
            }
            replay
        })
        .await?;
    }
    Ok(replay.finish())
}

/// Without what is kept for repeated requests, which is no guard's.
fn logged(found: &RowWithEffects) -> Logged<'_> {
    let mut effects = Effect::read_all(&found.effects);
    effects.retain(|effect| !effect.events.is_empty() && Key::of(effect).is_some_and(|key| key.family != Family::Idempotency));
    Logged { row: &found.row, effects }
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
        if !texts_are_searched(guard) {
            return Ok(Self { by_word: plain.clone(), plain });
        }
        let mut by_word = |guards: Tree| policy.overridden(&Tree::new(), &worded(guards, guard), &[], patterns).map(Arc::new);
        let mut changed = in_force.clone();
        merge(&mut changed, &change);
        Ok(Self { by_word: [by_word(in_force)?, by_word(changed)?], plain })
    }
}

/// Settings that hold patterns.
const PATTERNS: [&str; 2] = ["patterns", "entities"];

fn texts_are_searched(guard: GuardName) -> bool {
    let searches = |section: &policy::SectionInfo| PATTERNS.iter().any(|key| section.defaults.get(*key).is_some());
    policy::sections().iter().any(|section| section.guard == guard && searches(section))
}

/// What the tree says of a guard, with every pattern replaced by a word, the built-in ones too.
fn worded(mut guards: Tree, guard: GuardName) -> Tree {
    guards.retain(|name, _| name == guard.code());
    for section in policy::sections().iter().filter(|section| section.guard == guard) {
        for key in PATTERNS {
            if let Some(built_in) = section.defaults.get(key) {
                let mut with_defaults = Tree::from_iter([(guard.code().to_owned(), json!({ key: built_in }))]);
                merge(&mut with_defaults, &guards);
                guards = with_defaults;
            }
        }
    }
    let subjects: Vec<&str> = policy::sections().iter().filter(|section| section.guard == guard).map(|section| section.subjects).collect();
    if let Some(Value::Object(table)) = guards.get_mut(guard.code()) {
        put_words(table, &subjects);
    }
    guards
}

/// `subjects`: the tables of overrides, which have patterns of their own.
fn put_words(table: &mut Tree, subjects: &[&str]) {
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
    for name in subjects {
        if let Some(Value::Object(overrides)) = table.get_mut(*name) {
            overrides.values_mut().filter_map(Value::as_object_mut).for_each(|table| put_words(table, &[]));
        }
    }
}

/// Whether the change touches what texts are compared with.
fn changes_patterns(change: &Tree) -> bool {
    change.iter().any(|(key, value)| PATTERNS.contains(&key.as_str()) || value.as_object().is_some_and(changes_patterns))
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
}

impl Lane {
    fn run(&mut self, operation: &dyn Operation, policy: &Policy, row: &Row) -> Answer {
        let tenant = &row.tenant;
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
        let moment = Moment { now: row.time(), decision_id: &row.id, store_text: StoreText::Full, long_runs: None };
        let outcome = operation.run(policy, &states, moment);
        for change in outcome.changes {
            self.states.insert(names[change.place].clone(), change.state);
        }
        outcome.answer
    }

    /// What happened, happens again.
    fn repeat(&mut self, logged: &Logged<'_>) {
        for effect in &logged.effects {
            let Some(key) = Key::of(effect) else { continue };
            let name = StateName { key, slot: effect.slot, label: effect.subject.to_owned() };
            let before = self.states.get(&name).map(Vec::as_slice);
            if let Some(state) = guard::replay(effect.slot, before, effect.events, logged.row.time()) {
                self.states.insert(name, state);
            }
        }
    }
}

struct Replay {
    settings: Arc<Settings>,
    ask: Ask,
    patterns: Patterns,
    rules: HashMap<Arc<str>, Rules>,
    changes_patterns: bool,
    warm_up: Option<Span>,
    lanes: [Lane; 2],
    retelling: Box<dyn Retell>,
    doubts: Doubts,
    report: Report,
    changed: std::collections::VecDeque<Changed>,
}

/// Only where results are told, or what was spent, do they matter for what follows.
fn hears_of_results(guard: GuardName) -> bool {
    let entry = GuardEntry::of(guard);
    entry.holds == Holds::Money || entry.routes.iter().any(|route| route.kind != RouteKind::Check)
}

impl Replay {
    fn new(settings: Arc<Settings>, ask: Ask, given_up: Arc<AtomicBool>) -> Result<Self, PreviewError> {
        let changes_patterns = changes_patterns(&ask.settings);
        let tenant = ask.tenant.clone().unwrap_or_default();
        let mut patterns = settings.policies.patterns().clone().until(given_up);
        let rules = Rules::build(&settings, &tenant, ask.guard, &ask.settings, &mut patterns).map_err(PreviewError::Settings)?;
        // A circuit's phase, a run and a budget do not end with a window: what counts may be as old as the log.
        let ages = GuardEntry::of(ask.guard).slots.iter().all(|slot| matches!(slot.lasts, Lasts::Window));
        let longest = rules.plain.iter().map(|policy| policy.longest_window()).max().unwrap_or(Span::ZERO);
        let longest = longest.max(settings.policies.longest_window());
        Ok(Self {
            rules: HashMap::from([(tenant.into(), rules)]),
            patterns,
            settings,
            changes_patterns,
            warm_up: ages.then_some(longest),
            retelling: (GuardEntry::of(ask.guard).retelling)(),
            ask,
            lanes: [Lane::default(), Lane::default()],
            doubts: Doubts::default(),
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

    fn look_at(&mut self, logged: &Logged<'_>) {
        let row = logged.row;
        if !self.rules.contains_key(&row.tenant) {
            // The change was checked at the start; a tenant's own settings can still make it impossible.
            match Rules::build(&self.settings, &row.tenant, self.ask.guard, &self.ask.settings, &mut self.patterns) {
                Ok(rules) => drop(self.rules.insert(row.tenant.clone(), rules)),
                Err(_) => return self.doubts.add(Doubt::UNEXPLAINED),
            }
        }
        let Some(rules) = self.rules.get(&row.tenant) else { return };
        let terms = Terms { policy: &rules.plain[0], changes_patterns: self.changes_patterns, store_text: self.settings.log.store_text };
        let again = self.retelling.again(logged, &terms, &mut self.doubts);
        let mut answers: [Option<Answer>; 2] = [None, None];
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let Some(again) = &again else {
                lane.repeat(logged);
                continue;
            };
            let policies = if again.reading == Reading::Word { &rules.by_word } else { &rules.plain };
            let own = self.retelling.again_in(number, logged);
            let answer = lane.run(own.as_deref().unwrap_or(&*again.operation), &policies[number], row);
            self.retelling.answered(number, row, &answer);
            answers[number] = Some(answer);
        }
        if row.kind != Kind::Check {
            return;
        }
        if row.at < self.ask.since {
            self.report.warm_up_rows += 1;
            return;
        }
        if self.ask.subject.as_ref().is_some_and(|subject| *subject != row.subject) {
            return;
        }
        self.count(row, &answers);
    }

    fn count(&mut self, row: &Row, [baseline, changed]: &[Option<Answer>; 2]) {
        self.report.rows += 1;
        self.report.before.add(row.outcome.answered());
        if baseline.as_ref().is_some_and(|baseline| row.outcome != outcome_of(baseline) || baseline.reason.map(Named::Known) != row.reason)
        {
            self.doubts.add(Doubt::UNEXPLAINED);
        }
        let Some(changed) = changed else {
            self.report.after.add(row.outcome.answered());
            return;
        };
        let after = outcome_of(changed);
        self.report.after.add(Some(after));
        if row.outcome == after {
            return;
        }
        if row.outcome == Outcome::Blocked {
            self.doubts.add(Doubt::NEVER_RAN);
            if let Some(doubt) = self.retelling.doubt_of_passing() {
                self.doubts.add(doubt);
            }
        } else if after == Outcome::Blocked && hears_of_results(self.ask.guard) {
            self.doubts.add(Doubt::RAN_ANYWAY);
        }
        self.report.changed_total += 1;
        self.changed.push_back(Changed {
            decision_id: row.id.clone(),
            at: row.at,
            tenant: row.tenant.to_string(),
            session_id: row.session.clone(),
            subject: row.subject.clone(),
            before: row.outcome.code().to_owned(),
            after: after.code(),
            reason: changed.reason.map(Named::Known).or_else(|| row.reason.clone()).map(|reason| reason.code().to_owned()),
        });
        if self.changed.len() > MOST_CHANGED {
            self.changed.pop_front();
        }
    }

    fn finish(mut self) -> Report {
        if self.report.truncated {
            self.doubts.add_times(Doubt::WARM_UP_CUT, MOST_ROWS as u64);
        }
        self.report.changed = self.changed.into_iter().rev().collect();
        self.report.inexact = self.doubts.says();
        self.report
    }
}
