from __future__ import annotations

import random
import time
from typing import List, Optional, Tuple

import pytest

from runguard import InvalidInputError, LoopDetectedError, LoopDetector


def slow_answer(events: List[str], repeats: int, max_cycle_len: int) -> Optional[Tuple[str, ...]]:
    """The rule, written down: the newest events are `repeats` copies of one pattern, the shortest is named."""
    for length in range(1, max_cycle_len + 1):
        pattern = events[-length:]
        if len(events) >= length * repeats and events[-length * repeats :] == pattern * repeats:
            return tuple(pattern)
    return None


def test_it_agrees_with_the_rule_on_random_histories() -> None:
    dice = random.Random(7)
    for _ in range(400):
        repeats, longest = dice.randint(2, 4), dice.randint(1, 5)
        detector = LoopDetector(repeats, longest)
        events: List[str] = []
        for _ in range(60):
            event = dice.choice("abc" if dice.random() < 0.7 else "a")
            events.append(event)
            expected = slow_answer(events, repeats, longest)
            asked = detector.check(event)
            try:
                detector.record(event)
                found = None
            except LoopDetectedError as error:
                found = error.cycle
            assert found == expected
            assert (asked.cycle if asked else None) == expected


def test_the_call_shapes_are_one() -> None:
    for shape in ("two positions", "names", "session by name", "tool by name"):
        detector = LoopDetector()
        record = {
            "two positions": lambda: detector.record("s", "search"),
            "names": lambda: detector.record(session_id="s", tool="search"),
            "session by name": lambda: detector.record("search", session_id="s"),
            "tool by name": lambda: detector.record("s", tool="search"),
        }[shape]
        record()
        record()
        assert detector.check("s", "search") is not None, shape
        assert detector.check("search") is None, "a session of its own"
        assert detector.sessions == 1


def test_asking_counts_nothing_and_never_raises() -> None:
    detector = LoopDetector()
    for _ in range(10):
        assert detector.check("search") is None


def test_reset_forgets_one_session_or_all() -> None:
    detector = LoopDetector()
    for session in ("a", "b"):
        detector.record(session, "x")
        detector.record(session, "x")
    detector.reset("a")
    assert detector.check("a", "x") is None and detector.check("b", "x") is not None
    detector.reset()
    assert detector.check("b", "x") is None and detector.sessions == 0


def test_a_ceiling_ends_with_its_window() -> None:
    detector = LoopDetector(repeats=100, window_seconds=0.05, max_calls=2)
    detector.record("s", "x")
    detector.record("s", "x")
    with pytest.raises(LoopDetectedError) as caught:
        detector.record("s", "x")
    assert caught.value.reason == "call_ceiling"
    time.sleep(0.06)
    detector.record("s", "x")


@pytest.mark.parametrize(
    "call",
    [
        lambda detector: detector.record(),
        lambda detector: detector.record(""),
        lambda detector: detector.record("", "x"),
        lambda detector: detector.record("s", ""),
        lambda detector: detector.record(None),
        lambda detector: detector.record(7),
        lambda detector: detector.record(b"x"),
        lambda detector: detector.record("a", "b", tool="c"),
        lambda detector: detector.record("a", session_id="s", tool="c"),
        lambda detector: detector.record(session_id="s"),
        lambda detector: detector.record("x" * 100_000),
        lambda detector: detector.record("\ud800"),
    ],
)
def test_what_is_no_call_is_refused_and_changes_nothing(call: object) -> None:
    detector = LoopDetector()
    detector.record("x")
    for _ in range(3):
        with pytest.raises(InvalidInputError):
            call(detector)  # type: ignore[operator]
    detector.record("x")
    assert detector.check("x") is not None and detector.sessions == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"repeats": 1},
        {"repeats": 0},
        {"repeats": -3},
        {"repeats": 10**6},
        {"max_cycle_len": 0},
        {"max_cycle_len": 10**6},
        {"window_seconds": 0},
        {"window_seconds": -1},
        {"window_seconds": float("nan")},
        {"max_calls": 0},
    ],
)
def test_impossible_settings_are_refused(settings: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidInputError) as caught:
        LoopDetector(**settings)
    assert next(iter(settings)) in str(caught.value)
