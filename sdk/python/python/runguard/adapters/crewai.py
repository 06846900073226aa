"""CrewAI: hooks for the crews, agents and flows that are started inside a `with` block.

    with guarded_crew(Run(max_usd=5)):
        crew.kickoff()

CrewAI swallows ordinary exceptions of hooks and goes on; only its own `HookAborted` stops a crew without the task being tried again.
The block turns that back into the trip, so its caller gets the trip itself. The hooks follow the block's context, also into CrewAI's
threads, and touch no crew outside of it. A `Run` kept for a whole chat needs `run.new_turn()` at each user message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Optional

from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.llm_events import LLMCallCompletedEvent
from crewai.hooks.dispatch import HookAborted, InterceptionPoint, get_scoped_hooks, scoped_hooks
from crewai.types.usage_metrics import UsageMetrics

from runguard import Run, RunGuardError, UnknownModelError

from ._usage import Tokens, note_usage

# Event handlers are global to the process; this tells whose event one is.
_active_run: ContextVar[Optional[Run]] = ContextVar("runguard_crewai_run", default=None)


@contextmanager
def guarded_crew(run: Run) -> Iterator[Run]:
    """Guards every crew, agent and flow started in the block, and raises the trip if there is one."""
    run.check()
    hooks = _Hooks(run)
    own = {
        InterceptionPoint.PRE_MODEL_CALL: hooks.before_model,
        InterceptionPoint.PRE_TOOL_CALL: hooks.before_tool,
        InterceptionPoint.POST_TOOL_CALL: hooks.after_tool,
    }
    # A scope hides the one around it, so the hooks of that one are taken along.
    scope = {point: [*get_scoped_hooks(point), *([own[point]] if point in own else [])] for point in InterceptionPoint}
    crewai_event_bus.register_handler(LLMCallCompletedEvent, hooks.model_answered)
    token = _active_run.set(run)
    try:
        with scoped_hooks(scope):
            yield run
    except HookAborted as aborted:
        if isinstance(aborted.__cause__, RunGuardError):
            raise aborted.__cause__ from None
        raise
    finally:
        _active_run.reset(token)
        # Usage arrives on CrewAI's event threads; wait for the last of it.
        crewai_event_bus.flush(timeout=5.0)
        crewai_event_bus.off(LLMCallCompletedEvent, hooks.model_answered)


class _Hooks:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.unpriced: UnknownModelError | None = None
        # One object for registering and removing it.
        self.model_answered = self._model_answered

    def before_model(self, context: Any) -> None:
        try:
            if self.unpriced is not None:
                raise self.unpriced
            self.run.before_model()
        except RunGuardError as error:
            raise HookAborted(str(error), source="runguard") from error

    def before_tool(self, context: Any) -> None:
        try:
            self.run.before_tool(context.tool_name, context.tool_input)
        except RunGuardError as error:
            # For a tool this only means "blocked", which the model ignores; the next model call ends the crew.
            raise HookAborted(str(error), source="runguard") from error

    def after_tool(self, context: Any) -> str | None:
        # CrewAI calls this for a blocked tool too.
        if self.run.tripped:
            return None
        nudge = self.run.after_tool(context.tool_name, context.tool_input, context.tool_result)
        return f"{context.tool_result}\n\n{nudge}" if nudge else None

    def _model_answered(self, source: Any, event: Any) -> None:
        if not event.usage or _active_run.get() is not self.run:
            return
        try:
            note_usage(self.run, event.model, _tokens(event.usage))
        except UnknownModelError as error:
            # An event handler cannot stop anything; the next model call does.
            self.unpriced = error


def _tokens(usage: dict[str, Any]) -> Tokens:
    # Bedrock's own counts are handed on as they are; CrewAI knows how to read all others.
    if "inputTokens" in usage:
        names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
        return Tokens(*(usage.get(name) or 0 for name in names))
    used = UsageMetrics.from_provider_dict(usage) or UsageMetrics()
    return Tokens.of_total(used.prompt_tokens, used.completion_tokens, used.cached_prompt_tokens, used.cache_creation_tokens)
