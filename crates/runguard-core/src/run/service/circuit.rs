//! A circuit breaker that a service keeps: all who use its name share it, with the service's thresholds.

use super::{AnswerMeaning, Asks, Body, Part, Question, ServiceReply, Unanswered, short_id};
use crate::breaker::EndpointRefused;
use crate::reason::Reason;
use crate::time::Span;
use std::borrow::Cow;

/// The questions of a circuit breaker that a service keeps.
#[derive(Debug, Clone)]
pub struct ServiceCircuit {
    endpoint: String,
    unanswered: Unanswered,
}

/// A call may run: what the service knows its result by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePermit {
    /// The session of this call alone: the ceiling of retries in a session is for conversations.
    pub session: String,
    /// `None` when nobody gave one.
    pub id: Option<String>,
    /// Whether this call tests a circuit that was open.
    pub is_probe: bool,
}

/// How a call over HTTP ended, as far as a circuit wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallAnswer {
    /// Whether it went well.
    pub ok: bool,
    /// How long it took.
    pub latency: Option<Span>,
    /// The status of its answer; none where there was no answer.
    pub status: Option<u16>,
    /// How long the endpoint asked to be left alone.
    pub retry_after: Option<Span>,
}

impl ServiceCircuit {
    /// `name` is what it protects.
    pub fn new(name: &str, unanswered: Unanswered) -> Self {
        Self { endpoint: short_id(name).into_owned(), unanswered }
    }

    /// The name that the service keeps it under.
    pub fn name(&self) -> &str {
        &self.endpoint
    }

    /// May a call run? It is a session of its own, under this name.
    pub fn check(&self, session: &str) -> Question {
        let asks = Asks::Circuit { endpoint: self.endpoint.clone(), session: session.to_owned() };
        Question::new("/guard/api-circuit/check", self.body(session), self.unanswered, asks)
    }

    /// How it ended. Without a permit it counts as one that was admitted just now.
    pub fn record(&self, session: &str, permit: Option<&str>, ok: bool, latency: Option<Span>) -> Question {
        self.record_answer(session, permit, CallAnswer { ok, latency, ..CallAnswer::default() })
    }

    /// The same of a call over HTTP, with what its answer says beside how it ended.
    pub fn record_answer(&self, session: &str, permit: Option<&str>, answer: CallAnswer) -> Question {
        let body = self
            .body(session)
            .with("outcome", if answer.ok { "success" } else { "failure" })
            .maybe("latency_ms", answer.latency.map(Span::as_millis))
            .maybe("permit_id", permit)
            .maybe("status_code", answer.status)
            .maybe("retry_after_seconds", answer.retry_after.map(|wait| wait.as_millis().div_ceil(1000)));
        Question::new("/guard/api-circuit/record", body, self.unanswered, Asks::CallEnded(Part::Circuit))
    }

    fn body(&self, session: &str) -> Body {
        Body::of_session(session).with("endpoint_key", self.endpoint.as_str())
    }
}

impl ServiceReply<'_> {
    pub(super) fn permit(&self, endpoint: String, session: String) -> AnswerMeaning {
        if self.allows() {
            let is_probe = self.flag("probe");
            return AnswerMeaning::Permitted(ServicePermit { session, id: self.text("permit_id").map(Cow::into_owned), is_probe });
        }
        AnswerMeaning::EndpointRefused(EndpointRefused {
            reason: self.reason_or(Reason::CircuitOpen),
            message: self.owned("message"),
            endpoint,
            retry_after_seconds: self.number("retry_after_seconds"),
        })
    }
}
