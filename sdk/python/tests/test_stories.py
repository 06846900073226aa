"""The stories that every language's `Run` must tell alike, in this process and over a real service."""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import threading
import uuid
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

import runguard.adapters.anthropic
import runguard.adapters.openai
from runguard import (
    BudgetExceededError,
    BudgetTracker,
    Client,
    InvalidInputError,
    LoopDetectedError,
    Run,
    RunGuardError,
    ServiceError,
    StallDetectedError,
    StallDetector,
    ToolLimitError,
    UnknownModelError,
)
from runguard.adapters._client import Asked, _readable
from runguard.adapters._usage import Tokens, may_be_billed

TOLD = json.loads((pathlib.Path(__file__).parents[2] / "stories.json").read_text())
STORIES = TOLD["stories"]
ROUTES = {**runguard.adapters.openai.routes(), **runguard.adapters.anthropic.routes()}
ERRORS = {
    "loop": LoopDetectedError,
    "stall": StallDetectedError,
    "budget": BudgetExceededError,
    "calls": ToolLimitError,
    "unknown_model": UnknownModelError,
    "service": ServiceError,
    "input": InvalidInputError,
}


class Player:
    def __init__(self, story: Dict[str, Any], **service: Any) -> None:
        budget = BudgetTracker(**story["budget"], **service) if "budget" in story else None
        options = dict(story["run"])
        if isinstance(options.get("stall"), dict):
            options["stall"] = StallDetector(**options["stall"])
        self.run = Run(f"story-{uuid.uuid4()}", budget=budget, **options, **service)
        self.held: Dict[str, Any] = {}

    def step(self, step: Dict[str, Any]) -> Optional[str]:
        run, do = self.run, step["do"]
        if do == "before_tool":
            run.before_tool(step["tool"], step["args"], agent=step.get("agent"))
        elif do == "after_tool":
            return run.after_tool(step["tool"], step["args"], step.get("result"), error=step.get("error"), agent=step.get("agent"))
        elif do == "record_usd":
            run.record_usd(step["usd"])
        elif do == "record_usage":
            run.record_usage(step["model"], step["input_tokens"], step["output_tokens"])
        elif do == "model_call":
            self.held[step["as"]] = run.model_call(step["model"], step["prompt"], max_tokens=step["max_tokens"])
        elif do == "used":
            self.held.pop(step["call"]).used(None, step["input_tokens"], step["output_tokens"])
        elif do in ("before_model", "check", "new_turn", "reset"):
            getattr(run, do)()
        else:
            self.spend(do, step)
        return None

    def spend(self, do: str, step: Dict[str, Any]) -> None:
        budget = self.run.budget
        assert budget is not None
        if do == "reserve":
            self.held[step.get("as", "")] = budget.reserve(step["usd"])
        elif do == "commit":
            self.held.pop(step["reservation"]).commit(step["usd"])
        elif do == "release":
            self.held.pop(step["reservation"]).release()
        elif do == "count":
            budget.record(step["session"], step["step"])
        elif do == "left":
            left = budget.check(step.get("session"), step.get("step"))
            assert left == (float("inf") if step["gives"] is None else step["gives"]), step
        else:
            raise AssertionError(f"there is no step {do!r}")


def play(story: Dict[str, Any], **service: Any) -> None:
    player = Player(story, **service)
    for step in story["steps"]:
        for _ in range(step.get("times", 1)):
            expected = step.get("refused")
            try:
                assert player.step(step) == step.get("nudge"), step
                assert expected is None, f"not refused: {step}"
            except RunGuardError as error:
                assert expected is not None, f"refused: {step}"
                assert type(error) is ERRORS[expected["error"]], step
                seen = {name: getattr(error, name) for name in expected if name != "error"}
                seen.update({name: list(value) for name, value in seen.items() if isinstance(value, tuple)})
                assert seen == {name: value for name, value in expected.items() if name != "error"}, step


@pytest.mark.parametrize("story", [story for story in STORIES if "process" in story["kept_by"]], ids=lambda story: story["name"])
def test_in_this_process(story: Dict[str, Any]) -> None:
    play(story)


@pytest.mark.parametrize("story", [story for story in STORIES if "service" in story["kept_by"]], ids=lambda story: story["name"])
def test_over_a_service(story: Dict[str, Any], url: str) -> None:
    play(story, url=url)


@contextlib.contextmanager
def answering(answers: List[Dict[str, Any]]) -> Iterator[str]:
    """A service that gives these answers, one to each question."""
    left = iter(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are two writes: the second would wait for the first to be confirmed, 40 ms.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answer = next(left)
            text = answer["text"] if "text" in answer else json.dumps(answer["decision"])
            self.send_response(answer["status"])
            if answer["status"] != 204:
                self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("story", [story for story in STORIES if "answers" in story["kept_by"]], ids=lambda story: story["name"])
def test_with_these_answers(story: Dict[str, Any]) -> None:
    with answering(story["answers"]) as url:
        play(story, url=url)


def test_what_comes_back_is_an_answer_or_somebodys_fault(caplog: pytest.LogCaptureFixture) -> None:
    for reply in TOLD["replies"]:
        caplog.clear()
        with answering([reply]) as url:
            client = Client(url)
            try:
                text, away = client.exchange("POST", "/guard/loop", "{}")
                seen = "answer" if away is None else "away"
                assert "says" not in reply or json.loads(text) == reply["says"], reply
            except ServiceError as error:
                assert error.status == reply["status"]
                seen = "misdirected"
            except InvalidInputError:
                seen = "input"
            client.close()
        assert seen == reply["is"], reply
        assert [record.args[-1] for record in caplog.records if isinstance(record.args, tuple)] == reply.get("warns", []), reply


def test_every_language_says_the_same_sentences(url: str) -> None:
    sentences = TOLD["sentences"]
    for budget in (BudgetTracker(max_usd=1), BudgetTracker(max_usd=1, url=url)):
        held = budget.reserve(0.5)
        held.release()
        with pytest.raises(InvalidInputError) as ended:
            held.commit(0.5)
        assert str(ended.value) == sentences["reservation_ended"]
    with pytest.raises(InvalidInputError) as unknown:
        StallDetector("nothing")
    assert str(unknown.value) == sentences["unknown_preset"]
    for detector in (StallDetector(), StallDetector(url=url)):
        assert detector.observe("search", {}, "found").message == sentences["progress"]


def test_a_wrong_address_leaves_no_model_call_under_way() -> None:
    with answering([{"status": 404, "text": "{}"}] * 2) as url:
        run = Run(max_usd=1, url=url)
        for _ in range(2):
            # The second would wait for the first, which never ends.
            with pytest.raises(ServiceError):
                run.model_call("gpt-4o", "hello")


# The events of a stream that bring a report.
EVENTS: Dict[str, Callable[[int, Any], Dict[str, Any]]] = {
    "/chat/completions": lambda number, report: {"model": "m", "choices": [], "usage": report},
    "/responses": lambda number, report: {"type": "response.in_progress", "response": {"model": "m", "usage": report}},
    "/messages": lambda number, report: (
        {"type": "message_delta", "usage": report} if number else {"type": "message_start", "message": {"model": "m", "usage": report}}
    ),
}


@pytest.mark.parametrize("usage", TOLD["usages"], ids=lambda usage: usage["name"])
def test_usage_is_counted_as_the_core_counts_it(usage: Dict[str, Any]) -> None:
    first, *later = usage["reports"]
    route = ROUTES.get(usage["path"])
    tokens: Optional[Tokens]
    if route is None:
        tokens = Tokens.read(usage["path"], first)
    elif later:
        reader = route.reader({})
        for number, report in enumerate(usage["reports"]):
            reader.take(_readable(EVENTS[usage["path"]](number, report)))
        assert reader.is_counted
        tokens = reader.tokens
    else:
        tokens = route.tokens(_readable({"usage": first, "service_tier": usage.get("service_tier")}))
    used = {name.removesuffix("_tokens"): count for name, count in usage["used"].items()}
    assert tokens == Tokens(**{"service_tier": "standard", **used})


@pytest.mark.parametrize("said", TOLD["transcripts"], ids=lambda said: said["name"])
def test_calls_and_results_are_found_in_a_request(said: Dict[str, Any]) -> None:
    route = ROUTES[said["path"]]
    calls, results = route.transcript(said["body"])
    assert [list(call) for call in calls] == said["calls"]
    assert {id_: result.result for id_, result in results.items()} == said["results"]
    if "sent" in said:
        assert route.with_nudges(said["body"], said["nudges"]) == said["sent"]


@pytest.mark.parametrize("asks", TOLD["questions"], ids=lambda asks: asks["name"])
def test_what_a_request_asks_for_is_read(asks: Dict[str, Any]) -> None:
    path = max((path for path in ROUTES if asks["path"].partition("?")[0].endswith(path)), key=len)
    asked = Asked.of(ROUTES[path], asks["body"])
    assert (asked.max_output, asked.choices, list(asked.bounds)) == (asks["max_output"], asks["choices"], asks["bounds"])
    assert asked.unmetered is None if asks["unmetered"] is None else asks["unmetered"] in str(asked.unmetered)
    for run in (Run(max_tokens=1000), Run(), Run(budget=BudgetTracker(max_tokens=1000))):
        assert asked.allowed(run) is asked, "tokens are counted whatever they cost"
    for run in (Run(max_usd=1), Run(budget=BudgetTracker(max_usd=1)), Run(max_tokens=1000, budget=BudgetTracker(max_usd=1))):
        if asked.unmetered is None:
            assert asked.allowed(run) is asked
        else:
            with pytest.raises(InvalidInputError):
                asked.allowed(run)


def test_only_a_request_that_was_sent_may_be_billed() -> None:
    for failure in TOLD["failures"]:
        error: Optional[BaseException] = None
        for name in reversed(failure["errors"]):
            caused, cause = type(name, (Exception,), {})(), error
            caused.__cause__ = cause
            error = caused
        assert error is not None
        assert may_be_billed(error) is failure["may_be_billed"], failure
    assert may_be_billed(KeyboardInterrupt()), "it is broken off here"
