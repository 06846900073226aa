"""A smolagents agent that loops, stopped by RunGuard.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel and smolagents[openai].
"""

from __future__ import annotations

import sys
from pathlib import Path

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

from runguard import LoopDetectedError, Run
from runguard.adapters.smolagents import guard_agent

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402


@tool
def search(query: str) -> str:
    """Searches the library for a query.

    Args:
        query: What to look for.
    """
    print(f"search({query!r})")
    return "nothing found"


def main() -> None:
    with ModelServer(looping()) as server:
        model = OpenAIModel(model_id="gpt-4o", api_base=server.openai_url, api_key="unused")
        agent = guard_agent(ToolCallingAgent(tools=[search], model=model, verbosity_level=LogLevel.OFF), lambda: Run(repeats=4))
        try:
            agent.run("find rust")
        except LoopDetectedError as trip:
            print(f"stopped after {server.model_calls} model calls: {trip}")


if __name__ == "__main__":
    main()
