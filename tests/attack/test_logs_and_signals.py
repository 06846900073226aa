"""A log that cannot be written, and signals: neither holds a service up, nor ends it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
import time

import pytest

from raw import ask, connect, head, read_answer, status_of
from runguard_process import binary, clean_environment, free_port

NOW = "x-runguard-now: 0"
ASK = json.dumps({"session_id": "s", "task_name": "t"})


class Bare:
    """A service whose standard error is the test's."""

    def __init__(self, folder, stderr, *arguments: str):
        self.port = free_port()
        command = [str(binary()), "serve", "--listen", f"127.0.0.1:{self.port}", "--data", str(folder / "data"), *arguments]
        self.process = subprocess.Popen(command, stderr=stderr, env=clean_environment(), cwd=folder)
        deadline = time.monotonic() + 20
        while self.get("/readyz") != 200:
            assert time.monotonic() < deadline and self.process.poll() is None, self.process.poll()
            time.sleep(0.02)

    def get(self, path: str, method: str = "GET", body: str | None = None) -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def goes_on(self) -> None:
        for number in range(50):
            assert self.get("/guard/ai-task-retry", "POST", json.dumps({"session_id": f"s{number}", "task_name": "t"})) == 200
            assert self.get(f"/v1/sessions/s{number}", "DELETE") == 200
        assert self.get("/readyz") == 200

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(15)


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_reader_of_the_log_that_is_gone_ends_nothing(tmp_path, level):
    read, write = os.pipe()
    service = Bare(tmp_path, write, "--log-level", level)
    os.close(write)
    os.close(read)
    try:
        service.goes_on()
    finally:
        code = service.end()
    assert code == 0


def test_a_log_on_a_full_disk_ends_nothing(tmp_path):
    with open("/dev/full", "w") as full:
        service = Bare(tmp_path, full)
        try:
            service.goes_on()
        finally:
            code = service.end()
    assert code == 0


def test_a_pipe_that_nobody_reads_holds_nobody_up(tmp_path):
    read, write = os.pipe()
    service = Bare(tmp_path, write, "--log-level", "debug")
    os.close(write)
    try:
        for _ in range(15):
            service.goes_on()
    finally:
        code = service.end()
        os.close(read)
    assert code == 0


@pytest.mark.parametrize("level", ["verbose", "postgres://u:secret@host/db", "postgres://u:secret@host/db?sslmode=require"])
def test_what_is_no_level_is_refused_at_the_start(tmp_path, level):
    ran = subprocess.run([str(binary()), "serve", "--log-level", level, "--data", str(tmp_path / "data")], capture_output=True, text=True,
                         env=clean_environment(), timeout=20)
    assert ran.returncode == 2 and "error, warn, info or debug" in ran.stderr, ran
    assert "secret" not in ran.stderr, "the password of a database that was meant for another variable"


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signals_that_mean_something_else_end_nothing(serve, name):
    server = serve()
    server.process.send_signal(getattr(signal, name))
    deadline = time.monotonic() + 10
    while name not in server.log():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)
    assert server.client().get("/readyz").status == 200


def test_no_request_of_a_busy_connection_is_lost_when_the_service_stops(serve):
    server = serve(virtual_clock=False)
    lost: list[str] = []
    told_to_go: list[int] = []
    begun = threading.Barrier(21)

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.connect()
        begun.wait()
        for _ in range(10_000):
            try:
                connection.request("POST", "/guard/handoff", json.dumps({"session_id": f"s{number}", "source_bot": "a", "target_bot": "b"}))
                answer = connection.getresponse()
                answer.read()
            except OSError as error:
                lost.append(repr(error))
                return
            except http.client.HTTPException as error:
                lost.append(repr(error))
                return
            if answer.getheader("connection") == "close":
                told_to_go.append(number)
                return
            time.sleep(0.002)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(0.3)
    server.process.terminate()
    for thread in threads:
        thread.join()
    assert (lost, len(told_to_go)) == ([], 20)
    assert server.process.wait(10) == 0


# -- bodies that are not read ------------------------------------------------------------------------


def test_an_answer_before_the_body_says_that_the_connection_ends(serve):
    server = serve("[server]\nrequests_per_second_per_key = 1\n", virtual_clock=False)
    body = ASK.encode()
    with connect(server.port) as connection:
        for expected in (200, 429):
            request = head("POST", "/guard/ai-task-retry", f"Content-Length: {len(body)}").replace(b"Connection: close\r\n", b"")
            connection.sendall(request)
            time.sleep(0.05)
            connection.sendall(body)
            answer = read_answer(connection)
            assert status_of(answer) == expected, answer
            assert (b"connection: close" in answer.lower()) == (expected == 429), answer


@pytest.mark.parametrize("header, status", [("Content-Encoding: gzip", 415), ("Content-Encoding: identity", 200)])
def test_an_encoded_body_is_refused_with_words(shared_server, header, status):
    answer = ask(shared_server.port, head("POST", "/guard/ai-task-retry", header, NOW, f"Content-Length: {len(ASK)}") + ASK.encode())
    assert status_of(answer) == status, answer


def test_who_asks_before_sending_too_much_is_spared_it(shared_server):
    answer = ask(shared_server.port, head("POST", "/guard/ai-task-retry", "Expect: 100-continue", "Content-Length: 3000000"))
    assert status_of(answer) == 413, answer


@pytest.mark.parametrize("name", ["X-Forwarded-For: 203.0.113.9", "Forwarded: for=203.0.113.9", "X-Real-IP: 203.0.113.9"])
def test_nobody_comes_through_a_proxy_without_a_key(shared_server, serve, name):
    assert status_of(ask(shared_server.port, head("GET", "/v1/decisions", name))) == 403
    listed = serve('[server]\nhosts = ["guard.internal"]\n')
    assert "whoever reaches the proxy may do everything" in listed.log()
    assert status_of(ask(listed.port, head("GET", "/v1/decisions", name, NOW, host="guard.internal"))) == 200
