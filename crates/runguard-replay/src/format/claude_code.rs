//! Transcripts of Claude Code: the JSON lines it keeps of a session, and those it prints with `--output-format stream-json`.
//!
//! A message of the model is written as several lines, one a block, with the same message id and the same usage on each: the
//! lines are one turn, and its tokens count once. A sub-agent's lines (`isSidechain`) are a run of their own; for the session
//! that called it, it is one call. What the program itself says in the model's name (an API that failed) is no turn.

use super::conversation::{Conversation, Spent, Turn, millis_of};
use super::grouped::{Grouped, Open};
use super::message::{Message, Role, text};
use super::{Out, Reader};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Lines that hold no step.
const NO_STEPS: [&str; 15] = [
    "summary",
    "system",
    "file-history-snapshot",
    "queue-operation",
    "progress",
    "attachment",
    "result",
    "stream_event",
    "last-prompt",
    "custom-title",
    "ai-title",
    "agent-name",
    "mode",
    "permission-mode",
    "rate_limit_event",
];

#[derive(Debug, Default)]
pub(super) struct ClaudeCode {
    sessions: Grouped<Session>,
}

#[derive(Debug)]
struct Session {
    conversation: Conversation,
    /// The message whose lines are coming in, and the turn so far.
    message: String,
    turn: Option<Turn>,
    paid: HashSet<String>,
    /// Of the whole session, when it says so at its end.
    total_dollars: Option<f64>,
    strays: Vec<u64>,
}

impl Session {
    fn flush(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.conversation.turn(&turn);
        }
    }

    fn assistant(&mut self, id: &str, message: Message, stop_reason: &str, at_millis: Option<i64>) {
        if id != self.message || id.is_empty() {
            self.flush();
            id.clone_into(&mut self.message);
        }
        if !message.model.is_empty() {
            self.conversation.run.model.clone_from(&message.model);
        }
        let is_first = id.is_empty() || self.paid.insert(id.to_owned());
        let spent = message.spent();
        let turn = self.turn.get_or_insert_with(|| Turn { at_millis, ..Turn::default() });
        // Later lines of a message know its usage better.
        if is_first || turn.spent != Spent::default() {
            turn.spent = spent;
        }
        // Words of a message that goes on to call a tool: should the transcript end before the call, they are no message.
        if stop_reason != "tool_use" {
            if !turn.text.is_empty() && !message.text.is_empty() {
                turn.text.push('\n');
            }
            turn.text.push_str(&message.text);
        }
        turn.calls.extend(message.calls);
    }

    fn user(&mut self, line: u64, message: &Message, is_said: bool) {
        self.flush();
        if message.answers.iter().filter(|answer| !self.conversation.answer(answer)).count() > 0 {
            self.strays.push(line);
        }
        if is_said && !message.text.trim().is_empty() {
            self.conversation.reply(&message.text);
        }
    }
}

impl Open for Session {
    fn held(&self) -> usize {
        self.conversation.steps() + 1
    }

    fn close(mut self, out: &mut Out) {
        self.flush();
        for line in std::mem::take(&mut self.strays) {
            out.strays(line, 1);
        }
        let mut run = self.conversation.finish();
        // The session's own word on its cost; the table's prices say how it is spread.
        let by_table: f64 = run.steps.iter().map(|step| step.dollars).sum();
        if let Some(total) = self.total_dollars.filter(|total| *total >= 0.0 && by_table > 0.0) {
            run.steps.iter_mut().for_each(|step| step.dollars *= total / by_table);
        }
        out.run(run);
    }
}

fn is_true(record: &Map<String, Value>, name: &str) -> bool {
    record.get(name).and_then(Value::as_bool) == Some(true)
}

impl Reader for ClaudeCode {
    fn record(&mut self, line: u64, record: Value, out: &mut Out) {
        let Some(record) = record.as_object() else {
            out.broken(line, "not a line of a transcript");
            return;
        };
        let kind = text(record, &["type"]);
        let session = text(record, &["sessionId", "session_id"]);
        let is_turn = matches!(kind, "user" | "assistant");
        if !is_turn && (kind.is_empty() || !NO_STEPS.contains(&kind)) {
            out.broken(line, format!("the type \"{}\" is not known in a transcript", crate::trace::shown(kind)));
            return;
        }
        let message = match record.get("message").filter(|_| is_turn) {
            Some(message) => Message::read(message),
            None => None,
        };
        if is_turn && message.is_none() {
            out.broken(line, "a line of a user or an assistant without a message");
            return;
        }
        if session.is_empty() {
            if is_turn {
                out.broken(line, "a line without a session (sessionId)");
            }
            return;
        }
        let parent = text(record, &["parent_tool_use_id"]);
        let name = if is_true(record, "isSidechain") {
            format!("{session}/{}", text(record, &["agentId", "slug"]))
        } else if parent.is_empty() {
            session.to_owned()
        } else {
            format!("{session}/{parent}")
        };
        let at_millis = millis_of(text(record, &["timestamp"]));
        let of_message = |name: &str| record.get("message").and_then(|message| message.get(name)?.as_str()).unwrap_or_default();
        let (id, stop_reason) = (of_message("id"), of_message("stop_reason"));
        // What the program says in the model's name.
        let is_synthetic = is_true(record, "isApiErrorMessage") || message.as_ref().is_some_and(|message| message.model == "<synthetic>");
        let is_said = !is_true(record, "isMeta") && !is_true(record, "isCompactSummary");
        let begin = |out: &Out| Session {
            conversation: out.conversation(name.clone(), line),
            message: String::new(),
            turn: None,
            paid: HashSet::new(),
            total_dollars: None,
            strays: Vec::new(),
        };
        self.sessions.tell(&name, line, out, begin, |session| {
            if session.conversation.run.agent.is_empty() {
                let version = text(record, &["version"]);
                format!("Claude Code {version}").trim_end().clone_into(&mut session.conversation.run.agent);
            }
            if kind == "result" {
                session.total_dollars = record.get("total_cost_usd").and_then(Value::as_f64);
            }
            match message {
                Some(mut message) if message.role == Role::Assistant && !is_synthetic => {
                    message.cost = record.get("costUSD").and_then(Value::as_f64);
                    session.assistant(id, message, stop_reason, at_millis);
                }
                Some(message) if message.role == Role::User => session.user(line, &message, is_said),
                Some(_) | None => {}
            }
        });
    }

    fn end(&mut self, out: &mut Out) {
        self.sessions.close_all(out);
    }
}
