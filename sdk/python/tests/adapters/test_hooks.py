"""`with guard(max_usd=…)` without naming a client: real clients of openai, anthropic, boto3 and litellm against a local model."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import gzip
import http.server
import io
import json
import logging
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from guard_service import running_service
from model_server import ModelServer, Reply, Usage

import runguard
from runguard import BudgetExceededError, LoopDetectedError, Run, UnknownModelError, current_run, guard, guard_async

# A quarter of a dollar for gpt-4o ($2.50 and $10 a million), a little more for Claude.
COSTLY = Usage(input=96_000, output=1_000, cached=0, cache_write=0)
CLAUDE = "claude-sonnet-4-5"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer([Reply(text="more")], usage=COSTLY) as server:
        yield server


def openai_client(model: ModelServer) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=model.openai_url, api_key="key", max_retries=0)


def async_openai_client(model: ModelServer) -> Any:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=model.openai_url, api_key="key", max_retries=0)


MESSAGES = [{"role": "user", "content": "go on"}]


def chat(model: ModelServer) -> Callable[[], Any]:
    client = openai_client(model)
    return lambda: client.chat.completions.create(model="gpt-4o", messages=MESSAGES)


def chat_streamed(model: ModelServer) -> Callable[[], Any]:
    client = openai_client(model)
    return lambda: list(client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True))


def responses(model: ModelServer) -> Callable[[], Any]:
    client = openai_client(model)
    return lambda: client.responses.create(model="gpt-4o", input="go on")


def parsed(model: ModelServer) -> Callable[[], Any]:
    client = openai_client(model)
    return lambda: client.with_options(timeout=9).chat.completions.with_raw_response.create(model="gpt-4o", messages=MESSAGES)


def completions(model: ModelServer) -> Callable[[], Any]:
    client = openai_client(model)
    return lambda: client.completions.create(model="gpt-4o", prompt="go on")


def completions_streamed(model: ModelServer) -> Callable[[], Any]:
    client = openai_client(model)
    return lambda: list(client.completions.create(model="gpt-4o", prompt="go on", max_tokens=2_000, stream=True))


def written_by_hand(model: ModelServer) -> Callable[[], Any]:
    from openai.types.chat import ChatCompletion

    client, body = openai_client(model), json.dumps({"model": "gpt-4o", "messages": MESSAGES}).encode()
    return lambda: client.post("/chat/completions", content=body, cast_to=ChatCompletion)


def messages(model: ModelServer) -> Callable[[], Any]:
    from anthropic import Anthropic

    client = Anthropic(base_url=model.url, api_key="key", max_retries=0)
    return lambda: client.messages.create(model=CLAUDE, max_tokens=1000, messages=MESSAGES)


def messages_helper(model: ModelServer) -> Callable[[], Any]:
    from anthropic import Anthropic

    client = Anthropic(base_url=model.url, api_key="key", max_retries=0)

    def ask() -> Any:
        with client.messages.stream(model=CLAUDE, max_tokens=1000, messages=MESSAGES) as stream:
            return stream.get_final_message()

    return ask


def converse(model: ModelServer) -> Callable[[], Any]:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "bedrock-runtime",
        endpoint_url=model.url,
        region_name="us-east-1",
        aws_access_key_id="id",
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 0}),
    )
    conversation = [{"role": "user", "content": [{"text": "go on"}]}]
    return lambda: client.converse(modelId="anthropic.claude-3-5-sonnet-20240620-v1:0", messages=conversation)


def litellm_completion(model: ModelServer) -> Callable[[], Any]:
    import litellm

    return lambda: litellm.completion(model="openai/gpt-4o", messages=MESSAGES, api_base=model.openai_url, api_key="key")


def litellm_streamed(model: ModelServer) -> Callable[[], Any]:
    import litellm

    return lambda: list(litellm.completion(model="openai/gpt-4o", messages=MESSAGES, api_base=model.openai_url, api_key="key", stream=True))


ALL = [chat, chat_streamed, responses, parsed, completions, completions_streamed, written_by_hand, messages, messages_helper, converse, litellm_completion, litellm_streamed]


@pytest.mark.parametrize("ways", ALL, ids=lambda way: way.__name__)
def test_a_block_caps_dollars_whoever_asks(model: ModelServer, ways: Callable[[ModelServer], Callable[[], Any]]) -> None:
    ask = ways(model)
    with pytest.raises(BudgetExceededError), guard(max_usd=1) as run:
        for _ in range(30):
            ask()
    assert 3 <= model.model_calls <= 4
    assert 1 <= run.budget.spent <= 1.36
    assert ask() is not None, "outside of the block nothing is in the way"


@pytest.mark.parametrize("ways", ALL, ids=lambda way: way.__name__)
def test_each_call_is_counted_once(model: ModelServer, ways: Callable[[ModelServer], Callable[[], Any]]) -> None:
    ask = ways(model)
    with guard(max_usd=100, max_model_calls=3) as run:
        for _ in range(3):
            ask()
        one = run.budget.spent / 3
        assert 0.2 < one < 0.35
        with pytest.raises(runguard.ToolLimitError):
            ask()
    assert model.model_calls == 3


def test_async_clients_and_their_streams(model: ModelServer) -> None:
    async def agent() -> None:
        client = async_openai_client(model)
        for _ in range(15):
            await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
            async for _ in await client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True):
                pass

    async def main() -> None:
        async with guard_async(max_usd=1):
            await agent()

    with pytest.raises(BudgetExceededError):
        asyncio.run(main())
    assert 3 <= model.model_calls <= 4


def test_async_litellm(model: ModelServer) -> None:
    import litellm

    async def main() -> None:
        async with guard_async(max_usd=1):
            for _ in range(30):
                await litellm.acompletion(model="openai/gpt-4o", messages=MESSAGES, api_base=model.openai_url, api_key="key")

    with pytest.raises(BudgetExceededError):
        asyncio.run(main())
    assert 3 <= model.model_calls <= 4


def test_a_decorated_function_is_a_run_each_time(model: ModelServer) -> None:
    ask = chat(model)

    @guard(max_usd=1)
    def agent(calls: int) -> None:
        for _ in range(calls):
            ask()

    agent(2)
    agent(2)
    with pytest.raises(BudgetExceededError):
        agent(30)


def test_what_a_run_hands_to_other_threads_is_its_own(model: ModelServer) -> None:
    ask = chat(model)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pool.submit(lambda: None).result()
        with pytest.raises(BudgetExceededError), guard(max_usd=1):
            for _ in range(30):
                pool.submit(ask).result()
        assert pool.submit(current_run).result() is None, "a thread of the pool keeps no run"
        calls = model.model_calls
        pool.submit(ask).result()
    assert calls <= 4 and model.model_calls == calls + 1


def test_other_threads_are_left_alone(model: ModelServer) -> None:
    ask, done = chat(model), []
    go, ready = threading.Event(), threading.Event()

    def elsewhere() -> None:
        ready.set()
        go.wait(10)
        done.append(ask())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    ready.wait(10)
    with guard(max_usd=0.01) as run:
        go.set()
        thread.join(10)
        assert run.budget.spent == 0
    assert len(done) == 1


def test_everything_is_put_back() -> None:
    from anthropic._base_client import SyncAPIClient as Anthropic
    from botocore.client import BaseClient
    from openai._base_client import AsyncAPIClient, SyncAPIClient

    places = [(SyncAPIClient, "request"), (AsyncAPIClient, "request"), (Anthropic, "request"), (BaseClient, "_make_api_call")]
    places += [(concurrent.futures.ThreadPoolExecutor, "submit"), (threading.Thread, "start")]
    before, finders = [getattr(place, name) for place, name in places], list(sys.meta_path)
    with guard():
        with guard():
            assert all(getattr(place, name) is not one for (place, name), one in zip(places, before))
        assert SyncAPIClient.request is not before[0], "the outer run is still open"
    assert [getattr(place, name) for place, name in places] == before
    assert sys.meta_path == finders


def test_it_can_be_switched_off(model: ModelServer) -> None:
    ask = chat(model)
    with guard(max_usd=0.01, hook=False) as run:
        for _ in range(5):
            ask()
    assert run.budget.spent == 0 and model.model_calls == 5


def test_a_refused_tool_ends_the_run(model: ModelServer) -> None:
    """Frameworks that hand the refusal to the model go on asking it: the next question is refused."""
    ask, runs = chat(model), []
    with pytest.raises(LoopDetectedError), guard(repeats=3) as run:

        @run.tool
        def search(query: str) -> str:
            runs.append(query)
            return "nothing"

        for _ in range(30):
            ask()
            try:
                search("rust")
            except runguard.TripError:
                pass
    assert len(runs) == 2 and model.model_calls == 3


def test_what_the_caller_or_an_adapter_tells_is_not_told_twice(model: ModelServer) -> None:
    from runguard.adapters.openai import guard_openai

    client = openai_client(model)
    with guard(max_usd=10) as run:
        for _ in range(3):
            usage = client.chat.completions.create(model="gpt-4o", messages=MESSAGES).usage
            run.record_usage("gpt-4o", usage.prompt_tokens, usage.completion_tokens)
    assert run.budget.spent == pytest.approx(0.75)

    run = Run(max_usd=10)
    guarded = guard_openai(client, run)
    with guard(run=run):
        for _ in range(3):
            guarded.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    assert run.budget.spent == pytest.approx(0.75)


def test_what_is_hooked_is_said_once_at_debug_level(model: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    import openai  # noqa: F401

    with caplog.at_level(logging.DEBUG, logger="runguard"), guard(max_usd=5):
        chat(model)()
        chat(model)()
    said = [record.getMessage() for record in caplog.records if record.name == "runguard" and "hooks openai" in record.getMessage()]
    assert len(said) == 1


def test_a_library_that_is_imported_inside_of_the_block_is_hooked(model: ModelServer, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        "import sys\n"
        "from runguard import guard, BudgetExceededError\n"
        "assert 'openai' not in sys.modules\n"
        "try:\n"
        "    with guard(max_usd=1):\n"
        "        import openai\n"
        f"        client = openai.OpenAI(base_url={model.openai_url!r}, api_key='key')\n"
        "        for _ in range(30):\n"
        "            client.chat.completions.create(model='gpt-4o', messages=[{'role': 'user', 'content': 'go on'}])\n"
        "except BudgetExceededError:\n"
        "    print('stopped')\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "stopped", done.stderr
    assert model.model_calls <= 4


def test_64_at_once_spend_what_there_is_and_no_more(model: ModelServer) -> None:
    ask = chat(model)

    def asked() -> bool:
        try:
            ask()
        except BudgetExceededError:
            return False
        return True

    with guard(max_usd=1) as run, concurrent.futures.ThreadPoolExecutor(64) as pool:
        answered = [future.result() for future in [pool.submit(asked) for _ in range(64)]]
    assert (sum(answered), model.model_calls) == (4, 4)
    assert run.budget is not None and run.budget.spent == pytest.approx(1)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
def test_64_tasks_at_once_too(model: ModelServer, is_stream: bool) -> None:
    async def main() -> int:
        client = async_openai_client(model)

        async def ask() -> bool:
            try:
                answer = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=is_stream)
                if is_stream:
                    async for _ in answer:
                        pass
            except BudgetExceededError:
                return False
            return True

        with guard(max_usd=1):
            return sum(await asyncio.gather(*(ask() for _ in range(64))))

    assert (asyncio.run(main()), model.model_calls) == (4, 4)


@pytest.mark.parametrize("ways", [chat, chat_streamed, responses, messages, converse], ids=lambda way: way.__name__)
def test_an_answer_without_usage_is_billed_by_its_size_and_said_once(
    ways: Callable[[ModelServer], Callable[[], Any]], caplog: pytest.LogCaptureFixture
) -> None:
    with ModelServer([Reply(text="more " * 2_000)], usage=None) as model, caplog.at_level(logging.WARNING, "runguard"):
        ask = ways(model)
        with pytest.raises(BudgetExceededError), guard(max_usd=0.1) as run:
            for _ in range(30):
                ask()
        assert run.budget is not None and 0.1 <= run.budget.spent < 0.2
        assert 2 <= model.model_calls <= 6
    assert sum("without its usage" in record.getMessage() for record in caplog.records) == 1


def test_a_model_without_a_price_is_not_asked(model: ModelServer) -> None:
    client = openai_client(model)
    with guard(max_usd=1):
        for _ in range(3):
            with pytest.raises(UnknownModelError):
                client.chat.completions.create(model="house-model", messages=MESSAGES)
        assert model.model_calls == 0
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    with guard(max_usd=1, prices={"house-model": {"input": 1, "output": 1}}) as run:
        client.chat.completions.create(model="house-model", messages=MESSAGES)
        assert run.budget is not None and run.budget.spent == pytest.approx(0.097)
    with guard(max_usd=1, unknown_model="free"):
        client.chat.completions.create(model="house-model", messages=MESSAGES)


def test_an_answer_is_no_longer_than_what_is_left_pays_for(model: ModelServer) -> None:
    client = openai_client(model)
    with guard(max_usd=0.01):
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES, max_tokens=4_000)
    # A cent is 1,000 tokens that are written, and a few that are read.
    assert 900 < model.bodies[0]["max_tokens"] < 1_000
    with guard(max_usd=5):
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES, max_tokens=4_000)
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    assert model.bodies[1]["max_tokens"] == 4_000
    assert not {"max_tokens", "max_completion_tokens"} & set(model.bodies[2]), "it fits as it is"


def test_a_call_inside_of_a_stream_does_not_wait_for_it(model: ModelServer) -> None:
    client = openai_client(model)
    with guard(max_usd=5) as run:
        for _ in client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True):
            client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
            break
    # The stream holds itself.
    gc.collect()
    assert model.model_calls == 2 and run.budget is not None and run.budget.reserved == 0


def test_a_request_that_fails_gives_back_what_was_set_aside() -> None:
    with ModelServer([Reply(status=500)]) as model, guard(max_usd=1) as run:
        client = openai_client(model)
        for _ in range(3):
            with pytest.raises(Exception, match="500"):
                client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        assert run.budget is not None and (run.budget.spent, run.budget.reserved) == (0, 0)


@pytest.mark.parametrize("ways", [chat, chat_streamed, responses, litellm_completion], ids=lambda way: way.__name__)
def test_near_the_end_it_warns_once_and_a_cheaper_model_is_asked(model: ModelServer, ways: Callable[[ModelServer], Callable[[], Any]]) -> None:
    ask, told = ways(model), []
    with guard(max_usd=1, warn_at=0.7, on_warning=told.append, fallback_model="gpt-4o-mini") as run:
        for _ in range(5):
            ask()
    assert [body["model"] for body in model.bodies] == ["gpt-4o"] * 3 + ["gpt-4o-mini"] * 2
    assert [(warning.unit, warning.limit, warning.run_id) for warning in told] == [("usd", 1.0, run.run_id)]
    assert told[0].spent == pytest.approx(0.75)
    # The small one costs 6 % of the large one.
    assert run.budget is not None and run.budget.spent == pytest.approx(0.75 + 2 * 0.015)


def n_of_openai(model: ModelServer) -> Callable[..., Any]:
    client = openai_client(model)
    return lambda **asked: client.chat.completions.create(model="gpt-4o", messages=MESSAGES, n=64, **asked)


def n_in_extra_body(model: ModelServer) -> Callable[..., Any]:
    client = openai_client(model)
    return lambda **asked: client.chat.completions.create(model="gpt-4o", messages=MESSAGES, extra_body={"n": 64, **asked})


def n_of_litellm(model: ModelServer) -> Callable[..., Any]:
    import litellm

    client = {"api_base": model.openai_url, "api_key": "key"}
    return lambda **asked: litellm.completion("gpt-4o", MESSAGES, n=64, **client, **asked)


def n_of_litellm_in_extra_body(model: ModelServer) -> Callable[..., Any]:
    import litellm

    client = {"api_base": model.openai_url, "api_key": "key"}
    return lambda **asked: litellm.completion(model="gpt-4o", messages=MESSAGES, extra_body={"n": 64, **asked}, **client)


@pytest.mark.parametrize("ways", [n_of_openai, n_in_extra_body, n_of_litellm, n_of_litellm_in_extra_body], ids=lambda way: way.__name__)
@pytest.mark.parametrize("asked", [{}, {"max_tokens": 1_000}, {"max_tokens": 1_000.0}], ids=str)
def test_each_of_many_answers_is_paid_for(model: ModelServer, ways: Callable[[ModelServer], Callable[..., Any]], asked: dict[str, Any]) -> None:
    ask = ways(model)
    with guard(max_usd=0.5):
        ask(**asked)
    sent = model.bodies[0]
    longest = sent.get("max_tokens") or sent["max_completion_tokens"]
    # Fifty cents are 50,000 tokens that are written, for 64 answers.
    assert (sent["n"], longest) == (64, pytest.approx(780, abs=4)), sent
    with guard(max_usd=0.005):
        # 7 tokens each are no answers.
        with pytest.raises(BudgetExceededError):
            ask(**asked)
    assert model.model_calls == 1


def test_what_is_in_extra_body_holds(model: ModelServer) -> None:
    client = openai_client(model)
    with guard(max_usd=0.01):
        client.chat.completions.create(model="gpt-4o-mini", messages=MESSAGES, max_tokens=10, extra_body={"model": "gpt-4o", "max_tokens": 9_000})
    assert model.bodies[0]["model"] == "gpt-4o" and 900 < model.bodies[0]["max_tokens"] < 1_000


def claude(model: ModelServer) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=model.url, api_key="key", max_retries=0).messages


def async_claude(model: ModelServer) -> Any:
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(base_url=model.url, api_key="key", max_retries=0).messages


BY_HAND = {
    "openai": (lambda model: openai_client(model).chat.completions, lambda model: async_openai_client(model).chat.completions, {"model": "gpt-4o", "messages": MESSAGES}, 0.25),
    "responses": (lambda model: openai_client(model).responses, lambda model: async_openai_client(model).responses, {"model": "gpt-4o", "input": "go on"}, 0.25),
    "anthropic": (claude, async_claude, {"model": CLAUDE, "max_tokens": 1_000, "messages": MESSAGES}, 0.303),
}
READINGS: dict[str, Callable[[Any], Any]] = {
    "read": lambda response: response.read(),
    "text": lambda response: response.text(),
    "bytes": lambda response: list(response.iter_bytes(64)),
    "lines": lambda response: list(response.iter_lines()),
    "raw": lambda response: list(response.http_response.iter_raw()),
    "parse": lambda response: response.parse(),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", BY_HAND)
def test_what_is_read_by_hand_is_billed(model: ModelServer, client: str, is_stream: bool, reading: str) -> None:
    make, _, asked, price = BY_HAND[client]
    given = {**asked, "stream": True} if is_stream else asked
    with guard(max_usd=5) as run:
        with make(model).with_streaming_response.create(**given) as response:
            came = READINGS[reading](response)
            if reading == "parse" and is_stream:
                list(came)
        assert run.budget is not None and run.budget.spent == pytest.approx(price, rel=1e-3) and run.budget.reserved == 0
        assert run._under_way == {}
        if is_stream:
            raw = make(model).with_raw_response.create(**given)
            list(raw.http_response.iter_lines())
            assert run.budget.spent == pytest.approx(2 * price, rel=1e-3)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", BY_HAND)
def test_what_is_read_by_hand_is_billed_async(model: ModelServer, client: str, is_stream: bool) -> None:
    _, make, asked, price = BY_HAND[client]
    given = {**asked, "stream": True} if is_stream else asked

    async def main() -> float:
        with guard(max_usd=5) as run:
            async with make(model).with_streaming_response.create(**given) as response:
                async for _ in response.iter_lines():
                    pass
            async with make(model).with_streaming_response.create(**given) as response:
                await response.read()
        assert run.budget is not None and run.budget.reserved == 0
        return run.budget.spent

    assert asyncio.run(main()) == pytest.approx(2 * price, rel=1e-3)


@pytest.mark.parametrize("client", BY_HAND)
@pytest.mark.parametrize("ends", ["closed", "dropped"])
def test_of_what_is_broken_off_what_came_is_billed(client: str, ends: str) -> None:
    make, _, asked, _ = BY_HAND[client]
    prices = []
    # The answer is long, and comes in two halves.
    with ModelServer([Reply(text="word " * 40_000)], usage=None) as model:
        for parts in (0, 200_000):
            with guard(max_usd=50) as run:
                response = make(model).with_raw_response.create(**asked, stream=True)
                came = 0
                for chunk in response.http_response.iter_bytes():
                    came += len(chunk)
                    if came > parts:
                        break
                if ends == "closed":
                    response.http_response.close()
                del chunk, response
                gc.collect()
            assert run.budget is not None and run.budget.reserved == 0
            prices.append(run.budget.spent)
    # 33,000 tokens and more, at ten dollars a million or more.
    assert prices[1] - prices[0] > 0.3, prices


@pytest.mark.parametrize("max_tokens", [-5, 10**30, "abc", 0, 1.5, True])
def test_a_length_that_is_none_is_the_providers_to_refuse(model: ModelServer, max_tokens: Any) -> None:
    client = openai_client(model)
    with guard(max_usd=5 if max_tokens == 10**30 else 5_000):
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES, max_tokens=max_tokens)
        client.responses.create(model="gpt-4o", input="go on", max_output_tokens=max_tokens)
        # Of what it cannot reckon with, or takes for too long, the client of anthropic says so itself.
        if max_tokens not in ("abc", 10**30):
            claude(model).create(model=CLAUDE, max_tokens=max_tokens, messages=MESSAGES)
    sent = [body.get("max_tokens", body.get("max_output_tokens")) for body in model.bodies]
    # What is longer than can be paid is as long as that.
    assert 0 < sent[0] < 10**6 if max_tokens == 10**30 else sent == [max_tokens] * len(sent)
    with pytest.raises(runguard.InvalidInputError, match="max_tokens"):
        Run(max_usd=1).model_call("gpt-4o", "hello", max_tokens=-5)


def test_answers_in_another_form_are_counted_too(model: ModelServer) -> None:
    import httpx

    client = openai_client(model)
    body = {"model": "gpt-4o", "messages": MESSAGES}
    with guard(max_usd=5) as run:
        assert client.post("/chat/completions", cast_to=object, body=body)["usage"]["prompt_tokens"] == 96_000
        assert client.post("/chat/completions", cast_to=httpx.Response, body=body).json()["usage"]["prompt_tokens"] == 96_000
        assert "96000" in client.post("/chat/completions", cast_to=str, body=body)
        with pytest.raises(Exception, match="404"):
            client.post("/x", cast_to=object)
    assert run.budget is not None and run.budget.spent == pytest.approx(0.75)


@contextlib.contextmanager
def slow_service(url: str, seconds: float) -> Iterator[str]:
    """The service, each answer later by so much."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are two writes: the second would wait for the first to be confirmed, 40 ms.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            time.sleep(seconds)
            asked = urllib.request.Request(url + self.path, body, {"content-type": "application/json", "x-runguard-status": "200"}, method="POST")
            with urllib.request.urlopen(asked, timeout=10) as answer:
                text = answer.read()
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_slow_service_never_holds_up_the_event_loop(model: ModelServer, tmp_path: Path) -> None:
    async def longest_pause(work: Any) -> float:
        longest, done = 0.0, asyncio.ensure_future(work)
        while not done.done():
            began = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - began)
        await done
        return longest

    async def main(url: str) -> float:
        import litellm

        client = async_openai_client(model)

        async def work() -> None:
            with guard(max_usd=50, url=url, timeout=10) as run:
                search = run.tool(_async_search)
                await search("x")
                async for _ in await client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True):
                    pass
                async for _ in await guard_openai(client, run).chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True):
                    pass
                await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
                async with client.chat.completions.with_streaming_response.create(model="gpt-4o", messages=MESSAGES) as response:
                    await response.read()
                with pytest.raises(Exception, match="404"):
                    await client.with_options(base_url=model.url + "/nowhere").embeddings.create(model="text-embedding-3-small", input="x")
                dropped = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)
                await dropped.close()
                stream = await litellm.acompletion("gpt-4o", MESSAGES, stream=True, api_base=model.openai_url, api_key="key")
                async for _ in stream:
                    pass

        # What is imported or opened the first time may take its time.
        await asyncio.gather(work())
        return await longest_pause(work())

    from runguard.adapters.openai import guard_openai

    with running_service(tmp_path) as url, slow_service(url, 0.3) as slow:
        assert asyncio.run(main(slow)) < 0.25


async def _async_search(query: str) -> str:
    return f"nothing for {query}"


def test_who_is_cancelled_leaves_nothing_set_aside(model: ModelServer, tmp_path: Path) -> None:
    async def main(url: str) -> Run:
        client = async_openai_client(model)
        with guard(max_usd=50, url=url, timeout=10) as run:
            await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
            for after in range(12):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(client.chat.completions.create(model="gpt-4o", messages=MESSAGES), 0.02 * after)
            # Whoever was cancelled while the service was asked is still given back what was set aside.
            await asyncio.sleep(0.6)
            began = time.monotonic()
            await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
            assert time.monotonic() - began < 5
        return run

    with running_service(tmp_path) as url, slow_service(url, 0.1) as slow:
        run = asyncio.run(main(slow))
        assert run.budget is not None and run.budget.reserved == 0
        assert run._under_way == {}


def test_model_calls_at_once_keep_their_ceiling_over_a_service(model: ModelServer, tmp_path: Path) -> None:
    ask = chat(model)

    def asked() -> bool:
        try:
            ask()
        except runguard.TripError:
            return False
        return True

    with running_service(tmp_path) as url, slow_service(url, 0.05) as slow:
        with guard(max_usd=50, max_model_calls=3, url=slow, timeout=10) as run, concurrent.futures.ThreadPoolExecutor(8) as pool:
            ask()
            answered = [future.result() for future in [pool.submit(asked) for _ in range(8)]]
    assert (sum(answered), model.model_calls) == (2, 3)
    assert run.trip is not None and run.trip.reason == "model_call_ceiling"


def test_a_body_that_the_caller_writes_is_read_and_one_that_cannot_be_is_refused(model: ModelServer) -> None:
    from openai.types.chat import ChatCompletion

    written = json.dumps({"model": "gpt-4o", "messages": MESSAGES}).encode()

    def post(content: Any, **options: Any) -> Any:
        return openai_client(model).post("/chat/completions", content=content, cast_to=ChatCompletion, **options)

    async def ask(run: Run) -> None:
        async def parts() -> Any:
            yield written[:9]
            yield written[9:]

        await async_openai_client(model).post("/chat/completions", content=parts(), cast_to=ChatCompletion)
        with pytest.raises(runguard.InvalidInputError, match="cannot be read"):
            await async_openai_client(model).post("/chat/completions", content=gzip.compress(written), cast_to=ChatCompletion)

    with guard(max_usd=2) as run:
        for content in (written, io.BytesIO(written), [written[:9], written[9:]]):
            post(content)
        asyncio.run(ask(run))
        assert model.model_calls == 4 and run.budget.spent == pytest.approx(1)
        for content in (gzip.compress(written), b"[]"):
            with pytest.raises(runguard.InvalidInputError, match="cannot be read"):
                post(content, options={"headers": {"content-encoding": "gzip"}})
        assert model.model_calls == 4 and not run.tripped
    with guard(max_model_calls=1):
        with pytest.raises(Exception, match="unreadable body"):
            post(b"no json")
        with pytest.raises(runguard.ToolLimitError):
            post(b"no json")
    assert model.model_calls == 4


def test_what_is_billed_without_a_count_is_refused_under_a_budget_and_else_a_call(model: ModelServer) -> None:
    ways: list[Callable[[], Any]] = [
        lambda: openai_client(model).images.generate(prompt="a cat"),
        lambda: openai_client(model).audio.speech.create(model="tts-1", voice="alloy", input="hello"),
        lambda: openai_client(model).batches.create(completion_window="24h", endpoint="/v1/chat/completions", input_file_id="file-1"),
        lambda: asyncio.run(async_openai_client(model).images.generate(prompt="a cat")),
    ]
    for ask in ways:
        with guard(max_usd=1) as run, pytest.raises(runguard.InvalidInputError, match="without saying how much"):
            ask()
        assert not run.tripped
        with guard(max_model_calls=0), pytest.raises(runguard.ToolLimitError):
            ask()
    with guard(max_usd=1), pytest.raises(Exception) as failed:
        # Free of charge, and nothing that this server knows.
        openai_client(model).moderations.create(input="hello")
    assert not isinstance(failed.value, runguard.RunGuardError)


def test_what_has_a_price_that_nobody_knows_is_refused_under_a_limit_of_dollars(model: ModelServer) -> None:
    ask = openai_client(model).chat.completions.create
    ways: dict[str, Callable[[], Any]] = {
        "web_search_options": lambda: ask(model="gpt-4o", messages=MESSAGES, web_search_options={}),
        "plugins": lambda: ask(model="gpt-4o", messages=MESSAGES, extra_body={"plugins": [{"id": "web"}]}),
        "provider runs itself": lambda: openai_client(model).responses.create(model="gpt-4o", input="go on", tools=[{"type": "web_search"}]),
        "names models": lambda: asyncio.run(
            async_openai_client(model).chat.completions.create(model="gpt-4o", messages=MESSAGES, extra_body={"models": ["gpt-4"]})
        ),
    }
    for why, way in ways.items():
        before = model.model_calls
        with guard(max_usd=1) as run, pytest.raises(runguard.InvalidInputError, match=why):
            way()
        assert not run.tripped and model.model_calls == before
        with guard(max_tokens=200_000):
            way()
        assert model.model_calls == before + 1
    with guard(max_usd=1):
        openai_client(model).responses.create(model="gpt-4o", input="go on", tools=[{"type": "function", "name": "web_search", "parameters": {}}])


def test_of_two_bounds_of_an_answer_the_larger_is_set_aside_and_both_are_lowered(model: ModelServer) -> None:
    with guard(max_usd=0.1):
        openai_client(model).chat.completions.create(model="gpt-4o", messages=MESSAGES, max_tokens=90_000, max_completion_tokens=100)
    assert 9_000 < model.bodies[-1]["max_tokens"] == model.bodies[-1]["max_completion_tokens"] < 10_000


@pytest.mark.parametrize("more", [{"n": 4}, {"n": 2, "best_of": 4}, {"prompt": ["go on"] * 4}, {"n": 2, "prompt": [[1, 2], [3]]}], ids=repr)
def test_every_completion_that_is_asked_for_is_set_aside(model: ModelServer, more: dict[str, Any]) -> None:
    with guard(max_usd=1) as run:
        openai_client(model).completions.create(**{"model": "gpt-4o", "prompt": "go on", "max_tokens": 90_000, **more})
        assert 24_000 < model.bodies[-1]["max_tokens"] <= 25_000, "a dollar pays for four of them"
        assert run.budget.reserved == 0


def test_no_number_of_answers_is_too_large_to_be_set_aside(model: ModelServer) -> None:
    ask = openai_client(model).chat.completions.create
    with guard(max_usd=1) as run:
        for n in (10**30, 2**53):
            with pytest.raises(BudgetExceededError):
                ask(model="gpt-4o", messages=MESSAGES, n=n, max_tokens=1_000)
        assert model.model_calls == 0
        for n in (0, -3, "two", None):
            ask(model="gpt-4o", messages=MESSAGES, n=n, max_tokens=1_000)
        assert not run.tripped


def test_a_stream_that_is_dropped_is_billed_by_what_the_provider_had_counted(model: ModelServer) -> None:
    from anthropic import Anthropic

    client = Anthropic(base_url=model.url, api_key="key", max_retries=0)
    with guard(max_usd=1) as run:
        stream = client.messages.create(model=CLAUDE, max_tokens=1000, messages=MESSAGES, stream=True)
        # It says what was read.
        assert next(iter(stream)).type == "message_start"
        del stream
        gc.collect()
        assert run.budget.reserved == 0
        assert run.budget.spent == pytest.approx(runguard.cost_usd(CLAUDE, 96_000, 1))
