"""docs/backup.md as it is written: what a copy must have, and what comes back from it."""

import contextlib
import shutil
import sqlite3

import pytest

from catalogue import AGENT_ACTION, AI_TASK_RETRY, CIRCUIT_CHECK
from runguard_process import Server
from test_keys import create_key
from test_retention import DAY, until_gone

ASKED = {"session_id": "kept", "task_name": "classify"}


def hot_copy(server: Server, target, key: str | None = None) -> None:
    """What `sqlite3 runguard.db ".backup …"` does, while the service runs; and the keys."""
    target.mkdir(mode=0o700)
    assert server.client(key=key).get("/v1/decisions?limit=1").status == 200, "whoever reads finds all that was answered"
    with contextlib.closing(sqlite3.connect(server.data / "runguard.db")) as log, contextlib.closing(sqlite3.connect(target / "runguard.db")) as copy:
        log.backup(copy)
    if (server.data / "keys.json").exists():
        shutil.copy(server.data / "keys.json", target)


@pytest.fixture
def restored(serve, tmp_path):
    """A service on a copy in a folder of its own."""
    def start(copy):
        data = tmp_path / "restored"
        shutil.copytree(copy, data)
        return serve(start=False, data=data).start()
    return start


def test_a_hot_copy_of_the_log_and_the_keys_is_all_that_is_needed(serve, restored, tmp_path):
    server = serve(start=False)
    key = create_key(server.data, "acme", "admin")
    flow = server.start().client(key=key)
    for _ in range(2):
        flow.allowed(AI_TASK_RETRY, **ASKED)
    flow.allowed(AGENT_ACTION, session_id="person", action_name="a")
    assert flow.post("/v1/circuits/payments/open").status == 200
    hot_copy(server, tmp_path / "copy", key)
    assert flow.delete("/v1/sessions/person").status == 200
    flow.allowed(AGENT_ACTION, session_id="after", action_name="a")
    other = restored(tmp_path / "copy")
    again = other.client(key=key)
    again.refused(AI_TASK_RETRY, "retry_cap_reached", **ASKED)
    again.refused(CIRCUIT_CHECK, "circuit_open", endpoint_key="payments", session_id="s")
    assert len(again.get("/v1/decisions?session=kept").json["decisions"]) == 3
    assert again.get("/v1/sessions/after").status == 404, "what was decided after the copy is not in it"
    assert again.get("/v1/sessions/person").status == 200, "who was erased after the copy comes back: erase again"
    assert other.client().get("/v1/decisions").status == 401


def test_a_cold_copy_of_the_folder_has_everything(serve, restored, tmp_path):
    server = serve()
    for _ in range(2):
        server.client().allowed(AI_TASK_RETRY, **ASKED)
    assert server.stop() == 0
    shutil.copytree(server.data, tmp_path / "copy")
    restored(tmp_path / "copy").client().refused(AI_TASK_RETRY, "retry_cap_reached", **ASKED)


def test_without_the_keys_a_copy_is_open_to_its_machine(serve, restored, tmp_path):
    server = serve(start=False)
    key = create_key(server.data, "acme", "admin")
    server.start().client(key=key).allowed(AGENT_ACTION, session_id="s", action_name="a")
    hot_copy(server, tmp_path / "copy", key)
    (tmp_path / "copy" / "keys.json").unlink()
    assert restored(tmp_path / "copy").client().get("/v1/decisions").status == 200


def test_what_is_older_than_the_log_is_in_a_cold_copy_only(serve, restored, tmp_path):
    server = serve()
    flow = server.client()
    flow.at(0).allowed(AGENT_ACTION, session_id="old", action_name="a")
    assert flow.post("/v1/circuits/payments/open").status == 200
    server.restart()
    until_gone(flow, 40, "old")
    hot_copy(server, tmp_path / "hot")
    assert server.stop() == 0
    shutil.copytree(server.data, tmp_path / "cold")
    cold = restored(tmp_path / "cold")
    cold.client().at(40 * DAY).refused(CIRCUIT_CHECK, "circuit_open", endpoint_key="payments", session_id="s")
    assert cold.stop() == 0
    shutil.rmtree(tmp_path / "restored")
    restored(tmp_path / "hot").client().at(40 * DAY).allowed(CIRCUIT_CHECK, endpoint_key="payments", session_id="s")
