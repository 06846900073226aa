"""Starts real RunGuard services. `RUNGUARD_BIN` names their program."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import time
from typing import Iterator

import pytest

from runguard import Client


@contextlib.contextmanager
def service(data: pathlib.Path, **settings: str) -> Iterator[str]:
    """A service of its own, with settings as they stand in the environment."""
    program = os.environ.get("RUNGUARD_BIN")
    if not program:
        pytest.skip("RUNGUARD_BIN does not name a runguard program")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "serve", "--listen", f"127.0.0.1:{port}", "--data", str(data), "--log-level", "error"]
    with subprocess.Popen(command, cwd=data, env={**os.environ, **settings}) as process:
        address = f"http://127.0.0.1:{port}"
        client = Client(address)
        for _ in range(200):
            if client.ready():
                break
            time.sleep(0.05)
        else:
            pytest.fail("the service did not start")
        try:
            yield address
        finally:
            process.terminate()
