"""Bytes on a socket, for clients that no library would be."""

from __future__ import annotations

import socket
import time


def connect(port: int, timeout: float = 15) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def head(method: str, path: str, *headers: str, host: str = "localhost") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


def read_answer(connection: socket.socket) -> bytes:
    """Up to the end of the answer's body, by its content length, or up to the end of the connection."""
    received = b""
    while True:
        lines, found, body = received.partition(b"\r\n\r\n")
        if found:
            lengths = [line for line in lines.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if lengths and len(body) >= int(lengths[0].split(b":")[1]):
                return received
        piece = connection.recv(65536)
        if not piece:
            return received
        received += piece


def ask(port: int, request: bytes, timeout: float = 15) -> bytes:
    with connect(port, timeout) as connection:
        connection.sendall(request)
        return read_answer(connection)


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), f"no answer: {answer[:200]!r}"
    return int(answer.split(b" ", 2)[1])


def is_closed_within(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side ends the connection; what it says before is thrown away."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            if connection.recv(65536) == b"":
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def wait_until(condition, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
