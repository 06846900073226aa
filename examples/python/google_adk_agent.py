"""A Google ADK agent that loops, stopped by RunGuard.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel, google-adk, litellm and mcp.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from google.adk.agents import Agent  # noqa: E402
from google.adk.apps import App  # noqa: E402
from google.adk.models.lite_llm import LiteLlm  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.genai import types  # noqa: E402

from runguard import Run  # noqa: E402
from runguard.adapters.google_adk import RunGuardPlugin  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402


def search(query: str) -> str:
    """Searches the library for a query."""
    print(f"search({query!r})")
    return "nothing found"


async def main() -> None:
    with ModelServer(looping()) as server:
        model = LiteLlm(model="openai/gpt-4o", api_base=server.openai_url, api_key="unused")
        agent = Agent(name="searcher", model=model, tools=[search])
        # With on_trip="end" the invocation ends normally and the guard's message is the answer; the default raises.
        plugin = RunGuardPlugin(lambda: Run(repeats=4), on_trip="end")
        runner = InMemoryRunner(app=App(name="library", root_agent=agent, plugins=[plugin]))
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id="user")
        question = types.Content(role="user", parts=[types.Part(text="find rust")])
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=question):
            for part in (event.content.parts or []) if event.content else []:
                if part.text:
                    print(f"ended after {server.model_calls} model calls: {part.text}")


if __name__ == "__main__":
    asyncio.run(main())
