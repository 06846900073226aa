"""Nodes act as one: what one of them decides, counts and erases is so for all."""

from __future__ import annotations

import base64
import json
import signal
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from catalogue import (
    AI_TASK_RETRY, BUDGET_CHECK, BUDGET_COMMIT, BUDGET_RECORD, BUDGET_RELEASE, BUDGET_RESERVE, CIRCUIT_CHECK, CIRCUIT_RECORD, HANDOFF,
)
from load import all_decisions
from runguard_http import Client, EventStream
from servers import until


def clients(cluster) -> list[Client]:
    return [node.client() for node in cluster.nodes]


def all_at_once(tasks: list) -> list:
    """Runs them in as many threads, all released together."""
    barrier = threading.Barrier(len(tasks))

    def run(task):
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(run, tasks))


# -- counts ------------------------------------------------------------------------------------------


def test_a_cap_is_one_for_all_nodes(cluster):
    cluster.start(3)
    for session in range(15):
        ask = {"session_id": f"s{session}", "task_name": "classify"}
        tasks = [lambda node=node: node.client().post(AI_TASK_RETRY, ask) for node in cluster.nodes for _ in range(3)]
        answers = all_at_once(tasks)
        assert Counter(answer.status for answer in answers) == {200: 2, 429: 7}
        assert sorted(answer.json["attempt_number"] for answer in answers if answer.status == 200) == [1, 2]


def test_a_repeated_request_gets_its_first_answer_from_any_node(cluster):
    redis = cluster.start_redis()
    cluster.start(3)
    ask = {"session_id": "s", "task_name": "classify"}
    headers = {"Idempotency-Key": "k-1"}
    answers = all_at_once([lambda node=node: node.client().post(AI_TASK_RETRY, ask, headers) for node in cluster.nodes for _ in range(4)])
    assert {answer.status for answer in answers} <= {200, 409}, Counter(answer.status for answer in answers)
    bodies = {answer.body for answer in answers if answer.status == 200}
    assert len(bodies) == 1, "one decision, however many asked"
    for client in clients(cluster):
        again = client.post(AI_TASK_RETRY, ask, headers)
        assert again.status == 200 and again.body in bodies and again.headers["idempotency-replayed"] == "true"
        other = client.post(AI_TASK_RETRY, {**ask, "task_name": "other"}, headers)
        assert other.status == 422, other
    assert clients(cluster)[1].allowed(AI_TASK_RETRY, **ask)["attempt_number"] == 2, "it counted once"
    # A guard whose state lives elsewhere: the answer lives with it.
    headers = {"Idempotency-Key": "k-2"}
    check = {"endpoint_key": "crm", "session_id": "s"}
    first = clients(cluster)[0].post(CIRCUIT_CHECK, check, headers)
    assert [client.post(CIRCUIT_CHECK, check, headers).body for client in clients(cluster)] == [first.body] * 3
    # From memory too.
    redis.kill()
    assert cluster.nodes[0].client().post(CIRCUIT_CHECK, check, headers).body == first.body


def test_budgets_are_shared_and_never_passed(cluster):
    cluster.start(3)
    ask = clients(cluster)
    ask[0].allowed(BUDGET_RECORD, session_id="team", usd=0, max_usd=10)
    requests = [(f"child-{number % 6}", random.choice(cluster.nodes)) for number in range(60)]

    def reserve(child, node):
        return child, node.client().post(BUDGET_RESERVE, {"session_id": child, "parent": "team", "usd": 1, "max_usd": 3})

    answers = all_at_once([lambda child=child, node=node: reserve(child, node) for child, node in requests])
    assert {answer.status for _, answer in answers} == {200, 429}
    allowed = [(child, answer.json) for child, answer in answers if answer.status == 200]
    assert len(allowed) == 10, "the parent's limit, and all of it"
    assert max(Counter(child for child, _ in allowed).values()) <= 3
    refused = {answer.json["reason"] for _, answer in answers if answer.status == 429}
    assert refused == {"budget_exceeded"}
    # Settled at another node than the one that set it aside.
    child, first = allowed[0]
    done = ask[2].allowed(BUDGET_COMMIT, session_id=child, parent="team", reservation_id=first["reservation_id"], usd=0.5)
    assert done["known"] is True
    child, second = allowed[1]
    freed = ask[1].allowed(BUDGET_RELEASE, session_id=child, parent="team", reservation_id=second["reservation_id"])
    assert freed["known"] is True
    seen = [client.allowed(BUDGET_CHECK, session_id="team", usd=0) for client in ask]
    assert {(body["spent_usd"], body["reserved_usd"]) for body in seen} == {(0.5, 8)}, seen


def test_scopes_are_shared_and_granted_together(cluster):
    cluster.start(3)

    def reserve(number, node):
        scopes = [{"per": "pool", "name": f"p{number % 2}", "period": "day", "max_usd": 6}, {"per": "tenant", "period": "month", "max_usd": 10}]
        body = {"session_id": f"run-{number % 6}", "budget": f"b{number % 3}", "usd": 1, "scopes": scopes}
        return body, node.client().post(BUDGET_RESERVE, body)

    nodes = [random.choice(cluster.nodes) for _ in range(60)]
    answers = all_at_once([lambda number=number, node=node: reserve(number, node) for number, node in enumerate(nodes)])
    allowed = [(body, answer.json) for body, answer in answers if answer.status == 200]
    assert len(allowed) == 10, "the tenant's limit over all budgets, and all of it"
    pools = Counter(body["scopes"][0]["name"] for body, _ in allowed)
    assert max(pools.values()) <= 6
    refused = {answer.json["scope"] for _, answer in answers if answer.status == 429}
    assert refused <= {"pool/day", "tenant/month"} and "tenant/month" in refused
    # of the pool that gave less: the other one may be at its own limit
    body, first = min(allowed, key=lambda one: pools[one[0]["scopes"][0]["name"]])
    done = cluster.nodes[2].client().allowed(BUDGET_COMMIT, **{**body, "usd": 0.5}, reservation_id=first["reservation_id"])
    assert done["known"] is True
    left = cluster.nodes[1].client().post(BUDGET_CHECK, {**body, "usd": 0.51}).json
    assert (left["scope"], left["spent_usd"], left["reserved_usd"]) == ("tenant/month", 0.5, 9)


def test_a_circuit_is_one_for_all_nodes(cluster):
    config = '[guards.api_circuit]\nrecovery = "2s"\n'
    cluster.start(3, config=config)
    ask = clients(cluster)
    for number in range(9):
        ask[number % 3].recorded(CIRCUIT_RECORD, endpoint_key="crm", session_id=f"s{number}", attempt=1, outcome="failure")
    ask[2].allowed(CIRCUIT_CHECK, endpoint_key="crm", session_id="last")
    ask[0].recorded(CIRCUIT_RECORD, endpoint_key="crm", session_id="s10", attempt=1, outcome="failure")
    answers = all_at_once([lambda node=node: node.client().post(CIRCUIT_CHECK, {"endpoint_key": "crm", "session_id": "t"})
                           for node in cluster.nodes for _ in range(3)])
    assert Counter(answer.json["reason"] for answer in answers) == {"circuit_just_tripped": 1, "circuit_open": 8}
    for client in ask:
        (circuit,) = client.get("/v1/circuits").json["circuits"]
        assert circuit["endpoint_key"] == "crm" and circuit["phase"] == "open", circuit
        assert "runguard_circuit" in client.get("/metrics").text
    time.sleep(2.1)
    answers = all_at_once([lambda node=node: node.client().post(CIRCUIT_CHECK, {"endpoint_key": "crm", "session_id": "t"})
                           for node in cluster.nodes for _ in range(3)])
    probes = [answer.json for answer in answers if answer.status == 200]
    assert len(probes) == 1 and probes[0]["probe"] is True, "one probe, whoever asks"
    ask[1].recorded(CIRCUIT_RECORD, endpoint_key="crm", session_id="t", attempt=1, outcome="success", permit_id=probes[0]["permit_id"])
    for client in ask:
        client.allowed(CIRCUIT_CHECK, endpoint_key="crm", session_id="u")
    assert ask[1].post("/v1/circuits/crm/open").status == 200
    for client in ask:
        client.refused(CIRCUIT_CHECK, "circuit_open", endpoint_key="crm", session_id="u")


# -- the log -----------------------------------------------------------------------------------------


def test_every_node_lists_all_sessions_and_knows_which_advice_is_put_aside(cluster):
    cluster.start(2)
    ask = clients(cluster)
    for number in range(6):
        ask[number % 2].allowed(AI_TASK_RETRY, session_id=f"conv-{number}", task_name="classify")

    def all_listed():
        return [client.get("/v1/sessions?prefix=conv-").json["found"] for client in ask] == [6, 6]

    until(all_listed, "all sessions in the lists of both nodes")
    key = "0123456789abcdef"
    assert ask[0].post(f"/v1/insights/{key}/dismiss").status == 200
    assert ask[1].post(f"/v1/insights/{key}/restore").status == 200, "the other node knows of it"
    assert ask[0].post(f"/v1/insights/{key}/restore").status == 404
    assert ask[1].delete("/v1/sessions/conv-0").status == 200
    until(lambda: [client.get("/v1/sessions?prefix=conv-").json["found"] for client in ask] == [5, 5], "the erased session to leave both lists")


def test_an_erased_session_is_gone_for_all_nodes(cluster):
    cluster.start(3)
    ask = clients(cluster)
    for number, client in enumerate(ask[:2]):
        client.post(AI_TASK_RETRY, {"session_id": "private", "task_name": "classify", "user_message": "Anna"},
                    {"Idempotency-Key": f"key-{number}"})
    for client in ask:
        client.refused(AI_TASK_RETRY, "retry_cap_reached", session_id="private", task_name="classify")
    erased = ask[2].delete("/v1/sessions/private")
    assert erased.status == 200 and erased.json == {"erased": True, "log_entries": 5}, erased
    for number, client in enumerate(ask):
        assert client.get("/v1/sessions/private").status == 404
        assert all_decisions(client, "&session=private") == []
        # The answers kept for repeated requests went too.
        again = client.post(AI_TASK_RETRY, {"session_id": f"other-{number}", "task_name": "x"}, {"Idempotency-Key": f"key-{number}"})
        assert again.status == 200 and "idempotency-replayed" not in again.headers, again
    assert cluster.database.sql("SELECT count(*) FROM runguard_log WHERE session = 'private'") == ["0"]
    assert cluster.database.sql("SELECT outcome FROM runguard_log WHERE kind = 'admin'") == ["session_erased"]
    assert [client.allowed(AI_TASK_RETRY, session_id="private", task_name="classify")["attempt_number"] for client in ask[:2]] == [1, 2]


def test_an_erased_session_stays_gone_when_redis_is_emptied(cluster):
    redis = cluster.start_redis()
    cluster.start(2)
    ask = clients(cluster)
    for session in ("private", "kept"):
        for client in ask:
            client.allowed(AI_TASK_RETRY, session_id=session, task_name="classify")
    assert ask[0].delete("/v1/sessions/private").status == 200
    redis.cli("FLUSHALL")
    handoff = {"session_id": "x", "source_bot": "a", "target_bot": "b"}
    until(lambda: not any("degraded" in client.post(HANDOFF, handoff).json for client in ask), "the states to be built")
    ask[1].allowed(AI_TASK_RETRY, session_id="private", task_name="classify")
    ask[1].refused(AI_TASK_RETRY, "retry_cap_reached", session_id="kept", task_name="classify")
    until(lambda: cluster.database.sql("SELECT count(*) FROM runguard_log WHERE session = 'kept'") == ["3"], "the log")
    until(lambda: cluster.database.sql("SELECT count(*) FROM runguard_log WHERE session = 'private'") == ["1"], "the row of its new life")


def files_with(node, words: str) -> list[str]:
    return [path.name for path in node.data.rglob("*") if path.is_file() and words.encode() in path.read_bytes()]


@pytest.mark.parametrize("log", ["shared", None])
def test_erased_is_said_when_it_is_so_in_the_files_of_every_node(cluster, log):
    cluster.start(3, log=log)
    ask = clients(cluster)

    def say(session: str) -> None:
        for client in ask:
            client.post(AI_TASK_RETRY, {"session_id": session, "task_name": "classify"})
        until(lambda: all(files_with(node, session) for node in cluster.nodes), "every node to have it in a file")

    say("private-one")
    answer = ask[0].delete("/v1/sessions/private-one")
    assert answer.status == 200 and answer.json["erased"] is True, answer
    assert [files_with(node, "private-one") for node in cluster.nodes] == [[], [], []]

    say("private-two")
    cluster.nodes[2].process.send_signal(signal.SIGSTOP)
    waiting = ask[0].delete("/v1/sessions/private-two")
    assert waiting.status == 202 and waiting.json["erased"] is False, waiting
    (name,) = waiting.json["pending"]
    assert name.startswith("node "), waiting
    assert name in waiting.json["message"]
    # It is not forgotten when the one who was asked ends.
    cluster.nodes[0].kill()
    cluster.nodes[0].start()
    waiting = ask[0].delete("/v1/sessions/private-two")
    assert waiting.status == 202 and waiting.json["pending"] == [name], waiting
    cluster.nodes[2].process.send_signal(signal.SIGCONT)
    assert name in cluster.nodes[2].log(), "the name can be found"
    until(lambda: ask[0].delete("/v1/sessions/private-two").status == 200, "the node that was away", 20)
    assert [files_with(node, "private-two") for node in cluster.nodes] == [[], [], []]
    until(lambda: ask[0].delete("/v1/sessions/private-two").status == 404, "nothing to be left to say of it", 5)
    started = time.monotonic()
    assert ask[0].delete("/v1/sessions/nobody").status == 404
    assert time.monotonic() - started < 2, "no node is told of a session that nobody knows"
    assert cluster.redis.cli("HLEN", "runguard:{meta}:erasing").strip() == "0"


def test_every_node_shows_the_same(cluster):
    cluster.start(3)
    ask = clients(cluster)
    streams = [EventStream(client, "/v1/events") for client in ask]
    made = []
    for number in range(30):
        body = ask[number % 3].post(AI_TASK_RETRY, {"session_id": f"s{number % 5}", "task_name": "classify"}).json
        made.append(body["decision_id"])
        time.sleep(0.002)
    for stream in streams:
        assert [stream.next_event().json["decision_id"] for _ in made] == made, "in the order in which they were made"
    sessions, stats, overviews, insights = [], [], [], []
    for client in ask:
        assert [row["decision_id"] for row in reversed(all_decisions(client))] == made
        assert client.get(f"/v1/decisions/{made[7]}").json["decision_id"] == made[7]
        shown = client.get("/v1/sessions/s1")
        assert shown.status == 200, shown
        # What goes by the time of the question: the nodes are asked one after the other.
        session = {name: value for name, value in shown.json.items() if name != "now"}
        assert all(counter.pop("retry_after_seconds") for counter in session["counters"])
        sessions.append(session)
        stats.append(client.get("/v1/stats").json)
        metrics = client.get("/metrics")
        assert metrics.status == 200 and 'runguard_decisions_total{guard="ai_task_retry"' in metrics.text
        for path in ("/v1/settings", "/v1/alerts", "/openapi.json", "/", "/healthz", "/readyz"):
            assert client.get(path).status == 200, path
    assert len(sessions[0]["timeline"]) == 6, sessions[0]
    assert sessions[0] == sessions[1] == sessions[2]
    totals = [json.dumps(found).count("ai_task_retry") for found in stats]
    assert totals[0] == totals[1] == totals[2] > 0, stats

    def overview(client):
        return client.get("/v1/overview").json["totals"]

    # The digest follows the log by a moment.
    until(lambda: [overview(client)["decisions"] for client in ask] == [30] * 3, "the overview")
    assert overview(ask[0]) == overview(ask[1]) == overview(ask[2])
    insights = [client.get("/v1/insights") for client in ask]
    assert [answer.status for answer in insights] == [200] * 3


def test_a_node_that_joins_later_knows_everything(cluster):
    cluster.start(1)
    (first,) = clients(cluster)
    for number in range(20):
        first.post(AI_TASK_RETRY, {"session_id": f"s{number % 5}", "task_name": "classify"})
    late = cluster.node().client()
    late.refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s1", task_name="classify")
    assert len(all_decisions(late)) == 21
    until(lambda: late.get("/v1/overview").json["totals"]["decisions"] == 21, "its digest")


# -- Redis without Postgres ----------------------------------------------------------------------------


def test_without_postgres_every_node_has_a_copy_of_the_log(cluster):
    redis = cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")
    cluster.start(3, log=None)
    with cluster.load() as load:
        load.wait_for(200)
        cluster.nodes[1].kill()
        load.wait_for(100)
        cluster.nodes[1].start()
        load.wait_for(50)
        redis.kill()
        until(lambda: sum(answer.degraded for answer in load.answers) > 50, "answers from memory")
        redis.start()
        load.wait_until_sound()
        load.wait_for(50)
    load.check(None, may_break=True)
    for copy in cluster.logs:
        load.check_log(copy)
    assert len({frozenset(copy.ids()) for copy in cluster.logs}) == 1, "the same copy everywhere"


def test_without_postgres_an_emptied_redis_is_filled_from_a_copy(cluster):
    redis = cluster.start_redis()
    cluster.start(2, log=None)
    with cluster.load() as load:
        load.wait_for(200)
        redis.cli("FLUSHALL")
        load.wait_until_sound(20)
        load.wait_for(200)
    load.check(None)
    for copy in cluster.logs:
        load.check_log(copy)


def test_without_postgres_an_erased_session_is_gone_from_every_copy(cluster):
    cluster.start(3, log=None)
    ask = clients(cluster)
    for client in ask:
        client.post(AI_TASK_RETRY, {"session_id": "private", "task_name": "classify"})
    for client in ask:
        until(lambda: len(all_decisions(client)) == 3, "the copy")
    assert ask[0].delete("/v1/sessions/private").status == 200
    for client in ask:
        until(lambda: client.get("/v1/sessions/private").status == 404, "the session to be gone", 5)
        assert all_decisions(client, "&session=private") == []
    ask[1].allowed(AI_TASK_RETRY, session_id="private", task_name="classify")


# -- alerts ----------------------------------------------------------------------------------------------


@pytest.fixture
def hook():
    """A webhook's receiver: what it was told."""
    got: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            got.append({**message, "webhook-id": self.headers["webhook-id"]})
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield got, f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()


def with_hook(url: str) -> dict:
    """Nodes that tell a hook of alerts."""
    config = (f'[alerts]\nbackoff = "50ms"\n[[alerts.target]]\nname = "hook"\nkind = "webhook"\nurl = "{url}"\n'
              'secret_env = "HOOK_SECRET"\nallow_private = true\n')
    secret = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
    return {"config": config, "environment": {"HOOK_SECRET": secret}}


def trip(cluster, endpoint: str) -> None:
    for number in range(10):
        alive = [node for node in cluster.nodes if node.process.poll() is None]
        alive[number % len(alive)].client().recorded(
            CIRCUIT_RECORD, endpoint_key=endpoint, session_id=f"s{number}", attempt=1, outcome="failure")


def test_an_alert_is_told_once_whoever_leads(cluster, hook):
    got, url = hook
    cluster.start(3, **with_hook(url))

    def told(endpoint: str) -> int:
        """Different messages: one may come twice when its teller dies, under the same id."""
        return len({message["webhook-id"] for message in got if endpoint in json.dumps(message)})

    trip(cluster, "crm")
    until(lambda: told("crm"), "the alert")
    time.sleep(1.5)
    assert len(got) == 1, got
    leader = leading(cluster)
    leader.kill()
    trip(cluster, "erp")
    until(lambda: told("erp"), "the alert of the next leader", 20)
    time.sleep(1.5)
    assert told("erp") == 1 and told("crm") == 1, got


@pytest.mark.parametrize("log", ["shared", None], ids=["one log", "a log each"])
def test_a_rolling_restart_tells_no_alert_again(cluster, hook, log):
    """Whoever goes on knows what was told, how far the log was read, and what is to be told when it is over."""
    got, url = hook
    nodes = cluster.start(4, log=log, **with_hook(url))
    endpoints = [f"api{number}" for number in range(10)]

    def told() -> Counter:
        return Counter((message["data"]["subject"], message["data"]["state"]) for message in got)

    for endpoint in endpoints[:5]:
        trip(cluster, endpoint)
    until(lambda: len(told()) == 5, "the first alerts", 20)
    for number, node in enumerate(nodes):
        node.stop()
        trip(cluster, endpoints[5 + number])
        node.start()
        trip(cluster, endpoints[number])
    trip(cluster, endpoints[9])
    until(lambda: len(told()) >= 10, "the alerts of those that tripped meanwhile", 30)
    # Longer than another node follows behind.
    time.sleep(20)
    assert told() == {(endpoint, "firing"): 1 for endpoint in endpoints}, told()
    nodes[0].client().post("/v1/circuits/api0/reset", {})
    nodes[0].client().recorded(CIRCUIT_RECORD, endpoint_key="api0", session_id="s", attempt=1, outcome="success")
    until(lambda: told()[("api0", "resolved")] == 1, "the end of a trouble that another node has told of", 20)


def leading(cluster):
    """The node that sent the alert says so."""
    sent = [node for node in cluster.nodes if any(
        line.startswith("runguard_alerts_total") and line.endswith(" 1") for line in node.client().get("/metrics").text.splitlines())]
    assert len(sent) == 1, [node.folder.name for node in sent]
    return sent[0]


def test_a_reservation_is_settled_once_however_often_it_is_committed(cluster):
    """An answer that was lost is asked for again, on any node, without a key of its own."""
    nodes = cluster.start(3)
    asked = {"session_id": "s", "usd": 0.1, "max_usd": 1}
    reservation = nodes[0].client().post(BUDGET_RESERVE, asked).json["reservation_id"]
    commit = {"session_id": "s", "usd": 0.11, "reservation_id": reservation}

    def again(number: int):
        client = nodes[number % 3].client()
        return until(lambda: (told := client.post(BUDGET_COMMIT, commit)).status != 409 and told, "an answer")

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(again, range(48)))
    assert {answer.status for answer in answers} == {200}, answers
    assert len({answer.json["decision_id"] for answer in answers}) == 1, "all of them are told what the first was"
    # Also when it says another price.
    assert nodes[1].client().post(BUDGET_COMMIT, {**commit, "usd": 0.5}).json["decision_id"] == answers[0].json["decision_id"]
    left = nodes[2].client().post(BUDGET_CHECK, {"session_id": "s", "usd": 0})
    assert (left.json["spent_usd"], left.json["reserved_usd"]) == (0.11, 0), left.json


def test_commits_with_different_keys_settle_a_reservation_once(cluster):
    nodes = cluster.start(3)
    reservation = nodes[0].client().post(BUDGET_RESERVE, {"session_id": "s", "usd": 0.1, "max_usd": 1}).json["reservation_id"]
    commit = {"session_id": "s", "usd": 0.11, "reservation_id": reservation}

    def again(number: int):
        client, headers = nodes[number % 3].client(), {"Idempotency-Key": f"try-{number}"}
        return until(lambda: (told := client.post(BUDGET_COMMIT, commit, headers=headers)).status != 409 and told, "an answer")

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(again, range(48)))
    answers.append(nodes[1].client().post(BUDGET_COMMIT, commit))
    assert {answer.status for answer in answers} == {200}, answers
    assert len({answer.json["decision_id"] for answer in answers}) == 1, "all of them are told what the first was"
    left = nodes[2].client().post(BUDGET_CHECK, {"session_id": "s", "usd": 0})
    assert (left.json["spent_usd"], left.json["reserved_usd"]) == (0.11, 0), left.json
