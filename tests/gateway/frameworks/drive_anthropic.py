"""Anthropic's own client, all its releases, in the hands of a loop that somebody wrote by hand."""

from __future__ import annotations

from typing import Any

import anthropic
from driver import MOST_STEPS, TOOL_SCHEMA, Task, search, serve


def play(task: Task) -> Any:
    client = anthropic.Anthropic(api_key="sk-callers-own", **task.address())
    messages: list[Any] = [{"role": "user", "content": task.question}]
    seen: list[Any] = []
    for _ in range(MOST_STEPS):
        options: dict[str, Any] = {"model": task.model, "max_tokens": 1000, "messages": messages, "tools": [{"name": "search", "input_schema": TOOL_SCHEMA}]}
        if task.stream:
            with client.messages.stream(**options) as stream:
                seen += [event.model_dump(mode="json") for event in stream]
                message = stream.get_final_message()
        else:
            message = client.messages.create(**options)
        seen.append(message.model_dump(mode="json"))
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        messages.append({"role": "assistant", "content": [block.model_dump(mode="json", exclude_none=True) for block in message.content]})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": search(**call.input)} for call in calls]})
    return seen


serve(play)
