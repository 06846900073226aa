"""The guarded `anthropic` client in the hands of a small hand-written agent: sync, async, streamed, and with the stream helper."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Callable, Iterator

import anthropic
import checks
import pytest
from bars import QUARTER_OF_HAIKU, Driver
from conftest import Search
from model_server import FINAL_ANSWER, ModelServer, Reply, healthy, looping

from runguard import BudgetExceededError, BudgetTracker, LoopDetectedError, Run, ToolLimitError
from runguard.adapters.anthropic import guard_anthropic

MODEL = "claude-haiku-4-5"
TOOLS = [{"name": "search", "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}}}]
KINDS = [f"{how} {form}" for how in ("sync", "async") for form in ("whole", "streamed", "helper")]


class Agent:
    """Asks, runs the tool, asks again, until an answer comes without a call."""

    def __init__(self, kind: str, loop: asyncio.AbstractEventLoop) -> None:
        self.how, self.form = kind.split()
        self.loop = loop
        self.max_tokens = 100
        self.clients: list[Any] = []

    def client(self, server: ModelServer, run: Run, **options: Any) -> Any:
        kind = anthropic.Anthropic if self.how == "sync" else anthropic.AsyncAnthropic
        self.clients.append(guard_anthropic(kind(base_url=server.url, api_key="none", **options), run))
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            self._wait(client.close())
        self.loop.close()

    def ask(self, client: Any, messages: list[Any]) -> list[dict[str, Any]]:
        """The content blocks of the answer."""
        given = {"model": MODEL, "max_tokens": self.max_tokens, "messages": messages, "tools": TOOLS}
        if self.form == "whole":
            answer = self._wait(client.messages.create(**given))
            return [block.model_dump(exclude_none=True) for block in answer.content]
        if self.form == "streamed":
            stream = self._wait(client.messages.create(**given, stream=True))
            return put_together(self._wait(collected(stream)) if self.how == "async" else list(stream))
        answer = self._wait(final_message(client.messages.stream(**given))) if self.how == "async" else final_message_sync(client, given)
        return [block.model_dump(exclude_none=True) for block in answer.content]

    def play(self, client: Any, search: Search) -> str:
        messages: list[Any] = [{"role": "user", "content": "find it"}]
        for _ in range(20):
            blocks = self.ask(client, messages)
            calls = [block for block in blocks if block["type"] == "tool_use"]
            if not calls:
                return "".join(block["text"] for block in blocks)
            messages.append({"role": "assistant", "content": blocks})
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": search.tool(**call["input"])} for call in calls]
            messages.append({"role": "user", "content": results})
        raise AssertionError("the agent did not come to an end")

    def _wait(self, value: Any) -> Any:
        return self.loop.run_until_complete(value) if asyncio.iscoroutine(value) else value


async def collected(stream: Any) -> list[Any]:
    return [event async for event in stream]


async def final_message(manager: Any) -> Any:
    async with manager as stream:
        return await stream.get_final_message()


def final_message_sync(client: Any, given: dict[str, Any]) -> Any:
    with client.messages.stream(**given) as stream:
        return stream.get_final_message()


def put_together(events: list[Any]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event.type == "content_block_start":
            start = event.content_block
            blocks.append(
                {"type": "text", "text": ""}
                if start.type == "text"
                else {"type": "tool_use", "id": start.id, "name": start.name, "input": ""}
            )
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            blocks[event.index]["text"] += event.delta.text
        elif event.type == "content_block_delta":
            blocks[event.index]["input"] += event.delta.partial_json
        elif event.type == "content_block_stop" and blocks[event.index]["type"] == "tool_use":
            blocks[event.index]["input"] = json.loads(blocks[event.index]["input"])
    return blocks


@pytest.fixture(params=KINDS)
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    agent = Agent(request.param, asyncio.new_event_loop())
    yield agent
    agent.close()


class Made:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], str]:
        client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)

        def ask() -> str:
            agent = Agent(self.kind, asyncio.new_event_loop())
            agent.max_tokens = 20_000
            return agent.play(guard_anthropic(client, checks.run_of(run)), search)

        return ask


BARS = {"anthropic": Driver("anthropic", Made("sync whole"), Made("sync streamed"), model=MODEL, quarter=QUARTER_OF_HAIKU)}


def test_a_loop_is_stopped_before_the_fourth_tool_run_and_stays_stopped(agent: Agent, looping_model: ModelServer, search: Search) -> None:
    client = agent.client(looping_model, Run(repeats=4))
    with pytest.raises(LoopDetectedError) as caught:
        agent.play(client, search)
    assert caught.value.pattern == "search"
    assert (len(search.runs), looping_model.model_calls) == (3, 4)
    with pytest.raises(LoopDetectedError):
        agent.play(client, search)
    assert (len(search.runs), looping_model.model_calls) == (3, 4)


def test_a_healthy_run_is_untouched(agent: Agent, healthy_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    assert agent.play(agent.client(healthy_model, run), search) == FINAL_ANSWER
    assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
    assert healthy_model.model_calls == 6
    assert not run.tripped


def test_usage_is_priced_with_the_cached_tokens_beside_the_input(agent: Agent, healthy_model: ModelServer, search: Search) -> None:
    budget = BudgetTracker(max_usd=1.0)
    agent.play(agent.client(healthy_model, Run(repeats=4, budget=budget)), search)
    # 500 fresh tokens at $1, 400 read from the cache at $0.10, 100 written to it at $1.25, 50 in the answer at $5 per million, six times.
    assert budget.spent == pytest.approx(6 * (500 * 1 + 400 * 0.10 + 100 * 1.25 + 50 * 5) / 1e6, abs=1e-12)


def test_an_answer_that_breaks_the_budget_has_no_tool_run(agent: Agent, healthy_model: ModelServer, search: Search) -> None:
    client = agent.client(healthy_model, Run(repeats=4, max_tokens=2500))
    with pytest.raises(BudgetExceededError) as caught:
        agent.play(client, search)
    assert caught.value.unit == "tokens"
    assert (len(search.runs), healthy_model.model_calls) == (2, 3)
    with pytest.raises(BudgetExceededError):
        agent.play(client, search)
    assert (len(search.runs), healthy_model.model_calls) == (2, 3)


def test_retries_of_the_client_are_no_steps(agent: Agent, search: Search) -> None:
    with ModelServer([Reply(status=500), Reply(text=FINAL_ANSWER)]) as server:
        client = agent.client(server, Run(max_model_calls=1), max_retries=1)
        assert agent.play(client, search) == FINAL_ANSWER
        assert server.model_calls == 2
        with pytest.raises(ToolLimitError):
            agent.play(client, search)
        assert server.model_calls == 2


def test_a_nudge_reaches_the_model_and_stays_in_the_conversation(agent: Agent, search: Search) -> None:
    with ModelServer([*looping() * 3, *healthy(values=["other"])]) as server:
        assert agent.play(agent.client(server, Run(repeats=10, stall="coding")), search) == FINAL_ANSWER
        texts = [json.dumps(body) for body in server.bodies]
    plain = "no result for rust"
    assert texts[2].count(plain) == 2 and f"{plain}\\n\\n" not in texts[2]
    # The third equal result brings the nudge; the next request has it too.
    assert texts[3].count(f"{plain}\\n\\n") == 1
    assert texts[4].count(f"{plain}\\n\\n") == 1


def test_a_transcript_that_already_loops_is_refused_by_a_fresh_run_before_anything_is_sent(
    agent: Agent, looping_model: ModelServer
) -> None:
    messages: list[Any] = [{"role": "user", "content": "find it"}]
    for number in range(4):
        call = {"type": "tool_use", "id": f"old_{number}", "name": "search", "input": {"query": "rust"}}
        messages.append({"role": "assistant", "content": [call]})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"old_{number}", "content": "none"}]})
    with pytest.raises(LoopDetectedError):
        agent.ask(agent.client(looping_model, Run(repeats=4)), messages)
    assert looping_model.model_calls == 0
    # The same calls before the user's newest message are an earlier turn's.
    later = [*messages, {"role": "assistant", "content": "Nothing."}, {"role": "user", "content": "again, please"}]
    assert agent.ask(agent.client(looping_model, Run(repeats=4)), later)[0]["type"] == "tool_use"


def question() -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "find it"}]}


def test_every_way_to_the_model_is_guarded(looping_model: ModelServer) -> None:
    plain = anthropic.Anthropic(base_url=looping_model.url, api_key="none")
    guarded = guard_anthropic(plain, Run(repeats=3))
    assert guarded.messages.with_raw_response.create(**question()).parse().content
    assert guarded.with_options(timeout=5).beta.messages.create(**question()).content
    with pytest.raises(LoopDetectedError):
        guarded.messages.create(**question())
    for ask in (
        lambda: guarded.messages.with_streaming_response.create(**question()).__enter__(),
        lambda: guarded.beta.messages.create(**question()),
        lambda: guarded.copy().messages.create(**question()),
    ):
        with pytest.raises(LoopDetectedError):
            ask()
    assert looping_model.model_calls == 3
    assert guarded.messages.count_tokens(model=MODEL, messages=question()["messages"]).input_tokens == 1000
    assert plain.messages.create(**question()).content


def test_raw_answers_of_the_async_client_are_counted(looping_model: ModelServer) -> None:
    async def ask_twice() -> None:
        async with guard_anthropic(anthropic.AsyncAnthropic(base_url=looping_model.url, api_key="none"), Run(repeats=2)) as client:
            await client.messages.with_raw_response.create(**question())
            with pytest.raises(LoopDetectedError):
                await client.messages.with_raw_response.create(**question())

    asyncio.run(ask_twice())
    assert looping_model.model_calls == 2


def test_a_stream_that_is_left_early_counts_what_is_known(looping_model: ModelServer) -> None:
    run = Run(repeats=4, max_tokens=1000)
    client = guard_anthropic(anthropic.Anthropic(base_url=looping_model.url, api_key="none"), run)
    with client.messages.create(**question(), stream=True) as stream:
        next(stream)
        assert not run.tripped
    # The first event told of 1,000 tokens of input and one of output.
    assert run.tripped
    assert stream.response.is_closed


def test_an_async_stream_that_is_left_early_counts_what_is_known(looping_model: ModelServer) -> None:
    run = Run(repeats=4, max_tokens=1000)

    async def leave() -> bool:
        async with guard_anthropic(anthropic.AsyncAnthropic(base_url=looping_model.url, api_key="none"), run) as client:
            async with await client.messages.create(**question(), stream=True) as stream:
                await stream.__anext__()
            return stream.response.is_closed

    assert asyncio.run(leave())
    assert run.tripped
