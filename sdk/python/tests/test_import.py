"""What `import runguard` brings with it: short scripts and serverless functions pay for it at every start."""

from __future__ import annotations

import subprocess
import sys

# Each takes as long to import as all of this package, or longer. Who needs one imports it where it is used.
HEAVY = {
    "asyncio",
    "concurrent.futures",
    "contextlib",
    "dataclasses",
    "datetime",
    "decimal",
    "email",
    "enum",
    "http",
    "inspect",
    "json",
    "logging",
    "queue",
    "random",
    "re",
    "socket",
    "ssl",
    "threading",
    "typing",
    "urllib",
    "uuid",
}


def modules_after(statement: str) -> set[str]:
    # Without the environment's own start-up files, which import what they like.
    program = f"import sys; sys.path[:0] = {sys.path!r}; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_nothing_heavy_is_imported() -> None:
    brought = modules_after("import runguard") - modules_after("pass")
    assert not brought & HEAVY
    assert {name for name in brought if name.startswith("runguard")} == {
        "runguard",
        "runguard._core",
        "runguard._typing",
        "runguard.detectors",
        "runguard.errors",
        "runguard.guards",
        "runguard.run",
    }


def test_every_name_is_there_all_the_same() -> None:
    program = "import runguard; assert set(runguard.__all__) <= set(dir(runguard)); [getattr(runguard, name) for name in runguard.__all__]; from runguard import *; Client, polling, Alerts"
    subprocess.run([sys.executable, "-c", program], check=True)
