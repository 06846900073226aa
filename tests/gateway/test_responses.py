"""Conversations that the provider keeps: a question says only what is new, and loops are seen all the same."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from provider import Behaviour
from test_gateway import CHAT, chat, raw


def rounds(server: Any, count: int, results: Any = lambda number: "nothing found", kept: str = "previous_response_id", stream: bool = False) -> None:
    """An agent that sends only what its tools gave."""
    client = chat(server)
    more: dict[str, Any] = {"conversation": "conv_1"} if kept == "conversation" else {}
    asked: Any = "Find it."
    for number in range(count):
        if stream:
            with client.responses.stream(model=CHAT, input=asked, **more) as events:
                answer = events.get_final_response()
        else:
            answer = client.responses.create(model=CHAT, input=asked, **more)
        call = next(item for item in answer.output if item.type == "function_call")
        if kept == "previous_response_id":
            more = {"previous_response_id": answer.id}
        asked = [{"type": "function_call_output", "call_id": call.call_id, "output": results(number)}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kept", ["previous_response_id", "conversation"])
def test_a_loop_is_seen_where_only_results_are_sent(gateway: Any, provider: Any, kept: str, stream: bool) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    with pytest.raises(openai.APIStatusError) as refused:
        rounds(server, 30, kept=kept, stream=stream)
    assert (refused.value.status_code, refused.value.body["code"], len(provider.asked)) == (402, "run_stalled", 4)


def test_an_agent_that_gets_on_is_left_alone(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("read", {"page": "next"}))
    rounds(server, 20, lambda number: f"page {number}")
    assert len(provider.asked) == 20


def test_a_model_is_told_there_too(gateway: Any, provider: Any) -> None:
    server = gateway(config='[gateway]\non_loop = "nudge"\n')
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    with pytest.raises(openai.APIStatusError):
        rounds(server, 30)
    assert provider.bodies[3]["input"][0]["output"].startswith("nothing found\n\n[RunGuard: You have called search 3 times")


def test_what_another_key_was_answered_is_nothing_to_this_one(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    first = raw(f"{server.url}/openai/v1/responses", {"model": CHAT, "input": "hi"})
    follows = {"model": CHAT, "previous_response_id": first.json()["id"], "input": [{"type": "function_call_output", "call_id": "call_0", "output": "x"}]}
    again = raw(f"{server.url}/openai/v1/responses", follows)
    assert again.headers["x-runguard-run"] == first.headers["x-runguard-run"]
    assert again.headers["x-runguard-run-by"] == "previous_response"
    unknown = raw(f"{server.url}/openai/v1/responses", {**follows, "previous_response_id": "resp_of_somebody"})
    assert unknown.headers["x-runguard-run-by"] == "beginning"
