from __future__ import annotations

import http.server
import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

import runguard
from runguard import (
    Alerts,
    BudgetExceededError,
    BudgetTracker,
    CircuitBreaker,
    CircuitOpenError,
    InvalidInputError,
    LoopDetectedError,
    LoopDetector,
    Run,
    TripError,
    flush_alerts,
)


class Receiver:
    """A local HTTP server that keeps what it is sent and answers what it is told."""

    def __init__(self) -> None:
        self.received: List[Tuple[str, Dict[str, Any]]] = []
        self.answers: List[Tuple[int, Dict[str, str]]] = []
        self.delay = 0.0
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                time.sleep(receiver.delay)
                receiver.received.append((self.path, json.loads(body)))
                status, headers = receiver.answers.pop(0) if receiver.answers else (200, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def trip(run: Run) -> None:
    with pytest.raises(TripError):
        while True:
            run.before_tool("search <all>", {"q": "secret"})


def test_every_channel_gets_one_alert_per_run(receiver: Receiver) -> None:
    told: List[TripError] = []
    alerts = Alerts(
        slack_webhook=f"{receiver.url}/slack",
        pagerduty_key="R0UT1NGKEY",
        pagerduty_url=f"{receiver.url}/v2/enqueue",
        webhook=f"{receiver.url}/hook",
        call=told.append,
        source="test-host",
    )
    run = Run("run-1", alerts=alerts)
    trip(run)
    trip(run)
    assert flush_alerts(10)
    bodies = dict(receiver.received)
    assert len(receiver.received) == 3 and len(told) == 1 and isinstance(told[0], LoopDetectedError)

    slack = bodies["/slack"]
    assert slack["text"].startswith("RunGuard stopped a run: loop_detected. 'search &lt;all&gt;'")
    assert [block["type"] for block in slack["blocks"]] == ["header", "section", "section", "context"]
    assert "search &lt;all&gt;" in slack["blocks"][1]["text"]["text"]

    page = bodies["/v2/enqueue"]
    assert (page["routing_key"], page["event_action"], page["dedup_key"]) == ("R0UT1NGKEY", "trigger", "runguard/run-1/loop_detected")
    assert page["payload"]["severity"] in ("critical", "error", "warning", "info")
    assert page["payload"]["source"] == "test-host" and 0 < len(page["payload"]["summary"]) <= 1024

    hook = bodies["/hook"]
    assert (hook["event"], hook["kind"], hook["reason"], hook["run_id"]) == ("trip", "LoopDetectedError", "loop_detected", "run-1")
    assert (hook["pattern"], hook["repeats"], hook["message"]) == ("search <all>", 3, run.message)
    assert "secret" not in json.dumps(receiver.received), "arguments do not leave the process"


CASES = json.loads((Path(__file__).parents[2] / "notices.json").read_text("utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_trip_is_told_as_the_shared_cases_have_it(receiver: Receiver, case: Dict[str, Any]) -> None:
    alerts = Alerts(
        slack_webhook=f"{receiver.url}/slack",
        pagerduty_key="R0UT1NGK3Y",
        pagerduty_url=f"{receiver.url}/pagerduty",
        webhook=f"{receiver.url}/hook",
        source=case["source"],
    )
    alerts.send(getattr(runguard, case["trip"]["kind"])(case["trip"]["message"], **case["trip"]["fields"]))
    assert flush_alerts(10)
    now = dict(receiver.received)["/hook"]["time"]
    bodies = {path: json.loads(json.dumps(body).replace(now, case["facts"]["time"])) for path, body in receiver.received}
    assert bodies == {"/hook": case["facts"], "/slack": case["slack"], "/pagerduty": case["pagerduty"]}


def test_half_a_character_is_told_too(receiver: Receiver) -> None:
    Alerts(slack_webhook=f"{receiver.url}/slack").send(TripError("cut \ud83d here"))
    assert flush_alerts(10) and "cut \\ud83d here" in dict(receiver.received)["/slack"]["text"]


def test_what_somebody_hung_on_an_error_keeps_no_alert_back(receiver: Receiver) -> None:
    error = TripError("too much")
    error.client = object()  # type: ignore[attr-defined]
    error.itself = [error]  # type: ignore[attr-defined]
    Alerts(webhook=f"{receiver.url}/hook").send(error)
    assert flush_alerts(10) and dict(receiver.received)["/hook"]["message"] == "too much"


def test_a_run_that_is_told_more_after_its_trip_says_nothing_more() -> None:
    told: List[TripError] = []
    run = Run(repeats=50, stall="coding", alerts=told.append)
    for _ in range(10):
        run.after_tool("search", {}, "the same")
    assert flush_alerts(10) and run.tripped and len(told) == 1


def test_the_agent_never_waits(receiver: Receiver) -> None:
    receiver.delay = 0.5
    run = Run(alerts={"slack_webhook": f"{receiver.url}/slack", "webhook": f"{receiver.url}/hook"})
    started = time.monotonic()
    trip(run)
    assert time.monotonic() - started < 0.25
    assert flush_alerts(10) and len(receiver.received) == 2


def test_nothing_is_raised_into_the_agent(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: TripError) -> None:
        raise RuntimeError("the pager is broken")

    with caplog.at_level(logging.WARNING, "runguard.alerts"):
        trip(Run(alerts=broken))
        trip(Run(alerts={"webhook": "http://127.0.0.1:9/", "call": broken, "timeout": 0.2}))
        assert flush_alerts(15)
    assert "the pager is broken" in caplog.text and "alert to webhook failed" in caplog.text


def test_a_busy_receiver_is_asked_again_and_a_refusing_one_is_not(receiver: Receiver) -> None:
    receiver.answers = [(429, {"retry-after": "0"}), (503, {"retry-after": "0"}), (200, {})]
    trip(Run(alerts={"webhook": f"{receiver.url}/busy"}))
    assert flush_alerts(10) and len(receiver.received) == 3
    receiver.answers = [(400, {})]
    trip(Run(alerts={"webhook": f"{receiver.url}/no"}))
    assert flush_alerts(10) and len(receiver.received) == 4


def test_a_full_queue_drops_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    alerts = Alerts(call=lambda _: gate.wait(20))
    error = BudgetExceededError("too much", spent=2.0, limit=1.0)
    with caplog.at_level(logging.WARNING, "runguard.alerts"):
        for _ in range(1100):
            alerts.send(error)
    gate.set()
    assert "dropped" in caplog.text and flush_alerts(10)


def test_a_script_that_ends_at_once_still_tells(receiver: Receiver) -> None:
    script = f"""
from runguard import Run
run = Run(alerts={{"webhook": "{receiver.url}/last"}})
while True:
    run.before_tool("search", {{}})
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1 and "LoopDetectedError" in ended.stderr
    assert [path for path, _ in receiver.received] == ["/last"]


@pytest.mark.parametrize("options", [{"slack_webhook": "hooks.slack.com/x"}, {"webhook": 7}, {"call": "x"}])
def test_impossible_channels_are_refused(options: Any) -> None:
    with pytest.raises(InvalidInputError):
        Alerts(**options)


def test_detectors_of_ones_own_tell_people_once() -> None:
    told: List[TripError] = []
    loop = LoopDetector(repeats=2, alerts=told.append)
    assert isinstance(loop, LoopDetector) and type(loop).__name__ == "LoopDetector"
    for session in ("a", "b"):
        loop.record(session_id=session, tool="search")
        for _ in range(3):
            with pytest.raises(LoopDetectedError):
                loop.record(session_id=session, tool="search")
    assert flush_alerts(10) and [type(trip) for trip in told] == [LoopDetectedError] * 2
    loop.record(session_id="a", tool="other")
    loop.record(session_id="a", tool="search")
    with pytest.raises(LoopDetectedError):
        loop.record(session_id="a", tool="search")
    assert flush_alerts(10) and len(told) == 3, "it had passed again"

    told.clear()
    budget = BudgetTracker(max_usd=1.00, alerts={"call": told.append})
    for _ in range(3):
        with pytest.raises(BudgetExceededError):
            budget.record(2.00)
    with pytest.raises(BudgetExceededError):
        budget.record_usage("gpt-4o", 10, 10)
    assert flush_alerts(10) and len(told) == 1

    told.clear()
    breaker = CircuitBreaker("orders", failure_threshold=1, recovery_seconds=60, alerts=Alerts(call=told.append))
    breaker.record(False)
    for _ in range(3):
        with pytest.raises(CircuitOpenError):
            breaker.call(lambda: None)
    assert flush_alerts(10) and [type(trip) for trip in told] == [CircuitOpenError]
    breaker.force_close()
    assert breaker.call(lambda: 7) == 7
    with pytest.raises(InvalidInputError):
        LoopDetector(alerts=7)  # type: ignore[arg-type]


def test_a_part_with_alerts_tells_also_when_a_run_asks_it() -> None:
    told: List[TripError] = []
    run = Run("run-2", loop=LoopDetector(alerts=told.append), budget=BudgetTracker(max_usd=1.00, alerts=told.append))
    trip(run)
    trip(run)
    assert flush_alerts(10) and [told_of.run_id for told_of in told] == ["run-2"]
    told.clear()
    alerts = Alerts(call=told.append)
    run = Run("run-3", budget=BudgetTracker(max_usd=1.00, alerts=alerts), alerts=alerts)
    with pytest.raises(BudgetExceededError):
        run.record_usd(2.00)
    assert flush_alerts(10) and len(told) == 1, "the same target is told once"


def test_a_detector_that_asks_a_service_tells_people_too(url: str) -> None:
    told: List[TripError] = []
    loop = LoopDetector(repeats=2, alerts=told.append, url=url)
    loop.record("alerts-1", "search")
    with pytest.raises(LoopDetectedError):
        loop.record("alerts-1", "search")
    budget = BudgetTracker(max_usd=1.00, session_id="alerts-2", alerts=told.append, url=url)
    with pytest.raises(BudgetExceededError):
        budget.record(2.00)
    assert flush_alerts(10) and [type(trip) for trip in told] == [LoopDetectedError, BudgetExceededError]
