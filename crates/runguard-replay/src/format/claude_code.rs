//! Transcripts of Claude Code: the JSON lines it keeps of a session, and those it prints with `--output-format stream-json`.
//!
//! A message of the model is written as several lines, one a block, with the same message id: the lines are one turn, and its
//! tokens count once. Only the last of them knows what the answer cost, and with calls side by side the result of one may stand
//! between the lines: the message goes on after it. A sub-agent's lines (`isSidechain`) are a run of their own; for the session
//! that called it, it is one call. What the program itself says in the model's name (an API that failed) is no turn. Lines that are
//! neither of a user nor of an assistant (settings, titles, summaries, whatever comes) hold no step.

use super::conversation::{Conversation, Spent, Turn, millis_of};
use super::grouped::{Grouped, Open};
use super::json::{Map, Value};
use super::message::{Message, Role, text};
use super::{Out, Reader};
use std::borrow::Cow;
use std::collections::HashMap;

#[derive(Debug, Default)]
pub(super) struct ClaudeCode {
    sessions: Grouped<Session>,
}

#[derive(Debug)]
struct Session {
    conversation: Conversation,
    /// The message whose lines are coming in, and what of it no step was made of yet.
    message: String,
    turn: Option<Turn<'static>>,
    /// What is known of each message so far.
    told: HashMap<String, MessageSoFar>,
    /// Of the whole session, when it says so at its end.
    total_dollars: Option<f64>,
    strays: Vec<u64>,
}

/// Of a message whose lines came in.
#[derive(Debug, Default)]
struct MessageSoFar {
    /// As the last of its lines has it.
    spent: Spent,
    /// Where that stands: its first step. Without one it is owed by the next.
    step: Option<usize>,
    has_calls: bool,
}

impl Session {
    /// What has come in of a message becomes steps; more of it may follow.
    fn flush(&mut self) {
        let Some(mut turn) = self.turn.take() else { return };
        turn.answer = self.message.clone().into();
        if self.message.is_empty() {
            self.conversation.turn(&turn);
            return;
        }
        let told = self.told.entry(self.message.clone()).or_default();
        // Words beside calls are no message, on whichever line the calls stand.
        if told.has_calls {
            turn.text = Cow::default();
        }
        told.has_calls |= !turn.calls.is_empty();
        let before = self.conversation.steps();
        let spent = std::mem::take(&mut turn.spent);
        let more = Spent { tokens: spent.tokens - told.spent.tokens, dollars: spent.dollars - told.spent.dollars };
        self.conversation.spend_on(told.step, more);
        told.spent = spent;
        self.conversation.turn(&turn);
        if told.step.is_none() && self.conversation.steps() > before {
            told.step = Some(before);
        }
    }

    fn assistant(&mut self, id: &str, message: Message<'_>, stop_reason: &str, at_millis: Option<i64>) {
        if id != self.message || id.is_empty() {
            self.flush();
            id.clone_into(&mut self.message);
        }
        if !message.model.is_empty() {
            self.conversation.run.model.clone_from(&message.model);
        }
        let known = self.told.get(id).map(|told| told.spent).unwrap_or_default();
        let spent = message.spent();
        let turn = self.turn.get_or_insert_with(|| Turn { at_millis, spent: known, ..Turn::default() });
        // Later lines of a message know its usage better; a line told again, or without a report, does not.
        if spent.tokens >= turn.spent.tokens {
            turn.spent = spent;
        }
        // Words of a message that goes on to call a tool: should the transcript end before the call, they are no message.
        if stop_reason != "tool_use" {
            turn.say(&message.text);
        }
        turn.calls.extend(message.calls);
    }

    fn user(&mut self, line: u64, message: &Message<'_>, is_said: bool) {
        // Results alone do not end a message that has only begun to speak.
        let is_speaking = self.turn.as_ref().is_some_and(|turn| turn.calls.is_empty());
        if !is_speaking || message.answers.is_empty() {
            self.flush();
        }
        if message.answers.iter().filter(|answer| !self.conversation.answer(answer)).count() > 0 {
            self.strays.push(line);
        }
        if is_said && !message.text.trim().is_empty() {
            if message.answers.is_empty() {
                self.conversation.reply(&message.text);
            } else {
                self.conversation.said_beside_results(&message.text);
            }
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

fn is_true(record: &Map<'_>, name: &str) -> bool {
    record.get(name).and_then(Value::as_bool) == Some(true)
}

impl Reader for ClaudeCode {
    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out) {
        let Some(record) = record.as_object() else {
            out.broken(line, "not a line of a transcript");
            return;
        };
        let kind = text(record, &["type"]);
        let session = text(record, &["sessionId", "session_id"]);
        if kind.is_empty() {
            out.broken(line, "not a line of a transcript: it has no type");
            return;
        }
        let is_turn = matches!(kind, "user" | "assistant");
        let message = match record.get("message").filter(|_| is_turn) {
            Some(message) => Message::read(message),
            None => None,
        };
        if is_turn && message.is_none() {
            out.broken(line, "a line of a user or an assistant without a message");
            return;
        }
        if session.is_empty() && is_turn {
            out.broken(line, "a line without a session (sessionId)");
            return;
        }
        // Of the lines that are no turns, only the end of a printed session tells something of its run.
        if !is_turn && (session.is_empty() || kind != "result") {
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
            told: HashMap::new(),
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
