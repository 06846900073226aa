"""A hand-written agent on a plain `openai` client that loops, stopped by RunGuard.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel and openai.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from openai import OpenAI

from runguard import LoopDetectedError, Run
from runguard.adapters.openai import guard_openai

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402

TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}}


def search(arguments: str) -> str:
    print(f"search({arguments})")
    return "nothing found"


def answer(client: OpenAI, question: str) -> str:
    """The usual loop: ask, run the tools, ask again. It knows nothing of the guard."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        message = client.chat.completions.create(model="gpt-4o-mini", messages=messages, tools=[TOOL]).choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": search(call.function.arguments)})


def main() -> None:
    with ModelServer(looping()) as server:
        client = guard_openai(OpenAI(base_url=server.openai_url, api_key="unused"), Run(repeats=4, max_usd=1.00))
        for attempt in ("first", "second"):
            try:
                print(answer(client, "find rust"))
            except LoopDetectedError as trip:
                print(f"{attempt} try stopped, {server.model_calls} model calls so far: {trip}")


if __name__ == "__main__":
    main()
