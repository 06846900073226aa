"""An OpenAI Agents SDK agent that loops, stopped by RunGuard.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel and openai-agents.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from runguard import LoopDetectedError, Run
from runguard.adapters.openai_agents import RunGuardHooks

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402


@function_tool
def search(query: str) -> str:
    """Searches the library for a query."""
    print(f"search({query!r})")
    return "nothing found"


async def main() -> None:
    set_tracing_disabled(True)
    with ModelServer(looping()) as server:
        model = OpenAIResponsesModel(model="gpt-4o-mini", openai_client=AsyncOpenAI(base_url=server.openai_url, api_key="unused"))
        agent = Agent(name="librarian", instructions="Find what is asked for.", model=model, tools=[search])
        hooks = RunGuardHooks(Run(repeats=4, max_usd=1.00))
        for attempt in ("first", "second"):
            try:
                await Runner.run(agent, "find rust", hooks=hooks)
            except LoopDetectedError as trip:
                print(f"{attempt} try stopped, {server.model_calls} model calls so far: {trip}")


if __name__ == "__main__":
    asyncio.run(main())
