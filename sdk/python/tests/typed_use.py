"""What a user writes, checked by mypy in strict mode. Not run."""

from __future__ import annotations

from decimal import Decimal
from typing import Dict, Optional

from runguard import (
    Alerts,
    BudgetExceededError,
    BudgetTracker,
    CircuitBreaker,
    Client,
    LoopDetectedError,
    LoopDetector,
    RecipeCache,
    Run,
    StallDetector,
    ToolExecutionTracker,
    TripError,
    cost_usd,
    current_run,
    fingerprint,
    guard,
    guard_async,
    read_usage,
    similarity,
    tool,
)


@tool
def search(query: str, limit: int = 5) -> str:
    return query * limit


@guard(repeats=3, max_usd=5.00)
def agent(task: str) -> str:
    return search(task, limit=2)


@guard_async
async def agent_async(task: str) -> int:
    return len(task)


def tell(error: TripError) -> None:
    print(error.reason, error.run_id)


def detectors() -> None:
    loops = LoopDetector(repeats=3, max_cycle_len=4, window_seconds=60, max_calls=2, url=None)
    loops.record("search")
    loops.record("session", "search")
    loops.record(session_id="session", tool="search")
    found: Optional[LoopDetectedError] = loops.check("search")
    if found is not None:
        pattern: str = found.pattern
        print(pattern, found.repeats, found.cycle_len, found.cycle)
    stall = StallDetector("research", identical_stop=5)
    verdict = stall.observe("search", {"q": 1}, "result", round=1)
    print(verdict.rung, verdict.rule, verdict.count, verdict.nudge)
    budget = BudgetTracker(max_usd=5, max_tokens=1000, cap=2)
    budget.record(Decimal("0.1"))
    budget.record("session", "step")
    with budget.reserve(0.5) as held:
        held.commit(0.25)
    remaining: Optional[float] = budget.child(max_usd=1).remaining
    print(remaining, budget.check())
    try:
        budget.record_usage("gpt-4o", **read_usage("openai", {"prompt_tokens": 1}))
    except BudgetExceededError as error:
        print(f"${error.spent:.4f} of ${error.limit:.2f}")
    breaker = CircuitBreaker("api", failure_threshold=3, probes=2)
    length: int = breaker.call(len, "text")
    state: str = breaker.state
    print(length, state)
    tracker = ToolExecutionTracker(limits={"search": 2})
    skip = tracker.should_skip("search", {"q": 1})
    print(skip.message if skip is not None else None)
    RecipeCache().put(1, "ACTION", {}, "result")
    print(fingerprint({"a": 1}, ignore=["b"]), similarity("a", "b"), cost_usd("gpt-4o", 1, 1))


def runs() -> None:
    with guard(max_usd=5.00, alerts=Alerts(call=tell)) as run:
        run.before_model()
        run.before_tool("search", {"q": 1})
        nudge: Optional[str] = run.after_tool("search", {"q": 1}, "result")
        print(nudge)
    current: Optional[Run] = current_run()
    trip: Optional[TripError] = run.trip
    answer: Dict[str, object] = Client("http://127.0.0.1:8100").loop("s", "search")
    text: str = agent("task")
    print(current, trip, answer, text)
