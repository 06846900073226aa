"""The action-group decorator and the AgentCore hook, with the event shapes of the service and real Powertools resolvers."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import pytest
from guard_service import free_port, running_service, wait_for
from runguard._core import reply_failed
from runguard.adapters.aws_lambda import (
    ActionCall,
    AgentCoreGuard,
    DynamoDBStore,
    MemoryStore,
    RedisStore,
    agentcore_before_tool_call,
    guard_action_group,
)


def api_event(session: str = "s-1", order: str = "7", method: str = "POST", path: str = "/orders", **more: Any) -> dict[str, Any]:
    """An event of an API-schema action group."""
    properties = [{"name": "order", "type": "integer", "value": order}, {"name": "note", "type": "string", "value": "urgent"}]
    return {
        "messageVersion": "1.0",
        "agent": {"name": "shop", "id": "AGENT12345", "alias": "ALIAS12345", "version": "1"},
        "inputText": "Where is my order?",
        "sessionId": session,
        "actionGroup": "orders",
        "apiPath": path,
        "httpMethod": method,
        "parameters": [{"name": "tenant", "type": "string", "value": "acme"}],
        "requestBody": {"content": {"application/json": {"properties": properties}}},
        "sessionAttributes": {"user": "ada"},
        "promptSessionAttributes": {},
        **more,
    }


def function_event(session: str = "s-1", order: str = "7", function: str = "find_order") -> dict[str, Any]:
    """An event of a function-details action group: no path, no method, no body."""
    return {
        "messageVersion": "1.0",
        "agent": {"name": "shop", "id": "AGENT12345", "alias": "ALIAS12345", "version": "1"},
        "inputText": "Where is my order?",
        "sessionId": session,
        "actionGroup": "orders",
        "function": function,
        "parameters": [{"name": "order", "type": "string", "value": order}],
        "sessionAttributes": {"user": "ada"},
        "promptSessionAttributes": {},
    }


def reply(event: dict[str, Any], status: int = 200, body: Optional[Any] = None) -> dict[str, Any]:
    content = {"application/json": {"body": json.dumps({"ok": True} if body is None else body)}}
    answer = {"actionGroup": event["actionGroup"], "apiPath": event["apiPath"], "httpMethod": event["httpMethod"]}
    return {"messageVersion": "1.0", "response": {**answer, "httpStatusCode": status, "responseBody": content}}


class Action:
    """A handler that answers what it is told to, and counts how often it really ran."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any]) -> None:
        self.answer = answer
        self.runs = 0

    def __call__(self, event: dict[str, Any], context: Any) -> Any:
        self.runs += 1
        return self.answer(event)


def failing(event: dict[str, Any]) -> dict[str, Any]:
    return reply(event, 500, {"message": "AccessDenied"})


def is_refused(answer: dict[str, Any]) -> bool:
    response = answer["response"]
    if "functionResponse" in response:
        return response["functionResponse"].get("responseState") == "FAILURE" and "PERMANENT" in json.dumps(response)
    return response["httpStatusCode"] == 422 and "PERMANENT" in json.dumps(response)


def wrapped(action: Action, **options: Any) -> Callable[..., Any]:
    def handler(event: dict[str, Any], context: Any) -> Any:
        return action(event, context)

    return guard_action_group(handler, **options)


def test_the_third_call_after_two_failures_is_refused_with_422() -> None:
    action = Action(failing)
    handler = wrapped(action)
    answers = [handler(api_event(), None) for _ in range(5)]
    assert action.runs == 2
    assert [is_refused(answer) for answer in answers] == [False, False, True, True, True]
    refused = answers[2]
    assert refused["response"]["actionGroup"] == "orders"
    assert (refused["response"]["apiPath"], refused["response"]["httpMethod"]) == ("/orders", "POST")
    assert refused["sessionAttributes"] == {"user": "ada"}
    body = json.loads(refused["response"]["responseBody"]["application/json"]["body"])
    assert body["error"] == "PERMANENT_FAILURE"
    assert body["retryable"] is False
    assert "Action 'orders::POST /orders' failed 2 times with the same parameters" in body["message"]


def test_a_function_schema_call_is_refused_with_the_failure_state() -> None:
    text = {"actionGroup": "orders", "function": "find_order", "functionResponse": {"responseBody": {"TEXT": {"body": '{"error": "no table"}'}}}}
    action = Action(lambda event: {"messageVersion": "1.0", "response": text})
    handler = wrapped(action)
    answers = [handler(function_event(), None) for _ in range(3)]
    assert action.runs == 2
    response = answers[2]["response"]
    assert response["functionResponse"]["responseState"] == "FAILURE"
    assert response["function"] == "find_order"
    assert "apiPath" not in response
    assert json.loads(response["functionResponse"]["responseBody"]["TEXT"]["body"])["retryable"] is False


def test_an_exception_is_a_failure_and_still_raised() -> None:
    def broken(event: dict[str, Any]) -> Any:
        raise RuntimeError("no such table")

    action = Action(broken)
    handler = wrapped(action)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such table"):
            handler(api_event(), None)
    assert is_refused(handler(api_event(), None))
    assert action.runs == 2


def test_polling_a_healthy_action_is_fine() -> None:
    action = Action(reply)
    handler = wrapped(action)
    assert not any(is_refused(handler(api_event(), None)) for _ in range(20))
    assert action.runs == 20


def test_a_success_starts_the_count_anew() -> None:
    outcomes = iter([500, 200, 500, 500])
    action = Action(lambda event: reply(event, next(outcomes)))
    handler = wrapped(action)
    assert [is_refused(handler(api_event(), None)) for _ in range(5)] == [False, False, False, False, True]

    mended = Action(lambda event: reply(event, 200 if event["apiPath"] == "/mend" else 500))
    handler = wrapped(mended)
    events = [api_event(), api_event(path="/mend")] * 6
    assert not any(is_refused(handler(event, None)) for event in events), "another call that succeeds may have changed the cause"


def test_calls_that_fail_in_turns_are_seen(place: dict[str, Any]) -> None:
    action = Action(failing)
    copies = [wrapped(action, **place) for _ in range(2)]
    orders = ["7", "8", "7", "8", "7", "8"]
    answers = [copies[number % 2](api_event(order=order), None) for number, order in enumerate(orders)]
    assert [is_refused(answer) for answer in answers] == [False] * 4 + [True] * 2
    three = ["1", "2", "3"] * 3
    answers = [copies[number % 2](api_event("s-3", order=order), None) for number, order in enumerate(three)]
    assert [is_refused(answer) for answer in answers] == [False] * 6 + [True] * 3


@pytest.mark.parametrize(
    "others",
    [
        [api_event(order="8"), api_event(order="9"), api_event(order="10")],
        [api_event(method="GET"), api_event(method="PUT"), api_event(method="DELETE")],
        [api_event(path="/orders/{id}"), api_event(path="/refunds"), api_event(path="/stock")],
        [api_event(parameters=[{"name": "id", "type": "string", "value": value}], requestBody=None) for value in "789"],
        [function_event(function="find"), function_event(function="refund"), function_event(function="notify")],
        [api_event(session="a-1"), api_event(session="b-1"), api_event(session="c-1")],
    ],
    ids=["body", "method", "path", "parameters", "function", "session"],
)
def test_calls_that_differ_in_one_thing_are_different_calls(others: list[dict[str, Any]]) -> None:
    handler = wrapped(Action(lambda event: {"response": {"httpStatusCode": 500}}))
    assert not any(is_refused(handler(event, None)) for event in others if "function" not in event)
    seen = {ActionCall.of(event).session_id + ActionCall.of(event).signature for event in others}
    assert len(seen) == len(others)


def test_the_order_and_the_form_of_the_arguments_do_not_matter() -> None:
    straight = api_event(order="7")
    turned = api_event(order="7.0")
    turned["requestBody"]["content"]["application/json"]["properties"].reverse()
    assert ActionCall.of(straight).signature == ActionCall.of(turned).signature


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        ({"response": {"httpStatusCode": 399}}, False),
        ({"response": {"httpStatusCode": 400}}, True),
        ({"response": {"httpStatusCode": "503"}}, True),
        ({"response": {"httpStatusCode": 200, "responseBody": {"application/json": {"body": '{"error": "no"}'}}}}, True),
        ({"response": {"httpStatusCode": 200, "responseBody": {"application/json": {"body": '{"error": null, "id": 1}'}}}}, False),
        ({"response": {"httpStatusCode": 200, "responseBody": {"application/json": {"body": '{"item": {"error": "no"}}'}}}}, False),
        ({"response": {"functionResponse": {"responseState": "REPROMPT", "responseBody": {"TEXT": {"body": "which?"}}}}}, True),
        ({"response": {"functionResponse": {"responseState": "FAILURE"}}}, True),
        ({"response": {"functionResponse": {"responseBody": {"TEXT": {"body": '"Error: LookupError: no order 7"'}}}}}, True),
        ({"response": {"functionResponse": {"responseBody": {"TEXT": {"body": "Error: LookupError: no order 7"}}}}}, True),
        ({"response": {"functionResponse": {"responseBody": {"TEXT": {"body": "Errors: none"}}}}}, False),
        ({"response": {"functionResponse": {"responseBody": {"TEXT": {"body": "The role is not authorized to perform: dynamodb:GetItem"}}}}}, True),
        ({"response": {"httpStatusCode": 200, "responseBody": {"application/json": {"body": '{"status": "failed"}'}}}}, True),
        (None, False),
    ],
)
def test_what_counts_as_failed(answer: Any, failed: bool) -> None:
    assert reply_failed(answer) is failed


def test_two_sessions_do_not_disturb_each_other() -> None:
    action = Action(failing)
    handler = wrapped(action)
    answers = [handler(api_event(session=session), None) for session in ("a-1", "b-1", "a-1", "b-1", "a-1", "b-1")]
    assert [is_refused(answer) for answer in answers] == [False] * 4 + [True] * 2


def test_an_event_without_a_session_runs_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    action = Action(failing)
    handler = wrapped(action)
    with caplog.at_level(logging.WARNING, "runguard.aws_lambda"):
        for _ in range(3):
            handler(api_event(session=""), None)
    assert action.runs == 3
    assert "no sessionId" in caplog.text


def test_a_late_result_is_old_news() -> None:
    store = MemoryStore()
    slow, failing_call = ActionCall.of(api_event()), ActionCall.of(function_event())
    store.refusal(slow)
    for late in (False, True):
        assert store.refusal(failing_call) is None
        store.record(failing_call, True)
        store.record(slow, late)
    assert "failed 2 times" in (store.refusal(failing_call) or ""), "it takes nothing from the newest call"
    assert store.refusal(slow) is None, "nor does it count for its own"


def test_what_is_remembered_ends() -> None:
    store = MemoryStore(kept_seconds=0.05)
    handler = wrapped(Action(failing), store=store)
    assert [is_refused(handler(api_event(), None)) for _ in range(3)] == [False, False, True]
    time.sleep(0.06)
    assert not is_refused(handler(api_event(), None))


# --- Powertools ----------------------------------------------------------------------------------------------------------


def test_a_powertools_function_resolver_inside() -> None:
    event_handler = pytest.importorskip("aws_lambda_powertools.event_handler")
    app = event_handler.BedrockAgentFunctionResolver()
    runs = []

    @app.tool(name="find_order", description="Finds an order")
    def find_order(order: str) -> str:
        runs.append(order)
        raise LookupError(f"no order {order}")

    @guard_action_group
    def handler(event: dict[str, Any], context: Any) -> Any:
        return app.resolve(event, context)

    answers = [handler(function_event(), None) for _ in range(4)]
    # Powertools hides the exception in a text and gives no response state, so an agent would try again for ever.
    assert "responseState" not in answers[0]["response"]["functionResponse"]
    assert [is_refused(answer) for answer in answers] == [False, False, True, True]
    assert runs == ["7", "7"]


def test_a_powertools_api_resolver_inside() -> None:
    pytest.importorskip("pydantic", reason="the API resolver of Powertools needs pydantic")
    event_handler = pytest.importorskip("aws_lambda_powertools.event_handler")
    app = event_handler.BedrockAgentResolver()
    runs = []

    @app.post("/orders", description="Finds an order")
    def orders() -> Any:
        runs.append(1)
        return event_handler.Response(status_code=503, content_type="application/json", body='{"message": "down"}')

    @guard_action_group()
    def handler(event: dict[str, Any], context: Any) -> Any:
        return app.resolve(event, context)

    answers = [handler(api_event(), None) for _ in range(3)]
    assert [is_refused(answer) for answer in answers] == [False, False, True]
    assert len(runs) == 2


# --- where it is remembered ----------------------------------------------------------------------------------------------


def failures_at_once(stores: list[Any], call: ActionCall) -> str:
    """What is counted after each store was told of two failures, all at the same time."""
    threads = [threading.Thread(target=lambda store=store: [store.record(call, True) for _ in range(2)]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refusal = stores[0].refusal(call) or ""
    return refusal[refusal.index("failed") : refusal.index(" with the same")]


TABLE = "bedrock-agent-call-history"


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[Any]:
    """A table as an operator makes it, on a server that speaks DynamoDB's protocol."""
    boto3 = pytest.importorskip("boto3")
    server_of = pytest.importorskip("moto.server")
    server = server_of.ThreadedMotoServer(port=free_port())
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**keys, "AWS_ENDPOINT_URL_DYNAMODB": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        resource = boto3.resource("dynamodb")
        key = {"AttributeName": "sessionId"}
        table = resource.create_table(
            TableName=TABLE, KeySchema=[{**key, "KeyType": "HASH"}], AttributeDefinitions=[{**key, "AttributeType": "S"}], BillingMode="PAY_PER_REQUEST"
        )
        expires = {"Enabled": True, "AttributeName": "expiresAt"}
        resource.meta.client.update_time_to_live(TableName=TABLE, TimeToLiveSpecification=expires)
        yield table
    server.stop()


@pytest.fixture(params=["memory", "redis", "dynamodb"])
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where copies of a function remember what they share."""
    if request.param == "memory":
        return {"store": MemoryStore()}
    if request.param == "redis":
        return {"redis_url": request.getfixturevalue("redis_url")}
    request.getfixturevalue("dynamodb")
    return {"dynamodb_table": TABLE}


def test_dynamodb_is_shared_by_all_copies_of_the_function(dynamodb: Any) -> None:
    action = Action(failing)
    copies = [wrapped(action, dynamodb_table=TABLE) for _ in range(4)]
    answers = [copies[number % 4](api_event("d-1"), None) for number in range(6)]
    assert [is_refused(answer) for answer in answers] == [False, False, True, True, True, True]
    assert action.runs == 2
    item = dynamodb.get_item(Key={"sessionId": "d-1"})["Item"]
    assert item.keys() == {"sessionId", "callHistory", "version", "expiresAt"}
    assert [entry.partition(":")[2] for entry in item["callHistory"]] == ["failed", "failed"]
    assert 3500 < int(item["expiresAt"]) - time.time() <= 3600


def test_the_last_twelve_calls_are_kept_in_dynamodb(dynamodb: Any) -> None:
    handler = wrapped(Action(reply), dynamodb_table=dynamodb)
    for order in range(20):
        handler(api_event("d-2", order=str(order)), None)
    item = dynamodb.get_item(Key={"sessionId": "d-2"})["Item"]
    assert len(item["callHistory"]) == 12


def test_writers_at_once_do_not_undo_each_other_in_dynamodb(dynamodb: Any) -> None:
    call = ActionCall.of(api_event("d-3"))
    assert failures_at_once([DynamoDBStore(TABLE, timeout_seconds=10) for _ in range(6)], call) == "failed 12 times"


def test_what_has_expired_in_dynamodb_does_not_count_though_it_is_still_there(dynamodb: Any) -> None:
    handler = wrapped(Action(failing), store=DynamoDBStore(dynamodb, kept_seconds=3))
    assert [is_refused(handler(api_event("d-4"), None)) for _ in range(3)] == [False, False, True]
    time.sleep(4)
    assert not is_refused(handler(api_event("d-4"), None))
    dynamodb.put_item(Item={"sessionId": "d-5", "callHistory": [7, "orders::/orders::9f2c"]})
    assert not is_refused(handler(api_event("d-5"), None)), "an item of another program's"


def test_a_table_that_is_not_there_lets_the_handler_run_and_warns(dynamodb: Any, caplog: pytest.LogCaptureFixture) -> None:
    action = Action(failing)
    handler = wrapped(action, dynamodb_table="no-such-table")
    with caplog.at_level(logging.WARNING, "runguard.aws_lambda"):
        assert not any(is_refused(handler(api_event(), None)) for _ in range(3))
    assert "runs unguarded" in caplog.text


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    port = free_port()
    settings = ["--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(tmp_path), "--bind", "127.0.0.1"]
    server = subprocess.Popen([program, *settings], stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(10)


def test_redis_is_shared_by_all_copies_of_the_function(redis_url: str) -> None:
    action = Action(failing)
    copies = [wrapped(action, redis_url=redis_url) for _ in range(4)]
    answers = [copies[number % 4](api_event(), None) for number in range(6)]
    assert [is_refused(answer) for answer in answers] == [False, False, True, True, True, True]
    assert action.runs == 2


def test_failures_reported_to_redis_at_once_are_all_counted(redis_url: str) -> None:
    call = ActionCall.of(api_event())
    stores = [RedisStore(redis_url, timeout_seconds=10) for _ in range(6)]
    assert failures_at_once(stores, call) == "failed 12 times"


def test_anything_may_stand_in_redis_where_a_session_was(redis_url: str) -> None:
    import redis

    client = redis.Redis.from_url(redis_url)
    call = ActionCall.of(api_event())
    for damaged in (b"not ours", b'["half', b'{"a": 1}', b"\xff\xfe"):
        client.set(f"runguard:action-group:{call.session_id}", damaged)
        handler = wrapped(Action(failing), redis_url=redis_url)
        assert [is_refused(handler(api_event(), None)) for _ in range(3)] == [False, False, True], damaged


def test_redis_forgets_by_itself(redis_url: str) -> None:
    import redis

    client = redis.Redis.from_url(redis_url)
    RedisStore(client, kept_seconds=100).record(ActionCall.of(api_event()), True)
    (key,) = client.keys("*")
    assert 0 < client.ttl(key) <= 100


@pytest.mark.parametrize("place", ["url", "redis_url"])
def test_an_unreachable_memory_lets_the_handler_run_and_warns(place: str, caplog: pytest.LogCaptureFixture) -> None:
    if place == "redis_url":
        pytest.importorskip("redis")
    scheme = {"url": "http", "redis_url": "redis"}[place]
    action = Action(failing)
    handler = wrapped(action, **{place: f"{scheme}://127.0.0.1:{free_port()}"})
    with caplog.at_level(logging.WARNING, "runguard.aws_lambda"):
        answers = [handler(api_event(), None) for _ in range(4)]
    assert action.runs == 4
    assert not any(is_refused(answer) for answer in answers)
    assert "runs unguarded" in caplog.text


@pytest.fixture
def service_url(tmp_path: Path) -> Iterator[str]:
    with running_service(tmp_path) as url:
        yield url


def test_the_service_is_shared_by_all_copies_of_the_function(service_url: str) -> None:
    for event, answer in ((api_event(), failing), (function_event(), lambda _: {"response": {"functionResponse": {"responseState": "REPROMPT"}}})):
        action = Action(answer)
        copies = [wrapped(action, url=service_url) for _ in range(3)]
        answers = [copies[number % 3](event, None) for number in range(5)]
        assert [is_refused(answer) for answer in answers] == [False, False, True, True, True]
        assert action.runs == 2


def test_the_service_refuses_calls_that_fail_in_turns(service_url: str) -> None:
    action = Action(failing)
    copies = [wrapped(action, url=service_url) for _ in range(3)]
    one, other = api_event(), api_event()
    other["apiPath"] = "/refunds"
    answers = [copies[number % 3](event, None) for number, event in enumerate((one, other) * 3)]
    assert [is_refused(answer) for answer in answers] == [False, False, False, False, True, True]
    assert action.runs == 4


def test_the_order_of_the_arguments_does_not_matter_to_the_service(service_url: str) -> None:
    action = Action(failing)
    handler = wrapped(action, url=service_url)
    turned = api_event()
    turned["requestBody"]["content"]["application/json"]["properties"].reverse()
    assert [is_refused(handler(event, None)) for event in (api_event(), turned, api_event())] == [False, False, True]


def test_a_hook_that_asks_the_service(service_url: str) -> None:
    copies = [AgentCoreGuard(url=service_url) for _ in range(2)]
    assert [copies[number % 2](hook())["decision"] for number in range(3)] == ["allow", "allow", "deny"]


# --- AgentCore -----------------------------------------------------------------------------------------------------------


def hook(kind: str = "before_tool_call", tool: str = "search", given: Any = None, session: str = "run-1", **more: Any) -> dict[str, Any]:
    """A lifecycle hook event of a harness."""
    event = {"hookEventId": "0b1c2d3e-0000-4000-8000-000000000000", "name": "loop-guard", "type": kind, "runtimeSessionId": session}
    return {**event, "toolName": tool, "toolUseId": "tooluse_1", "toolInput": {"query": "rust"} if given is None else given, **more}


def test_the_hook_answers_what_the_service_model_allows() -> None:
    loaders = pytest.importorskip("botocore.session").get_session()
    model = loaders.get_service_model("bedrock-agentcore")
    if "HarnessHookEvent" not in model.shape_names:
        pytest.skip("this botocore does not know harness hooks yet")
    shape = model.shape_for("HarnessHookEvent")
    guard = AgentCoreGuard()
    answers = [guard(hook()) for _ in range(3)]
    assert {answer["decision"] for answer in answers} == set(model.shape_for("HarnessHookDecision").enum)
    for answer in answers:
        assert answer.keys() <= shape.members.keys()
        assert len(answer.get("reason", "")) <= shape.members["reason"].metadata["max"]


def test_the_call_that_closes_a_loop_is_denied_and_the_session_stays_stopped() -> None:
    guard = AgentCoreGuard(repeats=4)
    decisions = [guard(hook())["decision"] for _ in range(6)]
    assert decisions == ["allow", "allow", "allow", "deny", "deny", "deny"]
    assert guard(hook(tool="other"))["decision"] == "deny"
    assert "search" in guard(hook("before_invocation", messages=[]))["reason"]
    assert guard(hook("after_tool_call"))["decision"] == "deny"
    assert guard(hook(session="run-2"))["decision"] == "allow"


def test_a_circle_of_two_tools_is_denied() -> None:
    guard = AgentCoreGuard()
    decisions = [guard(hook(tool=tool))["decision"] for tool in ("read", "write") * 3]
    assert decisions == ["allow"] * 5 + ["deny"]


def test_different_inputs_are_no_loop() -> None:
    guard = AgentCoreGuard()
    assert {guard(hook(given={"query": str(number)}))["decision"] for number in range(10)} == {"allow"}


def test_a_new_message_starts_the_loop_anew_but_returned_results_do_not() -> None:
    message = [{"role": "user", "content": [{"text": "Again, please."}]}]
    results = [{"role": "user", "content": [{"toolResult": {"toolUseId": "tooluse_1", "content": [{"text": "…"}]}}]}]
    for messages, expected in ((message, "allow"), (results, "deny")):
        guard = AgentCoreGuard()
        for _ in range(2):
            guard(hook())
        guard(hook("before_invocation", messages=messages))
        assert guard(hook())["decision"] == expected


def test_a_call_that_failed_twice_is_denied_before_it_is_a_loop() -> None:
    guard = AgentCoreGuard(repeats=10)
    decisions = []
    for _ in range(3):
        decisions.append(guard(hook())["decision"])
        guard(hook("after_tool_call", error="AccessDenied"))
    assert decisions == ["allow", "allow", "deny"]
    healthy = AgentCoreGuard(repeats=10)
    for _ in range(5):
        assert healthy(hook())["decision"] == "allow"
        healthy(hook("after_tool_call", toolResult={"status": "success", "content": []}))


def test_other_spellings_of_the_event_are_understood() -> None:
    guard = AgentCoreGuard()
    event = {"type": "before_tool_call", "context": {"session_id": "run-9", "tool_use": {"name": "search", "input": {"query": "rust"}}}}
    assert [guard(event)["decision"] for _ in range(3)] == ["allow", "allow", "deny"]


def test_an_event_that_says_nothing_is_allowed_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    guard = AgentCoreGuard()
    with caplog.at_level(logging.WARNING, "runguard.aws_lambda"):
        assert guard({"type": "before_tool_call"}) == {"decision": "allow"}
        assert guard({"type": "before_tool_call", "sessionId": "run-1"}) == {"decision": "allow"}
    assert len(caplog.records) == 2


def test_the_ready_made_hook() -> None:
    decisions = [agentcore_before_tool_call(hook(session="ready-made"))["decision"] for _ in range(3)]
    assert decisions == ["allow", "allow", "deny"]
