//! Errors as callers see them: `application/problem+json` (RFC 9457). All statuses and words are in this file.

use crate::session::disk::SessionError;
use crate::state::AgentState;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{self, HeaderValue};
use serde_json::json;

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldProblem {
    pub(super) field: String,
    pub(super) problem: String,
}

#[derive(Debug, Clone)]
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    errors: Vec<FieldProblem>,
    retry_after_seconds: Option<u64>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, title, detail: detail.into(), errors: Vec::new(), retry_after_seconds: None }
    }

    fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after_seconds: Some(seconds), ..self }
    }

    pub(super) fn no_route(path: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is nothing here", format!("No route {shown}; GET / lists them all."))
    }

    pub(super) fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "This route has another method", "GET / lists the routes.")
    }

    pub(super) fn unknown_run() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "unknown",
            "Not known",
            "No run has this id, and no saved session either. GET /v1/agent/runs lists them; an id is given in full.",
        )
    }

    pub(super) fn events_gone(id: &str) -> Self {
        Self::new(
            StatusCode::GONE,
            "events-gone",
            "The events are not kept any more",
            format!("The run ended too long ago, or before the service started. GET /v1/agent/runs/{id} says how it ended."),
        )
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let detail = format!("At most {limit} bytes are taken. Put long texts into a file the agent may read.");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large", detail)
    }

    pub(super) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "The body took too long", "The whole request must arrive within 10 seconds.")
    }

    pub(super) fn broken_body() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "broken-body", "The body broke off", "The connection ended before the body did.")
    }

    pub(super) fn not_an_object(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "not-an-object", "The body must be a JSON object", detail)
    }

    pub(super) fn fields(errors: Vec<FieldProblem>) -> Self {
        let names: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        let detail = format!("Nothing was started. Look at: {}.", names.join(", "));
        Self { errors, ..Self::new(StatusCode::BAD_REQUEST, "invalid-fields", "Some fields are missing or wrong", detail) }
    }

    pub(super) fn field(field: &str, problem: impl Into<String>) -> Self {
        Self::fields(vec![FieldProblem { field: field.to_owned(), problem: problem.into() }])
    }

    pub(super) fn already_running(id: &str) -> Self {
        let detail = format!(
            "Run {id} is under way, and a session has one run at a time. Follow it at /v1/agent/runs/{id}/events, or end it with POST /v1/agent/runs/{id}/cancel."
        );
        Self::new(StatusCode::CONFLICT, "already-running", "The session has a run under way", detail)
    }

    pub(super) fn nothing_to_continue(state: AgentState) -> Self {
        let detail = format!("The session is {}: the model has said all it had to say. Send a `prompt` to go on.", state.code());
        Self::new(StatusCode::CONFLICT, "nothing-to-continue", "There is nothing to go on with", detail)
    }

    pub(super) fn too_many_runs(most: usize) -> Self {
        const RETRY_SECONDS: u64 = 5;
        let detail = format!("{most} runs are under way, as many as `serve.max_runs` allows. Wait for one to end, or cancel one.");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too-many-runs", "Too many runs at once", detail).retry_after(RETRY_SECONDS)
    }

    pub(super) fn unauthorized() -> Self {
        let detail = "Send the key as `Authorization: Bearer …` or `x-api-key: …`. The one that came is missing or wrong.";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "A key is needed", detail)
    }

    pub(super) fn foreign_host() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "foreign-host",
            "The request was meant for another host",
            "Without a key only this machine is served, under the names localhost, 127.0.0.1 and [::1]. To be reached under another name, set a key.",
        )
    }

    pub(super) fn foreign_origin() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "foreign-origin",
            "A page of another site asks",
            "Without a key a web page of another origin may not drive the agent. Set a key, and send it from a server of your own.",
        )
    }

    fn not_ready(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "The service cannot do this right now", detail).retry_after(1)
    }

    pub(super) fn stopping() -> Self {
        Self::not_ready("The service is stopping. Nothing was started.")
    }

    pub(super) fn blocked() -> Self {
        Self::not_ready("The sessions could not be read. Try again shortly.")
    }
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::BadId { .. } | SessionError::Unknown { .. } | SessionError::Ambiguous { .. } => Self::unknown_run(),
            SessionError::InUse { .. } => {
                Self::new(StatusCode::CONFLICT, "already-running", "The session has a run under way", error.to_string())
            }
            SessionError::NeverBegan { .. }
            | SessionError::Damaged { .. }
            | SessionError::Version { .. }
            | SessionError::Settings { .. } => {
                Self::new(StatusCode::CONFLICT, "unusable-session", "The session cannot be used", error.to_string())
            }
            SessionError::Io { .. } => {
                tracing::error!(%error, "a session could not be read or written");
                Self::not_ready("The session could not be read or written, so nothing was started. Is the disk full?")
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": format!("https://runguard.invalid/problems/{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "errors": self.errors.iter().map(|error| json!({"field": error.field, "problem": error.problem})).collect::<Vec<_>>(),
        });
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
