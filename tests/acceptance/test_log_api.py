"""The log as an API: decisions, sessions, statistics, circuits, live events, and what they never contain."""

import csv
import io
import json
import re
import time
from datetime import datetime, timezone
from urllib.parse import quote, urlencode

import pytest

from catalogue import AGENT_ACTION, AGENT_RESULT, AI_TASK_RETRY, BLOCKS, CAPTURE, CIRCUIT_CHECK, CIRCUIT_RECORD, \
    HANDOFF, KB_BOTPRESS, KB_CHECK, KB_RECORD, NO_MATCH, ROUTES
from runguard_http import T0_MS, EventStream, subset


def rfc3339(second: float) -> str:
    moment = datetime.fromtimestamp(T0_MS / 1000 + second, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def decisions(flow, **filters):
    response = flow.get("/v1/decisions?" + urlencode(filters))
    assert response.status == 200, response
    return response.json["decisions"]


def walk(flow, **filters):
    """Every page, by its cursor, to the last."""
    pages = []
    while True:
        response = flow.get("/v1/decisions?" + urlencode(filters))
        assert response.status == 200, response
        pages.append(response.json["decisions"])
        if response.json["next_cursor"] is None:
            return pages
        assert len(pages) < 1000, "the cursor never ends"
        filters["cursor"] = response.json["next_cursor"]


@pytest.fixture
def day(flow):
    """A small story over three sessions and three guards; a decision every minute."""
    for number in range(4):  # s1: two allowed, two refused
        flow.at(60 * number).post(AI_TASK_RETRY, {"session_id": "s1", "task_name": "classify"})
    for number in range(4, 6):  # s2: two allowed
        flow.at(60 * number).post(HANDOFF, {"session_id": "s2", "source_bot": "front", "target_bot": "billing"})
    for number in range(6, 8):  # s3: two refused
        flow.at(60 * number).post(NO_MATCH, {"session_id": "s3", "step_id": "capture_email", "user_utterance": "no"})
    return flow


# -- decisions ------------------------------------------------------------------------------------


def test_a_decision_has_everything(flow):
    flow.at(0).allowed(AI_TASK_RETRY, session_id="s", task_name="classify", user_message="hello there")
    flow.at(1).allowed(AI_TASK_RETRY, session_id="s", task_name="classify")
    response = flow.at(61.5).post(AI_TASK_RETRY, {"session_id": "s", "task_name": "classify",
                                                   "user_message": "hello again", "validation_error": "no category"})
    [blocked] = decisions(flow, outcome="blocked")
    assert subset(blocked, "decision_id", "time_ms", "guard", "session_id", "subject", "outcome", "reason",
                  "message") == {
        "decision_id": response.json["decision_id"], "time_ms": T0_MS + 61_500, "guard": "ai_task_retry",
        "session_id": "s", "subject": "classify", "outcome": "blocked", "reason": "retry_cap_reached",
        "message": response.json["message"],
    }
    assert datetime.fromisoformat(blocked["time"]).timestamp() * 1000 == T0_MS + 61_500
    assert isinstance(blocked["tenant"], str) and isinstance(blocked["kind"], str)
    assert blocked["answer"] == response.json
    assert blocked["input"]["user_message"] == "hello again"
    assert blocked["input"]["validation_error"] == "no category"


def test_the_log_has_every_answer(day):
    logged = decisions(day)
    assert len(logged) == 8
    assert sorted(item["time_ms"] for item in logged) == [T0_MS + 60_000 * number for number in range(8)]


def test_records_are_in_the_log_too(flow):
    """Asked for by their kind; by default the log shows decisions only."""
    flow.allowed(CIRCUIT_CHECK, endpoint_key="orders", session_id="s")
    flow.recorded(CIRCUIT_RECORD, endpoint_key="orders", session_id="s", attempt=1, outcome="failure")
    flow.allowed(AGENT_ACTION, session_id="s", action_name="a")
    flow.post(AGENT_RESULT, {"session_id": "s", "action_name": "a", "result_summary": "3 orders"})
    assert [item["kind"] for item in decisions(flow)] == ["check", "check"]
    assert {item["guard"] for item in decisions(flow, kind="record")} == {"api_circuit", "agent_action"}
    assert len(decisions(flow, kind="all")) == 4


@pytest.mark.parametrize("filters, minutes", [
    ({"guard": "ai_task_retry"}, {0, 1, 2, 3}),
    ({"guard": "handoff"}, {4, 5}),
    ({"reason": "retry_cap_reached"}, {2, 3}),
    ({"reason": "entity_signal_absent"}, {6, 7}),
    ({"session": "s2"}, {4, 5}),
    ({"session": "nobody"}, set()),
    ({"outcome": "allowed"}, {0, 1, 4, 5}),
    ({"outcome": "blocked"}, {2, 3, 6, 7}),
    ({"outcome": "would_block"}, set()),
    ({"since": rfc3339(180)}, {3, 4, 5, 6, 7}),
    ({"until": rfc3339(119.999)}, {0, 1}),
    ({"since": rfc3339(60), "until": rfc3339(180.001)}, {1, 2, 3}),
    ({"guard": "ai_task_retry", "outcome": "blocked", "since": rfc3339(150)}, {3}),
    ({"guard": "handoff", "outcome": "blocked"}, set()),
], ids=str)
def test_filters(day, filters, minutes):
    assert {(item["time_ms"] - T0_MS) // 60_000 for item in decisions(day, **filters)} == minutes


def test_the_tenant_filter(day):
    tenant = decisions(day)[0]["tenant"]
    assert len(decisions(day, tenant=tenant)) == 8
    assert decisions(day, tenant="somebody-else") == []


@pytest.mark.parametrize("query", [
    "limit=1&limit=1000", "tenant=a&tenant=b", "limit=1001", "limit=0", "limit=-1", "limit=many", "since=soon", "until=1/2/2026", "format=xml", "cursor=nonsense",
    "outcome=maybe", "guard=unknown_guard", "kind=other",
])
def test_a_filter_that_means_nothing_is_an_error(day, query):
    response = day.get(f"/v1/decisions?{query}")
    assert response.status in (400, 422), response
    assert response.content_type == "application/problem+json"


def test_a_thousand_rows_are_a_page(day):
    assert day.get("/v1/decisions?limit=1000").status == 200


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_pages_walk_every_row_once(flow, limit):
    for number in range(50):
        flow.at(number // 10).allowed(AGENT_ACTION, session_id=f"s{number % 5}", action_name=f"a{number}")
    pages = walk(flow, limit=limit)
    ids = [item["decision_id"] for page in pages for item in page]
    assert len(ids) == 50 and len(set(ids)) == 50
    assert ids in (sorted(ids), sorted(ids, reverse=True))
    assert all(len(page) <= limit for page in pages)


def test_rows_that_arrive_while_walking_repeat_and_hide_nothing(flow):
    def act(number):
        return flow.allowed(AGENT_ACTION, session_id=f"s{number}", action_name="a")["decision_id"]

    first = {act(number) for number in range(30)}
    seen, cursor = [], {}
    for number in range(30, 40):
        response = flow.get("/v1/decisions?" + urlencode({"limit": 7, **cursor}))
        seen += [item["decision_id"] for item in response.json["decisions"]]
        if response.json["next_cursor"] is None:
            break
        cursor = {"cursor": response.json["next_cursor"]}
        act(number)
    assert len(seen) == len(set(seen))
    assert first <= set(seen)


def test_pages_walk_with_filters_too(flow):
    for number in range(30):
        flow.at(number).post(AGENT_ACTION, {"session_id": "s", "action_name": "same"})
    ids = [item["decision_id"] for page in walk(flow, limit=4, outcome="blocked", session="s") for item in page]
    assert len(ids) == 27 and len(set(ids)) == 27


def test_ndjson(day):
    response = day.get("/v1/decisions?format=ndjson")
    assert response.status == 200 and "ndjson" in response.content_type
    rows = [json.loads(line) for line in response.text.splitlines()]
    assert rows == decisions(day)


def test_csv(flow):
    for target in ("plain", 'comma, "quote"', "line\nbreak", "=1+1"):
        flow.allowed(HANDOFF, session_id="s", source_bot="front", target_bot=target)
    flow.refused(NO_MATCH, "entity_signal_absent", session_id="s", step_id="capture_zip")
    response = flow.get("/v1/decisions?format=csv")
    assert response.status == 200 and response.content_type == "text/csv"
    rows = list(csv.DictReader(io.StringIO(response.body.decode(), newline="")))
    expected = decisions(flow)
    assert {"decision_id", "time", "tenant", "guard", "session_id", "outcome", "reason", "message"} <= rows[0].keys()
    assert [row["decision_id"] for row in rows] == [item["decision_id"] for item in expected]
    assert [row["guard"] for row in rows] == [item["guard"] for item in expected]
    assert {row["reason"] for row in rows} == {"", "entity_signal_absent"}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_every_reason_is_logged_as_it_was_answered(flow, block):
    block.lead_up(flow)
    answer = block.ask_again(flow).json
    [logged] = [item for item in decisions(flow, limit=1000) if item["decision_id"] == answer["decision_id"]]
    assert subset(logged, "guard", "outcome", "reason", "session_id", "answer") == {
        "guard": block.guard, "outcome": "blocked", "reason": block.reason, "session_id": "s", "answer": answer,
    }


def test_observed_blocks_are_told_apart(serve):
    flow = serve(config='[guards.handoff]\nmode = "observe"\nmax_visits_per_bot = 1\n').client()
    for _ in range(2):
        flow.allowed(HANDOFF, session_id="s", source_bot="a", target_bot="b")
    [logged] = decisions(flow, outcome="would_block")
    assert logged["reason"] == "cycle_detected"
    assert decisions(flow, outcome="blocked") == []


# -- sessions -------------------------------------------------------------------------------------


def test_a_session_shows_its_timeline_and_what_is_left(flow):
    flow.at(0).allowed(AI_TASK_RETRY, session_id="s", task_name="classify")
    flow.at(10).allowed(AI_TASK_RETRY, session_id="s", task_name="classify")
    flow.at(20).refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="classify")
    flow.at(30).allowed(NO_MATCH, session_id="s", step_id="ask_colour")
    flow.at(40).allowed(NO_MATCH, session_id="other", step_id="ask_colour")

    response = flow.at(100).get("/v1/sessions/s")
    assert response.status == 200, response
    session = response.json
    assert session["session_id"] == "s"
    assert datetime.fromisoformat(session["first_seen"]).timestamp() * 1000 == T0_MS
    assert datetime.fromisoformat(session["last_seen"]).timestamp() * 1000 == T0_MS + 30_000
    assert session["counts"] == {"allowed": 3, "blocked": 1, "would_block": 0}
    assert len(session["timeline"]) == 4
    assert {item["session_id"] for item in session["timeline"]} <= {"s"}
    counters = {(counter["guard"], counter["subject"]): counter for counter in session["counters"]}
    retry = counters["ai_task_retry", "classify"]
    assert subset(retry, "used", "ceiling", "window_seconds", "allowed_next", "reason", "retry_after_seconds") == {
        "used": 2, "ceiling": 2, "window_seconds": 3600, "allowed_next": False, "reason": "retry_cap_reached",
        "retry_after_seconds": 3500,
    }
    colour = counters["no_match_reprompt", "ask_colour"]
    assert subset(colour, "used", "ceiling", "allowed_next") == {"used": 1, "ceiling": 3, "allowed_next": True}


def test_looking_at_a_session_counts_nothing(flow):
    flow.allowed(AGENT_ACTION, session_id="s", action_name="a")
    for _ in range(5):
        flow.get("/v1/sessions/s")
    assert flow.allowed(AGENT_ACTION, session_id="s", action_name="b")["total_actions_used"] == 2


def test_counters_of_a_session_follow_the_clock(flow):
    for second in (0, 1):
        flow.at(second).allowed(AI_TASK_RETRY, session_id="s", task_name="classify")
    [counter] = flow.at(4000).get("/v1/sessions/s").json["counters"]
    assert subset(counter, "used", "allowed_next") == {"used": 0, "allowed_next": True}


def test_an_unknown_session_is_404(flow):
    response = flow.get("/v1/sessions/nobody")
    assert (response.status, response.content_type) == (404, "application/problem+json"), response


@pytest.mark.parametrize("session", ["a/b", "ü é", "50%", "a?b#c", "..", "😀" * 20])
def test_any_session_id_can_be_looked_up(flow, session):
    flow.allowed(AGENT_ACTION, session_id=session, action_name="a")
    response = flow.get("/v1/sessions/" + quote(session, safe=""))
    assert response.status == 200 and response.json["session_id"] == session, response
    assert len(decisions(flow, session=session)) == 1


def test_a_deleted_session_is_gone(server):
    flow = server.client()
    secret = "zanzibar marmalade"
    everywhere(flow, "delete-me", secret)
    flow.allowed(AGENT_ACTION, session_id="keep-me", action_name="a")

    response = flow.delete("/v1/sessions/delete-me")
    assert response.status == 200, response
    assert flow.get("/v1/sessions/delete-me").status == 404
    assert decisions(flow, session="delete-me", kind="all") == []
    assert [item["session_id"] for item in decisions(flow, limit=1000)] == ["keep-me"]
    assert "delete-me" not in flow.get("/v1/decisions?kind=all&limit=1000").text
    assert "delete-me" not in flow.get("/v1/stats?bucket=hour").text
    assert server.stop() == 0
    assert server.files_containing(secret, "zanzibar") == []
    assert server.files_containing("keep-me")

    server.start()
    assert flow.get("/v1/sessions/delete-me").status == 404
    assert flow.get("/v1/sessions/keep-me").status == 200
    assert flow.allowed(AI_TASK_RETRY, session_id="delete-me", task_name="classify")["attempt_number"] == 1


def test_a_deleted_sessions_id_is_gone_too(server):
    flow = server.client()
    everywhere(flow, "delete-me", "text")
    assert flow.delete("/v1/sessions/delete-me").status == 200
    assert server.stop() == 0
    assert server.files_containing("delete-me") == []


def test_a_deleted_session_has_no_idempotent_answers_left(server):
    flow = server.client()
    body = {"session_id": "delete-me", "step_id": "capture_zip", "user_utterance": "zanzibar"}
    first = flow.post(NO_MATCH, body, {"Idempotency-Key": "k-1"})
    assert flow.delete("/v1/sessions/delete-me").status == 200
    again = flow.post(NO_MATCH, body, {"Idempotency-Key": "k-1"})
    assert again.json["decision_id"] != first.json["decision_id"]


def test_deleting_an_unknown_session_is_404(flow):
    assert flow.delete("/v1/sessions/nobody").status == 404


# -- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", ["minute", "hour", "day"])
def test_statistics_count_by_guard_reason_and_time(day, bucket):
    response = day.get(f"/v1/stats?bucket={bucket}")
    assert response.status == 200, response

    def total(rows, **match):
        return sum(row["count"] for row in rows if match.items() <= row.items())

    for rows in (response.json["totals"], [row for bucket in response.json["buckets"] for row in bucket["counts"]]):
        assert total(rows) == 8
        assert total(rows, guard="ai_task_retry", reason="retry_cap_reached") == 2
        assert total(rows, guard="ai_task_retry") == 4
        assert total(rows, guard="no_match_reprompt", reason="entity_signal_absent", outcome="blocked") == 2
        assert total(rows, guard="handoff", outcome="allowed") == 2
    starts = [bucket["start"] for bucket in response.json["buckets"] if bucket["counts"]]
    seconds = {"minute": 60, "hour": 3600, "day": 86_400}[bucket]
    assert response.json["bucket_seconds"] == seconds
    assert len(starts) == (8 if bucket == "minute" else 1)
    assert all(datetime.fromisoformat(start).timestamp() % seconds == 0 for start in starts)


def test_an_unknown_bucket_is_an_error(day):
    assert day.get("/v1/stats?bucket=fortnight").status in (400, 422)


# -- circuits -------------------------------------------------------------------------------------


def fail(flow, endpoint, times=1):
    for number in range(times):
        flow.recorded(CIRCUIT_RECORD, endpoint_key=endpoint, session_id=f"f{number}", attempt=1, outcome="failure")


def circuit(flow, endpoint):
    response = flow.get("/v1/circuits")
    assert response.status == 200, response
    [found] = [item for item in response.json["circuits"] if item["endpoint_key"] == endpoint]
    return found


def force(flow, endpoint, verb):
    response = flow.post(f"/v1/circuits/{quote(endpoint, safe='')}/{verb}")
    assert response.status == 200, response


def test_circuits_show_their_phase(flow):
    fail(flow.at(0), "orders", 10)
    fail(flow.at(0), "crm/v2", 3)
    assert subset(circuit(flow.at(1), "crm/v2"), "phase", "recent_failures") == {"phase": "closed", "recent_failures": 3}
    assert circuit(flow.at(1), "orders")["phase"] == "open"
    assert isinstance(circuit(flow.at(1), "orders")["tenant"], str)
    assert not circuit(flow.at(1), "orders")["forced"]
    flow.at(45).allowed(CIRCUIT_CHECK, endpoint_key="orders", session_id="prober")
    assert circuit(flow.at(46), "orders")["phase"] == "half_open"


def test_a_forced_open_circuit_refuses_until_reset(flow):
    force(flow.at(0), "crm/v2", "open")
    assert circuit(flow, "crm/v2")["phase"] == "open" and circuit(flow, "crm/v2")["forced"]
    for second in (0, 45, 3600, 86_400):
        response = flow.at(second).post(CIRCUIT_CHECK, {"endpoint_key": "crm/v2", "session_id": "s"})
        assert response.status == 429 and response.json["reason"] in ("circuit_open", "circuit_just_tripped"), response
        assert response.headers["retry-after"] is None, "time alone does not close a circuit that was forced open"
    force(flow, "crm/v2", "reset")
    flow.allowed(CIRCUIT_CHECK, endpoint_key="crm/v2", session_id="s")
    assert not circuit(flow, "crm/v2")["forced"]


def test_a_forced_closed_circuit_passes_whatever_fails(flow):
    fail(flow.at(0), "orders", 10)
    force(flow.at(1), "orders", "close")
    flow.at(1).allowed(CIRCUIT_CHECK, endpoint_key="orders", session_id="s")
    fail(flow.at(2), "orders", 20)
    flow.at(3).allowed(CIRCUIT_CHECK, endpoint_key="orders", session_id="s")
    assert subset(circuit(flow, "orders"), "phase") == {"phase": "closed"} and circuit(flow, "orders")["forced"]


def test_a_reset_forgets_the_failures(flow):
    fail(flow.at(0), "orders", 10)
    force(flow.at(1), "orders", "reset")
    answer = flow.at(1).allowed(CIRCUIT_CHECK, endpoint_key="orders", session_id="s")
    assert subset(answer, "recent_failures_in_window", "probe") == {"recent_failures_in_window": 0, "probe": False}


def test_an_unknown_order_to_a_circuit_is_an_error(flow):
    response = flow.post("/v1/circuits/orders/explode")
    assert response.status in (400, 404, 422), response


# -- live events ----------------------------------------------------------------------------------


def test_decisions_arrive_as_they_happen(flow):
    with EventStream(flow, "/v1/events") as events:
        assert events.response.status == 200
        assert events.response.headers["content-type"].startswith("text/event-stream")
        for number in range(3):
            answer = flow.allowed(AGENT_ACTION, session_id=f"s{number}", action_name="a")
            event = events.next_event()
            assert event.json["decision_id"] == answer["decision_id"]
            assert event.json["guard"] == "agent_action"
            assert event.id


def test_a_stream_resumes_after_the_last_event_seen(flow):
    with EventStream(flow, "/v1/events") as events:
        flow.allowed(AGENT_ACTION, session_id="s0", action_name="a")
        seen = events.next_event()
    missed = [flow.allowed(AGENT_ACTION, session_id=f"s{n}", action_name="a")["decision_id"] for n in range(1, 6)]
    with EventStream(flow, "/v1/events", last_event_id=seen.id) as events:
        assert [events.next_event().json["decision_id"] for _ in missed] == missed
        live = flow.allowed(AGENT_ACTION, session_id="live", action_name="a")["decision_id"]
        assert events.next_event().json["decision_id"] == live


def test_a_server_with_a_listener_stops_all_the_same(server):
    with EventStream(server.client(), "/v1/events"):
        assert server.stop() == 0


# -- documents and operations ---------------------------------------------------------------------


def test_openapi_lists_every_route(flow):
    response = flow.get("/openapi.json")
    assert (response.status, response.content_type) == (200, "application/json")
    document = response.json
    assert document["openapi"].startswith("3.1")
    paths = document["paths"]
    for route in ROUTES:
        operation = paths[route.path]["post"]
        assert operation["requestBody"]
        assert {str(route.status), "400", "413", "422"} <= operation["responses"].keys(), route.path
    for path, method in {
        "/v1/decisions": "get", "/v1/sessions/{session_id}": "get", "/v1/stats": "get", "/v1/circuits": "get",
        "/v1/events": "get", "/healthz": "get", "/readyz": "get", "/metrics": "get",
    }.items():
        pattern = re.sub(r"\{[^}]*\}", "{}", path)
        assert any(re.sub(r"\{[^}]*\}", "{}", known) == pattern and method in paths[known] for known in paths), path
    circuits = [path for path in paths if path.startswith("/v1/circuits/") and "post" in paths[path]]
    assert circuits, "forcing a circuit is not documented"
    assert any("delete" in item for path, item in paths.items() if path.startswith("/v1/sessions/"))


def test_the_page_of_documents_loads_nothing_from_elsewhere(flow):
    response = flow.get("/docs")
    assert (response.status, response.content_type) == (200, "text/html"), response
    loaded = re.findall(r"""(?:src|href|url|import|fetch)\s*[=(]?\s*["']?((?:https?:)?//[^"'\s)>]+)""", response.text)
    links = re.findall(r"""<a\s[^>]*href=["'](https?://[^"']+)""", response.text)
    assert set(loaded) <= set(links), f"loaded from elsewhere: {set(loaded) - set(links)}"
    assert "/guard/handoff" in response.text or "openapi.json" in response.text


SAMPLE = re.compile(
    r'^[a-zA-Z_:][a-zA-Z0-9_:]*'
    r'(\{([a-zA-Z_][a-zA-Z0-9_]*="(\\["\\n]|[^"\\\n])*"(,|(?=\})))*\})?'
    r' (-?[0-9.]+([eE][-+]?[0-9]+)?|NaN|[-+]?Inf)( -?[0-9.]+)?( # .*)?$')


def test_metrics_are_well_formed_and_bounded(flow):
    for number in range(50):
        flow.allowed(AGENT_ACTION, session_id=f"session-marker-{number}", action_name=f"action-marker-{number}")
    flow.refused(NO_MATCH, "entity_signal_absent", session_id="s", step_id="capture_zip")
    response = flow.get("/metrics")
    assert response.status == 200
    assert response.content_type in ("text/plain", "application/openmetrics-text")
    strict = response.content_type == "application/openmetrics-text"
    if strict:
        assert response.text.endswith("# EOF\n")
    typed = set()
    for line in response.text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in typed, f"two TYPE lines for {name}"
            typed.add(name)
        elif line and not line.startswith("#"):
            assert SAMPLE.match(line), line
            name = re.match(r"\w+", line)[0]
            family = re.sub(r"_(total|sum|count|bucket|created|info)$", "", name)
            assert name in typed or family in typed, f"no TYPE before {line}"
            assert strict or name in typed or not name.endswith("_total"), f"not the text format's name: {line}"
    assert "marker" not in response.text, "ids of callers must not become labels"
    decisions_counted = [line for line in response.text.splitlines()
                         if 'guard="no_match_reprompt"' in line and 'entity_signal_absent' in line]
    assert decisions_counted


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health(flow, path):
    assert flow.get(path).status == 200


# -- what is never stored -------------------------------------------------------------------------

PRIVATE = {
    "e-mail": "jane.doe@example.com",
    "phone": "+1 (555) 867-5309",
    "phone with dashes": "555-867-5309",
    "card": "4111 1111 1111 1111",
    "card with dashes": "4111-1111-1111-1111",
    "digits": "9876543210123",
}


def everywhere(flow, session, text):
    """Sends a text through every field that takes one."""
    idempotent = {"Idempotency-Key": f"key for {session} {len(text)}"}
    flow.post(AI_TASK_RETRY, {"session_id": session, "task_name": "classify", "user_message": text,
                              "validation_error": f"cannot read {text}"})
    flow.post(KB_BOTPRESS, {"session_id": session, "topic_hash": "t", "query_text": text})
    flow.post(KB_CHECK, {"session_id": session, "query": text})
    flow.post(KB_RECORD, {"session_id": session, "query": text, "confidence_score": 0.9, "retrieved_chunks": 1})
    flow.post(KB_CHECK, {"session_id": session, "query": f"please {text}"})
    flow.post(AGENT_ACTION, {"session_id": session, "action_name": "a", "action_params": {"to": text}})
    flow.post(AGENT_RESULT, {"session_id": session, "action_name": "a", "result_summary": f"sent to {text}"})
    flow.post(NO_MATCH, {"session_id": session, "step_id": "ask", "user_utterance": f"it is {text}, I said"})
    flow.post(NO_MATCH, {"session_id": session, "step_id": "capture_date", "user_utterance": text}, idempotent)
    flow.post(CAPTURE, {"session_id": session, "capture_step": "ask", "entity_type": "colour", "user_utterance": text})
    flow.post(CAPTURE, {"session_id": session, "capture_step": "ask", "entity_type": "order_id",
                        "user_utterance": f"my order is for {text}"})
    flow.post(HANDOFF, {"session_id": session, "source_bot": "a", "target_bot": "b", "note": text})


@pytest.mark.parametrize("name", PRIVATE)
def test_private_values_never_reach_the_disk(server, name):
    flow = server.client()
    private = PRIVATE[name]
    everywhere(flow, "s", private)
    assert len(decisions(flow, kind="all", limit=1000)) >= 11
    assert private not in flow.get("/v1/decisions?kind=all&limit=1000").text
    assert private not in flow.get("/v1/sessions/s").text
    assert server.files_containing(private) == []
    assert server.stop() == 0
    assert server.files_containing(private) == []
    assert private not in server.log()


def test_other_words_are_kept_in_redacted_texts(flow):
    flow.allowed(NO_MATCH, session_id="s", step_id="ask", user_utterance="write to jane.doe@example.com by noon")
    stored = decisions(flow)[0]["input"]["user_utterance"]
    assert stored.startswith("write to ") and stored.endswith(" by noon") and "jane" not in stored


def test_a_value_on_the_edge_of_the_cut_leaks_no_part(server):
    flow = server.client()
    flow.allowed(CAPTURE, session_id="s", capture_step="ask", entity_type="colour",
                 user_utterance="x" * 190 + " jane.doe@example.com")
    flow.allowed(CAPTURE, session_id="s", capture_step="ask", entity_type="colour",
                 user_utterance="x" * 189 + " 4111 1111 1111 1111")
    assert server.stop() == 0
    assert server.files_containing("jane.doe", "4111 1111") == []


@pytest.mark.parametrize("path, body, field, length", [
    (NO_MATCH, {"step_id": "ask"}, "user_utterance", 500),
    (CAPTURE, {"capture_step": "ask", "entity_type": "colour"}, "user_utterance", 200),
    (KB_BOTPRESS, {"topic_hash": "t"}, "query_text", 500),
    (KB_RECORD, {"confidence_score": 0.9, "retrieved_chunks": 1}, "query", 300),
])
def test_texts_are_cut_to_the_seeds_lengths(server, path, body, field, length):
    flow = server.client()
    response = flow.post(path, {"session_id": "s", **body, field: "é" * 5000})
    assert response.status == 200, response
    [item] = decisions(flow, kind="all")
    assert "é" * (length - 1) in item["input"][field] and len(item["input"][field]) <= length
    assert server.stop() == 0
    assert server.files_containing("é" * (length + 1)) == []


def test_store_text_none(serve):
    server = serve(config='[log]\nstore_text = "none"\n')
    flow = server.client()
    everywhere(flow, "s", "zanzibar")
    assert len(decisions(flow, kind="all", limit=1000)) >= 11
    assert "zanzibar" not in flow.get("/v1/decisions?kind=all&limit=1000").text
    assert server.stop() == 0
    assert server.files_containing("zanzibar") == []


def test_store_text_full(serve):
    flow = serve(config='[log]\nstore_text = "full"\n').client()
    flow.allowed(NO_MATCH, session_id="s", step_id="ask", user_utterance="write to jane.doe@example.com")
    assert decisions(flow)[0]["input"]["user_utterance"] == "write to jane.doe@example.com"


def test_the_servers_own_log_has_no_texts(server):
    everywhere(server.client(), "s", "zanzibar")
    assert server.stop() == 0
    assert "zanzibar" not in server.log()


# -- sessions -------------------------------------------------------------------------------------


def listed(flow, **query):
    """The list of sessions, once everything that is logged was looked at."""
    deadline = time.monotonic() + 20
    while True:
        response = flow.get("/v1/sessions?" + urlencode(query))
        assert response.status == 200, response
        if response.json["behind_rows"] == 0:
            return response.json
        assert time.monotonic() < deadline, "the log is not caught up with"
        time.sleep(0.02)


def names(page):
    return [session["session_id"] for session in page["sessions"]]


def test_sessions_are_listed_the_latest_first_and_sorted_otherwise(day):
    page = listed(day)
    assert (names(page), page["found"], page["next_cursor"]) == (["s3", "s2", "s1"], 3, None)
    assert subset(page["sessions"][2], "tenant", "decisions", "allowed", "blocked", "would_block", "usd", "reason", "first_seen", "last_seen") == {
        "tenant": "default", "decisions": 4, "allowed": 2, "blocked": 2, "would_block": 0, "usd": 0.0, "reason": "retry_cap_reached",
        "first_seen": rfc3339(0), "last_seen": rfc3339(180),
    }
    day.at(500).allowed("/guard/budget/record", session_id="dear", usd=0.25)
    assert names(listed(day, sort="usd"))[0] == "dear" and listed(day, sort="usd")["sessions"][0]["usd"] == 0.25
    assert names(listed(day, sort="blocked"))[:2] == ["s3", "s1"]
    assert names(listed(day, sort="decisions"))[0] == "s1"
    assert names(listed(day, prefix="s", until=rfc3339(200))) == ["s1"]
    assert names(listed(day, since=rfc3339(400))) == ["dear", "s3"]
    assert listed(day, tenant="acme")["sessions"] == []
    assert day.get("/v1/sessions?sort=colour").status == day.get("/v1/sessions?limit=0").status == 422


def test_sessions_come_in_pages_survive_a_restart_and_go_when_erased(serve):
    server = serve()
    flow = server.client().at(0)
    for number in range(7):
        flow.at(number).allowed(HANDOFF, session_id=f"conv-{number}", source_bot="a", target_bot="b")
    pages, cursor = [], None
    while True:
        page = listed(flow, limit=3, **({"cursor": cursor} if cursor else {}))
        pages.append(names(page))
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert pages == [["conv-6", "conv-5", "conv-4"], ["conv-3", "conv-2", "conv-1"], ["conv-0"]]
    server.stop()
    server.start()
    flow = server.client().at(100)
    assert listed(flow)["found"] == 7
    flow.allowed(HANDOFF, session_id="conv-0", source_bot="a", target_bot="b")
    assert listed(flow)["sessions"][0]["decisions"] == 2, "what is in the file and what came since are one"
    assert flow.delete("/v1/sessions/conv-0").status == 200
    assert "conv-0" not in names(listed(flow))
    assert listed(flow, prefix="conv-")["found"] == 6
