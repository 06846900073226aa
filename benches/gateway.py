"""`./bench gateway`: RunGuard's gateway next to nginx, LiteLLM's proxy and Portkey's gateway, in front of one provider that answers at once.

All have the same provider and the same questions, in turn, several times. RunGuard has everything on: a budget per run and one per day,
loops, the log on disk. nginx only passes on. LiteLLM has a budget; Portkey's open gateway knows none. Version 1.15.2 of the
latter answers no stream under Node 20: 500, `TypeError: immutable`.
"""

import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import threading
import time

from bench import (
    ROOT, WORK, Server, apt_install, bar, build_runguard, free_port, retry, run, say, scratch_directory, table, virtual_environment,
)

CONNECTIONS = 64
OPEN_STREAMS = 1000
HISTORY = 200
MIN_SHARE_OF_NGINX = 0.60
MIN_TIMES_LITELLM = 20
MAX_ADDED_P50_MS, MAX_ADDED_P99_MS = 0.3, 2.0
MAX_FIRST_BYTE_MS = 0.5
MAX_OPEN_MB = 150
MAX_HISTORY_MS = 1.0
KEY = "authorization: Bearer sk-bench"


class Gateway(Server):
    """A server that is up once it answers a question for a model."""

    def __init__(self, command, port, log_file, path="/v1/chat/completions", headers=(), seconds=120, **environment):
        self.port, self.path, self.extra, self.log_file, self.patience = port, path, [KEY, *headers], log_file, seconds
        with open(log_file, "ab") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, cwd=log_file.parent, env={**os.environ, **environment}, start_new_session=True
            )

    def wait_for_answer(self, timeout_seconds=None):
        begun = time.monotonic()
        while True:
            with contextlib.suppress(OSError):
                if b" 200 " in self.ask(question(1)).split(b"\r\n", 1)[0]:
                    return
            if self.process.poll() is not None or time.monotonic() - begun > self.patience:
                raise SystemExit(f"{self.log_file.name}: no answer; its log ends:\n{self.log_file.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)

    def begin(self, body):
        """A connection on which this was asked."""
        stream = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        lines = [f"POST {self.path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", f"content-length: {len(body)}", *self.extra]
        stream.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return stream

    def ask(self, body):
        with self.begin(body) as stream:
            return stream.recv(65536)

    def resident_mb(self):
        """Of the process and those it has started."""
        family, total = [self.process.pid], 0
        for pid in family:
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/children") as children:
                        family += [int(child) for child in children.read().split() if int(child) not in family]
                with open(f"/proc/{pid}/status") as status:
                    total += next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024
        return total

    def stop(self, how):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


def question(kilobytes, stream=False, model="gpt-4o-mini", rounds=0):
    """A question of about this size, which is a run of its own by its number; or the next of a connection's run, with a history of calls and
    what they gave of which the last is new."""
    messages = [{"role": "user", "content": f"Job {'@@@@@@@' if rounds else '#######'}: look after the order."}]
    for number in [str(9_000_000 + number) for number in range(rounds - 1)] + ["#######"] * (rounds > 0):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "orders", "arguments": json.dumps({"order": number})}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": f"order {number} is packed, on shelf {number}"},
        ]
    body = {"model": model, **({"stream": True} if stream else {}), "max_tokens": 100, "messages": messages}
    messages[0]["content"] += " The parcel was sent on Monday and has not come yet." * max(0, (kilobytes * 1024 - len(json.dumps(body))) // 52)
    return json.dumps(body, separators=(",", ":")).encode()


class Bench:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        target = WORK / "bare"
        run(["cargo", "build", "--release", "--locked", "-p", "bare", "--bins", "--target-dir", target], cwd=ROOT)
        self.programs = target / "release"
        self.upstream_port = free_port()
        self.upstream = Gateway([self.programs / "upstream", self.upstream_port], self.upstream_port, directory / "upstream.log")
        self.upstream.wait_for_answer()

    def load(self, gateway, body, per_second=0, seconds=None, connections=CONNECTIONS):
        file = self.directory / "body.json"
        file.write_bytes(body)
        words = [self.programs / "paced", gateway.port, gateway.path, file, connections, per_second, seconds or self.options.seconds, *gateway.extra]
        figures = json.loads(run(words, capture_output=True, text=True).stdout)
        # A mistake is soon said, and no answer.
        if figures["refused"]:
            say(f"  note: {figures['refused']} of {figures['answered']} were not answered with 200, and do not count")
            figures["per_second"] *= 1 - figures["refused"] / max(figures["answered"], figures["refused"])
        return figures

    # --- those who are compared

    def direct(self):
        return contextlib.nullcontext(self.upstream)

    def runguard(self, binary):
        port, folder = free_port(), self.directory / f"runguard-{free_port()}"
        folder.mkdir()
        command = [binary, "gateway", "--listen", f"127.0.0.1:{port}", "--data", folder / "data", "--openai", f"http://127.0.0.1:{self.upstream_port}/v1"]
        command += ["--max-usd-per-run", 5, "--max-usd-per-day", 1_000_000]
        return Gateway(command, port, folder / "gateway.log", path="/openai/v1/chat/completions")

    def nginx(self):
        port, folder = free_port(), self.directory / f"nginx-{free_port()}"
        folder.mkdir()
        (folder / "nginx.conf").write_text(
            f"""worker_processes {os.cpu_count()}; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s; client_max_body_size 64m; client_body_buffer_size 256k; keepalive_requests 1000000;
  upstream provider {{ server 127.0.0.1:{self.upstream_port}; keepalive 128; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://provider; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }} }}"""
        )
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        return Gateway([program, "-p", folder, "-c", folder / "nginx.conf"], port, folder / "nginx.log")

    def litellm(self):
        port, folder = free_port(), WORK / "litellm"
        python = virtual_environment(folder / "venv", "import litellm.proxy.proxy_server", ["litellm[proxy]"])
        settings = {
            "model_list": [{"model_name": "gpt-4o-mini", "litellm_params": {"model": "openai/gpt-4o-mini", "api_base": f"http://127.0.0.1:{self.upstream_port}/v1", "api_key": "sk-bench"}}],
            "litellm_settings": {"max_budget": 1_000_000, "budget_duration": "30d", "telemetry": False},
        }
        (folder / "config.yaml").write_text(json.dumps(settings))
        command = [python.parent / "litellm", "--config", folder / "config.yaml", "--port", port, "--host", "127.0.0.1", "--num_workers", os.cpu_count()]
        return Gateway(command, port, self.directory / "litellm.log", seconds=300, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR",
                       LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY="true")

    def portkey(self):
        port, folder = free_port(), WORK / "portkey"
        start = folder / "node_modules/@portkey-ai/gateway/build/start-server.js"
        if not start.exists():
            folder.mkdir(parents=True, exist_ok=True)
            retry(lambda: run(["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", folder, "@portkey-ai/gateway"]))
        headers = ["x-portkey-provider: openai", f"x-portkey-custom-host: http://127.0.0.1:{self.upstream_port}/v1"]
        return Gateway(["node", start, f"--port={port}", "--headless"], port, self.directory / "portkey.log", headers=headers)


def measure(options):
    """See above."""
    if not shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"):
        apt_install("nginx-light")
    binary = build_runguard(options)
    with scratch_directory() as directory:
        bench = Bench(options, directory)
        try:
            return compare(bench, binary, options)
        finally:
            bench.upstream.stop(15)


def compare(bench, binary, options):
    contestants = {"direct": bench.direct, "nginx": bench.nginx, "RunGuard": lambda: bench.runguard(binary)}
    if not options.quick:
        contestants |= {"LiteLLM": bench.litellm, "Portkey": bench.portkey}
    questions = {"1 KB": question(1), "100 KB": question(100), "stream of 100": question(1, stream=True)}
    rates = {name: {what: [] for what in questions} for name in contestants}
    say(f"{CONNECTIONS} connections, {options.rounds} rounds of {options.seconds} s; requests a second")
    for number in range(1, options.rounds + 1):
        for name, start in contestants.items():
            with start() as gateway:
                bench.load(gateway, questions["1 KB"], seconds=1)
                for what, body in questions.items():
                    rates[name][what].append(bench.load(gateway, body)["per_second"])
            say(f"  round {number}  {name:9}" + "".join(f"{rates[name][what][-1]:>12,.0f}" for what in questions))
    rates = {name: {what: statistics.median(values) for what, values in of.items()} for name, of in rates.items()}
    say()
    table(["median", *questions, "of nginx (1 KB)"], [
        [name, *(f"{of[what]:,.0f}" for what in questions), f"{of['1 KB'] / rates['nginx']['1 KB']:.0%}"] for name, of in rates.items()
    ])
    share = rates["RunGuard"]["1 KB"] / rates["nginx"]["1 KB"]
    bars = [bar(share >= MIN_SHARE_OF_NGINX, f"small requests: {share:.0%} of nginx's (≥ {MIN_SHARE_OF_NGINX:.0%})")]
    for name in ("LiteLLM", "Portkey"):
        if name in rates:
            times = rates["RunGuard"]["1 KB"] / rates[name]["1 KB"]
            text = f"small requests: {times:.0f} × {name}" + (f" (≥ {MIN_TIMES_LITELLM} ×)" if name == "LiteLLM" else "")
            bars.append(bar(name != "LiteLLM" or times >= MIN_TIMES_LITELLM, text))
    latencies = added_times(bench, binary, options, rates["RunGuard"]["1 KB"] / 2, bars)
    resident = open_streams(bench, binary)
    bars.append(bar(resident <= MAX_OPEN_MB, f"{OPEN_STREAMS:,} open streams: {resident:.0f} MB resident (≤ {MAX_OPEN_MB})"))
    return {"bars": bars, "rates": rates, "latencies": latencies, "resident_mb": resident}


def added_times(bench, binary, options, half, bars):
    """What the way through adds, at half of what RunGuard can do and for streams and long histories at an easy pace."""
    paces = {
        "1 KB at half load": (question(1), half),
        "a stream's first byte": (question(1, stream=True), 100),
        f"history of {HISTORY} messages": (question(1, rounds=HISTORY // 2), 100),
    }
    seen = {what: {name: [] for name in ("direct", "nginx", "RunGuard")} for what in paces}
    for _ in range(options.rounds):
        with bench.nginx() as nginx, bench.runguard(binary) as ours:
            for what, (body, pace) in paces.items():
                for name, gateway in (("direct", bench.upstream), ("nginx", nginx), ("RunGuard", ours)):
                    seen[what][name].append(bench.load(gateway, body, pace, connections=16))
    rows, figures = [], {}
    for what, of in seen.items():
        kind = "first_" if "first" in what else ""
        middle = {name: [statistics.median(one[kind + part] for one in many) / 1000 for part in ("p50", "p99")] for name, many in of.items()}
        figures[what] = middle
        rows += [[f"{what}, {name}", *(f"{value:.2f}" for value in values)] for name, values in middle.items()]
    table(["milliseconds", "p50", "p99"], rows)
    added = {what: [ours - plain for ours, plain in zip(of["RunGuard"], of["direct"])] for what, of in figures.items()}
    p50, p99 = added["1 KB at half load"]
    bars.append(bar(p50 <= MAX_ADDED_P50_MS, f"added at half load: p50 {p50:.2f} ms (≤ {MAX_ADDED_P50_MS})"))
    bars.append(bar(p99 <= MAX_ADDED_P99_MS, f"added at half load: p99 {p99:.2f} ms (≤ {MAX_ADDED_P99_MS})"))
    first = added["a stream's first byte"][0]
    bars.append(bar(first <= MAX_FIRST_BYTE_MS, f"a stream's first byte comes {first:.2f} ms later (≤ {MAX_FIRST_BYTE_MS})"))
    history = added[f"history of {HISTORY} messages"][0]
    bars.append(bar(history <= MAX_HISTORY_MS, f"a history of {HISTORY} messages adds {history:.2f} ms (≤ {MAX_HISTORY_MS})"))
    return figures


def open_streams(bench, binary):
    """What a thousand streams that have begun and are not over take."""
    body = question(1, stream=True).replace(b"Job", b"Pause")
    with bench.runguard(binary) as gateway:
        streams, lock = [], threading.Lock()

        def begin(number):
            stream = gateway.begin(body.replace(b"#######", b"%07d" % number))
            answer = stream.recv(65536)
            if b" 200 " not in answer.split(b"\r\n", 1)[0]:
                raise SystemExit(f"a stream was refused: {answer[:300]!r}")
            with lock:
                streams.append(stream)

        for first in range(0, OPEN_STREAMS, 50):
            threads = [threading.Thread(target=begin, args=(first + one,)) for one in range(50)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        resident = gateway.resident_mb()
        [stream.close() for stream in streams]
    return resident
