"""Google ADK: a runner plugin that refuses the tool call and then ends the invocation.

    app = App(name="app", root_agent=agent, plugins=[RunGuardPlugin(Run(max_usd=5))])
    runner = Runner(app=app, session_service=sessions)

A refused tool call gets an error as its response (so the session stays whole) and the model is not asked again. With
`on_trip="raise"` the caller of the runner gets ADK's `RuntimeError` with the trip as its `__cause__`. With `on_trip="end"` the
invocation ends normally and the agent's answer is the guard's message. `run.trip` has the trip in both cases. The plugin sees all agents
of the runner. A `Run` kept for a whole chat needs `run.new_turn()` at each user message.
"""

from __future__ import annotations

from typing import Any, Literal, Optional

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from runguard import Run, TripError

from ._usage import Tokens, note_usage


class RunGuardPlugin(BasePlugin):
    """Asks `run` before each model and tool call and tells it what they brought."""

    def __init__(self, run: Run, *, on_trip: Literal["raise", "end"] = "raise", name: str = "runguard") -> None:
        super().__init__(name=name)
        self.run = run
        self.on_trip = on_trip

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> Optional[LlmResponse]:
        try:
            self.run.before_model()
        except TripError as trip:
            if self.on_trip == "raise":
                raise
            return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=str(trip))]))
        return None

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        # The parts of a streamed answer repeat the usage so far; the whole answer has all of it.
        if llm_response.usage_metadata is not None and not llm_response.partial:
            note_usage(self.run, llm_response.model_version, _tokens(llm_response.usage_metadata))

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> Optional[dict[str, Any]]:
        try:
            self.run.before_tool(tool.name, tool_args)
        except TripError as trip:
            # Raising here would leave a call without its response in the session. The run is tripped now, so the next model call is
            # refused and that ends the invocation.
            return {"error": str(trip)}
        return None

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> Optional[dict[str, Any]]:
        # ADK calls this for a refused tool too.
        if self.run.tripped:
            return None
        error = result.get("error") if isinstance(result, dict) else None
        nudge = self.run.after_tool(tool.name, tool_args, result, error=error)
        if not nudge:
            return None
        return {**(result if isinstance(result, dict) else {"result": result}), "runguard": nudge}

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> None:
        # A cancelled call is no answer of the tool.
        if isinstance(error, Exception):
            self.run.after_tool(tool.name, tool_args, error=error)


def _tokens(usage: types.GenerateContentResponseUsageMetadata) -> Tokens:
    given = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
    # Some models count thoughts among the candidates and some beside them; the total has them once.
    output = max(usage.total_token_count - given, 0) if usage.total_token_count else usage.candidates_token_count
    # Not a declared field: ADK puts it on the object for models that write a cache.
    written = getattr(usage, "cache_creation_input_tokens", None)
    return Tokens.of_total(given, output, usage.cached_content_token_count, written)
