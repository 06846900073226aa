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
- the same question to a knowledge base in other words, lookups that bring what is known, actions that fail as before whatever their
  parameters are, and rounds of both are loops too (`Attempts`); `preset="research"`, `"automation"` or `"interactive"` sets everything
  for a kind of agent
- on a trip the stream is closed at once, before the error is raised. Raising alone would leave it open as long as the error lives
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Dict, Iterator, List, Mapping, Optional, Tuple

from runguard import BudgetTracker, InvalidInputError, LoopDetector, Run

from ._bedrock_run import Attempts, Listener, Sessions, shared_sessions, with_preset

__all__ = [
    "AsyncGuardedCompletion",
    "Attempts",
    "GuardedCompletion",
    "Instrumented",
    "Sessions",
    "guard_invoke_agent",
    "guard_invoke_agent_async",
    "guard_stream",
    "guard_stream_async",
    "instrument",
    "process_trace_event",
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

    def __init__(
        self, request: Mapping[str, Any], *, run: Optional[Run], sessions: Sessions, options: Mapping[str, Any], attempts: Optional[Attempts]
    ) -> None:
        self._sessions = sessions
        self._attempts = attempts
        self._session = (str(request.get("sessionId", "")), str(request.get("agentId", "")))
        self._is_last = bool(request.get("endSession"))
        # An inline agent says itself which model it runs on.
        self._own_model: Optional[str] = request.get("foundationModel")
        self._own_run = run is not None
        self.run = run if run is not None else sessions.run(*self._session, **options)
        state = request.get("sessionState") or request.get("inlineSessionState") or {}
        self._same_turn = bool(state.get("returnControlInvocationResults"))
        self.run.check()
        # Another process may have spent what the session may: nothing is sent then.
        exceeded = None if self.run.budget is None else self.run.budget.exhausted()
        if exceeded is not None:
            raise exceeded
        if self._same_turn:
            # What the caller's own calls gave may be the failure too many; then nothing is sent.
            self.listener(None, None).hear(state)

    def listener(self, models: Optional[Mapping[str, str]], default_model: Optional[str]) -> Listener:
        model = default_model or self._own_model
        return Listener(self.run, same_turn=self._same_turn, models=models, default_model=model, attempts=self._attempts)

    def ended(self) -> None:
        # A session that was asked to end and did is over; its id may be used again for another one.
        if self._is_last and not self._own_run and not self.run.tripped:
            self._sessions.forget(*self._session)


def _prepared(
    client: Any, run: Optional[Run], sessions: Optional[Sessions], preset: Optional[str], attempts: Optional[Attempts], arguments: Dict[str, Any]
) -> Tuple[_Invocation, Dict[str, Any]]:
    if getattr(client, "_runguard", None) is not None:
        raise InvalidInputError("This client is instrumented already: call its invoke_agent, the answer's completion is guarded.")
    given = {name: arguments.pop(name) for name in _RUN_OPTIONS & arguments.keys()}
    options, attempts = _options(run, given, preset, attempts)
    request = {**arguments, "enableTrace": True}
    return _Invocation(request, run=run, sessions=sessions or shared_sessions, options=options, attempts=attempts), request


def _options(
    run: Optional[Run], options: Mapping[str, Any], preset: Optional[str], attempts: Optional[Attempts]
) -> Tuple[Dict[str, Any], Optional[Attempts]]:
    if run is not None and (options or preset is not None):
        named = sorted([*options, *(["preset"] if preset is not None else [])])
        raise InvalidInputError(f"Give a run or options, not both: {', '.join(named)} belong to the Run you pass.")
    return with_preset(options, preset, attempts)


def guard_invoke_agent(
    client: Any,
    *,
    run: Optional[Run] = None,
    sessions: Optional[Sessions] = None,
    preset: Optional[str] = None,
    attempts: Optional[Attempts] = None,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **arguments: Any,
) -> GuardedCompletion:
    """`client.invoke_agent(**arguments)`, guarded. The options of `Run` (`max_usd`, `repeats`, …) may be among the arguments.

    `preset` sets what is not given for a kind of agent: "research", "automation" or "interactive". `attempts` says after how many lookups
    and actions in vain the run is stopped. `models` says under which model an id without a price is paid, for example an application
    inference profile.
    """
    invocation, request = _prepared(client, run, sessions, preset, attempts, arguments)
    response = client.invoke_agent(**request)
    return GuardedCompletion(response["completion"], invocation.listener(models, default_model), response, invocation.ended)


async def guard_invoke_agent_async(
    client: Any,
    *,
    run: Optional[Run] = None,
    sessions: Optional[Sessions] = None,
    preset: Optional[str] = None,
    attempts: Optional[Attempts] = None,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **arguments: Any,
) -> AsyncGuardedCompletion:
    """`guard_invoke_agent` for a client of aioboto3."""
    # A service may have to be asked whether anything is left, which must not hold up the event loop.
    invocation, request = await asyncio.to_thread(_prepared, client, run, sessions, preset, attempts, arguments)
    response = await client.invoke_agent(**request)
    return AsyncGuardedCompletion(response["completion"], invocation.listener(models, default_model), response, invocation.ended)


def guard_stream(
    stream: Any,
    run: Optional[Run] = None,
    *,
    same_turn: bool = False,
    preset: Optional[str] = None,
    attempts: Optional[Attempts] = None,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **options: Any,
) -> GuardedCompletion:
    """Guards the `completion` of a response you have already. It needs `enableTrace=True` to see anything.

    `same_turn` says that the invocation brought back results of returned calls, and was no new user message.
    """
    return GuardedCompletion(stream, _stream_listener(run, options, same_turn, preset, attempts, models, default_model))


def guard_stream_async(
    stream: Any,
    run: Optional[Run] = None,
    *,
    same_turn: bool = False,
    preset: Optional[str] = None,
    attempts: Optional[Attempts] = None,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **options: Any,
) -> AsyncGuardedCompletion:
    """`guard_stream` for a stream of aioboto3."""
    return AsyncGuardedCompletion(stream, _stream_listener(run, options, same_turn, preset, attempts, models, default_model))


def _stream_listener(
    run: Optional[Run],
    given: Dict[str, Any],
    same_turn: bool,
    preset: Optional[str],
    attempts: Optional[Attempts],
    models: Optional[Mapping[str, str]],
    default_model: Optional[str],
) -> Listener:
    options, attempts = _options(run, given, preset, attempts)
    run = run if run is not None else Run(**options)
    return Listener(run, same_turn=same_turn, models=models, default_model=default_model, attempts=attempts)


def process_trace_event(
    trace: Mapping[str, Any],
    loop_detector: LoopDetector,
    budget_tracker: Optional[BudgetTracker] = None,
    *,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    attempts: Optional[Attempts] = None,
) -> None:
    """Feeds detectors of your own with one trace event, `event["trace"]`. Raises the trip; closing the stream is yours.

    Make a `LoopDetector` for each invocation, and a `BudgetTracker` for each session.
    """
    listener: Optional[Listener] = loop_detector.__dict__.get("_bedrock_listener")
    if listener is None or listener.run.budget is not budget_tracker:
        run = Run(loop=loop_detector, budget=budget_tracker)
        listener = Listener(run, same_turn=False, models=models, default_model=default_model, attempts=attempts)
        loop_detector.__dict__["_bedrock_listener"] = listener
    listener.run.check()
    listener.hear(_as_event(trace))


def _as_event(trace: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event of a stream, from what is one, from its `trace`, or from the trace in that."""
    inner = trace.get("trace")
    if "returnControl" in trace or (isinstance(inner, Mapping) and "trace" in inner):
        return trace
    return {"trace": trace if isinstance(inner, Mapping) else {"trace": trace}}


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
        attempts: Optional[Attempts],
    ) -> None:
        self._client = client
        self._run = run
        self._sessions = sessions
        self._models = models
        self._default_model = default_model
        self._options = options
        self._attempts = attempts
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
        context["runguard"] = _Invocation(params, run=self._run, sessions=self._sessions, options=self._options, attempts=self._attempts)

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
    preset: Optional[str] = None,
    attempts: Optional[Attempts] = None,
    models: Optional[Mapping[str, str]] = None,
    default_model: Optional[str] = None,
    **options: Any,
) -> Instrumented:
    """Guards every `invoke_agent` and `invoke_inline_agent` of a client, of boto3 or aioboto3, without a change to the calling code."""
    if getattr(client, "_runguard", None) is not None:
        raise InvalidInputError("This client is instrumented already. Call remove() on what instrument() returned first.")
    unknown = options.keys() - _RUN_OPTIONS
    if unknown:
        known = ", ".join(sorted(_RUN_OPTIONS))
        raise InvalidInputError(f"instrument() knows no option {', '.join(sorted(unknown))}. It takes those of Run: {known}.")
    given, attempts = _options(run, options, preset, attempts)
    return Instrumented(client, run, sessions or shared_sessions, models, default_model, given, attempts)
