"""A command on a terminal of its own: a pseudo-terminal of a size, and all that it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

from runguard_process import binary, clean_environment

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """`runguard ARGUMENTS…` with its standard streams on a terminal."""

    def __init__(self, *arguments: str | Path, columns: int = 80, cwd: Path | None = None, **environment: str):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        kept = {name: value for name, value in clean_environment().items() if name not in ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI")}
        self.process = subprocess.Popen(
            [str(binary()), *map(str, arguments)], cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**kept, "TERM": "xterm-256color", "TZ": "UTC", **environment},
        )
        os.close(slave)
        self.raw = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        os.close(self.master)

    @property
    def text(self) -> str:
        """What is to be read: without colours, lines that were drawn again as they stood last."""
        lines = CODES.sub("", self.raw.replace("\r\n", "\n")).split("\n")
        return "\n".join(line.rsplit("\r", 1)[-1] for line in lines)

    def _read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self.master, 65536)
        except OSError:
            return False
        self.raw += piece.decode(errors="replace")
        return bool(piece)

    def until(self, words: str, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < deadline and self._read(0.2), f"{words!r} did not come:\n{self.text}"
        return self.text

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, seconds: float = 60) -> int:
        """The exit code, when it has ended by itself."""
        deadline = time.monotonic() + seconds
        while self._read(0.2):
            assert time.monotonic() < deadline, f"it did not end:\n{self.text}"
            if self.process.poll() is not None and not select.select([self.master], [], [], 0)[0]:
                break
        return self.process.wait(10)


def shown(*arguments: str | Path, columns: int = 80, cwd: Path | None = None, **environment: str) -> Terminal:
    """Runs it to its end."""
    with Terminal(*arguments, columns=columns, cwd=cwd, **environment) as terminal:
        terminal.code = terminal.end()
        return terminal
