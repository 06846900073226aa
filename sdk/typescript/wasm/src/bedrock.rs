//! Agents of Amazon Bedrock: what their trace says, and how calls of their actions ended.

use crate::boundary::{DONE, GONE, Table, answer, handle_of, refuse, with_texts};
use crate::runs;
use runguard_core::bedrock::{AttemptChanges, Preset, Turn};
use runguard_core::detect::actions::Action;
use runguard_core::detect::failures::{ActionReply, CallHistory, CallResult};
use serde::Serialize;
use serde_json::{Map, Value};
use std::cell::RefCell;

thread_local! {
    static TURNS: RefCell<Table<Turn>> = const { RefCell::new(Table::new()) };
}

/// A turn of a run; `attempts` are the thresholds that are given, as JSON, and the others go with the run. 0 and a reason in the output when
/// one is refused.
#[unsafe(no_mangle)]
pub extern "C" fn bedrock_turn_new(run: u32, attempts: usize) -> u32 {
    let turn = with_texts([attempts], |[given]| {
        let given: AttemptChanges = serde_json::from_str(given).map_err(|problem| problem.to_string())?;
        let turn = runs::looked_at(run, |run| Turn::of_run(run, given)).ok_or_else(|| "the run was freed".to_owned())?;
        turn.map_err(|problem| problem.to_string())
    });
    handle_of(&TURNS, turn)
}

#[unsafe(no_mangle)]
pub extern "C" fn bedrock_turn_free(handle: u32) {
    TURNS.with_borrow_mut(|turns| turns.remove(handle));
}

/// An event of the stream as JSON; leaves the steps it leads to in the output.
#[unsafe(no_mangle)]
pub extern "C" fn bedrock_turn_hear(handle: u32, event: usize) -> i32 {
    with_texts([event], |[event]| match serde_json::from_str::<Value>(event) {
        Ok(event) => {
            TURNS.with_borrow_mut(|turns| turns.get(handle).map(|turn| turn.hear(&event))).map_or(GONE, |steps| answer(DONE, &steps))
        }
        Err(problem) => refuse(problem),
    })
}

/// The settings for a kind of agent beside the options of a run that are given, a list of names, and the thresholds that are.
#[unsafe(no_mangle)]
pub extern "C" fn bedrock_preset(name: usize, given: usize, attempts: usize) -> i32 {
    with_texts([name, given, attempts], |[name, given, attempts]| {
        let read = || Ok::<_, serde_json::Error>((serde_json::from_str::<Vec<String>>(given)?, serde_json::from_str(attempts)?));
        match (Preset::from_name(name), read()) {
            (Ok(preset), Ok((given, attempts))) => answer(DONE, &preset.beside(&given, attempts)),
            (Err(problem), _) => refuse(problem),
            (_, Err(problem)) => refuse(problem),
        }
    })
}

/// An action as Bedrock wrote it, as JSON; leaves its name and its arguments in the output.
#[unsafe(no_mangle)]
pub extern "C" fn action_call(action: usize) -> i32 {
    #[derive(Serialize)]
    struct Called {
        name: String,
        args: Value,
    }
    with_texts([action], |[action]| {
        let read: Map<String, Value> = serde_json::from_str(action).unwrap_or_default();
        let Action { name, arguments: args, .. } = Action::read(&read);
        answer(DONE, &Called { name, args })
    })
}

/// The latest calls of a session after something happened, and why a call must not be made.
#[derive(Serialize)]
struct Remembered {
    calls: Vec<String>,
    refusal: Option<String>,
}

/// A signature that is none is that of no call.
fn number(signature: &str) -> u64 {
    u64::from_str_radix(signature, 16).unwrap_or_default()
}

fn history(calls: &str) -> CallHistory {
    CallHistory::read(&serde_json::from_str::<Vec<String>>(calls).unwrap_or_default())
}

/// `calls` are those that are remembered, as JSON; a call with this signature is about to be made.
#[unsafe(no_mangle)]
pub extern "C" fn history_begin(calls: usize, action: usize, signature: usize) -> i32 {
    with_texts([calls, action, signature], |[calls, action, signature]| {
        let mut history = history(calls);
        let refusal = history.begin(action, number(signature));
        answer(DONE, &Remembered { calls: history.texts(), refusal })
    })
}

/// The same when it is known what came of it.
#[unsafe(no_mangle)]
pub extern "C" fn history_finish(calls: usize, signature: usize, failed: u32) -> i32 {
    with_texts([calls, signature], |[calls, signature]| {
        let mut history = history(calls);
        history.finish(number(signature), CallResult::of(failed != 0));
        answer(DONE, &Remembered { calls: history.texts(), refusal: None })
    })
}

/// Whether what an action's Lambda function gives, as JSON, tells of a failure.
#[unsafe(no_mangle)]
pub extern "C" fn reply_failed(given: usize) -> i32 {
    with_texts([given], |[given]| {
        let reply = ActionReply::of_function(&serde_json::from_str(given).unwrap_or_default());
        i32::from(reply.is_some_and(|reply| reply.failure.is_some()))
    })
}
