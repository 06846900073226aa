"""Clients and frameworks that people use, unchanged, each in its own environment: what they see through the gateway is what they see without it,
and a run that must end ends without being asked for again and again.

A driver (frameworks/) is an agent on one client. The environments are those of the adapters' tests, filled by the same code. Without `--frameworks`
those are run that install in seconds. What was seen at a stop is the table of docs/gateway.md: UPDATE_DOCS=1 writes it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "frameworks"
PYTHON_ADAPTERS, NODE_ADAPTERS = ROOT / "sdk/python/tests/adapters", ROOT / "sdk/typescript/tests/adapters"
sys.path.insert(0, str(PYTHON_ADAPTERS))

import run as adapters  # noqa: E402
from model_server import FINAL_ANSWER, ModelServer, Reply, Usage, healthy, looping  # noqa: E402
from runguard_process import Server  # noqa: E402

CHAT, RESPONSES, MESSAGES = "chat", "responses", "messages"
# gpt-4o costs 2.50 and 10.00 dollars a million tokens, claude-sonnet-4-6 3.00 and 15.00.
MODELS = {CHAT: "gpt-4o", RESPONSES: "gpt-4o", MESSAGES: "claude-sonnet-4-6"}
PER_RUN_USD = 1.0
# A long question, and what it truly costs each time: less than the most that it may cost, as with a provider that counts rightly.
LONG_QUESTION, LONG_USAGE = "find out about rust " * 5000, Usage(input=40_000, output=500, cached=0, cache_write=0)
LONG_STEP_USD = {"gpt-4o": 0.105, "claude-sonnet-4-6": 0.1275}
# Words of the gateway that a user of the client must come to see.
NO_PROGRESS, SPENT = "The run makes no progress", "The budget of $1.00"
# A framework is imported in seconds, or in minutes where many others are at work.
SECONDS_A_TASK = 300


@dataclass(frozen=True)
class Client:
    # As the table names it, and the package whose release is told.
    title: str
    package: str
    # One of environments.toml, or of environments.json where the driver is of Node.
    environment: str
    driver: str
    interfaces: tuple[str, ...]
    quick: bool = False
    # The name under which the tool is asked for.
    tool: str = "search"

    @property
    def name(self) -> str:
        """Begins with the environment: conftest.py tells by it what runs together."""
        return f"{self.environment}/{self.driver.removeprefix('drive_').removeprefix('drive-')}"

    @property
    def release(self) -> str:
        if self.driver.endswith(".mjs"):
            return json.loads((NODE_ADAPTERS / "environments.json").read_text())[self.environment]["packages"][self.package]
        wanted = tomllib.loads((PYTHON_ADAPTERS / "environments.toml").read_text())[self.environment]["requirements"]
        [release] = [entry.split("==")[1] for entry in wanted if entry.split("==")[0].split("[")[0] == self.package]
        return release


OPENAI, ANTHROPIC, BOTH = (CHAT, RESPONSES), (MESSAGES,), (CHAT, RESPONSES, MESSAGES)
CLIENTS = [
    Client("OpenAI's, Python", "openai", "openai-1", "drive_openai.py", OPENAI),
    Client("OpenAI's, Python", "openai", "openai", "drive_openai.py", OPENAI),
    Client("OpenAI's, JavaScript", "openai", "hooks", "drive-openai.mjs", OPENAI),
    Client("OpenAI's, JavaScript", "openai", "hooks-7", "drive-openai.mjs", OPENAI),
    Client("Anthropic's, Python", "anthropic", "anthropic-0", "drive_anthropic.py", ANTHROPIC),
    Client("Anthropic's, Python", "anthropic", "anthropic", "drive_anthropic.py", ANTHROPIC),
    Client("Anthropic's, JavaScript", "@anthropic-ai/sdk", "hooks-7", "drive-anthropic.mjs", ANTHROPIC),
    Client("Anthropic's, JavaScript", "@anthropic-ai/sdk", "hooks", "drive-anthropic.mjs", ANTHROPIC),
    Client("LangChain, LangGraph", "langchain", "langchain", "drive_langchain.py", BOTH, quick=True),
    Client("OpenAI Agents SDK, Python", "openai-agents", "openai-agents", "drive_openai_agents.py", OPENAI, quick=True),
    Client("OpenAI Agents SDK, JavaScript", "@openai/agents", "openai-agents", "drive-openai-agents.mjs", OPENAI),
    Client("pydantic-ai", "pydantic-ai-slim", "pydantic-ai", "drive_pydantic_ai.py", BOTH),
    Client("Vercel AI SDK", "ai", "hooks", "drive-vercel-ai.mjs", BOTH, quick=True),
    Client("Vercel AI SDK", "ai", "hooks-7", "drive-vercel-ai.mjs", BOTH),
    Client("LiteLLM, the library", "litellm", "hooks", "drive_litellm.py", (CHAT, MESSAGES)),
    Client("Claude Agent SDK, with its Claude Code", "claude-agent-sdk", "claude-agent", "drive_claude_agent.py", ANTHROPIC, tool="mcp__library__search"),
]


# -- drivers ----------------------------------------------------------------------------------------


@cache
def command(client: Client) -> list[str]:
    """How the driver is started, in its environment with the framework in place."""
    if client.driver.endswith(".py"):
        return [str(adapters.fill(adapters.environments()[client.environment], adapters.HOME)), str(HERE / client.driver)]
    filled = subprocess.run(["node", str(NODE_ADAPTERS / "run.mjs"), "--fill", client.environment], capture_output=True, text=True, check=True)
    place = json.loads(filled.stdout)[client.environment]
    # Node looks for packages from where the file is.
    for file in ("driver.mjs", client.driver):
        shutil.copy(HERE / file, place["home"])
    return [place["node"], str(Path(place["home"]) / client.driver)]


class Driver:
    def __init__(self, client: Client, folder: Path) -> None:
        self.folder = folder
        self.said = (folder / "driver.log").open("w+")
        self.process = subprocess.Popen(command(client), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True, cwd=folder)

    def play(self, url: str, interface: str, stream: bool, question: str, *, is_direct: bool = False, by_environment: bool = False) -> dict[str, Any]:
        task = {"url": url, "interface": interface, "stream": stream, "model": MODELS[interface], "question": question, "folder": str(self.folder),
                "is_direct": is_direct, "by_environment": by_environment}
        late = threading.Timer(SECONDS_A_TASK, self.process.kill)
        late.start()
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        told = self.process.stdout.readline()
        late.cancel()
        assert told, f"the driver ended:\n{(self.folder / 'driver.log').read_text()[-5000:]}"
        return json.loads(told)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Stand:
    """A gateway in front of a model, and the same model without one."""

    through: ModelServer
    direct: ModelServer
    gateway: Server
    polite: Server

    def script(self, script: list[Reply], usage: Usage | None = None) -> None:
        for server in (self.through, self.direct):
            server.script, server.usage = script, usage or Usage()
            server.forget()

    def url(self, server: Server | ModelServer, interface: str) -> str:
        if isinstance(server, ModelServer):
            return server.url if interface == MESSAGES else server.openai_url
        return f"{server.url}/anthropic" if interface == MESSAGES else f"{server.url}/openai/v1"

    def refused(self, server: Server) -> int:
        """How often the gateway was asked and did not pass it on."""
        lines = re.findall(r'^runguard_http_requests_total\{route="([^"]*)",status="(\d+)"\} (\d+)', httpx.get(f"{server.url}/metrics").text, re.MULTILINE)
        return sum(int(number) for route, status, number in lines if status != "200" and is_of_a_model(route))


def is_of_a_model(route: str) -> bool:
    return "openai" in route or "anthropic" in route or "gateway" in route


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    # Claude Code asks beside its agent, without tools: for a title, say.
    through, direct = (ModelServer(looping(), toolless_text="title").start() for _ in range(2))

    def start(name: str, config: str | None) -> Server:
        upstream = ("--openai", through.openai_url, "--anthropic", through.url, "--max-usd-per-run", str(PER_RUN_USD))
        return Server(tmp_path_factory.mktemp(name), config=config, virtual_clock=False, verb="gateway", arguments=upstream).start()

    gateway, polite = start("gateway", None), start("polite", '[gateway]\non_stop = "answer"\n')
    yield Stand(through, direct, gateway, polite)
    for server in (gateway, polite, through, direct):
        server.stop()


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Driver]]:
    started: dict[str, Driver] = {}
    yield started
    for driver in started.values():
        driver.stop()


@pytest.fixture
def driver(client: Client, drivers: dict[str, Driver], tmp_path_factory: pytest.TempPathFactory) -> Driver:
    # One that took too long is gone: the next task has another.
    if client.name not in drivers or drivers[client.name].process.poll() is not None:
        drivers[client.name] = Driver(client, tmp_path_factory.mktemp(client.name.replace("/", "-")))
    return drivers[client.name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = [client for client in CLIENTS if client.quick or metafunc.config.getoption("--frameworks")]
    if "stream" in metafunc.fixturenames:
        cases = [pytest.param(client, interface, stream, id=f"{client.name}-{interface}-{'stream' if stream else 'whole'}")
                 for client in chosen for interface in client.interfaces for stream in (False, True)]
        metafunc.parametrize("client, interface, stream", cases)
    elif "interface" in metafunc.fixturenames:
        each = [pytest.param(client, interface, id=f"{client.name}-{interface}") for client in chosen for interface in client.interfaces]
        metafunc.parametrize("client, interface", each)
    elif "begin" in metafunc.fixturenames:
        listed = [pytest.param(client, begin, id=client.name) for begin, (name, _) in LISTINGS.items() for client in chosen if client.name == name]
        metafunc.parametrize("client, begin", listed)
    elif "client" in metafunc.fixturenames:
        metafunc.parametrize("client", [pytest.param(client, id=client.name) for client in chosen])


# -- what is expected -------------------------------------------------------------------------------


@dataclass
class Seen:
    """What a client did at its stops."""

    errors: set[str] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    polite: set[str] = field(default_factory=set)
    stops: int = 0


SEEN: dict[str, Seen] = {}


def seen_of(client: Client) -> Seen:
    return SEEN.setdefault(client.name, Seen())


def steady(told: Any) -> Any:
    """With the ids of the model's in the order in which they came: it goes on counting from run to run."""
    known: dict[str, str] = {}
    return json.loads(re.sub(r"\b(?:[a-z]+_)+\d{6}\b", lambda found: known.setdefault(found[0], f"id_{len(known)}"), json.dumps(told)))


def model_calls(server: ModelServer) -> int:
    return sum(1 for body in server.bodies if body.get("tools"))


def test_a_healthy_run_is_as_without_the_gateway(client: Client, driver: Driver, stand: Stand, interface: str, stream: bool) -> None:
    values = ("rust", "tokio", "serde", "hyper", "axum")
    stand.script(healthy(client.tool, values=values))
    before = stand.refused(stand.gateway)
    question = f"healthy {client.name} {interface} {stream}"
    direct = driver.play(stand.url(stand.direct, interface), interface, stream, question, is_direct=True)
    through = driver.play(stand.url(stand.gateway, interface), interface, stream, question)
    assert direct["error"] is None and direct["searched"] == list(values), direct
    assert FINAL_ANSWER[-15:] in json.dumps(direct["seen"]), "text, calls and counts are looked at; a stream has the text in halves"
    assert steady(through) == steady(direct), "what the client saw, and every byte of every answer"
    assert model_calls(stand.through) == model_calls(stand.direct) == len(values) + 1
    assert stand.refused(stand.gateway) == before


def test_one_variable_leads_through_the_gateway(client: Client, driver: Driver, stand: Stand, interface: str) -> None:
    stand.script(healthy(client.tool))
    told = driver.play(stand.url(stand.gateway, interface), interface, False, f"variable {client.name} {interface}", by_environment=True)
    assert told["error"] is None, told["error"]
    assert model_calls(stand.through) == len(healthy())


def test_a_model_that_loops_is_ended(client: Client, driver: Driver, stand: Stand, interface: str, stream: bool) -> None:
    stand.script(looping(client.tool))
    before = stand.refused(stand.gateway)
    told = driver.play(stand.url(stand.gateway, interface), interface, stream, f"loop {client.name} {interface} {stream}")
    refused = stand.refused(stand.gateway) - before
    assert model_calls(stand.through) == 4, "the fourth equal step is the last that was paid"
    assert told["searched"] == ["rust"] * 4
    note(client, told, refused, NO_PROGRESS)


def test_a_cap_ends_the_run(client: Client, driver: Driver, stand: Stand, interface: str, stream: bool) -> None:
    stand.script(healthy(client.tool, values=[f"page {number}" for number in range(60)]), LONG_USAGE)
    before = stand.refused(stand.gateway)
    told = driver.play(stand.url(stand.gateway, interface), interface, stream, f"cap {client.name} {interface} {stream} {LONG_QUESTION}")
    refused = stand.refused(stand.gateway) - before
    assert 3 <= model_calls(stand.through) <= PER_RUN_USD / LONG_STEP_USD[MODELS[interface]], "as many as the cap pays for, and no more"
    assert told["searched"] == [f"page {number}" for number in range(model_calls(stand.through))]
    note(client, told, refused, SPENT)


def note(client: Client, told: dict[str, Any], refused: int, word: str) -> None:
    """The run ended with an error that says why, and nobody knocked again."""
    assert told["error"], f"it went on, or ended as if nothing had happened: {str(told)[:2000]}"
    assert word in told["error"]["text"], told["error"]
    assert refused == 1, "asked once, and not again"
    seen = seen_of(client)
    seen.errors.add(told["error"]["kind"])
    seen.refused.add(refused)
    seen.stops += 1


def test_a_last_answer_ends_the_run_in_peace(client: Client, driver: Driver, stand: Stand, interface: str, stream: bool) -> None:
    stand.script(looping(client.tool))
    told = driver.play(stand.url(stand.polite, interface), interface, stream, f"polite {client.name} {interface} {stream}")
    assert model_calls(stand.through) == 4 and told["searched"] == ["rust"] * 4
    assert told["error"] is None, told["error"]
    assert NO_PROGRESS in json.dumps(told["seen"])


# -- the page ---------------------------------------------------------------------------------------

PAGE = ROOT / "docs/gateway.md"
ADDRESS = "http://127.0.0.1:8100"
# How the listings of the page begin, the client whose environment they need, and what is asked with what they make.
LISTINGS = {
    "# LangChain\n": ("langchain/langchain.py", "print(gpt.invoke('hi').content, claude.invoke('hi').content)"),
    "# pydantic-ai\n": ("pydantic-ai/pydantic_ai.py", "print(gpt.run_sync('hi').output, claude.run_sync('hi').output)"),
    "# OpenAI Agents SDK\n": ("openai-agents/openai_agents.py", "from agents import Agent, Runner; print(Runner.run_sync(Agent(name='a', model='gpt-4o'), 'hi').final_output)"),
    "// Vercel AI SDK\n": ("hooks/vercel-ai.mjs", "import { generateText } from 'ai'\nfor (const model of [gpt, claude]) console.log((await generateText({ model, prompt: 'hi' })).text)"),
}


def listing(begin: str) -> str:
    [found] = [text for text in re.findall(r"^```\w+\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL) if text.startswith(begin)]
    return found


def test_the_listing_of_the_page_leads_through_the_gateway(client: Client, begin: str, stand: Stand, tmp_path: Path) -> None:
    asking = LISTINGS[begin][1]
    assert ADDRESS in listing(begin)
    stand.script(looping())
    program, *_ = command(client)
    place = Path(command(client)[1]).parent if client.driver.endswith(".mjs") else tmp_path
    file = place / f"listing.{client.driver.split('.')[1]}"
    file.write_text(listing(begin).replace(ADDRESS, stand.gateway.url) + asking + "\n")
    environment = {**os.environ, "OPENAI_API_KEY": "sk-callers-own", "ANTHROPIC_API_KEY": "sk-callers-own", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run([program, str(file)], env=environment, capture_output=True, text=True, timeout=SECONDS_A_TASK)
    asked = 2 if "claude" in asking else 1
    assert (done.stdout.count(stand.through.toolless_text or ""), len(stand.through.requests)) == (asked, asked), done.stderr[-2000:]


# -- the table --------------------------------------------------------------------------------------

BEGIN, END = "<!-- clients: begin -->\n", "<!-- clients: end -->"


def row(client: Client, seen: Seen) -> str:
    errors = ", ".join(f"`{error}`" for error in sorted(seen.errors))
    return f"| {client.title} | `{client.package}` {client.release} | {', '.join(client.interfaces)} | {errors} | {max(seen.refused)} |"


def test_the_table_of_the_page_is_what_was_seen(client: Client) -> None:
    seen = seen_of(client)
    if seen.stops < 4 * len(client.interfaces):
        pytest.skip("not all of it was run")
    made = row(client, seen)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = table.splitlines()
    key = made.split(" | ")[:2]
    if os.environ.get("UPDATE_DOCS"):
        lines = [made if line.split(" | ")[:2] == key else line for line in lines]
        if made not in lines:
            lines.append(made)
        order = {f"| {entry.title} | `{entry.package}` {entry.release}": place for place, entry in enumerate(CLIENTS)}
        lines[2:] = sorted(lines[2:], key=lambda line: order.get(" | ".join(line.split(" | ")[:2]), len(order)))
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)
    assert made in lines, "docs/gateway.md says otherwise: run with UPDATE_DOCS=1"
