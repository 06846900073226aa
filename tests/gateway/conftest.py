"""The gateway as a process, between real clients and a provider that says what it heard."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "acceptance"))

from provider import Provider  # noqa: E402
from runguard_process import Server  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--frameworks", action="store_true", help="every client of test_frameworks.py, not only those that install in seconds")


class OneEnvironmentAtATime(LoadScopeScheduling):
    """Tests of test_frameworks.py that share an environment run in one process, in their order: it is filled once, its drivers are started once, and what
    they saw is known at the end. Each other test goes wherever there is time."""

    def _split_scope(self, nodeid: str) -> str:
        found = re.search(r"test_frameworks\.py::\w+\[([\w.-]+)/", nodeid)
        return found[1] if found else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneEnvironmentAtATime:
    return OneEnvironmentAtATime(config, log)


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.stop()


@pytest.fixture
def gateway(tmp_path: Path, provider: Provider) -> Iterator[Callable[..., Server]]:
    """Starts a gateway in front of the provider, with more arguments or settings."""
    started: list[Server] = []

    def start(*arguments: str, config: str | None = None, environment: dict[str, str] | None = None) -> Server:
        upstream = ("--openai", f"{provider.url}/v1", "--anthropic", provider.url, "--bedrock", provider.url)
        server = Server(tmp_path, config=config, virtual_clock=False, verb="gateway", arguments=(*upstream, *arguments), environment=environment)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()
