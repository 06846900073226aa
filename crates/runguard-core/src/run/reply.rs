//! What came back over HTTP: an answer, nothing that helps, or a mistake that whoever asked has to hear.

use crate::object::Object;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Guards answer under this, with a decision.
const GUARDS: &str = "/guard/";
/// Of a text that is no problem report this much is shown.
const SHOWN: usize = 200;

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NoAnswer {
    /// Whose fault it is.
    pub fault: Fault,
    /// What happened and what to do, in sentences.
    pub message: String,
}

/// Whose fault it is that there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The service's, or that of something before it: asking later may help.
    Away,
    /// The address or the key: asking again helps nobody, so it is no reason to let calls pass.
    Misdirected,
    /// The request's.
    Input,
}

impl Fault {
    /// Its name, for other languages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Misdirected => "misdirected",
            Self::Input => "input",
        }
    }
}

/// The answer to a request, as JSON, by status and body. A guard's answer has a decision in it: a page of some proxy is none.
pub fn read<'a>(method: &str, path: &str, status: u16, body: &'a str) -> Result<Cow<'a, str>, NoAnswer> {
    let asked = format_args!("{method} {path}");
    let fault = match status {
        204 => return Ok(Cow::Borrowed(r#"{"recorded":true}"#)),
        200..300 if !path.starts_with(GUARDS) => return Ok(Cow::Borrowed(body)),
        200..300 | 429 if decision(body).is_some() => return Ok(Cow::Borrowed(body)),
        200..300 => {
            let message = format!(
                "{asked} was answered with {status}, but without a decision. Check that the address is that of a RunGuard service, and not of something before it."
            );
            return Err(NoAnswer { fault: Fault::Away, message });
        }
        400 | 413 | 422 => Fault::Input,
        408 | 429 | 500.. => Fault::Away,
        0..200 | 300..400 => {
            let message =
                format!("{asked} was answered with {status}: it leads elsewhere. Give the address of the RunGuard service itself.");
            return Err(NoAnswer { fault: Fault::Misdirected, message });
        }
        401.. => Fault::Misdirected,
    };
    let did = if fault == Fault::Input { "refused" } else { "answered" };
    Err(NoAnswer { fault, message: format!("The RunGuard service {did} {asked} with {status}: {}", details(body)) })
}

/// The members of a guard's answer; `None` when it decides nothing.
pub fn decision(body: &str) -> Option<Object<'_>> {
    let answer: Object<'_> = serde_json::from_str(body).ok()?;
    let is_decision = matches!(answer.get("allow"), Some("true" | "false")) || answer.get("recorded") == Some("true");
    is_decision.then_some(answer)
}

/// What a problem report (RFC 9457) says, or the beginning of whatever it is.
fn details(body: &str) -> String {
    let report: Map<String, Value> = serde_json::from_str(body).unwrap_or_default();
    let text = |of: &Map<String, Value>, name: &str| of.get(name).and_then(Value::as_str).map(str::to_owned);
    let errors = report.get("errors").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
    let fields: Vec<String> = errors.filter_map(|error| Some(format!("{}: {}", text(error, "field")?, text(error, "problem")?))).collect();
    let said = text(&report, "detail").or_else(|| text(&report, "title"));
    let said = said.unwrap_or_else(|| body.trim().chars().take(SHOWN).collect());
    [said, fields.join("; ")].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_told_in_its_own_words() {
        let told = |status, body| read("POST", "/guard/loop", status, body).unwrap_err().to_string();
        let report = r#"{"title":"Wrong input","detail":"The request has a mistake.","errors":[{"field":"tool","problem":"is empty"}]}"#;
        assert_eq!(told(422, report), "The RunGuard service refused POST /guard/loop with 422: The request has a mistake. tool: is empty");
        assert_eq!(told(404, r#"{"title":"Not found"}"#), "The RunGuard service answered POST /guard/loop with 404: Not found");
        assert!(told(502, &"<p>".repeat(1000)).len() < 300);
    }
}
