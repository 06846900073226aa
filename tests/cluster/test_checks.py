"""The checks of this suite can fail: what they are for is done to them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import runguard_process


def test_nodes_that_share_nothing_pass_the_caps(cluster):
    cluster.start_redis()
    for prefix in ("one", "two"):
        cluster.node(log=None, config=f'[store]\nprefix = "{prefix}"\n')
    with cluster.load() as load:
        load.wait_for(150)
    with pytest.raises(AssertionError, match="caps passed"):
        load.check(None)


def test_a_row_too_few_or_too_many_is_found(cluster):
    cluster.start(1)
    with cluster.load() as load:
        load.wait_for(50)
    load.check(cluster.database)
    id = load.answers[7].id
    cluster.database.sql(f"CREATE TABLE again AS SELECT * FROM runguard_log WHERE id = '{id}'")
    cluster.database.sql("UPDATE again SET at = at + 1; INSERT INTO runguard_log SELECT * FROM again")
    with pytest.raises(AssertionError, match="in the log twice"):
        load.check(cluster.database)
    cluster.database.sql(f"DELETE FROM runguard_log WHERE id = '{id}'")
    with pytest.raises(AssertionError, match="1 of .* are not in the log"):
        load.check_log(cluster.database, seconds=1)


def test_a_port_is_given_to_one_suite_only():
    """Suites run beside each other, and whoever is given a port listens on it only a moment later."""
    port = runguard_process.free_port()
    other = ("import itertools, runguard_process as other\n"
             f"other.NEXT_PORT = itertools.count({port - runguard_process.PORTS[0]})\n"
             "print(other.free_port())")
    done = subprocess.run([sys.executable, "-c", other], cwd=runguard_process.REPOSITORY / "tests/acceptance", capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) > port, done
