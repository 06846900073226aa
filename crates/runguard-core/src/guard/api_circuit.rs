//! A breaker for an upstream API, shared by all sessions of a tenant.
//!
//! Two states decide together: the endpoint's phase and the session's retries. They are asked in one step, because a
//! session at its own ceiling must not use up the probe. Every change of phase raises the *generation*; a permit
//! carries the generation it was given in, so a result that was on its way when the phase changed is recognised as
//! old news and moves nothing.

use super::{
    AnswerKind, Change, Check, Finding, Guard, Moment, Notice, Operation, Outcome, Outlook, Place, Route, RouteKind, Ruling, RulingOf,
    Scope, Slot, Stored, changes, count_outlook, decode, encode, forget_earliest, operation_of_check, recorded, says, times,
};
use crate::answer::Facts;
use crate::input::{Field, Kind};
use crate::policy::{GuardSettings, Policy, Section, Setting, fraction, lasting, within};
use crate::reason::{GuardName, Reason};
use crate::text::StoreText;
use crate::time::{Span, Timestamp};
use crate::window::Slots;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_64;

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
        says("permit_id", AnswerKind::Text, "Allowed: give it back with the result."),
        says("probe", AnswerKind::Flag, "Allowed: this call tests whether the endpoint has recovered."),
        says("phase", AnswerKind::Text, "Refused: open or half_open."),
        says("forced", AnswerKind::Flag, "Refused: an operator opened the circuit."),
        says("recent_failures", AnswerKind::Whole, "Just tripped: failures counted."),
        says("failure_window_seconds", AnswerKind::Whole, "Just tripped: the window they were counted in."),
        says("recovery_seconds", AnswerKind::Whole, "Just tripped: how long it stays open."),
        says("recovery_seconds_remaining", AnswerKind::Whole, "Refused: seconds until the next probe."),
        says("session_attempts", AnswerKind::Whole, "Session ceiling: attempts counted."),
        says("ceiling", AnswerKind::Whole, "Session ceiling: attempts allowed."),
    ],
    reasons: &[Reason::CircuitJustTripped, Reason::CircuitOpen, Reason::SessionRetryCeiling],
    read: |input| Box::new(CheckRequest { endpoint_key: input.text("endpoint_key"), session_id: input.text("session_id") }),
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
        })
    },
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub max_attempts_per_session: u32,
    pub session_window: Span,
    pub failure_threshold: u32,
    pub failure_window: Span,
    /// 0 switches it off; so for the slow rate.
    pub failure_rate: f64,
    pub slow_call_ms: u32,
    pub slow_rate: f64,
    pub min_calls: u32,
    pub recovery: Span,
    pub recovery_backoff: f64,
    pub probes: u32,
    pub probe_timeout: Span,
    pub max_endpoints: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_attempts_per_session: 3,
            session_window: Span::from_seconds(3600),
            failure_threshold: 10,
            failure_window: Span::from_seconds(60),
            failure_rate: 0.0,
            slow_call_ms: 0,
            slow_rate: 0.0,
            min_calls: 20,
            recovery: Span::from_seconds(45),
            recovery_backoff: 1.0,
            probes: 1,
            probe_timeout: Span::from_seconds(30),
            max_endpoints: 10_000,
        }
    }
}

/// However often it trips again, it is tested again after this long.
const LONGEST_RECOVERY: Span = Span::from_seconds(600);
/// The rates are taken over the latest calls in the window, at most this many (or `min_calls`, if that is more).
const RATE_SAMPLE: u32 = 100;

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
        self.session_window.max(self.failure_window).max(self.recovery).max(LONGEST_RECOVERY)
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        within("max_attempts_per_session", self.max_attempts_per_session, 0..=1000)?;
        within("failure_threshold", self.failure_threshold, 1..=10_000)?;
        within("min_calls", self.min_calls, 1..=1000)?;
        within("probes", self.probes, 1..=1000)?;
        within("max_endpoints", self.max_endpoints, 1..=1_000_000)?;
        lasting("session_window", self.session_window)?;
        lasting("failure_window", self.failure_window)?;
        lasting("recovery", self.recovery)?;
        lasting("probe_timeout", self.probe_timeout)?;
        fraction("failure_rate", self.failure_rate)?;
        fraction("slow_rate", self.slow_rate)?;
        if !(1.0..=10.0).contains(&self.recovery_backoff) {
            return Err(("recovery_backoff", format!("must be from 1 to 10, is {}", self.recovery_backoff)));
        }
        if (self.slow_rate > 0.0) != (self.slow_call_ms > 0) {
            return Err(("slow_rate", "slow_rate and slow_call_ms go together: set both or neither".into()));
        }
        Ok(())
    }
}

impl Settings {
    fn recovery_after(&self, retrips: u32) -> Span {
        let factor = self.recovery_backoff.powi(retrips.min(64) as i32);
        let millis = (self.recovery.as_millis() as f64 * factor) as u64;
        Span::from_millis(millis.min(LONGEST_RECOVERY.max(self.recovery).as_millis()))
    }

    fn looks_at_rates(&self) -> bool {
        self.failure_rate > 0.0 || self.slow_rate > 0.0
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Lease {
    permit: String,
    session: u64,
    expires: Timestamp,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
enum Phase {
    #[default]
    Closed,
    Open {
        since: Timestamp,
        until: Timestamp,
        failures: u32,
        announced: bool,
    },
    HalfOpen {
        leases: Vec<Lease>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Forced {
    Open,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Sample {
    at: Timestamp,
    failed: bool,
    slow: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Endpoint {
    phase: Phase,
    generation: u32,
    failures: Slots,
    samples: Vec<Sample>,
    retrips: u32,
    forced: Option<Forced>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Session {
    /// Since the last success.
    attempts: Slots,
    /// The generation of the last permit.
    admitted: Option<u32>,
}

/// The endpoint (shared) and the session's part at it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    endpoint: Endpoint,
    session: Session,
}

impl Stored for State {
    fn load(parts: &[Option<&[u8]>]) -> Self {
        Self { endpoint: decode(parts.first().copied().flatten()), session: decode(parts.get(1).copied().flatten()) }
    }

    fn save(&self, part: usize) -> Vec<u8> {
        if part == 0 { encode(&self.endpoint) } else { encode(&self.session) }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// The first refusal after a trip was given.
    Announced,
    Leased {
        permit: String,
        session: u64,
        expires: Timestamp,
    },
    Failed {
        keep: u32,
    },
    Sampled {
        failed: bool,
        slow: bool,
        keep: u32,
    },
    Tripped {
        until: Timestamp,
        failures: u32,
        retrips: u32,
    },
    Closed,
    Forced(Option<Forced>),
    Attempted {
        keep: u32,
    },
    Succeeded,
    Admitted {
        generation: u32,
    },
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
        let State { endpoint, session } = state;
        match event {
            Event::Announced => {
                if let Phase::Open { announced, .. } = &mut endpoint.phase {
                    *announced = true;
                }
            }
            Event::Leased { permit, session, expires } => {
                let lease = Lease { permit: permit.clone(), session: *session, expires: *expires };
                match &mut endpoint.phase {
                    Phase::HalfOpen { leases } => {
                        leases.retain(|lease| at < lease.expires);
                        leases.push(lease);
                    }
                    Phase::Closed | Phase::Open { .. } => {
                        endpoint.generation = endpoint.generation.wrapping_add(1);
                        endpoint.phase = Phase::HalfOpen { leases: vec![lease] };
                    }
                }
            }
            Event::Failed { keep } => endpoint.failures.take(at, *keep),
            Event::Sampled { failed, slow, keep } => {
                endpoint.samples.push(Sample { at, failed: *failed, slow: *slow });
                while endpoint.samples.len() > (*keep).max(1) as usize {
                    forget_earliest(&mut endpoint.samples, |sample| sample.at);
                }
            }
            Event::Tripped { until, failures, retrips } => {
                endpoint.generation = endpoint.generation.wrapping_add(1);
                endpoint.retrips = *retrips;
                endpoint.phase = Phase::Open { since: at, until: *until, failures: *failures, announced: false };
            }
            Event::Closed => {
                *endpoint = Endpoint { generation: endpoint.generation.wrapping_add(1), forced: endpoint.forced, ..Endpoint::default() };
            }
            Event::Forced(forced) => {
                endpoint.generation = endpoint.generation.wrapping_add(1);
                endpoint.forced = *forced;
            }
            Event::Attempted { keep } => session.attempts.take(at, *keep),
            Event::Succeeded => session.attempts.clear(),
            Event::Admitted { generation } => session.admitted = Some(*generation),
        }
    }

    fn part(event: &Event) -> usize {
        match event {
            Event::Announced
            | Event::Leased { .. }
            | Event::Failed { .. }
            | Event::Sampled { .. }
            | Event::Tripped { .. }
            | Event::Closed
            | Event::Forced(_) => 0,
            Event::Attempted { .. } | Event::Succeeded | Event::Admitted { .. } => 1,
        }
    }

    fn outlook(section: &Section<Settings>, subject: &str, state: &State, now: Timestamp) -> Vec<Outlook> {
        let settings = &section.for_subject(subject).settings;
        let (cap, window) = (settings.max_attempts_per_session, settings.session_window);
        vec![count_outlook(GuardName::ApiCircuit, Reason::SessionRetryCeiling, subject, &state.session.attempts, cap, window, now)]
    }
}

/// What a check would meet at the endpoint.
enum Gate {
    Passing,
    /// A probe may be leased.
    Testing,
    Refusing {
        phase: &'static str,
        until: Option<Timestamp>,
        just_tripped: Option<(u32, Span)>,
        forced: bool,
    },
}

impl Endpoint {
    fn gate(&self, settings: &Settings, now: Timestamp) -> Gate {
        match (self.forced, &self.phase) {
            (Some(Forced::Open), _) => Gate::Refusing { phase: "open", until: None, just_tripped: None, forced: true },
            (Some(Forced::Closed), _) | (None, Phase::Closed) => Gate::Passing,
            (None, Phase::Open { since, until, failures, announced }) => {
                if now >= *until {
                    return Gate::Testing;
                }
                let length = Span::from_millis(until.millis_since(*since).max(0) as u64);
                Gate::Refusing {
                    phase: "open",
                    until: Some(*until),
                    just_tripped: (!announced).then_some((*failures, length)),
                    forced: false,
                }
            }
            (None, Phase::HalfOpen { leases }) => {
                let out: Vec<Timestamp> = leases.iter().map(|lease| lease.expires).filter(|expires| now < *expires).collect();
                if (out.len() as u32) < settings.probes {
                    return Gate::Testing;
                }
                Gate::Refusing { phase: "half_open", until: out.into_iter().min(), just_tripped: None, forced: false }
            }
        }
    }

    fn phase_name(&self) -> &'static str {
        match (self.forced, &self.phase) {
            (Some(Forced::Open), _) | (None, Phase::Open { .. }) => "open",
            (Some(Forced::Closed), _) | (None, Phase::Closed) => "closed",
            (None, Phase::HalfOpen { .. }) => "half_open",
        }
    }

    /// Whether the latest calls in the window are bad enough, with this one included.
    fn rate_reached(&self, settings: &Settings, failed: bool, slow: bool, now: Timestamp) -> bool {
        if !settings.looks_at_rates() {
            return false;
        }
        let recent: Vec<&Sample> = self.samples.iter().filter(|sample| now.still_counts(sample.at, settings.failure_window)).collect();
        let calls = recent.len() + 1;
        let share = |count: usize| count as f64 / calls as f64;
        let failures = recent.iter().filter(|sample| sample.failed).count() + usize::from(failed);
        let slow_calls = recent.iter().filter(|sample| sample.slow).count() + usize::from(slow);
        calls >= settings.min_calls as usize
            && ((settings.failure_rate > 0.0 && share(failures) >= settings.failure_rate)
                || (settings.slow_rate > 0.0 && share(slow_calls) >= settings.slow_rate))
    }
}

fn session_hash(session_id: &str) -> u64 {
    xxh3_64(session_id.as_bytes())
}

fn places<'a>(endpoint_key: &'a str, session_id: &'a str) -> Vec<Place<'a>> {
    vec![endpoint_place(endpoint_key), Place::in_session(session_id, Slot::CircuitSession, endpoint_key)]
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
    Place { scope: Scope::Endpoint, name: endpoint_key, slot: Slot::CircuitEndpoint, subject: endpoint_key }
}

#[derive(Debug)]
pub struct CheckRequest {
    pub endpoint_key: String,
    pub session_id: String,
}

#[derive(Debug)]
pub enum Block {
    JustTripped { failures: u32, recovery: Span, until: Timestamp },
    Open { phase: &'static str, until: Option<Timestamp>, forced: bool },
    SessionCeiling { attempts: u32 },
}

#[derive(Debug)]
pub struct Pass {
    attempt: u32,
    recent_failures: u32,
    permit: String,
    probe: bool,
}

impl Check for CheckRequest {
    type Guard = ApiCircuit;
    type Block = Block;
    type Pass = Pass;

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

    fn input(&self, _store_text: StoreText) -> Facts {
        Facts::new()
    }

    fn decide(&self, settings: &Settings, state: &State, moment: Moment<'_>) -> RulingOf<Self> {
        let now = moment.now;
        let State { endpoint, session } = state;
        let mut findings = Vec::new();
        let gate = endpoint.gate(settings, now);
        let probe = matches!(gate, Gate::Testing);
        if let Gate::Refusing { phase, until, just_tripped, forced } = gate {
            findings.push(match (just_tripped, until) {
                (Some((failures, recovery)), Some(until)) => {
                    let mut finding =
                        Finding::new(Reason::CircuitJustTripped, Block::JustTripped { failures, recovery, until }, Some(until));
                    finding.events.push(Event::Announced);
                    finding
                }
                _ => Finding::new(Reason::CircuitOpen, Block::Open { phase, until, forced }, until),
            });
        }
        let attempts = session.attempts.count(now, settings.session_window);
        if attempts >= settings.max_attempts_per_session {
            let frees_at = session.attempts.frees_at(settings.session_window, settings.max_attempts_per_session);
            findings.push(Finding::new(Reason::SessionRetryCeiling, Block::SessionCeiling { attempts }, frees_at));
        }
        let leaves_open = probe && matches!(endpoint.phase, Phase::Open { .. });
        let generation = if leaves_open { endpoint.generation.wrapping_add(1) } else { endpoint.generation };
        let permit = format!("{generation}-{}", moment.decision_id);
        let mut events = Vec::new();
        if probe {
            events.push(Event::Leased {
                permit: permit.clone(),
                session: session_hash(&self.session_id),
                expires: now.plus(settings.probe_timeout),
            });
        }
        if session.admitted != Some(generation) {
            events.push(Event::Admitted { generation });
        }
        let recent_failures = endpoint.failures.count(now, settings.failure_window);
        Ruling { findings, pass: Pass { attempt: attempts + 1, recent_failures, permit, probe }, events }
    }

    fn explain(&self, settings: &Settings, _state: &State, block: &Block, moment: Moment<'_>) -> (Facts, String) {
        let endpoint = &self.endpoint_key;
        let facts = Facts::new().with("endpoint_key", endpoint.clone());
        match block {
            Block::JustTripped { failures, recovery, until } => (
                facts
                    .with("phase", "open")
                    .with("recent_failures", *failures)
                    .with("failure_window_seconds", settings.failure_window.as_seconds())
                    .with("recovery_seconds", recovery.as_seconds())
                    .with("recovery_seconds_remaining", moment.now.seconds_until(*until)),
                format!(
                    "'{endpoint}' failed {} in {} over all sessions (threshold {}), so the circuit is open for {recovery}. Do not retry; answer that the service is not available right now.",
                    times(*failures),
                    settings.failure_window,
                    settings.failure_threshold
                ),
            ),
            Block::Open { phase, until, forced } => {
                let seconds = until.map(|until| moment.now.seconds_until(until));
                let facts = facts.with("phase", *phase).with("forced", *forced);
                let facts = match seconds {
                    Some(seconds) => facts.with("recovery_seconds_remaining", seconds),
                    None => facts,
                };
                let message = match (forced, seconds, *phase) {
                    (true, _, _) | (false, None, _) => format!(
                        "An operator has opened the circuit of '{endpoint}'. Answer that the service is not available; it stays so until it is reset."
                    ),
                    (false, Some(seconds), "half_open") => format!(
                        "The circuit of '{endpoint}' is being tested by another call (at most {} at a time); the next may go in {seconds} s. Answer that the service is not available right now.",
                        settings.probes
                    ),
                    (false, Some(seconds), _) => format!(
                        "The circuit of '{endpoint}' is open for another {seconds} s. Do not retry; answer that the service is not available right now."
                    ),
                };
                (facts, message)
            }
            Block::SessionCeiling { attempts } => (
                facts.with("session_attempts", *attempts).with("ceiling", settings.max_attempts_per_session),
                format!(
                    "This session tried '{endpoint}' {} without success in the last {} (ceiling {}). Answer that the service is not available, or hand over to a person.",
                    times(*attempts),
                    settings.session_window,
                    settings.max_attempts_per_session
                ),
            ),
        }
    }

    fn pass(&self, pass: Pass, _moment: Moment<'_>) -> Facts {
        Facts::new()
            .with("endpoint_key", self.endpoint_key.clone())
            .with("session_attempt_number", pass.attempt)
            .with("recent_failures_in_window", pass.recent_failures)
            .with("permit_id", pass.permit)
            .with("probe", pass.probe)
    }
}
operation_of_check!(CheckRequest);

#[derive(Debug)]
pub struct RecordRequest {
    pub endpoint_key: String,
    pub session_id: String,
    pub failed: bool,
    pub attempt: u64,
    pub status_code: Option<u64>,
    pub latency_ms: Option<u64>,
    pub permit_id: Option<String>,
}

impl RecordRequest {
    /// The generation the call was admitted in, as far as that can be known.
    fn admitted_in(&self, state: &State) -> u32 {
        let from_permit =
            self.permit_id.as_deref().and_then(|permit| permit.split_once('-')).and_then(|(generation, _)| generation.parse().ok());
        from_permit.or(state.session.admitted).unwrap_or(state.endpoint.generation)
    }

    /// In half-open only a probe's result counts: named by its permit, or by its session where no permit is given.
    fn is_probe(&self, leases: &[Lease]) -> bool {
        let session = session_hash(&self.session_id);
        leases.iter().any(|lease| match &self.permit_id {
            Some(permit) => lease.permit == *permit,
            None => lease.session == session,
        })
    }

    fn events(&self, settings: &Settings, state: &State, now: Timestamp) -> Vec<Event> {
        let endpoint = &state.endpoint;
        let mut events = Vec::new();
        let slow = settings.slow_call_ms > 0 && self.latency_ms.is_some_and(|latency| latency > u64::from(settings.slow_call_ms));
        let is_old_news = self.admitted_in(state) != endpoint.generation;
        let failures = endpoint.failures.count(now, settings.failure_window) + u32::from(self.failed);
        let trip = |retrips: u32| Event::Tripped { until: now.plus(settings.recovery_after(retrips)), failures, retrips };
        match &endpoint.phase {
            Phase::Closed if !is_old_news => {
                if self.failed {
                    events.push(Event::Failed { keep: settings.failure_threshold });
                }
                if settings.looks_at_rates() {
                    events.push(Event::Sampled { failed: self.failed, slow, keep: RATE_SAMPLE.max(settings.min_calls) });
                }
                let reached =
                    (self.failed && failures >= settings.failure_threshold) || endpoint.rate_reached(settings, self.failed, slow, now);
                if reached && endpoint.forced.is_none() {
                    events.push(trip(0));
                }
            }
            Phase::HalfOpen { leases } if !is_old_news && endpoint.forced.is_none() && self.is_probe(leases) => {
                if self.failed {
                    events.push(Event::Failed { keep: settings.failure_threshold });
                    events.push(trip(endpoint.retrips.saturating_add(1)));
                } else {
                    events.push(Event::Closed);
                }
            }
            Phase::Closed | Phase::Open { .. } | Phase::HalfOpen { .. } => {}
        }
        events.push(if self.failed { Event::Attempted { keep: settings.max_attempts_per_session } } else { Event::Succeeded });
        events
    }
}

impl Operation for RecordRequest {
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

    fn input(&self, store_text: StoreText) -> Facts {
        let kept = |permit: &String| {
            let kept = if is_permit(permit) { Cow::Borrowed(permit.as_str()) } else { store_text.keep_name(permit) };
            crate::text::cut(&kept, 64).to_owned()
        };
        Facts::new()
            .with("outcome", if self.failed { "failure" } else { "success" })
            .with("attempt", self.attempt)
            .with("status_code", self.status_code)
            .with("latency_ms", self.latency_ms)
            .with("permit_id", self.permit_id.as_ref().map(kept))
    }

    fn run(&self, policy: &Policy, states: &[Option<&[u8]>], moment: Moment<'_>) -> Outcome {
        self.run_by(&policy.api_circuit, states, moment)
    }
}

impl RecordRequest {
    pub(crate) fn run_by(&self, section: &Section<Settings>, states: &[Option<&[u8]>], moment: Moment<'_>) -> Outcome {
        let settings = &section.for_subject(&self.endpoint_key).settings;
        let state = State::load(states);
        let events = self.events(settings, &state, moment.now);
        let tripped = events.iter().any(|event| matches!(event, Event::Tripped { .. }));
        let closed = events.iter().any(|event| matches!(event, Event::Closed));
        let phase = if tripped {
            "open"
        } else if closed {
            "closed"
        } else {
            state.endpoint.phase_name()
        };
        let facts = Facts::new().with("endpoint_key", self.endpoint_key.clone()).with("phase", phase).with("tripped", tripped);
        Outcome {
            answer: recorded(GuardName::ApiCircuit, facts),
            changes: changes::<ApiCircuit>(state, events, moment.now),
            notice: if tripped {
                Some(Notice::CircuitTripped)
            } else if closed {
                Some(Notice::CircuitClosed)
            } else {
                None
            },
            warnings: Vec::new(),
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

/// What an endpoint's state still says when nobody has asked for longer than any window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remains {
    /// It never opened, and its failures are too old to count: nobody could tell that it is gone.
    Nothing,
    /// Its phase, or which results are old news because it was open before.
    Phase,
    /// Until it is taken back.
    OperatorsWord,
}

pub fn remains(state: &[u8]) -> Remains {
    match postcard::from_bytes::<Endpoint>(state) {
        Ok(Endpoint { forced: Some(_), .. }) => Remains::OperatorsWord,
        Ok(Endpoint { phase: Phase::Closed, generation: 0, .. }) => Remains::Nothing,
        // One of a later version is not ours to forget early.
        Ok(Endpoint { phase: Phase::Closed | Phase::Open { .. } | Phase::HalfOpen { .. }, .. }) | Err(_) => Remains::Phase,
    }
}

/// Whether an endpoint is as good as forgotten, or soon will be: nothing is left of it, and nothing in it counts.
pub fn is_over(state: &[u8], endpoint_key: &str, policy: &Policy, now: Timestamp) -> bool {
    let window = policy.api_circuit.for_subject(endpoint_key).settings.longest_window();
    let endpoint: Endpoint = decode(Some(state));
    remains(state) == Remains::Nothing
        && endpoint.failures.count(now, window) == 0
        && !endpoint.samples.iter().any(|sample| now.still_counts(sample.at, window))
}

/// What an operator does to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Refuse everything until reset.
    Open,
    /// Let everything pass until reset.
    Close,
    /// Back to closed and automatic, with nothing remembered.
    Reset,
}

/// Applies an operator's word to an endpoint's state.
pub fn control(state: Option<&[u8]>, control: Control, now: Timestamp) -> Change {
    let events = match control {
        Control::Open => vec![Event::Forced(Some(Forced::Open))],
        Control::Close => vec![Event::Forced(Some(Forced::Closed))],
        Control::Reset => vec![Event::Forced(None), Event::Closed],
    };
    let mut changes = changes::<ApiCircuit>(State::load(&[state]), events, now);
    changes.remove(0)
}

/// An endpoint as operators see it.
#[derive(Debug, Clone, PartialEq)]
pub struct CircuitView {
    pub phase: &'static str,
    pub forced: Option<Forced>,
    pub recent_failures: u32,
    pub failure_threshold: u32,
    pub failure_window: Span,
    pub opened_at: Option<Timestamp>,
    pub probe_at: Option<Timestamp>,
    pub probes_out: u32,
    pub retrips: u32,
}

pub fn view(state: &[u8], endpoint_key: &str, policy: &Policy, now: Timestamp) -> CircuitView {
    view_by(state, endpoint_key, &policy.api_circuit, now)
}

pub(crate) fn view_by(state: &[u8], endpoint_key: &str, section: &Section<Settings>, now: Timestamp) -> CircuitView {
    let settings = &section.for_subject(endpoint_key).settings;
    let endpoint: Endpoint = decode(Some(state));
    let (opened_at, probe_at, probes_out) = match &endpoint.phase {
        Phase::Closed => (None, None, 0),
        Phase::Open { since, until, .. } => (Some(*since), Some(*until), 0),
        Phase::HalfOpen { leases } => {
            let out: Vec<Timestamp> = leases.iter().map(|lease| lease.expires).filter(|expires| now < *expires).collect();
            (None, out.iter().min().copied(), out.len() as u32)
        }
    };
    let recovered = endpoint.forced.is_none() && matches!(endpoint.phase, Phase::Open { until, .. } if now >= until);
    CircuitView {
        phase: if recovered { "half_open" } else { endpoint.phase_name() },
        forced: endpoint.forced,
        recent_failures: endpoint.failures.count(now, settings.failure_window),
        failure_threshold: settings.failure_threshold,
        failure_window: settings.failure_window,
        opened_at,
        probe_at,
        probes_out,
        retrips: endpoint.retrips,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Value;
    use crate::guard::properties::Story;
    use serde_json::json;

    fn check(session: &str) -> CheckRequest {
        CheckRequest { endpoint_key: "api".into(), session_id: session.into() }
    }

    fn result(session: &str, failed: bool) -> RecordRequest {
        RecordRequest {
            endpoint_key: "api".into(),
            session_id: session.into(),
            failed,
            attempt: 1,
            status_code: None,
            latency_ms: None,
            permit_id: None,
        }
    }

    fn permitted(session: &str, failed: bool, permit: &str) -> RecordRequest {
        RecordRequest { permit_id: Some(permit.into()), ..result(session, failed) }
    }

    fn text(value: Option<Value>) -> String {
        match value {
            Some(Value::Text(text)) => text.into_owned(),
            other => panic!("{other:?}"),
        }
    }

    /// Ten failures of ten sessions at second 0.
    fn tripped() -> Story {
        let mut story = Story::default();
        for number in 0..10 {
            assert!(story.at(0).allows(&check(&format!("s{number}"))));
        }
        for number in 0..9 {
            assert_eq!(story.at(0).tells(&result(&format!("s{number}"), true)), None);
        }
        assert_eq!(story.at(0).tells(&result("s9", true)), Some(Notice::CircuitTripped));
        story
    }

    #[test]
    fn the_first_refusal_says_it_just_tripped_and_the_rest_that_it_is_open() {
        let mut story = tripped();
        assert_eq!(story.at(1_000).refuses(&check("a")), Reason::CircuitJustTripped);
        assert_eq!(story.fact("recent_failures"), Some(Value::Int(10)));
        assert_eq!(story.fact("failure_window_seconds"), Some(Value::Int(60)));
        assert_eq!(story.fact("recovery_seconds"), Some(Value::Int(45)));
        assert_eq!(story.retry_after_seconds(), Some(44));
        assert_eq!(story.at(1_001).refuses(&check("b")), Reason::CircuitOpen);
        assert_eq!(story.fact("recovery_seconds_remaining"), Some(Value::Int(44)), "rounded up");
        assert_eq!(story.at(44_999).refuses(&check("b")), Reason::CircuitOpen);
    }

    #[test]
    fn one_probe_goes_and_its_success_closes_and_forgets() {
        let mut story = tripped();
        assert!(story.at(45_000).allows(&check("p")));
        assert_eq!(story.fact("probe"), Some(Value::Bool(true)));
        let permit = text(story.fact("permit_id"));
        assert_eq!(story.at(46_000).refuses(&check("q")), Reason::CircuitOpen);
        assert_eq!(story.fact("phase"), Some(Value::from("half_open")));
        assert_eq!(story.retry_after_seconds(), Some(29), "when the probe's lease ends");
        assert_eq!(story.at(47_000).tells(&permitted("p", false, &permit)), Some(Notice::CircuitClosed));
        assert!(story.at(47_000).allows(&check("q")));
        assert_eq!(story.fact("recent_failures_in_window"), Some(Value::Int(0)));
        for number in 0..9 {
            story.at(48_000).tells(&result(&format!("n{number}"), true));
        }
        assert!(story.at(48_000).allows(&check("q")), "nine new failures do not trip: the old ten are forgotten");
    }

    #[test]
    fn a_failed_probe_opens_again_and_a_silent_one_frees_its_lease() {
        let mut story = tripped();
        assert!(story.at(45_000).allows(&check("p")));
        let permit = text(story.fact("permit_id"));
        assert_eq!(story.at(46_000).tells(&permitted("p", true, &permit)), Some(Notice::CircuitTripped));
        assert_eq!(story.at(46_500).refuses(&check("q")), Reason::CircuitJustTripped);
        assert!(story.at(91_000).allows(&check("q")), "45 s after the failed probe");
        assert_eq!(story.at(120_999).refuses(&check("r")), Reason::CircuitOpen);
        assert!(story.at(121_000).allows(&check("r")), "the silent probe's lease ended after 30 s");
        assert_eq!(story.fact("probe"), Some(Value::Bool(true)));
    }

    #[test]
    fn old_news_moves_nothing() {
        let mut story = Story::default();
        assert!(story.at(0).allows(&check("late")));
        let old = text(story.fact("permit_id"));
        for number in 0..10 {
            story.at(0).tells(&result(&format!("s{number}"), true));
        }
        assert!(story.at(45_000).allows(&check("p")));
        assert_eq!(story.at(46_000).tells(&permitted("late", false, &old)), None, "a success from before the trip does not close");
        assert_eq!(story.at(46_000).tells(&result("late", true)), None, "nor does a failure of a session without the probe open");
        assert_eq!(story.at(46_000).tells(&result("p", false)), Some(Notice::CircuitClosed), "the probe is known by its session too");
        for _ in 0..12 {
            assert_eq!(
                story.at(47_000).tells(&permitted("late", true, &old)),
                None,
                "old failures do not count against the closed circuit"
            );
        }
    }

    #[test]
    fn a_session_has_three_attempts_since_its_last_success() {
        let mut story = Story::default();
        for _ in 0..5 {
            assert!(story.at(0).allows(&check("s")));
            story.at(0).tells(&result("s", false));
        }
        for attempt in 1..=3 {
            assert!(story.at(1_000).allows(&check("s")));
            assert_eq!(story.fact("session_attempt_number"), Some(Value::Int(attempt)));
            story.at(1_000).tells(&result("s", true));
        }
        assert_eq!(story.at(2_000).refuses(&check("s")), Reason::SessionRetryCeiling);
        assert_eq!(story.retry_after_seconds(), Some(3599));
        assert!(story.at(2_000).allows(&check("t")));
        story.at(2_000).tells(&result("s", false));
        assert!(story.at(2_000).allows(&check("s")), "a success starts anew");
    }

    #[test]
    fn a_session_at_its_ceiling_does_not_use_up_the_probe() {
        let mut story = tripped();
        for _ in 0..2 {
            story.at(0).tells(&result("s0", true));
        }
        assert_eq!(story.at(45_000).refuses(&check("s0")), Reason::SessionRetryCeiling);
        assert!(story.at(45_000).allows(&check("p")));
        assert_eq!(story.fact("probe"), Some(Value::Bool(true)));
    }

    #[test]
    fn rates_and_backoff() {
        let mut story = Story::with_settings_of(
            &["api_circuit"],
            json!({"failure_rate": 0.5, "min_calls": 4, "recovery": 100, "recovery_backoff": 3, "max_attempts_per_session": 100}),
        );
        assert_eq!(story.at(0).tells(&result("a", false)), None);
        assert_eq!(story.at(0).tells(&result("a", true)), None);
        assert_eq!(story.at(0).tells(&result("a", false)), None);
        assert_eq!(story.at(0).tells(&result("a", true)), Some(Notice::CircuitTripped), "2 of 4");
        assert_eq!(story.at(0).refuses(&check("b")), Reason::CircuitJustTripped);
        assert_eq!(story.fact("recovery_seconds"), Some(Value::Int(100)));
        assert!(story.at(100_000).allows(&check("b")));
        assert_eq!(story.at(100_000).tells(&result("b", true)), Some(Notice::CircuitTripped));
        assert_eq!(story.at(100_000).refuses(&check("c")), Reason::CircuitJustTripped);
        assert_eq!(story.fact("recovery_seconds"), Some(Value::Int(300)));
        assert!(story.at(400_000).allows(&check("c")));
        assert_eq!(story.at(400_000).tells(&result("c", true)), Some(Notice::CircuitTripped));
        assert_eq!(story.at(400_000).refuses(&check("d")), Reason::CircuitJustTripped);
        assert_eq!(story.fact("recovery_seconds"), Some(Value::Int(600)), "never longer than ten minutes");
    }

    #[test]
    fn slow_calls_trip_too() {
        let mut story = Story::with_settings_of(&["api_circuit"], json!({"slow_call_ms": 500, "slow_rate": 0.5, "min_calls": 2}));
        let slow = |latency| RecordRequest { latency_ms: Some(latency), ..result("a", false) };
        assert_eq!(story.at(0).tells(&slow(500)), None);
        assert_eq!(story.at(0).tells(&slow(501)), Some(Notice::CircuitTripped));
    }

    #[test]
    fn what_is_left_of_an_endpoint() {
        let endpoint = |phase: Phase, forced: Option<Forced>| remains(&encode(&Endpoint { phase, forced, ..Endpoint::default() }));
        let open = || Phase::Open { since: Timestamp::from_millis(0), until: Timestamp::from_millis(1), failures: 1, announced: true };
        assert_eq!(endpoint(Phase::Closed, None), Remains::Nothing);
        let recovered = Endpoint { generation: 3, ..Endpoint::default() };
        assert_eq!(remains(&encode(&recovered)), Remains::Phase, "results from before are old news");
        assert_eq!(endpoint(open(), None), Remains::Phase);
        assert_eq!(endpoint(Phase::HalfOpen { leases: Vec::new() }, None), Remains::Phase);
        for forced in [Forced::Open, Forced::Closed] {
            assert_eq!(endpoint(open(), Some(forced)), Remains::OperatorsWord);
            assert_eq!(endpoint(Phase::Closed, Some(forced)), Remains::OperatorsWord);
        }
    }

    #[test]
    fn an_endpoint_is_over_when_its_last_failure_is() {
        let policy = Policy::default();
        let mut endpoint = Endpoint::default();
        endpoint.failures.take(Timestamp::from_millis(0), 10);
        let is_over = |at: i64| is_over(&encode(&endpoint), "api", &policy, Timestamp::from_millis(at));
        assert!(!is_over(3_599_999) && is_over(3_600_000));
    }

    #[test]
    fn a_result_for_an_endpoint_that_is_not_remembered_counts_for_the_session_alone() {
        let policy = Policy::default();
        let moment = Moment { now: Timestamp::from_millis(0), decision_id: "d", store_text: StoreText::Full };
        let mut outcome = result("s", true).run(&policy, &[None, None], moment);
        assert_eq!(outcome.changes.iter().map(|change| change.place).collect::<Vec<_>>(), [0, 1]);
        unwatched(&mut outcome);
        assert_eq!(outcome.changes.iter().map(|change| change.place).collect::<Vec<_>>(), [1]);
        assert_eq!(outcome.answer.facts.get("watched"), Some(&Value::Bool(false)));
        assert_eq!(outcome.answer.facts.get("phase"), Some(&Value::from("closed")));
    }

    #[test]
    fn an_operator_can_force_and_reset() {
        let mut story = tripped();
        story.force("api", Control::Close, 1_000);
        assert!(story.at(1_000).allows(&check("a")));
        story.force("api", Control::Open, 2_000);
        assert_eq!(story.at(3_000).refuses(&check("a")), Reason::CircuitOpen);
        assert_eq!(story.retry_after_seconds(), None, "time does not undo an operator");
        assert_eq!(story.at(99_000_000).refuses(&check("a")), Reason::CircuitOpen);
        story.force("api", Control::Reset, 99_000_000);
        assert!(story.at(99_000_000).allows(&check("a")));
    }
}
