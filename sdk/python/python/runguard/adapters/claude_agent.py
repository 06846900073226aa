"""Claude Agent SDK: hooks that deny the tool call and end the session, and a watch on the messages.

    async for message in guarded_query(Run(max_usd=5), prompt="…", options=options):
        …

With a `ClaudeSDKClient` the same takes two calls:

    guard = ClaudeGuard(run)
    async with ClaudeSDKClient(guard.options(options)) as client:
        await client.query("…")
        async for message in guard.messages(client.receive_response()):
            …

Each query, or each client, has a run of its own: one that is given, or that a function makes (`guarded_query(lambda: Run(max_usd=5), …)`), or
else the run around it (`guard(…)`), or a plain `Run()`. One `Run` for a whole chat needs `run.new_turn()` at each user message.

The caller gets all messages the CLI sends and then the trip; with `on_trip="end"` the messages just end, and `run.message` says why. A
tripped run refuses the next prompt before the model is asked. The model is asked by the CLI, so nothing is set aside for an answer: token
usage comes with the messages, which must therefore be read while the agent works; the output tokens of each answer are known only at the
end of a query. Answers without usage are billed by the size of what was seen of the conversation.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import replace
from typing import Any, Optional, Union

from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, HookMatcher, Message, ResultMessage, UserMessage, query

from runguard import RunGuardError, TripError, _core
from runguard.run import Run

from ._runs import OnRepeat, OnTrip, RunLike, Runs, checked, tells
from ._usage import Tokens, log, note_usage


async def guarded_query(
    run: RunLike = None,
    *,
    prompt: Union[str, AsyncIterable[dict[str, Any]]],
    options: Optional[ClaudeAgentOptions] = None,
    on_trip: OnTrip = "raise",
    on_repeat: OnRepeat = "run",
    **others: Any,
) -> AsyncIterator[Message]:
    """`claude_agent_sdk.query` under a run.

    With `on_repeat="tell"` a call whose result the model has already is denied with a sentence that says so, and the query goes on.
    """
    guard = ClaudeGuard(run, on_trip=on_trip, on_repeat=on_repeat)
    if guard.ends_quietly(guard.run.trip):
        return
    guard.run.check()
    async for message in guard.messages(query(prompt=prompt, options=guard.options(options), **others)):
        yield message


class ClaudeGuard:
    """One run's hooks and its view of the messages."""

    def __init__(self, run: RunLike = None, *, on_trip: OnTrip = "raise", on_repeat: OnRepeat = "run") -> None:
        self.run: Run = Runs(run).new()
        self.on_trip = checked(on_trip)
        self._tells = tells(on_repeat)
        self._refused: Optional[RunGuardError] = None
        self._answers: set[str] = set()
        # Of this conversation, as far as it was seen, and whether the newest answer came without its usage.
        self._said = 0
        self._is_estimated = False
        self._is_warned = False
        self._model: Optional[str] = None
        self._counted = Tokens()

    def options(self, options: Optional[ClaudeAgentOptions] = None) -> ClaudeAgentOptions:
        """A copy of the options with the guard's hooks next to the ones already there."""
        options = options or ClaudeAgentOptions()
        own = {
            # The two moments before the model is asked: a prompt came, or the results of an answer's calls are all there.
            "UserPromptSubmit": self._before_model,
            "PostToolBatch": self._before_model,
            "PreToolUse": self._before_tool,
            "PostToolUse": self._after_tool,
            "PostToolUseFailure": self._after_tool,
        }
        hooks: dict[Any, list[HookMatcher]] = {event: list(matchers) for event, matchers in (options.hooks or {}).items()}
        for event, hook in own.items():
            hooks[event] = [*hooks.get(event, []), HookMatcher(hooks=[hook])]
        return replace(options, hooks=hooks)

    async def messages(self, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Hands the messages on, counts what they used, and raises the trip after the last one."""
        async for message in messages:
            if isinstance(message, AssistantMessage):
                await self.run._aside(self._answered, message)
            elif isinstance(message, ResultMessage):
                await self.run._aside(self._ended, message)
            elif isinstance(message, UserMessage):
                self._said += _core.answer_size(message.content)
            yield message
        if self._refused is not None and not self.ends_quietly(self._refused):
            raise self._refused

    def ends_quietly(self, error: Optional[RunGuardError]) -> bool:
        """Whether the caller wants no error for it."""
        return self.on_trip == "end" and isinstance(error, TripError)

    def _answered(self, message: AssistantMessage) -> None:
        # An answer comes in one message per content block; all of them have its id and its usage.
        before, came = self._said, _core.answer_size(message.content)
        self._said += came
        is_begun = message.message_id is None or message.message_id in self._answers
        if not is_begun:
            self._answers.add(str(message.message_id))
            self._model = message.model
            tokens = _tokens(message.usage)
            # The CLI has zeros where the model's service said nothing.
            self._is_estimated = not any(tokens.counts)
            if not self._is_estimated:
                self._count(tokens)
        if self._is_estimated:
            self._warn_once()
            self._count(Tokens(0 if is_begun else _core.usual_tokens(before), _core.usual_tokens(came)))

    def _warn_once(self) -> None:
        if not self._is_warned:
            self._is_warned = True
            log.warning("%s: an answer came without its usage, so its cost is an estimate, by its size", self.run.run_id)

    def _ended(self, message: ResultMessage) -> None:
        # An answer's message is sent before its output is counted; the result has the sums of the query.
        total, counted = _tokens(message.usage), self._counted
        self._count(Tokens.of_counts(*(max(whole - part, 0) for whole, part in zip(total.counts, counted.counts))))
        self._counted = Tokens()

    def _count(self, tokens: Tokens) -> None:
        self._counted = Tokens.of_counts(*(before + more for before, more in zip(self._counted.counts, tokens.counts)))
        try:
            note_usage(self.run, self._model, tokens)
        except RunGuardError as error:
            self._refused = self._refused or error

    async def _before_model(self, given: Any, tool_use_id: Optional[str], context: Any) -> Any:
        if given["hook_event_name"] == "UserPromptSubmit":
            # What stuck is in the run; this only says why the last query ended.
            self._refused = None
        try:
            self._check()
            await self.run._aside(self.run._model_asked)
        except RunGuardError as error:
            return self._stop(error)
        return {}

    async def _before_tool(self, given: Any, tool_use_id: Optional[str], context: Any) -> Any:
        try:
            self._check()
            await self.run._aside(self.run.before_tool, given["tool_name"], given["tool_input"])
        except RunGuardError as error:
            # Denying alone lets the model go on asking; stopping alone lets the tool run.
            return {**self._stop(error), **_denied(str(error))}
        instead = self.run._instead(given["tool_name"], given["tool_input"]) if self._tells else None
        return {} if instead is None else _denied(instead)

    async def _after_tool(self, given: Any, tool_use_id: Optional[str], context: Any) -> Any:
        nudge = await self.run._aside(self._seen, given)
        return {"hookSpecificOutput": {"hookEventName": given["hook_event_name"], "additionalContext": nudge}} if nudge else {}

    def _seen(self, given: Any) -> Optional[str]:
        return self.run.after_tool(given["tool_name"], given["tool_input"], given.get("tool_response"), error=given.get("error"))

    def _check(self) -> None:
        # A mistake that is no trip (a model without a price, say) does not stick to the run, but it ends the query.
        if self._refused is not None:
            raise self._refused

    def _stop(self, error: RunGuardError) -> dict[str, Any]:
        self._refused = error
        return {"continue_": False, "stopReason": str(error)}


def _denied(reason: str) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}}


def _tokens(usage: Optional[dict[str, Any]]) -> Tokens:
    told = usage or {}
    written = told.get("cache_creation_input_tokens") or 0
    for_an_hour = (told.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0
    read = (told.get(name) or 0 for name in ("input_tokens", "output_tokens", "cache_read_input_tokens"))
    return Tokens.of_counts(*read, max(written - for_an_hour, 0), for_an_hour)
