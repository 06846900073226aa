"""Questions as large as they may be: whole and unchanged to the provider, refused where they are larger or too dear, and not kept in memory."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "attack"))

from raw import resident_mb, wait_until  # noqa: E402
from test_gateway import CHAT, MESSAGES, reserved, spent  # noqa: E402

# As settings have it where nobody says otherwise.
MOST_BYTES = 32 * 1024 * 1024
PATHS = [("/openai/v1/chat/completions", CHAT), ("/openai/v1/responses", CHAT), ("/anthropic/v1/messages", MESSAGES)]


def question(model: str, length: int) -> bytes:
    said = [{"role": "user", "content": "%"}]
    body = json.dumps({"model": model, "max_tokens": 300, "max_output_tokens": 300, "messages": said, "input": said[:0]}).encode()
    before, after = body.split(b"%")
    return before + (b"all of it " * (length // 10 + 1))[:length - len(before) - len(after)] + after


def ask(server: Any, path: str, body: bytes, run: str = "large") -> httpx.Response:
    headers = {"content-type": "application/json", "authorization": "Bearer x", "x-runguard-run": run}
    return httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=120)


@pytest.mark.parametrize(("path", "model"), PATHS, ids=["chat", "responses", "messages"])
def test_a_question_of_32_mb_arrives_whole_and_a_larger_one_does_not(gateway: Any, provider: Any, path: str, model: str) -> None:
    server = gateway()
    body = question(model, MOST_BYTES)
    assert ask(server, path, body).status_code == 200
    [asked] = provider.asked
    assert asked.raw == body
    refused = ask(server, path, question(model, MOST_BYTES + 1))
    assert refused.status_code == 413 and "gateway.max_body_mb" in refused.json()["error"]["message"]
    assert len(provider.asked) == 1


def test_a_large_question_that_the_cap_does_not_pay_for_is_refused_and_costs_nothing(gateway: Any, provider: Any) -> None:
    server = gateway("--max-usd-per-run", "1")
    refused = ask(server, PATHS[0][0], question(CHAT, MOST_BYTES))
    assert (refused.status_code, refused.json()["error"]["code"], provider.asked) == (402, "budget_exceeded", [])
    assert (spent(server, "large"), reserved(server, "large")) == (0, 0)


def test_large_questions_side_by_side_are_all_whole_and_leave_nothing_behind(gateway: Any, provider: Any) -> None:
    server = gateway()
    body = question(CHAT, 2 * 1024 * 1024)
    ask(server, PATHS[0][0], body)
    before = resident_mb(server.process.pid)
    with ThreadPoolExecutor(7) as pool:
        answers = list(pool.map(lambda number: ask(server, PATHS[0][0], body, f"large-{number}"), range(21)))
    assert [answer.status_code for answer in answers] == [200] * 21
    assert len(provider.asked) == 22 and all(asked.raw == body for asked in provider.asked)
    wait_until(lambda: resident_mb(server.process.pid) - before < 100)


def test_half_a_dozen_long_questions_of_one_caller_pass_side_by_side(gateway: Any, provider: Any) -> None:
    server = gateway()
    body = question(CHAT, 16 * 1024 * 1024)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda number: ask(server, PATHS[0][0], body, f"long-{number}"), range(6)))
    assert [answer.status_code for answer in answers] == [200] * 6
    peak = int(Path(f"/proc/{server.process.pid}/status").read_text().split("VmHWM:")[1].split()[0]) // 1024
    assert peak < 400, f"{peak} MB"
