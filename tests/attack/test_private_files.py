"""What users said is for the service's own user, whatever the folder is."""

import os
import stat
import time

from catalogue import AGENT_ACTION
from runguard_process import run_cli


def modes(folder) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode))
            for path in folder.rglob("*") if path.is_file()}


def until_exists(path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} was never made"
        time.sleep(0.02)


def test_every_file_is_private_in_a_folder_that_is_not(serve):
    server = serve(start=False)
    server.data.mkdir(mode=0o755)
    old = os.umask(0)
    try:
        server.start()
        server.client().get("/v1/overview")
        until_exists(server.data / "insight.db-wal")
        found = modes(server.data)
        assert {"runguard.db", "runguard.db-wal", "index.db", "insight.db", "lock"} <= found.keys()
        assert set(found.values()) == {"0o600"}, found
        assert server.stop() == 0
        for path in server.data.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        server.start()
        server.client().post(AGENT_ACTION, {"session_id": "s", "action_name": "a"})
        assert run_cli("key", "create", "--tenant", "acme", "--role", "admin", "--data", server.data).returncode == 0
    finally:
        os.umask(old)
    found = modes(server.data)
    assert "keys.json" in found and set(found.values()) == {"0o600"}, found


def test_a_folder_that_others_can_read_is_told_of(serve):
    server = serve(start=False)
    server.data.mkdir()
    server.data.chmod(0o755)
    server.start()
    assert "0755" in server.log() and f"chmod 700 {server.data}" in server.log()
    assert server.stop() == 0
    server.data.chmod(0o700)
    server.log_file.write_text("")
    server.start()
    assert "chmod" not in server.log()
