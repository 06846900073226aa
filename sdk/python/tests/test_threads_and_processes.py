"""Many threads, many tasks, forked children: counts stay exact, nothing hangs."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import sys
import threading
import time
from typing import Any, Callable, List

import pytest

from runguard import (
    Alerts,
    BudgetExceededError,
    BudgetTracker,
    CircuitBreaker,
    InvalidInputError,
    LoopDetectedError,
    LoopDetector,
    RecipeCache,
    Run,
    StallDetector,
    ToolExecutionTracker,
    ToolLimitError,
    TripError,
    fingerprint,
    flush_alerts,
    similarity,
)

THREADS = 64


def in_threads(work: Callable[[int], Any], threads: int = THREADS) -> List[Any]:
    """What every thread gave, or the first error."""
    results: List[Any] = [None] * threads
    errors: List[BaseException] = []
    start = threading.Barrier(threads)

    def one(number: int) -> None:
        try:
            start.wait(30)
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


@pytest.fixture(autouse=True)
def switch_often() -> Any:
    """Makes the interpreter turn to another thread as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_reserved_and_committed_never_pass_the_limit() -> None:
    budget = BudgetTracker(max_usd=10)
    children = [budget.child(max_usd=3) for _ in range(4)]

    def spend(number: int) -> float:
        tracker = ([budget] + children)[number % 5]
        dice = random.Random(number)
        committed = 0.0
        for _ in range(200):
            amount = dice.randint(1, 50) / 1000
            try:
                held = tracker.reserve(amount)
            except BudgetExceededError as error:
                # What was refused must not have fitted: the error tells the books of the moment it was made.
                assert error.limit in (10.0, 3.0)
                continue
            assert budget.spent + budget.reserved <= 10.0 + 1e-9
            if dice.random() < 0.5:
                held.commit()
                committed += amount
            else:
                held.release()
        return committed

    committed = sum(in_threads(spend))
    assert budget.reserved == 0.0 and budget.spent == pytest.approx(committed, abs=1e-9) and budget.spent <= 10.0
    assert sum(child.spent for child in children) <= budget.spent + 1e-9


def test_a_cap_is_never_passed() -> None:
    tracker = BudgetTracker(cap=500)

    def count(_: int) -> int:
        allowed = 0
        for _ in range(50):
            try:
                tracker.record("session", "step")
                allowed += 1
            except BudgetExceededError:
                pass
        return allowed

    assert sum(in_threads(count)) == 500


def test_the_ceiling_of_a_run_is_never_passed_and_its_alert_comes_once() -> None:
    told: List[TripError] = []
    run = Run(max_tool_calls=100, alerts=Alerts(call=told.append))

    def call(number: int) -> int:
        allowed = 0
        for step in range(20):
            try:
                run.before_tool("search", {"n": number, "step": step})
                allowed += 1
            except ToolLimitError:
                pass
        return allowed

    assert sum(in_threads(call)) == 100
    assert flush_alerts(10) and len(told) == 1


def test_every_object_can_be_used_by_all_threads_at_once() -> None:
    loops, stall, tracker = LoopDetector(), StallDetector(), ToolExecutionTracker(default_limit=1000)
    breaker, cache = CircuitBreaker(failure_threshold=10_000), RecipeCache()

    def use(number: int) -> None:
        session = f"s{number}"
        for step in range(100):
            loops.record(session, f"tool{step % 7}")
            loops.check(session, "tool")
            if step % 10 == 0:
                with pytest.raises(InvalidInputError):
                    loops.record("")
                # Errors are built in Python, where the interpreter may turn to another thread: no lock may be held then.
                with pytest.raises(LoopDetectedError):
                    while True:
                        loops.record(f"{session}-looping", "same")
            stall.observe("tool", {"step": step}, f"result {step}", session_id=session)
            tracker.should_skip("tool", {"number": number, "step": step})
            tracker.record(f"tool{number}", {"step": step})
            permit = breaker.check()
            breaker.record(step % 2 == 0, 1.0, permit=permit)
            cache.put(number, "ACTION", {"step": step}, [number, step])
            fingerprint({"number": number, "items": [step] * 10})

    in_threads(use)
    assert loops.sessions == 2 * THREADS and stall.sessions == THREADS and breaker.state == "closed"


def test_long_work_lets_other_threads_run() -> None:
    dice = random.Random(3)
    one, other = ("".join(dice.choice("ab") for _ in range(6000)) for _ in range(2))
    done = threading.Event()
    ticks: List[float] = []

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.005)

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    started = time.monotonic()
    similarity(one, other)
    ended = time.monotonic()
    done.set()
    ticking.join()
    during = sum(started + 0.02 < moment < ended - 0.02 for moment in ticks)
    assert ended - started > 0.1, "too little work to see anything"
    assert during >= 3, f"{during} ticks in {ended - started:.2f} s"


def test_tasks_share_a_run() -> None:
    run = Run(max_tool_calls=50)

    @run.tool
    async def search(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def many() -> List[Any]:
        return await asyncio.gather(*(search(number) for number in range(200)), return_exceptions=True)

    results = asyncio.run(many())
    assert sum(isinstance(result, int) for result in results) == 50
    assert all(isinstance(result, (int, ToolLimitError)) for result in results)


# Forked children.

LOOPS = LoopDetector()
BUDGET = BudgetTracker(max_usd=1.0)


def use_in_child(_: int) -> str:
    """Goes on from what the parent had counted; the parent does not see it."""
    try:
        LOOPS.record("search")
    except LoopDetectedError as error:
        BUDGET.record(0.25)
        return f"{error.pattern} {error.repeats} {BUDGET.spent}"
    return "no loop"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_workers_go_on_counting_while_the_parent_is_busy() -> None:
    LOOPS.reset()
    LOOPS.record("search")
    LOOPS.record("search")
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            LOOPS.record("busy", "x" + str(time.monotonic()))
            BUDGET.check()
            fingerprint({"a": list(range(50))})
            try:
                LOOPS.record("busy-loop", "same")
            except LoopDetectedError:
                pass

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.write(writing, use_in_child(0).encode())
                finally:
                    os._exit(0)
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                assert pipe.read() == b"search 3 0.25"
            os.waitpid(child, 0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert BUDGET.spent == 0.0


def tripping_child(path: str) -> str:
    def write(error: TripError) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{error.run_id}\n")

    run = Run(f"child-{os.getpid()}", alerts=write)
    try:
        while True:
            run.before_tool("search", {})
    except LoopDetectedError as error:
        flush_alerts(10)
        # Sent back to the parent as it is.
        raise error


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_raise_into_the_parent_and_tell_their_own_alerts(method: str, tmp_path: Any) -> None:
    # The alert thread of the parent runs when the children are made: they must start their own.
    Alerts(call=lambda _: None).send(TripError("before the fork"))
    assert flush_alerts(10)
    path = str(tmp_path / "told")
    with multiprocessing.get_context(method).Pool(3) as pool:
        waiting = [pool.apply_async(tripping_child, (path,)) for _ in range(3)]
        for result in waiting:
            with pytest.raises(LoopDetectedError) as caught:
                result.get(60)
            assert (caught.value.pattern, caught.value.repeats) == ("search", 3)
    with open(path, encoding="utf-8") as file:
        assert len(file.readlines()) == 3
