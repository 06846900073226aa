"""`Run`: everything that watches one agent run, behind the few questions an agent loop asks."""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
import itertools
import re
import uuid
from typing import Any, Callable, Dict, Iterator, Optional, TypeVar, Union, cast

from ._core import fingerprint
from .alerts import Alerts, AlertsLike
from .detectors import BudgetTracker, LoopDetector, StallDetector
from .errors import BudgetExceededError, InvalidInputError, LoopDetectedError, StallDetectedError, ToolLimitError, TripError, UnknownModelError

Function = TypeVar("Function", bound=Callable[..., Any])

# How the fingerprint of its arguments stands behind the name of a tool; the detector shows long names cut.
_FINGERPRINT = re.compile(r"\([0-9a-f]{0,16}\)?$")

# The codes that logs and the service use.
_STALLED = {
    "identical": "stalled_identical",
    "cycle": "stalled_cycle",
    "novelty": "stalled_no_news",
    "same_error": "stalled_same_error",
    "messages": "stalled_messages",
}


class Run:
    """Watches one agent run. Once it has tripped it stays tripped: every later question raises the same trip at once."""

    def __init__(
        self,
        run_id: Optional[str] = None,
        *,
        repeats: int = 3,
        max_cycle_len: int = 4,
        max_tool_calls: Optional[int] = None,
        max_model_calls: Optional[int] = None,
        max_usd: Optional[float] = None,
        max_tokens: Optional[int] = None,
        budget: Optional[BudgetTracker] = None,
        loop: Optional[LoopDetector] = None,
        stall: Optional[Union[StallDetector, str]] = None,
        alerts: Optional[AlertsLike] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
    ) -> None:
        if run_id is not None and (not isinstance(run_id, str) or not run_id):
            raise InvalidInputError("run_id must be a string that is not empty; leave it out to get a new one.")
        self.run_id: str = run_id if run_id is not None else f"run-{uuid.uuid4()}"
        self.max_tool_calls = _ceiling("max_tool_calls", max_tool_calls)
        self.max_model_calls = _ceiling("max_model_calls", max_model_calls)
        self.loop: LoopDetector = loop if loop is not None else LoopDetector(repeats, max_cycle_len, url=url, api_key=api_key)
        self.budget: Optional[BudgetTracker] = _budget(budget, max_usd, max_tokens, url, api_key)
        self.stall: Optional[StallDetector] = StallDetector(stall, url=url, api_key=api_key) if isinstance(stall, str) else stall
        self.alerts: Optional[Alerts] = Alerts.of(alerts)
        # Both are changed in one step that the interpreter cannot divide, so a run needs no lock and survives a fork.
        self._tool_calls: Iterator[int] = itertools.count(1)
        self._model_calls: Iterator[int] = itertools.count(1)
        self._state: Dict[str, TripError] = {}
        self._round = 0

    # What an agent loop asks.

    def before_tool(self, tool: str, args: Any = None) -> None:
        """Counts the call. Raises a `TripError` when the tool must not run."""
        self.check()
        if not isinstance(tool, str) or not tool:
            raise InvalidInputError("tool must be the name of the tool, a string that is not empty.")
        signature = f"{tool}({fingerprint(args)})"
        number = next(self._tool_calls)
        if self.max_tool_calls is not None and number > self.max_tool_calls:
            raise self._trip(
                ToolLimitError(
                    f"The run has made its {self.max_tool_calls} tool calls; '{tool}' would be one more. "
                    "Answer with what there is, or raise max_tool_calls.",
                    tool=tool,
                    limit=self.max_tool_calls,
                    reason="tool_call_ceiling",
                )
            )
        try:
            self.loop.record(self.run_id, signature)
        except LoopDetectedError as error:
            raise self._trip(_named(error)) from None

    def after_tool(self, tool: str, args: Any = None, result: Any = None, *, error: Any = None) -> Optional[str]:
        """Shows what the tool gave. May return a text for the model; a trip is raised by the next `before_…`."""
        if self.stall is None:
            return None
        verdict = self.stall.observe(tool, args, result, error=error, round=self._round or None, session_id=self.run_id)
        if verdict.rung in ("block", "stop"):
            self._trip(
                StallDetectedError(
                    f"The run gets nowhere. {verdict.message} Stop it, or change what it is asked to do.",
                    rule=verdict.rule or "",
                    count=verdict.count,
                    nudge=verdict.nudge,
                    reason=_STALLED.get(verdict.rule or ""),
                )
            )
        return verdict.nudge or None

    def before_model(self) -> None:
        """Counts a model call. Raises the trip, or a `BudgetExceededError` or `ToolLimitError` when there is nothing left."""
        self.check()
        if self.budget is not None:
            spent_out = self.budget.exhausted()
            if spent_out is not None:
                raise self._trip(spent_out)
        number = next(self._model_calls)
        if self.max_model_calls is not None and number > self.max_model_calls:
            raise self._trip(
                ToolLimitError(
                    f"The run has made its {self.max_model_calls} model calls. Answer with what there is, or raise max_model_calls.",
                    tool="model",
                    limit=self.max_model_calls,
                    reason="model_call_ceiling",
                )
            )
        self._round += 1

    def record_usage(
        self,
        model: str,
        input_tokens: Optional[int] = 0,
        output_tokens: Optional[int] = 0,
        cached_tokens: Optional[int] = 0,
        cache_write_tokens: Optional[int] = 0,
    ) -> None:
        """Adds what a model call used; `input_tokens` are those read afresh, without the cached ones (see `read_usage`).

        Raises once the budget is exceeded. A model without a price raises `UnknownModelError` when dollars are limited.
        """
        budget = self.budget
        if budget is None:
            return
        try:
            try:
                budget.record_usage(model, input_tokens, output_tokens, cached_tokens, cache_write_tokens)
            except UnknownModelError:
                if budget.remaining is not None:
                    raise
                # Only tokens are limited, and they need no price.
                budget.record_tokens(sum(tokens or 0 for tokens in (input_tokens, output_tokens, cached_tokens, cache_write_tokens)))
        except BudgetExceededError as error:
            raise self._trip(error) from None

    def record_usd(self, usd: float) -> None:
        """Adds dollars spent. Raises once the budget is exceeded."""
        if self.budget is None:
            return
        try:
            self.budget.record(usd)
        except BudgetExceededError as error:
            raise self._trip(error) from None

    def tool(self, function: Function) -> Function:
        """Wraps a tool, sync or async: asks before each call, shows the result after it."""
        return wrap_tool(function, lambda: self)

    # What became of the run.

    @property
    def trip(self) -> Optional[TripError]:
        """Why the run was stopped, or None."""
        return self._state.get("trip")

    @property
    def tripped(self) -> bool:
        return "trip" in self._state

    @property
    def message(self) -> str:
        """What to tell the model or the user about the trip; empty when there is none."""
        trip = self.trip
        return "" if trip is None else trip.message

    def check(self) -> None:
        """Raises the trip, if there is one."""
        trip = self._state.get("trip")
        if trip is not None:
            raise copy.copy(trip)

    def new_turn(self) -> None:
        """A user message: what follows may repeat what was before. Budget and trip stay."""
        self.loop.reset(self.run_id)
        if self.stall is not None:
            self.stall.user_message(self.run_id)

    def reset(self) -> None:
        """Forgets the trip and all counts but the money. For an operator, not for the agent."""
        self._tool_calls = itertools.count(1)
        self._model_calls = itertools.count(1)
        self.new_turn()
        self._state.pop("trip", None)

    def _trip(self, error: TripError) -> TripError:
        """Keeps the first trip and reports it once. Gives the one to raise: a copy, because a raised error holds on to every frame it passed."""
        error.run_id = error.run_id or self.run_id
        mine = copy.copy(error)
        kept = self._state.setdefault("trip", mine)
        if kept is mine and self.alerts is not None:
            self.alerts.send(copy.copy(kept))
        return copy.copy(kept)

    def __repr__(self) -> str:
        return f"Run({self.run_id!r}, {'tripped: ' + self.message if self.tripped else 'running'})"


def _ceiling(name: str, value: Optional[int]) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(f"{name} must be a whole number from 0 up, not {value!r}; leave it out for no ceiling.")
    return value


def _budget(
    budget: Optional[BudgetTracker], max_usd: Optional[float], max_tokens: Optional[int], url: Optional[str], api_key: Optional[str]
) -> Optional[BudgetTracker]:
    if budget is not None:
        return budget.child(max_usd, max_tokens) if max_usd is not None or max_tokens is not None else budget
    if max_usd is None and max_tokens is None:
        return None
    return BudgetTracker(max_usd, max_tokens, url=url, api_key=api_key)


def _named(error: LoopDetectedError) -> LoopDetectedError:
    """The same trip with the names of the tools, without the fingerprints of their arguments."""
    cycle = tuple(_FINGERPRINT.sub("", name) for name in error.cycle)
    message = error.message
    for name, tool in zip(error.cycle, cycle):
        message = message.replace(name, tool)
    if error.cycle_len == 1 and error.reason == "loop_detected":
        message = message.replace("came", "was called with the same arguments", 1)
    return LoopDetectedError(message, cycle=cycle, repeats=error.repeats, reason=error.reason, run_id=error.run_id)


_current: contextvars.ContextVar[Optional[Run]] = contextvars.ContextVar("runguard_current_run", default=None)


def current_run() -> Optional[Run]:
    """The run that the code being executed belongs to, or None."""
    return _current.get()


def wrap_tool(function: Function, find_run: Callable[[], Optional[Run]]) -> Function:
    """A tool that asks its run before each call. Without a run it is called straight."""
    name = getattr(function, "__name__", type(function).__name__)

    def arguments(args: tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        return {"args": args, **kwargs} if args else kwargs

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            run = find_run()
            if run is None:
                return await function(*args, **kwargs)
            given = arguments(args, kwargs)
            run.before_tool(name, given)
            try:
                result = await function(*args, **kwargs)
            except Exception as error:
                run.after_tool(name, given, error=error)
                raise
            run.after_tool(name, given, result)
            return result

        return cast(Function, guarded_async)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        run = find_run()
        if run is None:
            return function(*args, **kwargs)
        given = arguments(args, kwargs)
        run.before_tool(name, given)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            run.after_tool(name, given, error=error)
            raise
        run.after_tool(name, given, result)
        return result

    return cast(Function, guarded)


def tool(function: Function) -> Function:
    """Decorator for a tool: each call is counted in the run it happens in; outside of a run it is called straight."""
    return wrap_tool(function, current_run)
