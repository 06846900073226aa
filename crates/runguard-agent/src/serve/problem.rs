//! Errors as callers of the agent see them: the shell's form with this service's words. All of them are in this file.

use crate::session::disk::SessionError;
use crate::state::AgentState;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use runguard_http::FieldProblem;
use runguard_http::problem::{Kind, kinds};

runguard_http::problem_kinds! {
    EVENTS_GONE: "events-gone", "The events are not kept any more",
        "A run's events are kept for a while after it ended, and not beyond a restart. How it ended is at `GET /v1/agent/runs/{id}`.";
    ALREADY_RUNNING: "already-running", "The session has a run under way",
        "A session has one run at a time, here or in another process. Follow it, cancel it, or begin another session.";
    NOTHING_TO_CONTINUE: "nothing-to-continue", "There is nothing to go on with",
        "The session is over: the model has said all it had to say. Send a `prompt` to go on.";
    TOO_MANY_RUNS: "too-many-runs", "Too many runs at once",
        "As many runs are under way as `serve.max_runs` allows. Wait for one to end, or cancel one.";
    UNUSABLE_SESSION: "unusable-session", "The session cannot be used",
        "Its file is damaged, of a later version, or of other settings. The answer says which; a new session can always be begun.";
}

#[derive(Debug, Clone)]
pub(super) struct Problem(runguard_http::Problem);

impl From<runguard_http::Problem> for Problem {
    fn from(problem: runguard_http::Problem) -> Self {
        Self(problem)
    }
}

impl Problem {
    fn new(status: StatusCode, kind: &'static Kind, detail: impl Into<String>) -> Self {
        Self(runguard_http::Problem::new(status, kind, detail))
    }

    pub(super) fn no_route(path: &str) -> Self {
        Self(runguard_http::Problem::not_found(path, "GET /"))
    }

    pub(super) fn method(allow: &'static str) -> Self {
        Self(runguard_http::Problem::method(allow))
    }

    pub(super) fn unknown_run() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            &kinds::UNKNOWN,
            "No run has this id, and no saved session either. GET /v1/agent/runs lists them; an id is given in full.",
        )
    }

    pub(super) fn events_gone(id: &str) -> Self {
        Self::new(
            StatusCode::GONE,
            &EVENTS_GONE,
            format!("The run ended too long ago, or before the service started. GET /v1/agent/runs/{id} says how it ended."),
        )
    }

    pub(super) fn not_an_object(detail: impl Into<String>) -> Self {
        Self(runguard_http::Problem::not_an_object(detail))
    }

    pub(super) fn fields(errors: Vec<FieldProblem>) -> Self {
        let names: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        let detail = format!("Nothing was started. Look at: {}.", names.join(", "));
        let problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, &kinds::INVALID_FIELDS, detail);
        Self(problem.0.with_errors(errors))
    }

    pub(super) fn field(field: &str, problem: impl Into<String>) -> Self {
        Self::fields(vec![FieldProblem { field: field.to_owned(), problem: problem.into() }])
    }

    pub(super) fn already_running(id: &str) -> Self {
        let detail = format!(
            "Run {id} is under way, and a session has one run at a time. Follow it at /v1/agent/runs/{id}/events, or end it with POST /v1/agent/runs/{id}/cancel."
        );
        Self::new(StatusCode::CONFLICT, &ALREADY_RUNNING, detail)
    }

    pub(super) fn nothing_to_continue(state: AgentState) -> Self {
        let detail = format!("The session is {}: the model has said all it had to say. Send a `prompt` to go on.", state.code());
        Self::new(StatusCode::CONFLICT, &NOTHING_TO_CONTINUE, detail)
    }

    pub(super) fn too_many_runs(most: usize) -> Self {
        const RETRY_SECONDS: u64 = 5;
        let detail = format!("{most} runs are under way, as many as `serve.max_runs` allows. Wait for one to end, or cancel one.");
        Self(Self::new(StatusCode::TOO_MANY_REQUESTS, &TOO_MANY_RUNS, detail).0.retry_after(RETRY_SECONDS))
    }

    pub(super) fn unauthorized() -> Self {
        Self(runguard_http::Problem::unauthorized(
            "Send the key as `Authorization: Bearer …` or `x-api-key: …`. The one that came is missing or wrong.",
        ))
    }

    fn not_ready(detail: impl Into<String>) -> Self {
        Self(runguard_http::Problem::not_ready(detail))
    }

    pub(super) fn no_place(most: usize) -> Self {
        Self::not_ready(format!("{most} runs are under way, as many as `serve.max_runs` allows."))
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
            SessionError::InUse { .. } => Self::new(StatusCode::CONFLICT, &ALREADY_RUNNING, error.to_string()),
            SessionError::NeverBegan { .. }
            | SessionError::Damaged { .. }
            | SessionError::Version { .. }
            | SessionError::Settings { .. } => Self::new(StatusCode::CONFLICT, &UNUSABLE_SESSION, error.to_string()),
            SessionError::Io { .. } => {
                tracing::error!(%error, "a session could not be read or written");
                Self::not_ready("The session could not be read or written, so nothing was started. Is the disk full?")
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}
