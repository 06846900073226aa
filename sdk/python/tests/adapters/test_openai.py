"""The guarded `openai` client in the hands of a small hand-written agent: chat completions and responses, sync, async, streamed."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Callable, Iterator, NamedTuple

import checks
import openai
import pytest
from bars import Driver
from conftest import Search
from model_server import FINAL_ANSWER, ModelServer, Reply, Usage, healthy, looping

from runguard import BudgetExceededError, BudgetTracker, LoopDetectedError, Run, ToolLimitError, UnknownModelError
from runguard.adapters.openai import guard_openai

MODEL = "gpt-4o-mini"
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}}
RESPONSES_TOOL = {"type": "function", **TOOL["function"], "strict": False}


class Answer(NamedTuple):
    """What the agent needs of an answer, whichever way it came."""

    text: str
    calls: list[tuple[str, str]]  # id, arguments
    transcript: list[Any]  # what is added to the conversation


def chat_answer(message: Any) -> Answer:
    return Answer(message.content or "", [(call.id, call.function.arguments) for call in message.tool_calls or ()], [message])


def chat_from_chunks(chunks: list[Any]) -> Answer:
    text, calls = "", {}
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(
                    part.index, {"id": part.id, "type": "function", "function": {"name": part.function.name, "arguments": ""}}
                )
                call["function"]["arguments"] += part.function.arguments
    message = {"role": "assistant", "content": text or None, **({"tool_calls": list(calls.values())} if calls else {})}
    return Answer(text, [(call["id"], call["function"]["arguments"]) for call in calls.values()], [message])


def response_answer(response: Any) -> Answer:
    calls = [(item.call_id, item.arguments) for item in response.output if item.type == "function_call"]
    return Answer(response.output_text, calls, list(response.output))


async def collected(stream: Any) -> list[Any]:
    return [event async for event in stream]


KINDS = [f"{api} {how} {form}" for api in ("chat", "responses") for how in ("sync", "async") for form in ("whole", "streamed")]


@pytest.fixture(params=KINDS)
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    agent = Agent(request.param, asyncio.new_event_loop())
    yield agent
    agent.close()


class Agent:
    """Asks, runs the tool, asks again, until an answer comes without a call."""

    def __init__(self, kind: str, loop: asyncio.AbstractEventLoop) -> None:
        self.api, self.how, self.form = kind.split()
        self.loop = loop
        self.model = MODEL
        self.clients: list[Any] = []

    def client(self, server: ModelServer, run: Run, **options: Any) -> Any:
        kind = openai.OpenAI if self.how == "sync" else openai.AsyncOpenAI
        self.clients.append(guard_openai(kind(base_url=server.openai_url, api_key="none", **options), run))
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            self._wait(client.close())
        self.loop.close()

    def ask(self, client: Any, items: list[Any]) -> Answer:
        stream = {"stream": True} if self.form == "streamed" else {}
        if self.api == "chat":
            answer = self._wait(client.chat.completions.create(model=self.model, messages=items, tools=[TOOL], **stream))
            return chat_from_chunks(self._events(answer)) if stream else chat_answer(answer.choices[0].message)
        answer = self._wait(client.responses.create(model=self.model, input=items, tools=[RESPONSES_TOOL], **stream))
        return response_answer(self._events(answer)[-1].response if stream else answer)

    def play(self, client: Any, search: Search, question: str = "find it") -> str:
        items: list[Any] = [{"role": "user", "content": question}]
        for _ in range(20):
            answer = self.ask(client, items)
            if not answer.calls:
                return answer.text
            items += answer.transcript
            for id_, arguments in answer.calls:
                result = search.tool(**json.loads(arguments))
                if self.api == "chat":
                    items.append({"role": "tool", "tool_call_id": id_, "content": result})
                else:
                    items.append({"type": "function_call_output", "call_id": id_, "output": result})
        raise AssertionError("the agent did not come to an end")

    def _wait(self, value: Any) -> Any:
        return self.loop.run_until_complete(value) if asyncio.iscoroutine(value) else value

    def _events(self, stream: Any) -> list[Any]:
        return self.loop.run_until_complete(collected(stream)) if self.how == "async" else list(stream)


class Made:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], str]:
        client = openai.OpenAI(base_url=server.openai_url, api_key="none", max_retries=0)

        def ask() -> str:
            agent = Agent(self.kind, asyncio.new_event_loop())
            agent.model = model
            return agent.play(guard_openai(client, checks.run_of(run)), search)

        return ask


BARS = {"openai": Driver("openai", Made("chat sync whole"), Made("chat sync streamed"))}


def test_a_loop_is_stopped_before_the_fourth_tool_run_and_stays_stopped(agent: Agent, looping_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4)
    client = agent.client(looping_model, run)
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


def test_usage_is_priced_with_the_cached_tokens_taken_out_of_the_input(agent: Agent, search: Search) -> None:
    budget = BudgetTracker(max_usd=1.0)
    with ModelServer(healthy(), usage=Usage(input=1000, output=50, cached=400, cache_write=0)) as server:
        agent.play(agent.client(server, Run(repeats=4, budget=budget)), search)
        # 600 fresh tokens at $0.15, 400 cached ones at $0.075, 50 written ones at $0.60 per million, six times.
        assert budget.spent == pytest.approx(6 * (600 * 0.15 + 400 * 0.075 + 50 * 0.60) / 1e6, abs=1e-12)


def test_how_an_answer_was_served_has_its_price(agent: Agent, search: Search) -> None:
    budget = BudgetTracker(max_usd=1.0)
    with ModelServer(healthy(), usage=Usage(input=1000, output=50, cached=400, cache_write=0, service_tier="priority")) as server:
        agent.play(agent.client(server, Run(repeats=4, budget=budget)), search)
        # $0.25, $0.125 and $1.00 per million where $0.15, $0.075 and $0.60 are usual.
        assert budget.spent == pytest.approx(6 * (600 * 0.25 + 400 * 0.125 + 50 * 1.00) / 1e6, abs=1e-12)


def test_an_answer_that_breaks_the_budget_has_no_tool_run(agent: Agent, healthy_model: ModelServer, search: Search) -> None:
    run = Run(repeats=4, max_tokens=2500)
    client = agent.client(healthy_model, run)
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
    script = [*looping() * 3, *healthy(values=["other"])]
    with ModelServer(script) as server:
        assert agent.play(agent.client(server, Run(repeats=10, stall="coding")), search) == FINAL_ANSWER
        texts = [json.dumps(body, default=str) for body in server.bodies]
    plain = "no result for rust"
    assert texts[2].count(plain) == 2 and f"{plain}\\n\\n" not in texts[2]
    # The third equal result brings the nudge; the next request has it too.
    assert texts[3].count(f"{plain}\\n\\n") == 1
    assert texts[4].count(f"{plain}\\n\\n") == 1


def test_a_transcript_that_already_loops_is_refused_by_a_fresh_run_before_anything_is_sent(
    agent: Agent, looping_model: ModelServer
) -> None:
    items: list[Any] = [{"role": "user", "content": "find it"}]
    for number in range(4):
        id_, arguments = f"old_{number}", '{"query": "rust"}'
        if agent.api == "chat":
            call = {"id": id_, "type": "function", "function": {"name": "search", "arguments": arguments}}
            items += [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": id_, "content": "none"}]
        else:
            items += [
                {"type": "function_call", "call_id": id_, "name": "search", "arguments": arguments},
                {"type": "function_call_output", "call_id": id_, "output": "none"},
            ]
    with pytest.raises(LoopDetectedError):
        agent.ask(agent.client(looping_model, Run(repeats=4)), items)
    assert looping_model.model_calls == 0
    # The same calls before the user's newest message are an earlier turn's.
    answer = agent.ask(agent.client(looping_model, Run(repeats=4)), [*items, {"role": "user", "content": "again, please"}])
    assert len(answer.calls) == 1


def messages() -> list[Any]:
    return [{"role": "user", "content": "find it"}]


def test_every_way_to_the_model_is_guarded(looping_model: ModelServer) -> None:
    plain = openai.OpenAI(base_url=looping_model.openai_url, api_key="none")
    guarded = guard_openai(plain, Run(repeats=3))
    raw = guarded.chat.completions.with_raw_response.create(model=MODEL, messages=messages())
    assert raw.parse().choices[0].message.tool_calls
    assert guarded.with_options(timeout=5).responses.create(model=MODEL, input="find it").output
    with pytest.raises(LoopDetectedError):
        with guarded.chat.completions.stream(model=MODEL, messages=messages()) as stream:
            list(stream)
    for ask in (
        lambda: guarded.chat.completions.parse(model=MODEL, messages=messages()),
        lambda: guarded.responses.parse(model=MODEL, input="find it"),
        lambda: guarded.chat.completions.with_streaming_response.create(model=MODEL, messages=messages()).__enter__(),
    ):
        with pytest.raises(LoopDetectedError):
            ask()
    assert looping_model.model_calls == 3
    assert plain.chat.completions.create(model=MODEL, messages=messages()).choices


def test_the_usage_chunk_is_shown_only_to_those_who_asked() -> None:
    with ModelServer([Reply(text=FINAL_ANSWER)]) as server:
        client = guard_openai(openai.OpenAI(base_url=server.openai_url, api_key="none"), Run())
        unasked = list(client.chat.completions.create(model=MODEL, messages=messages(), stream=True))
        asked = list(client.chat.completions.create(model=MODEL, messages=messages(), stream=True, stream_options={"include_usage": True}))
    assert all(chunk.choices for chunk in unasked)
    assert asked[-1].usage.prompt_tokens == 1000
    assert len(asked) == len(unasked) + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_without_a_price_is_not_free(stream: bool) -> None:
    with ModelServer([Reply(text=FINAL_ANSWER)]) as server:
        plain = openai.OpenAI(base_url=server.openai_url, api_key="none")

        def ask(run: Run) -> Any:
            answer = guard_openai(plain, run).chat.completions.create(model="in-house-7", messages=messages(), stream=stream)
            return list(answer) if stream else answer

        with pytest.raises(UnknownModelError):
            ask(Run(max_usd=1.0))
        assert ask(Run(max_tokens=5000))
        assert ask(Run())


def test_a_stream_that_the_caller_leaves_early_is_closed(looping_model: ModelServer) -> None:
    client = guard_openai(openai.OpenAI(base_url=looping_model.openai_url, api_key="none"), Run(repeats=4))
    stream = client.chat.completions.create(model=MODEL, messages=messages(), stream=True)
    next(stream)
    stream.close()
    assert stream.response.is_closed
