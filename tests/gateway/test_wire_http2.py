"""Frames of HTTP/2 that no library would send, on the plain port: nothing is passed on wrongly, and no key of ours travels."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "attack"))

from raw import connect, wait_until  # noqa: E402
from runguard_process import run_cli  # noqa: E402
from test_gateway import CHAT, HELLO, raw  # noqa: E402
from test_wire import ANSWER, BODY, PLANTED, QUESTION, RawProvider, of_the_module, upstream, wire  # noqa: E402, F401

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4
PATH = b"/openai/v1/chat/completions"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def text(value: bytes) -> bytes:
    """As it is, behind its length."""
    length = len(value)
    if length < 127:
        return bytes([length]) + value
    rest, out = length - 127, b"\x7f"
    while rest >= 128:
        out, rest = out + bytes([rest % 128 + 128]), rest // 128
    return out + bytes([rest]) + value


def question(*headers: tuple[bytes, bytes], body: bytes = BODY, length: int | None = None, path: bytes = PATH, stream: int = 1) -> bytes:
    listed = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost"), (b":path", path), (b"content-type", b"application/json"),
              (b"content-length", str(len(body) if length is None else length).encode()), *headers]
    block = b"".join(b"\x00" + text(name) + text(value) for name, value in listed)
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body)


def talk(port: int, *sent: bytes) -> dict[int, list[int]]:
    """Sends frames, and hears the kinds of those that come back, by stream, until every stream is answered or the connection is at its end."""
    waiting = {struct.unpack(">I", one[5:9])[0] for one in sent}
    kinds: dict[int, list[int]] = {}
    with connect(port) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"") + b"".join(sent))
        heard = b""
        while waiting:
            try:
                piece = connection.recv(65536)
            except OSError:
                break
            if not piece:
                break
            heard += piece
            while len(heard) >= 9 and len(heard) >= 9 + (length := int.from_bytes(heard[:3], "big")):
                kind, flags, stream = heard[3], heard[4], int.from_bytes(heard[5:9], "big")
                kinds.setdefault(stream, []).append(kind)
                if kind in (RST_STREAM, GOAWAY) or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    waiting -= {stream} if kind != GOAWAY else waiting
                heard = heard[9 + length:]
    return kinds


def test_a_question_arrives_as_over_http_1(wire: Any, upstream: RawProvider) -> None:  # noqa: F811
    kinds = talk(wire.port, question((b"x-of-tomorrow", b"anything"), (b"cookie", b"secret"), (b"te", b"trailers"), (b"x-runguard-run", b"secret")))
    assert kinds[1][0] == HEADERS and RST_STREAM not in kinds[1]
    [asked] = upstream.questions
    lines, _, body = asked.lower().partition(b"\r\n\r\n")
    assert body == BODY.lower() and f"content-length: {len(BODY)}".encode() in lines and b"x-of-tomorrow: anything" in lines
    assert b"secret" not in lines and b"\r\nte:" not in lines


@pytest.mark.parametrize("sent", [
    question(length=len(BODY) + 5),
    question(length=len(BODY) - 5),
    question(length=0),
    question((b"transfer-encoding", b"chunked")),
    question((b"connection", b"x-of-this-hop"), (b"x-of-this-hop", b"secret")),
    question((b"upgrade", b"websocket")),
    question((b"x-a", b"b\r\nx-injected: c")),
    question((b"x-a", b"b\nx-injected: c")),
    question((b"x-a", b"b\x00")),
    question((b"x-a\r\nx-injected", b"c")),
    question((b"X-Upper", b"c")),
    question((b"", b"c")),
    question((b":path", b"/openai/v1/models")),
    question((b":unknown", b"c")),
    question(path=PATH + b" HTTP/1.1\r\nx-injected: c\r\n\r\n"),
    question(path=b"/openai/v1/chat/completions?x=\r\nx-injected: c"),
    question(path=b""),
    question(path=b"//evil.example/v1/chat/completions"),
    question((b"content-length", b"0")),
    question((b"content-length", b"%d" % len(PLANTED)), body=BODY),
], ids=["a longer length", "a shorter length", "no length", "a transfer coding", "a connection's own", "an upgrade", "two lines", "a line feed", "a null byte", "a name of two lines",
        "large letters", "no name", "two paths", "an unknown pseudo header", "a path with a request", "a query of two lines", "no path", "a path that is a host", "two lengths", "two other lengths"])
def test_frames_that_say_two_things_reach_no_provider(wire: Any, upstream: RawProvider, sent: bytes) -> None:  # noqa: F811
    kinds = talk(wire.port, sent)
    assert upstream.questions == [], "nothing of it reached the provider"
    assert kinds, "the connection is answered or ended, and not left open"
    assert raw(f"{wire.url}{PATH.decode()}", QUESTION).content == ANSWER, "others are served"


def test_a_stream_that_is_taken_back_takes_no_other_with_it(wire: Any, upstream: RawProvider) -> None:  # noqa: F811
    taken_back = frame(RST_STREAM, 0, 1, struct.pack(">I", 8))
    kinds = talk(wire.port, question(), taken_back, question(stream=3))
    assert kinds[3][0] == HEADERS and RST_STREAM not in kinds[3]
    wait_until(lambda: 1 <= len(upstream.questions) <= 2)


def test_no_key_of_ours_travels_whatever_it_is_called(gateway: Any, provider: Any) -> None:
    server = gateway(environment={"OPENAI_API_KEY": "sk-operators"})
    made = run_cli("key", "create", "--data", server.data, "--role", "guard")
    key = next(word for word in made.stdout.split() if word.startswith("rg_"))
    wait_until(lambda: httpx.get(f"{server.url}/openai/v1/models").status_code == 401)
    body = json.dumps({"model": CHAT, "messages": HELLO}).encode()
    secret = key.encode()
    for names in ((b"authorization", b"Bearer " + secret), (b"x-api-key", secret), (b"x-runguard-key", secret)):
        for more in ((b"x-mine", secret), (b"x-list", b"a, " + secret), (b"api-key", secret), (b"x-goog-api-key", secret)):
            kinds = talk(server.port, question(names, more, body=body))
            assert kinds[1][0] == HEADERS
    wait_until(lambda: len(provider.asked) == 12)
    for asked in provider.asked:
        assert key not in json.dumps(asked.headers) and key.encode() not in asked.raw
        assert asked.headers["authorization"] == "Bearer sk-operators"
