"""What a tool was asked, among all that its function is called with.

Frameworks and classes pass more: `self`, a context with counters, a callback manager. Such values are new at every call, so with them no
call would ever equal another; and some contain themselves and cannot be compared at all.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

# What frameworks call the things they hand to a tool beside its arguments: RunContextWrapper, ToolContext, RunContext, ToolRuntime,
# InvocationContext, CallbackManagerForToolRun, AgentState …
_ENDINGS = ("Context", "ContextWrapper", "Runtime", "ForToolRun", "RunManager", "CallbackHandler")
_is_extra: Dict[type, bool] = {}


def is_extra(value: Any) -> bool:
    """Whether a framework passes it, and not the model."""
    kind = type(value)
    known = _is_extra.get(kind)
    if known is None:
        known = _is_extra[kind] = any(base.__name__.endswith(_ENDINGS) for base in kind.__mro__)
    return known


def parameters_of(function: Callable[..., Any]) -> Tuple[List[str], List[str]]:
    """The names of the parameters that may be passed by place, and of those that a framework fills: by names it does not matter how they are passed."""
    # Where nothing is wrapped it takes as long to import as all the rest.
    import inspect

    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # Written in C, or odd: its arguments have only places.
        return [], []
    by_place = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    names = [parameter.name for parameter in parameters if parameter.kind in by_place]
    extra = [parameter.name for parameter in parameters if _annotated_as_extra(parameter.annotation)]
    return names, [*extra, names[0]] if names and names[0] in ("self", "cls") else extra


def _annotated_as_extra(annotation: Any) -> bool:
    """`RunContextWrapper[Any]`, `"ToolContext"`, `ToolRuntime`."""
    origin = getattr(annotation, "__origin__", annotation)
    name = origin if isinstance(origin, str) else getattr(origin, "__name__", "")
    return name.partition("[")[0].rpartition(".")[2].endswith(_ENDINGS)
