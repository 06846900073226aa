"""A circuit breaker for AI agents: loops, stalls, budgets and failing services.

    from runguard import guard

    with guard(repeats=3, max_usd=5.00) as run:
        search = run.tool(search)
        …                                # the agent; a trip is raised as a TripError
"""

from __future__ import annotations

from ._core import Reservation, Skip, Verdict, __version__, cost_usd, fingerprint, read_usage, similarity
from .detectors import BudgetTracker, CircuitBreaker, LoopDetector, RecipeCache, StallDetector, ToolExecutionTracker
from .errors import (
    BudgetExceededError,
    CircuitOpenError,
    InvalidInputError,
    LoopDetectedError,
    RunGuardError,
    ServiceError,
    StallDetectedError,
    TimeLimitError,
    ToolLimitError,
    TripError,
    UnknownModelError,
    trip_of,
)
from .guards import Guard, guard, guard_async
from .run import BudgetWarning, ModelCall, Run, current_run, tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .alerts import Alerts, flush_alerts
    from .client import Client
    from .tool_rules import ToolRule, exempt, ignore, limit, polling

# What few need, and what takes longer to import than all the rest: HTTP, threads, dataclasses.
_LATER = {
    "Alerts": "alerts",
    "Client": "client",
    "ToolRule": "tool_rules",
    "exempt": "tool_rules",
    "flush_alerts": "alerts",
    "ignore": "tool_rules",
    "limit": "tool_rules",
    "polling": "tool_rules",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


__all__ = [
    "Alerts",
    "BudgetExceededError",
    "BudgetTracker",
    "BudgetWarning",
    "CircuitBreaker",
    "CircuitOpenError",
    "Client",
    "Guard",
    "InvalidInputError",
    "LoopDetectedError",
    "LoopDetector",
    "ModelCall",
    "RecipeCache",
    "Reservation",
    "Run",
    "RunGuardError",
    "ServiceError",
    "Skip",
    "StallDetectedError",
    "StallDetector",
    "TimeLimitError",
    "ToolExecutionTracker",
    "ToolLimitError",
    "ToolRule",
    "TripError",
    "UnknownModelError",
    "Verdict",
    "__version__",
    "cost_usd",
    "current_run",
    "exempt",
    "fingerprint",
    "flush_alerts",
    "guard",
    "guard_async",
    "ignore",
    "limit",
    "polling",
    "read_usage",
    "similarity",
    "tool",
    "trip_of",
]
