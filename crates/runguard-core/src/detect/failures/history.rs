//! The latest calls of a session, so that calls that fail in turns are seen as well as one that fails in a row.

use super::{CallResult, MAX_FAILURES, refusal};
use crate::fingerprint::hex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Calls of a session that are remembered.
pub const REMEMBERED_CALLS: usize = 12;

const FAILED: &str = "failed";
const SUCCEEDED: &str = "succeeded";

/// The latest calls of a session and how they ended, to be kept anywhere as a list of texts.
///
/// A call that failed [`MAX_FAILURES`] times since anything last succeeded is not made again: whether it failed twice in a row or in turns
/// with others that failed too. A success of any call may have changed what it fails of, so it starts the count anew.
///
/// ```
/// use runguard_core::detect::failures::{CallHistory, CallResult};
///
/// let (find, order) = (7, 8);
/// let mut history = CallHistory::default();
/// for call in [find, order, find, order] {
///     assert_eq!(history.begin("orders", call), None);
///     history.finish(call, CallResult::Failed);
/// }
/// assert!(history.begin("orders", find).is_some());
/// assert_eq!(CallHistory::read(&history.texts()), history);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallHistory {
    /// Oldest first; without a result while it is not known.
    calls: VecDeque<(u64, Option<CallResult>)>,
}

impl CallHistory {
    /// As [`Self::texts`] wrote it. What cannot be read is left out.
    pub fn read<T: AsRef<str>>(texts: &[T]) -> Self {
        let calls = texts.iter().filter_map(|text| {
            let (call, ended) = text.as_ref().split_once(':').unwrap_or((text.as_ref(), ""));
            let result = match ended {
                FAILED => Some(CallResult::Failed),
                SUCCEEDED => Some(CallResult::Succeeded),
                _ => None,
            };
            Some((u64::from_str_radix(call, 16).ok()?, result))
        });
        let mut history = Self { calls: calls.collect() };
        history.cut();
        history
    }

    /// One text for each call, oldest first: `9f2c51d0aa77ab51`, with `:failed` or `:succeeded` once that is known.
    pub fn texts(&self) -> Vec<String> {
        let text = |(call, result): &(u64, Option<CallResult>)| match result {
            None => hex(*call),
            Some(CallResult::Failed) => format!("{}:{FAILED}", hex(*call)),
            Some(CallResult::Succeeded) => format!("{}:{SUCCEEDED}", hex(*call)),
        };
        self.calls.iter().map(text).collect()
    }

    /// Takes note that the call is about to be made, or says why it must not. A call that is refused is not remembered: it would push
    /// out what it is refused for.
    pub fn begin(&mut self, action: &str, call: u64) -> Option<String> {
        let failures = self.failures_of(call);
        if failures >= MAX_FAILURES {
            return Some(refusal(action, failures, MAX_FAILURES));
        }
        self.remember(call);
        None
    }

    /// Takes note that the call is about to be made, for who has decided that by [`Self::failures_of`].
    pub fn remember(&mut self, call: u64) {
        self.calls.push_back((call, None));
        self.cut();
    }

    /// Takes note of what came of it. Where its beginning is not known (it was forgotten in between) it counts all the same.
    pub fn finish(&mut self, call: u64, result: CallResult) {
        let open = self.calls.iter_mut().rev().find(|(made, ended)| *made == call && ended.is_none());
        match open {
            Some((_, ended)) => *ended = Some(result),
            None => self.calls.push_back((call, Some(result))),
        }
        self.cut();
    }

    /// How often the call failed since anything last succeeded.
    pub fn failures_of(&self, call: u64) -> u32 {
        let since_success = self.calls.iter().rev().take_while(|(_, ended)| *ended != Some(CallResult::Succeeded));
        since_success.filter(|(made, ended)| *made == call && *ended == Some(CallResult::Failed)).count() as u32
    }

    fn cut(&mut self) {
        while self.calls.len() > REMEMBERED_CALLS {
            self.calls.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIND: u64 = 7;
    const ORDER: u64 = 8;

    fn make(history: &mut CallHistory, call: u64, result: CallResult) -> bool {
        let refused = history.begin("orders", call).is_some();
        if !refused {
            history.finish(call, result);
        }
        refused
    }

    #[test]
    fn a_success_of_anything_starts_anew() {
        let mut history = CallHistory::default();
        for _ in 0..5 {
            assert!(!make(&mut history, FIND, CallResult::Failed));
            assert!(!make(&mut history, ORDER, CallResult::Succeeded));
        }
        make(&mut history, FIND, CallResult::Failed);
        make(&mut history, FIND, CallResult::Failed);
        for _ in 0..20 {
            assert!(make(&mut history, FIND, CallResult::Failed), "refused as often as it is tried");
        }
        assert!(!make(&mut history, ORDER, CallResult::Succeeded));
        assert!(!make(&mut history, FIND, CallResult::Succeeded));
    }

    #[test]
    fn results_belong_to_their_call_whenever_they_come() {
        let mut history = CallHistory::default();
        history.begin("orders", FIND);
        history.begin("orders", ORDER);
        history.finish(FIND, CallResult::Failed);
        history.finish(ORDER, CallResult::Failed);
        assert_eq!((history.failures_of(FIND), history.failures_of(ORDER)), (1, 1));
        let mut forgotten = CallHistory::default();
        forgotten.finish(FIND, CallResult::Failed);
        assert_eq!(forgotten.failures_of(FIND), 1);
        history.begin("orders", FIND);
        assert_eq!(history.failures_of(FIND), 1, "nobody knows yet how it ends");
    }

    #[test]
    fn twelve_calls_are_kept_and_what_cannot_be_read_is_none() {
        let mut history = CallHistory::default();
        for call in 0..30 {
            make(&mut history, call, CallResult::Failed);
        }
        assert_eq!(history.texts().len(), REMEMBERED_CALLS);
        assert_eq!(history.texts()[0], format!("{}:failed", hex(18)));
        assert_eq!(
            CallHistory::read(&["orders::/orders::9f2c", "", "7:failed", "8:who knows"]).texts(),
            [format!("{}:failed", hex(7)), hex(8)]
        );
    }
}
