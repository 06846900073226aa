//! A circuit breaker in one process.
//!
//! The rules are those of the `api_circuit` guard, and so is the code: a breaker holds the state of one endpoint and runs
//! the guard's own check and record on it. A process has no sessions: their part of the state is never kept, so the
//! guard's ceiling per session is never reached.
//!
//! ```
//! use runguard_core::breaker::{BreakerSettings, CircuitBreaker, Phase, PhaseChange};
//! use runguard_core::{Span, Timestamp};
//!
//! let second = |second: i64| Timestamp::from_millis(second * 1000);
//! let mut breaker = CircuitBreaker::new(BreakerSettings { failure_threshold: 2, ..BreakerSettings::named("orders-api") })?;
//!
//! let permit = breaker.check(second(0)).expect("closed");
//! assert_eq!(breaker.record(Some(&permit), false, None, second(0)), None);
//! let permit = breaker.check(second(1)).expect("closed");
//! assert_eq!(breaker.record(Some(&permit), false, None, second(1)), Some(PhaseChange::Tripped));
//!
//! let refused = breaker.check(second(2)).expect_err("open");
//! assert_eq!(refused.retry_after, Some(Span::from_seconds(44)));
//! assert!(refused.message.contains("'orders-api' failed 2 times"));
//!
//! // 45 seconds after the trip one call may test it; its success closes the circuit.
//! assert_eq!(breaker.phase(second(46)), Phase::HalfOpen);
//! let probe = breaker.check(second(46)).expect("a probe");
//! assert!(probe.is_probe());
//! assert_eq!(breaker.record(Some(&probe), true, None, second(47)), Some(PhaseChange::Closed));
//! assert_eq!(breaker.phase(second(47)), Phase::Closed);
//! # Ok::<(), runguard_core::breaker::InvalidBreaker>(())
//! ```

use crate::answer::{Answer, Value};
use crate::guard::api_circuit::{self, CheckRequest, Control, RecordRequest, Settings, endpoint_place};
use crate::guard::{Moment, Notice, Operation, Outcome, run_check_by};
use crate::pattern::Patterns;
use crate::policy::{Section, Tree, build_section};
use crate::reason::{GuardName, Reason};
use crate::text::StoreText;
use crate::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest name of a breaker, in characters.
const LONGEST_NAME: usize = 256;

/// When a breaker opens and closes. The defaults are those of the guard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerSettings {
    /// What it protects, for messages.
    pub name: String,
    /// Failures in the window that open the circuit.
    pub failure_threshold: u32,
    pub failure_window: Span,
    /// Share of failures among at least `min_calls` calls in the window that opens it too; 0 is off.
    pub failure_rate: f64,
    /// A call that takes longer is slow; 0 is off.
    pub slow_call_ms: u32,
    /// Share of slow calls that opens it too; 0 is off.
    pub slow_rate: f64,
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

impl Default for BreakerSettings {
    fn default() -> Self {
        let of_the_guard = Settings::default();
        Self {
            name: "default".to_owned(),
            failure_threshold: of_the_guard.failure_threshold,
            failure_window: of_the_guard.failure_window,
            failure_rate: of_the_guard.failure_rate,
            slow_call_ms: of_the_guard.slow_call_ms,
            slow_rate: of_the_guard.slow_rate,
            min_calls: of_the_guard.min_calls,
            recovery: of_the_guard.recovery,
            recovery_backoff: of_the_guard.recovery_backoff,
            probes: of_the_guard.probes,
            probe_timeout: of_the_guard.probe_timeout,
        }
    }
}

impl BreakerSettings {
    /// The defaults, for something with a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    fn section(&self) -> Result<Section<Settings>, InvalidBreaker> {
        let settings = Settings {
            failure_threshold: self.failure_threshold,
            failure_window: self.failure_window,
            failure_rate: self.failure_rate,
            slow_call_ms: self.slow_call_ms,
            slow_rate: self.slow_rate,
            min_calls: self.min_calls,
            recovery: self.recovery,
            recovery_backoff: self.recovery_backoff,
            probes: self.probes,
            probe_timeout: self.probe_timeout,
            ..Settings::default()
        };
        // NaN has no form in a settings tree: it would turn into "not a number there" without the name of the key.
        for (key, share) in
            [("failure_rate", self.failure_rate), ("slow_rate", self.slow_rate), ("recovery_backoff", self.recovery_backoff)]
        {
            if !share.is_finite() {
                return Err(InvalidBreaker { key: key.to_owned(), problem: format!("must be a number, is {share}") });
            }
        }
        let unreadable = |problem: &dyn fmt::Display| InvalidBreaker { key: "settings".to_owned(), problem: problem.to_string() };
        let section = serde_json::to_value(settings).map_err(|problem| unreadable(&problem))?;
        let guards: Tree = [(GuardName::ApiCircuit.code().to_owned(), section)].into_iter().collect();
        build_section(&guards, &[], &mut Patterns::default())
            .map_err(|problem| InvalidBreaker { key: problem.path.last().cloned().unwrap_or_default(), problem: problem.problem })
    }
}

/// A setting that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidBreaker {
    pub key: String,
    pub problem: String,
}

impl fmt::Display for InvalidBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.key, self.problem)
    }
}

impl std::error::Error for InvalidBreaker {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    pub const fn code(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }

    fn from_code(code: &str) -> Self {
        match code {
            "open" => Self::Open,
            "half_open" => Self::HalfOpen,
            _ => Self::Closed,
        }
    }
}

/// A call may run. Give it back with the result: by it a late result is told from a current one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    id: String,
    probe: bool,
}

impl Permit {
    /// Whether this call tests a circuit that was open.
    pub fn is_probe(&self) -> bool {
        self.probe
    }
}

/// A call must not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CircuitOpen {
    /// Open, or half open without a free test.
    pub phase: Phase,
    /// The first refusal after a trip.
    pub just_tripped: bool,
    /// After this long the next call may pass, if nothing else happens. `None`: an operator opened the circuit, and time
    /// does not close it.
    pub retry_after: Option<Span>,
    pub message: String,
}

impl fmt::Display for CircuitOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CircuitOpen {}

/// What a result did to the circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseChange {
    Tripped,
    Closed,
}

/// See the [module](self). It does not lock: whoever shares it between threads puts it behind a mutex.
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    name: String,
    section: Section<Settings>,
    /// The guard's state of the endpoint.
    endpoint: Option<Vec<u8>>,
    permits: u64,
}

impl CircuitBreaker {
    pub fn new(settings: BreakerSettings) -> Result<Self, InvalidBreaker> {
        if settings.name.is_empty() || settings.name.chars().nth(LONGEST_NAME).is_some() {
            return Err(InvalidBreaker {
                key: "name".to_owned(),
                problem: format!("must have 1 to {LONGEST_NAME} characters; name what the breaker protects"),
            });
        }
        Ok(Self { section: settings.section()?, name: settings.name, endpoint: None, permits: 0 })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// May a call run now?
    pub fn check(&mut self, now: Timestamp) -> Result<Permit, CircuitOpen> {
        let request = CheckRequest { endpoint_key: self.name.clone(), session_id: String::new() };
        let answer = self.run(&request, now, |section, states, moment| run_check_by(&request, section, states, moment)).answer;
        if answer.is_block() {
            return Err(refusal(answer, now));
        }
        let id = text_fact(&answer, "permit_id").unwrap_or_default().to_owned();
        Ok(Permit { id, probe: answer.facts.get("probe") == Some(&Value::Bool(true)) })
    }

    /// How a call ended. A result without its permit counts as one of a call that was admitted just now.
    pub fn record(&mut self, permit: Option<&Permit>, ok: bool, latency: Option<Span>, now: Timestamp) -> Option<PhaseChange> {
        let record = RecordRequest {
            endpoint_key: self.name.clone(),
            session_id: String::new(),
            failed: !ok,
            attempt: 1,
            status_code: None,
            latency_ms: latency.map(Span::as_millis),
            permit_id: permit.map(|permit| permit.id.clone()),
        };
        match self.run(&record, now, |section, states, moment| record.run_by(section, states, moment)).notice {
            Some(Notice::CircuitTripped) => Some(PhaseChange::Tripped),
            Some(Notice::CircuitClosed) => Some(PhaseChange::Closed),
            _ => None,
        }
    }

    pub fn phase(&self, now: Timestamp) -> Phase {
        match &self.endpoint {
            Some(state) => Phase::from_code(api_circuit::view_by(state, &self.name, &self.section, now).phase),
            None => Phase::Closed,
        }
    }

    /// Refuses everything until [`reset`](Self::reset).
    pub fn force_open(&mut self, now: Timestamp) {
        self.control(Control::Open, now);
    }

    /// Lets everything pass until [`reset`](Self::reset).
    pub fn force_close(&mut self, now: Timestamp) {
        self.control(Control::Close, now);
    }

    /// Closed and automatic, with nothing remembered.
    pub fn reset(&mut self, now: Timestamp) {
        self.control(Control::Reset, now);
    }

    fn control(&mut self, control: Control, now: Timestamp) {
        self.endpoint = Some(api_circuit::control(self.endpoint.as_deref(), control, now).state);
    }

    fn run(
        &mut self,
        operation: &dyn Operation,
        now: Timestamp,
        run: impl FnOnce(&Section<Settings>, &[Option<&[u8]>], Moment<'_>) -> Outcome,
    ) -> Outcome {
        self.permits += 1;
        let id = self.permits.to_string();
        let own = endpoint_place(&self.name);
        let places = operation.places();
        let states: Vec<Option<&[u8]>> = places.iter().map(|place| if *place == own { self.endpoint.as_deref() } else { None }).collect();
        let outcome = run(&self.section, &states, Moment { now, decision_id: &id, store_text: StoreText::None });
        let endpoint = outcome.changes.iter().find(|change| places[change.place] == own).map(|change| change.state.clone());
        if endpoint.is_some() {
            self.endpoint = endpoint;
        }
        outcome
    }
}

fn text_fact<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    match answer.facts.get(name) {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    }
}

fn refusal(answer: Answer, now: Timestamp) -> CircuitOpen {
    CircuitOpen {
        phase: text_fact(&answer, "phase").map_or(Phase::Open, Phase::from_code),
        just_tripped: answer.reason == Some(Reason::CircuitJustTripped),
        retry_after: answer.retry_at.map(|at| Span::from_millis(at.millis_since(now).max(0) as u64)),
        message: answer.message.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    fn breaker(settings: BreakerSettings) -> CircuitBreaker {
        CircuitBreaker::new(settings).unwrap()
    }

    /// Ten failures at second 0.
    fn tripped() -> CircuitBreaker {
        let mut breaker = breaker(BreakerSettings::default());
        for number in 1..=10 {
            let permit = breaker.check(second(0)).unwrap();
            assert!(!permit.is_probe());
            let change = breaker.record(Some(&permit), false, None, second(0));
            assert_eq!(change, (number == 10).then_some(PhaseChange::Tripped));
        }
        breaker
    }

    #[test]
    fn it_opens_at_the_threshold_and_is_tested_by_one_call() {
        let mut breaker = tripped();
        let first = breaker.check(second(1)).unwrap_err();
        assert!(first.just_tripped && first.retry_after == Some(Span::from_seconds(44)), "{first:?}");
        let later = breaker.check(second(2)).unwrap_err();
        assert!(!later.just_tripped && later.phase == Phase::Open, "{later:?}");
        assert_eq!(breaker.phase(second(44)), Phase::Open);
        assert_eq!(breaker.phase(second(45)), Phase::HalfOpen);
        let probe = breaker.check(second(45)).unwrap();
        assert!(probe.is_probe());
        let busy = breaker.check(second(46)).unwrap_err();
        assert_eq!((busy.phase, busy.retry_after), (Phase::HalfOpen, Some(Span::from_seconds(29))));
        assert_eq!(breaker.record(Some(&probe), false, None, second(47)), Some(PhaseChange::Tripped));
        assert!(breaker.check(second(91)).is_err());
        let probe = breaker.check(second(92)).unwrap();
        assert_eq!(breaker.record(Some(&probe), true, None, second(93)), Some(PhaseChange::Closed));
        assert!(!breaker.check(second(93)).unwrap().is_probe());
    }

    #[test]
    fn a_late_result_moves_nothing() {
        let mut breaker = breaker(BreakerSettings { failure_threshold: 1, ..BreakerSettings::default() });
        let slow = breaker.check(second(0)).unwrap();
        let quick = breaker.check(second(0)).unwrap();
        assert_eq!(breaker.record(Some(&quick), false, None, second(1)), Some(PhaseChange::Tripped));
        let probe = breaker.check(second(46)).unwrap();
        assert_eq!(breaker.record(Some(&slow), true, None, second(47)), None);
        assert_eq!(breaker.phase(second(47)), Phase::HalfOpen);
        assert_eq!(breaker.record(Some(&probe), true, None, second(48)), Some(PhaseChange::Closed));
        assert_eq!(breaker.record(Some(&slow), false, None, second(49)), None, "its failure is from before");
    }

    #[test]
    fn results_without_permits_count_too() {
        let mut breaker = breaker(BreakerSettings { failure_threshold: 2, ..BreakerSettings::default() });
        assert_eq!(breaker.record(None, false, None, second(0)), None);
        assert_eq!(breaker.record(None, false, None, second(0)), Some(PhaseChange::Tripped));
        assert!(breaker.check(second(45)).unwrap().is_probe());
        assert_eq!(breaker.record(None, true, None, second(45)), Some(PhaseChange::Closed));
    }

    #[test]
    fn many_failures_spread_over_time_do_not_lock_anyone_out() {
        let mut breaker = breaker(BreakerSettings::default());
        for number in 0..100 {
            let now = second(number * 10);
            let permit = breaker.check(now).expect("six failures a minute stay below ten, and no ceiling per session is in force");
            breaker.record(Some(&permit), false, None, now);
        }
    }

    #[test]
    fn slow_calls_trip_too() {
        let settings = BreakerSettings { slow_call_ms: 500, slow_rate: 0.5, min_calls: 2, ..BreakerSettings::default() };
        let mut breaker = breaker(settings);
        assert_eq!(breaker.record(None, true, Some(Span::from_millis(500)), second(0)), None);
        assert_eq!(breaker.record(None, true, Some(Span::from_millis(501)), second(0)), Some(PhaseChange::Tripped));
    }

    #[test]
    fn an_operator_can_force_and_reset() {
        let mut breaker = tripped();
        breaker.force_close(second(1));
        assert_eq!(breaker.phase(second(1)), Phase::Closed);
        assert!(breaker.check(second(1)).is_ok());
        breaker.force_open(second(2));
        let refused = breaker.check(second(1_000_000)).unwrap_err();
        assert_eq!((refused.phase, refused.retry_after), (Phase::Open, None));
        breaker.reset(second(3));
        assert_eq!(breaker.phase(second(3)), Phase::Closed);
        assert!(breaker.check(second(3)).is_ok());
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        let with = |change: fn(&mut BreakerSettings)| {
            let mut settings = BreakerSettings::default();
            change(&mut settings);
            CircuitBreaker::new(settings).map(|_| ()).unwrap_err().key
        };
        assert_eq!(with(|settings| settings.name = String::new()), "name");
        assert_eq!(with(|settings| settings.failure_threshold = 0), "failure_threshold");
        assert_eq!(with(|settings| settings.failure_rate = f64::NAN), "failure_rate");
        assert_eq!(with(|settings| settings.failure_rate = 1.5), "failure_rate");
        assert_eq!(with(|settings| settings.recovery = Span::ZERO), "recovery");
        assert_eq!(with(|settings| settings.recovery_backoff = 0.5), "recovery_backoff");
        assert_eq!(with(|settings| settings.slow_rate = 0.5), "slow_rate");
    }
}
