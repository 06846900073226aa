"""Rules for single tools, and polls."""

from __future__ import annotations

import itertools
from typing import Any, Dict

import pytest

from runguard import InvalidInputError, LoopDetectedError, Run, ToolLimitError, ToolRule, exempt, ignore, limit, polling


def test_a_poll_whose_result_changes_is_no_loop() -> None:
    run = Run()
    progress = itertools.count()
    status = run.tool(lambda job: {"job": job, "done": next(progress)}, name="status")
    for _ in range(30):
        status("a")
    stuck = run.tool(lambda job: {"job": job, "done": 7}, name="stuck")
    stuck("a")
    stuck("a")
    with pytest.raises(LoopDetectedError):
        stuck("a")


def test_rules_by_tool() -> None:
    run = Run(tools={"log": exempt, "status": polling(5), "bash": ignore("description"), "deploy": limit(1)})
    for _ in range(9):
        run.before_tool("log", {"line": "x"})
    for _ in range(5):
        run.before_tool("status", {"job": 1})
        run.after_tool("status", {"job": 1}, "pending")
    with pytest.raises(LoopDetectedError, match="gave the same 5 times"):
        run.before_tool("status", {"job": 1})

    run = Run(tools={"bash": ignore("description"), "deploy": limit(1)})
    run.before_tool("deploy", {"to": "a"})
    with pytest.raises(ToolLimitError, match="its 1 calls of 'deploy'"):
        run.before_tool("deploy", {"to": "b"})

    run = Run(tools={"bash": ignore("description") | limit(9)})
    for words in ("list", "look"):
        run.before_tool("bash", {"command": "ls", "description": words})
    with pytest.raises(LoopDetectedError):
        run.before_tool("bash", {"command": "ls", "description": "see"})


@pytest.mark.parametrize("tools", [{"a": "polling"}, {"a": None}, {3: exempt}])
def test_what_is_no_rule_is_told(tools: Dict[Any, Any]) -> None:
    with pytest.raises(InvalidInputError, match="exempt, polling"):
        Run(tools=tools)


def test_rules_are_checked_where_they_are_written() -> None:
    for wrong in (lambda: polling(0), lambda: limit(True), lambda: ignore(), lambda: ignore("")):
        with pytest.raises(InvalidInputError):
            wrong()
    assert Run(tools={"a": polling}).trip is None, "without brackets it says enough"
    assert polling(3) | limit(2) == ToolRule(polling=3, max_calls=2)
