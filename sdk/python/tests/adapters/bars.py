"""Plays what every adapter is measured by, with its real framework, and writes the measured row.

    python bars.py test_langchain --out rows.json [--quick]

A test file says how its framework is put together: `BARS` has a `Driver` for each row. All counts are those of the model server and of the
tool, never the run's own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator, Optional
from urllib.parse import urlsplit

import checks
from conftest import Search
from guard_service import running_service
from model_server import FINAL_ANSWER, Call, ModelServer, Reply, Usage

from runguard import BudgetExceededError, LoopDetectedError, Run, cost_usd, trip_of
from runguard.errors import TripError

MODEL = "gpt-4o"
# Each answer costs a quarter of a dollar: the fourth breaks this, and its tool does not run.
CAP = 0.99
# The quarter for models of a dollar a million, and five for what is written.
QUARTER_OF_HAIKU = Usage(input=200_000, output=10_000, cached=0, cache_write=0)
READ_QUARTER_OF_HAIKU = Usage(input=249_995, output=1, cached=0, cache_write=0)
AT_ONCE = 64
USERS = 3
RESTART_SECONDS = 300
Cell = Optional[dict[str, Any]]


@dataclass(frozen=True)
class Driver:
    """How a framework runs an agent with the tool `search` once: `(server, search, run or function, model) → ask`. See checks.py."""

    # What is measured, as pip calls it.
    package: str
    whole: checks.Make
    streamed: Optional[checks.Make] = None
    # Where the framework itself fails on an answer without usage that is not streamed.
    uncounted: Optional[checks.Make] = None
    # The name of the tool as the model sees it, the model, and the usage of an answer that costs a quarter of a dollar with it.
    tool: str = "search"
    model: str = MODEL
    quarter: Usage = checks.QUARTER
    # What cannot be measured, by column.
    leaves_out: tuple[str, ...] = ()


def wandering(tool: str) -> list[Reply]:
    """Asks for something else each time and never ends; far more than any bar allows, with an end so that a broken guard is measured."""
    return [*(Reply(calls=(Call(tool, {"query": f"book {number}"}),)) for number in range(40)), Reply(text=FINAL_ANSWER)]


def healthy_again(tool: str) -> list[Reply]:
    return [Reply(calls=(Call(tool, {"query": "rust"}),)), Reply(text=FINAL_ANSWER)]


class Scenarios:
    def __init__(self, module: str, name: str, driver: Driver) -> None:
        self.module, self.name, self.driver = module, name, driver

    def row(self, quick: bool) -> dict[str, Any]:
        columns = ("loop", "cap", "cap_streamed", "users") if quick else ("loop", "cap", "cap_streamed", "no_usage", "at_once", "restart", "users")
        cells: dict[str, Cell] = {column: None if column in self.driver.leaves_out else getattr(self, column)() for column in columns}
        version = f"{self.driver.package} {importlib.metadata.version(self.driver.package)}"
        return {"framework": self.name, "language": "python", "version": version, **cells}

    def loop(self) -> Cell:
        script = [Reply(calls=(Call(self.driver.tool, {"query": "rust"}),))] * 40 + [Reply(text=FINAL_ANSWER)]
        return self._stopped(self.driver.whole, Run(repeats=3), LoopDetectedError, ModelServer(script))

    def cap(self) -> Cell:
        return self._capped(self.driver.whole)

    def cap_streamed(self) -> Cell:
        return None if self.driver.streamed is None else self._capped(self.driver.streamed)

    def no_usage(self) -> Cell:
        long = [Reply(calls=(Call(self.driver.tool, {"query": f"{number} " + "more " * 2_000}),)) for number in range(40)]
        # Two thousand tokens each, which the next question reads again: with the fourth the price of ten thousand is gone.
        run = Run(max_usd=cost_usd(self.driver.model, 0, 10_000))
        return self._stopped(self.driver.uncounted or self.driver.whole, run, BudgetExceededError, ModelServer(long, usage=None))

    def at_once(self) -> Cell:
        with ModelServer([Reply(text=FINAL_ANSWER)], usage=self.driver.quarter) as server:
            ask = self.driver.whole(server, Search(), Run(max_usd=1, repeats=1000), self.driver.model)
            for outcome in checks.at_once(ask, AT_ONCE):
                if isinstance(outcome, BaseException) and not isinstance(trip_of(outcome), BudgetExceededError):
                    raise outcome
            return {"usd": _asked(server) * 0.25}

    def users(self) -> Cell:
        with checks.Conversations(healthy_again(self.driver.tool)) as server:
            ask = self.driver.whole(server, Search(), lambda: Run(repeats=3, max_model_calls=3), self.driver.model)
            return {"healthy": sum(_is_healthy(ask) for _ in range(USERS)), "of": USERS}

    def restart(self) -> Cell:
        with tempfile.TemporaryDirectory() as folder, running_service(Path(folder)) as service:
            with ModelServer(healthy_again(self.driver.tool), usage=self.driver.quarter) as server:
                search = Search()
                ask = self.driver.whole(server, search, _shared(service), self.driver.model)
                if not _is_healthy(ask):
                    raise AssertionError(f"{self.name}: the first process has no answer")
                server.script = wandering(self.driver.tool)
                command = [sys.executable, __file__, self.module, "--second", self.name, "--model-server", server.url, "--service", service]
                second = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=RESTART_SECONDS)
                return {"tools": len(search.runs) + json.loads(second.stdout.splitlines()[-1]), "models": _asked(server)}

    def second(self, model_server: str, service: str) -> int:
        """What the second process does; how often it ran the tool."""
        search = Search()
        _outcome(self.driver.whole(Elsewhere(model_server), search, _shared(service), self.driver.model))
        return len(search.runs)

    def _capped(self, make: checks.Make) -> Cell:
        server = ModelServer(wandering(self.driver.tool), usage=self.driver.quarter)
        return self._stopped(make, Run(max_usd=CAP), BudgetExceededError, server)

    def _stopped(self, make: checks.Make, run: Run, kind: type[TripError], server: ModelServer) -> Cell:
        search = Search()
        with server:
            outcome = _outcome(make(server, search, run, self.driver.model))
            # A call that there is no room for is refused without ending the run: a smaller one may fit.
            if not isinstance(run.trip or trip_of(outcome), kind):
                raise AssertionError(f"{self.name}: {server.model_calls} model calls, and it was not stopped: {outcome!r}")
            return {"tools": len(search.runs), "models": _asked(server)}


class Elsewhere(ModelServer):
    """The model server of another process."""

    def __init__(self, url: str) -> None:
        self._http = SimpleNamespace(server_address=("127.0.0.1", urlsplit(url).port))  # type: ignore[assignment]


def _asked(server: ModelServer) -> int:
    """The agent's model calls: where a framework asks a model of its own besides, that has no tools."""
    return server.model_calls if server.toolless_text is None else sum(1 for body in server.bodies if body.get("tools"))


def _shared(service: str) -> Run:
    return Run("job-7", max_usd=CAP, url=service)


def _outcome(ask: checks.Ask) -> Optional[Exception]:
    """With what the agent was stopped; None when it came to an end. What is no trip is a fault."""
    try:
        checks.once(ask)
    except Exception as error:
        if trip_of(error) is None:
            raise
        return error
    return None


def _is_healthy(ask: checks.Ask) -> bool:
    try:
        return checks.once(ask) == FINAL_ANSWER
    except Exception as error:
        if trip_of(error) is None:
            raise
        return False


@contextlib.contextmanager
def _quiet_home() -> Iterator[None]:
    """Frameworks that keep files write them where they are thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CREWAI_STORAGE_DIR"] = folder
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the adapters of one test file.")
    parser.add_argument("module")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--second")
    parser.add_argument("--model-server")
    parser.add_argument("--service")
    options = parser.parse_args()
    with _quiet_home():
        drivers: dict[str, Driver] = getattr(importlib.import_module(options.module), "BARS", {})
        if options.second:
            print(Scenarios(options.module, options.second, drivers[options.second]).second(options.model_server, options.service))
            return
        rows = [Scenarios(options.module, name, driver).row(options.quick) for name, driver in drivers.items()]
    options.out.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
