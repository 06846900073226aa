"""Guards Amazon Bedrock agents (`bedrock-agent-runtime`), with boto3 and aioboto3.

    from runguard.adapters.bedrock import guard_invoke_agent

    answer = guard_invoke_agent(client, max_usd=2.00, agentId=…, agentAliasId=…, sessionId=…, inputText=…)
    print(answer.text())                 # raises a TripError when the agent loops or spends too much

The agent runs inside AWS, and there is no call that stops it. What a caller can do is to read the trace while it streams, hang up
on the first sign of a loop, hand out no further call to run, and send nothing more in that session. That is what happens here:

- the trace is always switched on; without it a stream says nothing about what the agent does
- one `Run` per session holds the budget and the trip; the loop history starts anew with each user message, and an invocation that
  only brings back the results of returned calls is no new message
- each agent of a multi-agent session has a loop history of its own: the steps of a collaborator do not hide its caller's loop
- on a trip the stream is closed at once, before the error is raised. Raising alone would leave it open as long as the error lives
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Dict, Iterator, List, Mapping, Optional, Tuple

from runguard import InvalidInputError, Run

from ._bedrock_run import Listener, Sessions, shared_sessions

__all__ = [
    "AsyncGuardedCompletion",
    "GuardedCompletion",
    "Instrumented",
    "Sessions",
    "guard_invoke_agent",
    "guard_invoke_agent_async",
    "guard_stream",
    "guard_stream_async",
    "instrument",
]

_SERVICE = "bedrock-agent-runtime"
_OPERATIONS = ("InvokeAgent", "InvokeInlineAgent")
_RUN_OPTIONS = frozenset(
    ("repeats", "max_cycle_len", "max_tool_calls", "max_model_calls", "max_usd", "max_tokens", "budget", "loop", "stall", "alerts", "url", "api_key")
)


# --- guarded streams ----------------------------------------------------------------------------------------------------


class _Completion:
    """What the sync and the async form share."""

    def __init__(self, stream: Any, listener: Listener, response: Optional[Mapping[str, Any]] = None, on_end: Any = None) -> None:
        self.run: Run = listener.run
        self.response: Dict[str, Any] = {key: value for key, value in (response or {}).items() if key != "completion"}
        self.return_control: Optional[Dict[str, Any]] = None
        self._stream = stream
        self._listener = listener
        self._on_end = on_end
        self._chunks: List[bytes] = []

    @property
    def steps(self) -> int:
        """Calls the agent announced so far, the refused one included."""
        return self._listener.steps

    def close(self) -> None:
        """Hangs up. A plain call in both forms."""
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        # Code behind an instrumented client may use whatever else botocore's stream offers.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stream, name)

    def _pass_on(self, event: Dict[str, Any]) -> Dict[str, Any]:
        self._listener.hear(event)
        if "bytes" in event.get("chunk", {}):
            self._chunks.append(event["chunk"]["bytes"])
        if "returnControl" in event:
            self.return_control = event["returnControl"]
        return event

    def _ended(self) -> None:
        self._listener.end()
        if self._on_end is not None:
            self._on_end()

    def _whole_text(self) -> str:
        return b"".join(self._chunks).decode("utf-8")


class GuardedCompletion(_Completion):
    """The event stream of an agent, guarded. Iterate over it, or take the whole `text()`."""

    def __init__(self, stream: Any, listener: Listener, response: Optional[Mapping[str, Any]] = None, on_end: Any = None) -> None:
        super().__init__(stream, listener, response, on_end)
        self._events = iter(stream)

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        return self

    def __next__(self) -> Dict[str, Any]:
        try:
            self.run.check()
            return self._pass_on(next(self._events))
        except StopIteration:
            self._ended()
            raise
        except BaseException:
            self.close()
            raise

    def text(self) -> str:
        """Reads to the end and returns the agent's answer."""
        for _ in self:
            pass
        return self._whole_text()

    def __enter__(self) -> "GuardedCompletion":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class AsyncGuardedCompletion(_Completion):
    """The event stream of an agent, guarded, for aioboto3. Iterate with `async for`, or await the whole `text()`."""

    def __init__(self, stream: Any, listener: Listener, response: Optional[Mapping[str, Any]] = None, on_end: Any = None) -> None:
        super().__init__(stream, listener, response, on_end)
        self._events = stream.__aiter__()
        # In this process a question takes microseconds; a service is asked over the network, which must not hold up the event loop.
        self._asks_a_service = any(hasattr(part, "_service") for part in (self.run.loop, self.run.budget, self.run.stall))

    def __aiter__(self) -> AsyncIterator[Dict[str, Any]]:
        return self

    async def __anext__(self) -> Dict[str, Any]:
        try:
            self.run.check()
            event = await self._events.__anext__()
            return await asyncio.to_thread(self._pass_on, event) if self._asks_a_service else self._pass_on(event)
        except StopAsyncIteration:
            self._ended()
            raise
        except BaseException:
            self.close()
            raise

    async def text(self) -> str:
        """Reads to the end and returns the agent's answer."""
        async for _ in self:
            pass
        return self._whole_text()

    async def __aenter__(self) -> "AsyncGuardedCompletion":
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()


# --- invoking -----------------------------------------------------------------------------------------------------------


class _Invocation:
    """One call of InvokeAgent or InvokeInlineAgent: whose run it belongs to, and whether it begins a turn."""

    def __init__(self, request: Mapping[str, Any], *, run: Optional[Run], sessions: Sessions, options: Mapping[str, Any]) -> None:
        self._sessions = sessions
        self._session = (str(request.get("sessionId", "")), str(request.get("agentId", "")))
        self._is_last = bool(request.get("endSession"))
        # An inline agent says itself which model it runs on.
        self._own_model: Optional[str] = request.get("foundationModel")
        self._own_run = run is not None
        self.run = run if run is not None else sessions.run(*self._session, **options)
        state = request.get("sessionState") or request.get("inlineSessionState") or {}
        self._same_turn = bool(state.get("returnControlInvocationResults"))
        self.run.check()

    def listener(self, models: Optional[Mapping[str, str]], default_model: Optional[str]) -> Listener:
        return Listener(self.run, same_turn=self._same_turn, models=models, default_model=default_model or self._own_model)

    def ended(self) -> None:
        # A session that was asked to end and did is over; its id may be used again for another one.
        if self._is_last and not self._own_run and not self.run.tripped:
            self._sessions.forget(*self._session)


def _prepared(client: Any, run: Optional[Run], sessions: Optional[Sessions], arguments: Dict[str, Any]) -> Tuple[_Invocation, Dict[str, Any]]:
    if getattr(client, "_runguard", None) is not None:
        raise InvalidInputError("This client is instrumented already: call its invoke_agent, the answer's completion is guarded.")
    options = {name: arguments.pop(name) for name in _RUN_OPTIONS & arguments.keys()}
    _no_options_with_run(run, options)
    request = {**arguments, "enableTrace": True}
    return _Invocation(request, run=run, sessions=sessions or shared_sessions, options=options), request


def _no_options_with_run(run: Optional[Run], options: Mapping[str, Any]) -> None:
    if run is not None and options:
        raise InvalidInputError(f"Give a run or options, not both: {', '.join(sorted(options))} belong to the Run you pass.")


def guard_invoke_agent(
    client: Any,
    *,
    run: Optional[Run] = None,
    sessions: Optional[Sessions] = None,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **arguments: Any,
) -> GuardedCompletion:
    """`client.invoke_agent(**arguments)`, guarded. The options of `Run` (`max_usd`, `repeats`, …) may be among the arguments.

    `models` says under which model an id without a price is paid, for example an application inference profile.
    """
    invocation, request = _prepared(client, run, sessions, arguments)
    response = client.invoke_agent(**request)
    return GuardedCompletion(response["completion"], invocation.listener(models, default_model), response, invocation.ended)


async def guard_invoke_agent_async(
    client: Any,
    *,
    run: Optional[Run] = None,
    sessions: Optional[Sessions] = None,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **arguments: Any,
) -> AsyncGuardedCompletion:
    """`guard_invoke_agent` for a client of aioboto3."""
    invocation, request = _prepared(client, run, sessions, arguments)
    response = await client.invoke_agent(**request)
    return AsyncGuardedCompletion(response["completion"], invocation.listener(models, default_model), response, invocation.ended)


def guard_stream(
    stream: Any,
    run: Optional[Run] = None,
    *,
    same_turn: bool = False,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **options: Any,
) -> GuardedCompletion:
    """Guards the `completion` of a response you have already. It needs `enableTrace=True` to see anything.

    `same_turn` says that the invocation brought back results of returned calls, and was no new user message.
    """
    return GuardedCompletion(stream, _stream_listener(run, options, same_turn, models, default_model))


def guard_stream_async(
    stream: Any,
    run: Optional[Run] = None,
    *,
    same_turn: bool = False,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **options: Any,
) -> AsyncGuardedCompletion:
    """`guard_stream` for a stream of aioboto3."""
    return AsyncGuardedCompletion(stream, _stream_listener(run, options, same_turn, models, default_model))


def _stream_listener(
    run: Optional[Run], options: Dict[str, Any], same_turn: bool, models: Optional[Mapping[str, str]], default_model: Optional[str]
) -> Listener:
    _no_options_with_run(run, options)
    return Listener(run if run is not None else Run(**options), same_turn=same_turn, models=models, default_model=default_model)


# --- an unmodified client -----------------------------------------------------------------------------------------------


class Instrumented:
    """What `instrument` put on a client. `run(session_id, agent_id)` is a session's run, `remove()` takes everything off again."""

    def __init__(
        self,
        client: Any,
        run: Optional[Run],
        sessions: Sessions,
        models: Optional[Mapping[str, str]],
        default_model: Optional[str],
        options: Dict[str, Any],
    ) -> None:
        self._client = client
        self._run = run
        self._sessions = sessions
        self._models = models
        self._default_model = default_model
        self._options = options
        # `before-parameter-build` comes after every `provide-client-params` handler, one of which may replace the parameters.
        self._hooks = [
            (f"{event}.{_SERVICE}.{operation}", handler)
            for operation in _OPERATIONS
            for event, handler in (
                ("before-parameter-build", self._before_build),
                ("before-call", self._before_call),
                ("after-call", self._after_call),
            )
        ]
        for name, handler in self._hooks:
            client.meta.events.register(name, handler)
        client._runguard = self

    def run(self, session_id: str, agent_id: str = "") -> Run:
        return self._run if self._run is not None else self._sessions.run(session_id, agent_id, **self._options)

    def remove(self) -> None:
        for name, handler in self._hooks:
            self._client.meta.events.unregister(name, handler)
        self._client._runguard = None

    def _before_build(self, params: Dict[str, Any], context: Dict[str, Any], **_: Any) -> None:
        params["enableTrace"] = True
        context["runguard"] = _Invocation(params, run=self._run, sessions=self._sessions, options=self._options)

    def _before_call(self, context: Dict[str, Any], **_: Any) -> None:
        context["runguard"].run.check()

    def _after_call(self, parsed: Dict[str, Any], context: Dict[str, Any], **_: Any) -> None:
        stream = parsed.get("completion")
        if stream is None:
            return
        invocation: _Invocation = context["runguard"]
        kind = AsyncGuardedCompletion if hasattr(stream, "__aiter__") else GuardedCompletion
        parsed["completion"] = kind(stream, invocation.listener(self._models, self._default_model), parsed, invocation.ended)


def instrument(
    client: Any,
    *,
    run: Optional[Run] = None,
    sessions: Optional[Sessions] = None,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **options: Any,
) -> Instrumented:
    """Guards every `invoke_agent` and `invoke_inline_agent` of a client, of boto3 or aioboto3, without a change to the calling code."""
    _no_options_with_run(run, options)
    if getattr(client, "_runguard", None) is not None:
        raise InvalidInputError("This client is instrumented already. Call remove() on what instrument() returned first.")
    unknown = options.keys() - _RUN_OPTIONS
    if unknown:
        known = ", ".join(sorted(_RUN_OPTIONS))
        raise InvalidInputError(f"instrument() knows no option {', '.join(sorted(unknown))}. It takes those of Run: {known}.")
    return Instrumented(client, run, sessions or shared_sessions, models, default_model, options)
