//! Stops a run whose newest calls are several copies of one short pattern.
//!
//! The loop detector of the SDKs behind a door, for callers without one and for runs spread over several processes. It
//! looks at calls only; what the calls gave is the business of [`super::stall`]. A caller may bring its own thresholds:
//! the detector object that it stands for has them.

use super::{
    AnswerKind, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Place, Route, RouteKind, Ruling,
    RulingOf, Slot, falls_below, forget_earliest, says, stored_in_one_part,
};
use crate::answer::Facts;
use crate::input::{Field, Input, Kind};
use crate::logged::{self, Doubt, Doubts, Logged, Retell, Retold, Terms, Traced, Traces};
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::detect::loops::{Called, Compared, LoopDetected, LoopKind, LoopSettings, MAX_CYCLE_LEN, Trail};
use runguard_core::fingerprint;
use runguard_core::limits::{InvalidSetting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row;
use runguard_core::row::Kind as RowKind;
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&ROUTE, &CHECK_ROUTE],
    slots: &[&SLOT],
    step: GuardedStep::ToolCall,
    billed: None,
    holds: Holds::Flow,
    shows: logged::shows_nothing,
    retelling: || Box::new(Retelling::default()),
    traces: Some(Traces { rank: 3, read: traced }),
};

static SLOT: Slot = Slot::of::<RunLoop, 0>(10, Lasts::Log);

const FIELDS: &[Field] = &[
    Field::required("session_id", Kind::Id, "The run.", "\"run-1\""),
    Field::required("tool", Kind::Id, "The call: a tool's name, or a signature of your own.", "\"search\""),
    Field::optional("args", Kind::Any, "Its arguments: calls with other arguments are other calls.", "{\"q\":\"refunds\"}"),
    Field::optional("repeats", Kind::Whole(2), "Copies of a pattern that make a loop; as set if left out.", "3"),
    Field::optional("max_cycle_len", Kind::Whole(1), "Longest pattern looked for, up to 32.", "4"),
    Field::optional("window_seconds", Kind::Whole(0), "Only calls this young count; 0: all.", "3600"),
    Field::optional("max_calls", Kind::Whole(0), "Calls of one kind within the window, whatever their order; 0: any number.", "2"),
];

pub static ROUTE: Route = Route {
    path: "/guard/loop",
    guard: GuardName::Loop,
    kind: RouteKind::Check,
    summary: "May this call be made, or does it complete a loop? An allowed call is counted.",
    fields: FIELDS,
    answers: ANSWERS,
    reasons: REASONS,
    read: |input| Box::new(Request::read(input, true)),
};

pub static CHECK_ROUTE: Route = Route {
    path: "/guard/loop/check",
    guard: GuardName::Loop,
    kind: RouteKind::Check,
    summary: "Would this call complete a loop? Nothing is counted.",
    fields: FIELDS,
    answers: ANSWERS,
    reasons: REASONS,
    read: |input| Box::new(Request::read(input, false)),
};

const ANSWERS: &[super::AnswerField] = &[
    says("tool", AnswerKind::Text, "The call asked about."),
    says("pattern", AnswerKind::List, "Blocked: one round of the loop, oldest call first."),
    says("repeats", AnswerKind::Whole, "Blocked: rounds, this call included."),
    says("cycle_len", AnswerKind::Whole, "Blocked: calls in one round."),
    says("max_calls", AnswerKind::Whole, "Ceiling: calls allowed."),
    says("calls_in_window", AnswerKind::Whole, "Ceiling: calls counted."),
];
const REASONS: &[Reason] = &[Reason::CallCeiling, Reason::LoopDetected];

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub repeats: u32,
    pub max_cycle_len: u32,
    pub window: Span,
    pub max_calls: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let LoopSettings { repeats, max_cycle_len, .. } = LoopSettings::default();
        Self { repeats, max_cycle_len, window: Span::ZERO, max_calls: 0 }
    }
}

impl Settings {
    /// As the detector has them: 0 is none.
    pub fn thresholds(&self) -> LoopSettings {
        LoopSettings::default()
            .repeats(self.repeats)
            .max_cycle_len(self.max_cycle_len)
            .window((self.window != Span::ZERO).then_some(self.window))
            .max_calls((self.max_calls > 0).then_some(self.max_calls))
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::Loop;
    const SECTION: &'static [&'static str] = &["loop"];
    const SUBJECTS: &'static str = "tools";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "repeats", about: "Copies of a pattern of calls that make a loop." },
        Setting { key: "max_cycle_len", about: "Longest pattern that is looked for." },
        Setting { key: "window", about: "Only calls this young count; 0 for all of the run." },
        Setting { key: "max_calls", about: "Calls of one kind within the window, whatever their order; 0 for any number." },
    ];

    fn longest_window(&self) -> Span {
        self.window
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("repeats", self.repeats, 2..=100)?;
        within("max_cycle_len", self.max_cycle_len, 1..=MAX_CYCLE_LEN)?;
        within("max_calls", self.max_calls, 0..=MOST_CALLS as u32)
    }
}

/// Calls kept for the ceiling. Beyond it the earliest is forgotten.
const MOST_CALLS: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    trail: Option<Trail>,
    calls: Vec<(u64, Timestamp)>,
}
stored_in_one_part!(State);

impl State {
    /// Takes a call of a recorded run, and says what refuses it; who replays a run goes on only while nothing does.
    pub fn call(&mut self, settings: &LoopSettings, call: &str, at: Timestamp) -> Option<Reason> {
        if let Some(max_calls) = settings.max_calls
            && self.calls_of(call, settings.window, at).len() as u32 >= max_calls
        {
            return Some(Reason::CallCeiling);
        }
        self.take(settings, call, Called::by_name(call), at).map(|_| Reason::LoopDetected)
    }

    /// Another run begins. What was asked of memory is kept.
    pub fn clear(&mut self) {
        self.calls.clear();
        if let Some(trail) = &mut self.trail {
            trail.clear();
        }
    }

    fn take(&mut self, settings: &LoopSettings, signature: &str, call: Called<'_>, at: Timestamp) -> Option<LoopDetected> {
        let found = self.trail.get_or_insert_with(|| Trail::new(settings)).record(settings, call, at);
        if settings.max_calls.is_some() {
            self.calls.push((xxh3_64(signature.as_bytes()), at));
            if self.calls.len() > MOST_CALLS {
                forget_earliest(&mut self.calls, |(_, at)| *at);
            }
        }
        found
    }

    fn calls_of(&self, signature: &str, window: Option<Span>, now: Timestamp) -> Vec<Timestamp> {
        let call = xxh3_64(signature.as_bytes());
        let counts = |at: &Timestamp| window.is_none_or(|window| now.still_counts(*at, window));
        self.calls.iter().filter(|(other, _)| *other == call).map(|(_, at)| *at).filter(counts).collect()
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// A call by its name alone.
    Called { call: String, thresholds: Thresholds },
    /// A tool with the fingerprint of its arguments.
    CalledWith { tool: String, args: String, thresholds: Thresholds },
}

/// The thresholds under which a call was counted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Thresholds {
    pub repeats: u32,
    pub max_cycle_len: u32,
    pub window_millis: Option<u64>,
    pub max_calls: Option<u32>,
}

impl Event {
    pub const fn thresholds(&self) -> Thresholds {
        match self {
            Self::Called { thresholds, .. } | Self::CalledWith { thresholds, .. } => *thresholds,
        }
    }
}

/// What a tool with these arguments is compared by.
fn signature(tool: &str, args: &str) -> String {
    if args.is_empty() { tool.to_owned() } else { format!("{tool}({args})") }
}

#[derive(Debug)]
pub struct RunLoop;

impl Guard for RunLoop {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.run_loop
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        let Thresholds { repeats, max_cycle_len, window_millis, max_calls } = event.thresholds();
        let settings = LoopSettings::default()
            .repeats(repeats)
            .max_cycle_len(max_cycle_len)
            .window(window_millis.map(Span::from_millis))
            .max_calls(max_calls);
        if settings.check().is_err() {
            return;
        }
        match event {
            Event::Called { call, .. } => state.take(&settings, call, Called::by_name(call), at),
            Event::CalledWith { tool, args, .. } => {
                let signature = signature(tool, args);
                state.take(&settings, &signature, Called::signed(&signature, tool), at)
            }
        };
    }
}

#[derive(Debug)]
pub struct Request {
    pub session_id: String,
    pub tool: String,
    /// The fingerprint of its arguments; empty without any.
    args: String,
    /// What it is compared by.
    signature: String,
    repeats: Option<u64>,
    max_cycle_len: Option<u64>,
    window_seconds: Option<u64>,
    max_calls: Option<u64>,
    counts: bool,
}

/// What is kept of a call.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow)]
    call: Cow<'a, str>,
}

fn traced(logged: &Logged<'_>) -> Traced {
    if logged.row.kind != RowKind::Check {
        return Traced::Nothing;
    }
    Traced::call(Some(xxh3_64(logged::read::<LoggedInput<'_>>(&logged.row.input).call.as_bytes())))
}

/// Thresholds that a caller brings along: repeats, longest cycle, window in seconds, calls.
type OwnThresholds = [Option<u64>; 4];

const OWN_THRESHOLDS: Doubt =
    Doubt::of_guard(0, "calls came with thresholds of their own: these are kept, also where only earlier calls of the run tell them");
const MAY_NOT_COUNT: Doubt = Doubt::of_guard(1, "blocked calls would pass and are counted: whether they only asked is not kept");

/// The call that is kept tells calls apart as well as the arguments did. A refused one does not tell its own thresholds.
#[derive(Debug, Default)]
pub(crate) struct Retelling {
    /// By tenant and session.
    own: BTreeMap<(Arc<str>, String), OwnThresholds>,
}

impl Retell for Retelling {
    fn again(&mut self, logged: &Logged<'_>, terms: &Terms<'_>, doubts: &mut Doubts) -> Option<Retold> {
        let row = logged.row;
        let whose = (row.tenant.clone(), row.session.clone());
        let events: Vec<Event> = logged.events().unwrap_or_default();
        let set = &terms.policy.run_loop.for_subject(&row.subject).settings;
        let thresholds = events.first().map(Event::thresholds);
        if let Some(Thresholds { repeats, max_cycle_len, window_millis, max_calls }) = thresholds {
            let unlike = |own: u64, set: u64| (own != set).then_some(own);
            let own = [
                unlike(u64::from(repeats), u64::from(set.repeats)),
                unlike(u64::from(max_cycle_len), u64::from(set.max_cycle_len)),
                unlike(window_millis.unwrap_or(0), set.window.as_millis()).map(|millis| millis / 1000),
                unlike(u64::from(max_calls.unwrap_or(0)), u64::from(set.max_calls)),
            ];
            if own.iter().any(Option::is_some) {
                self.own.insert(whose.clone(), own);
            } else {
                self.own.remove(&whose);
            }
        }
        let own = self.own.get(&whose).copied();
        if own.is_some() {
            doubts.add(OWN_THRESHOLDS);
        }
        let [repeats, max_cycle_len, window_seconds, max_calls] = own.unwrap_or_default();
        let kept: LoggedInput<'_> = logged::read(&row.input);
        let body = json!({
            "session_id": row.session, "tool": row.subject, "args": kept.call,
            "repeats": repeats, "max_cycle_len": max_cycle_len, "window_seconds": window_seconds, "max_calls": max_calls,
        });
        // A call that passed and left nothing behind only asked.
        let only_asked = events.is_empty() && row.outcome != row::Outcome::Blocked;
        Retold::read(if only_asked { &CHECK_ROUTE } else { &ROUTE }, &body)
    }

    fn doubt_of_passing(&self) -> Option<Doubt> {
        Some(MAY_NOT_COUNT)
    }
}

#[derive(Debug)]
pub enum Block {
    Loop(LoopDetected),
    Ceiling { calls: u32, max_calls: u32 },
}

impl Request {
    fn read(input: &Input<'_>, counts: bool) -> Self {
        let tool = input.text("tool");
        let args = input.json("args").map(fingerprint::of_json).unwrap_or_default();
        Self {
            session_id: input.text("session_id"),
            signature: signature(&tool, &args),
            tool,
            args,
            repeats: input.whole("repeats"),
            max_cycle_len: input.whole("max_cycle_len"),
            window_seconds: input.whole("window_seconds"),
            max_calls: input.whole("max_calls"),
            counts,
        }
    }

    fn called(&self) -> Called<'_> {
        if self.args.is_empty() { Called::by_name(&self.tool) } else { Called::signed(&self.signature, &self.tool) }
    }

    fn settings(&self, settings: &Settings) -> LoopSettings {
        let own = |given: Option<u64>, set: u32, most: u32| given.map_or(set, |given| given.min(u64::from(most)) as u32);
        let window = self.window_seconds.map_or(settings.window, |seconds| Span::from_seconds(seconds.min(10 * 365 * 24 * 3600)));
        let max_calls = own(self.max_calls, settings.max_calls, MOST_CALLS as u32);
        LoopSettings::default()
            .repeats(own(self.repeats, settings.repeats, 100))
            .max_cycle_len(own(self.max_cycle_len, settings.max_cycle_len, MAX_CYCLE_LEN))
            .window((window != Span::ZERO).then_some(window))
            .max_calls((max_calls > 0).then_some(max_calls))
    }
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        if self.counts { &ROUTE } else { &CHECK_ROUTE }
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.tool
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, "")]
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&LoggedInput { call: runguard_core::text::cut(&self.signature, 300).into() })
    }
}

impl Decide for Request {
    type Guard = RunLoop;
    type Block = Block;
    type Pass = ();

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let settings = self.settings(settings);
        let mut findings = Vec::new();
        if let Some(max_calls) = settings.max_calls {
            let calls = state.calls_of(&self.signature, settings.window, moment.now);
            if calls.len() as u32 >= max_calls {
                let block = Block::Ceiling { calls: calls.len() as u32, max_calls };
                let clears_at = settings.window.and_then(|window| falls_below(calls, max_calls, window));
                findings.push(Finding::new(Reason::CallCeiling, block, clears_at));
            }
        }
        if let Some(trail) = &state.trail
            && let Some(found) = trail.check(&settings, self.called(), moment.now)
        {
            let clears_at = trail.clears_at(&settings, self.called(), moment.now);
            findings.push(Finding::new(Reason::LoopDetected, Block::Loop(found), clears_at));
        }
        let LoopSettings { repeats, max_cycle_len, window, max_calls, .. } = settings;
        let thresholds = Thresholds { repeats, max_cycle_len, window_millis: window.map(Span::as_millis), max_calls };
        let tool = || self.tool.clone();
        let called = || match self.args.as_str() {
            "" => Event::Called { call: tool(), thresholds },
            args => Event::CalledWith { tool: tool(), args: args.to_owned(), thresholds },
        };
        let events = if self.counts { vec![called()] } else { Vec::new() };
        Ruling { findings, pass: (), events }
    }

    fn explain(&self, _settings: &Settings, _state: &State, block: &Block, _moment: Moment<'_>) -> (Facts, String) {
        let facts = Facts::new().with("tool", self.tool.clone());
        match block {
            Block::Loop(found) => (
                facts.with("pattern", found.pattern.clone()).with("repeats", found.repeats).with("cycle_len", found.cycle_len()),
                found.to_string(),
            ),
            Block::Ceiling { calls, max_calls } => {
                let (kind, compared) = (LoopKind::Ceiling { max_calls: *max_calls }, Compared::Names);
                let found = LoopDetected { pattern: vec![self.tool.clone()], repeats: *calls, kind, compared };
                (facts.with("calls_in_window", *calls).with("max_calls", *max_calls), found.to_string())
            }
        }
    }

    fn pass(&self, (): (), _moment: Moment<'_>) -> Facts {
        Facts::new().with("tool", self.tool.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::properties::{Story, operation};
    use serde_json::json;

    #[test]
    fn the_third_equal_call_is_refused_and_takes_no_slot() {
        let mut story = Story::default();
        let search = operation("/guard/loop", json!({"session_id": "s", "tool": "search", "args": {"q": "a", "n": 1}}));
        let other = operation("/guard/loop", json!({"session_id": "s", "tool": "search", "args": {"q": "b"}}));
        assert!(story.at(0).allows(&*search) && story.at(1).allows(&*search));
        for time in 2..5 {
            assert_eq!(story.at(time).refuses(&*search), Reason::LoopDetected);
        }
        assert_eq!(story.retry_after_seconds(), None, "time does not help");
        assert!(story.at(6).allows(&*other), "other arguments are another call");
        assert!(story.at(7).allows(&*search));
    }

    #[test]
    fn a_replayed_call_is_refused_where_the_guard_refuses_it() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let refused = |settings: &Settings, calls: &str| {
            let mut state = State::default();
            state.call(&settings.thresholds(), "another run", at(0));
            state.clear();
            calls.char_indices().find_map(|(index, call)| {
                let reason = state.call(&settings.thresholds(), &call.to_string(), at(index as i64))?;
                Some((index, reason))
            })
        };
        assert_eq!(refused(&Settings::default(), "abcaaa"), Some((5, Reason::LoopDetected)));
        assert_eq!(refused(&Settings::default(), "abababc"), Some((5, Reason::LoopDetected)));
        assert_eq!(refused(&Settings::default(), "abcdabcd"), None);
        let few = Settings { max_calls: 2, ..Settings::default() };
        assert_eq!(refused(&few, "abaca"), Some((4, Reason::CallCeiling)));
        assert_eq!(refused(&Settings { window: Span::from_seconds(4), ..few }, "abaca"), None, "the first is too old to count");
        assert_eq!(refused(&Settings { window: Span::from_seconds(2), ..Settings::default() }, "xaaa"), None);
    }

    #[test]
    fn asking_counts_nothing() {
        let mut story = Story::default();
        let check = operation("/guard/loop/check", json!({"session_id": "s", "tool": "search"}));
        for _ in 0..10 {
            assert!(story.at(0).allows(&*check));
        }
        let call = operation("/guard/loop", json!({"session_id": "s", "tool": "search"}));
        assert!(story.at(0).allows(&*call) && story.at(0).allows(&*call));
        assert_eq!(story.at(0).refuses(&*check), Reason::LoopDetected);
    }

    #[test]
    fn a_caller_brings_its_own_thresholds_and_the_retry_time_is_true() {
        let mut story = Story::default();
        let call = operation("/guard/loop", json!({"session_id": "s", "tool": "refunds", "window_seconds": 3600, "max_calls": 2}));
        assert!(story.at(0).allows(&*call) && story.at(10_000).allows(&*call));
        assert_eq!(story.at(20_000).refuses(&*call), Reason::CallCeiling);
        assert_eq!(story.retry_after_seconds(), Some(3580));
        assert_eq!(story.at(3_599_999).refuses(&*call), Reason::CallCeiling);
        assert!(story.at(3_600_000).allows(&*call));
    }
}
