"""A hand-written agent on a plain `anthropic` client that loops, stopped by RunGuard.

Needs no key and no network: the model is a script on this machine that asks for the same search for ever.
Install first: the runguard wheel and anthropic.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from anthropic import Anthropic

from runguard import LoopDetectedError, Run
from runguard.adapters.anthropic import guard_anthropic

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))
from model_server import ModelServer, looping  # noqa: E402

TOOL = {"name": "search", "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}}}


def search(query: str) -> str:
    print(f"search({query!r})")
    return "nothing found"


def answer(client: Anthropic, question: str) -> str:
    """The usual loop, streamed: ask, run the tools, ask again. It knows nothing of the guard."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        with client.messages.stream(model="claude-haiku-4-5", max_tokens=200, messages=messages, tools=[TOOL]) as stream:
            message = stream.get_final_message()
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in message.content if block.type == "text")
        messages.append({"role": "assistant", "content": message.content})
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": search(**call.input)} for call in calls]
        messages.append({"role": "user", "content": results})


def main() -> None:
    with ModelServer(looping()) as server:
        client = guard_anthropic(Anthropic(base_url=server.url, api_key="unused"), Run(repeats=4, max_usd=1.00))
        for attempt in ("first", "second"):
            try:
                print(answer(client, "find rust"))
            except LoopDetectedError as trip:
                print(f"{attempt} try stopped, {server.model_calls} model calls so far: {trip}")


if __name__ == "__main__":
    main()
