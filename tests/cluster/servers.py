"""The real parts of a cluster beside the nodes: Redis, Postgres, and a wire between them that can be slow or cut."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from runguard_process import free_port

READY_SECONDS = 30


def until(condition: Callable[[], object], what: str, seconds: float = READY_SECONDS):
    """Asks until it is true, and gives what it said."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return found


class Redis:
    """One redis-server; may be killed and started again on the same port and folder."""

    def __init__(self, folder: Path, *options: str, login: tuple[str, ...] = (), tls: Certificates | None = None,
                 program: str = "redis-server"):
        self.program = program
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.login = login
        self.options = list(options)
        if tls:
            self.options += ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no", *tls.server_options()]
            self.login += ("--tls", "--cacert", str(tls.authority))
        else:
            self.options += ["--port", str(self.port)]
        self.process: subprocess.Popen | None = None

    def start(self) -> Redis:
        self.process = subprocess.Popen(
            [self.program, "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder), "--logfile", "log",
             "--repl-diskless-sync-delay", "0", *self.options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        until(lambda: self.process.poll() is not None or "PONG" in self.cli("PING"), "redis-server")
        assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
        return self

    def cli(self, *arguments: str) -> str:
        command = ["redis-cli", "-h", "localhost", "-p", str(self.port), "--no-auth-warning", *self.login, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Neither answers nor hangs up."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"


def replica_of(primary: Redis, folder: Path) -> Redis:
    replica = Redis(folder, "--replicaof", "127.0.0.1", str(primary.port)).start()
    until(lambda: "master_link_status:up" in replica.cli("INFO", "replication"), "the replica to follow")
    until(lambda: "state=online" in primary.cli("INFO", "replication"), "the primary to know its replica")
    # Until it has told how far it is, nothing counts as copied.
    # Who is written to all the while is never level with itself, but with what it was.
    reached, _ = _offsets(primary)
    until(lambda: _offsets(primary)[1] >= reached, "the replica to be level")
    return replica


def _offsets(primary: Redis) -> tuple[int, int]:
    """How far a primary is, and how far its replica has said to be."""
    fields = dict(line.split(":", 1) for line in primary.cli("INFO", "replication").splitlines() if ":" in line)
    copied = dict(part.split("=", 1) for part in fields.get("slave0", "").strip().split(",") if "=" in part)
    return int(fields["master_repl_offset"]), int(copied.get("offset", -1))


def wrong_clock(offset: str) -> dict[str, str]:
    """The environment of a process whose wall clock is off by so much; its other clocks are right."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    assert found, "libfaketime is not installed: install the package `faketime`"
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


class RedisCluster:
    """Three primaries."""

    def __init__(self, folder: Path, tls: Certificates | None = None, **more):
        self.servers = []
        self.tls = tls
        for number in range(3):
            options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-config-file", "nodes",
                       "--cluster-node-timeout", "1000", "--appendonly", "yes", "--appendfsync", "always")
            if tls:
                # Servers name each other by what their certificate is for.
                options += ("--tls-cluster", "yes", "--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname")
            self.servers.append(Redis(folder / f"redis-{number}", *options, tls=tls, **more).start())
        places = [f"127.0.0.1:{server.port}" for server in self.servers]
        trusted = ["--tls", "--cacert", str(tls.authority), "--sni", "localhost"] if tls else []
        made = subprocess.run(["redis-cli", *trusted, "--cluster", "create", *places, "--cluster-yes"],
                              capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stdout + made.stderr
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        def whole(server: Redis) -> bool:
            told = server.cli("CLUSTER", "INFO")
            return "cluster_state:ok" in told and "cluster_known_nodes:3" in told and "cluster_slots_ok:16384" in told

        until(lambda: all(map(whole, self.servers)), "the cluster to be whole")

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    @property
    def url(self) -> str:
        scheme, host = ("rediss", "localhost") if self.tls else ("redis", "127.0.0.1")
        return f"{scheme}+cluster://" + ",".join(f"{host}:{server.port}" for server in self.servers)


class Certificates:
    """An authority, and a server's certificate for `localhost`."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.folder = folder
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        self._openssl("req", "-x509", "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem", *key)
        self._openssl("req", "-x509", "-CA", "ca.pem", "-CAkey", "ca.key", "-subj", "/CN=localhost", "-keyout", "server.key",
                      "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:false",
                      "-out", "server.pem", *key)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    def server_options(self) -> list[str]:
        return ["--tls-cert-file", str(self.folder / "server.pem"), "--tls-key-file", str(self.folder / "server.key"),
                "--tls-ca-cert-file", str(self.authority)]


def _postgres_program(name: str) -> str:
    """Debian keeps the server's programs out of the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True)
    for candidate in [folder / name for folder in folders]:
        if candidate.exists():
            return str(candidate)
    found = shutil.which(name)
    assert found, f"there is no {name}: install the package `postgresql`"
    return found


class Postgres:
    """One server for a run of the suite, with a database for each test."""

    PASSWORD = "pg-secret-word"

    def __init__(self, folder: Path):
        # Short: a socket's path has at most 107 bytes.
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen | None = None
        self.databases = 0
        # Postgres refuses to run as root.
        self.user = "postgres" if os.getuid() == 0 else None
        if self.user:
            account = pwd.getpwnam(self.user)
            os.chown(folder, account.pw_uid, account.pw_gid)
        secret = folder / "password"
        secret.write_text(self.PASSWORD)
        secret.chmod(0o644)
        self._run("initdb", "-D", str(folder / "data"), "-U", "postgres", "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8",
                  "--locale=C", "--no-sync", "--no-instructions")

    def _run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([_postgres_program(name), *arguments], cwd=self.folder, user=self.user, capture_output=True, text=True,
                              env={**os.environ, "LC_ALL": "C", "PGPASSWORD": self.PASSWORD}, timeout=120)
        assert done.returncode == 0, f"{name} {arguments}: {done.stdout}{done.stderr}"
        return done

    def start(self) -> Postgres:
        if self.process:
            return self
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [_postgres_program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder),
             "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200"],
            cwd=self.folder, user=self.user, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )

        def answers() -> bool:
            try:
                return self.sql("SELECT 1", "postgres") == ["1"]
            except AssertionError:
                return False

        until(answers, "Postgres")
        return self

    def stop(self, how: int = signal.SIGQUIT) -> None:
        """SIGQUIT: as a crash would end it."""
        if self.process:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    def sql(self, statement: str, database: str) -> list[str]:
        """The lines it prints."""
        done = self._run("psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port),
                         "-U", "postgres", "-d", database, "-c", statement)
        return done.stdout.splitlines()

    def database(self) -> Database:
        self.databases += 1
        name = f"test_{self.databases}"
        self.sql(f"CREATE DATABASE {name}", "postgres")
        return Database(self, name)


class Database:
    def __init__(self, server: Postgres, name: str):
        self.server = server
        self.name = name

    @property
    def url(self) -> str:
        return f"postgres://postgres:{Postgres.PASSWORD}@127.0.0.1:{self.server.port}/{self.name}"

    def sql(self, statement: str) -> list[str]:
        return self.server.sql(statement, self.name)

    def ids(self) -> list[str]:
        """Of all decisions in the log."""
        return self.sql("SELECT id FROM runguard_log ORDER BY seq")


class Proxy:
    """A wire to a port of this machine. `delay` is what it adds, in seconds, from and to."""

    def __init__(self, target: int):
        self.target = target
        self.delay: tuple[float, float] | None = None
        self._down = threading.Event()
        self._flows = threading.Event()
        self._flows.set()
        self._cut_answers = 0
        # Pieces that were taken and are not handed on yet.
        self.on_their_way = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._down.is_set():
                    raise OSError
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        try:
            while piece := source.recv(65536):
                with self._on_its_way():
                    self._flows.wait()
                    if is_answer and self._take_a_cut():
                        break
                    if self.delay and is_answer:
                        time.sleep(random.uniform(*self.delay))
                    sink.sendall(piece)
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self._lock:
            self._open -= {source, sink}

    @contextlib.contextmanager
    def _on_its_way(self) -> Iterator[None]:
        with self._lock:
            self.on_their_way += 1
        try:
            yield
        finally:
            with self._lock:
                self.on_their_way -= 1

    def _take_a_cut(self) -> bool:
        with self._lock:
            if self._cut_answers == 0:
                return False
            self._cut_answers -= 1
            return True

    def cut_next_answers(self, count: int) -> None:
        """The server did what was asked; the caller never hears of it."""
        with self._lock:
            self._cut_answers = count

    def cut(self) -> None:
        """Every connection ends, in the middle of whatever it carries."""
        with self._lock:
            gone = list(self._open)
        for one in gone:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def hold(self) -> None:
        """Nothing passes, and nobody hangs up."""
        self._flows.clear()

    def let_go(self) -> None:
        self._flows.set()

    def down(self) -> None:
        self._down.set()
        self.cut()

    def up(self) -> None:
        self._down.clear()

    def close(self) -> None:
        self._flows.set()
        self._listener.close()
        self.cut()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"
