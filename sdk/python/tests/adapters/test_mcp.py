"""Clients of the MCP Python SDK with a server in this process, and a small agent that asks a model in between."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Callable

import pytest

pytest.importorskip("mcp")

import checks
import openai
from bars import Driver
from conftest import Search
from mcp import Client
from mcp.server.mcpserver import MCPServer
from model_server import ModelServer

from runguard import InvalidInputError, LoopDetectedError, Run, StallDetectedError, guard
from runguard.adapters._runs import within
from runguard.adapters.mcp import guard_session


def library(search: Search) -> MCPServer:
    server = MCPServer("library")
    server.tool(name="search")(search.tool)

    @server.tool()
    def fails(query: str) -> str:
        raise RuntimeError(f"no {query} today")

    return server


class Made:
    """An agent of one's own: its model is hooked by `guard`, its tools are an MCP server's."""

    def __init__(self, is_streamed: bool) -> None:
        self.is_streamed = is_streamed

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        model_client = openai.AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0)

        async def ask() -> str:
            async with Client(library(search)) as session:
                guard_session(session)
                listed = (await session.list_tools()).tools
                tools = [{"type": "function", "function": {"name": one.name, "parameters": one.input_schema}} for one in listed]
                conversation: list[Any] = [{"role": "user", "content": "find it"}]
                with guard(run=checks.run_of(run)):
                    while True:
                        said = await self._answer(model_client, model=model, messages=conversation, tools=tools)
                        conversation.append(said)
                        if not said.get("tool_calls"):
                            return str(said["content"])
                        for call in said["tool_calls"]:
                            result = await session.call_tool(call["function"]["name"], json.loads(call["function"]["arguments"]))
                            conversation.append({"role": "tool", "tool_call_id": call["id"], "content": result.content[0].text})

        return ask

    async def _answer(self, client: openai.AsyncOpenAI, **given: Any) -> dict[str, Any]:
        if not self.is_streamed:
            return (await client.chat.completions.create(**given)).choices[0].message.model_dump(exclude_none=True)
        async with client.chat.completions.stream(**given) as stream:
            said = (await stream.get_final_completion()).choices[0].message
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in said.tool_calls or ()
        ]
        return {"role": "assistant", "content": said.content, **({"tool_calls": calls} if calls else {})}


BARS = {"MCP client": Driver("mcp", Made(False), Made(True))}


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def made(request: pytest.FixtureRequest) -> Made:
    return Made(request.param)


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    if check in (checks.a_tool_that_tells_of_itself_counts_once, checks.without_a_run_the_one_around_counts):
        pytest.skip("the tool is the server's, and the run is always the one around")
    check(made, search, caplog)


def calls(search: Search, run: Any, count: int, name: str = "search", **options: Any) -> list[Any]:
    """What came of so many equal calls."""

    async def main() -> list[Any]:
        async with Client(library(search)) as session:
            guard_session(session, run, **options)
            return [await session.call_tool(name, {"query": "rust"}) for _ in range(count)]

    return asyncio.run(main())


def test_a_refused_call_does_not_leave_the_client(search: Search) -> None:
    run = Run(repeats=3)
    for _ in range(2):
        with pytest.raises(BaseException) as caught:
            calls(search, run, 5)
        assert caught.group_contains(LoopDetectedError) if isinstance(caught.value, BaseExceptionGroup) else caught.type is LoopDetectedError
        assert len(search.runs) == 2


def test_a_refused_call_can_be_an_answer(search: Search) -> None:
    run = Run(repeats=3)
    results = calls(search, run, 5, on_trip="end")
    assert [result.is_error for result in results] == [False, False, True, True, True]
    assert results[-1].content[0].text == run.message != ""
    assert len(search.runs) == 2


def test_each_call_may_have_another_run(search: Search) -> None:
    users = iter([Run(repeats=3) for _ in range(5)])
    assert len(calls(search, lambda: next(users), 5)) == 5


def test_outside_of_a_run_nothing_is_in_the_way(search: Search) -> None:
    assert len(calls(search, None, 5)) == 5


def test_errors_of_the_server_are_seen(search: Search) -> None:
    run = Run(repeats=100, stall="coding")
    with pytest.raises(BaseException) as caught:
        calls(search, run, 9, name="fails")
    assert isinstance(run.trip, StallDetectedError), caught.value


def test_a_nudge_stands_behind_the_result(search: Search) -> None:
    results = calls(search, Run(repeats=100, stall="coding"), 3)
    assert [len(result.content) for result in results] == [1, 1, 2]
    assert "You have called search 3 times" in results[-1].content[-1].text


def test_a_call_that_an_adapter_has_counted_counts_once(search: Search) -> None:
    run = Run(repeats=3)

    async def main() -> None:
        async with Client(library(search)) as session:
            guard_session(session, run)
            for _ in range(2):
                run.before_tool("search", {"query": "rust"})
                with within(run, "search"):
                    await session.call_tool("search", {"query": "rust"})

    asyncio.run(main())
    assert len(search.runs) == 2 and not run.tripped


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        guard_session(object())
