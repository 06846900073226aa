"""Strands Agents: hooks that refuse the tool call and then end the agent's loop.

    agent = Agent(model=model, tools=[search], hooks=[RunGuardHooks(Run(max_usd=5))])

A refused tool call is answered to the model's message (so the conversation stays whole) and the model is not asked again. With
`on_trip="raise"` the caller gets the trip: bare when the first model call is refused, else as `original_exception` of Strands'
`EventLoopException`. With `on_trip="end"` the agent returns normally and its answer is the guard's message. `run.trip` has the trip
in both cases. A `Run` kept for a whole chat needs `run.new_turn()` at each user message.
"""

from __future__ import annotations

from typing import Any, Literal

from strands.hooks import (
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    HookProvider,
    HookRegistry,
)
from strands.types.event_loop import Usage

from runguard import Run, TripError

from ._usage import Tokens, note_usage


class RunGuardHooks(HookProvider):
    """Asks `run` before each model and tool call and tells it what they brought."""

    def __init__(self, run: Run, *, on_trip: Literal["raise", "end"] = "raise") -> None:
        self.run = run
        self.on_trip = on_trip

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        registry.add_callback(BeforeModelCallEvent, self.before_model)
        registry.add_callback(AfterModelCallEvent, self.after_model)
        registry.add_callback(BeforeToolCallEvent, self.before_tool)
        registry.add_callback(AfterToolCallEvent, self.after_tool)

    def before_model(self, event: BeforeModelCallEvent) -> None:
        try:
            self.run.before_model()
        except TripError as trip:
            if self.on_trip == "raise":
                raise
            event.cancel = str(trip)

    def after_model(self, event: AfterModelCallEvent) -> None:
        # A refused model call comes through here as well, without usage.
        response = event.stop_response
        usage = response.message.get("metadata", {}).get("usage") if response else None
        if usage:
            note_usage(self.run, event.agent.model.get_config().get("model_id"), _tokens(usage))

    def before_tool(self, event: BeforeToolCallEvent) -> None:
        try:
            self.run.before_tool(event.tool_use["name"], event.tool_use["input"])
        except TripError as trip:
            # Raising here would cancel parallel tools half-way and leave a tool call without its result in the conversation. The
            # run is tripped now, so the next model call is refused and that ends the loop.
            event.cancel_tool = str(trip)

    def after_tool(self, event: AfterToolCallEvent) -> None:
        if event.cancel_message is not None:
            return
        result = event.result
        error: Any = event.exception
        if error is None and result.get("status") == "error":
            error = _text(result.get("content", []))
        nudge = self.run.after_tool(event.tool_use["name"], event.tool_use["input"], result.get("content"), error=error)
        if nudge:
            event.result = {**result, "content": [*result.get("content", []), {"text": nudge}]}


def _tokens(usage: Usage) -> Tokens:
    """Strands keeps each provider's own counting; the total tells whether cached tokens are part of the input."""
    given, output = usage["inputTokens"], usage["outputTokens"]
    read, written = usage.get("cacheReadInputTokens", 0), usage.get("cacheWriteInputTokens", 0)
    if given + output == usage["totalTokens"]:
        return Tokens.of_total(given, output, read, written)
    return Tokens(given, output, read, written)


def _text(content: list[Any]) -> str:
    return "\n".join(str(block.get("text", block)) for block in content)
