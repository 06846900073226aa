"""A session is erased, and something stops in the middle: nothing of it was done, or all of it is; and no cap is passed unmarked."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from catalogue import HANDOFF
from load import measured
from servers import until
from test_comebacks import CAP, is_sound, logged, retry, use_up, wait_until_sound

# As long as it takes until another node goes on with what one left.
FINISHED_WITHIN = 25


def rows_of(cluster, session: str) -> dict[str, bool]:
    """The decisions of a session that are in the log, by their ids: whether it is an allowed retry without the mark."""
    is_sound_retry = "guard = 'ai_task_retry' AND outcome = 'allowed' AND answer::text NOT LIKE '%degraded%'"
    found = cluster.database.sql(f"SELECT id || ' ' || ({is_sound_retry})::text FROM runguard_log WHERE session = '{session}'")
    return {id: is_allowed == "true" for id, is_allowed in (line.split() for line in found)}


@pytest.mark.parametrize("rounds", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_an_erasure_whose_node_is_killed_took_nothing_or_is_finished(cluster, rounds):
    cluster.start_redis("--appendonly", "yes")
    dying, other, third = cluster.start(3)
    ends = Counter()
    for number in range(rounds):
        wait_until_sound(cluster)
        name = f"gone-{number}"
        before = use_up(cluster, [name], node=1)
        client = other.client(keep_alive=True)
        for step in range(60):
            body = {"session_id": name, "source_bot": "a", "target_bot": f"b{step}"}
            before.append(client.post(HANDOFF, body, {"Idempotency-Key": f"{name}-{step}"}).json)
        logged(cluster, before)
        with ThreadPoolExecutor(1) as pool:
            erased = pool.submit(dying.client().delete, f"/v1/sessions/{name}")
            time.sleep(0.004 * number + 0.003)
            dying.kill()
            # Whoever asked hears nothing, or was told before.
            failed = erased.exception()
            heard = None if failed else erased.result().status
        asked: list[dict] = []
        end = time.monotonic() + FINISHED_WITHIN

        def is_over() -> bool:
            asked.extend(retry(node.client(), name) for node in (other, third))
            old = {answer["decision_id"] for answer in before} & rows_of(cluster, name).keys()
            return not asked[-1].get("degraded") and len(old) in (0, len(before)) and all(is_sound(node) for node in (other, third))

        until(is_over, "all or nothing", end - time.monotonic())
        time.sleep(0.5)
        rows = rows_of(cluster, name)
        allowed = [id for id, is_allowed in rows.items() if is_allowed]
        assert len(allowed) <= CAP, f"{allowed} after {heard} in round {number}"
        is_gone = before[0]["decision_id"] not in rows
        assert is_gone or heard != 200, heard
        ends[is_gone, heard] += 1
        dying.start()
        time.sleep(2)
        assert rows_of(cluster, name).keys() >= set(allowed), "what came since stays when the node is back"
    assert {is_gone for is_gone, _ in ends} == {True, False} or rounds < 20, f"killed too early or too late each time: {ends}"


def test_an_erasure_that_is_refused_is_not_done_later(cluster):
    redis = cluster.start_redis("--appendonly", "yes")
    proxy = cluster.proxy(redis.port)
    cut, other = cluster.node(state=proxy.url), cluster.node()
    wait_until_sound(cluster)
    logged(cluster, use_up(cluster, ["stays"], node=1))
    proxy.down()
    until(lambda: retry(cut.client(), "alone").get("degraded"), "the link to be missed")
    refused = cut.client().delete("/v1/sessions/stays")
    assert refused.status == 503, refused
    assert "was not erased" in refused.json["detail"], refused
    proxy.up()
    wait_until_sound(cluster)
    time.sleep(2.5)
    assert not retry(other.client(), "stays")["allow"]
    assert sum(rows_of(cluster, "stays").values()) == CAP
    assert cut.client().delete("/v1/sessions/stays").status == 200
    assert retry(other.client(), "stays")["allow"]


def test_an_erasure_that_another_node_finished_takes_nothing_of_the_new_life(cluster):
    redis = cluster.start_redis("--appendonly", "yes")
    proxy = cluster.proxy(redis.port)
    cut, other = cluster.node(state=proxy.url), cluster.node()
    wait_until_sound(cluster)
    logged(cluster, use_up(cluster, ["gone"]))
    cluster.database.sql("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'nothing goes now'; END $$;
        CREATE TRIGGER refuse BEFORE DELETE ON runguard_log FOR EACH STATEMENT EXECUTE FUNCTION refuse();
    """)
    begun = cut.client().delete("/v1/sessions/gone")
    assert (begun.status, begun.json["pending"]) == (202, ["the log"]), begun
    proxy.down()
    until(lambda: retry(cut.client(), "alone").get("degraded"), "the link to be missed")
    cluster.database.sql("DROP TRIGGER refuse ON runguard_log")
    until(lambda: not rows_of(cluster, "gone"), "the other node to finish it", FINISHED_WITHIN)
    answers: list[dict] = []

    def is_sound_again() -> bool:
        answers.append(retry(other.client(), "gone"))
        return not answers[-1].get("degraded")

    until(is_sound_again, "the session to be decided for again")
    logged(cluster, answers)
    proxy.up()
    wait_until_sound(cluster)
    # The node that was cut off looks after its erasures every second.
    time.sleep(3)
    assert {answer["decision_id"] for answer in answers} <= rows_of(cluster, "gone").keys(), "its new life stays"
    anew = cut.client().delete("/v1/sessions/gone")
    assert (anew.status, anew.json["log_entries"]) == (200, len(answers)), "asked for once more it goes"


def test_a_session_that_several_nodes_erase_at_once_is_erased_once(cluster):
    cluster.start(3)
    wait_until_sound(cluster)
    for number in range(5):
        name = f"gone-{number}"
        logged(cluster, use_up(cluster, [name]))
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda node: node.client().delete(f"/v1/sessions/{name}"), cluster.nodes))
        assert {answer.status for answer in answers} <= {200, 202, 404}, answers
        assert sum(answer.json["log_entries"] for answer in answers if answer.status != 404) == CAP, answers
        assert rows_of(cluster, name) == {}
        assert [retry(node.client(), name)["allow"] for node in cluster.nodes] == [True, True, False]


def test_a_node_whose_link_is_cut_does_not_take_it_for_the_log(cluster):
    redis = cluster.start_redis("--appendonly", "yes")
    proxy = cluster.proxy(redis.port)
    node = cluster.node(state=proxy.url)
    wait_until_sound(cluster)
    assert measured(node, "runguard_log_imports") == 1, "it is the one that writes the log"
    proxy.down()
    until(lambda: retry(node.client(), "alone").get("degraded"), "the link to be missed")
    assert measured(node, "runguard_rows_waiting") > 0
    until(lambda: measured(node, "runguard_rows_waiting_bytes") > 0, "the bytes of what waits to be known", 3)
    for _ in range(8):
        time.sleep(0.5)
        assert measured(node, "runguard_log_database_up") == 1
    proxy.up()
    wait_until_sound(cluster)
    until(lambda: measured(node, "runguard_rows_waiting_bytes") == 0, "nothing to wait any more", 10)


@pytest.mark.parametrize("restarts", [False, True], ids=["a node stays up", "it restarts as well"])
def test_a_node_that_is_down_hears_of_an_erasure_though_redis_was_emptied(cluster, restarts):
    redis = cluster.start_redis()
    asked, down = cluster.start(2)
    wait_until_sound(cluster)
    logged(cluster, use_up(cluster, ["gone-for-good"]))
    known = asked.data / "erasing/nodes"
    until(lambda: known.exists() and len(json.loads(known.read_text())) == 2, "one node to know the other", 20)
    # Its overviews, from which an emptied Redis takes nothing.
    until(lambda: any("insight.db" in file for file in down.files_containing("gone-for-good")), "its file to have the session", 20)
    down.stop()
    redis.kill()
    if restarts:
        asked.stop()
    redis.start()
    if restarts:
        asked.start()
    until(lambda: is_sound(asked), "sound answers")
    erased = asked.client().delete("/v1/sessions/gone-for-good")
    assert erased.status == 202 and erased.json["pending"][0].startswith("node "), erased.json
    assert down.files_containing("gone-for-good")
    down.start()
    until(lambda: asked.client().delete("/v1/sessions/gone-for-good").status in (200, 404), "the node that was down to do its part", 30)
    assert [node.files_containing("gone-for-good") for node in cluster.nodes] == [[], []]
