"""A cap of five cents against everything at once: four interfaces, thirty-two real clients that stream, a gateway that is killed in the middle and comes
back, alone and beside another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest
from botocore.exceptions import BotoCoreError, ClientError, EventStreamError, HTTPClientError
from urllib3.exceptions import ProtocolError

from bedrock_wire import ENVIRONMENT
from provider import Behaviour, Provider
from runguard_process import Server
from test_bedrock import SONNET, through
from test_gateway import CHAT, MESSAGES, chat, claude
from test_two_nodes import nodes  # noqa: F401

CAP = 0.05
AT_ONCE = 32
# Dollars a million tokens, of a prompt and of an answer.
PRICES = {CHAT: (2.5, 10.0), MESSAGES: (3.0, 15.0), SONNET: (3.0, 15.0)}
# What a client hears when a gateway refuses, dies, or is not there yet.
ENDS = (openai.APIError, anthropic.APIError, httpx.HTTPError, BotoCoreError, ClientError, EventStreamError, HTTPClientError, ProtocolError)
IN_ONE_REGION: dict[str, str] = {**ENVIRONMENT, "AWS_REGION": "us-east-1"}


def asks(server: Server, number: int) -> Callable[[], None]:
    """One question of its own conversation, by another client each time, that is read to its end."""
    words = f"Question {number}"

    def in_chat() -> None:
        list(chat(server, max_retries=0).chat.completions.create(model=CHAT, messages=[{"role": "user", "content": words}], max_tokens=1000, stream=True))

    def in_responses() -> None:
        with chat(server, max_retries=0).responses.stream(model=CHAT, input=words, max_output_tokens=1000) as stream:
            list(stream)

    def in_messages() -> None:
        with claude(server, max_retries=0).messages.stream(model=MESSAGES, max_tokens=1000, messages=[{"role": "user", "content": words}]) as stream:
            list(stream)

    def in_converse() -> None:
        made = through(server, retries="standard")
        asked = made.converse_stream(modelId=SONNET, messages=[{"role": "user", "content": [{"text": words}]}], inferenceConfig={"maxTokens": 1000})
        list(asked["stream"])

    return (in_chat, in_responses, in_messages, in_converse)[number % 4]


def all_at_once(servers: list[Server], first: int) -> None:
    def ask(number: int) -> None:
        try:
            asks(servers[number % len(servers)], number)()
        except ENDS:
            pass

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(ask, range(first, first + AT_ONCE)))


def billed(provider: Provider, tokens: int, read: int) -> float:
    """The most that a provider can bill: who hangs up pays for all that would have been written."""
    total = 0.0
    for asked in provider.asked:
        body = asked.body
        model = SONNET if asked.path.startswith("/model/") else body["model"]
        bounds = [body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")] + [(body.get("inferenceConfig") or {}).get("maxTokens")]
        written = min([tokens, *(bound for bound in bounds if bound)])
        prompt, answer = PRICES[model]
        total += (read * prompt + written * answer) / 1e6
    return total


def one_dies_in_the_middle(servers: list[Server], provider: Provider) -> None:
    """The first is killed while all are asked, comes back, and all are asked again."""
    provider.behaviour = Behaviour(tokens=1000, input_tokens=20, pause=0.004)
    asking = threading.Thread(target=all_at_once, args=(servers, 0))
    asking.start()
    deadline = time.monotonic() + 30
    while not provider.asked and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    servers[0].kill()
    asking.join(120)
    before = len(provider.asked)
    assert 0 < billed(provider, 1000, 20) <= CAP
    servers[0].start()
    provider.behaviour = Behaviour(tokens=1000, input_tokens=20)
    all_at_once(servers, 1000)
    assert billed(provider, 1000, 20) <= CAP, f"{before} questions before it died, {len(provider.asked) - before} after"


def test_four_interfaces_and_a_gateway_that_is_killed_pass_no_cap(gateway: Any, provider: Provider) -> None:
    server = gateway("--max-usd-per-day", str(CAP), environment=IN_ONE_REGION, config='[gateway]\npatience = "2s"\n')
    one_dies_in_the_middle([server], provider)
    day = httpx.get(f"{server.url}/v1/spend").json()["budgets"][0]
    assert day["spent_usd"] + day["reserved_usd"] <= CAP + 1e-9


def test_a_day_of_small_questions_is_spent_to_its_end_and_no_further(gateway: Any, provider: Provider) -> None:
    server = gateway("--max-usd-per-day", str(CAP), environment=IN_ONE_REGION)
    provider.behaviour = Behaviour(tokens=300, input_tokens=20)
    for first in range(0, 4 * AT_ONCE, AT_ONCE):
        all_at_once([server], first)
    assert 0.04 <= billed(provider, 300, 20) <= CAP, "nearly all that could be bought was, and no more"


def test_two_nodes_of_which_one_is_killed_pass_no_cap(nodes: Any, provider: Provider) -> None:  # noqa: F811
    one_dies_in_the_middle(nodes("--max-usd-per-day", str(CAP), config='[gateway]\npatience = "2s"\n'), provider)


@pytest.mark.parametrize("leaves", [1, 3, 40])
def test_thirty_two_who_leave_in_the_middle_pass_no_cap(gateway: Any, provider: Provider, leaves: int) -> None:
    server = gateway("--max-usd-per-day", str(CAP), environment=IN_ONE_REGION)
    provider.behaviour = Behaviour(tokens=1000, input_tokens=20, pause=0.002)

    def ask(number: int) -> None:
        try:
            with chat(server, max_retries=0).chat.completions.create(
                model=CHAT, messages=[{"role": "user", "content": f"Question {number}"}], max_tokens=1000, stream=True
            ) as stream:
                for count, _ in enumerate(stream, 1):
                    if count >= leaves:
                        return
        except ENDS:
            pass

    for first in range(0, 3 * AT_ONCE, AT_ONCE):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(ask, range(first, first + AT_ONCE)))
    # What a provider that stops writing when it is left bills: the prompt, and what came by then, which is at least what its caller read.
    came = len(provider.asked) * (20 * 2.5 + min(leaves, 1000) * 10.0) / 1e6
    day = httpx.get(f"{server.url}/v1/spend").json()["budgets"][0]
    assert came <= day["spent_usd"] + day["reserved_usd"] <= CAP + 1e-9
