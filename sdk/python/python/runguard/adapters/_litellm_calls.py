"""Calls of `litellm.completion` and `acompletion`, told to the run around them."""

from __future__ import annotations

import contextvars
import functools
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Iterator, Mapping, Optional

from runguard import _core
from runguard.run import current_run

from ._usage import Tokens, failed, settle

if TYPE_CHECKING:
    from runguard.run import ModelCall


def hooked(original: Callable[..., Any], inside: contextvars.ContextVar[bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def completion(*args: Any, **kwargs: Any) -> Any:
        run = None if inside.get() else current_run()
        if run is None or kwargs.get("acompletion"):
            return original(*args, **kwargs)
        asked = _Asked(args, kwargs)
        told = run._told_above(asked.model)
        call = None if told else run._begin(asked.model, asked.prompt, asked.max_output, may_fall_back=True)
        token = inside.set(True)
        try:
            answer = asked.send(original, call)
        except BaseException as error:
            failed(call, error, told)
            raise
        finally:
            inside.reset(token)
        return answer if call is None else asked.answered(call, answer)

    return completion


def hooked_async(original: Callable[..., Any], inside: contextvars.ContextVar[bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def acompletion(*args: Any, **kwargs: Any) -> Any:
        run = None if inside.get() else current_run()
        if run is None:
            return await original(*args, **kwargs)
        asked = _Asked(args, kwargs)
        told = run._told_above(asked.model)
        call = None if told else await run._begin_async(asked.model, asked.prompt, asked.max_output, may_fall_back=True)
        token = inside.set(True)
        try:
            answer = await asked.send(original, call)
        except BaseException as error:
            failed(call, error, told)
            raise
        finally:
            inside.reset(token)
        return answer if call is None else asked.answered(call, answer)

    return acompletion


class _Asked:
    """What a call of litellm asks for."""

    def __init__(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        self.model = str(args[0] if args else kwargs.get("model") or "unknown")
        self.prompt = [args[1] if len(args) > 1 else kwargs.get("messages"), kwargs.get("tools")]
        longest = kwargs.get("max_completion_tokens") or kwargs.get("max_tokens")
        self.max_output = longest * (kwargs.get("n") or 1) if isinstance(longest, int) else None
        self._args, self._kwargs = args, kwargs

    def send(self, original: Callable[..., Any], call: Optional[ModelCall]) -> Any:
        if call is None:
            return original(*self._args, **self._kwargs)
        args, kwargs = self._args, dict(self._kwargs)
        if call.model != self.model:
            self.model = call.model
            args, kwargs = ((call.model, *args[1:]), kwargs) if args else (args, {**kwargs, "model": call.model})
        if call.max_tokens is not None:
            name = "max_completion_tokens" if kwargs.get("max_completion_tokens") else "max_tokens"
            kwargs[name] = max(call.max_tokens // (kwargs.get("n") or 1), 1)
        if kwargs.get("stream"):
            kwargs["stream_options"] = {**(kwargs.get("stream_options") or {}), "include_usage": True}
        return original(*args, **kwargs)

    def answered(self, call: ModelCall, answer: Any) -> Any:
        call._is_sent = True
        if self._kwargs.get("stream"):
            # Whether the caller did not ask for the chunk that has the usage.
            hides_usage = not (self._kwargs.get("stream_options") or {}).get("include_usage")
            return _Stream(answer, call, self.model, hides_usage)
        settle(call, self.model, _tokens(getattr(answer, "usage", None), getattr(answer, "service_tier", None)), _core.text_size(getattr(answer, "choices", None)))
        return answer


def _tokens(usage: Any, service_tier: Optional[str] = None) -> Optional[Tokens]:
    if usage is None:
        return None
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or getattr(usage, "cache_read_input_tokens", None)
    written = getattr(usage, "cache_creation_input_tokens", None)
    for_an_hour = getattr(getattr(details, "cache_creation_token_details", None), "ephemeral_1h_input_tokens", None) or 0
    return Tokens.of_total(
        getattr(usage, "prompt_tokens", 0),
        getattr(usage, "completion_tokens", 0),
        cached,
        max((written or 0) - for_an_hour, 0),
        for_an_hour,
        getattr(details, "audio_tokens", None),
        getattr(getattr(usage, "completion_tokens_details", None), "audio_tokens", None),
        service_tier,
    )


class _Stream:
    """Chunks as litellm gives them, but for the usage that only the hook asked for."""

    def __init__(self, stream: Any, call: ModelCall, model: str, hides_usage: bool) -> None:
        self._stream, self._call, self._model, self._hides_usage = stream, call, model, hides_usage
        self._usage: Optional[Any] = None
        self._came = 0

    def _shows(self, chunk: Any) -> bool:
        usage = getattr(chunk, "usage", None)
        self._usage = usage or self._usage
        self._came += _core.text_size([getattr(choice, "delta", None) for choice in getattr(chunk, "choices", None) or ()])
        return not (usage and self._hides_usage and not getattr(chunk, "choices", None))

    def _settle(self) -> None:
        settle(self._call, self._model, _tokens(self._usage), self._came)

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
