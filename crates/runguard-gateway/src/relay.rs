//! Answers on their way back: passed on as they came, metered, cut where nothing more is paid for, settled once.

use crate::answer::{Meter, Pass, on_the_wire};
use crate::api::{Api, Dialect};
use crate::attempt::most_output;
use crate::bedrock::Family;
use crate::bedrock::answers::{self, Counted};
use crate::beginning::FoundAgain;
use crate::circuit::Circuit;
use crate::identity::{RunName, name_of_last_answer};
use crate::money::{Guards, SetAside};
use crate::pieces::{Came, Events, FRAMES};
use crate::question::Question;
use crate::refusal::Refusal;
use crate::{Gateway, upstream, with_length, with_run};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Either;
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
    /// What the circuit is told once a stream is over.
    pub(crate) circuit: Option<ToldLater>,
    /// What its answer will be found by.
    pub(crate) found_again: FoundAgain,
}

/// How a stream ends says more of a provider than how it begins.
#[derive(Debug)]
pub(crate) struct ToldLater {
    /// What the provider calls the model.
    pub(crate) model: String,
    /// To its first event.
    pub(crate) took: Duration,
    pub(crate) is_own_key: bool,
    /// That it began well: a call that tests a circuit is waited for.
    pub(crate) is_told: bool,
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
    /// By us: the service stops.
    Stopped,
}

/// What a provider said in place of an answer, to its end or nearly so.
pub(crate) async fn all_of(mut events: Events) -> Bytes {
    const MOST_BYTES: usize = 64 * 1024;
    const MOST_TIME: Duration = Duration::from_secs(5);
    let mut said = Vec::new();
    let reading = async {
        while let Came::Event(bytes) | Came::Rest(bytes) = events.next().await {
            said.extend_from_slice(&bytes);
            if said.len() > MOST_BYTES {
                break;
            }
        }
    };
    // What has come by then is what it said.
    let _ = tokio::time::timeout(MOST_TIME, reading).await;
    said.into()
}

/// Passes a stream on, event by event.
pub(crate) fn stream(gateway: Arc<Gateway>, passed: Passed, head: Parts, events: Events) -> Reply {
    let (send, mut pieces) = mpsc::channel::<Result<Bytes, std::io::Error>>(WAITING);
    let mut reply: Reply = Response::from_parts(head, Either::Right(Body::from_stream(poll_fn(move |context| pieces.poll_recv(context)))));
    *reply.headers_mut() = upstream::without_hop(reply.headers());
    let reply = with_run(with_length(reply, passed.shortened, false), &passed.run, Some(&passed.set_aside.books));
    tokio::spawn(follow(gateway, passed, events, send));
    reply
}

async fn follow(gateway: Arc<Gateway>, passed: Passed, mut events: Events, send: mpsc::Sender<Result<Bytes, std::io::Error>>) {
    let Passed { question, run, set_aside, mut guards, when_caller_leaves, paid_output, circuit, found_again, .. } = passed;
    let mut meter = Meter::new(question.api, question.must_ask_for_usage()).with_prompt(question.prompt.usual_tokens());
    let most = most_output(&question, paid_output);
    let following = async {
        match pass_on(&mut events, &mut meter, most, &send).await {
            Ended::CallerLeft if when_caller_leaves == WhenCallerLeaves::Drain => drain(&mut events, &mut meter, most).await,
            ended => ended,
        }
    };
    let ended = tokio::select! {
        ended = following => ended,
        // Nobody would settle it later.
        () = gateway.has_to_stop() => Ended::Stopped,
    };
    drop(events);
    let account = meter.account().within(most);
    let names = found_again.names(&account);
    account.tell(&mut guards.call, &names);
    gateway.learn(&guards.call.upstream, &question, &account);
    let mut counted = Usage::default();
    // Who is cut, or leaves, before the provider counted must not pay less than what was read can have been.
    let is_limited = paid_output.is_some() && ended != Ended::ByProvider;
    let usage = account.usage.unwrap_or_else(|| question.prompt_left(is_limited));
    let used = match ended {
        // Clients go when they have heard the last event, before the connection is at its end.
        Ended::ByProvider | Ended::Broken | Ended::CallerLeft | Ended::Stopped
            if meter.is_complete() && (account.usage.is_some() || !is_limited) =>
        {
            account.used(&question, paid_output, &mut counted)
        }
        Ended::ByProvider | Ended::Broken | Ended::Cut | Ended::CallerLeft | Ended::Stopped => {
            Used::BrokenOff { model: None, usage: &usage, bytes: account.bytes }
        }
    };
    gateway.runs.settle(&guards, set_aside, used).await;
    gateway.remember(&guards, &account, &run.name, &names).await;
    // One that was closed in the middle, with or without a word, has not ended.
    let is_broken = matches!(ended, Ended::Broken | Ended::ByProvider) && !meter.is_complete() && account.finish.is_empty();
    let mistake = meter.mistake().or(is_broken.then_some(StatusCode::BAD_GATEWAY));
    if mistake.is_some() {
        gateway.not_answered(&found_again);
    }
    // What we end ourselves says nothing of the provider.
    if let Some(told) = circuit.filter(|told| ended != Ended::Stopped && (!told.is_told || mistake.is_some())) {
        let circuit = Circuit::new(&guards, &gateway.lately, &guards.call.upstream, &told.model, &run.name);
        let (status, headers) = (mistake.unwrap_or(StatusCode::OK), HeaderMap::new());
        circuit.answered(None, Some((status, &headers)), told.took, told.is_own_key).await;
    }
    let why = match ended {
        Ended::Broken => "the provider's answer broke off",
        Ended::Stopped => "the service is stopping",
        Ended::ByProvider | Ended::Cut | Ended::CallerLeft => return,
    };
    let _ = send.send(Err(std::io::Error::other(why))).await;
}

/// Passes events on until one side ends it.
async fn pass_on(events: &mut Events, meter: &mut Meter, most: Option<u64>, send: &mpsc::Sender<Result<Bytes, std::io::Error>>) -> Ended {
    loop {
        let came = tokio::select! {
            came = events.next() => came,
            () = send.closed() => return Ended::CallerLeft,
        };
        let event = match came {
            Came::Event(event) => event,
            Came::Rest(rest) => {
                meter.take(&rest);
                let _ = send.send(Ok(rest)).await;
                continue;
            }
            Came::End => return Ended::ByProvider,
            Came::Broken => return Ended::Broken,
            Came::TooLong(bytes) => {
                meter.too_long(bytes, most);
                return Ended::Broken;
            }
        };
        let passed = match meter.take(&event) {
            Pass::AsItCame => event,
            Pass::Instead(event) => event,
            Pass::Nothing => continue,
        };
        if most.is_some_and(|most| meter.is_beyond(most)) {
            let _ = send.send(Ok(meter.cut())).await;
            return Ended::Cut;
        }
        if send.send(Ok(passed)).await.is_err() {
            return Ended::CallerLeft;
        }
    }
}

/// Reads an answer to its end for what it says of its cost.
async fn drain(events: &mut Events, meter: &mut Meter, most: Option<u64>) -> Ended {
    let reading = async {
        loop {
            match events.next().await {
                Came::Event(bytes) | Came::Rest(bytes) => {
                    meter.take(&bytes);
                }
                Came::End => return Ended::ByProvider,
                Came::Broken => return Ended::Broken,
                Came::TooLong(bytes) => {
                    meter.too_long(bytes, most);
                    return Ended::Broken;
                }
            }
            if most.is_some_and(|most| meter.is_beyond(most)) {
                return Ended::Cut;
            }
        }
    };
    tokio::time::timeout(DRAIN, reading).await.unwrap_or(Ended::CallerLeft)
}

/// The last answer of a run that is over: a normal one that says why, so that whoever asked ends politely.
pub(crate) fn last_answer(question: &Question, refusal: &Refusal, run: &str) -> Reply {
    let text = &refusal.message;
    let usage = json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0});
    let counted = json!({"input_tokens": 0, "output_tokens": 0});
    let model = &question.model;
    let output = json!([{"type": "message", "id": "msg_runguard", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}]}]);
    let id = name_of_last_answer(run);
    let response = |status: &str, output: &Value| {
        json!({"id": id, "object": "response", "created_at": 0, "status": status, "model": model, "output": output,
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
