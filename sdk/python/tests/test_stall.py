from __future__ import annotations

import pytest

from runguard import InvalidInputError, Run, StallDetectedError, StallDetector


def rungs(detector: StallDetector, results: list[str]) -> list[str]:
    return [detector.observe("read_file", {"path": "a"}, result).rung for result in results]


def test_the_third_identical_result_steers_and_the_fourth_stops() -> None:
    detector = StallDetector()
    assert rungs(detector, ["same"] * 4) == ["go_on", "go_on", "steer", "stop"]
    verdict = detector.observe("read_file", {"path": "a"}, "same")
    assert (verdict.rung, verdict.rule, verdict.count) == ("stop", "identical", 5)
    assert "read_file 5 times" in verdict.nudge and "5 times" in verdict.message


def test_another_result_is_progress() -> None:
    assert rungs(StallDetector(), [f"line {number}" for number in range(20)]) == ["go_on"] * 20


def test_what_is_volatile_by_name_or_pattern_is_no_news() -> None:
    results = [{"etag": f"a{number}", "by": f"worker-{number}q", "rows": 3} for number in range(4)]
    assert [StallDetector().observe("get", {}, result).rung for result in results] == ["go_on"] * 4
    detector = StallDetector(volatile=["etag", "worker-*"])
    assert [detector.observe("get", {}, result).rung for result in results] == ["go_on", "go_on", "steer", "stop"]
    run = Run(stall=StallDetector(volatile=["etag", "worker-*"]), repeats=9)
    for result in results:
        run.before_tool("get", {})
        run.after_tool("get", {}, result)
    with pytest.raises(StallDetectedError):
        run.before_model()
    with pytest.raises(InvalidInputError, match="volatile"):
        StallDetector(volatile=["*"])


def test_polling_is_fine_and_a_mutation_is_a_new_experiment() -> None:
    detector = StallDetector("coding", polling=["get_status"])
    assert {detector.observe("get_status", {}, "pending").rung for _ in range(30)} == {"go_on"}
    detector = StallDetector("coding")
    for number in range(20):
        assert detector.observe("write_file", {"path": "a", "text": str(number)}, "ok").rung == "go_on"
        assert detector.observe("run_tests", {}, "1 failed").rung == "go_on"


def test_the_same_error_with_other_arguments() -> None:
    detector = StallDetector()
    verdicts = [detector.observe("query", {"id": number}, error=f"no table 'orders{number}'") for number in range(5)]
    assert [verdict.rung for verdict in verdicts] == ["go_on", "go_on", "steer", "steer", "stop"]
    assert verdicts[-1].rule == "same_error"
    detector = StallDetector()
    errors = [detector.observe("query", {"id": number}, error=KeyError(f"row {number}")).rung for number in range(3)]
    assert errors[-1] == "steer", "exceptions are errors too"


def test_parallel_duplicates_of_one_round_count_once() -> None:
    detector = StallDetector()
    assert {detector.observe("search", {"q": 1}, "same", round=1).rung for _ in range(10)} == {"go_on"}


def test_messages_and_the_user() -> None:
    detector = StallDetector()
    assert [detector.message("Let me think.").rung for _ in range(3)] == ["go_on", "steer", "stop"]
    detector.user_message()
    assert detector.message("Let me think.").rung == "go_on"


def test_runs_are_kept_apart() -> None:
    detector = StallDetector()
    for number in range(50):
        assert detector.observe("search", {}, "same", session_id=f"run-{number}").rung == "go_on"
    assert detector.sessions == 50


@pytest.mark.parametrize("settings", [{"preset": "nobody"}, {"identical_stop": 1}, {"identical": {"halt": 3}}, {"unknown": 1}, {"novelty_window": 65}, {"cycle": 3}])
def test_impossible_settings_are_refused(settings: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidInputError):
        StallDetector(**settings)


@pytest.mark.parametrize("preset", ["chatbot", "coding", "browser", "research"])
def test_presets(preset: str) -> None:
    assert rungs(StallDetector(preset), ["same"] * 9)[-1] == "stop"
    assert rungs(StallDetector(preset, highest="observe"), ["same"] * 9)[-1] == "observe"


def test_in_a_run_the_nudge_comes_back_and_the_next_question_raises() -> None:
    run = Run(repeats=50, stall="coding")
    nudges = []
    for _ in range(4):
        run.before_model()
        run.before_tool("search", {"q": 1})
        nudges.append(run.after_tool("search", {"q": 1}, "nothing found"))
    assert nudges[:2] == [None, None] and nudges[2] is not None and "3 times" in nudges[2]
    for question in (run.before_model, lambda: run.before_tool("other", {})):
        with pytest.raises(StallDetectedError) as caught:
            question()
        assert (caught.value.rule, caught.value.count, caught.value.reason) == ("identical", 4, "stalled_identical")


def test_a_run_that_used_many_tokens_is_long() -> None:
    detector = StallDetector("coding", long_run_tokens=8_000, unmoved={"steer": 0, "block": 0, "stop": 0})

    def check(number: int, tokens: int) -> str:
        detector.observe("edit_file", {"path": "a.py", "text": str(number)}, "ok", tokens=tokens)
        return detector.observe("bash", {"command": "pytest"}, f"failed: {number}", error=True).rung

    assert [check(number, tokens) for number, tokens in enumerate((3_000, 3_000, 1_500, 600))] == ["go_on", "go_on", "steer", "stop"]
