//! One conversation gets one verdict, whether it is judged while it goes on or read again later.

use super::{Before, steps};
use crate::api::Api;
use crate::members::Members;
use runguard_core::detect::stall::{VolatileResults, says_error};
use runguard_core::text::StoreText;
use runguard_core::time::Timestamp;
use runguard_guards::answer;
use runguard_guards::guard::{Moment, ROUTES};
use runguard_guards::input::Input;
use runguard_guards::policy::{Policy, Tree};
use runguard_replay::format;
use runguard_replay::rules::{Caps, Guards, Presets, Watched};
use runguard_replay::trace::{Detail, Kind};
use serde_json::{Value, json};

/// How many rounds of calls it makes until it is refused, and the rule.
type Ended = Option<(usize, String)>;

/// The interface a conversation is told in.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Told {
    Chat,
    Messages,
    Responses,
    Converse,
}

impl Told {
    fn api(self) -> Api {
        match self {
            Self::Chat => Api::Chat,
            Self::Messages => Api::Messages,
            Self::Responses => Api::Responses,
            Self::Converse => Api::Converse,
        }
    }

    fn body(self, messages: &[Value], flags: bool) -> Value {
        let told = self.told(messages, flags);
        if self == Self::Responses { json!({"input": told}) } else { json!({"messages": told}) }
    }

    /// A chat in the words of the interface. It says what failed where it can; or it leaves that out, and tells calls in all of its ways.
    fn told(self, messages: &[Value], flags: bool) -> Vec<Value> {
        let mut told: Vec<Value> = Vec::new();
        let mut results: Vec<Value> = Vec::new();
        for message in messages {
            let (role, content) = (&message["role"], &message["content"]);
            if role == "tool" && matches!(self, Self::Messages | Self::Converse) {
                results.push(self.result(message, flags));
                continue;
            }
            if !results.is_empty() {
                told.push(json!({"role": "user", "content": std::mem::take(&mut results)}));
            }
            match self {
                Self::Responses if role == "tool" => told.push(self.result(message, flags)),
                Self::Responses => {
                    told.extend((!content.is_null()).then(|| json!({"type": "message", "role": role, "content": content})));
                    told.extend(self.calls(message, flags));
                }
                Self::Messages | Self::Converse if content.is_null() => {
                    told.push(json!({"role": role, "content": self.calls(message, flags)}));
                }
                Self::Chat | Self::Messages => told.push(message.clone()),
                Self::Converse => told.push(json!({"role": role, "content": [{"text": content}]})),
            }
        }
        if !results.is_empty() {
            told.push(json!({"role": "user", "content": results}));
        }
        told
    }

    fn calls(self, message: &Value, flags: bool) -> Vec<Value> {
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let told = calls.map(|call| {
            let (id, name, arguments) = (&call["id"], &call["function"]["name"], call["function"]["arguments"].as_str().unwrap());
            let input: Value = serde_json::from_str(arguments).unwrap();
            match self {
                Self::Chat => call.clone(),
                Self::Messages => json!({"type": "tool_use", "id": id, "name": name, "input": input}),
                Self::Converse => json!({"toolUse": {"toolUseId": id, "name": name, "input": input}}),
                // As the tools of the provider's that callers run.
                Self::Responses if !flags && name == "bash" => json!({"type": "local_shell_call", "call_id": id, "action": input}),
                Self::Responses if !flags && name == "write_file" => json!({"type": "apply_patch_call", "call_id": id, "operation": input}),
                Self::Responses if !flags && name == "search" => {
                    json!({"type": "custom_tool_call", "call_id": id, "name": name, "input": arguments})
                }
                Self::Responses => json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments}),
            }
        });
        told.collect()
    }

    fn result(self, message: &Value, flags: bool) -> Value {
        let (id, content) = (&message["tool_call_id"], message["content"].as_str().unwrap());
        let failed = says_error(content);
        match (self, flags) {
            (Self::Chat, _) => message.clone(),
            // Parts are lines of their own, by whomever they are read.
            (Self::Messages, true) => {
                let parts = [json!({"type": "text", "text": content}), json!({"type": "text", "text": "(end)"})];
                json!({"type": "tool_result", "tool_use_id": id, "content": parts, "is_error": failed})
            }
            (Self::Messages, false) => json!({"type": "tool_result", "tool_use_id": id, "content": content}),
            (Self::Converse, true) => {
                let status = if failed { "error" } else { "success" };
                json!({"toolResult": {"toolUseId": id, "content": [{"text": content}], "status": status}})
            }
            (Self::Converse, false) => json!({"toolResult": {"toolUseId": id, "content": [{"text": content}]}}),
            (Self::Responses, _) => json!({"type": "function_call_output", "call_id": id, "output": content}),
        }
    }
}

/// As the gateway judges it: asked before each answer of the model, and after the last.
fn live(messages: &[Value], told_in: Told, flags: bool) -> Ended {
    let route = ROUTES.iter().find(|route| route.path == "/guard/agent-run").unwrap();
    let policy = Policy::build(&Tree::new(), &["guards"]).unwrap();
    let mut state: Option<Vec<u8>> = None;
    let mut rounds = 0;
    for end in 1..=messages.len() {
        let is_asked = messages.get(end).is_none_or(|next| next["role"] == "assistant");
        rounds += usize::from(messages[end - 1]["tool_calls"].is_array());
        if !is_asked {
            continue;
        }
        let body = told_in.body(&messages[..end], flags).to_string();
        let told = steps(told_in.api(), &Members::read(body.as_bytes()).unwrap(), Before::default(), VolatileResults::NONE);
        let asked = json!({"session_id": "r", "steps": told, "whole": true}).to_string();
        let operation = (route.read)(&Input::read(asked.as_bytes(), route.fields).unwrap());
        let moment = Moment { now: Timestamp::from_millis(0), decision_id: "", store_text: StoreText::None, long_runs: None };
        let outcome = operation.run(&policy, &[state.as_deref()], moment);
        if outcome.answer.is_block() {
            let rule = outcome.answer.facts.iter().find_map(|(name, value)| match value {
                answer::Value::Text(rule) if *name == "rule" => Some(rule.to_string()),
                _ => None,
            });
            return Some((rounds, rule.unwrap()));
        }
        if let Some(change) = outcome.changes.into_iter().next() {
            state = Some(change.state);
        }
    }
    None
}

fn replayed(messages: &[Value], told_in: Told, flags: bool) -> Ended {
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    std::fs::write(file.path(), Value::from(told_in.told(messages, flags)).to_string()).unwrap();
    let runs: Vec<_> = format::open(file.path(), None, Detail::FINGERPRINTS).unwrap().collect();
    let [Ok(run)] = &runs[..] else { panic!("{told_in:?}: {runs:?}") };
    let guards = Guards::new(Presets::default(), &Tree::new(), &[Watched::Stall], Caps::default()).unwrap();
    let (at, cause) = guards.watch().run(run).ended?;
    let calls = run.steps[..=at].iter().filter(|step| step.kind == Kind::Call);
    let mut rounds: Vec<_> = calls.map(|step| step.round).collect();
    rounds.dedup();
    Some((rounds.len(), cause.code().trim_start_matches("stall.").to_owned()))
}

fn user(text: &str) -> Vec<Value> {
    vec![json!({"role": "user", "content": text})]
}

/// Calls side by side, and what they gave.
fn round(number: usize, calls: &[(&str, &str, &str)]) -> Vec<Value> {
    let id = |index: usize| format!("call_{number}_{index}");
    let made: Vec<Value> = (calls.iter().enumerate())
        .map(|(index, (tool, args, _))| json!({"id": id(index), "type": "function", "function": {"name": tool, "arguments": args}}))
        .collect();
    let gave = calls.iter().enumerate().map(|(index, (_, _, gave))| json!({"role": "tool", "tool_call_id": id(index), "content": gave}));
    [json!({"role": "assistant", "content": null, "tool_calls": made})].into_iter().chain(gave).collect()
}

/// Edits, and a check after each that says this.
fn checked(gave: impl Fn(usize) -> String, times: usize) -> Vec<Value> {
    let rounds = (0..times).flat_map(|number| {
        let edit = json!({"path": "a.py", "content": format!("{number}")}).to_string();
        let check = gave(number);
        [round(2 * number, &[("write_file", &edit, "ok")]), round(2 * number + 1, &[("bash", r#"{"command": "pytest -q"}"#, &check)])]
    });
    user("Make the tests pass.").into_iter().chain(rounds.flatten()).collect()
}

#[test]
fn the_gateway_and_replay_say_the_same_of_a_conversation() {
    let search = ("search", r#"{"q": "a"}"#, "nothing found");
    let again = |from: usize, times: usize| (from..from + times).flat_map(move |number| round(number, &[search]));
    let conversations: [(&str, Vec<Value>, Ended); 7] = [
        ("fewer and fewer fail", checked(|number| format!("Error: {} failed", 40 - number), 16), None),
        ("as many fail", checked(|_| "Error: 5 failed".into(), 16), Some((24, "unmoved".into()))),
        ("the same call", user("Find it.").into_iter().chain(again(0, 6)).collect(), Some((4, "identical".into()))),
        ("four times at once", user("Find it.").into_iter().chain(round(0, &[search; 4])).collect(), None),
        (
            "a person speaks in between",
            [user("Find it."), again(0, 3).collect(), user("Look again."), again(3, 2).collect()].concat(),
            None,
        ),
        (
            "a framework speaks in between",
            [
                user("Find it."),
                again(0, 3).collect(),
                vec![json!({"role": "assistant", "content": "I do not know."})],
                user("Observation: go on"),
                again(3, 3).collect(),
            ]
            .concat(),
            Some((4, "identical".into())),
        ),
        (
            "another task in a browser",
            [
                user("Tidy up."),
                (0..9).flat_map(|number| round(number, &[("bash", &format!(r#"{{"command": "rm {number}"}}"#), "")])).collect(),
                user("Now book it."),
                (9..24)
                    .flat_map(|number| {
                        round(number, &[("click", &format!(r#"{{"bid": "{}", "at": {number}}}"#, number % 3), &format!("page {number}"))])
                    })
                    .collect(),
            ]
            .concat(),
            Some((18, "novelty".into())),
        ),
    ];
    for (name, messages, expected) in conversations {
        for told_in in [Told::Chat, Told::Messages, Told::Responses, Told::Converse] {
            let ended = (live(&messages, told_in, true), replayed(&messages, told_in, true));
            assert_eq!(ended, (expected.clone(), expected.clone()), "{name}, {told_in:?}");
            assert_eq!(live(&messages, told_in, false), replayed(&messages, told_in, false), "{name}, {told_in:?} otherwise");
        }
    }
}
