"""Bad wires between nodes and Redis, Redis Cluster, TLS and users with few rights."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from servers import Certificates, RedisCluster, until

DOCS = Path(__file__).parents[2] / "docs/cluster.md"
RIGHTS = next(line for line in DOCS.read_text().splitlines() if "ACL SETUSER" in line).partition(">PASSWORD ")[2].split()


def test_a_slow_redis(cluster):
    """50 to 300 ms for every answer: slow, but right, and not away."""
    proxy = cluster.proxy(cluster.start_redis().port)
    cluster.start(3, state=proxy.url, config="[store]\npatience_ms = 2000\n")
    with cluster.load(threads=12) as load:
        load.wait_for(50)
        proxy.delay = (0.05, 0.3)
        load.wait_for(70, 60)
        proxy.delay = None
        load.wait_for(50)
    degraded = [answer for answer in load.answers if answer.degraded]
    assert not degraded, f"{len(degraded)} of {len(load.answers)}: {degraded[:2]}"
    load.check(cluster.database)


def test_a_redis_slower_than_patience(cluster):
    """Half the answers come too late: what is in doubt is answered from memory, and nothing counts twice for good."""
    proxy = cluster.proxy(cluster.start_redis().port)
    cluster.start(2, state=proxy.url, config="[store]\npatience_ms = 100\n")
    with cluster.load() as load:
        load.wait_for(100)
        proxy.delay = (0.02, 0.2)
        load.wait_for(300, 60)
        proxy.delay = None
        load.wait_until_sound()
        load.wait_for(100)
    assert any(answer.degraded for answer in load.answers), "nothing came too late"
    load.check(cluster.database)


@pytest.mark.slow
def test_one_slow_wire_is_not_the_others_trouble(cluster):
    redis = cluster.start_redis()
    proxy = cluster.proxy(redis.port)
    config = "[store]\npatience_ms = 2000\n"
    cluster.node(state=proxy.url, config=config)
    cluster.start(2, state=redis.url, config=config)
    proxy.delay = (0.05, 0.3)
    with cluster.load(threads=12) as load:
        load.wait_for(200, 60)
    load.check(cluster.database)
    assert not any(answer.degraded for answer in load.answers)


@pytest.mark.parametrize("cuts", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_cuts_in_mid_request(cluster, cuts):
    """Every connection ends at once, whatever it carried; and answers that are lost after Redis did what was asked."""
    proxies = [cluster.proxy(cluster.redis.port if cluster.redis else cluster.start_redis().port) for _ in range(3)]
    for proxy in proxies:
        cluster.node(state=proxy.url)
    with cluster.load() as load:
        for cut in range(cuts):
            load.wait_for(30)
            proxy = proxies[cut % 3]
            if cut % 2 == 0:
                proxy.cut_next_answers(2)
            else:
                proxy.cut()
        load.wait_until_sound()
        load.wait_for(100)
    load.check(cluster.database)


def test_one_node_is_cut_off(cluster):
    """It goes on alone and marked; the others do not notice. What it decided comes home when the wire is back."""
    redis = cluster.start_redis()
    proxy = cluster.proxy(redis.port)
    cluster.node(state=proxy.url)
    cluster.start(2)
    with cluster.load() as load:
        load.wait_for(150)
        proxy.down()
        gone = time.monotonic()
        time.sleep(3)
        back = time.monotonic()
        proxy.up()
        load.wait_until_sound()
        load.wait_for(150)
    during = load.between(gone + 1.5, back)
    assert all(answer.degraded == (answer.node == 0) for answer in during)
    assert any(answer.node == 0 for answer in during) and any(answer.node == 1 for answer in during)
    load.check(cluster.database)


@pytest.mark.parametrize("restarts", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_redis_cluster_with_a_rolling_restart(cluster, restarts):
    servers = cluster.keep(RedisCluster(cluster.folder / "redis-cluster"))
    cluster.start(3, state=servers.url)
    with cluster.load() as load:
        load.wait_for(300)
        for restart in range(restarts):
            server = servers.servers[restart % 3]
            server.kill()
            load.wait_for(50)
            server.start()
            servers.wait_until_whole()
            load.wait_until_sound(20)
        load.wait_for(200)
    load.check(cluster.database)


def test_redis_cluster_loses_one_server_for_good(cluster):
    """One of three comes back empty: its part is built again from the log."""
    servers = cluster.keep(RedisCluster(cluster.folder / "redis-cluster"))
    cluster.start(2, state=servers.url)
    with cluster.load() as load:
        load.wait_for(400)
        servers.servers[1].cli("FLUSHALL")
        load.wait_until_sound(20)
        load.wait_for(300)
    load.check(cluster.database)


def test_tls_and_a_user_with_few_rights(cluster):
    certificates = Certificates(cluster.folder / "certificates")
    redis = cluster.start_redis("--user", "default", "off", "--user", "admin", "on", ">admin-word", "~*", "&*", "+@all",
                                "--user", "runguard", "on", ">r:g/w@rd", *RIGHTS, login=("--user", "admin", "--pass", "admin-word"),
                                tls=certificates)
    url = f"rediss://runguard:r%3Ag%2Fw%40rd@localhost:{redis.port}"
    cluster.start(2, state=url, config=f"[store]\nca_file = \"{certificates.authority}\"\n")
    with cluster.load() as load:
        load.wait_for(200)
        # It logs in again, with TLS.
        redis.kill()
        time.sleep(0.5)
        redis.start()
        load.wait_until_sound(15)
        load.wait_for(100)
    load.check(cluster.database)
    for node in cluster.nodes:
        assert "NOPERM" not in node.log() and "r:g/w@rd" not in node.log() and "r%3Ag" not in node.log()


def test_tls_that_is_not_trusted(cluster):
    redis = cluster.start_redis(tls=Certificates(cluster.folder / "certificates"))
    node = cluster.node(state=f"rediss://localhost:{redis.port}", start=False)
    node.launch()
    assert node.wait() == 1
    assert f"no TLS with Redis at localhost:{redis.port}" in node.log() and "ca_file" in node.log(), node.log()
    plain = cluster.node(state=f"redis://localhost:{redis.port}", start=False)
    plain.launch()
    # It cannot be told from a database that is away: the node says what may be wrong, and waits.
    until(lambda: "rediss://" in plain.log(), "what may be wrong")
    plain.kill()


def test_a_password_that_is_changed_under_way(cluster):
    """The connection stays; when it breaks the node says what is wrong and goes on from memory, until the password is back."""
    redis = cluster.start_redis("--requirepass", "old-word", login=("--pass", "old-word"))
    url = f"redis://:old-word@127.0.0.1:{redis.port}"
    cluster.start(1, state=url)
    with cluster.load() as load:
        load.wait_for(100)
        redis.cli("CONFIG", "SET", "requirepass", "new-word")
        redis.login = ("--pass", "new-word")
        redis.cli("CLIENT", "KILL", "TYPE", "normal")
        until(lambda: load.answers[-1].degraded, "answers from memory")
        until(lambda: "does not take the login" in cluster.nodes[0].log(), "the reason in the log")
        redis.cli("CONFIG", "SET", "requirepass", "old-word")
        load.wait_until_sound()
    load.check(cluster.database)
    assert "old-word" not in cluster.nodes[0].log()
