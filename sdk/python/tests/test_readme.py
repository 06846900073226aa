"""Every Python example of the README runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict

import pytest

from runguard import LoopDetectedError

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def execute(example: str, **names: Any) -> Dict[str, Any]:
    exec(compile(example, "README.md", "exec"), names)
    return names


def test_three_lines_around_an_agent() -> None:
    ran = []

    def search(query: str) -> str:
        ran.append(query)
        return "nothing"

    def agent(tools: Any) -> None:
        while True:
            tools[0]("refunds")

    with pytest.raises(LoopDetectedError):
        execute(EXAMPLES[0], search=search, agent=agent)
    assert len(ran) == 2
    assert execute(EXAMPLES[0], search=search, agent=lambda tools: tools[0]("once"))["answer"] == "nothing"


def test_a_run() -> None:
    assert execute(EXAMPLES[1])["nudge"] is None


def test_a_model_call_of_a_loop_of_your_own() -> None:
    run = execute(EXAMPLES[2])["run"]
    assert (run.budget.spent, run.budget.reserved) == (0.000125, 0)


def test_rules_for_tools() -> None:
    run = execute(EXAMPLES[3])["run"]
    for _ in range(9):
        run.before_tool("log", {"line": 1})
        run.before_tool("check_status")


def test_the_detectors(capsys: pytest.CaptureFixture[str]) -> None:
    execute(EXAMPLES[4])
    assert capsys.readouterr().out == "Loop detected: 'kb_lookup::refunds' repeated 3 times.\n"


def test_with_a_service() -> None:
    assert len(EXAMPLES) == 6
    assert execute(EXAMPLES[5])["run"].run_id == "job-7"


def test_the_version_is_that_of_the_package() -> None:
    import runguard

    assert f"runguard_breaker-{runguard.__version__}-cp39-abi3-" in README
