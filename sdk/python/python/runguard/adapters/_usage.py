"""Token counts on their way from a framework to the run's budget."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from runguard import _core
from runguard.errors import InvalidInputError, TripError

if TYPE_CHECKING:
    from runguard import Run
    from runguard.run import ModelCall, Told

log = logging.getLogger("runguard")


class Tokens(NamedTuple):
    """Usage as `Run.record_usage` wants it: `input` without the cached and the cache-written tokens."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    audio_input: int = 0
    audio_output: int = 0
    service_tier: Optional[str] = None

    @property
    def counts(self) -> Tuple[int, ...]:
        """The numbers alone."""
        return (self.input, self.output, self.cached, self.cache_write, self.cache_write_1h, self.audio_input, self.audio_output)

    @classmethod
    def of_counts(cls, *counts: int) -> Tokens:
        """From the numbers, in their order; those that are left out are 0."""
        return cls._make((*counts, *cls().counts[len(counts) :], None))

    @classmethod
    def read(cls, provider: str, report: Any, service_tier: Optional[str] = None) -> Optional[Tokens]:
        """From what a provider reports, which is the core's to read; None where nobody has counted, or in no way that can be read: an answer
        that is paid for is not lost to that."""
        fields = reported(report)
        if not fields:
            return None
        try:
            told = _core.read_usage(provider, fields, service_tier if isinstance(service_tier, str) else None)
        except InvalidInputError as problem:
            log.warning("a usage report cannot be read (%s): its cost is an estimate, by its size", problem)
            return None
        return cls(**{name.removesuffix("_tokens"): count for name, count in told.items()})

    @classmethod
    def of_total(
        cls,
        total_input: Optional[int],
        output: Optional[int],
        cached: Optional[int] = 0,
        cache_write: Optional[int] = 0,
        cache_write_1h: Optional[int] = 0,
        audio_input: Optional[int] = 0,
        audio_output: Optional[int] = 0,
        service_tier: Optional[str] = None,
    ) -> Tokens:
        """From frameworks that count cached, cache-written and heard tokens inside the input, and spoken ones inside the output, under names
        of their own: as OpenAI does, but that it does not tell apart how long what is written to a cache is kept."""
        for_an_hour = _count(cache_write_1h)
        report = {
            "input_tokens": _count(total_input),
            "output_tokens": _count(output),
            "input_tokens_details": {
                "cached_tokens": _count(cached),
                "cache_write_tokens": _count(cache_write) + for_an_hour,
                "audio_tokens": _count(audio_input),
            },
            "output_tokens_details": {"audio_tokens": _count(audio_output)},
        }
        tokens = cls.read("openai", report, service_tier) or cls()
        return tokens._replace(cache_write=tokens.cache_write - for_an_hour, cache_write_1h=for_an_hour)


def _count(told: Any) -> int:
    return int(told) if isinstance(told, int) and told > 0 else 0


def reported(usage: Any) -> Dict[str, Any]:
    """The fields of a usage report that say something."""
    dump = getattr(usage, "model_dump", None) or getattr(usage, "to_dict", None)
    fields = usage if isinstance(usage, Mapping) else dump() if callable(dump) else getattr(usage, "__dict__", {})
    return {name: value for name, value in fields.items() if value is not None}


def merged(earlier: Mapping[str, Any], later: Any) -> Dict[str, Any]:
    """What a stream has reported so far, and what it reports now."""
    report: Dict[str, Any] = json.loads(_core.usage_merge(earlier, reported(later)))
    return report


def begin(
    run: Run, model: Optional[str], prompt: Any, max_output: Optional[int] = None, *, choices: Any = 1, can_wait: bool = True
) -> ModelCall:
    """A framework is about to ask a model. Raises when it must not."""
    return run._begin(model, prompt, max_output, choices=choices, can_wait=can_wait)._announce(model)


async def begin_async(run: Run, model: Optional[str], prompt: Any, max_output: Optional[int] = None, *, choices: Any = 1) -> ModelCall:
    return (await run._begin_async(model, prompt, max_output, choices=choices))._announce(model)


def settle(call: Optional[ModelCall], model: Optional[str], tokens: Optional[Tokens], came: int = 0) -> None:
    """Tells what a model call used; without a word of the provider, by the size of what came. A budget it breaks is raised by the run's
    next question, so that a final answer is not lost."""
    if call is not None:
        _tell(call, came, lambda: call._came(came) if tokens is None else call.used(model, *tokens))


def broken_off(call: Optional[ModelCall]) -> None:
    """The same of an answer that ended before its end: what has come of it."""
    if call is not None:
        _tell(call, call._has_come, call._broken_off)


def _tell(call: ModelCall, came: int, tell: Callable[[], None]) -> None:
    try:
        tell()
    except TripError:
        pass
    except (InvalidInputError, OverflowError, TypeError) as problem:
        # Counts that are none: the answer is paid for all the same, and its caller's to keep.
        log.warning("a usage report cannot be read (%s): its cost is an estimate, by its size", problem)
        with contextlib.suppress(TripError):
            call._came(came)


def failed(call: Optional[ModelCall], error: BaseException, told: Optional[Told] = None) -> None:
    """A request that ended with an error."""
    if told is not None:
        told.failed()
    if call is None:
        return
    if may_be_billed(error):
        settle(call, None, None)
    else:
        call.release()


def may_be_billed(error: BaseException) -> bool:
    """Whether a request that ended so may have been answered, and billed. What is no `Exception` breaks it off from here."""
    names: List[str] = []
    cause: Optional[BaseException] = error
    while cause is not None and len(names) < 16:
        names.append(type(cause).__name__)
        cause = cause.__cause__
    return not isinstance(error, Exception) or _core.may_be_billed(names)


def is_in_loop() -> bool:
    """Whether waiting here would hold up an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def note_usage(run: Run, model: Optional[str], tokens: Tokens) -> None:
    """Records what an answer used that somebody else has asked for. A budget it breaks is raised by the run's next question, so that a final answer is not lost."""
    try:
        run.record_usage(model or "unknown", *tokens)
    except TripError:
        pass
