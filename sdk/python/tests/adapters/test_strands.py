from __future__ import annotations

from typing import Any, Callable

import pytest

pytest.importorskip("strands")

import checks
from bars import Driver
from conftest import Search
from model_server import FINAL_ANSWER, Call, ModelServer, Reply
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.types.exceptions import EventLoopException

from runguard import BudgetExceededError, LoopDetectedError, Run, StallDetectedError
from runguard.adapters.strands import RunGuardHooks


def agent_for(server: ModelServer, search: Search, run: Run, **options: Any) -> Agent:
    model = OpenAIModel(client_args={"base_url": server.openai_url, "api_key": "unused"}, model_id="gpt-4o")
    return Agent(model=model, tools=[tool(search.tool)], hooks=[RunGuardHooks(run, **options)], callback_handler=None)


def test_a_loop_is_stopped_and_a_restart_refused(looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    agent = agent_for(looping_model, search, run)
    with pytest.raises(EventLoopException) as stopped:
        agent("find rust")
    assert isinstance(stopped.value.original_exception, LoopDetectedError)
    assert (len(search.runs), looping_model.model_calls) == (3, 4)

    with pytest.raises(LoopDetectedError):
        agent("find rust")
    with pytest.raises(LoopDetectedError):
        agent_for(looping_model, search, run)("find rust")
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_the_conversation_stays_whole_after_a_stop(looping_model: ModelServer, search: Search) -> None:
    agent = agent_for(looping_model, search, Run(repeats=4))
    with pytest.raises(EventLoopException):
        agent("find rust")
    results = [block["toolResult"] for block in agent.messages[-1]["content"] if "toolResult" in block]
    assert [result["status"] for result in results] == ["error"]


def test_a_loop_can_end_with_the_message_as_answer(looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    agent = agent_for(looping_model, search, run, on_trip="end")
    result = agent("find rust")
    assert str(run.trip) in str(result)
    assert result.stop_reason == "end_turn"
    assert (len(search.runs), looping_model.model_calls) == (3, 4)

    assert str(run.trip) in str(agent("find rust"))
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_a_repeated_call_is_told_before_the_run_is_stopped(looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    agent_for(looping_model, search, run, on_trip="end", on_repeat="tell")("find rust")
    assert run.tripped and (len(search.runs), looping_model.model_calls) == (1, 4)
    checks.assert_told(looping_model)


def test_parallel_calls_after_the_trip_do_not_run(search: Search) -> None:
    call = Call("search", {"query": "rust"})
    with ModelServer([Reply(calls=(call,) * 5), Reply(text="never found")]) as server:
        with pytest.raises(EventLoopException):
            agent_for(server, search, Run(repeats=4))("find rust")
        assert (len(search.runs), server.model_calls) == (3, 1)


def test_a_healthy_run_is_untouched(healthy_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    result = agent_for(healthy_model, search, run)("compare web frameworks")
    assert str(result).strip() == FINAL_ANSWER
    assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
    assert healthy_model.model_calls == 6
    assert not run.tripped


def test_usage_is_recorded(healthy_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4, max_usd=1)
    agent_for(healthy_model, search, run)("compare web frameworks")
    assert run.budget.spent == pytest.approx(6 * (500 * 2.5 + 400 * 1.25 + 100 * 2.5 + 50 * 10) / 1e6)


def test_the_budget_stops_the_next_model_call(healthy_model: ModelServer, search: Search) -> None:
    # Each answer reports 1,050 tokens: the third passes the limit, so the fourth is not asked for.
    run = Run(max_tokens=3000)
    with pytest.raises(EventLoopException) as stopped:
        agent_for(healthy_model, search, run)("compare web frameworks")
    assert isinstance(stopped.value.original_exception, BudgetExceededError)
    assert healthy_model.model_calls == 3


def test_a_nudge_reaches_the_model(looping_model: ModelServer, search: Search) -> None:
    with pytest.raises(EventLoopException) as stopped:
        agent_for(looping_model, search, Run(repeats=100, stall="coding"))("find rust")
    assert isinstance(stopped.value.original_exception, StallDetectedError)
    answers = [str(message["content"]) for message in looping_model.bodies[-1]["messages"] if message["role"] == "tool"]
    assert "You have called search" not in answers[0]
    assert "You have called search 3 times" in answers[-1]


# One object serves everybody.


class Made:
    hooks: Any = None

    def __init__(self, is_streamed: bool) -> None:
        self.is_streamed = is_streamed

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        self.hooks = hooks = RunGuardHooks(run)

        def new_agent() -> Agent:
            # Strands agents keep one conversation each.
            client = {"base_url": server.openai_url, "api_key": "unused", "max_retries": 0}
            return Agent(
                model=OpenAIModel(client_args=client, model_id=model), tools=[tool(search.tool)], hooks=[hooks], callback_handler=None
            )

        if not self.is_streamed:
            return lambda: str(new_agent()("find rust")).strip()

        async def ask() -> str:
            last: Any = None
            async for event in new_agent().stream_async("find rust"):
                last = event.get("result", last)
            return str(last).strip()

        return ask


# Strands streams from the model either way.
BARS = {"Strands": Driver("strands-agents", Made(False), Made(True))}


@pytest.fixture(params=[False, True], ids=["called", "streamed"])
def made(request: pytest.FixtureRequest) -> Made:
    return Made(request.param)


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    check(made, search, caplog)


def test_invocations_are_forgotten(made: Made, search: Search) -> None:
    checks.invocations_are_forgotten(made, search, lambda: len(made.hooks._runs), count=20)
    assert not len(made.hooks._runs) and not made.hooks._calls


def test_an_agent_in_a_tool_belongs_to_the_run(search: Search) -> None:
    with checks.one_run_for_two_agents(search) as (server, new_run):
        hooks, client = RunGuardHooks(new_run), {"base_url": server.openai_url, "api_key": "unused"}
        chat = OpenAIModel(client_args=client, model_id="gpt-4o")

        @tool(name="search")
        def outer_search(query: str) -> str:
            """Asks another agent."""
            return str(Agent(model=chat, tools=[tool(search.tool)], hooks=[hooks], callback_handler=None)(query))

        outer = Agent(model=chat, tools=[outer_search], hooks=[hooks], callback_handler=None)
        assert str(outer("find rust")).strip() == FINAL_ANSWER
