"""An AI Task whose output failed validation wants to call the model again."""

import pytest

from catalogue import AI_TASK_RETRY
from runguard_http import subset

CLASSIFY = {"session_id": "s", "task_name": "classify", "user_message": "hello", "validation_error": "not a category"}


def test_two_retries_then_the_cap(flow):
    first = flow.at(0).allowed(AI_TASK_RETRY, **CLASSIFY)
    assert subset(first, "guard", "session_id", "task_name", "attempt_number", "remaining_retries") == {
        "guard": "ai_task_retry", "session_id": "s", "task_name": "classify",
        "attempt_number": 1, "remaining_retries": 1,
    }
    second = flow.at(5).allowed(AI_TASK_RETRY, **CLASSIFY)
    assert subset(second, "attempt_number", "remaining_retries") == {"attempt_number": 2, "remaining_retries": 0}
    third = flow.at(9).refused(AI_TASK_RETRY, "retry_cap_reached", **CLASSIFY)
    assert subset(third, "task_name", "retries_in_window", "cap", "retry_after_seconds") == {
        "task_name": "classify", "retries_in_window": 2, "cap": 2, "retry_after_seconds": 3591,
    }


def test_a_retry_counts_until_one_window_later_and_not_at_it(flow):
    flow.at(0).allowed(AI_TASK_RETRY, **CLASSIFY)
    flow.at(600).allowed(AI_TASK_RETRY, **CLASSIFY)
    flow.at(3599.999).refused(AI_TASK_RETRY, "retry_cap_reached", **CLASSIFY)
    assert flow.at(3600).allowed(AI_TASK_RETRY, **CLASSIFY)["attempt_number"] == 2
    flow.at(3600).refused(AI_TASK_RETRY, "retry_cap_reached", **CLASSIFY)
    flow.at(4199.999).refused(AI_TASK_RETRY, "retry_cap_reached", **CLASSIFY)
    flow.at(4200).allowed(AI_TASK_RETRY, **CLASSIFY)


def test_a_refused_retry_takes_no_slot(flow):
    flow.at(0).allowed(AI_TASK_RETRY, **CLASSIFY)
    flow.at(0).allowed(AI_TASK_RETRY, **CLASSIFY)
    for second in range(100, 3600, 500):
        assert flow.at(second).refused(AI_TASK_RETRY, "retry_cap_reached", **CLASSIFY)["retries_in_window"] == 2
    assert flow.at(3600).allowed(AI_TASK_RETRY, **CLASSIFY)["attempt_number"] == 1


def test_sessions_and_tasks_are_counted_apart(flow):
    for _ in range(2):
        flow.allowed(AI_TASK_RETRY, **CLASSIFY)
    flow.refused(AI_TASK_RETRY, "retry_cap_reached", **CLASSIFY)
    assert flow.allowed(AI_TASK_RETRY, **{**CLASSIFY, "session_id": "t"})["attempt_number"] == 1
    assert flow.allowed(AI_TASK_RETRY, **{**CLASSIFY, "task_name": "summarise"})["attempt_number"] == 1


def test_ids_are_compared_exactly(flow):
    """Neither case, nor blanks, nor a separator inside a name may merge two counters."""
    pairs = [("a", "b:c"), ("a:b", "c"), ("A", "b:c"), ("a ", "b:c"), ("a\x00b", "c"), ("a", "b\x00c"), ("a/b", "c")]
    for session, task in pairs:
        answer = flow.allowed(AI_TASK_RETRY, session_id=session, task_name=task)
        assert answer["attempt_number"] == 1, (session, task)
        assert answer["session_id"] == session


def test_a_message_without_the_signal_is_refused_and_takes_no_slot(flow):
    order = {"session_id": "s", "task_name": "extract_order_number", "validation_error": "no order number"}
    for _ in range(5):
        refused = flow.refused(AI_TASK_RETRY, "input_missing_prerequisite_signal", **order,
                               user_message="I haven't received my package yet")
        assert subset(refused, "task_name", "validation_error", "retry_after_seconds") == {
            "task_name": "extract_order_number", "validation_error": "no order number",
            "retry_after_seconds": "<absent>",
        }
    assert flow.allowed(AI_TASK_RETRY, **order, user_message="it is ORD-12345678")["attempt_number"] == 1


def test_the_missing_signal_is_told_before_the_cap(flow):
    order = {"session_id": "s", "task_name": "extract_order_number"}
    for _ in range(2):
        flow.allowed(AI_TASK_RETRY, **order, user_message="#12345678")
    flow.refused(AI_TASK_RETRY, "input_missing_prerequisite_signal", **order, user_message="my parcel")
    flow.refused(AI_TASK_RETRY, "retry_cap_reached", **order, user_message="#12345678")


@pytest.mark.parametrize("message", [None, "", "<absent>"])
def test_no_message_is_an_empty_message(flow, message):
    sent = {} if message == "<absent>" else {"user_message": message, "validation_error": message}
    flow.allowed(AI_TASK_RETRY, session_id="s", task_name="classify", **sent)
    flow.refused(AI_TASK_RETRY, "input_missing_prerequisite_signal", session_id="s", task_name="extract_date", **sent)


@pytest.mark.parametrize("task, message, found", [
    ("extract_order_number", "my order ORD-12345678 is delayed", True),
    ("extract_order_number", "ord 12345", True),
    ("extract_order_number", "Order 99887766", True),
    ("extract_order_number", "#12345678", True),
    ("extract_order_number", "where is #12345678?", True),
    ("extract_order_number", "(#12345)", True),
    ("extract_order_number", "# 12345678", True),
    ("extract_order_number", "order 1234", False),
    ("extract_order_number", "#1234", False),
    ("extract_order_number", "my order is late", False),
    ("extract_date", "on 12/24/2026", True),
    ("extract_date", "24-12-26", True),
    ("extract_date", "Dec 24", True),
    ("extract_date", "december 24th", True),
    ("extract_date", "as soon as you can", False),
    ("extract_date", "1/2", False),
    ("extract_amount", "$40", True),
    ("extract_amount", "about $ 40 or so", True),
    ("extract_amount", "40 dollars", True),
    ("extract_amount", "12USD", True),
    ("extract_amount", "99 cents", True),
    ("extract_amount", "a lot of money", False),
    ("extract_amount", "40", False),
])
def test_built_in_signals(shared_server, task, message, found):
    flow = shared_server.client()
    body = {"session_id": f"{task} {message}", "task_name": task, "user_message": message}
    if found:
        flow.allowed(AI_TASK_RETRY, **body)
    else:
        flow.refused(AI_TASK_RETRY, "input_missing_prerequisite_signal", **body)
