from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from runguard import CircuitBreaker, CircuitOpenError, InvalidInputError, LoopDetectedError


def fail() -> None:
    raise ConnectionError("down")


def trip(breaker: CircuitBreaker, failures: int) -> None:
    for _ in range(failures):
        with pytest.raises(ConnectionError):
            breaker.call(fail)


def test_it_opens_tests_and_closes() -> None:
    breaker = CircuitBreaker("orders", failure_threshold=3, recovery_seconds=0.05)
    assert breaker.call(lambda a, b=0: a + b, 1, b=2) == 3
    trip(breaker, 3)
    assert breaker.state == "open"
    calls = []
    with pytest.raises(CircuitOpenError) as first:
        breaker.call(calls.append, 1)
    with pytest.raises(CircuitOpenError) as second:
        breaker.call(calls.append, 1)
    assert calls == [] and (first.value.reason, second.value.reason) == ("circuit_just_tripped", "circuit_open")
    time.sleep(0.06)
    assert breaker.state == "half_open"
    probe = breaker.check()
    assert probe.probe
    with pytest.raises(CircuitOpenError):
        breaker.check()
    breaker.record(True, 12.5, permit=probe)
    assert breaker.state == "closed"


def test_a_failed_test_opens_it_again() -> None:
    breaker = CircuitBreaker(failure_threshold=1, recovery_seconds=0.03)
    trip(breaker, 1)
    time.sleep(0.04)
    trip(breaker, 1)
    assert breaker.state == "open"


def test_as_a_decorator_sync_and_async() -> None:
    breaker = CircuitBreaker("api", failure_threshold=2)

    @breaker
    def get(path: str) -> str:
        if path == "/down":
            raise ConnectionError
        return path

    @breaker
    async def aget(path: str) -> str:
        await asyncio.sleep(0)
        if path == "/down":
            raise ConnectionError
        return path

    assert get("/a") == "/a" and asyncio.run(aget("/b")) == "/b"
    with pytest.raises(ConnectionError):
        get("/down")
    with pytest.raises(ConnectionError):
        asyncio.run(aget("/down"))
    with pytest.raises(CircuitOpenError):
        get("/a")
    with pytest.raises(CircuitOpenError):
        asyncio.run(breaker.acall(aget, "/a"))


def test_a_cancelled_call_and_a_tripped_guard_are_no_failures() -> None:
    breaker = CircuitBreaker(failure_threshold=1)

    async def cancelled() -> None:
        task = asyncio.ensure_future(breaker.acall(asyncio.sleep, 10))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())

    def looping() -> Any:
        raise LoopDetectedError("a loop", cycle=("a",), repeats=3)

    with pytest.raises(LoopDetectedError):
        breaker.call(looping)
    assert breaker.state == "closed"


def test_operators_may_force_it() -> None:
    breaker = CircuitBreaker()
    breaker.force_open()
    with pytest.raises(CircuitOpenError) as caught:
        breaker.check()
    assert caught.value.retry_after_seconds is None
    breaker.reset()
    breaker.check()


@pytest.mark.parametrize(
    "settings",
    [
        {"name": ""},
        {"failure_threshold": 0},
        {"failure_threshold": -1},
        {"failure_window_seconds": float("nan")},
        {"recovery_seconds": -1},
        {"failure_rate": 2.0},
        {"failure_rate": float("nan")},
        {"probes": 0},
    ],
)
def test_impossible_settings_are_refused(settings: Any) -> None:
    with pytest.raises(InvalidInputError):
        CircuitBreaker(**settings)
    breaker = CircuitBreaker()
    for latency in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError):
            breaker.record(True, latency)


def test_a_latency_is_the_nearest_millisecond() -> None:
    breaker = CircuitBreaker("slow", slow_call_ms=500, slow_rate=0.5, min_calls=1)
    breaker.record(True, 500.4)
    assert breaker.state == "closed"
    breaker.record(True, 500.6)
    assert breaker.state == "open"


def test_a_time_is_the_nearest_millisecond_and_no_longer_than_a_hundred_years() -> None:
    with pytest.raises(InvalidInputError):
        CircuitBreaker("times", recovery_seconds=0.0004)
    with pytest.raises(InvalidInputError):
        CircuitBreaker("times", recovery_seconds=1e12)
