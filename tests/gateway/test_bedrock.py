"""The real clients of AWS through the gateway: boto3, and the SDK for JavaScript over HTTP/2."""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError, HTTPClientError
from botocore.session import Session
from urllib3.exceptions import ProtocolError

from bedrock_wire import ENVIRONMENT, METRICS
from provider import WORD, Behaviour
from test_gateway import reserved, spent

# 3.00 and 15.00 dollars a million tokens; Nova 0.06 and 0.24.
SONNET = "us.anthropic.claude-sonnet-4-20250514-v1:0"
NOVA = "amazon.nova-lite-v1:0"
HELLO: list[Any] = [{"role": "user", "content": [{"text": "Say hello."}]}]
CLAUDE_BODY = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 2000, "messages": [{"role": "user", "content": "Say hello."}]}


@pytest.fixture
def bedrock(gateway: Any) -> Any:
    """Starts a gateway that signs with the operator's credentials."""

    def start(*arguments: str, **options: Any) -> Any:
        return gateway(*arguments, environment={**ENVIRONMENT, **options.pop("environment", {})}, **options)

    return start


def client(url: str, run: str | None = None, key: str = "AKIDCALLER", retries: str = "standard", secret: str = "callers-own") -> Any:
    """boto3 as it is, with credentials that nobody behind the gateway knows."""
    made = boto3.client(
        "bedrock-runtime", endpoint_url=url, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret,
        config=Config(retries={"mode": retries}, max_pool_connections=64, read_timeout=60),
    )
    if run:
        made.meta.events.register("before-sign.bedrock-runtime.*", lambda request, **_: request.headers.add_header("x-runguard-run", run))
    return made


def through(server: Any, run: str | None = None, **options: Any) -> Any:
    return client(f"{server.url}/bedrock", run, **options)


def invoke(made: Any, model: str, body: dict[str, Any]) -> dict[str, Any]:
    return json.loads(made.invoke_model(modelId=model, body=json.dumps(body))["body"].read())


def pieces(made: Any, model: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    stream = made.invoke_model_with_response_stream(modelId=model, body=json.dumps(body))["body"]
    return [json.loads(event["chunk"]["bytes"]) for event in stream]


def said(events: list[dict[str, Any]]) -> str:
    return "".join(event["contentBlockDelta"]["delta"].get("text", "") for event in events if "contentBlockDelta" in event)


def settled(server: Any, run: str) -> float:
    """What a run has spent once nothing is set aside for it."""
    deadline = time.monotonic() + 10
    while reserved(server, run) > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reserved(server, run) == 0
    return spent(server, run)


def signed(url: str, path: str, body: bytes) -> httpx.Response:
    """The bytes of an answer, asked for with the operator's own signature."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("POST", url + path, {"content-type": "application/json"}, body)
    credentials = Credentials(ENVIRONMENT["AWS_ACCESS_KEY_ID"], ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], ENVIRONMENT["AWS_SESSION_TOKEN"])
    SigV4Auth(credentials, "bedrock", "eu-west-1").add_auth(request)
    return httpx.post(url + path, content=body, headers=dict(request.headers), timeout=30)


@pytest.mark.parametrize("operation", ["converse", "converse-stream", "invoke", "invoke-with-response-stream"])
@pytest.mark.parametrize("piece", [None, 1, 7])
def test_answers_are_those_without_the_gateway_byte_for_byte(bedrock: Any, provider: Any, operation: str, piece: int | None) -> None:
    server = bedrock()
    body = json.dumps({**CLAUDE_BODY, "unknown": {"a": [1, 2.50]}}).encode()
    path = f"/model/{SONNET.replace(':', '%3A')}/{operation}"
    provider.behaviour = Behaviour(tokens=8, piece=piece)
    direct = signed(provider.url, path, body)
    passed = httpx.post(f"{server.url}/bedrock{path}", content=body, headers={"content-type": "application/json"}, timeout=30)
    assert (passed.status_code, passed.content) == (direct.status_code, direct.content) and direct.status_code == 200
    assert passed.headers["content-type"] == direct.headers["content-type"]
    assert provider.asked[1].raw == body, "and so is the question"


def test_boto3_is_answered_and_its_questions_cost_what_they_cost(bedrock: Any, provider: Any) -> None:
    server = bedrock()
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000)
    made = through(server, "job-1")
    answer = made.converse(modelId=SONNET, messages=HELLO, inferenceConfig={"maxTokens": 2000})
    assert answer["output"]["message"]["content"][0]["text"] == WORD * 1000
    assert spent(server, "job-1") == pytest.approx(0.018)
    events = list(made.converse_stream(modelId=SONNET, messages=HELLO)["stream"])
    assert said(events) == WORD * 1000
    assert events[-1]["metadata"]["usage"]["outputTokens"] == 1000
    assert invoke(made, SONNET, CLAUDE_BODY)["content"][0]["text"] == WORD * 1000
    assert METRICS in pieces(made, SONNET, CLAUDE_BODY)[-1]
    assert settled(server, "job-1") == pytest.approx(4 * 0.018)
    asked = provider.asked[-1].headers
    assert "AKIDCALLER" not in asked["authorization"] and "/eu-west-1/bedrock/" in asked["authorization"], "signed anew, for the operator's region"
    assert "x-runguard-run" not in asked


@pytest.mark.parametrize(("model", "body", "usd"), [
    (NOVA, {"messages": HELLO, "inferenceConfig": {"maxTokens": 2000}}, 0.0003),
    ("meta.llama3-1-70b-instruct-v1:0", {"prompt": "Say hello.", "max_gen_len": 2000}, 0.00144),
    ("mistral.mistral-large-2402-v1:0", {"prompt": "Say hello.", "max_tokens": 2000}, 0.016),
    ("amazon.titan-text-express-v1", {"inputText": "Say hello.", "textGenerationConfig": {"maxTokenCount": 2000}}, 0.0008),
], ids=["nova", "llama", "mistral", "titan"])
def test_every_family_is_metered_in_its_own_words(bedrock: Any, provider: Any, model: str, body: dict[str, Any], usd: float) -> None:
    server = bedrock("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=1000, input_tokens=1000)
    made = through(server, "r")
    invoke(made, model, body)
    assert settled(server, "r") == pytest.approx(usd)
    pieces(made, model, body)
    assert settled(server, "r") == pytest.approx(2 * usd)


def test_embeddings_and_counting(bedrock: Any, provider: Any) -> None:
    server = bedrock("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=0, input_tokens=1_000_000)
    made = through(server, "r")
    assert invoke(made, "amazon.titan-embed-text-v2:0", {"inputText": "a"})["embedding"] == [0.1, 0.2]
    assert settled(server, "r") == pytest.approx(0.02)
    counted = made.count_tokens(modelId=SONNET, input={"converse": {"messages": HELLO}})
    assert counted["inputTokens"] == 1_000_000
    assert settled(server, "r") == pytest.approx(0.02), "counting costs nothing"


@pytest.mark.parametrize("retries", ["legacy", "standard", "adaptive"])
def test_a_run_ends_when_its_money_is_spent_and_asks_once(bedrock: Any, provider: Any, retries: str) -> None:
    server = bedrock("--max-usd-per-run", "0.05")
    provider.behaviour = Behaviour(tokens=1000, input_tokens=20)
    made = through(server, "r", retries=retries)
    answered: list[int] = []
    sent: list[str] = []
    made.meta.events.register("before-send.bedrock-runtime.*", lambda request, **_: sent.append(request.url) and None)
    with pytest.raises(ClientError) as refused:
        for _ in range(20):
            answered.append(made.converse(modelId=SONNET, messages=HELLO, inferenceConfig={"maxTokens": 1000})["usage"]["outputTokens"])
    assert refused.value.response["Error"]["Code"] == "ServiceQuotaExceededException"
    assert "$0.05" in refused.value.response["Error"]["Message"]
    headers = refused.value.response["ResponseMetadata"]["HTTPHeaders"]
    assert headers["x-runguard-reason"] == "budget_exceeded"
    assert len(sent) == len(answered) + 1, "a refusal is asked once"
    assert len(provider.asked) == len(answered)
    total = sum(20 * 3e-6 + tokens * 15e-6 for tokens in answered)
    assert 0.04 <= total <= 0.05, "nearly all that could be bought was, and no more"
    with pytest.raises(made.exceptions.ServiceQuotaExceededException, match=r"\$0\.05"):
        invoke(made, SONNET, CLAUDE_BODY)
    with pytest.raises(ClientError, match=r"\$0\.05"):
        made.converse_stream(modelId=SONNET, messages=HELLO)


def test_an_answer_is_shortened_to_what_is_left(bedrock: Any, provider: Any) -> None:
    server = bedrock("--max-usd-per-run", "0.01")
    provider.behaviour = Behaviour(tokens=100_000, input_tokens=10)
    answer = through(server, "a").converse(modelId=SONNET, messages=HELLO, inferenceConfig={"maxTokens": 16000, "temperature": 0.5})
    bound = provider.bodies[0]["inferenceConfig"]
    assert 256 <= bound["maxTokens"] < 667 and bound["temperature"] == 0.5
    assert answer["stopReason"] == "max_tokens"
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-runguard-max-output"] == str(bound["maxTokens"])
    through(server, "b").converse(modelId=SONNET, messages=HELLO)
    assert 256 <= provider.bodies[1]["inferenceConfig"]["maxTokens"] < 667, "a question without a bound gets one"
    invoke(through(server, "c"), SONNET, {**CLAUDE_BODY, "max_tokens": 16000})
    assert 256 <= provider.bodies[2]["max_tokens"] < 667


def test_a_cap_is_never_passed_by_many_streams_at_once(bedrock: Any, provider: Any) -> None:
    server = bedrock("--max-usd-per-day", "0.05")
    provider.behaviour = Behaviour(tokens=700, input_tokens=20)
    made = through(server, retries="standard")

    def ask(number: int) -> float:
        try:
            asked = made.converse_stream(modelId=SONNET, messages=[{"role": "user", "content": [{"text": f"Question {number}"}]}], inferenceConfig={"maxTokens": 700})
            usage = [event["metadata"]["usage"] for event in asked["stream"] if "metadata" in event][-1]
            return usage["inputTokens"] * 3e-6 + usage["outputTokens"] * 15e-6
        except ClientError as refused:
            assert refused.response["Error"]["Code"] in ("ServiceQuotaExceededException", "ThrottlingException"), refused
            return 0.0

    with ThreadPoolExecutor(32) as pool:
        paid = sum(pool.map(ask, range(48)))
    assert 0.02 <= paid <= 0.05


@pytest.mark.parametrize(("model", "asked"), [
    (NOVA, {"guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"}}),
    (NOVA, {"performanceConfig": {"latency": "optimized"}}),
    (SONNET, {"additionalModelRequestFields": {"max_tokens": 64000}}),
], ids=["guardrail", "speed", "another bound"])
def test_what_has_no_known_price_is_not_asked_while_dollars_are_limited(bedrock: Any, provider: Any, model: str, asked: dict[str, Any]) -> None:
    server = bedrock("--max-usd-per-run", "1")
    with pytest.raises(ClientError) as refused:
        through(server, "r").converse(modelId=model, messages=HELLO, **asked)
    assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["x-runguard-reason"] == "not_metered"
    assert (provider.asked, settled(server, "r")) == ([], 0)


def test_models_that_nobody_here_can_price_are_refused(bedrock: Any, provider: Any) -> None:
    server = bedrock("--max-usd-per-run", "1")
    made = through(server)
    profile = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/x1y2z3"
    with pytest.raises(ClientError) as refused:
        made.converse(modelId=profile, messages=HELLO)
    assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["x-runguard-reason"] == "unknown_model"
    with pytest.raises(ClientError):
        invoke(made, "stability.sd3-5-large-v1:0", {"prompt": "a cat"})
    assert provider.asked == []
    known = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-20250514-v1:0"
    made.converse(modelId=known, messages=HELLO)
    assert provider.asked[0].path == f"/model/{known.replace(':', '%3A').replace('/', '%2F')}/converse"


def test_where_nothing_is_limited_every_model_passes(bedrock: Any, provider: Any) -> None:
    made = through(bedrock())
    made.converse(modelId="arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/x1y2z3", messages=HELLO)
    assert invoke(made, "writer.palmyra-x5-v1:0", {"messages": []})
    assert len(provider.asked) == 2


def test_routes_that_are_not_metered_are_not_passed(bedrock: Any, provider: Any) -> None:
    server = bedrock()
    made = through(server)
    with pytest.raises(ClientError) as refused:
        made.apply_guardrail(guardrailIdentifier="g", guardrailVersion="1", source="INPUT", content=[{"text": {"text": "a"}}])
    assert refused.value.response["Error"]["Code"] == "ResourceNotFoundException"
    assert "costs" in refused.value.response["Error"]["Message"]
    assert httpx.get(f"{server.url}/bedrock/async-invoke").headers["x-runguard-reason"] == "route_not_metered"
    assert provider.asked == []


@pytest.mark.parametrize("api", ["converse", "claude", "nova", "llama", "mistral"])
def test_a_provider_that_writes_on_is_cut_in_its_own_way(bedrock: Any, provider: Any, api: str) -> None:
    server = bedrock("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=5000, input_tokens=40, ignores_bound=True)
    made = through(server, "r")
    if api == "converse":
        events = list(made.converse_stream(modelId=SONNET, messages=HELLO, inferenceConfig={"maxTokens": 50})["stream"])
        assert [next(iter(event)) for event in events[-3:]] == ["contentBlockStop", "messageStop", "metadata"]
        assert events[-2]["messageStop"]["stopReason"] == "max_tokens"
        assert events[-1]["metadata"]["usage"]["outputTokens"] > 50
        assert len(events) < 300
    else:
        model, body, reason = {
            "claude": (SONNET, {**CLAUDE_BODY, "max_tokens": 50}, lambda last: last[-2]["delta"]["stop_reason"] == "max_tokens" and last[-1]["type"] == "message_stop"),
            "nova": (NOVA, {"messages": HELLO, "inferenceConfig": {"maxTokens": 50}}, lambda last: last[-2]["messageStop"]["stopReason"] == "max_tokens"),
            "llama": ("meta.llama3-1-70b-instruct-v1:0", {"prompt": "a", "max_gen_len": 50}, lambda last: last[-1]["stop_reason"] == "length"),
            "mistral": ("mistral.mistral-large-2402-v1:0", {"prompt": "a", "max_tokens": 50}, lambda last: last[-1]["outputs"][0]["stop_reason"] == "length"),
        }[api]
        last = pieces(made, model, body)
        assert reason(last) and METRICS in last[-1] and len(last) < 300
    assert settled(server, "r") > 0


def test_a_caller_who_leaves_pays_for_what_came(bedrock: Any, provider: Any) -> None:
    server = bedrock("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=2000, input_tokens=1000, pause=0.005)
    stream = through(server, "gone").converse_stream(modelId=SONNET, messages=HELLO, inferenceConfig={"maxTokens": 2000})["stream"]
    for number, _ in enumerate(stream):
        if number == 20:
            break
    stream.close()
    assert 0 < settled(server, "gone") < 0.02
    deadline = time.monotonic() + 10
    while provider.left == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert provider.left == 1, "the provider is left too"


@pytest.mark.parametrize("operation", ["converse", "converse_stream", "invoke", "invoke stream"])
def test_no_usage_is_estimated(bedrock: Any, provider: Any, operation: str) -> None:
    server = bedrock("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=1000, counts=False)
    made = through(server, "mute")
    body = {"prompt": "a", "max_tokens": 2000}
    if operation == "converse":
        answer = made.converse(modelId=SONNET, messages=HELLO)
        assert answer["ResponseMetadata"]["HTTPHeaders"]["x-runguard-estimated"] == "true"
    elif operation == "converse_stream":
        assert said(list(made.converse_stream(modelId=SONNET, messages=HELLO)["stream"])) == WORD * 1000
    elif operation == "invoke":
        invoke(made, "mistral.mistral-large-2402-v1:0", body)
    else:
        pieces(made, "mistral.mistral-large-2402-v1:0", body)
    assert 0.01 < settled(server, "mute") < 0.06


def test_a_stream_that_breaks_off_breaks_off_and_is_paid(bedrock: Any, provider: Any) -> None:
    server = bedrock("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=100, input_tokens=1000, breaks_after=30)
    with pytest.raises((EventStreamError, HTTPClientError, ProtocolError)):
        list(through(server, "b").converse_stream(modelId=SONNET, messages=HELLO, inferenceConfig={"maxTokens": 100})["stream"])
    assert settled(server, "b") > 0


@pytest.mark.parametrize("status", [400, 429, 500])
def test_what_bedrock_refuses_costs_nothing_and_is_passed_on(bedrock: Any, provider: Any, status: int) -> None:
    server = bedrock("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(status=status)
    made = through(server, "r")
    with pytest.raises(ClientError) as refused:
        made.converse(modelId=SONNET, messages=HELLO)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert refused.value.response["Error"]["Message"].startswith("scripted")
    assert settled(server, "r") == 0


def test_a_stop_can_be_a_last_answer(bedrock: Any, provider: Any) -> None:
    server = bedrock("--max-usd-per-run", "0.0000001", config='[gateway]\non_stop = "answer"\n')
    made = through(server)
    answer = made.converse(modelId=SONNET, messages=HELLO)
    assert "budget" in answer["output"]["message"]["content"][0]["text"] and answer["stopReason"] == "end_turn"
    events = list(made.converse_stream(modelId=SONNET, messages=HELLO)["stream"])
    assert "budget" in said(events) and events[-2]["messageStop"]["stopReason"] == "end_turn"
    assert "budget" in invoke(made, SONNET, CLAUDE_BODY)["content"][0]["text"]
    last = pieces(made, SONNET, CLAUDE_BODY)
    assert "budget" in last[2]["delta"]["text"] and last[-1]["type"] == "message_stop" and METRICS in last[-1]
    assert "budget" in invoke(made, "meta.llama3-1-70b-instruct-v1:0", {"prompt": "a"})["generation"]
    assert provider.asked == []


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_a_model_that_loops_is_ended_in_converse(bedrock: Any, provider: Any, streams: bool) -> None:
    server = bedrock()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    made, messages = through(server), list(HELLO)
    with pytest.raises(ClientError) as refused:
        for number in range(30):
            if streams:
                events = list(made.converse_stream(modelId=NOVA, messages=messages)["stream"])
                call = {**events[1]["contentBlockStart"]["start"]["toolUse"], "input": json.loads(events[2]["contentBlockDelta"]["delta"]["toolUse"]["input"])}
                message = {"role": "assistant", "content": [{"toolUse": call}]}
            else:
                message = made.converse(modelId=NOVA, messages=messages)["output"]["message"]
            messages.append(message)
            result = {"toolUseId": message["content"][0]["toolUse"]["toolUseId"], "content": [{"text": "nothing found"}], "status": "success"}
            messages.append({"role": "user", "content": [{"toolResult": result}]})
    assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["x-runguard-reason"] == "run_stalled"
    assert len(provider.asked) == 4, "the fourth equal step is the last that was paid"
    with pytest.raises(ClientError):
        made.converse(modelId=NOVA, messages=HELLO)
    assert len(provider.asked) == 4, "a task that begins anew is refused at once"


def test_a_model_that_loops_is_ended_through_invoke(bedrock: Any, provider: Any) -> None:
    server = bedrock()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    made, messages = through(server), list(CLAUDE_BODY["messages"])
    with pytest.raises(made.exceptions.ServiceQuotaExceededException):
        for _ in range(30):
            content = invoke(made, SONNET, {**CLAUDE_BODY, "messages": messages})["content"]
            messages.append({"role": "assistant", "content": content})
            messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": content[0]["id"], "content": "nothing found"}]})
    assert len(provider.asked) == 4


def test_runs_are_told_apart_by_what_a_request_says_of_itself(bedrock: Any, provider: Any) -> None:
    server = bedrock()
    answer = through(server).converse(modelId=NOVA, messages=HELLO, requestMetadata={"session_id": "s-1"})
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    assert (headers["x-runguard-run"], headers["x-runguard-run-by"]) == ("s-1", "metadata")
    headers = through(server).converse(modelId=NOVA, messages=HELLO)["ResponseMetadata"]["HTTPHeaders"]
    assert headers["x-runguard-run-by"] == "beginning"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages":[],"messages":[]}', b'{"inferenceConfig":{"maxTokens":"9"}}', b'{"inferenceConfig":{"maxTokens":1,"maxTokens":2}}'])
def test_what_cannot_be_read_is_refused_in_bedrocks_shape(bedrock: Any, provider: Any, body: bytes) -> None:
    server = bedrock()
    answer = httpx.post(f"{server.url}/bedrock/model/{NOVA}/converse", content=body)
    assert (answer.status_code, answer.headers["x-amzn-errortype"]) == (400, "ValidationException")
    assert answer.json()["message"] and provider.asked == []


def key_of(server: Any, role: str) -> str:
    from runguard_process import run_cli

    made = run_cli("key", "create", "--data", server.data, "--role", role)
    return next(word for word in made.stdout.split() if word.startswith("rg_"))


def test_with_keys_of_ours_the_operator_pays_and_no_key_leaks(bedrock: Any, provider: Any) -> None:
    server = bedrock()
    key, admin = key_of(server, "guard"), key_of(server, "admin")
    url, path = f"{server.url}/bedrock", f"/model/{NOVA}/converse"
    body = json.dumps({"messages": HELLO}).encode()
    deadline = time.monotonic() + 10
    while httpx.post(url + path, content=body).status_code != 401 and time.monotonic() < deadline:
        time.sleep(0.05)
    provider.asked.clear()
    # As boto3 sends it: in the place of the access key id, with any secret.
    through(server, key=key, secret="unused").converse(modelId=NOVA, messages=HELLO)
    for headers in ({"authorization": f"Bearer {key}"}, {"x-runguard-key": key}, {"x-api-key": key}):
        assert httpx.post(url + path, content=body, headers=headers).status_code == 200
    assert len(provider.asked) == 4
    for asked in provider.asked:
        assert asked.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDOPERATOR/"), "and its signature was verified"
        assert key not in json.dumps(asked.headers) + asked.path
    own = httpx.post(url + path, content=body, headers={"x-runguard-key": key, "authorization": "Bearer ABSK-callers-own"})
    assert own.status_code == 200 and provider.asked[-1].headers["authorization"] == "Bearer ABSK-callers-own"
    for wrong, code in ((f"{key}x", "UnrecognizedClientException"), ("AKIDCALLER", "UnrecognizedClientException"), (admin, "AccessDeniedException")):
        with pytest.raises(ClientError) as refused:
            through(server, key=wrong).converse(modelId=NOVA, messages=HELLO)
        assert refused.value.response["Error"]["Code"] == code
    assert len(provider.asked) == 5
    assert server.files_containing(ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], "Say hello.") == []
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in server.log()


def test_an_open_gateway_passes_a_bedrock_key_on_and_says_when_it_cannot_sign(gateway: Any, provider: Any, tmp_path: Path) -> None:
    nothing = {name: "" for name in ENVIRONMENT} | {"AWS_REGION": "eu-west-1", "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    server = gateway(environment=nothing)
    path = f"/bedrock/model/{NOVA}/converse"
    own = httpx.post(server.url + path, content=json.dumps({"messages": HELLO}).encode(), headers={"authorization": "Bearer ABSK-mine"})
    assert own.status_code == 200 and provider.asked[0].headers["authorization"] == "Bearer ABSK-mine"
    with pytest.raises(ClientError) as refused:
        through(server).converse(modelId=NOVA, messages=HELLO)
    assert refused.value.response["Error"]["Code"] == "AccessDeniedException"
    assert "AWS_ACCESS_KEY_ID" in refused.value.response["Error"]["Message"]
    assert len(provider.asked) == 1


def test_one_variable_is_enough(bedrock: Any, provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = bedrock()
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", f"{server.url}/bedrock")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDCALLER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "callers-own")
    made = Session().create_client("bedrock-runtime", region_name="us-east-1")
    assert made.converse(modelId=NOVA, messages=HELLO)["stopReason"] == "end_turn"
    assert len(provider.asked) == 1


def javascript(server: Any, *arguments: str, **environment: str) -> Any:
    import os

    script = Path(__file__).parent / "bedrock.mjs"
    keys = {"AWS_ACCESS_KEY_ID": "AKIDCALLER", "AWS_SECRET_ACCESS_KEY": "callers-own", "AWS_REGION": "us-east-1"}
    ended = subprocess.run(
        ["node", str(script), *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, **keys, "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": f"{server.url}/bedrock", **environment},
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_sdk_for_javascript_is_answered(bedrock: Any, provider: Any) -> None:
    server = bedrock()
    provider.behaviour = Behaviour(tokens=20)
    answered = javascript(server, "answers", SONNET)
    assert answered == {"converse": WORD * 20, "converseStream": WORD * 20, "stopReason": "end_turn", "outputTokens": 20, "invoke": WORD * 20, "invokeStream": WORD * 20}
    assert len(provider.asked) == 4


def test_the_sdk_for_javascript_asks_once_when_the_money_is_spent(bedrock: Any, provider: Any) -> None:
    server = bedrock("--max-usd-per-run", "0.0000001")
    refused = javascript(server, "refused", SONNET)
    assert [one["name"] for one in refused] == ["ServiceQuotaExceededException"] * 2
    assert all("budget" in one["message"] and one["attempts"] == 1 and one["reason"] == "budget_exceeded" for one in refused)
    assert provider.asked == []


def test_the_sdk_for_javascript_reads_a_stream_that_is_cut(bedrock: Any, provider: Any) -> None:
    server = bedrock("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=5000, input_tokens=40, ignores_bound=True)
    # Under load the client over HTTP/2 ends about one stream in forty a few frames early, without an error.
    ends = [javascript(server, "cut", SONNET)["stopReason"] for _ in range(3)]
    assert "max_tokens" in ends and set(ends) <= {"max_tokens", None}


def test_who_has_no_region_is_told_of_the_upstream_that_was_asked(gateway: Any, provider: Any) -> None:
    keys = {name: value for name, value in ENVIRONMENT.items() if name != "AWS_REGION"}
    server = gateway(config=f'[gateway.upstreams.claude-eu]\nurl = "{provider.url}"\nspeaks = "bedrock"\n',
                     environment={**keys, "AWS_REGION": "", "AWS_DEFAULT_REGION": ""})
    answer = httpx.post(f"{server.url}/claude-eu/model/amazon.nova-lite-v1:0/converse", json={"messages": []})
    assert (answer.status_code, provider.asked) == (403, [])
    assert "`gateway.upstreams.claude-eu.region`" in answer.json()["message"]
