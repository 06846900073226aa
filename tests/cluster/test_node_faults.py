"""Nodes that die, come back, start together, or have a wrong clock."""

from __future__ import annotations

import itertools
import re
import signal
import time

import pytest

from catalogue import AI_TASK_RETRY
from load import measured
from servers import until, wrong_clock


@pytest.mark.parametrize("rounds", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_a_node_is_killed_in_mid_request(cluster, rounds):
    cluster.start(3)
    with cluster.load() as load:
        for round in range(rounds):
            load.wait_for(150)
            node = cluster.nodes[round % 3]
            node.kill()
            load.wait_for(100)
            node.start()
    assert load.unanswered, "nobody was hit"
    others = [answer for answer in load.answers if answer.degraded]
    assert not others, f"a dead node is not the others' trouble: {others[:2]}"
    load.check(cluster.database, may_break=True)


@pytest.mark.parametrize("redis_keeps", ["everything", pytest.param("nothing", marks=pytest.mark.slow)])
def test_what_a_node_decided_alone_survives_its_death(cluster, redis_keeps):
    redis = cluster.start_redis(*(["--appendonly", "yes", "--appendfsync", "always"] if redis_keeps == "everything" else []))
    cluster.start(2)
    alone = cluster.nodes[0]
    with cluster.load() as load:
        load.wait_for(200)
        redis.kill()
        gone = time.monotonic()
        until(lambda: sum(answer.degraded and answer.node == 0 for answer in load.answers) > 50, "answers from memory")
        alone.kill()
        time.sleep(0.5)
        redis.start()
        alone.start()
        load.wait_until_sound(20)
        load.wait_for(100)
    if redis_keeps == "nothing":
        # Decided a moment before, so perhaps only in the Redis that lost it and in the node that died.
        safe = [answer for answer in load.answers if answer.degraded or answer.node == 1 or abs(answer.answered - gone) > 1]
        load.answers = safe
    load.check(cluster.database, may_break=True)
    until(lambda: not (alone.data / "alone").exists(), "nothing to be left behind")


def test_what_was_decided_alone_counts_when_it_is_home(cluster):
    """Twice from memory is twice: the third is refused by every node."""
    redis = cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")
    first, second = cluster.start(2)
    redis.kill()
    for _ in range(2):
        assert first.client().allowed(AI_TASK_RETRY, session_id="s", task_name="classify")["degraded"] is True
    refused = first.client().refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="classify")
    assert refused["degraded"] is True
    redis.start()

    def is_sound(node):
        # A node has more than one connection, and each finds its way back by itself.
        return all("degraded" not in node.client().post(AI_TASK_RETRY, {"session_id": "t", "task_name": "x"}).json for _ in range(5))

    until(lambda: is_sound(first) and is_sound(second), "Redis")
    until(lambda: not (first.data / "alone").exists(), "its rows to come home")
    for node in (first, second):
        body = node.client().refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="classify")
        assert "degraded" not in body and body["retries_in_window"] == 2


@pytest.mark.slow
def test_a_node_dies_while_its_rows_come_home(cluster):
    """Some were sent before it died, and it never heard that they arrived; which ones, only the log knows."""
    redis = cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")
    proxy = cluster.proxy(redis.port)
    node = cluster.node(state=proxy.url)
    with cluster.load() as load:
        load.wait_for(50)
        proxy.down()
        until(lambda: sum(answer.degraded for answer in load.answers) > 150, "answers from memory")
    added = lambda: int(re.search(r"cmdstat_xadd:calls=(\d+)", redis.cli("INFO", "commandstats"))[1])
    before = added()
    proxy.delay = (0.05, 0.1)
    proxy.up()
    until(lambda: added() > before, "some of them to be home")
    node.kill()
    proxy.delay = None
    node.start()
    load.check(cluster.database)
    assert len(cluster.database.ids()) <= len(load.answers) + 6, "no more than was asked, and what was under way at the cut"
    until(lambda: not (node.data / "alone").exists(), "nothing to be left behind")


@pytest.mark.slow
def test_all_nodes_die_at_once(cluster):
    cluster.start(3)
    with cluster.load() as load:
        load.wait_for(300)
        for node in cluster.nodes:
            node.process.kill()
        for node in cluster.nodes:
            node.kill()
            node.start()
        load.wait_for(100)
    assert not any(answer.degraded for answer in load.answers)
    load.check(cluster.database, may_break=True)


def test_a_node_that_starts_while_redis_is_away_says_so(cluster):
    """One that has never been in a cluster cannot know what its states are filed under: it waits."""
    redis = cluster.start_redis()
    node = cluster.node(start=False)
    redis.kill()
    node.launch()
    until(lambda: "has never been in its cluster" in node.log(), "the node to say that it waits")
    assert f"Redis at 127.0.0.1:{redis.port} is not reached" in node.log()
    redis.start()
    until(lambda: "RunGuard is ready" in node.log(), "the node to be ready")


def test_a_node_stops_in_order_under_load(cluster):
    cluster.start(2)
    with cluster.load() as load:
        load.wait_for(150)
        assert cluster.nodes[0].stop() == 0
        load.wait_for(50)
        cluster.nodes[0].start()
        load.wait_for(50)
    load.check(cluster.database, may_break=True)


@pytest.mark.slow
def test_a_node_stops_in_order_while_it_is_alone(cluster):
    redis = cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")
    cluster.start(1)
    with cluster.load() as load:
        load.wait_for(50)
        redis.kill()
        until(lambda: sum(answer.degraded for answer in load.answers) > 30, "answers from memory")
        assert cluster.nodes[0].stop() == 0
    redis.start()
    cluster.nodes[0].start()
    load.check(cluster.database, may_break=True)


def test_a_wrong_clock_does_not_matter(cluster):
    """Nodes five minutes fast and slow: a window of three seconds opens at the same moment for all."""
    config = "[guards.ai_task_retry]\nwindow = \"3s\"\n"
    right = cluster.node(config=config)
    wrong = [cluster.node(config=config, environment=wrong_clock(offset)) for offset in ("+300s", "-300s")]
    nodes = [right, *wrong]
    ask = {"session_id": "s", "task_name": "classify"}
    # The preload works: their own log lines are minutes off.
    assert wrong[0].log()[14:30] != right.log()[14:30]
    began = time.time()
    right.client().allowed(AI_TASK_RETRY, **ask)
    wrong[0].client().allowed(AI_TASK_RETRY, **ask)
    for node in nodes:
        body = node.client().refused(AI_TASK_RETRY, "retry_cap_reached", **ask)
        assert 1 <= body["retry_after_seconds"] <= 3, body
    time.sleep(max(0.0, began + 3.3 - time.time()))
    wrong[1].client().allowed(AI_TASK_RETRY, **ask)
    wrong[0].client().allowed(AI_TASK_RETRY, **ask)
    right.client().refused(AI_TASK_RETRY, "retry_cap_reached", **ask)
    until(lambda: len(cluster.database.ids()) == 8, "the log")
    times = [int(at) for at in cluster.database.sql("SELECT at FROM runguard_log ORDER BY seq")]
    assert all(abs(at - began * 1000) < 10_000 for at in times), "every row has the one time"
    shown = [node.client().get("/v1/decisions?session=s&since=1m").json["decisions"] for node in nodes]
    assert shown[0] == shown[1] == shown[2] and len(shown[0]) == 8, "and every node the same idea of the last minute"


def test_a_wrong_clock_under_load(cluster):
    cluster.start_redis()
    for offset in ("+0s", "+300s", "-300s"):
        cluster.node(environment=wrong_clock(offset))
    with cluster.load() as load:
        load.wait_for(300)
        cluster.redis.cli("FLUSHALL")
        load.wait_until_sound(15)
        load.wait_for(200)
    load.check(cluster.database)


def test_nodes_that_start_together_migrate_once(cluster):
    cluster.start_redis()
    nodes = [cluster.node(start=False) for _ in range(4)]
    for node in nodes:
        node.launch()
    for node in nodes:
        until(lambda: is_ready(node), "the node")
    assert cluster.database.sql("SELECT count(*) FROM runguard_format") == ["1"]
    for node in nodes:
        assert " already exists" not in node.log() and "ERROR" not in node.log(), node.log()
    with cluster.load() as load:
        load.wait_for(100)
    load.check(cluster.database)


def is_ready(node) -> bool:
    assert node.process.poll() is None, node.log()
    try:
        return node.client().get("/readyz").status == 200
    except OSError:
        return False


def test_other_partitions_are_refused(cluster):
    cluster.node()
    other = cluster.node(config="[store]\npartitions = 8\n", start=False)
    other.launch()
    assert other.wait() == 1
    assert "16" in other.log() and "8" in other.log() and "partitions" in other.log(), other.log()


def test_another_prefix_is_another_cluster(cluster):
    first = cluster.node()
    other = cluster.node(config="[store]\nprefix = \"other\"\npartitions = 8\n", log=cluster.postgres.database().url)
    for node in (first, other):
        for _ in range(2):
            node.client().allowed(AI_TASK_RETRY, session_id="s", task_name="classify")
        node.client().refused(AI_TASK_RETRY, "retry_cap_reached", session_id="s", task_name="classify")


def test_a_node_says_that_it_leaves_before_its_port_closes(cluster):
    node = cluster.node(config="[server]\ngrace = \"3s\"\n")
    client = node.client()
    assert client.get("/readyz").status == 200
    node.process.send_signal(signal.SIGTERM)
    until(lambda: client.get("/readyz").status == 503, "the node to be not ready", 2)
    for number in range(20):
        answer = client.post(AI_TASK_RETRY, {"session_id": f"s{number}", "task_name": "t"})
        assert answer.status == 200, answer
    assert node.process.poll() is None
    assert node.wait() == 0
    # Who cannot wait asks twice.
    node.start()
    node.process.send_signal(signal.SIGTERM)
    until(lambda: client.get("/readyz").status == 503, "the node to be not ready", 2)
    asked = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 0 and time.monotonic() - asked < 2


def test_the_disk_of_a_node_alone_is_bounded(cluster):
    redis = cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")
    node = cluster.node(config="[store]\nalone_mb = 1\n")
    client = node.client(keep_alive=True)
    redis.kill()

    def ask(number: int):
        return client.post(AI_TASK_RETRY, {"session_id": f"s{number}", "task_name": "t"})

    until(lambda: ask(0).json.get("degraded"), "a marked answer")
    answers = []
    for number in range(1, 20_000):
        answer = ask(number)
        if answer.status != 200:
            break
        answers.append(answer.json)
    assert answer.status == 503, answer
    # What it says is written down a moment after it is said.
    until(lambda: "fills the disk it may use" in node.log(), "to be told")
    log = node.log()
    assert log.index("fills half of the disk") < log.index("fills the disk it may use"), "told before"
    assert measured(node, "runguard_rows_waiting_bytes") >= 1 << 20
    held = sum(file.stat().st_size for file in (node.folder / "data" / "alone").iterdir())
    assert held < 8 << 20, held
    redis.start()
    fresh = itertools.count(20_000)
    until(lambda: (told := ask(next(fresh))).status == 200 and not told.json.get("degraded"), "a sound answer", 40)
    ids = {answer["decision_id"] for answer in answers}
    until(lambda: ids <= set(cluster.database.ids()), "all answers in the log", 30)
