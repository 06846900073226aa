//! Keeps the conversation within its window.
//!
//! Messages are left out of the session itself, not only of the request: a run of ten thousand steps must not grow. The
//! journal keeps everything. A tool call and its result never part, and neither does what the loop itself said about them:
//! half of a pair is refused by every provider.

use crate::message::{Message, Role, Tag};
use crate::settings::{ContextSettings, Strategy};

/// What to leave out: `count` messages from `from` on, and what stands there instead.
#[derive(Debug, Clone, PartialEq)]
pub struct Trim {
    pub from: usize,
    pub count: usize,
    pub marker: Option<Message>,
}

/// Whether the conversation may be cut before the message: it does not belong to the one before.
fn is_boundary(message: &Message) -> bool {
    let follows = matches!(message.reason, Some(Tag::GuardNudge | Tag::MaxTokensRecovery));
    !message.has_results() && !follows
}

/// What must go so that the messages have at most `window_bytes`, if that is possible and needed. `left_out` went earlier.
pub fn fit(messages: &[Message], settings: &ContextSettings, window_bytes: usize, left_out: u64) -> Option<Trim> {
    let sizes: Vec<usize> = messages.iter().map(Message::bytes).collect();
    let total: usize = sizes.iter().sum();
    if total <= window_bytes {
        return None;
    }
    let boundaries: Vec<usize> = (1..messages.len()).filter(|index| is_boundary(&messages[*index])).collect();
    let last_unit = *boundaries.last()?;
    // The room that everything from a boundary on takes.
    let tail = |from: usize| sizes[from..].iter().sum::<usize>();
    match settings.strategy {
        Strategy::SlidingWindow => {
            let from = boundaries.into_iter().find(|from| tail(*from) <= window_bytes).unwrap_or(last_unit);
            // Providers want a person to speak first.
            let marker = (messages[from].role == Role::Assistant).then(|| marker(&messages[..from], left_out));
            // A marker that would only replace a marker brings nothing.
            let gains = from > usize::from(marker.is_some() && is_marker(&messages[0]));
            gains.then_some(Trim { from: 0, count: from, marker })
        }
        Strategy::Compact => {
            let first = sizes[0];
            let earliest = messages.len().saturating_sub(settings.keep_last);
            // The boundary at or before it, so that at least that many stay when they fit.
            let start = boundaries.iter().rev().copied().find(|from| *from <= earliest).unwrap_or(1);
            let mut later = boundaries.into_iter().filter(|from| *from >= start);
            let from = later.find(|from| first + tail(*from) <= window_bytes).unwrap_or(last_unit);
            let gains = from > 1 + usize::from(messages.get(1).is_some_and(is_marker));
            gains.then(|| Trim { from: 1, count: from - 1, marker: Some(marker(&messages[1..from], left_out)) })
        }
    }
}

fn is_marker(message: &Message) -> bool {
    message.reason == Some(Tag::ContextMarker)
}

/// How many of the messages a person or a model has written.
pub fn real_messages(messages: &[Message]) -> u64 {
    messages.iter().filter(|message| !is_marker(message)).count() as u64
}

fn marker(going: &[Message], left_out: u64) -> Message {
    let count = left_out + real_messages(going);
    let messages = if count == 1 { "message was" } else { "messages were" };
    Message::internal(Tag::ContextMarker, format!("[{count} earlier {messages} left out here to fit the context window.]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Block, ToolCall, ToolResult};
    use crate::settings::Strategy;
    use proptest::prelude::*;

    fn call(id: usize) -> Message {
        let call = ToolCall { id: format!("c{id}"), name: "look".into(), arguments: "{}".into() };
        Message { role: Role::Assistant, content: vec![Block::ToolCall(call)], reason: None }
    }

    fn result(id: usize, size: usize) -> Message {
        Message::results(vec![ToolResult { id: format!("c{id}"), name: "look".into(), text: "x".repeat(size), is_error: false }])
    }

    fn settings(strategy: Strategy, keep_last: usize) -> ContextSettings {
        ContextSettings { window: 1, strategy, keep_last }
    }

    fn apply(messages: &mut Vec<Message>, trim: Trim) {
        messages.splice(trim.from..trim.from + trim.count, trim.marker);
    }

    #[test]
    fn what_fits_stays() {
        let messages = [Message::user("a"), Message::assistant("b")];
        let total: usize = messages.iter().map(Message::bytes).sum();
        assert_eq!(fit(&messages, &settings(Strategy::SlidingWindow, 1), total, 0), None);
        assert!(fit(&messages, &settings(Strategy::SlidingWindow, 1), total - 1, 0).is_some());
    }

    #[test]
    fn the_oldest_go_first_and_a_person_speaks_first() {
        let mut messages = vec![Message::user("task"), call(1), result(1, 100), call(2), result(2, 100), call(3), result(3, 100)];
        let trim = fit(&messages, &settings(Strategy::SlidingWindow, 1), 400, 0).unwrap();
        apply(&mut messages, trim);
        assert_eq!(messages[0].reason, Some(Tag::ContextMarker));
        assert_eq!(messages[1], call(2));
        assert_eq!(messages[0].text(), "[3 earlier messages were left out here to fit the context window.]");
    }

    #[test]
    fn compact_keeps_the_task_and_counts_what_went() {
        let mut messages = vec![Message::user("the task")];
        let mut left_out = 0;
        for id in 0..50 {
            messages.extend([call(id), result(id, 100)]);
            if let Some(trim) = fit(&messages, &settings(Strategy::Compact, 4), 1_200, left_out) {
                left_out += real_messages(&messages[trim.from..trim.from + trim.count]);
                apply(&mut messages, trim);
                assert_eq!(messages[0].text(), "the task");
                assert_eq!(messages[1].text(), format!("[{left_out} earlier messages were left out here to fit the context window.]"));
                assert_eq!(messages.len(), 6, "the task, the marker, and the last four");
            }
        }
        assert_eq!(left_out as usize + messages.iter().filter(|message| !is_marker(message)).count(), 101);
    }

    #[test]
    fn the_last_step_stays_even_when_it_is_too_large() {
        let mut messages = vec![Message::user("task"), call(1), result(1, 10), call(2), result(2, 100_000)];
        for strategy in [Strategy::SlidingWindow, Strategy::Compact] {
            let trim = fit(&messages, &settings(strategy, 1), 100, 0).unwrap();
            let mut left = messages.clone();
            apply(&mut left, trim);
            assert_eq!(left[left.len() - 2..], [call(2), result(2, 100_000)]);
        }
        messages.truncate(1);
        assert_eq!(fit(&messages, &settings(Strategy::Compact, 1), 1, 0), None, "there is nothing to leave out");
    }

    proptest! {
        #[test]
        fn a_call_and_its_result_never_part(
            steps in prop::collection::vec((0usize..3, 0usize..400, any::<bool>()), 1..60),
            window in 100usize..6_000,
            keep_last in 1usize..12,
            compact in any::<bool>(),
        ) {
            let strategy = if compact { Strategy::Compact } else { Strategy::SlidingWindow };
            let settings = settings(strategy, keep_last);
            let mut messages = vec![Message::user("task")];
            let mut left_out = 0;
            for (id, (kind, size, nudge)) in steps.into_iter().enumerate() {
                match kind {
                    0 => messages.extend([Message::assistant("y".repeat(size)), Message::user("z".repeat(size))]),
                    _ => messages.extend([call(id), result(id, size)]),
                }
                if nudge {
                    messages.push(Message::internal(Tag::GuardNudge, "stop that"));
                }
                let before = messages.clone();
                if let Some(trim) = fit(&messages, &settings, window, left_out) {
                    left_out += real_messages(&messages[trim.from..trim.from + trim.count]);
                    apply(&mut messages, trim);
                    let size = |messages: &[Message]| messages.iter().map(Message::bytes).sum::<usize>();
                    prop_assert!(messages.len() <= before.len());
                    prop_assert_eq!(messages.last(), before.last(), "the newest stays");
                    prop_assert!(size(&messages) <= size(&before) + 100, "nothing is gained");
                }
                prop_assert_eq!(messages[0].role, Role::User);
                prop_assert!(!messages[0].has_results());
                if compact {
                    prop_assert_eq!(messages[0].text(), "task");
                }
                for pair in messages.windows(2) {
                    let calls: Vec<&str> = pair[0].tool_calls().map(|call| call.id.as_str()).collect();
                    let results: Vec<&str> = pair[1].content.iter().filter_map(|block| match block {
                        Block::ToolResult(result) => Some(result.id.as_str()),
                        _ => None,
                    }).collect();
                    prop_assert_eq!(calls, results);
                }
            }
        }
    }
}
