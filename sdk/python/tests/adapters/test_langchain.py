"""LangChain agents and bare LangGraph graphs on a real chat model class, against the local model service."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Annotated, Any, Callable, TypedDict

import checks
import pytest
from bars import Driver
from conftest import Search
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt
from model_server import FINAL_ANSWER, Call, ModelServer, Reply, Usage, healthy, looping

from runguard import BudgetExceededError, BudgetTracker, LoopDetectedError, Run, guard
from runguard.adapters.langchain import RunGuardCallbacks, RunGuardMiddleware

QUESTION = {"messages": [{"role": "user", "content": "find it"}]}


def openai_model(server: ModelServer) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o-mini", base_url=server.openai_url, api_key="none", stream_usage=True)


def anthropic_model(server: ModelServer) -> ChatAnthropic:
    return ChatAnthropic(model="claude-haiku-4-5", base_url=server.url, api_key="none", max_tokens=100)


MODELS = {"openai": openai_model, "anthropic": anthropic_model}

# Each of them runs an agent or graph to its end and gives the last message.


def invoke(graph: Any, config: dict[str, Any]) -> AnyMessage:
    return graph.invoke(QUESTION, config)["messages"][-1]


def ainvoke(graph: Any, config: dict[str, Any]) -> AnyMessage:
    return asyncio.run(graph.ainvoke(QUESTION, config))["messages"][-1]


def stream(graph: Any, config: dict[str, Any]) -> AnyMessage:
    *_, (_, last) = graph.stream(QUESTION, config, stream_mode=["messages", "values"])
    return last["messages"][-1]


def astream(graph: Any, config: dict[str, Any]) -> AnyMessage:
    async def drained() -> AnyMessage:
        last: Any = None
        async for mode, part in graph.astream(QUESTION, config, stream_mode=["messages", "values"]):
            last = part if mode == "values" else last
        return last["messages"][-1]

    return asyncio.run(drained())


WAYS = [invoke, ainvoke, stream, astream]
Way = Callable[[Any, dict[str, Any]], AnyMessage]


class Guarded:
    """One way to put a guard into LangChain."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def play(self, way: Way, server: ModelServer, search: Search, run: Run, model: str = "openai") -> AnyMessage:
        chat, tools = MODELS[model](server), [tool(search.tool)]
        if self.kind == "agent":
            return way(create_agent(chat, tools, middleware=[RunGuardMiddleware(run)]), {"recursion_limit": 60})
        return way(graph_of(chat.bind_tools(tools), ToolNode(tools)), {"recursion_limit": 60, "callbacks": [RunGuardCallbacks(run)]})


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def graph_of(chat: Any, tools: ToolNode, checkpointer: Any = None) -> Any:
    def ask(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [chat.invoke(state["messages"], config)]}

    graph = StateGraph(State)
    graph.add_node("model", ask)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer)


@pytest.fixture(params=["agent", "callbacks"])
def guarded(request: pytest.FixtureRequest) -> Guarded:
    return Guarded(request.param)


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_is_stopped_before_the_fourth_tool_run_and_stays_stopped(
    guarded: Guarded, way: Way, looping_model: ModelServer, search: Search
) -> None:
    run = Run(repeats=4)
    with pytest.raises(LoopDetectedError) as caught:
        guarded.play(way, looping_model, search, run)
    assert caught.value.pattern == "search"
    assert (len(search.runs), looping_model.model_calls) == (3, 4)
    with pytest.raises(LoopDetectedError):
        guarded.play(way, looping_model, search, run)
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


@pytest.mark.parametrize("way", WAYS)
def test_a_healthy_run_is_untouched(guarded: Guarded, way: Way, healthy_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    assert guarded.play(way, healthy_model, search, run).text == FINAL_ANSWER
    assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
    assert healthy_model.model_calls == 6
    assert not run.tripped


@pytest.mark.parametrize("way", WAYS)
def test_a_run_can_end_cleanly_instead(way: Way, looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    agent = create_agent(openai_model(looping_model), [tool(search.tool)], middleware=[RunGuardMiddleware(run, on_trip="end")])
    last = way(agent, {"recursion_limit": 60})
    assert isinstance(last, AIMessage) and not last.tool_calls
    assert last.text == run.message != ""
    assert (len(search.runs), looping_model.model_calls) == (3, 4)
    assert way(agent, {"recursion_limit": 60}).text == run.message
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


@pytest.mark.parametrize("way", WAYS)
def test_a_repeated_call_is_told_before_the_run_is_stopped(way: Way, looping_model: ModelServer, search: Search) -> None:
    middleware = RunGuardMiddleware(lambda: Run(repeats=4), on_repeat="tell")
    with pytest.raises(LoopDetectedError):
        way(create_agent(openai_model(looping_model), [tool(search.tool)], middleware=[middleware]), {"recursion_limit": 60})
    assert (len(search.runs), looping_model.model_calls) == (1, 4)
    checks.assert_told(looping_model)


def telling_graph(server: ModelServer, search: Search) -> tuple[Any, dict[str, Any]]:
    """A graph of one's own whose tools tell of repeats, and its config."""
    guard, tools = RunGuardCallbacks(lambda: Run(repeats=4)), [tool(search.tool)]
    node = ToolNode(tools, wrap_tool_call=guard.tell_repeats, awrap_tool_call=guard.tell_repeats_async)
    return graph_of(openai_model(server).bind_tools(tools), node), {"recursion_limit": 60, "callbacks": [guard]}


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_tells_of_a_repeated_call_before_it_is_stopped(way: Way, looping_model: ModelServer, search: Search) -> None:
    graph, config = telling_graph(looping_model, search)
    for runs in (1, 2):
        with pytest.raises(LoopDetectedError):
            way(graph, config)
        assert (len(search.runs), looping_model.model_calls) == (runs, 4 * runs)
    checks.assert_told(looping_model)


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_tells_nothing_of_different_calls(way: Way, healthy_model: ModelServer, search: Search) -> None:
    graph, config = telling_graph(healthy_model, search)
    assert way(graph, config).text == FINAL_ANSWER
    assert len(search.runs) == 5
    # Without the callbacks nobody counts, and nobody tells.
    healthy_model.forget()
    assert way(graph, {"recursion_limit": 60}).text == FINAL_ANSWER
    assert len(search.runs) == 10


@pytest.mark.parametrize("way", WAYS)
def test_different_calls_are_never_told_of(way: Way, healthy_model: ModelServer, search: Search) -> None:
    middleware = RunGuardMiddleware(lambda: Run(repeats=4), on_repeat="tell")
    agent = create_agent(openai_model(healthy_model), [tool(search.tool)], middleware=[middleware])
    assert way(agent, {"recursion_limit": 60}).text == FINAL_ANSWER
    assert len(search.runs) == 5
    with pytest.raises(ValueError, match="on_repeat"):
        RunGuardMiddleware(on_repeat="skip")  # type: ignore[arg-type]


def test_the_other_answer_to_a_trip_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="on_trip"):
        RunGuardMiddleware(Run(), on_trip="block")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["agent", "callbacks"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("model", "usage", "dollars_per_call"),
    [
        ("openai", Usage(1000, 50, 400, 0), (600 * 0.15 + 400 * 0.075 + 50 * 0.60) / 1e6),
        ("openai", Usage(1000, 50, 400, 0, service_tier="priority"), (600 * 0.25 + 400 * 0.125 + 50 * 1.00) / 1e6),
        ("anthropic", Usage(1000, 50, 400, 100), (500 * 1 + 400 * 0.10 + 100 * 1.25 + 50 * 5) / 1e6),
        ("anthropic", Usage(1000, 50, 400, 100, cache_write_1h=60), (500 * 1 + 400 * 0.10 + 40 * 1.25 + 60 * 2 + 50 * 5) / 1e6),
    ],
)
def test_usage_is_priced(kind: str, way: Way, model: str, usage: Usage, dollars_per_call: float, search: Search) -> None:
    budget = BudgetTracker(max_usd=1.0)
    with ModelServer(healthy(), usage=usage) as server:
        Guarded(kind).play(way, server, search, Run(repeats=4, budget=budget), model)
    assert budget.spent == pytest.approx(6 * dollars_per_call, abs=1e-12)


@pytest.mark.parametrize("kind", ["agent", "callbacks"])
@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_breaks_the_budget_has_no_tool_run(kind: str, way: Way, healthy_model: ModelServer, search: Search) -> None:
    with pytest.raises(BudgetExceededError):
        Guarded(kind).play(way, healthy_model, search, Run(repeats=4, max_tokens=2500))
    assert (len(search.runs), healthy_model.model_calls) == (2, 3)


@pytest.mark.parametrize("way", [invoke, ainvoke])
def test_a_nudge_is_given_to_the_model(way: Way, search: Search) -> None:
    with ModelServer([*looping() * 3, *healthy(values=["other"])]) as server:
        Guarded("agent").play(way, server, search, Run(repeats=10, stall="coding"))
        results = [[message["content"] for message in body["messages"] if message["role"] == "tool"] for body in server.bodies]
    assert results[2] == ["no result for rust"] * 2
    assert results[3][2].startswith("no result for rust\n\n") and len(results[3][2]) > 30
    assert results[4][2] == results[3][2]


def test_a_tool_that_fails_fails_as_before(healthy_model: ModelServer) -> None:
    @tool
    def search(query: str) -> str:
        """Searches."""
        raise LookupError(f"nothing about {query}")

    agent = create_agent(openai_model(healthy_model), [search], middleware=[RunGuardMiddleware(Run(stall="coding"))])
    with pytest.raises(LookupError, match="nothing about rust"):
        agent.invoke(QUESTION)


def test_calls_made_side_by_side_are_all_answered_when_the_run_ends_cleanly(search: Search) -> None:
    both = looping()[0]
    both = type(both)(calls=both.calls * 2)
    with ModelServer([both]) as server:
        agent = create_agent(openai_model(server), [tool(search.tool)], middleware=[RunGuardMiddleware(Run(repeats=4), on_trip="end")])
        messages = agent.invoke(QUESTION)["messages"]
    asked = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    answered = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
    assert sorted(asked) == sorted(answered)
    assert (len(search.runs), server.model_calls) == (3, 2)


# Without an adapter: the clients under the chat models are hooked.

COSTLY = Usage(input=1_600_000, output=1_000, cached=0, cache_write=0)


@pytest.mark.parametrize("way", [invoke, ainvoke, stream, astream], ids=lambda way: way.__name__)
def test_a_block_around_an_agent_caps_dollars(search: Search, way: Callable[..., Any]) -> None:
    with ModelServer(looping(), usage=COSTLY) as server:
        agent = create_agent(openai_model(server), [tool(search.tool)])
        with pytest.raises(BudgetExceededError), guard(max_usd=1) as run:
            way(agent, {"recursion_limit": 60})
    assert server.model_calls <= 5 and 1 <= run.budget.spent <= 1.25


def test_a_wrapped_tool_that_is_refused_ends_the_run(looping_model: ModelServer, search: Search) -> None:
    with pytest.raises(LoopDetectedError), guard(repeats=3) as run:
        agent = create_agent(openai_model(looping_model), [tool(run.tool(search.tool))])
        invoke(agent, {"recursion_limit": 60})
    assert len(search.runs) == 2 and looping_model.model_calls == 3


def test_with_the_adapter_inside_of_a_block_nothing_is_counted_twice(search: Search) -> None:
    with ModelServer(looping(), usage=COSTLY) as server:
        run = Run(max_usd=1, repeats=100)
        agent = create_agent(openai_model(server), [tool(search.tool)], middleware=[RunGuardMiddleware(run)])
        with pytest.raises(BudgetExceededError), guard(run=run):
            invoke(agent, {"recursion_limit": 60})
        assert run.budget.spent == pytest.approx(server.model_calls * 0.2406)


# One object serves everybody.


class Made:
    """Agents and graphs that are built once and invoked by many."""

    guard: Any = None

    def __init__(self, kind: str, way: Way) -> None:
        self.kind, self.way = kind, way

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        chat = ChatOpenAI(model=model, base_url=server.openai_url, api_key="none", stream_usage=True, max_retries=0)
        tools = [tool(search.tool)]
        config: dict[str, Any] = {"recursion_limit": 60}
        if self.kind == "agent":
            self.guard = RunGuardMiddleware(run)
            graph = create_agent(chat, tools, middleware=[self.guard])
        else:
            self.guard = RunGuardCallbacks(run)
            graph, config["callbacks"] = graph_of(chat.bind_tools(tools), ToolNode(tools)), [self.guard]
        way = self.way
        if way in (invoke, stream):
            return lambda: way(graph, config).text

        async def ask() -> str:
            if way is ainvoke:
                return (await graph.ainvoke(QUESTION, config))["messages"][-1].text
            last: Any = None
            async for mode, part in graph.astream(QUESTION, config, stream_mode=["messages", "values"]):
                last = part if mode == "values" else last
            return last["messages"][-1].text

        return ask


BARS = {
    "LangChain": Driver("langchain", Made("agent", invoke), Made("agent", stream)),
    "LangGraph": Driver("langgraph", Made("callbacks", invoke), Made("callbacks", stream)),
}


@pytest.fixture(params=[(kind, way) for kind in ("agent", "callbacks") for way in WAYS], ids=lambda made: f"{made[0]}-{made[1].__name__}")
def made(request: pytest.FixtureRequest) -> Made:
    return Made(*request.param)


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    check(made, search, caplog)


def test_invocations_are_forgotten(made: Made, search: Search) -> None:
    checks.invocations_are_forgotten(made, search, lambda: len(made.guard._runs))
    assert made.kind == "agent" or not made.guard._roots


def test_callbacks_in_an_event_loop_refuse_what_does_not_fit() -> None:
    with ModelServer([Reply(text=FINAL_ANSWER)], usage=checks.QUARTER) as server:
        run = Run(max_usd=1)
        chat = ChatOpenAI(model="gpt-4o", base_url=server.openai_url, api_key="none", max_retries=0, max_tokens=20_000)

        async def ask() -> str:
            return (await chat.ainvoke("find it", {"callbacks": [RunGuardCallbacks(run)]})).text

        checks.once(ask)
        answered = [outcome for outcome in checks.at_once(ask, 64) if isinstance(outcome, str)]
        assert 1 <= len(answered) <= 3 and server.model_calls == 1 + len(answered)
        assert run.budget.spent <= 1


def test_questions_of_a_tool_are_no_calls(search: Search) -> None:
    @tool
    def book(room: str) -> str:
        """Books a room."""
        answers = [interrupt(f"question {number}") for number in range(4)]
        return ",".join(answers)

    for kind in ("agent", "callbacks"):
        run = Run(repeats=3, stall="coding")
        with ModelServer([Reply(calls=(Call("book", {"room": "12"}),)), Reply(text=FINAL_ANSWER)]) as server:
            chat = openai_model(server)
            config: dict[str, Any] = {"configurable": {"thread_id": "1"}}
            if kind == "agent":
                graph = create_agent(chat, [book], middleware=[RunGuardMiddleware(run)], checkpointer=InMemorySaver())
            else:
                graph = graph_of(chat.bind_tools([book]), ToolNode([book]), InMemorySaver())
                config["callbacks"] = [RunGuardCallbacks(run)]
            state = graph.invoke(QUESTION, config)
            for number in range(4):
                assert "__interrupt__" in state
                state = graph.invoke(Command(resume=f"answer {number}"), config)
        assert state["messages"][-1].text == FINAL_ANSWER
        assert not run.tripped and server.model_calls == 2


def test_an_agent_in_a_tool_belongs_to_the_run(search: Search) -> None:
    with checks.one_run_for_two_agents(search) as (server, new_run):
        chat = ChatOpenAI(model="gpt-4o", base_url=server.openai_url, api_key="none")
        middleware = RunGuardMiddleware(new_run)
        inner = create_agent(chat, [tool(search.tool)], middleware=[middleware])

        @tool("search")
        def outer(query: str) -> str:
            """Asks another agent."""
            return inner.invoke(QUESTION)["messages"][-1].text

        agent = create_agent(chat, [outer], middleware=[middleware])
        assert agent.invoke(QUESTION)["messages"][-1].text == FINAL_ANSWER


def test_a_graph_whose_tool_node_handles_errors_is_stopped_too(looping_model: ModelServer, search: Search) -> None:
    tools = [tool(search.tool)]
    graph = graph_of(openai_model(looping_model).bind_tools(tools), ToolNode(tools, handle_tool_errors=True))
    with pytest.raises(LoopDetectedError):
        graph.invoke(QUESTION, {"callbacks": [RunGuardCallbacks(lambda: Run(repeats=3))]})
    assert (len(search.runs), looping_model.model_calls) == (2, 3)


def test_a_stream_that_is_broken_off_is_billed_by_what_came(search: Search) -> None:
    with ModelServer([Reply(text="more " * 2_000)], usage=checks.QUARTER) as server:
        chat = ChatOpenAI(model="gpt-4o", base_url=server.openai_url, api_key="none")
        run = Run(max_usd=1)
        parts = chat.stream("find it", {"callbacks": [RunGuardCallbacks(run)]})
        for part in parts:
            if part.content:
                break
        parts.close()
    # Half of the answer, by its size.
    assert run.budget.spent == pytest.approx(0.0167, rel=0.1) and run._run.estimated_calls == 1


def test_when_money_is_short_the_answer_is_shorter(search: Search) -> None:
    with ModelServer([Reply(text=FINAL_ANSWER)]) as server:
        chat = ChatOpenAI(model="gpt-4o", base_url=server.openai_url, api_key="none", max_tokens=100_000)
        create_agent(chat, [], middleware=[RunGuardMiddleware(Run(max_usd=0.1))]).invoke(QUESTION)
        assert 1_000 < server.bodies[0]["max_completion_tokens"] < 10_000


def test_each_of_many_answers_is_paid_for() -> None:
    with ModelServer([Reply(text=FINAL_ANSWER)]) as server:
        chat = ChatOpenAI(model="gpt-4o", base_url=server.openai_url, api_key="none", max_tokens=1_000, n=64)
        create_agent(chat, [], middleware=[RunGuardMiddleware(Run(max_usd=0.1))]).invoke(QUESTION)
        assert (server.bodies[0]["n"], server.bodies[0]["max_completion_tokens"]) == (64, pytest.approx(155, abs=3))


def test_the_callbacks_need_only_langchain_core() -> None:
    code = (
        "import sys; sys.modules['langchain'] = None; sys.modules['langgraph'] = None\n"
        "from runguard.adapters.langchain import RunGuardCallbacks; RunGuardCallbacks()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
