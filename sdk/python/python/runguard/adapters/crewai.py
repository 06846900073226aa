"""CrewAI: hooks for the crews, agents and flows that are started inside a `with` block.

    with guarded_crew(Run(max_usd=5)):
        crew.kickoff()

The block is the run: a kickoff in a block of its own has a run of its own. Without a run it is the one around the block (`guard(…)`), or a
plain `Run()`. One `Run` for several blocks needs `run.new_turn()` at each user message.

CrewAI swallows ordinary exceptions of hooks and goes on; only its own `HookAborted` stops a crew without the task being tried again.
The block turns that back into the trip, so its caller gets the trip itself; with `on_trip="end"` the block ends without an error, and
`run.message` says why. The hooks follow the block's context, also into CrewAI's threads, and touch no crew outside of it. They cannot ask
for a shorter answer. In an async crew a model call that finds what is left set aside by others is refused: a hook cannot wait there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Deque, Dict, Optional, Tuple

from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.llm_events import LLMCallCompletedEvent, LLMCallFailedEvent
from crewai.hooks.dispatch import HookAborted, InterceptionPoint, get_scoped_hooks, scoped_hooks
from crewai.types.usage_metrics import UsageMetrics

from runguard import RunGuardError, TripError, _core
from runguard.run import ModelCall, Run, _lets_run

from ._runs import OnRepeat, OnTrip, RunLike, Runs, checked, tells, within
from ._usage import Tokens, begin, failed, is_in_loop, settle

# The blocks that are open. Event handlers are global to the process; this tells whose event one is.
_open: ContextVar[Tuple[_Hooks, ...]] = ContextVar("runguard_crewai_blocks", default=())
# CrewAI tells of answers in threads of its own, a little later.
_LATE_SECONDS = 5.0


@contextmanager
def guarded_crew(run: RunLike = None, *, on_trip: OnTrip = "raise", on_repeat: OnRepeat = "run") -> Iterator[Run]:
    """Guards every crew, agent and flow started in the block, and raises the trip if there is one.

    With `on_repeat="tell"` a call whose result the model has already is not run: its result is a sentence that says so.
    """
    checked(on_trip)
    tells_repeats = tells(on_repeat)
    run = Runs(run).new()
    if on_trip == "raise":
        run.check()
    if any(hooks.run is run for hooks in _open.get()):
        # A block around this one counts already.
        yield run
        return
    hooks = _Hooks(run, tells_repeats)
    own = {
        InterceptionPoint.PRE_MODEL_CALL: hooks.before_model,
        InterceptionPoint.PRE_TOOL_CALL: hooks.before_tool,
        InterceptionPoint.POST_TOOL_CALL: hooks.after_tool,
    }
    # A scope hides the one around it, so the hooks of that one are taken along.
    scope = {point: [*get_scoped_hooks(point), *([own[point]] if point in own else [])] for point in InterceptionPoint}
    crewai_event_bus.register_handler(LLMCallCompletedEvent, hooks.answered)
    crewai_event_bus.register_handler(LLMCallFailedEvent, hooks.failed)
    token = _open.set((*_open.get(), hooks))
    try:
        with scoped_hooks(scope), within(run):
            yield run
    except HookAborted as aborted:
        cause = aborted.__cause__
        if not isinstance(cause, RunGuardError):
            raise
        if on_trip == "raise" or not isinstance(cause, TripError):
            raise cause from None
    finally:
        _open.reset(token)
        crewai_event_bus.flush(timeout=_LATE_SECONDS)
        crewai_event_bus.off(LLMCallCompletedEvent, hooks.answered)
        crewai_event_bus.off(LLMCallFailedEvent, hooks.failed)
        hooks.end()


class _Hooks:
    def __init__(self, run: Run, tells_repeats: bool) -> None:
        self.run, self._tells = run, tells_repeats
        # Sentences in place of results, by the input of their call, which is one object before and after it.
        self._told: Dict[int, str] = {}
        self._lock = threading.Lock()
        # Events do not say which call they are of; each ends the one that has been under way for longest.
        self._calls: Deque[ModelCall] = deque()
        # One object each for registering and removing it.
        self.answered, self.failed = self._answered, self._failed

    def before_model(self, context: Any) -> None:
        self._hear()
        llm = context.llm
        longest = next((tokens for tokens in (getattr(llm, name, None) for name in _LONGEST) if isinstance(tokens, int)), None)
        tools = getattr(context.executor, "original_tools", None) or getattr(context.executor, "tools", None) or ()
        prompt = [context.messages, [[getattr(tool, "name", ""), getattr(tool, "description", "")] for tool in tools]]
        try:
            call = begin(self.run, getattr(llm, "model", llm), prompt, longest, can_wait=not is_in_loop())
        except RunGuardError as error:
            raise HookAborted(str(error), source="runguard") from error
        call._is_sent = True
        with self._lock:
            self._calls.append(call)

    def _hear(self) -> None:
        """What the last answer used may still be on its way."""
        if self._calls:
            crewai_event_bus.flush(timeout=_LATE_SECONDS)

    def before_tool(self, context: Any) -> None:
        self._hear()
        try:
            self.run.before_tool(context.tool_name, context.tool_input)
        except RunGuardError as error:
            # For a tool this only means "blocked", which the model ignores; the next model call ends the crew.
            raise HookAborted(str(error), source="runguard") from error
        instead = self.run._instead(context.tool_name, context.tool_input) if self._tells else None
        if instead is not None:
            self._told[id(context.tool_input)] = instead
            raise HookAborted(instead, source="runguard")
        _lets_run(self.run, context.tool_name)

    def after_tool(self, context: Any) -> str | None:
        told = self._told.pop(id(context.tool_input), None)
        if told is not None:
            return told
        # CrewAI calls this for a blocked tool too.
        if self.run.tripped:
            return None
        nudge = self.run.after_tool(context.tool_name, context.tool_input, context.tool_result)
        return f"{context.tool_result}\n\n{nudge}" if nudge else None

    def end(self) -> None:
        while self._calls:
            settle(self._calls.popleft(), None, None)

    def _answered(self, source: Any, event: Any) -> None:
        call = self._take_call()
        if call is not None:
            tokens = _tokens(event.usage) if event.usage else Tokens()
            settle(call, event.model, tokens if any(tokens.counts) else None, 0 if any(tokens.counts) else _core.answer_size(event.response))

    def _failed(self, source: Any, event: Any) -> None:
        failed(self._take_call(), RuntimeError(event.error))

    def _take_call(self) -> Optional[ModelCall]:
        with self._lock:
            return self._calls.popleft() if self._calls and self in _open.get() else None


_LONGEST = ("max_completion_tokens", "max_tokens")


def _tokens(usage: dict[str, Any]) -> Tokens:
    # Bedrock's own counts are handed on as they are; CrewAI knows how to read all others.
    if "inputTokens" in usage:
        names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
        return Tokens.of_counts(*(usage.get(name) or 0 for name in names))
    used = UsageMetrics.from_provider_dict(usage) or UsageMetrics()
    return Tokens.of_total(used.prompt_tokens, used.completion_tokens, used.cached_prompt_tokens, used.cache_creation_tokens)
