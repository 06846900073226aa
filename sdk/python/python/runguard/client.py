"""`Client`: asks a RunGuard service over HTTP, one method per route. Nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import ssl
import threading
import urllib.parse
import uuid
from typing import Any, Mapping, Optional

from . import _core
from ._routes import Answer as Answer, GuardRoutes
from .errors import InvalidInputError, ServiceError

logger = logging.getLogger("runguard.service")


class _Connection(threading.local):
    """One connection per thread, opened anew in a forked child: two processes must not read from one socket."""

    open: Optional[http.client.HTTPConnection] = None
    pid: int = 0


class Client(GuardRoutes):
    """Talks to a RunGuard service. A refusal is an answer (`allow` is False), not an exception; a service that cannot be asked raises `ServiceError`."""

    def __init__(self, url: str, api_key: Optional[str] = None, *, timeout: float = 2.0) -> None:
        parts = urllib.parse.urlsplit(url) if isinstance(url, str) else urllib.parse.SplitResult("", "", "", "", "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInputError(f"url must look like http://127.0.0.1:8080, not {url!r}.")
        if not timeout > 0:
            raise InvalidInputError(f"timeout must be more than 0 seconds, not {timeout!r}.")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self._secure = parts.scheme == "https"
        self._host: str = parts.hostname
        self._port = parts.port
        self._base = parts.path.rstrip("/")
        self._headers = {"content-type": "application/json", "user-agent": "runguard-python", "x-runguard-status": "200"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._connection = _Connection()

    # Reading and operating.

    def decisions(self, **query: Any) -> Answer:
        """The log of decisions."""
        return self.get("/v1/decisions", query)

    def decision(self, decision_id: str) -> Answer:
        """One decision."""
        return self.get(f"/v1/decisions/{_segment(decision_id)}")

    def sessions(self, **query: Any) -> Answer:
        """Sessions by how their names begin (`prefix`), the latest first unless told (`sort`: blocked, usd, decisions)."""
        return self.get("/v1/sessions", query)

    def session(self, session_id: str) -> Answer:
        """What is counted for a session, and what it may still do."""
        return self.get(f"/v1/sessions/{_segment(session_id)}")

    def forget_session(self, session_id: str) -> Answer:
        """Erases a session."""
        return self.request("DELETE", f"/v1/sessions/{_segment(session_id)}")

    def stats(self, **query: Any) -> Answer:
        """Counts of decisions by guard and reason."""
        return self.get("/v1/stats", query)

    def overview(self, **query: Any) -> Answer:
        """Everything a dashboard shows of a time; the last day unless told."""
        return self.get("/v1/overview", query)

    def consumption(self, **query: Any) -> Answer:
        """What was used by bot, step and day, and by conversation and week; the last 28 days unless told."""
        return self.get("/v1/consumption", query)

    def spend(self, **query: Any) -> Answer:
        """What model calls cost, by day, model, key, run and more (`by`), and what is left of the budgets."""
        return self.get("/v1/spend", query)

    def runs(self, **query: Any) -> Answer:
        """Runs that asked a model, the latest first unless told (`sort`, `state`, `prefix`)."""
        return self.get("/v1/runs", query)

    def stop_run(self, run: str, note: str | None = None) -> Answer:
        """Refuses a run's next calls until it is resumed; whoever is refused is told the note."""
        return self.post(f"/v1/runs/{_segment(run)}/stop", note=note)

    def resume_run(self, run: str) -> Answer:
        """Lets a run go on that was stopped by hand or tripped."""
        return self.request("POST", f"/v1/runs/{_segment(run)}/resume", {})

    def insights(self, **query: Any) -> Answer:
        """What the log advises, the weightiest first; the last 7 days unless told."""
        return self.get("/v1/insights", query)

    def dismiss_insight(self, key: str) -> Answer:
        """Puts a piece of advice aside, until it is restored."""
        return self.request("POST", f"/v1/insights/{_segment(key)}/dismiss", {})

    def snooze_insight(self, key: str, length: str = "7d") -> Answer:
        """Puts a piece of advice aside for a while, such as "36h"."""
        return self.request("POST", f"/v1/insights/{_segment(key)}/snooze", {"for": length})

    def restore_insight(self, key: str) -> Answer:
        """Shows a piece of advice again that was put aside."""
        return self.request("POST", f"/v1/insights/{_segment(key)}/restore", {})

    def preview(self, guard: str, settings: dict[str, Any], **query: Any) -> Answer:
        """What other settings of a guard would have answered, from the log."""
        return self.post("/v1/preview", guard=guard, settings=settings, **query)

    def guards(self) -> Answer:
        """Every guard with its routes and reasons, and what people call them."""
        return self.get("/v1/guards")

    def settings(self, **query: Any) -> Answer:
        """The settings in force, each value with where it came from."""
        return self.get("/v1/settings", query)

    def alerts(self) -> Answer:
        """Rules with what is firing, targets, and what waits, was delivered or was given up."""
        return self.get("/v1/alerts")

    def test_alerts(self, target: str | None = None) -> Answer:
        """Sends a test message, to one target or to all."""
        return self.post("/v1/alerts/test", target=target)

    def retry_alert(self, id: str) -> Answer:
        """Puts a message that was given up back into the queue."""
        return self.request("POST", f"/v1/alerts/dead/{_segment(id)}/retry", {})

    def circuits(
        self,
        *,
        endpoint: Optional[str] = None,
        phase: Optional[str] = None,
        limit: Optional[int] = None,
        cursor: Optional[str] = None,
    ) -> Answer:
        """A page of circuits (100, at most 1000), how many there are in which phase, and where the next page begins."""
        asked = {"endpoint": endpoint, "phase": phase, "limit": limit, "cursor": cursor}
        return self.get("/v1/circuits", {name: value for name, value in asked.items() if value is not None})

    def open_circuit(self, endpoint_key: str) -> Answer:
        """Forces a circuit open."""
        return self.request("POST", f"/v1/circuits/{_segment(endpoint_key)}/open", {})

    def close_circuit(self, endpoint_key: str) -> Answer:
        """Forces a circuit closed."""
        return self.request("POST", f"/v1/circuits/{_segment(endpoint_key)}/close", {})

    def reset_circuit(self, endpoint_key: str) -> Answer:
        """Lets a circuit decide by itself again."""
        return self.request("POST", f"/v1/circuits/{_segment(endpoint_key)}/reset", {})

    def ready(self) -> bool:
        """Whether the service can decide."""
        try:
            self.get("/readyz")
        except ServiceError:
            return False
        return True

    # How it is done.

    def post(self, path: str, /, **body: Any) -> Answer:
        """Asks a guard by the path of its route. Fields that are None are left out."""
        return self.request("POST", path, {name: value for name, value in body.items() if value is not None})

    def get(self, path: str, query: Optional[Mapping[str, Any]] = None) -> Answer:
        """Reads."""
        return self.request("GET", f"{path}?{urllib.parse.urlencode(query)}" if query else path)

    def request(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> Answer:
        """One request; the JSON object that was answered, empty for an answer without a body."""
        try:
            data = None if body is None else json.dumps(body, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"The request cannot be written as JSON ({error}). Pass plain values.") from error
        text, away = self.exchange(method, path, data)
        if away is not None:
            raise away
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = text
        return answer if isinstance(answer, dict) else {"answer": answer}

    def exchange(self, method: str, path: str, body: Optional[str]) -> tuple[str, Optional[ServiceError]]:
        """The text of an answer, or why there is none and asking later may help. What asking again does not mend is raised."""
        headers = dict(self._headers)
        if body is not None and '"request_id":' not in body:
            # A connection that was kept alive may be dead by now: with this key the second try counts nothing twice. What has a name of its own
            # may be sent again later, and is then the same request.
            headers["idempotency-key"] = uuid.uuid4().hex
        try:
            response, data = self._exchange(method, self._base + path, None if body is None else body.encode(), headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            away = ServiceError(
                f"The RunGuard service at {self.url} could not be asked ({type(error).__name__}: {error}). Check the address and that it runs."
            )
            away.__cause__ = error
            return "", away
        text, fault = _core.read_reply(method, path, response.status, data.decode("utf-8", "replace"))
        if fault is None:
            for warning in _warnings(text):
                logger.warning("%s %s: %s", method, path, warning)
            return text, None
        if fault == "input":
            raise InvalidInputError(text)
        problem = ServiceError(text, status=response.status)
        if fault == "away":
            return "", problem
        raise problem

    def close(self) -> None:
        """Closes this thread's connection; the next request opens one."""
        connection, self._connection.open = self._connection.open, None
        if connection is not None and self._connection.pid == os.getpid():
            connection.close()

    def _exchange(self, method: str, path: str, data: Optional[bytes], headers: Mapping[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        kept = self._connection.open
        if kept is not None and self._connection.pid == os.getpid():
            try:
                kept.request(method, path, data, headers)
                response = kept.getresponse()
                return response, response.read()
            except socket.timeout:
                # Not a dead connection but a slow service: asking again would only double the wait.
                raise
            except (OSError, http.client.HTTPException):
                kept.close()
        connection = self._connect()
        self._connection.open, self._connection.pid = connection, os.getpid()
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return response, response.read()

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self.timeout, context=ssl.create_default_context())
        return http.client.HTTPConnection(self._host, self._port, timeout=self.timeout)


def _warnings(text: str) -> Any:
    answer = json.loads(text) if '"warnings"' in text else None
    return answer.get("warnings") or () if isinstance(answer, dict) else ()


def _segment(text: str) -> str:
    if not text:
        raise InvalidInputError("An id must not be empty.")
    return urllib.parse.quote(text, safe="")
