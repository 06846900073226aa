"""`Run`: everything that watches one agent run, behind the few questions an agent loop asks."""

from __future__ import annotations

import contextvars
import copy
import functools
import sys
import time
import weakref
from _thread import get_ident
from collections import deque, namedtuple

from . import _core
from ._typing import cast, overload
from .detectors import BudgetTracker, LoopDetector, StallDetector, ToolExecutionTracker, alerts_of
from .errors import BudgetExceededError, InvalidInputError, LoopDetectedError, TripError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, TypedDict, TypeVar, Union

    from .alerts import Alerts, AlertsLike
    from .detectors import Scope
    from .tool_rules import ToolRule

    Function = TypeVar("Function", bound=Callable[..., Any])

    class RunOptions(TypedDict, total=False):
        """What `Run` takes, for `guard(…)`."""

        run_id: Optional[str]
        repeats: Optional[int]
        max_cycle_len: Optional[int]
        max_tool_calls: Optional[int]
        max_model_calls: Optional[int]
        max_usd: Optional[float]
        max_tokens: Optional[int]
        max_seconds: Optional[float]
        budget: Optional[BudgetTracker]
        scopes: Optional[Sequence[Scope]]
        prices: Optional[Mapping[str, Any]]
        unknown_model: Optional[Union[str, Mapping[str, Any]]]
        warn_at: Optional[float]
        on_warning: Optional[Callable[[BudgetWarning], Any]]
        fallback_model: Optional[str]
        tools: Optional[Mapping[str, ToolRule]]
        loop: Optional[LoopDetector]
        stall: Optional[Union[StallDetector, str]]
        alerts: Optional[AlertsLike]
        url: Optional[str]
        api_key: Optional[str]
        timeout: float
        fail_open: Optional[bool]

# The highest limit of a tool that there is.
_NO_LIMIT = 1000


def _log() -> logging.Logger:
    import logging

    return logging.getLogger("runguard")


class Run:
    """Watches one agent run. Once it has tripped it stays tripped: every later question raises the same trip at once."""

    def __init__(
        self,
        run_id: Optional[str] = None,
        *,
        repeats: Optional[int] = None,
        max_cycle_len: Optional[int] = None,
        max_tool_calls: Optional[int] = None,
        max_model_calls: Optional[int] = None,
        max_usd: Optional[float] = None,
        max_tokens: Optional[int] = None,
        max_seconds: Optional[float] = None,
        budget: Optional[BudgetTracker] = None,
        scopes: Optional[Sequence[Scope]] = None,
        prices: Optional[Mapping[str, Any]] = None,
        unknown_model: Optional[Union[str, Mapping[str, Any]]] = None,
        warn_at: Optional[float] = None,
        on_warning: Optional[Callable[[BudgetWarning], Any]] = None,
        fallback_model: Optional[str] = None,
        tools: Optional[Mapping[str, ToolRule]] = None,
        loop: Optional[LoopDetector] = None,
        stall: Optional[Union[StallDetector, str]] = None,
        alerts: Optional[AlertsLike] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = 2.0,
        fail_open: Optional[bool] = None,
    ) -> None:
        if run_id is not None and (not isinstance(run_id, str) or not run_id):
            raise InvalidInputError("run_id must be a string that is not empty; leave it out to get a new one.")
        self.run_id: str = run_id if run_id is not None else _new_id()
        self.max_tool_calls = _ceiling("max_tool_calls", max_tool_calls)
        self.max_model_calls = _ceiling("max_model_calls", max_model_calls)
        reached: Dict[str, Any] = {"url": url, "api_key": api_key, "timeout": timeout}
        if fail_open is not None:
            reached["fail_open"] = fail_open
        self.loop: LoopDetector = loop if loop is not None else LoopDetector(repeats, max_cycle_len, **reached)
        self.budget: Optional[BudgetTracker] = _budget(self.run_id, budget, max_usd, max_tokens, scopes, prices, unknown_model, reached)
        self.stall: Optional[StallDetector] = StallDetector(stall, **reached) if isinstance(stall, str) else stall
        self.alerts: Optional[Alerts] = alerts_of(alerts)
        # What decides. A part that a service keeps stands in it with its questions.
        self._run = _core.Run(
            self.run_id, self.max_tool_calls, self.max_model_calls, max_seconds, _kept(self.loop), _kept(self.stall), _kept(self.budget), _rules(tools),
            *_warning(warn_at, on_warning, fallback_model),
        )
        self._on_warning = on_warning
        # For adapters that tell the model what it has already (`on_repeat="tell"`).
        self._repeated: Optional[ToolExecutionTracker] = None
        # The adapter that made it for an invocation.
        self._made_by: Any = None
        # The agent itself tells of its model calls. Then hooked clients do not.
        self._is_told = False
        # It was opened around a whole program: what one library in it tells says nothing of the others.
        self._is_of_program = False
        # What hooked clients have told last, so that a caller who tells it too is not counted twice.
        self._hooked: Deque[tuple[int, ...]] = deque(maxlen=64)
        self._asks_service = any(hasattr(part, "_service") for part in (self.loop, self.stall, self.budget))
        # Model calls that are under way, by who began them.
        self._under_way: Dict[int, Any] = {}
        # Those among them that an adapter tells of. The client below it may be hooked: then each is one of the hooked calls.
        self._announced: weakref.WeakValueDictionary[int, ModelCall] = weakref.WeakValueDictionary()
        # The trip as it was first raised. Changed in one step that the interpreter cannot divide, so it needs no lock.
        self._state: Dict[str, TripError] = {}

    # What an agent loop asks.

    def before_tool(self, tool: str, args: Any = None, *, agent: Optional[str] = None) -> None:
        """Counts the call. Raises a `TripError` when the tool must not run.

        `agent` is one of several in the run: each has a history of its own, so that the steps of one do not hide another's loop.
        """
        step = self._run.before_tool(tool, args, agent)
        if step is not None:
            self._heed(step)

    def after_tool(self, tool: str, args: Any = None, result: Any = None, *, error: Any = None, agent: Optional[str] = None) -> Optional[str]:
        """Shows what the tool gave. May return a text for the model; a trip is raised by the next `before_…`."""
        if self._repeated is not None:
            try:
                self._repeated.record(tool, args, result, error)
            except InvalidInputError:
                # The tool has run: what cannot be compared is no reason to lose its result.
                pass
        return self._seen(self._run.after_tool(tool, args, result, error, agent))

    def _seen(self, step: Any) -> Optional[str]:
        """What became of showing a result."""
        nudge = None if step is None else cast("Optional[str]", self._heed(step))
        trip = self._run.trip
        if trip is not None:
            self._keep(trip)
        return nudge

    def before_model(self) -> None:
        """Counts a model call. Raises the trip, or a `BudgetExceededError` or `ToolLimitError` when there is nothing left.

        Calls side by side may spend the same dollar; `model_call` sets aside what each may cost.
        """
        self._is_told = not self._is_of_program
        self._model_asked()

    def model_call(self, model: str, prompt: Any = None, *, max_tokens: Optional[int] = None) -> ModelCall:
        """Begins a model call, and sets aside the most it may cost: `prompt` is all that is sent, `max_tokens` the longest answer asked for.

        Raises when the run is over, when the rest of the budget does not pay for the call, or when the model has no price. While calls under way
        hold what is left, it waits for them. What came is told with `used`, or the call is ended with `release`:

            with run.model_call("gpt-4o", messages, max_tokens=500) as call:
                answer = client.chat.completions.create(…, max_tokens=call.max_tokens)
                call.used(answer.model, **read_usage("openai", answer.usage))
        """
        if max_tokens is not None and answer_length(max_tokens) is None:
            raise InvalidInputError(f"max_tokens must be a whole number from 0 up, not {max_tokens!r}; leave it out for the longest answer of the model.")
        self._is_told = not self._is_of_program
        call = self._begin(model, prompt, max_tokens, may_fall_back=True)
        # Who tells of one call tells of this one; a hooked client that makes it need not.
        return call._announce(model) if self._is_of_program else call

    def record_usage(
        self,
        model: str,
        input_tokens: Optional[int] = 0,
        output_tokens: Optional[int] = 0,
        cached_tokens: Optional[int] = 0,
        cache_write_tokens: Optional[int] = 0,
        cache_write_1h_tokens: Optional[int] = 0,
        audio_input_tokens: Optional[int] = 0,
        audio_output_tokens: Optional[int] = 0,
        service_tier: Optional[str] = None,
    ) -> None:
        """Adds what a model call used; `input_tokens` are those read afresh, without the cached ones and those of sound (see `read_usage`).
        `service_tier` is how it was served, as the answer says.

        Raises once the budget is exceeded. A model without a price raises `UnknownModelError` when dollars are limited.
        """
        read = (input_tokens or 0, output_tokens or 0, cached_tokens or 0)
        tokens = (*read, cache_write_tokens or 0, cache_write_1h_tokens or 0, audio_input_tokens or 0, audio_output_tokens or 0)
        if tokens in self._hooked and not self._is_told:
            # A hooked client has told it already; from here on its caller does.
            self._hooked.remove(tokens)
            self.check()
            return
        self._spent(self._run.record_usage(model, *tokens, service_tier))

    def record_usd(self, usd: float) -> None:
        """Adds dollars spent. Raises once the budget is exceeded."""
        self._spent(self._run.record_usd(usd))

    @overload
    def tool(self, function: Function, *, name: Optional[str] = None) -> Function: ...
    @overload
    def tool(self, function: None = None, *, name: Optional[str] = None) -> Callable[[Function], Function]: ...
    def tool(self, function: Any = None, *, name: Optional[str] = None) -> Any:
        """Wraps a tool, sync or async: asks before each call, shows the result after it.

        Calls are compared by the function's parameters; `self` and what frameworks pass besides (a context, a runtime) are none of them.
        """
        return wrap_tool(function, lambda: self, name) if function is not None else lambda function: wrap_tool(function, lambda: self, name)

    # What adapters and hooked clients ask.

    def _begin(
        self,
        model: Optional[str],
        prompt: Any,
        max_output: Optional[int] = None,
        *,
        choices: Any = 1,
        can_wait: bool = True,
        may_fall_back: bool = False,
    ) -> ModelCall:
        """Waits while other calls hold what is left, but not for one that this thread has begun: that would be for ever.

        `max_output` is the longest answer that is asked for; what is none is left to the provider. `choices` is how many are asked for."""
        waits, asked = _Waits(self), (model or "unknown", prompt, answer_length(max_output), choices)
        while True:
            step = self._heed(self._run.begin_model(*asked, not can_wait or waits.over(), may_fall_back))
            if step is not False:
                return ModelCall(self, step, waits.beginner)
            time.sleep(waits.pause())

    def _model_asked(self) -> None:
        """Counts a model call that somebody else makes, so that nothing can be set aside for it."""
        step = self._run.before_model()
        if step is not None:
            self._heed(step)

    def _told_above(self, model: Optional[str]) -> Optional[Told]:
        """Who tells of the call that a hooked client is about to make; None: the client shall. Raises when the run is over."""
        self.check()
        if self._is_told:
            return Told(None)
        unmet = [call for call in list(self._announced.values()) if not call._is_met]
        call = next((call for call in unmet if call._model == model), unmet[0] if unmet else None)
        return None if call is None else Told(call)

    def _instead(self, tool: str, args: Any = None) -> Optional[str]:
        """What to give the model in place of a result that it has already, or None. The call is counted before.

        Only what adapters show (`after_tool`) is a result that the model has: what a tool calls in turn (`run.tool`) is in none of its messages.
        """
        if self._repeated is None:
            # Tools that the design names keep its limits; of all others only repeats are told.
            self._repeated = ToolExecutionTracker(default_limit=_NO_LIMIT)
        skip = self._repeated.should_skip(tool, args)
        if skip is None or not self._run.tell_repeat(tool):
            return None
        # Who is told too often is stopped at the next step.
        self._seen(None)
        return skip.message

    def _stop_loop(self, cycle: List[str], repeats: int, message: str) -> None:
        """An adapter has found a loop that the calls alone do not show: raises it, and the run stays tripped."""
        self._heed(self._run.stop_loop(cycle, repeats, message))

    async def _aside(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls it without holding up the event loop when a service may have to be asked."""
        if not self._asks_service:
            return function(*args)
        from ._aside import aside

        return await aside(function, *args)

    async def _begin_async(
        self, model: Optional[str], prompt: Any, max_output: Optional[int] = None, *, choices: Any = 1, may_fall_back: bool = False
    ) -> ModelCall:
        """The same without holding the event loop up. Who is cancelled meanwhile leaves nothing set aside."""
        import asyncio

        waits, asked = _Waits(self), (model or "unknown", prompt, answer_length(max_output), choices)
        while True:
            step = self._run.begin_model(*asked, waits.over(), may_fall_back)
            if isinstance(step, _core.Question):
                from ._aside import aside

                step = await aside(self._heed, step, left=self._give_back)
            step = self._heed(step)
            if step is not False:
                return ModelCall(self, step, waits.beginner)
            await asyncio.sleep(waits.pause())

    def _give_back(self, begun: Any) -> None:
        """Nobody waits for this call any more."""
        if isinstance(begun, _core.ModelCall):
            self._heed(self._run.drop_model(begun))

    # What became of the run.

    @property
    def trip(self) -> Optional[TripError]:
        """Why the run was stopped, or None."""
        return self._state.get("trip")

    @property
    def tripped(self) -> bool:
        return "trip" in self._state

    @property
    def message(self) -> str:
        """What to tell the model or the user about the trip; empty when there is none."""
        trip = self.trip
        return "" if trip is None else trip.message

    def check(self) -> None:
        """Raises the trip, if there is one."""
        trip = self._state.get("trip")
        if trip is not None:
            raise copy.copy(trip)

    def new_turn(self) -> None:
        """A user message: what follows may repeat what was before. Budget and trip stay."""
        self._run.new_turn()
        self._repeated = None

    def reset(self) -> None:
        """Forgets the trip and all counts but the money. For an operator, not for the agent."""
        self._run.reset()
        self._repeated = None
        self._state.pop("trip", None)

    def _spent(self, step: Any) -> None:
        """Money was spent: heeds what that leads to, and tells once that most of it is gone."""
        try:
            if step is not None:
                self._heed(step)
        finally:
            told = self._run.take_warning()
            if told is not None:
                warning = BudgetWarning(*told, self.run_id)
                _log().warning("%s: %s", self.run_id, warning.message)
                if self._on_warning is not None:
                    try:
                        self._on_warning(warning)
                    except Exception:
                        # An answer that is paid for is not lost to it.
                        _log().exception("on_warning failed")

    def _heed(self, step: Any) -> Any:
        """Asks the services that have to be asked. Raises the trip, or gives what the question gave."""
        while isinstance(step, _core.Question):
            step = self._tell(step)
        if isinstance(step, TripError):
            raise self._keep(step)
        return step

    def _tell(self, question: _core.Question) -> Any:
        try:
            return getattr(self, question.part)._service.tell(question)
        except BaseException:
            # An address or a key that is wrong, or Ctrl-C: it was not answered, and nothing waits for that.
            question.withdraw()
            raise

    def _keep(self, trip: TripError) -> TripError:
        """Keeps the first trip and reports it once. Gives the one to raise: a copy, because a raised error holds on to every frame it passed."""
        trip.run_id = self.run_id
        mine = copy.copy(trip)
        kept = self._state.setdefault("trip", mine)
        if kept is mine:
            self._report(kept)
        return copy.copy(kept)

    def _report(self, trip: TripError) -> None:
        _log().warning("%s is stopped: %s", self.run_id, trip.message, extra={"runguard_reason": trip.reason, "runguard_run_id": self.run_id})
        # Only where the agent is traced is it imported.
        tracing = sys.modules.get("opentelemetry.trace")
        if tracing is not None:
            try:
                facts = {"runguard.reason": trip.reason, "runguard.message": trip.message, "runguard.run_id": self.run_id}
                tracing.get_current_span().add_event("runguard.trip", facts)
            except Exception:
                _log().debug("the trip is in no trace", exc_info=True)
        if self.alerts is not None:
            self.alerts.send(copy.copy(trip))
        # A part with alerts of its own tells of its trips also when the run asks it.
        part = self.loop if isinstance(trip, LoopDetectedError) else self.budget if isinstance(trip, BudgetExceededError) else None
        told = getattr(part, "_told", None)
        if told is not None and told.alerts is not self.alerts:
            told.alerts.send(copy.copy(trip))

    def __repr__(self) -> str:
        return f"Run({self.run_id!r}, {'tripped: ' + self.message if self.tripped else 'running'})"


class BudgetWarning(namedtuple("BudgetWarning", ("message", "unit", "spent", "limit", "run_id"))):
    """Most of a limit is spent: what `on_warning` is called with."""

    message: str
    unit: str
    spent: float
    limit: float
    run_id: str


def _warning(
    warn_at: Optional[float], on_warning: Optional[Callable[[BudgetWarning], Any]], fallback_model: Optional[str]
) -> tuple[Optional[int], Optional[str]]:
    """As the native half takes them: thousandths. Without a share whoever wants to be told is told at four fifths."""
    if warn_at is None:
        return (None if on_warning is None and fallback_model is None else 800), fallback_model
    if isinstance(warn_at, bool) or not isinstance(warn_at, (int, float)) or not 0 < warn_at <= 1:
        raise InvalidInputError(f"warn_at must be a share of the budget above 0 and up to 1, such as 0.8, not {warn_at!r}.")
    return round(warn_at * 1000), fallback_model


class _Waits:
    """How long a model call waits for others."""

    # Answers that take longer are rare; whoever waits is told so with the numbers.
    PATIENCE = 120.0
    _FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25

    def __init__(self, run: Run) -> None:
        self._run, self._began, self._pause = run, time.monotonic(), self._FIRST_PAUSE
        self._is_said = False
        self.beginner = _beginner()

    def over(self) -> bool:
        return self.beginner in self._run._under_way.values() or time.monotonic() - self._began > self.PATIENCE

    def pause(self) -> float:
        if not self._is_said and time.monotonic() - self._began > 5:
            self._is_said = True
            _log().info("%s: a model call waits until others have ended, because together they may cost more than is left", self._run.run_id)
        self._pause = min(self._pause * 1.5, self._LONGEST_PAUSE)
        return self._pause


def _beginner() -> Any:
    """Who would wait: a task, or a thread."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        try:
            return asyncio.current_task() or get_ident()
        except RuntimeError:
            pass
    return get_ident()


class ModelCall:
    """A model call that is under way: what it may cost is set aside until `used` or `release`. A context manager releases it at the end."""

    def __init__(self, run: Run, call: _core.ModelCall, beginner: Any) -> None:
        self.run, self._call = run, call
        self._model: Optional[str] = None
        # A hooked client has made it.
        self._is_met = False
        # It has left this process, so it costs something whatever becomes of the answer; and so many bytes of that have come.
        self._is_sent = False
        self._has_come = 0
        # What the provider has counted of an answer that is not at its end: the model that answers, and the tokens.
        self._counted: Optional[tuple[Any, ...]] = None
        # Of an answer that is read by hand, how many those are.
        self._measure: Optional[Callable[[], int]] = None
        run._under_way[id(self)] = beginner

    @property
    def model(self) -> str:
        """The model to ask: `fallback_model` of the run once most is spent."""
        return self._call.model

    @property
    def max_tokens(self) -> Optional[int]:
        """The longest answer that what is left pays for; None when the one that was asked for fits. Of several answers, each."""
        return self._call.max_output

    def used(
        self,
        model: Optional[str] = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
        cache_write_1h_tokens: int = 0,
        audio_input_tokens: int = 0,
        audio_output_tokens: int = 0,
        service_tier: Optional[str] = None,
    ) -> None:
        """What the provider counted; `model` is the one that answered. Raises once the budget is exceeded."""
        read, written = (input_tokens, output_tokens, cached_tokens), (cache_write_tokens, cache_write_1h_tokens)
        self._end(self.run._run.finish_model(self._call, None, model, *read, *written, audio_input_tokens, audio_output_tokens, service_tier))

    def estimated(self, answer: Any = "") -> None:
        """The provider counted nothing: `answer` is what came, and its size is billed."""
        self._came(_core.answer_size(answer))

    def _came(self, size: int) -> None:
        step = self.run._run.finish_uncounted(self._call, size)
        if self.run._run.estimated_calls == 1:
            _log().warning("%s: an answer came without its usage, so its cost is an estimate, by its size", self.run.run_id)
        self._end(step)

    def _broken_off(self) -> None:
        """The answer broke off: bills what came of it."""
        if self._counted is None:
            self._came(self._has_come)
        else:
            self._end(self.run._run.finish_model(self._call, self._has_come, *self._counted))

    def release(self) -> None:
        """The call was not made, or costs nothing. After `used` it changes nothing."""
        self._end(self.run._run.drop_model(self._call))

    def _announce(self, model: Optional[str]) -> ModelCall:
        """An adapter tells of it: a hooked client that makes it does not."""
        self._model = model
        self.run._announced[id(self)] = self
        return self

    def _end(self, step: Any) -> None:
        self.run._under_way.pop(id(self), None)
        self.run._announced.pop(id(self), None)
        self.run._spent(step)

    def __enter__(self) -> ModelCall:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        # Nobody said what became of it.
        if self.run._under_way.pop(id(self), None) is None:
            return
        try:
            if self._measure is not None:
                self._has_come = self._measure()
            # What is left of it, for whoever has to wait for a service.
            left = _Left(self.run, self._call, self._is_sent, self._counted, self._has_come)
            if self.run._asks_service and _is_in_loop():
                from ._aside import later

                later(_abandoned, left)
            else:
                _abandoned(left)
        except Exception:
            # The interpreter may be ending.
            pass


class _Left(namedtuple("_Left", ("run", "call", "is_sent", "counted", "has_come"))):
    """A model call that nobody waits for: whether it has left this process, and what came of it."""

    run: Run
    call: _core.ModelCall
    is_sent: bool
    counted: Optional[tuple[Any, ...]]
    has_come: int


def _abandoned(left: _Left) -> None:
    run, call, core = left.run, left.call, left.run._run
    try:
        if not left.is_sent:
            run._spent(core.drop_model(call))
        elif left.counted is None:
            run._spent(core.finish_uncounted(call, left.has_come))
        else:
            run._spent(core.finish_model(call, left.has_come, *left.counted))
    except Exception as problem:
        _log().debug("%s: a model call that nobody waits for could not be settled: %s", run.run_id, problem)


def _is_in_loop() -> bool:
    """Whether waiting here would hold up an event loop."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


# No model writes as much, and no price is too high for so much.
_LONGEST = 1_000_000_000


def answer_length(given: Any) -> Optional[int]:
    """A length that an answer can have. Of anything else the provider says what is wrong with it."""
    return min(given, _LONGEST) if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else None


class Told:
    """A call of a hooked client that somebody above it tells of."""

    def __init__(self, call: Optional[ModelCall]) -> None:
        self._call = call
        if call is not None:
            call._is_met = True

    def failed(self) -> None:
        """Whoever asked may ask again, and that is still the same call."""
        if self._call is not None:
            self._call._is_met = False


def _new_id() -> str:
    import uuid

    return f"run-{uuid.uuid4()}"


def _rules(tools: Optional[Mapping[str, ToolRule]]) -> Optional[str]:
    if not tools:
        return None
    from .tool_rules import rules_as_json

    return rules_as_json(tools)


def _ceiling(name: str, value: Optional[int]) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(f"{name} must be a whole number from 0 up, not {value!r}; leave it out for no ceiling.")
    return value


def _budget(
    run_id: str,
    budget: Optional[BudgetTracker],
    max_usd: Optional[float],
    max_tokens: Optional[int],
    scopes: Optional[Sequence[Scope]],
    prices: Optional[Mapping[str, Any]],
    unknown_model: Optional[Union[str, Mapping[str, Any]]],
    reached: Mapping[str, Any],
) -> Optional[BudgetTracker]:
    if (prices is not None or unknown_model is not None) and (budget is not None or reached["url"] is not None):
        raise InvalidInputError("prices and unknown_model belong to the budget that is given, or to the service that keeps it. Set them there.")
    if max_usd is None and max_tokens is None and not scopes:
        return budget
    if budget is None:
        return BudgetTracker(max_usd, max_tokens, scopes=scopes, session_id=run_id, prices=prices, unknown_model=unknown_model, **reached)
    return budget._child_of_run(run_id, max_usd, max_tokens, scopes)


def _kept(part: Any) -> Any:
    """A part of a run as the native half takes it."""
    return getattr(part, "_kept", part)


_current: contextvars.ContextVar[Optional[Run]] = contextvars.ContextVar("runguard_current_run", default=None)


# The run of a whole program, for code that is in no other.
_of_program: Optional[Run] = None


def _open_for_program(run: Run) -> None:
    global _of_program
    _of_program = run
    run._is_of_program = True


def current_run() -> Optional[Run]:
    """The run that the code being executed belongs to, or None."""
    return _current.get() or _of_program


# The tool call that an adapter has counted and lets run.
_let_run: contextvars.ContextVar[Optional[List[Any]]] = contextvars.ContextVar("runguard_tool_let_run", default=None)


def _lets_run(run: Run, tool: str) -> contextvars.Token[Any]:
    """An adapter has counted the call: a tool that tells of itself does not count it again."""
    return _let_run.set([run, tool])


def _is_let_run(run: Run, tool: str) -> bool:
    """Whether this call of the tool is the one that an adapter has counted."""
    counted = _let_run.get()
    if not counted or counted[0] is not run or counted[1] != tool:
        return False
    # What the tool calls in turn is another call.
    counted.clear()
    return True


def wrap_tool(function: Function, find_run: Callable[[], Optional[Run]], name: Optional[str] = None) -> Function:
    """A tool that asks its run before each call. Without a run it is called straight."""
    # Only where something is wrapped.
    import inspect

    from ._arguments import parameters_of

    name = _tool_name(function, name)
    told = _core.Tool(name, *parameters_of(function))
    before, after, let_run = told.before, told.after, _let_run.get

    def heeded(run: Run, given: Any) -> int:
        """The call is more than counted: a trip, or a service has to be asked."""
        step, arguments = given
        run._heed(step)
        return cast(int, arguments)

    def shown(run: Run, arguments: int, result: Any, error: Any) -> None:
        step = after(run._run, arguments, result, error)
        if step is not None:
            run._seen(None if step is True else step)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            run = find_run()
            if run is None or (let_run() and _is_let_run(run, name)):
                return await function(*args, **kwargs)
            given = before(run._run, args, kwargs)
            if type(given) is not int:
                given = await run._aside(heeded, run, given)
            try:
                result = await function(*args, **kwargs)
            except Exception as error:
                await run._aside(shown, run, given, None, error)
                raise
            await run._aside(shown, run, given, result, None)
            return result

        return cast("Function", guarded_async)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        run = find_run()
        if run is None or (let_run() and _is_let_run(run, name)):
            return function(*args, **kwargs)
        given = before(run._run, args, kwargs)
        if type(given) is not int:
            given = heeded(run, given)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            shown(run, given, None, error)
            raise
        step = after(run._run, given, result, None)
        if step is not None:
            run._seen(None if step is True else step)
        return result

    return cast("Function", guarded)


def _tool_name(function: Callable[..., Any], name: Optional[str]) -> str:
    if not callable(function):
        raise InvalidInputError(f"tool takes the function to wrap, not {function!r}.")
    if name is None:
        name = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", None) or type(function).__name__
        if name == "<lambda>":
            raise InvalidInputError("A lambda has no name, and all lambdas would be one tool. Give it one: tool(…, name='search').")
    if not isinstance(name, str) or not name:
        raise InvalidInputError("name must be the name of the tool, a string that is not empty.")
    return name


@overload
def tool(function: Function, *, name: Optional[str] = None) -> Function: ...
@overload
def tool(function: None = None, *, name: Optional[str] = None) -> Callable[[Function], Function]: ...
def tool(function: Any = None, *, name: Optional[str] = None) -> Any:
    """Decorator for a tool: each call is counted in the run it happens in; outside of a run it is called straight."""
    return wrap_tool(function, current_run, name) if function is not None else lambda function: wrap_tool(function, current_run, name)
