"""Google ADK: a runner plugin that refuses the tool call and then ends the invocation.

    app = App(name="app", root_agent=agent, plugins=[RunGuardPlugin(lambda: Run(max_usd=5))])
    runner = Runner(app=app, session_service=sessions)

Every invocation of the runner has a run of its own, which the function makes; without one it is the run around it (`guard(…)`), or a plain
`Run()`. A `Run` given instead is one for all: call its `new_turn()` when the user says something new. All agents of an invocation belong to
its run: sub-agents, those of a `ParallelAgent`, and those that an `AgentTool` starts.

A refused tool call gets an error as its response (so the session stays whole) and the model is not asked again. With
`on_trip="raise"` the caller of the runner gets ADK's `RuntimeError`, in which `trip_of` finds the trip. With `on_trip="end"` the
invocation ends normally and the agent's answer is the guard's message.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Tuple

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from runguard import TripError, _core
from runguard.run import ModelCall, Run

from ._runs import OnRepeat, OnTrip, RunLike, Runs, checked, starts, tells
from ._usage import Tokens, begin_async, failed, settle


# Under this name is what the model is told in place of a result that it has already.
_INSTEAD = "already_executed"


class _Asked:
    """A model call, and what has come of its answer so far."""

    def __init__(self, call: ModelCall) -> None:
        self.call, self.model, self.came = call, None, 0
        self.tokens: Optional[Tokens] = None

    def settle(self) -> None:
        settle(self.call, self.model, self.tokens, self.came)


class RunGuardPlugin(BasePlugin):
    """Asks a run before each model and tool call of an invocation and tells it what they brought.

    With `on_repeat="tell"` a call whose result the model has already is not run: its result is a sentence that says so.
    """

    def __init__(self, run: RunLike = None, *, on_trip: OnTrip = "raise", on_repeat: OnRepeat = "run", name: str = "runguard") -> None:
        super().__init__(name=name)
        self.run = run if isinstance(run, Run) else None
        self.on_trip = checked(on_trip)
        self._tells = tells(on_repeat)
        self._runs = Runs(run)
        # By invocation, and then by who asks: agents of one invocation may ask side by side.
        self._asked: Dict[str, Dict[Tuple[Any, ...], _Asked]] = {}

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        # An invocation that fails or is abandoned has no other end.
        weakref.finalize(invocation_context, self._ended, invocation_context.invocation_id)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        self._ended(invocation_context.invocation_id)

    def _ended(self, invocation_id: str) -> None:
        for asked in self._asked.pop(invocation_id, {}).values():
            asked.settle()
        self._runs.end(invocation_id)

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> Optional[LlmResponse]:
        run = self._runs.of(callback_context.invocation_id)
        await self._settle(run, callback_context)
        config = llm_request.config
        try:
            call = await begin_async(run, llm_request.model, _said(llm_request), config.max_output_tokens)
        except TripError as trip:
            if self.on_trip == "raise":
                raise
            return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=str(trip))]))
        call._is_sent = True
        if call.max_tokens is not None:
            config.max_output_tokens = call.max_tokens
        self._asked.setdefault(callback_context.invocation_id, {})[_asker(callback_context)] = _Asked(call)
        return None

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        asked = self._asked.get(callback_context.invocation_id, {}).get(_asker(callback_context))
        if asked is None:
            return
        asked.model = llm_response.model_version or asked.model
        if llm_response.partial:
            asked.came += _core.answer_size(_plain(llm_response.content))
            return
        # The parts of a streamed answer repeat the usage so far; the whole answer has all of it.
        usage = llm_response.usage_metadata
        tokens = _tokens(usage) if usage is not None else Tokens()
        # LiteLLM has zeros where the provider said nothing.
        if not any(tokens.counts):
            asked.came = max(asked.came, _core.answer_size(_plain(llm_response.content)))
        else:
            asked.tokens = tokens
            await self._settle(self._runs.of(callback_context.invocation_id), callback_context)

    async def on_model_error_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception) -> None:
        asked = self._asked.get(callback_context.invocation_id, {}).pop(_asker(callback_context), None)
        if asked is not None:
            await asked.call.run._aside(failed, asked.call, error)

    async def after_agent_callback(self, *, agent: Any, callback_context: CallbackContext) -> None:
        await self._settle(self._runs.of(callback_context.invocation_id), callback_context)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> Optional[dict[str, Any]]:
        run = self._runs.of(tool_context.invocation_id)
        await self._settle(run, tool_context)
        try:
            await run._aside(run.before_tool, tool.name, tool_args)
        except TripError as trip:
            # Raising here would leave a call without its response in the session. The run is tripped now, so the next model call is
            # refused and that ends the invocation.
            return {"error": str(trip)}
        instead = run._instead(tool.name, tool_args) if self._tells else None
        if instead is not None:
            return {_INSTEAD: instead}
        # A tool runs in a task of its own: what it starts belongs to the run, and nothing else.
        starts(run, tool.name)
        return None

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> Optional[dict[str, Any]]:
        run = self._runs.of(tool_context.invocation_id)
        # ADK calls this for a refused tool too, and for one that was not run.
        if run.tripped or (isinstance(result, dict) and _INSTEAD in result):
            return None
        error = result.get("error") if isinstance(result, dict) else None
        nudge = await run._aside(_after_tool, run, tool.name, tool_args, result, error)
        if not nudge:
            return None
        return {**(result if isinstance(result, dict) else {"result": result}), "runguard": nudge}

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> None:
        # A cancelled call is no answer of the tool.
        if isinstance(error, Exception):
            run = self._runs.of(tool_context.invocation_id)
            await run._aside(_after_tool, run, tool.name, tool_args, None, error)

    async def _settle(self, run: Run, context: Any) -> None:
        asked = self._asked.get(context.invocation_id, {}).pop(_asker(context), None)
        if asked is not None:
            await run._aside(asked.settle)


def _after_tool(run: Run, tool: str, args: Any, result: Any, error: Any) -> Optional[str]:
    return run.after_tool(tool, args, result, error=error)


def _asker(context: Any) -> Tuple[Any, ...]:
    return context.agent_name, getattr(context._invocation_context, "branch", None)


def _plain(content: Any) -> Any:
    return content.model_dump(mode="json", exclude_none=True) if hasattr(content, "model_dump") else content


def _said(request: LlmRequest) -> List[Any]:
    """What is sent to the model."""
    config = request.config
    tools = [_plain(tool) for tool in config.tools or ()]
    return [[_plain(content) for content in request.contents], _plain(config.system_instruction), tools]


def _tokens(usage: types.GenerateContentResponseUsageMetadata) -> Tokens:
    given = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
    # Some models count thoughts among the candidates and some beside them; the total has them once.
    output = max(usage.total_token_count - given, 0) if usage.total_token_count else usage.candidates_token_count
    # Not a declared field: ADK puts it on the object for models that write a cache.
    written = getattr(usage, "cache_creation_input_tokens", None)
    return Tokens.of_total(given, output, usage.cached_content_token_count, written)
