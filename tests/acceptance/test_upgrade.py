"""The data folder of every release is opened by this one: nothing is lost, and counting goes on where it was.

`KEEP_RELEASE=0.2.0 RUNGUARD_BIN=… pytest test_upgrade.py` keeps the folder that the release's own program made, before it is published."""

from __future__ import annotations

import json
import os
import tarfile
import time
from pathlib import Path

import pytest

from catalogue import AI_TASK_RETRY, CIRCUIT_CHECK, CIRCUIT_RECORD, HANDOFF, KB_CHECK, KB_RECORD

RELEASES = Path(__file__).parent / "releases"
TOLD = "told.json"
# Beside the log and what is derived of it: locks of a process that ran.
LEFT_OUT = (".lock", "-shm")


def story(client) -> None:
    """Something of every kind of state."""
    for second in range(2):
        client.at(second).allowed(AI_TASK_RETRY, session_id="order-1", task_name="classify")
    for second, (source, target) in enumerate([("front", "billing"), ("billing", "front")]):
        client.at(10 + second).allowed(HANDOFF, session_id="order-1", source_bot=source, target_bot=target)
    client.at(20).allowed(KB_CHECK, session_id="order-2", query="is there a student discount")
    client.at(21).recorded(KB_RECORD, session_id="order-2", query="is there a student discount", confidence_score=0.2, retrieved_chunks=1)
    client.at(30).allowed("/guard/budget/record", session_id="order-2", budget="nightly", usd=0.75, max_usd=1)
    for second in range(10):
        client.at(40 + second).recorded(CIRCUIT_RECORD, endpoint_key="payments", session_id=f"caller-{second}", attempt=1, outcome="failure")
    client.at(50).refused(CIRCUIT_CHECK, "circuit_just_tripped", endpoint_key="payments", session_id="caller-1")


def told(client) -> dict:
    """What a service says of it, as far as every version says it."""
    fields = ("decision_id", "time_ms", "tenant", "guard", "kind", "session_id", "subject", "outcome", "reason", "answer", "input")
    rows = client.get("/v1/decisions?kind=all&limit=1000").json["decisions"]
    circuits = client.get("/v1/circuits").json["circuits"]
    return {
        "decisions": [{name: row[name] for name in fields} for row in rows],
        "circuits": [{name: circuit[name] for name in ("endpoint_key", "phase", "recent_failures")} for circuit in circuits],
    }


@pytest.mark.skipif("KEEP_RELEASE" not in os.environ, reason="only when a release is made")
def test_a_release_is_kept(serve):
    server = serve()
    client = server.client()
    story(client)
    time.sleep(3)  # So that the files behind the log have it, too.
    (server.data / TOLD).write_text(json.dumps(told(client.at(60)), indent=1))
    assert server.stop() == 0
    RELEASES.mkdir(exist_ok=True)
    with tarfile.open(RELEASES / f"{os.environ['KEEP_RELEASE']}.tar.xz", "w:xz") as archive:
        for path in sorted(server.data.rglob("*")):
            if path.is_file() and not path.name.endswith(LEFT_OUT):
                archive.add(path, path.relative_to(server.data))


def kept() -> list[Path]:
    return sorted(RELEASES.glob("*.tar.xz"))


def test_there_is_a_release_to_open():
    assert kept(), "RELEASES has no archive: see the check-list of a release in CONTRIBUTING.md"
    assert all(path.stat().st_size < 100_000 for path in kept())


@pytest.mark.parametrize("release", kept(), ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_its_data_folder_is_opened_and_counting_goes_on(serve, release: Path):
    server = serve(start=False)
    server.data.mkdir(parents=True, exist_ok=True)
    with tarfile.open(release) as archive:
        archive.extractall(server.data, filter="data")
    before = json.loads((server.data / TOLD).read_text())
    client = server.start().client().at(60)
    assert told(client) == before
    # Every state is where it was.
    client.refused(AI_TASK_RETRY, "retry_cap_reached", session_id="order-1", task_name="classify")
    client.refused(CIRCUIT_CHECK, "circuit_open", endpoint_key="payments", session_id="caller-2")
    client.refused("/guard/budget/record", "budget_exceeded", session_id="order-2", budget="nightly", usd=0.5, max_usd=1)
    assert [counter["used"] for counter in client.get("/v1/sessions/order-1").json["counters"] if counter["guard"] == "ai_task_retry"] == [2]
    deadline = time.monotonic() + 20
    while (page := client.get("/v1/sessions?prefix=order-").json)["behind_rows"] or page["found"] < 2:
        assert time.monotonic() < deadline, page
        time.sleep(0.02)
    assert {session["session_id"]: session["blocked"] for session in page["sessions"]} == {"order-1": 1, "order-2": 1}
    # And it comes back once more, written by this version.
    assert server.stop() == 0
    again = server.start().client().at(61)
    assert len(told(again)["decisions"]) == len(before["decisions"]) + 3
