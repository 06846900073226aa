"""The examples of the OpenAPI document are answers that the service gave: the stories of the catalogue are played again, and what is asked
and answered must be what the document shows. `UPDATE_DOCS=1` writes them down."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

import jsonschema_rs

from catalogue import BLOCKS, CIRCUIT_RECORD, ROUTES
from runguard_http import Client, EventStream, Response
from runguard_process import REPOSITORY

FILE = REPOSITORY / "crates" / "runguard-server" / "src" / "openapi" / "examples.json"
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
CONFIG = """
[alerts]
backoff = "1ms"
max_attempts = 1
[[alerts.target]]
name = "ops"
kind = "webhook"
url = "http://127.0.0.1:9/"
secret_env = "HOOK_SECRET"
allow_private = true
"""
ADVICE = "0123456789abcdef"
# What is another one each time.
ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
SAME_ID = "01M7EQCK12A6PQCW2YTW1MQ000"
# Members whose values depend on the machine.
VARYING = {"behind_rows", "problem", "dead", "queued", "firing"}
MOST_ITEMS = 2
MOST_NAMES = 10
MOST_TEXT = 1200


def plain(value: Any) -> Any:
    """Without what is another each time, and lists cut to what shows their form."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        # Names are short, and what is said of them counts them.
        most = MOST_NAMES if all(isinstance(inner, str) for inner in value) else MOST_ITEMS
        return [plain(inner) for inner in value[:most]]
    return ID.sub(SAME_ID, value) if isinstance(value, str) else value


def steady(value: Any) -> Any:
    """What must be the same whenever it is played."""
    if isinstance(value, dict):
        return {name: None if name in VARYING else steady(inner) for name, inner in value.items()}
    return [steady(inner) for inner in value] if isinstance(value, list) else value


def body(response: Response) -> Any:
    return plain(response.json) if "json" in response.content_type else plain(response.text[:MOST_TEXT])


class Book:
    def __init__(self) -> None:
        self.examples: dict[str, dict[str, Any]] = {}

    def add(self, route: str, response: Response | None, request: Any = None, parameters: dict[str, str] | None = None,
            answer: Any = None) -> None:
        entry = self.examples.setdefault(route, {})
        if request is not None:
            entry.setdefault("request", request)
        if parameters:
            entry.setdefault("parameters", parameters)
        if response is None:
            entry.setdefault("answers", {})["200"] = answer
        elif response.status != 204:
            entry.setdefault("answers", {})[str(response.status)] = body(response)
        else:
            entry.setdefault("answers", {})["204"] = None


def named(fields: dict[str, Any], session: str) -> dict[str, Any]:
    return {name: session if name == "session_id" and value == "s" else value for name, value in fields.items()}


def play_guards(client: Client, fresh: Client, book: Book) -> None:
    """One request, and both its answers: `fresh` is a service in which nothing came before it."""
    for number, route in enumerate(ROUTES):
        start = number * 10_000
        block = next((block for block in BLOCKS if block.path == route.path and block.before), None)
        # A number may come as text; the example shows it as it is meant.
        ask = {name: float(value) if name == "usd" else value for name, value in (block.ask if block else route.body).items()}
        session = f"chat-{number}"
        first = (fresh if block else client).at(start).post(route.path, named(ask, session))
        assert first.status == route.status, (route.path, first)
        book.add(f"POST {route.path}", first, request=named(ask, session))
        if block:
            for second, path, fields in block.before:
                client.at(start + second).post(path, named(fields, session))
            refused = client.at(start + block.asked_at).post(route.path, named(ask, session))
            assert refused.status == 429, (route.path, refused)
            book.add(f"POST {route.path}", refused)


def play_log(server: Any, client: Client, book: Book) -> None:
    client.at(400_000)
    for number in range(10):
        client.recorded(CIRCUIT_RECORD, session_id=f"caller-{number}", endpoint_key="payments", outcome="failure")
    client.refused("/guard/api-circuit/check", "circuit_just_tripped", session_id="caller-1", endpoint_key="payments")
    client.allowed("/guard/agent-run", session_id="nightly-7", model="gpt-4o")
    client.allowed("/guard/budget/record", session_id="nightly-7", model="gpt-4o", input_tokens=1000, output_tokens=100)
    settled(client)
    get = client.get
    decision = get("/v1/decisions?limit=1&reason=retry_cap_reached").json["decisions"][0]
    session = decision["session_id"]
    for route, path, parameters in [
        ("/v1/decisions", "/v1/decisions?outcome=blocked&limit=2", {"outcome": "blocked", "limit": "2"}),
        ("/v1/decisions/{decision_id}", f"/v1/decisions/{decision['decision_id']}", {"decision_id": SAME_ID}),
        ("/v1/sessions", "/v1/sessions?prefix=chat-&sort=blocked&limit=2", {"prefix": "chat-", "sort": "blocked", "limit": "2"}),
        ("/v1/sessions/{session_id}", f"/v1/sessions/{session}", {"session_id": session}),
        ("/v1/stats", "/v1/stats?bucket=day", {"bucket": "day"}),
        ("/v1/insights", "/v1/insights", {}),
        ("/v1/overview", "/v1/overview?since=24h", {"since": "24h"}),
        ("/v1/consumption", "/v1/consumption", {}),
        ("/v1/spend", "/v1/spend?by=model", {"by": "model"}),
        ("/v1/runs", "/v1/runs?limit=2", {"limit": "2"}),
        ("/v1/circuits", "/v1/circuits?phase=open", {"phase": "open"}),
        ("/v1/alerts", "/v1/alerts", {}),
        ("/v1/guards", "/v1/guards", {}),
        ("/healthz", "/healthz", {}),
        ("/readyz", "/readyz", {}),
        ("/docs/problems/{kind}", "/docs/problems/invalid-fields", {"kind": "invalid-fields"}),
    ]:
        response = get(path)
        assert response.status == 200, (path, response)
        book.add(f"GET {route}", response, parameters=parameters)
    settings = get("/v1/settings").json
    settings["settings"] = {"guards": {"handoff": settings["settings"]["guards"]["handoff"]}}
    book.add("GET /v1/settings", None, answer=plain(settings))
    figures = [line for line in get("/metrics").text.splitlines() if line.startswith("runguard_decisions_total") and "ai_task" in line]
    book.add("GET /metrics", None, answer="\n".join(sorted(figures)) + "\n")
    document = get("/openapi.json").json
    book.add("GET /openapi.json", None, answer={"openapi": document["openapi"], "info": document["info"]})
    book.add("GET /docs", None, answer=get("/docs").text[:15])
    book.add("GET /", None, answer=get("/").text[:15])
    book.add("GET /dashboard/{file}", None, answer=get("/dashboard/docs.js").text.splitlines()[0], parameters={"file": "docs.js"})
    for verb in ("open", "close", "reset"):
        book.add(f"POST /v1/circuits/{{endpoint_key}}/{verb}", client.post(f"/v1/circuits/payments/{verb}"), parameters={"endpoint_key": "payments"})
    book.add("POST /v1/alerts/test", client.post("/v1/alerts/test"), request={})
    dead = get("/v1/alerts").json["dead"][0]["id"]
    book.add("POST /v1/alerts/dead/{id}/retry", client.post(f"/v1/alerts/dead/{dead}/retry"), parameters={"id": "1"})
    note = {"note": "too dear for tonight"}
    book.add("POST /v1/runs/{run}/stop", client.post("/v1/runs/nightly-7/stop", note), request=note, parameters={"run": "nightly-7"})
    book.add("POST /v1/runs/{run}/resume", client.post("/v1/runs/nightly-7/resume"), parameters={"run": "nightly-7"})
    for verb, request in [("snooze", {"for": "7d"}), ("dismiss", None), ("restore", None)]:
        response = client.post(f"/v1/insights/{ADVICE}/{verb}", request)
        book.add(f"POST /v1/insights/{{key}}/{verb}", response, **({"request": request} if request else {}), parameters={"key": ADVICE})
    preview = {"guard": "handoff", "settings": {"max_visits_per_bot": 1}, "since": "30d"}
    book.add("POST /v1/preview", client.post("/v1/preview", preview), request=preview)
    with EventStream(server.client().at(400_100), "/v1/events") as stream:
        client.at(400_100).post(ROUTES[0].path, {"session_id": "chat-live", "task_name": "classify"})
        event = stream.next_event()
    kind = f"event: {event.name}\n" if event.name else ""
    book.add("GET /v1/events", None, answer=plain(f"id: {event.id}\n{kind}data: {event.data}\n\n"))
    book.add("DELETE /v1/sessions/{session_id}", client.delete(f"/v1/sessions/{session}"), parameters={"session_id": session})


def settled(client: Client) -> None:
    for _ in range(500):
        seen = client.get("/v1/alerts").json
        if seen["behind_rows"] == 0 and seen["dead"] and not seen["queued"] and client.get("/v1/insights").json["behind_rows"] == 0:
            return
        time.sleep(0.02)
    raise AssertionError(seen)


def test_the_examples_are_what_the_service_answers(serve):
    server = serve(CONFIG, environment={"HOOK_SECRET": SECRET})
    client, book = server.client(), Book()
    play_guards(client, serve().client(), book)
    play_log(server, client, book)
    text = json.dumps(book.examples, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_DOCS"):
        FILE.write_text(text)
    kept = json.loads(FILE.read_text())
    assert kept.keys() == book.examples.keys()
    for route, entry in book.examples.items():
        assert steady(kept[route]) == steady(entry), f"{route} is answered otherwise; UPDATE_DOCS=1 writes it down"


def test_every_route_has_an_example_that_fits_its_schema(flow):
    document = flow.get("/openapi.json").json
    without, wrong = [], []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            good = {status: answer for status, answer in operation["responses"].items() if status in ("200", "202", "204", "429")}
            shown = [content["example"] for answer in good.values() for content in answer.get("content", {}).values() if "example" in content]
            if not shown and "204" not in good:
                without.append(f"{method} {path}")
            if path.startswith("/guard/"):
                said = operation["requestBody"]["content"]["application/json"]["example"]
                wrong += [f"{method} {path}: {name} is {one[name]}, of {said[name]} it was asked"
                          for one in shown for name in said.keys() & one.keys() if one[name] != said[name]]
            parts = [*good.values(), *([operation["requestBody"]] if "requestBody" in operation else [])]
            for content in (part.get("content", {}).get("application/json", {}) for part in parts):
                if "example" in content:
                    schema = {**content["schema"], "components": document["components"]}
                    wrong += [f"{method} {path}: {error.message[:200]}" for error in jsonschema_rs.validator_for(schema).iter_errors(content["example"])]
            if "requestBody" in operation and "example" not in operation["requestBody"]["content"]["application/json"]:
                without.append(f"the request of {method} {path}")
    assert not without and not wrong, "\n".join(without + wrong)
