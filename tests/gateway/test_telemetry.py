"""Model calls as spans, in the words of the conventions for generative AI."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

import bedrock_wire
from provider import Behaviour
from runguard_process import run_cli
from test_gateway import CHAT, HELLO, MESSAGES, raw


class Spans:
    """Takes what the service tells, as JSON."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        spans = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                told = json.loads(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
                for resource in told.get("resourceSpans", []):
                    for scope in resource["scopeSpans"]:
                        spans.found += scope["spans"]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def of_run(self, run: str, count: int) -> list[dict[str, Any]]:
        """So many spans of a run, once they are there."""
        conversation = {"key": "gen_ai.conversation.id", "value": {"stringValue": run}}
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = [span for span in self.found if conversation in span["attributes"]]
            if len(found) >= count:
                return found
            time.sleep(0.05)
        raise AssertionError(f"not {count} spans of {run}: {self.found}")

    def reasons_of(self, run: str) -> list[str]:
        """Why the answer of a run ended, once its span is there."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for span in self.found:
                said = {entry["key"]: entry["value"] for entry in span["attributes"]}
                if said.get("gen_ai.conversation.id", {}).get("stringValue") == run and "gen_ai.usage.output_tokens" in said:
                    values = said.get("gen_ai.response.finish_reasons", {}).get("arrayValue", {}).get("values", [])
                    return [value["stringValue"] for value in values]
            time.sleep(0.05)
        raise AssertionError(f"no span of {run}: {self.found}")


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.http.shutdown()
    spans.http.server_close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_spans_say_why_answers_ended(gateway: Any, provider: Any, spans: Spans, stream: bool) -> None:
    config = f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{spans.http.server_port}"\n'
    server = gateway(config=config, environment=bedrock_wire.ENVIRONMENT)
    provider.behaviour = Behaviour(tokens=50)
    cases = {
        ("/openai/v1/chat/completions", CHAT): ("stop", "length"),
        ("/openai/v1/responses", CHAT): ("completed", None),
        ("/anthropic/v1/messages", MESSAGES): ("end_turn", "max_tokens"),
    }
    for number, ((path, model), (whole, short)) in enumerate(cases.items()):
        body = {"model": model, "messages": HELLO, "input": "hi", "stream": stream}
        raw(server.url + path, {**body, "max_tokens": 100}, **{"x-runguard-run": f"whole-{number}"})
        assert spans.reasons_of(f"whole-{number}") == [whole]
        if short:
            raw(server.url + path, {**body, "max_tokens": 9}, **{"x-runguard-run": f"short-{number}"})
            assert spans.reasons_of(f"short-{number}") == [short]
    bedrock = boto3.client("bedrock-runtime", endpoint_url=f"{server.url}/bedrock", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    ask = {"modelId": "amazon.nova-lite-v1:0", "messages": [{"role": "user", "content": [{"text": "hi"}]}], "requestMetadata": {"run_id": "nova"}}
    if stream:
        list(bedrock.converse_stream(**ask)["stream"])
    else:
        bedrock.converse(**ask)
    assert spans.reasons_of("nova") == ["end_turn"]


def test_a_stream_that_is_cut_here_ended_for_its_length(gateway: Any, provider: Any, spans: Spans) -> None:
    server = gateway("--max-usd-per-run", "1", config=f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{spans.http.server_port}"\n')
    provider.behaviour = Behaviour(tokens=5000, ignores_bound=True)
    raw(f"{server.url}/anthropic/v1/messages", {"model": MESSAGES, "messages": HELLO, "max_tokens": 50, "stream": True}, **{"x-runguard-run": "cut"})
    assert spans.reasons_of("cut") == ["max_tokens"]


def test_all_that_is_decided_for_a_call_belongs_to_the_callers_trace(gateway: Any, provider: Any, spans: Spans) -> None:
    server = gateway("--max-usd-per-run", "0.01", config=f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{spans.http.server_port}"\n')
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

    def ask(run: str, flags: str, **more: Any) -> int:
        headers = {"x-runguard-run": run, "traceparent": f"00-{trace}-{parent}-{flags}"}
        return raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO, **more}, **headers).status_code

    assert ask("unseen", "00", max_tokens=300) == 200
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{}"}}]}
    done = [*HELLO, called, {"role": "tool", "tool_call_id": "call_1", "content": "nothing found"}]
    assert ask("answered", "01", max_tokens=300, messages=done) == 200
    assert ask("only words", "01", max_tokens=300) == 200
    # A prompt that is dearer than the run may be.
    assert ask("refused", "01", messages=[{"role": "user", "content": "word " * 20_000}]) == 402
    # The run is looked at, where it did anything; money is set aside, and settled.
    for run, count in (("answered", 3), ("only words", 2), ("refused", 1)):
        found = spans.of_run(run, count)
        assert [(span["traceId"], span["parentSpanId"]) for span in found] == [(trace, parent)] * count
    said = {entry["key"]: entry["value"] for entry in spans.of_run("refused", 1)[-1]["attributes"]}
    assert said["runguard.reason"] == {"stringValue": "budget_exceeded"}
    assert not [span for span in spans.found if {"key": "gen_ai.conversation.id", "value": {"stringValue": "unseen"}} in span["attributes"]]


def test_replay_of_the_spans_counts_what_was_paid(gateway: Any, provider: Any, spans: Spans, tmp_path: Path) -> None:
    """Not what was set aside for it, nor what was refused."""
    server = gateway("--max-usd-per-run", "0.01", config=f'[telemetry]\notlp_endpoint = "http://127.0.0.1:{spans.http.server_port}"\n')
    provider.behaviour = Behaviour(tokens=50)
    headers = {"x-runguard-run": "paid"}

    def asked(calls: int) -> dict[str, Any]:
        said: list[dict[str, Any]] = [*HELLO]
        for number in range(calls):
            call = {"id": f"call_{number}", "type": "function", "function": {"name": "search", "arguments": json.dumps({"page": number})}}
            said += [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": f"call_{number}", "content": f"page {number}"}]
        return {"model": CHAT, "messages": said, "max_completion_tokens": 400}

    answers = [raw(f"{server.url}/openai/v1/chat/completions", asked(calls), **headers) for calls in (1, 2, 3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    refused = httpx.post(f"{server.url}/guard/budget/reserve", json={"session_id": "paid", "usd": 5})
    assert refused.status_code == 429, refused.text

    def told() -> list[dict[str, str]]:
        return [{entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]} for span in spans.of_run("paid", 1)]

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        acts = Counter(span.get("runguard.act") for span in told() if span["runguard.guard"] == "budget")
        if acts["commit"] == 3 and acts["reserve"] == 4:
            break
        time.sleep(0.05)
    file = tmp_path / "spans.jsonl"
    file.write_text("".join(json.dumps(span) + "\n" for span in spans.of_run("paid", 1)))
    ran = run_cli("replay", file, "--json")
    assert ran.returncode == 0, ran.stderr
    replayed = json.loads(ran.stdout)
    assert replayed["dollars"] == pytest.approx(float(answers[-1].headers["x-runguard-spent-usd"]), abs=1e-6), (acts, replayed)
