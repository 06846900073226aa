"""OpenAI's own client, all its releases, in the hands of a loop that somebody wrote by hand."""

from __future__ import annotations

import json
from typing import Any

import openai
from driver import MOST_STEPS, TOOL_SCHEMA, Task, search, serve

FUNCTION = {"name": "search", "parameters": TOOL_SCHEMA}


def ask_chat(client: openai.OpenAI, task: Task, items: list[Any], seen: list[Any]) -> tuple[list[Any], list[tuple[str, str]]]:
    """What is added to the conversation, and the calls that are asked for, with their arguments."""
    options: dict[str, Any] = {"model": task.model, "messages": items, "tools": [{"type": "function", "function": FUNCTION}]}
    if not task.stream:
        answer = client.chat.completions.create(**options)
        seen.append(answer.model_dump(mode="json"))
        message = answer.choices[0].message
        return [message], [(call.id, call.function.arguments) for call in message.tool_calls or ()]
    text, calls = "", {}
    for chunk in client.chat.completions.create(**options, stream=True):
        seen.append(chunk.model_dump(mode="json"))
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, {"id": part.id, "type": "function", "function": {"name": part.function.name, "arguments": ""}})
                call["function"]["arguments"] += part.function.arguments
    message = {"role": "assistant", "content": text or None, **({"tool_calls": list(calls.values())} if calls else {})}
    return [message], [(call["id"], call["function"]["arguments"]) for call in calls.values()]


def ask_responses(client: openai.OpenAI, task: Task, items: list[Any], seen: list[Any]) -> tuple[list[Any], list[tuple[str, str]]]:
    options: dict[str, Any] = {"model": task.model, "input": items, "tools": [{"type": "function", **FUNCTION, "strict": False}]}
    if task.stream:
        events = list(client.responses.create(**options, stream=True))
        seen += [event.model_dump(mode="json") for event in events]
        response = events[-1].response
    else:
        response = client.responses.create(**options)
        seen.append(response.model_dump(mode="json"))
    return list(response.output), [(item.call_id, item.arguments) for item in response.output if item.type == "function_call"]


def play(task: Task) -> Any:
    client = openai.OpenAI(api_key="sk-callers-own", **task.address())
    ask = ask_chat if task.interface == "chat" else ask_responses
    items: list[Any] = [{"role": "user", "content": task.question}]
    seen: list[Any] = []
    for _ in range(MOST_STEPS):
        said, calls = ask(client, task, items, seen)
        items += said
        if not calls:
            return seen
        for id_, arguments in calls:
            found = search(**json.loads(arguments))
            items.append(
                {"role": "tool", "tool_call_id": id_, "content": found} if task.interface == "chat"
                else {"type": "function_call_output", "call_id": id_, "output": found}
            )
    return seen


serve(play)
