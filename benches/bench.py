"""The measurements behind `./bench`: RunGuard next to a bare handler and to a naive service of the same kind.

Everything runs on this machine, load generator included, so only ratios within one run mean
anything. A run measures; it never fails because a bar was missed.
"""

import argparse
import contextlib
import functools
import gzip
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHES = ROOT / "benches"
WORK = ROOT / "target" / "bench"
ROUTE = "/guard/agent-action"
QUESTION = json.dumps({"session_id": "probe", "action_name": "probe", "action_params_hash": "0"})

CONNECTIONS = 64
SESSIONS = 10_000
MANY_SESSIONS = 1_000_000
FEW_SESSIONS = 1_000
LOG_DECISIONS = 1_000_000

SEEDS = itertools.count(1)
MAX_OTHERS_CPU = 0.2

MIN_SHARE_OF_BARE = 0.60
MIN_TIMES_FLASK = 80
MAX_P99_TIMES_BARE = 3.0
MIN_SHARE_AT_MANY_SESSIONS = 0.90
MAX_RESIDENT_MB = 600
MAX_COLD_START_SECONDS = 1.0
MAX_OVERVIEW_MS = 300
MAX_PAGE_KB = 250
MIN_PRECISION = 0.97
MIN_RECALL = 0.85
MIN_RECALL_OF_OTHERS = 0.80
MAX_FALSE_STOPS = 0.01
MIN_STUCK_RECALL = 0.95
MAX_FRONTIER_FALSE_STOPS = 0.005
MIN_FRONTIER_TOKENS_SAVED = 0.08
MIN_INTERCODE_SAVED = 0.36
MAX_INTERCODE_FALSE_STOPS = 0.005
MIN_REPLAYED_STEPS = 1_000_000
MIN_READ_MEGABYTES = 200
DAY_MS = 86_400_000


# --- what a measurement needs: programs, servers, load ---------------------------------------


def say(text=""):
    print(text, flush=True)


def run(command, **options):
    return subprocess.run([str(part) for part in command], check=True, **options)


def retry(action, attempts=5):
    for attempt in range(1, attempts + 1):
        try:
            return action()
        except subprocess.CalledProcessError:
            if attempt == attempts:
                raise
            time.sleep(5 * attempt)


def apt_install(package):
    say(f"installing {package} …")
    sudo = [] if os.geteuid() == 0 else ["sudo"]

    def install():
        run([*sudo, "apt-get", "update", "-q"], stdout=subprocess.DEVNULL)
        run([*sudo, "apt-get", "install", "-y", "-q", package], stdout=subprocess.DEVNULL)

    retry(install)


def need_wrk():
    if not shutil.which("wrk"):
        apt_install("wrk")


def virtual_environment(folder, probe, packages):
    """The interpreter of a virtual environment that has these packages."""
    python = folder / "bin" / "python"
    if python.exists() and subprocess.run([python, "-c", probe], capture_output=True).returncode == 0:
        return python
    make_venv = [sys.executable, "-m", "venv", "--clear", folder]
    if subprocess.run(make_venv, capture_output=True).returncode != 0:
        apt_install("python3-venv")
        run(make_venv)
    retry(lambda: run([python, "-m", "pip", "install", "-q", *packages]))
    return python


def flask_python():
    return virtual_environment(WORK / "venv", "import flask", ["-r", BENCHES / "requirements.txt"])


def build_runguard(options):
    if options.binary:
        return Path(options.binary).resolve()
    run(["cargo", "build", "--release", "--target-dir", ROOT / "target"], cwd=ROOT)
    return ROOT / "target" / "release" / "runguard"


def build_bare():
    target = WORK / "bare"
    run(["cargo", "build", "--release", "--locked", "-p", "bare", "--target-dir", target], cwd=ROOT)
    return target / "release" / "bare"


@contextlib.contextmanager
def scratch_directory():
    """On the repository's own disk: /tmp may live in memory, where a commit costs nothing."""
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK, prefix="run-") as directory:
        yield Path(directory)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server process that answers the guard's route on `port`."""

    def __init__(self, command, port, log_file, now_ms=None):
        """Runs in the log file's folder, where no settings file lies about. With `now_ms` on the caller's clock."""
        self.port = port
        self.headers = {"content-type": "application/json"} | ({"x-runguard-now": str(now_ms)} if now_ms else {})
        self.log_file = log_file
        self.started_at = time.perf_counter()
        with open(log_file, "ab") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, cwd=log_file.parent
            )

    def __enter__(self):
        self.wait_for_answer()
        return self

    def __exit__(self, *_):
        self.stop(signal.SIGTERM)

    def wait_for_answer(self, timeout_seconds=120):
        """Asks until the first decision comes back; returns the seconds since the start."""
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_seconds)
                connection.request("POST", ROUTE, QUESTION, self.headers)
                if connection.getresponse().status in (200, 429):
                    return time.perf_counter() - self.started_at
            if self.process.poll() is not None or time.perf_counter() - self.started_at > timeout_seconds:
                tail = self.log_file.read_text(errors="replace")[-2000:]
                raise SystemExit(f"the server did not come up; its log ends:\n{tail}")
            time.sleep(0.001)

    def stop(self, how):
        """Returns the seconds until the process was gone."""
        begun = time.perf_counter()
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return time.perf_counter() - begun

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise SystemExit("the server is gone")


def serve_runguard(binary, directory, settings=None, now_ms=None):
    port = free_port()
    command = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--data", directory / "data"]
    if now_ms:
        command += ["--virtual-clock"]
    if settings:
        (directory / "runguard.toml").write_text(settings)
        command += ["--config", directory / "runguard.toml"]
    return Server(command, port, directory / "server.log", now_ms)


def busy_seconds():
    """CPU time of everything on this machine since it started."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


@dataclass
class Load:
    """What one run of wrk saw. Latencies in milliseconds; CPU in cores."""

    per_second: float
    p50: float
    p99: float
    refused: float
    body_bytes: float
    wrk_cpu: float
    server_cpu: float
    others_cpu: float


def load(
    server, seconds, sessions=SESSIONS, order="turn", limit=0, route=ROUTE, threads=2, progress=None, script="load.lua", more=(),
    connections=CONNECTIONS,
):
    """Drives `server` with wrk for `seconds`, or until `limit` answers have come."""
    command = ["wrk", "-t", threads, "-c", connections, "-d", seconds, "--timeout", 10, "-s", BENCHES / script]
    command += [f"http://127.0.0.1:{server.port}{route}", "--", threads, sessions, order, limit, next(SEEDS), *more]
    cpu_before, busy_before = server.cpu_seconds(), busy_seconds()
    wrk = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def watch():
        answered = silent = 0
        for line in wrk.stderr:
            if line.startswith("answered"):
                answered += int(line.split()[1])
                if progress and answered % 100_000 == 0:
                    progress(answered)
            elif line.startswith("done"):
                silent += 1
                if silent == threads:
                    wrk.send_signal(signal.SIGINT)
            else:
                sys.stderr.write(line)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = wrk.stdout.read()
    watcher.join()
    _, status, usage = os.wait4(wrk.pid, 0)
    wrk.returncode = os.waitstatus_to_exitcode(status)
    if wrk.returncode != 0:
        raise SystemExit(f"wrk failed:\n{output}")
    report = json.loads(output.strip().splitlines()[-1])
    if report["socket_errors"]:
        say(f"  note: {report['socket_errors']} socket errors")
    if limit and report["answered"] < limit:
        raise SystemExit(f"only {report['answered']} of {limit} requests were answered in {seconds} s")
    elapsed = report["microseconds"] / 1e6
    server_cpu = server.cpu_seconds() - cpu_before
    wrk_cpu = usage.ru_utime + usage.ru_stime
    return Load(
        per_second=report["requests"] / elapsed,
        p50=report["p50"] / 1000,
        p99=report["p99"] / 1000,
        refused=report["refused"] / max(1, report["requests"]),
        body_bytes=report["body_bytes"] / max(1, report["answered"]),
        wrk_cpu=wrk_cpu / elapsed,
        server_cpu=server_cpu / elapsed,
        others_cpu=(busy_seconds() - busy_before - server_cpu - wrk_cpu) / elapsed,
    )


def median(loads):
    """Field by field: a noisy second of the machine must not decide."""
    return Load(*(statistics.median(values) for values in zip(*(vars(load).values() for load in loads))))


def undisturbed(measure, attempts=4):
    """Measures again while other programs take the machine's time, a few times."""
    for _ in range(attempts):
        measured = measure()
        if measured.others_cpu <= MAX_OTHERS_CPU:
            break
    return measured


def warn_if_disturbed(loads):
    worst = max(load.others_cpu for load in loads)
    if worst > MAX_OTHERS_CPU:
        say(f"Other programs used up to {worst:.1f} of {os.cpu_count()} cores meanwhile: do not trust these figures.")


def bar(passed, text):
    say(f"{'PASS' if passed else 'MISS'}  {text}")
    return {"bar": text, "pass": passed}


def table(header, rows):
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths)]
        say("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    say()


# --- the four measurements ---------------------------------------------------------------------


def measure_http(options):
    """RunGuard next to a bare axum handler and to Flask + SQLite."""
    need_wrk()
    python, bare, runguard = flask_python(), build_bare(), build_runguard(options)

    with scratch_directory() as directory, serve_runguard(runguard, directory) as server:
        sample = load(server, 60, sessions=1_000, limit=36_000)
    body_bytes = round(sample.body_bytes)
    say(f"RunGuard's answers to this traffic have {body_bytes} bytes on average; so have the bare handler's.")
    say(f"wrk: {CONNECTIONS} connections, {SESSIONS:,} sessions, {options.rounds} rounds of {options.seconds} s")

    def serve_bare(_):
        port = free_port()
        return Server([bare, port, body_bytes], port, WORK / "bare.log")

    def serve_flask(directory):
        port = free_port()
        return Server([python, BENCHES / "flask_guard.py", port, directory / "guard.db"], port, WORK / "flask.log")

    # Interleaved, each with a fresh process and an empty folder: what disturbs the machine for a
    # minute then disturbs all of them.
    contestants = {
        "bare axum (Json)": (serve_bare, ROUTE),
        "RunGuard": (lambda directory: serve_runguard(runguard, directory), ROUTE),
        "bare axum (Bytes)": (serve_bare, "/bytes"),
        "Flask + SQLite": (serve_flask, ROUTE),
    }
    loads = {name: [] for name in contestants}
    for number in range(1, options.rounds + 1):
        for name, (serve, route) in contestants.items():

            def measure():
                with scratch_directory() as directory, serve(directory) as server:
                    load(server, 2, route=route)
                    return load(server, options.seconds, route=route)

            measured = undisturbed(measure)
            loads[name].append(measured)
            say(f"  round {number}  {name:18} {measured.per_second:>9,.0f}/s   p99 {measured.p99:.2f} ms")

    say()
    warn_if_disturbed([load for values in loads.values() for load in values])
    results = {name: median(values) for name, values in loads.items()}
    yardstick, ours, flask = (results[name] for name in ("bare axum (Json)", "RunGuard", "Flask + SQLite"))
    table(
        ["median", "requests/s", "of bare", "× Flask", "p50 ms", "p99 ms", "refused", "server CPU", "wrk CPU"],
        [
            [
                name,
                f"{result.per_second:,.0f}",
                f"{result.per_second / yardstick.per_second:.0%}",
                f"{result.per_second / flask.per_second:.1f}",
                f"{result.p50:.2f}",
                f"{result.p99:.2f}",
                f"{result.refused:.0%}",
                f"{result.server_cpu:.2f}",
                f"{result.wrk_cpu:.2f}",
            ]
            for name, result in results.items()
        ],
    )
    share = ours.per_second / yardstick.per_second
    times_flask = ours.per_second / flask.per_second
    p99_times_bare = ours.p99 / yardstick.p99
    bars = [
        bar(share >= MIN_SHARE_OF_BARE, f"throughput {share:.1%} of the bare handler (≥ {MIN_SHARE_OF_BARE:.0%})"),
        bar(times_flask >= MIN_TIMES_FLASK, f"throughput {times_flask:.1f} × Flask (≥ {MIN_TIMES_FLASK} ×)"),
        bar(
            p99_times_bare <= MAX_P99_TIMES_BARE,
            f"p99 {p99_times_bare:.1f} × the bare handler's (≤ {MAX_P99_TIMES_BARE:.0f} ×)",
        ),
    ]
    return {"bars": bars, "body_bytes": body_bytes, "results": {name: vars(result) for name, result in results.items()}}


# Nothing is ever refused, so that a thousand busy sessions and a million quiet ones get the same answers.
NO_RULES = """
[guards.agent_action.rules]
total_action_ceiling = "off"
consecutive_same_action_spiral = "off"
same_action_frequency_spiral = "off"
identical_call_spiral = "off"
action_cycle = "off"
"""


def measure_sessions(options):
    """Throughput and memory with 1,000,000 known sessions next to 1,000."""
    need_wrk()
    runguard = build_runguard(options)
    figures, bars = {}, []

    def compare(title, few, many):
        loads = {FEW_SESSIONS: [], MANY_SESSIONS: []}
        for _ in range(options.rounds):
            for sessions, server in ((FEW_SESSIONS, few), (MANY_SESSIONS, many)):
                load(server, 1, sessions=sessions, order="random")
                measure = functools.partial(load, server, options.seconds, sessions=sessions, order="random")
                loads[sessions].append(undisturbed(measure))
        results = {sessions: median(values) for sessions, values in loads.items()}
        say()
        warn_if_disturbed([load for values in loads.values() for load in values])
        table(
            [title, "requests/s", "p50 ms", "p99 ms", "refused", "server CPU", "wrk CPU"],
            [
                [
                    f"{sessions:,} sessions",
                    f"{result.per_second:,.0f}",
                    f"{result.p50:.2f}",
                    f"{result.p99:.2f}",
                    f"{result.refused:.0%}",
                    f"{result.server_cpu:.2f}",
                    f"{result.wrk_cpu:.2f}",
                ]
                for sessions, result in results.items()
            ],
        )
        share = results[MANY_SESSIONS].per_second / results[FEW_SESSIONS].per_second
        bars.append(
            bar(
                share >= MIN_SHARE_AT_MANY_SESSIONS,
                f"{title}: {share:.1%} of the throughput (≥ {MIN_SHARE_AT_MANY_SESSIONS:.0%})",
            )
        )
        figures[title] = {str(sessions): vars(result) for sessions, result in results.items()}

    with scratch_directory() as small, scratch_directory() as big:
        with serve_runguard(runguard, small) as few, serve_runguard(runguard, big) as many:
            load(few, 60, sessions=FEW_SESSIONS, limit=FEW_SESSIONS)
            say(f"making {MANY_SESSIONS:,} sessions known …")

            def progress(answered):
                say(f"  {answered:>9,} sessions   {many.resident_mb():6.0f} MB resident")

            load(many, 600, sessions=MANY_SESSIONS, limit=MANY_SESSIONS, progress=progress)
            figures["resident_mb_after_filling"] = many.resident_mb()
            compare("default settings", few, many)
            figures["resident_mb_after_load"] = many.resident_mb()
        with serve_runguard(runguard, small, NO_RULES) as few, serve_runguard(runguard, big, NO_RULES) as many:
            compare("everything allowed", few, many)

    resident = max(figures["resident_mb_after_filling"], figures["resident_mb_after_load"])
    say(f"resident with {MANY_SESSIONS:,} sessions: {figures['resident_mb_after_filling']:.0f} MB once they were known,")
    say(f"{figures['resident_mb_after_load']:.0f} MB after the load on them")
    bars.append(bar(resident <= MAX_RESIDENT_MB, f"{resident:.0f} MB resident (≤ {MAX_RESIDENT_MB} MB)"))
    return {"bars": bars, **figures}


def forget_cached_pages(directory):
    """As after a reboot: the next start reads the files from the disk."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measure_cold_start(options):
    """From the start of the process to its first answer, on a log of 1,000,000 decisions."""
    need_wrk()
    runguard = build_runguard(options)
    seconds = {}
    with scratch_directory() as directory:

        def start(case):
            server = serve_runguard(runguard, directory)
            seconds[case] = server.wait_for_answer()
            say(f"  {case:42} {seconds[case] * 1000:7.0f} ms")
            return server

        def decide(server, decisions):
            load(server, 600, limit=decisions, progress=lambda answered: say(f"  {answered:>9,} decisions"))

        say(f"making {LOG_DECISIONS:,} decisions …")
        with serve_runguard(runguard, directory) as server:
            decide(server, LOG_DECISIONS)
            server.stop(signal.SIGKILL)
        size_mb = sum(path.stat().st_size for path in (directory / "data").rglob("*")) / 2**20
        say(f"the data folder has {size_mb:.0f} MB; first answer after")
        server = start("kill -9 right after the load")
        decide(server, LOG_DECISIONS // 10)
        server.stop(signal.SIGKILL)
        forget_cached_pages(directory)
        server = start("kill -9 after that, files out of memory")
        stopping = server.stop(signal.SIGTERM)
        start("a clean stop").stop(signal.SIGTERM)
        say(f"a clean stop takes {stopping * 1000:.0f} ms")
    say()
    slowest = max(seconds.values())
    bars = [bar(slowest <= MAX_COLD_START_SECONDS, f"slowest start {slowest:.2f} s (≤ {MAX_COLD_START_SECONDS:.0f} s)")]
    return {"bars": bars, "data_mb": size_mb, "seconds": seconds}


def timed_get(server, path):
    """Milliseconds until the whole answer is there, its status and its body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    begun = time.perf_counter()
    connection.request("GET", path, headers=server.headers)
    answer = connection.getresponse()
    body = answer.read()
    elapsed = (time.perf_counter() - begun) * 1000
    connection.close()
    return elapsed, answer.status, body


def measure_dashboard(options):
    """What the dashboard asks for first, on a log of 1,000,000 decisions of many guards."""
    need_wrk()
    runguard = build_runguard(options)
    end_ms = int(time.time() * 1000)
    figures, bars, rows = {}, [], []
    with scratch_directory() as directory, serve_runguard(runguard, directory, now_ms=end_ms) as server:

        def behind():
            return json.loads(timed_get(server, "/v1/overview?since=15m")[2])["behind_rows"]

        say(f"making {LOG_DECISIONS:,} decisions of a day …")
        load(
            server, 1800, sessions=LOG_DECISIONS // 12, limit=LOG_DECISIONS, script="mixed.lua", more=(end_ms - DAY_MS, DAY_MS),
            progress=lambda answered: say(f"  {answered:>9,} decisions, {behind():>9,} not digested yet"),
        )
        left, begun = behind(), time.perf_counter()
        while behind():
            time.sleep(0.05)
        figures["behind_rows_after_the_load"], figures["catching_up_seconds"] = left, time.perf_counter() - begun
        say(f"{left:,} rows were behind after the load; caught up {figures['catching_up_seconds']:.1f} s later")
        insight_mb = sum(path.stat().st_size for path in (directory / "data").glob("insight.db*")) / 2**20
        say(f"insight.db and its write-ahead log have {insight_mb:.1f} MB\n")
        for path in ("/v1/overview", "/v1/overview?since=7d", "/v1/overview?guard=handoff", "/v1/insights", "/"):
            asked = [timed_get(server, path) for _ in range(20)]
            status, body = asked[0][1:]
            milliseconds = [elapsed for elapsed, *_ in asked]
            shown = path if status == 200 else f"{path} ({status})"
            rows.append([shown, *(f"{value:.0f}" for value in (milliseconds[0], statistics.median(milliseconds), max(milliseconds))), f"{len(body) / 1024:.0f}"])
            figures[path] = {"status": status, "milliseconds": milliseconds}
            if status == 200:
                slowest = max(milliseconds)
                bars.append((slowest <= MAX_OVERVIEW_MS, f"{path}: slowest of 20 is {slowest:.0f} ms (≤ {MAX_OVERVIEW_MS} ms)"))
        panels = json.loads(timed_get(server, "/v1/overview")[2])
        empty = [name for name, value in panels.items() if isinstance(value, list) and not value]
        if empty:
            say(f"  note: nothing to show in {', '.join(empty)}")
    table(["", "first ms", "median ms", "slowest ms", "KB"], rows)
    bars = [bar(*outcome) for outcome in bars]
    if (page := ROOT / "dashboard").is_dir():
        weight = sum(path.stat().st_size for path in page.rglob("*") if path.is_file()) / 1024
        bars.append(bar(weight <= MAX_PAGE_KB, f"the page weighs {weight:.0f} KB (≤ {MAX_PAGE_KB} KB)"))
    return {"bars": bars, "insight_mb": insight_mb, **figures}


def measure_core(_):
    """The pure decision of every guard, and the detectors, without server and store."""
    run(["cargo", "bench", "-p", "runguard-core", "-p", "runguard-guards", "--bench", "decide", "--bench", "detect"], cwd=ROOT)
    return {}


def traces_of(options):
    traces = options.traces or os.environ.get("RUNGUARD_TRACES")
    if not traces:
        sys.exit("where are the traces? Give --traces DIR or set RUNGUARD_TRACES")
    return Path(traces).resolve()


def figures_of_example(name, traces, arguments=()):
    """Runs an example of the replay on the traces; what it writes as JSON."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    example = ["-p", "runguard-replay", "--example", name]
    run(["cargo", "build", "--release", "--locked", "-q", *example, "--target-dir", target], cwd=ROOT)
    with scratch_directory() as directory:
        figures_file = directory / f"{name}.json"
        run([target / "release" / "examples" / name, *arguments, "--json", figures_file, traces])
        return json.loads(figures_file.read_text())


def measure_detection(options):
    """How well stalled runs are told from good ones, on recorded runs, next to the rules of other agents."""
    figures = figures_of_example("detection", traces_of(options), ["--cross-validate"])
    return {"bars": detection_bars(figures["groups"], figures["cross_validation"]), **figures}


def measure_replay(options):
    """Recorded steps a second through all guards and budgets: packed and as JSON lines, on one thread and on all."""
    figures = figures_of_example("speed", traces_of(options))["figures"]
    say()
    one = next(figure for figure in figures if figure["what"] == "packed" and figure["threads"] == 1)
    per_core = one["steps_per_second_per_core"]
    bars = [bar(per_core >= MIN_REPLAYED_STEPS, f"packed runs: {per_core:,.0f} steps/s/core (≥ {MIN_REPLAYED_STEPS:,})")]
    return {"bars": bars, "figures": figures}


def unpack(source, folder):
    """The files of a folder, unpacked: what is measured is JSON."""
    for path in sorted(source.rglob("*")):
        into = folder / path.relative_to(source).parent
        into.mkdir(parents=True, exist_ok=True)
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                archive.extractall(into, filter="data")
        elif path.suffix == ".gz":
            (into / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        elif path.is_file():
            shutil.copy(path, into)


def measure_reading(options):
    """How fast recorded runs are read on one core, by format, next to serde_json and to a bare scan of the same bytes."""
    from recordings import enlarge

    traces = traces_of(options)
    with scratch_directory() as folder:
        unpack(traces, folder)
        enlarge(folder)
        figures = figures_of_example("reading", folder)["figures"]
    say()
    bars = []
    for figure in figures:
        speed = figure["megabytes_per_second"]["read"]
        bars.append(bar(speed >= MIN_READ_MEGABYTES, f"{figure['format']}: {speed:,.0f} MB/s/core (≥ {MIN_READ_MEGABYTES})"))
    return {"bars": bars, "figures": figures}


def detection_bars(groups, validation):
    """A group is judged when the traces have it: as it is by default, and with thresholds that were chosen without the tasks they are measured on.

    Two counts of good runs that are stopped: all of them, and those that are ended before their end. After its last step there is nothing to
    end; some good runs stop there because the detector of their own agent ended them."""
    ours, held_out, by_class = "RunGuard", validation["held_out"], validation["held_out_by_class"]
    bars = []

    def judge(figures, group, figure, passes, text):
        if (value := figures.get(figure, {}).get("value")) is not None:
            bars.append(bar(passes(value), f"{group}: {text.format(100 * value)}"))

    def most(limit):
        return lambda value: value <= limit

    def least(limit):
        return lambda value: value >= limit

    prices = {
        "openhands, native tools": MAX_FALSE_STOPS,
        "frontier models": MAX_FRONTIER_FALSE_STOPS,
        "native tools or frontier": MAX_FALSE_STOPS,
        "intercode": MAX_INTERCODE_FALSE_STOPS,
    }
    ways = {
        "by default": lambda group: groups.get(group, {}).get(ours, {}),
        "told what is long": lambda group: groups.get(group, {}).get("RunGuard, calibrated", {}),
        "held out": lambda group: held_out.get(group, {}),
        "held out, chosen for its class": lambda group: by_class.get(group, {}),
    }
    for how, figures_of in ways.items():
        for group, limit in prices.items():
            for figure, words in (("false_stops", "stopped"), ("costly_stops", "stopped before their end")):
                judge(figures_of(group), group, figure, most(limit), f"{{:.2f}} % of the good runs {words}, {how} (≤ {100 * limit:g} %)")
        much = f"{{:.2f}} % of the tokens of failed runs saved, {how} (≥ {100 * MIN_FRONTIER_TOKENS_SAVED:g} %)"
        judge(figures_of("frontier models"), "frontier models", "failed_tokens_saved", least(MIN_FRONTIER_TOKENS_SAVED), much)
        found = f"{{:.1f}} % of the stuck runs found, {how} (≥ {100 * MIN_STUCK_RECALL:g} %)"
        judge(figures_of("all"), "all", "recall", least(MIN_STUCK_RECALL), found)
        saved = f"{{:.1f}} % of failed steps saved, {how} (≥ {100 * MIN_INTERCODE_SAVED:g} %)"
        judge(figures_of("intercode"), "intercode", "failed_steps_saved", least(MIN_INTERCODE_SAVED), saved)
    classes = {}
    for rival in validation["rivals"]:
        classes.setdefault((rival["group"], rival["what"]), []).append(rival)
    for (group, what), rivals in classes.items():
        # A rule that saves nothing is beaten by one that does not either.
        ahead = [rival for rival in rivals if rival["saved"] > 0 and rival["ours"] <= rival["saved"]]
        names = ", ".join(f"{rival['rule']} {100 * rival['saved']:.2f} % against {100 * rival['ours']:.2f} %" for rival in ahead)
        count = sum(rival["saved"] > 0 for rival in rivals)
        text = f"{group}: more failed {what} saved, held out and chosen for its price, than by each of the {count} rules that save any"
        bars.append(bar(not ahead, text + (f"; not than by {names}" if ahead else "")))
    return bars


def measure_similarity(options):
    """How well two queries that ask the same are told from two that look alike, on labelled pairs."""
    command = ["cargo", "bench", "-q", "-p", "runguard-core", "--bench", "similarity"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures = json.loads(output)
    percent = "{:.3f}".format
    for part, rules in figures["parts"].items():
        say(f"{part}, {rules[0]['pairs']} pairs")
        rows = [[rule["rule"], *(percent(rule[figure]) for figure in ("precision", "recall", "f1"))] for rule in rules]
        table(["", "precision", "recall", "F1"], rows)
    names = [rule["rule"] for rule in figures["parts"]["all"]]
    say("Told right, by kind")
    rows = [[f"{kind['label']}: {kind['kind']}", str(kind["pairs"]), *map(str, kind["right"])] for kind in figures["kinds"]]
    table(["", "pairs", *names], rows)
    say("Other languages")
    rows = []
    for language in figures["languages"]:
        plain, ours, *_ = language["held out"]
        shown = (rule[figure] for rule in (plain, ours) for figure in ("precision", "recall"))
        rows.append([language["language"], str(ours["pairs"]), *map(percent, shown)])
    table(["", "held out", "plain precision", "plain recall", "precision", "recall"], rows)
    if options.mistakes:
        for mistake in figures["mistakes"]:
            say(f"is {mistake['label']} ({mistake['kind']}): {mistake['left']} / {mistake['right']}")
        say()
    bars = []
    for part in ("held out", "all"):
        plain, ours, *_ = figures["parts"][part]
        better = all(ours[figure] > plain[figure] for figure in ("precision", "recall"))
        passed = better and ours["precision"] >= MIN_PRECISION and ours["recall"] >= MIN_RECALL
        text = f"{part}: precision ≥ {MIN_PRECISION} at recall ≥ {MIN_RECALL}, both better than the plain ratio's"
        bars.append(bar(passed, text))
    _, others, *_ = figures["languages"][-1]["held out"]
    passed = others["precision"] >= MIN_PRECISION and others["recall"] >= MIN_RECALL_OF_OTHERS
    bars.append(bar(passed, f"other languages, held out: precision ≥ {MIN_PRECISION} at recall ≥ {MIN_RECALL_OF_OTHERS}"))
    return {"bars": bars, **figures}


def measure_agent(_):
    """What the agent's loop costs beside the model, and whether a long run grows."""
    run(["cargo", "bench", "-p", "runguard-agent", "--bench", "agent"], cwd=ROOT)
    return {}


def measure_python(_):
    """A call from Python, next to other packages from the index."""
    python = virtual_environment(WORK / "python", "import maturin", ["maturin>=1.9,<2", "-r", ROOT / "sdk/python/benches/requirements.txt"])
    wheels = WORK / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    run([python, "-m", "maturin", "build", "--profile", "wheel", "--locked", "-q", "-m", ROOT / "sdk/python/Cargo.toml", "-o", wheels])
    run([python, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", next(wheels.glob("*.whl"))])
    run([python, ROOT / "sdk/python/benches/bench.py"], cwd=WORK)
    return {}


def measure_node(_):
    """A call from Node."""
    package = ROOT / "sdk" / "typescript"
    retry(lambda: run(["npm", "ci", "--silent", "--no-fund", "--no-audit"], cwd=package))
    run(["npm", "run", "--silent", "build"], cwd=package)
    run(["npm", "run", "--silent", "bench"], cwd=package)
    return {}


def measure_cluster(options):
    """Several nodes on one Redis and one Postgres, next to redis-benchmark; and a model of what a cluster needs."""
    from cluster import measure

    return measure(options)


def measure_gateway(options):
    """The model gateway next to nginx, LiteLLM and Portkey, in front of a provider that answers at once."""
    from gateway import measure

    return measure(options)


def measure_streams(options):
    """What a thousand event streams that hear of nothing cost those who ask."""
    from streams import measure

    return measure(options)


MEASUREMENTS = {
    "http": measure_http,
    "cluster": measure_cluster,
    "core": measure_core,
    "similarity": measure_similarity,
    "cold-start": measure_cold_start,
    "sessions": measure_sessions,
    "dashboard": measure_dashboard,
    "streams": measure_streams,
    "gateway": measure_gateway,
    "detection": measure_detection,
    "replay": measure_replay,
    "reading": measure_reading,
    "agent": measure_agent,
    "python": measure_python,
    "node": measure_node,
}


def main():
    parser = argparse.ArgumentParser(prog="./bench", description="Measures RunGuard on this machine.")
    commands = parser.add_subparsers(dest="measurement", title="measurements", metavar="")
    for name, measurement in MEASUREMENTS.items():
        command = commands.add_parser(name, help=measurement.__doc__, description=measurement.__doc__)
        command.add_argument("--json", metavar="FILE", help="also write the figures here")
        if name in ("http", "cluster", "gateway", "sessions", "cold-start", "dashboard", "streams"):
            command.add_argument("--binary", metavar="PATH", help="measure this runguard instead of building it")
        if name in ("detection", "replay", "reading"):
            command.add_argument("--traces", metavar="DIR", help="folder of recorded runs (default: RUNGUARD_TRACES)")
        if name in ("http", "cluster", "gateway", "sessions", "streams"):
            command.add_argument("--seconds", type=int, default=5, help="length of one run (default %(default)s)")
        if name in ("http", "gateway", "sessions", "streams"):
            command.add_argument("--rounds", type=int, default=5, help="runs of each, median taken (default %(default)s)")
        if name == "gateway":
            command.add_argument("--quick", action="store_true", help="without LiteLLM and Portkey, which must be installed first")
        if name == "streams":
            command.add_argument(
                "--no-limits", dest="limits", action="store_false", help="leave the streams' limits out of the settings: for a binary of before there were any"
            )
        if name == "similarity":
            command.add_argument("--mistakes", action="store_true", help="list the pairs RunGuard's rule gets wrong")
    options = parser.parse_args()
    if not options.measurement:
        parser.print_help()
        return
    figures = MEASUREMENTS[options.measurement](options)
    if options.json:
        Path(options.json).write_text(json.dumps({"measurement": options.measurement, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]} failed (exit code {error.returncode})")
