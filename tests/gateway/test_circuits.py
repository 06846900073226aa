"""What becomes of a provider that fails: it is left alone, as it asks for, and others may answer in its place, if they can be paid."""

from __future__ import annotations

import socket
import time
from typing import Any

import anthropic
import boto3
import botocore.config
import botocore.exceptions
import httpx
import openai
import pytest

import bedrock_wire
from provider import WORD, Behaviour
from test_gateway import CHAT, HELLO, MESSAGES, chat, claude, raw, reserved, spent

THREE = "[guards.api_circuit]\nfailure_threshold = 3\nrecovery = \"30s\"\n"
SOON = "[guards.api_circuit]\nfailure_threshold = 3\nrecovery = 1\nprobe_timeout = 60\n"
PATHS = {"openai": "/openai/v1/chat/completions", "anthropic": "/anthropic/v1/messages"}


def ask(server: Any, upstream: str = "openai", model: str = CHAT, **headers: str) -> httpx.Response:
    return raw(server.url + PATHS[upstream], {"model": model, "messages": HELLO, "max_tokens": 300}, **headers)


def circuits(server: Any) -> dict[str, dict[str, Any]]:
    return {circuit["endpoint_key"]: circuit for circuit in httpx.get(f"{server.url}/v1/circuits").json()["circuits"]}


def rows(server: Any, **filters: str) -> list[dict[str, Any]]:
    return httpx.get(f"{server.url}/v1/decisions", params={"limit": 100, **filters}).json()["decisions"]


def test_a_busy_model_that_fails_now_and_then_is_not_left_alone_and_a_dead_one_is(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1", config=THREE)
    for _ in range(8):
        provider.behaviour = Behaviour(first=[200, 200, 429])
        assert [ask(server).status_code for _ in range(4)] == [200, 200, 429, 200]
    assert "openai/gpt-4o" not in circuits(server), "eight failures of 32 calls, where three open it, are counted for nobody"
    assert rows(server, guard="api_circuit", outcome="blocked") == []
    provider.behaviour = Behaviour(status=500)
    assert [ask(server).status_code for _ in range(4)] == [500, 500, 500, 503]


def test_a_model_that_asks_for_a_moment_is_left_alone_for_a_moment(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1", config=THREE)
    provider.behaviour = Behaviour(status=429, headers={"retry-after": "7"})
    for _ in range(3):
        assert ask(server).status_code == 429
    refused = ask(server)
    assert refused.status_code == 503
    assert 1 <= int(refused.headers["retry-after"]) <= 7, "and not the 30 of the settings"
    message = refused.json()["error"]["message"]
    assert message.endswith(f"Ask again in {refused.headers['retry-after']} s.") and "Do not retry" not in message


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_model_that_fails_is_left_alone_and_others_are_not(gateway: Any, provider: Any, status: int) -> None:
    server = gateway("--max-usd-per-run", "1", config=THREE)
    provider.behaviour = Behaviour(status=status)
    for _ in range(3):
        assert ask(server).status_code == status
    refused = ask(server)
    assert (refused.status_code, refused.json()["error"]["code"], len(provider.asked)) == (503, "circuit_just_tripped", 3)
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert refused.headers["x-should-retry"] == "true"
    assert ask(server).json()["error"]["code"] == "circuit_open"
    assert len(provider.asked) == 3, "nobody was asked"
    provider.behaviour = Behaviour()
    assert ask(server, model="gpt-4o-mini").status_code == 200, "another model has a circuit of its own"
    assert ask(server, "anthropic", MESSAGES).status_code == 200
    found = circuits(server)
    assert list(found) == ["openai/gpt-4o"]
    assert (found["openai/gpt-4o"]["phase"], found["openai/gpt-4o"]["recent_failures"]) == ("open", 3)
    told = rows(server, guard="api_circuit", kind="record")
    assert [(row["outcome"], row["input"]["status_code"], row["input"]["call"]["upstream"]) for row in told] == [("recorded", status, "openai")] * 3
    assert [row["outcome"] for row in rows(server, guard="api_circuit", kind="check")] == ["blocked"] * 2
    assert reserved(server, told[0]["session_id"]) == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_mistake_of_the_callers_is_no_failure(gateway: Any, provider: Any, status: int) -> None:
    server = gateway(config=THREE)
    provider.behaviour = Behaviour(status=status)
    for _ in range(5):
        assert ask(server).status_code == status
    assert (len(provider.asked), circuits(server), rows(server, guard="api_circuit", kind="record")) == (5, {}, [])


def test_one_call_tests_it_and_what_it_finds_counts(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1", config=SOON)
    provider.behaviour = Behaviour(status=500)
    for _ in range(3):
        ask(server)
    assert ask(server).status_code == 503
    provider.behaviour = Behaviour()
    deadline = time.monotonic() + 30
    while (answer := ask(server)).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert answer.status_code == 200
    assert len(provider.asked) == 4, "the first that was let through tested it"
    assert circuits(server)["openai/gpt-4o"]["phase"] == "closed"
    assert ask(server).status_code == 200


def test_a_provider_says_how_long_it_wants_to_be_left_alone(gateway: Any, provider: Any) -> None:
    server = gateway(config=THREE)
    provider.behaviour = Behaviour(status=429, headers={"retry-after": "200"})
    for _ in range(3):
        assert ask(server).headers["retry-after"] == "200", "as the provider says"
    assert 150 < int(ask(server).headers["retry-after"]) <= 200


def test_clients_wait_and_come_back(gateway: Any, provider: Any) -> None:
    server = gateway(config=SOON)
    provider.behaviour = Behaviour(status=503)
    with pytest.raises(openai.InternalServerError):
        chat(server, max_retries=2).chat.completions.create(model=CHAT, messages=HELLO)
    assert len(provider.asked) == 3
    provider.behaviour = Behaviour()
    answer = chat(server, max_retries=5).chat.completions.create(model=CHAT, messages=HELLO)
    assert answer.choices[0].message.content.startswith(WORD)


def test_each_client_is_told_in_its_own_words(gateway: Any, provider: Any) -> None:
    server = gateway(config=THREE, environment=bedrock_wire.ENVIRONMENT)
    for name in ("openai/gpt-4o", f"anthropic/{MESSAGES}", "bedrock/amazon.nova-lite-v1:0"):
        assert httpx.post(f"{server.url}/v1/circuits/{name.replace('/', '%2F')}/open").status_code == 200, name
    with pytest.raises(openai.APIStatusError) as refused:
        chat(server).chat.completions.create(model=CHAT, messages=HELLO)
    assert (refused.value.status_code, refused.value.body["code"]) == (503, "circuit_open")
    assert refused.value.response.headers["x-should-retry"] == "false", "no time changes an operator's word"
    with pytest.raises(anthropic.APIStatusError) as stopped:
        claude(server, max_retries=0).messages.create(model=MESSAGES, max_tokens=5, messages=HELLO)
    assert (stopped.value.status_code, stopped.value.body["error"]["type"]) == (503, "overloaded_error")
    bedrock = boto3.client("bedrock-runtime", endpoint_url=f"{server.url}/bedrock", region_name="us-east-1", aws_access_key_id="a",
                           aws_secret_access_key="b", config=botocore.config.Config(retries={"total_max_attempts": 1}))
    with pytest.raises(botocore.exceptions.ClientError) as error:
        bedrock.converse(modelId="amazon.nova-lite-v1:0", messages=[{"role": "user", "content": [{"text": "hi"}]}])
    assert error.value.response["Error"]["Code"] == "ServiceUnavailableException"
    assert provider.asked == []


def test_a_provider_that_nobody_reaches_is_a_failure(gateway: Any, provider: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = f'[gateway.upstreams.away]\nurl = "http://127.0.0.1:{unused.getsockname()[1]}/v1"\n'
        server = gateway("--max-usd-per-run", "1", config=THREE + away)
        body = {"model": CHAT, "messages": HELLO}
        answers = [raw(f"{server.url}/away/v1/chat/completions", body, **{"x-runguard-run": "r"}) for _ in range(4)]
    codes = [answer.json()["error"]["code"] for answer in answers]
    assert codes == ["provider_away"] * 3 + ["circuit_just_tripped"]
    assert (spent(server, "r"), reserved(server, "r")) == (0, 0)


def test_circuits_can_be_left_out(gateway: Any, provider: Any) -> None:
    server = gateway(config=THREE + "[gateway]\ncircuits = false\n")
    provider.behaviour = Behaviour(status=500)
    assert [ask(server).status_code for _ in range(6)] == [500] * 6
    assert circuits(server) == {}


FALLBACK = f'[gateway.fallbacks]\n"{CHAT}" = ["gpt-4o-mini"]\n"{MESSAGES}" = ["claude-haiku-4-5"]\n'


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_another_model_answers_for_one_that_is_overloaded(gateway: Any, provider: Any, stream: bool) -> None:
    server = gateway("--max-usd-per-run", "1", config=THREE + FALLBACK)
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000, failing={CHAT: 503, MESSAGES: 529})
    run = {"x-runguard-run": "job"}
    body = {"model": CHAT, "messages": HELLO, "temperature": 0.10, "max_tokens": 1000, "stream": stream}
    answer = raw(server.url + PATHS["openai"], body, **run)
    assert (answer.status_code, answer.headers["x-runguard-model"]) == (200, "gpt-4o-mini")
    assert [asked["model"] for asked in provider.bodies] == [CHAT, "gpt-4o-mini"]
    assert {**provider.bodies[1], "model": CHAT} == provider.bodies[0], "the same question"
    if not stream:
        assert spent(server, "job") == pytest.approx(1000 * 0.15e-6 + 1000 * 0.6e-6), "at the price of the one that answered"
        assert reserved(server, "job") == 0
        paid = [row for row in rows(server, guard="budget", session="job") if (row["input"].get("call") or {}).get("instead_of") == CHAT]
        assert {row["input"]["model"] for row in paid} == {"gpt-4o-mini"}
        message = claude(server).messages.with_raw_response.create(model=MESSAGES, max_tokens=300, messages=HELLO)
        assert (message.headers["x-runguard-model"], message.parse().model) == ("claude-haiku-4-5", "claude-haiku-4-5")
        for _ in range(3):
            ask(server)
        before = len(provider.asked)
        assert ask(server).headers["x-runguard-model"] == "gpt-4o-mini"
        assert [asked["model"] for asked in provider.bodies[before:]] == ["gpt-4o-mini"], "its circuit is open: it is not asked first"
        provider.behaviour = Behaviour()
        assert ask(server, "anthropic", MESSAGES).headers["x-runguard-model"] == MESSAGES, "who answers says so"


def test_none_that_is_dearer_than_allowed_is_asked(gateway: Any, provider: Any) -> None:
    # o1-pro costs 150 and 600 dollars a million tokens.
    config = THREE + '[gateway.fallbacks]\n"gpt-4o-mini" = ["o1-pro", "nobody-knows-it", "gpt-4o"]\n'
    server = gateway("--max-usd-per-run", "0.05", config=config)
    provider.behaviour = Behaviour(failing={"gpt-4o-mini": 529})
    answer = ask(server, model="gpt-4o-mini", **{"x-runguard-run": "r"})
    assert (answer.status_code, answer.headers["x-runguard-model"]) == (200, "gpt-4o")
    assert [asked["model"] for asked in provider.bodies] == ["gpt-4o-mini", "gpt-4o"]
    provider.behaviour = Behaviour(status=529)
    answer = ask(server, model="gpt-4o-mini", **{"x-runguard-run": "r"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (529, "scripted"), "of several that fail, what the wanted one said"
    assert reserved(server, "r") == 0


def test_nobody_answers_in_anothers_place_unasked(gateway: Any, provider: Any) -> None:
    server = gateway()
    provider.behaviour = Behaviour(failing={CHAT: 503})
    answer = ask(server)
    assert (answer.status_code, len(provider.asked), "x-runguard-model" in answer.headers) == (503, 1, False)


def test_bedrock_falls_back_in_its_path(gateway: Any, provider: Any) -> None:
    config = THREE + '[gateway.fallbacks]\n"amazon.nova-pro-v1:0" = ["amazon.nova-lite-v1:0"]\n'
    server = gateway(config=config, environment=bedrock_wire.ENVIRONMENT)
    assert httpx.post(f"{server.url}/v1/circuits/bedrock%2Famazon.nova-pro-v1:0/open").status_code == 200
    bedrock = boto3.client("bedrock-runtime", endpoint_url=f"{server.url}/bedrock", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    answer = bedrock.converse(modelId="amazon.nova-pro-v1:0", messages=[{"role": "user", "content": [{"text": "hi"}]}])
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-runguard-model"] == "amazon.nova-lite-v1:0"
    assert [asked.path for asked in provider.asked] == ["/model/amazon.nova-lite-v1%3A0/converse"]


MISTAKES = {
    "an error": (CHAT, {"error": {"message": "scripted", "type": "server_error", "code": None}}, "openai", 500),
    "a response that failed": (CHAT, {"id": "resp_1", "object": "response", "status": "failed", "model": CHAT, "output": [], "usage": None,
                                      "error": {"code": "rate_limit_exceeded", "message": "scripted"}}, "responses", 429),
    "overloaded": (MESSAGES, {"type": "error", "error": {"type": "overloaded_error", "message": "scripted"}}, "anthropic", 529),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_that_comes_as_an_answer_counts_as_one(gateway: Any, provider: Any, kind: str) -> None:
    server = gateway("--max-usd-per-run", "1", config=THREE)
    model, instead, interface, status = MISTAKES[kind]
    path = "/openai/v1/responses" if interface == "responses" else PATHS[interface]
    provider.behaviour = Behaviour(instead=instead)
    body = {"model": model, "messages": HELLO, "input": "hi", "max_tokens": 300}
    for _ in range(3):
        answer = raw(server.url + path, body, **{"x-runguard-run": "r"})
        assert (answer.status_code, answer.json()) == (200, instead), "as it came"
    assert raw(server.url + path, body).status_code == 503
    assert {row["input"]["status_code"] for row in rows(server, guard="api_circuit", kind="record")} == {status}
    assert (spent(server, "r"), reserved(server, "r")) == (0, 0), "nothing was answered"


def test_another_model_answers_for_one_whose_answer_is_a_mistake(gateway: Any, provider: Any) -> None:
    server = gateway(config=THREE + FALLBACK)
    provider.behaviour = Behaviour(instead={"error": {"message": "scripted", "type": "server_error"}})
    raw(server.url + PATHS["openai"], {"model": CHAT, "messages": HELLO})
    assert [asked["model"] for asked in provider.bodies] == [CHAT, "gpt-4o-mini"]


@pytest.mark.parametrize("interface", ["chat", "responses", "messages"])
def test_a_stream_that_breaks_off_counts_as_a_mistake(gateway: Any, provider: Any, interface: str) -> None:
    server = gateway(config=THREE)
    path, model, _ = STREAMS[interface]
    provider.behaviour = Behaviour(tokens=50, breaks_after=4)
    for _ in range(3):
        with pytest.raises(httpx.RemoteProtocolError):
            stream(server, path, model)
    provider.behaviour = Behaviour()
    deadline = time.monotonic() + 10
    while (refused := stream(server, path, model)).status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert refused.status_code == 503
    assert {row["input"]["status_code"] for row in rows(server, guard="api_circuit", kind="record")} == {502}


STREAMS = {
    "chat": ("/openai/v1/chat/completions", CHAT, "server_error"),
    "responses": ("/openai/v1/responses", CHAT, "rate_limit_exceeded"),
    "messages": ("/anthropic/v1/messages", MESSAGES, "overloaded_error"),
}


def stream(server: Any, path: str, model: str, **headers: str) -> httpx.Response:
    return raw(server.url + path, {"model": model, "messages": HELLO, "input": "hi", "max_tokens": 300, "stream": True}, **headers)


@pytest.mark.parametrize("interface", STREAMS)
@pytest.mark.parametrize("behind", [0, 2], ids=["at once", "in the middle"])
def test_a_mistake_in_a_stream_counts_as_one(gateway: Any, provider: Any, interface: str, behind: int) -> None:
    server = gateway("--max-usd-per-run", "1", config=THREE)
    path, model, kind = STREAMS[interface]
    provider.behaviour = Behaviour(breaking={model: (behind, kind)})
    direct = stream(provider, path.removeprefix("/openai").removeprefix("/anthropic"), model)
    for _ in range(3):
        answer = stream(server, path, model, **{"x-runguard-run": "r"})
        assert answer.status_code == 200
        if behind == 0:
            assert answer.content == direct.content, "as it came"
    deadline = time.monotonic() + 10
    while (refused := stream(server, path, model)).status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (refused.status_code, refused.headers["x-runguard-reason"]) == (503, "circuit_just_tripped")
    told = rows(server, guard="api_circuit", kind="record")
    assert {row["input"]["status_code"] for row in told} == {{"server_error": 500, "rate_limit_exceeded": 429, "overloaded_error": 529}[kind]}
    assert reserved(server, "r") == 0
    if behind == 0:
        assert spent(server, "r") == 0, "nothing was answered"


@pytest.mark.parametrize("interface", STREAMS)
def test_a_mistake_of_the_callers_in_a_stream_is_none_of_the_providers(gateway: Any, provider: Any, interface: str) -> None:
    server = gateway(config=THREE + FALLBACK)
    path, model, _ = STREAMS[interface]
    provider.behaviour = Behaviour(breaking={model: (0, "invalid_request_error")})
    for _ in range(4):
        assert b"invalid_request_error" in stream(server, path, model).content
    assert (len(provider.asked), circuits(server)) == (4, {})


@pytest.mark.parametrize("interface", STREAMS)
def test_another_answers_for_a_stream_that_begins_with_a_mistake(gateway: Any, provider: Any, interface: str) -> None:
    server = gateway("--max-usd-per-run", "1", config=THREE + FALLBACK)
    path, model, kind = STREAMS[interface]
    provider.behaviour = Behaviour(tokens=100, breaking={model: (0, kind)})
    answer = stream(server, path, model, **{"x-runguard-run": "r"})
    assert answer.headers["x-runguard-model"] == {CHAT: "gpt-4o-mini", MESSAGES: "claude-haiku-4-5"}[model]
    assert b"scripted" not in answer.content and answer.content.count(WORD.encode()) >= 100
    provider.behaviour = Behaviour(tokens=100, breaking={model: (2, kind)})
    answer = stream(server, path, model, **{"x-runguard-run": "r"})
    assert b"scripted" in answer.content, "what has begun is not asked again"
    assert answer.headers["x-runguard-model"] == model


@pytest.mark.parametrize("kind", ["throttlingException", "modelStreamErrorException"])
def test_exceptions_of_bedrocks_streams_count_and_fall_back(gateway: Any, provider: Any, kind: str) -> None:
    wanted, other = "amazon.nova-pro-v1:0", "amazon.nova-lite-v1:0"
    server = gateway(config=THREE + f'[gateway.fallbacks]\n"{wanted}" = ["{other}"]\n', environment=bedrock_wire.ENVIRONMENT)
    bedrock = boto3.client("bedrock-runtime", endpoint_url=f"{server.url}/bedrock", region_name="us-east-1", aws_access_key_id="a",
                           aws_secret_access_key="b", config=botocore.config.Config(retries={"total_max_attempts": 1}))
    provider.behaviour = Behaviour(breaking={wanted: (0, kind)})
    for _ in range(3):
        answer = bedrock.converse_stream(modelId=wanted, messages=[{"role": "user", "content": [{"text": "hi"}]}])
        assert answer["ResponseMetadata"]["HTTPHeaders"]["x-runguard-model"] == other
        assert "messageStop" in [name for event in answer["stream"] for name in event]
    assert circuits(server)[f"bedrock/{wanted}"]["recent_failures"] == 3
    before = len(rows(server, guard="api_circuit", kind="record"))
    provider.behaviour = Behaviour(breaking={other: (1, kind)})
    answer = bedrock.converse_stream(modelId=other, messages=[{"role": "user", "content": [{"text": "hi"}]}])
    with pytest.raises(botocore.exceptions.EventStreamError, match="scripted"):
        list(answer["stream"])
    deadline = time.monotonic() + 10
    while len(rows(server, guard="api_circuit", kind="record")) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    noted = rows(server, guard="api_circuit", kind="record")
    assert len(noted) == before + 1 and any((row["input"].get("call") or {}).get("mostly_works") for row in noted), "it is in the log"
    assert f"bedrock/{other}" not in circuits(server), "one of four calls is not counted yet"


def test_a_provider_that_is_slow_to_begin_is_left_when_the_caller_goes(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=400, silence=60)
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{server.url}{PATHS['openai']}", json={"model": CHAT, "messages": HELLO, "stream": True}, headers={"x-runguard-run": "r"}, timeout=1)
    deadline = time.monotonic() + 20
    while reserved(server, "r") > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reserved(server, "r") == 0
