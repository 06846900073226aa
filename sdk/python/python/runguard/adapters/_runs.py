"""Which run a call belongs to, where one object of an adapter serves everybody.

Such an object takes a run, a function that makes one, or nothing. A run is the run of all it sees. Otherwise each invocation of the
framework has a run of its own: one that the function makes; or else the run around it (`current_run()`), or a plain `Run()`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import OrderedDict
from typing import Any, Callable, Iterator, Literal, Optional, Tuple, Union

from runguard.errors import InvalidInputError
from runguard.run import Run, _current, _let_run, _lets_run, current_run

RunLike = Union[Run, Callable[[], Run], None]
OnTrip = Literal["raise", "end"]
# What becomes of a tool call whose result the model has already: it runs until the run is stopped, or the model is told so instead.
OnRepeat = Literal["run", "tell"]

# Invocations that never said that they ended are forgotten beyond these, the oldest first.
CAPACITY = 10_000
_FIRST_SWEEP = 64


class Runs:
    """The runs of the invocations that are under way."""

    def __init__(self, given: RunLike = None) -> None:
        if given is not None and not isinstance(given, Run) and not callable(given):
            raise InvalidInputError(f"Give a Run, a function that makes one, or nothing; not {given!r}.")
        self.given = given
        self._lock = threading.Lock()
        # By what stands for an invocation: a text, or an object of the framework's that lives as long as it, which is kept here with it.
        self._runs: OrderedDict[Any, Tuple[Any, Run]] = OrderedDict()
        self._sweep_at = _FIRST_SWEEP

    def of(self, invocation: Any) -> Run:
        """The run of an invocation. One inside of another, in a tool, has the run of that."""
        if isinstance(self.given, Run):
            return self.given
        around = current_run()
        if around is not None and (self.given is None or getattr(around, "_made_by", None) is self):
            return around
        key = _key(invocation)
        with self._lock:
            known = self._runs.get(key)
            if known is not None:
                self._runs.move_to_end(key)
                return known[1]
        return self._made(key, invocation)

    def end(self, invocation: Any) -> None:
        """The invocation is over."""
        with self._lock:
            self._runs.pop(_key(invocation), None)

    def __len__(self) -> int:
        return len(self._runs)

    def new(self) -> Run:
        """A run for an invocation whose beginning and end the adapter sees itself."""
        if isinstance(self.given, Run):
            return self.given
        around = current_run()
        if around is not None and (self.given is None or getattr(around, "_made_by", None) is self):
            return around
        return self._make()

    def _make(self) -> Run:
        run = Run() if self.given is None else self.given()  # type: ignore[operator]
        if not isinstance(run, Run):
            raise InvalidInputError(f"The function that makes runs gave {run!r}, which is no Run.")
        run._made_by = self
        return run

    def _made(self, key: Any, invocation: Any) -> Run:
        run = self._make()
        with self._lock:
            # Calls side by side may both have made one: the first stays.
            run = self._runs.setdefault(key, (invocation, run))[1]
            if len(self._runs) >= self._sweep_at:
                self._sweep()
        return run

    def _sweep(self) -> None:
        for key in list(self._runs):
            invocation = self._runs[key][0]
            # Held by the table, this variable and the question: nobody else knows the invocation, so it is over.
            if not isinstance(invocation, (str, int)) and sys.getrefcount(invocation) <= 3:
                del self._runs[key]
        while len(self._runs) > CAPACITY:
            self._runs.popitem(last=False)
        self._sweep_at = min(max(_FIRST_SWEEP, 2 * len(self._runs)), CAPACITY + 1)


def _key(invocation: Any) -> Any:
    return invocation if isinstance(invocation, (str, int)) else id(invocation)


@contextlib.contextmanager
def within(run: Run, tool: Optional[str] = None) -> Iterator[None]:
    """Code in the block belongs to the run: a tool, whose call is counted, and the agents it starts."""
    token, told = _current.set(run), None if tool is None else _lets_run(run, tool)
    try:
        yield
    finally:
        _current.reset(token)
        if told is not None:
            _let_run.reset(told)


def starts(run: Run, tool: str) -> None:
    """The same for a task that runs nothing but the tool."""
    _current.set(run)
    _lets_run(run, tool)


def checked(on_trip: Any) -> OnTrip:
    if on_trip not in ("raise", "end"):
        raise InvalidInputError(f'on_trip must be "raise" or "end", not {on_trip!r}.')
    return on_trip  # type: ignore[no-any-return]


def tells(on_repeat: Any) -> bool:
    """Whether the model is told."""
    if on_repeat not in ("run", "tell"):
        raise InvalidInputError(f'on_repeat must be "run" or "tell", not {on_repeat!r}.')
    return on_repeat == "tell"  # type: ignore[no-any-return]
