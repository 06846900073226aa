"""Guards LangChain 1.x agents (`create_agent`) and bare LangGraph graphs.

    from langchain.agents import create_agent
    from runguard import Run
    from runguard.adapters.langchain import RunGuardMiddleware

    agent = create_agent(model, tools, middleware=[RunGuardMiddleware(lambda: Run(repeats=3, max_usd=1.00))])

Every invocation of the agent has a run of its own, which the function makes; without one it is the run around it (`guard(…)`), or a plain
`Run()`. A `Run` given instead is one for all invocations: call its `new_turn()` when the user says something new. Agents that a tool
starts belong to the run of the agent that called the tool.

A refused tool call raises the `TripError` out of `invoke` or `stream`. With `on_trip="end"` the run ends cleanly instead: the last
message is the guard's. Answering the model with a tool message alone would not stop it, and `Command(goto=END)` out of a tool does
not either; both were tried.

A graph of your own, or a chain, takes `RunGuardCallbacks` in its config, with nothing changed in it:
`graph.invoke(state, {"callbacks": [RunGuardCallbacks(lambda: Run(repeats=3, max_usd=1.00))]})`. It needs only `langchain-core`. Use one of
the two for the same run, or each call counts twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._langchain_callbacks import RunGuardCallbacks

if TYPE_CHECKING:
    from ._langchain_middleware import RunGuardMiddleware

__all__ = ["RunGuardCallbacks", "RunGuardMiddleware"]


def __getattr__(name: str) -> Any:
    # Graphs are guarded without `langchain` being there.
    if name == "RunGuardMiddleware":
        from ._langchain_middleware import RunGuardMiddleware

        return RunGuardMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
