"""Which calls of a tool are the same: by what it was asked, not by what it is called with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import pytest

from runguard import InvalidInputError, LoopDetectedError, Run, TripError, tool, trip_of

Deps = TypeVar("Deps")


@dataclass
class RunContextWrapper(Generic[Deps]):
    """As frameworks have them: new at every call, with counters that grow."""

    usage: int = 0
    own: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.own.append(self)


def runs_before_it_trips(call: Any) -> int:
    for number in range(30):
        try:
            call(number)
        except LoopDetectedError:
            return number
    return 30


def test_a_context_is_no_argument() -> None:
    run = Run(repeats=3)

    @run.tool
    def search(ctx: RunContextWrapper[None], query: str) -> str:
        return query

    assert runs_before_it_trips(lambda number: search(RunContextWrapper(number), "rust")) == 2


def test_a_context_is_known_by_its_type_where_nothing_is_annotated() -> None:
    run = Run(repeats=3)

    @run.tool
    def search(given, query):  # type: ignore[no-untyped-def]
        return query

    assert runs_before_it_trips(lambda number: search(RunContextWrapper(number), query="rust")) == 2


def test_self_is_no_argument() -> None:
    run = Run(repeats=3)

    class Library:
        def __init__(self, number: int) -> None:
            self.number = number

        @run.tool
        def search(self, query: str) -> str:
            return query

    assert runs_before_it_trips(lambda number: Library(number).search("rust")) == 2


def test_by_place_or_by_name_it_is_one_call() -> None:
    run = Run(repeats=3)

    @run.tool
    def search(query: str, limit: int = 10) -> str:
        return query

    calls = [lambda: search("rust", 5), lambda: search("rust", limit=5), lambda: search(limit=5, query="rust")]
    assert runs_before_it_trips(lambda number: calls[number % 3]()) == 2


def test_other_arguments_are_another_call() -> None:
    run = Run(repeats=3)
    search = run.tool(lambda *words: words, name="search")
    assert runs_before_it_trips(lambda number: search("page", number)) == 30


def test_what_cannot_be_compared_stops_no_healthy_tool() -> None:
    run = Run(repeats=3)
    endless: list[Any] = []
    endless.append(endless)

    @run.tool
    def search(query: str, options: Any) -> str:
        return query

    assert search("rust", endless) == "rust"
    assert search("serde", endless) == "serde"
    assert runs_before_it_trips(lambda _: search("axum", endless)) == 2, "what can be compared is"


def test_lambdas_need_a_name_and_others_may_have_one() -> None:
    run = Run(repeats=2)
    with pytest.raises(InvalidInputError, match="name="):
        run.tool(lambda query: query)
    named = run.tool(lambda query: query, name="search")
    named("rust")
    with pytest.raises(LoopDetectedError, match="search"):
        named("rust")
    assert run.tool(partial(print, "x"), name="say") is not None

    @tool(name="look")
    def anything() -> str:
        return "seen"

    assert anything() == "seen"


class Wrapped(Exception):
    original_exception: BaseException


def test_the_trip_behind_an_exception() -> None:
    trip = TripError("over")
    assert trip_of(trip) is trip
    assert trip_of(None) is None and trip_of(ValueError("no")) is None
    try:
        try:
            raise trip
        except TripError as cause:
            raise RuntimeError("the agent failed") from cause
    except RuntimeError as error:
        assert trip_of(error) is trip
        wrapped = Wrapped()
        wrapped.original_exception = error
        assert trip_of(ValueError("step 3", wrapped)) is trip
    around = ValueError()
    around.__context__ = around
    assert trip_of(around) is None, "one that goes round in a circle"
