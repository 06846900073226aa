"""smolagents: puts a run around an agent's model, its tool calls and, for a CodeAgent, the code it executes.

    agent = guard_agent(ToolCallingAgent(tools=[search], model=model), lambda: Run(max_usd=5))

Every `agent.run` has a run of its own, which the function makes; without one it is the run around it (`guard(…)`), or a plain `Run()`. A
`Run` given instead is one for all: call its `new_turn()` when the user says something new. Managed agents share the run of their manager.
Guarding an agent again gives it other runs.

The caller of `agent.run` gets the trip itself; with `on_trip="end"` the final answer is the guard's message instead. A CodeAgent's code is
one call of `python_interpreter`, and the tools it calls are calls of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar

from smolagents import MultiStepAgent
from smolagents.memory import FinalAnswerStep
from smolagents.models import ChatMessage, ChatMessageStreamDelta

from runguard import TripError, _core
from runguard.run import ModelCall, Run

from ._runs import OnRepeat, OnTrip, RunLike, Runs, checked, tells, within
from ._usage import Tokens, begin, failed, settle

Agent = TypeVar("Agent", bound=MultiStepAgent)

_LONGEST = ("max_completion_tokens", "max_tokens", "max_new_tokens")

# The run of the `agent.run` that is under way.
_active: ContextVar[Optional[Run]] = ContextVar("runguard_smolagents_run", default=None)


def guard_agent(agent: Agent, run: RunLike = None, *, on_trip: OnTrip = "raise", on_repeat: OnRepeat = "run") -> Agent:
    """Makes `agent` ask a run before each model and tool call; returns the same agent.

    With `on_repeat="tell"` a call whose result the model has already is not run: its result is a sentence that says so.
    """
    _attach(agent, Runs(run), checked(on_trip), tells(on_repeat))
    return agent


def _attach(agent: Any, runs: Runs, on_trip: OnTrip, tells_repeats: bool) -> None:
    for member in getattr(agent, "managed_agents", {}).values():
        # Its manager is to hear of a trip.
        _attach(member, runs, "raise", tells_repeats)
    guard = getattr(agent, "_runguard", None)
    if guard is None:
        guard = _Guard()
        guard.attach(agent)
    guard.runs, guard.on_trip, guard.tells_repeats = runs, on_trip, tells_repeats


class _Guard:
    """The wrappers of one agent. They look the run up at each call, so that it can be exchanged."""

    runs: Runs
    on_trip: OnTrip
    tells_repeats: bool
    # For code in threads that know nothing of where they were started.
    _last: Optional[Run] = None

    @property
    def run(self) -> Run:
        return _active.get() or self._last or self.runs.new()

    def attach(self, agent: Any) -> None:
        agent._runguard = self
        agent.run = partial(self.run_agent, agent.run)
        agent.model = self.guarded_model(agent.model)
        if hasattr(agent, "execute_tool_call"):
            agent.execute_tool_call = partial(self.call_tool, agent.execute_tool_call)
        if hasattr(agent, "python_executor"):
            agent.tools = {name: self.guarded_tool(tool) for name, tool in agent.tools.items()}
            agent.python_executor = _GuardedExecutor(agent.python_executor, self)

    def run_agent(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run = self._last = self.runs.new()
        try:
            with self.inside(run):
                run.check()
                result = original(*args, **kwargs)
        except TripError as trip:
            if self.on_trip == "raise":
                raise
            return self.last_step(trip) if kwargs.get("stream") else trip.message
        return self.steps(run, result) if isinstance(result, Generator) else result

    def steps(self, run: Run, steps: Generator[Any, None, None]) -> Iterator[Any]:
        """Between two steps the caller's code runs, which does not belong to the run."""
        try:
            while True:
                with self.inside(run):
                    step = next(steps, None)
                if step is None:
                    return
                yield step
        except TripError as trip:
            if self.on_trip == "raise":
                raise
            yield from self.last_step(trip)
        finally:
            # smolagents yields the step it was in once more.
            with suppress(RuntimeError):
                steps.close()

    @staticmethod
    def last_step(trip: TripError) -> Iterator[Any]:
        yield FinalAnswerStep(output=trip.message)

    @contextmanager
    def inside(self, run: Run) -> Iterator[None]:
        token = _active.set(run)
        try:
            with within(run):
                yield
        except TripError:
            raise
        except Exception as error:
            # smolagents wraps what a model raises, and hands what code raises to the model.
            run.check()
            cause = error.__cause__
            if isinstance(cause, TripError):
                raise cause from None
            raise
        finally:
            _active.reset(token)

    def guarded_model(self, model: Any) -> Any:
        """A copy, because one model object often serves several agents with runs of their own."""
        guarded = copy.copy(model)
        guarded.generate = partial(self.generate, model)
        if hasattr(model, "generate_stream"):
            guarded.generate_stream = partial(self.generate_stream, model)
        return guarded

    def generate(self, model: Any, messages: Any, *args: Any, **kwargs: Any) -> ChatMessage:
        call, kwargs = self.begin(model, messages, kwargs)
        try:
            message = model.generate(messages, *args, **kwargs)
        except BaseException as error:
            failed(call, error)
            raise
        settle(call, model.model_id, _tokens(message.token_usage), _core.answer_size(_said(message)))
        return message  # type: ignore[no-any-return]

    def generate_stream(self, model: Any, messages: Any, *args: Any, **kwargs: Any) -> Iterator[ChatMessageStreamDelta]:
        call, kwargs = self.begin(model, messages, kwargs)
        tokens, came = None, 0
        try:
            for delta in model.generate_stream(messages, *args, **kwargs):
                tokens = _tokens(delta.token_usage) or tokens
                came += _core.answer_size(_said(delta))
                yield delta
        except Exception as error:
            if not came:
                failed(call, error)
            raise
        finally:
            # A stream that broke off counts with what came.
            settle(call, model.model_id, tokens, came)

    def begin(self, model: Any, messages: Any, kwargs: Dict[str, Any]) -> Tuple[ModelCall, Dict[str, Any]]:
        settings = {**(getattr(model, "kwargs", None) or {}), **kwargs}
        name = next((name for name in _LONGEST if isinstance(settings.get(name), int)), None)
        tools = [[tool.name, tool.description, tool.inputs] for tool in kwargs.get("tools_to_call_from") or ()]
        prompt = [[_said(message) for message in messages], tools]
        call = begin(self.run, model.model_id, prompt, settings[name] if name else None)
        call._is_sent = True
        return call, kwargs if call.max_tokens is None else {**kwargs, name or "max_tokens": call.max_tokens}

    def call_tool(self, original: Callable[[str, Any], Any], tool_name: str, arguments: Any) -> Any:
        """Raising here, outside what smolagents calls a tool error, ends the agent's run."""
        return self.guarded_call(tool_name, arguments, partial(original, tool_name, arguments))

    def guarded_call(self, name: str, arguments: Any, call: Callable[[], Any]) -> Any:
        run = self.run
        run.before_tool(name, arguments)
        instead = run._instead(name, arguments) if self.tells_repeats and name != "final_answer" else None
        if instead is not None:
            return instead
        try:
            with within(run, name):
                result = call()
        except Exception as error:
            # The tool may be a managed agent that was stopped: that stops its manager too.
            run.check()
            run.after_tool(name, arguments, error=error)
            raise
        nudge = run.after_tool(name, arguments, result)
        # Only text can carry a nudge; an image or a number stays what the tool gave.
        return f"{result}\n\n{nudge}" if nudge and isinstance(result, str) and name != "final_answer" else result

    def guarded_tool(self, tool: Any) -> Any:
        """A tool as generated code sees it. The copy keeps its class, which remote executors send by source."""
        guarded = copy.copy(tool)

        def forward(*args: Any, **kwargs: Any) -> Any:
            arguments = {**dict(zip(tool.inputs, args)), **kwargs}
            return self.guarded_call(tool.name, arguments, partial(tool.forward, *args, **kwargs))

        guarded.forward = forward
        return guarded


class _GuardedExecutor:
    """A CodeAgent's executor that asks the run first. The agent gets a refusal as a failed step; its next model call ends the run."""

    def __init__(self, executor: Any, guard: _Guard) -> None:
        self._executor = executor
        self._guard = guard

    def __call__(self, code: str) -> Any:
        run = self._guard.run
        run.before_tool("python_interpreter", {"code": code})
        try:
            output = self._executor(code)
        except Exception as error:
            run.after_tool("python_interpreter", {"code": code}, error=error)
            raise
        nudge = run.after_tool("python_interpreter", {"code": code}, f"{output.logs}\n{output.output}")
        if nudge and not output.is_final_answer:
            output.logs = f"{output.logs}\n{nudge}\n"
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def _said(message: Any) -> List[Any]:
    if isinstance(message, dict):
        return [message.get("content"), message.get("tool_calls")]
    return [message.content, message.tool_calls]


def _tokens(usage: Any) -> Optional[Tokens]:
    # smolagents tells nothing about cached tokens.
    return None if usage is None else Tokens(usage.input_tokens, usage.output_tokens)
