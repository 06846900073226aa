"""The command line as people see it: on a terminal of 80 columns, with and without colours."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from catalogue import AGENT_ACTION, CIRCUIT_RECORD, HANDOFF
from runguard_http import Client
from runguard_process import binary, clean_environment, free_port, run_cli
from terminal import COLOUR, Terminal, shown

RECORDED = Path(__file__).parents[2] / "crates/runguard-replay/tests/formats/claude-code.jsonl"
LONG = "conversation-of-a-customer-with-a-very-long-name-that-fits-nowhere"


@pytest.fixture
def busy(serve):
    server = serve(virtual_clock=False)
    flow = server.client()
    for _ in range(4):
        flow.post(AGENT_ACTION, {"session_id": LONG, "action_name": "get_the_profile_of_the_customer"})
    flow.allowed(HANDOFF, session_id="chat-2", source_bot="front", target_bot="billing")
    for number in range(10):
        flow.recorded(CIRCUIT_RECORD, endpoint_key="payments", session_id=f"f{number}", attempt=1, outcome="failure")
    return server


# -- tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 60, 200])
@pytest.mark.parametrize("command", [["decisions"], ["session", LONG], ["circuits"], ["consumption"]], ids=lambda command: command[0])
def test_a_table_has_one_line_a_row_and_fits(busy, command, columns):
    seen = shown(*command, "--url", busy.url, columns=columns)
    assert seen.code == 0, seen.text
    wide = [line for line in seen.text.splitlines() if len(line) > columns]
    if command[0] == "session":
        wide = [line for line in wide if not line.startswith(LONG)]
    assert not wide, seen.text
    if command == ["decisions"]:
        assert len(seen.text.strip().splitlines()) == 1 + 5, seen.text
        assert "…" in seen.text and "agent_action" in seen.text and "blocked" in seen.text
        assert ("message" in seen.text.splitlines()[0]) == (columns >= 120), "words come where there is room"


LISTS = [
    ["sessions"], ["spend"], ["spend", "--by", "model"], ["runs"], ["alerts"], ["insights"], ["key", "list"], ["replay"], ["tune"], ["explain"],
    ["preview", "agent_action", "--set", "max_consecutive=2"], ["estimate", "--example", "bedrock-sonnet"], ["demo", "--list"],
]
OF_A_SERVICE = ("sessions", "spend", "runs", "alerts", "insights", "preview")


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_every_other_list_fits_too(serve, tmp_path, command, columns=80):
    server = serve(virtual_clock=False)
    flow = server.client()
    for number in range(4):
        flow.post(AGENT_ACTION, {"session_id": f"{LONG}-{number}", "action_name": "get_the_profile_of_the_customer"})
        spent = {"max_usd": 20, "usd": 12.345678, "tokens": 123_456_789, "scopes": [{"per": "team", "name": "the-whole-department-of-search", "period": "day", "max_usd": 60}]}
        flow.post("/guard/budget/record", {"session_id": f"{LONG}-{number}", "budget": "of-the-whole-department", **spent})
    if command[0] == "key":
        run_cli("key", "create", "--data", tmp_path, "--name", "the-key-of-the-customers-own-department", "--tenant", "a-tenant-with-a-long-name", "--role", "guard,read,admin")
        where = ["--data", tmp_path]
    elif command[0] in ("replay", "tune", "explain"):
        recorded = tmp_path / "a-recorded-run-with-a-very-long-name-that-fits-nowhere-at-all.jsonl"
        shutil.copy(RECORDED, recorded)
        where = [recorded]
    else:
        where = ["--url", server.url] if command[0] in OF_A_SERVICE else []
    seen = shown(*command, *where, columns=columns)
    assert seen.code == 0 and seen.text.strip(), seen.text
    # A word longer than a line stays whole, so that it can be copied.
    assert [line for line in seen.text.splitlines() if len(line) > columns and len(line.split()) > 1] == [], seen.text


@pytest.mark.parametrize("command", [["sessions"], ["runs"], ["decisions"]], ids=lambda command: command[0])
def test_a_name_of_usual_length_can_be_copied(serve, command):
    """It is what the next command is asked about; what all rows have in common goes first."""
    server = serve(virtual_clock=False)
    name = "conversation-4711-of-today"
    server.client().post("/guard/budget/record", {"session_id": name, "max_usd": 2, "usd": 0.5})
    server.client().post("/guard/budget/check", {"session_id": name, "max_usd": 2, "usd": 3})
    seen = shown(*command, "--url", server.url)
    rows = [line for line in seen.text.splitlines() if name in line]
    assert seen.code == 0 and len(rows) == (2 if command == ["decisions"] else 1), seen.text
    assert "tenant" not in seen.text and re.search(r"(^|  )\d\d:\d\d:\d\d  ", rows[0]), seen.text


@pytest.mark.parametrize("columns", [80, 60, 160])
def test_a_followed_decision_is_one_line(busy, columns):
    with Terminal("decisions", "--follow", "--url", busy.url, columns=columns) as terminal:
        terminal.until("blocked")
        terminal.until("billing")
        lines = [line for line in terminal.text.splitlines() if "agent_acti" in line]
    assert len(lines) == 4 and all(len(line) <= columns for line in lines), terminal.text
    assert "consecu" in lines[-1], "why stays readable"


def test_a_followed_decision_says_would_block_in_words(serve):
    server = serve(config="[guards.agent_action]\nmode = \"observe\"\n", virtual_clock=False)
    for _ in range(4):
        server.client().post(AGENT_ACTION, {"session_id": "s", "action_name": "look"})
    with Terminal("decisions", "--follow", "--url", server.url) as terminal:
        terminal.until("would block")
    assert "would_block" not in terminal.text


def test_a_shell_and_the_help_know_the_values(tmp_path):
    script = run_cli("completions", "bash").stdout
    for words in ("allowed would_block blocked recorded", "guard read admin metrics", "error warn info debug", "check record admin all", "stall loop tool_call"):
        assert f'"{words}"' in script, words
    assert "cycle_detected" in script and "claude-code" in script
    helped = run_cli("decisions", "--help").stdout
    assert "would_block" in helped and "cycle_detected" in helped and "attempt_ceiling_reached" not in helped


def test_times_are_short_and_local(busy):
    seen = shown("decisions", "--url", busy.url, TZ="Pacific/Kiritimati")
    hour = time.strftime("%H", time.gmtime(time.time() + 14 * 3600))
    assert re.search(rf"^{hour}:\d\d:\d\d ", seen.text, re.M), seen.text
    piped = run_cli("decisions", "--url", busy.url)
    assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", piped.stdout) and LONG in piped.stdout, "in full for programs"


def test_words_are_not_torn(tmp_path):
    seen = shown("key", "list", "--data", tmp_path / "data", columns=60)
    assert seen.code == 0 and str(tmp_path / "data") in seen.text.replace("\n", ""), seen.text
    piped = run_cli("key", "list", "--data", tmp_path / "data").stdout
    lines = seen.text.strip().splitlines()
    assert len(lines) > 2 and " ".join(line.strip() for line in lines) == piped.strip(), seen.text
    assert all(len(line) <= 60 or " " not in line.strip() for line in lines), seen.text


# -- colours ----------------------------------------------------------------------------------------


def test_colours_are_where_they_are_wanted(busy):
    command = ["decisions", "--url", busy.url]
    assert COLOUR.search(shown(*command).raw)
    assert not COLOUR.search(shown(*command, NO_COLOR="1").raw)
    assert not COLOUR.search(shown(*command, "--color", "never").raw)
    assert COLOUR.search(shown(*command, "--color=always", NO_COLOR="1").raw)
    assert not COLOUR.search(run_cli(*command).stdout)
    assert COLOUR.search(run_cli(*command, "--color", "always").stdout)


def test_errors_and_help_obey_too():
    wrong = ["decisions", "--url", f"http://127.0.0.1:{free_port()}"]
    assert COLOUR.search(shown(*wrong).raw) and not COLOUR.search(shown(*wrong, "--color=never").raw)
    assert COLOUR.search(shown("--help").raw) and not COLOUR.search(shown("--color", "never", "--help").raw)
    assert not COLOUR.search(shown("serv", "--color=never").raw)


# -- serve ------------------------------------------------------------------------------------------


def ready(port: int) -> None:
    for _ in range(1500):
        try:
            if Client(port, virtual_clock=False).get("/readyz").status == 200:
                return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("not ready")


def test_serve_says_where_to_look_and_what_to_type(tmp_path):
    port = free_port()
    with Terminal("serve", "--listen", f"localhost:{port}", "--data", "here", columns=120, cwd=tmp_path) as terminal:
        text = terminal.until("Ctrl-C")
        url = f"http://127.0.0.1:{port}"
        for words in (f"Dashboard  {url}/", f"Docs       {url}/docs", f"Data       {tmp_path / 'here'}", "Keys       none", "Next"):
            assert words in text, text
        command = re.search(r"curl -s .*\\\n.*'\{.*\}'", text)
        assert command, text
        codes = [subprocess.run(f"{command.group()} -o /dev/null -w '%{{http_code}}'", shell=True, capture_output=True, text=True).stdout
                 for _ in range(3)]
        assert codes == ["200", "200", "429"], "as the banner promises"
        assert "is ready" not in text, "the banner says it"
        next_command = re.search(r"Then\n +(runguard decisions.*)", text)
        listed = run_cli(*next_command[1].split()[1:], cwd=tmp_path)
        assert "retry_cap_reached" in listed.stdout, "it asks the service that said so"
        assert f"runguard key create --data {tmp_path / 'here'}" in text
        assert COLOUR.search(terminal.raw)
        terminal.interrupt()
        assert terminal.end() == 0


@pytest.mark.parametrize("arguments", [["--log-format", "json"], ["--log-format", "json", "--color", "always"]], ids=str)
def test_logs_for_programs_have_no_banner(tmp_path, arguments):
    port = free_port()
    with Terminal("serve", "--port", str(port), "--data", "d", *arguments, columns=1000, cwd=tmp_path) as terminal:
        ready(port)
        terminal.until('"message":"RunGuard is ready"')
        terminal.interrupt()
        assert terminal.end() == 0
    assert all(line.startswith("{") for line in terminal.text.strip().splitlines() if line != "^C"), terminal.text


def test_a_pipe_has_no_banner(serve):
    server = serve(virtual_clock=False)
    server.stop()
    assert "Dashboard" not in server.log() and all(line.startswith("{") for line in server.log().splitlines())


def test_a_quiet_log_keeps_the_banner_and_no_color_its_word(tmp_path):
    with Terminal("serve", "--port", "0", "--data", "d", "--log-level", "error", cwd=tmp_path, NO_COLOR="1") as terminal:
        terminal.until("Ctrl-C")
        assert "Dashboard" in terminal.text and "is ready" not in terminal.text and not COLOUR.search(terminal.raw)
        terminal.interrupt()
        assert terminal.end() == 0


def test_the_banner_asks_for_a_key_where_one_is_needed(tmp_path):
    run_cli("key", "create", "--data", tmp_path / "d")
    with Terminal("serve", "--listen", "0.0.0.0:0", "--data", "d", columns=120, cwd=tmp_path) as terminal:
        text = terminal.until("Ctrl-C")
        assert "Keys       required" in text and "$RUNGUARD_KEY" in text and "http://127.0.0.1:" in text, text
        assert "http://0.0.0.0" not in text.split("Dashboard")[1], "an address that a browser can go to"


def test_a_port_changes_the_port_alone(tmp_path):
    port = free_port()
    (tmp_path / "runguard.toml").write_text('[server]\nlisten = "localhost:1"\n')
    with Terminal("serve", "--port", str(port), "--data", "d", cwd=tmp_path) as terminal:
        terminal.until("Ctrl-C")
        ready(port)


@pytest.mark.parametrize(("word", "flag"), [("info", "--log-level"), ("DEBUG", "--log-level"), ("json", "--log-format")])
def test_a_level_is_no_database(tmp_path, word, flag):
    said = run_cli("serve", "--log", word, cwd=tmp_path)
    assert said.returncode == 2 and flag in said.stderr and "postgres://" in said.stderr, said


def test_a_name_that_means_nothing_is_said(tmp_path):
    said = run_cli("serve", "--listen", "no-such-host.invalid:8100", cwd=tmp_path)
    assert said.returncode == 1 and "no-such-host.invalid:8100" in said.stderr and "panicked" not in said.stderr, said


# -- demo -------------------------------------------------------------------------------------------


def test_the_demo_shows_its_stops_and_stays_until_ctrl_c(tmp_path):
    with Terminal("demo", "--no-open", "--port", "0", "--seconds", "3", "--history", "0", cwd=tmp_path, TMPDIR=str(tmp_path)) as terminal:
        text = terminal.until("stays until Ctrl-C")
        stops = re.findall(r"^blocked  (\S+) +(\S+) +\$(\d+\.\d\d) saved$", text, re.M)
        assert len(stops) >= 10 and len({reason for _, reason, _ in stops}) >= 10, text
        assert all(float(usd) > 0 for *_, usd in stops), "each with its price"
        assert "What next:" in text and "runguard serve" in text
        assert all(len(line) <= 80 for line in text.splitlines()), text
        url = re.search(r"http://127\.0\.0\.1:\d+", text).group()
        assert Client(int(url.rsplit(":", 1)[1]), virtual_clock=False).get("/readyz").status == 200
        terminal.interrupt()
        assert terminal.end() == 0
    assert list(tmp_path.iterdir()) == []


def test_the_demo_ends_at_once_for_scripts(tmp_path):
    seen = shown("demo", "--no-open", "--port", "0", "--seconds", "1", "--history", "0", "--exit", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert seen.code == 0 and "stays until" not in seen.text and "What next:" in seen.text, seen.text
    piped = run_cli("demo", "--no-open", "--port", "0", "--seconds", "1", "--history", "0", cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    assert piped.returncode == 0 and re.search(r"^blocked .* saved$", piped.stdout, re.M) and "\x1b" not in piped.stdout, piped
    assert run_cli("demo", "--stay", "--exit").returncode == 2


# -- version, completions, manual ---------------------------------------------------------------------


def test_the_version_names_its_source_and_features():
    said = run_cli("--version")
    assert said.returncode == 0
    first, commit, features = said.stdout.strip().splitlines()
    assert re.fullmatch(r"runguard \d+\.\d+\.\d+", first)
    assert re.fullmatch(r"commit: ([0-9a-f]{7,40} \(\d{4}-\d\d-\d\d(, changed since)?\)|not known: built without git)", commit), said
    assert features == "features: agent, postgres, redis"
    assert run_cli("-V").stdout.strip() == first


@pytest.mark.parametrize(("shell", "check"), [("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])])
def test_completions_are_read_by_their_shell(tmp_path, shell, check):
    said = run_cli("completions", shell)
    assert said.returncode == 0 and "circuits" in said.stdout and "max-usd" in said.stdout, said
    if shutil.which(check[0]) is None:
        pytest.skip(f"no {check[0]} here")
    script = tmp_path / "script"
    script.write_text(said.stdout)
    read = subprocess.run([*check, str(script)], capture_output=True, text=True)
    assert read.returncode == 0, read


def test_bash_completes_commands_and_values(tmp_path):
    (tmp_path / "completions").write_text(run_cli("completions", "bash").stdout)

    def completed(*words: str) -> list[str]:
        line = f'source {tmp_path}/completions; COMP_WORDS=({" ".join(map(repr, words))}); COMP_CWORD={len(words) - 1}; ' \
               f'_runguard runguard {words[-1]!r} {words[-2]!r}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=clean_environment()).stdout.split()

    assert "decisions" in completed("runguard", "dec")
    assert set(completed("runguard", "circuits", "--phase", "")) == {"closed", "half_open", "open"}


def test_every_command_has_a_page_of_the_manual(tmp_path):
    said = run_cli("man", "--out", tmp_path / "man1")
    assert said.returncode == 0, said
    pages = {page.name for page in (tmp_path / "man1").iterdir()}
    assert {"runguard.1", "runguard-serve.1", "runguard-key-create.1", "runguard-agent-serve.1"} <= pages
    text = (tmp_path / "man1" / "runguard-circuits-open.1").read_text()
    assert "runguard-circuits-open" in text and "Refuse every call" in text and "endpoint" in text
    assert run_cli("man").stdout == (tmp_path / "man1" / "runguard.1").read_text()
    if shutil.which("man"):
        env = clean_environment(MANWIDTH="80", LC_ALL="C.UTF-8")
        read = subprocess.run(["man", "--warnings", "-l", str(tmp_path / "man1" / "runguard.1")], capture_output=True, text=True, env=env)
        assert read.returncode == 0 and "SYNOPSIS" in read.stdout, read


# -- what was meant -----------------------------------------------------------------------------------


def test_an_endpoint_that_nobody_called_is_named(busy):
    said = run_cli("circuits", "open", "paymets", "--url", busy.url)
    assert said.returncode == 0 and "did you mean 'payments'?" in said.stderr and "paymets" in said.stdout, said
    assert "did you mean" not in run_cli("circuits", "open", "payments", "--url", busy.url).stderr
    assert "'elsewhere' has been seen" in run_cli("circuits", "reset", "elsewhere", "--url", busy.url).stderr


def test_a_circuit_that_opens_is_logged_with_its_endpoint_and_tenant(busy):
    # Lines are written behind the answers; the end waits for the last.
    busy.stop()
    assert re.search(r'"message":"a circuit opened".*"tenant":"default".*"endpoint":"payments"', busy.log()), busy.log()


def test_the_log_is_followed_from_its_last_ten(busy):
    for number in range(12):
        busy.client().post(AGENT_ACTION, {"session_id": f"s-{number}", "action_name": "a"})
    with Terminal("decisions", "--follow", "--url", busy.url, columns=200) as terminal:
        terminal.until("s-11")
        busy.client().post(AGENT_ACTION, {"session_id": "live-1", "action_name": "a"})
        text = terminal.until("live-1")
    assert [line.split()[3] for line in text.strip().splitlines()] == [f"s-{number}" for number in range(2, 12)] + ["live-1"], text
    with Terminal("decisions", "--follow", "--limit", "2", "--json", "--url", busy.url, columns=4000) as terminal:
        text = terminal.until("live-1")
        assert '"s-11"' in text and '"s-10"' not in text


def test_settings_of_a_service_that_runs(serve):
    server = serve("[guards.handoff]\nmax_handoffs = 4\n", virtual_clock=False)
    said = run_cli("settings", "show", "--url", server.url)
    assert said.returncode == 0, said
    assert re.search(r"^guards\.handoff\.max_handoffs = 4  # .*runguard\.toml:2$", said.stdout, re.M), said.stdout
    assert f'server.listen = "127.0.0.1:{server.port}"  # flag --listen' in said.stdout
    assert run_cli("settings", "show", "--url", f"http://127.0.0.1:{free_port()}").returncode == 4


def test_all_mistakes_of_a_settings_file_are_said_at_once(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('[guards.handoff]\nmax_handofs = 3\nwindow = "soon"\n[log]\nretention_days = 0\n[sever]\n')
    said = run_cli("settings", "check", file)
    assert said.returncode == 2, said
    assert sorted(re.findall(r"s\.toml:(\d+):", said.stderr)) == ["2", "3", "5", "6"], said.stderr


def test_a_field_in_another_spelling_is_named_where_it_is_missing(flow):
    answer = flow.post("/guard/ai-task-retry", {"session_id": "s", "taskName": "t"})
    assert answer.status == 422
    assert [error["field"] for error in answer.json["errors"]] == ["task_name"]
    assert "did you mean 'task_name'?" in answer.json["errors"][0]["problem"], answer
