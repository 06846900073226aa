//! Answers on their way back: passed on as they came, metered, cut where nothing more is paid for, settled once.

use crate::answer::{Meter, Pass, on_the_wire};
use crate::api::{Api, Dialect};
use crate::bedrock::Family;
use crate::bedrock::answers::{self, Counted};
use crate::identity::RunName;
use crate::money::{Guards, SetAside};
use crate::pieces::{FRAMES, Pieces};
use crate::question::Question;
use crate::refusal::Refusal;
use crate::{Gateway, upstream, with_length, with_run};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Either};
use hyper::body::Incoming;
use runguard_core::prices::Usage;
use runguard_core::run::Used;
use runguard_engine::settings::WhenCallerLeaves;
use runguard_http::reply::{JSON, Reply, event_stream, reply};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Events that wait for a slow caller.
const WAITING: usize = 16;
/// How long a provider may be silent in the middle of an answer.
const IDLE: Duration = Duration::from_secs(600);
/// How long the rest of an answer is read for nobody.
const DRAIN: Duration = Duration::from_secs(60);

/// A question that was passed on.
#[derive(Debug)]
pub(crate) struct Passed {
    pub(crate) question: Question,
    pub(crate) run: RunName,
    pub(crate) set_aside: SetAside,
    pub(crate) guards: Guards,
    pub(crate) when_caller_leaves: WhenCallerLeaves,
    /// The longest answer that is paid for, of each choice; nothing where nothing is limited.
    pub(crate) paid_output: Option<u64>,
    /// The same, where it is shorter than was asked for.
    pub(crate) shortened: Option<u64>,
}

/// What costs nothing passes as it is.
pub(crate) fn untouched(response: Response<Incoming>) -> Reply {
    let mut reply = response.map(|body| Either::Right(Body::new(body)));
    *reply.headers_mut() = upstream::without_hop(reply.headers());
    reply
}

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// It is complete, or the provider closed it.
    ByProvider,
    /// In the middle.
    Broken,
    /// More came than is paid for.
    Cut,
    CallerLeft,
}

/// Passes a stream on, event by event.
pub(crate) fn stream(gateway: Arc<Gateway>, passed: Passed, response: Response<Incoming>) -> Reply {
    let (head, body) = response.into_parts();
    let (send, mut pieces) = mpsc::channel::<Result<Bytes, std::io::Error>>(WAITING);
    let mut reply: Reply = Response::from_parts(head, Either::Right(Body::from_stream(poll_fn(move |context| pieces.poll_recv(context)))));
    *reply.headers_mut() = upstream::without_hop(reply.headers());
    let reply = with_run(with_length(reply, passed.shortened, false), &passed.run, Some(&passed.set_aside.books));
    tokio::spawn(follow(gateway, passed, body, send));
    reply
}

async fn follow(gateway: Arc<Gateway>, passed: Passed, body: Incoming, send: mpsc::Sender<Result<Bytes, std::io::Error>>) {
    let Passed { question, run, set_aside, mut guards, when_caller_leaves, paid_output, .. } = passed;
    let mut meter = Meter::new(question.api, question.must_ask_for_usage()).with_prompt(question.prompt.usual_tokens());
    let most = paid_output.map(|output| output.saturating_mul(question.choices));
    let mut splitter = Pieces::of(question.api);
    let ended = match pass_on(body, &mut splitter, &mut meter, most, &send).await {
        (Ended::CallerLeft, Some(body)) if when_caller_leaves == WhenCallerLeaves::Drain => {
            drain(body, &mut splitter, &mut meter, most).await
        }
        (ended, _) => ended,
    };
    let account = meter.account();
    guards.call.answered_by = account.model.as_deref().unwrap_or_default().into();
    let mut counted = Usage::default();
    let usage = account.usage.unwrap_or_else(|| Usage::new(question.prompt.usual_tokens(), 0));
    let used = match ended {
        Ended::ByProvider if meter.is_complete() => account.used(&question, &mut counted),
        Ended::ByProvider | Ended::Broken | Ended::Cut | Ended::CallerLeft => {
            Used::BrokenOff { model: None, usage: &usage, bytes: account.bytes }
        }
    };
    gateway.runs.settle(&guards, set_aside, used).await;
    if let (Some(id), Some(usage)) = (account.id, account.usage) {
        gateway.remember(&guards.caller, &id, &run.name, usage.total_tokens());
    }
    if ended == Ended::Broken {
        let _ = send.send(Err(std::io::Error::other("the provider's answer broke off"))).await;
    }
}

/// Passes events on until one side ends it. The body is given back where the provider would go on.
async fn pass_on(
    mut body: Incoming,
    splitter: &mut Pieces,
    meter: &mut Meter,
    most: Option<u64>,
    send: &mpsc::Sender<Result<Bytes, std::io::Error>>,
) -> (Ended, Option<Incoming>) {
    loop {
        let frame = tokio::select! {
            frame = tokio::time::timeout(IDLE, body.frame()) => frame,
            () = send.closed() => return (Ended::CallerLeft, Some(body)),
        };
        let data = match frame {
            Ok(None) => break,
            Err(_) | Ok(Some(Err(_))) => return (Ended::Broken, None),
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        };
        if splitter.push(&data).is_err() {
            return (Ended::Broken, None);
        }
        while let Some(event) = splitter.next() {
            let Ok(event) = event else { return (Ended::Broken, None) };
            let passed = match meter.take(&event) {
                Pass::AsItCame => event,
                Pass::Instead(event) => event,
                Pass::Nothing => continue,
            };
            if most.is_some_and(|most| meter.is_beyond(most)) {
                let _ = send.send(Ok(meter.cut())).await;
                return (Ended::Cut, None);
            }
            if send.send(Ok(passed)).await.is_err() {
                return (Ended::CallerLeft, Some(body));
            }
        }
    }
    let rest = splitter.take_rest();
    if !rest.is_empty() {
        meter.take(&rest);
        let _ = send.send(Ok(rest)).await;
    }
    (Ended::ByProvider, None)
}

/// Reads an answer to its end for what it says of its cost.
async fn drain(mut body: Incoming, splitter: &mut Pieces, meter: &mut Meter, most: Option<u64>) -> Ended {
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            if splitter.push(&frame.into_data().unwrap_or_default()).is_err() {
                return Ended::Broken;
            }
            while let Some(event) = splitter.next() {
                let Ok(event) = event else { return Ended::Broken };
                meter.take(&event);
            }
            if most.is_some_and(|most| meter.is_beyond(most)) {
                return Ended::Cut;
            }
        }
        meter.take(&splitter.take_rest());
        Ended::ByProvider
    };
    tokio::time::timeout(DRAIN, reading).await.unwrap_or(Ended::CallerLeft)
}

/// The last answer of a run that is over: a normal one that says why, so that whoever asked ends politely.
pub(crate) fn last_answer(question: &Question, refusal: &Refusal) -> Reply {
    let text = &refusal.message;
    let usage = json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0});
    let counted = json!({"input_tokens": 0, "output_tokens": 0});
    let model = &question.model;
    let output = json!([{"type": "message", "id": "msg_runguard", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}]}]);
    let response = |status: &str, output: &Value| {
        json!({"id": "resp_runguard", "object": "response", "created_at": 0, "status": status, "model": model, "output": output,
            "parallel_tool_calls": false, "tool_choice": "auto", "tools": [],
            "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}})
    };
    let (whole, events): (Value, Vec<(&'static str, Value)>) = match question.api {
        Api::Chat | Api::Invoke(Family::Chat | Family::GptOss) => {
            let chunk = |choices: Value| json!({"id": "chatcmpl-runguard", "object": "chat.completion.chunk", "created": 0, "model": model, "choices": choices});
            let whole = json!({"id": "chatcmpl-runguard", "object": "chat.completion", "created": 0, "model": model,
                "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}], "usage": usage});
            let mut events = vec![
                ("", chunk(json!([{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": null}]))),
                ("", chunk(json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]))),
            ];
            if question.wants_usage {
                let mut last = chunk(json!([]));
                last["usage"] = usage.clone();
                events.push(("", last));
            }
            (whole, events)
        }
        Api::Completions => {
            let whole = json!({"id": "cmpl-runguard", "object": "text_completion", "created": 0, "model": model,
                "choices": [{"index": 0, "text": text, "finish_reason": "stop"}], "usage": usage});
            (whole.clone(), vec![("", whole)])
        }
        Api::Messages | Api::Invoke(Family::Anthropic) => {
            let message = |content: Value, stop: Value| {
                json!({"id": "msg_runguard", "type": "message", "role": "assistant", "model": model, "content": content,
                    "stop_reason": stop, "stop_sequence": null, "usage": counted})
            };
            let events = vec![
                ("message_start", json!({"type": "message_start", "message": message(json!([]), Value::Null)})),
                ("content_block_start", json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})),
                ("content_block_delta", json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})),
                ("content_block_stop", json!({"type": "content_block_stop", "index": 0})),
                (
                    "message_delta",
                    json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": {"output_tokens": 0}}),
                ),
                ("message_stop", json!({"type": "message_stop"})),
            ];
            (message(json!([{"type": "text", "text": text}]), json!("end_turn")), events)
        }
        Api::Responses => {
            let events = vec![
                (
                    "response.created",
                    json!({"type": "response.created", "sequence_number": 0, "response": response("in_progress", &json!([]))}),
                ),
                (
                    "response.output_item.added",
                    json!({"type": "response.output_item.added", "sequence_number": 1, "output_index": 0,
                    "item": {"type": "message", "id": "msg_runguard", "status": "in_progress", "role": "assistant", "content": []}}),
                ),
                (
                    "response.content_part.added",
                    json!({"type": "response.content_part.added", "sequence_number": 2, "item_id": "msg_runguard",
                    "output_index": 0, "content_index": 0, "part": {"type": "output_text", "text": "", "annotations": []}}),
                ),
                (
                    "response.output_text.delta",
                    json!({"type": "response.output_text.delta", "sequence_number": 3, "item_id": "msg_runguard",
                    "output_index": 0, "content_index": 0, "delta": text, "logprobs": []}),
                ),
                (
                    "response.output_text.done",
                    json!({"type": "response.output_text.done", "sequence_number": 4, "item_id": "msg_runguard",
                    "output_index": 0, "content_index": 0, "text": text, "logprobs": []}),
                ),
                (
                    "response.output_item.done",
                    json!({"type": "response.output_item.done", "sequence_number": 5, "output_index": 0, "item": output[0]}),
                ),
                (
                    "response.completed",
                    json!({"type": "response.completed", "sequence_number": 6, "response": response("completed", &output)}),
                ),
            ];
            (response("completed", &output), events)
        }
        Api::Converse | Api::Invoke(_) => match answers::last(question.api, text) {
            Some(answer) => answer,
            None => return refusal.clone().into_reply(question.api.dialect()),
        },
        // Nothing can be said in numbers.
        Api::Embeddings => return refusal.clone().into_reply(question.api.dialect()),
    };
    if !question.streams {
        return reply(StatusCode::OK, JSON, whole.to_string());
    }
    let stream = Body::from(on_the_wire(question.api, events, Counted::default()));
    match question.api.dialect() {
        Dialect::OpenAi | Dialect::Anthropic => event_stream(stream),
        Dialect::Bedrock => {
            let mut reply = event_stream(stream);
            reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(FRAMES));
            reply
        }
    }
}
