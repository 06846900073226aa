//! Following a stream of Bedrock's: frames whose events are Converse's, or pieces in the words of the model's maker.

use super::{MOST_TOKENS, Meter, ended, written};
use crate::api::Api;
use crate::bedrock::Family;
use crate::bedrock::answers::METRICS;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderMap;
use runguard_core::prices::Usage;
use runguard_http::aws::frames;
use serde_json::{Map, Value};

/// What Bedrock counted of a model of this family, by the members of an answer or of a piece of one.
pub(super) fn usage_of(api: Api, counts: &Value) -> Option<Usage> {
    let count = |name: &str| counts.get(name).and_then(Value::as_u64);
    let either = |input: Option<u64>, output: Option<u64>| {
        (input.is_some() || output.is_some()).then(|| Usage::new(input.unwrap_or(0), output.unwrap_or(0)))
    };
    match api {
        Api::Converse => Usage::from_bedrock(counts).ok(),
        Api::Invoke(Family::Nova) => Usage::from_bedrock(counts).ok().map(|usage| Usage {
            // Under another name than Converse's.
            cached_tokens: usage.cached_tokens.max(count("cacheReadInputTokenCount").unwrap_or(0)),
            cache_write_tokens: usage.cache_write_tokens.max(count("cacheWriteInputTokenCount").unwrap_or(0)),
            ..usage
        }),
        Api::Invoke(Family::Anthropic) => Usage::from_anthropic(counts).ok(),
        Api::Invoke(Family::Chat | Family::GptOss) => Usage::from_openai(counts).ok(),
        Api::Invoke(Family::Llama) => either(count("prompt_token_count"), count("generation_token_count")),
        Api::Invoke(Family::Titan | Family::TitanEmbeddings) => {
            let results = counts
                .get("results")
                .and_then(Value::as_array)
                .map(|results| results.iter().filter_map(|result| result.get("tokenCount")?.as_u64()).fold(0, u64::saturating_add));
            either(count("inputTextTokenCount"), count("totalOutputTextTokenCount").or(results))
        }
        Api::Invoke(Family::Mistral | Family::Cohere | Family::CohereEmbeddings | Family::Unknown)
        | Api::Chat
        | Api::Completions
        | Api::Responses
        | Api::Embeddings
        | Api::Messages => None,
    }
}

/// What Bedrock counted of an answer in a model's own format, by its headers.
pub(super) fn usage_of_headers(headers: &HeaderMap) -> Option<Usage> {
    let count = |kind: &str| headers.get(format!("x-amzn-bedrock-{kind}-token-count"))?.to_str().ok()?.trim().parse().ok();
    usage_by(count, ["input", "output", "cache-read-input", "cache-write-input"])
}

/// The same by the last piece of a stream.
fn usage_of_metrics(metrics: &Value) -> Option<Usage> {
    let count = |kind: &str| metrics.get(format!("{kind}TokenCount"))?.as_u64();
    usage_by(count, ["input", "output", "cacheReadInput", "cacheWriteInput"])
}

fn usage_by(count: impl Fn(&str) -> Option<u64>, [input, output, cached, cache_write]: [&str; 4]) -> Option<Usage> {
    let (input, output) = (count(input), count(output));
    let usage = Usage {
        cached_tokens: count(cached).unwrap_or(0),
        cache_write_tokens: count(cache_write).unwrap_or(0),
        ..Usage::new(input.unwrap_or(0), output.unwrap_or(0))
    };
    Some(usage).filter(|usage| (input.is_some() || output.is_some()) && usage.total_tokens() <= MOST_TOKENS)
}

/// The bytes of what a model has written in an answer, or in a piece of one.
pub(super) fn written_by(family: Family, answer: &Value) -> u64 {
    if family == Family::Unknown {
        // Nobody knows which part of it that is.
        return written(answer);
    }
    family.written().iter().filter_map(|name| answer.get(name)).map(written).sum()
}

impl Meter {
    /// Takes the next frame. What it says of lengths inside is not believed: it is read as what came.
    pub(super) fn take_frame(&mut self, bytes: &[u8]) {
        let Ok(frame) = frames::read(Bytes::copy_from_slice(bytes)) else {
            self.not_understood(bytes);
            return;
        };
        // What the service says when it breaks off is not written by the model.
        if frames::header(&frame, ":message-type") != "event" {
            let name = [":exception-type", ":error-code"].map(|name| frames::header(&frame, name)).concat();
            self.mistake = self.mistake.or(Some(ended::status_of(&name)));
            return;
        }
        let Ok(payload) = serde_json::from_slice::<Value>(frame.payload()) else {
            self.not_understood(frame.payload());
            return;
        };
        let family = match self.api {
            Api::Invoke(family) => family,
            Api::Converse | Api::Chat | Api::Completions | Api::Responses | Api::Embeddings | Api::Messages => {
                self.take_converse_event(frames::header(&frame, ":event-type"), &payload);
                return;
            }
        };
        let piece = payload.get("bytes").and_then(Value::as_str).and_then(|bytes| STANDARD.decode(bytes).ok()).unwrap_or_default();
        match serde_json::from_slice::<Value>(&piece) {
            Ok(piece) => self.take_piece(family, piece),
            Err(_) => self.not_understood(&piece),
        }
    }

    fn take_converse_event(&mut self, name: &str, event: &Value) {
        let index = || event.get("contentBlockIndex").and_then(Value::as_u64);
        match name {
            "contentBlockStart" => {
                self.open_block = index();
                self.write(event.get("start").unwrap_or(&Value::Null));
            }
            "contentBlockDelta" => {
                self.open_block = index();
                self.write(event.get("delta").unwrap_or(&Value::Null));
            }
            "contentBlockStop" => self.open_block = None,
            "messageStop" => {
                self.is_complete = true;
                self.reasons.note(event);
            }
            "metadata" => self.count(event.get("usage")),
            _ => {}
        }
    }

    /// A piece of an answer in the words of the model's maker.
    fn take_piece(&mut self, family: Family, piece: Value) {
        self.mistake = self.mistake.or_else(|| ended::mistake(&piece));
        match family {
            Family::Anthropic => {
                self.take_message_event(&piece);
            }
            Family::Chat | Family::GptOss => {
                self.take_chunk(&piece, &piece.to_string());
            }
            Family::Nova => {
                for (name, event) in piece.as_object().into_iter().flatten() {
                    self.take_converse_event(name, event);
                }
            }
            Family::Llama
            | Family::Titan
            | Family::Mistral
            | Family::Cohere
            | Family::TitanEmbeddings
            | Family::CohereEmbeddings
            | Family::Unknown => {
                self.account.bytes = self.account.bytes.saturating_add(written_by(family, &piece));
                self.reasons.note(&piece);
                let counts: Map<String, Value> = piece
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter(|(_, value)| value.is_u64())
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect();
                self.count(Some(&Value::Object(counts)));
            }
        }
        if let Some(metrics) = piece.get(METRICS) {
            self.metrics = usage_of_metrics(metrics);
            self.is_complete = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::read;
    use crate::bedrock::answers::{self, Counted, last};
    use bytes::BytesMut;
    use http::header::{HeaderName, HeaderValue};
    use serde_json::json;

    fn chunk(piece: &Value) -> Vec<u8> {
        frames::event("chunk", json!({"bytes": STANDARD.encode(piece.to_string()), "p": "abcdefghijklm"}).to_string()).to_vec()
    }

    fn event(name: &'static str, data: &Value) -> Vec<u8> {
        frames::event(name, data.to_string()).to_vec()
    }

    /// The events of a stream of frames, or the pieces in them.
    fn events(stream: &[u8]) -> Vec<(String, Value)> {
        let mut buffer = BytesMut::from(stream);
        let mut found = Vec::new();
        while let Some(frame) = frames::take(&mut buffer, 1 << 20).unwrap() {
            let frame = frames::read(frame).unwrap();
            let data: Value = serde_json::from_slice(frame.payload()).unwrap();
            let piece = data.get("bytes").map(|bytes| serde_json::from_slice(&STANDARD.decode(bytes.as_str().unwrap()).unwrap()).unwrap());
            found.push((frames::header(&frame, ":event-type").to_owned(), piece.unwrap_or(data)));
        }
        assert!(buffer.is_empty());
        found
    }

    #[test]
    fn converse_is_followed_and_cut_in_its_own_way() {
        let mut meter = Meter::new(Api::Converse, false).with_prompt(11);
        for (name, data) in [
            ("messageStart", json!({"role": "assistant", "p": "abcdefghijklmnop"})),
            ("contentBlockDelta", json!({"contentBlockIndex": 2, "delta": {"text": "Hello"}, "p": "abcdef"})),
        ] {
            meter.take(&event(name, &data));
        }
        assert_eq!((meter.account().bytes, meter.account().usage, meter.is_complete()), (5, None, false), "padding is nothing");
        let end = events(&meter.cut());
        assert_eq!(end[0], ("contentBlockStop".to_owned(), json!({"contentBlockIndex": 2})));
        assert_eq!(end[1], ("messageStop".to_owned(), json!({"stopReason": "max_tokens"})));
        assert_eq!((&end[2].1["usage"]["inputTokens"], &end[2].1["usage"]["outputTokens"]), (&json!(11), &json!(2)));
        let mut meter = Meter::new(Api::Converse, false);
        meter.take(&event("messageStop", &json!({"stopReason": "end_turn"})));
        meter.take(&event("metadata", &json!({"usage": {"inputTokens": 7, "outputTokens": 3, "cacheReadInputTokens": 2}})));
        let usage = meter.account().usage.unwrap();
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.cached_tokens, meter.is_complete()), (7, 3, 2, true));
    }

    #[test]
    fn every_familys_stream_is_counted_and_cut() {
        let metrics = json!({"inputTokenCount": 9, "outputTokenCount": 4, "invocationLatency": 1, "firstByteLatency": 1});
        for (family, piece, ends, how) in [
            (
                Family::Llama,
                json!({"generation": "Hello", "prompt_token_count": null, "generation_token_count": 1, "stop_reason": null}),
                "stop_reason",
                "length",
            ),
            (Family::Titan, json!({"outputText": "Hello", "index": 0, "completionReason": null}), "completionReason", "LENGTH"),
            (Family::Cohere, json!({"text": "Hello", "is_finished": false}), "finish_reason", "MAX_TOKENS"),
        ] {
            let mut meter = Meter::new(Api::Invoke(family), false);
            meter.take(&chunk(&piece));
            assert_eq!(meter.account().bytes, 5, "{family:?}");
            let (_, end) = events(&meter.cut()).pop().unwrap();
            assert_eq!(end[ends], how, "{family:?}");
            assert!(end[METRICS]["outputTokenCount"].as_u64().unwrap() > 0);
            let mut meter = Meter::new(Api::Invoke(family), false);
            meter.take(&chunk(&json!({METRICS: metrics})));
            let usage = meter.account().usage.unwrap();
            assert_eq!((usage.input_tokens, usage.output_tokens, meter.is_complete()), (9, 4, true), "{family:?}");
        }
        let mut claude = Meter::new(Api::Invoke(Family::Anthropic), false);
        claude.take(&chunk(
            &json!({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": 5}}}),
        ));
        claude.take(&chunk(&json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})));
        claude.take(&chunk(&json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}})));
        let kinds: Vec<Value> = events(&claude.cut()).into_iter().map(|(_, piece)| piece["type"].clone()).collect();
        assert_eq!(kinds, ["content_block_stop", "message_delta", "message_stop"]);
        claude.take(&chunk(&json!({"type": "message_stop", METRICS: metrics})));
        let usage = claude.account().usage.unwrap();
        assert_eq!((usage.input_tokens, usage.cached_tokens, usage.output_tokens), (9, 5, 4), "the larger count of what was written");
    }

    #[test]
    fn a_whole_answer_says_it_in_its_body_or_its_headers() {
        let counted = |family, body: &Value, headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect();
            let account = read(Api::Invoke(family), &headers, body.to_string().as_bytes());
            (account.usage.map(|usage| (usage.input_tokens, usage.output_tokens)), account.bytes)
        };
        let headers = [("x-amzn-bedrock-input-token-count", "9"), ("x-amzn-bedrock-output-token-count", "4")];
        let message = json!({"content": [{"type": "text", "text": "Hello"}], "usage": {"input_tokens": 7, "output_tokens": 3}});
        assert_eq!(counted(Family::Anthropic, &message, &headers), (Some((7, 3)), 5));
        let llama = json!({"generation": "Hello", "prompt_token_count": 7, "generation_token_count": 3, "stop_reason": "stop"});
        assert_eq!(counted(Family::Llama, &llama, &[]), (Some((7, 3)), 5));
        let titan = json!({"inputTextTokenCount": 7, "results": [{"tokenCount": 3, "outputText": "Hello", "completionReason": "FINISH"}]});
        assert_eq!(counted(Family::Titan, &titan, &[]), (Some((7, 3)), 5));
        let mistral = json!({"outputs": [{"text": "Hello", "stop_reason": "stop"}]});
        assert_eq!(counted(Family::Mistral, &mistral, &headers), (Some((9, 4)), 5));
        assert_eq!(counted(Family::Mistral, &mistral, &[]), (None, 5));
        assert_eq!(counted(Family::TitanEmbeddings, &json!({"embedding": [0.1], "inputTextTokenCount": 2}), &[]), (Some((2, 0)), 0));
        assert_eq!(counted(Family::CohereEmbeddings, &json!({"embeddings": [[0.1]]}), &headers[..1]), (Some((9, 0)), 0));
    }

    #[test]
    fn a_last_answer_is_read_as_any_other() {
        for family in [Family::Nova, Family::Llama, Family::Mistral, Family::Titan, Family::Cohere] {
            let api = Api::Invoke(family);
            let (whole, pieces) = last(api, "It is over.").unwrap();
            assert!(read(api, &HeaderMap::new(), whole.to_string().as_bytes()).bytes >= 11, "{family:?}");
            let mut meter = Meter::new(api, false);
            for (_, piece) in events(&answers::frames(api, pieces, Counted::default())) {
                meter.take(&chunk(&piece));
            }
            assert_eq!((meter.account().bytes, meter.is_complete()), (11, true), "{family:?}");
        }
        assert!(last(Api::Invoke(Family::TitanEmbeddings), "It is over.").is_none());
    }

    #[test]
    fn what_breaks_off_or_cannot_be_read_is_not_complete() {
        let mut meter = Meter::new(Api::Converse, false);
        let mut broken = event("messageStop", &json!({"stopReason": "end_turn"}));
        let length = broken.len() as u64;
        *broken.last_mut().unwrap() ^= 1;
        meter.take(&broken);
        meter.take(b"");
        assert_eq!((meter.is_complete(), meter.account().bytes), (false, length));
    }

    proptest::proptest! {
        #[test]
        fn no_frame_breaks_the_meter(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80), text in "[\\[\\]{}\",:a-z0-9\\\\ ]{0,60}", choice in 0_usize..3) {
            for api in [Api::Converse, Api::Invoke(Family::Anthropic), Api::Invoke(Family::Nova), Api::Invoke(Family::GptOss), Api::Invoke(Family::Unknown)] {
                let mut meter = Meter::new(api, false);
                meter.take(&bytes);
                let name = ["contentBlockDelta", "metadata", "chunk"][choice];
                meter.take(&frames::event(name, text.clone()));
                meter.take(&frames::event("chunk", json!({"bytes": STANDARD.encode(&text)}).to_string()));
                meter.cut();
            }
        }
    }
}
