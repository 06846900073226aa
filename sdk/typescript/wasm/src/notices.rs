//! What Slack and PagerDuty are told of a trip.

use crate::boundary::{answer_made, with_texts};
use runguard_core::notice;

/// What a webhook gets, as JSON. `error` has the members of a trip.
#[unsafe(no_mangle)]
pub extern "C" fn trip_facts(error: usize) -> i32 {
    with_texts([error], |[error]| answer_made(notice::trip_facts(error)))
}

/// `facts` are those a webhook gets, as JSON.
#[unsafe(no_mangle)]
pub extern "C" fn trip_to_slack(facts: usize, source: usize) -> i32 {
    with_texts([facts, source], |[facts, source]| answer_made(notice::trip_to_slack(facts, source)))
}

#[unsafe(no_mangle)]
pub extern "C" fn trip_to_pagerduty(facts: usize, source: usize, routing_key: usize) -> i32 {
    with_texts([facts, source, routing_key], |[facts, source, routing_key]| {
        answer_made(notice::trip_to_pagerduty(facts, source, routing_key))
    })
}
