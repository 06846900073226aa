from __future__ import annotations

import threading
from typing import Any, Callable

import pytest

pytest.importorskip("smolagents")

import checks
from bars import Driver
from conftest import Search
from model_server import FINAL_ANSWER, Call, ModelServer, Reply
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

from runguard import BudgetExceededError, LoopDetectedError, Run, StallDetectedError, current_run
from runguard.adapters.smolagents import guard_agent

SAME_CODE = [Reply(text="Thought: look it up.\n<code>\nprint(search(query='rust'))\n</code>")]
HEALTHY = [
    *(Reply(calls=(Call("search", {"query": query}),)) for query in ("rust", "tokio", "serde")),
    Reply(calls=(Call("final_answer", {"answer": "done"}),)),
]


def search_tool(search: Search) -> Any:
    @tool
    def search_library(query: str) -> str:
        """Searches the library for a query.

        Args:
            query: What to look for.
        """
        return search.tool(query)

    search_library.name = "search"
    return search_library


def agent_for(server: ModelServer, search: Search, run: Run, kind: Any = ToolCallingAgent, **options: Any) -> Any:
    model = OpenAIModel(model_id="gpt-4o", api_base=server.openai_url, api_key="unused")
    agent = kind(tools=[search_tool(search)], model=model, verbosity_level=LogLevel.OFF, **options)
    return guard_agent(agent, run)


def test_a_loop_is_stopped_and_a_restart_refused(looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    agent = agent_for(looping_model, search, run)
    with pytest.raises(LoopDetectedError):
        agent.run("find rust")
    assert (len(search.runs), looping_model.model_calls) == (3, 4)

    with pytest.raises(LoopDetectedError):
        agent.run("find rust")
    with pytest.raises(LoopDetectedError):
        agent_for(looping_model, search, run).run("find rust")
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_a_new_run_can_be_given_to_the_same_agent(looping_model: ModelServer, search: Search) -> None:
    agent = agent_for(looping_model, search, Run(repeats=4))
    for _ in range(2):
        with pytest.raises(LoopDetectedError):
            agent.run("find rust")
        guard_agent(agent, Run(repeats=4))
    assert (len(search.runs), looping_model.model_calls) == (6, 8)


def test_a_streamed_run_is_stopped(looping_model: ModelServer, search: Search) -> None:
    agent = agent_for(looping_model, search, Run(repeats=4), stream_outputs=True)
    with pytest.raises(LoopDetectedError):
        list(agent.run("find rust", stream=True))
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_a_code_agent_is_stopped_and_a_restart_refused(search: Search) -> None:
    run = Run(repeats=4)
    with ModelServer(SAME_CODE) as server:
        agent = agent_for(server, search, run, kind=CodeAgent)
        with pytest.raises(LoopDetectedError):
            agent.run("find rust")
        assert (len(search.runs), server.model_calls) == (3, 4)
        with pytest.raises(LoopDetectedError):
            agent.run("find rust")
        assert (len(search.runs), server.model_calls) == (3, 4)


def test_a_loop_inside_the_code_is_stopped(search: Search) -> None:
    code = "<code>\nfor i in range(50):\n    try:\n        search(query='rust')\n    except Exception:\n        pass\n</code>"
    with ModelServer([Reply(text=code)]) as server:
        with pytest.raises(LoopDetectedError):
            agent_for(server, search, Run(repeats=4), kind=CodeAgent).run("find rust")
        assert (len(search.runs), server.model_calls) == (3, 1)


def test_a_managed_agent_stops_its_manager(search: Search) -> None:
    ask = Reply(calls=(Call("helper", {"task": "find rust"}),))
    loop = Reply(calls=(Call("search", {"query": "rust"}),))
    with ModelServer([ask, loop]) as server:
        model = OpenAIModel(model_id="gpt-4o", api_base=server.openai_url, api_key="unused")
        quiet = {"model": model, "verbosity_level": LogLevel.OFF}
        helper = ToolCallingAgent(tools=[search_tool(search)], name="helper", description="finds things", **quiet)
        manager = guard_agent(ToolCallingAgent(tools=[], managed_agents=[helper], **quiet), Run(repeats=4))
        with pytest.raises(LoopDetectedError):
            manager.run("find rust")
        # One model call of the manager, four of the helper.
        assert (len(search.runs), server.model_calls) == (3, 5)


def test_a_healthy_run_is_untouched(search: Search) -> None:
    run = Run(repeats=4)
    with ModelServer(HEALTHY) as server:
        assert agent_for(server, search, run).run("compare runtimes") == "done"
        assert search.runs == ["rust", "tokio", "serde"]
        assert server.model_calls == 4
    assert not run.tripped


def test_a_healthy_code_agent_is_untouched(search: Search) -> None:
    script = [
        Reply(text="<code>\nprint(search(query='rust'))\n</code>"),
        Reply(text="<code>\nprint(search('tokio'), search('serde'))\n</code>"),
        Reply(text="<code>\nfinal_answer('done')\n</code>"),
    ]
    run = Run(repeats=4)
    with ModelServer(script) as server:
        assert agent_for(server, search, run, kind=CodeAgent).run("compare runtimes") == "done"
        assert search.runs == ["rust", "tokio", "serde"]
        assert server.model_calls == 3
    assert not run.tripped


@pytest.mark.parametrize("stream", [False, True])
def test_usage_is_recorded(search: Search, stream: bool) -> None:
    run = Run(repeats=4, max_usd=1)
    with ModelServer(HEALTHY) as server:
        agent_for(server, search, run, stream_outputs=stream).run("compare runtimes")
    assert run.budget.spent == pytest.approx(4 * (1000 * 2.5 + 50 * 10) / 1e6)


@pytest.mark.parametrize("stream", [False, True])
def test_the_budget_stops_the_next_model_call(search: Search, stream: bool) -> None:
    # An answer reports 1,050 tokens, and the next prompt alone is longer than what is left then.
    with ModelServer(HEALTHY) as server:
        with pytest.raises(BudgetExceededError):
            agent_for(server, search, Run(max_tokens=2000), stream_outputs=stream).run("compare runtimes")
        assert server.model_calls == 1


def test_a_nudge_reaches_the_model(looping_model: ModelServer, search: Search) -> None:
    with pytest.raises(StallDetectedError):
        agent_for(looping_model, search, Run(repeats=100, stall="coding")).run("find rust")
    texts = [str(message["content"]) for message in looping_model.bodies[-1]["messages"]]
    answers = [text for text in texts if "no result for rust" in text]
    assert "You have called search" not in answers[0]
    assert "You have called search 3 times" in answers[-1]


# One object serves everybody.


class FinalAnswers(checks.Conversations):
    """smolagents ends with a call of `final_answer`, and writes tool results as text."""

    def answer(self, request: Any) -> Reply:
        self.requests.append(request)
        results = sum(message["role"] == "user" and "Observation:" in str(message["content"]) for message in request.body["messages"])
        reply = self.script[min(results, len(self.script) - 1)]
        return reply if reply.calls else Reply(calls=(Call("final_answer", {"answer": reply.text}),))


class Made:
    def __init__(self, is_streamed: bool) -> None:
        self.is_streamed = is_streamed

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        server.__class__ = FinalAnswers
        own = threading.local()

        def ask() -> str:
            # An agent keeps one conversation, so each thread has its own; they serve one user after the other.
            if not hasattr(own, "agent"):
                chat = OpenAIModel(model_id=model, api_base=server.openai_url, api_key="unused", client_kwargs={"max_retries": 0})
                agent = ToolCallingAgent(tools=[search_tool(search)], model=chat, verbosity_level=LogLevel.OFF, stream_outputs=self.is_streamed)
                own.agent = guard_agent(agent, run)
            if not self.is_streamed:
                return own.agent.run("find rust")
            *_, last = own.agent.run("find rust", stream=True)
            return last.output

        return ask


# OpenAIModel of smolagents fails itself on an answer without usage that is not streamed.
BARS = {"smolagents": Driver("smolagents", Made(False), Made(True), uncounted=Made(True))}


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def made(request: pytest.FixtureRequest) -> Made:
    return Made(request.param)


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    if check is checks.answers_without_usage_are_billed_by_size and not made.is_streamed:
        pytest.skip("OpenAIModel of smolagents fails itself on an answer without usage")
    check(made, search, caplog)


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_can_end_politely(looping_model: ModelServer, search: Search, stream: bool) -> None:
    run = Run(repeats=3)
    agent = guard_agent(agent_for(looping_model, search, run, stream_outputs=stream), run, on_trip="end")
    for _ in range(2):
        answer = list(agent.run("find rust", stream=True))[-1].output if stream else agent.run("find rust")
        assert answer == run.message != ""
        assert (len(search.runs), looping_model.model_calls) == (2, 3)


def test_a_repeated_call_is_told_before_the_run_is_stopped(looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    guard_agent(agent_for(looping_model, search, run), run, on_trip="end", on_repeat="tell").run("find rust")
    assert run.tripped and (len(search.runs), looping_model.model_calls) == (1, 4)
    checks.assert_told(looping_model)


def test_an_abandoned_run_leaves_nothing(search: Search) -> None:
    with ModelServer([Reply(text="more " * 2_000)], usage=checks.QUARTER) as server:
        run = Run(max_usd=1)
        steps = agent_for(server, search, run, stream_outputs=True).run("find rust", stream=True)
        for step in steps:
            if getattr(step, "content", None):
                break
        assert current_run() is None
        steps.close()
        assert current_run() is None and run.budget.reserved == 0
        assert 0.01 < run.budget.spent < 0.05
