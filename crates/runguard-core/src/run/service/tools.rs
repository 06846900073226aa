//! A tracker of tool calls that a service keeps, with the service's limits.

use super::{AnswerMeaning, Asks, Body, Part, Question, ServiceReply, Unanswered, short_id};
use crate::reason::Reason;
use serde_json::Value;
use std::borrow::Cow;

/// The questions of a tracker of tool calls that a service keeps. Each turn has a name of its own.
#[derive(Debug, Clone, Copy)]
pub struct ServiceTools {
    unanswered: Unanswered,
}

/// A call that should not run, and what to tell the model instead of its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSkip {
    /// A code of [`crate::reason`]; of a service that is newer than this program, one that only it knows.
    pub reason: Cow<'static, str>,
    /// What to tell the model.
    pub message: String,
    /// How often the tool has run in this turn.
    pub count: u32,
    /// How often it may run in one turn.
    pub limit: u32,
}

impl ServiceTools {
    /// For turns in which nothing has run yet.
    pub fn new(unanswered: Unanswered) -> Self {
        Self { unanswered }
    }

    /// Should this call run? One that may is counted.
    pub fn should_skip(&self, turn: &str, tool: &str, arguments: Value) -> Question {
        Question::new("/guard/tool-call", body(turn, tool, arguments), self.unanswered, Asks::Tool)
    }

    /// How it ended. One that failed may be made again, up to the limit.
    pub fn record(&self, turn: &str, tool: &str, arguments: Value, failed: bool) -> Question {
        let body = body(turn, tool, arguments).with("error", failed);
        Question::new("/guard/tool-call/record", body, self.unanswered, Asks::CallEnded(Part::Tools))
    }
}

fn body(turn: &str, tool: &str, arguments: Value) -> Body {
    Body::of_session(turn).with("tool", short_id(tool)).maybe("args", Some(arguments).filter(|arguments| !arguments.is_null()))
}

impl ServiceReply<'_> {
    pub(super) fn skip(&self) -> AnswerMeaning {
        if self.allows() {
            return AnswerMeaning::Passed;
        }
        AnswerMeaning::Skip(ServiceSkip {
            reason: self.reason_or(Reason::ToolLimit),
            message: self.owned("message"),
            count: self.small("calls"),
            limit: self.small("limit"),
        })
    }
}
