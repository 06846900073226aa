"""Nanoseconds per call from Python: RunGuard and its peers from PyPI, in the same process, on the same calls.

    pip install -r benches/requirements.txt    # the peers; one that is missing is named and left out
    python benches/bench.py [--json FILE]

The work is that of an agent run: 64 calls of 16 tools in an order without a loop, then the next run with a fresh detector, so that
no history grows. Each contender is given the calls in the form it takes them; making the detectors is not timed. The best of several
rounds counts, because noise only ever adds. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import runguard

MOST_NANOSECONDS = 400.0
TIMES_FASTER = 3.0
MOST_NANOSECONDS_A_TOOL = 2_000.0
MOST_MILLISECONDS_TO_IMPORT = 15.0
IMPORTS = 15
ROUNDS = 15
RUNS_PER_ROUND = 40


def healthy_run() -> List[str]:
    """64 calls of 16 tools that no detector objects to."""
    dice = random.Random(5)
    tools = [f"tool_{number}" for number in range(16)]
    calls: List[str] = []
    while len(calls) < 64:
        calls += dice.sample(tools, len(tools))
    detector = runguard.LoopDetector()
    for call in calls:
        detector.record(call)
    return calls


CALLS = healthy_run()


class Contender(NamedTuple):
    group: str
    package: str
    what: str
    make: Callable[[], Callable[[], None]]
    """Gives one run, ready to be timed: a function that makes all calls."""


def contenders() -> List[Contender]:
    found = [
        Contender("loop", "runguard", "LoopDetector.record", lambda: each(runguard.LoopDetector().record)),
        Contender("loop", "runguard", "LoopDetector.record, with a session", lambda: with_session(runguard.LoopDetector().record)),
        Contender("budget", "runguard", "BudgetTracker.record", lambda: costs(runguard.BudgetTracker(max_usd=5.0).record)),
        Contender("breaker", "runguard", "CircuitBreaker.check + record", lambda: breaker(runguard.CircuitBreaker())),
        Contender("run", "runguard", "Run.before_tool, with arguments", lambda: with_arguments(runguard.Run().before_tool)),
        Contender("tool", "runguard", "Run.tool, a function that does nothing", tool),
    ]
    for peer in (agentbudget, agentguard47, agentcircuit, agent_circuit_breaker, guardloop):
        try:
            found += peer()
        except ImportError as error:
            print(f"left out: {peer.__name__} ({error})", file=sys.stderr)
    return found


def each(record: Callable[[str], Any]) -> Callable[[], None]:
    def run() -> None:
        for call in CALLS:
            record(call)

    return run


def with_session(record: Callable[[str, str], Any]) -> Callable[[], None]:
    def run() -> None:
        for call in CALLS:
            record("session-1", call)

    return run


def with_arguments(record: Callable[[str, Any], Any]) -> Callable[[], None]:
    arguments = {"query": "how do refunds work", "limit": 5}

    def run() -> None:
        for call in CALLS:
            record(call, arguments)

    return run


def tool() -> Callable[[], None]:
    """Calls of a wrapped function, each with arguments of its own; the function does nothing."""

    def search(query: str, limit: int = 5) -> str:
        return "nothing"

    guarded = runguard.Run().tool(search)

    def run() -> None:
        for call in CALLS:
            guarded(call, limit=5)

    return run


def milliseconds_to_import() -> float:
    """Of processor time, beyond a bare interpreter; the best of several starts."""

    def start(statement: str) -> float:
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-I", "-c", statement], check=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime) * 1_000

    return min(start("import runguard") for _ in range(IMPORTS)) - min(start("pass") for _ in range(IMPORTS))


def costs(record: Callable[[float], Any]) -> Callable[[], None]:
    def run() -> None:
        for _ in CALLS:
            record(0.001)

    return run


def breaker(circuit: runguard.CircuitBreaker) -> Callable[[], None]:
    def run() -> None:
        for _ in CALLS:
            circuit.record(True, permit=circuit.check())

    return run


def agentbudget() -> List[Contender]:
    from agentbudget.circuit_breaker import LoopDetector
    from agentbudget.ledger import Ledger
    from agentbudget.types import CostEvent, CostType

    event = CostEvent(cost=0.001, cost_type=CostType.TOOL)
    return [
        Contender("loop", "agentbudget", "LoopDetector.record_call", lambda: each(LoopDetector().record_call)),
        Contender("budget", "agentbudget", "Ledger.record", lambda: costs_of(Ledger(5.0).record, event)),
    ]


def costs_of(record: Callable[[Any], Any], event: Any) -> Callable[[], None]:
    def run() -> None:
        for _ in CALLS:
            record(event)

    return run


def agentguard47() -> List[Contender]:
    from agentguard.guards import BudgetGuard, LoopGuard

    def budget() -> Callable[[], None]:
        consume = BudgetGuard(max_cost_usd=5.0).consume

        def run() -> None:
            for _ in CALLS:
                consume(cost_usd=0.001)

        return run

    return [
        Contender("loop", "agentguard47", "LoopGuard.check", lambda: each(LoopGuard().check)),
        Contender("budget", "agentguard47", "BudgetGuard.consume", budget),
    ]


def agentcircuit() -> List[Contender]:
    from agentcircuit.budget import GlobalBudget
    from agentcircuit.fuse import Fuse

    def fuse() -> Callable[[], None]:
        made, history = Fuse(limit=10), [""] * 16

        def run() -> None:
            for call in CALLS:
                made.check(history, call)

        return run

    def budget() -> Callable[[], None]:
        made = GlobalBudget(max_cost_usd=5.0)

        def run() -> None:
            for _ in CALLS:
                made.record_cost(0.001)
                made.check_cost()

        return run

    return [
        Contender("loop", "agentcircuit", "Fuse.check", fuse),
        Contender("budget", "agentcircuit", "GlobalBudget.record_cost + check_cost", budget),
    ]


def agent_circuit_breaker() -> List[Contender]:
    from agent_circuit_breaker.core.context import AgentContext
    from agent_circuit_breaker.guards.loops import SequenceBreakerGuard
    from agent_circuit_breaker.state.manager import StateManager

    contexts = [AgentContext(request_id="r", agent_id="a", tool_name=call, tool_args={}) for call in CALLS]

    def sequence() -> Callable[[], None]:
        guard = SequenceBreakerGuard(StateManager())

        async def all_calls() -> None:
            for context in contexts:
                await guard.evaluate(context)

        def run() -> None:
            # Its store never waits, so the coroutine runs through without a loop, which would only slow it.
            try:
                all_calls().send(None)
            except StopIteration:
                return
            raise RuntimeError("the coroutine waits")

        return run

    return [Contender("loop", "agent-circuit-breaker", "SequenceBreakerGuard.evaluate", sequence)]


def guardloop() -> List[Contender]:
    from guardloop.circuit_breaker import CircuitBreakerRegistry

    def registry() -> Callable[[], None]:
        made = CircuitBreakerRegistry()

        def run() -> None:
            for _ in CALLS:
                made.before_call("api")
                made.record_success("api")

        return run

    return [Contender("breaker", "guardloop", "CircuitBreakerRegistry.before_call + record_success", registry)]


def nanoseconds(contender: Contender) -> float:
    """Per call, the best round. Processor time: what else the machine does is not in it."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(ROUNDS):
            runs = [contender.make() for _ in range(RUNS_PER_ROUND)]
            started = time.thread_time_ns()
            for run in runs:
                run()
            best = min(best, (time.thread_time_ns() - started) / (RUNS_PER_ROUND * len(CALLS)))
    finally:
        gc.enable()
    return best


def main() -> int:
    options = argparse.ArgumentParser(description="Nanoseconds per call from Python.")
    options.add_argument("--json", metavar="FILE", help="also write the figures there")
    file: Optional[str] = options.parse_args().json

    measured = [(contender, nanoseconds(contender)) for contender in contenders()]
    ours: Dict[str, float] = {}
    for contender, spent in measured:
        if contender.package == "runguard":
            ours.setdefault(contender.group, spent)

    print(f"{'':8} {'package':22} {'call':52} {'ns':>8}  {'× RunGuard':>10}")
    for contender, spent in sorted(measured, key=lambda entry: (list(ours).index(entry[0].group), entry[1])):
        print(f"{contender.group:8} {contender.package:22} {contender.what:52} {spent:8.0f}  {spent / ours[contender.group]:10.1f}")

    record, to_import = ours["loop"], milliseconds_to_import()
    peers = [spent for contender, spent in measured if contender.group == "loop" and contender.package != "runguard"]
    bars = [(f"LoopDetector.record from Python: {record:.0f} ns, at most {MOST_NANOSECONDS:.0f}", record <= MOST_NANOSECONDS)]
    bars.append((f"Run.tool: {ours['tool']:.0f} ns, at most {MOST_NANOSECONDS_A_TOOL:.0f}", ours["tool"] <= MOST_NANOSECONDS_A_TOOL))
    bars.append((f"import runguard: {to_import:.1f} ms, at most {MOST_MILLISECONDS_TO_IMPORT:.0f}", to_import <= MOST_MILLISECONDS_TO_IMPORT))
    if peers:
        factor = min(peers) / record
        bars.append((f"faster than the fastest pure-Python loop detector: {factor:.1f} times, at least {TIMES_FASTER:.0f}", factor >= TIMES_FASTER))
    else:
        bars.append(("no peer is installed to compare with: pip install -r benches/requirements.txt", False))
    print()
    for text, is_met in bars:
        print(f"{'PASS' if is_met else 'MISS'}  {text}")
    if file is not None:
        figures = [{"group": c.group, "package": c.package, "call": c.what, "ns": round(spent, 1)} for c, spent in measured]
        with open(file, "w", encoding="utf-8") as out:
            json.dump({"figures": figures, "met": all(is_met for _, is_met in bars)}, out, indent=2)
    return 0 if all(is_met for _, is_met in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
