"""`./bench cluster`: several nodes on one Redis and one Postgres, all on this machine.

The yardstick is redis-benchmark calling RunGuard's own script for one decision a call: what a client that asks Redis once for
every decision could get at most, without HTTP, rules or a log. Beside the bars stands a model of what a cluster needs, whose
constants are here and nowhere else; docs/sizing.md quotes them.
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bench import ROOT, Server, apt_install, bar, build_runguard, free_port, load, need_wrk, run, say, scratch_directory, table

NODES = (1, 2, 4)
CONNECTIONS = 256
SESSIONS = 20_000
PARTITIONS = 16
YARDSTICK_CLIENTS = 50
YARDSTICK_KEYS = 20_000
MEASURED_SESSIONS = 20_000
INGESTED_ROWS = 500_000
# What a node decides alone, and brings home.
ALONE_ROWS = 128_000

MIN_SHARE_OF_YARDSTICK = 0.50
MIN_TIMES_ONE_BY_ONE = 5
MIN_INGESTED = 50_000
MIN_SHARE_OF_COPY = 0.50
MIN_BROUGHT_HOME = 100_000
MAX_MODEL_ERROR = 0.30

SWAP = ROOT / "crates" / "runguard-store" / "src" / "redis" / "swap.lua"

# What a decision costs, measured on two cores with agent-action and 20,000 sessions. CPU is in calls of the yardstick's script, so
# that it holds on other machines; such a call costs Redis 21 µs there.
MODEL = {
    # A state in Redis: its key, its bytes, its time to live. An answer kept for repeats is longer.
    "cell_bytes": 190,
    "kept_answer_bytes": 540,
    # A row that waits in its stream.
    "waiting_row_bytes": 300,
    # To Redis, for one try of one decision: the state and the row.
    "wire_bytes": 490,
    "log_table_bytes": 330,
    "log_index_bytes": 141,
    "node_cpu": 1.9,
    "redis_cpu": 0.8,
    "postgres_cpu": 0.55,
}


def swaps_per_decision(nodes, spread):
    """A node swaps what it remembers. Behind a plain balancer another node was there since, with all but one chance in `nodes`."""
    return 2 - 1 / nodes if spread else 1


# --- the servers ------------------------------------------------------------------------------------


def need(program, package):
    if not shutil.which(program):
        apt_install(package)


def postgres_programs():
    """The folder of Postgres' own programs, which Debian keeps off the path."""

    def find():
        found = shutil.which("initdb")
        known = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
        return Path(found).parent if found else known[-1].parent if known else None

    if not find():
        apt_install("postgresql")
    return find()


def cpu_seconds(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Redis:
    """As the documentation says it should run: an append-only file, nothing evicted."""

    def __init__(self, folder):
        self.port, self.folder = free_port(), folder
        folder.mkdir()

    def __enter__(self):
        return self.start()

    def start(self):
        command = ["redis-server", "--port", self.port, "--dir", self.folder, "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", "everysec", "--maxmemory-policy", "noeviction", "--bind", "127.0.0.1"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        for _ in range(200):
            with contextlib.suppress(subprocess.CalledProcessError):
                if self.ask("PING") == "PONG":
                    return self
            time.sleep(0.05)
        raise SystemExit("Redis does not answer")

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def ask(self, *command, stdin=None):
        command = ["redis-cli", "-p", self.port, *command]
        done = subprocess.run([str(part) for part in command], check=True, input=stdin, capture_output=True)
        return done.stdout.decode(errors="replace").strip()

    def info(self, section):
        lines = self.ask("INFO", section).splitlines()
        return dict(line.strip().split(":", 1) for line in lines if ":" in line)

    def calls(self):
        """How often each command ran, those inside scripts too."""
        return {
            name.removeprefix("cmdstat_"): int(re.search(r"calls=(\d+)", value)[1])
            for name, value in self.info("commandstats").items()
        }

    def cpu_seconds(self):
        return cpu_seconds(self.process.pid)

    def waiting_entries(self):
        script = f"local n = 0 for p = 0, {PARTITIONS - 1} do n = n + redis.call('XLEN', 'rg:{{' .. p .. '}}:log') end return n"
        return int(self.ask("EVAL", script, 0))

    def memory_bytes(self):
        return int(self.info("memory")["used_memory"])


class Postgres:
    """With its own settings, but for the two that any server of this use has."""

    def __init__(self, folder):
        self.programs = postgres_programs()
        self.port, self.user = free_port(), None
        self.folder = Path(tempfile.mkdtemp(prefix="rg-pg-", dir=folder))
        if os.geteuid() == 0:
            self.user = "postgres"
            try:
                self.run(["test", "-x", self.folder.parent])
            except subprocess.CalledProcessError:
                # It may not enter the repository's folder.
                self.folder = Path(tempfile.mkdtemp(prefix="rg-pg-"))
            owner = pwd.getpwnam(self.user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self.data = self.folder / "data"
        self.run([self.programs / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"])
        settings = f"-p {self.port} -k {self.folder} -c shared_buffers=256MB -c max_wal_size=4GB -c listen_addresses=127.0.0.1"
        self.run([self.programs / "pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "-o", settings, "start"])
        self.pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])

    def run(self, command):
        as_user = ["runuser", "-u", self.user, "--"] if self.user else []
        run([*as_user, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.run([self.programs / "pg_ctl", "-D", self.data, "-m", "immediate", "stop"])
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database):
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"

    def ask(self, sql, database="postgres"):
        command = ["psql", "-XAtq", "-h", "127.0.0.1", "-p", self.port, "-U", "postgres", "-d", database, "-c", sql]
        return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout.strip()

    def rows(self):
        return int(self.ask("SELECT last_seq FROM runguard_counter", "log"))

    def cpu_seconds(self):
        total = cpu_seconds(self.pid)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.pid:
                    total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total


@contextlib.contextmanager
def cluster(binary, redis, postgres, directory, count):
    """Nodes with a database of their own, emptied before."""
    redis.ask("FLUSHALL")
    redis.ask("CONFIG", "RESETSTAT")
    postgres.ask("DROP DATABASE IF EXISTS log WITH (FORCE)")
    postgres.ask("CREATE DATABASE log")
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(count):
            folder = Path(tempfile.mkdtemp(dir=directory, prefix=f"node-{number}-"))
            port = free_port()
            command = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--data", folder / "data"]
            command += ["--state", redis.url, "--log", postgres.url("log")]
            nodes.append(stack.enter_context(Server(command, port, folder / "server.log")))
        yield nodes


def drive(nodes, seconds, order, sessions=SESSIONS, limit=0, connections=CONNECTIONS):
    """One wrk for each node, all at the same time. Decisions per second together, the worst p99, how many came."""

    def one(number):
        return load(
            nodes[number], seconds, sessions=sessions, order=order, limit=limit, threads=1, script="cluster.lua",
            more=(number, len(nodes)), connections=max(1, connections // len(nodes)),
        )

    with concurrent.futures.ThreadPoolExecutor(len(nodes)) as pool:
        loads = list(pool.map(one, range(len(nodes))))
    return {
        "per_second": sum(load.per_second for load in loads),
        "p50": max(load.p50 for load in loads),
        "p99": max(load.p99 for load in loads),
        "refused": sum(load.refused for load in loads) / len(loads),
        "wrk_cpu": sum(load.wrk_cpu for load in loads),
    }


def wait_for_the_log(redis, limit_seconds=600):
    """Until the streams are empty; the seconds it took."""
    begun = time.perf_counter()
    while redis.waiting_entries():
        if time.perf_counter() - begun > limit_seconds:
            raise SystemExit("the log does not catch up")
        time.sleep(0.05)
    return time.perf_counter() - begun


# --- what is measured ---------------------------------------------------------------------------------


def printed_length(quoted):
    """How many bytes Redis means by a string it prints."""
    return len(re.sub(r"\\x[0-9a-f]{2}|\\.", "x", quoted))


def sizes(binary, redis, postgres, directory):
    """The state and the row of a usual decision, as they arrive in Redis; seen by MONITOR."""
    with cluster(binary, redis, postgres, directory, 1) as nodes:
        drive(nodes, 60, "spread", sessions=2_000, limit=20_000, connections=16)
        with subprocess.Popen(["redis-cli", "-p", str(redis.port), "MONITOR"], stdout=subprocess.PIPE, text=True, errors="replace") as monitor:
            drive(nodes, 60, "spread", sessions=2_000, limit=4_000, connections=1)
            monitor.send_signal(signal.SIGTERM)
            lines = monitor.stdout.read().splitlines()
    seen = {"SET": [], "XADD": []}
    for line in lines:
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
        if " lua] " in line and parts and parts[0] in seen:
            seen[parts[0]].append(printed_length(parts[2] if parts[0] == "SET" else parts[4]))
    if not all(seen.values()):
        raise SystemExit("MONITOR showed no decisions")
    return {name: round(sum(found) / len(found)) for name, found in seen.items()}


def yardstick(redis, state_bytes, entry_bytes, seconds):
    """Calls per second of RunGuard's script with one swap each: compare, set with a time to live, append."""
    redis.ask("FLUSHALL")
    sha = redis.ask("SCRIPT", "LOAD", SWAP.read_text())
    redis.ask("HSET", "rg:{meta}:about", "generation", 1)
    value = "AAAAAAAA" + "s" * (state_bytes - 8)
    keys = (f"SET rg:{{3}}:c:{number:032d} {value} PX 3600000\r\n" for number in range(YARDSTICK_KEYS))
    redis.ask("--pipe", stdin="".join(keys).encode())
    key = "rg:{3}:c:" + "0" * 20 + "__rand_int__"
    # Token expected and token put are the same, so that every call finds what it expects and does all of its work.
    keys = ["rg:{meta}:about", "rg:{meta}:wrote:1", "rg:{3}:log", key]
    # Generation, no fence, a deadline far away, the number of the write and how long it is kept, bound of a stream, one stream.
    call = ["EVALSHA", sha, len(keys), *keys, 1, "", 1 << 50, 1, 3_600_000, 1 << 50, 1, 1, 1, "r" * entry_bytes, "AAAAAAAA", value, 3_600_000]

    def calls(count):
        command = ["redis-benchmark", "-p", redis.port, "-c", YARDSTICK_CLIENTS, "-P", 1, "-n", count, "-r", YARDSTICK_KEYS, "--csv", *call]
        output = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
        rate, *_, p99, _ = [float(field) for field in re.findall(r'"([\d.]+)"', output.splitlines()[-1])][-7:]
        return rate, p99

    rate, _ = calls(20_000)
    redis.ask("DEL", "rg:{3}:log")
    cpu = redis.cpu_seconds()
    count = int(rate * seconds)
    rate, p99 = calls(count)
    cpu = redis.cpu_seconds() - cpu
    appended = int(redis.ask("XLEN", "rg:{3}:log"))
    if appended < count:
        raise SystemExit(f"the yardstick appended {appended} entries in {count} calls: it measures something else")
    stream_bytes = int(redis.ask("MEMORY", "USAGE", "rg:{3}:log", "SAMPLES", 0))
    return {"per_second": rate, "p99": p99, "redis_cpu_us": cpu / count * 1e6, "waiting_row_bytes": stream_bytes / appended}


def full_load(binary, redis, postgres, directory, count, order, seconds):
    """A cluster under as much load as it takes, with what a decision costs each part."""
    with cluster(binary, redis, postgres, directory, count) as nodes:
        drive(nodes, 2, order)
        rows, calls, info = postgres.rows(), redis.calls(), redis.info("stats")
        before = [sum(node.cpu_seconds() for node in nodes), redis.cpu_seconds(), postgres.cpu_seconds()]
        begun = time.perf_counter()
        figures = drive(nodes, seconds, order)
        took = time.perf_counter() - begun
        imported = (postgres.rows() - rows) / took
        after = [sum(node.cpu_seconds() for node in nodes), redis.cpu_seconds()]
        decisions = figures["per_second"] * seconds
        calls = {name: (number - calls.get(name, 0)) / decisions for name, number in redis.calls().items()}
        network = int(redis.info("stats")["total_net_input_bytes"]) - int(info["total_net_input_bytes"])
        behind_from, drained_from = postgres.rows(), time.perf_counter()
        wait_for_the_log(redis)
        drained_in = time.perf_counter() - drained_from
        behind = postgres.rows() - behind_from
        postgres_cpu = (postgres.cpu_seconds() - before[2]) / (postgres.rows() - rows)
        relation = "(SELECT inhrelid FROM pg_inherits WHERE inhparent = 'runguard_log'::regclass)"
        table_bytes, index_bytes = postgres.ask(
            f"SELECT sum(pg_table_size(oid)), sum(pg_indexes_size(oid)) FROM pg_class WHERE oid IN {relation}", "log"
        ).split("|")
        logged = postgres.rows()
        return figures | {
            "node_cpu_us": (after[0] - before[0]) / decisions * 1e6,
            "redis_cpu_us": (after[1] - before[1]) / decisions * 1e6,
            # Until the last row is in: it may lag behind the decisions.
            "postgres_cpu_us": postgres_cpu * 1e6,
            "redis_calls": calls,
            "wire_bytes": network / decisions,
            "imported_per_second": imported,
            "behind": behind,
            "drained_per_second": behind / drained_in if behind and drained_in else None,
            "drained_in": drained_in,
            "log_table_bytes": int(table_bytes) / logged,
            "log_index_bytes": int(index_bytes) / logged,
        }


def memory_per_session(binary, redis, postgres, directory):
    """Redis memory for a session with one guard, with three, and for an answer kept for repeats."""

    def bytes_for(*kinds):
        with cluster(binary, redis, postgres, directory, 1) as nodes:
            wait_for_the_log(redis)
            before = redis.memory_bytes()
            for kind in kinds:
                drive(nodes, 120, f"each:{kind}", sessions=MEASURED_SESSIONS, limit=MEASURED_SESSIONS, connections=64)
            wait_for_the_log(redis)
            time.sleep(1)
            return (redis.memory_bytes() - before) / MEASURED_SESSIONS

    one, three = bytes_for("agent-action"), bytes_for("agent-action", "ai-task-retry", "handoff")
    return {"session_1": one, "session_3": three, "kept_answer": bytes_for("kept") - one}


def waiting_rows(node):
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return int(re.search(r"^runguard_rows_waiting (\d+)", text, re.M)[1])


def comeback(binary, redis, postgres, directory):
    """Rows per second that a node brings home after it was alone: from the moment the first of them are home until none waits."""
    with cluster(binary, redis, postgres, directory, 1) as (node,):
        drive([node], 1, "spread")
        wait_for_the_log(redis)
        redis.kill()
        drive([node], 120, "spread", limit=ALONE_ROWS, connections=64)
        waiting = waiting_rows(node)
        redis.start()
        while (left := waiting_rows(node)) == waiting:
            pass
        # Those that are home by now were on their way before.
        begun, counted = time.perf_counter(), left
        while left:
            time.sleep(0.01)
            left = waiting_rows(node)
        took = time.perf_counter() - begun
        wait_for_the_log(redis)
        return {"rows": counted, "seconds": took, "per_second": counted / took, "logged_after": time.perf_counter() - begun}


def hot_key(example, redis, directory, seconds):
    redis.ask("FLUSHALL")
    file = directory / "hot.json"
    run([example, "--url", redis.url, "--seconds", seconds, "--json", file], stdout=subprocess.DEVNULL)
    return json.loads(file.read_text())


def ingest(example, postgres, rows):
    postgres.ask("CREATE DATABASE ingest")
    command = [example, "--url", postgres.url("ingest"), "--rows", rows]
    output = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    copied, imported = (float(re.search(rf"{name} (\d+) rows/s", output)[1]) for name in ("bare COPY", "import"))
    postgres.ask("DROP DATABASE ingest WITH (FORCE)")
    return {"copied": copied, "imported": imported}


def build_examples():
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    names = [part for name in ("hot_cell", "ingest") for part in ("--example", name)]
    run(["cargo", "build", "--release", "--locked", "-q", "-p", "runguard-store", *names, "--target-dir", target], cwd=ROOT)
    return target / "release" / "examples"


def model_rows(yard, spread, own, memory):
    """What the model says of these runs, and what they were."""
    script_us = yard["redis_cpu_us"]
    cell = MODEL["cell_bytes"]
    nodes = NODES[-1]
    wire = lambda is_spread: MODEL["wire_bytes"] * swaps_per_decision(nodes, is_spread)
    return [
        ("Redis memory of a session, 1 guard", cell, memory["session_1"], "bytes"),
        ("Redis memory of a session, 3 guards", 3 * cell, memory["session_3"], "bytes"),
        ("Redis memory of a kept answer", MODEL["kept_answer_bytes"], memory["kept_answer"], "bytes"),
        ("Redis memory of a waiting row", MODEL["waiting_row_bytes"], yard["waiting_row_bytes"], "bytes"),
        (f"swaps per decision, {nodes} nodes, any node", swaps_per_decision(nodes, True), spread["redis_calls"]["get"], ""),
        (f"swaps per decision, {nodes} nodes, own sessions", swaps_per_decision(nodes, False), own["redis_calls"]["get"], ""),
        ("bytes to Redis per decision, any node", wire(True), spread["wire_bytes"], "bytes"),
        ("bytes to Redis per decision, own sessions", wire(False), own["wire_bytes"], "bytes"),
        ("Postgres table per decision", MODEL["log_table_bytes"], spread["log_table_bytes"], "bytes"),
        ("Postgres indexes per decision", MODEL["log_index_bytes"], spread["log_index_bytes"], "bytes"),
        ("node CPU per decision", MODEL["node_cpu"] * script_us, spread["node_cpu_us"], "µs"),
        ("Redis CPU per decision", MODEL["redis_cpu"] * script_us, spread["redis_cpu_us"], "µs"),
        ("Postgres CPU per decision", MODEL["postgres_cpu"] * script_us, spread["postgres_cpu_us"], "µs"),
    ]


def measure(options):
    need_wrk()
    need("redis-server", "redis-server")
    need("redis-benchmark", "redis-tools")
    binary, examples = build_runguard(options), build_examples()
    bars = []
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        redis = stack.enter_context(Redis(directory / "redis"))
        postgres = stack.enter_context(Postgres(directory))
        seen = sizes(binary, redis, postgres, directory)
        say(f"a usual decision: a state of {seen['SET']} bytes set, a row of {seen['XADD']} bytes appended")
        say(f"wrk: {CONNECTIONS} connections over all nodes, {SESSIONS:,} sessions, {options.seconds} s each")

        yards, runs = [], {}
        yards.append(yardstick(redis, seen["SET"], seen["XADD"], options.seconds))
        for count in NODES:
            for order in ("spread", "own") if count > 1 else ("spread",):
                runs[count, order] = full_load(binary, redis, postgres, directory, count, order, options.seconds)
                say(f"  {count} nodes, {order:6} {runs[count, order]['per_second']:>9,.0f}/s")
        yards.append(yardstick(redis, seen["SET"], seen["XADD"], options.seconds))
        # Before and after: what slows the machine down meanwhile slows both.
        yard = {name: sum(one[name] for one in yards) / len(yards) for name in yards[0]}
        say()
        named = {"spread": "any session to any node", "own": "a session to one node"}
        table(
            ["", "decisions/s", "of yardstick", "p50 ms", "p99 ms", "node µs", "Redis µs", "Postgres µs", "wrk cores", "imported/s", "behind", "drained/s"],
            [["redis-benchmark, one decision a call", f"{yard['per_second']:,.0f}", "100%", "", f"{yard['p99']:.2f}", "", f"{yard['redis_cpu_us']:.1f}", "", "", "", "", ""]]
            + [
                [
                    f"{count} node{'s' if count > 1 else ''}, {named[order]}",
                    f"{one['per_second']:,.0f}",
                    f"{one['per_second'] / yard['per_second']:.0%}",
                    f"{one['p50']:.1f}",
                    f"{one['p99']:.1f}",
                    f"{one['node_cpu_us']:.1f}",
                    f"{one['redis_cpu_us']:.1f}",
                    f"{one['postgres_cpu_us']:.1f}",
                    f"{one['wrk_cpu']:.2f}",
                    f"{one['imported_per_second']:,.0f}",
                    f"{one['behind']:,}",
                    f"{one['drained_per_second']:,.0f}" if one["drained_per_second"] else "",
                ]
                for (count, order), one in runs.items()
            ],
        )
        spread, own = runs[NODES[-1], "spread"], runs[NODES[-1], "own"]
        share = spread["per_second"] / yard["per_second"]
        bars.append(bar(share >= MIN_SHARE_OF_YARDSTICK, f"{NODES[-1]} nodes: {share:.0%} of the yardstick (≥ {MIN_SHARE_OF_YARDSTICK:.0%})"))

        hot = hot_key(examples / "hot_cell", redis, directory, options.seconds)
        times = hot["gathered"]["per_second"] / hot["all_at_once"]["per_second"]
        say("\none cell, 4 nodes with 64 requests at a time each")
        names = {"gathered": "gathered into swaps", "all_at_once": "one swap a request", "in_turn": "one swap a request, a node's requests in turn"}
        table(["", "decisions/s", "p50 ms", "p99 ms", "from memory"], [[names[name], f"{one['per_second']:,.0f}", f"{one['p50']:.1f}", f"{one['p99']:.1f}", str(one["alone"])] for name, one in hot.items()])
        bars.append(bar(times >= MIN_TIMES_ONE_BY_ONE, f"one hot cell: {times:.1f} × one swap a request (≥ {MIN_TIMES_ONE_BY_ONE} ×)"))
        for order, what in (("endpoint", "one circuit"), ("session", "one session")):
            with cluster(binary, redis, postgres, directory, NODES[-1]) as nodes:
                drive(nodes, 1, order)
                runs[NODES[-1], order] = one = drive(nodes, options.seconds, order)
                say(f"over HTTP, {NODES[-1]} nodes, {what} for all: {one['per_second']:,.0f}/s, p99 {one['p99']:.1f} ms")

        ingested = ingest(examples / "ingest", postgres, INGESTED_ROWS)
        goal = min(MIN_INGESTED, MIN_SHARE_OF_COPY * ingested["copied"])
        say(f"\nrows into Postgres: {ingested['imported']:,.0f}/s; a bare COPY into a table without index {ingested['copied']:,.0f}/s")
        bars.append(bar(ingested["imported"] >= goal, f"log: {ingested['imported']:,.0f} rows/s (≥ {goal:,.0f}: {MIN_INGESTED:,}, or {MIN_SHARE_OF_COPY:.0%} of COPY)"))

        home = comeback(binary, redis, postgres, directory)
        say(f"\na node that was alone: {home['rows']:,} rows are home after {home['seconds']:.2f} s, in the log after {home['logged_after']:.2f} s")
        bars.append(bar(home["per_second"] >= MIN_BROUGHT_HOME, f"rows come home: {home['per_second']:,.0f}/s (≥ {MIN_BROUGHT_HOME:,})"))

        memory = memory_per_session(binary, redis, postgres, directory)
        rows = model_rows(yard, spread, own, memory)
    say("\nthe model of docs/sizing.md, and this run")
    off = [abs(measured / modelled - 1) for _, modelled, measured, _ in rows]
    number = lambda value: f"{value:.2f}" if value < 10 else f"{value:,.0f}"
    table(["", "model", "measured", "", "off"], [[name, number(modelled), number(measured), unit, f"{error:.0%}"] for (name, modelled, measured, unit), error in zip(rows, off)])
    bars.append(bar(max(off) <= MAX_MODEL_ERROR, f"the model is off by {max(off):.0%} at most (≤ {MAX_MODEL_ERROR:.0%})"))
    return {
        "bars": bars,
        "sizes": seen,
        "yardstick": yard,
        "runs": {f"{count} {order}": one for (count, order), one in runs.items()},
        "hot_cell": hot,
        "ingest": ingested,
        "comeback": home,
        "memory": memory,
        "model": [{"what": name, "model": modelled, "measured": measured} for name, modelled, measured, _ in rows],
    }
