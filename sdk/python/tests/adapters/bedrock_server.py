"""A local Bedrock agent runtime for the tests: InvokeAgent and InvokeInlineAgent over HTTP, answered as an AWS event stream.

The agent id in the path chooses the trace that is played. Trace events are sent only when the request has `enableTrace`,
as the real service does. Between two rounds the server waits a moment for the client to hang up, so a test can see how far
a stream was really read. Only the standard library is used.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import struct
import threading
import zlib
from base64 import b64encode
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable, Mapping, Optional
from urllib.parse import unquote

SONNET = "anthropic.claude-3-7-sonnet-20250219-v1:0"
HAIKU = "anthropic.claude-3-5-haiku-20241022-v1:0"

# Nano-dollars per token (input, output), written out so that a wrong price table cannot agree with itself.
NANODOLLARS = {SONNET: (3_000, 15_000), HAIKU: (800, 4_000)}

# How long the server waits after each round for the client to hang up, unless a test says otherwise.
ROUND_PAUSE_SECONDS = 0.02


# --- the wire -------------------------------------------------------------------------------------------------------


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message of `application/vnd.amazon.eventstream`, with both checksums."""
    packed = b"".join(
        struct.pack("!B", len(name)) + name.encode() + b"\x07" + struct.pack("!H", len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 12 + len(packed) + len(payload) + 4, len(packed))
    body = prelude + struct.pack("!I", zlib.crc32(prelude)) + packed + payload
    return body + struct.pack("!I", zlib.crc32(body))


@dataclass(frozen=True)
class Event:
    """One member of the response stream: `chunk`, `trace`, `returnControl`, or an exception."""

    kind: str
    body: dict[str, Any]

    @property
    def is_exception(self) -> bool:
        return self.kind.endswith("Exception")

    def encode(self) -> bytes:
        message = "exception" if self.is_exception else "event"
        headers = {f":{message}-type": self.kind, ":content-type": "application/json", ":message-type": message}
        return frame(headers, json.dumps(self.body).encode())


Round = list[Event]
Play = Callable[[dict[str, Any]], list[Round]]


# --- the shapes of a trace ------------------------------------------------------------------------------------------


@dataclass
class Tracer:
    """Writes the events of one agent, numbering its steps as the service does."""

    agent: str
    model: str = SONNET
    collaborator: Optional[str] = None
    caller: Optional["Tracer"] = None
    step: int = -1

    @property
    def trace_id(self) -> str:
        return f"{self.agent}-{self.step}"

    @property
    def arn(self) -> str:
        return f"arn:aws:bedrock:us-east-1:123456789012:agent-alias/{self.agent}/ALIAS"

    @property
    def chain(self) -> list[dict[str, str]]:
        return (self.caller.chain if self.caller else []) + [{"agentAliasArn": self.arn}]

    def trace(self, **trace: Any) -> Event:
        part: dict[str, Any] = {"agentId": self.agent[:10], "agentAliasId": "ALIAS", "agentVersion": "1", "sessionId": "session"}
        part.update(callerChain=self.chain, trace=trace)
        if self.collaborator:
            part["collaboratorName"] = self.collaborator
        return Event("trace", part)

    def orchestration(self, **member: Any) -> Event:
        return self.trace(orchestrationTrace=member)

    def thinks(self, usage: tuple[int, int], model: Optional[str] = None) -> Round:
        """One call of the model: what went in, what came out, and why."""
        self.step += 1
        prompt = {"traceId": self.trace_id, "type": "ORCHESTRATION", "text": "…", "foundationModel": model or self.model}
        prompt["inferenceConfiguration"] = {"temperature": 0.0, "topP": 1.0, "maximumLength": 2048}
        return [
            self.orchestration(modelInvocationInput=prompt),
            self.orchestration(modelInvocationOutput={"traceId": self.trace_id, "rawResponse": {"content": "…"}, "metadata": metadata(*usage)}),
            self.orchestration(rationale={"traceId": self.trace_id, "text": "I need one more look."}),
        ]

    def calls(self, kind: str, **details: Any) -> Event:
        return self.orchestration(invocationInput={"traceId": self.trace_id, "invocationType": kind, **details})

    def sees(self, kind: str, **details: Any) -> Event:
        return self.orchestration(observation={"traceId": self.trace_id, "type": kind, **details})

    def asks_knowledge_base(self, text: str, *chunks: str, base: str = "KB12345678") -> Round:
        references = [{"content": {"text": found}, "metadata": {"usage": "internal", "page": 3}} for found in chunks or ["partly relevant"]]
        return [
            self.calls("KNOWLEDGE_BASE", knowledgeBaseLookupInput={"knowledgeBaseId": base, "text": text}),
            self.sees("KNOWLEDGE_BASE", knowledgeBaseLookupOutput={"retrievedReferences": references, "metadata": {"totalTimeMs": 41}}),
        ]

    def calls_action(self, action: dict[str, Any], answer: str) -> Round:
        return [
            self.calls("ACTION_GROUP", actionGroupInvocationInput={"executionType": "LAMBDA", **action}),
            self.sees("ACTION_GROUP", actionGroupInvocationOutput={"text": answer}),
        ]

    def finishes(self, text: str, usage: tuple[int, int] = (0, 0)) -> Round:
        events = self.thinks(usage) if usage != (0, 0) else []
        final = self.sees("FINISH", finalResponse={"text": text, "metadata": {"operationTotalTimeMs": 900}})
        return [*events, final, chunk(text)]


def metadata(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {"usage": {"inputTokens": input_tokens, "outputTokens": output_tokens}, "totalTimeMs": 812}


def chunk(text: str) -> Event:
    return Event("chunk", {"bytes": b64encode(text.encode()).decode()})


def function_call(group: str, function: str, **parameters: str) -> dict[str, Any]:
    """An action of a function-details group: it has no path and no verb."""
    return {"actionGroupName": group, "function": function, "parameters": [{"name": n, "type": "string", "value": v} for n, v in parameters.items()]}


def api_call(group: str, verb: str, path: str, parameters: Mapping[str, str], body: Mapping[str, Any]) -> dict[str, Any]:
    """An action of an API-schema group. In traces the body is a list of properties under its content type."""
    properties = [{"name": n, "type": "object" if v[:1] == "{" else "string", "value": v} for n, v in body.items()]
    return {
        "actionGroupName": group,
        "apiPath": path,
        "verb": verb,
        "parameters": [{"name": n, "type": "string", "value": v} for n, v in parameters.items()],
        "requestBody": {"content": {"application/json": properties}},
    }


# --- the plays ------------------------------------------------------------------------------------------------------

# What the other languages play too.
TOLD: dict[str, dict[str, Any]] = {
    play["name"]: play for play in json.loads((Path(__file__).parents[3] / "bedrock-plays.json").read_text(encoding="utf-8"))["plays"]
}
# One question as an agent asks it that got half an answer.
APAC = [step["asks"] for step in TOLD["PHRASINGS"]["steps"]]
QUESTIONS = [step["asks"] for step in TOLD["RESEARCH"]["steps"]]
ERROR: str = TOLD["AGVARIED"]["steps"][0]["gets"]


def played(play: dict[str, Any]) -> Play:
    """A play of the file: its steps in turn, and then its end."""

    def rounds(_: dict[str, Any]) -> list[Round]:
        agent = Tracer(play["name"].lower())
        steps = itertools.islice(itertools.cycle(play["steps"]), play["rounds"])
        events = [agent.thinks(tuple(step["usage"])) + does(agent, step) for step in steps]
        return events if play["ends"] is None else [*events, agent.finishes(play["ends"], tuple(play.get("ends_usage", (0, 0))))]

    def does(agent: Tracer, step: dict[str, Any]) -> Round:
        if "asks" in step:
            return agent.asks_knowledge_base(step["asks"], *step["finds"])
        return agent.calls_action(function_call(*step["does"], **step["with"]), step["gets"])

    return rounds


def action_errors(_: dict[str, Any]) -> list[Round]:
    """The same order is asked for again and again; only key order and number form of the body change."""
    agent = Tracer("agerror")
    bodies = ['{"id": 7, "depth": 1.0}', '{"depth": 1, "id": 7}']
    calls = [api_call("orders", "POST", "/orders/search", {"tenant": "acme"}, {"filter": bodies[i % 2]}) for i in range(40)]
    return [agent.thinks((8_000, 150)) + agent.calls_action(call, ERROR) for call in calls] + [agent.finishes("It failed.")]


def cost_amplification(_: dict[str, Any]) -> list[Round]:
    """No step repeats, but every prompt is 5,000 tokens longer. The pre-processing runs on a cheaper model."""
    agent = Tracer("cost")
    before = {"traceId": "cost-pre", "type": "PRE_PROCESSING", "text": "…", "foundationModel": HAIKU}
    output = {"traceId": "cost-pre", "parsedResponse": {"isValid": True}, "metadata": metadata(1_000, 100)}
    opening = [agent.trace(preProcessingTrace={"modelInvocationInput": before}), agent.trace(preProcessingTrace={"modelInvocationOutput": output})]
    rounds = [opening]
    for i in range(40):
        thought = agent.thinks((5_000 * (i + 1), 500))
        # The service may repeat a part; it must be paid for once.
        thought.append(thought[1])
        rounds.append(thought + agent.calls_action(function_call("reports", f"section_{i}"), '{"ok": true}'))
    return rounds + [agent.finishes("Report written.")]


def every_usage(_: dict[str, Any]) -> list[Round]:
    """Usage on every part that can carry it: pre, routing, orchestration, guardrail, observation, post."""
    agent = Tracer("usage")
    route = {"traceId": "route", "type": "ROUTING_CLASSIFIER", "text": "…", "foundationModel": HAIKU}
    after = {"traceId": "post", "type": "POST_PROCESSING", "text": "…", "foundationModel": HAIKU}
    return [
        [
            agent.trace(routingClassifierTrace={"modelInvocationInput": route}),
            agent.trace(routingClassifierTrace={"modelInvocationOutput": {"traceId": "route", "metadata": metadata(100, 1)}}),
        ],
        agent.thinks((1_000, 10)),
        [agent.sees("KNOWLEDGE_BASE", knowledgeBaseLookupOutput={"retrievedReferences": [], "metadata": metadata(200, 2)})],
        [agent.trace(guardrailTrace={"traceId": "rail", "action": "NONE", "metadata": metadata(300, 3)})],
        [
            agent.trace(postProcessingTrace={"modelInvocationInput": after}),
            agent.trace(postProcessingTrace={"modelInvocationOutput": {"traceId": "post", "metadata": metadata(400, 4)}}),
        ],
        agent.finishes("Counted."),
    ]


def collaborator_loop(_: dict[str, Any]) -> list[Round]:
    """A supervisor hands the same question to one collaborator forty times; the collaborator's own five steps differ each time."""
    supervisor = Tracer("supervisor")
    rounds: list[Round] = []
    for i in range(40):
        question = {"type": "TEXT", "text": "Why was 7 billed twice?"}
        handed = {"agentCollaboratorName": "billing", "agentCollaboratorAliasArn": "arn:billing", "input": question}
        rounds.append([*supervisor.thinks((3_000, 100)), supervisor.calls("AGENT_COLLABORATOR", agentCollaboratorInvocationInput=handed)])
        worker = Tracer(f"billing{i}", model=HAIKU, collaborator="billing", caller=supervisor)
        for j in range(5):
            rounds.append(worker.thinks((1_000, 20)) + worker.calls_action(function_call("ledger", f"page_{j}", batch=str(i)), "nothing found"))
        # The sum of the collaborator's own steps, which were reported already.
        answer = {"agentCollaboratorName": "billing", "output": {"type": "TEXT", "text": "No idea."}, "metadata": metadata(5_000, 100)}
        rounds.append([supervisor.sees("AGENT_COLLABORATOR", agentCollaboratorInvocationOutput=answer)])
    return rounds + [supervisor.finishes("I gave up.")]


def code_loop(_: dict[str, Any]) -> list[Round]:
    """The code interpreter runs the same broken program for ever."""
    agent = Tracer("code")
    code = {"code": "import pandas\npandas.read_csv('sales.csv')"}
    return [
        agent.thinks((2_000, 100))
        + [
            agent.calls("ACTION_GROUP_CODE_INTERPRETER", codeInterpreterInvocationInput=code),
            agent.sees("ACTION_GROUP", codeInterpreterInvocationOutput={"executionError": "FileNotFoundError: sales.csv"}),
        ]
        for _ in range(40)
    ] + [agent.finishes("I gave up.")]


def return_of_control(request: dict[str, Any]) -> list[Round]:
    """Asks the caller to run `refund(order=7)`, whatever the caller answered last time."""
    returned = (request.get("sessionState") or {}).get("returnControlInvocationResults")
    agent = Tracer("control", step=99 if returned else -1)
    call = function_call("payments", "refund", order="7")
    announced = {**call, "executionType": "RETURN_CONTROL", "invocationId": f"inv-{len(returned or [])}"}
    asked = {"actionGroup": "payments", "function": "refund", "parameters": call["parameters"], "actionInvocationType": "RESULT"}
    return [
        [*agent.thinks((1_000, 10)), agent.calls("ACTION_GROUP", actionGroupInvocationInput=announced)],
        [Event("returnControl", {"invocationId": announced["invocationId"], "invocationInputs": [{"functionInvocationInput": asked}]})],
    ]


def return_of_ever_other_calls(request: dict[str, Any]) -> list[Round]:
    """Asks the caller to run a refund in other words each time, until one is done."""
    state = request.get("sessionState") or {}
    number = int(state.get("invocationId", "-1")) + 1
    agent = Tracer("controls", step=100 * number)
    call = function_call("payments", "refund", order=f"order no. {number}")
    asked = {"actionGroup": "payments", "function": "refund", "parameters": call["parameters"], "actionInvocationType": "RESULT"}
    announced = {**call, "executionType": "RETURN_CONTROL", "invocationId": str(number)}
    return [
        [*agent.thinks((1_000, 10)), agent.calls("ACTION_GROUP", actionGroupInvocationInput=announced)],
        [Event("returnControl", {"invocationId": str(number), "invocationInputs": [{"functionInvocationInput": asked}]})],
    ]


def throttled(_: dict[str, Any]) -> list[Round]:
    """Two good steps, then the service throttles inside the stream."""
    agent = Tracer("throttled")
    rounds = [agent.thinks((1_000, 10)) + agent.asks_knowledge_base(question) for question in QUESTIONS[:2]]
    return rounds + [[Event("throttlingException", {"message": "Too many tokens per minute."})]]


def unpriced(_: dict[str, Any]) -> list[Round]:
    """A model behind an application inference profile, whose id says nothing about the price."""
    agent = Tracer("unpriced", model="arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/x1y2z3")
    return [agent.thinks((1_000, 10)) + agent.asks_knowledge_base(QUESTIONS[0]), agent.finishes("Fine.", usage=(2_000, 20))]


PLAYS: dict[str, Play] = {
    **{name: played(play) for name, play in TOLD.items()},
    "AGERROR": action_errors,
    "COST": cost_amplification,
    "USAGE": every_usage,
    "COLLAB": collaborator_loop,
    "CODE": code_loop,
    "CONTROL": return_of_control,
    "CONTROLS": return_of_ever_other_calls,
    "THROTTLED": throttled,
    "UNPRICED": unpriced,
}


# --- the server -----------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """One request and how much of its answer the client let the server send."""

    path: str
    body: dict[str, Any]
    rounds: int
    rounds_sent: int = 0
    bytes_sent: int = 0
    hung_up: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> "Served":
        assert self.over.wait(10), "the server is still sending: the client neither read to the end nor hung up"
        return self


class BedrockServer:
    """Use as a context manager; `url` is what boto3 takes as `endpoint_url`."""

    def __init__(self, plays: Optional[Mapping[str, Play]] = None) -> None:
        self.plays = dict(PLAYS if plays is None else plays)
        self.served: list[Served] = []
        self.pause_seconds = ROUND_PAUSE_SECONDS
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "BedrockServer":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes: the second would wait for the first to be confirmed, 40 ms.
    disable_nagle_algorithm = True
    owner: BedrockServer

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            # A client that closes a half-read stream resets the connection; `Served.hung_up` says so.
            self.close_connection = True

    def do_POST(self) -> None:  # noqa: N802 (the name the standard library asks for)
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        parts = unquote(self.path).strip("/").split("/")
        # /agents/{agent}/agentAliases/{alias}/sessions/{session}/text, or /agents/{session} for an inline agent
        agent, session = (parts[1], parts[5]) if len(parts) == 7 else (str(body.get("agentName", "")), parts[1])
        play = self.owner.plays.get(agent)
        if play is None:
            self._refuse(404, "resourceNotFoundException", f"no agent {agent}")
            return
        rounds = play(body)
        if not body.get("enableTrace"):
            rounds = [[event for event in events if event.kind != "trace"] for events in rounds]
        served = Served(path=self.path, body=body, rounds=len(rounds))
        self.owner.served.append(served)
        self.send_response(200)
        self.send_header("content-type", "application/vnd.amazon.eventstream")
        self.send_header("x-amzn-bedrock-agent-content-type", "application/json")
        self.send_header("x-amz-bedrock-agent-session-id", session)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            self._send(served, rounds)
        except OSError:
            served.hung_up = True
        finally:
            self.close_connection = served.hung_up or self.close_connection
            served.over.set()

    def _send(self, served: Served, rounds: list[Round]) -> None:
        for events in rounds:
            data = b"".join(event.encode() for event in events)
            if data:
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
                if self._client_hung_up():
                    served.hung_up = True
                    return
            served.rounds_sent += 1
            served.bytes_sent += len(data)
        self.wfile.write(b"0\r\n\r\n")

    def _client_hung_up(self) -> bool:
        """Waits a moment for the end of the client's side of the connection."""
        readable, _, _ = select.select([self.connection], [], [], self.owner.pause_seconds)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _refuse(self, status: int, code: str, message: str) -> None:
        data = json.dumps({"message": message}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("x-amzn-errortype", code)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet: the tests look at `served`."""
