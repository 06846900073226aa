"""A key opens its own tenant's door and no other: every route, every role, and the words that say so."""

import json
import time

import pytest

from catalogue import AGENT_ACTION, CIRCUIT_RECORD
from runguard_http import EventStream
from runguard_process import Server, run_cli

# Everything that could be told of the other tenant carries this word.
SECRET = "globexsecret"

TARGETS = f"""
[[alerts.target]]
name = "{SECRET}-hook"
kind = "slack"
url = "http://127.0.0.1:9/{SECRET}"
allow_private = true

[[alerts.rule]]
name = "trips"
when = "circuit_trip"

[[alerts.rule]]
name = "{SECRET}-rule"
when = "blocks"
tenant = "{SECRET}"

[alerts]
max_attempts = 1

[tenants.{SECRET}.guards.agent_action]
max_total = 77
"""


def create(data, *arguments) -> str:
    made = run_cli("key", "create", "--data", data, *arguments)
    assert made.returncode == 0, made
    return made.stdout.split()[-1]


@pytest.fixture
def town(serve) -> Server:
    """Two tenants with traffic; one of them must never hear of the other."""
    server = serve(TARGETS, start=False)
    server.keys = {
        "guard": create(server.data, "--tenant", "acme", "--role", "guard"),
        "read": create(server.data, "--tenant", "acme", "--role", "read"),
        "admin": create(server.data, "--tenant", "acme", "--role", "admin"),
        "metrics": create(server.data, "--role", "metrics"),
        "operator": create(server.data, "--role", "admin"),
        "reader of all": create(server.data, "--all-tenants", "--role", "read"),
        "other": create(server.data, "--tenant", SECRET, "--role", "guard,read"),
    }
    server.start()
    other = server.client(key=server.keys["other"])
    for number in range(12):
        other.recorded(CIRCUIT_RECORD, endpoint_key=f"{SECRET}-api", session_id=f"{SECRET}-{number}", outcome="failure")
    other.allowed(AGENT_ACTION, session_id=f"{SECRET}-session", action_name=f"{SECRET}-action")
    return server


def who(server: Server, name: str):
    return server.client(key=server.keys[name])


def decision_of_the_other(server: Server) -> str:
    return who(server, "other").get("/v1/decisions?limit=1").json["decisions"][0]["decision_id"]


READS = [
    "/v1/decisions", "/v1/decisions?kind=all", "/v1/decisions?format=csv&kind=all", f"/v1/sessions/{SECRET}-session", "/v1/stats?bucket=hour",
    "/v1/insights", "/v1/overview", "/v1/circuits", "/v1/alerts", "/v1/settings", "/metrics",
]


def dead_letters(server: Server) -> list[dict]:
    """The target does not answer, so the alert of the trip is soon a dead letter."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if dead := who(server, "operator").get("/v1/alerts").json["dead"]:
            return dead
        time.sleep(0.05)
    raise AssertionError(who(server, "operator").get("/v1/alerts").text)


@pytest.mark.parametrize("role", ["guard", "read", "admin"])
def test_no_route_tells_of_another_tenant(town, role):
    dead_letters(town)
    client = who(town, role)
    for path in [*READS, f"/v1/decisions/{decision_of_the_other(town)}"]:
        answer = client.get(path)
        assert answer.status in (200, 403, 404), f"{path}: {answer}"
        # What was asked for may be said back; nothing else.
        assert SECRET not in answer.text, f"{role} {path}: {answer}"
        joined = "&" if "?" in path else "?"
        if path not in ("/v1/alerts", "/metrics"):
            assert client.get(f"{path}{joined}tenant={SECRET}").status in (403, 404, 422), path
    preview = client.post("/v1/preview", {"guard": "agent_action", "settings": {"max_total": 1}})
    assert preview.status in (200, 403) and SECRET not in preview.text
    assert client.post("/v1/preview", {"guard": "agent_action", "tenant": SECRET}).status == 403


@pytest.mark.parametrize("role", ["guard", "read", "admin", "metrics", "reader of all"])
def test_no_route_changes_another_tenant(town, role):
    dead = dead_letters(town)[0]["id"]
    client = who(town, role)
    for method, path in [
        ("POST", f"/v1/circuits/{SECRET}-api/open?tenant={SECRET}"),
        ("POST", f"/v1/circuits/{SECRET}-api/close?tenant={SECRET}"),
        ("POST", f"/v1/circuits/{SECRET}-api/reset?tenant={SECRET}"),
        ("DELETE", f"/v1/sessions/{SECRET}-session?tenant={SECRET}"),
        ("DELETE", f"/v1/sessions/{SECRET}-session"),
        ("POST", "/v1/alerts/test"),
        ("POST", f"/v1/alerts/dead/{dead}/retry"),
    ]:
        answer = client.request(method, path)
        assert answer.status in (403, 404), f"{role} {method} {path}: {answer}"
    other = who(town, "other")
    assert [(circuit["phase"], circuit["forced"]) for circuit in other.get("/v1/circuits").json["circuits"]] == [("open", None)]
    assert other.get(f"/v1/sessions/{SECRET}-session").status == 200


def test_the_admin_of_all_sees_and_changes_any_tenant(town):
    operator = who(town, "operator")
    assert SECRET in operator.get("/v1/decisions").text
    assert operator.post(f"/v1/circuits/{SECRET}-api/reset?tenant={SECRET}").status == 200
    assert operator.delete(f"/v1/sessions/{SECRET}-session?tenant={SECRET}").status == 200
    shown = operator.get("/v1/settings").json
    assert shown["all_tenants"] is True and "server" in shown["settings"]
    dead = dead_letters(town)[0]
    assert dead["target"] == f"{SECRET}-hook" and dead["problem"]
    assert operator.post(f"/v1/alerts/dead/{dead['id']}/retry").status == 200


def test_the_admin_of_one_tenant_rules_its_own(town):
    admin = who(town, "admin")
    admin.allowed(AGENT_ACTION, session_id="mine", action_name="a")
    assert admin.post("/v1/circuits/mine/open").status == 200
    assert admin.post("/v1/circuits/mine/reset?tenant=acme").status == 200
    assert admin.delete("/v1/sessions/mine").status == 200
    shown = admin.get("/v1/settings").json
    assert (shown["tenant"], shown["admin"], shown["all_tenants"]) == ("acme", True, False)
    assert set(shown["settings"]) == {"guards"}, "the machine's settings are the operator's"
    alerts = admin.get("/v1/alerts").json
    assert alerts["targets"] == [] and alerts["dead"] == []


def test_a_reader_of_all_reads_all_and_changes_nothing(town):
    reader = who(town, "reader of all")
    assert SECRET in reader.get("/v1/decisions").text
    assert "server" not in reader.get("/v1/settings").json["settings"]
    alerts = reader.get("/v1/alerts").json
    assert alerts["targets"] == [] and all(dead["target"] is None for dead in alerts["dead"])
    assert reader.post("/v1/circuits/e/open").status == 403


def test_the_metrics_role_reads_the_figures_and_nothing_else(town):
    scraper = who(town, "metrics")
    assert "runguard_http_requests" in scraper.get("/metrics").text
    for path in [*READS[:-1], "/v1/events"]:
        assert scraper.get(path).status == 403, path
    assert scraper.post(AGENT_ACTION, {"session_id": "s", "action_name": "a"}).status == 403


def test_a_tenants_figures_are_its_own(town):
    who(town, "guard").allowed(AGENT_ACTION, session_id="s", action_name="a")
    for name in ("read", "admin"):
        text = who(town, name).get("/metrics").text
        assert 'runguard_decisions_last_hour{guard="agent_action",outcome="allowed",reason=""} 1' in text
        assert "runguard_http_requests" not in text and "api_circuit" not in text
    refused = who(town, "guard").get("/metrics")
    assert refused.status == 403 and "--role metrics" in refused.json["detail"]


# -- the command ----------------------------------------------------------------------------------


def test_an_admin_without_a_tenant_is_said_to_be_of_all(tmp_path):
    made = run_cli("key", "create", "--data", tmp_path, "--role", "admin")
    assert "ALL tenants" in made.stderr and "--tenant" in made.stderr
    of_one = run_cli("key", "create", "--data", tmp_path, "--role", "admin", "--tenant", "acme")
    assert "ALL" not in of_one.stderr and "'acme'" in of_one.stderr
    listed = json.loads(run_cli("key", "list", "--data", tmp_path, "--json").stdout)
    assert [key["all_tenants"] for key in listed] == [True, False]


@pytest.mark.parametrize("arguments", [
    ["--all-tenants", "--tenant", "acme", "--role", "admin"],
    ["--all-tenants", "--role", "guard"],
    ["--tenant", "acme", "--role", "metrics"],
], ids=" ".join)
def test_nonsense_is_refused(tmp_path, arguments):
    made = run_cli("key", "create", "--data", tmp_path, *arguments)
    assert made.returncode not in (0, 101) and made.stderr
    assert not (tmp_path / "keys.json").exists()


def test_help_explains_the_roles():
    shown = run_cli("key", "create", "--help").stdout
    for role in ("guard", "read", "admin", "metrics"):
        assert f"\n  {role} " in shown, shown


def test_the_first_key_says_that_it_closes_an_open_service(serve):
    server = serve()
    first = run_cli("key", "create", "--data", server.data)
    assert "from now on" in first.stderr and "refuses callers without a key" in first.stderr
    second = run_cli("key", "create", "--data", server.data)
    assert "from now on" not in second.stderr
    deadline = time.monotonic() + 10
    while server.client().get("/v1/decisions").status != 401:
        assert time.monotonic() < deadline


# -- keys of before -------------------------------------------------------------------------------


def test_an_older_admin_of_the_default_tenant_stays_one_of_all_and_others_become_their_tenants(serve):
    server = serve(start=False)
    keys = {tenant: create(server.data, "--tenant", tenant, "--role", "admin") for tenant in ("default", "acme")}
    file = server.data / "keys.json"
    records = json.loads(file.read_text())
    for record in records["keys"]:
        del record["all_tenants"]
    file.write_text(json.dumps(records))
    server.start()
    assert server.client(key=keys["default"]).get("/v1/decisions?tenant=acme").status == 200
    assert server.client(key=keys["acme"]).get("/v1/decisions?tenant=default").status == 403


def test_a_key_of_all_tenants_is_told_where_was_looked(town):
    """A session and an endpoint are filed under their tenant: nobody is told that there is nothing when there is."""
    operator, session, endpoint = who(town, "operator"), f"{SECRET}-session", f"{SECRET}-api"
    for name in ("operator", "reader of all"):
        for path in (f"/v1/decisions?session={session}", f"/v1/circuits?endpoint={endpoint}"):
            unnamed = who(town, name).get(path)
            assert unnamed.status == 422 and [error["field"] for error in unnamed.json["errors"]] == ["tenant"], unnamed
            assert "tenant=NAME" in unnamed.text and "--tenant NAME" in unnamed.text, unnamed
            named = who(town, name).get(f"{path}&tenant={SECRET}").json
            assert len(named.get("decisions") or named.get("circuits")) == 1, named
    for method, path in [("GET", f"/v1/sessions/{session}"), ("DELETE", f"/v1/sessions/{session}"), ("POST", f"/v1/circuits/{endpoint}/open")]:
        unnamed = operator.request(method, path)
        assert unnamed.status == 404, unnamed
        assert "'default'" in unnamed.json["detail"] and "?tenant=NAME" in unnamed.json["detail"], unnamed
    assert operator.get("/v1/circuits").json["counts"]["open"] == 1, "and no circuit was made in another tenant"
    assert operator.post("/v1/circuits/unheard-of/open?tenant=default").status == 200
    assert operator.post("/v1/circuits/unheard-of/reset").status == 200, "one that is known is meant"
    # A key of one tenant hears of no other.
    assert who(town, "admin").get("/v1/sessions/nobody").json["detail"] == "Nothing is known of this session."


def test_a_key_of_all_tenants_follows_a_session_wherever_it_is(town):
    with EventStream(who(town, "operator"), "/v1/events?session=followed") as events:
        who(town, "other").allowed(AGENT_ACTION, session_id="not-followed", action_name="a")
        who(town, "other").allowed(AGENT_ACTION, session_id="followed", action_name="b")
        who(town, "operator").allowed(AGENT_ACTION, session_id="followed", action_name="c")
        assert events.next_event().json["tenant"] == SECRET


def test_the_command_line_says_where_was_looked(serve):
    server = serve(start=False, virtual_clock=False)
    operator, acme = create(server.data, "--role", "admin"), create(server.data, "--tenant", "acme", "--role", "guard")
    server.start().client(key=acme).allowed(AGENT_ACTION, session_id="victim", action_name="a")
    as_operator = ("--url", server.url, "--key", operator)
    missed = run_cli("session", "victim", *as_operator)
    assert missed.returncode == 3 and "'default'" in missed.stderr and "--tenant NAME" in missed.stderr, missed
    unnamed = run_cli("decisions", "--session", "victim", *as_operator)
    assert unnamed.returncode == 2 and "--tenant NAME" in unnamed.stderr, unnamed
    assert "victim" in run_cli("session", "victim", "--tenant", "acme", *as_operator).stdout
    assert "victim" in run_cli("decisions", "--session", "victim", "--tenant", "acme", *as_operator).stdout
    # Without keys everybody asks about one tenant.
    alone = serve(virtual_clock=False)
    alone.client().allowed(AGENT_ACTION, session_id="mine", action_name="a")
    assert "mine" in run_cli("decisions", "--session", "mine", "--url", alone.url).stdout


def test_a_refusal_names_the_least_that_would_do(town):
    said = lambda name, method, path: who(town, name).request(method, path, b"{}").json["detail"]
    assert "--role read --all-tenants" in said("read", "GET", f"/v1/decisions?tenant={SECRET}")
    assert "--role admin --all-tenants" in said("admin", "DELETE", f"/v1/sessions/x?tenant={SECRET}")
    assert "--tenant 'acme' --role read" in said("guard", "GET", "/v1/decisions")
    assert "--tenant 'acme' --role admin" in said("read", "POST", "/v1/circuits/e/open")
    figures = said("guard", "GET", "/metrics")
    assert "--tenant 'acme' --role read" in figures and "--role metrics" in figures
