"""What settings, their reload and previews can be made to do by those who write files, variables and requests."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from runguard_process import Server, ServerDidNotStart, run_cli

PREVIEW = "/v1/preview"
HANDOFF = "/guard/handoff"
BUDGET_RESERVE = "/guard/budget/reserve"


def eventually(holds, what: str, seconds: float = 20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := holds():
            return result
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


def handoffs_allowed(flow, session: str) -> int:
    bots = (f"bot-{number}" for number in range(50))
    return next(number for number, bot in enumerate(bots)
                if flow.post(HANDOFF, {"session_id": session, "source_bot": "x", "target_bot": bot}).status == 429)


# -- names that become trees ----------------------------------------------------------------------


def dotted(parts: int) -> str:
    return ".".join("a" * parts)


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


DEEP_BODIES = {
    "one name of many parts": json.dumps({"guard": "handoff", "settings": {dotted(4000): 1}}),
    "a long name in a table": json.dumps({"guard": "handoff", "settings": {"bots": {dotted(30_000): 1}}}),
    "many tables": '{"guard": "handoff", "settings": ' + nested(5000) + "}",
    "as many tables as JSON readers take": '{"guard": "handoff", "settings": ' + nested(120) + "}",
    "tables with long names": '{"guard": "handoff", "settings": ' + ('{"' + dotted(100) + '":') * 100 + "1" + "}" * 100 + "}",
    "lists": '{"guard": "handoff", "settings": {"a": ' + "[" * 5000 + "]" * 5000 + "}}",
}


@pytest.mark.parametrize("body", DEEP_BODIES.values(), ids=DEEP_BODIES)
def test_a_preview_of_a_deep_name_is_refused_and_the_service_lives(server, body):
    response = server.client().request("POST", PREVIEW, body.encode())
    assert response.status in (400, 422), response
    if response.status == 422:
        assert response.json["errors"][0]["field"].startswith("settings"), response
        assert len(response.body) < 4000, "what is refused is not repeated whole"
    assert server.process.poll() is None
    assert server.client().get("/healthz").status == 200


DEEP_REQUESTS = [
    ("/guard/agent-action", {"session_id": "s", "action_name": "a"}, "action_params"),
    ("/guard/tool-call", {"session_id": "s", "turn_id": "t", "tool": "x"}, "args"),
    ("/guard/loop", {"session_id": "s", "tool": "x"}, "args"),
    ("/guard/action-group", {"session_id": "s", "action_group": "g", "function": "f"}, "parameters"),
    ("/guard/loop", {"session_id": "s", "tool": "x"}, "unknown"),
]


@pytest.mark.parametrize("path, fields, name", DEEP_REQUESTS, ids=[f"{path} {name}" for path, _, name in DEEP_REQUESTS])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")], ids=["lists", "tables"])
def test_a_deep_value_in_a_request_does_no_harm(shared_server, path, fields, name, opening, closing):
    levels = 60_000
    body = json.dumps(fields)[:-1] + f', "{name}": ' + opening * levels + "1" + closing * levels + "}"
    response = shared_server.client().request("POST", path, body.encode())
    assert response.status in (200, 400, 422), response
    assert shared_server.process.poll() is None


def test_a_variable_of_many_parts_is_a_mistake_and_no_crash(serve):
    variable = "RUNGUARD_" + "__".join("A" * 4000)
    with pytest.raises(ServerDidNotStart) as refused:
        serve(environment={variable: "1"})
    assert refused.value.exit_code == 2, refused.value
    assert "RUNGUARD_A__A__A" in refused.value.log and "at most" in refused.value.log
    assert len(refused.value.log) < 2000


@pytest.mark.parametrize("content", [
    f"{dotted(4000)} = 1\n",
    f"[{dotted(4000)}]\n",
    f"[guards.handoff.bots.{dotted(40)}]\nx = 1\n",
    "a = " + "[" * 20_000 + "]" * 20_000 + "\n",
    "a = " + "{a = " * 20_000 + "1" + "}" * 20_000 + "\n",
], ids=["key", "table", "below a guard", "lists", "inline tables"])
def test_a_deep_file_is_a_mistake_and_no_crash(tmp_path, content):
    file = tmp_path / "deep.toml"
    file.write_text(content)
    checked = run_cli("settings", "check", file)
    assert checked.returncode == 2, checked
    assert ":1" in checked.stderr
    agent = run_cli("agent", "run", "--settings", file, "hello")
    assert agent.returncode not in (0, 101, -6, -11), agent


def test_a_long_name_for_a_replay_is_a_mistake_and_no_crash(tmp_path):
    (tmp_path / "t.jsonl").write_text("")
    refused = run_cli("replay", tmp_path / "t.jsonl", "--set", f"stall.{dotted(20_000)}=1")
    assert refused.returncode == 2, refused


# -- previews -------------------------------------------------------------------------------------


def of_patterns(patterns: list[str]) -> bytes:
    body = json.dumps({"guard": "ai_task_retry", "settings": {"patterns": {f"t{n}": one for n, one in enumerate(patterns)}}}).encode()
    assert len(body) < 64 * 1024
    return body


# Short to write and large compiled; small compiled and long to compile. No two are alike.
LARGE = of_patterns([f"\\w{{20}}{n}" for n in range(1800)])
SLOW = of_patterns(["[\\pL&&\\PL]?" * 300 + str(n) for n in range(15)])
VERY_SLOW = of_patterns(["[\\pL&&\\PL]?" * 60 + str(n) for n in range(75)])
SMALL = {"guard": "handoff", "settings": {"max_handoffs": 3}}


def test_patterns_of_a_preview_are_bounded_in_all(server):
    began = time.monotonic()
    response = server.client().request("POST", PREVIEW, LARGE, timeout=60)
    assert response.status == 422, response
    assert response.json["errors"][0]["field"].startswith("settings.patterns.t"), response
    assert "too many" in response.json["errors"][0]["problem"], response
    assert time.monotonic() - began < 30
    with open(f"/proc/{server.process.pid}/status") as status:
        peak_kb = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak_kb < 600_000, f"{peak_kb} kB"


@pytest.mark.parametrize("pattern, says", [
    ("(\\w{500}){500}", "compiled"), ("a" * 5000, "at most 4096"), ("(", "not a regular expression"),
])
def test_one_pattern_of_a_preview_is_bounded(shared_server, pattern, says):
    response = shared_server.client().post(PREVIEW, {"guard": "ai_task_retry", "settings": {"patterns": {"t": pattern}}})
    assert response.status == 422, response
    assert response.json["errors"][0]["field"] == "settings.patterns.t"
    assert says in response.json["errors"][0]["problem"]


def test_nobody_waits_while_a_preview_compiles(server):
    """Two serving threads on two cores: requests of others are answered while patterns are compiled."""
    with ThreadPoolExecutor(1) as pool:
        preview = pool.submit(server.client().request, "POST", PREVIEW, SLOW, None, 60)
        slowest = 0.0
        client = server.client(keep_alive=True)
        while not preview.done():
            began = time.monotonic()
            client.allowed("/guard/loop", session_id=f"s{began}", tool="t", args={})
            slowest = max(slowest, time.monotonic() - began)
        assert preview.result().status == 200
    assert slowest < 2, f"a request waited {slowest:.1f} s"


def tenant_keys(server, *tenants: str) -> list[str]:
    made = [run_cli("key", "create", "--data", server.data, "--tenant", tenant, "--role", "read") for tenant in tenants]
    return [one.stdout.split()[-1] for one in made]


def begin_slowly(pool, client, attempts=20):
    """A slow preview that is under way, and the refusal that shows it. A small one may have had the turn when it came."""
    for _ in range(attempts):
        slow = pool.submit(client().request, "POST", PREVIEW, SLOW, None, 60)
        while not slow.done():
            second = client().post(PREVIEW, SMALL)
            if second.status == 429 and not slow.done():
                return slow, second
    raise AssertionError("the slow one always ended before a second was refused")


def test_one_preview_at_a_time_for_a_tenant_and_others_go_on(serve):
    server = serve(start=False)
    acme, other = tenant_keys(server, "acme", "other")
    server.start()
    with ThreadPoolExecutor(1) as pool:
        first, busy = begin_slowly(pool, lambda: server.client(key=acme))
        assert "this tenant" in busy.json["detail"], busy
        assert busy.headers["retry-after"]
        assert server.client(key=other).post(PREVIEW, SMALL).status == 200
        first.result()
    assert server.client(key=acme).post(PREVIEW, SMALL).status == 200


def test_a_preview_ends_when_its_caller_goes(server):
    def begun() -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("POST", PREVIEW, body=VERY_SLOW, headers=server.client().headers())
        return connection

    connection = begun()
    deadline = time.monotonic() + 20
    while server.client().post(PREVIEW, SMALL).status != 429:
        # A small one had the turn when it came.
        assert time.monotonic() < deadline
        connection.close()
        connection = begun()
        time.sleep(0.1)
    connection.close()
    eventually(lambda: server.client().post(PREVIEW, SMALL).status == 200, "its turn is over", seconds=1.5)


# -- secrets --------------------------------------------------------------------------------------

SECRET = "hunter2-QXZ"
ADDRESSES = [
    f"redis://me:{SECRET}@127.0.0.1:1/0",
    f"redis://:{SECRET}@127.0.0.1:1",
    f"redis://me:{SECRET}@@127.0.0.1:1",
    f"redis://me:a/{SECRET}@127.0.0.1:1",
    f"redis://me:a?{SECRET}@127.0.0.1:1",
    f"redis://me:{SECRET}@127.0.0.1:1,me:{SECRET}@127.0.0.1:2",
    f"redis://127.0.0.1:1/0?password={SECRET}",
    f"redis://{SECRET}@127.0.0.1:1",
]
DATABASES = [
    f"postgres://me:{SECRET}@127.0.0.1:1/db",
    f"postgres://127.0.0.1:1/db?user=me&password={SECRET}",
    f"postgres://me:a@{SECRET}@127.0.0.1:1,127.0.0.1:2/db?sslmode=disable",
    f"host=127.0.0.1 port=1 user=me password={SECRET}",
    f"host=127.0.0.1 password='{SECRET} x'",
]
FILES = {
    "a target's address": f'[[alerts.target]]\nname = "ops"\nkind = "slack"\nurl = "https://hooks.slack.com/services/{SECRET}"\n',
    "a secret for the name of a variable": f'[[alerts.target]]\nname = "ops"\nkind = "slack"\nurl_env = "https://hooks.slack.com/{SECRET}"\n',
    "a signing secret for a variable": f'[[alerts.target]]\nname = "o"\nkind = "webhook"\nurl = "https://h"\nsecret_env = "whsec_{SECRET}"\n',
    "headers for a variable": f'[telemetry]\notlp_endpoint = "http://127.0.0.1:1"\notlp_headers_env = "api-key={SECRET}"\n',
    "a collector with a key": f'[telemetry]\notlp_endpoint = "http://127.0.0.1:1/v1?key={SECRET}"\n',
    "a collector with a login": f'[telemetry]\notlp_endpoint = "http://me:{SECRET}@127.0.0.1:1"\n',
    "an address without quotes": f"[store]\nstate = redis://:{SECRET}@h\n",
    "an address that is not closed": f'[store]\nstate = "redis://:{SECRET}@h\n',
    "an address in a wrong place": f'[store]\ndurability = "redis://:{SECRET}@h"\n',
    "an address for a table": f'log = "postgres://u:{SECRET}@h"\n',
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_no_secret_of_a_file_is_shown(tmp_path, content):
    file = tmp_path / "runguard.toml"
    file.write_text(content)
    for command in (("show", "--config", file), ("show", "--json", "--config", file), ("check", file)):
        shown = run_cli("settings", *command)
        assert SECRET not in shown.stdout + shown.stderr, shown


@pytest.mark.parametrize("name, address", [*(("STATE", one) for one in ADDRESSES), *(("DATABASE", one) for one in DATABASES)])
def test_no_secret_of_an_address_is_shown(tmp_path, name, address):
    """By the file, by the variable, by a start that does not find the server."""
    table, key = ("store", "state") if name == "STATE" else ("log", "database")
    file, elsewhere = tmp_path / "runguard.toml", tmp_path / "elsewhere"
    elsewhere.mkdir()
    also = "" if name == "STATE" else '[store]\nstate = "redis://127.0.0.1:1"\n'
    file.write_text(f'{also}[{table}]\n{key} = "{address}"\n')
    variable = {f"RUNGUARD_{table.upper()}__{key.upper()}": address, "RUNGUARD_STORE__PATIENCE_MS": "50"}
    if name == "DATABASE":
        variable["RUNGUARD_STORE__STATE"] = "redis://127.0.0.1:1"
    for arguments, environment in [
        (("settings", "show", "--config", file), {}),
        (("settings", "show", "--json"), variable),
    ]:
        shown = run_cli(*arguments, cwd=elsewhere, env=environment)
        assert SECRET not in shown.stdout + shown.stderr, shown
    # An address that is one is looked for until it answers, one that is none ends the service.
    server = Server(elsewhere, environment=variable, virtual_clock=False).launch()
    try:
        eventually(lambda: server.process.poll() is not None or "not reached" in server.log(), "it says that it does not reach it")
    finally:
        server.kill()
    assert SECRET not in server.log(), server.log()


def test_no_secret_is_in_the_answer_or_the_log(serve):
    server = serve(config=FILES["a target's address"] + FILES["a collector with a key"])
    settings = server.client().get("/v1/settings")
    assert settings.status == 200 and "hooks.slack.com" in settings.text
    assert SECRET not in settings.text
    server.config_file.write_text(FILES["an address in a wrong place"])
    eventually(lambda: server.client().get("/v1/settings").json["refused"], "the refused file is told")
    assert SECRET not in server.client().get("/v1/settings").text + server.log()


# -- files that are empty, gone or wrong ----------------------------------------------------------


@pytest.mark.parametrize("content", ["", " \n\t\n", "# [guards.handoff]\n# max_handoffs = 3\n"], ids=["empty", "blank", "comments"])
def test_a_file_that_says_nothing_is_refused_at_start(serve, content):
    with pytest.raises(ServerDidNotStart) as refused:
        serve(config=content)
    assert refused.value.exit_code == 2
    assert "is empty" in refused.value.log and "--config" in refused.value.log


def metric(server, name: str, what: str) -> float:
    line = next(line for line in server.client().get("/metrics").text.splitlines() if line.startswith(f'{name}{{what="{what}"}}'))
    return float(line.split()[-1])


WRONG_FILES = {
    "emptied": lambda file: file.write_text(""),
    "gone": lambda file: file.unlink(),
    "misspelt": lambda file: file.write_text("[guards.handoff]\nmax_handofs = 5\n"),
    "too large a pattern": lambda file: file.write_text("[guards.ai_task_retry.patterns]\nt = '(\\w{500}){500}'\n"),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "too deep": lambda file: file.write_text(f"[{dotted(50)}]\n"),
}


@pytest.mark.parametrize("break_file", WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_refused_reload_is_seen_everywhere_until_a_good_file_comes(serve, break_file):
    server = serve(config="[guards.handoff]\nmax_handoffs = 3\n")
    flow = server.client()
    assert flow.get("/readyz").json == {"status": "ready"}
    assert flow.get("/v1/settings").json["refused"] == []
    assert metric(server, "runguard_reload_refused", "settings") == 0
    break_file(server.config_file)
    eventually(lambda: flow.get("/readyz").json.get("refused") == ["settings"], "/readyz says so")
    assert flow.get("/readyz").status == 200
    [refused] = flow.get("/v1/settings").json["refused"]
    assert refused["what"] == "settings" and refused["file"] == str(server.config_file) and refused["time"]
    assert refused["error"]
    assert metric(server, "runguard_reload_refused", "settings") == 1
    assert metric(server, "runguard_reload_refusals_total", "settings") >= 1
    assert metric(server, "runguard_reload_refused", "keys") == 0
    assert handoffs_allowed(flow, "still") == 3, "the old settings stay in force"
    server.config_file.write_text("[guards.handoff]\nmax_handoffs = 5\n")
    eventually(lambda: "refused" not in flow.get("/readyz").json, "a good file clears it")
    assert flow.get("/v1/settings").json["refused"] == []
    assert metric(server, "runguard_reload_refused", "settings") == 0
    assert handoffs_allowed(flow, "mended") == 5


def test_a_default_file_that_vanishes_is_refused_too(serve):
    """Found in the working folder, not named: without it the next start has all defaults, but this one was told otherwise."""
    server = serve(start=False)
    file = server.folder / "runguard.toml"
    file.write_text("[guards.handoff]\nmax_handoffs = 3\n")
    server.start()
    file.unlink()
    eventually(lambda: server.client().get("/readyz").json.get("refused") == ["settings"], "/readyz says so")
    assert handoffs_allowed(server.client(), "still") == 3


def test_what_waits_for_a_restart_is_named_until_it_is_taken_back(serve):
    server = serve(config="[guards.handoff]\nmax_handoffs = 3\n")
    changed = ('[guards.handoff]\nmax_handoffs = 4\n[log]\nretention_days = 7\ndatabase = "postgres://localhost/x"\n'
               '[server]\nmax_streams = 5\n[store]\nstate = "redis://localhost"\n')
    server.config_file.write_text(changed)
    waits = '"message":"these changes wait for a restart","keys":"server.max_streams, store.state, log.database, log.retention_days"'
    eventually(lambda: waits in server.log(), "all of them are named")
    assert handoffs_allowed(server.client(), "s") == 4
    server.config_file.write_text("[guards.handoff]\nmax_handoffs = 55\n")
    eventually(lambda: server.log().count("the settings have changed") == 2, "the second change")
    assert server.log().count("wait for a restart") == 1, "nothing waits for one any more"


def test_keys_that_cannot_be_read_are_seen_too(serve):
    server = serve(start=False)
    made = run_cli("key", "create", "--data", server.data, "--role", "admin")
    key = made.stdout.split()[-1]
    server.start()
    keys = server.data / "keys.json"
    good = keys.read_text()
    keys.write_text("{not json")
    eventually(lambda: server.client().get("/readyz").json.get("refused") == ["keys"], "/readyz says so")
    [refused] = server.client(key=key).get("/v1/settings").json["refused"]
    assert refused["what"] == "keys" and "keys.json" in refused["file"]
    keys.write_text(good)
    eventually(lambda: "refused" not in server.client().get("/readyz").json, "good keys clear it")


def test_what_is_wrong_with_a_file_is_for_the_admin(serve):
    server = serve(config="[guards.handoff]\nmax_handoffs = 3\n", start=False)
    [reader] = tenant_keys(server, "acme")
    server.start()
    server.config_file.write_text("")
    eventually(lambda: server.client().get("/readyz").json.get("refused"), "/readyz says so")
    [refused] = server.client(key=reader).get("/v1/settings").json["refused"]
    assert set(refused) == {"what", "time"}


# -- limits that hold -----------------------------------------------------------------------------

CEILING = "[guards.budget]\nmax_usd = 5.0\nmax_tokens = 1000\ncap = 2\n"


def test_a_caller_cannot_raise_the_operators_limit(serve):
    flow = serve(config=CEILING).client()
    refused = flow.refused(BUDGET_RESERVE, "budget_exceeded", session_id="s", usd=6, max_usd=1000)
    assert refused["limit_usd"] == 5
    assert any("max_usd" in warning and "$5.00" in warning for warning in refused["warnings"]), refused
    flow.refused(BUDGET_RESERVE, "budget_exceeded", session_id="s", usd=0, tokens=1001, max_tokens=10**9)
    allowed = flow.allowed(BUDGET_RESERVE, session_id="s", usd=4, max_usd=1000)
    assert allowed["limit_usd"] == 5 and allowed["remaining_usd"] == 1
    flow.refused(BUDGET_RESERVE, "budget_exceeded", session_id="s", usd=2)
    for _ in range(2):
        flow.allowed("/guard/budget/record", session_id="c", key="k", cap=50)
    flow.refused("/guard/budget/record", "call_cap_reached", session_id="c", key="k", cap=50)


def test_nor_by_way_of_a_parent(serve):
    flow = serve(config=CEILING).client()
    flow.allowed("/guard/budget/record", session_id="team", usd=0, max_usd=1000)
    flow.allowed(BUDGET_RESERVE, session_id="a", parent="team", usd=4, max_usd=1000)
    refused = flow.refused(BUDGET_RESERVE, "budget_exceeded", session_id="b", parent="team", usd=4, max_usd=1000)
    assert refused["level"] == "parent" and refused["limit_usd"] == 5


def test_a_callers_limit_below_it_holds_and_is_its_own_to_change(serve):
    flow = serve(config=CEILING).client()
    flow.allowed(BUDGET_RESERVE, session_id="s", usd=1, max_usd=1)
    flow.refused(BUDGET_RESERVE, "budget_exceeded", session_id="s", usd=0.5)
    assert flow.allowed(BUDGET_RESERVE, session_id="s", usd=0.5, max_usd=2)["limit_usd"] == 2
    assert "warnings" not in flow.allowed(BUDGET_RESERVE, session_id="s", usd=0.5)


def test_a_ceiling_that_is_lowered_holds_at_once_also_for_limits_given_before(serve):
    server = serve()
    flow = server.client()
    flow.allowed(BUDGET_RESERVE, session_id="s", usd=1, max_usd=1000)
    server.stop()
    server.environment = {"RUNGUARD_GUARDS__BUDGET__MAX_USD": "5"}
    server.start()
    assert server.client().refused(BUDGET_RESERVE, "budget_exceeded", session_id="s", usd=4.5)["limit_usd"] == 5


def test_a_preview_of_another_ceiling_says_what_would_have_been(serve):
    flow = serve(config="[guards.budget]\nmax_usd = 5.0\n").client()
    for _ in range(6):
        flow.post(BUDGET_RESERVE, {"session_id": "s", "usd": 1, "max_usd": 1000})
    lower = flow.post(PREVIEW, {"guard": "budget", "settings": {"max_usd": 2}}).json
    assert (lower["before"]["allowed"], lower["after"]["allowed"]) == (5, 2), lower
    same = flow.post(PREVIEW, {"guard": "budget", "settings": {}}).json
    assert same["changed_total"] == 0, same
