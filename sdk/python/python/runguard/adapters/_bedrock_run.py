"""The run behind a Bedrock session: which one it is, what a turn of it remembers, and what it is told by a stream."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple
from weakref import WeakKeyDictionary

from runguard import BudgetTracker, InvalidInputError, Run, ToolExecutionTracker

from ._bedrock_trace import Agent, CallAnnounced, CallObserved, Fact, ModelCalled, TokensUsed, facts, returned_calls

_log = logging.getLogger("runguard.bedrock")

# Questions of one turn that a new one is compared with. A turn with more different ones is not asking in a circle of a few.
_REMEMBERED_QUESTIONS = 64


class Sessions:
    """The run of each session. Beyond `capacity` sessions the one not used for longest is forgotten."""

    def __init__(self, capacity: int = 10_000) -> None:
        if capacity < 1:
            raise InvalidInputError(f"capacity is {capacity}: at least one session must be remembered.")
        self._capacity = capacity
        self._lock = threading.Lock()
        self._runs: "OrderedDict[Tuple[str, str], Tuple[Run, Dict[str, Any]]]" = OrderedDict()

    def run(self, session_id: str, agent_id: str = "", **options: Any) -> Run:
        """The run of a session; the first call makes it. Later calls may leave the options out, but not change a limit."""
        key = (agent_id, session_id)
        with self._lock:
            known = self._runs.get(key)
            if known is None:
                if not {"max_usd", "max_tokens", "budget", "url"} & options.keys():
                    # A budget without a limit, so that what was spent can be read.
                    options = {**options, "budget": BudgetTracker()}
                known = self._runs[key] = (Run(session_id, **options), options)
                while len(self._runs) > self._capacity:
                    self._runs.popitem(last=False)
                return known[0]
            self._runs.move_to_end(key)
        run, first = known
        changed = [name for name, value in options.items() if isinstance(value, (int, float, str)) and first.get(name) != value]
        if changed:
            raise InvalidInputError(
                f"Session {session_id!r} began with other options ({', '.join(sorted(changed))}). "
                "Give every call of a session the same ones, or pass run= and keep the Run yourself."
            )
        return run

    def forget(self, session_id: str, agent_id: str = "") -> None:
        """Lets a session begin anew: budget, loop history and trip are gone. For an operator, not for the agent."""
        with self._lock:
            self._runs.pop((agent_id, session_id), None)


shared_sessions = Sessions()
"""What every guarded call of this process uses that is given none."""


class _Questions:
    """Gives a rephrased question the words it was first asked in, so that near-equal lookups are equal calls."""

    def __init__(self) -> None:
        self._asked: "OrderedDict[Tuple[str, str], ToolExecutionTracker]" = OrderedDict()

    def first_words(self, tool: str, query: str) -> str:
        for (asked_of, words), tracker in self._asked.items():
            if asked_of == tool and tracker.should_skip(tool, {"query": query}) is not None:
                return words
        # The tracker knows what similar means, numbers, negations and dangerous words included; it is told one question each.
        tracker = self._asked[(tool, query)] = ToolExecutionTracker(search_tools=[tool])
        tracker.record(tool, {"query": query})
        if len(self._asked) > _REMEMBERED_QUESTIONS:
            self._asked.popitem(last=False)
        return query


class _Turn:
    """What is remembered during one user turn, which returns of control may spread over several streams."""

    def __init__(self) -> None:
        self.questions = _Questions()
        self.models: Dict[Tuple[Tuple[str, ...], str], str] = {}
        self.counted: Set[Tuple[Tuple[str, ...], str, str]] = set()
        self.reported: Dict[str, Tuple[Tuple[int, int], Tuple[str, ...]]] = {}
        self.open_calls: Dict[Tuple[Tuple[str, ...], str], Tuple[Optional[str], str, Dict[str, Any]]] = {}


_turns: "WeakKeyDictionary[Run, _Turn]" = WeakKeyDictionary()
_turns_lock = threading.Lock()


def _turn_of(run: Run, same_turn: bool) -> _Turn:
    with _turns_lock:
        turn = _turns.get(run)
        if turn is None or not same_turn:
            run.new_turn()
            turn = _turns[run] = _Turn()
        return turn


class Listener:
    """Tells the run what the events of one stream say."""

    def __init__(self, run: Run, *, same_turn: bool, models: Optional[Mapping[str, str]], default_model: Optional[str]) -> None:
        run.check()
        self.run = run
        self.steps = 0
        self.saw_trace = False
        self._turn = _turn_of(run, same_turn)
        self._models = dict(models or {})
        self._default_model = default_model
        self._handed_out: List[Tuple[str, str, Dict[str, Any]]] = []

    def hear(self, event: Mapping[str, Any]) -> None:
        """Raises the trip when this event is the one too many."""
        if "trace" in event:
            self.saw_trace = True
            for fact in facts(event["trace"]):
                self._take(fact)
        if "returnControl" in event:
            self._hand_out(event["returnControl"])

    def _take(self, fact: Fact) -> None:
        if isinstance(fact, ModelCalled):
            if fact.model:
                for trace_id in (fact.trace_id, ""):
                    self._turn.models[(fact.agent.chain, trace_id)] = fact.model
            self.run._model_asked()
        elif isinstance(fact, TokensUsed):
            self._pay(fact)
        elif isinstance(fact, CallAnnounced):
            self._announce(fact)
        else:
            self._observe(fact)

    def _pay(self, used: TokensUsed) -> None:
        turn, key = self._turn, (used.agent.chain, used.trace_id, used.part)
        if used.trace_id and key in turn.counted:
            return
        turn.counted.add(key)
        tokens, payer = (used.input_tokens, used.output_tokens), used.agent.chain
        if used.sums_up is not None:
            # Only what the collaborator's own steps did not report, at the price of its model.
            before, payer = turn.reported.pop(used.sums_up, ((0, 0), payer))
            tokens = (max(0, tokens[0] - before[0]), max(0, tokens[1] - before[1]))
        elif used.agent.collaborator:
            before, _ = turn.reported.get(used.agent.collaborator, ((0, 0), payer))
            turn.reported[used.agent.collaborator] = ((before[0] + tokens[0], before[1] + tokens[1]), payer)
        named = turn.models.get((payer, used.trace_id)) or turn.models.get((payer, "")) or self._default_model
        model = self._models.get(named, named) if named else "a model the trace does not name"
        self.run.record_usage(model, input_tokens=tokens[0], output_tokens=tokens[1])

    def _announce(self, call: CallAnnounced) -> None:
        self.steps += 1
        turn, args = self._turn, call.args
        if call.query is not None:
            args = {"query": turn.questions.first_words(call.tool, call.query)}
        if call.collaborator is not None:
            turn.reported.pop(call.collaborator, None)
        agent = _history_of(call.agent)
        self.run.before_tool(call.tool, args, agent=agent)
        turn.open_calls[(call.agent.chain, call.trace_id)] = (agent, call.tool, args)
        if call.invocation_id is not None:
            self._handed_out.append((call.invocation_id, call.tool, args))

    def _observe(self, seen: CallObserved) -> None:
        opened = self._turn.open_calls.pop((seen.agent.chain, seen.trace_id), None)
        if opened is not None:
            agent, tool, args = opened
            self.run.after_tool(tool, args, seen.result, error=seen.error, agent=agent)
            # A stall is seen in results. The next model call is on its way by now, so the trip is raised here.
            self.run.check()

    def _hand_out(self, payload: Mapping[str, Any]) -> None:
        """Calls the caller is asked to run. Refusing them here means that they never run."""
        self.run.check()
        for tool, args in returned_calls(payload):
            announced = (str(payload.get("invocationId")), tool, args)
            if announced in self._handed_out:
                self._handed_out.remove(announced)
            else:
                self.steps += 1
                self.run.before_tool(tool, args)

    def end(self) -> None:
        if not self.saw_trace:
            _log.warning("The stream of %s carried no trace, so nothing of it was guarded. Invoke the agent with enableTrace=True.", self.run.run_id)


def _history_of(agent: Agent) -> Optional[str]:
    """The name a collaborator has in the run; None is the run itself."""
    if not agent.is_collaborator:
        return None
    return agent.collaborator or "\n".join(agent.chain[1:])
