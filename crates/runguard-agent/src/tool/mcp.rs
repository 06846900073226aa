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
mod message;
mod process;

use super::{Effect, Tool, ToolOutput, ToolSpec, cut};
use crate::provider::BoxFuture;
use crate::settings::McpSettings;
use http::Endpoint;
use message::{INITIALIZED, Listed, Object, STATELESS, Unanswered};
use process::{Process, Watch};
use runguard_http::client::causes;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
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
/// How long a server that answers 404 in a fresh session, too, is believed to mean the call and not the session.
const BETWEEN_SESSIONS: Duration = Duration::from_secs(60);
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
                Arc::new(McpTool { spec, remote_name: tool.name, server: Arc::clone(&server) }) as Arc<dyn Tool>
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

    async fn call(&self, tool: &McpTool, arguments: &Value) -> ToolOutput {
        let (mut link, mut note) = match self.link().await {
            Ok(found) => found,
            Err(problem) => return ToolOutput::error(problem),
        };
        let mut answer = link.call(tool, arguments).await;
        if let Err(Unanswered::Unheard(_)) = &answer
            && !link.was_begun_in_vain()
        {
            if let Some(watch) = link.watch() {
                watch.settle().await;
            }
            link.is_broken.store(true, Ordering::Release);
            (link, note) = match self.link().await {
                Ok(found) => found,
                Err(problem) => return ToolOutput::error(problem),
            };
            answer = link.call(tool, arguments).await;
            if let Err(Unanswered::Unheard(_)) = &answer {
                link.note_in_vain();
            }
        }
        let name = &self.settings.name;
        let no_result = || {
            ToolOutput::error(format!(
                "the MCP server '{name}' answered with something that is not the result of a tool; whether the call had an effect is not known"
            ))
        };
        let output = match answer {
            Ok(result) if result.get("resultType").is_some_and(|kind| kind == "input_required") => {
                ToolOutput::error(format!("the MCP server '{name}' wants to ask a person before it goes on, which is not possible here"))
            }
            Ok(result) => render(&result).unwrap_or_else(no_result),
            Err(Unanswered::Unreadable) => no_result(),
            Err(Unanswered::Refused(error)) => {
                if link.watch().is_none() && error.code == -32000 && error.is_about_session() {
                    link.is_broken.store(true, Ordering::Release);
                }
                let data = error.data.as_ref().map(|data| format!("\n{data}")).unwrap_or_default();
                ToolOutput::error(format!("the MCP server '{name}' refused the call: {} (code {}){data}", error.message, error.code))
            }
            // The session is as new as can be: it is not what is unknown there.
            Err(Unanswered::Unheard(why)) if link.was_begun_in_vain() => {
                ToolOutput::error(format!("the MCP server '{name}' did not take the call, also in a session that had just begun: {why}"))
            }
            Err(Unanswered::Lost(why) | Unanswered::Unheard(why)) => {
                link.is_broken.store(true, Ordering::Release);
                let what = link.explain(&why);
                ToolOutput::error(format!(
                    "the MCP server '{name}' was lost during the call: {what}\nWhether the call had an effect is not known. For the next call it is {}.",
                    self.again()
                ))
            }
            Err(Unanswered::Failed(why)) => ToolOutput::error(format!("the MCP server '{name}' did not answer: {why}")),
        };
        let (text, _) = cut(note.unwrap_or_default() + &output.text, MAX_RESULT_BYTES);
        ToolOutput { text, ..output }
    }
}

/// One connection, from its start to its end.
#[derive(Debug)]
struct Link {
    wire: Wire,
    /// There was no `initialize`: each question says what it goes by.
    is_stateless: bool,
    is_broken: AtomicBool,
    /// When its first call was not heard either.
    in_vain: OnceLock<Instant>,
}

#[derive(Debug)]
enum Wire {
    Process(Process),
    Http(Endpoint),
}

impl Drop for Link {
    fn drop(&mut self) {
        // The task that owns the process would end it in order, but may never run again.
        if let Some(watch) = self.watch() {
            watch.kill();
        }
    }
}

impl Link {
    async fn open(settings: &McpSettings, deadline: Instant) -> Result<Self, String> {
        match Self::attempt(settings, deadline, false).await {
            Err(Refusal::Unknown(_)) => Self::attempt(settings, deadline, true).await,
            first => first,
        }
        .map_err(|refusal| match refusal {
            Refusal::Unknown(problem) | Refusal::Final(problem) => format!("MCP server '{}': {problem}", settings.name),
            Refusal::Worded(problem) => problem,
        })
    }

    async fn attempt(settings: &McpSettings, deadline: Instant, is_stateless: bool) -> Result<Self, Refusal> {
        let wire = match &settings.url {
            Some(url) => Wire::Http(Endpoint::new(settings, url, is_stateless).map_err(Refusal::Worded)?),
            None => Wire::Process(Process::spawn(settings).map_err(Refusal::Worded)?),
        };
        let link = Self { wire, is_stateless, is_broken: AtomicBool::new(false), in_vain: OnceLock::new() };
        let said = |problem: &str| link.explain(problem);
        match timeout_at(deadline, link.begin()).await {
            Ok(Ok(())) => Ok(link),
            Ok(Err(Unready::Otherwise(text))) => {
                let (text, _) = cut(clean(&text), MAX_SHOWN_BYTES);
                Err(Refusal::Final(said(&format!("it answered otherwise than an MCP server does: {text}"))))
            }
            Ok(Err(Unready::Unanswered(Unanswered::Unreadable))) => {
                Err(Refusal::Final(said("it answered otherwise than an MCP server does: its first answer cannot be read")))
            }
            Ok(Err(Unready::Unanswered(Unanswered::Refused(error)))) => {
                Err(Refusal::Unknown(said(&format!("it refused to begin: {} (code {})", clean(&error.message), error.code))))
            }
            Ok(Err(Unready::Unanswered(Unanswered::Lost(why) | Unanswered::Unheard(why) | Unanswered::Failed(why)))) => {
                Err(Refusal::Final(said(&match (link.watch(), &settings.url) {
                    (Some(watch), _) => {
                        watch.settle().await;
                        format!("{} before it answered: does its command run by itself?", watch.end().unwrap_or(why))
                    }
                    // An answer from there says itself what is wrong.
                    (None, Some(url)) if !why.contains("HTTP ") => {
                        format!("it could not be reached: {why} (is a server running at {url}?)")
                    }
                    (None, _) => format!("it could not be reached: {why}"),
                })))
            }
            Err(_) => {
                let seconds = settings.start_timeout.as_seconds();
                let check = if link.watch().is_some() {
                    "does it speak MCP over its standard input and output (some need an argument such as `stdio`)? does it load packages at its first start (then raise `start_timeout`)?"
                } else {
                    "is `url` the address of a streamable HTTP endpoint, with its path?"
                };
                Err(Refusal::Final(said(&format!("it did not answer within {seconds} s: {check}"))))
            }
        }
    }

    /// The first words: what both sides go by.
    async fn begin(&self) -> Result<(), Unready> {
        if self.is_stateless {
            let known = self.ask("server/discover", Object::new(), &[]).await?;
            let versions = known.get("supportedVersions").and_then(Value::as_array);
            let is_ours = versions.is_some_and(|versions| versions.iter().any(|version| version == STATELESS));
            return if is_ours { Ok(()) } else { Err(Unready::Otherwise(format!("it does not know the protocol {STATELESS}: {known}"))) };
        }
        let params = object([("protocolVersion", json!(INITIALIZED[0])), ("capabilities", json!({})), ("clientInfo", message::us())]);
        let agreed = self.ask("initialize", params, &[]).await?;
        let version = agreed.get("protocolVersion").and_then(Value::as_str);
        let Some(version) = INITIALIZED.into_iter().find(|known| Some(*known) == version) else {
            return Err(Unready::Otherwise(agreed.to_string()));
        };
        let begun = message::notice("notifications/initialized", json!({}));
        match &self.wire {
            Wire::Process(process) => process.tell(&begun),
            Wire::Http(endpoint) => {
                endpoint.agree(version);
                endpoint.tell(&begun).await;
            }
        }
        Ok(())
    }

    async fn ask(&self, method: &str, mut params: Object, as_headers: &[(String, String)]) -> Result<Value, Unanswered> {
        if self.is_stateless {
            params.insert("_meta".to_owned(), message::context());
        }
        match &self.wire {
            Wire::Process(process) => process.ask(method, params).await,
            Wire::Http(endpoint) => endpoint.ask(method, params, as_headers).await,
        }
    }

    async fn call(&self, tool: &McpTool, arguments: &Value) -> Result<Value, Unanswered> {
        let mut as_headers = Vec::new();
        if self.is_stateless {
            message::as_headers(&tool.spec.input_schema, arguments, &mut as_headers);
        }
        let params = object([("name", json!(tool.remote_name)), ("arguments", arguments.clone())]);
        self.ask("tools/call", params, &as_headers).await
    }

    /// Of a server that is our child.
    fn watch(&self) -> Option<&Watch> {
        match &self.wire {
            Wire::Process(process) => Some(&process.watch),
            Wire::Http(_) => None,
        }
    }

    /// A session that was begun because one was unknown, and is said to be unknown as well: for a while that is no reason for another.
    fn note_in_vain(&self) {
        if self.watch().is_none() {
            let _ = self.in_vain.set(Instant::now());
        }
    }

    fn was_begun_in_vain(&self) -> bool {
        self.in_vain.get().is_some_and(|at| at.elapsed() < BETWEEN_SESSIONS)
    }

    fn is_usable(&self) -> bool {
        !self.watch().is_some_and(Watch::has_ended) && !self.is_broken.load(Ordering::Acquire)
    }

    fn why(&self) -> String {
        self.watch().and_then(Watch::end).unwrap_or_else(|| "the connection broke".to_owned())
    }

    fn explain(&self, problem: &str) -> String {
        match self.watch().map(Watch::last_words) {
            Some(words) if !words.is_empty() => format!("{problem}\nIts last lines:\n{words}"),
            Some(_) | None => problem.to_owned(),
        }
    }

    async fn close(&self) {
        // Whether the end was orderly makes no difference: what is left of it is killed.
        let _ = timeout(CLOSE_TIMEOUT, async {
            match &self.wire {
                Wire::Process(process) => process.close().await,
                Wire::Http(endpoint) => endpoint.close().await,
            }
        })
        .await;
        if let Some(watch) = self.watch() {
            watch.kill();
        }
    }
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Object {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Why nothing was agreed upon.
enum Unready {
    Unanswered(Unanswered),
    /// It answered, with this.
    Otherwise(String),
}

impl From<Unanswered> for Unready {
    fn from(unanswered: Unanswered) -> Self {
        Self::Unanswered(unanswered)
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

fn too_long() -> String {
    format!("it sent a message longer than {} MiB", MAX_MESSAGE_BYTES >> 20)
}

/// An error with all that caused it, each said once.
fn chain(error: &(dyn Error + 'static)) -> String {
    let (text, causes) = (error.to_string(), causes(error));
    if causes.is_empty() || text.contains(&causes) { text } else { format!("{text}: {causes}") }
}

/// The tools that are wanted, from all pages of the server's list.
async fn list(link: &Link, settings: &McpSettings) -> Result<Vec<Listed>, String> {
    let wanted: Option<HashSet<&str>> = settings.allow.as_ref().map(|names| names.iter().map(String::as_str).collect());
    let mut tools = Vec::new();
    let mut seen: HashSet<String> = HashSet::new();
    let mut shown = Vec::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let params = cursor.map(|cursor: String| ("cursor".to_owned(), json!(cursor))).into_iter().collect();
        let nonsense = || link.explain("it answered `tools/list` with something that is not a list of tools");
        let page = link.ask("tools/list", params, &[]).await.map_err(|unanswered| match unanswered {
            Unanswered::Unreadable => nonsense(),
            Unanswered::Refused(error) => link.explain(&format!("it refused to list its tools: {}", clean(&error.message))),
            Unanswered::Lost(why) | Unanswered::Unheard(why) | Unanswered::Failed(why) => {
                link.explain(&format!("it was lost while it listed its tools: {why}"))
            }
        })?;
        let (page, next) = message::page(page).ok_or_else(nonsense)?;
        for tool in page {
            let is_wanted = wanted.as_ref().is_none_or(|wanted| wanted.contains(tool.name.as_str()));
            if shown.len() < SHOWN_NAMES {
                shown.push(clean(&tool.name).chars().take(MAX_NAME_BYTES).collect::<String>());
            }
            // A name that comes twice is the same tool: the server itself knows it by nothing else.
            if is_wanted && seen.insert(tool.name.clone()) {
                tools.push(tool);
            }
            if tools.len() > MAX_TOOLS {
                return Err(format!("it has more than {MAX_TOOLS} tools: name those you need in `allow`"));
            }
        }
        cursor = next;
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
fn names(server: &str, tools: &[Listed]) -> Vec<String> {
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

fn spec(server: &str, name: String, tool: &Listed) -> ToolSpec {
    let mut description = clean(tool.description.as_deref().unwrap_or_default()).trim().to_owned();
    if description.is_empty() {
        description = clean(&format!("{} (a tool of the MCP server '{server}')", tool.title.as_deref().unwrap_or(&tool.name)));
    }
    let (mut description, _) = cut(description, MAX_DESCRIPTION_BYTES);
    let is_object = tool.input_schema.get("type").is_none_or(|kind| kind == "object");
    let is_short = serde_json::to_vec(&tool.input_schema).is_ok_and(|text| text.len() <= MAX_SCHEMA_BYTES);
    let input_schema = if is_object && is_short {
        let mut schema = tool.input_schema.clone();
        schema.entry("type").or_insert_with(|| json!("object"));
        Value::Object(schema)
    } else {
        if !is_short {
            description.push_str("\n(The schema of its arguments is too long to be shown.)");
        }
        // Arguments are an object on the wire, whatever the schema says: anything goes in, and the server judges.
        json!({ "type": "object", "properties": {}, "additionalProperties": true })
    };
    let effect = match tool.is_read_only {
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

/// A result as text: what the model can read, and a line for what it cannot. `None` when it is something else.
fn render(result: &Value) -> Option<ToolOutput> {
    let blocks = result.get("content").map(Value::as_array);
    let structured = result.get("structuredContent").filter(|content| !content.is_null());
    if blocks.is_none() && structured.is_none() || blocks == Some(None) {
        return None;
    }
    let mut parts = Vec::new();
    let mut has_text = false;
    for block in blocks.flatten().into_iter().flatten() {
        let (part, is_text) = part(block);
        has_text |= is_text && !part.is_empty();
        parts.push(part);
    }
    if !has_text && let Some(structured) = structured {
        parts.push(structured.to_string());
    }
    let mut text = parts.join("\n");
    if text.is_empty() {
        "(the tool gave no output)".clone_into(&mut text);
    }
    Some(ToolOutput { text, is_error: result.get("isError") == Some(&Value::Bool(true)) })
}

/// One part of a result, and whether it is text of the tool's own.
fn part(block: &Value) -> (String, bool) {
    let field = |block: &Value, name: &str| block.get(name).and_then(Value::as_str).map(str::to_owned);
    let of = |name: &str| field(block, name);
    let media = |kind: &str| Some(format!("[{kind}, {}, {} bytes]", clean(&of("mimeType")?), decoded_bytes(&of("data")?)));
    let unseen = match of("type").as_deref() {
        Some("text") => match of("text") {
            Some(text) => return (text, true),
            None => None,
        },
        Some("image") => media("image"),
        Some("audio") => media("audio"),
        Some("resource_link") => of("uri"),
        Some("resource") => {
            let resource = &block["resource"];
            match (field(resource, "text"), field(resource, "uri"), field(resource, "blob")) {
                (Some(text), ..) => return (text, true),
                (None, Some(uri), Some(blob)) => {
                    let kind = field(resource, "mimeType").map(|kind| format!("{}, ", clean(&kind))).unwrap_or_default();
                    Some(format!("[resource {}, {kind}{} bytes]", clean(&uri), decoded_bytes(&blob)))
                }
                (None, ..) => Some("[a resource of a kind that is not known here]".to_owned()),
            }
        }
        Some(_) | None => None,
    };
    (unseen.unwrap_or_else(|| "[content of a kind that is not known here]".to_owned()), false)
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
            if !arguments.is_object() {
                return ToolOutput::error("the arguments must be a JSON object");
            }
            tokio::select! {
                biased;
                // Letting go of the call tells the server with `notifications/cancelled`, here and when the loop drops us.
                () = cancel.cancelled() => ToolOutput::error(format!(
                    "cancelled: the MCP server '{}' was told to stop; what it had done by then stays done",
                    self.server.settings.name
                )),
                output = self.server.call(self, arguments) => output,
            }
        })
    }
}
