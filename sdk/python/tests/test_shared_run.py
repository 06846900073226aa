"""One run in several processes: a service keeps its budget and the history of its calls under its id."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any, Iterator

import pytest
from real_service import service

from runguard import LoopDetectedError, Run


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with service(tmp_path_factory.mktemp("shared")) as address:
        yield address


def process(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def said(running: subprocess.Popen[str]) -> Any:
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    return json.loads(out)


SPEND = """
import json, sys
from runguard import Run, TripError
run, spent = Run(sys.argv[2], max_usd=1, url=sys.argv[1]), 0.0
try:
    for _ in range(20):
        with run.model_call("gpt-4o", "x" * 300, max_tokens=10_000) as call:
            call.used("gpt-4o", 0, 5_000)
            spent += 0.05
except TripError:
    pass
print(json.dumps(spent))
"""


def test_two_processes_spend_a_dollar_together(url: str) -> None:
    running = [process(SPEND, url, "job-7") for _ in range(2)]
    assert sum(said(one) for one in running) == pytest.approx(1.0)
    run = Run("job-7", max_usd=1, url=url)
    assert run.budget is not None and run.budget.spent == pytest.approx(1.0)


LOOP = """
import json, sys
from runguard import Run, TripError
run, calls = Run(sys.argv[2], repeats=3, url=sys.argv[1]), 0
try:
    for _ in range(int(sys.argv[3])):
        run.before_tool("search", {"query": "rust"})
        calls += 1
except TripError as trip:
    calls = trip.reason
print(json.dumps(calls))
"""


def test_a_loop_over_processes_is_one(url: str) -> None:
    assert said(process(LOOP, url, "job-8", "2")) == 2
    assert said(process(LOOP, url, "job-8", "2")) == "loop_detected"
    # Whoever comes later is refused at once.
    with pytest.raises(LoopDetectedError):
        Run("job-8", repeats=3, url=url).before_tool("search", {"query": "rust"})


def test_runs_without_an_id_share_nothing(url: str) -> None:
    for _ in range(3):
        Run(repeats=3, url=url).before_tool("search", {"query": "rust"})
