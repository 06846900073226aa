//! What Slack and PagerDuty are told of a trip.

use crate::boundary::{answer_made, with_texts};
use runguard_core::notice;

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
