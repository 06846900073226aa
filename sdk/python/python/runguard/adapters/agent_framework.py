"""Guards agents of the Microsoft Agent Framework.

    from agent_framework import Agent
    from runguard import Run
    from runguard.adapters.agent_framework import RunGuardMiddleware

    agent = Agent(client, tools=[…], middleware=[RunGuardMiddleware(lambda: Run(repeats=3, max_usd=1.00))])
    await agent.run("…")

Every `agent.run` has a run of its own, which the function makes; without one it is the run around it (`guard(…)`), or a plain `Run()`. A
`Run` given instead is one for all: call its `new_turn()` when the user says something new. Agents that a tool starts and that have the same
middleware, or a `RunGuardMiddleware()`, belong to the run of the agent that called the tool.

The calls of an answer are counted when the answer is there, before the first of them runs: what a function middleware raises the framework
would hand to the model. The `TripError` comes out of `agent.run` as it is, streamed or not. With `on_trip="end"` the agent ends normally
and its answer is the guard's message.
"""

from __future__ import annotations

from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Mapping, Optional

from agent_framework import (
    AgentContext,
    AgentMiddleware,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    Message,
    ResponseStream,
)

from runguard import _core
from runguard.errors import TripError
from runguard.run import ModelCall, Run

from ._client import parse_arguments
from ._runs import OnRepeat, OnTrip, RunLike, Runs, checked, tells, within
from ._usage import Tokens, begin_async, failed, settle

__all__ = ["RunGuardMiddleware"]

Next = Callable[[], Awaitable[None]]


class RunGuardMiddleware(AgentMiddleware):
    """Puts a run around each `agent.run`: its model calls and its tool calls.

    With `on_repeat="tell"` a call whose result the model has already is not run: its result is a sentence that says so.
    """

    def __init__(self, run: RunLike = None, *, on_trip: OnTrip = "raise", on_repeat: OnRepeat = "run") -> None:
        self._runs = Runs(run)
        self._on_trip = checked(on_trip)
        self._tells = tells(on_repeat)

    async def process(self, context: AgentContext, call_next: Next) -> None:
        run = self._runs.new()
        others: List[Any] = list(context.client_kwargs.get("middleware") or ())
        # Those of the models and tools belong to this one invocation: a stream is read long after this returns.
        context.client_kwargs["middleware"] = [*others, _Models(run, self._on_trip), _Tools(run, self._tells)]
        with within(run):
            await call_next()


class _Models(ChatMiddleware):
    """The model calls of one invocation, and the tool calls that their answers ask for."""

    def __init__(self, run: Run, on_trip: OnTrip) -> None:
        self._run, self._on_trip = run, on_trip

    async def process(self, context: ChatContext, call_next: Next) -> None:
        options: Mapping[str, Any] = context.options or {}
        model = str(options.get("model") or getattr(context.client, "model", None) or "unknown")
        try:
            call = await begin_async(self._run, model, _said(context, options), options.get("max_tokens"))
        except TripError as trip:
            if self._on_trip == "raise":
                raise
            context.result = _streamed(trip) if context.stream else _last_answer(trip)
            return
        call._is_sent = True
        if call.max_tokens is not None:
            context.options = {**options, "max_tokens": call.max_tokens}
        try:
            await call_next()
        except BaseException as error:
            failed(call, error)
            raise
        if isinstance(context.result, ResponseStream):
            context.result = self._told(call, model, context.result)
        elif context.result is None:
            # Another middleware has ended it.
            call.release()
        else:
            context.result = await self._heard(call, model, context.result)

    async def _heard(self, call: ModelCall, model: str, response: ChatResponse) -> ChatResponse:
        """The answer, once the run has heard of it."""
        run = self._run
        tokens = _tokens(response.usage_details)
        came = 0 if tokens is not None else _core.answer_size([_written(item) for message in response.messages for item in message.contents])
        await run._aside(settle, call, response.model or model, tokens, came)
        try:
            for asked in _calls(response):
                await run._aside(run.before_tool, asked.name, _arguments(asked.arguments))
        except TripError as trip:
            if self._on_trip == "raise":
                raise
            return _last_answer(trip)
        return response

    def _told(self, call: ModelCall, model: str, stream: Any) -> Any:
        final: List[ChatResponse] = []

        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            held: List[ChatResponseUpdate] = []
            came = 0
            try:
                async for update in stream:
                    came += _core.answer_size([_written(item) for item in update.contents])
                    # Calls are shown once it is known that they may run.
                    if any(item.type == "function_call" for item in update.contents):
                        held.append(update)
                    else:
                        yield update
                response = await stream.get_final_response()
                heard = await self._heard(call, model, response)
                final.append(heard)
                for update in held if heard is response else [ChatResponseUpdate(role="assistant", contents=heard.messages[0].contents)]:
                    yield update
            except Exception as error:
                failed(call, error)
                raise
            finally:
                # Its reader has left before the end.
                if not final:
                    settle(call, model, None, came)

        return ResponseStream(updates(), finalizer=lambda all_updates: final[0] if final else ChatResponse.from_updates(all_updates))


class _Tools(FunctionMiddleware):
    """What the tools of one invocation gave."""

    def __init__(self, run: Run, tells_repeats: bool) -> None:
        self._run, self._tells = run, tells_repeats

    async def process(self, context: FunctionInvocationContext, call_next: Next) -> None:
        run, name = self._run, context.function.name
        # Counted already; this is for a run that another agent sharing it has tripped meanwhile.
        run.check()
        given = _arguments(context.arguments)
        instead = run._instead(name, given) if self._tells else None
        if instead is not None:
            context.result = instead
            return
        try:
            with within(run, name):
                await call_next()
        except Exception as error:
            await run._aside(_after_tool, run, name, given, None, str(error))
            raise
        nudge = await run._aside(_after_tool, run, name, given, _shown(context.result), None)
        if nudge:
            context.result = _nudged(context.result, nudge)


def _after_tool(run: Run, name: str, given: Any, result: Any, error: Optional[str]) -> Optional[str]:
    return run.after_tool(name, given, result, error=error)


def _last_answer(trip: TripError) -> ChatResponse:
    """An answer without calls is what ends an agent."""
    return ChatResponse(messages=[Message("assistant", [Content.from_text(trip.message)])])


def _streamed(trip: TripError) -> Any:
    async def updates() -> AsyncIterator[ChatResponseUpdate]:
        yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(trip.message)])

    return ResponseStream(updates(), finalizer=ChatResponse.from_updates)


def _said(context: ChatContext, options: Mapping[str, Any]) -> List[Any]:
    """What is sent to the model."""
    tools = [getattr(tool, "to_json_schema_spec", lambda tool=tool: str(tool))() for tool in options.get("tools") or ()]
    messages = [[_written(item) for item in message.contents] for message in context.messages]
    return [options.get("instructions"), messages, tools]


def _written(item: Any) -> Any:
    """A part of a message as plain data."""
    if isinstance(item, str):
        return item
    parts = (getattr(item, name, None) for name in ("text", "name", "arguments", "result", "uri"))
    return [part if isinstance(part, (str, dict, list)) and not _holds_content(part) else str(part) for part in parts if part is not None]


def _holds_content(part: Any) -> bool:
    return isinstance(part, list) and any(isinstance(item, Content) for item in part)


def _calls(response: ChatResponse) -> List[Any]:
    items = [item for message in response.messages for item in message.contents]
    # Some services run tools themselves, and give the results along.
    done = {item.call_id for item in items if item.type == "function_result"}
    return [item for item in items if item.type == "function_call" and item.call_id not in done]


def _arguments(given: Any) -> Any:
    if hasattr(given, "model_dump"):
        return given.model_dump(mode="json")
    return parse_arguments(given) if isinstance(given, str) or given is None else dict(given)


def _shown(result: Any) -> Any:
    if isinstance(result, list):
        return "\n".join(str(item.text) if getattr(item, "text", None) else str(item) for item in result)
    return result if isinstance(result, str) else str(result)


def _nudged(result: Any, nudge: str) -> Any:
    return [*result, Content.from_text(nudge)] if isinstance(result, list) else f"{result}\n\n{nudge}"


def _tokens(usage: Optional[Mapping[str, Any]]) -> Optional[Tokens]:
    """None where the provider counted nothing."""
    counts: Dict[str, Any] = dict(usage or {})
    given, output = counts.get("input_token_count") or 0, counts.get("output_token_count") or 0
    if not given and not output:
        return None
    read, written = counts.get("cache_read_input_token_count") or 0, counts.get("cache_creation_input_token_count") or 0
    # The framework keeps each provider's own counting: Anthropic's input is without what a cache holds.
    if any(name.startswith("anthropic.") for name in counts):
        return Tokens(given, output, read, written)
    return Tokens.of_total(given, output, read, written)
