"""How an operation's calls become events: thinned, with readings, and never silent while it works.

Whatever the operation does, a reader hears of it at most ten times a second and at least every two seconds: a call that takes
long (a slow disk, a large sync) must not look like a dead job.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from shardyard.errors import Cancelled, NoRoomError
from shardyard.findings import Finding
from shardyard.jobs.events import Event
from shardyard.limits import disk, readings
from shardyard.operations.context import Context, Progress

QUICK_S, CALM_S, CALM_AFTER_S = 0.2, 1.0, 60.0
"""Seconds between progress events: short at first, longer in a long job, whose file would grow by megabytes."""
SILENCE_S = 1.2
"""After this long without a progress, one is sent that repeats the last with fresh readings."""
PULSE_S = 0.5
WINDOW_S = 10.0
"""The rate is that of the last seconds, not since the start: a stall must show."""


class EventContext(Context):
    """A context that turns what it is told into events and hands them to `sink`; `with` starts and ends its pulse."""

    def __init__(
        self,
        sink: Callable[[Event], None],
        *,
        out: str | os.PathLike[str] | None = None,
        stop: Callable[[], bool] = lambda: False,
        task: int = 0,
        tasks: int = 1,
    ) -> None:
        self.task, self.tasks = task, tasks
        self._sink = sink
        self._stop = stop
        self._lock = threading.RLock()
        self._meter = None if out is None else disk.Meter(out)
        self._started = time.monotonic()
        self._sent = float("-inf")
        self._progress = Progress(0, 0, 0, 0, "")
        self._history: deque[tuple[float, Progress]] = deque()
        self._cpu = (self._started, time.process_time())
        self._pulse: threading.Thread | None = None
        self._ended = threading.Event()
        self.out_of_time = False
        """Set when the kernel warned that the CPU time is nearly used up."""

    def plan(self, plan: Mapping[str, object]) -> None:
        self.send("plan", plan)

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        self._progress = progress
        calm = now - self._started > CALM_AFTER_S
        if now - self._sent >= (CALM_S if calm else QUICK_S):
            self._send_progress(now)

    def message(self, text: str) -> None:
        self.send("message", {"message": text})

    def finding(self, finding: Finding) -> None:
        self.send("finding", finding.to_json())

    def cancelled(self) -> bool:
        return self.out_of_time or self._stop()

    def check(self) -> None:
        if self.cancelled():
            raise self.why_stopped()

    def why_stopped(self) -> Cancelled | NoRoomError:
        """The error to end with once `cancelled` said yes."""
        if self.out_of_time:
            return NoRoomError(
                "The CPU time that this machine allows a process (ulimit -t) is used up; finished units are kept: "
                "resume it, or run it on a compute node with --slurm."
            )
        return Cancelled()

    def send(self, kind: str, payload: Mapping[str, object]) -> None:
        """Send one event at once."""
        with self._lock:
            self._sink({**payload, "event": kind, "time": time.time()})

    def flush(self) -> None:
        """Send the last progress, if any was left out."""
        if self._progress.total:
            self._send_progress(time.monotonic())

    def __enter__(self) -> EventContext:
        pulse = threading.Thread(target=self._run_pulse, name="pulse", daemon=True)
        try:
            pulse.start()
            self._pulse = pulse
        except RuntimeError:
            # No thread may be started here: events then come only when the operation calls, unless a timer calls `pulse`.
            self._pulse = None
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._pulse is not None:
            self._pulse.join()

    def _run_pulse(self) -> None:
        while not self._ended.wait(PULSE_S):
            self.pulse()

    def pulse(self) -> None:
        """Called every half second while the operation works."""
        now = time.monotonic()
        if now - self._sent >= SILENCE_S:
            self._send_progress(now)

    def _send_progress(self, now: float) -> None:
        with self._lock:
            self._sent = now
            p = self._progress
            rate, read_rate, write_rate = self._rates(now, p)
            self.send(
                "progress",
                {
                    "done": p.done,
                    "total": p.total,
                    "read": p.read,
                    "written": p.written,
                    "item": p.item,
                    "rate": rate,
                    "read_rate": read_rate,
                    "write_rate": write_rate,
                    "eta": round((p.total - p.done) / rate, 1) if rate and p.total >= p.done else None,
                    **self._readings(now),
                },
            )

    def _rates(self, now: float, progress: Progress) -> tuple[int, int, int]:
        """Bytes a second done, read and written."""
        history = self._history
        history.append((now, progress))
        while now - history[0][0] > WINDOW_S and len(history) > 2:
            history.popleft()
        since, first = history[0]
        span = max(now - since, 1e-3)
        pairs = ((progress.done, first.done), (progress.read, first.read), (progress.written, first.written))
        done, read, written = (max(0, int((after - before) / span)) for after, before in pairs)
        return done, read, written

    def _readings(self, now: float) -> Event:
        reading = readings.read()
        used = time.process_time()
        elapsed = now - self._cpu[0]
        cpu = round((used - self._cpu[1]) / elapsed, 2) if elapsed > 0 else 0.0
        self._cpu = (now, used)
        event: Event = {
            "memory": reading.memory.to_json(),
            "disk": self._meter.read() if self._meter else {"free": None},
            "cpu": cpu,
        }
        if reading.cpu_left_s is not None:
            event["cpu_left"] = round(reading.cpu_left_s, 1)
        return event
