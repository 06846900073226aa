//! What `OpenHands` keeps: completions (`llm_completions`), trajectories of events, and the `output.jsonl` of evaluations.
//!
//! Completions are one file a question, and a folder of them is one task; each repeats the conversation so far, so what came
//! after the model's last word is news. Where the conversation begins anew, the harness did: what was before is a run of its own,
//! an attempt that was given up. With calls in text (`fncall_messages`), what they were read as counts. Of events, actions
//! of the agent are steps; an observation belongs to the action that its `cause` names, or in events of 1.x (`kind`) its
//! `tool_call_id`. What the program says to itself (states, recalls, condensation) is no step.

use super::conversation::{Conversation, Spent, ToolCall, ToolResult, Turn, args_of_text, millis_of};
use super::json::{Map, Value};
use super::message::{Ear, Role, answered, asked, result_text, role_of, text, usage_of_response};
use super::spans::turn_of;
use super::{Out, Reader};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fs;

/// Actions that the agent did not choose, or that do nothing.
const NO_ACTIONS: [&str; 8] = ["system", "recall", "change_agent_state", "condensation", "condensation_request", "null", "pause", "resume"];
/// Of an action's arguments, what is no part of what it does.
const NOT_ARGUMENTS: [&str; 14] = [
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
    "summary",
];
const STUCK: &str = "AgentStuckInLoopError";

#[derive(Debug, Default)]
pub(super) struct OpenHands {
    /// Bare events, or completions: a run that goes on from record to record.
    open: Option<Open>,
    /// Of the task at hand, those that were given up.
    attempts: u32,
}

#[derive(Debug)]
struct Open {
    conversation: Conversation,
    ear: Ear,
    events: Events,
    /// Messages of the last question.
    asked: usize,
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
    fn hear(&mut self, conversation: &mut Conversation, event: &Map<'_>) -> Result<(), &'static str> {
        let at_millis = millis_of(text(event, &["timestamp"]));
        if let Some(kind) = kind_of(event.get("kind").and_then(Value::as_str)) {
            self.event(conversation, kind, event, at_millis);
            return Ok(());
        }
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

    /// What a running total has more than the last one.
    fn news(&mut self, total: Spent) -> Spent {
        let news = Spent { tokens: total.tokens.saturating_sub(self.total.tokens), dollars: (total.dollars - self.total.dollars).max(0.0) };
        self.total = Spent { tokens: total.tokens.max(self.total.tokens), dollars: total.dollars.max(self.total.dollars) };
        news
    }

    /// An event of 1.x. What is of no kind that is known here is of the program, for itself.
    fn event(&mut self, conversation: &mut Conversation, kind: &str, event: &Map<'_>, at_millis: Option<i64>) {
        let id = text(event, &["tool_call_id"]).to_owned();
        let is_agents = matches!(text(event, &["source"]), "agent" | "");
        match kind {
            "ActionEvent" if is_agents => {
                let call = ToolCall { id, tool: tool_of(event), args: args_of(event) };
                let answer = text(event, &["llm_response_id"]).into();
                conversation.turn(&Turn { calls: vec![call], at_millis, answer, ..Turn::default() });
            }
            "ObservationEvent" => {
                let (text, failed) = observed(event.get("observation").unwrap_or(&Value::Null));
                conversation.answer(&ToolResult { id, text, failed });
            }
            "AgentErrorEvent" | "UserRejectObservation" => {
                let text = text(event, &["error", "rejection_reason"]).into();
                // One without a call is of the model's answer, which made none.
                if !id.is_empty() {
                    conversation.answer(&ToolResult { id, text, failed: Some(true) });
                }
            }
            "MessageEvent" => {
                let said = event.get("llm_message").map(|message| result_text(message.get("content"))).unwrap_or_default();
                if is_agents {
                    conversation.turn(&Turn { text: said, at_millis, ..Turn::default() });
                } else {
                    hear_user(conversation, event, &said);
                }
            }
            "ConversationStateUpdateEvent" => {
                let value = event.get("value").unwrap_or(&Value::Null);
                let status = if text(event, &["key"]) == "execution_status" { Some(value) } else { value.get("execution_status") };
                if status.and_then(Value::as_str).is_some_and(|status| status.eq_ignore_ascii_case("stuck")) {
                    conversation.run.stuck = Some(true);
                }
                let metrics = value.get("stats").unwrap_or(value).get("usage_to_metrics").and_then(Value::as_object);
                let total = metrics.into_iter().flat_map(Map::values).map(accumulated).fold(Spent::default(), |mut sum, spent| {
                    sum.add(spent);
                    sum
                });
                let news = self.news(total);
                conversation.spend_on(conversation.steps().checked_sub(1), news);
            }
            _ => {}
        }
    }

    fn pay(&mut self, conversation: &mut Conversation, event: &Map<'_>) {
        if let Some(metrics) = event.get("llm_metrics") {
            conversation.spend(self.news(accumulated(metrics)));
            return;
        }
        let Some(response) = event.get("tool_call_metadata").and_then(|metadata| metadata.get("model_response")) else { return };
        let id = response.get("id").and_then(Value::as_str).unwrap_or_default();
        if id.is_empty() || self.paid.insert(id.to_owned()) {
            let (usage, model) = usage_of_response(response);
            conversation.spend(usage.map(|usage| Spent::of(&model, &usage, None)).unwrap_or_default());
        }
    }

    fn action(&mut self, conversation: &mut Conversation, event: &Map<'_>, at_millis: Option<i64>) {
        let action = text(event, &["action"]);
        let empty = Map::default();
        let args = event.get("args").and_then(Value::as_object).unwrap_or(&empty);
        if text(event, &["source"]) != "agent" {
            if action == "message" {
                hear_user(conversation, event, text(args, &["content"]));
            }
            return;
        }
        if NO_ACTIONS.contains(&action) {
            return;
        }
        self.pay(conversation, event);
        if action == "message" {
            conversation.turn(&Turn { text: text(args, &["content"]).into(), at_millis, ..Turn::default() });
            return;
        }
        let (tool, args) = called(event).unwrap_or_else(|| {
            let kept = args.iter().filter(|(name, value)| !NOT_ARGUMENTS.contains(name) && !value.is_null());
            (action.to_owned(), serde_json::Value::Object(kept.map(|(name, value)| (name.to_owned(), value.to_value())).collect()))
        });
        let response = event.get("tool_call_metadata").and_then(|metadata| metadata.get("model_response")?.get("id")?.as_str());
        let answer = response.unwrap_or_default().into();
        conversation.turn(&Turn { calls: vec![ToolCall { id: event_id(event, "id"), tool, args }], at_millis, answer, ..Turn::default() });
    }
}

/// Of events in the user's name those are a person's that say so; the environment speaks too.
fn hear_user(conversation: &mut Conversation, event: &Map<'_>, said: &str) {
    if text(event, &["source"]) == "user" { conversation.reply(said) } else { conversation.told(said) }
}

fn accumulated(metrics: &Value<'_>) -> Spent {
    let count = |name: &str| metrics.pointer(&format!("/accumulated_token_usage/{name}")).and_then(Value::as_u64).unwrap_or(0);
    let dollars = metrics.get("accumulated_cost").and_then(Value::as_f64).filter(|cost| cost.is_finite()).unwrap_or(0.0);
    Spent { tokens: count("prompt_tokens").saturating_add(count("completion_tokens")), dollars }
}

/// Of an event of 1.x.
pub(super) fn kind_of(kind: Option<&str>) -> Option<&str> {
    let kind = kind?;
    (kind.ends_with("Event") || kind.ends_with("Observation") || kind.starts_with("Condensation")).then_some(kind)
}

fn tool_of(event: &Map<'_>) -> String {
    let named = text(event, &["tool_name"]);
    let action = || event.get("action").and_then(|action| action.get("kind")?.as_str()).unwrap_or_default();
    if named.is_empty() { action().trim_end_matches("Action").to_lowercase() } else { named.to_owned() }
}

/// As the model wrote them, or else as the program read them; without what the program has every tool ask for.
fn args_of(event: &Map<'_>) -> serde_json::Value {
    let call = event.get("tool_call");
    let written = call.and_then(|call| call.get("arguments").or_else(|| call.pointer("/function/arguments")));
    let given = written.map(|written| written.as_str().map_or_else(|| written.to_value(), args_of_text));
    let given = given.or_else(|| event.get("action").map(Value::to_value)).unwrap_or_default();
    let serde_json::Value::Object(given) = given else { return given };
    let is_kept = |name: &str, value: &serde_json::Value| name != "kind" && !NOT_ARGUMENTS.contains(&name) && !value.is_null();
    serde_json::Value::Object(given.into_iter().filter(|(name, value)| is_kept(name, value)).collect())
}

/// What an observation of 1.x says, and whether it is a failure.
fn observed<'a>(observation: &Value<'a>) -> (Cow<'a, str>, Option<bool>) {
    let content = ["content", "output", "message", "error"].iter().find_map(|name| observation.get(name).filter(|value| !value.is_null()));
    let text = result_text(content.or(Some(observation)));
    let code = observation.get("exit_code").or_else(|| observation.pointer("/metadata/exit_code")).and_then(Value::as_i64);
    let flag = ["is_error", "error"].iter().find_map(|name| match observation.get(name)? {
        Value::Bool(flag) => Some(*flag),
        Value::String(error) => Some(!error.is_empty()),
        _ => None,
    });
    let failed = match (flag, code) {
        (Some(true), _) => Some(true),
        (_, Some(code)) => Some(code > 0),
        (flag, None) => flag,
    };
    (text, failed)
}

fn event_id(event: &Map<'_>, name: &str) -> String {
    event.get(name).and_then(Value::as_i64).map(|id| id.to_string()).unwrap_or_default()
}

/// The model's own call behind an action, where it was a native one.
fn called(event: &Map<'_>) -> Option<(String, serde_json::Value)> {
    let metadata = event.get("tool_call_metadata")?.as_object()?;
    let id = text(metadata, &["tool_call_id"]);
    let calls = metadata.get("model_response")?.pointer("/choices/0/message/tool_calls")?.as_array()?;
    let function = calls.iter().find(|call| call.get("id").and_then(Value::as_str) == Some(id))?.get("function")?.as_object()?;
    Some((text(function, &["name"]).to_owned(), args_of_text(text(function, &["arguments"]))))
}

fn observation(conversation: &mut Conversation, event: &Map<'_>) {
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
    conversation.answer(&ToolResult { id, text: content.into(), failed });
}

impl OpenHands {
    fn open(&mut self, id: impl FnOnce() -> String, line: u64, out: &Out) -> &mut Open {
        self.open.get_or_insert_with(|| Open {
            conversation: out.conversation(id(), line),
            ear: Ear::default(),
            events: Events::default(),
            asked: 0,
        })
    }

    fn close(&mut self, out: &mut Out) {
        self.attempts = 0;
        if let Some(open) = self.open.take() {
            out.run(open.conversation.finish());
        }
    }

    /// The harness began anew: the last attempt has the task's name, those before it a number.
    fn give_up(&mut self, out: &mut Out) {
        if let Some(open) = self.open.take() {
            self.attempts += 1;
            let mut run = open.conversation.finish();
            run.id = format!("{}/{}", run.id, self.attempts);
            out.run(run);
        }
    }

    fn completion(&mut self, line: u64, record: &Map<'_>, out: &mut Out) {
        let is_native = !record.contains_key("fncall_messages");
        let (question, response) = if is_native { ("messages", "response") } else { ("fncall_messages", "fncall_response") };
        let messages = record.get(question).and_then(Value::as_array).unwrap_or_default();
        let begins = !messages.iter().any(|message| role_of(message) == Some(Role::Assistant));
        if begins && self.open.as_ref().is_some_and(|open| messages.len() < open.asked) {
            self.give_up(out);
        }
        // A folder of completions is named after the task.
        let folder = out.file.parent().and_then(|folder| folder.file_name()).map(|name| name.to_string_lossy().into_owned());
        let task = folder.clone().unwrap_or_default();
        let Open { conversation, ear, asked: count, .. } = self.open(|| folder.unwrap_or_else(|| out.name(line)), line, out);
        conversation.run.task = task;
        *count = messages.len();
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
    fn evaluation(line: u64, record: &Map<'_>, history: &[Value<'_>], out: &mut Out) {
        let task = text(record, &["instance_id"]);
        let id = if task.is_empty() { out.name(line) } else { task.to_owned() };
        let mut conversation = out.conversation(id, line);
        task.clone_into(&mut conversation.run.task);
        let metadata = |pointer: &str| record.get("metadata").and_then(|metadata| metadata.pointer(pointer)?.as_str()).unwrap_or_default();
        let model = Some(metadata("/llm_config/model")).filter(|model| !model.is_empty()).unwrap_or_else(|| metadata("/llm/model"));
        model.clone_into(&mut conversation.run.model);
        metadata("/agent_class").clone_into(&mut conversation.run.agent);
        let resolved = |report: Option<&Value<'_>>| report.and_then(|report| report.get("resolved")?.as_bool());
        let tested = record.get("test_result").and_then(|result| result.get("report"));
        conversation.run.success = resolved(record.get("report")).or_else(|| resolved(tested));
        if let Some(error) = record.get("error") {
            conversation.run.stuck = Some(error.as_str().is_some_and(|error| error.contains(STUCK)));
        }
        let mut events = Events::default();
        let mut unknown = 0;
        // Older evaluations pair an action with its observation.
        let flat = history.iter().flat_map(|entry| entry.as_array().unwrap_or(std::slice::from_ref(entry)));
        for event in flat.filter(|event| !event.is_null()) {
            let heard = event.as_object().ok_or("no object").and_then(|event| events.hear(&mut conversation, event));
            unknown += usize::from(heard.is_err());
        }
        if unknown > 0 {
            out.broken(line, format!("{unknown} entries of its history are neither actions nor observations"));
        }
        conversation.spread(record.get("metrics").map(accumulated).unwrap_or_default());
        out.run(conversation.finish());
    }
}

/// A folder `events` stands in that of its conversation.
fn name_of_events(out: &Out, line: u64) -> String {
    let folder = out.file.parent().filter(|folder| folder.file_name().is_some_and(|name| name == "events"));
    let conversation = folder.and_then(|folder| folder.parent()?.file_name());
    conversation.map_or_else(|| out.name(line), |name| name.to_string_lossy().into_owned())
}

/// What a conversation of 1.x keeps beside its events.
fn model_beside(out: &Out) -> Option<String> {
    let folder = out.file.parent().filter(|folder| folder.file_name().is_some_and(|name| name == "events"))?;
    let state: serde_json::Value = serde_json::from_slice(&fs::read(folder.parent()?.join("base_state.json")).ok()?).ok()?;
    Some(state.pointer("/agent/llm/model")?.as_str()?.to_owned())
}

impl Reader for OpenHands {
    fn list_end(&mut self, out: &mut Out) {
        self.close(out);
    }

    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out) {
        let Some(record) = record.as_object() else {
            out.broken(line, "neither an event, a completion nor an evaluation of OpenHands");
            return;
        };
        if let Some(history) = record.get("history").and_then(Value::as_array) {
            Self::evaluation(line, record, history, out);
        } else if record.contains_key("messages") && record.contains_key("response") {
            self.completion(line, record, out);
        } else {
            let is_first = self.open.is_none();
            let Open { conversation, events, .. } = self.open(|| name_of_events(out, line), line, out);
            if is_first && let Some(model) = model_beside(out) {
                conversation.run.model = model;
            }
            if let Err(problem) = events.hear(conversation, record) {
                out.broken(line, problem);
            }
        }
    }

    fn end(&mut self, out: &mut Out) {
        self.close(out);
    }
}
