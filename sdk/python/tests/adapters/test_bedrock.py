"""Real boto3 and aioboto3 against a local Bedrock that plays traces: what trips, after how many steps, at what cost."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import subprocess
import sys
import threading
import weakref
from base64 import b64encode
from pathlib import Path
from typing import Any, Iterator, Optional

import pytest

boto3 = pytest.importorskip("boto3")

from bedrock_server import APAC, HAIKU, NANODOLLARS, SONNET, TOLD, BedrockServer, Tracer, chunk, function_call, metadata  # noqa: E402
from botocore.exceptions import ClientError, EventStreamError  # noqa: E402
from guard_service import running_service  # noqa: E402
from runguard import (  # noqa: E402
    BudgetExceededError,
    BudgetTracker,
    InvalidInputError,
    LoopDetectedError,
    LoopDetector,
    Run,
    StallDetectedError,
    ToolLimitError,
    TripError,
    UnknownModelError,
)
from runguard.adapters.bedrock import (  # noqa: E402
    Attempts,
    GuardedCompletion,
    Sessions,
    guard_invoke_agent,
    guard_invoke_agent_async,
    guard_stream,
    guard_stream_async,
    instrument,
    process_trace_event,
)

os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true")

_numbers = itertools.count(1)


def request(agent: str, session: Optional[str] = None, **more: Any) -> dict[str, Any]:
    """Arguments of invoke_agent. Each test has sessions of its own."""
    return {"agentId": agent, "agentAliasId": "ALIAS", "sessionId": session or f"session-{next(_numbers)}", "inputText": "Go.", **more}


def dollars(*usages: tuple[str, int, int]) -> float:
    """The price of (model, input tokens, output tokens), in whole nano-dollars until the end."""
    return sum(NANODOLLARS[model][0] * read + NANODOLLARS[model][1] * written for model, read, written in usages) / 1e9


def spent(run: Run) -> float:
    assert run.budget is not None
    return run.budget.spent


@pytest.fixture
def server() -> Iterator[BedrockServer]:
    with BedrockServer() as server:
        yield server


@pytest.fixture
def client(server: BedrockServer) -> Iterator[Any]:
    client = boto3.client("bedrock-agent-runtime", endpoint_url=server.url)
    yield client
    client.close()


# --- what trips, and what does not ---------------------------------------------------------------------------------------


def trips(client: Any, server: BedrockServer, agent: str, kind: type[TripError], **options: Any) -> tuple[Any, GuardedCompletion]:
    """Reads until the trip, and sees to it that the stream was closed then and there."""
    # Long enough for a busy machine: the client reads a round and hangs up before the play is over.
    server.pause_seconds = 0.1
    answer = guard_invoke_agent(client, **options, **request(agent))
    with pytest.raises(kind) as caught:
        answer.text()
    served = server.served[-1].wait()
    assert served.hung_up
    assert served.rounds_sent < served.rounds
    assert len(server.served) == 1
    return caught.value, answer


def test_rephrased_questions_to_a_knowledge_base_are_a_loop(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "KBLOOP", LoopDetectedError)
    assert (error.pattern, error.repeats, error.cycle_len) == ("knowledge base KB12345678", 3, 1)
    assert answer.steps == 3
    assert server.served[0].rounds_sent < 10 < server.served[0].rounds
    assert spent(answer.run) == dollars(*[(SONNET, 10_000, 200)] * 3)


def test_a_research_run_with_different_questions_is_healthy(client: Any, server: BedrockServer) -> None:
    answer = guard_invoke_agent(client, max_usd=1.00, **request("RESEARCH"))
    assert answer.text() == "Margins held at 31 %. ☀"
    assert answer.steps == 5
    assert not answer.run.tripped
    assert not server.served[0].wait().hung_up
    assert server.served[0].rounds_sent == server.served[0].rounds
    assert spent(answer.run) == dollars(*[(SONNET, 5_000, 100)] * 5, (SONNET, 9_000, 400))


def test_a_failing_action_called_again_and_again_is_a_loop(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "AGERROR", LoopDetectedError)
    assert error.pattern == "orders::POST /orders/search"
    assert answer.steps == 3
    assert spent(answer.run) == dollars(*[(SONNET, 8_000, 150)] * 3)


def test_the_same_failure_of_ever_other_words_is_a_stall(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "AGVARIED", StallDetectedError, stall="coding")
    assert answer.steps < 10
    assert error.count >= 3
    assert spent(answer.run) == dollars(*[(SONNET, 8_000, 150)] * answer.steps)


# Within a few steps, whichever way the client is guarded; and what is work stays work.
IN_VAIN = [(name, play["stops_after"]) for name, play in TOLD.items() if play["stops_after"] is not None]
HEALTHY = [name for name, play in TOLD.items() if play["stops_after"] is None]


@pytest.mark.parametrize(("agent", "steps"), IN_VAIN)
def test_attempts_in_vain_are_loops(client: Any, server: BedrockServer, agent: str, steps: int) -> None:
    error, answer = trips(client, server, agent, LoopDetectedError)
    assert (answer.steps, error.reason) == (steps, "loop_detected")
    assert error.cycle[0].startswith("knowledge base" if "asks" in TOLD[agent]["steps"][0] else "orders::find")


@pytest.mark.parametrize("agent", HEALTHY)
def test_work_is_no_attempt_in_vain(client: Any, server: BedrockServer, agent: str) -> None:
    answer = guard_invoke_agent(client, **request(agent))
    assert answer.text()
    assert not answer.run.tripped


def test_an_instrumented_client_sees_attempts_in_vain(client: Any, server: BedrockServer) -> None:
    guarded = instrument(client)
    for agent, _ in IN_VAIN:
        with pytest.raises(LoopDetectedError):
            read(client.invoke_agent(**request(agent, f"in-vain-{agent}")))
        assert guarded.run(f"in-vain-{agent}", agent).tripped
    for agent in HEALTHY:
        assert read(client.invoke_agent(**request(agent)))


def test_attempts_are_counted_as_they_are_asked_for(client: Any, server: BedrockServer) -> None:
    _, answer = trips(client, server, "PHRASINGS", LoopDetectedError, attempts=Attempts(same_lookups=5))
    assert answer.steps == 5
    off = Attempts(same_lookups=0, barren_lookups=0, same_errors=0, failing_rounds=0)
    assert guard_invoke_agent(client, attempts=off, **request("TWELVE")).text() == "I gave up."
    with pytest.raises(InvalidInputError, match="same_errors"):
        guard_invoke_agent(client, attempts=Attempts(same_errors=1), **request("TWELVE"))


def test_presets_set_everything_for_a_kind_of_agent(client: Any, server: BedrockServer) -> None:
    for preset, limit, steps in (("research", 5.00, 9), ("automation", 20.00, 5), ("interactive", 2.00, 5)):
        answer = guard_invoke_agent(client, preset=preset, **request("TWELVE"))
        with pytest.raises(LoopDetectedError):
            answer.text()
        assert (answer.steps, answer.run.budget.limit) == (steps, limit)
    with pytest.raises(LoopDetectedError):
        guard_invoke_agent(client, preset="automation", **request("AGERROR")).text()
    answer = guard_invoke_agent(client, preset="interactive", max_usd=0.50, **request("RESEARCH", "preset-own"))
    assert (answer.text(), answer.run.budget.limit) == ("Margins held at 31 %. ☀", 0.50)
    with pytest.raises(InvalidInputError, match="research, automation, interactive"):
        guard_invoke_agent(client, preset="coding", **request("RESEARCH"))
    with pytest.raises(InvalidInputError, match="preset"):
        guard_invoke_agent(client, run=Run(), preset="research", **request("RESEARCH"))
    own = {"loop": LoopDetector(9), "budget": BudgetTracker(max_usd=7)}
    answer = guard_invoke_agent(client, preset="interactive", **own, **request("RESEARCH", "preset-parts"))
    assert (answer.run.loop, answer.run.budget) == (own["loop"], own["budget"]), "they bring their settings with them"
    answer = guard_invoke_agent(client, preset="interactive", max_usd=None, **request("RESEARCH", "preset-unsaid"))
    assert answer.run.budget.limit == 2.00
    answer = guard_invoke_agent(client, preset="research", attempts=Attempts(same_errors=0), **request("TWELVE", "preset-attempts"))
    with pytest.raises(LoopDetectedError):
        answer.text()
    assert answer.steps == 9, "what is left out is as the preset says"
    guarded = instrument(client, preset="interactive")
    read(client.invoke_agent(**request("RESEARCH", "preset-hooked")))
    assert guarded.run("preset-hooked", "RESEARCH").budget.limit == 2.00


def test_a_turn_of_the_user_starts_the_attempts_anew(client: Any, server: BedrockServer) -> None:
    agent = Tracer("twice")
    server.plays["TWICE"] = lambda _: [agent.thinks((100, 1)) + agent.asks_knowledge_base(words, "the same") for words in APAC[:2]] + [[chunk("Ok.")]]
    for _ in range(5):
        assert guard_invoke_agent(client, **request("TWICE", "turns-2")).text() == "Ok."


def test_different_functions_of_one_group_are_no_loop(client: Any, server: BedrockServer) -> None:
    answer = guard_invoke_agent(client, **request("FUNCTIONS"))
    assert answer.text() == "Done."
    assert answer.steps == 8


NO_ATTEMPTS = Attempts(same_lookups=0, barren_lookups=0, same_errors=0, failing_rounds=0)


def test_a_circle_of_two_is_a_loop(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "STORM", LoopDetectedError, attempts=NO_ATTEMPTS)
    assert error.cycle == ("knowledge base KB12345678", "orders::refund")
    assert (error.repeats, error.cycle_len, answer.steps) == (3, 2, 6)
    assert spent(answer.run) == dollars(*[(SONNET, 4_000, 100), (SONNET, 5_000, 100)] * 3)


def test_a_circle_of_three_is_a_loop(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "STORM3", LoopDetectedError, attempts=NO_ATTEMPTS)
    assert (error.repeats, error.cycle_len, answer.steps) == (3, 3, 9)
    assert spent(answer.run) == dollars(*[(SONNET, tokens, 100) for tokens in (4_000, 5_000, 6_000)] * 3)


def test_growing_prompts_meet_the_budget(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "COST", BudgetExceededError, max_usd=1.00)
    # 0.0012 for the pre-processing, then 0.0225, 0.0375, 0.0525 …: the eleventh step is the one that passes a dollar.
    paid = dollars((HAIKU, 1_000, 100), *[(SONNET, 5_000 * number, 500) for number in range(1, 12)])
    assert 1.00 < paid < 1.08
    assert error.spent == spent(answer.run) == paid
    assert (error.limit, error.unit) == (1.00, "usd")
    assert answer.steps == 10


def test_tokens_are_counted_wherever_they_are_reported(client: Any, server: BedrockServer) -> None:
    answer = guard_invoke_agent(client, max_usd=1.00, **request("USAGE"))
    assert answer.text() == "Counted."
    own = [(HAIKU, 100, 1), (SONNET, 1_000, 10), (HAIKU, 400, 4)]
    # A lookup and a guardrail name no model: they are paid as the model the agent called last.
    assert spent(answer.run) == dollars(*own, (SONNET, 200, 2), (SONNET, 300, 3))


def test_a_collaborator_asked_the_same_again_is_a_loop(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "COLLAB", LoopDetectedError)
    assert error.pattern == "collaborator billing"
    # Three times handed over, and five steps of the collaborator after each of the first two.
    assert answer.steps == 3 + 2 * 5
    # What the collaborator's answer sums up was reported by its own steps, and is paid once.
    assert spent(answer.run) == dollars(*[(SONNET, 3_000, 100)] * 3, *[(HAIKU, 1_000, 20)] * 10)


def test_a_collaborator_s_sum_is_paid_as_far_as_its_steps_did_not_report_it() -> None:
    supervisor = Tracer("boss")
    worker = Tracer("worker", model=HAIKU, collaborator="billing", caller=supervisor)
    events = []
    for question, sums_up in (("Why twice?", {}), ("Why today?", metadata(1_500, 30))):
        handed = {"agentCollaboratorName": "billing", "input": {"type": "TEXT", "text": question}}
        answer = {"agentCollaboratorName": "billing", "output": {"type": "TEXT", "text": "No idea."}, "metadata": sums_up}
        events += [*supervisor.thinks((100, 1)), supervisor.calls("AGENT_COLLABORATOR", agentCollaboratorInvocationInput=handed)]
        events += [*worker.thinks((1_000, 20)), supervisor.sees("AGENT_COLLABORATOR", agentCollaboratorInvocationOutput=answer)]
    run = Run(max_usd=1.00)
    list(guard_stream(Stream([{event.kind: event.body} for event in events]), run))
    assert spent(run) == dollars(*[(SONNET, 100, 1), (HAIKU, 1_000, 20)] * 2, (HAIKU, 500, 10))


def test_each_answer_is_paid_as_the_model_it_was_asked_from() -> None:
    agent = Tracer("parallel")
    first, second = agent.thinks((1_000, 10), SONNET), agent.thinks((2_000, 20), HAIKU)
    run = Run(max_usd=1.00)
    list(guard_stream(Stream([{event.kind: event.body} for event in (first[0], second[0], first[1], second[1])]), run))
    assert spent(run) == dollars((SONNET, 1_000, 10), (HAIKU, 2_000, 20))


def test_a_loop_inside_a_collaborator_is_a_loop(server: BedrockServer, client: Any) -> None:
    supervisor = Tracer("boss")
    worker = Tracer("worker", collaborator="billing", caller=supervisor)
    again = function_call("ledger", "page", number="1")
    server.plays["INNER"] = lambda _: [worker.thinks((100, 1)) + worker.calls_action(again, "nothing") for _ in range(9)] + [[chunk("…")]]
    error, answer = trips(client, server, "INNER", LoopDetectedError)
    assert error.pattern == "ledger::page"
    assert answer.steps == 3
    assert answer.run.tripped


def test_a_program_run_again_and_again_is_a_loop(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "CODE", LoopDetectedError)
    assert error.pattern == "code interpreter"
    assert answer.steps == 3
    assert spent(answer.run) == dollars(*[(SONNET, 2_000, 100)] * 3)


def test_ceilings_of_calls(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "RESEARCH", ToolLimitError, max_tool_calls=2)
    assert (error.limit, answer.steps) == (2, 3)
    answer = guard_invoke_agent(client, max_model_calls=2, **request("RESEARCH"))
    with pytest.raises(ToolLimitError):
        answer.text()
    assert answer.steps == 2


@pytest.mark.parametrize(
    "questions",
    [
        [f"payment terms of invoice {number}" for number in (1001, 1002, 1003, 1004)],
        ["how to enable single sign-on", "how to disable single sign-on", "how to reset single sign-on", "how to remove single sign-on"],
        ["which plans include help", "which plans do not include help", "which 'pro' plans include help", "which 'team' plans include help"],
    ],
    ids=["numbers", "dangerous words", "negations and quotes"],
)
def test_questions_that_differ_in_what_matters_are_different(questions: list[str]) -> None:
    agent = Tracer("alike")
    run = Run()
    events = [event for question in questions for event in agent.thinks((10, 1)) + agent.asks_knowledge_base(question)]
    assert guard_stream(Stream([{event.kind: event.body} for event in events]), run).text() == ""
    assert not run.tripped


def test_the_same_question_to_different_knowledge_bases_is_no_loop() -> None:
    agent = Tracer("bases")
    events = [event for number in range(5) for event in agent.asks_knowledge_base("refund policy", base=f"KB{number}")]
    guard_stream(Stream([{event.kind: event.body} for event in events]), Run()).text()


# --- detectors of one's own --------------------------------------------------------------------------------------------


def read_with(client: Any, agent: str, loop_detector: LoopDetector, budget_tracker: Optional[BudgetTracker]) -> int:
    """A loop over the stream as people write it who bring their own detectors. How many events it took."""
    response = client.invoke_agent(**request(agent, enableTrace=True))
    try:
        for number, event in enumerate(response["completion"]):
            if "trace" in event:
                process_trace_event(event["trace"], loop_detector, budget_tracker)
        return number
    finally:
        response["completion"].close()


@pytest.mark.parametrize("agent", [agent for agent, _ in IN_VAIN])
def test_detectors_of_ones_own_are_fed_from_a_trace(client: Any, agent: str) -> None:
    with pytest.raises(LoopDetectedError):
        read_with(client, agent, LoopDetector(repeats=3, max_cycle_len=4), BudgetTracker(max_usd=5.00))


def test_a_budget_of_ones_own_is_the_session_s(client: Any) -> None:
    budget_tracker = BudgetTracker(max_usd=0.20)
    one_turn = dollars(*[(SONNET, 5_000, 100)] * 5, (SONNET, 9_000, 400))
    read_with(client, "RESEARCH", LoopDetector(), budget_tracker)
    assert budget_tracker.spent == one_turn
    with pytest.raises(BudgetExceededError) as caught:
        read_with(client, "RESEARCH", LoopDetector(), budget_tracker)
    assert caught.value.limit == 0.20
    read_with(client, "RESEARCH", LoopDetector(), None)


def test_any_form_of_a_trace_is_read() -> None:
    whole = {"trace": Tracer("forms").asks_knowledge_base("refunds")[0].body}
    for form in (whole, whole["trace"], whole["trace"]["trace"]):
        loop_detector = LoopDetector(repeats=2)
        process_trace_event(form, loop_detector)
        with pytest.raises(LoopDetectedError):
            process_trace_event(form, loop_detector)


def test_a_detector_that_is_gone_leaves_nothing_behind() -> None:
    loop_detector = LoopDetector()
    process_trace_event(Tracer("gone").asks_knowledge_base("refunds")[0].body, loop_detector)
    left = weakref.ref(loop_detector)
    del loop_detector
    gc.collect()
    assert left() is None


# --- return of control ---------------------------------------------------------------------------------------------------


def results(control: dict[str, Any]) -> dict[str, Any]:
    """What a caller sends back after it ran a returned call."""
    call = control["invocationInputs"][0]["functionInvocationInput"]
    body = {"TEXT": {"body": '{"error": "card declined"}'}}
    result = {"functionResult": {"actionGroup": call["actionGroup"], "function": call["function"], "responseBody": body}}
    return {"invocationId": control["invocationId"], "returnControlInvocationResults": [result]}


def test_a_returned_call_is_refused_before_it_runs(client: Any, server: BedrockServer) -> None:
    session, runs, more = "control-1", 0, {}
    with pytest.raises(LoopDetectedError) as caught:
        for _ in range(10):
            answer = guard_invoke_agent(client, **request("CONTROL", session, **more))
            answer.text()
            assert answer.return_control is not None
            runs += 1
            more = {"sessionState": results(answer.return_control)}
    # Announced in the trace and handed out in an event, but one call.
    assert runs == 2
    assert caught.value.pattern == "payments::refund"
    assert len(server.served) == 3


def test_returned_calls_that_fail_as_before_end_before_anything_is_sent(client: Any, server: BedrockServer) -> None:
    runs, more = 0, {}
    with pytest.raises(LoopDetectedError) as caught:
        for _ in range(10):
            answer = guard_invoke_agent(client, **request("CONTROLS", "control-3", **more))
            answer.text()
            assert answer.return_control is not None
            runs += 1
            more = {"sessionState": results(answer.return_control)}
    assert (caught.value.pattern, caught.value.repeats) == ("payments::refund", 4)
    assert runs == len(server.served) == 4


def test_a_new_message_may_ask_for_the_same_call(client: Any, server: BedrockServer) -> None:
    for _ in range(5):
        answer = guard_invoke_agent(client, **request("CONTROL", "control-2"))
        answer.text()
        assert answer.steps == 1


def test_returned_calls_are_guarded_without_a_trace(server: BedrockServer) -> None:
    control = {"invocationId": "1", "invocationInputs": [{"apiInvocationInput": {"actionGroup": "pay", "httpMethod": "post", "apiPath": "/refund"}}]}
    run = Run(repeats=2)
    list(guard_stream(Stream([{"returnControl": control}]), run))
    stream = Stream([{"returnControl": control}])
    with pytest.raises(LoopDetectedError, match="pay::POST /refund"):
        list(guard_stream(stream, run, same_turn=True))
    assert stream.closed


# --- sessions ------------------------------------------------------------------------------------------------------------


def test_a_tripped_session_is_refused_before_anything_is_sent(client: Any, server: BedrockServer) -> None:
    error, answer = trips(client, server, "KBLOOP", LoopDetectedError)
    session = answer.response["sessionId"]
    assert error.run_id == session
    for _ in range(3):
        with pytest.raises(LoopDetectedError, match="knowledge base"):
            guard_invoke_agent(client, **request("KBLOOP", session))
    with pytest.raises(LoopDetectedError):
        next(answer)
    assert len(server.served) == 1
    guard_invoke_agent(client, **request("KBLOOP", "another-session")).close()
    assert len(server.served) == 2


def test_the_budget_is_the_session_s_and_the_loop_is_the_turn_s(client: Any, server: BedrockServer) -> None:
    for turn in range(1, 4):
        answer = guard_invoke_agent(client, max_usd=1.00, **request("RESEARCH", "turns-1"))
        answer.text()
        assert spent(answer.run) == pytest.approx(turn * dollars(*[(SONNET, 5_000, 100)] * 5, (SONNET, 9_000, 400)), abs=1e-12)
    with pytest.raises(BudgetExceededError):
        for _ in range(10):
            guard_invoke_agent(client, max_usd=1.00, **request("RESEARCH", "turns-1")).text()
    sent = len(server.served)
    with pytest.raises(BudgetExceededError):
        guard_invoke_agent(client, **request("RESEARCH", "turns-1"))
    assert len(server.served) == sent == 9


def test_a_session_keeps_its_limits(client: Any, server: BedrockServer) -> None:
    guard_invoke_agent(client, max_usd=1.00, **request("RESEARCH", "limits-1")).text()
    with pytest.raises(InvalidInputError, match="max_usd"):
        guard_invoke_agent(client, max_usd=9.00, **request("RESEARCH", "limits-1"))
    guard_invoke_agent(client, **request("RESEARCH", "limits-1")).text()
    assert len(server.served) == 2


def test_a_session_that_was_ended_begins_anew(client: Any) -> None:
    first = guard_invoke_agent(client, max_usd=1.00, **request("RESEARCH", "ended-1", endSession=True))
    first.text()
    second = guard_invoke_agent(client, max_usd=2.00, **request("RESEARCH", "ended-1"))
    second.text()
    assert second.run is not first.run


def test_sessions_are_forgotten_oldest_first() -> None:
    sessions = Sessions(capacity=2)
    first = sessions.run("a1")
    sessions.run("b1")
    assert sessions.run("a1") is first
    sessions.run("c1")
    assert sessions.run("a1") is first
    sessions.forget("a1")
    assert sessions.run("a1") is not first


def test_a_run_of_ones_own_is_used_and_takes_no_options(client: Any, server: BedrockServer) -> None:
    run = Run(repeats=4)
    answer = guard_invoke_agent(client, run=run, **request("KBLOOP"))
    with pytest.raises(LoopDetectedError):
        answer.text()
    assert (answer.run, answer.steps) == (run, 4)
    with pytest.raises(LoopDetectedError):
        guard_invoke_agent(client, run=run, **request("KBLOOP"))
    with pytest.raises(InvalidInputError, match="repeats"):
        guard_invoke_agent(client, run=Run(), repeats=3, **request("KBLOOP"))
    assert len(server.served) == 1


# --- the wire ------------------------------------------------------------------------------------------------------------


def test_the_trace_is_always_asked_for(client: Any, server: BedrockServer) -> None:
    guard_invoke_agent(client, **request("RESEARCH", enableTrace=False)).text()
    assert server.served[0].wait().body["enableTrace"] is True


def test_without_a_trace_nothing_is_seen_and_a_warning_says_so(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    response = client.invoke_agent(**request("KBLOOP"))
    with caplog.at_level(logging.WARNING, "runguard.bedrock"):
        assert guard_stream(response["completion"], Run()).text() == "I gave up."
    assert "enableTrace=True" in caplog.text


def test_an_existing_stream(client: Any, server: BedrockServer) -> None:
    run = Run(max_usd=5.00)
    response = client.invoke_agent(**request("KBLOOP", enableTrace=True))
    with pytest.raises(LoopDetectedError) as caught:
        for event in guard_stream(response["completion"], run):
            assert event
    # The error is alive here, and so are the frames it holds. The stream is closed all the same.
    assert caught.value.__traceback__ is not None
    assert server.served[0].wait().hung_up
    assert spent(run) == dollars(*[(SONNET, 10_000, 200)] * 3)


def test_an_exception_in_the_stream_arrives_as_it_is(client: Any, server: BedrockServer) -> None:
    answer = guard_invoke_agent(client, **request("THROTTLED"))
    with pytest.raises(EventStreamError) as caught:
        answer.text()
    assert caught.value.response["Error"]["Code"] == "throttlingException"
    assert answer.steps == 2
    assert not answer.run.tripped
    assert spent(answer.run) == dollars(*[(SONNET, 1_000, 10)] * 2)


def test_an_error_of_the_service_arrives_as_it_is(client: Any) -> None:
    with pytest.raises(ClientError, match="no agent NOBODY"):
        guard_invoke_agent(client, **request("NOBODY"))


def test_a_text_cut_inside_a_letter(server: BedrockServer, client: Any) -> None:
    halves = "Grüße".encode()
    parts = [chunk("") for _ in range(2)]
    for part, half in zip(parts, (halves[:3], halves[3:])):
        part.body["bytes"] = b64encode(half).decode()
    server.plays["CUT"] = lambda _: [[Tracer("cut").sees("FINISH", finalResponse={"text": "…"}), *parts]]
    assert guard_invoke_agent(client, **request("CUT")).text() == "Grüße"


def test_the_rest_of_botocore_s_stream_is_there(client: Any) -> None:
    instrument(client)
    completion = client.invoke_agent(**request("RESEARCH"))["completion"]
    assert callable(completion.get_initial_response)
    with pytest.raises(AttributeError):
        completion.no_such_thing  # noqa: B018
    completion.close()


def test_hanging_up_by_hand(client: Any, server: BedrockServer) -> None:
    with guard_invoke_agent(client, repeats=100, **request("COST")) as answer:
        for _ in zip(range(20), answer):
            pass
    assert server.served[0].wait().hung_up
    assert not answer.run.tripped


# --- prices --------------------------------------------------------------------------------------------------------------


def test_a_model_without_a_price_is_an_error_where_dollars_are_limited(client: Any, server: BedrockServer) -> None:
    server.pause_seconds = 0.2
    answer = guard_invoke_agent(client, max_usd=1.00, **request("UNPRICED"))
    with pytest.raises(UnknownModelError) as caught:
        answer.text()
    assert caught.value.model.endswith("application-inference-profile/x1y2z3")
    assert server.served[0].wait().hung_up
    assert guard_invoke_agent(client, **request("UNPRICED")).text() == "Fine."


def test_a_profile_can_be_given_the_price_of_its_model(client: Any) -> None:
    profile = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/x1y2z3"
    answer = guard_invoke_agent(client, max_usd=1.00, models={profile: HAIKU}, **request("UNPRICED"))
    assert answer.text() == "Fine."
    assert spent(answer.run) == dollars((HAIKU, 1_000, 10), (HAIKU, 2_000, 20))


def test_a_trace_without_a_model_is_paid_as_the_default_model() -> None:
    events = [{event.kind: event.body} for event in Tracer("silent").thinks((1_000, 10))[1:]]
    with pytest.raises(UnknownModelError):
        list(guard_stream(Stream(events), Run(max_usd=1.00)))
    run = Run(max_usd=1.00)
    list(guard_stream(Stream(events), run, default_model=HAIKU))
    assert spent(run) == dollars((HAIKU, 1_000, 10))


@pytest.mark.parametrize("form", ["arn:aws:bedrock:us-east-1::foundation-model/{}", "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.{}"])
def test_the_arn_of_a_model_has_the_model_s_price(form: str) -> None:
    agent = Tracer("arn", model=form.format(SONNET))
    run = Run(max_usd=1.00)
    list(guard_stream(Stream([{event.kind: event.body} for event in agent.thinks((1_000, 10))]), run))
    assert spent(run) == dollars((SONNET, 1_000, 10))


# --- an unmodified client ------------------------------------------------------------------------------------------------


def read(response: dict[str, Any]) -> str:
    """What a program that knows nothing of RunGuard does with an answer."""
    return b"".join(event["chunk"]["bytes"] for event in response["completion"] if "chunk" in event).decode()


def test_an_instrumented_client(client: Any, server: BedrockServer) -> None:
    guarded = instrument(client, max_usd=5.00)
    assert read(client.invoke_agent(**request("RESEARCH", "hooked-1"))) == "Margins held at 31 %. ☀"
    with pytest.raises(LoopDetectedError):
        read(client.invoke_agent(**request("KBLOOP", "hooked-2")))
    assert server.served[-1].wait().hung_up
    assert [served.body["enableTrace"] for served in server.served] == [True, True]
    with pytest.raises(LoopDetectedError):
        client.invoke_agent(**request("KBLOOP", "hooked-2"))
    assert len(server.served) == 2
    assert spent(guarded.run("hooked-2", "KBLOOP")) == dollars(*[(SONNET, 10_000, 200)] * 3)
    with pytest.raises(InvalidInputError, match="already"):
        instrument(client)
    with pytest.raises(InvalidInputError, match="already"):
        guard_invoke_agent(client, **request("RESEARCH"))


def test_an_instrumented_client_stands_beside_other_hooks(client: Any, server: BedrockServer) -> None:
    def replace(params: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {**params, "inputText": "replaced", "enableTrace": False}

    client.meta.events.register("provide-client-params.bedrock-agent-runtime.InvokeAgent", replace)
    instrument(client)
    with pytest.raises(LoopDetectedError):
        read(client.invoke_agent(**request("KBLOOP")))
    body = server.served[0].wait().body
    assert (body["inputText"], body["enableTrace"]) == ("replaced", True)


def test_inline_agents_are_guarded_too(client: Any, server: BedrockServer) -> None:
    instrument(client)
    inline = {"sessionId": "inline-1", "foundationModel": SONNET, "instruction": "Answer every question you are asked, in full.", "inputText": "Go."}
    with pytest.raises(LoopDetectedError):
        read(client.invoke_inline_agent(agentName="KBLOOP", **inline))
    assert server.served[0].wait().hung_up
    with pytest.raises(LoopDetectedError):
        client.invoke_inline_agent(agentName="KBLOOP", **inline)
    assert len(server.served) == 1


def test_an_inline_agent_is_paid_as_the_model_it_was_given(client: Any, server: BedrockServer) -> None:
    server.plays["SILENT"] = lambda _: [Tracer("silent").thinks((1_000, 10))[1:]]
    guarded = instrument(client, max_usd=1.00)
    inline = {"foundationModel": HAIKU, "instruction": "Answer every question you are asked, in full.", "inputText": "Go."}
    read(client.invoke_inline_agent(agentName="SILENT", sessionId="inline-2", **inline))
    assert spent(guarded.run("inline-2")) == dollars((HAIKU, 1_000, 10))


def test_instrumentation_can_be_taken_off(client: Any, server: BedrockServer) -> None:
    guarded = instrument(client, repeats=2)
    guarded.remove()
    assert read(client.invoke_agent(**request("KBLOOP"))) == "I gave up."
    assert "enableTrace" not in server.served[0].body
    instrument(client)


def test_an_option_that_does_not_exist_is_named(client: Any) -> None:
    with pytest.raises(InvalidInputError, match="max_dollars"):
        instrument(client, max_dollars=5)


# --- a service that keeps the counts -------------------------------------------------------------------------------------


@pytest.fixture
def service_url(tmp_path: Path) -> Iterator[str]:
    with running_service(tmp_path) as url:
        yield url


def test_a_service_counts_as_this_process_does(client: Any, server: BedrockServer, service_url: str) -> None:
    for agent, options, kind, steps in (
        ("STORM", {}, LoopDetectedError, 5),
        ("STORM", {"attempts": NO_ATTEMPTS}, LoopDetectedError, 6),
        ("COLLAB", {}, LoopDetectedError, 13),
        ("COST", {"max_usd": 1.00}, BudgetExceededError, 10),
    ):
        answer = guard_invoke_agent(client, url=service_url, **options, **request(agent))
        with pytest.raises(kind):
            answer.text()
        assert answer.steps == steps
        assert server.served[-1].wait().hung_up
    answer = guard_invoke_agent(client, url=service_url, max_usd=1.00, **request("RESEARCH"))
    assert answer.text() == "Margins held at 31 %. ☀"


SPENDS = """
import sys
import boto3
from runguard import BudgetExceededError
from runguard.adapters.bedrock import guard_invoke_agent

client = boto3.client("bedrock-agent-runtime", endpoint_url=sys.argv[1])
try:
    call = {"agentId": "RESEARCH", "agentAliasId": "ALIAS", "sessionId": "shared-session", "inputText": "Go."}
    guard_invoke_agent(client, url=sys.argv[2], max_usd=0.25, **call).text()
    print("answered")
except BudgetExceededError as error:
    print(f"{error.spent:.4f} of {error.limit:.2f}")
"""


def test_a_session_s_budget_holds_across_turns_and_processes(server: BedrockServer, service_url: str) -> None:
    def turn() -> str:
        return subprocess.run([sys.executable, "-c", SPENDS, server.url, service_url], capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    # A turn costs 0.1155: the third passes the limit on its way, and a fourth is not sent.
    assert [turn() for _ in range(2)] == ["answered"] * 2
    passed = turn()
    assert passed.endswith(" of 0.25") and float(passed.split()[0]) > 0.25
    assert turn() == passed
    assert len(server.served) == 3


def test_aioboto3_asks_a_service_without_holding_up_the_loop(server: BedrockServer, service_url: str) -> None:
    async def work(client: Any) -> Any:
        answer = await guard_invoke_agent_async(client, url=service_url, **request("STORM"))
        asked_from = set()
        ask = answer.run.before_tool

        def before_tool(*args: Any, **more: Any) -> None:
            asked_from.add(threading.current_thread())
            ask(*args, **more)

        answer.run.before_tool = before_tool
        with pytest.raises(LoopDetectedError):
            await answer.text()
        return answer, asked_from

    answer, asked_from = with_async_client(server, work)
    assert answer.steps == 5
    assert threading.main_thread() not in asked_from
    assert asked_from


# --- aioboto3 ------------------------------------------------------------------------------------------------------------


def with_async_client(server: BedrockServer, work: Any) -> Any:
    aioboto3 = pytest.importorskip("aioboto3")

    async def main() -> Any:
        async with aioboto3.Session().client("bedrock-agent-runtime", endpoint_url=server.url) as client:
            return await asyncio.wait_for(work(client), 30)

    return asyncio.run(main())


@pytest.mark.parametrize(("agent", "steps"), [("AGERROR", 3), ("COLLAB", 13), ("CODE", 3), *IN_VAIN])
def test_aioboto3_trips_as_boto3_does(server: BedrockServer, agent: str, steps: int) -> None:
    session = f"async-{agent}"

    async def work(client: Any) -> Any:
        answer = await guard_invoke_agent_async(client, **request(agent, session))
        with pytest.raises(LoopDetectedError):
            await answer.text()
        served = await asyncio.to_thread(server.served[-1].wait)
        assert served.hung_up
        with pytest.raises(LoopDetectedError):
            await guard_invoke_agent_async(client, **request(agent, session))
        return answer

    answer = with_async_client(server, work)
    assert answer.steps == steps
    assert len(server.served) == 1


def test_aioboto3_healthy_and_over_budget(server: BedrockServer) -> None:
    async def work(client: Any) -> Any:
        healthy = await guard_invoke_agent_async(client, max_usd=1.00, **request("RESEARCH"))
        assert await healthy.text() == "Margins held at 31 %. ☀"
        costly = await guard_invoke_agent_async(client, max_usd=1.00, **request("COST"))
        with pytest.raises(BudgetExceededError):
            async for _ in costly:
                pass
        return healthy, costly

    healthy, costly = with_async_client(server, work)
    assert spent(healthy.run) == dollars(*[(SONNET, 5_000, 100)] * 5, (SONNET, 9_000, 400))
    assert spent(costly.run) == dollars((HAIKU, 1_000, 100), *[(SONNET, 5_000 * number, 500) for number in range(1, 12)])
    assert server.served[-1].wait().hung_up


def test_aioboto3_streams_of_many_sessions_at_once(server: BedrockServer) -> None:
    async def work(client: Any) -> Any:
        async def one(number: int) -> Any:
            response = await client.invoke_agent(**request("STORM" if number % 2 else "RESEARCH", enableTrace=True))
            stream = guard_stream_async(response["completion"], Run(f"many-{number}"))
            try:
                return await stream.text()
            except LoopDetectedError as error:
                return error.cycle_len

        return await asyncio.gather(*(one(number) for number in range(8)))

    assert with_async_client(server, work) == ["Margins held at 31 %. ☀", 2] * 4


def test_an_instrumented_aioboto3_client(server: BedrockServer) -> None:
    async def work(client: Any) -> None:
        instrument(client)
        for _ in range(2):
            with pytest.raises(LoopDetectedError):
                response = await client.invoke_agent(**request("KBLOOP", "hooked-async"))
                async for _ in response["completion"]:
                    pass

    with_async_client(server, work)
    assert len(server.served) == 1
    assert server.served[0].wait().hung_up


def test_aioboto3_exceptions_in_the_stream_arrive_as_they_are(server: BedrockServer) -> None:
    async def work(client: Any) -> None:
        answer = await guard_invoke_agent_async(client, **request("THROTTLED"))
        with pytest.raises(EventStreamError):
            await answer.text()
        assert not answer.run.tripped

    with_async_client(server, work)


class Stream:
    """An event stream in memory, for what no server is needed for."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._events = events
        self.closed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._events)

    def close(self) -> None:
        self.closed = True
