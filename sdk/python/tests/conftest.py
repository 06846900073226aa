"""A real RunGuard service for the tests that ask one. `RUNGUARD_BIN` names its program."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import Iterator

import pytest

from runguard import Client


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = os.environ.get("RUNGUARD_BIN")
    if not program:
        pytest.skip("RUNGUARD_BIN does not name a runguard program")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = tmp_path_factory.mktemp("data")
    command = [program, "serve", "--listen", f"127.0.0.1:{port}", "--data", str(data), "--log-level", "error"]
    with subprocess.Popen(command, cwd=data) as service:
        address = f"http://127.0.0.1:{port}"
        client = Client(address)
        for _ in range(200):
            if client.ready():
                break
            time.sleep(0.05)
        else:
            pytest.fail("the service did not start")
        yield address
        service.terminate()
