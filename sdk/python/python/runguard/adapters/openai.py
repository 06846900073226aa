"""Guards a plain `openai` client: chat completions, responses, embeddings and the older completions, sync and async, streamed or not.

    from openai import OpenAI
    from runguard import Run
    from runguard.adapters.openai import guard_openai

    client = guard_openai(OpenAI(), Run(repeats=3, max_usd=1.00))

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

OpenAIClient = TypeVar("OpenAIClient")

__all__ = ["guard_openai"]


def routes() -> Dict[str, Route]:
    return {route.path: route for route in (_Chat(), _Completions(), _Responses(), _Embeddings())}


def guard_openai(client: OpenAIClient, run: Run) -> OpenAIClient:
    """A copy of an `OpenAI` or `AsyncOpenAI` client (Azure too) whose model calls belong to the run."""
    return guard_client(client, run, routes())


def _field(item: Any, name: str) -> Any:
    """Transcripts hold dicts as well as the objects of earlier answers."""
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


class _Chat(Route):
    path = "/chat/completions"

    def transcript(self, body: Mapping[str, Any]) -> Transcript:
        calls: List[ToolCall] = []
        results: Dict[str, ToolResult] = {}
        for message in body.get("messages") or ():
            role = _field(message, "role")
            if role == "user":
                calls.clear()
            elif role == "assistant":
                calls.extend(_chat_calls(message))
            elif role == "tool":
                results[_field(message, "tool_call_id") or ""] = ToolResult(_field(message, "content"))
        return Transcript(calls, results)

    def with_nudges(self, body: Mapping[str, Any], nudges: Mapping[str, str]) -> Dict[str, Any]:
        messages = []
        for message in body.get("messages") or ():
            nudge = nudges.get(_field(message, "tool_call_id") or "") if _field(message, "role") == "tool" else None
            messages.append({**message, "content": _appended(message["content"], nudge, "text")} if nudge else message)
        return {**body, "messages": messages}

    def calls(self, answer: Any) -> List[ToolCall]:
        return [call for choice in answer.choices for call in _chat_calls(choice.message)]

    def tokens(self, answer: Any) -> Optional[Tokens]:
        return _tokens(answer)

    def came(self, answer: Any) -> Any:
        return answer.choices

    def prepare_stream(self, body: Dict[str, Any]) -> Dict[str, Any]:
        # Without this a streamed chat completion reports no usage at all.
        return {**body, "stream_options": {**(body.get("stream_options") or {}), "include_usage": True}}

    def reader(self, asked_body: Mapping[str, Any]) -> Reader:
        return _ChatReader(usage_was_asked_for=bool((asked_body.get("stream_options") or {}).get("include_usage")))


class _ChatReader(Reader):
    def __init__(self, usage_was_asked_for: bool) -> None:
        self._usage_was_asked_for = usage_was_asked_for
        self._tier: Optional[str] = None
        self._report: Dict[str, Any] = {}
        self._parts: Dict[Any, Dict[str, str]] = {}

    def take(self, event: Any) -> List[ToolCall]:
        self._note(event)
        finished: List[ToolCall] = []
        for choice in event.choices:
            for delta in (choice.delta.tool_calls if choice.delta else None) or ():
                part = self._parts.setdefault((choice.index, delta.index), {"id": "", "name": "", "arguments": ""})
                part["id"] = delta.id or part["id"]
                if delta.function is not None:
                    part["name"] += delta.function.name or ""
                    part["arguments"] += delta.function.arguments or ""
            if choice.finish_reason is not None:
                for key in [key for key in self._parts if key[0] == choice.index]:
                    part = self._parts.pop(key)
                    finished.append(ToolCall(part["id"], part["name"], parse_arguments(part["arguments"])))
        return finished

    def _note(self, event: Any) -> None:
        """Who answers, and what it used."""
        self.model = event.model or self.model
        # The chunk with the usage need not say it.
        self._tier = getattr(event, "service_tier", None) or self._tier
        if getattr(event, "usage", None):
            # Some count as they go on.
            self._report = merged(self._report, event.usage)
            self.tokens = Tokens.read("openai", self._report, self._tier)
            self.is_counted = self.tokens is not None

    def came(self, event: Any) -> Any:
        return [choice.delta for choice in event.choices]

    def hides(self, event: Any) -> bool:
        return not self._usage_was_asked_for and not event.choices and getattr(event, "usage", None) is not None


class _WithoutTools(Route):
    def transcript(self, body: Mapping[str, Any]) -> Transcript:
        return Transcript([], {})

    def with_nudges(self, body: Mapping[str, Any], nudges: Mapping[str, str]) -> Dict[str, Any]:
        return dict(body)

    def calls(self, answer: Any) -> List[ToolCall]:
        return []


class _Completions(_WithoutTools, _Chat):
    """The older completions: a text goes on."""

    path = "/completions"

    def came(self, answer: Any) -> Any:
        return [choice.text for choice in answer.choices]

    def reader(self, asked_body: Mapping[str, Any]) -> Reader:
        return _CompletionsReader(usage_was_asked_for=bool((asked_body.get("stream_options") or {}).get("include_usage")))


class _CompletionsReader(_ChatReader):
    def take(self, event: Any) -> List[ToolCall]:
        self._note(event)
        return []

    def came(self, event: Any) -> Any:
        return [choice.text for choice in event.choices]


class _Responses(Route):
    path = "/responses"

    def transcript(self, body: Mapping[str, Any]) -> Transcript:
        calls: List[ToolCall] = []
        results: Dict[str, ToolResult] = {}
        given = body.get("input")
        for item in given if isinstance(given, (list, tuple)) else ():
            if _field(item, "role") == "user":
                calls.clear()
            elif is_result(item):
                results[_field(item, "call_id") or ""] = ToolResult(_field(item, "output"))
            else:
                calls.extend(response_call(item))
        return Transcript(calls, results)

    def with_nudges(self, body: Mapping[str, Any], nudges: Mapping[str, str]) -> Dict[str, Any]:
        items = []
        for item in body.get("input") or ():
            nudge = nudges.get(_field(item, "call_id") or "") if is_result(item) else None
            items.append({**item, "output": _appended(item["output"], nudge, "input_text")} if nudge else item)
        return {**body, "input": items}

    def calls(self, answer: Any) -> List[ToolCall]:
        return [call for item in answer.output for call in response_call(item)]

    def tokens(self, answer: Any) -> Optional[Tokens]:
        return _tokens(answer)

    def came(self, answer: Any) -> Any:
        return answer.output

    def shortened(self, body: Dict[str, Any], max_output: int, bounds: Sequence[str]) -> Dict[str, Any]:
        # The API takes no fewer.
        return super().shortened(body, max(max_output, 16), bounds)

    def reader(self, asked_body: Mapping[str, Any]) -> Reader:
        return _ResponsesReader()


class _ResponsesReader(Reader):
    def __init__(self) -> None:
        self._report: Dict[str, Any] = {}

    def take(self, event: Any) -> List[ToolCall]:
        # `completed`, `incomplete` and `failed` bring the whole response, and with it the usage.
        response = getattr(event, "response", None)
        if response is not None:
            self.model = response.model or self.model
            self._report = merged(self._report, response.usage)
            self.tokens = Tokens.read("openai", self._report, getattr(response, "service_tier", None))
            self.is_counted = self.tokens is not None
        return response_call(event.item) if event.type == "response.output_item.done" else []

    def came(self, event: Any) -> Any:
        return getattr(event, "delta", None)


class _Embeddings(_WithoutTools):
    """Nothing is written."""

    path = "/embeddings"

    def tokens(self, answer: Any) -> Optional[Tokens]:
        return _tokens(answer)

    def came(self, answer: Any) -> Any:
        return None


def _chat_calls(message: Any) -> List[ToolCall]:
    calls = []
    for call in _field(message, "tool_calls") or ():
        function, custom = _field(call, "function"), _field(call, "custom")
        if function is not None:
            arguments = parse_arguments(_field(function, "arguments"))
            calls.append(ToolCall(_field(call, "id") or "", _field(function, "name") or "", arguments))
        elif custom is not None:
            calls.append(ToolCall(_field(call, "id") or "", _field(custom, "name") or "", _field(custom, "input")))
    return calls


def _tokens(answer: Any) -> Optional[Tokens]:
    """Of an answer; how it was served stands beside it."""
    return Tokens.read("openai", answer.usage, getattr(answer, "service_tier", None))


def response_call(item: Any) -> List[ToolCall]:
    kind = _field(item, "type")
    if kind == "function_call":
        return [ToolCall(_field(item, "call_id") or "", _field(item, "name") or "", parse_arguments(_field(item, "arguments")))]
    if kind == "custom_tool_call":
        return [ToolCall(_field(item, "call_id") or "", _field(item, "name") or "", _field(item, "input"))]
    return []


def is_result(item: Any) -> bool:
    """Of a function, or of another kind of tool that the caller runs: each has a name of its own."""
    return str(_field(item, "type")).endswith("_call_output")


def _appended(content: Any, nudge: str, part_type: str) -> Any:
    if isinstance(content, str) or content is None:
        return f"{content}\n\n{nudge}" if content else nudge
    return [*content, {"type": part_type, "text": nudge}]
