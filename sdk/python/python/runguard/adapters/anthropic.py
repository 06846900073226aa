"""Guards a plain `anthropic` client: messages, sync and async, streamed or not (Bedrock and Vertex clients too).

    from anthropic import Anthropic
    from runguard import Run
    from runguard.adapters.anthropic import guard_anthropic

    client = guard_anthropic(Anthropic(), Run(repeats=3, max_usd=1.00))

The returned client is a copy that shares the connections of the one given. Each tool call the model asks for is counted when the
answer arrives, so the one that trips is raised out of `create` (or out of the stream) and never reaches your code. After a trip
nothing is sent any more. Retries made by the client itself are no steps. Of answers whose bytes are read by hand
(`with_streaming_response`) the cost counts when they have come, and their tool calls with the next request. Call `run.new_turn()` when the
user says something new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, TypeVar

from ._client import Reader, Route, ToolCall, ToolResult, Transcript, guard_client, parse_arguments
from ._usage import Tokens, merged

if TYPE_CHECKING:
    from runguard import Run

AnthropicClient = TypeVar("AnthropicClient")

__all__ = ["guard_anthropic"]


def routes() -> Dict[str, Route]:
    return {_Messages.path: _Messages()}


def guard_anthropic(client: AnthropicClient, run: Run) -> AnthropicClient:
    """A copy of an `Anthropic` or `AsyncAnthropic` client whose model calls belong to the run."""
    return guard_client(client, run, routes())


def _field(item: Any, name: str) -> Any:
    """Transcripts hold dicts as well as the objects of earlier answers."""
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _blocks(message: Any) -> List[Any]:
    content = _field(message, "content")
    return [] if content is None or isinstance(content, str) else list(content)


def _call(block: Any) -> List[ToolCall]:
    if _field(block, "type") != "tool_use":
        return []
    return [ToolCall(_field(block, "id") or "", _field(block, "name") or "", _field(block, "input"))]


class _Messages(Route):
    path = "/messages"

    def transcript(self, body: Mapping[str, Any]) -> Transcript:
        calls: List[ToolCall] = []
        results: Dict[str, ToolResult] = {}
        for message in body.get("messages") or ():
            blocks = _blocks(message)
            if _field(message, "role") == "assistant":
                calls.extend(call for block in blocks for call in _call(block))
                continue
            answers = [block for block in blocks if _field(block, "type") == "tool_result"]
            if not answers:
                # Tool results come in the user's name; a message without any is the user's own.
                calls.clear()
            for block in answers:
                content = _field(block, "content")
                error = _text(content) if _field(block, "is_error") else None
                results[_field(block, "tool_use_id") or ""] = ToolResult(content, error)
        return Transcript(calls, results)

    def with_nudges(self, body: Mapping[str, Any], nudges: Mapping[str, str]) -> Dict[str, Any]:
        messages = []
        for message in body.get("messages") or ():
            blocks = [_nudged(block, nudges) for block in _blocks(message)]
            messages.append({**message, "content": blocks} if _has_result(blocks) else message)
        return {**body, "messages": messages}

    def calls(self, answer: Any) -> List[ToolCall]:
        return [call for block in answer.content for call in _call(block)]

    def tokens(self, answer: Any) -> Optional[Tokens]:
        return Tokens.read("anthropic", answer.usage)

    def came(self, answer: Any) -> Any:
        return answer.content

    def shortened(self, body: Dict[str, Any], max_output: int, bounds: Sequence[str]) -> Dict[str, Any]:
        thinking = body.get("thinking")
        budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
        # Thinking has a part of the answer, of at least 1,024 tokens; the API refuses one that is not longer.
        if isinstance(thinking, Mapping) and isinstance(budget, int) and budget >= max_output:
            if max_output <= 1_024:
                return super().shortened({name: value for name, value in body.items() if name != "thinking"}, max_output, bounds)
            body = {**body, "thinking": {**thinking, "budget_tokens": max(1_024, max_output // 2)}}
        return super().shortened(body, max_output, bounds)

    def reader(self, asked_body: Mapping[str, Any]) -> Reader:
        return _MessagesReader()


class _MessagesReader(Reader):
    def __init__(self) -> None:
        self._report: Dict[str, Any] = {}
        self._open: Dict[int, Dict[str, str]] = {}

    def take(self, event: Any) -> List[ToolCall]:
        if event.type == "message_start":
            self.model = event.message.model
            self._reported(event.message.usage)
        elif event.type == "message_delta" and event.usage:
            self._reported(event.usage)
            self.is_counted = self.tokens is not None
        elif event.type == "content_block_start" and event.content_block.type == "tool_use":
            self._open[event.index] = {"id": event.content_block.id, "name": event.content_block.name, "json": ""}
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta" and event.index in self._open:
            self._open[event.index]["json"] += event.delta.partial_json
        elif event.type == "content_block_stop" and event.index in self._open:
            block = self._open.pop(event.index)
            return [ToolCall(block["id"], block["name"], parse_arguments(block["json"]))]
        return []

    def _reported(self, usage: Any) -> None:
        self._report = merged(self._report, usage)
        self.tokens = Tokens.read("anthropic", self._report)

    def came(self, event: Any) -> Any:
        return getattr(event, "delta", None) if event.type == "content_block_delta" else None


def _nudged(block: Any, nudges: Mapping[str, str]) -> Any:
    nudge = nudges.get(_field(block, "tool_use_id") or "") if _field(block, "type") == "tool_result" else None
    if nudge is None:
        return block
    content = block.get("content")
    if isinstance(content, str) or content is None:
        return {**block, "content": f"{content}\n\n{nudge}" if content else nudge}
    return {**block, "content": [*content, {"type": "text", "text": nudge}]}


def _has_result(blocks: List[Any]) -> bool:
    return any(_field(block, "type") == "tool_result" for block in blocks)


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or "error"
    return " ".join(str(_field(block, "text") or "") for block in content).strip() or "error"
