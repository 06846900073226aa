"""LiteLLM as a library, in the hands of a loop that somebody wrote by hand."""

from __future__ import annotations

import json
from typing import Any

from driver import MOST_STEPS, TOOL_SCHEMA, Task, search, serve
import litellm

PREFIX = {"chat": "openai", "messages": "anthropic"}


def play(task: Task) -> Any:
    messages: list[Any] = [{"role": "user", "content": task.question}]
    seen: list[Any] = []
    for _ in range(MOST_STEPS):
        options: dict[str, Any] = {"stream": True} if task.stream else {}
        answer: Any = litellm.completion(
            model=f"{PREFIX[task.interface]}/{task.model}", api_key="sk-callers-own", messages=messages,
            tools=[{"type": "function", "function": {"name": "search", "parameters": TOOL_SCHEMA}}], max_tokens=1000, **task.address("api_base"), **options,
        )
        if task.stream:
            answer = litellm.stream_chunk_builder(list(answer))
        told = answer.model_dump(mode="json")
        seen.append({name: told[name] for name in ("model", "choices", "usage")})
        message = answer.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message.model_dump(mode="json", exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": search(**json.loads(call.function.arguments))} for call in message.tool_calls]
    return seen


serve(play)
