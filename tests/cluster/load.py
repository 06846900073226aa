"""Asks all nodes at once, keeps every answer, and says afterwards whether the promises held."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass

from catalogue import AI_TASK_RETRY, BUDGET_RESERVE, HANDOFF
from runguard_http import Client
from runguard_process import Server
from servers import Database, until

RETRY_CAP = 2
HANDOFF_CAP = 6
BUDGET_CAP = 5
CAPS = {"ai_task_retry": RETRY_CAP, "handoff": HANDOFF_CAP, "budget": BUDGET_CAP}


@dataclass(frozen=True)
class Answer:
    asked: float
    answered: float
    node: int
    guard: str
    session: str
    status: int
    body: dict

    @property
    def id(self) -> str:
        return self.body["decision_id"]

    @property
    def degraded(self) -> bool:
        return self.body.get("degraded") is True

    @property
    def allowed(self) -> bool:
        return self.body["allow"]


def question(guard: str, session: str, number: int) -> tuple[str, dict]:
    if guard == "ai_task_retry":
        return AI_TASK_RETRY, {"session_id": session, "task_name": "classify", "user_message": "x"}
    if guard == "handoff":
        return HANDOFF, {"session_id": session, "source_bot": "start", "target_bot": f"bot-{number}"}
    return BUDGET_RESERVE, {"session_id": session, "usd": 1, "max_usd": BUDGET_CAP}


def measured(node: Server, name: str) -> float:
    lines = node.client().get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def ask_many(node: Server, path: str, bodies: list[dict], at_once: int = 500) -> list[dict]:
    """All of them, in order, without waiting for each answer: one connection, `at_once` under way."""
    answers: list[dict] = []
    with socket.create_connection(("127.0.0.1", node.port), timeout=60) as wire, wire.makefile("rb") as replies:
        for start in range(0, len(bodies), at_once):
            texts = [json.dumps(body).encode() for body in bodies[start : start + at_once]]
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
            wire.sendall(b"".join(b"%s%d\r\n\r\n%s" % (head.encode(), len(text), text) for text in texts))
            for _ in texts:
                status = replies.readline()
                assert status.startswith((b"HTTP/1.1 200", b"HTTP/1.1 429")), status
                length = 0
                while (line := replies.readline().strip().lower()):
                    length = int(line.partition(b":")[2]) if line.startswith(b"content-length:") else length
                answers.append(json.loads(replies.read(length)))
    return answers


def all_decisions(client: Client, query: str = "") -> list[dict]:
    found, cursor = [], ""
    while True:
        page = client.get(f"/v1/decisions?limit=1000{query}{cursor}")
        assert page.status == 200, page
        found += page.json["decisions"]
        if not page.json["next_cursor"]:
            return found
        cursor = f"&cursor={page.json['next_cursor']}"


class Copy:
    """A node's own log, where there is no shared one."""

    def __init__(self, node: Server):
        self.node = node

    def ids(self) -> list[str]:
        return [row["decision_id"] for row in reversed(all_decisions(self.node.client()))]


class Load:
    """`with load(nodes):` asks as long as the block runs.

    Each session is asked for about twice as often as its cap allows, by all threads and so by all nodes at about the same time,
    and some of the earlier ones again and again, so that what a fault forgets would show.
    """

    def __init__(self, nodes: list[Server], threads: int = 6, pause: float = 0.004):
        self.nodes = nodes
        self.pause = pause
        self.answers: list[Answer] = []
        self.unanswered: list[tuple[float, int, str]] = []
        self.strange: list[str] = []
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request was never answered"

    def _ask_on(self) -> None:
        connections: dict[int, http.client.HTTPConnection] = {}
        while not self._stop.is_set():
            number = next(self._numbers)
            node = random.randrange(len(self.nodes))
            guard = ("ai_task_retry", "handoff", "budget", "ai_task_retry")[number % 4]
            block = number // 4 // (CAPS[guard] * 2)
            if block > 0 and random.random() < 0.25:
                block = random.randrange(block)
            session = f"{guard}-{block}"
            path, fields = question(guard, session, number)
            asked = time.monotonic()
            try:
                if node not in connections:
                    connections[node] = http.client.HTTPConnection("127.0.0.1", self.nodes[node].port, timeout=30)
                connections[node].request("POST", path, json.dumps(fields), {"content-type": "application/json"})
                response = connections[node].getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                connections.pop(node).close()
                self.unanswered.append((time.monotonic(), node, repr(error)))
                time.sleep(0.02)
                continue
            if response.status not in (200, 429):
                self.strange.append(f"node {node} {path} {fields}: {response.status} {text[:500]!r}")
                time.sleep(0.02)
                continue
            self.answers.append(Answer(asked, time.monotonic(), node, guard, session, response.status, json.loads(text)))
            time.sleep(self.pause)

    # -- what is seen meanwhile ----------------------------------------------------------------

    def wait_for(self, count: int, seconds: float = 30) -> None:
        """So many further answers."""
        goal = len(self.answers) + count
        until(lambda: len(self.answers) >= goal, f"{count} answers, has {len(self.answers) - goal + count}", seconds)

    def wait_until_sound(self, seconds: float = 10) -> float:
        """Every node answers from the shared state again; gives how long it took."""
        began = time.monotonic()

        def sound() -> bool:
            latest = [answer for answer in self.answers[-400:] if answer.asked > began]
            by_node = [[answer for answer in latest if answer.node == node][-3:] for node in range(len(self.nodes))]
            return all(len(last) == 3 and not any(answer.degraded for answer in last) for last in by_node)

        until(sound, "sound answers of every node", seconds)
        return time.monotonic() - began

    def between(self, start: float, end: float) -> list[Answer]:
        """Asked and answered within."""
        return [answer for answer in self.answers if answer.asked >= start and answer.answered <= end]

    # -- the promises --------------------------------------------------------------------------

    def check(self, database: Database | None, may_break: bool = False) -> None:
        assert not self.strange, f"{len(self.strange)} such answers: {self.strange[:3]}"
        assert may_break or not self.unanswered, f"{len(self.unanswered)} unanswered: {self.unanswered[:3]}"
        self.check_caps()
        for answer in self.answers:
            if answer.guard == "budget" and answer.degraded:
                assert not answer.allowed and answer.status == 429, answer
                assert answer.body["reason"] in ("state_unavailable", "budget_exceeded", "too_many_reservations"), answer
            if answer.body.get("reason") == "state_unavailable":
                assert answer.guard == "budget" and answer.degraded, answer
        if database:
            self.check_log(database)

    def check_caps(self) -> None:
        passed = Counter((answer.guard, answer.session) for answer in self.answers if answer.allowed and not answer.degraded)
        over = {key: count for key, count in passed.items() if count > CAPS[key[0]]}
        assert not over, f"caps passed by answers that are not degraded: {over}"

    def check_log(self, database: Database | Copy, seconds: float = 30) -> None:
        answered = [answer.id for answer in self.answers]
        assert len(set(answered)) == len(answered), "two answers with one decision id"
        logged: list[str] = []

        def complete() -> bool:
            logged[:] = database.ids()
            return set(answered) <= set(logged)

        try:
            until(complete, "the log", seconds)
        except AssertionError:
            lost = set(answered) - set(logged)
            examples = [answer for answer in self.answers if answer.id in lost]
            raise AssertionError(f"{len(lost)} of {len(answered)} answered decisions are not in the log, such as {examples[:3]}") from None
        twice = [id for id, count in Counter(logged).items() if count > 1]
        assert not twice, f"{len(twice)} decisions are in the log twice, such as {twice[:3]}"
