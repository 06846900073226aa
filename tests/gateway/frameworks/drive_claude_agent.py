"""The Claude Agent SDK, with the Claude Code that comes with it: kept out of the home folder, and sent where the task says."""

from __future__ import annotations

import asyncio
from typing import Any

from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, StreamEvent, create_sdk_mcp_server, query, tool
from driver import MOST_STEPS, EndedBadly, Task, search, serve


async def run(task: Task) -> Any:
    @tool("search", "Searches the library for a query.", {"query": str})
    async def search_library(args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": search(args["query"])}]}

    options = ClaudeAgentOptions(
        mcp_servers={"library": create_sdk_mcp_server("library", tools=[search_library])}, allowed_tools=["mcp__library__search"], model=task.model,
        setting_sources=[], cwd=task.folder, max_turns=MOST_STEPS, include_partial_messages=task.stream,
        env={"ANTHROPIC_BASE_URL": task.url, "ANTHROPIC_API_KEY": "sk-callers-own", "CLAUDE_CONFIG_DIR": f"{task.folder}/config",
             "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
    )
    seen: list[Any] = []
    async for message in query(prompt=task.question, options=options):
        if isinstance(message, AssistantMessage):
            seen.append([vars(block) for block in message.content])
        elif isinstance(message, StreamEvent):
            seen.append(message.event)
        elif isinstance(message, ResultMessage):
            if message.is_error:
                raise EndedBadly("ResultMessage.is_error", str(message.result))
            seen.append([message.result, message.num_turns, message.usage, message.total_cost_usd])
    return seen


serve(lambda task: asyncio.run(run(task)))
