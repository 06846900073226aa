"""A cap that is a ceiling, whatever the provider does: how it serves, what it thinks, which bound it reads, and who asks again."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest

from provider import WORD, Behaviour
from test_gateway import CHAT, HELLO, chat, raw, reserved, spent

# gpt-5.5 costs 5 and 30 dollars a million tokens, and 12.50 and 75 where it is served before others; gpt-5.1 costs 1.25 and 10.
FIRST = 75 / 1e6


def settled(server: Any, run: str) -> float:
    """What was spent once nothing is set aside."""
    until = time.monotonic() + 20
    while reserved(server, run) > 0 and time.monotonic() < until:
        time.sleep(0.05)
    assert reserved(server, run) == 0
    return spent(server, run)


@pytest.mark.parametrize("stream", [False, True])
def test_a_project_that_is_served_first_passes_no_cap_from_its_first_answer_on(gateway: Any, provider: Any, stream: bool) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    provider.behaviour = Behaviour(tokens=10_000, input_tokens=20, service_tier="priority")
    body = {"model": "gpt-5.5", "messages": HELLO, "stream": stream}
    for _ in range(4):
        raw(f"{server.url}/openai/v1/chat/completions", body, **{"x-runguard-run": "job"})
    assert provider.asked, "the first is asked"
    assert provider.written * FIRST <= 0.05, "what the provider bills"
    assert provider.written * FIRST <= settled(server, "job") <= 0.05, "and what the books say"


@pytest.mark.parametrize("model", [CHAT, "gpt-5.5", "o3", "gpt-5.1", "gpt-4o-mini"])
def test_a_first_question_is_not_shortened_for_it_under_usual_caps(gateway: Any, provider: Any, model: str) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    field = "max_tokens" if model.startswith("gpt-4") else "max_completion_tokens"
    for _ in range(2):
        answer = raw(f"{server.url}/openai/v1/chat/completions", {"model": model, "messages": HELLO, field: 500}, **{"x-runguard-run": "job"})
        assert (answer.status_code, answer.headers.get("x-runguard-max-output")) == (200, None), answer.text
    assert [body[field] for body in provider.bodies] == [500, 500]


def test_only_the_first_question_is_set_aside_at_the_dearest_service(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    aside = []
    for number in range(2):
        provider.behaviour = Behaviour(tokens=5, input_tokens=20, service_tier="default")
        body = {"model": "gpt-5.5", "messages": HELLO, "stream": True, "max_completion_tokens": 1000}
        answer = raw(f"{server.url}/openai/v1/chat/completions", body, **{"x-runguard-run": f"job-{number}"})
        aside.append(float(answer.headers["x-runguard-reserved-usd"]))
    assert aside[0] >= 0.075 > 0.04 > aside[1] >= 0.03


def asked_first(server: Any, provider: Any, path: str, body: dict[str, Any], served: str, **headers: str) -> None:
    """One question that is answered as the tier says."""
    provider.behaviour = Behaviour(tokens=5, input_tokens=20, service_tier=served)
    answer = raw(f"{server.url}/openai/v1/{path}", body, **{"x-runguard-run": "before", **headers})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("path", "before", "project"), [
    ("chat/completions", {"model": "gpt-5.5", "messages": HELLO, "service_tier": "default"}, {}),
    ("embeddings", {"model": "text-embedding-3-small", "input": "hello"}, {}),
    ("chat/completions", {"model": CHAT, "messages": HELLO, "service_tier": "flex"}, {}),
    ("chat/completions", {"model": "gpt-5.5", "messages": HELLO}, {"openai-project": "proj_a"}),
    ("chat/completions", {"model": "gpt-5.5", "messages": HELLO}, {"openai-organization": "org_a"}),
], ids=["default", "embeddings", "flex", "project", "organization"])
def test_what_says_nothing_of_how_open_questions_are_served_passes_no_cap(
    gateway: Any, provider: Any, path: str, before: dict[str, Any], project: dict[str, str]
) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    asked_first(server, provider, path, before, "default", **project)
    provider.written = 0
    provider.behaviour = Behaviour(tokens=10_000, input_tokens=20, service_tier="priority")
    other = {name: value.replace("_a", "_b") for name, value in project.items()}
    raw(f"{server.url}/openai/v1/chat/completions", {"model": "gpt-5.5", "messages": HELLO}, **{"x-runguard-run": "job", **other})
    assert 0 < provider.written * FIRST <= settled(server, "job") <= 0.05


def test_who_asks_to_be_served_first_makes_no_later_question_dearer(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    body = {"model": "gpt-5.5", "messages": HELLO, "max_completion_tokens": 1000}
    asked_first(server, provider, "chat/completions", body, "default")
    asked_first(server, provider, "chat/completions", {**body, "service_tier": "priority"}, "priority")
    provider.behaviour = Behaviour(tokens=5, input_tokens=20, service_tier="default")
    answer = raw(f"{server.url}/openai/v1/chat/completions", {**body, "stream": True}, **{"x-runguard-run": "job"})
    assert 0.03 <= float(answer.headers["x-runguard-reserved-usd"]) < 0.04


def test_who_leaves_while_a_model_thinks_pays_for_what_it_thought(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=2, input_tokens=100, thinks=3000, thinking=1.0)
    body = {"model": "gpt-5.1", "messages": HELLO, "stream": True, "max_completion_tokens": 8000}
    for _ in range(2):
        with httpx.stream("POST", f"{server.url}/openai/v1/chat/completions", content=json.dumps(body).encode(),
                          headers={"content-type": "application/json", "authorization": "Bearer x", "x-runguard-run": "job"}) as answer:
            next(answer.iter_lines())
    assert settled(server, "job") == pytest.approx(2 * (100 * 1.25 + 3002 * 10) / 1e6), "by the provider's own count"
    assert provider.left == 0


@pytest.mark.parametrize("bound", [{}, {"max_completion_tokens": 90_000}], ids=["none", "by the newer name"])
def test_a_server_that_reads_one_name_alone_is_bounded_by_it(gateway: Any, provider: Any, bound: dict[str, int]) -> None:
    config = f'[gateway.upstreams.deepseek]\nurl = "{provider.url}/v1"\nkey_env = ""\n'
    server = gateway("--max-usd-per-run", "0.01", config=config)
    provider.behaviour = Behaviour(tokens=100_000, input_tokens=20, reads_bound="max_tokens")
    body = {"model": "deepseek/deepseek-chat", "messages": HELLO, **bound}
    answer = raw(f"{server.url}/deepseek/v1/chat/completions", body, **{"x-runguard-run": "job"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert provider.written == provider.bodies[0]["max_tokens"] < 90_000
    assert settled(server, "job") <= 0.01


def test_the_name_that_a_server_reads_can_be_set(gateway: Any, provider: Any) -> None:
    config = f'[gateway.upstreams.own]\nurl = "{provider.url}/v1"\nlength_field = "max_completion_tokens"\n'
    server = gateway("--max-usd-per-run", "0.01", config=config)
    provider.behaviour = Behaviour(tokens=100_000, input_tokens=20, reads_bound="max_completion_tokens")
    assert raw(f"{server.url}/own/v1/chat/completions", {"model": CHAT, "messages": HELLO}).status_code == 200
    assert provider.written == provider.bodies[0]["max_completion_tokens"]


def test_a_server_that_reads_no_bound_is_cut_and_what_it_wrote_is_booked(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.05")
    provider.behaviour = Behaviour(tokens=20_000, input_tokens=20, ignores_bound=True, counts=False)
    body = {"model": CHAT, "messages": HELLO, "stream": True, "max_tokens": 300}
    answer = raw(f"{server.url}/openai/v1/chat/completions", body, **{"x-runguard-run": "job"})
    came = answer.text.count(json.dumps(WORD))
    assert 300 < came < 2000
    assert settled(server, "job") >= came * 10 / 1e6, "no less than came, though less was set aside"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_asks_again_has_the_first_answer_and_pays_once(gateway: Any, provider: Any, stream: bool) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000, waits=1.6, silence=1.6)
    client = chat(server, timeout=0.7, max_retries=4)
    answer = client.chat.completions.create(model=CHAT, messages=HELLO, stream=stream, extra_headers={"x-runguard-run": "job"})
    text = "".join(piece.choices[0].delta.content or "" for piece in answer) if stream else answer.choices[0].message.content
    assert text == WORD * 1000
    assert len(provider.asked) == 1, "no second question"
    assert settled(server, "job") == pytest.approx(0.0125), "no second charge"


def test_who_asks_the_same_with_another_key_has_an_answer_of_its_own(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(waits=1.0)
    with pytest.raises(openai.APITimeoutError):
        chat(server, timeout=0.3, max_retries=0).chat.completions.create(model=CHAT, messages=HELLO)
    other = openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key="sk-another", max_retries=0)
    other.chat.completions.create(model=CHAT, messages=HELLO, extra_headers={"x-stainless-retry-count": "1"})
    assert len(provider.asked) == 2
    chat(server, max_retries=0).chat.completions.create(model=CHAT, messages=HELLO)
    assert len(provider.asked) == 3, "who does not ask again asks anew"
    provider.behaviour = Behaviour(first=[500])
    chat(server, max_retries=1).chat.completions.create(model=CHAT, messages=[{"role": "user", "content": "And now?"}])
    assert len(provider.asked) == 5, "a failure is no answer"
