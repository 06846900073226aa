"""The OpenAI Agents SDK: its runner and its models."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from driver import MOST_STEPS, Task, search, serve
from openai import AsyncOpenAI


async def run(task: Task) -> Any:
    async with AsyncOpenAI(api_key="sk-callers-own", **task.address()) as client:
        kind = OpenAIResponsesModel if task.interface == "responses" else OpenAIChatCompletionsModel
        agent = Agent(name="researcher", instructions="Find it.", model=kind(model=task.model, openai_client=client), tools=[function_tool(search)])
        if task.stream:
            result: Any = Runner.run_streamed(agent, task.question, max_turns=MOST_STEPS)
            kinds = [event.type async for event in result.stream_events()]
        else:
            result, kinds = await Runner.run(agent, task.question, max_turns=MOST_STEPS), []
        usage = result.context_wrapper.usage
        return {"output": result.final_output, "kinds": kinds, "items": [item.to_input_item() for item in result.new_items],
                "usage": [usage.requests, usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens]}


serve(lambda task: asyncio.run(run(task)))
