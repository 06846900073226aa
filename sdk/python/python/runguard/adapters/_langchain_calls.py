"""What LangChain's model calls say of themselves."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from langchain_core.messages import BaseMessage

from runguard import _core
from runguard.run import ModelCall, Run

from ._usage import Tokens, settle

# Names of the longest answer among a chat model's settings.
_LONGEST = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict")
_REMEMBERED = 10_000


def longest(settings: Mapping[str, Any]) -> Optional[int]:
    """The longest answer that settings ask for."""
    return next((settings[name] for name in _LONGEST if isinstance(settings.get(name), int)), None)


def name_of(model: Any) -> Optional[str]:
    """The name that a chat model sends."""
    names = (getattr(model, name, None) for name in ("model_name", "model", "model_id", "deployment_name"))
    return next((name for name in names if isinstance(name, str) and name), None)


def longest_of(model: Any) -> Optional[int]:
    return longest({name: getattr(model, name, None) for name in _LONGEST})


def shortened(model: Any, settings: Mapping[str, Any], tokens: int) -> Dict[str, Any]:
    """Settings of a call that ask for no longer answer than this, where the chat model has a name for it."""
    known = getattr(type(model), "model_fields", {})
    name = next((name for name in _LONGEST if name in settings or name in known), None)
    return dict(settings) if name is None else {**settings, name: tokens}


def said(messages: Iterable[BaseMessage]) -> List[Any]:
    """What of messages is sent to a model."""
    return [[message.type, message.content, getattr(message, "tool_calls", None)] for message in messages]


def settle_messages(call: Optional[ModelCall], messages: Iterable[BaseMessage]) -> None:
    """Tells what the answers of one call used."""
    messages = list(messages)
    counted = [(message, tokens) for message in messages for tokens in (_tokens(message),) if tokens is not None]
    if not counted:
        settle(call, None, None, _core.answer_size(said(messages)))
        return
    told = counted[0][0].response_metadata
    sums = Tokens.of_counts(*(sum(parts) for parts in zip(*(tokens.counts for _, tokens in counted))))
    tokens = sums._replace(service_tier=counted[0][1].service_tier)
    settle(call, told.get("model_name") or told.get("model"), tokens)


def _tokens(message: BaseMessage) -> Optional[Tokens]:
    return Tokens.read("langchain", getattr(message, "usage_metadata", None), message.response_metadata.get("service_tier"))


def is_pause(error: BaseException) -> bool:
    """`interrupt()` in a tool, or another word to the graph: nothing failed, and the tool is called again when the graph goes on."""
    return any(kind.__name__ == "GraphBubbleUp" for kind in type(error).__mro__)


class Paused:
    """Tool calls that have stopped to ask somebody. Made again they are the same call."""

    def __init__(self) -> None:
        self._calls: OrderedDict[Tuple[str, str], None] = OrderedDict()

    def add(self, run: Run, call_id: Optional[str]) -> None:
        if call_id is not None:
            self._calls[(run.run_id, call_id)] = None
            if len(self._calls) > _REMEMBERED:
                self._calls.popitem(last=False)

    def take(self, run: Run, call_id: Optional[str]) -> bool:
        """Whether the call is one of them, which is counted already."""
        known = (run.run_id, call_id or "") in self._calls
        self._calls.pop((run.run_id, call_id or ""), None)
        return known
