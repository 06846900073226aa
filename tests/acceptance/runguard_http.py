"""A small HTTP client for the suite: standard library only, and it carries the story's clock."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# 2027-01-15 08:00:00 UTC: second zero of every story.
T0_MS = 1_800_000_000_000


@dataclass(frozen=True)
class Response:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def content_type(self) -> str:
        return (self.headers.get("content-type") or "").split(";")[0].strip().lower()

    def __str__(self) -> str:
        headers = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
        return f"{self.status}\n{headers}\n{self.body[:4000].decode(errors='replace')}"


class Client:
    """Asks one server. On a virtual clock every request says what time it is.

    `at(seconds)` sets the story's time; `allowed` and `refused` ask a guard and insist on the answer.
    """

    def __init__(self, port: int, *, virtual_clock: bool = True, key: str | None = None, keep_alive: bool = False):
        self.port = port
        self.key = key
        self.now_ms: int | None = T0_MS if virtual_clock else None
        self._kept = http.client.HTTPConnection("127.0.0.1", port, timeout=30) if keep_alive else None

    # -- time ---------------------------------------------------------------------------------

    def at(self, seconds: float) -> Client:
        """The story's time, in seconds since its second zero."""
        assert self.now_ms is not None, "this server runs on the real clock"
        self.now_ms = T0_MS + round(seconds * 1000)
        return self

    def wait(self, seconds: float) -> Client:
        self.now_ms += round(seconds * 1000)
        return self

    # -- HTTP ---------------------------------------------------------------------------------

    def headers(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        sent = {}
        if self.now_ms is not None:
            sent["x-runguard-now"] = str(self.now_ms)
        if self.key is not None:
            sent["Authorization"] = f"Bearer {self.key}"
        return {**sent, **(extra or {})}

    def request(self, method: str, path: str, body: bytes | Iterable[bytes] | None = None,
                headers: dict[str, str] | None = None, timeout: float = 30) -> Response:
        connection = self._kept or http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            try:
                connection.request(method, path, body=body, headers=self.headers(headers))
            except (BrokenPipeError, ConnectionResetError):
                if connection.sock is None:
                    raise
                # Refused while still sending (413): the answer may wait in the socket.
            answer = connection.getresponse()
            return Response(answer.status, answer.headers, answer.read())
        finally:
            if connection is not self._kept:
                connection.close()

    def get(self, path: str, headers: dict[str, str] | None = None) -> Response:
        return self.request("GET", path, headers=headers)

    def delete(self, path: str) -> Response:
        return self.request("DELETE", path)

    def post(self, path: str, fields: dict[str, Any] | None = None, headers: dict[str, str] | None = None) -> Response:
        """A JSON object, as a caller sends it."""
        sent = {"content-type": "application/json", **(headers or {})}
        return self.request("POST", path, json.dumps(fields or {}).encode(), sent)

    # -- guards -------------------------------------------------------------------------------

    def allowed(self, path: str, **fields: Any) -> dict[str, Any]:
        response = self.post(path, fields)
        assert response.status == 200, f"{path} {fields} should be allowed, was {response}"
        assert response.json["allow"] is True, response
        return response.json

    def refused(self, path: str, reason: str, **fields: Any) -> dict[str, Any]:
        response = self.post(path, fields)
        assert response.status == 429, f"{path} {fields} should be refused, was {response}"
        assert response.json["allow"] is False, response
        assert response.json["reason"] == reason, response
        return response.json

    def recorded(self, path: str, **fields: Any) -> dict[str, Any]:
        response = self.post(path, fields)
        assert response.status == 200, f"{path} {fields} should be recorded, was {response}"
        assert response.json["recorded"] is True, response
        return response.json


def subset(body: dict[str, Any], *names: str) -> dict[str, Any]:
    """The named fields of an answer, so that a test can compare them in one line."""
    return {name: body.get(name, "<absent>") for name in names}


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    id: str | None
    name: str | None
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class EventStream:
    """Reads `GET path` as server-sent events, one `next_event()` at a time."""

    def __init__(self, client: Client, path: str, last_event_id: str | None = None):
        headers = {"accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        self.connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
        self.connection.request("GET", path, headers=client.headers(headers))
        self.response = self.connection.getresponse()

    def next_event(self) -> Event:
        """The next event that carries data; comments (keep-alives) are passed over."""
        fields: dict[str, list[str]] = {}
        while line := self.response.readline().decode():
            line = line.rstrip("\r\n")
            if line == "":
                if "data" in fields:
                    return Event(fields.get("id", [None])[-1], fields.get("event", [None])[-1], "\n".join(fields["data"]))
                fields = {}
            elif not line.startswith(":"):
                name, _, value = line.partition(":")
                fields.setdefault(name, []).append(value.removeprefix(" "))
        raise EOFError("the event stream ended")

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_) -> None:
        self.connection.close()
