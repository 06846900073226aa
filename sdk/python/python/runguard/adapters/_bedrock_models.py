"""What models behind Amazon Bedrock used, read from the answers of a `bedrock-runtime` client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional

from ._usage import Tokens

if TYPE_CHECKING:
    from runguard import Run

_OPERATIONS = frozenset(("Converse", "ConverseStream", "InvokeModel", "InvokeModelWithResponseStream"))


def asked_model(service: str, operation: str) -> bool:
    return service == "bedrock-runtime" and operation in _OPERATIONS


def watched(run: Run, operation: str, params: Mapping[str, Any], answer: Any) -> Any:
    """The answer, after the run has heard what it used; of a stream, at its end."""
    model = str(params.get("modelId") or "unknown")
    if operation == "Converse":
        _tell(run, model, _of_converse(answer.get("usage")))
    elif operation == "ConverseStream":
        answer["stream"] = _Stream(answer["stream"], run, model, _converse_event)
    elif operation == "InvokeModel":
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        _tell(run, model, _of_headers(headers))
    else:
        answer["body"] = _Stream(answer["body"], run, model, _chunk_event)
    return answer


def _tell(run: Run, model: str, tokens: Optional[Tokens]) -> None:
    if tokens is not None:
        run._hooked_usage(model, tokens)


def _of_converse(usage: Optional[Mapping[str, Any]]) -> Optional[Tokens]:
    if not usage:
        return None
    return Tokens(
        usage.get("inputTokens") or 0, usage.get("outputTokens") or 0, usage.get("cacheReadInputTokens") or 0, usage.get("cacheWriteInputTokens") or 0
    )


def _of_headers(headers: Mapping[str, str]) -> Optional[Tokens]:
    counts = [headers.get(f"x-amzn-bedrock-{name}-token-count") for name in ("input", "output", "cache-read-input", "cache-write-input")]
    return None if counts[0] is None and counts[1] is None else Tokens(*(int(count or 0) for count in counts))


def _converse_event(event: Mapping[str, Any]) -> Optional[Tokens]:
    return _of_converse(event.get("metadata", {}).get("usage"))


def _chunk_event(event: Mapping[str, Any]) -> Optional[Tokens]:
    try:
        body = json.loads(event.get("chunk", {}).get("bytes") or b"{}")
    except ValueError:
        return None
    metrics = body.get("amazon-bedrock-invocationMetrics") if isinstance(body, dict) else None
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

    def __init__(self, stream: Any, run: Run, model: str, read: Any) -> None:
        self._stream, self._run, self._model, self._read = stream, run, model, read
        self._tokens: Optional[Tokens] = None

    def __iter__(self) -> Iterator[Any]:
        try:
            for event in self._stream:
                self._tokens = self._read(event) or self._tokens
                yield event
        finally:
            self._settle()

    def close(self) -> None:
        self._settle()
        self._stream.close()

    def _settle(self) -> None:
        tokens, self._tokens = self._tokens, None
        _tell(self._run, self._model, tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
