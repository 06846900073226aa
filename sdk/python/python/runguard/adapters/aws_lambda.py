"""Guards the Lambda functions behind an agent: Bedrock action groups (both schemas) and AgentCore harness hooks.

    from runguard.adapters.aws_lambda import guard_action_group

    @guard_action_group(redis_url="redis://cache:6379/0")
    def lambda_handler(event, context): …

An agent that gets an error tries again, often in the same words, or in turns with another action that fails. A call that failed twice
among the session's last twelve, with no success of any call since, is not run a third time: the agent is told for good. Calls that
succeed are never counted, so polling a healthy action is fine. What is remembered must be kept outside of the function, which lives in
many short-lived copies: in a DynamoDB table (`dynamodb_table=`), in Redis (`redis_url=`) or in a RunGuard service (`url=`).
Without any it is kept in this process, which is enough for tests and for one warm copy. When the memory
cannot be reached the handler runs, and a warning is logged.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections import OrderedDict
from typing import Any, Callable, Dict, Mapping, Optional

from runguard import LoopDetectedError, LoopDetector, RunGuardError

from runguard._core import reply_failed

from ._action_calls import KEPT_SESSIONS, ActionCall, DynamoDBStore, Memory, MemoryStore, RedisStore, ServiceStore, Store, store_of

__all__ = ["ActionCall", "AgentCoreGuard", "DynamoDBStore", "MemoryStore", "RedisStore", "ServiceStore", "Store", "agentcore_before_tool_call", "guard_action_group"]

_log = logging.getLogger("runguard.aws_lambda")

Handler = Callable[[Dict[str, Any], Any], Any]

# The longest reason of a hook that AgentCore takes.
LONGEST_REASON = 1024


# --- action groups -------------------------------------------------------------------------------------------------------


def guard_action_group(
    handler: Optional[Handler] = None,
    *,
    store: Optional[Store] = None,
    url: Optional[str] = None,
    api_key: Optional[str] = None,
    redis_url: Optional[str] = None,
    dynamodb_table: Any = None,
    timeout_seconds: float = 1.0,
) -> Any:
    """Decorates the handler of an action-group Lambda function.

    Put it outermost: resolvers that turn exceptions into texts must be inside. The third call of one session with the same action group,
    path and method or function, parameters and request body, after two that failed, is answered with a permanent failure. Failed means:
    an exception, an HTTP status from 400 up, a response state FAILURE or REPROMPT, or a body that tells of an error, in JSON or plainly.
    """
    memory = Memory(store_of(store, url, api_key, redis_url, dynamodb_table, timeout_seconds))

    def decorate(inner: Handler) -> Handler:
        @functools.wraps(inner)
        def guarded(event: Dict[str, Any], context: Any = None) -> Any:
            call = ActionCall.of(event)
            if not call.session_id:
                _log.warning("%s runs unguarded: the event has no sessionId.", call.name)
                return inner(event, context)
            refusal, reachable = memory.ask(call)
            if refusal is not None:
                return permanent_failure(event, refusal)
            try:
                response = inner(event, context)
            except Exception:
                if reachable:
                    memory.tell(call, failed=True)
                raise
            if reachable:
                memory.tell(call, failed=reply_failed(response))
            return response

        return guarded

    return decorate if handler is None else decorate(handler)


def permanent_failure(event: Mapping[str, Any], message: str) -> Dict[str, Any]:
    """The reply that ends the retries: FAILURE stops a function-schema request, 422 tells the model in an API-schema one."""
    body = json.dumps({"error": "PERMANENT_FAILURE", "message": message, "retryable": False})
    if event.get("function"):
        reply = {
            "actionGroup": event.get("actionGroup"),
            "function": event["function"],
            "functionResponse": {"responseState": "FAILURE", "responseBody": {"TEXT": {"body": body}}},
        }
    else:
        reply = {
            "actionGroup": event.get("actionGroup"),
            "apiPath": event.get("apiPath"),
            "httpMethod": event.get("httpMethod"),
            "httpStatusCode": 422,
            "responseBody": {"application/json": {"body": body}},
        }
    answer: Dict[str, Any] = {"messageVersion": event.get("messageVersion") or "1.0", "response": reply}
    for kept in ("sessionAttributes", "promptSessionAttributes"):
        if event.get(kept) is not None:
            answer[kept] = event[kept]
    return answer


# --- AgentCore -----------------------------------------------------------------------------------------------------------


class AgentCoreGuard:
    """A Lambda handler for the hooks of an AgentCore harness: `lambda_handler = AgentCoreGuard(redis_url=…)`.

    As `beforeToolCall` alone it denies the call that closes a loop, and every later call of that session. A denied call is only
    skipped, and the model goes on. Set the same function as `afterToolCall` too, and calls that failed twice are denied as well,
    and the invocation is stopped after the next tool; as `beforeInvocation`, and a stopped session is refused before it starts.
    Failures are remembered where the arguments say. The order of calls and the stopped sessions are kept in this process, the order
    with `url=` in the service.
    """

    def __init__(
        self,
        *,
        repeats: Optional[int] = None,
        max_cycle_len: Optional[int] = None,
        store: Optional[Store] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        redis_url: Optional[str] = None,
        dynamodb_table: Any = None,
        timeout_seconds: float = 1.0,
    ) -> None:
        self._memory = Memory(store_of(store, url, api_key, redis_url, dynamodb_table, timeout_seconds))
        self._loops = LoopDetector(repeats, max_cycle_len, url=url, api_key=api_key)
        self._lock = threading.Lock()
        self._stopped: "OrderedDict[str, str]" = OrderedDict()

    def __call__(self, event: Mapping[str, Any], context: Any = None) -> Dict[str, str]:
        kind = str(_field(event, "type", "hookType", "eventType") or "before_tool_call")
        session_id = str(_field(event, "runtimeSessionId", "sessionId") or "")
        if not session_id:
            _log.warning("A %s hook event has no session id, so it was allowed unseen.", kind)
            return _allow()
        reason = self._stopped.get(session_id)
        if reason is not None:
            return _deny(reason)
        if kind == "before_invocation":
            return self._before_invocation(session_id, event)
        if kind == "before_tool_call":
            return self._before_tool_call(session_id, event)
        if kind == "after_tool_call":
            self._after_tool_call(session_id, event)
        return _allow()

    def _before_invocation(self, session_id: str, event: Mapping[str, Any]) -> Dict[str, str]:
        if not _brings_tool_results(_field(event, "messages")):
            self._loops.reset(session_id)
        return _allow()

    def _before_tool_call(self, session_id: str, event: Mapping[str, Any]) -> Dict[str, str]:
        call = _tool_call(session_id, event)
        if call is None:
            _log.warning("A before_tool_call hook event names no tool, so it was allowed unseen.")
            return _allow()
        refusal, _ = self._memory.ask(call)
        if refusal is not None:
            return self._stop(session_id, refusal)
        try:
            self._loops.record(session_id=session_id, tool=f"{call.function} {call.signature}")
        except LoopDetectedError as found:
            names = " → ".join(step.rsplit(" ", 1)[0] for step in found.cycle)
            return self._stop(session_id, f"{names} came {found.repeats} times in a row with the same arguments. Answer with what there is.")
        except RunGuardError as error:
            _log.warning("%s was allowed unseen (%s).", call.function, error)
        return _allow()

    def _after_tool_call(self, session_id: str, event: Mapping[str, Any]) -> None:
        call = _tool_call(session_id, event)
        # Where the event has no input, it cannot be told which of the tool's calls this result belongs to.
        if call is not None and call.parameters is not None:
            result = _field(event, "toolResult", "result")
            status = result.get("status") if isinstance(result, Mapping) else None
            self._memory.tell(call, failed=bool(_field(event, "error")) or status == "error")

    def _stop(self, session_id: str, reason: str) -> Dict[str, str]:
        with self._lock:
            self._stopped[session_id] = reason
            if len(self._stopped) > KEPT_SESSIONS:
                self._stopped.popitem(last=False)
        return _deny(reason)


def _allow() -> Dict[str, str]:
    return {"decision": "allow"}


def _deny(reason: str) -> Dict[str, str]:
    return {"decision": "deny", "reason": reason[:LONGEST_REASON]}


def _tool_call(session_id: str, event: Mapping[str, Any]) -> Optional[ActionCall]:
    use = _field(event, "toolUse")
    use = use if isinstance(use, Mapping) else {}
    # At the top level `name` is the hook's name, in `toolUse` it is the tool's.
    name = _field(event, "toolName") or use.get("name")
    if not name:
        return None
    given = _field(event, "toolInput", "input")
    given = use.get("input") if given is None else given
    parameters = None if given is None else [{"name": "input", "type": "object", "value": given}]
    return ActionCall(session_id, "agentcore", None, None, str(name), parameters, None)


def _field(event: Mapping[str, Any], *names: str) -> Any:
    """A field by the names it may have, in the event or in its context, in either style of writing."""
    context = event.get("context")
    for place in (event, context if isinstance(context, Mapping) else {}):
        for name in names:
            for spelling in (name, "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)):
                if place.get(spelling) is not None:
                    return place[spelling]
    return None


def _brings_tool_results(messages: Any) -> bool:
    """Whether an invocation goes on with a turn: its newest message holds the results of inline functions."""
    if not isinstance(messages, (list, tuple)) or not messages or not isinstance(messages[-1], Mapping):
        return False
    return any(isinstance(block, Mapping) and "toolResult" in block for block in messages[-1].get("content") or ())


agentcore_before_tool_call = AgentCoreGuard()
"""A `beforeToolCall` hook with the default settings, remembering in this process."""
