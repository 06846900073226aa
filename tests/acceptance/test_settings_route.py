"""`GET /v1/settings`: what is in force, where it came from, and who may see how much of it."""

import functools
import time

from test_keys import create_key

CONFIG = """
[log]
store_text = "none"
[guards.handoff]
max_handoffs = 4
[tenants.acme.guards.handoff]
max_visits_per_bot = 7
[tenants.rival.guards.handoff]
max_visits_per_bot = 9
"""


def settings(client, query=""):
    answer = client.get(f"/v1/settings{query}")
    assert answer.status == 200, answer
    return answer.json


def test_every_value_says_where_it_came_from(serve):
    server = serve(CONFIG, environment={"RUNGUARD_GUARDS__HANDOFF__WINDOW": '"10m"'})
    shown = settings(server.client())
    assert shown["tenant"] is None and shown["admin"] is True
    tree = shown["settings"]
    handoff = tree["guards"]["handoff"]
    assert handoff["max_handoffs"]["value"] == 4
    assert handoff["max_handoffs"]["source"].endswith("runguard.toml:5")
    assert (handoff["window"]["value"], handoff["window"]["source"]) == ("10m", "environment RUNGUARD_GUARDS__HANDOFF__WINDOW")
    assert handoff["max_visits_per_bot"] == {"value": 2, "source": "default"}
    assert tree["server"]["listen"]["source"] == "flag --listen"
    assert tree["log"]["store_text"]["value"] == "none"
    assert tree["tenants"]["acme"]["guards"]["handoff"]["max_visits_per_bot"]["value"] == 7


def test_a_tenant_sees_its_own_policy_and_nothing_else(serve):
    server = serve(CONFIG, start=False)
    reader = create_key(server.data, "acme", "read")
    admin = create_key(server.data, None, "admin")
    guard = create_key(server.data, "acme", "guard")
    server.start()
    shown = settings(server.client(key=reader))
    assert shown["tenant"] == "acme" and shown["admin"] is False
    assert list(shown["settings"]) == ["guards"]
    handoff = shown["settings"]["guards"]["handoff"]
    assert handoff["max_visits_per_bot"] == {"value": 7, "source": "file"}
    assert handoff["max_handoffs"] == {"value": 4, "source": "file"}
    text = server.client(key=reader).get("/v1/settings").text
    assert "rival" not in text and str(server.folder) not in text
    assert server.client(key=reader).get("/v1/settings?tenant=rival").status == 403
    assert server.client(key=guard).get("/v1/settings").status == 403
    assert server.client().get("/v1/settings").status == 401
    assert settings(server.client(key=admin), "?tenant=rival")["settings"]["guards"]["handoff"]["max_visits_per_bot"]["value"] == 9
    everything = server.client(key=admin).get("/v1/settings").text
    assert not any(key in everything for key in (reader, admin, guard)), "keys are in no settings"


def test_a_changed_file_shows_and_what_waits_for_a_restart_says_so(serve):
    server = serve("[guards.handoff]\nmax_handoffs = 4\n[log]\nretention_days = 30\n")
    server.config_file.write_text("[guards.handoff]\nmax_handoffs = 5\n[log]\nretention_days = 7\n")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        tree = settings(server.client())["settings"]
        if tree["guards"]["handoff"]["max_handoffs"]["value"] == 5:
            break
        time.sleep(0.05)
    assert tree["guards"]["handoff"]["max_handoffs"]["value"] == 5
    retention = tree["log"]["retention_days"]
    assert (retention["value"], retention["after_restart"]) == (30, 7)


def test_a_length_of_time_says_so_and_a_count_does_not(serve):
    server = serve("[guards.handoff]\nwindow = 120\n[tenants.acme.guards.handoff]\nwindow = \"5m\"\n")
    tree = settings(server.client())["settings"]
    unit = lambda *path: functools.reduce(lambda inner, part: inner[part], path, tree).get("unit")
    assert unit("guards", "handoff", "window") == unit("server", "grace") == unit("gateway", "patience") == "seconds"
    assert unit("guards", "stall", "novelty_window") is None and unit("log", "retention_days") is None
    assert unit("tenants", "acme", "guards", "handoff", "window") is None, "it says its unit itself"


def test_a_wrong_parameter_is_named(flow):
    answer = flow.get("/v1/settings?tenat=acme")
    assert answer.status == 422 and answer.json["errors"][0]["field"] == "tenat"


def test_what_is_taken_over_at_once_does_not_wait_for_a_restart(serve):
    server = serve(config="[server]\nmax_in_flight_per_key = 100\nmax_streams = 7\n")
    server.config_file.write_text("[server]\nmax_in_flight_per_key = 200\nmax_streams = 8\n")
    shown = lambda: server.client().get("/v1/settings").json["settings"]["server"]
    deadline = time.monotonic() + 15
    while "after_restart" not in shown()["max_streams"]:
        assert time.monotonic() < deadline, shown()
        time.sleep(0.05)
    assert shown()["max_streams"]["value"] == 7 and shown()["max_streams"]["after_restart"] == 8
    assert shown()["max_in_flight_per_key"]["value"] == 200 and "after_restart" not in shown()["max_in_flight_per_key"]
