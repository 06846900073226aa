//! The HTTP door over real sockets: a real loop and real session files behind it, only the model is scripted.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use runguard_agent::provider::BoxFuture;
use runguard_agent::provider::scripted::{AtEnd, Script, Scripted, ScriptedCall, ScriptedReply};
use runguard_agent::serve::{AgentServer, ServeError};
use runguard_agent::session::disk::SessionFolder;
use runguard_agent::tool::{Effect, Tool, ToolOutput, ToolSet, ToolSpec};
use runguard_agent::{Agent, AgentState, Settings};
use runguard_http::ListenError;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

// A server.

#[derive(Debug)]
struct Note(ToolSpec);

impl Note {
    fn new() -> Self {
        let input_schema = json!({ "type": "object", "properties": { "about": { "type": "string" } } });
        let (name, description) = ("note".to_owned(), "Writes a note.".to_owned());
        Self(ToolSpec { name, description, input_schema, effect: Effect::Changes, parallel: false })
    }
}

impl Tool for Note {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn call<'a>(&'a self, arguments: &'a Value, _: &'a CancellationToken) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            assert_ne!(arguments["about"], "a fault", "a tool with a fault, as the test wants it");
            ToolOutput::ok(format!("noted: {arguments}"))
        })
    }
}

fn says(text: &str) -> ScriptedReply {
    ScriptedReply { text: text.to_owned(), ..ScriptedReply::default() }
}

/// Says the words one by one, with time between.
fn says_slowly(words: usize, word_ms: u64) -> ScriptedReply {
    ScriptedReply { word_ms, ..says(&"word ".repeat(words)) }
}

fn notes(about: &str) -> ScriptedReply {
    ScriptedReply { calls: vec![ScriptedCall { name: "note".to_owned(), arguments: json!({ "about": about }) }], ..says("Noting. ") }
}

fn forever() -> ScriptedReply {
    says_slowly(2000, 60_000)
}

struct Server {
    address: SocketAddr,
    model: Arc<Scripted>,
    folder: SessionFolder,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
    _files: tempfile::TempDir,
}

impl Server {
    async fn start(replies: Vec<ScriptedReply>) -> Self {
        Self::start_with(replies, |_| {}).await
    }

    async fn start_with(replies: Vec<ScriptedReply>, change: impl FnOnce(&mut Settings)) -> Self {
        let files = tempfile::tempdir().unwrap();
        let mut settings = settings();
        settings.sessions.folder = files.path().join("sessions");
        change(&mut settings);
        let folder = SessionFolder::open(&settings.sessions).unwrap();
        let model = Arc::new(Scripted::new(Script { reply: replies, at_end: AtEnd::StartOver, ..Script::default() }));
        let server = bind(settings, model.clone(), folder.clone()).await.unwrap();
        let address = server.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { address, model, folder, stop: Some(stop), serving, _files: files }
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Stream {
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        for (name, value) in headers.iter().filter(|(name, value)| *name != "host" || !value.is_empty()) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(body).await.unwrap();
        Stream::open(socket).await
    }

    async fn call(&self, method: &str, path: &str, body: &[u8]) -> Heard {
        self.send(method, path, &[], body).await.whole().await
    }

    async fn get(&self, path: &str) -> Heard {
        self.call("GET", path, b"").await
    }

    async fn post(&self, path: &str, body: Value) -> Heard {
        self.call("POST", path, body.to_string().as_bytes()).await
    }

    /// A run, and its events as they come.
    async fn follow(&self, path: &str, body: Value) -> Stream {
        let stream = self.send("POST", path, &[], body.to_string().as_bytes()).await;
        assert_eq!(stream.status, 200);
        assert!(stream.head.contains("content-type: text/event-stream"), "{}", stream.head);
        stream
    }

    async fn run(&self, body: Value) -> Vec<Event> {
        self.follow("/v1/agent/runs", body).await.events().await
    }

    /// Asks until the run is as wanted.
    async fn wait_for(&self, id: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let shown = self.get(&format!("/v1/agent/runs/{id}")).await.json();
            if is_wanted(&shown) {
                return shown;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{shown}");
        }
    }
}

fn settings() -> Settings {
    let text = r#"
        [provider]
        kind = "scripted"
        model = "scripted"
        script = "given"
        [prices.scripted]
        input = 1.0
        output = 2.0
        [serve]
        listen = "127.0.0.1:0"
        key_env = "A_VARIABLE_NOBODY_SETS"
    "#;
    Settings::from_toml(text).unwrap()
}

async fn bind(settings: Settings, model: Arc<Scripted>, folder: SessionFolder) -> Result<AgentServer, ServeError> {
    let mut tools = ToolSet::new();
    tools.add(Arc::new(Note::new())).unwrap();
    AgentServer::bind(Arc::new(Agent::with_parts(settings, model, tools).unwrap()), folder).await
}

// A client.

struct Heard {
    status: u16,
    head: String,
    body: String,
}

impl Heard {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}: {}", self.status, self.body))
    }

    /// A problem in our form, with this status and kind.
    fn problem(&self, status: u16, kind: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        assert!(self.head.contains("content-type: application/problem+json"), "{}", self.head);
        let problem = self.json();
        assert_eq!((problem["status"].as_u64(), problem["type"].as_str().unwrap().rsplit('/').next()), (Some(status.into()), Some(kind)));
        problem
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Event {
    id: Option<u64>,
    name: String,
    data: Value,
}

struct Stream {
    status: u16,
    head: String,
    is_chunked: bool,
    socket: BufReader<TcpStream>,
    read: String,
}

impl Stream {
    async fn open(socket: TcpStream) -> Self {
        let mut socket = BufReader::new(socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(socket.read_line(&mut head).await.unwrap(), 0, "the connection ended within the head: {head}");
        }
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, is_chunked: head.contains("transfer-encoding: chunked"), head, socket, read: String::new() }
    }

    /// Reads one more chunk; false at the end.
    async fn more(&mut self) -> bool {
        let mut bytes = Vec::new();
        if self.is_chunked {
            let mut size = String::new();
            self.socket.read_line(&mut size).await.unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            bytes.resize(size + 2, 0);
            self.socket.read_exact(&mut bytes).await.unwrap();
            bytes.truncate(size);
        } else {
            self.socket.read_to_end(&mut bytes).await.unwrap();
        }
        self.read.push_str(std::str::from_utf8(&bytes).unwrap());
        !bytes.is_empty()
    }

    async fn whole(mut self) -> Heard {
        while self.more().await {}
        Heard { status: self.status, head: self.head, body: self.read }
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, _)) = self.read.split_once("\n\n") {
                let used = block.len() + 2;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned));
                let id = field("id").map(|id| id.parse().unwrap());
                let event = field("event").map(|name| Event { id, name, data: serde_json::from_str(&field("data").unwrap()).unwrap() });
                self.read.drain(..used);
                match event {
                    Some(event) => {
                        assert_eq!(event.data["event"], event.name);
                        return Some(event);
                    }
                    None => continue,
                }
            }
            if !self.more().await {
                assert_eq!(self.read, "", "half an event");
                return None;
            }
        }
    }

    async fn until(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("no {name}"));
            if event.name == name {
                return event;
            }
        }
    }

    async fn events(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

fn ids(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|event| event.id).collect()
}

fn said(events: &[Event]) -> String {
    events.iter().filter_map(|event| event.data["text"].as_str().filter(|_| event.name == "chunk")).collect()
}

/// What holds for every whole stream: one end, at the end, and one finished chunk for every stream of the model.
fn check_whole(events: &[Event]) -> &Value {
    let ends: Vec<usize> = (0..events.len()).filter(|at| events[*at].name == "ended").collect();
    assert_eq!(ends, [events.len() - 1], "{events:#?}");
    let chunks = || events.iter().filter(|event| event.name == "chunk").map(|event| &event.data);
    let mut streams: Vec<u64> = chunks().map(|chunk| chunk["stream"].as_u64().unwrap()).collect();
    streams.dedup();
    for stream in &streams {
        let of_it: Vec<bool> = chunks().filter(|chunk| chunk["stream"] == *stream).map(|chunk| chunk["finished"] == true).collect();
        assert_eq!((of_it.iter().filter(|finished| **finished).count(), of_it.last()), (1, Some(&true)));
    }
    &events.last().unwrap().data
}

fn id_of(events: &[Event]) -> String {
    events.last().unwrap().data["session"].as_str().unwrap().to_owned()
}

// Streams.

#[tokio::test]
async fn a_run_streams_to_its_end() {
    let server = Server::start(vec![notes("one"), says("All is done.")]).await;
    let events = server.run(json!({ "prompt": "Do it." })).await;
    let report = check_whole(&events);
    assert_eq!(ids(&events), (1..=events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events[0].name, "started");
    assert_eq!(said(&events), "Noting. All is done.");
    assert_eq!((&report["state"], &report["text"], &report["steps"]), (&json!("COMPLETED"), &json!("All is done."), &json!(2)));

    let id = id_of(&events);
    let shown = server.get(&format!("/v1/agent/runs/{id}")).await.json();
    assert_eq!(shown["state"], "COMPLETED");
    assert_eq!(shown["live"], false);
    assert_eq!(shown["text"], "All is done.");
    assert_eq!(shown["metadata"]["guardrails"]["counters"]["steps"], 2);
    assert_eq!(shown["report"]["cost_usd"], shown["cost_usd"]);
    assert_eq!(shown["latest_event"], events.len());
    let listed = server.get("/v1/agent/runs").await.json();
    assert_eq!(listed["runs"][0]["id"], id);
    assert_eq!(listed["runs"][0]["first_prompt"], "Do it.");
    assert_eq!(server.get("/v1/agent/runs?limit=0").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn who_comes_back_gets_each_event_exactly_once() {
    let server = Server::start(vec![says_slowly(100, 2)]).await;
    let begun = server.post("/v1/agent/runs", json!({ "prompt": "Talk.", "detach": true })).await;
    assert_eq!(begun.status, 202);
    let begun = begun.json();
    let path = begun["events"].as_str().unwrap();
    assert!(begun["cancel"].as_str().unwrap().ends_with("/cancel"));

    let mut all = Vec::new();
    let mut stream = server.send("GET", path, &[], b"").await;
    for _ in 0..10 {
        all.push(stream.next().await.unwrap());
    }
    drop(stream);
    let seen = all.last().unwrap().id.unwrap().to_string();
    all.extend(server.send("GET", path, &[("last-event-id", &seen)], b"").await.events().await);
    assert_eq!(ids(&all), (1..=all.len() as u64).collect::<Vec<_>>());
    assert_eq!(check_whole(&all)["state"], "COMPLETED");
    assert_eq!(said(&all), "word ".repeat(100));

    assert_eq!(server.send("GET", path, &[], b"").await.events().await, all);
    let last = all.len().to_string();
    assert_eq!(server.send("GET", path, &[("last-event-id", &last)], b"").await.whole().await.status, 204);
    let from_before_a_restart = server.send("GET", path, &[("last-event-id", "1000000")], b"").await.events().await;
    assert_eq!((from_before_a_restart[0].name.as_str(), &from_before_a_restart[1..]), ("lagged", &all[..]));
}

#[tokio::test]
async fn two_readers_see_the_same() {
    let server = Server::start(vec![says_slowly(50, 2)]).await;
    let begun = server.post("/v1/agent/runs", json!({ "prompt": "Talk.", "detach": true })).await.json();
    let path = begun["events"].as_str().unwrap();
    let (one, two) = (server.send("GET", path, &[], b"").await, server.send("GET", path, &[], b"").await);
    let (one, two) = tokio::join!(one.events(), two.events());
    assert_eq!(check_whole(&one)["state"], "COMPLETED");
    assert_eq!(one, two);
}

#[tokio::test]
async fn a_cancelled_run_ends_at_once_and_stays_cancelled() {
    let server = Server::start(vec![forever()]).await;
    let mut stream = server.follow("/v1/agent/runs", json!({ "prompt": "Talk." })).await;
    let id = stream.until("started").await.data["session"].as_str().unwrap().to_owned();
    stream.until("chunk").await;
    let path = format!("/v1/agent/runs/{id}/cancel");
    let cancelled = server.call("POST", &path, b"").await;
    assert_eq!((cancelled.status, &cancelled.json()["id"]), (202, &json!(id)));
    let rest = stream.events().await;
    assert_eq!(check_whole(&rest)["state"], "CANCELLED");
    let again = server.call("POST", &path, b"").await;
    assert_eq!((again.status, &again.json()["state"]), (200, &json!("CANCELLED")));
    let all = server.send("GET", &format!("/v1/agent/runs/{id}/events"), &[], b"").await.events().await;
    check_whole(&all);
}

#[tokio::test]
async fn a_run_that_nobody_reads_is_cancelled_and_can_be_resumed() {
    let server = Server::start(vec![forever(), says("Back again.")]).await;
    let mut stream = server.follow("/v1/agent/runs", json!({ "prompt": "Talk." })).await;
    let id = stream.until("started").await.data["session"].as_str().unwrap().to_owned();
    stream.until("chunk").await;
    drop(stream);
    let shown = server.wait_for(&id, |shown| shown["live"] == false).await;
    assert_eq!((&shown["state"], &shown["stop"]["reason"]), (&json!("CANCELLED"), &json!("cancelled")));
    let before = server.send("GET", &format!("/v1/agent/runs/{id}/events"), &[], b"").await.events().await;
    check_whole(&before);

    let events = server.follow(&format!("/v1/agent/runs/{id}/resume"), json!({})).await.events().await;
    assert_eq!(check_whole(&events)["state"], "COMPLETED");
    assert_eq!(said(&events), "Back again.");
    assert_eq!(events[0].id, Some(before.len() as u64 + 1), "numbers go on");
    assert_eq!(events[0].data["resumed"], true);
}

#[tokio::test]
async fn a_run_with_another_reader_goes_on_when_the_first_leaves() {
    let server = Server::start(vec![says_slowly(60, 5)]).await;
    let mut first = server.follow("/v1/agent/runs", json!({ "prompt": "Talk." })).await;
    let id = first.until("started").await.data["session"].as_str().unwrap().to_owned();
    let mut second = server.send("GET", &format!("/v1/agent/runs/{id}/events"), &[], b"").await;
    let started = second.until("started").await;
    drop(first);
    let mut all = vec![started];
    all.extend(second.events().await);
    assert_eq!(check_whole(&all)["state"], "COMPLETED");
}

#[tokio::test]
async fn a_reader_that_is_too_slow_holds_nothing_up_and_is_told_what_it_missed() {
    let server = Server::start_with(vec![says(&"a ".repeat(6000))], |settings| settings.provider.max_tokens = 10_000).await;
    // It is open and never read from: what it does not take must not stop the run.
    let stalled = server.follow("/v1/agent/runs", json!({ "prompt": "Talk." })).await;
    let id = stalled.head.split("location: /v1/agent/runs/").nth(1).and_then(|rest| rest.lines().next()).unwrap().to_owned();
    server.wait_for(&id, |shown| shown["state"] == "COMPLETED" && shown["live"] == false).await;

    let events = server.send("GET", &format!("/v1/agent/runs/{id}/events"), &[], b"").await.events().await;
    assert_eq!((events[0].name.as_str(), events[0].id), ("lagged", None));
    let kept = ids(&events);
    assert_eq!(kept.len(), 4096);
    assert_eq!((events[0].data["next"].as_u64(), events[0].data["missed"].as_u64()), (Some(kept[0]), Some(kept[0] - 1)));
    assert_eq!(kept, (kept[0]..kept[0] + 4096).collect::<Vec<_>>());
    assert_eq!(check_whole(&events)["state"], "COMPLETED");
    let late = stalled.events().await;
    assert_eq!(check_whole(&late)["state"], "COMPLETED");
}

// Sessions and limits.

#[tokio::test]
async fn a_resumed_run_goes_on_counting_up_to_the_limits_it_is_given() {
    let server = Server::start(vec![notes("one"), notes("two"), says("Done.")]).await;
    let events = server.run(json!({ "prompt": "Do it.", "limits": { "max_steps": 1 } })).await;
    let report = check_whole(&events);
    assert_eq!((&report["state"], &report["steps"]), (&json!("MAX_STEPS"), &json!(1)));
    let how = report["how_to_resume"].as_str().unwrap();
    assert!(how.ends_with("/resume with {\"limits\": {\"max_steps\": …}}, up to 50."), "{how}");
    let id = id_of(&events);
    let path = format!("/v1/agent/runs/{id}/resume");

    let same = server.follow(&path, json!({})).await.events().await;
    let report = check_whole(&same);
    assert_eq!((&report["state"], &report["steps"]), (&json!("MAX_STEPS"), &json!(1)), "the limit it was begun with still holds");

    let more = server.follow(&path, json!({ "limits": { "max_steps": 10 } })).await.events().await;
    let report = check_whole(&more);
    assert_eq!((&report["state"], &report["steps"]), (&json!("COMPLETED"), &json!(3)));
    let shown = server.get(&format!("/v1/agent/runs/{id}")).await.json();
    assert_eq!(shown["metadata"]["guardrails"]["counters"]["steps"], 3);
    assert_eq!(shown["report"]["steps"], 3);

    server.call("POST", &path, b"").await.problem(409, "nothing-to-continue");
    let beyond = server.post(&path, json!({ "prompt": "More.", "limits": { "max_steps": 51 } })).await.problem(422, "invalid-fields");
    assert_eq!(beyond["errors"][0]["field"], "limits.max_steps");
    let again = server.follow(&path, json!({ "prompt": "More.", "limits": { "max_steps": 50 } })).await.events().await;
    assert_eq!(check_whole(&again)["steps"], 6);
}

#[tokio::test]
async fn a_limit_of_the_file_is_raised_in_the_file() {
    let server = Server::start_with(vec![notes("one")], |settings| settings.limits.max_steps = 1).await;
    let events = server.run(json!({ "prompt": "Do it." })).await;
    let report = check_whole(&events);
    assert_eq!(report["state"], "MAX_STEPS");
    let how = report["how_to_resume"].as_str().unwrap();
    assert!(how.starts_with("Raise `limits.max_steps` in the settings file (it is 1) and restart; then POST "), "{how}");
    let shown = server.get(&format!("/v1/agent/runs/{}", id_of(&events))).await.json();
    assert_eq!(shown["report"]["how_to_resume"], how);
}

#[tokio::test]
async fn an_interactive_session_takes_the_next_message() {
    let server = Server::start(vec![says("Which one?"), says("That one then.")]).await;
    let events = server.run(json!({ "prompt": "Choose.", "interactive": true })).await;
    assert_eq!(check_whole(&events)["state"], "WAITING_FOR_INPUT");
    let id = id_of(&events);
    server.call("POST", &format!("/v1/agent/runs/{id}/resume"), b"").await.problem(409, "nothing-to-continue");
    let events = server.run(json!({ "prompt": "The second.", "session": id, "interactive": false })).await;
    let report = check_whole(&events);
    assert_eq!((&report["session"], &report["state"], &report["steps"]), (&json!(id), &json!("COMPLETED"), &json!(2)));
}

#[tokio::test]
async fn limits_can_be_lowered_and_not_raised() {
    let server = Server::start(vec![says("Done.")]).await;
    for (field, value) in [
        ("max_steps", json!(51)),
        ("timeout", json!("31m")),
        ("timeout", json!(0)),
        ("token_budget", json!(1_000_001)),
        ("token_budget", json!(0)),
        ("cost_limit", json!(1.5)),
        ("cost_limit", json!(0)),
        ("max_steps", json!(0)),
        ("cost_limit", json!(-1)),
    ] {
        let answer = server.post("/v1/agent/runs", json!({ "prompt": "Do it.", "limits": { field: value } })).await;
        assert_eq!(answer.problem(422, "invalid-fields")["errors"][0]["field"], format!("limits.{field}"), "{value}");
    }
    assert_eq!(server.model.asked(), 0);
    let lowered = json!({ "max_steps": 3, "timeout": "5m", "token_budget": 5000, "cost_limit": 0.5 });
    let events = server.run(json!({ "prompt": "Do it.", "limits": lowered })).await;
    assert_eq!(check_whole(&events)["state"], "COMPLETED");
    let shown = server.get(&format!("/v1/agent/runs/{}", id_of(&events))).await.json();
    assert_eq!(shown["limits"], json!({ "max_steps": 3, "timeout": 300, "token_budget": 5000, "cost_limit": 0.5 }));
    let events = server.run(json!({ "prompt": "Do it.", "limits": { "token_budget": 1 } })).await;
    assert_eq!(check_whole(&events)["state"], "BUDGET_EXCEEDED");
}

#[tokio::test]
async fn a_limit_in_dollars_that_cannot_be_kept_is_refused() {
    let unpriced = |settings: &mut Settings| {
        settings.prices.clear();
        settings.limits.cost_limit = 0.0;
    };
    let server = Server::start_with(vec![says("Done.")], unpriced).await;
    let answer = server.post("/v1/agent/runs", json!({ "prompt": "Do it.", "limits": { "cost_limit": 0.5 } })).await;
    assert_eq!(answer.problem(422, "invalid-fields")["errors"][0]["field"], "limits.cost_limit");
    assert_eq!(check_whole(&server.run(json!({ "prompt": "Do it." })).await)["state"], "COMPLETED");
}

#[tokio::test]
async fn one_run_a_session_and_so_many_at_once() {
    let server = Server::start_with(vec![forever()], |settings| settings.serve.max_runs = 2).await;
    let first = server.post("/v1/agent/runs", json!({ "prompt": "Talk.", "detach": true })).await.json();
    let id = first["id"].as_str().unwrap();
    for (path, body) in
        [(format!("/v1/agent/runs/{id}/resume"), json!({})), ("/v1/agent/runs".to_owned(), json!({ "prompt": "Talk.", "session": id }))]
    {
        let problem = server.post(&path, body).await.problem(409, "already-running");
        assert!(problem["detail"].as_str().unwrap().contains(id));
    }
    let mut second = server.follow("/v1/agent/runs", json!({ "prompt": "Talk." })).await;
    let other = second.until("started").await.data["session"].as_str().unwrap().to_owned();
    let refused = server.post("/v1/agent/runs", json!({ "prompt": "Talk." })).await;
    refused.problem(429, "too-many-runs");
    assert!(refused.head.contains("retry-after: 5"));
    server.get("/readyz").await.problem(503, "not-ready");
    assert_eq!(server.get("/healthz").await.status, 200);
    let listed = server.get("/v1/agent/runs").await.json();
    assert_eq!(listed["runs"].as_array().unwrap().iter().filter(|run| run["live"] == true).count(), 2);

    // Whoever has read the end finds the place and the session free.
    server.call("POST", &format!("/v1/agent/runs/{other}/cancel"), b"").await;
    second.events().await;
    assert_eq!(server.get("/readyz").await.json()["status"], "ready");
    let third = server.follow(&format!("/v1/agent/runs/{other}/resume"), json!({})).await;
    drop(third);
    server.wait_for(&other, |shown| shown["live"] == false).await;
}

#[tokio::test]
async fn a_session_from_before_a_restart_is_listed_shown_and_resumed() {
    let files = tempfile::tempdir().unwrap();
    let folder = files.path().join("sessions");
    let first = Server::start_with(vec![notes("one")], |settings| settings.sessions.folder.clone_from(&folder)).await;
    let id = id_of(&first.run(json!({ "prompt": "Do it.", "limits": { "max_steps": 1 } })).await);

    let second = Server::start_with(vec![says("Done.")], |settings| settings.sessions.folder.clone_from(&folder)).await;
    assert_eq!(second.get("/v1/agent/runs").await.json()["runs"][0]["state"], "MAX_STEPS");
    assert_eq!(second.get(&format!("/v1/agent/runs/{id}")).await.json()["steps"], 1);
    second.get(&format!("/v1/agent/runs/{id}/events")).await.problem(410, "events-gone");
    let path = format!("/v1/agent/runs/{id}/resume");
    let elsewhere = second.folder.resume(&id).unwrap();
    second.post(&path, json!({})).await.problem(409, "already-running");
    drop(elsewhere);
    let events = second.follow(&path, json!({ "limits": { "max_steps": 2 } })).await.events().await;
    let report = check_whole(&events);
    assert_eq!((&report["state"], &report["steps"]), (&json!("COMPLETED"), &json!(2)));
}

// Hostile callers.

#[tokio::test]
async fn what_is_wrong_with_a_request_is_named() {
    let server = Server::start(vec![says("Done.")]).await;
    let fields = |problem: Value| -> Vec<String> {
        problem["errors"].as_array().unwrap().iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect()
    };
    let wrong = json!({ "promt": "x", "limits": { "steps": 1, "max_steps": "many" }, "detach": "yes" });
    let named = fields(server.post("/v1/agent/runs", wrong).await.problem(422, "invalid-fields"));
    assert_eq!(named, ["promt", "limits.steps", "limits.max_steps", "detach", "prompt"]);
    for empty in [json!({ "prompt": "" }), json!({ "prompt": " \n" }), json!({ "prompt": null }), json!({})] {
        assert_eq!(fields(server.post("/v1/agent/runs", empty).await.problem(422, "invalid-fields")), ["prompt"]);
    }
    for body in [&b""[..], b"[]", b"{", b"\xff", b"null", &b"[".repeat(100_000)] {
        server.call("POST", "/v1/agent/runs", body).await.problem(400, "not-an-object");
    }
    for id in ["nothing", "last", "2", "..", "%2e%2e%2fetc", "%ff", "%00", "a%20b", "UPPER", &"9".repeat(1000)] {
        for (method, rest) in [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/resume")] {
            server.call(method, &format!("/v1/agent/runs/{id}{rest}"), b"").await.problem(404, "unknown");
        }
        server.post("/v1/agent/runs", json!({ "prompt": "x", "session": id })).await.problem(404, "unknown");
    }
    server.get("/v2").await.problem(404, "not-found");
    server.call("DELETE", "/v1/agent/runs", b"").await.problem(405, "method-not-allowed");
    server.get("/v1/agent/runs?limit=many").await.problem(422, "invalid-fields");
    assert_eq!(server.model.asked(), 0);
    let id = id_of(&server.run(json!({ "prompt": "Do it." })).await);
    let path = format!("/v1/agent/runs/{id}/events");
    server.send("GET", &path, &[("last-event-id", "x")], b"").await.whole().await.problem(422, "invalid-fields");
    server.get(&format!("/v1/agent/runs/{}", &id[..id.len() - 1])).await.problem(404, "unknown");
}

#[tokio::test]
async fn a_body_has_a_bound() {
    let server = Server::start(vec![says("Done.")]).await;
    let body = |bytes: usize| {
        let frame = json!({ "prompt": "" }).to_string().len();
        json!({ "prompt": "x".repeat(bytes - frame) }).to_string()
    };
    let most = 1024 * 1024;
    assert_eq!(server.call("POST", "/v1/agent/runs", body(most).as_bytes()).await.status, 200);
    server.call("POST", "/v1/agent/runs", body(most + 1).as_bytes()).await.problem(413, "too-large");
    server.call("POST", "/v1/agent/runs/any/resume", body(5 * most).as_bytes()).await.problem(413, "too-large");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(1e-300)),
        "\\PC{0,12}".prop_map(Value::from),
        Just(json!("5m")),
        Just(json!("last")),
    ];
    let names = prop_oneof![
        Just("prompt".to_owned()),
        Just("limits".to_owned()),
        Just("session".to_owned()),
        Just("detach".to_owned()),
        Just("interactive".to_owned()),
        Just("max_steps".to_owned()),
        Just("timeout".to_owned()),
        Just("token_budget".to_owned()),
        Just("cost_limit".to_owned()),
        "\\PC{0,8}",
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(names.clone(), inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Bodies that are nearly right get further than noise.
fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let limits = prop::option::of(any_json());
    let nearly = (any_json(), limits, any_json()).prop_map(|(prompt, limits, detach)| {
        let prompt = if prompt.is_string() { prompt } else { json!("Do it.") };
        json!({ "prompt": prompt, "limits": limits, "detach": detach }).to_string().into_bytes()
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..64), any_json().prop_map(|value| value.to_string().into_bytes()), nearly]
}

#[test]
fn no_body_brings_an_error_of_the_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(vec![says("Done.")]));
    let saved = runtime.block_on(server.run(json!({ "prompt": "Do it." })));
    let paths = ["/v1/agent/runs".to_owned(), format!("/v1/agent/runs/{}/resume", id_of(&saved)), "/v1/agent/runs/x/resume".to_owned()];
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&(any_body(), 0..3_usize), |(body, path)| {
        let answer = runtime.block_on(server.call("POST", &paths[path], &body));
        // 429 and 409 happen when detached runs are still under way.
        prop_assert!(matches!(answer.status, 200 | 202 | 400 | 404 | 422 | 409 | 429), "{}: {}", answer.status, answer.body);
        if answer.status == 200 {
            prop_assert!(answer.body.contains("event: ended\n"), "{}", answer.body);
        }
        Ok(())
    });
    outcome.unwrap();
    assert_eq!(runtime.block_on(server.get("/healthz")).status, 200);
}

#[tokio::test]
async fn with_a_key_only_those_who_have_it_are_let_in() {
    // A variable that is always set where tests run, because a test cannot set one.
    let with_key = |settings: &mut Settings| settings.serve.key_env = "CARGO_PKG_NAME".to_owned();
    let server = Server::start_with(vec![says("Done.")], with_key).await;
    let path = "/v1/agent/runs";
    let body = json!({ "prompt": "Do it." }).to_string();
    for headers in [
        &[][..],
        &[("authorization", "Bearer wrong")],
        &[("authorization", "Bearer runguard-agen")],
        &[("authorization", "Bearer runguard-agent-")],
        &[("authorization", "Basic runguard-agent")],
        &[("authorization", "Bearer")],
        &[("x-api-key", "")],
        &[("authorization", "Bearer wrong"), ("x-api-key", "runguard-agent")],
    ] {
        let answer = server.send("POST", path, headers, body.as_bytes()).await.whole().await;
        answer.problem(401, "unauthorized");
        assert!(answer.head.contains("www-authenticate: bearer"));
        server.send("GET", "/v1/agent/runs/x/events", headers, b"").await.whole().await.problem(401, "unauthorized");
    }
    assert_eq!(server.model.asked(), 0);
    for headers in
        [[("authorization", "Bearer runguard-agent")], [("authorization", "bearer  runguard-agent")], [("x-api-key", "runguard-agent")]]
    {
        assert_eq!(server.send("POST", path, &headers, body.as_bytes()).await.whole().await.status, 200, "{headers:?}");
    }
    let named = [("x-api-key", "runguard-agent"), ("host", "agent.example"), ("origin", "https://app.example")];
    assert_eq!(server.send("GET", path, &named, b"").await.whole().await.status, 200);
    for open in ["/", "/healthz", "/readyz", "/docs/problems/unauthorized"] {
        assert_eq!(server.get(open).await.status, 200, "{open}");
    }
}

#[tokio::test]
async fn other_machines_are_served_only_with_a_key() {
    let files = tempfile::tempdir().unwrap();
    let mut settings = settings();
    settings.sessions.folder = files.path().join("sessions");
    "0.0.0.0:0".clone_into(&mut settings.serve.listen);
    let folder = SessionFolder::open(&settings.sessions).unwrap();
    let model = Arc::new(Scripted::new(Script::default()));
    let refused = bind(settings.clone(), model.clone(), folder.clone()).await.unwrap_err();
    assert!(matches!(refused, ServeError::NoKey { .. }) && refused.to_string().contains("A_VARIABLE_NOBODY_SETS"), "{refused}");
    "CARGO_PKG_NAME".clone_into(&mut settings.serve.key_env);
    assert!(bind(settings.clone(), model.clone(), folder.clone()).await.unwrap().needs_key());
    "nowhere".clone_into(&mut settings.serve.listen);
    assert!(matches!(bind(settings, model, folder).await.unwrap_err(), ServeError::Listen(ListenError::NoAddress { .. })));
}

#[tokio::test]
async fn a_web_page_cannot_drive_it() {
    let server = Server::start(vec![says("Done.")]).await;
    let here = server.address.to_string();
    let body = json!({ "prompt": "Do it." }).to_string();
    let foreign = [
        (&[("host", "evil.example")][..], "foreign-host"),
        (&[("origin", "https://evil.example")], "foreign-origin"),
        (&[("origin", "null")], "foreign-origin"),
        (&[("origin", "http://localhost:3000")], "foreign-origin"),
        (&[("sec-fetch-site", "cross-site")], "foreign-origin"),
        (&[("sec-fetch-site", "same-site")], "foreign-origin"),
    ];
    for (headers, kind) in foreign {
        server.send("POST", "/v1/agent/runs", headers, body.as_bytes()).await.whole().await.problem(403, kind);
        server.send("GET", "/healthz", headers, b"").await.whole().await.problem(403, kind);
    }
    for hosts in [&[("host", "")][..], &[("host", "127.0.0.1"), ("host", "evil.example")]] {
        server.send("POST", "/v1/agent/runs", hosts, body.as_bytes()).await.whole().await.problem(400, "no-host");
    }
    assert_eq!(server.model.asked(), 0);
    let own = format!("http://{here}");
    for headers in [
        &[("host", "localhost")][..],
        &[("host", "[::1]:9")],
        &[("host", &here), ("origin", &own), ("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "none")],
    ] {
        assert_eq!(server.send("POST", "/v1/agent/runs", headers, body.as_bytes()).await.whole().await.status, 200, "{headers:?}");
    }
}

#[tokio::test]
async fn a_fault_within_a_run_ends_it_and_nothing_else() {
    let replies = vec![notes("a fault"), says("Done."), says("Done.")];
    let server = Server::start_with(replies, |settings| settings.serve.max_runs = 1).await;
    for _ in 0..2 {
        check_whole(&server.run(json!({ "prompt": "Do it." })).await);
    }
}

// Many, and the end.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_runs_at_once_end_once_each() {
    let server = Arc::new(Server::start_with(vec![says_slowly(5, 1)], |settings| settings.serve.max_runs = 200).await);
    let runs = (0..200).map(|number| {
        let server = server.clone();
        tokio::spawn(async move { server.run(json!({ "prompt": format!("Run {number}.") })).await })
    });
    let mut seen = std::collections::HashSet::new();
    for events in runs.collect::<Vec<_>>() {
        let events = events.await.unwrap();
        assert_eq!(check_whole(&events)["state"], "COMPLETED");
        assert_eq!(said(&events), "word ".repeat(5));
        assert!(seen.insert(id_of(&events)));
    }
    assert_eq!(server.get("/v1/agent/runs?limit=1000").await.json()["runs"].as_array().unwrap().len(), 200);
}

#[tokio::test]
async fn a_stop_ends_and_saves_every_run() {
    let mut server = Server::start(vec![forever()]).await;
    let mut stream = server.follow("/v1/agent/runs", json!({ "prompt": "Talk." })).await;
    stream.until("chunk").await;
    let detached = server.post("/v1/agent/runs", json!({ "prompt": "Talk.", "detach": true })).await.json();
    let began = Instant::now();
    server.stop.take().unwrap().send(()).unwrap();
    let rest = stream.events().await;
    assert_eq!(check_whole(&rest)["state"], "CANCELLED");
    server.serving.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(60));
    for id in [id_of(&rest).as_str(), detached["id"].as_str().unwrap()] {
        assert_eq!(server.folder.read(id).unwrap().session.state(), AgentState::Cancelled);
        server.folder.resume(id).unwrap();
    }
    assert!(TcpStream::connect(server.address).await.is_err());
}
