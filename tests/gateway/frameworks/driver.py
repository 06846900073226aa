"""What the drivers have in common. A driver is a small agent on one client, in that client's own environment: it reads tasks, one JSON a line,
plays each to its end as a user of the client would, and writes what the client saw.

Nothing of the client is set but its address and its key: how often it asks again, and when it gives up, is its own. Beside what it saw, the bytes are
kept that came over the wire; they are taken below the client, where its HTTP library reads them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# Frameworks report to their makers unless told not to.
os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", OTEL_SDK_DISABLED="true", LANGSMITH_TRACING="false", LITELLM_LOCAL_MODEL_COST_MAP="True")

# Steps after which a driver gives up: more than any guard needs.
MOST_STEPS = 40


ADDRESSES = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")


@dataclass(frozen=True)
class Task:
    # The address as the client wants it: OpenAI's with /v1, Anthropic's without.
    url: str
    # chat, responses or messages.
    interface: str
    stream: bool
    model: str
    question: str
    # Where a client may write.
    folder: str
    # It is the provider's own address.
    is_direct: bool
    # The address stands in the environment, and nowhere else.
    by_environment: bool

    def address(self, name: str = "base_url") -> dict[str, str]:
        """What a client is given of it."""
        return {} if self.by_environment else {name: self.url}

    def to_environment(self) -> None:
        for variable in ADDRESSES:
            os.environ.pop(variable, None)
        if self.by_environment:
            os.environ["ANTHROPIC_BASE_URL" if self.interface == "messages" else "OPENAI_BASE_URL"] = self.url


class EndedBadly(Exception):
    """Of clients that tell a bad end in another way than by an exception: where they do."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


TOOL_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
searched: list[str] = []


def search(query: str) -> str:
    """Searches the library for a query."""
    searched.append(query)
    return f"no result for {query}"


# -- the wire ---------------------------------------------------------------------------------------

answers: list[dict[str, Any]] = []


def _noted(response: Any) -> list[bytes]:
    parts: list[bytes] = []
    answers.append({"status": response.status_code, "type": response.headers.get("content-type"), "parts": parts})
    return parts


def _listen(library: ModuleType) -> None:
    class Stream(library.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, inner: Any, parts: list[bytes]) -> None:
            self.inner, self.parts = inner, parts

        def __iter__(self) -> Iterator[bytes]:
            for part in self.inner:
                self.parts.append(part)
                yield part

        def close(self) -> None:
            self.inner.close()

    class AsyncStream(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, inner: Any, parts: list[bytes]) -> None:
            self.inner, self.parts = inner, parts

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in self.inner:
                self.parts.append(part)
                yield part

        async def aclose(self) -> None:
            await self.inner.aclose()

    plain, waiting = library.HTTPTransport.handle_request, library.AsyncHTTPTransport.handle_async_request

    def handle(self: Any, request: Any) -> Any:
        response = plain(self, request)
        response.stream = Stream(response.stream, _noted(response))
        return response

    async def handle_waiting(self: Any, request: Any) -> Any:
        response = await waiting(self, request)
        response.stream = AsyncStream(response.stream, _noted(response))
        return response

    library.HTTPTransport.handle_request, library.AsyncHTTPTransport.handle_async_request = handle, handle_waiting


# -- tasks ------------------------------------------------------------------------------------------


def serve(play: Callable[[Task], Any]) -> None:
    """Plays one task after the other until there are no more. What `play` gives must be JSON, or have `model_dump`."""
    for library in ("httpx", "httpx2"):
        if find_spec(library):
            _listen(import_module(library))
    # What clients print is no answer.
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        searched.clear()
        answers.clear()
        seen, error = None, None
        try:
            task = Task(**json.loads(line))
            task.to_environment()
            seen = play(task)
        except Exception as failure:
            error = {"kind": getattr(failure, "kind", type(failure).__name__), "text": str(failure)}
        wire = [{**answer, "parts": None, "body": b"".join(answer["parts"]).decode()} for answer in answers]
        told = {"seen": seen, "searched": searched, "error": error, "wire": wire}
        print(json.dumps(told, default=lambda value: value.model_dump(mode="json")), file=out, flush=True)
