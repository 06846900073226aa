//! Bedrock against local servers that write true frames, whole and broken.
//!
//! The last test proves signature, path, body and frames with AWS's own client. It wants a Python that has botocore:
//!
//! ```text
//! python3 -m venv venv && venv/bin/pip install botocore
//! BOTOCORE_PYTHON=$PWD/venv/bin/python cargo test -p runguard-agent --test all -- --ignored bedrock::
//! ```

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use aws_smithy_eventstream::frame::write_message_to;
use aws_smithy_types::event_stream::{Header, HeaderValue, Message as Frame};
use proptest::prelude::*;
use runguard_agent::event::Event;
use runguard_agent::message::{Block, Message, Role, ToolCall, ToolResult};
use runguard_agent::provider::bedrock::{Access, Bedrock};
use runguard_agent::provider::{ErrorKind, Finish, Parts, Provider, ProviderError, Reply, Request};
use runguard_agent::settings::{ProviderKind, ProviderSettings};
use runguard_agent::tool::{Effect, ToolSpec};
use runguard_core::prices::Usage;
use runguard_core::time::Span;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const MODEL: &str = "us.anthropic.claude-haiku-4-5-20251001-v1:0";
const PROFILE_ARN: &str = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-haiku-4-5-20251001-v1:0";

// --- frames ---------------------------------------------------------------------------------------------------------------

fn frame(headers: &[(&'static str, &str)], payload: &[u8]) -> Vec<u8> {
    let mut frame = Frame::new(payload.to_vec());
    for (name, value) in headers {
        frame = frame.add_header(Header::new(*name, HeaderValue::String((*value).to_owned().into())));
    }
    let mut bytes = Vec::new();
    write_message_to(&frame, &mut bytes).unwrap();
    bytes
}

fn event(name: &str, payload: Value) -> Vec<u8> {
    let headers = [(":event-type", name), (":content-type", "application/json"), (":message-type", "event")];
    frame(&headers, payload.to_string().as_bytes())
}

fn exception(name: &str, message: &str) -> Vec<u8> {
    let headers = [(":exception-type", name), (":content-type", "application/json"), (":message-type", "exception")];
    frame(&headers, json!({ "message": message }).to_string().as_bytes())
}

fn text(piece: &str) -> Vec<u8> {
    event("contentBlockDelta", json!({ "contentBlockIndex": 0, "delta": { "text": piece }, "p": "abcdefgh" }))
}

fn delta(index: usize, delta: Value) -> Vec<u8> {
    event("contentBlockDelta", json!({ "contentBlockIndex": index, "delta": delta }))
}

fn block_stop(index: usize) -> Vec<u8> {
    event("contentBlockStop", json!({ "contentBlockIndex": index }))
}

fn stop(reason: &str) -> Vec<u8> {
    event("messageStop", json!({ "stopReason": reason }))
}

fn metadata() -> Vec<u8> {
    let usage = json!({
        "inputTokens": 120, "outputTokens": 45, "totalTokens": 1_265, "cacheReadInputTokens": 1_000, "cacheWriteInputTokens": 100,
        "cacheDetails": [{ "ttl": "1h", "inputTokens": 60 }],
    });
    event("metadata", json!({ "usage": usage, "metrics": { "latencyMs": 551 } }))
}

/// Thoughts, redacted thoughts, text and two calls.
fn full_stream() -> Vec<Vec<u8>> {
    vec![
        event("messageStart", json!({ "role": "assistant" })),
        delta(0, json!({ "reasoningContent": { "text": "Two files" } })),
        delta(0, json!({ "reasoningContent": { "text": ", so two reads." } })),
        delta(0, json!({ "reasoningContent": { "signature": "c2ln" } })),
        block_stop(0),
        // "hidd" and "en", each encoded by itself: joined as texts they would be broken.
        delta(1, json!({ "reasoningContent": { "redactedContent": "aGlkZA==" } })),
        delta(1, json!({ "reasoningContent": { "redactedContent": "ZW4=" } })),
        block_stop(1),
        delta(2, json!({ "text": "" })),
        delta(2, json!({ "text": "I read b\u{f6}th " })),
        event("somethingAwsAddsLater", json!({ "contentBlockIndex": 2 })),
        delta(2, json!({ "text": "\u{1f4c4}." })),
        delta(2, json!({ "citation": { "title": "unasked" } })),
        block_stop(2),
        event(
            "contentBlockStart",
            json!({ "contentBlockIndex": 3, "start": { "toolUse": { "toolUseId": "tooluse_a", "name": "read_file" } } }),
        ),
        delta(3, json!({ "toolUse": { "input": "" } })),
        delta(3, json!({ "toolUse": { "input": "{\"path\": \"a" } })),
        delta(3, json!({ "toolUse": { "input": ".txt\"}" } })),
        block_stop(3),
        event("contentBlockStart", json!({ "contentBlockIndex": 4, "start": { "toolUse": { "toolUseId": "tooluse_b", "name": "list" } } })),
        block_stop(4),
        stop("tool_use"),
        metadata(),
    ]
}

fn full_message() -> Message {
    let call = |id: &str, name: &str, arguments: &str| {
        Block::ToolCall(ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() })
    };
    let content = vec![
        Block::Thinking { text: "Two files, so two reads.".to_owned(), signature: Some("c2ln".to_owned()) },
        Block::Opaque { value: json!({ "reasoningContent": { "redactedContent": "aGlkZGVu" } }) },
        Block::Text { text: "I read b\u{f6}th \u{1f4c4}.".to_owned() },
        call("tooluse_a", "read_file", "{\"path\": \"a.txt\"}"),
        call("tooluse_b", "list", ""),
    ];
    Message { role: Role::Assistant, content, reason: None }
}

fn full_usage() -> Usage {
    Usage {
        input_tokens: 120,
        output_tokens: 45,
        cached_tokens: 1_000,
        cache_write_tokens: 40,
        cache_write_1h_tokens: 60,
        ..Usage::default()
    }
}

// --- a server that answers once ---------------------------------------------------------------------------------------------

#[derive(Debug, Clone)]
enum Then {
    End,
    /// The connection goes in mid-answer.
    Drop,
    Silence,
    Forever(Vec<u8>),
}

#[derive(Debug)]
struct Seen {
    head: String,
    body: Value,
    body_text: String,
}

impl Seen {
    fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        headers.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

async fn read_request(socket: &mut TcpStream) -> Seen {
    let mut bytes = Vec::new();
    loop {
        let head_end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = head_end {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").map(|v| v.trim().parse::<usize>()));
            let length = length.expect("a content-length").unwrap();
            if bytes.len() >= end + 4 + length {
                let body_text = String::from_utf8(bytes[end + 4..].to_vec()).unwrap();
                return Seen { head, body: serde_json::from_str(&body_text).unwrap(), body_text };
            }
        }
        assert!(socket.read_buf(&mut bytes).await.unwrap() > 0, "the request ended early");
    }
}

/// Each piece is a chunk of its own.
async fn answer_once(status: &'static str, content_type: &'static str, pieces: Vec<Vec<u8>>, then: Then) -> (String, JoinHandle<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let seen = read_request(&mut socket).await;
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            if write_chunk(&mut socket, piece).await.is_err() {
                return seen;
            }
        }
        match then {
            Then::End => {
                // Whoever has seen enough may be gone already.
                let _ = socket.write_all(b"0\r\n\r\n").await;
            }
            Then::Drop => {}
            // Until the other side goes.
            Then::Silence => while matches!(socket.read_buf(&mut Vec::new()).await, Ok(1..)) {},
            Then::Forever(piece) => while write_chunk(&mut socket, &piece).await.is_ok() {},
        }
        seen
    });
    (address, task)
}

async fn write_chunk(socket: &mut TcpStream, piece: &[u8]) -> std::io::Result<()> {
    socket.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
    socket.write_all(piece).await?;
    socket.write_all(b"\r\n").await?;
    socket.flush().await
}

// --- asking -----------------------------------------------------------------------------------------------------------------

fn settings(address: &str) -> ProviderSettings {
    let mut settings = ProviderSettings::new(ProviderKind::Bedrock, MODEL);
    settings.base_url = Some(address.to_owned());
    settings.region = Some("us-east-1".to_owned());
    settings
}

fn access() -> Access {
    Access::keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", Some("session/token+=".to_owned()))
}

struct Outcome {
    result: Result<(), ProviderError>,
    parts: Parts,
    chunks: Vec<(String, bool)>,
}

impl Outcome {
    fn kind(&self) -> ErrorKind {
        self.result.as_ref().unwrap_err().kind
    }
}

async fn ask(provider: &Bedrock, request: Request<'_>) -> Outcome {
    let mut events: Vec<Event> = Vec::new();
    let mut reply = Reply::new(&mut events, request.max_tokens);
    let result = provider.ask(request, &mut reply).await;
    let parts = reply.into_parts();
    let chunk = |event: Event| match event {
        Event::Chunk(chunk) => (chunk.text, chunk.finished),
        other => panic!("{other:?}"),
    };
    Outcome { result, parts, chunks: events.into_iter().map(chunk).collect() }
}

fn question(messages: &[Message]) -> Request<'_> {
    Request { system: None, messages, tools: &[], max_tokens: 100 }
}

async fn ask_stream(pieces: Vec<Vec<u8>>, then: Then) -> Outcome {
    let (address, server) = answer_once("200 OK", "application/vnd.amazon.eventstream", pieces, then).await;
    let outcome = ask(&Bedrock::new(&settings(&address), access()).unwrap(), question(&[Message::user("hi")])).await;
    server.await.unwrap();
    assert_eq!(outcome.chunks.iter().filter(|(_, finished)| *finished).count(), 1);
    outcome
}

fn spec(name: &str) -> ToolSpec {
    let input_schema = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
    ToolSpec { name: name.to_owned(), description: "Reads.".to_owned(), input_schema, effect: Effect::ReadOnly, parallel: true }
}

// --- whole answers ----------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_whole_answer_is_put_together() {
    let outcome = ask_stream(full_stream(), Then::End).await;
    outcome.result.unwrap();
    assert_eq!(outcome.parts.message, full_message());
    assert_eq!(outcome.parts.usage, Some(full_usage()));
    assert_eq!(outcome.parts.finish, Some(Finish::ToolUse));
    let texts: Vec<&str> = outcome.chunks.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(texts, ["Two files", ", so two reads.", "I read b\u{f6}th ", "\u{1f4c4}.", ""]);
}

/// The connection may stay open after the last event; nobody waits for its end, and nothing after it counts.
#[tokio::test]
async fn the_answer_is_over_with_its_metadata() {
    let outcome = ask_stream([full_stream(), vec![text("One more thing.")]].concat(), Then::Silence).await;
    outcome.result.unwrap();
    assert_eq!(outcome.parts.message, full_message());
    assert_eq!(outcome.parts.usage, Some(full_usage()));
    // Only after `messageStop` it is the end.
    let outcome = ask_stream(vec![metadata(), text("Done."), stop("end_turn")], Then::End).await;
    outcome.result.unwrap();
    assert_eq!((outcome.parts.message.text().as_str(), outcome.parts.usage), ("Done.", Some(full_usage())));
}

#[tokio::test]
async fn an_answer_without_metadata_is_whole_and_has_no_usage() {
    for (extra, then) in [(vec![], Then::End), (vec![], Then::Drop), (vec![exception("internalServerException", "late")], Then::End)] {
        let pieces = [vec![text("Done."), block_stop(0), stop("end_turn")], extra].concat();
        let outcome = ask_stream(pieces, then).await;
        outcome.result.unwrap();
        assert_eq!(
            (outcome.parts.message.text().as_str(), outcome.parts.usage, outcome.parts.finish),
            ("Done.", None, Some(Finish::EndTurn))
        );
    }
}

#[tokio::test]
async fn every_reason_to_stop_is_understood() {
    let call = event("contentBlockStart", json!({ "contentBlockIndex": 1, "start": { "toolUse": { "toolUseId": "t", "name": "n" } } }));
    for (reason, with_call, expected) in [
        ("end_turn", false, Ok(Finish::EndTurn)),
        ("stop_sequence", false, Ok(Finish::EndTurn)),
        ("tool_use", true, Ok(Finish::ToolUse)),
        ("end_turn", true, Ok(Finish::ToolUse)),
        ("max_tokens", true, Ok(Finish::MaxTokens)),
        ("guardrail_intervened", false, Ok(Finish::Refused)),
        ("content_filtered", false, Ok(Finish::Refused)),
        ("malformed_model_output", false, Err(ErrorKind::Malformed)),
        ("malformed_tool_use", true, Err(ErrorKind::Malformed)),
        ("model_context_window_exceeded", false, Err(ErrorKind::ContextTooLong)),
        ("a_reason_of_tomorrow", false, Ok(Finish::EndTurn)),
    ] {
        let start = if with_call { call.clone() } else { text("x") };
        let outcome = ask_stream(vec![start, stop(reason), metadata()], Then::End).await;
        assert_eq!(outcome.result.map_err(|problem| problem.kind), expected.map(|_| ()), "{reason}");
        assert_eq!(outcome.parts.finish, expected.ok(), "{reason}");
        // What was used is known whatever came of it.
        assert_eq!(outcome.parts.usage, Some(full_usage()), "{reason}");
    }
}

#[tokio::test]
async fn without_streaming_the_answer_is_the_same() {
    let answer = json!({
        "output": { "message": { "role": "assistant", "content": [
            { "reasoningContent": { "reasoningText": { "text": "Two files, so two reads.", "signature": "c2ln" } } },
            { "reasoningContent": { "redactedContent": "aGlkZGVu" } },
            { "text": "I read b\u{f6}th \u{1f4c4}." },
            { "toolUse": { "toolUseId": "tooluse_a", "name": "read_file", "input": { "path": "a.txt" } } },
            { "toolUse": { "toolUseId": "tooluse_b", "name": "list", "input": {} } },
        ] } },
        "stopReason": "tool_use",
        "usage": { "inputTokens": 120, "outputTokens": 45, "totalTokens": 1_265, "cacheReadInputTokens": 1_000, "cacheWriteInputTokens": 100,
                   "cacheDetails": [{ "ttl": "1h", "inputTokens": 60 }] },
        "metrics": { "latencyMs": 5 },
    });
    let (address, server) = answer_once("200 OK", "application/json", vec![answer.to_string().into_bytes()], Then::End).await;
    let mut settings = settings(&address);
    settings.streaming = false;
    let outcome = ask(&Bedrock::new(&settings, access()).unwrap(), question(&[Message::user("hi")])).await;
    outcome.result.unwrap();
    assert_eq!(server.await.unwrap().path(), "/model/us.anthropic.claude-haiku-4-5-20251001-v1%3A0/converse");
    assert_eq!((outcome.parts.usage, outcome.parts.finish), (Some(full_usage()), Some(Finish::ToolUse)));
    let parsed = |message: &Message| message.tool_calls().map(|call| (call.id.clone(), call.parsed().unwrap())).collect::<Vec<_>>();
    assert_eq!(parsed(&outcome.parts.message), parsed(&full_message()));
    assert_eq!(outcome.parts.message.content[..3], full_message().content[..3]);
}

#[tokio::test]
async fn a_whole_answer_that_is_none_is_malformed() {
    for answer in
        [json!({}), json!({ "output": { "message": { "content": [{ "text": "x" }] } } }), json!({ "output": 7, "stopReason": "end_turn" })]
    {
        let (address, server) = answer_once("200 OK", "application/json", vec![answer.to_string().into_bytes()], Then::End).await;
        let mut settings = settings(&address);
        settings.streaming = false;
        let outcome = ask(&Bedrock::new(&settings, access()).unwrap(), question(&[Message::user("hi")])).await;
        assert_eq!(outcome.kind(), ErrorKind::Malformed, "{answer}");
        server.await.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However the bytes are cut on the way, the same answer comes out.
    #[test]
    fn the_wire_may_cut_anywhere(cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..40)) {
        let bytes = full_stream().concat();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).chain([bytes.len()]).collect();
        ends.sort_unstable();
        let mut begin = 0;
        let pieces = ends.into_iter().map(|end| bytes[std::mem::replace(&mut begin, end)..end].to_vec()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(ask_stream(pieces, Then::End));
        prop_assert_eq!(outcome.result, Ok(()));
        prop_assert_eq!(outcome.parts.message, full_message());
        prop_assert_eq!(outcome.parts.usage, Some(full_usage()));
    }

    /// A byte that is changed on the way is noticed: the checksums cover everything. Whatever happens, nothing but the true
    /// answer is ever called whole.
    #[test]
    fn a_changed_byte_is_noticed(place in any::<proptest::sample::Index>(), change in 1_u8..=255) {
        let whole = [text("Hello "), text("there."), block_stop(0), stop("end_turn")];
        let mut bytes = whole.concat();
        let place = place.index(bytes.len());
        bytes[place] ^= change;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(ask_stream(vec![bytes], Then::End));
        let kind = outcome.kind();
        prop_assert!(matches!(kind, ErrorKind::Malformed | ErrorKind::Cut), "{kind:?}");
        prop_assert!("Hello there.".starts_with(&outcome.parts.message.text()));
    }
}

// --- broken answers ---------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_stream_that_ends_early_is_cut_and_what_came_is_kept() {
    let half = text("and then");
    for (pieces, then) in [
        (vec![text("First ")], Then::Drop),
        (vec![text("First "), half[..half.len() / 2].to_vec()], Then::End),
        (vec![text("First "), half[..7].to_vec()], Then::End),
    ] {
        let outcome = ask_stream(pieces, then).await;
        assert_eq!(outcome.kind(), ErrorKind::Cut);
        assert_eq!(outcome.parts.message.text(), "First ");
        assert_eq!(outcome.parts.finish, None);
    }
    assert_eq!(ask_stream(vec![], Then::End).await.kind(), ErrorKind::Cut);
}

#[tokio::test]
async fn a_stream_that_is_closed_without_an_end_mark_is_an_answer() {
    for pieces in [vec![text("First ")], vec![text("First "), block_stop(0)]] {
        let outcome = ask_stream(pieces, Then::End).await;
        assert_eq!(outcome.result, Ok(()));
        assert!(outcome.parts.is_unmarked && outcome.parts.finish == Some(Finish::EndTurn));
        assert_eq!(outcome.parts.message.text(), "First ");
    }
}

#[tokio::test]
async fn broken_frames_are_malformed() {
    let mut bad_checksum = text("x");
    *bad_checksum.last_mut().unwrap() ^= 1;
    let mut absurd_length = text("x");
    absurd_length[..4].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut no_length = text("x");
    no_length[..4].copy_from_slice(&0_u32.to_be_bytes());
    let not_json = frame(&[(":event-type", "contentBlockDelta"), (":message-type", "event")], b"{\"delta\":");
    let unstarted = delta(5, json!({ "toolUse": { "input": "{}" } }));
    let nameless = event("contentBlockStart", json!({ "contentBlockIndex": 0, "start": { "toolUse": { "toolUseId": "t" } } }));
    let untyped = frame(&[(":event-type", "contentBlockDelta")], b"{}");
    let bad_blob = delta(0, json!({ "reasoningContent": { "redactedContent": "?" } }));
    for (what, piece) in [
        ("checksum", bad_checksum),
        ("absurd length", absurd_length),
        ("no length", no_length),
        ("not JSON", not_json),
        ("arguments before their call", unstarted),
        ("a call without a name", nameless),
        ("no message type", untyped),
        ("not base64", bad_blob),
        ("no stop reason", event("messageStop", json!({}))),
    ] {
        // The server stays: the verdict does not wait for the bytes a lying length promises.
        let outcome = ask_stream(vec![text("First "), piece], Then::Silence).await;
        assert_eq!(outcome.kind(), ErrorKind::Malformed, "{what}");
        assert_eq!(outcome.parts.message.text(), "First ", "{what}");
    }
}

#[tokio::test]
async fn something_else_than_a_stream_is_malformed() {
    let (address, server) = answer_once("200 OK", "text/html", vec![b"<html>".to_vec()], Then::End).await;
    let outcome = ask(&Bedrock::new(&settings(&address), access()).unwrap(), question(&[Message::user("hi")])).await;
    assert_eq!(outcome.kind(), ErrorKind::Malformed);
    assert!(outcome.result.unwrap_err().message.contains("text/html"));
    server.await.unwrap();
}

#[tokio::test]
async fn exceptions_in_the_stream_have_their_kind() {
    let error = frame(&[(":message-type", "error"), (":error-code", "InternalServerException"), (":error-message", "oops")], b"");
    for (piece, expected, recoverable) in [
        (exception("throttlingException", "slow down"), ErrorKind::RateLimited, true),
        (exception("serviceUnavailableException", "busy"), ErrorKind::Overloaded, true),
        (exception("internalServerException", "oops"), ErrorKind::Overloaded, true),
        (exception("modelStreamErrorException", "oops"), ErrorKind::Overloaded, true),
        (exception("modelTimeoutException", "late"), ErrorKind::Timeout, true),
        (exception("validationException", "The model returned the following errors: wrong field"), ErrorKind::Rejected, false),
        (exception("validationException", "Input is too long for requested model."), ErrorKind::ContextTooLong, false),
        (exception("validationException", "prompt is too long: 200049 tokens > 200000 maximum"), ErrorKind::ContextTooLong, false),
        (error, ErrorKind::Overloaded, true),
    ] {
        let outcome = ask_stream(vec![text("First "), piece], Then::End).await;
        assert_eq!((outcome.kind(), outcome.kind().is_recoverable()), (expected, recoverable));
        assert_eq!(outcome.parts.message.text(), "First ");
    }
    let outcome = ask_stream(vec![exception("throttlingException", "slow down")], Then::End).await;
    assert_eq!(outcome.result.unwrap_err().message, "Bedrock broke the answer off with throttlingException: slow down");
}

#[tokio::test]
async fn a_refused_request_says_why() {
    for (status, message, expected) in [
        ("400 Bad Request", "Input is too long for requested model.", ErrorKind::ContextTooLong),
        ("400 Bad Request", "The model does not support tools.", ErrorKind::Rejected),
        ("403 Forbidden", "The security token included in the request is expired: context window", ErrorKind::Unauthorised),
        ("429 Too Many Requests", "Too many requests", ErrorKind::RateLimited),
        ("503 Service Unavailable", "busy", ErrorKind::Overloaded),
    ] {
        let body = json!({ "message": message }).to_string().into_bytes();
        let (address, server) = answer_once(status, "application/json", vec![body], Then::End).await;
        let outcome = ask(&Bedrock::new(&settings(&address), access()).unwrap(), question(&[Message::user("hi")])).await;
        assert_eq!(outcome.kind(), expected, "{status} {message}");
        assert!(outcome.result.unwrap_err().message.contains(message));
        server.await.unwrap();
    }
}

#[tokio::test]
async fn silence_is_a_timeout_before_the_end_and_no_matter_after_it() {
    for (pieces, expected) in [
        (vec![], Err(ErrorKind::Timeout)),
        (vec![text("First ")], Err(ErrorKind::Timeout)),
        (vec![text("First "), stop("end_turn")], Ok(())),
    ] {
        let (address, server) = answer_once("200 OK", "application/vnd.amazon.eventstream", pieces, Then::Silence).await;
        let mut settings = settings(&address);
        settings.idle_timeout = Span::from_millis(150);
        let outcome = ask(&Bedrock::new(&settings, access()).unwrap(), question(&[Message::user("hi")])).await;
        assert_eq!(outcome.result.map_err(|problem| problem.kind), expected);
        // The server has seen the connection go.
        server.await.unwrap();
    }
}

#[tokio::test]
async fn streams_without_end_are_closed() {
    let call = event("contentBlockStart", json!({ "contentBlockIndex": 0, "start": { "toolUse": { "toolUseId": "t", "name": "n" } } }));
    for (what, piece, bound) in [
        ("text", text(&"blah ".repeat(400)), "the answer is longer"),
        ("calls", call, "calls in one answer"),
        ("nothing", text(""), "far beyond max_tokens"),
        ("unknown events", event("keepAlive", json!({ "padding": "x".repeat(4_000) })), "far beyond max_tokens"),
        ("redacted thoughts", delta(0, json!({ "reasoningContent": { "redactedContent": "QUFB".repeat(2_000) } })), "redacted thoughts"),
    ] {
        let outcome = ask_stream(vec![], Then::Forever(piece)).await;
        assert_eq!(outcome.kind(), ErrorKind::Endless, "{what}");
        let message = outcome.result.unwrap_err().message;
        assert!(message.contains(bound), "{what}: {message}");
    }
}

// --- what is sent -----------------------------------------------------------------------------------------------------------

async fn sent(settings: impl FnOnce(&mut ProviderSettings), access: Access, request: Request<'_>) -> Seen {
    let pieces = vec![text("ok"), stop("end_turn"), metadata()];
    let (address, server) = answer_once("200 OK", "application/vnd.amazon.eventstream", pieces, Then::End).await;
    let mut its = self::settings(&address);
    settings(&mut its);
    ask(&Bedrock::new(&its, access).unwrap(), request).await.result.unwrap();
    server.await.unwrap()
}

fn result(id: &str, text: &str, is_error: bool) -> ToolResult {
    ToolResult { id: id.to_owned(), name: "read_file".to_owned(), text: text.to_owned(), is_error }
}

/// Everything a conversation can hold.
fn conversation() -> Vec<Message> {
    let mut answer = full_message();
    answer.content.retain(|block| !matches!(block, Block::Opaque { .. }));
    answer.content.insert(0, Block::Thinking { text: "unsigned".to_owned(), signature: None });
    answer.content.insert(2, Block::Text { text: "  \n".to_owned() });
    vec![
        Message::user("Read both."),
        Message::user("Please."),
        answer,
        Message::results(vec![result("tooluse_a", "content", false), result("tooluse_b", "", true)]),
        Message::assistant(""),
        Message::user("And?"),
    ]
}

#[tokio::test]
async fn the_conversation_is_sent_as_converse_wants_it() {
    let messages = conversation();
    let tools = [spec("read_file")];
    let request = Request { system: Some("Be brief."), messages: &messages, tools: &tools, max_tokens: 77 };
    let seen = sent(|settings| settings.temperature = Some(0.5), access(), request).await;
    assert_eq!(
        seen.body,
        json!({
            "messages": [
                { "role": "user", "content": [{ "text": "Read both." }, { "text": "Please." }] },
                { "role": "assistant", "content": [
                    { "reasoningContent": { "reasoningText": { "text": "Two files, so two reads.", "signature": "c2ln" } } },
                    { "text": "I read b\u{f6}th \u{1f4c4}." },
                    { "toolUse": { "toolUseId": "tooluse_a", "name": "read_file", "input": { "path": "a.txt" } } },
                    { "toolUse": { "toolUseId": "tooluse_b", "name": "list", "input": {} } },
                ] },
                { "role": "user", "content": [
                    { "toolResult": { "toolUseId": "tooluse_a", "content": [{ "text": "content" }], "status": "success" } },
                    { "toolResult": { "toolUseId": "tooluse_b", "content": [{ "text": "(nothing)" }], "status": "error" } },
                    { "text": "And?" },
                ] },
            ],
            "system": [{ "text": "Be brief." }],
            "toolConfig": { "tools": [{ "toolSpec": {
                "name": "read_file", "description": "Reads.",
                "inputSchema": { "json": { "type": "object", "properties": { "path": { "type": "string" } } } },
            } }] },
            "inferenceConfig": { "maxTokens": 77, "temperature": 0.5 },
        })
    );
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("accept"), Some("application/vnd.amazon.eventstream"));
    assert_eq!(seen.path(), "/model/us.anthropic.claude-haiku-4-5-20251001-v1%3A0/converse-stream");
}

#[tokio::test]
async fn what_came_redacted_goes_back_and_what_others_wrote_does_not() {
    let opaque = |value: Value| Message { role: Role::Assistant, content: vec![Block::Opaque { value }], reason: None };
    let ours = json!({ "reasoningContent": { "redactedContent": "aGlkZGVu" } });
    let messages =
        [Message::user("hi"), opaque(ours.clone()), opaque(json!({ "type": "redacted_thinking", "data": "x" })), Message::user("go")];
    let seen = sent(|_| {}, access(), question(&messages)).await;
    assert_eq!(seen.body["messages"][1], json!({ "role": "assistant", "content": [ours] }));
}

#[tokio::test]
async fn calls_without_tools_still_have_their_tools() {
    let seen = sent(|_| {}, access(), question(&conversation())).await;
    let tool = |name: &str| json!({ "toolSpec": { "name": name, "description": "Not available.", "inputSchema": { "json": { "type": "object" } } } });
    assert_eq!(seen.body["toolConfig"], json!({ "tools": [tool("list"), tool("read_file")] }));
    let seen = sent(|_| {}, access(), question(&[Message::user("hi")])).await;
    assert_eq!(seen.body.get("toolConfig"), None);
    assert_eq!(seen.body.get("system"), None);
}

#[tokio::test]
async fn arguments_that_are_no_object_are_wrapped() {
    for (arguments, expected) in [("{\"a\":", json!({ "arguments": "{\"a\":" })), ("[1]", json!({ "arguments": "[1]" })), ("", json!({}))] {
        let call = ToolCall { id: "t".to_owned(), name: "n".to_owned(), arguments: arguments.to_owned() };
        let asked = Message { role: Role::Assistant, content: vec![Block::ToolCall(call)], reason: None };
        let seen = sent(|_| {}, access(), question(&[Message::user("hi"), asked, Message::results(vec![result("t", "x", true)])])).await;
        assert_eq!(seen.body["messages"][1]["content"][0]["toolUse"]["input"], expected);
    }
}

#[tokio::test]
async fn extra_fields_are_joined_and_cannot_raise_max_tokens() {
    let extra = json!({
        "inferenceConfig": { "topP": 0.9, "maxTokens": 100_000 },
        "system": [{ "cachePoint": { "type": "default" } }],
        "additionalModelRequestFields": { "thinking": { "type": "enabled", "budget_tokens": 1024 } },
    });
    let messages = [Message::user("hi")];
    let request = Request { system: Some("Be brief."), messages: &messages, tools: &[], max_tokens: 77 };
    let seen = sent(|settings| settings.extra = extra.as_object().unwrap().clone(), access(), request).await;
    assert_eq!(seen.body["inferenceConfig"], json!({ "topP": 0.9, "maxTokens": 77 }));
    assert_eq!(seen.body["system"], json!([{ "text": "Be brief." }, { "cachePoint": { "type": "default" } }]));
    assert_eq!(seen.body["additionalModelRequestFields"], extra["additionalModelRequestFields"]);
    let seen = sent(|settings| settings.extra = json!({ "inferenceConfig": 7 }).as_object().unwrap().clone(), access(), request).await;
    assert_eq!(seen.body["inferenceConfig"], json!({ "maxTokens": 77 }));
}

#[tokio::test]
async fn an_arn_is_one_segment_of_the_path_and_the_request_is_signed() {
    let seen = sent(|settings| settings.model = PROFILE_ARN.to_owned(), access(), question(&[Message::user("hi")])).await;
    assert_eq!(
        seen.path(),
        "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fus.anthropic.claude-haiku-4-5-20251001-v1%3A0/converse-stream"
    );
    let authorization = seen.header("authorization").unwrap();
    assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"), "{authorization}");
    assert!(authorization.contains("/us-east-1/bedrock/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, "));
    assert_eq!(seen.header("x-amz-security-token"), Some("session/token+="));
}

#[tokio::test]
async fn an_api_key_is_sent_as_it_is() {
    let seen = sent(|settings| settings.region = None, Access::bearer("bedrock-api-key-x"), question(&[Message::user("hi")])).await;
    assert_eq!(seen.header("authorization"), Some("Bearer bedrock-api-key-x"));
    assert_eq!(seen.header("x-amz-date"), None);
}

/// A proxy's path stays in front.
#[tokio::test]
async fn a_base_url_may_have_a_path() {
    let with_path = |settings: &mut ProviderSettings| settings.base_url = settings.base_url.take().map(|url| url + "/bedrock/");
    let seen = sent(with_path, access(), question(&[Message::user("hi")])).await;
    assert!(seen.path().starts_with("/bedrock/model/us.anthropic"), "{}", seen.path());
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let refused = |change: fn(&mut ProviderSettings)| {
        let mut settings = settings("http://localhost:1");
        change(&mut settings);
        Bedrock::new(&settings, access()).unwrap_err()
    };
    assert!(refused(|settings| settings.region = None).contains("AWS_DEFAULT_REGION"));
    assert!(refused(|settings| settings.region = Some("us-east-1.evil.example/".to_owned())).contains("is not an AWS region"));
    assert!(refused(|settings| settings.base_url = Some("localhost".to_owned())).contains("base_url"));
    assert!(refused(|settings| settings.base_url = Some("mailto:x".to_owned())).contains("base_url"));
    let mut no_base = settings("");
    no_base.base_url = None;
    let shown = format!("{:?}", Bedrock::new(&no_base, access()).unwrap());
    assert!(shown.contains("bedrock-runtime.us-east-1.amazonaws.com"), "{shown}");
}

#[test]
fn secrets_are_not_shown() {
    for access in [access(), Access::bearer("wJalr-session")] {
        let provider = Bedrock::new(&settings("http://localhost:1"), access.clone()).unwrap();
        let shown = format!("{access:?} {provider:?}");
        assert!(!shown.contains("wJalr") && !shown.contains("session"), "{shown}");
    }
}

// --- credentials ------------------------------------------------------------------------------------------------------------

fn found(variables: &[(&str, &str)]) -> Result<String, String> {
    let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Access::from_environment(get).map(|access| format!("{access:?}"))
}

#[test]
fn credentials_are_found_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    let text = "# mine\n[default]\naws_access_key_id = FROMFILE\naws_secret_access_key=a=b\n\n[ work ]\nAWS_ACCESS_KEY_ID=WORK\naws_secret_access_key = s\n\
                aws_session_token = t\n[sso]\nsso_start_url = https://x\n";
    std::fs::write(&file, text).unwrap();
    let file = ("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap());
    let keys = [("AWS_ACCESS_KEY_ID", "FROMENV"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_PROFILE", "work")];

    assert_eq!(found(&[&keys[..], &[file, ("AWS_BEARER_TOKEN_BEDROCK", "b")]].concat()).unwrap(), "Access(API key)");
    assert_eq!(found(&[&keys[..], &[file]].concat()).unwrap(), "Access(access key FROMENV)");
    assert_eq!(found(&[file]).unwrap(), "Access(access key FROMFILE)");
    assert_eq!(found(&[file, ("AWS_PROFILE", "work"), ("AWS_BEARER_TOKEN_BEDROCK", " ")]).unwrap(), "Access(access key WORK)");

    let problem = found(&[file, ("AWS_PROFILE", "sso")]).unwrap_err();
    assert!(problem.contains("only plain keys are read") && problem.contains("export-credentials"), "{problem}");
    assert!(found(&[file, ("AWS_PROFILE", "other")]).unwrap_err().contains("it has no such profile"));
    assert!(found(&keys[..1]).unwrap_err().contains("AWS_SECRET_ACCESS_KEY is not"));
    assert!(found(&keys[1..2]).unwrap_err().contains("AWS_ACCESS_KEY_ID is not"));

    std::fs::create_dir(folder.path().join(".aws")).unwrap();
    std::fs::write(folder.path().join(".aws/credentials"), text).unwrap();
    let home = ("HOME", folder.path().to_str().unwrap());
    assert_eq!(found(&[home]).unwrap(), "Access(access key FROMFILE)");
    assert_eq!(found(&[home, ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")]).unwrap(), "Access(access key FROMFILE)");
}

#[test]
fn without_credentials_every_place_is_named() {
    let problem = found(&[("HOME", "/nowhere")]).unwrap_err();
    for place in
        ["AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "/nowhere/.aws/credentials", "'default'"]
    {
        assert!(problem.contains(place), "{place} in: {problem}");
    }
    assert!(found(&[]).unwrap_err().contains("HOME is not set"));
}

// --- botocore ---------------------------------------------------------------------------------------------------------------

/// Signs what we sent again, has botocore's client make the same request, and lets it read our frames.
const BOTOCORE: &str = r#"
import base64, datetime, json, sys
import botocore.auth, botocore.session
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.credentials import Credentials

given = json.load(sys.stdin)
when = datetime.datetime.strptime(given["date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
assert hasattr(botocore.auth, "get_current_datetime")
botocore.auth.get_current_datetime = lambda *args, **kwargs: when
request = AWSRequest("POST", given["base"] + given["path"], {"content-type": given["content_type"]}, given["body"].encode())
botocore.auth.SigV4Auth(Credentials(*given["keys"]), "bedrock", "us-east-1").add_auth(request)

class Raw:
    def stream(self, *args, **kwargs):
        yield base64.b64decode(given["frames"])
    def close(self):
        pass

made = {}
def before_send(request, **kwargs):
    made.update(url=request.url, body=json.loads(request.body))
    return AWSResponse(request.url, 200, {"content-type": "application/vnd.amazon.eventstream"}, Raw())

access_key, secret, token = given["keys"]
client = botocore.session.get_session().create_client("bedrock-runtime", "us-east-1", endpoint_url=given["base"],
    aws_access_key_id=access_key, aws_secret_access_key=secret, aws_session_token=token)
client.meta.events.register("before-send.bedrock-runtime.ConverseStream", before_send)
stream = client.converse_stream(modelId=given["model"], **json.loads(given["body"]))["stream"]
events, error = [], None
try:
    for event in stream:
        events.append(event)
except botocore.exceptions.EventStreamError as problem:
    error = problem.response["Error"]
plain = lambda value: value.decode() if isinstance(value, bytes) else str(value)
print(json.dumps({"authorization": request.headers["Authorization"], "url": made["url"], "body": made["body"],
    "events": events, "error": error}, default=plain))
"#;

#[tokio::test]
#[ignore = "needs a Python with botocore: BOTOCORE_PYTHON=venv/bin/python"]
async fn botocore_signs_and_reads_the_same() {
    let python = std::env::var("BOTOCORE_PYTHON").expect("BOTOCORE_PYTHON names a Python that has botocore");
    let messages = conversation();
    let tools = [spec("read_file")];
    for model in [MODEL, PROFILE_ARN, "amazon.nova-lite-v1:0", "deepseek.v3.2"] {
        for session_token in [None, Some("session/token+=".to_owned())] {
            let keys = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", session_token);
            let access = Access::keys(keys.0, keys.1, keys.2.clone());
            let request = Request { system: Some("Be brief \u{1f600}."), messages: &messages, tools: &tools, max_tokens: 77 };
            let seen = sent(|settings| settings.model = model.to_owned(), access, request).await;
            let base = format!("http://{}", seen.header("host").unwrap());
            let given = json!({
                "base": base, "path": seen.path(), "model": model, "keys": keys, "date": seen.header("x-amz-date").unwrap(),
                "content_type": seen.header("content-type").unwrap(), "body": seen.body_text,
                "frames": aws_smithy_types::base64::encode([full_stream().concat(), exception("throttlingException", "slow down")].concat()),
            });
            let answer = run_python(&python, &given);
            assert_eq!(answer["authorization"].as_str(), seen.header("authorization"), "{model}");
            assert_eq!(answer["url"].as_str().unwrap(), base + seen.path(), "{model}");
            assert_eq!(answer["body"], seen.body, "{model}");
            let events = answer["events"].as_array().unwrap();
            // All of ours but the one AWS does not know (yet).
            assert_eq!(events.len(), full_stream().len() - 1);
            assert_eq!(events[1]["contentBlockDelta"]["delta"]["reasoningContent"]["text"], "Two files");
            assert_eq!(events[5]["contentBlockDelta"]["delta"]["reasoningContent"]["redactedContent"], "hidd");
            assert_eq!(events[10]["contentBlockDelta"]["delta"]["text"], "\u{1f4c4}.");
            assert_eq!(events[13]["contentBlockStart"]["start"]["toolUse"]["toolUseId"], "tooluse_a");
            assert_eq!(events[20]["messageStop"]["stopReason"], "tool_use");
            assert_eq!(events[21]["metadata"]["usage"]["cacheReadInputTokens"], 1_000);
            assert_eq!(answer["error"], json!({ "Code": "throttlingException", "Message": "slow down" }));
        }
    }
}

fn run_python(python: &str, given: &Value) -> Value {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new(python).args(["-c", BOTOCORE]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}
