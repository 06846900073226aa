//! A breaker for an upstream API, shared by all sessions of a tenant: the circuit of [`runguard_core::breaker`], behind a door.

use super::{
    AnswerKind, Billed, Change, Decide, Finding, Guard, GuardEntry, GuardRequest, GuardedStep, Holds, Lasts, LivesWith, Moment, Notice,
    Outcome, Place, Probe, Route, RouteKind, Ruling, RulingOf, Scope, Slot, Stored, changes, decode, encode, says,
};
use crate::answer::Facts;
use crate::answer::{Answer, Value};
use crate::input::{Field, Kind, PassedCall};
use crate::logged::{self, Doubts, Logged, Retell, Retold, Shows, Terms, Turned};
use crate::policy::{GuardSettings, Policy, Section, Setting};
use runguard_core::breaker::circuit::{CallReport, Caller, Circuit, CircuitSettings, Phase, Refusal};
pub use runguard_core::breaker::circuit::{CircuitView, Control, Event, Forced, PhaseChange, Remains};
use runguard_core::limits::{InvalidSetting, within};
use runguard_core::reason::{GuardName, Reason};
use runguard_core::row::{self, Action, Ended, Row, RowRef};
use runguard_core::text::StoreText;
use runguard_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

/// What a policy has of it.
pub type Sections = Arc<Section<Settings>>;

pub(super) const ENTRY: GuardEntry = GuardEntry {
    routes: &[&CHECK_ROUTE, &RECORD_ROUTE],
    slots: &[&ENDPOINT_SLOT, &SESSION_SLOT],
    step: GuardedStep::ToolCall,
    billed: Some(Billed::Call),
    holds: Holds::Flow,
    shows,
    retelling: || Box::new(Retelling::default()),
    traces: None,
};

/// Where the phases of endpoints are filed.
pub static ENDPOINT_SLOT: Slot = Slot { lives_with: LivesWith::Endpoint, ..Slot::of::<ApiCircuit, 0>(8, Lasts::ByState(remains)) };
static SESSION_SLOT: Slot = Slot { lives_with: LivesWith::Endpoint, ..Slot::of::<ApiCircuit, 1>(9, Lasts::Window) };

pub static CHECK_ROUTE: Route = Route {
    path: "/guard/api-circuit/check",
    guard: GuardName::ApiCircuit,
    kind: RouteKind::Check,
    summary: "May this session call the endpoint?",
    fields: &[
        Field::required("endpoint_key", Kind::Id, "The upstream API.", "\"order-management-api\""),
        Field::required("session_id", Kind::Id, "The conversation.", "\"user-1\""),
    ],
    answers: &[
        says("endpoint_key", AnswerKind::Text, "The endpoint asked about."),
        says("session_attempt_number", AnswerKind::Whole, "Allowed: which attempt since the session's last success this is."),
        says("recent_failures_in_window", AnswerKind::Whole, "Allowed: failures of all sessions in the window."),
        says("failure_threshold", AnswerKind::Whole, "Allowed: so many of them open the circuit."),
        says("permit_id", AnswerKind::Text, "Allowed: give it back with the result."),
        says("probe", AnswerKind::Flag, "Allowed: this call tests whether the endpoint has recovered."),
        says("phase", AnswerKind::Text, "Blocked: open or half_open."),
        says("forced", AnswerKind::Flag, "Blocked: an operator opened the circuit."),
        says("recent_failures", AnswerKind::Whole, "Just tripped: failures counted."),
        says("failure_window_seconds", AnswerKind::Whole, "Just tripped: the window they were counted in."),
        says("recovery_seconds", AnswerKind::Whole, "Just tripped: how long it stays open."),
        says("recovery_seconds_remaining", AnswerKind::Whole, "Blocked: seconds until the next probe."),
        says("session_attempts", AnswerKind::Whole, "Session ceiling: attempts counted."),
        says("ceiling", AnswerKind::Whole, "Session ceiling: attempts allowed."),
    ],
    reasons: &[Reason::CircuitJustTripped, Reason::CircuitOpen, Reason::SessionRetryCeiling],
    read: |input| {
        Box::new(CheckRequest { endpoint_key: input.text("endpoint_key"), session_id: input.text("session_id"), call: input.call.cloned() })
    },
};

pub static RECORD_ROUTE: Route = Route {
    path: "/guard/api-circuit/record",
    guard: GuardName::ApiCircuit,
    kind: RouteKind::Record,
    summary: "How a call to the endpoint ended.",
    fields: &[
        Field::required("endpoint_key", Kind::Id, "The upstream API.", "\"order-management-api\""),
        Field::required("session_id", Kind::Id, "The conversation.", "\"user-1\""),
        Field::required("outcome", Kind::OneOf(&["success", "failure"]), "How it ended.", "\"failure\""),
        Field::optional("attempt", Kind::Whole(1), "Which attempt of the session it was.", "1"),
        Field::optional("status_code", Kind::Whole(0), "The HTTP status.", "503"),
        Field::optional("latency_ms", Kind::Whole(0), "How long it took.", "840"),
        Field::optional("permit_id", Kind::Hash, "The permit the check gave.", "\"0-01JF8Z6Q0V3N1W2X4Y5Z6A7B8C\""),
        Field::optional(
            "retry_after_seconds",
            Kind::Whole(0),
            "How long the endpoint asked to be left alone (its Retry-After): if this failure opens the circuit, it is open for at least as long, up to 10 minutes.",
            "20",
        ),
    ],
    answers: &[
        says("endpoint_key", AnswerKind::Text, "The endpoint."),
        says("phase", AnswerKind::Text, "closed, open or half_open after this result."),
        says("tripped", AnswerKind::Flag, "Whether this result opened the circuit."),
        says("watched", AnswerKind::Flag, "False: the tenant has as many endpoints as it may, and this one is not among them."),
    ],
    reasons: &[],
    read: |input| {
        Box::new(RecordRequest {
            endpoint_key: input.text("endpoint_key"),
            session_id: input.text("session_id"),
            failed: input.text("outcome") == "failure",
            attempt: input.whole("attempt").unwrap_or(1),
            status_code: input.whole("status_code"),
            latency_ms: input.whole("latency_ms"),
            permit_id: input.optional_text("permit_id").filter(|permit| !permit.is_empty()),
            retry_after_seconds: input.whole("retry_after_seconds"),
            call: input.call.cloned(),
        })
    },
};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    #[serde(flatten)]
    pub circuit: CircuitSettings,
    pub max_endpoints: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { circuit: CircuitSettings::default(), max_endpoints: 10_000 }
    }
}

impl GuardSettings for Settings {
    const GUARD: GuardName = GuardName::ApiCircuit;
    const SECTION: &'static [&'static str] = &["api_circuit"];
    const SUBJECTS: &'static str = "endpoints";
    const SETTINGS: &'static [Setting] = &[
        Setting { key: "max_attempts_per_session", about: "Recorded attempts of one session since its last success." },
        Setting { key: "session_window", about: "How long a session's attempts count." },
        Setting { key: "failure_threshold", about: "Failures of all sessions in the failure window that open the circuit." },
        Setting { key: "failure_window", about: "Seconds (60) or with a unit (\"1m\")." },
        Setting { key: "failure_rate", about: "Share of failures among at least min_calls calls that opens it too; 0 is off." },
        Setting { key: "slow_call_ms", about: "A call that takes longer is slow; 0 is off." },
        Setting { key: "slow_rate", about: "Share of slow calls among at least min_calls calls that opens it too; 0 is off." },
        Setting { key: "min_calls", about: "Calls in the failure window before a rate is looked at." },
        Setting { key: "recovery", about: "How long the circuit stays open before a probe." },
        Setting { key: "recovery_backoff", about: "Factor for each time a probe fails, up to 10 minutes." },
        Setting { key: "probes", about: "Calls that may test a half-open circuit at the same time." },
        Setting { key: "probe_timeout", about: "A probe that has not reported by then is given to another." },
        Setting {
            key: "max_endpoints",
            about: "Endpoints with failures that are remembered for a tenant. Results of further ones are taken and not counted, with a warning, until others are forgotten: one that never opened is when its windows are over.",
        },
    ];

    fn longest_window(&self) -> Span {
        self.circuit.longest_window()
    }

    fn check(&self) -> Result<(), InvalidSetting> {
        within("max_endpoints", self.max_endpoints, 1..=1_000_000)?;
        self.circuit.check()
    }
}

/// The endpoint (shared) and the session's part at it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    endpoint: Circuit,
    session: Caller,
}

impl Stored for State {
    fn load(parts: &[Option<&[u8]>]) -> Self {
        Self { endpoint: decode(parts.first().copied().flatten()), session: decode(parts.get(1).copied().flatten()) }
    }

    fn save(&self, part: usize) -> Vec<u8> {
        if part == 0 { encode(&self.endpoint) } else { encode(&self.session) }
    }
}

#[derive(Debug)]
pub struct ApiCircuit;

impl Guard for ApiCircuit {
    type Settings = Settings;
    type State = State;
    type Event = Event;

    fn section(policy: &Policy) -> &Section<Settings> {
        &policy.api_circuit
    }

    fn apply(state: &mut State, event: &Event, at: Timestamp) {
        if event.is_of_caller() {
            state.session.apply(event, at);
        } else {
            state.endpoint.apply(event, at);
        }
    }

    fn part(event: &Event) -> usize {
        usize::from(event.is_of_caller())
    }

    fn probes(section: &Section<Settings>, subject: &str, state: &State, now: Timestamp) -> Vec<Probe> {
        let settings = &section.for_subject(subject).settings.circuit;
        let (cap, window) = (settings.max_attempts_per_session, settings.session_window);
        let request = CheckRequest { endpoint_key: subject.to_owned(), session_id: String::new(), call: None };
        vec![Probe { request: Box::new(request), used: state.session.attempts().count(now, window), ceiling: cap, window }]
    }
}

fn places<'a>(endpoint_key: &'a str, session_id: &'a str) -> Vec<Place<'a>> {
    vec![endpoint_place(endpoint_key), Place::in_session(session_id, &SESSION_SLOT, endpoint_key)]
}

/// Whether a permit has the form of those the check gives: a generation and a decision.
fn is_permit(permit: &str) -> bool {
    permit.split_once('-').is_some_and(|(generation, decision)| {
        generation.parse::<u32>().is_ok()
            && decision.len() == 26
            && decision.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    })
}

/// Where an endpoint's phase is kept.
pub fn endpoint_place(endpoint_key: &str) -> Place<'_> {
    Place { scope: Scope::Endpoint, name: endpoint_key, slot: &ENDPOINT_SLOT, subject: endpoint_key }
}

#[derive(Debug)]
pub struct CheckRequest {
    pub endpoint_key: String,
    pub session_id: String,
    /// The model call that is passed on. Its client tries again by itself, several times in a second: what a session may try is not
    /// counted by its attempts.
    pub call: Option<PassedCall>,
}

/// What a session's own attempts say: nothing where a door passes its calls on.
fn caller_of<'a>(state: &'a State, call: Option<&PassedCall>) -> Cow<'a, Caller> {
    if call.is_some() { Cow::Owned(Caller::default()) } else { Cow::Borrowed(&state.session) }
}

/// Without those of a session that is not counted.
fn counted(mut events: Vec<Event>, call: Option<&PassedCall>) -> Vec<Event> {
    if call.is_some() {
        events.retain(|event| !event.is_of_caller());
    }
    events
}

/// What of a call is told in a row of its circuit: how its run was recognised is told where it is followed.
fn told(call: Option<&PassedCall>) -> Option<Cow<'_, PassedCall>> {
    call.map(|call| Cow::Owned(PassedCall { found_by: Box::default(), ..call.clone() }))
}

#[derive(Debug)]
pub struct Pass {
    attempt: u32,
    recent_failures: u32,
    threshold: u32,
    permit: String,
    probe: bool,
}

impl GuardRequest for CheckRequest {
    fn route(&self) -> &'static Route {
        &CHECK_ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.endpoint_key
    }

    fn places(&self) -> Vec<Place<'_>> {
        places(&self.endpoint_key, &self.session_id)
    }

    fn input(&self, _store_text: StoreText) -> String {
        logged::write(&KeptCheck { call: told(self.call.as_ref()) })
    }
}

impl Decide for CheckRequest {
    type Guard = ApiCircuit;
    type Block = Refusal;
    type Pass = Pass;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let caller = caller_of(state, self.call.as_ref());
        let ruling = state.endpoint.check(&caller, &self.session_id, moment.decision_id, &settings.circuit, moment.now);
        let finding = |refusal: Refusal| {
            let mut finding = Finding::new(refusal.reason(), refusal, refusal.clears_at());
            if matches!(refusal, Refusal::JustTripped { .. }) {
                finding.events.push(Event::Announced);
            }
            finding
        };
        Ruling {
            findings: ruling.refusals.into_iter().map(finding).collect(),
            pass: Pass {
                attempt: ruling.attempt,
                recent_failures: ruling.recent_failures,
                threshold: settings.circuit.failure_threshold,
                permit: ruling.permit,
                probe: ruling.is_probe,
            },
            events: counted(ruling.events, self.call.as_ref()),
        }
    }

    fn explain(&self, settings: &Settings, _state: &State, block: &Refusal, moment: Moment<'_>) -> (Facts, String) {
        let settings = &settings.circuit;
        let facts = Facts::new().with("endpoint_key", self.endpoint_key.clone());
        let facts = match block {
            Refusal::JustTripped { failures, recovery, until } => facts
                .with("phase", "open")
                .with("recent_failures", *failures)
                .with("failure_window_seconds", settings.failure_window.as_seconds())
                .with("recovery_seconds", recovery.as_seconds())
                .with("recovery_seconds_remaining", moment.now.seconds_until(*until)),
            Refusal::Open { phase, until, is_forced } => {
                let facts = facts.with("phase", phase.code()).with("forced", *is_forced);
                match until {
                    Some(until) => facts.with("recovery_seconds_remaining", moment.now.seconds_until(*until)),
                    None => facts,
                }
            }
            Refusal::SessionCeiling { attempts, .. } => {
                facts.with("session_attempts", *attempts).with("ceiling", settings.max_attempts_per_session)
            }
        };
        (facts, block.message(&self.endpoint_key, settings, moment.now))
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        Facts::new()
            .with("endpoint_key", self.endpoint_key.clone())
            .with("session_attempt_number", pass.attempt)
            .with("recent_failures_in_window", pass.recent_failures)
            .with("failure_threshold", pass.threshold)
            .with("permit_id", pass.permit)
            .with("probe", pass.probe)
    }
}

#[derive(Debug)]
pub struct RecordRequest {
    pub endpoint_key: String,
    pub session_id: String,
    pub failed: bool,
    pub attempt: u64,
    pub status_code: Option<u64>,
    pub latency_ms: Option<u64>,
    pub permit_id: Option<String>,
    pub retry_after_seconds: Option<u64>,
    /// As of [`CheckRequest`].
    pub call: Option<PassedCall>,
}

impl RecordRequest {
    /// Through a door pass the calls of many: an endpoint that fails some of them and mostly works is not left alone, and one that says when it
    /// has room again is left alone until then.
    fn as_a_door_knows(&self, call: &PassedCall, events: &mut Vec<Event>, phase: Phase, now: Timestamp) {
        // Nor does what others count as a failure: a door that few calls pass would open the circuit of all with it.
        if call.mostly_works && phase == Phase::Closed {
            events.retain(|event| !matches!(event, Event::Tripped { .. } | Event::Failed { .. }));
        }
        let Some(seconds) = self.retry_after_seconds.filter(|_| self.status_code == Some(429)) else { return };
        for event in events {
            if let Event::Tripped { until, .. } = event {
                *until = (*until).min(now.plus(Span::from_seconds(seconds.max(1))));
            }
        }
    }
}

/// What a result made of the circuit.
#[derive(Debug)]
pub struct Recorded {
    phase: Phase,
    change: Option<PhaseChange>,
}

impl GuardRequest for RecordRequest {
    fn route(&self) -> &'static Route {
        &RECORD_ROUTE
    }

    fn session_id(&self) -> &str {
        &self.session_id
    }

    fn subject(&self) -> &str {
        &self.endpoint_key
    }

    fn places(&self) -> Vec<Place<'_>> {
        places(&self.endpoint_key, &self.session_id)
    }

    fn input(&self, store_text: StoreText) -> String {
        let kept = |permit: &'_ String| {
            let kept = if is_permit(permit) { Cow::Borrowed(permit.as_str()) } else { store_text.keep_name(permit) };
            runguard_core::text::cut(&kept, 64).to_owned().into()
        };
        logged::write(&LoggedInput {
            outcome: Some(if self.failed { CallOutcome::Failure } else { CallOutcome::Success }),
            attempt: self.attempt,
            status_code: self.status_code,
            latency_ms: self.latency_ms,
            permit_id: self.permit_id.as_ref().map(kept),
            retry_after_seconds: self.retry_after_seconds,
            call: told(self.call.as_ref()),
        })
    }
}

impl Decide for RecordRequest {
    type Guard = ApiCircuit;
    type Block = Infallible;
    type Pass = Recorded;

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let result = CallReport {
            // Many calls of a run may be out at once: which of them tests the circuit is told by its permit alone.
            session: if self.call.is_some() { "" } else { &self.session_id },
            is_failure: self.failed,
            latency_ms: self.latency_ms,
            permit: self.permit_id.as_deref(),
            retry_after: self.retry_after_seconds.map(Span::from_seconds),
        };
        let caller = caller_of(state, self.call.as_ref());
        // What the door did not count while the model mostly worked counts with what shows that it does not.
        let uncounted = self.call.as_ref().map_or(0, |call| if call.mostly_works { 0 } else { call.uncounted });
        let keep = settings.circuit.failure_threshold;
        let is_counted = self.failed && state.endpoint.phase() == Phase::Closed;
        let mut events: Vec<Event> = (0..if is_counted { uncounted.min(keep) } else { 0 }).map(|_| Event::Failed { keep }).collect();
        let mut endpoint = Cow::Borrowed(&state.endpoint);
        for event in &events {
            endpoint.to_mut().apply(event, moment.now);
        }
        events.extend(counted(endpoint.record(&caller, &result, &settings.circuit, moment.now), self.call.as_ref()));
        if let Some(call) = &self.call {
            self.as_a_door_knows(call, &mut events, state.endpoint.phase(), moment.now);
        }
        let change = PhaseChange::of(&events);
        let phase = change.map_or_else(|| state.endpoint.phase(), PhaseChange::phase);
        Ruling { findings: Vec::new(), pass: Recorded { phase, change }, events }
    }

    fn explain(&self, _settings: &Settings, _state: &State, block: &Infallible, _moment: Moment<'_>) -> (Facts, String) {
        match *block {}
    }

    fn pass(&self, recorded: Recorded, _moment: Moment<'_>) -> Facts {
        Facts::new()
            .with("endpoint_key", self.endpoint_key.clone())
            .with("phase", recorded.phase.code())
            .with("tripped", recorded.change == Some(PhaseChange::Tripped))
    }

    fn notice(&self, recorded: &Recorded) -> Option<Notice> {
        recorded.change.map(|change| match change {
            PhaseChange::Tripped => Notice::CircuitTripped,
            PhaseChange::Closed => Notice::CircuitClosed,
        })
    }
}

/// What is kept of a result.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct LoggedInput<'a> {
    outcome: Option<CallOutcome>,
    attempt: u64,
    status_code: Option<u64>,
    latency_ms: Option<u64>,
    #[serde(borrow)]
    permit_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<Cow<'a, PassedCall>>,
}

/// What is kept of a question.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct KeptCheck<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<Cow<'a, PassedCall>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CallOutcome {
    Success,
    Failure,
}

/// What of an answer is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LoggedAnswer<'a> {
    tripped: bool,
    #[serde(borrow)]
    phase: Cow<'a, str>,
    probe: Option<bool>,
    watched: Option<bool>,
    recent_failures_in_window: Option<u64>,
    failure_threshold: Option<u64>,
}

pub(crate) fn shows<'a>(row: &RowRef<'a>) -> Shows<'a> {
    let said: LoggedAnswer<'_> = logged::read(row.answer);
    let circuit = match row.outcome.known() {
        Some(Ended::Answered(row::Outcome::Recorded)) if said.tripped => Some(Turned::Open),
        Some(Ended::Answered(row::Outcome::Recorded)) if said.phase == Phase::Closed.code() => Some(Turned::Closed),
        Some(Ended::Answered(row::Outcome::Allowed)) if said.probe == Some(false) => Some(Turned::Closed),
        Some(Ended::Did(Action::CircuitForcedClosed | Action::CircuitReset)) => Some(Turned::Closed),
        Some(Ended::Answered(_) | Ended::Did(_)) | None => None,
    };
    let kept: LoggedInput<'_> = logged::read(row.input);
    let call = kept.outcome.map(|outcome| logged::CallEnd { is_failure: outcome == CallOutcome::Failure, latency_ms: kept.latency_ms });
    let failing = said.recent_failures_in_window.zip(said.failure_threshold).filter(|_| said.probe == Some(false));
    let failing = failing.map(|(failures, threshold)| logged::Failing { failures, threshold });
    Shows { call, circuit, failing, ..Shows::default() }
}

/// A permit carries the generation of the circuit that gave it, so a result is told with the permit that was given this time. One
/// whose check is not in sight, or was refused, comes without.
#[derive(Debug, Default)]
pub(crate) struct Retelling {
    /// Of each way of telling, by decision.
    permits: [BTreeMap<String, String>; 2],
}

fn recorded_again(row: &Row, permit_id: Option<String>) -> RecordRequest {
    let kept: LoggedInput<'_> = logged::read(&row.input);
    RecordRequest {
        endpoint_key: row.subject.clone(),
        session_id: row.session.clone(),
        failed: kept.outcome == Some(CallOutcome::Failure),
        attempt: kept.attempt.max(1),
        status_code: kept.status_code,
        latency_ms: kept.latency_ms,
        permit_id,
        retry_after_seconds: kept.retry_after_seconds,
        call: kept.call.map(Cow::into_owned),
    }
}

impl Retell for Retelling {
    fn again(&mut self, logged: &Logged<'_>, _terms: &Terms<'_>, _doubts: &mut Doubts) -> Option<Retold> {
        let row = logged.row;
        // A result for an endpoint that was one too many did nothing to it.
        if logged::read::<LoggedAnswer<'_>>(&row.answer).watched == Some(false) {
            return None;
        }
        match row.kind.known()? {
            row::Kind::Check => Some(Retold::of(CheckRequest {
                endpoint_key: row.subject.clone(),
                session_id: row.session.clone(),
                call: logged::read::<KeptCheck<'_>>(&row.input).call.map(Cow::into_owned),
            })),
            row::Kind::Record => Some(Retold::of(recorded_again(row, None))),
            // An operator's word left its events.
            row::Kind::Admin => None,
        }
    }

    fn again_in(&self, lane: usize, logged: &Logged<'_>) -> Option<Box<dyn crate::Operation>> {
        let kept: LoggedInput<'_> = logged::read(&logged.row.input);
        let (_, decision_id) = kept.permit_id.as_deref()?.split_once('-')?;
        Some(Box::new(recorded_again(logged.row, self.permits[lane].get(decision_id).cloned())))
    }

    fn answered(&mut self, lane: usize, row: &Row, answer: &Answer) {
        if let Some(Value::Text(permit)) = answer.facts.get("permit_id") {
            self.permits[lane].insert(row.id.clone(), permit.to_string());
        }
    }
}

/// The result of a call to an endpoint that is not remembered, because there are too many: of the outcome stays what concerns the
/// session.
pub fn unwatched(outcome: &mut Outcome) {
    outcome.changes.retain(|change| change.place != 0);
    outcome.notice = None;
    let endpoint_key = outcome.answer.facts.get("endpoint_key").cloned();
    let facts = endpoint_key.into_iter().fold(Facts::new(), |facts, endpoint_key| facts.with("endpoint_key", endpoint_key));
    outcome.answer.facts = facts.with("phase", "closed").with("tripped", false).with("watched", false);
}

/// How many endpoints of a tenant are remembered.
pub fn max_endpoints(policy: &Policy) -> u32 {
    policy.api_circuit.base().settings.max_endpoints
}

pub fn remains(state: &[u8]) -> Remains {
    // One of a later version is not ours to forget early.
    postcard::from_bytes::<Circuit>(state).map_or(Remains::Phase, |circuit| circuit.remains())
}

/// Whether an endpoint is as good as forgotten, or soon will be.
pub fn is_over(state: &[u8], endpoint_key: &str, policy: &Policy, now: Timestamp) -> bool {
    let settings = &policy.api_circuit.for_subject(endpoint_key).settings.circuit;
    postcard::from_bytes::<Circuit>(state).is_ok_and(|circuit| circuit.is_over(settings, now))
}

/// Applies an operator's word to an endpoint's state.
pub fn control(state: Option<&[u8]>, control: Control, now: Timestamp) -> Change {
    let mut changes = changes::<ApiCircuit>(State::load(&[state]), control.events(), now);
    changes.remove(0)
}

/// An endpoint as operators see it.
pub fn view(state: &[u8], endpoint_key: &str, policy: &Policy, now: Timestamp) -> CircuitView {
    decode::<Circuit>(Some(state)).view(&policy.api_circuit.for_subject(endpoint_key).settings.circuit, now)
}

#[cfg(test)]
mod tests;
