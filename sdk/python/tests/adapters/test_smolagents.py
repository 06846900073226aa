from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("smolagents")

from conftest import Search
from model_server import Call, ModelServer, Reply
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

from runguard import BudgetExceededError, LoopDetectedError, Run, StallDetectedError
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
def test_usage_is_recorded(search: Search, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    run, used = Run(repeats=4), []
    monkeypatch.setattr(run, "record_usage", lambda *given: used.append(given))
    with ModelServer(HEALTHY) as server:
        agent_for(server, search, run, stream_outputs=stream).run("compare runtimes")
    assert used == [("gpt-4o", 1000, 50, 0, 0)] * 4


@pytest.mark.parametrize("stream", [False, True])
def test_the_budget_stops_the_next_model_call(search: Search, stream: bool) -> None:
    # Each answer reports 1,050 tokens: the second passes the limit, so the third is not asked for.
    with ModelServer(HEALTHY) as server:
        with pytest.raises(BudgetExceededError):
            agent_for(server, search, Run(max_tokens=2000), stream_outputs=stream).run("compare runtimes")
        assert server.model_calls == 2


def test_a_nudge_reaches_the_model(looping_model: ModelServer, search: Search) -> None:
    with pytest.raises(StallDetectedError):
        agent_for(looping_model, search, Run(repeats=100, stall="coding")).run("find rust")
    texts = [str(message["content"]) for message in looping_model.bodies[-1]["messages"]]
    answers = [text for text in texts if "no result for rust" in text]
    assert "You have called search" not in answers[0]
    assert "You have called search 3 times" in answers[-1]
