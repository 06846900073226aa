"""The ways in and out: HTTP/1.1, HTTP/2 without TLS by prior knowledge, TLS with either; HTTP/2 to the provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "attack"))

from provider import WORD, Behaviour, Provider  # noqa: E402
from runguard_process import Server  # noqa: E402
from test_gateway import CHAT, HELLO, chat, raw, reserved, spent  # noqa: E402
from test_tls import certificate, curl, serve_tls  # noqa: E402

BODIES = [{"model": CHAT, "messages": HELLO}, {"model": CHAT, "messages": HELLO, "stream": True}]


@pytest.fixture
def over_tls(tmp_path: Path, provider: Provider) -> Iterator[tuple[Server, Path]]:
    started: list[Server] = []

    def serve(*, arguments: tuple[str, ...], **_: Any) -> Server:
        upstream = ("--openai", f"{provider.url}/v1", "--bedrock", provider.url, "--max-usd-per-run", "1")
        environment = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKIAOPERATOR", "AWS_SECRET_ACCESS_KEY": "operators-secret"}
        started.append(Server(tmp_path, virtual_clock=False, verb="gateway", arguments=(*upstream, *arguments), environment=environment))
        return started[0]

    server, authority, _ = serve_tls(serve, tmp_path)
    yield server, authority
    server.stop()


def asked_with_curl(url: str, body: dict[str, Any], *options: str) -> tuple[str, str]:
    """The answer, and the version of HTTP with its status."""
    done = curl(*options, "-N", "-w", "\n%{http_version} %{http_code}", url, "-H", "content-type: application/json", "-H", "authorization: Bearer x", "-d", json.dumps(body))
    answer, _, how = done.stdout.rpartition("\n")
    assert how, done.stderr
    return answer, how


@pytest.mark.parametrize("body", BODIES, ids=["whole", "stream"])
def test_h2c_with_prior_knowledge_is_answered_as_without_the_gateway(gateway: Any, provider: Any, body: dict[str, Any]) -> None:
    server = gateway("--max-usd-per-run", "1")
    provider.behaviour = Behaviour(tokens=200, piece=97)
    direct = raw(f"{provider.url}/v1/chat/completions", {**body, "max_tokens": 1000}).text
    through = asked_with_curl(f"{server.url}/openai/v1/chat/completions", {**body, "max_tokens": 1000}, "--http2-prior-knowledge")
    assert through == (direct, "2 200")


def test_a_run_is_stopped_over_h2c_too(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "0.00001")
    answer, how = asked_with_curl(f"{server.url}/openai/v1/chat/completions", BODIES[0], "--http2-prior-knowledge")
    assert (how, json.loads(answer)["error"]["code"], provider.asked) == ("2 402", "budget_exceeded", [])


@pytest.mark.parametrize("version", ["1.1", "2"])
@pytest.mark.parametrize("body", BODIES, ids=["whole", "stream"])
def test_tls_on_the_way_in(over_tls: tuple[Server, Path], provider: Provider, body: dict[str, Any], version: str) -> None:
    server, authority = over_tls
    provider.behaviour = Behaviour(tokens=200)
    direct = raw(f"{provider.url}/v1/chat/completions", {**body, "max_tokens": 1000}).text
    url = f"https://localhost:{server.port}/openai/v1/chat/completions"
    assert asked_with_curl(url, {**body, "max_tokens": 1000}, f"--http{version}", "--cacert", str(authority)) == (direct, f"{version} 200")


def test_a_real_client_over_tls(over_tls: tuple[Server, Path], provider: Provider) -> None:
    server, authority = over_tls
    # As users do it who cannot change the code: the environment alone.
    program = f"import openai; print(openai.OpenAI().chat.completions.create(model={CHAT!r}, messages={HELLO!r}).choices[0].message.content)"
    environment = {**os.environ, "OPENAI_BASE_URL": f"https://localhost:{server.port}/openai/v1", "OPENAI_API_KEY": "x", "SSL_CERT_FILE": str(authority)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == WORD * 5 + "\n", done.stderr


def test_boto3_sends_its_bearer_token_over_tls(over_tls: tuple[Server, Path], provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    server, authority = over_tls
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "ABSK-callers-own")
    client = boto3.client("bedrock-runtime", region_name="us-east-1", endpoint_url=f"https://localhost:{server.port}/bedrock", verify=str(authority))
    answer = client.converse(modelId="anthropic.claude-sonnet-4-6", messages=[{"role": "user", "content": [{"text": "Say hello."}]}])
    assert answer["output"]["message"]["content"][0]["text"]
    assert provider.asked[0].headers["authorization"] == "Bearer ABSK-callers-own"


# -- the way out -------------------------------------------------------------------------------------


@pytest.fixture
def http2(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a provider that speaks HTTP/2, and the authority of its certificate."""
    authority, key = certificate(tmp_path / "provider", "provider", "-addext", "basicConstraints=critical,CA:FALSE")
    process = subprocess.Popen(["node", str(Path(__file__).parent / "http2_provider.mjs"), str(key), str(authority)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    yield f"https://localhost:{int(process.stdout.readline())}/v1", authority
    process.kill()
    process.wait()


def test_http2_to_the_provider_many_questions_on_few_connections(tmp_path: Path, http2: tuple[str, Path]) -> None:
    url, authority = http2
    server = Server(tmp_path, virtual_clock=False, verb="gateway", arguments=("--openai", url, "--max-usd-per-day", "10"), environment={"SSL_CERT_FILE": str(authority)}).start()
    try:
        run = {"x-runguard-run": "job"}

        def ask(number: int) -> dict[str, Any]:
            question: list[Any] = [{"role": "user", "content": f"Question {number}"}]
            if number % 2:
                answer = client.chat.completions.create(model=CHAT, messages=question, max_tokens=200, extra_headers=run).choices[0].message.content
            else:
                pieces = client.chat.completions.create(model=CHAT, messages=question, max_tokens=200, stream=True, extra_headers=run)
                answer = "".join(piece.choices[0].delta.content or "" for piece in pieces)
            return json.loads(answer)

        client = chat(server)
        cores = os.cpu_count() or 1
        with ThreadPoolExecutor(8 * cores) as pool:
            # Who comes first opens a connection, before anybody knows that it can be shared.
            answers = list(pool.map(ask, range(8 * cores)))
            later = list(pool.map(ask, range(24 * cores)))
        assert max(answer["connections"] for answer in later) <= 2 * cores, "questions share a connection"
        answers += later
        assert {answer["version"] for answer in answers} == {"2.0"}
        assert all(answer["forbidden"] == [] for answer in answers), "headers that HTTP/2 has not"
        assert spent(server, "job") == pytest.approx(len(answers) * (1000 * 2.5e-6 + 100 * 10e-6))
        assert reserved(server, "job") == 0
    finally:
        server.stop()


def test_a_provider_whose_certificate_nobody_vouches_for_is_not_asked(tmp_path: Path, http2: tuple[str, Path]) -> None:
    server = Server(tmp_path, virtual_clock=False, verb="gateway", arguments=("--openai", http2[0])).start()
    try:
        refused = raw(f"{server.url}/openai/v1/chat/completions", {"model": CHAT, "messages": HELLO})
        assert (refused.status_code, refused.json()["error"]["type"]) == (502, "server_error")
        assert "certificate" in refused.json()["error"]["message"]
    finally:
        server.stop()
