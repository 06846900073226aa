"""A CrewAI crew that loops, stopped by RunGuard.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel and crewai.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")

from crewai import LLM, Agent, Crew, Task  # noqa: E402
from crewai.tools import tool  # noqa: E402

from runguard import LoopDetectedError, Run  # noqa: E402
from runguard.adapters.crewai import guarded_crew  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402


@tool("search")
def search(query: str) -> str:
    """Searches the library for a query."""
    print(f"search({query!r})")
    return "nothing found"


def main() -> None:
    with ModelServer(looping()) as server:
        llm = LLM(model="openai/gpt-4o", base_url=server.openai_url, api_key="unused")
        searcher = Agent(role="searcher", goal="find things", backstory="knows the library", tools=[search], llm=llm)
        task = Task(description="find rust", expected_output="an answer", agent=searcher)
        try:
            with guarded_crew(Run(repeats=4)):
                Crew(agents=[searcher], tasks=[task], verbose=False).kickoff()
        except LoopDetectedError as trip:
            print(f"stopped after {server.model_calls} model calls: {trip}")


if __name__ == "__main__":
    main()
