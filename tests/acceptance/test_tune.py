"""`runguard tune`: thresholds and caps for a price, from recorded runs."""

import gzip
import json
import re
import subprocess

import pytest

from runguard_process import binary, clean_environment, run_cli

HOSTILE = "</style><script>alert(1)</script>\x1b[31m\u202e"


def step(args, result=None, tool="sh", tokens=1000, usd=0.001):
    return {"kind": "call", "tool": tool, "args": {"c": str(args)}, "args_hash": f"{args:x}", "result": str(result),
            "result_hash": f"{args if result is None else result:x}", "result_len": 900, "error": False,
            "tokens_in": tokens, "tokens_out": 0, "cost_usd": usd}


def run(number, success, steps, **more):
    return {"run_id": f"run-{number}", "source": "lab", "task": f"task-{number}", "model": "m", "agent": "a",
            "success": success, "labels": {}, "steps": steps, **more}


def good(number, repeats=1):
    return run(number, True, [step(at) for at in range(8)] + [step(99)] * repeats)


def failed(number):
    return run(number, False, [step(at) for at in range(4)] + [step(99)] * 12)


def write(path, runs):
    path.write_text("".join(json.dumps(one) + "\n" for one in runs))
    return path


@pytest.fixture
def traces(tmp_path):
    """A thousand good runs of which 3 % repeat a call four times, and failed ones that repeat it twelve times."""
    runs = [good(n, repeats=4 if n < 30 else 2) for n in range(1000)] + [failed(n) for n in range(1000, 1400)]
    return write(tmp_path / "runs.jsonl", runs)


def tuned(*arguments, **more):
    shown = run_cli("tune", *arguments, "--json", **more)
    assert shown.returncode == 0, shown
    return json.loads(shown.stdout)


def test_a_price_decides_what_is_chosen(traces):
    cautious = tuned(traces, "--max-false-stops", "1%")
    assert cautious["advice"]["kind"] == "use" and "recommended" in cautious["verdict"]
    assert cautious["chosen"]["settings"]["identical"]["stop"] == 5, "three and four would stop good runs"
    assert cautious["chosen"]["held_out"]["false_stops"] == 0
    assert cautious["chosen"]["held_out"]["false_stop_rate"]["high"] <= 0.01
    bold = tuned(traces, "--max-false-stops", "8%")
    assert bold["chosen"]["settings"]["identical"]["stop"] == 3
    assert bold["chosen"]["measured"]["false_stops"] == 30
    assert bold["chosen"]["measured"]["saved"]["steps"] > cautious["chosen"]["measured"]["saved"]["steps"]
    stops = [row["measured"]["false_stops"] for row in cautious["front"]]
    saved = [row["measured"]["saved"]["steps"] for row in cautious["front"]]
    assert stops == sorted(set(stops)) and saved == sorted(set(saved)), "the front goes up"


def test_it_prints_a_table_a_plot_and_the_grid(traces):
    shown = run_cli("tune", traces)
    assert shown.returncode == 0, shown
    assert "1,400 runs" in shown.stdout and "1,000 succeeded, 400 failed" in shown.stdout
    assert re.search(r"combinations: identical 3, 4, 5, 6, 8, off", shown.stdout), "the grid is stated"
    heading = next(line for line in shown.stdout.splitlines() if "good runs stopped" in line and "identical" in line)
    assert "same_result" in heading and "long_run" in heading, "a column for each rule"
    assert "recommended: on tasks it was not chosen on" in shown.stdout
    assert re.search("[\u2801-\u28ff]|◆", shown.stdout), "a plot"
    assert "\x1b[" not in shown.stdout, "colour only on a terminal"


def test_the_settings_are_taken_by_the_service_and_by_the_agent(traces, tmp_path):
    target = tmp_path / "runguard.toml"
    assert run_cli("tune", traces, "--out", target).returncode == 0
    text = target.read_text()
    assert "of 1000 successful runs" in text and "0.00 % [0.00–0.38]" in text, "the evidence"
    checked = run_cli("settings", "check", target)
    assert checked.returncode == 0, checked
    shown = json.loads(run_cli("settings", "show", "--config", target, "--json").stdout)
    values = {row["key"]: row["value"] for row in shown}
    assert values["guards.stall.identical.stop"] == 5
    assert values["guards.budget.max_usd"] == pytest.approx(0.018)
    again = run_cli("tune", traces, "--out", target)
    assert again.returncode == 2 and "--force" in again.stderr, "settings are not written over unasked"
    explained = json.loads(run_cli("explain", f"{traces}:1400", "--guards", "stall", "--settings", target, "--json").stdout)
    assert explained["stopped_after"] == 9, "four that are new, then five of the same"

    agent = tmp_path / "agent.toml"
    assert run_cli("tune", traces, "--out", agent, "--for", "agent").returncode == 0
    explained = json.loads(run_cli("explain", f"{traces}:1400", "--guards", "stall", "--settings", agent, "--json").stdout)
    assert explained["stopped_after"] == 9


def test_too_few_runs_are_refused_with_how_many_are_missing(tmp_path):
    few = write(tmp_path / "few.jsonl", [good(n) for n in range(60)] + [failed(n) for n in range(60, 90)])
    result = tuned(few)
    assert result["advice"]["kind"] == "too_few_runs" and result["advice"]["more"] > 300
    target = tmp_path / "few.toml"
    assert run_cli("tune", few, "--out", target).returncode == 0
    text = target.read_text()
    assert '\n[guards.stall]\nmode = "observe"\n' in text and "more successful runs" in text and "\n[guards.budget]" in text
    assert run_cli("settings", "check", target).returncode == 0
    tiny = write(tmp_path / "tiny.jsonl", [good(1), failed(2)])
    refused = run_cli("tune", tiny, "--out", tmp_path / "tiny.toml")
    assert refused.returncode == 1 and "nothing to recommend" in refused.stderr
    assert not (tmp_path / "tiny.toml").exists()


def test_without_knowing_success_there_are_caps_and_trip_rates_only(traces, tmp_path):
    runs = [{**json.loads(line), "success": None} for line in traces.read_text().splitlines()]
    unknown = write(tmp_path / "unknown.jsonl", runs)
    result = tuned(unknown)
    assert result["advice"]["kind"] == "success_unknown" and result["chosen"] is None and result["front"] == []
    trips = {(rule, json.dumps(part)): measured for rule, part, measured in result["trips"]}
    assert trips["identical", '{"stop": 5}']["unknown_stopped"] == 400
    assert all(not cap["of_successful"] and cap["cap"] for cap in result["caps"])
    shown = run_cli("tune", unknown)
    assert "of no run it is known whether it succeeded" in shown.stdout


def test_caps_follow_the_users_own_percentiles(tmp_path):
    runs = [run(n, True, [step(at, tokens=n, usd=0.0) for at in range(10)]) for n in range(1, 201)]
    traces = write(tmp_path / "runs.jsonl", runs + [failed(900)])
    caps = {cap["amount"]: cap for cap in tuned(traces, "--cap-percentile", "95%", "--cap-factor", "2")["caps"]}
    assert caps["steps"]["cap"] == 20
    assert caps["tokens"]["cap"] == 3800, "p95 of 10 × (1…200) is 1900"
    assert "dollars" not in caps or caps["dollars"]["runs"] == 0
    assert "minutes" not in caps


def test_broken_lines_are_told_and_not_swallowed(traces, tmp_path):
    with traces.open("a") as file:
        file.write("{\nnot json\n")
    shown = run_cli("tune", traces)
    assert shown.returncode == 0
    assert f"{traces}:1401:" in shown.stderr and f"{traces}:1402:" in shown.stderr
    strict = run_cli("tune", traces, "--strict")
    assert strict.returncode == 1 and "2 records could not be read" in strict.stderr
    empty = write(tmp_path / "empty.jsonl", [])
    nothing = run_cli("tune", empty)
    assert nothing.returncode == 2 and "no run could be read" in nothing.stderr
    assert run_cli("tune", tmp_path / "missing.jsonl").returncode == 2


@pytest.mark.parametrize("arguments", [
    ["--max-false-stops", "0"], ["--max-false-stops", "150%"], ["--grid", "identical"], ["--grid", "sameness=3"],
    ["--grid", "identical=1"], ["--preset", "robot"], ["--format", "papyrus"], ["--cap-factor", "0.1"], [],
], ids=str)
def test_wrong_usage(arguments, traces):
    shown = run_cli("tune", *([traces] if arguments else []), *arguments)
    assert shown.returncode == 2, shown
    assert shown.stderr and "panicked" not in shown.stderr


def test_a_grid_of_ones_own(traces):
    result = tuned(traces, *(x for rule in ("cycle", "same_error", "messages", "novelty") for x in ("--grid", f"{rule}=off")),
                   "--grid", "identical=3,7,off")
    # Each of them with what is long here, and without.
    assert result["candidates"] == 6 and result["chosen"]["settings"]["identical"]["stop"] == 7


def test_the_page_is_self_contained_and_harmless(tmp_path):
    def hostile(one):
        steps = [{**s, "tool": HOSTILE, "args": {"c": HOSTILE}, "result": HOSTILE} for s in one["steps"]]
        return {**one, "run_id": HOSTILE, "source": HOSTILE, "model": HOSTILE, "agent": HOSTILE, "steps": steps}
    runs = [hostile(good(n)) for n in range(900)] + [hostile(failed(n)) for n in range(900, 1200)]
    traces = write(tmp_path / "runs.jsonl", runs)
    page = tmp_path / "tuned.html"
    shown = run_cli("tune", traces, "--html", page)
    assert shown.returncode == 0, shown
    assert "\x1b" not in shown.stdout and "\u202e" not in shown.stdout
    text = page.read_text()
    assert "<script" not in text and "\u202e" not in text and text.count("</style>") == 1
    assert not re.search(r"(src|href)=|url\(|https?://|@import", text)
    assert "<svg" in text and "<title" in text and 'scope="col"' in text and "prefers-color-scheme:dark" in text
    assert "&lt;script&gt;" in text, "the example runs are there, as text"
    assert len(text) < 400_000


def test_packed_files_and_folders(traces, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    lines = traces.read_text().splitlines(keepends=True)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress("".join(lines[:700]).encode()))
    (folder / "b.jsonl").write_text("".join(lines[700:]))
    result = tuned(folder)
    assert result["runs"] == 1400 and result["chosen"]["settings"]["identical"]["stop"] == 5


def test_a_closed_output_ends_it_quietly(traces):
    process = subprocess.Popen([str(binary()), "tune", str(traces)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=clean_environment())
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=60) == 0 and "panicked" not in errors
