from __future__ import annotations

import gc
from typing import Any, List

import pytest

from runguard import InvalidInputError, RecipeCache, ToolExecutionTracker


def test_the_messages_and_their_order() -> None:
    tracker = ToolExecutionTracker()
    args = {"query": "fix bug"}
    assert tracker.should_skip("search_knowledge", args) is None
    tracker.record("search_knowledge", args, ["hit"])
    exact = tracker.should_skip("search_knowledge", {"query": "fix bug", "filter": None})
    assert exact is not None and exact.reason_code == "exact_duplicate"
    assert exact.message == str(exact) == "Tool 'search_knowledge' was already executed with identical parameters"
    similar = tracker.should_skip("search_knowledge", {"query": "fix the bug"})
    assert similar is not None and similar.message == "Tool 'search_knowledge' was already executed with a similar query"
    assert tracker.should_skip("search_knowledge", {"query": "delete the bug"}) is None, "a dangerous word makes it another query"
    tracker.record("search_knowledge", {"query": "something else entirely"})
    limit = tracker.should_skip("search_knowledge", {"query": "a third"})
    assert limit is not None and limit.message == "Tool 'search_knowledge' has reached its execution limit (2) for this turn"
    tracker.new_turn()
    assert tracker.should_skip("search_knowledge", args) is None


def test_what_failed_may_be_tried_again_up_to_the_limit() -> None:
    for failure in ({"error": "timeout"}, {"error": True}, {"result": TimeoutError()}):
        tracker = ToolExecutionTracker(limits={"fetch": 2})
        tracker.record("fetch", {"url": "a"}, **failure)
        assert tracker.should_skip("fetch", {"url": "a"}) is None
        tracker.record("fetch", {"url": "a"}, **failure)
        skip = tracker.should_skip("fetch", {"url": "a"})
        assert skip is not None and skip.reason_code == "tool_limit"


def test_settings() -> None:
    tracker = ToolExecutionTracker(default_limit=1, search_tools=["find"], threshold=0.5)
    tracker.record("anything", {})
    assert tracker.should_skip("anything", {"other": 1}) is not None
    for settings in ({"threshold": 0.0}, {"threshold": float("nan")}, {"limits": {"": 1}}, {"default_limit": 10**6}):
        with pytest.raises(InvalidInputError):
            ToolExecutionTracker(**settings)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        tracker.should_skip("", {})


def test_a_recipe_hands_out_the_result_of_the_same_action_in_the_same_step() -> None:
    cache = RecipeCache()
    result = {"sent": True}
    cache.put("notify", "SLACK_SEND_MESSAGE", {"channel": "ops", "n": 1}, result)
    assert cache.get("notify", "SLACK_SEND_MESSAGE", {"n": 1.0, "channel": "ops"}) is result
    assert cache.get("escalate", "SLACK_SEND_MESSAGE", {"channel": "ops", "n": 1}) is None
    assert cache.get("notify", "GMAIL_SEND", {"channel": "ops", "n": 1}) is None
    cache.put("notify", "SLACK_SEND_MESSAGE", {"channel": "ops", "n": 1}, "again")
    assert cache.get("notify", "SLACK_SEND_MESSAGE", {"channel": "ops", "n": 1}) == "again" and len(cache) == 1
    cache.new_recipe()
    assert cache.get("notify", "SLACK_SEND_MESSAGE", {"channel": "ops", "n": 1}) is None and len(cache) == 0


def test_a_recipe_forgets_the_oldest_and_lets_its_result_go() -> None:
    alive: List[int] = []
    cache = RecipeCache()

    class Result:
        def __init__(self, number: int) -> None:
            self.number = number
            alive.append(number)

        def __del__(self) -> None:
            alive.remove(self.number)
            len(cache)  # what a result does when it goes must not meet a held lock

    for number in range(1005):
        cache.put(number, "ACTION", {}, Result(number))
    gc.collect()
    assert len(cache) == 1000 and sorted(alive) == list(range(5, 1005))
    found: Any = cache.get(1004, "ACTION", {})
    assert found.number == 1004 and cache.get(4, "ACTION", {}) is None


def test_the_design_s_own_names_and_its_plain_ratio() -> None:
    tracker = ToolExecutionTracker()
    assert tracker.should_skip_execution("search_knowledge", {"query": "fix bug"}) is None
    tracker.record_execution("search_knowledge", {"query": "fix bug"}, ["hit"])
    skip = tracker.should_skip_execution("search_knowledge", {"query": "fix the bug"})
    assert skip is not None and skip.reason_code == "similar_query"
    for plain_ratio, orders, prices in ((False, False, True), (True, True, False)):
        for (first, second), is_skipped in (
            (("refund order 1234", "refund order 1235"), orders),
            (("price of the plan", "how much does the plan cost"), prices),
        ):
            tracker = ToolExecutionTracker(plain_ratio=plain_ratio)
            tracker.record("search_knowledge", {"query": first})
            assert (tracker.should_skip("search_knowledge", {"query": second}) is not None) is is_skipped, (plain_ratio, first)
