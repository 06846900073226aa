"""Claude Agent SDK: hooks that deny the tool call and end the session, and a watch on the messages.

    async for message in guarded_query(Run(max_usd=5), prompt="…", options=options):
        …

With a `ClaudeSDKClient` the same takes two calls:

    guard = ClaudeGuard(run)
    async with ClaudeSDKClient(guard.options(options)) as client:
        await client.query("…")
        async for message in guard.messages(client.receive_response()):
            …

The caller gets all messages the CLI sends and then the trip. A tripped run refuses the next prompt before the model is asked. Token
usage comes with the messages, which must therefore be read while the agent works; the output tokens of each answer are known only at the
end of a query. A `Run` kept for a whole chat needs `run.new_turn()` at each user message.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import replace
from typing import Any, Optional, Union

from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, HookMatcher, Message, ResultMessage, query

from runguard import Run, RunGuardError

from ._usage import Tokens, note_usage


async def guarded_query(
    run: Run, *, prompt: Union[str, AsyncIterable[dict[str, Any]]], options: Optional[ClaudeAgentOptions] = None, **others: Any
) -> AsyncIterator[Message]:
    """`claude_agent_sdk.query` under a run."""
    run.check()
    guard = ClaudeGuard(run)
    async for message in guard.messages(query(prompt=prompt, options=guard.options(options), **others)):
        yield message


class ClaudeGuard:
    """One run's hooks and its view of the messages."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._refused: Optional[RunGuardError] = None
        self._answers: set[str] = set()
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
                self._answered(message)
            elif isinstance(message, ResultMessage):
                self._ended(message)
            yield message
        if self._refused is not None:
            raise self._refused

    def _answered(self, message: AssistantMessage) -> None:
        # An answer comes in one message per content block; all of them have its id and its usage.
        if message.message_id is None or message.message_id in self._answers:
            return
        self._answers.add(message.message_id)
        self._model = message.model
        self._count(_tokens(message.usage))

    def _ended(self, message: ResultMessage) -> None:
        # An answer's message is sent before its output is counted; the result has the sums of the query.
        total, counted = _tokens(message.usage), self._counted
        self._count(Tokens(*(max(whole - part, 0) for whole, part in zip(total.counts, counted.counts))))
        self._counted = Tokens()

    def _count(self, tokens: Tokens) -> None:
        self._counted = Tokens(*(before + more for before, more in zip(self._counted.counts, tokens.counts)))
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
            self.run.before_model()
        except RunGuardError as error:
            return self._stop(error)
        return {}

    async def _before_tool(self, given: Any, tool_use_id: Optional[str], context: Any) -> Any:
        try:
            self._check()
            self.run.before_tool(given["tool_name"], given["tool_input"])
        except RunGuardError as error:
            # Denying alone lets the model go on asking; stopping alone lets the tool run.
            denied = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": str(error)}
            return {**self._stop(error), "hookSpecificOutput": denied}
        return {}

    async def _after_tool(self, given: Any, tool_use_id: Optional[str], context: Any) -> Any:
        nudge = self.run.after_tool(given["tool_name"], given["tool_input"], given.get("tool_response"), error=given.get("error"))
        return {"hookSpecificOutput": {"hookEventName": given["hook_event_name"], "additionalContext": nudge}} if nudge else {}

    def _check(self) -> None:
        # A mistake that is no trip (a model without a price, say) does not stick to the run, but it ends the query.
        if self._refused is not None:
            raise self._refused

    def _stop(self, error: RunGuardError) -> dict[str, Any]:
        self._refused = error
        return {"continue_": False, "stopReason": str(error)}


def _tokens(usage: Optional[dict[str, Any]]) -> Tokens:
    told = usage or {}
    written = told.get("cache_creation_input_tokens") or 0
    for_an_hour = (told.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0
    read = (told.get(name) or 0 for name in ("input_tokens", "output_tokens", "cache_read_input_tokens"))
    return Tokens(*read, max(written - for_an_hour, 0), for_an_hour)
