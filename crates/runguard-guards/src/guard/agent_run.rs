//! Stops a run that gets nowhere, before the next model call is paid: by what the run's own conversation tells.
//!
//! Whoever asks a model sends it all that happened: calls, results, messages. Told as hashes, oldest first, they are enough for the
//! stall detector, and nobody has to report each call by itself. The same step is told again with every question, so each has an id,
//! and is counted once; a conversation that was shortened meanwhile loses nothing that was counted.
//!
//! A model that is given tools as plain text says the same words and hears the same back. Such pairs are followed by themselves: what
//! a person says begins the calls anew, but a message that is repeated with its answer is no news whoever wrote it.
//!
//! A run that was stopped stays stopped: frameworks begin a failed task anew, and would pay for the same circle again. After `rest` it may
//! go on.

use super::judging::{Thresholds, Unenforced, Verdicts};
use super::stall::Event as Happened;
use super::{
    AnswerKind, Change, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Place, Route, RouteKind,
    Ruling, RulingOf, Slot, Stored, changes, encode, says,
};
use crate::answer::{Answer, Facts};
use crate::input::{Field, Input, Kind, MAX_ID_CHARS, PassedCall, SentStep};
use crate::lengths::{SoFar, what_is_long};
use crate::logged::{self, Doubts, EachByItself, Logged, Retold, RunSeen, Shows, Terms};
use crate::policy::{GuardSettings, Mode, Policy, Section, Setting, Tree, merge};
use runguard_core::detect::stall::{
    CallEffect, Kinds, Long, Preset, PresetChoice, Rung, StallRule, StallSettings, StallState, Step, Verdict, VolatileResults,
};
use runguard_core::limits::{InvalidSetting, lasting};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::RowRef;
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&ROUTE],
    slots: &[&SLOT],
    step: GuardedStep::ModelCall,
    billed: None,
    holds: Holds::Flow,
    shows,
    retelling: || Box::new(EachByItself(again)),
    traces: None,
};

static SLOT: Slot = Slot::of::<AgentRun, 0>(16, Lasts::Log);

pub static ROUTE: Route = Route {
    path: "/guard/agent-run",
    guard: GuardName::AgentRun,
    kind: RouteKind::Check,
    summary: "A model is about to be asked, and this is what the run did: does it still get anywhere?",
    fields: &[
        Field::required("session_id", Kind::Id, "The run.", "\"run-1\""),
        Field::optional("model", Kind::Name, "The model that is asked.", "\"gpt-4o\""),
        Field::optional(
            "steps",
            Kind::Steps,
            "What happened, oldest first; steps that were told before may be told again. At most 256 of {id, tool, args, result, error, round}: a call by its name and the hashes of what it was given and gave; {id, said, result}: the hashes of what the model said without a call, and of what was answered; {id, user: true}: a person has spoken.",
            "[{\"id\":\"call_1\",\"tool\":\"search\",\"args\":\"9f2c\",\"result\":\"77ab\"}]",
        ),
        Field::optional(
            "whole",
            Kind::Flag,
            "The steps are all that the conversation has, not only what is new: where none of its calls was told before, it is another one, and begins anew.",
            "true",
        ),
        Field::optional(
            "tokens",
            Kind::Whole(0),
            "How long this question is, in tokens: counted for the next one, as it is paid if it is asked. For `long_run_tokens`.",
            "5200",
        ),
    ],
    answers: &[
        says("rung", AnswerKind::Text, "go_on, observe, steer, block or stop."),
        says("rule", AnswerKind::Text, "Which sign was seen."),
        says("count", AnswerKind::Whole, "What it counted."),
        says("tool", AnswerKind::Text, "The tool it was seen at."),
        says("nudge", AnswerKind::Text, "A sentence for the model."),
        says("new_steps", AnswerKind::Whole, "Steps that were not told before."),
        SoFar::ANSWERS[0],
        SoFar::ANSWERS[1],
        SoFar::ANSWERS[2],
        SoFar::ANSWERS[3],
    ],
    reasons: &[Reason::RunStopped, Reason::RunStalled],
    read: |input| Box::new(Request::read(input)),
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub preset: PresetChoice,
    pub long_run_tokens: u64,
    pub rest: Span,
    pub stall: Over,
    #[serde(skip)]
    unenforced: Unenforced,
}

impl Settings {
    fn thresholds(&self, preset: Preset) -> Thresholds {
        self.unenforced.thresholds(self.stall.thresholds[preset as usize].clone().long_run_tokens(self.long_run_tokens(preset)))
    }

    /// From how many tokens on a run of this kind is long; 0: nobody says it.
    fn long_run_tokens(&self, preset: Preset) -> u64 {
        if self.long_run_tokens > 0 { self.long_run_tokens } else { self.stall.thresholds[preset as usize].long_run_tokens }
    }

    /// Whether the tokens of a run of this kind matter.
    fn counts_tokens(&self, preset: Preset) -> bool {
        self.long_run_tokens(preset) > 0 && !self.unenforced.is_off(StallRule::LongRun)
    }

    /// The same, and what is long for the run at hand.
    fn thresholds_for(&self, preset: Preset, long: impl Fn(&StallSettings) -> Long) -> (Thresholds, Long) {
        let thresholds = self.thresholds(preset);
        let long = long(&thresholds.all);
        (thresholds.knowing(long).into_owned(), long)
    }
}

/// Thresholds that are laid over those of the preset, whichever it is: what is not named stays the preset's.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Tree", into = "Tree")]
pub struct Over {
    named: Tree,
    /// As they come to, in the order of [`Preset::ALL`].
    thresholds: Arc<[StallSettings]>,
}

impl TryFrom<Tree> for Over {
    type Error = String;

    fn try_from(named: Tree) -> Result<Self, String> {
        let over = |preset: Preset| {
            let serde_json::Value::Object(mut all) = serde_json::json!(preset.settings()) else { return Ok(preset.settings()) };
            merge(&mut all, &named);
            let settings: StallSettings = serde_json::from_value(all.into()).map_err(|problem| problem.to_string())?;
            settings.check().map_err(|problem| problem.to_string())?;
            Ok(settings)
        };
        let thresholds = Preset::ALL.into_iter().map(over).collect::<Result<_, String>>()?;
        Ok(Self { named, thresholds })
    }
}

impl Over {
    /// What is never news in results, whichever kind of agent it is.
    pub fn volatile(&self) -> &VolatileResults {
        self.thresholds.first().map_or(VolatileResults::NONE, |thresholds| &thresholds.volatile)
    }
}

impl From<Over> for Tree {
    fn from(over: Over) -> Self {
        over.named
    }
}

impl Default for Over {
    fn default() -> Self {
        Self { named: Tree::new(), thresholds: Preset::ALL.into_iter().map(Preset::settings).collect() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let (preset, stall, unenforced) = (PresetChoice::default(), Over::default(), Unenforced::default());
        Self { preset, long_run_tokens: 0, rest: Span::from_seconds(3600), stall, unenforced }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::AgentRun;
    const SECTION: &'static [&'static str] = &["agent_run"];
    const SUBJECTS: &'static str = "models";
    const RULES_OF: Option<GuardName> = Some(GuardName::Stall);
    const SETTINGS: &'static [Setting] = &[
        Setting {
            key: "preset",
            about: "The thresholds of the stall detector, by the kind of agent: chatbot, coding, browser or research. With auto it is told by the tools of the first calls.",
        },
        Setting {
            key: "long_run_tokens",
            about: "Tokens of questions after which a run in which a check failed again after a change, or a file was put back the third time, is stopped; 0 leaves it to the key of the same name below `stall`, where `runguard tune` writes what is much for a kind of run, and which this one goes before.",
        },
        Setting { key: "rest", about: "How long a run that was stopped stays so." },
        Setting {
            key: "stall",
            about: "Thresholds of the stall detector that are laid over those of the preset: a table with the keys of [guards.stall].",
        },
    ];

    fn longest_window(&self) -> Span {
        self.rest
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        lasting("rest", self.rest)
    }

    fn has_modes(&mut self, mode_of: &dyn Fn(Reason) -> Mode) {
        self.unenforced = Unenforced::of(mode_of);
    }
}

/// Steps that are known to have been told. Beyond it the earliest is forgotten, and would count again: more than a question may tell.
const MOST_TOLD: usize = 512;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Calls and what they gave.
    calls: StallState,
    /// Messages without a call, and what was answered.
    talk: StallState,
    told: Vec<u64>,
    stopped: Option<Stopped>,
    /// An operator's word, which no time and no message lifts.
    stopped_by_hand: Option<StoppedByHand>,
    /// What was said of the latest steps, for whoever asks with them again: clients try a question again when a provider fails.
    #[serde(skip)]
    judged: Option<Judged>,
}

impl Stored for State {
    fn load(parts: &[Option<&[u8]>]) -> Self {
        let Some(bytes) = parts.first().copied().flatten() else { return Self::default() };
        let Ok((state, rest)) = postcard::take_from_bytes::<Self>(bytes) else { return Self::default() };
        Self { judged: postcard::from_bytes(rest).ok(), ..state }
    }

    /// What was judged stands behind the rest, so that a state from before there was any can still be read.
    fn save(&self, _part: usize) -> Vec<u8> {
        let mut bytes = encode(self);
        if let Some(judged) = &self.judged {
            bytes.extend(encode(judged));
        }
        bytes
    }
}

/// What the detector said of a question that was let through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// The last step that was told.
    step: u64,
    rung: Rung,
    rule: StallRule,
    count: u32,
    tool: String,
}

/// Stopped by hand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoppedByHand {
    at: Timestamp,
    note: String,
}

/// An operator's word on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Its next question is refused, until it is resumed.
    Stop { note: String },
    /// It goes on, whatever it was stopped for; what it did counts no more.
    Resume,
}

/// Where what is known of a run lives.
pub fn place(run: &str) -> Place<'_> {
    Place::in_session(run, &SLOT, "")
}

/// What an operator's word makes of a run.
pub fn control(state: Option<&[u8]>, control: &Control, now: Timestamp) -> Change {
    let event = match control {
        Control::Stop { note } => Event::StoppedByHand(StoppedByHand { at: now, note: note.clone() }),
        Control::Resume => Event::Resumed,
    };
    changes::<AgentRun>(State::load(&[state]), vec![event], now).remove(0)
}

/// What a run was stopped for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stopped {
    at: Timestamp,
    rule: StallRule,
    count: u32,
    tool: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    Call {
        id: u64,
        happened: Happened,
    },
    Talk {
        id: u64,
        happened: Happened,
    },
    Stopped(Stopped),
    /// Another conversation of the same name.
    BeganAnew,
    StoppedByHand(StoppedByHand),
    Resumed,
    Judged(Judged),
    /// A question of so many tokens was let through.
    Asked(u64),
}

impl Event {
    /// Applies it, and gives the verdicts by these thresholds.
    fn happen(&self, thresholds: &Thresholds, state: &mut State) -> Verdicts {
        let (id, happened, followed) = match self {
            Self::Call { id, happened } => (id, happened, &mut state.calls),
            Self::Talk { id, happened } => (id, happened, &mut state.talk),
            Self::Stopped(stopped) => {
                state.stopped = Some(stopped.clone());
                return Verdicts::default();
            }
            Self::BeganAnew => {
                (state.calls, state.talk) = (StallState::default(), StallState::default());
                return Verdicts::default();
            }
            Self::StoppedByHand(stopped) => {
                state.stopped_by_hand = Some(stopped.clone());
                return Verdicts::default();
            }
            Self::Resumed => {
                *state = State { told: std::mem::take(&mut state.told), ..State::default() };
                return Verdicts::default();
            }
            Self::Judged(judged) => {
                state.judged = Some(judged.clone());
                return Verdicts::default();
            }
            Self::Asked(tokens) => {
                state.calls.spent(*tokens);
                return Verdicts::default();
            }
        };
        state.judged = None;
        if matches!(happened, Happened::UserSpoke) {
            state.stopped = None;
        }
        state.told.push(*id);
        let beyond = state.told.len().saturating_sub(MOST_TOLD);
        state.told.drain(..beyond);
        happened.judged(thresholds, followed)
    }

    fn own_settings(&self) -> StallSettings {
        match self {
            Self::Call { happened, .. } | Self::Talk { happened, .. } => happened.settings(),
            Self::Stopped(_) | Self::BeganAnew | Self::StoppedByHand(_) | Self::Resumed | Self::Judged(_) | Self::Asked(_) => {
                StallSettings::silent()
            }
        }
    }
}

#[derive(Debug)]
pub struct AgentRun;

impl Guard for AgentRun {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.agent_run
    }

    fn apply(state: &mut State, event: &Event, _at: Timestamp) {
        event.happen(&Thresholds::new(event.own_settings()), state);
    }
}

#[derive(Debug)]
pub struct Request {
    session_id: String,
    model: String,
    steps: Vec<ToldStep>,
    /// Whether the steps are all there are.
    is_whole: bool,
    /// Of the question itself.
    tokens: u64,
    asked_with: Option<String>,
    call: Option<PassedCall>,
    /// What was known to be long, where it is decided again.
    long: Option<Long>,
}

/// What of a request is kept.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    asked_with: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<Cow<'a, PassedCall>>,
    /// Of an operator.
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    note: Cow<'a, str>,
}

/// What the row of an operator's word keeps of it.
pub fn kept_note(note: &str) -> String {
    logged::write(&LoggedInput { note: note.into(), ..LoggedInput::default() })
}

fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct LoggedAnswer {
        new_steps: u64,
        retry_after_seconds: Option<u64>,
    }
    let (kept, said): (LoggedInput<'a>, LoggedAnswer) = (logged::read(row.input), logged::read(row.answer));
    let seen = RunSeen {
        new_steps: said.new_steps,
        key: kept.asked_with,
        call: kept.call.map(Cow::into_owned),
        retry_after_seconds: said.retry_after_seconds,
        note: kept.note,
    };
    let length = SoFar::told(row).shown(GuardName::AgentRun, seen.key.as_deref(), row.subject);
    Shows { run: Some(seen), length, ..Shows::default() }
}

/// A step as it was told.
#[derive(Debug, Clone)]
struct ToldStep {
    id: u64,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Call { tool: String, args: u64, result: Option<u64>, error: Option<u64>, round: Option<u64>, effect: CallEffect },
    Talk { said: u64, answered: Option<u64> },
    UserSpoke,
}

impl ToldStep {
    fn of(step: &SentStep) -> Self {
        let hash = |text: &str| xxh3_64(text.as_bytes());
        let maybe = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(hash);
        let what = match (step.user, &step.said) {
            (true, _) => What::UserSpoke,
            (false, Some(said)) => What::Talk { said: hash(said), answered: maybe(&step.result) },
            (false, None) => What::Call {
                tool: step.tool.clone(),
                args: hash(&step.args),
                result: maybe(&step.result),
                error: maybe(&step.error),
                round: maybe(&step.round),
                effect: step.does.as_deref().map(CallEffect::from_text).unwrap_or_default(),
            },
        };
        Self { id: hash(&step.id), what }
    }

    /// The step that an event tells of.
    fn again(event: Event) -> Option<Self> {
        let (id, what) = match event {
            Event::Call { id, happened } => match happened.call() {
                Some((seen, effect)) => {
                    let (args, result, error, round) = (seen.args, seen.result, seen.error, seen.round());
                    (id, What::Call { tool: seen.tool, args, result, error, round, effect })
                }
                None => (id, What::UserSpoke),
            },
            Event::Talk { id, happened } => match happened.call() {
                Some((seen, _)) => (id, What::Talk { said: seen.args, answered: seen.result }),
                None => (id, What::UserSpoke),
            },
            Event::Stopped(_) | Event::BeganAnew | Event::StoppedByHand(_) | Event::Resumed | Event::Judged(_) | Event::Asked(_) => {
                return None;
            }
        };
        Some(Self { id, what })
    }

    /// What kinds of calls a run had that had these, and this one.
    fn kinds(&self, mut kinds: Kinds) -> Kinds {
        if let What::Call { tool, effect, .. } = &self.what {
            kinds.called(tool, *effect);
        }
        kinds
    }

    fn round(&self) -> Option<u64> {
        match self.what {
            What::Call { round, .. } => round,
            What::Talk { .. } | What::UserSpoke => None,
        }
    }

    fn tool(&self) -> &str {
        match &self.what {
            What::Call { tool, .. } => tool,
            What::Talk { .. } | What::UserSpoke => SAID,
        }
    }

    fn event(&self, settings: &StallSettings) -> Event {
        let id = self.id;
        match &self.what {
            What::UserSpoke => Event::Call { id, happened: Happened::UserSpoke },
            What::Talk { said, answered } => {
                let pair = Step { tool: SAID, args: *said, result: *answered, error: None, round: None, effect: CallEffect::Unknown };
                Event::Talk { id, happened: Happened::called(settings, pair) }
            }
            What::Call { tool, args, result, error, round, effect } => {
                let call = Step { tool, args: *args, result: *result, error: *error, round: *round, effect: *effect };
                Event::Call { id, happened: Happened::called(settings, call) }
            }
        }
    }
}

/// Its events tell the steps that were new; a question that told none left none.
#[allow(clippy::unnecessary_wraps, reason = "the form in which the rows of every guard are read")]
fn again(logged: &Logged<'_>, _terms: &Terms<'_>, _doubts: &mut Doubts) -> Option<Retold> {
    let row = logged.row;
    let events = logged.events::<Event>().unwrap_or_default();
    // Whether it began another conversation is all that depends on it.
    let is_whole = events.iter().any(|event| matches!(event, Event::BeganAnew));
    let tokens = events.iter().map(|event| if let Event::Asked(tokens) = event { *tokens } else { 0 }).sum();
    let steps = events.into_iter().filter_map(ToldStep::again).collect();
    Some(Retold::of(Request {
        session_id: row.session.clone(),
        model: row.subject.clone(),
        steps,
        is_whole,
        tokens,
        asked_with: None,
        call: None,
        long: Some(logged::read::<SoFar>(&row.answer).long()),
    }))
}

impl Request {
    fn read(input: &Input<'_>) -> Self {
        Self {
            session_id: input.text("session_id"),
            model: runguard_core::text::cut(&input.text("model"), MAX_ID_CHARS).to_owned(),
            steps: input.steps("steps").iter().map(ToldStep::of).collect(),
            is_whole: input.flag("whole"),
            tokens: input.whole("tokens").unwrap_or(0),
            asked_with: input.asked_with.map(str::to_owned),
            call: input.call.cloned(),
            long: None,
        }
    }

    /// Steps that were not told before.
    fn news<'a>(&'a self, state: &State) -> Vec<&'a ToldStep> {
        let mut told = state.told.clone();
        let mut is_new = |step: &&ToldStep| {
            let is_new = !told.contains(&step.id);
            told.push(step.id);
            is_new
        };
        self.steps.iter().filter(|step| is_new(step)).collect()
    }

    fn last_step(&self) -> Option<u64> {
        self.steps.last().map(|step| step.id)
    }

    /// Whether it goes on with what was told before.
    fn goes_on(&self, state: &State) -> bool {
        self.steps.iter().any(|step| !matches!(step.what, What::UserSpoke) && state.told.contains(&step.id))
    }

    /// Whether it tells of calls, and of none that was told before: runs of the same name follow each other, as those of a timer do.
    fn begins_anew(&self, state: &State) -> bool {
        let has_effects = self.steps.iter().any(|step| !matches!(step.what, What::UserSpoke));
        // Where a person has spoken and nothing was done yet, this is what came of it.
        let did_something = state.calls.has_calls() || state.talk != StallState::default();
        self.is_whole && has_effects && did_something && !self.goes_on(state)
    }

    fn facts(found: &Judgement) -> Facts {
        let facts = found.so_far.facts(Facts::new().with("rung", found.verdict.rung.code()).with("new_steps", found.new_steps));
        match found.verdict.rule {
            Some(rule) => facts
                .with("rule", rule.code())
                .with("count", found.verdict.count)
                .with("tool", found.tool.clone())
                .with("nudge", found.verdict.nudge(&found.tool)),
            None => facts,
        }
    }
}

/// What a message without a call is called among calls.
const SAID: &str = "message";

/// What the detector says of the latest steps.
#[derive(Debug, Clone)]
pub struct Judgement {
    verdict: Verdict,
    tool: String,
    new_steps: u32,
    so_far: SoFar,
    /// An operator's word is against it, with this note.
    stopped_by_hand: Option<String>,
}

impl Judgement {
    /// What was said of this run before, and is said again.
    fn repeated(state: &State, verdict: Verdict, tool: String) -> Self {
        Self { verdict, tool, new_steps: 0, so_far: SoFar::of(&state.calls, Long::default()), stopped_by_hand: None }
    }
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        &ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.model
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, "")]
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&LoggedInput {
            asked_with: self.asked_with.as_deref().map(Cow::Borrowed),
            call: self.call.as_ref().map(Cow::Borrowed),
            note: Cow::Borrowed(""),
        })
    }

    fn kept_subject(&self, _store_text: StoreText) -> Cow<'_, str> {
        Cow::Borrowed(&self.model)
    }

    /// The door that passes the call on has a row of it by its money.
    fn is_forgotten(&self, answer: &Answer) -> bool {
        self.call.is_some() && answer.allow == Some(true) && answer.reason.is_none()
    }
}

impl Decide for Request {
    type Guard = AgentRun;
    type Block = Judgement;
    type Pass = Judgement;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let news = self.news(state);
        if let Some(stopped) = &state.stopped_by_hand {
            let verdict = Verdict { rung: Rung::Stop, ..Verdict::default() };
            let found = Judgement { stopped_by_hand: Some(stopped.note.clone()), ..Judgement::repeated(state, verdict, String::new()) };
            return Ruling { findings: vec![Finding::new(Reason::RunStopped, found.clone(), None)], pass: found, events: Vec::new() };
        }
        // Whoever is told that a run was stopped, and speaks, wants it to go on.
        let has_person = news.iter().any(|step| matches!(step.what, What::UserSpoke));
        let is_enforced = |stopped: &Stopped| !settings.unenforced.has(stopped.rule);
        let holds = |stopped: &&Stopped| moment.now.still_counts(stopped.at, settings.rest) && !has_person && is_enforced(stopped);
        if let Some(stopped) = state.stopped.as_ref().filter(holds) {
            let verdict = Verdict { rung: Rung::Stop, rule: Some(stopped.rule), count: stopped.count };
            let found = Judgement::repeated(state, verdict, stopped.tool.clone());
            let until = Some(stopped.at.plus(settings.rest));
            let finding = Finding { rule: Some(stopped.rule.reason()), ..Finding::new(Reason::RunStalled, found.clone(), until) };
            return Ruling { findings: vec![finding], pass: found, events: Vec::new() };
        }
        // The same question again hears the same: it is no step, and whoever was to be told has not heard it.
        if let Some(judged) = state.judged.as_ref().filter(|judged| news.is_empty() && self.last_step() == Some(judged.step)) {
            let verdict = Verdict { rung: judged.rung, rule: Some(judged.rule), count: judged.count };
            let found = Judgement::repeated(state, verdict, judged.tool.clone());
            return Ruling { findings: Vec::new(), pass: found, events: Vec::new() };
        }
        // What people say first a door tells again with whatever is done for them: until then nothing need be known of the run.
        let is_first_word =
            self.call.is_some() && *state == State::default() && news.iter().all(|step| matches!(step.what, What::UserSpoke));
        // Its tokens count where somebody says how many are much; what is learned is learned without them.
        if is_first_word && !settings.counts_tokens(settings.preset.of(state.calls.kinds())) {
            return Ruling {
                findings: Vec::new(),
                pass: Judgement::repeated(state, Verdict::default(), String::new()),
                events: Vec::new(),
            };
        }
        let mut after = State { stopped: None, ..state.clone() };
        let mut preset = settings.preset.of(after.calls.kinds());
        let kind = (GuardName::AgentRun, self.asked_with.as_deref(), &*self.model);
        let what_is_long = |settings: &StallSettings| what_is_long(self.long, moment.long_runs, kind, settings);
        let (mut thresholds, mut long) = settings.thresholds_for(preset, what_is_long);
        let mut events = Vec::with_capacity(news.len() + 1);
        if self.begins_anew(state) {
            let anew = Event::BeganAnew;
            anew.happen(&thresholds, &mut after);
            events.push(anew);
        }
        let mut found = Judgement { new_steps: news.len() as u32, ..Judgement::repeated(state, Verdict::default(), String::new()) };
        let mut enforced = found.clone();
        let last_round = news.last().and_then(|step| step.round());
        let last_effect = news.iter().rposition(|step| !matches!(step.what, What::UserSpoke));
        for (number, step) in news.iter().enumerate() {
            let kind = settings.preset.of(step.kinds(after.calls.kinds()));
            if kind != preset {
                preset = kind;
                (thresholds, long) = settings.thresholds_for(kind, what_is_long);
            }
            let event = step.event(&thresholds.all);
            let verdicts = event.happen(&thresholds, &mut after);
            events.push(event);
            // What was got out of is no reason to stop. Of calls that were made side by side each may be one; and what is answered to
            // words is said by whoever counts as a person.
            let is_last_word = Some(number) == last_effect && matches!(step.what, What::Talk { .. });
            let is_latest = number + 1 == news.len() || is_last_word || (last_round.is_some() && step.round() == last_round);
            for (highest, verdict) in [(&mut found, verdicts.all), (&mut enforced, verdicts.enforced)] {
                if is_latest && verdict.rung >= highest.verdict.rung {
                    (highest.verdict, highest.tool) = (verdict, step.tool().to_owned());
                }
            }
        }
        (found.so_far, enforced.so_far) = (SoFar::of(&after.calls, long), SoFar::of(&after.calls, long));
        let finding = |found: Judgement| {
            let rule = found.verdict.refuses()?;
            let stopped = Stopped { at: moment.now, rule, count: found.verdict.count, tool: found.tool.clone() };
            let until = Some(stopped.at.plus(settings.rest));
            let events = events.iter().cloned().chain([Event::Stopped(stopped)]).collect();
            Some(Finding { events, rule: Some(rule.reason()), ..Finding::new(Reason::RunStalled, found, until) })
        };
        let verdicts = Verdicts { all: found.verdict, enforced: enforced.verdict };
        let findings = verdicts.each().zip([found.clone(), enforced]).filter_map(|(_, found)| finding(found)).collect();
        if let (Some(rule), Some(step)) = (found.verdict.rule, self.last_step()) {
            let Judgement { verdict, tool, .. } = &found;
            events.push(Event::Judged(Judged { step, rung: verdict.rung, rule, count: verdict.count, tool: tool.clone() }));
        }
        // One that tells nothing new is tried again, or has nothing to tell: of such a run nothing need be known.
        if thresholds.all.looks_at_tokens() && self.tokens > 0 && !news.is_empty() {
            events.push(Event::Asked(self.tokens));
        }
        Ruling { findings, pass: found, events }
    }

    fn explain(&self, _settings: &Settings, _state: &State, found: &Judgement, _moment: Moment<'_>) -> (Facts, String) {
        let sentences = match found.stopped_by_hand.as_deref() {
            Some("") => "The run was stopped by hand. It goes on when an operator resumes it.".to_owned(),
            Some(note) => {
                format!("The run was stopped by hand: {note}. It goes on when an operator resumes it.", note = note.trim_end_matches('.'))
            }
            None => found.verdict.sentences(),
        };
        (Self::facts(found), sentences)
    }

    fn pass(&self, found: Judgement, _moment: Moment<'_>) -> Facts {
        Self::facts(&found)
    }
}

#[cfg(test)]
mod tests;
