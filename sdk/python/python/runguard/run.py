"""`Run`: everything that watches one agent run, behind the few questions an agent loop asks."""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
import uuid
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, TypeVar, Union, cast, overload

from . import _core
from ._arguments import comparable, reader_of
from .alerts import Alerts, AlertsLike
from .detectors import BudgetTracker, LoopDetector, StallDetector
from .errors import InvalidInputError, TripError

Function = TypeVar("Function", bound=Callable[..., Any])


class Run:
    """Watches one agent run. Once it has tripped it stays tripped: every later question raises the same trip at once."""

    def __init__(
        self,
        run_id: Optional[str] = None,
        *,
        repeats: Optional[int] = None,
        max_cycle_len: Optional[int] = None,
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
        self.budget: Optional[BudgetTracker] = _budget(self.run_id, budget, max_usd, max_tokens, url, api_key)
        self.stall: Optional[StallDetector] = StallDetector(stall, url=url, api_key=api_key) if isinstance(stall, str) else stall
        self.alerts: Optional[Alerts] = Alerts.of(alerts)
        # What decides. A part that a service keeps stands in it with its questions.
        self._run = _core.Run(self.run_id, self.max_tool_calls, self.max_model_calls, _kept(self.loop), _kept(self.stall), _kept(self.budget))
        # Someone tells of the model calls: an adapter, or the agent itself. Then hooked clients do not.
        self._is_told = False
        # What hooked clients have told last, so that a caller who tells it too is not counted twice.
        self._hooked: Deque[tuple[int, ...]] = deque(maxlen=64)
        # The trip as it was first raised. Changed in one step that the interpreter cannot divide, so it needs no lock.
        self._state: Dict[str, TripError] = {}

    # What an agent loop asks.

    def before_tool(self, tool: str, args: Any = None, *, agent: Optional[str] = None) -> None:
        """Counts the call. Raises a `TripError` when the tool must not run.

        `agent` is one of several in the run: each has a history of its own, so that the steps of one do not hide another's loop.
        """
        step = self._run.before_tool(tool, args, agent)
        if step is not None:
            self._heed(step)

    def after_tool(self, tool: str, args: Any = None, result: Any = None, *, error: Any = None, agent: Optional[str] = None) -> Optional[str]:
        """Shows what the tool gave. May return a text for the model; a trip is raised by the next `before_…`."""
        if self.stall is None:
            return None
        step = self._run.after_tool(tool, args, result, error, agent)
        nudge = None if step is None else self._heed(step)
        trip = self._run.trip
        if trip is not None:
            self._keep(trip)
        return nudge

    def before_model(self) -> None:
        """Counts a model call. Raises the trip, or a `BudgetExceededError` or `ToolLimitError` when there is nothing left."""
        self._is_told = True
        self._before_model()

    def _before_model(self) -> None:
        step = self._run.before_model()
        if step is not None:
            self._heed(step)

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
        if self.budget is None:
            return
        tokens = (input_tokens or 0, output_tokens or 0, cached_tokens or 0, cache_write_tokens or 0)
        if tokens in self._hooked and not self._is_told:
            # A hooked client has told it already; from here on its caller does.
            self._hooked.remove(tokens)
            self.check()
            return
        self._record_usage(model, *tokens)

    def _record_usage(self, model: str, *tokens: int) -> None:
        step = self._run.record_usage(model, *tokens)
        if step is not None:
            self._heed(step)

    def record_usd(self, usd: float) -> None:
        """Adds dollars spent. Raises once the budget is exceeded."""
        if self.budget is None:
            return
        step = self._run.record_usd(usd)
        if step is not None:
            self._heed(step)

    @overload
    def tool(self, function: Function, *, name: Optional[str] = None) -> Function: ...
    @overload
    def tool(self, function: None = None, *, name: Optional[str] = None) -> Callable[[Function], Function]: ...
    def tool(self, function: Any = None, *, name: Optional[str] = None) -> Any:
        """Wraps a tool, sync or async: asks before each call, shows the result after it.

        Calls are compared by the function's parameters; `self` and what frameworks pass besides (a context, a runtime) are none of them.
        """
        return wrap_tool(function, lambda: self, name) if function is not None else lambda function: wrap_tool(function, lambda: self, name)

    # What a hooked client tells, unless someone else does.

    def _hooked_model_call(self) -> None:
        self.check()
        if not self._is_told:
            self._before_model()

    def _hooked_usage(self, model: str, tokens: tuple[int, int, int, int]) -> None:
        """A budget it breaks is raised by the next question, so that a final answer is not lost."""
        if self._is_told or self.budget is None:
            return
        self._hooked.append(tuple(tokens))
        try:
            self._record_usage(model, *tokens)
        except TripError:
            pass

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
        self._run.new_turn()

    def reset(self) -> None:
        """Forgets the trip and all counts but the money. For an operator, not for the agent."""
        self._run.reset()
        self._state.pop("trip", None)

    def _heed(self, step: Any) -> Optional[str]:
        """Asks the services that have to be asked. Raises the trip, or gives the text for the model."""
        while isinstance(step, _core.Question):
            step = getattr(self, step.part)._service.tell(step)
        if isinstance(step, TripError):
            raise self._keep(step)
        return cast(Optional[str], step)

    def _keep(self, trip: TripError) -> TripError:
        """Keeps the first trip and reports it once. Gives the one to raise: a copy, because a raised error holds on to every frame it passed."""
        trip.run_id = self.run_id
        mine = copy.copy(trip)
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
    run_id: str,
    budget: Optional[BudgetTracker],
    max_usd: Optional[float],
    max_tokens: Optional[int],
    url: Optional[str],
    api_key: Optional[str],
) -> Optional[BudgetTracker]:
    if max_usd is None and max_tokens is None:
        return budget
    if budget is None:
        return BudgetTracker(max_usd, max_tokens, session_id=run_id, url=url, api_key=api_key)
    return budget._child_of_run(run_id, max_usd, max_tokens)


def _kept(part: Any) -> Any:
    """A part of a run as the native half takes it."""
    return getattr(part, "_kept", part)


_current: contextvars.ContextVar[Optional[Run]] = contextvars.ContextVar("runguard_current_run", default=None)


def current_run() -> Optional[Run]:
    """The run that the code being executed belongs to, or None."""
    return _current.get()


def wrap_tool(function: Function, find_run: Callable[[], Optional[Run]], name: Optional[str] = None) -> Function:
    """A tool that asks its run before each call. Without a run it is called straight."""
    name = _tool_name(function, name)
    arguments = reader_of(function)

    def before(run: Run, args: tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
        given = arguments(args, kwargs)
        try:
            run.before_tool(name, given)
        except InvalidInputError:
            # It is not counted yet: what cannot be compared is no reason not to run a tool.
            given = comparable(given)
            run.before_tool(name, given)
        return given

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            run = find_run()
            if run is None:
                return await function(*args, **kwargs)
            given = before(run, args, kwargs)
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
        given = before(run, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            run.after_tool(name, given, error=error)
            raise
        run.after_tool(name, given, result)
        return result

    return cast(Function, guarded)


def _tool_name(function: Callable[..., Any], name: Optional[str]) -> str:
    if not callable(function):
        raise InvalidInputError(f"tool takes the function to wrap, not {function!r}.")
    if name is None:
        name = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", None) or type(function).__name__
        if name == "<lambda>":
            raise InvalidInputError("A lambda has no name, and all lambdas would be one tool. Give it one: tool(…, name='search').")
    if not isinstance(name, str) or not name:
        raise InvalidInputError("name must be the name of the tool, a string that is not empty.")
    return name


@overload
def tool(function: Function, *, name: Optional[str] = None) -> Function: ...
@overload
def tool(function: None = None, *, name: Optional[str] = None) -> Callable[[Function], Function]: ...
def tool(function: Any = None, *, name: Optional[str] = None) -> Any:
    """Decorator for a tool: each call is counted in the run it happens in; outside of a run it is called straight."""
    return wrap_tool(function, current_run, name) if function is not None else lambda function: wrap_tool(function, current_run, name)
