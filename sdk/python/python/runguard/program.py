"""A run around a whole program, as `runguard run` opens it: the program is not changed, and its model clients are hooked."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, Optional

from . import _hooks
from .detectors import BudgetTracker
from .errors import TripError
from .run import Run, _open_for_program

TOLD, FOLDER = "RUNGUARD_RUN", "RUNGUARD_RUN_FOLDER"


def begin() -> Run:
    """Opens the run that the environment tells of, until the process ends.

    The money is kept by a service, so that all processes of a program share it. Loops are looked for in each process by itself: what two of
    them do is not one history.
    """
    told: Dict[str, Any] = json.loads(os.environ[TOLD])
    url, api_key = told.pop("url", None), told.pop("api_key", None)
    max_usd, max_tokens = told.pop("max_usd", None), told.pop("max_tokens", None)
    budget = BudgetTracker(max_usd, max_tokens, session_id=told["run_id"], url=url, api_key=api_key)
    run = Run(**told, budget=budget, alerts=_leave_word)
    _open_for_program(run)
    _hooks.enter()
    _leave(f"{os.getpid()}.begun", "")
    return run


def _leave_word(trip: TripError) -> None:
    _leave(f"{os.getpid()}.trip", trip.message)


def _leave(name: str, text: str) -> None:
    """A file for whoever has started the program."""
    folder: Optional[str] = os.environ.get(FOLDER)
    if folder is None:
        return
    try:
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as problem:
        sys.stderr.write(f"runguard: cannot leave word in {folder}: {problem}\n")


__all__ = ["begin"]
