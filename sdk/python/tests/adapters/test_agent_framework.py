"""Agents of the Microsoft Agent Framework on its OpenAI clients, against the local model service."""

from __future__ import annotations

import asyncio
from typing import Any, Callable

import pytest

pytest.importorskip("agent_framework")

import checks
from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from bars import Driver
from conftest import Search
from model_server import FINAL_ANSWER, Call, ModelServer, Reply
from openai import AsyncOpenAI

from runguard import LoopDetectedError, Run
from runguard.adapters.agent_framework import RunGuardMiddleware


def client_of(server: ModelServer, api: str, model: str = "gpt-4o") -> Any:
    client = AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0)
    return (OpenAIChatClient if api == "responses" else OpenAIChatCompletionClient)(model=model, async_client=client)


class Made:
    def __init__(self, api: str, is_streamed: bool) -> None:
        self.api, self.is_streamed = api, is_streamed

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str, **options: Any) -> Callable[[], Any]:
        middleware = RunGuardMiddleware(run, **options)
        agent = Agent(client_of(server, self.api, model), tools=[search.tool], middleware=[middleware])

        async def ask() -> str:
            if not self.is_streamed:
                return (await agent.run("find it")).text
            stream = agent.run("find it", stream=True)
            async for _ in stream:
                pass
            return (await stream.get_final_response()).text

        return ask


BARS = {"Microsoft Agent Framework": Driver("agent-framework-core", Made("chat", False), Made("chat", True))}


@pytest.fixture(params=["chat", "chat-streamed", "responses", "responses-streamed"])
def made(request: pytest.FixtureRequest) -> Made:
    api, _, streamed = request.param.partition("-")
    return Made(api, bool(streamed))


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    check(made, search, caplog)


def test_a_repeated_call_is_told_before_the_run_is_stopped(made: Made, looping_model: ModelServer, search: Search) -> None:
    ask = made(looping_model, search, lambda: Run(repeats=4), "gpt-4o", on_trip="end", on_repeat="tell")
    checks.once(ask)
    assert (len(search.runs), looping_model.model_calls) == (1, 4)
    checks.assert_told(looping_model)


def test_different_calls_are_never_told_of(made: Made, healthy_model: ModelServer, search: Search) -> None:
    assert checks.once(made(healthy_model, search, lambda: Run(repeats=4), "gpt-4o", on_repeat="tell")) == FINAL_ANSWER
    assert len(search.runs) == 5
    with pytest.raises(ValueError, match="on_repeat"):
        made(healthy_model, search, Run(), "gpt-4o", on_repeat="skip")


def test_a_healthy_run_is_untouched(made: Made, healthy_model: ModelServer, search: Search) -> None:
    checks.a_healthy_run_is_untouched(made, healthy_model, search)


def test_an_agent_can_end_politely(made: Made, looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=3)
    ask = made(looping_model, search, run, "gpt-4o", on_trip="end")
    for _ in range(2):
        assert checks.once(ask).endswith(run.message) and run.message
        assert (len(search.runs), looping_model.model_calls) == (2, 3)


def test_calls_side_by_side_after_the_trip_do_not_run(made: Made, search: Search) -> None:
    call = Call("search", {"query": "rust"})
    with ModelServer([Reply(calls=(call,) * 5)]) as server, pytest.raises(LoopDetectedError):
        checks.once(made(server, search, Run(repeats=4), "gpt-4o"))
    assert search.runs == [] and server.model_calls == 1


def test_a_nudge_reaches_the_model(looping_model: ModelServer, search: Search) -> None:
    checks.a_nudge_reaches_the_model(Made("chat", False), looping_model, search)


def test_an_agent_in_a_tool_belongs_to_the_run(search: Search) -> None:
    with checks.one_run_for_two_agents(search) as (server, new_run):
        middleware = RunGuardMiddleware(new_run)
        inner = Agent(client_of(server, "chat"), tools=[search.tool], middleware=[middleware])

        async def ask_another(query: str) -> str:
            """Asks another agent."""
            return (await inner.run(query)).text

        ask_another.__name__ = "search"
        outer = Agent(client_of(server, "chat"), tools=[ask_another], middleware=[middleware])
        assert asyncio.run(_text(outer)) == FINAL_ANSWER


async def _text(agent: Agent) -> str:
    return (await agent.run("find it")).text


def test_a_stream_that_is_broken_off_is_billed() -> None:
    with ModelServer([Reply(text="more " * 2_000)], usage=checks.QUARTER) as server:
        run = Run(max_usd=1)

        async def main() -> None:
            stream = Agent(client_of(server, "chat"), middleware=[RunGuardMiddleware(run)]).run("find it", stream=True)
            async for update in stream:
                if update.text:
                    break

        asyncio.run(main())
        assert run.budget.reserved == 0
        assert 0.01 < run.budget.spent < 0.06


def test_a_request_that_fails_costs_nothing(made: Made, search: Search) -> None:
    checks.a_request_that_fails_costs_nothing(made, search)
