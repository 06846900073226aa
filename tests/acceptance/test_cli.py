"""The command line for people: help, tables, JSON, exit codes."""

import json
import re
import subprocess
import threading
from pathlib import Path

import pytest

from catalogue import AGENT_ACTION, BUDGET_RECORD, CIRCUIT_RECORD, HANDOFF
from runguard_process import binary, clean_environment, free_port, run_cli

COMMANDS = [
    ["serve"], ["decisions"], ["sessions"], ["session"], ["circuits"], ["key"], ["key", "create"], ["key", "list"], ["key", "revoke"],
    ["agent"], ["agent", "serve"], ["agent", "sessions"], ["demo"], ["estimate"], ["check-flow"], ["insights"], ["report"], ["alerts"], ["preview"], ["replay"], ["tune"], ["explain"],
    ["settings"], ["settings", "example"], ["settings", "check"], ["settings", "set"], ["settings", "show"], ["insights", "snooze"],
    ["completions"], ["man"],
]


@pytest.fixture
def busy(serve):
    """A server on the real clock with something to show."""
    server = serve(virtual_clock=False)
    flow = server.client()
    for _ in range(4):
        flow.post(AGENT_ACTION, {"session_id": "chat-1", "action_name": "get_profile"})
    flow.allowed(HANDOFF, session_id="chat-2", source_bot="front", target_bot="billing")
    for number in range(10):
        flow.recorded(CIRCUIT_RECORD, endpoint_key="orders", session_id=f"f{number}", attempt=1, outcome="failure")
    return server


def test_help_lists_the_commands():
    shown = run_cli("--help")
    assert shown.returncode == 0
    for name in ("serve", "decisions", "session", "circuits", "key", "settings"):
        assert re.search(rf"^\s+{name}\b", shown.stdout, re.M), name


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command):
    shown = run_cli(*command, "--help")
    assert shown.returncode == 0, shown
    assert "Usage" in shown.stdout


def test_version():
    shown = run_cli("--version")
    assert shown.returncode == 0 and re.search(r"\d+\.\d+", shown.stdout)


@pytest.mark.parametrize("arguments", [
    [], ["no-such-command"], ["serve", "--no-such-flag"], ["session"], ["settings", "check"], ["key", "revoke"],
    ["serve", "--listen", "nonsense"],
], ids=str)
def test_wrong_usage_is_exit_code_2(arguments, tmp_path):
    shown = run_cli(*arguments, cwd=tmp_path)
    assert shown.returncode == 2, shown
    assert shown.stderr and "panicked" not in shown.stderr


def test_decisions(busy):
    shown = run_cli("decisions", "--url", busy.url)
    assert shown.returncode == 0, shown
    assert "consecutive_same_action_spiral" in shown.stdout and "chat-1" in shown.stdout and "chat-2" in shown.stdout
    assert "\x1b[" not in shown.stdout, "colour only on a terminal"


def rows(shown) -> list[dict]:
    """JSON output: one document (an object or a list), or one object a line."""
    try:
        document = json.loads(shown.stdout)
    except json.JSONDecodeError:
        return [json.loads(line) for line in shown.stdout.splitlines()]
    return document if isinstance(document, list) else next(v for v in document.values() if isinstance(v, list))


def test_decisions_as_json(busy):
    shown = run_cli("decisions", "--url", busy.url, "--json")
    assert shown.returncode == 0, shown
    assert {row["guard"] for row in rows(shown)} >= {"agent_action", "handoff"}


def test_decisions_can_be_filtered(busy):
    shown = run_cli("decisions", "--url", busy.url, "--json", "--guard", "handoff")
    assert shown.returncode == 0, shown
    assert [row["session_id"] for row in rows(shown)] == ["chat-2"]


def test_decisions_can_be_followed(busy):
    """Every decision made once the follower listens is a line of JSON."""
    stopped = threading.Event()

    def decide():
        number = 0
        while not stopped.wait(0.02):
            busy.client().post(AGENT_ACTION, {"session_id": f"live-{number}", "action_name": "a"})
            number += 1

    deciding = threading.Thread(target=decide)
    command = [binary(), "decisions", "--url", busy.url, "--follow", "--limit", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as followed:
        give_up = threading.Timer(30, followed.kill)
        give_up.start()
        deciding.start()
        try:
            first, second = (json.loads(followed.stdout.readline()) for _ in range(2))
        finally:
            stopped.set()
            give_up.cancel()
            followed.terminate()
            deciding.join()
    assert first["session_id"].startswith("live-") and first["guard"] == "agent_action"
    assert second["decision_id"] > first["decision_id"]


def test_a_session(busy):
    shown = run_cli("session", "chat-1", "--url", busy.url)
    assert shown.returncode == 0, shown
    assert "chat-1" in shown.stdout and "get_profile" in shown.stdout
    as_json = json.loads(run_cli("session", "chat-1", "--url", busy.url, "--json").stdout)
    assert as_json["session_id"] == "chat-1" and len(as_json["timeline"]) == 4
    assert "$" not in shown.stdout, "nothing was spent"
    busy.client().post(BUDGET_RECORD, {"session_id": "chat-9", "usd": 0.625, "max_usd": 2, "tokens": 100})
    spent = run_cli("session", "chat-9", "--url", busy.url).stdout
    assert all(told in spent for told in ("default", "$0.6250", "$1.38", "$2.00")), spent
    assert "ceiling" in shown.stdout and "ceiling" not in spent, "no table without rows"


def test_sessions_are_listed_and_found(busy):
    shown = run_cli("sessions", "chat-", "--sort", "blocked", "--url", busy.url)
    assert shown.returncode == 0, shown
    lines = shown.stdout.splitlines()
    assert [line.split()[-3 if "consecutive" in line or "same" in line else -2] for line in lines[1:]] == ["chat-1", "chat-2"], shown
    as_json = json.loads(run_cli("sessions", "--limit", "1", "--url", busy.url, "--json").stdout)
    assert len(as_json["sessions"]) == 1 and as_json["found"] == 12
    nothing = run_cli("sessions", "nobody", "--url", busy.url)
    assert nothing.returncode == 0 and "No session whose name begins so" in nothing.stdout


def test_a_value_is_set_in_the_file_and_one_that_is_wrong_is_not(tmp_path):
    file = tmp_path / "runguard.toml"
    file.write_text("# Ours.\n[guards.handoff]\nmax_handoffs = 4 # was 6\n")
    done = run_cli("settings", "set", "guards.handoff.max_handoffs=5", "guards.handoff.window=2h", "--config", file)
    assert done.returncode == 0 and "guards.handoff.max_handoffs = 5" in done.stdout, done
    assert file.read_text() == '# Ours.\n[guards.handoff]\nmax_handoffs = 5 # was 6\nwindow = "2h"\n'
    wrong = run_cli("settings", "set", "guards.handoff.max_handofs=5", "--config", file)
    assert wrong.returncode == 2 and "nothing was changed" in wrong.stderr and "max_handoffs" in wrong.stderr, wrong
    assert "max_handofs" not in file.read_text()


def test_an_unknown_session_is_an_error_of_its_own(busy):
    shown = run_cli("session", "nobody", "--url", busy.url)
    assert shown.returncode == 3, shown
    assert "session" in shown.stderr and "tenant" not in shown.stderr, "without keys there is one"


def test_an_agents_steps_begin_lines_where_both_streams_are_one(tmp_path):
    command = [str(binary()), "agent", "--demo", "loop"]
    said = subprocess.run(command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    steps = re.findall(r"^.*step \d+/\d+: .*$", said.stdout, re.M)
    assert steps and all(line.startswith("step ") for line in steps), said.stdout


def test_circuits(busy):
    shown = run_cli("circuits", "--url", busy.url)
    assert shown.returncode == 0, shown
    assert "orders" in shown.stdout and "open" in shown.stdout
    [circuit] = rows(run_cli("circuits", "--url", busy.url, "--json"))
    assert (circuit["endpoint_key"], circuit["phase"]) == ("orders", "open")


def test_circuits_can_be_forced(busy):
    for verb, phase in (("close", "closed"), ("open", "open"), ("reset", "closed")):
        forced = run_cli("circuits", verb, "orders", "--url", busy.url)
        assert forced.returncode == 0, forced
        [circuit] = [row for row in busy.client().get("/v1/circuits").json["circuits"] if row["endpoint_key"] == "orders"]
        assert circuit["phase"] == phase


@pytest.mark.parametrize("command", [["decisions"], ["session", "s"], ["circuits"]], ids=" ".join)
def test_an_unreachable_service_is_an_error_that_says_where(command):
    url = f"http://127.0.0.1:{free_port()}"
    shown = run_cli(*command, "--url", url)
    assert shown.returncode not in (0, 2, 101), shown
    assert url.removeprefix("http://") in shown.stderr
    assert "panicked" not in shown.stderr


def test_a_closed_pipe_is_no_crash(busy):
    """`runguard decisions | head -1`"""
    piped = subprocess.run(f"{binary()} decisions --url {busy.url} --json | head -c 1; exit ${{PIPESTATUS[0]}}", shell=True,
                           executable="/bin/bash", capture_output=True, text=True, timeout=60)
    assert "panicked" not in piped.stderr, piped


def test_a_service_that_wants_a_key(serve):
    server = serve(start=False, virtual_clock=False)
    made = run_cli("key", "create", "--data", server.data, "--tenant", "acme", "--role", "read")
    key = made.stdout.split()[-1]
    server.start()
    refused = run_cli("decisions", "--url", server.url)
    assert refused.returncode not in (0, 2, 101) and "key" in refused.stderr.lower(), refused
    shown = run_cli("decisions", "--url", server.url, "--key", key, "--json")
    assert shown.returncode == 0, shown


def test_a_session_is_erased_when_it_is_meant(busy):
    unasked = run_cli("session", "chat-1", "--erase", "--url", busy.url)
    assert unasked.returncode == 2 and "--yes" in unasked.stderr, unasked
    assert busy.client().get("/v1/sessions/chat-1").status == 200
    erased = run_cli("session", "chat-1", "--erase", "--yes", "--url", busy.url)
    assert erased.returncode == 0 and "is erased" in erased.stdout, erased
    assert busy.client().get("/v1/sessions/chat-1").status == 404
    again = run_cli("session", "chat-1", "--erase", "--yes", "--url", busy.url)
    assert again.returncode == 3 and "chat-1" in again.stderr, again
    as_json = run_cli("session", "chat-2", "--erase", "--yes", "--json", "--url", busy.url)
    assert json.loads(as_json.stdout)["erased"] is True, as_json


def test_no_circuit_in_a_phase_is_not_no_endpoint(busy, serve):
    none = run_cli("circuits", "--phase", "half_open", "--url", busy.url)
    assert none.stdout.strip() == "No circuit is half-open (1 in all).", none
    empty = run_cli("circuits", "--phase", "open", "--url", serve(virtual_clock=False).url)
    assert "No endpoint has been recorded yet" in empty.stdout, empty


def test_settings_show_says_what_it_reads():
    assert "GET /v1/settings" in run_cli("settings", "show", "--help").stdout


# -- check-flow -------------------------------------------------------------------------------------

FLOWS = Path(__file__).parents[2] / "examples" / "flows"


def test_a_plan_without_gaps_is_clean():
    shown = run_cli("check-flow", str(FLOWS / "support.yaml"))
    assert shown.returncode == 0 and shown.stdout.startswith("Nothing found in 3 bots"), shown


def test_circles_and_gaps_of_a_plan_end_with_1():
    shown = run_cli("check-flow", str(FLOWS / "circle.yaml"), "--json")
    assert shown.returncode == 1, shown
    report = json.loads(shown.stdout)
    assert [(finding["kind"], finding["subject"], finding["names"]) for finding in report["findings"]] == [
        ("cycle", "billing", ["billing", "orchestrator"]),
        ("cycle", "orchestrator", ["orchestrator", "subscriptions"]),
        ("unknown_target", "subscriptions", ["biling"]),
        ("unreachable_bot", "returns", []),
        ("no_way_out", "billing", []),
        ("no_way_out", "orchestrator", []),
        ("no_way_out", "subscriptions", []),
        ("missing_action", "tell the order status", ["lookup_order"]),
        ("missing_action", "tell the tier and the discount", ["get_subscription"]),
    ]
    people = run_cli("check-flow", str(FLOWS / "circle.yaml"))
    assert people.returncode == 1 and "billing → orchestrator → billing" in people.stdout, people
    assert "did you mean 'billing'?" in people.stdout and "panicked" not in people.stderr


@pytest.mark.parametrize("name, text", [
    ("plan.yaml", "start: desk\nbots: {desk: [person]}\nends: person\n"),
    ("plan.json", '{"start": ["desk"], "bots": {"desk": ["person"]}, "ends": ["person"]}'),
    ("plan.yml", "start: desk\nbots:\n  desk: [billing]\n  billing: [desk]\naccepted_cycles: [[desk, billing]]\n"),
], ids=lambda value: value[:9])
def test_a_plan_is_yaml_or_json(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    shown = run_cli("check-flow", name, cwd=tmp_path)
    assert shown.returncode == 0, shown


def test_a_plan_comes_through_a_pipe():
    for text, code, words in (
        ((FLOWS / "support.yaml").read_text(), 0, "Nothing found in 3 bots"),
        ('{"start": "desk", "bots": {"desk": ["person"]}, "ends": "person"}', 0, "Nothing found in 1 bot"),
        ((FLOWS / "circle.yaml").read_text(), 1, "billing → orchestrator → billing"),
        ("{start: desk, bots: {desk: [person]}, ends: person}", 0, "Nothing found in 1 bot"),
        ('{"start": ', 2, "stdin cannot be read: line 1, column 10: this is no JSON"),
        ("start: a\nbots: [", 2, "this is no YAML"),
        ("", 2, "stdin"),
    ):
        shown = run_cli("check-flow", "-", given=text)
        assert shown.returncode == code and words in shown.stdout + shown.stderr, shown


def test_an_accepted_circle_of_a_bot_that_is_not_there_is_told():
    plan = "start: desk\nbots: {desk: [billing], billing: [desk]}\naccepted_cycles: [[desk, billing], [desk, shiping]]\n"
    shown = run_cli("check-flow", "-", given=plan)
    assert shown.returncode == 1 and "accepted_cycles names 'shiping', which is no bot" in shown.stdout, shown


@pytest.mark.parametrize("text", [
    "", "bots: [", "bots: {desk: 7}", "bots: {a: []}", "actions: [a]", "botts: {}", "- a", "[" * 100_000,
    "a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]",
], ids=lambda text: text[:20] or "empty")
def test_a_plan_that_cannot_be_read_ends_with_2(tmp_path, text):
    for name in ("plan.yaml", "plan.json"):
        (tmp_path / name).write_text(text)
        shown = run_cli("check-flow", name, cwd=tmp_path)
        assert shown.returncode == 2 and name in shown.stderr and "panicked" not in shown.stderr, shown
        assert not re.search(r"untagged|variant|serde|anchor|mapping|scalar|sequence", shown.stderr), shown
    assert run_cli("check-flow", "no-such-file.yaml", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("name, text, line, words", [
    ("plan.yaml", "start: a\nbots:\n  a: [b\n", None, "this is no YAML. Look at the indentation"),
    ("plan.yaml", "start: a\nbots:\n\ta: b\n", 3, "this is no YAML"),
    ("plan.yaml", "start: a\nbots:\n  a: [b]\n  a: [c]\n", 4, "whether a name stands twice"),
    ("plan.yaml", "start: a\nbotz:\n  a: [b]\n", 2, "a plan has no part 'botz'; did you mean 'bots'?"),
    ("plan.yaml", "start: a\nbots:\n  a: {b: 1}\n", 3, "'bots.a' must be a name or a list of names"),
    ("plan.yaml", "start: a\nbots:\n  a: [b, 7]\n", 3, "it has a number in it; a number that is a name needs quotes"),
    ("plan.yaml", "bots: 7\n", 1, "'bots' must be names with the names that belong to each"),
    ("plan.json", '{"start": "a",\n "bots": {"a": 3}}', 2, "'bots.a' must be a name or a list of names"),
    ("plan.json", '{"start": "a",\n "bots": ', 2, "this is no JSON. Look at the commas"),
], ids=["open", "tab", "twice", "part", "table", "number", "names", "json-number", "json-open"])
def test_what_is_wrong_with_a_plan_is_said_with_its_line(tmp_path, name, text, line, words):
    (tmp_path / name).write_text(text)
    shown = run_cli("check-flow", name, cwd=tmp_path)
    assert shown.returncode == 2 and words in shown.stderr, shown
    assert line is None or f"line {line}, column" in shown.stderr, shown
