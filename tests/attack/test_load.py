"""One caller that asks too much is refused; the others do not notice."""

from __future__ import annotations

import itertools
import json
import re
import statistics
import threading
import time

from raw import connect, head, read_answer, status_of, wait_until
from runguard_http import EventStream
from runguard_process import run_cli


def with_keys(serve, config: str | None, *tenants: str, **options):
    server = serve(config, start=False, **options)
    keys = []
    for tenant in tenants:
        made = run_cli("key", "create", "--data", server.data, "--tenant", tenant, "--role", "guard")
        keys.append(next(word for word in made.stdout.split() if word.startswith("rg_")))
    return server.start(), keys


def limited(server) -> dict[str, int]:
    """How many requests were refused, by limit."""
    made = run_cli("key", "create", "--data", server.data, "--role", "metrics").stdout.split()[-1]
    wait_until(lambda: server.client(key=made).get("/metrics").status == 200)
    text = server.client(key=made).get("/metrics").text
    return {limit: int(count) for limit, count in re.findall(r'^runguard_limited_requests_total{limit="(.+)"} (.+)$', text, re.M)}


HANDOFF = {"source_bot": "a", "target_bot": "b"}
SESSIONS = itertools.count()


def ask_guard(server, key):
    """In a session of its own: it is not the guard that refuses."""
    return server.client(key=key).post("/guard/handoff", {**HANDOFF, "session_id": f"s{next(SESSIONS)}"})


def test_requests_in_a_second_are_bounded_by_setting(serve):
    server, (loud, quiet) = with_keys(serve, "[server]\nrequests_per_second_per_key = 5\n", "acme", "other", virtual_clock=False)
    answers = [server.client(key=loud).get("/v1/decisions") for _ in range(12)]
    refused = [answer for answer in answers if answer.status == 429]
    assert refused, "twelve in less than a second"
    assert refused[0].json["type"].endswith("too-fast") and refused[0].headers["retry-after"] == "1"
    assert refused[0].headers["x-should-retry"] == "true" and "allow" not in refused[0].json
    assert limited(server)["requests"] == len(refused)
    assert ask_guard(server, quiet).status == 200


def test_requests_under_way_are_bounded_per_key_and_per_tenant(serve):
    config = "[server]\nmax_in_flight_per_key = 3\nmax_in_flight_per_tenant = 5\n"
    server, (first, second, other) = with_keys(serve, config, "acme", "acme", "other", virtual_clock=False)
    held = []

    def begin(key):
        """A request whose body does not come is under way."""
        connection = connect(server.port)
        connection.sendall(head("POST", "/guard/handoff", f"Authorization: Bearer {key}", "content-length: 50", "Expect: 100-continue"))
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        held.append(connection)

    def status(key):
        return ask_guard(server, key).status

    try:
        for _ in range(3):
            begin(first)
        assert status(first) == 429
        assert status(second) == 200, "the tenant's other key has room"
        begin(second)
        begin(second)
        assert status(second) == 429
        assert status(other) == 200, "another tenant does not notice"
    finally:
        for connection in held:
            connection.close()
    wait_until(lambda: status(first) == 200 and status(second) == 200)


def test_bytes_held_are_bounded(serve):
    config = "[server]\nmax_bytes_in_flight_per_key = 1_000_000\n"
    server, (key,) = with_keys(serve, config, "acme", virtual_clock=False)
    held = []
    try:
        for _ in range(3):
            connection = connect(server.port)
            connection.sendall(head("POST", "/guard/stall", f"Authorization: Bearer {key}", "content-length: 900000") + b" " * 450_000)
            held.append(connection)
        # Three times 450,000 do not fit: the one that came too much is told.
        answers = []
        deadline = time.monotonic() + 5
        while not answers and time.monotonic() < deadline:
            for connection in held:
                connection.settimeout(0.1)
                try:
                    answers.append(read_answer(connection))
                except TimeoutError:
                    pass
        assert answers and status_of(answers[0]) == 429 and b"max_bytes_in_flight_per_key" in answers[0], answers
    finally:
        for connection in held:
            connection.close()


def test_large_arguments_of_one_do_not_slow_the_others(serve):
    """Compared within one run: a timed test would say more of the machine than of the service."""
    server, (small, large) = with_keys(serve, None, "acme", "other", virtual_clock=False)

    def latencies(count=300):
        client = server.client(key=small, keep_alive=True)
        taken = []
        for number in range(count):
            began = time.perf_counter()
            assert client.post("/guard/handoff", {**HANDOFF, "session_id": f"s{number}"}).status == 200
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    alone = latencies()
    stop = threading.Event()
    body = json.dumps({"session_id": "big", "tool": "t", "args": {"rows": [{"n": n, "text": "x" * 20} for n in range(20_000)]}}).encode()[:1_040_000]
    assert len(body) > 800_000

    def hog():
        client = server.client(key=large, keep_alive=True)
        while not stop.is_set():
            client.request("POST", "/guard/tool-call", body, {"content-type": "application/json"})

    hogs = [threading.Thread(target=hog, daemon=True) for _ in range(4)]
    for thread in hogs:
        thread.start()
    try:
        beside = latencies()
    finally:
        stop.set()
        for thread in hogs:
            thread.join()
    # It was a hundredfold; what is left is two cores shared with five busy clients.
    assert beside < alone * 25 + 0.005, f"{alone * 1000:.1f} ms alone, {beside * 1000:.1f} ms beside"


def test_streams_that_are_too_many_are_counted(serve):
    server = serve("[server]\nmax_streams_per_key = 1\n")
    with EventStream(server.client(), "/v1/events"):
        assert server.client().get("/v1/events").status == 429
    counted = re.findall(r'^runguard_limited_requests_total{limit="(.+)"} (.+)$', server.client().get("/metrics").text, re.M)
    assert sorted(counted) == [("bytes", "0"), ("previews", "0"), ("requests", "0"), ("streams", "1")]
