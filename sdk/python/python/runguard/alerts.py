"""Tells people about a trip: Slack, PagerDuty, any webhook, any callable. Never blocks the agent, never raises into it."""

from __future__ import annotations

import atexit
import inspect
import json
import logging
import os
import queue
import threading
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from . import _core
from ._core import trip_to_pagerduty, trip_to_slack
from .errors import InvalidInputError, TripError

if TYPE_CHECKING:
    import urllib.error

logger = logging.getLogger("runguard.alerts")

PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"

Delivery = Callable[[], None]
AlertsLike = Union["Alerts", Mapping[str, Any], Callable[[TripError], Any]]


class Alerts:
    """Where a trip is reported. Every channel is optional; each gets its own delivery, so one that fails does not keep the others back."""

    def __init__(
        self,
        *,
        slack_webhook: Optional[str] = None,
        pagerduty_key: Optional[str] = None,
        webhook: Optional[str] = None,
        call: Optional[Callable[[TripError], Any]] = None,
        source: Optional[str] = None,
        timeout: float = 5.0,
        pagerduty_url: str = PAGERDUTY_URL,
    ) -> None:
        for name, url in (("slack_webhook", slack_webhook), ("webhook", webhook), ("pagerduty_url", pagerduty_url)):
            if url is not None and not (isinstance(url, str) and url.startswith(("http://", "https://"))):
                raise InvalidInputError(f"{name} must be an http:// or https:// URL, not {url!r}.")
        if call is not None and not callable(call):
            raise InvalidInputError("call must be callable: it is given the TripError.")
        self.slack_webhook = slack_webhook
        self.pagerduty_key = pagerduty_key
        self.webhook = webhook
        self.call = call
        self.source = source or _host()
        self.timeout = timeout
        self.pagerduty_url = pagerduty_url

    @classmethod
    def of(cls, value: Optional[AlertsLike]) -> Optional[Alerts]:
        """Makes an `Alerts` from what `alerts=` may be: itself, a mapping with the same keys, or a callable."""
        if value is None or isinstance(value, Alerts):
            return value
        if isinstance(value, Mapping):
            try:
                return cls(**dict(value))
            except TypeError as error:
                raise InvalidInputError(f"alerts has a key that is not known: {error}. Use slack_webhook, pagerduty_key, webhook, call.") from None
        if callable(value):
            return cls(call=value)
        raise InvalidInputError(f"alerts must be an Alerts, a mapping or a callable, not {type(value).__name__}.")

    def send(self, error: TripError) -> None:
        """Queues the trip for every channel and returns at once. When the queue is full the alert is dropped and logged."""
        try:
            for channel, delivery in self._deliveries(error):
                if not _deliver_later(channel, delivery):
                    logger.warning("alert to %s dropped: %d others are waiting", channel, _MAX_WAITING)
        except Exception:
            logger.exception("alert could not be queued")

    def _deliveries(self, error: TripError) -> Iterator[Tuple[str, Delivery]]:
        facts = trip_facts(error)
        slack, key, webhook, call = self.slack_webhook, self.pagerduty_key, self.webhook, self.call
        if slack is not None:
            yield "slack", lambda: _post(slack, trip_to_slack(facts, self.source), self.timeout)
        if key is not None:
            yield "pagerduty", lambda: _post(self.pagerduty_url, trip_to_pagerduty(facts, self.source, key), self.timeout)
        if webhook is not None:
            yield "webhook", lambda: _post(webhook, json.dumps(facts), self.timeout)
        if call is not None:
            yield "callable", lambda: _invoke(call, error)


def _invoke(call: Callable[[TripError], Any], error: TripError) -> None:
    answer = call(error)
    if inspect.isawaitable(answer):
        import asyncio

        # The agent's own event loop may be busy, or gone by now.
        asyncio.run(_awaited(answer))


async def _awaited(answer: Awaitable[Any]) -> None:
    await answer


def trip_facts(error: TripError) -> Dict[str, Any]:
    """What a webhook gets: flat, JSON, without the arguments of any call."""
    time = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    # What somebody has hung on the error besides may be anything, and is nobody's business.
    plain = {name: value for name, value in vars(error).items() if _is_plain(value)}
    facts: Dict[str, Any] = json.loads(_core.trip_facts({**plain, "kind": type(error).__name__, "time": time}))
    return facts


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or (isinstance(value, (str, int, float)) and not (isinstance(value, str) and len(value) > _LONGEST_FACT))


_LONGEST_FACT = 100_000


def _host() -> str:
    import socket

    return socket.gethostname()


_ATTEMPTS = 3
_LONGEST_PAUSE = 5.0


def _post(url: str, body: str, timeout: float) -> None:
    # Where nobody is told of anything, nothing of it is imported.
    import urllib.error
    import urllib.request

    data = body.encode()
    for attempt in range(1, _ATTEMPTS + 1):
        request = urllib.request.Request(url, data, {"content-type": "application/json", "user-agent": "runguard-python"}, method="POST")
        pause = float(attempt)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                response.read()
            return
        except urllib.error.HTTPError as error:
            error.close()
            if attempt == _ATTEMPTS or (error.code != 429 and error.code < 500):
                raise
            pause = _retry_after(error, pause)
        except OSError:
            if attempt == _ATTEMPTS:
                raise
        time.sleep(pause)


def _retry_after(error: urllib.error.HTTPError, otherwise: float) -> float:
    try:
        return min(max(float(error.headers.get("retry-after", "")), 0.0), _LONGEST_PAUSE)
    except ValueError:
        return otherwise


_MAX_WAITING = 1000
_THREADS = 4


class _Worker:
    """A few daemon threads over one queue. Started with the first alert, started anew in a forked child."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[Tuple[str, Delivery]] = queue.SimpleQueue()
        self.threads: List[threading.Thread] = []
        # One mark per delivery that is not finished: list operations are atomic, so nothing here can be left locked by a fork.
        self.unfinished: List[None] = []

    def put(self, channel: str, delivery: Delivery) -> bool:
        if len(self.unfinished) >= _MAX_WAITING:
            return False
        self.unfinished.append(None)
        self.waiting.put((channel, delivery))
        if len(self.threads) < min(_THREADS, len(self.unfinished)):
            thread = threading.Thread(target=self.deliver, name="runguard-alerts", daemon=True)
            self.threads.append(thread)
            thread.start()
        return True

    def deliver(self) -> None:
        while True:
            channel, delivery = self.waiting.get()
            try:
                delivery()
            except BaseException as error:
                logger.warning("alert to %s failed: %s", channel, error)
            finally:
                self.unfinished.pop()

    def flush(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        while self.unfinished:
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True


_worker = _Worker()


def _deliver_later(channel: str, delivery: Delivery) -> bool:
    return _worker.put(channel, delivery)


def flush_alerts(timeout: float = 5.0) -> bool:
    """Waits until every queued alert is delivered or given up; False when `timeout` seconds were not enough."""
    return _worker.flush(timeout)


def _start_anew() -> None:
    global _worker
    _worker = _Worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
# A script that trips and ends must not take its alert with it; two seconds bound the wait.
atexit.register(flush_alerts, 2.0)
