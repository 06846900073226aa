//! The stall detector: one history a session.

use crate::boundary::{DONE, GONE, TRIPPED, Table, answer, millis, overlaid, refuse, sentence, with_texts};
use runguard_core::Span;
use runguard_core::detect::sessions::{SessionKey, Sessions};
use runguard_core::detect::stall::{
    Preset, Rung, StallDetector, StallRule, StallSettings, Step, Verdict, error_fingerprint, result_fingerprint,
};
use runguard_core::fingerprint::of_text;
use serde::Serialize;
use std::cell::RefCell;

/// A run silent for this long is over.
const EXPIRE: Span = Span::from_seconds(24 * 3600);
/// More runs than this are not watched at once; the longest silent one gives way.
const MOST: usize = 100_000;

struct Watcher {
    /// What every run begins as.
    fresh: StallDetector,
    /// The run without a name.
    only: StallDetector,
    runs: Sessions<StallDetector>,
}

thread_local! {
    static WATCHERS: RefCell<Table<Watcher>> = const { RefCell::new(Table::new()) };
}

#[derive(Serialize)]
struct Seen {
    rung: &'static str,
    rule: Option<&'static str>,
    count: u32,
    nudge: String,
    message: String,
}

/// The thresholds of a preset with some of them replaced.
fn settings(preset: &str, changes: &str) -> Result<StallSettings, String> {
    let preset = Preset::from_name(preset)
        .ok_or_else(|| format!("there is no preset '{preset}'; take one of {}", Preset::ALL.map(Preset::name).join(", ")))?;
    overlaid(&preset.settings(), changes)
}

/// 0 and a reason in the output when the settings are refused.
#[unsafe(no_mangle)]
pub extern "C" fn stall_new(preset: usize, changes: usize) -> u32 {
    let made = with_texts([preset, changes], |[preset, changes]| {
        let fresh = StallDetector::new(settings(preset, changes)?).map_err(|bad| bad.to_string())?;
        Ok::<_, String>(Watcher { only: fresh.clone(), fresh, runs: Sessions::new(EXPIRE, MOST) })
    });
    match made {
        Ok(watcher) => WATCHERS.with_borrow_mut(|watchers| watchers.add(watcher)),
        Err(problem) => {
            refuse(problem);
            0
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn stall_free(handle: u32) {
    WATCHERS.with_borrow_mut(|watchers| watchers.remove(handle));
}

fn of_session(handle: u32, session: &str, now: f64, operation: impl FnOnce(&mut StallDetector) -> i32) -> i32 {
    WATCHERS.with_borrow_mut(|watchers| {
        let Some(Watcher { fresh, only, runs }) = watchers.get(handle) else { return GONE };
        operation(match session {
            "" => only,
            session => runs.enter(SessionKey::of(session), millis(now), || fresh.clone(), StallDetector::user_message),
        })
    })
}

fn say(verdict: Verdict, tool: &str) -> i32 {
    if verdict.rung == Rung::GoOn {
        return DONE;
    }
    answer(
        TRIPPED,
        &Seen {
            rung: verdict.rung.code(),
            rule: verdict.rule.map(StallRule::code),
            count: verdict.count,
            nudge: if verdict.rung >= Rung::Steer { verdict.nudge(tool) } else { String::new() },
            message: sentence(verdict),
        },
    )
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
    now: f64,
) -> i32 {
    let length = |given: i32| usize::try_from(given).unwrap_or(0);
    with_texts([session, tool, args, length(result), length(error)], |[session, tool, args, result_text, error_text]| {
        let args = match of_text(args) {
            Ok(args) => args,
            Err(problem) => return refuse(problem),
        };
        let step = Step {
            tool,
            args,
            result: (result >= 0).then(|| result_fingerprint(result_text)),
            error: (error >= 0).then(|| error_fingerprint(error_text)),
            round: (round >= 0.0).then_some(round as u64),
        };
        of_session(handle, session, now, |detector| say(detector.observe(step), tool))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn stall_message(handle: u32, session: usize, text: usize, now: f64) -> i32 {
    with_texts([session, text], |[session, text]| {
        of_session(handle, session, now, |detector| say(detector.message(result_fingerprint(text)), ""))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn stall_user_message(handle: u32, session: usize, now: f64) -> i32 {
    with_texts([session], |[session]| {
        of_session(handle, session, now, |detector| {
            detector.user_message();
            DONE
        })
    })
}
