//! Answers that are written here in a model's own format: the end of one that is cut, and the last one of a run that is over.

use super::Family;
use crate::api::Api;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use runguard_http::aws::frames;
use serde_json::{Value, json};

/// Why an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All is said.
    Turn,
    /// It may not be longer.
    Length,
}

/// What an answer counts, as its last piece says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counted {
    pub(crate) input: u64,
    pub(crate) output: u64,
}

impl Counted {
    fn usage(self) -> Value {
        json!({"inputTokens": self.input, "outputTokens": self.output, "totalTokens": self.input + self.output})
    }
}

/// The member of the last piece of a stream that says what Bedrock counted.
pub(crate) const METRICS: &str = "amazon-bedrock-invocationMetrics";

/// Events as they stand in a stream of Bedrock's. The last piece of a model's own format says what it used.
pub(crate) fn frames(api: Api, events: Vec<(&'static str, Value)>, counted: Counted) -> Bytes {
    let mut out = BytesMut::new();
    let last = events.len().saturating_sub(1);
    for (number, (name, mut data)) in events.into_iter().enumerate() {
        if api == Api::Converse {
            out.extend_from_slice(&frames::event(name, data.to_string()));
            continue;
        }
        if let Some(fields) = data.as_object_mut().filter(|_| number == last) {
            let metrics = json!({"inputTokenCount": counted.input, "outputTokenCount": counted.output, "invocationLatency": 0, "firstByteLatency": 0});
            fields.insert(METRICS.into(), metrics);
        }
        out.extend_from_slice(&frames::event("chunk", json!({"bytes": STANDARD.encode(data.to_string())}).to_string()));
    }
    out.freeze()
}

/// The events that end an answer. `block` is the one that is being written.
pub(crate) fn ending(api: Api, end: End, counted: Counted, block: Option<u64>) -> Vec<(&'static str, Value)> {
    let word = |turn: &'static str, length: &'static str| match end {
        End::Turn => turn,
        End::Length => length,
    };
    let stopped = json!({"stopReason": word("end_turn", "max_tokens")});
    let family = match api {
        Api::Converse => {
            let closed = block.map(|index| ("contentBlockStop", json!({"contentBlockIndex": index})));
            let metadata = json!({"usage": counted.usage(), "metrics": {"latencyMs": 0}});
            return closed.into_iter().chain([("messageStop", stopped), ("metadata", metadata)]).collect();
        }
        Api::Invoke(family) => family,
        Api::Chat | Api::Completions | Api::Responses | Api::Embeddings | Api::Messages => return Vec::new(),
    };
    let pieces = match family {
        Family::Nova => {
            let closed = block.map(|index| json!({"contentBlockStop": {"contentBlockIndex": index}}));
            let metadata = json!({"metadata": {"usage": counted.usage(), "metrics": {}}});
            closed.into_iter().chain([json!({"messageStop": stopped}), metadata]).collect()
        }
        Family::Llama => {
            let reason = word("stop", "length");
            vec![json!({"generation": "", "prompt_token_count": null, "generation_token_count": counted.output, "stop_reason": reason})]
        }
        Family::Mistral => vec![json!({"outputs": [{"text": "", "stop_reason": word("stop", "length")}]})],
        Family::Titan => vec![json!({"outputText": "", "index": 0, "totalOutputTextTokenCount": counted.output,
            "completionReason": word("FINISH", "LENGTH"), "inputTextTokenCount": counted.input})],
        Family::Cohere => vec![json!({"text": "", "is_finished": true, "finish_reason": word("COMPLETE", "MAX_TOKENS")})],
        Family::Anthropic | Family::Chat | Family::GptOss | Family::TitanEmbeddings | Family::CohereEmbeddings | Family::Unknown => {
            vec![json!({})]
        }
    };
    pieces.into_iter().map(|piece| ("chunk", piece)).collect()
}

/// An answer that says this and no more: whole, and as events. Nothing where a model writes no words, or its words are not known here.
pub(crate) fn last(api: Api, text: &str) -> Option<(Value, Vec<(&'static str, Value)>)> {
    let counted = Counted::default();
    let message = json!({"message": {"role": "assistant", "content": [{"text": text}]}});
    let delta = json!({"delta": {"text": text}, "contentBlockIndex": 0});
    let (whole, first) = match api {
        Api::Converse => (
            json!({"output": message, "stopReason": "end_turn", "usage": counted.usage(), "metrics": {"latencyMs": 0}}),
            vec![("messageStart", json!({"role": "assistant"})), ("contentBlockDelta", delta)],
        ),
        Api::Invoke(Family::Nova) => (
            json!({"output": message, "stopReason": "end_turn", "usage": counted.usage()}),
            vec![("chunk", json!({"messageStart": {"role": "assistant"}})), ("chunk", json!({"contentBlockDelta": delta}))],
        ),
        Api::Invoke(Family::Llama) => {
            let whole = json!({"generation": text, "prompt_token_count": 0, "generation_token_count": 0, "stop_reason": "stop"});
            let piece = json!({"generation": text, "prompt_token_count": 0, "generation_token_count": 0, "stop_reason": null});
            (whole, vec![("chunk", piece)])
        }
        Api::Invoke(Family::Mistral) => {
            let outputs = |reason: Value| json!({"outputs": [{"text": text, "stop_reason": reason}]});
            (outputs(json!("stop")), vec![("chunk", outputs(Value::Null))])
        }
        Api::Invoke(Family::Titan) => (
            json!({"inputTextTokenCount": 0, "results": [{"tokenCount": 0, "outputText": text, "completionReason": "FINISH"}]}),
            vec![("chunk", json!({"outputText": text, "index": 0, "totalOutputTextTokenCount": 0, "completionReason": null}))],
        ),
        Api::Invoke(Family::Cohere) => (
            json!({"generations": [{"id": "runguard", "text": text, "finish_reason": "COMPLETE"}], "text": text, "finish_reason": "COMPLETE"}),
            vec![("chunk", json!({"text": text, "is_finished": false}))],
        ),
        Api::Invoke(
            Family::Anthropic | Family::Chat | Family::GptOss | Family::TitanEmbeddings | Family::CohereEmbeddings | Family::Unknown,
        )
        | Api::Chat
        | Api::Completions
        | Api::Responses
        | Api::Embeddings
        | Api::Messages => return None,
    };
    let block = matches!(api, Api::Converse | Api::Invoke(Family::Nova)).then_some(0);
    Some((whole, [first, ending(api, End::Turn, counted, block)].concat()))
}
