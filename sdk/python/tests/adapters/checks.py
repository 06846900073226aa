"""What every framework's adapter is asked in the same way.

A test file says how its framework is put together (`Make`): one object that serves everybody, whose calls each are one invocation. The
checks then play users, loops and budgets with it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import json
import logging
from typing import Any, Awaitable, Callable, Iterator, Union

import pytest
from conftest import Search
from model_server import FINAL_ANSWER, Call, ModelServer, Reply, Request, Usage

from runguard import BudgetExceededError, LoopDetectedError, Run, StallDetectedError, UnknownModelError, guard, tool, trip_of
from runguard.adapters._runs import RunLike

# A quarter of a dollar, by the price of gpt-4o.
QUARTER = Usage(input=60_000, output=10_000, cached=0, cache_write=0)
CALL = Call("search", {"query": "rust"})

Ask = Callable[[], Union[str, Awaitable[str]]]
# (server, search, run or function that makes one, the model's name) → what makes one invocation and gives its last text.
Make = Callable[[ModelServer, Search, RunLike, str], Ask]


class Conversations(ModelServer):
    """Answers each conversation by itself: the script's line is the number of tool results that it has."""

    def answer(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
        if self.toolless_text is not None and not request.body.get("tools"):
            return Reply(text=self.toolless_text)
        return self.script[min(_results(request.body), len(self.script) - 1)]


def run_of(run: RunLike) -> Run:
    """For clients and recipes that have no factory: the run of one invocation."""
    return run if isinstance(run, Run) else Run() if run is None else run()


def _results(body: dict[str, Any]) -> int:
    items = [item for item in body.get("messages") or body.get("input") or () if isinstance(item, dict)]
    blocks = [block for item in items if isinstance(item.get("content"), list) for block in item["content"] if isinstance(block, dict)]
    return (
        sum(item.get("role") == "tool" or item.get("type") == "function_call_output" for item in items)
        + sum(block.get("type") == "tool_result" or "toolResult" in block for block in blocks)
    )


def healthy_conversations(usage: Usage | None = None) -> Conversations:
    return Conversations([Reply(calls=(CALL,)), Reply(text=FINAL_ANSWER)], usage or Usage())


# One for all: clients keep their connections in the loop they were first used in.
_loop = asyncio.new_event_loop()


def once(ask: Ask) -> str:
    return _loop.run_until_complete(ask()) if inspect.iscoroutinefunction(ask) else ask()  # type: ignore[arg-type, return-value]


def at_once(ask: Ask, count: int) -> list[Union[str, BaseException]]:
    """What became of so many invocations side by side."""
    if inspect.iscoroutinefunction(ask):

        async def all_of_them() -> list[Union[str, BaseException]]:
            return await asyncio.gather(*(ask() for _ in range(count)), return_exceptions=True)  # type: ignore[misc]

        return _loop.run_until_complete(all_of_them())
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(ask) for _ in range(count)]
    return [future.exception() or future.result() for future in futures]  # type: ignore[misc]


@contextlib.contextmanager
def one_run_for_two_agents(search: Search) -> Iterator[tuple[Conversations, Callable[[], Run]]]:
    """For an agent whose tool asks another agent, which searches once: both belong to the one run that is made, and it pays for both."""
    runs: list[Run] = []

    def new_run() -> Run:
        runs.append(Run(max_usd=1, repeats=100))
        return runs[-1]

    with healthy_conversations(QUARTER) as server:
        yield server, new_run
    assert len(runs) == 1 and search.runs == ["rust"]
    assert runs[0].budget is not None and runs[0].budget.spent == pytest.approx(1)


def a_healthy_run_is_untouched(make: Make, server: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    assert once(make(server, search, run, "gpt-4o")).endswith(FINAL_ANSWER)
    assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
    assert server.model_calls == 6 and not run.tripped


def a_nudge_reaches_the_model(make: Make, server: ModelServer, search: Search) -> None:
    with pytest.raises(Exception) as caught:
        once(make(server, search, Run(repeats=100, stall="coding"), "gpt-4o"))
    assert isinstance(trip_of(caught.value), StallDetectedError)
    answers = [str(message["content"]) for message in server.bodies[-1]["messages"] if message["role"] == "tool"]
    assert "You have called search" not in answers[0] and "You have called search 3 times" in answers[-1]


def a_request_that_fails_costs_nothing(make: Make, search: Search) -> None:
    with ModelServer([Reply(status=500)]) as server:
        run = Run(max_usd=1)
        with pytest.raises(Exception, match="500"):
            once(make(server, search, run, "gpt-4o"))
        assert run.budget is not None and (run.budget.spent, run.budget.reserved) == (0, 0)


def users_have_runs_of_their_own(make: Make, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    """Healthy users pass through one object, one after the other and at once; one that loops is stopped, and only that one."""
    with healthy_conversations() as server:
        ask = make(server, search, lambda: Run(repeats=3, max_model_calls=3), "gpt-4o")
        assert [once(ask) for _ in range(4)] == [FINAL_ANSWER] * 4
        assert at_once(ask, 6) == [FINAL_ANSWER] * 6
        assert len(search.runs) == 10
        server.forget()
        search.runs.clear()
        server.script = [Reply(calls=(CALL,))]
        ask_of_loop = make(server, search, lambda: Run(repeats=3), "gpt-4o")
        for _ in range(2):
            server.forget()
            search.runs.clear()
            with pytest.raises(Exception) as caught:
                once(ask_of_loop)
            assert isinstance(trip_of(caught.value), LoopDetectedError)
            assert (len(search.runs), server.model_calls) == (2, 3)
        server.script = [Reply(calls=(CALL,)), Reply(text=FINAL_ANSWER)]
        assert once(ask_of_loop) == FINAL_ANSWER


def without_a_run_the_one_around_counts(make: Make, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing given: the run around; without one, each invocation is a plain run."""
    with healthy_conversations(QUARTER) as server:
        ask = make(server, search, None, "gpt-4o")
        assert [once(ask) for _ in range(4)] == [FINAL_ANSWER] * 4
        with guard(max_usd=10, repeats=100) as run:
            assert once(ask) == FINAL_ANSWER
        # The hooked client below has told nothing of the same calls.
        assert run.budget is not None and run.budget.spent == pytest.approx(0.5)
        server.script = [Reply(calls=(CALL,))]
        server.forget()
        with pytest.raises(Exception) as caught:
            once(ask)
        assert isinstance(trip_of(caught.value), LoopDetectedError)
        assert server.model_calls == 3


def a_tool_that_tells_of_itself_counts_once(make: Make, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    class Marked(Search):
        @property
        def tool(self) -> Callable[[str], str]:
            return tool(super().tool)

    marked = Marked()
    with ModelServer([Reply(calls=(CALL,))]) as server:
        ask = make(server, marked, lambda: Run(repeats=3), "gpt-4o")
        with pytest.raises(Exception) as caught:
            once(ask)
        assert isinstance(trip_of(caught.value), LoopDetectedError)
        assert (len(marked.runs), server.model_calls) == (2, 3)


def a_budget_caps(make: Make, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    """A dollar, a quarter each: four calls and no fifth, however often the run is tried again."""
    with ModelServer([Reply(calls=(CALL,))], usage=QUARTER) as server:
        run = Run(max_usd=1, repeats=100)
        ask = make(server, search, run, "gpt-4o")
        for _ in range(2):
            with pytest.raises(Exception) as caught:
                once(ask)
            assert isinstance(trip_of(caught.value), BudgetExceededError), caught.value
        assert server.model_calls == 4
        assert run.budget is not None and run.budget.spent == pytest.approx(1)


def answers_without_usage_are_billed_by_size(make: Make, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    long = Reply(calls=(Call("search", {"query": "more " * 2_000}),))
    with ModelServer([long], usage=None) as server, caplog.at_level(logging.WARNING, "runguard"):
        run = Run(max_usd=0.1, repeats=100)
        with pytest.raises(Exception) as caught:
            once(make(server, search, run, "gpt-4o"))
        assert isinstance(trip_of(caught.value), BudgetExceededError), caught.value
        assert 2 <= server.model_calls <= 6
        assert run.budget is not None and 0.05 <= run.budget.spent < 0.2
    # LiteLLM counts the tokens of a stream itself.
    assert sum("without its usage" in record.getMessage() for record in caplog.records) == min(run._run.estimated_calls, 1)


def many_at_once_spend_what_there_is(make: Make, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    with ModelServer([Reply(text=FINAL_ANSWER)], usage=QUARTER) as server:
        run = Run(max_usd=1, repeats=1000)
        ask = make(server, search, run, "gpt-4o")
        outcomes = at_once(ask, 64)
        refused = [outcome for outcome in outcomes if not isinstance(outcome, str)]
        assert [outcome for outcome in refused if not isinstance(trip_of(outcome), BudgetExceededError)] == []
        assert server.model_calls == 4
        assert run.budget is not None and run.budget.spent == pytest.approx(1)


def a_model_without_a_price_is_not_asked(make: Make, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    with healthy_conversations() as server:
        ask = make(server, search, Run(max_usd=1), "house-model")
        for _ in range(2):
            with pytest.raises(Exception) as caught:
                once(ask)
            assert any(isinstance(error, UnknownModelError) for error in _chain(caught.value)), caught.value
        assert server.model_calls == 0


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__ or getattr(error, "original_exception", None)


ALL = [
    users_have_runs_of_their_own,
    without_a_run_the_one_around_counts,
    a_tool_that_tells_of_itself_counts_once,
    a_budget_caps,
    answers_without_usage_are_billed_by_size,
    many_at_once_spend_what_there_is,
    a_model_without_a_price_is_not_asked,
]

# Gives a test `check`: it then says `check(made, search, caplog)`.
each = pytest.mark.parametrize("check", ALL, ids=lambda check: check.__name__)


def invocations_are_forgotten(make: Make, search: Search, runs: Callable[[], int], count: int = 100) -> None:
    """`runs` counts the runs that the object knows."""
    with ModelServer([Reply(text=FINAL_ANSWER)]) as server:
        ask = make(server, search, lambda: Run(repeats=3), "gpt-4o")
        for _ in range(count):
            once(ask)
    assert runs() <= 70


def assert_told(server: ModelServer, runs: int = 1) -> None:
    """From the second equal call on the model reads that it has the result already."""
    told = [json.dumps(body).count("was already executed with identical parameters") for body in server.bodies]
    assert told[: runs + 1] == [0] * (runs + 1) and told[runs + 1] == 1, told
