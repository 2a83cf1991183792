"""What an operation reports becomes events with rates and readings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from shardyard.errors import Cancelled, NoRoomError
from shardyard.jobs import context as contexts
from shardyard.jobs.context import EventContext
from shardyard.operations.context import Progress


class Clock:
    """A clock that tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(contexts.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def reported(context_events: list[dict[str, Any]]) -> dict[str, Any]:
    return next(e for e in reversed(context_events) if e["event"] == "progress")


def test_rates_are_those_of_the_last_seconds(clock: Clock, tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = []
    context = EventContext(sent.append, out=tmp_path)
    for second in range(1, 31):
        clock.now += 1.0
        # 100 a second at first, then nothing.
        done = min(second, 10) * 100
        context.progress(Progress(done, 10_000, 2 * done, done // 2, "x"))
        if second == 5:
            event = reported(sent)
            assert (event["rate"], event["read_rate"], event["write_rate"]) == (100, 200, 50)
            assert event["eta"] == 95.0
    stalled = reported(sent)
    assert stalled["rate"] == 0 and stalled["eta"] is None


def test_progress_is_thinned_more_in_a_long_job(clock: Clock) -> None:
    sent: list[dict[str, Any]] = []
    context = EventContext(sent.append)
    counts = []
    for _ in range(2):
        before = len(sent)
        for _ in range(1000):
            clock.now += 0.01
            context.progress(Progress(1, 2, 0, 0, "x"))
        counts.append(len(sent) - before)
        clock.now += contexts.CALM_AFTER_S
    assert 40 <= counts[0] <= 51 and 9 <= counts[1] <= 11


def test_the_last_progress_is_not_lost_to_thinning(clock: Clock) -> None:
    sent: list[dict[str, Any]] = []
    context = EventContext(sent.append)
    context.progress(Progress(1, 2, 0, 0, "x"))
    context.progress(Progress(2, 2, 0, 0, "x"))
    assert reported(sent)["done"] == 1
    context.flush()
    assert reported(sent)["done"] == 2


def test_why_it_stopped_is_told_apart() -> None:
    stop = False
    context = EventContext(lambda event: None, stop=lambda: stop)
    context.check()
    stop = True
    with pytest.raises(Cancelled):
        context.check()
    context.out_of_time = True
    with pytest.raises(NoRoomError, match="CPU time"):
        context.check()


def test_cpu_is_in_cores() -> None:
    sent: list[dict[str, Any]] = []
    context = EventContext(sent.append)
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    context.progress(Progress(1, 2, 0, 0, "x"))
    assert 0.05 < reported(sent)["cpu"] < 2.0
