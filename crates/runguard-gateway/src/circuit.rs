//! The circuit of a model at its provider: the breaker of the guard `api_circuit`, asked when there is something to ask.
//!
//! A provider that works leaves no trace: how its circuit stands is looked up, and only what concerns it is told. That is a failure, a call
//! that tests it, and every call where rates are counted. What goes wrong by the caller's own fault is no failure.

use crate::money::Guards;
use crate::refusal::Refusal;
use http::{HeaderMap, StatusCode};
use runguard_core::breaker::Phase;
use runguard_core::run::service::{CallAnswer, Told};
use runguard_core::run::{ServiceCircuit, Unanswered};
use runguard_core::time::Span;
use runguard_http::again::retry_after;
use std::time::{Duration, SystemTime};

/// How a circuit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Closed,
    /// Nobody is let through now.
    Open,
    /// Few are, to see whether it works again.
    Testing,
}

/// What the result of a call is known by, where the circuit was asked.
pub(crate) type Permit = Option<String>;

/// The circuit of one model, for one call.
#[derive(Debug)]
pub(crate) struct Circuit<'a> {
    guards: &'a Guards,
    run: &'a str,
    asks: ServiceCircuit,
}

/// Whether a provider says by this status that it has no room, or is broken.
pub(crate) fn is_unavailable(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

impl<'a> Circuit<'a> {
    /// It is called `UPSTREAM/MODEL`.
    pub(crate) fn new(guards: &'a Guards, upstream: &str, model: &str, run: &'a str) -> Self {
        Self { guards, run, asks: ServiceCircuit::new(&format!("{upstream}/{model}"), Unanswered::Passes) }
    }

    /// How it stands. Whoever cannot say it stops nobody.
    pub(crate) async fn standing(&self) -> Standing {
        let Some(now) = self.guards.now() else { return Standing::Closed };
        let Ok(Some(found)) = self.guards.engine.circuit(&self.guards.caller.tenant, self.asks.name(), now).await else {
            return Standing::Closed;
        };
        match found.view.phase {
            Phase::Closed => Standing::Closed,
            Phase::Open => Standing::Open,
            Phase::HalfOpen => Standing::Testing,
        }
    }

    /// Asks to be let through.
    pub(crate) async fn enter(&self) -> Result<Permit, Refusal> {
        let question = self.asks.check(self.run);
        let answer = self.guards.ask(question.path(), &question.body()).await;
        match question.told(answer.as_deref()) {
            Told::EndpointRefused(refused) => Err(Refusal::circuit(refused)),
            Told::Permitted(permit) => Ok(permit.id),
            // Of other questions.
            Told::Passed
            | Told::Unheard(_)
            | Told::Looked(..)
            | Told::Books(_)
            | Told::Reserved(_)
            | Told::Stopped(_)
            | Told::NotNow(_)
            | Told::DoesNotFit { .. }
            | Told::Unpriced(_)
            | Told::Skip(_)
            | Told::Unanswered
            | Told::Next(_) => Ok(None),
        }
    }

    /// Tells how the call ended, if that says anything of the provider. `is_own_key`: the caller came with a key of the provider's beside
    /// ours; that *it* may ask no more says nothing of what others may.
    pub(crate) async fn answered(&self, permit: Permit, head: Option<(StatusCode, &HeaderMap)>, took: Duration, is_own_key: bool) {
        let ok = head.is_some_and(|(status, _)| !is_unavailable(status) || (status == StatusCode::TOO_MANY_REQUESTS && is_own_key));
        if ok && permit.is_none() && !self.counts_all() {
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
        let answer = self.guards.ask(question.path(), &question.body()).await;
        drop(question.told(answer.as_deref()));
    }

    /// Whether calls that went well count too.
    fn counts_all(&self) -> bool {
        let settings = self.guards.engine.settings.load();
        let policy = settings.policies.for_tenant(&self.guards.caller.tenant);
        policy.api_circuit.for_subject(self.asks.name()).settings.circuit.looks_at_rates()
    }
}

fn span(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
