from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any, Callable

import pytest

pytest.importorskip("claude_agent_sdk")

from bars import READ_QUARTER_OF_HAIKU, Driver
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, create_sdk_mcp_server, tool
from conftest import Search
from model_server import FINAL_ANSWER, Call, ModelServer, Reply, Usage, healthy, looping

from runguard import BudgetExceededError, LoopDetectedError, Run, StallDetectedError, ToolLimitError
from runguard.adapters.claude_agent import ClaudeGuard, guarded_query

SEARCH = "mcp__library__search"
# Long enough for any guard to see, with an end so that a broken one fails the test instead of hanging it.
LOOP = looping(SEARCH) * 20 + [Reply(text="never found")]

OptionsFor = Callable[[ModelServer], ClaudeAgentOptions]


@pytest.fixture
def options_for(tmp_path: Path, search: Search) -> OptionsFor:
    """The CLI that comes with the SDK, sent to the local model and kept out of the home directory."""

    return lambda server: options_in(tmp_path, server, search)


def options_in(folder: Path, server: ModelServer, search: Search, model: str = "claude-sonnet-4-5") -> ClaudeAgentOptions:
    @tool("search", "Searches the library for a query.", {"query": str})
    async def search_library(args: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": search.tool(args["query"])}]}

    server.toolless_text = "title"
    return ClaudeAgentOptions(
        mcp_servers={"library": create_sdk_mcp_server("library", tools=[search_library])},
        allowed_tools=[SEARCH],
        model=model,
        setting_sources=[],
        cwd=folder,
        env={
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "unused",
            "CLAUDE_CONFIG_DIR": str(folder / "config"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    )


def made(server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], str]:
    folder = Path(tempfile.mkdtemp())
    return lambda: str(ask(run, options_in(folder, server, search, model)))


def ask(run: Any, options: ClaudeAgentOptions) -> str | None:
    async def answer() -> str | None:
        result = None
        async for message in guarded_query(run, prompt="find rust", options=options):
            result = message.result if isinstance(message, ResultMessage) else result
        return result

    return asyncio.run(answer())


def model_calls(server: ModelServer) -> int:
    """Requests of the agent; the CLI's own side questions have no tools."""
    return sum(1 for body in server.bodies if body.get("tools"))


# The CLI asks the model, and always streams. What is written it reports at the end of a query, so here the quarter is what is read. Sixty-four
# CLIs at once are more than a small machine has memory for.
_RATE = {"model": "claude-haiku-4-5", "quarter": READ_QUARTER_OF_HAIKU}
BARS = {"Claude Agent SDK": Driver("claude-agent-sdk", made, made, tool=SEARCH, leaves_out=("at_once",), **_RATE)}


def test_a_loop_is_stopped_and_a_restart_refused(options_for: OptionsFor, search: Search) -> None:
    run = Run(repeats=4)
    with ModelServer(LOOP) as server:
        for _ in range(2):
            with pytest.raises(LoopDetectedError):
                ask(run, options_for(server))
            assert (len(search.runs), model_calls(server)) == (3, 4)


def test_a_client_is_stopped_and_its_next_prompt_refused(options_for: OptionsFor, search: Search) -> None:
    async def chat(guard: ClaudeGuard, options: ClaudeAgentOptions) -> None:
        async with ClaudeSDKClient(guard.options(options)) as client:
            for _ in range(2):
                await client.query("find rust")
                with pytest.raises(LoopDetectedError):
                    async for _message in guard.messages(client.receive_response()):
                        pass

    with ModelServer(LOOP) as server:
        asyncio.run(chat(ClaudeGuard(Run(repeats=4)), options_for(server)))
        assert (len(search.runs), model_calls(server)) == (3, 4)


def test_parallel_calls_after_the_trip_do_not_run(options_for: OptionsFor, search: Search) -> None:
    call = Call(SEARCH, {"query": "rust"})
    with ModelServer([Reply(calls=(call,) * 5), Reply(text="never found")]) as server:
        with pytest.raises(LoopDetectedError):
            ask(Run(repeats=4), options_for(server))
        assert len(search.runs) <= 3
        assert model_calls(server) == 1


def test_a_healthy_run_is_untouched(options_for: OptionsFor, search: Search) -> None:
    run = Run(repeats=4)
    with ModelServer(healthy(SEARCH)) as server:
        assert ask(run, options_for(server)) == FINAL_ANSWER
        assert search.runs == ["rust", "tokio", "serde", "hyper", "axum"]
        assert model_calls(server) == 6
    assert not run.tripped


def test_model_calls_have_a_ceiling(options_for: OptionsFor, search: Search) -> None:
    with ModelServer(healthy(SEARCH)) as server:
        with pytest.raises(ToolLimitError):
            ask(Run(max_model_calls=2), options_for(server))
        assert (len(search.runs), model_calls(server)) == (2, 2)


def test_the_users_own_hooks_stay(options_for: OptionsFor) -> None:
    run = Run()
    options = ClaudeGuard(run).options(ClaudeGuard(Run()).options())
    assert options.hooks is not None
    assert [len(matchers) for matchers in options.hooks.values()] == [2, 2, 2, 2, 2]


def test_usage_is_recorded(options_for: OptionsFor, monkeypatch: pytest.MonkeyPatch) -> None:
    run, used = Run(repeats=4), []
    monkeypatch.setattr(run, "record_usage", lambda *given: used.append(given))
    with ModelServer(healthy(SEARCH), usage=Usage(cache_write_1h=60)) as server:
        ask(run, options_for(server))
    assert {model for model, *_ in used} == {"claude-sonnet-4-5"}
    # An answer's output is counted at the end of the query; its input at once.
    assert [sum(column) for column in list(zip(*used))[1:6]] == [6 * 500, 6 * 50, 6 * 400, 6 * 40, 6 * 60]
    assert len(used) == 7


def test_the_budget_stops_the_session(options_for: OptionsFor, search: Search) -> None:
    # Each answer reports 1,000 tokens of input and 1 of output at first. Usage comes with the messages, which may be one call late.
    with ModelServer(healthy(SEARCH)) as server:
        with pytest.raises(BudgetExceededError):
            ask(Run(max_tokens=2000), options_for(server))
        assert model_calls(server) in (2, 3)


def test_a_nudge_reaches_the_model(options_for: OptionsFor, search: Search) -> None:
    with ModelServer(LOOP) as server:
        with pytest.raises(StallDetectedError):
            ask(Run(repeats=100, stall="coding"), options_for(server))
        # The third equal result brings the nudge, the fourth the stop.
        assert (len(search.runs), model_calls(server)) == (4, 4)
        assert f"You have called {SEARCH} 3 times" in str(server.bodies[-1]["messages"])


def test_users_have_runs_of_their_own(options_for: OptionsFor, search: Search) -> None:
    runs: list[Run] = []

    def new_run() -> Run:
        runs.append(Run(repeats=3))
        return runs[-1]

    for _ in range(3):
        with ModelServer(healthy(SEARCH, values=["rust"])) as server:
            assert ask(new_run, options_for(server)) == FINAL_ANSWER
    assert len(runs) == 3 and search.runs == ["rust"] * 3
    search.runs.clear()
    with ModelServer(LOOP) as server, pytest.raises(LoopDetectedError):
        ask(new_run, options_for(server))
    assert len(search.runs) == 2


def test_a_repeated_call_is_told_before_the_run_is_stopped(options_for: OptionsFor, search: Search) -> None:
    run = Run(repeats=4)

    async def read(options: ClaudeAgentOptions) -> None:
        async for _ in guarded_query(run, prompt="find rust", options=options, on_trip="end", on_repeat="tell"):
            pass

    with ModelServer(LOOP) as server:
        asyncio.run(read(options_for(server)))
        assert isinstance(run.trip, LoopDetectedError) and len(search.runs) == 1
        assert any("was already executed with identical parameters" in json.dumps(body) for body in server.bodies)


def test_a_query_can_end_quietly(options_for: OptionsFor, search: Search) -> None:
    run = Run(repeats=3)

    async def read(options: ClaudeAgentOptions) -> None:
        async for _ in guarded_query(run, prompt="find rust", options=options, on_trip="end"):
            pass

    for _ in range(2):
        with ModelServer(LOOP) as server:
            asyncio.run(read(options_for(server)))
    assert isinstance(run.trip, LoopDetectedError) and len(search.runs) == 2


def test_answers_without_usage_are_billed_by_size(options_for: OptionsFor, caplog: pytest.LogCaptureFixture) -> None:
    long = [Reply(calls=(Call(SEARCH, {"query": f"{number} " + "more " * 2_000}),)) for number in range(20)]
    run = Run(max_usd=0.15)
    with ModelServer([*long, Reply(text="never found")], usage=None) as server:
        with pytest.raises(BudgetExceededError):
            ask(run, options_for(server))
        # Two thousand tokens written are three cents, and are read again.
        assert 2 <= model_calls(server) <= 5
    assert sum("without its usage" in record.getMessage() for record in caplog.records) == 1
