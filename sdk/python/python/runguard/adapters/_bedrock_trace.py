"""Reads what a Bedrock agent's trace says: which call is being made, what came of it, which tokens were used.

Nothing here decides anything. The field names are those of the AWS service model. The same action is written in three shapes
(trace, return of control, Lambda event); `action_call` brings them to one, so that they compare equal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple, Union

from runguard import _core

# The parts of a trace that hold a model's turn; the other members are one flat part each.
_WITH_STEPS = ("orchestrationTrace", "routingClassifierTrace", "preProcessingTrace", "postProcessingTrace")
_COLLABORATOR_OUTPUT = "agentCollaboratorInvocationOutput"


@dataclass(frozen=True)
class Agent:
    """Who speaks: the agent that was invoked, or a collaborator it called."""

    chain: Tuple[str, ...]
    collaborator: str

    @property
    def is_collaborator(self) -> bool:
        return bool(self.collaborator) or len(self.chain) > 1


@dataclass(frozen=True)
class ModelCalled:
    """A model is being called."""

    agent: Agent
    trace_id: str
    model: Optional[str]


@dataclass(frozen=True)
class TokensUsed:
    """Tokens were used. `part` and `trace_id` tell whether they were reported before."""

    agent: Agent
    trace_id: str
    part: str
    input_tokens: int
    output_tokens: int
    sums_up: Optional[str] = None
    """The collaborator whose own steps these tokens sum up."""


@dataclass(frozen=True)
class CallAnnounced:
    """The agent is making a call. With an `invocation_id`, it is the caller who shall make it."""

    agent: Agent
    trace_id: str
    tool: str
    args: Dict[str, Any]
    query: Optional[str] = None
    invocation_id: Optional[str] = None
    collaborator: Optional[str] = None


@dataclass(frozen=True)
class CallObserved:
    """What came of the call announced under the same trace id."""

    agent: Agent
    trace_id: str
    result: Optional[str]
    error: Optional[str]


Fact = Union[ModelCalled, TokensUsed, CallAnnounced, CallObserved]


def facts(part: Mapping[str, Any]) -> Iterator[Fact]:
    """Everything one trace event says, in the order a guard wants to hear it."""
    chain = tuple(str(caller.get("agentAliasArn", "")) for caller in part.get("callerChain") or ())
    agent = Agent(chain, part.get("collaboratorName") or "")
    for kind, body in (part.get("trace") or {}).items():
        if not isinstance(body, Mapping):
            continue
        if kind not in _WITH_STEPS:
            yield from _usage(agent, body, kind, "")
            continue
        for member, value in body.items():
            if not isinstance(value, Mapping):
                continue
            trace_id = value.get("traceId") or ""
            if member == "modelInvocationInput":
                yield ModelCalled(agent, trace_id, value.get("foundationModel"))
            yield from _usage(agent, value, f"{kind}.{member}", "")
            if member == "invocationInput":
                yield from _announced(agent, trace_id, value)
            elif member == "observation":
                for name, output in value.items():
                    if isinstance(output, Mapping):
                        yield from _usage(agent, output, f"{kind}.{member}.{name}", trace_id)
                yield from _observed(agent, trace_id, value)


def _usage(agent: Agent, body: Mapping[str, Any], part: str, trace_id: str) -> Iterator[TokensUsed]:
    # `metadata` is looked for here and not at any depth: a retrieved document has metadata of its own, with any content.
    metadata = body.get("metadata")
    usage = metadata.get("usage") if isinstance(metadata, Mapping) else None
    if isinstance(usage, Mapping):
        sums_up = str(body.get("agentCollaboratorName", "")) if part.endswith(_COLLABORATOR_OUTPUT) else None
        tokens = int(usage.get("inputTokens") or 0), int(usage.get("outputTokens") or 0)
        yield TokensUsed(agent, body.get("traceId") or trace_id, part, *tokens, sums_up=sums_up)


def _announced(agent: Agent, trace_id: str, body: Mapping[str, Any]) -> Iterator[CallAnnounced]:
    action = body.get("actionGroupInvocationInput")
    if action:
        tool, args = action_call(action)
        returned = action.get("invocationId") if action.get("executionType") == "RETURN_CONTROL" else None
        yield CallAnnounced(agent, trace_id, tool, args, invocation_id=returned)
    lookup = body.get("knowledgeBaseLookupInput")
    if lookup:
        text = str(lookup.get("text") or "")
        yield CallAnnounced(agent, trace_id, f"knowledge base {lookup.get('knowledgeBaseId', '')}", {"query": text}, query=text)
    handed = body.get("agentCollaboratorInvocationInput")
    if handed:
        name = str(handed.get("agentCollaboratorName") or "")
        args = {"alias": handed.get("agentCollaboratorAliasArn"), "input": handed.get("input")}
        yield CallAnnounced(agent, trace_id, f"collaborator {name}", args, collaborator=name)
    code = body.get("codeInterpreterInvocationInput")
    if code:
        yield CallAnnounced(agent, trace_id, "code interpreter", {"code": code.get("code"), "files": code.get("files")})


def _observed(agent: Agent, trace_id: str, body: Mapping[str, Any]) -> Iterator[CallObserved]:
    action = body.get("actionGroupInvocationOutput")
    if action:
        text = str(action.get("text") or "")
        yield CallObserved(agent, trace_id, text, text if says_error(text) else None)
    lookup = body.get("knowledgeBaseLookupOutput")
    if lookup:
        found = [(reference.get("content") or {}).get("text") for reference in lookup.get("retrievedReferences") or ()]
        yield CallObserved(agent, trace_id, json.dumps(found, default=str), None)
    handed = body.get(_COLLABORATOR_OUTPUT)
    if handed:
        yield CallObserved(agent, trace_id, str((handed.get("output") or {}).get("text") or ""), None)
    code = body.get("codeInterpreterInvocationOutput")
    if code:
        error = code.get("executionError") or ("the program ran out of time" if code.get("executionTimeout") else None)
        yield CallObserved(agent, trace_id, str(code.get("executionOutput") or ""), error)
    again = body.get("repromptResponse")
    if again:
        text = str(again.get("text") or "")
        yield CallObserved(agent, trace_id, text, text or "the agent was asked to try again")


def returned_calls(payload: Mapping[str, Any]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The calls a `returnControl` event asks the caller to make."""
    for member in payload.get("invocationInputs") or ():
        for call in (member.get("functionInvocationInput"), member.get("apiInvocationInput")):
            if call:
                yield action_call(call)


def action_call(action: Mapping[str, Any]) -> Tuple[str, Dict[str, Any]]:
    """Name and arguments of an action, from a trace, a return of control or a Lambda event."""
    name, arguments = _core.action_call(action)
    return name, json.loads(arguments)


def says_error(text: str) -> bool:
    """Whether a body is an object with a top-level `error` that says something."""
    try:
        body = json.loads(text)
    except (TypeError, ValueError):
        return False
    return isinstance(body, dict) and bool(body.get("error"))
