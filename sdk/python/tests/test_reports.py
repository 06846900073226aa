"""Where a trip is told: one log record, one event of the current span, and callbacks, async ones too."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest

from runguard import LoopDetectedError, Run, TripError, flush_alerts


def trip(run: Run) -> None:
    for _ in range(2):
        with pytest.raises(LoopDetectedError):
            for _ in range(3):
                run.before_tool("search", {"query": "rust"})


def test_a_trip_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "runguard"):
        trip(Run("job-1", repeats=3))
    records = [record for record in caplog.records if record.name == "runguard"]
    assert [record.levelname for record in records] == ["WARNING"]
    assert "job-1 is stopped: 'search' was called" in records[0].getMessage()
    assert records[0].runguard_reason == "loop_detected"  # type: ignore[attr-defined]


def test_a_trip_is_an_event_of_the_current_span() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with provider.get_tracer("test").start_as_current_span("agent"):
        trip(Run("job-2", repeats=3))
    (event,) = spans.get_finished_spans()[0].events
    assert event.name == "runguard.trip"
    assert event.attributes is not None and event.attributes["runguard.reason"] == "loop_detected"


def test_nothing_of_opentelemetry_is_imported() -> None:
    code = "import sys, runguard; assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_async_callback_is_awaited() -> None:
    told: list[Any] = []

    async def tell(error: TripError) -> None:
        await asyncio.sleep(0)
        told.append(error.reason)

    trip(Run(repeats=3, alerts=tell))
    assert flush_alerts()
    assert told == ["loop_detected"]
