"""Frameworks without an adapter, inside of `guard(…)`: they hand the refusal of a tool to the model, and the hooked client ends the run there."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any, Callable

# Set before the frameworks are imported: they fetch price lists and report to their makers otherwise.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")

import checks
import pytest
from bars import Driver
from conftest import Search
from model_server import FINAL_ANSWER, Call, ModelServer, Reply

from runguard import BudgetExceededError, LoopDetectedError, Run, guard, tool, trip_of

Make = Callable[[ModelServer, Search, Any, str], Callable[[], Any]]


def autogen(is_streamed: bool) -> Make:
    def make(server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        from autogen_agentchat.agents import AssistantAgent
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        client = OpenAIChatCompletionClient(
            model=model, base_url=server.openai_url, api_key="none", max_retries=0, stream_options={"include_usage": True}
        )

        async def ask() -> str:
            agent = AssistantAgent(
                "librarian", model_client=client, tools=[tool(search.tool)], max_tool_iterations=60, model_client_stream=is_streamed
            )
            with guard(run=checks.run_of(run)):
                return (await agent.run(task="find it")).messages[-1].content

        return ask

    return make


def ag2(is_streamed: bool) -> Make:
    def make(server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        from ag2 import Agent
        from ag2.config import OpenAIConfig

        config = OpenAIConfig(model=model, base_url=server.openai_url, api_key="none", max_retries=0, streaming=is_streamed)

        async def ask() -> str:
            agent = Agent("librarian", config=config, tools=[tool(search.tool)])
            with guard(run=checks.run_of(run)):
                return str((await agent.ask("find it")).body)

        return ask

    return make


def haystack(is_streamed: bool) -> Make:
    def make(server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        from haystack.components.agents import Agent
        from haystack.components.generators.chat import OpenAIChatGenerator
        from haystack.dataclasses import ChatMessage
        from haystack.tools import create_tool_from_function
        from haystack.utils import Secret

        def ask() -> str:
            generator = OpenAIChatGenerator(
                Secret.from_token("none"),
                model=model,
                api_base_url=server.openai_url,
                max_retries=0,
                streaming_callback=(lambda chunk: None) if is_streamed else None,
            )
            agent = Agent(chat_generator=generator, tools=[create_tool_from_function(tool(search.tool))], max_agent_steps=60)
            with guard(run=checks.run_of(run)):
                return agent.run(messages=[ChatMessage.from_user("find it")])["messages"][-1].text

        return ask

    return make


class InFields(checks.Conversations):
    """DSPy writes calls and answers as fields of a text."""

    def answer(self, request: Any) -> Reply:
        with self._lock:
            self.requests.append(request)
        asked = json.dumps(request.body["messages"][-1])
        reply = self.script[min(asked.count("[[ ## observation_"), len(self.script) - 1)]
        if "next_tool_name" not in asked:
            return Reply(text=f"[[ ## reasoning ## ]]\nclear\n\n[[ ## answer ## ]]\n{FINAL_ANSWER}\n\n[[ ## completed ## ]]")
        name, given = ("search", reply.calls[0].args) if reply.calls else ("finish", {})
        fields = {"next_thought": "on", "next_tool_name": name, "next_tool_args": json.dumps(given), "completed": ""}
        return Reply(text="\n\n".join(f"[[ ## {field} ## ]]\n{value}" for field, value in fields.items()))


def dspy(server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
    import dspy as library

    server.__class__ = InFields
    # The engine of its own sends requests that nobody can hook.
    given: dict[str, Any] = {"api_base": server.openai_url, "api_key": "none", "cache": False, "num_retries": 0}
    lm = library.LM(f"openai/{model}", engine="litellm", **given)

    def ask() -> str:
        agent = library.ReAct("question -> answer", tools=[tool(search.tool)], max_iters=60)
        with library.context(lm=lm), guard(run=checks.run_of(run)):
            return str(agent(question="find it").answer)

    return ask


def semantic_kernel(is_streamed: bool) -> Make:
    def make(server: ModelServer, search: Search, run: Any, model: str) -> Callable[[], Any]:
        from openai import AsyncOpenAI
        from semantic_kernel.agents import ChatCompletionAgent
        from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
        from semantic_kernel.functions import KernelPlugin, kernel_function

        client = AsyncOpenAI(base_url=server.openai_url, api_key="none", max_retries=0)
        service = OpenAIChatCompletion(ai_model_id=model, async_client=client)
        plugin = KernelPlugin.from_object("library", {"search": kernel_function(tool(search.tool), name="search")})

        async def ask() -> str:
            agent = ChatCompletionAgent(service=service, name="librarian", plugins=[plugin])
            with guard(run=checks.run_of(run)):
                if not is_streamed:
                    return str((await agent.get_response(messages="find it")).content)
                return "".join([str(part.content) async for part in agent.invoke_stream(messages="find it")])

        return ask

    return make


def is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


KNOWN = {
    "AutoGen": ("autogen_agentchat", Driver("autogen-agentchat", autogen(False), autogen(True))),
    "AG2": ("ag2", Driver("ag2", ag2(False), ag2(True))),
    "Haystack": ("haystack", Driver("haystack-ai", haystack(False), haystack(True))),
    # DSPy streams what it gives out, not what it asks for.
    "DSPy": ("dspy", Driver("dspy", dspy)),
    # Plugins have a name of their own, which stands before the tool's.
    "Semantic Kernel": ("semantic_kernel", Driver("semantic-kernel", semantic_kernel(False), semantic_kernel(True), tool="library-search")),
}
BARS = {name: driver for name, (module, driver) in KNOWN.items() if is_there(module)}


def test_one_of_them_is_there() -> None:
    assert BARS


@pytest.mark.parametrize("name", BARS)
def test_a_refused_tool_ends_the_run(name: str, search: Search) -> None:
    driver = BARS[name]
    for make in filter(None, (driver.whole, driver.streamed)):
        search.runs.clear()
        with ModelServer([Reply(calls=(Call(driver.tool, {"query": "rust"}),))]) as server:
            run = Run(repeats=3)
            with pytest.raises(Exception) as caught:
                checks.once(make(server, search, run, "gpt-4o"))
            assert isinstance(trip_of(caught.value), LoopDetectedError), caught.value
            assert (len(search.runs), server.model_calls) == (2, 3)


@pytest.mark.parametrize("name", BARS)
def test_a_dollar_is_a_dollar(name: str, search: Search) -> None:
    driver = BARS[name]
    script = [Reply(calls=(Call(driver.tool, {"query": f"book {number}"}),)) for number in range(40)]
    for make in filter(None, (driver.whole, driver.streamed)):
        with ModelServer(script, usage=checks.QUARTER) as server:
            run = Run(max_usd=1)
            with pytest.raises(Exception) as caught:
                checks.once(make(server, search, run, "gpt-4o"))
            assert isinstance(trip_of(caught.value), BudgetExceededError), caught.value
            assert server.model_calls == 4 and run.budget.spent == pytest.approx(1)


@pytest.mark.parametrize("name", BARS)
def test_healthy_users_are_untouched(name: str, search: Search) -> None:
    driver = BARS[name]
    for make in filter(None, (driver.whole, driver.streamed)):
        with checks.Conversations([Reply(calls=(Call(driver.tool, {"query": "rust"}),)), Reply(text=FINAL_ANSWER)]) as server:
            ask = make(server, search, lambda: Run(repeats=3, max_usd=1), "gpt-4o")
            assert [checks.once(ask) for _ in range(3)] == [FINAL_ANSWER] * 3
