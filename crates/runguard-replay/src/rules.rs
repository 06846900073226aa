//! Rules that stop runs: RunGuard's, and those of well-known agents, written from their published descriptions.
//!
//! Sources often lack the result of a run's last call, because the run ended before the model was told. Every rule that
//! looks at results takes one that is not known for the one that would complete its pattern; otherwise none could be held
//! against a detector that had seen it.

use crate::trace::{Kind, Run, Step};
use runguard_core::budget::{Budget, Cost, Limits};
use runguard_core::detect::stall::{self, Preset, Rung, StallRule, StallSettings, StallState, Verdict};
use runguard_core::detect::tool_calls::{CallOutcome, SkipReason, TurnCalls};
use runguard_core::limits::InvalidSetting;
use runguard_core::money::NanoDollars;
use runguard_core::{Reason, Span, Timestamp};
use runguard_guards::guard::run_loop;
use runguard_guards::policy::{Mode, Policy, SettingsProblem, Tree, merge};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Watches one run.
pub trait Rule {
    /// Takes the next step and says whether the run is stopped after it.
    fn stops(&mut self, step: &Step) -> bool;
}

/// A rule under test: makes a fresh one for each run.
pub struct Contender {
    pub name: String,
    make: Box<dyn Fn(&Run) -> Box<dyn Rule> + Send + Sync>,
}

impl fmt::Debug for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Contender {
    pub fn new(name: &str, make: impl Fn(&Run) -> Box<dyn Rule> + Send + Sync + 'static) -> Self {
        Self { name: name.to_owned(), make: Box::new(make) }
    }

    /// RunGuard with the preset that fits a run's source, changed as told.
    pub fn runguard(name: &str, change: impl Fn(StallSettings) -> StallSettings) -> Result<Self, InvalidSetting> {
        let checked = |preset: Preset| {
            let settings = change(preset.settings());
            settings.check().map(|()| Arc::new(settings))
        };
        let settings = Preset::ALL.into_iter().map(checked).collect::<Result<Vec<_>, InvalidSetting>>()?;
        Ok(Self::new(name, move |run| {
            let preset = Presets::default().of(&run.source);
            let settings = settings[preset as usize].clone();
            Box::new(RunGuard { settings, state: StallState::default(), person_replies: person_replies(preset) })
        }))
    }

    /// The step after which the run is stopped, from 0.
    pub fn stop(&self, run: &Run) -> Option<usize> {
        let mut rule = (self.make)(run);
        run.steps.iter().position(|step| rule.stops(step))
    }
}

/// RunGuard and the others.
pub fn contenders() -> Result<Vec<Contender>, InvalidSetting> {
    let runguard = Contender::runguard("RunGuard", |settings| settings)?;
    Ok([runguard].into_iter().chain(Other::ALL.map(Other::contender)).collect())
}

/// Another agent's rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    OpenHands,
    GeminiCli,
    Roo,
    LangGraph,
}

impl Other {
    pub const ALL: [Self; 4] = [Self::OpenHands, Self::GeminiCli, Self::Roo, Self::LangGraph];

    pub const fn code(self) -> &'static str {
        match self {
            Self::OpenHands => "openhands",
            Self::GeminiCli => "gemini-cli",
            Self::Roo => "roo",
            Self::LangGraph => "langgraph",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|other| other.code() == code)
    }

    pub fn contender(self) -> Contender {
        match self {
            Self::OpenHands => Contender::new("OpenHands", |_| Box::new(OpenHands::default())),
            Self::GeminiCli => Contender::new("gemini-cli", |_| Box::new(GeminiCli::default())),
            Self::Roo => Contender::new("Roo", |_| Box::new(Roo::default())),
            Self::LangGraph => Contender::new("LangGraph", |_| Box::new(LangGraph::default())),
        }
    }
}

/// Which thresholds a run is watched by: what is known of its source beforehand, never anything about a single run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Presets {
    /// For every source that is not named; without it, by what is known of the source.
    pub always: Option<Preset>,
    pub by_source: Vec<(String, Preset)>,
}

/// Sources whose agents talk with a person, or sit in front of a browser. All others are taken for coding agents.
const KNOWN_SOURCES: &[(&str, Preset)] =
    &[("taubench", Preset::Chatbot), ("webarena", Preset::Browser), ("visualwebarena", Preset::Browser), ("browser-use", Preset::Browser)];

impl Presets {
    pub fn of(&self, source: &str) -> Preset {
        let named = self.by_source.iter().find(|(name, _)| name == source).map(|(_, preset)| *preset);
        let known = || KNOWN_SOURCES.iter().find(|(name, _)| *name == source).map(|(_, preset)| *preset);
        named.or(self.always).or_else(known).unwrap_or(Preset::Coding)
    }
}

/// Whether a message is answered by a person, who starts everything anew, or by the program that drives the agent.
fn person_replies(preset: Preset) -> bool {
    match preset {
        Preset::Chatbot => true,
        Preset::Coding | Preset::Browser | Preset::Research => false,
    }
}

/// RunGuard's stall detector. A nudge is not a stop.
struct RunGuard {
    settings: Arc<StallSettings>,
    state: StallState,
    person_replies: bool,
}

impl Rule for RunGuard {
    fn stops(&mut self, step: &Step) -> bool {
        observe(&mut self.state, &self.settings, step, self.person_replies).rung == Rung::Stop
    }
}

/// Hands a recorded step to the detector, as it would have been told of it live.
pub(crate) fn observe(state: &mut StallState, settings: &StallSettings, step: &Step, person_replies: bool) -> Verdict {
    match step.kind {
        Kind::Call => {
            let step = stall::Step { tool: &step.tool, args: step.args, result: step.result, error: step.error, round: None };
            state.observe(settings, step)
        }
        Kind::Message => {
            let verdict = state.message(settings, step.args);
            if person_replies && step.result.is_some() {
                state.clear();
            }
            verdict
        }
    }
}

/// A guard that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    Stall,
    Loop,
    /// Of one turn: it skips calls, and never ends a run.
    ToolCall,
}

impl Watched {
    pub const ALL: [Self; 3] = [Self::Stall, Self::Loop, Self::ToolCall];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Stall => "stall",
            Self::Loop => "loop",
            Self::ToolCall => "tool_call",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|watched| watched.code() == code)
    }
}

/// What a run may spend. The step that passes a limit is the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caps {
    pub steps: Option<u64>,
    pub tokens: Option<u64>,
    pub usd: Option<NanoDollars>,
    /// From the first step that says when it was.
    pub time: Option<Span>,
}

/// What can end a run, each with thresholds of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ender {
    Stall,
    Loop,
    Steps,
    Tokens,
    Dollars,
    Minutes,
}

impl Ender {
    pub const ALL: [Self; 6] = [Self::Stall, Self::Loop, Self::Steps, Self::Tokens, Self::Dollars, Self::Minutes];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Stall => "stall",
            Self::Loop => "loop",
            Self::Steps => "budget.steps",
            Self::Tokens => "budget.tokens",
            Self::Dollars => "budget.dollars",
            Self::Minutes => "budget.minutes",
        }
    }
}

/// The rule that ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Stall(StallRule),
    Cycle,
    Ceiling,
    Budget(Ender),
}

impl Cause {
    pub const ALL: [Self; 11] = [
        Self::Stall(StallRule::Identical),
        Self::Stall(StallRule::Cycle),
        Self::Stall(StallRule::Novelty),
        Self::Stall(StallRule::SameError),
        Self::Stall(StallRule::Messages),
        Self::Cycle,
        Self::Ceiling,
        Self::Budget(Ender::Steps),
        Self::Budget(Ender::Tokens),
        Self::Budget(Ender::Dollars),
        Self::Budget(Ender::Minutes),
    ];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Stall(StallRule::Identical) => "stall.identical",
            Self::Stall(StallRule::Cycle) => "stall.cycle",
            Self::Stall(StallRule::Novelty) => "stall.novelty",
            Self::Stall(StallRule::SameError) => "stall.same_error",
            Self::Stall(StallRule::Messages) => "stall.messages",
            Self::Cycle => "loop.cycle",
            Self::Ceiling => "loop.ceiling",
            Self::Budget(ender) => ender.code(),
        }
    }

    /// Its number in [`Self::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Self::Stall(rule) => rule as usize,
            Self::Cycle => 5,
            Self::Ceiling => 6,
            Self::Budget(ender) => ender as usize + 5,
        }
    }
}

/// What is done to a run without ending it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nudge {
    /// The model is told.
    Steer,
    /// The call is not made.
    Block,
    Skip(SkipReason),
}

impl Nudge {
    pub const ALL: [Self; 5] = [
        Self::Steer,
        Self::Block,
        Self::Skip(SkipReason::ToolLimit),
        Self::Skip(SkipReason::ExactDuplicate),
        Self::Skip(SkipReason::SimilarQuery),
    ];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Steer => "stall.steer",
            Self::Block => "stall.block",
            Self::Skip(SkipReason::ToolLimit) => "tool_call.tool_limit",
            Self::Skip(SkipReason::ExactDuplicate) => "tool_call.exact_duplicate",
            Self::Skip(SkipReason::SimilarQuery) => "tool_call.similar_query",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Steer => 0,
            Self::Block => 1,
            Self::Skip(reason) => reason as usize + 2,
        }
    }
}

/// What RunGuard watches runs by.
#[derive(Debug, Clone)]
pub struct Guards {
    pub presets: Presets,
    pub caps: Caps,
    /// In the order of [`Preset::ALL`].
    policies: Vec<Policy>,
    watched: Vec<Watched>,
}

impl Guards {
    /// `settings` are as they would stand below `[guards]`, and are laid over those of the preset. A limit in dollars or tokens
    /// that they set is a cap too, unless `caps` has another.
    pub fn new(presets: Presets, settings: &Tree, watched: &[Watched], mut caps: Caps) -> Result<Self, SettingsProblem> {
        let mut policies = Vec::with_capacity(Preset::ALL.len());
        for preset in Preset::ALL {
            let mut tree = Tree::from_iter([("stall".to_owned(), serde_json::json!(preset.settings()))]);
            merge(&mut tree, settings);
            policies.push(Policy::build(&tree, &["guards"])?);
        }
        if let Some(policy) = policies.first() {
            let budget = policy.budget.for_subject("");
            if budget.mode_of(Reason::BudgetExceeded) == Mode::Enforce {
                caps.tokens = caps.tokens.or(Some(budget.settings.max_tokens).filter(|tokens| *tokens > 0));
                caps.usd = caps.usd.or(NanoDollars::from_dollars(budget.settings.max_usd).ok().filter(|usd| !usd.is_zero()));
            }
        }
        Ok(Self { presets, caps, policies, watched: watched.to_vec() })
    }

    pub fn watches(&self, what: Watched) -> bool {
        self.watched.contains(&what)
    }

    fn policy(&self, preset: Preset) -> &Policy {
        &self.policies[preset as usize]
    }

    /// Watches runs one after the other.
    pub fn watch(&self) -> Watch<'_> {
        Watch {
            guards: self,
            stall: self.watches(Watched::Stall),
            loops: self.watches(Watched::Loop),
            tool_calls: self.watches(Watched::ToolCall),
            stall_state: StallState::default(),
            loop_state: run_loop::State::default(),
            call: String::new(),
        }
    }
}

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub preset: Preset,
    /// The step it was ended after, from 0, and by what.
    pub ended: Option<(usize, Cause)>,
    /// The step each would have ended it after, were it alone; also where it only observes. In the order of [`Ender::ALL`].
    pub alone: [Option<usize>; Ender::ALL.len()],
    /// Steps that were nudged before the end, in the order of [`Nudge::ALL`].
    pub nudges: [u32; Nudge::ALL.len()],
    /// Whether its steps say when they were.
    pub has_times: bool,
}

impl Found {
    fn finds(&mut self, ender: Ender, at: usize, cause: Cause, mode: Mode) {
        if mode == Mode::Off {
            return;
        }
        let first = &mut self.alone[ender as usize];
        *first = first.or(Some(at));
        if mode == Mode::Enforce && self.ended.is_none() {
            self.ended = Some((at, cause));
        }
    }

    fn nudged(&mut self, nudge: Nudge) {
        if self.ended.is_none() {
            self.nudges[nudge.index()] += 1;
        }
    }
}

/// Guards at work: holds what one run needs, and is used for the next.
#[derive(Debug)]
pub struct Watch<'a> {
    guards: &'a Guards,
    stall: bool,
    loops: bool,
    tool_calls: bool,
    stall_state: StallState,
    loop_state: run_loop::State,
    /// The name of a call, written again for each.
    call: String,
}

impl Watch<'_> {
    /// Takes a run through all guards, to its recorded end whatever ends it earlier.
    pub fn run(&mut self, run: &Run) -> Found {
        let guards = self.guards;
        let preset = guards.presets.of(&run.source);
        let policy = guards.policy(preset);
        let person_replies = person_replies(preset);
        let mut found = Found { preset, ended: None, alone: [None; 6], nudges: [0; 5], has_times: false };
        let mut spending = Spending::new(&guards.caps);
        let mut turn = TurnCalls::default();
        let mut loops = self.loops;
        self.stall_state.clear();
        self.loop_state.clear();
        for (at, step) in run.steps.iter().enumerate() {
            found.has_times |= step.at_millis.is_some();
            let is_call = step.kind == Kind::Call;
            if self.stall {
                let book = policy.stall.for_subject(if is_call { &step.tool } else { "" });
                if book.mode != Mode::Off {
                    let verdict = observe(&mut self.stall_state, &book.settings.0, step, person_replies);
                    if let Some(rule) = verdict.rule {
                        let mode = book.mode_of(rule.reason());
                        match verdict.rung {
                            Rung::Stop => found.finds(Ender::Stall, at, Cause::Stall(rule), mode),
                            Rung::Block if mode == Mode::Enforce => found.nudged(Nudge::Block),
                            Rung::Steer => found.nudged(Nudge::Steer),
                            Rung::Block | Rung::Observe | Rung::GoOn => {}
                        }
                    }
                }
            }
            if loops && is_call {
                let book = policy.run_loop.for_subject(&step.tool);
                if book.mode != Mode::Off {
                    name_call(&mut self.call, step);
                    let now = Timestamp::from_millis(step.at_millis.unwrap_or(0));
                    if let Some(reason) = self.loop_state.call(&book.settings.thresholds(), &self.call, now) {
                        let cause = if reason == Reason::CallCeiling { Cause::Ceiling } else { Cause::Cycle };
                        let mode = book.mode_of(reason);
                        found.finds(Ender::Loop, at, cause, mode);
                        // A run that is ended makes no further call; one that is only watched does.
                        loops = mode != Mode::Enforce;
                    }
                }
            }
            spending.step(at, step, &mut found);
            if self.tool_calls {
                if is_call {
                    ask_tracker(&mut turn, policy, step, &mut found);
                } else if person_replies && step.result.is_some() {
                    turn = TurnCalls::default();
                }
            }
        }
        found
    }
}

/// A call with its arguments is one name: `read(00000000000000ff)`.
fn name_call(name: &mut String, step: &Step) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    name.clear();
    name.push_str(&step.tool);
    name.push('(');
    for shift in (0..16).rev() {
        name.push(char::from(DIGITS[(step.args >> (4 * shift)) as usize & 15]));
    }
    name.push(')');
}

/// Whether a call is skipped; else it is counted. Arguments that were not kept whole are known by their fingerprint: the same
/// call is seen then, a similar one is not.
fn ask_tracker(turn: &mut TurnCalls, policy: &Policy, step: &Step, found: &mut Found) {
    let book = policy.tool_call.for_subject(&step.tool);
    if book.mode == Mode::Off {
        return;
    }
    let kept = step.texts.as_ref().and_then(|texts| serde_json::from_str::<Value>(&texts.args).ok()).filter(Value::is_object);
    let args = kept.unwrap_or_else(|| serde_json::json!({ "fingerprint": format!("{:016x}", step.args) }));
    let outcome = if step.error.is_some() { CallOutcome::Failed } else { CallOutcome::Completed };
    match turn.should_skip(&book.settings.0, &step.tool, &args) {
        Ok(Some(skip)) => {
            if book.mode_of(skip.reason.reason()) == Mode::Enforce {
                return found.nudged(Nudge::Skip(skip.reason));
            }
        }
        // A call without a name, or with arguments nested too deeply, is not looked at live either.
        Err(_) => return,
        Ok(None) => {}
    }
    let _ = turn.record(&book.settings.0, &step.tool, &args, outcome);
}

/// The books of one run, a budget for each limit, so that each is known alone.
struct Spending {
    steps: Option<Budget>,
    tokens: Option<Budget>,
    usd: Option<Budget>,
    time: Option<Span>,
    began: Option<Timestamp>,
}

impl Spending {
    fn new(caps: &Caps) -> Self {
        let budget = |limits: Limits| (limits != Limits::default()).then(|| Budget::new(limits));
        Self {
            // A step is spent like a token: the one that passes the limit is known.
            steps: budget(Limits { tokens: caps.steps, ..Limits::default() }),
            tokens: budget(Limits { tokens: caps.tokens, ..Limits::default() }),
            usd: budget(Limits { usd: caps.usd, ..Limits::default() }),
            time: caps.time,
            began: None,
        }
    }

    fn step(&mut self, at: usize, step: &Step, found: &mut Found) {
        let costs = [
            (Ender::Steps, &mut self.steps, Cost::tokens(1)),
            (Ender::Tokens, &mut self.tokens, Cost::tokens(step.tokens)),
            (Ender::Dollars, &mut self.usd, Cost::usd(NanoDollars::from_dollars(step.dollars).unwrap_or(NanoDollars::ZERO))),
        ];
        for (ender, budget, cost) in costs {
            // What is passed stays passed: asking again would tell nothing more.
            if budget.as_ref().is_some_and(|budget| budget.record(cost).is_err()) {
                *budget = None;
                found.finds(ender, at, Cause::Budget(ender), Mode::Enforce);
            }
        }
        if let (Some(limit), Some(millis)) = (self.time, step.at_millis) {
            let now = Timestamp::from_millis(millis);
            let began = *self.began.get_or_insert(now);
            if now.millis_since(began) > i64::try_from(limit.as_millis()).unwrap_or(i64::MAX) {
                self.time = None;
                found.finds(Ender::Minutes, at, Cause::Budget(Ender::Minutes), Mode::Enforce);
            }
        }
    }
}

/// What a rule keeps of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Done {
    call: bool,
    /// The hash of its name.
    tool: u64,
    args: u64,
    result: Option<u64>,
    failed: bool,
}

impl Done {
    fn of(step: &Step) -> Self {
        let (tool, args) = step.action();
        Self { call: step.kind == Kind::Call, tool: xxh3_64(tool.as_bytes()), args, result: step.result, failed: step.error.is_some() }
    }

    fn same_action(&self, other: &Self) -> bool {
        (self.call, self.args, self.tool) == (other.call, other.args, other.tool)
    }

    fn same_pair(&self, other: &Self) -> bool {
        self.same_action(other) && (self.result == other.result || self.result.is_none() || other.result.is_none())
    }
}

/// The last `count`, when there are as many.
fn latest<T>(of: &[T], count: usize) -> Option<&[T]> {
    of.len().checked_sub(count).map(|from| &of[from..])
}

/// The `StuckDetector` of `OpenHands`: four equal actions with equal observations, three equal actions that all failed, three equal
/// messages, or two pairs that alternate for six steps.
#[derive(Debug, Default)]
struct OpenHands {
    done: Vec<Done>,
}

impl Rule for OpenHands {
    fn stops(&mut self, step: &Step) -> bool {
        if self.done.len() == 6 {
            self.done.remove(0);
        }
        self.done.push(Done::of(step));
        let latest = |count| latest(&self.done, count).unwrap_or_default();
        let all = |count, test: &dyn Fn(&Done, &Done) -> bool| match latest(count) {
            [first, others @ ..] => others.iter().all(|other| test(first, other)),
            [] => false,
        };
        let six = latest(6);
        all(4, &|first, other| first.call && first.same_pair(other))
            || all(3, &|first, other| first.call && first.failed && other.failed && first.same_action(other))
            || all(3, &|first, other| !first.call && first.same_action(other))
            || (six.len() == 6 && (0..4).all(|index| six[index].same_pair(&six[index + 2])))
    }
}

/// gemini-cli's loop detection: one to five calls, in the same order five times, whatever they gave.
#[derive(Debug, Default)]
struct GeminiCli {
    calls: Vec<Done>,
}

impl GeminiCli {
    const LONGEST: usize = 5;
    const TIMES: usize = 5;
}

impl Rule for GeminiCli {
    fn stops(&mut self, step: &Step) -> bool {
        if step.kind != Kind::Call {
            return false;
        }
        if self.calls.len() == Self::LONGEST * Self::TIMES {
            self.calls.remove(0);
        }
        self.calls.push(Done::of(step));
        (1..=Self::LONGEST).any(|period| {
            latest(&self.calls, period * Self::TIMES)
                .is_some_and(|calls| calls.iter().zip(&calls[period..]).all(|(call, later)| call.same_action(later)))
        })
    }
}

/// Roo Code's repetition limit: three equal calls in a row, whatever they gave.
#[derive(Debug, Default)]
struct Roo {
    last: Option<Done>,
    in_a_row: u32,
}

impl Rule for Roo {
    fn stops(&mut self, step: &Step) -> bool {
        if step.kind != Kind::Call {
            return false;
        }
        let call = Done::of(step);
        self.in_a_row = if self.last.as_ref().is_some_and(|last| last.same_action(&call)) { self.in_a_row + 1 } else { 1 };
        self.last = Some(call);
        self.in_a_row >= 3
    }
}

/// The recursion limit of `LangGraph`: a run that needs more than 25 steps ends.
#[derive(Debug, Default)]
struct LangGraph {
    steps: u32,
}

impl Rule for LangGraph {
    fn stops(&mut self, _: &Step) -> bool {
        self.steps += 1;
        self.steps > 25
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn call(args: u64, result: u64) -> Step {
        Step {
            kind: Kind::Call,
            tool: "sh".into(),
            args,
            result: Some(result),
            error: None,
            tokens: 10,
            dollars: 0.5,
            at_millis: None,
            texts: None,
        }
    }

    fn failed(args: u64, error: u64) -> Step {
        Step { error: Some(error), ..call(args, error) }
    }

    fn said(text: u64) -> Step {
        Step { kind: Kind::Message, tool: "__message__".into(), result: Some(1), ..call(text, 1) }
    }

    fn unknown(args: u64) -> Step {
        Step { result: None, ..call(args, 0) }
    }

    pub(crate) fn run(source: &str, steps: Vec<Step>) -> Run {
        Run {
            id: "r".into(),
            source: source.into(),
            task: "t".into(),
            model: "m".into(),
            agent: "a".into(),
            success: Some(false),
            stuck: None,
            native_tools: None,
            place: crate::trace::ReadAt::default(),
            steps,
        }
    }

    fn stop(name: &str, steps: Vec<Step>) -> Option<usize> {
        let contenders = contenders().unwrap();
        contenders.iter().find(|contender| contender.name == name).unwrap().stop(&run("s", steps))
    }

    #[test]
    fn openhands_stops_four_equal_pairs() {
        assert_eq!(stop("OpenHands", vec![call(1, 1); 6]), Some(3));
        assert_eq!(stop("OpenHands", (0..9).map(|result| call(1, result)).collect()), None, "another result");
        assert_eq!(stop("OpenHands", [vec![call(1, 1); 3], vec![unknown(1)]].concat()), Some(3), "the last result is not known");
    }

    #[test]
    fn openhands_stops_three_equal_actions_with_errors_and_three_equal_messages() {
        assert_eq!(stop("OpenHands", vec![failed(1, 1), failed(1, 2), failed(1, 3)]), Some(2));
        assert_eq!(stop("OpenHands", vec![failed(1, 1), failed(2, 1), failed(3, 1)]), None, "other arguments");
        assert_eq!(stop("OpenHands", vec![said(1), said(1), said(1)]), Some(2));
        assert_eq!(stop("OpenHands", vec![said(1), said(2), said(1)]), None);
    }

    #[test]
    fn openhands_stops_two_pairs_that_alternate_six_times() {
        let alternating: Vec<Step> = (0..8).map(|index| call(index % 2, index % 2)).collect();
        assert_eq!(stop("OpenHands", alternating), Some(5));
        assert_eq!(stop("OpenHands", (0..12).map(|index| call(index % 3, index % 3)).collect()), None, "a round of three");
    }

    #[test]
    fn gemini_cli_stops_rounds_of_up_to_five_calls_made_five_times() {
        for period in 1..=5_usize {
            let steps = (0..40).map(|index| call((index % period) as u64, index as u64)).collect();
            assert_eq!(stop("gemini-cli", steps), Some(period * 5 - 1), "whatever the results");
        }
        assert_eq!(stop("gemini-cli", (0..60).map(|index| call(index % 6, 1)).collect()), None);
    }

    #[test]
    fn roo_stops_three_equal_calls() {
        assert_eq!(stop("Roo", (0..3).map(|result| call(1, result)).collect()), Some(2));
        assert_eq!(stop("Roo", vec![call(1, 1), call(1, 1), call(2, 1), call(1, 1)]), None);
    }

    #[test]
    fn langgraph_stops_a_run_that_needs_more_than_25_steps() {
        assert_eq!(stop("LangGraph", (0..25).map(|args| call(args, args)).collect()), None);
        assert_eq!(stop("LangGraph", (0..40).map(|args| call(args, args)).collect()), Some(25));
    }

    #[test]
    fn runguard_nudges_at_three_and_stops_at_four() {
        assert_eq!(stop("RunGuard", vec![call(1, 1); 3]), None);
        assert_eq!(stop("RunGuard", vec![call(1, 1); 6]), Some(3));
    }

    #[test]
    fn the_preset_follows_the_source_and_a_person_starts_anew() {
        let contenders = contenders().unwrap();
        let stop = |source: &str, steps: Vec<Step>| contenders[0].stop(&run(source, steps));
        assert_eq!(stop("taubench", vec![call(1, 1); 6]), Some(2), "somebody waits for the answer");
        let asked: Vec<Step> = (0..9).flat_map(|_| [call(1, 1), said(1)]).collect();
        assert_eq!(stop("taubench", asked), None);
    }

    fn guards(settings: Value, watched: &[Watched], caps: Caps) -> Result<Guards, SettingsProblem> {
        Guards::new(Presets::default(), settings.as_object().unwrap(), watched, caps)
    }

    fn found(settings: Value, watched: &[Watched], caps: Caps, steps: Vec<Step>) -> Found {
        guards(settings, watched, caps).unwrap().watch().run(&run("s", steps))
    }

    fn others(count: u64) -> Vec<Step> {
        (0..count).map(|index| Step { at_millis: Some(index as i64 * 30_000), ..call(index, index) }).collect()
    }

    #[test]
    fn codes_and_numbers_agree() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause.index(), index, "{}", cause.code());
        }
        for (index, nudge) in Nudge::ALL.into_iter().enumerate() {
            assert_eq!(nudge.index(), index, "{}", nudge.code());
        }
        for (index, ender) in Ender::ALL.into_iter().enumerate() {
            assert_eq!(ender as usize, index);
        }
        for (index, preset) in Preset::ALL.into_iter().enumerate() {
            assert_eq!(preset as usize, index);
        }
        assert!(Other::ALL.into_iter().all(|other| Other::from_code(other.code()) == Some(other)));
        assert!(Watched::ALL.into_iter().all(|watched| Watched::from_code(watched.code()) == Some(watched)));
    }

    #[test]
    fn a_budget_ends_a_run_at_exactly_the_step_that_passes_it() {
        let none = Caps::default();
        for (caps, ender, at) in [
            (Caps { steps: Some(7), ..none }, Ender::Steps, 7),
            (Caps { tokens: Some(70), ..none }, Ender::Tokens, 7),
            (Caps { tokens: Some(69), ..none }, Ender::Tokens, 6),
            (Caps { usd: Some(NanoDollars::parse("3.5").unwrap()), ..none }, Ender::Dollars, 7),
            (Caps { usd: Some(NanoDollars::parse("3.499999999").unwrap()), ..none }, Ender::Dollars, 6),
            (Caps { time: Some(Span::from_seconds(210)), ..none }, Ender::Minutes, 8),
            (Caps { time: Some(Span::from_seconds(209)), ..none }, Ender::Minutes, 7),
        ] {
            let found = found(serde_json::json!({}), &[], caps, others(20));
            assert_eq!(found.ended, Some((at, Cause::Budget(ender))), "{caps:?}");
            assert_eq!(found.alone.iter().flatten().count(), 1);
        }
        let exactly = Caps { steps: Some(20), tokens: Some(200), usd: NanoDollars::parse("10").ok(), time: Some(Span::from_seconds(570)) };
        assert_eq!(found(serde_json::json!({}), &[], exactly, others(20)).ended, None, "what is reached is not passed");
    }

    #[test]
    fn limits_of_the_settings_are_caps_unless_others_are_given() {
        let settings = serde_json::json!({"budget": {"max_usd": 2, "max_tokens": 1000}});
        assert_eq!(found(settings.clone(), &[], Caps::default(), others(20)).ended, Some((4, Cause::Budget(Ender::Dollars))));
        let own = Caps { usd: NanoDollars::parse("1").ok(), ..Caps::default() };
        assert_eq!(found(settings, &[], own, others(20)).ended, Some((2, Cause::Budget(Ender::Dollars))));
        let observed = serde_json::json!({"budget": {"max_usd": 2, "mode": "observe"}});
        assert_eq!(found(observed, &[], Caps::default(), others(20)).ended, None);
    }

    #[test]
    fn the_first_to_find_something_ends_the_run_and_each_is_known_alone() {
        let both = [Watched::Stall, Watched::Loop];
        let caps = Caps { steps: Some(5), ..Caps::default() };
        let found = found(serde_json::json!({}), &both, caps, vec![call(1, 1); 9]);
        assert_eq!(found.ended, Some((2, Cause::Cycle)), "three equal calls, whatever they gave");
        assert_eq!(found.alone, [Some(3), Some(2), Some(5), None, None, None]);
        assert_eq!(found.nudges, [1, 0, 0, 0, 0], "the third step was told of before the loop ended it");
    }

    #[test]
    fn thresholds_and_modes_are_those_of_the_service() {
        let nine = || vec![call(1, 1); 9];
        let ended = |settings: Value| found(settings, &[Watched::Stall, Watched::Loop], Caps::default(), nine()).ended;
        assert_eq!(ended(serde_json::json!({"loop": {"repeats": 5}})), Some((3, Cause::Stall(StallRule::Identical))));
        let later = serde_json::json!({"loop": {"mode": "off"}, "stall": {"identical": {"stop": 7}, "novelty_window": 0}});
        assert_eq!(ended(later), Some((6, Cause::Stall(StallRule::Identical))));
        let watching = serde_json::json!({"loop": {"mode": "observe"}, "stall": {"rules": {"stalled_identical": "off", "stalled_no_news": "observe"}}});
        let seen = found(watching, &[Watched::Stall, Watched::Loop], Caps::default(), nine());
        assert_eq!((seen.ended, seen.alone[1]), (None, Some(2)), "observing ends nothing and is counted");
        let of_tool = serde_json::json!({"loop": {"tools": {"sh": {"repeats": 6}}}, "stall": {"tools": {"sh": {"mode": "off"}}}});
        assert_eq!(ended(of_tool), Some((5, Cause::Cycle)));
        let ceiling = serde_json::json!({"loop": {"max_calls": 1}});
        assert_eq!(ended(ceiling), Some((1, Cause::Ceiling)));
    }

    #[test]
    fn a_mistyped_setting_is_refused_with_the_right_name() {
        let refused = |settings: Value| guards(settings, &[], Caps::default()).unwrap_err();
        let problem = refused(serde_json::json!({"stall": {"identicl": {"stop": 5}}}));
        assert_eq!(problem.path, ["guards", "stall", "identicl"]);
        assert!(problem.problem.contains("did you mean `identical`?"), "{problem:?}");
        assert!(refused(serde_json::json!({"stal": {}})).problem.contains("did you mean `stall`?"));
        assert!(refused(serde_json::json!({"stall": {"identical": {"stop": 1}}})).problem.contains("from 2 to 1000"));
    }

    #[test]
    fn presets_are_chosen_by_source_and_can_be_named() {
        let presets = Presets { always: None, by_source: vec![("mine".into(), Preset::Research)] };
        assert_eq!(
            ["taubench", "webarena", "mine", "x"].map(|source| presets.of(source)),
            [Preset::Chatbot, Preset::Browser, Preset::Research, Preset::Coding]
        );
        let presets = Presets { always: Some(Preset::Browser), ..presets };
        assert_eq!(["taubench", "mine"].map(|source| presets.of(source)), [Preset::Browser, Preset::Research]);
        let guards = Guards::new(presets, &Tree::new(), &[Watched::Stall], Caps::default()).unwrap();
        assert_eq!(guards.watch().run(&run("x", vec![call(1, 1); 6])).ended, Some((4, Cause::Stall(StallRule::Identical))), "of browser");
        // A setting is laid over every preset.
        let settings = serde_json::json!({"stall": {"identical": {"stop": 6}, "novelty_window": 0}});
        let guards = Guards::new(Presets::default(), settings.as_object().unwrap(), &[Watched::Stall], Caps::default()).unwrap();
        for source in ["taubench", "x"] {
            assert_eq!(guards.watch().run(&run(source, vec![call(1, 1); 9])).ended, Some((5, Cause::Stall(StallRule::Identical))));
        }
    }

    #[test]
    fn the_tracker_skips_and_never_ends() {
        let texts = |args: &str| Some(Box::new(crate::trace::Texts { args: args.into(), result: String::new() }));
        let search = |args: &str| Step { tool: "search_knowledge".into(), texts: texts(args), ..call(args.len() as u64, 1) };
        let steps = vec![
            search(r#"{"query": "fix bug"}"#),
            search(r#"{"query": "fix the bug"}"#),
            search(r#"{"query": "fix bug"}"#),
            search(r#"{"query": "weather in Rome"}"#),
            search(r#"{"query": "trains to Oslo"}"#),
        ];
        let seen = found(serde_json::json!({}), &[Watched::ToolCall], Caps::default(), steps.clone());
        assert_eq!((seen.ended, seen.nudges), (None, [0, 0, 1, 1, 1]));
        let without_texts: Vec<Step> = steps.into_iter().map(|step| Step { texts: None, ..step }).collect();
        let seen = found(serde_json::json!({}), &[Watched::ToolCall], Caps::default(), without_texts);
        assert_eq!(seen.nudges, [0, 0, 3, 0, 0], "by fingerprint two others came first, then the limit was reached");
        // Whoever is answered by a person begins a turn.
        let turns: Vec<Step> = (0..6).flat_map(|_| [search("{}"), said(1)]).collect();
        let guards = guards(serde_json::json!({}), &[Watched::ToolCall], Caps::default()).unwrap();
        assert_eq!(guards.watch().run(&run("taubench", turns.clone())).nudges, [0; 5]);
        assert_eq!(guards.watch().run(&run("s", turns)).nudges[3], 5);
    }
}
