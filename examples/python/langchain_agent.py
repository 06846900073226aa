"""A LangChain agent that loops, stopped by RunGuard: once with an error, once with a clean end.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel, langchain and langchain-openai.
"""

from __future__ import annotations

import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from runguard import LoopDetectedError, Run
from runguard.adapters.langchain import RunGuardMiddleware

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402


@tool
def search(query: str) -> str:
    """Searches the library for a query."""
    print(f"search({query!r})")
    return "nothing found"


def main() -> None:
    question = {"messages": [{"role": "user", "content": "find rust"}]}
    with ModelServer(looping()) as server:
        model = ChatOpenAI(model="gpt-4o-mini", base_url=server.openai_url, api_key="unused")
        try:
            create_agent(model, [search], middleware=[RunGuardMiddleware(lambda: Run(repeats=4, max_usd=1.00))]).invoke(question)
        except LoopDetectedError as trip:
            print(f"stopped after {server.model_calls} model calls: {trip}")

        server.forget()
        gentle = RunGuardMiddleware(lambda: Run(repeats=4, max_usd=1.00), on_trip="end")
        last = create_agent(model, [search], middleware=[gentle]).invoke(question)["messages"][-1]
        print(f"ended after {server.model_calls} model calls with the message: {last.text}")


if __name__ == "__main__":
    main()
