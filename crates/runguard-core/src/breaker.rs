//! A circuit breaker in one process.
//!
//! The rules are those of the `api_circuit` guard, and so is the code ([`circuit`]). A process has no sessions: their part is never
//! kept, so the ceiling per session is never reached.
//!
//! ```
//! use runguard_core::breaker::{CircuitBreaker, CircuitSettings, Phase, PhaseChange};
//! use runguard_core::{Span, Timestamp};
//!
//! let second = |second: i64| Timestamp::from_millis(second * 1000);
//! let mut breaker = CircuitBreaker::new("orders-api", CircuitSettings::default().failure_threshold(2))?;
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
//! # Ok::<(), runguard_core::limits::InvalidSetting>(())
//! ```

pub mod circuit;

pub use circuit::{CircuitSettings, Phase, PhaseChange};

use crate::limits::InvalidSetting;
use crate::limits::MAX_ID_CHARS;
use crate::reason::Reason;
use crate::time::{Span, Timestamp};
use circuit::{CallReport, Caller, Circuit, Control, Event, Refusal};
use std::borrow::Cow;

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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CircuitOpen {
    /// Open, or half open without a free test.
    pub phase: Phase,
    /// The first refusal after a trip.
    pub just_tripped: bool,
    /// After this long the next call may pass, if nothing else happens. `None`: an operator opened the circuit, and time
    /// does not close it.
    pub retry_after: Option<Span>,
    /// What to tell the model or the user.
    pub message: String,
}

/// A call must not run, whoever keeps the circuit.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointRefused {
    /// A code of [`crate::reason`]; of a service that is newer than this program, one that only it knows.
    pub reason: Cow<'static, str>,
    /// What to tell the model or the user.
    pub message: String,
    /// What it was to call.
    pub endpoint: String,
    /// After this many seconds the next call may pass; `None`: time alone does not change it.
    pub retry_after_seconds: Option<f64>,
}

impl CircuitOpen {
    /// The same, as it is told for an endpoint.
    pub fn into_refusal(self, endpoint: &str) -> EndpointRefused {
        EndpointRefused {
            reason: self.reason().code().into(),
            message: self.message,
            endpoint: endpoint.to_owned(),
            retry_after_seconds: self.retry_after.map(Span::as_seconds_f64),
        }
    }

    /// Why, as answers and logs name it.
    pub fn reason(&self) -> Reason {
        if self.just_tripped { Reason::CircuitJustTripped } else { Reason::CircuitOpen }
    }
}

/// See the [module](self). It does not lock: whoever shares it between threads puts it behind a mutex.
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    name: String,
    settings: CircuitSettings,
    circuit: Circuit,
    permits: u64,
}

impl CircuitBreaker {
    /// `name` is what it protects, for messages.
    pub fn new(name: impl Into<String>, settings: CircuitSettings) -> Result<Self, InvalidSetting> {
        let name = name.into();
        if name.is_empty() || name.chars().nth(MAX_ID_CHARS).is_some() {
            let problem = format!("must have 1 to {MAX_ID_CHARS} characters; name what the breaker protects");
            return Err(InvalidSetting::new("name", problem));
        }
        settings.check()?;
        Ok(Self { name, settings, circuit: Circuit::default(), permits: 0 })
    }

    /// What it protects.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// May a call run now?
    pub fn check(&mut self, now: Timestamp) -> Result<Permit, CircuitOpen> {
        self.permits += 1;
        let ruling = self.circuit.check(&Caller::default(), "", &self.permits.to_string(), &self.settings, now);
        if let Some(refusal) = ruling.refusals.first() {
            let just_tripped = matches!(refusal, Refusal::JustTripped { .. });
            if just_tripped {
                self.circuit.apply(&Event::Announced, now);
            }
            return Err(CircuitOpen {
                phase: match refusal {
                    Refusal::Open { phase, .. } => *phase,
                    Refusal::JustTripped { .. } | Refusal::SessionCeiling { .. } => Phase::Open,
                },
                just_tripped,
                retry_after: refusal.clears_at().map(|at| Span::from_millis(at.millis_since(now).max(0) as u64)),
                message: refusal.message(&self.name, &self.settings, now),
            });
        }
        self.live_through(&ruling.events, now);
        Ok(Permit { id: ruling.permit, probe: ruling.is_probe })
    }

    /// How a call ended. A result without its permit counts as one of a call that was admitted just now.
    pub fn record(&mut self, permit: Option<&Permit>, ok: bool, latency: Option<Span>, now: Timestamp) -> Option<PhaseChange> {
        let permit = permit.map(|permit| permit.id.as_str());
        let result = CallReport { session: "", is_failure: !ok, latency_ms: latency.map(Span::as_millis), permit, retry_after: None };
        let events = self.circuit.record(&Caller::default(), &result, &self.settings, now);
        self.live_through(&events, now);
        PhaseChange::of(&events)
    }

    /// How it stands.
    pub fn phase(&self, now: Timestamp) -> Phase {
        self.circuit.view(&self.settings, now).phase
    }

    /// Refuses everything until [`reset`](Self::reset).
    pub fn force_open(&mut self, now: Timestamp) {
        self.live_through(&Control::Open.events(), now);
    }

    /// Lets everything pass until [`reset`](Self::reset).
    pub fn force_close(&mut self, now: Timestamp) {
        self.live_through(&Control::Close.events(), now);
    }

    /// Closed and automatic, with nothing remembered.
    pub fn reset(&mut self, now: Timestamp) {
        self.live_through(&Control::Reset.events(), now);
    }

    fn live_through(&mut self, events: &[Event], now: Timestamp) {
        for event in events {
            self.circuit.apply(event, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    fn breaker(settings: CircuitSettings) -> CircuitBreaker {
        CircuitBreaker::new("default", settings).unwrap()
    }

    /// Ten failures at second 0.
    fn tripped() -> CircuitBreaker {
        let mut breaker = breaker(CircuitSettings::default());
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
        assert_eq!(first.reason().code(), "circuit_just_tripped");
        assert!(first.just_tripped && first.retry_after == Some(Span::from_seconds(44)), "{first:?}");
        let later = breaker.check(second(2)).unwrap_err();
        assert_eq!(later.reason().code(), "circuit_open");
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
        let mut breaker = breaker(CircuitSettings { failure_threshold: 1, ..CircuitSettings::default() });
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
        let mut breaker = breaker(CircuitSettings::default().failure_threshold(2));
        assert_eq!(breaker.record(None, false, None, second(0)), None);
        assert_eq!(breaker.record(None, false, None, second(0)), Some(PhaseChange::Tripped));
        assert!(breaker.check(second(45)).unwrap().is_probe());
        assert_eq!(breaker.record(None, true, None, second(45)), Some(PhaseChange::Closed));
    }

    #[test]
    fn many_failures_spread_over_time_do_not_lock_anyone_out() {
        let mut breaker = breaker(CircuitSettings::default());
        for number in 0..100 {
            let now = second(number * 10);
            let permit = breaker.check(now).expect("six failures a minute stay below ten, and no ceiling per session is in force");
            breaker.record(Some(&permit), false, None, now);
        }
    }

    #[test]
    fn slow_calls_trip_too() {
        let settings = CircuitSettings { slow_call_ms: 500, slow_rate: 0.5, min_calls: 2, ..CircuitSettings::default() };
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
        let with = |change: fn(&mut CircuitSettings)| {
            let mut settings = CircuitSettings::default();
            change(&mut settings);
            CircuitBreaker::new("default", settings).map(|_| ()).unwrap_err().name
        };
        assert_eq!(CircuitBreaker::new("", CircuitSettings::default()).unwrap_err().name, "name");
        assert_eq!(with(|settings| settings.failure_threshold = 0), "failure_threshold");
        assert_eq!(with(|settings| settings.failure_rate = f64::NAN), "failure_rate");
        assert_eq!(with(|settings| settings.failure_rate = 1.5), "failure_rate");
        assert_eq!(with(|settings| settings.recovery = Span::ZERO), "recovery");
        assert_eq!(with(|settings| settings.recovery_backoff = 0.5), "recovery_backoff");
        assert_eq!(with(|settings| settings.slow_rate = 0.5), "slow_rate");
    }
}
