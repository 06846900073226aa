"""What cannot work is said at the start, with what to do, and without passwords. What is only away is waited for."""

from __future__ import annotations


import pytest

from runguard_process import free_port, run_cli
from servers import Postgres, replica_of, until

SECRET = "s3cret-word"


def refused(cluster, **options) -> str:
    """The node ends with code 1; what it said."""
    node = cluster.node(start=False, **options)
    node.launch()
    assert node.wait() == 1, node.log()
    assert SECRET not in node.log() and Postgres.PASSWORD not in node.log(), "a password is shown"
    return node.log()


def waits(cluster, **options) -> str:
    """The node neither ends nor answers; what it said."""
    node = cluster.node(start=False, **options)
    node.launch()
    until(lambda: "has never been in its cluster" in node.log(), "the node to say that it waits")
    assert node.process.poll() is None, node.log()
    assert SECRET not in node.log() and Postgres.PASSWORD not in node.log(), "a password is shown"
    return node.log()


def test_a_first_start_waits_for_one_of_the_databases(cluster):
    port = free_port()
    said = waits(cluster, state=f"redis://:{SECRET}@127.0.0.1:{port}", log=f"postgres://u:{SECRET}@127.0.0.1:{port}/db")
    assert f"127.0.0.1:{port}" in said and "can be reached" in said and "Is it running" in said, said


def test_wrong_password_of_redis(cluster):
    redis = cluster.start_redis("--requirepass", "right", login=("--pass", "right"))
    said = refused(cluster, state=f"redis://:{SECRET}@127.0.0.1:{redis.port}")
    assert "does not take the login" in said and "Check user and password" in said, said
    said = refused(cluster, state=redis.url)
    assert "does not take the login" in said or "password" in said, said


def test_wrong_password_of_postgres(cluster):
    said = refused(cluster, log=f"postgres://postgres:{SECRET}@127.0.0.1:{cluster.postgres.port}/postgres")
    assert "28P01" in said and "check user and password" in said, said


def test_a_database_that_does_not_exist(cluster):
    said = refused(cluster, log=f"postgres://postgres:{Postgres.PASSWORD}@127.0.0.1:{cluster.postgres.port}/nowhere")
    assert "create the database" in said, said


def test_a_user_with_too_few_rights(cluster):
    redis = cluster.start_redis("--user", "poor", "on", f">{SECRET}", "~rg:*", "-@all", "+get", "+info", "+role")
    said = refused(cluster, state=f"redis://poor:{SECRET}@127.0.0.1:{redis.port}")
    assert "does not allow what RunGuard needs" in said, said


def test_a_replica_is_no_place_to_write(cluster):
    primary = cluster.start_redis()
    replica = cluster.keep(replica_of(primary, cluster.folder / "replica"))
    assert "is a replica" in refused(cluster, state=replica.url)


@pytest.mark.parametrize(
    "state, log, says",
    [
        ("http://localhost", None, "redis://"),
        ("redis://localhost:x", None, "address of Redis"),
        (f"redis://u:{SECRET}@host:notaport", None, "address of Redis"),
        ("redis://127.0.0.1:1", "mysql://localhost", "postgres://"),
        ("redis://127.0.0.1:1", f"postgres://u:{SECRET}@x@host/db", "postgres://"),
    ],
)
def test_addresses_that_are_none(cluster, state, log, says):
    node = cluster.node(state=state, log=log, start=False)
    node.launch()
    assert node.wait() in (1, 2), node.log()
    assert says in node.log() and SECRET not in node.log(), node.log()


def test_a_log_without_a_state_is_refused(cluster, tmp_path):
    done = run_cli("serve", "--log", cluster.postgres.database().url, "--listen", "127.0.0.1:0", "--data", tmp_path / "data", timeout=20)
    assert done.returncode == 2 and "--state" in done.stdout + done.stderr, done


def test_passwords_are_shown_nowhere(cluster, tmp_path):
    redis = cluster.start_redis("--requirepass", SECRET, login=("--pass", SECRET))
    state = f"redis://default:{SECRET}@127.0.0.1:{redis.port}"
    cluster.database = cluster.postgres.database()
    config = f"[store]\nstate = \"{state}\"\n[log]\ndatabase = \"{cluster.database.url}\"\n"
    (node,) = cluster.start(1, state=state, config=config, arguments=("--log-level", "debug"))
    flow = node.client()
    flow.allowed("/guard/ai-task-retry", session_id="s", task_name="classify")
    settings = flow.get("/v1/settings")
    assert settings.status == 200
    environment = {"RUNGUARD_STATE": state, "RUNGUARD_LOG_DATABASE": cluster.database.url}
    shown = {
        "GET /v1/settings": settings.text,
        "GET /metrics": flow.get("/metrics").text,
        "GET /readyz": flow.get("/readyz").text,
        "GET /v1/overview": flow.get("/v1/overview").text,
        "settings show": "".join(told(run_cli("settings", "show", "--config", node.config_file, env=environment))),
        "settings check": "".join(told(run_cli("settings", "check", "--config", node.config_file, env=environment))),
        "serve --help": "".join(told(run_cli("serve", "--help", env=environment))),
        "log": node.log(),
    }
    redis.kill()
    until(lambda: flow.post("/guard/ai-task-retry", {"session_id": "t", "task_name": "x"}).json.get("degraded"), "Redis to be missed")
    cluster.postgres.stop()
    try:
        shown["problem"] = flow.get("/v1/decisions").text
        shown["log while away"] = node.log()
    finally:
        cluster.postgres.start()
    leaks = [where for where, text in shown.items() if SECRET in text or Postgres.PASSWORD in text]
    assert not leaks, f"a password is shown by {leaks}: {shown[leaks[0]]}"
    for where in ("GET /v1/settings", "settings show"):
        assert f"127.0.0.1:{redis.port}" in shown[where], f"{where} says where the state is: {shown[where]}"


def told(done) -> tuple[str, str]:
    return done.stdout, done.stderr


def test_settings_that_cannot_be(cluster):
    for line, says in [("partitions = 0", "partitions"), ("prefix = \"a b\"", "prefix"), ("patience_ms = 1", "patience_ms"),
                       ("stream_limit = 1", "stream_limit"), ("flow_when_away = \"hope\"", "flow_when_away")]:
        node = cluster.node(state="redis://127.0.0.1:1", log=None, config=f"[store]\n{line}\n", start=False)
        node.launch()
        assert node.wait() == 2, node.log()
        assert says in node.log() and ":2" in node.log(), node.log()
