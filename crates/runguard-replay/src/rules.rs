//! Rules that stop runs: RunGuard's, as they are asked live, beside those of others.
//!
//! Sources often lack the result of a run's last call, because the run ended before the model was told. Every rule that
//! looks at results takes one that is not known for the one that would complete its pattern; otherwise none could be held
//! against a detector that had seen it.

mod others;

pub use self::others::Other;
use crate::evaluate::Lengths;
use crate::front::only;
use crate::trace::{Detail, Kind, Run, Step};
use runguard_core::budget::{Budget, Cost, Limits};
use runguard_core::detect::stall::{
    self, Kinds, Preset, PresetChoice, Rung, StallRule, StallSettings, StallState, Verdict, VolatileResults,
};
use runguard_core::detect::tool_calls::{CallOutcome, SkipReason, TurnCalls};
use runguard_core::limits::InvalidSetting;
use runguard_core::money::NanoDollars;
use runguard_core::{GuardName, Reason, Span, Timestamp};
use runguard_guards::guard::run_loop;
use runguard_guards::pattern::Patterns;
use runguard_guards::policy::{Mode, Policy, SettingsProblem, Tree, merge};
use serde_json::Value;
use std::collections::BTreeMap;
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

    /// RunGuard with the preset that fits a run, changed as told.
    pub fn runguard(name: &str, change: impl Fn(StallSettings) -> StallSettings) -> Result<Self, InvalidSetting> {
        let checked = |preset: Preset| {
            let settings = change(preset.settings());
            settings.check().map(|()| settings)
        };
        let settings: Arc<[StallSettings]> = Preset::ALL.into_iter().map(checked).collect::<Result<_, InvalidSetting>>()?;
        Ok(Self::new(name, move |_| RunGuard::watching(settings.clone())))
    }

    /// RunGuard with the preset that fits a run, changed by what is known of its kind beforehand.
    pub fn runguard_by_kind(name: &str, change: impl Fn(&Run, StallSettings) -> StallSettings + Send + Sync + 'static) -> Self {
        Self::new(name, move |run| RunGuard::watching(Preset::ALL.into_iter().map(|preset| change(run, preset.settings())).collect()))
    }

    /// One rule of RunGuard's with all others off, so that its own price is seen.
    pub fn alone(rule: StallRule) -> Result<Self, InvalidSetting> {
        Self::runguard(rule.code(), |settings| only(rule, settings))
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

/// Which thresholds a run is watched by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Presets {
    /// For every source that is not named; without it, by the calls that a run begins with.
    pub always: Option<Preset>,
    pub by_source: Vec<(String, Preset)>,
}

impl Presets {
    /// Those that a run may be watched by.
    pub fn in_use(&self) -> impl Iterator<Item = Preset> + '_ {
        let is_used = |preset: &Preset| match self.always {
            Some(always) => always == *preset || self.by_source.iter().any(|(_, named)| named == preset),
            None => true,
        };
        Preset::ALL.into_iter().filter(is_used)
    }

    /// For a run of a source: what was named for it, or for all; otherwise it is told by the run's calls.
    pub(crate) fn of(&self, source: &str) -> AgentKind {
        let named = self.by_source.iter().find(|(name, _)| name == source).map(|(_, preset)| *preset);
        AgentKind { choice: PresetChoice(named.or(self.always)), kinds: Kinds::default() }
    }
}

/// What a run is watched by, while it goes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AgentKind {
    choice: PresetChoice,
    kinds: Kinds,
}

impl AgentKind {
    fn preset(self) -> Preset {
        self.choice.of(self.kinds)
    }

    /// What a run turns out to be.
    pub(crate) fn of_run(mut self, run: &Run) -> Preset {
        for step in &run.steps {
            self.at(step);
        }
        self.preset()
    }

    /// By what it is watched at its next step, as far as is known then.
    pub(crate) fn at(&mut self, step: &Step) -> Preset {
        if step.spoke == Some(true) {
            self.kinds.person_spoke();
        }
        match step.kind {
            Kind::Call => self.kinds.called(&step.tool, step.effect),
            Kind::Message if step.spoke.is_none() && step.result.is_some() => self.kinds.person_answered(),
            Kind::Message => {}
        }
        self.preset()
    }
}

/// Whether the answer to this step is a person's, who starts everything anew, and not of the program that drives the agent: by the kind of
/// agent, where the source does not say who spoke.
fn person_replied(preset: Preset, step: &Step) -> bool {
    let may_be_person = match preset {
        Preset::Chatbot => true,
        Preset::Coding | Preset::Browser | Preset::Research => false,
    };
    may_be_person && step.spoke.is_none() && step.kind == Kind::Message && step.result.is_some()
}

/// RunGuard's stall detector. A nudge is not a stop.
struct RunGuard {
    /// In the order of [`Preset::ALL`].
    settings: Arc<[StallSettings]>,
    state: StallState,
    kind: AgentKind,
}

impl RunGuard {
    fn watching(settings: Arc<[StallSettings]>) -> Box<dyn Rule> {
        Box::new(Self { settings, state: StallState::default(), kind: AgentKind::default() })
    }
}

impl Rule for RunGuard {
    fn stops(&mut self, step: &Step) -> bool {
        let preset = self.kind.at(step);
        observe(&mut self.state, &self.settings[preset as usize], step, preset).refuses().is_some()
    }
}

/// Hands a recorded step to the detector, as it would have been told of it live.
pub(crate) fn observe(state: &mut StallState, settings: &StallSettings, step: &Step, preset: Preset) -> Verdict {
    if step.spoke == Some(true) {
        state.person_spoke();
    }
    state.spent(step.tokens);
    match step.kind {
        Kind::Call => {
            let Step { tool, args, result, error, round, effect, .. } = step;
            state.observe(settings, stall::Step { tool, args: *args, result: *result, error: *error, round: *round, effect: *effect })
        }
        Kind::Message => {
            let verdict = state.message(settings, step.args);
            if person_replied(preset, step) {
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
        self.guard().code()
    }

    const fn guard(self) -> GuardName {
        match self {
            Self::Stall => GuardName::Stall,
            Self::Loop => GuardName::Loop,
            Self::ToolCall => GuardName::ToolCall,
        }
    }

    /// What it looks for, in a few words.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Stall => "a run that gets nowhere, by what its calls give",
            Self::Loop => "the same calls in the same order again",
            Self::ToolCall => "a tool that is called again for what it has given already; it skips calls, and ends no run",
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

    /// As [`Cause::spared`].
    pub(crate) fn spared(self, run: &Run, at: usize) -> &[Step] {
        match self {
            Self::Stall | Self::Loop => run.spared(at),
            Self::Steps | Self::Tokens | Self::Dollars | Self::Minutes => Cause::Budget(self).spared(run, at),
        }
    }

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
    pub const ALL: [Self; 16] = [
        Self::Stall(StallRule::Identical),
        Self::Stall(StallRule::Cycle),
        Self::Stall(StallRule::Novelty),
        Self::Stall(StallRule::SameError),
        Self::Stall(StallRule::Messages),
        Self::Stall(StallRule::Unmoved),
        Self::Stall(StallRule::PutBack),
        Self::Stall(StallRule::SameResult),
        Self::Stall(StallRule::Failing),
        Self::Stall(StallRule::LongRun),
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
            Self::Stall(StallRule::Unmoved) => "stall.unmoved",
            Self::Stall(StallRule::PutBack) => "stall.put_back",
            Self::Stall(StallRule::SameResult) => "stall.same_result",
            Self::Stall(StallRule::Failing) => "stall.failing",
            Self::Stall(StallRule::LongRun) => "stall.long_run",
            Self::Cycle => "loop.cycle",
            Self::Ceiling => "loop.ceiling",
            Self::Budget(ender) => ender.code(),
        }
    }

    /// What happened, for one who reads of a run that was ended.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Stall(StallRule::Identical) => "the same call gave the same result again and again",
            Self::Stall(StallRule::Cycle) => "the same calls came round again and again with the same results",
            Self::Stall(StallRule::Novelty) => "nearly nothing of what was done brought anything new",
            Self::Stall(StallRule::SameError) => "the same error came again and again",
            Self::Stall(StallRule::Messages) => "the same was said again and again",
            Self::Stall(StallRule::Unmoved) => "the same check gave the same again and again, whatever was changed in between",
            Self::Stall(StallRule::PutBack) => "a file was put back to what it had been again and again",
            Self::Stall(StallRule::SameResult) => "calls that look at different things gave the same again and again",
            Self::Stall(StallRule::Failing) => "call after call failed",
            Self::Stall(StallRule::LongRun) => {
                "the run got longer than others of its kind, and a check failed again after a change or a file was put back again and again"
            }
            Self::Cycle => "the loop detector saw the same calls in the same order as often as it allows, whatever they gave",
            Self::Ceiling => "the loop detector counted more calls than one conversation may make",
            Self::Budget(Ender::Steps) => "the limit of steps was passed",
            Self::Budget(Ender::Tokens) => "the limit of tokens was passed",
            Self::Budget(Ender::Dollars) => "the limit of dollars was passed",
            Self::Budget(Ender::Minutes) => "the limit of time was passed",
            Self::Budget(Ender::Stall | Ender::Loop) => "a limit was passed",
        }
    }

    /// What of a run comes after its end and would have been spared: a detector counts anew when a person speaks, a limit that is passed stays so.
    pub fn spared(self, run: &Run, at: usize) -> &[Step] {
        match self {
            Self::Stall(_) | Self::Cycle | Self::Ceiling => run.spared(at),
            Self::Budget(_) => run.steps.get(at + 1..).unwrap_or_default(),
        }
    }

    /// Its number in [`Self::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Self::Stall(rule) => rule as usize,
            Self::Cycle => StallRule::ALL.len(),
            Self::Ceiling => StallRule::ALL.len() + 1,
            Self::Budget(ender) => ender as usize + StallRule::ALL.len(),
        }
    }
}

/// What is done to a run without ending it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nudge {
    /// The model is told.
    Steer,
    Skip(SkipReason),
}

impl Nudge {
    pub const ALL: [Self; 4] =
        [Self::Steer, Self::Skip(SkipReason::ToolLimit), Self::Skip(SkipReason::ExactDuplicate), Self::Skip(SkipReason::SimilarQuery)];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Steer => "stall.steer",
            Self::Skip(SkipReason::ToolLimit) => "tool_call.tool_limit",
            Self::Skip(SkipReason::ExactDuplicate) => "tool_call.exact_duplicate",
            Self::Skip(SkipReason::SimilarQuery) => "tool_call.similar_query",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Steer => 0,
            Self::Skip(reason) => reason as usize + 1,
        }
    }
}

/// What RunGuard watches runs by.
#[derive(Debug, Clone)]
pub struct Guards {
    pub presets: Presets,
    pub caps: Caps,
    /// In the order of [`Preset::ALL`], and what they are made of.
    policies: Vec<Policy>,
    trees: Vec<Tree>,
    /// The same for runs of which it is known what is long among them: by source and model.
    of_kinds: BTreeMap<String, BTreeMap<String, Vec<Policy>>>,
    watched: Vec<Watched>,
    /// What is never news in results. Runs are read by it on many threads, until the program ends.
    volatile: &'static VolatileResults,
}

impl Guards {
    /// `settings` are as they would stand below `[guards]`, and are laid over those of the preset. A limit in dollars or tokens
    /// that they set is a cap too, unless `caps` has another.
    pub fn new(presets: Presets, settings: &Tree, watched: &[Watched], mut caps: Caps) -> Result<Self, SettingsProblem> {
        let (mut policies, mut trees) = (Vec::with_capacity(Preset::ALL.len()), Vec::with_capacity(Preset::ALL.len()));
        for preset in Preset::ALL {
            let mut tree = Tree::from_iter([("stall".to_owned(), serde_json::json!(preset.settings()))]);
            merge(&mut tree, settings);
            policies.push(Policy::build(&tree, &["guards"])?);
            trees.push(tree);
        }
        let volatile = policies.first().map_or(VolatileResults::NONE, |policy| kept_for_ever(&stall_settings_of(policy).volatile));
        if let Some(policy) = policies.first() {
            let budget = policy.budget.for_subject("");
            if budget.mode_of(Reason::BudgetExceeded) == Mode::Enforce {
                caps.tokens = caps.tokens.or(Some(budget.settings.max_tokens).filter(|tokens| *tokens > 0));
                caps.usd = caps.usd.or(NanoDollars::limit_from_dollars(budget.settings.max_usd).ok().filter(|usd| !usd.is_zero()));
            }
        }
        Ok(Self { presets, caps, policies, trees, of_kinds: BTreeMap::new(), watched: watched.to_vec(), volatile })
    }

    /// How runs are read for them: with their texts where a guard looks at those.
    pub fn detail(&self) -> Detail {
        let detail = if self.watches(Watched::ToolCall) { Detail::TEXTS } else { Detail::FINGERPRINTS };
        detail.without(self.volatile)
    }

    /// The same for whoever shows runs.
    pub fn detail_with_texts(&self) -> Detail {
        Detail::TEXTS.without(self.volatile)
    }

    /// Whether it matters to them how long other runs of a kind are.
    pub fn learn_what_is_long(&self) -> bool {
        self.watches(Watched::Stall) && self.policies.iter().any(|policy| stall_settings_of(policy).takes_what_is_long())
    }

    /// These, knowing how long runs of each kind are, as a service knows it that has them in its log.
    pub fn knowing(mut self, lengths: &Lengths) -> Result<Self, SettingsProblem> {
        self.of_kinds.clear();
        for ((source, model), long) in lengths.known() {
            let policies = self.policies.iter().zip(&self.trees).map(|(policy, tree)| {
                let settings = long.over(stall_settings_of(policy).clone());
                let said = serde_json::json!({"long_run": settings.long_run, "long_run_tokens": settings.long_run_tokens});
                let over = Tree::from_iter([("stall".to_owned(), said)]);
                policy.overridden(tree, &over, &["guards"], &mut Patterns::default())
            });
            let policies = policies.collect::<Result<Vec<_>, _>>()?;
            self.of_kinds.entry(source).or_default().insert(model, policies);
        }
        Ok(self)
    }

    /// Those by which a run is watched, in the order of [`Preset::ALL`].
    fn policies_of(&self, run: &Run) -> &[Policy] {
        self.of_kinds.get(&run.source).and_then(|models| models.get(&run.model)).unwrap_or(&self.policies)
    }

    pub fn watches(&self, what: Watched) -> bool {
        self.watched.contains(&what)
    }

    fn policy(&self, preset: Preset) -> &Policy {
        &self.policies[preset as usize]
    }

    /// The stall detector alone, by these thresholds whatever the kind of a run is.
    pub fn of_stall(settings: &StallSettings, presets: Presets) -> Result<Self, SettingsProblem> {
        let tree = Tree::from_iter([("stall".to_owned(), serde_json::json!(settings))]);
        Self::new(presets, &tree, &[Watched::Stall], Caps::default())
    }

    /// The thresholds of the stall detector for runs of that kind, as they are where no tool has others.
    pub fn stall_settings(&self, preset: Preset) -> &StallSettings {
        stall_settings_of(self.policy(preset))
    }

    /// The same for one run, whose kind may be known.
    pub fn stall_settings_for(&self, run: &Run, preset: Preset) -> &StallSettings {
        stall_settings_of(&self.policies_of(run)[preset as usize])
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
            side_by_side: (None, Vec::new()),
            others: Vec::new(),
        }
    }
}

fn stall_settings_of(policy: &Policy) -> &StallSettings {
    &policy.stall.for_subject("").settings.0.all
}

/// There is one such list a program.
fn kept_for_ever(volatile: &VolatileResults) -> &'static VolatileResults {
    if volatile.is_empty() { VolatileResults::NONE } else { Box::leak(Box::new(volatile.clone())) }
}

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunFindings {
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

impl RunFindings {
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

/// Looks on while a run is watched.
pub trait Onlooker {
    /// Before a step is told to the stall detector.
    fn before(&mut self, _state: &StallState, _settings: &StallSettings) {}

    /// A step was taken through everything.
    fn after(&mut self, _seen: &StepFindings<'_>) {}
}

/// Nobody.
impl Onlooker for () {}

/// What guards made of a step.
#[derive(Debug)]
pub struct StepFindings<'a> {
    pub at: usize,
    pub step: &'a Step,
    /// The stall detector after the step, and the thresholds it was asked by, unless it is off.
    pub stall: Option<(&'a StallState, &'a StallSettings)>,
    /// What it said, and how that is handled.
    pub verdict: Option<(Verdict, Mode)>,
    /// What else was found at this step, and how that is handled.
    pub others: &'a [(Cause, Mode)],
    /// The run is ended after it.
    pub ended: Option<Cause>,
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
    /// The latest turn of the model that had calls side by side, and those it had.
    side_by_side: (Option<u64>, Vec<(u64, u64)>),
    /// What others than the stall detector found at a step.
    others: Vec<(Cause, Mode)>,
}

impl Watch<'_> {
    /// Takes a run through all guards, to its recorded end whatever ends it earlier.
    pub fn run(&mut self, run: &Run) -> RunFindings {
        self.run_before(run, &mut ())
    }

    /// [`Self::run`], with somebody looking on.
    pub fn run_before(&mut self, run: &Run, onlooker: &mut impl Onlooker) -> RunFindings {
        let guards = self.guards;
        let policies = guards.policies_of(run);
        let mut kind = guards.presets.of(&run.source);
        let mut found = RunFindings { preset: kind.preset(), ended: None, alone: [None; 6], nudges: [0; 4], has_times: false };
        let mut spending = Spending::new(&guards.caps);
        let mut turn = TurnCalls::default();
        let mut loops = self.loops;
        self.stall_state.clear();
        self.loop_state.clear();
        self.side_by_side.0 = None;
        for (at, step) in run.steps.iter().enumerate() {
            found.has_times |= step.at_millis.is_some();
            let preset = kind.at(step);
            found.preset = if found.ended.is_none() { preset } else { found.preset };
            let policy = &policies[preset as usize];
            let is_call = step.kind == Kind::Call;
            let was_ended = found.ended.is_some();
            let (mut asked_by, mut said) = (None, None);
            self.others.clear();
            if self.stall {
                let book = policy.stall.for_subject(if is_call { &step.tool } else { "" });
                if book.mode != Mode::Off {
                    let thresholds = &book.settings.0;
                    onlooker.before(&self.stall_state, &thresholds.all);
                    let verdicts = thresholds.judge(&mut self.stall_state, |settings, state| observe(state, settings, step, preset));
                    asked_by = Some(&thresholds.all);
                    for verdict in verdicts.each() {
                        let Some(rule) = verdict.rule else { continue };
                        let mode = book.mode_of(rule.reason());
                        said = Some((verdict, mode));
                        match verdict.refuses() {
                            Some(rule) => found.finds(Ender::Stall, at, Cause::Stall(rule), mode),
                            None if verdict.rung == Rung::Steer => found.nudged(Nudge::Steer),
                            None => {}
                        }
                    }
                }
            }
            if step.spoke == Some(true) {
                self.loop_state.clear();
            }
            if loops && is_call && self.is_first_of_its_turn(step) {
                let book = policy.run_loop.for_subject(&step.tool);
                if book.mode != Mode::Off {
                    name_call(&mut self.call, step);
                    let now = Timestamp::from_millis(step.at_millis.unwrap_or(0));
                    if let Some(reason) = self.loop_state.call(&book.settings.thresholds(), &self.call, now) {
                        let cause = if reason == Reason::CallCeiling { Cause::Ceiling } else { Cause::Cycle };
                        let mode = book.mode_of(reason);
                        self.others.push((cause, mode));
                        found.finds(Ender::Loop, at, cause, mode);
                        // A run that is ended makes no further call; one that is only watched does.
                        loops = mode != Mode::Enforce;
                    }
                }
            }
            spending.step(at, step, &mut found, &mut self.others);
            if self.tool_calls {
                if step.spoke == Some(true) {
                    turn = TurnCalls::default();
                }
                if is_call {
                    ask_tracker(&mut turn, policy, step, &mut found);
                } else if person_replied(preset, step) {
                    turn = TurnCalls::default();
                }
            }
            onlooker.after(&StepFindings {
                at,
                step,
                stall: asked_by.map(|settings| (&self.stall_state, settings)),
                verdict: said,
                others: &self.others,
                ended: found.ended.filter(|_| !was_ended).map(|(_, cause)| cause),
            });
        }
        found
    }
}

impl Watch<'_> {
    /// The same call twice in one turn of the model is one try.
    fn is_first_of_its_turn(&mut self, step: &Step) -> bool {
        let (turn, calls) = &mut self.side_by_side;
        if step.round.is_none() || *turn != step.round {
            *turn = step.round;
            calls.clear();
        }
        let call = (xxh3_64(step.tool.as_bytes()), step.args);
        let is_first = !calls.contains(&call);
        if is_first && step.round.is_some() {
            calls.push(call);
        }
        is_first
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
fn ask_tracker(turn: &mut TurnCalls, policy: &Policy, step: &Step, found: &mut RunFindings) {
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

    fn step(&mut self, at: usize, step: &Step, found: &mut RunFindings, others: &mut Vec<(Cause, Mode)>) {
        let costs = [
            (Ender::Steps, &mut self.steps, Cost::tokens(1)),
            (Ender::Tokens, &mut self.tokens, Cost::tokens(step.tokens)),
            (Ender::Dollars, &mut self.usd, Cost::usd(NanoDollars::from_dollars(step.dollars).unwrap_or(NanoDollars::ZERO))),
        ];
        for (ender, budget, cost) in costs {
            // What is passed stays passed: asking again would tell nothing more.
            if budget.as_ref().is_some_and(|budget| budget.record(cost).is_err()) {
                *budget = None;
                others.push((Cause::Budget(ender), Mode::Enforce));
                found.finds(ender, at, Cause::Budget(ender), Mode::Enforce);
            }
        }
        if let (Some(limit), Some(millis)) = (self.time, step.at_millis) {
            let now = Timestamp::from_millis(millis);
            let began = *self.began.get_or_insert(now);
            if now.millis_since(began) > i64::try_from(limit.as_millis()).unwrap_or(i64::MAX) {
                self.time = None;
                others.push((Cause::Budget(Ender::Minutes), Mode::Enforce));
                found.finds(Ender::Minutes, at, Cause::Budget(Ender::Minutes), Mode::Enforce);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
