"""An orchestrator wants to transfer the conversation."""

from catalogue import HANDOFF
from runguard_http import subset


def transfer(target, session="s", source="orchestrator"):
    return {"session_id": session, "source_bot": source, "target_bot": target}


def test_six_handoffs_then_the_ceiling(flow):
    for used, bot in enumerate(["a", "b", "c", "a", "b", "c"], start=1):
        answer = flow.allowed(HANDOFF, **transfer(bot))
        assert subset(answer, "guard", "session_id", "source_bot", "target_bot", "handoffs_used",
                      "handoffs_remaining") == {
            "guard": "handoff", "session_id": "s", "source_bot": "orchestrator", "target_bot": bot,
            "handoffs_used": used, "handoffs_remaining": 6 - used,
        }
    refused = flow.refused(HANDOFF, "handoff_ceiling_reached", **transfer("d"))
    assert subset(refused, "total_handoffs", "ceiling", "chain", "handoff_chain") == {
        "total_handoffs": 6, "ceiling": 6,
        "chain": ["a", "b", "c", "a", "b", "c"], "handoff_chain": ["a", "b", "c", "a", "b", "c"],
    }


def test_third_visit_to_a_bot_is_a_cycle_and_the_message_draws_it(flow):
    for bot in ("billing-bot", "subscription-bot", "billing-bot"):
        flow.allowed(HANDOFF, **transfer(bot))
    refused = flow.refused(HANDOFF, "cycle_detected", **transfer("billing-bot"))
    chain = ["billing-bot", "subscription-bot", "billing-bot"]
    assert subset(refused, "target_bot", "target_visits", "ceiling", "handoff_chain", "chain") == {
        "target_bot": "billing-bot", "target_visits": 2, "ceiling": 2, "handoff_chain": chain, "chain": chain,
    }
    assert "billing-bot → subscription-bot → billing-bot" in refused["message"]


def test_the_ceiling_is_told_before_the_cycle(flow):
    for bot in "abcabc":
        flow.allowed(HANDOFF, **transfer(bot))
    flow.refused(HANDOFF, "handoff_ceiling_reached", **transfer("a"))


def test_only_targets_are_visits(flow):
    """A bot that hands over is not visited by doing so."""
    for bot in ("a", "b", "c"):
        flow.allowed(HANDOFF, **transfer(bot, source="billing"))
    assert flow.allowed(HANDOFF, **transfer("billing", source="c"))["handoffs_used"] == 4


def test_a_refused_transfer_takes_no_slot(flow):
    for bot in ("a", "a"):
        flow.at(0).allowed(HANDOFF, **transfer(bot))
    for _ in range(10):
        flow.at(10).refused(HANDOFF, "cycle_detected", **transfer("a"))
    assert flow.at(20).allowed(HANDOFF, **transfer("b"))["handoffs_used"] == 3


def test_handoffs_leave_after_half_an_hour(flow):
    for second, bot in enumerate("abcdef"):
        flow.at(second).allowed(HANDOFF, **transfer(bot))
    flow.at(1799.999).refused(HANDOFF, "handoff_ceiling_reached", **transfer("g"))
    assert flow.at(1800).allowed(HANDOFF, **transfer("g"))["handoffs_used"] == 6
    refused = flow.at(1800.999).refused(HANDOFF, "handoff_ceiling_reached", **transfer("h"))
    assert refused["chain"] == list("bcdefg")


def test_a_visit_leaves_after_half_an_hour(flow):
    flow.at(0).allowed(HANDOFF, **transfer("a"))
    flow.at(900).allowed(HANDOFF, **transfer("a"))
    flow.at(1799.999).refused(HANDOFF, "cycle_detected", **transfer("a"))
    flow.at(1800).allowed(HANDOFF, **transfer("a"))
    flow.at(2699.999).refused(HANDOFF, "cycle_detected", **transfer("a"))
    flow.at(2700).allowed(HANDOFF, **transfer("a"))


def test_sessions_are_counted_apart(flow):
    for bot in "aa":
        flow.allowed(HANDOFF, **transfer(bot))
    flow.refused(HANDOFF, "cycle_detected", **transfer("a"))
    assert flow.allowed(HANDOFF, **transfer("a", session="t"))["handoffs_used"] == 1
