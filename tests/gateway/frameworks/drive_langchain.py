"""An agent of LangChain's, which is a graph of LangGraph's, on its models of both providers."""

from __future__ import annotations

from typing import Any

from driver import MOST_STEPS, Task, search, serve
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


def model(task: Task) -> Any:
    if task.interface == "messages":
        return ChatAnthropic(model=task.model, api_key="sk-callers-own", max_tokens=1000, **task.address())
    return ChatOpenAI(model=task.model, api_key="sk-callers-own", use_responses_api=task.interface == "responses", **task.address())


def play(task: Task) -> Any:
    agent = create_agent(model(task), [tool(search)])
    question, config = {"messages": [{"role": "user", "content": task.question}]}, {"recursion_limit": 2 * MOST_STEPS}
    if not task.stream:
        return [plain(message) for message in agent.invoke(question, config)["messages"]]
    return [plain(message) for message, _ in agent.stream(question, config, stream_mode="messages")]


def plain(message: Any) -> dict[str, Any]:
    kept = ("type", "content", "tool_calls", "tool_call_chunks", "usage_metadata", "response_metadata")
    return {name: value for name, value in message.model_dump(mode="json").items() if name in kept}


serve(play)
