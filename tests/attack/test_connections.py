"""Connections that send nonsense, too much, too little, or do not read."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import threading
import time
from pathlib import Path

import pytest

from raw import ask, connect, head, is_closed_within, read_answer, resident_mb, status_of
from runguard_process import binary, clean_environment, free_port, run_cli


def problem(answer: bytes) -> dict:
    assert b"content-type: application/problem+json" in answer.lower(), answer
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("request_bytes, status", [
    (b"GARBAGE\r\n\r\n", 400),
    (b"GET / HTTP/9.9\r\n\r\n", 400),
    (b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nbroken header\r\n\r\n", 400),
    (b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n\0: x\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"a%d: x\r\n" % n for n in range(100)) + b"\r\n", 431),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\na: " + b"x" * 400_000 + b"\r\n\r\n", 431),
    (b"GET /" + b"x" * 400_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    (b"POST /guard/handoff HTTP/1.1\r\nHost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
    (b"POST /guard/handoff HTTP/1.1\r\nHost: localhost\r\ncontent-length: -1\r\n\r\n", 400),
], ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None)
def test_what_is_no_request_gets_an_answer_with_words(shared_server, request_bytes, status):
    answer = ask(shared_server.port, request_bytes)
    assert status_of(answer) in (status, 414) if status == 431 else status_of(answer) == status, answer
    assert problem(answer)["detail"], answer
    assert shared_server.client().get("/healthz").status == 200


def keyed(serve, config: str | None = None, *roles: str):
    server = serve(config, start=False)
    keys = [next(word for word in run_cli("key", "create", "--data", server.data, "--tenant", "acme", "--role", role).stdout.split()
                 if word.startswith("rg_")) for role in roles or ("guard",)]
    return server.start(), keys


@pytest.mark.parametrize("path", ["/v1/preview", "/v1/alerts/test", "/guard/handoff", "/guard/stall", "/v1/circuits/a/open"])
def test_the_key_comes_before_the_body(serve, path):
    server, _ = keyed(serve)
    with connect(server.port) as connection:
        # The body never comes: whoever has no key is answered without it.
        connection.sendall(head("POST", path, "content-length: 1000000"))
        assert status_of(read_answer(connection)) == 401
    with connect(server.port) as connection:
        connection.sendall(head("POST", path, "content-length: 1000000", "Expect: 100-continue"))
        assert status_of(read_answer(connection)) == 401, "and is not asked to go on"


@pytest.mark.parametrize("path, limit", [("/v1/preview", 65536), ("/v1/alerts/test", 65536), ("/guard/handoff", 1048576), ("/guard/stall", 1048576)])
def test_every_route_has_its_own_limit(server, path, limit):
    flow = server.client()
    too_large = flow.request("POST", path, b"{" + b" " * limit + b"}", {"content-type": "application/json"})
    assert too_large.status == 413 and str(limit) in too_large.json["detail"], too_large
    fits = flow.request("POST", path, b"{" + b" " * (limit - 2) + b"}", {"content-type": "application/json"})
    assert fits.status in (404, 422), fits


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/preview", "/v1/alerts/test", "/guard/handoff"])
def test_a_body_must_come_within_ten_seconds(server, path):
    with connect(server.port, timeout=30) as connection:
        connection.sendall(head("POST", path, "content-length: 100", "x-runguard-now: 1800000000000") + b"{")
        began = time.monotonic()
        assert status_of(read_answer(connection)) == 408
        assert 8 < time.monotonic() - began < 14


def test_many_that_send_half_a_body_take_little_memory_and_leave_the_others_alone(serve):
    server, (guard,) = keyed(serve)
    before = resident_mb(server.process.pid)
    waiting = []
    try:
        for _ in range(150):
            connection = connect(server.port)
            connection.sendall(head("POST", "/v1/preview", "content-length: 2000000"))
            connection.setblocking(False)
            try:
                connection.send(b" " * 2_000_000)
            except OSError:
                pass
            waiting.append(connection)
        assert server.client(key=guard).post("/guard/handoff", {"session_id": "s", "source_bot": "a", "target_bot": "b"}).status == 200
        assert server.client().get("/healthz").status == 200
        assert resident_mb(server.process.pid) - before < 60
    finally:
        for connection in waiting:
            connection.close()


def test_health_checks_get_through_when_every_connection_is_taken(serve):
    server = serve("[server]\nmax_connections = 20\n")
    # Requests that are under way: connections that do nothing would make place.
    busy = []
    try:
        for _ in range(20):
            connection = connect(server.port)
            connection.sendall(head("POST", "/guard/handoff", "content-length: 50", "x-runguard-now: 1800000000000") + b"{")
            busy.append(connection)
        deadline = time.monotonic() + 5
        while server.client().get("/v1/decisions").status != 503:
            assert time.monotonic() < deadline, "the connections are not all taken"
        refused = server.client().get("/v1/decisions")
        assert refused.headers["retry-after"] == "1" and refused.headers["connection"] == "close", refused
        for path in ("/healthz", "/readyz"):
            assert server.client().get(path).status == 200
    finally:
        for connection in busy:
            connection.close()
    deadline = time.monotonic() + 5
    while server.client().get("/v1/decisions").status != 200:
        assert time.monotonic() < deadline, "the places are free again"


def test_idle_connections_keep_nobody_out(serve):
    server = serve("[server]\nmax_connections = 20\n")
    idle = [connect(server.port) for _ in range(20)]
    try:
        # Half a request is no request.
        for connection in idle[:10]:
            connection.sendall(b"GET / HTTP/1.1\r\n")
        deadline = time.monotonic() + 5
        answered = 0
        while answered < 40:
            assert time.monotonic() < deadline, f"{answered} answered"
            answered += server.client().get("/v1/decisions").status == 200
    finally:
        for connection in idle:
            connection.close()


def test_connections_that_only_ask_for_health_keep_nobody_out(serve):
    server = serve("[server]\nmax_connections = 20\n")
    polling = [connect(server.port) for _ in range(20)]
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.wait(0.2):
            for connection in polling:
                with contextlib.suppress(OSError):
                    connection.sendall(head("GET", "/healthz"))

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        time.sleep(1.5)
        deadline = time.monotonic() + 10
        answered = 0
        while answered < 40:
            assert time.monotonic() < deadline, f"{answered} answered"
            answered += server.client().get("/v1/decisions").status == 200
    finally:
        stopped.set()
        poller.join()
        for connection in polling:
            connection.close()


def test_a_stream_that_is_followed_is_not_idle(serve):
    server = serve("[server]\nmax_connections = 20\n")
    followers = []
    try:
        for _ in range(20):
            connection = connect(server.port)
            connection.sendall(head("GET", "/v1/events", "x-runguard-now: 1800000000000"))
            assert b"connected" in connection.recv(65536) or b"connected" in connection.recv(65536)
            followers.append(connection)
        time.sleep(1.5)
        for _ in range(10):
            server.client().get("/v1/decisions")
        assert not any(is_closed_within(connection, 0.05) for connection in followers[:5])
    finally:
        for connection in followers:
            connection.close()


@pytest.mark.slow
def test_a_client_that_does_not_read_is_left(serve):
    server = serve(virtual_clock=False)
    flow = server.client(keep_alive=True)
    for number in range(300):
        flow.post("/guard/ai-task-retry", {"session_id": f"s{number}", "task_name": "t", "user_message": "word " * 60})
    before = resident_mb(server.process.pid)
    with connect(server.port, timeout=60) as connection:
        for _ in range(200):
            try:
                connection.setblocking(False)
                connection.send(head("GET", "/v1/decisions?limit=300"))
            except OSError:
                break
        connection.setblocking(True)
        time.sleep(35)
        assert is_closed_within(connection, 10)
    assert resident_mb(server.process.pid) - before < 100


def test_as_many_connections_as_the_system_allows(tmp_path):
    """In a process of its own: a limit that was lowered cannot be raised again."""
    port = free_port()
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(
        [binary(), "serve", "--listen", f"127.0.0.1:{port}", "--data", tmp_path / "data"], cwd=tmp_path, stdout=log, stderr=log,
        env=clean_environment(), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (400, 600)))
    try:
        said = tmp_path / "log"
        deadline = time.monotonic() + 30
        while "RunGuard is ready" not in said.read_text():
            assert time.monotonic() < deadline and process.poll() is None, said.read_text()
            time.sleep(0.02)
        assert "fewer connections are taken" in said.read_text() and "ulimit -n" in said.read_text()
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert "600                  600" in limits, "the soft limit is raised as far as it goes"
        # More than fit: those that do nothing make place, and none is refused for want of files.
        crowd = [connect(port) for _ in range(500)]
        assert status_of(ask(port, head("GET", "/healthz"))) == 200
        for connection in crowd:
            connection.close()
        assert "cannot accept" not in said.read_text()
    finally:
        process.terminate()
        process.wait(30)
