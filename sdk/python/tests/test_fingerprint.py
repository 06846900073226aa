from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import difflib
import enum
import json
import os
import pathlib
import random
import subprocess
import sys
import types
import uuid
from typing import Any, List

import pytest

from runguard import InvalidInputError, LoopDetector, Run, StallDetector, ToolExecutionTracker, fingerprint, similarity


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Colour(enum.Enum):
    RED = "red"


class Model:
    """Stands for pydantic's models, which are read by their `model_dump`."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self) -> Any:
        return self.fields


class Plain:
    def __init__(self, city: str) -> None:
        self.city = city
        self._cache = object()


class Slots:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = 1


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "one, other",
    [
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1, "b": None, "c": "", "d": [], "e": {}}, {"a": 1}),
        ({"x": "é"}, {"x": "e\u0301"}),
        ([1, 2], (1, 2)),
        ({1: "a", True: "b"}, {"1": "b"}),
        ({2: "a"}, {"2": "a"}),
        ({"s": {3, 1, 2}}, {"s": frozenset([2, 3, 1])}),
        ({"p": Point(1, 2)}, {"p": {"x": 1, "y": 2}}),
        ({"m": Model(city="Rome")}, {"m": {"city": "Rome"}}),
        ({"c": Colour.RED}, {"c": "red"}),
        ({"d": datetime.date(2026, 1, 2)}, {"d": "2026-01-02"}),
        ({"u": uuid.UUID(int=5)}, {"u": str(uuid.UUID(int=5))}),
        ({"p": pathlib.PurePosixPath("/a/b")}, {"p": "/a/b"}),
        ({"d": decimal.Decimal("1.50")}, {"d": decimal.Decimal("1.5")}),
        (collections.OrderedDict(a=1, b=2), {"b": 2, "a": 1}),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (Pair(1, 2), [1, 2]),
        ({"b": b"abc"}, {"b": bytearray(b"abc")}),
        (Plain("Rome"), Plain("Rome")),
        (object(), object()),
        ({"n": float("nan")}, {"n": float("nan")}),
        (None, {}),
    ],
)
def test_equal_arguments_are_equal_however_they_are_written(one: Any, other: Any) -> None:
    assert fingerprint(one) == fingerprint(other)
    assert len(fingerprint(one)) == 16 and int(fingerprint(one), 16) >= 0


def test_different_arguments_are_different() -> None:
    different: List[Any] = [
        {"a": 1}, {"a": 2}, {"a": "1"}, {"a": [1]}, {"b": 1}, {}, [1, 2], [2, 1], {"a": True}, {"a": b"1"}, {"a": b"2"},
        10**40, 10**40 + 1, 2**64, 2**64 - 1, -(2**63), Point(1, 2), Point(2, 1), Plain("Rome"), Plain("Oslo"), {"a": "\ud800"},
        {"a": "\udfff"}, {"a": float("inf")}, {"a": float("nan")}, {"a": {1, 2}}, {"a": {1, 3}}, Slots(), "x", "y", {"a": datetime.date(2026, 1, 2)},
    ]  # fmt: skip
    assert len({fingerprint(value) for value in different}) == len(different)


def test_fields_that_do_not_matter_can_be_left_out() -> None:
    one, other = {"city": "Rome", "request_id": "a"}, {"city": "Rome", "request_id": "b"}
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one, ignore=["request_id"]) == fingerprint(other, ignore=["request_id"])


def test_it_is_the_same_in_every_process() -> None:
    script = "from runguard import fingerprint; print(fingerprint({'tags': {'a', 'b', 'c', 'd'}, 'x': object(), 'n': 1.5}))"
    prints = {
        subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2", "3")
    }
    assert len(prints) == 1


def cyclic_list() -> Any:
    value: List[Any] = []
    value.append(value)
    return value


def cyclic_dict() -> Any:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


def cyclic_object() -> Any:
    value = Plain("Rome")
    value.itself = {"deep": value}  # type: ignore[attr-defined]
    return value


def cyclic_in_a_set() -> Any:
    value = Plain("Rome")
    value.friends = frozenset([value])  # type: ignore[attr-defined]
    return value


def deep() -> Any:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    return value


class Refuses:
    @property
    def model_dump(self) -> Any:
        raise RuntimeError("no")


class NeverPlain:
    def model_dump(self) -> Any:
        return NeverPlain()


BAD = [cyclic_list, cyclic_dict, cyclic_object, cyclic_in_a_set, deep, lambda: "x" * 10_000_000, lambda: {"a": ["x" * 1000] * 10_000}, Refuses, NeverPlain]


@pytest.mark.parametrize("make", BAD)
def test_what_cannot_be_compared_is_refused_and_changes_nothing(make: Any) -> None:
    bad = make()
    with pytest.raises(InvalidInputError):
        fingerprint(bad)
    run = Run(repeats=2, max_tool_calls=2)
    stall = StallDetector(identical_stop=2)
    tracker = ToolExecutionTracker(default_limit=1)
    for _ in range(5):
        with pytest.raises(InvalidInputError):
            run.before_tool("search", bad)
        with pytest.raises(InvalidInputError):
            stall.observe("search", bad, "result")
        with pytest.raises(InvalidInputError):
            tracker.record("search", bad)
    run.before_tool("search", {"q": 1})
    run.before_tool("search", {"q": 2})
    assert stall.observe("search", {}, "result").rung == "go_on"
    assert tracker.should_skip("search", {"q": 1}) is None


def test_large_arguments_below_the_bound_are_fine() -> None:
    assert fingerprint({"text": "x" * 5_000_000}) != fingerprint({"text": "x" * 4_999_999})


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = {"a": 1}
    assert fingerprint([shared, shared]) == fingerprint([{"a": 1}, {"a": 1}])


def test_similarity_is_that_of_difflib() -> None:
    dice = random.Random(11)
    alphabet = "ab cdé\U0001f600"
    for _ in range(2000):
        one, other = ("".join(dice.choice(alphabet) for _ in range(dice.randint(0, 40))) for _ in range(2))
        for autojunk in (False, True):
            expected = difflib.SequenceMatcher(None, one, other, autojunk=autojunk).ratio()
            assert similarity(one, other, autojunk=autojunk) == expected, (one, other)
    long = "the quick brown fox jumps over the lazy dog " * 6
    for autojunk in (False, True):
        assert similarity(long, long[7:], autojunk=autojunk) == difflib.SequenceMatcher(None, long, long[7:], autojunk=autojunk).ratio()


def test_a_detector_can_be_asked_about_a_fingerprint() -> None:
    detector = LoopDetector()
    for _ in range(2):
        detector.record("s", fingerprint({"b": 1, "a": 2}))
    assert detector.check("s", fingerprint({"a": 2, "b": 1})) is not None


def test_the_shared_vectors_hold() -> None:
    vectors = json.loads((pathlib.Path(__file__).parents[2] / "vectors.json").read_text("utf-8"))
    assert len(vectors["fingerprints"]) >= 40 and len(vectors["similarity"]) >= 12
    for case in vectors["fingerprints"]:
        assert fingerprint(json.loads(case["args"]), ignore=case.get("ignore", [])) == case["fingerprint"], case["args"]
    for case in vectors["similarity"]:
        assert similarity(case["left"], case["right"], autojunk=case["autojunk"]) == case["ratio"], case["left"]
