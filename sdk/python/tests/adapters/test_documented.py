"""The programs of docs/adapters.md, run as they stand against a model that loops."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from model_server import ModelServer, Reply, looping
from test_recipes import InFields

PAGE = Path(__file__).resolve().parents[4] / "docs" / "adapters.md"
PROGRAMS = dict(re.findall(r"^### (.+?)\n.*?^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
MODULES = {
    "LangChain": "langchain_openai",
    "LangGraph": "langchain_openai",
    "OpenAI Agents": "agents",
    "pydantic-ai": "pydantic_ai",
    "Google ADK": "google.adk",
    "Strands": "strands",
    "smolagents": "smolagents",
    "CrewAI": "crewai",
    "Claude Agent SDK": "claude_agent_sdk",
    "Microsoft Agent Framework": "agent_framework",
    "LlamaIndex": "llama_index.core",
    # Other frameworks bring older releases of it.
    "MCP client": "mcp.client.client openai",
    "AutoGen": "autogen_agentchat",
    "AG2": "ag2",
    "Haystack": "haystack",
    "DSPy": "dspy",
    "Semantic Kernel": "semantic_kernel",
}
# How the model asks for the tool, where that is not just its name.
TOOLS = {"Claude Agent SDK": "mcp__library__search", "Semantic Kernel": "Library-search"}


def is_there(modules: str) -> bool:
    try:
        return all(importlib.util.find_spec(module) is not None for module in modules.split())
    except ModuleNotFoundError:
        return False


def test_each_framework_has_its_program() -> None:
    assert PROGRAMS.keys() == MODULES.keys()


@pytest.mark.parametrize("framework", [name for name, module in MODULES.items() if is_there(module)])
def test_a_documented_program_stops(framework: str, tmp_path: Path) -> None:
    is_claude = framework.startswith("Claude")
    script = looping(TOOLS.get(framework, "search"))
    if is_claude:
        script = script * 20 + [Reply(text="never found")]
    kind = InFields if framework == "DSPy" else ModelServer
    with kind(script, toolless_text="title" if is_claude else None) as server:
        addresses = {
            "OPENAI_API_KEY": "unused",
            "OPENAI_BASE_URL": server.openai_url,
            "OPENAI_API_BASE": server.openai_url,
            "ANTHROPIC_API_KEY": "unused",
            "ANTHROPIC_BASE_URL": server.url,
            "CLAUDE_CONFIG_DIR": str(tmp_path / "config"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CREWAI_STORAGE_DIR": str(tmp_path),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DSPY_CACHEDIR": str(tmp_path / "dspy"),
            "HAYSTACK_TELEMETRY_ENABLED": "False",
        }
        # The OpenAI Agents SDK asks the Responses API, which this server speaks as well.
        program = tmp_path / "program.py"
        program.write_text(PROGRAMS[framework], encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(program)], env={**os.environ, **addresses}, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
    assert "stopped: '" in done.stdout and "with the same arguments 3 times" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    if not is_claude:
        assert server.model_calls == 3
