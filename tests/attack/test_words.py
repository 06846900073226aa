"""What people said stays where `store_text` puts it: every field of every guard route, taken from the OpenAPI document."""

from __future__ import annotations

import json

import pytest

from runguard_process import run_cli

# Written so that no reader of words takes it apart or changes it.
MARK = "zqmark"
PERSONAL = ["jane.doe", "4111 1111", "4111\u00a01111", "5309", "hunter2secret", "sk-ant-api03"]
SAID = ("write to jane.doe @ example.com or call 555\u2009867\u20095309, card 4111\u00a01111\u00a01111\u00a01111, "
        "password=hunter2secret, key sk-ant-api03-AbCdEfGhIjKlMnOp0123456789")
READ = ["/v1/decisions?kind=all&limit=1000", "/v1/sessions/words", "/v1/overview", "/v1/insights", "/v1/circuits", "/metrics"]
ALERTS = '[[alerts.targets]]\nname = "out"\nkind = "webhook"\nurl = "http://127.0.0.1:9/"\n' \
         '[[alerts.rules]]\nname = "any"\nwhen = "blocks"\nthreshold = 1\nwindow = "1h"\ntargets = ["out"]\n'


def fields_of(document: dict) -> dict[str, dict[str, dict]]:
    """The fields of every guard route, as the service documents them."""
    routes = {}
    for path, item in document["paths"].items():
        if path.startswith("/guard/"):
            schema = item["post"]["requestBody"]["content"]["application/json"]["schema"]
            if "$ref" in schema:
                schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
            routes[path] = schema["properties"]
    return routes


def bodies(fields: dict[str, dict], said) -> list[dict]:
    """All fields together, and then each optional one left out: which of two fields counts may depend on it."""
    whole = {}
    for name, field in fields.items():
        if name == "request_id":
            continue
        example = field["examples"][0]
        if field["x-runguard-kept"] == "as it is":
            whole[name] = example
        elif field["x-runguard-kept"] == "digest":
            whole[name] = {"query": said(name), "list": [said(name), {"deep": said(name)}]}
        else:
            whole[name] = said(name)
    whole["session_id"] = "words"
    rest = [{other: value for other, value in whole.items() if other != name} for name in whole]
    return [whole, *rest]


def send_everything(flow, said_in) -> set[str]:
    """Sends every body twice, the second time with a key and then again; gives the routes that answered."""
    answered = set()
    for path, fields in fields_of(flow.get("/openapi.json").json).items():
        for number, body in enumerate(bodies(fields, lambda name, path=path: said_in(path, name))):
            body[f"{said_in(path, 'unknown')[:60]}"] = said_in(path, "unknown")
            statuses = [flow.post(path, body).status]
            key = {"Idempotency-Key": f"{path}-{number}"}
            first, again = flow.post(path, body, headers=key), flow.post(path, body, headers=key)
            assert first.body == again.body, path
            statuses.append(first.status)
            if "session_id" in body and set(statuses) <= {200, 204, 429}:
                answered.add(path)
    return answered


class Marks:
    """A word for every field of every route."""

    def __init__(self):
        self.of: dict[tuple[str, str], str] = {}

    def __call__(self, path: str, name: str) -> str:
        mark = self.of.setdefault((path, name), f"{MARK}{len(self.of):03}x")
        return f"{mark} asks how refunds work"


def in_files(server, text: str) -> bool:
    return bool(server.files_containing(text))


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_none_keeps_no_word_of_any_field(serve, mode):
    guards = "".join(f'[guards.{guard}]\nmode = "{mode}"\n' for guard in
                     ("ai_task_retry", "handoff", "agent_action", "no_match_reprompt", "capture_slot_fill", "api_circuit", "loop", "stall",
                      "tool_call", "action_group"))
    server = serve(config=f'[log]\nstore_text = "none"\n{guards}')
    flow = server.client()
    marks = Marks()
    answered = send_everything(flow, marks)
    assert answered == set(fields_of(flow.get("/openapi.json").json)), "every route took a request"
    for path in READ:
        shown = flow.get(path)
        assert shown.status == 200 and MARK not in shown.text, (path, shown)
    assert server.stop() == 0
    left = sorted(where for where, mark in marks.of.items() if in_files(server, mark))
    assert left == []
    assert MARK not in server.log()


def test_the_search_for_words_finds_those_that_are_kept(serve):
    """Without this the tests above could be passed by a search that finds nothing."""
    server = serve(config='[log]\nstore_text = "full"\n')
    marks = Marks()
    send_everything(server.client(), marks)
    assert server.stop() == 0
    found = {where for where, mark in marks.of.items() if in_files(server, mark)}
    for where in [("/guard/ai-task-retry", "user_message"), ("/guard/ai-task-retry", "validation_error"),
                  ("/guard/kb-requery", "topic_hash"), ("/guard/kb-requery", "query_text"), ("/guard/kb-requery/record", "query"),
                  ("/guard/agent-action", "action_params_hash"), ("/guard/agent-action/result", "result_hash"),
                  ("/guard/api-circuit/record", "permit_id"), ("/guard/action-group", "api_path"), ("/guard/tool-call", "args"),
                  ("/guard/stall", "error"), ("/guard/no-match-reprompt", "user_utterance")]:
        assert where in found, (where, sorted(found))


def test_redacted_keeps_nothing_personal_of_any_field(serve):
    server = serve()
    send_everything(server.client(), lambda _path, _name: SAID)
    assert server.stop() == 0
    assert {part: server.files_containing(part) for part in PERSONAL} == {part: [] for part in PERSONAL}


def test_names_made_of_words_still_tell_things_apart(serve):
    """Without its words a rule is weaker, never wrong: what was told apart or together by a name still is."""
    flow = serve(config='[log]\nstore_text = "none"\n[guards.kb_requery.botpress.topics."my refund"]\nmax_queries = 1\n').client()
    topic = "/guard/kb-requery"
    flow.allowed(topic, session_id="s", topic_hash="where is it")
    flow.allowed(topic, session_id="s", topic_hash="where is it")
    flow.refused(topic, "kb_requery_cap_reached", session_id="s", topic_hash="where is it")
    flow.allowed(topic, session_id="s", topic_hash="where was it")
    flow.allowed(topic, session_id="s", topic_hash="my refund")
    flow.refused(topic, "kb_requery_cap_reached", session_id="s", topic_hash="my refund")

    call = {"session_id": "s", "tool": "search_knowledge"}
    flow.allowed("/guard/tool-call", **call, args={"query": "fix the login bug"})
    flow.refused("/guard/tool-call", "similar_query", **call, args={"query": "bug login the fix"})
    flow.allowed("/guard/tool-call", **call, args={"query": "opening hours"})

    path = {"session_id": "s", "action_group": "orders", "http_method": "GET"}
    for _ in range(2):
        flow.allowed("/guard/action-group", **path, api_path="/orders/jane")
        flow.post("/guard/action-group/result", {**path, "api_path": "/orders/jane", "failed": True})
    answer = flow.refused("/guard/action-group", "permanent_failure", **path, api_path="/orders/jane")
    assert answer["action"].startswith("orders::GET ") and "jane" not in json.dumps(answer)
    flow.allowed("/guard/action-group", **path, api_path="/orders/joe")


def test_a_failed_search_may_be_made_again_without_its_words(serve):
    flow = serve(config='[log]\nstore_text = "none"\n').client()
    call = {"session_id": "s", "tool": "search_knowledge", "args": {"query": "fix the login bug"}}
    flow.allowed("/guard/tool-call", **call)
    flow.post("/guard/tool-call/record", {**call, "error": True})
    flow.allowed("/guard/tool-call", **call)


# -- a model at its own settings ------------------------------------------------------------------------------------------

SETTINGS = """[provider]
kind = "scripted"
model = "scripted"
script = "script.toml"

[limits]
cost_limit = 0

[tools]
allow = ["read_file", "write_file", "list_directory"]
"""


def test_a_model_cannot_give_itself_a_shell(tmp_path):
    """It rewrites the settings it was started with, those the next start would read, its session, and a hook of git."""
    (tmp_path / "agent.toml").write_text(SETTINGS)
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / ".git" / "config").write_text("token = ghp_secret")
    (tmp_path / "link").symlink_to("agent.toml")
    (tmp_path / "twin").hardlink_to(tmp_path / "agent.toml")
    wanted = [("write_file", {"path": path, "content": SETTINGS.replace("allow = [", 'allow = ["shell", ')}) for path in
              ("agent.toml", "./agent.toml", "AGENT.TOML", "link", "twin", ".git/hooks/post-commit", "runguard-sessions/x/session.jsonl",
               "runguard-data/keys.json")]
    wanted += [("read_file", {"path": path}) for path in ("agent.toml", "twin", ".git/config")]
    wanted += [("list_directory", {"path": path}) for path in (".git", "runguard-sessions")]
    replies = [{"text": "Now.", "calls": [{"name": name, "arguments": arguments}]} for name, arguments in wanted]
    script = "".join(
        f'[[reply]]\ntext = "{number}"\ncalls = [{{ name = "{reply["calls"][0]["name"]}", arguments = {toml(reply["calls"][0]["arguments"])} }}]\n'
        for number, reply in enumerate(replies)
    )
    (tmp_path / "script.toml").write_text(script + '[[reply]]\ntext = "I gave up."\n')
    ran = run_cli("agent", "--config", "agent.toml", "--json", "do it", cwd=tmp_path)
    assert "I gave up." in ran.stdout, ran
    assert (tmp_path / "agent.toml").read_text() == SETTINGS and (tmp_path / "twin").read_text() == SETTINGS
    assert sorted(path.name for path in (tmp_path / ".git").rglob("*")) == ["config", "hooks"]
    assert not (tmp_path / "AGENT.TOML").exists() and not (tmp_path / "runguard-data").exists()
    assert "ghp_secret" not in ran.stdout
    ended = [json.loads(line) for line in ran.stdout.splitlines() if '"tool_finished"' in line]
    assert [event["ok"] for event in ended] == [False] * len(wanted), ended
    assert "Work on the other files" in ended[0]["preview"]


def toml(arguments: dict[str, str]) -> str:
    """An inline table; a string of JSON is one of TOML."""
    return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in arguments.items()) + " }"
