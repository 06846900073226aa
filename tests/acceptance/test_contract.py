"""The common contract, over every guard route and every reason code."""

import json
import re
import threading

import pytest

from catalogue import AGENT_ACTION, AI_TASK_RETRY, BLOCKS, CAPTURE, CIRCUIT_CHECK, CIRCUIT_RECORD, HANDOFF, \
    KB_BOTPRESS, KB_CHECK, KB_RECORD, NO_MATCH, ROUTES
from runguard_http import Client

MIB = 1024 * 1024
KIB = 1024

every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
answering_routes = pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.status == 200], ids=lambda route: route.path)
every_block = pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
every_field = pytest.mark.parametrize(
    "route, field", [(route, field) for route in ROUTES for field in route.required],
    ids=lambda value: getattr(value, "path", value))
every_id = pytest.mark.parametrize(
    "route, field", [(route, field) for route in ROUTES for field in route.ids],
    ids=lambda value: getattr(value, "path", value))
every_text = pytest.mark.parametrize(
    "route, field", [(route, field) for route in ROUTES for field in route.texts],
    ids=lambda value: getattr(value, "path", value))


@pytest.fixture
def caller(shared_server) -> Client:
    return shared_server.client()


@pytest.fixture
def session(request) -> str:
    """A session of this test's own on the shared server."""
    return request.node.name[:256]


def assert_problem(response, status: int, *, field: str | None = None) -> dict:
    """RFC 9457, and for a bad field the field's name with what is wrong about it."""
    assert response.status == status, response
    assert response.content_type == "application/problem+json", response
    problem = response.json
    assert problem["status"] == status, response
    for name in ("type", "title", "detail"):
        assert isinstance(problem[name], str) and problem[name], response
    assert "panicked" not in response.text and "src/" not in response.text, response
    if field is not None:
        assert [error for error in problem["errors"] if error["field"] == field], response
    for error in problem.get("errors", []):
        assert isinstance(error["field"], str) and isinstance(error["problem"], str) and error["problem"], response
    return problem


# -- requests -------------------------------------------------------------------------------------


@every_route
@pytest.mark.parametrize("body", [
    b"", b"session_id=s", b"{", b'{"session_id": "s"', b"nul", b'{"session_id": NaN}', b"\xff\xfe\x00",
    b'{"session_id": "\xff"}', b"{}{}", b"{'session_id': 's'}",
], ids=repr)
def test_what_is_not_json_is_400(caller, route, body):
    assert_problem(caller.request("POST", route.path, body), 400)


@every_route
@pytest.mark.parametrize("body", [b"[]", b'[{"session_id": "s"}]', b"null", b'"text"', b"1", b"true"], ids=repr)
def test_json_that_is_no_object_is_400(caller, route, body):
    assert_problem(caller.request("POST", route.path, body), 400)


def nested(body: dict, field: str, depth: int = 100_000) -> bytes:
    """A body of which one field is an array in an array in an array…"""
    rest = {name: value for name, value in body.items() if name != field}
    return json.dumps(rest)[:-1].encode() + b', "%s": ' % field.encode() + b"[" * depth + b"]" * depth + b"}"


@every_route
def test_a_deeply_nested_unknown_field_is_passed_over_and_not_a_crash(caller, route):
    response = caller.request("POST", route.path, nested(route.body, "deep"))
    assert response.status in (route.status, 429, 400, 422), response


@every_field
def test_a_deeply_nested_field_is_an_error_and_not_a_crash(caller, route, field):
    assert_problem(caller.request("POST", route.path, nested(route.body, field)), 422, field=field)


def test_deeply_nested_parameters_are_an_error_and_not_a_crash(caller):
    body = {"session_id": "s", "action_name": "a"}
    assert_problem(caller.request("POST", AGENT_ACTION, nested(body, "action_params")), 422, field="action_params")


@every_field
@pytest.mark.parametrize("value", ["<missing>", "", None, True, ["s"], {"id": "s"}], ids=repr)
def test_a_required_field_must_be_a_filled_string(caller, route, field, value):
    body = {**route.body, field: value}
    if value == "<missing>":
        del body[field]
    assert_problem(caller.post(route.path, body), 422, field=field)


@every_id
def test_an_id_has_at_most_256_characters(caller, route, field):
    for longest in ("x" * 256, "é" * 256, "😀" * 256):
        response = caller.post(route.path, {**route.body, field: longest})
        assert response.status in (route.status, 429), response
    assert_problem(caller.post(route.path, {**route.body, field: "x" * 257}), 422, field=field)
    assert_problem(caller.post(route.path, {**route.body, field: "é" * 257}), 422, field=field)


@every_text
def test_a_text_has_at_most_64_kib(caller, session, route, field):
    body = {**route.body, "session_id": session}
    assert caller.post(route.path, {**body, field: "x" * (64 * KIB)}).status == route.status
    assert_problem(caller.post(route.path, {**body, field: "x" * (64 * KIB + 1)}), 422, field=field)
    assert_problem(caller.post(route.path, {**body, field: "é" * (32 * KIB + 1)}), 422, field=field)


@every_text
@pytest.mark.parametrize("value", [True, ["hello"], {"text": "hello"}], ids=repr)
def test_a_text_must_be_a_string(caller, route, field, value):
    assert_problem(caller.post(route.path, {**route.body, field: value}), 422, field=field)


@pytest.mark.parametrize("route, field", [(r, f) for r in ROUTES for f in r.optional_texts],
                         ids=lambda value: getattr(value, "path", value))
def test_an_optional_text_that_is_null_is_empty(caller, session, route, field):
    response = caller.post(route.path, {**route.body, "session_id": session, field: None})
    assert response.status == route.status, response


@pytest.mark.parametrize("route, field, value",
                         [(r, f, v) for r in ROUTES for f, values in r.numbers.items() for v in values],
                         ids=lambda value: getattr(value, "path", repr(value)))
def test_a_number_out_of_range_is_422(caller, route, field, value):
    assert_problem(caller.post(route.path, {**route.body, field: value}), 422, field=field)


def misquoted(response) -> list[str]:
    """The fields that the answer says were quoted too much or too little."""
    return [warning.split("'")[1] for warning in response.json["warnings"]]


@every_id
def test_an_id_may_come_as_a_number(caller, route, field):
    response = caller.post(route.path, {**route.body, field: 4711})
    assert response.status in (route.status, 429), response
    if response.status != 204:
        assert misquoted(response) == [field], response


@pytest.mark.parametrize("route, field, value", [
    (route, field, value) for route in ROUTES for field, values in route.numbers.items() if -0.01 in values or -1 in values
    for value in (["0.4", ""] if 1.01 in values else ["2"] if 1.5 in values else [])],
    ids=lambda value: getattr(value, "path", repr(value)))
def test_a_number_may_come_as_text(caller, session, route, field, value):
    """As the template of an API step sends it; what is not set there is empty, and counts as not given, or as the confidence of no answer."""
    body = {**route.body, "session_id": session, field: value}
    response = caller.post(route.path, body)
    assert response.status in (route.status, 429), response
    assert misquoted(response) == [field], response


def test_numbers_in_text_count_like_numbers(flow):
    body = {"session_id": 7, "topic_hash": 12, "last_confidence": "0.4"}
    assert flow.post(KB_BOTPRESS, body).json["queries_used"] == 1
    assert flow.post(KB_BOTPRESS, {"session_id": "7", "topic_hash": "12", "last_confidence": 0.3}).json["queries_used"] == 2
    third = flow.post(KB_BOTPRESS + "?flat=1", body)
    assert third.status == 429 and third.json["best_confidence_seen"] == 0.4, third
    assert third.json["session_id"] == "7" and "'session_id' is a number" in third.json["warnings"], third


@pytest.mark.parametrize("outcome", ["<missing>", "", None, "failed", "SUCCESS", 1, "circuit_open"], ids=repr)
def test_a_circuit_outcome_is_success_or_failure(caller, outcome):
    body = {"endpoint_key": "outcomes", "session_id": "s", "attempt": 1, "outcome": outcome}
    if outcome == "<missing>":
        del body["outcome"]
    assert_problem(caller.post(CIRCUIT_RECORD, body), 422, field="outcome")


def test_several_bad_fields_are_all_named(caller):
    problem = assert_problem(caller.post(HANDOFF, {"session_id": "", "source_bot": [7]}), 422)
    assert {error["field"] for error in problem["errors"]} == {"session_id", "source_bot", "target_bot"}


def test_a_bad_request_changes_nothing(flow):
    for _ in range(10):
        assert_problem(flow.post(HANDOFF, {"session_id": "s", "source_bot": "a", "target_bot": ""}), 422)
    assert flow.allowed(HANDOFF, session_id="s", source_bot="a", target_bot="b")["handoffs_used"] == 1
    assert len(flow.get("/v1/decisions").json["decisions"]) == 1


def padded(route, size: int) -> bytes:
    body = json.dumps(route.body).encode()
    return body[:-1] + b" " * (size - len(body)) + b"}"


@every_route
def test_a_body_has_at_most_one_mib(caller, route):
    response = caller.request("POST", route.path, padded(route, MIB))
    assert response.status in (route.status, 429), response
    assert_problem(caller.request("POST", route.path, padded(route, MIB + 1)), 413)


def test_a_chunked_body_has_at_most_one_mib(caller):
    chunks = iter([padded(ROUTES[0], 2 * MIB)[n:n + 65536] for n in range(0, 2 * MIB, 65536)])
    assert_problem(caller.request("POST", ROUTES[0].path, chunks), 413)  # no length known: sent chunked


@every_route
@pytest.mark.parametrize("content_type", [
    None, "application/json", "text/plain", "application/x-www-form-urlencoded", "application/xml; charset=latin-1", "?",
])
def test_the_content_type_does_not_matter(caller, session, route, content_type):
    body = json.dumps({**route.body, "session_id": session}).encode()
    headers = {} if content_type is None else {"content-type": content_type}
    assert caller.request("POST", route.path, body, headers).status == route.status


@answering_routes
def test_an_unknown_field_is_named_in_warnings(caller, session, route):
    answer = caller.post(route.path, {**route.body, "session_id": session, "user_mesage": "typo", "zeal": 1}).json
    assert "user_mesage" in json.dumps(answer["warnings"]) and "zeal" in json.dumps(answer["warnings"])
    clean = caller.post(route.path, {**route.body, "session_id": session + "2"}).json
    assert not clean.get("warnings")


@answering_routes
@pytest.mark.parametrize("query, told", [
    ("stauts=200", "did you mean 'status=200'"), ("status=201", "did you mean 'status=200'"), ("Flat=1", "did you mean 'flat=1'"),
    ("tenant=acme", "that of the key"), ("color=%22red%22", "known are status=200 and flat=1"),
])
def test_an_unknown_parameter_is_named_in_warnings(caller, session, route, query, told):
    answer = caller.post(f"{route.path}?{query}", {**route.body, "session_id": session}).json
    assert told in json.dumps(answer["warnings"]), answer
    clean = caller.post(f"{route.path}?status=200&flat=0&", {**route.body, "session_id": session + "2"}).json
    assert not clean.get("warnings")


@every_route
def test_an_unknown_field_is_no_error(caller, session, route):
    response = caller.post(route.path, {**route.body, "session_id": session, "conversation": {"id": 1}})
    assert response.status == route.status, response


# -- paths and methods ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/guard", "/guard/", "/guard/unknown", "/guard/handoff/extra", "/v1", "/v1/nothing"])
def test_an_unknown_path_is_a_404_problem(caller, path):
    assert_problem(caller.get(path), 404)
    assert_problem(caller.post(path), 404)


@every_route
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_another_method_is_a_405_problem(caller, route, method):
    response = caller.request(method, route.path)
    assert_problem(response, 405)
    assert "POST" in response.headers["allow"]


# -- answers --------------------------------------------------------------------------------------


@answering_routes
def test_every_answer_names_guard_decision_and_session(caller, session, route):
    response = caller.post(route.path, {**route.body, "session_id": session})
    assert response.content_type == "application/json"
    answer = response.json
    assert answer["guard"] == route.guard
    assert answer["session_id"] == session
    assert isinstance(answer["decision_id"], str) and answer["decision_id"]


@every_block
def test_every_reason(flow, block):
    block.lead_up(flow)
    response = block.ask_again(flow)
    assert response.status == 429, response
    answer = response.json
    assert {"allow": False, "reason": block.reason, "guard": block.guard, "session_id": "s"}.items() <= answer.items()
    assert answer["decision_id"]
    assert {name: answer.get(name, "<absent>") for name in block.says} == block.says


@every_block
def test_every_message_is_short_and_says_the_numbers(flow, block):
    block.lead_up(flow)
    message = block.ask_again(flow).json["message"]
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", message.strip()) if part]
    assert 1 <= len(sentences) <= 3, message
    for number in block.numbers:
        assert re.search(rf"(?<![\d.]){re.escape(str(number))}0?(?!\d)", message), f"{number} is missing: {message}"


@every_block
def test_a_block_tells_clients_not_to_retry(flow, block):
    block.lead_up(flow)
    response = block.ask_again(flow)
    assert response.headers["x-should-retry"] == "false"


@every_block
def test_retry_after_is_there_when_waiting_helps_and_only_then(flow, block):
    block.lead_up(flow)
    response = block.ask_again(flow)
    if block.retry_after is None:
        assert response.headers["retry-after"] is None
        assert "retry_after_seconds" not in response.json
    else:
        assert response.json["retry_after_seconds"] == block.retry_after, response
        assert response.headers["retry-after"] == str(block.retry_after)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.retry_after], ids=lambda block: block.name)
def test_retry_after_is_true(flow, block):
    """Refused one second and one millisecond before, allowed at it, if nothing else happens."""
    block.lead_up(flow)
    seconds = block.ask_again(flow).json["retry_after_seconds"]
    flow.wait(seconds - 1)
    second_before = block.ask_again(flow)
    assert second_before.status == 429, second_before
    assert second_before.json["retry_after_seconds"] == 1, second_before
    flow.wait(0.999)
    assert block.ask_again(flow).status == 429
    flow.wait(0.001)
    at_it = block.ask_again(flow)
    assert at_it.status == 200 and at_it.json["allow"] is True, at_it


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.retry_after], ids=lambda block: block.name)
def test_retry_after_is_rounded_up(flow, block):
    """Asked between two whole seconds it still never promises too early."""
    block.lead_up(flow)
    flow.wait(0.3)
    seconds = block.ask_again(flow).json["retry_after_seconds"]
    assert seconds == block.retry_after
    flow.wait(seconds - 1)
    assert block.ask_again(flow).status == 429
    flow.wait(1)
    assert block.ask_again(flow).status == 200


@every_block
def test_always_200(flow, block):
    block.lead_up(flow)
    if block.reason in ("stalled_unmoved", "stalled_put_back", "stalled_same_result"):
        # Said of a step that changes or looks anew: the same once more is none.
        answer = block.ask_again(flow, "?status=200")
        assert (answer.status, answer.json["allow"], answer.json["reason"]) == (200, False, block.reason)
        return
    refused = block.ask_again(flow)
    by_query = block.ask_again(flow, "?status=200")
    by_header = block.ask_again(flow, headers={"x-runguard-status": "200"})
    assert (refused.status, by_query.status, by_header.status) == (429, 200, 200)
    if block.reason == "circuit_just_tripped":  # said once: the later ones are equal among themselves
        refused = block.ask_again(flow)
    for answer in (by_query.json, by_header.json):
        assert answer.keys() == refused.json.keys()
        common = ("allow", "reason", "guard", "session_id", "retry_after_seconds")
        # A result that is refused has happened: it counts, and the next time another sign may be seen first.
        told = {"stall": {"count", "rule", "reason"}, "budget": {"calls"}}.get(block.guard, set())
        for name in ({*common, *block.says} - told) & answer.keys():
            assert answer[name] == refused.json[name]


def test_always_200_leaves_errors_alone(caller):
    assert_problem(caller.post(HANDOFF + "?status=200", {}), 422)
    assert_problem(caller.request("POST", HANDOFF + "?status=200", b"nonsense"), 400)


def assert_flat(answer: dict) -> None:
    for name, value in answer.items():
        assert isinstance(value, (str, int, float, bool)), f"{name} is {value!r}"


@every_block
def test_flat_blocks_are_scalars_only(flow, block):
    block.lead_up(flow)
    response = block.ask_again(flow, "?flat=1&status=200")
    assert response.status == 200, response
    assert_flat(response.json)
    scalars = {name: value for name, value in block.says.items() if not isinstance(value, (list, dict))}
    expected = {"allow": False, "reason": block.reason, "guard": block.guard, "session_id": "s", **scalars}
    assert expected.items() <= response.json.items()
    assert response.json["message"] and response.json["decision_id"]


@answering_routes
def test_flat_answers_are_scalars_only(caller, session, route):
    response = caller.post(route.path + "?flat=1", {**route.body, "session_id": session, "unknown": 1})
    assert response.status == 200, response
    assert_flat(response.json)
    assert response.json["guard"] == route.guard


def test_flat_keeps_what_a_list_said(flow):
    """A chain is still readable, as text."""
    for bot in ("billing", "plans", "billing"):
        flow.allowed(HANDOFF, session_id="s", source_bot="front", target_bot=bot)
    response = flow.post(HANDOFF + "?flat=1", {"session_id": "s", "source_bot": "front", "target_bot": "billing"})
    assert response.status == 429, response
    assert_flat(response.json)
    assert "plans" in response.json["message"]


def test_decision_ids_are_unique_and_sorted(flow):
    """In one millisecond or in several: the order of the answers is the order of the ids."""
    ids = []
    for number in range(200):
        flow.at(number // 50)
        ids.append(flow.allowed(AGENT_ACTION, session_id=f"s{number}", action_name="a")["decision_id"])
    assert len(set(ids)) == 200
    assert ids == sorted(ids)


def test_decision_ids_stay_sorted_when_the_clock_jumps_back_and_over_a_restart(server):
    flow = server.client()
    ids = [flow.at(3600).allowed(AGENT_ACTION, session_id="a", action_name="a")["decision_id"]]
    ids.append(flow.at(0).allowed(AGENT_ACTION, session_id="b", action_name="a")["decision_id"])
    server.restart()
    ids.append(flow.at(10).allowed(AGENT_ACTION, session_id="c", action_name="a")["decision_id"])
    assert ids == sorted(ids) and len(set(ids)) == 3


# -- idempotency ----------------------------------------------------------------------------------

BY_HEADER = ({"Idempotency-Key": "k-1"}, {})
BY_FIELD = ({}, {"request_id": "k-1"})
both_ways = pytest.mark.parametrize("headers, fields", [BY_HEADER, BY_FIELD], ids=["header", "request_id"])


@both_ways
@every_route
def test_a_repeat_is_answered_byte_for_byte(flow, route, headers, fields):
    first = flow.at(0).post(route.path, {**route.body, **fields}, headers)
    again = flow.at(60).post(route.path, {**route.body, **fields}, headers)
    assert first.status == route.status, first
    assert (again.status, again.body) == (first.status, first.body)
    if route.status == 200:
        assert not first.json.get("warnings")


@both_ways
def test_a_repeat_counts_nothing(flow, headers, fields):
    body = {"session_id": "s", "task_name": "classify", **fields}
    for _ in range(5):
        assert flow.post(AI_TASK_RETRY, body, headers).json["attempt_number"] == 1
    assert flow.post(AI_TASK_RETRY, {"session_id": "s", "task_name": "classify"}).json["attempt_number"] == 2
    assert len(flow.get("/v1/decisions").json["decisions"]) == 2


def test_a_repeated_block_is_repeated_as_it_was(flow):
    block = next(block for block in BLOCKS if block.reason == "retry_cap_reached")
    block.lead_up(flow)
    first = block.ask_again(flow, headers={"Idempotency-Key": "k-1"})
    flow.wait(10_000)  # by now it would be allowed
    again = block.ask_again(flow, headers={"Idempotency-Key": "k-1"})
    assert (again.status, again.body) == (429, first.body)
    assert again.headers["retry-after"] == first.headers["retry-after"]
    assert block.ask_again(flow).status == 200


def test_a_repeat_survives_a_restart(server):
    flow = server.client()
    body = {"session_id": "s", "action_name": "lookup", "action_params": {"a": [1, 2.5, "é"]}}
    first = flow.at(0).post(AGENT_ACTION, body, {"Idempotency-Key": "k-1"})
    server.restart()
    again = flow.at(60).post(AGENT_ACTION, body, {"Idempotency-Key": "k-1"})
    assert (again.status, again.body) == (200, first.body)
    assert flow.at(61).post(AGENT_ACTION, body).json["total_actions_used"] == 2


@both_ways
def test_the_same_key_with_another_body_is_422(flow, headers, fields):
    flow.post(AI_TASK_RETRY, {"session_id": "s", "task_name": "classify", **fields}, headers)
    assert_problem(flow.post(AI_TASK_RETRY, {"session_id": "s", "task_name": "other", **fields}, headers), 422)
    assert flow.allowed(AI_TASK_RETRY, session_id="s", task_name="other")["attempt_number"] == 1


def test_a_key_is_kept_for_24_hours(flow):
    body = {"session_id": "s", "task_name": "classify"}
    first = flow.at(0).post(AI_TASK_RETRY, body, {"Idempotency-Key": "k-1"})
    day = 24 * 3600
    assert flow.at(day - 1).post(AI_TASK_RETRY, body, {"Idempotency-Key": "k-1"}).body == first.body
    fresh = flow.at(day + 1).post(AI_TASK_RETRY, body, {"Idempotency-Key": "k-1"})
    assert fresh.status == 200 and fresh.json["decision_id"] != first.json["decision_id"]


def test_a_refused_request_does_not_burn_its_key(flow):
    assert_problem(flow.post(AI_TASK_RETRY, {"session_id": "s"}, {"Idempotency-Key": "k-1"}), 422)
    response = flow.post(AI_TASK_RETRY, {"session_id": "s", "task_name": "classify"}, {"Idempotency-Key": "k-1"})
    assert response.status == 200, response


def test_an_overlong_key_is_an_error(caller):
    body = {"session_id": "s", "task_name": "classify"}
    response = caller.post(AI_TASK_RETRY, {**body, "request_id": "k" * 257})
    assert_problem(response, 422, field="request_id")
    response = caller.post(AI_TASK_RETRY, body, {"Idempotency-Key": "k" * 257})
    assert response.status in (400, 422), response


def test_racing_repeats_take_one_slot(server):
    """Whoever comes while the first is still running may be told 409; nobody is counted twice."""
    answers = []

    def ask():
        client = server.client()
        answers.append(client.post(AGENT_ACTION, {"session_id": "s", "action_name": "a"}, {"Idempotency-Key": "k-1"}))

    threads = [threading.Thread(target=ask) for _ in range(32)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert {answer.status for answer in answers} <= {200, 409}
    assert len({answer.body for answer in answers if answer.status == 200}) == 1
    assert server.client().allowed(AGENT_ACTION, session_id="s", action_name="b")["total_actions_used"] == 2


# -- time -----------------------------------------------------------------------------------------

# Which requests fill a key to its cap, and what the next one is refused with.
FULL = [block for block in BLOCKS if block.retry_after is not None]


@pytest.mark.parametrize("block", FULL, ids=lambda block: block.name)
@pytest.mark.parametrize("jump", [-3600, -86_400, -0.001], ids=["an hour", "a day", "a millisecond"])
def test_a_clock_that_jumps_back_frees_no_slot(flow, block, jump):
    block.lead_up(flow)
    assert block.ask_again(flow).status == 429
    flow.wait(jump)
    for _ in range(3):
        response = block.ask_again(flow)
        assert response.status == 429, response
    flow.wait(-jump)
    assert block.ask_again(flow).status == 429


@every_route
def test_jumps_of_an_hour_are_never_a_server_error(caller, session, route):
    for second in (0, 3600, 0, -3600, 7200, 0, -7200, 3600, 0):
        response = caller.at(second).post(route.path, {**route.body, "session_id": session})
        assert response.status in (route.status, 429), response


@pytest.mark.parametrize("path, fields, cap", [
    (AI_TASK_RETRY, {"task_name": "classify"}, 2),
    (KB_BOTPRESS, {"topic_hash": "refunds"}, 2),
    (NO_MATCH, {"step_id": "ask_colour"}, 3),
    (CAPTURE, {"capture_step": "ask", "entity_type": "colour"}, 4),
    (AGENT_ACTION, {"action_name": "a"}, 3),
    (HANDOFF, {"source_bot": "a", "target_bot": "b"}, 2),
], ids=lambda value: value if isinstance(value, str) else "")
def test_slots_taken_in_the_future_count_after_a_jump_back(flow, path, fields, cap):
    """The clock ran an hour ahead, the slots were taken, the clock was put right: they are still taken."""
    for _ in range(cap):
        flow.at(3600).allowed(path, session_id="s", **fields)
    for second in (0, 10, 3600):
        assert flow.at(second).post(path, {"session_id": "s", **fields}).status == 429


def test_a_circuit_stays_open_when_the_clock_jumps_back(flow):
    for number in range(10):
        flow.at(3600).recorded(CIRCUIT_RECORD, endpoint_key="orders", session_id=f"s{number}", attempt=1, outcome="failure")
    for second in (3601, 0, 1800, 3644):
        assert flow.at(second).post(CIRCUIT_CHECK, {"endpoint_key": "orders", "session_id": "t"}).status == 429


def test_recorded_knowledge_base_queries_count_after_a_jump_back(flow):
    for _ in range(2):
        flow.at(3600).recorded(KB_RECORD, session_id="s", query="refunds", confidence_score=0.9, retrieved_chunks=1)
    flow.at(0).refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query="refunds")


@pytest.mark.parametrize("now", ["", "soon", "-1", "1e400", "99999999999999999999999", "9223372036854775807"])
def test_a_nonsense_clock_header_is_not_a_crash(server, now):
    response = server.client().post(AGENT_ACTION, {"session_id": "s", "action_name": "a"}, {"x-runguard-now": now})
    assert response.status < 500, response
    assert server.client().get("/healthz").status == 200


def test_the_catalogue_has_every_route_and_every_reason(caller):
    """What is in no row of it is in no test of the contract."""
    guards = caller.get("/v1/guards").json["guards"]
    assert {route["path"] for guard in guards for route in guard["routes"]} == {route.path for route in ROUTES}
    enforced = {reason["reason"] for guard in guards for reason in guard["reasons"] if reason["mode"] == "enforce"}
    # One needs a thousand open reservations, one a database that is away, one an operator's word, one a question to a model, and one somebody
    # who says what is long: they have tests of their own.
    elsewhere = {"too_many_reservations", "state_unavailable", "run_stopped", "not_metered", "stalled_long_run"}
    assert enforced - {block.reason for block in BLOCKS} <= elsewhere
