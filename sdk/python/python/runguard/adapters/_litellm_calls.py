"""Calls of `litellm.completion` and `acompletion`, told to the run around them."""

from __future__ import annotations

import contextvars
import functools
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Iterator, Optional

from runguard.run import current_run

from ._usage import Tokens

if TYPE_CHECKING:
    from runguard import Run


def hooked(original: Callable[..., Any], inside: contextvars.ContextVar[bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def completion(*args: Any, **kwargs: Any) -> Any:
        run = None if inside.get() else current_run()
        if run is None or kwargs.get("acompletion"):
            return original(*args, **kwargs)
        model = _model(args, kwargs)
        run._hooked_model_call()
        token = inside.set(True)
        try:
            answer = original(*args, **_asking_for_usage(kwargs))
        finally:
            inside.reset(token)
        if kwargs.get("stream"):
            return _Stream(answer, run, model, _hides_usage(kwargs))
        _tell(run, model, getattr(answer, "usage", None))
        return answer

    return completion


def hooked_async(original: Callable[..., Any], inside: contextvars.ContextVar[bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def acompletion(*args: Any, **kwargs: Any) -> Any:
        run = None if inside.get() else current_run()
        if run is None:
            return await original(*args, **kwargs)
        model = _model(args, kwargs)
        run._hooked_model_call()
        token = inside.set(True)
        try:
            answer = await original(*args, **_asking_for_usage(kwargs))
        finally:
            inside.reset(token)
        if kwargs.get("stream"):
            return _Stream(answer, run, model, _hides_usage(kwargs))
        _tell(run, model, getattr(answer, "usage", None))
        return answer

    return acompletion


def _model(args: Any, kwargs: Any) -> str:
    return str(args[0] if args else kwargs.get("model") or "unknown")


def _hides_usage(kwargs: Any) -> bool:
    """Whether the caller did not ask for the chunk that has the usage."""
    return not (kwargs.get("stream_options") or {}).get("include_usage")


def _asking_for_usage(kwargs: Any) -> Any:
    if not kwargs.get("stream"):
        return kwargs
    return {**kwargs, "stream_options": {**(kwargs.get("stream_options") or {}), "include_usage": True}}


def _tell(run: Run, model: str, usage: Any) -> None:
    if usage is None:
        return
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or getattr(usage, "cache_read_input_tokens", None)
    written = getattr(usage, "cache_creation_input_tokens", None)
    run._hooked_usage(model, Tokens.of_total(getattr(usage, "prompt_tokens", 0), getattr(usage, "completion_tokens", 0), cached, written))


class _Stream:
    """Chunks as litellm gives them, but for the usage that only the hook asked for."""

    def __init__(self, stream: Any, run: Run, model: str, hides_usage: bool) -> None:
        self._stream, self._run, self._model, self._hides_usage = stream, run, model, hides_usage
        self._usage: Optional[Any] = None

    def _shows(self, chunk: Any) -> bool:
        usage = getattr(chunk, "usage", None)
        self._usage = usage or self._usage
        return not (usage and self._hides_usage and not getattr(chunk, "choices", None))

    def _settle(self) -> None:
        usage, self._usage = self._usage, None
        _tell(self._run, self._model, usage)

    def __iter__(self) -> Iterator[Any]:
        try:
            for chunk in self._stream:
                if self._shows(chunk):
                    yield chunk
        finally:
            self._settle()

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            async for chunk in self._stream:
                if self._shows(chunk):
                    yield chunk
        finally:
            self._settle()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
