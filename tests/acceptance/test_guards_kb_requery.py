"""A flow wants to ask the knowledge base again. One guard, two doors."""

import pytest

from catalogue import KB_BOTPRESS, KB_CHECK, KB_RECORD, topic_hash
from runguard_http import subset

REFUNDS = {"session_id": "s", "topic_hash": "refunds", "query_text": "how do refunds work"}


def record(flow, query, confidence, chunks=3, session="s"):
    return flow.recorded(KB_RECORD, session_id=session, query=query, confidence_score=confidence,
                         retrieved_chunks=chunks)


# -- the Botpress door: the check counts ----------------------------------------------------------


def test_botpress_two_queries_then_the_cap(flow):
    first = flow.at(0).allowed(KB_BOTPRESS, **REFUNDS, last_confidence=0.2)
    assert subset(first, "guard", "session_id", "topic_hash", "queries_used", "queries_remaining") == {
        "guard": "kb_requery", "session_id": "s", "topic_hash": "refunds", "queries_used": 1, "queries_remaining": 1,
    }
    second = flow.at(5).allowed(KB_BOTPRESS, **REFUNDS, last_confidence=0.3)
    assert subset(second, "queries_used", "queries_remaining") == {"queries_used": 2, "queries_remaining": 0}
    third = flow.at(10).refused(KB_BOTPRESS, "kb_requery_cap_reached", **REFUNDS, last_confidence=0.1)
    assert subset(third, "topic_hash", "queries_in_window", "cap", "best_confidence_seen", "retry_after_seconds") == {
        "topic_hash": "refunds", "queries_in_window": 2, "cap": 2, "best_confidence_seen": 0.3,
        "retry_after_seconds": 890,
    }


def test_botpress_best_confidence_is_the_highest_and_knows_the_refused_requests_own(flow):
    """Not the lowest (docs/corrections.md, 1)."""
    flow.allowed(KB_BOTPRESS, **REFUNDS, last_confidence=0.62)
    flow.allowed(KB_BOTPRESS, **REFUNDS, last_confidence=0.15)
    refused = flow.refused(KB_BOTPRESS, "kb_requery_cap_reached", **REFUNDS, last_confidence=0.4)
    assert refused["best_confidence_seen"] == 0.62
    refused = flow.refused(KB_BOTPRESS, "kb_requery_cap_reached", **REFUNDS, last_confidence=0.7)
    assert refused["best_confidence_seen"] == 0.7


def test_botpress_a_met_threshold_comes_first_and_takes_no_slot(flow):
    for _ in range(3):
        refused = flow.refused(KB_BOTPRESS, "confidence_already_met", **REFUNDS, last_confidence=0.75)
        assert subset(refused, "last_confidence", "threshold") == {"last_confidence": 0.75, "threshold": 0.75}
    assert flow.allowed(KB_BOTPRESS, **REFUNDS, last_confidence=0.7499)["queries_used"] == 1
    flow.allowed(KB_BOTPRESS, **REFUNDS)
    flow.refused(KB_BOTPRESS, "kb_requery_cap_reached", **REFUNDS)
    flow.refused(KB_BOTPRESS, "confidence_already_met", **REFUNDS, last_confidence=1)


def test_botpress_confidence_is_zero_when_not_given(flow):
    for _ in range(2):
        flow.allowed(KB_BOTPRESS, session_id="s", topic_hash="refunds")
    refused = flow.refused(KB_BOTPRESS, "kb_requery_cap_reached", session_id="s", topic_hash="refunds")
    assert refused["best_confidence_seen"] == 0


def test_botpress_a_query_leaves_after_a_quarter_of_an_hour(flow):
    flow.at(0).allowed(KB_BOTPRESS, **REFUNDS)
    flow.at(300).allowed(KB_BOTPRESS, **REFUNDS)
    flow.at(899.999).refused(KB_BOTPRESS, "kb_requery_cap_reached", **REFUNDS)
    assert flow.at(900).allowed(KB_BOTPRESS, **REFUNDS)["queries_used"] == 2
    flow.at(1199.999).refused(KB_BOTPRESS, "kb_requery_cap_reached", **REFUNDS)
    flow.at(1200).allowed(KB_BOTPRESS, **REFUNDS)


def test_botpress_sessions_and_topics_are_counted_apart(flow):
    for _ in range(2):
        flow.allowed(KB_BOTPRESS, **REFUNDS)
    flow.refused(KB_BOTPRESS, "kb_requery_cap_reached", **REFUNDS)
    assert flow.allowed(KB_BOTPRESS, **{**REFUNDS, "session_id": "t"})["queries_used"] == 1
    assert flow.allowed(KB_BOTPRESS, **{**REFUNDS, "topic_hash": "shipping"})["queries_used"] == 1


# -- the Voiceflow door: the record counts --------------------------------------------------------


def test_voiceflow_a_check_counts_nothing(flow):
    for _ in range(10):
        answer = flow.allowed(KB_CHECK, session_id="s", query="how do refunds work")
        assert subset(answer, "guard", "session_id", "query_number", "remaining_queries") == {
            "guard": "kb_requery", "session_id": "s", "query_number": 1, "remaining_queries": 1,
        }


def test_voiceflow_two_recorded_queries_then_the_cap(flow):
    query = "how do refunds work"
    record(flow.at(0), query, 0.6)
    second = flow.at(1).allowed(KB_CHECK, session_id="s", query=query)
    assert subset(second, "query_number", "remaining_queries") == {"query_number": 2, "remaining_queries": 0}
    record(flow.at(2), query, 0.9)
    refused = flow.at(3).refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query=query)
    assert subset(refused, "topic_hash", "queries_in_window", "cap", "best_confidence_seen") == {
        "topic_hash": topic_hash(query), "queries_in_window": 2, "cap": 2, "best_confidence_seen": 0.9,
    }


def test_voiceflow_the_cap_message_tells_a_gap_from_an_answer(flow):
    for confidence in (0.1, 0.49):
        record(flow, "gap in the manual", confidence)
    for confidence in (0.1, 0.50):
        record(flow, "answered before", confidence)
    gap = flow.refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query="gap in the manual")
    answered = flow.refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query="answered before")
    assert (gap["best_confidence_seen"], answered["best_confidence_seen"]) == (0.49, 0.5)

    def advice(message):
        return "".join(c for c in message if c.isalpha() or c == " ").replace("  ", " ")

    assert advice(gap["message"]) != advice(answered["message"])


def test_voiceflow_a_poor_first_answer_blocks_the_second_query(flow):
    query = "how do refunds work"
    record(flow, query, 0.49)
    refused = flow.refused(KB_CHECK, "low_confidence_re_query_blocked", session_id="s", query=query)
    assert subset(refused, "topic_hash", "prior_confidence", "threshold") == {
        "topic_hash": topic_hash(query), "prior_confidence": 0.49, "threshold": 0.5,
    }


@pytest.mark.parametrize("recorded, prior, allowed", [
    (0.50, None, True),     # at the threshold is not below it
    (0.49, None, False),    # absent: the topic's last recorded one
    (0.90, 0.49, False),    # the caller's own figure outranks the recorded one
    (0.10, 0.50, True),
    (0.10, 0.0, False),     # a Voiceflow variable that was never set arrives as 0
])
def test_voiceflow_which_confidence_counts(flow, recorded, prior, allowed):
    query = "how do refunds work"
    record(flow, query, recorded)
    body = {"session_id": "s", "query": query, "prior_confidence": prior}
    if allowed:
        assert flow.allowed(KB_CHECK, **body)["query_number"] == 2
    else:
        refused = flow.refused(KB_CHECK, "low_confidence_re_query_blocked", **body)
        assert refused["prior_confidence"] == (recorded if prior is None else prior)


def test_voiceflow_a_poor_prior_without_earlier_queries_is_allowed(flow):
    flow.allowed(KB_CHECK, session_id="s", query="how do refunds work", prior_confidence=0.1)


def test_voiceflow_the_last_recorded_confidence_counts_not_the_best(serve):
    flow = serve(config="[guards.kb_requery.voiceflow]\nmax_queries = 5\n").client()
    record(flow, "how do refunds work", 0.9)
    record(flow, "how do refunds work", 0.2)
    refused = flow.refused(KB_CHECK, "low_confidence_re_query_blocked", session_id="s", query="how do refunds work")
    assert refused["prior_confidence"] == 0.2
    record(flow, "how do refunds work", 0.8)
    assert flow.allowed(KB_CHECK, session_id="s", query="how do refunds work")["query_number"] == 4


def test_voiceflow_a_query_that_found_nothing_may_be_tried_again(flow):
    """Zero chunks is a retrieval failure, not a gap: a second try is fair; a third is still over the cap."""
    query = "how do refunds work"
    record(flow, query, 0.0, chunks=0)
    assert flow.allowed(KB_CHECK, session_id="s", query=query)["query_number"] == 2
    assert flow.allowed(KB_CHECK, session_id="s", query=query, prior_confidence=0.0)["query_number"] == 2
    record(flow, query, 0.0, chunks=0)
    flow.refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query=query)


def test_voiceflow_only_the_last_query_excuses(serve):
    flow = serve(config="[guards.kb_requery.voiceflow]\nmax_queries = 5\n").client()
    record(flow, "how do refunds work", 0.0, chunks=0)
    record(flow, "how do refunds work", 0.3, chunks=4)
    flow.refused(KB_CHECK, "low_confidence_re_query_blocked", session_id="s", query="how do refunds work")


def test_voiceflow_a_query_leaves_after_an_hour(flow):
    query = "how do refunds work"
    record(flow.at(0), query, 0.9)
    record(flow.at(600), query, 0.8)
    flow.at(3599.999).refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query=query)
    assert flow.at(3600).allowed(KB_CHECK, session_id="s", query=query)["query_number"] == 2
    assert flow.at(4199.999).allowed(KB_CHECK, session_id="s", query=query)["query_number"] == 2
    assert flow.at(4200).allowed(KB_CHECK, session_id="s", query=query)["query_number"] == 1


def test_voiceflow_sessions_are_counted_apart(flow):
    for _ in range(2):
        record(flow, "how do refunds work", 0.9)
    flow.refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query="how do refunds work")
    assert flow.allowed(KB_CHECK, session_id="t", query="how do refunds work")["query_number"] == 1


# -- topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [
    "how do refunds work",
    "How  do\tREFUNDS\n work ",
    "Straße ÄÖÜ\u00a0naïve café",
    "日本語の質問 " * 30,
    "word " * 200,
    "x" * 128 + "tail that is cut",
])
def test_voiceflow_topic_hash(shared_server, query):
    flow = shared_server.client()
    assert flow.allowed(KB_CHECK, session_id=f"hash {topic_hash(query)}", query=query)["topic_hash"] == topic_hash(query)


@pytest.mark.parametrize("first, second", [
    ("how do I reset my password", "How can I reset my password?"),
    ("how do I reset my password", "password: how do I reset my"),       # the same words in another order
    ("what is your refund policy", "What is your refunds policy??"),
    ("opening hours of the store", "store opening hours of the"),
])
def test_voiceflow_a_rephrased_query_is_the_same_topic(flow, first, second):
    """docs/corrections.md, 5 and 6."""
    record(flow, first, 0.8)
    same = flow.allowed(KB_CHECK, session_id="s", query=second)
    assert subset(same, "topic_hash", "matched_query", "query_number") == {
        "topic_hash": topic_hash(first), "matched_query": first, "query_number": 2,
    }
    record(flow, second, 0.8)
    for query in (first, second):
        refused = flow.refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query=query)
        assert refused["topic_hash"] == topic_hash(first)


@pytest.mark.parametrize("first, second", [
    ("how do refunds work", "where is the nearest store"),
    ("how do I delete my user account", "how do I deactivate my user account"),    # a dangerous word
    ("status of order 12345 please", "status of order 12346 please"),              # a number
    ("is delivery free on 2026-12-24", "is delivery free on 2026-12-25"),          # a date
    ("can I return an opened item", "can I not return an opened item"),            # a negation
    ('what does "error one" mean here', 'what does "error two" mean here'),        # a quoted string
    ("what does the field user_id hold", "what does the field user_no hold"),      # an identifier
])
def test_voiceflow_a_different_question_is_another_topic(flow, first, second):
    for _ in range(2):
        record(flow, first, 0.8)
    flow.refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query=first)
    other = flow.allowed(KB_CHECK, session_id="s", query=second)
    assert subset(other, "topic_hash", "query_number") == {"topic_hash": topic_hash(second), "query_number": 1}


def test_voiceflow_topics_of_another_session_do_not_match(flow):
    record(flow, "how do I reset my password", 0.8, session="t")
    other = flow.allowed(KB_CHECK, session_id="s", query="How can I reset my password?")
    assert subset(other, "topic_hash", "query_number") == {
        "topic_hash": topic_hash("How can I reset my password?"), "query_number": 1,
    }


def test_voiceflow_a_corrected_slip_of_the_keyboard_is_asked_once(serve):
    server = serve(config="[guards.kb_requery.voiceflow]\nmax_queries = 5\n")
    flow = server.client()
    mistyped, corrected = "how do I reset the thremostat", "how do I reset the thermostat"
    record(flow, mistyped, 0.2)
    flow.refused(KB_CHECK, "low_confidence_re_query_blocked", session_id="s", query=mistyped)
    fair = flow.allowed(KB_CHECK, session_id="s", query=corrected)
    assert subset(fair, "topic_hash", "query_number", "corrects_spelling") == {
        "topic_hash": topic_hash(mistyped), "query_number": 2, "corrects_spelling": True,
    }
    record(flow, corrected, 0.2)
    for query in (mistyped, corrected, "how do I reset the themostat", "how do I reset the thermosatt"):
        flow.refused(KB_CHECK, "low_confidence_re_query_blocked", session_id="s", query=query)


def test_voiceflow_exact_topics_on_request(serve):
    flow = serve(config='[guards.kb_requery.voiceflow]\ntopic_match = "exact"\n').client()
    record(flow, "how do I reset my password", 0.8)
    other = flow.allowed(KB_CHECK, session_id="s", query="How can I reset my password?")
    assert subset(other, "topic_hash", "query_number") == {
        "topic_hash": topic_hash("How can I reset my password?"), "query_number": 1,
    }
    assert flow.allowed(KB_CHECK, session_id="s", query="HOW do I  reset my password")["query_number"] == 2


# -- both -----------------------------------------------------------------------------------------


def test_the_doors_share_no_counters(flow):
    query = "how do refunds work"
    same_topic = {"session_id": "s", "topic_hash": topic_hash(query), "query_text": query}
    for _ in range(2):
        flow.allowed(KB_BOTPRESS, **same_topic)
    flow.refused(KB_BOTPRESS, "kb_requery_cap_reached", **same_topic)
    assert flow.allowed(KB_CHECK, session_id="s", query=query)["query_number"] == 1

    for _ in range(2):
        record(flow, "where is my parcel", 0.9)
    flow.refused(KB_CHECK, "kb_query_cap_reached", session_id="s", query="where is my parcel")
    parcel = {"session_id": "s", "topic_hash": topic_hash("where is my parcel")}
    assert flow.allowed(KB_BOTPRESS, **parcel)["queries_used"] == 1
