"""A service without keys belongs to this machine and its people, not to every web page that is open on it."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from raw import ask, head, status_of
from runguard_process import run_cli

ENDPOINT = "payments"
FOREIGN = [
    {"Host": "rebound.example"},
    {"Host": "rebound.example:8100"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]
ROUTES = [
    ("GET", "/v1/decisions"), ("GET", "/v1/sessions/s"), ("DELETE", "/v1/sessions/s"), ("GET", "/v1/settings"), ("GET", "/metrics"),
    ("GET", "/v1/events"), ("GET", "/v1/circuits"), ("POST", f"/v1/circuits/{ENDPOINT}/open"), ("POST", "/v1/preview"),
    ("POST", "/guard/handoff"), ("POST", "/guard/budget/record"), ("GET", "/v1/alerts"), ("POST", "/v1/alerts/test"),
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=str)
def test_no_route_is_open_to_a_foreign_host_or_page(shared_server, foreign):
    flow = shared_server.client()
    for method, path in ROUTES:
        response = flow.request(method, path, b"{}" if method == "POST" else None, foreign)
        assert response.status == 403, f"{method} {path} with {foreign}: {response}"
        assert response.json["type"].endswith(("foreign-host", "foreign-origin")), response


@pytest.mark.parametrize("own", [
    {}, {"Host": "localhost"}, {"Host": "[::1]:8100"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"},
    {"Host": "localhost:8100", "Origin": "http://localhost:8100"},
], ids=str)
def test_the_people_of_this_machine_are_let_in(shared_server, own):
    assert shared_server.client().get("/v1/decisions", own).status == 200


def test_what_is_the_same_for_everyone_is_shown_to_everyone(shared_server):
    for path in ("/healthz", "/readyz", "/", "/docs", "/openapi.json", "/v1/guards"):
        assert shared_server.client().get(path, {"Host": "probe.example", "Sec-Fetch-Site": "cross-site"}).status == 200, path


@pytest.mark.parametrize("target", ["http://rebound.example/v1/decisions", "http://localhost@rebound.example/v1/decisions"])
def test_a_whole_address_outranks_the_host(shared_server, target):
    assert status_of(ask(shared_server.port, head("GET", target))) in (400, 403)


def test_two_hosts_are_none(shared_server):
    request = head("GET", "/v1/decisions", "Host: localhost", host="rebound.example")
    assert status_of(ask(shared_server.port, request)) == 400


def test_a_listed_host_is_let_in_and_its_pages_are(serve):
    server = serve('[server]\nhosts = ["runguard.internal"]\n')
    flow = server.client()
    own = {"Host": "runguard.internal", "Origin": "https://runguard.internal", "Sec-Fetch-Site": "same-origin"}
    assert flow.get("/v1/decisions", own).status == 200
    assert flow.get("/v1/decisions", {"Host": "other.internal"}).status == 403


@pytest.mark.parametrize("emptied", ["removed", '{"keys": []}', ""], ids=["removed", "no keys", "no bytes"])
def test_a_process_that_has_had_a_key_stays_locked(serve, emptied):
    server = serve(start=False)
    made = run_cli("key", "create", "--data", server.data, "--tenant", "acme", "--role", "read")
    key = next(word for word in made.stdout.split() if word.startswith("rg_"))
    server.start()
    assert server.client(key=key).get("/v1/decisions").status == 200
    file = server.data / "keys.json"
    if emptied == "removed":
        file.unlink()
    else:
        file.write_text(emptied)
    wait_for_log(server, "key")
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert server.client().get("/v1/decisions").status == 401
        time.sleep(0.05)
    assert server.client().get("/readyz").json == {"status": "ready", "refused": ["keys"]}
    assert "old ones stay in force" not in server.log() or emptied == ""


def wait_for_log(server, word):
    deadline = time.monotonic() + 10
    while word not in server.log().rpartition("ready")[2]:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)


# -- a real browser -----------------------------------------------------------------------------


class Page(http.server.BaseHTTPRequestHandler):
    html = b""

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(self.html)

    def log_message(self, *_):
        pass


@contextmanager
def evil_page(script: str):
    handler = type("Handler", (Page,), {"html": f"<title>evil</title><body><script>{script}</script>".encode()})
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    try:
        yield f"http://evil.example:{site.server_port}/"
    finally:
        site.shutdown()


def browse(url: str, profile: Path) -> str:
    """What the page is after its scripts have run."""
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}", "--host-resolver-rules=MAP *.example 127.0.0.1",
        # As browsers that do not ask before a page reaches into the local network.
        "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessSendPreflights",
        "--timeout=20000", "--virtual-time-budget=10000", "--dump-dom", url,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_page_of_another_site_changes_nothing(serve, tmp_path):
    server = serve(virtual_clock=False)
    flow = server.client()
    flow.allowed("/guard/budget/reserve", session_id="team", max_usd=1, usd="0.10")
    deep = ".".join(["a"] * 4000)
    asked = [
        (f"/v1/circuits/{ENDPOINT}/open", ""),
        ("/guard/budget/record", json.dumps({"session_id": "team", "usd": 1})),
        ("/v1/preview", json.dumps({"guard": "handoff", "settings": {deep: 1}})),
    ]
    # A plain text needs no permission of the other side: the browser sends it and hides only the answer.
    script = "".join(
        f"sent.push(fetch('{server.url}{path}', {{method: 'POST', mode: 'no-cors', headers: {{'content-type': 'text/plain'}}, body: {json.dumps(body)}}}));"
        for path, body in asked
    )
    script = f"const sent = []; {script} Promise.allSettled(sent).then(all => document.body.append('all ' + all.length + ' sent'));"
    with evil_page(script) as url:
        assert "all 3 sent" in browse(url, tmp_path / "profile")
    assert server.process.poll() is None, "the process goes on"
    metrics = flow.get("/metrics").text
    refused = sum(int(line.split()[-1]) for line in metrics.splitlines() if "http_requests" in line and 'status="403"' in line)
    assert refused == 3, f"the browser reached the service\n{metrics}"
    assert flow.get("/v1/circuits").json["circuits"] == []
    assert flow.post("/guard/budget/check", {"session_id": "team", "usd": "0.5"}).json["spent_usd"] == 0


def test_a_name_that_was_bound_again_shows_nothing(serve, tmp_path):
    """What is left of DNS rebinding when the name of the attacker already resolves to this machine."""
    server = serve(virtual_clock=False)
    server.client().allowed("/guard/handoff", session_id="victim", source_bot="a", target_bot="b")
    shown = browse(f"http://rebound.example:{server.port}/v1/decisions", tmp_path / "profile")
    assert "foreign-host" in shown and "victim" not in shown, shown
    assert "victim" in browse(f"http://127.0.0.1:{server.port}/v1/decisions", tmp_path / "own"), "this machine's own browser sees it"
