"""`runguard run -- python agent.py`: a program as it is, whose model calls are capped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator

import pytest
from model_server import ModelServer, Reply, Usage

BINARY = os.environ.get("RUNGUARD_BIN")
pytestmark = pytest.mark.skipif(BINARY is None, reason="needs the binary, in RUNGUARD_BIN")

AGENT = """
import multiprocessing, sys
from openai import OpenAI

def ask(url):
    client = OpenAI(base_url=url, api_key="key", max_retries=0)
    for _ in range(30):
        client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "go on"}])
        print("answered", flush=True)

if __name__ == "__main__":
    if len(sys.argv) > 2:
        workers = [multiprocessing.get_context(sys.argv[2]).Process(target=ask, args=(sys.argv[1],)) for _ in range(3)]
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
    else:
        ask(sys.argv[1])
"""


@pytest.fixture
def model() -> Iterator[ModelServer]:
    # A quarter of a dollar each.
    with ModelServer([Reply(text="more")], usage=Usage(input=96_000, output=1_000, cached=0, cache_write=0)) as server:
        yield server


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BINARY), "run", *arguments], capture_output=True, text=True, timeout=120, **options)


def test_a_program_spends_its_dollar_and_no_more(model: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    ended = run("--max-usd", "1", "--", sys.executable, str(tmp_path / "agent.py"), model.openai_url)
    assert (ended.stdout.count("answered"), model.model_calls, ended.returncode) == (4, 4, 1), ended.stderr
    assert "BudgetExceededError" in ended.stderr and "runguard: spent $1.00 of $1.00" in ended.stderr
    assert "runguard: stopped: The budget of $1.00 is used up" in ended.stderr


@pytest.mark.parametrize("kind", ["spawn", "fork"])
def test_its_processes_share_it(model: ModelServer, tmp_path: Path, kind: str) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    ended = run("--max-usd", "1", "--", sys.executable, str(tmp_path / "agent.py"), model.openai_url, kind)
    assert (model.model_calls, ended.returncode) == (4, 0), ended.stderr


def test_other_limits(model: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    ended = run("--max-model-calls", "2", "--", sys.executable, str(tmp_path / "agent.py"), model.openai_url)
    assert (ended.stdout.count("answered"), ended.returncode) == (2, 1)
    assert "The run has made its 2 model calls" in ended.stderr


def test_a_program_of_another_kind_keeps_its_output_and_code(tmp_path: Path) -> None:
    ended = run("--max-usd", "1", "--", "sh", "-c", "echo out; exit 7")
    assert (ended.stdout, ended.returncode) == ("out\n", 7)
    assert "nothing was counted" in ended.stderr
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.own = 1")
    ended = run("--max-usd", "1", "--", sys.executable, "-c", "import sys; print(sys.own)", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (ended.stdout, ended.returncode) == ("1\n", 0), ended.stderr


def test_without_the_package_it_does_not_begin(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    ended = run("--max-usd", "1", "--", str(tmp_path / "bare/bin/python"), "-c", "print('ran')")
    assert (ended.stdout, ended.returncode) == ("", 2)
    assert "runguard-breaker is not installed" in ended.stderr and "-m pip install runguard_breaker-0." in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--", "true"], 2, "nothing is limited"),
        (["--max-usd", "much", "--", "true"], 2, "--max-usd much"),
        (["--max-usd", "1", "--", "no-such-program"], 3, "there is no program no-such-program"),
        (["--max-usd", "1"], 2, "required"),
        (["--max-usd", "-1", "--", "true"], 2, "--max-usd -1"),
        (["--max-seconds", "nan", "--", "true"], 2, "--max-seconds NaN"),
        (["--max-seconds", "inf", "--", "true"], 2, "--max-seconds inf"),
        (["--max-seconds", "-1", "--", "true"], 2, "--max-seconds -1"),
        (["--max-seconds", "0", "--", "true"], 2, "--max-seconds 0: there is no time in it"),
        (["--max-usd", "1", "--id", "", "--", "true"], 2, "--id is empty"),
        (["--max-usd", "1", "--url", "http://127.0.0.1:1", "--key-file", "/no/such/file", "--", "true"], 1, "cannot read the key in /no/such/file"),
        (["--max-usd", "1", "--url", "http://127.0.0.1:1", "--key", "secret", "--", "true"], 2, "--key"),
    ],
)
def test_mistakes_are_told(arguments: list[str], code: int, says: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == code and says in ended.stderr


def test_signals_reach_the_program() -> None:
    program = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([str(BINARY), "run", "--max-usd", "1", "--", sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None and command.stdout.readline() == "up\n"
        time.sleep(0.1)
        command.send_signal(signal.SIGTERM)
        assert command.wait(20) == 9


def test_a_folder_with_a_space_in_its_name(model: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    folder = tmp_path / "a folder (of 100%)"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    ended = run("--max-usd", "1", "--", sys.executable, str(tmp_path / "agent.py"), model.openai_url, env=environment)
    assert (model.model_calls, ended.returncode) == (4, 1), ended.stderr
    if shutil.which("node"):
        # It was found, and has looked for the package.
        ended = run("--max-usd", "1", "--", "node", "-e", "console.log(1)", env=environment, cwd=tmp_path)
        assert ended.returncode == 2 and "@runguard/sdk is not installed" in ended.stderr and "npm install" in ended.stderr
    assert list(folder.iterdir()) == []


def test_a_folder_with_a_colon_in_its_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    ended = run("--max-usd", "1", "--", "true", env={**os.environ, "TMPDIR": str(tmp_path / "a:b")})
    assert ended.returncode == 2 and "has a colon in its name" in ended.stderr and "TMPDIR" in ended.stderr


def test_folders_of_runs_that_were_killed_are_removed(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program = "import time; print('up', flush=True); time.sleep(60)"
    command = [str(BINARY), "run", "--max-usd", "1", "--", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "up\n"
        run("--max-usd", "1", "--", "true", env=environment)
        assert len(list(tmp_path.glob("runguard-run-*"))) == 1, "one that lasts is left alone"
        os.killpg(killed.pid, signal.SIGKILL)
    assert len(list(tmp_path.glob("runguard-run-*"))) == 1
    run("--max-usd", "1", "--", "true", env=environment)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_what_is_not_counted_is_said(model: ModelServer, tmp_path: Path, flag: str) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    agent = [sys.executable, flag, str(tmp_path / "agent.py"), model.openai_url]
    ended = run("--max-usd", "1", "--", *agent)
    assert (model.model_calls, ended.returncode) == (30, 0)
    assert "runguard: no process reported, so nothing was counted." in ended.stderr and "runguard run is no sandbox" in ended.stderr
    ended = run("--max-usd", "1", "--", sys.executable, "-c", f"import subprocess; subprocess.run({agent!r}, env={{}})")
    assert "runguard: 1 process reported, and no model call was counted." in ended.stderr and "runguard run is no sandbox" in ended.stderr


def test_a_library_that_tells_of_its_own_calls_switches_nothing_off(model: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import runguard\nrunguard.current_run().before_model()\n" + AGENT)
    ended = run("--max-usd", "1", "--", sys.executable, str(tmp_path / "agent.py"), model.openai_url)
    assert (model.model_calls, ended.returncode) == (4, 1), ended.stderr


GREEDY = """
import json, os, urllib.request
told = json.loads(os.environ["RUNGUARD_RUN"])

def ask(session, key):
    body = json.dumps({"session_id": session, "usd": 50, "max_usd": 100}).encode()
    headers = {"content-type": "application/json", "x-runguard-status": "200"}
    request = urllib.request.Request(told["url"] + "/guard/budget/reserve", body, {**headers, **({"authorization": "Bearer " + key} if key else {})})
    try:
        return json.load(urllib.request.urlopen(request))["allow"]
    except urllib.error.HTTPError as error:
        return error.code

print(ask("mine", None), ask("mine", told["api_key"]), ask(told["run_id"], told["api_key"]), len(told["run_id"]) > 30)
"""


def test_its_service_has_a_key_and_the_limit() -> None:
    ended = run("--max-usd", "1", "--", sys.executable, "-c", GREEDY)
    assert ended.stdout == "401 False False True\n", ended.stderr


def test_a_key_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("rg_from_file\n")
    program = [sys.executable, "-S", "-c", "import json, os; print(json.loads(os.environ['RUNGUARD_RUN']).get('api_key'))"]
    to = ["--max-usd", "1", "--url", "http://127.0.0.1:1"]
    assert run(*to, "--key-file", str(tmp_path / "key"), "--", *program).stdout == "rg_from_file\n"
    assert run(*to, "--", *program, env={**os.environ, "RUNGUARD_KEY": "rg_from_environment"}).stdout == "rg_from_environment\n"
