"""Guards the OpenAI Agents SDK.

    from agents import Runner
    from runguard import Run
    from runguard.adapters.openai_agents import RunGuardHooks

    await Runner.run(agent, "…", hooks=RunGuardHooks(Run(repeats=3, max_usd=1.00)))

The calls of an answer are counted when the answer is there, before the first of them runs. A refused call raises the `TripError`
itself out of `run`, `run_sync` or `stream_events`; raised later, in `on_tool_start`, the SDK would wrap it in a `UserError`, and the
other calls of the answer would already be running. Handoffs count too: two agents that hand over to each other for ever are a loop.
Call `run.new_turn()` when the user says something new.

A budget needs the usage of every answer; streamed chat completions report it only with `ModelSettings(include_usage=True)`.
To give nudges to the model as well: `run_config=RunConfig(call_model_input_filter=hooks.add_nudges)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional

from agents import Agent, ModelResponse, RunContextWrapper, RunHooks, Tool
from agents.models import get_default_model
from agents.run import CallModelData, ModelInputData
from agents.tool_context import ToolContext

from ._client import parse_arguments
from ._usage import Tokens, note_usage
from .openai import response_call

if TYPE_CHECKING:
    from runguard import Run

__all__ = ["RunGuardHooks"]


class RunGuardHooks(RunHooks[Any]):
    """Puts a run around the model calls and tool calls of `Runner.run`."""

    def __init__(self, run: Run, *, model: Optional[str] = None) -> None:
        """`model` is the name to price by, for when the one used is not the agent's own (a `RunConfig` can replace it)."""
        self.run = run
        self._model = model
        self._nudges: Dict[str, str] = {}

    async def on_llm_start(self, context: RunContextWrapper[Any], agent: Agent[Any], *args: Any) -> None:
        self.run.before_model()

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        usage, details = response.usage, response.usage.input_tokens_details
        written = getattr(details, "cache_write_tokens", 0)
        note_usage(
            self.run,
            self._model or _name_of(agent),
            Tokens.of_total(usage.input_tokens, usage.output_tokens, details.cached_tokens, written),
        )
        for item in response.output:
            for call in response_call(item):
                self.run.before_tool(call.tool, call.args)

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Any, tool: Tool) -> None:
        # Counted already; this is for a run that another agent sharing it has tripped meanwhile.
        self.run.check()

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Any, tool: Tool, result: object) -> None:
        if not isinstance(context, ToolContext):
            return
        nudge = self.run.after_tool(context.tool_name, parse_arguments(context.tool_arguments), str(result))
        if nudge:
            self._nudges[context.tool_call_id] = nudge

    def add_nudges(self, data: CallModelData[Any]) -> ModelInputData:
        """For `RunConfig.call_model_input_filter`: each nudge stands behind the result of its call."""
        items = [self._nudged(item) for item in data.model_data.input]
        return ModelInputData(input=items, instructions=data.model_data.instructions)

    def _nudged(self, item: Any) -> Any:
        nudge = self._nudges.get(item.get("call_id", "")) if item.get("type") == "function_call_output" else None
        if nudge is None:
            return item
        output = item["output"]
        return {**item, "output": f"{output}\n\n{nudge}" if isinstance(output, str) else [*output, {"type": "input_text", "text": nudge}]}


def _name_of(agent: Agent[Any]) -> str:
    if agent.model is None:
        return get_default_model()
    return agent.model if isinstance(agent.model, str) else str(getattr(agent.model, "model", "unknown"))
