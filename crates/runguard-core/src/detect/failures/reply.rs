//! What an action replies: as its Lambda function gives it, or as the caller of an agent sends it back.

use super::failure_in;
use serde_json::{Map, Value};

/// States of a reply that say it failed.
const FAILED_STATES: [&str; 2] = ["FAILURE", "REPROMPT"];
const FIRST_FAILED_STATUS: u64 = 400;

/// The reply of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionReply {
    /// Its texts, one a line.
    pub body: String,
    /// What went wrong, if it tells of a failure: by its state, by its HTTP status, or in a text.
    pub failure: Option<String>,
}

impl ActionReply {
    /// As a Lambda function gives it, in the field `response`; `None` where there is no such field.
    ///
    /// ```
    /// use runguard_core::detect::failures::ActionReply;
    /// use serde_json::json;
    ///
    /// let denied = json!({"response": {"httpStatusCode": 403, "responseBody": {"application/json": {"body": "no"}}}});
    /// assert_eq!(ActionReply::of_function(&denied).and_then(|reply| reply.failure).as_deref(), Some("403 no"));
    /// ```
    pub fn of_function(given: &Value) -> Option<Self> {
        let reply = given.get("response")?.as_object()?;
        Some(Self::read(reply.get("functionResponse").and_then(Value::as_object).unwrap_or(reply)))
    }

    /// The members of a `functionResponse`, a `functionResult` or an `apiResult`.
    pub fn read(reply: &Map<String, Value>) -> Self {
        let bodies = reply.get("responseBody").and_then(Value::as_object);
        let bodies: Vec<String> = bodies.into_iter().flatten().map(|(_, content)| text(content.get("body"))).collect();
        let body = bodies.join("\n");
        let state = reply.get("responseState").and_then(Value::as_str).unwrap_or_default();
        let status = reply.get("httpStatusCode").and_then(number).filter(|status| *status > 0);
        let has_failed = FAILED_STATES.contains(&state) || status.is_some_and(|status| status >= FIRST_FAILED_STATUS);
        let told = || [state, &status.map_or_else(String::new, |status| status.to_string()), &body].map(str::to_owned);
        let parts = || told().into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let failure = bodies.iter().find_map(|body| failure_in(body)).or_else(|| has_failed.then(parts));
        Self { body, failure }
    }
}

/// A text; what is none in the form it has.
fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_))) => other.to_string(),
    }
}

/// A number; some write it as a text.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_f64().map(|number| number as u64)),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn failure(response: Value) -> Option<String> {
        ActionReply::of_function(&json!({ "response": response })).unwrap().failure
    }

    #[test]
    fn a_reply_fails_by_its_state_its_status_or_its_words() {
        let said = |body: Value| json!({"TEXT": {"body": body}});
        for (response, why) in [
            (json!({"functionResponse": {"responseState": "FAILURE", "responseBody": said(json!("no"))}}), "FAILURE no"),
            (json!({"functionResponse": {"responseState": "REPROMPT"}}), "REPROMPT"),
            (json!({"functionResponse": {"responseBody": said(json!("{\"error\": \"AccessDenied\"}"))}}), "AccessDenied"),
            (json!({"httpStatusCode": 500}), "500"),
            (json!({"httpStatusCode": "404", "responseBody": said(json!("gone"))}), "404 gone"),
            (json!({"httpStatusCode": 502.0, "responseBody": said(json!("x"))}), "502 x"),
            (json!({"httpStatusCode": "none", "responseBody": said(json!("Error: no such table"))}), "Error: no such table"),
            (json!({"httpStatusCode": 200, "responseBody": said(json!({"error": "no stock"}))}), "no stock"),
            (json!({"responseBody": {"a": {"body": "fine"}, "b": {"body": "Access denied."}}}), "Access denied."),
        ] {
            assert_eq!(failure(response.clone()).as_deref(), Some(why), "{response}");
        }
    }

    #[test]
    fn any_other_does_not() {
        for response in [
            json!({}),
            json!({"functionResponse": {"responseBody": {"TEXT": {"body": "shipped"}}}}),
            json!({"functionResponse": null, "httpStatusCode": 200}),
            json!({"httpStatusCode": 302, "responseBody": {"application/json": {"body": null}}}),
            json!({"httpStatusCode": [500], "responseBody": [1], "responseState": 7}),
            json!({"responseState": "DONE", "responseBody": {"TEXT": "Error: not in a body"}}),
        ] {
            assert_eq!(failure(response.clone()), None, "{response}");
        }
        for given in [json!(null), json!("Error"), json!({"error": "x"}), json!({"response": "FAILURE"})] {
            assert_eq!(ActionReply::of_function(&given), None, "{given}");
        }
    }
}
