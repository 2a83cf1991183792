"""A job's events as what the screen shows: rates, curves and a log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardyard_tui import units
from shardyard_tui.facts import Document

WINDOW_S = 5.0
"""The rate now is that of the last seconds."""
MOST_SAMPLES = 1_800
MOST_LOG = 2_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a running job."""

    time: float
    read: int
    written: int
    anon: int


@dataclass(slots=True)
class History:
    """Takes events in order."""

    progress: Document | None = None
    plan: Document | None = None
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    log: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=MOST_LOG))
    """(time, style, text)."""
    started: float = 0.0
    peak: int = 0
    """Largest memory seen."""

    def take(self, events: Iterable[Document]) -> bool:
        """Add events; whether there were any."""
        any_came = False
        for event in events:
            any_came = True
            self.started = self.started or float(event["time"])
            getattr(self, f"_{event['event']}", self._other)(event)
        return any_came

    def _progress(self, event: Document) -> None:
        self.progress = event
        anon = int((event.get("memory") or {}).get("anon") or 0)
        self.peak = max(self.peak, anon)
        sample = Sample(float(event["time"]), int(event.get("read") or 0), int(event.get("written") or 0), anon)
        if self.samples and sample.read < self.samples[-1].read:
            self.samples.clear()  # it was resumed and counts anew
        self.samples.append(sample)

    def _plan(self, event: Document) -> None:
        self.plan = event
        tensors, nbytes = event.get("tensors"), event.get("bytes_written")
        text = "plan made"
        if isinstance(tensors, int):
            text += f": {units.plural(tensors, 'tensor')}"
        if isinstance(nbytes, int):
            text += f", {units.size(nbytes)} to write"
        self.log.append((float(event["time"]), "dim", text))

    def _message(self, event: Document) -> None:
        self.log.append((float(event["time"]), "text", str(event.get("message", ""))))

    def _finding(self, event: Document) -> None:
        style = {"error": "error", "warning": "warning"}.get(str(event.get("severity")), "dim")
        self.log.append((float(event["time"]), style, str(event.get("message", ""))))

    def _result(self, event: Document) -> None:
        self.log.append((float(event["time"]), "ok", "done"))

    def _error(self, event: Document) -> None:
        self.log.append((float(event["time"]), "error", str(event.get("message", ""))))

    def _other(self, event: Document) -> None:
        """An event of a newer version says nothing here."""

    # What the curves show

    def rates(self) -> tuple[float, float]:
        """Bytes a second now: read and written."""
        return self._rate(WINDOW_S)

    def averages(self) -> tuple[float, float]:
        """Bytes a second since the start."""
        return self._rate(float("inf"))

    def _rate(self, window: float) -> tuple[float, float]:
        if len(self.samples) < 2:
            return 0.0, 0.0
        last = self.samples[-1]
        first = next(s for s in self.samples if last.time - s.time <= window)
        if first is last:
            first = self.samples[-2]
        span = max(1e-6, last.time - first.time)
        return (last.read - first.read) / span, (last.written - first.written) / span

    def curve(self, what: str, columns: int, span_s: float = 60.0) -> list[float]:
        """`read`, `written` or `anon` over the last `span_s` seconds, one value a column, oldest first."""
        if not self.samples or not columns:
            return []
        end = self.samples[-1].time
        step = span_s / columns
        values = [0.0] * columns
        seen = [0] * columns
        before: Sample | None = None
        for sample in self.samples:
            at = columns - 1 - int((end - sample.time) / step)
            if at >= 0:
                if what == "anon":
                    values[at] += sample.anon
                    seen[at] += 1
                elif before is not None and sample.time > before.time:
                    values[at] += (getattr(sample, what) - getattr(before, what)) / (sample.time - before.time)
                    seen[at] += 1
            before = sample
        filled = [v / n if n else -1.0 for v, n in zip(values, seen, strict=True)]
        for i in range(1, columns):
            if filled[i] < 0 <= filled[i - 1]:
                filled[i] = filled[i - 1]
        return [max(0.0, v) for v in filled]
