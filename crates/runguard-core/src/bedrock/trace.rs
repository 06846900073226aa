//! What one trace event says. The field names are those of the service's own model.

use crate::detect::actions::Action;
use crate::detect::failures::{ActionReply, failure_in};
use serde_json::{Map, Value, json};

/// The parts of a trace that hold a model's turn; the other members are one flat part each.
const WITH_STEPS: &[&str] = &["orchestrationTrace", "routingClassifierTrace", "preProcessingTrace", "postProcessingTrace"];
const COLLABORATOR_OUTPUT: &str = "agentCollaboratorInvocationOutput";

/// Who speaks: the agent that was invoked, or a collaborator that it called.
#[derive(Debug, Clone, Default)]
pub(super) struct Speaker {
    pub(super) chain: Vec<String>,
    /// Empty for the agent itself.
    pub(super) collaborator: String,
}

#[derive(Debug)]
pub(super) enum Fact {
    ModelCalled { speaker: Speaker, trace_id: String, model: Option<String> },
    Used(TokensUsed),
    Announced(Announced),
    Observed(Observed),
}

/// `part` and `trace_id` tell whether they were reported before.
#[derive(Debug)]
pub(super) struct TokensUsed {
    pub(super) speaker: Speaker,
    pub(super) trace_id: String,
    pub(super) part: String,
    pub(super) tokens: (u64, u64),
    /// The collaborator whose own steps these tokens sum up.
    pub(super) sums_up: Option<String>,
}

/// A call is being made. With an `invocation_id` it is the caller who shall make it.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) speaker: Speaker,
    pub(super) trace_id: String,
    pub(super) tool: String,
    pub(super) args: Value,
    /// What a knowledge base is asked.
    pub(super) question: Option<String>,
    pub(super) invocation_id: Option<String>,
    pub(super) collaborator: Option<String>,
}

/// What came of the call announced under the same trace id.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) speaker: Speaker,
    pub(super) trace_id: String,
    pub(super) result: Option<String>,
    pub(super) error: Option<String>,
    /// The texts that a knowledge base gave.
    pub(super) found: Vec<String>,
}

/// Everything one trace event says, in the order a guard wants to hear it.
pub(super) fn facts(part: &Value) -> Vec<Fact> {
    let callers = part.get("callerChain").and_then(Value::as_array);
    let chain = callers.map_or_else(Vec::new, |callers| callers.iter().map(|caller| text(caller, "agentAliasArn")).collect());
    let speaker = Speaker { chain, collaborator: text(part, "collaboratorName") };
    let mut facts = Vec::new();
    for (kind, body) in members(part.get("trace")) {
        if !WITH_STEPS.contains(&kind.as_str()) {
            facts.extend(usage(&speaker, body, kind, ""));
            continue;
        }
        for (member, value) in members(Some(body)) {
            let trace_id = text(value, "traceId");
            if member == "modelInvocationInput" {
                let model = Some(text(value, "foundationModel")).filter(|model| !model.is_empty());
                facts.push(Fact::ModelCalled { speaker: speaker.clone(), trace_id: trace_id.clone(), model });
            }
            facts.extend(usage(&speaker, value, &format!("{kind}.{member}"), ""));
            if member == "invocationInput" {
                announced(&speaker, &trace_id, value, &mut facts);
            } else if member == "observation" {
                for (name, output) in members(Some(value)) {
                    facts.extend(usage(&speaker, output, &format!("{kind}.{member}.{name}"), &trace_id));
                }
                facts.extend(observed(&speaker, &trace_id, value).map(Fact::Observed));
            }
        }
    }
    facts
}

/// The members of an object that are objects themselves.
fn members(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten().filter(|(_, member)| member.is_object())
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn usage(speaker: &Speaker, body: &Value, part: &str, outer_id: &str) -> Option<Fact> {
    // `metadata` is looked for here and not at any depth: a retrieved document has metadata of its own, with any content.
    let usage = body.get("metadata")?.get("usage").filter(|usage| usage.is_object())?;
    let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or_default();
    let own_id = text(body, "traceId");
    Some(Fact::Used(TokensUsed {
        speaker: speaker.clone(),
        trace_id: if own_id.is_empty() { outer_id.to_owned() } else { own_id },
        part: part.to_owned(),
        tokens: (count("inputTokens"), count("outputTokens")),
        sums_up: part.ends_with(COLLABORATOR_OUTPUT).then(|| text(body, "agentCollaboratorName")),
    }))
}

/// A member that says something.
fn given<'a>(body: &'a Value, name: &str) -> Option<&'a Map<String, Value>> {
    body.get(name)?.as_object().filter(|members| !members.is_empty())
}

fn announced(speaker: &Speaker, trace_id: &str, body: &Value, facts: &mut Vec<Fact>) {
    let call = |tool: String, args: Value| Announced {
        speaker: speaker.clone(),
        trace_id: trace_id.to_owned(),
        tool,
        args,
        question: None,
        invocation_id: None,
        collaborator: None,
    };
    let mut calls = Vec::new();
    if let Some(action) = given(body, "actionGroupInvocationInput") {
        let Action { name, arguments, .. } = Action::read(action);
        let is_returned = action.get("executionType").and_then(Value::as_str) == Some("RETURN_CONTROL");
        let invocation_id = action.get("invocationId").and_then(Value::as_str).filter(|_| is_returned).map(str::to_owned);
        calls.push(Announced { invocation_id, ..call(name, arguments) });
    }
    if let Some(lookup) = body.get("knowledgeBaseLookupInput").filter(|lookup| lookup.is_object()) {
        let question = text(lookup, "text");
        let tool = format!("knowledge base {}", text(lookup, "knowledgeBaseId"));
        calls.push(Announced { question: Some(question.clone()), ..call(tool, json!({ "query": question })) });
    }
    if let Some(handed) = body.get("agentCollaboratorInvocationInput").filter(|handed| handed.is_object()) {
        let name = text(handed, "agentCollaboratorName");
        let args = json!({"alias": handed.get("agentCollaboratorAliasArn"), "input": handed.get("input")});
        calls.push(Announced { collaborator: Some(name.clone()), ..call(format!("collaborator {name}"), args) });
    }
    if let Some(code) = given(body, "codeInterpreterInvocationInput") {
        calls.push(call("code interpreter".to_owned(), json!({"code": code.get("code"), "files": code.get("files")})));
    }
    facts.extend(calls.into_iter().map(Fact::Announced));
}

fn observed(speaker: &Speaker, trace_id: &str, body: &Value) -> Option<Observed> {
    let seen = |result: Option<String>, error: Option<String>| Observed {
        speaker: speaker.clone(),
        trace_id: trace_id.to_owned(),
        result,
        error,
        found: Vec::new(),
    };
    if let Some(action) = body.get("actionGroupInvocationOutput").filter(|action| action.is_object()) {
        let text = text(action, "text");
        let error = failure_in(&text);
        return Some(seen(Some(text), error));
    }
    if let Some(lookup) = body.get("knowledgeBaseLookupOutput").filter(|lookup| lookup.is_object()) {
        let references = lookup.get("retrievedReferences").and_then(Value::as_array);
        let found: Vec<String> = references.map_or_else(Vec::new, |references| references.iter().map(chunk).collect());
        return Some(Observed { result: serde_json::to_string(&found).ok(), found, ..seen(None, None) });
    }
    if let Some(handed) = body.get(COLLABORATOR_OUTPUT).filter(|handed| handed.is_object()) {
        return Some(seen(handed.get("output").map(|output| text(output, "text")), None));
    }
    if let Some(code) = body.get("codeInterpreterInvocationOutput").filter(|code| code.is_object()) {
        let failed = Some(text(code, "executionError")).filter(|error| !error.is_empty());
        let late = || code.get("executionTimeout").and_then(Value::as_bool).unwrap_or_default();
        let error = failed.or_else(|| late().then(|| "the program ran out of time".to_owned()));
        return Some(seen(Some(text(code, "executionOutput")), error));
    }
    let again = body.get("repromptResponse").filter(|again| again.is_object())?;
    let text = text(again, "text");
    let error = if text.is_empty() { "the agent was asked to try again".to_owned() } else { text.clone() };
    Some(seen(Some(text), Some(error)))
}

/// What a knowledge base gave: its text, or else the whole of it, as of an image or a row.
fn chunk(reference: &Value) -> String {
    let content = reference.get("content").unwrap_or(reference);
    content.get("text").and_then(Value::as_str).map_or_else(|| content.to_string(), str::to_owned)
}

/// The calls that a `returnControl` event asks the caller to make.
pub(super) fn returned_calls(payload: &Value) -> Vec<(String, Value)> {
    let inputs = payload.get("invocationInputs").and_then(Value::as_array);
    inputs
        .into_iter()
        .flatten()
        .flat_map(|member| ["functionInvocationInput", "apiInvocationInput"].into_iter().filter_map(|kind| given(member, kind)))
        .map(|action| {
            let Action { name, arguments, .. } = Action::read(action);
            (name, arguments)
        })
        .collect()
}

/// What came of returned calls: the name of each, what it gave, and why it failed, if it did.
pub(super) fn returned_results(state: &Value) -> Vec<(String, String, Option<String>)> {
    let results = state.get("returnControlInvocationResults").and_then(Value::as_array);
    results
        .into_iter()
        .flatten()
        .flat_map(|member| ["functionResult", "apiResult"].into_iter().filter_map(|kind| given(member, kind)))
        .map(|result| {
            let ActionReply { body, failure } = ActionReply::read(result);
            (Action::read(result).name, body, failure)
        })
        .collect()
}
