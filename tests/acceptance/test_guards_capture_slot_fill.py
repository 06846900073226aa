"""A Capture step could not read an entity and wants an AI-written clarification."""

import re

import pytest

from catalogue import CAPTURE
from runguard_http import subset

EMAIL = {"session_id": "s", "capture_step": "ask_email", "entity_type": "email"}
SPOKEN = "john at example dot com"


def test_four_attempts_then_the_ceiling(flow):
    for number in (1, 2, 3, 4):
        answer = flow.allowed(CAPTURE, **EMAIL, user_utterance="what for?")
        assert subset(answer, "guard", "session_id", "capture_step", "entity_type", "allow_ai_response",
                      "attempt_number", "remaining_attempts", "classification") == {
            "guard": "capture_slot_fill", "session_id": "s", "capture_step": "ask_email", "entity_type": "email",
            "allow_ai_response": True, "attempt_number": number, "remaining_attempts": 4 - number,
            "classification": "unrecognized",
        }
    refused = flow.refused(CAPTURE, "attempt_ceiling_reached", **EMAIL, user_utterance="what for?")
    assert subset(refused, "allow_ai_response", "capture_step", "entity_type", "attempts_in_window", "hints_given",
                  "ceiling", "retry_after_seconds") == {
        "allow_ai_response": False, "capture_step": "ask_email", "entity_type": "email", "attempts_in_window": 4,
        "hints_given": 0, "ceiling": 4, "retry_after_seconds": 3600,
    }


def test_an_attempt_leaves_after_an_hour(flow):
    for second in (0, 100, 200, 300):
        flow.at(second).allowed(CAPTURE, **EMAIL, user_utterance="what?")
    flow.at(3599.999).refused(CAPTURE, "attempt_ceiling_reached", **EMAIL, user_utterance="what?")
    assert flow.at(3600).allowed(CAPTURE, **EMAIL, user_utterance="what?")["attempt_number"] == 4
    flow.at(3699.999).refused(CAPTURE, "attempt_ceiling_reached", **EMAIL, user_utterance="what?")


def test_a_hint_is_given_instead_of_a_model_call(flow):
    refused = flow.refused(CAPTURE, "colloquial_format_detected", **EMAIL, user_utterance=SPOKEN)
    assert subset(refused, "allow", "allow_ai_response", "entity_type", "retry_after_seconds") == {
        "allow": False, "allow_ai_response": False, "entity_type": "email", "retry_after_seconds": "<absent>",
    }
    assert refused["format_hint"] in refused["message"] or "hint" in refused["message"], "says where to route instead"


def test_hints_do_not_eat_attempts(flow):
    """docs/corrections.md, 4."""
    for _ in range(6):
        flow.refused(CAPTURE, "colloquial_format_detected", **EMAIL, user_utterance=SPOKEN)
    for number in (1, 2, 3, 4):
        assert flow.allowed(CAPTURE, **EMAIL, user_utterance="what?")["attempt_number"] == number
    refused = flow.refused(CAPTURE, "attempt_ceiling_reached", **EMAIL, user_utterance="what?")
    assert subset(refused, "attempts_in_window", "hints_given") == {"attempts_in_window": 4, "hints_given": 6}


def test_the_hint_is_told_before_the_ceiling(flow):
    for _ in range(4):
        flow.allowed(CAPTURE, **EMAIL, user_utterance="what?")
    flow.refused(CAPTURE, "colloquial_format_detected", **EMAIL, user_utterance=SPOKEN)


def test_hints_end_after_ten(flow):
    """docs/corrections.md, 4."""
    for second in range(10):
        flow.at(second).refused(CAPTURE, "colloquial_format_detected", **EMAIL, user_utterance=SPOKEN)
    for _ in range(3):
        refused = flow.at(10).refused(CAPTURE, "attempt_ceiling_reached", **EMAIL, user_utterance=SPOKEN)
        assert subset(refused, "attempts_in_window", "hints_given") == {"attempts_in_window": 0, "hints_given": 10}
    flow.at(3599.999).refused(CAPTURE, "attempt_ceiling_reached", **EMAIL, user_utterance=SPOKEN)
    flow.at(3600).refused(CAPTURE, "colloquial_format_detected", **EMAIL, user_utterance=SPOKEN)


def test_sessions_and_steps_are_counted_apart(flow):
    for _ in range(4):
        flow.allowed(CAPTURE, **EMAIL, user_utterance="what?")
    flow.refused(CAPTURE, "attempt_ceiling_reached", **EMAIL, user_utterance="what?")
    assert flow.allowed(CAPTURE, **{**EMAIL, "session_id": "t"})["attempt_number"] == 1
    assert flow.allowed(CAPTURE, **{**EMAIL, "capture_step": "ask_work_email"})["attempt_number"] == 1


@pytest.mark.parametrize("sent", [{}, {"user_utterance": None}, {"user_utterance": ""}])
def test_no_reply_has_no_utterance(flow, sent):
    assert flow.allowed(CAPTURE, **EMAIL, **sent)["classification"] == "unrecognized"


# A hint shows the expected form by an example of it.
EXAMPLES = {"email": r"\S+@\S+\.\w+", "phone": r"\d{3}-\d{3}-\d{4}", "date": r"\d\d/\d\d/\d{4}", "order_id": r"ORD-\d{8}"}


@pytest.mark.parametrize("entity, utterance", [
    ("email", "john at example dot com"),
    ("email", "sure, John AT Example DOT com"),
    ("phone", "three two one"),
    ("phone", "five five five eight six seven five three zero nine"),
    ("phone", "it's Three Two One, five five five"),
    ("date", "the fifteenth"),
    ("date", "on the Fifteenth please"),
    ("date", "the 15th"),
    ("date", "next Saturday"),
    ("date", "next sunday"),
    ("date", "next Monday"),
    ("order_id", "my order is twelve thirty"),
    ("order_id", "order number is the long one"),
    ("order_id", "reference abc"),
])
def test_spoken_forms_get_a_hint(shared_server, entity, utterance):
    refused = shared_server.client().refused(
        CAPTURE, "colloquial_format_detected", session_id=f"{entity} {utterance}", capture_step="step",
        entity_type=entity, user_utterance=utterance)
    assert re.search(EXAMPLES[entity], refused["format_hint"]), refused["format_hint"]


@pytest.mark.parametrize("entity, utterance, classification", [
    ("email", "jane@example.com", "machine_format_extraction_failure"),
    ("email", "it is jane@example.com, or john at example dot com", "machine_format_extraction_failure"),
    ("email", "jane", "unrecognized"),
    ("phone", "555-867-5309", "machine_format_extraction_failure"),
    ("phone", "my phone", "unrecognized"),
    ("date", "06/21/2026", "machine_format_extraction_failure"),
    ("date", "June 21", "machine_format_extraction_failure"),
    ("date", "whenever", "unrecognized"),
    ("order_id", "#12345678", "machine_format_extraction_failure"),
    ("order_id", "ORD-12345678", "machine_format_extraction_failure"),
    ("order_id", "my order is 1234567", "machine_format_extraction_failure"),
    ("order_id", "dunno", "unrecognized"),
    ("colour", "john at example dot com", "unrecognized"),
])
def test_other_forms_are_classified(shared_server, entity, utterance, classification):
    answer = shared_server.client().allowed(
        CAPTURE, session_id=f"{entity} {utterance}", capture_step="step", entity_type=entity, user_utterance=utterance)
    assert answer["classification"] == classification
