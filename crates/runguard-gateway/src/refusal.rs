//! How a provider would say no: the shape its clients understand, with our words in it.
//!
//! 402 costs one request in nearly every client; 429 would be tried again by all of them. `x-should-retry` says the same to those that
//! look at it.

use crate::api::Dialect;
use http::{HeaderValue, StatusCode};
use runguard_core::breaker::EndpointRefused;
use runguard_core::reason::{Code, GatewayReason};
use runguard_core::text::without_advice;
use runguard_http::reply::{JSON, Reply, reply};
use serde_json::json;

/// A request that is not passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// Of the lists of reasons: a guard's, a run's or the gateway's own.
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) again: Again,
}

/// When whoever was refused may ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// As its status says: not at all, or soon.
    Usual,
    InSeconds(u64),
    /// No time changes it.
    Never,
}

/// What others have set aside is theirs for as long as an answer takes.
const SOON_SECONDS: u64 = 5;

impl Refusal {
    /// The run must not go on: its money is spent, it goes round in circles, somebody stopped it.
    pub(crate) fn stop(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::coded(StatusCode::PAYMENT_REQUIRED, code, message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, GatewayReason::InvalidRequest, message)
    }

    pub(crate) fn new(status: StatusCode, reason: impl Code, message: impl Into<String>) -> Self {
        Self::coded(status, reason.code(), message)
    }

    /// With the code that a guard gave.
    fn coded(status: StatusCode, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { again: Again::Usual, status, code: code.into(), message: message.into() }
    }

    /// What is left is set aside for others, who may give it back. What stands against it is said, and not what to do about a limit that is used up.
    pub(crate) fn busy(code: &str, message: &str) -> Self {
        let message = format!("{}. What is reserved may be given back: ask again in a few seconds.", without_advice(message));
        Self::coded(StatusCode::TOO_MANY_REQUESTS, code, message)
    }

    /// The provider is not asked for now. Its clients take it for one that has too much to do, and come back when told to.
    pub(crate) fn circuit(refused: EndpointRefused) -> Self {
        let seconds = refused.retry_after_seconds.map(|seconds| seconds.ceil().max(1.0) as u64);
        // Agents are told not to try; clients that know when to are.
        let (again, message) = match seconds {
            Some(seconds) => {
                let message = format!("{}. Ask again in {seconds} s.", without_advice(&refused.message));
                (Again::InSeconds(seconds), message)
            }
            None => (Again::Never, refused.message),
        };
        Self { again, ..Self::coded(StatusCode::SERVICE_UNAVAILABLE, refused.reason, message) }
    }

    /// What kind of mistake it is, in the provider's words.
    fn kind(&self, dialect: Dialect) -> &'static str {
        match (dialect, self.status) {
            // Clients of AWS ask again after throttling and after a service's own mistakes, not after these.
            (Dialect::Bedrock, StatusCode::PAYMENT_REQUIRED) => "ServiceQuotaExceededException",
            (Dialect::Bedrock, StatusCode::TOO_MANY_REQUESTS) => "ThrottlingException",
            (Dialect::Bedrock, StatusCode::UNAUTHORIZED) => "UnrecognizedClientException",
            (Dialect::Bedrock, StatusCode::FORBIDDEN) => "AccessDeniedException",
            (Dialect::Bedrock, StatusCode::NOT_FOUND) => "ResourceNotFoundException",
            (Dialect::Bedrock, StatusCode::SERVICE_UNAVAILABLE) => "ServiceUnavailableException",
            (Dialect::Bedrock, status) if status.is_server_error() => "InternalServerException",
            (Dialect::Bedrock, _) => "ValidationException",
            (Dialect::OpenAi, StatusCode::PAYMENT_REQUIRED) => "insufficient_quota",
            (Dialect::Anthropic, StatusCode::PAYMENT_REQUIRED) => "billing_error",
            (Dialect::Anthropic, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_error",
            (Dialect::OpenAi, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_exceeded",
            (Dialect::Anthropic, StatusCode::SERVICE_UNAVAILABLE) => "overloaded_error",
            (_, StatusCode::UNAUTHORIZED) => "authentication_error",
            (_, StatusCode::FORBIDDEN) => "permission_error",
            (_, StatusCode::NOT_FOUND) => "not_found_error",
            (Dialect::Anthropic, StatusCode::PAYLOAD_TOO_LARGE) => "request_too_large",
            (Dialect::OpenAi, status) if status.is_server_error() => "server_error",
            (Dialect::Anthropic, status) if status.is_server_error() => "api_error",
            (_, _) => "invalid_request_error",
        }
    }

    pub(crate) fn into_reply(self, dialect: Dialect) -> Reply {
        let kind = self.kind(dialect);
        let body = match dialect {
            Dialect::OpenAi => json!({"error": {"message": self.message, "type": kind, "param": null, "code": self.code}}),
            Dialect::Anthropic => json!({"type": "error", "error": {"type": kind, "message": self.message, "code": self.code}}),
            Dialect::Bedrock => json!({"message": self.message}),
        };
        let mut reply = reply(self.status, JSON, body.to_string());
        if dialect == Dialect::Bedrock {
            reply.headers_mut().insert("x-amzn-errortype", HeaderValue::from_static(kind));
        }
        let is_busy = self.status == StatusCode::TOO_MANY_REQUESTS;
        let (may_retry, seconds) = match self.again {
            Again::Usual => (self.status.is_server_error() || is_busy, is_busy.then_some(SOON_SECONDS)),
            Again::InSeconds(seconds) => (true, Some(seconds)),
            Again::Never => (false, None),
        };
        let retry = if may_retry { "true" } else { "false" };
        reply.headers_mut().insert("x-should-retry", HeaderValue::from_static(retry));
        if let Some(seconds) = seconds {
            reply.headers_mut().insert("retry-after", HeaderValue::from(seconds));
        }
        if let Ok(code) = HeaderValue::from_str(&self.code) {
            reply.headers_mut().insert("x-runguard-reason", code);
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[test]
    fn who_may_ask_again_is_not_told_to_stop() {
        let message =
            "The budget of $0.05 has no room for $0.02: $0.01 spent, $0.03 reserved, $0.01 left. Stop the run, or raise the limit.";
        let busy = Refusal::busy("budget_exceeded", message);
        assert_eq!(
            busy.message,
            "The budget of $0.05 has no room for $0.02: $0.01 spent, $0.03 reserved, $0.01 left. What is reserved may be given back: ask again in a few seconds."
        );
        let reply = busy.into_reply(Dialect::OpenAi);
        assert_eq!((reply.status().as_u16(), reply.headers()["x-should-retry"].to_str().unwrap()), (429, "true"));
    }

    #[test]
    fn who_is_told_when_to_ask_again_is_not_told_not_to() {
        let message =
            "The circuit of 'openai/gpt-4.1' is open for another 12 s. Do not retry; answer that the service is not available right now.";
        let refused = |retry_after_seconds| EndpointRefused {
            reason: "circuit_open".into(),
            message: message.to_owned(),
            retry_after_seconds,
            endpoint: "openai/gpt-4.1".to_owned(),
        };
        let open = Refusal::circuit(refused(Some(12.0)));
        assert_eq!(open.message, "The circuit of 'openai/gpt-4.1' is open for another 12 s. Ask again in 12 s.");
        assert_eq!(Refusal::circuit(refused(None)).message, message, "an operator opened it");
    }

    #[tokio::test]
    async fn clients_of_each_provider_find_what_they_look_for() {
        let refused = Refusal::stop("budget_exceeded", "The run has spent $2.00 of $2.00.");
        let openai = refused.clone().into_reply(Dialect::OpenAi);
        assert_eq!((openai.status().as_u16(), openai.headers()["x-should-retry"].to_str().unwrap()), (402, "false"));
        let body = openai.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&body["error"]["type"], &body["error"]["code"]), (&json!("insufficient_quota"), &json!("budget_exceeded")));
        let anthropic = refused.into_reply(Dialect::Anthropic).into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&anthropic).unwrap();
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("billing_error")));
    }
}
