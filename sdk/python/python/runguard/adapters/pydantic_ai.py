"""Guards pydantic-ai agents (2.x).

    from pydantic_ai import Agent
    from runguard import Run
    from runguard.adapters.pydantic_ai import RunGuard

    agent = Agent("openai:gpt-4o-mini", tools=[…])
    await agent.run("…", capabilities=[RunGuard(Run(repeats=3, max_usd=1.00))])

The calls of an answer are counted when the answer is there, before the first of them runs: pydantic-ai runs them side by side, and
calls whose arguments are refused by validation never come to a tool hook, though a model can repeat them for ever. The `TripError`
comes out of `run`, `run_sync`, `run_stream` and `iter` as it is. Call `run.new_turn()` when the user says something new.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic_ai import RunContext, ToolDefinition, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, SkipToolExecution
from pydantic_ai.messages import ModelResponse, ToolCallPart

from ._client import parse_arguments
from ._usage import Tokens, note_usage

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

    from runguard import Run

__all__ = ["RunGuard"]


@dataclass
class RunGuard(AbstractCapability[Any]):
    """Puts a run around the model requests and tool calls of an agent."""

    run: Run

    async def before_model_request(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> ModelRequestContext:
        self.run.before_model()
        return request_context

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        usage = response.usage
        # pydantic-ai counts cached tokens inside the input, whatever the provider does.
        tokens = Tokens.of_total(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        note_usage(self.run, response.model_name, tokens)
        for part in response.parts:
            if isinstance(part, ToolCallPart):
                self.run.before_tool(part.tool_name, _arguments(part))
        return response

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        # Counted already; this is for a run that another agent sharing it has tripped meanwhile.
        self.run.check()
        try:
            result = await handler(args)
        except (ApprovalRequired, CallDeferred, SkipToolExecution):
            # The tool has not run yet.
            raise
        except Exception as error:
            self.run.after_tool(call.tool_name, _arguments(call), error=str(error))
            raise
        shown = result.return_value if isinstance(result, ToolReturn) else result
        nudge = self.run.after_tool(call.tool_name, _arguments(call), shown if isinstance(shown, str) else repr(shown))
        return _nudged(result, nudge) if nudge else result


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
