"""What type checkers read, and programs pass over: `typing` takes longer to import than all of this package."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import cast as cast, overload as overload
else:

    def cast(_kind, value):
        return value

    def overload(function):
        return function
