//! The tools of any MCP server, started as a child or reached over HTTP.
//!
//! A server is somebody else's program. What it says is bounded and cleaned before the model or a terminal sees it, and
//! that it may hang, lie or die is the normal case: a dead server is noticed when it dies, the call it took with it is
//! answered with an error (and not repeated, for nobody knows how far it got), and the call after that finds a fresh
//! one. Because whatever the old one kept in memory is gone, that call's answer says so.
//!
//! Every server in use answers `initialize`, and some hang at any other first word. So it goes first, and only one that
//! refuses it is asked again in the way of the protocol of 2026-07-28, which has none.

mod http;
mod process;

use super::{Effect, Tool, ToolOutput, ToolSpec, cut};
use crate::provider::BoxFuture;
use crate::settings::McpSettings;
use process::Watch;
use rmcp::RoleClient;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig, ContentBlock, Implementation, JsonObject,
    PaginatedRequestParams, ProtocolVersion, ResourceContents,
};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt, Peer, RunningService, ServiceError};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use runguard_http::client::causes;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

/// One message from a server.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Tools of one server.
const MAX_TOOLS: usize = 512;
/// Pages of its list.
const MAX_PAGES: usize = 128;
/// Names shown when the wanted one is not among them.
const SHOWN_NAMES: usize = 40;
const MAX_NAME_BYTES: usize = 64;
/// Of an answer that makes no sense.
const MAX_SHOWN_BYTES: usize = 500;
const MAX_DESCRIPTION_BYTES: usize = 2000;
/// A longer schema is left out: it would be paid for at every step.
const MAX_SCHEMA_BYTES: usize = 128 << 10;
/// What of a result reaches the loop, which cuts further.
const MAX_RESULT_BYTES: usize = 1 << 20;
/// The longest an orderly end may take before it becomes the other one.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(8);

/// A server and its tools. It lives until [`close`](Self::close), or until this and all of its tools are dropped; its
/// process does not outlive it.
#[derive(Debug)]
pub struct McpServer {
    server: Arc<Server>,
    tools: Vec<Arc<dyn Tool>>,
}

impl McpServer {
    /// Starts or reaches the server and asks for its tools, all within `start_timeout`.
    pub async fn connect(settings: &McpSettings) -> Result<Self, String> {
        let deadline = deadline(settings);
        let link = Link::open(settings, deadline).await?;
        let found = match timeout_at(deadline, list(&link, settings)).await {
            Ok(found) => found,
            Err(_) => Err(link.explain(&format!("it did not list its tools within {} s", settings.start_timeout.as_seconds()))),
        };
        let found = match found {
            Ok(found) => found,
            Err(problem) => {
                link.close().await;
                return Err(format!("MCP server '{}': {problem}", settings.name));
            }
        };
        let server = Arc::new(Server { settings: settings.clone(), state: Mutex::new(State::Open(Arc::new(link))) });
        let names = names(&settings.name, &found);
        let tools = found
            .into_iter()
            .zip(names)
            .map(|(tool, name)| {
                let spec = spec(&settings.name, name, &tool);
                Arc::new(McpTool { spec, remote_name: tool.name.into_owned(), server: Arc::clone(&server) }) as Arc<dyn Tool>
            })
            .collect();
        Ok(Self { server, tools })
    }

    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        self.tools.clone()
    }

    /// Ends the connection, and the process if there is one: first by closing its input, then by signals. Calls after
    /// this are refused.
    pub async fn close(&self) {
        let state = std::mem::replace(&mut *self.server.state.lock().await, State::Closed);
        match state {
            State::Open(link) => link.close().await,
            State::Lost(_) | State::Closed => {}
        }
    }
}

fn deadline(settings: &McpSettings) -> Instant {
    Instant::now() + Duration::from_millis(settings.start_timeout.as_millis())
}

/// What the tools of one server share.
#[derive(Debug)]
struct Server {
    settings: McpSettings,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Open(Arc<Link>),
    /// It ended, for this reason, and is not up again.
    Lost(String),
    Closed,
}

impl Server {
    /// The connection, made again if it has ended; with what the model must know in that case.
    async fn link(&self) -> Result<(Arc<Link>, Option<String>), String> {
        let mut state = self.state.lock().await;
        let why = match &*state {
            State::Open(link) if link.is_usable() => return Ok((Arc::clone(link), None)),
            State::Open(link) => link.why(),
            State::Lost(why) => why.clone(),
            State::Closed => return Err(format!("the MCP server '{}' has been closed", self.settings.name)),
        };
        *state = State::Lost(why.clone());
        let link = Arc::new(Link::open(&self.settings, deadline(&self.settings)).await?);
        *state = State::Open(Arc::clone(&link));
        let (name, again) = (&self.settings.name, self.again());
        let note =
            format!("[the MCP server '{name}' had been lost ({why}) and was {again} for this call: what it kept in memory is gone]\n");
        Ok((link, Some(note)))
    }

    fn again(&self) -> &'static str {
        if self.settings.url.is_some() { "connected to again" } else { "started again" }
    }

    async fn call(&self, tool: &str, arguments: JsonObject) -> ToolOutput {
        let request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let (mut link, mut note) = match self.link().await {
            Ok(found) => found,
            Err(problem) => return ToolOutput::error(problem),
        };
        let mut answer = link.peer.call_tool_once(request.clone()).await;
        if let (Err(ServiceError::TransportSend(_)), Some(watch)) = (&answer, &link.watch) {
            // The pipe was closed before the request was through: it was not heard, and may be said once more.
            watch.settle().await;
            link.is_broken.store(true, Ordering::Release);
            (link, note) = match self.link().await {
                Ok(found) => found,
                Err(problem) => return ToolOutput::error(problem),
            };
            answer = link.peer.call_tool_once(request).await;
        }
        let name = &self.settings.name;
        let output = match answer {
            Ok(CallToolResponse::Complete(result)) => render(result),
            Ok(CallToolResponse::InputRequired(_)) => {
                ToolOutput::error(format!("the MCP server '{name}' wants to ask a person before it goes on, which is not possible here"))
            }
            Err(ServiceError::McpError(error)) => {
                // A server that was started anew does not know our session, and not all say so with 404.
                if link.watch.is_none() && error.code.0 == -32000 && error.message.to_ascii_lowercase().contains("session") {
                    link.is_broken.store(true, Ordering::Release);
                }
                let data = error.data.as_ref().map(|data| format!("\n{data}")).unwrap_or_default();
                ToolOutput::error(format!("the MCP server '{name}' refused the call: {} (code {}){data}", error.message, error.code.0))
            }
            Ok(_) | Err(ServiceError::UnexpectedResponse) => ToolOutput::error(format!(
                "the MCP server '{name}' answered with something that is not the result of a tool; whether the call had an effect is not known"
            )),
            Err(error) if link.is_lost(&error) => {
                link.is_broken.store(true, Ordering::Release);
                let what = link.explain(&link.lost(&error));
                ToolOutput::error(format!(
                    "the MCP server '{name}' was lost during the call: {what}\nWhether the call had an effect is not known. For the next call it is {}.",
                    self.again()
                ))
            }
            Err(error) => ToolOutput::error(format!("the MCP server '{name}' did not answer: {}", chain(&error))),
        };
        let (text, _) = cut(note.unwrap_or_default() + &output.text, MAX_RESULT_BYTES);
        ToolOutput { text, ..output }
    }
}

/// One connection, from its start to its end.
#[derive(Debug)]
struct Link {
    peer: Peer<RoleClient>,
    service: Mutex<RunningService<RoleClient, ClientConfig>>,
    /// Of a server that is our child.
    watch: Option<Arc<Watch>>,
    cut_off: http::CutOff,
    is_broken: AtomicBool,
}

impl Drop for Link {
    fn drop(&mut self) {
        // The task that owns the process would end it in order, but may never run again.
        if let Some(watch) = &self.watch {
            watch.kill();
        }
    }
}

impl Link {
    async fn open(settings: &McpSettings, deadline: Instant) -> Result<Self, String> {
        match Self::attempt(settings, deadline, ClientLifecycleMode::Initialize).await {
            Err(Refusal::Unknown(_)) => {
                let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
                Self::attempt(settings, deadline, ClientLifecycleMode::Discover { preferred_versions }).await
            }
            first => first,
        }
        .map_err(|refusal| match refusal {
            Refusal::Unknown(problem) | Refusal::Final(problem) => format!("MCP server '{}': {problem}", settings.name),
            Refusal::Worded(problem) => problem,
        })
    }

    async fn attempt(settings: &McpSettings, deadline: Instant, lifecycle: ClientLifecycleMode) -> Result<Self, Refusal> {
        let version = match &lifecycle {
            ClientLifecycleMode::Initialize => ProtocolVersion::LATEST_WITH_INITIALIZE,
            _ => ProtocolVersion::V_2026_07_28,
        };
        let us = ClientConfig::new(ClientCapabilities::default(), Implementation::new("runguard-agent", env!("CARGO_PKG_VERSION")))
            .with_protocol_version(version);
        let (started, watch, cut_off) = if let Some(url) = &settings.url {
            let (transport, cut_off) = http::transport(settings, url).map_err(Refusal::Worded)?;
            (timeout_at(deadline, us.serve_with_lifecycle(transport, lifecycle)).await, None, cut_off)
        } else {
            let pipes = process::Pipes::spawn(settings).map_err(Refusal::Worded)?;
            let watch = pipes.watch();
            (timeout_at(deadline, us.serve_with_lifecycle(pipes, lifecycle)).await, Some(watch), http::CutOff::default())
        };
        let said = |problem: &str| explain(problem, watch.as_deref());
        match started {
            Ok(Ok(service)) => {
                Ok(Self { peer: service.peer().clone(), service: Mutex::new(service), watch, cut_off, is_broken: AtomicBool::new(false) })
            }
            Ok(Err(ClientInitializeError::JsonRpcError(error))) => {
                Err(Refusal::Unknown(said(&format!("it refused to begin: {} (code {})", clean(&error.message), error.code.0))))
            }
            Ok(Err(ClientInitializeError::ConnectionClosed(_))) => {
                let why = watch.as_ref().and_then(|watch| watch.end()).unwrap_or_else(|| "the connection was closed".to_owned());
                Err(Refusal::Final(said(&format!("{why} before it answered: does its command run by itself?"))))
            }
            Ok(Err(ClientInitializeError::TransportError { error, .. })) => {
                let address = settings.url.as_deref().map(|url| format!(" (is a server running at {url}?)")).unwrap_or_default();
                let text = chain(error.error.as_ref());
                // An answer from there says itself what is wrong.
                let address = if text.contains("HTTP ") { String::new() } else { address };
                Err(Refusal::Final(said(&format!("it could not be reached: {text}{address}"))))
            }
            Ok(Err(error)) => {
                let (text, _) = cut(clean(&chain(&error)), MAX_SHOWN_BYTES);
                Err(Refusal::Final(said(&format!("it answered otherwise than an MCP server does: {text}"))))
            }
            Err(_) => {
                let seconds = settings.start_timeout.as_seconds();
                let check = if watch.is_some() {
                    "does it speak MCP over its standard input and output (some need an argument such as `stdio`)? does it load packages at its first start (then raise `start_timeout`)?"
                } else {
                    "is `url` the address of a streamable HTTP endpoint, with its path?"
                };
                Err(Refusal::Final(said(&format!("it did not answer within {seconds} s: {check}"))))
            }
        }
    }

    fn is_usable(&self) -> bool {
        let has_ended = self.watch.as_ref().is_some_and(|watch| watch.has_ended());
        !has_ended && !self.is_broken.load(Ordering::Acquire) && !self.peer.is_transport_closed()
    }

    fn why(&self) -> String {
        self.watch.as_ref().and_then(|watch| watch.end()).unwrap_or_else(|| "the connection broke".to_owned())
    }

    /// Whether the error means that this connection is of no further use.
    fn is_lost(&self, error: &ServiceError) -> bool {
        match error {
            ServiceError::TransportClosed => true,
            // Over HTTP a request can fail alone: an answer with a bad status has come over a good connection.
            ServiceError::TransportSend(error) => {
                let http = error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>();
                self.watch.is_some() || !matches!(http, Some(StreamableHttpError::UnexpectedServerResponse(_)))
            }
            _ => false,
        }
    }

    fn lost(&self, error: &ServiceError) -> String {
        match (error, self.watch.as_ref().and_then(|watch| watch.end()).or_else(|| self.cut_off.get().cloned())) {
            (_, Some(why)) => why,
            (ServiceError::TransportSend(error), None) => chain(error.error.as_ref()),
            (ServiceError::TransportClosed, None) => "the connection broke off".to_owned(),
            (error, None) => chain(error),
        }
    }

    fn explain(&self, problem: &str) -> String {
        explain(problem, self.watch.as_deref())
    }

    async fn close(&self) {
        // Whether the end was orderly makes no difference: what is left of it is killed.
        let _ = self.service.lock().await.close_with_timeout(CLOSE_TIMEOUT).await;
        if let Some(watch) = &self.watch {
            watch.kill();
        }
    }
}

/// Why a connection was not made.
enum Refusal {
    /// It does not know how we began.
    Unknown(String),
    Final(String),
    /// As `Final`, and names the server already.
    Worded(String),
}

fn explain(problem: &str, watch: Option<&Watch>) -> String {
    match watch.map(Watch::last_words) {
        Some(words) if !words.is_empty() => format!("{problem}\nIts last lines:\n{words}"),
        Some(_) | None => problem.to_owned(),
    }
}

/// An error with all that caused it, each said once.
fn chain(error: &(dyn Error + 'static)) -> String {
    let (text, causes) = (error.to_string(), causes(error));
    if causes.is_empty() || text.contains(&causes) { text } else { format!("{text}: {causes}") }
}

/// The tools that are wanted, from all pages of the server's list.
async fn list(link: &Link, settings: &McpSettings) -> Result<Vec<rmcp::model::Tool>, String> {
    let wanted: Option<HashSet<&str>> = settings.allow.as_ref().map(|names| names.iter().map(String::as_str).collect());
    let mut tools = Vec::new();
    let mut seen: HashSet<String> = HashSet::new();
    let mut shown = Vec::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let page = link.peer.list_tools(Some(PaginatedRequestParams::default().with_cursor(cursor))).await;
        let page = page.map_err(|error| match error {
            ServiceError::McpError(error) => link.explain(&format!("it refused to list its tools: {}", clean(&error.message))),
            ServiceError::UnexpectedResponse => link.explain("it answered `tools/list` with something that is not a list of tools"),
            error => link.explain(&format!("it was lost while it listed its tools: {}", link.lost(&error))),
        })?;
        for tool in page.tools {
            let is_wanted = wanted.as_ref().is_none_or(|wanted| wanted.contains(tool.name.as_ref()));
            if shown.len() < SHOWN_NAMES {
                shown.push(clean(&tool.name).chars().take(MAX_NAME_BYTES).collect::<String>());
            }
            // A name that comes twice is the same tool: the server itself knows it by nothing else.
            if is_wanted && seen.insert(tool.name.to_string()) {
                tools.push(tool);
            }
            if tools.len() > MAX_TOOLS {
                return Err(format!("it has more than {MAX_TOOLS} tools: name those you need in `allow`"));
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            if let Some(missing) = settings.allow.iter().flatten().find(|name| !seen.contains(*name)) {
                let all = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
                return Err(format!("`allow` names '{missing}', which it does not have; there are: {all}"));
            }
            return Ok(tools);
        }
    }
    Err(format!("its list of tools does not end (more than {MAX_PAGES} pages)"))
}

/// The names the model sees: valid for every provider, and no two alike.
fn names(server: &str, tools: &[rmcp::model::Tool]) -> Vec<String> {
    let full: Vec<String> = tools.iter().map(|tool| format!("{server}_{}", tool.name)).collect();
    let plain: Vec<String> = full.iter().map(|name| valid(name)).collect();
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for name in &plain {
        *uses.entry(name).or_default() += 1;
    }
    let mut taken: HashSet<String> = HashSet::new();
    let mut names = Vec::new();
    for (full, plain) in full.iter().zip(&plain) {
        // The one that needed no change keeps its name; its doubles are told apart by what they were.
        let is_free = plain.len() <= MAX_NAME_BYTES && (plain == full || uses[plain.as_str()] == 1);
        let mut name = if is_free { plain.clone() } else { String::new() };
        let mut salt = 0;
        while name.is_empty() || taken.contains(&name) {
            let hash = xxh3_64(format!("{full}{salt}").as_bytes());
            let suffix = format!("_{:08x}", hash as u32);
            name = format!("{}{suffix}", &plain[..plain.len().min(MAX_NAME_BYTES - suffix.len())]);
            salt += 1;
        }
        taken.insert(name.clone());
        names.push(name);
    }
    names
}

fn valid(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() || letter == '_' || letter == '-' { letter } else { '_' }).collect()
}

fn spec(server: &str, name: String, tool: &rmcp::model::Tool) -> ToolSpec {
    let mut description = clean(tool.description.as_deref().unwrap_or_default()).trim().to_owned();
    if description.is_empty() {
        description = clean(&format!("{} (a tool of the MCP server '{server}')", tool.title.as_deref().unwrap_or(&tool.name)));
    }
    let (mut description, _) = cut(description, MAX_DESCRIPTION_BYTES);
    let is_object = tool.input_schema.get("type").is_none_or(|kind| kind == "object");
    let is_short = serde_json::to_vec(&*tool.input_schema).is_ok_and(|text| text.len() <= MAX_SCHEMA_BYTES);
    let input_schema = if is_object && is_short {
        let mut schema = (*tool.input_schema).clone();
        schema.entry("type").or_insert_with(|| json!("object"));
        Value::Object(schema)
    } else {
        if !is_short {
            description.push_str("\n(The schema of its arguments is too long to be shown.)");
        }
        // Arguments are an object on the wire, whatever the schema says: anything goes in, and the server judges.
        json!({ "type": "object", "properties": {}, "additionalProperties": true })
    };
    let effect = match tool.annotations.as_ref().and_then(|annotations| annotations.read_only_hint) {
        Some(true) => Effect::ReadOnly,
        Some(false) => Effect::Changes,
        None => Effect::Unknown,
    };
    ToolSpec { name, description, input_schema, effect, parallel: effect == Effect::ReadOnly }
}

/// Without what would move a cursor, ring a bell, or hide words from a reader: control characters, marks that turn the
/// direction of writing, and the invisible tag letters.
fn clean(text: &str) -> String {
    text.chars()
        .filter(|letter| {
            let is_hidden = matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
            !is_hidden && (!letter.is_control() || matches!(letter, '\n' | '\t'))
        })
        .collect()
}

/// `$NAME` and `${NAME}` from the environment; `$$` is a dollar.
fn expand(value: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        if let Some(further) = after.strip_prefix('$') {
            text.push('$');
            rest = further;
            continue;
        }
        let (name, further) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(braced) => braced,
            None => after.split_at(after.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(after.len())),
        };
        if name.is_empty() || name.starts_with(|letter: char| letter.is_ascii_digit()) {
            text.push('$');
            rest = after;
            continue;
        }
        let found =
            std::env::var(name).map_err(|_| format!("needs the environment variable {name}, which is not set (write $$ for a dollar)"))?;
        text.push_str(&found);
        rest = further;
    }
    text.push_str(rest);
    Ok(text)
}

/// A result as text: what the model can read, and a line for what it cannot.
fn render(result: CallToolResult) -> ToolOutput {
    let mut parts = Vec::new();
    let mut has_text = false;
    for block in result.content {
        let (part, is_text) = match block {
            ContentBlock::Text(text) => (text.text, true),
            ContentBlock::Image(image) => (format!("[image, {}, {} bytes]", clean(&image.mime_type), decoded_bytes(&image.data)), false),
            ContentBlock::Audio(audio) => (format!("[audio, {}, {} bytes]", clean(&audio.mime_type), decoded_bytes(&audio.data)), false),
            ContentBlock::Resource(embedded) => match embedded.resource {
                ResourceContents::TextResourceContents { text, .. } => (text, true),
                ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                    let kind = mime_type.map(|kind| format!("{}, ", clean(&kind))).unwrap_or_default();
                    (format!("[resource {}, {kind}{} bytes]", clean(&uri), decoded_bytes(&blob)), false)
                }
                _ => ("[a resource of a kind that is not known here]".to_owned(), false),
            },
            ContentBlock::ResourceLink(link) => (link.uri, false),
            _ => ("[content of a kind that is not known here]".to_owned(), false),
        };
        has_text |= is_text && !part.is_empty();
        parts.push(part);
    }
    if !has_text && let Some(structured) = result.structured_content {
        parts.push(structured.to_string());
    }
    let mut text = parts.join("\n");
    if text.is_empty() {
        "(the tool gave no output)".clone_into(&mut text);
    }
    ToolOutput { text, is_error: result.is_error == Some(true) }
}

fn decoded_bytes(base64: &str) -> usize {
    let digits = base64.trim_end_matches('=').len();
    digits * 3 / 4
}

#[derive(Debug)]
struct McpTool {
    spec: ToolSpec,
    remote_name: String,
    server: Arc<Server>,
}

impl Tool for McpTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(&'a self, arguments: &'a Value, cancel: &'a CancellationToken) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let Value::Object(arguments) = arguments else {
                return ToolOutput::error("the arguments must be a JSON object");
            };
            tokio::select! {
                biased;
                // Letting go of the call tells the server with `notifications/cancelled`, here and when the loop drops us.
                () = cancel.cancelled() => ToolOutput::error(format!(
                    "cancelled: the MCP server '{}' was told to stop; what it had done by then stays done",
                    self.server.settings.name
                )),
                output = self.server.call(&self.remote_name, arguments.clone()) => output,
            }
        })
    }
}
