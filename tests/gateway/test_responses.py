"""Conversations that the provider keeps: a question says only what is new, and loops are seen all the same."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest

from provider import Behaviour
from runguard_process import run_cli
from test_gateway import CHAT, chat, raw


def rounds(server: Any, count: int, results: Any = lambda number: "nothing found", kept: str = "previous_response_id", stream: bool = False) -> None:
    """An agent that sends only what its tools gave."""
    client = chat(server)
    more: dict[str, Any] = {"conversation": "conv_1"} if "conversation" in kept else {}
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
@pytest.mark.parametrize("kept", ["previous_response_id", "conversation", "conversation that no answer names"])
def test_a_loop_is_seen_where_only_results_are_sent(gateway: Any, provider: Any, kept: str, stream: bool) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}), keeps_conversations=kept == "conversation")
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
    unknown = [raw(f"{server.url}/openai/v1/responses", {**follows, "previous_response_id": name}).headers["x-runguard-run"] for name in ("resp_a", "resp_a", "resp_b")]
    assert unknown[0] == unknown[1] != unknown[2], "an answer that nobody here knows is a conversation all the same"
    assert first.headers["x-runguard-run"] not in unknown


def runs(server: Any) -> list[str]:
    return [run["run"] for run in httpx.get(f"{server.url}/v1/runs").json()["runs"]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_people_who_begin_alike_have_nothing_to_do_with_each_other(gateway: Any, provider: Any, stream: bool) -> None:
    server = gateway()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    for _ in range(6):
        rounds(server, 3, stream=stream)
    assert (len(provider.asked), len(runs(server))) == (18, 6)


def test_a_conversation_that_is_sent_whole_is_known_by_its_first_answer(gateway: Any, provider: Any) -> None:
    server = gateway()
    client = chat(server)
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}), own_names=True)
    people: list[list[Any]] = [[{"role": "user", "content": "Find it."}] for _ in range(5)]
    for _ in range(3):
        for items in people:
            answer = client.responses.create(model=CHAT, input=items)
            items += [item.model_dump(exclude_none=True) for item in answer.output]
            items += [{"type": "function_call_output", "call_id": item.call_id, "output": "nothing found"} for item in answer.output]
    assert (len(provider.asked), len(runs(server))) == (15, 5)
    with pytest.raises(openai.APIStatusError) as refused:
        for _ in range(5):
            answer = client.responses.create(model=CHAT, input=people[0])
            people[0] += [item.model_dump(exclude_none=True) for item in answer.output]
            people[0] += [{"type": "function_call_output", "call_id": item.call_id, "output": "nothing found"} for item in answer.output]
    assert (refused.value.body["code"], len(provider.asked), len(runs(server))) == ("run_stalled", 16, 5)
    # What the provider does not keep is sent whole, so how it begins is all there is.
    alone = [raw(f"{server.url}/openai/v1/responses", {"model": CHAT, "input": "Find it.", "store": False}).headers["x-runguard-run"] for _ in range(2)]
    assert alone[0] == alone[1]


def test_a_first_question_that_is_tried_again_is_no_other_run(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(first=[500, 500])
    answer = chat(server).responses.create(model=CHAT, input="hi")
    assert (len(provider.asked), len(runs(server))) == (3, 1), "the client itself asked three times"
    body = {"model": CHAT, "input": "hello"}
    provider.behaviour = Behaviour(first=[503])
    tries = [raw(f"{server.url}/openai/v1/responses", body) for _ in range(3)]
    assert [found.status_code for found in tries] == [503, 200, 200]
    first, second, third = (found.headers["x-runguard-run"] for found in tries)
    assert first == second != third, "what was answered is not tried again: it is somebody else's"
    late = raw(f"{server.url}/openai/v1/responses", body, **{"x-stainless-retry-count": "1"})
    assert late.headers["x-runguard-run"] == third, "the client did not hear the answer"
    branches = [raw(f"{server.url}/openai/v1/responses", {**body, "previous_response_id": answer.id, "input": text}).headers["x-runguard-run"] for text in ("left", "right")]
    assert branches[0] == branches[1] != first, "branches of a conversation are one run"


@pytest.mark.parametrize("kept", ["previous_response_id", "conversation"])
def test_a_person_who_asks_for_the_same_again_is_no_loop(gateway: Any, provider: Any, kept: str) -> None:
    server = gateway()
    client = chat(server)
    more: dict[str, Any] = {"conversation": "conv_1"} if kept == "conversation" else {}
    for _ in range(6):
        provider.behaviour = Behaviour(call=("weather", {"of": "Berlin"}))
        answer = client.responses.create(model=CHAT, input="And now?", **more)
        if kept == "previous_response_id":
            more = {"previous_response_id": answer.id}
        provider.behaviour = Behaviour()
        answer = client.responses.create(model=CHAT, input=[{"type": "function_call_output", "call_id": "call_0", "output": "rain"}], **more)
        if kept == "previous_response_id":
            more = {"previous_response_id": answer.id}
    assert len(provider.asked) == 12


def test_a_framework_that_writes_what_tools_gave_as_words_is_no_person(gateway: Any, provider: Any) -> None:
    server = gateway()
    client, more = chat(server), {}
    with pytest.raises(openai.APIStatusError) as refused:
        for _ in range(30):
            more = {"previous_response_id": client.responses.create(model=CHAT, input="Observation: nothing found" if more else "Find it.", **more).id}
    assert refused.value.body["code"] == "run_stalled"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_calls_side_by_side_are_one_attempt(gateway: Any, provider: Any, stream: bool) -> None:
    server = gateway()
    client = chat(server)
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}), side_by_side=5)
    if stream:
        with client.responses.stream(model=CHAT, input="Find it.") as events:
            answer = events.get_final_response()
    else:
        answer = client.responses.create(model=CHAT, input="Find it.")
    gave = [{"type": "function_call_output", "call_id": item.call_id, "output": "nothing found"} for item in answer.output]
    provider.behaviour = Behaviour()
    assert client.responses.create(model=CHAT, input=gave, previous_response_id=answer.id).output_text


@pytest.mark.parametrize("counts", [True, False], ids=["counted", "not counted"])
def test_an_answer_keeps_its_run_and_what_was_said_of_it_over_a_restart(gateway: Any, provider: Any, counts: bool) -> None:
    server = gateway()
    provider.behaviour = Behaviour(counts=counts)
    first = raw(f"{server.url}/openai/v1/responses", {"model": CHAT, "input": "hi"})
    follows = {"model": CHAT, "input": "go on", "previous_response_id": first.json()["id"]}
    run = first.headers["x-runguard-run"]
    assert raw(f"{server.url}/openai/v1/responses", follows).headers["x-runguard-run"] == run
    server.kill()
    server.start()
    again = raw(f"{server.url}/openai/v1/responses", follows)
    assert (again.headers["x-runguard-run"], again.headers["x-runguard-run-by"]) == (run, "previous_response")
    assert httpx.post(f"{server.url}/v1/runs/{run}/stop", json={"note": "enough"}).status_code == 200
    server.kill()
    server.start()
    refused = raw(f"{server.url}/openai/v1/responses", {**follows, "previous_response_id": again.json()["id"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (402, "run_stopped")


def keys_of_two_tenants(server: Any) -> tuple[str, str]:
    """For callers who ask with the operator's key."""

    def key(tenant: str) -> str:
        made = run_cli("key", "create", "--data", server.data, "--role", "guard", "--tenant", tenant)
        return next(word for word in made.stdout.split() if word.startswith("rg_"))

    ada, bob = key("ada"), key("bob")
    deadline = time.monotonic() + 10
    # Nobody gets in without a key, and the one that was made last is known: so is the other.
    while [httpx.get(f"{server.url}/openai/v1/models", headers=headers).status_code == 401 for headers in ({}, {"authorization": f"Bearer {bob}"})] != [True, False]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return ada, bob


def test_an_item_that_was_answered_to_another_tenant_is_not_found_with_the_operators_key(gateway: Any, provider: Any) -> None:
    server = gateway(environment={"OPENAI_API_KEY": "sk-operators"})
    ada, bob = keys_of_two_tenants(server)

    def answer(name: str, item: str) -> None:
        message = {"type": "message", "id": item, "role": "assistant", "content": [{"type": "output_text", "text": "A secret.", "annotations": []}]}
        provider.behaviour = Behaviour(instead={"id": name, "model": CHAT, "status": "completed", "output": [message], "usage": {"input_tokens": 9, "output_tokens": 9}})

    def ask(key: str, *items: Any, **headers: str) -> httpx.Response:
        body = {"model": CHAT, "input": [{"role": "user", "content": "What did I say?"}, *items]}
        return raw(f"{server.url}/openai/v1/responses", body, **{"authorization": f"Bearer {key}", **headers})

    answer("resp_of_ada", "msg_of_ada")
    ask(ada)
    answer("resp_of_bob", "msg_of_bob")
    asked = len(provider.asked)
    hidden = ask(bob).status_code, json.dumps({"type": "item_reference", "id": "msg_of_ada"}).replace('"id"', '"\\u0069d"').replace("_ada", "_\\u0061da")
    assert hidden[0] == 200 and json.loads(hidden[1])["id"] == "msg_of_ada"
    for item in ({"type": "item_reference", "id": "msg_of_ada"}, {"id": "msg_of_ada"}):
        refused = ask(bob, item)
        assert (refused.status_code, refused.json()["error"]["message"]) == (404, "Item with id 'msg_of_ada' not found.")
    written = json.dumps({"model": CHAT, "input": [{"role": "user", "content": "And now?"}]}).replace("}]", "}, " + hidden[1] + "]")
    refused = httpx.post(f"{server.url}/openai/v1/responses", content=written.encode(), headers={"content-type": "application/json", "authorization": f"Bearer {bob}"})
    assert refused.status_code == 404, "however it is written"
    assert len(provider.asked) == asked + 1, "nobody was asked"
    assert ask(ada, {"type": "item_reference", "id": "msg_of_ada"}).status_code == 200
    assert ask(bob, {"type": "item_reference", "id": "msg_of_bob"}).status_code == 200
    assert ask(bob, {"type": "item_reference", "id": "msg_of_nobody"}).status_code == 200, "the provider knows"
    own = ask("sk-bobs-own", {"type": "item_reference", "id": "msg_of_ada"}, **{"x-runguard-key": bob})
    assert own.status_code == 200, "with a key of its own the provider knows whose it is"


def test_a_name_that_the_provider_does_not_know_shuts_nobody_out(gateway: Any, provider: Any) -> None:
    server = gateway(environment={"OPENAI_API_KEY": "sk-operators"})
    ada, bob = keys_of_two_tenants(server)
    provider.behaviour = Behaviour(keeps_conversations=False)

    def ask(key: str) -> httpx.Response:
        return raw(f"{server.url}/openai/v1/responses", {"model": CHAT, "input": "Hello.", "conversation": "support"}, authorization=f"Bearer {key}")

    runs = [(answer.status_code, answer.headers.get("x-runguard-run")) for answer in (ask(ada), ask(bob), ask(ada), ask(bob))]
    assert [status for status, _ in runs] == [200] * 4
    assert runs[0] == runs[2] != runs[1] == runs[3], "each has a run of its own"


def test_what_was_answered_to_another_tenant_is_not_continued_with_the_operators_key(gateway: Any, provider: Any) -> None:
    server = gateway(environment={"OPENAI_API_KEY": "sk-operators"})
    ada, bob = keys_of_two_tenants(server)

    def ask(**body: Any) -> httpx.Response:
        headers = body.pop("headers")
        return raw(f"{server.url}/openai/v1/responses", {"model": CHAT, "input": "What did I say?", **body}, **headers)

    first = ask(headers={"authorization": f"Bearer {ada}"}, conversation="conv_of_ada").json()["id"]
    asked = len(provider.asked)
    for names in (
        {"previous_response_id": first},
        {"conversation": "conv_of_ada"},
        {"conversation": {"id": "conv_of_ada"}},
        {"previous_response_id": "", "conversation": "conv_of_ada"},
        {"previous_response_id": "resp_of_nobody", "conversation": "conv_of_ada"},
    ):
        refused = ask(headers={"authorization": f"Bearer {bob}"}, **names)
        assert (refused.status_code, refused.json()["error"]["code"], refused.json()["error"]["type"]) == (400, "previous_response_not_found", "invalid_request_error")
    for other in (f" {first}", f"{first}\0", [first], {"name": first}):
        for names in ({"previous_response_id": other}, {"conversation": other}, {"input": [{"type": "item_reference", "id": other}]}):
            refused = ask(headers={"authorization": f"Bearer {bob}"}, **names)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request"), (names, refused.text)
    for names in ({"previous_response_id": first.upper()}, {"conversation": "CONV_of_Ada"}):
        refused = ask(headers={"authorization": f"Bearer {bob}"}, **names)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found"), "a server may find it all the same"
    assert len(provider.asked) == asked, "nobody was asked"
    server.kill()
    server.start()
    assert ask(headers={"authorization": f"Bearer {bob}"}, previous_response_id=first).status_code == 400, "also after a restart"
    assert ask(headers={"authorization": f"Bearer {ada}"}, previous_response_id=first).status_code == 200
    own = ask(headers={"authorization": "Bearer sk-bobs-own", "x-runguard-key": bob}, previous_response_id=first)
    assert own.status_code == 200, "with a key of its own the provider knows whose it is"
