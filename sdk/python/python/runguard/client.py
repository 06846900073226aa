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
from typing import Any, Dict, Mapping, Optional

from .errors import InvalidInputError, ServiceError

Answer = Dict[str, Any]

logger = logging.getLogger("runguard.service")


class _Connection(threading.local):
    """One connection per thread, opened anew in a forked child: two processes must not read from one socket."""

    open: Optional[http.client.HTTPConnection] = None
    pid: int = 0


class Client:
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

    # The detectors.

    def loop(self, session_id: str, tool: str, *, args: Any = None, **thresholds: Any) -> Answer:
        """May this call be made, or does it complete a loop? An allowed call is counted."""
        return self.post("/guard/loop", session_id=session_id, tool=tool, args=args, **thresholds)

    def loop_check(self, session_id: str, tool: str, *, args: Any = None, **thresholds: Any) -> Answer:
        """Would this call complete a loop? Nothing is counted."""
        return self.post("/guard/loop/check", session_id=session_id, tool=tool, args=args, **thresholds)

    def stall(self, session_id: str, tool: Optional[str] = None, **what: Any) -> Answer:
        """This call gave this result: does the run still make progress?"""
        return self.post("/guard/stall", session_id=session_id, tool=tool, **what)

    def budget_check(self, session_id: str, **what: Any) -> Answer:
        """What is left of a budget?"""
        return self.post("/guard/budget/check", session_id=session_id, **what)

    def budget_record(self, session_id: str, **what: Any) -> Answer:
        """Adds what was spent."""
        return self.post("/guard/budget/record", session_id=session_id, **what)

    def budget_reserve(self, session_id: str, **what: Any) -> Answer:
        """Sets an estimate aside before the money is spent."""
        return self.post("/guard/budget/reserve", session_id=session_id, **what)

    def budget_commit(self, session_id: str, reservation_id: str, **what: Any) -> Answer:
        """Turns a reservation into what was really spent."""
        return self.post("/guard/budget/commit", session_id=session_id, reservation_id=reservation_id, **what)

    def budget_release(self, session_id: str, reservation_id: str, **what: Any) -> Answer:
        """Gives a reservation back."""
        return self.post("/guard/budget/release", session_id=session_id, reservation_id=reservation_id, **what)

    def tool_call(self, session_id: str, tool: str, *, args: Any = None, **what: Any) -> Answer:
        """May this tool be run, or was it run already?"""
        return self.post("/guard/tool-call", session_id=session_id, tool=tool, args=args, **what)

    def tool_call_record(self, session_id: str, tool: str, *, args: Any = None, **what: Any) -> Answer:
        """This tool was run, and gave this."""
        return self.post("/guard/tool-call/record", session_id=session_id, tool=tool, args=args, **what)

    def action_group(self, session_id: str, **what: Any) -> Answer:
        """May this action-group call be made, or has it failed for good?"""
        return self.post("/guard/action-group", session_id=session_id, **what)

    def action_group_result(self, session_id: str, **what: Any) -> Answer:
        """How an action-group call ended."""
        return self.post("/guard/action-group/result", session_id=session_id, **what)

    # The flow guards.

    def ai_task_retry(self, session_id: str, task_name: str, *, user_message: str = "", validation_error: str = "") -> Answer:
        """May this AI Task be run again after its output failed validation?"""
        return self.post(
            "/guard/ai-task-retry", session_id=session_id, task_name=task_name, user_message=user_message, validation_error=validation_error
        )

    def handoff(self, session_id: str, source_bot: str, target_bot: str) -> Answer:
        """May the conversation be handed to this bot?"""
        return self.post("/guard/handoff", session_id=session_id, source_bot=source_bot, target_bot=target_bot)

    def kb_requery(self, session_id: str, topic_hash: str, *, query_text: str = "", last_confidence: float = 0.0) -> Answer:
        """May the knowledge base be asked again? (The check counts.)"""
        return self.post(
            "/guard/kb-requery", session_id=session_id, topic_hash=topic_hash, query_text=query_text, last_confidence=last_confidence
        )

    def kb_requery_check(self, session_id: str, query: str, *, prior_confidence: Optional[float] = None) -> Answer:
        """May the knowledge base be asked? (The record counts.)"""
        return self.post("/guard/kb-requery/check", session_id=session_id, query=query, prior_confidence=prior_confidence)

    def kb_requery_record(self, session_id: str, query: str, confidence_score: float, retrieved_chunks: int = 0) -> Answer:
        """What a knowledge base query gave. This counts."""
        return self.post(
            "/guard/kb-requery/record", session_id=session_id, query=query, confidence_score=confidence_score, retrieved_chunks=retrieved_chunks
        )

    def agent_action(self, session_id: str, action_name: str, *, action_params: Any = None, action_params_hash: Optional[str] = None) -> Answer:
        """May the agent run this action?"""
        return self.post(
            "/guard/agent-action",
            session_id=session_id,
            action_name=action_name,
            action_params=action_params,
            action_params_hash=action_params_hash,
        )

    def agent_action_result(self, session_id: str, action_name: str, **what: Any) -> Answer:
        """What the newest call of this action gave."""
        return self.post("/guard/agent-action/result", session_id=session_id, action_name=action_name, **what)

    def no_match_reprompt(self, session_id: str, step_id: str, *, user_utterance: str = "") -> Answer:
        """May the user be asked again after no intent matched?"""
        return self.post("/guard/no-match-reprompt", session_id=session_id, step_id=step_id, user_utterance=user_utterance)

    def capture_slot_fill(self, session_id: str, capture_step: str, entity_type: str, *, user_utterance: str = "") -> Answer:
        """May a model try to extract this entity again?"""
        return self.post(
            "/guard/capture-slot-fill",
            session_id=session_id,
            capture_step=capture_step,
            entity_type=entity_type,
            user_utterance=user_utterance,
        )

    def api_circuit_check(self, endpoint_key: str, session_id: str) -> Answer:
        """May this session call the endpoint?"""
        return self.post("/guard/api-circuit/check", endpoint_key=endpoint_key, session_id=session_id)

    def api_circuit_record(self, endpoint_key: str, session_id: str, outcome: str, **what: Any) -> Answer:
        """How a call to the endpoint ended: "success" or "failure"."""
        return self.post("/guard/api-circuit/record", endpoint_key=endpoint_key, session_id=session_id, outcome=outcome, **what)

    # Reading and operating.

    def decisions(self, **query: Any) -> Answer:
        """The log of decisions."""
        return self.get("/v1/decisions", query)

    def decision(self, decision_id: str) -> Answer:
        """One decision."""
        return self.get(f"/v1/decisions/{_segment(decision_id)}")

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

    def insights(self, **query: Any) -> Answer:
        """What the log advises, the weightiest first; the last 7 days unless told."""
        return self.get("/v1/insights", query)

    def preview(self, guard: str, settings: dict[str, Any], **query: Any) -> Answer:
        """What other settings of a guard would have answered, from the log."""
        return self.post("/v1/preview", guard=guard, settings=settings, **query)

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
        """Asks a guard. Fields that are None are left out."""
        return self.request("POST", path, {name: value for name, value in body.items() if value is not None})

    def get(self, path: str, query: Optional[Mapping[str, Any]] = None) -> Answer:
        """Reads."""
        return self.request("GET", f"{path}?{urllib.parse.urlencode(query)}" if query else path)

    def request(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> Answer:
        """One request; the JSON object that was answered, empty for an answer without a body."""
        headers = dict(self._headers)
        data = None
        if body is not None:
            try:
                data = json.dumps(body, allow_nan=False).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidInputError(f"The request cannot be written as JSON ({error}). Pass plain values.") from error
            # A connection that was kept alive may be dead by now: with this key the second try counts nothing twice.
            headers["idempotency-key"] = uuid.uuid4().hex
        try:
            response, text = self._exchange(method, self._base + path, data, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ServiceError(
                f"The RunGuard service at {self.url} could not be asked ({type(error).__name__}: {error}). Check the address and that it runs."
            ) from error
        return self._answer(method, path, response.status, text)

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

    def _answer(self, method: str, path: str, status: int, text: bytes) -> Answer:
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = text.decode("utf-8", "replace")
        if status < 300 or (status == 429 and isinstance(answer, dict) and answer.get("allow") is False):
            answer = answer if isinstance(answer, dict) else {"answer": answer}
            for warning in answer.get("warnings") or ():
                logger.warning("%s %s: %s", method, path, warning)
            return answer
        problem = answer if isinstance(answer, dict) else {}
        errors = "; ".join(f"{error.get('field')}: {error.get('problem')}" for error in problem.get("errors") or [])
        detail = " ".join(part for part in (str(problem.get("detail") or problem.get("title") or text[:200].decode("utf-8", "replace")), errors) if part)
        if status in (400, 413, 422):
            raise InvalidInputError(f"The RunGuard service refused {method} {path} ({status}): {detail}")
        raise ServiceError(f"The RunGuard service answered {method} {path} with {status}: {detail}", status=status)


def _segment(text: str) -> str:
    if not text:
        raise InvalidInputError("An id must not be empty.")
    return urllib.parse.quote(text, safe="")
