"""smolagents: puts a run around an agent's model, its tool calls and, for a CodeAgent, the code it executes.

    agent = guard_agent(ToolCallingAgent(tools=[search], model=model), Run(max_usd=5))

The caller of `agent.run` gets the trip itself. A CodeAgent's code is one call of `python_interpreter`, and the tools it calls are calls
of their own. Managed agents share the run of their manager. Guarding an agent again gives it a new run. A `Run` kept for a whole chat
needs `run.new_turn()` at each user message.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, TypeVar

from smolagents import MultiStepAgent
from smolagents.models import ChatMessage, ChatMessageStreamDelta

from runguard import Run, TripError

from ._usage import Tokens, note_usage

Agent = TypeVar("Agent", bound=MultiStepAgent)


def guard_agent(agent: Agent, run: Run) -> Agent:
    """Makes `agent` ask `run` before each model and tool call; returns the same agent."""
    for member in getattr(agent, "managed_agents", {}).values():
        guard_agent(member, run)
    guard = getattr(agent, "_runguard", None)
    if guard is None:
        guard = _Guard(run)
        guard.attach(agent)
    guard.run = run
    return agent


class _Guard:
    """The wrappers of one agent. They look the run up at each call, so that it can be exchanged."""

    def __init__(self, run: Run) -> None:
        self.run = run

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
        self.run.check()
        with self.trips_stay_bare():
            result = original(*args, **kwargs)
        return self.steps(result) if isinstance(result, Generator) else result

    def steps(self, steps: Generator[Any, None, None]) -> Iterator[Any]:
        with self.trips_stay_bare():
            yield from steps

    @contextmanager
    def trips_stay_bare(self) -> Iterator[None]:
        # smolagents wraps what a model raises, and hands what code raises to the model.
        try:
            yield
        except TripError:
            raise
        except Exception:
            self.run.check()
            raise

    def guarded_model(self, model: Any) -> Any:
        """A copy, because one model object often serves several agents with runs of their own."""
        guarded = copy.copy(model)
        guarded.generate = partial(self.generate, model)
        if hasattr(model, "generate_stream"):
            guarded.generate_stream = partial(self.generate_stream, model)
        return guarded

    def generate(self, model: Any, *args: Any, **kwargs: Any) -> ChatMessage:
        self.run.before_model()
        message = model.generate(*args, **kwargs)
        self.record_usage(model, message.token_usage)
        return message

    def generate_stream(self, model: Any, *args: Any, **kwargs: Any) -> Iterator[ChatMessageStreamDelta]:
        self.run.before_model()
        for delta in model.generate_stream(*args, **kwargs):
            self.record_usage(model, delta.token_usage)
            yield delta

    def record_usage(self, model: Any, usage: Any) -> None:
        if usage is not None:
            # smolagents tells nothing about cached tokens.
            note_usage(self.run, model.model_id, Tokens(usage.input_tokens, usage.output_tokens))

    def call_tool(self, original: Callable[[str, Any], Any], tool_name: str, arguments: Any) -> Any:
        """Raising here, outside what smolagents calls a tool error, ends the agent's run."""
        return self.guarded_call(tool_name, arguments, partial(original, tool_name, arguments))

    def guarded_call(self, name: str, arguments: Any, call: Callable[[], Any]) -> Any:
        self.run.before_tool(name, arguments)
        try:
            result = call()
        except Exception as error:
            # The tool may be a managed agent that was stopped: that stops its manager too.
            self.run.check()
            self.run.after_tool(name, arguments, error=error)
            raise
        nudge = self.run.after_tool(name, arguments, result)
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
