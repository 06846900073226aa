"""A clock that jumps takes no log with it."""

import time
from pathlib import Path

import pytest

from catalogue import AGENT_ACTION

FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


@pytest.mark.slow
@pytest.mark.skipif(FAKETIME is None, reason="needs libfaketime: apt-get install faketime")
def test_sixty_days_ahead_for_a_while_erases_nothing(serve, tmp_path):
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    server = serve(virtual_clock=False, environment={
        "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    })
    client = server.client()
    for number in range(50):
        client.allowed(AGENT_ACTION, session_id=f"s{number}", action_name="a")
    clock.write_text("+60d\n")
    deadline = time.monotonic() + 75
    while time.monotonic() < deadline:
        client.post(AGENT_ACTION, {"session_id": "ahead", "action_name": "a"})
        time.sleep(1)
    newest = client.get("/v1/decisions?limit=1").json["decisions"][0]["time"]
    server.kill()
    server.start()
    client.post(AGENT_ACTION, {"session_id": "ahead", "action_name": "b"})
    clock.write_text("+0\n")
    client.post(AGENT_ACTION, {"session_id": "back", "action_name": "a"})
    server.restart()
    assert newest > time.strftime("%Y-%m-%d", time.gmtime(time.time() + 50 * 86_400)), "the clock was not set at all"
    for number in range(50):
        assert client.get(f"/v1/sessions/s{number}").status == 200, f"s{number}"
