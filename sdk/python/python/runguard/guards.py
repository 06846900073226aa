"""`guard` and `guard_async`: a run around a function, or around a block of code."""

from __future__ import annotations

import contextvars
import functools

from ._typing import cast, overload
from .errors import InvalidInputError
from .run import Run, _current, current_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Awaitable, Callable, Optional, Tuple, TypeVar

    from typing_extensions import Unpack

    from .run import RunOptions

    Function = TypeVar("Function", bound=Callable[..., Any])
    AsyncFunction = TypeVar("AsyncFunction", bound=Callable[..., Awaitable[Any]])

# The runs around the current one, outermost first: of this thread and task, so that one guard can be entered by many.
_outer: contextvars.ContextVar[Tuple[Optional[Run], ...]] = contextvars.ContextVar("runguard_outer_runs", default=())


class Guard:
    """Made by `guard(…)`. As a decorator it opens a new run for every call; as a context manager one for the block."""

    def __init__(self, run: Optional[Run], options: dict[str, Any], *, hook: bool = True, only_async: bool = False) -> None:
        if run is not None and options:
            raise InvalidInputError(f"A run has its own settings, so {', '.join(sorted(options))} cannot be given with it.")
        if run is None:
            # Wrong options are told here, where they are written, not at the first call.
            Run(**options)
        self._run = run
        self._options = options
        self._hook = hook
        self._only_async = only_async

    def _open(self) -> Run:
        if self._run is not None:
            self._run.check()
            return self._run
        outer = current_run()
        if outer is None or outer.budget is None or "budget" in self._options or "url" in self._options:
            return Run(**self._options)
        # A run within a run spends the outer one's money.
        return Run(**self._options, budget=outer.budget)

    def __enter__(self) -> Run:
        run = self._open()
        if self._hook:
            # What it needs takes longer to import than the rest of the package.
            from . import _hooks

            _hooks.enter()
        _outer.set((*_outer.get(), current_run()))
        _current.set(run)
        return run

    def __exit__(self, *_: object) -> None:
        if self._hook:
            from . import _hooks

            _hooks.leave()
        *others, outer = _outer.get()
        _outer.set(tuple(others))
        _current.set(outer)

    async def __aenter__(self) -> Run:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def __call__(self, function: Function) -> Function:
        import inspect

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def in_run_async(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return cast("Function", in_run_async)
        if self._only_async:
            raise InvalidInputError(f"guard_async is for async functions; {getattr(function, '__name__', function)!r} is none. Use guard.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInputError(
                f"{function.__name__!r} is a generator: its body runs piece by piece in the caller's context. Use `with guard(…) as run:` inside of it."
            )

        @functools.wraps(function)
        def in_run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast("Function", in_run)


@overload
def guard(fn: Function) -> Function: ...
@overload
def guard(fn: None = None, *, run: Optional[Run] = None, hook: bool = True, **options: Unpack[RunOptions]) -> Guard: ...
def guard(fn: Any = None, *, run: Optional[Run] = None, hook: bool = True, **options: Any) -> Any:
    """Puts a run around a function (`@guard(max_usd=5)`) or a block (`with guard(max_usd=5) as run:`). Takes what `Run` takes, or a `run`.

    Inside, clients of `openai`, `anthropic`, `boto3` (Bedrock) and `litellm` tell the run of their model calls, whoever makes them; a run
    that is over sends nothing more. `hook=False` leaves them alone.
    """
    made = Guard(run, options, hook=hook)
    return made if fn is None else made(fn)


@overload
def guard_async(fn: AsyncFunction) -> AsyncFunction: ...
@overload
def guard_async(fn: None = None, *, run: Optional[Run] = None, hook: bool = True, **options: Unpack[RunOptions]) -> Guard: ...
def guard_async(fn: Any = None, *, run: Optional[Run] = None, hook: bool = True, **options: Any) -> Any:
    """`guard` for async functions (`@guard_async(max_usd=5)`) and blocks (`async with guard_async(max_usd=5) as run:`)."""
    made = Guard(run, options, hook=hook, only_async=True)
    return made if fn is None else made(fn)
