//! How an answer ended: why, in the provider's word, or with which mistake. Some tell it in a stream that began well.

use http::StatusCode;
use runguard_core::detect::stall::is_an_error;
use runguard_core::text::cut;
use serde_json::Value;
use std::collections::BTreeMap;

/// Anthropic's, of a service that has too much to do.
const OVERLOADED: u16 = 529;
/// A reason is a word.
const LONGEST_REASON: usize = 32;
/// Of more answers to one question nobody asks why each of them ended.
const MOST_REASONS: usize = 8;

/// Why answers ended, by their number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reasons(BTreeMap<u64, String>);

impl Reasons {
    /// Takes what an answer, or a piece of one, says of its end.
    pub(super) fn note(&mut self, said: &Value) {
        let lists = ["choices", "outputs", "results", "generations"];
        for list in lists.iter().filter_map(|name| said.get(name)?.as_array()) {
            for (place, item) in list.iter().enumerate() {
                self.set(item.get("index").and_then(Value::as_u64).unwrap_or(place as u64), item);
            }
        }
        self.set(0, said);
    }

    fn set(&mut self, number: u64, said: &Value) {
        let words = ["finish_reason", "stop_reason", "stopReason", "completionReason"];
        if let Some(reason) = words.iter().find_map(|name| said.get(name)?.as_str()) {
            self.put(number, reason);
        }
    }

    /// A response says how it stands, and why it is not complete.
    pub(super) fn note_response(&mut self, response: &Value) {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let why = text(response.get("incomplete_details").and_then(|details| details.get("reason")));
        let stands = text(response.get("status")).filter(|status| !matches!(status.as_str(), "in_progress" | "queued"));
        if let Some(reason) = why.or(stands) {
            self.put(0, &reason);
        }
    }

    fn put(&mut self, number: u64, reason: &str) {
        if self.0.len() < MOST_REASONS || self.0.contains_key(&number) {
            self.0.insert(number, cut(reason, LONGEST_REASON).replace(',', " "));
        }
    }

    /// All of them, with commas.
    pub(super) fn text(&self) -> String {
        self.0.values().map(String::as_str).collect::<Vec<_>>().join(",")
    }
}

/// The mistake that an event tells of, as the status that it would have been.
pub(super) fn mistake(event: &Value) -> Option<StatusCode> {
    let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
    let error = match kind {
        "response.failed" => event.get("response").and_then(|response| response.get("error")),
        _ => event.get("error"),
    };
    let error = match error.filter(|error| is_an_error(error)) {
        Some(error) => error,
        // The Responses API tells it without an object of its own.
        None if matches!(kind, "error" | "response.failed") => event,
        // That of a response which failed is nobody's but the provider's.
        None if event.get("status").and_then(Value::as_str) == Some("failed") => return Some(StatusCode::INTERNAL_SERVER_ERROR),
        None => return None,
    };
    let number = ["code", "status"].iter().find_map(|name| error.get(name)?.as_u64());
    if let Some(status) =
        number.and_then(|number| StatusCode::from_u16(u16::try_from(number).ok()?).ok()).filter(|status| status.as_u16() >= 400)
    {
        return Some(status);
    }
    let words = ["type", "code", "status"].iter().filter_map(|name| error.get(name)?.as_str()).collect::<Vec<_>>().join(" ");
    Some(status_of(&words))
}

/// The status of a mistake by its name. What is not known to be the provider's is the caller's: it must not close a door to others.
pub(super) fn status_of(name: &str) -> StatusCode {
    const NAMES: [(&str, u16); 12] = [
        ("overload", OVERLOADED),
        ("rate_limit", 429),
        ("throttl", 429),
        ("quota", 429),
        ("timeout", 504),
        ("unavailable", 503),
        ("capacity", 503),
        ("notready", 503),
        ("server_error", 500),
        ("internal", 500),
        ("api_error", 500),
        ("modelstreamerror", 500),
    ];
    let name = name.to_ascii_lowercase();
    let found = NAMES.iter().find(|(known, _)| name.contains(known));
    found.and_then(|(_, status)| StatusCode::from_u16(*status).ok()).unwrap_or(StatusCode::BAD_REQUEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_answer_says_why_it_ended() {
        for (said, reasons) in [
            (json!({"choices": [{"index": 1, "finish_reason": "length"}, {"index": 0, "finish_reason": "stop"}]}), "stop,length"),
            (json!({"choices": [{"index": 0, "finish_reason": null}]}), ""),
            (json!({"stop_reason": "tool_use"}), "tool_use"),
            (json!({"stopReason": "end_turn"}), "end_turn"),
            (json!({"results": [{"tokenCount": 3, "completionReason": "FINISH"}]}), "FINISH"),
            (json!({"outputs": [{"text": "", "stop_reason": "stop"}]}), "stop"),
            (json!({"stop_reason": "a,b"}), "a b"),
        ] {
            let mut found = Reasons::default();
            found.note(&said);
            assert_eq!(found.text(), reasons, "{said}");
        }
        let mut found = Reasons::default();
        found.note_response(&json!({"status": "in_progress"}));
        assert_eq!(found.text(), "");
        found.note_response(&json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}));
        assert_eq!(found.text(), "max_output_tokens");
    }

    #[test]
    fn a_mistake_in_a_stream_is_the_status_that_it_would_have_been() {
        for (event, status) in [
            (json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), Some(529)),
            (json!({"type": "error", "error": {"type": "invalid_request_error", "message": "server_error"}}), Some(400)),
            (json!({"error": {"message": "x", "type": "server_error", "code": null}}), Some(500)),
            (json!({"error": {"message": "x", "code": 502}, "choices": []}), Some(502)),
            (json!({"error": {"message": "x", "type": "requests", "code": "rate_limit_exceeded"}}), Some(429)),
            (json!({"type": "error", "code": "server_error", "message": "x"}), Some(500)),
            (json!({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}), Some(429)),
            (json!({"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}}), Some(400)),
            (json!({"type": "response.created", "response": {"error": null}}), None),
            (json!({"object": "response", "status": "failed", "error": {"code": "server_error"}}), Some(500)),
            (json!({"object": "response", "status": "failed", "error": null}), Some(500)),
            (json!({"object": "response", "status": "completed", "error": null}), None),
            (json!({"choices": [], "error": null}), None),
            (json!({"choices": [], "error": 0}), None),
            (json!({"type": "message_start"}), None),
        ] {
            assert_eq!(mistake(&event).map(|status| status.as_u16()), status, "{event}");
        }
        for (name, status) in [
            ("throttlingException", 429),
            ("modelStreamErrorException", 500),
            ("validationException", 400),
            ("serviceUnavailableException", 503),
        ] {
            assert_eq!(status_of(name).as_u16(), status, "{name}");
        }
    }
}
