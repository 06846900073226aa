"""Token counts on their way from a framework to the run's budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

from runguard.errors import TripError

if TYPE_CHECKING:
    from runguard import Run


class Tokens(NamedTuple):
    """Usage as `Run.record_usage` wants it: `input` without the cached and the cache-written tokens."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0

    @classmethod
    def of_total(
        cls, total_input: Optional[int], output: Optional[int], cached: Optional[int] = 0, cache_write: Optional[int] = 0
    ) -> Tokens:
        """From services that count cached and cache-written tokens inside the input."""
        apart = (cached or 0) + (cache_write or 0)
        return cls(max((total_input or 0) - apart, 0), output or 0, cached or 0, cache_write or 0)


def note_usage(run: Run, model: Optional[str], tokens: Tokens) -> None:
    """Records what an answer used. A budget it breaks is raised by the run's next question, so that a final answer is not lost."""
    try:
        run.record_usage(model or "unknown", *tokens)
    except TripError:
        pass
