"""What every adapter test starts from: a model that loops, a model that does its work, and a tool that counts its runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from model_server import ModelServer, healthy, looping  # noqa: E402

# Frameworks report to their makers unless told not to; tests talk to nobody but the local server.
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
os.environ.setdefault("LANGSMITH_TRACING", "false")
os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")


@pytest.fixture
def looping_model() -> Iterator[ModelServer]:
    """Asks for search(query="rust") for ever."""
    with ModelServer(looping()) as server:
        yield server


@pytest.fixture
def healthy_model() -> Iterator[ModelServer]:
    """Asks for five different searches, then gives the final answer."""
    with ModelServer(healthy()) as server:
        yield server


class Search:
    """The one tool of the tests. Give `search.tool` (or a framework's wrapping of it) to the agent; `search.runs` has every query."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    @property
    def tool(self) -> Callable[[str], str]:
        def search(query: str) -> str:
            """Searches the library for a query."""
            self.runs.append(query)
            return f"no result for {query}"

        return search


@pytest.fixture
def search() -> Search:
    return Search()
