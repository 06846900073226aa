"""Bytes that no library would send, on both sides of the gateway: nothing is passed on wrongly, nothing is paid twice, and who asked hears of it in
the words of the provider."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "attack"))

from raw import ask, connect, head, is_closed_within, read_answer, resident_mb, status_of, wait_until  # noqa: E402
from runguard_process import Server  # noqa: E402
from test_gateway import CHAT, HELLO, MESSAGES, raw, reserved, spent  # noqa: E402

QUESTION = {"model": CHAT, "messages": HELLO, "max_tokens": 1000}
# What was set aside for it: 1,000 tokens of an answer, and a prompt of less than 100; before others, for 1.7 times as much, until an answer has said
# how it is served.
SET_ASIDE = (0.01, 1.7 * 0.0103)
ANSWER = json.dumps({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": CHAT, "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}}).encode()
ANSWER_USD = 10 * 2.5e-6 + 10 * 10e-6
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'


def whole(body: bytes, *, length: int | None = None) -> bytes:
    return JSON_HEAD + f"content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def chunked(*pieces: bytes) -> bytes:
    return b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces)


class RawProvider:
    """Takes questions as they come over the wire, and answers with bytes."""

    def __init__(self) -> None:
        self.forget()
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> None:
        self.questions: list[bytes] = []
        # How a question is answered, and whether the connection ends with that.
        self.says: Callable[[socket.socket], None] = lambda connection: connection.sendall(whole(ANSWER))
        self.closes = False

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    question = read_answer(connection)
                    if not question:
                        return
                    self.questions.append(question)
                    self.says(connection)
                except OSError:
                    return
                if self.closes:
                    return

    def stop(self) -> None:
        self.listening.close()


@pytest.fixture(scope="module")
def of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, RawProvider]]:
    upstream = RawProvider()
    # A provider that lies all the time is not asked for a while: here it is.
    settings = "[gateway]\nmax_body_mb = 1\ncircuits = false\n"
    arguments = ("--openai", f"{upstream.url}/v1", "--anthropic", upstream.url, "--max-usd-per-run", "1")
    server = Server(tmp_path_factory.mktemp("wire"), config=settings, virtual_clock=False, verb="gateway", arguments=arguments).start()
    yield server, upstream
    server.stop()
    upstream.stop()


@pytest.fixture
def upstream(of_the_module: tuple[Server, RawProvider]) -> RawProvider:
    upstream = of_the_module[1]
    upstream.forget()
    return upstream


@pytest.fixture
def wire(of_the_module: tuple[Server, RawProvider]) -> Server:
    return of_the_module[0]


RUNS = itertools.count()


@pytest.fixture
def run() -> str:
    return f"run-{next(RUNS)}"


def question(server: Any, run: str, **more: Any) -> httpx.Response:
    return raw(f"{server.url}/openai/v1/chat/completions", {**QUESTION, **more}, **{"x-runguard-run": run})


def settled(server: Any, run: str) -> float:
    wait_until(lambda: reserved(server, run) == 0)
    return spent(server, run)


# -- a provider that lies ----------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [
    whole(ANSWER, length=len(ANSWER) + 50),
    JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(ANSWER),
    JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n" + f"{len(ANSWER) + 9:x}\r\n".encode() + ANSWER,
    JSON_HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\n" + ANSWER,
    JSON_HEAD + b"content-length: many\r\n\r\n" + ANSWER,
    JSON_HEAD + f"content-length: {len(ANSWER)}\r\ncontent-length: 7\r\n\r\n".encode() + ANSWER,
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n" + ANSWER,
    b"this is no HTTP at all\r\n\r\n",
], ids=["longer than it is", "no last chunk", "a chunk cut short", "no chunk", "no number", "two lengths", "no header", "no HTTP"])
def test_an_answer_that_is_not_whole_is_never_passed_on_as_one(wire: Any, upstream: RawProvider, run: str, answer: bytes) -> None:
    upstream.says, upstream.closes = lambda connection: connection.sendall(answer), True
    refused = question(wire, run)
    assert (refused.status_code, refused.json()["error"]["type"]) == (502, "server_error")
    assert b"Hello." not in refused.content
    assert SET_ASIDE[0] <= settled(wire, run) <= SET_ASIDE[1], "it may have been billed, and is paid once, at the most it can have cost"
    assert len(upstream.questions) == 1, "a question that may have been billed is not asked again"
    upstream.says, upstream.closes = lambda connection: connection.sendall(whole(ANSWER)), False
    assert question(wire, f"{run}-other").content == ANSWER


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_what_comes_behind_an_answer_is_nobodys(wire: Any, upstream: RawProvider, run: str, streams: bool) -> None:
    planted = whole(b'{"planted": true}')
    first = STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(CHUNK, b"data: [DONE]\n\n") + b"0\r\n\r\n" if streams else whole(ANSWER)
    answers = [first + planted, *[whole(ANSWER)] * 4]
    upstream.says = lambda connection: connection.sendall(answers[len(upstream.questions) - 1])
    assert question(wire, run, stream=streams).content == (CHUNK + b"data: [DONE]\n\n" if streams else ANSWER)
    for _ in range(4):
        after = question(wire, run)
        assert after.content == ANSWER, "another one's words"


def test_bytes_beyond_the_length_are_not_part_of_the_answer(wire: Any, upstream: RawProvider, run: str) -> None:
    upstream.says = lambda connection: connection.sendall(whole(ANSWER + b"and more", length=len(ANSWER)))
    assert question(wire, run).content == ANSWER
    assert settled(wire, run) == pytest.approx(ANSWER_USD)


def test_a_length_beside_chunks_counts_for_nothing(wire: Any, upstream: RawProvider, run: str) -> None:
    answer = JSON_HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(ANSWER) + b"0\r\n\r\n"
    upstream.says, upstream.closes = lambda connection: connection.sendall(answer), True
    answered = question(wire, run)
    if answered.status_code == 200:
        assert (answered.content, answered.headers["content-length"]) == (ANSWER, str(len(ANSWER)))
    else:
        assert answered.json()["error"]["type"] == "server_error"
    assert len(upstream.questions) == 1


@pytest.mark.parametrize("kind", ["text/html", "application/octet-stream", ""], ids=["a page", "bytes", "none"])
def test_an_answer_of_the_wrong_kind_passes_as_it_came_and_is_paid_by_its_size(wire: Any, upstream: RawProvider, run: str, kind: str) -> None:
    page = b"<html>" + b"the service is being moved " * 100 + b"</html>"
    header = f"content-type: {kind}\r\n" if kind else ""
    upstream.says = lambda connection: connection.sendall(f"HTTP/1.1 200 OK\r\n{header}content-length: {len(page)}\r\n\r\n".encode() + page)
    for streams in (False, True):
        of_its_own = f"{run}-{streams}"
        answered = question(wire, of_its_own, stream=streams)
        assert (answered.status_code, answered.content, answered.headers.get("content-type", "")) == (200, page, kind)
        assert 0 < settled(wire, of_its_own) <= SET_ASIDE[1], "what nobody counted is not free"


def test_a_stream_for_a_question_that_wanted_none_is_metered_all_the_same(wire: Any, upstream: RawProvider, run: str) -> None:
    counted = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":10}}\n\n'
    answer = STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(CHUNK, counted, b"data: [DONE]\n\n") + b"0\r\n\r\n"
    upstream.says = lambda connection: connection.sendall(answer)
    answered = question(wire, run)
    assert answered.status_code == 200 and CHUNK in answered.content
    assert settled(wire, run) == pytest.approx(ANSWER_USD)


# -- a stream that never ends ------------------------------------------------------------------------


def endless(piece: bytes, pause: float = 0.0) -> Callable[[socket.socket], None]:
    def says(connection: socket.socket) -> None:
        connection.sendall(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(CHUNK))
        while True:
            connection.sendall(chunked(piece))
            time.sleep(pause)
    return says


def test_a_stream_that_never_ends_is_cut_where_its_money_is(wire: Any, upstream: RawProvider, run: str) -> None:
    upstream.says = endless(CHUNK * 10)
    answered = question(wire, run, stream=True)
    assert answered.content.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in answered.content
    # All that was written is paid, also beyond what was asked for: it is cut at four times the letters that so many tokens usually have.
    assert SET_ASIDE[0] <= settled(wire, run) <= 4.5 * SET_ASIDE[1]


@pytest.mark.parametrize("piece", [b": still there\n\n", b"data: {}\n\n"], ids=["comments", "events that say nothing"])
def test_a_stream_of_nothing_is_left_when_its_caller_leaves(wire: Any, upstream: RawProvider, run: str, piece: bytes) -> None:
    left = threading.Event()

    def says(connection: socket.socket) -> None:
        try:
            endless(piece, 0.01)(connection)
        finally:
            left.set()

    upstream.says = says
    before = resident_mb(wire.process.pid)
    with connect(wire.port) as connection:
        body = json.dumps({**QUESTION, "stream": True}).encode()
        connection.sendall(head("POST", "/openai/v1/chat/completions", "content-type: application/json", f"x-runguard-run: {run}", f"content-length: {len(body)}") + body)
        received, deadline = 0, time.monotonic() + 1.5
        while time.monotonic() < deadline:
            received += len(connection.recv(65536))
        assert received > 1000, "what a provider sends to keep a connection alive arrives"
        assert reserved(wire, run) > 0
    assert left.wait(10), "the provider is left too"
    assert 0 < settled(wire, run) <= SET_ASIDE[1]
    assert resident_mb(wire.process.pid) - before < 50


def test_an_event_that_never_ends_is_cut_off_and_paid(wire: Any, upstream: RawProvider, run: str) -> None:
    upstream.says = endless(b"data: " + b"x" * 65536)
    before = resident_mb(wire.process.pid)
    with pytest.raises(httpx.RemoteProtocolError):
        question(wire, run, stream=True)
    assert SET_ASIDE[0] <= settled(wire, run) <= SET_ASIDE[1]
    assert resident_mb(wire.process.pid) - before < 100, "more than 8 MB of it are not kept"


# -- who asks, and lies ------------------------------------------------------------------------------

PLANTED = b'{"model":"gpt-4o","messages":[{"role":"user","content":"planted"}]}'
PLANTED_QUESTION = head("POST", "/openai/v1/chat/completions", "content-type: application/json", f"content-length: {len(PLANTED)}") + PLANTED
BODY = json.dumps(QUESTION).encode()


def test_another_protocol_is_no_answer(wire: Any, upstream: RawProvider, run: str) -> None:
    switched = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    upstream.says, upstream.closes = lambda connection: connection.sendall(switched), True
    refused = question(wire, run)
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "unreadable_answer")
    assert settled(wire, run) == 0, "as one that answers with a redirection"


def request(*headers: str, body: bytes = b"") -> bytes:
    return head("POST", "/openai/v1/chat/completions", "content-type: application/json", "authorization: Bearer x", *headers) + body


@pytest.mark.parametrize("sent", [
    request(f"content-length: {len(BODY)}", "transfer-encoding: chunked", body=b"0\r\n\r\n" + PLANTED_QUESTION),
    request("transfer-encoding: chunked", f"content-length: {len(BODY)}", body=b"0\r\n\r\n" + PLANTED_QUESTION),
    request(f"content-length: {len(BODY)}", "content-length: 0", body=BODY + PLANTED_QUESTION),
    request("content-length: 0", f"content-length: {len(BODY)}", body=BODY + PLANTED_QUESTION),
    request(f"content-length: {len(BODY)}, {len(BODY) + 1}", body=BODY + PLANTED_QUESTION),
    request(f"content-length: +{len(BODY)}", body=BODY + PLANTED_QUESTION),
    request("content-length: -1", body=BODY + PLANTED_QUESTION),
    request(f"content-length: 0x{len(BODY):x}", body=BODY + PLANTED_QUESTION),
    request("content-length: 99999999999999999999", body=BODY + PLANTED_QUESTION),
    request("transfer-encoding: xchunked", body=b"0\r\n\r\n" + PLANTED_QUESTION),
    request("transfer-encoding: chunked, identity", body=b"0\r\n\r\n" + PLANTED_QUESTION),
    request("transfer-encoding : chunked", body=b"0\r\n\r\n" + PLANTED_QUESTION),
    request("x: y\r\n transfer-encoding: chunked", f"content-length: {len(BODY)}", body=BODY + PLANTED_QUESTION),
    request("transfer-encoding: chunked", body=b"zz\r\n" + BODY + b"\r\n0\r\n\r\n" + PLANTED_QUESTION),
    request("transfer-encoding: chunked", body=b"-1\r\n" + BODY + b"\r\n0\r\n\r\n" + PLANTED_QUESTION),
    request("transfer-encoding: chunked", body=b"ffffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n" + PLANTED_QUESTION),
    request("transfer-encoding: chunked", body=chunked(BODY)[:-2] + b"xx0\r\n\r\n" + PLANTED_QUESTION),
    b"POST /openai/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\x00\r\n\r\n" + BODY + PLANTED_QUESTION,
    b"POST /openai/v1/chat/completions HTTP/1.1\nhost: localhost\ntransfer-encoding:\x0bchunked\n\n0\r\n\r\n" + PLANTED_QUESTION,
], ids=["length and chunks", "chunks and length", "two lengths", "two lengths, none first", "a list of lengths", "a plus", "a minus", "hexadecimal", "beyond all numbers",
        "an unknown coding", "not the last coding", "a blank before the colon", "a folded line", "no size", "a size below none", "a size beyond all numbers", "no end of a chunk",
        "a null byte", "a vertical tab"])
def test_a_question_whose_end_is_in_doubt_is_refused_and_nothing_behind_it_is_heard(wire: Any, upstream: RawProvider, sent: bytes) -> None:
    with connect(wire.port) as connection:
        connection.sendall(sent)
        answers = b""
        connection.settimeout(10)
        try:
            while piece := connection.recv(65536):
                answers += piece
        except ConnectionError:
            pass
    assert answers.count(b"HTTP/1.1 ") <= 1 and b"HTTP/1.1 200" not in answers, answers
    assert b"ended before" not in answers, "the connection is open"
    assert upstream.questions == [], "nothing of it reached the provider"
    assert raw(f"{wire.url}/openai/v1/chat/completions", QUESTION).content == ANSWER, "others are served"


def test_a_question_in_chunks_arrives_as_one_of_known_length(wire: Any, upstream: RawProvider) -> None:
    pieces = [BODY[start:start + 7] for start in range(0, len(BODY), 7)]
    sent = request("transfer-encoding: chunked", "trailer: x-runguard-run", "connection: close", body=chunked(*pieces) + b"0\r\nx-runguard-run: of-the-trailer\r\n\r\n")
    assert status_of(ask(wire.port, sent)) == 200
    [asked] = upstream.questions
    lines, _, body = asked.lower().partition(b"\r\n\r\n")
    assert body == BODY.lower() and f"content-length: {len(BODY)}".encode() in lines
    assert b"transfer-encoding" not in lines and b"trailer" not in lines


def test_two_questions_sent_at_once_are_two(wire: Any, upstream: RawProvider, run: str) -> None:
    """Who sends them so is allowed to: each has its own end, its own answer and its own price."""
    one = request(f"content-length: {len(BODY)}", f"x-runguard-run: {run}", body=BODY)
    last = request(f"content-length: {len(BODY)}", f"x-runguard-run: {run}", "connection: close", body=BODY)
    with connect(wire.port) as connection:
        connection.sendall(one + last)
        answers = b""
        while piece := connection.recv(65536):
            answers += piece
    assert answers.count(b"HTTP/1.1 200") == 2 == len(upstream.questions)
    assert settled(wire, run) == pytest.approx(2 * ANSWER_USD)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None])
def test_a_question_of_the_wrong_kind_is_read_for_what_it_is(wire: Any, upstream: RawProvider, kind: str | None) -> None:
    headers = {"authorization": "Bearer x", **({"content-type": kind} if kind else {})}
    good = httpx.post(f"{wire.url}/openai/v1/chat/completions", content=BODY, headers=headers)
    assert (good.status_code, good.content) == (200, ANSWER), "the provider says whether it minds"
    [asked] = upstream.questions
    assert asked.endswith(BODY) and (kind is None or f"content-type: {kind}".encode() in asked.lower())
    bad = httpx.post(f"{wire.url}/openai/v1/chat/completions", content=b"model=gpt-4o&messages=hi", headers=headers)
    assert (bad.status_code, bad.json()["error"]["type"]) == (400, "invalid_request_error")
    assert len(upstream.questions) == 1, "what cannot be read cannot be metered"


def test_a_packed_question_is_not_passed_on_unread(wire: Any, upstream: RawProvider) -> None:
    packed = httpx.post(f"{wire.url}/openai/v1/chat/completions", content=gzip.compress(BODY), headers={"content-encoding": "gzip", "content-type": "application/json"})
    assert (packed.status_code // 100, packed.json()["error"]["type"]) == (4, "invalid_request_error")
    assert upstream.questions == []


@pytest.mark.parametrize("path, model, kind", [
    ("/openai/v1/chat/completions", CHAT, "invalid_request_error"), ("/openai/v1/responses", CHAT, "invalid_request_error"), ("/anthropic/v1/messages", MESSAGES, "request_too_large"),
])
def test_a_question_that_is_too_large_is_refused_as_the_provider_would(wire: Any, upstream: RawProvider, path: str, model: str, kind: str) -> None:
    body = json.dumps({"model": model, "max_tokens": 10, "messages": [{"role": "user", "content": "a" * (1 << 20)}], "input": "hi"}).encode()
    refused = httpx.post(f"{wire.url}{path}", content=body, headers={"content-type": "application/json"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (413, kind)
    assert "gateway.max_body_mb" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    # Not known before: it comes in chunks.
    pieces = httpx.post(f"{wire.url}{path}", content=(body[start:start + 65536] for start in range(0, len(body), 65536)), headers={"content-type": "application/json"})
    assert (pieces.status_code, pieces.json()["error"]["type"]) == (413, kind)
    assert upstream.questions == []


def test_a_length_beyond_all_bounds_is_refused_before_it_comes(wire: Any, upstream: RawProvider) -> None:
    with connect(wire.port) as connection:
        connection.sendall(request("content-length: 900000000000"))
        assert status_of(read_answer(connection)) == 413
        assert is_closed_within(connection, 10)
    assert upstream.questions == []


# -- headers -----------------------------------------------------------------------------------------


def test_headers_between_neighbours_end_here_on_the_way_there(wire: Any, upstream: RawProvider) -> None:
    stays = ["connection: close, x-of-this-hop", "x-of-this-hop: secret-1", "keep-alive: timeout=secret-2", "te: trailers", "upgrade: secret-3", "proxy-authorization: secret-4",
             "proxy-connection: secret-5", "cookie: secret-6", "x-runguard-run: secret-7", "x-runguard-anything: secret-8", "x-http-method-override: secret-9",
             "http2-settings: secret-10", "accept-encoding: gzip, br"]
    travels = ["x-stainless-lang: python", "openai-beta: assistants=v2", "x-of-tomorrow: anything", "anthropic-beta: a", "anthropic-beta: b", "user-agent: mine/1"]
    assert status_of(ask(wire.port, request(*stays, *travels, f"content-length: {len(BODY)}", body=BODY))) == 200
    [asked] = upstream.questions
    lines = asked.partition(b"\r\n\r\n")[0].decode().lower()
    assert "secret" not in lines and "x-of-this-hop" not in lines and "\r\nte:" not in lines
    assert [line for line in travels if f"\r\n{line.lower()}" not in lines] == []
    assert "\r\naccept-encoding: identity" in lines and "gzip" not in lines
    assert lines.count("\r\nhost:") == 1 and f"\r\nhost: {upstream.url.removeprefix('http://')}" in lines, "the provider's name, and not ours"


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_headers_between_neighbours_end_here_on_the_way_back(wire: Any, upstream: RawProvider, run: str, streams: bool) -> None:
    more = (b"connection: close, x-of-that-hop\r\nx-of-that-hop: secret\r\nkeep-alive: secret\r\nproxy-authenticate: secret\r\nx-runguard-spent-usd: secret\r\n"
            b"x-runguard-reason: secret\r\nx-request-id: req_7\r\nopenai-processing-ms: 12\r\nx-ratelimit-remaining-requests: 3\r\nx-ratelimit-limit-requests: 5\r\n")
    answer = STREAM_HEAD + more + b"transfer-encoding: chunked\r\n\r\n" + chunked(CHUNK, b"data: [DONE]\n\n") + b"0\r\n\r\n" if streams else whole(ANSWER).replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n", 1)
    upstream.says, upstream.closes = lambda connection: connection.sendall(answer), True
    answered = question(wire, run, stream=streams)
    assert answered.status_code == 200
    assert not any("secret" in value for value in answered.headers.values()), answered.headers
    assert (answered.headers["x-request-id"], answered.headers["openai-processing-ms"], answered.headers["x-ratelimit-remaining-requests"]) == ("req_7", "12", "3")
    assert answered.headers["x-runguard-run"] == run
