//! Errors as callers see them: `application/problem+json` (RFC 9457).
//!
//! Here is the form, and what any listener has to say; a service adds the words of its own routes with [`Problem::new`].

pub mod kinds;

use crate::reply::{Reply, into_axum, reply};
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{self, HeaderName, HeaderValue};
pub use kinds::Kind;
use serde::Serialize;

pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");
static SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FieldProblem {
    pub field: String,
    pub problem: String,
}

#[derive(Debug, Clone)]
pub struct Problem {
    status: StatusCode,
    kind: &'static Kind,
    detail: String,
    errors: Vec<FieldProblem>,
    retry_after_seconds: Option<u64>,
    allow: Option<&'static str>,
    closes: Closes,
}

/// An error (RFC 9457).
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Problem"))]
pub struct ProblemBody<'a> {
    /// Where the service tells of this kind of problem.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "uri-reference")))]
    kind: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    errors: &'a [FieldProblem],
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
    pub fn new(status: StatusCode, kind: &'static Kind, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { status, kind, detail, errors: Vec::new(), retry_after_seconds: None, allow: None, closes: Closes::No }
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

    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// `index` is the address that lists the routes.
    pub fn not_found(path: &str, index: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        Self::new(StatusCode::NOT_FOUND, &kinds::NOT_FOUND, format!("No route {shown}; {index} lists them all."))
    }

    pub fn method(allow: &'static str) -> Self {
        let detail = format!("Use {allow}.");
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, &kinds::METHOD_NOT_ALLOWED, detail);
        Self { allow: Some(allow), ..problem }
    }

    /// `advice` says what to do with what does not fit.
    pub fn too_large(limit: usize, advice: &str) -> Self {
        let detail = format!("At most {limit} bytes are taken. {advice}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, &kinds::TOO_LARGE, detail).before_the_body()
    }

    pub fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, &kinds::TOO_SLOW, "The whole request must arrive within 10 seconds.").closing()
    }

    pub fn broken_body() -> Self {
        Self::new(StatusCode::BAD_REQUEST, &kinds::BROKEN_BODY, "The connection ended before the body did.").closing()
    }

    pub fn not_an_object(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, &kinds::NOT_AN_OBJECT, detail)
    }

    /// `how` says which key to send, and where to get one.
    pub fn unauthorized(how: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, &kinds::UNAUTHORIZED, how).before_the_body()
    }

    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, &kinds::FORBIDDEN, detail).before_the_body()
    }

    pub fn encoded() -> Self {
        let detail = "Bodies are read as they are: send this one without Content-Encoding.";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, &kinds::ENCODED, detail).before_the_body()
    }

    pub(crate) fn no_host() -> Self {
        Self::new(StatusCode::BAD_REQUEST, &kinds::NO_HOST, "A request of HTTP/1.1 has one `Host` header, not none and not several.")
    }

    pub fn foreign_host() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            &kinds::FOREIGN_HOST,
            "Without a key only this machine is served, under the names localhost, 127.0.0.1 and [::1], and nobody through a proxy. To be reached otherwise, make a key (`runguard key create`); a name listed in `server.hosts` is served to whoever asks for it.",
        )
        .before_the_body()
    }

    pub fn foreign_origin() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            &kinds::FOREIGN_ORIGIN,
            "Without a key no web page of another origin may ask. Make a key, and send it from a server of your own.",
        )
        .before_the_body()
    }

    pub fn not_ready(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, &kinds::NOT_READY, detail).retry_after(1)
    }

    /// The caller has as much of the service as one caller gets.
    pub fn too_much_at_once(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, &kinds::TOO_MUCH_AT_ONCE, detail).retry_after(1).before_the_body()
    }

    pub fn too_fast(detail: impl Into<String>, seconds: u64) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, &kinds::TOO_FAST, detail).retry_after(seconds).before_the_body()
    }

    pub(crate) fn no_connection_left() -> Self {
        let detail = "As many connections are open as this service takes; those kept for health checks answer nothing else. Close idle ones, or raise `max_connections`.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, &kinds::NO_CONNECTION_LEFT, detail).retry_after(1).closing()
    }

    pub(crate) fn unreadable(status: StatusCode) -> Self {
        let (kind, detail) = match status {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => (&kinds::HEAD_TOO_LARGE, "At most 64 header fields and about 64 KiB are taken."),
            StatusCode::URI_TOO_LONG => (&kinds::ADDRESS_TOO_LONG, "At most about 64 KiB are taken."),
            _ => (
                &kinds::UNREADABLE,
                "What came is not HTTP/1.1: look at the request line, the header fields, the pieces of the body, and their ends.",
            ),
        };
        Self::new(status, kind, detail).closing()
    }

    pub(crate) fn not_tls() -> Self {
        let detail = "This port speaks TLS: begin the address with https://.";
        Self::new(StatusCode::BAD_REQUEST, &kinds::TLS_NEEDED, detail).closing()
    }

    fn before_the_body(self) -> Self {
        Self { closes: Closes::IfUnread, ..self }
    }

    fn closing(self) -> Self {
        Self { closes: Closes::Yes, ..self }
    }

    fn to_json(&self) -> String {
        let body = ProblemBody {
            kind: format!("{}{}", kinds::PAGES, self.kind.code),
            title: self.kind.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            errors: &self.errors,
        };
        serde_json::to_string(&body).unwrap_or_default()
    }

    pub fn into_reply(self) -> Reply {
        let mut response = reply(self.status, CONTENT_TYPE, self.to_json());
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
        let body = self.to_json();
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
