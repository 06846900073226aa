//! A server at a URL.
//!
//! The protocol's client reads a JSON answer to its end however long it is, and follows what the server says about
//! redirects. Here an answer has a bound, a redirect stays with its host (the headers hold keys), and TLS names its
//! cryptography instead of hoping that somebody has installed one.

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransport, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse,
};
use runguard_http::client::{WithoutCertificates, trust_system};
use sse_stream::{Sse, SseStream};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{McpSettings, cut, expand};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 5;
/// Attempts to take up a stream that broke, before its callers are told.
const STREAM_RETRIES: usize = 3;

type HttpError = StreamableHttpError<reqwest::Error>;

/// Why a stream was cut off, for its caller is told only that it was.
pub(super) type CutOff = Arc<OnceLock<String>>;

pub(super) fn transport(settings: &McpSettings, url: &str) -> Result<(StreamableHttpClientTransport<Client>, CutOff), String> {
    let name = &settings.name;
    let parsed = reqwest::Url::parse(url).map_err(|problem| format!("MCP server '{name}': `url` '{url}' is not a URL: {problem}"))?;
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(format!("MCP server '{name}': `url` must begin with http:// or https://"));
    }
    let mut headers = HashMap::new();
    for (header, value) in &settings.headers {
        let at = format!("MCP server '{name}': `headers.{header}`");
        let value = expand(value).map_err(|problem| format!("{at} {problem}"))?;
        let header = HeaderName::try_from(header.as_str()).map_err(|_| format!("{at} is not the name of a header"))?;
        // The value may be a key: it is not repeated.
        let mut value = HeaderValue::try_from(value).map_err(|_| format!("{at} has a character that a header cannot carry"))?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    let mut backoff = ExponentialBackoff::default();
    backoff.max_times = Some(STREAM_RETRIES);
    backoff.base_duration = Duration::from_millis(200);
    let mut config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(headers)
        .max_sse_event_size(super::MAX_MESSAGE_BYTES)
        .reinit_on_expired_session(true);
    config.retry_config = Arc::new(backoff);
    let client = client(&parsed).map_err(|problem| format!("MCP server '{name}': {problem}"))?;
    let cut_off = CutOff::default();
    let client = Client { http: client, cut_off: Arc::clone(&cut_off) };
    Ok((StreamableHttpClientTransport::with_client(client, config), cut_off))
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

#[derive(Debug, Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    cut_off: CutOff,
}

impl StreamableHttpClient for Client {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let mut request = self
            .http
            .post(uri.as_ref())
            .headers(custom_headers.into_iter().collect())
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&message)?);
        if let Some(session) = &session_id {
            request = request.header("mcp-session-id", session.as_ref());
        }
        let response = request.send().await?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let header = |name| response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::to_owned);
        let content_type = header("content-type");
        let session = header("mcp-session-id");
        let is = |kind: &str| content_type.as_deref().is_some_and(|text| text.starts_with(kind));
        if status.is_success() && is("text/event-stream") {
            return Ok(StreamableHttpPostResponse::Sse(events(response, Arc::clone(&self.cut_off)), session));
        }
        let wants_answer = matches!(message, JsonRpcMessage::Request(_));
        let is_json = is("application/json");
        let body = read(response).await?;
        if status.is_success() && !wants_answer {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if is_json && !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
                Ok(answer) if status.is_success() => return Ok(StreamableHttpPostResponse::Json(answer, session)),
                Ok(JsonRpcMessage::Error(mut refused)) => {
                    // A refusal before the message was understood has no id, and would find no caller.
                    if let JsonRpcMessage::Request(request) = &message {
                        refused.id = Some(request.id.clone());
                    }
                    return Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(refused), session));
                }
                Ok(_) | Err(_) => {}
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
        Err(StreamableHttpError::UnexpectedServerResponse(format!("HTTP {status}{advice}: {}", shown.trim()).into()))
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        let most = super::MAX_MESSAGE_BYTES;
        self.http.get_stream_with_max_sse_event_size(uri, session_id, last_event_id, auth_header, custom_headers, most).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpError> {
        self.http.delete_session(uri, session_id, auth_header, custom_headers).await
    }
}

fn too_long() -> io::Error {
    io::Error::other(format!("it sent a message longer than {} MiB", super::MAX_MESSAGE_BYTES >> 20))
}

async fn read(mut response: reqwest::Response) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > super::MAX_MESSAGE_BYTES {
            return Err(StreamableHttpError::Io(too_long()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The events of an answer, none longer than a message may be.
fn events(response: reqwest::Response, cut_off: CutOff) -> BoxStream<'static, Result<Sse, SseError>> {
    let since_event = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&since_event);
    let bytes = response.bytes_stream().map_err(io::Error::other).and_then(move |chunk| {
        let total = count.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len();
        let is_too_long = total > super::MAX_MESSAGE_BYTES;
        if is_too_long {
            cut_off.get_or_init(|| too_long().to_string());
        }
        std::future::ready(if is_too_long { Err(too_long()) } else { Ok(chunk) })
    });
    SseStream::from_bytes_stream(bytes).inspect(move |_| since_event.store(0, Ordering::Relaxed)).boxed()
}
