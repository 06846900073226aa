"""Keys and tenants: who may ask, who may look, who may change, and that tenants never meet."""

import json

import pytest

from catalogue import AGENT_ACTION, CIRCUIT_CHECK, CIRCUIT_RECORD, HANDOFF
from runguard_http import EventStream
from runguard_process import Server, run_cli


def create_key(data, tenant: str | None = "acme", role="guard", *flags) -> str:
    """A key of a tenant; of all of them when it is None."""
    whose = ["--all-tenants"] if tenant is None else ["--tenant", tenant]
    made = run_cli("key", "create", "--data", data, *whose, "--role", role, *flags)
    assert made.returncode == 0, made
    return made.stdout.split()[-1]


def listed(data) -> list[dict]:
    shown = run_cli("key", "list", "--data", data, "--json")
    assert shown.returncode == 0, shown
    answer = json.loads(shown.stdout)
    return answer["keys"] if isinstance(answer, dict) else answer


@pytest.fixture
def closed(serve) -> Server:
    """A server that is not yet started, so that keys can be made first."""
    return serve(start=False)


def assert_refused(response, status):
    assert response.status == status, response
    assert response.content_type == "application/problem+json", response
    assert response.json["status"] == status


# -- the command ----------------------------------------------------------------------------------


def test_create_prints_the_key_once_and_list_never(tmp_path):
    key = create_key(tmp_path)
    made = run_cli("key", "create", "--data", tmp_path, "--tenant", "acme", "--role", "read", "--json")
    assert made.returncode == 0, made
    other = json.loads(made.stdout)["key"]
    assert key != other
    shown = run_cli("key", "list", "--data", tmp_path)
    assert shown.returncode == 0 and "acme" in shown.stdout
    assert key not in shown.stdout and other not in shown.stdout
    assert [(entry["tenant"], entry["roles"]) for entry in listed(tmp_path)] == [("acme", ["guard"]), ("acme", ["read"])]


@pytest.mark.parametrize("arguments", [
    ["--tenant", "acme", "--role", "emperor"],
    ["--tenant", "", "--role", "guard"],
    ["--tenant", "a" * 300, "--role", "read"],
], ids=str)
def test_create_refuses_nonsense(tmp_path, arguments):
    made = run_cli("key", "create", "--data", tmp_path, *arguments)
    assert made.returncode not in (0, 101), made
    assert made.stderr


def test_revoking_an_unknown_key_fails(tmp_path):
    create_key(tmp_path)
    revoked = run_cli("key", "revoke", "--data", tmp_path, "nobody")
    assert revoked.returncode not in (0, 101), revoked
    assert "nobody" in revoked.stderr


def test_the_secret_is_in_no_file(closed):
    key = create_key(closed.data, "acme", "admin")
    closed.start()
    closed.client(key=key).allowed(AGENT_ACTION, session_id="s", action_name="a")
    assert_refused(closed.client(key=key[:-4] + "zzzz").get("/v1/decisions"), 401)
    assert closed.stop() == 0
    secret_part = key[-20:]
    assert closed.files_containing(key, secret_part) == []
    assert key not in closed.log() and secret_part not in closed.log()


# -- who may what ---------------------------------------------------------------------------------


def test_without_keys_loopback_is_open(serve):
    flow = serve().client()
    flow.allowed(AGENT_ACTION, session_id="s", action_name="a")
    assert flow.get("/v1/decisions").status == 200


@pytest.mark.parametrize("wrong", [None, "", "rubbish", "rg_acme_0000000000000000000000000000", "é" * 10, "x" * 5000])
def test_with_keys_nobody_asks_without_one(closed, wrong):
    create_key(closed.data)
    stranger = closed.start().client()
    headers = {} if wrong is None else {"Authorization": f"Bearer {wrong}"}
    for method, path in [("POST", HANDOFF), ("GET", "/v1/decisions"), ("DELETE", "/v1/sessions/s"),
                         ("POST", "/v1/circuits/e/open"), ("GET", "/v1/events")]:
        response = stranger.request(method, path, b"{}", headers)
        if response.status != 431:  # a header that is too long may be refused before anyone looks at the key
            assert_refused(response, 401)
            assert response.headers["www-authenticate"]


def test_health_needs_no_key(closed):
    create_key(closed.data)
    stranger = closed.start().client()
    assert stranger.get("/healthz").status == 200
    assert stranger.get("/readyz").status == 200


MAY = {
    # method, path, body -> the roles that may
    ("POST", AGENT_ACTION): {"guard", "admin"},
    ("GET", "/v1/decisions"): {"read", "admin"},
    ("GET", "/v1/sessions/s"): {"read", "admin"},
    ("GET", "/v1/stats?bucket=hour"): {"read", "admin"},
    ("GET", "/v1/circuits"): {"read", "admin"},
    ("POST", "/v1/circuits/e/open"): {"admin"},
    ("POST", "/v1/circuits/e/close"): {"admin"},
    ("POST", "/v1/circuits/e/reset"): {"admin"},
    ("DELETE", "/v1/sessions/s"): {"admin"},
}


@pytest.mark.parametrize("role", ["guard", "read", "admin"])
def test_roles(closed, role):
    """`guard` may ask, `read` may look, `admin` may change."""
    admin = create_key(closed.data, "acme", "admin")
    key = create_key(closed.data, "acme", role)
    closed.start()
    closed.client(key=admin).allowed(AGENT_ACTION, session_id="s", action_name="first")
    for (method, path), roles in MAY.items():
        response = closed.client(key=key).request(method, path, b'{"session_id": "s", "action_name": "a"}')
        if role in roles:
            assert response.status == 200, f"{role} {method} {path}: {response}"
        else:
            assert_refused(response, 403)


def test_a_revoked_key_is_refused(closed):
    key = create_key(closed.data)
    kept = create_key(closed.data)
    closed.start()
    closed.client(key=key).allowed(AGENT_ACTION, session_id="s", action_name="a")
    closed.stop()
    public_id = next(entry["id"] for entry in listed(closed.data) if entry["id"] in key)
    revoked = run_cli("key", "revoke", "--data", closed.data, public_id)
    assert revoked.returncode == 0, revoked
    closed.start()
    assert_refused(closed.client(key=key).post(AGENT_ACTION, {"session_id": "s", "action_name": "a"}), 401)
    closed.client(key=kept).allowed(AGENT_ACTION, session_id="s", action_name="a")


def test_revoking_the_last_key_does_not_open_the_door(closed):
    key = create_key(closed.data)
    public_id = listed(closed.data)[0]["id"]
    assert run_cli("key", "revoke", "--data", closed.data, public_id).returncode == 0
    closed.start()
    assert_refused(closed.client(key=key).post(AGENT_ACTION, {"session_id": "s", "action_name": "a"}), 401)


def test_a_key_can_answer_always_200(closed):
    soft, hard = create_key(closed.data, "acme", "guard", "--always-200"), create_key(closed.data, "acme", "guard")
    closed.start()
    body = {"session_id": "s", "action_name": "a"}
    for _ in range(3):
        closed.client(key=hard).allowed(AGENT_ACTION, **body)
    refused = closed.client(key=hard).post(AGENT_ACTION, body)
    softly = closed.client(key=soft).post(AGENT_ACTION, body)
    assert (refused.status, softly.status) == (429, 200)
    assert softly.json["allow"] is False and softly.json["reason"] == refused.json["reason"]


# -- tenants --------------------------------------------------------------------------------------


@pytest.fixture
def two(closed):
    """Two tenants, each with a key that may ask and look."""
    keys = [create_key(closed.data, tenant, "guard,read") for tenant in ("acme", "globex")]
    closed.start()
    return [closed.client(key=key) for key in keys]


def test_the_same_session_id_of_another_tenant_is_another_session(two):
    acme, globex = two
    for _ in range(3):
        acme.allowed(AGENT_ACTION, session_id="s", action_name="a")
    acme.refused(AGENT_ACTION, "consecutive_same_action_spiral", session_id="s", action_name="a")
    assert globex.allowed(AGENT_ACTION, session_id="s", action_name="a")["total_actions_used"] == 1


def test_the_same_endpoint_of_another_tenant_is_another_circuit(two):
    acme, globex = two
    for number in range(10):
        acme.recorded(CIRCUIT_RECORD, endpoint_key="e", session_id=f"s{number}", attempt=1, outcome="failure")
    acme.refused(CIRCUIT_CHECK, "circuit_just_tripped", endpoint_key="e", session_id="s")
    assert globex.allowed(CIRCUIT_CHECK, endpoint_key="e", session_id="s")["recent_failures_in_window"] == 0
    assert [item["phase"] for item in acme.get("/v1/circuits").json["circuits"]] == ["open"]
    assert "open" not in [item["phase"] for item in globex.get("/v1/circuits").json["circuits"]]


def test_a_tenant_sees_only_its_own(two):
    acme, globex = two
    acme.allowed(AGENT_ACTION, session_id="of-acme", action_name="a")
    globex.allowed(AGENT_ACTION, session_id="of-globex", action_name="a")
    for client, tenant, other in ((acme, "acme", "globex"), (globex, "globex", "acme")):
        logged = client.get("/v1/decisions").json["decisions"]
        assert [(item["tenant"], item["session_id"]) for item in logged] == [(tenant, f"of-{tenant}")]
        answer = client.get(f"/v1/decisions?tenant={other}")
        assert answer.status == 403 or answer.json["decisions"] == []
        assert client.get(f"/v1/sessions/of-{other}").status == 404
        assert client.get(f"/v1/sessions/of-{other}?tenant={other}").status in (403, 404)
        assert client.get(f"/v1/events?tenant={other}").status == 403
        assert client.get(f"/v1/sessions/of-{tenant}").status == 200
        assert f"of-{other}" not in client.get("/v1/stats?bucket=hour").text


def test_the_live_stream_carries_only_ones_own(two):
    acme, globex = two
    with EventStream(acme, "/v1/events") as events:
        globex.allowed(AGENT_ACTION, session_id="of-globex", action_name="a")
        mine = acme.allowed(AGENT_ACTION, session_id="of-acme", action_name="a")
        assert events.next_event().json["decision_id"] == mine["decision_id"]


def test_an_administrator_of_all_sees_all_tenants_and_changes_the_one_it_names(closed):
    keys = {tenant: create_key(closed.data, tenant, "admin") for tenant in ("acme", "globex", None)}
    closed.start()
    acme, globex, operator = (closed.client(key=key) for key in keys.values())
    for client in (acme, globex, operator):
        client.allowed(AGENT_ACTION, session_id="s", action_name="a")
    assert {item["tenant"] for item in operator.get("/v1/decisions").json["decisions"]} == {"acme", "globex", "default"}
    assert [item["tenant"] for item in operator.get("/v1/decisions?tenant=globex").json["decisions"]] == ["globex"]
    assert operator.get("/v1/sessions/s").json["tenant"] == "default"
    assert operator.delete("/v1/sessions/s?tenant=acme").status == 200
    assert acme.get("/v1/sessions/s").status == 404
    assert globex.get("/v1/sessions/s").status == 200
    assert operator.get("/v1/sessions/s").status == 200


def test_forcing_a_circuit_touches_ones_own_tenant_only(closed):
    keys = {tenant: create_key(closed.data, tenant, "admin") for tenant in ("acme", "globex")}
    closed.start()
    acme, globex = (closed.client(key=key) for key in keys.values())
    assert acme.post("/v1/circuits/e/open").status == 200
    acme.refused(CIRCUIT_CHECK, "circuit_open", endpoint_key="e", session_id="s")
    globex.allowed(CIRCUIT_CHECK, endpoint_key="e", session_id="s")
    assert globex.post("/v1/circuits/e/reset").status in (200, 404)
    acme.refused(CIRCUIT_CHECK, "circuit_open", endpoint_key="e", session_id="s")


def test_idempotency_keys_of_two_tenants_do_not_meet(two):
    acme, globex = two
    first = acme.post(AGENT_ACTION, {"session_id": "s", "action_name": "a"}, {"Idempotency-Key": "k"})
    other = globex.post(AGENT_ACTION, {"session_id": "s", "action_name": "b"}, {"Idempotency-Key": "k"})
    assert (first.status, other.status) == (200, 200)
    assert first.json["decision_id"] != other.json["decision_id"]


# -- the open door --------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]"])
def test_it_does_not_listen_to_the_world_without_a_key(serve, address):
    server = serve(start=False)
    server.listen = f"{address}:{server.port}"
    server.launch()
    assert server.wait() not in (0, 101)
    assert "key create" in server.log(), "the error says what to do"
    assert "panicked" not in server.log()


def test_it_listens_to_the_world_with_a_key(closed):
    key = create_key(closed.data)
    closed.listen = f"0.0.0.0:{closed.port}"
    closed.start().client(key=key).allowed(AGENT_ACTION, session_id="s", action_name="a")


def test_the_command_line_claims_no_more_than_it_knows_of_a_service_that_runs(closed):
    """A service that has had keys stays locked when the file is taken away; the command line cannot see whether it had."""
    before = run_cli("key", "list", "--data", closed.data)
    assert "open on loopback" in before.stdout and "runs on this folder" not in before.stdout, before
    key = create_key(closed.data)
    closed.start()
    (closed.data / "keys.json").unlink()
    listed = run_cli("key", "list", "--data", closed.data)
    assert "refuses every caller if it had one" in listed.stdout and "After a restart" in listed.stdout, listed
    made = run_cli("key", "create", "--data", closed.data)
    assert "if it did not already" in made.stderr and "was open" not in made.stderr, made
    assert key != made.stdout.strip()


def test_revoking_the_last_key_warns(closed):
    first, last = create_key(closed.data), create_key(closed.data)
    revoke = lambda key: run_cli("key", "revoke", "--data", closed.data, key)
    assert revoke(first).stderr == ""
    warned = revoke(last)
    assert warned.returncode == 0 and "refuses every caller" in warned.stderr, warned


def test_a_tenant_lists_its_own_sessions_and_puts_advice_aside_only_with_an_admin_key(closed):
    keys = {whose: create_key(closed.data, whose, "guard") for whose in ("acme", "other")}
    reader, everyone = create_key(closed.data, "acme", "read"), create_key(closed.data, None, "admin")
    closed.start()
    for whose, key in keys.items():
        closed.client(key=key).allowed(AGENT_ACTION, session_id=f"of-{whose}", action_name="a")
    names = lambda response: [session["session_id"] for session in response.json["sessions"]]
    assert names(closed.client(key=reader).get("/v1/sessions")) == ["of-acme"]
    assert names(closed.client(key=everyone).get("/v1/sessions?tenant=other")) == ["of-other"]
    assert len(names(closed.client(key=everyone).get("/v1/sessions"))) == 2
    assert_refused(closed.client(key=reader).get("/v1/sessions?tenant=other"), 403)
    assert_refused(closed.client(key=reader).post("/v1/insights/0123456789abcdef/dismiss"), 403)
    assert_refused(closed.client(key=keys["acme"]).get("/v1/sessions"), 403)
