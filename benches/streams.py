"""`./bench streams`: what a thousand event streams that hear of nothing cost those who ask.

The same paced load is measured in turn without streams and with them, several times in one run, so that only what the streams add is
left. The load is paced and not as fast as it goes: a service at its limit has a tail of its own.
"""

import http.client
import json
import resource
import socket
import statistics
import threading
import time

from bench import ROUTE, bar, build_runguard, say, scratch_directory, serve_runguard, table

STREAMS = 1000
ASKERS = 8
PER_SECOND = 800
MAX_CORES = 0.05
MAX_P95_RATIO = 1.10


def allow_many_files():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard == resource.RLIM_INFINITY else min(hard, 16_384), hard))


class Streams:
    """Streams whose filter no decision passes, each its own."""

    def __init__(self, server):
        self.sockets = []
        for number in range(STREAMS):
            stream = socket.create_connection(("127.0.0.1", server.port))
            stream.sendall(f"GET /v1/events?session=nobody-{number} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            self.sockets.append(stream)
        for stream in self.sockets:
            answer = stream.recv(4096)
            if b" 200 " not in answer.split(b"\r\n", 1)[0]:
                raise SystemExit(f"a stream was refused: {answer!r}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in self.sockets:
            stream.close()


def asked(server, seconds, name):
    """Latencies in milliseconds of a paced load, and the cores that the server used meanwhile."""
    latencies = []
    lock = threading.Lock()

    def ask(number):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        own, begun = [], time.perf_counter()
        for turn in range(int(seconds * PER_SECOND / ASKERS)):
            due = begun + (turn + number / ASKERS) * ASKERS / PER_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
            body = json.dumps({"session_id": f"{name}-{number}-{turn}", "action_name": "a"})
            sent = time.perf_counter()
            connection.request("POST", ROUTE, body, server.headers)
            connection.getresponse().read()
            own.append((time.perf_counter() - sent) * 1000)
        with lock:
            latencies.extend(own)

    before, begun = server.cpu_seconds(), time.perf_counter()
    askers = [threading.Thread(target=ask, args=(number,)) for number in range(ASKERS)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    return latencies, (server.cpu_seconds() - before) / (time.perf_counter() - begun)


def p95(latencies):
    return statistics.quantiles(latencies, n=20)[-1]


def measure(options):
    allow_many_files()
    binary = build_runguard(options)
    settings = f"[server]\nmax_streams = {STREAMS}\nmax_streams_per_key = {STREAMS}\n" if options.limits else None
    without, beside, resting = [], [], []
    with scratch_directory() as directory, serve_runguard(binary, directory, settings) as server:
        asked(server, options.seconds, "warm")
        for turn in range(options.rounds):
            without.append(asked(server, options.seconds, f"without-{turn}"))
            with Streams(server):
                before, begun = server.cpu_seconds(), time.perf_counter()
                time.sleep(options.seconds)
                resting.append((server.cpu_seconds() - before) / (time.perf_counter() - begun))
                beside.append(asked(server, options.seconds, f"beside-{turn}"))
    middle = lambda rounds, figure: statistics.median(figure(*one) for one in rounds)
    tail, cores = (lambda latencies, _: p95(latencies)), (lambda _, cores: cores)
    rows = [[name, f"{middle(rounds, tail):.2f}", f"{middle(rounds, cores):.3f}"] for name, rounds in (("no streams", without), (f"{STREAMS:,} idle streams", beside))]
    say()
    table([f"{PER_SECOND} questions a second", "p95 ms", "cores"], rows)
    added, ratio, rest = middle(beside, cores) - middle(without, cores), middle(beside, tail) / middle(without, tail), statistics.median(resting)
    bars = [
        bar(rest <= MAX_CORES, f"{STREAMS:,} idle streams of an idle service take {rest:.3f} cores (≤ {MAX_CORES})"),
        bar(added <= MAX_CORES, f"{STREAMS:,} idle streams of a busy service take {added:.3f} cores more (≤ {MAX_CORES})"),
        bar(ratio <= MAX_P95_RATIO, f"p95 beside them is {ratio:.2f} times the one without (≤ {MAX_P95_RATIO})"),
    ]
    return {"bars": bars, "resting_cores": rest, "added_cores": added, "p95_ratio": ratio}
