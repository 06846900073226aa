"""MCP Python SDK, client side: a guarded `ClientSession`, or `Client` of the 2.x releases.

    async with ClientSession(reading, writing) as session:
        guard_session(session, Run(repeats=3, max_tool_calls=100))
        await session.initialize()
        await session.call_tool("search", {"query": "rust"})     # raises the trip

A refused call never leaves the client. The run may be a `Run`, a function that is asked for it at each call, or nothing: then it is the run
around the call (`guard(…)`), and outside of one the call is sent straight. With `on_trip="end"` a refused call gives a result that says why,
marked as an error, instead of raising.

The model is not seen from here. Where a framework hands what its tools raise to the model, put `guard(…)` around the agent: the client of
the model is hooked there, and a run that is over sends nothing more.
"""

from __future__ import annotations

from typing import Any, Optional, TypeVar

from runguard.errors import InvalidInputError, TripError
from runguard.run import Run, _is_let_run, current_run

from ._runs import OnTrip, RunLike, checked

__all__ = ["guard_session"]

Session = TypeVar("Session")


def guard_session(session: Session, run: RunLike = None, *, on_trip: OnTrip = "raise") -> Session:
    """Makes the session ask the run before each `call_tool`, and gives it back."""
    send: Any = getattr(session, "call_tool", None)
    if not callable(send):
        raise InvalidInputError(f"guard_session takes a ClientSession or Client of the package mcp, not {session!r}.")
    if run is not None and not isinstance(run, Run) and not callable(run):
        raise InvalidInputError(f"Give a Run, a function that makes one, or nothing; not {run!r}.")
    checked(on_trip)

    async def call_tool(name: str, arguments: Optional[dict[str, Any]] = None, *args: Any, **kwargs: Any) -> Any:
        asked = current_run() if run is None else run if isinstance(run, Run) else run()
        # A call that goes on with what the server has asked for is counted already, and so is one that an adapter lets run.
        is_continued = kwargs.get("input_responses") is not None or kwargs.get("request_state") is not None
        if asked is None or is_continued or _is_let_run(asked, name):
            return await send(name, arguments, *args, **kwargs)
        given = arguments or {}
        try:
            await asked._aside(asked.before_tool, name, given)
        except TripError as trip:
            if on_trip == "raise":
                raise
            return _result(trip.message, is_error=True)
        try:
            result = await send(name, arguments, *args, **kwargs)
        except Exception as error:
            await asked._aside(_tell, asked, name, given, None, error)
            raise
        return await _shown(asked, name, given, result)

    session.call_tool = call_tool  # type: ignore[attr-defined]
    return session


async def _shown(run: Run, name: str, given: Any, result: Any) -> Any:
    """The result, after the run has seen it, with what the run has to say to the model."""
    said = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    content = said.get("content")
    if content is None:
        # The server asks for something first: the call is not over.
        return result
    nudge = await run._aside(_tell, run, name, given, said.get("structuredContent") or content, content if said.get("isError") else None)
    return result.model_copy(update={"content": [*result.content, *_result(nudge).content]}) if nudge else result


def _tell(run: Run, name: str, given: Any, result: Any, error: Any) -> Optional[str]:
    return run.after_tool(name, given, result, error=error)


def _result(text: str, is_error: bool = False) -> Any:
    from mcp.types import CallToolResult

    return CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": is_error})
