"""A Claude agent that loops, stopped by RunGuard.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel and claude-agent-sdk, which brings its own CLI.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, tool

from runguard import LoopDetectedError, Run
from runguard.adapters.claude_agent import guarded_query

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402


@tool("search", "Searches the library for a query.", {"query": str})
async def search(args: dict[str, Any]) -> dict[str, Any]:
    print(f"search({args['query']!r})")
    return {"content": [{"type": "text", "text": "nothing found"}]}


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ModelServer(looping("mcp__library__search"), toolless_text="title") as server:
        options = ClaudeAgentOptions(
            mcp_servers={"library": create_sdk_mcp_server("library", tools=[search])},
            allowed_tools=["mcp__library__search"],
            setting_sources=[],
            cwd=folder,
            # Sends the CLI to the local model and keeps it out of the home directory.
            env={"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "unused", "CLAUDE_CONFIG_DIR": f"{folder}/config"},
        )
        try:
            async for _message in guarded_query(Run(repeats=4), prompt="find rust", options=options):
                pass
        except LoopDetectedError as trip:
            print(f"stopped after {server.model_calls} model calls: {trip}")


if __name__ == "__main__":
    asyncio.run(main())
