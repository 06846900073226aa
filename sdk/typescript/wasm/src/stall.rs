//! The stall detector: one history a session.

use crate::boundary::{DONE, GONE, TRIPPED, Table, answer, handle_of, length, millis, overlaid, refuse, with_texts};
use runguard_core::detect::stall::{
    CallEffect, Preset, Rung, StallRule, StallSessions, StallSettings, Step, Verdict, VolatileResults, result_fingerprint,
};
use runguard_core::fingerprint::of_text;
use runguard_core::run::{Failure, Gave, Stalls};
use serde::Serialize;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    /// Runs hold on to those they share.
    static WATCHERS: RefCell<Table<Arc<Mutex<StallSessions>>>> = const { RefCell::new(Table::new()) };
}

/// The same detector, for a run.
pub(crate) fn shared(handle: u32) -> Option<Stalls> {
    WATCHERS.with_borrow_mut(|watchers| watchers.get(handle).map(|watcher| Stalls::InProcess(Arc::clone(watcher))))
}

/// What a call gave, as texts; a length below 0 stands for none.
pub(crate) fn gave<'a>(
    volatile: &VolatileResults,
    (result, result_text): (i32, &str),
    (error, error_text): (i32, &'a str),
    effect: CallEffect,
) -> Gave<'a> {
    let outcome = volatile.outcome((result >= 0).then_some(result_text), (error >= 0).then_some(error_text));
    let error = outcome.error.map(|fingerprint| Failure { text: error_text, fingerprint });
    Gave { effect, tokens: 0, result: outcome.result, error }
}

/// The thresholds of a preset with some of them replaced.
fn settings(preset: &str, changes: &str) -> Result<StallSettings, String> {
    let preset = Preset::from_name(preset).map_err(|unknown| unknown.to_string())?;
    overlaid(&preset.settings(), changes)
}

/// 0 and a reason in the output when the settings are refused.
#[unsafe(no_mangle)]
pub extern "C" fn stall_new(preset: usize, changes: usize) -> u32 {
    let made =
        with_texts([preset, changes], |[preset, changes]| StallSessions::new(settings(preset, changes)?).map_err(|bad| bad.to_string()));
    handle_of(&WATCHERS, made.map(|watcher| Arc::new(Mutex::new(watcher))))
}

#[unsafe(no_mangle)]
pub extern "C" fn stall_free(handle: u32) {
    WATCHERS.with_borrow_mut(|watchers| watchers.remove(handle));
}

fn with_watcher(handle: u32, operation: impl FnOnce(&mut StallSessions) -> i32) -> i32 {
    WATCHERS.with_borrow_mut(|watchers| {
        let Some(watcher) = watchers.get(handle) else { return GONE };
        operation(&mut watcher.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

#[derive(Serialize)]
struct WatcherAnswer {
    rung: &'static str,
    rule: Option<&'static str>,
    count: u32,
    nudge: String,
    message: String,
}

/// Says what was seen.
pub(crate) fn seen(status: i32, verdict: Verdict, tool: &str) -> i32 {
    let seen = WatcherAnswer {
        rung: verdict.rung.code(),
        rule: verdict.rule.map(StallRule::code),
        count: verdict.count,
        nudge: verdict.nudge(tool),
        message: verdict.message(),
    };
    answer(status, &seen)
}

fn say(verdict: Verdict, tool: &str) -> i32 {
    if verdict.rung == Rung::GoOn { DONE } else { seen(TRIPPED, verdict, tool) }
}

/// `result` and `error` are lengths, below 0 when there is none; `round` is below 0 when it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn stall_observe(
    handle: u32,
    session: usize,
    tool: usize,
    args: usize,
    result: i32,
    error: i32,
    round: f64,
    tokens: f64,
    now: f64,
) -> i32 {
    with_texts([session, tool, args, length(result), length(error)], |[session, tool, args, result_text, error_text]| {
        let effect = CallEffect::of(tool, args);
        let args = match of_text(args) {
            Ok(args) => args,
            Err(problem) => return refuse(problem),
        };
        with_watcher(handle, |watcher| {
            let gave = gave(&watcher.settings().volatile, (result, result_text), (error, error_text), effect);
            let (error, round) = (gave.error.map(|error| error.fingerprint), (round >= 0.0).then_some(round as u64));
            let step = Step { tool, args, result: gave.result, error, round, effect: gave.effect };
            watcher.spent(session, tokens as u64, millis(now));
            say(watcher.observe(session, step, millis(now)), tool)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn stall_message(handle: u32, session: usize, text: usize, now: f64) -> i32 {
    with_texts([session, text], |[session, text]| {
        with_watcher(handle, |watcher| say(watcher.message(session, result_fingerprint(text), millis(now)), ""))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn stall_user_message(handle: u32, session: usize) -> i32 {
    with_texts([session], |[session]| {
        with_watcher(handle, |watcher| {
            watcher.user_message(session);
            DONE
        })
    })
}
