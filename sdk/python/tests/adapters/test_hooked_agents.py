"""Agents of a few lines on `litellm` and boto3, inside of `guard(…)`: they know nothing of RunGuard but its `tool`."""

from __future__ import annotations

import json
from typing import Any, Callable

import checks
import pytest
from bars import QUARTER_OF_HAIKU, Driver
from conftest import Search
from model_server import ModelServer, Reply
from test_hooks import chat, chat_streamed, converse, litellm_completion, litellm_streamed, messages, responses

from runguard import guard, tool

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}}


def litellm_agent(is_streamed: bool) -> checks.Make:
    def make(server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], str]:
        import litellm

        tools = [{"type": "function", "function": {"name": "search", "parameters": PARAMETERS}}]
        given = {"model": f"openai/{model}", "api_base": server.openai_url, "api_key": "key", "num_retries": 0, "tools": tools}

        def ask() -> str:
            conversation: list[Any] = [{"role": "user", "content": "find it"}]
            look_up = tool(search.tool)
            with guard(run=checks.run_of(run)):
                while True:
                    if is_streamed:
                        answer = litellm.stream_chunk_builder(list(litellm.completion(messages=conversation, stream=True, **given)))
                    else:
                        answer = litellm.completion(messages=conversation, **given)
                    said = answer.choices[0].message
                    if not said.tool_calls:
                        return said.content
                    conversation.append(said.model_dump())
                    for call in said.tool_calls:
                        result = look_up(**json.loads(call.function.arguments))
                        conversation.append({"role": "tool", "tool_call_id": call.id, "content": result})

        return ask

    return make


def converse_agent(server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], str]:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "bedrock-runtime",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="id",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 0}, max_pool_connections=64),
    )
    tools = {"tools": [{"toolSpec": {"name": "search", "inputSchema": {"json": PARAMETERS}}}]}

    def ask() -> str:
        conversation: list[Any] = [{"role": "user", "content": [{"text": "find it"}]}]
        look_up = tool(search.tool)
        with guard(run=checks.run_of(run)):
            while True:
                said = client.converse(modelId=model, messages=conversation, toolConfig=tools)["output"]["message"]
                calls = [block["toolUse"] for block in said["content"] if "toolUse" in block]
                if not calls:
                    return str(said["content"][0]["text"])
                results = [{"toolUseId": call["toolUseId"], "content": [{"text": look_up(**call["input"])}]} for call in calls]
                conversation += [said, {"role": "user", "content": [{"toolResult": result} for result in results]}]

    return ask


BARS = {
    "LiteLLM": Driver("litellm", litellm_agent(False), litellm_agent(True)),
    # The local model speaks no event streams of Bedrock.
    "boto3 Converse": Driver("boto3", converse_agent, model="anthropic.claude-haiku-4-5-20251001-v1:0", quarter=QUARTER_OF_HAIKU),
}

WAYS = [chat, chat_streamed, responses, messages, converse, litellm_completion, litellm_streamed]


@pytest.mark.parametrize("ways", WAYS, ids=lambda way: way.__name__)
def test_an_answer_without_usage_is_billed_by_its_size(ways: Callable[[ModelServer], Callable[[], Any]]) -> None:
    with ModelServer([Reply(text="more " * 2_000)], usage=None) as model:
        ask = ways(model)
        with guard(max_usd=5) as run:
            ask()
        assert run.budget is not None and 0.01 < run.budget.spent < 0.1
