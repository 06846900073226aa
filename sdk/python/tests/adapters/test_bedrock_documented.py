"""The programs of docs/bedrock.md, run as they stand against a local Bedrock and a local DynamoDB."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest
from bedrock_server import PLAYS, BedrockServer
from guard_service import free_port, running_service

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "bedrock.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}


def run(program: str, tmp_path: Path, **environment: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], env={**os.environ, **KEYS, **environment}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def program_with(needle: str) -> str:
    (program,) = [program for program in PROGRAMS if needle in program]
    return program


@pytest.fixture
def server() -> Iterator[BedrockServer]:
    with BedrockServer({**PLAYS, "ABCDEF1234": PLAYS["PHRASINGS"], "RESEARCH12": PLAYS["RESEARCH"]}) as server:
        yield server


@pytest.mark.parametrize("needle", ["session-001", "session-002", "session-003", "session-004", "session-006"])
def test_a_program_stops_at_the_third_phrasing_of_a_question(needle: str, server: BedrockServer, tmp_path: Path) -> None:
    program = program_with(needle)
    if importlib.util.find_spec("aioboto3" if "aioboto3" in program else "boto3") is None:
        pytest.skip("its library is not installed here")
    printed = run(program, tmp_path, AWS_ENDPOINT_URL_BEDROCK_AGENT_RUNTIME=server.url)
    assert "stopped: " in printed and "in other words" in printed
    served = server.served[0].wait()
    assert served.hung_up and served.rounds_sent < 10 and len(server.served) == 1


def test_a_session_s_budget_is_kept_by_a_service(server: BedrockServer, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    with running_service(tmp_path) as url:
        printed = run(program_with("session-005"), tmp_path, AWS_ENDPOINT_URL_BEDROCK_AGENT_RUNTIME=server.url, RUNGUARD_URL=url)
    assert printed.count("Margins held at 31 %.") == 2 and "stopped: " in printed


def test_the_lambda_function_refuses_the_third_call(tmp_path: Path) -> None:
    boto3 = pytest.importorskip("boto3")
    server_of = pytest.importorskip("moto.server")
    server = server_of.ThreadedMotoServer(port=free_port())
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = {"AWS_ENDPOINT_URL_DYNAMODB": f"http://{host}:{port}"}
        assert re.findall(r"^aws dynamodb (\S+)", PAGE, re.MULTILINE) == ["create-table", "update-time-to-live"]
        client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=endpoint["AWS_ENDPOINT_URL_DYNAMODB"], **_named(KEYS))
        key = {"AttributeName": "sessionId"}
        # All servers of a process have the same tables.
        with contextlib.suppress(client.exceptions.ResourceInUseException):
            client.create_table(
                TableName="bedrock-agent-call-history",
                KeySchema=[{**key, "KeyType": "HASH"}],
                AttributeDefinitions=[{**key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        printed = run(program_with("session-007"), tmp_path, **endpoint)
    finally:
        server.stop()
    assert printed.splitlines() == ["500 AccessDenied: table orders", "500 AccessDenied: table orders", "422 PERMANENT_FAILURE"]


def _named(keys: dict[str, str]) -> dict[str, str]:
    return {"aws_access_key_id": keys["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": keys["AWS_SECRET_ACCESS_KEY"]}


def test_every_program_is_run() -> None:
    numbers = {number for program in PROGRAMS for number in re.findall(r"session-00\d", program)}
    assert numbers == {f"session-00{number}" for number in range(1, 8)} and len(PROGRAMS) == 7


def test_the_tables_say_what_the_presets_are() -> None:
    from runguard import Run
    from runguard._core import BedrockTurn, bedrock_preset

    for name in ("research", "automation", "interactive"):
        usual = json.loads(bedrock_preset(name, [], "{}"))
        attempts = usual["attempts"]
        row = [usual["repeats"], usual["max_cycle_len"], int(usual["max_usd"]), attempts["barren_lookups"], attempts["same_errors"]]
        assert f'| `"{name}"` |' in PAGE and f"| {' | '.join(map(str, row))} |" in PAGE, name
    for name, usual_count in json.loads(BedrockTurn(Run()._run, "{}").attempts).items():
        assert f"`{name}` ({usual_count})" in PAGE


def test_the_policy_allows_what_the_store_asks_for() -> None:
    (policy,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (statement,) = json.loads(policy)["Statement"]
    assert statement["Action"] == ["dynamodb:GetItem", "dynamodb:PutItem"] and "*" not in statement["Resource"]
