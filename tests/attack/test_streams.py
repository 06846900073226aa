"""Event streams: a thousand readers cost next to nothing, a slow one loses nothing, and nobody listens without a key."""

import contextlib
import os
import socket
import threading
import time

import pytest

from catalogue import AGENT_ACTION
from runguard_http import EventStream
from runguard_process import Server, run_cli


def create(data, *arguments) -> str:
    made = run_cli("key", "create", "--data", data, *arguments)
    assert made.returncode == 0, made
    return made.stdout.split()[-1]


def act(client, session: str) -> str:
    """One decision; a new session each time, so that no rule stops it."""
    return client.allowed(AGENT_ACTION, session_id=session, action_name="a")["decision_id"]


def cpu_seconds(server: Server) -> float:
    fields = open(f"/proc/{server.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(condition, what: str, seconds: float = 15):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def open_streams(server: Server) -> int:
    text = server.client(key=getattr(server, "operator", None)).get("/metrics").text
    return int(next(line for line in text.splitlines() if line.startswith("runguard_event_streams ")).split()[1])


class IdleStreams:
    """Many connections that read nothing but the head of their answer."""

    def __init__(self, client, count: int, path: str = "/v1/events"):
        head = "".join(f"{name}: {value}\r\n" for name, value in client.headers().items())
        self.sockets = []
        for _ in range(count):
            stream = socket.create_connection(("127.0.0.1", client.port))
            stream.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{head}\r\n".encode())
            self.sockets.append(stream)
        for stream in self.sockets:
            assert b" 200 " in stream.recv(4096).split(b"\r\n", 1)[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in self.sockets:
            stream.close()


# -- what they hear -------------------------------------------------------------------------------


def test_a_reader_that_is_slow_loses_nothing_and_slows_nobody(flow):
    """It stops reading while more happens than its buffers and the sockets hold; others go on."""
    with EventStream(flow, "/v1/events") as slow, EventStream(flow, "/v1/events") as quick:
        # A small window, so that the rest waits in the service.
        slow.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        first = [act(flow, f"{'s' * 200}-{number}") for number in range(1500)]
        assert [quick.next_event().json["decision_id"] for _ in first] == first
        second = [act(flow, f"t-{number}") for number in range(50)]
        assert [quick.next_event().json["decision_id"] for _ in second] == second
        assert [slow.next_event().json["decision_id"] for _ in range(1550)] == first + second


def test_a_reader_that_comes_back_goes_on_and_then_hears_live(flow):
    with EventStream(flow, "/v1/events") as events:
        act(flow, "before")
        last = events.next_event().id
    missed = [act(flow, f"missed-{number}") for number in range(450)]
    with EventStream(flow, "/v1/events", last_event_id=last) as events:
        live = [act(flow, f"live-{number}") for number in range(50)]
        assert [events.next_event().json["decision_id"] for _ in range(500)] == missed + live


def test_filters_hold_for_what_is_live_and_what_is_read_again(flow):
    act(flow, "a")
    for last in (None, "0"):
        with EventStream(flow, "/v1/events?session=a&outcome=allowed", last_event_id=last) as events:
            mine = [act(flow, "b") and act(flow, "a")]
            heard = [events.next_event().json for _ in range(1 if last is None else 3)]
            assert {row["session_id"] for row in heard} == {"a"} and heard[-1]["decision_id"] == mine[-1]


def test_many_at_once_hear_the_same_in_the_same_order(serve):
    server = serve("[server]\nmax_streams_per_key = 50")
    flow = server.client()
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(EventStream(flow, "/v1/events")) for _ in range(50)]
        sent = []
        writers = [threading.Thread(target=lambda name=name: sent.extend(act(server.client(), f"{name}-{n}") for n in range(100)))
                   for name in "abcd"]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        heard = [[stream.next_event().json["decision_id"] for _ in range(400)] for stream in streams]
    assert all(one == heard[0] for one in heard) and sorted(heard[0]) == sorted(sent)


# -- who may listen -------------------------------------------------------------------------------


def test_a_revoked_keys_stream_ends(serve):
    server = serve(start=False)
    revoked, kept = create(server.data, "--role", "read"), create(server.data, "--role", "guard,read")
    server.start()
    with EventStream(server.client(key=revoked), "/v1/events") as gone, EventStream(server.client(key=kept), "/v1/events") as stays:
        assert run_cli("key", "revoke", "--data", server.data, revoked).returncode == 0
        before = time.monotonic()
        with pytest.raises(EOFError):
            gone.next_event()
        assert time.monotonic() - before < 5
        mine = act(server.client(key=kept), "s")
        assert stays.next_event().json["decision_id"] == mine


def test_a_key_whose_role_changes_listens_no_more(serve):
    server = serve(start=False)
    key = create(server.data, "--role", "read")
    server.start()
    with EventStream(server.client(key=key), "/v1/events") as events:
        file = server.data / "keys.json"
        file.write_text(file.read_text().replace('"read"', '"guard"'))
        with pytest.raises(EOFError):
            events.next_event()


def test_the_first_key_ends_the_streams_of_callers_without_one(serve):
    server = serve()
    with EventStream(server.client(), "/v1/events") as events:
        create(server.data, "--role", "read")
        with pytest.raises(EOFError):
            events.next_event()


def test_a_key_has_so_many_streams(serve):
    server = serve("[server]\nmax_streams_per_key = 3\nmax_streams = 5", start=False)
    keys = [create(server.data, "--role", "read") for _ in range(3)]
    server.operator = create(server.data, "--role", "admin")
    server.start()
    clients = [server.client(key=key) for key in keys]
    with IdleStreams(clients[0], 3):
        refused = clients[0].get("/v1/events")
        assert refused.status == 429 and refused.content_type == "application/problem+json"
        assert "max_streams_per_key" in refused.json["detail"] and refused.headers["retry-after"]
        with IdleStreams(clients[1], 2):
            full = clients[2].get("/v1/events")
            assert full.status == 429 and "max_streams`" in full.json["detail"]
    until(lambda: open_streams(server) == 0, "the streams of closed connections are given back")
    with IdleStreams(clients[0], 3):
        pass


def test_streams_end_when_the_service_stops(serve):
    server = serve()
    with IdleStreams(server.client(), 20):
        before = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - before < 8


# -- what they cost -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_idle_streams_cost_next_to_nothing(serve):
    """While another tenant is busy. `./bench streams` measures it with a release build; here the bound is a coarse one."""
    server = serve("[server]\nmax_streams_per_key = 1000", start=False)
    idle, busy = create(server.data, "--tenant", "idle", "--role", "read"), create(server.data, "--tenant", "busy", "--role", "guard")
    server.start()
    client = server.client(key=busy, keep_alive=True)

    def cost() -> float:
        before = cpu_seconds(server)
        for number in range(2000):
            act(client, f"s-{time.monotonic_ns()}-{number}")
        return cpu_seconds(server) - before

    cost()
    alone = cost()
    with IdleStreams(server.client(key=idle), 1000):
        together = cost()
    assert together < alone * 1.35 + 0.3, (alone, together)


def test_an_id_of_another_log_begins_with_what_is_live(flow):
    """After a restore from a backup a reader may know more than the log."""
    act(flow, "before")
    with EventStream(flow, "/v1/events", last_event_id="4000000000") as events:
        live = act(flow, "live")
        # Told before or not at all: a stream that stays silent would be waited for without an end.
        events.connection.sock.settimeout(5)
        assert events.next_event().json["decision_id"] == live
