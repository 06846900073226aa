"""pydantic-ai's agent on its own models of both providers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from driver import MOST_STEPS, Task, search, serve
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

# What differs from run to run by itself.
OF_THE_MOMENT = {"timestamp", "run_id", "conversation_id", "provider_url"}


def model(task: Task) -> Any:
    if task.interface == "messages":
        return AnthropicModel(task.model, provider=AnthropicProvider(api_key="sk-callers-own", **task.address()))
    kind = OpenAIResponsesModel if task.interface == "responses" else OpenAIChatModel
    return kind(task.model, provider=OpenAIProvider(api_key="sk-callers-own", **task.address()))


def steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: steady(inner) for name, inner in value.items() if name not in OF_THE_MOMENT}
    return [steady(inner) for inner in value] if isinstance(value, list) else value


async def run(task: Task) -> Any:
    agent, limits = Agent(model(task), tools=[search]), UsageLimits(request_limit=MOST_STEPS)
    if task.stream:
        async with agent.run_stream(task.question, usage_limits=limits) as result:
            pieces = [piece async for piece in result.stream_text(delta=True)]
            return [pieces, steady(json.loads(result.all_messages_json()))]
    result = await agent.run(task.question, usage_limits=limits)
    return [result.output, steady(json.loads(result.all_messages_json()))]


serve(lambda task: asyncio.run(run(task)))
