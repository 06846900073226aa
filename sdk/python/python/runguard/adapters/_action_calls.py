"""Calls of actions, and where it is remembered how they ended: in this process, in Redis, or in a RunGuard service.

The rule is the core's, as two pure steps; the stores only keep their outcome.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Protocol, Tuple

from runguard import InvalidInputError, fingerprint
from runguard._core import call_begun, call_finished, call_refusal
from runguard.client import Client

from ._bedrock_trace import action_call

_log = logging.getLogger("runguard.aws_lambda")

# A Bedrock session is idle for at most an hour before it ends.
KEPT_SECONDS = 3600
# Sessions one process remembers; beyond them the one not used for longest is forgotten.
KEPT_SESSIONS = 10_000


@dataclass(frozen=True)
class ActionCall:
    """One call of an action in a session, as Bedrock wrote it. Equal calls have equal signatures, however they are written."""

    session_id: str
    action_group: str
    api_path: Optional[str]
    http_method: Optional[str]
    function: Optional[str]
    parameters: Any
    request_body: Any

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> "ActionCall":
        """The call in the event of an action-group Lambda function."""
        return cls(
            session_id=str(event.get("sessionId") or ""),
            action_group=str(event.get("actionGroup") or ""),
            api_path=event.get("apiPath"),
            http_method=event.get("httpMethod"),
            function=event.get("function"),
            parameters=event.get("parameters"),
            request_body=event.get("requestBody"),
        )

    @property
    def name(self) -> str:
        return self.read()[0]

    @property
    def signature(self) -> str:
        name, args = self.read()
        return fingerprint({"call": name, **args})

    def read(self) -> Tuple[str, Dict[str, Any]]:
        """Name and arguments in the form in which equal calls are equal."""
        return action_call(
            {
                "actionGroup": self.action_group,
                "apiPath": self.api_path,
                "httpMethod": self.http_method,
                "function": self.function,
                "parameters": self.parameters,
                "requestBody": self.request_body,
            }
        )


class Store(Protocol):
    """Remembers the last call of each session and how often it failed in a row. Raises when it cannot be reached."""

    def refusal(self, call: ActionCall) -> Optional[str]:
        """Takes note that the call is about to run. Why it must not, or None."""

    def record(self, call: ActionCall, failed: bool) -> None:
        """Takes note of what came of it."""


# The signature of a session's newest call, and its failures in a row.
_Last = Tuple[str, int]
_NOTHING: _Last = ("", 0)


class _KeepsLast:
    """A store that keeps the last call of each session and changes it in one step."""

    def refusal(self, call: ActionCall) -> Optional[str]:
        signature = call.signature
        _, failures = self._change(call.session_id, lambda last: call_begun(last, signature))
        return call_refusal(call.name, failures)

    def record(self, call: ActionCall, failed: bool) -> None:
        signature = call.signature
        self._change(call.session_id, lambda last: call_finished(last, signature, failed))

    def _change(self, session_id: str, step: Callable[[_Last], _Last]) -> _Last:
        raise NotImplementedError


class MemoryStore(_KeepsLast):
    """Remembers in this process."""

    def __init__(self, kept_seconds: float = KEPT_SECONDS, kept_sessions: int = KEPT_SESSIONS) -> None:
        self._kept_seconds = kept_seconds
        self._kept_sessions = kept_sessions
        self._lock = threading.Lock()
        self._sessions: "OrderedDict[str, Tuple[_Last, float]]" = OrderedDict()

    def _change(self, session_id: str, step: Callable[[_Last], _Last]) -> _Last:
        with self._lock:
            now = time.monotonic()
            last, since = self._sessions.pop(session_id, (_NOTHING, now))
            changed = step(last if now - since < self._kept_seconds else _NOTHING)
            self._sessions[session_id] = (changed, now)
            if len(self._sessions) > self._kept_sessions:
                self._sessions.popitem(last=False)
            return changed


class RedisStore(_KeepsLast):
    """Remembers in Redis or Valkey, through redis-py. Each change is one transaction, so copies of the function do not race."""

    def __init__(self, redis: Any, kept_seconds: int = KEPT_SECONDS, timeout_seconds: float = 1.0) -> None:
        if isinstance(redis, str):
            from redis import Redis

            redis = Redis.from_url(redis, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds)
        self._redis = redis
        self._kept_seconds = kept_seconds

    def _change(self, session_id: str, step: Callable[[_Last], _Last]) -> _Last:
        key = f"runguard:action-group:{session_id}"

        def swap(pipe: Any) -> _Last:
            # `pipe` watches the key: when another writer is faster, redis-py runs this again.
            kept = pipe.get(key)
            changed = step(tuple(json.loads(kept)) if kept else _NOTHING)
            pipe.multi()
            pipe.set(key, json.dumps(changed), ex=self._kept_seconds)
            return changed

        changed: _Last = self._redis.transaction(swap, key, value_from_callable=True)
        return changed


class ServiceStore:
    """Remembers in a RunGuard service, which also logs what was refused."""

    def __init__(self, url: str, api_key: Optional[str] = None, timeout_seconds: float = 1.0) -> None:
        self._client = Client(url, api_key, timeout=timeout_seconds)

    def refusal(self, call: ActionCall) -> Optional[str]:
        answer = self._client.action_group(**self._body(call))
        return None if answer.get("allow", True) else str(answer.get("message") or answer.get("reason"))

    def record(self, call: ActionCall, failed: bool) -> None:
        self._client.action_group_result(**self._body(call), failed=failed)

    @staticmethod
    def _body(call: ActionCall) -> Dict[str, Any]:
        # Arguments by name: in the lists that Bedrock writes, another order would be another call.
        _, arguments = call.read()
        return {**vars(call), **arguments}


def store_of(store: Optional[Store], url: Optional[str], api_key: Optional[str], redis_url: Optional[str], timeout_seconds: float) -> Store:
    given = [name for name, value in (("store", store), ("url", url), ("redis_url", redis_url)) if value is not None]
    if len(given) > 1:
        raise InvalidInputError(f"Give one place to remember calls in, not {' and '.join(given)}.")
    if store is not None:
        return store
    if url is not None:
        return ServiceStore(url, api_key, timeout_seconds)
    if redis_url is not None:
        return RedisStore(redis_url, timeout_seconds=timeout_seconds)
    return MemoryStore()


class Memory:
    """A store that is never in the way: what it cannot answer is allowed, with a warning in the log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ask(self, call: ActionCall) -> Tuple[Optional[str], bool]:
        """Why the call must not run, if so, and whether the store could be asked."""
        try:
            return self._store.refusal(call), True
        except Exception as error:  # noqa: BLE001 (a guard that fails must not take the action down with it)
            _log.warning("%s runs unguarded: its earlier calls could not be looked up (%s).", call.name, error)
            return None, False

    def tell(self, call: ActionCall, failed: bool) -> None:
        try:
            self._store.record(call, failed)
        except Exception as error:  # noqa: BLE001
            _log.warning("The result of %s was not remembered (%s).", call.name, error)
