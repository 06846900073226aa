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

from ._runs import OnTrip, RunLike, Runs, checked, within
from ._usage import Tokens, begin, begin_async, failed, settle

__all__ = ["guard_agent", "guard_llm"]

Agent = TypeVar("Agent")
Llm = TypeVar("Llm")

# What an LLM does in terms of its own methods is one call.
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("runguard_inside_llama_index_call", default=False)


def guard_agent(agent: Agent, run: RunLike = None, *, on_trip: OnTrip = "raise") -> Agent:
    """Puts a run around each `agent.run`, and gives the agent back."""
    checked(on_trip)
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
            _replace(member, "_call_tool", _guarded_tool(call_tool, on_trip))
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


def _guarded_tool(call_tool: Callable[..., Any], on_trip: OnTrip) -> Callable[..., Any]:
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
    """One call of an LLM."""

    def __init__(self, llm: Any, kind: str, args: Any, kwargs: Dict[str, Any]) -> None:
        self.llm, self.kind, self.args, self.kwargs = llm, kind, args, kwargs
        given = args[0] if args else kwargs.get("messages") or kwargs.get("prompt") or ""
        said = given if isinstance(given, str) else [_written(message) for message in given]
        self.prompt = [said, kwargs.get("tools")]
        self.model: str = llm.metadata.model_name
        longest = kwargs.get("max_tokens") or getattr(llm, "max_tokens", None)
        self.longest = longest if isinstance(longest, int) and longest > 0 else None
        self._last: Any = None
        self._tokens: Optional[Tokens] = None
        self._is_over = False

    def streamed(self) -> _Asked:
        if any(kind.__module__.startswith("llama_index.llms.openai.") and kind.__name__ == "OpenAI" for kind in type(self.llm).__mro__):
            self.kwargs = {"stream_options": {"include_usage": True}, **self.kwargs}
        return self

    def shortened(self, call: ModelCall) -> Dict[str, Any]:
        call._is_sent = True
        return self.kwargs if call.max_tokens is None else {**self.kwargs, "max_tokens": call.max_tokens}

    def came(self, answer: Any) -> None:
        """A whole answer, or the newest state of one that is streamed."""
        self._last = answer
        self._tokens = _tokens(answer) or self._tokens

    def failed(self, call: ModelCall, error: BaseException) -> None:
        self._is_over = True
        failed(call, error)

    def settle(self, call: ModelCall) -> None:
        """Once; a stream comes here also where its reader has left it."""
        if self._is_over:
            return
        self._is_over = True
        message = getattr(self._last, "message", None)
        came = _core.answer_size(_written(message) if message is not None else getattr(self._last, "text", "")) if self._tokens is None else 0
        settle(call, self.model, self._tokens, came)

    def ended(self, trip: TripError) -> Any:
        """What stands for the answer of a model that was not asked."""
        if self.kind == "complete":
            return CompletionResponse(text=trip.message, delta=trip.message)
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=trip.message), delta=trip.message)


def _guarded(llm: Any, send: Callable[..., Any], kind: str, on_trip: OnTrip) -> Callable[..., Any]:
    @functools.wraps(send)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        run = None if _inside.get() else current_run()
        if run is None:
            return send(*args, **kwargs)
        asked = _Asked(llm, kind, args, kwargs)
        try:
            call = begin(run, asked.model, asked.prompt, asked.longest)
        except TripError as trip:
            if on_trip == "raise":
                raise
            return asked.ended(trip)
        try:
            with _as_one_call():
                answer = send(*args, **asked.shortened(call))
        except BaseException as error:
            asked.failed(call, error)
            raise
        asked.came(answer)
        asked.settle(call)
        return answer

    return guarded


def _guarded_async(llm: Any, send: Callable[..., Any], kind: str, on_trip: OnTrip) -> Callable[..., Any]:
    @functools.wraps(send)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        run = None if _inside.get() else current_run()
        if run is None:
            return await send(*args, **kwargs)
        asked = _Asked(llm, kind, args, kwargs)
        try:
            call = await begin_async(run, asked.model, asked.prompt, asked.longest)
        except TripError as trip:
            if on_trip == "raise":
                raise
            return asked.ended(trip)
        try:
            with _as_one_call():
                answer = await send(*args, **asked.shortened(call))
        except BaseException as error:
            asked.failed(call, error)
            raise
        asked.came(answer)
        await run._aside(asked.settle, call)
        return answer

    return guarded


def _guarded_stream(llm: Any, send: Callable[..., Any], kind: str, on_trip: OnTrip) -> Callable[..., Any]:
    @functools.wraps(send)
    def guarded(*args: Any, **kwargs: Any) -> Iterator[Any]:
        run = None if _inside.get() else current_run()
        return send(*args, **kwargs) if run is None else told(run, _Asked(llm, kind, args, kwargs).streamed())

    def told(run: Run, asked: _Asked) -> Iterator[Any]:
        try:
            call = begin(run, asked.model, asked.prompt, asked.longest)
        except TripError as trip:
            if on_trip == "raise":
                raise
            yield asked.ended(trip)
            return
        try:
            with _as_one_call():
                parts = send(*asked.args, **asked.shortened(call))
            for part in parts:
                asked.came(part)
                yield part
        except Exception as error:
            asked.failed(call, error)
            raise
        finally:
            asked.settle(call)

    return guarded


def _guarded_stream_async(llm: Any, send: Callable[..., Any], kind: str, on_trip: OnTrip) -> Callable[..., Any]:
    @functools.wraps(send)
    async def guarded(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        run = None if _inside.get() else current_run()
        return await send(*args, **kwargs) if run is None else told(run, _Asked(llm, kind, args, kwargs).streamed())

    async def told(run: Run, asked: _Asked) -> AsyncIterator[Any]:
        try:
            call = await begin_async(run, asked.model, asked.prompt, asked.longest)
        except TripError as trip:
            if on_trip == "raise":
                raise
            yield asked.ended(trip)
            return
        try:
            with _as_one_call():
                parts = await send(*asked.args, **asked.shortened(call))
            async for part in parts:
                asked.came(part)
                yield part
            await run._aside(asked.settle, call)
        except Exception as error:
            asked.failed(call, error)
            raise
        finally:
            asked.settle(call)

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
    counts: Dict[str, Any] = dict(usage if isinstance(usage, dict) else usage.model_dump() if hasattr(usage, "model_dump") else vars(usage))
    if not any(isinstance(count, int) and count > 0 for count in counts.values()):
        return None
    # Chat completions and responses of OpenAI, Bedrock, Anthropic.
    provider = "openai" if {"prompt_tokens", "input_tokens_details"} & counts.keys() else "bedrock" if "inputTokens" in counts else "anthropic"
    return Tokens(**{name.removesuffix("_tokens"): count for name, count in _core.read_usage(provider, counts).items()})
