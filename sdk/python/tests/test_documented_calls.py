"""Every call shape that the product's pages print for the SDK, in their own wording."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Dict, List

import pytest

from runguard import BudgetExceededError, BudgetTracker, CircuitBreaker, CircuitOpenError, LoopDetectedError, LoopDetector, guard_async

# The Bedrock page.


def test_loop_detector_per_run_names_the_pattern_and_how_often_it_came() -> None:
    loop_detector = LoopDetector(repeats=3, max_cycle_len=4)
    printed: List[str] = []
    try:
        for _ in range(10):
            loop_detector.record("orders::/orders/{id}")
    except LoopDetectedError as e:
        printed.append(f"Loop detected: action '{e.pattern}' repeated {e.repeats} times. Aborting.")
    assert printed == ["Loop detected: action 'orders::/orders/{id}' repeated 3 times. Aborting."]


def test_budget_tracker_per_run_prints_what_was_spent_and_the_cap() -> None:
    budget_tracker = BudgetTracker(max_usd=5.00)
    sonnet_input_per_token = 3.00 / 1_000_000
    sonnet_output_per_token = 15.00 / 1_000_000
    printed = ""
    steps = 0
    try:
        for _ in range(1000):
            steps += 1
            step_usd = 50_000 * sonnet_input_per_token + 1_000 * sonnet_output_per_token
            budget_tracker.record(step_usd)
    except BudgetExceededError as e:
        printed = f"Budget cap reached: ${e.spent:.4f} spent (cap: ${e.limit:.2f}). Aborting."
    assert printed == "Budget cap reached: $5.1150 spent (cap: $5.00). Aborting."
    assert steps == 31, "0.165 dollars a step: the 31st passes 5 dollars"


def test_the_orchestration_retry_storm_is_a_cycle_of_two() -> None:
    loop_detector = LoopDetector(repeats=3, max_cycle_len=4)
    storm = ["kb_lookup::KB1", "orders::/orders"] * 3
    for sig in storm[:-1]:
        loop_detector.record(sig)
    with pytest.raises(LoopDetectedError) as caught:
        loop_detector.record(storm[-1])
    assert (caught.value.pattern, caught.value.cycle_len, caught.value.repeats) == ("kb_lookup::KB1 → orders::/orders", 2, 3)


def test_the_tighter_setting_fires_on_the_second_repeat_and_on_three_step_cycles() -> None:
    detector = LoopDetector(repeats=2, max_cycle_len=3)
    detector.record("execute::/run")
    with pytest.raises(LoopDetectedError):
        detector.record("execute::/run")
    detector = LoopDetector(repeats=2, max_cycle_len=3)
    for sig in ("lookup", "validate", "execute", "lookup", "validate"):
        detector.record(sig)
    with pytest.raises(LoopDetectedError) as caught:
        detector.record("execute")
    assert caught.value.pattern == "lookup → validate → execute"


def test_a_research_agent_with_different_questions_does_not_trip() -> None:
    detector = LoopDetector(repeats=3, max_cycle_len=6)
    for sig in ("kb::Q3 revenue", "kb::Q3 costs", "kb::Q3 profit margin", "kb::Q2 revenue", "kb::Q2 costs"):
        detector.record(sig)


@pytest.mark.parametrize("max_usd", [5.00, 20.00, 2.00])
def test_dollar_caps_by_use_case(max_usd: float) -> None:
    tracker = BudgetTracker(max_usd=max_usd)
    tracker.record(max_usd)
    with pytest.raises(BudgetExceededError) as caught:
        tracker.record(0.01)
    assert caught.value.limit == max_usd


def test_a_new_loop_detector_per_turn_and_one_budget_per_session() -> None:
    budget_tracker = BudgetTracker(max_usd=2.00)
    for _ in range(4):
        loop_detector = LoopDetector(repeats=3, max_cycle_len=4)
        loop_detector.record("kb_lookup::KB1")
        loop_detector.record("kb_lookup::KB1")
        budget_tracker.record(0.50)
    with pytest.raises(BudgetExceededError):
        budget_tracker.record(0.50)


def test_the_async_version_guards_a_stream() -> None:
    async def events() -> AsyncIterator[Dict[str, Any]]:
        for number in range(40):
            yield {"trace": f"kb_lookup::KB{number % 2}"}

    seen: List[str] = []

    @guard_async(max_usd=5.00)
    async def invoke_bedrock_agent_async(agent_id: str, session_id: str, max_usd: float = 5.00) -> str:
        loop_detector = LoopDetector(repeats=3, max_cycle_len=4)
        budget_tracker = BudgetTracker(max_usd=max_usd)
        async for event in events():
            seen.append(event["trace"])
            loop_detector.record(event["trace"])
            budget_tracker.record(0.01)
        return "".join(seen)

    with pytest.raises(LoopDetectedError):
        asyncio.run(invoke_bedrock_agent_async(agent_id="ABCDEF1234", session_id="session-001"))
    assert len(seen) == 6


# The Botpress page.


def test_actions_of_a_conversation_by_session_id_and_tool() -> None:
    detector = LoopDetector(max_cycle_len=8)
    conversation_id = "conv-1"
    actions = ["plan", "search", "read", "compare", "ask", "wait", "check", "retry"]
    for action_name in (actions * 3)[:-1]:
        detector.record(session_id=conversation_id, tool=action_name)
        detector.record(session_id="conv-2", tool=action_name + conversation_id)
    with pytest.raises(LoopDetectedError) as caught:
        detector.record(session_id=conversation_id, tool=actions[-1])
    assert (caught.value.cycle_len, caught.value.repeats) == (8, 3)


def test_cap_per_session_and_task() -> None:
    tracker = BudgetTracker(cap=2)
    assert tracker.check("conv-1", "extract_order_number") == 2
    tracker.record("conv-1", "extract_order_number")
    assert tracker.check("conv-1", "extract_order_number") == 1
    tracker.record("conv-1", "extract_order_number")
    assert tracker.check("conv-1", "extract_order_number") == 0
    assert tracker.check("conv-1", "extract_date") == 2
    with pytest.raises(BudgetExceededError) as caught:
        tracker.record("conv-1", "extract_order_number")
    assert (caught.value.spent, caught.value.limit, caught.value.unit) == (2, 2, "calls")


def test_a_tracker_of_one_task_needs_no_ids() -> None:
    tracker = BudgetTracker(cap=2)
    remaining = [tracker.check()]
    tracker.record()
    remaining.append(tracker.check())
    tracker.record()
    remaining.append(tracker.check())
    assert remaining == [2, 1, 0]
    with pytest.raises(BudgetExceededError):
        tracker.record()


# The Voiceflow page.


def test_reprompts_per_session_and_step() -> None:
    tracker = BudgetTracker(cap=3)
    session_id, step_id = "user-1", "capture_email"
    remaining = []
    while tracker.check(session_id, step_id) > 0:
        tracker.record(session_id, step_id)
        remaining.append(tracker.check(session_id, step_id))
    assert remaining == [2, 1, 0]


def test_kb_requeries_of_a_topic_within_an_hour() -> None:
    detector = LoopDetector(window_seconds=3600, max_calls=2)
    session_id, topic_hash = "user-1", "9f2c51d0aa11bb22"
    assert detector.check(session_id, topic_hash) is None
    detector.record(session_id, topic_hash)
    assert detector.check(session_id, topic_hash) is None
    detector.record(session_id, topic_hash)
    refused = detector.check(session_id, topic_hash)
    assert isinstance(refused, LoopDetectedError) and refused.pattern == topic_hash
    assert detector.check(session_id, "another topic") is None
    assert detector.check("user-2", topic_hash) is None


def test_the_built_in_circuit_breaker_opens_over_all_sessions() -> None:
    breaker = CircuitBreaker("order-management-api")
    for _ in range(10):
        assert breaker.state == "closed"
        breaker.check()
        breaker.record(False)
    assert breaker.state == "open"
    with pytest.raises(CircuitOpenError) as caught:
        breaker.check()
    assert caught.value.endpoint == "order-management-api"
    assert caught.value.retry_after_seconds is not None and 44 < caught.value.retry_after_seconds <= 45
