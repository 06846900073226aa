from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("strands")

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


def test_usage_is_recorded(healthy_model: ModelServer, search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    run, used = Run(repeats=4), []
    monkeypatch.setattr(run, "record_usage", lambda *given: used.append(given))
    agent_for(healthy_model, search, run)("compare web frameworks")
    assert used == [("gpt-4o", 500, 50, 400, 100)] * 6


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
