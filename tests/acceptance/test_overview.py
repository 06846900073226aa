"""`GET /v1/overview`: every list of it, from decisions that were really made."""

from __future__ import annotations

import json
import threading
import time

import pytest

from catalogue import (
    AGENT_ACTION, AI_TASK_RETRY, BUDGET_RECORD, CAPTURE, CIRCUIT_CHECK, CIRCUIT_RECORD, HANDOFF, KB_BOTPRESS, KB_CHECK, KB_RECORD,
    NO_MATCH, topic_hash,
)
from runguard_http import T0_MS
from runguard_process import run_cli

HOUR = 3600
LISTS = ("reasons", "subjects", "topics", "actions", "endpoints", "entities", "budgets", "hours")


def overview(client, **query):
    """At the client's time; the answer."""
    response = client.get("/v1/overview?" + "&".join(f"{name}={value}" for name, value in query.items()))
    assert response.status == 200, response
    return response.json


def one(entries, **wanted):
    found = [entry for entry in entries if all(entry[name] == value for name, value in wanted.items())]
    assert len(found) == 1, f"{wanted} in {json.dumps(entries, indent=1)}"
    return found[0]


def test_totals_and_series_are_exact(flow):
    for _ in range(2):
        flow.at(0).allowed(AI_TASK_RETRY, session_id="s", task_name="classify")
    flow.at(60).refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="classify")
    shown = overview(flow.at(90), since="10m")
    assert shown["bucket_seconds"] == 60 and shown["behind_rows"] == 0
    assert shown["since_ms"] == T0_MS + 90_000 - 600_000 and shown["until_ms"] == T0_MS + 90_001
    assert shown["since"] == "2027-01-15T07:51:30.000Z"
    totals = shown["totals"]
    assert (totals["decisions"], totals["allowed"], totals["would_block"], totals["blocked"]) == (3, 2, 0, 1)
    assert (totals["operations_saved"], totals["credits_saved"], totals["usd_saved"]) == (1, 1.0, 0.0)
    series = shown["series"]["by_guard"]["ai_task_retry"]
    at = shown["series"]["starts_ms"].index
    assert series["allowed"][at(T0_MS)] == 2 and series["blocked"][at(T0_MS + 60_000)] == 1
    assert sum(series["allowed"]) == 2 and len(series["blocked"]) == len(shown["series"]["starts_ms"]) == 11
    # A minute later than asked for is not in it.
    assert overview(flow, since=T0_MS + 60_000, until=T0_MS + 120_000)["totals"]["decisions"] == 1


def test_reasons_and_subjects_name_sessions(flow):
    for session in ("s1", "s2"):
        flow.at(0).refused(AI_TASK_RETRY, "input_missing_prerequisite_signal", session_id=session, task_name="extract_date",
                           user_message="hello")
    flow.at(1).allowed(AI_TASK_RETRY, session_id="s1", task_name="classify")
    shown = overview(flow)
    reason = one(shown["reasons"], guard="ai_task_retry", reason="input_missing_prerequisite_signal")
    assert reason["blocked"] == 2 and reason["subjects"] == [{"subject": "extract_date", "count": 2}]
    assert sorted(reason["sessions"]) == ["s1", "s2"]
    subject = one(shown["subjects"], subject="extract_date")
    assert (subject["blocked"], subject["allowed"], sorted(subject["sessions"])) == (2, 0, ["s1", "s2"])
    assert one(shown["subjects"], subject="classify")["allowed"] == 1
    assert shown["subjects"][0]["subject"] == "extract_date", "the heaviest first"


def circle(client, session):
    for source, target in (("desk", "billing"), ("billing", "tech"), ("tech", "billing"), ("billing", "tech")):
        client.allowed(HANDOFF, session_id=session, source_bot=source, target_bot=target)
    client.refused(HANDOFF, "cycle_detected", session_id=session, source_bot="tech", target_bot="billing")


def test_handoffs_are_a_graph_with_chains(flow):
    circle(flow.at(0), "s1")
    circle(flow.at(5), "s2")
    shown = overview(flow)["handoffs"]
    edge = one(shown["edges"], source="tech", target="billing")
    assert (edge["allowed"], edge["blocked"]) == (2, 2)
    assert one(shown["edges"], source="billing", target="tech")["allowed"] == 4
    assert shown["chains"] == [{"chain": ["billing", "tech", "billing", "tech"], "count": 2, "sessions": ["s2", "s1"]}]


def test_chains_are_seen_in_observe_mode(serve):
    flow = serve(config='[guards.handoff]\nmode = "observe"\n').client()
    for _ in range(3):
        flow.allowed(HANDOFF, session_id="s", source_bot="a", target_bot="b")
    shown = overview(flow)
    assert shown["totals"]["would_block"] == 1 and shown["totals"]["operations_saved"] == 0
    assert shown["handoffs"]["chains"] == [{"chain": ["b", "b"], "count": 1, "sessions": ["s"]}]
    assert shown["handoffs"]["edges"] == [{"source": "a", "target": "b", "allowed": 3, "blocked": 0}]


def test_topics_of_both_doors(flow):
    for confidence in (0, 0.3):
        flow.allowed(KB_BOTPRESS, session_id="s", topic_hash="refunds", query_text="how do refunds work", last_confidence=confidence)
    flow.refused(KB_BOTPRESS, "kb_requery_cap_reached", session_id="s", topic_hash="refunds", last_confidence=0.45)
    flow.recorded(KB_RECORD, session_id="v", query="opening hours", confidence_score=0.95, retrieved_chunks=3)
    flow.recorded(KB_RECORD, session_id="v", query="opening hours", confidence_score=1.0, retrieved_chunks=3)
    flow.refused(KB_CHECK, "kb_query_cap_reached", session_id="v", query="opening hours")
    topics = overview(flow)["topics"]
    gap = one(topics, topic="refunds")
    assert (gap["label"], gap["queries"], gap["blocked"], gap["is_gap"]) == ("how do refunds work", 2, 1, True)
    assert gap["best_confidence"] == pytest.approx(0.45) and gap["mean_confidence"] == pytest.approx(0.375)
    assert gap["histogram"] == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0] and gap["sessions"] == ["s"]
    known = one(topics, topic=topic_hash("opening hours"))
    assert (known["label"], known["queries"], known["blocked"], known["is_gap"]) == ("opening hours", 2, 1, False)
    assert known["histogram"][9] == 2
    # Two operations for each query of a knowledge base that was spared.
    assert overview(flow)["totals"]["operations_saved"] == 4


def test_actions_and_their_skew(flow):
    for number in range(3):
        flow.allowed(AGENT_ACTION, session_id="s", action_name="search", action_params_hash=str(number))
    flow.refused(AGENT_ACTION, "consecutive_same_action_spiral", session_id="s", action_name="search")
    flow.allowed(AGENT_ACTION, session_id="s", action_name="mail")
    shown = overview(flow)
    assert one(shown["actions"], action="search") == {"action": "search", "runs": 3, "blocked": 1, "share": 0.75}
    assert one(shown["actions"], action="mail")["share"] == 0.25
    assert shown["action_skew"] == pytest.approx(0.25)


def test_endpoints_with_failures_over_time(flow):
    for minute, outcome in ((0, "success"), (0, "failure"), (12, "failure")):
        flow.at(minute * 60).recorded(CIRCUIT_RECORD, endpoint_key="orders", session_id="s", outcome=outcome, latency_ms=100 * (minute + 1))
    flow.at(13 * 60).allowed(CIRCUIT_CHECK, endpoint_key="orders", session_id="s")
    assert flow.post("/v1/circuits/orders/open").status == 200
    flow.refused(CIRCUIT_CHECK, "circuit_open", endpoint_key="orders", session_id="s")
    shown = overview(flow, since="30m")
    endpoint = one(shown["endpoints"], endpoint="orders")
    assert (endpoint["calls"], endpoint["failures"], endpoint["blocked"]) == (3, 2, 1)
    assert endpoint["failure_rate"] == pytest.approx(2 / 3) and endpoint["mean_ms"] == 500 and endpoint["max_ms"] == 1300
    over_time = dict(zip(shown["series"]["starts_ms"], endpoint["failures_over_time"], strict=True))
    assert (over_time[T0_MS], over_time[T0_MS + 12 * 60_000], sum(over_time.values())) == (1, 1, 2)


def test_entities_budgets_and_hours(flow):
    flow.at(0).refused(CAPTURE, "colloquial_format_detected", session_id="s", capture_step="ask", entity_type="email",
                       user_utterance="john at example dot com")
    flow.allowed(CAPTURE, session_id="s", capture_step="ask", entity_type="email", user_utterance="what?")
    flow.allowed(BUDGET_RECORD, session_id="s", budget="team", usd=1.25, tokens=100, max_usd=2)
    flow.refused(BUDGET_RECORD, "budget_exceeded", session_id="s", budget="team", usd=1)
    for hour in (0, 1, 25):
        flow.at(hour * HOUR).allowed(NO_MATCH, session_id=f"s{hour}", step_id="ask_zip", user_utterance="well")
    shown = overview(flow, since="2d")
    assert shown["entities"] == [{"entity": "email", "hints": 1, "blocked": 1, "sessions": ["s"]}]
    budget = one(shown["budgets"], budget="team")
    assert (budget["spent_usd"], budget["limit_usd"], budget["spent_tokens"], budget["refused"]) == (2.25, 2.0, 100, 1)
    hours = one(shown["hours"], subject="ask_zip")
    assert hours["guard"] == "no_match_reprompt" and hours["total"] == 3
    # Second zero is at eight o'clock.
    assert (hours["by_hour_of_day"][8], hours["by_hour_of_day"][9]) == (1, 2) and len(hours["by_hour_of_day"]) == 24


def test_filters_by_guard_and_reason(flow):
    circle(flow, "s")
    flow.allowed(AGENT_ACTION, session_id="s", action_name="search")
    shown = overview(flow, guard="agent_action")
    assert shown["filters"] == {"tenant": None, "guard": "agent_action", "reason": None}
    assert list(shown["series"]["by_guard"]) == ["agent_action"] and shown["totals"]["decisions"] == 1
    assert shown["handoffs"] == {"edges": [], "chains": []} and shown["reasons"] == []
    assert [subject["subject"] for subject in shown["subjects"]] == ["search"]
    shown = overview(flow, reason="cycle_detected")
    assert shown["totals"]["decisions"] == shown["totals"]["blocked"] == 1 and shown["actions"] == []
    assert [(subject["subject"], subject["blocked"], subject["allowed"]) for subject in shown["subjects"]] == [("billing", 1, 0)]
    assert shown["handoffs"]["chains"][0]["count"] == 1
    assert overview(flow, reason="handoff_ceiling_reached")["handoffs"]["chains"] == []


@pytest.mark.parametrize("query", [
    "bucket=week", "guard=nobody", "reason=because", "since=soon", "until=x", "colour=red", "since=7d&bucket=minute",
    "since=-9223372036854775808",
])
def test_what_cannot_be_shown_is_refused(shared_server, query):
    response = shared_server.client().get(f"/v1/overview?{query}")
    assert response.status == 422 and response.content_type == "application/problem+json", response


@pytest.mark.parametrize("since, seconds", [("3h", 60), ("4h", 3600), ("14d", 3600), ("15d", 86_400)])
def test_the_bucket_goes_by_the_range(shared_server, since, seconds):
    shown = overview(shared_server.client(), since=since)
    assert shown["bucket_seconds"] == seconds and len(shown["series"]["starts_ms"]) <= 2000


def test_an_empty_range_is_empty(shared_server):
    shown = overview(shared_server.client(), since=T0_MS + 5000, until=T0_MS)
    assert shown["totals"]["decisions"] == 0 and shown["series"] == {"starts_ms": [], "by_guard": {}}
    assert all(shown[name] == [] for name in LISTS)


def test_savings_are_settings_that_change_while_it_runs(serve):
    server = serve(config="[savings]\nusd_per_operation = 0.5\noperations.kb_requery = 4\n")
    flow = server.client()
    flow.refused(KB_BOTPRESS, "confidence_already_met", session_id="s", topic_hash="t", last_confidence=0.9)
    totals = overview(flow)["totals"]
    assert (totals["operations_saved"], totals["credits_saved"], totals["usd_saved"]) == (4, 4.0, 2.0)
    server.config_file.write_text("[savings]\nusd_per_operation = 0.25\ncredits_per_operation = 3\n")
    deadline = time.monotonic() + 10
    while overview(flow)["totals"]["usd_saved"] != 0.5:
        assert time.monotonic() < deadline, overview(flow)["totals"]
        time.sleep(0.05)
    assert overview(flow)["totals"]["credits_saved"] == 6.0


def test_a_tenant_sees_its_own(serve):
    server = serve(start=False)
    keys = {}
    for name, whose, role in (("acme", ["--tenant", "acme"], "guard,read"), ("globex", ["--tenant", "globex"], "guard,read"), ("admin", [], "admin")):
        made = run_cli("key", "create", *whose, "--role", role, "--data", server.data, "--json")
        assert made.returncode == 0, made.stderr
        keys[name] = json.loads(made.stdout)["key"]
    server.start()
    acme, globex, admin = (server.client(key=keys[name]) for name in ("acme", "globex", "admin"))
    circle(acme, "acme-1")
    circle(globex, "globex-1")
    assert overview(acme)["handoffs"]["chains"][0]["sessions"] == ["acme-1"]
    assert overview(globex)["totals"]["decisions"] == 5
    assert "acme-1" not in json.dumps(overview(globex))
    assert acme.get("/v1/overview?tenant=globex").status == 403
    assert overview(admin)["handoffs"]["chains"][0]["count"] == 2
    assert overview(admin, tenant="globex")["handoffs"]["chains"][0]["sessions"] == ["globex-1"]
    assert server.client().get("/v1/overview").status == 401


def test_an_erased_session_is_nowhere(serve):
    server = serve()
    flow = server.client()
    flow.recorded(KB_RECORD, session_id="gone-1", query="zanzibar", confidence_score=0.1)
    circle(flow, "gone-1")
    deadline = time.monotonic() + 20
    while not any(found.startswith("insight.db") for found in server.files_containing("zanzibar")):
        assert time.monotonic() < deadline, "the row never came into the cells"
        time.sleep(0.05)
    assert "gone-1" in json.dumps(overview(flow))
    assert flow.delete("/v1/sessions/gone-1").status == 200
    shown = json.dumps(overview(flow))
    assert "gone-1" not in shown and "zanzibar" not in shown
    assert overview(flow)["handoffs"]["chains"][0]["count"] == 1, "what was counted stays counted"
    assert server.files_containing("zanzibar", "gone-1") == []
    server.restart()
    assert "gone-1" not in json.dumps(overview(flow))


def test_kill_9_neither_misses_nor_doubles(serve):
    server = serve(virtual_clock=False)
    asked, lock = [0], threading.Lock()

    def caller(number):
        client = server.client(keep_alive=True)
        try:
            for count in range(100_000):
                client.post(AGENT_ACTION, {"session_id": f"s{number}-{count // 5}", "action_name": f"action-{count % 5}"})
                with lock:
                    asked[0] += 1
        except (OSError, ValueError, AssertionError):
            pass
        except Exception as error:  # a torn answer: the server is gone
            assert "http.client" in type(error).__module__, error

    for seconds in (2.6, 1.3, 0.4):
        callers = [threading.Thread(target=caller, args=(number,)) for number in range(3)]
        for thread in callers:
            thread.start()
        time.sleep(seconds)
        server.kill()
        for thread in callers:
            thread.join()
        server.start()
    deadline = time.monotonic() + 60
    client = server.client()
    while (shown := overview(client))["behind_rows"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    runs = sum(action["runs"] + action["blocked"] for action in shown["actions"])
    assert runs == shown["totals"]["decisions"] >= asked[0] > 0
