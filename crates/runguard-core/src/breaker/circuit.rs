//! The circuit itself: when it opens, who may test it, what closes it. In a process one [`CircuitBreaker`](super::CircuitBreaker) holds
//! it; over HTTP the guard `api_circuit` keeps it in a store, one for an endpoint, and a part for every session that calls it.
//!
//! Two states decide together: the endpoint's phase and the session's retries. They are asked in one step, because a session at its
//! own ceiling must not use up the probe. Every change of phase raises the *generation*; a permit carries the generation it was given
//! in, so a result that was on its way when the phase changed is recognised as old news and moves nothing.
//!
//! What happens to the two states is events, and applying one needs no settings: whatever it depends on, it carries.

use crate::limits::{InvalidSetting, fraction, lasting, setters, within};
use crate::reason::Reason;
use crate::text::times;
use crate::time::{Span, Timestamp};
use crate::window::{Units, forget_earliest};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// However often it trips again, it is tested again after this long.
const LONGEST_RECOVERY: Span = Span::from_seconds(600);
/// The rates are taken over the latest calls in the window, at most this many (or `min_calls`, if that is more).
const RATE_SAMPLE: u32 = 100;

/// When a circuit opens and closes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CircuitSettings {
    /// Recorded attempts of one session since its last success. A breaker in one process has no sessions.
    pub max_attempts_per_session: u32,
    /// How long a session's attempts count.
    pub session_window: Span,
    /// Failures in the window that open the circuit.
    pub failure_threshold: u32,
    /// How long a failure counts.
    pub failure_window: Span,
    /// Share of failures among at least `min_calls` calls in the window that opens it too; 0 is off.
    pub failure_rate: f64,
    /// A call that takes longer is slow; 0 is off.
    pub slow_call_ms: u32,
    /// Share of slow calls that opens it too; 0 is off.
    pub slow_rate: f64,
    /// Calls in the window before a rate is looked at.
    pub min_calls: u32,
    /// How long it stays open before a call may test it.
    pub recovery: Span,
    /// Factor for each time such a test fails, up to ten minutes.
    pub recovery_backoff: f64,
    /// Calls that may test it at the same time.
    pub probes: u32,
    /// A test that has not reported by then is given to another call.
    pub probe_timeout: Span,
}

impl Default for CircuitSettings {
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
        }
    }
}

setters!(CircuitSettings {
    max_attempts_per_session: u32,
    session_window: Span,
    failure_threshold: u32,
    failure_window: Span,
    failure_rate: f64,
    slow_call_ms: u32,
    slow_rate: f64,
    min_calls: u32,
    recovery: Span,
    recovery_backoff: f64,
    probes: u32,
    probe_timeout: Span,
});

impl CircuitSettings {
    /// Refuses what makes no sense, by the name of the setting.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        within("max_attempts_per_session", self.max_attempts_per_session, 0..=1000)?;
        within("failure_threshold", self.failure_threshold, 1..=10_000)?;
        within("min_calls", self.min_calls, 1..=1000)?;
        within("probes", self.probes, 1..=1000)?;
        lasting("session_window", self.session_window)?;
        lasting("failure_window", self.failure_window)?;
        lasting("recovery", self.recovery)?;
        lasting("probe_timeout", self.probe_timeout)?;
        fraction("failure_rate", self.failure_rate)?;
        fraction("slow_rate", self.slow_rate)?;
        if !(1.0..=10.0).contains(&self.recovery_backoff) {
            return Err(InvalidSetting::new("recovery_backoff", format!("must be from 1 to 10, is {}", self.recovery_backoff)));
        }
        if (self.slow_rate > 0.0) != (self.slow_call_ms > 0) {
            return Err(InvalidSetting::new("slow_rate", "slow_rate and slow_call_ms go together: set both or neither"));
        }
        Ok(())
    }

    /// After this long nothing that happened counts any more.
    pub fn longest_window(&self) -> Span {
        self.session_window.max(self.failure_window).max(self.recovery).max(LONGEST_RECOVERY)
    }

    fn recovery_after(&self, retrips: u32) -> Span {
        let factor = self.recovery_backoff.powi(retrips.min(64) as i32);
        let millis = (self.recovery.as_millis() as f64 * factor) as u64;
        Span::from_millis(millis.min(LONGEST_RECOVERY.max(self.recovery).as_millis()))
    }

    /// Whether calls that went well count as well.
    pub fn looks_at_rates(&self) -> bool {
        self.failure_rate > 0.0 || self.slow_rate > 0.0
    }
}

/// How a circuit stands, as callers and operators are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Calls pass.
    Closed,
    /// Calls are refused.
    Open,
    /// A few calls pass to test whether it works again.
    HalfOpen,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];

    /// Its name on the wire.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Lease {
    permit: String,
    session: u64,
    expires: Timestamp,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
enum PhaseState {
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

/// What an operator has decreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Forced {
    /// Nothing passes.
    Open,
    /// Everything passes.
    Closed,
}

/// What an operator does to a circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Refuse everything until reset.
    Open,
    /// Let everything pass until reset.
    Close,
    /// Back to closed and automatic, with nothing remembered.
    Reset,
}

impl Control {
    /// What that does to the circuit.
    pub fn events(self) -> Vec<Event> {
        match self {
            Self::Open => vec![Event::Forced(Some(Forced::Open))],
            Self::Close => vec![Event::Forced(Some(Forced::Closed))],
            Self::Reset => vec![Event::Forced(None), Event::Closed],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Sample {
    at: Timestamp,
    failed: bool,
    slow: bool,
}

/// What is known of one endpoint, by all who call it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Circuit {
    phase_state: PhaseState,
    generation: u32,
    failures: Units,
    samples: Vec<Sample>,
    retrips: u32,
    forced: Option<Forced>,
}

/// One session's part at an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Caller {
    /// Since the last success.
    attempts: Units,
    /// The generation of the last permit.
    admitted: Option<u32>,
}

/// What happens to a circuit or to a caller's part of it. Their order is on disk: they are added, never moved.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// The first refusal after a trip was given.
    Announced,
    /// A call may test it.
    Leased {
        /// Which call.
        permit: String,
        /// Whose, hashed.
        session: u64,
        /// When it is given to another.
        expires: Timestamp,
    },
    /// A call failed.
    Failed {
        /// How many failures need to be remembered.
        keep: u32,
    },
    /// A call ended, where rates are looked at.
    Sampled {
        /// Whether it failed.
        failed: bool,
        /// Whether it was slow.
        slow: bool,
        /// How many need to be remembered.
        keep: u32,
    },
    /// It opened.
    Tripped {
        /// When it may be tested.
        until: Timestamp,
        /// Failures counted.
        failures: u32,
        /// How often a test has failed since it was closed.
        retrips: u32,
    },
    /// It closed, with nothing remembered.
    Closed,
    /// An operator's word, or its end.
    Forced(Option<Forced>),
    /// A call of the caller failed.
    Attempted {
        /// How many attempts need to be remembered.
        keep: u32,
    },
    /// A call of the caller succeeded: it begins anew.
    Succeeded,
    /// The caller got a permit.
    Admitted {
        /// The generation of it.
        generation: u32,
    },
}

impl Event {
    /// Whether it happens to the caller's part; else to the circuit.
    pub fn is_of_caller(&self) -> bool {
        match self {
            Self::Announced
            | Self::Leased { .. }
            | Self::Failed { .. }
            | Self::Sampled { .. }
            | Self::Tripped { .. }
            | Self::Closed
            | Self::Forced(_) => false,
            Self::Attempted { .. } | Self::Succeeded | Self::Admitted { .. } => true,
        }
    }
}

/// What a check would meet.
enum Gate {
    Passing,
    /// A probe may be leased.
    Testing,
    Refusing(Refusal),
}

/// Why a call must not run, with the numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refusal {
    /// The first refusal after it opened.
    JustTripped {
        /// Failures counted.
        failures: u32,
        /// How long it is open.
        recovery: Span,
        /// When it may be tested.
        until: Timestamp,
    },
    /// It is open, or every test is out.
    Open {
        /// Open or half open.
        phase: Phase,
        /// When the next call may pass. `None`: time does not help.
        until: Option<Timestamp>,
        /// Whether an operator opened it.
        is_forced: bool,
    },
    /// The session has used up its attempts.
    SessionCeiling {
        /// Attempts counted.
        attempts: u32,
        /// When one of them is too old to count.
        until: Option<Timestamp>,
    },
}

impl Refusal {
    /// Its code.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::JustTripped { .. } => Reason::CircuitJustTripped,
            Self::Open { .. } => Reason::CircuitOpen,
            Self::SessionCeiling { .. } => Reason::SessionRetryCeiling,
        }
    }

    /// When this no longer refuses, if nothing else happens. `None`: time does not help.
    pub const fn clears_at(&self) -> Option<Timestamp> {
        match self {
            Self::JustTripped { until, .. } => Some(*until),
            Self::Open { until, .. } | Self::SessionCeiling { until, .. } => *until,
        }
    }

    /// The sentence for the person who reads it.
    pub fn message(&self, endpoint: &str, settings: &CircuitSettings, now: Timestamp) -> String {
        match self {
            Self::JustTripped { failures, recovery, .. } => format!(
                "'{endpoint}' failed {} in {} over all sessions (threshold {}), so the circuit is open for {recovery}. Do not retry; answer that the service is not available right now.",
                times(*failures),
                settings.failure_window,
                settings.failure_threshold
            ),
            Self::Open { is_forced: true, .. } | Self::Open { until: None, .. } => format!(
                "An operator has opened the circuit of '{endpoint}'. Answer that the service is not available; it stays so until it is reset."
            ),
            Self::Open { phase, until: Some(until), .. } => {
                let seconds = now.seconds_until(*until);
                match phase {
                    Phase::HalfOpen => format!(
                        "The circuit of '{endpoint}' is being tested by another call (at most {} at a time); the next may go in {seconds} s. Answer that the service is not available right now.",
                        settings.probes
                    ),
                    Phase::Open | Phase::Closed => format!(
                        "The circuit of '{endpoint}' is open for another {seconds} s. Do not retry; answer that the service is not available right now."
                    ),
                }
            }
            Self::SessionCeiling { attempts, .. } => format!(
                "This session tried '{endpoint}' {} without success in the last {} (ceiling {}). Answer that the service is not available, or hand over to a person.",
                times(*attempts),
                settings.session_window,
                settings.max_attempts_per_session
            ),
        }
    }
}

/// What a check finds, and what happens if none of it stops the call.
#[derive(Debug)]
pub struct Ruling {
    /// In their order.
    pub refusals: Vec<Refusal>,
    /// Which attempt of the session since its last success this is.
    pub attempt: u32,
    /// Failures of all sessions in the window.
    pub recent_failures: u32,
    /// What the call's result is known by.
    pub permit: String,
    /// Whether the call tests a circuit that was open.
    pub is_probe: bool,
    /// What happens when the call passes.
    pub events: Vec<Event>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy)]
pub struct CallReport<'a> {
    /// Whose call it was.
    pub session: &'a str,
    /// Whether it failed.
    pub is_failure: bool,
    /// How long it took.
    pub latency_ms: Option<u64>,
    /// What the check gave.
    pub permit: Option<&'a str>,
    /// How long the endpoint asked to be left alone.
    pub retry_after: Option<Span>,
}

/// What a result did to the circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseChange {
    /// It opened.
    Tripped,
    /// It closed.
    Closed,
}

impl PhaseChange {
    /// What these events do.
    pub fn of(events: &[Event]) -> Option<Self> {
        if events.iter().any(|event| matches!(event, Event::Tripped { .. })) {
            Some(Self::Tripped)
        } else {
            events.iter().any(|event| matches!(event, Event::Closed)).then_some(Self::Closed)
        }
    }

    /// How the circuit stands then.
    pub const fn phase(self) -> Phase {
        match self {
            Self::Tripped => Phase::Open,
            Self::Closed => Phase::Closed,
        }
    }
}

/// A session as leases know it.
fn session_hash(session: &str) -> u64 {
    xxh3_64(session.as_bytes())
}

/// What a circuit still says when nobody has asked for longer than any window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remains {
    /// It never opened, and its failures are too old to count: nobody could tell that it is gone.
    Nothing,
    /// Its phase, or which results are old news because it was open before.
    Phase,
    /// Until it is taken back.
    OperatorsWord,
}

/// A circuit as operators see it.
#[derive(Debug, Clone, PartialEq)]
pub struct CircuitView {
    /// How it stands.
    pub phase: Phase,
    /// What an operator has decreed.
    pub forced: Option<Forced>,
    /// Failures in the window.
    pub recent_failures: u32,
    /// How many open it.
    pub failure_threshold: u32,
    /// The window.
    pub failure_window: Span,
    /// Since when it is open.
    pub opened_at: Option<Timestamp>,
    /// When the next call may test it.
    pub probe_at: Option<Timestamp>,
    /// Calls that test it just then.
    pub probes_out: u32,
    /// How often a test has failed since it was closed.
    pub retrips: u32,
}

impl Caller {
    /// Attempts since the last success.
    pub fn attempts(&self) -> &Units {
        &self.attempts
    }

    /// Lives through an event of the caller's part; others leave it as it is.
    pub fn apply(&mut self, event: &Event, at: Timestamp) {
        match event {
            Event::Attempted { keep } => self.attempts.take(at, *keep),
            Event::Succeeded => self.attempts.clear(),
            Event::Admitted { generation } => self.admitted = Some(*generation),
            Event::Announced
            | Event::Leased { .. }
            | Event::Failed { .. }
            | Event::Sampled { .. }
            | Event::Tripped { .. }
            | Event::Closed
            | Event::Forced(_) => {}
        }
    }
}

impl Circuit {
    /// Lives through an event of the circuit; those of a caller leave it as it is.
    pub fn apply(&mut self, event: &Event, at: Timestamp) {
        match event {
            Event::Announced => {
                if let PhaseState::Open { announced, .. } = &mut self.phase_state {
                    *announced = true;
                }
            }
            Event::Leased { permit, session, expires } => {
                let lease = Lease { permit: permit.clone(), session: *session, expires: *expires };
                match &mut self.phase_state {
                    PhaseState::HalfOpen { leases } => {
                        leases.retain(|lease| at < lease.expires);
                        leases.push(lease);
                    }
                    PhaseState::Closed | PhaseState::Open { .. } => {
                        self.generation = self.generation.wrapping_add(1);
                        self.phase_state = PhaseState::HalfOpen { leases: vec![lease] };
                    }
                }
            }
            Event::Failed { keep } => self.failures.take(at, *keep),
            Event::Sampled { failed, slow, keep } => {
                self.samples.push(Sample { at, failed: *failed, slow: *slow });
                while self.samples.len() > (*keep).max(1) as usize {
                    forget_earliest(&mut self.samples, |sample| sample.at);
                }
            }
            Event::Tripped { until, failures, retrips } => {
                self.generation = self.generation.wrapping_add(1);
                self.retrips = *retrips;
                self.phase_state = PhaseState::Open { since: at, until: *until, failures: *failures, announced: false };
            }
            Event::Closed => {
                *self = Self { generation: self.generation.wrapping_add(1), forced: self.forced, ..Self::default() };
            }
            Event::Forced(forced) => {
                self.generation = self.generation.wrapping_add(1);
                self.forced = *forced;
            }
            Event::Attempted { .. } | Event::Succeeded | Event::Admitted { .. } => {}
        }
    }

    /// May a call of this session run? `id` is told from that of every other check.
    pub fn check(&self, caller: &Caller, session: &str, id: &str, settings: &CircuitSettings, now: Timestamp) -> Ruling {
        let mut refusals = Vec::new();
        let gate = self.gate(settings, now);
        let is_probe = matches!(gate, Gate::Testing);
        if let Gate::Refusing(refusal) = gate {
            refusals.push(refusal);
        }
        let attempts = caller.attempts.count(now, settings.session_window);
        if attempts >= settings.max_attempts_per_session {
            let until = caller.attempts.frees_at(settings.session_window, settings.max_attempts_per_session);
            refusals.push(Refusal::SessionCeiling { attempts, until });
        }
        let leaves_open = is_probe && matches!(self.phase_state, PhaseState::Open { .. });
        let generation = if leaves_open { self.generation.wrapping_add(1) } else { self.generation };
        let permit = format!("{generation}-{id}");
        let mut events = Vec::new();
        if is_probe {
            events.push(Event::Leased {
                permit: permit.clone(),
                session: session_hash(session),
                expires: now.plus(settings.probe_timeout),
            });
        }
        if caller.admitted != Some(generation) {
            events.push(Event::Admitted { generation });
        }
        let recent_failures = self.failures.count(now, settings.failure_window);
        Ruling { refusals, attempt: attempts + 1, recent_failures, permit, is_probe, events }
    }

    /// What a result does.
    pub fn record(&self, caller: &Caller, result: &CallReport<'_>, settings: &CircuitSettings, now: Timestamp) -> Vec<Event> {
        let mut events = Vec::new();
        let failed = result.is_failure;
        let slow = settings.slow_call_ms > 0 && result.latency_ms.is_some_and(|latency| latency > u64::from(settings.slow_call_ms));
        let is_old_news = self.admitted_in(caller, result) != self.generation;
        let failures = self.failures.count(now, settings.failure_window) + u32::from(failed);
        // An endpoint that says when it wants to be asked again knows best, within bounds.
        let at_least = result.retry_after.unwrap_or_default().min(LONGEST_RECOVERY);
        let trip = |retrips: u32| Event::Tripped { until: now.plus(settings.recovery_after(retrips).max(at_least)), failures, retrips };
        match &self.phase_state {
            PhaseState::Closed if !is_old_news => {
                if failed {
                    events.push(Event::Failed { keep: settings.failure_threshold });
                }
                if settings.looks_at_rates() {
                    events.push(Event::Sampled { failed, slow, keep: RATE_SAMPLE.max(settings.min_calls) });
                }
                let is_reached = (failed && failures >= settings.failure_threshold) || self.is_rate_reached(settings, failed, slow, now);
                if is_reached && self.forced.is_none() {
                    events.push(trip(0));
                }
            }
            PhaseState::HalfOpen { leases } if !is_old_news && self.forced.is_none() && is_of_probe(result, leases) => {
                if failed {
                    events.push(Event::Failed { keep: settings.failure_threshold });
                    events.push(trip(self.retrips.saturating_add(1)));
                } else {
                    events.push(Event::Closed);
                }
            }
            PhaseState::Closed | PhaseState::Open { .. } | PhaseState::HalfOpen { .. } => {}
        }
        events.push(if failed { Event::Attempted { keep: settings.max_attempts_per_session } } else { Event::Succeeded });
        events
    }

    /// How it was left; an open one whose time is over still says open.
    pub fn phase(&self) -> Phase {
        match (self.forced, &self.phase_state) {
            (Some(Forced::Open), _) | (None, PhaseState::Open { .. }) => Phase::Open,
            (Some(Forced::Closed), _) | (None, PhaseState::Closed) => Phase::Closed,
            (None, PhaseState::HalfOpen { .. }) => Phase::HalfOpen,
        }
    }

    /// As operators see it.
    pub fn view(&self, settings: &CircuitSettings, now: Timestamp) -> CircuitView {
        let (opened_at, probe_at, probes_out) = match &self.phase_state {
            PhaseState::Closed => (None, None, 0),
            PhaseState::Open { since, until, .. } => (Some(*since), Some(*until), 0),
            PhaseState::HalfOpen { leases } => {
                let out: Vec<Timestamp> = still_out(leases, now).collect();
                (None, out.iter().min().copied(), out.len() as u32)
            }
        };
        let is_recovered = self.forced.is_none() && matches!(self.phase_state, PhaseState::Open { until, .. } if now >= until);
        CircuitView {
            phase: if is_recovered { Phase::HalfOpen } else { self.phase() },
            forced: self.forced,
            recent_failures: self.failures.count(now, settings.failure_window),
            failure_threshold: settings.failure_threshold,
            failure_window: settings.failure_window,
            opened_at,
            probe_at,
            probes_out,
            retrips: self.retrips,
        }
    }

    /// What it says when nobody asks for long.
    pub fn remains(&self) -> Remains {
        match (self.forced, &self.phase_state) {
            (Some(_), _) => Remains::OperatorsWord,
            (None, PhaseState::Closed) if self.generation == 0 => Remains::Nothing,
            (None, PhaseState::Closed | PhaseState::Open { .. } | PhaseState::HalfOpen { .. }) => Remains::Phase,
        }
    }

    /// Whether it is as good as forgotten, or soon will be: nothing is left of it, and nothing in it counts.
    pub fn is_over(&self, settings: &CircuitSettings, now: Timestamp) -> bool {
        let window = settings.longest_window();
        self.remains() == Remains::Nothing
            && self.failures.count(now, window) == 0
            && !self.samples.iter().any(|sample| now.still_counts(sample.at, window))
    }

    fn gate(&self, settings: &CircuitSettings, now: Timestamp) -> Gate {
        match (self.forced, &self.phase_state) {
            (Some(Forced::Open), _) => Gate::Refusing(Refusal::Open { phase: Phase::Open, until: None, is_forced: true }),
            (Some(Forced::Closed), _) | (None, PhaseState::Closed) => Gate::Passing,
            (None, PhaseState::Open { until, .. }) if now >= *until => Gate::Testing,
            (None, PhaseState::Open { since, until, failures, announced: false }) => Gate::Refusing(Refusal::JustTripped {
                failures: *failures,
                recovery: Span::from_millis(until.millis_since(*since).max(0) as u64),
                until: *until,
            }),
            (None, PhaseState::Open { until, .. }) => {
                Gate::Refusing(Refusal::Open { phase: Phase::Open, until: Some(*until), is_forced: false })
            }
            (None, PhaseState::HalfOpen { leases }) => {
                if (still_out(leases, now).count() as u32) < settings.probes {
                    return Gate::Testing;
                }
                let until = still_out(leases, now).min();
                Gate::Refusing(Refusal::Open { phase: Phase::HalfOpen, until, is_forced: false })
            }
        }
    }

    /// Whether the latest calls in the window are bad enough, with this one included.
    fn is_rate_reached(&self, settings: &CircuitSettings, failed: bool, slow: bool, now: Timestamp) -> bool {
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

    /// The generation the call was admitted in, as far as that can be known.
    fn admitted_in(&self, caller: &Caller, result: &CallReport<'_>) -> u32 {
        let from_permit = result.permit.and_then(|permit| permit.split_once('-')).and_then(|(generation, _)| generation.parse().ok());
        from_permit.or(caller.admitted).unwrap_or(self.generation)
    }
}

/// Until when those tests last that have not reported.
fn still_out(leases: &[Lease], now: Timestamp) -> impl Iterator<Item = Timestamp> {
    leases.iter().map(|lease| lease.expires).filter(move |expires| now < *expires)
}

/// In half-open only a probe's result counts: named by its permit, or by its session where no permit is given.
fn is_of_probe(result: &CallReport<'_>, leases: &[Lease]) -> bool {
    let session = session_hash(result.session);
    leases.iter().any(|lease| match result.permit {
        Some(permit) => lease.permit == permit,
        None => lease.session == session,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_circuit() {
        let left = |phase_state: PhaseState, forced: Option<Forced>| Circuit { phase_state, forced, ..Circuit::default() }.remains();
        let open = || PhaseState::Open { since: Timestamp::from_millis(0), until: Timestamp::from_millis(1), failures: 1, announced: true };
        assert_eq!(left(PhaseState::Closed, None), Remains::Nothing);
        let recovered = Circuit { generation: 3, ..Circuit::default() };
        assert_eq!(recovered.remains(), Remains::Phase, "results from before are old news");
        assert_eq!(left(open(), None), Remains::Phase);
        assert_eq!(left(PhaseState::HalfOpen { leases: Vec::new() }, None), Remains::Phase);
        for forced in [Forced::Open, Forced::Closed] {
            assert_eq!(left(open(), Some(forced)), Remains::OperatorsWord);
            assert_eq!(left(PhaseState::Closed, Some(forced)), Remains::OperatorsWord);
        }
    }

    #[test]
    fn a_circuit_is_over_when_its_last_failure_is() {
        let settings = CircuitSettings::default();
        let mut circuit = Circuit::default();
        circuit.failures.take(Timestamp::from_millis(0), 10);
        let is_over = |at: i64| circuit.is_over(&settings, Timestamp::from_millis(at));
        assert!(!is_over(3_599_999) && is_over(3_600_000));
    }
}
