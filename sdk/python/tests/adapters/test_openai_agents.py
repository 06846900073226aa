"""The OpenAI Agents SDK with its own runner and model classes, against the local model service."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, Callable, Optional

import checks
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    RunContextWrapper,
    Runner,
    function_tool,
)
from bars import Driver
from conftest import Search
from model_server import FINAL_ANSWER, Call, ModelServer, Reply, Usage, healthy, looping
from openai import AsyncOpenAI

from runguard import BudgetExceededError, BudgetTracker, LoopDetectedError, Run, guard, trip_of
from runguard.adapters.openai_agents import RunGuardHooks

Way = Callable[..., Any]


def agent_on(server: ModelServer, api: str, tools: list[Any], name: str = "researcher", handoffs: Optional[list[Any]] = None) -> Agent:
    client = AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0)
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    model = kind(model="gpt-4o-mini", openai_client=client)
    # Chat completions report the usage of a stream only when asked to.
    settings = ModelSettings(include_usage=True)
    return Agent(name=name, instructions="Find it.", model=model, model_settings=settings, tools=tools, handoffs=handoffs or [])


# Each of them runs an agent to its end and gives the final output.


def run(agent: Agent, **options: Any) -> Any:
    return asyncio.run(Runner.run(agent, "find it", max_turns=30, **options)).final_output


def run_sync(agent: Agent, **options: Any) -> Any:
    # `Runner.run_sync` wants the thread's own loop, which `asyncio.run` in another test has taken away.
    asyncio.set_event_loop(asyncio.new_event_loop())
    return Runner.run_sync(agent, "find it", max_turns=30, **options).final_output


def run_streamed(agent: Agent, **options: Any) -> Any:
    async def drained() -> Any:
        result = Runner.run_streamed(agent, "find it", max_turns=30, **options)
        async for _ in result.stream_events():
            pass
        return result.final_output

    return asyncio.run(drained())


@pytest.fixture(params=["chat", "responses"])
def api(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[run, run_sync, run_streamed])
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


def test_a_repeated_call_is_told_before_the_run_is_stopped(api: str, way: Way, looping_model: ModelServer, search: Search) -> None:
    # The tool serves several runs, with hooks of their own.
    found = function_tool(search.tool)
    for runs in (1, 2):
        with pytest.raises(LoopDetectedError):
            way(agent_on(looping_model, api, [found]), hooks=RunGuardHooks(lambda: Run(repeats=4), on_repeat="tell"))
        assert (len(search.runs), looping_model.model_calls) == (runs, 4 * runs)
    checks.assert_told(looping_model)
    assert found.tool_input_guardrails is not None and len(found.tool_input_guardrails) == 1
    # Without it the same tool runs as often as it is asked for.
    with pytest.raises(LoopDetectedError):
        way(agent_on(looping_model, api, [found]), hooks=RunGuardHooks(lambda: Run(repeats=4)))
    assert len(search.runs) == 5


def test_different_calls_are_never_told_of(api: str, way: Way, healthy_model: ModelServer, search: Search) -> None:
    agent = agent_on(healthy_model, api, [function_tool(search.tool)])
    assert way(agent, hooks=RunGuardHooks(lambda: Run(repeats=4), on_repeat="tell")) == FINAL_ANSWER
    assert len(search.runs) == 5
    with pytest.raises(ValueError, match="on_repeat"):
        RunGuardHooks(on_repeat="skip")  # type: ignore[arg-type]


def test_a_loop_is_stopped_before_the_fourth_tool_run_and_stays_stopped(
    api: str, way: Way, looping_model: ModelServer, search: Search
) -> None:
    hooks = RunGuardHooks(Run(repeats=4))
    agent = agent_on(looping_model, api, [function_tool(search.tool)])
    with pytest.raises(LoopDetectedError) as caught:
        way(agent, hooks=hooks)
    assert caught.value.pattern == "search"
    assert (len(search.runs), looping_model.model_calls) == (3, 4)
    with pytest.raises(LoopDetectedError):
        way(agent, hooks=hooks)
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_a_healthy_run_is_untouched(api: str, way: Way, healthy_model: ModelServer, search: Search) -> None:
    guarded = Run(repeats=4)
    assert way(agent_on(healthy_model, api, [function_tool(search.tool)]), hooks=RunGuardHooks(guarded)) == FINAL_ANSWER
    assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
    assert healthy_model.model_calls == 6
    assert not guarded.tripped


def test_usage_is_priced_with_the_cached_tokens_taken_out_of_the_input(api: str, way: Way, search: Search) -> None:
    budget = BudgetTracker(max_usd=1.0)
    with ModelServer(healthy(), usage=Usage(1000, 50, 400, 0)) as server:
        way(agent_on(server, api, [function_tool(search.tool)]), hooks=RunGuardHooks(Run(repeats=4, budget=budget)))
    assert budget.spent == pytest.approx(6 * (600 * 0.15 + 400 * 0.075 + 50 * 0.60) / 1e6, abs=1e-12)


def test_an_answer_that_breaks_the_budget_has_no_tool_run(api: str, way: Way, healthy_model: ModelServer, search: Search) -> None:
    agent = agent_on(healthy_model, api, [function_tool(search.tool)])
    hooks = RunGuardHooks(Run(repeats=4, max_tokens=2500))
    with pytest.raises(BudgetExceededError):
        way(agent, hooks=hooks)
    assert (len(search.runs), healthy_model.model_calls) == (2, 3)
    with pytest.raises(BudgetExceededError):
        way(agent, hooks=hooks)
    assert (len(search.runs), healthy_model.model_calls) == (2, 3)


def test_two_agents_that_hand_over_to_each_other_are_a_loop(way: Way) -> None:
    script = [Reply(calls=(Call(f"transfer_to_{name}", {}),)) for name in ("second", "first")] * 10
    with ModelServer(script) as server:
        first = agent_on(server, "responses", [], name="first")
        second = agent_on(server, "responses", [], name="second", handoffs=[first])
        first.handoffs.append(second)
        with pytest.raises(LoopDetectedError) as caught:
            way(first, hooks=RunGuardHooks(Run(repeats=3)))
        assert caught.value.cycle == ("transfer_to_second", "transfer_to_first")
        assert server.model_calls == 6


def test_a_nudge_is_given_to_the_model(api: str, way: Way, search: Search) -> None:
    with ModelServer([*looping() * 3, *healthy(values=["other"])]) as server:
        hooks = RunGuardHooks(Run(repeats=10, stall="coding"))
        way(
            agent_on(server, api, [function_tool(search.tool)]),
            hooks=hooks,
            run_config=RunConfig(call_model_input_filter=hooks.add_nudges),
        )
        if api == "chat":
            results = [[message["content"] for message in body["messages"] if message["role"] == "tool"] for body in server.bodies]
        else:
            results = [[item["output"] for item in body["input"] if item.get("type") == "function_call_output"] for body in server.bodies]
    assert results[2] == ["no result for rust"] * 2
    assert results[3][2].startswith("no result for rust\n\n") and len(results[3][2]) > 30
    assert results[4][2] == results[3][2]


def test_a_name_to_price_by_can_be_given(search: Search) -> None:
    budget = BudgetTracker(max_usd=1.0)
    with ModelServer(healthy(), usage=Usage(1000, 0, 0, 0)) as server:
        agent = agent_on(server, "chat", [function_tool(search.tool)])
        agent.model.model = "deployment-7"
        run(agent, hooks=RunGuardHooks(Run(repeats=4, budget=budget), model="gpt-4o-mini"))
    assert budget.spent == pytest.approx(6 * 1000 * 0.15 / 1e6, abs=1e-12)


# Without an adapter: the client under the model is hooked.


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("way", [run, run_sync, run_streamed], ids=lambda way: way.__name__)
def test_a_block_around_an_agent_caps_dollars(search: Search, api: str, way: Way) -> None:
    with ModelServer(looping(), usage=Usage(input=1_600_000, output=1_000, cached=0, cache_write=0)) as server:
        agent = agent_on(server, api, [function_tool(search.tool)])
        with pytest.raises(Exception) as caught, guard(max_usd=1) as guarded:
            way(agent)
    assert isinstance(trip_of(caught.value), BudgetExceededError)
    assert server.model_calls <= 5 and 1 <= guarded.budget.spent <= 1.25


def test_a_context_hides_no_loop_of_a_wrapped_tool(looping_model: ModelServer) -> None:
    runs = []
    with pytest.raises(LoopDetectedError), guard(repeats=3) as guarded:

        def search(ctx: RunContextWrapper, query: str) -> str:
            """Searches."""
            runs.append(query)
            return "nothing"

        run(agent_on(looping_model, "chat", [function_tool(guarded.tool(search))]))
    assert len(runs) == 2 and looping_model.model_calls == 3


# One object serves everybody.


class Made:
    hooks: Any = None

    def __init__(self, api: str, is_streamed: bool) -> None:
        self.api, self.is_streamed = api, is_streamed

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        self.hooks = hooks = RunGuardHooks(run)
        client = AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0)
        kind = OpenAIResponsesModel if self.api == "responses" else OpenAIChatCompletionsModel
        settings = ModelSettings(include_usage=True)
        tools = [function_tool(search.tool)]
        agent = Agent(name="researcher", model=kind(model=model, openai_client=client), model_settings=settings, tools=tools)

        async def ask() -> str:
            if not self.is_streamed:
                return (await Runner.run(agent, "find it", max_turns=30, hooks=hooks)).final_output
            result = Runner.run_streamed(agent, "find it", max_turns=30, hooks=hooks)
            async for _ in result.stream_events():
                pass
            return result.final_output

        return ask


BARS = {"OpenAI Agents": Driver("openai-agents", Made("responses", False), Made("responses", True))}


@pytest.fixture(params=["chat", "chat-streamed", "responses", "responses-streamed"])
def made(request: pytest.FixtureRequest) -> Made:
    api, _, streamed = request.param.partition("-")
    return Made(api, bool(streamed))


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    check(made, search, caplog)


def test_invocations_are_forgotten(made: Made, search: Search) -> None:
    checks.invocations_are_forgotten(made, search, lambda: len(made.hooks._runs))


def test_an_agent_that_is_a_tool_belongs_to_the_run(search: Search) -> None:
    with checks.one_run_for_two_agents(search) as (server, new_run):
        hooks = RunGuardHooks(new_run)
        server.script[0] = Reply(calls=(Call("search", {"query": "rust", "input": "rust"}),))
        client = AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0)
        model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)
        inner = Agent(name="inner", model=model, tools=[function_tool(search.tool)])
        outer = Agent(name="outer", model=model, tools=[inner.as_tool("search", "Asks another agent.", hooks=hooks)])
        assert run(outer, hooks=hooks) == FINAL_ANSWER


def test_a_request_that_fails_leaves_nothing_set_aside(search: Search) -> None:
    with ModelServer([Reply(status=400), Reply(text=FINAL_ANSWER)]) as server:
        own = Run(max_usd=1)
        with pytest.raises(Exception, match="scripted failure"):
            run(agent_on(server, "chat", []), hooks=RunGuardHooks(own))
        gc.collect()
        assert own.budget.reserved == 0
        assert run(agent_on(server, "chat", []), hooks=RunGuardHooks(own)) == FINAL_ANSWER
