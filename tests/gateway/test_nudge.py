"""A model that goes round in circles is told once, where settings want it so; and callers who leave."""

from __future__ import annotations

import json
import time
from typing import Any

import anthropic
import openai
import pytest

from provider import Behaviour
from test_gateway import CHAT, HELLO, MESSAGES, chat, claude, reserved, spent

NUDGE = '[gateway]\non_loop = "nudge"\n'


def loop(server: Any, rounds: int, headers: list[str] | None = None) -> None:
    client, messages = chat(server), list(HELLO)
    for _ in range(rounds):
        answer = client.chat.completions.with_raw_response.create(model=CHAT, messages=messages)
        if headers is not None:
            headers.append(answer.headers.get("x-runguard-loop", ""))
        message = answer.parse().choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "nothing found"} for call in message.tool_calls]


def test_a_model_is_told_before_its_run_is_stopped(gateway: Any, provider: Any) -> None:
    server = gateway(config=NUDGE)
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    seen: list[str] = []
    with pytest.raises(openai.APIStatusError) as refused:
        loop(server, 10, seen)
    assert (refused.value.status_code, refused.value.body["code"]) == (402, "run_stalled")
    notes = [json.dumps(body["messages"]).count("[RunGuard: ") for body in provider.bodies]
    assert notes == [0, 0, 0, 1], "once, after the third equal call; the next step stops it"
    assert provider.bodies[3]["messages"][-1]["content"].startswith("nothing found\n\n[RunGuard: You have called search 3 times")
    assert provider.bodies[3]["messages"][:-1] == provider.bodies[2]["messages"] + provider.bodies[3]["messages"][-2:-1], "and nothing else"
    assert seen[3] == "identical 3"


@pytest.mark.parametrize("fails", [[500], [529, 429]], ids=["once", "twice"])
def test_a_question_that_is_tried_again_is_told_the_same(gateway: Any, provider: Any, fails: list[int]) -> None:
    server = gateway(config=NUDGE)
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    client, messages = chat(server, max_retries=3), list(HELLO)
    seen = []
    for number in range(4):
        provider.behaviour.first = list(fails) if number == 3 else []
        answer = client.chat.completions.with_raw_response.create(model=CHAT, messages=messages)
        seen.append(answer.headers.get("x-runguard-loop"))
        message = answer.parse().choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "nothing found"} for call in message.tool_calls]
    notes = [json.dumps(body["messages"]).count("[RunGuard: ") for body in provider.bodies]
    assert notes == [0, 0, 0, 1] + [1] * len(fails)
    assert all(asked.raw == provider.asked[3].raw for asked in provider.asked[3:]), "byte for byte"
    assert seen[3] == "identical 3"
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model=CHAT, messages=messages)
    assert refused.value.body["code"] == "run_stalled"


def test_nobody_is_told_unasked(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    seen: list[str] = []
    with pytest.raises(openai.APIStatusError):
        loop(server, 10, seen)
    assert "RunGuard" not in json.dumps(provider.bodies)
    assert seen[3] == "identical 3", "the header says it all the same"


def test_what_is_only_observed_is_said_in_a_header(gateway: Any, provider: Any) -> None:
    server = gateway(config='[guards.agent_run]\nmode = "observe"\n')
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    seen: list[str] = []
    loop(server, 6, seen)
    assert seen[4].startswith("identical 4")


def test_a_model_of_anthropics_is_told_in_its_results(gateway: Any, provider: Any) -> None:
    server = gateway(config=NUDGE)
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    client, messages = claude(server), list(HELLO)
    with pytest.raises(anthropic.APIStatusError):
        for _ in range(10):
            message = client.messages.create(model=MESSAGES, max_tokens=100, messages=messages)
            messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
            results = [{"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "nothing found"}]} for block in message.content]
            messages.append({"role": "user", "content": results})
    assert len(provider.asked) == 4
    result = provider.bodies[3]["messages"][-1]["content"][-1]["content"]
    assert result[0] == {"type": "text", "text": "nothing found"} and result[1]["text"].startswith("[RunGuard: ")


@pytest.mark.parametrize("drains", [False, True], ids=["close", "drain"])
def test_what_a_caller_who_leaves_pays(gateway: Any, provider: Any, drains: bool) -> None:
    server = gateway("--max-usd-per-run", "1", config='[gateway]\nwhen_caller_leaves = "drain"\n' if drains else None)
    provider.behaviour = Behaviour(tokens=400, input_tokens=1000, pause=0.005)
    stream = chat(server).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=2000, stream=True, extra_headers={"x-runguard-run": "gone"})
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 30
    while reserved(server, "gone") > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    whole = 1000 * 2.5e-6 + 400 * 1e-5
    if drains:
        assert spent(server, "gone") == pytest.approx(whole), "as the provider counted it in the end"
        assert provider.left == 0
    else:
        assert 0 < spent(server, "gone") < whole


def test_what_is_read_on_for_nobody_takes_nobodys_place(gateway: Any, provider: Any) -> None:
    config = '[server]\nmax_in_flight_per_key = 2\n[gateway]\nwhen_caller_leaves = "drain"\n'
    server = gateway("--max-usd-per-run", "1", config=config)
    provider.behaviour = Behaviour(tokens=400, input_tokens=10, pause=0.05)

    def ask(run: str, **more: Any) -> Any:
        return chat(server, max_retries=0).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=2000, extra_headers={"x-runguard-run": run}, **more)

    streams = [ask(f"gone-{number}", stream=True) for number in range(2)]
    for stream in streams:
        next(iter(stream))
    with pytest.raises(openai.RateLimitError):
        ask("third")
    for stream in streams:
        stream.close()
    deadline = time.monotonic() + 5
    while True:
        try:
            ask("third")
            break
        except openai.RateLimitError:
            assert time.monotonic() < deadline, "those who left keep their places"
            time.sleep(0.05)
    assert min(reserved(server, f"gone-{number}") for number in range(2)) > 0, "both are still read for what they cost"


def test_an_answer_in_one_piece_is_paid_for_whoever_waits_for_it(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=400, input_tokens=1000, waits=1.5)
    with pytest.raises(openai.APITimeoutError):
        chat(server, max_retries=0, timeout=0.5).chat.completions.create(model=CHAT, messages=HELLO, max_tokens=2000, extra_headers={"x-runguard-run": "gone"})
    assert reserved(server, "gone") > 0
    deadline = time.monotonic() + 30
    while reserved(server, "gone") > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert spent(server, "gone") == pytest.approx(1000 * 2.5e-6 + 400 * 1e-5), "the provider bills it too"
