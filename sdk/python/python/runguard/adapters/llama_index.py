"""Guards LlamaIndex agents (`FunctionAgent`, `ReActAgent`, `AgentWorkflow`).

    from llama_index.core.agent.workflow import FunctionAgent
    from runguard import Run
    from runguard.adapters.llama_index import guard_agent

    agent = guard_agent(FunctionAgent(llm=llm, tools=[…]), lambda: Run(repeats=3, max_usd=1.00))
    await agent.run("…")

Every `agent.run` has a run of its own, which the function makes; without one it is the run around it (`guard(…)`), or a plain `Run()`. A
`Run` given instead is one for all: call its `new_turn()` when the user says something new. Agents that a tool starts and that have the same
function, or none, belong to the run of the agent that called the tool.

LlamaIndex hands what a tool raises to the model. Here the trip is raised where the tool would be called, so it comes out of `await agent.run(…)`;
`trip_of` finds it in what the workflow makes of it. With `on_trip="end"` the agent ends normally and its answer is the guard's message. The
agent asks through a copy of its LLM: the one that was given stays as it is.

To guard an LLM that no agent uses (a query engine's): `guard_llm(llm)` tells the run around each call.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
from typing import Any, AsyncIterator, Callable, Dict, Iterator, Optional, TypeVar

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, MessageRole
from llama_index.core.tools import ToolOutput

from runguard import _core
from runguard.errors import InvalidInputError, TripError
from runguard.run import ModelCall, Run, current_run

from ._runs import OnRepeat, OnTrip, RunLike, Runs, checked, tells, within
from ._usage import Tokens, begin, begin_async, failed, reported, settle

__all__ = ["guard_agent", "guard_llm"]

Agent = TypeVar("Agent")
Llm = TypeVar("Llm")

# What an LLM does in terms of its own methods is one call.
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("runguard_inside_llama_index_call", default=False)


def guard_agent(agent: Agent, run: RunLike = None, *, on_trip: OnTrip = "raise", on_repeat: OnRepeat = "run") -> Agent:
    """Puts a run around each `agent.run`, and gives the agent back.

    With `on_repeat="tell"` a call whose result the model has already is not run: its result is a sentence that says so.
    """
    checked(on_trip)
    tells_repeats = tells(on_repeat)
    if not callable(getattr(agent, "run", None)) or not callable(getattr(agent, "_call_tool", None)):
        raise InvalidInputError(f"guard_agent takes an agent of llama_index.core.agent.workflow, or an AgentWorkflow, not {agent!r}.")
    runs = Runs(run)
    start = agent.run  # type: ignore[attr-defined]

    @functools.wraps(start)
    def run_guarded(*args: Any, **kwargs: Any) -> Any:
        # The tasks of the workflow are made in here, and take the run with them.
        with within(runs.new()):
            return start(*args, **kwargs)

    _replace(agent, "run", run_guarded)
    members: Dict[str, Any] = getattr(agent, "agents", None) or {}
    for member in (agent, *members.values()):
        call_tool = getattr(member, "_call_tool", None)
        if call_tool is not None:
            _replace(member, "_call_tool", _guarded_tool(call_tool, on_trip, tells_repeats))
        llm = getattr(member, "llm", None)
        if llm is not None:
            _replace(member, "llm", guard_llm(llm, on_trip=on_trip))
    return agent


def guard_llm(llm: Llm, *, on_trip: OnTrip = "raise") -> Llm:
    """A copy of the LLM whose calls are told to the run around them."""
    checked(on_trip)
    own = copy.copy(llm)
    for name in ("chat", "complete"):
        _replace(own, name, _guarded(own, getattr(llm, name), name, on_trip))
        _replace(own, f"a{name}", _guarded_async(own, getattr(llm, f"a{name}"), name, on_trip))
        _replace(own, f"stream_{name}", _guarded_stream(own, getattr(llm, f"stream_{name}"), name, on_trip))
        _replace(own, f"astream_{name}", _guarded_stream_async(own, getattr(llm, f"astream_{name}"), name, on_trip))
    return own


def _replace(owner: Any, name: str, value: Any) -> None:
    # Agents and LLMs are pydantic models, which take no other attributes than their fields.
    object.__setattr__(owner, name, value)


# Tools.


def _guarded_tool(call_tool: Callable[..., Any], on_trip: OnTrip, tells_repeats: bool) -> Callable[..., Any]:
    @functools.wraps(call_tool)
    async def guarded(ctx: Any, tool: Any, tool_input: Any) -> Any:
        run = current_run()
        if run is None:
            return await call_tool(ctx, tool, tool_input)
        name = tool.metadata.get_name()
        try:
            await run._aside(run.before_tool, name, tool_input)
        except TripError as trip:
            if on_trip == "raise":
                raise
            # The model is not asked again, so this ends the agent.
            return ToolOutput(content=trip.message, tool_name=name, raw_input=tool_input, raw_output=trip.message, is_error=True)
        instead = run._instead(name, tool_input) if tells_repeats else None
        if instead is not None:
            return ToolOutput(content=instead, tool_name=name, raw_input=tool_input, raw_output=instead)
        with within(run, name):
            output = await call_tool(ctx, tool, tool_input)
        error = str(output.content) if output.is_error else None
        nudge = await run._aside(_after_tool, run, name, tool_input, None if error else str(output.content), error)
        if nudge:
            output = ToolOutput(
                content=f"{output.content}\n\n{nudge}",
                tool_name=name,
                raw_input=output.raw_input,
                raw_output=output.raw_output,
                is_error=output.is_error,
            )
        return output

    return guarded


def _after_tool(run: Run, name: str, given: Any, result: Any, error: Any) -> Optional[str]:
    return run.after_tool(name, given, result, error=error)


# Models.


class _Asked:
    """One call of an LLM, in the order of things; the forms of an LLM differ only in how they wait for it."""

    def __init__(self, run: Run, llm: Any, kind: str, on_trip: OnTrip, kwargs: Dict[str, Any], args: Any) -> None:
        self._run, self._llm, self._kind, self._on_trip, self._kwargs = run, llm, kind, on_trip, kwargs
        given = args[0] if args else kwargs.get("messages") or kwargs.get("prompt") or ""
        said = given if isinstance(given, str) else [_written(message) for message in given]
        longest = kwargs.get("max_tokens") or getattr(llm, "max_tokens", None)
        self._model: str = llm.metadata.model_name
        self._asked = (run, self._model, [said, kwargs.get("tools")], longest if isinstance(longest, int) and longest > 0 else None)
        self._call: Optional[ModelCall] = None
        self._last: Any = None
        self._tokens: Optional[Tokens] = None

    def begin(self) -> Any:
        """None: it may be sent. Otherwise what stands for the answer of a model that is not asked."""
        try:
            self._call = begin(*self._asked)
        except TripError as trip:
            return self._ended(trip)
        return None

    async def begin_async(self) -> Any:
        try:
            self._call = await begin_async(*self._asked)
        except TripError as trip:
            return self._ended(trip)
        return None

    def _ended(self, trip: TripError) -> Any:
        if self._on_trip == "raise":
            raise trip
        if self._kind == "complete":
            return CompletionResponse(text=trip.message, delta=trip.message)
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=trip.message), delta=trip.message)

    def sent(self, streams: bool = False) -> Dict[str, Any]:
        """With what the LLM is called."""
        kwargs = self._kwargs
        if self._call is not None:
            self._call._is_sent = True
            if self._call.max_tokens is not None:
                kwargs = {**kwargs, "max_tokens": self._call.max_tokens}
        kinds = type(self._llm).__mro__
        if streams and any(kind.__module__.startswith("llama_index.llms.openai.") and kind.__name__ == "OpenAI" for kind in kinds):
            kwargs = {"stream_options": {"include_usage": True}, **kwargs}
        return kwargs

    def came(self, answer: Any) -> Any:
        """A whole answer, or the newest state of one that is streamed."""
        self._last = answer
        self._tokens = _tokens(answer) or self._tokens
        return answer

    # Both are told once, the first time; a stream is settled also where its reader has left it.

    def failed(self, error: BaseException) -> None:
        call, self._call = self._call, None
        failed(call, error)

    def settle(self) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        message = getattr(self._last, "message", None)
        came = _core.answer_size(_written(message) if message is not None else getattr(self._last, "text", "")) if self._tokens is None else 0
        settle(call, self._model, self._tokens, came)

    async def failed_async(self, error: BaseException) -> None:
        await self._run._aside(self.failed, error)

    async def settle_async(self) -> None:
        await self._run._aside(self.settle)


def _asked(llm: Any, kind: str, on_trip: OnTrip, args: Any, kwargs: Dict[str, Any]) -> Optional[_Asked]:
    """None: there is no run, or the call is a part of one that is told already."""
    run = None if _inside.get() else current_run()
    return None if run is None else _Asked(run, llm, kind, on_trip, kwargs, args)


def _guarded(llm: Any, send: Callable[..., Any], kind: str, on_trip: OnTrip) -> Callable[..., Any]:
    @functools.wraps(send)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        asked = _asked(llm, kind, on_trip, args, kwargs)
        if asked is None:
            return send(*args, **kwargs)
        instead = asked.begin()
        if instead is not None:
            return instead
        try:
            with _as_one_call():
                answer = asked.came(send(*args, **asked.sent()))
        except BaseException as error:
            asked.failed(error)
            raise
        asked.settle()
        return answer

    return guarded


def _guarded_async(llm: Any, send: Callable[..., Any], kind: str, on_trip: OnTrip) -> Callable[..., Any]:
    @functools.wraps(send)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        asked = _asked(llm, kind, on_trip, args, kwargs)
        if asked is None:
            return await send(*args, **kwargs)
        instead = await asked.begin_async()
        if instead is not None:
            return instead
        try:
            with _as_one_call():
                answer = asked.came(await send(*args, **asked.sent()))
        except BaseException as error:
            await asked.failed_async(error)
            raise
        await asked.settle_async()
        return answer

    return guarded


def _guarded_stream(llm: Any, send: Callable[..., Any], kind: str, on_trip: OnTrip) -> Callable[..., Any]:
    @functools.wraps(send)
    def guarded(*args: Any, **kwargs: Any) -> Iterator[Any]:
        asked = _asked(llm, kind, on_trip, args, kwargs)
        return send(*args, **kwargs) if asked is None else told(asked, args)

    def told(asked: _Asked, args: Any) -> Iterator[Any]:
        instead = asked.begin()
        if instead is not None:
            yield instead
            return
        try:
            with _as_one_call():
                parts = send(*args, **asked.sent(streams=True))
            for part in parts:
                yield asked.came(part)
        except Exception as error:
            asked.failed(error)
            raise
        finally:
            asked.settle()

    return guarded


def _guarded_stream_async(llm: Any, send: Callable[..., Any], kind: str, on_trip: OnTrip) -> Callable[..., Any]:
    @functools.wraps(send)
    async def guarded(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        asked = _asked(llm, kind, on_trip, args, kwargs)
        return await send(*args, **kwargs) if asked is None else told(asked, args)

    async def told(asked: _Asked, args: Any) -> AsyncIterator[Any]:
        instead = await asked.begin_async()
        if instead is not None:
            yield instead
            return
        try:
            with _as_one_call():
                parts = await send(*args, **asked.sent(streams=True))
            async for part in parts:
                yield asked.came(part)
        except Exception as error:
            await asked.failed_async(error)
            raise
        finally:
            await asked.settle_async()

    return guarded


@contextlib.contextmanager
def _as_one_call() -> Iterator[None]:
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def _written(message: Any) -> Any:
    """A message as plain data."""
    if not hasattr(message, "model_dump"):
        return str(message)
    said = message.model_dump(mode="json", exclude_none=True)
    if any(block.get("block_type") == "tool_call" for block in said.get("blocks") or ()):
        # They stand there a second time, as the provider writes them.
        said.get("additional_kwargs", {}).pop("tool_calls", None)
    return said


def _tokens(answer: Any) -> Optional[Tokens]:
    """What the provider counted, as its answer says it."""
    raw = getattr(answer, "raw", None)
    usage = raw.get("usage") if isinstance(raw, dict) else getattr(raw, "usage", None)
    if usage is None:
        return None
    counts = reported(usage)
    if not any(isinstance(count, int) and count > 0 for count in counts.values()):
        return None
    # Chat completions and responses of OpenAI, Bedrock, Anthropic.
    provider = "openai" if {"prompt_tokens", "input_tokens_details"} & counts.keys() else "bedrock" if "inputTokens" in counts else "anthropic"
    return Tokens.read(provider, counts)
