//! One HTTP exchange with a provider, and every way it can go wrong.
//!
//! Nothing is waited for without an end: a connection, the head of the answer, the next byte and the answer as a whole have
//! their own limits. What providers say about failures is read here and nowhere else, because they say it alike.

use super::{ErrorKind, ProviderError};
use crate::settings::{ProviderKind, ProviderSettings};
use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{StatusCode, Url};
use runguard_core::time::Span;
use runguard_http::again::retry_after;
use runguard_http::client::{WithoutCertificates, causes, trust_system};
use serde_json::Value;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, timeout, timeout_at};

/// What is read of a refusal.
const MOST_ERROR_BYTES: usize = 64 * 1024;
/// What is shown of one that is not understood.
const MOST_SHOWN_CHARS: usize = 300;
/// The longest answer that comes in one piece.
const MOST_JSON_BYTES: usize = 32 * 1024 * 1024;
/// The longest stream: frames of empty events count too.
const MOST_STREAM_BYTES: usize = 256 * 1024 * 1024;
/// How long a connection is worth waiting for after the answer's end.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);
/// What "no limit" is: time spans can be added to it.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    head_timeout: Duration,
    idle_timeout: Duration,
    request_timeout: Duration,
    /// Where the key comes from, for people.
    key_source: String,
}

impl Http {
    pub(super) fn new(settings: &ProviderSettings) -> Result<Self, String> {
        let base = settings.base_url.as_deref().map(parse_base).transpose()?;
        let tls = trust_system(WithoutCertificates::for_scheme(base.as_ref().map_or("https", Url::scheme)))?;
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .connect_timeout(duration(settings.connect_timeout))
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("runguard-agent/", env!("CARGO_PKG_VERSION")));
        if base.as_ref().is_some_and(is_this_machine) {
            // No proxy knows this machine by this name.
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|problem| format!("cannot set up the HTTP client: {}", whole(&problem)))?;
        let idle_timeout = duration(settings.idle_timeout);
        let request_timeout = duration(settings.request_timeout);
        Ok(Self {
            client,
            // An answer that is not streamed has its head only when it is whole: until then silence says nothing.
            head_timeout: if settings.streaming { idle_timeout } else { request_timeout },
            idle_timeout,
            request_timeout,
            key_source: key_source(settings),
        })
    }

    /// Posts a question and waits for the head of the answer.
    pub(super) async fn post(&self, url: &Url, headers: &HeaderMap, body: Vec<u8>) -> Result<Body, ProviderError> {
        let built = self.client.post(url.clone()).headers(headers.clone()).body(body).build();
        let request = built.map_err(|problem| ProviderError::new(ErrorKind::Rejected, format!("cannot make the request: {problem}")))?;
        self.send(request).await
    }

    /// Sends the request and waits for the head of the answer. An answer that is no success is an error.
    pub(super) async fn send(&self, request: reqwest::Request) -> Result<Body, ProviderError> {
        let place = request.url().origin().ascii_serialization();
        let start = Instant::now();
        let deadline = start + self.request_timeout;
        let response = match timeout_at(deadline.min(start + self.head_timeout), self.client.execute(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(problem)) if problem.is_connect() => {
                let text = format!("cannot connect to {place}: {}; check `provider.base_url` and that it is running", whole(&problem));
                return Err(ProviderError::new(ErrorKind::Unreachable, text));
            }
            Ok(Err(problem)) => {
                let text = format!("{place} closed the connection without a proper answer: {}", whole(&problem));
                return Err(ProviderError::new(ErrorKind::Cut, text));
            }
            Err(_) => {
                let waited = start.elapsed().as_millis();
                let text = format!(
                    "{place} did not begin to answer within {waited} ms; a slow model needs a longer `provider.idle_timeout` or `provider.request_timeout`"
                );
                return Err(ProviderError::new(ErrorKind::Timeout, text));
            }
        };
        let body = Body { response, place, idle_timeout: self.idle_timeout, deadline, read_bytes: 0 };
        if body.response.status().is_success() { Ok(body) } else { Err(self.refusal(body).await) }
    }

    async fn refusal(&self, mut body: Body) -> ProviderError {
        let status = body.response.status();
        let retry_after = retry_after(|name| body.header(name), SystemTime::now());
        let mut text = Vec::new();
        // What has come by then is enough: the status already says most of it.
        let _ = timeout(self.idle_timeout, async {
            while let Ok(Some(piece)) = body.chunk().await {
                text.extend_from_slice(&piece[..piece.len().min(MOST_ERROR_BYTES - text.len())]);
                if text.len() == MOST_ERROR_BYTES {
                    break;
                }
            }
        })
        .await;
        let complaint = Complaint::read(&text);
        let kind = complaint.kind(status.as_u16());
        let reason = status.canonical_reason().map(|reason| format!(" {reason}")).unwrap_or_default();
        let said = if complaint.message.is_empty() { String::new() } else { format!(": {}", complaint.message) };
        let advice = self.advice(kind, status, &body);
        ProviderError { kind, message: format!("{} answered {}{reason}{said} ({advice})", body.place, status.as_u16()), retry_after }
    }

    fn advice(&self, kind: ErrorKind, status: StatusCode, body: &Body) -> String {
        match kind {
            ErrorKind::Unauthorised => self.key_source.clone(),
            ErrorKind::NoCredit => "add credit at the provider, or use another one".to_owned(),
            ErrorKind::ContextTooLong => "set `context.window` below the model's window".to_owned(),
            ErrorKind::RateLimited => "wait, or ask the provider for a higher limit".to_owned(),
            ErrorKind::Overloaded | ErrorKind::Timeout => "the provider is in trouble: try again later".to_owned(),
            ErrorKind::Rejected if status.is_redirection() => {
                let target = body.header("location").map(shown).unwrap_or_default();
                format!("redirects are not followed, they would carry the key elsewhere; it points to {target}: check `provider.base_url`")
            }
            ErrorKind::Rejected if status == StatusCode::NOT_FOUND => "check `provider.base_url` and `provider.model`".to_owned(),
            ErrorKind::Rejected | ErrorKind::Unreachable | ErrorKind::Cut | ErrorKind::Malformed | ErrorKind::Endless => {
                "the same request will be refused again: check `provider.model` and `provider.extra`".to_owned()
            }
        }
    }
}

/// The answer to a request that was accepted.
#[derive(Debug)]
pub(super) struct Body {
    response: reqwest::Response,
    place: String,
    idle_timeout: Duration,
    deadline: Instant,
    read_bytes: usize,
}

impl Body {
    /// The next bytes; `None` at the end of the body, which may not be the end of the answer.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, ProviderError> {
        let idle_end = Instant::now() + self.idle_timeout;
        // Asked first, because a stream that always has a byte ready never lets a timer through.
        if Instant::now() >= self.deadline {
            return Err(self.late());
        }
        match timeout_at(self.deadline.min(idle_end), self.response.chunk()).await {
            Ok(Ok(piece)) => {
                self.read_bytes += piece.as_ref().map_or(0, Bytes::len);
                if self.read_bytes > MOST_STREAM_BYTES {
                    return Err(self.endless(MOST_STREAM_BYTES));
                }
                Ok(piece)
            }
            Ok(Err(problem)) => {
                let text = format!("{} broke the answer off: {}", self.place, whole(&problem));
                Err(ProviderError::new(ErrorKind::Cut, text))
            }
            Err(_) if idle_end < self.deadline => {
                let text =
                    format!("{} fell silent for {} ms in mid-answer (`provider.idle_timeout`)", self.place, self.idle_timeout.as_millis());
                Err(ProviderError::new(ErrorKind::Timeout, text))
            }
            Err(_) => Err(self.late()),
        }
    }

    /// Reads to the end of the body, if it is at hand: only then can the connection be used again.
    pub(super) async fn drain(mut self) {
        let _ = timeout(DRAIN_TIMEOUT, async { while let Ok(Some(_)) = self.chunk().await {} }).await;
    }

    /// The whole body as one value.
    pub(super) async fn json(mut self) -> Result<Value, ProviderError> {
        let mut whole = Vec::new();
        while let Some(piece) = self.chunk().await? {
            if whole.len() + piece.len() > MOST_JSON_BYTES {
                return Err(self.endless(MOST_JSON_BYTES));
            }
            whole.extend_from_slice(&piece);
        }
        serde_json::from_slice(&whole).map_err(|problem| self.malformed(&format!("no JSON ({problem})"), &whole))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the answer has this media type, such as `json` or `html`.
    pub(super) fn is_type(&self, name: &str) -> bool {
        let media_type = self.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default();
        media_type.to_ascii_lowercase().contains(name)
    }

    /// An answer that cannot be understood; `what` says what it is instead.
    pub(super) fn malformed(&self, what: &str, text: &[u8]) -> ProviderError {
        let beginning = shown(&String::from_utf8_lossy(&text[..text.len().min(4 * MOST_SHOWN_CHARS)]));
        let quoted = if beginning.is_empty() { beginning } else { format!(": {beginning}") };
        ProviderError::new(ErrorKind::Malformed, format!("{} answered with {what}{quoted} (check `provider.base_url`)", self.place))
    }

    /// The body ended, and the answer had not.
    pub(super) fn cut(&self) -> ProviderError {
        let text = format!("{} ended the stream before the answer was whole ({} bytes had come)", self.place, self.read_bytes);
        ProviderError::new(ErrorKind::Cut, text)
    }

    fn late(&self) -> ProviderError {
        let text = format!("the answer of {} was not whole in time (`provider.request_timeout`)", self.place);
        ProviderError::new(ErrorKind::Timeout, text)
    }

    fn endless(&self, most: usize) -> ProviderError {
        ProviderError::new(ErrorKind::Endless, format!("the answer of {} is longer than {most} bytes: it was closed", self.place))
    }
}

/// A failure told in the middle of a stream that began well, or in the body of a success.
pub(super) fn told_error(value: &Value) -> ProviderError {
    let complaint = Complaint::of(value);
    let kind = complaint.kind(complaint.status());
    let message = if complaint.message.is_empty() { shown(&value.to_string()) } else { complaint.message };
    ProviderError::new(kind, format!("the provider broke off: {message}"))
}

/// What a provider says went wrong.
struct Complaint {
    message: String,
    /// Its `type`.
    kind: String,
    code: String,
}

impl Complaint {
    fn read(body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(value) => {
                let complaint = Self::of(&value);
                if complaint.message.is_empty() { Self { message: shown(&value.to_string()), ..complaint } } else { complaint }
            }
            Err(_) => Self { message: shown(&String::from_utf8_lossy(body)), kind: String::new(), code: String::new() },
        }
    }

    /// `{"error": {"message"}}`, `{"error": "text"}`, `{"message"}`, each perhaps in a list.
    fn of(value: &Value) -> Self {
        let value = value.get(0).unwrap_or(value);
        let error = value.get("error").filter(|error| !error.is_null()).unwrap_or(value);
        let label = |name: &str| match error.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        let message = error.as_str().or_else(|| error.get("message")?.as_str()).or_else(|| value.get("message")?.as_str());
        Self { message: shown(message.unwrap_or_default()), kind: label("type"), code: label("code") }
    }

    fn has_label(&self, names: &[&str]) -> bool {
        names.iter().any(|name| *name == self.kind || *name == self.code)
    }

    fn says(&self, phrases: &[&str]) -> bool {
        let message = self.message.to_ascii_lowercase();
        phrases.iter().any(|phrase| message.contains(phrase))
    }

    /// The status it would have had as an answer of its own.
    fn status(&self) -> u16 {
        const NAMES: [(u16, &[&str]); 8] = [
            (429, &["rate_limit_error", "rate_limit_exceeded", "insufficient_quota"]),
            (401, &["authentication_error", "invalid_api_key"]),
            (403, &["permission_error"]),
            (402, &["billing_error"]),
            (404, &["not_found_error"]),
            (413, &["request_too_large"]),
            (408, &["timeout_error"]),
            (400, &["invalid_request_error", "BadRequestError", "context_length_exceeded"]),
        ];
        let by_number = self.code.parse().ok().filter(|status| (400..600).contains(status));
        by_number.or_else(|| NAMES.iter().find(|(_, names)| self.has_label(names)).map(|(status, _)| *status)).unwrap_or(500)
    }

    fn kind(&self, status: u16) -> ErrorKind {
        match status {
            429 if self.has_label(&["insufficient_quota"]) => ErrorKind::NoCredit,
            429 => ErrorKind::RateLimited,
            408 => ErrorKind::Timeout,
            409 | 425 | 500..=599 => ErrorKind::Overloaded,
            401 | 403 => ErrorKind::Unauthorised,
            402 => ErrorKind::NoCredit,
            400 | 413 | 422 if self.is_too_long() => ErrorKind::ContextTooLong,
            400 if self.says(&["credit balance is too low"]) => ErrorKind::NoCredit,
            _ => ErrorKind::Rejected,
        }
    }

    fn is_too_long(&self) -> bool {
        self.has_label(&["context_length_exceeded", "exceed_context_size_error"])
            || self.says(&["context_length_exceeded", "prompt is too long", "maximum context length", "input is too long"])
            || self.says(&["exceeds the available context size", "context window"])
    }
}

/// The settings' address, or what is wrong with it.
pub(super) fn parse_base(base: &str) -> Result<Url, String> {
    let url = Url::parse(base).map_err(|problem| format!("`provider.base_url` is no address: {problem}; write it like https://host/v1"))?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        Ok(url)
    } else {
        Err(format!("`provider.base_url` must begin with https:// or http://, and not with {}:", url.scheme()))
    }
}

/// `path` below the address, whose query stays.
pub(super) fn below(base: &str, path: &str) -> Result<Url, String> {
    let mut url = parse_base(base)?;
    let whole = format!("{}{path}", url.path().trim_end_matches('/'));
    url.set_path(&whole);
    Ok(url)
}

fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn key_source(settings: &ProviderSettings) -> String {
    let variable = match (&settings.api_key_env, settings.kind) {
        (Some(name), _) if name.is_empty() => {
            return "no key was sent: set `provider.api_key_env` to the variable that holds it".to_owned();
        }
        (Some(name), _) => name.as_str(),
        (None, ProviderKind::Openai) => "OPENAI_API_KEY",
        (None, ProviderKind::Anthropic) => "ANTHROPIC_API_KEY",
        (None, ProviderKind::Bedrock | ProviderKind::Scripted) => {
            return "check the AWS credentials, their region, and that they may use this model".to_owned();
        }
    };
    format!("the key comes from {variable}: check that it is right and may use this model")
}

/// A span of the settings; zero is no limit.
fn duration(span: Span) -> Duration {
    if span == Span::ZERO { A_YEAR } else { Duration::from_millis(span.as_millis()).min(A_YEAR) }
}

fn whole(problem: &reqwest::Error) -> String {
    let causes = causes(problem);
    if causes.is_empty() { "the exchange failed".to_owned() } else { causes }
}

/// Fit for one line of a terminal.
fn shown(text: &str) -> String {
    let clean = text.split(|letter: char| letter.is_whitespace() || letter.is_control()).filter(|word| !word.is_empty());
    let mut line = String::new();
    for word in clean {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > 4 * MOST_SHOWN_CHARS {
            break;
        }
    }
    match line.char_indices().nth(MOST_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream::repeat_with;
    use std::convert::Infallible;

    /// A body that always has a piece ready.
    fn endless_body(deadline: Instant) -> Body {
        let pieces = repeat_with(|| Ok::<_, Infallible>(Bytes::from(vec![b' '; 1024 * 1024])));
        let response = reqwest::Response::from(::http::Response::new(reqwest::Body::wrap_stream(pieces)));
        Body { response, place: "http://here".to_owned(), idle_timeout: A_YEAR, deadline, read_bytes: 0 }
    }

    #[tokio::test]
    async fn a_body_that_is_always_ready_still_has_a_deadline() {
        let error = endless_body(Instant::now()).chunk().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Timeout);
    }

    #[tokio::test]
    async fn a_body_has_a_bound_in_one_piece_and_another_as_a_stream() {
        let error = endless_body(Instant::now() + A_YEAR).json().await.unwrap_err();
        assert_eq!((error.kind, error.message.contains("33554432")), (ErrorKind::Endless, true));
        let mut body = endless_body(Instant::now() + A_YEAR);
        for _ in 0..256 {
            body.chunk().await.unwrap();
        }
        assert_eq!(body.chunk().await.unwrap_err().kind, ErrorKind::Endless);
    }

    #[test]
    fn zero_is_no_limit_and_nothing_overflows_a_clock() {
        assert_eq!(duration(Span::ZERO), A_YEAR);
        assert_eq!(duration(Span::from_millis(u64::MAX)), A_YEAR);
        assert_eq!(duration(Span::from_millis(7)), Duration::from_millis(7));
    }

    #[test]
    fn only_this_machine_is_reached_without_a_proxy() {
        let is_near = |url: &str| is_this_machine(&Url::parse(url).unwrap());
        assert!(["http://localhost:1/v1", "http://127.0.0.1", "http://127.9.9.9", "http://[::1]:2"].into_iter().all(is_near));
        assert!(!["http://localhost.evil.com", "https://api.openai.com", "http://10.0.0.1"].into_iter().any(is_near));
    }
}
