//! A server at a URL: each question is a request of its own, answered with JSON or with events.
//!
//! An answer has a bound, a redirect stays with its host (the headers hold keys), and TLS names its cryptography instead of
//! hoping that somebody has installed one. A stream that breaks off is taken up where it was, if the server said where that is.

use super::message::{Object, STATELESS, ServerMessage, Unanswered, given_up, question};
use super::{McpSettings, chain, cut, expand, too_long};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use runguard_http::client::{WithoutCertificates, trust_system};
use runguard_http::events::{Event, ResumePoint, Splitter};
use serde_json::Value;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 5;
/// Attempts to take up a stream that broke, before its caller is told.
const STREAM_RETRIES: u32 = 3;
/// Before the first of them, unless the server names a longer one; twice as long before each further one.
const STREAM_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_STREAM_PAUSE: Duration = Duration::from_secs(30);
/// For what nobody waits for.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct Endpoint(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    http: reqwest::Client,
    url: reqwest::Url,
    headers: HeaderMap,
    next: AtomicU64,
    /// As the server named it in its first answer.
    session: OnceLock<HeaderValue>,
    /// What was agreed upon, once it was.
    version: OnceLock<HeaderValue>,
    is_stateless: bool,
}

impl Endpoint {
    pub(super) fn new(settings: &McpSettings, url: &str, is_stateless: bool) -> Result<Self, String> {
        let name = &settings.name;
        let url = reqwest::Url::parse(url).map_err(|problem| format!("MCP server '{name}': `url` '{url}' is not a URL: {problem}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("MCP server '{name}': `url` must begin with http:// or https://"));
        }
        let mut headers = HeaderMap::new();
        for (header, value) in &settings.headers {
            let at = format!("MCP server '{name}': `headers.{header}`");
            let value = expand(value).map_err(|problem| format!("{at} {problem}"))?;
            let header = HeaderName::try_from(header.as_str()).map_err(|_| format!("{at} is not the name of a header"))?;
            // The value may be a key: it is not repeated.
            let mut value = HeaderValue::try_from(value).map_err(|_| format!("{at} has a character that a header cannot carry"))?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        let http = client(&url).map_err(|problem| format!("MCP server '{name}': {problem}"))?;
        let version = OnceLock::new();
        if is_stateless {
            let _ = version.set(HeaderValue::from_static(STATELESS));
        }
        Ok(Self(Arc::new(Shared { http, url, headers, next: AtomicU64::new(0), session: OnceLock::new(), version, is_stateless })))
    }

    /// From now on this protocol is spoken.
    pub(super) fn agree(&self, version: &'static str) {
        let _ = self.0.version.set(HeaderValue::from_static(version));
    }

    /// Asks, with what of it belongs into headers where the protocol has no session.
    pub(super) async fn ask(&self, method: &str, params: Object, as_headers: &[(String, String)]) -> Result<Value, Unanswered> {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let mut call = Call { endpoint: self, id, is_open: !self.0.is_stateless };
        let mut extra = HeaderMap::new();
        if self.0.is_stateless {
            let name = params.get("name").and_then(Value::as_str).filter(|_| method == "tools/call");
            let standard = [("mcp-method", method), ("mcp-name", name.unwrap_or_default())];
            let standard = standard.iter().filter(|(_, value)| !value.is_empty()).copied();
            for (header, value) in standard.chain(as_headers.iter().map(|(header, value)| (&**header, &**value))) {
                if let (Ok(header), Ok(value)) = (HeaderName::try_from(header), HeaderValue::try_from(&*carried(value))) {
                    extra.insert(header, value);
                }
            }
        }
        let answer = self.answer(id, &question(id, method, params), extra).await;
        call.is_open = false;
        answer
    }

    async fn answer(&self, id: u64, message: &Value, extra: HeaderMap) -> Result<Value, Unanswered> {
        let is_known = self.0.session.get().is_some();
        let lost = |problem: reqwest::Error| Unanswered::Lost(chain(&problem));
        let response = self.request(Method::POST).headers(extra).body(message.to_string()).send().await.map_err(lost)?;
        let status = response.status();
        if let Some(session) = response.headers().get("mcp-session-id") {
            self.0.session.get_or_init(|| session.clone());
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if status.is_success() && content_type.starts_with("text/event-stream") {
            return self.follow(id, response).await;
        }
        let is_json = content_type.starts_with("application/json");
        let body = read(response).await?;
        let is_unknown = status == StatusCode::NOT_FOUND && is_known;
        if is_json && !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            for said in ServerMessage::read(&body) {
                match said {
                    // Who says why our question is refused, and does not speak of the session, has read it.
                    ServerMessage::Answer(Some(to), Err(refused)) if is_unknown && to == id && !refused.is_about_session() => {
                        return Err(Unanswered::Refused(refused));
                    }
                    ServerMessage::Answer(to, Ok(result)) if status.is_success() && to.is_none_or(|to| to == id) => return Ok(result),
                    ServerMessage::Answer(to, Err(refused)) if !is_unknown && to.is_none_or(|to| to == id) => {
                        return Err(Unanswered::Refused(refused));
                    }
                    ServerMessage::Question(reply) => self.tell(&reply).await,
                    ServerMessage::Unreadable(_) if status.is_success() => return Err(Unanswered::Unreadable),
                    ServerMessage::Answer(..) | ServerMessage::Unreadable(_) | ServerMessage::Notice => {}
                }
            }
        }
        let (shown, _) = cut(super::clean(&String::from_utf8_lossy(&body)), super::MAX_SHOWN_BYTES);
        let advice = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (it wants other credentials: see `headers`)",
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => " (is the path in `url` right?)",
            _ if status.is_redirection() => " (put the address it points to in `url`)",
            _ if status.is_success() => " (that is no MCP message: is the path in `url` right?)",
            _ => "",
        };
        let said = format!("HTTP {status}{advice}: {}", shown.trim());
        Err(if is_unknown { Unanswered::Unheard(said) } else { Unanswered::Failed(said) })
    }

    /// Reads events up to the answer.
    async fn follow(&self, id: u64, mut response: reqwest::Response) -> Result<Value, Unanswered> {
        let (mut place, mut pause, mut breaks) = (None, STREAM_PAUSE, 0);
        loop {
            let mut events = Splitter::of(super::MAX_MESSAGE_BYTES);
            let broken = loop {
                match response.chunk().await {
                    Ok(Some(bytes)) => events.push(&bytes).map_err(|_| Unanswered::Lost(too_long()))?,
                    Ok(None) => break "the connection broke off".to_owned(),
                    Err(problem) => break chain(&problem),
                }
                while let Some(event) = events.next() {
                    let at = ResumePoint::read(&event);
                    place = at.id.map(Cow::into_owned).or(place);
                    pause = at.pause.map_or(pause, |told| told.clamp(STREAM_PAUSE, LONGEST_STREAM_PAUSE));
                    if let Some(answer) = self.heard(id, &event).await {
                        return answer;
                    }
                    breaks = 0;
                }
            };
            response = loop {
                let Some(place) = place.as_ref().filter(|_| breaks < STREAM_RETRIES) else { return Err(Unanswered::Lost(broken)) };
                sleep(pause * 2_u32.pow(breaks)).await;
                breaks += 1;
                match self.request(Method::GET).header("last-event-id", place).send().await {
                    Ok(response) if response.status().is_success() => break response,
                    Ok(_) | Err(_) => {}
                }
            };
        }
    }

    /// The answer, if it is in the event; a question of the server is answered on the way.
    async fn heard(&self, id: u64, event: &[u8]) -> Option<Result<Value, Unanswered>> {
        let mut answered = None;
        for said in ServerMessage::read(Event::read(event)?.data.as_bytes()) {
            match said {
                ServerMessage::Answer(to, answer) if to.is_none_or(|to| to == id) => answered = Some(answer.map_err(Unanswered::Refused)),
                ServerMessage::Unreadable(to) if to.is_none_or(|to| to == id) => answered = answered.or(Some(Err(Unanswered::Unreadable))),
                ServerMessage::Question(reply) => self.tell(&reply).await,
                ServerMessage::Answer(..) | ServerMessage::Unreadable(_) | ServerMessage::Notice => {}
            }
        }
        answered
    }

    /// Says what needs no answer; that it does not arrive changes nothing.
    pub(super) async fn tell(&self, message: &Value) {
        let _ = timeout(NOTICE_TIMEOUT, self.request(Method::POST).body(message.to_string()).send()).await;
    }

    /// Lets the server forget us.
    pub(super) async fn close(&self) {
        if self.0.session.get().is_some() {
            let _ = timeout(NOTICE_TIMEOUT, self.request(Method::DELETE).send()).await;
        }
    }

    fn request(&self, method: Method) -> reqwest::RequestBuilder {
        let mut request = self.0.http.request(method.clone(), self.0.url.clone()).headers(self.0.headers.clone());
        if method == Method::GET {
            request = request.header(ACCEPT, "text/event-stream");
        } else {
            request = request.header(ACCEPT, "application/json, text/event-stream").header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in [("mcp-session-id", self.0.session.get()), ("mcp-protocol-version", self.0.version.get())] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request
    }
}

/// A question under way. Where there is no session its end is seen by the end of its request.
struct Call<'a> {
    endpoint: &'a Endpoint,
    id: u64,
    is_open: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.is_open
            && let Ok(runtime) = Handle::try_current()
        {
            let (endpoint, id) = (self.endpoint.clone(), self.id);
            runtime.spawn(async move { endpoint.tell(&given_up(id)).await });
        }
    }
}

/// A text as a header can carry it.
fn carried(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~')) && text.trim_matches(' ').len() == text.len();
    if is_plain && !text.starts_with("=?base64?") {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("=?base64?{}?=", BASE64_STANDARD.encode(text)))
}

fn client(url: &reqwest::Url) -> Result<reqwest::Client, String> {
    let tls = trust_system(WithoutCertificates::for_scheme(url.scheme()))?;
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::custom(|attempt| {
            // 307 and 308 keep the message; any other would lose it.
            let keeps_message = matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
            let same_origin = attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
            if keeps_message && same_origin && attempt.previous().len() <= MAX_REDIRECTS { attempt.follow() } else { attempt.stop() }
        }))
        .build()
        .map_err(|problem| format!("the HTTP client cannot be made: {problem}"))
}

async fn read(mut response: reqwest::Response) -> Result<Vec<u8>, Unanswered> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|problem| Unanswered::Lost(chain(&problem)))? {
        if body.len() + chunk.len() > super::MAX_MESSAGE_BYTES {
            return Err(Unanswered::Lost(too_long()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
