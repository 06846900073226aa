//! Errors as callers see them: `application/problem+json` (RFC 9457). All statuses and words are in this file.

use crate::respond::{Reply, reply};
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use runguard_core::input::{InputError, Problem as FieldProblem};
use runguard_engine::{ClockError, EngineError, Role};
use runguard_store::StoreError;
use serde_json::{Value, json};

pub(crate) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    errors: Vec<FieldProblem>,
    retry_after_seconds: Option<u64>,
    allow: Option<&'static str>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, title, detail: detail.into(), errors: Vec::new(), retry_after_seconds: None, allow: None }
    }

    pub(crate) fn not_found(path: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is nothing here", format!("No route {shown}; /docs lists them all."))
    }

    pub(crate) fn unknown(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown", "Not known", format!("Nothing is known of this {what}."))
    }

    pub(crate) fn method(allow: &'static str) -> Self {
        let mut problem =
            Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "This route has another method", format!("Use {allow}."));
        problem.allow = Some(allow);
        problem
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            "The body is too large",
            format!("At most {limit} bytes are taken. Send a hash or a summary instead of the whole text."),
        )
    }

    pub(crate) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "The body took too long", "The whole request must arrive within 10 seconds.")
    }

    pub(crate) fn broken_body() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "broken-body", "The body broke off", "The connection ended before the body did.")
    }

    pub(crate) fn query(field: &str, problem: impl Into<String>) -> Self {
        Self::fields(vec![FieldProblem { field: field.into(), problem: problem.into() }])
    }

    pub(crate) fn fields(errors: Vec<FieldProblem>) -> Self {
        let names: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        let mut problem = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid-fields",
            "Some fields are missing or wrong",
            format!("Nothing was counted. Look at: {}.", names.join(", ")),
        );
        problem.errors = errors;
        problem
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "A key is needed",
            "Send a key made with `runguard key create` as `Authorization: Bearer rg_…`. The one that came is missing, wrong or revoked.",
        )
    }

    pub(crate) fn forbidden(role: Role) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            "The key may not do this",
            format!("This needs the role `{}`; make such a key with `runguard key create --role {}`.", role.name(), role.name()),
        )
    }

    pub(crate) fn other_tenant() -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "The key may not do this", "A key sees its own tenant only; an admin key sees all.")
    }

    pub(crate) fn not_ready(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "The service cannot decide right now", detail);
        problem.retry_after_seconds = Some(1);
        problem
    }

    pub(crate) fn busy(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", "One at a time", detail);
        problem.retry_after_seconds = Some(1);
        problem
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "type": format!("https://runguard.invalid/problems/{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "errors": self.errors.iter().map(|error| json!({"field": error.field, "problem": error.problem})).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn into_reply(self) -> Reply {
        let mut response = reply(self.status, CONTENT_TYPE, self.to_json().to_string());
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

impl From<InputError> for Problem {
    fn from(error: InputError) -> Self {
        match error {
            InputError::NotAnObject(detail) => {
                Self::new(StatusCode::BAD_REQUEST, "not-an-object", "The body must be a JSON object", detail)
            }
            InputError::Fields(errors) => Self::fields(errors),
        }
    }
}

impl From<ClockError> for Problem {
    fn from(error: ClockError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "no-time", "The request has no time", error.to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        // Logged where it happened; the caller needs to know only that nothing was counted.
        let detail = match error {
            StoreError::Write(_) => {
                "The decision could not be written down, so it was not made and nothing was counted. Is the disk full? Try again shortly."
            }
            StoreError::Read(_) => "The log could not be read. Try again shortly.",
            StoreError::Stopping => "The service is stopping. Try again shortly.",
        };
        Self::not_ready(detail)
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                "The idempotency key belongs to another request",
                "A repeat must be the same request, byte for byte. Use a new key for a new request.",
            ),
            EngineError::StillRunning => {
                let mut problem = Self::new(
                    StatusCode::CONFLICT,
                    "still-running",
                    "The first request is still running",
                    "Its answer will be given to a repeat in a moment.",
                );
                problem.retry_after_seconds = Some(1);
                problem
            }
            EngineError::Store(error) => error.into(),
        }
    }
}
