"""What `/v1` answers and what the OpenAPI document says of it are the same: no field that is not declared, none declared that is wrong."""

from __future__ import annotations

import base64
from typing import Any

import jsonschema_rs

from catalogue import CIRCUIT_RECORD, ROUTES
from runguard_http import Client

ADVICE = "0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
CONFIG = """
[alerts]
backoff = "50ms"
[[alerts.target]]
name = "hook"
kind = "webhook"
url = "http://127.0.0.1:9/"
secret_env = "HOOK_SECRET"
allow_private = true
"""


def strict(schema: Any) -> Any:
    """The same, but an object has no field that is not declared, and what may hold anything says so."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value if key in ("enum", "const", "examples") else strict(value) for key, value in schema.items()}
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    return {**({"additionalProperties": False} if "object" in kinds else {}), **({"items": False} if "array" in kinds else {}), **made}


def schemas(document: dict[str, Any], path: str, method: str, status: int) -> Any:
    answer = document["paths"][path][method]["responses"][str(status)]
    return {**strict(answer["content"]["application/json"]["schema"]), "components": strict(document["components"])}


def answers(client: Client) -> list[tuple[str, str, Any]]:
    """Every route of the document that answers JSON: its path there, its method, the response."""
    decision = client.get("/v1/decisions").json["decisions"][0]["decision_id"]
    endpoint = "orders"
    return [
        ("/v1/decisions", "get", client.get("/v1/decisions?kind=all&limit=1000")),
        ("/v1/decisions/{decision_id}", "get", client.get(f"/v1/decisions/{decision}")),
        ("/v1/sessions", "get", client.get("/v1/sessions")),
        ("/v1/sessions/{session_id}", "get", client.get("/v1/sessions/s")),
        ("/v1/stats", "get", client.get("/v1/stats")),
        ("/v1/insights", "get", client.get("/v1/insights")),
        ("/v1/insights/{key}/snooze", "post", client.post(f"/v1/insights/{ADVICE}/snooze", {"for": "36h"})),
        ("/v1/insights/{key}/dismiss", "post", client.post(f"/v1/insights/{ADVICE}/dismiss")),
        ("/v1/insights/{key}/restore", "post", client.post(f"/v1/insights/{ADVICE}/restore")),
        ("/v1/overview", "get", client.get("/v1/overview")),
        ("/v1/consumption", "get", client.get("/v1/consumption")),
        ("/v1/spend", "get", client.get("/v1/spend?by=day,model,key,run,upstream,tenant,scope")),
        ("/v1/runs", "get", client.get("/v1/runs")),
        ("/v1/runs/{run}/stop", "post", client.post("/v1/runs/s/stop")),
        ("/v1/runs/{run}/resume", "post", client.post("/v1/runs/s/resume")),
        ("/v1/circuits", "get", client.get("/v1/circuits")),
        ("/v1/circuits/{endpoint_key}/open", "post", client.post(f"/v1/circuits/{endpoint}/open")),
        ("/v1/circuits/{endpoint_key}/close", "post", client.post(f"/v1/circuits/{endpoint}/close")),
        ("/v1/circuits/{endpoint_key}/reset", "post", client.post(f"/v1/circuits/{endpoint}/reset")),
        ("/v1/alerts", "get", client.get("/v1/alerts")),
        ("/v1/alerts/test", "post", client.post("/v1/alerts/test")),
        ("/v1/settings", "get", client.get("/v1/settings")),
        ("/v1/guards", "get", client.get("/v1/guards")),
        ("/v1/preview", "post", client.post("/v1/preview", {"guard": "handoff", "settings": {"max_visits_per_bot": 1}})),
        ("/healthz", "get", client.get("/healthz")),
        ("/readyz", "get", client.get("/readyz")),
        ("/v1/sessions/{session_id}", "delete", client.delete("/v1/sessions/s")),
    ]


def test_every_answer_is_what_the_document_says_and_nothing_more(serve):
    client = serve(CONFIG, environment={"HOOK_SECRET": SECRET}).client()
    for route in ROUTES:
        for _ in range(6):
            client.post(route.path, route.body)
    for _ in range(10):
        client.recorded(CIRCUIT_RECORD, session_id="s", endpoint_key="orders", outcome="failure")
    document = client.get("/openapi.json").json
    seen = answers(client)
    wrong = set()
    for path, method, response in seen:
        validator = jsonschema_rs.validator_for(schemas(document, path, method, response.status))
        for error in validator.iter_errors(response.json):
            place = "/".join("*" if isinstance(part, int) else part for part in error.instance_path)
            wrong.add(f"{method} {path}: {place}: {error.message}"[:200])
    assert not wrong, "\n".join(sorted(wrong))
    routes = {(path, method) for path, methods in document["paths"].items() if path.startswith("/v1/") for method in methods}
    # A stream does not end; and here is no letter that could be retried.
    assert routes - {(path, method) for path, method, _ in seen} == {("/v1/events", "get"), ("/v1/alerts/dead/{id}/retry", "post")}
