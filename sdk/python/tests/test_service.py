"""The same objects, backed by a real RunGuard service."""

from __future__ import annotations

import http.server
import multiprocessing
import pathlib
import socket
import threading
import time
import uuid
from typing import Any, List

import pytest
from real_service import service

from runguard import (
    BudgetExceededError,
    BudgetTracker,
    CircuitBreaker,
    CircuitOpenError,
    Client,
    InvalidInputError,
    LoopDetectedError,
    LoopDetector,
    Run,
    ServiceError,
    StallDetectedError,
    StallDetector,
    ToolExecutionTracker,
    UnknownModelError,
)

# Nobody listens there.
NOWHERE = "http://127.0.0.1:9"


def test_loops(url: str) -> None:
    detector = LoopDetector(repeats=3, max_cycle_len=4, url=url)
    assert isinstance(detector, LoopDetector)
    for name in ("search", "read", "search", "read", "search"):
        detector.record(name)
    assert isinstance(detector.check("read"), LoopDetectedError) and detector.check("write") is None
    with pytest.raises(LoopDetectedError) as caught:
        detector.record("read")
    assert (caught.value.pattern, caught.value.repeats, caught.value.cycle_len) == ("search → read", 3, 2)
    detector.reset()
    detector.record("read")
    with pytest.raises(InvalidInputError):
        detector.record("")


def test_two_detectors_share_a_session(url: str) -> None:
    one, other = LoopDetector(url=url), LoopDetector(url=url)
    one.record("shared-session", "search")
    other.record(session_id="shared-session", tool="search")
    with pytest.raises(LoopDetectedError):
        one.record("shared-session", "search")
    other.record("x" * 300, "y" * 300)


def test_a_ceiling(url: str) -> None:
    detector = LoopDetector(window_seconds=3600, max_calls=2, url=url)
    detector.record("user-1", "topic")
    detector.record("user-1", "topic")
    refused = detector.check("user-1", "topic")
    assert refused is not None and refused.reason == "call_ceiling" and refused.pattern == "topic"


def test_stalls(url: str) -> None:
    detector = StallDetector(url=url)
    verdicts = [detector.observe("search", {"q": 1}, "the same") for _ in range(4)]
    assert [verdict.rung for verdict in verdicts] == ["go_on", "go_on", "steer", "stop"]
    assert verdicts[2].nudge and verdicts[3].rule == "identical" and verdicts[3].count == 4
    detector.user_message()
    assert detector.observe("search", {"q": 1}, "the same").rung == "go_on"
    with pytest.raises(InvalidInputError):
        StallDetector(url=url, identical_stop=5)


def test_budgets(url: str) -> None:
    tracker = BudgetTracker(max_usd=1.0, url=url)
    tracker.record(0.25)
    assert (tracker.spent, tracker.remaining, tracker.check(), tracker.limit) == (0.25, 0.75, 0.75, 1.0)
    with tracker.reserve(0.5) as held:
        assert tracker.reserved == 0.5
        with pytest.raises(BudgetExceededError):
            tracker.reserve(0.5)
        held.commit(0.25)
    assert (tracker.reserved, tracker.spent) == (0.0, 0.5)
    with tracker.reserve(0.5):
        pass
    assert tracker.reserved == 0.0
    with pytest.raises(BudgetExceededError) as caught:
        tracker.record(0.75)
    assert (caught.value.spent, caught.value.limit, caught.value.unit) == (1.25, 1.0, "usd")
    assert tracker.exhausted() is not None
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises(InvalidInputError):
            tracker.record(wrong)


def test_budgets_of_calls_tokens_and_usage(url: str) -> None:
    tracker = BudgetTracker(cap=2, url=url)
    assert tracker.check("s", "step") == 2
    tracker.record("s", "step")
    tracker.record("s", "step")
    assert tracker.check("s", "step") == 0
    with pytest.raises(BudgetExceededError) as caught:
        tracker.record("s", "step")
    assert (caught.value.limit, caught.value.unit) == (2, "calls")
    tracker = BudgetTracker(max_tokens=100, url=url)
    with pytest.raises(BudgetExceededError) as caught:
        tracker.record_tokens(101)
    assert caught.value.unit == "tokens" and tracker.spent_tokens == 101
    tracker = BudgetTracker(max_usd=5, url=url)
    kept = BudgetTracker(max_usd=1, url=url)
    kept.record_usage("claude-sonnet-4-5", cache_write_tokens=1_000, cache_write_1h_tokens=1_000)
    assert kept.spent == pytest.approx(0.00375 + 0.006), "what is kept an hour costs more"
    kept.record_usage("gpt-audio", audio_input_tokens=1_000, audio_output_tokens=1_000)
    kept.record_usage("gpt-5.4", 10_000, service_tier="priority")
    assert kept.spent == pytest.approx(0.00975 + 0.096 + 0.05)
    tracker.record_usage("gpt-4o", 1000, 100)
    assert tracker.spent == pytest.approx(0.0035) and tracker.spent_tokens == 1100
    with pytest.raises(UnknownModelError):
        tracker.record_usage("no-such-model", 10)


def test_children(url: str) -> None:
    team = BudgetTracker(max_usd=1.0, url=url)
    run = team.child(max_usd=0.8)
    run.record(0.6)
    assert team.spent == 0.6
    with pytest.raises(BudgetExceededError):
        team.child().record(0.6)
    with pytest.raises(InvalidInputError, match="child of the first budget"):
        run.child(max_usd=0.5)
    with pytest.raises(InvalidInputError, match="scopes"):
        Run(budget=run, max_usd=0.5, url=url)


def test_books_of_calls_and_money(url: str) -> None:
    tracker = BudgetTracker(max_tokens=100, cap=1, url=url)
    tracker.record_tokens(30)
    assert tracker.check() == 1
    tracker.record()
    assert (tracker.check(), tracker.spent_tokens, tracker.remaining_tokens) == (0, 30, 70), "at its cap the money is told too"
    local = BudgetTracker(max_tokens=100, cap=1)
    local.record()
    assert local.check() == 0


def test_circuits(url: str) -> None:
    breaker = CircuitBreaker("orders-api", url=url)
    assert breaker.call(lambda: 7) == 7 and breaker.state == "closed"

    def fail() -> None:
        raise ConnectionError

    for _ in range(10):
        with pytest.raises(ConnectionError):
            breaker.call(fail)
    with pytest.raises(CircuitOpenError) as caught:
        CircuitBreaker("orders-api", url=url).check()
    assert caught.value.endpoint == "orders-api" and caught.value.retry_after_seconds is not None
    assert breaker.state == "open"
    breaker.reset()
    assert breaker.call(lambda: 7) == 7


def test_tool_calls(url: str) -> None:
    tracker = ToolExecutionTracker(url=url)
    assert tracker.should_skip("search_knowledge", {"query": "fix bug"}) is None
    tracker.record("search_knowledge", {"query": "fix bug"}, "result")
    skip = tracker.should_skip("search_knowledge", {"query": "fix bug"})
    assert skip is not None and skip.reason_code == "exact_duplicate"
    tracker.new_turn()
    assert tracker.should_skip("search_knowledge", {"query": "fix bug"}) is None


def test_a_run(url: str) -> None:
    run = Run(repeats=3, max_usd=1.0, url=url)
    run.before_tool("search", {"q": 1})
    run.before_tool("search", {"q": 1})
    run.new_turn()
    run.before_tool("search", {"q": 1})
    run.before_tool("search", {"q": 1})
    with pytest.raises(LoopDetectedError) as caught:
        run.before_tool("search", {"q": 1})
    assert caught.value.pattern == "search" and run.tripped
    run = Run(repeats=50, stall="coding", url=url)
    for _ in range(4):
        run.before_model()
        run.before_tool("search", {"q": 1})
        run.after_tool("search", {"q": 1}, "same")
    with pytest.raises(StallDetectedError):
        run.before_model()


def test_every_flow_guard_can_be_asked(url: str) -> None:
    client = Client(url)
    assert client.ai_task_retry("s", "extract", user_message="x")["allow"] is True
    assert client.handoff("s", "a", "b")["allow"] is True
    assert client.kb_requery("s", "topic")["allow"] is True
    assert client.kb_requery_check("s", "how do refunds work")["allow"] is True
    assert client.kb_requery_record("s", "how do refunds work", 0.4, 3)["recorded"] is True
    assert client.agent_action("s", "search", action_params={"q": 1})["allow"] is True
    client.agent_action_result("s", "search", result_summary="nothing", error=False)
    assert client.no_match_reprompt("s", "step")["allow"] is True
    assert client.capture_slot_fill("s", "step", "email", user_utterance="a@b.example")["allow"] is True
    assert client.action_group("s", action_group="orders", function="get")["allow"] is True
    client.action_group_result("s", action_group="orders", function="get", failed=True)
    decision = client.handoff("s", "a", "b")["decision_id"]
    assert client.decision(decision)["decision_id"] == decision
    assert client.decisions(limit=2)["decisions"] and client.session("s")["session_id"] == "s"
    client.stats()
    assert client.overview(since="1h")["totals"]["decisions"] > 0
    assert isinstance(client.insights()["insights"], list)
    assert client.consumption(since="1h")["time_zone"] == "UTC"
    assert client.preview("handoff", {"max_handoffs": 3}, since="1h")["guard"] == "handoff"
    assert client.settings()["admin"] is True and "rules" in client.alerts()
    client.forget_session("s")
    with pytest.raises(InvalidInputError) as caught:
        client.handoff("", "a", "b")
    assert "session_id" in str(caught.value)
    with pytest.raises(ServiceError) as missing:
        client.decision("01JF8Z6Q0V3N1W2X4Y5Z6A7B8C")
    assert missing.value.status == 404


def test_a_refusal_is_an_answer(url: str) -> None:
    client = Client(url)
    answers = [client.loop("refused", "same")["allow"] for _ in range(4)]
    assert answers == [True, True, False, False]


def test_long_messages_are_compared_whole(url: str) -> None:
    long = "word " * 2000
    detector = StallDetector(url=url)
    rungs = [detector.message(f"{long}{end}").rung for end in ("one", "two", "three", "three", "three")]
    assert rungs[:3] == ["go_on"] * 3 and rungs[-1] == "stop"


def test_one_client_in_many_threads(url: str) -> None:
    detector = LoopDetector(url=url)
    failures: List[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(10):
                detector.record(f"thread-{number}", f"tool-{step}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


SHARED: List[LoopDetector] = []


def record_in_child(session: str) -> str:
    try:
        SHARED[0].record(session, "search")
    except LoopDetectedError:
        return "refused"
    return "allowed"


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_forked_workers_share_the_run_and_not_the_connection(url: str) -> None:
    SHARED[:] = [LoopDetector(url=url)]
    SHARED[0].record("forked", "search")
    with multiprocessing.get_context("fork").Pool(4) as pool:
        answers = pool.map(record_in_child, ["forked"] * 8, chunksize=1)
    assert sorted(answers) == ["allowed"] + ["refused"] * 7


def test_without_an_answer_flows_go_on_and_money_stops() -> None:
    LoopDetector(url=NOWHERE, timeout=0.5).record("search")
    assert StallDetector(url=NOWHERE, timeout=0.5).observe("search", {}, "x").rung == "go_on"
    assert ToolExecutionTracker(url=NOWHERE, timeout=0.5).should_skip("search", {}) is None
    assert CircuitBreaker(url=NOWHERE, timeout=0.5).call(lambda: 7) == 7
    with pytest.raises(ServiceError):
        BudgetTracker(max_usd=5, url=NOWHERE, timeout=0.5).record(0.1)
    BudgetTracker(max_usd=5, url=NOWHERE, timeout=0.5, fail_open=True).record(0.1)
    with pytest.raises(ServiceError):
        LoopDetector(url=NOWHERE, timeout=0.5, fail_open=False).record("search")
    assert Client(NOWHERE).ready() is False


def test_a_service_that_hangs_is_given_up_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        started = time.monotonic()
        with pytest.raises(ServiceError):
            Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3).loop("s", "t")
        assert time.monotonic() - started < 2


def test_a_connection_that_died_meanwhile_is_opened_anew_with_the_same_key() -> None:
    keys: List[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are two writes: the second would wait for the first to be confirmed, 40 ms.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            keys.append(self.headers["idempotency-key"])
            if len(keys) == 2:
                # Read, and gone without a word: whether it was counted, the client cannot know.
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(200)
            self.send_header("content-length", "15")
            self.end_headers()
            self.wfile.write(b'{"allow": true}')

        def log_message(self, *_: Any) -> None:
            pass

        def finish(self) -> None:
            if not self.connection._closed:  # type: ignore[attr-defined]
                super().finish()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}")
        client.loop("s", "a")
        assert client.loop("s", "b") == {"allow": True}
        server.shutdown()
    assert len(keys) == 3 and keys[1] == keys[2] != keys[0]


@pytest.mark.parametrize("address", ["", "127.0.0.1:8100", "ftp://x", None, 7])
def test_what_is_no_address_is_refused(address: Any) -> None:
    with pytest.raises(InvalidInputError):
        Client(address)


def test_what_is_not_given_is_as_the_service_has_it_set(tmp_path: pathlib.Path) -> None:
    with service(tmp_path, RUNGUARD_GUARDS__LOOP__REPEATS="5") as address:
        for detector, most in ((LoopDetector(url=address), 5), (LoopDetector(repeats=3, url=address), 3)):
            for _ in range(most - 1):
                detector.record("search")
            with pytest.raises(LoopDetectedError) as caught:
                detector.record("search")
            assert caught.value.repeats == most
        run = Run(url=address)
        for _ in range(4):
            run.before_tool("search", {"q": 1})
        with pytest.raises(LoopDetectedError):
            run.before_tool("search", {"q": 1})


def test_a_circuit_of_a_long_name_is_one_by_its_beginning_and_a_hash(url: str) -> None:
    name = f"{uuid.uuid4()}-" + "x" * 300
    one, same, other = (CircuitBreaker(text, url=url) for text in (name, name, name + "y"))
    assert len(one.name) <= 256 and one.name == same.name != other.name
    one.force_open()
    with pytest.raises(CircuitOpenError) as caught:
        same.check()
    assert caught.value.endpoint == one.name and caught.value.retry_after_seconds is None
    assert one.state == "open"
    other.check()
    one.force_close()
    assert same.call(lambda: 7) == 7
    one.reset()
    assert one.state == "closed"


def test_a_guard_inside_of_a_call_says_nothing_about_the_endpoint(url: str) -> None:
    def stopped() -> None:
        raise LoopDetectedError("inside", cycle=("search",), repeats=3)

    breaker = CircuitBreaker(f"inside-{uuid.uuid4()}", url=url)
    for _ in range(12):
        with pytest.raises(LoopDetectedError):
            breaker.call(stopped)
    assert breaker.state == "closed"


def test_a_skip_says_how_often_the_tool_ran_and_may(url: str) -> None:
    for tracker in (ToolExecutionTracker(), ToolExecutionTracker(url=url)):
        for number in range(3):
            assert tracker.should_skip("look", {"n": number}) is None
            tracker.record("look", {"n": number})
        skip = tracker.should_skip("look", {"n": 9})
        assert skip is not None and (skip.reason_code, skip.count, skip.limit) == ("tool_limit", 3, 3)


def test_a_service_that_cannot_be_reached_is_left_alone_for_a_moment() -> None:
    # An address that swallows what is sent to it: every question would wait for its time-out.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        run = Run(url=url, timeout=0.4, max_tool_calls=200)
        began = time.monotonic()
        for number in range(100):
            run.before_tool("search", {"page": number})
        assert time.monotonic() - began < 1.5, "one time-out, not a hundred"
        run.before_tool("search", {"q": "x"})
        run.before_tool("search", {"q": "x"})
        with pytest.raises(LoopDetectedError):
            run.before_tool("search", {"q": "x"})


def test_money_is_closed_unless_it_is_opened() -> None:
    with pytest.raises(ServiceError):
        Run(max_usd=1, url=NOWHERE, timeout=0.5).before_model()
    Run(max_usd=1, url=NOWHERE, timeout=0.5, fail_open=True).before_model()
