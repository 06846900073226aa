//! What `OpenHands` keeps: completions (`llm_completions`), trajectories of events, and the `output.jsonl` of evaluations.
//!
//! Completions are one file a question, and a folder of them is one run; each repeats the conversation so far, so what came
//! after the model's last word is news. With calls in text (`fncall_messages`), what they were read as counts. Of events, actions
//! of the agent are steps; an observation belongs to the action that its `cause` names. What the program says to itself (states,
//! recalls, condensation) is no step.

use super::conversation::{Conversation, Spent, ToolCall, ToolResult, Turn, args_of_text, millis_of};
use super::message::{Ear, answered, asked, text, usage_of_response};
use super::spans::turn_of;
use super::{Out, Reader};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Actions that the agent did not choose, or that do nothing.
const NO_ACTIONS: [&str; 8] = ["system", "recall", "change_agent_state", "condensation", "condensation_request", "null", "pause", "resume"];
/// Of an action's arguments, what is no part of what it does.
const NOT_ARGUMENTS: [&str; 13] = [
    "thought",
    "blocking",
    "is_static",
    "is_input",
    "hidden",
    "confirmation_state",
    "security_risk",
    "image_urls",
    "file_urls",
    "wait_for_response",
    "impl_source",
    "kernel_init_code",
    "include_extra",
];
const STUCK: &str = "AgentStuckInLoopError";

#[derive(Debug, Default)]
pub(super) struct OpenHands {
    /// Bare events, or completions: a run that goes on from record to record.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    conversation: Conversation,
    ear: Ear,
    events: Events,
}

/// What a stream of events has told so far.
#[derive(Debug, Default)]
struct Events {
    /// Running totals: tokens, dollars.
    total: Spent,
    /// Responses of the model that were paid for.
    paid: HashSet<String>,
}

impl Events {
    fn hear(&mut self, conversation: &mut Conversation, event: &Map<String, Value>) -> Result<(), &'static str> {
        let at_millis = millis_of(text(event, &["timestamp"]));
        if event.get("action").is_some_and(|action| !action.is_null()) {
            self.action(conversation, event, at_millis);
            return Ok(());
        }
        if event.get("observation").is_some_and(|observation| !observation.is_null()) {
            observation(conversation, event);
            return Ok(());
        }
        Err("neither an action nor an observation")
    }

    fn pay(&mut self, conversation: &mut Conversation, event: &Map<String, Value>) {
        if let Some(metrics) = event.get("llm_metrics") {
            let count = |name: &str| metrics.pointer(&format!("/accumulated_token_usage/{name}")).and_then(Value::as_u64).unwrap_or(0);
            let tokens = count("prompt_tokens").saturating_add(count("completion_tokens"));
            let dollars = metrics.get("accumulated_cost").and_then(Value::as_f64).filter(|cost| cost.is_finite()).unwrap_or(0.0);
            let news = Spent { tokens: tokens.saturating_sub(self.total.tokens), dollars: (dollars - self.total.dollars).max(0.0) };
            self.total = Spent { tokens: tokens.max(self.total.tokens), dollars: dollars.max(self.total.dollars) };
            conversation.spend(news);
            return;
        }
        let Some(response) = event.get("tool_call_metadata").and_then(|metadata| metadata.get("model_response")) else { return };
        let id = response.get("id").and_then(Value::as_str).unwrap_or_default();
        if id.is_empty() || self.paid.insert(id.to_owned()) {
            let (usage, model) = usage_of_response(response);
            conversation.spend(usage.map(|usage| Spent::of(&model, &usage, None)).unwrap_or_default());
        }
    }

    fn action(&mut self, conversation: &mut Conversation, event: &Map<String, Value>, at_millis: Option<i64>) {
        let action = text(event, &["action"]);
        let empty = Map::new();
        let args = event.get("args").and_then(Value::as_object).unwrap_or(&empty);
        if text(event, &["source"]) != "agent" {
            if action == "message" {
                conversation.reply(text(args, &["content"]));
            }
            return;
        }
        if NO_ACTIONS.contains(&action) {
            return;
        }
        self.pay(conversation, event);
        if action == "message" {
            conversation.turn(&Turn { text: text(args, &["content"]).to_owned(), at_millis, ..Turn::default() });
            return;
        }
        let (tool, args) = called(event).unwrap_or_else(|| {
            let kept = args.iter().filter(|(name, value)| !NOT_ARGUMENTS.contains(&name.as_str()) && !value.is_null());
            (action.to_owned(), Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect()))
        });
        conversation.turn(&Turn { calls: vec![ToolCall { id: event_id(event, "id"), tool, args }], at_millis, ..Turn::default() });
    }
}

fn event_id(event: &Map<String, Value>, name: &str) -> String {
    event.get(name).and_then(Value::as_i64).map(|id| id.to_string()).unwrap_or_default()
}

/// The model's own call behind an action, where it was a native one.
fn called(event: &Map<String, Value>) -> Option<(String, Value)> {
    let metadata = event.get("tool_call_metadata")?.as_object()?;
    let id = text(metadata, &["tool_call_id"]);
    let calls = metadata.get("model_response")?.pointer("/choices/0/message/tool_calls")?.as_array()?;
    let function = calls.iter().find(|call| call.get("id").and_then(Value::as_str) == Some(id))?.get("function")?.as_object()?;
    Some((text(function, &["name"]).to_owned(), args_of_text(text(function, &["arguments"]))))
}

fn observation(conversation: &mut Conversation, event: &Map<String, Value>) {
    let kind = text(event, &["observation"]);
    let content = text(event, &["content"]);
    if content.contains(STUCK)
        || event.get("extras").and_then(|extras| extras.get("reason")?.as_str()).is_some_and(|reason| reason.contains(STUCK))
    {
        conversation.run.stuck = Some(true);
    }
    let id = event_id(event, "cause");
    if id.is_empty() || matches!(kind, "agent_state_changed" | "null" | "recall" | "system" | "condense") {
        return;
    }
    // -1: the command has not ended.
    let code = event.get("extras").and_then(|extras| extras.pointer("/metadata/exit_code").or_else(|| extras.get("exit_code"))?.as_i64());
    let failed = match (kind, event.get("success").and_then(Value::as_bool), code) {
        ("error", _, _) => Some(true),
        (_, _, Some(code)) => Some(code > 0),
        (_, Some(success), None) => Some(!success),
        (_, None, None) => None,
    };
    conversation.answer(&ToolResult { id, text: content.to_owned(), failed });
}

impl OpenHands {
    fn open(&mut self, id: impl FnOnce() -> String, line: u64, out: &Out) -> &mut Open {
        self.open.get_or_insert_with(|| Open { conversation: out.conversation(id(), line), ear: Ear::default(), events: Events::default() })
    }

    fn close(&mut self, out: &mut Out) {
        if let Some(open) = self.open.take() {
            out.run(open.conversation.finish());
        }
    }

    fn completion(&mut self, line: u64, record: &Map<String, Value>, out: &Out) {
        let is_native = !record.contains_key("fncall_messages");
        // A folder of completions is named after the task.
        let folder = out.file.parent().and_then(|folder| folder.file_name()).map(|name| name.to_string_lossy().into_owned());
        let task = folder.clone().unwrap_or_default();
        let Open { conversation, ear, .. } = self.open(|| folder.unwrap_or_else(|| out.name(line)), line, out);
        conversation.run.task = task;
        let (question, response) = if is_native { ("messages", "response") } else { ("fncall_messages", "fncall_response") };
        conversation.run.native_tools = Some(is_native);
        for message in record.get(question).map(asked).unwrap_or_default() {
            ear.hear(conversation, message);
        }
        let Some(response) = record.get(response) else { return };
        let (reported, model) = usage_of_response(response);
        if !model.is_empty() {
            conversation.run.model = model;
        }
        // Zero is what is written where the cost is not known.
        let cost = record.get("cost").and_then(Value::as_f64).filter(|cost| *cost > 0.0);
        let spent = Spent::of(&conversation.run.model, &reported.unwrap_or_default(), cost);
        let at_millis = record.get("timestamp").and_then(Value::as_f64).map(|seconds| (seconds * 1000.0) as i64);
        conversation.turn(&turn_of(answered(response), spent, at_millis));
    }

    /// A line of an evaluation: a run.
    fn evaluation(line: u64, record: &Map<String, Value>, history: &[Value], out: &mut Out) {
        let task = text(record, &["instance_id"]);
        let id = if task.is_empty() { out.name(line) } else { task.to_owned() };
        let mut conversation = out.conversation(id, line);
        task.clone_into(&mut conversation.run.task);
        let metadata = |pointer: &str| record.get("metadata").and_then(|metadata| metadata.pointer(pointer)?.as_str()).unwrap_or_default();
        metadata("/llm_config/model").clone_into(&mut conversation.run.model);
        metadata("/agent_class").clone_into(&mut conversation.run.agent);
        let resolved = |report: Option<&Value>| report.and_then(|report| report.get("resolved")?.as_bool());
        let tested = record.get("test_result").and_then(|result| result.get("report"));
        conversation.run.success = resolved(record.get("report")).or_else(|| resolved(tested));
        if let Some(error) = record.get("error") {
            conversation.run.stuck = Some(error.as_str().is_some_and(|error| error.contains(STUCK)));
        }
        let mut events = Events::default();
        let mut unknown = 0;
        // Older evaluations pair an action with its observation.
        let flat = history.iter().flat_map(|entry| entry.as_array().map_or(std::slice::from_ref(entry), Vec::as_slice));
        for event in flat.filter(|event| !event.is_null()) {
            let heard = event.as_object().ok_or("no object").and_then(|event| events.hear(&mut conversation, event));
            unknown += usize::from(heard.is_err());
        }
        if unknown > 0 {
            out.broken(line, format!("{unknown} entries of its history are neither actions nor observations"));
        }
        out.run(conversation.finish());
    }
}

impl Reader for OpenHands {
    fn list_end(&mut self, out: &mut Out) {
        self.close(out);
    }

    fn record(&mut self, line: u64, record: Value, out: &mut Out) {
        let Some(record) = record.as_object() else {
            out.broken(line, "neither an event, a completion nor an evaluation of OpenHands");
            return;
        };
        if let Some(history) = record.get("history").and_then(Value::as_array) {
            Self::evaluation(line, record, history, out);
        } else if record.contains_key("messages") && record.contains_key("response") {
            self.completion(line, record, out);
        } else {
            let Open { conversation, events, .. } = self.open(|| out.name(line), line, out);
            if let Err(problem) = events.hear(conversation, record) {
                out.broken(line, problem);
            }
        }
    }

    fn end(&mut self, out: &mut Out) {
        self.close(out);
    }
}
