//! The HTTP providers against servers that speak the true wire formats, and against servers that do not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "wire/server.rs"]
mod server;

use proptest::prelude::*;
use runguard_agent::event::Event;
use runguard_agent::message::{Block, Message, Role, Tag, ToolCall, ToolResult};
use runguard_agent::provider::anthropic::Anthropic;
use runguard_agent::provider::openai::OpenAi;
use runguard_agent::provider::{ErrorKind, Finish, Parts, Provider, ProviderError, Reply, Request};
use runguard_agent::settings::{ProviderKind, ProviderSettings, Settings};
use runguard_agent::tool::{Effect, ToolSet, ToolSpec};
use runguard_agent::{Agent, AgentState, Input, RunOptions, Session};
use runguard_core::prices::Usage;
use runguard_core::time::Span;
use serde_json::{Value, json};
use server::{Server, Step, in_pieces, serve, unended, until_close};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const EVENTS: &str = "text/event-stream; charset=utf-8";
const OPENAI: &str = include_str!("wire/openai_tools.sse");
const DEEPSEEK: &str = include_str!("wire/deepseek_reasoning.sse");
const OLLAMA: &str = include_str!("wire/ollama_tools.sse");
const VLLM: &str = include_str!("wire/vllm_tools.sse");
const ANTHROPIC: &str = include_str!("wire/anthropic_thinking_tools.sse");
const OPENAI_WHOLE: &str = include_str!("wire/openai_whole.json");
const ANTHROPIC_WHOLE: &str = include_str!("wire/anthropic_whole.json");

fn settings(kind: ProviderKind, base: &str) -> ProviderSettings {
    let base_url = match kind {
        ProviderKind::Openai => format!("{base}/v1"),
        ProviderKind::Anthropic | ProviderKind::Bedrock | ProviderKind::Scripted => base.to_owned(),
    };
    ProviderSettings { base_url: Some(base_url), ..ProviderSettings::new(kind, "some-model") }
}

/// Whoever falls silent is not waited for longer than a test can. A whole answer may take its time: where much else goes on, one that is
/// sent at once does not come at once.
fn hurried(kind: ProviderKind, base: &str) -> ProviderSettings {
    ProviderSettings { idle_timeout: Span::from_millis(500), ..settings(kind, base) }
}

/// The whole answer is not waited for longer than a test can; a pause in it is no silence.
fn hurried_to_the_end(kind: ProviderKind, base: &str) -> ProviderSettings {
    ProviderSettings { request_timeout: Span::from_millis(1000), ..settings(kind, base) }
}

fn provider(settings: &ProviderSettings) -> Box<dyn Provider> {
    let key = Some("sk-secret".to_owned());
    match settings.kind {
        ProviderKind::Openai => Box::new(OpenAi::new(settings, key).unwrap()),
        ProviderKind::Anthropic => Box::new(Anthropic::new(settings, key).unwrap()),
        ProviderKind::Bedrock | ProviderKind::Scripted => unreachable!(),
    }
}

struct Outcome {
    result: Result<(), ProviderError>,
    parts: Parts,
}

impl Outcome {
    fn kind(&self) -> Option<ErrorKind> {
        self.result.as_ref().err().map(|error| error.kind)
    }

    fn message(&self) -> &str {
        self.result.as_ref().err().map_or("", |error| error.message.as_str())
    }

    fn text(&self) -> String {
        self.parts.message.text()
    }
}

/// Asks, and checks what holds for every stream: it is closed exactly once, and what was shown is what was kept.
async fn ask(provider: &dyn Provider, request: Request<'_>) -> Outcome {
    let mut events: Vec<Event> = Vec::new();
    let mut reply = Reply::new(&mut events, request.max_tokens);
    let result = provider.ask(request, &mut reply).await;
    let parts = reply.into_parts();
    let chunks: Vec<_> = events.iter().map(|event| if let Event::Chunk(chunk) = event { chunk } else { panic!("{event:?}") }).collect();
    assert_eq!(chunks.iter().filter(|chunk| chunk.finished).count(), 1);
    assert!(chunks.last().unwrap().finished);
    let shown: String = chunks.iter().filter(|chunk| !chunk.thinking).map(|chunk| chunk.text.as_str()).collect();
    assert_eq!(shown, parts.message.text());
    assert_eq!(parts.finish.is_some(), result.is_ok());
    Outcome { result, parts }
}

async fn ask_short(provider: &dyn Provider) -> Outcome {
    let messages = [Message::user("hello")];
    ask(provider, Request { system: None, messages: &messages, tools: &[], max_tokens: 100 }).await
}

/// What comes of one exchange with a server that does this.
async fn exchange(settings: impl Fn(&str) -> ProviderSettings, steps: Vec<Step>) -> Outcome {
    let server = serve(steps).await;
    ask_short(&*provider(&settings(&server.base))).await
}

fn text(text: &str) -> Block {
    Block::Text { text: text.to_owned() }
}

fn thinking(text: &str, signature: Option<&str>) -> Block {
    Block::Thinking { text: text.to_owned(), signature: signature.map(str::to_owned) }
}

fn call(id: &str, name: &str, arguments: &str) -> Block {
    Block::ToolCall(ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() })
}

fn result(id: &str, text: &str, is_error: bool) -> Block {
    Block::ToolResult(ToolResult { id: id.to_owned(), name: "read_file".to_owned(), text: text.to_owned(), is_error })
}

struct Recording {
    kind: ProviderKind,
    stream: &'static str,
    content: Vec<Block>,
    usage: Option<Usage>,
    finish: Finish,
}

fn recordings() -> Vec<Recording> {
    let openai = |stream, content, usage, finish| Recording { kind: ProviderKind::Openai, stream, content, usage, finish };
    vec![
        openai(
            OPENAI,
            vec![
                text("Let me look – naïve 😀."),
                call("call_aaa", "read_file", r#"{"path":"README.md"}"#),
                call("call_bbb", "list_directory", r#"{"path":"döcs"}"#),
            ],
            Some(Usage { input_tokens: 176, output_tokens: 42, cached_tokens: 1024, ..Usage::default() }),
            Finish::ToolUse,
        ),
        openai(DEEPSEEK, vec![thinking("Two and two.\n", None), text("It is 4.")], Some(Usage::new(20, 9)), Finish::EndTurn),
        openai(
            OLLAMA,
            vec![
                thinking("I need both.", None),
                call("call_x1", "read_file", r#"{"path":"a.txt"}"#),
                call("call_x2", "read_file", r#"{"path":"b.txt"}"#),
            ],
            Some(Usage::new(170, 61)),
            Finish::ToolUse,
        ),
        openai(
            VLLM,
            vec![thinking("Hm.", None), text("Now."), call("chatcmpl-tool-7", "read_file", r#"{"path": "c.txt"}"#)],
            None,
            Finish::ToolUse,
        ),
        Recording {
            kind: ProviderKind::Anthropic,
            stream: ANTHROPIC,
            content: vec![
                thinking("Both files – yes.", Some("EqQBCg==")),
                Block::Opaque { value: json!({ "type": "redacted_thinking", "data": "EmwKAhgB" }) },
                text("I will read 2 files 😀."),
                call("toolu_01", "read_file", r#"{"path": "a.txt"}"#),
                call("toolu_02", "list_directory", ""),
            ],
            usage: Some(Usage {
                input_tokens: 30,
                output_tokens: 89,
                cached_tokens: 2000,
                cache_write_tokens: 100,
                cache_write_1h_tokens: 200,
                ..Usage::default()
            }),
            finish: Finish::ToolUse,
        },
    ]
}

impl Recording {
    async fn replay(&self, answer: Vec<u8>) -> Outcome {
        exchange(|base| settings(self.kind, base), vec![Step::Send(answer)]).await
    }

    fn check_whole(&self, outcome: &Outcome) {
        assert_eq!(outcome.result, Ok(()));
        assert_eq!(outcome.parts.message.content, self.content);
        assert_eq!(outcome.parts.usage, self.usage);
        assert_eq!(outcome.parts.finish, Some(self.finish));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[tokio::test]
async fn every_dialect_is_read_whole_byte_by_byte_and_with_other_line_ends() {
    for recording in recordings() {
        let stream = recording.stream.as_bytes();
        recording.check_whole(&recording.replay(in_pieces(EVENTS, [stream])).await);
        recording.check_whole(&recording.replay(in_pieces(EVENTS, stream.chunks(1))).await);
        recording.check_whole(&recording.replay(until_close("200 OK", "content-type: text/event-stream\r\n", recording.stream)).await);
        let windows = recording.stream.replace('\n', "\r\n");
        recording.check_whole(&recording.replay(in_pieces("", windows.as_bytes().chunks(7))).await);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_split_of_the_stream_changes_the_answer(which in 0..5_usize, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30)) {
        let recording = &recordings()[which];
        let stream = recording.stream.as_bytes();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        places.extend([0, stream.len()]);
        places.sort_unstable();
        let answer = in_pieces(EVENTS, places.windows(2).map(|pair| &stream[pair[0]..pair[1]]));
        recording.check_whole(&block_on(recording.replay(answer)));
    }

    /// Wherever a stream is cut, with or without a proper end of the body: either the whole answer was there, or it is said
    /// to be cut, or to have no end mark where the body was closed between two events; and what came is kept.
    #[test]
    fn a_cut_is_seen_wherever_it_is(which in 0..5_usize, place in any::<prop::sample::Index>(), is_framed in any::<bool>()) {
        let recording = &recordings()[which];
        let end = place.index(recording.stream.len());
        let piece = &recording.stream.as_bytes()[..end];
        let answer = if is_framed { in_pieces(EVENTS, [piece]) } else { unended(EVENTS, [piece]) };
        let outcome = block_on(recording.replay(answer));
        let whole: String = recording.content.iter().filter_map(|block| if let Block::Text { text } = block { Some(text.as_str()) } else { None }).collect();
        // The last blank line that came ends the last event that counts.
        let seen = &recording.stream[..recording.stream[..recording.stream.floor_char_boundary(end)].rfind("\n\n").unwrap_or(0)];
        let is_whole = match recording.kind {
            ProviderKind::Openai => ["tool_calls", "stop"].iter().any(|reason| seen.contains(&format!(r#""finish_reason":"{reason}""#))),
            _ => seen.contains("event: message_stop"),
        };
        if is_whole {
            prop_assert_eq!(&outcome.result, &Ok(()));
            prop_assert_eq!(&outcome.parts.message.content, &recording.content);
        } else {
            if outcome.parts.is_unmarked {
                prop_assert!(is_framed && outcome.result == Ok(()) && outcome.parts.finish.is_some());
                prop_assert!(outcome.parts.message.tool_calls().all(|call| call.parsed().is_ok_and(|arguments| arguments.is_object())));
            } else {
                prop_assert_eq!(outcome.kind(), Some(ErrorKind::Cut), "{:?}", outcome.result);
            }
            prop_assert!(whole.starts_with(&outcome.text()));
            if recording.kind == ProviderKind::Anthropic && seen.contains("message_start") {
                prop_assert_eq!(outcome.parts.usage.map(|usage| usage.prompt_tokens()), Some(2330));
            }
        }
    }

    /// Events that are nearly right: never a panic, never a second end, never an answer without its end.
    #[test]
    fn no_noise_is_taken_for_a_whole_answer(is_openai in any::<bool>(), events in prop::collection::vec(noise(), 0..12)) {
        let kind = if is_openai { ProviderKind::Openai } else { ProviderKind::Anthropic };
        let stream = events_of(events.iter());
        let answer = in_pieces(EVENTS, [stream.as_bytes()]);
        let outcome = block_on(exchange(|base| settings(kind, base), vec![Step::Send(answer)]));
        let may_end = if is_openai { stream.contains("finish_reason") || stream.contains("[DONE]") } else { stream.contains("message_stop") };
        prop_assert!(may_end || outcome.result.is_err(), "taken for whole");
    }
}

fn noise() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec!["", "stop", "text", "tool_use", "text_delta", "input_json_delta", "message_stop", "error", "é"])
            .prop_map(Value::from),
    ];
    let names = vec![
        "choices",
        "delta",
        "message",
        "index",
        "content",
        "tool_calls",
        "function",
        "name",
        "id",
        "arguments",
        "finish_reason",
        "usage",
        "error",
        "type",
        "content_block",
        "input",
        "partial_json",
        "text",
        "prompt_tokens",
        "output_tokens",
    ];
    let tree = leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(names.clone()), inner), 0..6).prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<serde_json::Map<_, _>>()
                .into()),
        ]
    });
    prop_oneof![8 => tree.prop_map(|value| value.to_string()), 1 => any::<String>().prop_map(|text| text.replace(['\r', '\n'], " "))]
}

fn tools() -> Vec<ToolSpec> {
    vec![ToolSpec {
        name: "read_file".to_owned(),
        description: "Reads \"a file\".".to_owned(),
        input_schema: json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] }),
        effect: Effect::ReadOnly,
        parallel: true,
    }]
}

/// A conversation with everything in it that needs care.
fn conversation() -> Vec<Message> {
    let of = |role, content| Message { role, content, reason: None };
    vec![
        Message::user("Read\n\"both\" 😀"),
        of(
            Role::Assistant,
            vec![
                thinking("unsigned", None),
                thinking("signed", Some("c2ln")),
                Block::Opaque { value: json!({ "type": "redacted_thinking", "data": "x" }) },
                text("I look. "),
                call("c1", "read_file", r#" {"path": "a"} "#),
                call("c2", "read_file", "not json"),
            ],
        ),
        of(Role::User, vec![text("Beside."), result("c1", "A\ttab", false), result("c2", "", true), text(" ")]),
        Message::internal(Tag::GuardNudge, "Change your way."),
        of(Role::Assistant, vec![text("  "), thinking("only a thought", None)]),
        of(Role::User, vec![text("")]),
        Message::user("And?"),
        Message::assistant("Well, \n"),
    ]
}

#[tokio::test]
async fn the_request_to_an_openai_server_is_exactly_this() {
    let mut server = serve(vec![Step::Send(in_pieces(EVENTS, [OPENAI.as_bytes()]))]).await;
    let settings = ProviderSettings {
        max_tokens_field: "max_completion_tokens".to_owned(),
        temperature: Some(0.5),
        extra: serde_json::from_value(json!({ "seed": 7, "reasoning_effort": "low" })).unwrap(),
        price_as: Some("gpt-5.1".to_owned()),
        ..settings(ProviderKind::Openai, &server.base)
    };
    let provider = provider(&settings);
    assert_eq!(provider.model(), "gpt-5.1");
    let (messages, tools) = (conversation(), tools());
    ask(&*provider, Request { system: Some("Be brief."), messages: &messages, tools: &tools, max_tokens: 77 }).await.result.unwrap();
    let seen = server.requests.recv().await.unwrap();
    assert_eq!(seen.line, "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(seen.header("authorization"), Some("Bearer sk-secret"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    let expected = json!({
        "model": "some-model",
        "messages": [
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Read\n\"both\" 😀" },
            { "role": "assistant", "content": "I look. ", "tool_calls": [
                { "id": "c1", "type": "function", "function": { "name": "read_file", "arguments": "{\"path\": \"a\"}" } },
                { "id": "c2", "type": "function", "function": { "name": "read_file", "arguments": "{}" } },
            ] },
            { "role": "tool", "tool_call_id": "c1", "content": "A\ttab" },
            { "role": "tool", "tool_call_id": "c2", "content": "" },
            { "role": "user", "content": "Beside.\n\n " },
            { "role": "user", "content": "Change your way." },
            { "role": "assistant", "content": "  " },
            { "role": "user", "content": "And?" },
            { "role": "assistant", "content": "Well, \n" },
        ],
        "tools": [{ "type": "function", "function": {
            "name": "read_file",
            "description": "Reads \"a file\".",
            "parameters": { "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] },
        } }],
        "max_completion_tokens": 77,
        "stream": true,
        "stream_options": { "include_usage": true },
        "temperature": 0.5,
        "seed": 7,
        "reasoning_effort": "low",
    });
    assert_eq!(seen.body, expected);
}

#[tokio::test]
async fn the_request_to_anthropic_is_exactly_this() {
    let mut server = serve(vec![Step::Send(in_pieces(EVENTS, [ANTHROPIC.as_bytes()]))]).await;
    let settings = ProviderSettings {
        temperature: Some(1.0),
        extra: serde_json::from_value(json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } })).unwrap(),
        ..settings(ProviderKind::Anthropic, &server.base)
    };
    let (messages, tools) = (conversation(), tools());
    let request = Request { system: Some("Be brief."), messages: &messages, tools: &tools, max_tokens: 77 };
    ask(&*provider(&settings), request).await.result.unwrap();
    let seen = server.requests.recv().await.unwrap();
    assert_eq!(seen.line, "POST /v1/messages HTTP/1.1");
    assert_eq!(seen.header("x-api-key"), Some("sk-secret"));
    assert_eq!(seen.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(seen.header("authorization"), None);
    let expected = json!({
        "model": "some-model",
        "max_tokens": 77,
        "system": "Be brief.",
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "Read\n\"both\" 😀" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "signed", "signature": "c2ln" },
                { "type": "redacted_thinking", "data": "x" },
                { "type": "text", "text": "I look. " },
                { "type": "tool_use", "id": "c1", "name": "read_file", "input": { "path": "a" } },
                { "type": "tool_use", "id": "c2", "name": "read_file", "input": {} },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "c1", "content": "A\ttab" },
                { "type": "tool_result", "tool_use_id": "c2", "content": "failed without a word", "is_error": true },
                { "type": "text", "text": "Beside." },
                { "type": "text", "text": "Change your way." },
                { "type": "text", "text": "And?" },
            ] },
            { "role": "assistant", "content": [{ "type": "text", "text": "Well," }] },
        ],
        "tools": [{
            "name": "read_file",
            "description": "Reads \"a file\".",
            "input_schema": { "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] },
        }],
        "stream": true,
        "temperature": 1.0,
        "thinking": { "type": "enabled", "budget_tokens": 1024 },
    });
    assert_eq!(seen.body, expected);
}

#[tokio::test]
async fn small_requests_leave_out_what_is_not_said_and_addresses_are_forgiven() {
    let mut server = serve(vec![Step::Send(in_pieces("application/json", [OPENAI_WHOLE.as_bytes()]))]).await;
    let base = format!("{}/deep/v1/?api-version=3", server.base);
    let quiet = ProviderSettings { streaming: false, base_url: Some(base), ..settings(ProviderKind::Openai, "") };
    ask_short(&OpenAi::new(&quiet, None).unwrap()).await.result.unwrap();
    let seen = server.requests.recv().await.unwrap();
    assert_eq!(seen.line, "POST /deep/v1/chat/completions?api-version=3 HTTP/1.1");
    assert_eq!(seen.header("authorization"), None);
    let messages = json!([{ "role": "user", "content": "hello" }]);
    assert_eq!(seen.body, json!({ "model": "some-model", "messages": messages, "max_tokens": 100, "stream": false }));

    let mut server = serve(vec![Step::Send(in_pieces("application/json", [ANTHROPIC_WHOLE.as_bytes()]))]).await;
    let base = format!("{}/v1/", server.base);
    let quiet = ProviderSettings { streaming: false, base_url: Some(base), ..settings(ProviderKind::Anthropic, "") };
    ask_short(&Anthropic::new(&quiet, None).unwrap()).await.result.unwrap();
    let seen = server.requests.recv().await.unwrap();
    assert_eq!(seen.line, "POST /v1/messages HTTP/1.1");
    assert_eq!(seen.header("x-api-key"), None);
    let messages = json!([{ "role": "user", "content": [{ "type": "text", "text": "hello" }] }]);
    assert_eq!(seen.body, json!({ "model": "some-model", "max_tokens": 100, "messages": messages, "stream": false }));
}

#[tokio::test]
async fn deepseek_gets_the_thoughts_behind_its_calls_back() {
    let mut server = serve(vec![Step::Send(in_pieces(EVENTS, [DEEPSEEK.as_bytes()]))]).await;
    let extra = serde_json::from_value(json!({ "stream_options": false })).unwrap();
    let settings = ProviderSettings { model: "deepseek-reasoner".to_owned(), extra, ..settings(ProviderKind::Openai, &server.base) };
    let of = |content| Message { role: Role::Assistant, content, reason: None };
    let messages = [
        Message::user("?"),
        of(vec![thinking("a", None), call("c1", "read_file", "{}")]),
        Message { role: Role::User, content: vec![result("c1", "x", false)], reason: None },
        of(vec![call("c2", "read_file", "{}")]),
        of(vec![thinking("b", None), text("done")]),
    ];
    ask(&*provider(&settings), Request { system: None, messages: &messages, tools: &[], max_tokens: 9 }).await.result.unwrap();
    let seen = server.requests.recv().await.unwrap().body;
    let thoughts: Vec<&Value> = seen["messages"].as_array().unwrap().iter().map(|message| &message["reasoning_content"]).collect();
    assert_eq!(thoughts, [&Value::Null, &json!("a"), &Value::Null, &json!(""), &Value::Null]);
    assert_eq!(seen["messages"][1]["content"], Value::Null);
    // What a server does not take can be left out.
    assert_eq!(seen.get("stream_options"), None);
}

#[tokio::test]
async fn whole_answers_are_read_whether_they_were_asked_for_or_not() {
    for streaming in [true, false] {
        let answer = vec![Step::Send(in_pieces("application/json; charset=utf-8", OPENAI_WHOLE.as_bytes().chunks(9)))];
        let outcome = exchange(|base| ProviderSettings { streaming, ..settings(ProviderKind::Openai, base) }, answer).await;
        assert_eq!(outcome.result, Ok(()));
        assert_eq!(outcome.parts.message.content, [text("Looking."), call("call_w", "read_file", r#"{"path":"w"}"#)]);
        assert_eq!((outcome.parts.usage, outcome.parts.finish), (Some(Usage::new(50, 7)), Some(Finish::ToolUse)));

        let answer = vec![Step::Send(in_pieces("application/json", ANTHROPIC_WHOLE.as_bytes().chunks(9)))];
        let outcome = exchange(|base| ProviderSettings { streaming, ..settings(ProviderKind::Anthropic, base) }, answer).await;
        assert_eq!(outcome.result, Ok(()));
        let content = [thinking("Hm.", Some("c2ln")), text("Looking."), call("toolu_w", "read_file", r#"{"path":"w","a":1}"#)];
        assert_eq!(outcome.parts.message.content, content);
        assert_eq!((outcome.parts.usage, outcome.parts.finish), (Some(Usage::new(50, 7)), Some(Finish::ToolUse)));
    }
}

fn events_of(events: impl Iterator<Item = impl std::fmt::Display>) -> String {
    events.fold(String::new(), |stream, event| format!("{stream}data: {event}\n\n"))
}

async fn stream_of(kind: ProviderKind, events: &[Value]) -> Outcome {
    let stream = events_of(events.iter());
    exchange(|base| settings(kind, base), vec![Step::Send(in_pieces(EVENTS, [stream.as_bytes()]))]).await
}

fn delta(delta: Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

fn end(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

#[tokio::test]
async fn calls_are_put_together_however_a_server_numbers_and_names_them() {
    let piece = |piece: Value| delta(json!({ "tool_calls": [piece] }));
    // No numbers: ids tell the calls apart, and what has neither goes on with the last.
    let outcome = stream_of(
        ProviderKind::Openai,
        &[
            piece(json!({ "id": "a", "function": { "name": "f", "arguments": "{\"x\"" } })),
            piece(json!({ "function": { "arguments": ":1}" } })),
            piece(json!({ "id": "b", "function": { "name": "f", "arguments": "{" } })),
            piece(json!({ "id": "b", "function": { "name": "f", "arguments": "}" } })),
            end("tool_calls"),
        ],
    )
    .await;
    assert_eq!(outcome.parts.message.content, [call("a", "f", "{\"x\":1}"), call("b", "f", "{}")]);

    // Interleaved, names and ids repeated, one announced before its name, arguments as an object.
    let outcome = stream_of(
        ProviderKind::Openai,
        &[
            piece(json!({ "index": 0, "id": "a", "function": {} })),
            piece(json!({ "index": 1, "id": "b", "function": { "name": "g", "arguments": "{\"y\":" } })),
            piece(json!({ "index": 0, "id": "", "function": { "name": "f", "arguments": "" } })),
            piece(json!({ "index": 0, "function": { "arguments": "{}" } })),
            piece(json!({ "index": 1, "id": "b", "function": { "name": "g", "arguments": "2}" } })),
            piece(json!({ "index": 2, "id": "c", "function": { "name": "h", "arguments": { "z": [3] } } })),
            end("tool_calls"),
        ],
    )
    .await;
    assert_eq!(outcome.parts.message.content, [call("b", "g", "{\"y\":2}"), call("a", "f", "{}"), call("c", "h", "{\"z\":[3]}")]);

    // No ids at all: they are made, and differ.
    let outcome = stream_of(
        ProviderKind::Openai,
        &[
            piece(json!({ "function": { "name": "f", "arguments": "{}" } })),
            piece(json!({ "id": null, "function": { "name": "f", "arguments": "{}" } })),
            piece(json!({ "index": 0, "id": "", "function": { "name": "g", "arguments": "{}" } })),
            piece(json!({ "index": 0, "function": { "name": "h", "arguments": "{}" } })),
            delta(json!({ "function_call": { "name": "old", "arguments": "{}" } })),
            end("function_call"),
        ],
    )
    .await;
    let calls: Vec<&ToolCall> = outcome.parts.message.tool_calls().collect();
    assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["f", "f", "g", "h", "old"]);
    assert!(calls.iter().all(|call| call.arguments == "{}" && call.id.len() > 8));
    assert_ne!(calls[0].id, calls[1].id);
    assert_eq!(outcome.parts.finish, Some(Finish::ToolUse));

    let many: Vec<Value> = (0..200).map(|number| piece(json!({ "index": number, "id": format!("i{number}") }))).collect();
    assert_eq!(stream_of(ProviderKind::Openai, &many).await.kind(), Some(ErrorKind::Endless));
}

#[tokio::test]
async fn every_reason_to_stop_is_understood() {
    let call = delta(json!({ "tool_calls": [{ "index": 0, "id": "a", "function": { "name": "f", "arguments": "{}" } }] }));
    for (reason, without_calls, with_calls) in [
        ("stop", Finish::EndTurn, Finish::ToolUse),
        ("tool_calls", Finish::EndTurn, Finish::ToolUse),
        ("length", Finish::MaxTokens, Finish::MaxTokens),
        ("content_filter", Finish::Refused, Finish::Refused),
        ("eos", Finish::EndTurn, Finish::ToolUse),
    ] {
        let plain = stream_of(ProviderKind::Openai, &[delta(json!({ "content": "x" })), end(reason)]).await;
        assert_eq!((plain.result, plain.parts.finish), (Ok(()), Some(without_calls)), "{reason}");
        let calling = stream_of(ProviderKind::Openai, &[call.clone(), end(reason)]).await;
        assert_eq!((calling.result, calling.parts.finish), (Ok(()), Some(with_calls)), "{reason}");
    }
    let outcome = stream_of(ProviderKind::Openai, &[delta(json!({ "refusal": "No." })), end("stop")]).await;
    assert_eq!((outcome.text().as_str(), outcome.parts.finish), ("No.", Some(Finish::Refused)));
    let outcome = stream_of(ProviderKind::Openai, &[delta(json!({ "content": "x" })), end("insufficient_system_resource")]).await;
    assert_eq!((outcome.text().as_str(), outcome.kind()), ("x", Some(ErrorKind::Overloaded)));
    // The end mark alone is an end too, and an empty reason is none.
    let marked =
        format!("data: {}\n\ndata: {}\n\ndata: [DONE]\n\n", delta(json!({ "content": [{ "type": "text", "text": "x" }] })), end(""));
    let outcome = exchange(|base| settings(ProviderKind::Openai, base), vec![Step::Send(in_pieces(EVENTS, [marked.as_bytes()]))]).await;
    assert_eq!((outcome.text().as_str(), outcome.parts.finish), ("x", Some(Finish::EndTurn)));

    for (reason, finish) in [
        ("end_turn", Finish::EndTurn),
        ("stop_sequence", Finish::EndTurn),
        ("pause_turn", Finish::EndTurn),
        ("max_tokens", Finish::MaxTokens),
        ("model_context_window_exceeded", Finish::MaxTokens),
        ("refusal", Finish::Refused),
    ] {
        let events = [
            json!({ "type": "message_start", "message": { "usage": { "input_tokens": 5, "output_tokens": 1 } } }),
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "x" } }),
            json!({ "type": "something_else", "x": 1 }),
            json!({ "type": "message_delta", "delta": { "stop_reason": reason }, "usage": { "input_tokens": 0, "output_tokens": 9 } }),
            json!({ "type": "message_stop" }),
        ];
        let outcome = stream_of(ProviderKind::Anthropic, &events).await;
        assert_eq!((outcome.result, outcome.parts.finish), (Ok(()), Some(finish)), "{reason}");
        assert_eq!(outcome.parts.usage, Some(Usage::new(5, 9)));
    }
}

#[tokio::test]
async fn thoughts_that_are_only_a_signature_stay_apart() {
    let block = |index: u32, signature: &str| {
        [
            json!({ "type": "content_block_start", "index": index, "content_block": { "type": "thinking", "thinking": "", "signature": "" } }),
            json!({ "type": "content_block_delta", "index": index, "delta": { "type": "signature_delta", "signature": signature } }),
            json!({ "type": "content_block_stop", "index": index }),
        ]
    };
    let mut events = [block(0, "one"), block(1, "two")].concat();
    events.push(json!({ "type": "message_stop" }));
    let outcome = stream_of(ProviderKind::Anthropic, &events).await;
    assert_eq!(outcome.parts.message.content, [thinking("", Some("one")), thinking("", Some("two"))]);
}

/// A good beginning, for each of the two.
fn beginning(kind: ProviderKind) -> String {
    match kind {
        ProviderKind::Openai => format!("data: {}\n\n", delta(json!({ "content": "Half an ans" }))),
        _ => concat!(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":40,\"output_tokens\":1}}}\n\n",
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Half an ans\"}}\n\n",
        )
        .to_owned(),
    }
}

const BOTH: [ProviderKind; 2] = [ProviderKind::Openai, ProviderKind::Anthropic];

#[tokio::test]
async fn a_stream_that_breaks_keeps_what_came_and_says_how_it_broke() {
    for kind in BOTH {
        let good = beginning(kind);
        let with = |rest: &str| unended(EVENTS, [good.as_bytes(), rest.as_bytes()]);
        let ended = |rest: &str| in_pieces(EVENTS, [good.as_bytes(), rest.as_bytes()]);
        let forever = match kind {
            ProviderKind::Openai => format!("data: {}\n\n", delta(json!({ "content": "blah ".repeat(1000) }))),
            _ => format!(
                "data: {}\n\n",
                json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "blah ".repeat(1000) } })
            ),
        };
        let forever = format!("{:x}\r\n{forever}\r\n", forever.len()).into_bytes();
        let ping = b"8\r\n: ping\n\n\r\n".to_vec();
        let cases: Vec<(&str, Vec<Step>, ErrorKind)> = vec![
            ("closed in mid-event", vec![Step::Send(with("data: {\"ch"))], ErrorKind::Cut),
            ("ended in mid-event", vec![Step::Send(ended("data: {\"ch"))], ErrorKind::Cut),
            ("reset", vec![Step::Send(with("")), Step::Reset], ErrorKind::Cut),
            ("malformed event", vec![Step::Send(ended("data: {\"choices\": [}\n\n"))], ErrorKind::Malformed),
            ("not JSON", vec![Step::Send(ended("data: upstream timed out\n\n"))], ErrorKind::Malformed),
            ("silence", vec![Step::Send(with("")), Step::Hang], ErrorKind::Timeout),
            ("a byte now and then", vec![Step::Send(with("")), Step::SendForever(ping, Duration::from_millis(20))], ErrorKind::Timeout),
            ("words without end", vec![Step::Send(with("")), Step::SendForever(forever, Duration::ZERO)], ErrorKind::Endless),
        ];
        for (name, steps, expected) in cases {
            // Only what must run into its time is hurried, and only by the limit that it must run into.
            let (hurry, limit): (fn(ProviderKind, &str) -> ProviderSettings, &str) = match name {
                "silence" => (hurried, "provider.idle_timeout"),
                "a byte now and then" => (hurried_to_the_end, "provider.request_timeout"),
                _ => (settings, ""),
            };
            let outcome = exchange(|base| hurry(kind, base), steps).await;
            assert_eq!(outcome.kind(), Some(expected), "{name}: {:?}", outcome.result);
            assert!(outcome.text().starts_with("Half an ans"), "{name}");
            assert!(outcome.message().contains(limit), "{name}: {}", outcome.message());
            if kind == ProviderKind::Anthropic {
                assert_eq!(outcome.parts.usage, Some(Usage::new(40, 1)), "{name}");
            }
        }
    }
}

/// Some servers close the stream where others write an end mark. Asked again they would do the same, and be paid again.
#[tokio::test]
async fn a_stream_that_is_closed_without_an_end_mark_is_an_answer() {
    for kind in BOTH {
        let outcome = exchange(|base| settings(kind, base), vec![Step::Send(in_pieces(EVENTS, [beginning(kind).as_bytes()]))]).await;
        assert_eq!((&outcome.result, outcome.text().as_str()), (&Ok(()), "Half an ans"));
        assert!(outcome.parts.is_unmarked && outcome.parts.finish == Some(Finish::EndTurn));

        let nothing = exchange(|base| settings(kind, base), vec![Step::Send(in_pieces(EVENTS, [b": ping\n\n".as_slice()]))]).await;
        assert_eq!(nothing.kind(), Some(ErrorKind::Cut), "nothing came: that is no answer");
    }
    let call = |arguments: &str| {
        let call = json!([{ "index": 0, "id": "c1", "type": "function", "function": { "name": "look", "arguments": arguments } }]);
        format!("data: {}\n\n", delta(json!({ "tool_calls": call })))
    };
    let asked = async |arguments: &str| {
        let stream = call(arguments);
        exchange(|base| settings(ProviderKind::Openai, base), vec![Step::Send(in_pieces(EVENTS, [stream.as_bytes()]))]).await
    };
    let whole = asked(r#"{"at": 1}"#).await;
    assert!(whole.parts.is_unmarked && whole.parts.finish == Some(Finish::ToolUse), "{:?}", whole.result);
    for half in [r#"{"at": "#, ""] {
        assert_eq!(asked(half).await.kind(), Some(ErrorKind::Cut), "half a call is not run: {half:?}");
    }
}

/// The run ends with what came, one request and a word about it.
#[tokio::test]
async fn a_run_does_not_pay_again_for_a_missing_end_mark() {
    let stream = format!(
        "{}data: {}\n\n",
        beginning(ProviderKind::Openai),
        json!({ "choices": [], "usage": { "prompt_tokens": 40, "completion_tokens": 1 } })
    );
    let mut server = serve(vec![Step::Send(in_pieces(EVENTS, [stream.as_bytes()]))]).await;
    let mut settings = Settings::new(settings(ProviderKind::Openai, &server.base));
    settings.limits.cost_limit = 0.0;
    let agent = Agent::with_parts(settings.clone(), provider(&settings.provider).into(), ToolSet::new()).unwrap();
    let (mut session, mut events) = (Session::in_memory("s"), Vec::new());
    let cancel = CancellationToken::new();
    let report = agent.run(&mut session, Input::Prompt("Well?".into()), RunOptions::default(), &cancel, &mut events).await;
    assert_eq!((report.state, report.text.as_str()), (AgentState::Completed, "Half an ans"), "{}", report.message);
    let notices = events.iter().filter(|event| matches!(event, Event::Notice { message } if message.contains("without an end mark")));
    assert_eq!(notices.count(), 1);
    assert!(report.estimated && report.output_tokens > 1, "what was said in between counts for less than what came");
    server.requests.recv().await.unwrap();
    assert!(server.requests.try_recv().is_err(), "asked once");
}

#[tokio::test]
async fn an_error_told_in_mid_stream_has_its_right_kind() {
    let told = |error: Value| json!({ "error": error });
    for (event, kind) in [
        (told(json!({ "message": "The server had an error", "type": "server_error", "code": null })), ErrorKind::Overloaded),
        (told(json!({ "message": "slow down", "type": "requests", "code": "rate_limit_exceeded" })), ErrorKind::RateLimited),
        (told(json!({ "message": "quota", "type": "insufficient_quota", "code": "insufficient_quota" })), ErrorKind::NoCredit),
        (told(json!({ "message": "bad gateway", "code": 502 })), ErrorKind::Overloaded),
        (told(json!({ "message": "no", "code": "403" })), ErrorKind::Unauthorised),
        (told(json!("it broke")), ErrorKind::Overloaded),
        (
            json!({ "object": "error", "message": "This model's maximum context length is 8 tokens", "type": "BadRequestError", "code": 400 }),
            ErrorKind::ContextTooLong,
        ),
    ] {
        let outcome = stream_of(ProviderKind::Openai, &[delta(json!({ "content": "part" })), event.clone(), end("stop")]).await;
        assert_eq!((outcome.kind(), outcome.text().as_str()), (Some(kind), "part"), "{event}");
        assert!(outcome.message().starts_with("the provider broke off: "), "{}", outcome.message());
    }
    for (name, kind) in [
        ("overloaded_error", ErrorKind::Overloaded),
        ("api_error", ErrorKind::Overloaded),
        ("rate_limit_error", ErrorKind::RateLimited),
        ("timeout_error", ErrorKind::Timeout),
        ("authentication_error", ErrorKind::Unauthorised),
        ("permission_error", ErrorKind::Unauthorised),
        ("billing_error", ErrorKind::NoCredit),
        ("invalid_request_error", ErrorKind::Rejected),
        ("not_found_error", ErrorKind::Rejected),
        ("request_too_large", ErrorKind::Rejected),
    ] {
        let event = json!({ "type": "error", "error": { "type": name, "message": "Told so" }, "request_id": "req_1" });
        let stream = format!("{}event: error\ndata: {event}\n\n", beginning(ProviderKind::Anthropic));
        let steps = vec![Step::Send(in_pieces(EVENTS, [stream.as_bytes()]))];
        let outcome = exchange(|base| settings(ProviderKind::Anthropic, base), steps).await;
        assert_eq!((outcome.kind(), outcome.text().as_str()), (Some(kind), "Half an ans"), "{name}");
        assert!(outcome.message().contains("Told so"));
    }
}

#[tokio::test]
async fn every_status_has_its_kind_and_says_what_to_do() {
    let error = |message: &str| json!({ "error": { "message": message, "type": "x" } }).to_string();
    let quota =
        json!({ "error": { "message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota" } });
    let long = "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.";
    let coded = json!({ "error": { "message": "too much", "type": "invalid_request_error", "code": "context_length_exceeded" } });
    let html = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body></html>";
    let cases: Vec<(&str, String, ErrorKind, &str)> = vec![
        ("400 Bad Request", error("Unknown field"), ErrorKind::Rejected, "answered 400 Bad Request: Unknown field ("),
        ("400 Bad Request", error(long), ErrorKind::ContextTooLong, "context.window"),
        ("400 Bad Request", coded.to_string(), ErrorKind::ContextTooLong, "too much"),
        ("400 Bad Request", error("prompt is too long: 213462 tokens > 200000 maximum"), ErrorKind::ContextTooLong, "prompt is too long"),
        ("422 Unprocessable Entity", error("Input is too long for requested model."), ErrorKind::ContextTooLong, "Input is too long"),
        ("400 Bad Request", error("Your credit balance is too low to access the API"), ErrorKind::NoCredit, "add credit"),
        ("401 Unauthorized", error("Incorrect API key"), ErrorKind::Unauthorised, "_API_KEY"),
        ("403 Forbidden", error("no access"), ErrorKind::Unauthorised, "_API_KEY"),
        ("402 Payment Required", error("Insufficient Balance"), ErrorKind::NoCredit, "Insufficient Balance"),
        (
            "404 Not Found",
            r#"{"error":"model 'x' not found, try pulling it first"}"#.to_owned(),
            ErrorKind::Rejected,
            "model 'x' not found",
        ),
        (
            "404 Not Found",
            r#"{"message":"no Route matched"}"#.to_owned(),
            ErrorKind::Rejected,
            "no Route matched (check `provider.base_url`",
        ),
        ("408 Request Timeout", String::new(), ErrorKind::Timeout, "answered 408 Request Timeout ("),
        ("409 Conflict", error("x"), ErrorKind::Overloaded, "try again later"),
        ("413 Payload Too Large", error("Request exceeds the maximum size"), ErrorKind::Rejected, "413"),
        ("418 I'm a teapot", error("x"), ErrorKind::Rejected, "418"),
        ("425 Too Early", error("x"), ErrorKind::Overloaded, "425"),
        ("429 Too Many Requests", error("Rate limit reached"), ErrorKind::RateLimited, "Rate limit reached"),
        ("429 Too Many Requests", quota.to_string(), ErrorKind::NoCredit, "exceeded your current quota"),
        ("500 Internal Server Error", "\u{1b}[31mred\u{7}  alert".to_owned(), ErrorKind::Overloaded, ": [31mred alert ("),
        ("502 Bad Gateway", html.to_owned(), ErrorKind::Overloaded, "<title>502 Bad Gateway</title>"),
        ("503 Service Unavailable", "[{\"error\":{\"message\":\"in a list\"}}]".to_owned(), ErrorKind::Overloaded, ": in a list ("),
        ("529 ", error("Overloaded"), ErrorKind::Overloaded, "answered 529: Overloaded"),
        ("500 Internal Server Error", "x".repeat(200_000), ErrorKind::Overloaded, "xxx…"),
        ("307 Temporary Redirect", String::new(), ErrorKind::Rejected, "check `provider.base_url`"),
    ];
    for kind in BOTH {
        for (status, body, expected, says) in &cases {
            let length = format!("content-length: {}\r\nlocation: https://elsewhere/\r\n", body.len());
            let outcome = exchange(|base| settings(kind, base), vec![Step::Send(until_close(status, &length, body))]).await;
            assert_eq!(outcome.kind(), Some(*expected), "{status} {body}");
            assert!(outcome.message().contains(says), "{status}: {}", outcome.message());
            assert!(outcome.message().starts_with("http://127.0.0.1:") && outcome.message().chars().count() < 600);
            assert!(outcome.parts.message.content.is_empty());
        }
    }
    let named = |base: &str| ProviderSettings { api_key_env: Some("MY_KEY".to_owned()), ..settings(ProviderKind::Openai, base) };
    let outcome = exchange(named, vec![Step::Send(until_close("401 Unauthorized", "", ""))]).await;
    assert!(outcome.message().contains("MY_KEY"), "{}", outcome.message());
}

#[tokio::test]
async fn a_wait_that_is_asked_for_is_understood_in_every_form() {
    let in_a_minute = jiff::Timestamp::now() + Duration::from_secs(60);
    let date = |time: jiff::Timestamp| time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let cases = [
        ("retry-after: 7\r\n".to_owned(), Some((7000, 7000))),
        ("Retry-After: 1.5\r\n".to_owned(), Some((1500, 1500))),
        ("retry-after-ms: 250\r\nretry-after: 7\r\n".to_owned(), Some((250, 250))),
        (format!("retry-after: {}\r\n", date(in_a_minute)), Some((50_000, 60_000))),
        ("retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n".to_owned(), Some((0, 0))),
        ("retry-after: soon\r\n".to_owned(), None),
        ("retry-after: -5\r\n".to_owned(), None),
        ("retry-after: 1e300\r\n".to_owned(), None),
        (String::new(), None),
    ];
    for (headers, expected) in cases {
        for status in ["429 Too Many Requests", "503 Service Unavailable"] {
            let steps = vec![Step::Send(until_close(status, &headers, "{}"))];
            let error = exchange(|base| settings(ProviderKind::Openai, base), steps).await.result.unwrap_err();
            let millis = error.retry_after.map(|wait| wait.as_millis());
            let is_expected = match expected {
                Some((least, most)) => millis.is_some_and(|millis| (least..=most).contains(&millis)),
                None => millis.is_none(),
            };
            assert!(is_expected, "{headers}: {millis:?}");
        }
    }
}

#[tokio::test]
async fn answers_that_are_no_answers_are_told_apart() {
    let page = "<html><title>Sign in</title></html>";
    for kind in BOTH {
        let huge = format!("HTTP/1.1 200 OK\r\nx-large: {}\r\n\r\n", "x".repeat(2_000_000));
        let cases: Vec<(&str, Vec<Step>, ErrorKind)> = vec![
            ("a page", vec![Step::Send(in_pieces("text/html", [page.as_bytes()]))], ErrorKind::Malformed),
            ("JSON of something else", vec![Step::Send(in_pieces("application/json", [&b"{\"ok\":true}"[..]]))], ErrorKind::Malformed),
            ("half a JSON", vec![Step::Send(in_pieces("application/json", [&b"{\"choices\":[{"[..]]))], ErrorKind::Malformed),
            ("lines of JSON", vec![Step::Send(in_pieces("application/x-ndjson", [&b"{}\n{}\n"[..]]))], ErrorKind::Malformed),
            (
                "a success with an error",
                vec![Step::Send(in_pieces("application/json", [&b"{\"error\":{\"message\":\"x\"}}"[..]]))],
                ErrorKind::Overloaded,
            ),
            (
                "an empty body",
                vec![Step::Send(until_close("200 OK", "content-type: text/event-stream\r\ncontent-length: 0\r\n", ""))],
                ErrorKind::Cut,
            ),
            ("an empty JSON body", vec![Step::Send(in_pieces("application/json", []))], ErrorKind::Malformed),
            ("a huge header", vec![Step::Send(huge.into_bytes())], ErrorKind::Cut),
            ("not HTTP", vec![Step::Send(b"220 mail.example ESMTP\r\n".to_vec())], ErrorKind::Cut),
            ("closed before the head", vec![], ErrorKind::Cut),
            ("half a head", vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-t".to_vec())], ErrorKind::Cut),
            ("reset before the head", vec![Step::Reset], ErrorKind::Cut),
            ("no head", vec![Step::Hang], ErrorKind::Timeout),
            (
                "a head that never ends",
                vec![Step::Send(b"HTTP/1.1 200 OK\r\n".to_vec()), Step::SendForever(b"x-a: b\r\n".to_vec(), Duration::from_millis(20))],
                ErrorKind::Timeout,
            ),
            (
                "a refusal that falls silent",
                vec![Step::Send(b"HTTP/1.1 500 Oh\r\ncontent-length: 99\r\n\r\nbroken".to_vec()), Step::Hang],
                ErrorKind::Overloaded,
            ),
        ];
        for (name, steps, expected) in cases {
            let begun = Instant::now();
            let hurry = match steps.last() {
                Some(Step::Hang) => hurried,
                Some(Step::SendForever(..)) => hurried_to_the_end,
                _ => settings,
            };
            let outcome = exchange(|base| hurry(kind, base), steps).await;
            assert_eq!(outcome.kind(), Some(expected), "{name}: {:?}", outcome.result);
            assert!(outcome.parts.message.content.is_empty(), "{name}");
            assert!(begun.elapsed() < Duration::from_secs(30), "{name}");
        }
    }
}

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for kind in BOTH {
        let outcome = ask_short(&*provider(&settings(kind, &base))).await;
        assert_eq!(outcome.kind(), Some(ErrorKind::Unreachable));
        assert!(outcome.message().contains("refused") && outcome.message().contains("provider.base_url"), "{}", outcome.message());
    }
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_may_take_its_time_before_the_head() {
    let late = |kind: ProviderKind, whole: &str| {
        let steps = vec![Step::Pause(Duration::from_millis(150)), Step::Send(in_pieces("application/json", [whole.as_bytes()]))];
        exchange(move |base| ProviderSettings { streaming: false, idle_timeout: Span::from_millis(50), ..settings(kind, base) }, steps)
    };
    assert_eq!(late(ProviderKind::Openai, OPENAI_WHOLE).await.result, Ok(()));
    assert_eq!(late(ProviderKind::Anthropic, ANTHROPIC_WHOLE).await.result, Ok(()));
}

#[tokio::test]
async fn all_that_was_said_counts_when_a_server_forgets_the_end_mark() {
    let stream = format!("data: {}\n\ndata: {}\n\n", delta(json!({ "content": "whole" })), end("stop"));
    for last in [Step::Hang, Step::Reset] {
        let steps = vec![Step::Send(unended(EVENTS, [stream.as_bytes()])), last];
        let outcome = exchange(|base| hurried(ProviderKind::Openai, base), steps).await;
        assert_eq!((outcome.result.clone(), outcome.text().as_str()), (Ok(()), "whole"));
    }
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_whole_answer() {
    for recording in recordings() {
        let mut server = serve(vec![Step::Send(in_pieces(EVENTS, [recording.stream.as_bytes()]))]).await;
        let provider = provider(&settings(recording.kind, &server.base));
        for _ in 0..3 {
            recording.check_whole(&ask_short(&*provider).await);
            assert_eq!(server.requests.recv().await.unwrap().connection, 0);
        }
    }
}

#[tokio::test]
async fn a_dropped_question_closes_its_connection() {
    for kind in BOTH {
        let Server { base, mut requests, mut closed } =
            serve(vec![Step::Send(unended(EVENTS, [beginning(kind).as_bytes()])), Step::Hang]).await;
        let provider = provider(&settings(kind, &base));
        let mut events: Vec<Event> = Vec::new();
        let mut reply = Reply::new(&mut events, 100);
        let messages = [Message::user("hello")];
        let request = Request { system: None, messages: &messages, tools: &[], max_tokens: 100 };
        let asked = tokio::time::timeout(Duration::from_millis(150), provider.ask(request, &mut reply)).await;
        assert!(asked.is_err());
        requests.recv().await.unwrap();
        tokio::time::timeout(Duration::from_secs(5), closed.recv()).await.unwrap().unwrap();
        assert_eq!(reply.into_parts().message.text(), "Half an ans");
    }
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_anything_is_sent() {
    let with_extra = |kind: ProviderKind, name: &str| ProviderSettings {
        extra: [(name.to_owned(), json!(1))].into_iter().collect(),
        ..settings(kind, "http://localhost")
    };
    for name in ["max_tokens", "max_completion_tokens", "n", "stream", "messages", "tools", "model"] {
        assert!(OpenAi::new(&with_extra(ProviderKind::Openai, name), None).unwrap_err().contains(&format!("`{name}`")));
    }
    for name in ["max_tokens", "system", "stream", "messages", "tools", "model"] {
        assert!(Anthropic::new(&with_extra(ProviderKind::Anthropic, name), None).unwrap_err().contains(&format!("`{name}`")));
    }
    let own = ProviderSettings { max_tokens_field: "limit".to_owned(), ..with_extra(ProviderKind::Openai, "limit") };
    assert!(OpenAi::new(&own, None).unwrap_err().contains("`limit`"));
    for base in ["localhost:11434/v1", "ftp://host", "", "/v1"] {
        let settings = ProviderSettings { base_url: Some(base.to_owned()), ..ProviderSettings::new(ProviderKind::Openai, "m") };
        assert!(OpenAi::new(&settings, None).unwrap_err().contains("provider.base_url"), "{base}");
    }
    let key = Some("two\nlines".to_owned());
    assert!(OpenAi::new(&settings(ProviderKind::Openai, "http://localhost"), key).unwrap_err().contains("line break"));
    // The providers' own addresses, with TLS and without any process-wide choice of its parts.
    let openai = OpenAi::new(&ProviderSettings::new(ProviderKind::Openai, "m"), Some(" sk-secret\n".to_owned())).unwrap();
    let anthropic = Anthropic::new(&ProviderSettings::new(ProviderKind::Anthropic, "m"), Some("sk-secret".to_owned())).unwrap();
    for shown in [format!("{openai:?}"), format!("{anthropic:?}")] {
        assert!(shown.contains("https") && !shown.contains("sk-secret"), "{shown}");
    }
}

/// Serves the recording over TLS, with a certificate that only it itself vouches for.
fn serve_tls() -> String {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use std::io::{Read as _, Write as _};

    let certificate = CertificateDer::from_pem_slice(include_bytes!("wire/localhost.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("wire/localhost.key")).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = std::sync::Arc::new(config);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = rustls::StreamOwned::new(rustls::ServerConnection::new(config.clone()).unwrap(), stream.unwrap());
            // The whole request comes in one record; a client that does not trust the certificate sends none.
            if stream.read(&mut [0; 4096]).is_ok() {
                stream.write_all(&in_pieces(EVENTS, [OPENAI.as_bytes()])).unwrap();
            }
        }
    });
    base
}

const TLS_BASE: &str = "RUNGUARD_TEST_TLS_BASE";

#[tokio::test]
async fn https_works_with_a_trusted_certificate_and_no_other() {
    let base = serve_tls();
    let outcome = ask_short(&*provider(&settings(ProviderKind::Openai, &base))).await;
    assert_eq!(outcome.kind(), Some(ErrorKind::Unreachable), "{:?}", outcome.result);
    assert!(outcome.message().contains("certificate"), "{}", outcome.message());

    // What is trusted is read from the environment, which only another process can have otherwise.
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "providers::https_with_the_certificate_trusted"])
        .env("SSL_CERT_FILE", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/localhost.crt"))
        .env(TLS_BASE, base)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
#[ignore = "run by the test above, in a process that trusts its certificate"]
async fn https_with_the_certificate_trusted() {
    let Ok(base) = std::env::var(TLS_BASE) else { return };
    recordings()[0].check_whole(&ask_short(&*provider(&settings(ProviderKind::Openai, &base))).await);
}
