//! Stops an action that has failed for good: the same call, again, after it failed twice in a row, or in turns with others that failed.
//!
//! For handlers that run once a call and keep nothing between calls (AWS Lambda action groups). Failures are counted,
//! not calls: asking a healthy action for news is fine.

use super::{
    AnswerField, AnswerKind, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, Moment, Place, Route, RouteKind,
    Ruling, RulingOf, Slot, Stored, decode, encode, says,
};
use crate::answer::Facts;
use crate::input::{Field, Input, Kind, MAX_ID_CHARS};
use crate::logged::{self, Doubts, EachByItself, Logged, Retold, Terms, Traced, Traces};
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::detect::actions::Action;
use runguard_core::detect::failures::{self, CallHistory, CallResult, LastCall, refusal};
use runguard_core::fingerprint;
use runguard_core::limits::{InvalidSetting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row;
use runguard_core::row::Kind as RowKind;
use runguard_core::text::{StoreText, redact};
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
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
    billed: None,
    holds: Holds::Flow,
    shows: logged::shows_nothing,
    retelling: || Box::new(EachByItself(again)),
    traces: Some(Traces { rank: 4, read: traced }),
};

static SLOT: Slot = Slot::of::<ActionGroup, 0>(14, Lasts::Log);

macro_rules! call_fields {
    ($($more:expr),*) => {
        &[
            Field::required("session_id", Kind::Id, "The agent's session.", "\"session-1\""),
            Field::required("action_group", Kind::Id, "The action group.", "\"orders\""),
            Field::optional("api_path", Kind::Text, "The API path, for groups with an API schema.", "\"/orders/{id}\""),
            Field::optional("http_method", Kind::Name, "Its method.", "\"GET\""),
            Field::optional("function", Kind::Name, "The function, for groups with function details.", "\"get_order\""),
            Field::optional("parameters", Kind::Any, "The parameters of the call.", "[{\"name\":\"id\",\"type\":\"string\",\"value\":\"7\"}]"),
            Field::optional("request_body", Kind::Any, "The body of the call.", "{}"),
            $($more),*
        ]
    };
}

pub static ROUTE: Route = Route {
    path: "/guard/action-group",
    guard: GuardName::ActionGroup,
    kind: RouteKind::Check,
    summary: "May this action be run, or has the same call failed for good?",
    fields: call_fields!(),
    answers: &[ACTION, FAILURES, MAX_FAILURES, RETRYABLE],
    reasons: &[Reason::PermanentFailure],
    read: |input| Box::new(Request(ActionCall::read(input))),
};

pub static RESULT_ROUTE: Route = Route {
    path: "/guard/action-group/result",
    guard: GuardName::ActionGroup,
    kind: RouteKind::Record,
    summary: "Whether the action succeeded.",
    fields: call_fields!(Field::required("failed", Kind::Flag, "Whether it failed.", "true")),
    answers: &[ACTION, FAILURES],
    reasons: &[],
    read: |input| Box::new(ResultRequest { failed: input.flag("failed"), call: ActionCall::read(input) }),
};

const ACTION: AnswerField =
    says("action", AnswerKind::Text, "The action: its group with function, or with method and path, as it is kept in the log.");
const FAILURES: AnswerField =
    says("failures", AnswerKind::Whole, "Failures of this very call, in a row or since any call of the session succeeded.");
const MAX_FAILURES: AnswerField = says("max_failures", AnswerKind::Whole, "Blocked: failures after which it is not run again.");
const RETRYABLE: AnswerField = says("retryable", AnswerKind::Flag, "Blocked: false.");

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_failures: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_failures: failures::MAX_FAILURES }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::ActionGroup;
    const SECTION: &'static [&'static str] = &["action_group"];
    const SUBJECTS: &'static str = "actions";
    const SETTINGS: &'static [Setting] = &[Setting {
        key: "max_failures",
        about: "Failures of the same call after which it is not run again: in a row, or among the session's last twelve calls with no success since.",
    }];

    fn longest_window(&self) -> Span {
        Span::ZERO
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_failures", self.max_failures, 1..=100)
    }
}

/// The newest call, and the latest twelve: one counts failures in a row, however many, the others those in turns.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    last: LastCall,
    history: CallHistory,
}

impl Calls {
    fn failures_of(&self, call: u64) -> u32 {
        self.last.failures_of(call).max(self.history.failures_of(call))
    }

    fn finish(&mut self, call: u64, result: CallResult) {
        self.last.finish(call, result);
        self.history.finish(call, result);
    }
}

impl Stored for Calls {
    /// Of earlier versions there is the newest call alone, and they read no further in what this one writes.
    fn load(parts: &[Option<&[u8]>]) -> Self {
        let kept = parts.first().copied().flatten().unwrap_or_default();
        let Ok((last, rest)) = postcard::take_from_bytes(kept) else { return Self::default() };
        Self { last, history: decode(Some(rest)) }
    }

    fn save(&self, _part: usize) -> Vec<u8> {
        encode(&(self.last, &self.history))
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    Called { call: u64 },
    Resulted { call: u64, failed: bool },
}

#[derive(Debug)]
pub struct ActionGroup;

impl Guard for ActionGroup {
    type Settings = Settings;
    type State = Calls;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.action_group
    }

    fn apply(state: &mut Calls, event: &Event, _at: Timestamp) {
        match *event {
            Event::Called { call } => {
                state.last.begin(call);
                state.history.remember(call);
            }
            Event::Resulted { call, failed } => state.finish(call, CallResult::of(failed)),
        }
    }
}

/// What is the same when a call is made again.
#[derive(Debug)]
struct ActionCall {
    session_id: String,
    action: String,
    /// Where the path begins in the action. It may name whom the call is about.
    path_at: usize,
    identity: u64,
}

impl ActionCall {
    fn read(input: &Input<'_>) -> Self {
        let part = |name: &str| runguard_core::text::cut(&input.text(name), MAX_ID_CHARS).to_owned();
        // What is nested too deep to be read is compared as it is written.
        let json = |name: &str| {
            let given = input.json(name)?;
            Some(serde_json::from_str(given.get()).unwrap_or_else(|_| fingerprint::of_json(given).into()))
        };
        let (parameters, body): (Option<Value>, Option<Value>) = (json("parameters"), json("request_body"));
        let (group, function, verb, path) = (part("action_group"), part("function"), part("http_method"), part("api_path"));
        let action = Action::new(&group, &function, &verb, &path, parameters.as_ref(), body.as_ref());
        let (identity, path_at) = (action.identity(), action.name.len() - action.path_bytes);
        Self { session_id: input.text("session_id"), action: action.name, path_at, identity }
    }

    fn kept_action(&self, store_text: StoreText) -> Cow<'_, str> {
        let (before, path) = self.action.split_at(self.path_at);
        match (path.is_empty(), store_text) {
            (true, _) | (false, StoreText::Full) => Cow::Borrowed(&self.action),
            (false, StoreText::Redacted) => Cow::Owned(format!("{before}{}", redact(path))),
            (false, StoreText::None) => Cow::Owned(format!("{before}{}", store_text.keep_name(path))),
        }
    }

    fn places(&self) -> Vec<Place<'_>> {
        vec![Place::in_session(&self.session_id, &SLOT, "")]
    }
}

/// What is kept of a call, or of its result.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    #[serde(borrow, skip_serializing_if = "str::is_empty")]
    call: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<bool>,
}

fn traced(logged: &Logged<'_>) -> Traced {
    if logged.row.kind != RowKind::Check {
        return Traced::Nothing;
    }
    Traced::call(Some(xxh3_64(logged::read::<LoggedInput<'_>>(&logged.row.input).call.as_bytes())))
}

/// A call is told apart by what is kept of it, not by its parameters, which are not kept.
pub(crate) fn again(logged: &Logged<'_>, _terms: &Terms<'_>, _doubts: &mut Doubts) -> Option<Retold> {
    let row = logged.row;
    let kept: LoggedInput<'_> = logged::read(&row.input);
    let call = |known: &str| ActionCall {
        session_id: row.session.clone(),
        action: row.subject.clone(),
        path_at: row.subject.len(),
        identity: xxh3_64(format!("{}\0{known}", row.subject).as_bytes()),
    };
    if row.kind == row::Kind::Check {
        return Some(Retold::of(Request(call(&kept.call))));
    }
    let identity = logged.events()?.into_iter().find_map(|event| match event {
        Event::Resulted { call, .. } => Some(call),
        Event::Called { .. } => None,
    })?;
    let known = fingerprint::hex16(&identity.to_be_bytes());
    Some(Retold::of(ResultRequest { call: call(&known), failed: kept.failed == Some(true) }))
}

#[derive(Debug)]
pub struct Request(ActionCall);

#[derive(Debug)]
pub struct Block {
    failures: u32,
}

impl GuardRequest for Request {
    fn route(&self) -> &'static Route {
        &ROUTE
    }

    fn session_id(&self) -> &str {
        &self.0.session_id
    }

    fn subject(&self) -> &str {
        &self.0.action
    }

    fn kept_subject(&self, store_text: StoreText) -> Cow<'_, str> {
        self.0.kept_action(store_text)
    }

    fn places(&self) -> Vec<Place<'_>> {
        self.0.places()
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&LoggedInput { call: fingerprint::hex16(&self.0.identity.to_be_bytes()).into(), failed: None })
    }
}

impl Decide for Request {
    type Guard = ActionGroup;
    type Block = Block;
    type Pass = u32;

    fn decide(&self, settings: &Settings, state: &Calls, _moment: Moment<'_>) -> RulingOf<Self> {
        let failures = state.failures_of(self.0.identity);
        let findings = if failures >= settings.max_failures {
            vec![Finding::new(Reason::PermanentFailure, Block { failures }, None)]
        } else {
            Vec::new()
        };
        Ruling { findings, pass: failures, events: vec![Event::Called { call: self.0.identity }] }
    }

    fn explain(&self, settings: &Settings, _state: &Calls, block: &Block, moment: Moment<'_>) -> (Facts, String) {
        let action = self.0.kept_action(moment.store_text);
        let facts = Facts::new()
            .with("action", action.clone().into_owned())
            .with("failures", block.failures)
            .with("max_failures", settings.max_failures)
            .with("retryable", false);
        (facts, refusal(&action, block.failures, settings.max_failures))
    }

    fn pass(&self, failures: u32, moment: Moment<'_>) -> Facts {
        Facts::new().with("action", self.0.kept_action(moment.store_text).into_owned()).with("failures", failures)
    }
}

#[derive(Debug)]
pub struct ResultRequest {
    call: ActionCall,
    failed: bool,
}

impl GuardRequest for ResultRequest {
    fn route(&self) -> &'static Route {
        &RESULT_ROUTE
    }

    fn session_id(&self) -> &str {
        &self.call.session_id
    }

    fn subject(&self) -> &str {
        &self.call.action
    }

    fn kept_subject(&self, store_text: StoreText) -> Cow<'_, str> {
        self.call.kept_action(store_text)
    }

    fn places(&self) -> Vec<Place<'_>> {
        self.call.places()
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&LoggedInput { call: Cow::Borrowed(""), failed: Some(self.failed) })
    }
}

impl Decide for ResultRequest {
    type Guard = ActionGroup;
    type Block = Infallible;
    type Pass = u32;

    fn decide(&self, _settings: &Settings, state: &Calls, _moment: Moment<'_>) -> RulingOf<Self> {
        let mut after = state.clone();
        after.finish(self.call.identity, CallResult::of(self.failed));
        let events = vec![Event::Resulted { call: self.call.identity, failed: self.failed }];
        Ruling { findings: Vec::new(), pass: after.failures_of(self.call.identity), events }
    }

    fn explain(&self, _settings: &Settings, _state: &Calls, block: &Infallible, _moment: Moment<'_>) -> (Facts, String) {
        match *block {}
    }

    fn pass(&self, failures: u32, moment: Moment<'_>) -> Facts {
        Facts::new().with("action", self.call.kept_action(moment.store_text).into_owned()).with("failures", failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Operation;
    use crate::guard::properties::{Story, operation};
    use serde_json::json;

    fn call(path: &str, id: &str, failed: Option<bool>) -> Box<dyn Operation> {
        let mut body = json!({"session_id": "s", "action_group": "orders", "function": "get", "parameters": [{"name": "id", "value": id}]});
        if let Some(failed) = failed {
            body["failed"] = failed.into();
        }
        operation(path, body)
    }

    fn run(story: &mut Story, id: &str, failed: bool) {
        assert!(story.at(0).allows(&*call("/guard/action-group", id, None)));
        story.run(&*call("/guard/action-group/result", id, Some(failed)));
    }

    #[test]
    fn the_third_call_after_two_failures_is_refused() {
        let mut story = Story::default();
        run(&mut story, "7", true);
        run(&mut story, "7", true);
        assert_eq!(story.at(0).refuses(&*call("/guard/action-group", "7", None)), Reason::PermanentFailure);
        run(&mut story, "8", true);
        assert_eq!(
            story.at(0).refuses(&*call("/guard/action-group", "7", None)),
            Reason::PermanentFailure,
            "another one that fails mends nothing"
        );
        run(&mut story, "8", false);
        assert!(story.at(0).allows(&*call("/guard/action-group", "7", None)), "something succeeded since");
    }

    #[test]
    fn calls_that_fail_in_turns_are_refused() {
        let mut story = Story::default();
        for id in ["7", "8", "7", "8"] {
            run(&mut story, id, true);
        }
        for id in ["7", "8"] {
            assert_eq!(story.at(0).refuses(&*call("/guard/action-group", id, None)), Reason::PermanentFailure, "{id}");
        }
        assert!(story.at(0).allows(&*call("/guard/action-group", "9", None)));
    }

    #[test]
    fn a_state_of_before_is_read_and_read_by_those_before() {
        let before = postcard::to_stdvec(&LastCall { call: 7, failures: 2 }).unwrap();
        let mut calls = Calls::load(&[Some(&before)]);
        assert_eq!((calls.failures_of(7), calls.failures_of(8)), (2, 0));
        ActionGroup::apply(&mut calls, &Event::Called { call: 8 }, Timestamp::from_millis(0));
        ActionGroup::apply(&mut calls, &Event::Resulted { call: 8, failed: true }, Timestamp::from_millis(0));
        let kept = calls.save(0);
        assert_eq!(Calls::load(&[Some(&kept)]).failures_of(8), 1);
        assert_eq!(postcard::from_bytes::<LastCall>(&kept).unwrap(), LastCall { call: 8, failures: 1 });
    }

    #[test]
    fn a_late_result_takes_nothing_from_the_newest_call() {
        let mut story = Story::default();
        assert!(story.at(0).allows(&*call("/guard/action-group", "8", None)));
        run(&mut story, "7", true);
        story.run(&*call("/guard/action-group/result", "8", Some(false)));
        run(&mut story, "7", true);
        assert_eq!(story.at(0).refuses(&*call("/guard/action-group", "7", None)), Reason::PermanentFailure);
    }

    #[test]
    fn calls_that_succeed_are_never_counted() {
        let mut story = Story::default();
        for _ in 0..20 {
            run(&mut story, "7", false);
        }
        run(&mut story, "7", true);
        run(&mut story, "7", false);
        run(&mut story, "7", true);
        assert!(story.at(0).allows(&*call("/guard/action-group", "7", None)));
    }
}
