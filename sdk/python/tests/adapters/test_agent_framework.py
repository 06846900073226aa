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

from runguard import LoopDetectedError, Run, StallDetectedError
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


def test_a_healthy_run_is_untouched(made: Made, healthy_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    assert checks.once(made(healthy_model, search, run, "gpt-4o")).endswith(FINAL_ANSWER)
    assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
    assert healthy_model.model_calls == 6 and not run.tripped


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
    with pytest.raises(StallDetectedError):
        checks.once(Made("chat", False)(looping_model, search, Run(repeats=100, stall="coding"), "gpt-4o"))
    answers = [str(message["content"]) for message in looping_model.bodies[-1]["messages"] if message["role"] == "tool"]
    assert "You have called search" not in answers[0] and "You have called search 3 times" in answers[-1]


def test_an_agent_in_a_tool_belongs_to_the_run(search: Search) -> None:
    runs: list[Run] = []

    def new_run() -> Run:
        runs.append(Run(max_usd=1, repeats=100))
        return runs[-1]

    with checks.healthy_conversations(checks.QUARTER) as server:
        middleware = RunGuardMiddleware(new_run)
        inner = Agent(client_of(server, "chat"), tools=[search.tool], middleware=[middleware])

        async def ask_another(query: str) -> str:
            """Asks another agent."""
            return (await inner.run(query)).text

        ask_another.__name__ = "search"
        outer = Agent(client_of(server, "chat"), tools=[ask_another], middleware=[middleware])
        assert asyncio.run(_text(outer)) == FINAL_ANSWER
    assert len(runs) == 1 and runs[0].budget.spent == pytest.approx(1) and search.runs == ["rust"]


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
    with ModelServer([Reply(status=500)]) as server:
        run = Run(max_usd=1)
        with pytest.raises(Exception, match="500"):
            checks.once(made(server, search, run, "gpt-4o"))
        assert (run.budget.spent, run.budget.reserved) == (0, 0)
