"""A run as a middleware of LangChain agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Awaitable, Callable, Optional, Union

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, ToolMessage

from runguard.errors import InvalidInputError, TripError
from runguard.run import ModelCall, Run

from ._langchain_calls import Paused, is_pause, longest, longest_of, name_of, said, settle_messages, shortened
from ._runs import OnRepeat, OnTrip, RunLike, Runs, checked, tells, within
from ._usage import begin, begin_async, failed

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command


class RunGuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Puts a run around the model calls and tool calls of each invocation of an agent.

    With `on_repeat="tell"` a call whose result the model has already is not run: its result is a sentence that says so.
    """

    def __init__(self, run: RunLike = None, *, on_trip: OnTrip = "raise", on_repeat: OnRepeat = "run") -> None:
        super().__init__()
        self.on_trip = checked(on_trip)
        self._tells = tells(on_repeat)
        self.run = run if isinstance(run, Run) else None
        self._runs = Runs(run)
        self._paused = Paused()

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]) -> Any:
        run = self._run_of(request.runtime)
        try:
            call = begin(run, *_asked(request), choices=_choices(request))
        except TripError as trip:
            return self._last_message(trip)
        try:
            response = handler(_sent(request, call))
        except BaseException as error:
            failed(call, error)
            raise
        settle_messages(call, _answers(response))
        return response

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        run = self._run_of(request.runtime)
        try:
            call = await begin_async(run, *_asked(request), choices=_choices(request))
        except TripError as trip:
            return self._last_message(trip)
        try:
            response = await handler(_sent(request, call))
        except BaseException as error:
            await run._aside(failed, call, error)
            raise
        await run._aside(settle_messages, call, _answers(response))
        return response

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Union[ToolMessage, Command[Any]]]
    ) -> Union[ToolMessage, Command[Any]]:
        run = self._run_of(request.runtime)
        refusal = self._refuse_tool(run, request)
        if refusal is not None:
            return refusal
        try:
            with within(run, request.tool_call["name"]):
                outcome = handler(request)
        except Exception as error:
            self._not_done(run, request, error)
            raise
        return self._seen(run, request, outcome)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Union[ToolMessage, Command[Any]]]]
    ) -> Union[ToolMessage, Command[Any]]:
        run = self._run_of(request.runtime)
        refusal = await run._aside(self._refuse_tool, run, request)
        if refusal is not None:
            return refusal  # type: ignore[no-any-return]
        try:
            with within(run, request.tool_call["name"]):
                outcome = await handler(request)
        except Exception as error:
            await run._aside(self._not_done, run, request, error)
            raise
        return await run._aside(self._seen, run, request, outcome)  # type: ignore[no-any-return]

    def _run_of(self, runtime: Any) -> Run:
        if self.run is not None:
            return self.run
        about = getattr(runtime, "execution_info", None)
        invocation = _control(runtime) or getattr(about, "run_id", None) or getattr(about, "thread_id", None)
        if invocation is None:
            raise InvalidInputError(
                "This version of langgraph does not say which invocation a call belongs to. Give the middleware a Run, or update langgraph."
            )
        return self._runs.of(invocation)

    def _last_message(self, trip: TripError) -> AIMessage:
        if self.on_trip == "raise":
            raise trip
        # An answer without tool calls is what ends an agent.
        return AIMessage(content=trip.message)

    def _refuse_tool(self, run: Run, request: ToolCallRequest) -> Optional[ToolMessage]:
        call = request.tool_call
        try:
            if self._paused.take(run, call["id"]):
                run.check()
            else:
                run.before_tool(call["name"], call["args"])
        except TripError as trip:
            if self.on_trip == "raise":
                raise
            # Every call needs its answer in the transcript; the run itself ends at the next model call.
            return ToolMessage(content=trip.message, tool_call_id=call["id"], name=call["name"], status="error")
        instead = run._instead(call["name"], call["args"]) if self._tells else None
        return None if instead is None else ToolMessage(content=instead, tool_call_id=call["id"], name=call["name"])

    def _not_done(self, run: Run, request: ToolCallRequest, error: Exception) -> None:
        call = request.tool_call
        if is_pause(error):
            self._paused.add(run, call["id"])
        else:
            run.after_tool(call["name"], call["args"], error=str(error))

    def _seen(self, run: Run, request: ToolCallRequest, outcome: Union[ToolMessage, Command[Any]]) -> Union[ToolMessage, Command[Any]]:
        call = request.tool_call
        if not isinstance(outcome, ToolMessage):
            run.after_tool(call["name"], call["args"], str(outcome))
            return outcome
        failure = str(outcome.content) if outcome.status == "error" else None
        nudge = run.after_tool(call["name"], call["args"], outcome.content, error=failure)
        if not nudge:
            return outcome
        content = (
            f"{outcome.content}\n\n{nudge}" if isinstance(outcome.content, str) else [*outcome.content, {"type": "text", "text": nudge}]
        )
        return outcome.model_copy(update={"content": content})


def _control(runtime: Any) -> Any:
    """An object that is one for a graph run and for the graphs it starts."""
    if hasattr(runtime, "control"):
        return runtime.control
    # What a tool is given leaves it out.
    config = getattr(runtime, "config", None) or {}
    return getattr(config.get("configurable", {}).get("__pregel_runtime"), "control", None)


def _asked(request: ModelRequest[Any]) -> tuple[Optional[str], Any, Optional[int]]:
    settings = request.model_settings
    tools = [tool if isinstance(tool, dict) else _described(tool) for tool in request.tools]
    prompt = [said([request.system_message] if request.system_message else []), said(request.messages), tools]
    return settings.get("model") or name_of(request.model), prompt, longest(settings) or longest_of(request.model)


def _choices(request: ModelRequest[Any]) -> Any:
    return request.model_settings.get("n") or getattr(request.model, "n", None)


def _described(tool: Any) -> Any:
    """What of a tool is sent."""
    return [tool.name, tool.description, tool.args]


def _sent(request: ModelRequest[Any], call: ModelCall) -> ModelRequest[Any]:
    # Whatever becomes of the answer, it may be billed.
    call._is_sent = True
    if call.max_tokens is None:
        return request
    return request.override(model_settings=shortened(request.model, request.model_settings, call.max_tokens))


def _answers(response: Any) -> Any:
    # An inner middleware may give a bare message, or wrap the response.
    inner = getattr(response, "model_response", response)
    return [message for message in getattr(inner, "result", [inner]) if isinstance(message, AIMessage)]
