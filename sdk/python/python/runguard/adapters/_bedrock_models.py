"""Model calls of a `bedrock-runtime` client, told to the run around them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Optional

from runguard import _core

from ._usage import Tokens, failed, settle

if TYPE_CHECKING:
    from runguard import Run
    from runguard.run import ModelCall

_OPERATIONS = frozenset(("Converse", "ConverseStream", "InvokeModel", "InvokeModelWithResponseStream"))

# What models that are invoked call the number of their answers.
_CHOICES = ("num_generations", "numResults", "n")


def asked_model(service: str, operation: str) -> bool:
    return service == "bedrock-runtime" and operation in _OPERATIONS


def told(run: Run, operation: str, params: Mapping[str, Any], send: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Sends the request. The answer, after the run has heard what it used; of a stream, at its end."""
    model = str(params.get("modelId") or "unknown")
    converses = operation.startswith("Converse")
    given = params if converses else _read(params.get("body"))
    above = run._told_above(model)
    choices = next((given[name] for name in _CHOICES if name in given), 1)
    call = None if above else run._begin(model, given, _max_output(given), choices=choices, may_fall_back=converses)
    if call is not None and call.model != model:
        params, model = {**params, "modelId": call.model}, call.model
    if converses and call is not None and call.max_tokens is not None:
        params = {**params, "inferenceConfig": {**(params.get("inferenceConfig") or {}), "maxTokens": call.max_tokens}}
    try:
        answer = send(params)
    except BaseException as error:
        failed(call, error, above)
        raise
    if call is None:
        return answer
    call._is_sent = True
    if operation == "Converse":
        settle(call, model, _of_converse(answer.get("usage")), _core.answer_size(answer.get("output")))
    elif operation == "ConverseStream":
        answer["stream"] = _Stream(answer["stream"], call, model, _converse_event)
    elif operation == "InvokeModel":
        settle(call, model, _of_headers(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})))
    else:
        answer["body"] = _Stream(answer["body"], call, model, _chunk_event)
    return answer


def _read(body: Any) -> Dict[str, Any]:
    try:
        given = json.loads(body) if isinstance(body, (str, bytes, bytearray)) else {}
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _max_output(given: Mapping[str, Any]) -> Optional[int]:
    """Each model that is invoked has a name of its own for it."""
    config = given.get("inferenceConfig") or given.get("textGenerationConfig") or given
    names = ("maxTokens", "max_tokens", "max_new_tokens", "max_gen_len", "maxTokenCount", "max_tokens_to_sample")
    found = next((config[name] for name in names if isinstance(config.get(name), int)), None)
    return found if isinstance(found, int) else None


def _of_converse(usage: Optional[Mapping[str, Any]]) -> Optional[Tokens]:
    return Tokens.read("bedrock", usage)


def _of_headers(headers: Mapping[str, str]) -> Optional[Tokens]:
    counts = [headers.get(f"x-amzn-bedrock-{name}-token-count") for name in ("input", "output", "cache-read-input", "cache-write-input")]
    return None if counts[0] is None and counts[1] is None else Tokens.of_counts(*(int(count or 0) for count in counts))


def _converse_event(event: Mapping[str, Any]) -> Optional[Tokens]:
    return _of_converse(event.get("metadata", {}).get("usage"))


def _chunk_event(event: Mapping[str, Any]) -> Optional[Tokens]:
    metrics = _read(event.get("chunk", {}).get("bytes")).get("amazon-bedrock-invocationMetrics")
    if not metrics:
        return None
    return Tokens(
        metrics.get("inputTokenCount") or 0,
        metrics.get("outputTokenCount") or 0,
        metrics.get("cacheReadInputTokenCount") or 0,
        metrics.get("cacheWriteInputTokenCount") or 0,
    )


class _Stream:
    """A stream of events that notes what they say was used. Everything else is the stream's own."""

    def __init__(self, stream: Any, call: ModelCall, model: str, read: Any) -> None:
        self._stream, self._call, self._model, self._read = stream, call, model, read
        self._tokens: Optional[Tokens] = None
        self._came = 0

    def __iter__(self) -> Iterator[Any]:
        try:
            for event in self._stream:
                self._tokens = self._read(event) or self._tokens
                self._came += _core.answer_size(_read(event["chunk"].get("bytes")) if "chunk" in event else event.get("contentBlockDelta"))
                yield event
        finally:
            self._settle()

    def close(self) -> None:
        self._settle()
        self._stream.close()

    def _settle(self) -> None:
        settle(self._call, self._model, self._tokens, self._came)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
