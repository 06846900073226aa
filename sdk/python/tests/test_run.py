from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any, List

import pytest

from runguard import (
    BudgetExceededError,
    BudgetTracker,
    CircuitOpenError,
    InvalidInputError,
    LoopDetectedError,
    LoopDetector,
    Run,
    RunGuardError,
    ServiceError,
    StallDetectedError,
    ToolLimitError,
    TripError,
    UnknownModelError,
    current_run,
    polling,
)


def calls_until_refused(run: Run, tool: str = "search", args: Any = None) -> int:
    for number in range(100):
        try:
            run.before_tool(tool, args)
        except TripError:
            return number
    raise AssertionError("never refused")


@pytest.mark.parametrize("repeats", [2, 3, 4])
def test_the_call_that_completes_the_loop_does_not_run(repeats: int) -> None:
    assert calls_until_refused(Run(repeats=repeats), args={"q": "x"}) == repeats - 1


def test_other_arguments_are_another_call() -> None:
    run = Run()
    for number in range(50):
        run.before_tool("search", {"q": number})
    assert run.trip is None and not run.tripped and run.message == ""


WORDINGS = (
    "warranty policy for damaged items",
    "what is the warranty policy for damaged items",
    "the warranty policy for a damaged item",
    "warranty policy for the damaged items, please",
    "could you tell me the warranty policy for damaged items",
    "damaged items warranty policy",
)


def told_before_the_trip(run: Run, tool: str = "search_knowledge") -> int:
    """How often a model is told that it has the result, when it asks for it in other words for ever; as adapters ask."""
    told = 0
    for number in range(18):
        args = {"query": WORDINGS[number % len(WORDINGS)]}
        try:
            run.before_model()
            run.before_tool(tool, args)
        except TripError:
            return told
        sentence = run._instead(tool, args)
        if sentence is None:
            run.after_tool(tool, args, "Thirty days.")
        else:
            assert "was already executed with" in sentence
            told += 1
    raise AssertionError(f"told {told} times, and never stopped")


def test_a_model_that_is_told_and_does_not_listen_is_stopped() -> None:
    run = Run("job-7")
    assert told_before_the_trip(run) == 6
    assert isinstance(run.trip, LoopDetectedError) and run.trip.cycle == ("search_knowledge",) and run.trip.run_id == "job-7"
    assert run.message.startswith("The model was told 6 times in a row that it has the result already")
    assert told_before_the_trip(Run(repeats=9)) == 9, "as often as calls may repeat"
    run.reset()
    assert told_before_the_trip(run) == 6


def test_a_tool_that_waits_for_something_is_not_told_of() -> None:
    run = Run(tools={"status": polling(20)})
    for number in range(10):
        run.before_tool("status", {"job": 7})
        assert run._instead("status", {"job": 7}) is None
        run.after_tool("status", {"job": 7}, f"{number} %")
    assert run.trip is None


def test_a_trip_is_sticky_and_names_the_tools() -> None:
    run = Run("job-7")
    for name in ("search", "read", "search", "read", "search"):
        run.before_tool(name, {"q": 1})
    with pytest.raises(LoopDetectedError) as first:
        run.before_tool("read", {"q": 1})
    assert (first.value.pattern, first.value.cycle, first.value.repeats, first.value.cycle_len) == ("search → read", ("search", "read"), 3, 2)
    assert first.value.run_id == "job-7" and run.tripped and run.message == str(first.value)
    for question in (run.check, run.before_model, lambda: run.before_tool("other", {"new": True}), lambda: run.before_tool("x", object())):
        with pytest.raises(LoopDetectedError) as again:
            question()
        assert (str(again.value), again.value.pattern, again.value.run_id) == (str(first.value), first.value.pattern, "job-7")
    run.new_turn()
    with pytest.raises(LoopDetectedError):
        run.check()
    run.reset()
    run.before_tool("read", {"q": 1})


def test_the_kept_trip_holds_on_to_nothing() -> None:
    class Stream:
        """What a frame held when the trip went through it."""

    def agent(run: Run) -> "weakref.ref[Stream]":
        stream = Stream()
        watched = weakref.ref(stream)
        for question in (lambda: run.before_tool("search", {}), run.check):
            try:
                while True:
                    question()
            except TripError:
                pass
        return watched

    run = Run()
    watched = agent(run)
    gc.collect()
    assert run.tripped and watched() is None


def test_a_user_message_starts_the_history_anew() -> None:
    run = Run()
    for _ in range(10):
        run.before_tool("search", {"q": 1})
        run.before_tool("search", {"q": 1})
        run.new_turn()


def test_ceilings_of_calls() -> None:
    run = Run(max_tool_calls=5)
    for number in range(5):
        run.before_tool("search", {"q": number})
    with pytest.raises(ToolLimitError) as caught:
        run.before_tool("search", {"q": 5})
    assert (caught.value.tool, caught.value.limit, caught.value.reason) == ("search", 5, "tool_call_ceiling")
    run = Run(max_model_calls=2)
    run.before_model()
    run.before_model()
    with pytest.raises(ToolLimitError) as caught:
        run.before_model()
    assert (caught.value.tool, caught.value.limit) == ("model", 2)


def test_money_trips_the_run_at_the_next_question_at_the_latest() -> None:
    run = Run(max_usd=1.0)
    run.before_model()
    run.record_usd(0.6)
    with pytest.raises(BudgetExceededError) as caught:
        run.record_usd(0.6)
    assert (caught.value.spent, caught.value.limit) == (1.2, 1.0)
    with pytest.raises(BudgetExceededError):
        run.before_tool("search", {})
    run = Run(max_usd=1.0)
    run.record_usd(1.0)
    with pytest.raises(BudgetExceededError, match="used up"):
        run.before_model()


def test_usage_is_priced_and_a_model_without_a_price_matters_only_when_dollars_are_limited() -> None:
    run = Run(max_usd=0.001)
    with pytest.raises(BudgetExceededError):
        run.record_usage("gpt-4o", 1000, 100)
    with pytest.raises(UnknownModelError):
        Run(max_usd=1).record_usage("no-such-model", 10, 10)
    Run().record_usage("no-such-model", 10, 10)
    run = Run(max_tokens=15)
    run.record_usage("no-such-model", 10, None)
    with pytest.raises(BudgetExceededError):
        run.record_usage("no-such-model", 0, 6)
    assert run.tripped


def test_runs_share_a_budget_or_have_a_part_of_it() -> None:
    team = BudgetTracker(max_usd=1.0)
    one, other, small = Run(budget=team), Run(budget=team), Run(budget=team, max_usd=0.1)
    one.record_usd(0.5)
    with pytest.raises(BudgetExceededError):
        small.record_usd(0.2)
    with pytest.raises(BudgetExceededError):
        other.record_usd(0.4)
    with pytest.raises(BudgetExceededError):
        one.before_model()


def test_runs_share_a_detector_without_meeting() -> None:
    detector = LoopDetector()
    runs = [Run(loop=detector) for _ in range(20)]
    for _ in range(2):
        for run in runs:
            run.before_tool("search", {})
    assert detector.sessions == 20 and not any(run.tripped for run in runs)


def test_tools_can_be_wrapped() -> None:
    run = Run(repeats=4, stall="coding")
    ran: List[Any] = []

    @run.tool
    def search(query: str, *, limit: int = 5) -> str:
        """Searches."""
        ran.append((query, limit))
        return "nothing"

    assert search.__name__ == "search" and search.__doc__ == "Searches."
    with pytest.raises(TripError):
        while True:
            search("x", limit=3)
    assert len(ran) == 3 and current_run() is None


@pytest.mark.parametrize(
    "options",
    [
        {"run_id": ""},
        {"run_id": 7},
        {"max_tool_calls": -1},
        {"max_tool_calls": 1.5},
        {"max_model_calls": True},
        {"max_usd": float("nan")},
        {"max_usd": -1},
        {"max_tokens": -1},
        {"repeats": 1},
        {"stall": "nobody"},
        {"alerts": 7},
        {"alerts": {"slak_webhook": "https://x"}},
        {"url": "not a url"},
    ],
)
def test_impossible_options_are_refused(options: Any) -> None:
    with pytest.raises(InvalidInputError):
        Run(**options)


@pytest.mark.parametrize("tool", ["", None, 7])
def test_a_tool_has_a_name(tool: Any) -> None:
    run = Run(max_tool_calls=1)
    with pytest.raises(InvalidInputError):
        run.before_tool(tool, {})
    run.before_tool("search", {})


ERRORS = [
    TripError("stopped", run_id="r"),
    LoopDetectedError("a loop", cycle=("a", "b"), repeats=3, run_id="r"),
    BudgetExceededError("too much", spent=5.5, limit=5.0),
    StallDetectedError("nowhere", rule="identical", count=4, nudge="try"),
    ToolLimitError("enough", tool="search", limit=3),
    CircuitOpenError("open", endpoint="api", retry_after_seconds=1.5),
    InvalidInputError("bad"),
    UnknownModelError("which?", model="m"),
    ServiceError("gone", status=503),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_can_be_copied_and_sent_to_another_process(error: RunGuardError) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error) and str(twin) == str(error) == error.message and vars(twin) == vars(error) and twin.args == error.args
    assert isinstance(error, RunGuardError)


def test_what_errors_are() -> None:
    assert issubclass(InvalidInputError, ValueError) and issubclass(UnknownModelError, KeyError)
    trips = {LoopDetectedError, BudgetExceededError, StallDetectedError, ToolLimitError, CircuitOpenError}
    assert {type(error) for error in ERRORS if isinstance(error, TripError)} - {TripError} == trips


def test_most_of_a_budget_is_told_once() -> None:
    told: List[Any] = []
    run = Run(max_usd=1, warn_at=0.5, on_warning=told.append)
    for _ in range(3):
        run.record_usd(0.3)
    assert [warning.message for warning in told] == ["$0.60 of $1.00 are spent."]
    for wrong in (0, 1.5, -1, True, "0.5"):
        with pytest.raises(InvalidInputError, match="warn_at"):
            Run(max_usd=1, warn_at=wrong)  # type: ignore[arg-type]


def test_whoever_wants_to_be_warned_need_not_say_when() -> None:
    told: List[Any] = []
    run = Run(max_usd=1, on_warning=told.append)
    run.record_usd(0.79)
    assert not told
    run.record_usd(0.02)
    assert [warning.message for warning in told] == ["$0.81 of $1.00 are spent."]


def test_only_what_the_model_has_seen_is_told_to_it_again() -> None:
    run, asked = Run(), {"query": "rust"}
    search = run.tool(lambda query: f"nothing for {query}", name="search")
    assert run._instead("search", asked) is None
    search(query="rust")
    assert run._instead("search", asked) is None, "a tool has called it, and the model has no result of that"
    run.before_tool("search", asked)
    run.after_tool("search", asked, "nothing")
    told = run._instead("search", asked)
    assert told is not None and "search" in told
    run.reset()
    assert run._instead("search", asked) is None, "an operator has it forgotten"
