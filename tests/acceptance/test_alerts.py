"""Alerts: told once, at least once, in the end, and never in the way of a decision."""

from __future__ import annotations

import base64
import json
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from runguard_http import Client
from runguard_process import Server, free_port, run_cli

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
OLD_SECRET = "whsec_" + base64.b64encode(b"fedcba9876543210fedcba9876543210").decode()
ENVIRONMENT = {"HOOK_SECRET": SECRET, "PD_KEY": "R0UT1NG0K3Y"}
PATIENCE_SECONDS = 30


@dataclass(frozen=True)
class Got:
    at: float
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """A real HTTP server. `script` holds (status, headers) for the next requests; after it every request is taken."""

    port: int = 0
    status: int = 200
    script: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    hang: threading.Event | None = None

    def start(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append(Got(time.monotonic(), self.path, headers, body))
                if receiver.hang:
                    receiver.hang.wait(60)
                status, extra = receiver.script.pop(0) if receiver.script else (receiver.status, {})
                self.send_response(status)
                for name, value in extra.items():
                    self.send_header(name, value)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            do_GET = do_POST

            def log_message(self, *_) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_) -> None:
                pass

        self.server = Quiet(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        if self.hang:
            self.hang.set()
        self.server.shutdown()
        self.server.server_close()

    def wait_for(self, count: int) -> list[Got]:
        until(lambda: len(self.got) >= count, f"{count} messages, has {len(self.got)}")
        return self.got

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(0.02)


@pytest.fixture
def receive() -> Iterator[Callable[..., Receiver]]:
    started: list[Receiver] = []

    def start(**options) -> Receiver:
        started.append(Receiver(**options).start())
        return started[-1]

    yield start
    for receiver in started:
        receiver.stop()


def target(name: str, url: str, kind: str = "webhook", extra: str = "allow_private = true") -> str:
    secret = {"webhook": 'secret_env = "HOOK_SECRET"', "pagerduty": 'routing_key_env = "PD_KEY"'}.get(kind, "")
    return f'[[alerts.target]]\nname = "{name}"\nkind = "{kind}"\nurl = "{url}"\n{secret}\n{extra}\n'


QUICK = '[alerts]\nbackoff = "50ms"\n'
# Nothing but the rules of the test.
ALONE = QUICK + "default_rules = false\n"


def config(*targets: str, alerts: str = QUICK, rules: str = "") -> str:
    return alerts + "".join(targets) + rules


def fail(client: Client, times: int = 10, endpoint: str = "orders") -> None:
    for number in range(times):
        client.recorded("/guard/api-circuit/record", endpoint_key=endpoint, session_id=f"s{number}", outcome="failure")


def recover(client: Client, endpoint: str = "orders") -> None:
    client.wait(46)
    permit = client.allowed("/guard/api-circuit/check", endpoint_key=endpoint, session_id="probe")
    assert permit["probe"] is True
    client.recorded("/guard/api-circuit/record", endpoint_key=endpoint, session_id="probe", outcome="success", permit_id=permit["permit_id"])


def alerts_of(client: Client) -> dict:
    response = client.get("/v1/alerts")
    assert response.status == 200, response
    return response.json


def settle(client: Client) -> dict:
    """Waits until the rules have seen every row and nothing is on its way."""
    until(lambda: (lambda seen: seen["behind_rows"] == 0 and not seen["queued"])(alerts_of(client)), "an empty queue")
    return alerts_of(client)


# -- what is told -----------------------------------------------------------------------------


def test_a_trip_is_told_once_signed_and_resolved(serve, receive):
    hook = receive()
    server = serve(config(target("hook", hook.url)), environment=ENVIRONMENT)
    client = server.client()
    fail(client, 25)
    hook.wait_for(1)
    recover(client)
    hook.wait_for(2)
    seen = settle(client)
    fired, resolved = hook.got
    assert [got.json["type"] for got in hook.got] == ["alert.firing", "alert.resolved"]
    assert fired.json["data"]["subject"] == "orders" and fired.json["data"]["severity"] == "error"
    assert fired.json["data"]["dedup_key"] == resolved.json["data"]["dedup_key"] and fired.id != resolved.id
    for got in hook.got:
        assert Webhook(SECRET).verify(got.body, got.headers)["data"]["id"] == got.id
        with pytest.raises(WebhookVerificationError):
            Webhook(OLD_SECRET).verify(got.body, got.headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(got.body + b" ", got.headers)
    assert [entry["message_id"] for entry in seen["delivered"]] == [resolved.id, fired.id]
    assert seen["targets"] == [{"name": "hook", "kind": "webhook", "host": "127.0.0.1", "queued": 0, "dead": 0, "problem": None}]


def test_the_dashboards_example_tells_nothing_twice(serve, receive):
    source = (Path(__file__).parents[2] / "dashboard/view-alerts.js").read_text()
    example = re.search(r"const EXAMPLE = '(.+)';", source)[1].replace("\\n", "\n")
    told = example.replace('url = "…"', f'url = "{receive().url}"\nallow_private = true')
    rules = alerts_of(serve(told).client())["rules"]
    assert [rule["when"] for rule in rules] == ["circuit_trip", "blocks", "budget", "fallback", "degrading"]


def test_own_rules_are_added_and_messages_link_to_the_dashboard(serve, receive):
    hook = receive()
    own = '[[alerts.rule]]\nname = "each-block"\nwhen = "blocks"\ncount = 1\n'
    server = serve('[server]\npublic_url = "https://runguard.example/guard"\n' + config(target("hook", hook.url), rules=own), environment=ENVIRONMENT)
    client = server.client()
    assert [rule["name"] for rule in alerts_of(client)["rules"]] == ["circuit_trip", "blocks", "budget", "fallback", "each-block"]
    fail(client)
    for _ in range(4):
        client.post("/guard/agent-action", {"session_id": "chat 1", "action_name": "a"})
    told = {got.json["data"]["rule"]: got.json["data"]["link"] for got in hook.wait_for(2)}
    assert told["circuit_trip"] == "https://runguard.example/guard/?view=decisions&guard=api_circuit&tenant=default"
    assert told["each-block"].startswith("https://runguard.example/guard/?view=")


def test_while_keys_change_either_secret_verifies(serve, receive):
    hook = receive()
    server = serve(config(target("hook", hook.url)), environment={"HOOK_SECRET": f"{SECRET} {OLD_SECRET}"})
    fail(server.client())
    (got,) = hook.wait_for(1)
    assert Webhook(SECRET).verify(got.body, got.headers) == Webhook(OLD_SECRET).verify(got.body, got.headers)


def test_every_kind_of_target_gets_its_own_words(serve, receive):
    slack, pager, teams = receive(), receive(status=202), receive(status=202)
    text = config(target("chat", slack.url, "slack"), target("pager", pager.url, "pagerduty"), target("teams", teams.url, "teams"))
    client = serve(text, environment=ENVIRONMENT).client()
    fail(client, endpoint="<!channel> & co")
    recover(client, endpoint="<!channel> & co")
    message, _ = slack.wait_for(2)[:2]
    assert "&lt;!channel&gt; &amp; co" in message.json["text"] and b"<!channel>" not in message.body
    assert message.json["blocks"][0]["type"] == "header"
    opened, closed = (got.json for got in pager.wait_for(2)[:2])
    assert (opened["event_action"], closed["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == closed["dedup_key"] and opened["routing_key"] == "R0UT1NG0K3Y"
    assert opened["payload"]["severity"] == "error" and len(opened["payload"]["summary"]) <= 1024
    card = teams.wait_for(2)[0].json
    assert card["attachments"][0]["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert card["attachments"][0]["content"]["type"] == "AdaptiveCard"


def test_blocks_budgets_and_rules_that_name_their_target(serve, receive):
    hook, other = receive(), receive()
    rules = """
[[alerts.rule]]
name = "cycles"
when = "blocks"
reason = "cycle_detected"
count = 3
window = "10m"
to = ["hook"]
[[alerts.rule]]
name = "money"
when = "budget"
at = [60, 80, 95, 100]
to = ["hook"]
"""
    client = serve(config(target("hook", hook.url), target("other", other.url), rules=rules, alerts=ALONE), environment=ENVIRONMENT).client()
    for number in range(3):
        for _ in range(2):
            client.allowed("/guard/handoff", session_id=f"c{number}", source_bot="a", target_bot="b")
        client.refused("/guard/handoff", "cycle_detected", session_id=f"c{number}", source_bot="a", target_bot="b")
    hook.wait_for(1)
    for usd in (0.4, 0.2, 0.25, 0.1):
        client.allowed("/guard/budget/record", session_id="run", max_usd=1.0, usd=usd)
    client.refused("/guard/budget/record", "budget_exceeded", session_id="run", usd=0.5)
    hook.wait_for(5)
    settle(client)
    told = [(got.json["data"]["rule"], got.json["data"]["severity"]) for got in hook.got]
    assert told[0] == ("cycles", "warning")
    assert told[1:] == [("money", "info"), ("money", "warning"), ("money", "error"), ("money", "critical")]
    assert other.got == []


def test_what_is_used_is_told_at_its_percentages_and_when_a_day_stands_out(serve, receive):
    hook = receive()
    rules = """
[[alerts.rule]]
name = "credits"
when = "consumption"
limit = 100
period = "month"
at = [60]
[[alerts.rule]]
name = "spike"
when = "spike"
at_least = 30
[[alerts.rule]]
name = "shared"
when = "budget"
"""
    budget = "[savings]\ncredits_per_operation = 2\n[guards.budget]\ncredit_usd = 0.5\n[guards.budget.scopes.tenant.month]\nmax_credits = 10\n"
    client = serve(budget + config(target("hook", hook.url), rules=rules, alerts=ALONE), environment=ENVIRONMENT).client()

    def ask(day: int, times: int) -> None:
        for number in range(times):
            client.at(day * 86_400 + number).allowed("/guard/handoff", session_id=f"{day}-{number}", source_bot="a", target_bot="b")

    for day in range(4):
        ask(day, 4)
    settle(client)
    assert hook.got == []
    # 32 credits of four days, and 36 today: usually 8.
    ask(4, 18)
    client.allowed("/guard/budget/record", session_id="run", credits=6)
    hook.wait_for(3)
    settle(client)
    told = {got.json["data"]["rule"]: got.json["data"]["title"] for got in hook.got}
    assert told["credits"].startswith("60 % of the credits for the month are used")
    assert told["spike"].startswith("30 credits are used today, usually 8")
    assert told["shared"] == "Budget 'default' of 'tenant/month' has reached 50 %"
    assert len(hook.got) == 3


def test_a_burst_is_collapsed_where_people_read_it(serve, receive):
    chat = receive(script=[(500, {})])
    client = serve(config(target("chat", chat.url, "slack")), environment=ENVIRONMENT).client()
    fail(client, endpoint="first")
    chat.wait_for(1)
    for number in range(30):
        fail(client, endpoint=f"endpoint-{number}")
    until(lambda: any("and " in got.body.decode() and " more" in got.body.decode() for got in chat.got), "a digest")
    settle(client)
    assert len(chat.got) < 10, "31 alerts are not 31 messages"
    assert len({json.dumps(entry["dedup_key"]) for entry in alerts_of(client)["delivered"]}) == 31, "and each of them was told"


# -- what goes wrong --------------------------------------------------------------------------


def test_refusals_are_tried_again_and_retry_after_is_honoured(serve, receive):
    hook = receive(script=[(500, {}), (429, {"retry-after": "2"}), (503, {})])
    client = serve(config(target("hook", hook.url)), environment=ENVIRONMENT).client()
    fail(client)
    hook.wait_for(4)
    settle(client)
    assert len({got.id for got in hook.got}) == 1, "one message, one id"
    assert len({got.body for got in hook.got}) == 1, "and the same body each time"
    times = [got.at for got in hook.got]
    assert times[2] - times[1] >= 1.9, "Retry-After: 2"
    (entry,) = alerts_of(client)["delivered"]
    assert entry["attempts"] == 4
    metrics = client.get("/metrics").text
    for event, count in (("fired", 1), ("delivered", 1), ("failed", 3), ("dead", 0)):
        assert f'runguard_alerts_total{{target="webhook",event="{event}"}} {count}' in metrics, metrics


def test_nothing_is_lost_when_receiver_and_service_die(serve, receive):
    port = free_port()
    server = serve(config(target("hook", f"http://127.0.0.1:{port}/hook")), environment=ENVIRONMENT)
    client = server.client()
    fail(client, endpoint="one")
    until(lambda: any(entry["attempts"] > 0 for entry in alerts_of(client)["queued"]), "a failed attempt")
    waiting = {entry["message_id"] for entry in alerts_of(client)["queued"]}
    fail(client, endpoint="two")
    server.kill()  # the second may be in the queue or still only in the log
    server.start()
    client = server.client().at(100)
    fail(client, endpoint="three")
    server.kill()
    hook = receive(port=port)
    server.start()
    subjects = lambda: {got.json["data"]["subject"] for got in hook.got}
    until(lambda: subjects() == {"one", "two", "three"}, "all three trips")
    settle(server.client().at(200))
    assert waiting <= {got.id for got in hook.got}, "under the ids they had"


def test_a_kill_while_a_message_is_under_way_repeats_it_under_its_id(serve, receive):
    hook = receive(hang=threading.Event())
    server = serve(config(target("hook", hook.url)), environment=ENVIRONMENT)
    fail(server.client())
    hook.wait_for(1)
    server.kill()
    hook.hang.set()
    hook.hang = None
    server.start()
    hook.wait_for(2)
    settle(server.client().at(200))
    assert hook.got[0].id == hook.got[1].id and hook.got[0].body == hook.got[1].body
    assert len(hook.got) == 2
    server.restart()
    settle(server.client().at(300))
    assert len(hook.got) == 2, "what was delivered is not told again"


def test_a_hanging_receiver_slows_neither_decisions_nor_other_targets(serve, receive):
    def pace(client: Client) -> float:
        """The middle time of a decision, in seconds."""
        times = []
        for number in range(400):
            start = time.perf_counter()
            client.post("/guard/ai-task-retry", {"session_id": f"p{number % 50}", "task_name": "classify"})
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    plain = serve().client(keep_alive=True)
    hanging, healthy = receive(hang=threading.Event()), receive()
    server = serve(config(target("stuck", hanging.url), target("fine", healthy.url)), environment=ENVIRONMENT)
    client = server.client(keep_alive=True)
    pace(client), pace(plain)
    without = pace(plain)
    fail(client)
    hanging.wait_for(1)
    healthy.wait_for(1)
    with_it = min(pace(client) for _ in range(3))
    fail(client, endpoint="payments")
    healthy.wait_for(2)
    assert len(hanging.got) == 1, "its one attempt still hangs"
    assert with_it < without * 5, f"{with_it * 1e6:.0f} µs with a hanging receiver, {without * 1e6:.0f} µs without alerts"
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < 8, "a stop does not wait for it either"


def test_dead_letters_are_shown_and_tried_again(serve, receive):
    hook = receive(status=500)
    text = config(target("hook", hook.url), alerts='[alerts]\nbackoff = "20ms"\nmax_attempts = 3\n')
    server = serve(text, environment=ENVIRONMENT, virtual_clock=False)
    client = server.client()
    fail(client)
    until(lambda: alerts_of(client)["dead"], "a dead letter")
    (dead,) = alerts_of(client)["dead"]
    assert dead["attempts"] == 3 == len(hook.got) and "500" in dead["problem"]
    listed = run_cli("alerts", "--url", server.url)
    assert "dead letter" in listed.stdout.lower() and dead["id"] in listed.stdout, listed
    hook.status = 200
    retried = run_cli("alerts", "retry", dead["id"], "--url", server.url)
    assert retried.returncode == 0, retried
    hook.wait_for(4)
    assert settle(client)["dead"] == []
    assert len({got.id for got in hook.got}) == 1
    assert run_cli("alerts", "retry", dead["id"], "--url", server.url).returncode == 3
    assert client.post("/v1/alerts/dead/nonsense/retry").status == 404


def test_what_a_receiver_will_never_take_is_given_up_at_once(serve, receive):
    hook = receive(status=410)
    client = serve(config(target("hook", hook.url)), environment=ENVIRONMENT).client()
    fail(client)
    until(lambda: alerts_of(client)["dead"], "a dead letter")
    assert len(hook.got) == 1


def test_redirects_are_not_followed(serve, receive):
    inner = receive()
    hook = receive(script=[(307, {"location": inner.url})] * 3)
    client = serve(config(target("hook", hook.url)), environment=ENVIRONMENT).client()
    fail(client)
    until(lambda: alerts_of(client)["dead"], "a dead letter")
    assert "redirect" in alerts_of(client)["dead"][0]["problem"]
    assert len(hook.got) == 1 and inner.got == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
def test_private_addresses_are_refused_without_a_connection(serve, host):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        server = serve(config(target("hook", f"https://{host}:{port}/", extra="")), environment=ENVIRONMENT)
        client = server.client()
        fail(client)
        until(lambda: alerts_of(client)["dead"], "a dead letter")
        assert "allow_private" in alerts_of(client)["dead"][0]["problem"]
        (tested,) = client.post("/v1/alerts/test").json["tested"]
        assert tested["delivered"] is False and "allow_private" in tested["problem"]
        with pytest.raises(TimeoutError):
            listener.accept()


# -- how it is run ----------------------------------------------------------------------------


def test_old_news_is_no_alert(serve, receive):
    hook = receive()
    server = serve(environment=ENVIRONMENT)
    fail(server.client(), endpoint="old")
    assert server.stop() == 0
    later = server.folder / "later.toml"
    later.write_text(config(target("hook", hook.url)))
    server.config_file = later
    server.start()
    client = server.client().at(100)
    fail(client, endpoint="new")
    hook.wait_for(1)
    settle(client)
    assert [got.json["data"]["subject"] for got in hook.got] == ["new"]
    assert "alerts begin at the end of the log" in server.log()


def test_without_a_target_nothing_is_watched(serve):
    server = serve(virtual_clock=False)
    client = server.client()
    fail(client)
    seen = alerts_of(client)
    assert seen["enabled"] is False and [rule["when"] for rule in seen["rules"]] == ["circuit_trip", "blocks", "budget", "fallback"]
    assert not (server.data / "alerts.db").exists()
    assert client.post("/v1/alerts/test").status == 404
    assert "Nobody is told" in run_cli("alerts", "--url", server.url).stdout


def test_a_test_alert_goes_out_with_and_without_the_service(serve, receive, tmp_path):
    hook, pager, broken = receive(), receive(status=202), receive(status=404)
    text = config(target("hook", hook.url), target("pager", pager.url, "pagerduty"), target("broken", broken.url, "slack"))
    server = serve(text, environment=ENVIRONMENT, virtual_clock=False)
    one = run_cli("alerts", "test", "hook", "--url", server.url)
    assert one.returncode == 0, one
    assert "hook" in one.stdout and len(hook.got) == 1
    assert one.stdout.startswith(f"Sent by the service at {server.url}.")
    Webhook(SECRET).verify(hook.got[0].body, hook.got[0].headers)
    everyone = run_cli("alerts", "test", "--json", "--url", server.url)
    assert everyone.returncode == 1, "one of them failed"
    assert {row["target"]: row["delivered"] for row in json.loads(everyone.stdout)["tested"]} == {"hook": True, "pager": True, "broken": False}
    assert [got.json["event_action"] for got in pager.got] == ["trigger", "resolve"], "no incident stays open"
    assert server.client().post("/v1/alerts/test", {"target": "hook"}).json["tested"][0]["delivered"] is True
    assert server.client().post("/v1/alerts/test", {"target": "nobody"}).status == 404
    assert server.client().post("/v1/alerts/test", {"traget": "hook"}).status == 422
    assert server.stop() == 0

    settings = tmp_path / "settings.toml"
    settings.write_text(text)
    before = len(hook.got)
    nobody = f"http://127.0.0.1:{free_port()}"
    local = run_cli("alerts", "test", "hook", "--config", settings, "--url", nobody, env=ENVIRONMENT)
    assert local.returncode == 0, local
    assert local.stdout.startswith(f"No service answers at {nobody}: sent from here")
    assert len(hook.got) == before + 1
    missing = run_cli("alerts", "test", "--local", "--config", settings)
    assert missing.returncode == 2 and "HOOK_SECRET" in missing.stderr, missing


def test_secrets_are_nowhere(serve, receive):
    hook = receive(status=404)
    secret_path = "T0SECRET/B0SECRET"
    text = QUICK + '[[alerts.target]]\nname = "chat"\nkind = "slack"\nurl_env = "CHAT_URL"\nallow_private = true\n' + target("hook", hook.url)
    server = serve(text, environment={**ENVIRONMENT, "CHAT_URL": f"http://127.0.0.1:{hook.port}/services/{secret_path}"})
    client = server.client()
    fail(client)
    until(lambda: len(alerts_of(client)["dead"]) == 2, "dead letters")
    assert any(got.path.endswith(secret_path) for got in hook.got)
    shown = client.get("/v1/alerts").text + client.post("/v1/alerts/test").text + client.get("/metrics").text + server.log()
    for secret in (secret_path, SECRET, SECRET.removeprefix("whsec_"), "CHAT_URL"):
        assert secret not in shown
    assert server.stop() == 0
    assert server.files_containing(secret_path, SECRET) == []


def test_an_erased_session_leaves_the_alerts_too(serve, receive):
    hook = receive()
    server = serve(config(target("hook", hook.url)), environment=ENVIRONMENT)
    client = server.client()
    client.allowed("/guard/budget/record", session_id="person-4711", max_usd=1.0, usd=0.6)
    (got,) = hook.wait_for(1)
    assert got.json["data"]["session_id"] == "person-4711"
    settle(client)
    assert "person-4711" in client.get("/v1/alerts").text
    assert client.delete("/v1/sessions/person-4711").status == 200
    until(lambda: "person-4711" not in client.get("/v1/alerts").text, "it to be forgotten")
    until(lambda: server.files_containing("person-4711") == [], "its traces to go")


def test_a_missing_secret_is_an_error_at_the_start(serve, receive):
    server = serve(config(target("hook", "https://example.com/")), start=False)
    server.launch()
    assert server.wait() == 2
    assert "HOOK_SECRET" in server.log() and "is not set" in server.log()


def test_tenants_see_their_own_alerts_and_only_admins_act(serve, receive):
    hook = receive(status=400)
    server = serve(config(target("hook", hook.url)), environment=ENVIRONMENT, start=False)

    def key(tenant: str, role: str) -> str:
        made = run_cli("key", "create", "--tenant", tenant, "--role", role, "--data", server.data, "--json")
        assert made.returncode == 0, made
        return json.loads(made.stdout)["key"]

    guard, reader, stranger, admin = key("acme", "guard"), key("acme", "read"), key("other", "read"), key("acme", "admin")
    server.start()
    fail(server.client(key=guard))
    until(lambda: alerts_of(server.client(key=reader))["dead"], "a dead letter")
    assert alerts_of(server.client(key=reader))["rules"][0]["firing"][0]["tenant"] == "acme"
    foreign = alerts_of(server.client(key=stranger))
    assert foreign["dead"] == [] and foreign["rules"][0]["firing"] == [] and foreign["targets"] == []
    assert "orders" not in json.dumps(foreign)
    dead = alerts_of(server.client(key=admin))["dead"][0]["id"]
    assert server.client(key=admin).post("/v1/alerts/test").status == 403, "targets are the operator's"
    for path in ("/v1/alerts/test", f"/v1/alerts/dead/{dead}/retry"):
        assert server.client(key=reader).post(path).status == 403
        assert server.client().post(path).status == 401
    assert server.client(key=guard).get("/v1/alerts").status == 403
    assert server.client(key=admin).post(f"/v1/alerts/dead/{dead}/retry").status == 200
