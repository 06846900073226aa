"""Fixtures: Redis, Postgres and nodes that start for a test, end with it, and show their logs when it fails."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from load import Copy, Load
from runguard_process import Server
from servers import Database, Postgres, Proxy, Redis

SERVERS = pytest.StashKey[list]()


class Cluster:
    """All that a test started. Nodes share `redis` (or another address) and `database`."""

    def __init__(self, folder: Path, postgres: Postgres):
        self.folder = folder
        self.postgres = postgres
        self.nodes: list[Server] = []
        self.others: list = []
        self.redis: Redis | None = None
        self.database: Database | None = None

    def start_redis(self, *options: str, **more) -> Redis:
        redis = Redis(self.folder / f"redis-{len(self.others)}", *options, **more).start()
        self.others.append(redis)
        self.redis = self.redis or redis
        return redis

    def keep(self, part):
        """Ended with the test."""
        self.others.append(part)
        return part

    def proxy(self, target: int) -> Proxy:
        return self.keep(Proxy(target))

    def node(self, *, state: str | None = None, log: str | None = "shared", config: str | None = None, start: bool = True,
             environment: dict[str, str] | None = None, arguments: tuple[str, ...] = (), data: Path | None = None) -> Server:
        if state is None:
            state = (self.redis or self.start_redis()).url
        if log == "shared":
            self.database = self.database or self.postgres.start().database()
            log = self.database.url
        folder = self.folder / f"node-{len(self.nodes)}"
        folder.mkdir()
        databases = ("--state", state) if log is None else ("--state", state, "--log", log)
        node = Server(folder, config=config, virtual_clock=False, environment=environment, data=data, arguments=(*databases, *arguments))
        self.nodes.append(node)
        return node.start() if start else node

    def start(self, count: int, **options) -> list[Server]:
        """So many nodes, all ready."""
        return [self.node(**options) for _ in range(count)]

    @property
    def logs(self) -> list[Database | Copy]:
        """The one in Postgres, or every node's own."""
        return [self.database] if self.database else [Copy(node) for node in self.nodes]

    def load(self, **options) -> Load:
        return Load(self.nodes, **options)

    def end(self) -> None:
        for node in self.nodes:
            if node.process and node.process.poll() is None:
                node.kill()
        for part in self.others:
            part.kill() if hasattr(part, "kill") else part.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = Postgres(folder).start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgres) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, postgres)
    request.node.stash[SERVERS] = cluster.nodes
    yield cluster
    cluster.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.failed:
        for node in item.stash.get(SERVERS, []):
            report.sections.append((f"log of {node.folder.name}", node.log()[-6000:]))
    return report
