"""What went away comes back: older than it was, with rows that waited elsewhere, after a moment, late. No cap is passed unmarked."""

from __future__ import annotations

import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from catalogue import AI_TASK_RETRY, BUDGET_CHECK, BUDGET_RECORD, BUDGET_RESERVE, HANDOFF
from load import measured
from runguard_process import run_cli
from servers import RedisCluster, until

SESSIONS = 200
CAP = 2


def retry(client, session: str) -> dict:
    return client.post(AI_TASK_RETRY, {"session_id": session, "task_name": "classify"}).json


def use_up(cluster, sessions: list[str], *, node: int = 0) -> list[dict]:
    """Every session to its cap, on one node."""
    client = cluster.nodes[node].client(keep_alive=True)
    return [retry(client, session) for session in sessions for _ in range(CAP)]


def passed_unmarked(cluster, sessions: list[str]) -> list[dict]:
    """Every session is at its cap: what every node allows it nevertheless, as if that were sound."""

    def ask(node) -> list[dict]:
        client = node.client(keep_alive=True)
        return [answer for answer in (retry(client, session) for session in sessions) if answer["allow"] and not answer.get("degraded")]

    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        return [answer for answers in pool.map(ask, cluster.nodes) for answer in answers]


def is_sound(node) -> bool:
    answer = retry(node.client(), f"sound-{time.monotonic_ns()}")
    return answer["allow"] and not answer.get("degraded")


def wait_until_sound(cluster, seconds: float = 20) -> None:
    until(lambda: all(is_sound(node) for node in cluster.nodes), "sound answers of every node", seconds)


def logged(cluster, answers: list[dict]) -> None:
    ids = {answer["decision_id"] for answer in answers}
    until(lambda: all(ids <= set(log.ids()) for log in cluster.logs), "all answers in the log", 30)


@pytest.mark.parametrize("log", ["shared", None], ids=["one log", "a log each"])
@pytest.mark.parametrize("nodes_too", [False, True], ids=["nodes stay up", "nodes restart as well"])
def test_redis_comes_back_with_what_it_had_a_while_ago(cluster, nodes_too, log):
    """Debian's default: a snapshot now and then, and no append-only file."""
    redis = cluster.start_redis()
    cluster.start(3, log=log)
    names = [f"s{number}" for number in range(SESSIONS)]
    answers = use_up(cluster, names[: SESSIONS // 2])
    assert redis.cli("SAVE") == "OK"
    answers += use_up(cluster, names[SESSIONS // 2 :], node=1)
    client = cluster.nodes[0].client()
    for number in range(50):
        spent = client.post(BUDGET_RECORD, {"session_id": f"b{number}", "usd": 1, "max_usd": 1})
        assert spent.status == 200, spent
        answers.append(spent.json)
    logged(cluster, answers)
    if nodes_too:
        for node in cluster.nodes:
            node.stop()
    redis.kill()
    redis.start()
    if nodes_too:
        for node in cluster.nodes:
            node.start()
    assert not (passed := passed_unmarked(cluster, names)), f"{len(passed)} such as {passed[0]}"
    wait_until_sound(cluster)
    assert not (passed := passed_unmarked(cluster, names)), f"{len(passed)} such as {passed[0]}"
    for number in range(50):
        asked = cluster.nodes[2].client().post(BUDGET_RESERVE, {"session_id": f"b{number}", "usd": 0.5, "max_usd": 1})
        assert asked.status == 429, asked.json
    logged(cluster, answers)


def test_redis_comes_back_older_while_the_log_is_away(cluster):
    """The log cannot say how far it was; the nodes know what they sent."""
    redis = cluster.start_redis()
    cluster.start(2)
    redis.cli("SAVE")
    names = [f"s{number}" for number in range(40)]
    answers = use_up(cluster, names)
    logged(cluster, answers)
    cluster.postgres.stop()
    redis.kill()
    redis.start()
    assert not (passed := passed_unmarked(cluster, names)), f"{len(passed)} such as {passed[0]}"
    cluster.postgres.start()
    wait_until_sound(cluster, 40)
    assert not passed_unmarked(cluster, names)
    logged(cluster, answers)


def test_what_was_decided_alone_counts_before_an_answer_is_sound(cluster):
    redis = cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")
    cluster.start(3)
    wait_until_sound(cluster)
    names = [f"s{number}" for number in range(SESSIONS)]
    redis.kill()
    until(lambda: retry(cluster.nodes[1].client(), "probe").get("degraded"), "a marked answer")
    answers = use_up(cluster, names, node=1)
    assert all(answer["degraded"] for answer in answers)
    redis.start()
    end = time.monotonic() + 4
    while time.monotonic() < end:
        assert not (passed := passed_unmarked(cluster, names)), f"{len(passed)} such as {passed[0]}"
    wait_until_sound(cluster)
    assert not passed_unmarked(cluster, names)
    logged(cluster, answers)


@pytest.mark.parametrize("log", ["shared", None], ids=["one log", "a log each"])
def test_a_broken_connection_is_waited_for(cluster, log):
    """A moment without Redis is a moment's wait, and nothing else."""
    redis = cluster.start_redis()
    proxy = cluster.proxy(redis.port)
    patience, times = 2, 20
    node = cluster.node(state=proxy.url, log=log, config=f"[store]\npatience_ms = {patience * 1000}\n")
    client = node.client(keep_alive=True)
    use_up(cluster, ["s"])
    slowest, passed = 0.0, []
    for number in range(times):
        proxy.cut()
        for _ in range(3):
            asked = time.monotonic()
            answer = retry(client, "s")
            slowest = max(slowest, time.monotonic() - asked)
            passed += [answer] if answer["allow"] or answer.get("degraded") else []
    assert not passed, f"{len(passed)} of {3 * times}, such as {passed[0]}"
    assert slowest < patience, f"an answer took {slowest:.2f} s"


@pytest.fixture
def in_memory():
    """A folder that no disk is waited for."""
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
        yield Path(folder)


def test_patience_is_what_everybody_waits(cluster, in_memory):
    redis = cluster.start_redis()
    patience, callers = 0.6, 16
    # Whoever goes on alone opens the files it writes to: how long that takes is the disk's.
    node = cluster.node(config=f"[store]\npatience_ms = {patience * 1000:.0f}\n", data=in_memory / "data")

    def answered(number: int) -> float:
        answer = retry(node.client(), f"s{number}")
        assert answer["degraded"], answer
        return time.monotonic()

    def waits() -> list[float]:
        """Of many callers, from now on; the shortest first."""
        began = time.monotonic()
        with ThreadPoolExecutor(callers) as pool:
            return sorted(at - began for at in pool.map(answered, range(callers)))

    longer = []
    for _ in range(5):
        wait_until_sound(cluster)
        redis.pause()
        waited = waits()
        # The same questions at the same time, when nobody has to wait any more: what the machine takes for them.
        known = waits()
        redis.go_on()
        assert waited[0] > patience - 0.05, f"it did not wait: {waited}"
        assert statistics.median(known) < patience / 2, f"nobody waits for what is known to be away: {known}"
        longer.append(statistics.median(waited) - patience - statistics.median(known))
    assert max(longer) < patience / 2, f"they waited twice: longer than the patience by {longer}"
    # Whatever else goes on here may hold them up now and then.
    assert statistics.median(longer) < 0.1, f"longer than the patience by {longer}"
    wait_until_sound(cluster)


def test_the_same_old_snapshot_comes_back_again(cluster):
    """Two crashes before the next save: what is put back is older than what was built the first time."""
    redis = cluster.start_redis()
    cluster.start(2)
    assert redis.cli("SAVE") == "OK"
    snapshot = (redis.folder / "dump.rdb").read_bytes()
    names = [f"s{number}" for number in range(40)]
    use_up(cluster, names)
    with cluster.load() as load:
        for _ in range(3):
            load.wait_for(200)
            redis.kill()
            (redis.folder / "dump.rdb").write_bytes(snapshot)
            redis.start()
            load.wait_until_sound(30)
            assert not (passed := passed_unmarked(cluster, names)), f"{len(passed)} such as {passed[0]}"
    load.check(cluster.database)


def test_a_node_that_starts_with_waiting_rows_says_so_before_it_answers(cluster):
    redis = cluster.start_redis("--appendonly", "yes", "--appendfsync", "always")
    cluster.start(2)
    wait_until_sound(cluster)
    redis.kill()
    until(lambda: retry(cluster.nodes[0].client(), "probe").get("degraded"), "a marked answer")
    names = [f"s{number}" for number in range(60)]
    use_up(cluster, names)
    cluster.nodes[0].kill()
    redis.start()
    cluster.nodes[0].start()
    assert not (passed := passed_unmarked(cluster, names)), f"{len(passed)} such as {passed[0]}"
    wait_until_sound(cluster)
    assert not passed_unmarked(cluster, names)


def test_an_erasure_is_not_undone_by_an_old_snapshot(cluster):
    redis = cluster.start_redis()
    node = cluster.node()
    use_up(cluster, ["gone", "stays"])
    assert redis.cli("SAVE") == "OK"
    erased = node.client().delete("/v1/sessions/gone")
    assert erased.status == 200, erased.json
    redis.kill()
    redis.start()
    wait_until_sound(cluster)
    assert retry(node.client(), "gone")["allow"], "what was erased counts again"
    assert not retry(node.client(), "stays")["allow"]


def test_what_is_under_way_when_its_session_is_erased_does_nothing(cluster):
    """A stalled wire: what a node sent arrives after the erasure that another node did, and later than anybody waits."""
    redis = cluster.start_redis("--appendonly", "yes", "--rdbcompression", "no")
    proxy = cluster.proxy(redis.port)
    stalled, other = cluster.node(state=proxy.url), cluster.node()
    wait_until_sound(cluster)
    name = "erased-while-under-way"
    # There is something to erase, and what is under way finds nothing of its own that could have changed.
    logged(cluster, [stalled.client().allowed(HANDOFF, session_id=name, source_bot="a", target_bot="b")])
    with ThreadPoolExecutor(9) as pool:
        proxy.hold()
        asked = [pool.submit(retry, stalled.client(), name) for _ in range(8)]
        until(lambda: proxy.on_their_way > 0, "something to be under way", 2)
        erased = pool.submit(other.client().delete, f"/v1/sessions/{name}")
        until(lambda: cluster.database.sql("SELECT id FROM runguard_log WHERE outcome = 'session_erased'"), "the erasure", 10)
        time.sleep(3)
        # What comes into the streams now stays there.
        cluster.postgres.stop()
        proxy.let_go()
        until(lambda: proxy.on_their_way == 0, "all to arrive", 5)
        answers = [one.result() for one in asked]
        assert erased.result().status in (200, 202), erased.result()
    assert all(answer.get("degraded") for answer in answers), answers
    assert retry(other.client(), "asked-afterwards")["allow"]
    assert redis.cli("SAVE") == "OK"
    kept = (redis.folder / "dump.rdb").read_bytes()
    assert b"asked-afterwards" in kept, "a row that waits can be found"
    assert name.encode() not in kept
    cluster.postgres.start()
    until(lambda: other.client().delete(f"/v1/sessions/{name}").status == 404, "nothing to be left", 20)
    wait_until_sound(cluster)
    assert cluster.database.sql(f"SELECT id FROM runguard_log WHERE session = '{name}'") == []
    # Nothing of it counts.
    assert [retry(node.client(), name)["allow"] for node in (other, stalled)] == [True] * CAP


@pytest.mark.parametrize("log", ["shared", None], ids=["one log", "a log each"])
def test_what_is_under_way_for_a_moment_takes_place_after_its_session_is_erased(cluster, log):
    """A wire that stalls for less than anybody waits: what was sent before the erasure is decided after it, on nothing, and is kept."""
    redis = cluster.start_redis("--appendonly", "yes")
    proxy = cluster.proxy(redis.port)
    options = {"log": log, "config": "[store]\npatience_ms = 8000\n"}
    # The first one moves the log.
    other = cluster.node(**options)
    wait_until_sound(cluster)
    stalled = cluster.node(state=proxy.url, **options)
    wait_until_sound(cluster)
    name = "erased-for-a-moment"
    before = use_up(cluster, [name], node=1)
    logged(cluster, before)
    with ThreadPoolExecutor(9) as pool:
        proxy.hold()
        asked = [pool.submit(retry, stalled.client(), name) for _ in range(8)]
        until(lambda: proxy.on_their_way > 0, "something to be under way", 2)
        erased = pool.submit(other.client().delete, f"/v1/sessions/{name}")
        first = before[0]["decision_id"]
        until(lambda: first not in cluster.logs[0].ids(), "the erasure", 6)
        time.sleep(0.1)
        proxy.let_go()
        answers = [one.result() for one in asked]
        assert erased.result().status in (200, 202), erased.result()
    assert not any(answer.get("degraded") for answer in answers), answers
    assert sum(answer["allow"] for answer in answers) == CAP, "it began anew, once"
    logged(cluster, answers)
    for node in (other, stalled):
        timeline = node.client().get(f"/v1/sessions/{name}").json["timeline"]
        assert sorted(row["decision_id"] for row in timeline) == sorted(answer["decision_id"] for answer in answers)
    assert not any(retry(node.client(), name)["allow"] for node in (other, stalled)), "what is in the log counts"
    assert stalled.client().delete(f"/v1/sessions/{name}").status in (200, 202)
    assert [retry(node.client(), name)["allow"] for node in (other, stalled)] == [True] * CAP


def test_a_node_without_traffic_notices_that_its_connection_is_another(cluster):
    redis = cluster.start_redis()
    proxy = cluster.proxy(redis.port)
    node = cluster.node(state=proxy.url)
    use_up(cluster, ["s"])
    proxy.cut()
    until(lambda: node.client().delete("/v1/sessions/s").status == 200, "an erasure on a node that decides nothing", 10)


def test_redis_comes_back_older_and_who_knows_nothing_of_it_is_first(cluster):
    """What another node writes meanwhile must not hide from the one who wrote before that its own writes are gone."""
    redis = cluster.start_redis()
    proxy = cluster.proxy(redis.port)
    cluster.node(state=proxy.url)
    unknowing = cluster.node()
    wait_until_sound(cluster)
    assert redis.cli("SAVE") == "OK"
    cluster.postgres.stop()
    names = [f"s{number}" for number in range(40)]
    answers = use_up(cluster, names)
    assert not [answer for answer in answers if answer.get("degraded") or not answer["allow"]]
    proxy.down()
    redis.kill()
    redis.start()
    # Asked sooner it would decide alone, and without Postgres that cannot be brought home.
    until(lambda: "the shared state is back" in unknowing.log(), "the one that misses nothing to be back", 20)
    until(lambda: is_sound(unknowing), "sound answers of the one that misses nothing", 20)
    others = use_up(cluster, [f"other{number}" for number in range(200)], node=1)
    cluster.postgres.start()
    logged(cluster, others)
    proxy.up()
    until(lambda: "lost states" in cluster.nodes[0].log(), "the loss to be noticed")
    wait_until_sound(cluster, 40)
    assert not (passed := passed_unmarked(cluster, names)), f"{len(passed)} such as {passed[0]}"
    logged(cluster, answers + others)


def test_a_reservation_that_nobody_heard_of_is_taken_back(cluster):
    """Redis made it, its answer came too late, and the caller was told that the state is away."""
    redis = cluster.start_redis()
    proxy = cluster.proxy(redis.port)
    node, other = cluster.node(state=proxy.url), cluster.node()
    wait_until_sound(cluster)
    asked = {"session_id": "s", "usd": 0.9, "max_usd": 1}

    def left() -> dict:
        return other.client().post(BUDGET_CHECK, {"session_id": "s", "usd": 0}).json

    proxy.delay = (2.5, 2.5)
    refused = node.client().post(BUDGET_RESERVE, asked)
    assert (refused.status, refused.json["reason"]) == (429, "state_unavailable"), refused.json
    assert left()["reserved_usd"] == 0.9, "what this is about did not happen"
    kept = node.client().post(BUDGET_RESERVE, {**asked, "session_id": "k"}, headers={"Idempotency-Key": "again"})
    proxy.delay = None
    until(lambda: left()["reserved_usd"] == 0, "the reservation to be taken back", 20)
    wait_until_sound(cluster)
    rows = cluster.database.sql(f"SELECT id, outcome FROM runguard_log WHERE id LIKE '{refused.json['decision_id']}%' ORDER BY seq")
    assert len(rows) == 2, rows
    again = node.client().post(BUDGET_RESERVE, {**asked, "session_id": "k"}, headers={"Idempotency-Key": "again"})
    assert again.json["allow"] or again.json["decision_id"] == kept.json["decision_id"], again.json
    assert other.client().post(BUDGET_RESERVE, asked).status == 200


def warnings(node) -> list[str]:
    return node.client().get("/readyz").json["cluster"]["warnings"]


@pytest.mark.parametrize("many", [False, True], ids=["one server", "Redis Cluster"])
def test_a_redis_without_an_append_only_file_is_told_of_at_the_start(cluster, many):
    """Debian's default. Of several servers one is enough."""
    if many:
        servers = cluster.keep(RedisCluster(cluster.folder / "redis-cluster"))
        url, server = servers.url, servers.servers[1]
    else:
        server = cluster.start_redis("--appendonly", "yes")
        url = server.url
    good = cluster.node(state=url)
    until(lambda: measured(good, "runguard_nodes") == 1, "the first look at the database", 10)
    assert warnings(good) == [] and measured(good, "runguard_shared_state_without_aof") == 0
    assert server.cli("CONFIG", "SET", "appendonly", "no") == "OK"
    started = cluster.node(state=url)
    for node in (started, good):
        until(lambda: "Redis keeps no append-only file" in node.log(), "to be told", 10)
        assert warnings(node) == ["state_without_aof"]
        assert measured(node, "runguard_shared_state_without_aof") == 1
    assert server.cli("CONFIG", "SET", "appendonly", "yes") == "OK"
    until(lambda: warnings(good) == [], "to be told no more", 10)


def test_nodes_that_differ_and_a_redis_that_evicts_are_seen(cluster):
    redis = cluster.start_redis("--appendonly", "yes")
    nodes = cluster.start(2)
    nodes.append(cluster.node(config="[guards.ai_task_retry]\nmax_retries = 7\n"))

    until(lambda: [measured(node, "runguard_nodes_with_other_settings") for node in nodes] == [1, 1, 2], "the other settings to be seen", 30)
    until(lambda: measured(nodes[0], "runguard_nodes") == 3, "all nodes to be seen", 30)
    assert measured(nodes[0], "runguard_settings_hash") == measured(nodes[1], "runguard_settings_hash") != measured(nodes[2], "runguard_settings_hash")
    assert measured(nodes[0], "runguard_nodes_with_other_keys") == 0
    assert warnings(nodes[0]) == ["settings_differ"]
    until(lambda: "have other settings than this one" in nodes[2].log(), "to be told")

    made = run_cli("key", "create", "--data", nodes[1].data, "--role", "guard", "--tenant", "acme")
    assert made.returncode == 0, made.stderr
    until(lambda: measured(nodes[0], "runguard_nodes_with_other_keys") == 1, "the other keys to be seen", 30)
    assert warnings(nodes[0]) == ["settings_differ", "keys_differ"]

    assert redis.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru") == "OK"
    until(lambda: measured(nodes[0], "runguard_shared_state_evicts") == 1, "the policy to be noticed", 10)
    until(lambda: "maxmemory-policy allkeys-lru" in nodes[0].log(), "to be told")
    assert "state_evicts" in warnings(nodes[0])
    use_up(cluster, [f"s{number}" for number in range(200)])
    assert redis.cli("CONFIG", "SET", "maxmemory", "1") == "OK"
    until(lambda: measured(nodes[0], "runguard_shared_state_evicted_keys") > 0, "what is thrown away to be noticed", 10)
    until(lambda: "Redis has thrown keys away" in nodes[0].log(), "to be told")
    assert redis.cli("CONFIG", "SET", "maxmemory", "0") == "OK"


def test_a_node_that_stops_is_counted_no_more(cluster):
    nodes = cluster.start(2)
    count = lambda: nodes[0].client().get("/readyz").json["cluster"]["nodes"]
    until(lambda: count() == 2, "both nodes to be seen", 30)
    nodes[1].stop()
    until(lambda: count() == 1, "the one that is left", 20)
