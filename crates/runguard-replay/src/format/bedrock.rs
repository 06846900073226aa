//! Traces of Amazon Bedrock agents: the events of `InvokeAgent` with `enableTrace`, kept as JSON.
//!
//! A record is an event (`{"trace": …}`), the part inside it, or the bare trace. A run is a session. Calls are named and their
//! arguments written as the Python adapter does it, so that a recorded session and a guarded one are alike. Calls and what came
//! of them share a trace id; tokens are counted once for each part that reports them.

use super::conversation::{Conversation, Spent, ToolCall, ToolResult, Turn, millis_of};
use super::grouped::{Grouped, Open};
use super::json::{Map, Value};
use super::message::{result_text, text, usage};
use super::{Out, Reader};
use runguard_core::detect::actions::Action;
use serde_json::json;
use std::collections::HashSet;

/// Members that hold a model's turn.
const WITH_STEPS: [&str; 4] = ["orchestrationTrace", "routingClassifierTrace", "preProcessingTrace", "postProcessingTrace"];
const COLLABORATOR_OUTPUT: &str = "agentCollaboratorInvocationOutput";

#[derive(Debug, Default)]
pub(super) struct Bedrock {
    sessions: Grouped<Session>,
}

#[derive(Debug)]
struct Session {
    conversation: Conversation,
    paid: HashSet<String>,
    /// Collaborators whose own steps told their tokens.
    reported: HashSet<String>,
}

impl Open for Session {
    fn held(&self) -> usize {
        self.conversation.steps() + 1
    }

    fn close(self, out: &mut Out) {
        out.run(self.conversation.finish());
    }
}

type Members<'a> = Map<'a>;

impl Session {
    fn pay(&mut self, body: &Members<'_>, part: &str, outer_trace: &str, collaborator: &str) {
        // Here and not at any depth: a retrieved document has metadata of its own.
        let Some(usage) = body.get("metadata").and_then(|metadata| usage(metadata.get("usage")?)) else { return };
        let trace = text(body, &["traceId"]);
        let trace = if trace.is_empty() { outer_trace } else { trace };
        if !trace.is_empty() && !self.paid.insert(format!("{collaborator}\0{trace}\0{part}")) {
            return;
        }
        if part.ends_with(COLLABORATOR_OUTPUT) {
            // A sum of what its own steps have told.
            if self.reported.remove(text(body, &["agentCollaboratorName"])) {
                return;
            }
        } else if !collaborator.is_empty() {
            self.reported.insert(collaborator.to_owned());
        }
        let spent = Spent::of(&self.conversation.run.model, &usage, None);
        self.conversation.spend(spent);
    }

    fn trace(&mut self, trace: &Members<'_>, collaborator: &str, at_millis: Option<i64>) {
        for (kind, body) in trace.iter() {
            let Some(body) = body.as_object() else { continue };
            if kind == "failureTrace" {
                let failed = Some(true);
                let answer =
                    ToolResult { id: id(collaborator, text(body, &["traceId"])), text: text(body, &["failureReason"]).into(), failed };
                self.conversation.answer(&answer);
            }
            if !WITH_STEPS.contains(&kind) {
                self.pay(body, kind, "", collaborator);
                continue;
            }
            for (member, value) in body.iter() {
                let Some(value) = value.as_object() else { continue };
                let trace_id = text(value, &["traceId"]);
                if member == "modelInvocationInput" && !text(value, &["foundationModel"]).is_empty() {
                    text(value, &["foundationModel"]).clone_into(&mut self.conversation.run.model);
                }
                self.pay(value, &format!("{kind}.{member}"), "", collaborator);
                if member == "invocationInput" {
                    self.announced(value, collaborator, trace_id, at_millis);
                } else if member == "observation" {
                    for (name, output) in value.iter().filter_map(|(name, output)| Some((name, output.as_object()?))) {
                        self.pay(output, &format!("{kind}.{member}.{name}"), trace_id, collaborator);
                    }
                    self.observed(value, collaborator, trace_id, at_millis);
                }
            }
        }
    }

    fn announced(&mut self, body: &Members<'_>, collaborator: &str, trace_id: &str, at_millis: Option<i64>) {
        let member = |name: &str| body.get(name).and_then(Value::as_object);
        let call = if let Some(action) = member("actionGroupInvocationInput") {
            action_call(action)
        } else if let Some(lookup) = member("knowledgeBaseLookupInput") {
            (format!("knowledge base {}", text(lookup, &["knowledgeBaseId"])), json!({"query": text(lookup, &["text"])}))
        } else if let Some(handed) = member("agentCollaboratorInvocationInput") {
            let args = json!({"alias": handed.get("agentCollaboratorAliasArn"), "input": handed.get("input")});
            (format!("collaborator {}", text(handed, &["agentCollaboratorName"])), args)
        } else if let Some(code) = member("codeInterpreterInvocationInput") {
            ("code interpreter".to_owned(), json!({"code": code.get("code"), "files": code.get("files")}))
        } else {
            return;
        };
        let call = ToolCall { id: id(collaborator, trace_id), tool: call.0, args: call.1 };
        self.conversation.turn(&Turn { calls: vec![call], at_millis, ..Turn::default() });
    }

    fn observed(&mut self, body: &Members<'_>, collaborator: &str, trace_id: &str, at_millis: Option<i64>) {
        let member = |name: &str| body.get(name).and_then(Value::as_object);
        let said = |text: &str, failed: Option<bool>| ToolResult { id: id(collaborator, trace_id), text: text.to_owned().into(), failed };
        if let Some(last) = member("finalResponse") {
            self.conversation.turn(&Turn { text: text(last, &["text"]).into(), at_millis, ..Turn::default() });
            return;
        }
        let answer = if let Some(action) = member("actionGroupInvocationOutput") {
            // The service has no flag for an action that failed; its body says it.
            said(text(action, &["text"]), None)
        } else if let Some(lookup) = member("knowledgeBaseLookupOutput") {
            let found = lookup.get("retrievedReferences").and_then(Value::as_array).into_iter().flatten();
            let texts: Vec<Value<'_>> = found.filter_map(|reference| reference.pointer("/content/text")).cloned().collect();
            said(&result_text(Some(&Value::Array(texts))), Some(false))
        } else if let Some(handed) = member(COLLABORATOR_OUTPUT) {
            said(handed.get("output").and_then(|output| output.get("text")?.as_str()).unwrap_or_default(), Some(false))
        } else if let Some(code) = member("codeInterpreterInvocationOutput") {
            let error = text(code, &["executionError"]);
            let out_of_time = code.get("executionTimeout").and_then(Value::as_bool) == Some(true);
            match error {
                "" if out_of_time => said("the program ran out of time", Some(true)),
                "" => said(text(code, &["executionOutput"]), Some(false)),
                error => said(error, Some(true)),
            }
        } else if let Some(again) = member("repromptResponse") {
            said(text(again, &["text"]), Some(true))
        } else {
            return;
        };
        self.conversation.answer(&answer);
    }
}

/// Collaborators number their steps themselves.
fn id(collaborator: &str, trace_id: &str) -> String {
    if trace_id.is_empty() { String::new() } else { format!("{collaborator}\0{trace_id}") }
}

/// Name and arguments of an action, from a trace or a return of control.
fn action_call(action: &Members<'_>) -> (String, serde_json::Value) {
    let Action { name, arguments, .. } = Action::read(&action.to_value());
    (name, arguments)
}

impl Bedrock {
    fn event(&mut self, line: u64, event: &Members<'_>, out: &mut Out) {
        if let Some(events) = event.get("completion").and_then(Value::as_array) {
            events.iter().filter_map(Value::as_object).for_each(|event| self.event(line, event, out));
            return;
        }
        let inner = event.get("trace").and_then(Value::as_object);
        let (part, trace) = match inner {
            // An event around a part around a trace, or a part around a trace.
            Some(part) => match part.get("trace").and_then(Value::as_object) {
                Some(trace) => (part, trace),
                None => (event, part),
            },
            None => (event, event),
        };
        let is_trace =
            WITH_STEPS.iter().chain(&["failureTrace", "guardrailTrace", "customOrchestrationTrace"]).any(|name| trace.contains_key(name));
        if !is_trace {
            // Parts of an answer, files, and calls handed to the caller, which the trace has told.
            if !["chunk", "files", "returnControl"].iter().any(|name| event.contains_key(name)) {
                out.broken(line, "not an event of a Bedrock agent: no trace, chunk, files or returnControl");
            }
            return;
        }
        let session = text(part, &["sessionId"]);
        let name = if session.is_empty() { out.name(1) } else { session.to_owned() };
        let at_millis = part.get("eventTime").and_then(|at| at.as_i64().or_else(|| millis_of(at.as_str()?)));
        let begin =
            |out: &Out| Session { conversation: out.conversation(name.clone(), line), paid: HashSet::new(), reported: HashSet::new() };
        self.sessions.tell(&name, line, out, begin, |session| {
            let collaborator = text(part, &["collaboratorName"]);
            if collaborator.is_empty() && session.conversation.run.agent.is_empty() {
                text(part, &["agentName", "agentId"]).clone_into(&mut session.conversation.run.agent);
            }
            session.trace(trace, collaborator, at_millis);
        });
    }
}

impl Reader for Bedrock {
    fn record(&mut self, line: u64, record: Value<'_>, out: &mut Out) {
        match record.as_object() {
            Some(event) => self.event(line, event, out),
            None => out.broken(line, "not an event of a Bedrock agent"),
        }
    }

    fn end(&mut self, out: &mut Out) {
        self.sessions.close_all(out);
    }
}
