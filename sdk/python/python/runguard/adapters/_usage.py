"""Token counts on their way from a framework to the run's budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

from runguard.errors import TripError

if TYPE_CHECKING:
    from runguard import Run
    from runguard.run import ModelCall


class Tokens(NamedTuple):
    """Usage as `Run.record_usage` wants it: `input` without the cached and the cache-written tokens."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0

    @classmethod
    def of_total(
        cls, total_input: Optional[int], output: Optional[int], cached: Optional[int] = 0, cache_write: Optional[int] = 0
    ) -> Tokens:
        """From services that count cached and cache-written tokens inside the input."""
        apart = (cached or 0) + (cache_write or 0)
        return cls(max((total_input or 0) - apart, 0), output or 0, cached or 0, cache_write or 0)


def settle(call: Optional[ModelCall], model: Optional[str], tokens: Optional[Tokens], came: int = 0) -> None:
    """Tells what a model call used; without a word of the provider, by the size of what came. A budget it breaks is raised by the run's
    next question, so that a final answer is not lost."""
    if call is None:
        return
    try:
        if tokens is None:
            call._came(came)
        else:
            call.used(model, *tokens)
    except TripError:
        pass


def failed(call: Optional[ModelCall], error: BaseException) -> None:
    """A request that ended with an error. Only one that timed out may have been answered, and billed."""
    if call is None:
        return
    if "Timeout" in type(error).__name__:
        settle(call, None, None)
    else:
        call.release()


def note_usage(run: Run, model: Optional[str], tokens: Tokens) -> None:
    """Records what an answer used. A budget it breaks is raised by the run's next question, so that a final answer is not lost."""
    try:
        run.record_usage(model or "unknown", *tokens)
    except TripError:
        pass
