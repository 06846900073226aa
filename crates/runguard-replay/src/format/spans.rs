//! A run from its spans: who called the model, who ran a tool, and when.
//!
//! Spans arrive in the order they ended, so they are put in the order they began. A tool's span is a call with its result. A
//! model's span is a turn: what it answered says which calls follow, what it was asked says what came of the earlier ones.
//! Where the tools are traced themselves the two meet by the call's id; where content is not captured, the tools' spans alone
//! make the run, and the model's tokens go to the step that follows.

use super::Out;
use super::conversation::{Conversation, Spent, ToolCall, Turn};
use super::grouped::Open;
use super::message::{Ear, Message, Role};
use std::collections::{HashMap, HashSet};

#[derive(Debug)]
pub(super) enum What {
    Tool { call: ToolCall, result: Option<String>, failed: Option<bool> },
    Model { asked: Vec<Message<'static>>, answered: Vec<Message<'static>>, model: String, spent: Spent },
}

/// Who made a span, until when it went on, and what the provider calls its answer.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) instrumentation: String,
    pub(super) ended: i128,
    /// Empty where it is not known.
    pub(super) response: String,
}

#[derive(Debug)]
pub(super) struct Span {
    pub(super) id: String,
    pub(super) parent: String,
    /// What the source sorts by; equal ones stay as they came.
    pub(super) began: i128,
    pub(super) at_millis: Option<i64>,
    /// Where the source names it: two may tell of the same question to a model.
    pub(super) telling: Option<Telling>,
    pub(super) what: What,
}

impl Span {
    /// Whether both are one question to a model, told by two instrumentations side by side: beneath the same span, at the same time,
    /// with the same answer, or, where its id is not known, for as many tokens.
    fn is_same_question(&self, other: &Self) -> bool {
        let (What::Model { spent, .. }, What::Model { spent: other_spent, .. }) = (&self.what, &other.what) else { return false };
        let (Some(telling), Some(other_telling)) = (&self.telling, &other.telling) else { return false };
        let is_same_answer = if telling.response.is_empty() || other_telling.response.is_empty() {
            spent.tokens > 0 && spent.tokens == other_spent.tokens
        } else {
            telling.response == other_telling.response
        };
        let is_at_once = self.began <= other_telling.ended && other.began <= telling.ended;
        is_same_answer && is_at_once && self.parent == other.parent && telling.instrumentation != other_telling.instrumentation
    }

    fn says_something(&self) -> bool {
        matches!(&self.what, What::Model { answered, .. } if !answered.is_empty())
    }
}

/// Of spans in the order they began, those that tell again of a question that another one tells of, and of no more than that.
fn told_again(spans: &[Span]) -> HashSet<usize> {
    let (mut again, mut known) = (HashSet::new(), HashSet::new());
    for (at, span) in spans.iter().enumerate() {
        let is_question = matches!(span.what, What::Model { .. }) && !known.contains(&at);
        let Some(telling) = span.telling.as_ref().filter(|_| is_question) else { continue };
        let mut tellings = vec![at];
        // One of each instrumentation: questions side by side may cost the same.
        let mut tellers = vec![&telling.instrumentation];
        for (other_at, other) in spans.iter().enumerate().skip(at + 1).take_while(|(_, other)| other.began <= telling.ended) {
            let Some(teller) = other.telling.as_ref().map(|telling| &telling.instrumentation) else { continue };
            if !known.contains(&other_at) && !tellers.contains(&teller) && span.is_same_question(other) {
                tellings.push(other_at);
                tellers.push(teller);
            }
        }
        let best = tellings.iter().copied().find(|at| spans[*at].says_something()).unwrap_or(at);
        again.extend(tellings.iter().copied().filter(|at| *at != best));
        known.extend(tellings);
    }
    again
}

#[derive(Debug)]
pub(super) struct Spans {
    pub(super) conversation: Conversation,
    pub(super) spans: Vec<Span>,
}

impl Open for Spans {
    fn held(&self) -> usize {
        self.spans.len() + 1
    }

    fn close(self, out: &mut Out) {
        out.run(self.finish());
    }
}

impl Spans {
    pub(super) fn new(conversation: Conversation) -> Self {
        Self { conversation, spans: Vec::new() }
    }

    fn finish(mut self) -> crate::trace::Run {
        let mut spans = std::mem::take(&mut self.spans);
        spans.sort_by_key(|span| span.began);
        // One question to a model, told by the framework and by the client beneath it: the outer one counts.
        let models: HashSet<String> = spans
            .iter()
            .filter(|span| matches!(span.what, What::Model { .. }))
            .map(|span| span.id.clone())
            .filter(|id| !id.is_empty())
            .collect();
        // So with a tool, told by the agent and by the server that ran it.
        let tools: HashMap<String, String> = spans
            .iter()
            .filter_map(|span| match &span.what {
                What::Tool { call, .. } if !span.id.is_empty() => Some((span.id.clone(), call.tool.clone())),
                What::Tool { .. } | What::Model { .. } => None,
            })
            .collect();
        let again = told_again(&spans);
        let mut ear = Ear::default();
        for (_, Span { parent, at_millis, what, .. }) in spans.into_iter().enumerate().filter(|(at, _)| !again.contains(at)) {
            match what {
                What::Tool { call, result, failed } => {
                    if tools.get(&parent).is_some_and(|tool| *tool == call.tool) {
                        continue;
                    }
                    self.conversation.executed(&call, result.as_deref().map(|text| (text, failed)), at_millis);
                }
                What::Model { asked, answered, model, spent } => {
                    if models.contains(&parent) {
                        continue;
                    }
                    for message in asked {
                        ear.hear(&mut self.conversation, message);
                    }
                    if !model.is_empty() {
                        self.conversation.run.model = model;
                    }
                    self.conversation.turn(&turn_of(answered, spent, at_millis));
                }
            }
        }
        self.conversation.finish()
    }
}

/// What a model answered, as one turn; of several choices the first.
pub(super) fn turn_of(answered: Vec<Message<'_>>, spent: Spent, at_millis: Option<i64>) -> Turn<'_> {
    let mut turn = Turn { spent, at_millis, ..Turn::default() };
    let mut whole = false;
    for message in answered.into_iter().filter(|message| message.role == Role::Assistant) {
        if whole {
            break;
        }
        whole = !message.is_item;
        if turn.text.is_empty() {
            turn.text = message.text;
        } else {
            turn.say(&message.text);
        }
        turn.calls.extend(message.calls);
    }
    turn
}
