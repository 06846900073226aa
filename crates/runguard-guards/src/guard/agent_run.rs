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
use crate::input::{Field, Input, Kind, PassedCall, SentStep};
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
        let settings = self.stall.thresholds[preset as usize].clone();
        self.unenforced.thresholds(if self.long_run_tokens > 0 { settings.long_run_tokens(self.long_run_tokens) } else { settings })
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
    held: Option<Held>,
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
pub struct Held {
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
        Control::Stop { note } => Event::Held(Held { at: now, note: note.clone() }),
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
    Held(Held),
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
            Self::Held(held) => {
                state.held = Some(held.clone());
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
            Self::Stopped(_) | Self::BeganAnew | Self::Held(_) | Self::Resumed | Self::Judged(_) | Self::Asked(_) => {
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
    steps: Vec<Told>,
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
struct Kept<'a> {
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
    logged::write(&Kept { note: note.into(), ..Kept::default() })
}

fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Said {
        new_steps: u64,
        retry_after_seconds: Option<u64>,
    }
    let (kept, said): (Kept<'a>, Said) = (logged::read(row.input), logged::read(row.answer));
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
struct Told {
    id: u64,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Call { tool: String, args: u64, result: Option<u64>, error: Option<u64>, round: Option<u64>, effect: CallEffect },
    Talk { said: u64, answered: Option<u64> },
    UserSpoke,
}

impl Told {
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
            Event::Stopped(_) | Event::BeganAnew | Event::Held(_) | Event::Resumed | Event::Judged(_) | Event::Asked(_) => return None,
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
    let steps = events.into_iter().filter_map(Told::again).collect();
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
            model: runguard_core::text::cut(&input.text("model"), 256).to_owned(),
            steps: input.steps("steps").iter().map(Told::of).collect(),
            is_whole: input.flag("whole"),
            tokens: input.whole("tokens").unwrap_or(0),
            asked_with: input.asked_with.map(str::to_owned),
            call: input.call.cloned(),
            long: None,
        }
    }

    /// Steps that were not told before.
    fn news<'a>(&'a self, state: &State) -> Vec<&'a Told> {
        let mut told = state.told.clone();
        let mut is_new = |step: &&Told| {
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

    fn facts(found: &Found) -> Facts {
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
pub struct Found {
    verdict: Verdict,
    tool: String,
    new_steps: u32,
    so_far: SoFar,
    /// An operator's word is against it, with this note.
    held: Option<String>,
}

impl Found {
    /// What was said of this run before, and is said again.
    fn repeated(state: &State, verdict: Verdict, tool: String) -> Self {
        Self { verdict, tool, new_steps: 0, so_far: SoFar::of(&state.calls, Long::default()), held: None }
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
        logged::write(&Kept {
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
    type Block = Found;
    type Pass = Found;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let news = self.news(state);
        if let Some(held) = &state.held {
            let verdict = Verdict { rung: Rung::Stop, ..Verdict::default() };
            let found = Found { held: Some(held.note.clone()), ..Found::repeated(state, verdict, String::new()) };
            return Ruling { findings: vec![Finding::new(Reason::RunStopped, found.clone(), None)], pass: found, events: Vec::new() };
        }
        // Whoever is told that a run was stopped, and speaks, wants it to go on.
        let has_person = news.iter().any(|step| matches!(step.what, What::UserSpoke));
        let is_enforced = |stopped: &Stopped| !settings.unenforced.has(stopped.rule);
        let holds = |stopped: &&Stopped| moment.now.still_counts(stopped.at, settings.rest) && !has_person && is_enforced(stopped);
        if let Some(stopped) = state.stopped.as_ref().filter(holds) {
            let verdict = Verdict { rung: Rung::Stop, rule: Some(stopped.rule), count: stopped.count };
            let found = Found::repeated(state, verdict, stopped.tool.clone());
            let until = Some(stopped.at.plus(settings.rest));
            let finding = Finding { rule: Some(stopped.rule.reason()), ..Finding::new(Reason::RunStalled, found.clone(), until) };
            return Ruling { findings: vec![finding], pass: found, events: Vec::new() };
        }
        // The same question again hears the same: it is no step, and whoever was to be told has not heard it.
        if let Some(judged) = state.judged.as_ref().filter(|judged| news.is_empty() && self.last_step() == Some(judged.step)) {
            let verdict = Verdict { rung: judged.rung, rule: Some(judged.rule), count: judged.count };
            let found = Found::repeated(state, verdict, judged.tool.clone());
            return Ruling { findings: Vec::new(), pass: found, events: Vec::new() };
        }
        // What people say first a door tells again with whatever is done for them: until then nothing need be known of the run.
        let is_first_word =
            self.call.is_some() && *state == State::default() && news.iter().all(|step| matches!(step.what, What::UserSpoke));
        // Its tokens count where somebody says how many are much; what is learned is learned without them.
        if is_first_word && settings.thresholds(settings.preset.of(state.calls.kinds())).all.long_run_tokens == 0 {
            return Ruling { findings: Vec::new(), pass: Found::repeated(state, Verdict::default(), String::new()), events: Vec::new() };
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
        let mut found = Found { new_steps: news.len() as u32, ..Found::repeated(state, Verdict::default(), String::new()) };
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
        let finding = |found: Found| {
            let rule = found.verdict.rule.filter(|_| found.verdict.rung >= Rung::Block)?;
            let stopped = Stopped { at: moment.now, rule, count: found.verdict.count, tool: found.tool.clone() };
            let until = Some(stopped.at.plus(settings.rest));
            let events = events.iter().cloned().chain([Event::Stopped(stopped)]).collect();
            Some(Finding { events, rule: Some(rule.reason()), ..Finding::new(Reason::RunStalled, found, until) })
        };
        let verdicts = Verdicts { all: found.verdict, enforced: enforced.verdict };
        let findings = verdicts.each().zip([found.clone(), enforced]).filter_map(|(_, found)| finding(found)).collect();
        if let (Some(rule), Some(step)) = (found.verdict.rule, self.last_step()) {
            let Found { verdict, tool, .. } = &found;
            events.push(Event::Judged(Judged { step, rung: verdict.rung, rule, count: verdict.count, tool: tool.clone() }));
        }
        // One that tells nothing new is tried again, or has nothing to tell: of such a run nothing need be known.
        if thresholds.all.looks_at_tokens() && self.tokens > 0 && !news.is_empty() {
            events.push(Event::Asked(self.tokens));
        }
        Ruling { findings, pass: found, events }
    }

    fn explain(&self, _settings: &Settings, _state: &State, found: &Found, _moment: Moment<'_>) -> (Facts, String) {
        let sentences = match found.held.as_deref() {
            Some("") => "The run was stopped by hand. It goes on when an operator resumes it.".to_owned(),
            Some(note) => {
                format!("The run was stopped by hand: {note}. It goes on when an operator resumes it.", note = note.trim_end_matches('.'))
            }
            None => found.verdict.sentences(),
        };
        (Self::facts(found), sentences)
    }

    fn pass(&self, found: Found, _moment: Moment<'_>) -> Facts {
        Self::facts(&found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::properties::{Story, operation};
    use serde_json::json;

    fn call(number: usize, args: &str, result: &str) -> serde_json::Value {
        json!({"id": format!("call_{number}"), "tool": "search", "args": args, "result": result, "round": number.to_string()})
    }

    #[test]
    fn the_fourth_equal_pair_ends_the_run_and_it_stays_ended_for_its_rest() {
        let mut story = Story::default();
        let mut steps = Vec::new();
        for number in 0..3 {
            steps.push(call(number, "a", "x"));
            assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "r", "steps": steps}))));
            assert_eq!(story.fact("new_steps"), Some(Value::from(1_u32)), "the whole conversation comes again, and counts once");
        }
        assert_eq!(story.fact("rung"), Some(Value::from("steer")));
        steps.push(call(3, "a", "x"));
        let looping = operation("/guard/agent-run", json!({"session_id": "r", "steps": steps}));
        assert_eq!(story.at(0).refuses(&*looping), Reason::RunStalled);
        let fresh = operation("/guard/agent-run", json!({"session_id": "r", "steps": [call(9, "b", "y")]}));
        let mut spoken = steps.clone();
        spoken.push(json!({"id": "u1", "user": true}));
        let spoken = operation("/guard/agent-run", json!({"session_id": "r", "steps": spoken}));
        assert_eq!(story.at(3_599_000).refuses(&*fresh), Reason::RunStalled, "a task that begins anew is the same run");
        assert!(story.at(3_599_500).allows(&*spoken), "a person wants it to go on");
        assert!(story.at(3_600_000).allows(&*fresh));
        assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "other"}))));
    }

    #[test]
    fn what_people_say_first_a_door_counts_with_what_is_done_for_them() {
        let mut story = Story::default();
        let asked = |steps: &[serde_json::Value]| {
            let body = json!({"session_id": "r", "tokens": 7, "steps": steps}).to_string();
            let (mut input, call) = (Input::read(body.as_bytes(), ROUTE.fields).unwrap(), PassedCall::default());
            input.call = Some(&call);
            (ROUTE.read)(&input)
        };
        let (said, again) = (json!({"id": "u1", "user": true}), json!({"id": "u2", "user": true}));
        for steps in [vec![said.clone()], vec![said.clone()], vec![said.clone(), again.clone()], Vec::new()] {
            assert_eq!(story.at(0).run(&*asked(&steps)).changes, [], "nothing need be known of such a run");
            assert_eq!(story.fact("new_steps"), Some(Value::from(0_u32)));
        }
        assert!(story.at(0).allows(&*asked(&[said.clone(), call(1, "a", "x")])));
        assert_eq!(story.fact("new_steps"), Some(Value::from(2_u32)));
        assert!(story.at(0).allows(&*asked(&[said.clone(), call(1, "a", "x"), again])));
        assert_eq!(story.fact("new_steps"), Some(Value::from(1_u32)), "a run that is known hears of every word");
        let mut counts = Story::with_settings_of(&["agent_run"], json!({"long_run_tokens": 9_000}));
        assert_eq!(counts.at(0).run(&*asked(&[json!({"id": "u1", "user": true})])).changes.len(), 1, "unless its tokens count");
    }

    #[test]
    fn an_operators_word_stops_a_run_and_lets_one_go_on() {
        let now = Timestamp::from_millis(1_000);
        let stop = Control::Stop { note: "too dear".into() };
        let steps: Vec<_> = (0..4).map(|number| call(number, "a", "x")).collect();
        let looping = operation("/guard/agent-run", json!({"session_id": "r", "steps": steps}));
        let policy = Policy::default();
        let ask = |state: &[u8], at: i64| {
            let moment = Moment { now: Timestamp::from_millis(at), decision_id: "", store_text: StoreText::None, long_runs: None };
            looping.run(&policy, &[Some(state)], moment)
        };
        let tripped = ask(&[], 1_000);
        assert_eq!(tripped.answer.reason, Some(Reason::RunStalled));
        let stopped = control(Some(&tripped.changes[0].state), &stop, now);
        let refused = ask(&stopped.state, 10_000_000);
        assert_eq!((refused.answer.reason, refused.answer.retry_at), (Some(Reason::RunStopped), None), "no time lifts it");
        assert_eq!(
            refused.answer.message.as_deref(),
            Some("The run was stopped by hand: too dear. It goes on when an operator resumes it.")
        );
        let replayed = crate::guard::replay(SLOT.number, Some(&tripped.changes[0].state), &stopped.events, now);
        assert_eq!(replayed.as_ref(), Some(&stopped.state));
        let resumed = control(Some(&stopped.state), &Control::Resume, now);
        assert!(!ask(&resumed.state, 2_000).answer.is_block(), "what it was tripped for is lifted too");
    }

    #[test]
    fn a_question_that_is_tried_again_hears_what_it_heard() {
        let mut story = Story::default();
        let steps: Vec<_> = (0..3).map(|number| call(number, "a", "x")).collect();
        let third = operation("/guard/agent-run", json!({"session_id": "r", "steps": steps, "whole": true}));
        assert!(story.at(0).allows(&*third));
        let (rule, nudge) = (story.fact("rule"), story.fact("nudge"));
        assert_eq!(rule, Some(Value::from("identical")));
        for _ in 0..3 {
            assert!(story.at(1).allows(&*third));
            assert_eq!(
                (story.fact("rule"), story.fact("nudge"), story.fact("new_steps")),
                (rule.clone(), nudge.clone(), Some(Value::from(0_u32)))
            );
        }
        let shorter = operation("/guard/agent-run", json!({"session_id": "r", "steps": steps[..2], "whole": true}));
        assert!(story.at(2).allows(&*shorter));
        assert_eq!(story.fact("rule"), None, "an earlier place of the conversation");
        let on = operation("/guard/agent-run", json!({"session_id": "r", "steps": [call(9, "b", "y")]}));
        assert!(story.at(3).allows(&*on) && story.at(3).allows(&*third));
        assert_eq!(story.fact("rule"), None, "it got on");
    }

    /// The question at which a run is refused that tells its steps one by one.
    fn refused_at(settings: serde_json::Value, steps: &[serde_json::Value]) -> Option<usize> {
        let mut story = Story::with_settings_of(&["agent_run"], settings);
        let asks = |number: &usize| operation("/guard/agent-run", json!({"session_id": "r", "steps": steps[..*number], "whole": true}));
        (1..=steps.len()).find(|number| story.at(0).run(&*asks(number)).answer.is_block())
    }

    #[test]
    fn a_run_is_watched_as_what_its_tools_say_it_is() {
        let clicks: Vec<_> = (0..12)
            .map(|page| json!({"id": page.to_string(), "tool": "click", "args": page.to_string(), "result": page.to_string(), "does": format!("acts {}", page % 3)}))
            .collect();
        assert_eq!(refused_at(json!({}), &clicks), Some(9), "in front of a browser");
        assert_eq!(refused_at(json!({"preset": "coding"}), &clicks), None, "what is named goes before what is seen");
        let begun = |tool: &str, answers: u64| -> Vec<_> {
            let said = |number: u64| {
                [json!({"id": format!("s{number}"), "said": format!("{number}")}), json!({"id": format!("u{number}"), "user": true})]
            };
            let called = (0..6).map(|number| json!({"id": number.to_string(), "tool": tool, "args": "a", "result": "x"}));
            [json!({"id": "u", "user": true})].into_iter().chain((0..answers).flat_map(said)).chain(called).collect()
        };
        assert_eq!(refused_at(json!({}), &begun("get_order", 1)), Some(3 + 3), "somebody waits for the answer");
        assert_eq!(refused_at(json!({}), &begun("get_order", 0)), Some(1 + 4), "who asked once may have gone");
        assert_eq!(refused_at(json!({}), &begun("execute_bash", 1)), Some(3 + 4), "who has a shell works");
    }

    #[test]
    fn thresholds_are_laid_over_the_preset_and_each_rule_has_a_mode() {
        let same: Vec<_> = (0..8).map(|number| call(number, "a", "x")).collect();
        assert_eq!(refused_at(json!({"stall": {"identical": {"stop": 6}, "novelty_window": 0}}), &same), Some(6));
        assert_eq!(refused_at(json!({"stall": {"identical": {"stop": 6}}}), &same), Some(6), "before its news run out");
        let said = json!({"rules": {"stalled_identical": "observe"}, "stall": {"novelty_window": 0}});
        assert_eq!(refused_at(said, &same), None, "one rule only watches");
        assert_eq!(refused_at(json!({"rules": {"stalled_cycle": "observe"}}), &same), Some(4), "and the others do not");
        let clicks: Vec<_> = (0..12)
            .map(|page| json!({"id": page.to_string(), "tool": "click", "args": page.to_string(), "result": page.to_string(), "does": format!("acts {}", page % 3)}))
            .collect();
        assert_eq!(refused_at(json!({"stall": {"identical": {"stop": 6}}}), &clicks), Some(9), "the rest stays the preset's");
        assert_eq!(refused_at(json!({"stall": {"highest": "steer"}}), &same), None);
        let refused = |settings: serde_json::Value| {
            let tree = json!({"agent_run": settings});
            Policy::build(tree.as_object().unwrap(), &["guards"]).map(drop).unwrap_err()
        };
        let unknown = refused(json!({"stall": {"identicl": {"stop": 6}}}));
        assert!(unknown.path == ["guards", "agent_run", "stall", "identicl"] && unknown.problem.contains("identicl"), "{unknown:?}");
        let wrong = refused(json!({"stall": {"identical": {"stop": 1}}}));
        assert!(wrong.problem.contains("one step is never a stall"), "{wrong:?}");
        assert!(refused(json!({"rules": {"loop_detected": "off"}})).problem.contains("stalled_identical"));
    }

    #[test]
    fn a_state_from_before_anything_was_judged_is_read() {
        let before = encode(&State { told: vec![7], ..State::default() });
        let state = State::load(&[Some(&before)]);
        assert_eq!((state.told.as_slice(), &state.judged), (&[7][..], &None));
        let judged = Judged { step: 7, rung: Rung::Steer, rule: StallRule::Identical, count: 3, tool: "search".into() };
        let state = State { judged: Some(judged), ..state };
        assert_eq!(State::load(&[Some(&state.save(0))]), state);
        assert_eq!(postcard::from_bytes::<State>(&state.save(0)).map(|state| state.told), Ok(vec![7]), "by an earlier version too");
    }

    #[test]
    fn a_run_whose_questions_got_dear_is_stopped_where_somebody_says_what_is_much() {
        for much in [
            json!({"long_run_tokens": 100_000}),
            json!({"stall": {"long_run_tokens": 100_000}}),
            json!({"long_run_tokens": 100_000, "stall": {"long_run_tokens": 9_000_000}}),
        ] {
            let mut story = Story::with_settings_of(&["agent_run"], much.clone());
            let rungs = getting_nowhere(&mut story, 5, json!({"tokens": 30_000}));
            let expected = ["go_on", "go_on", "go_on", "steer", "stop"];
            assert_eq!(
                rungs,
                expected.map(|rung| Some(Value::from(rung))),
                "{much}: 90,000 were used before the fourth question, 120,000 before the fifth"
            );
        }
    }

    /// A run that edits and sees its check fail, told by its whole conversation at each of so many questions.
    fn getting_nowhere(story: &mut Story, questions: usize, asks: serde_json::Value) -> Vec<Option<Value>> {
        let mut steps = Vec::new();
        let mut rungs = Vec::new();
        for number in 0..questions {
            steps.push(json!({"id": format!("c{number}"), "tool": "bash", "args": format!("echo {number}"), "result": "x", "does": "changes", "round": format!("{number}")}));
            steps.push(json!({"id": format!("t{number}"), "tool": "bash", "args": "pytest", "error": format!("e{number}"), "does": "runs", "round": format!("{number}b")}));
            let mut body = json!({"session_id": "r", "steps": steps, "whole": true});
            body.as_object_mut().unwrap().extend(asks.as_object().unwrap().clone());
            story.at(0).run(&*operation("/guard/agent-run", body));
            rungs.push(story.fact("rung"));
        }
        rungs
    }

    #[test]
    fn what_the_log_says_is_long_ends_a_run_of_that_kind_unless_somebody_says_it() {
        let stopped = ["go_on", "go_on", "go_on", "steer", "stop"].map(|rung| Some(Value::from(rung)));
        let told = |settings: serde_json::Value, long: Long, asks: serde_json::Value| {
            let mut story = Story::with_settings_of(&["agent_run"], settings);
            story.long_runs = [("agent_run\n\nm".into(), long)].into_iter().collect();
            let rungs = getting_nowhere(&mut story, 5, asks);
            (rungs, story)
        };
        let by_calls = Long { calls: 8, tokens: 0 };
        let (rungs, story) = told(json!({}), by_calls, json!({"model": "m"}));
        assert_eq!(rungs, stopped, "from nine calls on, and told an eighth before");
        let said = |name: &str| story.fact(name);
        assert_eq!((said("calls"), said("long_calls"), said("long_tokens")), (Some(10_u64.into()), Some(8_u64.into()), None));
        let by_tokens = Long { calls: 0, tokens: 100_000 };
        assert_eq!(told(json!({}), by_tokens, json!({"model": "m", "tokens": 30_000})).0, stopped);
        let going_on = vec![Some(Value::from("go_on")); 5];
        for (settings, model) in [
            (json!({}), "another"),
            (json!({"stall": {"long_run_learned": false}}), "m"),
            (json!({"stall": {"long_run": {"stop": 50}}}), "m"),
            (json!({"rules": {"stalled_long_run": "off"}}), "m"),
        ] {
            assert_eq!(told(settings.clone(), by_calls, json!({"model": model})).0, going_on, "{settings} {model}");
        }
        let (rungs, story) = told(json!({"rules": {"stalled_long_run": "observe"}}), by_calls, json!({"model": "m"}));
        assert_eq!((rungs, story.fact("rule")), (stopped.to_vec(), Some(Value::from("long_run"))));
        assert_eq!(story.said_allow(), Some(true), "it only watches");
    }

    #[test]
    fn news_and_people_are_no_circle() {
        let mut story = Story::default();
        let steps: Vec<_> = (0..12).map(|number| call(number, "a", &format!("x{number}"))).collect();
        assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "r", "steps": steps}))));
        let mut asked = Vec::new();
        for number in 0..8 {
            asked.push(json!({"id": format!("u{number}"), "user": true}));
            asked.push(call(number, "a", "x"));
        }
        assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "p", "steps": asked}))));
    }

    #[test]
    fn words_that_come_again_with_their_answer_are_a_circle_too() {
        let mut story = Story::default();
        let said = |count: usize| -> Vec<_> {
            (0..count)
                .flat_map(|number| {
                    [
                        json!({"id": format!("s{number}"), "said": "calling search", "result": "observation"}),
                        json!({"id": format!("u{number}"), "user": true}),
                    ]
                })
                .collect()
        };
        assert!(story.at(0).allows(&*operation("/guard/agent-run", json!({"session_id": "r", "steps": said(3)}))));
        let fourth = operation("/guard/agent-run", json!({"session_id": "r", "steps": said(4)}));
        assert_eq!(story.at(0).refuses(&*fourth), Reason::RunStalled);
    }
}
