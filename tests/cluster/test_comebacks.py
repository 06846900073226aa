"""What went away comes back: older than it was, with rows that waited elsewhere, after a moment, late. No cap is passed unmarked."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from catalogue import AI_TASK_RETRY, BUDGET_RECORD, BUDGET_RESERVE
from servers import until

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
    until(lambda: ids <= set(cluster.database.ids()), "all answers in the log", 30)


@pytest.mark.parametrize("nodes_too", [False, True], ids=["nodes stay up", "nodes restart as well"])
def test_redis_comes_back_with_what_it_had_a_while_ago(cluster, nodes_too):
    """Debian's default: a snapshot now and then, and no append-only file."""
    redis = cluster.start_redis()
    cluster.start(3)
    names = [f"s{number}" for number in range(SESSIONS)]
    answers = use_up(cluster, names[: SESSIONS // 2])
    assert redis.cli("SAVE") == "OK"
    answers += use_up(cluster, names[SESSIONS // 2 :], node=1)
    client = cluster.nodes[0].client()
    for number in range(50):
        spent = client.post(BUDGET_RECORD, {"session_id": f"b{number}", "usd": 1, "max_usd": 1})
        assert spent.status == 200, spent
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


def test_a_broken_connection_is_waited_for(cluster):
    """A moment without Redis is a moment's wait, and nothing else."""
    redis = cluster.start_redis()
    proxy = cluster.proxy(redis.port)
    patience, times = 2, 20
    node = cluster.node(state=proxy.url, config=f"[store]\npatience_ms = {patience * 1000}\n")
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


def test_patience_is_what_everybody_waits(cluster):
    redis = cluster.start_redis()
    node = cluster.node(config="[store]\npatience_ms = 600\n")
    wait_until_sound(cluster)

    def ask(number: int) -> tuple[float, float, dict]:
        asked = time.monotonic()
        answer = retry(node.client(), f"s{number}")
        return asked, time.monotonic(), answer

    redis.pause()
    began = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        waited = list(pool.map(ask, range(16)))
    redis_away_for = 0.6
    for asked, answered, answer in waited:
        assert answer["degraded"], answer
        assert answered - began > redis_away_for - 0.05, "it did not wait"
        # The first to go on alone opens the files it writes to.
        assert answered - asked < redis_away_for + 1, f"it waited for {answered - asked:.2f} s"
    asked, answered, answer = ask(99)
    assert answer["degraded"] and answered - asked < 0.2, "nobody waits for what is known to be away"
    redis.go_on()
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


def test_a_node_without_traffic_notices_that_its_connection_is_another(cluster):
    redis = cluster.start_redis()
    proxy = cluster.proxy(redis.port)
    node = cluster.node(state=proxy.url)
    use_up(cluster, ["s"])
    proxy.cut()
    until(lambda: node.client().delete("/v1/sessions/s").status == 200, "an erasure on a node that decides nothing", 10)
