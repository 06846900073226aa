"""The gateway as a process, between real clients and a provider that says what it heard."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "acceptance"))

from provider import Provider  # noqa: E402
from runguard_process import Server  # noqa: E402


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
