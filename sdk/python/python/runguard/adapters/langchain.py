"""Guards LangChain 1.x agents (`create_agent`) and bare LangGraph graphs.

    from langchain.agents import create_agent
    from runguard import Run
    from runguard.adapters.langchain import RunGuardMiddleware

    agent = create_agent(model, tools, middleware=[RunGuardMiddleware(Run(repeats=3, max_usd=1.00))])

A refused tool call raises the `TripError` out of `invoke` or `stream`. With `on_trip="end"` the run ends cleanly instead: the last
message is the guard's. Answering the model with a tool message alone would not stop it, and `Command(goto=END)` out of a tool does
not either; both were tried.

A graph of your own takes the same object in its tool node, `ToolNode(tools, wrap_tool_call=guard.wrap_tool_call)`, or, with nothing
changed in the graph, `RunGuardCallbacks` in the config: `graph.invoke(state, {"callbacks": [RunGuardCallbacks(run)]})`. Use one of
the two for the same run, or each call counts twice. Call `run.new_turn()` when the user says something new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Literal, Optional, Union
from uuid import UUID

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from runguard.errors import TripError

from ._usage import Tokens, note_usage

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    from runguard import Run

__all__ = ["RunGuardCallbacks", "RunGuardMiddleware"]


class RunGuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Puts a run around the model calls and tool calls of an agent."""

    def __init__(self, run: Run, *, on_trip: Literal["raise", "end"] = "raise") -> None:
        super().__init__()
        if on_trip not in ("raise", "end"):
            raise ValueError(f'on_trip must be "raise" or "end", not {on_trip!r}.')
        self.run = run
        self.on_trip = on_trip

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]) -> Any:
        refusal = self._refuse_model()
        if refusal is not None:
            return refusal
        response = handler(request)
        self._note(response)
        return response

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        refusal = self._refuse_model()
        if refusal is not None:
            return refusal
        response = await handler(request)
        self._note(response)
        return response

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Union[ToolMessage, Command[Any]]]
    ) -> Union[ToolMessage, Command[Any]]:
        refusal = self._refuse_tool(request)
        if refusal is not None:
            return refusal
        try:
            outcome = handler(request)
        except Exception as error:
            self.run.after_tool(request.tool_call["name"], request.tool_call["args"], error=str(error))
            raise
        return self._seen(request, outcome)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Union[ToolMessage, Command[Any]]]]
    ) -> Union[ToolMessage, Command[Any]]:
        refusal = self._refuse_tool(request)
        if refusal is not None:
            return refusal
        try:
            outcome = await handler(request)
        except Exception as error:
            self.run.after_tool(request.tool_call["name"], request.tool_call["args"], error=str(error))
            raise
        return self._seen(request, outcome)

    def _refuse_model(self) -> Optional[AIMessage]:
        try:
            self.run.before_model()
        except TripError as trip:
            if self.on_trip == "raise":
                raise
            # An answer without tool calls is what ends an agent.
            return AIMessage(content=trip.message)
        return None

    def _refuse_tool(self, request: ToolCallRequest) -> Optional[ToolMessage]:
        call = request.tool_call
        try:
            self.run.before_tool(call["name"], call["args"])
        except TripError as trip:
            if self.on_trip == "raise":
                raise
            # Every call needs its answer in the transcript; the run itself ends at the next model call.
            return ToolMessage(content=trip.message, tool_call_id=call["id"], name=call["name"], status="error")
        return None

    def _note(self, response: ModelResponse[Any]) -> None:
        for message in response.result:
            _note_message(self.run, message)

    def _seen(self, request: ToolCallRequest, outcome: Union[ToolMessage, Command[Any]]) -> Union[ToolMessage, Command[Any]]:
        call = request.tool_call
        if not isinstance(outcome, ToolMessage):
            self.run.after_tool(call["name"], call["args"], str(outcome))
            return outcome
        failure = str(outcome.content) if outcome.status == "error" else None
        nudge = self.run.after_tool(call["name"], call["args"], outcome.content, error=failure)
        if not nudge:
            return outcome
        content = (
            f"{outcome.content}\n\n{nudge}" if isinstance(outcome.content, str) else [*outcome.content, {"type": "text", "text": nudge}]
        )
        return outcome.model_copy(update={"content": content})


class RunGuardCallbacks(BaseCallbackHandler):
    """The same run as a callback handler, for graphs and chains that have no middleware. It always raises, and gives no nudges."""

    # Without this LangChain logs what a handler raises and goes on.
    raise_error = True
    run_inline = True

    def __init__(self, run: Run) -> None:
        self.run = run
        self._open_tools: Dict[UUID, tuple[str, Any]] = {}

    def on_chat_model_start(self, serialized: Dict[str, Any], messages: List[List[BaseMessage]], **kwargs: Any) -> None:
        self.run.before_model()

    def on_llm_start(self, serialized: Dict[str, Any], prompts: List[str], **kwargs: Any) -> None:
        self.run.before_model()

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        for generation in (generation for batch in response.generations for generation in batch):
            if isinstance(generation, ChatGeneration):
                _note_message(self.run, generation.message)

    def on_tool_start(
        self, serialized: Dict[str, Any], input_str: str, *, run_id: UUID, inputs: Optional[Dict[str, Any]] = None, **kwargs: Any
    ) -> None:
        tool = serialized.get("name") or kwargs.get("name") or "tool"
        args = inputs if inputs is not None else input_str
        self.run.before_tool(tool, args)
        self._open_tools[run_id] = (tool, args)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        tool, args = self._open_tools.pop(run_id, (None, None))
        if tool is not None:
            self.run.after_tool(tool, args, output.content if isinstance(output, ToolMessage) else str(output))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        tool, args = self._open_tools.pop(run_id, (None, None))
        if tool is not None:
            self.run.after_tool(tool, args, error=str(error))


def _note_message(run: Run, message: BaseMessage) -> None:
    usage = getattr(message, "usage_metadata", None)
    if not usage:
        return
    told = message.response_metadata
    note_usage(run, told.get("model_name") or told.get("model"), _tokens(usage, told.get("service_tier")))


def _tokens(usage: Any, service_tier: Optional[str]) -> Tokens:
    # LangChain counts cached tokens inside the input, whatever the provider does.
    read, written = usage.get("input_token_details") or {}, usage.get("output_token_details") or {}
    # A tier with prices of its own is a detail, and stands before the names of what is cached. Of a stream nothing else tells it.
    tier = next((tier for tier in ("priority", "flex") if tier in read), service_tier)

    def cached(name: str) -> int:
        return read.get(name) or read.get(f"{tier}_{name}") or 0

    # Anthropic's cache writes are told by how long they are kept; then their sum is given as 0.
    for_an_hour = read.get("ephemeral_1h_input_tokens") or 0
    return Tokens.of_total(
        usage["input_tokens"],
        usage["output_tokens"],
        cached("cache_read"),
        max(cached("cache_creation") - for_an_hour, read.get("ephemeral_5m_input_tokens") or 0),
        for_an_hour,
        read.get("audio"),
        written.get("audio"),
        tier,
    )
