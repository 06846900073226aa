"""Postgres away: decisions go on as if nothing were, their rows wait in Redis, and arrive once."""

from __future__ import annotations

import signal
import time

import pytest

from catalogue import AI_TASK_RETRY
from load import ask_many, measured
from servers import until

# Entries that a node keeps in memory, and more by what goes to disk at a time.
IN_MEMORY, PAGE = 100_000, 2_000


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_postgres_is_gone_for_a_while(cluster, seconds):
    cluster.start(3)
    with cluster.load() as load:
        load.wait_for(200)
        cluster.postgres.stop()
        gone = time.monotonic()
        time.sleep(seconds)
        back = time.monotonic()
        cluster.postgres.start()
        load.wait_for(200)
    during = load.between(gone, back)
    assert len(during) > 20 * seconds
    assert not any(answer.degraded for answer in load.answers), "the state is not away"
    slowest = max(answer.answered - answer.asked for answer in during)
    assert slowest < 2, f"an answer waited {slowest:.1f} s for the log"
    load.check(cluster.database)


def test_redis_is_emptied_while_postgres_is_away(cluster):
    """The rows that were only in the streams come from the nodes again, and count again."""
    redis = cluster.start_redis()
    cluster.start(3)
    with cluster.load() as load:
        load.wait_for(300)
        cluster.postgres.stop()
        load.wait_for(300)
        redis.cli("FLUSHALL")
        time.sleep(2)
        cluster.postgres.start()
        load.wait_until_sound(20)
        load.wait_for(300)
    load.check(cluster.database)


@pytest.mark.slow
def test_both_are_gone_and_come_back(cluster):
    redis = cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")
    cluster.start(2)
    with cluster.load() as load:
        load.wait_for(200)
        cluster.postgres.stop()
        redis.kill()
        time.sleep(2)
        redis.start()
        # Whether it came back as it was, the log alone can tell.
        load.wait_for(100)
        assert load.answers[-1].degraded
        cluster.postgres.start()
        load.wait_until_sound(20)
        load.wait_for(100)
    load.check(cluster.database)


def test_how_far_the_log_is_behind_is_seen(cluster):
    cluster.start_redis("--appendonly", "yes")
    nodes = cluster.start(2)
    figures = lambda name: [measured(node, f"runguard_{name}") for node in nodes]
    until(lambda: sorted(figures("log_imports")) == [0, 1], "one of them to move the log", 20)
    importer = nodes[figures("log_imports").index(1)]
    assert figures("log_database_up") == [1, 1] and figures("degraded_answers_total") == [0, 0]
    ask = lambda: ask_many(importer, AI_TASK_RETRY, [{"session_id": "s", "task_name": "t"}])
    until(lambda: ask() and cluster.database.ids(), "the log to have read that stream")
    cluster.postgres.stop()
    try:
        ask()
        until(lambda: measured(importer, "runguard_log_database_up") == 0, "the log to be seen away", 20)
        until(lambda: ask() and measured(importer, "runguard_log_lag_seconds") >= 0.5, "the lag to be seen", 60)
        until(lambda: measured(importer, "runguard_stream_entries") >= 2, "what waits to be seen", 20)
        assert measured(importer, "runguard_unconfirmed_entries") >= 2
        told = importer.client().get("/readyz").json["cluster"]
        assert told["imports"] and told["log_lag_seconds"] >= 0.5 and told["stream_entries"] >= 2 and told["warnings"], told
    finally:
        cluster.postgres.start()
    until(lambda: figures("log_lag_seconds") == [0, 0] and figures("log_database_up") == [1, 1], "the log to have caught up", 20)
    until(lambda: figures("stream_entries") == [0, 0] and figures("unconfirmed_entries") == [0, 0], "nothing to wait", 20)
    cluster.redis.kill()
    until(lambda: ask()[0].get("degraded"), "a marked answer")
    assert measured(importer, "runguard_degraded_answers_total") >= 1
    cluster.redis.start()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["the node stays up", "the node is killed"])
def test_what_went_to_disk_comes_home_in_order_and_once(cluster, killed):
    """More rows than memory has room for wait for Postgres, and Redis loses all of them."""
    redis = cluster.start_redis()
    node = cluster.node(config="[store]\nunconfirmed_mb = 8\n")
    asked_twice = [f"twice-{number}" for number in range(PAGE)]
    sessions = [*asked_twice, *asked_twice, *(f"once-{number}" for number in range(IN_MEMORY + 2 * PAGE))]
    cluster.postgres.stop()
    try:
        answers = ask_many(node, AI_TASK_RETRY, [{"session_id": session, "task_name": "classify"} for session in sessions])
        assert all(answer["allow"] and not answer.get("degraded") for answer in answers)
        assert measured(node, "runguard_unconfirmed_entries") == len(sessions)
        assert measured(node, "runguard_unconfirmed_bytes") > 0 and measured(node, "runguard_unconfirmed_dropped_total") == 0
        until(lambda: "go to disk" in node.log(), "to be told")
        redis.cli("FLUSHALL")
        # It cannot build the states without the log.
        until(lambda: ask_many(node, AI_TASK_RETRY, [{"session_id": "sound", "task_name": "t"}])[0].get("degraded"), "a marked answer")
        if killed:
            node.kill()
            node.start()
    finally:
        cluster.postgres.start()
    # What was in memory alone went with the process, and with Redis.
    safe = answers[: 2 * PAGE] if killed else answers
    ids = [answer["decision_id"] for answer in safe]
    until(lambda: set(ids) <= set(cluster.database.ids()), "all that was kept in the log", 120)
    logged = cluster.database.ids()
    assert len(logged) == len(set(logged)), "twice"
    place = {id: number for number, id in enumerate(logged)}
    for first, second in zip(ids[:PAGE], ids[PAGE : 2 * PAGE], strict=True):
        assert place[first] < place[second], "in another order"
    until(lambda: measured(node, "runguard_rows_waiting") == 0, "nothing to wait", 60)
    third = ask_many(node, AI_TASK_RETRY, [{"session_id": session, "task_name": "classify"} for session in asked_twice])
    assert not any(answer["allow"] for answer in third), "what came home counts"
    until(lambda: measured(node, "runguard_unconfirmed_bytes") == 0, "the disk to be free again", 30)


@pytest.mark.slow
def test_the_disk_of_what_may_have_to_be_sent_again_is_told_of_before_it_is_full(cluster):
    node = cluster.node(config="[store]\nunconfirmed_mb = 1\n")
    cluster.postgres.stop()
    try:
        asked = 0

        def ask(count: int) -> None:
            nonlocal asked
            ask_many(node, AI_TASK_RETRY, [{"session_id": f"s{number}", "task_name": "t"} for number in range(asked, asked + count)])
            asked += count

        ask(IN_MEMORY)
        while not measured(node, "runguard_unconfirmed_dropped_total"):
            told, bytes_then = "half of the disk" in node.log(), measured(node, "runguard_unconfirmed_bytes")
            ask(500)
            assert asked < IN_MEMORY + 20 * PAGE, "there is no bound"
        assert told and bytes_then > 1 << 19, "it was not told before"
        until(lambda: "not kept any more" in node.log(), "to be told")
        assert "rows_not_kept" in node.client().get("/readyz").json["cluster"]["warnings"]
    finally:
        cluster.postgres.start()


def test_postgres_restarts_in_order_again_and_again(cluster):
    cluster.start(2)
    with cluster.load() as load:
        for _ in range(3):
            load.wait_for(100)
            cluster.postgres.stop(signal.SIGINT)
            cluster.postgres.start()
    assert not any(answer.degraded for answer in load.answers)
    load.check(cluster.database)


def test_what_reads_the_log_says_that_it_is_away(cluster):
    (node,) = cluster.start(1)
    flow = node.client()
    flow.allowed("/guard/ai-task-retry", session_id="s", task_name="classify")
    cluster.postgres.stop()
    try:
        for path in ("/v1/decisions", "/v1/stats", "/v1/sessions/s"):
            response = flow.get(path)
            assert response.status == 503, f"{path}: {response}"
            assert response.content_type == "application/problem+json", response
            assert cluster.postgres.PASSWORD not in response.text
        assert flow.get("/readyz").status == 200, "it can decide"
        flow.allowed("/guard/ai-task-retry", session_id="s", task_name="classify")
    finally:
        cluster.postgres.start()
    flow.refused("/guard/ai-task-retry", "retry_cap_reached", session_id="s", task_name="classify")
    assert len(flow.get("/v1/decisions?session=s").json["decisions"]) == 3


@pytest.mark.slow
def test_one_nodes_wire_to_postgres_hangs(cluster):
    """Whoever brings the rows into the log, another takes over."""
    cluster.database = cluster.postgres.database()
    proxies = [cluster.proxy(cluster.postgres.port) for _ in range(2)]
    for proxy in proxies:
        cluster.node(log=cluster.database.url.replace(str(cluster.postgres.port), str(proxy.port)))
    for proxy in proxies:
        with cluster.load() as load:
            load.wait_for(50)
            proxy.hold()
            load.wait_for(100)
        assert not any(answer.degraded for answer in load.answers)
        load.check(None)
        load.check_log(cluster.database, seconds=60)
        proxy.let_go()
