"""Rules for single tools of a run: `Run(tools={"check_status": polling(), "bash": ignore("description"), "log": exempt, "deploy": limit(1)})`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Mapping, Optional, Tuple

from .errors import InvalidInputError


@dataclass(frozen=True)
class ToolRule:
    """What holds for the calls of one tool. Rules add up: `ignore("id") | limit(3)`."""

    exempt: bool = False
    polling: Optional[int] = None
    ignore: Tuple[str, ...] = ()
    max_calls: Optional[int] = None

    def __or__(self, other: ToolRule) -> ToolRule:
        return ToolRule(
            self.exempt or other.exempt,
            other.polling if self.polling is None else self.polling,
            (*self.ignore, *other.ignore),
            other.max_calls if self.max_calls is None else self.max_calls,
        )


# Nothing is looked for in its calls; ceilings hold.
exempt = ToolRule(exempt=True)


def polling(unchanged: int = 20) -> ToolRule:
    """It is called until something changes: equal calls are no loop before they gave the same `unchanged` times in a row."""
    return ToolRule(polling=_count("unchanged", unchanged))


def ignore(*fields: str) -> ToolRule:
    """Arguments that make no other call of it."""
    if not fields or not all(isinstance(field, str) and field for field in fields):
        raise InvalidInputError("ignore takes the names of arguments, strings that are not empty.")
    return ToolRule(ignore=fields)


def limit(max_calls: int) -> ToolRule:
    """How often a run may call it."""
    return ToolRule(max_calls=_count("max_calls", max_calls))


def rules_as_json(tools: Optional[Mapping[str, Any]]) -> Optional[str]:
    """The rules as the native half takes them."""
    if not tools:
        return None
    import json

    rules = {}
    for name, rule in tools.items():
        # `polling` without brackets says enough.
        rule = rule() if rule is polling else rule
        if not isinstance(name, str) or not isinstance(rule, ToolRule):
            raise InvalidInputError(f"tools gives each tool its rule by name, one of exempt, polling(), ignore('field'), limit(3); not {name!r}: {rule!r}.")
        rules[name] = asdict(rule)
    return json.dumps(rules)


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInputError(f"{name} must be a whole number from 1 up, not {value!r}.")
    return value
