"""`runguard explain`: one recorded run, step by step."""

import json
import re

import pytest

from runguard_process import run_cli
from test_tune import HOSTILE, run, step, write


def failing(args):
    return {**step(args, result=args), "error": True, "result": f"no such column: 'c{args}'"}


def said(text, answered=False):
    answer = {"result": "yes", "result_hash": "1", "result_len": 3} if answered else {"result": None, "result_hash": None, "result_len": None}
    return {"kind": "message", "tool": "__message__", "args": {"text": text}, "args_hash": text, "error": None,
            "tokens_in": 10, "tokens_out": 1, "cost_usd": 0.0, **answer}


@pytest.fixture
def traces(tmp_path):
    return write(tmp_path / "runs.jsonl", [
        run("steady", True, [step(at) for at in range(12)]),
        run("stuck", False, [step(at) for at in range(10)] + [step(99)] * 7),
        run("errors", False, [failing(at) for at in range(8)]),
        run("talk", None, [said("abc")] * 4),
    ])


def explained(*arguments):
    shown = run_cli("explain", *arguments, "--guards", "stall", "--json")
    assert shown.returncode == 0, shown
    return json.loads(shown.stdout)


def test_a_run_is_named_by_line_by_id_or_by_its_file(traces):
    by_line = explained(f"{traces}:2")
    assert by_line["id"] == "run-stuck" and by_line["line"] == 2
    assert explained(f"{traces}#run-stuck") == by_line
    assert explained("run-stuck", traces) == by_line
    first = run_cli("explain", traces)
    assert first.returncode == 0 and "run-steady" in first.stdout and "other runs as well" in first.stderr
    for missing in (["run-nobody", traces], [f"{traces}:77"], [f"{traces}#x"], ["no-such-file.jsonl"]):
        shown = run_cli("explain", *missing)
        assert shown.returncode == 3 and "panicked" not in shown.stderr, shown


def test_counters_verdicts_and_savings(traces):
    run = explained(f"{traces}#run-stuck")
    steps = run["steps"]
    assert [s["news"] for s in steps[:13]] == ["new"] * 11 + ["known"] * 2
    assert [s["counters"]["identical"] for s in steps[10:14]] == [1, 2, 3, 4]
    assert [s["rung"] for s in steps[10:14]] == ["go_on", "go_on", "steer", "stop"]
    assert steps[13]["rule"] == "identical" and steps[13]["why"] == "the same call gave the same result 4 times in a row"
    assert "3 times with the same arguments" in steps[12]["nudge"]
    assert run["stopped_after"] == 14 and run["after"] == {"steps": 3, "tokens": 3000, "dollars": pytest.approx(0.003)}
    assert re.fullmatch("[0-9a-f]{16}", steps[0]["args"])
    errors = explained(f"{traces}#run-errors")
    assert [s["counters"]["same_error"] for s in errors["steps"][:5]] == [1, 2, 3, 4, 5]
    assert errors["stopped_after"] == 5 and errors["steps"][4]["rule"] == "same_error"
    talk = explained(f"{traces}#run-talk")
    assert talk["stopped_after"] == 3 and talk["steps"][2]["rule"] == "messages"


def test_the_timeline_folds_what_is_boring(traces):
    folded = run_cli("explain", f"{traces}#run-stuck", "--guards", "stall")
    assert folded.returncode == 0, folded
    assert "9 steps, all with something new" in folded.stdout and "3 steps that would not have been made" in folded.stdout
    assert "▲ steer: the same call gave the same result 3 times in a row" in folded.stdout and "■ stop: " in folded.stdout
    assert "Stopped after step 14 by stall.identical: saves 3 of 17 steps, 3000 tokens, $0.0030." in folded.stdout
    unfolded = run_cli("explain", f"{traces}#run-stuck", "--guards", "stall", "--all")
    rows = re.findall(r"^ +(\d+) ", unfolded.stdout, re.M)
    assert rows == [str(n) for n in range(1, 18)], "every step, once"
    assert "\x1b[" not in unfolded.stdout
    assert "the run makes progress" in run_cli("explain", f"{traces}#run-steady").stdout.lower()


def test_thresholds_of_ones_own(traces, tmp_path):
    settings = tmp_path / "runguard.toml"
    settings.write_text("[guards.stall]\nidentical = { steer = 2, block = 0, stop = 3 }\n")
    assert explained(f"{traces}#run-stuck", "--settings", settings)["stopped_after"] == 13
    assert explained(f"{traces}#run-stuck", "--preset", "chatbot")["stopped_after"] == 13
    settings.write_text("[guards.stall]\nidentical = 3\n")
    refused = run_cli("explain", f"{traces}#run-stuck", "--settings", settings)
    assert refused.returncode == 2 and "guards.stall.identical" in refused.stderr


def test_a_person_who_answers_starts_it_anew(tmp_path):
    traces = write(tmp_path / "runs.jsonl", [run("chat", True, [step(1), step(1), said("hm", answered=True), step(1), step(1)])])
    steps = explained(traces, "--preset", "chatbot")["steps"]
    assert steps[2]["starts_anew"] and steps[3]["counters"]["identical"] == 1


def test_a_hostile_run_steers_neither_terminal_nor_page(tmp_path):
    steps = [{**step(1), "tool": HOSTILE, "args": {"c": HOSTILE}, "result": HOSTILE} for _ in range(6)]
    hostile = {**run("x", True, steps), "run_id": HOSTILE, "source": HOSTILE, "task": HOSTILE, "model": HOSTILE, "agent": HOSTILE}
    traces, page = write(tmp_path / "runs.jsonl", [hostile]), tmp_path / "run.html"
    shown = run_cli("explain", traces, "--guards", "stall", "--all", "--html", page)
    assert shown.returncode == 0, shown
    assert "\x1b" not in shown.stdout and "\u202e" not in shown.stdout
    text = page.read_text()
    assert "<script" not in text and "\u202e" not in text and "\x1b" not in text and text.count("</style>") == 1
    assert not re.search(r"(src|href)=|url\(|https?://|@import", text)
    assert "a false stop that loses 2 of 6 steps" in text
    assert run_cli("explain", traces, "--guards", "stall", "--html", "-").stdout == text


def test_the_step_and_the_rule_are_those_that_replay_counts(traces):
    ended = json.loads(run_cli("replay", traces, "--json").stdout)["rules"]
    counted = {(example["id"], example["step"], rule["rule"]) for rule in ended for example in rule["examples"]}
    for name, step, rule in counted:
        shown = json.loads(run_cli("explain", name, traces, "--json").stdout)
        assert (shown["stopped_after"], shown["stopped_by"]) == (step, rule), name
    assert counted and any(rule.startswith("loop") for _, _, rule in counted), counted
