"""Fixtures: servers that start for a test, end with it, and show their log when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runguard_http import Client
from runguard_process import Server

__all__ = ["flow", "pytest_runtest_makereport", "serve", "server", "shared_server"]

SERVERS = pytest.StashKey[list]()


class _Fleet:
    """Every server a test (or a module) started."""

    def __init__(self, root: Path):
        self.root = root
        self.servers: list[Server] = []

    def serve(self, config: str | None = None, *, start: bool = True, **options) -> Server:
        folder = self.root / f"server-{len(self.servers)}"
        folder.mkdir()
        server = Server(folder, config=config, **options)
        self.servers.append(server)
        return server.start() if start else server

    def end(self) -> None:
        for server in self.servers:
            if server.process and server.process.poll() is None:
                server.stop()


@pytest.fixture
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """`serve(config="…", virtual_clock=True)` starts a server on an empty folder of its own."""
    fleet = _Fleet(tmp_path)
    request.node.stash[SERVERS] = fleet.servers
    yield fleet.serve
    fleet.end()


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    """A fresh server with all defaults, on the virtual clock."""
    return serve()


@pytest.fixture
def flow(server: Server) -> Client:
    """A conversational flow that talks to a fresh server, at second zero."""
    return server.client()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of a module that do not touch each other's sessions."""
    fleet = _Fleet(tmp_path_factory.mktemp("shared"))
    yield fleet.serve()
    fleet.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.failed:
        servers = list(item.stash.get(SERVERS, []))
        if shared := getattr(item, "funcargs", {}).get("shared_server"):
            servers.append(shared)
        for server in servers:
            report.sections.append((f"log of {server.folder.name}", server.log()[-8000:]))
    return report
