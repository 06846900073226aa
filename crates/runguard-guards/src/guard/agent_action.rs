//! Stops an autonomous agent that repeats its actions without getting nearer to the goal.
//!
//! Counting is a budget, not a proof: the same action six times may be right. So a caller that tells results gets
//! better answers: an action named under `polling` may go on in a row as long as its result changes.
//!
//! What the agent is to reach and what it may call decides nothing here. It is kept, so that a spiral can be told from its goal.

use super::{
    AnswerKind, Billed, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Notice, Place, Probe, Route,
    RouteKind, Ruling, RulingOf, Slot, falls_below, forget_earliest, says, stored_in_one_part, times,
};
use crate::answer::Facts;
use crate::input::{Field, Input, Kind};
use crate::logged::{self, Doubts, EachByItself, Goal, Logged, Retold, Shows, Terms, Traced, Traces};
use crate::names::Names;
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::detect::stall::{error_fingerprint, result_fingerprint};
use runguard_core::fingerprint;
use runguard_core::limits::{InvalidSetting, lasting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::Kind as RowKind;
use runguard_core::row::{self, RowRef};
use runguard_core::text::{StoreText, cut};
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&ROUTE, &RESULT_ROUTE],
    slots: &[&SLOT],
    step: GuardedStep::ToolCall,
    // An agent's plan is what chose the action.
    billed: Some(Billed::AiStep),
    holds: Holds::Flow,
    shows,
    retelling: || Box::new(EachByItself(again)),
    traces: Some(Traces { rank: 2, read: traced }),
};

static SLOT: Slot = Slot::of::<AgentAction, 0>(5, Lasts::Window);

pub static ROUTE: Route = Route {
    path: "/guard/agent-action",
    guard: GuardName::AgentAction,
    kind: RouteKind::Check,
    summary: "May the agent run this action?",
    fields: &[
        Field::required("session_id", Kind::Id, "The run or conversation.", "\"run-1\""),
        Field::required("action_name", Kind::Id, "The action the agent wants to run.", "\"get_customer_profile\""),
        Field::optional("action_params_hash", Kind::Hash, "A hash of the parameters, made by the caller.", "\"9f2c\""),
        Field::optional(
            "action_params",
            Kind::Any,
            "The parameters themselves: RunGuard hashes them, whatever their order and form.",
            "{\"id\":7}",
        ),
        Field::optional("goal", Kind::Text, "What the agent is to reach; 200 characters are kept.", "\"find the subscription tier\""),
        Field::optional(
            "available_actions",
            Kind::Names,
            "What it may call: a list, or a text with commas; 100 names are kept.",
            "[\"get_customer_profile\",\"get_recent_orders\"]",
        ),
    ],
    answers: &[
        says("action_name", AnswerKind::Text, "The action asked about."),
        says("total_actions_used", AnswerKind::Whole, "Allowed: actions counted, this one included."),
        says("actions_remaining", AnswerKind::Whole, "Allowed: actions left."),
        says("total_actions", AnswerKind::Whole, "Total ceiling: actions counted."),
        says("action_distribution", AnswerKind::Counts, "Total ceiling: how often each action ran."),
        says("consecutive_count", AnswerKind::Whole, "Consecutive: how often in a row."),
        says("same_action_total", AnswerKind::Whole, "Frequency: how often in the window."),
        says("identical_calls", AnswerKind::Whole, "Identical: calls with the same parameters in the window."),
        says("cycle", AnswerKind::List, "Cycle: the actions of one round."),
        says("cycle_repeats", AnswerKind::Whole, "Cycle: rounds, this call included."),
        says("ceiling", AnswerKind::Whole, "Blocked: how many are allowed."),
    ],
    reasons: &[
        Reason::TotalActionCeiling,
        Reason::ConsecutiveSameActionSpiral,
        Reason::SameActionFrequencySpiral,
        Reason::IdenticalCallSpiral,
        Reason::ActionCycle,
    ],
    read: |input| Box::new(Request::read(input)),
};

pub static RESULT_ROUTE: Route = Route {
    path: "/guard/agent-action/result",
    guard: GuardName::AgentAction,
    kind: RouteKind::RecordSilently,
    summary: "What the newest call of this action gave.",
    fields: &[
        Field::required("session_id", Kind::Id, "The run or conversation.", "\"run-1\""),
        Field::required("action_name", Kind::Id, "The action that ran.", "\"get_customer_profile\""),
        Field::optional("result_summary", Kind::Text, "What came out; 200 characters are kept.", "\"3 orders\""),
        Field::optional("result_hash", Kind::Hash, "A hash of the whole result; without it the summary is compared.", "\"77ab\""),
        Field::optional("error", Kind::Flag, "Whether the action failed.", "false"),
    ],
    answers: &[],
    reasons: &[],
    read: |input| {
        Box::new(ResultRequest {
            session_id: input.text("session_id"),
            action_name: input.text("action_name"),
            result_summary: input.text("result_summary"),
            result_hash: input.text("result_hash"),
            error: input.flag("error"),
        })
    },
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_total: u32,
    pub max_consecutive: u32,
    pub max_same: u32,
    pub window: Span,
    pub max_identical: u32,
    pub cycle_max_period: u32,
    pub cycle_repeats: u32,
    pub polling: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_total: 20,
            max_consecutive: 3,
            max_same: 6,
            window: Span::from_seconds(1800),
            max_identical: 3,
            cycle_max_period: 8,
            cycle_repeats: 3,
            polling: Vec::new(),
        }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::AgentAction;
    const SECTION: &'static [&'static str] = &["agent_action"];
    const SUBJECTS: &'static str = "actions";
    const OBSERVED: &'static [Reason] = &[Reason::IdenticalCallSpiral, Reason::ActionCycle];
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "max_total", about: "Actions of one session within the window." },
        Setting { key: "max_consecutive", about: "The same action in a row." },
        Setting { key: "max_same", about: "The same action within the window." },
        Setting { key: "window", about: "Seconds (1800) or with a unit (\"30m\")." },
        Setting { key: "max_identical", about: "The same action with the same parameters within the window." },
        Setting { key: "cycle_max_period", about: "Longest round of actions that is looked for, from 2." },
        Setting { key: "cycle_repeats", about: "Rounds that make a cycle, from 2." },
        Setting { key: "polling", about: "Actions that may repeat in a row while their result changes." },
    ];

    fn longest_window(&self) -> Span {
        self.window
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_total", self.max_total, 0..=1000)?;
        within("max_consecutive", self.max_consecutive, 0..=1000)?;
        within("max_same", self.max_same, 0..=1000)?;
        within("max_identical", self.max_identical, 1..=1000)?;
        within("cycle_max_period", self.cycle_max_period, 2..=16)?;
        within("cycle_repeats", self.cycle_repeats, 2..=16)?;
        lasting("window", self.window)
    }
}

impl Settings {
    /// Calls that must be kept for every rule to be exact.
    fn keep(&self) -> u32 {
        self.max_total.max(self.max_same).max(self.max_identical).max(self.max_consecutive).max(self.cycle_max_period * self.cycle_repeats)
    }

    fn polls(&self, action: &str) -> bool {
        self.polling.iter().any(|polling| polling == action)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SeenCall {
    at: Timestamp,
    /// Index into [`State::names`].
    action: u16,
    /// Hash of the parameters; 0 when there are none.
    params: u32,
    /// Hash of the result; 0 until it is told.
    result: u32,
    /// The result differs from the last one of the same call.
    progressed: bool,
}

/// The latest calls in the order they were made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    names: Names,
    calls: Vec<SeenCall>,
}
stored_in_one_part!(State);

impl State {
    fn in_window(&self, now: Timestamp, window: Span) -> Vec<&SeenCall> {
        // Nearly always all of them: room is made once, where collecting would make it again and again.
        let mut calls = Vec::with_capacity(self.calls.len());
        calls.extend(self.calls.iter().filter(|call| now.still_counts(call.at, window)));
        calls
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    Called { action: String, params: u32, keep: u32 },
    Resulted { action: String, result: u32 },
}

#[derive(Debug)]
pub struct AgentAction;

impl Guard for AgentAction {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.agent_action
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        match event {
            Event::Called { action, params, keep } => {
                let action = state.names.index_or_add(action);
                state.calls.push(SeenCall { at, action, params: *params, result: 0, progressed: false });
                if state.calls.len() > (*keep).max(1) as usize {
                    while state.calls.len() > (*keep).max(1) as usize {
                        forget_earliest(&mut state.calls, |call| call.at);
                    }
                    state.names.keep_used(state.calls.iter_mut().map(|call| &mut call.action));
                }
            }
            Event::Resulted { action, result } => {
                let Some(action) = state.names.index(action) else { return };
                let Some(newest) = state.calls.iter().rposition(|call| call.action == action) else { return };
                let params = state.calls[newest].params;
                let previous =
                    state.calls[..newest].iter().rev().find(|call| call.action == action && call.params == params && call.result != 0);
                let progressed = previous.is_some_and(|previous| previous.result != *result);
                state.calls[newest].result = *result;
                state.calls[newest].progressed = progressed;
            }
        }
    }

    fn probes(section: &Section<Settings>, _subject: &str, state: &State, now: Timestamp) -> Vec<Probe> {
        let probe = |(index, name): (u16, &str)| {
            let settings = &section.for_subject(name).settings;
            Probe {
                request: Box::new(Request { action_name: name.to_owned(), ..Request::default() }),
                used: state.in_window(now, settings.window).iter().filter(|call| call.action == index).count() as u32,
                ceiling: settings.max_same,
                window: settings.window,
            }
        };
        state.names.iter().map(probe).collect()
    }
}

#[derive(Debug, Default)]
pub struct Request {
    pub session_id: String,
    pub action_name: String,
    pub params_hash: String,
    pub goal: String,
    pub available_actions: Vec<String>,
}

/// What is kept of a goal: characters, actions, and characters of their names.
const MOST_GOAL_CHARS: usize = 200;
const MOST_OFFERED: usize = 100;
const MOST_OFFERED_CHARS: usize = 64;

/// What is kept of a call, or of its result.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    action_params_hash: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    result_summary: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    result_hash: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<bool>,
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    goal: Cow<'a, str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    available_actions: Vec<String>,
}

fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    // Most calls tell no goal: nothing is read of them.
    if row.kind != RowKind::Check || !row.input.contains("\"goal\":") {
        return Shows::default();
    }
    let LoggedInput { goal, available_actions, .. }: LoggedInput<'a> = logged::read(row.input);
    if goal.is_empty() {
        return Shows::default();
    }
    let is_listed = || available_actions.iter().any(|name| *name == cut(row.subject, MOST_OFFERED_CHARS));
    let is_offered = available_actions.is_empty() || available_actions.len() == MOST_OFFERED || is_listed();
    let folded = goal.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let goal = Goal { name: fingerprint::hex16(folded.as_bytes()), text: goal, offered: available_actions, is_offered };
    Shows { goal: Some(goal), ..Shows::default() }
}

fn traced(logged: &Logged<'_>) -> Traced {
    let LoggedInput { action_params_hash, result_summary, result_hash, error, .. }: LoggedInput<'_> = logged::read(&logged.row.input);
    if logged.row.kind == RowKind::Check {
        return Traced::call(Some(xxh3_64(action_params_hash.as_bytes())));
    }
    Traced::Result {
        result: if result_hash.is_empty() { result_fingerprint(&result_summary) } else { xxh3_64(result_hash.as_bytes()) },
        error: (error == Some(true)).then(|| error_fingerprint(&result_summary)),
        shown: result_summary.into_owned(),
    }
}

pub(crate) fn again(logged: &Logged<'_>, _terms: &Terms<'_>, _doubts: &mut Doubts) -> Retold {
    let row = logged.row;
    let kept: LoggedInput<'_> = logged::read(&row.input);
    let (session_id, action_name) = (row.session.clone(), row.subject.clone());
    if row.kind == row::Kind::Check {
        return Retold::of(Request { session_id, action_name, params_hash: kept.action_params_hash.into_owned(), ..Request::default() });
    }
    // The number of the result tells it from others; the text may be cut.
    let told = logged.events().unwrap_or_default().into_iter().find_map(|event| match event {
        Event::Resulted { result, .. } => Some(result.to_string()),
        Event::Called { .. } => None,
    });
    let kept = if kept.result_hash.is_empty() { kept.result_summary } else { kept.result_hash };
    let result_hash = told.unwrap_or_else(|| kept.into_owned());
    Retold::of(ResultRequest { session_id, action_name, result_summary: String::new(), result_hash, error: false })
}

#[derive(Debug)]
pub enum Block {
    Total { total: u32 },
    Consecutive { count: u32 },
    Same { total: u32 },
    Identical { count: u32 },
    Cycle { cycle: Vec<String> },
}

#[derive(Debug)]
pub struct Pass {
    used: u32,
    remaining: u32,
}

impl Request {
    fn read(input: &Input<'_>) -> Self {
        let own_hash = input.text("action_params_hash");
        let params_hash =
            if own_hash.is_empty() { input.json("action_params").map(fingerprint::of_json).unwrap_or_default() } else { own_hash };
        Self {
            session_id: input.text("session_id"),
            action_name: input.text("action_name"),
            params_hash,
            goal: input.text("goal"),
            available_actions: input.names("available_actions"),
        }
    }

    fn params(&self) -> u32 {
        hash(&self.params_hash)
    }

    fn findings(&self, settings: &Settings, state: &State, calls: &[&SeenCall]) -> Vec<Finding<Block, Event>> {
        let mut findings = Vec::new();
        let total = calls.len() as u32;
        if total >= settings.max_total {
            let block = Block::Total { total };
            let clears_at = falls_below(calls.iter().map(|call| call.at).collect(), settings.max_total, settings.window);
            findings.push(Finding::new(Reason::TotalActionCeiling, block, clears_at));
        }
        let action = state.names.index(&self.action_name);
        let is_same = |call: &&&SeenCall| Some(call.action) == action;
        let polls = settings.polls(&self.action_name);
        let is_news = |call: &&&SeenCall| polls && call.progressed;

        // Counted first: the times are needed only by a rule that fires.
        let in_a_row = || calls.iter().rev().take_while(|call| is_same(call) && !is_news(call));
        let count = in_a_row().count() as u32;
        if count >= settings.max_consecutive {
            let clears_at = falls_below(in_a_row().map(|call| call.at).collect(), settings.max_consecutive, settings.window);
            findings.push(Finding::new(Reason::ConsecutiveSameActionSpiral, Block::Consecutive { count }, clears_at));
        }
        let same = || calls.iter().filter(is_same);
        let total = same().count() as u32;
        if total >= settings.max_same {
            let clears_at = falls_below(same().map(|call| call.at).collect(), settings.max_same, settings.window);
            findings.push(Finding::new(Reason::SameActionFrequencySpiral, Block::Same { total }, clears_at));
        }
        let params = self.params();
        if params != 0 {
            let identical = || same().rev().take_while(|call| !is_news(call)).filter(|call| call.params == params);
            let count = identical().count() as u32;
            if count >= settings.max_identical {
                let clears_at = falls_below(identical().map(|call| call.at).collect(), settings.max_identical, settings.window);
                findings.push(Finding::new(Reason::IdenticalCallSpiral, Block::Identical { count }, clears_at));
            }
        }
        if let Some(period) = action.and_then(|action| cycle(calls, action, settings)) {
            let start = calls.len() + 1 - period as usize;
            let mut round: Vec<String> = calls[start..].iter().map(|call| state.names.get(call.action).to_owned()).collect();
            round.push(self.action_name.clone());
            let needed = (period * settings.cycle_repeats - 1) as usize;
            let earliest = calls[calls.len() - needed..].iter().map(|call| call.at).min();
            let clears_at = earliest.map(|at| at.plus(settings.window));
            findings.push(Finding::new(Reason::ActionCycle, Block::Cycle { cycle: round }, clears_at));
        }
        findings
    }
}

/// 32 bits are enough to tell a few dozen calls of one session apart, and half the state. 0 stands for "none".
fn hash(text: &str) -> u32 {
    if text.is_empty() { 0 } else { (xxh3_64(text.as_bytes()) as u32).max(1) }
}

/// The shortest round of at least two different actions that `next` would complete for the n-th time.
fn cycle(calls: &[&SeenCall], next: u16, settings: &Settings) -> Option<u32> {
    let from_end = |back: usize| if back == 0 { Some(next) } else { calls.len().checked_sub(back).map(|position| calls[position].action) };
    (2..=settings.cycle_max_period).find(|&period| {
        let length = (period * settings.cycle_repeats) as usize;
        let period = period as usize;
        calls.len() + 1 >= length
            && (0..length - period).all(|back| from_end(back) == from_end(back + period))
            && (1..period).any(|back| from_end(back) != from_end(0))
    })
}

fn distribution(state: &State, calls: &[&SeenCall]) -> Vec<(String, u64)> {
    let used = |index: u16| calls.iter().filter(|call| call.action == index).count() as u64;
    let mut counts: Vec<(String, u64)> = state.names.iter().map(|(index, name)| (name.to_owned(), used(index))).collect();
    counts.retain(|(_, count)| *count > 0);
    counts.sort_by(|left, right| right.1.cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
    counts
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        &ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.action_name
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, "")]
    }

    fn input(&self, store_text: StoreText) -> String {
        let offered = self.available_actions.iter().take(MOST_OFFERED).map(|name| store_text.keep(name, MOST_OFFERED_CHARS));
        logged::write(&LoggedInput {
            action_params_hash: kept_hash(&self.params_hash, store_text),
            goal: store_text.keep(&self.goal, MOST_GOAL_CHARS).into(),
            available_actions: offered.filter(|name| !name.is_empty()).collect(),
            ..LoggedInput::default()
        })
    }
}

impl Decide for Request {
    type Guard = AgentAction;
    type Block = Block;
    type Pass = Pass;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let calls = state.in_window(moment.now, settings.window);
        let used = calls.len() as u32 + 1;
        Ruling {
            findings: self.findings(settings, state, &calls),
            pass: Pass { used, remaining: settings.max_total.saturating_sub(used) },
            events: vec![Event::Called { action: self.action_name.clone(), params: self.params(), keep: settings.keep() }],
        }
    }

    fn explain(&self, settings: &Settings, state: &State, block: &Block, moment: Moment<'_>) -> (Facts, String) {
        let action = &self.action_name;
        let window = settings.window;
        let facts = Facts::new().with("action_name", action.clone());
        match block {
            Block::Total { total } => (
                facts
                    .with("total_actions", *total)
                    .with("ceiling", settings.max_total)
                    .with("action_distribution", distribution(state, &state.in_window(moment.now, window))),
                format!(
                    "The agent has run {total} actions in the last {window} (ceiling {}) without finishing. End the run and tell the user; the most frequent action shows what the action set lacks.",
                    settings.max_total
                ),
            ),
            Block::Consecutive { count } => (
                facts.with("consecutive_count", *count).with("ceiling", settings.max_consecutive),
                format!(
                    "Action '{action}' was run {} in a row (ceiling {}). Its result does not help the agent on; end the run, or answer that the information is not available.",
                    times(*count),
                    settings.max_consecutive
                ),
            ),
            Block::Same { total } => (
                facts.with("same_action_total", *total).with("ceiling", settings.max_same),
                format!(
                    "Action '{action}' was run {} in the last {window} (ceiling {}). It does not lead to the goal; end the run, or hand over to a person.",
                    times(*total),
                    settings.max_same
                ),
            ),
            Block::Identical { count } => (
                facts.with("identical_calls", *count).with("ceiling", settings.max_identical),
                format!(
                    "Action '{action}' was run {} with the same parameters in the last {window} (ceiling {}). Use the result it gave, or end the run.",
                    times(*count),
                    settings.max_identical
                ),
            ),
            Block::Cycle { cycle } => (
                facts.with("cycle", cycle.clone()).with("cycle_repeats", settings.cycle_repeats).with("ceiling", settings.cycle_repeats),
                format!(
                    "The agent goes round in a circle: {} for the {} time (ceiling {}). End the run, or give it an action that leads out.",
                    cycle.join(" → "),
                    ordinal(settings.cycle_repeats),
                    settings.cycle_repeats
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        Facts::new()
            .with("action_name", self.action_name.clone())
            .with("total_actions_used", pass.used)
            .with("actions_remaining", pass.remaining)
    }
}

fn kept_hash(hash: &str, store_text: StoreText) -> Cow<'_, str> {
    match store_text.keep_name(hash) {
        Cow::Borrowed(kept) => Cow::Borrowed(cut(kept, 64)),
        Cow::Owned(kept) => Cow::Owned(cut(&kept, 64).to_owned()),
    }
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (1, n) if n != 11 => "st",
        (2, n) if n != 12 => "nd",
        (3, n) if n != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// What an action gave: belongs to the newest call of that action.
#[derive(Debug)]
pub struct ResultRequest {
    pub session_id: String,
    pub action_name: String,
    pub result_summary: String,
    pub result_hash: String,
    pub error: bool,
}

/// What a result belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matched {
    Call,
    None,
}

impl GuardRequest for ResultRequest {
    fn route(&self) -> &'static Route {
        &RESULT_ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.action_name
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, "")]
    }

    fn input(&self, store_text: StoreText) -> String {
        logged::write(&LoggedInput {
            result_summary: store_text.keep(&self.result_summary, 200).into(),
            result_hash: kept_hash(&self.result_hash, store_text),
            error: Some(self.error),
            ..LoggedInput::default()
        })
    }
}

impl Decide for ResultRequest {
    type Guard = AgentAction;
    type Block = Infallible;
    type Pass = Matched;

    fn decide(&self, _settings: &Settings, state: &State, _moment: Moment<'_>) -> RulingOf<Self> {
        if state.names.index(&self.action_name).is_none() {
            return Ruling { findings: Vec::new(), pass: Matched::None, events: Vec::new() };
        }
        let identity = if self.result_hash.is_empty() { &self.result_summary } else { &self.result_hash };
        // A failure is a result too: the same failure again is no progress.
        let result = hash(&format!("{}{identity}", if self.error { "error:" } else { "result:" }));
        let events = vec![Event::Resulted { action: self.action_name.clone(), result }];
        Ruling { findings: Vec::new(), pass: Matched::Call, events }
    }

    fn explain(&self, _settings: &Settings, _state: &State, block: &Infallible, _moment: Moment<'_>) -> (Facts, String) {
        match *block {}
    }

    fn pass(&self, _matched: Matched, _moment: Moment<'_>) -> Facts {
        Facts::new().with("action_name", self.action_name.clone())
    }

    fn notice(&self, matched: &Matched) -> Option<Notice> {
        match matched {
            Matched::Call => None,
            Matched::None => Some(Notice::UnmatchedResult),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::properties::Story;
    use serde_json::json;

    fn run(action: &str) -> Request {
        Request { session_id: "s".into(), action_name: action.into(), ..Request::default() }
    }

    fn result(action: &str, summary: &str) -> ResultRequest {
        ResultRequest {
            session_id: "s".into(),
            action_name: action.into(),
            result_summary: summary.into(),
            result_hash: String::new(),
            error: false,
        }
    }

    #[test]
    fn the_goal_and_what_is_on_offer_are_kept_as_texts_may_be() {
        let goal = "Tell jane@example.com  her tier";
        let request = Request { goal: goal.into(), available_actions: vec!["profile".into(), "orders".into()], ..run("lookup_tier") };
        let input = request.input(StoreText::Redacted);
        let row = RowRef {
            seq: 0,
            at: 0,
            id: "",
            tenant: "",
            guard: GuardName::AgentAction.into(),
            kind: RowKind::Check.into(),
            session: "s",
            subject: "lookup_tier",
            outcome: row::Outcome::Allowed.into(),
            reason: None,
            answer: "{}",
            input: &input,
        };
        let seen = shows(&row).goal.unwrap();
        assert!(seen.text.starts_with("Tell [") && !input.contains("jane"), "{input}");
        assert_eq!((seen.offered.as_slice(), seen.is_offered), (["profile".to_owned(), "orders".to_owned()].as_slice(), false));
        let listed = shows(&RowRef { subject: "orders", ..row.clone() }).goal.unwrap();
        assert!(listed.is_offered && listed.name == seen.name);
        assert_eq!(request.input(StoreText::None), run("lookup_tier").input(StoreText::None), "nothing is kept");
        assert_eq!(shows(&RowRef { input: &run("orders").input(StoreText::Full), ..row }), Shows::default());

        let long = Request { goal: "g".repeat(900), available_actions: vec!["a".repeat(200); 200], ..run("orders") };
        let kept: LoggedInput<'_> = serde_json::from_str(&long.input(StoreText::Full).leak()[..]).unwrap();
        assert_eq!((kept.goal.len(), kept.available_actions.len(), kept.available_actions[0].len()), (200, 100, 64));
    }

    #[test]
    fn three_in_a_row_are_allowed_and_the_fourth_is_not() {
        let mut story = Story::default();
        for second in 0..3 {
            assert!(story.at(second * 1000).allows(&run("profile")));
        }
        assert_eq!(story.at(3_000).refuses(&run("profile")), Reason::ConsecutiveSameActionSpiral);
        assert_eq!(story.fact("consecutive_count"), Some(Value::Int(3)));
        assert!(story.at(3_000).allows(&run("orders")), "another action breaks the row");
        assert!(story.at(3_000).allows(&run("profile")));
    }

    #[test]
    fn six_of_one_action_are_allowed_and_the_seventh_is_not() {
        let mut story = Story::with_rules(json!({"action_cycle": "off"}));
        for round in 0..6 {
            assert!(story.at(0).allows(&run("profile")), "{round}");
            assert!(story.at(0).allows(&run(&format!("other-{round}"))));
        }
        assert_eq!(story.at(0).refuses(&run("profile")), Reason::SameActionFrequencySpiral);
        assert_eq!(story.retry_after_seconds(), Some(1800));
    }

    #[test]
    fn twenty_actions_are_the_ceiling_and_come_first() {
        let mut story = Story::default();
        for number in 0..20 {
            assert!(story.at(number * 1000).allows(&run(&format!("action-{}", number % 7))));
        }
        assert_eq!(story.at(20_000).refuses(&run("action-0")), Reason::TotalActionCeiling);
        assert_eq!(story.fact("total_actions"), Some(Value::Int(20)));
        let Some(Value::Counts(counts)) = story.fact("action_distribution") else { panic!() };
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 20);
        assert_eq!(story.retry_after_seconds(), Some(1780));
        assert!(story.at(1_800_000).allows(&run("action-6")));
    }

    #[test]
    fn identical_calls_and_cycles_are_only_noted_until_enforced() {
        let mut story = Story::default();
        let call = || Request { params_hash: "p".into(), ..run("get") };
        for (second, other) in ["a", "b", "c"].into_iter().enumerate() {
            assert!(story.at(second as i64).allows(&call()));
            assert!(story.at(second as i64).allows(&run(other)));
        }
        assert!(story.at(5).allows(&call()));
        assert_eq!(story.signals(), [Reason::IdenticalCallSpiral]);

        let mut story = Story::with_rules(json!({"action_cycle": "enforce"}));
        for action in ["a", "b", "a", "b", "a"] {
            assert!(story.at(0).allows(&run(action)));
        }
        assert!(story.at(0).allows(&run("c")));
        for action in ["a", "b", "a", "b", "a"] {
            assert!(story.at(1).allows(&run(action)));
        }
        assert_eq!(story.at(2).refuses(&run("b")), Reason::ActionCycle);
        assert_eq!(story.fact("cycle"), Some(Value::List(vec!["a".into(), "b".into()])));
    }

    #[test]
    fn a_polling_action_may_go_on_while_its_result_changes() {
        let mut story = Story::with_settings(json!({"polling": ["status"]}));
        for (second, percent) in [10, 20, 30, 40, 50].into_iter().enumerate() {
            assert!(story.at(second as i64 * 1000).allows(&run("status")), "{percent}");
            story.at(second as i64 * 1000).tells(&result("status", &format!("{percent} %")));
        }
        // Call 6 repeats the last result: nothing changes from here.
        assert!(story.at(6_000).allows(&run("status")));
        story.at(6_000).tells(&result("status", "50 %"));
        assert_eq!(story.at(7_000).refuses(&run("status")), Reason::SameActionFrequencySpiral, "the frequency ceiling holds for all");
        // An action that is not polling gets no such credit.
        let mut story = Story::default();
        for percent in [10, 20, 30] {
            assert!(story.at(0).allows(&run("status")));
            story.at(0).tells(&result("status", &format!("{percent} %")));
        }
        assert_eq!(story.at(0).refuses(&run("status")), Reason::ConsecutiveSameActionSpiral);
    }

    #[test]
    fn a_result_without_a_call_changes_nothing() {
        let mut story = Story::default();
        assert_eq!(story.at(0).tells(&result("never", "x")), Some(Notice::UnmatchedResult));
        assert!(story.at(0).allows(&run("never")));
        assert_eq!(story.at(0).tells(&result("never", "x")), None);
    }
}
