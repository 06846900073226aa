"""The detectors when a RunGuard service keeps the counts: many processes then share one run, one budget, one circuit."""

from __future__ import annotations

import copy
import json
import logging
import uuid
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Union

from . import _core
from .client import Client
from .detectors import BudgetTracker, CircuitBreaker, LoopDetector, StallDetector, ToolExecutionTracker
from .errors import BudgetExceededError, InvalidInputError, LoopDetectedError, ServiceError

if TYPE_CHECKING:
    from .detectors import Dollars, Scope

logger = logging.getLogger("runguard.service")


class Service:
    """A client, and what to do when it gets no answer."""

    # By address: parts of many runs ask the same service, and one that cannot be reached is left alone for a moment by all of them.
    _rests: Dict[str, _core.Rest] = {}
    _why: Dict[str, ServiceError] = {}

    def __init__(self, url: str, api_key: Optional[str], timeout: float, fail_open: bool) -> None:
        self.client = Client(url, api_key, timeout=timeout)
        self.fail_open = fail_open
        self._rest = self._rests.setdefault(self.client.url, _core.Rest())

    def tell(self, question: _core.Question) -> Any:
        """Asks what the native half wants to know, and gives what it makes of the answer."""
        answer, away = self._ask(question)
        if away is None:
            return question.told(answer)
        return question.told(None, away)

    def _ask(self, question: _core.Question) -> tuple[str, Optional[ServiceError]]:
        url = self.client.url
        resting = self._why.get(url) if self._rest.lasts() else None
        if resting is not None:
            return "", copy.copy(resting)
        answer, away = self.client.exchange("POST", question.path, question.body)
        if away is not None:
            logger.warning("%s %s", away, "Calls pass, and this process looks for loops itself." if self.fail_open else "Nothing passes meanwhile.")
        if away is not None and away.status is None:
            self._rest.failed()
            self._why[url] = copy.copy(away)
        elif self._why.pop(url, None) is not None:
            self._rest.answered()
            logger.info("the service at %s answers again", url)
        return answer, away

    def settle(self, question: _core.Question) -> Any:
        """Asks until nothing is left to ask."""
        step: Any = question
        while isinstance(step, _core.Question):
            step = self.tell(step)
        return step


def new_id() -> str:
    return f"py-{uuid.uuid4()}"


class RemoteLoopDetector(LoopDetector):
    """A `LoopDetector` whose calls are counted by a service. A call that was refused is not counted."""

    def __new__(
        cls,
        repeats: Optional[int] = None,
        max_cycle_len: Optional[int] = None,
        window_seconds: Optional[float] = None,
        max_calls: Optional[int] = None,
        *,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = True,
    ) -> RemoteLoopDetector:
        # The native half checks the settings.
        made = _core.LoopDetector.__new__(cls, repeats, max_cycle_len, window_seconds, max_calls)
        made._service = Service(url or "", api_key, timeout, fail_open)
        made._kept = _core.ServiceLoops(new_id(), repeats, max_cycle_len, window_seconds, max_calls, fail_open)
        return made

    _service: Service
    _kept: _core.ServiceLoops

    def record(
        self, first: Optional[str] = None, second: Optional[str] = None, *, session_id: Optional[str] = None, tool: Optional[str] = None
    ) -> None:
        self._service.settle(self._kept.record(first, second, session_id, tool))

    def check(
        self, first: Optional[str] = None, second: Optional[str] = None, *, session_id: Optional[str] = None, tool: Optional[str] = None
    ) -> Optional[LoopDetectedError]:
        try:
            self._service.settle(self._kept.check(first, second, session_id, tool))
        except LoopDetectedError as found:
            return found
        return None

    def reset(self, session_id: Optional[str] = None) -> None:
        """Begins a new history for the session (without an id: for calls without one). What was counted stays in the service's log."""
        self._kept.reset(session_id)

    @property
    def sessions(self) -> int:
        """The service knows; this object counts none."""
        return 0


class RemoteStallDetector(StallDetector):
    """A `StallDetector` whose history is kept by a service, with the service's thresholds. Results leave this process as hashes."""

    def __new__(
        cls,
        preset: str = "coding",
        *,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = True,
        **thresholds: Any,
    ) -> RemoteStallDetector:
        if thresholds:
            raise InvalidInputError(f"With a url the service's thresholds hold; {', '.join(sorted(thresholds))} is set there.")
        made = _core.StallDetector.__new__(cls, preset)
        made._service = Service(url or "", api_key, timeout, fail_open)
        made._kept = _core.ServiceStalls(fail_open)
        made._own_id = new_id()
        return made

    _service: Service
    _kept: _core.ServiceStalls
    _own_id: str

    def observe(
        self,
        tool: str,
        args: Any = None,
        result: Any = None,
        *,
        error: Any = None,
        round: Optional[int] = None,
        tokens: int = 0,
        session_id: str = "",
    ) -> _core.Verdict:
        return self._verdict(self._kept.observe(session_id or self._own_id, tool, args, result, error, round, tokens))

    def message(self, text: str, *, session_id: str = "") -> _core.Verdict:
        return self._verdict(self._kept.message(session_id or self._own_id, text))

    def user_message(self, session_id: str = "") -> None:
        self._verdict(self._kept.user_message(session_id or self._own_id))

    def _verdict(self, question: _core.Question) -> _core.Verdict:
        verdict: _core.Verdict = self._service.settle(question)
        return verdict


class RemoteBudgetTracker(BudgetTracker):
    """A `BudgetTracker` whose books are kept by a service, under `session_id`."""

    def __new__(
        cls,
        max_usd: Optional[Dollars] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        *,
        parent: Optional[BudgetTracker] = None,
        scopes: Optional[Sequence[Scope]] = None,
        session_id: Optional[str] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = False,
        service: Optional[Service] = None,
    ) -> RemoteBudgetTracker:
        if parent is not None and not isinstance(parent, RemoteBudgetTracker):
            raise InvalidInputError("A budget kept by a service cannot draw on one in this process.")
        made = _core.BudgetTracker.__new__(cls, max_usd, max_tokens, cap)
        made._service = service or Service(url or "", api_key, timeout, fail_open)
        above = None if parent is None else parent._kept
        named = None if not scopes else json.dumps([dict(scope) for scope in scopes], default=float)
        made._kept = _core.ServiceBudget(session_id or new_id(), max_usd, max_tokens, cap, made._service.fail_open, above, named)
        made.session_id = made._kept.session_id
        return made

    _service: Service
    _kept: _core.ServiceBudget
    session_id: str

    def record(
        self,
        first: Union[Dollars, str, None] = None,
        second: Optional[str] = None,
        *,
        usd: Optional[Dollars] = None,
        session_id: Optional[str] = None,
        step_id: Optional[str] = None,
    ) -> None:
        self._service.settle(self._kept.record(first, second, usd, session_id, step_id))

    def record_tokens(self, tokens: int) -> None:
        self._service.settle(self._kept.record_tokens(tokens))

    def record_usage(
        self,
        model: str,
        input_tokens: Optional[int] = None,
        output_tokens: Optional[int] = None,
        cached_tokens: Optional[int] = None,
        cache_write_tokens: Optional[int] = None,
        cache_write_1h_tokens: Optional[int] = None,
        audio_input_tokens: Optional[int] = None,
        audio_output_tokens: Optional[int] = None,
        service_tier: Optional[str] = None,
    ) -> None:
        written, sound = (cache_write_tokens, cache_write_1h_tokens), (audio_input_tokens, audio_output_tokens)
        self._service.settle(self._kept.record_usage(model, input_tokens, output_tokens, cached_tokens, *written, *sound, service_tier))

    def check(self, session_id: Optional[str] = None, step_id: Optional[str] = None) -> Union[int, float]:
        left: Union[int, float] = self._books(session_id, step_id)["left"]
        return left

    def reserve(self, usd: Optional[Dollars] = None, *, tokens: Optional[int] = None) -> RemoteReservation:  # type: ignore[override]
        return RemoteReservation(self, self._service.settle(self._kept.reserve(usd, tokens)), usd, tokens)

    def exhausted(self) -> Optional[BudgetExceededError]:
        try:
            self._service.settle(self._kept.exhausted())
        except BudgetExceededError as error:
            return error
        return None

    def child(
        self,
        max_usd: Optional[Dollars] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        *,
        scopes: Optional[Sequence[Scope]] = None,
    ) -> BudgetTracker:
        return RemoteBudgetTracker(max_usd, max_tokens, cap, parent=self, scopes=scopes, service=self._service)

    def _child_of_run(
        self, run_id: str, max_usd: Optional[Dollars], max_tokens: Optional[int], scopes: Optional[Sequence[Scope]]
    ) -> BudgetTracker:
        return RemoteBudgetTracker(max_usd, max_tokens, parent=self, scopes=scopes, session_id=run_id, service=self._service)

    @property
    def spent(self) -> float:
        return float(self._books()["spent"])

    @property
    def spent_tokens(self) -> int:
        return int(self._books()["spent_tokens"])

    @property
    def reserved(self) -> float:
        return float(self._books()["reserved"])

    @property
    def remaining(self) -> Optional[float]:
        left: Optional[float] = self._books()["remaining"]
        return left

    @property
    def remaining_tokens(self) -> Optional[int]:
        left: Optional[int] = self._books()["remaining_tokens"]
        return left

    def _books(self, session_id: Optional[str] = None, step_id: Optional[str] = None) -> Dict[str, Any]:
        books: Dict[str, Any] = self._service.settle(self._kept.books(session_id, step_id))
        return books


class RemoteReservation:
    """An estimate that a service has set aside. As a context manager it is released at the end unless it was committed."""

    def __init__(self, budget: RemoteBudgetTracker, reservation_id: Optional[str], usd: Optional[Dollars], tokens: Optional[int]) -> None:
        self._budget = budget
        self._id = reservation_id
        self._estimate = (usd, tokens)
        self.open = True

    def commit(self, actual_usd: Optional[Dollars] = None, *, tokens: Optional[int] = None) -> None:
        """Settles with what was really spent; without an amount with the estimate."""
        if not self.open:
            raise InvalidInputError(_core.RESERVATION_ENDED)
        question = self._budget._kept.commit(self._id, actual_usd, tokens, *self._estimate)
        self.open = False
        self._budget._service.settle(question)

    def release(self) -> None:
        """Gives back what was set aside. Releasing twice changes nothing."""
        if not self.open:
            return
        self.open = False
        if self._id is not None:
            self._budget._service.settle(self._budget._kept.release(self._id))

    def __enter__(self) -> RemoteReservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


RemotePermit = _core.RemotePermit


class RemoteCircuitBreaker(CircuitBreaker):
    """A `CircuitBreaker` that all who use the same name share, with the service's thresholds."""

    def __new__(
        cls,
        name: str = "default",
        *,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = True,
        **_: Any,
    ) -> RemoteCircuitBreaker:
        kept = _core.ServiceCircuit(name, fail_open)
        made = _core.CircuitBreaker.__new__(cls, kept.name)
        made._service = Service(url or "", api_key, timeout, fail_open)
        made._kept = kept
        return made

    _service: Service
    _kept: _core.ServiceCircuit

    def check(self) -> RemotePermit:  # type: ignore[override]
        permit: RemotePermit = self._service.settle(self._kept.check(new_id()))
        return permit

    def record(self, ok: bool, latency_ms: Optional[float] = None, *, permit: Optional[RemotePermit] = None) -> None:  # type: ignore[override]
        self._service.settle(self._kept.record(new_id(), ok, latency_ms, permit))

    @property
    def state(self) -> str:
        answer = self._service.client.circuits(endpoint=self.name)
        phases = [circuit["phase"] for circuit in answer.get("circuits", ()) if circuit.get("endpoint_key") == self.name]
        return str(phases[0]) if phases else "closed"

    def force_open(self) -> None:
        self._service.client.open_circuit(self.name)

    def force_close(self) -> None:
        self._service.client.close_circuit(self.name)

    def reset(self) -> None:
        self._service.client.reset_circuit(self.name)


class RemoteToolExecutionTracker(ToolExecutionTracker):
    """A `ToolExecutionTracker` whose turn is kept by a service, with the service's limits."""

    def __new__(
        cls,
        *_: Any,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = True,
        **__: Any,
    ) -> RemoteToolExecutionTracker:
        made = _core.ToolExecutionTracker.__new__(cls)
        made._service = Service(url or "", api_key, timeout, fail_open)
        made._kept = _core.ServiceTools(fail_open)
        made._turn = new_id()
        return made

    _service: Service
    _kept: _core.ServiceTools
    _turn: str

    def should_skip(self, tool: str, args: Any = None) -> Optional[_core.Skip]:
        skip: Optional[_core.Skip] = self._service.settle(self._kept.should_skip(self._turn, tool, args))
        return skip

    def record(self, tool: str, args: Any = None, result: Any = None, error: Any = None) -> None:
        self._service.settle(self._kept.record(self._turn, tool, args, result, error))

    def new_turn(self) -> None:
        self._turn = new_id()
