"""A Strands agent that loops, stopped by RunGuard.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel and strands-agents[openai].
"""

from __future__ import annotations

import sys
from pathlib import Path

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.types.exceptions import EventLoopException

from runguard import Run, trip_of
from runguard.adapters.strands import RunGuardHooks

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402


@tool
def search(query: str) -> str:
    """Searches the library for a query."""
    print(f"search({query!r})")
    return "nothing found"


def main() -> None:
    with ModelServer(looping()) as server:
        model = OpenAIModel(client_args={"base_url": server.openai_url, "api_key": "unused"}, model_id="gpt-4o")
        agent = Agent(model=model, tools=[search], hooks=[RunGuardHooks(lambda: Run(repeats=4))], callback_handler=None)
        try:
            agent("find rust")
        except EventLoopException as stopped:
            print(f"stopped after {server.model_calls} model calls: {trip_of(stopped)}")


if __name__ == "__main__":
    main()
