"""Calls of actions, and where it is remembered how they ended: in this process, in Redis, in DynamoDB, or in a RunGuard service.

The rule is the core's, as two pure steps; the stores only keep their outcome.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Tuple

from runguard import InvalidInputError, fingerprint
from runguard._core import action_call, call_begun, call_finished
from runguard.client import Client

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
        name, arguments = action_call(
            {
                "actionGroup": self.action_group,
                "apiPath": self.api_path,
                "httpMethod": self.http_method,
                "function": self.function,
                "parameters": self.parameters,
                "requestBody": self.request_body,
            }
        )
        return name, json.loads(arguments)


class Store(Protocol):
    """Remembers the latest calls of each session and how they ended. Raises when it cannot be reached."""

    def refusal(self, call: ActionCall) -> Optional[str]:
        """Takes note that the call is about to run. Why it must not, or None."""

    def record(self, call: ActionCall, failed: bool) -> None:
        """Takes note of what came of it."""


# The latest calls of a session, oldest first, as the core writes them: a signature, and how the call ended.
_Calls = List[str]


class _KeepsCalls:
    """A store that keeps the latest calls of each session and changes them in one step."""

    def refusal(self, call: ActionCall) -> Optional[str]:
        name, signature = call.name, call.signature
        refused: Optional[str] = None

        def begin(calls: _Calls) -> _Calls:
            nonlocal refused
            changed, refused = call_begun(calls, name, signature)
            return changed

        self._change(call.session_id, begin)
        return refused

    def record(self, call: ActionCall, failed: bool) -> None:
        signature = call.signature
        self._change(call.session_id, lambda calls: call_finished(calls, signature, failed))

    def _change(self, session_id: str, step: Callable[[_Calls], _Calls]) -> None:
        raise NotImplementedError


class MemoryStore(_KeepsCalls):
    """Remembers in this process."""

    def __init__(self, kept_seconds: float = KEPT_SECONDS, kept_sessions: int = KEPT_SESSIONS) -> None:
        self._kept_seconds = kept_seconds
        self._kept_sessions = kept_sessions
        self._lock = threading.Lock()
        self._sessions: "OrderedDict[str, Tuple[_Calls, float]]" = OrderedDict()

    def _change(self, session_id: str, step: Callable[[_Calls], _Calls]) -> None:
        with self._lock:
            now = time.monotonic()
            calls, since = self._sessions.pop(session_id, ([], now))
            self._sessions[session_id] = (step(calls if now - since < self._kept_seconds else []), now)
            if len(self._sessions) > self._kept_sessions:
                self._sessions.popitem(last=False)


class RedisStore(_KeepsCalls):
    """Remembers in Redis or Valkey, through redis-py. Each change is one transaction, so copies of the function do not race."""

    def __init__(self, redis: Any, kept_seconds: int = KEPT_SECONDS, timeout_seconds: float = 1.0) -> None:
        if isinstance(redis, str):
            from redis import Redis

            redis = Redis.from_url(redis, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds)
        self._redis = redis
        self._kept_seconds = kept_seconds

    def _change(self, session_id: str, step: Callable[[_Calls], _Calls]) -> None:
        key = f"runguard:action-group:{session_id}"

        def swap(pipe: Any) -> None:
            # `pipe` watches the key: when another writer is faster, redis-py runs this again.
            kept = pipe.get(key)
            changed = step(_texts(_parsed(kept)))
            pipe.multi()
            pipe.set(key, json.dumps(changed), ex=self._kept_seconds)

        self._redis.transaction(swap, key)


class DynamoDBStore(_KeepsCalls):
    """Remembers in a DynamoDB table with the partition key `sessionId` (a string), through boto3.

    An item has `callHistory` (the latest calls), `version` (each write is conditional on it, so copies of the function do not race) and
    `expiresAt` (seconds since 1970; switch the table's time to live on for it). The function's role needs `dynamodb:GetItem` and
    `dynamodb:PutItem` on the table.
    """

    # Copies of one session's function that write at the same moment are few: Bedrock waits for each answer.
    _ATTEMPTS = 20

    def __init__(self, table: Any = "bedrock-agent-call-history", kept_seconds: int = KEPT_SECONDS, timeout_seconds: float = 1.0) -> None:
        if isinstance(table, str):
            import boto3  # type: ignore[import-untyped,import-not-found,unused-ignore]
            from botocore.config import Config  # type: ignore[import-untyped,import-not-found,unused-ignore]

            patience = Config(connect_timeout=timeout_seconds, read_timeout=timeout_seconds, retries={"total_max_attempts": 2})
            table = boto3.resource("dynamodb", config=patience).Table(table)
        self._table = table
        self._kept_seconds = kept_seconds

    def _change(self, session_id: str, step: Callable[[_Calls], _Calls]) -> None:
        for attempt in range(self._ATTEMPTS):
            item = self._table.get_item(Key={"sessionId": session_id}, ConsistentRead=True).get("Item") or {}
            now, version = int(time.time()), item.get("version")
            # DynamoDB deletes what has expired within days, not at once.
            is_current = int(item.get("expiresAt") or 0) > now
            calls = step(_texts(item.get("callHistory")) if is_current else [])
            changed = {"sessionId": session_id, "callHistory": calls, "version": int(version or 0) + 1, "expiresAt": now + self._kept_seconds}
            unchanged: Dict[str, Any] = {"ConditionExpression": "attribute_not_exists(#version)", "ExpressionAttributeNames": {"#version": "version"}}
            if version is not None:
                unchanged.update(ConditionExpression="#version = :version", ExpressionAttributeValues={":version": version})
            try:
                self._table.put_item(Item=changed, **unchanged)
                return
            except self._table.meta.client.exceptions.ConditionalCheckFailedException:
                # Another copy was faster: what it wrote is read, and the step taken again.
                time.sleep(0.005 * attempt)
        raise TimeoutError(f"the calls of session {session_id} were changed by others {self._ATTEMPTS} times in a row")


def _texts(kept: Any) -> _Calls:
    """What was kept, as far as it can be read: an item of another program's may hold anything."""
    return [text for text in kept if isinstance(text, str)] if isinstance(kept, list) else []


def _parsed(kept: Any) -> Any:
    try:
        return json.loads(kept or "[]")
    except ValueError:
        return []


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


def store_of(
    store: Optional[Store], url: Optional[str], api_key: Optional[str], redis_url: Optional[str], dynamodb_table: Any, timeout_seconds: float
) -> Store:
    places = (("store", store), ("url", url), ("redis_url", redis_url), ("dynamodb_table", dynamodb_table))
    given = [name for name, value in places if value is not None]
    if len(given) > 1:
        raise InvalidInputError(f"Give one place to remember calls in, not {' and '.join(given)}.")
    if store is not None:
        return store
    if url is not None:
        return ServiceStore(url, api_key, timeout_seconds)
    if redis_url is not None:
        return RedisStore(redis_url, timeout_seconds=timeout_seconds)
    if dynamodb_table is not None:
        return DynamoDBStore(dynamodb_table, timeout_seconds=timeout_seconds)
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
