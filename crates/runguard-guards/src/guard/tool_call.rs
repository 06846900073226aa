//! Skips a tool call that has given already what it can give in this turn: the tool-call tracker behind a door.
//!
//! A turn is one message of the user and all that is done to answer it. Asking counts the call, so that two callers can
//! never both take the last one; telling its result matters only when it failed, for then the same call may be made again.

use super::{
    AnswerField, AnswerKind, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Place, Route, RouteKind,
    Ruling, RulingOf, Slot, says, stored_in_one_part,
};
use crate::answer::Facts;
use crate::input::{Field, Input, Kind};
use crate::logged::{self, Doubt, Doubts, EachByItself, Logged, Retold, Terms, Traced, Traces};
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::detect::tool_calls::{Call, CallOutcome, Skip, TrackerSettings, TurnCalls};
use runguard_core::limits::InvalidSetting;
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row;
use runguard_core::row::Kind as RowKind;
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::json;
use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&ROUTE, &RECORD_ROUTE],
    slots: &[&SLOT],
    step: GuardedStep::ToolCall,
    billed: None,
    holds: Holds::Flow,
    shows: logged::shows_nothing,
    retelling: || Box::new(EachByItself(again)),
    traces: Some(Traces { rank: 5, read: traced }),
};

static SLOT: Slot = Slot::of::<ToolCallGuard, 0>(13, Lasts::Log);

macro_rules! call_fields {
    ($($more:expr),*) => {
        &[
            Field::required("session_id", Kind::Id, "The run or conversation.", "\"run-1\""),
            Field::optional("turn_id", Kind::Id, "The turn: each starts anew. Without one, all of the session is one turn.", "\"turn-3\""),
            Field::required("tool", Kind::Id, "The tool.", "\"search_knowledge\""),
            Field::optional("args", Kind::Any, "Its arguments.", "{\"query\":\"refunds\"}"),
            $($more),*
        ]
    };
}

pub static ROUTE: Route = Route {
    path: "/guard/tool-call",
    guard: GuardName::ToolCall,
    kind: RouteKind::Check,
    summary: "Should this tool be run, or has it given already what it can? An allowed call is counted.",
    fields: call_fields!(),
    answers: &[TOOL, CALLS, LIMIT],
    reasons: &[Reason::ToolLimit, Reason::ExactDuplicate, Reason::SimilarQuery],
    read: |input| Box::new(Request(ToolCall::read(input))),
};

pub static RECORD_ROUTE: Route = Route {
    path: "/guard/tool-call/record",
    guard: GuardName::ToolCall,
    kind: RouteKind::Record,
    summary: "How the call ended. One that failed may be made again, up to the tool's limit.",
    fields: call_fields!(Field::optional("error", Kind::Flag, "Whether it failed.", "true")),
    answers: &[TOOL, CALLS],
    reasons: &[],
    read: |input| Box::new(RecordRequest { failed: input.flag("error"), call: ToolCall::read(input) }),
};

const TOOL: AnswerField = says("tool", AnswerKind::Text, "The tool.");
const CALLS: AnswerField = says("calls", AnswerKind::Whole, "How often it ran in this turn.");
const LIMIT: AnswerField = says("limit", AnswerKind::Whole, "How often it may.");

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Settings(pub TrackerSettings);

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::ToolCall;
    const SECTION: &'static [&'static str] = &["tool_call"];
    const SUBJECTS: &'static str = "tools";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "limits", about: "Runs in one turn, by tool." },
        Setting { key: "default_limit", about: "Runs in one turn of every other tool." },
        Setting { key: "search_tools", about: "Tools of which similar queries are skipped too." },
        Setting { key: "query_arguments", about: "The arguments a query is taken from; the first that is there." },
        Setting { key: "place_arguments", about: "Arguments that make two searches different: where, and which page." },
        Setting {
            key: "threshold",
            about: "How alike the letters of two queries must be where their words do not tell (above 0.75: always), above 0 and up to 1.",
        },
        Setting {
            key: "plain_ratio",
            about: "Queries are alike when the ratio of their letters reaches the threshold, and nothing else is looked at.",
        },
        Setting { key: "junk", about: "Python's heuristic for texts of 200 characters and more." },
        Setting { key: "wording", about: "Word forms and synonyms." },
        Setting { key: "volatile", about: "Fields that are left out of the arguments, by tool; \"*\" is every tool." },
    ];

    fn longest_window(&self) -> Span {
        Span::ZERO
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        self.0.check()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    turn: TurnCalls,
}
stored_in_one_part!(State);

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    Ran { call: Call, limit: u32 },
    Failed { call: Call },
}

#[derive(Debug)]
pub struct ToolCallGuard;

impl Guard for ToolCallGuard {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.tool_call
    }

    fn apply(state: &mut State, event: &Event, _at: Timestamp) {
        match event {
            Event::Ran { call, limit } => state.turn.count(call.clone(), *limit, CallOutcome::Completed),
            Event::Failed { call } => state.turn.fail(call),
        }
    }
}

#[derive(Debug)]
struct ToolCall {
    session_id: String,
    turn_id: String,
    tool: String,
    args: Value,
    /// Read before, for a request that is made again from the log.
    known: Option<Call>,
}

impl ToolCall {
    fn read(input: &Input<'_>) -> Self {
        Self {
            session_id: input.text("session_id"),
            turn_id: input.text("turn_id"),
            tool: input.text("tool"),
            // What is no value in our sense (a number out of range) is compared as its text.
            args: input.json("args").map_or(Value::Null, |raw| serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().into())),
            known: None,
        }
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, &self.turn_id)]
    }

    /// Names and depth were checked when the request was read.
    fn call(&self, settings: &Settings) -> Option<Call> {
        self.known.clone().or_else(|| Call::read(&settings.0, &self.tool, &self.args).ok())
    }
}

/// What is kept of a call, or of its result, beside its event.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    turn_id: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<bool>,
}

/// The same call leaves the same event.
fn traced(logged: &Logged<'_>) -> Traced {
    if logged.row.kind != RowKind::Check {
        return Traced::Nothing;
    }
    Traced::call(logged.effects.first().map(|effect| xxh3_64(effect.events)))
}

const CALL_UNKNOWN: Doubt = Doubt::of_guard(0, "blocked requests are kept without their arguments: they stay blocked");
const LIMIT_UNLIKE: Doubt =
    Doubt::of_guard(1, "tool calls blocked by their limit are kept without their arguments: they count as calls unlike any before");

/// Its event tells all of a call that was counted, or was told to have failed.
pub(crate) fn again(logged: &Logged<'_>, _terms: &Terms<'_>, doubts: &mut Doubts) -> Option<Retold> {
    let row = logged.row;
    if let Some(effect) = logged.effects.first() {
        let call = |known: Call| ToolCall {
            session_id: row.session.clone(),
            turn_id: effect.subject.to_owned(),
            tool: row.subject.clone(),
            args: Value::Null,
            known: Some(known),
        };
        return Some(match logged.events()?.pop()? {
            Event::Ran { call: known, .. } => Retold::of(Request(call(known))),
            Event::Failed { call: known } => Retold::of(RecordRequest { call: call(known), failed: true }),
        });
    }
    // A result that is no failure changes nothing.
    if row.kind != row::Kind::Check {
        return None;
    }
    if !row.gives(Reason::ToolLimit) {
        doubts.add(if row.outcome == row::Outcome::Blocked { CALL_UNKNOWN } else { Doubt::NO_EVENTS });
        return None;
    }
    doubts.add(LIMIT_UNLIKE);
    let kept: LoggedInput<'_> = logged::read(&row.input);
    Some(Retold::of(Request(ToolCall {
        session_id: row.session.clone(),
        turn_id: kept.turn_id.into_owned(),
        tool: row.subject.clone(),
        args: json!({"decision": row.id}),
        known: None,
    })))
}

#[derive(Debug)]
pub struct Request(ToolCall);

#[derive(Debug)]
pub struct Pass {
    calls: u32,
    limit: u32,
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        &ROUTE
    }

    fn session_id(&self) -> &str {
        &self.0.session_id
    }

    fn subject(&self) -> &str {
        &self.0.tool
    }

    fn places(&self) -> Vec<Place<'_>> {
        self.0.places()
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&LoggedInput { turn_id: Cow::Borrowed(&self.0.turn_id), error: None })
    }
}

impl Decide for Request {
    type Guard = ToolCallGuard;
    type Block = Skip;
    type Pass = Pass;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let limit = settings.0.limit_of(&self.0.tool);
        let call = self.0.call(settings);
        let skip = call.as_ref().and_then(|call| state.turn.skip_of(&settings.0, &self.0.tool, call));
        let findings = skip.map(|skip| Finding::new(skip.reason.reason(), skip, None));
        let pass = Pass { calls: state.turn.count_of(&self.0.tool) + 1, limit };
        let events = call.map(|call| Event::Ran { call: call.kept(moment.store_text), limit });
        Ruling { findings: findings.into_iter().collect(), pass, events: events.into_iter().collect() }
    }

    fn explain(&self, _settings: &Settings, _state: &State, skip: &Skip, _moment: Moment<'_>) -> (Facts, String) {
        let facts = Facts::new().with("tool", self.0.tool.clone()).with("calls", skip.count).with("limit", skip.limit);
        (facts, skip.message.clone())
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        Facts::new().with("tool", self.0.tool.clone()).with("calls", pass.calls).with("limit", pass.limit)
    }
}

#[derive(Debug)]
pub struct RecordRequest {
    call: ToolCall,
    failed: bool,
}

impl GuardRequest for RecordRequest {
    fn route(&self) -> &'static Route {
        &RECORD_ROUTE
    }

    fn session_id(&self) -> &str {
        &self.call.session_id
    }

    fn subject(&self) -> &str {
        &self.call.tool
    }

    fn places(&self) -> Vec<Place<'_>> {
        self.call.places()
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&LoggedInput { turn_id: Cow::Borrowed(""), error: Some(self.failed) })
    }
}

impl Decide for RecordRequest {
    type Guard = ToolCallGuard;
    type Block = Infallible;
    type Pass = u32;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let failed = if self.failed { self.call.call(settings) } else { None };
        let events = failed.map(|call| Event::Failed { call: call.kept(moment.store_text) }).into_iter().collect();
        Ruling { findings: Vec::new(), pass: state.turn.count_of(&self.call.tool), events }
    }

    fn explain(&self, _settings: &Settings, _state: &State, block: &Infallible, _moment: Moment<'_>) -> (Facts, String) {
        match *block {}
    }

    fn pass(&self, calls: u32, _moment: Moment<'_>) -> Facts {
        Facts::new().with("tool", self.call.tool.clone()).with("calls", calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::properties::{Story, operation};
    use serde_json::json;

    fn call(tool: &str, args: Value) -> Box<dyn crate::Operation> {
        operation("/guard/tool-call", json!({"session_id": "s", "turn_id": "t", "tool": tool, "args": args}))
    }

    #[test]
    fn the_limit_comes_first_then_the_same_call_then_a_similar_query() {
        let mut story = Story::default();
        assert!(story.at(0).allows(&*call("search_knowledge", json!({"query": "fix bug"}))));
        assert_eq!(story.at(0).refuses(&*call("search_knowledge", json!({"query": "fix bug"}))), Reason::ExactDuplicate);
        assert_eq!(story.at(0).refuses(&*call("search_knowledge", json!({"query": "fix the bug"}))), Reason::SimilarQuery);
        assert!(story.at(0).allows(&*call("search_knowledge", json!({"query": "opening hours"}))));
        assert_eq!(story.at(0).refuses(&*call("search_knowledge", json!({"query": "fix bug"}))), Reason::ToolLimit);
        assert!(
            story.at(0).allows(&*operation("/guard/tool-call", json!({"session_id": "s", "turn_id": "next", "tool": "search_knowledge"})))
        );
    }

    #[test]
    fn a_call_that_failed_may_be_made_again_up_to_the_limit() {
        let mut story = Story::default();
        let failed = operation(
            "/guard/tool-call/record",
            json!({"session_id": "s", "turn_id": "t", "tool": "http_get", "args": {"a": 1}, "error": true}),
        );
        for _ in 0..3 {
            assert!(story.at(0).allows(&*call("http_get", json!({"a": 1}))));
            story.run(&*failed);
        }
        assert_eq!(story.at(0).refuses(&*call("http_get", json!({"a": 1}))), Reason::ToolLimit);
    }
}
