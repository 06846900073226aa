"""Redis away, emptied, restarted, replaced: flow guards go on, hard budgets refuse, nothing is lost, nothing counted twice."""

from __future__ import annotations

import time

import pytest

from catalogue import AI_TASK_RETRY, BUDGET_RESERVE, HANDOFF
from load import Load
from servers import replica_of, until


def check_degraded(load: Load, start: float, end: float) -> None:
    """Within a time when Redis was away, and every node knew."""
    during = load.between(start, end)
    assert len(during) > 50, f"only {len(during)} answers while Redis was away"
    sound = [answer for answer in during if not answer.degraded]
    assert not sound, f"not marked: {sound[:3]}"
    assert any(answer.allowed for answer in during if answer.guard != "budget"), "flow guards go on"
    budgets = [answer for answer in during if answer.guard == "budget"]
    assert any(answer.body["reason"] == "state_unavailable" for answer in budgets), "budgets refuse"


@pytest.mark.parametrize("seconds", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_redis_is_gone_for_a_while_and_comes_back_with_its_data(cluster, seconds):
    redis = cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")
    cluster.start(3)
    with cluster.load() as load:
        load.wait_for(300)
        redis.kill()
        gone = time.monotonic()
        time.sleep(seconds)
        back = time.monotonic()
        redis.start()
        load.wait_until_sound()
        load.wait_for(300)
    check_degraded(load, gone + 1.5, back)
    load.check(cluster.database)


def test_redis_restarts_empty(cluster):
    redis = cluster.start_redis()
    cluster.start(3)
    with cluster.load() as load:
        load.wait_for(500)
        redis.kill()
        time.sleep(0.5)
        redis.start()
        load.wait_until_sound(15)
        load.wait_for(500)
    load.check(cluster.database)


def test_redis_is_emptied_while_it_runs(cluster):
    redis = cluster.start_redis()
    cluster.start(3)
    with cluster.load() as load:
        load.wait_for(500)
        for _ in range(2):
            redis.cli("FLUSHALL")
            load.wait_until_sound(15)
            load.wait_for(300)
    load.check(cluster.database)


def test_redis_hangs(cluster):
    redis = cluster.start_redis()
    cluster.start(3)
    with cluster.load() as load:
        load.wait_for(200)
        redis.pause()
        gone = time.monotonic()
        time.sleep(3)
        back = time.monotonic()
        redis.go_on()
        load.wait_until_sound()
        load.wait_for(200)
    slowest = max(answer.answered - answer.asked for answer in load.answers)
    assert slowest < 3, f"an answer took {slowest:.1f} s"
    check_degraded(load, gone + 1.5, back)
    load.check(cluster.database)


def test_a_replica_takes_over(cluster):
    primary = cluster.start_redis()
    replica = cluster.keep(replica_of(primary, cluster.folder / "replica"))
    url = f"redis://127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
    cluster.start(3, state=url, config="[store]\nreplicas = 1\npatience_ms = 1000\n")
    with cluster.load() as load:
        load.wait_for(400)
        primary.kill()
        time.sleep(1)
        # With nobody behind it, it must not be asked to wait for a replica.
        assert replica.cli("REPLICAOF", "NO", "ONE") == "OK"
        second = cluster.keep(replica_of(replica, cluster.folder / "second"))
        took = load.wait_until_sound()
        load.wait_for(400)
    assert second.cli("DBSIZE") == replica.cli("DBSIZE")
    assert took < 5, f"{took:.1f} s"
    load.check(cluster.database)


def test_a_replica_is_lost(cluster):
    """What only the primary has does not count as safe: answers are marked until a replica is back."""
    primary = cluster.start_redis()
    replica = cluster.keep(replica_of(primary, cluster.folder / "replica"))
    cluster.start(2, config="[store]\nreplicas = 1\n")
    with cluster.load() as load:
        load.wait_for(200)
        replica.kill()
        gone = time.monotonic()
        time.sleep(4)
        back = time.monotonic()
        replica.start()
        load.wait_until_sound()
        load.wait_for(100)
    during = load.between(gone + 0.2, back)
    sound = [answer for answer in during if not answer.degraded]
    assert during and not sound, f"{len(sound)} of {len(during)} not marked: {sound[:2]}"
    slowest = max(answer.answered - answer.asked for answer in load.answers)
    # Nobody waits for it to come back.
    assert slowest < back - gone, f"an answer took {slowest:.1f} s"
    load.check(cluster.database)


def test_redis_is_out_of_memory(cluster):
    redis = cluster.start_redis()
    cluster.start(2)
    with cluster.load() as load:
        load.wait_for(150)
        assert redis.cli("CONFIG", "SET", "maxmemory", "1") == "OK"
        gone = time.monotonic()
        time.sleep(2)
        back = time.monotonic()
        assert redis.cli("CONFIG", "SET", "maxmemory", "0") == "OK"
        load.wait_until_sound()
        load.wait_for(100)
    check_degraded(load, gone + 0.5, back)
    load.check(cluster.database)
    assert "out of memory" in cluster.nodes[0].log() or "OOM" in cluster.nodes[0].log()


@pytest.mark.parametrize("how", ["gone", "hanging"])
def test_what_can_be_read_while_redis_is_away(cluster, how):
    redis = cluster.start_redis()
    node, other = cluster.start(2)
    flow = node.client()
    flow.allowed(AI_TASK_RETRY, session_id="s", task_name="classify")
    flow.allowed("/guard/api-circuit/check", endpoint_key="crm", session_id="s")
    until(lambda: len(cluster.database.ids()) == 2, "the log")
    redis.kill() if how == "gone" else redis.pause()
    until(lambda: flow.post(HANDOFF, {"session_id": "x", "source_bot": "a", "target_bot": "b"}).json.get("degraded"), "Redis to be missed")
    for path in ("/metrics", "/healthz", "/readyz", "/v1/decisions", "/v1/stats", "/v1/overview", "/v1/insights", "/v1/alerts",
                 "/v1/settings"):
        began = time.monotonic()
        response = flow.get(path)
        assert response.status == 200, f"{path}: {response}"
        assert time.monotonic() - began < 2, f"{path} took {time.monotonic() - began:.1f} s"
    # These are the shared state itself.
    for method, path in (("GET", "/v1/sessions/s"), ("GET", "/v1/circuits"), ("DELETE", "/v1/sessions/s")):
        began = time.monotonic()
        response = flow.request(method, path)
        assert response.status in (200, 503), f"{path}: {response}"
        assert response.status == 200 or response.content_type == "application/problem+json"
        assert time.monotonic() - began < 3, f"{method} {path} took {time.monotonic() - began:.1f} s"
    if how == "hanging":
        redis.go_on()


def test_a_full_stream_does_not_stop_decisions(cluster):
    """The log takes nothing for long: beyond the bound decisions wait on the nodes' disks, marked."""
    cluster.start(2, config="[store]\npartitions = 1\nstream_limit = 1000\n")
    with cluster.load(pause=0) as load:
        load.wait_for(100)
        cluster.postgres.stop()
        until(lambda: sum(answer.degraded for answer in load.answers) > 100, "the stream to be full", 60)
        cluster.postgres.start()
        load.wait_until_sound(20)
        load.wait_for(100)
    load.check(cluster.database)
    for node in cluster.nodes:
        assert node.log().count("a stream is at its bound") <= 5, "it is said once, not for each decision"


def test_what_goes_on_without_redis_is_a_setting(cluster):
    redis = cluster.start_redis()
    config = "[store]\nflow_when_away = \"refuse\"\nbudget_when_away = \"memory\"\n"
    (node,) = cluster.start(1, config=config)
    redis.kill()
    flow = node.client()
    refused = flow.refused(HANDOFF, "state_unavailable", session_id="s", source_bot="a", target_bot="b")
    assert refused["degraded"] is True and "flow_when_away" in refused["message"]
    for _ in range(2):
        assert flow.allowed(BUDGET_RESERVE, session_id="s", usd=1, max_usd=2)["degraded"] is True
    assert flow.refused(BUDGET_RESERVE, "budget_exceeded", session_id="s", usd=1, max_usd=2)["degraded"] is True
