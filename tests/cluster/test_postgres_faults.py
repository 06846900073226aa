"""Postgres away: decisions go on as if nothing were, their rows wait in Redis, and arrive once."""

from __future__ import annotations

import signal
import time

import pytest


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
        load.wait_until_sound()
        cluster.postgres.start()
        load.wait_for(100)
    load.check(cluster.database)


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
