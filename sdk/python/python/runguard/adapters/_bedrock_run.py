"""The run behind a Bedrock session: which one it is, what a turn of it remembers, and what it is told by a stream."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping, Optional, Tuple
from weakref import WeakKeyDictionary

from runguard import BudgetTracker, InvalidInputError, Run, _core

_log = logging.getLogger("runguard.bedrock")


@dataclass(frozen=True)
class Attempts:
    """After how many attempts in vain a run is stopped. 0 turns a rule off; what is left out is as `preset` says, or as it goes with the run."""

    same_lookups: Optional[int] = None
    """Lookups about the same thing in one knowledge base, all but the first of which brought nothing new."""
    barren_lookups: Optional[int] = None
    """Lookups in a row in one knowledge base that brought nothing new, whatever they asked."""
    same_errors: Optional[int] = None
    """Actions in a row that failed with the same error, whatever their parameters."""
    failing_rounds: Optional[int] = None
    """Rounds of looking up and failing as before, after which another lookup is one too many."""


def with_preset(options: Mapping[str, Any], preset: Optional[str], attempts: Optional[Attempts]) -> Tuple[Dict[str, Any], Optional[Attempts]]:
    """The options of a run, with those of a kind of agent for what is not given; and its thresholds."""
    given = {name: value for name, value in options.items() if value is not None}
    if preset is None:
        return given, attempts
    usual = json.loads(_core.bedrock_preset(preset, list(given), _as_json(attempts)))
    own = Attempts(**usual.pop("attempts"))
    return {**usual, **given}, own


def _as_json(attempts: Optional[Attempts]) -> str:
    return "{}" if attempts is None else json.dumps(asdict(attempts))


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


_turns: "WeakKeyDictionary[Run, _core.BedrockTurn]" = WeakKeyDictionary()
_turns_lock = threading.Lock()


def _turn_of(run: Run, same_turn: bool, attempts: Optional[Attempts]) -> _core.BedrockTurn:
    """What is remembered during one user turn, which returns of control may spread over several streams."""
    with _turns_lock:
        turn = _turns.get(run)
        if turn is None or not same_turn:
            fresh = _core.BedrockTurn(run._run, _as_json(attempts))
            run.new_turn()
            turn = _turns[run] = fresh
        return turn


# What of an event, or of the state that is sent with results of returned calls, says something.
_SAID = ("trace", "returnControl", "invocationId", "returnControlInvocationResults")


class Listener:
    """Tells the run what the events of one stream say. What they say is read by the core; here it is carried out."""

    def __init__(
        self,
        run: Run,
        *,
        same_turn: bool,
        models: Optional[Mapping[str, str]] = None,
        default_model: Optional[str] = None,
        attempts: Optional[Attempts] = None,
    ) -> None:
        run.check()
        self.run = run
        self.steps = 0
        self.saw_trace = False
        self._turn = _turn_of(run, same_turn, attempts)
        self._models = dict(models or {})
        self._default_model = default_model

    def hear(self, event: Mapping[str, Any]) -> None:
        """Raises the trip when this event is the one too many."""
        told = {name: event[name] for name in _SAID if name in event}
        if not told:
            return
        self.saw_trace = self.saw_trace or "trace" in told
        # Calls that are handed out to be made: refusing them here means that they are never made.
        self.run.check()
        # Times and bytes are of no interest here, and half a character is no UTF-8.
        text = json.dumps(told, default=str, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
        for step in json.loads(self._turn.hear(text)):
            self._carry_out(step)

    def _carry_out(self, step: Dict[str, Any]) -> None:
        kind = step.pop("step")
        if kind == "model":
            self.run._model_asked()
        elif kind == "usage":
            named = step["model"] or self._default_model
            model = self._models.get(named, named) if named else "a model the trace does not name (default_model= says which)"
            self.run.record_usage(model, input_tokens=step["input_tokens"], output_tokens=step["output_tokens"])
        elif kind == "before":
            self.steps += 1
            self.run.before_tool(step["tool"], step["args"], agent=step["agent"])
        elif kind == "after":
            self.run.after_tool(step["tool"], step["args"], step["result"], error=step["error"], agent=step["agent"])
            # A stall is seen in results. The next model call is on its way by now, so the trip is raised here.
            self.run.check()
        else:
            self.run._stop_loop(step["cycle"], step["repeats"], step["message"])

    def end(self) -> None:
        if not self.saw_trace:
            _log.warning("The stream of %s carried no trace, so nothing of it was guarded. Invoke the agent with enableTrace=True.", self.run.run_id)
