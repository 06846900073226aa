from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

# LiteLLM fetches a price list at import otherwise.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

pytest.importorskip("google.adk")

from conftest import Search
from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from model_server import FINAL_ANSWER, Call, ModelServer, Reply

from runguard import BudgetExceededError, LoopDetectedError, Run, StallDetectedError
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
def test_usage_is_recorded(healthy_model: ModelServer, search: Search, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    run, used = Run(repeats=4), []
    monkeypatch.setattr(run, "record_usage", lambda *given: used.append(given))
    ask(healthy_model, search, run, stream=stream)
    # LiteLLM drops what OpenAI says of cache writes.
    assert used == [("gpt-4o", 600, 50, 400, 0)] * 6


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
