"""An autonomous agent is about to run an action."""

import json

import pytest

from catalogue import AGENT_ACTION, AGENT_RESULT
from runguard_http import subset


def act(flow, name, session="s", **more):
    return flow.allowed(AGENT_ACTION, session_id=session, action_name=name, **more)


def refuse(flow, reason, name, session="s", **more):
    return flow.refused(AGENT_ACTION, reason, session_id=session, action_name=name, **more)


def result(flow, name, session="s", **more):
    response = flow.post(AGENT_RESULT, {"session_id": session, "action_name": name, **more})
    assert (response.status, response.body) == (204, b""), response


def signals(answer):
    return json.dumps(answer.get("signals", []))


# -- the three rules that are enforced -------------------------------------------------------------


def test_twenty_actions_then_the_ceiling(flow):
    names = list("abcde" "edcba" "acebd" "dbeca")  # four of each, in no pattern
    for used, name in enumerate(names, start=1):
        answer = act(flow, name)
        assert subset(answer, "guard", "session_id", "action_name", "total_actions_used", "actions_remaining") == {
            "guard": "agent_action", "session_id": "s", "action_name": name,
            "total_actions_used": used, "actions_remaining": 20 - used,
        }
    refused = refuse(flow, "total_action_ceiling", "fresh")
    assert subset(refused, "action_name", "total_actions", "ceiling", "action_distribution") == {
        "action_name": "fresh", "total_actions": 20, "ceiling": 20,
        "action_distribution": {name: names.count(name) for name in names},
    }


def test_three_in_a_row_are_fine_the_fourth_is_a_spiral(flow):
    """Text and code of the design disagree, and the code counts (docs/corrections.md, 8)."""
    for _ in range(3):
        act(flow, "get_profile")
    refused = refuse(flow, "consecutive_same_action_spiral", "get_profile")
    assert subset(refused, "action_name", "consecutive_count", "ceiling") == {
        "action_name": "get_profile", "consecutive_count": 3, "ceiling": 3,
    }
    act(flow, "get_orders")
    act(flow, "get_profile")  # another action between breaks the row


def test_six_of_one_kind_are_fine_the_seventh_is_a_spiral(flow):
    for n in range(6):
        act(flow, "get_profile")
        act(flow, f"other_{n}")
    refused = refuse(flow, "same_action_frequency_spiral", "get_profile")
    assert subset(refused, "action_name", "same_action_total", "ceiling") == {
        "action_name": "get_profile", "same_action_total": 6, "ceiling": 6,
    }
    act(flow, "get_orders")


def test_total_is_told_before_consecutive_and_consecutive_before_same(flow):
    act(flow, "a"), act(flow, "b"), act(flow, "a"), act(flow, "c"), act(flow, "a"), act(flow, "d")
    for _ in range(3):
        act(flow, "a")
    refuse(flow, "consecutive_same_action_spiral", "a")  # six in all, three of them in a row
    for n in range(11):
        act(flow, f"filler_{n}")
    refuse(flow, "total_action_ceiling", "a")


def test_a_refused_action_takes_no_slot(flow):
    for _ in range(3):
        act(flow, "a")
    for _ in range(10):
        refuse(flow, "consecutive_same_action_spiral", "a")
    assert act(flow, "b")["total_actions_used"] == 4


def test_a_refused_action_does_not_break_the_row(flow):
    for n in range(6):
        act(flow, "b")
        act(flow, f"other_{n}")
    for _ in range(3):
        act(flow, "a")
    refuse(flow, "same_action_frequency_spiral", "b")
    refuse(flow, "consecutive_same_action_spiral", "a")


def test_actions_leave_after_half_an_hour(flow):
    act(flow.at(0), "a")
    act(flow.at(100), "a")
    act(flow.at(200), "a")
    refuse(flow.at(1799.999), "consecutive_same_action_spiral", "a")
    assert act(flow.at(1800), "a")["total_actions_used"] == 3
    refuse(flow.at(1899.999), "consecutive_same_action_spiral", "a")
    act(flow.at(1900), "a")


def test_the_ceiling_opens_one_action_at_a_time(flow):
    for n in range(20):
        act(flow.at(n), f"action_{n}")
    refuse(flow.at(1799.999), "total_action_ceiling", "x")
    act(flow.at(1800), "x")
    refuse(flow.at(1800.999), "total_action_ceiling", "y")
    act(flow.at(1801), "y")


def test_sessions_are_counted_apart(flow):
    for _ in range(3):
        act(flow, "a")
    refuse(flow, "consecutive_same_action_spiral", "a")
    assert act(flow, "a", session="t")["total_actions_used"] == 1


# -- the two rules that watch until they are enforced ----------------------------------------------


def test_identical_calls_are_a_signal_and_not_a_block(flow):
    for n in range(3):
        answer = act(flow, "lookup", action_params_hash="abc")
        assert "identical_call_spiral" not in signals(answer)
        act(flow, f"other_{n}")
    fourth = act(flow, "lookup", action_params_hash="abc")
    assert "identical_call_spiral" in signals(fourth)
    assert subset(fourth, "would_block", "reason") == {"would_block": True, "reason": "identical_call_spiral"}


def test_other_parameters_are_another_call(flow):
    for n in range(5):
        answer = act(flow, "lookup", action_params_hash=f"page-{n}")
        assert "identical_call_spiral" not in signals(answer)
        act(flow, f"other_{n}")


@pytest.mark.parametrize("params_hash", ["", None, "<absent>"])
def test_calls_without_parameters_are_not_identical(flow, params_hash):
    sent = {} if params_hash == "<absent>" else {"action_params_hash": params_hash}
    for n in range(5):
        assert "identical_call_spiral" not in signals(act(flow, "lookup", **sent))
        act(flow, f"other_{n}")


def test_parameters_are_hashed_canonically(flow):
    same = [{"a": 1, "b": [1, {"x": "é", "y": 2}]}, {"b": [1, {"y": 2, "x": "é"}], "a": 1},
            {"b": [1.0, {"y": 2, "x": "e\u0301"}], "a": 1}]
    for n, params in enumerate(same):
        act(flow, "lookup", action_params=params)
        act(flow, f"other_{n}")
    assert "identical_call_spiral" in signals(act(flow, "lookup", action_params=same[0]))


@pytest.mark.parametrize("params", [{"a": [1, 2]}, {"a": 1}, {"a": "1"}, [1], "1", 1, False])
def test_any_json_is_a_parameter(flow, params):
    for n in range(3):
        act(flow, "lookup", action_params=params)
        act(flow, f"other_{n}")
    assert "identical_call_spiral" not in signals(act(flow, "lookup", action_params=["other", params]))
    act(flow, "between")
    assert "identical_call_spiral" in signals(act(flow, "lookup", action_params=params))


def test_a_cycle_is_a_signal_and_not_a_block(flow):
    for n, name in enumerate(["a", "b", "c"] * 2 + ["a", "b"], start=1):
        assert "action_cycle" not in signals(act(flow, name)), f"call {n}"
    ninth = act(flow, "c")
    assert "action_cycle" in signals(ninth)
    assert subset(ninth, "would_block", "reason") == {"would_block": True, "reason": "action_cycle"}


def test_enforced_identical_calls_are_refused(serve):
    flow = serve(config='[guards.agent_action.rules]\nidentical_call_spiral = "enforce"\n').client()
    for n in range(3):
        act(flow.at(n), "lookup", action_params_hash="abc")
        act(flow.at(n), f"other_{n}")
    refused = refuse(flow.at(100), "identical_call_spiral", "lookup", action_params_hash="abc")
    assert refused["retry_after_seconds"] == 1700
    act(flow.at(100), "lookup", action_params_hash="def")


def test_enforced_cycles_are_refused_and_drawn(serve):
    flow = serve(config='[guards.agent_action.rules]\naction_cycle = "enforce"\n').client()
    for name in ["a", "b", "c"] * 2 + ["a", "b"]:
        act(flow, name)
    refused = refuse(flow, "action_cycle", "c")
    assert sorted(refused["cycle"]) == ["a", "b", "c"]
    assert refused["cycle_repeats"] == 3
    act(flow, "something else")


@pytest.mark.parametrize("period", [2, 8])
def test_cycles_of_two_to_eight_actions(serve, period):
    config = '[guards.agent_action]\nmax_total = 100\n[guards.agent_action.rules]\naction_cycle = "enforce"\n'
    flow = serve(config=config).client()
    names = [f"step_{n}" for n in range(period)]
    for name in (names * 3)[:-1]:
        act(flow, name)
    assert refuse(flow, "action_cycle", names[-1])["cycle_repeats"] == 3


def test_nine_actions_are_a_long_plan_and_no_cycle(serve):
    config = '[guards.agent_action]\nmax_total = 100\n[guards.agent_action.rules]\naction_cycle = "enforce"\n'
    flow = serve(config=config).client()
    for name in [f"step_{n}" for n in range(9)] * 4:
        act(flow, name)


# -- results ---------------------------------------------------------------------------------------


def test_a_result_is_taken_and_kept_short(flow):
    act(flow, "get_profile")
    result(flow, "get_profile", result_summary="z" * 1000, result_hash="r1", error=False)
    session = flow.get("/v1/sessions/s")
    assert session.status == 200, session
    assert "z" * 200 in session.text and "z" * 201 not in session.text


def test_a_result_without_a_call_is_taken_too_and_counted(flow):
    def unmatched():
        lines = [line for line in flow.get("/metrics").text.splitlines()
                 if "unmatched" in line and not line.startswith("#")]
        return sum(float(line.split()[-1]) for line in lines)

    act(flow, "get_profile")
    before = unmatched()
    result(flow, "never_called", result_summary="what?")
    result(flow, "get_profile", session="unknown session")
    assert unmatched() == before + 2
    result(flow, "get_profile")
    assert unmatched() == before + 2


def test_a_result_takes_no_slot(flow):
    act(flow, "a")
    for _ in range(30):
        result(flow, "a", result_summary="same", result_hash="r")
    assert act(flow, "b")["total_actions_used"] == 2


def test_polling_may_repeat_while_its_result_changes(serve):
    flow = serve(config='[guards.agent_action]\npolling = ["check_job"]\n').client()
    for percent in range(6):
        act(flow, "check_job", action_params_hash="job-1")
        result(flow, "check_job", result_hash=f"{percent} percent")
    refuse(flow, "same_action_frequency_spiral", "check_job", action_params_hash="job-1")


def test_polling_without_progress_is_a_spiral(serve):
    flow = serve(config='[guards.agent_action]\npolling = ["check_job"]\n').client()
    for _ in range(3):
        act(flow, "check_job", action_params_hash="job-1")
        result(flow, "check_job", result_hash="still queued")
    refuse(flow, "consecutive_same_action_spiral", "check_job", action_params_hash="job-1")


def test_progress_excuses_polling_actions_only(serve):
    flow = serve(config='[guards.agent_action]\npolling = ["check_job"]\n').client()
    for percent in range(3):
        act(flow, "get_profile", action_params_hash="p")
        result(flow, "get_profile", result_hash=f"{percent}")
    refuse(flow, "consecutive_same_action_spiral", "get_profile", action_params_hash="p")
