"""The detectors when a RunGuard service keeps the counts: many processes then share one run, one budget, one circuit."""

from __future__ import annotations

import json
import logging
import math
import uuid
from typing import Any, Callable, Dict, Optional, Union

from . import _core
from .client import Answer, Client
from .detectors import BudgetTracker, CircuitBreaker, Dollars, LoopDetector, StallDetector, ToolExecutionTracker
from .errors import BudgetExceededError, CircuitOpenError, InvalidInputError, LoopDetectedError, ServiceError, UnknownModelError

logger = logging.getLogger("runguard.service")

# Ids the service takes are at most this long.
_LONGEST_ID = 256


class Service:
    """A client, and what to do when it gets no answer."""

    def __init__(self, url: str, api_key: Optional[str], timeout: float, fail_open: bool) -> None:
        self.client = Client(url, api_key, timeout=timeout)
        self.fail_open = fail_open

    def ask(self, question: Callable[[Client], Answer]) -> Optional[Answer]:
        """The answer; None when there is none and calls may pass then."""
        try:
            return question(self.client)
        except ServiceError as error:
            if not self.fail_open:
                raise
            logger.warning("the call passes unasked: %s", error)
            return None


def short_id(name: str) -> str:
    """A name the service takes: a long one is cut, and told apart by its fingerprint."""
    return name if len(name) <= _LONGEST_ID else f"{name[:200]}({_core.fingerprint(name)})"


def new_id() -> str:
    return f"py-{uuid.uuid4()}"


class RemoteLoopDetector(LoopDetector):
    """A `LoopDetector` whose calls are counted by a service. A call that was refused is not counted."""

    def __new__(
        cls,
        repeats: int = 3,
        max_cycle_len: int = 4,
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
        made._thresholds = {"repeats": repeats, "max_cycle_len": max_cycle_len, "max_calls": max_calls}
        # The service counts in whole seconds.
        made._thresholds["window_seconds"] = None if window_seconds is None else math.ceil(window_seconds)
        made._own_id = new_id()
        made._turns = {}
        return made

    _service: Service
    _thresholds: Dict[str, Any]
    _own_id: str
    _turns: Dict[str, int]

    def record(
        self, first: Optional[str] = None, second: Optional[str] = None, *, session_id: Optional[str] = None, tool: Optional[str] = None
    ) -> None:
        found = self._ask(Client.loop, first, second, session_id, tool)
        if found is not None:
            raise found

    def check(
        self, first: Optional[str] = None, second: Optional[str] = None, *, session_id: Optional[str] = None, tool: Optional[str] = None
    ) -> Optional[LoopDetectedError]:
        return self._ask(Client.loop_check, first, second, session_id, tool)

    def reset(self, session_id: Optional[str] = None) -> None:
        """Begins a new history for the session (without an id: for calls without one). What was counted stays in the service's log."""
        session = session_id or self._own_id
        self._turns[session] = self._turns.get(session, 0) + 1

    @property
    def sessions(self) -> int:
        """The service knows; this object counts none."""
        return 0

    def _ask(
        self,
        route: Callable[..., Answer],
        first: Optional[str],
        second: Optional[str],
        session_id: Optional[str],
        tool: Optional[str],
    ) -> Optional[LoopDetectedError]:
        # The native half knows every call shape and refuses what is none.
        super().check(first, second, session_id=session_id, tool=tool)
        given = [name for name in (session_id, first, second, tool) if name is not None]
        session, name = (given[0], given[1]) if len(given) == 2 else (self._own_id, given[0])
        turn = self._turns.get(session, 0)
        session = short_id(f"{session}#{turn}" if turn else session)
        answer = self._service.ask(lambda client: route(client, session, short_id(name), **self._thresholds))
        if answer is None or answer.get("allow", True):
            return None
        cycle = answer.get("pattern") or [name]
        repeats = answer.get("repeats") or answer.get("calls_in_window") or 0
        return LoopDetectedError(answer["message"], cycle=tuple(cycle), repeats=int(repeats), reason=answer.get("reason"))


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
        made._own_id = new_id()
        return made

    _service: Service
    _own_id: str

    def observe(
        self,
        tool: str,
        args: Any = None,
        result: Any = None,
        *,
        error: Any = None,
        round: Optional[int] = None,
        session_id: str = "",
    ) -> _core.Verdict:
        if not tool:
            raise InvalidInputError("tool is empty: all calls without a name would count as one.")
        if error is True:
            result, error = None, result
        return self._ask(
            session_id,
            tool=tool,
            args_hash=None if args is None else _core.fingerprint(args),
            result_hash=None if result is None else _core.result_fingerprint(result),
            error=_error_text(error),
            round=None if round is None else str(round),
        )

    def message(self, text: str, *, session_id: str = "") -> _core.Verdict:
        return self._ask(session_id, message=text)

    def user_message(self, session_id: str = "") -> None:
        self._ask(session_id, new_turn=True)

    def _ask(self, session_id: str, **what: Any) -> _core.Verdict:
        answer = self._service.ask(lambda client: client.stall(short_id(session_id or self._own_id), **what)) or {}
        return _core.Verdict(
            answer.get("rung") or "go_on", answer.get("rule"), answer.get("count") or 0, answer.get("nudge") or "", answer.get("message") or ""
        )


def _error_text(error: Any) -> Optional[str]:
    if error is None or error is False:
        return None
    if isinstance(error, BaseException):
        return f"{type(error).__name__}: {error}"
    return error if isinstance(error, str) else json.dumps(error, default=str)


class RemoteBudgetTracker(BudgetTracker):
    """A `BudgetTracker` whose books are kept by a service, under `session_id`."""

    def __new__(
        cls,
        max_usd: Optional[Dollars] = None,
        max_tokens: Optional[int] = None,
        cap: Optional[int] = None,
        *,
        parent: Optional[BudgetTracker] = None,
        session_id: Optional[str] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: bool = False,
        service: Optional[Service] = None,
    ) -> RemoteBudgetTracker:
        made = _core.BudgetTracker.__new__(cls, max_usd, max_tokens, cap)
        made._service = service or Service(url or "", api_key, timeout, fail_open)
        made._limits = {"max_usd": None if max_usd is None else float(max_usd), "max_tokens": max_tokens, "cap": cap}
        made.session_id = short_id(session_id or new_id())
        if isinstance(parent, RemoteBudgetTracker):
            made._limits["parent"] = parent.session_id
        elif parent is not None:
            raise InvalidInputError("A budget kept by a service cannot draw on one in this process.")
        return made

    _service: Service
    _limits: Dict[str, Any]
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
        # A budget of this process that limits nothing knows every call shape and refuses what is none.
        _NOTHING_LIMITED.record(first, second, usd=usd, session_id=session_id, step_id=step_id)
        dollars = usd if usd is not None else (None if first is None or isinstance(first, str) else first)
        if dollars is not None:
            self._spend(usd=float(dollars))
            return
        self._spend(key=_key(session_id if session_id is not None else first, step_id if step_id is not None else second))

    def record_tokens(self, tokens: int) -> None:
        _NOTHING_LIMITED.record_tokens(tokens)
        self._spend(tokens=tokens)

    def record_usage(
        self,
        model: str,
        input_tokens: Optional[int] = None,
        output_tokens: Optional[int] = None,
        cached_tokens: Optional[int] = None,
        cache_write_tokens: Optional[int] = None,
    ) -> None:
        self._spend(
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            cache_write_tokens=cache_write_tokens,
        )

    def check(self, session_id: Optional[str] = None, step_id: Optional[str] = None) -> Union[int, float]:
        asks_for_calls = session_id is not None or step_id is not None
        books = self._books(key=_key(session_id, step_id) if asks_for_calls or self._limits["cap"] is not None else None)
        names = ("remaining_calls",) if asks_for_calls else ("remaining_usd", "remaining_calls", "remaining_tokens")
        left = [books[name] for name in names if books.get(name) is not None]
        if not left and books.get("reason") == "call_cap_reached":
            return 0
        return left[0] if left else float("inf")

    def reserve(self, usd: Optional[Dollars] = None, *, tokens: Optional[int] = None) -> RemoteReservation:  # type: ignore[override]
        _NOTHING_LIMITED.reserve(usd, tokens=tokens).release()
        amount = {"usd": None if usd is None else float(usd), "tokens": tokens}
        answer = self._ask(lambda client: client.budget_reserve(self.session_id, **amount, **self._limits))
        return RemoteReservation(self, answer.get("reservation_id"), amount)

    def exhausted(self) -> Optional[BudgetExceededError]:
        books = self._books()
        for spent, limit, unit in (("spent_usd", "limit_usd", "usd"), ("spent_tokens", "limit_tokens", "tokens")):
            used, allowed = books.get(spent) or 0, books.get(limit)
            if allowed is not None and used >= allowed:
                return BudgetExceededError(
                    f"The budget of {allowed} {unit} is used up: {used} spent. Stop the run, or start it with a higher limit.",
                    spent=used,
                    limit=allowed,
                    unit=unit,
                )
        return None

    def child(self, max_usd: Optional[Dollars] = None, max_tokens: Optional[int] = None, cap: Optional[int] = None) -> BudgetTracker:
        # The service learns this budget's limits from what is recorded, and a child may record first.
        try:
            self._spend(usd=0.0)
        except BudgetExceededError:
            pass
        return RemoteBudgetTracker(max_usd, max_tokens, cap, parent=self, service=self._service)

    @property
    def spent(self) -> float:
        return float(self._books().get("spent_usd") or 0)

    @property
    def spent_tokens(self) -> int:
        return int(self._books().get("spent_tokens") or 0)

    @property
    def reserved(self) -> float:
        return float(self._books().get("reserved_usd") or 0)

    @property
    def remaining(self) -> Optional[float]:
        left = self._books().get("remaining_usd")
        return None if left is None else float(left)

    @property
    def remaining_tokens(self) -> Optional[int]:
        left = self._books().get("remaining_tokens")
        return None if left is None else int(left)

    def _spend(self, **what: Any) -> None:
        self._ask(lambda client: client.budget_record(self.session_id, **what, **self._limits))

    def _books(self, **what: Any) -> Answer:
        return self._service.ask(lambda client: client.budget_check(self.session_id, **what, **self._limits)) or {}

    def _ask(self, question: Callable[[Client], Answer]) -> Answer:
        answer = self._service.ask(question) or {}
        if answer.get("allow", True):
            return answer
        if answer.get("reason") == "unknown_model":
            raise UnknownModelError(answer["message"], model=str(answer.get("model") or ""))
        raise _exceeded(answer)


class RemoteReservation:
    """An estimate that a service has set aside. As a context manager it is released at the end unless it was committed."""

    def __init__(self, budget: RemoteBudgetTracker, reservation_id: Optional[str], estimate: Dict[str, Any]) -> None:
        self._budget = budget
        self._id = reservation_id
        self._estimate = estimate
        self.open = True

    def commit(self, actual_usd: Optional[Dollars] = None, *, tokens: Optional[int] = None) -> None:
        """Settles with what was really spent; without an amount with the estimate."""
        if not self.open:
            raise InvalidInputError("This reservation was committed or released before. Reserve anew.")
        _NOTHING_LIMITED.reserve(actual_usd, tokens=tokens).release()
        usd = self._estimate["usd"] if actual_usd is None else float(actual_usd)
        used = self._estimate["tokens"] if tokens is None else tokens
        self.open = False
        budget = self._budget
        if self._id is None:
            # The service could not be asked when this was reserved, and calls pass then.
            budget._spend(usd=usd, tokens=used)
            return
        reservation = self._id
        budget._ask(lambda client: client.budget_commit(budget.session_id, reservation, usd=usd, tokens=used, **budget._limits))

    def release(self) -> None:
        """Gives back what was set aside. Releasing twice changes nothing."""
        if not self.open:
            return
        self.open = False
        if self._id is not None:
            reservation, budget = self._id, self._budget
            budget._service.ask(lambda client: client.budget_release(budget.session_id, reservation))

    def __enter__(self) -> RemoteReservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_NOTHING_LIMITED = BudgetTracker()


def _key(session_id: Any, step_id: Any) -> str:
    return short_id("/".join(str(part) for part in (session_id, step_id) if part is not None) or "call")


def _exceeded(answer: Answer) -> BudgetExceededError:
    if answer.get("reason") == "call_cap_reached":
        return BudgetExceededError(
            answer["message"], spent=int(answer.get("calls") or 0), limit=int(answer.get("cap") or 0), unit="calls", reason=answer["reason"]
        )
    spent_tokens, limit_tokens = answer.get("spent_tokens") or 0, answer.get("limit_tokens")
    limit_usd = answer.get("limit_usd")
    if limit_usd is None and limit_tokens is not None:
        return BudgetExceededError(answer["message"], spent=spent_tokens, limit=limit_tokens, unit="tokens", reason=answer.get("reason"))
    return BudgetExceededError(
        answer["message"], spent=float(answer.get("spent_usd") or 0), limit=float(limit_usd or 0), unit="usd", reason=answer.get("reason")
    )


class RemotePermit:
    """A call may run: what the service needs to know its result by."""

    def __init__(self, session_id: str, permit_id: Optional[str], probe: bool) -> None:
        self.session_id = session_id
        self.permit_id = permit_id
        self.probe = probe


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
        made = _core.CircuitBreaker.__new__(cls, name)
        made._service = Service(url or "", api_key, timeout, fail_open)
        return made

    _service: Service

    def check(self) -> RemotePermit:  # type: ignore[override]
        # Each call is a session of its own: the ceiling of retries per session is for conversations.
        session = new_id()
        answer = self._service.ask(lambda client: client.api_circuit_check(self.name, session)) or {}
        if answer.get("allow", True):
            return RemotePermit(session, answer.get("permit_id"), bool(answer.get("probe")))
        after = answer.get("retry_after_seconds")
        raise CircuitOpenError(
            answer["message"], endpoint=self.name, retry_after_seconds=None if after is None else float(after), reason=answer.get("reason")
        )

    def record(self, ok: bool, latency_ms: Optional[float] = None, *, permit: Optional[RemotePermit] = None) -> None:  # type: ignore[override]
        if latency_ms is not None and not 0 <= latency_ms < float("inf"):
            raise InvalidInputError(f"latency_ms is {latency_ms}, but must be a number from 0 up.")
        session, permit_id = (permit.session_id, permit.permit_id) if permit is not None else (new_id(), None)
        self._service.ask(
            lambda client: client.api_circuit_record(
                self.name,
                session,
                "success" if ok else "failure",
                latency_ms=None if latency_ms is None else round(latency_ms),
                permit_id=permit_id,
            )
        )

    @property
    def state(self) -> str:
        answer = self._service.ask(lambda client: client.circuits(endpoint=self.name)) or {}
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
        made._turn = new_id()
        return made

    _service: Service
    _turn: str

    def should_skip(self, tool: str, args: Any = None) -> Optional[_core.Skip]:
        answer = self._service.ask(lambda client: client.tool_call(self._turn, tool, args=_sendable(args))) or {}
        return None if answer.get("allow", True) else _core.Skip(str(answer.get("reason")), str(answer.get("message")))

    def record(self, tool: str, args: Any = None, result: Any = None, error: Any = None) -> None:
        failed = error if isinstance(error, bool) else error is not None or isinstance(result, BaseException)
        self._service.ask(lambda client: client.tool_call_record(self._turn, tool, args=_sendable(args), error=failed))

    def new_turn(self) -> None:
        self._turn = new_id()


def _sendable(args: Any) -> Any:
    return None if args is None else json.loads(_core.plain_json(args))
