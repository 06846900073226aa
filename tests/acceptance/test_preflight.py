"""`runguard preflight` against stand-ins that speak the platforms' own interfaces and ask a real service, as flows do."""

import json
import re
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from runguard_process import REPOSITORY, run_cli

BOT_KEY = "VF.DM.staging"


class Flow:
    """What a bot does with a message: it loops as long as nobody stops it, and asks before each round if it is guarded."""

    def __init__(self, guard_url: str, is_guarded: bool = True, session_of=lambda session: session):
        self.guard_url = guard_url
        self.is_guarded = is_guarded
        self.session_of = session_of

    def may(self, path: str, session: str, **body) -> bool:
        if not self.is_guarded:
            return True
        body = json.dumps({"session_id": self.session_of(session), **body}).encode()
        request = urllib.request.Request(f"{self.guard_url}/guard/{path}", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return json.load(response).get("allow", True)
        except urllib.error.HTTPError as refusal:
            assert refusal.code == 429, refusal.read()
            return False

    def answer(self, session: str, text: str) -> str:
        words = text.lower()
        for pattern, loop in (
            ("package|come last week|nothing else|look it up", self.extract),
            ("credit|upgrade|neither of you", self.hand_over),
            ("submarine", self.search),
            ("subscription tier|look again|keep looking", self.act),
            ("at example dot com", self.capture),
            ("order|try|and now", self.call),
        ):
            if re.search(pattern, words):
                return loop(session, text)
        return self.reprompt(session, text)

    def extract(self, session, text):
        for _ in range(5):
            if not self.may("ai-task-retry", session, task_name="extract_order_number", user_message=text, validation_error="no match"):
                return "Please give me your order number."
        return "I could not find it."

    def hand_over(self, session, _text):
        for _ in range(3):
            for target in ("billing", "subscriptions"):
                if not self.may("handoff", session, source_bot="orchestrator", target_bot=target):
                    return "I connect you with a person."
        return "I do not know."

    def search(self, session, text):
        for _ in range(4):
            if not self.may("kb-requery/check", session, query=text):
                return "I do not have that."
            self.may("kb-requery/record", session, query=text, confidence_score=0.3, retrieved_chunks=2)
        return "Perhaps."

    def act(self, session, _text):
        for _ in range(10):
            if not self.may("agent-action", session, action_name="get_customer_profile"):
                return "I cannot find that out."
        return "Still looking."

    def capture(self, session, text):
        if self.may("capture-slot-fill", session, capture_step="email", entity_type="email", user_utterance=text):
            return "Could you say that once more?"
        return "Please type it as user@domain.com."

    def reprompt(self, session, text):
        if self.may("no-match-reprompt", session, step_id="choose_topic", user_utterance=text):
            return "I did not get that."
        return "I connect you with a person."

    def call(self, session, _text):
        for attempt in range(1, 4):
            if not self.may("api-circuit/check", session, endpoint_key="orders"):
                return "The service is not available."
            self.may("api-circuit/record", session, endpoint_key="orders", attempt=attempt, outcome="failure", status_code=503)
        return "It failed."


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes: the second would wait for the first to be confirmed, 40 ms.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def body(self):
        return json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"null")

    def reply(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Botpress(Handler):
    """The Chat API: users with keys, conversations, messages that the bot answers later."""

    def do_POST(self):
        state, body = self.server, self.body()
        if self.path == "/hook-1/users":
            number = len(state.users)
            state.users[f"key-{number}"] = f"user_{number}"
            return self.reply(201, {"user": {"id": f"user_{number}", "createdAt": "2027-01-15T08:00:00Z"}, "key": f"key-{number}"})
        user = state.users.get(self.headers.get("x-user-key"))
        if user is None:
            return self.reply(401, {"code": 401, "type": "Unauthorized", "message": "no user key"})
        if self.path == "/hook-1/conversations":
            conversation = f"conv_{len(state.messages)}_{id(state) % 10**6}"
            state.messages[conversation] = []
            return self.reply(201, {"conversation": {"id": conversation, "createdAt": "2027-01-15T08:00:00Z"}})
        if self.path == "/hook-1/messages" and body["payload"]["type"] == "text":
            conversation = body["conversationId"]
            message = self.add(conversation, user, body["payload"])
            threading.Thread(target=self.answer, args=(conversation, body["payload"]["text"]), daemon=True).start()
            return self.reply(201, {"message": message})
        return self.reply(404, {"code": 404, "type": "ResourceNotFound", "message": self.path})

    def do_GET(self):
        found = re.fullmatch(r"/hook-1/conversations/([^/]+)/messages", self.path)
        if not found or self.headers.get("x-user-key") not in self.server.users:
            return self.reply(404, {"code": 404, "type": "ResourceNotFound", "message": self.path})
        return self.reply(200, {"messages": list(reversed(self.server.messages[found[1]])), "meta": {}})

    def add(self, conversation, user, payload):
        messages = self.server.messages[conversation]
        message = {"id": f"msg_{conversation}_{len(messages)}", "userId": user, "conversationId": conversation, "payload": payload}
        messages.append(message)
        return message

    def answer(self, conversation, text):
        time.sleep(0.05)
        self.add(conversation, "user_bot", {"type": "text", "text": self.server.flow.answer(conversation, text)})


class Voiceflow(Handler):
    """The Dialog API: an action in, a list of traces out."""

    def do_POST(self):
        found = re.fullmatch(r"/state/user/([^/]+)/interact", self.path)
        body = self.body()
        if self.headers.get("authorization") != BOT_KEY:
            return self.reply(401, {"code": 401, "status": "Unauthorized"})
        action = body["action"]
        said = "Hello!" if action["type"] == "launch" else self.server.flow.answer(found[1], action["payload"])
        traces = [{"type": "path", "payload": {"path": "reprompt"}}, {"type": "text", "payload": {"message": said, "delay": 0}}]
        if "a person" in said:
            traces.append({"type": "end"})
        return self.reply(200, traces)


class Generic(Handler):
    """Somebody's own."""

    def do_POST(self):
        body = self.body()
        return self.reply(200, {"text": self.server.flow.answer(body["chat"]["id"], body["chat"]["text"])})


@pytest.fixture
def bot():
    """`bot(Handler, flow)` gives the address of a stand-in."""
    servers = []

    def start(handler, flow):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        server.flow, server.users, server.messages = flow, {}, {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def guard(serve):
    server = serve(virtual_clock=False)
    return f"http://127.0.0.1:{server.port}"


def preflight(*arguments, **options):
    shown = run_cli("preflight", *arguments, "--json", timeout=180, **options)
    return shown.returncode, {one["name"]: one for one in json.loads(shown.stdout)["scenarios"]} if shown.stdout else shown.stderr


def test_botpress_with_guards_everything_fires(bot, guard):
    url = bot(Botpress, Flow(guard)) + "/hook-1"
    code, seen = preflight("--platform", "botpress", "--url", url, "--guard", guard)
    assert code == 0, seen
    assert set(seen) == {"ai-task-retry", "handoff-cycle", "kb-requery", "agent-spiral"}
    for one in seen.values():
        assert one["fired"] and one["refused"] > 0 and one["replies"] >= one["said"] > 0 and one["hint"] is None, one
    assert seen["ai-task-retry"]["reasons"] == ["input_missing_prerequisite_signal"]
    assert seen["handoff-cycle"]["sessions"][0].startswith("conv_")


def test_botpress_without_guards_nothing_fires_and_it_is_said_why(bot, guard):
    url = bot(Botpress, Flow(guard, is_guarded=False)) + "/hook-1"
    chosen = ("--scenario", "handoff-cycle,agent-spiral", "--wait", "1s")
    code, seen = preflight("--platform", "botpress", "--url", url, "--guard", guard, *chosen)
    assert code == 1 and len(seen) == 2
    assert all(not one["fired"] and one["asked"] == 0 and "never asked" in one["hint"] for one in seen.values()), seen
    shown = run_cli("preflight", "--platform", "botpress", "--url", url, "--guard", guard, *chosen)
    assert shown.returncode == 1 and "handoff was never asked" in shown.stdout, shown


def test_voiceflow_with_guards_everything_fires_and_the_storm_is_stopped(bot, guard):
    url = bot(Voiceflow, Flow(guard))
    code, seen = preflight("--platform", "voiceflow", "--url", url, "--bot-key", BOT_KEY, "--guard", guard)
    assert code == 0, seen
    assert set(seen) == {"no-match", "slot-filling", "kb-chain", "api-storm"}
    assert seen["api-storm"]["conversations"] == 12 and "circuit_just_tripped" in seen["api-storm"]["reasons"]
    assert seen["slot-filling"]["reasons"] == ["colloquial_format_detected"]
    # The agent ended it: nothing more was said.
    assert seen["no-match"]["said"] == 4


def test_a_circuit_that_was_open_before_proves_nothing(bot, serve):
    server = serve(virtual_clock=False)
    guard, client = f"http://127.0.0.1:{server.port}", server.client()
    played = ("--platform", "voiceflow", "--url", bot(Voiceflow, Flow(guard)), "--bot-key", BOT_KEY, "--guard", guard,
              "--scenario", "api-storm", "--wait", "1s")
    for number in range(10):
        failed = {"session_id": f"before-{number}", "endpoint_key": "orders", "attempt": 1, "outcome": "failure", "status_code": 503}
        client.post("/guard/api-circuit/record", failed)
    code, seen = preflight(*played)
    storm = seen["api-storm"]
    assert code == 1 and not storm["fired"] and storm["asked"] > 0 and storm["refused"] == 0, seen
    assert storm["already_open"] == ["orders"] and "runguard circuits reset orders --tenant default" in storm["hint"], seen
    assert run_cli("circuits", "reset", "orders", "--url", guard).returncode == 0
    code, seen = preflight(*played)
    assert code == 0 and seen["api-storm"]["already_open"] == [] and seen["api-storm"]["hint"] is None, seen


def test_a_flow_that_calls_its_sessions_something_else_is_found_out(bot, guard):
    flow = Flow(guard, session_of=lambda session: f"crm-{hash(session) % 1000}")
    arguments = ("--platform", "generic", "--url", bot(Generic, flow), "--guard", guard, "--wait", "1s", "--scenario", "agent-spiral",
                 "--body", '{"chat": {"id": "{session}", "text": "{message}"}}')
    code, seen = preflight(*arguments)
    assert code == 1 and seen["agent-spiral"]["elsewhere"] > 0 and "--any-session" in seen["agent-spiral"]["hint"], seen
    flow.session_of = lambda session: f"erp-{hash(session) % 1000}"
    code, seen = preflight(*arguments, "--any-session")
    assert code == 0 and seen["agent-spiral"]["refused"] > 0, seen


def test_scenarios_of_ones_own_and_a_rule_that_only_watches(bot, serve, tmp_path):
    server = serve("[guards.agent_action]\nmode = \"observe\"\n", virtual_clock=False)
    guard = f"http://127.0.0.1:{server.port}"
    printed = run_cli("preflight", "--platform", "botpress", "--print")
    own = tmp_path / "mine.toml"
    own.write_text('[[scenario]]\nname = "mine"\nguard = "agent_action"\nsay = ["What is my \\"subscription tier\\"?"]\n')
    arguments = ("--platform", "generic", "--url", bot(Generic, Flow(guard)), "--guard", guard, "--scenario", own,
                 "--body", '{"chat": {"id": "{session}", "text": "{message}"}}')
    code, seen = preflight(*arguments)
    assert code == 0 and seen["mine"]["refused"] == 0 and seen["mine"]["observed"] > 0 and "observe" in seen["mine"]["hint"], seen
    assert printed.returncode == 0 and printed.stdout.count("[[scenario]]") == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--url", "http://127.0.0.1:9", "--guard", "{guard}"), "127.0.0.1:9"),
        (("--url", "{bot}", "--guard", "http://127.0.0.1:9"), "cannot reach the service"),
        (("--url", "{bot}", "--guard", "{guard}"), "401"),
        (("--url", "{bot}", "--guard", "{guard}", "--bot-key", BOT_KEY, "--scenario", "nothing"), "there is no scenario"),
        (("--url", "ftp://bot", "--guard", "{guard}"), "must begin with http"),
    ],
)
def test_what_cannot_be_played_ends_with_two(bot, guard, arguments, says):
    url = bot(Voiceflow, Flow(guard))
    given = [argument.format(guard=guard, bot=url) for argument in arguments]
    shown = run_cli("preflight", "--platform", "voiceflow", "--scenario", "no-match", *given)
    assert shown.returncode == 2 and says in shown.stderr, shown


def test_every_scenario_that_is_built_in_is_in_the_guide():
    guide = (REPOSITORY / "docs" / "preflight.md").read_text()
    for platform in ("botpress", "voiceflow"):
        for name in re.findall(r'^name = "(.+)"$', run_cli("preflight", "--platform", platform, "--print").stdout, re.M):
            assert f"`{name}`" in guide, name
