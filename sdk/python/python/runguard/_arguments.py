"""What a tool was asked, among all that its function is called with.

Frameworks and classes pass more: `self`, a context with counters, a callback manager. Such values are new at every call, so with them no
call would ever equal another; and some contain themselves and cannot be compared at all.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Mapping, Tuple

_KEPT = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY
_PLAIN = frozenset((str, int, float, bool, type(None), list, tuple, dict, set, frozenset, bytes))
# What frameworks call the things they hand to a tool beside its arguments: RunContextWrapper, ToolContext, RunContext, ToolRuntime,
# InvocationContext, CallbackManagerForToolRun, AgentState …
_ENDINGS = ("Context", "ContextWrapper", "Runtime", "ForToolRun", "RunManager", "CallbackHandler")
_is_extra: Dict[type, bool] = {}


def reader_of(function: Callable[..., Any]) -> Callable[[Tuple[Any, ...], Mapping[str, Any]], Dict[str, Any]]:
    """How to read what the function is called with: by the names of its parameters, so that it does not matter how they are passed."""
    names, extra = _names(function)

    def read(args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
        given: Dict[str, Any] = dict(zip(names, args))
        if len(args) > len(names):
            given["*"] = [value for value in args[len(names) :] if not is_extra(value)]
        given.update(kwargs)
        return {name: value for name, value in given.items() if name not in extra and (type(value) in _PLAIN or not is_extra(value))}

    return read


def comparable(given: Mapping[str, Any]) -> Dict[str, Any]:
    """Of arguments that cannot be compared as a whole, those that are plain data."""
    return {name: value for name, value in given.items() if type(value) in (str, int, float, bool, type(None), bytes)}


def is_extra(value: Any) -> bool:
    """Whether a framework passes it, and not the model."""
    kind = type(value)
    known = _is_extra.get(kind)
    if known is None:
        known = _is_extra[kind] = any(base.__name__.endswith(_ENDINGS) for base in kind.__mro__)
    return known


def _names(function: Callable[..., Any]) -> Tuple[Tuple[str, ...], frozenset[str]]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # Written in C, or odd: its arguments have only places.
        return (), frozenset()
    names = tuple(parameter.name for parameter in parameters if parameter.kind in _KEPT)
    extra = {parameter.name for parameter in parameters if _annotated_as_extra(parameter.annotation)}
    if names and names[0] in ("self", "cls"):
        extra.add(names[0])
    return names, frozenset(extra)


def _annotated_as_extra(annotation: Any) -> bool:
    """`RunContextWrapper[Any]`, `"ToolContext"`, `ToolRuntime`."""
    origin = getattr(annotation, "__origin__", annotation)
    name = origin if isinstance(origin, str) else getattr(origin, "__name__", "")
    return name.partition("[")[0].rpartition(".")[2].endswith(_ENDINGS)
