"""Two gateways that share their states in a real Redis: one cap, one circuit, one run; and one of them dies."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from provider import Behaviour
from runguard_process import Server
from test_circuits import THREE, ask, circuits
from test_gateway import CHAT, chat, raw, reserved, spent

sys.path.append(str(Path(__file__).resolve().parent.parent / "cluster"))

from servers import Redis, until  # noqa: E402


@pytest.fixture
def nodes(tmp_path: Path, provider: Any) -> Iterator[Callable[..., list[Server]]]:
    """Starts two gateways in front of the provider, with one Redis behind them."""
    redis = Redis(tmp_path / "redis")
    started: list[Server] = []

    def start(*arguments: str, config: str | None = None) -> list[Server]:
        redis.start()
        for number in range(2):
            folder = tmp_path / f"node-{number}"
            folder.mkdir()
            upstream = ("--openai", f"{provider.url}/v1", "--state", redis.url)
            started.append(Server(folder, config=config, virtual_clock=False, verb="gateway", arguments=(*upstream, *arguments)))
            started[-1].start()
        return started

    yield start
    for server in started:
        if server.process and server.process.poll() is None:
            server.stop()
    redis.kill()


def test_a_cap_holds_over_two_nodes_and_many_streams(nodes: Any, provider: Any) -> None:
    servers = nodes("--max-usd-per-day", "0.05")
    provider.behaviour = Behaviour(tokens=1000, input_tokens=20)
    clients = [chat(server, max_retries=0) for server in servers]

    def question(number: int) -> float:
        try:
            stream = clients[number % 2].chat.completions.create(
                model=CHAT, messages=[{"role": "user", "content": f"Question {number}"}], max_tokens=1000, stream=True,
                stream_options={"include_usage": True},
            )
            usage = [piece.usage for piece in stream if piece.usage][-1]
            return usage.prompt_tokens * 2.5e-6 + usage.completion_tokens * 1e-5
        except openai.APIStatusError as refused:
            assert refused.status_code in (402, 429), "spent, or set aside by others"
            return 0.0

    with ThreadPoolExecutor(32) as pool:
        paid = sum(pool.map(question, range(64)))
    assert 0.02 <= paid <= 0.05
    most = sum(20 * 2.5e-6 + 1e-5 * min(1000, body["max_tokens"]) for body in provider.bodies)
    assert most <= 0.05, "whatever the provider had written"


def test_a_circuit_that_one_node_opened_is_open_on_the_other(nodes: Any, provider: Any) -> None:
    one, other = nodes(config=THREE)
    provider.behaviour = Behaviour(status=500)
    assert [ask(one).status_code for _ in range(3)] == [500] * 3
    refused = ask(other)
    assert (refused.status_code, len(provider.asked)) == (503, 3), "nobody was asked"
    assert refused.headers["x-runguard-reason"] in ("circuit_just_tripped", "circuit_open")
    assert circuits(other)["openai/gpt-4o"]["phase"] == "open"


def test_a_conversation_that_the_provider_keeps_is_one_run_on_both_nodes(nodes: Any, provider: Any) -> None:
    servers = nodes()
    provider.behaviour = Behaviour(call=("search", {"query": "rust"}))
    body: dict[str, Any] = {"model": CHAT, "input": "Find it."}
    runs = set()
    for number in range(4):
        answer = raw(f"{servers[number % 2].url}/openai/v1/responses", body)
        assert answer.status_code == 200
        runs.add(answer.headers["x-runguard-run"])
        result = {"type": "function_call_output", "call_id": "call_0", "output": "nothing found"}
        body = {"model": CHAT, "previous_response_id": answer.json()["id"], "input": [result]}
    refused = raw(f"{servers[0].url}/openai/v1/responses", body)
    assert (refused.status_code, refused.json()["error"]["code"], len(runs)) == (402, "run_stalled", 1)


def test_what_a_node_that_dies_had_set_aside_is_paid_once_its_time_is_over(nodes: Any, provider: Any) -> None:
    dying, other = nodes("--max-usd-per-run", "0.05", config='[guards.budget]\nreservation = "5s"\n')
    provider.behaviour = Behaviour(tokens=2000, input_tokens=1000, pause=0.05)
    run = {"x-runguard-run": "r"}
    began = threading.Event()

    def read() -> None:
        stream = chat(dying, max_retries=0).chat.completions.create(
            model=CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=2000, stream=True, extra_headers=run)
        with pytest.raises((openai.APIError, httpx.HTTPError)):
            for _ in stream:
                began.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert began.wait(30)
    worst = reserved(other, "r")
    # The longest answer that was asked for, and the prompt at its largest.
    assert 2000 * 1e-5 < worst <= 0.05
    dying.kill()
    reading.join(30)
    assert (reserved(other, "r"), spent(other, "r")) == (worst, 0), "while it may still be settled"
    time.sleep(5)
    provider.behaviour = Behaviour(tokens=10, input_tokens=10)
    answer = raw(f"{other.url}/openai/v1/chat/completions", {"model": CHAT, "messages": [{"role": "user", "content": "again"}], "max_tokens": 300}, **run)
    assert answer.status_code == 200
    own = 10 * 2.5e-6 + 10 * 1e-5
    until(lambda: reserved(other, "r") == 0, "the other's to be settled")
    assert spent(other, "r") == pytest.approx(worst + own), "at its worst"
    decisions = httpx.get(f"{other.url}/v1/decisions", params={"guard": "budget", "session": "r", "limit": 100}).json()["decisions"]
    marked = [row["answer"]["overdue_usd"] for row in decisions if "overdue_usd" in row["answer"] and "reservation_id" in row["answer"]]
    assert marked == [pytest.approx(worst)], "the reservation with which it was booked says so"
