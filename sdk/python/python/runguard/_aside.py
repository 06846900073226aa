"""Work that waits for a service, outside of the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional

log = logging.getLogger("runguard")

# Threads of its own: those of the event loop may all be held by tools.
_MOST_THREADS = 32
_threads: Optional[ThreadPoolExecutor] = None


def _start_anew() -> None:
    """A forked child has none of its parent's threads."""
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def later(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Calls it in another thread, in the context of the caller."""
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(_MOST_THREADS, "runguard")
    return _threads.submit(contextvars.copy_context().run, function, *args)


async def aside(function: Callable[..., Any], *args: Any, left: Optional[Callable[[Any], Any]] = None) -> Any:
    """Calls it without holding up the event loop. It is called to its end, also when whoever waits is cancelled; what it then gave, if
    anything, is for `left`."""
    job = later(function, *args)
    try:
        return await asyncio.shield(asyncio.wrap_future(job))
    except asyncio.CancelledError:
        if left is not None:
            later(_leave, job, left)
        raise


def _leave(job: Future[Any], left: Callable[[Any], Any]) -> None:
    try:
        # It began before this, so it needs no thread that this one holds.
        left(job.result())
    except Exception as problem:
        log.debug("nobody waits for what failed: %s", problem)
