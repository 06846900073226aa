"""The binary as a process: where it is, how it is started, asked and stopped."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from runguard_http import Client

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 30
STOP_SECONDS = 30


def binary() -> Path:
    """RUNGUARD_BIN, else the release build, else the debug build."""
    named = os.environ.get("RUNGUARD_BIN")
    candidates = (
        [Path(named)]
        if named
        else [REPOSITORY / "target" / build / "runguard" for build in ("release", "debug")]
    )
    for candidate in candidates:
        if candidate.exists():
            return candidate.resolve()
    tried = ", ".join(str(candidate) for candidate in candidates)
    raise FileNotFoundError(f"no runguard binary at {tried}: run `cargo build --release` or set RUNGUARD_BIN")


def clean_environment(**extra: str) -> dict[str, str]:
    """The caller's environment without its RUNGUARD_* settings, plus `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUNGUARD_")}
    return {**kept, **extra}


def run_cli(*arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None,
            timeout: float = 60, given: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `runguard ARGUMENTS…` to its end and keeps what it wrote. `given` is what it reads."""
    return subprocess.run(
        [str(binary()), *map(str, arguments)],
        cwd=cwd, env=clean_environment(**(env or {})), timeout=timeout,
        capture_output=True, text=True, input=given,
    )


# Below those that the system gives to clients.
PORTS = range(10_000, 30_000)
NEXT_PORT = itertools.count(random.randrange(len(PORTS)))
# A byte for each port. Whoever is given one has its byte locked until the process ends: other suites run at the same time, and a service
# that is started, or started again, listens only a moment later.
TAKEN = os.open(Path(tempfile.gettempdir()) / f"runguard-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def free_port() -> int:
    for number in itertools.islice(NEXT_PORT, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                fcntl.lockf(TAKEN, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no port is free")


class ServerDidNotStart(AssertionError):
    def __init__(self, message: str, exit_code: int | None, log: str):
        super().__init__(f"{message} (exit code {exit_code})\n--- server log ---\n{log}")
        self.exit_code = exit_code
        self.log = log


class Server:
    """One `runguard serve` on one data folder; may be stopped, killed and started again."""

    def __init__(self, folder: Path, *, data: Path | None = None, config: str | None = None,
                 virtual_clock: bool = True, environment: dict[str, str] | None = None,
                 arguments: tuple[str, ...] = (), listen: str | None = None, verb: str = "serve"):
        self.folder = folder
        self.verb = verb
        self.data = data or folder / "data"
        self.virtual_clock = virtual_clock
        self.environment = environment or {}
        self.arguments = arguments
        self.port = free_port()
        self.listen = listen or f"127.0.0.1:{self.port}"
        self.log_file = folder / "server.log"
        self.config_file = folder / "runguard.toml" if config is not None else None
        if self.config_file:
            self.config_file.write_text(config)
        self.process: subprocess.Popen | None = None

    # -- life ---------------------------------------------------------------------------------

    def launch(self) -> Server:
        """Starts the process without waiting for it to be ready."""
        command = [str(binary()), self.verb, "--listen", self.listen, "--data", str(self.data)]
        if self.config_file:
            command += ["--config", str(self.config_file)]
        if self.virtual_clock:
            command += ["--virtual-clock"]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.arguments], cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=clean_environment(**self.environment),
            )
        return self

    def start(self) -> Server:
        self.launch()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerDidNotStart("the server ended before it was ready", self.process.returncode, self.log())
            try:
                if self.client().get("/readyz").status == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.005)
        raise ServerDidNotStart(f"not ready after {START_SECONDS} s", None, self.log())

    def stop(self) -> int:
        """SIGTERM, and the exit code it ends with."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {STOP_SECONDS} s\n{self.log()}") from None

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def restart(self) -> Server:
        assert self.stop() == 0, f"SIGTERM should end in exit code 0\n{self.log()}"
        return self.start()

    # -- what it says -------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, *, key: str | None = None, keep_alive: bool = False) -> Client:
        return Client(self.port, virtual_clock=self.virtual_clock, key=key, keep_alive=keep_alive)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def files_containing(self, *needles: str) -> list[str]:
        """Which files under the data folder hold one of these texts, in UTF-8 or UTF-16."""
        found = []
        for path in sorted(p for p in self.data.rglob("*") if p.is_file()):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue  # a file of the journal that has just gone
            found += [
                f"{path.name}: {needle!r}" for needle in needles
                if needle.encode() in content or needle.encode("utf-16-le") in content
            ]
        return found
