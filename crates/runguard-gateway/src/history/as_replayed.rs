//! One conversation gets one verdict, whether it is judged while it goes on or read again later.

use super::{Before, steps};
use crate::api::Api;
use crate::members::Members;
use runguard_core::detect::stall::VolatileResults;
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

/// As the gateway judges it: asked before each answer of the model, and after the last.
fn live(messages: &[Value]) -> Ended {
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
        let body = json!({"messages": messages[..end]}).to_string();
        let told = steps(Api::Chat, &Members::read(body.as_bytes()).unwrap(), Before::default(), VolatileResults::NONE);
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

fn replayed(messages: &[Value]) -> Ended {
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    std::fs::write(file.path(), Value::from(messages).to_string()).unwrap();
    let runs: Vec<_> = format::open(file.path(), None, Detail::FINGERPRINTS).unwrap().collect();
    let [Ok(run)] = &runs[..] else { panic!("{runs:?}") };
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
        assert_eq!((live(&messages), replayed(&messages)), (expected.clone(), expected), "{name}");
    }
}
