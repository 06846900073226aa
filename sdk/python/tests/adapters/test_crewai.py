from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Callable

import pytest

pytest.importorskip("crewai")

import checks
from bars import Driver
from conftest import Search
from crewai import LLM, Agent, Crew, Task
from crewai.hooks.dispatch import HookAborted, InterceptionPoint, get_hooks
from crewai.tools import tool
from model_server import FINAL_ANSWER, Call, ModelServer, Reply

from runguard import BudgetExceededError, LoopDetectedError, Run, StallDetectedError, UnknownModelError
from runguard.adapters.crewai import _tokens, guarded_crew


@pytest.fixture(autouse=True)
def storage(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # CrewAI writes task outputs below the home directory otherwise.
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path))
    yield
    assert get_hooks(InterceptionPoint.PRE_MODEL_CALL) == []


def crew_for(server: ModelServer, search: Search, model: str = "openai/gpt-4o") -> Crew:
    llm = LLM(model=model, base_url=server.openai_url, api_key="unused")
    agent = Agent(role="searcher", goal="find", backstory="-", tools=[tool("search")(search.tool)], llm=llm)
    task = Task(description="find rust", expected_output="an answer", agent=agent)
    return Crew(agents=[agent], tasks=[task], verbose=False)


def test_a_loop_is_stopped_and_a_restart_refused(looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    crew = crew_for(looping_model, search)
    with pytest.raises(LoopDetectedError):
        with guarded_crew(run):
            crew.kickoff()
    assert (len(search.runs), looping_model.model_calls) == (3, 4)

    for again in (crew, crew_for(looping_model, search)):
        with pytest.raises(LoopDetectedError):
            with guarded_crew(run):
                again.kickoff()
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_a_repeated_call_is_told_before_the_run_is_stopped(looping_model: ModelServer, search: Search) -> None:
    with pytest.raises(LoopDetectedError):
        with guarded_crew(Run(repeats=4), on_repeat="tell"):
            crew_for(looping_model, search).kickoff()
    assert (len(search.runs), looping_model.model_calls) == (1, 4)
    checks.assert_told(looping_model)
    with pytest.raises(ValueError, match="on_repeat"):
        with guarded_crew(on_repeat="skip"):  # type: ignore[arg-type]
            pass


def test_different_calls_are_never_told_of(healthy_model: ModelServer, search: Search) -> None:
    with guarded_crew(Run(repeats=4), on_repeat="tell"):
        assert crew_for(healthy_model, search).kickoff().raw == FINAL_ANSWER
    assert len(search.runs) == 5


def test_a_restart_inside_the_block_is_refused(looping_model: ModelServer, search: Search) -> None:
    crew = crew_for(looping_model, search)
    with pytest.raises(LoopDetectedError):
        with guarded_crew(Run(repeats=4)):
            with pytest.raises(HookAborted):
                crew.kickoff()
            crew.kickoff()
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_an_agent_without_a_crew_is_stopped(looping_model: ModelServer, search: Search) -> None:
    agent = crew_for(looping_model, search).agents[0]
    with pytest.raises(LoopDetectedError):
        with guarded_crew(Run(repeats=4)):
            agent.kickoff("find rust")
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


async def stop_async(crew: Crew, run: Run) -> None:
    with guarded_crew(run):
        await crew.akickoff()


def test_an_async_crew_is_stopped(looping_model: ModelServer, search: Search) -> None:
    with pytest.raises(LoopDetectedError):
        asyncio.run(stop_async(crew_for(looping_model, search), Run(repeats=4)))
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_parallel_calls_after_the_trip_do_not_run(search: Search) -> None:
    call = Call("search", {"query": "rust"})
    with ModelServer([Reply(calls=(call,) * 5), Reply(text="never found")]) as server:
        with pytest.raises(LoopDetectedError):
            with guarded_crew(Run(repeats=4)):
                crew_for(server, search).kickoff()
        assert len(search.runs) <= 3
        assert server.model_calls == 1


def test_a_healthy_run_is_untouched(healthy_model: ModelServer, search: Search) -> None:
    with guarded_crew(Run(repeats=4)) as run:
        result = crew_for(healthy_model, search).kickoff()
    assert result.raw == FINAL_ANSWER
    assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
    assert healthy_model.model_calls == 6
    assert not run.tripped


def test_a_crew_next_to_the_block_is_untouched(healthy_model: ModelServer, search: Search) -> None:
    other: list[str] = []

    def unguarded() -> None:
        other.append(crew_for(healthy_model, search).kickoff().raw)

    # Any call or token of the other crew that were counted here would trip this run.
    with guarded_crew(Run(max_model_calls=0, max_tokens=1)) as run:
        thread = threading.Thread(target=unguarded)
        thread.start()
        thread.join()
    assert other == [FINAL_ANSWER]
    assert not run.tripped


def test_usage_is_recorded(healthy_model: ModelServer, search: Search) -> None:
    with guarded_crew(Run(repeats=4, max_usd=1)) as run:
        crew_for(healthy_model, search).kickoff()
    assert run.budget.spent == pytest.approx(6 * (600 * 2.5 + 400 * 1.25 + 50 * 10) / 1e6)


@pytest.mark.parametrize(
    "usage",
    [
        {"inputTokens": 500, "outputTokens": 50, "totalTokens": 1050, "cacheReadInputTokens": 400, "cacheWriteInputTokens": 100},
        {"input_tokens": 1000, "output_tokens": 50, "cached_prompt_tokens": 400, "cache_creation_tokens": 100},
        {"input_tokens": 500, "output_tokens": 50, "cache_read_input_tokens": 400, "cache_creation_input_tokens": 100},
    ],
    ids=["bedrock", "anthropic", "anthropic through litellm"],
)
def test_usage_of_other_providers_is_recorded(usage: dict[str, int]) -> None:
    assert _tokens(usage).counts[:4] == (500, 50, 400, 100)


def test_the_budget_stops_the_crew(healthy_model: ModelServer, search: Search) -> None:
    with pytest.raises(BudgetExceededError):
        with guarded_crew(Run(max_tokens=2000)):
            crew_for(healthy_model, search).kickoff()
    assert healthy_model.model_calls == 2


def test_a_model_without_a_price_stops_a_run_that_limits_dollars(healthy_model: ModelServer, search: Search) -> None:
    with pytest.raises(UnknownModelError):
        with guarded_crew(Run(max_usd=5)):
            crew_for(healthy_model, search, model="openai/gpt-4o-no-such-model").kickoff()
    assert healthy_model.model_calls == 0


def test_a_nudge_reaches_the_model(looping_model: ModelServer, search: Search) -> None:
    with pytest.raises(StallDetectedError):
        with guarded_crew(Run(repeats=100, stall="coding")):
            crew_for(looping_model, search).kickoff()
    answers = [str(message["content"]) for message in looping_model.bodies[-1]["messages"] if message["role"] == "tool"]
    assert "You have called search" not in answers[0]
    assert "You have called search 3 times" in answers[-1]


# The block is the run.


class Made:
    def __init__(self, is_async: bool, is_streamed: bool) -> None:
        self.is_async, self.is_streamed = is_async, is_streamed

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        def new_crew() -> Crew:
            # A crew keeps what its agents said, so each kickoff has a new one.
            llm = LLM(model=f"openai/{model}", base_url=server.openai_url, api_key="unused", max_retries=0, stream=self.is_streamed)
            agent = Agent(role="searcher", goal="find", backstory="-", tools=[tool("search")(search.tool)], llm=llm, max_retry_limit=0)
            return Crew(agents=[agent], tasks=[Task(description="find rust", expected_output="an answer", agent=agent)], verbose=False)

        def ask() -> str:
            with guarded_crew(run):
                return new_crew().kickoff().raw

        async def ask_async() -> str:
            with guarded_crew(run):
                return (await new_crew().akickoff()).raw

        return ask_async if self.is_async else ask


BARS = {"CrewAI": Driver("crewai", Made(False, False), Made(False, True))}


@pytest.fixture(params=["called", "called-streamed", "async"])
def made(request: pytest.FixtureRequest) -> Made:
    return Made("async" in request.param, "streamed" in request.param)


@checks.each
def test_it_does_what_all_do(check: Any, made: Made, search: Search, caplog: pytest.LogCaptureFixture) -> None:
    if check is checks.many_at_once_spend_what_there_is and made.is_async:
        pytest.skip("CrewAI holds the event loop up while a crew starts, so crews of one loop do not ask at once")
    check(made, search, caplog)


def test_a_block_can_end_politely(looping_model: ModelServer, search: Search) -> None:
    with guarded_crew(Run(repeats=3), on_trip="end") as run:
        crew_for(looping_model, search).kickoff()
    assert isinstance(run.trip, LoopDetectedError) and run.message
    assert (len(search.runs), looping_model.model_calls) == (2, 3)
