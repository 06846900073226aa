//! A call that failed for good: the same one, again, after it failed so often.
//!
//! In a row are calls, not results: a result that comes after another call has begun is old news and changes nothing, neither the
//! count of its own call nor that of the newest one. Failures are counted, so asking a healthy action for news is fine.

mod history;
mod reply;
mod told;

pub use history::{CallHistory, REMEMBERED_CALLS};
pub use reply::ActionReply;
pub use told::failure_in;

use crate::text::times;
use serde::{Deserialize, Serialize};

/// Failures of the same call after which it is not made again.
pub const MAX_FAILURES: u32 = 2;

/// The newest call, and how often in a row it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LastCall {
    /// A hash of what is the same when it is made again.
    pub call: u64,
    /// In a row.
    pub failures: u32,
}

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallResult {
    /// It failed.
    Failed,
    /// It gave what was asked.
    Succeeded,
}

impl CallResult {
    /// By whether it failed.
    pub const fn of(failed: bool) -> Self {
        if failed { Self::Failed } else { Self::Succeeded }
    }
}

impl LastCall {
    /// How often the call failed in a row, if it is the newest.
    pub fn failures_of(&self, call: u64) -> u32 {
        if self.call == call { self.failures } else { 0 }
    }

    /// Takes note that the call is made.
    pub fn begin(&mut self, call: u64) {
        *self = Self { call, failures: self.failures_of(call) };
    }

    /// Takes note of what came of it.
    pub fn finish(&mut self, call: u64, result: CallResult) {
        // Where nothing is known (it was forgotten in between) the result tells of the newest call.
        if self.call != call && *self != Self::default() {
            return;
        }
        self.call = call;
        self.failures = match result {
            CallResult::Failed => self.failures.saturating_add(1),
            CallResult::Succeeded => 0,
        };
    }
}

/// What the model is told in place of another failure.
pub fn refusal(action: &str, failures: u32, max_failures: u32) -> String {
    format!(
        "Action '{action}' failed {} with the same parameters and nothing succeeded since (ceiling {max_failures}). It will fail again: do not retry it, report the failure to the user.",
        times(failures)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: u64 = 7;
    const OTHER: u64 = 8;

    fn failed(last: &mut LastCall, call: u64) {
        last.begin(call);
        last.finish(call, CallResult::Failed);
    }

    #[test]
    fn failures_count_until_another_call_or_a_success() {
        let mut last = LastCall::default();
        failed(&mut last, ORDER);
        failed(&mut last, ORDER);
        assert_eq!((last.failures_of(ORDER), last.failures_of(OTHER)), (2, 0));
        last.begin(OTHER);
        last.begin(ORDER);
        assert_eq!(last.failures_of(ORDER), 0, "another call came between");
        failed(&mut last, ORDER);
        last.finish(ORDER, CallResult::Succeeded);
        assert_eq!(last.failures_of(ORDER), 0);
    }

    #[test]
    fn a_late_result_is_old_news() {
        let mut last = LastCall::default();
        last.begin(OTHER);
        failed(&mut last, ORDER);
        last.finish(OTHER, CallResult::Succeeded);
        failed(&mut last, ORDER);
        assert_eq!(last.failures_of(ORDER), 2, "it takes nothing from the newest call");
        last.begin(OTHER);
        last.finish(ORDER, CallResult::Failed);
        last.begin(ORDER);
        assert_eq!(last.failures_of(ORDER), 0, "nor does it make its own the newest");
    }

    #[test]
    fn a_result_of_a_call_that_was_forgotten_counts() {
        let mut last = LastCall::default();
        last.finish(ORDER, CallResult::Failed);
        assert_eq!(last.failures_of(ORDER), 1);
    }
}
