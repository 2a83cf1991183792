"""Plans, progress and results as text: one line that is redrawn on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from shardyard.text import printable

_PLAIN_EVERY_S = 10.0


def size(nbytes: float | None) -> str:
    """Bytes for people, in binary units: `5.7 GiB`."""
    if nbytes is None:
        return "?"
    from humanize import naturalsize

    return str(naturalsize(nbytes, binary=True, format="%.1f")).replace(" Bytes", " B").replace(" Byte", " B")


def duration(seconds: float | None) -> str:
    """`0:03`, `1:02:03`."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Panel:
    """Shows a job's events on a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._last_plain = 0.0

    def show(self, event: Mapping[str, Any]) -> None:
        """Show one event."""
        kind = event["event"]
        if kind == "progress":
            self._progress(event)
        elif kind == "plan":
            self._lines(plan_lines(event))
        elif kind == "message":
            self._lines([printable(str(event.get("text", event.get("message", ""))))])
        elif kind == "finding":
            self._lines([f"{event.get('severity', 'note')}: {printable(str(event.get('message', '')))}"])

    def _progress(self, event: Mapping[str, Any]) -> None:
        line = progress_line(event)
        if self._live:
            width = shutil.get_terminal_size().columns
            self._stream.write(f"\r{line[: width - 1]}\x1b[K")
            self._stream.flush()
        elif time.monotonic() - self._last_plain >= _PLAIN_EVERY_S:
            self._last_plain = time.monotonic()
            print(line, file=self._stream, flush=True)

    def _lines(self, lines: Iterable[str]) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
        print("\n".join(lines), file=self._stream, flush=True)


def finish(stream: TextIO) -> None:
    """Leave the line that was redrawn."""
    if stream.isatty():
        stream.write("\r\x1b[K")
        stream.flush()


def progress_line(event: Mapping[str, Any]) -> str:
    """One line: bar, share, bytes, rate, time left, memory against its limit."""
    done, total = event.get("done") or 0, event.get("total") or 0
    share = min(1.0, done / total) if total else 0.0
    bar = "#" * round(share * 24)
    memory = event.get("memory") or {}
    limit = f" of {size(memory['limit'])}" if memory.get("limit") else ""
    return (
        f"[{bar:.<24}] {share:4.0%}  {size(done)} of {size(total)}  {size(event.get('rate') or 0)}/s"
        f"  left {duration(event.get('eta'))}  memory {size(memory.get('anon'))}{limit}"
    )


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """The plan as a person reads it."""
    rows = [(label, plan.get(key)) for label, key in _PLAN_ROWS]
    lines = [f"{label:<9}{_value(value)}" for label, value in rows if value not in (None, [], "", {})]
    lines += [f"{'note':<9}{printable(str(note))}" for note in plan.get("notes", ())]
    return lines


_PLAN_ROWS = (
    ("from", "source"),
    ("to", "out"),
    ("reads", "read_bytes"),
    ("writes", "write_bytes"),
    ("memory", "memory_bytes"),
    ("free", "free_bytes"),
)


def _value(value: Any) -> str:
    return size(value) if isinstance(value, int) else printable(str(value))


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """How a job ended well."""
    lines = [printable(str(line)) for line in result.get("lines", ())]
    if not lines and result.get("out"):
        lines = [f"Wrote {printable(str(result['out']))}."]
    return lines
