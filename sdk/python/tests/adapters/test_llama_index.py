"""LlamaIndex agents on its OpenAI class, against the local model service."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

import pytest

pytest.importorskip("llama_index.core")

import checks
from bars import Driver
from conftest import Search
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike
from model_server import FINAL_ANSWER, ModelServer, Reply

from runguard import BudgetExceededError, LoopDetectedError, Run, guard, trip_of
from runguard.adapters._runs import within
from runguard.adapters.llama_index import guard_agent, guard_llm

ACTION = 'Thought: I look it up.\nAction: search\nAction Input: {"query": "rust"}'


def llm_of(server: ModelServer, model: str = "gpt-4o") -> OpenAI:
    given: dict[str, Any] = {"model": model, "api_base": server.openai_url, "api_key": "none", "max_retries": 0}
    # LlamaIndex has a table of OpenAI's models, which knows no house models.
    return OpenAI(**given) if model.startswith("gpt-") else OpenAILike(**given, is_chat_model=True, is_function_calling_model=True)


class Made:
    def __init__(self, kind: str, is_streamed: bool) -> None:
        self.kind, self.is_streamed = kind, is_streamed

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str, **options: Any) -> Callable[[], Any]:
        tools = [FunctionTool.from_defaults(search.tool)]
        agent: Any = FunctionAgent(llm=llm_of(server, model), tools=tools, streaming=self.is_streamed)
        if self.kind == "workflow":
            agent = AgentWorkflow(agents=[agent])
        guard_agent(agent, run, **options)

        async def ask() -> str:
            return str(await agent.run("find it", max_iterations=60))

        return ask


BARS = {"LlamaIndex": Driver("llama-index-core", Made("agent", False), Made("agent", True))}


@pytest.fixture(params=["agent", "agent-streamed", "workflow", "workflow-streamed"])
def made(request: pytest.FixtureRequest) -> Made:
    kind, _, streamed = request.param.partition("-")
    return Made(kind, bool(streamed))


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    check(made, search, caplog)


def test_a_healthy_run_is_untouched(made: Made, healthy_model: ModelServer, search: Search) -> None:
    checks.a_healthy_run_is_untouched(made, healthy_model, search)


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


def test_an_agent_can_end_politely(made: Made, looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=3)
    ask = made(looping_model, search, run, "gpt-4o", on_trip="end")
    for _ in range(2):
        assert checks.once(ask) == run.message != ""
        assert (len(search.runs), looping_model.model_calls) == (2, 3)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_that_writes_its_calls_is_stopped(search: Search, is_streamed: bool) -> None:
    with ModelServer([Reply(text=ACTION)]) as server:
        tools = [FunctionTool.from_defaults(search.tool)]
        agent = guard_agent(ReActAgent(llm=llm_of(server), tools=tools, streaming=is_streamed), lambda: Run(repeats=3))

        async def ask() -> str:
            return str(await agent.run("find it", max_iterations=60))

        with pytest.raises(Exception) as caught:
            checks.once(ask)
        assert isinstance(trip_of(caught.value), LoopDetectedError)
        assert (len(search.runs), server.model_calls) == (2, 3)


def test_a_nudge_reaches_the_model(looping_model: ModelServer, search: Search) -> None:
    checks.a_nudge_reaches_the_model(Made("agent", False), looping_model, search)


def test_an_agent_in_a_tool_belongs_to_the_run(search: Search) -> None:
    with checks.one_run_for_two_agents(search) as (server, new_run):
        inner = guard_agent(FunctionAgent(llm=llm_of(server), tools=[FunctionTool.from_defaults(search.tool)]))

        async def ask_another(query: str) -> str:
            """Asks another agent."""
            return str(await inner.run(query))

        tools = [FunctionTool.from_defaults(async_fn=ask_another, name="search")]
        outer = guard_agent(FunctionAgent(llm=llm_of(server), tools=tools), new_run)

        async def ask() -> str:
            return str(await outer.run("find it"))

        assert checks.once(ask) == FINAL_ANSWER


def ask_chat(llm: OpenAI) -> None:
    llm.chat([ChatMessage(role="user", content="go on")])


def ask_stream_chat(llm: OpenAI) -> None:
    list(llm.stream_chat([ChatMessage(role="user", content="go on")]))


def ask_complete(llm: OpenAI) -> None:
    llm.complete("go on")


def ask_stream_complete(llm: OpenAI) -> None:
    list(llm.stream_complete("go on"))


def ask_later(llm: OpenAI) -> None:
    async def ask() -> None:
        await llm.acomplete("go on")
        async for _ in await llm.astream_complete("go on"):
            pass

    checks.once(ask)


@pytest.mark.parametrize("ask", [ask_chat, ask_stream_chat, ask_complete, ask_stream_complete, ask_later])
@pytest.mark.parametrize("hook", [False, True])
def test_an_llm_without_an_agent_tells_the_run_around_it(ask: Callable[[OpenAI], None], hook: bool) -> None:
    with ModelServer([Reply(text="more")], usage=checks.QUARTER) as server:
        given = llm_of(server)
        llm = guard_llm(given)
        ask(llm)
        server.forget()
        with pytest.raises(BudgetExceededError), guard(max_usd=1, hook=hook) as run:
            for _ in range(30):
                ask(llm)
        assert server.model_calls == 4 and run.budget.spent == pytest.approx(1)
        with guard(max_usd=0.001, hook=False):
            ask(given)


def test_a_stream_that_is_broken_off_is_billed() -> None:
    with ModelServer([Reply(text="more " * 2_000)], usage=checks.QUARTER) as server:
        llm = guard_llm(llm_of(server))
        with guard(max_usd=1, hook=False) as run:
            stream = llm.stream_complete("go on")
            next(stream)
            next(stream)
            stream.close()
        assert run.budget.reserved == 0
        assert 0.01 < run.budget.spent < 0.06


def test_a_request_that_fails_costs_nothing(made: Made, search: Search) -> None:
    checks.a_request_that_fails_costs_nothing(made, search)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_fails_is_settled_off_the_event_loop(is_streamed: bool) -> None:
    told_in: list[int] = []

    class Noted(Run):
        def _spent(self, step: Any) -> None:
            told_in.append(threading.get_ident())
            super()._spent(step)

    async def ask(llm: OpenAI) -> int:
        with pytest.raises(Exception, match="500"):
            if is_streamed:
                async for _ in await llm.astream_complete("go on"):
                    pass
            else:
                await llm.acomplete("go on")
        return threading.get_ident()

    with ModelServer([Reply(status=500)]) as server:
        llm = guard_llm(llm_of(server))
        run = Noted(max_usd=1)
        # As if a service had to be asked.
        run._asks_service = True
        with within(run):
            loop = checks.once(functools.partial(ask, llm))
    assert told_in and loop not in told_in
    assert (run.budget.spent, run.budget.reserved) == (0, 0)
