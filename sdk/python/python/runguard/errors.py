"""One exception class per kind of trip, and one per kind of mistake."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple, Union

    Number = Union[int, float]


class RunGuardError(Exception):
    """Everything RunGuard raises. `str(error)` says what happened and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        # KeyError, a base of one of the classes below, would print the message in quotes.
        return self.message

    def __reduce__(self) -> Any:
        # Errors cross process borders (multiprocessing, Celery), so they are rebuilt without their own constructor.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type, args: Tuple[Any, ...], state: dict[str, Any]) -> RunGuardError:
    error: RunGuardError = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class TripError(RunGuardError):
    """A guard stopped the run. `reason` is the code that logs and the service use as well."""

    default_reason = "stopped"

    def __init__(self, message: str, *, reason: Optional[str] = None, run_id: Optional[str] = None) -> None:
        super().__init__(message)
        self.reason: str = reason or self.default_reason
        self.run_id: Optional[str] = run_id


class LoopDetectedError(TripError):
    """The newest calls are copies of one short pattern, or one key reached its ceiling of calls."""

    default_reason = "loop_detected"

    def __init__(
        self,
        message: str,
        *,
        cycle: Tuple[str, ...] = (),
        repeats: int = 0,
        reason: Optional[str] = None,
        run_id: Optional[str] = None,
    ) -> None:
        super().__init__(message, reason=reason, run_id=run_id)
        self.cycle: Tuple[str, ...] = tuple(cycle)
        self.pattern: str = " → ".join(self.cycle)
        self.repeats: int = repeats
        self.cycle_len: int = len(self.cycle)


class BudgetExceededError(TripError):
    """More was spent than the limit allows. `unit` says what `spent` and `limit` count."""

    default_reason = "budget_exceeded"

    def __init__(
        self,
        message: str,
        *,
        spent: Number,
        limit: Number,
        unit: str = "usd",
        reason: Optional[str] = None,
        run_id: Optional[str] = None,
    ) -> None:
        super().__init__(message, reason=reason, run_id=run_id)
        self.spent: Number = spent
        self.limit: Number = limit
        self.unit: str = unit


class StallDetectedError(TripError):
    """Calls go on but bring nothing new. `nudge` is a text that can be given to the model."""

    default_reason = "stall_detected"

    def __init__(
        self,
        message: str,
        *,
        rule: str,
        count: int,
        nudge: str = "",
        reason: Optional[str] = None,
        run_id: Optional[str] = None,
    ) -> None:
        super().__init__(message, reason=reason, run_id=run_id)
        self.rule: str = rule
        self.count: int = count
        self.nudge: str = nudge


class ToolLimitError(TripError):
    """The run used up its calls of a tool, of all tools, or of the model."""

    default_reason = "tool_limit_reached"

    def __init__(
        self,
        message: str,
        *,
        tool: str,
        limit: int,
        reason: Optional[str] = None,
        run_id: Optional[str] = None,
    ) -> None:
        super().__init__(message, reason=reason, run_id=run_id)
        self.tool: str = tool
        self.limit: int = limit


class TimeLimitError(TripError):
    """The run took as long as it may. `limit` is in seconds."""

    default_reason = "time_limit"

    def __init__(self, message: str, *, limit: float, reason: Optional[str] = None, run_id: Optional[str] = None) -> None:
        super().__init__(message, reason=reason, run_id=run_id)
        self.limit: float = limit


class CircuitOpenError(TripError):
    """The endpoint failed too often lately; calls to it are refused until it has had time to recover."""

    default_reason = "circuit_open"

    def __init__(
        self,
        message: str,
        *,
        endpoint: str,
        retry_after_seconds: Optional[float] = None,
        reason: Optional[str] = None,
        run_id: Optional[str] = None,
    ) -> None:
        super().__init__(message, reason=reason, run_id=run_id)
        self.endpoint: str = endpoint
        self.retry_after_seconds: Optional[float] = retry_after_seconds


class InvalidInputError(RunGuardError, ValueError):
    """An argument cannot be used. Nothing was counted."""


class UnknownModelError(RunGuardError, KeyError):
    """The price table does not know the model."""

    def __init__(self, message: str, *, model: str) -> None:
        super().__init__(message)
        self.model: str = model


class ServiceError(RunGuardError):
    """The RunGuard service could not be asked, or answered with an error. `status` is its HTTP status, if there was one."""

    def __init__(self, message: str, *, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.status: Optional[int] = status


# How many wrappings are looked through: frameworks have a handful.
_MOST_WRAPPINGS = 100


def trip_of(error: Optional[BaseException]) -> Optional[TripError]:
    """The trip behind an exception, however a framework has wrapped it; None when there is none."""
    waiting: list[Any] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_WRAPPINGS:
        one = waiting.pop(0)
        if isinstance(one, TripError):
            return one
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__, getattr(one, "original_exception", None), getattr(one, "original_error", None)]
        waiting += list(getattr(one, "exceptions", ()) or ())
        waiting += [argument for argument in one.args if isinstance(argument, BaseException)]
    return None
