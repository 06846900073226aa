"""pydantic-ai agents on its own OpenAI and Anthropic model classes, against the local model service."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Callable

import checks
import pytest
from bars import Driver
from conftest import Search
from model_server import FINAL_ANSWER, Call, ModelServer, Reply, Usage, healthy, looping
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelRetry, Tool
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from runguard import BudgetExceededError, BudgetTracker, LoopDetectedError, Run
from runguard.adapters.pydantic_ai import RunGuard

Way = Callable[[Agent, Run], Any]


def agent_on(server: ModelServer, api: str, tools: list[Any]) -> Agent:
    if api == "anthropic":
        return Agent(AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(api_key="none", base_url=server.url)), tools=tools)
    provider = OpenAIProvider(base_url=server.openai_url, api_key="none")
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
    return Agent(kind("gpt-4o-mini", provider=provider), tools=tools)


# Each of them runs an agent to its end and gives the output.


def run(agent: Agent, guarded: Run) -> Any:
    return asyncio.run(agent.run("find it", capabilities=[RunGuard(guarded)])).output


def run_sync(agent: Agent, guarded: Run) -> Any:
    asyncio.set_event_loop(asyncio.new_event_loop())
    return agent.run_sync("find it", capabilities=[RunGuard(guarded)]).output


def run_stream(agent: Agent, guarded: Run) -> Any:
    async def drained() -> Any:
        async with agent.run_stream("find it", capabilities=[RunGuard(guarded)]) as result:
            return await result.get_output()

    return asyncio.run(drained())


def iterate(agent: Agent, guarded: Run) -> Any:
    async def drained() -> Any:
        async with agent.iter("find it", capabilities=[RunGuard(guarded)]) as steps:
            async for _ in steps:
                pass
        return steps.result.output

    return asyncio.run(drained())


@pytest.fixture(params=["chat", "responses", "anthropic"])
def api(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[run, run_sync, run_stream, iterate])
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


def test_a_loop_is_stopped_before_the_fourth_tool_run_and_stays_stopped(
    api: str, way: Way, looping_model: ModelServer, search: Search
) -> None:
    guarded = Run(repeats=4)
    agent = agent_on(looping_model, api, [search.tool])
    with pytest.raises(LoopDetectedError) as caught:
        way(agent, guarded)
    assert caught.value.pattern == "search"
    assert (len(search.runs), looping_model.model_calls) == (3, 4)
    with pytest.raises(LoopDetectedError):
        way(agent, guarded)
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_a_healthy_run_is_untouched(api: str, way: Way, healthy_model: ModelServer, search: Search) -> None:
    guarded = Run(repeats=4)
    assert way(agent_on(healthy_model, api, [search.tool]), guarded) == FINAL_ANSWER
    assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
    assert healthy_model.model_calls == 6
    assert not guarded.tripped


def test_usage_is_priced(api: str, way: Way, search: Search) -> None:
    budget = BudgetTracker(max_usd=1.0)
    if api == "anthropic":
        usage, dollars = Usage(1000, 50, 400, 100), (500 * 1 + 400 * 0.10 + 100 * 1.25 + 50 * 5) / 1e6
    else:
        usage, dollars = Usage(1000, 50, 400, 0), (600 * 0.15 + 400 * 0.075 + 50 * 0.60) / 1e6
    with ModelServer(healthy(), usage=usage) as server:
        way(agent_on(server, api, [search.tool]), Run(repeats=4, budget=budget))
    assert budget.spent == pytest.approx(6 * dollars, abs=1e-12)


def test_an_answer_that_breaks_the_budget_has_no_tool_run(api: str, way: Way, healthy_model: ModelServer, search: Search) -> None:
    guarded = Run(repeats=4, max_tokens=2500)
    agent = agent_on(healthy_model, api, [search.tool])
    with pytest.raises(BudgetExceededError):
        way(agent, guarded)
    assert (len(search.runs), healthy_model.model_calls) == (2, 3)
    with pytest.raises(BudgetExceededError):
        way(agent, guarded)
    assert (len(search.runs), healthy_model.model_calls) == (2, 3)


def test_calls_that_fail_validation_are_counted_too(search: Search) -> None:
    wrong = Reply(calls=(Call("search", {"question": "rust"}),))
    with ModelServer([wrong]) as server:
        agent = agent_on(server, "chat", [])
        agent.tool_plain(retries=50)(search.tool)
        with pytest.raises(LoopDetectedError):
            run(agent, Run(repeats=4))
        assert (search.runs, server.model_calls) == ([], 4)


def test_none_of_the_calls_made_side_by_side_runs_when_one_is_refused(search: Search) -> None:
    one = looping()[0].calls[0]
    with ModelServer([Reply(calls=(Call("search", {"query": "first"}), one, one))]) as server:
        with pytest.raises(LoopDetectedError):
            run(agent_on(server, "chat", [search.tool]), Run(repeats=2))
    assert search.runs == []


@pytest.mark.parametrize("form", ["text", "object"])
def test_a_nudge_is_given_to_the_model(api: str, form: str, search: Search) -> None:
    def found(query: str) -> Any:
        """Searches."""
        return search.tool(query) if form == "text" else {"found": search.tool(query)}

    found.__name__ = "search"
    guarded = Run(repeats=10, stall="coding")
    with ModelServer([*looping() * 3, *healthy(values=["other"])]) as server:
        run(agent_on(server, api, [found]), guarded)
        texts = [json.dumps(body) for body in server.bodies]
    plain = Run(repeats=10)
    with ModelServer([*looping() * 3, *healthy(values=["other"])]) as server:
        run(agent_on(server, api, [found]), plain)
        unguided = [json.dumps(body) for body in server.bodies]
    # The third equal result brings the nudge, and the request after it still has it.
    longer = [len(with_nudge) - len(without) for with_nudge, without in zip(texts, unguided)]
    assert longer[:3] == [0, 0, 0]
    assert longer[3] > 30
    assert longer[4] == longer[3]


def test_a_tool_that_asks_for_another_try_does_so_as_before(search: Search) -> None:
    def picky(query: str) -> str:
        """Searches."""
        search.runs.append(query)
        if query == "rust":
            raise ModelRetry("be more precise")
        return "found"

    picky.__name__ = "search"
    with ModelServer(healthy(values=["rust", "tokio"])) as server:
        assert run(agent_on(server, "chat", [picky]), Run(repeats=4, stall="coding")) == FINAL_ANSWER
        assert "be more precise" in json.dumps(server.bodies[1])
    assert search.runs == ["rust", "tokio"]


# One object serves everybody.


class Made:
    def __init__(self, api: str, is_streamed: bool) -> None:
        self.api, self.is_streamed = api, is_streamed

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0))
        kind = OpenAIResponsesModel if self.api == "responses" else OpenAIChatModel
        agent = Agent(kind(model, provider=provider), tools=[search.tool], capabilities=[RunGuard(run)])

        async def ask() -> str:
            if not self.is_streamed:
                return (await agent.run("find it")).output
            # `run_stream` takes the first text for the final answer, whatever calls come with it.
            async with agent.iter("find it") as steps:
                async for node in steps:
                    if Agent.is_model_request_node(node):
                        async with node.stream(steps.ctx) as parts:
                            async for _ in parts:
                                pass
            return steps.result.output

        return ask


BARS = {"pydantic-ai": Driver("pydantic-ai-slim", Made("chat", False), Made("chat", True))}


@pytest.fixture(params=["chat", "chat-streamed", "responses", "responses-streamed"])
def made(request: pytest.FixtureRequest) -> Made:
    api, _, streamed = request.param.partition("-")
    return Made(api, bool(streamed))


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    check(made, search, caplog)


def test_an_agent_in_a_tool_belongs_to_the_run(search: Search) -> None:
    with checks.one_run_for_two_agents(search) as (server, new_run):
        provider = OpenAIProvider(base_url=server.openai_url, api_key="none")
        inner = Agent(OpenAIChatModel("gpt-4o", provider=provider), tools=[search.tool], capabilities=[RunGuard()])

        async def outer_tool(query: str) -> str:
            """Asks another agent."""
            return (await inner.run(query)).output

        outer = Agent(OpenAIChatModel("gpt-4o", provider=provider), tools=[Tool(outer_tool, name="search")], capabilities=[RunGuard(new_run)])
        assert asyncio.run(outer.run("find it")).output == FINAL_ANSWER


def test_a_repeated_call_is_told_before_the_run_is_stopped(looping_model: ModelServer, search: Search) -> None:
    guarded = Run(repeats=4)
    agent = agent_on(looping_model, "chat", [search.tool])

    async def ask() -> Any:
        return (await agent.run("find it", capabilities=[RunGuard(guarded, on_trip="end", on_repeat="tell")])).output

    assert checks.once(ask) == guarded.message != ""
    assert (len(search.runs), looping_model.model_calls) == (1, 4)
    checks.assert_told(looping_model)



@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_run_can_end_politely(looping_model: ModelServer, search: Search, is_streamed: bool) -> None:
    guarded = Run(repeats=3)
    agent = agent_on(looping_model, "chat", [search.tool])

    async def ask() -> Any:
        capabilities = [RunGuard(guarded, on_trip="end")]
        if not is_streamed:
            return (await agent.run("find it", capabilities=capabilities)).output
        async with agent.run_stream("find it", capabilities=capabilities) as result:
            return await result.get_output()

    for _ in range(2):
        assert checks.once(ask) == guarded.message != ""
        assert (len(search.runs), looping_model.model_calls) == (2, 3)


def test_when_money_is_short_the_answer_is_shorter() -> None:
    with ModelServer([Reply(text=FINAL_ANSWER)]) as server:
        asyncio.run(agent_on(server, "chat", []).run("find it", capabilities=[RunGuard(Run(max_usd=0.001))]))
        assert 1_000 < server.bodies[0]["max_completion_tokens"] < 2_000


def test_a_stream_that_is_broken_off_is_billed() -> None:
    with ModelServer([Reply(text="more " * 2_000)], usage=checks.QUARTER) as server:
        guarded = Run(max_usd=1)

        async def main() -> None:
            provider = OpenAIProvider(base_url=server.openai_url, api_key="none")
            agent = Agent(OpenAIChatModel("gpt-4o", provider=provider), capabilities=[RunGuard(guarded)])
            async with agent.run_stream("find it") as result:
                async for _ in result.stream_text(delta=True, debounce_by=None):
                    break

        asyncio.run(main())
        assert guarded.budget.reserved == 0
        assert 0.01 < guarded.budget.spent < 0.05
