"""A No Match path wants one more AI-written clarification."""

import pytest

from catalogue import NO_MATCH
from runguard_http import subset

COLOUR = {"session_id": "s", "step_id": "ask_colour", "user_utterance": "what?"}


def test_three_reprompts_then_the_ceiling(flow):
    for number in (1, 2, 3):
        answer = flow.allowed(NO_MATCH, **COLOUR)
        assert subset(answer, "guard", "session_id", "step_id", "attempt_number", "remaining_reprompts") == {
            "guard": "no_match_reprompt", "session_id": "s", "step_id": "ask_colour",
            "attempt_number": number, "remaining_reprompts": 3 - number,
        }
    refused = flow.refused(NO_MATCH, "reprompt_ceiling_reached", **COLOUR)
    assert subset(refused, "step_id", "attempts_in_window", "ceiling", "retry_after_seconds") == {
        "step_id": "ask_colour", "attempts_in_window": 3, "ceiling": 3, "retry_after_seconds": 3600,
    }


def test_a_reprompt_leaves_after_an_hour(flow):
    for second in (0, 100, 200):
        flow.at(second).allowed(NO_MATCH, **COLOUR)
    flow.at(3599.999).refused(NO_MATCH, "reprompt_ceiling_reached", **COLOUR)
    assert flow.at(3600).allowed(NO_MATCH, **COLOUR)["attempt_number"] == 3
    flow.at(3699.999).refused(NO_MATCH, "reprompt_ceiling_reached", **COLOUR)
    flow.at(3700).allowed(NO_MATCH, **COLOUR)


def test_refused_reprompts_take_no_slot(flow):
    email = {"session_id": "s", "step_id": "capture_email"}
    for _ in range(5):
        refused = flow.refused(NO_MATCH, "entity_signal_absent", **email, user_utterance="why do you ask")
        assert refused["step_id"] == "capture_email" and "retry_after_seconds" not in refused
    for number in (1, 2, 3):
        assert flow.allowed(NO_MATCH, **email, user_utterance="me@example")["attempt_number"] == number
    for _ in range(5):
        assert flow.refused(NO_MATCH, "reprompt_ceiling_reached", **email, user_utterance="me@")["attempts_in_window"] == 3


def test_the_absent_signal_is_told_before_the_ceiling(flow):
    email = {"session_id": "s", "step_id": "capture_email"}
    for _ in range(3):
        flow.allowed(NO_MATCH, **email, user_utterance="me@example")
    flow.refused(NO_MATCH, "entity_signal_absent", **email, user_utterance="no")


def test_sessions_and_steps_are_counted_apart(flow):
    for _ in range(3):
        flow.allowed(NO_MATCH, **COLOUR)
    flow.refused(NO_MATCH, "reprompt_ceiling_reached", **COLOUR)
    assert flow.allowed(NO_MATCH, **{**COLOUR, "session_id": "t"})["attempt_number"] == 1
    assert flow.allowed(NO_MATCH, **{**COLOUR, "step_id": "ask_size"})["attempt_number"] == 1


@pytest.mark.parametrize("sent", [{}, {"user_utterance": None}, {"user_utterance": ""}])
def test_no_reply_has_no_utterance(flow, sent):
    flow.allowed(NO_MATCH, session_id="s", step_id="ask_colour", **sent)
    flow.refused(NO_MATCH, "entity_signal_absent", session_id="s", step_id="capture_phone", **sent)


@pytest.mark.parametrize("step, utterance, found", [
    ("capture_email", "jane@example.com", True),
    ("capture_email", "jane at example dot com", True),
    ("capture_email", "jane at example.com", True),
    ("capture_email", "my name is Jane", False),
    ("capture_order_id", "order 12345", True),
    ("capture_order_id", "ORD-12345678", True),
    ("capture_order_id", "#12345678", True),
    ("capture_order_id", "it says #12345 on the slip", True),
    ("capture_order_id", "123456", True),
    ("capture_order_id", "12345", False),
    ("capture_order_id", "my order is late", False),
    ("capture_phone", "555-867-5309", True),
    ("capture_phone", "(555) 867 5309", True),
    ("capture_phone", "call me", False),
    ("capture_date", "06/21/2026", True),
    ("capture_date", "June 21", True),
    ("capture_date", "some day", False),
    ("capture_zip", "94103", True),
    ("capture_zip", "94103-1234", True),
    ("capture_zip", "San Francisco", False),
    ("capture_zip", "123456", False),
])
def test_built_in_signals(shared_server, step, utterance, found):
    flow = shared_server.client()
    body = {"session_id": f"{step} {utterance}", "step_id": step, "user_utterance": utterance}
    if found:
        flow.allowed(NO_MATCH, **body)
    else:
        flow.refused(NO_MATCH, "entity_signal_absent", **body)
