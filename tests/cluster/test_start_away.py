"""A node starts while Redis or Postgres is away: it decides alone, keeps what it decides, and joins when it can."""

from __future__ import annotations

import pytest

from catalogue import BUDGET_RESERVE
from servers import until
from test_comebacks import CAP, is_sound, logged, retry, use_up, wait_until_sound


@pytest.fixture
def redis(cluster):
    return cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.parametrize("log, log_too", [("shared", False), ("shared", True), (None, False)],
                         ids=["redis", "redis and postgres", "redis, and each has a log"])
def test_a_node_starts_while_the_databases_are_away(cluster, redis, log, log_too):
    first, second = cluster.start(2, log=log)
    wait_until_sound(cluster)
    before = use_up(cluster, ["used"])
    logged(cluster, before)
    second.stop()
    redis.kill()
    if log_too:
        cluster.postgres.stop()
    second.start()
    client = second.client()
    answers = [retry(client, "fresh") for _ in range(CAP + 1)]
    assert [answer["allow"] for answer in answers] == [True] * CAP + [False], answers
    assert all(answer["degraded"] for answer in answers), answers
    refused = client.post(BUDGET_RESERVE, {"session_id": "b", "usd": 0.5, "max_usd": 1})
    assert refused.json["reason"] == "state_unavailable", refused.json
    assert client.get("/readyz").status == 200
    redis.start()
    cluster.postgres.start()
    wait_until_sound(cluster, 40)
    for node in cluster.nodes:
        assert not retry(node.client(), "fresh")["allow"]
        assert not retry(node.client(), "used")["allow"]
    logged(cluster, before + answers)
    for ids in [log.ids() for log in cluster.logs]:
        assert len(ids) == len(set(ids))


def test_a_node_starts_while_the_log_is_away(cluster, redis):
    """A deploy during an outage of the log: the node joins, and its rows wait in Redis."""
    cluster.start(2)
    wait_until_sound(cluster)
    logged(cluster, use_up(cluster, ["used"]))
    cluster.postgres.stop()
    for node in cluster.nodes:
        node.stop()
        node.start()
    # One that has never been here as well: the shared state knows what it needs.
    third = cluster.node()
    until(lambda: is_sound(third), "a sound answer", 20)
    wait_until_sound(cluster)
    assert not retry(third.client(), "used")["allow"]
    answers = use_up(cluster, [f"s{number}" for number in range(20)], node=2)
    assert not any(answer.get("degraded") for answer in answers)
    cluster.postgres.start()
    logged(cluster, answers)


def test_a_first_start_finds_what_it_needs_in_the_log(cluster, redis):
    cluster.start(1)
    logged(cluster, use_up(cluster, ["used"]))
    redis.kill()
    second = cluster.node()
    answers = [retry(second.client(), "fresh") for _ in range(CAP)]
    assert all(answer["allow"] and answer["degraded"] for answer in answers), answers
    redis.start()
    wait_until_sound(cluster)
    assert not retry(cluster.nodes[0].client(), "fresh")["allow"]
    logged(cluster, answers)
