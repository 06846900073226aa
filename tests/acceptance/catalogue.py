"""Every guard route, as data, and for every reason code a short story that ends in it.

The contract tests run over these tables, so a new route or reason needs one row here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from runguard_http import Client, Response

AI_TASK_RETRY = "/guard/ai-task-retry"
HANDOFF = "/guard/handoff"
KB_BOTPRESS = "/guard/kb-requery"
KB_CHECK = "/guard/kb-requery/check"
KB_RECORD = "/guard/kb-requery/record"
AGENT_ACTION = "/guard/agent-action"
AGENT_RESULT = "/guard/agent-action/result"
NO_MATCH = "/guard/no-match-reprompt"
CAPTURE = "/guard/capture-slot-fill"
CIRCUIT_CHECK = "/guard/api-circuit/check"
CIRCUIT_RECORD = "/guard/api-circuit/record"
LOOP = "/guard/loop"
LOOP_CHECK = "/guard/loop/check"
STALL = "/guard/stall"
AGENT_RUN = "/guard/agent-run"
BUDGET_CHECK = "/guard/budget/check"
BUDGET_RECORD = "/guard/budget/record"
BUDGET_RESERVE = "/guard/budget/reserve"
BUDGET_COMMIT = "/guard/budget/commit"
BUDGET_RELEASE = "/guard/budget/release"
TOOL_CALL = "/guard/tool-call"
TOOL_CALL_RECORD = "/guard/tool-call/record"
ACTION_GROUP = "/guard/action-group"
ACTION_GROUP_RESULT = "/guard/action-group/result"


def topic_hash(query: str) -> str:
    """First 16 hex digits of SHA-256 over the query lowercased, white space folded, cut to 128 characters."""
    return hashlib.sha256(" ".join(query.lower().split())[:128].encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Route:
    """A guard's POST route and the smallest body it takes."""

    path: str
    guard: str
    body: dict[str, Any]
    ids: tuple[str, ...]  # required strings of at most 256 characters
    texts: tuple[str, ...] = ()  # texts of at most 64 KiB; optional unless in `body`
    numbers: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # number field -> values out of its range
    status: int = 200

    @property
    def required(self) -> tuple[str, ...]:
        return self.ids + tuple(text for text in self.texts if text in self.body)

    @property
    def optional_texts(self) -> tuple[str, ...]:
        return tuple(text for text in self.texts if text not in self.body)


CONFIDENCE = (-0.01, 1.01, "half", "1.01", "0,5", True, [0.5])
COUNT = (-1, 1.5, "three", "-1", "1.5", True)
DOLLARS = (-0.01, "five", "-1", True, [1], "1e400", 1e300)

ROUTES = (
    Route(AI_TASK_RETRY, "ai_task_retry", {"session_id": "s", "task_name": "classify"},
          ids=("session_id", "task_name"), texts=("user_message", "validation_error")),
    Route(HANDOFF, "handoff", {"session_id": "s", "source_bot": "front", "target_bot": "billing"},
          ids=("session_id", "source_bot", "target_bot")),
    Route(KB_BOTPRESS, "kb_requery", {"session_id": "s", "topic_hash": "refunds"},
          ids=("session_id", "topic_hash"), texts=("query_text",), numbers={"last_confidence": CONFIDENCE}),
    Route(KB_CHECK, "kb_requery", {"session_id": "s", "query": "how do refunds work"},
          ids=("session_id",), texts=("query",), numbers={"prior_confidence": CONFIDENCE}),
    Route(KB_RECORD, "kb_requery",
          {"session_id": "s", "query": "how do refunds work", "confidence_score": 0.8, "retrieved_chunks": 3},
          ids=("session_id",), texts=("query",),
          numbers={"confidence_score": CONFIDENCE, "retrieved_chunks": (-1, 1.5, "three", True)}),
    Route(AGENT_ACTION, "agent_action", {"session_id": "s", "action_name": "get_profile"},
          ids=("session_id", "action_name")),
    Route(AGENT_RESULT, "agent_action", {"session_id": "s", "action_name": "get_profile"},
          ids=("session_id", "action_name"), texts=("result_summary",), status=204),
    Route(NO_MATCH, "no_match_reprompt", {"session_id": "s", "step_id": "ask_colour"},
          ids=("session_id", "step_id"), texts=("user_utterance",)),
    Route(CAPTURE, "capture_slot_fill", {"session_id": "s", "capture_step": "ask_colour", "entity_type": "colour"},
          ids=("session_id", "capture_step", "entity_type"), texts=("user_utterance",)),
    Route(CIRCUIT_CHECK, "api_circuit", {"endpoint_key": "orders", "session_id": "s"},
          ids=("endpoint_key", "session_id")),
    Route(CIRCUIT_RECORD, "api_circuit",
          {"endpoint_key": "orders", "session_id": "s", "attempt": 1, "outcome": "success"},
          ids=("endpoint_key", "session_id"), numbers={"attempt": (0, -1, 1.5, "one")}),
    Route(LOOP, "loop", {"session_id": "s", "tool": "search"}, ids=("session_id", "tool"),
          numbers={"repeats": (1, *COUNT), "max_cycle_len": (0, *COUNT), "window_seconds": COUNT, "max_calls": COUNT}),
    Route(LOOP_CHECK, "loop", {"session_id": "s", "tool": "search"}, ids=("session_id", "tool")),
    Route(STALL, "stall", {"session_id": "s", "new_turn": False}, ids=("session_id",),
          texts=("tool", "args_hash", "result_hash", "error", "message")),
    Route(AGENT_RUN, "agent_run", {"session_id": "s", "whole": False}, ids=("session_id",), texts=("model",)),
    Route(BUDGET_CHECK, "budget", {"session_id": "s", "usd": 0}, ids=("session_id",),
          numbers={"usd": DOLLARS, "max_usd": DOLLARS, "tokens": COUNT, "max_tokens": COUNT, "cap": COUNT}),
    Route(BUDGET_RECORD, "budget", {"session_id": "s", "usd": 0}, ids=("session_id",),
          numbers={"usd": DOLLARS, "tokens": COUNT, "input_tokens": COUNT, "output_tokens": COUNT}),
    Route(BUDGET_RESERVE, "budget", {"session_id": "s", "usd": 0}, ids=("session_id",), numbers={"usd": DOLLARS}),
    Route(BUDGET_COMMIT, "budget", {"session_id": "s", "reservation_id": "r"}, ids=("session_id", "reservation_id"),
          numbers={"usd": DOLLARS}),
    Route(BUDGET_RELEASE, "budget", {"session_id": "s", "reservation_id": "r"}, ids=("session_id", "reservation_id")),
    Route(TOOL_CALL, "tool_call", {"session_id": "s", "tool": "search_knowledge"}, ids=("session_id", "tool")),
    Route(TOOL_CALL_RECORD, "tool_call", {"session_id": "s", "tool": "search_knowledge"}, ids=("session_id", "tool")),
    Route(ACTION_GROUP, "action_group", {"session_id": "s", "action_group": "orders"},
          ids=("session_id", "action_group"), texts=("api_path", "http_method", "function")),
    Route(ACTION_GROUP_RESULT, "action_group", {"session_id": "s", "action_group": "orders", "failed": True},
          ids=("session_id", "action_group")),
)


@dataclass(frozen=True)
class Block:
    """A story whose last request is refused: what came before, what is asked when, and what the answer says."""

    name: str
    reason: str
    path: str
    ask: dict[str, Any]
    says: dict[str, Any]  # fields of the answer beside the common ones
    before: tuple[tuple[float, str, dict[str, Any]], ...] = ()
    asked_at: float = 100
    retry_after: int | None = None  # None: waiting does not help
    numbers: tuple[int | float, ...] = ()  # what the message must say

    @property
    def guard(self) -> str:
        return next(route.guard for route in ROUTES if route.path == self.path)

    def lead_up(self, flow: Client) -> None:
        """Brings the session to the edge, and the clock to the moment of the refused request."""
        for second, path, fields in self.before:
            response = flow.at(second).post(path, fields)
            assert response.status in (200, 204, 429), f"lead-up {path} {fields}: {response}"
        flow.at(self.asked_at)

    def ask_again(self, flow: Client, query: str = "", headers: dict[str, str] | None = None) -> Response:
        return flow.post(self.path + query, self.ask, headers)


def _retry(second: float, **more):
    return second, AI_TASK_RETRY, {"session_id": "s", "task_name": "classify", **more}


def _handoff(second: float, target: str):
    return second, HANDOFF, {"session_id": "s", "source_bot": "front", "target_bot": target}


def _kb_record(second: float, confidence: float, chunks: int = 3):
    return second, KB_RECORD, {"session_id": "s", "query": "how do refunds work", "confidence_score": confidence,
                               "retrieved_chunks": chunks}


def _action(second: float, name: str):
    return second, AGENT_ACTION, {"session_id": "s", "action_name": name}


def _capture(second: float, utterance: str):
    return second, CAPTURE, {"session_id": "s", "capture_step": "ask_email", "entity_type": "email",
                             "user_utterance": utterance}


def _failure(second: float, session: str):
    return second, CIRCUIT_RECORD, {"endpoint_key": "orders", "session_id": session, "attempt": 1,
                                    "outcome": "failure", "status_code": 503}


def _circuit(second: float, session: str):
    return second, CIRCUIT_CHECK, {"endpoint_key": "orders", "session_id": session}


def _loop(second: float, tool: str, **more):
    return second, LOOP, {"session_id": "s", "tool": tool, **more}


def _run(number: int) -> dict[str, Any]:
    """A question to a model after one more step that gave nothing new."""
    step = {"id": f"call_{number}", "tool": "search", "args": "a", "result": "b", "round": str(number)}
    return {"session_id": "s", "model": "gpt-4o", "steps": [step]}


def _check(n):
    if n % 2 == 0:
        return {"session_id": "s", "tool": "write_file", "args": {"path": "fix.py", "content": f"try {n}"}, "result": "ok"}
    return {"session_id": "s", "tool": "run_tests", "args": {}, "error": "1 failed: the total is wrong"}


def _edit(n):
    old, new = ("3", "5") if n % 2 == 0 else ("5", "3")
    return {"session_id": "s", "tool": "edit_file", "args": {"path": "a.py", "old_str": old, "new_str": new}, "result": "ok"}


def _page(n):
    return {"session_id": "s", "tool": "fetch_page", "args": {"url": f"/{n}"}, "result": "Access denied"}


def _mistake(n):
    errors = ("no such table", "connection refused", "syntax error", "permission denied", "statement timeout")
    return {"session_id": "s", "tool": "run_query", "args": {"attempt": n}, "error": errors[n % len(errors)]}


def _pair(second: float, args: int, result: str, **more):
    return second, STALL, {"session_id": "s", "tool": "read_file", "args": {"n": args}, "result": result, **more}


def _spend(second: float, path: str, **more):
    return second, path, {"session_id": "s", "max_usd": 1, **more}


def _tool(second: float, tool: str, **args):
    return second, TOOL_CALL, {"session_id": "s", "tool": tool, "args": args}


_ORDER_7 = {"session_id": "s", "action_group": "orders", "function": "get_order",
            "parameters": [{"name": "id", "type": "string", "value": "7"}]}
_CEILING = {"window_seconds": 3600, "max_calls": 2}
_ASK_RETRY = {"session_id": "s", "task_name": "classify"}
_ASK_REFUNDS = {"session_id": "s", "query": "how do refunds work"}
_ASK_EMAIL = {"session_id": "s", "capture_step": "ask_email", "entity_type": "email"}
_ASK_ORDERS = {"endpoint_key": "orders", "session_id": "s"}
_REFUNDS = topic_hash("how do refunds work")
_TRIPPED_AT_9 = tuple(_failure(second, f"other-{second}") for second in range(10))

BLOCKS = (
    Block("ai_task_retry: nothing to extract", "input_missing_prerequisite_signal", AI_TASK_RETRY,
          {"session_id": "s", "task_name": "extract_order_number", "user_message": "where is my parcel",
           "validation_error": "no match for ^ORD"},
          {"task_name": "extract_order_number", "validation_error": "no match for ^ORD"}),
    Block("ai_task_retry: third retry", "retry_cap_reached", AI_TASK_RETRY, _ASK_RETRY,
          {"task_name": "classify", "retries_in_window": 2, "cap": 2},
          before=(_retry(0), _retry(10)), retry_after=3500, numbers=(2,)),

    Block("handoff: seventh handoff", "handoff_ceiling_reached", HANDOFF,
          {"session_id": "s", "source_bot": "front", "target_bot": "g"},
          {"total_handoffs": 6, "ceiling": 6, "chain": list("abcdef"), "handoff_chain": list("abcdef")},
          before=tuple(_handoff(10 * n, bot) for n, bot in enumerate("abcdef")), retry_after=1700, numbers=(6,)),
    Block("handoff: seventh handoff, to a bot that was visited twice late", "handoff_ceiling_reached", HANDOFF,
          {"session_id": "s", "source_bot": "front", "target_bot": "x"},
          {"total_handoffs": 6, "ceiling": 6, "chain": list("abcdxx"), "handoff_chain": list("abcdxx")},
          before=tuple(_handoff(10 * n, bot) for n, bot in enumerate("abcdxx")), retry_after=1740, numbers=(6,)),
    Block("handoff: third visit", "cycle_detected", HANDOFF,
          {"session_id": "s", "source_bot": "front", "target_bot": "billing"},
          {"target_bot": "billing", "target_visits": 2, "ceiling": 2,
           "handoff_chain": ["billing", "plans", "billing"], "chain": ["billing", "plans", "billing"]},
          before=(_handoff(0, "billing"), _handoff(10, "plans"), _handoff(20, "billing")),
          retry_after=1700, numbers=(2,)),

    Block("kb_requery (Botpress): already answered", "confidence_already_met", KB_BOTPRESS,
          {"session_id": "s", "topic_hash": "refunds", "last_confidence": 0.75},
          {"topic_hash": "refunds", "last_confidence": 0.75, "threshold": 0.75}, numbers=(0.75,)),
    Block("kb_requery (Botpress): third query", "kb_requery_cap_reached", KB_BOTPRESS,
          {"session_id": "s", "topic_hash": "refunds", "last_confidence": 0.2},
          {"topic_hash": "refunds", "queries_in_window": 2, "cap": 2, "best_confidence_seen": 0.6},
          before=((0, KB_BOTPRESS, {"session_id": "s", "topic_hash": "refunds", "last_confidence": 0.6}),
                  (10, KB_BOTPRESS, {"session_id": "s", "topic_hash": "refunds", "last_confidence": 0.4})),
          retry_after=800, numbers=(2,)),
    Block("kb_requery (Voiceflow): third query, good answers", "kb_query_cap_reached", KB_CHECK, _ASK_REFUNDS,
          {"topic_hash": _REFUNDS, "queries_in_window": 2, "cap": 2, "best_confidence_seen": 0.8},
          before=(_kb_record(0, 0.8), _kb_record(10, 0.7)), retry_after=3500, numbers=(2,)),
    Block("kb_requery (Voiceflow): third query, poor answers", "kb_query_cap_reached", KB_CHECK, _ASK_REFUNDS,
          {"topic_hash": _REFUNDS, "queries_in_window": 2, "cap": 2, "best_confidence_seen": 0.4},
          # At 3600 the first leaves the window, but the second is still there and poor until 3610.
          before=(_kb_record(0, 0.4), _kb_record(10, 0.3)), retry_after=3510, numbers=(2,)),
    Block("kb_requery (Voiceflow): third query, the last found nothing", "kb_query_cap_reached", KB_CHECK, _ASK_REFUNDS,
          {"topic_hash": _REFUNDS, "queries_in_window": 2, "cap": 2, "best_confidence_seen": 0.4},
          before=(_kb_record(0, 0.4), _kb_record(10, 0.0, chunks=0)), retry_after=3500, numbers=(2,)),
    Block("kb_requery (Voiceflow): second query after a poor answer", "low_confidence_re_query_blocked", KB_CHECK,
          _ASK_REFUNDS, {"topic_hash": _REFUNDS, "prior_confidence": 0.3, "threshold": 0.5},
          before=(_kb_record(0, 0.3),), retry_after=3500, numbers=(0.3, 0.5)),

    Block("agent_action: 21st action", "total_action_ceiling", AGENT_ACTION,
          {"session_id": "s", "action_name": "one_more"},
          {"action_name": "one_more", "total_actions": 20, "ceiling": 20,
           "action_distribution": {f"action_{n}": 1 for n in range(20)}},
          before=tuple(_action(n, f"action_{n}") for n in range(20)), retry_after=1700, numbers=(20,)),
    Block("agent_action: fourth in a row", "consecutive_same_action_spiral", AGENT_ACTION,
          {"session_id": "s", "action_name": "get_profile"},
          {"action_name": "get_profile", "consecutive_count": 3, "ceiling": 3},
          before=(_action(0, "get_profile"), _action(10, "get_profile"), _action(20, "get_profile")),
          retry_after=1700, numbers=(3,)),
    Block("agent_action: seventh of one kind", "same_action_frequency_spiral", AGENT_ACTION,
          {"session_id": "s", "action_name": "get_profile"},
          {"action_name": "get_profile", "same_action_total": 6, "ceiling": 6},
          before=tuple(_action(n, "get_profile" if n % 2 == 0 else f"other_{n}") for n in range(12)),
          retry_after=1700, numbers=(6,)),

    Block("no_match_reprompt: nothing to capture", "entity_signal_absent", NO_MATCH,
          {"session_id": "s", "step_id": "capture_email", "user_utterance": "why do you ask"},
          {"step_id": "capture_email", "user_utterance": "why do you ask"}),
    Block("no_match_reprompt: fourth reprompt", "reprompt_ceiling_reached", NO_MATCH,
          {"session_id": "s", "step_id": "ask_colour", "user_utterance": "hm"},
          {"step_id": "ask_colour", "attempts_in_window": 3, "ceiling": 3},
          before=tuple((10 * n, NO_MATCH, {"session_id": "s", "step_id": "ask_colour"}) for n in range(3)),
          retry_after=3500, numbers=(3,)),

    Block("capture_slot_fill: a spoken address", "colloquial_format_detected", CAPTURE,
          {**_ASK_EMAIL, "user_utterance": "john at example dot com"},
          {"allow_ai_response": False, "entity_type": "email"}),
    Block("capture_slot_fill: fifth attempt", "attempt_ceiling_reached", CAPTURE,
          {**_ASK_EMAIL, "user_utterance": "no idea"},
          {"allow_ai_response": False, "capture_step": "ask_email", "entity_type": "email",
           "attempts_in_window": 4, "hints_given": 0, "ceiling": 4},
          before=tuple(_capture(10 * n, "no idea") for n in range(4)), retry_after=3500, numbers=(4,)),
    Block("capture_slot_fill: eleventh hint", "attempt_ceiling_reached", CAPTURE,
          {**_ASK_EMAIL, "user_utterance": "john at example dot com"},
          # When the hints leave the window the utterance is still colloquial: waiting never allows it.
          {"allow_ai_response": False, "capture_step": "ask_email", "entity_type": "email",
           "attempts_in_window": 0, "hints_given": 10},
          before=tuple(_capture(n, "john at example dot com") for n in range(10)), numbers=(10,)),

    Block("api_circuit: first check after the trip", "circuit_just_tripped", CIRCUIT_CHECK, _ASK_ORDERS,
          {"endpoint_key": "orders", "recent_failures": 10, "failure_window_seconds": 60, "recovery_seconds": 45},
          before=_TRIPPED_AT_9, asked_at=10, retry_after=44, numbers=(10, 45)),
    Block("api_circuit: first check after the trip, by a session at its ceiling", "circuit_just_tripped", CIRCUIT_CHECK,
          _ASK_ORDERS, {"endpoint_key": "orders", "recent_failures": 10},
          before=tuple(_failure(second, "s" if second < 3 else f"other-{second}") for second in range(10)),
          asked_at=10, retry_after=3590),
    Block("api_circuit: later checks", "circuit_open", CIRCUIT_CHECK, _ASK_ORDERS,
          {"endpoint_key": "orders", "recovery_seconds_remaining": 34, "phase": "open"},
          before=(*_TRIPPED_AT_9, _circuit(10, "other")), asked_at=20, retry_after=34, numbers=(34,)),
    Block("api_circuit: half-open, the probe is out", "circuit_open", CIRCUIT_CHECK, _ASK_ORDERS,
          {"endpoint_key": "orders", "phase": "half_open"},
          before=(*_TRIPPED_AT_9, _circuit(10, "other"), _circuit(54, "prober")), asked_at=60, retry_after=24),
    Block("api_circuit: fourth try of a session", "session_retry_ceiling", CIRCUIT_CHECK, _ASK_ORDERS,
          {"endpoint_key": "orders", "session_attempts": 3, "ceiling": 3},
          before=(_failure(0, "s"), _failure(10, "s"), _failure(20, "s")), retry_after=3500, numbers=(3,)),

    Block("loop: third equal call", "loop_detected", LOOP, {"session_id": "s", "tool": "search"},
          {"tool": "search", "pattern": ["search"], "repeats": 3, "cycle_len": 1},
          before=(_loop(0, "search"), _loop(10, "search")), numbers=(3,)),
    Block("loop: two calls for the third time", "loop_detected", LOOP_CHECK, {"session_id": "s", "tool": "read"},
          {"tool": "read", "pattern": ["search", "read"], "repeats": 3, "cycle_len": 2},
          before=tuple(_loop(10 * n, "search" if n % 2 == 0 else "read") for n in range(5)), numbers=(3,)),
    Block("loop: third call of a kind in the window", "call_ceiling", LOOP,
          {"session_id": "s", "tool": "refunds", **_CEILING},
          {"tool": "refunds", "calls_in_window": 2, "max_calls": 2},
          before=(_loop(0, "refunds", **_CEILING), _loop(10, "shipping", **_CEILING), _loop(20, "refunds", **_CEILING)),
          retry_after=3500, numbers=(2,)),

    Block("stall: the same result four times", "stalled_identical", STALL, _pair(0, 1, "3 lines")[2],
          {"rung": "stop", "rule": "identical", "count": 4},
          before=tuple(_pair(n, 1, "3 lines") for n in range(3)), numbers=(4,)),
    Block("stall: a round of calls three times", "stalled_cycle", STALL, _pair(0, 2, "c")[2],
          {"rung": "stop", "rule": "cycle", "count": 3},
          before=tuple(_pair(n, n % 3, "abc"[n % 3]) for n in range(8)), numbers=(3,)),
    Block("stall: nothing new", "stalled_no_news", STALL, _pair(0, 3, "d")[2], {"rung": "stop", "rule": "novelty", "count": 0},
          before=tuple(_pair(n, args, "abcde"[args]) for n, args in enumerate((0, 1, 2, 3, 4, 0, 2, 1, 4, 0))),
          # Nothing is told by a word.
          numbers=("none",)),
    Block("stall: the same error with other arguments", "stalled_same_error", STALL,
          {"session_id": "s", "tool": "sql", "args": 9, "error": "no such column: c9"},
          {"rung": "stop", "rule": "same_error", "count": 5},
          before=tuple((n, STALL, {"session_id": "s", "tool": "sql", "args": n, "error": f"no such column: c{n}"})
                       for n in range(4)), numbers=(5,)),
    Block("stall: the same words three times", "stalled_messages", STALL, {"session_id": "s", "message": "Let me think."},
          {"rung": "stop", "rule": "messages", "count": 3},
          before=tuple((n, STALL, {"session_id": "s", "message": "Let me think."}) for n in range(2)), numbers=(3,)),
    Block("stall: a check that fails after every change", "stalled_unmoved", STALL, _check(23),
          {"rung": "stop", "rule": "unmoved", "count": 12},
          before=tuple((n, STALL, _check(n)) for n in range(23)), numbers=(12,)),
    Block("stall: a file that is put back the fourth time", "stalled_put_back", STALL, _edit(4),
          {"rung": "stop", "rule": "put_back", "count": 4},
          before=tuple((n, STALL, _edit(n)) for n in range(4)), numbers=(4,)),
    Block("stall: the same from the twelfth page", "stalled_same_result", STALL, _page(11),
          {"rung": "stop", "rule": "same_result", "count": 12},
          before=tuple((n, STALL, _page(n)) for n in range(11)), numbers=(12,)),
    Block("stall: nothing succeeds", "stalled_failing", STALL, _mistake(7),
          {"rung": "stop", "rule": "failing", "count": 8},
          before=tuple((n, STALL, _mistake(n)) for n in range(7)), numbers=(8,)),

    Block("agent_run: the fourth equal step", "run_stalled", AGENT_RUN, _run(3), {"rung": "stop", "rule": "identical", "count": 4, "tool": "search"},
          before=tuple((n, AGENT_RUN, _run(n)) for n in range(3)), retry_after=3600, numbers=(4,)),

    Block("budget: more than is left", "budget_exceeded", BUDGET_CHECK,
          {"session_id": "s", "max_usd": 1, "usd": "0.41"},
          {"budget": "default", "level": "budget", "cost_usd": 0.41, "spent_usd": 0.6, "reserved_usd": 0.0, "limit_usd": 1.0,
           "remaining_usd": 0.4}, before=(_spend(0, BUDGET_RECORD, usd=0.6),), numbers=(0.6, 0.4)),
    Block("budget: reserved by another step", "budget_exceeded", BUDGET_RESERVE,
          {"session_id": "s", "max_usd": 1, "usd": 0.5},
          {"budget": "default", "spent_usd": 0.0, "reserved_usd": 0.6, "remaining_usd": 0.4},
          before=(_spend(0, BUDGET_RESERVE, usd=0.6),), retry_after=800, numbers=(0.6, 0.4)),
    Block("budget: more tokens than are left", "budget_exceeded", BUDGET_RESERVE,
          {"session_id": "s", "max_tokens": 1000, "tokens": 500},
          {"budget": "default", "spent_tokens": 600, "limit_tokens": 1000, "remaining_tokens": 400},
          before=((0, BUDGET_RECORD, {"session_id": "s", "tokens": 600, "max_tokens": 1000}),), numbers=(600, 1000)),
    Block("budget: third call of a key", "call_cap_reached", BUDGET_RECORD,
          {"session_id": "s", "cap": 2, "key": "ask_email"}, {"budget": "default", "calls": 2, "cap": 2},
          before=tuple((n, BUDGET_RECORD, {"session_id": "s", "cap": 2, "key": "ask_email"}) for n in range(2)), numbers=(2,)),
    Block("budget: a model without a price", "unknown_model", BUDGET_RECORD,
          {"session_id": "s", "model": "no-such-model", "input_tokens": 5, "max_usd": 1}, {"budget": "default", "model": "no-such-model"}),

    Block("tool_call: third search", "tool_limit", TOOL_CALL,
          {"session_id": "s", "tool": "search_knowledge", "args": {"query": "opening hours"}},
          {"tool": "search_knowledge", "calls": 2, "limit": 2},
          before=(_tool(0, "search_knowledge", query="refunds"), _tool(1, "search_knowledge", query="shipping to Iceland")),
          numbers=(2,)),
    Block("tool_call: the same arguments", "exact_duplicate", TOOL_CALL,
          {"session_id": "s", "tool": "http_get", "args": {"b": 1.0, "a": "x", "c": None}}, {"tool": "http_get", "calls": 1, "limit": 3},
          before=(_tool(0, "http_get", a="x", b=1),)),
    Block("tool_call: nearly the same query", "similar_query", TOOL_CALL,
          {"session_id": "s", "tool": "search_knowledge", "args": {"query": "fix the bug"}},
          {"tool": "search_knowledge", "calls": 1, "limit": 2}, before=(_tool(0, "search_knowledge", query="fix bug"),)),

    Block("action_group: third call after two failures", "permanent_failure", ACTION_GROUP, _ORDER_7,
          {"action": "orders::get_order", "failures": 2, "max_failures": 2, "retryable": False},
          before=tuple((n, path, {**_ORDER_7, **more}) for n in range(2)
                       for path, more in ((ACTION_GROUP, {}), (ACTION_GROUP_RESULT, {"failed": True}))), numbers=(2,)),
)
