"""A local model service for the adapter tests: OpenAI chat completions and responses, Anthropic messages, streamed or not.

The answers come from a script, not from a model: each script line is the answer to one request, the last line answers every
request after it. A looping script has one line. Only the standard library is used, so every framework's environment can run it.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Iterator, Sequence
from urllib.parse import urlsplit

FINAL_ANSWER = "All done: three sources agree."


@dataclass(frozen=True)
class Call:
    """One tool call the model asks for."""

    tool: str
    args: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One answer of the model: text, tool calls, or both. With an HTTP status it is a failure instead."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    status: int = 200


@dataclass(frozen=True)
class Usage:
    """What each answer reports. `input` counts every prompt token, cached ones too; each wire format splits it its own way."""

    input: int = 1000
    output: int = 50
    cached: int = 400
    cache_write: int = 100
    # Of those written, the ones that are kept an hour.
    cache_write_1h: int = 0
    # Of the input and of the output, sound.
    audio_input: int = 0
    audio_output: int = 0
    service_tier: str | None = None


@dataclass
class Request:
    """One request as it arrived."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]


def looping(tool: str = "search", args: dict[str, Any] | None = None) -> list[Reply]:
    """A model that asks for the same call for ever."""
    return [Reply(calls=(Call(tool, {"query": "rust"} if args is None else args),))]


def healthy(
    tool: str = "search", argument: str = "query", values: Sequence[Any] = ("rust", "tokio", "serde", "hyper", "axum")
) -> list[Reply]:
    """A model that makes one different call after the other and then answers."""
    return [*(Reply(calls=(Call(tool, {argument: value}),)) for value in values), Reply(text=FINAL_ANSWER)]


@dataclass
class ModelServer:
    """Serves a script on a free local port. Use it as a context manager, or call `start` and `stop`."""

    script: list[Reply]
    # None: a service that does not count.
    usage: Usage | None = field(default_factory=Usage)
    requests: list[Request] = field(default_factory=list)
    # Models other than the one under test (a CLI's title writer, say) ask without tools: they get text and use up no script line.
    toolless_text: str | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._line = 0
        self._ids = itertools.count(1)
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.model = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """The base address Anthropic clients want (without /v1)."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def openai_url(self) -> str:
        """The base address OpenAI clients want (with /v1)."""
        return f"{self.url}/v1"

    @property
    def model_calls(self) -> int:
        """How many requests for an answer arrived, failed ones and retries too."""
        with self._lock:
            return len(self.requests)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The request bodies in the order they arrived."""
        with self._lock:
            return [request.body for request in self.requests]

    def start(self) -> ModelServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def forget(self) -> None:
        """Starts the script and the counting anew."""
        with self._lock:
            self.requests.clear()
            self._line = 0

    def answer(self, request: Request) -> Reply:
        """Notes the request and picks its script line."""
        with self._lock:
            self.requests.append(request)
            if self.toolless_text is not None and not request.body.get("tools"):
                return Reply(text=self.toolless_text)
            reply = self.script[min(self._line, len(self.script) - 1)]
            self._line += 1
            return reply

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{next(self._ids):06d}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Many connect at once.
    request_queue_size = 128
    model: ModelServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that closes its connection early is no error here; anything else is a fault of this file.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes: the second would wait for the first to be confirmed, 40 ms.
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": []})

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        model = self.server.model
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = urlsplit(self.path).path
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            self._json(400, {"error": {"type": "invalid_request_error", "message": "unreadable body"}})
            return
        if path.endswith("/count_tokens"):
            self._json(200, {"input_tokens": (model.usage or Usage()).input})
            return
        formats = {"/chat/completions": _Chat, "/completions": _Completions, "/responses": _Responses, "/messages": _Messages, "/converse": _Converse}
        speak = next((wire for end, wire in formats.items() if path.endswith(end)), None)
        if speak is None:
            self._json(404, {"error": {"type": "not_found_error", "message": f"no such route: {path}"}})
            return
        reply = model.answer(Request(path, body, {name.lower(): value for name, value in self.headers.items()}))
        if reply.status != 200:
            failure = {"type": "api_error", "message": f"scripted failure {reply.status}"}
            self._json(reply.status, {"type": "error", "error": failure})
            return
        wire = speak(model, body, reply)
        if body.get("stream"):
            self._events(wire.events())
        else:
            self._json(200, wire.whole())

    def _json(self, status: int, payload: dict[str, Any]) -> None:
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _events(self, events: Iterator[tuple[str | None, dict[str, Any] | str]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for name, data in events:
                text = data if isinstance(data, str) else json.dumps(data)
                frame = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
                encoded = frame.encode()
                self.wfile.write(f"{len(encoded):x}\r\n".encode() + encoded + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            # The client closed the stream early; that is its right.
            self.close_connection = True


class _Wire:
    """One answer in one wire format."""

    def __init__(self, model: ModelServer, body: dict[str, Any], reply: Reply) -> None:
        self.model, self.body, self.reply = model, body, reply
        self.counts, self.usage = model.usage is not None, model.usage or Usage()
        self.name = body.get("model", "unknown")
        self.call_ids = [model.new_id("call") for _ in reply.calls]


def _halves(text: str) -> tuple[str, str]:
    """Two parts, so that a streaming client has something to put together."""
    return text[: len(text) // 2], text[len(text) // 2 :]


class _Chat(_Wire):
    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.usage.input,
            "completion_tokens": self.usage.output,
            "total_tokens": self.usage.input + self.usage.output,
            "prompt_tokens_details": {
                "cached_tokens": self.usage.cached,
                "cache_write_tokens": self.usage.cache_write,
                "audio_tokens": self.usage.audio_input,
            },
            "completion_tokens_details": {"reasoning_tokens": self.usage.output // 2, "audio_tokens": self.usage.audio_output},
        }

    def _finish(self) -> str:
        return "tool_calls" if self.reply.calls else "stop"

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.reply.text or None, "refusal": None}
        if self.reply.calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": call.tool, "arguments": json.dumps(call.args)}}
                for id_, call in zip(self.call_ids, self.reply.calls)
            ]
        choice = {"index": 0, "message": message, "finish_reason": self._finish(), "logprobs": None}
        return {
            "id": self.model.new_id("chatcmpl"),
            "object": "chat.completion",
            "created": 1_790_000_000,
            "model": self.name,
            "choices": [choice],
            "usage": self._usage() if self.counts else None,
            "service_tier": self.usage.service_tier,
        }

    def events(self) -> Iterator[tuple[str | None, dict[str, Any] | str]]:
        id_ = self.model.new_id("chatcmpl")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[None, dict[str, Any]]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return None, {"id": id_, "object": "chat.completion.chunk", "created": 1_790_000_000, "model": self.name, "choices": [choice]}

        yield chunk({"role": "assistant", "content": "" if self.reply.text else None})
        for part in _halves(self.reply.text) if self.reply.text else ():
            yield chunk({"content": part})
        for index, (call_id, call) in enumerate(zip(self.call_ids, self.reply.calls)):
            function = {"name": call.tool, "arguments": ""}
            yield chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})
            for part in _halves(json.dumps(call.args)):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        yield chunk({}, self._finish())
        if self.counts and (self.body.get("stream_options") or {}).get("include_usage"):
            last = chunk({})[1]
            yield None, {**last, "choices": [], "usage": self._usage(), "service_tier": self.usage.service_tier}
        yield None, "[DONE]"


class _Completions(_Chat):
    """The older completions, of a text."""

    def _part(self, text: str, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
        return {"id": "cmpl", "object": "text_completion", "created": 1_790_000_000, "model": self.name, "choices": [choice]}

    def whole(self) -> dict[str, Any]:
        return {**self._part(self.reply.text, "stop"), "usage": self._usage() if self.counts else None}

    def events(self) -> Iterator[tuple[str | None, dict[str, Any] | str]]:
        first, second = _halves(self.reply.text)
        yield None, self._part(first, None)
        yield None, self._part(second, "stop")
        if self.counts and (self.body.get("stream_options") or {}).get("include_usage"):
            yield None, {**self._part("", None), "choices": [], "usage": self._usage()}
        yield None, "[DONE]"


class _Responses(_Wire):
    def _items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if self.reply.text:
            content = {"type": "output_text", "text": self.reply.text, "annotations": [], "logprobs": []}
            items.append(
                {"id": self.model.new_id("msg"), "type": "message", "role": "assistant", "status": "completed", "content": [content]}
            )
        for call_id, call in zip(self.call_ids, self.reply.calls):
            item = {"id": self.model.new_id("fc"), "type": "function_call", "status": "completed", "call_id": call_id}
            items.append({**item, "name": call.tool, "arguments": json.dumps(call.args)})
        return items

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self.usage.input,
            "input_tokens_details": {"cached_tokens": self.usage.cached, "cache_write_tokens": self.usage.cache_write},
            "output_tokens": self.usage.output,
            "output_tokens_details": {"reasoning_tokens": self.usage.output // 2},
            "total_tokens": self.usage.input + self.usage.output,
        }

    def _envelope(self, id_: str, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": id_,
            "object": "response",
            "created_at": 1_790_000_000,
            "status": status,
            "model": self.name,
            "output": items,
            "usage": self._usage() if self.counts and status == "completed" else None,
            "service_tier": self.usage.service_tier,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "previous_response_id": self.body.get("previous_response_id"),
            "temperature": 1.0,
            "top_p": 1.0,
            "tool_choice": "auto",
            "tools": self.body.get("tools") or [],
        }

    def whole(self) -> dict[str, Any]:
        return self._envelope(self.model.new_id("resp"), "completed", self._items())

    def events(self) -> Iterator[tuple[str | None, dict[str, Any] | str]]:
        id_, items = self.model.new_id("resp"), self._items()
        numbers = itertools.count()

        def event(kind: str, **fields: Any) -> tuple[str, dict[str, Any]]:
            return kind, {"type": kind, "sequence_number": next(numbers), **fields}

        yield event("response.created", response=self._envelope(id_, "in_progress", []))
        yield event("response.in_progress", response=self._envelope(id_, "in_progress", []))
        for index, item in enumerate(items):
            if item["type"] == "message":
                at = {"item_id": item["id"], "output_index": index, "content_index": 0}
                part = item["content"][0]
                yield event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "content": []})
                yield event("response.content_part.added", **at, part={**part, "text": ""})
                for half in _halves(part["text"]):
                    yield event("response.output_text.delta", **at, delta=half, logprobs=[])
                yield event("response.output_text.done", **at, text=part["text"], logprobs=[])
                yield event("response.content_part.done", **at, part=part)
            else:
                at = {"item_id": item["id"], "output_index": index}
                yield event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "arguments": ""})
                for half in _halves(item["arguments"]):
                    yield event("response.function_call_arguments.delta", **at, delta=half)
                yield event("response.function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
            yield event("response.output_item.done", output_index=index, item=item)
        yield event("response.completed", response=self._envelope(id_, "completed", items))


class _Messages(_Wire):
    def _input_usage(self) -> dict[str, Any]:
        # Anthropic's input_tokens leaves cached and cache-written tokens out.
        return {
            "input_tokens": self.usage.input - self.usage.cached - self.usage.cache_write,
            "cache_read_input_tokens": self.usage.cached,
            "cache_creation_input_tokens": self.usage.cache_write,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.usage.cache_write - self.usage.cache_write_1h,
                "ephemeral_1h_input_tokens": self.usage.cache_write_1h,
            },
        }

    def _blocks(self) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": self.reply.text}] if self.reply.text else []
        for call_id, call in zip(self.call_ids, self.reply.calls):
            blocks.append({"type": "tool_use", "id": f"toolu_{call_id}", "name": call.tool, "input": call.args})
        return blocks

    def _stop_reason(self) -> str:
        return "tool_use" if self.reply.calls else "end_turn"

    def _message(self, blocks: list[dict[str, Any]], stop_reason: str | None, output_tokens: int) -> dict[str, Any]:
        return {
            "id": self.model.new_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": self.name,
            "content": blocks,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {**self._input_usage(), "output_tokens": output_tokens} if self.counts else None,
        }

    def whole(self) -> dict[str, Any]:
        return self._message(self._blocks(), self._stop_reason(), self.usage.output)

    def events(self) -> Iterator[tuple[str | None, dict[str, Any] | str]]:
        def event(kind: str, **fields: Any) -> tuple[str, dict[str, Any]]:
            return kind, {"type": kind, **fields}

        yield event("message_start", message=self._message([], None, 1))
        yield event("ping")
        for index, block in enumerate(self._blocks()):
            if block["type"] == "text":
                yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
                deltas = [{"type": "text_delta", "text": half} for half in _halves(block["text"])]
            else:
                yield event("content_block_start", index=index, content_block={**block, "input": {}})
                deltas = [{"type": "input_json_delta", "partial_json": half} for half in _halves(json.dumps(block["input"]))]
            for delta in deltas:
                yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        # The counts of a delta are totals so far, not additions.
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        yield event("message_delta", delta=delta, usage={**self._input_usage(), "output_tokens": self.usage.output} if self.counts else None)
        yield event("message_stop")


class _Converse(_Wire):
    """Bedrock's Converse, whole answers only."""

    def whole(self) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"text": self.reply.text}] if self.reply.text else []
        content += [{"toolUse": {"toolUseId": self.model.new_id("tooluse"), "name": call.tool, "input": call.args}} for call in self.reply.calls]
        usage = self.model.usage
        return {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": "tool_use" if self.reply.calls else "end_turn",
            **({"usage": {"inputTokens": usage.input, "outputTokens": usage.output, "totalTokens": usage.input + usage.output}} if usage else {}),
            "metrics": {"latencyMs": 1},
        }
