"""Strands Agents: hooks that refuse the tool call and then end the agent's loop.

    agent = Agent(model=model, tools=[search], hooks=[RunGuardHooks(lambda: Run(max_usd=5))])

Every invocation of an agent has a run of its own, which the function makes; without one it is the run around it (`guard(…)`), or a plain
`Run()`. A `Run` given instead is one for all: call its `new_turn()` when the user says something new. Agents that a tool starts and that
have the same hooks, or a `RunGuardHooks()`, belong to the run of the agent that called the tool.

A refused tool call is answered to the model's message (so the conversation stays whole) and the model is not asked again. With
`on_trip="raise"` the caller gets the trip: bare when the first model call is refused, else as `original_exception` of Strands'
`EventLoopException`; `trip_of` finds it. With `on_trip="end"` the agent returns normally and its answer is the guard's message. Hooks
cannot ask for a shorter answer, and of a stream that is broken off only the prompt is billed.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    HookProvider,
    HookRegistry,
)
from strands.types.event_loop import Usage

from runguard import TripError, _core
from runguard.run import ModelCall, Run

from ._runs import OnRepeat, OnTrip, RunLike, Runs, checked, starts, tells
from ._usage import Tokens, begin_async, failed, settle


class RunGuardHooks(HookProvider):
    """Asks a run before each model and tool call of an invocation and tells it what they brought.

    With `on_repeat="tell"` a call whose result the model has already is not run: its result is a sentence that says so.
    """

    def __init__(self, run: RunLike = None, *, on_trip: OnTrip = "raise", on_repeat: OnRepeat = "run") -> None:
        self.run = run if isinstance(run, Run) else None
        self.on_trip = checked(on_trip)
        self._tells = tells(on_repeat)
        self._runs = Runs(run)
        # By the state of their invocation, which is kept with them.
        self._calls: Dict[int, Tuple[Any, ModelCall]] = {}

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        registry.add_callback(BeforeModelCallEvent, self.before_model)
        registry.add_callback(AfterModelCallEvent, self.after_model)
        registry.add_callback(BeforeToolCallEvent, self.before_tool)
        registry.add_callback(AfterToolCallEvent, self.after_tool)
        registry.add_callback(AfterInvocationEvent, self.after_invocation)

    async def before_model(self, event: BeforeModelCallEvent) -> None:
        agent, state = event.agent, event.invocation_state
        config = _config(agent)
        try:
            call = await begin_async(self._runs.of(state), config.get("model_id"), _said(agent), _longest(config))
        except TripError as trip:
            if self.on_trip == "raise":
                raise
            event.cancel = str(trip)
            return
        call._is_sent = True
        self._calls[id(state)] = (state, call)

    async def after_model(self, event: AfterModelCallEvent) -> None:
        # A refused model call comes through here as well.
        call = self._take_call(event.invocation_state)
        if call is None:
            return
        response = event.stop_response
        if response is None:
            await call.run._aside(failed, call, event.exception or RuntimeError())
            return
        usage = response.message.get("metadata", {}).get("usage")
        tokens = _tokens(usage) if usage else Tokens()
        # Strands has zeros where the provider said nothing.
        came = 0 if any(tokens.counts) else _core.answer_size(response.message.get("content"))
        await call.run._aside(settle, call, _config(event.agent).get("model_id"), tokens if any(tokens.counts) else None, came)

    async def after_invocation(self, event: AfterInvocationEvent) -> None:
        call = self._take_call(event.invocation_state)
        if call is not None:
            await call.run._aside(settle, call, None, None)
        self._runs.end(event.invocation_state)

    async def before_tool(self, event: BeforeToolCallEvent) -> None:
        run = self._runs.of(event.invocation_state)
        try:
            await run._aside(run.before_tool, event.tool_use["name"], event.tool_use["input"])
        except TripError as trip:
            # Raising here would cancel parallel tools half-way and leave a tool call without its result in the conversation. The
            # run is tripped now, so the next model call is refused and that ends the loop.
            event.cancel_tool = str(trip)
            return
        instead = run._instead(event.tool_use["name"], event.tool_use["input"]) if self._tells else None
        if instead is not None:
            event.cancel_tool = instead
            return
        # Tools run in tasks of their own: what one starts belongs to the run, and nothing else.
        starts(run, event.tool_use["name"])

    async def after_tool(self, event: AfterToolCallEvent) -> None:
        if event.cancel_message is not None:
            return
        run, result = self._runs.of(event.invocation_state), event.result
        error: Any = event.exception
        if error is None and result.get("status") == "error":
            error = _text(result.get("content", []))
        nudge = await run._aside(_after_tool, run, event.tool_use, result.get("content"), error)
        if nudge:
            event.result = {**result, "content": [*result.get("content", []), {"text": nudge}]}

    def _take_call(self, state: Any) -> Optional[ModelCall]:
        known = self._calls.pop(id(state), None)
        return None if known is None else known[1]


def _after_tool(run: Run, asked: Any, result: Any, error: Any) -> Optional[str]:
    return run.after_tool(asked["name"], asked["input"], result, error=error)


def _config(agent: Any) -> Any:
    config = agent.model.get_config()
    return config if isinstance(config, dict) else {}


def _longest(config: Any) -> Optional[int]:
    params = config.get("params") or {}
    given = (params.get("max_completion_tokens"), params.get("max_tokens"), config.get("max_tokens"))
    return next((tokens for tokens in given if isinstance(tokens, int)), None)


def _said(agent: Any) -> List[Any]:
    """What is sent to the model."""
    return [agent.system_prompt, [message.get("content") for message in agent.messages], agent.tool_registry.get_all_tool_specs()]


def _tokens(usage: Usage) -> Tokens:
    """Strands keeps each provider's own counting; the total tells whether cached tokens are part of the input."""
    given, output = usage["inputTokens"], usage["outputTokens"]
    read, written = usage.get("cacheReadInputTokens", 0), usage.get("cacheWriteInputTokens", 0)
    if given + output == usage["totalTokens"]:
        return Tokens.of_total(given, output, read, written)
    return Tokens(given, output, read, written)


def _text(content: list[Any]) -> str:
    return "\n".join(str(block.get("text", block)) for block in content)
