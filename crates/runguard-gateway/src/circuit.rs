//! The circuit of a model at its provider: the breaker of the guard `api_circuit`, asked when there is something to ask.
//!
//! A provider that works leaves no trace: how its circuit stands is looked up, and only what concerns it is told. That is a failure, a call
//! that tests it, and every call where rates are counted. What goes wrong by the caller's own fault is no failure.
//!
//! A busy model fails now and then, and ten failures of a thousand calls are no reason to leave it alone. How many went well is counted here,
//! and a failure is told with it: it opens no circuit while the model mostly works.

use crate::money::Guards;
use crate::refusal::Refusal;
use http::{HeaderMap, StatusCode};
use runguard_core::breaker::Phase;
use runguard_core::breaker::circuit::CircuitSettings;
use runguard_core::run::service::{AnswerMeaning, CallAnswer};
use runguard_core::run::{ServiceCircuit, Unanswered};
use runguard_core::time::Span;
use runguard_guards::input::PassedCall;
use runguard_http::again::retry_after;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// What the result of a call is known by, where the circuit was asked.
pub(crate) type Permit = Option<String>;

/// Circuits that are followed; of more, those that were told of last.
const MOST_FOLLOWED: usize = 10_000;

/// How the latest calls ended, as this process saw them.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    by_circuit: Mutex<HashMap<String, Ends>>,
}

/// How calls of one circuit ended: of the half of a window that is under way, and of the one before.
#[derive(Debug, Clone, Copy)]
struct Ends {
    since: Instant,
    calls: [u32; 2],
    failures: [u32; 2],
    /// Of the failures, those that were not counted: the model mostly worked.
    uncounted: [u32; 2],
    failures_in_a_row: u32,
}

/// What a call that ended says of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lasts {
    mostly_works: bool,
    /// Failures that were not counted until now.
    uncounted: u32,
}

impl Lately {
    /// One more call ended. Whether the model mostly works: fewer than half of the latest calls failed, and not all of the last few.
    fn ended(&self, circuit: String, ok: bool, settings: &CircuitSettings, now: Instant) -> Lasts {
        let half = Duration::from_millis(settings.failure_window.as_millis()) / 2;
        let mut by_circuit = self.by_circuit.lock().unwrap_or_else(PoisonError::into_inner);
        if by_circuit.len() >= MOST_FOLLOWED {
            by_circuit.retain(|_, ends| now.duration_since(ends.since) < half * 2);
        }
        if by_circuit.len() >= MOST_FOLLOWED {
            by_circuit.clear();
        }
        let ends = by_circuit.entry(circuit).or_insert(Ends {
            since: now,
            calls: [0; 2],
            failures: [0; 2],
            uncounted: [0; 2],
            failures_in_a_row: 0,
        });
        let passed = now.duration_since(ends.since);
        if passed >= half {
            let shifted = |[latest, _]: [u32; 2]| if passed < half * 2 { [0, latest] } else { [0; 2] };
            (ends.calls, ends.failures, ends.since) = (shifted(ends.calls), shifted(ends.failures), now);
            ends.uncounted = shifted(ends.uncounted);
        }
        ends.calls[0] += 1;
        ends.failures[0] += u32::from(!ok);
        ends.failures_in_a_row = if ok { 0 } else { ends.failures_in_a_row.saturating_add(1) };
        let [calls, failures] = [ends.calls, ends.failures].map(|counts| counts.iter().sum::<u32>());
        let mostly_works = failures * 2 < calls && ends.failures_in_a_row < settings.failure_threshold;
        ends.uncounted[0] += u32::from(!ok && mostly_works);
        let is_told = !ok && !mostly_works;
        let uncounted = if is_told { std::mem::take(&mut ends.uncounted).iter().sum() } else { 0 };
        Lasts { mostly_works, uncounted }
    }
}

/// The circuit of one model, for one call.
#[derive(Debug)]
pub(crate) struct Circuit<'a> {
    guards: &'a Guards,
    lately: &'a Lately,
    run: &'a str,
    asks: ServiceCircuit,
}

/// Whether a provider says by this status that it has no room, or is broken.
pub(crate) fn is_unavailable(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

impl<'a> Circuit<'a> {
    /// It is called `UPSTREAM/MODEL`.
    pub(crate) fn new(guards: &'a Guards, lately: &'a Lately, upstream: &str, model: &str, run: &'a str) -> Self {
        Self { guards, lately, run, asks: ServiceCircuit::new(&format!("{upstream}/{model}"), Unanswered::Passes) }
    }

    /// How it stands. Whoever cannot say it stops nobody.
    pub(crate) async fn phase(&self) -> Phase {
        let Some(now) = self.guards.now() else { return Phase::Closed };
        let found = self.guards.engine.circuit(&self.guards.caller.tenant, self.asks.name(), now).await;
        found.ok().flatten().map_or(Phase::Closed, |found| found.view.phase)
    }

    /// Asks to be let through.
    pub(crate) async fn enter(&self) -> Result<Permit, Refusal> {
        let question = self.asks.check(self.run);
        let answer = Box::pin(self.guards.ask(&question)).await;
        match question.told(answer.as_deref()) {
            AnswerMeaning::EndpointRefused(refused) => Err(Refusal::circuit(refused)),
            AnswerMeaning::Permitted(permit) => Ok(permit.id),
            // Of other questions.
            AnswerMeaning::Passed
            | AnswerMeaning::Unheard(_)
            | AnswerMeaning::Looked(..)
            | AnswerMeaning::Books(_)
            | AnswerMeaning::Reserved(_)
            | AnswerMeaning::Stopped(_)
            | AnswerMeaning::NotNow(_)
            | AnswerMeaning::DoesNotFit { .. }
            | AnswerMeaning::Unpriced(_)
            | AnswerMeaning::Skip(_)
            | AnswerMeaning::Unanswered
            | AnswerMeaning::Next(_) => Ok(None),
        }
    }

    /// Tells how the call ended, if that says anything of the provider. `is_own_key`: the caller came with a key of the provider's beside
    /// ours; that *it* may ask no more says nothing of what others may.
    pub(crate) async fn answered(&self, permit: Permit, head: Option<(StatusCode, &HeaderMap)>, took: Duration, is_own_key: bool) {
        let ok = head.is_some_and(|(status, _)| !is_unavailable(status) || (status == StatusCode::TOO_MANY_REQUESTS && is_own_key));
        let settings = self.settings();
        let circuit = format!("{}\0{}", self.guards.caller.tenant, self.asks.name());
        let lasts = self.lately.ended(circuit, ok, &settings, Instant::now());
        // Whoever counts rates has a rule for what is too much.
        let counts_all = settings.looks_at_rates();
        if ok && permit.is_none() && !counts_all {
            return;
        }
        let header =
            |headers: &HeaderMap| retry_after(|name| headers.get(name).and_then(|value| value.to_str().ok()), SystemTime::now()).map(span);
        let answer = CallAnswer {
            ok,
            latency: Some(span(took)),
            status: head.map(|(status, _)| status.as_u16()),
            retry_after: head.filter(|_| !ok).and_then(|(_, headers)| header(headers)),
        };
        let question = self.asks.record_answer(self.run, permit.as_deref(), answer);
        // Whoever counts rates has counted every failure.
        let uncounted = if counts_all { 0 } else { lasts.uncounted };
        let call = PassedCall { mostly_works: !ok && !counts_all && lasts.mostly_works, uncounted, ..self.guards.call.clone() };
        let guards = Guards { call, ..self.guards.clone() };
        // Boxed, as a provider mostly works: those it answers well do not carry the room for it around.
        let answer = Box::pin(guards.ask(&question)).await;
        drop(question.told(answer.as_deref()));
    }

    fn settings(&self) -> CircuitSettings {
        let settings = self.guards.engine.settings.load();
        let policy = settings.policies.for_tenant(&self.guards.caller.tenant);
        policy.api_circuit.for_subject(self.asks.name()).settings.circuit.clone()
    }
}

fn span(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_mostly_works_until_half_of_its_calls_fail_or_all_of_the_last_few() {
        let (lately, settings, began) = (Lately::default(), CircuitSettings::default(), Instant::now());
        let lasts = |ok, seconds| lately.ended("openai/gpt-4o".to_owned(), ok, &settings, began + Duration::from_secs(seconds));
        let ended = |ok, seconds| lasts(ok, seconds).mostly_works;
        // Two hundred in a minute, of which ten fail.
        for number in 0..200_u64 {
            assert!(ended(number % 20 != 7, number * 60 / 200) || number < 14, "at {number}");
        }
        for _ in 0..9 {
            assert!(ended(false, 60));
        }
        let dead = lasts(false, 60);
        assert!(!dead.mostly_works && dead.uncounted >= 9, "as many in a row as open it: {dead:?}");
        assert_eq!(lasts(false, 60).uncounted, 0, "they are told once");
        assert!(ended(true, 61));
        assert!(!ended(false, 200), "what was long ago does not count");
        assert!(lately.ended("openai/other".to_owned(), true, &settings, began).mostly_works, "another has its own");
    }
}
