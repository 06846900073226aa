"""Calls of `litellm.completion` and `acompletion`, told to the run around them."""

from __future__ import annotations

import contextvars
import functools
import inspect
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Iterator, Mapping, Optional, Sequence

from runguard import _core
from runguard.run import current_run

from ._usage import Tokens, failed, settle

if TYPE_CHECKING:
    from runguard.run import ModelCall


def _names(original: Callable[..., Any]) -> Sequence[str]:
    """What may be passed by place."""
    parameters = inspect.signature(original).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def hooked(original: Callable[..., Any], inside: contextvars.ContextVar[bool]) -> Callable[..., Any]:
    names = _names(original)

    @functools.wraps(original)
    def completion(*args: Any, **kwargs: Any) -> Any:
        run = None if inside.get() else current_run()
        if run is None or kwargs.get("acompletion"):
            return original(*args, **kwargs)
        asked = _Asked(names, args, kwargs)
        told = run._told_above(asked.model)
        call = None if told else run._begin(asked.model, asked.prompt, asked.max_output, choices=asked.choices, may_fall_back=True)
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
    names = _names(original)

    @functools.wraps(original)
    async def acompletion(*args: Any, **kwargs: Any) -> Any:
        run = None if inside.get() else current_run()
        if run is None:
            return await original(*args, **kwargs)
        asked = _Asked(names, args, kwargs)
        told = run._told_above(asked.model)
        call = None if told else await run._begin_async(asked.model, asked.prompt, asked.max_output, choices=asked.choices, may_fall_back=True)
        token = inside.set(True)
        try:
            answer = await asked.send(original, call)
        except BaseException as error:
            await run._aside(failed, call, error, told)
            raise
        finally:
            inside.reset(token)
        return answer if call is None else await run._aside(asked.answered, call, answer)

    return acompletion


class _Asked:
    """What a call of litellm asks for."""

    def __init__(self, names: Sequence[str], args: Any, kwargs: Mapping[str, Any]) -> None:
        # By place come only those that have no name.
        self._unnamed = args[len(names) :]
        self._kwargs = {**dict(zip(names, args)), **kwargs}
        self.model = str(self._kwargs.get("model") or "unknown")
        # It is sent as it is, and stands over the rest.
        extra = self._kwargs.get("extra_body")
        self._extra: Mapping[str, Any] = extra if isinstance(extra, Mapping) else {}
        asked = {**self._kwargs, **self._extra}
        self.prompt = [asked.get("messages"), asked.get("tools"), asked.get("functions")]
        self.max_output = asked.get("max_completion_tokens") or asked.get("max_tokens") or None
        self.choices = asked.get("n")

    def send(self, original: Callable[..., Any], call: Optional[ModelCall]) -> Any:
        kwargs = dict(self._kwargs)
        if call is None:
            return original(*self._unnamed, **kwargs)
        if call.model != self.model:
            self.model = kwargs["model"] = call.model
        if call.max_tokens is not None:
            names = ("max_completion_tokens", "max_tokens")
            name = next((name for name in names if self._extra.get(name) or kwargs.get(name)), "max_tokens")
            kwargs[name] = call.max_tokens
            if self._extra:
                kwargs["extra_body"] = {own: value for own, value in self._extra.items() if own not in names}
        if kwargs.get("stream"):
            kwargs["stream_options"] = {**(kwargs.get("stream_options") or {}), "include_usage": True}
        return original(*self._unnamed, **kwargs)

    def answered(self, call: ModelCall, answer: Any) -> Any:
        call._is_sent = True
        if self._kwargs.get("stream"):
            # Whether the caller did not ask for the chunk that has the usage.
            hides_usage = not (self._kwargs.get("stream_options") or {}).get("include_usage")
            return _Stream(answer, call, self.model, hides_usage)
        settle(call, self.model, _tokens(getattr(answer, "usage", None), getattr(answer, "service_tier", None)), _core.answer_size(getattr(answer, "choices", None)))
        return answer


def _tokens(usage: Any, service_tier: Optional[str] = None) -> Optional[Tokens]:
    # LiteLLM has zeros where the provider said nothing.
    if usage is None or not (getattr(usage, "prompt_tokens", 0) or getattr(usage, "completion_tokens", 0)):
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
        self._call._has_come = self._came = self._came + _core.answer_size([getattr(choice, "delta", None) for choice in getattr(chunk, "choices", None) or ()])
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
            await self._call.run._aside(self._settle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
