"""A pydantic-ai agent that loops, stopped by RunGuard.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel and pydantic-ai-slim[openai].
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from runguard import LoopDetectedError, Run
from runguard.adapters.pydantic_ai import RunGuard

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402


def search(query: str) -> str:
    """Searches the library for a query."""
    print(f"search({query!r})")
    return "nothing found"


async def main() -> None:
    with ModelServer(looping()) as server:
        model = OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(base_url=server.openai_url, api_key="unused"))
        agent = Agent(model, tools=[search])
        guard = RunGuard(Run(repeats=4, max_usd=1.00))
        for attempt in ("first", "second"):
            try:
                await agent.run("find rust", capabilities=[guard])
            except LoopDetectedError as trip:
                print(f"{attempt} try stopped, {server.model_calls} model calls so far: {trip}")


if __name__ == "__main__":
    asyncio.run(main())
