"""`POST /v1/preview` and `runguard preview`: what changed thresholds would have done."""

import http.client
import json
import threading
import time

import pytest

from catalogue import HANDOFF
from runguard_http import T0_MS
from runguard_process import run_cli
from test_keys import create_key


def hand_over(client, times, session="s", target="b"):
    return [client.post(HANDOFF, {"session_id": session, "source_bot": "a", "target_bot": target}).status for _ in range(times)]


def preview(client, **fields):
    answer = client.post("/v1/preview", fields)
    assert answer.status == 200, answer
    return answer.json


def test_what_was_refused_and_would_pass_is_named(flow):
    assert hand_over(flow, 4) == [200, 200, 429, 429]
    report = preview(flow.wait(1), guard="handoff", settings={"max_visits_per_bot": 3})
    assert (report["rows"], report["truncated"]) == (4, False)
    assert report["before"] == {"allowed": 2, "would_block": 0, "blocked": 2}
    assert report["after"] == {"allowed": 3, "would_block": 0, "blocked": 1}
    [changed] = report["changed"]
    third = flow.get("/v1/decisions?order=asc").json["decisions"][2]
    assert changed["decision_id"] == third["decision_id"]
    assert (changed["session_id"], changed["subject"], changed["before"], changed["after"], changed["reason"]) == (
        "s", "b", "blocked", "allowed", "cycle_detected")
    assert report["changed_total"] == 1 and report["inexact"], "what the passed request would have led to is not known"


def test_unchanged_settings_change_nothing_and_say_nothing(flow):
    hand_over(flow, 5)
    report = preview(flow.wait(1), guard="handoff")
    assert report["before"] == report["after"] and report["changed"] == [] and report["inexact"] == []


def test_the_time_before_counts_as_history_only(flow):
    hand_over(flow, 2)
    hand_over(flow.at(60), 1)
    report = preview(flow.at(61), guard="handoff", settings={"max_visits_per_bot": 3}, since=T0_MS + 30_000)
    assert (report["rows"], report["warm_up_rows"], report["after"]["allowed"]) == (1, 2, 1)
    assert preview(flow, guard="handoff", until=T0_MS)["rows"] == 0
    assert preview(flow, guard="handoff", since="40s", subject="c")["rows"] == 0


@pytest.mark.parametrize(("fields", "named"), [
    ({"guard": "handof"}, "guard"),
    ({}, "guard"),
    ({"guard": "handoff", "settings": {"max_handofs": 3}}, "settings.max_handofs"),
    ({"guard": "handoff", "settings": {"max_handoffs": -1}}, "settings.max_handoffs"),
    ({"guard": "handoff", "settings": {"max_handoffs": 100000}}, "settings.max_handoffs"),
    ({"guard": "handoff", "settings": {"bots": {"b": {"window": "soon"}}}}, "settings.bots.b.window"),
    ({"guard": "kb_requery", "settings": {"voiceflow.low_confidence": 2}}, "settings.voiceflow.low_confidence"),
    ({"guard": "ai_task_retry", "settings": {"patterns": {"a": "("}}}, "settings.patterns"),
    ({"guard": "handoff", "settings": [1]}, "settings"),
    ({"guard": "handoff", "since": "yesterday"}, "since"),
    ({"guard": "handoff", "sinse": "7d"}, "sinse"),
    ({"guard": "handoff", "tenant": 5}, "tenant"),
], ids=str)
def test_mistakes_are_named(flow, fields, named):
    answer = flow.post("/v1/preview", fields)
    assert answer.status == 422, answer
    assert answer.json["errors"][0]["field"].startswith(named)


def test_what_is_no_object_is_refused(flow):
    assert flow.request("POST", "/v1/preview", b"[]").status == 400
    assert flow.request("POST", "/v1/preview", b"{").status == 400
    assert flow.request("POST", "/v1/preview", b" " * 3_000_000).status == 413
    assert flow.get("/v1/preview").status == 405


def test_keys_see_their_own_tenant(serve):
    server = serve(start=False)
    keys = {(tenant, role): create_key(server.data, tenant, role)
            for tenant, role in [("acme", "guard"), ("acme", "read"), ("rival", "read"), (None, "admin")]}
    server.start()
    hand_over(server.client(key=keys["acme", "guard"]), 3)
    ask = {"guard": "handoff", "settings": {"max_visits_per_bot": 1}}
    rows = lambda key, **more: preview(server.client(key=keys[key]).wait(1), **ask, **more)["rows"]
    assert rows(("acme", "read")) == 3 and rows(("rival", "read")) == 0
    assert rows((None, "admin")) == 3 and rows((None, "admin"), tenant="rival") == 0
    assert server.client(key=keys["rival", "read"]).post("/v1/preview", {**ask, "tenant": "acme"}).status == 403
    assert server.client(key=keys["acme", "guard"]).post("/v1/preview", ask).status == 403
    assert server.client().post("/v1/preview", ask).status == 401


def test_texts_that_are_not_kept_are_not_guessed(serve):
    flow = serve('[log]\nstore_text = "redacted"\n').client()
    for message in ("my order is #12345678", "no number"):
        flow.post("/guard/ai-task-retry", {"session_id": "s", "task_name": "extract_order_number", "user_message": message})
    flow.wait(1)
    exact = preview(flow, guard="ai_task_retry", settings={"max_retries": 5})
    assert exact["changed"] == [] and exact["inexact"] == [], "the log says what the pattern found"
    other = preview(flow, guard="ai_task_retry", settings={"patterns": {"extract_order_number": "[0-9]{8}"}})
    assert any("redacted" in doubt for doubt in other["inexact"]), other


def test_one_at_a_time_and_none_after_its_caller_has_gone(server):
    flow = server.client(keep_alive=True)
    for number in range(1500):
        flow.post(HANDOFF, {"session_id": f"s{number % 50}", "source_bot": "a", "target_bot": "b"})
    body = json.dumps({"guard": "handoff", "settings": {"max_visits_per_bot": 3}})
    statuses = []

    def ask():
        statuses.append(server.client().wait(1).request("POST", "/v1/preview", body.encode()).status)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 429}, statuses
    busy = None
    gone = http.client.HTTPConnection("127.0.0.1", server.port)
    gone.request("POST", "/v1/preview", body, headers=server.client().wait(1).headers())
    time.sleep(0.02)
    gone.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        busy = server.client().wait(1).request("POST", "/v1/preview", body.encode())
        if busy.status == 200:
            break
        time.sleep(0.01)
    assert busy.status == 200 and busy.json["rows"] == 1500, busy


def test_the_command_prints_it_readable(serve):
    server = serve(virtual_clock=False)
    hand_over(server.client(), 4)
    told = run_cli("preview", "handoff", "--set", "max_visits_per_bot=3", "--since", "1h", "--url", server.url)
    assert told.returncode == 0, told
    words = told.stdout.split()
    assert "cycle_detected" in words and "+1" in words and "-1" in words
    assert "not exact" in told.stderr
    as_json = run_cli("preview", "handoff", "--set", "max_visits_per_bot=3", "--json", "--url", server.url)
    assert json.loads(as_json.stdout)["changed_total"] == 1
    wrong = run_cli("preview", "handoff", "--set", "max_visit=3", "--url", server.url)
    assert wrong.returncode == 2 and "settings.max_visit" in wrong.stderr and "max_visits_per_bot" in wrong.stderr
    assert run_cli("preview", "handoff", "--set", "nonsense", "--url", server.url).returncode == 2
