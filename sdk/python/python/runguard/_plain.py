"""What an object of any kind stands for, as plain values: how the native side reads arguments it does not know."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import hashlib
import os
import re
import uuid
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain(value: Any) -> Any:
    """One step towards plain values; equal objects give equal ones, in every process."""
    if isinstance(value, enum.Enum):
        return value.value
    # Subclasses: the value they carry, not what they say of themselves.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value.normalize()) if value.is_finite() else str(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if isinstance(value, collections.abc.Mapping):
        return dict(value.items())
    if isinstance(value, collections.abc.Set):
        return frozenset(value)
    if isinstance(value, (tuple, list, collections.abc.Sequence, collections.abc.ValuesView)):
        return list(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    for method in ("model_dump", "to_dict", "_asdict", "tolist"):
        # pydantic; many clients; namedtuples; numpy scalars and arrays.
        convert = getattr(value, method, None)
        if callable(convert):
            converted = convert()
            if converted is not value:
                return converted
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    members = _members(value)
    if members:
        return {"type": type(value).__qualname__, "members": members}
    return _ADDRESS.sub("", repr(value))


def _members(value: Any) -> dict[str, Any]:
    members = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                members.setdefault(name, getattr(value, name))
    return {name: member for name, member in members.items() if not name.startswith("_")}
