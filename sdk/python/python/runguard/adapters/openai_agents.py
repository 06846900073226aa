"""Guards the OpenAI Agents SDK.

    from agents import Runner
    from runguard import Run
    from runguard.adapters.openai_agents import RunGuardHooks

    hooks = RunGuardHooks(lambda: Run(repeats=3, max_usd=1.00))
    await Runner.run(agent, "…", hooks=hooks)

Every `Runner.run` has a run of its own, which the function makes; without one it is the run around it (`guard(…)`), or a plain `Run()`. A
`Run` given instead is one for all: call its `new_turn()` when the user says something new. An agent that is a tool belongs to the run of
the agent that calls it when it has the same hooks: `agent.as_tool(…, hooks=hooks)`.

The calls of an answer are counted when the answer is there, before the first of them runs. A refused call raises the `TripError`
itself out of `run`, `run_sync` or `stream_events`; raised later, in `on_tool_start`, the SDK would wrap it in a `UserError`, and the
other calls of the answer would already be running. Handoffs count too: two agents that hand over to each other for ever are a loop.
Hooks cannot end a run politely, nor ask for a shorter answer.

Streamed chat completions report their usage only with `ModelSettings(include_usage=True)`; without, it is estimated by the answer's size.
With `on_repeat="tell"` a call of a function tool of the agent whose result the model has already is not run: its result is a sentence that says
so. It comes as the SDK's own input guardrail of the tool, which tools of MCP servers do not have: those run. To give nudges to the model as well: `run_config=RunConfig(call_model_input_filter=hooks.add_nudges)`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, List, Optional

from agents import (
    Agent,
    FunctionTool,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    Tool,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
)
from agents.models import get_default_model
from agents.run import CallModelData, ModelInputData
from agents.tool_context import ToolContext

from runguard import _core
from runguard.run import ModelCall, Run

from ._client import REMEMBERED_CALLS, parse_arguments
from ._runs import OnRepeat, RunLike, Runs, tells
from ._usage import Tokens, begin_async, settle
from .openai import is_result, response_call

__all__ = ["RunGuardHooks"]


class RunGuardHooks(RunHooks[Any]):
    """Puts a run around the model calls and tool calls of each `Runner.run`."""

    def __init__(self, run: RunLike = None, *, model: Optional[str] = None, on_repeat: OnRepeat = "run") -> None:
        """`model` is the name to price by, for when the one used is not the agent's own (a `RunConfig` can replace it)."""
        self.run = run if isinstance(run, Run) else None
        self._runs = Runs(run)
        self._model = model
        self._tells = tells(on_repeat)
        self._nudges: OrderedDict[str, str] = OrderedDict()

    async def on_llm_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], system_prompt: Optional[str] = None, input_items: Any = None
    ) -> None:
        if self._tells:
            _let_tell(agent)
        # One that is still there failed.
        _take_call(context, release=True)
        name = self._model or _name_of(agent)
        prompt = [system_prompt, input_items, _described(agent)]
        call = await begin_async(self._run_of(context), name, prompt, agent.model_settings.max_tokens)
        call._is_sent = True
        # A request that fails or is broken off has no end here: then the call ends with its context.
        context._runguard_call = call  # type: ignore[attr-defined]

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        run, call = self._run_of(context), _take_call(context)
        usage, details = response.usage, response.usage.input_tokens_details
        written = getattr(details, "cache_write_tokens", 0)
        # The SDK has zeros where the provider said nothing.
        is_counted = bool(usage.input_tokens or usage.output_tokens)
        tokens = Tokens.of_total(usage.input_tokens, usage.output_tokens, details.cached_tokens, written) if is_counted else None
        await run._aside(settle, call, self._model or _name_of(agent), tokens, 0 if is_counted else _core.answer_size(response.output))
        for item in response.output:
            for asked in response_call(item):
                await run._aside(run.before_tool, asked.tool, asked.args)
                instead = run._instead(asked.tool, asked.args) if self._tells else None
                if instead is not None:
                    _sentences(context)[asked.id] = instead

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Any, tool: Tool) -> None:
        # Counted already; this is for a run that another agent sharing it has tripped meanwhile.
        self._run_of(context).check()

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Any, tool: Tool, result: object) -> None:
        if not isinstance(context, ToolContext):
            return
        run = self._run_of(context)
        nudge = await run._aside(run.after_tool, context.tool_name, parse_arguments(context.tool_arguments), str(result))
        if nudge:
            self._nudges[context.tool_call_id] = nudge
            if len(self._nudges) > REMEMBERED_CALLS:
                self._nudges.popitem(last=False)

    def add_nudges(self, data: CallModelData[Any]) -> ModelInputData:
        """For `RunConfig.call_model_input_filter`: each nudge stands behind the result of its call."""
        items = [self._nudged(item) for item in data.model_data.input]
        return ModelInputData(input=items, instructions=data.model_data.instructions)

    def _run_of(self, context: RunContextWrapper[Any]) -> Run:
        # An agent that is a tool has a context of its own, but adds to the same usage.
        return self._runs.of(context.usage)

    def _nudged(self, item: Any) -> Any:
        nudge = self._nudges.get(item.get("call_id", "")) if is_result(item) else None
        if nudge is None:
            return item
        output = item["output"]
        return {**item, "output": f"{output}\n\n{nudge}" if isinstance(output, str) else [*output, {"type": "input_text", "text": nudge}]}


def _sentences(context: RunContextWrapper[Any]) -> Dict[str, str]:
    """What the model is told in place of a result, by the call. The usage is the one object that a call's context has of its run."""
    sentences: Dict[str, str] = context.usage.__dict__.setdefault("_runguard_told", {})
    return sentences


def _tell(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    told = _sentences(data.context).pop(data.context.tool_call_id, None)
    return ToolGuardrailFunctionOutput.allow() if told is None else ToolGuardrailFunctionOutput.reject_content(told)


# One for all tools and hooks: a tool that serves many runs has it once.
_TELLING: ToolInputGuardrail[Any] = ToolInputGuardrail(guardrail_function=_tell, name="runguard")


def _let_tell(agent: Agent[Any]) -> None:
    for tool in agent.tools:
        if isinstance(tool, FunctionTool) and _TELLING not in (tool.tool_input_guardrails or ()):
            tool.tool_input_guardrails = [*(tool.tool_input_guardrails or ()), _TELLING]


def _take_call(context: Any, release: bool = False) -> Optional[ModelCall]:
    call: Optional[ModelCall] = context.__dict__.pop("_runguard_call", None)
    if call is not None and release:
        call.release()
    return call


def _described(agent: Agent[Any]) -> List[Any]:
    """What of the tools is sent."""
    return [[getattr(tool, part, None) for part in ("name", "description", "params_json_schema")] for tool in agent.tools]


def _name_of(agent: Agent[Any]) -> str:
    if agent.model is None:
        return get_default_model()
    return agent.model if isinstance(agent.model, str) else str(getattr(agent.model, "model", "unknown"))
