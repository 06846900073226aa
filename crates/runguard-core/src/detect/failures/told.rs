//! Whether a text tells of a failure, and which part of it says why.
//!
//! An action of an agent gives a text, and nothing beside it says whether it failed. So it is read: JSON by the fields that such answers
//! have, anything else by how it begins and by the names of exceptions. When in doubt it is no failure; and a failure alone ends nothing.

use serde_json::{Map, Value};

/// Fields that say what went wrong, the most telling first.
const WHY: &[&str] = &["error", "errorMessage", "error_message", "errors", "err", "exception", "fault"];
/// Fields that say it where others say that it failed.
const WHY_ELSE: &[&str] = &["message", "detail", "details", "reason", "title", "body"];
const STATUS: &[&str] = &["statusCode", "status_code", "httpStatusCode", "http_status", "status"];
/// A plain text that begins so tells of a failure.
const BEGINNINGS: &[&str] = &[
    "error",
    "exception",
    "traceback",
    "failed",
    "failure",
    "fatal",
    "unable to",
    "could not",
    "couldn't",
    "cannot",
    "can't",
    "access denied",
    "accessdenied",
    "permission denied",
    "forbidden",
    "unauthorized",
    "unauthorised",
    "not authorized",
    "not authorised",
    "invalid",
    "bad request",
    "internal server error",
    "service unavailable",
    "timeout",
    "timed out",
    "not found",
    "no such",
    "an error occurred",
    "something went wrong",
    "http 4",
    "http 5",
    "throttl",
    "rate exceeded",
    "too many requests",
    "missing required",
    "unknown parameter",
    "missing permission",
    "fehler",
    "erreur",
    "errore",
    "erro",
    "ошибка",
    "خطأ",
    "त्रुटि",
    "错误",
    "エラー",
];
/// Beginnings that are the stem of a word, or stand before others without a space.
const OPEN_ENDED: &[&str] = &["throttl", "错误", "エラー"];
/// A short text that ends so does.
const ENDS: &[&str] =
    &["not found", "not available", "nicht gefunden", "introuvable", "no encontrado", "no encontrada", "не найден", "не найдена"];
/// A code in words that has one of these in it does.
const CODES: &[&str] =
    &["throttl", "denied", "error", "fail", "invalid", "notfound", "unauthori", "forbidden", "timeout", "unavailable", "exceeded"];
/// A plain text that says so anywhere near its beginning does.
const PHRASES: &[&str] = &[
    "is not authorized to perform",
    "is not authorised to perform",
    "access denied",
    "permission denied",
    "does not exist",
    "was not found",
    "timed out",
    "an error occurred",
    "internal server error",
    "service unavailable",
    "rate exceeded",
    "failed with",
    "failed because",
    "failed to",
    "could not be found",
    "could not be reached",
    "request failed",
    "missing permission",
    "have permission to",
    "bad gateway",
    "gateway timeout",
];
/// What comes later in a long text is hardly why it was given.
const BEGINNING_CHARS: usize = 300;
/// A text of more bytes says more than what its end says.
const SHORT_BYTES: usize = 120;
const DEEPEST: usize = 4;

/// What a text says went wrong, if it tells of a failure: of JSON the part that says it, so that what else it echoes does not matter.
///
/// ```
/// use runguard_core::detect::failures::failure_in;
///
/// assert_eq!(failure_in(r#"{"error": "AccessDenied", "order": 7}"#).as_deref(), Some("AccessDenied"));
/// assert_eq!(failure_in("Error: no such table").as_deref(), Some("Error: no such table"));
/// assert_eq!(failure_in(r#"{"orders": [], "error": null}"#), None);
/// assert_eq!(failure_in("0 errors in 12 orders"), None);
/// ```
pub fn failure_in(text: &str) -> Option<String> {
    failure_within(text, 0)
}

fn failure_within(text: &str, depth: usize) -> Option<String> {
    if depth > DEEPEST {
        return None;
    }
    match serde_json::from_str(text.trim()) {
        Ok(Value::Object(body)) => failure_of(&body, depth),
        Ok(Value::String(inner)) => failure_within(&inner, depth + 1),
        Ok(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) => None,
        Err(_) => tells_plainly(text).then(|| text.trim().to_owned()),
    }
}

fn failure_of(body: &Map<String, Value>, depth: usize) -> Option<String> {
    if let Some(why) = WHY.iter().find_map(|name| body.get(*name).filter(|value| says_something(value))) {
        // `"error": true` says that, not why.
        return Some(if why.is_boolean() { explained(body) } else { words(why) });
    }
    let has_failed = STATUS.iter().any(|name| body.get(*name).is_some_and(is_bad_status))
        || ["success", "ok", "succeeded"].iter().any(|name| body.get(*name) == Some(&Value::Bool(false)))
        || body.get("code").and_then(Value::as_str).is_some_and(is_bad_code);
    if has_failed {
        return Some(explained(body));
    }
    // An answer that was handed on whole.
    body.get("body").and_then(Value::as_str).filter(|_| body.contains_key("statusCode")).and_then(|inner| failure_within(inner, depth + 1))
}

fn explained(body: &Map<String, Value>) -> String {
    let why = WHY_ELSE.iter().find_map(|name| body.get(*name).filter(|value| says_something(value)));
    why.map_or_else(|| Value::Object(body.clone()).to_string(), words)
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

fn words(why: &Value) -> String {
    match why {
        Value::String(text) => text.clone(),
        Value::Object(members) => {
            let parts: Vec<String> = ["code", "type", "name", "message"].iter().filter_map(|name| members.get(*name)).map(words).collect();
            if parts.is_empty() { why.to_string() } else { parts.join(": ") }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => why.to_string(),
    }
}

fn is_bad_status(status: &Value) -> bool {
    match status {
        Value::Number(number) => number.as_u64().is_some_and(|code| (400..600).contains(&code)),
        Value::String(text) => {
            let text = text.trim().to_lowercase();
            matches!(text.as_str(), "error" | "failed" | "failure") || text.parse::<u64>().is_ok_and(|code| (400..600).contains(&code))
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

/// `THROTTLED`, `not_found`, `E_ACCESS_DENIED`.
fn is_bad_code(code: &str) -> bool {
    let plain: String = code.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    CODES.iter().any(|bad| plain.contains(bad))
}

fn tells_plainly(text: &str) -> bool {
    let start: String = text.trim_start_matches(|letter: char| !letter.is_alphanumeric()).chars().take(BEGINNING_CHARS).collect();
    let lower = start.to_lowercase();
    let begins = |beginning: &&str| {
        // "errors" of a report, and "invalidated" of a cache, are other words.
        lower.strip_prefix(*beginning).is_some_and(|rest| !rest.starts_with(char::is_alphabetic) || OPEN_ENDED.contains(beginning))
    };
    // What permits ("you have permission to") is no failure.
    let says = |phrase: &&str| {
        lower.match_indices(*phrase).any(|(at, _)| *phrase != "have permission to" || lower[..at].trim_end().ends_with("not"))
    };
    let end = lower.trim_end_matches(|letter: char| !letter.is_alphanumeric());
    BEGINNINGS.iter().any(begins)
        || (text.len() <= SHORT_BYTES && ENDS.iter().any(|known| end.ends_with(known)))
        || PHRASES.iter().any(says)
        || start.split(|letter: char| !letter.is_alphanumeric()).any(names_an_exception)
}

/// `ValidationException`, `ResourceNotFoundException`, `KeyError`.
fn names_an_exception(word: &str) -> bool {
    let before = word.strip_suffix("Exception").or_else(|| word.strip_suffix("Error"));
    before.is_some_and(|before| before.starts_with(char::is_uppercase) && before.contains(char::is_lowercase))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_tell_of_a_failure() {
        for (text, why) in [
            (r#"{"error": "AccessDenied: dynamodb:GetItem", "order": 7}"#, "AccessDenied: dynamodb:GetItem"),
            (r#"{"error": {"code": "Throttled", "message": "slow down"}}"#, "Throttled: slow down"),
            (r#"{"error": true, "message": "no such order"}"#, "no such order"),
            (r#"{"statusCode": 500, "body": "boom"}"#, "boom"),
            (r#"{"status": "failed", "reason": "card declined"}"#, "card declined"),
            (r#"{"success": false, "detail": "no stock"}"#, "no stock"),
            (r#"{"errorMessage": "Task timed out", "errorType": "Sandbox.Timedout"}"#, "Task timed out"),
            (r#""Error: no such table""#, "Error: no such table"),
            ("Error: no such table", "Error: no such table"),
            ("  ERROR - 7", "ERROR - 7"),
            ("User: arn:aws:iam::1:role/x is not authorized to perform: dynamodb:GetItem", ""),
            ("The order service failed to answer", ""),
            ("botocore.errorfactory.ResourceNotFoundException: table orders", ""),
            ("Access denied.", ""),
            ("HTTP 503 from upstream", ""),
            ("The request failed: missing permission dynamodb:Query", ""),
            ("You do not have permission to read orders", ""),
            ("Item not found", ""),
            ("<html><h1>502 Bad Gateway</h1></html>", ""),
            (r#"{"code":"THROTTLED","detail":"rate exceeded"}"#, "rate exceeded"),
            (r#"{"result":null,"err":"missing table"}"#, "missing table"),
            ("Fehler: Tabelle nicht gefunden", ""),
            ("Ошибка: таблица не найдена", ""),
        ] {
            let found = failure_in(text);
            assert_eq!(found.as_deref(), Some(if why.is_empty() { text } else { why }), "{text}");
        }
    }

    #[test]
    fn answers_that_do_not() {
        for text in [
            "",
            "ok",
            r#"{"ok": true}"#,
            r#"{"orders": [], "error": null, "errors": []}"#,
            r#"{"status": "open", "code": 200}"#,
            r#"{"statusCode": 200, "body": "{\"ok\": true}"}"#,
            "0 errors in 12 orders",
            "Errors last week: none",
            "Invalidated 3 entries",
            "nothing found",
            "You have permission to read orders",
            r#"{"code": "DE-4711", "name": "lamp"}"#,
            "Fehlerfrei geprüft",
            "Erroll Garner played",
            "Sent. No failure was seen.",
            r#"["Error"]"#,
            "12",
            "Terror",
        ] {
            assert_eq!(failure_in(text), None, "{text}");
        }
        let nested = r#"{"statusCode": 200, "body": "{\"error\": \"quota\"}"}"#;
        assert_eq!(failure_in(nested).as_deref(), Some("quota"), "an answer handed on whole");
    }
}
