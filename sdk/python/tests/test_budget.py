from __future__ import annotations

import math
from decimal import Decimal

import pytest

from runguard import BudgetExceededError, BudgetTracker, InvalidInputError, Run, UnknownModelError, _core, cost_usd, read_usage


def test_a_million_steps_of_a_tenth_of_a_cent_are_a_thousand_dollars() -> None:
    tracker = BudgetTracker(max_usd=1000)
    for _ in range(1_000_000):
        tracker.record(0.001)
    assert tracker.spent == 1000.0 and tracker.remaining == 0.0
    with pytest.raises(BudgetExceededError):
        tracker.record(Decimal("0.000000001"))


def test_what_was_spent_stays_spent() -> None:
    tracker = BudgetTracker(max_usd=1)
    with pytest.raises(BudgetExceededError) as caught:
        tracker.record(1.5)
    assert (caught.value.spent, caught.value.limit, caught.value.unit, caught.value.reason) == (1.5, 1.0, "usd", "budget_exceeded")
    with pytest.raises(BudgetExceededError):
        tracker.record(0)
    assert tracker.spent == 1.5


def test_check_says_what_is_left() -> None:
    assert BudgetTracker(max_usd=2).check() == 2.0
    assert BudgetTracker(max_tokens=50).check() == 50
    assert BudgetTracker().check() == math.inf
    assert BudgetTracker(max_usd=2, cap=3).check("s", "x") == 3


def test_a_reservation_holds_until_it_is_settled() -> None:
    tracker = BudgetTracker(max_usd=1)
    held = tracker.reserve(0.8)
    assert (tracker.reserved, tracker.spent) == (0.8, 0.0)
    with pytest.raises(BudgetExceededError):
        tracker.reserve(0.3)
    held.commit(0.5)
    assert (tracker.reserved, tracker.spent, held.open) == (0.0, 0.5, False)
    with pytest.raises(InvalidInputError):
        held.commit(0.1)
    with tracker.reserve(0.5) as other:
        assert other.open and tracker.remaining == 0.0
    assert tracker.reserved == 0.0, "released at the end of the block"
    with tracker.reserve(0.5) as other:
        other.commit()
    assert tracker.spent == 1.0, "without an amount the estimate"


def test_a_wrong_amount_leaves_the_reservation_open() -> None:
    tracker = BudgetTracker(max_usd=1)
    held = tracker.reserve(0.5)
    for wrong in (-1, float("nan"), "0.1"):
        with pytest.raises(InvalidInputError):
            held.commit(wrong)  # type: ignore[arg-type]
    assert held.open and tracker.reserved == 0.5
    del held
    assert tracker.reserved == 0.0, "a reservation that is gone is released"


def test_children_draw_on_the_parent() -> None:
    team = BudgetTracker(max_usd=10)
    run = team.child(max_usd=4)
    other = team.child()
    run.record(3)
    assert (team.spent, run.remaining, other.remaining) == (3.0, 1.0, 7.0)
    other.record(7)
    assert run.remaining == 0.0
    with pytest.raises(BudgetExceededError) as caught:
        run.record(0.5)
    assert caught.value.limit == 10.0 and "parent" in str(caught.value)


def test_tokens_have_a_limit_of_their_own() -> None:
    tracker = BudgetTracker(max_tokens=100)
    tracker.record_tokens(100)
    with pytest.raises(BudgetExceededError) as caught:
        tracker.record_tokens(1)
    assert (caught.value.spent, caught.value.limit, caught.value.unit) == (101, 100, "tokens")
    assert (tracker.spent_tokens, tracker.remaining_tokens) == (101, 0)


@pytest.mark.parametrize("usd", [float("nan"), float("inf"), -0.01, -1, 1e30, "1", "", True, b"1", [], {}, object(), Decimal("NaN"), 10**400])
def test_what_is_no_money_is_refused_and_changes_nothing(usd: object) -> None:
    tracker = BudgetTracker(max_usd=5)
    for call in (tracker.record, tracker.reserve, lambda usd: BudgetTracker(max_usd=usd)):
        with pytest.raises(InvalidInputError):
            call(usd)  # type: ignore[operator]
    assert (tracker.spent, tracker.reserved) == (0.0, 0.0)


@pytest.mark.parametrize("tokens", [-1, 1.5, float("nan"), "7", True, 2**70])
def test_what_is_no_count_is_refused_and_changes_nothing(tokens: object) -> None:
    tracker = BudgetTracker(max_tokens=5)
    with pytest.raises(InvalidInputError):
        tracker.record_tokens(tokens)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        tracker.record_usage("gpt-4o", tokens)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        BudgetTracker(max_tokens=tokens)  # type: ignore[arg-type]
    assert tracker.spent_tokens == 0


@pytest.mark.parametrize("ids", [("", "x"), ("s", ""), ("s",), ("s", 7), (7, "x")])
def test_a_step_needs_two_names(ids: tuple) -> None:  # type: ignore[type-arg]
    tracker = BudgetTracker(cap=1)
    with pytest.raises(InvalidInputError):
        tracker.record(*ids)
    assert tracker.check("s", "x") == 1


def test_usage_is_priced_from_the_table() -> None:
    tracker = BudgetTracker(max_usd=5)
    tracker.record_usage("us.anthropic.claude-3-7-sonnet-20250219-v1:0", input_tokens=1_000_000)
    assert tracker.spent == 3.0
    tracker.record_usage("gpt-4o", input_tokens=1000, output_tokens=100)
    assert tracker.spent == pytest.approx(3.0 + cost_usd("gpt-4o", 1000, 100), abs=1e-12)
    assert tracker.spent_tokens == 1_001_100


def test_an_unknown_model_is_an_error_until_said_otherwise() -> None:
    tracker = BudgetTracker(max_usd=5)
    for model in ("no-such-model", "gpt-4o-mni"):
        with pytest.raises(UnknownModelError) as caught:
            tracker.record_usage(model, 1000, 100)
        assert caught.value.model == model and isinstance(caught.value, KeyError)
    assert "gpt-4o-mini" in str(caught.value)
    for model in ("", "  ", None, 7):
        with pytest.raises(InvalidInputError):
            tracker.record_usage(model, 1)  # type: ignore[arg-type]
    assert (tracker.spent, tracker.spent_tokens) == (0.0, 2200), "they were used, whatever they cost"
    tokens = BudgetTracker(max_tokens=10)
    tokens.record_usage("no-such-model", 10)
    assert tokens.check() == 0
    tracker.record_usage("no-such-model", 0, 0)

    assert cost_usd("mine", 1_000_000, 0, prices={"mine": {"input": 2, "output": "8"}}) == 2.0
    assert cost_usd("mine", 1_000_000, 0, unknown_model="free") == 0.0
    assert cost_usd("mine", 0, 1_000_000, unknown_model={"input": 1, "output": 4}) == 4.0
    own = BudgetTracker(max_usd=1, prices={"mine": {"input": 2, "output": 8}})
    own.child().record_usage("mine", input_tokens=500_000)
    assert own.spent == 1.0, "a child has its parent's prices"
    for wrong in ("maybe", {"input": -1, "output": 1}, {"in": 1}):
        with pytest.raises(InvalidInputError):
            BudgetTracker(unknown_model=wrong)
    with pytest.raises(InvalidInputError):
        BudgetTracker(prices={"mine": 3})


def test_each_provider_counts_cached_tokens_in_its_own_way() -> None:
    openai = read_usage("openai", {"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 800}})
    anthropic = read_usage("anthropic", {"input_tokens": 200, "output_tokens": 50, "cache_read_input_tokens": 800})
    assert openai == anthropic
    assert openai == {
        "input_tokens": 200,
        "output_tokens": 50,
        "cached_tokens": 800,
        "cache_write_tokens": 0,
        "cache_write_1h_tokens": 0,
        "audio_input_tokens": 0,
        "audio_output_tokens": 0,
        "service_tier": "standard",
    }
    tracker = BudgetTracker()
    tracker.record_usage("gpt-4o", **openai)
    assert tracker.spent_tokens == 1050
    with pytest.raises(InvalidInputError):
        read_usage("somebody", {})


def test_exhausted_says_so_only_when_nothing_can_come_back() -> None:
    tracker = BudgetTracker(max_usd=1)
    assert tracker.exhausted() is None
    with tracker.reserve(1):
        assert tracker.exhausted() is None, "what is only reserved may come back"
    tracker.record(1)
    used_up = tracker.exhausted()
    assert isinstance(used_up, BudgetExceededError) and "used up" in str(used_up)


def test_a_call_without_a_length_may_be_as_long_as_the_models_answers() -> None:
    prices = {"short": {"input": 0, "output": 1000, "max_output": 100}, "unsaid": {"input": 0, "output": 1000}}
    run = Run(max_usd=1, prices=prices)
    with run.model_call("short", "?") as call:
        assert call.max_tokens is None, "100 tokens are a dime"
    with run.model_call("unsaid", "?") as call:
        assert call.max_tokens == 1_000, "8,192 tokens are more than the dollar"
    with Run(max_usd=0.1).model_call("gpt-4o", "?") as call:
        assert call.max_tokens is not None and call.max_tokens < 10_000, "its 16,384 tokens are 16 cents"


def test_what_a_service_adds_to_an_answer_is_not_billed() -> None:
    class Delta:
        def __init__(self) -> None:
            self.content, self.index, self.refusal = "Hello", 0, None

    assert _core.answer_size([{"index": 0, "delta": {"content": "Hello", "refusal": None}}]) == _core.answer_size(Delta()) == 5
    assert _core.answer_size([b"a picture", "data:image/png;base64," + "iVBORw0KGgo" * 1_000]) == 2 * 3_000, "as they are usually billed"
    run = Run(max_tokens=1_000_000)
    for answer in ("word " * 300, [{"type": "text", "text": "word "}] * 300):
        run.model_call("gpt-4o", "").estimated(answer)
    assert run.budget is not None and run.budget.spent_tokens == 500 + (1_500 + 300 * len("text")) // 3


def test_sound_service_tiers_hours_and_embeddings_have_their_prices() -> None:
    heard = {"prompt_tokens": 3_345, "completion_tokens": 678, "prompt_tokens_details": {"audio_tokens": 1_000}}
    heard["completion_tokens_details"] = {"audio_tokens": 500}
    # The figures are litellm's, as in the tests of the core.
    assert cost_usd("gpt-audio", **read_usage("openai", heard)) == pytest.approx(0.0716425)
    served = read_usage("openai", {"prompt_tokens": 12_345, "completion_tokens": 678}, "priority")
    assert served["service_tier"] == "priority"
    assert cost_usd("gpt-5.4", **served) == 2 * cost_usd("gpt-5.4", 12_345, 678)
    assert cost_usd("gpt-5.4", 12_345, 678, service_tier="default") == cost_usd("gpt-5.4", 12_345, 678, service_tier=None)
    assert cost_usd("text-embedding-3-small", 12_345, 0) == 0.0002469
    tracker = BudgetTracker()
    tracker.record_usage("claude-sonnet-4-5", cache_write_tokens=1_000, cache_write_1h_tokens=1_000)
    assert tracker.spent == 0.00975
    spoken = BudgetTracker(max_usd=1)
    run = Run(budget=spoken)
    run.record_usage("gpt-audio", audio_input_tokens=1_000, audio_output_tokens=1_000)
    with run.model_call("gpt-audio", "?") as call:
        call.used("gpt-audio", audio_output_tokens=1_000, service_tier="default")
    assert spoken.spent == 0.16
    assert cost_usd("ollama/llama3.1:8b", 1_000, 1_000) == 0, "it runs on one's own machine"
