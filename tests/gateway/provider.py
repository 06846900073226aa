"""A provider of models that honours what it is asked for: it writes as many tokens as it likes, but no more than it may, counts them,
and speaks the wire formats of OpenAI, Anthropic and (bedrock_wire.py) Bedrock byte by byte as they are. How it misbehaves is said per test.

A token is a word with a blank behind it, so what an answer costs can be said beforehand.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Iterator

import bedrock_wire

WORD = "word "


@dataclass
class Behaviour:
    """What the next answers are like."""

    # Tokens it would write if it may.
    tokens: int = 5
    # Says what was used; a provider that does not is None.
    counts: bool = True
    # Pays no attention to the longest answer asked for.
    ignores_bound: bool = False
    # Seconds before an answer in one piece.
    waits: float = 0.0
    # Seconds before the first piece of a stream.
    silence: float = 0.0
    # Seconds between two pieces of a stream.
    pause: float = 0.0
    # The stream breaks off behind so many pieces.
    breaks_after: int | None = None
    # Bytes are sent in pieces of this size, whatever they are.
    piece: int | None = None
    status: int = 200
    # Models that fail, with their status; others answer.
    failing: dict[str, int] = field(default_factory=dict)
    # Statuses of the next answers, whoever is asked; then it goes on as usual.
    first: list[int] = field(default_factory=list)
    # Models whose streams tell of a mistake: behind so many events, of this kind.
    breaking: dict[str, tuple[int, str]] = field(default_factory=dict)
    # Of answers that are refusals.
    headers: dict[str, str] = field(default_factory=dict)
    # The model's next step: a call of this tool with these arguments, instead of words.
    call: tuple[str, dict[str, Any]] | None = None
    # So many of it side by side, in answers that can be referred to.
    side_by_side: int = 1
    # Calls of answers that can be referred to have names of their own; some services use them again.
    own_names: bool = False
    # It knows of conversations, and says which one an answer belongs to; others pay no attention to the member.
    keeps_conversations: bool = True
    # A body with status 200, in place of an answer in one piece.
    instead: Any = None
    # The model that a chat's answer says it is from, where that is another than the one that was asked.
    says_model: str | None = None
    # Instead of what was counted.
    input_tokens: int | None = None
    # The only name that it reads as the bound of an answer; others are unknown to it.
    reads_bound: str | None = None
    # How it says it has served, where it does.
    service_tier: str | None = None
    # Tokens that it thinks before it writes: they are counted, and nobody sees them.
    thinks: int = 0
    # Seconds that it thinks.
    thinking: float = 0.0


@dataclass
class Asked:
    path: str
    body: Any
    raw: bytes
    headers: dict[str, str]


@dataclass
class Provider:
    behaviour: Behaviour = field(default_factory=Behaviour)
    asked: list[Asked] = field(default_factory=list)
    # Streams whose reader went away before their end.
    left: int = 0
    written: int = 0

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.http = _Http(("127.0.0.1", 0), _Handler)
        self.http.provider = self
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    @property
    def bodies(self) -> list[Any]:
        return [asked.body for asked in self.asked]

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def tokens_of(self, body: dict[str, Any]) -> tuple[int, int, str]:
        """Tokens of the prompt, tokens that are written, and why it ends."""
        behaviour = self.behaviour
        read = behaviour.input_tokens if behaviour.input_tokens is not None else len(json.dumps(body.get("messages") or body.get("input"))) // 4
        names = (behaviour.reads_bound,) if behaviour.reads_bound else ("max_completion_tokens", "max_tokens", "max_output_tokens")
        bound = next((body[name] for name in names if body.get(name)), None)
        if bound is None or behaviour.ignores_bound or behaviour.tokens <= bound:
            return read, behaviour.tokens, "stop"
        return read, bound, "length"


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    provider: Provider

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes: the second would wait for the first to be confirmed, 40 ms.
    disable_nagle_algorithm = True
    server: _Http
    number = 0

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": "gpt-4o", "object": "model"}]})

    def do_POST(self) -> None:
        provider = self.server.provider
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        body = json.loads(raw)
        with provider.lock:
            provider.asked.append(Asked(self.path, body, raw, {name.lower(): value for name, value in self.headers.items()}))
            # What its answer is called to its end, whoever asks meanwhile.
            self.number = len(provider.asked)
        behaviour = provider.behaviour
        if self.path.startswith("/model/"):
            bedrock_wire.answer(self, raw, WORD)
            return
        status = behaviour.first.pop(0) if behaviour.first else behaviour.failing.get(body.get("model"), behaviour.status)
        if status != 200:
            self._json(status, {"error": {"message": "scripted", "type": "server_error"}}, behaviour.headers)
            return
        path = self.path.split("?")[0]
        read, write, why = provider.tokens_of(body)
        with provider.lock:
            provider.written += write
        if path.endswith("/count_tokens"):
            self._json(200, {"input_tokens": read})
        elif path.endswith("/embeddings"):
            self._json(200, {"object": "list", "model": body["model"], "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
                             "usage": {"prompt_tokens": read, "total_tokens": read}})
        elif path.endswith("/chat/completions"):
            self._answer(body, self._chat(body, read, write, why), self._chat_events(body, read, write, why))
        elif path.endswith("/responses"):
            self._answer(body, self._response(body, read, write, why), self._response_events(body, read, write, why))
        else:
            self._answer(body, self._message(body, read, write, why), self._message_events(body, read, write, why))

    # -- OpenAI ---------------------------------------------------------------------------------

    def _usage(self, read: int, write: int) -> dict[str, Any]:
        write += self.server.provider.behaviour.thinks
        return {"prompt_tokens": read, "completion_tokens": write, "total_tokens": read + write}

    def _tier(self) -> dict[str, str]:
        tier = self.server.provider.behaviour.service_tier
        return {"service_tier": tier} if tier else {}

    def _chat(self, body: dict[str, Any], read: int, write: int, why: str) -> dict[str, Any]:
        behaviour = self.server.provider.behaviour
        message: dict[str, Any] = {"role": "assistant", "content": WORD * write}
        if behaviour.call:
            name, arguments = behaviour.call
            call = {"id": f"call_{self.number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            why = "tool_calls"
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": behaviour.says_model or body["model"],
                  "choices": [{"index": 0, "message": message, "finish_reason": why}], **self._tier()}
        return {**answer, "usage": self._usage(read, write)} if behaviour.counts else answer

    def _chat_events(self, body: dict[str, Any], read: int, write: int, why: str) -> Iterator[tuple[str | None, Any]]:
        behaviour = self.server.provider.behaviour
        asked = (body.get("stream_options") or {}).get("include_usage") and behaviour.counts

        def chunk(choices: list[Any], usage: Any = None) -> dict[str, Any]:
            piece = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": behaviour.says_model or body["model"], "choices": choices, **self._tier()}
            return {**piece, "usage": usage} if asked else piece

        yield None, chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        time.sleep(behaviour.thinking)
        if behaviour.call:
            name, arguments = behaviour.call
            call = {"index": 0, "id": f"call_{self.number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            yield None, chunk([{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}])
            why = "tool_calls"
        else:
            for _ in range(write):
                yield None, chunk([{"index": 0, "delta": {"content": WORD}, "finish_reason": None}])
        yield None, chunk([{"index": 0, "delta": {}, "finish_reason": why}])
        if asked:
            yield None, chunk([], self._usage(read, write))
        yield None, "[DONE]"

    def _response(self, body: dict[str, Any], read: int, write: int, why: str, status: str | None = None) -> dict[str, Any]:
        status = status or ("completed" if why == "stop" else "incomplete")
        done = status != "in_progress"
        item = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": WORD * write, "annotations": []}]}
        counts = done and self.server.provider.behaviour.counts
        items = self._response_calls() if self.server.provider.behaviour.call else [item]
        named = body.get("conversation") if self.server.provider.behaviour.keeps_conversations else None
        kept = {"conversation": {"id": named["id"] if isinstance(named, dict) else named}} if named else {}
        return {**kept, "id": f"resp_{self.number}", "object": "response", "created_at": 1, "status": status, "model": body["model"],
                "output": items if done else [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
                "usage": {"input_tokens": read, "output_tokens": write, "total_tokens": read + write} if counts else None}

    def _response_calls(self) -> list[dict[str, Any]]:
        behaviour = self.server.provider.behaviour
        name, arguments = behaviour.call or ("", {})
        unique = f"{self.number}_" if behaviour.own_names else ""
        return [{"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{unique}{number}", "name": name, "arguments": json.dumps(arguments), "status": "completed"}
                for number in range(behaviour.side_by_side)]

    def _response_events(self, body: dict[str, Any], read: int, write: int, why: str) -> Iterator[tuple[str | None, Any]]:
        yield "response.created", {"type": "response.created", "sequence_number": 0, "response": self._response(body, read, write, why, "in_progress")}
        if self.server.provider.behaviour.call:
            calls = self._response_calls()
            for number, call in enumerate(calls):
                yield "response.output_item.added", {"type": "response.output_item.added", "sequence_number": 2 * number + 1, "output_index": number, "item": {**call, "arguments": ""}}
                yield "response.output_item.done", {"type": "response.output_item.done", "sequence_number": 2 * number + 2, "output_index": number, "item": call}
            yield "response.completed", {"type": "response.completed", "sequence_number": 2 * len(calls) + 1, "response": self._response(body, read, write, "stop")}
            return
        item = {"type": "message", "id": "msg_1", "status": "in_progress", "role": "assistant", "content": []}
        yield "response.output_item.added", {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": item}
        part = {"type": "output_text", "text": "", "annotations": []}
        yield "response.content_part.added", {"type": "response.content_part.added", "sequence_number": 2, "item_id": "msg_1",
                                              "output_index": 0, "content_index": 0, "part": part}
        for number in range(write):
            yield "response.output_text.delta", {"type": "response.output_text.delta", "sequence_number": number + 3, "item_id": "msg_1",
                                                 "output_index": 0, "content_index": 0, "delta": WORD, "logprobs": []}
        last = "response.completed" if why == "stop" else "response.incomplete"
        yield last, {"type": last, "sequence_number": write + 3, "response": self._response(body, read, write, why)}

    # -- Anthropic ------------------------------------------------------------------------------

    def _message(self, body: dict[str, Any], read: int, write: int, why: str) -> dict[str, Any]:
        behaviour = self.server.provider.behaviour
        content: list[Any] = [{"type": "text", "text": WORD * write}]
        stop = "end_turn" if why == "stop" else "max_tokens"
        if behaviour.call:
            name, arguments = behaviour.call
            content, stop = [{"type": "tool_use", "id": f"toolu_{self.number}", "name": name, "input": arguments}], "tool_use"
        answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": content,
                  "stop_reason": stop, "stop_sequence": None}
        return {**answer, "usage": {"input_tokens": read, "output_tokens": write}} if behaviour.counts else answer

    def _message_events(self, body: dict[str, Any], read: int, write: int, why: str) -> Iterator[tuple[str | None, Any]]:
        start = {**self._message(body, read, 0, why), "content": [], "stop_reason": None, "usage": {"input_tokens": read, "output_tokens": 1}}
        yield "message_start", {"type": "message_start", "message": start}
        yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for _ in range(write):
            yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": WORD}}
        yield "content_block_stop", {"type": "content_block_stop", "index": 0}
        stop = "end_turn" if why == "stop" else "max_tokens"
        yield "message_delta", {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": write}}
        yield "message_stop", {"type": "message_stop"}

    # -- the wire -------------------------------------------------------------------------------

    def _answer(self, body: dict[str, Any], whole: dict[str, Any], events: Iterator[tuple[str | None, Any]]) -> None:
        behaviour = self.server.provider.behaviour
        if not body.get("stream"):
            time.sleep(behaviour.waits)
            self._json(200, whole if behaviour.instead is None else behaviour.instead)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        time.sleep(behaviour.silence)
        try:
            breaking = behaviour.breaking.get(body.get("model"))
            for number, (name, data) in enumerate(events):
                if breaking and number == breaking[0]:
                    self.write_event(self._mistake(breaking[1]))
                    break
                if behaviour.breaks_after is not None and number >= behaviour.breaks_after:
                    self.close_connection = True
                    return
                text = data if isinstance(data, str) else json.dumps(data)
                event = ((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode()
                self.write_event(event)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            with self.server.provider.lock:
                self.server.provider.left += 1
            self.close_connection = True

    def _mistake(self, kind: str) -> bytes:
        """A mistake that is told in a stream, in the words of the interface."""
        if self.path.endswith("/messages"):
            return f'event: error\ndata: {json.dumps({"type": "error", "error": {"type": kind, "message": "scripted"}})}\n\n'.encode()
        if self.path.endswith("/responses"):
            return f'event: error\ndata: {json.dumps({"type": "error", "code": kind, "message": "scripted", "param": None, "sequence_number": 0})}\n\n'.encode()
        return f'data: {json.dumps({"error": {"message": "scripted", "type": kind, "code": None, "param": None}})}\n\n'.encode()

    def write_event(self, event: bytes) -> None:
        behaviour = self.server.provider.behaviour
        size = behaviour.piece or len(event)
        for start in range(0, len(event), size):
            part = event[start:start + size]
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.flush()
        if behaviour.pause:
            time.sleep(behaviour.pause)

    def _json(self, status: int, payload: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("x-request-id", "req_1")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
