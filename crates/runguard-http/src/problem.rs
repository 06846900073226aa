//! Errors as callers see them: `application/problem+json` (RFC 9457).
//!
//! Here is the form, and what any listener has to say; a service adds the words of its own routes with [`Problem::new`].

use crate::reply::{Reply, into_axum, reply};
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{self, HeaderName, HeaderValue};
use serde_json::{Value, json};

pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");
static SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldProblem {
    pub field: String,
    pub problem: String,
}

#[derive(Debug, Clone)]
pub struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
    errors: Vec<FieldProblem>,
    retry_after_seconds: Option<u64>,
    allow: Option<&'static str>,
    closes: Closes,
}

/// Whether the connection can be used for another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closes {
    No,
    /// It was refused before its body was read: if there is one, what comes next on the connection is not a request.
    IfUnread,
    Yes,
}

/// On an answer that was given before the body was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unread;

impl Problem {
    pub fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { status, kind, title, detail, errors: Vec::new(), retry_after_seconds: None, allow: None, closes: Closes::No }
    }

    #[must_use]
    pub fn with_errors(self, errors: Vec<FieldProblem>) -> Self {
        Self { errors, ..self }
    }

    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after_seconds: Some(seconds), ..self }
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// `index` is the address that lists the routes.
    pub fn not_found(path: &str, index: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is nothing here", format!("No route {shown}; {index} lists them all."))
    }

    pub fn method(allow: &'static str) -> Self {
        let detail = format!("Use {allow}.");
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "This route has another method", detail);
        Self { allow: Some(allow), ..problem }
    }

    /// `advice` says what to do with what does not fit.
    pub fn too_large(limit: usize, advice: &str) -> Self {
        let detail = format!("At most {limit} bytes are taken. {advice}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large", detail).before_the_body()
    }

    pub fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "The body took too long", "The whole request must arrive within 10 seconds.")
            .closing()
    }

    pub fn broken_body() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "broken-body", "The body broke off", "The connection ended before the body did.").closing()
    }

    pub fn not_an_object(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "not-an-object", "The body must be a JSON object", detail)
    }

    /// `how` says which key to send, and where to get one.
    pub fn unauthorized(how: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "A key is needed", how).before_the_body()
    }

    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "The key may not do this", detail).before_the_body()
    }

    pub fn encoded() -> Self {
        let detail = "Bodies are read as they are: send this one without Content-Encoding.";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "encoded", "The body is encoded", detail).before_the_body()
    }

    pub(crate) fn no_host() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "no-host",
            "The request names no host",
            "A request of HTTP/1.1 has one `Host` header, not none and not several.",
        )
    }

    pub fn foreign_host() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "foreign-host",
            "The request was meant for another host",
            "Without a key only this machine is served, under the names localhost, 127.0.0.1 and [::1], and nobody through a proxy. To be reached otherwise, make a key (`runguard key create`); a name listed in `server.hosts` is served to whoever asks for it.",
        )
        .before_the_body()
    }

    pub fn foreign_origin() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "foreign-origin",
            "A page of another site asks",
            "Without a key no web page of another origin may ask. Make a key, and send it from a server of your own.",
        )
        .before_the_body()
    }

    pub fn not_ready(title: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", title, detail).retry_after(1)
    }

    /// The caller has as much of the service as one caller gets.
    pub fn too_much_at_once(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too-much-at-once", "One caller asks too much at once", detail)
            .retry_after(1)
            .before_the_body()
    }

    pub fn too_fast(detail: impl Into<String>, seconds: u64) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too-fast", "Requests come too fast", detail).retry_after(seconds).before_the_body()
    }

    pub(crate) fn no_connection_left() -> Self {
        let detail = "As many connections are open as this service takes; those kept for health checks answer nothing else. Close idle ones, or raise `max_connections`.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "no-connection-left", "Too many connections are open", detail).retry_after(1).closing()
    }

    pub(crate) fn unreadable(status: StatusCode) -> Self {
        let (kind, title, detail) = match status {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                ("head-too-large", "The head of the request is too large", "At most 64 header fields and about 64 KiB are taken.")
            }
            StatusCode::URI_TOO_LONG => ("address-too-long", "The address is too long", "At most about 64 KiB are taken."),
            _ => (
                "unreadable",
                "This is not a request",
                "What came is not HTTP/1.1: look at the request line, the header fields and their ends.",
            ),
        };
        Self::new(status, kind, title, detail).closing()
    }

    pub(crate) fn not_tls() -> Self {
        let detail = "This port speaks TLS: begin the address with https://.";
        Self::new(StatusCode::BAD_REQUEST, "tls-needed", "A plain request to a TLS port", detail).closing()
    }

    fn before_the_body(self) -> Self {
        Self { closes: Closes::IfUnread, ..self }
    }

    fn closing(self) -> Self {
        Self { closes: Closes::Yes, ..self }
    }

    pub fn to_json(&self) -> Value {
        json!({
            "type": format!("https://runguard.invalid/problems/{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "errors": self.errors.iter().map(|error| json!({"field": error.field, "problem": error.problem})).collect::<Vec<_>>(),
        })
    }

    pub fn into_reply(self) -> Reply {
        let mut response = reply(self.status, CONTENT_TYPE, self.to_json().to_string());
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            // A 429 of a guard says `false`: there the answer stands, here the question was not heard.
            headers.insert(SHOULD_RETRY.clone(), HeaderValue::from_static("true"));
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        match self.closes {
            Closes::No => {}
            Closes::IfUnread => drop(response.extensions_mut().insert(Unread)),
            Closes::Yes => drop(headers.insert(header::CONNECTION, HeaderValue::from_static("close"))),
        }
        response
    }

    /// The whole answer as it goes over a connection that has no HTTP state any more.
    pub(crate) fn to_wire(&self) -> Vec<u8> {
        let body = self.to_json().to_string();
        let reason = self.status.canonical_reason().unwrap_or_default();
        format!(
            "HTTP/1.1 {} {reason}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.status.as_u16(),
            body.len()
        )
        .into_bytes()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        into_axum(self.into_reply())
    }
}
