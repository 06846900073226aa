"""What is let go and what is not: old decisions leave the disk, idle sessions leave memory, what counts stays."""

import threading
import time

import pytest

from catalogue import AGENT_ACTION, AI_TASK_RETRY, CIRCUIT_CHECK, HANDOFF

DAY = 86_400
PASS_SECONDS = 90  # how long the background pass may take to come round


def tick(flow, day: float) -> list[str]:
    """Some traffic on that day; gives the sessions that are in the log."""
    flow.at(day * DAY).post(HANDOFF, {"session_id": "today", "source_bot": "a", "target_bot": "b"})
    return [item["session_id"] for item in flow.get("/v1/decisions?limit=1000&kind=all").json["decisions"]]


def until_gone(flow, day: float, session: str) -> None:
    deadline = time.monotonic() + PASS_SECONDS
    while session in tick(flow, day):
        assert time.monotonic() < deadline, f"{session!r} is still in the log {PASS_SECONDS} s into day {day}"
        time.sleep(0.1)


@pytest.mark.parametrize("config, days", [(None, 30), ("[log]\nretention_days = 2\n", 2)], ids=["default", "two days"])
def test_old_decisions_leave(serve, config, days):
    server = serve(config=config)
    flow = server.client()
    flow.at(0).refused(AI_TASK_RETRY, "input_missing_prerequisite_signal", session_id="old", task_name="extract_date",
                       user_message="zanzibar")
    server.restart()  # days are between these two, not one batch of the journal
    flow.at(0.9 * days * DAY).allowed(AGENT_ACTION, session_id="recent", action_name="a")
    server.restart()
    assert "old" in tick(flow, 0.9 * days)
    server.restart()
    until_gone(flow, days + 1.5, "old")
    assert "recent" in tick(flow, days + 1.5)
    assert flow.get("/v1/sessions/old").status == 404
    assert server.stop() == 0
    assert server.files_containing("zanzibar") == []


def test_a_window_longer_than_the_retention_still_counts(serve):
    """An event counts while now − t < window, whatever the log keeps."""
    server = serve(config='[log]\nretention_days = 1\n[guards.ai_task_retry]\nwindow = "10d"\n')
    flow = server.client()
    for _ in range(2):
        flow.at(0).allowed(AI_TASK_RETRY, session_id="old", task_name="classify")
    server.restart()
    until_gone(flow, 5, "old")
    flow.at(5 * DAY).refused(AI_TASK_RETRY, "retry_cap_reached", session_id="old", task_name="classify")
    flow.at(10 * DAY).allowed(AI_TASK_RETRY, session_id="old", task_name="classify")


def test_a_forced_circuit_outlives_the_retention(serve):
    """Open until an operator resets it: not until its last change is 30 days old."""
    server = serve()
    flow = server.client()
    flow.at(0).allowed(AGENT_ACTION, session_id="old", action_name="a")
    assert flow.post("/v1/circuits/payments/open").status == 200
    server.restart()
    until_gone(flow, 40, "old")
    flow.at(40 * DAY).refused(CIRCUIT_CHECK, "circuit_open", endpoint_key="payments", session_id="s")
    assert [item["forced"] for item in flow.get("/v1/circuits").json["circuits"]] == ["open"]


def test_sessions_that_left_memory_come_back_as_they_were(serve):
    """More than 16 MiB of sessions in 16 MiB of memory: 1,200 sessions with 20 actions of 1 KiB each."""
    server = serve(config="[store]\nmemory_mb = 16\n", virtual_clock=False)
    sessions, callers = 1200, 8

    def names(session):
        return ["😀" * 200 + f" {session} {number}" for number in range(20)]

    def fill(caller):
        client = server.client(keep_alive=True)
        for session in range(caller, sessions, callers):
            for name in names(session):
                client.allowed(AGENT_ACTION, session_id=f"s{session}", action_name=name)

    threads = [threading.Thread(target=fill, args=(caller,)) for caller in range(callers)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    client = server.client(keep_alive=True)
    for session in range(0, sessions, 7):
        refused = client.refused(AGENT_ACTION, "total_action_ceiling", session_id=f"s{session}", action_name="one more")
        assert refused["action_distribution"] == {name: 1 for name in names(session)}
