from __future__ import annotations

import asyncio
import threading
from typing import Any, List, Optional

import pytest

from runguard import BudgetExceededError, InvalidInputError, LoopDetectedError, Run, current_run, guard, guard_async, tool


@tool
def search(query: str) -> str:
    return f"nothing about {query}"


@tool
async def search_async(query: str) -> str:
    await asyncio.sleep(0)
    return f"nothing about {query}"


def test_three_lines_around_an_agent() -> None:
    with guard(repeats=4, max_usd=5.00) as run:
        for _ in range(3):
            search("x")
        with pytest.raises(LoopDetectedError):
            search("x")
    assert run.tripped and current_run() is None


def test_a_tool_outside_of_a_run_is_called_straight() -> None:
    assert {search("x") for _ in range(20)} == {"nothing about x"}


def test_every_call_of_a_guarded_function_is_a_run_of_its_own() -> None:
    runs: List[Optional[Run]] = []

    @guard(repeats=3)
    def agent(times: int) -> str:
        """Looks things up."""
        runs.append(current_run())
        for _ in range(times):
            search("x")
        return "done"

    assert agent.__name__ == "agent" and agent.__doc__ == "Looks things up."
    assert [agent(2), agent(2), agent(times=2)] == ["done"] * 3
    with pytest.raises(LoopDetectedError):
        agent(3)
    assert agent(2) == "done"
    assert len({run.run_id for run in runs if run is not None}) == 5


def test_without_parentheses() -> None:
    @guard
    def agent() -> Any:
        return current_run()

    @guard_async
    async def agent_async() -> Any:
        return current_run()

    assert isinstance(agent(), Run) and isinstance(asyncio.run(agent_async()), Run)


def test_a_given_run_stays_refused_when_the_task_is_restarted() -> None:
    run = Run(repeats=3)
    entered: List[int] = []

    @guard(run=run)
    def agent() -> None:
        entered.append(1)
        while True:
            search("x")

    for _ in range(3):
        with pytest.raises(LoopDetectedError):
            agent()
    assert len(entered) == 1
    with pytest.raises(LoopDetectedError):
        with guard(run=run):
            entered.append(2)
    assert len(entered) == 1
    with pytest.raises(InvalidInputError):
        guard(run=run, repeats=5)


def test_a_run_within_a_run_spends_the_outer_ones_money() -> None:
    with guard(max_usd=1.00) as outer:
        with guard(max_usd=0.40) as inner:
            assert current_run() is inner
            inner.record_usd(0.30)
        assert current_run() is outer and outer.budget is not None and outer.budget.spent == 0.30
        with guard() as inner:
            with pytest.raises(BudgetExceededError):
                inner.record_usd(0.80)
        with pytest.raises(BudgetExceededError):
            outer.before_model()


def test_tasks_and_threads_have_their_own_current_run() -> None:
    shared = guard(repeats=3)
    seen: List[str] = []

    async def agent(name: str) -> None:
        async with guard_async(run_id=name):
            for _ in range(2):
                await search_async("x")
                run = current_run()
                assert run is not None
                seen.append(run.run_id)
                assert run.run_id == name

    async def many() -> None:
        await asyncio.gather(*(agent(f"task-{number}") for number in range(50)))

    asyncio.run(many())
    assert len(seen) == 100

    failures: List[BaseException] = []

    def in_thread() -> None:
        try:
            for _ in range(50):
                with shared as run:
                    search("x")
                    assert current_run() is run
                assert current_run() is None
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=in_thread) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_async_functions() -> None:
    @guard_async(repeats=3)
    async def agent() -> None:
        while True:
            await search_async("x")

    @guard(repeats=3)
    async def also(times: int) -> None:
        for _ in range(times):
            await search_async("x")

    with pytest.raises(LoopDetectedError):
        asyncio.run(agent())
    asyncio.run(also(2))
    with pytest.raises(LoopDetectedError):
        asyncio.run(also(3))


def test_what_cannot_be_guarded_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidInputError):
        guard(repeats=1)
    with pytest.raises(TypeError):
        guard(no_such_option=1)
    with pytest.raises(InvalidInputError):

        @guard_async(repeats=3)
        def not_async() -> None: ...

    with pytest.raises(InvalidInputError):

        @guard(repeats=3)
        def generator() -> Any:
            yield 1
