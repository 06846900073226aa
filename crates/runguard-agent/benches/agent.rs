//! What the loop costs beside the model and the tools, and whether a long run grows. `./bench agent`.
//!
//! The same conversation is sent to the same local server twice, turn about: by a bare client that only reads the stream, and
//! by the agent with everything on (guards, budget, context, a session on disk). The difference is the loop. The server
//! answers at once, because a wait of 50 ms would hide what is measured behind the timer's noise; the overhead is then set
//! against 50 ms.

#![allow(clippy::unwrap_used)]

use runguard_agent::event::{Event, Observer};
use runguard_agent::provider::scripted::{AtEnd, Script, Scripted, ScriptedCall, ScriptedReply};
use runguard_agent::provider::{BoxFuture, openai::OpenAi};
use runguard_agent::session::disk::SessionFolder;
use runguard_agent::settings::{Limits, ProviderKind, ProviderSettings, Settings};
use runguard_agent::tool::{Effect, Tool, ToolOutput, ToolSet, ToolSpec};
use runguard_agent::{Agent, Input, RunOptions, Session};
use runguard_core::time::Span;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const HISTORY: usize = 200;
const MESSAGE_BYTES: usize = 1_000;
const ROUNDS: usize = 9;
const STEPS: usize = 100;
const MODEL_CALL: Duration = Duration::from_millis(50);
const MOST_OVERHEAD: f64 = 0.01;
const LONG_RUN: u32 = 10_000;
/// A run that grows by more than this between its first tenth and its end is not flat.
const MOST_GROWTH_MB: f64 = 8.0;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        overhead().await;
        long_run().await;
    });
}

/// Waits for nothing.
#[derive(Debug)]
struct Lookup(ToolSpec);

impl Lookup {
    fn new() -> Self {
        let schema = json!({"type": "object", "properties": {"at": {"type": "integer"}}});
        let description = "Looks a number up.".to_owned();
        Self(ToolSpec { name: "lookup".into(), description, input_schema: schema, effect: Effect::ReadOnly, parallel: true })
    }
}

impl Tool for Lookup {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn call<'a>(&'a self, arguments: &'a Value, _: &'a CancellationToken) -> BoxFuture<'a, ToolOutput> {
        let text = format!("{} {}", arguments["at"], "y".repeat(MESSAGE_BYTES));
        Box::pin(async move { ToolOutput::ok(text) })
    }
}

/// Speaks the wire format, at once, and asks for another lookup each time.
async fn model_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut number = 0u64;
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.set_nodelay(true).unwrap();
            let mut pending: Vec<u8> = Vec::new();
            let first = number;
            number += 1_000_000;
            tokio::spawn(async move {
                let mut number = first;
                let mut buffer = vec![0; 256 * 1024];
                loop {
                    while let Some(end) = whole_request(&pending) {
                        pending.drain(..end);
                        number += 1;
                        socket.write_all(&answer(number)).await.unwrap();
                    }
                    match socket.read(&mut buffer).await {
                        Ok(0) | Err(_) => return,
                        Ok(read) => pending.extend_from_slice(&buffer[..read]),
                    }
                }
            });
        }
    });
    format!("http://{address}/v1")
}

/// Where the first request ends, once it is whole.
fn whole_request(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?.to_ascii_lowercase();
    let length: usize = text.split("content-length: ").nth(1)?.split("\r\n").next()?.parse().ok()?;
    (bytes.len() >= head + length).then_some(head + length)
}

fn answer(number: u64) -> Vec<u8> {
    let mut body = String::new();
    let mut event = |value: &Value| body.push_str(&format!("data: {value}\n\n"));
    let chunk = |delta: Value, finish: Value| json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    for word in ["I ", "look ", "at ", "the ", "next ", "one."] {
        event(&chunk(json!({"content": word}), Value::Null));
    }
    let call = json!({"index": 0, "id": format!("call_{number}"), "type": "function", "function": {"name": "lookup", "arguments": ""}});
    event(&chunk(json!({"tool_calls": [call]}), Value::Null));
    let arguments = json!({"index": 0, "function": {"arguments": format!("{{\"at\": {number}}}")}});
    event(&chunk(json!({"tool_calls": [arguments]}), Value::Null));
    event(&chunk(json!({}), json!("tool_calls")));
    event(&json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 50_000, "completion_tokens": 30, "total_tokens": 50_030}}));
    body.push_str("data: [DONE]\n\n");
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn settings(base_url: &str) -> Settings {
    let mut provider = ProviderSettings::new(ProviderKind::Openai, "gpt-4o-mini");
    provider.base_url = Some(base_url.to_owned());
    let mut settings = Settings::new(provider);
    settings.limits = Limits { max_steps: u32::MAX, timeout: Span::ZERO, token_budget: 0, cost_limit: 1_000_000.0 };
    settings.context.window = 1_000_000;
    settings.guardrails.tool_calls.default_limit = 1_000;
    settings
}

async fn overhead() {
    let base_url = model_server().await;
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&base_url);
    settings.sessions.folder = folder.path().to_owned();
    let sessions = SessionFolder::open(&settings.sessions).unwrap();
    let provider = Arc::new(OpenAi::new(&settings.provider, None).unwrap());
    let mut tools = ToolSet::new();
    tools.add(Arc::new(Lookup::new())).unwrap();
    let agent = Agent::with_parts(settings.clone(), provider, tools).unwrap();
    let body = history_body();
    // Only the bare client needs a default; the agent names its own.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{base_url}/chat/completions");

    println!("One step with a history of {HISTORY} messages ({} KB a question), {ROUNDS} rounds of {STEPS} steps:", body.len() / 1024);
    let (mut bare, mut guarded) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(bare_steps(&client, &url, &body).await);
        guarded.push(agent_steps(&agent, &sessions, &settings).await);
    }
    let (bare, guarded) = (median(&mut bare), median(&mut guarded));
    let overhead = guarded.saturating_sub(bare);
    let share = overhead.as_secs_f64() / MODEL_CALL.as_secs_f64();
    println!("  bare client   {:>8.1} us", bare.as_secs_f64() * 1e6);
    println!("  agent         {:>8.1} us", guarded.as_secs_f64() * 1e6);
    println!("  the loop      {:>8.1} us = {:.2} % of a model call of 50 ms", overhead.as_secs_f64() * 1e6, share * 100.0);
    say_bar(share <= MOST_OVERHEAD, "at most 1 %");
}

/// The same question as the agent's, without an agent.
fn history_body() -> Vec<u8> {
    let mut messages = vec![json!({"role": "system", "content": "s".repeat(300)})];
    for number in 0..HISTORY / 2 {
        let call = json!({"id": format!("call_{number}"), "type": "function", "function": {"name": "lookup", "arguments": format!("{{\"at\": {number}}}")}});
        messages.push(json!({"role": "assistant", "content": "I look at the next one.", "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": format!("call_{number}"), "content": "y".repeat(MESSAGE_BYTES)}));
    }
    let tool =
        json!({"type": "function", "function": {"name": "lookup", "description": "Looks a number up.", "parameters": {"type": "object"}}});
    json!({"model": "gpt-4o-mini", "stream": true, "stream_options": {"include_usage": true}, "messages": messages, "tools": [tool]})
        .to_string()
        .into_bytes()
}

async fn bare_steps(client: &reqwest::Client, url: &str, body: &[u8]) -> Duration {
    let began = Instant::now();
    for _ in 0..STEPS {
        let mut response = client.post(url).header("content-type", "application/json").body(body.to_vec()).send().await.unwrap();
        while response.chunk().await.unwrap().is_some() {}
    }
    began.elapsed() / STEPS as u32
}

/// Counts what it is told and stops the run when there was enough.
struct Stopper {
    steps: usize,
    began: Option<Instant>,
    cancel: CancellationToken,
}

impl Observer for Stopper {
    fn event(&mut self, event: Event) {
        if let Event::StepStarted { .. } = event {
            self.steps += 1;
            if self.steps > STEPS {
                self.cancel.cancel();
            } else if self.steps == 1 {
                self.began = Some(Instant::now());
            }
        }
    }
}

/// A session whose history is already long. Its messages stay at that number: the window is that large.
async fn agent_steps(agent: &Agent, sessions: &SessionFolder, settings: &Settings) -> Duration {
    let mut session = sessions.create(settings).unwrap();
    fill(&mut session);
    let cancel = CancellationToken::new();
    let mut stopper = Stopper { steps: 0, began: None, cancel: cancel.clone() };
    let report = agent.run(&mut session, Input::Continue, RunOptions::default(), &cancel, &mut stopper).await;
    assert_eq!(report.steps as usize, STEPS, "{}", report.message);
    stopper.began.unwrap().elapsed() / STEPS as u32
}

fn fill(session: &mut Session) {
    use runguard_agent::message::{Block, Message, Role, ToolCall, ToolResult};
    use runguard_agent::session::Record;
    let push = |session: &mut Session, message: Message| {
        let (counters, detectors) = (session.counters().clone(), session.detectors().clone());
        session.record(Record::Message { message, counters, detectors }).unwrap();
    };
    push(session, Message::user("Look everything up."));
    // Half as many as at the end of the measured steps, so that their mean is what is asked for.
    for number in 0..(HISTORY - STEPS) / 2 {
        let call = ToolCall { id: format!("h{number}"), name: "lookup".into(), arguments: format!("{{\"at\": {number}}}") };
        push(
            session,
            Message {
                role: Role::Assistant,
                content: vec![Block::Text { text: "I look at the next one.".into() }, Block::ToolCall(call)],
                reason: None,
            },
        );
        let text = "y".repeat(MESSAGE_BYTES);
        push(session, Message::results(vec![ToolResult { id: format!("h{number}"), name: "lookup".into(), text, is_error: false }]));
    }
}

async fn long_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::new(ProviderSettings::new(ProviderKind::Openai, "gpt-4o-mini"));
    settings.limits = Limits { max_steps: LONG_RUN, timeout: Span::ZERO, token_budget: 0, cost_limit: 1_000_000.0 };
    settings.context.window = 30_000;
    settings.guardrails.repeatable.push("lookup".into());
    settings.guardrails.tool_calls.default_limit = 1_000;
    settings.sessions.folder = folder.path().to_owned();
    let reply = |number: u32| ScriptedReply {
        text: "I look at the next one.".into(),
        calls: vec![ScriptedCall { name: "lookup".into(), arguments: json!({ "at": number }) }],
        ..ScriptedReply::default()
    };
    let script = Script { model: "gpt-4o-mini".into(), reply: (0..LONG_RUN).map(reply).collect(), at_end: AtEnd::Finish };
    let mut tools = ToolSet::new();
    tools.add(Arc::new(Lookup::new())).unwrap();
    let agent = Agent::with_parts(settings.clone(), Arc::new(Scripted::new(script)), tools).unwrap();
    let sessions = SessionFolder::open(&settings.sessions).unwrap();
    let mut session = sessions.create(&settings).unwrap();
    println!("\n{LONG_RUN} steps in one session, context management on:");
    let mut memory = Memory::default();
    let began = Instant::now();
    let report =
        agent.run(&mut session, Input::Prompt("Go on.".into()), RunOptions::default(), &CancellationToken::new(), &mut memory).await;
    assert_eq!(report.steps, LONG_RUN, "{}", report.message);
    let growth = memory.end - memory.early;
    println!("  resident      {:>8.1} MB after {} steps, {:.1} MB after {LONG_RUN}", memory.early, LONG_RUN / 10, memory.end);
    println!(
        "  in the window {:>8} messages; {:.0} us a step",
        session.messages().len(),
        began.elapsed().as_secs_f64() * 1e6 / f64::from(LONG_RUN)
    );
    say_bar(growth <= MOST_GROWTH_MB, "flat: at most 8 MB more");
    let began = Instant::now();
    drop(session);
    let loaded = sessions.resume("last").unwrap();
    println!("  resumed in    {:>8.0} ms with {} steps counted", began.elapsed().as_secs_f64() * 1e3, loaded.session.counters().steps);
}

#[derive(Default)]
struct Memory {
    early: f64,
    end: f64,
}

impl Observer for Memory {
    fn event(&mut self, event: Event) {
        if let Event::StepStarted { step } = event {
            if step == LONG_RUN / 10 {
                self.early = resident_megabytes();
            } else if step == LONG_RUN {
                self.end = resident_megabytes();
            }
        }
    }
}

fn resident_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    pages * 4096.0 / 1e6
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn say_bar(holds: bool, bar: &str) {
    println!("  {} {bar}", if holds { "holds: " } else { "MISSED:" });
}
