//! The circuit breaker.

use crate::boundary::{DONE, GONE, TRIPPED, Table, answer, handle_of, millis, overlaid, refuse, with_texts};
use runguard_core::Span;
use runguard_core::breaker::{CircuitBreaker, CircuitSettings, EndpointRefused, Permit, Phase};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Calls under way at once whose permits are kept. Of more, the result of the oldest counts without its permit.
const MOST_PERMITS: usize = 10_000;

struct Breaker {
    breaker: CircuitBreaker,
    /// By the number JavaScript has for them.
    permits: BTreeMap<u32, Permit>,
    last: u32,
}

thread_local! {
    static BREAKERS: RefCell<Table<Breaker>> = const { RefCell::new(Table::new()) };
}

/// A breaker's settings with its name, as JavaScript sends them.
#[derive(Serialize, Deserialize)]
struct Named {
    name: String,
    #[serde(flatten)]
    settings: CircuitSettings,
}

impl Default for Named {
    fn default() -> Self {
        Self { name: "default".to_owned(), settings: CircuitSettings::default() }
    }
}

/// 0 and a reason in the output when the settings are refused.
#[unsafe(no_mangle)]
pub extern "C" fn breaker_new(changes: usize) -> u32 {
    let made = with_texts([changes], |[changes]| {
        let named: Named = overlaid(&Named::default(), changes)?;
        CircuitBreaker::new(named.name, named.settings).map_err(|bad| bad.to_string())
    });
    handle_of(&BREAKERS, made.map(|breaker| Breaker { breaker, permits: BTreeMap::new(), last: 0 }))
}

#[unsafe(no_mangle)]
pub extern "C" fn breaker_free(handle: u32) {
    BREAKERS.with_borrow_mut(|breakers| breakers.remove(handle));
}

/// Says why a call must not run, as a trip is told.
pub(crate) fn refused(refused: EndpointRefused) -> i32 {
    #[derive(Serialize)]
    struct RefusedCall {
        error: &'static str,
        message: String,
        reason: Cow<'static, str>,
        endpoint: String,
        #[serde(rename = "retryAfterSeconds")]
        retry_after_seconds: Option<f64>,
    }
    let EndpointRefused { reason, message, endpoint, retry_after_seconds } = refused;
    answer(TRIPPED, &RefusedCall { error: "circuit", message, reason, endpoint, retry_after_seconds })
}

fn with_breaker(handle: u32, operation: impl FnOnce(&mut Breaker) -> i32) -> i32 {
    BREAKERS.with_borrow_mut(|breakers| breakers.get(handle).map_or(GONE, operation))
}

/// The number of a permit; or a status, as a number below 0.
#[unsafe(no_mangle)]
pub extern "C" fn breaker_check(handle: u32, now: f64) -> f64 {
    let mut number = 0;
    let status = with_breaker(handle, |Breaker { breaker, permits, last }| match breaker.check(millis(now)) {
        Ok(permit) => {
            *last = last.wrapping_add(1).max(1);
            permits.insert(*last, permit);
            if permits.len() > MOST_PERMITS {
                permits.pop_first();
            }
            number = *last;
            DONE
        }
        Err(open) => refused(open.into_refusal(breaker.name())),
    });
    if status == DONE { f64::from(number) } else { -f64::from(status) }
}

/// `permit` is 0 when there is none, `latency_ms` is below 0 when it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn breaker_record(handle: u32, permit: u32, ok: u32, latency_ms: f64, now: f64) -> i32 {
    let latency = match latency(latency_ms) {
        Ok(latency) => latency,
        Err(problem) => return refuse(problem),
    };
    with_breaker(handle, |Breaker { breaker, permits, .. }| {
        breaker.record(permits.remove(&permit).as_ref(), ok != 0, latency, millis(now));
        DONE
    })
}

/// How long a call took, in milliseconds; below 0 it is not known.
pub(crate) fn latency(latency_ms: f64) -> Result<Option<Span>, String> {
    if latency_ms < 0.0 { Ok(None) } else { Span::from_millis_f64(latency_ms).map(Some) }
}

/// 0 closed, 1 open, 2 half open; below 0 when it was freed.
#[unsafe(no_mangle)]
pub extern "C" fn breaker_phase(handle: u32, now: f64) -> i32 {
    BREAKERS.with_borrow_mut(|breakers| {
        breakers.get(handle).map_or(-1, |Breaker { breaker, .. }| match breaker.phase(millis(now)) {
            Phase::Closed => 0,
            Phase::Open => 1,
            Phase::HalfOpen => 2,
        })
    })
}

/// 0 forces it open, 1 forces it closed, 2 makes it automatic again with nothing remembered.
#[unsafe(no_mangle)]
pub extern "C" fn breaker_control(handle: u32, control: u32, now: f64) -> i32 {
    with_breaker(handle, |Breaker { breaker, .. }| {
        match control {
            0 => breaker.force_open(millis(now)),
            1 => breaker.force_close(millis(now)),
            _ => breaker.reset(millis(now)),
        }
        DONE
    })
}
