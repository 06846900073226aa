"""A run as a LangChain callback handler."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, NamedTuple, Optional, Union
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from runguard import _core
from runguard.run import ModelCall, Run, _lets_run

from ._langchain_calls import Paused, is_pause, longest, said, settle_messages
from ._runs import CAPACITY, RunLike, Runs
from ._usage import begin, failed, is_in_loop, settle

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    Outcome = Union[ToolMessage, Command[Any]]


class _Tool(NamedTuple):
    run: Run
    name: str
    args: Any
    call_id: Optional[str]


class RunGuardCallbacks(BaseCallbackHandler):
    """Guards graphs and chains that have no middleware. It always raises, and gives no nudges.

    `ToolNode(tools, wrap_tool_call=guard.tell_repeats, awrap_tool_call=guard.tell_repeats_async)` gives the model a sentence in place of a
    result that it has already, as `on_repeat="tell"` does elsewhere.

    In an async graph a model call that finds what is left set aside by others is refused: a handler cannot wait there.
    """

    # Without this LangChain logs what a handler raises and goes on.
    raise_error = True

    def __init__(self, run: RunLike = None) -> None:
        self._runs = Runs(run)
        self.run = run if isinstance(run, Run) else None
        self._asks_service = self.run is not None and self.run._asks_service
        # For everything that is under way, what it is part of: the outermost chain, which stands for the invocation.
        self._roots: OrderedDict[UUID, str] = OrderedDict()
        self._models: Dict[UUID, ModelCall] = {}
        self._tools: Dict[UUID, _Tool] = {}
        self._paused = Paused()

    @property
    def run_inline(self) -> bool:  # type: ignore[override]
        """In the event loop's own thread, unless a service has to be asked."""
        return not self._asks_service

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: Optional[UUID] = None, **kwargs: Any) -> None:
        self._began(run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id)

    def on_chat_model_start(
        self, serialized: Any, messages: List[List[BaseMessage]], *, run_id: UUID, parent_run_id: Optional[UUID] = None, **kwargs: Any
    ) -> None:
        self._ask(run_id, parent_run_id, [said(batch) for batch in messages], kwargs)

    def on_llm_start(
        self, serialized: Any, prompts: List[str], *, run_id: UUID, parent_run_id: Optional[UUID] = None, **kwargs: Any
    ) -> None:
        self._ask(run_id, parent_run_id, prompts, kwargs)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id)
        call = self._models.pop(run_id, None)
        generations = [generation for batch in response.generations for generation in batch]
        chats = [generation.message for generation in generations if isinstance(generation, ChatGeneration)]
        if chats:
            settle_messages(call, chats)
        else:
            settle(call, None, None, _core.answer_size([generation.text for generation in generations]))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id)
        call, response = self._models.pop(run_id, None), kwargs.get("response")
        came = [generation.text for batch in response.generations for generation in batch] if response is not None else []
        if any(came):
            # A stream that broke off.
            settle(call, None, None, _core.answer_size(came))
        else:
            failed(call, error)

    def on_tool_start(
        self,
        serialized: Dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: Optional[UUID] = None,
        inputs: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        run = self._run_of(run_id, parent_run_id)
        tool = _Tool(
            run, serialized.get("name") or kwargs.get("name") or "tool", inputs if inputs is not None else input_str, kwargs.get("tool_call_id")
        )
        try:
            if self._paused.take(run, tool.call_id):
                run.check()
            else:
                run.before_tool(tool.name, tool.args)
        except BaseException:
            self._ended(run_id)
            raise
        self._tools[run_id] = tool
        _lets_run(run, tool.name)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id)
        tool = self._tools.pop(run_id, None)
        if tool is not None:
            tool.run.after_tool(tool.name, tool.args, output.content if isinstance(output, ToolMessage) else str(output))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._ended(run_id)
        tool = self._tools.pop(run_id, None)
        if tool is None:
            return
        if is_pause(error):
            self._paused.add(tool.run, tool.call_id)
        else:
            tool.run.after_tool(tool.name, tool.args, error=str(error))

    def tell_repeats(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Outcome]) -> Outcome:
        """For `ToolNode(…, wrap_tool_call=…)`. A call whose result the model has already is not run: its result is a sentence that says so."""
        return self._instead(request) or execute(request)

    async def tell_repeats_async(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Outcome]]) -> Outcome:
        """For `ToolNode(…, awrap_tool_call=…)`."""
        run = self._run_around(request)
        told = None if run is None else await run._aside(self._instead, request)
        return told or await execute(request)

    def _run_around(self, request: ToolCallRequest) -> Optional[Run]:
        """The run of the graph that a call is made in; None where the graph does not have these callbacks."""
        node = getattr(request.runtime.config.get("callbacks"), "parent_run_id", None)
        root = self._roots.get(node) if node is not None else None
        return None if root is None else self._runs.of(root)

    def _instead(self, request: ToolCallRequest) -> Optional[ToolMessage]:
        run, call = self._run_around(request), request.tool_call
        was_tripped = run is not None and run.tripped
        instead = None if run is None else run._instead(call["name"], call["args"])
        if run is None or instead is None:
            # Counted where it runs.
            return None
        if was_tripped or not run.tripped:
            run.before_tool(call["name"], call["args"])
        # Else it was told once too often: it still hears this, and its next step is stopped.
        return ToolMessage(content=instead, tool_call_id=call["id"], name=call["name"])

    def _ask(self, run_id: UUID, parent_run_id: Optional[UUID], prompt: Any, told: Dict[str, Any]) -> None:
        run = self._run_of(run_id, parent_run_id)
        settings, about = told.get("invocation_params") or {}, told.get("metadata") or {}
        model = about.get("ls_model_name") or settings.get("model") or settings.get("model_name")
        try:
            can_wait = not self._asks_service and not is_in_loop()
            call = begin(run, model, [prompt, settings.get("tools")], longest(settings), choices=settings.get("n"), can_wait=can_wait)
        except BaseException:
            # LangChain tells no end of what it did not begin.
            self._ended(run_id)
            raise
        call._is_sent = True
        self._models[run_id] = call

    def _began(self, run_id: UUID, parent_run_id: Optional[UUID]) -> str:
        root = self._roots.get(parent_run_id) if parent_run_id is not None else None
        self._roots[run_id] = root = root or str(run_id)
        while len(self._roots) > 8 * CAPACITY:
            self._roots.popitem(last=False)
        return root

    def _run_of(self, run_id: UUID, parent_run_id: Optional[UUID]) -> Run:
        run = self._runs.of(self._began(run_id, parent_run_id))
        self._asks_service = run._asks_service
        return run

    def _ended(self, run_id: UUID) -> None:
        if self._roots.pop(run_id, None) == str(run_id):
            self._runs.end(str(run_id))
