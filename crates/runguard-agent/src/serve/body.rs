//! What a caller asks for, and how much of it the settings file allows.
//!
//! The file's limits are the ceiling for every caller, with or without a key: who pays wrote the file. A caller chooses
//! below it, and on resuming may choose again, up to the same ceiling. All problems of a body are named at once.

use super::problem::Problem;
use crate::report::{Report, Stop};
use crate::settings::Limits;
use axum::body::Body;
use bytes::Bytes;
use runguard_core::money::NanoDollars;
use runguard_core::time::Span;
use runguard_http::FieldProblem;
use runguard_http::body::{self, LARGE, Limit};
use runguard_http::load::Share;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

const LIMIT: Limit = Limit { bytes: LARGE, advice: "Put long texts into a file the agent may read." };
/// Problems named one by one.
const MOST_PROBLEMS: usize = 20;

/// The body of a request that begins a run or goes on with one.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct RunBody {
    pub(super) prompt: Option<String>,
    pub(super) session: Option<String>,
    pub(super) limits: AskedLimits,
    pub(super) interactive: bool,
    pub(super) detach: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct AskedLimits {
    max_steps: Option<u32>,
    timeout: Option<Span>,
    token_budget: Option<u64>,
    cost_limit: Option<f64>,
}

/// Reads the whole body, within bounds of size and time.
pub(super) async fn read(body: Body) -> Result<Bytes, Problem> {
    Ok(body::read(body, LIMIT, &mut Share::unbounded()).await?)
}

/// `POST /v1/agent/runs`: there must be something to do.
pub(super) fn run(body: &[u8]) -> Result<RunBody, Problem> {
    let (asked, mut fields) = parse(body, &["prompt", "limits", "interactive", "detach", "session"])?;
    if asked.prompt.is_none() && !fields.problems.iter().any(|problem| problem.field == "prompt") {
        fields.wrong("prompt", "is missing: say what the agent shall do");
    }
    fields.into_result(asked)
}

/// `POST /v1/agent/runs/{id}/resume`: nothing need be said.
pub(super) fn resume(body: &[u8]) -> Result<RunBody, Problem> {
    let (asked, fields) = parse(if body.is_empty() { b"{}" } else { body }, &["prompt", "limits", "interactive", "detach"])?;
    fields.into_result(asked)
}

fn parse(body: &[u8], known: &[&str]) -> Result<(RunBody, Fields), Problem> {
    let value: Value = serde_json::from_slice(body).map_err(|problem| Problem::not_an_object(format!("It is not JSON: {problem}.")))?;
    let Value::Object(mut object) = value else {
        return Err(Problem::not_an_object("It is JSON, but not an object: {\"prompt\": \"…\"}."));
    };
    let mut fields = Fields::default();
    fields.unknown("", &object, known);
    let prompt: Option<String> = fields.take(&mut object, "prompt", "must be text");
    if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
        fields.wrong("prompt", "is empty: say what the agent shall do");
    }
    let limits: Option<Map<String, Value>> = fields.take(&mut object, "limits", "must be an object");
    let asked = RunBody {
        prompt,
        session: if known.contains(&"session") { fields.take(&mut object, "session", "must be the id of a session") } else { None },
        limits: limits.map(|limits| fields.limits(limits)).unwrap_or_default(),
        interactive: fields.take(&mut object, "interactive", "must be true or false").unwrap_or_default(),
        detach: fields.take(&mut object, "detach", "must be true or false").unwrap_or_default(),
    };
    Ok((asked, fields))
}

/// Collects what is wrong.
#[derive(Debug, Default)]
struct Fields {
    problems: Vec<FieldProblem>,
}

impl Fields {
    fn wrong(&mut self, field: &str, problem: impl Into<String>) {
        const MOST_NAME_CHARS: usize = 64;
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(FieldProblem { field: field.chars().take(MOST_NAME_CHARS).collect(), problem: problem.into() });
        }
    }

    fn unknown(&mut self, within: &str, object: &Map<String, Value>, known: &[&str]) {
        for name in object.keys().filter(|name| !known.contains(&name.as_str())) {
            self.wrong(&format!("{within}{name}"), format!("is not known; there are: {}", known.join(", ")));
        }
    }

    /// Null is as good as left out.
    fn take<T: DeserializeOwned>(&mut self, object: &mut Map<String, Value>, name: &str, problem: &str) -> Option<T> {
        let value = object.remove(name).filter(|value| !value.is_null())?;
        let taken = serde_json::from_value(value).ok();
        if taken.is_none() {
            self.wrong(name, problem);
        }
        taken
    }

    fn limits(&mut self, mut object: Map<String, Value>) -> AskedLimits {
        self.unknown("limits.", &object, &["max_steps", "timeout", "token_budget", "cost_limit"]);
        let mut within = Self::default();
        let limits = AskedLimits {
            max_steps: within.take(&mut object, "max_steps", "must be a whole number from 1"),
            timeout: within.take(&mut object, "timeout", "must be seconds (60) or a time with a unit (\"90s\", \"15m\")"),
            token_budget: within.take(&mut object, "token_budget", "must be a whole number"),
            cost_limit: within.take(&mut object, "cost_limit", "must be dollars (0.5)"),
        };
        if limits.max_steps == Some(0) {
            within.wrong("max_steps", "must be at least 1");
        }
        if let Some(Err(problem)) = limits.cost_limit.map(NanoDollars::from_dollars) {
            within.wrong("cost_limit", format!("cannot be: {problem}"));
        }
        for FieldProblem { field, problem } in within.problems {
            self.wrong(&format!("limits.{field}"), problem);
        }
        limits
    }

    fn into_result<T>(self, value: T) -> Result<T, Problem> {
        if self.problems.is_empty() { Ok(value) } else { Err(Problem::fields(self.problems)) }
    }
}

impl AskedLimits {
    /// The limits a run gets: those asked for, else those of the session (of the file, for a fresh one), and never more than
    /// the file's.
    pub(super) fn settle(&self, session: &Limits, file: &Limits) -> Result<Limits, Problem> {
        let mut fields = Fields::default();
        let limits = Limits {
            max_steps: fields.settle("max_steps", self.max_steps, session.max_steps, file.max_steps),
            timeout: fields.settle("timeout", self.timeout, session.timeout, file.timeout),
            token_budget: fields.settle("token_budget", self.token_budget, session.token_budget, file.token_budget),
            cost_limit: fields.settle("cost_limit", self.cost_limit, session.cost_limit, file.cost_limit),
        };
        fields.into_result(limits)
    }
}

impl Fields {
    /// A value like zero is no limit at all.
    fn settle<T: PartialOrd + Copy + Default + std::fmt::Display>(&mut self, name: &str, asked: Option<T>, session: T, file: T) -> T {
        let none = T::default();
        let is_within = |value: T| file == none || (value != none && value <= file);
        match asked {
            Some(asked) if is_within(asked) => asked,
            Some(_) => {
                let problem = format!("may only lower the limit of the settings file, {file}; to go beyond it, raise it there and restart");
                self.wrong(&format!("limits.{name}"), problem);
                file
            }
            None if is_within(session) => session,
            None => file,
        }
    }
}

/// How to go on after a limit was reached: by asking for more, or, where the file allows no more, by changing the file.
pub(super) fn how_to_raise(report: &Report, file: &Limits) -> Option<String> {
    let (name, is_of_the_file, most) = match &report.stop {
        Stop::TimedOut { limit_ms } => ("timeout", *limit_ms >= file.timeout.as_millis(), file.timeout.to_string()),
        Stop::MaxSteps { limit } => ("max_steps", *limit >= file.max_steps, file.max_steps.to_string()),
        Stop::TokenBudget { limit, .. } => ("token_budget", *limit >= file.token_budget, file.token_budget.to_string()),
        Stop::CostLimit { limit, .. } => ("cost_limit", file.cost().is_none_or(|file| *limit >= file), file.cost_limit.to_string()),
        Stop::Completed
        | Stop::WaitingForInput
        | Stop::Cancelled
        | Stop::Repetition { .. }
        | Stop::Cycle { .. }
        | Stop::Stalled { .. }
        | Stop::Provider { .. }
        | Stop::NotSaved => return None,
    };
    // Where the file sets none, zero, any number can be asked for.
    let resume = format!("POST /v1/agent/runs/{}/resume with {{\"limits\": {{\"{name}\": …}}}}", report.session);
    Some(match most.as_str() {
        "0" | "0s" => format!("{resume}."),
        _ if is_of_the_file => format!("Raise `limits.{name}` in the settings file (it is {most}) and restart; then {resume}."),
        _ => format!("{resume}, up to {most}."),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(limits: &str) -> AskedLimits {
        resume(format!("{{\"limits\":{limits}}}").as_bytes()).unwrap().limits
    }

    #[test]
    fn what_is_not_asked_for_is_as_the_session_had_it() {
        let file = Limits { max_steps: 50, timeout: Span::from_seconds(60), token_budget: 0, cost_limit: 1.0 };
        let session = Limits { max_steps: 5, timeout: Span::ZERO, token_budget: 700, cost_limit: 2.0 };
        let settled = asked("{}").settle(&session, &file).unwrap();
        assert_eq!(settled, Limits { max_steps: 5, timeout: Span::from_seconds(60), token_budget: 700, cost_limit: 1.0 });
    }

    #[test]
    fn a_caller_goes_up_to_the_file_and_not_beyond() {
        let file = Limits { max_steps: 50, timeout: Span::from_seconds(60), token_budget: 0, cost_limit: 1.0 };
        let most = asked(r#"{"max_steps":50,"timeout":"1m","token_budget":0,"cost_limit":1.0}"#);
        assert_eq!(most.settle(&file, &file).unwrap(), file);
        for more in [r#"{"max_steps":51}"#, r#"{"timeout":"61s"}"#, r#"{"timeout":0}"#, r#"{"cost_limit":1.01}"#, r#"{"cost_limit":0}"#] {
            assert!(asked(more).settle(&file, &file).is_err(), "{more}");
        }
    }

    proptest! {
        #[test]
        fn nothing_settles_above_the_file(
            steps in proptest::option::of(1..100_u32),
            tokens in proptest::option::of(0..100_u64),
            session in (1..100_u32, 0..100_u64),
            file in (1..100_u32, 0..100_u64),
        ) {
            let limits = |(max_steps, token_budget)| Limits { max_steps, token_budget, ..Limits::default() };
            let asked = AskedLimits { max_steps: steps, token_budget: tokens, ..AskedLimits::default() };
            if let Ok(settled) = asked.settle(&limits(session), &limits(file)) {
                prop_assert!((1..=file.0).contains(&settled.max_steps));
                prop_assert!(file.1 == 0 || (1..=file.1).contains(&settled.token_budget));
                prop_assert!(steps.is_none_or(|steps| steps == settled.max_steps));
                prop_assert!(tokens.is_none_or(|tokens| tokens == settled.token_budget));
            }
        }
    }
}
