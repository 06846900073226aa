"""Guards pydantic-ai agents (2.x).

    from pydantic_ai import Agent
    from runguard import Run
    from runguard.adapters.pydantic_ai import RunGuard

    agent = Agent("openai:gpt-4o-mini", tools=[…], capabilities=[RunGuard(lambda: Run(repeats=3, max_usd=1.00))])
    await agent.run("…")

Every run of the agent has a run of its own, which the function makes; without one it is the run around it (`guard(…)`), or a plain `Run()`.
A `Run` given instead is one for all: call its `new_turn()` when the user says something new. Agents that a tool starts and that have the
same `RunGuard`, or a `RunGuard()`, belong to the run of the agent that called the tool.

The calls of an answer are counted when the answer is there, before the first of them runs: pydantic-ai runs them side by side, and
calls whose arguments are refused by validation never come to a tool hook, though a model can repeat them for ever. The `TripError`
comes out of `run`, `run_sync`, `run_stream` and `iter` as it is. With `on_trip="end"` the run ends normally instead, and its output is the
guard's message; that needs an agent whose output is text.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, List, Optional

from pydantic_ai import RunContext, ToolDefinition, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, SkipToolExecution
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from runguard import _core
from runguard.errors import TripError
from runguard.run import ModelCall, Run

from ._client import parse_arguments
from ._runs import OnRepeat, OnTrip, RunLike, Runs, checked, tells, within
from ._usage import Tokens, begin_async, failed, settle

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

__all__ = ["RunGuard"]


@dataclass
class RunGuard(AbstractCapability[Any]):
    """Puts a run around the model requests and tool calls of each run of an agent.

    With `on_repeat="tell"` a call whose result the model has already is not run: its result is a sentence that says so.
    """

    run: RunLike = None
    on_trip: OnTrip = "raise"
    on_repeat: OnRepeat = "run"
    _runs: Runs = field(init=False, repr=False)
    _own: Optional[Run] = field(init=False, repr=False, default=None)
    _call: Optional[ModelCall] = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        checked(self.on_trip)
        tells(self.on_repeat)
        self._runs = Runs(self.run)

    async def for_run(self, ctx: RunContext[Any]) -> RunGuard:
        """One for each run of the agent."""
        own = copy.copy(self)
        own._own, own._call = self._runs.new(), None
        return own

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> Any:
        with within(self._run):
            return await handler()

    @property
    def _run(self) -> Run:
        if self._own is None:
            self._own = self._runs.new()
        return self._own

    async def wrap_model_request(self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: Any) -> ModelResponse:
        asked = request_context
        settings = asked.model_settings or {}
        try:
            call = self._call = await begin_async(self._run, asked.model.model_name, _said(asked), settings.get("max_tokens"))
        except TripError as trip:
            return self._last_response(trip)
        call._is_sent = True
        if call.max_tokens is not None:
            asked = replace(asked, model_settings={**settings, "max_tokens": call.max_tokens})
        try:
            response: ModelResponse = await handler(asked)
        except BaseException as error:
            await call.run._aside(failed, call, error)
            raise
        # Whatever answered instead of the model.
        await call.run._aside(call.release)
        return response

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        run, usage, call = self._run, response.usage, self._call
        self._call = None
        if call is None:
            # A request that was tried again.
            call = await begin_async(run, request_context.model.model_name, _said(request_context))
        # pydantic-ai counts cached tokens inside the input, whatever the provider does, and has zeros where it said nothing.
        is_counted = bool(usage.input_tokens or usage.output_tokens)
        tokens = Tokens.of_total(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        came = 0 if is_counted else _core.answer_size([_written(part) for part in response.parts])
        await run._aside(settle, call, response.model_name, tokens if is_counted else None, came)
        try:
            for part in response.parts:
                if isinstance(part, ToolCallPart):
                    await run._aside(run.before_tool, part.tool_name, _arguments(part))
        except TripError as trip:
            return self._last_response(trip)
        return response

    def _last_response(self, trip: TripError) -> ModelResponse:
        if self.on_trip == "raise":
            raise trip
        # An answer without tool calls is what ends an agent.
        return ModelResponse(parts=[TextPart(trip.message)], model_name="runguard")

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        # Counted already; this is for a run that another agent sharing it has tripped meanwhile.
        run = self._run
        run.check()
        instead = run._instead(call.tool_name, _arguments(call)) if tells(self.on_repeat) else None
        if instead is not None:
            return instead
        try:
            with within(run, call.tool_name):
                result = await handler(args)
        except (ApprovalRequired, CallDeferred, SkipToolExecution):
            # The tool has not run yet.
            raise
        except Exception as error:
            await run._aside(_after_error, run, call, error)
            raise
        shown = result.return_value if isinstance(result, ToolReturn) else result
        nudge = await run._aside(run.after_tool, call.tool_name, _arguments(call), shown if isinstance(shown, str) else repr(shown))
        return _nudged(result, nudge) if nudge else result


def _after_error(run: Run, call: ToolCallPart, error: Exception) -> None:
    run.after_tool(call.tool_name, _arguments(call), error=str(error))


def _said(asked: ModelRequestContext) -> List[Any]:
    """What is sent to the model."""
    parts = [_written(part) for message in asked.messages for part in message.parts]
    instructions = [getattr(message, "instructions", None) for message in asked.messages[-1:]]
    given = asked.model_request_parameters
    tools = [[tool.name, tool.description, tool.parameters_json_schema] for tool in [*given.function_tools, *given.output_tools]]
    return [parts, instructions, tools]


def _written(part: Any) -> List[Any]:
    return [getattr(part, name, None) for name in ("content", "tool_name", "args")]


def _arguments(call: ToolCallPart) -> Any:
    return parse_arguments(call.args) if isinstance(call.args, str) or call.args is None else call.args


def _nudged(result: Any, nudge: str) -> Any:
    """Text gets the nudge behind it. Anything else keeps its form, and the nudge goes along as a message of its own."""
    if isinstance(result, str):
        return f"{result}\n\n{nudge}"
    if not isinstance(result, ToolReturn):
        return ToolReturn(return_value=result, content=nudge)
    given = result.content
    if given is None:
        return replace(result, content=nudge)
    return replace(result, content=f"{given}\n\n{nudge}" if isinstance(given, str) else [*given, nudge])
