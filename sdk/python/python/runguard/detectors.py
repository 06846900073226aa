"""The detectors, in this process; with `url=` the same objects, asking a RunGuard service.

The methods of the native classes are called directly. What asks a service is a subclass, chosen when the object is made, so that objects
in this process pay nothing for the choice.
"""

from __future__ import annotations

import copy
import functools
import time

from . import _core
from ._typing import cast
from .errors import InvalidInputError, TripError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from decimal import Decimal
    from typing import Any, Awaitable, Callable, Dict, Iterable, Mapping, Optional, Sequence, Set, Tuple, Type, TypedDict, TypeVar, Union

    from .alerts import Alerts, AlertsLike

    Dollars = Union[float, Decimal]
    Function = TypeVar("Function", bound=Callable[..., Any])
    Result = TypeVar("Result")

    class _NamedScope(TypedDict):
        # What there is a budget for each of: "team", "user", or "model", "tenant", "key", "run", whose names the service knows.
        per: str

    class Scope(_NamedScope, total=False):
        """A budget that many share, kept by a service: of a team, a user, a model. Its limits hold beside those of the service's settings."""

        name: str
        # "day", "week" or "month" of the service's calendar; for good if left out.
        period: str
        max_usd: Dollars
        max_credits: float
        max_tokens: int
        cap: int

__all__ = ["BudgetTracker", "CircuitBreaker", "LoopDetector", "RecipeCache", "StallDetector", "ToolExecutionTracker"]


class _Told:
    """Trips that were told, by what they are about: a session, a step, a circuit. What passes again may be told again."""

    # Beyond these all are forgotten, and the next trip of each is told once more.
    _MOST = 10_000

    def __init__(self, alerts: Alerts) -> None:
        self.alerts = alerts
        self._told: Set[Any] = set()

    def watch(self, about: Any, call: Callable[[], Result]) -> Result:
        try:
            result = call()
        except TripError as trip:
            if about not in self._told:
                if len(self._told) >= self._MOST:
                    self._told.clear()
                self._told.add(about)
                self.alerts.send(copy.copy(trip))
            raise
        self._told.discard(about)
        return result


_telling_kinds: Dict[Type[Any], Type[Any]] = {}


def _telling(kind: Type[Any], methods: Tuple[str, ...]) -> Type[Any]:
    """The same kind of object, whose trips are told to people. A class of its own, so that others pay nothing for it."""
    made = _telling_kinds.get(kind)
    if made is not None:
        return made

    def told(name: str) -> Callable[..., Any]:
        method = getattr(kind, name)

        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            about = (kwargs.get("session_id"), kwargs.get("step_id")) if kwargs else args[:-1] if name == "record" else ()
            return self._told.watch(about, lambda: method(self, *args, **kwargs))

        return call

    members = {"__module__": kind.__module__, **{name: told(name) for name in methods}}
    return _telling_kinds.setdefault(kind, type(kind.__name__, (kind,), members))


def _with_alerts(made: Any, alerts: Optional[AlertsLike], *methods: str) -> Any:
    target = alerts_of(alerts)
    if target is not None:
        made.__class__ = _telling(type(made), methods)
        made._told = _Told(target)
    return made


def alerts_of(given: Optional[AlertsLike]) -> Optional[Alerts]:
    """Imported only where somebody is told."""
    if given is None:
        return None
    from .alerts import Alerts

    return Alerts.of(given)


class LoopDetector(_core.LoopDetector):
    """Raises `LoopDetectedError` when the newest calls are `repeats` (3) copies of one pattern of up to `max_cycle_len` (4) calls.

    `max_calls` within `window_seconds` is a plain ceiling per key. With `url` a service counts, and what is not given is as set there;
    if it cannot be asked, calls pass unless `fail_open=False`. `alerts` tells people of a loop, once (see `Alerts`).
    """

    def __new__(
        cls,
        repeats: Optional[int] = None,
        max_cycle_len: Optional[int] = None,
        window_seconds: Optional[float] = None,
        max_calls: Optional[int] = None,
        *,
        alerts: Optional[AlertsLike] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = True,
    ) -> LoopDetector:
        if url is None:
            return cast(LoopDetector, _with_alerts(super().__new__(cls, repeats, max_cycle_len, window_seconds, max_calls), alerts, "record"))
        from .remote import RemoteLoopDetector

        made = RemoteLoopDetector(
            repeats, max_cycle_len, window_seconds, max_calls, url=url, api_key=api_key, timeout=timeout, fail_open=fail_open
        )
        return cast(LoopDetector, _with_alerts(made, alerts, "record"))


class StallDetector(_core.StallDetector):
    """Says when calls go on but bring nothing new. Never raises a trip: the verdict says what to do.

    Presets: "chatbot", "coding", "browser", "research"; any threshold can be given by name. With `url` the service's own thresholds hold.
    """

    def __new__(
        cls,
        preset: str = "coding",
        *,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = True,
        **thresholds: Any,
    ) -> StallDetector:
        if url is None:
            return super().__new__(cls, preset, **thresholds)
        from .remote import RemoteStallDetector

        return RemoteStallDetector(preset, url=url, api_key=api_key, timeout=timeout, fail_open=fail_open, **thresholds)


def _no_scopes(scopes: Optional[Sequence[Scope]]) -> None:
    if scopes:
        raise InvalidInputError("Scopes are kept by a service: name its url. In one process, let several runs draw on one budget instead: budget=…")


class BudgetTracker(_core.BudgetTracker):
    """Raises `BudgetExceededError` once more is spent than `max_usd` or `max_tokens`, or a step is called more often than `cap`.

    Money is counted in whole billionths of a dollar. `prices` are your own, in dollars for a million tokens: `{"my-model": {"input": 3,
    "output": 15}}`. `unknown_model` says what a model without a price costs: "error" (default), "free", or a price. With `url` a service keeps the books under `session_id`; if it cannot be asked,
    a `ServiceError` is raised unless `fail_open=True`; `scopes` are budgets there that it draws on too, with many others: `[{"per": "team", "name": "search",
    "period": "day", "max_usd": 5}]`. `alerts` tells people that it is used up, once.
    """

    def __new__(
        cls,
        max_usd: Optional[Dollars] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        *,
        parent: Optional[BudgetTracker] = None,
        scopes: Optional[Sequence[Scope]] = None,
        prices: Optional[Mapping[str, Any]] = None,
        unknown_model: Union[str, Mapping[str, Any], None] = None,
        session_id: Optional[str] = None,
        alerts: Optional[AlertsLike] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = False,
    ) -> BudgetTracker:
        telling = ("record", "record_tokens", "record_usage", "reserve")
        if url is None:
            _no_scopes(scopes)
            own = super().__new__(cls, max_usd, max_tokens, cap, parent=parent, prices=prices, unknown_model=unknown_model)
            return cast(BudgetTracker, _with_alerts(own, alerts, *telling))
        if prices is not None or unknown_model is not None:
            raise InvalidInputError("With a url the service's prices hold; set prices and unknown_models there.")
        from .remote import RemoteBudgetTracker

        made = RemoteBudgetTracker(
            max_usd, max_tokens, cap, scopes=scopes, session_id=session_id, url=url, api_key=api_key, timeout=timeout, fail_open=fail_open
        )
        return cast(BudgetTracker, _with_alerts(made, alerts, *telling))

    def child(
        self,
        max_usd: Optional[Dollars] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        *,
        scopes: Optional[Sequence[Scope]] = None,
    ) -> BudgetTracker:
        """A budget that draws on what remains of this one, and on its scopes."""
        _no_scopes(scopes)
        return BudgetTracker(max_usd, max_tokens, cap, parent=self)

    def _child_of_run(
        self, run_id: str, max_usd: Optional[Dollars], max_tokens: Optional[int], scopes: Optional[Sequence[Scope]]
    ) -> BudgetTracker:
        return self.child(max_usd, max_tokens, scopes=scopes)


class CircuitBreaker(_core.CircuitBreaker):
    """Refuses calls to something that fails: `failure_threshold` (10) failures in the window of `failure_window_seconds` (60) open it, after `recovery_seconds` (45) one call tests it.

    Use `call(fn, …)`, `await acall(fn, …)`, or the object as a decorator; or `check()` before and `record(ok)` after. With `url` one
    circuit is shared by all who use the same name, and the service's thresholds hold. `alerts` tells people that it is open, once until
    a call passes again.
    """

    def __new__(
        cls,
        name: str = "default",
        failure_threshold: Optional[int] = None,
        failure_window_seconds: Optional[float] = None,
        recovery_seconds: Optional[float] = None,
        *,
        alerts: Optional[AlertsLike] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = True,
        **more: Any,
    ) -> CircuitBreaker:
        if url is None:
            own = super().__new__(cls, name, failure_threshold, failure_window_seconds, recovery_seconds, **more)
            return cast(CircuitBreaker, _with_alerts(own, alerts, "check"))
        from .remote import RemoteCircuitBreaker

        made = RemoteCircuitBreaker(name, url=url, api_key=api_key, timeout=timeout, fail_open=fail_open)
        return cast(CircuitBreaker, _with_alerts(made, alerts, "check"))

    def call(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
        """Calls `fn` unless the circuit is open. An exception counts as a failure and is passed on."""
        permit, started = self.check(), time.monotonic()
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            self._failed(error, permit, started)
            raise
        self.record(True, _millis_since(started), permit=permit)
        return result

    async def acall(self, fn: Callable[..., Awaitable[Result]], /, *args: Any, **kwargs: Any) -> Result:
        """`call` for a coroutine function. A call that is cancelled counts as nothing."""
        permit, started = self.check(), time.monotonic()
        try:
            result = await fn(*args, **kwargs)
        except Exception as error:
            self._failed(error, permit, started)
            raise
        self.record(True, _millis_since(started), permit=permit)
        return result

    def __call__(self, function: Function) -> Function:
        import inspect

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def broken_async(*args: Any, **kwargs: Any) -> Any:
                return await self.acall(function, *args, **kwargs)

            return cast("Function", broken_async)

        @functools.wraps(function)
        def broken(*args: Any, **kwargs: Any) -> Any:
            return self.call(function, *args, **kwargs)

        return cast("Function", broken)

    def _failed(self, error: Exception, permit: Any, started: float) -> None:
        # A guard inside of the call stopped it: that says nothing about the endpoint.
        if not isinstance(error, TripError):
            self.record(False, _millis_since(started), permit=permit)


def _millis_since(started: float) -> float:
    return (time.monotonic() - started) * 1000


class ToolExecutionTracker(_core.ToolExecutionTracker):
    """Tool calls of one turn: says when a tool ran often enough, or ran with the same arguments, or was asked nearly the same.

    `limits` add to the built-in ones, `default_limit` (3) is that of all others; `search_tools` replace the built-in ones, and `threshold`
    (0.75) says how alike two queries must be. `plain_ratio` compares their letters alone, as the design does: numbers and names may then
    differ.
    """

    def __new__(
        cls,
        limits: Optional[Mapping[str, int]] = None,
        default_limit: Optional[int] = None,
        search_tools: Optional[Iterable[str]] = None,
        threshold: Optional[float] = None,
        *,
        plain_ratio: bool = False,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = True,
    ) -> ToolExecutionTracker:
        given = None if limits is None else dict(limits)
        tools = None if search_tools is None else list(search_tools)
        if url is None:
            return super().__new__(cls, given, default_limit, tools, threshold, plain_ratio)
        from .remote import RemoteToolExecutionTracker

        return RemoteToolExecutionTracker(url=url, api_key=api_key, timeout=timeout, fail_open=fail_open)

    def should_skip_execution(self, tool: str, args: Any = None) -> Optional[_core.Skip]:
        """Another name of `should_skip`."""
        return self.should_skip(tool, args)

    def record_execution(self, tool: str, args: Any = None, result: Any = None, error: Any = None) -> None:
        """Another name of `record`."""
        self.record(tool, args, result, error)


class RecipeCache(_core.RecipeCache):
    """Results of a recipe's actions by step, action and arguments, so that a step that is run again does not act again.

    Kept in this process: results are your objects, which no service could hold.
    """
