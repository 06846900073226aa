"""Runs the adapter tests, each in an environment of its own with the real framework, then the framework's example, then the bars.

    python run.py --wheel dist/runguard_breaker-….whl             all frameworks
    python run.py --wheel … --quick                               those that install in seconds
    python run.py --wheel … langchain crewai                      these only
    python run.py --fill --quick                                  only downloads what these need

Environments are kept (in .venv/adapters of the package) and filled anew only when their requirements change. Only one of them is
filled at a time, and a refused download is tried again later, because package indexes refuse bursts.

What the bars measure (bars.py) is kept in sdk/adapters.json and shown in docs/adapters.md. The quick form measures less and keeps nothing, but
a cell that is worse than its bar fails there too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import table

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1]
EXAMPLES = PACKAGE.parents[1] / "examples" / "python"
# Where the environments are kept.
HOME = PACKAGE / ".venv" / "adapters"
PYTEST = "pytest==9.2.0"
ATTEMPTS = 6
TIMEOUT_SECONDS = 900
# The quicker installer, where `./test` has one.
UV = os.environ.get("RUNGUARD_UV")

one_install_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Environment:
    name: str
    requirements: tuple[str, ...]
    test: str
    # Empty where docs/adapters.md has the whole program.
    example: str
    quick: bool = False
    # Its rows are kept: of two releases of a framework, the newer one's.
    bars: bool = False


class Failed(Exception):
    """A step that did not go well; the text is its output."""


def environments() -> dict[str, Environment]:
    table = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))
    return {
        name: Environment(name, tuple(entry["requirements"]), entry["test"], entry.get("example", ""), entry.get("quick", False), entry.get("bars", False))
        for name, entry in table.items()
    }


def execute(command: list[str], cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{late.stdout or ''}\nnot done after {TIMEOUT_SECONDS} s: {' '.join(command)}") from None
    if done.returncode != 0:
        raise Failed(f"{done.stdout}\nexit code {done.returncode}: {' '.join(command)}")
    return done.stdout


def create(folder: Path) -> None:
    venv = [UV, "venv", "--quiet", "--seed", "--python", sys.executable] if UV else [sys.executable, "-m", "venv"]
    execute([*venv, "--clear", str(folder)], HERE)


def install(python: Path, *arguments: str) -> None:
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    for attempt in range(1, ATTEMPTS + 1):
        # It does not read pip's settings: where it finds no packages, pip may.
        installer = [UV, "pip", "install", "--python", str(python)] if UV and attempt == 1 else pip
        try:
            execute([*installer, "--quiet", *arguments], HERE)
            return
        except Failed:
            if attempt == ATTEMPTS:
                raise
            time.sleep(5 * attempt)


def fill(environment: Environment, home: Path) -> Path:
    """The environment's interpreter, with the framework in place."""
    folder = home / environment.name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = "\n".join([PYTEST, *environment.requirements])
    filled_with = folder / "requirements.txt"
    with one_install_at_a_time:
        if not filled_with.exists() or filled_with.read_text(encoding="utf-8") != wanted:
            create(folder)
            install(python, PYTEST, *environment.requirements)
            filled_with.write_text(wanted, encoding="utf-8")
    return python


def measure(environment: Environment, python: Path, quick: bool) -> list[table.Row]:
    """The rows of the environment. One that is worse than the bars is a failure."""
    rows: list[table.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        for test in environment.test.split():
            command = [str(python), "bars.py", test.removesuffix(".py"), "--out", str(out)]
            execute([*command, *(["--quick"] if quick else [])], HERE)
            rows += json.loads(out.read_text(encoding="utf-8"))
    found = table.worse(rows)
    if found:
        raise Failed("\n".join(found))
    return rows


def check(environment: Environment, home: Path, wheel: Path, quick: bool) -> tuple[bool, str, list[table.Row]]:
    rows: list[table.Row] = []
    started = time.monotonic()
    try:
        python = fill(environment, home)
        # By path and without the index: the name on the index belongs to somebody else's package.
        install(python, "--force-reinstall", "--no-deps", "--no-index", str(wheel))
        tests = execute([str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *environment.test.split(), "test_documented.py"], HERE)
        if environment.example and not execute([str(python), str(EXAMPLES / environment.example)], EXAMPLES).strip():
            raise Failed(f"the example {environment.example} printed nothing")
        if environment.bars:
            rows = measure(environment, python, quick)
    except Failed as failure:
        return False, f"FAILED {environment.name}\n{failure}", []
    last_line = tests.strip().splitlines()[-1]
    return True, f"ok     {environment.name}: {last_line} (with installation {time.monotonic() - started:.0f} s)", rows


def main() -> int:
    known = environments()
    parser = argparse.ArgumentParser(description="Runs the adapter tests, one environment per framework.")
    parser.add_argument("frameworks", nargs="*", metavar="framework", help=f"one or more of: {', '.join(known)}")
    parser.add_argument("--wheel", type=Path, help="the runguard wheel to test")
    parser.add_argument("--fill", action="store_true", help="only fill the environments; no wheel is needed")
    parser.add_argument("--quick", action="store_true", help="only the frameworks that install in seconds")
    parser.add_argument("--venvs", type=Path, default=HOME, help="where the environments are kept")
    parser.add_argument("--jobs", type=int, default=2, help="how many frameworks are tested at the same time")
    options = parser.parse_args()
    unknown = [name for name in options.frameworks if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    chosen = [known[name] for name in options.frameworks] or [entry for entry in known.values() if entry.quick or not options.quick]
    home = options.venvs.resolve()
    if options.fill:
        for environment in chosen:
            fill(environment, home)
        return 0
    if options.wheel is None or not options.wheel.is_file():
        parser.error(f"there is no wheel at {options.wheel}; build one with `maturin build` in {PACKAGE}")
    wheel = options.wheel.resolve()
    measured: list[table.Row] = []
    passed = True
    with ThreadPoolExecutor(max_workers=max(options.jobs, 1)) as pool:
        for ok, report, rows in pool.map(lambda environment: check(environment, home, wheel, options.quick), chosen):
            print(report, flush=True)
            passed, measured = passed and ok, [*measured, *rows]
    if not options.quick:
        table.take_over(measured)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
