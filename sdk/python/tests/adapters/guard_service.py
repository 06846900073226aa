"""A real RunGuard service for the tests that need one. `RUNGUARD_BIN` names the program."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import pytest


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 0.1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nothing listens on port {port}")


@contextmanager
def running_service(folder: Path) -> Iterator[str]:
    """Its URL. Without a program the test is skipped."""
    program = os.environ.get("RUNGUARD_BIN")
    if not program:
        pytest.skip("RUNGUARD_BIN does not name a runguard program")
    port = free_port()
    command = [program, "serve", "--listen", f"127.0.0.1:{port}", "--data", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)
