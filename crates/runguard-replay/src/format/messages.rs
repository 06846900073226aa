//! Lists of messages, as `OpenAI` and Anthropic take them.
//!
//! A run is a list of messages: the whole file, an element of a list of lists, or the `messages` of an object (a line of a data
//! set, a logged request, with or without its response). Logged requests repeat the conversation so far, so one that begins
//! with all that the last one said goes on with that run instead of beginning another. One run is held at a time.

use super::conversation::{Conversation, Spent};
use super::json::{Map, Value};
use super::message::{Ear, Message, Role, answered, text, usage_of_response};
use super::spans::turn_of;
use super::{Out, Reader};
use crate::labels::verdict_of;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Debug)]
struct Open {
    conversation: Conversation,
    ear: Ear,
    /// What was heard so far, to know a request that goes on from it.
    heard: Vec<u64>,
    /// Bare messages: the end of the list, or of the file, ends the run.
    is_list: bool,
    /// The answer to the last request, where it was heard from its response: the next request says it again.
    responded: Option<Responded>,
}

/// What a response called, by id.
#[derive(Debug)]
struct Responded(Vec<String>);

impl Responded {
    /// Whether these messages may follow it: they do not when they tell of other calls. So runs with one task, side by side in a
    /// log, are not taken for one another.
    fn may_precede(&self, messages: &[Value<'_>]) -> bool {
        let said = || messages.iter().filter_map(Message::read).filter(|message| message.role == Role::Assistant);
        self.0.is_empty() || said().flat_map(|message| message.calls).any(|call| self.0.contains(&call.id))
    }
}

#[derive(Debug, Default)]
pub(super) struct Messages {
    open: Option<Open>,
}

impl Messages {
    fn close(&mut self, out: &mut Out) {
        if let Some(Open { mut conversation, mut ear, .. }) = self.open.take() {
            ear.flush(&mut conversation);
            out.run(conversation.finish());
        }
    }

    fn begin(&mut self, id: Option<String>, line: u64, is_list: bool, out: &mut Out) -> &mut Open {
        self.close(out);
        let id = id.unwrap_or_else(|| out.name(line));
        self.open.insert(Open {
            conversation: out.conversation(id, line),
            ear: Ear::default(),
            heard: Vec::new(),
            is_list,
            responded: None,
        })
    }

    fn bare(&mut self, line: u64, message: Message<'_>, out: &mut Out) {
        let open = match &mut self.open {
            Some(open) if open.is_list => open,
            _ => self.begin(None, line, true, out),
        };
        let strays = open.ear.hear(&mut open.conversation, message);
        out.strays(line, strays);
    }

    /// A conversation in one object.
    fn whole(&mut self, line: u64, object: &Map<'_>, messages: &[Value<'_>], response: Option<&Value<'_>>, out: &mut Out) {
        let prints: Vec<u64> = messages.iter().map(|message| xxh3_64(identity(message).as_bytes())).collect();
        let goes_on = self.open.as_ref().is_some_and(|open| {
            let heard = open.heard.len();
            let follows = || open.responded.as_ref().is_none_or(|responded| responded.may_precede(&messages[heard..]));
            !open.is_list && heard > 0 && prints.len() > heard && prints.starts_with(&open.heard) && follows()
        });
        if !goes_on {
            let id = ["id", "run_id", "conversation_id", "session_id", "trace_id", "instance_id", "task_id"]
                .iter()
                .find_map(|name| object.get(name));
            let id = id.and_then(Value::as_str).filter(|id| !id.is_empty()).map(str::to_owned);
            self.begin(id, line, false, out);
        }
        let Some(open) = &mut self.open else { return };
        let Open { conversation, ear, heard, responded, .. } = open;
        describe(conversation, object);
        let (mut strays, mut unknown) = (0, 0);
        for message in messages.iter().skip(heard.len()) {
            match Message::read(message) {
                Some(message) if message.role == Role::Assistant && responded.take().is_some() => {}
                Some(message) => strays += ear.hear(conversation, message),
                None => unknown += 1,
            }
        }
        *heard = prints;
        *responded = response.map(|response| {
            ear.flush(conversation);
            let said = answered(response);
            let ids = said.iter().flat_map(|message| &message.calls).map(|call| call.id.clone()).filter(|id| !id.is_empty()).collect();
            hear_response(conversation, response, said);
            Responded(ids)
        });
        out.strays(line, strays);
        if unknown > 0 {
            out.broken(line, format!("{unknown} of its messages are in no shape that is known"));
        }
    }
}

/// What makes a message the same when it is sent again: not the marks that caches and clients put on it.
fn identity(message: &Value<'_>) -> String {
    let mut message = message.clone();
    if let Value::Object(object) = &mut message {
        object.retain(|name| !["cache_control", "name", "refusal", "annotations", "audio"].contains(&name));
        if let Some(Value::Array(parts)) = object.get_mut("content") {
            for part in parts {
                if let Value::Object(part) = part {
                    part.retain(|name| name != "cache_control");
                }
            }
        }
    }
    message.to_string()
}

fn hear_response(conversation: &mut Conversation, response: &Value<'_>, messages: Vec<Message<'_>>) {
    let (usage, model) = usage_of_response(response);
    if !model.is_empty() {
        conversation.run.model = model;
    }
    let spent = usage.map(|usage| Spent::of(&conversation.run.model, &usage, None)).unwrap_or_default();
    let at_millis =
        response.get("created").or(response.get("created_at")).and_then(Value::as_i64).map(|seconds| seconds.saturating_mul(1000));
    conversation.turn(&turn_of(messages, spent, at_millis));
}

/// What an object says of its run besides the messages.
fn describe(conversation: &mut Conversation, object: &Map<'_>) {
    let run = &mut conversation.run;
    for (into, names) in [
        (&mut run.model, &["model", "model_name"][..]),
        (&mut run.agent, &["agent", "agent_name"][..]),
        (&mut run.task, &["task", "task_id", "instance_id"][..]),
    ] {
        let said = text(object, names);
        if !said.is_empty() {
            said.clone_into(into);
        }
    }
    run.success = ["success", "resolved", "task_success"].iter().find_map(|name| verdict_of(&object.get(name)?.to_value())).or(run.success);
}

impl Reader for Messages {
    fn list_start(&mut self, _line: u64, out: &mut Out) {
        self.close(out);
    }

    fn list_end(&mut self, out: &mut Out) {
        self.close(out);
    }

    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out) {
        let Some(object) = record.as_object() else {
            out.broken(line, "neither a message nor a list of messages");
            return;
        };
        let request = ["request", "body"].iter().find_map(|name| object.get(name)?.as_object()).unwrap_or(object);
        let messages = ["messages", "input"].iter().find_map(|name| request.get(name)?.as_array());
        let is_response = |value: &&Value<'_>| ["choices", "output", "content"].iter().any(|name| value.get(name).is_some());
        let response = object.get("response").map(|response| response.get("body").unwrap_or(response)).filter(is_response);
        if let Some(messages) = messages {
            let own = object.get("choices").or(object.get("output")).map(|_| &record);
            self.whole(line, request, messages, response.or(own), out);
            return;
        }
        if let Some(message) = Message::read(&record) {
            self.bare(line, message, out);
            return;
        }
        let response = response.unwrap_or(&record);
        let said = answered(response);
        if is_response(&response) && !said.is_empty() {
            // Responses one after the other, without what they were asked: one run.
            if !self.open.as_ref().is_some_and(|open| open.is_list) {
                self.begin(None, line, true, out);
            }
            if let Some(open) = &mut self.open {
                hear_response(&mut open.conversation, response, said);
            }
            return;
        }
        out.broken(line, "neither a message, a list of messages, nor a request or response with some");
    }

    fn gap(&mut self) {
        if let Some(open) = &mut self.open {
            open.ear.gap();
        }
    }

    fn end(&mut self, out: &mut Out) {
        self.close(out);
    }
}
