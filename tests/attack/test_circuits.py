"""Endpoints that callers make up: bounded for each tenant, forgotten in time, looked at in pages, and never at another's cost."""

import threading

import pytest

from catalogue import CIRCUIT_CHECK, CIRCUIT_RECORD
from runguard_process import Server, run_cli

HOUR = 3600


def create(data, *arguments) -> str:
    made = run_cli("key", "create", "--data", data, *arguments)
    assert made.returncode == 0, made
    return made.stdout.split()[-1]


def fail(client, endpoint: str, session: str = "s") -> dict:
    return client.recorded(CIRCUIT_RECORD, endpoint_key=endpoint, session_id=f"{session}-{endpoint}", outcome="failure")


def trip(client, endpoint: str) -> None:
    for number in range(10):
        fail(client, endpoint, f"s{number}")


def pages(client, query: str = "") -> list[list[str]]:
    found, cursor = [], ""
    while True:
        page = client.get(f"/v1/circuits?{query}{cursor}").json
        found.append([circuit["endpoint_key"] for circuit in page["circuits"]])
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def memory_mb(server: Server) -> float:
    status = open(f"/proc/{server.process.pid}/status").read()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


# -- pages ----------------------------------------------------------------------------------------


def test_circuits_come_in_pages_in_order_each_once(flow):
    names = sorted(f"api {number:02} ✓" for number in range(23))
    for name in names:
        fail(flow, name)
    found = pages(flow, "limit=10")
    assert [len(page) for page in found] == [10, 10, 3] and sum(found, []) == names
    assert flow.get("/v1/circuits").json["counts"] == {"closed": 23, "half_open": 0, "open": 0}


def test_the_phase_is_a_filter_and_all_are_counted(flow):
    for name in ("a", "c"):
        fail(flow, name)
    for name in ("b", "d"):
        trip(flow, name)
    page = flow.get("/v1/circuits?phase=open&limit=1").json
    assert [circuit["endpoint_key"] for circuit in page["circuits"]] == ["b"] and page["next_cursor"]
    assert sum(pages(flow, "phase=open&limit=1"), []) == ["b", "d"]
    assert page["counts"] == {"closed": 2, "half_open": 0, "open": 2}
    assert sum(pages(flow, "phase=closed&limit=1"), []) == ["a", "c"]
    one = flow.get("/v1/circuits?endpoint=b").json
    assert [circuit["phase"] for circuit in one["circuits"]] == ["open"]
    assert flow.get("/v1/circuits?endpoint=nobody").json["circuits"] == []


@pytest.mark.parametrize("query", ["phase=ajar", "limit=0", "limit=1001", "cursor=zz", "cursor=abc", "cursor=ff", "cursor=%E2%9C%93"])
def test_nonsense_is_refused(flow, query):
    assert flow.get(f"/v1/circuits?{query}").status == 422


def test_a_cursor_shows_nobody_elses(serve):
    server = serve(start=False)
    keys = [create(server.data, "--tenant", tenant, "--role", "guard,read") for tenant in ("acme", "globex")]
    server.start()
    acme, globex = (server.client(key=key) for key in keys)
    for number in range(3):
        fail(acme, f"a{number}")
        fail(globex, f"g{number}")
    cursor = acme.get("/v1/circuits?limit=1").json["next_cursor"]
    shown = globex.get(f"/v1/circuits?limit=2&cursor={cursor}").json
    assert {circuit["tenant"] for circuit in shown["circuits"]} == {"globex"} and shown["counts"]["closed"] == 3
    assert globex.get("/v1/circuits?endpoint=a0").json["circuits"] == []


def test_the_command_shows_a_page_and_how_to_go_on(serve):
    server = serve(virtual_clock=False)
    for number in range(5):
        fail(server.client(), f"e{number}")
    shown = run_cli("circuits", "--url", server.url, "--limit", "2")
    assert "e1" in shown.stdout and "e2" not in shown.stdout
    cursor = shown.stderr.split("--cursor")[1].split()[0]
    assert "e2" in run_cli("circuits", "--url", server.url, "--limit", "2", "--cursor", cursor).stdout


# -- the bound ------------------------------------------------------------------------------------


@pytest.fixture
def small(serve) -> Server:
    server = serve("[guards.api_circuit]\nmax_endpoints = 5\nfailure_threshold = 2\n", start=False)
    server.keys = {tenant: create(server.data, "--tenant", tenant, "--role", "guard,read,admin") for tenant in ("acme", "globex")}
    return server.start()


def test_one_too_many_is_taken_and_not_watched_and_says_so(small):
    acme = small.client(key=small.keys["acme"])
    for number in range(5):
        assert "watched" not in fail(acme, f"e{number}")
    for _ in range(3):
        beyond = fail(acme, "beyond")
        assert (beyond["watched"], beyond["phase"], beyond["tripped"]) == (False, "closed", False)
        assert "max_endpoints = 5" in beyond["warnings"][0]
    assert acme.allowed(CIRCUIT_CHECK, endpoint_key="beyond", session_id="fresh")["recent_failures_in_window"] == 0
    # Those that are remembered go on as ever.
    assert fail(acme, "e0", "t")["tripped"] is True
    acme.refused(CIRCUIT_CHECK, "circuit_just_tripped", endpoint_key="e0", session_id="fresh")
    assert len(acme.get("/v1/circuits").json["circuits"]) == 5
    # The session's own ceiling holds for any endpoint.
    acme.refused(CIRCUIT_CHECK, "session_retry_ceiling", endpoint_key="beyond", session_id="s-beyond")


def test_a_tenant_at_its_bound_pushes_nobody_out(small):
    acme, globex = (small.client(key=small.keys[tenant]) for tenant in ("acme", "globex"))
    for session in ("s", "t"):
        fail(globex, "theirs", session)
    for number in range(50):
        fail(acme, f"e{number}")
    globex.refused(CIRCUIT_CHECK, "circuit_just_tripped", endpoint_key="theirs", session_id="x")
    assert "watched" not in fail(globex, "another")
    assert len(acme.get("/v1/circuits").json["circuits"]) == 5


def test_an_operators_word_holds_beyond_the_bound(small):
    acme = small.client(key=small.keys["acme"])
    for number in range(6):
        fail(acme, f"e{number}")
    assert acme.post("/v1/circuits/beyond/open").status == 200
    acme.refused(CIRCUIT_CHECK, "circuit_open", endpoint_key="beyond", session_id="x")


def test_the_bound_holds_after_a_restart_and_under_a_race(small):
    def many(name: str):
        client = small.client(key=small.keys["acme"])
        for number in range(20):
            fail(client, f"{name}{number}")

    acme = small.client(key=small.keys["acme"])
    for number in range(4):
        fail(acme, f"e{number}")
    small.restart()
    acme = small.client(key=small.keys["acme"])
    writers = [threading.Thread(target=many, args=(name,)) for name in "wxyz"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    # Those that came at the same moment may each have taken the last place.
    assert 5 <= len(acme.get("/v1/circuits").json["circuits"]) <= 8


# -- the lifetime ---------------------------------------------------------------------------------


def test_a_closed_circuit_is_forgotten_when_its_windows_are_over_and_an_open_or_forced_one_is_not(small):
    acme = small.client(key=small.keys["acme"])
    fail(acme, "closed")
    for session in ("s", "t"):
        fail(acme, "open", session)
    assert acme.post("/v1/circuits/forced/close").status == 200
    listed = lambda: [circuit["endpoint_key"] for circuit in acme.get("/v1/circuits").json["circuits"]]
    assert listed() == ["closed", "forced", "open"]
    # Whatever is erased, the keeper's round that forgets comes with it: no need to wait for the next minute.
    for hours, left in ((0.5, ["closed", "forced", "open"]), (3, ["forced", "open"]), (24 * 40, ["forced"])):
        acme.at(hours * HOUR)
        acme.allowed(CIRCUIT_CHECK, endpoint_key="unrelated", session_id="passing")
        assert acme.delete("/v1/sessions/passing").status == 200
        assert listed() == left, hours
    small.restart()
    acme = small.client(key=small.keys["acme"]).at(24 * 40 * HOUR)
    assert listed() == ["forced"]


def test_what_is_forgotten_makes_room(small):
    acme = small.client(key=small.keys["acme"])
    for number in range(5):
        fail(acme, f"e{number}")
    assert fail(acme, "beyond")["watched"] is False
    acme.at(3 * HOUR)
    acme.allowed(CIRCUIT_CHECK, endpoint_key="unrelated", session_id="passing")
    assert acme.delete("/v1/sessions/passing").status == 200
    # A tenant at its bound is counted again now and then.
    acme.wait(11)
    assert "watched" not in fail(acme, "beyond")


# -- what it costs --------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_endpoints_and_many_who_look_take_little_memory(serve):
    server = serve("[guards.api_circuit]\nmax_endpoints = 1000000\n[store]\nmemory_mb = 16\n", start=False)
    server.start()

    def many(name: str):
        client = server.client(keep_alive=True)
        for number in range(5000):
            fail(client, f"{name}-{'x' * 200}-{number}")

    def look(path: str):
        client = server.client()
        for _ in range(5):
            assert client.get(path).status == 200

    def together(work, arguments):
        threads = [threading.Thread(target=work, args=(one,)) for one in arguments]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    together(many, "abcd")
    before = memory_mb(server)
    together(look, ["/v1/circuits?limit=100", "/metrics", "/v1/circuits?phase=open"] * 10)
    assert memory_mb(server) - before < 60
    assert server.client().get("/v1/circuits").json["counts"]["closed"] == 20_000
