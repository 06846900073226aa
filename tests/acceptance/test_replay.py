"""`runguard replay`: recorded runs through guards, budgets and the stall detector."""

import gzip
import json
import os
import pty
import signal
import sqlite3
import subprocess
import time

import pytest

from catalogue import HANDOFF
from runguard_process import binary, clean_environment, run_cli


def step(args="1", result="x", **more):
    return {"kind": "call", "tool": "sh", "args": {"cmd": args}, "args_hash": args, "result": result, "result_hash": result,
            "result_len": len(result), "error": False, "tokens_in": 8, "tokens_out": 2, "cost_usd": 0.5, **more}


def run(run_id, steps, success, source="bench", model="m1", task="t"):
    return {"run_id": run_id, "source": source, "task": task, "model": model, "agent": "a", "success": success, "labels": {},
            "steps": steps}


def varied(count):
    return [step(str(number), f"r{number}") for number in range(count)]


RUNS = [
    run("stuck", [step()] * 8, False, task="a"),
    run("good", varied(6), True, model="m2", task="b"),
    run("unlucky", [step()] * 4 + varied(2), True, task="c"),
    run("who-knows", [step()] * 5, None, source="other", task="d"),
]


def write(path, runs=RUNS):
    text = "".join(json.dumps(run) + "\n" for run in runs)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.fixture
def traces(tmp_path):
    return write(tmp_path / "runs.jsonl")


def replay(*arguments, code=0):
    done = run_cli("replay", *arguments, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_what_would_have_happened(traces):
    report = replay(traces, "--guards", "stall")
    assert (report["version"], report["finished"], report["runs"], report["steps"], report["broken_lines"]) == (1, True, 4, 25, 0)
    sums = report["total"]["sums"]
    assert (sums["successful"], sums["false_stops"], sums["lost_steps"], sums["lost_tokens"], sums["lost_dollars"]) == (2, 1, 2, 20, 1.0)
    assert (sums["failed"], sums["stopped"], sums["saved_steps"], sums["saved_tokens"], sums["saved_dollars"]) == (1, 1, 4, 40, 2.0)
    assert (sums["unknown"], sums["unknown_stopped"]) == (1, 1)
    assert report["total"]["false_stops"]["value"] == 0.5
    assert 0 < report["total"]["false_stops"]["low"] < 0.5 < report["total"]["false_stops"]["high"] < 1
    [rule] = report["rules"]
    assert (rule["rule"], rule["successful"], rule["failed"], rule["unknown"]) == ("stall.identical", 1, 1, 1)
    assert rule["at"] == {"median": 4, "p90": 4, "largest": 4}
    example = {name: rule["examples"][0][name] for name in ("id", "file", "line", "step", "steps", "success")}
    assert example == {"id": "unlucky", "file": str(traces), "line": 3, "step": 4, "steps": 6, "success": True}, "a false stop first"
    assert report["nudges"][0]["rule"] == "stall.steer" and report["nudges"][0]["failed"] == {"runs": 1, "steps": 1, "recovered": 0}
    assert report["presets"] == [{"name": "coding", "runs": 4}]
    assert any("no word on success" in note for note in report["notes"])


def test_a_person_reads_tables(traces):
    done = run_cli("replay", traces, "--against", "openhands,roo", "--max-steps", "5")
    assert done.returncode == 0, done.stderr
    for says in ("4 runs, 25 steps, $12.50", "all together", "stall alone", "loop alone", "budget.steps alone", "OpenHands", "Roo",
                 "loop.cycle", f"{traces}:1 stuck", "3 of 8", "By source", "runguard explain"):
        assert says in done.stdout, says
    assert done.stderr == "", "no bar on a pipe"


def claude_code(folder, session, commands, then=()):
    """A session as Claude Code writes it: what was asked, what was done, and what was asked then."""
    lines = [{"type": "summary", "summary": "Fix it", "leafUuid": "x"}]

    def line(kind, number, **message):
        lines.append({"type": kind, "sessionId": session, "version": "2.0.31", "isSidechain": False, "uuid": f"u{len(lines)}",
                      "timestamp": f"2026-03-02T09:{number // 60:02}:{number % 60:02}.000Z", "message": {"role": kind, **message}})

    number = 0
    for asked, done in (("Fix the failing test", commands), ("Now write the changelog", then)):
        if done:
            line("user", number, content=asked)
        for command in done:
            number += 1
            usage = {"input_tokens": 6, "cache_read_input_tokens": 40000, "cache_creation_input_tokens": 900, "output_tokens": 150}
            line("assistant", number, id=f"msg_{number}", model="claude-sonnet-4-5-20250929", stop_reason="tool_use", usage=usage,
                 content=[{"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": command}}])
            line("user", number, content=[{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"gave {command}", "is_error": False}])
    file = folder / f"{session}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_stranger_sees_what_went_in_circles_without_a_label(tmp_path):
    projects = tmp_path / "projects"
    steady = [f"ls {number}" for number in range(6)]
    stuck = claude_code(projects / "-home-me-src-shop", "5e55-1", ["ls", *["make check"] * 8], then=steady)
    claude_code(projects / "-home-me-src-blog", "5e55-2", steady)
    (projects / "-home-me-src-blog/memory").mkdir()
    (projects / "-home-me-src-blog/memory/MEMORY.md").write_text("# notes")
    done = run_cli("replay", projects, "--guards", "stall", "--by", "folder")
    assert done.returncode == 0, done.stderr
    for says in ("1 of 2 runs would have been ended. 4 steps,", "1 run went in circles for a while: 6 steps,", "of all dollars",
                 "the same call gave the same result again and again", f"{stuck}:2", "Fix the failing test", "Bash", "6 of 15", "-home-me-src-shop"):
        assert says in done.stdout, (says, done.stdout)
    for hides in ("good runs", "failed runs", "0 (0)"):
        assert hides not in done.stdout, hides
    report = replay(projects, "--guards", "stall")
    circles = report["circles"]
    assert (circles["runs"], circles["steps"], circles["most"][0]["first"], circles["most"][0]["tool"]) == (1, 6, 4, "Bash")
    assert 0 < circles["dollars"] < report["dollars"] and circles["rules"][0]["rule"] == "stall.identical"
    sums = report["total"]["sums"]
    assert sums["unknown_after_steps"] == 4, "until the person spoke; what was asked then is not saved"
    explained = json.loads(run_cli("explain", f"{stuck}:2", "--guards", "stall", "--json").stdout)
    assert (explained["stopped_after"], explained["after"]["steps"], len(explained["steps"])) == (5, 4, 15)


def test_each_guard_is_known_alone_and_the_first_is_credited(traces):
    report = replay(traces, "--max-steps", "5", "--max-tokens", "70", "--max-usd", "1.5", "--max-minutes", "1")
    assert [alone["name"] for alone in report["alone"]] == [
        "stall", "loop", "budget.steps", "budget.tokens", "budget.dollars", "budget.minutes"]
    assert [alone["figures"]["sums"]["saved_steps"] for alone in report["alone"]] == [4, 5, 2, 0, 4, 0]
    assert {rule["rule"] for rule in report["rules"]} == {"loop.cycle", "budget.dollars"}
    assert any("no limit of time" in note for note in report["notes"])


@pytest.mark.parametrize(("limit", "ended_at"), [
    (["--max-steps", "5"], 6), (["--max-tokens", "50"], 6), (["--max-tokens", "49"], 5), (["--max-usd", "2.5"], 6), (["--max-usd", "2.49"], 5),
    (["--max-steps", "8"], None), (["--max-usd", "4"], None),
])
def test_a_budget_ends_a_run_at_the_step_that_passes_it(tmp_path, limit, ended_at):
    file = write(tmp_path / "one.jsonl", [run("r", varied(8), False)])
    rules = replay(file, *limit)["rules"]
    assert [rule["at"]["median"] for rule in rules] == ([ended_at] if ended_at else [])


def test_thresholds_by_flag_and_by_file(traces, tmp_path):
    def saved(*arguments):
        return replay(traces, "--guards", "stall", *arguments)["total"]["sums"]["saved_steps"]

    quiet = ["--set", "stall.novelty_window=0"]
    assert saved(*quiet, "--set", "stall.identical.stop=6") == 2
    assert saved(*quiet, "--set", "guards.stall.identical.stop=6") == 2, "as it stands in the file"
    settings = tmp_path / "changed.toml"
    settings.write_text("[guards.stall]\nidentical.stop = 7\nnovelty_window = 0\n")
    assert saved("--settings", settings) == 1
    assert saved("--settings", settings, "--set", "stall.identical.stop=6") == 2, "a flag wins"
    settings.write_text("[guards.budget]\nmax_usd = 1\n[guards.stall]\nmode = \"off\"\n")
    report = replay(traces, "--settings", settings)
    assert {rule["rule"] for rule in report["rules"]} == {"loop.cycle", "budget.dollars"}


@pytest.mark.parametrize(("arguments", "says"), [
    (["--set", "stall.identicl.stop=5"], "did you mean `identical`?"),
    (["--set", "stal.identical.stop=5"], "did you mean `stall`?"),
    (["--set", "stall.identical.stop=1"], "from 2 to 1000"),
    (["--set", "stall=5"], "names no setting"),
    (["--set", "stall.identical.stop"], "must be KEY=VALUE"),
    (["--guards", "stal"], "did you mean `stall`?"),
    (["--against", "openhand"], "did you mean `openhands`?"),
    (["--by", "modell"], "did you mean `model`?"),
    (["--preset", "codin"], "did you mean `coding`?"),
    (["--format", "trace"], "did you mean `traces`?"),
    (["--max-usd=-1"], "max-usd"),
    (["--max-minutes", "soon"], "number of minutes"),
    (["--threads", "0"], "threads"),
    (["--settings", "missing.toml"], "missing.toml"),
], ids=str)
def test_mistakes_are_named(traces, arguments, says):
    done = run_cli("replay", traces, *arguments)
    assert done.returncode == 2 and says in done.stderr, done.stderr


def test_a_mistake_in_a_settings_file_is_told_with_its_line(traces, tmp_path):
    settings = tmp_path / "changed.toml"
    settings.write_text("\n[guards.stall]\nidenticl.stop = 7\n")
    done = run_cli("replay", traces, "--settings", settings)
    assert done.returncode == 2 and "changed.toml:3" in done.stderr and "did you mean `identical`?" in done.stderr


def test_presets_by_the_calls_of_a_run_and_by_name(tmp_path):
    chat = [step("hello", "my order", kind="message", tool="__message__")] + [{**step(), "tool": "get_order", "args": {"order_id": "#W1"}}] * 9
    # One search box, another wording each time, and a page that was never there before.
    typed = [{"element": "Search", "ref": "e3", "text": f"wording {number}"} for number in range(12)]
    web = [{**step(args["text"], f"page {args['text']}", tool="browser_type"), "args": args} for args in typed]
    three = [run("chat", chat, False, source="one"), run("work", [step()] * 9, False, source="mine"), run("web", web, False, source="one")]
    file = write(tmp_path / "runs.jsonl", three)

    def used(*arguments):
        report = replay(file, "--guards", "stall", *arguments)
        return {preset["name"]: preset["runs"] for preset in report["presets"]}, report["total"]["sums"]["saved_steps"]

    assert used() == ({"chatbot": 1, "coding": 1, "browser": 1}, 6 + 5 + 3)
    assert used("--preset", "browser") == ({"browser": 3}, 4 + 4 + 3)
    assert used("--preset", "auto", "--preset", "mine=research") == ({"chatbot": 1, "browser": 1, "research": 1}, 6 + 6 + 3)


def test_figures_by_group(traces):
    report = replay(traces, "--by", "source,model,task")
    assert [grouping["by"] for grouping in report["groups"]] == ["source", "model", "task"]
    assert [group["name"] for group in report["groups"][0]["groups"]] == ["bench", "other"]
    assert [group["name"] for group in report["groups"][2]["groups"]] == ["a", "b", "c", "d"]
    by_model = {group["name"]: group["figures"]["sums"]["successful"] for group in report["groups"][1]["groups"]}
    assert by_model == {"m1": 1, "m2": 1}


def test_repeated_tool_calls_are_skipped_where_that_is_asked_for(tmp_path):
    search = [step(str(number), tool="search_knowledge") | {"args": {"query": query}}
              for number, query in enumerate(["fix bug", "fix the bug", "trains to Oslo"])]
    file = write(tmp_path / "runs.jsonl", [run("r", search, False)])
    assert replay(file)["nudges"] == []
    report = replay(file, "--guards", "tool_call")
    assert [nudge["rule"] for nudge in report["nudges"]] == ["tool_call.similar_query"]
    assert report["rules"] == [] and report["alone"] == []


def test_broken_lines_are_told_and_never_swallowed(traces):
    lines = traces.read_text().splitlines()
    traces.write_text("\n".join([lines[0], "{not json", *(['{"run_id": "half"}'] * 30), lines[1]]) + "\n")
    done = run_cli("replay", traces, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["runs"], report["broken_lines"], len(report["broken"])) == (0, 2, 31, 20)
    assert report["broken"][0]["line"] == 2 and f"{traces}:2:" in done.stderr and "and 11 more" in done.stderr
    assert report["files"] == [{"file": str(traces), "runs": 2, "steps": 14, "broken_lines": 31}]
    assert run_cli("replay", traces, "--strict").returncode == 1
    assert run_cli("replay", traces, "--strict", "--json").returncode == 1


def test_what_cannot_be_read_at_all_is_an_error(tmp_path):
    missing = run_cli("replay", tmp_path / "none.jsonl")
    assert missing.returncode == 2 and "none.jsonl" in missing.stderr
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "nothing could be read" in run_cli("replay", empty).stderr
    empty.write_text("hello\n")
    done = run_cli("replay", empty)
    assert done.returncode == 2 and "nothing could be read" in done.stderr
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "nothing in this folder" in run_cli("replay", folder).stderr
    assert run_cli("replay").returncode == 2


def test_folders_packed_files_and_threads_give_the_same(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    write(folder / "a.jsonl.gz", RUNS * 50)
    write(folder / "b.jsonl", RUNS * 50)
    packed = tmp_path / "runs.packed"
    limits = ["--max-steps", "7", "--by", "source,task", "--against", "openhands,gemini-cli,roo,langgraph"]
    whole = replay(folder, *limits, "--pack", packed)
    assert whole["runs"] == 400 and [file["runs"] for file in whole["files"]] == [200, 200]
    assert replay(folder, *limits, "--threads", "1") == whole
    again = replay(packed, *limits, "--threads", "3")
    assert again | {"files": whole["files"]} == whole
    assert replay(packed, *limits, "--format", "packed") == again
    assert packed.stat().st_size < 2 * (folder / "b.jsonl").stat().st_size
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


def test_damaged_packed_files_are_reported_with_the_place(traces, tmp_path):
    packed = tmp_path / "runs.packed"
    replay(traces, "--pack", packed)
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-30])
    done = run_cli("replay", packed, "--json")
    assert done.returncode == 0 and "cut off" in done.stderr and f"{packed}:" in done.stderr
    assert json.loads(done.stdout)["broken_lines"] == 1
    packed.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    done = run_cli("replay", packed, "--strict")
    assert done.returncode == 1 and "run 1 at byte 8 is damaged" in done.stderr


def test_nothing_is_written_over_what_is_read(traces):
    before = traces.read_bytes()
    for flag in ("--pack", "--html"):
        done = run_cli("replay", traces, flag, traces)
        assert done.returncode == 2 and "write to another" in done.stderr
    assert traces.read_bytes() == before
    assert "cannot write" in run_cli("replay", traces, "--pack", traces.parent / "no" / "folder").stderr
    assert "cannot write" in run_cli("replay", traces, "--html", traces.parent / "no" / "folder").stderr


def test_a_page_is_written(traces, tmp_path):
    page = tmp_path / "report.html"
    done = run_cli("replay", traces, "--html", page)
    assert done.returncode == 0 and str(page) in done.stdout
    assert page.read_text().lower().startswith("<!doctype html>")


def test_ctrl_c_shows_what_was_done(tmp_path):
    # A pipe that never ends: there is always more to read.
    pipe = tmp_path / "runs.jsonl"
    os.mkfifo(pipe)
    line = (json.dumps(RUNS[0]) + "\n").encode()
    process = subprocess.Popen([binary(), "replay", pipe, "--format", "traces", "--threads", "2", "--json"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
    with open(pipe, "wb", buffering=0) as out:
        ended = time.monotonic() + 30
        for number in range(100_000):
            if number == 3000:
                process.send_signal(signal.SIGINT)
            try:
                out.write(line)
            except BrokenPipeError:
                break
            assert time.monotonic() < ended
            if number > 3000:
                time.sleep(0.001)
    stdout, stderr = process.communicate(timeout=30)
    report = json.loads(stdout)
    assert process.returncode == 130, stderr
    assert report["finished"] is False and 0 < report["runs"] < 100_000


def hears_ctrl_c(pid):
    caught = next(line for line in open(f"/proc/{pid}/status") if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1


def ended_while_it_waits(pipe, says, pause):
    os.mkfifo(pipe)
    process = subprocess.Popen([binary(), "replay", pipe, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
    # Held open, as by a program that is busy with something else; or nobody writes at all.
    out = open(pipe, "wb", buffering=0) if says else None
    try:
        if out:
            out.write("".join(json.dumps(run) + "\n" for run in says).encode() + b'{"run_id": "half')
        while not hears_ctrl_c(process.pid):
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    finally:
        process.kill()
        if out:
            out.close()
    report = json.loads(stdout)
    assert process.returncode == 130, stderr
    assert report["finished"] is False and report["broken_lines"] == 0
    return report["runs"]


def test_ctrl_c_ends_the_wait_for_a_pipe_that_says_nothing(tmp_path):
    assert ended_while_it_waits(tmp_path / "nobody.jsonl", [], 0.5) == 0
    # On a busy machine it may take a while until what was said is read.
    assert any(ended_while_it_waits(tmp_path / f"{pause}.jsonl", RUNS, pause) == len(RUNS) for pause in (0.5, 5))


def test_what_is_empty_or_in_utf_16_is_called_so(tmp_path):
    for text, says in [("", "is empty"), (json.dumps(RUNS[0]).encode("utf-16"), "is text in UTF-16: write it as UTF-8")]:
        path = tmp_path / "runs.jsonl"
        path.write_bytes(text or b"")
        done = run_cli("replay", path)
        assert done.returncode == 2 and says in done.stderr


def test_a_terminal_sees_a_bar(traces):
    leader, follower = pty.openpty()
    write(traces, RUNS * 20_000)
    process = subprocess.Popen([binary(), "replay", traces, "--threads", "1"], stdout=subprocess.DEVNULL, stderr=follower,
                               env=clean_environment(TERM="xterm"))
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    assert process.wait(60) == 0
    assert b" of " in shown and b"steps" in shown, shown


def test_flow_guards_of_a_data_folder_are_decided_again(serve, tmp_path):
    server = serve()
    flow = server.client()
    statuses = [flow.post(HANDOFF, {"session_id": "s", "source_bot": "a", "target_bot": "b"}).status for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    settings = tmp_path / "changed.toml"
    settings.write_text("[guards.handoff]\nmax_visits_per_bot = 3\n")
    busy = run_cli("replay", server.data, "--settings", settings)
    assert busy.returncode == 1 and "runguard preview" in busy.stderr, "a service that runs is asked, not read"
    server.stop()
    before = {path.name: path.stat().st_mtime_ns for path in server.data.iterdir()}
    for path, arguments in (
        (server.data, ["--settings", settings]),
        (server.data / "runguard.db", ["--set", "handoff.max_visits_per_bot=3"]),
    ):
        done = run_cli("replay", path, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        [preview] = json.loads(done.stdout)["preview"]
        assert (preview["guard"], preview["rows"], preview["changed_total"]) == ("handoff", 4, 1)
        assert preview["after"] == {"allowed": 3, "would_block": 0, "blocked": 1}
    assert {path.name: path.stat().st_mtime_ns for path in server.data.iterdir()} == before, "it is only read"
    shown = run_cli("replay", server.data, "--settings", settings)
    assert shown.returncode == 0 and "by the changed settings of handoff" in shown.stdout


def test_rows_that_a_killed_service_left_beside_its_log_are_read(serve):
    server = serve()
    flow = server.client()
    handoff = {"session_id": "s", "source_bot": "a", "target_bot": "b"}
    assert flow.post(HANDOFF, handoff).status == 200
    flow.get("/v1/decisions")
    # As long as somebody has the log for himself nothing comes into it: what is decided now waits in the journal.
    holder = sqlite3.connect(server.data / "runguard.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert [flow.post(HANDOFF, handoff).status for _ in range(2)] == [200, 429]
    server.kill()
    holder.execute("ROLLBACK")
    holder.close()
    before = {path.name: path.read_bytes() for path in server.data.iterdir()}
    assert any(name.startswith("journal-") and content for name, content in before.items())
    for named in (server.data, server.data / "runguard.db"):
        found = replay(named)
        assert (found["runs"], found["steps"]) == (1, 3), "two of them wait"
        explained = json.loads(run_cli("explain", f"{named}#s", "--json").stdout)
        assert len(explained["steps"]) == 3 and explained["file"].startswith(str(named)), explained["file"]
    tuned = json.loads(run_cli("tune", server.data, "--json").stdout)
    assert tuned["steps"] == 3, tuned
    assert {path.name: path.read_bytes() for path in server.data.iterdir()} == before, "it is only read"
