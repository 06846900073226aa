"""`runguard run -- python agent.py`: a program as it is, whose model calls are capped."""

from __future__ import annotations

import os
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
    assert "runguard-breaker is not installed" in ended.stderr and "pip install runguard-breaker" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--", "true"], 2, "nothing is limited"),
        (["--max-usd", "much", "--", "true"], 2, "--max-usd much"),
        (["--max-usd", "1", "--", "no-such-program"], 3, "there is no program no-such-program"),
        (["--max-usd", "1"], 2, "required"),
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
