from __future__ import annotations

import asyncio
import gc
import os
from typing import Any, Callable

import pytest

# LiteLLM fetches a price list at import otherwise.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

pytest.importorskip("google.adk")

import checks
from bars import Driver
from conftest import Search
from google.adk.agents import Agent, ParallelAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from model_server import FINAL_ANSWER, Call, ModelServer, Reply

from runguard import BudgetExceededError, LoopDetectedError, Run, StallDetectedError, current_run
from runguard.adapters.google_adk import RunGuardPlugin


def ask(server: ModelServer, search: Search, run: Run, *, stream: bool = False, **options: Any) -> str:
    """Runs a fresh agent on one question and gives its last text."""

    async def answer() -> str:
        model = LiteLlm(model="openai/gpt-4o", api_base=server.openai_url, api_key="unused")
        agent = Agent(name="searcher", model=model, tools=[search.tool])
        app = App(name="library", root_agent=agent, plugins=[RunGuardPlugin(run, **options)])
        runner = InMemoryRunner(app=app)
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id="user")
        question = types.Content(role="user", parts=[types.Part(text="find rust")])
        config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
        texts = [""]
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=question, run_config=config):
            parts = event.content.parts or [] if event.content else []
            texts += [part.text for part in parts if part.text and not event.partial]
        return texts[-1]

    return asyncio.run(answer())


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_is_stopped_and_a_restart_refused(looping_model: ModelServer, search: Search, stream: bool) -> None:
    run = Run(repeats=4)
    for _ in range(2):
        with pytest.raises(RuntimeError) as stopped:
            ask(looping_model, search, run, stream=stream)
        assert isinstance(stopped.value.__cause__, LoopDetectedError)
        assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_a_loop_can_end_with_the_message_as_answer(looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    for _ in range(2):
        answer = ask(looping_model, search, run, on_trip="end")
        assert answer == run.message != ""
        assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_a_repeated_call_is_told_before_the_run_is_stopped(looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    ask(looping_model, search, run, on_trip="end", on_repeat="tell")
    assert run.tripped and (len(search.runs), looping_model.model_calls) == (1, 4)
    checks.assert_told(looping_model)


def test_parallel_calls_after_the_trip_do_not_run(search: Search) -> None:
    call = Call("search", {"query": "rust"})
    with ModelServer([Reply(calls=(call,) * 5), Reply(text="never found")]) as server:
        with pytest.raises(RuntimeError):
            ask(server, search, Run(repeats=4))
        assert (len(search.runs), server.model_calls) == (3, 1)


def test_a_healthy_run_is_untouched(healthy_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    assert ask(healthy_model, search, run) == FINAL_ANSWER
    assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
    assert healthy_model.model_calls == 6
    assert not run.tripped


@pytest.mark.parametrize("stream", [False, True])
def test_usage_is_recorded(healthy_model: ModelServer, search: Search, stream: bool) -> None:
    run = Run(repeats=4, max_usd=1)
    ask(healthy_model, search, run, stream=stream)
    # LiteLLM drops what OpenAI says of cache writes.
    assert run.budget.spent == pytest.approx(6 * (600 * 2.5 + 400 * 1.25 + 50 * 10) / 1e6)


@pytest.mark.parametrize("stream", [False, True])
def test_the_budget_stops_the_next_model_call(healthy_model: ModelServer, search: Search, stream: bool) -> None:
    # Each answer reports 1,050 tokens: the third passes the limit, so the fourth is not asked for.
    with pytest.raises(RuntimeError) as stopped:
        ask(healthy_model, search, Run(max_tokens=3000), stream=stream)
    assert isinstance(stopped.value.__cause__, BudgetExceededError)
    assert healthy_model.model_calls == 3


def test_a_nudge_reaches_the_model(looping_model: ModelServer, search: Search) -> None:
    with pytest.raises(RuntimeError) as stopped:
        ask(looping_model, search, Run(repeats=100, stall="coding"))
    assert isinstance(stopped.value.__cause__, StallDetectedError)
    answers = [str(message["content"]) for message in looping_model.bodies[-1]["messages"] if message["role"] == "tool"]
    assert "You have called search" not in answers[0]
    assert "You have called search 3 times" in answers[-1]


# One object serves everybody.


def question() -> types.Content:
    return types.Content(role="user", parts=[types.Part(text="find rust")])


class Made:
    plugin: Any = None

    def __init__(self, is_streamed: bool) -> None:
        self.is_streamed = is_streamed

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        self.plugin = RunGuardPlugin(run)
        chat = LiteLlm(model=f"openai/{model}", api_base=server.openai_url, api_key="unused", num_retries=0)
        agent = Agent(name="searcher", model=chat, tools=[search.tool])
        return asking(agent, self.plugin, StreamingMode.SSE if self.is_streamed else StreamingMode.NONE)


def asking(agent: Any, plugin: RunGuardPlugin, streaming: StreamingMode = StreamingMode.NONE) -> Callable[[], Any]:
    runner = InMemoryRunner(app=App(name="library", root_agent=agent, plugins=[plugin]))

    async def ask() -> str:
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id="user")
        texts = [""]
        config = RunConfig(streaming_mode=streaming)
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=question(), run_config=config):
            parts = event.content.parts or [] if event.content else []
            texts += [part.text for part in parts if part.text and not event.partial]
        return texts[-1]

    return ask


BARS = {"Google ADK": Driver("google-adk", Made(False), Made(True))}


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def made(request: pytest.FixtureRequest) -> Made:
    return Made(request.param)


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    check(made, search, caplog)


def test_invocations_are_forgotten(made: Made, search: Search) -> None:
    checks.invocations_are_forgotten(made, search, lambda: len(made.plugin._runs), count=40)
    gc.collect()
    assert len(made.plugin._runs) <= 1 and not any(made.plugin._asked.values())


def test_agents_in_tools_and_side_by_side_belong_to_the_run(search: Search) -> None:
    runs: list[Run] = []

    def new_run() -> Run:
        runs.append(Run(max_usd=10, repeats=100))
        return runs[-1]

    with checks.healthy_conversations(checks.QUARTER) as server:
        chat = LiteLlm(model="openai/gpt-4o", api_base=server.openai_url, api_key="unused")
        inner = Agent(name="search", model=chat, tools=[search.tool])
        server.script[0] = Reply(calls=(Call("search", {"query": "rust", "request": "rust"}),))
        outer = Agent(name="outer", model=chat, tools=[AgentTool(agent=inner)])
        assert checks.once(asking(outer, RunGuardPlugin(new_run))) == FINAL_ANSWER
        assert len(runs) == 1 and runs[0].budget.spent == pytest.approx(1) and search.runs == ["rust"]
        both = ParallelAgent(name="both", sub_agents=[Agent(name=name, model=chat, tools=[search.tool]) for name in ("left", "right")])
        assert checks.once(asking(both, RunGuardPlugin(new_run))) == FINAL_ANSWER
        assert len(runs) == 2 and runs[1].budget.spent == pytest.approx(1)


def test_an_abandoned_invocation_leaves_nothing(search: Search) -> None:
    with ModelServer([Reply(text="more " * 2_000)], usage=checks.QUARTER) as server:
        run = Run(max_usd=1)
        chat = LiteLlm(model="openai/gpt-4o", api_base=server.openai_url, api_key="unused")
        app = App(name="library", root_agent=Agent(name="searcher", model=chat, tools=[search.tool]), plugins=[RunGuardPlugin(run)])
        runner = InMemoryRunner(app=app)

        async def first_part() -> None:
            session = await runner.session_service.create_session(app_name=runner.app_name, user_id="user")
            config = RunConfig(streaming_mode=StreamingMode.SSE)
            events = runner.run_async(user_id="user", session_id=session.id, new_message=question(), run_config=config)
            async for event in events:
                if event.partial and event.content:
                    break
            await events.aclose()
            assert current_run() is None

        asyncio.run(first_part())
        gc.collect()
        assert run.budget.reserved == 0
        assert 0.01 < run.budget.spent < 0.05
